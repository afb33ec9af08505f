/* The cost model and the choice it makes for each layer. Every way to move bytes is priced by one line,
 *
 *     ns = call_ns + pieces * piece_ns + bytes / bytes_per_second
 *
 * with small_piece_ns in place of piece_ns for pieces of at most small_bytes. The line is an approximation:
 * it orders the ways, it does not predict a duration. */
#ifndef CORE_TRANSFER_ROUTE_H
#define CORE_TRANSFER_ROUTE_H

#include <stdbool.h>

#include "core/transfer/transfer.h"
#include "core/transfer/work.h"

#define HL_ROUTE_MAX_PITCH 0x7fffffffull /* CU_DEVICE_ATTRIBUTE_MAX_PITCH of every device so far */
#define HL_ROUTE_DESCRIPTOR_BYTES                                                                            \
    (64u * HL_KIB) /* longer ranges are cut, so that thread blocks share them                                \
                    */

/* Copies in one batched call. The device starts when the driver has prepared the whole call, so that smaller
 * calls start sooner and overlap the preparation of the next. */
#define HL_ROUTE_BATCH_COPIES 256u
_Static_assert(HL_ROUTE_BATCH_COPIES <= HL_TRANSFER_BATCH_COPIES, "a batch within the limit");

/* How one layer of a part is going to be submitted. */
struct hl_route_choice {
    enum hl_route route; /* DIRECT or KERNEL */
    bool batch;          /* DIRECT: contiguous copies in batched calls, else one call each */
};

/* What the model is before it is fitted: the figures of one H200 (see the table in route.c), or, on the
 * software device, a line under which the kernel never wins. `blocks` is the cap on thread blocks. */
void hl_route_default_model(const struct hl_device_info *info, uint32_t blocks, struct hl_route_model *model);

/* Nanoseconds of `pieces` pieces of `piece_bytes` bytes each in one call. */
double hl_route_ns(const struct hl_route_cost *cost, uint64_t pieces, uint64_t piece_bytes);

/* Whether the direct route moves this run as one strided copy, else row by row. */
bool hl_route_strided(const struct hl_route_model *model, const struct hl_work_run *run);

/* The cheapest way for a layer with bytes, or the cheapest within the route that the caller asked for. */
struct hl_route_choice hl_route_choose(const struct hl_route_model *model, enum hl_route wanted,
                                       const struct hl_work *work, const struct hl_work_layer *layer);

#endif
