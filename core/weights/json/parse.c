/* The reader: one pass over the text, a stack of open containers instead of recursion. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/error.h"
#include "core/weights/json/node.h"

enum { FIRST_BYTES = 1 << 20 };

/* A container that is not closed yet. Places on the tape, since it moves while it grows. */
struct open_container {
    uint32_t node;
    uint32_t last; /* its last element or member so far; 0: none */
    uint32_t count;
    bool object, unordered;
};

struct stack {
    struct open_container containers[HL_JSON_DEPTH];
    unsigned depth;
};

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static inline void skip_space(struct hl_json_reader *reader)
{
    const char *text = reader->document->text;
    if (!is_space(text[reader->at]))
        return;
    reader->document->uncanonical = true;
    while (is_space(text[reader->at]))
        reader->at++;
}

static hl_status grow_tape(struct hl_json_reader *reader)
{
    hl_json *document = reader->document;
    /* At first about as many as a manifest has, though no more than a text of a megabyte would have. */
    size_t expected = (document->bytes < FIRST_BYTES ? document->bytes : FIRST_BYTES) / 8 + 16;
    size_t capacity = document->capacity ? document->capacity * 2 : expected;
    hl_json_node *nodes = realloc(document->nodes, capacity * sizeof *nodes);
    if (!nodes)
        return HL_FAIL(reader->err, HL_E_NOMEM, reader->rules->stage, "no memory for %zu values", capacity);
    document->nodes = nodes;
    document->capacity = capacity;
    return HL_OK;
}

/* Appends a node. A value has at least one byte, so that indices fit as offsets do. */
static inline hl_status add_node(struct hl_json_reader *reader, enum hl_json_type type, size_t begin,
                                 uint32_t size, unsigned flags)
{
    hl_json *document = reader->document;
    if (document->count == document->capacity) {
        if (document->count >= HL_JSON_NODES)
            return HL_FAIL(reader->err, HL_E_LIMIT, reader->rules->stage, "JSON of more than %u values",
                           HL_JSON_NODES);
        hl_status status = grow_tape(reader);
        if (status != HL_OK)
            return status;
    }
    document->nodes[document->count] =
        (hl_json_node){.begin = (uint32_t)begin,
                       .end = (uint32_t)reader->at,
                       .size = size,
                       .index = (uint32_t)document->count & (HL_JSON_NODES - 1),
                       .type = (unsigned)type & 7,
                       .flags = flags & 7};
    document->count++;
    return HL_OK;
}

/* Makes a node that was added the last of the innermost container. */
static inline void attach(struct hl_json_reader *reader, struct stack *stack, uint32_t index)
{
    if (stack->depth == 0)
        return;
    hl_json_node *nodes = reader->document->nodes;
    struct open_container *parent = &stack->containers[stack->depth - 1];
    const uint32_t last = parent->last;
    parent->last = index;
    parent->count++;
    if (last) {
        nodes[last].flags |= HL_JSON_NODE_MORE;
        if (nodes[last].type == HL_JSON_ARRAY || nodes[last].type == HL_JSON_OBJECT)
            nodes[last + 1].size = index;
    }
    if (!parent->object)
        return;
    nodes[index].flags |= HL_JSON_NODE_MEMBER;
    if (last && hl_json_compare_keys(reader->document->text, &nodes[last - 1], &nodes[index - 1]) >= 0)
        parent->unordered = true;
}

static hl_status read_literal(struct hl_json_reader *reader)
{
    static const struct literal {
        const char *word;
        enum hl_json_type type;
        unsigned flags;
    } literals[] = {
        {"null", HL_JSON_NULL, 0}, {"true", HL_JSON_BOOL, HL_JSON_NODE_MARK}, {"false", HL_JSON_BOOL, 0}};
    const char *text = reader->document->text;
    const size_t begin = reader->at;
    for (size_t i = 0; i < sizeof literals / sizeof literals[0]; i++) {
        size_t size = strlen(literals[i].word);
        if (strncmp(text + begin, literals[i].word, size) != 0)
            continue;
        reader->at += size;
        return add_node(reader, literals[i].type, begin, 0, literals[i].flags);
    }
    if (begin == reader->document->bytes)
        return HL_JSON_CORRUPT(reader, begin, "the text ends where a value is expected");
    return HL_JSON_CORRUPT(reader, begin, "no JSON value begins here");
}

static hl_status read_string(struct hl_json_reader *reader)
{
    const size_t begin = reader->at;
    uint32_t size = 0;
    hl_status status = hl_json_scan_string(reader, &size);
    if (status != HL_OK)
        return status;
    status = add_node(reader, HL_JSON_STRING, begin, size, reader->nul ? HL_JSON_NODE_MARK : 0);
    if (status != HL_OK)
        reader->document->text[reader->at - 1] = '"'; /* no node leads hl_json_restore() there */
    return status;
}

static hl_status read_number(struct hl_json_reader *reader)
{
    const size_t begin = reader->at;
    enum hl_json_type type = HL_JSON_INTEGER;
    uint32_t small = 0;
    hl_status status = hl_json_scan_number(reader, &type, &small);
    return status == HL_OK ? add_node(reader, type, begin, small, 0) : status;
}

static hl_status open_container(struct hl_json_reader *reader, struct stack *stack)
{
    if (stack->depth == reader->rules->max_depth)
        return HL_JSON_CORRUPT(reader, reader->at, "nested deeper than %u", reader->rules->max_depth);
    const bool object = reader->document->text[reader->at] == '{';
    const uint32_t index = (uint32_t)reader->document->count;
    hl_status status = add_node(reader, object ? HL_JSON_OBJECT : HL_JSON_ARRAY, reader->at, 0, 0);
    if (status == HL_OK)
        status = add_node(reader, HL_JSON_NULL, reader->at, 0, 0); /* its second element */
    if (status != HL_OK)
        return status;
    attach(reader, stack, index);
    stack->containers[stack->depth++] = (struct open_container){.node = index, .object = object};
    reader->at++;
    return HL_OK;
}

static hl_status close_container(struct hl_json_reader *reader, struct stack *stack)
{
    const struct open_container *closed = &stack->containers[--stack->depth];
    hl_json_node *node = &reader->document->nodes[closed->node];
    reader->at++;
    node->end = (uint32_t)reader->at;
    node->size = closed->count;
    if (!closed->unordered)
        return HL_OK;
    node->flags |= HL_JSON_NODE_MARK;
    reader->document->uncanonical = true;
    return hl_json_check_keys(reader, closed->node);
}

/* Reads a scalar, or the opening of a container. */
static hl_status read_value(struct hl_json_reader *reader, struct stack *stack)
{
    char c = reader->document->text[reader->at];
    hl_status status;
    if (c == '{' || c == '[')
        return open_container(reader, stack);
    if (c == '"')
        status = read_string(reader);
    else if (c == '-' || (c >= '0' && c <= '9'))
        status = read_number(reader);
    else
        status = read_literal(reader);
    if (status == HL_OK)
        attach(reader, stack, (uint32_t)reader->document->count - 1);
    return status;
}

/* Reads a member's key and its colon. */
static hl_status read_key(struct hl_json_reader *reader)
{
    if (reader->document->text[reader->at] != '"')
        return HL_JSON_CORRUPT(reader, reader->at, "a key in double quotes is expected");
    hl_status status = read_string(reader);
    if (status != HL_OK)
        return status;
    skip_space(reader);
    if (reader->document->text[reader->at] != ':')
        return HL_JSON_CORRUPT(reader, reader->at, "':' is expected after a key");
    reader->at++;
    skip_space(reader);
    return HL_OK;
}

/* Moves from the end of a value, or from the opening of a container, to the next value, closing what ends
 * here. The stack is empty when the document's value is complete. */
static hl_status move_on(struct hl_json_reader *reader, struct stack *stack)
{
    hl_status status = HL_OK;
    while (status == HL_OK && stack->depth > 0) {
        skip_space(reader);
        const struct open_container *inner = &stack->containers[stack->depth - 1];
        const bool object = inner->object;
        char c = reader->document->text[reader->at];
        if (c == (object ? '}' : ']')) {
            status = close_container(reader, stack);
            continue;
        }
        if (inner->last) {
            if (c != ',')
                return HL_JSON_CORRUPT(reader, reader->at, "',' or '%c' is expected", object ? '}' : ']');
            reader->at++;
            skip_space(reader);
        }
        return object ? read_key(reader) : HL_OK;
    }
    return status;
}

static hl_status read_document(struct hl_json_reader *reader)
{
    hl_json *document = reader->document;
    struct stack stack = {.depth = 0};
    hl_status status = add_node(reader, HL_JSON_NULL, 0, 0, 0);
    if (status != HL_OK)
        return status;
    if (document->bytes >= 3 && memcmp(document->text, "\xef\xbb\xbf", 3) == 0)
        return HL_JSON_CORRUPT(reader, 0, "a byte order mark");
    skip_space(reader);
    do {
        status = read_value(reader, &stack);
        if (status == HL_OK)
            status = move_on(reader, &stack);
        if (status != HL_OK)
            return status;
    } while (stack.depth > 0);
    skip_space(reader);
    if (reader->at != document->bytes)
        return HL_JSON_CORRUPT(reader, reader->at, "something follows the value");
    document->nodes[0].text = document->text;
    return HL_OK;
}

static hl_status begin_document(const struct hl_json_rules *rules, size_t bytes, hl_json **document,
                                hl_error *err)
{
    assert(rules->max_depth > 0 && rules->max_depth <= HL_JSON_DEPTH);
    if (bytes > rules->max_bytes || bytes >= UINT32_MAX)
        return HL_FAIL(err, HL_E_LIMIT, rules->stage, "%zu bytes of JSON, of which %zu are allowed", bytes,
                       rules->max_bytes);
    hl_json *made = calloc(1, sizeof *made);
    if (!made)
        return HL_FAIL(err, HL_E_NOMEM, rules->stage, "no memory for %zu bytes of JSON", bytes);
    made->bytes = bytes;
    *document = made;
    return HL_OK;
}

static hl_status finish_document(struct hl_json_reader *reader, hl_json **document)
{
    hl_status status = read_document(reader);
    free(reader->order);
    if (status != HL_OK) {
        hl_json_restore(reader->document);
        hl_json_free(reader->document);
        return status;
    }
    *document = reader->document;
    return HL_OK;
}

hl_status hl_json_parse(const char *text, size_t bytes, const struct hl_json_rules *rules, hl_json **document,
                        hl_error *err)
{
    hl_json *made = NULL;
    hl_status status = begin_document(rules, bytes, &made, err);
    if (status != HL_OK)
        return status;
    made->text = malloc(bytes + 1);
    if (!made->text) {
        hl_json_free(made);
        return HL_FAIL(err, HL_E_NOMEM, rules->stage, "no memory for %zu bytes of JSON", bytes);
    }
    if (bytes > 0)
        memcpy(made->text, text, bytes);
    made->text[bytes] = '\0';
    struct hl_json_reader reader = {.document = made, .rules = rules, .err = err};
    return finish_document(&reader, document);
}

hl_status hl_json_parse_within(char *text, size_t bytes, const struct hl_json_rules *rules,
                               hl_json **document, hl_error *err)
{
    hl_json *made = NULL;
    assert(text[bytes] == '\0');
    hl_status status = begin_document(rules, bytes, &made, err);
    if (status != HL_OK)
        return status;
    made->text = text;
    made->borrowed = true;
    struct hl_json_reader reader = {.document = made, .rules = rules, .err = err};
    status = finish_document(&reader, document);
    return reader.escaped ? hl_json_parse(text, bytes, rules, document, err) : status;
}

void hl_json_restore(hl_json *document)
{
    if (!document->borrowed)
        return;
    for (size_t i = 1; i < document->count; i++) {
        const hl_json_node *node = &document->nodes[i];
        if (node->type == HL_JSON_STRING)
            document->text[node->end - 1] = '"';
    }
}

void hl_json_free(hl_json *document)
{
    if (!document)
        return;
    free(document->nodes);
    if (!document->borrowed)
        free(document->text);
    free(document);
}
