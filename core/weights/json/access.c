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

size_t hl_json_integers(const hl_json *document)
{
    return document->integers;
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

bool hl_json_is_true(const hl_json_node *node)
{
    return node->type == HL_JSON_BOOL && (node->flags & HL_JSON_NODE_MARK);
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
