/* The end of a payload: every byte of every tensor there, and the digests that writing did not give. A file
 * that was written from front to back is not read again; of another, the whole and the tensors that were not
 * written in order are hashed from the page cache, in parallel. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/error.h"
#include "core/weights/store/writer.h"

#define STAGE "weights.writer"

static hl_status check_coverage(const hl_weight_payload *payload, hl_error *err)
{
    for (size_t i = 0; i < payload->tensor_count; i++) {
        const struct hl_payload_tensor *const tensor = &payload->tensors[i];
        uint64_t gap;
        if (!hl_coverage_complete(&tensor->coverage, tensor->entry.bytes, &gap))
            return HL_FAIL(err, HL_E_RANGE, STAGE,
                           "tensor %.64s of %.64s: byte %" PRIu64 " of %" PRIu64 " was not written",
                           tensor->entry.name, payload->file.file_name, gap, tensor->entry.bytes);
    }
    return HL_OK;
}

static hl_status hash_empty_tensors(hl_weight_payload *payload, hl_error *err)
{
    for (size_t i = 0; i < payload->tensor_count; i++) {
        struct hl_payload_tensor *const tensor = &payload->tensors[i];
        if (tensor->entry.bytes > 0)
            continue;
        const hl_status status = hl_sha256("", 0, tensor->entry.sha256, err);
        if (status)
            return status;
        tensor->state = HL_TENSOR_HASHED;
    }
    return HL_OK;
}

static bool take_stream_digest(hl_weight_payload *payload)
{
    return payload->file_in_order && payload->file_hashed == payload->file.bytes &&
           hl_stream_hash_end(&payload->file_hash, payload->file.sha256);
}

static hl_status hash_again(hl_weight_payload *payload, hl_error *err)
{
    struct hl_hash_range *ranges = calloc(payload->tensor_count, sizeof *ranges);
    if (!ranges)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "cannot hash %zu tensors", payload->tensor_count);
    struct hl_hash_job job = {
        .fd = payload->fd, .name = payload->file.file_name, .bytes = payload->file.bytes, .ranges = ranges};
    for (size_t i = 0; i < payload->tensor_count; i++) {
        const struct hl_payload_tensor *const tensor = &payload->tensors[i];
        if (tensor->state != HL_TENSOR_HASHED)
            ranges[job.range_count++] = (struct hl_hash_range){.begin = tensor->offset,
                                                               .end = tensor->offset + tensor->entry.bytes,
                                                               .name = tensor->entry.name};
    }
    const hl_status status = hl_hash_run(&job, 1, payload->writer->store->hash_threads, false, err);
    size_t next = 0;
    for (size_t i = 0; i < payload->tensor_count && !status; i++) {
        struct hl_payload_tensor *const tensor = &payload->tensors[i];
        if (tensor->state == HL_TENSOR_HASHED)
            continue;
        memcpy(tensor->entry.sha256, ranges[next++].sha256, sizeof tensor->entry.sha256);
        tensor->state = HL_TENSOR_HASHED;
    }
    if (!status)
        memcpy(payload->file.sha256, job.sha256, sizeof payload->file.sha256);
    free(ranges);
    return status;
}

static bool all_tensors_hashed(const hl_weight_payload *payload)
{
    for (size_t i = 0; i < payload->tensor_count; i++)
        if (payload->tensors[i].state != HL_TENSOR_HASHED)
            return false;
    return true;
}

hl_status hl_payload_complete(hl_weight_payload *payload, hl_error *err)
{
    hl_status status = check_coverage(payload, err);
    if (!status)
        status = hash_empty_tensors(payload, err);
    if (status)
        return status;
    if (take_stream_digest(payload) && all_tensors_hashed(payload))
        return HL_OK;
    return hash_again(payload, err);
}
