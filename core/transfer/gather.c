#include "core/transfer/gather.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/checked.h"
#include "core/base/error.h"
#include "core/transfer/route.h"

#define BULK_ALIGN 16u

hl_status hl_gather_ring_open(struct hl_gather_ring *ring, hl_device *dev, hl_stream stream,
                              uint32_t segments, uint32_t segment_descriptors, hl_error *err)
{
    hl_status status;
    uint64_t bytes = (uint64_t)segments * segment_descriptors * sizeof(struct hl_gather);
    *ring = (struct hl_gather_ring){.dev = dev,
                                    .stream = stream,
                                    .segment_count = segments,
                                    .segment_descriptors = segment_descriptors,
                                    .memory_bytes = hl_align_up(bytes, (uint64_t)sysconf(_SC_PAGESIZE))};
    ring->segments = calloc(segments, sizeof *ring->segments);
    if (!ring->segments) {
        status = HL_FAIL(err, HL_E_NOMEM, "transfer.ring", "no memory for %u segments", segments);
        goto err_clear;
    }
    /* Shared, so that a fork does not move the pages that the device reads from under this process. */
    ring->memory = mmap(NULL, ring->memory_bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (ring->memory == MAP_FAILED) {
        status = HL_FAIL(err, HL_E_NOMEM, "transfer.ring", "cannot map %zu bytes of descriptors",
                         ring->memory_bytes);
        goto err_free;
    }
    status = dev->ops->host_register(dev, ring->memory, ring->memory_bytes, err);
    if (status != HL_OK)
        goto err_unmap;
    status = dev->ops->host_pointer(dev, ring->memory, &ring->mapped, err);
    uint32_t created = 0;
    for (; status == HL_OK && created < segments; created++) {
        status = dev->ops->event_create(dev, 0, &ring->segments[created].event, err);
        if (status != HL_OK)
            break;
    }
    if (status != HL_OK)
        goto err_destroy;
    return HL_OK;

err_destroy:
    while (created > 0)
        dev->ops->event_destroy(dev, ring->segments[--created].event, NULL);
    dev->ops->host_unregister(dev, ring->memory, NULL);
err_unmap:
    munmap(ring->memory, ring->memory_bytes);
err_free:
    free(ring->segments);
err_clear:
    *ring = (struct hl_gather_ring){0};
    return status;
}

void hl_gather_ring_close(struct hl_gather_ring *ring)
{
    if (!ring->segments)
        return;
    for (uint32_t i = 0; i < ring->segment_count; i++)
        ring->dev->ops->event_destroy(ring->dev, ring->segments[i].event, NULL);
    if (ring->dev->ops->host_unregister(ring->dev, ring->memory, NULL) == HL_OK)
        munmap(ring->memory, ring->memory_bytes);
    free(ring->segments);
    *ring = (struct hl_gather_ring){0};
}

/* Makes the next segment current and empty. Safe to try again after a failure. */
static hl_status advance(struct hl_gather_ring *ring, hl_error *err)
{
    const struct hl_device_ops *ops = ring->dev->ops;
    struct hl_gather_segment *full = &ring->segments[ring->current];
    if (!full->closed) {
        hl_status status = ops->event_record(ring->dev, full->event, ring->stream, err);
        if (status != HL_OK)
            return status;
        full->closed = true;
    }
    uint32_t following = (ring->current + 1) % ring->segment_count;
    struct hl_gather_segment *next = &ring->segments[following];
    if (next->closed) {
        hl_status status = ops->event_synchronize(ring->dev, next->event, err);
        if (status != HL_OK)
            return status;
    }
    next->closed = false;
    next->used = 0;
    ring->current = following;
    return HL_OK;
}

/* The descriptors of one method of one layer, written into the ring and launched as the segments fill. */
struct gathering {
    struct hl_gather_ring *ring;
    enum hl_gather_method method;
    bool split; /* take only the pieces that `method` is for, else every piece */
    uint32_t blocks;
    uint32_t pending; /* written behind the segment's used ones, not launched */
    struct hl_layer_result *result;
    bool *accepted;
};

static hl_status launch(struct gathering *g, hl_error *err)
{
    struct hl_gather_ring *ring = g->ring;
    struct hl_gather_segment *segment = &ring->segments[ring->current];
    if (g->pending == 0)
        return HL_OK;
    uint64_t first = (uint64_t)ring->current * ring->segment_descriptors + segment->used;
    struct hl_gather_launch request = {.descriptors = ring->mapped + first * sizeof(struct hl_gather),
                                       .count = g->pending,
                                       .blocks = g->pending < g->blocks ? g->pending : g->blocks,
                                       .method = g->method};
    hl_status status = ring->dev->ops->gather(ring->dev, &request, ring->stream, err);
    if (status != HL_OK)
        return status;
    *g->accepted = true;
    segment->used += g->pending;
    g->result->descriptors += g->pending;
    g->pending = 0;
    return HL_OK;
}

static enum hl_gather_method method_of(hl_devptr dst, hl_devptr src, uint64_t bytes)
{
    return (dst | src | bytes) % BULK_ALIGN ? HL_GATHER_LOADS : HL_GATHER_BULK;
}

static hl_status put(struct gathering *g, hl_devptr dst, hl_devptr src, uint64_t bytes, hl_error *err)
{
    struct hl_gather_ring *ring = g->ring;
    struct hl_gather_segment *segment = &ring->segments[ring->current];
    if (segment->used + g->pending == ring->segment_descriptors) {
        hl_status status = launch(g, err);
        if (status == HL_OK)
            status = advance(ring, err);
        if (status != HL_OK)
            return status;
        segment = &ring->segments[ring->current];
    }
    struct hl_gather *slot = (struct hl_gather *)ring->memory;
    slot += (uint64_t)ring->current * ring->segment_descriptors + segment->used + g->pending;
    *slot = (struct hl_gather){.dst = dst, .src = src, .bytes = bytes};
    g->pending++;
    return HL_OK;
}

static hl_status put_range(struct gathering *g, const struct hl_work_range *range, hl_error *err)
{
    for (uint64_t done = 0; done < range->bytes;) {
        uint64_t bytes = range->bytes - done;
        if (bytes > HL_ROUTE_DESCRIPTOR_BYTES)
            bytes = HL_ROUTE_DESCRIPTOR_BYTES;
        hl_devptr dst = range->dst + done, src = range->mapped + done;
        if (!g->split || method_of(dst, src, bytes) == g->method) {
            hl_status status = put(g, dst, src, bytes, err);
            if (status != HL_OK)
                return status;
        }
        done += bytes;
    }
    return HL_OK;
}

static hl_status put_layer(struct gathering *g, const struct hl_work *work, const struct hl_work_layer *layer,
                           hl_error *err)
{
    hl_status status = HL_OK;
    for (uint32_t i = 0; status == HL_OK && i < layer->range_count; i++)
        status = put_range(g, &work->ranges[layer->first_range + i], err);
    for (uint32_t i = 0; status == HL_OK && i < layer->run_count; i++) {
        const struct hl_work_run *run = &work->runs[layer->first_run + i];
        for (uint32_t row = 0; status == HL_OK && row < run->rows; row++) {
            struct hl_work_range range = hl_work_row(run, row);
            status = put_range(g, &range, err);
        }
    }
    return status == HL_OK ? launch(g, err) : status;
}

/* A lower bound on the layer's descriptors, and whether any of them is not fit for bulk copies. */
static uint64_t survey(const struct hl_work *work, const struct hl_work_layer *layer, bool *unaligned)
{
    uint64_t count = layer->range_count, bits = 0;
    for (uint32_t i = 0; i < layer->range_count; i++) {
        const struct hl_work_range *range = &work->ranges[layer->first_range + i];
        bits |= range->dst | range->mapped | range->bytes;
    }
    for (uint32_t i = 0; i < layer->run_count; i++) {
        const struct hl_work_run *run = &work->runs[layer->first_run + i];
        bits |= run->dst | run->mapped | run->row_bytes | run->dst_pitch | run->src_pitch;
        count += run->rows;
    }
    *unaligned = bits % BULK_ALIGN != 0;
    return count;
}

hl_status hl_gather_submit(struct hl_gather_ring *ring, const struct hl_work *work,
                           const struct hl_work_layer *layer, uint32_t blocks, struct hl_layer_result *result,
                           bool *accepted, hl_error *err)
{
    bool unaligned;
    uint64_t count = survey(work, layer, &unaligned);
    const struct hl_gather_segment *segment = &ring->segments[ring->current];
    hl_status status = HL_OK;
    /* A layer that would straddle two segments, and fits into one, gets a new one: a launch instead of two.
     */
    if (segment->used > 0 && count <= ring->segment_descriptors &&
        count > ring->segment_descriptors - segment->used)
        status = advance(ring, err);
    bool bulk = ring->dev->info.bulk_copy;
    struct gathering g = {.ring = ring,
                          .method = bulk ? HL_GATHER_BULK : HL_GATHER_LOADS,
                          .split = bulk && unaligned,
                          .blocks = blocks,
                          .result = result,
                          .accepted = accepted};
    if (status == HL_OK)
        status = put_layer(&g, work, layer, err);
    if (status == HL_OK && g.split) {
        assert(g.pending == 0);
        g.method = HL_GATHER_LOADS;
        status = put_layer(&g, work, layer, err);
    }
    return status;
}
