/* Measures what no document says: whether the device still writes to memory of a living process after the
 * death of the process that gave it the copies has been reaped. Prints what was seen; fails only when the
 * measurement itself did not come about, whatever the answer.
 *
 * The survivor, this process, owns device memory and shares it by an IPC handle. A victim opens it and gives
 * the device a long queue of copies into it, by copy engines or by the gather kernel, with progress marks;
 * passes of two different contents take turns, so that a page that is written again changes. The survivor
 * kills the victim while copies are in flight, reaps it, and from then on takes the checksums of all pages
 * again and again on a stream of its own: each sum that differs from the one before is a write that landed
 * after the reap. A process that is left alive is watched first, as a control. What lands before a page is
 * first read cannot be seen; the record says when that was. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/memfd.h"
#include "core/testing/cunit.h"
#include "qualification/inflight/record.h"
#include "qualification/inflight/writer.h"
#include "qualification/restore/world.h"

const struct process_role process_roles[] = {WRITER_ROLE};
const unsigned process_role_count = sizeof process_roles / sizeof process_roles[0];

#define STAGE "inflight.late_writes"
enum { PAGE = 64 << 10, REPETITIONS = 20, FEWEST = 5, LONGEST_S = 20 };

struct survivor {
    hl_device *dev;
    struct marks *marks;
    struct writer_scale scale;
    hl_devptr memory;
    struct hl_ipc_export export;
    hl_stream stream;
    uint32_t pages;
    uint64_t *tables; /* registered: the pages' offsets, then two snapshots of their sums */
    size_t table_bytes;
    hl_devptr mapped;
    hl_error err;
};

struct seen {
    struct marks_death death;
    uint32_t snapshots, changed; /* snapshots that differed from the one before */
    uint32_t pages;              /* most pages that differed at once */
    uint32_t late_marks;         /* written after the reap */
    int64_t first_ns, last_ns;   /* from the reap: first snapshot begun, last difference seen; 0: none */
    int64_t watched_ns;
};

static uint64_t *table(struct survivor *survivor, unsigned which)
{
    return survivor->tables + (size_t)which * survivor->pages;
}

static void open_survivor(struct survivor *survivor)
{
    *survivor = (struct survivor){.scale = writer_scale()};
    hl_error *err = &survivor->err;
    survivor->marks = marks_create();
    writer_make_sources(&survivor->scale);
    if (world_wants_cuda())
        MUST_OK(hl_device_open_cuda(0, &survivor->dev, err), *err);
    else
        MUST_OK(hl_device_open_software(&survivor->dev, err), *err);
    const struct hl_device_ops *ops = survivor->dev->ops;
    MUST_OK(hl_device_enter(survivor->dev, err), *err);
    MUST_OK(ops->mem_alloc(survivor->dev, survivor->scale.bytes, &survivor->memory, err), *err);
    MUST_OK(ops->ipc_export(survivor->dev, survivor->memory, &survivor->export, err), *err);
    MUST_OK(ops->stream_create(survivor->dev, &survivor->stream, err), *err);
    survivor->pages = (uint32_t)(survivor->scale.bytes / PAGE);
    const size_t system = (size_t)sysconf(_SC_PAGESIZE);
    survivor->table_bytes = (3 * survivor->pages * sizeof(uint64_t) + system - 1) / system * system;
    survivor->tables = mmap(NULL, survivor->table_bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    MUST(survivor->tables != MAP_FAILED);
    MUST_OK(ops->host_register(survivor->dev, survivor->tables, survivor->table_bytes, err), *err);
    MUST_OK(ops->host_pointer(survivor->dev, survivor->tables, &survivor->mapped, err), *err);
    for (uint32_t i = 0; i < survivor->pages; i++)
        survivor->tables[i] = (uint64_t)i * PAGE;
}

static void close_survivor(struct survivor *survivor)
{
    const struct hl_device_ops *ops = survivor->dev->ops;
    hl_error *err = &survivor->err;
    MUST_OK(ops->host_unregister(survivor->dev, survivor->tables, err), *err);
    MUST_OK(ops->stream_destroy(survivor->dev, survivor->stream, err), *err);
    MUST_OK(ops->mem_free(survivor->dev, survivor->memory, err), *err);
    hl_device_leave(survivor->dev);
    hl_device_close(survivor->dev);
    munmap(survivor->tables, survivor->table_bytes);
    marks_close(survivor->marks);
    writer_drop_sources();
}

static void take_sums(struct survivor *survivor, unsigned which)
{
    const struct hl_device_ops *ops = survivor->dev->ops;
    const struct hl_checksum_launch launch = {.base = survivor->memory,
                                              .offsets = survivor->mapped,
                                              .sums = survivor->mapped +
                                                      (uint64_t)which * survivor->pages * sizeof(uint64_t),
                                              .page_bytes = PAGE,
                                              .count = survivor->pages};
    MUST_OK(ops->checksum(survivor->dev, &launch, survivor->stream, &survivor->err), survivor->err);
    MUST_OK(ops->stream_synchronize(survivor->dev, survivor->stream, &survivor->err), survivor->err);
}

static uint32_t count_differences(struct survivor *survivor)
{
    uint32_t differ = 0;
    for (uint32_t i = 0; i < survivor->pages; i++)
        differ += table(survivor, 1)[i] != table(survivor, 2)[i];
    return differ;
}

/* From the reap on, for as long as the scale says after the last difference. */
static void watch(struct survivor *survivor, struct seen *seen)
{
    const int64_t reaped = seen->death.reaped_ns;
    int64_t until = reaped + survivor->scale.watch_ns, now;
    seen->first_ns = hl_clock_ns() - reaped;
    do {
        take_sums(survivor, 1 + seen->snapshots % 2);
        now = hl_clock_ns();
        const uint32_t differ = seen->snapshots++ > 0 ? count_differences(survivor) : 0;
        if (differ > 0) {
            seen->changed++;
            seen->last_ns = now - reaped;
            until = now + survivor->scale.watch_ns;
        }
        seen->pages = differ > seen->pages ? differ : seen->pages;
    } while (now < until || seen->snapshots < 2);
    seen->watched_ns = now - reaped;
    seen->late_marks = atomic_load(&survivor->marks->progress) - seen->death.reaped;
}

/* The control: how many snapshots it takes to see a living process's copies; 0: all of them came to their end
 * unseen, and then what is not seen of a dead one means nothing. */
static uint32_t watch_living(struct survivor *survivor, bool kernel)
{
    const uint32_t end = survivor->scale.passes / survivor->scale.every;
    struct process writer;
    uint32_t snapshots = 0, differ = 0;
    marks_clear(survivor->marks);
    writer_start(&writer, &survivor->export, kernel);
    while (differ == 0 && atomic_load(&survivor->marks->progress) < end) {
        take_sums(survivor, 1 + snapshots % 2);
        differ = snapshots++ > 0 ? count_differences(survivor) : 0;
    }
    process_kill(&writer);
    return differ > 0 ? snapshots : 0;
}

/* The n-th victim dies at another mark than the one before. */
static void observe(struct survivor *survivor, bool kernel, unsigned n, struct seen *seen)
{
    struct process victim;
    *seen = (struct seen){0};
    marks_clear(survivor->marks);
    writer_start(&victim, &survivor->export, kernel);
    marks_kill(survivor->marks, 1 + n % 5, victim.pid, &seen->death);
    close(victim.channel);
    watch(survivor, seen);
}

static json_t *describe(const struct seen *seen)
{
    json_t *last = seen->changed ? json_real((double)seen->last_ns / 1e6) : json_null();
    return json_pack("{s:o, s:f, s:i, s:f, s:i, s:i, s:o, s:i}", "death", record_death(&seen->death),
                     "reap_to_first_snapshot_ms", (double)seen->first_ns / 1e6, "snapshots",
                     (int)seen->snapshots, "watched_after_the_reap_ms", (double)seen->watched_ns / 1e6,
                     "snapshots_that_differed", (int)seen->changed, "most_pages_that_differed",
                     (int)seen->pages, "reap_to_last_change_ms", last, "marks_after_the_reap",
                     (int)seen->late_marks);
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

struct summary {
    unsigned count, proven, late;
    double first_ms, last_ms, watched_ms, reap_ms;
};

static void sum_up(struct summary *all, const struct seen *seen)
{
    const double watched = (double)seen->watched_ns / 1e6;
    all->watched_ms = all->count == 0 || watched < all->watched_ms ? watched : all->watched_ms;
    all->count++;
    all->proven += marks_prove_flight(&seen->death);
    all->late += seen->changed > 0 || seen->late_marks > 0;
    all->first_ms = larger(all->first_ms, (double)seen->first_ns / 1e6);
    all->last_ms = larger(all->last_ms, (double)seen->last_ns / 1e6);
    all->reap_ms = larger(all->reap_ms, (double)(seen->death.reaped_ns - seen->death.kill_ns) / 1e6);
}

static void say(const struct survivor *survivor, const struct summary *all, const char *way, char *text,
                size_t size)
{
    const char *where = survivor->dev->info.name;
    if (all->late == 0)
        snprintf(
            text, size,
            "On %s, of %u processes killed with copies in flight by %s and reaped at most %.1f ms later, "
            "none was seen to change the surviving memory between the first look, begun at most %.3f ms "
            "after the reap, and the last, at least %.0f ms after it.",
            where, all->count, way, all->reap_ms, all->first_ms, all->watched_ms);
    else
        snprintf(
            text, size,
            "On %s, of %u processes killed with copies in flight by %s, %u had writes or marks land after "
            "the death was reaped, the last change of the memory seen %.3f ms after the reap.",
            where, all->count, way, all->late, all->last_ms);
}

static void measure(bool kernel)
{
    struct survivor survivor;
    struct summary all = {0};
    char verdict[512];
    const char *way = kernel ? "the gather kernel" : "the copy engines";
    json_t *list = json_array();
    open_survivor(&survivor);
    const uint32_t control = watch_living(&survivor, kernel);
    CU_ASSERT_TRUE(control > 0);
    const int64_t until = hl_clock_ns() + LONGEST_S * HL_NS_PER_S;
    const unsigned wanted = survivor.scale.repetitions ? survivor.scale.repetitions : REPETITIONS;
    const unsigned fewest = wanted < FEWEST ? wanted : FEWEST;
    while (all.count < wanted && (all.count < fewest || hl_clock_ns() < until)) {
        struct seen seen;
        observe(&survivor, kernel, all.count, &seen);
        sum_up(&all, &seen);
        json_array_append_new(list, describe(&seen));
    }
    CU_ASSERT_EQUAL(all.proven, all.count);
    say(&survivor, &all, way, verdict, sizeof verdict);
    printf("%s%s\n", survivor.scale.rehearsal ? "REHEARSAL, evidence for nothing: " : "", verdict);
    record_add(json_pack("{s:s, s:s, s:o, s:I, s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:o}", "case",
                         "writes_after_the_reap", "way", way, "device", record_device(survivor.dev),
                         "destination_bytes", (json_int_t)survivor.scale.bytes, "passes",
                         (int)survivor.scale.passes, "passes_from_mark_to_mark", (int)survivor.scale.every,
                         "snapshots_to_see_a_living_process_write", (int)control, "repetitions",
                         (int)all.count, "in_flight_at_the_kill", (int)all.proven,
                         "with_writes_after_the_reap", (int)all.late, "verdict", verdict, "seen", list));
    close_survivor(&survivor);
}

static void writes_of_copy_engines_after_the_reap_are_measured(void)
{
    measure(false);
}

static void writes_of_the_kernel_after_the_reap_are_measured(void)
{
    measure(true);
}

HL_TESTS(late_writes, HL_CASE(writes_of_copy_engines_after_the_reap_are_measured),
         HL_CASE(writes_of_the_kernel_after_the_reap_are_measured));
