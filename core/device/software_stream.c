/* Streams: a FIFO of tasks each, run by a thread of its own or, in single-step mode, one task at a time by
 * whoever steps or waits. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "core/base/clock.h"
#include "core/device/software_internal.h"

/* How long a stream that waits for a word sleeps between looks: the host writes the word with a plain store,
 * so nothing can wake the stream, and stop_stream() ends the wait. */
#define POLL_NS 50000

static struct timespec after(int64_t ns)
{
    int64_t at = hl_clock_ns() + ns;
    return (struct timespec){.tv_sec = at / HL_NS_PER_S, .tv_nsec = at % HL_NS_PER_S};
}

struct software_task *hl_software_new_task(enum task_kind kind, size_t pieces, hl_error *err)
{
    struct software_task *task = NULL;
    if (pieces <= (SIZE_MAX - sizeof *task) / sizeof task->pieces[0])
        task = calloc(1, sizeof *task + pieces * sizeof task->pieces[0]);
    if (!task) {
        HL_FAIL(err, HL_E_NOMEM, HL_SOFTWARE_STAGE, "no memory for an operation of %zu copies", pieces);
        return NULL;
    }
    task->kind = kind;
    task->piece_count = pieces;
    return task;
}

static void free_task(struct software_task *task)
{
    if (task->kind == TASK_RECORD || task->kind == TASK_WAIT_EVENT)
        hl_software_drop_record(task->record);
    free(task);
}

static void free_tasks(struct software_task *task)
{
    while (task) {
        struct software_task *next = task->next;
        free_task(task);
        task = next;
    }
}

/* Lock held. Why a word may never grow: a gather that was to add to one of its region failed. */
static int count_failure(struct software_device *dev, uint64_t addr)
{
    const struct software_region *region = hl_software_find_region(dev, addr, sizeof(uint32_t));
    return region ? region->count_failure : 0;
}

/* Lock held. The code with which a wait for a value ends. */
static int wait_failure(struct software_device *dev, const struct software_task *task)
{
    uint32_t word;
    bool holds =
        hl_software_read_word(dev, task->word.addr, &word) && (int32_t)(word - task->word.value) >= 0;
    return holds ? 0 : count_failure(dev, task->word.addr);
}

enum readiness { NOTHING_TO_DO, WAITS_FOR_WORD, READY };

/* Whether the stream's next task may execute now. A stream in error runs on, as its tasks are skipped. */
static enum readiness next_is_ready(struct software_device *dev, const struct hl_stream_handle *stream)
{
    const struct software_task *task = stream->head;
    uint32_t word;
    if (!task || stream->running || (stream->held && task->sequence >= stream->hold_sequence))
        return NOTHING_TO_DO;
    if (stream->error)
        return READY;
    if (task->kind == TASK_WAIT_EVENT)
        return task->record->done ? READY : NOTHING_TO_DO;
    if (task->kind == TASK_WAIT_VALUE && hl_software_read_word(dev, task->word.addr, &word))
        return (int32_t)(word - task->word.value) >= 0 || count_failure(dev, task->word.addr)
                   ? READY
                   : WAITS_FOR_WORD;
    return READY;
}

bool hl_software_can_go_on(struct software_device *dev, const struct hl_stream_handle *stream)
{
    return stream->running || next_is_ready(dev, stream) == READY;
}

/* Ends a task whose bytes have moved, failed or were skipped. Lock held. */
static void complete(struct software_device *dev, struct hl_stream_handle *stream, struct software_task *task,
                     int code)
{
    if (code && !stream->error)
        stream->error = code;
    if (!code)
        dev->counts.executed++;
    if (task->kind == TASK_RECORD) {
        task->record->ns = hl_clock_ns();
        task->record->code = code;
        task->record->done = true;
    }
    bool counts = task->kind == TASK_GATHER && task->gather.counters;
    if (counts && code) {
        struct software_region *region =
            hl_software_find_region(dev, task->gather.counters, sizeof(uint32_t));
        if (region)
            region->count_failure = code;
    }
    if (counts || task->kind == TASK_RECORD || task->kind == TASK_WRITE_VALUE)
        hl_software_wake_all(dev);
    stream->completed = task->sequence;
    stream->running = false;
    stream->current = NULL;
    free_task(task);
    pthread_cond_broadcast(&dev->changed);
}

/* Runs the stream's next task. Lock held on entry and exit, not while bytes move. */
static void run_next(struct software_device *dev, struct hl_stream_handle *stream)
{
    struct software_task *task = stream->head;
    stream->head = task->next;
    if (!stream->head)
        stream->tail = NULL;
    assert(!stream->running && task->sequence == stream->completed + 1);
    stream->running = true;
    stream->current = task;
    int code = stream->error;
    if (!code && dev->fail_execution && --dev->fail_execution == 0)
        code = dev->fail_execution_code;
    if (!code && task->kind == TASK_WAIT_EVENT)
        code = task->record->code;
    if (!code && task->kind == TASK_WAIT_VALUE)
        code = wait_failure(dev, task);
    if (!code) {
        pthread_mutex_unlock(&dev->lock);
        code = hl_software_execute(dev, stream, task);
        pthread_mutex_lock(&dev->lock);
    }
    complete(dev, stream, task, code);
}

static void *stream_thread(void *arg)
{
    struct hl_stream_handle *stream = arg;
    struct software_device *dev = software(stream->dev);
    pthread_mutex_lock(&dev->lock);
    while (!stream->closing) {
        switch (next_is_ready(dev, stream)) {
        case READY:
            run_next(dev, stream);
            break;
        case WAITS_FOR_WORD: {
            struct timespec until = after(POLL_NS);
            pthread_cond_timedwait(&stream->wake, &dev->lock, &until);
            break;
        }
        case NOTHING_TO_DO:
            pthread_cond_wait(&stream->wake, &dev->lock);
            break;
        }
    }
    pthread_mutex_unlock(&dev->lock);
    return NULL;
}

void hl_software_init_stream(struct software_device *dev, struct hl_stream_handle *stream)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&stream->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    stream->dev = &dev->head;
}

/* Lock held. */
static hl_status start_thread(struct software_device *dev, struct hl_stream_handle *stream, hl_error *err)
{
    if (stream->threaded || dev->options.single_step)
        return HL_OK;
    int failed = pthread_create(&stream->thread, NULL, stream_thread, stream);
    if (failed)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, HL_SOFTWARE_STAGE, failed, "cannot start a stream's thread");
    stream->threaded = true;
    return HL_OK;
}

void hl_software_stop_stream(struct software_device *dev, struct hl_stream_handle *stream)
{
    pthread_mutex_lock(&dev->lock);
    stream->closing = true;
    pthread_cond_signal(&stream->wake);
    pthread_mutex_unlock(&dev->lock);
    if (stream->threaded)
        pthread_join(stream->thread, NULL);
    free_tasks(stream->head);
    stream->head = NULL;
    pthread_cond_destroy(&stream->wake);
}

struct hl_stream_handle *hl_software_find_stream(struct software_device *dev, hl_stream handle)
{
    if (!handle)
        return &dev->null_stream;
    struct hl_stream_handle *stream = dev->null_stream.next;
    while (stream && stream != handle)
        stream = stream->next;
    return stream;
}

void hl_software_wake_all(struct software_device *dev)
{
    for (struct hl_stream_handle *stream = &dev->null_stream; stream; stream = stream->next)
        pthread_cond_signal(&stream->wake);
}

unsigned hl_software_step_locked(struct software_device *dev, int choice)
{
    unsigned runnable = 0;
    for (struct hl_stream_handle *stream = &dev->null_stream; stream; stream = stream->next)
        runnable += next_is_ready(dev, stream) == READY;
    if (!runnable)
        return 0;
    unsigned chosen = choice < 0 ? (unsigned)hl_random_below(&dev->random, runnable) : (unsigned)choice;
    assert(chosen < runnable);
    struct hl_stream_handle *stream = &dev->null_stream;
    for (;; stream = stream->next)
        if (next_is_ready(dev, stream) == READY && chosen-- == 0)
            break;
    run_next(dev, stream);
    return runnable;
}

void hl_software_await(struct software_device *dev, bool (*done)(struct software_device *, const void *),
                       const void *arg)
{
    while (!done(dev, arg)) {
        if (!dev->options.single_step) {
            pthread_cond_wait(&dev->changed, &dev->lock);
        } else if (!hl_software_step_locked(dev, -1)) {
            /* Another thread must release a hold, write a word or finish its own step. */
            struct timespec until = after(POLL_NS);
            pthread_cond_timedwait(&dev->changed, &dev->lock, &until);
        }
    }
}

static bool overlaps(const struct software_region *region, uint64_t addr, uint64_t bytes)
{
    return bytes && addr < region->base + region->mapped && region->base < addr + bytes;
}

static bool task_uses(const struct software_task *task, const struct software_region *region)
{
    switch (task->kind) {
    case TASK_COPY:
        for (size_t i = 0; i < task->piece_count; i++)
            if (overlaps(region, task->pieces[i].dst, task->pieces[i].bytes) ||
                overlaps(region, task->pieces[i].src, task->pieces[i].bytes))
                return true;
        return false;
    case TASK_ROWS:
        return overlaps(region, task->rows.dst, task->rows.dst_pitch * task->rows.rows) ||
               overlaps(region, task->rows.src, task->rows.src_pitch * task->rows.rows);
    case TASK_FILL:
        return overlaps(region, task->fill.dst, task->fill.bytes);
    case TASK_GATHER: /* what they touch is in memory that they read when they run */
    case TASK_CHECKSUM:
        return true;
    case TASK_WAIT_VALUE:
    case TASK_WRITE_VALUE:
        return overlaps(region, task->word.addr, 4);
    case TASK_RECORD:
    case TASK_WAIT_EVENT:
        return false;
    }
    return false;
}

bool hl_software_uses_region(struct software_device *dev, const struct software_region *region)
{
    for (const struct hl_stream_handle *stream = &dev->null_stream; stream; stream = stream->next) {
        if (stream->current && task_uses(stream->current, region))
            return true;
        for (const struct software_task *task = stream->head; task; task = task->next)
            if (task_uses(task, region))
                return true;
    }
    return false;
}

/* Why a task may not be queued. Lock held. */
static hl_status check_submission(struct software_device *dev, struct hl_stream_handle *stream, hl_error *err)
{
    if (!stream)
        return HL_FAIL_DEVICE(err, HL_E_INVALID, HL_SOFTWARE_STAGE, SOFTWARE_INVALID_HANDLE,
                              "stream: not a live stream of this device");
    if (stream->error)
        return HL_FAIL_DEVICE(err, HL_E_DEVICE, HL_SOFTWARE_STAGE, stream->error,
                              "earlier work of this stream failed with code %d", stream->error);
    return start_thread(dev, stream, err);
}

static void append(struct software_device *dev, struct hl_stream_handle *stream, struct software_task *task)
{
    if (stream->tail)
        stream->tail->next = task;
    else
        stream->head = task;
    for (; task; task = task->next) {
        task->sequence = ++stream->submitted;
        stream->tail = task;
        dev->counts.submitted++;
    }
    pthread_cond_signal(&stream->wake);
}

hl_status hl_software_submit(hl_device *handle, hl_stream stream_handle, struct software_task *task,
                             size_t *accepted, hl_error *err)
{
    struct software_device *dev = software(handle);
    size_t count = task->piece_count;
    pthread_mutex_lock(&dev->lock);
    struct hl_stream_handle *stream = hl_software_find_stream(dev, stream_handle);
    hl_status status = check_submission(dev, stream, err);
    if (status) {
        count = 0;
    } else if (dev->fail_submit && --dev->fail_submit == 0) {
        status = HL_FAIL_DEVICE(err, HL_E_DEVICE, HL_SOFTWARE_STAGE, dev->fail_submit_code,
                                "submission failed with code %d, as the test asked", dev->fail_submit_code);
        count = accepted ? count / 2 : 0;
        task->piece_count = count;
    }
    if (!status || count)
        append(dev, stream, task);
    else
        free_tasks(task);
    pthread_mutex_unlock(&dev->lock);
    if (accepted)
        *accepted = count;
    return status;
}

hl_status hl_software_stream_create(hl_device *handle, hl_stream *out, hl_error *err)
{
    struct software_device *dev = software(handle);
    hl_status status = hl_software_check_entered(handle, "stream_create", err);
    if (status)
        return status;
    struct hl_stream_handle *stream = calloc(1, sizeof *stream);
    if (!stream)
        return HL_FAIL(err, HL_E_NOMEM, HL_SOFTWARE_STAGE, "no memory for a stream");
    hl_software_init_stream(dev, stream);
    pthread_mutex_lock(&dev->lock);
    status = start_thread(dev, stream, err);
    if (status)
        goto err_free;
    struct hl_stream_handle *last = &dev->null_stream;
    while (last->next)
        last = last->next;
    last->next = stream;
    dev->counts.streams++;
    pthread_mutex_unlock(&dev->lock);
    *out = stream;
    return HL_OK;
err_free:
    pthread_mutex_unlock(&dev->lock);
    pthread_cond_destroy(&stream->wake);
    free(stream);
    return status;
}

struct point {
    const struct hl_stream_handle *stream;
    uint64_t sequence;
};

static bool is_reached(struct software_device *dev, const void *arg)
{
    (void)dev;
    const struct point *point = arg;
    return point->stream->completed >= point->sequence;
}

/* Lock held. Waits for what the stream has been given so far. */
static void drain(struct software_device *dev, const struct hl_stream_handle *stream)
{
    const struct point last = {stream, stream->submitted};
    hl_software_await(dev, is_reached, &last);
}

hl_status hl_software_stream_destroy(hl_device *handle, hl_stream stream, hl_error *err)
{
    struct software_device *dev = software(handle);
    hl_status status = hl_software_check_entered(handle, "stream_destroy", err);
    if (status)
        return status;
    pthread_mutex_lock(&dev->lock);
    if (!stream || !hl_software_find_stream(dev, stream)) {
        pthread_mutex_unlock(&dev->lock);
        return HL_FAIL_DEVICE(err, HL_E_INVALID, HL_SOFTWARE_STAGE, SOFTWARE_INVALID_HANDLE,
                              "stream: not a live stream of this device");
    }
    drain(dev, stream);
    struct hl_stream_handle *before = &dev->null_stream;
    while (before->next != stream)
        before = before->next;
    before->next = stream->next;
    dev->counts.streams--;
    pthread_mutex_unlock(&dev->lock);
    hl_software_stop_stream(dev, stream);
    free(stream);
    return HL_OK;
}

/* Lock held. */
static hl_status stream_outcome(const struct hl_stream_handle *stream, hl_error *err)
{
    if (!stream->error)
        return HL_OK;
    return HL_FAIL_DEVICE(err, HL_E_DEVICE, HL_SOFTWARE_STAGE, stream->error,
                          "work of this stream failed with code %d", stream->error);
}

static hl_status look_at_stream(hl_device *handle, hl_stream stream_handle, bool wait, hl_error *err)
{
    struct software_device *dev = software(handle);
    pthread_mutex_lock(&dev->lock);
    hl_status status;
    const struct hl_stream_handle *stream = hl_software_find_stream(dev, stream_handle);
    if (!stream) {
        status = HL_FAIL_DEVICE(err, HL_E_INVALID, HL_SOFTWARE_STAGE, SOFTWARE_INVALID_HANDLE,
                                "stream: not a live stream of this device");
    } else {
        if (wait)
            drain(dev, stream);
        status = stream->completed < stream->submitted && !wait ? HL_PENDING : stream_outcome(stream, err);
    }
    pthread_mutex_unlock(&dev->lock);
    return status;
}

hl_status hl_software_stream_query(hl_device *handle, hl_stream stream, hl_error *err)
{
    hl_status status = hl_software_check_entered(handle, "stream_query", err);
    return status ? status : look_at_stream(handle, stream, false, err);
}

hl_status hl_software_stream_synchronize(hl_device *handle, hl_stream stream, hl_error *err)
{
    hl_status status = hl_software_check_entered(handle, "stream_synchronize", err);
    return status ? status : look_at_stream(handle, stream, true, err);
}
