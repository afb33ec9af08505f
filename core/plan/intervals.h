/* Sorted intervals of destination bytes: how overlaps are found, by the Manager over an operation and by the
 * engine over a part. */
#ifndef CORE_PLAN_INTERVALS_H
#define CORE_PLAN_INTERVALS_H

#include <stddef.h>
#include <stdint.h>

struct hl_plan_interval {
    uint64_t lo;
    uint64_t hi;     /* one past the last byte */
    uint32_t tag[2]; /* the caller's: what the bytes belong to */
};

/* Sorts by lo, keeping equal ones in order, by merging the ascending sequences that are there: linear when
 * there is one, n log k for k of them, n log n at worst. The result is in *items; `scratch` has as many
 * elements, and the two pointers may have changed places. */
void hl_plan_intervals_sort(struct hl_plan_interval **items, struct hl_plan_interval **scratch, size_t count);

/* The index i >= 1 of the first sorted interval that begins inside its predecessor, or 0. */
size_t hl_plan_intervals_overlap(const struct hl_plan_interval *items, size_t count);

#endif
