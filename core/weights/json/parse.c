/* The reader: one pass over the text, a stack of open containers instead of recursion. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/error.h"
#include "core/weights/json/node.h"

/* A container that is not closed yet. Places on the tape, since it moves while it grows. */
struct open_container {
    uint32_t node;
    uint32_t last; /* its last element or member so far; 0: none */
};

struct stack {
    struct open_container containers[HL_JSON_DEPTH];
    unsigned depth;
};

static void skip_space(struct hl_json_reader *reader)
{
    const char *text = reader->document->text;
    while (text[reader->at] == ' ' || text[reader->at] == '\n' || text[reader->at] == '\r' ||
           text[reader->at] == '\t')
        reader->at++;
}

static hl_status grow_tape(struct hl_json_reader *reader)
{
    hl_json *document = reader->document;
    size_t capacity = document->capacity ? document->capacity * 2 : 16;
    hl_json_node *nodes = realloc(document->nodes, capacity * sizeof *nodes);
    if (!nodes)
        return HL_FAIL(reader->err, HL_E_NOMEM, reader->rules->stage, "no memory for %zu values", capacity);
    document->nodes = nodes;
    document->capacity = capacity;
    return HL_OK;
}

/* A new node that begins at reader->at. A value has at least one byte, so that indices fit as offsets do. */
static hl_status add_node(struct hl_json_reader *reader, enum hl_json_type type, uint32_t *index)
{
    hl_json *document = reader->document;
    if (document->count == document->capacity) {
        hl_status status = grow_tape(reader);
        if (status != HL_OK)
            return status;
    }
    *index = (uint32_t)document->count++;
    document->nodes[*index] =
        (hl_json_node){.begin = (uint32_t)reader->at, .index = *index, .type = (uint8_t)type};
    return HL_OK;
}

/* Makes the node the last of the innermost container. */
static void attach(struct hl_json_reader *reader, struct stack *stack, uint32_t index)
{
    if (stack->depth == 0)
        return;
    hl_json_node *nodes = reader->document->nodes;
    struct open_container *parent = &stack->containers[stack->depth - 1];
    if (nodes[parent->node].type == HL_JSON_OBJECT) {
        nodes[index].flags |= HL_JSON_NODE_MEMBER;
        if (parent->last &&
            hl_json_compare_keys(reader->document->text, &nodes[parent->last - 1], &nodes[index - 1]) >= 0)
            nodes[parent->node].flags |= HL_JSON_NODE_UNORDERED;
    }
    if (parent->last)
        nodes[parent->last].next = index;
    parent->last = index;
    nodes[parent->node].size++;
}

static hl_status read_literal(struct hl_json_reader *reader, struct stack *stack)
{
    static const struct literal {
        const char *word;
        enum hl_json_type type;
        uint8_t flags;
    } literals[] = {
        {"null", HL_JSON_NULL, 0}, {"true", HL_JSON_BOOL, HL_JSON_NODE_TRUE}, {"false", HL_JSON_BOOL, 0}};
    const char *text = reader->document->text;
    for (size_t i = 0; i < sizeof literals / sizeof literals[0]; i++) {
        size_t size = strlen(literals[i].word);
        if (strncmp(text + reader->at, literals[i].word, size) != 0)
            continue;
        uint32_t index = 0;
        hl_status status = add_node(reader, literals[i].type, &index);
        if (status != HL_OK)
            return status;
        attach(reader, stack, index);
        reader->at += size;
        reader->document->nodes[index].flags |= literals[i].flags;
        reader->document->nodes[index].end = (uint32_t)reader->at;
        return HL_OK;
    }
    if (reader->at == reader->document->bytes)
        return HL_JSON_CORRUPT(reader, reader->at, "the text ends where a value is expected");
    return HL_JSON_CORRUPT(reader, reader->at, "no JSON value begins here");
}

static hl_status read_string(struct hl_json_reader *reader, uint32_t *index)
{
    hl_status status = add_node(reader, HL_JSON_STRING, index);
    uint32_t size = 0;
    if (status == HL_OK)
        status = hl_json_scan_string(reader, &size);
    if (status != HL_OK)
        return status;
    reader->document->nodes[*index].size = size;
    reader->document->nodes[*index].end = (uint32_t)reader->at;
    return HL_OK;
}

static hl_status read_number(struct hl_json_reader *reader, uint32_t *index)
{
    enum hl_json_type type = HL_JSON_INTEGER;
    hl_status status = add_node(reader, type, index);
    if (status == HL_OK)
        status = hl_json_scan_number(reader, &type);
    if (status != HL_OK)
        return status;
    reader->document->nodes[*index].type = (uint8_t)type;
    reader->document->nodes[*index].end = (uint32_t)reader->at;
    return HL_OK;
}

static hl_status open_container(struct hl_json_reader *reader, struct stack *stack)
{
    if (stack->depth == reader->rules->max_depth)
        return HL_JSON_CORRUPT(reader, reader->at, "nested deeper than %u", reader->rules->max_depth);
    uint32_t index = 0;
    hl_status status =
        add_node(reader, reader->document->text[reader->at] == '{' ? HL_JSON_OBJECT : HL_JSON_ARRAY, &index);
    if (status != HL_OK)
        return status;
    attach(reader, stack, index);
    stack->containers[stack->depth++] = (struct open_container){.node = index};
    reader->at++;
    return HL_OK;
}

static hl_status close_container(struct hl_json_reader *reader, struct stack *stack)
{
    uint32_t index = stack->containers[--stack->depth].node;
    hl_json_node *node = &reader->document->nodes[index];
    reader->at++;
    node->end = (uint32_t)reader->at;
    return node->type == HL_JSON_OBJECT ? hl_json_check_keys(reader, index) : HL_OK;
}

/* Reads a scalar, or the opening of a container. */
static hl_status read_value(struct hl_json_reader *reader, struct stack *stack)
{
    char c = reader->document->text[reader->at];
    uint32_t index = 0;
    hl_status status;
    if (c == '{' || c == '[')
        return open_container(reader, stack);
    if (c == '"')
        status = read_string(reader, &index);
    else if (c == '-' || (c >= '0' && c <= '9'))
        status = read_number(reader, &index);
    else
        return read_literal(reader, stack);
    if (status == HL_OK)
        attach(reader, stack, index);
    return status;
}

/* Reads a member's key and its colon. */
static hl_status read_key(struct hl_json_reader *reader)
{
    uint32_t index = 0;
    if (reader->document->text[reader->at] != '"')
        return HL_JSON_CORRUPT(reader, reader->at, "a key in double quotes is expected");
    hl_status status = read_string(reader, &index);
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
        bool object = reader->document->nodes[inner->node].type == HL_JSON_OBJECT;
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
    uint32_t origin = 0;
    hl_status status = add_node(reader, HL_JSON_NULL, &origin);
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
    document->nodes[origin].text = document->text;
    return HL_OK;
}

hl_status hl_json_parse(const char *text, size_t bytes, const struct hl_json_rules *rules, hl_json **document,
                        hl_error *err)
{
    assert(rules->max_depth > 0 && rules->max_depth <= HL_JSON_DEPTH);
    hl_status status;
    if (bytes > rules->max_bytes || bytes >= UINT32_MAX)
        return HL_FAIL(err, HL_E_LIMIT, rules->stage, "%zu bytes of JSON, of which %zu are allowed", bytes,
                       rules->max_bytes);
    hl_json *made = calloc(1, sizeof *made);
    struct hl_json_reader reader = {.document = made, .rules = rules, .err = err};
    if (!made || !(made->text = calloc(1, bytes + 1))) {
        status = HL_FAIL(err, HL_E_NOMEM, rules->stage, "no memory for %zu bytes of JSON", bytes);
        goto err_free;
    }
    if (bytes > 0)
        memcpy(made->text, text, bytes);
    made->bytes = bytes;
    status = read_document(&reader);
    free(reader.order);
    if (status != HL_OK)
        goto err_free;
    *document = made;
    return HL_OK;
err_free:
    hl_json_free(made);
    return status;
}

void hl_json_free(hl_json *document)
{
    if (!document)
        return;
    free(document->nodes);
    free(document->text);
    free(document);
}
