/* The direct route: copy engines. Contiguous ranges go one a call or in batches, runs as strided copies or
 * row by row, as the model prices them. */
#ifndef CORE_TRANSFER_DIRECT_H
#define CORE_TRANSFER_DIRECT_H

#include <stdbool.h>

#include "core/transfer/executor.h"

/* Submits a layer to the copy stream; the device has been entered. *accepted becomes true when the device
 * took anything, also when a later copy fails. */
hl_status hl_direct_submit(hl_transfer *transfer, const struct hl_work *work,
                           const struct hl_work_layer *layer, bool batch, struct hl_layer_result *result,
                           bool *accepted, hl_error *err);

#endif
