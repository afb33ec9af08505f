/* What memory.c, import.c and registration.c share. */
#ifndef CORE_ARENA_ARENA_PRIVATE_H
#define CORE_ARENA_ARENA_PRIVATE_H

#include <stdatomic.h>

#include "core/arena/allocator.h"
#include "core/arena/arena.h"

struct hl_arena {
    uint64_t id;
    uint64_t bytes;
    uint64_t chunk_bytes;
    int fd;
    unsigned char *base;
    hl_allocator *allocator;   /* NULL in an imported arena */
    atomic_uint registrations; /* live hl_registration objects; destroying needs 0 */
};

/* Replaces 0 by HL_ARENA_CHUNK_BYTES and checks the rest. */
hl_status hl_arena_check_chunk(uint64_t *chunk_bytes, uint64_t page_bytes, const char *stage, hl_error *err);

/* Maps arena->bytes of arena->fd at arena->base. */
hl_status hl_arena_map(struct hl_arena *arena, const char *stage, hl_error *err);

#endif
