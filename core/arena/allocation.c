#include "core/arena/arena_private.h"
#include "core/base/error.h"

/* One owner decides what a range holds: the process that created the arena. */
static hl_status refuse_import(const hl_arena *arena, const char *stage, hl_error *err)
{
    return arena->allocator ? HL_OK : HL_FAIL(err, HL_E_STATE, stage, "the arena is another process's");
}

hl_status hl_arena_alloc(hl_arena *arena, uint64_t bytes, struct hl_allocation *allocation, hl_error *err)
{
    hl_status status = refuse_import(arena, "arena.alloc", err);
    return status == HL_OK ? hl_allocator_alloc(arena->allocator, bytes, allocation, err) : status;
}

hl_status hl_arena_free(hl_arena *arena, uint64_t allocation_id, hl_error *err)
{
    hl_status status = refuse_import(arena, "arena.free", err);
    return status == HL_OK ? hl_allocator_free(arena->allocator, allocation_id, err) : status;
}

hl_status hl_arena_find(const hl_arena *arena, uint64_t allocation_id, struct hl_allocation *allocation,
                        hl_error *err)
{
    hl_status status = refuse_import(arena, "arena.find", err);
    return status == HL_OK ? hl_allocator_find(arena->allocator, allocation_id, allocation, err) : status;
}

void hl_arena_get_stats(const hl_arena *arena, struct hl_arena_stats *stats)
{
    if (arena->allocator)
        hl_allocator_get_stats(arena->allocator, stats);
    else
        *stats = (struct hl_arena_stats){.bytes = arena->bytes}; /* only its creator knows the rest */
}
