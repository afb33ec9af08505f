/* Starting, waiting, ending.
 *
 * An upload belongs to its caller until hl_upload_close(). Its coordinator thread runs the pipeline, waits
 * for the device, says how it ended, and lets go of what was pinned. When the device cannot say that it has
 * finished, nothing is let go of: the upload, with its lease, slots and registrations, is kept in a list that
 * nobody reads, for as long as the process lives. */
#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>

#include "core/base/clock.h"
#include "core/weights/upload/work.h"

#define STAGE "upload"

static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;
static struct hl_upload *kept;

static void keep(hl_upload *upload)
{
    pthread_mutex_lock(&kept_lock);
    upload->next_kept = kept;
    kept = upload;
    pthread_mutex_unlock(&kept_lock);
}

/* --- what an upload is made of --- */

static hl_status make_plan(hl_upload *upload, hl_error *err)
{
    const bool registered = upload->route == &hl_upload_registered;
    uint64_t windows;
    hl_status status = registered ? hl_upload_plan_registered(&upload->options, upload->targets,
                                                              upload->target_count, &upload->plan, err)
                                  : hl_upload_plan_staging(&upload->options, upload->targets,
                                                           upload->target_count, &upload->plan, err);
    if (status)
        return status;
    if (registered) {
        const uint32_t most = upload->plan.disjoint ? HL_UPLOAD_WINDOWS : HL_UPLOAD_CHUNKS;
        windows = upload->options.register_chunk_bytes / hl_upload_chunk_bytes(&upload->options);
        windows = windows < most ? windows : most;
    } else {
        windows = upload->options.staging_bytes / upload->options.slot_bytes;
    }
    if (windows > upload->plan.piece_count)
        windows = upload->plan.piece_count;
    upload->window_count = windows ? (uint32_t)windows : 1;
    return HL_OK;
}

static void destroy_windows(hl_upload *upload)
{
    for (uint32_t i = 0; upload->windows && i < upload->window_count; i++)
        if (upload->windows[i].event)
            upload->dev->ops->event_destroy(upload->dev, upload->windows[i].event, NULL);
    free(upload->windows);
    free(upload->free_windows);
    free(upload->copies);
    upload->windows = NULL;
}

static hl_status create_windows(hl_upload *upload, hl_error *err)
{
    hl_status status = HL_OK;
    upload->windows = calloc(upload->window_count, sizeof *upload->windows);
    upload->free_windows = calloc(upload->window_count, sizeof *upload->free_windows);
    upload->copies = calloc(HL_UPLOAD_PARTS, sizeof *upload->copies);
    if (!upload->windows || !upload->free_windows || !upload->copies)
        status = HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for %u windows", upload->window_count);
    for (uint32_t i = 0; !status && i < upload->window_count; i++) {
        status = upload->dev->ops->event_create(upload->dev, 0, &upload->windows[i].event, err);
        upload->free_windows[i] = i;
    }
    upload->free_count = upload->window_count;
    if (status)
        destroy_windows(upload);
    return status;
}

/* On the caller's thread: what "so far" means is now. */
static hl_status follow_ready_stream(hl_upload *upload, hl_error *err)
{
    const struct hl_device_ops *ops = upload->dev->ops;
    const hl_stream ready = upload->options.ready_stream;
    if (!ready && !upload->options.ready_stream_given)
        return HL_OK;
    hl_status status = ops->event_create(upload->dev, 0, &upload->ready, err);
    if (status)
        return status;
    status = ops->event_record(upload->dev, upload->ready, ready, err);
    if (!status)
        status = ops->stream_wait_event(upload->dev, upload->stream, upload->ready, err);
    if (status) {
        ops->event_destroy(upload->dev, upload->ready, NULL);
        upload->ready = NULL;
    }
    return status;
}

/* False when pages stay pinned, which must then stay mapped. */
static bool unpin_windows(hl_upload *upload)
{
    bool unpinned = true;
    for (uint32_t i = 0; i < upload->window_count; i++) {
        struct hl_upload_window *window = &upload->windows[i];
        if (window->pinned && upload->dev->ops->host_unregister(upload->dev, window->pinned, NULL))
            unpinned = false;
        window->pinned = NULL;
    }
    return unpinned;
}

/* What touches the device, in the order of its making. */
static hl_status open_device_side(hl_upload *upload, hl_error *err)
{
    const struct hl_device_ops *ops = upload->dev->ops;
    hl_status status = create_windows(upload, err);
    if (status)
        return status;
    if (upload->route == &hl_upload_staging)
        status = hl_upload_ring_open(upload, err);
    if (status)
        goto err_windows;
    status = ops->stream_create(upload->dev, &upload->stream, err);
    if (status)
        goto err_ring;
    status = follow_ready_stream(upload, err);
    if (status)
        goto err_stream;
    return HL_OK;
err_stream:
    ops->stream_destroy(upload->dev, upload->stream, NULL);
err_ring:
    if (unpin_windows(upload))
        hl_upload_ring_close(upload);
err_windows:
    destroy_windows(upload);
    return status;
}

/* False when the lease's pages stay pinned. */
static bool close_device_side(hl_upload *upload)
{
    const struct hl_device_ops *ops = upload->dev->ops;
    if (upload->ready)
        ops->event_destroy(upload->dev, upload->ready, NULL);
    ops->stream_destroy(upload->dev, upload->stream, NULL);
    const bool unpinned = unpin_windows(upload);
    if (unpinned)
        hl_upload_ring_close(upload);
    destroy_windows(upload);
    return unpinned || upload->route == &hl_upload_staging;
}

static void open_host_side(hl_upload *upload)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&upload->lock, NULL);
    pthread_cond_init(&upload->may_take, NULL);
    pthread_cond_init(&upload->prepared, NULL);
    pthread_cond_init(&upload->submitted, NULL);
    pthread_cond_init(&upload->progress, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

/* Nothing of the device is left. */
static void free_upload(hl_upload *upload)
{
    pthread_mutex_destroy(&upload->lock);
    pthread_cond_destroy(&upload->may_take);
    pthread_cond_destroy(&upload->prepared);
    pthread_cond_destroy(&upload->submitted);
    pthread_cond_destroy(&upload->progress);
    hl_upload_plan_free(&upload->plan);
    free(upload->targets);
    free(upload);
}

/* --- the coordinator --- */

/* Whether the device has finished what it was given. A stream that only waits for ready_stream was given
 * nothing. */
static bool drain(hl_upload *upload)
{
    hl_error err;
    if (!upload->touched || !upload->dev->ops->stream_synchronize(upload->dev, upload->stream, &err))
        return true;
    hl_upload_fail(upload, &err);
    return false;
}

static void end(hl_upload *upload, bool drained)
{
    pthread_mutex_lock(&upload->lock);
    upload->result.drained_ns = hl_clock_ns() - upload->start_ns;
    upload->result.drained = drained;
    upload->ended = true;
    pthread_cond_broadcast(&upload->progress);
    pthread_mutex_unlock(&upload->lock);
}

static void *coordinate(void *context)
{
    hl_upload *upload = context;
    hl_error err;
    if (hl_device_enter(upload->dev, &err)) {
        hl_upload_fail(upload, &err);
        end(upload, false); /* what was opened on the device cannot be closed */
        return NULL;
    }
    hl_upload_run(upload);
    const bool drained = drain(upload);
    end(upload, drained);
    if (drained && close_device_side(upload))
        hl_weight_lease_release(upload->lease);
    hl_device_leave(upload->dev);
    return NULL;
}

/* The library's threads take no signals of the program. */
static hl_status start_coordinator(hl_upload *upload, hl_error *err)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&upload->coordinator, NULL, coordinate, upload);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error ? HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, error, "cannot start a thread") : HL_OK;
}

/* --- starting --- */

static hl_status choose_route(hl_upload *upload, hl_error *err)
{
    hl_status status = HL_OK;
    upload->route = &hl_upload_staging;
    if (upload->options.route == HL_WEIGHT_UPLOAD_REGISTERED) {
        upload->route = &hl_upload_registered;
        status = hl_upload_registered_possible(upload->dev, upload->lease, err);
    }
    upload->result.route = upload->route->name;
    return status;
}

/* The device is entered. */
static hl_status start(hl_upload *upload, hl_error *err)
{
    hl_status status = choose_route(upload, err);
    if (!status)
        status = make_plan(upload, err);
    if (!status)
        status = open_device_side(upload, err);
    if (status)
        return status;
    upload->lease = hl_weight_lease_retain(upload->lease);
    status = start_coordinator(upload, err);
    if (status) {
        (void)close_device_side(upload); /* nothing but a slot was pinned */
        hl_weight_lease_release(upload->lease);
    }
    return status;
}

hl_status hl_upload_start(hl_device *dev, hl_weight_lease *lease, const hl_weight_upload_options *options,
                          const hl_weight_destination *destinations, size_t count, hl_upload **out,
                          hl_error *err)
{
    const int64_t start_ns = hl_clock_ns();
    hl_weight_upload_options resolved;
    struct hl_upload_target *targets;
    if (!dev || !lease || !options || !out)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "%s: NULL",
                       !dev       ? "dev"
                       : !lease   ? "lease"
                       : !options ? "options"
                                  : "upload");
    hl_status status = hl_upload_options_resolve(options, &resolved, err);
    if (!status)
        status = hl_upload_check(lease, destinations, count, &targets, err);
    if (status)
        return status;
    hl_upload *upload = calloc(1, sizeof *upload);
    if (!upload) {
        free(targets);
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for an upload");
    }
    *upload = (struct hl_upload){.dev = dev,
                                 .lease = lease,
                                 .options = resolved,
                                 .targets = targets,
                                 .target_count = count,
                                 .start_ns = start_ns};
    open_host_side(upload);
    status = hl_device_enter(dev, err);
    if (status)
        goto err_free;
    status = start(upload, err);
    hl_device_leave(dev);
    if (status)
        goto err_free;
    *out = upload;
    return HL_OK;
err_free:
    free_upload(upload);
    return status;
}

/* --- waiting --- */

/* Lock held. Until *flag or upload->ended; false when the time ran out. */
static bool await_progress(hl_upload *upload, const bool *flag, int64_t timeout_ns)
{
    const int64_t now = hl_clock_ns();
    int64_t until;
    if (__builtin_add_overflow(now, timeout_ns, &until))
        timeout_ns = -1;
    const struct timespec deadline = {.tv_sec = until / HL_NS_PER_S, .tv_nsec = until % HL_NS_PER_S};
    int waited = 0;
    while (!*flag && !upload->ended && waited != ETIMEDOUT)
        waited = timeout_ns < 0 ? pthread_cond_wait(&upload->progress, &upload->lock)
                                : pthread_cond_timedwait(&upload->progress, &upload->lock, &deadline);
    return *flag || upload->ended;
}

static hl_status wait_for(hl_upload *upload, const bool *flag, int64_t timeout_ns,
                          hl_weight_upload_result *result, hl_error *err)
{
    hl_status status;
    pthread_mutex_lock(&upload->lock);
    if (!await_progress(upload, flag, timeout_ns)) {
        status = HL_FAIL(err, HL_E_TIMEOUT, STAGE, "%zu of %zu pieces have been submitted",
                         upload->submitted_count, upload->plan.piece_count);
    } else {
        status = *flag && flag == &upload->enqueued ? HL_OK : upload->error.status;
        if (status && err)
            *err = upload->error;
        if (result)
            *result = upload->result;
    }
    pthread_mutex_unlock(&upload->lock);
    return status;
}

hl_status hl_upload_wait_enqueued(hl_upload *upload, int64_t timeout_ns, hl_error *err)
{
    if (!upload)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "upload: NULL");
    return wait_for(upload, &upload->enqueued, timeout_ns, NULL, err);
}

hl_status hl_upload_wait(hl_upload *upload, int64_t timeout_ns, hl_weight_upload_result *result,
                         hl_error *err)
{
    if (!upload)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "upload: NULL");
    return wait_for(upload, &upload->ended, timeout_ns, result, err);
}

/* --- ending --- */

bool hl_upload_close(hl_upload *upload)
{
    hl_error cancelled;
    if (!upload)
        return true;
    (void)HL_FAIL(&cancelled, HL_E_CANCELLED, STAGE, "closed before all was submitted");
    hl_upload_fail(upload, &cancelled);
    pthread_join(upload->coordinator, NULL);
    assert(upload->ended);
    const bool drained = upload->result.drained;
    if (drained)
        free_upload(upload);
    else
        keep(upload);
    return drained;
}
