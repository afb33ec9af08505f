/* From complete payloads to a build that can be published: the manifest, then READY.json as the last file,
 * then the mark of a folder in transition. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/weights/store/writer.h"
#include "faults/hook.h"

#define STAGE "weights.build"

static hl_status build_manifest(const hl_weight_writer *writer, const hl_weight_identity *identity,
                                const char *format_metadata, hl_manifest **manifest, hl_error *err)
{
    struct hl_manifest_tensor *tensors = calloc(writer->tensor_count, sizeof *tensors);
    struct hl_manifest_file *files = calloc(writer->payload_count, sizeof *files);
    hl_status status = HL_E_NOMEM;
    if (!tensors || !files) {
        status = HL_FAIL(err, HL_E_NOMEM, STAGE, "a manifest of %zu tensors", writer->tensor_count);
        goto err_free;
    }
    size_t tensor = 0, file = 0;
    for (const hl_weight_payload *payload = writer->payloads; payload; payload = payload->next) {
        files[file++] = payload->file;
        for (size_t i = 0; i < payload->tensor_count; i++)
            tensors[tensor++] = payload->tensors[i].entry;
    }
    const struct hl_manifest_parts parts = {.identity = identity,
                                            .tensors = tensors,
                                            .tensor_count = tensor,
                                            .files = files,
                                            .file_count = file,
                                            .format_metadata = format_metadata};
    status = hl_manifest_build(&parts, manifest, err);
err_free:
    free(files);
    free(tensors);
    return status;
}

/* What only the producer can have caused, or else trouble of the system. */
static hl_status manifest_failure(hl_weight_failure *failure, const hl_error *err)
{
    if (err->status == HL_E_NOMEM || err->status == HL_E_SYSTEM)
        return hl_weight_failure_io(failure, HL_WEIGHT_STAGE_PRODUCTION, err);
    return hl_weight_failure_from(failure, HL_WEIGHT_STAGE_PRODUCTION, HL_WEIGHT_PRODUCER_FAILED, false, err);
}

/* The artifact as it is now, with the two documents that are still to come. */
static hl_status check_capacity(const hl_weight_writer *writer, const hl_manifest *manifest,
                                const struct hl_text *ready, hl_weight_failure *failure)
{
    const uint64_t documents = manifest->canonical_bytes + ready->size;
    uint64_t artifact = UINT64_MAX;
    if (__builtin_add_overflow(writer->planned_bytes, documents, &artifact))
        artifact = UINT64_MAX;
    return hl_capacity_check(writer->store, artifact, documents, failure);
}

static hl_status mark_finished(int folder, hl_error *err)
{
    if (HL_FAULT_STEP(weights_build_mark, fchmod(folder, S_ISVTX | 0755)) != 0)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot mark the build as finished");
    if (HL_FAULT_STEP(weights_build_sync, fsync(folder)) != 0)
        return HL_FAIL_ERRNO(err, errno == ENOSPC || errno == EDQUOT ? HL_E_NOSPACE : HL_E_SYSTEM, STAGE,
                             errno, "cannot synchronise the build's folder");
    return HL_OK;
}

static hl_status write_documents(const struct hl_build *build, const struct hl_text *ready, hl_error *err)
{
    hl_status status = hl_storage_create_document(build->folder, "manifest.json", build->manifest->canonical,
                                                  build->manifest->canonical_bytes, err);
    if (!status)
        status = hl_storage_create_document(build->folder, "READY.json", ready->bytes, ready->size, err);
    if (!status)
        status = mark_finished(build->folder, err);
    return status;
}

hl_status hl_build_finish(hl_weight_writer *writer, const hl_weight_identity *identity,
                          const char *format_metadata, struct hl_build *build, hl_weight_failure *failure)
{
    hl_error err;
    struct hl_text ready = {0};
    hl_status status = build_manifest(writer, identity, format_metadata, &build->manifest, &err);
    if (status)
        return manifest_failure(failure, &err);
    memcpy(build->ready.manifest_sha256, build->manifest->canonical_sha256,
           sizeof build->ready.manifest_sha256);
    memcpy(build->ready.content_sha256, build->manifest->content_sha256, sizeof build->ready.content_sha256);
    if (hl_storage_uuid(build->ready.publication_id, &err))
        return hl_weight_failure_io(failure, HL_WEIGHT_STAGE_PRODUCTION, &err);
    hl_ready_put(&ready, &build->ready);
    if (hl_text_status(&ready, STAGE, &err)) {
        status = hl_weight_failure_io(failure, HL_WEIGHT_STAGE_PRODUCTION, &err);
        goto err_text;
    }
    if ((status = check_capacity(writer, build->manifest, &ready, failure)))
        goto err_text;
    if (write_documents(build, &ready, &err))
        status = hl_weight_failure_io(failure, HL_WEIGHT_STAGE_PRODUCTION, &err);
err_text:
    hl_text_free(&ready);
    return status;
}
