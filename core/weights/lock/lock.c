#include "core/weights/lock/lock.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "faults/hook.h"

#define STAGE "weights.lock"

static const int64_t first_pause_ns = 100 * 1000, longest_pause_ns = 50 * 1000 * 1000;

void hl_lock_name(enum hl_lock_kind kind, const char *key, char name[HL_LOCK_NAME_BYTES])
{
    int length = 0;
    switch (kind) {
    case HL_LOCK_DOMAIN_INIT:
        length = snprintf(name, HL_LOCK_NAME_BYTES, "domain-init.lock");
        break;
    case HL_LOCK_DOMAIN_BUILD:
        length = snprintf(name, HL_LOCK_NAME_BYTES, "domain-build.lock");
        break;
    case HL_LOCK_BUILD:
        length = snprintf(name, HL_LOCK_NAME_BYTES, "%s.build.lock", key);
        break;
    case HL_LOCK_ARTIFACT:
        length = snprintf(name, HL_LOCK_NAME_BYTES, "%s.artifact.lock", key);
        break;
    }
    assert(length > 0 && length < HL_LOCK_NAME_BYTES);
}

/* -1 and errno, or 0. O_NONBLOCK: a pipe in the place of the file must not make anybody wait. */
static int open_lock(int locks, const char *name, int flags, int *fd)
{
    struct stat st;
    long result = HL_FAULT_STEP(
        weights_lock_open,
        *fd = openat(locks, name, flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0600));
    if (result >= 0 && fstat(*fd, &st) == 0) {
        if (S_ISREG(st.st_mode))
            return 0;
        errno = EINVAL;
    }
    if (*fd >= 0) {
        const int kept = errno;
        close(*fd);
        errno = kept;
    }
    return -1;
}

/* 0: taken; -1 and errno, EWOULDBLOCK when somebody else has it. */
static int try_lock(int fd, enum hl_lock_mode mode)
{
    int result;
    do {
        result = flock(fd, (mode == HL_LOCK_SHARED ? LOCK_SH : LOCK_EX) | LOCK_NB);
    } while (result != 0 && errno == EINTR);
    if (result != 0 && errno == EACCES)
        errno = EWOULDBLOCK;
    return result;
}

static void pause_ns(int64_t ns)
{
    struct timespec duration = {.tv_sec = ns / HL_NS_PER_S, .tv_nsec = ns % HL_NS_PER_S};
    nanosleep(&duration, NULL); /* a signal only makes the next try come sooner */
}

/* Polls: flock() itself can wait, but not until a deadline. The last try comes at the deadline, not before.
 */
static hl_status wait_for(int fd, const char *name, enum hl_lock_mode mode, int64_t wait_ns, hl_error *err)
{
    int64_t deadline = INT64_MAX, pause = first_pause_ns;
    if (wait_ns >= 0 && __builtin_add_overflow(hl_clock_ns(), wait_ns, &deadline))
        deadline = INT64_MAX;
    for (;;) {
        const int64_t left = wait_ns == 0 ? 0 : deadline - hl_clock_ns();
        if (try_lock(fd, mode) == 0)
            return HL_OK;
        if (errno != EWOULDBLOCK)
            return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot lock %s", name);
        if (wait_ns == HL_LOCK_NOT_AT_ALL)
            return HL_FAIL(err, HL_E_BUSY, STAGE, "%s is held by somebody else", name);
        if (left <= 0)
            return HL_FAIL(err, HL_E_TIMEOUT, STAGE, "timed out waiting for %s", name);
        pause_ns(pause < left ? pause : left);
        pause = 2 * pause < longest_pause_ns ? 2 * pause : longest_pause_ns;
    }
}

hl_status hl_lock_take(int locks, enum hl_lock_kind kind, const char *key, enum hl_lock_mode mode,
                       int64_t wait_ns, bool read_only, struct hl_lock *lock, hl_error *err)
{
    char name[HL_LOCK_NAME_BYTES];
    int fd = -1;
    hl_lock_name(kind, key, name);
    if (open_lock(locks, name, read_only ? O_RDONLY : O_RDWR | O_CREAT, &fd) != 0)
        return HL_FAIL_ERRNO(err, read_only && errno == ENOENT ? HL_E_NOT_FOUND : HL_E_SYSTEM, STAGE, errno,
                             "cannot open the lock %s", name);
    hl_status status = wait_for(fd, name, mode, wait_ns, err);
    if (status != HL_OK) {
        close(fd);
        return status;
    }
    *lock = (struct hl_lock){.fd = fd, .mode = mode, .owner = getpid()};
    return HL_OK;
}

void hl_lock_release(struct hl_lock *lock)
{
    if (lock->fd < 0)
        return;
    /* Unlocked, not only closed: a child forked meanwhile may hold a duplicate, which would keep the lock. */
    if (lock->owner == getpid())
        flock(lock->fd, LOCK_UN);
    close(lock->fd);
    *lock = HL_LOCK_NONE;
}

hl_status hl_lock_is_active(int locks, enum hl_lock_kind kind, const char *key, bool *active, hl_error *err)
{
    char name[HL_LOCK_NAME_BYTES];
    int fd = -1;
    bool held;
    hl_lock_name(kind, key, name);
    if (open_lock(locks, name, O_RDONLY, &fd) != 0) {
        if (errno != ENOENT)
            return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot open the lock %s", name);
        *active = false;
        return HL_OK;
    }
    held = try_lock(fd, HL_LOCK_EXCLUSIVE) != 0;
    const int try_errno = errno;
    if (!held)
        flock(fd, LOCK_UN);
    close(fd);
    if (held && try_errno != EWOULDBLOCK)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, try_errno, "cannot try the lock %s", name);
    *active = held;
    return HL_OK;
}
