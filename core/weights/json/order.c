/* The order of an object's keys: for the canonical encoding, and to find a key given twice. Sorting costs
 * n log n comparisons whatever a hostile author chose, which no hash without a secret promises. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/error.h"
#include "core/weights/json/node.h"

/* End of the stretch from `begin` in which keys do not descend. */
static size_t stretch_end(const char *text, const hl_json_node *nodes, const uint32_t *keys, size_t begin,
                          size_t count)
{
    size_t end = begin + 1;
    while (end < count && hl_json_compare_keys(text, &nodes[keys[end - 1]], &nodes[keys[end]]) <= 0)
        end++;
    return end;
}

static void merge(const char *text, const hl_json_node *nodes, const uint32_t *keys, size_t begin,
                  size_t middle, size_t end, uint32_t *out)
{
    size_t left = begin, right = middle;
    for (size_t i = begin; i < end; i++) {
        bool take_left = right == end || (left < middle && hl_json_compare_keys(text, &nodes[keys[left]],
                                                                                &nodes[keys[right]]) <= 0);
        out[i] = take_left ? keys[left++] : keys[right++];
    }
}

uint32_t *hl_json_sort_keys(const char *text, const hl_json_node *nodes, uint32_t *keys, uint32_t *spare,
                            size_t count)
{
    for (;;) {
        size_t stretches = 0, begin = 0;
        while (begin < count) {
            size_t middle = stretch_end(text, nodes, keys, begin, count);
            size_t end = middle < count ? stretch_end(text, nodes, keys, middle, count) : count;
            if (begin == 0 && middle == count)
                return keys;
            merge(text, nodes, keys, begin, middle, end, spare);
            begin = end;
            stretches++;
        }
        uint32_t *sorted = spare;
        spare = keys;
        keys = sorted;
        if (stretches <= 1)
            return keys;
    }
}

static hl_status note_duplicate(struct hl_json_reader *reader, const hl_json_node *key)
{
    if (reader->rules->keep_duplicates) {
        reader->document->duplicates++;
        return HL_OK;
    }
    char quoted[HL_JSON_QUOTE_BYTES];
    return HL_JSON_CORRUPT(reader, key->begin, "the key %s is given twice in one object",
                           hl_json_quote(quoted, reader->document->text + key->begin + 1, key->size));
}

/* Room for two runs of `count` indices. */
static hl_status reserve_order(struct hl_json_reader *reader, size_t count)
{
    if (count <= reader->order_capacity)
        return HL_OK;
    free(reader->order);
    reader->order_capacity = 0;
    reader->order = malloc(2 * count * sizeof *reader->order);
    if (!reader->order)
        return HL_FAIL(reader->err, HL_E_NOMEM, reader->rules->stage, "no memory to order %zu keys", count);
    reader->order_capacity = count;
    return HL_OK;
}

hl_status hl_json_check_keys(struct hl_json_reader *reader, uint32_t object)
{
    const hl_json_node *nodes = reader->document->nodes;
    const char *text = reader->document->text;
    size_t count = nodes[object].size;
    assert(nodes[object].type == HL_JSON_OBJECT);
    if (!(nodes[object].flags & HL_JSON_NODE_MARK))
        return HL_OK;
    hl_status status = reserve_order(reader, count);
    if (status != HL_OK)
        return status;
    size_t filled = 0;
    for (const hl_json_node *member = hl_json_first(&nodes[object]); member; member = hl_json_next(member))
        reader->order[filled++] = member->index - 1;
    assert(filled == count);
    const uint32_t *sorted =
        hl_json_sort_keys(text, nodes, reader->order, reader->order + reader->order_capacity, count);
    for (size_t i = 1; i < count; i++) {
        if (hl_json_compare_keys(text, &nodes[sorted[i - 1]], &nodes[sorted[i]]) != 0)
            continue;
        status = note_duplicate(reader, &nodes[sorted[i]]);
        if (status != HL_OK)
            return status;
    }
    return HL_OK;
}
