#include "core/plan/compile.h"

#include <stdlib.h>

#include "core/base/error.h"
#include "core/plan/encode.h"
#include "core/plan/merge.h"

static hl_status walk_lane(const struct hl_plan_work *work, const struct hl_plan_lane *lane,
                           struct hl_plan_merger *merger, hl_error *err)
{
    const struct hl_plan_source *source = work->sources + work->group_first[lane->group];
    const struct hl_plan_source *end = work->sources + work->group_first[lane->group + 1];
    for (; source < end; source++) {
        struct hl_plan_copy piece = {.src = source->src + lane->block_offset,
                                     .dst = lane->offset + source->page * lane->page_stride,
                                     .bytes = lane->row_bytes,
                                     .source = source};
        for (uint32_t row = 0; row < lane->rows; row++) {
            hl_status status = hl_plan_merge_push(merger, &piece, err);
            if (status != HL_OK)
                return status;
            piece.src += lane->block_row_stride;
            piece.dst += lane->row_stride;
        }
    }
    return HL_OK;
}

/* The lanes of one layer, beginning at *lane, which moves past them. */
static hl_status walk_layer(const struct hl_plan_work *work, uint32_t layer, uint32_t *lane,
                            struct hl_plan_merger *merger, hl_error *err)
{
    hl_status status = HL_OK;
    while (status == HL_OK && *lane < work->lane_count && work->lanes[*lane].layer == layer) {
        uint32_t tensor = work->lanes[*lane].tensor;
        hl_plan_encode_section(merger->encoder, layer, tensor);
        for (; status == HL_OK && *lane < work->lane_count && work->lanes[*lane].layer == layer &&
               work->lanes[*lane].tensor == tensor;
             ++*lane)
            status = walk_lane(work, &work->lanes[*lane], merger, err);
        if (status == HL_OK)
            status = hl_plan_merge_flush(merger, err);
    }
    return status == HL_OK ? hl_plan_encode_layer_end(merger->encoder, layer, err) : status;
}

static hl_status walk(const struct hl_plan_work *work, hl_plan **plan, hl_error *err)
{
    struct hl_plan_encoder encoder;
    hl_status status = hl_plan_encoder_open(&encoder, work, err);
    if (status != HL_OK)
        return status;
    struct hl_plan_merger merger = {.encoder = &encoder};
    uint32_t lane = 0;
    for (uint32_t layer = 0; status == HL_OK && layer < work->layout->layers; layer++)
        status = walk_layer(work, layer, &lane, &merger, err);
    if (status == HL_OK)
        status = hl_plan_encoder_finish(&encoder, plan, err);
    hl_plan_encoder_close(&encoder);
    return status;
}

hl_status hl_plan_compile(const struct hl_plan_request *request, hl_plan **plan, hl_error *err)
{
    struct hl_plan_work work = {.request = request, .layout = request->layout};
    hl_status status = hl_plan_check_request(&work, err);
    if (status == HL_OK)
        status = hl_plan_sort_pages(&work, err);
    if (status == HL_OK)
        status = hl_plan_shape_lanes(&work, err);
    if (status == HL_OK)
        status = hl_plan_check_overlap(&work, err);
    if (status == HL_OK)
        status = walk(&work, plan, err);
    free(work.lanes);
    free(work.allocations);
    free(work.sources);
    return status;
}

size_t hl_plan_part_count(const hl_plan *plan)
{
    return plan->count;
}

const void *hl_plan_part_bytes(const hl_plan *plan, size_t part, size_t *size)
{
    *size = plan->parts[part].size;
    return plan->parts[part].bytes;
}

void hl_plan_get_stats(const hl_plan *plan, struct hl_plan_stats *stats)
{
    *stats = plan->stats;
}

void hl_plan_free(hl_plan *plan)
{
    if (!plan)
        return;
    for (size_t i = 0; i < plan->count; i++)
        free(plan->parts[i].bytes);
    free(plan->parts);
    free(plan);
}
