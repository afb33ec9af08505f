#include "core/channel/extents.h"

#include <assert.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/checked.h"
#include "core/base/error.h"

#define UNIT 64u /* a cache line: two requests never share one */

static const char stage[] = "channel.extents";

/* A piece of the space. `taken` is what was asked for, 0 while it is free. */
struct piece {
    uint32_t offset;
    uint32_t bytes; /* a multiple of UNIT */
    uint32_t taken;
};

/* The pieces lie in ascending order and cover the space without gaps; no two free ones touch. */
struct hl_extents {
    pthread_mutex_t lock;
    struct piece *pieces;
    size_t count;
    size_t capacity;
    uint32_t bytes; /* of the whole space */
};

hl_status hl_extents_create(uint32_t first, uint32_t end, hl_extents **out, hl_error *err)
{
    assert(first < end && first % UNIT == 0 && end % UNIT == 0);
    hl_extents *extents = calloc(1, sizeof *extents);
    if (!extents)
        return HL_FAIL(err, HL_E_NOMEM, stage, "no memory for an account of extents");
    extents->capacity = 64;
    extents->pieces = calloc(extents->capacity, sizeof *extents->pieces);
    if (!extents->pieces) {
        free(extents);
        return HL_FAIL(err, HL_E_NOMEM, stage, "no memory for an account of extents");
    }
    pthread_mutex_init(&extents->lock, NULL);
    extents->bytes = end - first;
    extents->pieces[0] = (struct piece){.offset = first, .bytes = end - first};
    extents->count = 1;
    *out = extents;
    return HL_OK;
}

void hl_extents_destroy(hl_extents *extents)
{
    if (!extents)
        return;
    pthread_mutex_destroy(&extents->lock);
    free(extents->pieces);
    free(extents);
}

/* Room for one piece more, so that nothing can fail once a piece is split; giving back needs none. */
static bool make_room(hl_extents *extents)
{
    if (extents->count < extents->capacity)
        return true;
    size_t capacity = extents->capacity * 2;
    struct piece *pieces = reallocarray(extents->pieces, capacity, sizeof *pieces);
    if (!pieces)
        return false;
    extents->pieces = pieces;
    extents->capacity = capacity;
    return true;
}

static void remove_piece(hl_extents *extents, size_t i)
{
    struct piece *piece = &extents->pieces[i];
    extents->count--;
    memmove(piece, piece + 1, (extents->count - i) * sizeof *piece);
}

/* Makes the first `bytes` of a free piece a piece of their own. */
static void split_piece(hl_extents *extents, size_t i, uint32_t bytes)
{
    struct piece *piece = &extents->pieces[i];
    memmove(piece + 1, piece, (extents->count - i) * sizeof *piece);
    extents->count++;
    piece[0].bytes = bytes;
    piece[1].offset += bytes;
    piece[1].bytes -= bytes;
}

static hl_status take_locked(hl_extents *extents, uint32_t bytes, uint32_t *offset, hl_error *err)
{
    uint32_t space = (uint32_t)hl_align_up(bytes, UNIT);
    if (!make_room(extents))
        return HL_FAIL(err, HL_E_NOMEM, stage, "no memory for an account of %zu extents", extents->count);
    size_t i = 0;
    while (i < extents->count && (extents->pieces[i].taken > 0 || extents->pieces[i].bytes < space))
        i++;
    if (i == extents->count)
        return HL_FAIL(err, HL_E_BUDGET, stage,
                       "no gap of %u bytes is left in the descriptor memory's %u, in %zu pieces", space,
                       extents->bytes, extents->count);
    if (extents->pieces[i].bytes > space)
        split_piece(extents, i, space);
    extents->pieces[i].taken = bytes;
    *offset = extents->pieces[i].offset;
    return HL_OK;
}

hl_status hl_extents_take(hl_extents *extents, uint32_t bytes, uint32_t *offset, hl_error *err)
{
    if (bytes == 0)
        return HL_FAIL(err, HL_E_INVALID, stage, "bytes is 0");
    if (bytes > extents->bytes)
        return HL_FAIL(err, HL_E_LIMIT, stage, "bytes is %u, the descriptor memory has %u for requests",
                       bytes, extents->bytes);
    pthread_mutex_lock(&extents->lock);
    hl_status status = take_locked(extents, bytes, offset, err);
    pthread_mutex_unlock(&extents->lock);
    return status;
}

static size_t find_piece(const hl_extents *extents, uint32_t offset)
{
    size_t low = 0, high = extents->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (extents->pieces[middle].offset < offset)
            low = middle + 1;
        else
            high = middle;
    }
    assert(low < extents->count && extents->pieces[low].offset == offset);
    return low;
}

/* Merges a piece with the next one when both are free. */
static void merge_with_next(hl_extents *extents, size_t i)
{
    struct piece *piece = &extents->pieces[i];
    if (i + 1 == extents->count || piece[0].taken > 0 || piece[1].taken > 0)
        return;
    piece[0].bytes += piece[1].bytes;
    remove_piece(extents, i + 1);
}

void hl_extents_give(hl_extents *extents, uint32_t offset, uint32_t bytes)
{
    pthread_mutex_lock(&extents->lock);
    size_t i = find_piece(extents, offset);
    assert(bytes > 0 && extents->pieces[i].taken == bytes);
    extents->pieces[i].taken = 0;
    merge_with_next(extents, i);
    if (i > 0)
        merge_with_next(extents, i - 1);
    pthread_mutex_unlock(&extents->lock);
}
