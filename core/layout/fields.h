/* Typed access to the fields of a config.json: each reader names the field in its error, and takes null for
 * absent. */
#ifndef CORE_LAYOUT_FIELDS_H
#define CORE_LAYOUT_FIELDS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "hostlane/status.h"

#define HL_LAYOUT_CONFIG_STAGE "layout.config"

/* Text from the file made safe for a message: at most `HL_QUOTE_BYTES - 1` printable ASCII characters. */
enum { HL_QUOTE_BYTES = 81 };
const char *hl_layout_quote(const char *text, char quoted[HL_QUOTE_BYTES]);

/* What kind of JSON value it is, in words. */
const char *hl_layout_json_type(const json_t *value);

/* The field's value, or NULL when it is absent or null. */
const json_t *hl_layout_find_field(const json_t *object, const char *field);

/* An integer in [low, 2^31 - 1]. Absent: *present is false and *value 0. HL_E_INVALID. */
hl_status hl_layout_read_integer(const json_t *object, const char *field, uint32_t low, bool *present,
                                 uint32_t *value, hl_error *err);

/* The same for a field that must be there, of at least 1. */
hl_status hl_layout_require_integer(const json_t *object, const char *field, uint32_t *value, hl_error *err);

/* true or false; `otherwise` when absent. HL_E_INVALID. */
hl_status hl_layout_read_flag(const json_t *object, const char *field, bool otherwise, bool *value,
                              hl_error *err);

/* A string, owned by `object`; NULL when absent. HL_E_INVALID. */
hl_status hl_layout_read_text(const json_t *object, const char *field, const char **value, hl_error *err);

/* A list, owned by `object`; NULL when absent. HL_E_INVALID. */
hl_status hl_layout_read_list(const json_t *object, const char *field, const json_t **value, hl_error *err);

#endif
