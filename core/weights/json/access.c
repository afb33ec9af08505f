/* What callers see of a document. */
#include <assert.h>
#include <string.h>

#include "core/weights/json/node.h"

const hl_json_node *hl_json_root(const hl_json *document)
{
    return &document->nodes[1];
}

size_t hl_json_duplicates(const hl_json *document)
{
    return document->duplicates;
}

enum hl_json_type hl_json_type_of(const hl_json_node *node)
{
    return (enum hl_json_type)node->type;
}

const char *hl_json_type_name(enum hl_json_type type)
{
    static const char *const names[] = {
        [HL_JSON_NULL] = "null",     [HL_JSON_BOOL] = "boolean",  [HL_JSON_INTEGER] = "integer",
        [HL_JSON_REAL] = "real",     [HL_JSON_STRING] = "string", [HL_JSON_ARRAY] = "array",
        [HL_JSON_OBJECT] = "object",
    };
    return (size_t)type < sizeof names / sizeof names[0] ? names[type] : "unknown";
}

size_t hl_json_begin(const hl_json_node *node)
{
    return node->begin;
}

size_t hl_json_end(const hl_json_node *node)
{
    return node->end;
}

const char *hl_json_string(const hl_json_node *node, size_t *bytes)
{
    assert(node->type == HL_JSON_STRING);
    if (bytes)
        *bytes = node->size;
    return hl_json_text_of(node) + node->begin + 1;
}

bool hl_json_is_true(const hl_json_node *node)
{
    return node->type == HL_JSON_BOOL && (node->flags & HL_JSON_NODE_TRUE);
}

size_t hl_json_count(const hl_json_node *node)
{
    return node->type == HL_JSON_ARRAY || node->type == HL_JSON_OBJECT ? node->size : 0;
}

const hl_json_node *hl_json_first(const hl_json_node *container)
{
    if (hl_json_count(container) == 0)
        return NULL;
    return container + (container->type == HL_JSON_OBJECT ? 2 : 1);
}

const hl_json_node *hl_json_next(const hl_json_node *node)
{
    return node->next ? node - node->index + node->next : NULL;
}

const char *hl_json_key(const hl_json_node *member, size_t *bytes)
{
    assert(member->flags & HL_JSON_NODE_MEMBER);
    return hl_json_string(member - 1, bytes);
}

const hl_json_node *hl_json_member(const hl_json_node *object, const char *key)
{
    size_t size = strlen(key);
    const hl_json_node *found = NULL;
    assert(object->type == HL_JSON_OBJECT);
    for (const hl_json_node *member = hl_json_first(object); member; member = hl_json_next(member)) {
        size_t got = 0;
        const char *name = hl_json_key(member, &got);
        if (got == size && memcmp(name, key, size) == 0)
            found = member;
    }
    return found;
}
