/* No byte is written twice, over the whole operation. Most layouts are proven by arithmetic on their lanes;
 * the rest has its pieces listed and merged, tensor by tensor. */
#include <stdlib.h>

#include "core/base/checked.h"
#include "core/base/error.h"
#include "core/plan/compile.h"
#include "core/plan/intervals.h"
#include "core/plan/memory.h"

#define STAGE "plan.compile"

/* The bytes between which a lane's pieces lie. */
struct extent {
    uint32_t tensor;
    uint32_t lane;
    uint64_t lo;
    uint64_t hi;
};

static uint64_t page_span(const struct hl_plan_lane *lane)
{
    return (lane->rows - 1) * lane->row_stride + lane->row_bytes;
}

static const struct hl_plan_source *lane_sources(const struct hl_plan_work *work,
                                                 const struct hl_plan_lane *lane, size_t *count)
{
    *count = hl_plan_group_blocks(work, lane->group);
    return work->sources + work->group_first[lane->group];
}

static struct extent extent_of(const struct hl_plan_work *work, uint32_t index)
{
    const struct hl_plan_lane *lane = &work->lanes[index];
    size_t count;
    const struct hl_plan_source *sources = lane_sources(work, lane, &count);
    return (struct extent){.tensor = lane->tensor,
                           .lane = index,
                           .lo = lane->offset + sources[0].page * lane->page_stride,
                           .hi =
                               lane->offset + sources[count - 1].page * lane->page_stride + page_span(lane)};
}

/* Whether the lane's pieces are apart whatever its pages are. */
static bool apart_in_itself(const struct hl_plan_work *work, const struct hl_plan_lane *lane)
{
    return (lane->rows == 1 || lane->row_stride >= lane->row_bytes) &&
           (hl_plan_group_blocks(work, lane->group) == 1 || page_span(lane) <= lane->page_stride);
}

/* Whether the pages of all lanes interleave at one stride without touching, as in a page-first tensor: then
 * only equal pages could meet, and in a page the lanes are apart. The extents are sorted by lo. */
static bool apart_in_pages(const struct hl_plan_work *work, const struct extent *extents, size_t count)
{
    const struct hl_plan_lane *first = &work->lanes[extents[0].lane],
                              *last = &work->lanes[extents[count - 1].lane];
    for (size_t i = 0; i + 1 < count; i++) {
        const struct hl_plan_lane *lane = &work->lanes[extents[i].lane],
                                  *next = &work->lanes[extents[i + 1].lane];
        if (lane->page_stride != next->page_stride || next->offset < lane->offset ||
            next->offset - lane->offset < page_span(lane))
            return false;
    }
    return last->offset - first->offset + page_span(last) <= first->page_stride;
}

static bool proven_apart(const struct hl_plan_work *work, const struct extent *extents, size_t count)
{
    bool separate = true;
    for (size_t i = 0; i < count; i++) {
        if (!apart_in_itself(work, &work->lanes[extents[i].lane]))
            return false;
        separate &= i == 0 || extents[i].lo >= extents[i - 1].hi;
    }
    return separate || apart_in_pages(work, extents, count);
}

/* Pieces that a lane writes, counting a page that is contiguous on the device once. */
static uint32_t device_rows(const struct hl_plan_lane *lane)
{
    return lane->row_stride == lane->row_bytes ? 1 : lane->rows;
}

static struct hl_plan_interval *list_lane(const struct hl_plan_work *work, uint32_t index,
                                          struct hl_plan_interval *out)
{
    const struct hl_plan_lane *lane = &work->lanes[index];
    size_t count;
    const struct hl_plan_source *sources = lane_sources(work, lane, &count);
    uint32_t rows = device_rows(lane);
    uint64_t bytes = rows == 1 ? page_span(lane) : lane->row_bytes;
    for (size_t i = 0; i < count; i++) {
        uint64_t lo = lane->offset + sources[i].page * lane->page_stride;
        for (uint32_t row = 0; row < rows; row++, lo += lane->row_stride)
            *out++ = (struct hl_plan_interval){.lo = lo, .hi = lo + bytes, .tag = {index, sources[i].block}};
    }
    return out;
}

static hl_status fail_overlap(const struct hl_plan_work *work, uint32_t tensor,
                              const struct hl_plan_interval *second, hl_error *err)
{
    const struct hl_plan_interval *first = second - 1;
    return HL_FAIL(
        err, HL_E_OVERLAP, STAGE,
        "component %u of block %u and component %u of block %u overlap at byte %llu of tensor %u (%.64s)",
        work->lanes[first->tag[0]].component, first->tag[1], work->lanes[second->tag[0]].component,
        second->tag[1], (unsigned long long)second->lo, tensor, work->layout->tensors[tensor].name);
}

static hl_status check_listed(const struct hl_plan_work *work, const struct extent *extents, size_t count,
                              hl_error *err)
{
    uint64_t pieces = 0; /* below the metadata bound: rows that are apart on the device are in least_bytes */
    for (size_t i = 0; i < count; i++) {
        const struct hl_plan_lane *lane = &work->lanes[extents[i].lane];
        pieces += hl_plan_group_blocks(work, lane->group) * device_rows(lane);
    }
    struct hl_plan_interval *memory = hl_plan_allocate(2 * pieces, sizeof *memory);
    if (!memory)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory to check %llu pieces of tensor %u",
                       (unsigned long long)pieces, extents[0].tensor);
    struct hl_plan_interval *items = memory, *scratch = memory + pieces, *end = items;
    for (size_t i = 0; i < count; i++)
        end = list_lane(work, extents[i].lane, end);
    hl_plan_intervals_sort(&items, &scratch, pieces);
    size_t overlap = hl_plan_intervals_overlap(items, pieces);
    hl_status status = overlap ? fail_overlap(work, extents[0].tensor, &items[overlap], err) : HL_OK;
    free(memory);
    return status;
}

static int compare_extents(const void *left, const void *right)
{
    const struct extent *a = left, *b = right;
    if (a->tensor != b->tensor)
        return a->tensor < b->tensor ? -1 : 1;
    return a->lo < b->lo ? -1 : a->lo > b->lo;
}

hl_status hl_plan_check_overlap(const struct hl_plan_work *work, hl_error *err)
{
    struct extent *extents = hl_plan_allocate(work->lane_count, sizeof *extents);
    if (!extents)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for the extents of %u components",
                       work->lane_count);
    bool ascending = true;
    for (uint32_t i = 0; i < work->lane_count; i++) {
        extents[i] = extent_of(work, i);
        ascending &= i == 0 || compare_extents(&extents[i - 1], &extents[i]) <= 0;
    }
    if (!ascending)
        qsort(extents, work->lane_count, sizeof *extents, compare_extents);

    hl_status status = HL_OK;
    for (uint32_t from = 0, to; status == HL_OK && from < work->lane_count; from = to) {
        for (to = from + 1; to < work->lane_count && extents[to].tensor == extents[from].tensor;)
            to++;
        if (!proven_apart(work, extents + from, to - from))
            status = check_listed(work, extents + from, to - from, err);
    }
    free(extents);
    return status;
}
