#include <stdlib.h>

#include "core/arena/ranges.h"
#include "hostlane/limits.h"

struct tree_walk {
    const struct hl_range *last; /* in the tree's order */
    uint64_t count;
    const char *broken;
};

static int checked_height(const struct hl_range *range, struct tree_walk *walk)
{
    if (!range)
        return 0;
    if (!range->is_free) {
        walk->broken = "the tree holds an allocated range"; /* its links mean something else */
        return 0;
    }
    int left = checked_height(range->free.left, walk);
    if (walk->last && (walk->last->bytes > range->bytes ||
                       (walk->last->bytes == range->bytes && walk->last->offset >= range->offset)))
        walk->broken = "the tree is not in order";
    walk->last = range;
    walk->count++;
    int right = checked_height(range->free.right, walk);
    if (abs(left - right) > 1 || range->height != (left > right ? left : right) + 1)
        walk->broken = "the tree is out of balance";
    return (left > right ? left : right) + 1;
}

struct list_walk {
    uint64_t end;
    uint64_t used_bytes;
    uint64_t live;
    uint64_t free_ranges;
};

static const char *check_range(const hl_allocator *allocator, const struct hl_range *range,
                               struct list_walk *walk)
{
    const struct hl_range *before = range->before;
    uint64_t chunk = allocator->chunk_bytes;
    if (range->offset != walk->end)
        return "the ranges leave a gap or overlap";
    if (range->bytes == 0 || range->bytes % HL_ARENA_ALIGN != 0)
        return "a range has a bad size";
    if (range->offset / chunk != (range->offset + range->bytes - 1) / chunk)
        return "a range crosses a chunk";
    if (range->after && range->after->before != range)
        return "the list is not linked both ways";
    if (range->is_free && before && before->is_free && range->offset % chunk != 0)
        return "two free neighbours have not been merged";
    if (!range->is_free && hl_id_table_find(&allocator->table, range->used.id) != range)
        return "the table does not find an allocation";
    if (!range->is_free && range->used.id > allocator->last_id)
        return "an allocation has an id that was never given";
    walk->end += range->bytes;
    walk->used_bytes += range->is_free ? 0 : range->bytes;
    walk->live += !range->is_free;
    walk->free_ranges += range->is_free;
    return NULL;
}

static const char *verify_locked(const hl_allocator *allocator)
{
    struct list_walk list = {0};
    for (const struct hl_range *range = allocator->first; range; range = range->after) {
        const char *broken = check_range(allocator, range, &list);
        if (broken)
            return broken;
    }
    if (list.end != allocator->bytes)
        return "the ranges do not cover the space";
    if (list.used_bytes != allocator->used_bytes || list.live != allocator->live)
        return "the counters of live allocations are wrong";
    if (list.free_ranges != allocator->free_ranges)
        return "the counter of free ranges is wrong";
    if (allocator->table.entries != list.live)
        return "the table holds more or less than the live allocations";
    struct tree_walk tree = {0};
    checked_height(allocator->tree, &tree);
    if (!tree.broken && tree.count != list.free_ranges)
        return "the tree holds more or less than the free ranges";
    return tree.broken;
}

const char *hl_allocator_verify(hl_allocator *allocator)
{
    pthread_mutex_lock(&allocator->lock);
    const char *broken = verify_locked(allocator);
    pthread_mutex_unlock(&allocator->lock);
    return broken;
}
