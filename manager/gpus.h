/* The GPUs of a Manager, for its start and its end. */
#ifndef MANAGER_GPUS_H
#define MANAGER_GPUS_H

#include "manager/state.h"

/* What a Manager's progress callback is told: bytes of one arena become bytes of all. */
struct manager_progress {
    const hl_manager_options *options;
    uint64_t before_bytes, total_bytes;
};
void manager_progress_report(void *progress, const char *stage, uint64_t done_bytes, uint64_t total_bytes);

/* Opens the first device: CUDA's, else the software device, which is said in the log. */
hl_status manager_gpus_open_first(hl_manager *manager, hl_device **dev, hl_error *err);

/* Registers every arena with the device and starts its publisher. On success the device is the Manager's. */
hl_status manager_gpus_add(hl_manager *manager, hl_device *dev, uint32_t *gpu, hl_error *err);

/* Without the lock, once no session admits anything: ends the publishers. */
void manager_gpus_stop_publishers(hl_manager *manager);
/* After that: releases registrations and devices. */
void manager_gpus_close(hl_manager *manager);

#endif
