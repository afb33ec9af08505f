#include "core/transfer/calibrate.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "core/base/error.h"
#include "core/transfer/direct.h"

#define ROUNDS 3u /* the first warms up, the fastest of the others counts */
#define MAX_PIECES 128u
#define FEW_CALLS 2u
#define MANY_CALLS 5u

/* More than any link has: what noise may fit at most. */
#define MAX_BYTES_PER_SECOND 1e13

static double at_least(double value, double floor)
{
    return value > floor ? value : floor; /* also when it is no number */
}

struct hl_route_cost hl_calibrate_fit(const struct hl_calibrate_point *one,
                                      const struct hl_calibrate_point *small,
                                      const struct hl_calibrate_point *large)
{
    double small_each = at_least((small->ns - one->ns) / (small->pieces - one->pieces), 0);
    double call = at_least(one->ns - small_each * one->pieces, 0);
    double large_each = at_least((large->ns - call) / large->pieces, 0);
    double ns_a_byte = (large_each - small_each) / (double)(large->piece_bytes - small->piece_bytes);
    ns_a_byte = at_least(ns_a_byte, 1e9 / MAX_BYTES_PER_SECOND);
    double piece = at_least(small_each - ns_a_byte * (double)small->piece_bytes, 0);
    return (struct hl_route_cost){.call_ns = call, .piece_ns = piece, .bytes_per_second = 1e9 / ns_a_byte};
}

/* Scratch of one calibration. */
struct bench {
    hl_transfer *transfer;
    void *host;
    hl_devptr mapped;
    hl_devptr device;
    hl_event start;
    hl_event end;
    struct hl_work work; /* one layer, points into `ranges` */
    struct hl_work_range ranges[MAX_PIECES];
};

enum way { WAY_COPY, WAY_BATCH, WAY_ROWS, WAY_KERNEL };

static hl_status submit_once(struct bench *bench, enum way way, uint32_t pieces, uint64_t piece_bytes,
                             uint64_t pitch, hl_error *err)
{
    hl_transfer *transfer = bench->transfer;
    struct hl_work_layer layer = {.range_count = pieces, .bytes = pieces * piece_bytes};
    struct hl_layer_result ignored = {0};
    bool accepted = false;
    uint64_t bytes = 0;
    hl_status status;
    switch (way) {
    case WAY_COPY:
    case WAY_BATCH:
        return hl_direct_submit(transfer, &bench->work, &layer, way == WAY_BATCH, &ignored, &accepted, err);
    case WAY_KERNEL:
        hl_gather_begin(&transfer->ring, transfer->blocks, &accepted, &bytes);
        status = hl_gather_add(&transfer->ring, &bench->work, &layer, &ignored, NULL, err);
        return status == HL_OK ? hl_gather_flush(&transfer->ring, err) : status;
    case WAY_ROWS:
        break;
    }
    return transfer->dev->ops->copy_rows(transfer->dev, HL_COPY_H2D, bench->device, pitch,
                                         (uint64_t)(uintptr_t)bench->host, pitch, piece_bytes, pieces,
                                         transfer->stream, err);
}

/* The fastest of the rounds, each of `calls` calls back to back. */
static hl_status time_calls(struct bench *bench, enum way way, uint32_t calls, uint32_t pieces,
                            uint64_t piece_bytes, double *ns, hl_error *err)
{
    hl_device *dev = bench->transfer->dev;
    const struct hl_device_ops *ops = dev->ops;
    hl_stream stream = bench->transfer->stream;
    int64_t best = INT64_MAX;
    for (unsigned round = 0; round < ROUNDS; round++) {
        int64_t elapsed = 0;
        hl_status status = ops->event_record(dev, bench->start, stream, err);
        for (uint32_t i = 0; status == HL_OK && i < calls; i++)
            status = submit_once(bench, way, pieces, piece_bytes, HL_CALIBRATE_BYTES / pieces, err);
        if (status == HL_OK)
            status = ops->event_record(dev, bench->end, stream, err);
        if (status == HL_OK)
            status = ops->event_synchronize(dev, bench->end, err);
        if (status == HL_OK)
            status = ops->event_elapsed(dev, bench->start, bench->end, &elapsed, err);
        if (status != HL_OK)
            return status;
        if (round > 0 && elapsed < best)
            best = elapsed;
    }
    *ns = (double)best;
    return HL_OK;
}

/* What one more call costs when others are queued before it, as the layers of an operation are: then the host
 * prepares a call while the device runs the one before, and a lone call's start-up counts for nothing. Pieces
 * are spread over the scratch memory. */
static hl_status measure(struct bench *bench, enum way way, uint32_t pieces, uint64_t piece_bytes,
                         struct hl_calibrate_point *point, hl_error *err)
{
    double few = 0, many = 0;
    uint64_t pitch = HL_CALIBRATE_BYTES / pieces;
    for (uint32_t i = 0; i < pieces; i++)
        bench->ranges[i] = (struct hl_work_range){.dst = bench->device + i * pitch,
                                                  .host = (uint64_t)(uintptr_t)bench->host + i * pitch,
                                                  .mapped = bench->mapped + i * pitch,
                                                  .bytes = piece_bytes};
    hl_status status = time_calls(bench, way, FEW_CALLS, pieces, piece_bytes, &few, err);
    if (status == HL_OK)
        status = time_calls(bench, way, MANY_CALLS, pieces, piece_bytes, &many, err);
    if (status != HL_OK)
        return status;
    *point = (struct hl_calibrate_point){.pieces = pieces,
                                         .piece_bytes = piece_bytes,
                                         .ns = at_least((many - few) / (MANY_CALLS - FEW_CALLS), 1)};
    return HL_OK;
}

/* The sizes each way is measured with. */
static const struct plan {
    enum way way;
    uint32_t small_pieces;
    uint32_t large_pieces;
    uint64_t small_bytes;
    uint64_t large_bytes;
} plans[] = {
    {WAY_COPY, 16, 2, 4 * HL_KIB, HL_MIB},
    {WAY_BATCH, 64, 2, 32 * HL_KIB, HL_MIB},
    {WAY_ROWS, MAX_PIECES, 32, 4 * HL_KIB, 32 * HL_KIB},
    {WAY_KERNEL, MAX_PIECES, 32, 4 * HL_KIB, 64 * HL_KIB},
};

static hl_status measure_all(struct bench *bench, struct hl_route_model *model, hl_error *err)
{
    struct hl_route_cost *costs[] = {[WAY_COPY] = &model->copy,
                                     [WAY_BATCH] = &model->batch,
                                     [WAY_ROWS] = &model->rows,
                                     [WAY_KERNEL] = &model->kernel};
    for (unsigned i = 0; i < sizeof plans / sizeof plans[0]; i++) {
        const struct plan *plan = &plans[i];
        struct hl_calibrate_point one, small, large;
        hl_status status = measure(bench, plan->way, 1, plan->small_bytes, &one, err);
        if (status == HL_OK)
            status = measure(bench, plan->way, plan->small_pieces, plan->small_bytes, &small, err);
        if (status == HL_OK)
            status = measure(bench, plan->way, plan->large_pieces, plan->large_bytes, &large, err);
        if (status != HL_OK)
            return status;
        *costs[plan->way] = hl_calibrate_fit(&one, &small, &large);
    }
    /* Batched copies have a step at small pieces that the line above does not show. */
    struct hl_calibrate_point tiny;
    hl_status status = measure(bench, WAY_BATCH, MAX_PIECES, 4 * HL_KIB, &tiny, err);
    if (status != HL_OK)
        return status;
    double each = (tiny.ns - model->batch.call_ns) / tiny.pieces;
    each -= (double)tiny.piece_bytes * 1e9 / model->batch.bytes_per_second;
    model->batch.small_bytes = 16 * HL_KIB;
    model->batch.small_piece_ns = each > model->batch.piece_ns ? each : model->batch.piece_ns;
    model->fitted = true;
    return HL_OK;
}

hl_status hl_calibrate(hl_transfer *transfer, hl_error *err)
{
    hl_device *dev = transfer->dev;
    const struct hl_device_ops *ops = dev->ops;
    struct hl_route_model model = {0};
    hl_status status;
    struct bench *bench = calloc(1, sizeof *bench);
    if (!bench)
        return HL_FAIL(err, HL_E_NOMEM, "transfer.calibrate", "no memory for the calibration");
    bench->transfer = transfer;
    bench->work.ranges = bench->ranges;
    bench->host = mmap(NULL, HL_CALIBRATE_BYTES, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (bench->host == MAP_FAILED) {
        status = HL_FAIL(err, HL_E_NOMEM, "transfer.calibrate", "cannot map %llu bytes",
                         (unsigned long long)HL_CALIBRATE_BYTES);
        goto err_free;
    }
    if ((status = ops->host_register(dev, bench->host, HL_CALIBRATE_BYTES, err)) != HL_OK)
        goto err_unmap;
    if ((status = ops->host_pointer(dev, bench->host, &bench->mapped, err)) != HL_OK)
        goto err_unregister;
    if ((status = ops->mem_alloc(dev, HL_CALIBRATE_BYTES, &bench->device, err)) != HL_OK)
        goto err_unregister;
    if ((status = ops->event_create(dev, HL_EVENT_TIMING, &bench->start, err)) != HL_OK)
        goto err_device;
    if ((status = ops->event_create(dev, HL_EVENT_TIMING, &bench->end, err)) != HL_OK)
        goto err_start;
    status = measure_all(bench, &model, err);
    /* A measurement that failed half-way may have left copies behind; the memory they use is freed next. */
    if (status != HL_OK)
        ops->stream_synchronize(dev, transfer->stream, NULL);
    else
        transfer->model = model;

    ops->event_destroy(dev, bench->end, NULL);
err_start:
    ops->event_destroy(dev, bench->start, NULL);
err_device:
    ops->mem_free(dev, bench->device, NULL);
err_unregister:
    ops->host_unregister(dev, bench->host, NULL);
err_unmap:
    munmap(bench->host, HL_CALIBRATE_BYTES);
err_free:
    free(bench);
    return status;
}
