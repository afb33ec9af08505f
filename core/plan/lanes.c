/* Components as lanes: what would merge in every page is joined once, before the walk. */
#include "core/base/checked.h"
#include "core/base/error.h"
#include "core/plan/compile.h"
#include "core/plan/memory.h"

#define STAGE "plan.compile"

static struct hl_plan_lane lane_of(const struct hl_layout_component *c, uint32_t index)
{
    return (struct hl_plan_lane){.layer = c->layer,
                                 .group = c->group,
                                 .tensor = c->tensor,
                                 .component = index,
                                 .offset = c->offset,
                                 .page_stride = c->page_stride,
                                 .row_bytes = c->row_bytes,
                                 .row_stride = c->row_stride,
                                 .block_offset = c->block_offset,
                                 .block_row_stride = c->block_row_stride,
                                 .rows = c->rows};
}

static void join_rows(struct hl_plan_lane *lane)
{
    if (lane->rows > 1 && (lane->row_stride != lane->row_bytes || lane->block_row_stride != lane->row_bytes))
        return;
    lane->row_bytes *= lane->rows; /* fits: the page lies in its tensor */
    lane->row_stride = lane->block_row_stride = lane->row_bytes;
    lane->rows = 1;
}

/* Whether each row of `next` continues the same row of `lane`, on the device and in the block. */
static bool continues(const struct hl_plan_lane *lane, const struct hl_plan_lane *next)
{
    if (lane->layer != next->layer || lane->group != next->group || lane->tensor != next->tensor ||
        lane->page_stride != next->page_stride || lane->rows != next->rows)
        return false;
    if (next->offset != lane->offset + lane->row_bytes ||
        next->block_offset != lane->block_offset + lane->row_bytes)
        return false;
    return lane->rows == 1 ||
           (lane->row_stride == next->row_stride && lane->block_row_stride == next->block_row_stride);
}

static hl_status add_product(uint64_t *sum, uint64_t a, uint64_t b, uint64_t c, const char *what,
                             hl_error *err)
{
    uint64_t product;
    if (!hl_mul_u64(a, b, &product) || !hl_mul_u64(product, c, &product) || !hl_add_u64(*sum, product, sum))
        return HL_FAIL(err, HL_E_OVERFLOW, STAGE, "the plan's %s overflow 64 bits", what);
    return HL_OK;
}

/* Rows that stayed apart in a lane never merge with each other, and each costs at least its place in a run.
 */
static hl_status sum_lanes(struct hl_plan_work *work, hl_error *err)
{
    bool walked[HL_LAYOUT_GROUPS] = {false};
    work->least_bytes = sizeof(struct hl_plan_header) + work->layout->layers * sizeof(struct hl_plan_section);
    for (uint32_t i = 0; i < work->lane_count; i++) {
        const struct hl_plan_lane *lane = &work->lanes[i];
        uint64_t blocks = hl_plan_group_blocks(work, lane->group);
        hl_status status = add_product(&work->walked, blocks, lane->rows, 1, "pieces", err);
        if (status == HL_OK)
            status =
                add_product(&work->payload_bytes, blocks, lane->rows, lane->row_bytes, "payload_bytes", err);
        if (status == HL_OK)
            status = add_product(&work->least_bytes, blocks, lane->rows - 1, sizeof(uint32_t),
                                 "metadata_bytes", err);
        if (status != HL_OK)
            return status;
        walked[lane->group] = true;
    }
    bool all_walked = true; /* a block of a group without components names an allocation that no part needs */
    for (uint32_t group = 0; group < work->layout->group_count; group++)
        all_walked &= walked[group] || hl_plan_group_blocks(work, group) == 0;
    if (all_walked)
        work->least_bytes += work->allocation_count * sizeof(struct hl_plan_allocation);
    if (work->least_bytes > work->metadata_bytes)
        return HL_FAIL(err, HL_E_LIMIT, STAGE, "the plan needs at least %llu metadata_bytes, over %llu",
                       (unsigned long long)work->least_bytes, (unsigned long long)work->metadata_bytes);
    return HL_OK;
}

hl_status hl_plan_shape_lanes(struct hl_plan_work *work, hl_error *err)
{
    const hl_layout *layout = work->layout;
    work->lanes = hl_plan_allocate(layout->component_count, sizeof *work->lanes);
    if (!work->lanes)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for %u components", layout->component_count);
    for (uint32_t i = 0; i < layout->component_count; i++) {
        const struct hl_layout_component *c = &layout->components[i];
        uint64_t blocks = hl_plan_group_blocks(work, c->group);
        if (blocks == 0)
            continue;
        work->pieces += blocks * c->rows; /* at most the payload's bytes, which sum_lanes checks */
        struct hl_plan_lane next = lane_of(c, i);
        join_rows(&next);
        struct hl_plan_lane *last = work->lane_count ? &work->lanes[work->lane_count - 1] : NULL;
        if (last && continues(last, &next)) {
            last->row_bytes += next.row_bytes;
            join_rows(last);
        } else {
            work->lanes[work->lane_count++] = next;
        }
    }
    return sum_lanes(work, err);
}
