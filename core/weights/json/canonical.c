/* The canonical encoding, and whether a text is its own. Recursion is as deep as the document, which the
 * reader bounds. */
#include <stdlib.h>
#include <string.h>

#include "core/weights/json/node.h"

static void put_members_in_order(struct hl_text *text, const hl_json_node *object)
{
    for (const hl_json_node *member = hl_json_first(object); member; member = hl_json_next(member)) {
        size_t size = 0;
        const char *key = hl_json_key(member, &size);
        if (member != hl_json_first(object))
            hl_text_append(text, ",", 1);
        hl_json_put_string(text, key, size);
        hl_text_append(text, ":", 1);
        hl_json_put_canonical(text, member);
    }
}

/* Of keys given twice (a document that kept duplicates) the last counts, as for hl_json_member(). */
static void put_members_sorted(struct hl_text *text, const hl_json_node *object)
{
    const hl_json_node *nodes = object - object->index;
    const char *source = hl_json_text_of(object);
    size_t count = object->size, filled = 0;
    uint32_t *keys = malloc(2 * count * sizeof *keys);
    if (!keys) {
        text->failed = true;
        return;
    }
    for (const hl_json_node *member = hl_json_first(object); member; member = hl_json_next(member))
        keys[filled++] = member->index - 1;
    const uint32_t *sorted = hl_json_sort_keys(source, nodes, keys, keys + count, count);
    bool first = true;
    for (size_t i = 0; i < count; i++) {
        const hl_json_node *key = &nodes[sorted[i]];
        if (i + 1 < count && hl_json_compare_keys(source, key, &nodes[sorted[i + 1]]) == 0)
            continue;
        if (!first)
            hl_text_append(text, ",", 1);
        first = false;
        hl_json_put_string(text, source + key->begin + 1, key->size);
        hl_text_append(text, ":", 1);
        hl_json_put_canonical(text, key + 1);
    }
    free(keys);
}

static void put_elements(struct hl_text *text, const hl_json_node *array)
{
    for (const hl_json_node *element = hl_json_first(array); element; element = hl_json_next(element)) {
        if (element != hl_json_first(array))
            hl_text_append(text, ",", 1);
        hl_json_put_canonical(text, element);
    }
}

static void put_number(struct hl_text *text, const hl_json_node *node)
{
    const char *digits = hl_json_text_of(node) + node->begin;
    if (node->type == HL_JSON_REAL) {
        char real[HL_JSON_REAL_BYTES];
        hl_text_append(text, real, hl_json_print_real(hl_json_real_value(digits), real));
    } else if (digits[0] == '-' && digits[1] == '0') {
        hl_text_append(text, "0", 1);
    } else {
        hl_text_append(text, digits, node->end - node->begin);
    }
}

bool hl_json_is_canonical(const hl_json *document)
{
    if (document->uncanonical)
        return false;
    size_t left = document->reals;
    for (const hl_json_node *node = document->nodes + 1; left > 0; node++) {
        if (node->type != HL_JSON_REAL)
            continue;
        const char *digits = document->text + node->begin;
        char real[HL_JSON_REAL_BYTES];
        size_t size = hl_json_print_real(hl_json_real_value(digits), real);
        if (size != node->end - node->begin || memcmp(real, digits, size) != 0)
            return false;
        left--;
    }
    return true;
}

void hl_json_put_canonical(struct hl_text *text, const hl_json_node *node)
{
    switch ((enum hl_json_type)node->type) {
    case HL_JSON_NULL:
        hl_text_append(text, "null", 4);
        break;
    case HL_JSON_BOOL:
        hl_text_print(text, "%s", node->flags & HL_JSON_NODE_MARK ? "true" : "false");
        break;
    case HL_JSON_INTEGER:
    case HL_JSON_REAL:
        put_number(text, node);
        break;
    case HL_JSON_STRING:
        hl_json_put_string(text, hl_json_string(node, NULL), node->size);
        break;
    case HL_JSON_ARRAY:
        hl_text_append(text, "[", 1);
        put_elements(text, node);
        hl_text_append(text, "]", 1);
        break;
    case HL_JSON_OBJECT:
        hl_text_append(text, "{", 1);
        if (node->flags & HL_JSON_NODE_MARK)
            put_members_sorted(text, node);
        else
            put_members_in_order(text, node);
        hl_text_append(text, "}", 1);
        break;
    }
}
