#include <string.h>

#include "core/base/error.h"
#include "core/base/random.h"
#include "engine/demo/demo.h"

void hl_demo_page_bytes(const hl_demo *demo, uint32_t component, uint32_t block, unsigned char *bytes)
{
    const struct hl_layout_component *c = &demo->layout->components[component];
    hl_random random;
    hl_random_seed(&random,
                   demo->options.seed ^ (((uint64_t)component << 32 | block) * 0x9e3779b97f4a7c15ull));
    hl_random_fill(&random, bytes, c->rows * c->row_bytes);
}

hl_status hl_demo_copy_page(hl_demo *demo, enum hl_copy_kind kind,
                            const struct hl_layout_component *component, hl_devptr device, void *host,
                            uint64_t host_stride, hl_error *err)
{
    const struct hl_device_ops *ops = demo->dev->ops;
    bool to_host = kind == HL_COPY_D2H;
    uint64_t address = (uint64_t)(uintptr_t)host;
    uint64_t dst = to_host ? address : device, src = to_host ? device : address;
    if (component->rows == 1 ||
        (component->row_stride == component->row_bytes && host_stride == component->row_bytes))
        return ops->copy(demo->dev, kind, dst, src, component->rows * component->row_bytes, demo->work, err);
    uint64_t dst_pitch = to_host ? host_stride : component->row_stride;
    uint64_t src_pitch = to_host ? component->row_stride : host_stride;
    return ops->copy_rows(demo->dev, kind, dst, dst_pitch, src, src_pitch, component->row_bytes,
                          component->rows, demo->work, err);
}

static void keep_sums(hl_demo *demo, uint32_t component, uint32_t block_in_group, const unsigned char *bytes)
{
    const struct hl_demo_reader *reader = &demo->readers[component];
    uint64_t first = reader->first + (uint64_t)block_in_group * reader->units;
    for (uint32_t u = 0; u < reader->units; u++)
        demo->expected[first + u] = hl_page_checksum(bytes + u * reader->unit_bytes, reader->unit_bytes);
}

void hl_demo_expect(hl_demo *demo)
{
    for (uint32_t c = 0; c < demo->layout->component_count; c++) {
        uint32_t group = demo->layout->components[c].group;
        for (uint32_t i = 0; i < hl_demo_group_blocks(demo, group); i++) {
            hl_demo_page_bytes(demo, c, demo->group_first[group] + i, demo->scratch);
            keep_sums(demo, c, i, demo->scratch);
        }
    }
}

hl_status hl_demo_fill(hl_demo *demo, enum hl_demo_side side, hl_error *err)
{
    const struct hl_device_ops *ops = demo->dev->ops;
    size_t used = 0;
    uint64_t done = 0;
    for (uint32_t c = 0; c < demo->layout->component_count; c++) {
        const struct hl_layout_component *component = &demo->layout->components[c];
        uint64_t bytes = component->rows * component->row_bytes;
        uint32_t first = demo->group_first[component->group];
        for (uint32_t i = 0; i < hl_demo_group_blocks(demo, component->group); i++) {
            hl_status status = HL_OK;
            if (used + bytes >
                demo->staging_bytes) { /* the copies out of the buffer must end before it is reused */
                status = ops->stream_synchronize(demo->dev, demo->work, err);
                used = 0;
            }
            const struct hl_demo_block *block = &demo->blocks[first + i];
            uint32_t page = side == HL_DEMO_SOURCES ? block->source : block->page;
            unsigned char *slot = demo->staging + used;
            if (!status) {
                hl_demo_page_bytes(demo, c, first + i, slot);
                keep_sums(demo, c, i, slot);
                status = hl_demo_copy_page(demo, HL_COPY_H2D, component,
                                           hl_demo_page_address(demo, component, page), slot,
                                           component->row_bytes, err);
            }
            if (status)
                return status;
            used += bytes;
            done += bytes;
        }
        if (demo->progress)
            demo->progress(demo, "fill", done, demo->payload_bytes);
    }
    return ops->stream_synchronize(demo->dev, demo->work, err);
}

static hl_status publish_block(hl_demo *demo, const struct hl_demo_block *block, hl_error *err)
{
    unsigned char *stored = (unsigned char *)hl_arena_base(demo->arena) + block->allocation.offset;
    for (uint32_t c = 0; c < demo->layout->component_count; c++) {
        const struct hl_layout_component *component = &demo->layout->components[c];
        if (component->group != block->group)
            continue;
        hl_status status = hl_demo_copy_page(
            demo, HL_COPY_D2H, component, hl_demo_page_address(demo, component, block->source),
            stored + component->block_offset, component->block_row_stride, err);
        if (status)
            return status;
    }
    return HL_OK;
}

hl_status hl_demo_publish(hl_demo *demo, hl_error *err)
{
    for (uint32_t b = 0; b < demo->block_count; b++) {
        hl_status status = publish_block(demo, &demo->blocks[b], err);
        if (status)
            return status;
    }
    return demo->dev->ops->stream_synchronize(demo->dev, demo->work, err);
}

hl_status hl_demo_poison(hl_demo *demo, hl_error *err)
{
    const struct hl_device_ops *ops = demo->dev->ops;
    for (uint32_t t = 0; t < demo->layout->tensor_count; t++) {
        hl_status status = ops->fill(demo->dev, demo->tensors[t].base, HL_DEMO_POISON, demo->tensors[t].bytes,
                                     demo->work, err);
        if (status)
            return status;
    }
    hl_status status =
        ops->fill(demo->dev, demo->sums, 0, demo->unit_count * sizeof(uint64_t), demo->work, err);
    return status ? status : ops->stream_synchronize(demo->dev, demo->work, err);
}
