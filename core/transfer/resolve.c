#include <assert.h>
#include <stdlib.h>

#include "core/base/checked.h"
#include "core/base/error.h"
#include "core/transfer/work.h"

/* Makes room for `count` elements whose old content does not matter. */
static bool reserve(void **array, size_t *capacity, size_t count, size_t element_bytes)
{
    if (count <= *capacity)
        return true;
    void *larger = malloc(count * element_bytes);
    if (!larger)
        return false;
    free(*array);
    *array = larger;
    *capacity = count;
    return true;
}

static hl_status reserve_all(struct hl_work *work, const struct hl_plan_header *header, hl_error *err)
{
    if (!reserve((void **)&work->ranges, &work->range_capacity, header->range_count, sizeof *work->ranges) ||
        !reserve((void **)&work->runs, &work->run_capacity, header->run_count, sizeof *work->runs) ||
        !reserve((void **)&work->layers, &work->layer_capacity, header->section_count,
                 sizeof *work->layers) ||
        !reserve((void **)&work->arena_of, &work->allocation_capacity, header->allocation_count,
                 sizeof *work->arena_of))
        return HL_FAIL(err, HL_E_NOMEM, "transfer.resolve", "no memory for a part of %u ranges and %u runs",
                       header->range_count, header->run_count);
    return HL_OK;
}

static void resolve_arenas(struct hl_work *work, const struct hl_work_tables *tables,
                           const struct hl_plan_part *part)
{
    size_t arena = 0; /* neighbouring allocations mostly share one */
    for (uint32_t i = 0; i < part->header->allocation_count; i++) {
        uint64_t id = part->allocations[i].arena_id;
        if (arena >= tables->plan.arena_count || tables->arenas[arena].arena_id != id)
            for (arena = 0; arena < tables->plan.arena_count && tables->arenas[arena].arena_id != id;)
                arena++;
        assert(arena < tables->plan.arena_count); /* hl_plan_validate() found it */
        work->arena_of[i] = (uint32_t)arena;
    }
}

/* Moves the arena's window to the chunk that holds `offset`. */
static hl_status look_chunk_up(const struct hl_work_tables *tables, uint32_t arena, uint64_t offset,
                               struct hl_work_window *window, hl_error *err)
{
    const hl_registration *registration = tables->registrations[arena];
    const struct hl_plan_arena *known = &tables->arenas[arena];
    uint64_t chunk = known->chunk_bytes ? known->chunk_bytes : HL_ARENA_CHUNK_BYTES;
    uint64_t first = offset - offset % chunk, rest = known->bytes - first;
    struct hl_work_window found = {.offset = first, .bytes = rest < chunk ? rest : chunk};
    hl_status status = hl_registration_pointer(registration, first, found.bytes, &found.mapped, err);
    if (status != HL_OK)
        return status;
    found.host = (uint64_t)(uintptr_t)hl_arena_base(hl_registration_arena(registration)) + first;
    *window = found;
    return HL_OK;
}

/* The host and the mapped address of [offset, offset + bytes) of an arena, which hl_plan_validate() found to
 * be inside one chunk. */
static inline hl_status resolve_source(struct hl_work *work, const struct hl_work_tables *tables,
                                       uint32_t arena, uint64_t offset, uint64_t bytes, uint64_t *host,
                                       hl_devptr *mapped, hl_error *err)
{
    struct hl_work_window *window = &work->windows[arena];
    if (offset - window->offset >= window->bytes) {
        hl_status status = look_chunk_up(tables, arena, offset, window, err);
        if (status != HL_OK)
            return status;
    }
    uint64_t inside = offset - window->offset;
    assert(hl_within(inside, bytes, window->bytes));
    *host = window->host + inside;
    *mapped = window->mapped + inside;
    return HL_OK;
}

static hl_status resolve_ranges(struct hl_work *work, const struct hl_work_tables *tables,
                                const struct hl_plan_part *part, const struct hl_plan_section *section,
                                uint64_t *bytes, hl_error *err)
{
    hl_devptr base = tables->tensor_bases[section->tensor];
    for (uint32_t i = 0; i < section->range_count; i++) {
        const struct hl_plan_range *range = &part->ranges[section->first_range + i];
        struct hl_work_range *out = &work->ranges[work->range_count];
        hl_status status = resolve_source(work, tables, work->arena_of[range->allocation], range->src,
                                          range->bytes, &out->host, &out->mapped, err);
        if (status != HL_OK)
            return status;
        out->dst = base + range->dst;
        out->bytes = range->bytes;
        *bytes += range->bytes;
        work->range_count++;
    }
    return HL_OK;
}

static hl_status resolve_runs(struct hl_work *work, const struct hl_work_tables *tables,
                              const struct hl_plan_part *part, const struct hl_plan_section *section,
                              uint64_t *bytes, hl_error *err)
{
    hl_devptr base = tables->tensor_bases[section->tensor];
    for (uint32_t i = 0; i < section->run_count; i++) {
        const struct hl_plan_run *run = &part->runs[section->first_run + i];
        struct hl_work_run *out = &work->runs[work->run_count];
        assert(run->rows > 0);
        uint64_t span = (run->rows - 1) * run->src_pitch + run->row_bytes;
        uint32_t arena = work->arena_of[part->rows[run->first_row]];
        hl_status status = resolve_source(work, tables, arena, run->src, span, &out->host, &out->mapped, err);
        if (status != HL_OK)
            return status;
        out->dst = base + run->dst;
        out->dst_pitch = run->dst_pitch;
        out->src_pitch = run->src_pitch;
        out->row_bytes = run->row_bytes;
        out->rows = run->rows;
        *bytes += (uint64_t)run->rows * run->row_bytes;
        work->run_count++;
    }
    return HL_OK;
}

/* The layer that `section` belongs to: the current one, or a new one when the section starts another. A
 * completed layer is closed, so that a section after its last one shows up as a layer of its own and is
 * refused by the operation. */
static struct hl_work_layer *layer_of(struct hl_work *work, const struct hl_plan_section *section)
{
    if (work->layer_count > 0) {
        struct hl_work_layer *current = &work->layers[work->layer_count - 1];
        if (current->layer == section->layer && !current->last)
            return current;
    }
    struct hl_work_layer *layer = &work->layers[work->layer_count++];
    *layer = (struct hl_work_layer){
        .layer = section->layer, .first_range = work->range_count, .first_run = work->run_count};
    return layer;
}

static hl_status resolve_sections(struct hl_work *work, const struct hl_work_tables *tables,
                                  const struct hl_plan_part *part, hl_error *err)
{
    for (uint32_t i = 0; i < part->header->section_count; i++) {
        const struct hl_plan_section *section = &part->sections[i];
        /* hl_plan_decode() handed each range and run to one section, in order: the resolved arrays cannot
         * overflow. */
        assert(section->first_range == work->range_count && section->first_run == work->run_count);
        struct hl_work_layer *layer = layer_of(work, section);
        hl_status status = resolve_ranges(work, tables, part, section, &layer->bytes, err);
        if (status == HL_OK)
            status = resolve_runs(work, tables, part, section, &layer->bytes, err);
        if (status != HL_OK)
            return status;
        layer->range_count += section->range_count;
        layer->run_count += section->run_count;
        layer->last = (section->flags & HL_PLAN_LAYER_LAST) != 0;
    }
    return HL_OK;
}

hl_status hl_work_resolve(struct hl_work *work, const struct hl_work_tables *tables,
                          const struct hl_plan_part *part, hl_error *err)
{
    work->range_count = work->run_count = work->layer_count = 0;
    hl_status status = reserve_all(work, part->header, err);
    if (status == HL_OK) {
        resolve_arenas(work, tables, part);
        status = resolve_sections(work, tables, part, err);
    }
    if (status != HL_OK)
        work->range_count = work->run_count = work->layer_count = 0;
    return status;
}

void hl_work_free(struct hl_work *work)
{
    free(work->ranges);
    free(work->runs);
    free(work->layers);
    free(work->arena_of);
    *work = (struct hl_work){0};
}
