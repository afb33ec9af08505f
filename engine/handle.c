/* What a caller sees of an operation. Its outcome is written once, before `progress` says FINISHED. */
#include "core/base/clock.h"
#include "core/base/error.h"
#include "engine/engine_internal.h"
#include "faults/hook.h"

static int progress_of(const hl_restore *restore)
{
    return atomic_load_explicit(&restore->progress, memory_order_acquire);
}

void engine_restore_enqueued(hl_restore *restore)
{
    pthread_mutex_lock(&restore->engine->lock);
    atomic_store_explicit(&restore->progress, ENGINE_ENQUEUED, memory_order_release);
    pthread_cond_broadcast(&restore->changed);
    pthread_mutex_unlock(&restore->engine->lock);
}

void engine_restore_drop(hl_restore *restore)
{
    if (atomic_fetch_sub(&restore->references, 1) == 1)
        engine_restore_free(restore);
}

/* Watches for as long as the worker would, then sleeps. False when the time is up. */
static bool await(hl_restore *restore, int progress, int64_t timeout_ns)
{
    hl_engine *engine = restore->engine;
    if (progress_of(restore) >= progress)
        return true;
    if (timeout_ns == 0)
        return false;
    int64_t deadline = engine_deadline(timeout_ns);
    int64_t spin_ns = (int64_t)engine->options.spin_us * 1000;
    if (timeout_ns > 0 && spin_ns > timeout_ns)
        spin_ns = timeout_ns;
    for (int64_t end = spin_ns > 0 ? hl_clock_ns() + spin_ns : 0; spin_ns > 0 && hl_clock_ns() < end;)
        if (progress_of(restore) >= progress)
            return true;
    pthread_mutex_lock(&engine->lock);
    bool waiting = true;
    while (progress_of(restore) < progress && waiting)
        waiting = engine_cond_wait(&restore->changed, &engine->lock, deadline);
    pthread_mutex_unlock(&engine->lock);
    return progress_of(restore) >= progress;
}

static hl_status report(const hl_restore *restore, hl_restore_result *result, hl_error *err)
{
    if (result)
        *result = restore->result;
    if (restore->result.status != HL_OK && err)
        *err = restore->error;
    return restore->result.status;
}

hl_status hl_restore_poll(hl_restore *restore, hl_restore_result *result, hl_error *err)
{
    return progress_of(restore) < ENGINE_FINISHED ? HL_PENDING : report(restore, result, err);
}

hl_status hl_restore_wait(hl_restore *restore, int64_t timeout_ns, hl_restore_result *result, hl_error *err)
{
    if (!await(restore, ENGINE_FINISHED, timeout_ns))
        return HL_FAIL(err, HL_E_TIMEOUT, "engine.wait", "the operation has not finished yet");
    return report(restore, result, err);
}

hl_status hl_restore_wait_enqueued(hl_restore *restore, int64_t timeout_ns, hl_error *err)
{
    if (!await(restore, ENGINE_ENQUEUED, timeout_ns))
        return HL_FAIL(err, HL_E_TIMEOUT, "engine.wait", "the operation has not been enqueued yet");
    return progress_of(restore) == ENGINE_FINISHED ? report(restore, NULL, err) : HL_OK;
}

/* The worker may be gone once the operation has finished, and not before. */
void hl_restore_cancel(hl_restore *restore)
{
    HL_FAULT_STORE(engine_cancel, atomic_store(&restore->cancel, true));
    pthread_mutex_lock(&restore->engine->lock);
    if (progress_of(restore) < ENGINE_FINISHED)
        engine_worker_wake(restore->worker);
    pthread_mutex_unlock(&restore->engine->lock);
}

void hl_restore_close(hl_restore *restore)
{
    if (restore)
        engine_restore_drop(restore);
}
