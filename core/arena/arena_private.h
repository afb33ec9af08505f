/* What memory.c, import.c and registration.c share. */
#ifndef CORE_ARENA_ARENA_PRIVATE_H
#define CORE_ARENA_ARENA_PRIVATE_H

#include <fcntl.h>
#include <stdatomic.h>

#include "core/arena/allocator.h"
#include "core/arena/arena.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef F_SEAL_EXEC
#define F_SEAL_EXEC 0x0020 /* Linux 6.3 */
#endif

/* The seals of every arena. With them no process can make a mapping's pages vanish, so no access raises
 * SIGBUS. */
#define HL_ARENA_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

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
