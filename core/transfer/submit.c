#include "core/transfer/submit.h"

#include <string.h>

#include "core/base/error.h"
#include "core/transfer/direct.h"

static void keep_first_failure(hl_operation *operation, hl_status status, const hl_error *error)
{
    if (operation->status == HL_OK) {
        operation->status = status;
        operation->error = *error;
    }
}

void hl_operation_lose(hl_operation *operation, hl_status status, const hl_error *error)
{
    keep_first_failure(operation, status, error);
    operation->drained = false;
    operation->transfer->lost = true;
}

/* Ends the operation. What was accepted has to finish before the caller hears of the failure, for it will
 * reuse the pages (I3); when not even that can be established, the operation stays undrained (I9). */
static void fail(hl_operation *operation, hl_status status, const hl_error *error)
{
    hl_transfer *transfer = operation->transfer;
    hl_device *dev = transfer->dev;
    hl_error lost = {0};
    hl_status synchronised = HL_OK;
    keep_first_failure(operation, status, error);
    if (operation->accepted) {
        synchronised = hl_device_enter(dev, &lost);
        if (synchronised == HL_OK) {
            synchronised = dev->ops->stream_synchronize(dev, transfer->stream, &lost);
            /* after it, for the event stream waits for counts of what the copy stream runs */
            if (synchronised == HL_OK)
                synchronised = dev->ops->stream_synchronize(dev, transfer->event_stream, &lost);
            hl_device_leave(dev);
        }
    }
    operation->in_flight = false;
    operation->drained = synchronised == HL_OK;
    if (synchronised != HL_OK)
        hl_operation_lose(operation, synchronised, &lost);
}

static hl_status check_order(const hl_operation *operation, const struct hl_plan_header *header,
                             hl_error *err)
{
    if (memcmp(&header->identity, &operation->identity, sizeof header->identity) != 0)
        return HL_FAIL(
            err, HL_E_STATE, "transfer.submit",
            "identity: the part is of epoch %llu record %u generation %u, the operation of %llu %u %u%s",
            (unsigned long long)header->identity.epoch, header->identity.record, header->identity.generation,
            (unsigned long long)operation->identity.epoch, operation->identity.record,
            operation->identity.generation,
            memcmp(header->identity.token, operation->identity.token, sizeof header->identity.token)
                ? ", under another token"
                : "");
    if (header->part_index != operation->next_part)
        return HL_FAIL(err, HL_E_STATE, "transfer.submit", "part_index is %u, part %u is next",
                       header->part_index, operation->next_part);
    if (operation->part_count != 0 && header->part_count != operation->part_count)
        return HL_FAIL(err, HL_E_STATE, "transfer.submit", "part_count is %u, the first part said %u",
                       header->part_count, operation->part_count);
    return HL_OK;
}

/* No layer goes on after its last section, and after the last part none is missing. Marks as it goes: a part
 * that fails here ends the operation. */
static hl_status check_layers(hl_operation *operation, const struct hl_plan_header *header, hl_error *err)
{
    const struct hl_work *work = &operation->transfer->work;
    for (uint32_t i = 0; i < work->layer_count; i++) {
        const struct hl_work_layer *layer = &work->layers[i];
        if (operation->complete[layer->layer])
            return HL_FAIL(err, HL_E_CORRUPT, "transfer.submit", "layer %u goes on after its last section",
                           layer->layer);
        if (layer->last) {
            operation->complete[layer->layer] = true;
            operation->complete_count++;
        }
    }
    uint32_t layers = operation->transfer->tables.plan.layers;
    if (header->part_index + 1 == header->part_count && operation->complete_count != layers)
        return HL_FAIL(err, HL_E_CORRUPT, "transfer.submit",
                       "after the last part %u of %u layers are complete", operation->complete_count, layers);
    return HL_OK;
}

/* Everything that can be found out without the device; leaves the resolved part in transfer->work. */
static hl_status prepare(hl_operation *operation, const void *bytes, size_t size, struct hl_plan_part *part,
                         hl_error *err)
{
    hl_transfer *transfer = operation->transfer;
    hl_status status = hl_plan_decode(bytes, size, part, err);
    if (status == HL_OK)
        status = check_order(operation, part->header, err);
    if (status == HL_OK)
        status = hl_plan_validate(part, &transfer->tables.plan, err);
    if (status == HL_OK)
        status = hl_work_resolve(&transfer->work, &transfer->tables, part, err);
    if (status == HL_OK)
        status = check_layers(operation, part->header, err);
    return status;
}

/* Records a layer's event on the copy stream, behind the events of earlier layers on the event stream: a
 * consumer may rely on their order. */
static hl_status record_on_copy_stream(hl_transfer *transfer, hl_event event, hl_error *err)
{
    const struct hl_device_ops *ops = transfer->dev->ops;
    hl_status status = HL_OK;
    if (transfer->ring.events_ahead) {
        status = ops->event_record(transfer->dev, transfer->order, transfer->event_stream, err);
        if (status == HL_OK)
            status = ops->stream_wait_event(transfer->dev, transfer->stream, transfer->order, err);
        if (status != HL_OK)
            return status;
        transfer->ring.events_ahead = false;
    }
    return ops->event_record(transfer->dev, event, transfer->stream, err);
}

/* By the copy engines, or nothing but the event of a layer without bytes. */
static hl_status submit_direct(hl_operation *operation, const struct hl_work_layer *layer, bool batch,
                               hl_event event, hl_error *err)
{
    hl_transfer *transfer = operation->transfer;
    struct hl_layer_result *result = &operation->layers[layer->layer];
    hl_status status = hl_gather_flush(&transfer->ring, err);
    if (status == HL_OK)
        status = hl_direct_submit(transfer, &transfer->work, layer, batch, result, &operation->accepted, err);
    if (status != HL_OK)
        return status;
    result->bytes += layer->bytes;
    operation->bytes += layer->bytes;
    if (!event)
        return HL_OK;
    status = record_on_copy_stream(transfer, event, err);
    if (status == HL_OK) {
        operation->accepted = true;
        result->recorded = true;
    }
    return status;
}

static hl_status submit_layer(hl_operation *operation, const struct hl_work_layer *layer, hl_error *err)
{
    hl_transfer *transfer = operation->transfer;
    struct hl_layer_result *result = &operation->layers[layer->layer];
    hl_event event = layer->last && operation->layer_events ? operation->layer_events[layer->layer] : NULL;
    if (layer->range_count == 0 && layer->run_count == 0) {
        if (!hl_gather_takes_empty_layer(&transfer->ring))
            return submit_direct(operation, layer, false, event, err);
        return hl_gather_add(&transfer->ring, &transfer->work, layer, result, event, err);
    }
    struct hl_route_choice choice =
        hl_route_choose(&transfer->model, transfer->route, &transfer->work, layer);
    if (choice.route != HL_ROUTE_KERNEL)
        return submit_direct(operation, layer, choice.batch, event, err);
    result->route = HL_ROUTE_KERNEL;
    return hl_gather_add(&transfer->ring, &transfer->work, layer, result, event, err);
}

/* What proves that all before it has finished: the completion event, and behind the layer events of the event
 * stream another one. */
static hl_status record_end(hl_operation *operation, hl_error *err)
{
    hl_transfer *transfer = operation->transfer;
    const struct hl_device_ops *ops = transfer->dev->ops;
    hl_status status = ops->event_record(transfer->dev, operation->completion, transfer->stream, err);
    if (status != HL_OK || !transfer->ring.events_ahead)
        return status;
    status = ops->event_record(transfer->dev, operation->announced, transfer->event_stream, err);
    if (status == HL_OK)
        operation->announcing = true;
    return status;
}

/* The part's layers in its order. */
static hl_status submit_work(hl_operation *operation, hl_error *err)
{
    hl_transfer *transfer = operation->transfer;
    hl_status status = hl_device_enter(transfer->dev, err);
    if (status != HL_OK)
        return status;
    hl_gather_begin(&transfer->ring, transfer->blocks, &operation->accepted, &operation->bytes);
    for (uint32_t i = 0; status == HL_OK && i < transfer->work.layer_count; i++)
        status = submit_layer(operation, &transfer->work.layers[i], err);
    if (status == HL_OK)
        status = hl_gather_flush(&transfer->ring, err);
    if (status == HL_OK)
        status = record_end(operation, err);
    /* Arguments and memory are refused before the device has anything. An error of the device may come with a
     * call that it has taken, so that nothing is proven. */
    if (status == HL_E_DEVICE)
        operation->accepted = true;
    hl_device_leave(transfer->dev);
    return status;
}

hl_status hl_operation_submit(hl_operation *operation, const void *bytes, size_t size, hl_error *err)
{
    struct hl_plan_part part;
    hl_error error = {0};
    if (operation->status != HL_OK)
        return HL_FAIL(err, HL_E_STATE, "transfer.submit",
                       "the operation has failed (%s) and takes no more parts",
                       hl_status_name(operation->status));
    if (operation->submitted)
        return HL_FAIL(err, HL_E_STATE, "transfer.submit", "all %u parts have been submitted",
                       operation->part_count);
    hl_status status = operation->transfer->lost
                           ? HL_FAIL(&error, HL_E_STATE, "transfer.submit", "the copy stream has failed")
                           : prepare(operation, bytes, size, &part, &error);
    if (status == HL_OK)
        status = submit_work(operation, &error);
    if (status != HL_OK) {
        fail(operation, status, &error);
        if (err)
            *err = error;
        return status;
    }
    operation->in_flight = true;
    operation->drained = false;
    operation->next_part++;
    operation->part_count = part.header->part_count;
    operation->submitted = operation->next_part == operation->part_count;
    return HL_OK;
}
