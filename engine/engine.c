/* A session's life: its threads, its loss, its end. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "engine/engine_internal.h"
#include "faults/hook.h"

static const char stage[] = "engine.connect";

void engine_hold(hl_engine *engine)
{
    atomic_fetch_add(&engine->references, 1);
}

void engine_drop(hl_engine *engine)
{
    if (atomic_fetch_sub(&engine->references, 1) != 1)
        return;
    pthread_cond_destroy(&engine->changed);
    pthread_mutex_destroy(&engine->registering);
    pthread_mutex_destroy(&engine->request);
    pthread_mutex_destroy(&engine->lock);
    free(engine);
}

void engine_signal(int eventfd)
{
    uint64_t one = 1;
    ssize_t written = write(eventfd, &one, sizeof one);
    (void)written; /* a full counter is a signal too */
}

void engine_signal_manager(hl_engine *engine)
{
    HL_FAULT_NOTIFY(channel_signal_retirement, engine_signal(engine->retirement_fd));
}

void engine_quiet(int eventfd)
{
    uint64_t count;
    ssize_t got = read(eventfd, &count, sizeof count);
    (void)got; /* empty already: another thread or an earlier turn has read it */
}

void engine_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
}

bool engine_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline_ns)
{
    if (deadline_ns < 0)
        return pthread_cond_wait(cond, lock) == 0;
    struct timespec until = {.tv_sec = deadline_ns / HL_NS_PER_S, .tv_nsec = deadline_ns % HL_NS_PER_S};
    return pthread_cond_timedwait(cond, lock, &until) == 0;
}

int64_t engine_deadline(int64_t timeout_ns)
{
    int64_t deadline;
    if (timeout_ns < 0 || __builtin_add_overflow(hl_clock_ns(), timeout_ns, &deadline))
        return -1;
    return deadline;
}

void engine_cannot_continue(hl_engine *engine, uint32_t record, const char *text)
{
    engine_log(engine, HL_LOG_ERROR, "record %u: accepted work cannot be shown to have finished (%s): abort",
               record, text);
    abort();
}

void engine_lose(hl_engine *engine, const hl_error *why)
{
    pthread_mutex_lock(&engine->lock);
    bool first = !atomic_load(&engine->lost);
    if (first) {
        engine->loss = *why;
        HL_FAULT_STORE(engine_loss, atomic_store(&engine->lost, true));
    }
    bool expected = engine->closing;
    for (uint32_t i = 0; i < HL_SESSION_BINDINGS; i++)
        if (engine->workers[i])
            engine_worker_wake(engine->workers[i]);
    pthread_mutex_unlock(&engine->lock);
    engine_signal(engine->courier_wake);
    engine_signal(engine->retire_wake);
    if (first && !expected)
        engine_log(engine, HL_LOG_WARNING, "the session is lost: %s", why->text);
}

hl_status engine_check_peer(hl_engine *engine, hl_error *err)
{
    if (!atomic_load(&engine->lost))
        return HL_OK;
    pthread_mutex_lock(&engine->lock);
    hl_error loss = engine->loss;
    pthread_mutex_unlock(&engine->lock);
    if (err)
        *err = loss;
    return loss.status;
}

hl_status hl_engine_health(hl_engine *engine, hl_error *err)
{
    return engine_check_peer(engine, err);
}

void engine_completed(hl_engine *engine)
{
    if (!atomic_exchange(&engine->completion_raised, true))
        engine_signal(engine->completion_fd);
}

int hl_engine_completion_fd(const hl_engine *engine)
{
    return engine->completion_fd;
}

void hl_engine_completion_clear(hl_engine *engine)
{
    engine_quiet(engine->completion_fd);
    /* Last: what has finished and saw the flag still up is visible to this caller. */
    atomic_exchange(&engine->completion_raised, false);
}

static hl_status open_eventfds(hl_engine *engine, hl_error *err)
{
    int *const fds[] = {&engine->completion_fd, &engine->retire_wake, &engine->courier_wake};
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++) {
        *fds[i] = HL_FAULT_CALL(engine_eventfd_create, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), -1);
        if (*fds[i] < 0)
            return HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, errno, "cannot create an eventfd");
    }
    return HL_OK;
}

static void close_eventfds(hl_engine *engine)
{
    int *const fds[] = {&engine->completion_fd, &engine->retire_wake, &engine->courier_wake};
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++) {
        if (*fds[i] >= 0)
            close(*fds[i]);
        *fds[i] = -1;
    }
}

static hl_engine *new_engine(const hl_engine_options *options, const struct engine_tuning *tuning)
{
    hl_engine *engine = calloc(1, sizeof *engine);
    if (!engine)
        return NULL;
    atomic_init(&engine->references, 1);
    engine->options = *options;
    engine->tuning = *tuning;
    engine->socket = engine->pidfd = engine->retire_epoll = -1;
    engine->restore_fd = engine->retirement_fd = engine->publish_fd = -1;
    engine->completion_fd = engine->retire_wake = engine->courier_wake = -1;
    pthread_mutex_init(&engine->registering, NULL);
    pthread_mutex_init(&engine->request, NULL);
    pthread_mutex_init(&engine->lock, NULL);
    engine_cond_init(&engine->changed);
    return engine;
}

hl_status engine_connect_with(const hl_engine_options *options, const struct engine_tuning *tuning,
                              hl_engine **out, hl_error *err)
{
    hl_status status = engine_options_check(options, err);
    if (status != HL_OK)
        return status;
    hl_engine *engine = new_engine(options, tuning);
    if (!engine)
        return HL_FAIL(err, HL_E_NOMEM, stage, "no memory for an engine");
    status = open_eventfds(engine, err);
    if (status != HL_OK)
        goto err_eventfds;
    status = engine_bootstrap(engine, err);
    if (status != HL_OK)
        goto err_eventfds;
    engine->options.socket_path = engine->options.name = NULL; /* the caller's, no longer needed */
    status = engine_retire_start(engine, err);
    if (status != HL_OK)
        goto err_disconnect;
    status = engine_courier_start(engine, err);
    if (status != HL_OK)
        goto err_retire;
    *out = engine;
    return HL_OK;

err_retire:
    engine_retire_stop(engine);
err_disconnect:
    engine_disconnect(engine);
err_eventfds:
    close_eventfds(engine);
    engine_drop(engine);
    return status;
}

hl_status hl_engine_connect(const hl_engine_options *options, hl_engine **engine, hl_error *err)
{
    return engine_connect_with(options, &engine_default_tuning, engine, err);
}

/* A binding that nobody else is ending; NULL once none is left. Lock held. */
static hl_binding *next_binding(hl_engine *engine)
{
    for (;;) {
        hl_binding *binding = engine->bindings;
        while (binding && binding->closing)
            binding = binding->next;
        if (binding || !engine->bindings)
            return binding;
        engine_cond_wait(&engine->changed, &engine->lock, -1);
    }
}

void hl_engine_close(hl_engine *engine)
{
    if (!engine)
        return;
    hl_binding *binding;
    struct hl_message bye;
    struct hl_packet packet;
    hl_error closed = {0};
    /* A registration under way either ends before this or finds the engine closing. */
    pthread_mutex_lock(&engine->registering);
    pthread_mutex_lock(&engine->lock);
    engine->closing = true;
    pthread_mutex_unlock(&engine->registering);
    while ((binding = next_binding(engine)) != NULL) {
        pthread_mutex_unlock(&engine->lock);
        hl_engine_unregister(binding, NULL);
        pthread_mutex_lock(&engine->lock);
    }
    assert(engine->operations == 0 && engine->publishes == 0);
    pthread_mutex_unlock(&engine->lock);
    engine_courier_stop(engine);
    hl_message_head(&bye, HL_MESSAGE_BYE, 0);
    hl_status status;
    HL_FAULT_STORE(engine_bye, status = engine_request(engine, &bye, HL_MESSAGE_DONE, engine->tuning.reply_ns,
                                                       &packet, NULL, NULL));
    if (status == HL_OK)
        hl_packet_close_fds(&packet);
    hl_error_set(&closed, HL_E_STATE, "engine.close", 0, 0, "the engine has been closed");
    engine_lose(engine, &closed);
    engine_retire_stop(engine);
    HL_FAULT_STORE(engine_disconnect, engine_disconnect(engine));
    close_eventfds(engine);
    engine_drop(engine);
}
