#include "core/plan/validate.h"

#include <assert.h>
#include <stdbool.h>

#include "core/base/checked.h"
#include "core/base/error.h"

#define STAGE "plan.validate"

static const struct hl_plan_arena *find_arena(const struct hl_plan_tables *tables, uint64_t arena_id)
{
    for (size_t i = 0; i < tables->arena_count; i++)
        if (tables->arenas[i].arena_id == arena_id)
            return &tables->arenas[i];
    return NULL;
}

static uint64_t chunk_bytes_of(const struct hl_plan_arena *arena)
{
    return arena->chunk_bytes ? arena->chunk_bytes : HL_ARENA_CHUNK_BYTES;
}

static hl_status check_allocations(const struct hl_plan_part *part, const struct hl_plan_tables *tables,
                                   hl_error *err)
{
    const struct hl_plan_arena *arena = NULL;
    for (uint32_t i = 0; i < part->header->allocation_count; i++) {
        const struct hl_plan_allocation *a = &part->allocations[i];
        if (!arena || arena->arena_id != a->arena_id)
            arena = find_arena(tables, a->arena_id);
        if (!arena)
            return HL_FAIL(err, HL_E_NOT_FOUND, STAGE, "allocation %u: arena_id %llu is not mapped here", i,
                           (unsigned long long)a->arena_id);
        if (!hl_within(a->offset, a->bytes, arena->bytes))
            return HL_FAIL(err, HL_E_RANGE, STAGE,
                           "allocation %u: offset %llu with %llu bytes is outside arena_id %llu", i,
                           (unsigned long long)a->offset, (unsigned long long)a->bytes,
                           (unsigned long long)a->arena_id);
        uint64_t chunk_bytes = chunk_bytes_of(arena);
        if (!hl_within(a->offset % chunk_bytes, a->bytes, chunk_bytes))
            return HL_FAIL(err, HL_E_RANGE, STAGE,
                           "allocation %u: offset %llu with %llu bytes crosses a chunk", i,
                           (unsigned long long)a->offset, (unsigned long long)a->bytes);
    }
    return HL_OK;
}

static bool in_allocation(const struct hl_plan_allocation *a, uint64_t src, uint64_t bytes)
{
    return src >= a->offset && hl_within(src - a->offset, bytes, a->bytes);
}

static hl_status check_ranges(const struct hl_plan_part *part, const struct hl_plan_section *section,
                              uint64_t tensor_bytes, hl_error *err)
{
    uint32_t end = section->first_range + section->range_count;
    for (uint32_t i = section->first_range; i < end; i++) {
        const struct hl_plan_range *r = &part->ranges[i];
        if (!in_allocation(&part->allocations[r->allocation], r->src, r->bytes))
            return HL_FAIL(err, HL_E_RANGE, STAGE,
                           "range %u: src %llu with %u bytes is outside allocation %u", i,
                           (unsigned long long)r->src, r->bytes, r->allocation);
        if (!hl_within(r->dst, r->bytes, tensor_bytes))
            return HL_FAIL(
                err, HL_E_RANGE, STAGE, "range %u: dst %llu with %u bytes is outside tensor %u of %llu bytes",
                i, (unsigned long long)r->dst, r->bytes, section->tensor, (unsigned long long)tensor_bytes);
    }
    return HL_OK;
}

/* Every row inside its own allocation, all of these in one arena. */
static hl_status check_rows(const struct hl_plan_part *part, uint32_t run, hl_error *err)
{
    const struct hl_plan_run *r = &part->runs[run];
    const uint32_t *rows = part->rows + r->first_row;
    uint64_t arena_id = part->allocations[rows[0]].arena_id, src = r->src;
    for (uint32_t i = 0; i < r->rows; i++, src += r->src_pitch) {
        const struct hl_plan_allocation *a = &part->allocations[rows[i]];
        if (a->arena_id != arena_id)
            return HL_FAIL(err, HL_E_RANGE, STAGE, "run %u: row %u lies in arena_id %llu, row 0 in %llu", run,
                           i, (unsigned long long)a->arena_id, (unsigned long long)arena_id);
        if (!in_allocation(a, src, r->row_bytes))
            return HL_FAIL(err, HL_E_RANGE, STAGE,
                           "run %u: row %u at src %llu with %u row_bytes is outside allocation %u", run, i,
                           (unsigned long long)src, r->row_bytes, rows[i]);
    }
    return HL_OK;
}

static hl_status check_runs(const struct hl_plan_part *part, const struct hl_plan_section *section,
                            const struct hl_plan_tables *tables, hl_error *err)
{
    uint64_t tensor_bytes = tables->tensor_bytes[section->tensor];
    uint32_t end = section->first_run + section->run_count;
    for (uint32_t i = section->first_run; i < end; i++) {
        const struct hl_plan_run *r = &part->runs[i];
        hl_status status = check_rows(part, i, err);
        if (status != HL_OK)
            return status;
        uint64_t src_last = r->src + (r->rows - 1) * r->src_pitch; /* decode has checked that both ends fit */
        uint64_t dst_bytes = (r->rows - 1) * r->dst_pitch + r->row_bytes;
        uint64_t chunk_bytes =
            chunk_bytes_of(find_arena(tables, part->allocations[part->rows[r->first_row]].arena_id));
        if (r->src / chunk_bytes != (src_last + r->row_bytes - 1) / chunk_bytes)
            return HL_FAIL(
                err, HL_E_RANGE, STAGE, "run %u: rows from src %llu to %llu cross a chunk of %llu bytes", i,
                (unsigned long long)r->src, (unsigned long long)src_last, (unsigned long long)chunk_bytes);
        if (!hl_within(r->dst, dst_bytes, tensor_bytes))
            return HL_FAIL(
                err, HL_E_RANGE, STAGE, "run %u: dst %llu with %u rows is outside tensor %u of %llu bytes", i,
                (unsigned long long)r->dst, r->rows, section->tensor, (unsigned long long)tensor_bytes);
    }
    return HL_OK;
}

static hl_status check_section(const struct hl_plan_part *part, uint32_t index,
                               const struct hl_plan_tables *tables, hl_error *err)
{
    const struct hl_plan_section *section = &part->sections[index];
    assert(section->layer <
           tables->layers); /* decode has compared it with the header, and validate the header */
    if (section->range_count == 0 && section->run_count == 0)
        return HL_OK;
    if (section->tensor >= tables->tensor_count)
        return HL_FAIL(err, HL_E_NOT_FOUND, STAGE, "section %u: tensor %u of %zu", index, section->tensor,
                       tables->tensor_count);
    hl_status status = check_ranges(part, section, tables->tensor_bytes[section->tensor], err);
    return status == HL_OK ? check_runs(part, section, tables, err) : status;
}

hl_status hl_plan_validate(const struct hl_plan_part *part, const struct hl_plan_tables *tables,
                           hl_error *err)
{
    if (part->header->layers != tables->layers)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "layers: the part has %u, the binding %u",
                       part->header->layers, tables->layers);
    hl_status status = check_allocations(part, tables, err);
    for (uint32_t i = 0; status == HL_OK && i < part->header->section_count; i++)
        status = check_section(part, i, tables, err);
    return status == HL_OK ? hl_plan_check_destinations(part, err) : status;
}
