#include "core/base/checked.h"
#include "core/base/error.h"
#include "core/plan/compile.h"

#define STAGE "plan.compile"

static hl_status check_bounds(struct hl_plan_work *work, hl_error *err)
{
    const struct hl_plan_request *request = work->request;
    if (request->block_count > HL_PLAN_BLOCKS)
        return HL_FAIL(err, HL_E_LIMIT, STAGE, "block_count %zu is over %u", request->block_count,
                       HL_PLAN_BLOCKS);
    if (request->block_count && !request->blocks)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "blocks is NULL with block_count %zu", request->block_count);
    work->chunk_bytes = request->chunk_bytes ? request->chunk_bytes : HL_ARENA_CHUNK_BYTES;
    work->part_bytes = request->part_bytes ? request->part_bytes : HL_PLAN_PART_BYTES;
    work->first_part_bytes = request->first_part_bytes ? request->first_part_bytes : work->part_bytes;
    work->metadata_bytes = request->metadata_bytes ? request->metadata_bytes : HL_PLAN_OPERATION_BYTES;
    if (work->part_bytes < HL_PLAN_LEAST_PART || work->part_bytes > HL_PLAN_PART_BYTES)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "part_bytes %llu is not %zu to %llu",
                       (unsigned long long)work->part_bytes, HL_PLAN_LEAST_PART, HL_PLAN_PART_BYTES);
    if (work->first_part_bytes < HL_PLAN_LEAST_PART || work->first_part_bytes > work->part_bytes)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "first_part_bytes %llu is not %zu to part_bytes, %llu",
                       (unsigned long long)work->first_part_bytes, HL_PLAN_LEAST_PART,
                       (unsigned long long)work->part_bytes);
    if (work->metadata_bytes > HL_PLAN_OPERATION_BYTES)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "metadata_bytes %llu is over %llu",
                       (unsigned long long)work->metadata_bytes, HL_PLAN_OPERATION_BYTES);
    return HL_OK;
}

static hl_status check_counts(const hl_layout *layout, hl_error *err)
{
    if (!layout)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "layout is NULL");
    if (layout->layers == 0 || layout->layers > HL_LAYOUT_LAYERS)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "layout: layers %u is not 1 to %u", layout->layers,
                       HL_LAYOUT_LAYERS);
    if (layout->component_count > HL_LAYOUT_COMPONENTS || (layout->component_count && !layout->components))
        return HL_FAIL(err, HL_E_INVALID, STAGE, "layout: component_count %u", layout->component_count);
    if (layout->tensor_count > HL_LAYOUT_TENSORS || (layout->tensor_count && !layout->tensors))
        return HL_FAIL(err, HL_E_INVALID, STAGE, "layout: tensor_count %u", layout->tensor_count);
    if (layout->group_count > HL_LAYOUT_GROUPS)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "layout: group_count %u", layout->group_count);
    return HL_OK;
}

/* One past the last byte of `count` spans at `stride`, each of `bytes`, from `offset`. */
static bool affine_end(uint64_t offset, uint64_t count, uint64_t stride, uint64_t bytes, uint64_t *end)
{
    return hl_mul_u64(count - 1, stride, end) && hl_add_u64(*end, offset, end) &&
           hl_add_u64(*end, bytes, end);
}

static hl_status check_component(const hl_layout *layout, uint32_t index, hl_error *err)
{
    const struct hl_layout_component *c = &layout->components[index];
    if (c->layer >= layout->layers || (index && c->layer < c[-1].layer))
        return HL_FAIL(err, HL_E_INVALID, STAGE, "component %u: layer %u is out of bounds or order", index,
                       c->layer);
    if (c->group >= layout->group_count)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "component %u: group %u of %u", index, c->group,
                       layout->group_count);
    if (c->tensor >= layout->tensor_count)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "component %u: tensor %u of %u", index, c->tensor,
                       layout->tensor_count);
    if (c->rows == 0 || c->row_bytes == 0)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "component %u: %s is 0", index,
                       c->rows ? "row_bytes" : "rows");

    const struct hl_layout_group *group = &layout->groups[c->group];
    uint64_t page_span, end;
    if (group->pages == 0)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "group %u: pages is 0", c->group);
    if (!affine_end(0, c->rows, c->row_stride, c->row_bytes, &page_span) ||
        !affine_end(c->offset, group->pages, c->page_stride, page_span, &end) ||
        end > layout->tensors[c->tensor].bytes)
        return HL_FAIL(err, HL_E_RANGE, STAGE, "component %u: its pages reach past tensor %u of %llu bytes",
                       index, c->tensor, (unsigned long long)layout->tensors[c->tensor].bytes);
    if (!affine_end(c->block_offset, c->rows, c->block_row_stride, c->row_bytes, &end) ||
        end > group->block_bytes)
        return HL_FAIL(err, HL_E_RANGE, STAGE,
                       "component %u: its rows reach past block_bytes %llu of group %u", index,
                       (unsigned long long)group->block_bytes, c->group);
    return HL_OK;
}

static hl_status check_block(const struct hl_plan_work *work, size_t index, hl_error *err)
{
    const struct hl_plan_block *b = &work->request->blocks[index];
    if (b->arena_id == 0 || b->allocation_id == 0)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "block %zu: %s is 0", index,
                       b->arena_id ? "allocation_id" : "arena_id");
    if (b->group >= work->layout->group_count)
        return HL_FAIL(err, HL_E_RANGE, STAGE, "block %zu: group %u of %u", index, b->group,
                       work->layout->group_count);
    const struct hl_layout_group *group = &work->layout->groups[b->group];
    if (b->page >= group->pages)
        return HL_FAIL(err, HL_E_RANGE, STAGE, "block %zu: page %u of the %u of group %u", index, b->page,
                       group->pages, b->group);

    uint64_t end;
    if (b->allocation_bytes == 0)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "block %zu: allocation_bytes is 0", index);
    if (!hl_add_u64(b->allocation_offset, b->allocation_bytes, &end))
        return HL_FAIL(err, HL_E_OVERFLOW, STAGE, "block %zu: allocation_offset + allocation_bytes overflows",
                       index);
    uint64_t in_chunk = b->allocation_offset % work->chunk_bytes;
    if (!hl_within(in_chunk, b->allocation_bytes, work->chunk_bytes))
        return HL_FAIL(err, HL_E_RANGE, STAGE,
                       "block %zu: its allocation at %llu crosses a chunk of %llu bytes", index,
                       (unsigned long long)b->allocation_offset, (unsigned long long)work->chunk_bytes);
    if (b->block_offset < b->allocation_offset ||
        !hl_within(b->block_offset - b->allocation_offset, group->block_bytes, b->allocation_bytes))
        return HL_FAIL(err, HL_E_RANGE, STAGE,
                       "block %zu: block_offset %llu with %llu bytes is outside its allocation", index,
                       (unsigned long long)b->block_offset, (unsigned long long)group->block_bytes);
    return HL_OK;
}

hl_status hl_plan_check_request(struct hl_plan_work *work, hl_error *err)
{
    hl_status status = check_counts(work->layout, err);
    if (status == HL_OK)
        status = check_bounds(work, err);
    for (uint32_t i = 0; status == HL_OK && i < work->layout->component_count; i++)
        status = check_component(work->layout, i, err);
    for (size_t i = 0; status == HL_OK && i < work->request->block_count; i++)
        status = check_block(work, i, err);
    return status;
}
