#include "core/weights/store/coverage.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/error.h"

#define STAGE "weights.writer"

static struct hl_span *span_at(const struct hl_coverage *coverage, size_t index)
{
    return coverage->spans +
           (index < coverage->head ? index : coverage->capacity - coverage->tail + (index - coverage->head));
}

static void move_room(struct hl_coverage *coverage, size_t to)
{
    struct hl_span *const spans = coverage->spans;
    const size_t tail_begin = coverage->capacity - coverage->tail;
    assert(spans);
    if (to < coverage->head) {
        const size_t count = coverage->head - to;
        memmove(spans + tail_begin - count, spans + to, count * sizeof *spans);
        coverage->tail += count;
    } else if (to > coverage->head) {
        const size_t count = to - coverage->head;
        memmove(spans + coverage->head, spans + tail_begin, count * sizeof *spans);
        coverage->tail -= count;
    }
    coverage->head = to;
}

static hl_status make_room(struct hl_coverage *coverage, hl_error *err)
{
    if (coverage->head + coverage->tail < coverage->capacity)
        return HL_OK;
    const size_t capacity = coverage->capacity ? 2 * coverage->capacity : 2;
    struct hl_span *spans = realloc(coverage->spans, capacity * sizeof *spans);
    if (!spans)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "cannot keep track of %zu ranges of a tensor", capacity);
    memmove(spans + capacity - coverage->tail, spans + coverage->capacity - coverage->tail,
            coverage->tail * sizeof *spans);
    coverage->spans = spans;
    coverage->capacity = capacity;
    return HL_OK;
}

/* Index of the first span that begins at or behind `begin`. */
static size_t first_behind(const struct hl_coverage *coverage, uint64_t begin)
{
    size_t low = 0, high = coverage->head + coverage->tail;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (span_at(coverage, middle)->begin < begin)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

hl_status hl_coverage_add(struct hl_coverage *coverage, uint64_t begin, uint64_t end, hl_error *err)
{
    if (begin == end)
        return HL_OK;
    const size_t at = first_behind(coverage, begin);
    struct hl_span *const left = at > 0 ? span_at(coverage, at - 1) : NULL;
    struct hl_span *const right = at < coverage->head + coverage->tail ? span_at(coverage, at) : NULL;
    if ((left && left->end > begin) || (right && right->begin < end))
        return HL_FAIL(err, HL_E_OVERLAP, STAGE,
                       "bytes %" PRIu64 " to %" PRIu64 " were written before, at least in part", begin, end);
    const bool joins_left = left && left->end == begin, joins_right = right && right->begin == end;
    if (joins_left && joins_right) {
        left->end = right->end;
        move_room(coverage, at);
        coverage->tail--;
    } else if (joins_left) {
        left->end = end;
    } else if (joins_right) {
        right->begin = begin;
    } else {
        const hl_status status = make_room(coverage, err);
        if (status)
            return status;
        move_room(coverage, at);
        assert(coverage->spans);
        coverage->spans[coverage->head++] = (struct hl_span){begin, end};
    }
    return HL_OK;
}

bool hl_coverage_complete(const struct hl_coverage *coverage, uint64_t size, uint64_t *gap)
{
    const struct hl_span *first = coverage->head + coverage->tail ? span_at(coverage, 0) : NULL;
    *gap = first && first->begin == 0 ? first->end : 0;
    return *gap == size;
}

void hl_coverage_free(struct hl_coverage *coverage)
{
    free(coverage->spans);
    *coverage = (struct hl_coverage){0};
}
