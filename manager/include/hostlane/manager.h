/* The Manager: keeps published KV blocks in pinned arenas and grants engines the right to copy them. The
 * daemon hostlane-manager runs exactly this, in a process of its own; tests and small tools embed it. */
#ifndef HOSTLANE_MANAGER_H
#define HOSTLANE_MANAGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hostlane/limits.h"
#include "hostlane/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hl_manager hl_manager;

#define HL_MANAGER_SPIN_US 10000u /* most that spin_us may be: sockets wait as long */

enum hl_manager_log_level { HL_MANAGER_DEBUG, HL_MANAGER_INFO, HL_MANAGER_WARNING, HL_MANAGER_ERROR };

typedef struct hl_manager_options {
    size_t size;             /* set by hl_manager_options_init() */
    const char *socket_path; /* in a folder of mode 0700, made when missing */
    uint64_t arena_bytes;    /* of each arena; rounded up to the page size */
    uint32_t arena_count;    /* 1 to HL_ARENA_IMPORTS */
    int page_size;           /* 0: regular pages, 1: 2 MiB, 2: 1 GiB */
    int numa_node;           /* of all arenas; -1: the first device's, -2: no preference */
    uint32_t touch_threads;  /* 0: as many as the node has CPUs */
    uint32_t index_blocks;   /* most blocks in the index */
    uint32_t lease_ttl_ms;   /* of a lease whose query asks for no other; also the longest it may ask for */
    uint64_t session_bytes;  /* bytes that one session's leases and restores may hold; 0: all arenas */
    uint32_t spin_us;        /* the dispatcher watches the dirty bitsets so long before it sleeps */
    bool software;           /* use software devices even where CUDA is there */
    /* May be NULL. Called by the Manager's threads, one at a time; must not call the Manager. */
    void (*log)(void *user, enum hl_manager_log_level level, const char *text);
    void *log_user;
    void (*progress)(void *user, const char *stage, uint64_t done_bytes,
                     uint64_t total_bytes); /* while pinning */
    void *progress_user;
} hl_manager_options;
HL_API void hl_manager_options_init(hl_manager_options *options);

/* Creates and pins the arenas, listens, and returns once clients can connect. Refusals name what to change:
 * HL_E_BUSY (a live Manager has the socket), HL_E_NOMEM (memory, huge pages), HL_E_PERMISSION (folder,
 * socket of another user), HL_E_INVALID or HL_E_LIMIT (an option, which is named), HL_E_SYSTEM (limits that
 * cannot be read, memory that cannot be sealed). */
HL_API hl_status hl_manager_start(const hl_manager_options *options, hl_manager **manager, hl_error *err);

/* Stops admission, ends the sessions, waits for running publishes and for engines that are copying; then
 * frees. Operations in quarantine stay: their count is returned, and their arenas are deliberately not freed.
 * NULL is allowed. */
HL_API uint32_t hl_manager_stop(hl_manager *manager);

typedef struct hl_manager_snapshot {
    uint64_t epoch;
    uint32_t sessions;   /* live */
    uint32_t unresolved; /* ended, with operations in quarantine */
    uint32_t bindings;
    uint32_t leases;
    uint32_t operations; /* admitted and not reaped, quarantine included */
    uint32_t quarantined;
    uint64_t blocks;
    uint64_t block_bytes;
    uint64_t arena_bytes;
    uint64_t arena_used_bytes;
    uint64_t reserved_bytes;                              /* by leases and operations */
    uint64_t plan_bytes;                                  /* prepared parts */
    uint64_t published_blocks, evicted_blocks;            /* since the start */
    uint64_t restored, rejected, revoked, restored_bytes; /* operations since the start */
} hl_manager_snapshot;
HL_API hl_status hl_manager_stats(hl_manager *manager, hl_manager_snapshot *snapshot, hl_error *err);

/* Asserts I2: every credit is accounted for by a live owner. HL_E_STATE names the first that is not. */
HL_API hl_status hl_manager_check(hl_manager *manager, hl_error *err);

#ifdef __cplusplus
}
#endif

#endif
