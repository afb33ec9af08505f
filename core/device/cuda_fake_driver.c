/* A shared library that answers as a CUDA driver does, for cuda_driver_test.c and cuda_test.c: there is no
 * device behind it, only answers, and any function can be made to fail or be missing. It shows that the back
 * end passes errors on, names them and undoes what it did. What a real driver does is tested on a GPU.
 *
 * FAKE_ENTRY chooses what it exports: 2 cuGetProcAddress_v2, 1 cuGetProcAddress of drivers before 12.0, 0
 * neither. */
#include "core/device/cuda_fake_driver.h"

#include <cuda.h>
#include <string.h>

/* Every function has the driver's parameters, and most look at none of them. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define EXPORT __attribute__((visibility("default")))

EXPORT struct fake_driver *fake_driver(void)
{
    static struct fake_driver fake;
    return &fake;
}

#if FAKE_ENTRY

static CUresult answer(const char *function)
{
    const struct fake_driver *fake = fake_driver();
    return fake->failing && !strcmp(fake->failing, function) ? (CUresult)fake->code : CUDA_SUCCESS;
}

/* `act` is what the function does when it is not the failing one. */
#define FAKE(function, parameters, act)                                                                      \
    static CUresult fake_##function parameters                                                               \
    {                                                                                                        \
        CUresult result = answer(#function);                                                                 \
        if (result == CUDA_SUCCESS) {                                                                        \
            act;                                                                                             \
        }                                                                                                    \
        return result;                                                                                       \
    }

static CUresult fake_cuGetErrorName(CUresult error, const char **name)
{
    if (error == CUDA_ERROR_OUT_OF_MEMORY)
        *name = "CUDA_ERROR_OUT_OF_MEMORY";
    else if (error == CUDA_ERROR_NO_DEVICE)
        *name = "CUDA_ERROR_NO_DEVICE";
    else
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static int attribute(CUdevice_attribute wanted)
{
    switch (wanted) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        return fake_driver()->compute_major;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        return 132;
    case CU_DEVICE_ATTRIBUTE_MAX_PITCH:
        return 0x7fffffff;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        return 227 * 1024;
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:
        return fake_driver()->numa_node;
    case CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED:
        return fake_driver()->read_only_register;
    default:
        return 0;
    }
}

static int function_attribute(CUfunction_attribute wanted)
{
    return wanted == CU_FUNC_ATTRIBUTE_PTX_VERSION ? fake_driver()->virtual_arch : 2816;
}

#define HANDLE(type) ((type)(void *)fake_driver())
#define BASE 0x7f0000000000ull /* of every allocation and import */

FAKE(cuInit, (unsigned flags), )
FAKE(cuDriverGetVersion, (int *version), *version = 13000)
FAKE(cuDeviceGetCount, (int *count), *count = fake_driver()->device_count)
FAKE(cuDeviceGet, (CUdevice * device, int ordinal), *device = ordinal)
FAKE(cuDeviceGetName, (char *name, int size, CUdevice device), strcpy(name, "NVIDIA fake"))
FAKE(cuDeviceGetUuid, (CUuuid * uuid, CUdevice device), memset(uuid->bytes, 7, sizeof uuid->bytes))
FAKE(cuDeviceGetAttribute, (int *value, CUdevice_attribute wanted, CUdevice device),
     *value = attribute(wanted))
FAKE(cuDeviceTotalMem, (size_t * bytes, CUdevice device), *bytes = 1ull << 40)
FAKE(cuDeviceGetPCIBusId, (char *id, int size, CUdevice device), strcpy(id, "0000:AB:00.0"))
FAKE(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device), fake_driver()->retained++;
     *context = HANDLE(CUcontext))
FAKE(cuDevicePrimaryCtxRelease, (CUdevice device), fake_driver()->retained--)
FAKE(cuCtxPushCurrent, (CUcontext context), fake_driver()->entered++)
FAKE(cuCtxPopCurrent, (CUcontext * context), fake_driver()->entered--; *context = NULL)
FAKE(cuMemGetInfo, (size_t * free, size_t *total), *free = 1; *total = 2)
FAKE(cuMemAlloc, (CUdeviceptr * address, size_t bytes), *address = BASE)
FAKE(cuMemFree, (CUdeviceptr address), )
FAKE(cuMemGetAddressRange, (CUdeviceptr * base, size_t *bytes, CUdeviceptr address), *base = BASE;
     *bytes = 1 << 20)
FAKE(cuMemsetD8Async, (CUdeviceptr dst, unsigned char value, size_t bytes, CUstream stream), )
FAKE(cuMemHostRegister, (void *ptr, size_t bytes, unsigned flags), fake_driver()->flags = flags)
FAKE(cuMemHostUnregister, (void *ptr), )
FAKE(cuMemHostGetDevicePointer, (CUdeviceptr * address, void *ptr, unsigned flags),
     *address = (CUdeviceptr)ptr)
FAKE(cuIpcGetMemHandle, (CUipcMemHandle * handle, CUdeviceptr address), memset(handle, 5, sizeof *handle))
FAKE(cuIpcOpenMemHandle, (CUdeviceptr * address, CUipcMemHandle handle, unsigned flags),
     fake_driver()->imports++;
     *address = BASE)
FAKE(cuIpcCloseMemHandle, (CUdeviceptr address), fake_driver()->imports -= address == BASE)
FAKE(cuStreamCreate, (CUstream * stream, unsigned flags), fake_driver()->flags = flags;
     *stream = HANDLE(CUstream))
FAKE(cuStreamDestroy, (CUstream stream), )
FAKE(cuStreamQuery, (CUstream stream), )
FAKE(cuStreamSynchronize, (CUstream stream), )
FAKE(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags), )
FAKE(cuStreamWaitValue32, (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags), )
FAKE(cuStreamWriteValue32, (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags), )
FAKE(cuEventCreate, (CUevent * event, unsigned flags), fake_driver()->flags = flags; *event = HANDLE(CUevent))
FAKE(cuEventDestroy, (CUevent event), )
FAKE(cuEventRecord, (CUevent event, CUstream stream), )
FAKE(cuEventQuery, (CUevent event), )
FAKE(cuEventSynchronize, (CUevent event), )
FAKE(cuEventElapsedTime, (float *ms, CUevent start, CUevent end), *ms = fake_driver()->elapsed_ms)
FAKE(cuMemcpyHtoDAsync, (CUdeviceptr dst, const void *src, size_t bytes, CUstream stream),
     fake_driver()->copies++)
FAKE(cuMemcpyDtoHAsync, (void *dst, CUdeviceptr src, size_t bytes, CUstream stream), fake_driver()->copies++)
FAKE(cuMemcpyDtoDAsync, (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream),
     fake_driver()->copies++)
FAKE(cuMemcpyAsync, (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream),
     fake_driver()->copies++)
FAKE(cuMemcpy2DAsync, (const CUDA_MEMCPY2D *copy, CUstream stream), fake_driver()->copies++;
     fake_driver()->host_source = copy->srcMemoryType == CU_MEMORYTYPE_HOST;
     fake_driver()->host_destination = copy->dstMemoryType == CU_MEMORYTYPE_HOST)
FAKE(cuModuleLoadData, (CUmodule * module, const void *image), fake_driver()->modules++;
     *module = HANDLE(CUmodule))
FAKE(cuModuleUnload, (CUmodule module), fake_driver()->modules--)
FAKE(cuModuleGetFunction, (CUfunction * function, CUmodule module, const char *name),
     *function = HANDLE(CUfunction))
FAKE(cuFuncGetAttribute, (int *value, CUfunction_attribute wanted, CUfunction function),
     *value = function_attribute(wanted))
FAKE(cuFuncSetAttribute, (CUfunction function, CUfunction_attribute wanted, int value), )
FAKE(cuLaunchKernel,
     (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
      unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **arguments, void **extra),
     fake_driver()->blocks = grid_x;
     fake_driver()->threads = block_x; fake_driver()->shared = shared)

/* Refuses what the driver refuses. */
static CUresult batch(const size_t *sizes, size_t count, const CUmemcpyAttributes *attributes,
                      const size_t *first, size_t attribute_count, CUstream stream)
{
    CUresult result = answer("cuMemcpyBatchAsync");
    if (!stream || !count || attribute_count != 1 || *first != 0 ||
        attributes->srcAccessOrder != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (!sizes[i])
            return CUDA_ERROR_INVALID_VALUE;
    fake_driver()->batched += result == CUDA_SUCCESS ? count : 0;
    return result;
}

static CUresult fake_batch_13000(CUdeviceptr *dst, CUdeviceptr *src, size_t *sizes, size_t count,
                                 CUmemcpyAttributes *attributes, size_t *first, size_t attribute_count,
                                 CUstream stream)
{
    return batch(sizes, count, attributes, first, attribute_count, stream);
}

static CUresult fake_batch_12080(CUdeviceptr *dst, CUdeviceptr *src, size_t *sizes, size_t count,
                                 CUmemcpyAttributes *attributes, size_t *first, size_t attribute_count,
                                 size_t *failed, CUstream stream)
{
    *failed = SIZE_MAX;
    return batch(sizes, count, attributes, first, attribute_count, stream);
}

static const struct {
    const char *name;
    void *function;
} functions[] = {
#define ENTRY(function)                                                                                      \
    {                                                                                                        \
#function, (void *)fake_##function                                                                   \
    }
    ENTRY(cuGetErrorName),
    ENTRY(cuInit),
    ENTRY(cuDriverGetVersion),
    ENTRY(cuDeviceGetCount),
    ENTRY(cuDeviceGet),
    ENTRY(cuDeviceGetName),
    ENTRY(cuDeviceGetUuid),
    ENTRY(cuDeviceGetAttribute),
    ENTRY(cuDeviceTotalMem),
    ENTRY(cuDeviceGetPCIBusId),
    ENTRY(cuDevicePrimaryCtxRetain),
    ENTRY(cuDevicePrimaryCtxRelease),
    ENTRY(cuCtxPushCurrent),
    ENTRY(cuCtxPopCurrent),
    ENTRY(cuMemGetInfo),
    ENTRY(cuMemAlloc),
    ENTRY(cuMemFree),
    ENTRY(cuMemGetAddressRange),
    ENTRY(cuMemsetD8Async),
    ENTRY(cuMemHostRegister),
    ENTRY(cuMemHostUnregister),
    ENTRY(cuMemHostGetDevicePointer),
    ENTRY(cuIpcGetMemHandle),
    ENTRY(cuIpcOpenMemHandle),
    ENTRY(cuIpcCloseMemHandle),
    ENTRY(cuStreamCreate),
    ENTRY(cuStreamDestroy),
    ENTRY(cuStreamQuery),
    ENTRY(cuStreamSynchronize),
    ENTRY(cuStreamWaitEvent),
    ENTRY(cuStreamWaitValue32),
    ENTRY(cuStreamWriteValue32),
    ENTRY(cuEventCreate),
    ENTRY(cuEventDestroy),
    ENTRY(cuEventRecord),
    ENTRY(cuEventQuery),
    ENTRY(cuEventSynchronize),
    ENTRY(cuEventElapsedTime),
    ENTRY(cuMemcpyHtoDAsync),
    ENTRY(cuMemcpyDtoHAsync),
    ENTRY(cuMemcpyDtoDAsync),
    ENTRY(cuMemcpyAsync),
    ENTRY(cuMemcpy2DAsync),
    ENTRY(cuModuleLoadData),
    ENTRY(cuModuleUnload),
    ENTRY(cuModuleGetFunction),
    ENTRY(cuFuncGetAttribute),
    ENTRY(cuFuncSetAttribute),
    ENTRY(cuLaunchKernel)};

static CUresult find(const char *name, void **function, int version)
{
    const struct fake_driver *fake = fake_driver();
    *function = NULL;
    if (fake->missing && !strcmp(name, fake->missing))
        return CUDA_SUCCESS;
    if (version > (fake->version ? fake->version : 13000))
        return CUDA_ERROR_INVALID_VALUE;
    if (!strcmp(name, "cuMemcpyBatchAsync"))
        *function = version >= 13000 ? (void *)fake_batch_13000 : (void *)fake_batch_12080;
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++)
        if (!strcmp(name, functions[i].name))
            *function = functions[i].function;
    return CUDA_SUCCESS;
}

#undef cuGetProcAddress
#if FAKE_ENTRY == 2
EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags,
                                    CUdriverProcAddressQueryResult *status)
{
    return find(name, function, version);
}
#else
EXPORT CUresult fake_find_before(const char *name, void **function, int version,
                                 cuuint64_t flags) __asm__("cuGetProcAddress");
EXPORT CUresult fake_find_before(const char *name, void **function, int version, cuuint64_t flags)
{
    return find(name, function, version);
}
#endif

#endif
