/* Whether a part writes a byte twice. Three steps, each only where the one before could not tell: the ranges
 * and the bounds of runs, as they come; the same, sorted; every row of every run, sorted. */
#include <stdbool.h>
#include <stdlib.h>

#include "core/base/error.h"
#include "core/plan/intervals.h"
#include "core/plan/memory.h"
#include "core/plan/validate.h"

#define STAGE "plan.validate"

enum { TAG_RANGE, TAG_RUN };

static struct hl_plan_interval range_interval(const struct hl_plan_part *part, uint32_t i)
{
    const struct hl_plan_range *r = &part->ranges[i];
    return (struct hl_plan_interval){.lo = r->dst, .hi = r->dst + r->bytes, .tag = {TAG_RANGE, i}};
}

static struct hl_plan_interval run_interval(const struct hl_plan_part *part, uint32_t i)
{
    const struct hl_plan_run *r = &part->runs[i];
    return (struct hl_plan_interval){
        .lo = r->dst, .hi = r->dst + (r->rows - 1) * r->dst_pitch + r->row_bytes, .tag = {TAG_RUN, i}};
}

/* Walks a section's ranges and runs together by their first byte. False as soon as one begins before *end,
 * where the last one ended. */
static bool section_ascends(const struct hl_plan_part *part, const struct hl_plan_section *s, uint64_t *end)
{
    uint32_t range = s->first_range, ranges_end = range + s->range_count;
    uint32_t run = s->first_run, runs_end = run + s->run_count;
    while (range < ranges_end || run < runs_end) {
        bool take_range =
            run == runs_end || (range < ranges_end && part->ranges[range].dst < part->runs[run].dst);
        struct hl_plan_interval next = take_range ? range_interval(part, range++) : run_interval(part, run++);
        if (next.lo < *end)
            return false;
        *end = next.hi;
    }
    return true;
}

static hl_status fail_overlap(uint32_t tensor, const struct hl_plan_interval *second, hl_error *err)
{
    static const char *const kind[] = {"range", "run"};
    const struct hl_plan_interval *first = second - 1;
    return HL_FAIL(err, HL_E_OVERLAP, STAGE, "%s %u and %s %u overlap at dst %llu of tensor %u",
                   kind[first->tag[0]], first->tag[1], kind[second->tag[0]], second->tag[1],
                   (unsigned long long)second->lo, tensor);
}

/* Whether the items, sorted by first byte, are runs at one pitch that interleave without touching, as a
 * page-first tensor's layers do. */
static bool runs_interleave(const struct hl_plan_part *part, const struct hl_plan_interval *items,
                            size_t count)
{
    uint64_t pitch = 0;
    for (size_t i = 0; i < count; i++) {
        if (items[i].tag[0] != TAG_RUN)
            return false;
        const struct hl_plan_run *r = &part->runs[items[i].tag[1]];
        pitch = i == 0 ? r->dst_pitch : pitch;
        if (r->dst_pitch != pitch)
            return false;
        uint64_t next = i + 1 < count ? items[i + 1].lo : items[0].lo + pitch;
        if (next < items[i].lo || next - items[i].lo < r->row_bytes)
            return false;
    }
    return true;
}

/* The sections that `order` lists; their sums. */
struct tensor_sections {
    const struct hl_plan_interval *order; /* tag[0] is the section */
    size_t count;
    uint64_t items;
    uint64_t pieces;
};

static void list_items(const struct hl_plan_part *part, const struct tensor_sections *t,
                       struct hl_plan_interval *out)
{
    for (size_t k = 0; k < t->count; k++) {
        const struct hl_plan_section *s = &part->sections[t->order[k].tag[0]];
        for (uint32_t i = 0; i < s->range_count; i++)
            *out++ = range_interval(part, s->first_range + i);
        for (uint32_t i = 0; i < s->run_count; i++)
            *out++ = run_interval(part, s->first_run + i);
    }
}

static void list_pieces(const struct hl_plan_part *part, const struct tensor_sections *t,
                        struct hl_plan_interval *out)
{
    for (size_t k = 0; k < t->count; k++) {
        const struct hl_plan_section *s = &part->sections[t->order[k].tag[0]];
        for (uint32_t i = 0; i < s->range_count; i++)
            *out++ = range_interval(part, s->first_range + i);
        for (uint32_t i = s->first_run; i < s->first_run + s->run_count; i++) {
            const struct hl_plan_run *r = &part->runs[i];
            uint64_t lo = r->dst;
            for (uint32_t row = 0; row < r->rows; row++, lo += r->dst_pitch)
                *out++ = (struct hl_plan_interval){.lo = lo, .hi = lo + r->row_bytes, .tag = {TAG_RUN, i}};
        }
    }
}

static hl_status check_sorted(const struct hl_plan_part *part, const struct tensor_sections *t, hl_error *err)
{
    struct hl_plan_interval *memory = hl_plan_allocate(2 * t->pieces, sizeof *memory);
    if (!memory)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory to sort %llu destinations",
                       (unsigned long long)t->pieces);
    struct hl_plan_interval *items = memory, *scratch = memory + t->pieces;
    uint32_t tensor = (uint32_t)t->order[0].lo;
    list_items(part, t, items);
    hl_plan_intervals_sort(&items, &scratch, t->items);
    size_t overlap = hl_plan_intervals_overlap(items, t->items);
    if (overlap && t->pieces > t->items && !runs_interleave(part, items, t->items)) {
        list_pieces(part, t, items);
        hl_plan_intervals_sort(&items, &scratch, t->pieces);
        overlap = hl_plan_intervals_overlap(items, t->pieces);
    } else if (t->pieces > t->items) {
        overlap = 0;
    }
    hl_status status = overlap ? fail_overlap(tensor, &items[overlap], err) : HL_OK;
    free(memory);
    return status;
}

/* Sections whose tensor is order[0].lo, up to `count` of them. */
static struct tensor_sections take_tensor(const struct hl_plan_part *part,
                                          const struct hl_plan_interval *order, size_t count)
{
    struct tensor_sections t = {.order = order};
    for (; t.count < count && order[t.count].lo == order[0].lo; t.count++) {
        const struct hl_plan_section *s = &part->sections[order[t.count].tag[0]];
        t.items += s->range_count + (uint64_t)s->run_count;
        t.pieces += s->range_count;
        for (uint32_t i = 0; i < s->run_count; i++)
            t.pieces += part->runs[s->first_run + i].rows;
    }
    return t;
}

static bool tensor_ascends(const struct hl_plan_part *part, const struct tensor_sections *t)
{
    uint64_t end = 0;
    for (size_t k = 0; k < t->count; k++)
        if (!section_ascends(part, &part->sections[t->order[k].tag[0]], &end))
            return false;
    return true;
}

hl_status hl_plan_check_destinations(const struct hl_plan_part *part, hl_error *err)
{
    size_t sections = part->header->section_count, count = 0;
    struct hl_plan_interval *memory = hl_plan_allocate(2 * sections, sizeof *memory);
    if (!memory)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory to sort %zu sections", sections);
    struct hl_plan_interval *order = memory, *scratch = memory + sections;
    for (size_t i = 0; i < sections; i++)
        if (part->sections[i].range_count || part->sections[i].run_count)
            order[count++] =
                (struct hl_plan_interval){.lo = part->sections[i].tensor, .tag = {(uint32_t)i, 0}};
    hl_plan_intervals_sort(&order, &scratch, count);

    hl_status status = HL_OK;
    for (size_t from = 0; status == HL_OK && from < count;) {
        struct tensor_sections t = take_tensor(part, order + from, count - from);
        if (!tensor_ascends(part, &t))
            status = check_sorted(part, &t, err);
        from += t.count;
    }
    free(memory);
    return status;
}
