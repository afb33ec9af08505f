#include "core/transfer/transfer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/error.h"
#include "core/transfer/calibrate.h"
#include "core/transfer/executor.h"

#define DEFAULT_BLOCKS 4u

static hl_status check_tensors(const struct hl_transfer_options *options, hl_error *err)
{
    if (!options->tensors || options->tensor_count == 0 || options->tensor_count > HL_LAYOUT_TENSORS)
        return HL_FAIL(err, HL_E_INVALID, "transfer.open", "tensor_count is %zu, not 1 to %u",
                       options->tensors ? options->tensor_count : 0, HL_LAYOUT_TENSORS);
    for (size_t i = 0; i < options->tensor_count; i++) {
        const struct hl_tensor_binding *tensor = &options->tensors[i];
        if (tensor->base == 0 || tensor->bytes == 0 || tensor->bytes > UINT64_MAX - tensor->base)
            return HL_FAIL(err, HL_E_INVALID, "transfer.open", "tensors[%zu] has base %#llx and %llu bytes",
                           i, (unsigned long long)tensor->base, (unsigned long long)tensor->bytes);
    }
    return HL_OK;
}

static hl_status check_registrations(const struct hl_transfer_options *options, hl_error *err)
{
    if (options->registration_count > HL_ARENA_IMPORTS ||
        (options->registration_count > 0 && !options->registrations))
        return HL_FAIL(err, HL_E_INVALID, "transfer.open", "registration_count is %zu, at most %u",
                       options->registration_count, HL_ARENA_IMPORTS);
    for (size_t i = 0; i < options->registration_count; i++) {
        if (!options->registrations[i])
            return HL_FAIL(err, HL_E_INVALID, "transfer.open", "registrations[%zu] is NULL", i);
        uint64_t id = hl_arena_id(hl_registration_arena(options->registrations[i]));
        for (size_t j = 0; j < i; j++)
            if (hl_arena_id(hl_registration_arena(options->registrations[j])) == id)
                return HL_FAIL(err, HL_E_INVALID, "transfer.open",
                               "registrations[%zu] and [%zu] are both of arena %llu", j, i,
                               (unsigned long long)id);
    }
    return HL_OK;
}

static hl_status check_options(const struct hl_transfer_options *options, hl_error *err)
{
    if (!options || !options->dev)
        return HL_FAIL(err, HL_E_INVALID, "transfer.open", "dev is NULL");
    if (options->layers == 0 || options->layers > HL_LAYOUT_LAYERS)
        return HL_FAIL(err, HL_E_INVALID, "transfer.open", "layers is %u, not 1 to %u", options->layers,
                       HL_LAYOUT_LAYERS);
    if ((unsigned)options->route > HL_ROUTE_KERNEL)
        return HL_FAIL(err, HL_E_INVALID, "transfer.open", "route is %d", (int)options->route);
    if (options->sm_cap > HL_TRANSFER_MAX_SMS)
        return HL_FAIL(err, HL_E_INVALID, "transfer.open", "sm_cap is %u, at most %u", options->sm_cap,
                       HL_TRANSFER_MAX_SMS);
    hl_status status = check_tensors(options, err);
    return status == HL_OK ? check_registrations(options, err) : status;
}

static void free_host_memory(hl_transfer *transfer)
{
    free(transfer->tables.arenas);
    free(transfer->tables.registrations);
    free(transfer->tables.tensor_bytes);
    free(transfer->tables.tensor_bases);
    free(transfer->batch);
    free(transfer->idle_events);
    free(transfer->seen_events);
    hl_work_free(&transfer->work);
    free(transfer);
}

static hl_status copy_tables(hl_transfer *transfer, const struct hl_transfer_options *options, hl_error *err)
{
    struct hl_work_tables *tables = &transfer->tables;
    size_t arenas = options->registration_count, tensors = options->tensor_count;
    transfer->seen_capacity = 4;
    while (transfer->seen_capacity < 2 * (size_t)options->layers)
        transfer->seen_capacity *= 2;
    tables->arenas = calloc(arenas + 1, sizeof *tables->arenas);
    tables->registrations = calloc(arenas + 1, sizeof(hl_registration *));
    tables->tensor_bytes = calloc(tensors, sizeof *tables->tensor_bytes);
    tables->tensor_bases = calloc(tensors, sizeof *tables->tensor_bases);
    transfer->batch = calloc(HL_ROUTE_BATCH_COPIES, sizeof *transfer->batch);
    transfer->seen_events = calloc(transfer->seen_capacity, sizeof(hl_event));
    if (!tables->arenas || !tables->registrations || !tables->tensor_bytes || !tables->tensor_bases ||
        !transfer->batch || !transfer->seen_events)
        return HL_FAIL(err, HL_E_NOMEM, "transfer.open", "no memory for %zu tensors and %zu arenas", tensors,
                       arenas);
    for (size_t i = 0; i < arenas; i++) {
        const hl_arena *arena = hl_registration_arena(options->registrations[i]);
        tables->registrations[i] = options->registrations[i];
        tables->arenas[i] = (struct hl_plan_arena){.arena_id = hl_arena_id(arena),
                                                   .bytes = hl_arena_bytes(arena),
                                                   .chunk_bytes = hl_arena_chunk_bytes(arena)};
    }
    for (size_t i = 0; i < tensors; i++) {
        tables->tensor_bases[i] = options->tensors[i].base;
        tables->tensor_bytes[i] = options->tensors[i].bytes;
    }
    tables->plan = (struct hl_plan_tables){.arenas = tables->arenas,
                                           .arena_count = arenas,
                                           .tensor_bytes = tables->tensor_bytes,
                                           .tensor_count = tensors,
                                           .layers = options->layers};
    return HL_OK;
}

/* Streams, events, ring, model: what needs the device, which has been entered. */
static hl_status open_on_device(hl_transfer *transfer, uint32_t segments, uint32_t segment_descriptors,
                                bool calibrate, hl_error *err)
{
    hl_device *dev = transfer->dev;
    hl_status status = dev->ops->stream_create(dev, &transfer->stream, err);
    if (status != HL_OK)
        return status;
    status = dev->ops->stream_create(dev, &transfer->event_stream, err);
    if (status != HL_OK)
        goto err_stream;
    status = dev->ops->event_create(dev, 0, &transfer->ready, err);
    if (status != HL_OK)
        goto err_event_stream;
    status = dev->ops->event_create(dev, 0, &transfer->order, err);
    if (status != HL_OK)
        goto err_ready;
    status = hl_gather_ring_open(&transfer->ring, dev, transfer->stream, transfer->event_stream, segments,
                                 segment_descriptors, err);
    if (status != HL_OK)
        goto err_order;
    if (calibrate) {
        status = hl_calibrate(transfer, err);
        if (status != HL_OK)
            goto err_ring;
    }
    return HL_OK;

err_ring:
    hl_gather_ring_close(&transfer->ring);
err_order:
    dev->ops->event_destroy(dev, transfer->order, NULL);
err_ready:
    dev->ops->event_destroy(dev, transfer->ready, NULL);
err_event_stream:
    dev->ops->stream_destroy(dev, transfer->event_stream, NULL);
err_stream:
    dev->ops->stream_destroy(dev, transfer->stream, NULL);
    return status;
}

hl_status hl_transfer_open_with_ring(const struct hl_transfer_options *options, uint32_t segments,
                                     uint32_t segment_descriptors, hl_transfer **transfer, hl_error *err)
{
    hl_status status = check_options(options, err);
    if (status != HL_OK)
        return status;
    hl_transfer *opened = calloc(1, sizeof *opened);
    if (!opened)
        return HL_FAIL(err, HL_E_NOMEM, "transfer.open", "no memory for an executor");
    opened->dev = options->dev;
    opened->route = options->route;
    opened->blocks = options->sm_cap ? options->sm_cap : DEFAULT_BLOCKS;
    hl_route_default_model(&options->dev->info, opened->blocks, &opened->model);
    status = copy_tables(opened, options, err);
    if (status != HL_OK)
        goto err_free;
    status = hl_device_enter(opened->dev, err);
    if (status != HL_OK)
        goto err_free;
    status = open_on_device(opened, segments, segment_descriptors, options->calibrate, err);
    hl_device_leave(opened->dev);
    if (status != HL_OK)
        goto err_free;
    *transfer = opened;
    return HL_OK;

err_free:
    free_host_memory(opened);
    return status;
}

hl_status hl_transfer_open(const struct hl_transfer_options *options, hl_transfer **transfer, hl_error *err)
{
    return hl_transfer_open_with_ring(options, HL_GATHER_SEGMENTS, HL_GATHER_SEGMENT_DESCRIPTORS, transfer,
                                      err);
}

void hl_transfer_close(hl_transfer *transfer)
{
    if (!transfer)
        return;
    assert(transfer->operations == 0);
    assert(transfer->idle_count == transfer->event_count);
    hl_device *dev = transfer->dev;
    if (hl_device_enter(dev, NULL) == HL_OK) {
        for (size_t i = 0; i < transfer->idle_count; i++)
            dev->ops->event_destroy(dev, transfer->idle_events[i], NULL);
        dev->ops->event_destroy(dev, transfer->ready, NULL);
        dev->ops->event_destroy(dev, transfer->order, NULL);
        hl_gather_ring_close(&transfer->ring);
        dev->ops->stream_destroy(dev, transfer->event_stream, NULL);
        dev->ops->stream_destroy(dev, transfer->stream, NULL);
        hl_device_leave(dev);
    }
    free_host_memory(transfer);
}

const struct hl_route_model *hl_transfer_model(const hl_transfer *transfer)
{
    return &transfer->model;
}

hl_stream hl_transfer_stream(const hl_transfer *transfer)
{
    return transfer->stream;
}
