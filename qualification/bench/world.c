#include <stdlib.h>
#include <string.h>

#include "core/base/error.h"
#include "core/base/random.h"
#include "qualification/bench/latency.h"

#define STAGE "latency.world"

const struct latency_case latency_p5 = {.name = "p5", .layers = 1, .blocks = 1, .leases = 1};
const struct latency_case latency_p6 = {.name = "p6", .layers = 36, .blocks = 128, .leases = 32};

enum { READBACK_BYTES = 8 << 20 };

uint64_t latency_block_bytes(const struct latency_case *shape)
{
    return (uint64_t)shape->layers * LATENCY_PAGE_BYTES;
}

uint64_t latency_case_bytes(const struct latency_case *shape)
{
    return shape->blocks * latency_block_bytes(shape);
}

/* As many as a run has restores where memory allows it: nothing is then compared between two samples. */
static uint32_t default_slots(const struct latency_world *world)
{
    uint64_t most = world->dev->info.kind == HL_DEVICE_CUDA ? 4 * HL_GIB : 256 * HL_MIB;
    uint64_t fit = most / latency_case_bytes(world->shape);
    uint64_t wanted = 4ull * (world->options->samples + world->options->warmup);
    return (uint32_t)(fit < wanted ? fit : wanted);
}

static hl_status make_layout(struct latency_world *world, hl_error *err)
{
    const struct latency_case *shape = world->shape;
    const uint32_t pages = shape->blocks * (1 + world->slots);
    struct hl_layout_component *components = calloc(shape->layers, sizeof *components);
    struct hl_layout_tensor *tensors = calloc(shape->layers, sizeof *tensors);
    hl_status status = HL_OK;
    if (!components || !tensors) {
        status = HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for a layout");
        goto free;
    }
    for (uint32_t i = 0; i < shape->layers; i++) {
        components[i] = (struct hl_layout_component){.layer = i,
                                                     .tensor = i,
                                                     .role = HL_ROLE_FUSED,
                                                     .page_stride = LATENCY_PAGE_BYTES,
                                                     .row_bytes = LATENCY_PAGE_BYTES,
                                                     .row_stride = LATENCY_PAGE_BYTES,
                                                     .rows = 1,
                                                     .block_offset = (uint64_t)i * LATENCY_PAGE_BYTES,
                                                     .block_row_stride = LATENCY_PAGE_BYTES};
        tensors[i].bytes = (uint64_t)pages * LATENCY_PAGE_BYTES;
        snprintf(tensors[i].name, sizeof tensors[i].name, "layers.%u.kv", i);
    }
    hl_layout layout = {.layers = shape->layers,
                        .page_tokens = 16,
                        .component_count = shape->layers,
                        .tensor_count = shape->layers,
                        .group_count = 1,
                        .components = components,
                        .tensors = tensors,
                        .groups = {{.pages = pages, .block_bytes = latency_block_bytes(shape)}}};
    status = hl_layout_from_components(&layout, &world->layout, err);
free:
    free(components);
    free(tensors);
    return status;
}

static hl_status make_device_memory(struct latency_world *world, hl_error *err)
{
    const struct hl_device_ops *ops = world->dev->ops;
    const uint32_t layers = world->shape->layers;
    world->tensors = calloc(layers, sizeof *world->tensors);
    world->layer_events = calloc(layers, sizeof(hl_event));
    if (!world->tensors || !world->layer_events)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for %u layers", layers);
    hl_status status = HL_OK;
    for (uint32_t i = 0; i < layers && !status; i++)
        status = ops->mem_alloc(world->dev, world->layout->tensors[i].bytes, &world->tensors[i], err);
    for (uint32_t i = 0; i < layers && !status && world->options->layer_events; i++)
        status = ops->event_create(world->dev, 0, &world->layer_events[i], err);
    if (!status)
        status = ops->mem_alloc(world->dev, latency_case_bytes(world->shape), &world->flat, err);
    if (!status)
        status = ops->stream_create(world->dev, &world->copies, err);
    if (!status)
        status = ops->stream_create(world->dev, &world->ready, err);
    return status;
}

static hl_status make_arena(struct latency_world *world, uint64_t id, uint64_t bytes, hl_arena **arena,
                            hl_registration **registration, hl_error *err)
{
    struct hl_arena_options options = {
        .arena_id = id, .bytes = bytes, .numa_node = world->dev->info.numa_node, .threads = 1};
    hl_status status = hl_arena_create(&options, arena, err);
    if (!status)
        status = hl_arena_register(*arena, world->dev, NULL, NULL, registration, err);
    return status;
}

/* The blocks: random, so that no page is like another. */
static hl_status make_blocks(struct latency_world *world, hl_error *err)
{
    const uint64_t block_bytes = latency_block_bytes(world->shape);
    hl_random random;
    hl_status status = HL_OK;
    world->allocations = calloc(world->shape->blocks, sizeof *world->allocations);
    if (!world->allocations)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for %u blocks", world->shape->blocks);
    for (uint32_t b = 0; b < world->shape->blocks && !status; b++)
        status = hl_arena_alloc(world->source, block_bytes, &world->allocations[b], err);
    if (!status) {
        hl_random_seed(&random, 5);
        hl_random_fill(&random, hl_arena_base(world->source), latency_case_bytes(world->shape));
    }
    return status;
}

hl_status latency_world_open(const struct latency_options *options, const struct latency_case *shape,
                             hl_device *dev, struct latency_world *world, hl_error *err)
{
    *world = (struct latency_world){.options = options, .shape = shape, .dev = dev};
    world->slots = options->slots ? options->slots : default_slots(world);
    hl_status status = make_layout(world, err);
    if (!status)
        status = make_device_memory(world, err);
    if (!status)
        status =
            make_arena(world, 1, latency_case_bytes(shape), &world->source, &world->source_registration, err);
    if (!status)
        status = make_arena(world, 2, READBACK_BYTES, &world->readback, &world->readback_registration, err);
    if (!status)
        status = make_blocks(world, err);
    if (status)
        latency_world_close(world);
    return status;
}

void latency_world_close(struct latency_world *world)
{
    const struct hl_device_ops *ops = world->dev->ops;
    const uint32_t layers = world->shape->layers;
    hl_registration_release(world->source_registration);
    hl_registration_release(world->readback_registration);
    hl_arena_destroy(world->source);
    hl_arena_destroy(world->readback);
    if (world->copies)
        ops->stream_destroy(world->dev, world->copies, NULL);
    if (world->ready)
        ops->stream_destroy(world->dev, world->ready, NULL);
    if (world->flat)
        ops->mem_free(world->dev, world->flat, NULL);
    for (uint32_t i = 0; i < layers && world->layer_events; i++)
        if (world->layer_events[i])
            ops->event_destroy(world->dev, world->layer_events[i], NULL);
    for (uint32_t i = 0; i < layers && world->tensors; i++)
        if (world->tensors[i])
            ops->mem_free(world->dev, world->tensors[i], NULL);
    hl_layout_free(world->layout);
    free(world->layer_events);
    free(world->tensors);
    free(world->allocations);
    *world = (struct latency_world){0};
}
