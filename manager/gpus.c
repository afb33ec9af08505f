/* GPUs: opened when a binding first names one, registered with every arena, kept until the Manager stops. */
#include "manager/gpus.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/base/error.h"
#include "faults/hook.h"

static const char stage[] = "manager.gpu";

enum { MOST_GPUS = sizeof(((hl_manager *)0)->gpus) / sizeof(struct manager_gpu) };

void manager_progress_report(void *user, const char *step, uint64_t done_bytes, uint64_t total_bytes)
{
    const struct manager_progress *progress = user;
    (void)total_bytes;
    if (progress->options->progress)
        progress->options->progress(progress->options->progress_user, step,
                                    progress->before_bytes + done_bytes, progress->total_bytes);
}

hl_status manager_gpus_open_first(hl_manager *manager, hl_device **dev, hl_error *err)
{
    hl_error reason;
    if (!manager->options.software) {
        hl_status status = hl_device_open_cuda(0, dev, &reason);
        if (status != HL_E_NO_DEVICE) {
            if (status != HL_OK && err)
                *err = reason;
            return status;
        }
        manager_log(manager, HL_MANAGER_WARNING, "no CUDA device, the software device takes its place: %s",
                    reason.text);
        manager->options.software = true;
    }
    return hl_device_open_software(dev, err);
}

static hl_status register_arenas(hl_manager *manager, struct manager_gpu *gpu, hl_error *err)
{
    struct manager_progress progress = {.options = &manager->options};
    for (uint32_t i = 0; i < manager->arena_count; i++)
        progress.total_bytes += hl_arena_bytes(manager->arenas[i]);
    for (uint32_t i = 0; i < manager->arena_count; i++) {
        hl_status status =
            HL_FAULT_CALL(manager_arena_register,
                          hl_arena_register(manager->arenas[i], gpu->dev, manager_progress_report, &progress,
                                            &gpu->registrations[i], err),
                          HL_FAIL_ERRNO(err, HL_E_NOMEM, stage, errno, "arena %u cannot be registered", i));
        if (status != HL_OK)
            return status;
        progress.before_bytes += hl_arena_bytes(manager->arenas[i]);
    }
    return HL_OK;
}

static void release_registrations(struct manager_gpu *gpu)
{
    for (uint32_t i = 0; i < HL_ARENA_IMPORTS; i++) {
        hl_registration_release(gpu->registrations[i]);
        gpu->registrations[i] = NULL;
    }
}

hl_status manager_gpus_add(hl_manager *manager, hl_device *dev, uint32_t *out, hl_error *err)
{
    if (manager->gpu_count == MOST_GPUS)
        return HL_FAIL(err, HL_E_LIMIT, stage, "%d GPUs are in use, no more are allowed", MOST_GPUS);
    const uint32_t index = manager->gpu_count;
    struct manager_gpu *gpu = &manager->gpus[index];
    *gpu = (struct manager_gpu){.dev = dev};
    memcpy(gpu->uuid, dev->info.uuid, sizeof gpu->uuid);
    hl_budget_init(&gpu->permits, HL_GPU_RESTORES);
    hl_status status = register_arenas(manager, gpu, err);
    if (status != HL_OK)
        goto err_release;
    manager->gpu_count++; /* the publisher's thread looks its GPU up */
    status = manager_publisher_start(manager, index, err);
    if (status != HL_OK)
        goto err_forget;
    manager_log(manager, HL_MANAGER_INFO, "GPU %u: %s%s%s, %u arenas registered", index, dev->info.name,
                dev->info.pci_id[0] ? " at " : "", dev->info.pci_id, manager->arena_count);
    *out = index;
    return HL_OK;
err_forget:
    manager->gpu_count--;
err_release:
    release_registrations(gpu);
    memset(gpu, 0, sizeof *gpu);
    return status;
}

/* The CUDA device with this uuid. Each one is opened in turn, for device.h names them by number only. */
static hl_status open_cuda(const unsigned char uuid[16], hl_device **out, hl_error *err)
{
    for (int ordinal = 0; ordinal < MOST_GPUS; ordinal++) {
        hl_device *dev;
        hl_status status = hl_device_open_cuda(ordinal, &dev, err);
        if (status == HL_E_NO_DEVICE)
            break;
        if (status != HL_OK)
            return status;
        if (memcmp(dev->info.uuid, uuid, 16) == 0) {
            *out = dev;
            return HL_OK;
        }
        hl_device_close(dev);
    }
    return HL_E_NO_DEVICE;
}

static hl_status refuse_uuid(const hl_manager *manager, const unsigned char uuid[16], hl_error *err)
{
    char hex[33];
    for (int i = 0; i < 16; i++)
        snprintf(hex + 2 * i, 3, "%02x", uuid[i]);
    return HL_FAIL(
        err, HL_E_NO_DEVICE, stage,
        "device_uuid %s is no device of this Manager (%s): engine and Manager must see the same GPUs", hex,
        manager->options.software ? "it has the software device" : "see CUDA_VISIBLE_DEVICES");
}

hl_status manager_gpu_get(hl_manager *manager, const unsigned char uuid[16], uint32_t *gpu, hl_error *err)
{
    hl_device *dev;
    for (uint32_t i = 0; i < manager->gpu_count; i++) {
        if (memcmp(manager->gpus[i].uuid, uuid, 16) == 0) {
            *gpu = i;
            return HL_OK;
        }
    }
    if (manager->options.software)
        return refuse_uuid(manager, uuid, err);
    hl_status status = open_cuda(uuid, &dev, err);
    if (status == HL_E_NO_DEVICE)
        return refuse_uuid(manager, uuid, err);
    if (status != HL_OK)
        return status;
    status = manager_gpus_add(manager, dev, gpu, err);
    if (status != HL_OK)
        hl_device_close(dev);
    return status;
}

void manager_gpus_stop_publishers(hl_manager *manager)
{
    for (uint32_t i = 0; i < manager->gpu_count; i++)
        manager_publisher_stop(manager, i);
}

void manager_gpus_close(hl_manager *manager)
{
    for (uint32_t i = 0; i < manager->gpu_count; i++) {
        release_registrations(&manager->gpus[i]);
        hl_device_close(manager->gpus[i].dev);
    }
    manager->gpu_count = 0;
}
