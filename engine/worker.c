/* The native worker of one GPU: it follows its operations' records, watching them for a while and then
 * sleeping. One turn gives each operation one step in order of arrival, so that parts of several operations
 * interleave. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "engine/engine_internal.h"
#include "faults/hook.h"

/* How often a sleeping worker asks the device whether a copy has finished, for the device wakes nobody; more
 * often where the user lets it spin. The kernel's usual timer slack of 50 µs would double that. */
#define DEVICE_POLL_NS 50000ll
#define DEVICE_POLL_EAGER_NS 20000ll
#define TIMER_SLACK_NS 1000ul

void engine_worker_add(struct engine_worker *worker, hl_restore *restore)
{
    restore->next = NULL;
    *worker->incoming_tail = restore;
    worker->incoming_tail = &restore->next;
    atomic_store(&worker->news, true);
    engine_worker_wake(worker);
}

void engine_worker_wake(struct engine_worker *worker)
{
    if (atomic_exchange(&worker->asleep, false))
        engine_signal(worker->wake);
}

/* Returns whether the worker is to end when its list is empty. */
static bool take_incoming(struct engine_worker *worker, bool *happened)
{
    hl_engine *engine = worker->engine;
    hl_restore **tail = &worker->first;
    *happened = false;
    if (!atomic_load(&worker->news) || !atomic_exchange(&worker->news, false))
        return false;
    *happened = true;
    pthread_mutex_lock(&engine->lock);
    hl_restore *incoming = worker->incoming;
    worker->incoming = NULL;
    worker->incoming_tail = &worker->incoming;
    bool stop = worker->stop;
    pthread_mutex_unlock(&engine->lock);
    while (*tail)
        tail = &(*tail)->next;
    *tail = incoming;
    for (hl_restore *restore = incoming; restore; restore = restore->next)
        if (restore->start_ns)
            restore->stage_ns[HL_STAGE_DEQUEUED] = (uint64_t)(hl_clock_ns() - restore->start_ns);
    return stop;
}

/* A settled operation belongs to the retirement thread, which may free it at once. */
static bool look_at_all(struct engine_worker *worker)
{
    bool happened = false;
    hl_restore **link = &worker->first;
    while (*link) {
        hl_restore *restore = *link, *next = restore->next;
        bool settled = false;
        happened = engine_operation_look(worker, restore, &settled) || happened;
        if (settled)
            *link = next;
        else
            link = &restore->next;
    }
    return happened;
}

static bool is_copying(const struct engine_worker *worker)
{
    const hl_restore *restore = worker->first;
    while (restore && !restore->copying)
        restore = restore->next;
    return restore != NULL;
}

/* Until somebody signals, or for as long as may pass before a look is due. Both eventfds are edges that
 * nobody reads, so that one call does it. */
static void sleep_until_news(struct engine_worker *worker)
{
    struct epoll_event events[2];
    int64_t poll_ns = worker->engine->options.spin_us > 0 ? DEVICE_POLL_EAGER_NS : DEVICE_POLL_NS;
    int64_t ns = is_copying(worker) ? poll_ns : worker->engine->tuning.tick_ns;
    struct timespec timeout = {.tv_sec = ns / HL_NS_PER_S, .tv_nsec = ns % HL_NS_PER_S};
    const struct timespec *until = worker->first ? &timeout : NULL;
    if (epoll_pwait2(worker->epoll, events, 2, until, NULL) >= 0 || errno != ENOSYS)
        return;
    struct pollfd ready = {.fd = worker->epoll, .events = POLLIN}; /* before Linux 5.11, and in gVisor */
    if (ppoll(&ready, 1, until, NULL) > 0)
        epoll_wait(worker->epoll, events, 2, 0);
}

static void *work(void *argument)
{
    struct engine_worker *worker = argument;
    int64_t spin_ns = (int64_t)worker->engine->options.spin_us * 1000, spin_end = 0;
    bool stop = false, flagged = false;
    prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS);
    pthread_setname_np(pthread_self(), "hl-worker");
    for (;;) {
        bool happened;
        stop = take_incoming(worker, &happened) || stop;
        happened = look_at_all(worker) || happened;
        if (stop && !worker->first)
            return NULL;
        if (happened && spin_ns > 0)
            spin_end = hl_clock_ns() + spin_ns;
        /* Also with nothing to follow: the next operation then pays no wake-up. */
        if (happened || (spin_end > 0 && hl_clock_ns() < spin_end))
            continue;
        spin_end = 0;
        /* One more turn with the flag up: whoever has changed something before saw no reason to signal. */
        if (!flagged) {
            atomic_store(&worker->asleep, true);
            flagged = true;
            continue;
        }
        sleep_until_news(worker);
        atomic_store(&worker->asleep, false);
        flagged = false;
        spin_end = spin_ns > 0 && worker->first ? hl_clock_ns() + spin_ns : 0;
    }
}

static hl_status watch(int epoll, int fd, uint32_t events, hl_error *err)
{
    struct epoll_event event = {.events = events, .data.fd = fd};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, "engine.worker", errno, "cannot watch an eventfd");
    return HL_OK;
}

static void free_worker(struct engine_worker *worker)
{
    if (worker->epoll >= 0)
        close(worker->epoll);
    if (worker->wake >= 0)
        close(worker->wake);
    free(worker->part);
    free(worker);
}

hl_status engine_worker_start(hl_engine *engine, hl_device *dev, struct engine_worker **out, hl_error *err)
{
    static const char stage[] = "engine.worker";
    hl_status status = HL_OK;
    struct engine_worker *worker = calloc(1, sizeof *worker);
    if (!worker)
        return HL_FAIL(err, HL_E_NOMEM, stage, "no memory for a worker");
    worker->engine = engine;
    worker->dev = dev;
    worker->incoming_tail = &worker->incoming;
    worker->part = malloc(HL_PLAN_PART_BYTES);
    worker->epoll = epoll_create1(EPOLL_CLOEXEC);
    worker->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!worker->part)
        status = HL_FAIL(err, HL_E_NOMEM, stage, "no memory for a part");
    else if (worker->epoll < 0 || worker->wake < 0)
        status = HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, errno, "cannot create a worker's descriptors");
    if (status == HL_OK)
        status = watch(worker->epoll, worker->wake, EPOLLIN | EPOLLET, err);
    if (status == HL_OK)
        status = watch(worker->epoll, engine->restore_fd, EPOLLIN | EPOLLET, err);
    if (status == HL_OK) {
        int failed =
            HL_FAULT_CALL(engine_worker_start, pthread_create(&worker->thread, NULL, work, worker), errno);
        if (failed)
            status = HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, failed, "cannot start a worker");
    }
    if (status != HL_OK)
        free_worker(worker);
    else
        *out = worker;
    return status;
}

void engine_worker_stop(struct engine_worker *worker)
{
    pthread_mutex_lock(&worker->engine->lock);
    worker->stop = true;
    atomic_store(&worker->news, true);
    engine_worker_wake(worker);
    pthread_mutex_unlock(&worker->engine->lock);
    pthread_join(worker->thread, NULL);
    free_worker(worker);
}
