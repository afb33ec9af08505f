#include "core/layout/overlap.h"

#include <stdlib.h>

static uint64_t extent_of(uint32_t count, uint64_t stride, uint64_t inner)
{
    return count > 1 ? (count - 1) * stride + inner : inner;
}

static bool nest_levels(struct hl_layout_nest *nest, uint32_t inner_count, uint64_t inner_stride,
                        uint32_t outer_count, uint64_t outer_stride)
{
    nest->inner_count = inner_count;
    nest->inner_stride = inner_stride;
    nest->outer_count = outer_count;
    nest->outer_stride = outer_stride;
    nest->inner_extent = extent_of(inner_count, inner_stride, nest->width);
    nest->extent = extent_of(outer_count, outer_stride, nest->inner_extent);
    return (inner_count == 1 || inner_stride >= nest->width) &&
           (outer_count == 1 || outer_stride >= nest->inner_extent);
}

bool hl_layout_nest_pages(const hl_layout *layout, uint32_t component, struct hl_layout_nest *nest)
{
    const struct hl_layout_component *c = &layout->components[component];
    uint32_t pages = layout->groups[c->group].pages;
    *nest = (struct hl_layout_nest){.owner = c->tensor,
                                    .component = component,
                                    .group = c->group,
                                    .pages_outer = true,
                                    .start = c->offset,
                                    .width = c->row_bytes};
    if (nest_levels(nest, c->rows, c->row_stride, pages, c->page_stride))
        return true;
    nest->pages_outer = false;
    return nest_levels(nest, pages, c->page_stride, c->rows, c->row_stride);
}

bool hl_layout_nest_rows(const hl_layout *layout, uint32_t component, struct hl_layout_nest *nest)
{
    const struct hl_layout_component *c = &layout->components[component];
    *nest = (struct hl_layout_nest){.owner = c->group,
                                    .component = component,
                                    .group = c->group,
                                    .pages_outer = true,
                                    .start = c->block_offset,
                                    .width = c->row_bytes};
    return nest_levels(nest, c->rows, c->block_row_stride, 1, 0);
}

/* The step that two counts of strides share, or 0 when they differ; UINT64_MAX when neither repeats. */
static uint64_t common_stride(uint32_t count_a, uint64_t stride_a, uint32_t count_b, uint64_t stride_b)
{
    if (count_a == 1)
        return count_b == 1 ? UINT64_MAX : stride_b;
    return count_b == 1 || stride_a == stride_b ? stride_a : 0;
}

/* Inner series: x at 0, y at `distance`. Rows at a common stride repeat their residues, so those decide. */
static bool series_meet(const struct hl_layout_nest *x, const struct hl_layout_nest *y, uint64_t distance)
{
    if (distance >= x->inner_extent)
        return false;
    uint64_t stride = common_stride(x->inner_count, x->inner_stride, y->inner_count, y->inner_stride);
    if (stride == 0)
        return true;
    uint64_t residue = distance % stride;
    return residue < x->width || y->width > stride - residue;
}

/* a starts at or before b. Let S be the outer stride of both. When a window of S bytes, repeated, holds one
 * inner series of each whole, series in different windows are apart, and comparing those in one window
 * decides for all. Two windows can do that: the one that starts with a, and the one that starts with the b
 * before the next a. */
static bool nests_meet(const struct hl_layout_nest *a, const struct hl_layout_nest *b)
{
    uint64_t distance = b->start - a->start;
    if (distance >= a->extent)
        return false;
    uint64_t stride = common_stride(a->outer_count, a->outer_stride, b->outer_count, b->outer_stride);
    if (stride == 0 || a->inner_extent > stride || b->inner_extent > stride)
        return true;
    uint64_t residue = distance % stride;
    if (b->inner_extent <= stride - residue) {
        bool page_for_page = a->group != b->group && a->pages_outer && b->pages_outer && residue == distance;
        return !page_for_page && series_meet(a, b, residue);
    }
    return residue < a->inner_extent || series_meet(b, a, stride - residue);
}

static int by_place(const void *left, const void *right)
{
    const struct hl_layout_nest *a = left, *b = right;
    if (a->owner != b->owner)
        return a->owner < b->owner ? -1 : 1;
    if (a->start != b->start)
        return a->start < b->start ? -1 : 1;
    return a->component < b->component ? -1 : a->component > b->component;
}

bool hl_layout_nests_meet(struct hl_layout_nest *nests, size_t count, uint32_t *first, uint32_t *second)
{
    qsort(nests, count, sizeof *nests, by_place);
    for (size_t i = 0; i < count; i++) {
        const struct hl_layout_nest *a = &nests[i];
        for (size_t j = i + 1; j < count; j++) {
            const struct hl_layout_nest *b = &nests[j];
            if (b->owner != a->owner || b->start - a->start >= a->extent)
                break; /* and so for all after it */
            if (nests_meet(a, b)) {
                *first = a->component < b->component ? a->component : b->component;
                *second = a->component < b->component ? b->component : a->component;
                return true;
            }
        }
    }
    return false;
}
