/* What the steps of a compilation share; private to the room. request.c checks the request, pages.c sorts its
 * blocks, lanes.c shapes its components, overlap.c checks destinations, compile.c walks, merge.c joins,
 * encode.c writes parts. */
#ifndef CORE_PLAN_COMPILE_H
#define CORE_PLAN_COMPILE_H

#include "core/plan/plan.h"

/* A checked block, in the order of its group's destination pages. */
struct hl_plan_source {
    uint64_t src; /* absolute arena offset of the block */
    uint64_t arena_id;
    uint64_t chunk; /* index of the registration chunk that holds the whole allocation */
    uint32_t page;
    uint32_t allocation; /* index into the work's allocations */
    uint32_t block;      /* index in the request, for messages */
};

/* What is walked instead of components: rows that touch on both sides are one row, and components that touch
 * on both sides in every row are one lane. Layer and order are those of the components. */
struct hl_plan_lane {
    uint32_t layer;
    uint32_t group;
    uint32_t tensor;
    uint32_t component; /* the first one, for messages */
    uint64_t offset;
    uint64_t page_stride;
    uint64_t row_bytes;
    uint64_t row_stride;
    uint64_t block_offset;
    uint64_t block_row_stride;
    uint32_t rows;
};

/* One compilation. Arithmetic on lanes and sources cannot overflow once request.c has passed. */
struct hl_plan_work {
    const struct hl_plan_request *request;
    const hl_layout *layout;
    uint64_t chunk_bytes; /* the request's, with defaults filled in */
    uint64_t part_bytes;
    uint64_t first_part_bytes;
    uint64_t metadata_bytes;

    struct hl_plan_source *sources; /* by group, then page */
    size_t group_first[HL_LAYOUT_GROUPS + 1];
    struct hl_plan_allocation *allocations; /* every one that a block names, once */
    uint32_t allocation_count;

    struct hl_plan_lane *lanes; /* in consuming order */
    uint32_t lane_count;
    uint64_t pieces; /* rows of pages of components */
    uint64_t walked; /* rows of pages of lanes: what the walk emits */
    uint64_t payload_bytes;
    uint64_t least_bytes; /* metadata that no merging can avoid */
};

/* A part holds at least a header, and one run of the fewest rows with its section and an allocation a row. */
#define HL_PLAN_LEAST_PART                                                                                   \
    (sizeof(struct hl_plan_header) + sizeof(struct hl_plan_section) + sizeof(struct hl_plan_run) +           \
     HL_PLAN_MIN_RUN_ROWS * (sizeof(uint32_t) + sizeof(struct hl_plan_allocation)))

/* A longer piece is cut here: the longest length of a range that is a multiple of 16. */
#define HL_PLAN_RANGE_BYTES 0xfffffff0u

static inline size_t hl_plan_group_blocks(const struct hl_plan_work *work, uint32_t group)
{
    return work->group_first[group + 1] - work->group_first[group];
}

/* Checks every field of the request and fills in the work's bounds. */
hl_status hl_plan_check_request(struct hl_plan_work *work, hl_error *err);

/* Fills in sources and allocations; HL_E_OVERLAP for a page with two blocks. The caller frees both, also on
 * failure. */
hl_status hl_plan_sort_pages(struct hl_plan_work *work, hl_error *err);

/* Fills in lanes and sums, and refuses a plan that cannot fit. The caller frees the lanes, also on failure.
 */
hl_status hl_plan_shape_lanes(struct hl_plan_work *work, hl_error *err);

/* HL_E_OVERLAP when two pieces of the operation write one byte. */
hl_status hl_plan_check_overlap(const struct hl_plan_work *work, hl_error *err);

#endif
