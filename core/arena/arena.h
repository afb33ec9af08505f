/* core/arena owns the host memory that DMA reads: sealed memfd arenas, the allocator inside them, and their
 * registration with a device. It calls core/base and core/device. The Manager creates arenas; engines
 * import them.
 *
 * An arena is one memfd, MAP_SHARED, sealed against shrinking, growing and new seals, populated before any
 * DMA. No name ever appears in /dev/shm. The creator allocates in it; an importer only maps, checks and
 * registers it, and derives every pointer from its own mapping.
 *
 * Threads: alloc, free and stats of one arena may be called from any thread; the rest by one
 * owner at a time. */
#ifndef CORE_ARENA_ARENA_H
#define CORE_ARENA_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/device/device.h"
#include "hostlane/status.h"

typedef struct hl_arena hl_arena;
typedef struct hl_registration hl_registration;

enum hl_page_size { HL_PAGES_REGULAR, HL_PAGES_2M, HL_PAGES_1G };

/* Called now and then while pages are touched or registered, by the thread that called the arena function;
 * `done` never decreases and ends at `total`. */
typedef void (*hl_arena_progress)(void *user, const char *stage, uint64_t done_bytes, uint64_t total_bytes);

struct hl_arena_options {
    uint64_t arena_id;       /* chosen by the creator, unique in its process; never 0 */
    uint64_t bytes;          /* rounded up to the page size */
    enum hl_page_size pages; /* huge pages must be reserved; too few: HL_E_NOMEM, with how many are free */
    int numa_node;           /* where pages are touched and bound; -1: no preference */
    unsigned threads; /* that touch pages first; 0: one a CPU of the node; at most HL_ARENA_TOUCH_THREADS */
    uint64_t chunk_bytes; /* no allocation crosses a multiple of it; 0: HL_ARENA_CHUNK_BYTES, which is also
                           * the most; a multiple of the page size */
    hl_arena_progress progress; /* may be NULL */
    void *progress_user;
};

/* Creates, seals and populates an arena. HL_E_INVALID, HL_E_RANGE (a numa_node that does not exist) or
 * HL_E_LIMIT names the option; HL_E_NOMEM when the machine, the node or the cgroup has too little, found out
 * before any page is taken where the kernel says it; HL_E_SYSTEM when a system call fails. Where containers
 * forbid mbind, first touch alone places pages. */
hl_status hl_arena_create(const struct hl_arena_options *options, hl_arena **arena, hl_error *err);

/* Maps another process's arena from its fd (borrowed; duplicated inside). HL_E_PERMISSION unless it is a
 * memfd that may be written with exactly the size seals (and F_SEAL_EXEC, which newer kernels add),
 * HL_E_RANGE when its size is not `bytes`, HL_E_INVALID for a zero id or size, an fd that is not open, or a
 * size that is no multiple of the page size. */
hl_status hl_arena_import(int fd, uint64_t arena_id, uint64_t bytes, uint64_t chunk_bytes, hl_arena **arena,
                          hl_error *err);

/* Unmaps and closes (NULL is allowed). Every registration of it has been released. */
void hl_arena_destroy(hl_arena *arena);

uint64_t hl_arena_id(const hl_arena *arena);
uint64_t hl_arena_bytes(const hl_arena *arena);
uint64_t hl_arena_chunk_bytes(const hl_arena *arena);
int hl_arena_fd(const hl_arena *arena);     /* owned by the arena; for SCM_RIGHTS */
void *hl_arena_base(const hl_arena *arena); /* this process's mapping */

/* --- allocation, in an arena that this process created; in an imported one the three calls give HL_E_STATE,
 * and the stats hold `bytes` only --- */

struct hl_allocation {
    uint64_t id;     /* 1, 2, 3, … in each arena; never used again, also when the offset is */
    uint64_t offset; /* from the arena's start, a multiple of HL_ARENA_ALIGN */
    uint64_t bytes;  /* as asked for, rounded up to HL_ARENA_ALIGN */
};

struct hl_arena_stats {
    uint64_t bytes;        /* of the arena */
    uint64_t used_bytes;   /* in live allocations */
    uint64_t free_bytes;   /* the rest */
    uint64_t largest_free; /* the largest request that would succeed now */
    uint64_t live;         /* allocations */
    uint64_t free_ranges;  /* 1 - largest_free / free_bytes is the external fragmentation */
    uint64_t last_id;
};

/* HL_E_NOSPACE when no free range fits, HL_E_INVALID for 0 bytes, HL_E_RANGE for more than a chunk. O(log n).
 */
hl_status hl_arena_alloc(hl_arena *arena, uint64_t bytes, struct hl_allocation *allocation, hl_error *err);

/* HL_E_NOT_FOUND when no live allocation has this id (freed before, or never given). O(log n) or better. */
hl_status hl_arena_free(hl_arena *arena, uint64_t allocation_id, hl_error *err);

/* Looks a live allocation up by id. HL_E_NOT_FOUND as above. */
hl_status hl_arena_find(const hl_arena *arena, uint64_t allocation_id, struct hl_allocation *allocation,
                        hl_error *err);

void hl_arena_get_stats(const hl_arena *arena, struct hl_arena_stats *stats);

/* --- registration with a device --- */

/* Registers the whole arena in chunks of chunk_bytes; when a chunk fails, those before it are unregistered
 * again and the error names the chunk. The arena must outlive the registration. Enters the device itself. */
hl_status hl_arena_register(hl_arena *arena, hl_device *dev, hl_arena_progress progress, void *progress_user,
                            hl_registration **registration, hl_error *err);

/* Unregisters (NULL is allowed); no DMA may use it any more. */
void hl_registration_release(hl_registration *registration);

const hl_arena *hl_registration_arena(const hl_registration *registration);

/* The device-visible address of [offset, offset + bytes). HL_E_RANGE when it leaves the arena or crosses a
 * chunk. */
hl_status hl_registration_pointer(const hl_registration *registration, uint64_t offset, uint64_t bytes,
                                  hl_devptr *ptr, hl_error *err);

#endif
