/* The operations that a stream runs: what can be refused when they are submitted is refused here, as a CUDA
 * driver does (code 1). What a kernel reads from memory is checked when it runs (code 700, sticky). */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/checked.h"
#include "core/device/software_internal.h"

static const char *kind_name(enum hl_copy_kind kind)
{
    switch (kind) {
    case HL_COPY_H2D:
        return "H2D";
    case HL_COPY_D2H:
        return "D2H";
    case HL_COPY_D2D:
        return "D2D";
    }
    return NULL;
}

/* Lock held. One side of a copy: inside one region, of the right kind. */
static hl_status check_side(struct software_device *dev, const char *side, bool host, uint64_t addr,
                            uint64_t bytes, hl_error *err)
{
    const struct software_region *region = hl_software_find_region(dev, addr, bytes);
    if (region && (region->kind == REGION_HOST) == host)
        return HL_OK;
    return HL_FAIL_DEVICE(err, HL_E_INVALID, HL_SOFTWARE_STAGE, SOFTWARE_INVALID_VALUE,
                          "%s: [%#" PRIx64 ", +%" PRIu64 ") is not inside one %s", side, addr, bytes,
                          host ? "registration of host memory" : "allocation of device memory");
}

/* Lock held. */
static hl_status check_copy(struct software_device *dev, enum hl_copy_kind kind, uint64_t dst, uint64_t src,
                            uint64_t bytes, hl_error *err)
{
    if (!bytes)
        return HL_OK;
    hl_status status = check_side(dev, "dst", kind == HL_COPY_D2H, dst, bytes, err);
    return status ? status : check_side(dev, "src", kind == HL_COPY_H2D, src, bytes, err);
}

static hl_status check_kind(enum hl_copy_kind kind, hl_error *err)
{
    if (kind_name(kind))
        return HL_OK;
    return HL_FAIL_DEVICE(err, HL_E_INVALID, HL_SOFTWARE_STAGE, SOFTWARE_INVALID_VALUE, "kind: %d",
                          (int)kind);
}

hl_status hl_software_copy_batch(hl_device *handle, enum hl_copy_kind kind, const struct hl_copy *copies,
                                 size_t count, hl_stream stream, size_t *accepted, hl_error *err)
{
    struct software_device *dev = software(handle);
    *accepted = 0;
    hl_status status = hl_software_check_entered(handle, "copy_batch", err);
    if (!status)
        status = check_kind(kind, err);
    if (!status && !stream)
        status = HL_FAIL_DEVICE(err, HL_E_INVALID, HL_SOFTWARE_STAGE, SOFTWARE_INVALID_VALUE,
                                "stream: a batch cannot go to the null stream");
    if (status || !count)
        return status;
    pthread_mutex_lock(&dev->lock);
    for (size_t i = 0; i < count && !status; i++)
        status = check_copy(dev, kind, copies[i].dst, copies[i].src, copies[i].bytes, err);
    pthread_mutex_unlock(&dev->lock);
    if (status)
        return status;
    struct software_task *task = hl_software_new_task(TASK_COPY, count, err);
    if (!task)
        return HL_E_NOMEM;
    memcpy(task->pieces, copies, count * sizeof *copies);
    return hl_software_submit(handle, stream, task, accepted, err);
}

hl_status hl_software_copy(hl_device *handle, enum hl_copy_kind kind, uint64_t dst, uint64_t src,
                           size_t bytes, hl_stream stream, hl_error *err)
{
    struct software_device *dev = software(handle);
    hl_status status = hl_software_check_entered(handle, "copy", err);
    if (!status)
        status = check_kind(kind, err);
    if (status)
        return status;
    pthread_mutex_lock(&dev->lock);
    status = check_copy(dev, kind, dst, src, bytes, err);
    pthread_mutex_unlock(&dev->lock);
    if (status)
        return status;
    struct software_task *task = hl_software_new_task(TASK_COPY, 1, err);
    if (!task)
        return HL_E_NOMEM;
    task->pieces[0] = (struct hl_copy){.dst = dst, .src = src, .bytes = bytes};
    return hl_software_submit(handle, stream, task, NULL, err);
}

/* From the first byte of the first row to the last of the last. */
static hl_status rows_extent(const char *side, size_t pitch, size_t width, size_t rows, uint64_t *extent,
                             hl_error *err)
{
    if (pitch < width)
        return HL_FAIL_DEVICE(err, HL_E_INVALID, HL_SOFTWARE_STAGE, SOFTWARE_INVALID_VALUE,
                              "%s_pitch: %zu is less than the width, %zu", side, pitch, width);
    *extent = 0;
    if (!rows || !width)
        return HL_OK;
    if (hl_mul_u64(pitch, rows - 1, extent) && hl_add_u64(*extent, width, extent))
        return HL_OK;
    return HL_FAIL_DEVICE(err, HL_E_INVALID, HL_SOFTWARE_STAGE, SOFTWARE_INVALID_VALUE,
                          "%s_pitch: %zu rows of pitch %zu do not fit the address space", side, rows, pitch);
}

static hl_status check_rows(struct software_device *dev, enum hl_copy_kind kind,
                            const struct software_rows *rows, hl_error *err)
{
    uint64_t dst_extent, src_extent;
    hl_status status = check_kind(kind, err);
    if (!status)
        status = rows_extent("dst", rows->dst_pitch, rows->width, rows->rows, &dst_extent, err);
    if (!status)
        status = rows_extent("src", rows->src_pitch, rows->width, rows->rows, &src_extent, err);
    if (status || !dst_extent)
        return status;
    pthread_mutex_lock(&dev->lock);
    status = check_side(dev, "dst", kind == HL_COPY_D2H, rows->dst, dst_extent, err);
    if (!status)
        status = check_side(dev, "src", kind == HL_COPY_H2D, rows->src, src_extent, err);
    pthread_mutex_unlock(&dev->lock);
    return status;
}

hl_status hl_software_copy_rows(hl_device *handle, enum hl_copy_kind kind, uint64_t dst, size_t dst_pitch,
                                uint64_t src, size_t src_pitch, size_t width, size_t rows, hl_stream stream,
                                hl_error *err)
{
    const struct software_rows range = {
        .dst = dst, .src = src, .dst_pitch = dst_pitch, .src_pitch = src_pitch, .width = width, .rows = rows};
    hl_status status = hl_software_check_entered(handle, "copy_rows", err);
    if (!status)
        status = check_rows(software(handle), kind, &range, err);
    if (status)
        return status;
    struct software_task *task = hl_software_new_task(TASK_ROWS, 0, err);
    if (!task)
        return HL_E_NOMEM;
    task->rows = range;
    if (!width)
        task->rows.rows = 0;
    return hl_software_submit(handle, stream, task, NULL, err);
}

/* Any memory that the device can reach. */
static hl_status check_reachable(struct software_device *dev, const char *field, uint64_t addr,
                                 uint64_t bytes, hl_error *err)
{
    pthread_mutex_lock(&dev->lock);
    bool found = !bytes || hl_software_find_region(dev, addr, bytes) != NULL;
    pthread_mutex_unlock(&dev->lock);
    if (found)
        return HL_OK;
    return HL_FAIL_DEVICE(err, HL_E_INVALID, HL_SOFTWARE_STAGE, SOFTWARE_INVALID_VALUE,
                          "%s: [%#" PRIx64 ", +%" PRIu64 ") is not device-visible memory", field, addr,
                          bytes);
}

hl_status hl_software_fill(hl_device *handle, hl_devptr dst, uint8_t value, size_t bytes, hl_stream stream,
                           hl_error *err)
{
    hl_status status = hl_software_check_entered(handle, "fill", err);
    if (!status)
        status = check_reachable(software(handle), "dst", dst, bytes, err);
    if (status)
        return status;
    struct software_task *task = hl_software_new_task(TASK_FILL, 0, err);
    if (!task)
        return HL_E_NOMEM;
    task->fill.dst = dst;
    task->fill.bytes = bytes;
    task->fill.value = value;
    return hl_software_submit(handle, stream, task, NULL, err);
}

static hl_status submit_word(hl_device *handle, enum task_kind kind, hl_stream stream, hl_devptr addr,
                             uint32_t value, hl_error *err)
{
    hl_status status = hl_software_check_entered(
        handle, kind == TASK_WAIT_VALUE ? "stream_wait_value" : "stream_write_value", err);
    if (!status && addr % sizeof value)
        status = HL_FAIL_DEVICE(err, HL_E_INVALID, HL_SOFTWARE_STAGE, SOFTWARE_INVALID_VALUE,
                                "addr: %#" PRIx64 " is not a multiple of 4", addr);
    if (!status)
        status = check_reachable(software(handle), "addr", addr, sizeof value, err);
    if (status)
        return status;
    struct software_task *task = hl_software_new_task(kind, 0, err);
    if (!task)
        return HL_E_NOMEM;
    task->word.addr = addr;
    task->word.value = value;
    return hl_software_submit(handle, stream, task, NULL, err);
}

hl_status hl_software_stream_wait_value(hl_device *dev, hl_stream stream, hl_devptr addr, uint32_t value,
                                        hl_error *err)
{
    return submit_word(dev, TASK_WAIT_VALUE, stream, addr, value, err);
}

hl_status hl_software_stream_write_value(hl_device *dev, hl_stream stream, hl_devptr addr, uint32_t value,
                                         hl_error *err)
{
    return submit_word(dev, TASK_WRITE_VALUE, stream, addr, value, err);
}

static hl_status check_gather(hl_device *handle, const struct hl_gather_launch *launch, hl_error *err)
{
    hl_status status = hl_software_check_entered(handle, "gather", err);
    if (!status && launch->method != HL_GATHER_LOADS)
        status = HL_FAIL(err, HL_E_UNSUPPORTED, HL_SOFTWARE_STAGE,
                         "method: %d; the software device has only loads", (int)launch->method);
    if (!status && !launch->blocks)
        status = HL_FAIL_DEVICE(err, HL_E_INVALID, HL_SOFTWARE_STAGE, SOFTWARE_INVALID_VALUE, "blocks: 0");
    if (!status)
        status = hl_gather_check_layers(launch, HL_SOFTWARE_STAGE, SOFTWARE_INVALID_VALUE, err);
    if (!status && launch->layer_count)
        status = check_reachable(software(handle), "counters", launch->counters,
                                 launch->layer_count * sizeof(uint32_t), err);
    return status;
}

/* A task a layer, each of which adds all blocks' counts at once. */
static struct software_task *gather_tasks(const struct hl_gather_launch *launch, hl_error *err)
{
    struct software_task *first = NULL, **next = &first;
    uint32_t start = 0;
    for (uint32_t layer = 0; layer == 0 || layer < launch->layer_count; layer++) {
        uint32_t end = launch->layer_count ? launch->layer_ends[layer] : launch->count;
        struct software_task *task = hl_software_new_task(TASK_GATHER, 0, err);
        if (!task)
            goto err_free;
        task->gather = *launch;
        task->gather.descriptors += start * sizeof(struct hl_gather);
        task->gather.count = end - start;
        task->gather.counters = launch->layer_count ? launch->counters + layer * sizeof(uint32_t) : 0;
        task->gather.layer_ends = NULL;
        *next = task;
        next = &task->next;
        start = end;
    }
    return first;
err_free:
    while (first) {
        struct software_task *task = first;
        first = task->next;
        free(task);
    }
    return NULL;
}

hl_status hl_software_gather(hl_device *handle, const struct hl_gather_launch *launch, hl_stream stream,
                             hl_error *err)
{
    hl_status status = check_gather(handle, launch, err);
    if (status || !launch->count)
        return status;
    struct software_task *tasks = gather_tasks(launch, err);
    return tasks ? hl_software_submit(handle, stream, tasks, NULL, err) : HL_E_NOMEM;
}

hl_status hl_software_checksum(hl_device *handle, const struct hl_checksum_launch *launch, hl_stream stream,
                               hl_error *err)
{
    hl_status status = hl_software_check_entered(handle, "checksum", err);
    if (!status && launch->page_bytes % 8)
        status = HL_FAIL_DEVICE(err, HL_E_INVALID, HL_SOFTWARE_STAGE, SOFTWARE_INVALID_VALUE,
                                "page_bytes: %" PRIu64 " is not a multiple of 8", launch->page_bytes);
    if (status || !launch->count)
        return status;
    struct software_task *task = hl_software_new_task(TASK_CHECKSUM, 0, err);
    if (!task)
        return HL_E_NOMEM;
    task->checksum = *launch;
    return hl_software_submit(handle, stream, task, NULL, err);
}
