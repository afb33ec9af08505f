/* A merge sort of pointers that takes ascending stretches as they are: writers order their tensors, so that
 * one pass is the rule. Not qsort(): its bound depends on the C library and on the memory that is free. */
#include <stdlib.h>
#include <string.h>

#include "core/base/error.h"
#include "core/weights/safetensors/header.h"

/* End of the stretch from `begin` that does not descend. */
static size_t stretch_end(const void **items, size_t begin, size_t count, hl_safetensors_compare *compare)
{
    size_t end = begin + 1;
    while (end < count && compare(items[end - 1], items[end]) <= 0)
        end++;
    return end;
}

static void merge(const void **items, size_t begin, size_t middle, size_t end,
                  hl_safetensors_compare *compare, const void **out)
{
    size_t left = begin, right = middle;
    for (size_t i = begin; i < end; i++) {
        bool take_left = right == end || (left < middle && compare(items[left], items[right]) <= 0);
        out[i] = take_left ? items[left++] : items[right++];
    }
}

/* Merges each pair of neighbouring stretches into `out`; returns how many stretches are left. */
static size_t merge_pairs(const void **items, size_t count, hl_safetensors_compare *compare, const void **out)
{
    size_t stretches = 0;
    for (size_t begin = 0; begin < count; stretches++) {
        size_t middle = stretch_end(items, begin, count, compare);
        size_t end = middle < count ? stretch_end(items, middle, count, compare) : count;
        merge(items, begin, middle, end, compare, out);
        begin = end;
    }
    return stretches;
}

hl_status hl_safetensors_sort(const void **items, size_t count, hl_safetensors_compare *compare,
                              hl_error *err)
{
    if (count == 0 || stretch_end(items, 0, count, compare) == count)
        return HL_OK;
    const void **spare = malloc(count * sizeof *spare);
    if (!spare)
        return HL_FAIL(err, HL_E_NOMEM, HL_SAFETENSORS_STAGE, "no memory to order %zu tensors", count);
    const void **from = items, **to = spare;
    size_t stretches;
    do {
        stretches = merge_pairs(from, count, compare, to);
        const void **merged = to;
        to = from;
        from = merged;
    } while (stretches > 1);
    if (from != items)
        memcpy(items, from, count * sizeof *items);
    free(spare);
    return HL_OK;
}
