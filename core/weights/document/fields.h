/* Private to core/weights/document: objects with an exact set of keys, and fields of exact types. Whatever is
 * refused is named by its path: "layout.tensor_parallel_rank", "tensors[3].sha256". */
#ifndef CORE_WEIGHTS_DOCUMENT_FIELDS_H
#define CORE_WEIGHTS_DOCUMENT_FIELDS_H

#include "core/base/error.h"
#include "core/base/sha256.h"
#include "core/weights/json/json.h"
#include "hostlane/limits.h"

/* Where fields are read, and what a broken rule is. */
struct hl_fields {
    const char *stage;
    hl_status refusal;
    const char *path; /* NULL: the document itself */
    ptrdiff_t index;  /* the element of `path`, or -1 */
    hl_error *err;
};

#define HL_FIELD_NAME_BYTES 96
/* `key` NULL: the object itself. */
const char *hl_field_name(const struct hl_fields *fields, const char *key, char name[HL_FIELD_NAME_BYTES]);

#define HL_FIELD_FAIL(fields, key, format, ...)                                                              \
    ({                                                                                                       \
        char named_[HL_FIELD_NAME_BYTES];                                                                    \
        HL_FAIL((fields)->err, (fields)->refusal, (fields)->stage, "%s " format,                             \
                hl_field_name((fields), (key), named_), ##__VA_ARGS__);                                      \
    })

/* Finds the member of every key; found[i] belongs to keys[i]. Refuses a value that is no object, an unknown
 * key and a missing one. Linear when `keys` are sorted and the members are too. */
hl_status hl_fields_collect(const struct hl_fields *fields, const hl_json_node *object,
                            const char *const *keys, size_t count, const hl_json_node **found);

hl_status hl_field_type(const struct hl_fields *fields, const char *key, const hl_json_node *node,
                        enum hl_json_type type);
/* A string without a NUL inside. */
hl_status hl_field_text(const struct hl_fields *fields, const char *key, const hl_json_node *node,
                        const char **text);
/* The same, and not empty. */
hl_status hl_field_name_text(const struct hl_fields *fields, const char *key, const hl_json_node *node,
                             const char **text);
/* One of `count` texts. */
hl_status hl_field_choice(const struct hl_fields *fields, const char *key, const hl_json_node *node,
                          const char *const *choices, size_t count, size_t *chosen);
hl_status hl_field_u64(const struct hl_fields *fields, const char *key, const hl_json_node *node,
                       uint64_t least, uint64_t *value);
/* Exactly `digits` lower-case hexadecimal digits, a multiple of 8, copied with a NUL. */
hl_status hl_field_hex(const struct hl_fields *fields, const char *key, const hl_json_node *node,
                       size_t digits, char *hex);

/* schema_version, looked at before the other keys, which another version may have changed. HL_E_UNSUPPORTED
 * when it is an integer but not within [1, most]. */
hl_status hl_fields_schema(const struct hl_fields *fields, const hl_json_node *root, uint64_t most,
                           uint64_t *version);

/* Parses a document whose root is read with `fields`. */
hl_status hl_fields_parse(const struct hl_fields *fields, const char *text, size_t bytes, hl_json **document);
/* The same by hl_json_parse_within(). */
hl_status hl_fields_parse_within(const struct hl_fields *fields, char *text, size_t bytes,
                                 hl_json **document);
/* Refuses a text that is not the canonical encoding of its own value. */
hl_status hl_fields_check_canonical(const struct hl_fields *fields, const hl_json *document);

#endif
