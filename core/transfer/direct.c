#include "core/transfer/direct.h"

/* Contiguous copies of one layer on their way to the device. */
struct copies {
    hl_transfer *transfer;
    bool batch;
    size_t pending; /* in transfer->batch */
    struct hl_layer_result *result;
    bool *accepted;
};

static hl_status flush(struct copies *copies, hl_error *err)
{
    hl_transfer *transfer = copies->transfer;
    size_t count = copies->pending, taken = 0;
    if (count == 0)
        return HL_OK;
    copies->pending = 0;
    hl_status status = transfer->dev->ops->copy_batch(transfer->dev, HL_COPY_H2D, transfer->batch, count,
                                                      transfer->stream, &taken, err);
    if (taken > 0)
        *copies->accepted = true;
    if (status != HL_OK)
        return status;
    *copies->accepted = true;
    copies->result->copies += (uint32_t)count;
    return HL_OK;
}

static hl_status put(struct copies *copies, const struct hl_work_range *range, hl_error *err)
{
    hl_transfer *transfer = copies->transfer;
    if (copies->batch) {
        transfer->batch[copies->pending++] =
            (struct hl_copy){.dst = range->dst, .src = range->host, .bytes = range->bytes};
        return copies->pending == HL_ROUTE_BATCH_COPIES ? flush(copies, err) : HL_OK;
    }
    hl_status status = transfer->dev->ops->copy(transfer->dev, HL_COPY_H2D, range->dst, range->host,
                                                range->bytes, transfer->stream, err);
    if (status != HL_OK)
        return status;
    *copies->accepted = true;
    copies->result->copies++;
    return HL_OK;
}

static hl_status put_run(struct copies *copies, const struct hl_work_run *run, hl_error *err)
{
    hl_transfer *transfer = copies->transfer;
    hl_status status = HL_OK;
    if (!hl_route_strided(&transfer->model, run)) {
        for (uint32_t i = 0; status == HL_OK && i < run->rows; i++) {
            struct hl_work_range row = hl_work_row(run, i);
            status = put(copies, &row, err);
        }
        return status;
    }
    status = transfer->dev->ops->copy_rows(transfer->dev, HL_COPY_H2D, run->dst, run->dst_pitch, run->host,
                                           run->src_pitch, run->row_bytes, run->rows, transfer->stream, err);
    if (status != HL_OK)
        return status;
    *copies->accepted = true;
    copies->result->row_copies++;
    return HL_OK;
}

hl_status hl_direct_submit(hl_transfer *transfer, const struct hl_work *work,
                           const struct hl_work_layer *layer, bool batch, struct hl_layer_result *result,
                           bool *accepted, hl_error *err)
{
    struct copies copies = {.transfer = transfer, .batch = batch, .result = result, .accepted = accepted};
    hl_status status = HL_OK;
    for (uint32_t i = 0; status == HL_OK && i < layer->range_count; i++)
        status = put(&copies, &work->ranges[layer->first_range + i], err);
    for (uint32_t i = 0; status == HL_OK && i < layer->run_count; i++)
        status = put_run(&copies, &work->runs[layer->first_run + i], err);
    return status == HL_OK ? flush(&copies, err) : status;
}
