/* The allocator of one arena. It works on sizes alone: a space of 16 TiB needs no memory but that of its
 * records.
 *
 * Best fit with the lowest address among equals, and immediate merging, so that what one sequence of calls
 * does is the same on every machine. Records live outside the arena. All calls are O(log n) in the number of
 * ranges and thread-safe. */
#ifndef CORE_ARENA_ALLOCATOR_H
#define CORE_ARENA_ALLOCATOR_H

#include "core/arena/arena.h"

typedef struct hl_allocator hl_allocator;

/* Where the records come from; `get` returns zeroed memory or NULL. */
struct hl_allocator_memory {
    void *(*get)(void *user, size_t bytes);
    void (*put)(void *user, void *memory);
    void *user;
};

/* A space of `bytes` in chunks of `chunk_bytes` (the last one may be shorter), both multiples of
 * HL_ARENA_ALIGN. `memory` is copied; NULL: the C library's. HL_E_NOMEM when there is no memory for the first
 * records. */
hl_status hl_allocator_create(uint64_t bytes, uint64_t chunk_bytes, const struct hl_allocator_memory *memory,
                              hl_allocator **allocator, hl_error *err);
void hl_allocator_destroy(hl_allocator *allocator); /* NULL is allowed; live allocations are forgotten */

/* As hl_arena_alloc() and its neighbours say. HL_E_NOMEM when a record could not be had; nothing has changed
 * then. */
hl_status hl_allocator_alloc(hl_allocator *allocator, uint64_t bytes, struct hl_allocation *allocation,
                             hl_error *err);
hl_status hl_allocator_free(hl_allocator *allocator, uint64_t allocation_id, hl_error *err);
hl_status hl_allocator_find(hl_allocator *allocator, uint64_t allocation_id, struct hl_allocation *allocation,
                            hl_error *err);
void hl_allocator_get_stats(hl_allocator *allocator, struct hl_arena_stats *stats);

/* Walks every record and returns NULL, or what does not hold (a string constant). O(n log n); for tests. */
const char *hl_allocator_verify(hl_allocator *allocator);

#endif
