/* Private to core/weights/json: how a document lies in memory.
 *
 * The tape is one array of nodes in the order of the text: a container, then everything inside it; a member's
 * key is the node before its value. Strings are unescaped in place in the document's own copy of the text,
 * which is never shorter than what they mean, so that no node owns memory. Element 0 is no value: it leads
 * from any node to the text.
 *
 *   begin, end  in the text; `text` is element 0's
 *   size        elements, members, bytes of a string, or the value of a small integer, unless that is 0
 *   index       its own place on the tape
 *   type        enum hl_json_type
 *   flags       MEMBER: a key stands before it. MORE: it is not the last in its container. MARK: the boolean
 *               true; a string that holds a NUL; an object whose keys do not ascend strictly
 *
 * What follows a scalar is the next in its container, behind its key in an object. A container has a second
 * element, whose `size` is the place of the next. */
#ifndef CORE_WEIGHTS_JSON_NODE_H
#define CORE_WEIGHTS_JSON_NODE_H

#include <string.h>

#include "core/weights/json/json.h"

#define HL_JSON_DEPTH 127u       /* the most that rules may allow */
#define HL_JSON_NODES (1u << 26) /* on a tape */

struct hl_json {
    char *text;    /* with a NUL behind it */
    bool borrowed; /* the text is the caller's: only closing quotes may change */
    size_t bytes;
    hl_json_node *nodes;
    size_t count, capacity;
    size_t duplicates;
    size_t integers;
    size_t reals;     /* how many; whether each is written as the canonical encoding would is not known */
    bool uncanonical; /* something else than a real is not written as the canonical encoding would */
};

static inline const char *hl_json_text_of(const hl_json_node *node)
{
    return (node - node->index)->text;
}

/* What is being read, and where. */
struct hl_json_reader {
    hl_json *document;
    const struct hl_json_rules *rules;
    size_t at;
    bool escaped;    /* a borrowed text was given up at an escape */
    bool nul;        /* the string that was scanned last holds a NUL */
    uint32_t *order; /* scratch of hl_json_order_keys(): two runs of order_capacity */
    size_t order_capacity;
    hl_error *err;
};

/* Fails at a byte of the text. */
#define HL_JSON_CORRUPT(reader, where, ...) HL_JSON_CORRUPT_(reader, where, __VA_ARGS__, "")
#define HL_JSON_CORRUPT_(reader, where, format, ...)                                                         \
    HL_FAIL((reader)->err, HL_E_CORRUPT, (reader)->rules->stage, "byte %zu: " format "%s", (size_t)(where),  \
            __VA_ARGS__)

/* string.c: reads the string whose opening quote is at reader->at, unescapes it in place, and leaves
 * reader->at behind the closing quote. */
hl_status hl_json_scan_string(struct hl_json_reader *reader, uint32_t *size);

/* number.c: the same for a number. `small` is the value of an integer without sign of few digits, else 0. */
#define HL_JSON_SMALL_DIGITS 9u
hl_status hl_json_scan_number(struct hl_json_reader *reader, enum hl_json_type *type, uint32_t *small);
/* The value of the real at `text`, which ends at the first byte that cannot belong to it. */
double hl_json_real_value(const char *text);

/* real.c: the shortest decimal, as Python writes it. */
#define HL_JSON_REAL_BYTES 32
size_t hl_json_print_real(double value, char text[HL_JSON_REAL_BYTES]);

/* Compares two keys by bytes, which for UTF-8 is the order of their code points. An empty key has a NUL where
 * others have their first byte. */
static inline int hl_json_compare_keys(const char *text, const hl_json_node *left, const hl_json_node *right)
{
    const unsigned char *a = (const unsigned char *)text + left->begin + 1;
    const unsigned char *b = (const unsigned char *)text + right->begin + 1;
    if (*a != *b)
        return *a - *b;
    uint32_t shorter = left->size < right->size ? left->size : right->size;
    int order = memcmp(a, b, shorter);
    return order ? order : (left->size > right->size) - (left->size < right->size);
}
/* order.c. */
/* Sorts `count` indices of keys on the tape, equal keys in the order of the text, with room for as many in
 * `spare`. Linear when they ascend or are a few ascending stretches; never worse than n log n. Returns the
 * array that holds the result: `keys` or `spare`. */
uint32_t *hl_json_sort_keys(const char *text, const hl_json_node *nodes, uint32_t *keys, uint32_t *spare,
                            size_t count);
/* Looks for keys given twice in the closed object: refused or counted, as the rules say. */
hl_status hl_json_check_keys(struct hl_json_reader *reader, uint32_t object);

#endif
