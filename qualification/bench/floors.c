#include <string.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/plan/plan.h"
#include "qualification/bench/latency.h"

#define STAGE "latency.floors"

hl_status latency_floor_once(struct latency_world *world, struct latency_sample *sample, hl_error *err)
{
    const struct hl_device_ops *ops = world->dev->ops;
    const uint64_t bytes = latency_case_bytes(world->shape);
    *sample = (struct latency_sample){0};
    int64_t start = hl_clock_ns();
    hl_status status = ops->copy(world->dev, HL_COPY_H2D, world->flat,
                                 (uintptr_t)hl_arena_base(world->source), bytes, world->copies, err);
    if (!status)
        status = ops->stream_synchronize(world->dev, world->copies, err);
    sample->ns = hl_clock_ns() - start;
    return status;
}

/* The options that the engine gives its own. */
hl_status latency_executor_open(struct latency_world *world, hl_transfer **transfer, hl_error *err)
{
    struct hl_tensor_binding tensors[HL_LAYOUT_LAYERS];
    for (uint32_t i = 0; i < world->shape->layers; i++)
        tensors[i] =
            (struct hl_tensor_binding){.base = world->tensors[i], .bytes = world->layout->tensors[i].bytes};
    struct hl_transfer_options options = {.dev = world->dev,
                                          .tensors = tensors,
                                          .tensor_count = world->shape->layers,
                                          .registrations = &world->source_registration,
                                          .registration_count = 1,
                                          .layers = world->shape->layers,
                                          .route = world->options->route,
                                          .sm_cap = world->options->sms,
                                          .calibrate = world->options->route == HL_ROUTE_AUTO &&
                                                       world->dev->info.kind == HL_DEVICE_CUDA};
    return hl_transfer_open(&options, transfer, err);
}

static hl_status compile(struct latency_world *world, const struct hl_plan_identity *identity, hl_plan **plan,
                         hl_error *err)
{
    struct hl_plan_block blocks[LATENCY_BLOCKS];
    uint32_t pages[LATENCY_BLOCKS];
    hl_status status = latency_take_slot(world, pages, err);
    if (status)
        return status;
    for (uint32_t b = 0; b < world->shape->blocks; b++)
        blocks[b] = (struct hl_plan_block){.arena_id = hl_arena_id(world->source),
                                           .allocation_id = world->allocations[b].id,
                                           .allocation_offset = world->allocations[b].offset,
                                           .allocation_bytes = world->allocations[b].bytes,
                                           .block_offset = world->allocations[b].offset,
                                           .page = pages[b]};
    struct hl_plan_request request = {.layout = world->layout,
                                      .identity = *identity,
                                      .blocks = blocks,
                                      .block_count = world->shape->blocks};
    return hl_plan_compile(&request, plan, err);
}

/* Submits and waits as the engine's worker does: it polls. */
static hl_status execute(struct latency_world *world, hl_transfer *transfer,
                         const struct hl_plan_identity *identity, const hl_plan *plan, int64_t *ns,
                         hl_error *err)
{
    struct hl_operation_options options = {.identity = *identity,
                                           .has_ready_stream = true,
                                           .ready_stream = world->ready,
                                           .layer_events =
                                               world->options->layer_events ? world->layer_events : NULL};
    struct hl_operation_result result = {0};
    hl_operation *operation = NULL;
    int64_t start = hl_clock_ns();
    hl_status status = hl_operation_start(transfer, &options, &operation, err);
    for (size_t i = 0; i < hl_plan_part_count(plan) && !status; i++) {
        size_t size;
        const void *part = hl_plan_part_bytes(plan, i, &size);
        status = hl_operation_submit(operation, part, size, err);
    }
    while (!status) {
        status = hl_operation_poll(operation, &result, err);
        if (status != HL_PENDING)
            break;
        status = HL_OK;
    }
    *ns = hl_clock_ns() - start;
    hl_operation_close(operation);
    if (!status && result.bytes != latency_case_bytes(world->shape))
        status = HL_FAIL(err, HL_E_CORRUPT, STAGE, "the executor moved %llu bytes",
                         (unsigned long long)result.bytes);
    return status;
}

hl_status latency_executor_once(struct latency_world *world, hl_transfer *transfer,
                                struct latency_sample *sample, hl_error *err)
{
    const struct hl_plan_identity identity = {.epoch = 1, .generation = 1};
    hl_plan *plan = NULL;
    *sample = (struct latency_sample){0};
    int64_t start = hl_clock_ns();
    hl_status status = compile(world, &identity, &plan, err);
    sample->start_ns = hl_clock_ns() - start;
    if (!status)
        status = execute(world, transfer, &identity, plan, &sample->ns, err);
    hl_plan_free(plan);
    return status;
}
