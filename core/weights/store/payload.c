/* One file of a build: reserved whole when it is opened, written in any order, hashed on the way, complete or
 * nothing when it is closed. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/checked.h"
#include "core/base/error.h"
#include "core/weights/store/writer.h"
#include "faults/hook.h"

#define STAGE "weights.writer"

/* From where handing bytes to another thread costs less than hashing them here. */
#define LANE_BYTES (256u * 1024)

static hl_status status_of(int sys_errno)
{
    return sys_errno == ENOSPC || sys_errno == EDQUOT ? HL_E_NOSPACE : HL_E_SYSTEM;
}

/* What storage reports as a status, as a system call would: what a fault point can stand around. */
static int reserve(int fd, uint64_t bytes)
{
    hl_error err;
    const hl_status status = hl_storage_reserve(fd, bytes, &err);
    errno = status ? err.sys_errno : 0;
    return status ? -1 : 0;
}

static int write_at(int fd, const void *bytes, size_t size, uint64_t offset)
{
    hl_error err;
    const hl_status status = hl_storage_write_at(fd, bytes, size, offset, &err);
    errno = status ? err.sys_errno : 0;
    return status ? -1 : 0;
}

/* --- opening --- */

static hl_status create_file(hl_weight_payload *payload, const struct hl_safetensors_layout *layout,
                             hl_error *err)
{
    const char *const name = payload->file.file_name;
    const int folder = payload->writer->folder;
    if (HL_FAULT_STEP(weights_payload_open,
                      payload->fd =
                          openat(folder, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600)) < 0)
        return HL_FAIL_ERRNO(err, status_of(errno), STAGE, errno, "cannot create %.150s", name);
    if (HL_FAULT_STEP(weights_payload_reserve, reserve(payload->fd, layout->file_bytes)) != 0)
        return HL_FAIL_ERRNO(err, status_of(errno), STAGE, errno,
                             "cannot reserve %" PRIu64 " bytes for %.150s", layout->file_bytes, name);
    if (HL_FAULT_STEP(weights_payload_write,
                      write_at(payload->fd, layout->header, layout->header_bytes, 0)) != 0)
        return HL_FAIL_ERRNO(err, status_of(errno), STAGE, errno, "cannot write the header of %.150s", name);
    const hl_status status = hl_stream_hash_begin(&payload->file_hash, err);
    if (status)
        return status;
    hl_stream_hash_add(&payload->file_hash, layout->header, layout->header_bytes);
    payload->file_in_order = true;
    payload->file_hashed = layout->header_bytes;
    return HL_OK;
}

hl_status hl_weight_writer_open(hl_weight_writer *writer, const char *file_name,
                                const hl_weight_tensor_spec *tensors, size_t count,
                                hl_weight_payload **payload, hl_error *err)
{
    hl_status status = hl_writer_enter(writer, err);
    if (status)
        return status;
    struct hl_safetensors_layout layout = {0};
    hl_weight_payload *made = NULL;
    if ((status = hl_payload_declare(writer, file_name, tensors, count, &layout, &made, err)))
        goto err_leave;
    if ((status = hl_writer_admit(writer, made, err)))
        goto err_free;
    /* From here on the writer owns it, so that its folder's content and its list agree. */
    hl_error failed;
    if ((status = create_file(made, &layout, &failed))) {
        made->state = HL_PAYLOAD_ABANDONED;
        hl_payload_discard(made);
        hl_writer_note(writer, &failed);
        if (err)
            *err = failed;
        goto err_layout;
    }
    *payload = made;
    hl_safetensors_layout_free(&layout);
    hl_writer_leave(writer);
    return HL_OK;

err_free:
    hl_payload_free(made);
err_layout:
    hl_safetensors_layout_free(&layout);
err_leave:
    hl_writer_leave(writer);
    return status;
}

/* --- writing --- */

/* The file's digest, if this write continues it; else NULL, and for good. */
static struct hl_stream_hash *continue_file(hl_weight_payload *payload, uint64_t at, size_t size)
{
    if (!payload->file_in_order)
        return NULL;
    if (at != payload->file_hashed) {
        payload->file_in_order = false;
        hl_stream_hash_drop(&payload->file_hash);
        return NULL;
    }
    payload->file_hashed += size;
    return &payload->file_hash;
}

static struct hl_stream_hash *continue_tensor(struct hl_payload_tensor *tensor, uint64_t at, size_t size)
{
    if (tensor->state == HL_TENSOR_UNHASHED && at == 0 && hl_stream_hash_begin(&tensor->hash, NULL) == HL_OK)
        tensor->state = HL_TENSOR_HASHING;
    if (tensor->state != HL_TENSOR_HASHING || at != tensor->hashed) {
        hl_stream_hash_drop(&tensor->hash);
        tensor->state = HL_TENSOR_LOST;
        return NULL;
    }
    tensor->hashed += size;
    return &tensor->hash;
}

/* Gives `hash` to a lane; false when the caller has to add the bytes itself. */
static bool hash_beside(hl_weight_payload *payload, struct hl_hash_lane *lane, struct hl_stream_hash *hash,
                        const void *bytes, size_t size)
{
    if (!hash || size < LANE_BYTES)
        return false;
    if (!lane->running) {
        if (!hl_writer_take_lane(payload->writer))
            return false;
        if (!hl_hash_lane_start(lane)) {
            hl_writer_return_lane(payload->writer);
            return false;
        }
    }
    hl_hash_lane_add(lane, hash, bytes, size);
    return true;
}

static hl_status write_and_hash(hl_weight_payload *payload, struct hl_payload_tensor *tensor, uint64_t offset,
                                const void *bytes, size_t size, hl_error *err)
{
    const uint64_t at = tensor->offset + offset;
    struct hl_stream_hash *const hashes[2] = {continue_file(payload, at, size),
                                              continue_tensor(tensor, offset, size)};
    bool beside[2];
    for (unsigned i = 0; i < 2; i++)
        beside[i] = hash_beside(payload, &payload->lanes[i], hashes[i], bytes, size);
    const long written = HL_FAULT_STEP(weights_payload_write, write_at(payload->fd, bytes, size, at));
    const int write_errno = errno;
    for (unsigned i = 0; i < 2; i++)
        if (hashes[i] && !beside[i])
            hl_stream_hash_add(hashes[i], bytes, size);
    for (unsigned i = 0; i < 2; i++)
        if (beside[i])
            hl_hash_lane_wait(&payload->lanes[i]);
    if (written != 0)
        return HL_FAIL_ERRNO(err, status_of(write_errno), STAGE, write_errno,
                             "cannot write %zu bytes of tensor %.64s to %.100s", size, tensor->entry.name,
                             payload->file.file_name);
    if (tensor->state == HL_TENSOR_HASHING && tensor->hashed == tensor->entry.bytes)
        tensor->state =
            hl_stream_hash_end(&tensor->hash, tensor->entry.sha256) ? HL_TENSOR_HASHED : HL_TENSOR_LOST;
    return HL_OK;
}

static hl_status write_checked(hl_weight_payload *payload, size_t index, uint64_t offset, const void *bytes,
                               size_t size, hl_error *err)
{
    if (payload->state != HL_PAYLOAD_OPEN)
        return HL_FAIL(err, HL_E_STATE, STAGE, "%.200s is closed or has failed", payload->file.file_name);
    if (index >= payload->tensor_count)
        return HL_FAIL(err, HL_E_RANGE, STAGE, "tensor %zu of %.150s: %zu are declared", index,
                       payload->file.file_name, payload->tensor_count);
    struct hl_payload_tensor *const tensor = &payload->tensors[index];
    if (!hl_within(offset, size, tensor->entry.bytes))
        return HL_FAIL(err, HL_E_RANGE, STAGE, "%zu bytes at %" PRIu64 " of tensor %.64s, which has %" PRIu64,
                       size, offset, tensor->entry.name, tensor->entry.bytes);
    if (size == 0)
        return HL_OK;
    hl_error failed;
    hl_status status = hl_coverage_add(&tensor->coverage, offset, offset + size, &failed);
    if (status == HL_E_OVERLAP)
        return HL_FAIL(err, status, STAGE, "tensor %.64s: %.150s", tensor->entry.name, failed.text);
    if (!status)
        status = write_and_hash(payload, tensor, offset, bytes, size, &failed);
    if (status) {
        payload->state = HL_PAYLOAD_FAILED;
        hl_writer_note(payload->writer, &failed);
        if (err)
            *err = failed;
    }
    return status;
}

hl_status hl_weight_payload_write(hl_weight_payload *payload, size_t index, uint64_t offset,
                                  const void *bytes, size_t size, hl_error *err)
{
    hl_status status = hl_writer_enter(payload->writer, err);
    if (status)
        return status;
    status = write_checked(payload, index, offset, bytes, size, err);
    hl_writer_leave(payload->writer);
    return status;
}

/* --- closing --- */

static hl_status close_checked(hl_weight_payload *payload, hl_error *err)
{
    if (payload->state == HL_PAYLOAD_FAILED)
        return HL_FAIL(err, HL_E_STATE, STAGE, "%.200s: a write to it failed", payload->file.file_name);
    const hl_status status = hl_payload_complete(payload, err);
    if (status)
        return status;
    if (HL_FAULT_STEP(weights_payload_seal, fchmod(payload->fd, 0444)) != 0)
        return HL_FAIL_ERRNO(err, status_of(errno), STAGE, errno, "cannot make %.150s read-only",
                             payload->file.file_name);
    return HL_OK;
}

hl_status hl_weight_payload_close(hl_weight_payload *payload, hl_error *err)
{
    if (!payload)
        return HL_OK;
    hl_weight_writer *const writer = payload->writer;
    hl_status status = hl_writer_enter(writer, err);
    if (status)
        return status;
    if (payload->state != HL_PAYLOAD_OPEN && payload->state != HL_PAYLOAD_FAILED) {
        status = HL_FAIL(err, HL_E_STATE, STAGE, "%.200s is closed", payload->file.file_name);
        goto err_leave;
    }
    hl_error failed;
    if ((status = close_checked(payload, &failed))) {
        payload->state = HL_PAYLOAD_ABANDONED;
        hl_payload_discard(payload);
        hl_writer_note(writer, &failed);
        if (err)
            *err = failed;
        goto err_leave;
    }
    payload->state = HL_PAYLOAD_COMPLETE;
    hl_payload_release(payload);
    hl_syncer_add(&writer->syncer, payload);
err_leave:
    hl_writer_leave(writer);
    return status;
}

/* --- what is left of one --- */

void hl_payload_release(hl_weight_payload *payload)
{
    for (unsigned i = 0; i < 2; i++)
        if (payload->lanes[i].running) {
            hl_hash_lane_stop(&payload->lanes[i]);
            hl_writer_return_lane(payload->writer);
        }
    hl_stream_hash_drop(&payload->file_hash);
    for (size_t i = 0; i < payload->tensor_count; i++) {
        hl_stream_hash_drop(&payload->tensors[i].hash);
        hl_coverage_free(&payload->tensors[i].coverage);
    }
}

void hl_payload_discard(hl_weight_payload *payload)
{
    hl_payload_release(payload);
    if (payload->fd >= 0)
        close(payload->fd);
    payload->fd = -1;
}

void hl_payload_free(hl_weight_payload *payload)
{
    free(payload->numbers);
    free(payload->strings);
    free(payload->tensors);
    free(payload);
}
