/* The kernel route: descriptors in pinned host memory that the device reads, and the launches that read them.
 *
 * The ring is cut into segments. Launches take room in the current segment; when it is full an event is
 * recorded behind the launches that read it, and the segment is written again only after that event has
 * completed. So descriptors stay as they are until every launch that reads them has finished, across
 * operations, with one event a segment. When all segments are in flight, submitting waits for the oldest. */
#ifndef CORE_TRANSFER_GATHER_H
#define CORE_TRANSFER_GATHER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/device/device.h"
#include "core/transfer/transfer.h"
#include "core/transfer/work.h"

/* Twice the 43,686 ranges that one part can hold. */
#define HL_GATHER_SEGMENTS 16u
#define HL_GATHER_SEGMENT_DESCRIPTORS 5632u

struct hl_gather_segment {
    hl_event event;
    uint32_t used; /* descriptors */
    bool closed;   /* the event has been recorded behind its launches */
};

struct hl_gather_ring {
    hl_device *dev;
    hl_stream stream;
    void *memory; /* mapped, registered */
    size_t memory_bytes;
    hl_devptr mapped; /* the device's address of it */
    struct hl_gather_segment *segments;
    uint32_t segment_count;
    uint32_t segment_descriptors;
    uint32_t current;
};

/* Allocates, registers and maps the ring; launches go to `stream`. The device has been entered, here and
 * below. */
hl_status hl_gather_ring_open(struct hl_gather_ring *ring, hl_device *dev, hl_stream stream,
                              uint32_t segments, uint32_t segment_descriptors, hl_error *err);

/* No launch reads it any more. Memory that cannot be unregistered stays mapped, for the device may still read
 * it. A ring of zeros is allowed. */
void hl_gather_ring_close(struct hl_gather_ring *ring);

/* Submits a layer. Pieces that are not 16-byte aligned go in launches of their own where the device would
 * otherwise use bulk copies. *accepted becomes true when a launch was accepted, also when a later one fails.
 */
hl_status hl_gather_submit(struct hl_gather_ring *ring, const struct hl_work *work,
                           const struct hl_work_layer *layer, uint32_t blocks, struct hl_layer_result *result,
                           bool *accepted, hl_error *err);

#endif
