/* core/transfer owns the executor: it turns validated plan parts into device work on one copy stream, records
 * one event a layer (on the copy stream, or on a second one that follows a launch layer by layer), and says
 * when everything accepted has finished. It calls core/plan, core/arena, core/device and core/base. The
 * engine's native worker drives it; so does the Manager for publishing.
 *
 * Rules. Every range is validated against the executor's own tables before the first copy is submitted. A
 * layer's event is recorded after the layer's last range over all parts; a layer without bytes gets a fresh
 * record too. Layers' events complete in order. A failure after something was accepted synchronises the
 * streams before it is reported, so that a caller who sees the error may reuse the pages; when even that
 * fails, `drained` stays false and the caller must not reuse anything (I3, I9). The caller's device context
 * is preserved on success and failure.
 *
 * Threads: one thread at a time drives one executor. */
#ifndef CORE_TRANSFER_TRANSFER_H
#define CORE_TRANSFER_TRANSFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/arena/arena.h"
#include "core/device/device.h"
#include "core/plan/plan.h"
#include "hostlane/status.h"

/* What the caller asks for, and what a layer gets. */
enum hl_route {
    HL_ROUTE_AUTO,   /* per layer, by the cost model */
    HL_ROUTE_DIRECT, /* copy engines: contiguous, strided and batched copies */
    HL_ROUTE_KERNEL  /* the gather kernel reads mapped host memory */
};

struct hl_tensor_binding {
    hl_devptr base; /* device address; the owner keeps it alive while the executor is open */
    uint64_t bytes;
};

struct hl_transfer_options {
    hl_device *dev;
    const struct hl_tensor_binding *tensors; /* copied */
    size_t tensor_count;
    hl_registration *const
        *registrations; /* the arenas that plans may name; copied; they outlive the executor */
    size_t registration_count;
    uint32_t layers;
    enum hl_route route;
    uint32_t sm_cap; /* thread blocks of the gather kernel, 1 to HL_TRANSFER_MAX_SMS; 0: 4 */
    bool calibrate;  /* fit the cost model to this machine (a few ms); else the default model is used */
};

typedef struct hl_transfer hl_transfer;
typedef struct hl_operation hl_operation;

/* Cost of each way to move bytes: fixed host and device nanoseconds a call, nanoseconds a piece, and bytes a
 * second. Pieces of at most `small_bytes` cost `small_piece_ns` instead of `piece_ns` (batched copies are
 * slow when small). */
struct hl_route_cost {
    double call_ns;
    double piece_ns;
    double bytes_per_second;
    uint64_t small_bytes; /* 0: no such step */
    double small_piece_ns;
};

struct hl_route_model {
    bool fitted;                 /* measured on this machine, else the defaults */
    struct hl_route_cost copy;   /* one contiguous copy a piece */
    struct hl_route_cost rows;   /* one strided copy a run; a piece is a row */
    struct hl_route_cost batch;  /* one batched call; a piece is a copy */
    struct hl_route_cost kernel; /* one launch; a piece is a descriptor */
};

/* Creates the copy stream and descriptor memory, fits the model when asked. HL_E_INVALID names the option. */
hl_status hl_transfer_open(const struct hl_transfer_options *options, hl_transfer **transfer, hl_error *err);

/* Every operation has been closed. NULL is allowed. */
void hl_transfer_close(hl_transfer *transfer);

const struct hl_route_model *hl_transfer_model(const hl_transfer *transfer);

/* The copy stream, for timing events around an operation. */
hl_stream hl_transfer_stream(const hl_transfer *transfer);

/* Starts an operation; nothing is submitted when it fails. `ready_stream` is the stream whose earlier work
 * must finish before destinations may be written: idle is proof, a busy one is recorded on an event that the
 * copy stream waits for, a query error rejects the operation. With `has_ready_stream` false there is nothing
 * to wait for. `ready_event`, when not NULL, is waited for by the copy stream too, as it is recorded now: for
 * a caller that looked at the stream earlier. `layer_events` holds one live, distinct event a registered
 * layer (HL_E_INVALID otherwise), recorded on a stream of the executor; NULL for none. Operations of one
 * executor may overlap, and parts of several may take turns. HL_E_STATE once the copy stream has failed: an
 * executor with a result that was not drained takes no more.
 */
struct hl_operation_options {
    struct hl_plan_identity identity; /* parts of another operation are refused with HL_E_STATE */
    bool has_ready_stream;
    hl_stream ready_stream;
    hl_event ready_event;         /* NULL: none */
    const hl_event *layer_events; /* `layers` of the executor's options */
};
hl_status hl_operation_start(hl_transfer *transfer, const struct hl_operation_options *options,
                             hl_operation **operation, hl_error *err);

/* Decodes, validates and submits the next part. `bytes` is a private copy of the part, 8-byte aligned, that
 * need not outlive the call. Parts come in order: HL_E_STATE otherwise. A part that completes a layer twice,
 * or a last part that leaves one incomplete, is HL_E_CORRUPT. After an error the operation accepts no more
 * parts, whatever it had accepted has been waited for, and events of layers that were not complete stay as
 * they were before the operation: a consumer must not be made to wait on them. May wait for room in the
 * descriptor ring, that is for earlier copies. */
hl_status hl_operation_submit(hl_operation *operation, const void *bytes, size_t size, hl_error *err);

/* How one layer was moved. */
struct hl_layer_result {
    enum hl_route
        route; /* DIRECT, or KERNEL when a part of the layer went that way; DIRECT for an empty layer */
    uint64_t bytes;
    uint32_t copies;     /* contiguous copies, alone or in batches */
    uint32_t row_copies; /* strided copies */
    uint32_t descriptors;
    bool recorded; /* the layer's event has been recorded */
};

struct hl_operation_result {
    hl_status status; /* HL_OK, or the first failure */
    bool drained;     /* nothing that was accepted can still touch a source or a destination */
    bool submitted;   /* every part was submitted and every layer event recorded */
    bool accepted;    /* the device took something: false is proof that no page was touched */
    uint64_t bytes;   /* submitted */
};

/* Waits until everything accepted so far has finished (of a failed operation too, and between two parts) and
 * reports. Returns result->status, with the first failure's text; *result is written in every case, as
 * `drained` counts most when the status is an error. */
hl_status hl_operation_drain(hl_operation *operation, struct hl_operation_result *result, hl_error *err);

/* HL_PENDING, and *result untouched, while work is in flight; else as drain. Never waits. */
hl_status hl_operation_poll(hl_operation *operation, struct hl_operation_result *result, hl_error *err);

/* One a registered layer, owned by the operation; what has been submitted so far. */
const struct hl_layer_result *hl_operation_layers(const hl_operation *operation);

/* Drains if needed and frees. NULL is allowed. */
void hl_operation_close(hl_operation *operation);

const char *hl_route_name(enum hl_route route); /* "auto", "direct", "kernel" */
hl_status hl_route_parse(const char *name, enum hl_route *route, hl_error *err);

#endif
