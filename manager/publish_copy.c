/* The copies of one batch of blocks, from device pages to arena blocks. */
#include <assert.h>
#include <string.h>

#include "manager/publisher.h"

static hl_status make_stream(struct manager_publisher *publisher, hl_error *err)
{
    const struct hl_device_ops *ops = publisher->dev->ops;
    hl_stream stream;
    hl_status status = ops->stream_create(publisher->dev, &stream, err);
    if (status != HL_OK)
        return status;
    status = ops->event_create(publisher->dev, 0, &publisher->event, err);
    if (status == HL_OK)
        publisher->stream = stream;
    else
        ops->stream_destroy(publisher->dev, stream, NULL);
    return status;
}

static void destroy_stream(struct manager_publisher *publisher)
{
    const struct hl_device_ops *ops = publisher->dev->ops;
    ops->event_destroy(publisher->dev, publisher->event, NULL);
    ops->stream_destroy(publisher->dev, publisher->stream, NULL);
    publisher->stream = NULL;
}

hl_status manager_publish_open_stream(struct manager_publisher *publisher, hl_error *err)
{
    hl_status status = hl_device_enter(publisher->dev, err);
    if (status != HL_OK)
        return status;
    status = make_stream(publisher, err);
    hl_device_leave(publisher->dev);
    return status;
}

void manager_publish_close_stream(struct manager_publisher *publisher)
{
    if (!publisher->stream || hl_device_enter(publisher->dev, NULL) != HL_OK)
        return;
    destroy_stream(publisher);
    hl_device_leave(publisher->dev);
}

bool manager_publish_has_gaps(const hl_layout *layout, uint32_t group)
{
    uint64_t written = 0; /* rows of a block do not overlap */
    for (uint32_t i = 0; i < layout->component_count; i++)
        if (layout->components[i].group == group)
            written += layout->components[i].row_bytes * layout->components[i].rows;
    return written != layout->groups[group].block_bytes;
}

static hl_status flush(struct manager_publisher *publisher, hl_error *err)
{
    const struct hl_device_ops *ops = publisher->dev->ops;
    const struct hl_copy *first = publisher->pieces;
    uint32_t count = publisher->piece_count;
    size_t accepted;
    publisher->piece_count = 0;
    if (count == 0)
        return HL_OK;
    if (count == 1)
        return ops->copy(publisher->dev, HL_COPY_D2H, first->dst, first->src, first->bytes, publisher->stream,
                         err);
    return ops->copy_batch(publisher->dev, HL_COPY_D2H, first, count, publisher->stream, &accepted, err);
}

/* A contiguous piece, which joins the one before it when both lie in one block and one tensor. */
static hl_status add_piece(struct manager_publisher *publisher, const struct hl_copy *piece, bool may_join,
                           hl_error *err)
{
    struct hl_copy *last = &publisher->pieces[publisher->piece_count];
    if (may_join && publisher->piece_count > 0 && last[-1].dst + last[-1].bytes == piece->dst &&
        last[-1].src + last[-1].bytes == piece->src) {
        last[-1].bytes += piece->bytes;
        return HL_OK;
    }
    *last = *piece;
    publisher->piece_count++;
    return publisher->piece_count == MANAGER_PUBLISH_PIECES ? flush(publisher, err) : HL_OK;
}

static hl_status copy_block(struct manager_publisher *publisher, const struct manager_publish *publish,
                            const struct manager_publish_target *target, hl_error *err)
{
    const hl_layout *layout = publish->binding->layout;
    unsigned char *block =
        (unsigned char *)hl_arena_base(publisher->manager->arenas[target->arena]) + target->allocation.offset;
    const struct hl_layout_component *before = NULL;
    if (publish->gaps)
        memset(block, 0, layout->groups[publish->group].block_bytes);
    for (uint32_t i = 0; i < layout->component_count; i++) {
        const struct hl_layout_component *c = &layout->components[i];
        if (c->group != publish->group)
            continue;
        const uint64_t page_bytes = c->rows * c->row_bytes;
        const struct hl_copy piece = {.dst = (uint64_t)(uintptr_t)block + c->block_offset,
                                      .src = publish->binding->tensors[c->tensor] + c->offset +
                                             target->page * c->page_stride,
                                      .bytes = page_bytes};
        const bool whole =
            c->rows == 1 || (c->row_stride == c->row_bytes && c->block_row_stride == c->row_bytes);
        hl_status status = whole ? add_piece(publisher, &piece, before && before->tensor == c->tensor, err)
                                 : publisher->dev->ops->copy_rows(
                                       publisher->dev, HL_COPY_D2H, piece.dst, c->block_row_stride, piece.src,
                                       c->row_stride, c->row_bytes, c->rows, publisher->stream, err);
        if (status != HL_OK)
            return status;
        before = c;
    }
    return HL_OK;
}

static hl_status submit_and_wait(struct manager_publisher *publisher, hl_error *err)
{
    const struct hl_device_ops *ops = publisher->dev->ops;
    const struct manager_publish_batch *batch = &publisher->batch;
    hl_status status = HL_OK;
    publisher->piece_count = 0;
    for (uint32_t i = 0; status == HL_OK && i < batch->count; i++)
        status = copy_block(publisher, batch->publish, &batch->targets[i], err);
    if (status == HL_OK)
        status = flush(publisher, err);
    if (status == HL_OK)
        status = ops->event_record(publisher->dev, publisher->event, publisher->stream, err);
    if (status == HL_OK)
        status = ops->event_synchronize(publisher->dev, publisher->event, err);
    return status;
}

hl_status manager_publish_copy(struct manager_publisher *publisher, bool *drained, hl_error *err)
{
    *drained = true;
    hl_status status = hl_device_enter(publisher->dev, err);
    if (status != HL_OK)
        return status;
    if (!publisher->stream)
        status = make_stream(publisher, err);
    if (status != HL_OK)
        goto err_leave;
    status = submit_and_wait(publisher, err);
    if (status != HL_OK) { /* what was accepted before the failure may still be written */
        *drained = publisher->dev->ops->stream_synchronize(publisher->dev, publisher->stream, NULL) == HL_OK;
        if (!*drained)
            destroy_stream(publisher);
    }
err_leave:
    hl_device_leave(publisher->dev);
    return status;
}
