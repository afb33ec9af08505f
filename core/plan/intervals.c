#include "core/plan/intervals.h"

#include <string.h>

/* One past the ascending sequence that begins at `from`. */
static size_t sequence_end(const struct hl_plan_interval *items, size_t from, size_t count)
{
    size_t end = from + 1;
    while (end < count && items[end].lo >= items[end - 1].lo)
        end++;
    return end;
}

static void merge_two(struct hl_plan_interval *out, const struct hl_plan_interval *left, size_t left_count,
                      const struct hl_plan_interval *right, size_t right_count)
{
    const struct hl_plan_interval *left_end = left + left_count, *right_end = right + right_count;
    while (left < left_end && right < right_end)
        *out++ = right->lo < left->lo ? *right++ : *left++;
    memcpy(out, left, (size_t)(left_end - left) * sizeof *left);
    memcpy(out + (left_end - left), right, (size_t)(right_end - right) * sizeof *right);
}

void hl_plan_intervals_sort(struct hl_plan_interval **items, struct hl_plan_interval **scratch, size_t count)
{
    if (count < 2)
        return;
    while (sequence_end(*items, 0, count) < count) {
        const struct hl_plan_interval *in = *items;
        for (size_t from = 0; from < count;) {
            size_t middle = sequence_end(in, from, count);
            size_t end = middle < count ? sequence_end(in, middle, count) : middle;
            merge_two(*scratch + from, in + from, middle - from, in + middle, end - middle);
            from = end;
        }
        struct hl_plan_interval *swap = *items;
        *items = *scratch;
        *scratch = swap;
    }
}

size_t hl_plan_intervals_overlap(const struct hl_plan_interval *items, size_t count)
{
    for (size_t i = 1; i < count; i++)
        if (items[i].lo < items[i - 1].hi)
            return i;
    return 0;
}
