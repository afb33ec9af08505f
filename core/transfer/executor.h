/* The executor's state, private to this room. One thread at a time drives it, so nothing here is locked. */
#ifndef CORE_TRANSFER_EXECUTOR_H
#define CORE_TRANSFER_EXECUTOR_H

#include "core/transfer/gather.h"
#include "core/transfer/route.h"
#include "core/transfer/transfer.h"
#include "core/transfer/work.h"

struct hl_transfer {
    hl_device *dev;
    enum hl_route route;
    uint32_t blocks; /* cap on the gather kernel's thread blocks */
    struct hl_route_model model;
    struct hl_work_tables tables;
    struct hl_work work;    /* the part being submitted */
    struct hl_copy *batch;  /* HL_ROUTE_BATCH_COPIES */
    hl_stream stream;       /* every copy, and events of layers that no launch counts */
    hl_stream event_stream; /* events of layers that a launch counts */
    hl_event order;         /* recorded on the event stream for the copy stream to wait for */
    hl_event ready;         /* recorded on a busy ready stream; a wait keeps the record that it saw */
    struct hl_gather_ring ring;

    hl_event *idle_events; /* completion events that no operation holds; room for all that were created */
    size_t idle_count;
    size_t event_count;
    hl_event *seen_events; /* scratch of the check for distinct layer events: an open-addressing set */
    size_t seen_capacity;  /* a power of two, at least twice the layers */

    size_t operations; /* open */
    bool lost;         /* a stream failed: what it accepted may still run, and it takes no more */
};

struct hl_operation {
    hl_transfer *transfer;
    struct hl_plan_identity identity;
    hl_event *layer_events; /* copied, or NULL */
    struct hl_layer_result *layers;
    bool *complete; /* layers whose last range has been seen */
    uint32_t complete_count;
    hl_event completion; /* recorded on the copy stream after each part */
    hl_event announced;  /* recorded on the event stream after each part that has events there */
    bool announcing;     /* `announced` has been recorded */
    uint32_t next_part;
    uint32_t part_count; /* 0 until the first part said it */
    bool submitted;
    bool accepted;  /* the device took something */
    bool in_flight; /* and it has not been seen to finish */
    bool drained;
    uint64_t bytes;
    hl_status status;
    hl_error error; /* the first failure */
};

/* hl_transfer_open() with another descriptor ring than the usual one: tests make it wrap. */
hl_status hl_transfer_open_with_ring(const struct hl_transfer_options *options, uint32_t segments,
                                     uint32_t segment_descriptors, hl_transfer **transfer, hl_error *err);

#endif
