/* The three hands of an upload: workers, the submitter (the calling thread) and the retirer.
 *
 * Nothing can be stuck: a piece is taken only together with a window, so the pieces under way are consecutive
 * and the first of them always has what it needs. A failure stops workers and submitter; the retirer goes on
 * until it has waited for all that was submitted. */
#include <assert.h>
#include <sys/prctl.h>
#include <time.h>

#include "core/base/clock.h"
#include "core/weights/upload/work.h"

#define STAGE "upload.pipeline"

/* A slot of 2 MiB is on a link of 55 GB/s for 38 us. */
#define NAP_NS 30000
#define NAPS 64u

/* A worker or the retirer. */
struct hand {
    hl_upload *upload;
    pthread_t thread;
    void (*work)(hl_upload *upload);
};

/* Lock held. */
static bool is_failed(const hl_upload *upload)
{
    return upload->error.status != HL_OK;
}

void hl_upload_fail(hl_upload *upload, const hl_error *err)
{
    pthread_mutex_lock(&upload->lock);
    if (!is_failed(upload))
        upload->error = *err;
    pthread_cond_broadcast(&upload->may_take);
    pthread_cond_broadcast(&upload->prepared);
    pthread_cond_broadcast(&upload->submitted);
    pthread_mutex_unlock(&upload->lock);
}

/* --- windows: all with the lock held --- */

static uint32_t pop_window(hl_upload *upload)
{
    const uint32_t window = upload->free_windows[upload->free_head];
    upload->free_head = (upload->free_head + 1) % upload->window_count;
    upload->free_count--;
    return window;
}

static void push_window(hl_upload *upload, uint32_t window)
{
    const uint32_t count = upload->window_count;
    uint32_t place = (upload->free_head + upload->free_count) % count;
    if (upload->route->reuse_latest)
        place = upload->free_head = (upload->free_head + count - 1) % count;
    upload->free_windows[place] = window;
    upload->free_count++;
}

/* --- workers --- */

/* Lock held. Whether the next piece has a window and no page in common with one still under way. */
static bool can_take(const hl_upload *upload)
{
    const struct hl_upload_piece *piece = &upload->plan.pieces[upload->taken_count];
    return upload->started && upload->free_count &&
           (piece->after == HL_UPLOAD_NONE || piece->after < upload->retired_count);
}

/* Lock held. */
static bool await_take(hl_upload *upload)
{
    for (;;) {
        if (is_failed(upload) || upload->taken_count == upload->plan.piece_count)
            return false;
        if (can_take(upload))
            return true;
        pthread_cond_wait(&upload->may_take, &upload->lock);
    }
}

/* Waits for the next piece; NULL when there is none for this thread. Whoever takes a piece wakes the next, as
 * one retired piece may be all that several were waiting for. */
static struct hl_upload_piece *take(hl_upload *upload)
{
    struct hl_upload_piece *piece = NULL;
    pthread_mutex_lock(&upload->lock);
    if (await_take(upload)) {
        piece = &upload->plan.pieces[upload->taken_count++];
        piece->window = pop_window(upload);
    }
    if (upload->taken_count == upload->plan.piece_count)
        pthread_cond_broadcast(&upload->may_take);
    else if (can_take(upload))
        pthread_cond_signal(&upload->may_take);
    pthread_mutex_unlock(&upload->lock);
    return piece;
}

static void prepare_pieces(hl_upload *upload)
{
    struct hl_upload_piece *piece;
    while ((piece = take(upload))) {
        hl_error err;
        if (upload->route->prepare(upload, piece, &err)) {
            hl_upload_fail(upload, &err);
            return;
        }
        pthread_mutex_lock(&upload->lock);
        piece->prepared = true;
        if (piece == &upload->plan.pieces[upload->submitted_count])
            pthread_cond_signal(&upload->prepared);
        pthread_mutex_unlock(&upload->lock);
    }
}

/* --- the submitter --- */

static bool await_prepared(hl_upload *upload, const struct hl_upload_piece *piece)
{
    pthread_mutex_lock(&upload->lock);
    while (!is_failed(upload) && !piece->prepared)
        pthread_cond_wait(&upload->prepared, &upload->lock);
    const bool ready = !is_failed(upload);
    pthread_mutex_unlock(&upload->lock);
    return ready;
}

/* The piece's copies: neighbours on both sides become one. */
static size_t collect_copies(const hl_upload *upload, const struct hl_upload_piece *piece)
{
    size_t count = 0;
    struct hl_copy *const copies = upload->copies;
    assert(copies);
    for (size_t i = 0; i < piece->part_count; i++) {
        const struct hl_upload_part *part = &upload->plan.parts[piece->part + i];
        const uint64_t src = upload->route->source(upload, piece, part);
        struct hl_copy *last = count ? &copies[count - 1] : NULL;
        if (last && last->src + last->bytes == src && last->dst + last->bytes == part->dst)
            last->bytes += part->bytes;
        else
            copies[count++] = (struct hl_copy){.dst = part->dst, .src = src, .bytes = part->bytes};
    }
    return count;
}

static hl_status submit_copies(hl_upload *upload, size_t count, hl_error *err)
{
    const struct hl_device_ops *ops = upload->dev->ops;
    const struct hl_copy *copy = upload->copies;
    size_t accepted;
    if (count == 0)
        return HL_OK;
    upload->touched = true;
    if (count == 1)
        return ops->copy(upload->dev, HL_COPY_H2D, copy->dst, copy->src, copy->bytes, upload->stream, err);
    return ops->copy_batch(upload->dev, HL_COPY_H2D, copy, count, upload->stream, &accepted, err);
}

/* The window's event goes before the tensors': its window is wanted again. */
static hl_status submit(hl_upload *upload, const struct hl_upload_piece *piece, hl_error *err)
{
    const struct hl_device_ops *ops = upload->dev->ops;
    hl_status status = submit_copies(upload, collect_copies(upload, piece), err);
    if (!status)
        status = ops->event_record(upload->dev, upload->windows[piece->window].event, upload->stream, err);
    for (size_t i = 0; !status && i < piece->target_count; i++) {
        const hl_event event = upload->targets[piece->target + i].event;
        if (event)
            status = ops->event_record(upload->dev, event, upload->stream, err);
    }
    return status;
}

static void count_submitted(hl_upload *upload, const struct hl_upload_piece *piece)
{
    const int64_t now = hl_clock_ns() - upload->start_ns;
    if (piece == upload->plan.pieces)
        upload->result.first_copy_ns = now;
    upload->result.enqueued_ns = now;
    for (size_t i = 0; i < piece->part_count; i++)
        upload->result.bytes += upload->plan.parts[piece->part + i].bytes;
    pthread_mutex_lock(&upload->lock);
    upload->submitted_count++;
    pthread_cond_signal(&upload->submitted);
    pthread_mutex_unlock(&upload->lock);
}

static void submit_pieces(hl_upload *upload)
{
    for (size_t i = 0; i < upload->plan.piece_count; i++) {
        const struct hl_upload_piece *piece = &upload->plan.pieces[i];
        hl_error err;
        if (!await_prepared(upload, piece))
            return;
        if (submit(upload, piece, &err)) {
            hl_upload_fail(upload, &err);
            return;
        }
        count_submitted(upload, piece);
    }
    pthread_mutex_lock(&upload->lock);
    upload->enqueued = true;
    pthread_cond_broadcast(&upload->progress);
    pthread_mutex_unlock(&upload->lock);
}

/* --- the retirer --- */

/* The next submitted piece; NULL when there will be none. */
static struct hl_upload_piece *await_submitted(hl_upload *upload)
{
    pthread_mutex_lock(&upload->lock);
    while (upload->retired_count == upload->submitted_count && !upload->submitter_done)
        pthread_cond_wait(&upload->submitted, &upload->lock);
    struct hl_upload_piece *piece =
        upload->retired_count < upload->submitted_count ? &upload->plan.pieces[upload->retired_count] : NULL;
    pthread_mutex_unlock(&upload->lock);
    return piece;
}

/* Until the device has read the piece. A driver's own wait may keep a core busy that workers need; naps of a
 * part of a slot's time on the link do not, and after some of them (the stream waits for something else) so
 * long a wait is the driver's. */
static hl_status await_read(hl_upload *upload, const struct hl_upload_piece *piece, hl_error *err)
{
    const struct hl_device_ops *ops = upload->dev->ops;
    const hl_event event = upload->windows[piece->window].event;
    const struct timespec nap = {.tv_nsec = NAP_NS};
    for (unsigned i = 0; i < NAPS; i++) {
        hl_status status = ops->event_query(upload->dev, event, err);
        if (status != HL_PENDING)
            return status;
        nanosleep(&nap, NULL);
    }
    return ops->event_synchronize(upload->dev, event, err);
}

static void retire_pieces(hl_upload *upload)
{
    struct hl_upload_piece *piece;
    (void)prctl(PR_SET_TIMERSLACK, 1000UL); /* else a nap takes twice as long */
    while ((piece = await_submitted(upload))) {
        hl_error err;
        hl_status status = await_read(upload, piece, &err);
        if (!status)
            status = upload->route->retire(upload, piece, &err);
        if (status) {
            hl_upload_fail(upload, &err);
            return;
        }
        pthread_mutex_lock(&upload->lock);
        push_window(upload, piece->window);
        upload->retired_count++;
        if (piece->target_count && !upload->result.first_tensor_ns)
            upload->result.first_tensor_ns = hl_clock_ns() - upload->start_ns;
        pthread_cond_signal(&upload->may_take);
        pthread_mutex_unlock(&upload->lock);
    }
}

/* --- all of them --- */

static void *run_hand(void *context)
{
    struct hand *hand = context;
    hl_error err;
    if (hl_device_enter(hand->upload->dev, &err)) {
        hl_upload_fail(hand->upload, &err);
        return NULL;
    }
    hand->work(hand->upload);
    hl_device_leave(hand->upload->dev);
    return NULL;
}

static hl_status start_hand(struct hand *hand, hl_upload *upload, void (*work)(hl_upload *), hl_error *err)
{
    hand->upload = upload;
    hand->work = work;
    const int error = pthread_create(&hand->thread, NULL, run_hand, hand);
    return error ? HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, error, "cannot start a thread") : HL_OK;
}

/* One worker is enough to go on with. */
static uint32_t start_workers(hl_upload *upload, struct hand *workers)
{
    hl_error err;
    uint32_t count = 0;
    uint32_t wanted = upload->options.copy_threads;
    if (wanted > upload->plan.piece_count)
        wanted = (uint32_t)upload->plan.piece_count;
    while (count < wanted && !start_hand(&workers[count], upload, prepare_pieces, &err))
        count++;
    if (!count)
        hl_upload_fail(upload, &err);
    return count;
}

/* Starting a thread maps its stack, which waits for every page that another thread is just touching first: no
 * worker begins before all have been started. */
static void let_workers_begin(hl_upload *upload)
{
    pthread_mutex_lock(&upload->lock);
    upload->started = true;
    pthread_cond_signal(&upload->may_take);
    pthread_mutex_unlock(&upload->lock);
}

static void end_submitting(hl_upload *upload)
{
    pthread_mutex_lock(&upload->lock);
    upload->submitter_done = true;
    pthread_cond_signal(&upload->submitted);
    pthread_mutex_unlock(&upload->lock);
}

void hl_upload_run(hl_upload *upload)
{
    struct hand retirer, workers[HL_UPLOAD_THREADS];
    hl_error err;
    if (start_hand(&retirer, upload, retire_pieces, &err)) {
        hl_upload_fail(upload, &err);
        return;
    }
    const uint32_t count = start_workers(upload, workers);
    let_workers_begin(upload);
    submit_pieces(upload);
    end_submitting(upload);
    for (uint32_t i = 0; i < count; i++)
        pthread_join(workers[i].thread, NULL);
    pthread_join(retirer.thread, NULL);
}
