#include "core/layout/fields.h"

#include "core/base/error.h"

const char *hl_layout_quote(const char *text, char quoted[HL_QUOTE_BYTES])
{
    size_t used = 0;
    for (; text[used] != '\0' && used < HL_QUOTE_BYTES - 1; used++) {
        unsigned char c = (unsigned char)text[used];
        quoted[used] = c >= 0x20 && c < 0x7f ? (char)c : '?';
    }
    quoted[used] = '\0';
    return quoted;
}

const char *hl_layout_json_type(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a real number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a truth value";
    default:
        return "null";
    }
}

const json_t *hl_layout_find_field(const json_t *object, const char *field)
{
    const json_t *value = json_object_get(object, field);
    return json_is_null(value) ? NULL : value;
}

static hl_status refuse_type(const char *field, const json_t *value, const char *wanted, hl_error *err)
{
    return HL_FAIL(err, HL_E_INVALID, HL_LAYOUT_CONFIG_STAGE, "%s is %s and must be %s", field,
                   hl_layout_json_type(value), wanted);
}

hl_status hl_layout_read_integer(const json_t *object, const char *field, uint32_t low, bool *present,
                                 uint32_t *value, hl_error *err)
{
    const json_t *found = hl_layout_find_field(object, field);
    if (found == NULL) {
        *present = false;
        *value = 0;
        return HL_OK;
    }
    if (!json_is_integer(found))
        return refuse_type(field, found, "an integer", err);
    json_int_t number = json_integer_value(found);
    if (number < (json_int_t)low || number > INT32_MAX)
        return HL_FAIL(err, HL_E_INVALID, HL_LAYOUT_CONFIG_STAGE, "%s is %lld and must be %u to %d", field,
                       (long long)number, low, INT32_MAX);
    *present = true;
    *value = (uint32_t)number;
    return HL_OK;
}

hl_status hl_layout_require_integer(const json_t *object, const char *field, uint32_t *value, hl_error *err)
{
    bool present;
    hl_status status = hl_layout_read_integer(object, field, 1, &present, value, err);
    if (status == HL_OK && !present)
        status = HL_FAIL(err, HL_E_INVALID, HL_LAYOUT_CONFIG_STAGE, "%s is missing", field);
    return status;
}

hl_status hl_layout_read_flag(const json_t *object, const char *field, bool otherwise, bool *value,
                              hl_error *err)
{
    const json_t *found = hl_layout_find_field(object, field);
    if (found != NULL && !json_is_boolean(found))
        return refuse_type(field, found, "true or false", err);
    *value = found != NULL ? json_is_true(found) : otherwise;
    return HL_OK;
}

hl_status hl_layout_read_text(const json_t *object, const char *field, const char **value, hl_error *err)
{
    const json_t *found = hl_layout_find_field(object, field);
    if (found != NULL && !json_is_string(found))
        return refuse_type(field, found, "a string", err);
    *value = json_string_value(found);
    return HL_OK;
}

hl_status hl_layout_read_list(const json_t *object, const char *field, const json_t **value, hl_error *err)
{
    const json_t *found = hl_layout_find_field(object, field);
    if (found != NULL && !json_is_array(found))
        return refuse_type(field, found, "a list", err);
    *value = found;
    return HL_OK;
}
