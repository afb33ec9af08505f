#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "engine/demo/demo.h"

#define STAGE "demo.restore"

static hl_status create_events(hl_demo *demo, hl_error *err)
{
    uint32_t layers = demo->layout->layers;
    demo->layer_events = calloc(3 * (size_t)layers, sizeof(hl_event));
    if (!demo->layer_events)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for the events of %u layers", layers);
    demo->start_events = demo->layer_events + layers;
    demo->end_events = demo->start_events + layers;
    const struct hl_device_ops *ops = demo->dev->ops;
    hl_status status = ops->event_create(demo->dev, HL_EVENT_TIMING, &demo->base_event, err);
    for (uint32_t i = 0; i < 3 * layers && !status; i++)
        status = ops->event_create(demo->dev, HL_EVENT_TIMING, &demo->layer_events[i], err);
    return status;
}

static hl_status name_blocks(hl_demo *demo, hl_error *err)
{
    demo->plan_blocks = calloc(demo->block_count, sizeof *demo->plan_blocks);
    demo->layer_results = calloc(demo->layout->layers, sizeof *demo->layer_results);
    if (!demo->plan_blocks || !demo->layer_results)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for a plan of %u blocks", demo->block_count);
    for (uint32_t b = 0; b < demo->block_count; b++) {
        const struct hl_demo_block *block = &demo->blocks[b];
        demo->plan_blocks[b] = (struct hl_plan_block){.arena_id = hl_arena_id(demo->arena),
                                                      .allocation_id = block->allocation.id,
                                                      .allocation_offset = block->allocation.offset,
                                                      .allocation_bytes = block->allocation.bytes,
                                                      .block_offset = block->allocation.offset,
                                                      .group = block->group,
                                                      .page = block->page};
    }
    return HL_OK;
}

hl_status hl_demo_open_consumer(hl_demo *demo, hl_error *err)
{
    hl_status status = demo->dev->ops->stream_create(demo->dev, &demo->consumer, err);
    return status ? status : create_events(demo, err);
}

hl_status hl_demo_open_restore(hl_demo *demo, hl_error *err)
{
    struct hl_transfer_options options = {
        .dev = demo->dev,
        .tensors = demo->tensors,
        .tensor_count = demo->layout->tensor_count,
        .registrations = &demo->registration,
        .registration_count = 1,
        .layers = demo->layout->layers,
        .route = demo->options.route,
        .sm_cap = demo->options.sms,
        /* times of the software device mean nothing, so nothing is fitted to them */
        .calibrate = demo->options.route == HL_ROUTE_AUTO && demo->dev->info.kind == HL_DEVICE_CUDA};
    hl_status status = hl_transfer_open(&options, &demo->transfer, err);
    if (!status)
        status = hl_demo_open_consumer(demo, err);
    return status ? status : name_blocks(demo, err);
}

void hl_demo_close_restore(hl_demo *demo)
{
    const struct hl_device_ops *ops = demo->dev->ops;
    hl_transfer_close(demo->transfer);
    if (demo->consumer) { /* it may still wait for layers of an operation that failed and was drained */
        (void)ops->stream_synchronize(demo->dev, demo->consumer, NULL);
        (void)ops->stream_destroy(demo->dev, demo->consumer, NULL);
    }
    if (demo->base_event)
        (void)ops->event_destroy(demo->dev, demo->base_event, NULL);
    for (uint32_t i = 0; demo->layer_events && i < 3 * demo->layout->layers; i++)
        if (demo->layer_events[i])
            (void)ops->event_destroy(demo->dev, demo->layer_events[i], NULL);
    free(demo->layer_events);
    free(demo->plan_blocks);
    free(demo->layer_results);
}

hl_status hl_demo_queue_consumer(hl_demo *demo, uint32_t layer, hl_error *err)
{
    const struct hl_device_ops *ops = demo->dev->ops;
    hl_status status = ops->stream_wait_event(demo->dev, demo->consumer, demo->layer_events[layer], err);
    if (!status)
        status = ops->event_record(demo->dev, demo->start_events[layer], demo->consumer, err);
    for (uint32_t c = 0; c < demo->layout->component_count && !status; c++) {
        const struct hl_layout_component *component = &demo->layout->components[c];
        if (component->layer != layer)
            continue;
        const struct hl_demo_reader *reader = &demo->readers[c];
        struct hl_checksum_launch launch = {.base = demo->tensors[component->tensor].base,
                                            .offsets = demo->offsets + reader->first * sizeof(uint64_t),
                                            .sums = demo->sums + reader->first * sizeof(uint64_t),
                                            .page_bytes = reader->unit_bytes,
                                            .count = reader->count};
        status = ops->checksum(demo->dev, &launch, demo->consumer, err);
    }
    return status ? status : ops->event_record(demo->dev, demo->end_events[layer], demo->consumer, err);
}

/* Submits part after part; after each, queues the consumer of every layer that it completed. */
static hl_status submit_parts(hl_demo *demo, hl_operation *operation, const hl_plan *plan, int run,
                              hl_error *err)
{
    const struct hl_layer_result *layers = hl_operation_layers(operation);
    uint32_t next = 0;
    for (size_t p = 0; p < hl_plan_part_count(plan); p++) {
        int64_t start = hl_clock_ns();
        size_t size;
        const void *bytes = hl_plan_part_bytes(plan, p, &size);
        hl_status status = hl_operation_submit(operation, bytes, size, err);
        hl_demo_add_span(demo, "submit part", run, start, hl_clock_ns());
        while (!status && next < demo->layout->layers && layers[next].recorded)
            status = hl_demo_queue_consumer(demo, next++, err);
        if (status)
            return status;
    }
    if (next < demo->layout->layers)
        return HL_FAIL(err, HL_E_STATE, STAGE, "the event of layer %u was not recorded by the last part",
                       next);
    return HL_OK;
}

static hl_status run_operation(hl_demo *demo, const struct hl_plan_identity *identity, const hl_plan *plan,
                               struct hl_demo_run *run, hl_error *err)
{
    const struct hl_device_ops *ops = demo->dev->ops;
    hl_stream copy_stream = hl_transfer_stream(demo->transfer);
    int number = (int)demo->run_count;
    int64_t start = hl_clock_ns();
    run->base_ns = start;
    hl_status status = ops->event_record(demo->dev, demo->base_event, copy_stream, err);
    if (status)
        return status;
    /* The poison fills on the work stream have finished: an idle readiness stream is proof of it. */
    struct hl_operation_options options = {.identity = *identity,
                                           .has_ready_stream = true,
                                           .ready_stream = demo->work,
                                           .layer_events = demo->layer_events};
    hl_operation *operation;
    status = hl_operation_start(demo->transfer, &options, &operation, err);
    if (status)
        return status;
    status = submit_parts(demo, operation, plan, number, err);
    int64_t submitted = hl_clock_ns();
    struct hl_operation_result result;
    if (!status)
        status = hl_operation_drain(operation, &result, err);
    run->submit_ns = submitted - start;
    run->drain_ns = hl_clock_ns() - submitted;
    hl_demo_add_span(demo, "drain", number, submitted, submitted + run->drain_ns);
    if (!status && result.bytes != demo->payload_bytes)
        status = HL_FAIL(err, HL_E_STATE, STAGE, "the operation submitted %llu bytes of %llu",
                         (unsigned long long)result.bytes, (unsigned long long)demo->payload_bytes);
    if (!status)
        memcpy(demo->layer_results, hl_operation_layers(operation),
               demo->layout->layers * sizeof *demo->layer_results);
    hl_operation_close(operation);
    return status ? status : ops->stream_synchronize(demo->dev, demo->consumer, err);
}

hl_status hl_demo_read_times(hl_demo *demo, struct hl_demo_run *run, hl_error *err)
{
    const struct hl_device_ops *ops = demo->dev->ops;
    run->total_ns = 0;
    for (uint32_t l = 0; l < demo->layout->layers; l++) {
        hl_status status =
            ops->event_elapsed(demo->dev, demo->base_event, demo->layer_events[l], &run->ready[l], err);
        if (!status)
            status = ops->event_elapsed(demo->dev, demo->base_event, demo->start_events[l],
                                        &run->consumer_start[l], err);
        if (!status)
            status = ops->event_elapsed(demo->dev, demo->base_event, demo->end_events[l],
                                        &run->consumer_end[l], err);
        if (status)
            return status;
        run->total_ns = run->ready[l] > run->total_ns ? run->ready[l] : run->total_ns;
    }
    return HL_OK;
}

hl_status hl_demo_restore(hl_demo *demo, uint32_t generation, struct hl_demo_run *run, hl_error *err)
{
    struct hl_plan_request request = {.layout = demo->layout,
                                      .identity = {.epoch = 1, .generation = generation},
                                      .blocks = demo->plan_blocks,
                                      .block_count = demo->block_count,
                                      .chunk_bytes = hl_arena_chunk_bytes(demo->arena),
                                      .part_bytes = demo->options.part_bytes,
                                      .first_part_bytes = demo->options.first_part_bytes};
    struct hl_demo_run timed;
    hl_status status = hl_demo_alloc_run(demo->layout->layers, &timed, err);
    if (status)
        return status;
    hl_plan *plan;
    int64_t start = hl_clock_ns();
    status = hl_plan_compile(&request, &plan, err);
    timed.compile_ns = hl_clock_ns() - start;
    if (status)
        goto err_free_run;
    hl_demo_add_span(demo, "compile plan", (int)demo->run_count, start, start + timed.compile_ns);
    hl_plan_get_stats(plan, &demo->plan_stats);
    demo->plan_parts = hl_plan_part_count(plan);
    status = run_operation(demo, &request.identity, plan, &timed, err);
    hl_plan_free(plan);
    if (!status)
        status = hl_demo_read_times(demo, &timed, err);
    if (status)
        goto err_free_run;
    *run = timed;
    return HL_OK;
err_free_run:
    hl_demo_free_run(&timed);
    return status;
}
