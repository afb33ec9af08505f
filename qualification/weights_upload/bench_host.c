/* The parts of an upload, each alone: what the link takes from pinned memory, what threads move from the page
 * cache into memory like a slot's, what pinning costs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "hostlane/limits.h"
#include "qualification/weights_upload/upload_bench.h"

/* --- the ceiling --- */

static int64_t copy_once(struct bench_world *world)
{
    const struct hl_device_ops *ops = world->dev->ops;
    hl_error err;
    const int64_t start = hl_clock_ns();
    hl_status status = ops->copy(world->dev, HL_COPY_H2D, world->memory, (uintptr_t)world->pinned,
                                 world->bytes, world->stream, &err);
    if (!status)
        status = ops->stream_synchronize(world->dev, world->stream, &err);
    bench_must(status, "the ceiling's copy", &err);
    return hl_clock_ns() - start;
}

void bench_measure_ceiling(struct bench_world *world, const char *when)
{
    int64_t ns[BENCH_SAMPLES];
    json_t *samples = json_array();
    for (unsigned i = 0; i < world->options->samples + 1; i++) {
        ns[i] = copy_once(world);
        json_array_append_new(samples, json_integer(ns[i]));
    }
    const double rate = bench_rate(world->bytes, bench_median(ns + 1, world->options->samples));
    if (rate > world->ceiling)
        world->ceiling = rate;
    printf("ceiling, %s: %.2f GB/s\n", when, rate / 1e9);
    json_array_append_new(world->ceilings,
                          json_pack("{s:s, s:f, s:o}", "when", when, "bytes_per_s", rate, "ns", samples));
}

static void add_part(struct bench_world *world, const char *what, unsigned threads, uint64_t unit,
                     uint64_t bytes, int64_t ns)
{
    const double rate = bench_rate(bytes, ns);
    printf("part: %-34s %2u threads, %5llu KiB at once %9.3f ms %7.2f GB/s\n", what, threads,
           (unsigned long long)(unit / HL_KIB), (double)ns / 1e6, rate / 1e9);
    fflush(stdout);
    json_array_append_new(world->parts,
                          json_pack("{s:s, s:i, s:I, s:I, s:I, s:f}", "what", what, "threads", (int)threads,
                                    "unit_bytes", (json_int_t)unit, "bytes", (json_int_t)bytes, "ns",
                                    (json_int_t)ns, "bytes_per_s", rate));
}

/* --- page cache to memory --- */

struct moving {
    const struct bench_world *world;
    uint64_t slot_bytes, limit;
    unsigned char *slots; /* four a thread, as they would be in a ring */
};

static void read_slot(const struct moving *moving, const hl_weight_region *region, uint64_t offset,
                      unsigned char *slot)
{
    const uint64_t bytes = moving->slot_bytes;
    if (pread(region->fd, slot, bytes, (off_t)offset) != (ssize_t)bytes)
        bench_die("a file ended early", NULL);
}

static void move_share(void *context, unsigned index, unsigned threads)
{
    const struct moving *moving = context;
    uint64_t number = 0, moved = 0;
    for (size_t i = 0; i < hl_weight_lease_region_count(moving->world->lease); i++) {
        const hl_weight_region *region = hl_weight_lease_region_at(moving->world->lease, i);
        for (uint64_t at = 0; at + moving->slot_bytes <= region->length && moved < moving->limit;
             at += moving->slot_bytes, number++, moved += moving->slot_bytes)
            if (number % threads == index)
                read_slot(moving, region, at,
                          moving->slots + (index * 4 + number / threads % 4) * moving->slot_bytes);
    }
}

static uint64_t whole_slots(const struct moving *moving)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < hl_weight_lease_region_count(moving->world->lease); i++)
        bytes += hl_weight_lease_region_at(moving->world->lease, i)->length / moving->slot_bytes *
                 moving->slot_bytes;
    return bytes < moving->limit
               ? bytes
               : (moving->limit + moving->slot_bytes - 1) / moving->slot_bytes * moving->slot_bytes;
}

static void measure_moving(struct bench_world *world)
{
    const unsigned cpus = bench_cpus(), all[] = {1, 12};
    struct moving moving = {.world = world, .slot_bytes = 2 * HL_MIB};
    const uint64_t bytes = 4 * HL_UPLOAD_THREADS * moving.slot_bytes;
    moving.slots = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (moving.slots == MAP_FAILED)
        bench_die("no memory for slots", NULL);
    (void)madvise(moving.slots, bytes, MADV_HUGEPAGE);
    memset(moving.slots, 1, 4ull * (cpus < 16 ? cpus : 16) * moving.slot_bytes);
    for (size_t i = 0; i < sizeof all / sizeof *all && all[i] <= cpus; i++) {
        moving.limit = all[i] * HL_GIB;
        bench_parallel(all[i], move_share, &moving); /* caches as they stay */
        const int64_t ns = bench_parallel(all[i], move_share, &moving);
        add_part(world, "pread into slots", all[i], moving.slot_bytes, whole_slots(&moving), ns);
    }
    munmap(moving.slots, bytes);
}

/* --- pinning --- */

enum step { POPULATE, PIN, UNPIN };

struct pinning {
    const struct bench_world *world;
    enum step step;
    uint64_t piece_bytes;
};

static void pin_piece(const struct pinning *pinning, void *pages, uint64_t bytes)
{
    hl_device *dev = pinning->world->dev;
    hl_error err;
    if (pinning->step == POPULATE)
        (void)madvise(pages, bytes, MADV_POPULATE_READ);
    else
        bench_must(pinning->step == PIN ? dev->ops->host_register_read(dev, pages, bytes, &err)
                                        : dev->ops->host_unregister(dev, pages, &err),
                   "pinning the lease's pages", &err);
}

static void pin_share(void *context, unsigned index, unsigned threads)
{
    const struct pinning *pinning = context;
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t number = 0;
    hl_error err;
    bench_must(hl_device_enter(pinning->world->dev, &err), "the device cannot be entered", &err);
    for (size_t i = 0; i < hl_weight_lease_region_count(pinning->world->lease); i++) {
        const hl_weight_region *region = hl_weight_lease_region_at(pinning->world->lease, i);
        for (uint64_t at = 0; at < region->length; at += pinning->piece_bytes, number++) {
            const uint64_t left = (region->length - at + page - 1) / page * page;
            if (number % threads == index)
                pin_piece(pinning, (char *)(uintptr_t)region->address + at,
                          left < pinning->piece_bytes ? left : pinning->piece_bytes);
        }
    }
    hl_device_leave(pinning->world->dev);
}

static void measure_pinning(struct bench_world *world)
{
    static const struct {
        unsigned threads;
        uint64_t mib;
    } ways[] = {{1, 64}, {2, 64}};
    static const char *const names[] = {"tmpfs: map pages", "tmpfs: pin", "tmpfs: unpin"};
    if (!world->tmpfs || !world->dev->info.read_only_registration)
        return;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct pinning pinning = {.world = world, .piece_bytes = ways[i].mib * HL_MIB};
        bench_lease_renew(world);
        for (pinning.step = POPULATE; pinning.step <= UNPIN; pinning.step++)
            add_part(world, names[pinning.step], ways[i].threads, pinning.piece_bytes, world->bytes,
                     bench_parallel(ways[i].threads, pin_share, &pinning));
    }
}

/* A ring by one thread: what the first upload of a process pays when nobody shares the work. */
static void measure_ring(struct bench_world *world)
{
    const struct hl_device_ops *ops = world->dev->ops;
    const uint64_t bytes = 64 * HL_MIB, slot = 2 * HL_MIB;
    hl_error err;
    unsigned char *mapping =
        mmap(NULL, 2 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED)
        bench_die("no memory for a ring", NULL);
    (void)madvise(mapping, 2 * bytes, MADV_HUGEPAGE);
    unsigned char *ring = mapping + (-(uintptr_t)mapping & (slot - 1));
    int64_t start = hl_clock_ns();
    (void)madvise(ring, bytes, MADV_POPULATE_WRITE);
    add_part(world, "ring: first touch", 1, bytes, bytes, hl_clock_ns() - start);
    start = hl_clock_ns();
    for (uint64_t at = 0; at < bytes; at += slot)
        bench_must(ops->host_register(world->dev, ring + at, slot, &err), "pinning a ring", &err);
    add_part(world, "ring: pin", 1, slot, bytes, hl_clock_ns() - start);
    start = hl_clock_ns();
    for (uint64_t at = 0; at < bytes; at += slot)
        bench_must(ops->host_unregister(world->dev, ring + at, &err), "unpinning a ring", &err);
    add_part(world, "ring: unpin", 1, slot, bytes, hl_clock_ns() - start);
    munmap(mapping, 2 * bytes);
}

void bench_measure_parts(struct bench_world *world)
{
    add_part(world, "ceiling's buffer: pin", 1, world->pinned_bytes, world->pinned_bytes, world->pin_ns);
    measure_ring(world);
    measure_moving(world);
    measure_pinning(world);
}
