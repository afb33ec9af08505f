/* A part's structure. The bytes may come from a peer that built them to pass the checksum: nothing is
 * followed before it has been bounded. What a part says about arenas and tensors is for validate.c. */
#include <stdbool.h>

#include "core/base/checked.h"
#include "core/base/error.h"
#include "core/plan/seal.h"

#define STAGE "plan.decode"
#define CORRUPT(err, ...) HL_FAIL((err), HL_E_CORRUPT, STAGE, __VA_ARGS__)

static hl_status check_envelope(const void *bytes, size_t size, hl_error *err)
{
    const struct hl_plan_header *h = bytes;
    if (!bytes || (uintptr_t)bytes % _Alignof(struct hl_plan_header))
        return HL_FAIL(err, HL_E_INVALID, STAGE, "bytes at %p are not 8-byte aligned", bytes);
    if (size < sizeof *h)
        return CORRUPT(err, "part_bytes: %zu bytes are shorter than a header", size);
    if (h->magic != HL_PLAN_MAGIC)
        return CORRUPT(err, "magic is 0x%08x", h->magic);
    if (h->version != HL_PLAN_VERSION)
        return HL_FAIL(err, HL_E_VERSION, STAGE, "version: the part has %u, this build reads %u", h->version,
                       HL_PLAN_VERSION);
    if (h->part_bytes != size || size > HL_PLAN_PART_BYTES)
        return CORRUPT(err, "part_bytes is %u in a part of %zu bytes, of at most %llu", h->part_bytes, size,
                       HL_PLAN_PART_BYTES);
    uint64_t checksum = hl_plan_checksum(bytes, size);
    if (h->checksum != checksum)
        return HL_FAIL(err, HL_E_CHECKSUM, STAGE, "checksum is %016llx, the bytes have %016llx",
                       (unsigned long long)h->checksum, (unsigned long long)checksum);
    return HL_OK;
}

static hl_status check_header(const struct hl_plan_header *h, hl_error *err)
{
    if (h->part_count > HL_PLAN_OPERATION_BYTES / sizeof *h)
        return CORRUPT(err, "part_count %u is out of bounds", h->part_count);
    if (h->part_index >= h->part_count)
        return CORRUPT(err, "part_index %u of %u", h->part_index, h->part_count);
    if (h->layers == 0 || h->layers > HL_LAYOUT_LAYERS)
        return CORRUPT(err, "layers %u is not 1 to %u", h->layers, HL_LAYOUT_LAYERS);
    if (h->zero)
        return CORRUPT(err, "header: zero is %u", h->zero);
    if (h->section_count == 0)
        return CORRUPT(err, "section_count is 0");
    /* 32-bit counts of elements of at most 48 bytes: the sum cannot wrap */
    uint64_t bytes = sizeof *h + (uint64_t)h->allocation_count * sizeof(struct hl_plan_allocation) +
                     (uint64_t)h->section_count * sizeof(struct hl_plan_section) +
                     (uint64_t)h->range_count * sizeof(struct hl_plan_range) +
                     (uint64_t)h->run_count * sizeof(struct hl_plan_run) +
                     (uint64_t)h->row_count * sizeof(uint32_t);
    if (bytes != h->part_bytes)
        return CORRUPT(err,
                       "allocation_count, section_count, range_count, run_count and row_count make %llu "
                       "part_bytes, not %u",
                       (unsigned long long)bytes, h->part_bytes);
    return HL_OK;
}

static hl_status check_allocations(const struct hl_plan_part *part, hl_error *err)
{
    for (uint32_t i = 0; i < part->header->allocation_count; i++) {
        const struct hl_plan_allocation *a = &part->allocations[i];
        uint64_t end;
        if (a->arena_id == 0 || a->allocation_id == 0)
            return CORRUPT(err, "allocation %u: %s is 0", i, a->arena_id ? "allocation_id" : "arena_id");
        if (a->bytes == 0)
            return CORRUPT(err, "allocation %u: bytes is 0", i);
        if (!hl_add_u64(a->offset, a->bytes, &end))
            return CORRUPT(err, "allocation %u: offset + bytes overflows", i);
    }
    return HL_OK;
}

/* Layers follow one another without a gap: each ends with its one marked section, before the next begins. */
static hl_status check_order(const struct hl_plan_part *part, uint32_t i, hl_error *err)
{
    const struct hl_plan_section *s = &part->sections[i];
    const struct hl_plan_header *h = part->header;
    if (s->layer >= h->layers)
        return CORRUPT(err, "section %u: layer %u of %u", i, s->layer, h->layers);
    if (i == 0 && h->part_index == 0 && s->layer != 0)
        return CORRUPT(err, "section 0: layer is %u at the start of the plan", s->layer);
    if (i && s->layer != s[-1].layer + (s[-1].flags & HL_PLAN_LAYER_LAST))
        return CORRUPT(err, "section %u: layer %u after layer %u, whose flags are %u", i, s->layer,
                       s[-1].layer, s[-1].flags);
    if (i == h->section_count - 1 && h->part_index == h->part_count - 1 &&
        (s->layer != h->layers - 1 || !(s->flags & HL_PLAN_LAYER_LAST)))
        return CORRUPT(err, "section %u: layer %u with flags %u ends a plan of %u layers", i, s->layer,
                       s->flags, h->layers);
    return HL_OK;
}

/* Ranges and runs are handed to the sections in order, each exactly once. */
static hl_status check_sections(const struct hl_plan_part *part, hl_error *err)
{
    const struct hl_plan_header *h = part->header;
    uint32_t ranges = 0, runs = 0;
    _Static_assert(HL_PLAN_LAYER_LAST == 1, "check_order adds the flag to the layer");
    for (uint32_t i = 0; i < h->section_count; i++) {
        const struct hl_plan_section *s = &part->sections[i];
        if (s->flags & ~(uint32_t)HL_PLAN_LAYER_LAST)
            return CORRUPT(err, "section %u: flags 0x%x has unknown bits", i, s->flags);
        if (s->zero)
            return CORRUPT(err, "section %u: zero is %u", i, s->zero);
        if (s->tensor >= HL_LAYOUT_TENSORS)
            return CORRUPT(err, "section %u: tensor %u is out of bounds", i, s->tensor);
        if (s->first_range != ranges || s->range_count > h->range_count - ranges)
            return CORRUPT(err, "section %u: first_range %u and range_count %u, where %u of %u are left", i,
                           s->first_range, s->range_count, h->range_count - ranges, h->range_count);
        if (s->first_run != runs || s->run_count > h->run_count - runs)
            return CORRUPT(err, "section %u: first_run %u and run_count %u, where %u of %u are left", i,
                           s->first_run, s->run_count, h->run_count - runs, h->run_count);
        if (s->range_count == 0 && s->run_count == 0 && (s->tensor || s->flags != HL_PLAN_LAYER_LAST))
            return CORRUPT(err, "section %u: range_count and run_count are 0, tensor is %u and flags 0x%x", i,
                           s->tensor, s->flags);
        hl_status status = check_order(part, i, err);
        if (status != HL_OK)
            return status;
        ranges += s->range_count;
        runs += s->run_count;
    }
    if (ranges != h->range_count || runs != h->run_count)
        return CORRUPT(err, "range_count %u or run_count %u: sections hold %u and %u", h->range_count,
                       h->run_count, ranges, runs);
    return HL_OK;
}

static hl_status check_ranges(const struct hl_plan_part *part, uint64_t *payload, hl_error *err)
{
    const struct hl_plan_range *ranges = part->ranges;
    uint32_t allocations = part->header->allocation_count;
    for (uint32_t i = 0; i < part->header->range_count; i++) {
        const struct hl_plan_range *r = &ranges[i];
        uint64_t end;
        if (r->allocation >= allocations)
            return CORRUPT(err, "range %u: allocation %u of %u", i, r->allocation, allocations);
        if (r->bytes == 0)
            return CORRUPT(err, "range %u: bytes is 0", i);
        if (!hl_add_u64(r->src, r->bytes, &end) || !hl_add_u64(r->dst, r->bytes, &end))
            return CORRUPT(err, "range %u: src or dst + bytes overflows", i);
        *payload += r->bytes; /* below 2^20 elements of below 2^32 bytes: the sum cannot wrap */
    }
    return HL_OK;
}

/* Whether `rows` rows of `bytes` at `pitch` from `from` end within 64 bits. */
static bool rows_fit(uint64_t from, uint64_t pitch, uint32_t rows, uint32_t bytes)
{
    uint64_t end;
    return hl_mul_u64(rows - 1, pitch, &end) && hl_add_u64(end, from, &end) && hl_add_u64(end, bytes, &end);
}

static hl_status check_runs(const struct hl_plan_part *part, uint64_t *payload, hl_error *err)
{
    const struct hl_plan_header *h = part->header;
    uint32_t rows = 0;
    for (uint32_t i = 0; i < h->run_count; i++) {
        const struct hl_plan_run *r = &part->runs[i];
        if (r->zero)
            return CORRUPT(err, "run %u: zero is %u", i, r->zero);
        if (r->row_bytes == 0)
            return CORRUPT(err, "run %u: row_bytes is 0", i);
        if (r->rows < HL_PLAN_MIN_RUN_ROWS)
            return CORRUPT(err, "run %u: rows %u is below %u", i, r->rows, HL_PLAN_MIN_RUN_ROWS);
        if (r->first_row != rows || r->rows > h->row_count - rows)
            return CORRUPT(err, "run %u: first_row %u and rows %u, where %u of %u are left", i, r->first_row,
                           r->rows, h->row_count - rows, h->row_count);
        if (r->src_pitch < r->row_bytes || !rows_fit(r->src, r->src_pitch, r->rows, r->row_bytes))
            return CORRUPT(err, "run %u: src %llu and src_pitch %llu for rows of %u bytes", i,
                           (unsigned long long)r->src, (unsigned long long)r->src_pitch, r->row_bytes);
        if (r->dst_pitch < r->row_bytes || !rows_fit(r->dst, r->dst_pitch, r->rows, r->row_bytes))
            return CORRUPT(err, "run %u: dst %llu and dst_pitch %llu for rows of %u bytes", i,
                           (unsigned long long)r->dst, (unsigned long long)r->dst_pitch, r->row_bytes);
        rows += r->rows;
        *payload += (uint64_t)r->rows * r->row_bytes;
    }
    if (rows != h->row_count)
        return CORRUPT(err, "row_count %u: runs hold %u", h->row_count, rows);
    for (uint32_t i = 0; i < h->row_count; i++)
        if (part->rows[i] >= h->allocation_count)
            return CORRUPT(err, "row %u: allocation %u of %u", i, part->rows[i], h->allocation_count);
    return HL_OK;
}

static struct hl_plan_part lay_out(const void *bytes)
{
    const struct hl_plan_header *h = bytes;
    struct hl_plan_part part = {.header = h, .allocations = (const struct hl_plan_allocation *)(h + 1)};
    part.sections = (const struct hl_plan_section *)(part.allocations + h->allocation_count);
    part.ranges = (const struct hl_plan_range *)(part.sections + h->section_count);
    part.runs = (const struct hl_plan_run *)(part.ranges + h->range_count);
    part.rows = (const uint32_t *)(part.runs + h->run_count);
    return part;
}

hl_status hl_plan_decode(const void *bytes, size_t size, struct hl_plan_part *part, hl_error *err)
{
    hl_status status = check_envelope(bytes, size, err);
    if (status == HL_OK)
        status = check_header(bytes, err);
    if (status != HL_OK)
        return status;
    struct hl_plan_part decoded = lay_out(bytes);
    uint64_t payload = 0;
    status = check_allocations(&decoded, err);
    if (status == HL_OK)
        status = check_sections(&decoded, err);
    if (status == HL_OK)
        status = check_ranges(&decoded, &payload, err);
    if (status == HL_OK)
        status = check_runs(&decoded, &payload, err);
    if (status == HL_OK && payload != decoded.header->payload_bytes)
        status = CORRUPT(err, "payload_bytes is %llu, the ranges and runs have %llu",
                         (unsigned long long)decoded.header->payload_bytes, (unsigned long long)payload);
    if (status == HL_OK)
        *part = decoded;
    return status;
}
