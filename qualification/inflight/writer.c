#include "qualification/inflight/writer.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/memfd.h"
#include "core/device/software.h"
#include "qualification/restore/world.h"

/* Inherited under this number. */
enum { SOURCES_FD = 202 };
enum { PIECE = 256 << 10, BLOCKS = 16 };

#define STAGE "inflight.writer"

/* On a GPU 512 MiB, with 2 GiB from mark to mark and 128 GiB in all. */
struct writer_scale writer_scale(void)
{
    if (world_wants_cuda())
        return (struct writer_scale){.bytes = 512ull << 20, .passes = 256, .every = 4, .watch_ns = 150000000};
    return (struct writer_scale){.rehearsal = true,
                                 .bytes = 512 << 10,
                                 .passes = 64,
                                 .every = 1,
                                 .repetitions = 3,
                                 .speed = 8 << 20,
                                 .watch_ns = 20000000};
}

/* --- in the test's process --- */

void writer_make_sources(const struct writer_scale *scale)
{
    hl_error err;
    void *base;
    int fd;
    MUST_OK(hl_memfd_create("inflight-sources", 0, 2 * scale->bytes, STAGE, &fd, &err), err);
    MUST_OK(hl_memfd_map(fd, 2 * scale->bytes, STAGE, &base, &err), err);
    uint64_t *words = base;
    const uint64_t count = scale->bytes / sizeof *words;
    for (uint64_t i = 0; i < count; i++) {
        words[i] = i * 0x9e3779b97f4a7c15ull;
        words[count + i] = ~words[i];
    }
    munmap(base, 2 * scale->bytes);
    MUST(dup2(fd, SOURCES_FD) == SOURCES_FD);
    close(fd);
}

void writer_drop_sources(void)
{
    close(SOURCES_FD);
}

void writer_start(struct process *victim, const struct hl_ipc_export *memory, bool kernel)
{
    struct process_message message = {.verb = kernel};
    _Static_assert(sizeof *memory <= sizeof message.text, "an export fits a message");
    memcpy(message.text, memory, sizeof *memory);
    process_start(victim, "writer");
    process_ask(victim, &message);
}

/* --- in the victim --- */

static struct {
    struct writer_scale scale;
    hl_device *dev;
    const struct hl_device_ops *ops;
    struct marks *marks;
    hl_devptr word, memory, mapped; /* the marks, the other's memory, the sources */
    void *sources;
    hl_devptr descriptors[2]; /* of a pass of each source */
    uint32_t count;
    hl_stream stream;
    hl_error err;
} role;

/* Memory that the device can read, with the descriptors of both passes. */
static void make_descriptors(void)
{
    const size_t one = role.count * sizeof(struct hl_gather);
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = (2 * one + page - 1) / page * page;
    struct hl_gather *list =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    hl_devptr mapped;
    MUST(list != MAP_FAILED);
    for (uint32_t i = 0; i < 2 * role.count; i++)
        list[i] = (struct hl_gather){.dst = role.memory + (uint64_t)(i % role.count) * PIECE,
                                     .src = role.mapped + (uint64_t)i * PIECE,
                                     .bytes = PIECE};
    MUST_OK(role.ops->host_register(role.dev, list, bytes, &role.err), role.err);
    MUST_OK(role.ops->host_pointer(role.dev, list, &mapped, &role.err), role.err);
    role.descriptors[0] = mapped;
    role.descriptors[1] = mapped + one;
}

static void open_device(const struct hl_ipc_export *memory)
{
    const struct hl_software_options slow = {.bytes_per_second = role.scale.speed};
    hl_error *err = &role.err;
    if (world_wants_cuda())
        MUST_OK(hl_device_open_cuda(0, &role.dev, err), *err);
    else
        MUST_OK(hl_device_open_software_with(&slow, &role.dev, err), *err);
    role.ops = role.dev->ops;
    MUST_OK(hl_device_enter(role.dev, err), *err);
    MUST_OK(hl_memfd_map(SOURCES_FD, 2 * role.scale.bytes, STAGE, &role.sources, err), *err);
    MUST_OK(role.ops->host_register(role.dev, role.sources, 2 * role.scale.bytes, err), *err);
    MUST_OK(role.ops->host_pointer(role.dev, role.sources, &role.mapped, err), *err);
    MUST_OK(role.ops->ipc_import(role.dev, memory, &role.memory, err), *err);
    MUST_OK(role.ops->stream_create(role.dev, &role.stream, err), *err);
    role.word = marks_register(role.marks, role.dev);
    role.count = (uint32_t)(role.scale.bytes / PIECE);
    make_descriptors();
}

static void submit_pass(uint32_t pass, bool kernel)
{
    hl_error *err = &role.err;
    if (!kernel) {
        const uint64_t source = (uintptr_t)role.sources + pass % 2 * role.scale.bytes;
        MUST_OK(
            role.ops->copy(role.dev, HL_COPY_H2D, role.memory, source, role.scale.bytes, role.stream, err),
            *err);
        return;
    }
    const struct hl_gather_launch launch = {.descriptors = role.descriptors[pass % 2],
                                            .count = role.count,
                                            .blocks = BLOCKS,
                                            .method =
                                                role.dev->info.bulk_copy ? HL_GATHER_BULK : HL_GATHER_LOADS};
    MUST_OK(role.ops->gather(role.dev, &launch, role.stream, err), *err);
}

int writer_role(int channel)
{
    struct process_message message;
    struct hl_ipc_export memory;
    MUST(process_hear(channel, &message));
    memcpy(&memory, message.text, sizeof memory);
    role.scale = writer_scale();
    role.marks = marks_open();
    open_device(&memory);
    for (uint32_t pass = 1; pass <= role.scale.passes; pass++) {
        submit_pass(pass, message.verb);
        if (pass % role.scale.every != 0)
            continue;
        const uint32_t mark = pass / role.scale.every;
        MUST_OK(role.ops->stream_write_value(role.dev, role.stream, role.word, mark, &role.err), role.err);
        atomic_store(&role.marks->submitted, mark);
    }
    process_say(channel, &message);
    process_hear(channel, &message); /* until the kill */
    return 1;
}
