/* The kernel route: descriptors in pinned host memory that the device reads, and the launches that read them.
 *
 * The ring is cut into segments. Launches take room in the current segment; when it is full an event is
 * recorded behind the launches that read it, and the segment is written again only after that event has
 * completed. So descriptors stay as they are until every launch that reads them has finished, across
 * operations, with one event a segment. When all segments are in flight, submitting waits for the oldest.
 *
 * Neighbouring layers of a part share a launch, whose layers the kernel counts one by one (device.h). Layer
 * events are recorded on a stream of their own, each behind a wait for its layer's count: on the copy stream
 * they would have to wait for the launch. All launches are on the copy stream, hence one after the other, and
 * use the same counters, which only ever grow (modulo 2^32): `counted` is what each will have reached when
 * all accepted launches have completed. */
#ifndef CORE_TRANSFER_GATHER_H
#define CORE_TRANSFER_GATHER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/device/device.h"
#include "core/transfer/transfer.h"
#include "core/transfer/work.h"

/* Three times the 43,686 ranges that one part can hold. */
#define HL_GATHER_SEGMENTS 4u
#define HL_GATHER_SEGMENT_DESCRIPTORS 32768u

struct hl_gather_segment {
    hl_event event;
    uint32_t used; /* descriptors */
    bool closed;   /* the event has been recorded behind its launches */
};

/* What the launch in the making has of one layer. */
struct hl_gather_layer {
    struct hl_layer_result *result;
    hl_event event; /* recorded when it has been copied; NULL: none, or the layer goes on */
    uint64_t bytes;
};

/* The launch in the making: `pending` descriptors behind the segment's used ones. Empty between parts. */
struct hl_gather_batch {
    enum hl_gather_method method;
    uint32_t blocks;
    uint32_t pending;
    uint32_t layer_count;
    bool open;      /* the last layer is the one being added */
    bool *accepted; /* of the operation */
    uint64_t *bytes;
    struct hl_gather_layer layers[HL_GATHER_LAYERS];
    uint32_t ends[HL_GATHER_LAYERS];
};

struct hl_gather_ring {
    hl_device *dev;
    hl_stream stream;
    hl_stream event_stream;
    bool events_ahead; /* the event stream has layer events that the copy stream has not waited for */
    void *memory;      /* mapped, registered */
    size_t memory_bytes;
    hl_devptr mapped; /* the device's address of it */
    struct hl_gather_segment *segments;
    uint32_t segment_count;
    uint32_t segment_descriptors;
    uint32_t current;
    hl_devptr counters; /* HL_GATHER_LAYERS words of device memory, for layer k of each launch */
    uint32_t counted[HL_GATHER_LAYERS];
    struct hl_gather_batch batch;
};

/* Allocates, registers and maps the ring; launches go to `stream`, layer events to `event_stream`. The device
 * has been entered, here and below. */
hl_status hl_gather_ring_open(struct hl_gather_ring *ring, hl_device *dev, hl_stream stream,
                              hl_stream event_stream, uint32_t segments, uint32_t segment_descriptors,
                              hl_error *err);

/* No launch reads it any more. Memory that cannot be unregistered stays mapped, for the device may still read
 * it. A ring of zeros is allowed. */
void hl_gather_ring_close(struct hl_gather_ring *ring);

/* Makes the next segment current and empty; nothing is pending. Safe to try again after a failure. */
hl_status hl_gather_ring_advance(struct hl_gather_ring *ring, hl_error *err);

/* Begins a part; what an operation that failed had pending is dropped. *accepted becomes true when a launch
 * is accepted, also when what follows it fails; *bytes grows by what is launched. Both outlive the part. */
void hl_gather_begin(struct hl_gather_ring *ring, uint32_t blocks, bool *accepted, uint64_t *bytes);

/* Adds what the part has of a layer to the launch in the making, which is launched first when it is full.
 * Pieces that are not 16-byte aligned go in launches of their own where the device would otherwise use bulk
 * copies. `event`, unless NULL, is recorded when all of the layer that has been submitted so far has been
 * copied. A layer without bytes needs a launch that takes it. */
hl_status hl_gather_add(struct hl_gather_ring *ring, const struct hl_work *work,
                        const struct hl_work_layer *layer, struct hl_layer_result *result, hl_event event,
                        hl_error *err);
bool hl_gather_takes_empty_layer(const struct hl_gather_ring *ring);

/* Launches what is pending and records the events behind it: before other work goes to the copy stream, and
 * at the end of a part. */
hl_status hl_gather_flush(struct hl_gather_ring *ring, hl_error *err);

#endif
