/* What the files of the CUDA device share. cuda.c opens, describes and closes it; cuda_memory.c has
 * allocations, host registrations and IPC; cuda_stream.c streams and events; cuda_copy.c copies;
 * cuda_kernels.c the embedded kernels.
 *
 * Every field but the imports is constant once the device is open, so calls need no lock. */
#ifndef CORE_DEVICE_CUDA_DEVICE_H
#define CORE_DEVICE_CUDA_DEVICE_H

#include <pthread.h>

#include "core/device/cuda_driver.h"
#include "core/device/device.h"
#include "faults/hook.h"

/* Dynamic shared memory of one block of hl_gather_bulk: kRingBytes of kernel.cu. */
#define HL_CUDA_BULK_SHARED (192u * 1024)

struct hl_cuda_import {
    CUdeviceptr base;  /* what the driver returned, and is given back */
    hl_devptr address; /* what ipc_import returned */
};

struct hl_cuda_kernels {
    CUmodule module; /* NULL when the fatbin has no code for this device: then gather and checksum refuse */
    CUfunction by_loads; /* hl_gather_loads */
    CUfunction by_bulk;  /* hl_gather_bulk; NULL where the device or its code cannot */
    CUfunction checksum; /* hl_checksum_pages */
};

struct hl_cuda_device {
    hl_device base;
    const struct hl_cuda_driver *driver;
    CUdevice device;
    CUcontext context; /* the primary one, retained */
    size_t max_pitch;
    struct hl_cuda_kernels kernels;
    pthread_mutex_t imports_lock;
    struct hl_cuda_import *imports; /* imports_lock guards these three */
    size_t import_count;
    size_t import_capacity;
};

static inline struct hl_cuda_device *hl_cuda_of(hl_device *dev)
{
    return (struct hl_cuda_device *)(void *)dev;
}

/* HL_CUDA(cuda, err, stage, member, cuFunction, arguments…) calls a driver function and turns its result into
 * a status. */
#define HL_CUDA(cuda, err, stage, member, function, ...)                                                     \
    hl_cuda_status((cuda)->driver, (cuda)->driver->member(__VA_ARGS__), (stage), (function), (err))

/* The same as a step of faults/points.h: what takes or gives back something, or asks. */
#define HL_CUDA_CALL(point, cuda, err, stage, member, function, ...)                                         \
    hl_cuda_status((cuda)->driver,                                                                           \
                   HL_FAULT_CALL(point, (cuda)->driver->member(__VA_ARGS__), CUDA_ERROR_UNKNOWN), (stage),   \
                   (function), (err))

/* What is handed to the device, which may have it although the driver reports an error. */
#define HL_CUDA_SUBMIT(point, cuda, err, stage, member, function, ...)                                       \
    hl_cuda_status((cuda)->driver,                                                                           \
                   HL_FAULT_SUBMIT(point, (cuda)->driver->member(__VA_ARGS__), CUDA_ERROR_UNKNOWN), (stage), \
                   (function), (err))

/* The context is current. Loads the fatbin; HL_OK also when it has no code for this device. Sets kernels only
 * on success; hl_cuda_kernels_unload undoes it. */
hl_status hl_cuda_kernels_load(struct hl_cuda_device *cuda, hl_error *err);
void hl_cuda_kernels_unload(struct hl_cuda_device *cuda);

/* The entries of hl_device_ops, as device.h describes them. */
hl_status hl_cuda_memory_info(hl_device *dev, uint64_t *free_bytes, uint64_t *total_bytes, hl_error *err);
hl_status hl_cuda_mem_alloc(hl_device *dev, size_t bytes, hl_devptr *ptr, hl_error *err);
hl_status hl_cuda_mem_free(hl_device *dev, hl_devptr ptr, hl_error *err);
hl_status hl_cuda_fill(hl_device *dev, hl_devptr dst, uint8_t value, size_t bytes, hl_stream stream,
                       hl_error *err);
hl_status hl_cuda_host_register(hl_device *dev, void *ptr, size_t bytes, hl_error *err);
hl_status hl_cuda_host_register_read(hl_device *dev, const void *ptr, size_t bytes, hl_error *err);
hl_status hl_cuda_host_unregister(hl_device *dev, void *ptr, hl_error *err);
hl_status hl_cuda_host_pointer(hl_device *dev, void *ptr, hl_devptr *mapped, hl_error *err);
hl_status hl_cuda_ipc_export(hl_device *dev, hl_devptr ptr, struct hl_ipc_export *out, hl_error *err);
hl_status hl_cuda_ipc_import(hl_device *dev, const struct hl_ipc_export *in, hl_devptr *ptr, hl_error *err);
hl_status hl_cuda_ipc_close(hl_device *dev, hl_devptr ptr, hl_error *err);

hl_status hl_cuda_stream_create(hl_device *dev, hl_stream *stream, hl_error *err);
hl_status hl_cuda_stream_destroy(hl_device *dev, hl_stream stream, hl_error *err);
hl_status hl_cuda_stream_query(hl_device *dev, hl_stream stream, hl_error *err);
hl_status hl_cuda_stream_synchronize(hl_device *dev, hl_stream stream, hl_error *err);
hl_status hl_cuda_stream_wait_event(hl_device *dev, hl_stream stream, hl_event event, hl_error *err);
hl_status hl_cuda_stream_wait_value(hl_device *dev, hl_stream stream, hl_devptr addr, uint32_t value,
                                    hl_error *err);
hl_status hl_cuda_stream_write_value(hl_device *dev, hl_stream stream, hl_devptr addr, uint32_t value,
                                     hl_error *err);
hl_status hl_cuda_event_create(hl_device *dev, unsigned flags, hl_event *event, hl_error *err);
hl_status hl_cuda_event_destroy(hl_device *dev, hl_event event, hl_error *err);
hl_status hl_cuda_event_record(hl_device *dev, hl_event event, hl_stream stream, hl_error *err);
hl_status hl_cuda_event_query(hl_device *dev, hl_event event, hl_error *err);
hl_status hl_cuda_event_synchronize(hl_device *dev, hl_event event, hl_error *err);
hl_status hl_cuda_event_elapsed(hl_device *dev, hl_event start, hl_event end, int64_t *ns, hl_error *err);

hl_status hl_cuda_copy(hl_device *dev, enum hl_copy_kind kind, uint64_t dst, uint64_t src, size_t bytes,
                       hl_stream stream, hl_error *err);
hl_status hl_cuda_copy_rows(hl_device *dev, enum hl_copy_kind kind, uint64_t dst, size_t dst_pitch,
                            uint64_t src, size_t src_pitch, size_t width, size_t rows, hl_stream stream,
                            hl_error *err);
hl_status hl_cuda_copy_batch(hl_device *dev, enum hl_copy_kind kind, const struct hl_copy *copies,
                             size_t count, hl_stream stream, size_t *accepted, hl_error *err);
hl_status hl_cuda_gather(hl_device *dev, const struct hl_gather_launch *launch, hl_stream stream,
                         hl_error *err);
hl_status hl_cuda_checksum(hl_device *dev, const struct hl_checksum_launch *launch, hl_stream stream,
                           hl_error *err);

#endif
