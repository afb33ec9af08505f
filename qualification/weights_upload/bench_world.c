/* The device, its memory with a destination for each tensor, and what is compared. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/checked.h"
#include "hostlane/limits.h"
#include "qualification/weights_upload/upload_bench.h"

enum { GAP = 512, POISON = 0xa5, THREADS = 8 };

void bench_die(const char *what, const hl_error *err)
{
    if (err)
        fprintf(stderr, "upload_bench: %s: %s (%s in %s)\n", what, err->text, hl_status_name(err->status),
                err->stage);
    else
        fprintf(stderr, "upload_bench: %s\n", what);
    exit(1);
}

void bench_must(hl_status status, const char *what, const hl_error *err)
{
    if (status)
        bench_die(what, err);
}

/* --- threads, times --- */

struct share {
    pthread_t thread;
    void (*work)(void *context, unsigned index, unsigned threads);
    void *context;
    unsigned index, threads;
};

static void *run_share(void *context)
{
    const struct share *share = context;
    share->work(share->context, share->index, share->threads);
    return NULL;
}

int64_t bench_parallel(unsigned threads, void (*work)(void *, unsigned, unsigned), void *context)
{
    struct share shares[HL_UPLOAD_THREADS];
    const int64_t start = hl_clock_ns();
    for (unsigned i = 0; i < threads; i++) {
        shares[i] = (struct share){.work = work, .context = context, .index = i, .threads = threads};
        if (pthread_create(&shares[i].thread, NULL, run_share, &shares[i]))
            bench_die("cannot start a thread", NULL);
    }
    for (unsigned i = 0; i < threads; i++)
        pthread_join(shares[i].thread, NULL);
    return hl_clock_ns() - start;
}

unsigned bench_cpus(void)
{
    cpu_set_t cpus;
    return sched_getaffinity(0, sizeof cpus, &cpus) ? 1 : (unsigned)CPU_COUNT(&cpus);
}

static int compare_times(const void *a, const void *b)
{
    const int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return (left > right) - (left < right);
}

int64_t bench_median(const int64_t *values, size_t count)
{
    int64_t sorted[BENCH_SAMPLES];
    memcpy(sorted, values, count * sizeof *values);
    qsort(sorted, count, sizeof *sorted, compare_times);
    return sorted[count / 2];
}

double bench_rate(uint64_t bytes, int64_t ns)
{
    return ns > 0 ? (double)bytes / ((double)ns / 1e9) : 0;
}

/* --- the world --- */

static int compare_places(const void *left, const void *right)
{
    const hl_weight_tensor_view *a = *(const hl_weight_tensor_view *const *)left;
    const hl_weight_tensor_view *b = *(const hl_weight_tensor_view *const *)right;
    if (a->region != b->region)
        return a->region < b->region ? -1 : 1;
    return a->region_offset < b->region_offset ? -1 : a->region_offset > b->region_offset;
}

/* Apart from each other, as an allocator would put them: no copy serves two tensors. */
static void place_tensors(struct bench_world *world)
{
    uint64_t at = 0;
    world->count = hl_weight_lease_tensor_count(world->lease);
    const hl_weight_tensor_view **views = calloc(world->count, sizeof *views);
    world->destinations = calloc(world->count, sizeof *world->destinations);
    world->sizes = calloc(world->count, sizeof *world->sizes);
    if (!views || !world->destinations || !world->sizes)
        bench_die("no memory for destinations", NULL);
    for (size_t i = 0; i < world->count; i++)
        views[i] = hl_weight_lease_tensor_at(world->lease, i);
    qsort(views, world->count, sizeof *views, compare_places);
    for (size_t i = 0; i < world->count; i++) {
        char *name = strdup(views[i]->name);
        world->sizes[i] = views[i]->bytes;
        world->bytes += views[i]->bytes;
        world->destinations[i] =
            (hl_weight_destination){.tensor = name, .device_ptr = at, .bytes = views[i]->bytes};
        at = hl_align_up(at + views[i]->bytes, GAP) + GAP;
    }
    world->memory_bytes = at;
    free(views);
}

static void touch(void *context, unsigned index, unsigned threads)
{
    struct bench_world *world = context;
    const uint64_t share = hl_align_up(world->pinned_bytes / threads, 2 * HL_MIB);
    const uint64_t begin = index * share;
    if (begin < world->pinned_bytes)
        memset(world->pinned + begin, (int)index + 1,
               share < world->pinned_bytes - begin ? share : world->pinned_bytes - begin);
}

static void open_memory(struct bench_world *world)
{
    const struct hl_device_ops *ops = world->dev->ops;
    hl_error err;
    world->pinned_bytes = hl_align_up(world->bytes, 2 * HL_MIB);
    world->pinned =
        mmap(NULL, world->pinned_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (world->pinned == MAP_FAILED)
        bench_die("no memory for the ceiling's buffer", NULL);
    (void)madvise(world->pinned, world->pinned_bytes, MADV_HUGEPAGE);
    bench_parallel(THREADS, touch, world);
    const int64_t start = hl_clock_ns();
    bench_must(ops->host_register(world->dev, world->pinned, world->pinned_bytes, &err),
               "cannot pin the ceiling's buffer", &err);
    world->pin_ns = hl_clock_ns() - start;
    bench_must(ops->mem_alloc(world->dev, world->memory_bytes, &world->memory, &err),
               "no device memory for the tensors", &err);
    for (size_t i = 0; i < world->count; i++) {
        hl_event event;
        bench_must(ops->event_create(world->dev, 0, &event, &err), "no event for a tensor", &err);
        world->destinations[i].event = event;
        world->destinations[i].device_ptr += world->memory;
    }
}

void bench_world_open(struct bench_world *world, const struct bench_options *options)
{
    hl_error err;
    *world = (struct bench_world){
        .options = options, .ceilings = json_array(), .parts = json_array(), .cases = json_array()};
    bench_must(options->cuda ? hl_device_open_cuda(options->ordinal, &world->dev, &err)
                             : hl_device_open_software(&world->dev, &err),
               "no device", &err);
    bench_must(hl_device_enter(world->dev, &err), "the device cannot be entered", &err);
    bench_must(world->dev->ops->stream_create(world->dev, &world->stream, &err), "no stream", &err);
    bench_store_open(world);
    world->lease = bench_lease(world);
    world->tmpfs = true;
    for (size_t i = 0; i < hl_weight_lease_region_count(world->lease); i++)
        world->tmpfs &= hl_weight_lease_region_at(world->lease, i)->tmpfs;
    place_tensors(world);
    open_memory(world);
    bench_poison(world);
}

void bench_lease_renew(struct bench_world *world)
{
    hl_weight_lease_release(world->lease);
    world->lease = bench_lease(world);
}

void bench_world_close(struct bench_world *world)
{
    const struct hl_device_ops *ops = world->dev->ops;
    hl_weight_failure failure;
    for (size_t i = 0; i < world->count; i++) {
        ops->event_destroy(world->dev, world->destinations[i].event, NULL);
        free((void *)(uintptr_t)world->destinations[i].tensor);
    }
    ops->host_unregister(world->dev, world->pinned, NULL);
    munmap(world->pinned, world->pinned_bytes);
    ops->mem_free(world->dev, world->memory, NULL);
    ops->stream_destroy(world->dev, world->stream, NULL);
    hl_device_leave(world->dev);
    hl_device_close(world->dev);
    hl_weight_lease_release(world->lease);
    if (world->options->dir && !world->options->keep &&
        hl_weight_store_clean(world->store, hl_weight_identity_key(world->identity), &failure))
        bench_die("cannot remove the artifact", &failure.error);
    hl_weight_store_close(world->store);
    hl_weight_identity_free(world->identity);
    free(world->destinations);
    free(world->sizes);
    json_decref(world->ceilings);
    json_decref(world->parts);
    json_decref(world->cases);
}

/* --- comparing --- */

void bench_poison(struct bench_world *world)
{
    const struct hl_device_ops *ops = world->dev->ops;
    hl_error err;
    bench_must(ops->fill(world->dev, world->memory, POISON, world->memory_bytes, world->stream, &err),
               "the device cannot be filled", &err);
    bench_must(ops->stream_synchronize(world->dev, world->stream, &err), "the device", &err);
}

struct comparison {
    const struct bench_world *world;
    const char *wrong[HL_UPLOAD_THREADS];
};

static void compare_share(void *context, unsigned index, unsigned threads)
{
    struct comparison *comparison = context;
    const struct bench_world *world = comparison->world;
    uint64_t at = 0;
    for (size_t i = 0; i < world->count; i++) {
        const hl_weight_tensor_view *view =
            hl_weight_lease_tensor(world->lease, world->destinations[i].tensor);
        if (i % threads == index && view->bytes && memcmp(world->pinned + at, view->data, view->bytes) != 0)
            comparison->wrong[index] = view->name;
        at += view->bytes;
    }
}

void bench_verify(struct bench_world *world, const char *label)
{
    const struct hl_device_ops *ops = world->dev->ops;
    struct comparison comparison = {.world = world};
    uint64_t at = 0;
    hl_error err;
    for (size_t i = 0; i < world->count; i++) {
        if (world->sizes[i])
            bench_must(ops->copy(world->dev, HL_COPY_D2H, (uintptr_t)(world->pinned + at),
                                 world->destinations[i].device_ptr, world->sizes[i], world->stream, &err),
                       "cannot read the device", &err);
        at += world->sizes[i];
    }
    bench_must(ops->stream_synchronize(world->dev, world->stream, &err), "cannot read the device", &err);
    bench_parallel(THREADS, compare_share, &comparison);
    for (unsigned i = 0; i < THREADS; i++)
        if (comparison.wrong[i]) {
            fprintf(stderr, "upload_bench: %s: tensor %s did not arrive as it is\n", label,
                    comparison.wrong[i]);
            exit(1);
        }
}
