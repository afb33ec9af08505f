/* core/weights/lock owns the kernel file locks through which processes agree about artifacts: flock() on
 * files outside the artifacts, which are never deleted and mean nothing by existing. It calls
 * core/base and faults/hook; core/weights/store calls it.
 *
 * Order. [domain-build] → build → artifact (exclusive). A lookup takes the artifact lock alone, shared.
 * Nobody takes a lock to the left of one that he holds, and no lock is ever upgraded: a failed upgrade would
 * drop the shared lock.
 *
 * fork. A flock belongs to the open file description, which a child shares: unlocking there would release the
 * parent's lock. Only the process that took a lock unlocks it; in any other, releasing closes the descriptor
 * and nothing else. There is no pthread_atfork() hook: descriptors are close-on-exec, and an owner who
 * releases unlocks for all. Only an owner that dies without releasing leaves its lock to a child that has
 * neither exec'd nor closed it, until that child ends. */
#ifndef CORE_WEIGHTS_LOCK_LOCK_H
#define CORE_WEIGHTS_LOCK_LOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "hostlane/status.h"

enum hl_lock_kind {
    HL_LOCK_DOMAIN_INIT,  /* locks/domain-init.lock */
    HL_LOCK_DOMAIN_BUILD, /* locks/domain-build.lock */
    HL_LOCK_BUILD,        /* locks/KEY.build.lock */
    HL_LOCK_ARTIFACT      /* locks/KEY.artifact.lock */
};

enum hl_lock_mode { HL_LOCK_SHARED, HL_LOCK_EXCLUSIVE };

struct hl_lock {
    int fd; /* -1: not held */
    enum hl_lock_mode mode;
    pid_t owner; /* the process that took it */
};
#define HL_LOCK_NONE ((struct hl_lock){.fd = -1})

#define HL_LOCK_NAME_BYTES 96
void hl_lock_name(enum hl_lock_kind kind, const char *key, char name[HL_LOCK_NAME_BYTES]);

enum { HL_LOCK_NOT_AT_ALL = 0, HL_LOCK_FOREVER = -1 }; /* besides a time, as `wait_ns` */

/* Takes a lock in the folder `locks`. The file is created (0600, O_NOFOLLOW) when it is missing; with
 * `read_only` it is opened for reading only, and a missing one is HL_E_NOT_FOUND. Waits at most wait_ns:
 * polls with growing pauses of at most 50 ms, so a lock that becomes free is taken soon, and a signal does
 * not end the wait. HL_E_TIMEOUT (HL_E_BUSY when wait_ns is HL_LOCK_NOT_AT_ALL) names the file; HL_E_SYSTEM
 * with errno. */
hl_status hl_lock_take(int locks, enum hl_lock_kind kind, const char *key, enum hl_lock_mode mode,
                       int64_t wait_ns, bool read_only, struct hl_lock *lock, hl_error *err);

/* Releases and forgets; does nothing when not held. Always succeeds in letting go: closing the descriptor is
 * enough for the kernel, errors of flock() are not reported. */
void hl_lock_release(struct hl_lock *lock);

/* Whether anybody holds it now. A missing file: false. Creates nothing. It asks by taking the lock and giving
 * it back at once, so that somebody who does not wait may find it taken just then. HL_E_SYSTEM. */
hl_status hl_lock_is_active(int locks, enum hl_lock_kind kind, const char *key, bool *active, hl_error *err);

/* Up to `most` ids of processes that took it, each once, from /proc/locks; *count is how many were stored.
 * Best effort: 0 when the kernel does not say, or the holder is in another PID namespace. */
void hl_lock_holders(int locks, enum hl_lock_kind kind, const char *key, pid_t *holders, size_t most,
                     size_t *count);

#endif
