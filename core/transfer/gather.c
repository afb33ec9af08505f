#include "core/transfer/gather.h"

#include <assert.h>

#include "core/transfer/route.h"

#define BULK_ALIGN 16u

/* Pieces of this size on average and more go by bulk copies, smaller ones by loads, which are faster then: a
 * bulk copy has a fixed cost. */
#define BULK_BYTES (16 * HL_KIB)

void hl_gather_begin(struct hl_gather_ring *ring, uint32_t blocks, bool *accepted, uint64_t *bytes)
{
    struct hl_gather_batch *batch = &ring->batch;
    batch->blocks = blocks;
    batch->accepted = accepted;
    batch->bytes = bytes;
    batch->pending = 0;
    batch->layer_count = 0;
    batch->open = false;
}

/* Lets the event stream record each layer's event behind the layer's count. The launch has been accepted, so
 * that its counts come or the device is lost: the event stream never waits for what was not launched. */
static hl_status announce(struct hl_gather_ring *ring, hl_error *err)
{
    const struct hl_device_ops *ops = ring->dev->ops;
    const struct hl_gather_batch *batch = &ring->batch;
    for (uint32_t i = 0; i < batch->layer_count; i++) {
        if (!batch->layers[i].event)
            continue;
        hl_status status = ops->stream_wait_value(
            ring->dev, ring->event_stream, ring->counters + i * sizeof(uint32_t), ring->counted[i], err);
        if (status == HL_OK)
            status = ops->event_record(ring->dev, batch->layers[i].event, ring->event_stream, err);
        if (status != HL_OK)
            return status;
        batch->layers[i].result->recorded = true;
        ring->events_ahead = true;
    }
    return HL_OK;
}

hl_status hl_gather_flush(struct hl_gather_ring *ring, hl_error *err)
{
    struct hl_gather_batch *batch = &ring->batch;
    struct hl_gather_segment *segment = &ring->segments[ring->current];
    if (batch->pending == 0)
        return HL_OK;
    uint64_t first = (uint64_t)ring->current * ring->segment_descriptors + segment->used;
    uint32_t blocks = batch->pending < batch->blocks ? batch->pending : batch->blocks;
    struct hl_gather_launch request = {.descriptors = ring->mapped + first * sizeof(struct hl_gather),
                                       .count = batch->pending,
                                       .blocks = blocks,
                                       .method = batch->method,
                                       .layer_count = batch->layer_count,
                                       .layer_ends = batch->ends,
                                       .counters = ring->counters};
    hl_status status = ring->dev->ops->gather(ring->dev, &request, ring->stream, err);
    if (status != HL_OK)
        return status;
    *batch->accepted = true;
    segment->used += batch->pending;
    for (uint32_t i = 0; i < batch->layer_count; i++) {
        struct hl_gather_layer *layer = &batch->layers[i];
        ring->counted[i] += blocks;
        layer->result->descriptors += batch->ends[i] - (i ? batch->ends[i - 1] : 0);
        layer->result->bytes += layer->bytes;
        *batch->bytes += layer->bytes;
    }
    status = announce(ring, err);
    hl_gather_begin(ring, batch->blocks, batch->accepted, batch->bytes);
    return status;
}

static enum hl_gather_method method_of(hl_devptr dst, hl_devptr src, uint64_t bytes)
{
    return (dst | src | bytes) % BULK_ALIGN ? HL_GATHER_LOADS : HL_GATHER_BULK;
}

/* The descriptors of one method of one layer on their way into the batch. A piece costs its descriptor and no
 * more: what the batch knows of those in [start, next) is brought up to date by settle(). */
struct gathering {
    struct hl_gather_ring *ring;
    enum hl_gather_method method;
    bool split; /* take only the pieces that `method` is for, else every piece */
    struct hl_layer_result *result;
    struct hl_gather *start, *next, *limit; /* in the current segment; all NULL before the first piece */
    uint64_t bytes;
};

static void settle(struct gathering *g)
{
    struct hl_gather_batch *batch = &g->ring->batch;
    if (g->next == g->start)
        return;
    assert(batch->open);
    batch->pending += (uint32_t)(g->next - g->start);
    batch->ends[batch->layer_count - 1] = batch->pending;
    batch->layers[batch->layer_count - 1].bytes += g->bytes;
    g->start = g->next;
    g->bytes = 0;
}

static void list_layer(struct hl_gather_batch *batch, struct hl_layer_result *result)
{
    assert(batch->layer_count < HL_GATHER_LAYERS);
    batch->layers[batch->layer_count] = (struct hl_gather_layer){.result = result};
    batch->ends[batch->layer_count++] = batch->pending;
    batch->open = true;
}

/* Launches what must not share a launch with this layer's next piece, and finds room for that. */
static hl_status make_room(struct gathering *g, hl_error *err)
{
    struct hl_gather_ring *ring = g->ring;
    struct hl_gather_batch *batch = &ring->batch;
    hl_status status = HL_OK;
    settle(g);
    bool full = !batch->open && batch->layer_count == HL_GATHER_LAYERS;
    if (full || (batch->pending > 0 && batch->method != g->method))
        status = hl_gather_flush(ring, err);
    if (status == HL_OK && ring->segments[ring->current].used + batch->pending == ring->segment_descriptors) {
        status = hl_gather_flush(ring, err);
        if (status == HL_OK)
            status = hl_gather_ring_advance(ring, err);
    }
    if (status != HL_OK)
        return status;
    if (!batch->open)
        list_layer(batch, g->result);
    batch->method = g->method;
    struct hl_gather *segment =
        (struct hl_gather *)ring->memory + (uint64_t)ring->current * ring->segment_descriptors;
    g->start = g->next = segment + ring->segments[ring->current].used + batch->pending;
    g->limit = segment + ring->segment_descriptors;
    return HL_OK;
}

static inline hl_status put(struct gathering *g, hl_devptr dst, hl_devptr src, uint64_t bytes, hl_error *err)
{
    if (g->next == g->limit) {
        hl_status status = make_room(g, err);
        if (status != HL_OK)
            return status;
    }
    *g->next++ = (struct hl_gather){.dst = dst, .src = src, .bytes = bytes};
    g->bytes += bytes;
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
    settle(g);
    g->start = g->next = g->limit = NULL;
    return status;
}

/* How many ranges and rows the layer has, and whether any of them is not fit for bulk copies. */
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

bool hl_gather_takes_empty_layer(const struct hl_gather_ring *ring)
{
    return ring->batch.pending > 0 && ring->batch.layer_count < HL_GATHER_LAYERS;
}

hl_status hl_gather_add(struct hl_gather_ring *ring, const struct hl_work *work,
                        const struct hl_work_layer *layer, struct hl_layer_result *result, hl_event event,
                        hl_error *err)
{
    struct hl_gather_batch *batch = &ring->batch;
    bool unaligned;
    uint64_t count = survey(work, layer, &unaligned);
    bool bulk = ring->dev->info.bulk_copy && layer->bytes >= count * BULK_BYTES;
    struct gathering g = {.ring = ring,
                          .method = bulk ? HL_GATHER_BULK : HL_GATHER_LOADS,
                          .split = bulk && unaligned,
                          .result = result};
    batch->open = false;
    hl_status status = put_layer(&g, work, layer, err);
    if (status == HL_OK && g.split) {
        g.method = HL_GATHER_LOADS;
        status = put_layer(&g, work, layer, err);
    }
    if (status != HL_OK)
        return status;
    if (!batch->open) {
        assert(hl_gather_takes_empty_layer(ring));
        list_layer(batch, result);
    }
    /* The launches before this one complete before it starts, so that its count stands for all of the layer.
     */
    batch->layers[batch->layer_count - 1].event = event;
    return HL_OK;
}
