/* deny/KEY.json: why an artifact must not be used. */
#include <string.h>

#include "core/weights/document/domain.h"
#include "core/weights/document/fields.h"

#define STAGE "weights.deny"

/* A text that may have been cut inside a character, or come from anywhere. */
static void put_any_text(struct hl_text *text, const char *key, const char *string)
{
    char clean[sizeof(struct hl_deny_marker)];
    size_t size = strlen(string);
    memcpy(clean, string, size + 1);
    if (!hl_json_valid_utf8(clean, size)) {
        for (size_t i = 0; i < size; i++)
            clean[i] = (unsigned char)clean[i] < 0x80 ? clean[i] : '?';
    }
    hl_text_print(text, "\"%s\":", key);
    hl_json_put_string(text, clean, size);
}

void hl_deny_put(struct hl_text *text, const struct hl_deny_marker *marker)
{
    hl_text_append(text, "{", 1);
    put_any_text(text, "message", marker->message);
    hl_text_append(text, ",", 1);
    put_any_text(text, "reason", marker->reason);
    hl_text_print(text, ",\"schema_version\":1,");
    put_any_text(text, "stage", marker->stage);
    hl_text_append(text, "}", 1);
}

/* Copies as many whole characters as fit. */
static hl_status read_cut(const struct hl_fields *fields, const char *key, const hl_json_node *node,
                          char *copy, size_t capacity)
{
    hl_status status = hl_field_type(fields, key, node, HL_JSON_STRING);
    if (status != HL_OK)
        return status;
    const char *found = hl_json_string(node, NULL);
    size_t size = strnlen(found, capacity - 1);
    while (size > 0 && ((unsigned char)found[size] & 0xc0) == 0x80)
        size--;
    memcpy(copy, found, size);
    copy[size] = '\0';
    return HL_OK;
}

static hl_status read_marker(const struct hl_fields *fields, const hl_json_node *root,
                             struct hl_deny_marker *marker)
{
    enum { MESSAGE, REASON, SCHEMA, STAGE_NAME, KEYS };
    static const char *const keys[KEYS] = {"message", "reason", "schema_version", "stage"};
    const hl_json_node *found[KEYS];
    hl_status status = hl_fields_collect(fields, root, keys, KEYS, found);
    if (status == HL_OK)
        status = read_cut(fields, keys[MESSAGE], found[MESSAGE], marker->message, sizeof marker->message);
    if (status == HL_OK)
        status = read_cut(fields, keys[REASON], found[REASON], marker->reason, sizeof marker->reason);
    if (status == HL_OK)
        status = read_cut(fields, keys[STAGE_NAME], found[STAGE_NAME], marker->stage, sizeof marker->stage);
    return status;
}

hl_status hl_deny_parse(const char *text, size_t bytes, struct hl_deny_marker *marker, hl_error *err)
{
    const struct hl_fields fields = {STAGE, HL_E_CORRUPT, NULL, -1, err};
    hl_json *document = NULL;
    struct hl_deny_marker found = {0};
    uint64_t version = 0;
    hl_status status = hl_fields_parse(&fields, text, bytes, &document);
    if (status != HL_OK)
        return status;
    status = hl_fields_schema(&fields, hl_json_root(document), 1, &version);
    if (status == HL_OK)
        status = read_marker(&fields, hl_json_root(document), &found);
    hl_json_free(document);
    if (status == HL_OK)
        *marker = found;
    return status;
}
