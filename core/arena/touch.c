#include "core/arena/touch.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "core/base/checked.h"
#include "core/base/error.h"
#include "hostlane/limits.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

/* Small enough that progress is seen and threads end together, large enough that a call is cheap beside its
 * pages. */
#define SLICE_LEAST (2 * HL_MIB)
#define SLICE_MOST (64 * HL_MIB)

struct crew {
    const struct hl_touch *touch;
    uint64_t slice_bytes;
    atomic_uint_least64_t next; /* offset of the next slice that nobody has taken */
    pthread_mutex_t lock;       /* guards what follows */
    pthread_cond_t changed;
    uint64_t done_bytes;
    unsigned running; /* threads that may still add to done_bytes */
    int failed;       /* errno of the first failure; slices not yet taken are left */
    uint64_t failed_at;
};

/* For kernels without MADV_POPULATE_WRITE. fallocate() makes the pages exist and reports when there are none,
 * where a store would raise SIGBUS; the store after it only maps them. (It takes the file's lock, so it does
 * not run in parallel.) The pages are zero, so storing a zero changes nothing. */
static int reserve_and_write(const struct hl_touch *touch, uint64_t offset, uint64_t bytes)
{
    while (fallocate(touch->fd, 0, (off_t)offset, (off_t)bytes) != 0)
        if (errno != EINTR)
            return errno;
    for (uint64_t at = offset; at < offset + bytes; at += touch->page_bytes)
        *(volatile unsigned char *)(touch->base + at) = 0;
    return 0;
}

static int touch_slice(const struct hl_touch *touch, uint64_t offset, uint64_t bytes)
{
    while (!touch->without_populate) {
        if (madvise(touch->base + offset, bytes, MADV_POPULATE_WRITE) == 0)
            return 0;
        if (errno == EINVAL)
            break;
        if (errno != EINTR && errno != EAGAIN)
            return errno;
    }
    return reserve_and_write(touch, offset, bytes);
}

/* Takes one slice and touches it; false when none is left or one has failed. */
static bool touch_next(struct crew *crew)
{
    const struct hl_touch *touch = crew->touch;
    uint64_t offset = atomic_fetch_add(&crew->next, crew->slice_bytes);
    if (offset >= touch->bytes)
        return false;
    uint64_t left = touch->bytes - offset;
    uint64_t bytes = left < crew->slice_bytes ? left : crew->slice_bytes;
    int error = touch_slice(touch, offset, bytes);
    pthread_mutex_lock(&crew->lock);
    if (error == 0) {
        crew->done_bytes += bytes;
    } else if (crew->failed == 0) {
        crew->failed = error;
        crew->failed_at = offset;
    }
    bool go_on = crew->failed == 0;
    pthread_cond_signal(&crew->changed);
    pthread_mutex_unlock(&crew->lock);
    return go_on;
}

static void *work(void *user)
{
    struct crew *crew = user;
    const cpu_set_t *cpus = crew->touch->cpus;
    /* A thread that may not be moved still touches its share; the mapping's own policy (mbind) also decides
     * where. */
    if (cpus && CPU_COUNT(cpus) > 0)
        pthread_setaffinity_np(pthread_self(), sizeof *cpus, cpus);
    while (touch_next(crew))
        continue;
    pthread_mutex_lock(&crew->lock);
    crew->running--;
    pthread_cond_signal(&crew->changed);
    pthread_mutex_unlock(&crew->lock);
    return NULL;
}

static void report(const struct hl_touch *touch, uint64_t done_bytes)
{
    if (touch->progress)
        touch->progress(touch->progress_user, "touch", done_bytes, touch->bytes);
}

/* Reports from the calling thread, outside the lock, until every thread has ended. */
static void watch(struct crew *crew)
{
    uint64_t reported = 0;
    pthread_mutex_lock(&crew->lock);
    while (crew->running > 0 || crew->done_bytes > reported) {
        if (crew->done_bytes == reported) {
            pthread_cond_wait(&crew->changed, &crew->lock);
            continue;
        }
        reported = crew->done_bytes;
        pthread_mutex_unlock(&crew->lock);
        report(crew->touch, reported);
        pthread_mutex_lock(&crew->lock);
    }
    pthread_mutex_unlock(&crew->lock);
}

static uint64_t choose_slice(const struct hl_touch *touch)
{
    uint64_t share = touch->bytes / (8 * (touch->threads ? touch->threads : 1));
    share = share < SLICE_LEAST ? SLICE_LEAST : share > SLICE_MOST ? SLICE_MOST : share;
    return hl_align_up(share, touch->page_bytes);
}

static hl_status verdict(const struct crew *crew, hl_error *err)
{
    if (crew->failed == 0)
        return HL_OK;
    /* EFAULT: the store would have raised SIGBUS, which for a sealed memfd means that no page could be had.
     */
    bool no_memory = crew->failed == ENOMEM || crew->failed == EFAULT || crew->failed == ENOSPC;
    return HL_FAIL_ERRNO(err, no_memory ? HL_E_NOMEM : HL_E_SYSTEM, "arena.touch", crew->failed,
                         "cannot populate pages of %" PRIu64 " bytes from offset %" PRIu64 " of %" PRIu64
                         " on; %" PRIu64 " bytes were populated",
                         crew->touch->page_bytes, crew->failed_at, crew->touch->bytes, crew->done_bytes);
}

hl_status hl_touch_pages(const struct hl_touch *touch, hl_error *err)
{
    assert(touch->bytes > 0 && touch->bytes % touch->page_bytes == 0);
    assert(touch->slice_bytes % touch->page_bytes == 0 && touch->threads <= HL_ARENA_TOUCH_THREADS);
    struct crew crew = {.touch = touch,
                        .slice_bytes = touch->slice_bytes ? touch->slice_bytes : choose_slice(touch)};
    pthread_t threads[HL_ARENA_TOUCH_THREADS];
    unsigned started = 0;
    int (*start)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) =
        touch->start ? touch->start : pthread_create;
    pthread_mutex_init(&crew.lock, NULL);
    pthread_cond_init(&crew.changed, NULL);
    report(touch, 0);
    for (; started < touch->threads; started++) {
        pthread_mutex_lock(&crew.lock);
        crew.running++;
        pthread_mutex_unlock(&crew.lock);
        if (start(&threads[started], NULL, work, &crew) != 0) {
            pthread_mutex_lock(&crew.lock);
            crew.running--;
            pthread_mutex_unlock(&crew.lock);
            break; /* with those there are, or alone */
        }
    }
    if (started > 0)
        watch(&crew);
    else
        while (touch_next(&crew))
            report(touch, crew.done_bytes);
    for (unsigned i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    pthread_cond_destroy(&crew.changed);
    pthread_mutex_destroy(&crew.lock);
    return verdict(&crew, err);
}
