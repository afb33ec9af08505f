/* "__metadata__": strings under strings. */
#include <stdlib.h>
#include <string.h>

#include "core/base/error.h"
#include "core/weights/safetensors/header.h"

static int compare_keys(const void *left, const void *right)
{
    return strcmp(hl_json_key(left, NULL), hl_json_key(right, NULL));
}

static hl_status check_pair(const struct hl_safetensors_scan *scan, const hl_json_node *member)
{
    char quoted[HL_JSON_QUOTE_BYTES];
    size_t key_bytes = 0, value_bytes = 0;
    const char *key = hl_json_key(member, &key_bytes);
    hl_json_quote(quoted, key, key_bytes);
    if (hl_json_type_of(member) != HL_JSON_STRING)
        return HL_FAIL(scan->err, HL_E_CORRUPT, HL_SAFETENSORS_STAGE,
                       HL_SAFETENSORS_METADATA ": %s is %s, not a string", quoted,
                       hl_json_type_name(hl_json_type_of(member)));
    const char *value = hl_json_string(member, &value_bytes);
    if (strlen(key) != key_bytes || strlen(value) != value_bytes)
        return HL_FAIL(scan->err, HL_E_CORRUPT, HL_SAFETENSORS_STAGE,
                       HL_SAFETENSORS_METADATA ": a NUL in %s or its value", quoted);
    return HL_OK;
}

/* Of members with the same key, which stand in the order of the text, the last is kept. */
static void keep_last(struct hl_safetensors_scan *scan, const void **members, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const hl_json_node *member = members[i];
        if (i + 1 < count && compare_keys(member, members[i + 1]) == 0) {
            scan->tolerated.duplicate_metadata++;
            continue;
        }
        scan->pairs[scan->pair_count++] =
            (struct hl_safetensors_metadata){hl_json_key(member, NULL), hl_json_string(member, NULL)};
    }
}

static hl_status read_pairs(struct hl_safetensors_scan *scan, const hl_json_node *object)
{
    size_t count = hl_json_count(object), filled = 0;
    hl_status status = HL_OK;
    const void **members = calloc(count ? count : 1, sizeof *members);
    scan->pairs = calloc(count ? count : 1, sizeof *scan->pairs);
    if (!members || !scan->pairs) {
        status = HL_FAIL(scan->err, HL_E_NOMEM, HL_SAFETENSORS_STAGE, "no memory for %zu metadata", count);
        goto out_free;
    }
    for (const hl_json_node *member = hl_json_first(object); member; member = hl_json_next(member)) {
        status = check_pair(scan, member);
        if (status != HL_OK)
            goto out_free;
        members[filled++] = member;
    }
    status = hl_safetensors_sort(members, count, compare_keys, scan->err);
    if (status == HL_OK)
        keep_last(scan, members, count);
out_free:
    free(members);
    return status;
}

hl_status hl_safetensors_read_metadata(struct hl_safetensors_scan *scan, const hl_json_node *value)
{
    enum hl_json_type type = hl_json_type_of(value);
    if (type == HL_JSON_NULL && scan->strictness == HL_SAFETENSORS_TOLERANT) {
        scan->tolerated.null_metadata++;
        return HL_OK;
    }
    if (type != HL_JSON_OBJECT)
        return HL_FAIL(scan->err, HL_E_CORRUPT, HL_SAFETENSORS_STAGE,
                       HL_SAFETENSORS_METADATA " is %s, not an object", hl_json_type_name(type));
    return read_pairs(scan, value);
}
