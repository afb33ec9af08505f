#include "qualification/inflight/marks.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/memfd.h"
#include "qualification/restore/process.h"

/* Inherited under this number. */
enum { MARKS_FD = 201 };

#define STAGE "inflight.marks"

static size_t page(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

struct marks *marks_open(void)
{
    void *base = mmap(NULL, page(), PROT_READ | PROT_WRITE, MAP_SHARED, MARKS_FD, 0);
    MUST(base != MAP_FAILED);
    return base;
}

struct marks *marks_create(void)
{
    hl_error err;
    int fd;
    MUST_OK(hl_memfd_create("inflight-marks", 0, page(), STAGE, &fd, &err), err);
    MUST(dup2(fd, MARKS_FD) == MARKS_FD);
    close(fd);
    return marks_open();
}

void marks_clear(struct marks *marks)
{
    atomic_store(&marks->progress, 0);
    atomic_store(&marks->submitted, 0);
    atomic_store(&marks->gate, 0);
}

void marks_close(struct marks *marks)
{
    munmap(marks, page());
    close(MARKS_FD);
}

hl_devptr marks_register(struct marks *marks, hl_device *dev)
{
    hl_devptr mapped;
    hl_error err;
    MUST_OK(dev->ops->host_register(dev, marks, page(), &err), err);
    MUST_OK(dev->ops->host_pointer(dev, marks, &mapped, &err), err);
    return mapped + offsetof(struct marks, progress);
}

void marks_unregister(struct marks *marks, hl_device *dev)
{
    hl_error err;
    MUST_OK(dev->ops->host_unregister(dev, marks, &err), err);
}

/* --- between the executor and the device --- */

/* `stream` is stored last and read first. */
static struct {
    struct marks *marks;
    const struct hl_device_ops *real;
    struct hl_device_ops ops;
    hl_devptr word;
    struct marks_plan plan;
    uint64_t pending; /* bytes since the last mark */
    _Atomic(hl_stream) stream;
} taken;

/* One copy of the executor, in whichever way it makes it. */
struct copy {
    enum { PLAIN, ROWS, BATCH, GATHER } way;
    enum hl_copy_kind kind;
    uint64_t dst, src;
    size_t dst_pitch, src_pitch, width, rows;
    const struct hl_copy *copies;
    size_t count;
    const struct hl_gather_launch *launch;
};

/* Of the passes of a launch only the last counts layers, as the counters expect it once. */
static hl_status submit_once(hl_device *dev, const struct copy *copy, bool last, hl_stream stream,
                             size_t *accepted, hl_error *err)
{
    struct hl_gather_launch launch;
    switch (copy->way) {
    case PLAIN:
        return taken.real->copy(dev, copy->kind, copy->dst, copy->src, copy->width, stream, err);
    case ROWS:
        return taken.real->copy_rows(dev, copy->kind, copy->dst, copy->dst_pitch, copy->src, copy->src_pitch,
                                     copy->width, copy->rows, stream, err);
    case BATCH:
        return taken.real->copy_batch(dev, copy->kind, copy->copies, copy->count, stream, accepted, err);
    case GATHER:
        launch = *copy->launch;
        if (!last)
            launch.layer_count = 0;
        return taken.real->gather(dev, &launch, stream, err);
    }
    return HL_E_INVALID;
}

static hl_status write_mark(hl_device *dev, hl_stream stream, hl_error *err)
{
    const uint32_t mark = atomic_load(&taken.marks->submitted) + 1; /* the worker alone writes it */
    hl_status status = taken.real->stream_write_value(dev, stream, taken.word, mark, err);
    if (status == HL_OK)
        atomic_store(&taken.marks->submitted, mark);
    if (status == HL_OK && mark == taken.plan.hold)
        status = taken.real->stream_wait_value(
            dev, stream, taken.word - offsetof(struct marks, progress) + offsetof(struct marks, gate), 1,
            err);
    return status;
}

static uint64_t count_bytes(const struct copy *copy)
{
    uint64_t bytes = 0;
    switch (copy->way) {
    case PLAIN:
        return copy->width;
    case ROWS:
        return (uint64_t)copy->width * copy->rows;
    case BATCH:
        for (size_t i = 0; i < copy->count; i++)
            bytes += copy->copies[i].bytes;
        return bytes;
    case GATHER:
        return copy->launch->count * taken.plan.piece_bytes;
    }
    return 0;
}

static hl_status submit(hl_device *dev, const struct copy *copy, hl_stream stream, size_t *accepted,
                        hl_error *err)
{
    const bool marked = copy->kind == HL_COPY_H2D && stream && stream == atomic_load(&taken.stream);
    const uint32_t passes = marked ? taken.plan.passes : 1;
    const uint64_t bytes = marked ? count_bytes(copy) : 0;
    hl_status status = HL_OK;
    for (uint32_t pass = 1; status == HL_OK && pass <= passes; pass++) {
        status = submit_once(dev, copy, pass == passes, stream, accepted, err);
        if (status != HL_OK || !marked)
            continue;
        taken.pending += bytes;
        if (taken.pending < taken.plan.mark_bytes)
            continue;
        taken.pending -= taken.plan.mark_bytes;
        status = write_mark(dev, stream, err);
    }
    return status;
}

static hl_status take_copy(hl_device *dev, enum hl_copy_kind kind, uint64_t dst, uint64_t src, size_t bytes,
                           hl_stream stream, hl_error *err)
{
    const struct copy copy = {.way = PLAIN, .kind = kind, .dst = dst, .src = src, .width = bytes};
    return submit(dev, &copy, stream, NULL, err);
}

static hl_status take_rows(hl_device *dev, enum hl_copy_kind kind, uint64_t dst, size_t dst_pitch,
                           uint64_t src, size_t src_pitch, size_t width, size_t rows, hl_stream stream,
                           hl_error *err)
{
    const struct copy copy = {.way = ROWS,
                              .kind = kind,
                              .dst = dst,
                              .src = src,
                              .dst_pitch = dst_pitch,
                              .src_pitch = src_pitch,
                              .width = width,
                              .rows = rows};
    return submit(dev, &copy, stream, NULL, err);
}

static hl_status take_batch(hl_device *dev, enum hl_copy_kind kind, const struct hl_copy *copies,
                            size_t count, hl_stream stream, size_t *accepted, hl_error *err)
{
    const struct copy copy = {.way = BATCH, .kind = kind, .copies = copies, .count = count};
    return submit(dev, &copy, stream, accepted, err);
}

static hl_status take_gather(hl_device *dev, const struct hl_gather_launch *launch, hl_stream stream,
                             hl_error *err)
{
    const struct copy copy = {.way = GATHER, .kind = HL_COPY_H2D, .launch = launch};
    return submit(dev, &copy, stream, NULL, err);
}

void marks_take_device(struct marks *marks, hl_device *dev)
{
    hl_error err;
    taken.marks = marks;
    taken.real = dev->ops;
    taken.ops = *dev->ops;
    taken.ops.copy = take_copy;
    taken.ops.copy_rows = take_rows;
    taken.ops.copy_batch = take_batch;
    taken.ops.gather = take_gather;
    MUST_OK(hl_device_enter(dev, &err), err);
    taken.word = marks_register(marks, dev);
    hl_device_leave(dev);
    dev->ops = &taken.ops;
}

void marks_arm(hl_stream stream, const struct marks_plan *plan)
{
    taken.plan = *plan;
    taken.pending = 0;
    atomic_store(&taken.stream, stream);
}

/* --- the kill --- */

void marks_kill(struct marks *marks, uint32_t at, pid_t pid, struct marks_death *death)
{
    const int64_t until = hl_clock_ns() + PATIENCE_NS;
    int status = 0;
    pid_t reaped;
    *death = (struct marks_death){0};
    bool there = false, late = false;
    while (!there && !late) {
        const uint32_t progress = atomic_load(&marks->progress);
        there = progress >= at && progress < atomic_load(&marks->submitted);
        late = hl_clock_ns() >= until;
    }
    MUST(there);
    death->mark_ns = hl_clock_ns();
    death->submitted = atomic_load(&marks->submitted);
    death->before = atomic_load(&marks->progress);
    death->kill_ns = hl_clock_ns();
    MUST(kill(pid, SIGKILL) == 0);
    death->killed_ns = hl_clock_ns();
    uint32_t seen = death->after = atomic_load(&marks->progress);
    do {
        reaped = waitpid(pid, &status, WNOHANG);
        const uint32_t now = atomic_load(&marks->progress);
        if (now != seen)
            death->last_mark_ns = hl_clock_ns();
        seen = now;
    } while (reaped == 0 || (reaped < 0 && errno == EINTR));
    MUST(reaped == pid);
    death->reaped_ns = hl_clock_ns();
    death->reaped = atomic_load(&marks->progress);
    MUST(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

bool marks_prove_flight(const struct marks_death *death)
{
    return death->before > 0 && death->after < death->submitted;
}
