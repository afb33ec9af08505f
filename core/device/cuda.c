/* Opening, describing and closing a CUDA device. */
#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/device/cuda_device.h"

#define STAGE "device.open_cuda"

static hl_status enter_context(hl_device *dev, hl_error *err)
{
    struct hl_cuda_device *cuda = hl_cuda_of(dev);
    return HL_CUDA_CALL(device_enter, cuda, err, "device.enter", context_push, "cuCtxPushCurrent",
                        cuda->context);
}

/* The result is not looked at: the driver may answer with an earlier error of asynchronous work, which is
 * none of this call's, and the stack is restored all the same. */
static void leave_context(hl_device *dev)
{
    CUcontext popped;
    (void)hl_cuda_of(dev)->driver->context_pop(&popped);
}

static void close_device(hl_device *dev)
{
    struct hl_cuda_device *cuda = hl_cuda_of(dev);
    if (!enter_context(dev, NULL)) {
        hl_cuda_kernels_unload(cuda);
        leave_context(dev);
    }
    (void)cuda->driver->context_release(cuda->device);
    pthread_mutex_destroy(&cuda->imports_lock);
    free(cuda->imports);
    free(cuda);
}

static const struct hl_device_ops ops = {
    .close = close_device,
    .enter = enter_context,
    .leave = leave_context,
    .memory_info = hl_cuda_memory_info,
    .mem_alloc = hl_cuda_mem_alloc,
    .mem_free = hl_cuda_mem_free,
    .fill = hl_cuda_fill,
    .host_register = hl_cuda_host_register,
    .host_register_read = hl_cuda_host_register_read,
    .host_unregister = hl_cuda_host_unregister,
    .host_pointer = hl_cuda_host_pointer,
    .ipc_export = hl_cuda_ipc_export,
    .ipc_import = hl_cuda_ipc_import,
    .ipc_close = hl_cuda_ipc_close,
    .stream_create = hl_cuda_stream_create,
    .stream_destroy = hl_cuda_stream_destroy,
    .stream_query = hl_cuda_stream_query,
    .stream_synchronize = hl_cuda_stream_synchronize,
    .stream_wait_event = hl_cuda_stream_wait_event,
    .stream_wait_value = hl_cuda_stream_wait_value,
    .stream_write_value = hl_cuda_stream_write_value,
    .event_create = hl_cuda_event_create,
    .event_destroy = hl_cuda_event_destroy,
    .event_record = hl_cuda_event_record,
    .event_query = hl_cuda_event_query,
    .event_synchronize = hl_cuda_event_synchronize,
    .event_elapsed = hl_cuda_event_elapsed,
    .copy = hl_cuda_copy,
    .copy_rows = hl_cuda_copy_rows,
    .copy_batch = hl_cuda_copy_batch,
    .gather = hl_cuda_gather,
    .checksum = hl_cuda_checksum,
};

/* -1 when the driver is older than the attribute or has no answer. */
static int attribute_or_unknown(const struct hl_cuda_device *cuda, CUdevice_attribute attribute)
{
    int value;
    return cuda->driver->device_attribute(&value, attribute, cuda->device) == CUDA_SUCCESS ? value : -1;
}

static int numa_node_of_pci(const char *pci_id)
{
    char path[96], line[16], *end;
    int node = -1;
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/numa_node", pci_id);
    FILE *file = fopen(path, "re");
    if (!file)
        return -1;
    if (fgets(line, sizeof line, file)) {
        long number = strtol(line, &end, 10);
        if (end != line && number >= 0 && number <= INT_MAX)
            node = (int)number;
    }
    fclose(file);
    return node;
}

static hl_status describe_limits(struct hl_cuda_device *cuda, hl_error *err)
{
    struct hl_device_info *info = &cuda->base.info;
    int max_pitch = 0;
    const struct {
        CUdevice_attribute attribute;
        int *value;
    } wanted[] = {
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &info->compute_major},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &info->compute_minor},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &info->sm_count},
        {CU_DEVICE_ATTRIBUTE_MAX_PITCH, &max_pitch},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        hl_status status = HL_CUDA(cuda, err, STAGE, device_attribute, "cuDeviceGetAttribute",
                                   wanted[i].value, wanted[i].attribute, cuda->device);
        if (status)
            return status;
    }
    cuda->max_pitch = (size_t)max_pitch;
    size_t bytes = 0;
    hl_status status = HL_CUDA(cuda, err, STAGE, device_memory, "cuDeviceTotalMem", &bytes, cuda->device);
    info->memory_bytes = bytes;
    return status;
}

static hl_status describe(struct hl_cuda_device *cuda, hl_error *err)
{
    struct hl_device_info *info = &cuda->base.info;
    CUuuid uuid;
    info->kind = HL_DEVICE_CUDA;
    hl_status status = HL_CUDA(cuda, err, STAGE, device_name, "cuDeviceGetName", info->name,
                               (int)sizeof info->name, cuda->device);
    if (!status)
        status = HL_CUDA(cuda, err, STAGE, device_uuid, "cuDeviceGetUuid", &uuid, cuda->device);
    if (!status)
        status = HL_CUDA(cuda, err, STAGE, device_pci_id, "cuDeviceGetPCIBusId", info->pci_id,
                         (int)sizeof info->pci_id, cuda->device);
    if (!status)
        status = HL_CUDA(cuda, err, STAGE, driver_version, "cuDriverGetVersion", &info->driver_version);
    if (!status)
        status = describe_limits(cuda, err);
    if (status)
        return status;
    _Static_assert(sizeof info->uuid == sizeof uuid.bytes, "a UUID has 16 bytes");
    memcpy(info->uuid, uuid.bytes, sizeof info->uuid);
    /* Lower case, as the kernel names the device in /sys. */
    for (char *c = info->pci_id; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    info->read_only_registration =
        attribute_or_unknown(cuda, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED) == 1;
    info->numa_node = attribute_or_unknown(cuda, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
    if (info->numa_node < 0)
        info->numa_node = numa_node_of_pci(info->pci_id);
    return HL_OK;
}

static hl_status find_device(struct hl_cuda_device *cuda, int ordinal, hl_error *err)
{
    int count = 0;
    hl_status status = HL_CUDA(cuda, err, STAGE, init, "cuInit", 0);
    if (!status)
        status = HL_CUDA(cuda, err, STAGE, device_count, "cuDeviceGetCount", &count);
    if (status)
        return status;
    if (ordinal < 0 || ordinal >= count)
        return HL_FAIL_DEVICE(err, HL_E_NO_DEVICE, STAGE, CUDA_ERROR_INVALID_DEVICE,
                              "ordinal: %d, the CUDA driver shows %d device(s)", ordinal, count);
    return HL_CUDA(cuda, err, STAGE, device_get, "cuDeviceGet", &cuda->device, ordinal);
}

static hl_status load_kernels(struct hl_cuda_device *cuda, hl_error *err)
{
    hl_status status = enter_context(&cuda->base, err);
    if (status)
        return status;
    status = hl_cuda_kernels_load(cuda, err);
    leave_context(&cuda->base);
    return status;
}

hl_status hl_device_open_cuda(int ordinal, hl_device **dev, hl_error *err)
{
    const struct hl_cuda_driver *driver;
    hl_status status = hl_cuda_driver_load(&driver, err);
    if (status)
        return status;
    struct hl_cuda_device *cuda = calloc(1, sizeof *cuda);
    if (!cuda)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for a device");
    cuda->base.ops = &ops;
    cuda->driver = driver;
    status = find_device(cuda, ordinal, err);
    if (!status)
        status = describe(cuda, err);
    if (status)
        goto err_free;
    status = HL_CUDA_CALL(device_open, cuda, err, STAGE, context_retain, "cuDevicePrimaryCtxRetain",
                          &cuda->context, cuda->device);
    if (status)
        goto err_free;
    status = load_kernels(cuda, err);
    if (status)
        goto err_release;
    pthread_mutex_init(&cuda->imports_lock, NULL);
    *dev = &cuda->base;
    return HL_OK;
err_release:
    (void)driver->context_release(cuda->device);
err_free:
    free(cuda);
    return status;
}
