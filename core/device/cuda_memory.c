/* Device allocations, registered host memory, and allocations shared between processes. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/device/cuda_device.h"

#define STAGE "device.cuda_memory"

hl_status hl_cuda_memory_info(hl_device *dev, uint64_t *free_bytes, uint64_t *total_bytes, hl_error *err)
{
    struct hl_cuda_device *cuda = hl_cuda_of(dev);
    size_t free_now, total;
    hl_status status = HL_CUDA(cuda, err, STAGE, memory_info, "cuMemGetInfo", &free_now, &total);
    if (status)
        return status;
    *free_bytes = free_now;
    *total_bytes = total;
    return HL_OK;
}

hl_status hl_cuda_mem_alloc(hl_device *dev, size_t bytes, hl_devptr *ptr, hl_error *err)
{
    struct hl_cuda_device *cuda = hl_cuda_of(dev);
    CUdeviceptr address;
    hl_status status =
        HL_CUDA_CALL(device_mem_alloc, cuda, err, STAGE, mem_alloc, "cuMemAlloc", &address, bytes);
    if (!status)
        *ptr = address;
    return status;
}

/* cuMemFree waits for the device's work before it unmaps. */
hl_status hl_cuda_mem_free(hl_device *dev, hl_devptr ptr, hl_error *err)
{
    struct hl_cuda_device *cuda = hl_cuda_of(dev);
    if (!ptr) /* the driver takes it for a no-op, which hides a caller's mistake */
        return HL_FAIL_DEVICE(err, HL_E_INVALID, STAGE, CUDA_ERROR_INVALID_VALUE, "ptr: 0");
    return HL_CUDA_CALL(device_mem_free, cuda, err, STAGE, mem_free, "cuMemFree", ptr);
}

hl_status hl_cuda_fill(hl_device *dev, hl_devptr dst, uint8_t value, size_t bytes, hl_stream stream,
                       hl_error *err)
{
    struct hl_cuda_device *cuda = hl_cuda_of(dev);
    if (!bytes)
        return HL_OK;
    return HL_CUDA_SUBMIT(device_fill, cuda, err, STAGE, fill, "cuMemsetD8Async", dst, value, bytes,
                          (CUstream)(void *)stream);
}

static hl_status register_pages(struct hl_cuda_device *cuda, void *ptr, size_t bytes, unsigned flags,
                                hl_error *err)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (!ptr || !bytes || (uintptr_t)ptr % page || bytes % page)
        return HL_FAIL_DEVICE(err, HL_E_INVALID, STAGE, CUDA_ERROR_INVALID_VALUE,
                              "[%p, +%zu): not whole pages of %zu bytes", ptr, bytes, page);
    return HL_CUDA_CALL(device_host_register, cuda, err, STAGE, host_register, "cuMemHostRegister", ptr,
                        bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | flags);
}

hl_status hl_cuda_host_register(hl_device *dev, void *ptr, size_t bytes, hl_error *err)
{
    return register_pages(hl_cuda_of(dev), ptr, bytes, 0, err);
}

hl_status hl_cuda_host_register_read(hl_device *dev, const void *ptr, size_t bytes, hl_error *err)
{
    if (!dev->info.read_only_registration)
        return HL_FAIL_DEVICE(err, HL_E_UNSUPPORTED, STAGE, CUDA_ERROR_NOT_SUPPORTED,
                              "this device cannot register memory that is only read");
    return register_pages(hl_cuda_of(dev), (void *)(uintptr_t)ptr, bytes, CU_MEMHOSTREGISTER_READ_ONLY, err);
}

hl_status hl_cuda_host_unregister(hl_device *dev, void *ptr, hl_error *err)
{
    struct hl_cuda_device *cuda = hl_cuda_of(dev);
    return HL_CUDA_CALL(device_host_unregister, cuda, err, STAGE, host_unregister, "cuMemHostUnregister",
                        ptr);
}

hl_status hl_cuda_host_pointer(hl_device *dev, void *ptr, hl_devptr *mapped, hl_error *err)
{
    struct hl_cuda_device *cuda = hl_cuda_of(dev);
    CUdeviceptr address;
    hl_status status = HL_CUDA_CALL(device_host_pointer, cuda, err, STAGE, host_pointer,
                                    "cuMemHostGetDevicePointer", &address, ptr, 0);
    if (!status)
        *mapped = address;
    return status;
}

/* The driver's handle names an allocation's base, whatever address in it was asked for. */
hl_status hl_cuda_ipc_export(hl_device *dev, hl_devptr ptr, struct hl_ipc_export *out, hl_error *err)
{
    struct hl_cuda_device *cuda = hl_cuda_of(dev);
    CUdeviceptr base;
    size_t bytes;
    CUipcMemHandle handle;
    _Static_assert(sizeof handle == HL_IPC_HANDLE_BYTES, "hl_ipc_export holds a CUDA handle");
    hl_status status = HL_CUDA(cuda, err, STAGE, mem_range, "cuMemGetAddressRange", &base, &bytes, ptr);
    if (!status)
        status =
            HL_CUDA_CALL(device_ipc_export, cuda, err, STAGE, ipc_get, "cuIpcGetMemHandle", &handle, base);
    if (status)
        return status;
    memcpy(out->handle, &handle, sizeof handle);
    out->offset = ptr - base;
    out->allocation_bytes = bytes;
    return HL_OK;
}

/* imports_lock is held. Makes room for one more. */
static hl_status grow_imports(struct hl_cuda_device *cuda, hl_error *err)
{
    if (cuda->import_count < cuda->import_capacity)
        return HL_OK;
    size_t capacity = cuda->import_capacity ? 2 * cuda->import_capacity : 16;
    struct hl_cuda_import *imports = reallocarray(cuda->imports, capacity, sizeof *imports);
    if (!imports)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for %zu imports", capacity);
    cuda->imports = imports;
    cuda->import_capacity = capacity;
    return HL_OK;
}

/* The lock is held across the driver's call so that the room made stays free. */
hl_status hl_cuda_ipc_import(hl_device *dev, const struct hl_ipc_export *in, hl_devptr *ptr, hl_error *err)
{
    struct hl_cuda_device *cuda = hl_cuda_of(dev);
    CUipcMemHandle handle;
    CUdeviceptr base;
    if (in->offset >= in->allocation_bytes)
        return HL_FAIL(err, HL_E_RANGE, STAGE,
                       "offset: %" PRIu64 " is outside the allocation of %" PRIu64 " bytes", in->offset,
                       in->allocation_bytes);
    memcpy(&handle, in->handle, sizeof handle);
    pthread_mutex_lock(&cuda->imports_lock);
    hl_status status = grow_imports(cuda, err);
    if (!status)
        status = HL_CUDA_CALL(device_ipc_import, cuda, err, STAGE, ipc_open, "cuIpcOpenMemHandle", &base,
                              handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (!status) {
        cuda->imports[cuda->import_count++] =
            (struct hl_cuda_import){.base = base, .address = base + in->offset};
        *ptr = base + in->offset;
    }
    pthread_mutex_unlock(&cuda->imports_lock);
    return status;
}

/* The driver counts how often a handle was opened, and the table has an entry for each time. */
hl_status hl_cuda_ipc_close(hl_device *dev, hl_devptr ptr, hl_error *err)
{
    struct hl_cuda_device *cuda = hl_cuda_of(dev);
    size_t i = 0;
    hl_status status;
    pthread_mutex_lock(&cuda->imports_lock);
    while (i < cuda->import_count && cuda->imports[i].address != ptr)
        i++;
    if (i == cuda->import_count) {
        status = HL_FAIL(err, HL_E_INVALID, STAGE, "ptr: %#" PRIx64 " was not imported", ptr);
        goto unlock;
    }
    status = HL_CUDA_CALL(device_ipc_close, cuda, err, STAGE, ipc_close, "cuIpcCloseMemHandle",
                          cuda->imports[i].base);
    if (!status)
        cuda->imports[i] = cuda->imports[--cuda->import_count];
unlock:
    pthread_mutex_unlock(&cuda->imports_lock);
    return status;
}
