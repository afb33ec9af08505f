/* The CUDA driver as this library uses it: functions found at run time in libcuda.so.1, never linked, so that
 * a binary starts on a machine without a driver. cuda_driver.c fills the table; the cuda*.c files of this
 * room call through it. */
#ifndef CORE_DEVICE_CUDA_DRIVER_H
#define CORE_DEVICE_CUDA_DRIVER_H

#include <cudaTypedefs.h>
#include <stdbool.h>

#include "core/base/error.h"

/* X(member, driver function, version of its signature, required). The version chooses the type in
 * cudaTypedefs.h and is what cuGetProcAddress is asked for, so the driver's answer always has the type of the
 * member. A function that is not required may be NULL. */
#define HL_CUDA_FUNCTIONS(X)                                                                                 \
    X(init, cuInit, 2000, true)                                                                              \
    X(driver_version, cuDriverGetVersion, 2020, true)                                                        \
    X(error_name, cuGetErrorName, 6000, true)                                                                \
    X(device_count, cuDeviceGetCount, 2000, true)                                                            \
    X(device_get, cuDeviceGet, 2000, true)                                                                   \
    X(device_name, cuDeviceGetName, 2000, true)                                                              \
    X(device_uuid, cuDeviceGetUuid, 11040, true)                                                             \
    X(device_attribute, cuDeviceGetAttribute, 2000, true)                                                    \
    X(device_memory, cuDeviceTotalMem, 3020, true)                                                           \
    X(device_pci_id, cuDeviceGetPCIBusId, 4010, true)                                                        \
    X(context_retain, cuDevicePrimaryCtxRetain, 7000, true)                                                  \
    X(context_release, cuDevicePrimaryCtxRelease, 11000, true)                                               \
    X(context_push, cuCtxPushCurrent, 4000, true)                                                            \
    X(context_pop, cuCtxPopCurrent, 4000, true)                                                              \
    X(memory_info, cuMemGetInfo, 3020, true)                                                                 \
    X(mem_alloc, cuMemAlloc, 3020, true)                                                                     \
    X(mem_free, cuMemFree, 3020, true)                                                                       \
    X(mem_range, cuMemGetAddressRange, 3020, true)                                                           \
    X(fill, cuMemsetD8Async, 3020, true)                                                                     \
    X(host_register, cuMemHostRegister, 6050, true)                                                          \
    X(host_unregister, cuMemHostUnregister, 4000, true)                                                      \
    X(host_pointer, cuMemHostGetDevicePointer, 3020, true)                                                   \
    X(ipc_get, cuIpcGetMemHandle, 4010, true)                                                                \
    X(ipc_open, cuIpcOpenMemHandle, 11000, true)                                                             \
    X(ipc_close, cuIpcCloseMemHandle, 4010, true)                                                            \
    X(stream_create, cuStreamCreate, 2000, true)                                                             \
    X(stream_destroy, cuStreamDestroy, 4000, true)                                                           \
    X(stream_query, cuStreamQuery, 2000, true)                                                               \
    X(stream_synchronize, cuStreamSynchronize, 2000, true)                                                   \
    X(stream_wait_event, cuStreamWaitEvent, 3020, true)                                                      \
    X(stream_wait_value, cuStreamWaitValue32, 11070, true)                                                   \
    X(stream_write_value, cuStreamWriteValue32, 11070, true)                                                 \
    X(event_create, cuEventCreate, 2000, true)                                                               \
    X(event_destroy, cuEventDestroy, 4000, true)                                                             \
    X(event_record, cuEventRecord, 2000, true)                                                               \
    X(event_query, cuEventQuery, 2000, true)                                                                 \
    X(event_synchronize, cuEventSynchronize, 2000, true)                                                     \
    X(event_elapsed, cuEventElapsedTime, 2000, true)                                                         \
    X(event_elapsed_12080, cuEventElapsedTime, 12080, false)                                                 \
    X(copy_h2d, cuMemcpyHtoDAsync, 3020, true)                                                               \
    X(copy_d2h, cuMemcpyDtoHAsync, 3020, true)                                                               \
    X(copy_d2d, cuMemcpyDtoDAsync, 3020, true)                                                               \
    X(copy_any, cuMemcpyAsync, 4000, true)                                                                   \
    X(copy_rows, cuMemcpy2DAsync, 3020, true)                                                                \
    X(copy_batch, cuMemcpyBatchAsync, 13000, false) /* since CUDA 13.0 */                                    \
    X(copy_batch_12080, cuMemcpyBatchAsync, 12080,                                                           \
      false) /* since CUDA 12.8; with an index of what failed */                                             \
    X(module_load, cuModuleLoadData, 2000, true)                                                             \
    X(module_unload, cuModuleUnload, 2000, true)                                                             \
    X(module_function, cuModuleGetFunction, 2000, true)                                                      \
    X(function_attribute, cuFuncGetAttribute, 2020, true)                                                    \
    X(function_set_attribute, cuFuncSetAttribute, 9000, true)                                                \
    X(launch, cuLaunchKernel, 4000, true)

struct hl_cuda_driver {
#define HL_CUDA_MEMBER(member, function, version, required) PFN_##function##_v##version member;
    HL_CUDA_FUNCTIONS(HL_CUDA_MEMBER)
#undef HL_CUDA_MEMBER
};

/* Loads the driver once a process and sets *driver to the complete table, which is never unloaded. A failure
 * is reported anew by each call, and the next call tries again: HL_E_NO_DEVICE with the library or the
 * function that is missing. Any thread. cuInit has not been called. */
hl_status hl_cuda_driver_load(const struct hl_cuda_driver **driver, hl_error *err);

/* HL_OK for CUDA_SUCCESS; otherwise the Hostlane status for the driver's code, with *err saying which driver
 * function answered it and the code's name. */
hl_status hl_cuda_status(const struct hl_cuda_driver *driver, CUresult result, const char *stage,
                         const char *function, hl_error *err);

#endif
