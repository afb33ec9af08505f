#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/error.h"
#include "engine/demo/demo.h"

#define STAGE "demo.measure"

enum { CEILING_SOFTWARE_BYTES = 16 * 1024 * 1024, CEILING_CUDA_BYTES = 256 * 1024 * 1024 };

hl_status hl_demo_alloc_run(uint32_t layers, struct hl_demo_run *run, hl_error *err)
{
    int64_t *times = calloc(3 * (size_t)layers, sizeof *times);
    if (!times)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for the times of %u layers", layers);
    *run = (struct hl_demo_run){
        .ready = times, .consumer_start = times + layers, .consumer_end = times + 2 * (size_t)layers};
    return HL_OK;
}

void hl_demo_free_run(struct hl_demo_run *run)
{
    free(run->ready);
}

/* The source is the arena's first bytes, so that pinning and page size are those of the restore. */
static hl_status prepare_ceiling(hl_demo *demo, hl_error *err)
{
    uint64_t bytes = demo->dev->info.kind == HL_DEVICE_CUDA ? CEILING_CUDA_BYTES : CEILING_SOFTWARE_BYTES;
    uint64_t arena = hl_arena_bytes(demo->arena);
    demo->ceiling_bytes = bytes < arena ? bytes : arena;
    return demo->dev->ops->mem_alloc(demo->dev, demo->ceiling_bytes, &demo->ceiling_target, err);
}

static hl_status time_copy(hl_demo *demo, hl_event start, hl_event end, int64_t *ns, hl_error *err)
{
    const struct hl_device_ops *ops = demo->dev->ops;
    hl_status status = ops->event_record(demo->dev, start, demo->work, err);
    if (!status)
        status =
            ops->copy(demo->dev, HL_COPY_H2D, demo->ceiling_target,
                      (uint64_t)(uintptr_t)hl_arena_base(demo->arena), demo->ceiling_bytes, demo->work, err);
    if (!status)
        status = ops->event_record(demo->dev, end, demo->work, err);
    if (!status)
        status = ops->stream_synchronize(demo->dev, demo->work, err);
    return status ? status : ops->event_elapsed(demo->dev, start, end, ns, err);
}

hl_status hl_demo_measure_ceiling(hl_demo *demo, uint32_t samples, hl_error *err)
{
    const struct hl_device_ops *ops = demo->dev->ops;
    int64_t *grown = realloc(demo->ceiling_ns, (demo->ceiling_count + samples) * sizeof *grown);
    if (!grown)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for %u samples", samples);
    demo->ceiling_ns = grown;
    hl_status status = demo->ceiling_target ? HL_OK : prepare_ceiling(demo, err);
    if (status)
        return status;
    hl_event start, end;
    status = ops->event_create(demo->dev, HL_EVENT_TIMING, &start, err);
    if (status)
        return status;
    status = ops->event_create(demo->dev, HL_EVENT_TIMING, &end, err);
    if (status)
        goto err_destroy_start;
    int64_t ns;
    status = time_copy(demo, start, end, &ns, err); /* warms up, and is not kept */
    for (uint32_t i = 0; i < samples && !status; i++) {
        status = time_copy(demo, start, end, &ns, err);
        if (!status)
            demo->ceiling_ns[demo->ceiling_count++] = ns;
    }
    (void)ops->event_destroy(demo->dev, end, NULL);
err_destroy_start:
    (void)ops->event_destroy(demo->dev, start, NULL);
    return status;
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

int64_t hl_demo_median(const int64_t *values, uint32_t count)
{
    assert(count > 0);
    int64_t *sorted = malloc(count * sizeof *sorted);
    if (!sorted)
        return values[0];
    memcpy(sorted, values, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, by_value);
    int64_t median = sorted[(count - 1) / 2];
    free(sorted);
    return median;
}

int64_t hl_demo_median_ceiling(const hl_demo *demo)
{
    return hl_demo_median(demo->ceiling_ns, demo->ceiling_count);
}

const struct hl_demo_run *hl_demo_median_run(const hl_demo *demo)
{
    int64_t totals[HL_DEMO_MAX_RUNS];
    for (uint32_t i = 0; i < demo->run_count; i++)
        totals[i] = demo->runs[i].total_ns;
    int64_t median = hl_demo_median(totals, demo->run_count);
    const struct hl_demo_run *run = demo->runs;
    while (run->total_ns != median)
        run++;
    return run;
}

double hl_demo_gbps(uint64_t bytes, int64_t ns)
{
    return ns > 0 ? (double)bytes / (double)ns : 0;
}

bool hl_demo_overlapped(const struct hl_demo_run *run, uint32_t layers)
{
    for (uint32_t l = 0; l < layers; l++)
        if (run->consumer_start[l] < run->total_ns)
            return true;
    return false;
}

void hl_demo_add_span(hl_demo *demo, const char *name, int run, int64_t start_ns, int64_t end_ns)
{
    if (demo->span_count == demo->span_room) {
        size_t room = demo->span_room ? 2 * demo->span_room : 64;
        struct hl_demo_span *grown = realloc(demo->spans, room * sizeof *grown);
        if (!grown)
            return;
        demo->spans = grown;
        demo->span_room = room;
    }
    demo->spans[demo->span_count++] =
        (struct hl_demo_span){.name = name, .run = run, .start_ns = start_ns, .end_ns = end_ns};
}
