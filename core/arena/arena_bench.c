/* Measures the allocator at growing numbers of live allocations and first touch with growing numbers of
 * threads. Writes a table to standard output and, with --json PATH, the same figures as JSON. Needs at most
 * --touch-mib of memory (512). */
#include <inttypes.h>
#include <jansson.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/arena/allocator.h"
#include "core/arena/arena.h"
#include "core/base/clock.h"
#include "core/base/random.h"
#include "hostlane/limits.h"

enum { ROUNDS = 7, OPERATIONS = 100000, TOUCH_ROUNDS = 3 };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, unsigned count)
{
    qsort(values, count, sizeof values[0], by_value);
    return values[count / 2];
}

static void must(hl_status status, const hl_error *err)
{
    if (status == HL_OK)
        return;
    fprintf(stderr, "arena_bench: %s: %s\n", hl_status_name(status), err->text);
    exit(1);
}

/* --- the allocator --- */

/* 4 KiB to 4 MiB, each power of two equally often. */
static uint64_t block_size(hl_random *random)
{
    uint64_t low = 4096ull << hl_random_below(random, 10);
    return low + hl_random_below(random, low);
}

struct allocator_figures {
    uint64_t live;
    uint64_t free_ranges;
    double alloc_ns;
    double free_ns;
    double find_ns;
};

/* Frees and allocates a random batch at a time, so that the number of live allocations stays near `live`. */
static void measure_round(hl_allocator *allocator, uint64_t *ids, uint64_t live, hl_random *random,
                          double *alloc_ns, double *free_ns, double *find_ns)
{
    uint64_t batch = live / 4 < 4096 ? live / 4 : 4096, done = 0;
    uint64_t *slots = calloc(batch, sizeof *slots), *sizes = calloc(batch, sizeof *sizes);
    int64_t freeing = 0, allocating = 0, finding = 0;
    struct hl_allocation allocation;
    hl_error err;
    if (!slots || !sizes)
        exit(1);
    for (; done < OPERATIONS; done += batch) {
        uint64_t start = hl_random_below(random, live);
        for (uint64_t i = 0; i < batch; i++) { /* distinct slots, far apart */
            slots[i] = (start + i * (live / batch)) % live;
            sizes[i] = block_size(random);
        }
        int64_t t0 = hl_clock_ns();
        for (uint64_t i = 0; i < batch; i++)
            must(hl_allocator_find(allocator, ids[slots[i]], &allocation, &err), &err);
        int64_t t1 = hl_clock_ns();
        for (uint64_t i = 0; i < batch; i++)
            must(hl_allocator_free(allocator, ids[slots[i]], &err), &err);
        int64_t t2 = hl_clock_ns();
        for (uint64_t i = 0; i < batch; i++) {
            must(hl_allocator_alloc(allocator, sizes[i], &allocation, &err), &err);
            ids[slots[i]] = allocation.id;
        }
        finding += t1 - t0;
        freeing += t2 - t1;
        allocating += hl_clock_ns() - t2;
    }
    *alloc_ns = (double)allocating / (double)done;
    *free_ns = (double)freeing / (double)done;
    *find_ns = (double)finding / (double)done;
    free(slots);
    free(sizes);
}

static struct allocator_figures measure_allocator(uint64_t live)
{
    hl_allocator *allocator = NULL;
    hl_random random;
    hl_error err;
    struct hl_allocation allocation;
    struct hl_arena_stats stats;
    double alloc_ns[ROUNDS], free_ns[ROUNDS], find_ns[ROUNDS];
    uint64_t *ids = calloc(2 * live, sizeof *ids);
    if (!ids)
        exit(1);
    hl_random_seed(&random, live);
    must(hl_allocator_create(HL_ARENA_MAX_BYTES, HL_ARENA_CHUNK_BYTES, NULL, &allocator, &err), &err);
    for (uint64_t i = 0; i < 2 * live; i++) {
        must(hl_allocator_alloc(allocator, block_size(&random), &allocation, &err), &err);
        ids[i] = allocation.id;
    }
    for (uint64_t i = 0; i < live; i++) { /* a random half goes: the tree of free ranges gets large too */
        uint64_t other = i + hl_random_below(&random, 2 * live - i), id = ids[other];
        ids[other] = ids[i];
        must(hl_allocator_free(allocator, id, &err), &err);
    }
    for (unsigned round = 0; round < ROUNDS; round++)
        measure_round(allocator, ids + live, live, &random, &alloc_ns[round], &free_ns[round],
                      &find_ns[round]);
    hl_allocator_get_stats(allocator, &stats);
    hl_allocator_destroy(allocator);
    free(ids);
    return (struct allocator_figures){live, stats.free_ranges, median(alloc_ns, ROUNDS),
                                      median(free_ns, ROUNDS), median(find_ns, ROUNDS)};
}

static json_t *bench_allocator(void)
{
    json_t *rows = json_array();
    printf("allocator, 4 KiB to 4 MiB in 16 TiB, medians of %d rounds of %d calls\n", ROUNDS, OPERATIONS);
    printf("%10s %12s %10s %10s %10s\n", "live", "free ranges", "alloc ns", "free ns", "find ns");
    for (uint64_t live = 1000; live <= 1000000; live *= 10) {
        struct allocator_figures f = measure_allocator(live);
        printf("%10" PRIu64 " %12" PRIu64 " %10.0f %10.0f %10.0f\n", f.live, f.free_ranges, f.alloc_ns,
               f.free_ns, f.find_ns);
        json_array_append_new(rows, json_pack("{s:I, s:I, s:f, s:f, s:f}", "live", (json_int_t)f.live,
                                              "free_ranges", (json_int_t)f.free_ranges, "alloc_ns",
                                              f.alloc_ns, "free_ns", f.free_ns, "find_ns", f.find_ns));
    }
    return rows;
}

/* --- first touch --- */

static double touch_gib_per_s(uint64_t bytes, unsigned threads)
{
    double rates[TOUCH_ROUNDS];
    for (unsigned round = 0; round < TOUCH_ROUNDS; round++) {
        struct hl_arena_options options = {
            .arena_id = 1, .bytes = bytes, .numa_node = -1, .threads = threads};
        hl_arena *arena = NULL;
        hl_error err;
        int64_t start = hl_clock_ns();
        must(hl_arena_create(&options, &arena, &err), &err);
        rates[round] =
            (double)bytes / (double)HL_GIB / ((double)(hl_clock_ns() - start) / (double)HL_NS_PER_S);
        hl_arena_destroy(arena);
    }
    return median(rates, TOUCH_ROUNDS);
}

static json_t *bench_touch(uint64_t bytes)
{
    json_t *rows = json_array();
    cpu_set_t cpus;
    unsigned most = 1;
    if (sched_getaffinity(0, sizeof cpus, &cpus) == 0)
        most = (unsigned)CPU_COUNT(&cpus);
    most = most > HL_ARENA_TOUCH_THREADS ? HL_ARENA_TOUCH_THREADS : most;
    printf("creating an arena of %" PRIu64 " MiB (regular pages), medians of %d\n",
           (uint64_t)(bytes / HL_MIB), TOUCH_ROUNDS);
    printf("%10s %10s\n", "threads", "GiB/s");
    for (unsigned threads = 1;; threads = 2 * threads < most ? 2 * threads : most) {
        double rate = touch_gib_per_s(bytes, threads);
        printf("%10u %10.2f\n", threads, rate);
        json_array_append_new(rows, json_pack("{s:i, s:I, s:f}", "threads", (int)threads, "bytes",
                                              (json_int_t)bytes, "gib_per_s", rate));
        if (threads == most)
            return rows;
    }
}

int main(int argc, char **argv)
{
    const char *path = NULL;
    uint64_t touch_mib = 512;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--json") && i + 1 < argc) {
            path = argv[++i];
        } else if (!strcmp(argv[i], "--touch-mib") && i + 1 < argc) {
            touch_mib = strtoull(argv[++i], NULL, 10);
        } else {
            fprintf(stderr, "usage: arena_bench [--json PATH] [--touch-mib N]\n");
            return 2;
        }
    }
    json_t *allocator = bench_allocator();
    json_t *figures = json_pack("{s:s, s:o, s:o}", "benchmark", "arena", "allocator", allocator,
                                "first_touch", bench_touch(touch_mib * HL_MIB));
    int failed = path && json_dump_file(figures, path, JSON_INDENT(2) | JSON_REAL_PRECISION(6)) != 0;
    if (failed)
        fprintf(stderr, "arena_bench: cannot write %s\n", path);
    json_decref(figures);
    return failed;
}
