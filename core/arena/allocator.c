#include "core/arena/allocator.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "core/arena/ranges.h"
#include "core/base/checked.h"
#include "core/base/error.h"
#include "hostlane/limits.h"

static void *get_zeroed(void *user, size_t bytes)
{
    (void)user;
    return calloc(1, bytes);
}

static void put_back(void *user, void *memory)
{
    (void)user;
    free(memory);
}

static const struct hl_allocator_memory c_library = {get_zeroed, put_back, NULL};

/* --- records --- */

static struct hl_range *take_record(hl_allocator *allocator)
{
    if (!allocator->spare) {
        struct hl_range_slab *slab = allocator->memory.get(allocator->memory.user, sizeof *slab);
        if (!slab)
            return NULL;
        slab->next = allocator->slabs;
        allocator->slabs = slab;
        for (unsigned i = HL_RANGE_SLAB_RANGES; i-- > 0;) {
            slab->ranges[i].after = allocator->spare;
            allocator->spare = &slab->ranges[i];
        }
    }
    struct hl_range *range = allocator->spare;
    allocator->spare = range->after;
    return range;
}

static void give_record(hl_allocator *allocator, struct hl_range *range)
{
    range->after = allocator->spare;
    allocator->spare = range;
}

static void link_after(hl_allocator *allocator, struct hl_range *before, struct hl_range *range)
{
    range->before = before;
    range->after = before ? before->after : allocator->first;
    if (range->after)
        range->after->before = range;
    *(before ? &before->after : &allocator->first) = range;
}

static void unlink_range(hl_allocator *allocator, struct hl_range *range)
{
    *(range->before ? &range->before->after : &allocator->first) = range->after;
    if (range->after)
        range->after->before = range->before;
}

static void add_free(hl_allocator *allocator, struct hl_range *range)
{
    range->is_free = true;
    hl_free_tree_insert(&allocator->tree, range);
    allocator->free_ranges++;
}

static void drop_free(hl_allocator *allocator, struct hl_range *range)
{
    hl_free_tree_remove(&allocator->tree, range);
    range->is_free = false;
    allocator->free_ranges--;
}

/* --- the allocator --- */

static void release_records(hl_allocator *allocator)
{
    while (allocator->slabs) {
        struct hl_range_slab *slab = allocator->slabs;
        allocator->slabs = slab->next;
        allocator->memory.put(allocator->memory.user, slab);
    }
}

hl_status hl_allocator_create(uint64_t bytes, uint64_t chunk_bytes, const struct hl_allocator_memory *memory,
                              hl_allocator **out, hl_error *err)
{
    assert(bytes > 0 && bytes % HL_ARENA_ALIGN == 0);
    assert(chunk_bytes > 0 && chunk_bytes % HL_ARENA_ALIGN == 0);
    if (!memory)
        memory = &c_library;
    hl_allocator *allocator = memory->get(memory->user, sizeof *allocator);
    if (!allocator)
        return HL_FAIL(err, HL_E_NOMEM, "arena.allocator", "no memory for an allocator");
    allocator->memory = *memory;
    allocator->bytes = bytes;
    allocator->chunk_bytes = chunk_bytes;
    if (!hl_id_table_open(&allocator->table, &allocator->memory))
        goto err_free;
    struct hl_range *last = NULL;
    for (uint64_t offset = 0; offset < bytes; offset += last->bytes) {
        struct hl_range *range = take_record(allocator);
        if (!range)
            goto err_release;
        range->offset = offset;
        range->bytes = bytes - offset < chunk_bytes ? bytes - offset : chunk_bytes;
        link_after(allocator, last, range);
        add_free(allocator, range);
        last = range;
    }
    pthread_mutex_init(&allocator->lock, NULL);
    *out = allocator;
    return HL_OK;

err_release:
    release_records(allocator);
    hl_id_table_close(&allocator->table);
err_free:
    memory->put(memory->user, allocator);
    return HL_FAIL(err, HL_E_NOMEM, "arena.allocator", "no memory for the records of %" PRIu64 " chunks",
                   (bytes - 1) / chunk_bytes + 1);
}

void hl_allocator_destroy(hl_allocator *allocator)
{
    if (!allocator)
        return;
    struct hl_allocator_memory memory = allocator->memory;
    release_records(allocator);
    hl_id_table_close(&allocator->table);
    pthread_mutex_destroy(&allocator->lock);
    memory.put(memory.user, allocator);
}

/* Turns a part of `bytes` at the start of a free range into an allocation; `rest` becomes what remains (NULL:
 * nothing). */
static void carve(hl_allocator *allocator, struct hl_range *range, uint64_t bytes, struct hl_range *rest)
{
    drop_free(allocator, range);
    if (rest) {
        rest->offset = range->offset + bytes;
        rest->bytes = range->bytes - bytes;
        link_after(allocator, range, rest);
        add_free(allocator, rest);
    }
    range->bytes = bytes;
    range->used.id = ++allocator->last_id;
    hl_id_table_insert(&allocator->table, range);
    allocator->used_bytes += bytes;
    allocator->live++;
}

static hl_status alloc_locked(hl_allocator *allocator, uint64_t bytes, struct hl_allocation *allocation,
                              hl_error *err)
{
    struct hl_range *range = hl_free_tree_fit(allocator->tree, bytes), *rest = NULL;
    if (!range) {
        struct hl_range *largest = hl_free_tree_largest(allocator->tree);
        return HL_FAIL(err, HL_E_NOSPACE, "arena.alloc",
                       "no free range holds %" PRIu64 " bytes: %" PRIu64 " are free in %" PRIu64
                       " ranges, the largest of %" PRIu64,
                       bytes, allocator->bytes - allocator->used_bytes, allocator->free_ranges,
                       largest ? largest->bytes : 0);
    }
    if (range->bytes > bytes) {
        rest = take_record(allocator);
        if (!rest)
            return HL_FAIL(err, HL_E_NOMEM, "arena.alloc", "no memory for the record of %" PRIu64 " bytes",
                           bytes);
    }
    carve(allocator, range, bytes, rest);
    *allocation = (struct hl_allocation){range->used.id, range->offset, range->bytes};
    return HL_OK;
}

hl_status hl_allocator_alloc(hl_allocator *allocator, uint64_t bytes, struct hl_allocation *allocation,
                             hl_error *err)
{
    uint64_t most = allocator->bytes < allocator->chunk_bytes ? allocator->bytes : allocator->chunk_bytes;
    if (bytes == 0)
        return HL_FAIL(err, HL_E_INVALID, "arena.alloc", "bytes is 0");
    if (bytes > most)
        return HL_FAIL(err, HL_E_RANGE, "arena.alloc", "bytes is %" PRIu64 ", but a chunk has %" PRIu64,
                       bytes, most);
    pthread_mutex_lock(&allocator->lock);
    hl_status status = alloc_locked(allocator, hl_align_up(bytes, HL_ARENA_ALIGN), allocation, err);
    pthread_mutex_unlock(&allocator->lock);
    return status;
}

static hl_status not_found(const hl_allocator *allocator, const char *stage, uint64_t id, hl_error *err)
{
    bool was_given = id > 0 && id <= allocator->last_id;
    return HL_FAIL(err, HL_E_NOT_FOUND, stage, "allocation %" PRIu64 " %s", id,
                   was_given ? "has been freed" : "was never given");
}

/* Merges `range`, which is in no index, with free neighbours of its chunk and returns the whole. */
static struct hl_range *merge_neighbours(hl_allocator *allocator, struct hl_range *range)
{
    struct hl_range *after = range->after, *before = range->before;
    if (after && after->is_free && after->offset % allocator->chunk_bytes != 0) {
        drop_free(allocator, after);
        range->bytes += after->bytes;
        unlink_range(allocator, after);
        give_record(allocator, after);
    }
    if (before && before->is_free && range->offset % allocator->chunk_bytes != 0) {
        drop_free(allocator, before);
        before->bytes += range->bytes;
        unlink_range(allocator, range);
        give_record(allocator, range);
        return before;
    }
    return range;
}

hl_status hl_allocator_free(hl_allocator *allocator, uint64_t allocation_id, hl_error *err)
{
    hl_status status = HL_OK;
    pthread_mutex_lock(&allocator->lock);
    struct hl_range *range = hl_id_table_remove(&allocator->table, allocation_id);
    if (range) {
        allocator->used_bytes -= range->bytes;
        allocator->live--;
        add_free(allocator, merge_neighbours(allocator, range));
    } else {
        status = not_found(allocator, "arena.free", allocation_id, err);
    }
    pthread_mutex_unlock(&allocator->lock);
    return status;
}

hl_status hl_allocator_find(hl_allocator *allocator, uint64_t allocation_id, struct hl_allocation *allocation,
                            hl_error *err)
{
    hl_status status = HL_OK;
    pthread_mutex_lock(&allocator->lock);
    struct hl_range *range = hl_id_table_find(&allocator->table, allocation_id);
    if (range)
        *allocation = (struct hl_allocation){range->used.id, range->offset, range->bytes};
    else
        status = not_found(allocator, "arena.find", allocation_id, err);
    pthread_mutex_unlock(&allocator->lock);
    return status;
}

void hl_allocator_get_stats(hl_allocator *allocator, struct hl_arena_stats *stats)
{
    pthread_mutex_lock(&allocator->lock);
    struct hl_range *largest = hl_free_tree_largest(allocator->tree);
    *stats = (struct hl_arena_stats){
        .bytes = allocator->bytes,
        .used_bytes = allocator->used_bytes,
        .free_bytes = allocator->bytes - allocator->used_bytes,
        .largest_free = largest ? largest->bytes : 0,
        .live = allocator->live,
        .free_ranges = allocator->free_ranges,
        .last_id = allocator->last_id,
    };
    pthread_mutex_unlock(&allocator->lock);
}
