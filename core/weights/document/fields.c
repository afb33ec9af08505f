#include "core/weights/document/fields.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* What JSON calls a document's depth. The manifest holds an identity and metadata, which are one level
 * shallower. */
enum { DOCUMENT_DEPTH = 127 };

const char *hl_field_name(const struct hl_fields *fields, const char *key, char name[HL_FIELD_NAME_BYTES])
{
    const char *path = fields->path ? fields->path : key ? "" : "the document";
    const char *dot = fields->path && key ? "." : "";
    if (!key)
        key = "";
    if (fields->path && fields->index >= 0)
        snprintf(name, HL_FIELD_NAME_BYTES, "%s[%td]%s%s", path, fields->index, dot, key);
    else
        snprintf(name, HL_FIELD_NAME_BYTES, "%s%s%s", path, dot, key);
    return name;
}

/* Keys are short: a call to compare them costs more than this loop. */
static inline bool key_is(const char *name, size_t size, const char *key)
{
    for (size_t i = 0; i < size; i++) {
        if (key[i] != name[i] || !key[i])
            return false;
    }
    return !key[size];
}

hl_status hl_fields_collect(const struct hl_fields *fields, const hl_json_node *object,
                            const char *const *keys, size_t count, const hl_json_node **found)
{
    hl_status status = hl_field_type(fields, NULL, object, HL_JSON_OBJECT);
    if (status != HL_OK)
        return status;
    for (size_t i = 0; i < count; i++)
        found[i] = NULL;
    size_t next = 0;
    for (const hl_json_node *member = hl_json_first(object); member; member = hl_json_next(member)) {
        size_t at = next, size = 0;
        const char *key = hl_json_key(member, &size);
        if (at >= count || !key_is(key, size, keys[at])) {
            for (at = 0; at < count && !key_is(key, size, keys[at]);)
                at++;
        }
        if (at == count) {
            char quoted[HL_JSON_QUOTE_BYTES];
            return HL_FIELD_FAIL(fields, NULL, "has the unknown key %s", hl_json_quote(quoted, key, size));
        }
        found[at] = member;
        next = at + 1;
    }
    for (size_t i = 0; i < count; i++) {
        if (!found[i])
            return HL_FIELD_FAIL(fields, keys[i], "is missing");
    }
    return HL_OK;
}

hl_status hl_field_type(const struct hl_fields *fields, const char *key, const hl_json_node *node,
                        enum hl_json_type type)
{
    enum hl_json_type got = hl_json_type_of(node);
    if (got != type)
        return HL_FIELD_FAIL(fields, key, "has the type %s, not %s", hl_json_type_name(got),
                             hl_json_type_name(type));
    return HL_OK;
}

hl_status hl_field_text(const struct hl_fields *fields, const char *key, const hl_json_node *node,
                        const char **text)
{
    hl_status status = hl_field_type(fields, key, node, HL_JSON_STRING);
    if (status != HL_OK)
        return status;
    if (hl_json_holds_nul(node))
        return HL_FIELD_FAIL(fields, key, "holds a NUL");
    *text = hl_json_string(node, NULL);
    return HL_OK;
}

hl_status hl_field_name_text(const struct hl_fields *fields, const char *key, const hl_json_node *node,
                             const char **text)
{
    const char *found = "";
    hl_status status = hl_field_text(fields, key, node, &found);
    if (status != HL_OK)
        return status;
    if (!*found)
        return HL_FIELD_FAIL(fields, key, "is empty");
    *text = found;
    return HL_OK;
}

hl_status hl_field_choice(const struct hl_fields *fields, const char *key, const hl_json_node *node,
                          const char *const *choices, size_t count, size_t *chosen)
{
    const char *text = "";
    hl_status status = hl_field_text(fields, key, node, &text);
    if (status != HL_OK)
        return status;
    for (size_t i = 0; i < count; i++) {
        if (strcmp(text, choices[i]) == 0) {
            *chosen = i;
            return HL_OK;
        }
    }
    char quoted[HL_JSON_QUOTE_BYTES];
    return HL_FIELD_FAIL(fields, key, "is %s, which is not known", hl_json_quote(quoted, text, strlen(text)));
}

hl_status hl_field_u64(const struct hl_fields *fields, const char *key, const hl_json_node *node,
                       uint64_t least, uint64_t *value)
{
    hl_status status = hl_field_type(fields, key, node, HL_JSON_INTEGER);
    if (status != HL_OK)
        return status;
    uint64_t found = 0;
    if (!hl_json_u64(node, &found) || found < least)
        return HL_FIELD_FAIL(fields, key, "is not between %llu and 2^64 - 1", (unsigned long long)least);
    *value = found;
    return HL_OK;
}

/* Whether eight bytes are lower-case hexadecimal digits, each looked at in its own high bit. */
static bool eight_are_hex(const char *text)
{
    const uint64_t ones = UINT64_MAX / 255, high = ones << 7;
    uint64_t word;
    memcpy(&word, text, sizeof word);
    if (word & high)
        return false;
    const uint64_t digits = (word + ones * (0x80 - '0')) & ~(word + ones * (0x7f - '9'));
    const uint64_t letters = (word + ones * (0x80 - 'a')) & ~(word + ones * (0x7f - 'f'));
    return ((digits | letters) & high) == high;
}

static bool is_hex(const char *text, size_t digits)
{
    for (size_t i = 0; i < digits; i += 8) {
        if (!eight_are_hex(text + i))
            return false;
    }
    return true;
}

hl_status hl_field_hex(const struct hl_fields *fields, const char *key, const hl_json_node *node,
                       size_t digits, char *hex)
{
    const char *text = "";
    size_t size = 0;
    hl_status status = hl_field_text(fields, key, node, &text);
    if (status != HL_OK)
        return status;
    assert(digits % 8 == 0);
    hl_json_string(node, &size);
    if (size != digits || !is_hex(text, digits))
        return HL_FIELD_FAIL(fields, key, "is not %zu lower-case hexadecimal digits", digits);
    memcpy(hex, text, digits + 1);
    return HL_OK;
}

hl_status hl_fields_schema(const struct hl_fields *fields, const hl_json_node *root, uint64_t most,
                           uint64_t *version)
{
    hl_status status = hl_field_type(fields, NULL, root, HL_JSON_OBJECT);
    if (status != HL_OK)
        return status;
    const hl_json_node *node = hl_json_member(root, "schema_version");
    if (!node)
        return HL_FIELD_FAIL(fields, "schema_version", "is missing");
    status = hl_field_type(fields, "schema_version", node, HL_JSON_INTEGER);
    if (status != HL_OK)
        return status;
    uint64_t found = 0;
    if (!hl_json_u64(node, &found) || found < 1 || found > most)
        return HL_FAIL(fields->err, HL_E_UNSUPPORTED, fields->stage,
                       "the schema_version is not one that this library knows");
    *version = found;
    return HL_OK;
}

static struct hl_json_rules document_rules(const struct hl_fields *fields)
{
    return (struct hl_json_rules){
        .max_bytes = HL_WEIGHT_DOCUMENT_BYTES, .max_depth = DOCUMENT_DEPTH, .stage = fields->stage};
}

hl_status hl_fields_parse(const struct hl_fields *fields, const char *text, size_t bytes, hl_json **document)
{
    const struct hl_json_rules rules = document_rules(fields);
    return hl_json_parse(text, bytes, &rules, document, fields->err);
}

hl_status hl_fields_parse_within(const struct hl_fields *fields, char *text, size_t bytes, hl_json **document)
{
    const struct hl_json_rules rules = document_rules(fields);
    return hl_json_parse_within(text, bytes, &rules, document, fields->err);
}

hl_status hl_fields_check_canonical(const struct hl_fields *fields, const hl_json *document)
{
    if (!hl_json_is_canonical(document))
        return HL_FIELD_FAIL(fields, NULL, "is not in its canonical encoding");
    return HL_OK;
}
