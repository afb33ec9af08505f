/* core/weights/json owns JSON as the weight store needs it: a strict reader for hostile bytes that keeps
 * every number as it was written (integers of any size, and reals, exactly), and the canonical encoding whose
 * SHA-256 is an artifact's key. Identity, manifest and the other documents are read and written through it,
 * and so are the headers of safetensors files. It calls core/base only.
 *
 * Why not a library: none that Debian packages keeps integers beyond 64 bits or prints reals as this encoding
 * needs them, and a model's header of 100 MB takes the strict one of them seconds and a gigabyte.
 *
 * Strict means RFC 8259 and nothing beyond: valid UTF-8, no byte order mark, no comment, nothing after the
 * value but white space, no NaN; and besides: no key twice in an object (after unescaping), no lone
 * surrogate, no real that overflows a double, a bounded depth. */
#ifndef CORE_WEIGHTS_JSON_JSON_H
#define CORE_WEIGHTS_JSON_JSON_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hostlane/status.h"

enum hl_json_type {
    HL_JSON_NULL,
    HL_JSON_BOOL,
    HL_JSON_INTEGER, /* no fraction and no exponent; any number of digits */
    HL_JSON_REAL,
    HL_JSON_STRING,
    HL_JSON_ARRAY,
    HL_JSON_OBJECT
};

/* Bounds of one document. */
struct hl_json_rules {
    size_t max_bytes;     /* of the text; HL_E_LIMIT */
    unsigned max_depth;   /* of nested arrays and objects, at most 127; HL_E_CORRUPT */
    const char *stage;    /* for errors: what is being read ("weights.manifest") */
    bool keep_duplicates; /* a key twice in an object is kept, and counted, instead of refused: for files that
                             somebody else wrote. hl_json_member() then gives the last */
};

typedef struct hl_json hl_json; /* a parsed document */

/* A value in it; valid as long as the document. Its fields are private (node.h says what they mean), and here
 * only because a manifest has tens of thousands of values: calls to look at them would take longer than
 * reading them. */
typedef struct hl_json_node {
    union {
        struct {
            uint32_t begin, end;
        };
        const char *text;
    };
    uint32_t size;
    uint32_t index : 26, type : 3, flags : 3;
} hl_json_node;
enum { HL_JSON_NODE_MARK = 1, HL_JSON_NODE_MEMBER = 2, HL_JSON_NODE_MORE = 4 };

/* Parses a copy of `bytes` bytes of `text`. Time is linear in the text, times a logarithm for objects whose
 * keys are in no order; memory is the text, 16 bytes for each value
 * and key, and 16 more for each container. HL_E_CORRUPT (the text says
 * what and at which byte), HL_E_LIMIT, HL_E_NOMEM. */
hl_status hl_json_parse(const char *text, size_t bytes, const struct hl_json_rules *rules, hl_json **document,
                        hl_error *err);
/* The same within the caller's `text`, which has a NUL behind it and stays as long as the document. Where no
 * string is escaped nothing is copied: the document only puts a NUL in the place of each closing quote. */
hl_status hl_json_parse_within(char *text, size_t bytes, const struct hl_json_rules *rules,
                               hl_json **document, hl_error *err);
/* Puts the text as it was. Strings do not end in a NUL any more; offsets and numbers stay valid. A text that
 * was refused, or was not needed, is as it was. */
void hl_json_restore(hl_json *document);
void hl_json_free(hl_json *document); /* NULL is allowed; restores nothing */
const hl_json_node *hl_json_root(const hl_json *document);
size_t hl_json_duplicates(const hl_json *document); /* keys that were given again; 0 unless keep_duplicates */

size_t hl_json_integers(const hl_json *document); /* all integers in it, at any depth */

static inline enum hl_json_type hl_json_type_of(const hl_json_node *node)
{
    return (enum hl_json_type)node->type;
}
const char *hl_json_type_name(enum hl_json_type type); /* "null", "boolean", "integer", … */

/* Byte offsets of the value in the text. */
static inline size_t hl_json_begin(const hl_json_node *node)
{
    return node->begin;
}
static inline size_t hl_json_end(const hl_json_node *node)
{
    return node->end;
}
static inline size_t hl_json_key_begin(const hl_json_node *member) /* of its key's opening quote */
{
    assert(member->flags & HL_JSON_NODE_MEMBER);
    return (member - 1)->begin;
}

/* Unescaped UTF-8 with a NUL behind it; `bytes` (may be NULL) counts without that NUL, and differs from
 * strlen() when the string holds a NUL. Strings and the keys of objects. The node is a string. */
static inline const char *hl_json_string(const hl_json_node *node, size_t *bytes)
{
    assert(node->type == HL_JSON_STRING);
    if (bytes)
        *bytes = node->size;
    return (node - node->index)->text + node->begin + 1;
}
/* Whether strlen() differs from the bytes. The node is a string. */
static inline bool hl_json_holds_nul(const hl_json_node *node)
{
    assert(node->type == HL_JSON_STRING);
    return node->flags & HL_JSON_NODE_MARK;
}
bool hl_json_is_true(const hl_json_node *node);

/* The value of an integer node; false when it does not fit. -0 is 0. */
bool hl_json_large_u64(const hl_json_node *node, uint64_t *value); /* hl_json_u64() of any node */
static inline bool hl_json_u64(const hl_json_node *node, uint64_t *value)
{
    if (node->type != HL_JSON_INTEGER || node->size == 0)
        return hl_json_large_u64(node, value);
    *value = node->size;
    return true;
}
bool hl_json_i64(const hl_json_node *node, int64_t *value);

/* Elements of an array or members of an object, in the order of the text: hl_json_first(), then
 * hl_json_next() until NULL. hl_json_key() is a member's key. */
static inline size_t hl_json_count(const hl_json_node *node)
{
    return node->type == HL_JSON_ARRAY || node->type == HL_JSON_OBJECT ? node->size : 0;
}
static inline const hl_json_node *hl_json_first(const hl_json_node *container)
{
    if (hl_json_count(container) == 0)
        return NULL;
    return container + (container->type == HL_JSON_OBJECT ? 3 : 2);
}
static inline const hl_json_node *hl_json_next(const hl_json_node *node)
{
    if (!(node->flags & HL_JSON_NODE_MORE))
        return NULL;
    if (node->type == HL_JSON_ARRAY || node->type == HL_JSON_OBJECT)
        return node - node->index + (node + 1)->size;
    return node + (node->flags & HL_JSON_NODE_MEMBER ? 2 : 1);
}
static inline const char *hl_json_key(const hl_json_node *member, size_t *bytes)
{
    assert(member->flags & HL_JSON_NODE_MEMBER);
    return hl_json_string(member - 1, bytes);
}

/* The member of that name (no NUL inside), or NULL. Linear in the members: for objects with few. */
const hl_json_node *hl_json_member(const hl_json_node *object, const char *key);

/* Text of a key or string for an error: quoted, cut at 64 bytes, anything but printable ASCII shown as '?'.
 */
#define HL_JSON_QUOTE_BYTES 72
const char *hl_json_quote(char quoted[HL_JSON_QUOTE_BYTES], const char *bytes, size_t size);

/* A growing text, NUL-terminated. Zero-initialise; hl_text_free() when done. A failed allocation is
 * remembered: further appends do nothing, and hl_text_status() says HL_E_NOMEM. */
struct hl_text {
    char *bytes; /* NULL while empty */
    size_t size; /* without the NUL */
    size_t capacity;
    bool failed;
};
void hl_text_append(struct hl_text *text, const void *bytes, size_t size);
void hl_text_print(struct hl_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
hl_status hl_text_status(const struct hl_text *text, const char *stage, hl_error *err);
void hl_text_free(struct hl_text *text);

/* Appends a quoted, escaped string. `bytes` is valid UTF-8 (hl_json_valid_utf8()); every character outside
 * printable ASCII is written as \uXXXX with lower-case digits, or as \b \t \n \f \r. */
void hl_json_put_string(struct hl_text *text, const char *bytes, size_t size);
bool hl_json_valid_utf8(const char *bytes, size_t size);

/* Appends the canonical encoding of a value: what Python's json.dumps(value, sort_keys=True,
 * separators=(",", ":"), ensure_ascii=True) writes. Keys in the order of their code points, which is the
 * order of their UTF-8 bytes; integers as their digits; reals as the shortest decimal that gives the same
 * double, in Python's notation (1.0, 1e+16, 1e-07, -0.0). Independent of the locale. */
void hl_json_put_canonical(struct hl_text *text, const hl_json_node *node);

/* Whether the document's text is the canonical encoding of its root, byte for byte: what encoding it again
 * and comparing would tell. The reader notes it on the way, so that only reals are encoded again. */
bool hl_json_is_canonical(const hl_json *document);

#endif
