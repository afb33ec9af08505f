/* Whether an artifact may be used. The order is part of the contract: what is found first is what is
 * reported, and a marker or the sticky bit is looked for before anything is believed and again at the end, so
 * that a lookup which began before another one condemned the artifact does not return it.
 *
 * Two kinds of failure are kept apart throughout. An artifact that breaks a rule is INVALID and will be
 * denied. A system that cannot answer (EIO, no descriptors, no memory) says nothing about the artifact. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/weights/store/artifact.h"
#include "faults/hook.h"

#define STAGE "weights.validation"

static const char ready_name[] = "READY.json", manifest_name[] = "manifest.json";

void hl_artifact_close(struct hl_artifact *artifact)
{
    if (artifact->files)
        for (size_t i = 0; i < artifact->manifest->file_count; i++)
            if (artifact->files[i].fd >= 0)
                close(artifact->files[i].fd);
    free(artifact->files);
    free(artifact->tensor_begin);
    hl_manifest_free(artifact->manifest);
    if (artifact->folder >= 0)
        close(artifact->folder);
    *artifact = (struct hl_artifact){.folder = -1};
}

static enum hl_verdict trouble(hl_weight_failure *failure, const hl_error *err)
{
    hl_weight_failure_from(failure, HL_WEIGHT_STAGE_VALIDATION, HL_WEIGHT_DOMAIN_UNAVAILABLE, true, err);
    return HL_VERDICT_TROUBLE;
}

static enum hl_verdict invalid(hl_weight_failure *failure, hl_weight_code code, const hl_error *err)
{
    hl_weight_failure_from(failure, HL_WEIGHT_STAGE_VALIDATION, code, false, err);
    return HL_VERDICT_INVALID;
}

/* What a lower room's error says about the artifact. */
static enum hl_verdict judge(hl_weight_failure *failure, const hl_error *err)
{
    switch (err->status) {
    case HL_E_NOMEM:
        return trouble(failure, err);
    case HL_E_SYSTEM:
        return hl_storage_is_structural(err->sys_errno) ? invalid(failure, HL_WEIGHT_MANIFEST_CORRUPT, err)
                                                        : trouble(failure, err);
    case HL_E_CHECKSUM:
        return invalid(failure, HL_WEIGHT_CHECKSUM_MISMATCH, err);
    case HL_E_UNSUPPORTED:
        return invalid(failure, HL_WEIGHT_MANIFEST_INCOMPATIBLE, err);
    default:
        return invalid(failure, HL_WEIGHT_MANIFEST_CORRUPT, err);
    }
}

#define BROKEN(failure, code, ...)                                                                           \
    ({                                                                                                       \
        hl_weight_failure_set((failure), HL_WEIGHT_STAGE_VALIDATION, HL_WEIGHT_##code, false, 0,             \
                              __VA_ARGS__);                                                                  \
        HL_VERDICT_INVALID;                                                                                  \
    })

/* --- denied or not --- */

static enum hl_verdict check_marker(hl_weight_store *store, const char *key, hl_weight_failure *failure)
{
    bool present;
    hl_error err;
    if (hl_deny_present(store, key, &present, &err) != HL_OK)
        return trouble(failure, &err);
    if (!present)
        return HL_VERDICT_VALID;
    hl_weight_failure_set(failure, HL_WEIGHT_STAGE_VALIDATION, HL_WEIGHT_ARTIFACT_DENIED, false, 0,
                          "deny/%.64s.json denies the artifact", key);
    return HL_VERDICT_DENIED;
}

/* Looks at the open folder, whatever its name leads to by now. */
static enum hl_verdict check_sticky(struct hl_artifact *artifact, hl_weight_failure *failure)
{
    hl_error err;
    if (fstat(artifact->folder, &artifact->entry) != 0) {
        hl_error_set(&err, HL_E_SYSTEM, STAGE, errno, 0, "cannot look at the artifact's folder");
        return trouble(failure, &err);
    }
    if (!(artifact->entry.st_mode & S_ISVTX))
        return HL_VERDICT_VALID;
    hl_weight_failure_set(
        failure, HL_WEIGHT_STAGE_VALIDATION, HL_WEIGHT_ARTIFACT_DENIED, false, 0,
        "the artifact's folder is marked invalid (sticky): condemned, or its publication did not finish");
    return HL_VERDICT_DENIED;
}

/* --- the folder --- */

static enum hl_verdict find_entry(hl_weight_store *store, const char *key, hl_weight_failure *failure)
{
    struct stat st;
    hl_error err;
    if (store->artifacts < 0)
        return HL_VERDICT_ABSENT;
    if (HL_FAULT_STEP(weights_entry_find, fstatat(store->artifacts, key, &st, AT_SYMLINK_NOFOLLOW)) == 0)
        return HL_VERDICT_VALID;
    if (errno == ENOENT)
        return HL_VERDICT_ABSENT;
    hl_error_set(&err, HL_E_SYSTEM, STAGE, errno, 0, "cannot look at artifacts/%.64s", key);
    return trouble(failure, &err);
}

static enum hl_verdict open_entry(hl_weight_store *store, const char *key, struct hl_artifact *artifact,
                                  hl_weight_failure *failure)
{
    hl_error err;
    int fd = -1;
    if (HL_FAULT_STEP(weights_entry_open, fd = openat(store->artifacts, key,
                                                      O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) < 0) {
        hl_error_set(&err, HL_E_SYSTEM, STAGE, errno, 0, "cannot open artifacts/%.64s", key);
        if (fd >= 0)
            close(fd);
        return judge(failure, &err);
    }
    artifact->folder = fd;
    const enum hl_verdict verdict = check_sticky(artifact, failure);
    if (verdict != HL_VERDICT_VALID || !store->trust_permissions)
        return verdict;
    if (hl_storage_check_folder(&artifact->entry, "the artifact's folder", &err) != HL_OK)
        return judge(failure, &err);
    if (artifact->entry.st_mode & S_IWUSR)
        return BROKEN(failure, MANIFEST_CORRUPT, "the artifact's folder is writable (mode %04o)",
                      (unsigned)(artifact->entry.st_mode & 07777));
    return HL_VERDICT_VALID;
}

/* --- documents --- */

static hl_status read_ready(const hl_weight_store *store, struct hl_artifact *artifact, hl_error *err)
{
    char *text = NULL;
    size_t bytes = 0;
    hl_status status = hl_storage_read_document(artifact->folder, ready_name, HL_WEIGHT_DOCUMENT_BYTES,
                                                store->trust_permissions, &text, &bytes, err);
    if (status == HL_OK)
        status = hl_ready_parse(text, bytes, &artifact->ready, err);
    free(text);
    return status;
}

static hl_status read_manifest(const hl_weight_store *store, struct hl_artifact *artifact, hl_error *err)
{
    char *text = NULL;
    size_t bytes = 0;
    hl_status status = hl_storage_read_document(artifact->folder, manifest_name, HL_WEIGHT_DOCUMENT_BYTES,
                                                store->trust_permissions, &text, &bytes, err);
    return status == HL_OK ? hl_manifest_take(text, bytes, &artifact->manifest, err) : status;
}

static ptrdiff_t find_file(const hl_manifest *manifest, const char *name)
{
    size_t low = 0, high = manifest->file_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const int order = strcmp(name, manifest->files[middle].file_name);
        if (order == 0)
            return (ptrdiff_t)middle;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return -1;
}

/* The folder holds READY, the manifest and the payloads, and nothing else. */
static enum hl_verdict check_entries(const struct hl_artifact *artifact, hl_weight_failure *failure)
{
    const hl_manifest *manifest = artifact->manifest;
    hl_error err;
    const int fd = openat(artifact->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = fd >= 0 ? fdopendir(fd) : NULL;
    if (!entries) {
        hl_error_set(&err, HL_E_SYSTEM, STAGE, errno, 0, "cannot list the artifact's folder");
        if (fd >= 0)
            close(fd);
        return trouble(failure, &err);
    }
    enum hl_verdict verdict = HL_VERDICT_VALID;
    size_t found = 0;
    const struct dirent *entry;
    while (verdict == HL_VERDICT_VALID && (errno = 0, entry = readdir(entries))) {
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strcmp(name, ready_name) == 0 ||
            strcmp(name, manifest_name) == 0)
            continue;
        if (find_file(manifest, name) < 0)
            verdict =
                BROKEN(failure, MANIFEST_CORRUPT, "the artifact holds %.128s, which is not declared", name);
        found++;
    }
    if (verdict == HL_VERDICT_VALID && errno != 0) {
        hl_error_set(&err, HL_E_SYSTEM, STAGE, errno, 0, "cannot list the artifact's folder");
        verdict = trouble(failure, &err);
    }
    closedir(entries);
    if (verdict == HL_VERDICT_VALID && found != manifest->file_count)
        verdict = BROKEN(failure, MANIFEST_CORRUPT, "the artifact holds %zu payload files, %zu are declared",
                         found, manifest->file_count);
    return verdict;
}

/* READY binds the publication to this manifest and content. */
static enum hl_verdict check_digests(const struct hl_artifact *artifact, hl_weight_failure *failure)
{
    const hl_manifest *manifest = artifact->manifest;
    if (strcmp(artifact->ready.manifest_sha256, manifest->canonical_sha256) != 0)
        return BROKEN(failure, CHECKSUM_MISMATCH, "manifest.json has the SHA-256 %s, READY.json says %s",
                      manifest->canonical_sha256, artifact->ready.manifest_sha256);
    if (strcmp(artifact->ready.content_sha256, manifest->content_sha256) != 0)
        return BROKEN(failure, CHECKSUM_MISMATCH, "the content has the SHA-256 %s, READY.json says %s",
                      manifest->content_sha256, artifact->ready.content_sha256);
    return HL_VERDICT_VALID;
}

static enum hl_verdict check_identity(const hl_manifest *manifest, const char *key,
                                      const hl_weight_identity *asked, hl_weight_failure *failure)
{
    const hl_weight_identity *own = manifest->identity;
    if (strcmp(own->key, key) != 0)
        return BROKEN(failure, MANIFEST_INCOMPATIBLE, "the manifest is of the artifact %s", own->key);
    if (asked && (asked->canonical_bytes != own->canonical_bytes ||
                  memcmp(asked->canonical, own->canonical, own->canonical_bytes) != 0))
        return BROKEN(failure, MANIFEST_INCOMPATIBLE, "the manifest has another identity");
    if (strcmp(manifest->producer_schema, own->manifest_schema) != 0)
        return BROKEN(failure, MANIFEST_INCOMPATIBLE, "producer_schema is %.64s, the identity asks for %.64s",
                      manifest->producer_schema, own->manifest_schema);
    if (strcmp(manifest->restorer_schema, own->restorer_schema) != 0)
        return BROKEN(failure, MANIFEST_INCOMPATIBLE, "restorer_schema is %.64s, the identity asks for %.64s",
                      manifest->restorer_schema, own->restorer_schema);
    return HL_VERDICT_VALID;
}

static enum hl_verdict check_documents(hl_weight_store *store, const char *key,
                                       const hl_weight_identity *identity, struct hl_artifact *artifact,
                                       hl_weight_failure *failure)
{
    hl_error err;
    if (read_ready(store, artifact, &err) != HL_OK || read_manifest(store, artifact, &err) != HL_OK)
        return judge(failure, &err);
    enum hl_verdict verdict = check_entries(artifact, failure);
    if (verdict == HL_VERDICT_VALID)
        verdict = check_digests(artifact, failure);
    if (verdict == HL_VERDICT_VALID)
        verdict = check_identity(artifact->manifest, key, identity, failure);
    return verdict;
}

/* --- payloads --- */

static enum hl_verdict check_payloads(hl_weight_store *store, hl_weight_validation validation,
                                      struct hl_artifact *artifact, hl_weight_failure *failure)
{
    hl_error err;
    hl_status status = hl_artifact_open_payloads(artifact, store->trust_permissions, &err);
    if (status == HL_OK && validation == HL_WEIGHT_FULL_CHECKSUM)
        status = hl_artifact_check_sums(artifact, store->hash_threads, HL_SUMS_SPLIT_BYTES, &err);
    if (status == HL_OK)
        status = hl_artifact_check_headers(artifact, &err);
    return status == HL_OK ? HL_VERDICT_VALID : judge(failure, &err);
}

enum hl_verdict hl_artifact_validate(hl_weight_store *store, const char *key,
                                     const hl_weight_identity *identity, hl_weight_validation validation,
                                     struct hl_artifact *artifact, hl_weight_failure *failure)
{
    *artifact = (struct hl_artifact){.folder = -1};
    if (validation == HL_WEIGHT_FS_VERITY) {
        hl_weight_failure_set(failure, HL_WEIGHT_STAGE_VALIDATION, HL_WEIGHT_UNSUPPORTED, false, 0,
                              "fs-verity is no validation that this store offers");
        return HL_VERDICT_TROUBLE;
    }
    enum hl_verdict verdict = find_entry(store, key, failure);
    if (verdict == HL_VERDICT_VALID)
        verdict = check_marker(store, key, failure);
    if (verdict == HL_VERDICT_VALID)
        verdict = open_entry(store, key, artifact, failure);
    if (verdict == HL_VERDICT_VALID)
        verdict = check_documents(store, key, identity, artifact, failure);
    if (verdict == HL_VERDICT_VALID)
        verdict = check_payloads(store, validation, artifact, failure);
    if (verdict == HL_VERDICT_VALID)
        verdict = check_marker(store, key, failure);
    if (verdict == HL_VERDICT_VALID)
        verdict = check_sticky(artifact, failure);
    return verdict;
}
