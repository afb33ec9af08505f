/* The ring's memory, counters and segments. */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/checked.h"
#include "core/base/error.h"
#include "core/transfer/gather.h"

/* Sets the counters to the largest value, so that the first launch makes them wrap: that it does no harm is
 * seen at once and not after 2^32 counts. */
static hl_status open_counters(struct hl_gather_ring *ring, hl_error *err)
{
    hl_device *dev = ring->dev;
    const size_t bytes = HL_GATHER_LAYERS * sizeof ring->counted[0];
    hl_status status = dev->ops->mem_alloc(dev, bytes, &ring->counters, err);
    if (status != HL_OK)
        return status;
    status = dev->ops->fill(dev, ring->counters, 0xff, bytes, ring->stream, err);
    if (status == HL_OK)
        status = dev->ops->stream_synchronize(dev, ring->stream, err);
    if (status != HL_OK) {
        dev->ops->mem_free(dev, ring->counters, NULL);
        return status;
    }
    for (uint32_t i = 0; i < HL_GATHER_LAYERS; i++)
        ring->counted[i] = UINT32_MAX;
    return HL_OK;
}

static hl_status create_segment_events(struct hl_gather_ring *ring, hl_error *err)
{
    for (uint32_t i = 0; i < ring->segment_count; i++) {
        hl_status status = ring->dev->ops->event_create(ring->dev, 0, &ring->segments[i].event, err);
        if (status != HL_OK) {
            while (i > 0)
                ring->dev->ops->event_destroy(ring->dev, ring->segments[--i].event, NULL);
            return status;
        }
    }
    return HL_OK;
}

hl_status hl_gather_ring_open(struct hl_gather_ring *ring, hl_device *dev, hl_stream stream,
                              hl_stream event_stream, uint32_t segments, uint32_t segment_descriptors,
                              hl_error *err)
{
    hl_status status;
    uint64_t bytes = (uint64_t)segments * segment_descriptors * sizeof(struct hl_gather);
    *ring = (struct hl_gather_ring){.dev = dev,
                                    .stream = stream,
                                    .event_stream = event_stream,
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
    if (status != HL_OK)
        goto err_unregister;
    status = open_counters(ring, err);
    if (status != HL_OK)
        goto err_unregister;
    status = create_segment_events(ring, err);
    if (status != HL_OK)
        goto err_counters;
    return HL_OK;

err_counters:
    dev->ops->mem_free(dev, ring->counters, NULL);
err_unregister:
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
    ring->dev->ops->mem_free(ring->dev, ring->counters, NULL);
    if (ring->dev->ops->host_unregister(ring->dev, ring->memory, NULL) == HL_OK)
        munmap(ring->memory, ring->memory_bytes);
    free(ring->segments);
    *ring = (struct hl_gather_ring){0};
}

hl_status hl_gather_ring_advance(struct hl_gather_ring *ring, hl_error *err)
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
