/* The kernels of kernel.cu: loading the embedded fatbin, and launching. */
#include <inttypes.h>
#include <string.h>

#include "core/device/cuda_device.h"
#include "hostlane/limits.h"

#define STAGE "device.cuda_kernels"

/* The fatbin that cuda_fatbin() embeds. */
extern const unsigned char hl_kernels[];

/* Threads of a block, as kernel.cu says. */
#define LOADS_THREADS 512
#define BULK_THREADS 32
#define CHECKSUM_THREADS 256

/* struct Layers of kernel.cu, passed by value. */
struct layers {
    CUdeviceptr counters;
    uint32_t count;
    uint32_t ends[HL_GATHER_LAYERS];
};
_Static_assert(sizeof(struct layers) == 144, "kernel.cu takes this");

/* The code for bulk copies is in what was compiled for sm_90 and newer. */
#define BULK_VIRTUAL_ARCH 90

/* Looks up a function and makes the driver load its code now: left until the first launch, the load could
 * come while a graph is being captured or a kernel waits for the host. */
static hl_status find_kernel(struct hl_cuda_device *cuda, CUmodule module, const char *name,
                             CUfunction *function, int *virtual_arch, hl_error *err)
{
    hl_status status =
        HL_CUDA(cuda, err, STAGE, module_function, "cuModuleGetFunction", function, module, name);
    if (status)
        return status;
    return HL_CUDA(cuda, err, STAGE, function_attribute, "cuFuncGetAttribute", virtual_arch,
                   CU_FUNC_ATTRIBUTE_PTX_VERSION, *function);
}

/* Sets `bulk` to NULL where the device, the code chosen for it or its shared memory does not allow the bulk
 * kernel. */
static hl_status allow_bulk(struct hl_cuda_device *cuda, CUfunction *bulk, int virtual_arch, hl_error *err)
{
    int shared = 0;
    hl_status status = HL_CUDA(cuda, err, STAGE, device_attribute, "cuDeviceGetAttribute", &shared,
                               CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, cuda->device);
    if (status)
        return status;
    int fixed = 0;
    status = HL_CUDA(cuda, err, STAGE, function_attribute, "cuFuncGetAttribute", &fixed,
                     CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, *bulk);
    if (status)
        return status;
    if (cuda->base.info.compute_major < 9 || virtual_arch < BULK_VIRTUAL_ARCH ||
        shared < fixed + (int)HL_CUDA_BULK_SHARED) {
        *bulk = NULL;
        return HL_OK;
    }
    return HL_CUDA(cuda, err, STAGE, function_set_attribute, "cuFuncSetAttribute", *bulk,
                   CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)HL_CUDA_BULK_SHARED);
}

hl_status hl_cuda_kernels_load(struct hl_cuda_device *cuda, hl_error *err)
{
    struct hl_cuda_kernels kernels = {0};
    int loads_arch, bulk_arch, checksum_arch;
    CUresult result = cuda->driver->module_load(&kernels.module, hl_kernels);
    if (result == CUDA_ERROR_NO_BINARY_FOR_GPU || result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION)
        return HL_OK; /* older than sm_80, or newer than this driver can compile for: copies work, kernels
                         refuse */
    hl_status status = hl_cuda_status(cuda->driver, result, STAGE, "cuModuleLoadData", err);
    if (status)
        return status;
    status = find_kernel(cuda, kernels.module, "hl_gather_loads", &kernels.by_loads, &loads_arch, err);
    if (!status)
        status = find_kernel(cuda, kernels.module, "hl_gather_bulk", &kernels.by_bulk, &bulk_arch, err);
    if (!status)
        status =
            find_kernel(cuda, kernels.module, "hl_checksum_pages", &kernels.checksum, &checksum_arch, err);
    if (!status)
        status = allow_bulk(cuda, &kernels.by_bulk, bulk_arch, err);
    if (status)
        goto err_unload;
    cuda->kernels = kernels;
    cuda->base.info.bulk_copy = kernels.by_bulk != NULL;
    return HL_OK;
err_unload:
    (void)cuda->driver->module_unload(kernels.module);
    return status;
}

void hl_cuda_kernels_unload(struct hl_cuda_device *cuda)
{
    if (cuda->kernels.module)
        (void)cuda->driver->module_unload(cuda->kernels.module);
}

static hl_status check_loaded(const struct hl_cuda_device *cuda, hl_error *err)
{
    if (cuda->kernels.module)
        return HL_OK;
    return HL_FAIL_DEVICE(err, HL_E_UNSUPPORTED, STAGE, CUDA_ERROR_NO_BINARY_FOR_GPU,
                          "no kernel for compute capability %d.%d", cuda->base.info.compute_major,
                          cuda->base.info.compute_minor);
}

/* A device address of 64-bit words. */
static hl_status check_words(const char *field, hl_devptr address, hl_error *err)
{
    if (address && address % sizeof(uint64_t) == 0)
        return HL_OK;
    return HL_FAIL_DEVICE(err, HL_E_INVALID, STAGE, CUDA_ERROR_INVALID_VALUE,
                          "%s: %#" PRIx64 " is not an address of 64-bit words", field, address);
}

static hl_status check_gather(const struct hl_cuda_device *cuda, const struct hl_gather_launch *launch,
                              hl_error *err)
{
    hl_status status = check_loaded(cuda, err);
    if (status)
        return status;
    if (launch->method != HL_GATHER_LOADS && launch->method != HL_GATHER_BULK)
        return HL_FAIL_DEVICE(err, HL_E_INVALID, STAGE, CUDA_ERROR_INVALID_VALUE, "method: %d",
                              (int)launch->method);
    if (launch->method == HL_GATHER_BULK && !cuda->kernels.by_bulk)
        return HL_FAIL_DEVICE(err, HL_E_UNSUPPORTED, STAGE, CUDA_ERROR_NOT_SUPPORTED,
                              "method: this device has no bulk copies");
    if (!launch->blocks)
        return HL_FAIL_DEVICE(err, HL_E_INVALID, STAGE, CUDA_ERROR_INVALID_VALUE, "blocks: 0");
    if (launch->blocks > HL_TRANSFER_MAX_SMS)
        return HL_FAIL(err, HL_E_LIMIT, STAGE, "blocks: %" PRIu32 ", at most %u", launch->blocks,
                       HL_TRANSFER_MAX_SMS);
    if (launch->count) {
        status = check_words("descriptors", launch->descriptors, err);
        if (status)
            return status;
    }
    return hl_gather_check_layers(launch, STAGE, CUDA_ERROR_INVALID_VALUE, err);
}

hl_status hl_cuda_gather(hl_device *dev, const struct hl_gather_launch *launch, hl_stream stream,
                         hl_error *err)
{
    struct hl_cuda_device *cuda = hl_cuda_of(dev);
    hl_status status = check_gather(cuda, launch, err);
    if (status || !launch->count)
        return status;
    bool bulk = launch->method == HL_GATHER_BULK;
    CUdeviceptr descriptors = launch->descriptors;
    struct layers layers = {.count = 1, .ends[0] = launch->count};
    if (launch->layer_count) {
        layers.counters = launch->counters;
        layers.count = launch->layer_count;
        memcpy(layers.ends, launch->layer_ends, launch->layer_count * sizeof layers.ends[0]);
    }
    void *arguments[] = {&descriptors, &layers};
    return HL_CUDA_SUBMIT(device_gather, cuda, err, STAGE, launch, "cuLaunchKernel",
                          bulk ? cuda->kernels.by_bulk : cuda->kernels.by_loads, launch->blocks, 1, 1,
                          bulk ? BULK_THREADS : LOADS_THREADS, 1, 1, bulk ? HL_CUDA_BULK_SHARED : 0,
                          (CUstream)(void *)stream, arguments, NULL);
}

static hl_status check_checksum(const struct hl_cuda_device *cuda, const struct hl_checksum_launch *launch,
                                hl_error *err)
{
    hl_status status = check_loaded(cuda, err);
    if (status)
        return status;
    if (launch->page_bytes % sizeof(uint64_t))
        return HL_FAIL_DEVICE(err, HL_E_INVALID, STAGE, CUDA_ERROR_INVALID_VALUE,
                              "page_bytes: %" PRIu64 " is not a multiple of 8", launch->page_bytes);
    if (!launch->count)
        return HL_OK;
    if (launch->count > INT32_MAX)
        return HL_FAIL_DEVICE(err, HL_E_INVALID, STAGE, CUDA_ERROR_INVALID_VALUE,
                              "count: %" PRIu32 " pages, a launch takes %d", launch->count, INT32_MAX);
    status = check_words("offsets", launch->offsets, err);
    return status ? status : check_words("sums", launch->sums, err);
}

hl_status hl_cuda_checksum(hl_device *dev, const struct hl_checksum_launch *launch, hl_stream stream,
                           hl_error *err)
{
    struct hl_cuda_device *cuda = hl_cuda_of(dev);
    hl_status status = check_checksum(cuda, launch, err);
    if (status || !launch->count)
        return status;
    CUdeviceptr base = launch->base, offsets = launch->offsets, sums = launch->sums;
    uint64_t page_bytes = launch->page_bytes;
    void *arguments[] = {&base, &offsets, &sums, &page_bytes};
    return HL_CUDA_SUBMIT(device_checksum, cuda, err, STAGE, launch, "cuLaunchKernel", cuda->kernels.checksum,
                          launch->count, 1, 1, CHECKSUM_THREADS, 1, 1, 0, (CUstream)(void *)stream, arguments,
                          NULL);
}
