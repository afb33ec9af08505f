/* What one artifact is, and whether it may be used. Validates as a lookup does and condemns nothing: no
 * marker is written, no lock file created, nothing mapped. The shared artifact lock is held only while it
 * looks. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/weights/store/fingerprint.h"

#define STAGE "weights.inspect"

/* The public snapshot, and what owns its memory. */
struct snapshot {
    hl_weight_artifact_snapshot public;
    hl_manifest *manifest; /* what names and shapes point into */
    hl_weight_tensor_view *views;
};

/* --- locks --- */

/* Who holds what, before this inspection takes its own. */
static hl_status look_at_locks(hl_weight_store *store, const char *key, hl_weight_artifact_snapshot *to,
                               hl_error *err)
{
    const hl_status status = hl_lock_is_active(store->locks, HL_LOCK_BUILD, key, &to->build_lock_active, err);
    return status == HL_OK
               ? hl_lock_is_active(store->locks, HL_LOCK_ARTIFACT, key, &to->artifact_lock_active, err)
               : status;
}

/* Keeps the artifact in its place while it is read. Opened for reading: a lock that nobody ever took has no
 * file, and then nobody can be moving the artifact in a way that this would have prevented. */
static hl_status hold(hl_weight_store *store, const char *key, struct hl_lock *lock,
                      hl_weight_failure *failure)
{
    hl_error err = {0};
    *lock = HL_LOCK_NONE;
    if (store->locks < 0)
        return HL_OK;
    switch (hl_lock_take(store->locks, HL_LOCK_ARTIFACT, key, HL_LOCK_SHARED, store->timeout_ns, true, lock,
                         &err)) {
    case HL_OK:
    case HL_E_NOT_FOUND:
        return HL_OK;
    case HL_E_TIMEOUT:
        return hl_weight_failure_from(failure, HL_WEIGHT_STAGE_LIFECYCLE, HL_WEIGHT_ACTIVE_BUILD_TIMEOUT,
                                      true, &err);
    default:
        return hl_weight_failure_io(failure, HL_WEIGHT_STAGE_LIFECYCLE, &err);
    }
}

/* --- documents of an artifact that did not pass --- */

static hl_manifest *read_manifest(int folder)
{
    hl_manifest *manifest = NULL;
    char *text = NULL;
    size_t bytes = 0;
    if (hl_storage_read_document(folder, "manifest.json", HL_WEIGHT_DOCUMENT_BYTES, false, &text, &bytes,
                                 NULL) != HL_OK)
        return NULL;
    if (hl_manifest_parse(text, bytes, &manifest, NULL) != HL_OK)
        manifest = NULL;
    free(text);
    return manifest;
}

static void read_publication(int folder, char publication[HL_WEIGHT_UUID_BYTES])
{
    struct hl_ready ready;
    char *text = NULL;
    size_t bytes = 0;
    if (hl_storage_read_document(folder, "READY.json", HL_WEIGHT_DOCUMENT_BYTES, false, &text, &bytes,
                                 NULL) == HL_OK &&
        hl_ready_parse(text, bytes, &ready, NULL) == HL_OK)
        memcpy(publication, ready.publication_id, HL_WEIGHT_UUID_BYTES);
    free(text);
}

/* --- the snapshot --- */

static hl_status fill_views(struct snapshot *snapshot, const struct hl_artifact *artifact, hl_error *err)
{
    const hl_manifest *manifest = snapshot->manifest;
    snapshot->views = calloc(manifest->tensor_count, sizeof *snapshot->views);
    if (!snapshot->views)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "%zu tensor views", manifest->tensor_count);
    for (size_t i = 0; i < manifest->tensor_count; i++) {
        const struct hl_manifest_tensor *tensor = &manifest->tensors[i];
        snapshot->views[i] = (hl_weight_tensor_view){
            .name = tensor->name,
            .kind = tensor->kind,
            .role = tensor->role,
            .dtype = tensor->dtype,
            .file_name = tensor->file_name,
            .rank = tensor->rank,
            .shape = tensor->shape,
            .stride = tensor->stride,
            .bytes = tensor->bytes,
            .region = tensor->file,
            /* known only where the payloads' headers passed */
            .region_offset = artifact->tensor_begin ? artifact->tensor_begin[i] : 0,
        };
    }
    snapshot->public.tensors = snapshot->views;
    snapshot->public.tensor_count = manifest->tensor_count;
    return HL_OK;
}

/* The manifest outlives the artifact, whose closing would need it. */
static hl_manifest *take_manifest(struct hl_artifact *artifact)
{
    hl_manifest *manifest = artifact->manifest;
    for (size_t i = 0; artifact->files && i < manifest->file_count; i++)
        if (artifact->files[i].fd >= 0)
            close(artifact->files[i].fd);
    free(artifact->files);
    artifact->files = NULL;
    artifact->manifest = NULL;
    return manifest;
}

/* Everything that can be said about an open folder. */
static hl_status describe(struct snapshot *snapshot, hl_weight_store *store, struct hl_artifact *artifact,
                          hl_error *err)
{
    hl_weight_artifact_snapshot *to = &snapshot->public;
    hl_status status;
    if (to->valid) {
        memcpy(to->publication_id, artifact->ready.publication_id, sizeof to->publication_id);
        status = hl_artifact_fingerprint(store, artifact, to->backing_fingerprint, err);
        if (status != HL_OK)
            return status;
        snapshot->manifest = take_manifest(artifact);
    } else {
        read_publication(artifact->folder, to->publication_id);
        snapshot->manifest = read_manifest(artifact->folder);
    }
    if (!snapshot->manifest)
        return hl_storage_tree_bytes(artifact->folder, &to->bytes, err);
    for (size_t i = 0; i < snapshot->manifest->file_count; i++)
        to->bytes += snapshot->manifest->files[i].bytes;
    to->manifest_json = snapshot->manifest->canonical;
    return fill_views(snapshot, artifact, err);
}

static hl_status inspect(struct snapshot *snapshot, hl_weight_store *store, const char *key,
                         hl_weight_validation validation, hl_weight_failure *failure)
{
    hl_weight_artifact_snapshot *to = &snapshot->public;
    struct hl_artifact artifact = {.folder = -1};
    struct hl_lock lock;
    hl_error err = {0};
    memcpy(to->artifact_key, key, sizeof to->artifact_key);
    if (store->locks >= 0 && look_at_locks(store, key, to, &err) != HL_OK)
        return hl_weight_failure_io(failure, HL_WEIGHT_STAGE_LIFECYCLE, &err);
    hl_status status = hold(store, key, &lock, failure);
    if (status != HL_OK)
        return status;
    const enum hl_verdict verdict =
        hl_artifact_validate(store, key, NULL, validation, &artifact, &to->failure);
    to->present = verdict != HL_VERDICT_ABSENT;
    to->valid = verdict == HL_VERDICT_VALID;
    if (to->present && artifact.folder < 0) /* denied before anything was opened */
        (void)hl_storage_open_folder(store->artifacts, key, &artifact.folder, NULL);
    if (artifact.folder >= 0 && describe(snapshot, store, &artifact, &err) != HL_OK)
        status = hl_weight_failure_io(failure, HL_WEIGHT_STAGE_LIFECYCLE, &err);
    hl_artifact_close(&artifact);
    hl_lock_release(&lock);
    return status;
}

hl_status hl_weight_store_inspect_artifact(hl_weight_store *store, const char *key,
                                           hl_weight_validation validation, hl_weight_artifact_snapshot **out,
                                           hl_weight_failure *failure)
{
    if (!key || !hl_store_key_is_valid(key))
        return HL_WEIGHT_FAIL(failure, LIFECYCLE, INVALID_CONFIG, false,
                              "\"%.80s\" is no artifact key: 64 lower-case hexadecimal digits",
                              key ? key : "");
    if (validation != HL_WEIGHT_MANIFEST_AND_METADATA && validation != HL_WEIGHT_FULL_CHECKSUM)
        return HL_WEIGHT_FAIL(failure, LIFECYCLE, UNSUPPORTED, false, "validation fs_verity");
    struct snapshot *snapshot = calloc(1, sizeof *snapshot);
    if (!snapshot)
        return HL_WEIGHT_FAIL(failure, LIFECYCLE, DOMAIN_UNAVAILABLE, true, "out of memory");
    const hl_status status = inspect(snapshot, store, key, validation, failure);
    if (status != HL_OK) {
        hl_weight_artifact_snapshot_free(&snapshot->public);
        return status;
    }
    *out = &snapshot->public;
    return HL_OK;
}

void hl_weight_artifact_snapshot_free(hl_weight_artifact_snapshot *public)
{
    if (!public)
        return;
    struct snapshot *snapshot = (struct snapshot *)public; /* its first member */
    hl_manifest_free(snapshot->manifest);
    free(snapshot->views);
    free(snapshot);
}
