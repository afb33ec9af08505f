/* From targets to pieces.
 *
 * STAGING packs targets, in their order, into slots. A target that goes on where the one before it ended, in
 * device memory, follows it without a gap, so that one copy serves both; others begin at a multiple of
 * HL_UPLOAD_ALIGN. A target larger than what is left of a slot is split there.
 *
 * REGISTERED covers targets, in their order, with ranges of whole pages. A range grows, also downwards, while
 * it stays within the chunk's size; a target that passes its end is split at a page, so that two ranges of a
 * file that is sent in order have no page in common. Where they have (in another order), the later one waits
 * for the earlier: a page cannot be registered twice. */
#include <assert.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/base/checked.h"
#include "core/weights/upload/work.h"

#define STAGE "upload.plan"

/* The first pieces are smaller by this, so that the device starts before a whole slot is full, and the last
 * of STAGING, so that workers end together. */
#define RAMP 8u

struct planner {
    const hl_weight_upload_options *options;
    struct hl_upload_plan *plan;
    uint64_t most; /* of one piece */
    uint64_t tail; /* STAGING: of the bytes in all, from where on pieces are smaller */
    uint64_t page;
    uint64_t piece_bytes; /* of plan->bytes, in the last piece */
    hl_error *err;
};

static hl_status grow(void **array, size_t *capacity, size_t element, hl_error *err)
{
    size_t larger = *capacity ? 2 * *capacity : 64;
    void *moved = reallocarray(*array, larger, element);
    if (!moved)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for a plan of %zu entries", larger);
    *array = moved;
    *capacity = larger;
    return HL_OK;
}

static struct hl_upload_piece *last_piece(const struct hl_upload_plan *plan)
{
    return plan->piece_count ? &plan->pieces[plan->piece_count - 1] : NULL;
}

static hl_status open_piece(struct planner *planner, size_t target, const struct hl_upload_piece *empty)
{
    struct hl_upload_plan *plan = planner->plan;
    void *pieces = plan->pieces;
    if (plan->piece_count == plan->piece_capacity) {
        hl_status status = grow(&pieces, &plan->piece_capacity, sizeof *plan->pieces, planner->err);
        if (status)
            return status;
        plan->pieces = pieces;
    }
    assert(plan->pieces);
    struct hl_upload_piece *piece = &plan->pieces[plan->piece_count++];
    *piece = *empty;
    planner->piece_bytes = 0;
    piece->part = plan->part_count;
    piece->target = target;
    piece->after = HL_UPLOAD_NONE;
    return HL_OK;
}

static hl_status add_part(struct planner *planner, const struct hl_upload_part *part)
{
    struct hl_upload_plan *plan = planner->plan;
    void *parts = plan->parts;
    if (plan->part_count == plan->part_capacity) {
        hl_status status = grow(&parts, &plan->part_capacity, sizeof *plan->parts, planner->err);
        if (status)
            return status;
        plan->parts = parts;
    }
    plan->parts[plan->part_count++] = *part;
    last_piece(plan)->part_count++;
    plan->bytes += part->bytes;
    planner->piece_bytes += part->bytes;
    return HL_OK;
}

/* What the last piece may hold. */
static uint64_t limit_of(const struct planner *planner)
{
    const struct hl_upload_plan *plan = planner->plan;
    const uint64_t ramped = planner->most / RAMP / planner->page * planner->page;
    const uint64_t begin = plan->bytes - planner->piece_bytes;
    const bool first = plan->piece_count <= planner->options->copy_threads;
    return (first || begin >= planner->tail) && ramped ? ramped : planner->most;
}

/* --- STAGING --- */

static bool follows(const struct hl_upload_part *last, const struct hl_upload_part *part)
{
    return last->dst + last->bytes == part->dst;
}

/* Appends bytes to the piece at `place`, to its last part where they also go on in the file. */
static hl_status append(struct planner *planner, struct hl_upload_piece *piece, struct hl_upload_part *part)
{
    struct hl_upload_plan *plan = planner->plan;
    struct hl_upload_part *last = piece->part_count ? &plan->parts[plan->part_count - 1] : NULL;
    piece->bytes = part->place + part->bytes;
    if (last && last->region == part->region && last->offset + last->bytes == part->offset &&
        follows(last, part) && last->place + last->bytes == part->place) {
        last->bytes += part->bytes;
        plan->bytes += part->bytes;
        planner->piece_bytes += part->bytes;
        return HL_OK;
    }
    return add_part(planner, part);
}

static uint64_t place_in(const struct planner *planner, const struct hl_upload_piece *piece,
                         const struct hl_upload_part *part)
{
    const struct hl_upload_plan *plan = planner->plan;
    if (piece->part_count && follows(&plan->parts[plan->part_count - 1], part))
        return piece->bytes;
    return hl_align_up(piece->bytes, HL_UPLOAD_ALIGN);
}

static hl_status pack(struct planner *planner, const struct hl_upload_target *target, size_t index)
{
    static const struct hl_upload_piece empty;
    struct hl_upload_plan *plan = planner->plan;
    uint64_t done = 0;
    while (done < target->bytes) {
        struct hl_upload_piece *piece = last_piece(plan);
        struct hl_upload_part part = {
            .dst = target->dst + done, .offset = target->offset + done, .region = target->region};
        const uint64_t limit = piece ? limit_of(planner) : 0;
        part.place = piece ? place_in(planner, piece, &part) : 0;
        if (!piece || part.place >= limit || piece->part_count == HL_UPLOAD_PARTS) {
            hl_status status = open_piece(planner, index, &empty);
            if (status)
                return status;
            continue;
        }
        const uint64_t left = target->bytes - done;
        part.bytes = left < limit - part.place ? left : limit - part.place;
        done += part.bytes;
        hl_status status = append(planner, piece, &part);
        if (status)
            return status;
    }
    return HL_OK;
}

/* --- REGISTERED --- */

static int compare_ranges(const void *left, const void *right)
{
    const struct hl_upload_piece *a = *(struct hl_upload_piece *const *)left;
    const struct hl_upload_piece *b = *(struct hl_upload_piece *const *)right;
    if (a->region != b->region)
        return a->region < b->region ? -1 : 1;
    return a->begin < b->begin ? -1 : a->begin > b->begin;
}

/* Whether any page is in two pieces; pieces without pages are in nobody's way. */
static hl_status find_disjoint(struct planner *planner)
{
    struct hl_upload_plan *plan = planner->plan;
    const struct hl_upload_piece **sorted = calloc(plan->piece_count, sizeof *sorted);
    size_t used = 0;
    if (!sorted)
        return HL_FAIL(planner->err, HL_E_NOMEM, STAGE, "no memory for %zu pieces", plan->piece_count);
    for (size_t i = 0; i < plan->piece_count; i++)
        if (plan->pieces[i].begin < plan->pieces[i].end)
            sorted[used++] = &plan->pieces[i];
    qsort(sorted, used, sizeof *sorted, compare_ranges);
    plan->disjoint = true;
    for (size_t i = 1; i < used; i++)
        if (sorted[i]->region == sorted[i - 1]->region && sorted[i]->begin < sorted[i - 1]->end)
            plan->disjoint = false;
    free(sorted);
    return HL_OK;
}

/* The latest of the pieces that may still be on their way with a page of [begin, end). */
static size_t find_shared(const struct hl_upload_plan *plan, size_t index)
{
    const struct hl_upload_piece *piece = &plan->pieces[index];
    for (size_t back = 1; back <= HL_UPLOAD_CHUNKS && back <= index; back++) {
        const struct hl_upload_piece *earlier = &plan->pieces[index - back];
        if (earlier->region == piece->region && earlier->begin < piece->end && piece->begin < earlier->end)
            return index - back;
    }
    return HL_UPLOAD_NONE;
}

/* How many bytes from `offset` on the piece can take, having grown for them; 0: none. */
static uint64_t cover(const struct planner *planner, struct hl_upload_piece *piece, uint64_t limit,
                      uint32_t region, uint64_t offset, uint64_t bytes)
{
    if (piece->region != region || piece->part_count == HL_UPLOAD_PARTS)
        return 0;
    const uint64_t first = offset / planner->page * planner->page;
    const uint64_t end = hl_align_up(offset + bytes, planner->page);
    const uint64_t low = first < piece->begin ? first : piece->begin;
    const uint64_t high = end > piece->end ? end : piece->end;
    if (high - low <= limit) {
        piece->begin = low;
        piece->end = high;
        return bytes;
    }
    if (offset < piece->begin || offset - piece->begin >= limit)
        return 0;
    piece->end = piece->begin + limit;
    return piece->end - offset;
}

static hl_status pin(struct planner *planner, const struct hl_upload_target *target, size_t index)
{
    struct hl_upload_plan *plan = planner->plan;
    uint64_t done = 0;
    while (done < target->bytes) {
        struct hl_upload_piece *piece = last_piece(plan);
        const uint64_t offset = target->offset + done;
        const uint64_t taken =
            piece ? cover(planner, piece, limit_of(planner), target->region, offset, target->bytes - done)
                  : 0;
        hl_status status;
        if (taken) {
            const struct hl_upload_part part = {
                .dst = target->dst + done, .offset = offset, .bytes = taken, .region = target->region};
            status = add_part(planner, &part);
            done += taken;
        } else {
            const uint64_t first = offset / planner->page * planner->page;
            const struct hl_upload_piece empty = {.region = target->region, .begin = first, .end = first};
            status = open_piece(planner, index, &empty);
        }
        if (status)
            return status;
    }
    return HL_OK;
}

/* --- both --- */

/* A target ends in the piece that holds its last byte; one without bytes where the one before it ended. */
static hl_status plan_targets(struct planner *planner, const struct hl_upload_target *targets, size_t count,
                              hl_status (*add)(struct planner *, const struct hl_upload_target *, size_t))
{
    static const struct hl_upload_piece empty;
    struct hl_upload_plan *plan = planner->plan;
    hl_status status = HL_OK;
    *plan = (struct hl_upload_plan){0};
    for (size_t i = 0; !status && i < count; i++) {
        status = add(planner, &targets[i], i);
        if (!status && !plan->piece_count)
            status = open_piece(planner, i, &empty);
        if (!status)
            last_piece(plan)->target_count++;
    }
    if (status)
        hl_upload_plan_free(plan);
    return status;
}

hl_status hl_upload_plan_staging(const hl_weight_upload_options *options,
                                 const struct hl_upload_target *targets, size_t count,
                                 struct hl_upload_plan *plan, hl_error *err)
{
    struct planner planner = {
        .options = options, .plan = plan, .most = options->slot_bytes, .page = 4096, .err = err};
    const uint64_t end = (uint64_t)options->copy_threads * options->slot_bytes / 2;
    for (size_t i = 0; i < count; i++)
        planner.tail += targets[i].bytes;
    planner.tail = planner.tail > end ? planner.tail - end : 0;
    return plan_targets(&planner, targets, count, pack);
}

uint64_t hl_upload_chunk_bytes(const hl_weight_upload_options *options)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    const uint64_t bytes = options->register_piece_bytes / page * page;
    return bytes ? bytes : page;
}

hl_status hl_upload_plan_registered(const hl_weight_upload_options *options,
                                    const struct hl_upload_target *targets, size_t count,
                                    struct hl_upload_plan *plan, hl_error *err)
{
    struct planner planner = {.options = options,
                              .plan = plan,
                              .most = hl_upload_chunk_bytes(options),
                              .page = (uint64_t)sysconf(_SC_PAGESIZE),
                              .tail = UINT64_MAX,
                              .err = err};
    hl_status status = plan_targets(&planner, targets, count, pin);
    if (status)
        return status;
    status = find_disjoint(&planner);
    if (status) {
        hl_upload_plan_free(plan);
        return status;
    }
    for (size_t i = 0; !plan->disjoint && i < plan->piece_count; i++)
        plan->pieces[i].after = find_shared(plan, i);
    return HL_OK;
}

void hl_upload_plan_free(struct hl_upload_plan *plan)
{
    free(plan->parts);
    free(plan->pieces);
    *plan = (struct hl_upload_plan){0};
}
