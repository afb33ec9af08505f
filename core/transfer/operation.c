#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/error.h"
#include "core/transfer/executor.h"
#include "core/transfer/submit.h"

static size_t hash_event(hl_event event, size_t capacity)
{
    return (size_t)(((uint64_t)(uintptr_t)event * 0x9e3779b97f4a7c15ull) >> 32) & (capacity - 1);
}

/* Every event given and no two the same: a shared event would let a layer's consumer start at another layer's
 * record. */
static hl_status check_events(hl_transfer *transfer, const hl_event *events, hl_error *err)
{
    hl_event *seen = transfer->seen_events;
    size_t capacity = transfer->seen_capacity;
    memset(seen, 0, capacity * sizeof *seen);
    for (uint32_t i = 0; i < transfer->tables.plan.layers; i++) {
        if (!events[i])
            return HL_FAIL(err, HL_E_INVALID, "transfer.start", "layer_events[%u] is NULL", i);
        size_t slot = hash_event(events[i], capacity);
        while (seen[slot] && seen[slot] != events[i])
            slot = (slot + 1) & (capacity - 1);
        if (seen[slot])
            return HL_FAIL(err, HL_E_INVALID, "transfer.start",
                           "layer_events[%u] is an event that an earlier layer has", i);
        seen[slot] = events[i];
    }
    return HL_OK;
}

/* Makes the copy stream follow what is on the ready stream now. Never waits on the host. */
static hl_status follow_ready_stream(hl_transfer *transfer, hl_stream ready_stream, hl_error *err)
{
    hl_device *dev = transfer->dev;
    hl_status status = dev->ops->stream_query(dev, ready_stream, err);
    if (status != HL_PENDING)
        return status;
    status = dev->ops->event_record(dev, transfer->ready, ready_stream, err);
    if (status != HL_OK)
        return status;
    return dev->ops->stream_wait_event(dev, transfer->stream, transfer->ready, err);
}

/* An idle completion event, or a new one. idle_events always has room for all of them. */
static hl_status take_event(hl_transfer *transfer, hl_event *event, hl_error *err)
{
    if (transfer->idle_count > 0) {
        *event = transfer->idle_events[--transfer->idle_count];
        return HL_OK;
    }
    hl_event *larger = realloc(transfer->idle_events, (transfer->event_count + 1) * sizeof(hl_event));
    if (!larger)
        return HL_FAIL(err, HL_E_NOMEM, "transfer.start", "no memory for %zu events",
                       transfer->event_count + 1);
    transfer->idle_events = larger;
    hl_status status = transfer->dev->ops->event_create(transfer->dev, 0, event, err);
    if (status == HL_OK)
        transfer->event_count++;
    return status;
}

static void give_event_back(hl_transfer *transfer, hl_event event)
{
    assert(transfer->idle_count < transfer->event_count);
    transfer->idle_events[transfer->idle_count++] = event;
}

static void free_operation(hl_operation *operation)
{
    free(operation->layer_events);
    free(operation->layers);
    free(operation->complete);
    free(operation);
}

static hl_operation *new_operation(hl_transfer *transfer, const struct hl_operation_options *options)
{
    size_t layers = transfer->tables.plan.layers;
    hl_operation *operation = calloc(1, sizeof *operation);
    if (!operation)
        return NULL;
    operation->transfer = transfer;
    operation->identity = options->identity;
    operation->drained = true;
    operation->layers = calloc(layers, sizeof *operation->layers);
    operation->complete = calloc(layers, sizeof *operation->complete);
    if (options->layer_events)
        operation->layer_events = malloc(layers * sizeof(hl_event));
    if (!operation->layers || !operation->complete || (options->layer_events && !operation->layer_events)) {
        free_operation(operation);
        return NULL;
    }
    if (options->layer_events)
        memcpy(operation->layer_events, options->layer_events, layers * sizeof(hl_event));
    for (size_t i = 0; i < layers; i++)
        operation->layers[i].route = HL_ROUTE_DIRECT;
    return operation;
}

hl_status hl_operation_start(hl_transfer *transfer, const struct hl_operation_options *options,
                             hl_operation **operation, hl_error *err)
{
    if (transfer->lost)
        return HL_FAIL(err, HL_E_STATE, "transfer.start",
                       "the copy stream has failed: open another executor");
    hl_status status = options->layer_events ? check_events(transfer, options->layer_events, err) : HL_OK;
    if (status != HL_OK)
        return status;
    hl_operation *started = new_operation(transfer, options);
    if (!started)
        return HL_FAIL(err, HL_E_NOMEM, "transfer.start", "no memory for an operation");
    status = hl_device_enter(transfer->dev, err);
    if (status != HL_OK)
        goto err_free;
    status = take_event(transfer, &started->completion, err);
    if (status != HL_OK)
        goto err_leave;
    status = take_event(transfer, &started->announced, err);
    if (status != HL_OK)
        goto err_completion;
    if (options->has_ready_stream) {
        status = follow_ready_stream(transfer, options->ready_stream, err);
        if (status != HL_OK)
            goto err_event;
    }
    if (options->ready_event) {
        status =
            transfer->dev->ops->stream_wait_event(transfer->dev, transfer->stream, options->ready_event, err);
        if (status != HL_OK)
            goto err_event;
    }
    hl_device_leave(transfer->dev);
    transfer->operations++;
    *operation = started;
    return HL_OK;

err_event:
    give_event_back(transfer, started->announced);
err_completion:
    give_event_back(transfer, started->completion);
err_leave:
    hl_device_leave(transfer->dev);
err_free:
    free_operation(started);
    return status;
}

static hl_status look(hl_device *dev, hl_event event, bool wait, hl_error *err)
{
    return wait ? dev->ops->event_synchronize(dev, event, err) : dev->ops->event_query(dev, event, err);
}

/* Learns whether what was accepted has finished; HL_PENDING when it has not. An error of a stream is no
 * proof that it has: the operation stays undrained, and the executor is lost. */
static hl_status observe(hl_operation *operation, bool wait)
{
    hl_transfer *transfer = operation->transfer;
    hl_device *dev = transfer->dev;
    hl_error error = {0};
    if (!operation->in_flight)
        return HL_OK;
    hl_status status = hl_device_enter(dev, &error);
    if (status == HL_OK) {
        status = look(dev, operation->completion, wait, &error);
        /* the copies first: when they have failed, the events behind them may never come */
        if (status == HL_OK && operation->announcing)
            status = look(dev, operation->announced, wait, &error);
        hl_device_leave(dev);
    }
    if (status == HL_PENDING)
        return status;
    operation->in_flight = false;
    operation->drained = status == HL_OK;
    if (status != HL_OK)
        hl_operation_lose(operation, status, &error);
    return HL_OK;
}

static hl_status report(const hl_operation *operation, struct hl_operation_result *result, hl_error *err)
{
    *result = (struct hl_operation_result){.status = operation->status,
                                           .drained = operation->drained,
                                           .submitted = operation->submitted,
                                           .accepted = operation->accepted,
                                           .bytes = operation->bytes};
    if (operation->status != HL_OK && err)
        *err = operation->error;
    return operation->status;
}

hl_status hl_operation_drain(hl_operation *operation, struct hl_operation_result *result, hl_error *err)
{
    observe(operation, true);
    return report(operation, result, err);
}

hl_status hl_operation_poll(hl_operation *operation, struct hl_operation_result *result, hl_error *err)
{
    if (observe(operation, false) == HL_PENDING)
        return HL_PENDING;
    return report(operation, result, err);
}

const struct hl_layer_result *hl_operation_layers(const hl_operation *operation)
{
    return operation->layers;
}

void hl_operation_close(hl_operation *operation)
{
    if (!operation)
        return;
    hl_transfer *transfer = operation->transfer;
    observe(operation, true);
    give_event_back(transfer, operation->announced);
    give_event_back(transfer, operation->completion);
    assert(transfer->operations > 0);
    transfer->operations--;
    free_operation(operation);
}
