#include "core/weights/cli/index.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/error.h"
#include "core/weights/document/manifest.h"
#include "hostlane/limits.h"

#define STAGE "weights.import"

/* A name for an error, whatever is in it. */
#define QUOTE(name) hl_json_quote((char[HL_JSON_QUOTE_BYTES]){0}, (name), strlen(name))

static int compare(const void *left, const void *right)
{
    const struct weights_index_entry *a = left, *b = right;
    return strcmp(a->tensor, b->tensor);
}

static bool names_a_payload(const char *file)
{
    static const char suffix[] = ".safetensors";
    const size_t size = strlen(file), tail = sizeof suffix - 1;
    return hl_manifest_file_name_is_safe(file) && size > tail && strcmp(file + size - tail, suffix) == 0;
}

static hl_status read_entry(const hl_json_node *member, const char *name, struct weights_index_entry *entry,
                            hl_error *err)
{
    size_t key_bytes, file_bytes = 0;
    const char *tensor = hl_json_key(member, &key_bytes);
    if (strlen(tensor) != key_bytes || key_bytes == 0)
        return HL_FAIL(err, HL_E_INVALID, STAGE,
                       "%s: weight_map has a tensor name that is empty or holds a NUL", name);
    const char *file = hl_json_type_of(member) == HL_JSON_STRING ? hl_json_string(member, &file_bytes) : NULL;
    if (!file || strlen(file) != file_bytes || !names_a_payload(file))
        return HL_FAIL(err, HL_E_INVALID, STAGE,
                       "%s: weight_map.%s is no name of a .safetensors file beside the index", name,
                       QUOTE(tensor));
    *entry = (struct weights_index_entry){.tensor = tensor, .file = file};
    return HL_OK;
}

static hl_status read_map(const hl_json_node *map, struct weights_index *index, hl_error *err)
{
    const size_t count = hl_json_count(map);
    if (count == 0)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "%s: weight_map is empty", index->name);
    if (count > HL_WEIGHT_TENSORS)
        return HL_FAIL(err, HL_E_LIMIT, STAGE, "%s: %zu tensors, more than %u", index->name, count,
                       HL_WEIGHT_TENSORS);
    index->entries = calloc(count, sizeof *index->entries);
    if (!index->entries)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "%zu tensors of an index", count);
    for (const hl_json_node *at = hl_json_first(map); at; at = hl_json_next(at)) {
        const hl_status status = read_entry(at, index->name, &index->entries[index->count], err);
        if (status != HL_OK)
            return status;
        index->count++;
    }
    qsort(index->entries, index->count, sizeof *index->entries, compare);
    return HL_OK;
}

static uint64_t claimed_size(const hl_json_node *root)
{
    uint64_t size = 0;
    const hl_json_node *metadata = hl_json_member(root, "metadata");
    if (!metadata || hl_json_type_of(metadata) != HL_JSON_OBJECT)
        return 0;
    const hl_json_node *total = hl_json_member(metadata, "total_size");
    return total && hl_json_type_of(total) == HL_JSON_INTEGER && hl_json_u64(total, &size) ? size : 0;
}

hl_status weights_index_parse(const char *text, size_t bytes, const char *name, struct weights_index *index,
                              hl_error *err)
{
    const struct hl_json_rules rules = {
        .max_bytes = HL_WEIGHT_DOCUMENT_BYTES, .max_depth = 16, .stage = STAGE, .keep_duplicates = false};
    struct weights_index parsed = {.name = name};
    hl_error why = {0};
    hl_status status = hl_json_parse(text, bytes, &rules, &parsed.document, &why);
    if (status != HL_OK)
        return HL_FAIL(err, status, STAGE, "%s: %s", name, why.text);
    const hl_json_node *root = hl_json_root(parsed.document);
    const hl_json_node *map =
        hl_json_type_of(root) == HL_JSON_OBJECT ? hl_json_member(root, "weight_map") : NULL;
    if (map && hl_json_type_of(map) == HL_JSON_OBJECT)
        status = read_map(map, &parsed, err);
    else
        status = HL_FAIL(err, HL_E_CORRUPT, STAGE, "%s: it has no object \"weight_map\"", name);
    if (status != HL_OK) {
        weights_index_free(&parsed);
        return status;
    }
    parsed.total_size = claimed_size(root);
    *index = parsed;
    return HL_OK;
}

void weights_index_free(struct weights_index *index)
{
    free(index->entries);
    hl_json_free(index->document);
    *index = (struct weights_index){0};
}

hl_status weights_index_match(struct weights_index *index, const struct weights_source_file *file,
                              hl_error *err)
{
    for (size_t i = 0; i < file->header->tensor_count; i++) {
        const struct weights_index_entry wanted = {.tensor = file->header->tensors[i].name};
        struct weights_index_entry *entry =
            bsearch(&wanted, index->entries, index->count, sizeof *index->entries, compare);
        if (!entry)
            return HL_FAIL(err, HL_E_INVALID, STAGE, "tensor %s of %s is not in %s", QUOTE(wanted.tensor),
                           file->name, index->name);
        if (strcmp(entry->file, file->name) != 0)
            return HL_FAIL(err, HL_E_INVALID, STAGE, "tensor %s is in %s, where %s has it in %.80s",
                           QUOTE(wanted.tensor), file->name, index->name, entry->file);
        entry->found = true;
    }
    return HL_OK;
}

hl_status weights_index_check_complete(const struct weights_index *index, hl_error *err)
{
    for (size_t i = 0; i < index->count; i++)
        if (!index->entries[i].found)
            return HL_FAIL(err, HL_E_INVALID, STAGE, "tensor %s of %s is missing in %.80s",
                           QUOTE(index->entries[i].tensor), index->name, index->entries[i].file);
    return HL_OK;
}
