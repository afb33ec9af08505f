/* Overlap of affine sets of rows, for the validator. A nest is such a set in its normal form: equal rows of
 * `width` bytes, inner_count of them at inner_stride, and outer_count of those at outer_stride, each level
 * inside a step of the next. All extents have been checked to fit 64 bits and the owner before a nest is
 * built. */
#ifndef CORE_LAYOUT_OVERLAP_H
#define CORE_LAYOUT_OVERLAP_H

#include <stdbool.h>
#include <stddef.h>

#include "core/layout/layout.h"

struct hl_layout_nest {
    uint32_t owner; /* only nests of one owner (tensor or group) can meet */
    uint32_t component;
    uint32_t group;
    bool pages_outer;
    uint32_t inner_count;
    uint32_t outer_count;
    uint64_t start;
    uint64_t width;
    uint64_t inner_stride;
    uint64_t outer_stride;
    uint64_t inner_extent; /* from the first byte of an inner series to past its last */
    uint64_t extent;
};

/* A component's pages in its tensor; false when they overlap themselves or are woven (see
 * hl_layout_validate). */
bool hl_layout_nest_pages(const hl_layout *layout, uint32_t component, struct hl_layout_nest *nest);

/* A component's rows in the block of its group; false when they overlap themselves. */
bool hl_layout_nest_rows(const hl_layout *layout, uint32_t component, struct hl_layout_nest *nest);

/* Whether two nests meet, or cannot be told apart; sorts `nests`. The components are in *first and *second.
 */
bool hl_layout_nests_meet(struct hl_layout_nest *nests, size_t count, uint32_t *first, uint32_t *second);

#endif
