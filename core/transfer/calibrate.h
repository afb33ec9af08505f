/* Fits the cost model to this machine: a few dozen copies of known sizes, between a scratch allocation of the
 * device and pinned scratch memory, timed by events on the executor's own stream. */
#ifndef CORE_TRANSFER_CALIBRATE_H
#define CORE_TRANSFER_CALIBRATE_H

#include "core/transfer/executor.h"

/* Replaces transfer->model. On failure the model is as before and nothing is left behind. The device has been
 * entered, and the stream is idle. Takes a few milliseconds and 2 x HL_CALIBRATE_BYTES of memory. */
hl_status hl_calibrate(hl_transfer *transfer, hl_error *err);

#define HL_CALIBRATE_BYTES (4 * HL_MIB)

/* One measured call: `pieces` pieces of `piece_bytes` took `ns`. */
struct hl_calibrate_point {
    uint32_t pieces;
    uint64_t piece_bytes;
    double ns;
};

/* The line through three points: `one` (a single small piece) gives the call, `small` and `large` the rest.
 * Whatever the points say, the result is finite, its bandwidth positive and no cost negative. */
struct hl_route_cost hl_calibrate_fit(const struct hl_calibrate_point *one,
                                      const struct hl_calibrate_point *small,
                                      const struct hl_calibrate_point *large);

#endif
