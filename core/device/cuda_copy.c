/* Asynchronous copies: one range, rows of constant pitch, and batches. */
#include <inttypes.h>

#include "core/device/cuda_device.h"

#define STAGE "device.cuda_copy"

/* Copies handed to the driver in one batch call. They are laid out on the stack (24 KiB), so that a copy
 * allocates nothing; at 0.8 us a copy the cost of a call disappears in 1024 of them. */
#define BATCH 1024

static CUstream stream_of(hl_stream stream)
{
    return (CUstream)(void *)stream;
}

static hl_status check_kind(enum hl_copy_kind kind, hl_error *err)
{
    if (kind == HL_COPY_H2D || kind == HL_COPY_D2H || kind == HL_COPY_D2D)
        return HL_OK;
    return HL_FAIL_DEVICE(err, HL_E_INVALID, STAGE, CUDA_ERROR_INVALID_VALUE, "kind: %d", (int)kind);
}

hl_status hl_cuda_copy(hl_device *dev, enum hl_copy_kind kind, uint64_t dst, uint64_t src, size_t bytes,
                       hl_stream stream, hl_error *err)
{
    struct hl_cuda_device *cuda = hl_cuda_of(dev);
    hl_status status = check_kind(kind, err);
    if (status || !bytes)
        return status;
    switch (kind) {
    case HL_COPY_H2D:
        return HL_CUDA_SUBMIT(device_copy, cuda, err, STAGE, copy_h2d, "cuMemcpyHtoDAsync", dst,
                              (const void *)(uintptr_t)src, bytes, stream_of(stream));
    case HL_COPY_D2H:
        return HL_CUDA_SUBMIT(device_copy, cuda, err, STAGE, copy_d2h, "cuMemcpyDtoHAsync",
                              (void *)(uintptr_t)dst, src, bytes, stream_of(stream));
    default:
        return HL_CUDA_SUBMIT(device_copy, cuda, err, STAGE, copy_d2d, "cuMemcpyDtoDAsync", dst, src, bytes,
                              stream_of(stream));
    }
}

static hl_status check_pitch(const struct hl_cuda_device *cuda, const char *side, size_t pitch, size_t width,
                             hl_error *err)
{
    if (pitch < width)
        return HL_FAIL_DEVICE(err, HL_E_INVALID, STAGE, CUDA_ERROR_INVALID_VALUE,
                              "%s_pitch: %zu is less than the width, %zu", side, pitch, width);
    if (pitch > cuda->max_pitch)
        return HL_FAIL_DEVICE(err, HL_E_UNSUPPORTED, STAGE, CUDA_ERROR_INVALID_VALUE,
                              "%s_pitch: %zu is more than this device takes, %zu", side, pitch,
                              cuda->max_pitch);
    return HL_OK;
}

static void set_source(CUDA_MEMCPY2D *copy, enum hl_copy_kind kind, uint64_t src, size_t pitch)
{
    copy->srcPitch = pitch;
    if (kind == HL_COPY_H2D) {
        copy->srcMemoryType = CU_MEMORYTYPE_HOST;
        copy->srcHost = (const void *)(uintptr_t)src;
    } else {
        copy->srcMemoryType = CU_MEMORYTYPE_DEVICE;
        copy->srcDevice = src;
    }
}

static void set_destination(CUDA_MEMCPY2D *copy, enum hl_copy_kind kind, uint64_t dst, size_t pitch)
{
    copy->dstPitch = pitch;
    if (kind == HL_COPY_D2H) {
        copy->dstMemoryType = CU_MEMORYTYPE_HOST;
        copy->dstHost = (void *)(uintptr_t)dst;
    } else {
        copy->dstMemoryType = CU_MEMORYTYPE_DEVICE;
        copy->dstDevice = dst;
    }
}

hl_status hl_cuda_copy_rows(hl_device *dev, enum hl_copy_kind kind, uint64_t dst, size_t dst_pitch,
                            uint64_t src, size_t src_pitch, size_t width, size_t rows, hl_stream stream,
                            hl_error *err)
{
    struct hl_cuda_device *cuda = hl_cuda_of(dev);
    hl_status status = check_kind(kind, err);
    if (!status)
        status = check_pitch(cuda, "dst", dst_pitch, width, err);
    if (!status)
        status = check_pitch(cuda, "src", src_pitch, width, err);
    if (status || !width || !rows)
        return status;
    CUDA_MEMCPY2D copy = {.WidthInBytes = width, .Height = rows};
    set_source(&copy, kind, src, src_pitch);
    set_destination(&copy, kind, dst, dst_pitch);
    return HL_CUDA_SUBMIT(device_copy_rows, cuda, err, STAGE, copy_rows, "cuMemcpy2DAsync", &copy,
                          stream_of(stream));
}

/* What the driver takes: the fields in arrays of their own, and no empty copies. */
struct batch {
    CUdeviceptr dst[BATCH];
    CUdeviceptr src[BATCH];
    size_t bytes[BATCH];
    size_t count;
};

/* Fills the batch from `copies` and returns how many of them it took. */
static size_t gather_batch(struct batch *batch, const struct hl_copy *copies, size_t count)
{
    size_t taken = 0;
    batch->count = 0;
    for (; taken < count && batch->count < BATCH; taken++) {
        if (!copies[taken].bytes)
            continue;
        batch->dst[batch->count] = copies[taken].dst;
        batch->src[batch->count] = copies[taken].src;
        batch->bytes[batch->count] = copies[taken].bytes;
        batch->count++;
    }
    return taken;
}

/* Without a batch call in the driver: one by one, in order. */
static CUresult submit_singly(const struct hl_cuda_driver *driver, const struct batch *batch, CUstream stream)
{
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < batch->count && result == CUDA_SUCCESS; i++)
        result = driver->copy_any(batch->dst[i], batch->src[i], batch->bytes[i], stream);
    return result;
}

static hl_status submit_batch(const struct hl_cuda_driver *driver, struct batch *batch, CUstream stream,
                              hl_error *err)
{
    /* The source is read in stream order, as by any other copy; where memory lies is known from its address.
     */
    CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
    size_t first = 0;
    size_t failed;
    if (!batch->count)
        return HL_OK;
    if (driver->copy_batch)
        return hl_cuda_status(driver,
                              driver->copy_batch(batch->dst, batch->src, batch->bytes, batch->count,
                                                 &attributes, &first, 1, stream),
                              STAGE, "cuMemcpyBatchAsync", err);
    if (driver->copy_batch_12080)
        return hl_cuda_status(driver,
                              driver->copy_batch_12080(batch->dst, batch->src, batch->bytes, batch->count,
                                                       &attributes, &first, 1, &failed, stream),
                              STAGE, "cuMemcpyBatchAsync", err);
    return hl_cuda_status(driver, submit_singly(driver, batch, stream), STAGE, "cuMemcpyAsync", err);
}

/* A batch that the driver refused may have been started in part, and the driver does not say how far, so all
 * of it counts as accepted. */
hl_status hl_cuda_copy_batch(hl_device *dev, enum hl_copy_kind kind, const struct hl_copy *copies,
                             size_t count, hl_stream stream, size_t *accepted, hl_error *err)
{
    struct hl_cuda_device *cuda = hl_cuda_of(dev);
    *accepted = 0;
    hl_status status = check_kind(kind, err);
    if (!status && !stream)
        status = HL_FAIL_DEVICE(err, HL_E_INVALID, STAGE, CUDA_ERROR_INVALID_VALUE,
                                "stream: a batch cannot go to the null stream");
    struct batch batch;
    for (size_t done = 0; !status && done < count;) {
        done += gather_batch(&batch, copies + done, count - done);
        *accepted = done;
        status = HL_FAULT_SUBMIT(
            device_copy_batch, submit_batch(cuda->driver, &batch, stream_of(stream), err),
            hl_cuda_status(cuda->driver, CUDA_ERROR_UNKNOWN, STAGE, "cuMemcpyBatchAsync", err));
    }
    return status;
}
