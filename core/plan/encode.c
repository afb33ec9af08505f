#include "core/plan/encode.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/error.h"
#include "core/plan/memory.h"

#define STAGE "plan.encode"

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Bounds double from part to part, up to part_bytes. */
static uint64_t bound_of_part(const struct hl_plan_work *work, uint32_t index)
{
    for (uint64_t bound = work->first_part_bytes; bound < work->part_bytes; bound *= 2)
        if (index-- == 0)
            return bound;
    return work->part_bytes;
}

static void begin_part(struct hl_plan_encoder *e)
{
    const struct hl_plan_work *work = e->work;
    e->part++;
    e->header = (struct hl_plan_header){.magic = HL_PLAN_MAGIC,
                                        .version = HL_PLAN_VERSION,
                                        .identity = work->request->identity,
                                        .part_index = e->part - 1,
                                        .layers = work->layout->layers};
    e->used = sizeof e->header;
    e->bound = bound_of_part(work, e->part - 1);
    e->room = least(e->bound, work->metadata_bytes - e->plan->stats.metadata_bytes);
    e->section_open = false;
}

/* The arrays are as long as a part allows, or as the plan can need: a small plan touches little memory. */
static hl_status allocate_staging(struct hl_plan_encoder *e, hl_error *err)
{
    const struct hl_plan_work *work = e->work;
    uint64_t pieces = work->walked + work->payload_bytes / HL_PLAN_RANGE_BYTES + 1;
    uint64_t ranges = least(work->part_bytes / sizeof *e->ranges, pieces);
    uint64_t runs = least(work->part_bytes / sizeof *e->runs, pieces / HL_PLAN_MIN_RUN_ROWS + 1);
    uint64_t allocations = least(work->part_bytes / sizeof *e->allocations, work->allocation_count);
    uint64_t sections =
        least(work->part_bytes / sizeof *e->sections, work->lane_count + work->layout->layers);
    uint64_t rows = least(work->part_bytes / sizeof *e->rows, pieces);
    e->staging = hl_plan_allocate(1, ranges * sizeof *e->ranges + runs * sizeof *e->runs +
                                         allocations * sizeof *e->allocations +
                                         sections * sizeof *e->sections + rows * sizeof *e->rows);
    if (!e->staging)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for a part of %llu bytes",
                       (unsigned long long)work->part_bytes);
    e->ranges = e->staging;
    e->runs = (struct hl_plan_run *)(e->ranges + ranges);
    e->allocations = (struct hl_plan_allocation *)(e->runs + runs);
    e->sections = (struct hl_plan_section *)(e->allocations + allocations);
    e->rows = (uint32_t *)(e->sections + sections);
    return HL_OK;
}

hl_status hl_plan_encoder_open(struct hl_plan_encoder *e, const struct hl_plan_work *work, hl_error *err)
{
    *e = (struct hl_plan_encoder){.work = work};
    hl_status status;
    e->plan = hl_plan_allocate(1, sizeof *e->plan);
    e->places = hl_plan_allocate(work->allocation_count, sizeof *e->places);
    if (e->plan)
        *e->plan = (struct hl_plan){.stats = {.pieces = work->pieces}};
    if (!e->plan || !e->places) {
        status = HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for %u allocations", work->allocation_count);
        goto err_close;
    }
    memset(e->places, 0, work->allocation_count * sizeof *e->places);
    status = allocate_staging(e, err);
    if (status != HL_OK)
        goto err_close;
    begin_part(e);
    return HL_OK;
err_close:
    hl_plan_encoder_close(e);
    return status;
}

void hl_plan_encoder_close(struct hl_plan_encoder *e)
{
    free(e->staging);
    free(e->places);
    hl_plan_free(e->plan);
    *e = (struct hl_plan_encoder){0};
}

static hl_status grow_parts(struct hl_plan *plan, hl_error *err)
{
    size_t capacity = plan->capacity ? 2 * plan->capacity : 4;
    struct hl_plan_bytes *parts = hl_plan_allocate(capacity, sizeof *parts);
    if (!parts)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for %zu parts", capacity);
    if (plan->count)
        memcpy(parts, plan->parts, plan->count * sizeof *parts);
    free(plan->parts);
    plan->parts = parts;
    plan->capacity = capacity;
    return HL_OK;
}

static unsigned char *append(unsigned char *out, const void *array, size_t bytes)
{
    memcpy(out, array, bytes);
    return out + bytes;
}

/* Copies the part out in wire order; part_count and checksum follow when the count is known. */
static hl_status close_part(struct hl_plan_encoder *e, hl_error *err)
{
    struct hl_plan *plan = e->plan;
    const struct hl_plan_header *h = &e->header;
    if (plan->count == plan->capacity) {
        hl_status status = grow_parts(plan, err);
        if (status != HL_OK)
            return status;
    }
    unsigned char *bytes = hl_plan_allocate(1, e->used), *out = bytes;
    if (!bytes)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for part %u", h->part_index);
    e->header.part_bytes = (uint32_t)e->used;
    out = append(out, h, sizeof *h);
    out = append(out, e->allocations, h->allocation_count * sizeof *e->allocations);
    out = append(out, e->sections, h->section_count * sizeof *e->sections);
    out = append(out, e->ranges, h->range_count * sizeof *e->ranges);
    out = append(out, e->runs, h->run_count * sizeof *e->runs);
    out = append(out, e->rows, h->row_count * sizeof *e->rows);
    assert((uint64_t)(out - bytes) == e->used);
    plan->parts[plan->count++] = (struct hl_plan_bytes){.bytes = bytes, .size = e->used};
    plan->stats.metadata_bytes += e->used;
    plan->stats.payload_bytes += h->payload_bytes;
    plan->stats.ranges += h->range_count;
    plan->stats.runs += h->run_count;
    plan->stats.run_rows += h->row_count;
    return HL_OK;
}

static hl_status fail_limit(const struct hl_plan_encoder *e, hl_error *err)
{
    return HL_FAIL(err, HL_E_LIMIT, STAGE, "the plan is over %llu metadata_bytes in layer %u of %u",
                   (unsigned long long)e->work->metadata_bytes, e->layer, e->work->layout->layers);
}

/* Begins the next part, in which `bytes` must fit beside a header. */
static hl_status turn_over(struct hl_plan_encoder *e, uint64_t bytes, hl_error *err)
{
    if (e->room < e->bound)
        return fail_limit(e, err);
    hl_status status = close_part(e, err);
    if (status != HL_OK)
        return status;
    begin_part(e);
    return e->used + bytes > e->room ? fail_limit(e, err) : HL_OK;
}

static bool is_listed(const struct hl_plan_encoder *e, uint32_t allocation)
{
    return e->places[allocation].part == e->part;
}

static uint32_t list_allocation(struct hl_plan_encoder *e, uint32_t allocation)
{
    struct hl_plan_place *place = &e->places[allocation];
    if (place->part != e->part) {
        *place = (struct hl_plan_place){.part = e->part, .index = e->header.allocation_count++};
        e->allocations[place->index] = e->work->allocations[allocation];
        e->used += sizeof *e->allocations;
    }
    return place->index;
}

static void open_section(struct hl_plan_encoder *e, uint32_t tensor)
{
    e->sections[e->header.section_count++] = (struct hl_plan_section){.layer = e->layer,
                                                                      .tensor = tensor,
                                                                      .first_range = e->header.range_count,
                                                                      .first_run = e->header.run_count};
    e->used += sizeof *e->sections;
    e->section_open = true;
    e->layer_begun = true;
}

void hl_plan_encode_section(struct hl_plan_encoder *e, uint32_t layer, uint32_t tensor)
{
    if (layer != e->layer)
        e->layer_begun = false;
    else if (e->section_open && tensor == e->tensor)
        return;
    e->layer = layer;
    e->tensor = tensor;
    e->section_open = false;
}

hl_status hl_plan_encode_range(struct hl_plan_encoder *e, const struct hl_plan_copy *copy, hl_error *err)
{
    uint32_t allocation = copy->source->allocation;
    uint64_t need = sizeof *e->ranges + (e->section_open ? 0 : sizeof *e->sections) +
                    (is_listed(e, allocation) ? 0 : sizeof *e->allocations);
    if (e->used + need > e->room) {
        hl_status status =
            turn_over(e, sizeof *e->ranges + sizeof *e->sections + sizeof *e->allocations, err);
        if (status != HL_OK)
            return status;
    }
    if (!e->section_open)
        open_section(e, e->tensor);
    e->ranges[e->header.range_count++] = (struct hl_plan_range){.allocation = list_allocation(e, allocation),
                                                                .bytes = (uint32_t)copy->bytes,
                                                                .src = copy->src,
                                                                .dst = copy->dst};
    e->sections[e->header.section_count - 1].range_count++;
    e->header.payload_bytes += copy->bytes;
    e->used += sizeof *e->ranges;
    return HL_OK;
}

/* What a run's first rows take, in this part or in a fresh one, which has no section and no allocation yet.
 */
static uint64_t run_bytes(const struct hl_plan_encoder *e, const struct hl_plan_copy *rows, bool fresh)
{
    uint64_t bytes = sizeof *e->runs + HL_PLAN_MIN_RUN_ROWS * sizeof *e->rows;
    if (fresh || !e->section_open)
        bytes += sizeof *e->sections;
    for (unsigned i = 0; i < HL_PLAN_MIN_RUN_ROWS; i++) {
        bool listed = !fresh && is_listed(e, rows[i].source->allocation);
        for (unsigned k = 0; k < i; k++)
            listed |= rows[k].source->allocation == rows[i].source->allocation;
        bytes += listed ? 0 : sizeof *e->allocations;
    }
    return bytes;
}

hl_status hl_plan_encode_run(struct hl_plan_encoder *e, const struct hl_plan_copy *rows, uint64_t src_pitch,
                             uint64_t dst_pitch, hl_error *err)
{
    if (e->used + run_bytes(e, rows, false) > e->room) {
        hl_status status = turn_over(e, run_bytes(e, rows, true), err);
        if (status != HL_OK)
            return status;
    }
    if (!e->section_open)
        open_section(e, e->tensor);
    e->runs[e->header.run_count++] = (struct hl_plan_run){.src = rows[0].src,
                                                          .dst = rows[0].dst,
                                                          .src_pitch = src_pitch,
                                                          .dst_pitch = dst_pitch,
                                                          .row_bytes = (uint32_t)rows[0].bytes,
                                                          .first_row = e->header.row_count};
    e->sections[e->header.section_count - 1].run_count++;
    e->used += sizeof *e->runs;
    for (unsigned i = 0; i < HL_PLAN_MIN_RUN_ROWS; i++) {
        bool appended = hl_plan_encode_row(e, rows[i].source);
        assert(appended);
        (void)appended;
    }
    return HL_OK;
}

bool hl_plan_encode_row(struct hl_plan_encoder *e, const struct hl_plan_source *source)
{
    uint32_t allocation = source->allocation;
    uint64_t need = sizeof *e->rows + (is_listed(e, allocation) ? 0 : sizeof *e->allocations);
    if (e->used + need > e->room)
        return false;
    struct hl_plan_run *run = &e->runs[e->header.run_count - 1];
    e->rows[e->header.row_count++] = list_allocation(e, allocation);
    run->rows++;
    e->header.payload_bytes += run->row_bytes;
    e->used += sizeof *e->rows;
    return true;
}

hl_status hl_plan_encode_layer_end(struct hl_plan_encoder *e, uint32_t layer, hl_error *err)
{
    hl_plan_encode_section(e, layer, e->tensor);
    if (!e->layer_begun) {
        if (e->used + sizeof *e->sections > e->room) {
            hl_status status = turn_over(e, sizeof *e->sections, err);
            if (status != HL_OK)
                return status;
        }
        open_section(e, 0);
    }
    e->sections[e->header.section_count - 1].flags |= HL_PLAN_LAYER_LAST;
    return HL_OK;
}

hl_status hl_plan_encoder_finish(struct hl_plan_encoder *e, struct hl_plan **plan, hl_error *err)
{
    hl_status status = close_part(e, err);
    if (status != HL_OK)
        return status;
    for (size_t i = 0; i < e->plan->count; i++) {
        struct hl_plan_bytes *part = &e->plan->parts[i];
        ((struct hl_plan_header *)part->bytes)->part_count = (uint32_t)e->plan->count;
        hl_plan_seal(part->bytes, part->size);
    }
    *plan = e->plan;
    e->plan = NULL;
    return HL_OK;
}
