/* Arena space for blocks. The index knows whose a block is; an arena only knows that a range is taken. */
#include <assert.h>

#include "core/base/error.h"
#include "faults/hook.h"
#include "manager/state.h"

#define STAGE "manager.store"

/* Evictions for one block. Each frees a range of its own, so more are needed only where small blocks lie
 * between others that stay; the lock is held meanwhile. */
enum { EVICTIONS = 4096 };

/* The arena with most room goes first; the others follow, as free bytes may be in pieces. */
static hl_status take_free(hl_manager *manager, uint64_t bytes, uint32_t *arena,
                           struct hl_allocation *allocation, hl_error *err)
{
    struct hl_arena_stats stats;
    uint64_t most = 0;
    uint32_t best = HL_ARENA_IMPORTS;
    for (uint32_t i = 0; i < manager->arena_count; i++) {
        hl_arena_get_stats(manager->arenas[i], &stats);
        if (stats.largest_free >= bytes && (best == HL_ARENA_IMPORTS || stats.free_bytes > most)) {
            most = stats.free_bytes;
            best = i;
        }
    }
    if (best == HL_ARENA_IMPORTS)
        return HL_FAIL(err, HL_E_NOSPACE, STAGE, "no arena has %llu bytes in one piece",
                       (unsigned long long)bytes);
    hl_status status = hl_arena_alloc(manager->arenas[best], bytes, allocation, err);
    if (status == HL_OK)
        *arena = best;
    return status;
}

hl_status manager_store_evict(hl_manager *manager, uint32_t *arena, hl_error *err)
{
    struct hl_index_victim victim;
    hl_status status = hl_index_evict_next(manager->index, &victim, err);
    if (status != HL_OK)
        return status;
    HL_FAULT_STORE(manager_block_evict,
                   manager_store_give(manager, victim.source.arena, victim.source.allocation));
    manager->counters.evicted_blocks++;
    *arena = victim.source.arena;
    return HL_OK;
}

hl_status manager_store_take(hl_manager *manager, uint64_t bytes, uint32_t *arena,
                             struct hl_allocation *allocation, hl_error *err)
{
    uint64_t largest = 0;
    for (uint32_t i = 0; i < manager->arena_count; i++) {
        uint64_t fits = hl_arena_bytes(manager->arenas[i]);
        if (fits > hl_arena_chunk_bytes(manager->arenas[i]))
            fits = hl_arena_chunk_bytes(manager->arenas[i]);
        if (fits > largest)
            largest = fits;
    }
    if (largest > HL_INDEX_BLOCK_BYTES)
        largest = HL_INDEX_BLOCK_BYTES;
    if (bytes == 0 || bytes > largest)
        return HL_FAIL(err, HL_E_RANGE, STAGE,
                       "a block of %llu bytes; the largest that an arena holds is %llu",
                       (unsigned long long)bytes, (unsigned long long)largest);
    hl_status status = take_free(manager, bytes, arena, allocation, err);
    for (uint32_t i = 0; status == HL_E_NOSPACE && i < EVICTIONS; i++) {
        uint32_t from;
        if (manager_store_evict(manager, &from, NULL) != HL_OK)
            return HL_FAIL(err, HL_E_NOSPACE, STAGE,
                           "no room for a block of %llu bytes: every other block is in use",
                           (unsigned long long)bytes);
        status = hl_arena_alloc(manager->arenas[from], bytes, allocation, err);
        if (status == HL_OK)
            *arena = from;
    }
    return status;
}

void manager_store_give(hl_manager *manager, uint32_t arena, uint64_t allocation_id)
{
    assert(arena < manager->arena_count);
    hl_status status = hl_arena_free(manager->arenas[arena], allocation_id, NULL);
    assert(status == HL_OK);
    (void)status;
}
