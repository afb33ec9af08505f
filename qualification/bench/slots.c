/* Where operations write, and whether the right bytes arrived there. */
#include <string.h>

#include "core/base/error.h"
#include "core/base/random.h"
#include "qualification/bench/latency.h"

#define STAGE "latency.slots"

enum { POISON = 0xa5 };

/* The page of each block of a slot: the same whenever it is asked for. */
static void slot_pages(const struct latency_world *world, uint32_t slot, uint32_t pages[LATENCY_BLOCKS])
{
    const uint32_t blocks = world->shape->blocks;
    hl_random random;
    hl_random_seed(&random, 1000 + slot);
    hl_random_permutation(&random, pages, blocks);
    for (uint32_t b = 0; b < blocks; b++)
        pages[b] = blocks * (1 + slot) + (world->options->ascending ? b : pages[b]);
}

static const unsigned char *expected(const struct latency_world *world, uint32_t block, uint32_t layer)
{
    return (const unsigned char *)hl_arena_base(world->source) + world->allocations[block].offset +
           (uint64_t)layer * LATENCY_PAGE_BYTES;
}

hl_status latency_fill(struct latency_world *world, hl_error *err)
{
    hl_status status = HL_OK;
    for (uint32_t layer = 0; layer < world->shape->layers; layer++)
        for (uint32_t b = 0; b < world->shape->blocks && !status; b++)
            status = world->dev->ops->copy(
                world->dev, HL_COPY_H2D, world->tensors[layer] + (uint64_t)b * LATENCY_PAGE_BYTES,
                (uintptr_t)expected(world, b, layer), LATENCY_PAGE_BYTES, world->copies, err);
    return status ? status : world->dev->ops->stream_synchronize(world->dev, world->copies, err);
}

/* The published pages too, once they have been published: what arrives comes from the Manager. */
hl_status latency_poison(struct latency_world *world, hl_error *err)
{
    hl_status status = HL_OK;
    for (uint32_t layer = 0; layer < world->shape->layers && !status; layer++)
        status = world->dev->ops->fill(world->dev, world->tensors[layer], POISON,
                                       world->layout->tensors[layer].bytes, world->copies, err);
    if (!status)
        status = world->dev->ops->stream_synchronize(world->dev, world->copies, err);
    if (!status) {
        world->used = 0;
        world->rewarm = LATENCY_REWARM;
    }
    return status;
}

static hl_status compare_slot(const struct latency_world *world, uint32_t slot, uint32_t layer,
                              const unsigned char *got, hl_error *err)
{
    uint32_t pages[LATENCY_BLOCKS];
    const uint32_t first = world->shape->blocks * (1 + slot);
    slot_pages(world, slot, pages);
    for (uint32_t b = 0; b < world->shape->blocks; b++)
        if (memcmp(got + (uint64_t)(pages[b] - first) * LATENCY_PAGE_BYTES, expected(world, b, layer),
                   LATENCY_PAGE_BYTES) != 0)
            return HL_FAIL(err, HL_E_CORRUPT, STAGE, "slot %u, layer %u: block %u is not in page %u", slot,
                           layer, b, pages[b]);
    return HL_OK;
}

/* As many slots at once as the buffer holds. */
static hl_status compare_layer(struct latency_world *world, uint32_t layer, hl_error *err)
{
    const uint64_t slot_bytes = (uint64_t)world->shape->blocks * LATENCY_PAGE_BYTES;
    const uint32_t at_once = (uint32_t)(hl_arena_bytes(world->readback) / slot_bytes);
    unsigned char *buffer = hl_arena_base(world->readback);
    for (uint32_t first = 0; first < world->used; first += at_once) {
        uint32_t count = world->used - first < at_once ? world->used - first : at_once;
        hl_status status = world->dev->ops->copy(world->dev, HL_COPY_D2H, (uintptr_t)buffer,
                                                 world->tensors[layer] + slot_bytes * (1 + first),
                                                 slot_bytes * count, world->copies, err);
        if (!status)
            status = world->dev->ops->stream_synchronize(world->dev, world->copies, err);
        for (uint32_t i = 0; i < count && !status; i++)
            status = compare_slot(world, first + i, layer, buffer + slot_bytes * i, err);
        if (status)
            return status;
        world->compared_bytes += slot_bytes * count;
    }
    return HL_OK;
}

hl_status latency_compare(struct latency_world *world, hl_error *err)
{
    hl_status status = HL_OK;
    for (uint32_t layer = 0; layer < world->shape->layers && !status; layer++)
        status = compare_layer(world, layer, err);
    return status ? status : latency_poison(world, err);
}

hl_status latency_take_slot(struct latency_world *world, uint32_t pages[LATENCY_BLOCKS], hl_error *err)
{
    hl_status status = world->used == world->slots ? latency_compare(world, err) : HL_OK;
    if (!status)
        slot_pages(world, world->used++, pages);
    return status;
}
