/* core/weights/store owns the domain on disk: opening it, finding and validating artifacts, leases, building
 * and publishing, denial, quarantine, removal, capacity and inspection. It calls document, safetensors,
 * storage and lock; core/weights/runtime, core/weights/upload and the CLI call it through hostlane/weights.h.
 *
 *     <root>/domain.json domain-policy.json
 *           /locks/KEY.build.lock KEY.artifact.lock domain-init.lock domain-build.lock
 *           /artifacts/KEY/READY.json manifest.json *.safetensors
 *           /tmp/KEY.PID.UUID          builds
 *           /quarantine/KEY.REASON.UUID, and KEY.cleanup.UUID tombstones on their way out
 *           /deny/KEY.json
 *
 * Beside these the root holds nothing but, after a crash, .domain*.json.UUID.tmp, until the next who opens
 * the domain for changes sweeps it under the domain-init lock.
 *
 * An artifact's folder, and what its mode says:
 *
 *   state        where         mode    readers see
 *   building     tmp/          0700    nothing
 *   finished     tmp/          01755   nothing; the sticky bit says "in transition"
 *   arriving     artifacts/    01755   denied: a crash here leaves it so, the next build quarantines it
 *   published    artifacts/    0555    a hit: clearing the sticky bit is the commit
 *   condemned    artifacts/    0555    denied, by deny/KEY.json; or sticky, where no marker could be written
 *   leaving      artifacts/    01755   denied: a folder needs write permission to move to another parent
 *   quarantined  quarantine/   0555    nothing
 *   tombstone    quarantine/   any     nothing: *.cleanup.*, being removed
 *
 * The rules. The sticky bit of the folder itself needs no space, so that it works on a full file system.
 * Everything about an entry is done through its open descriptor or by name below an open parent, links never
 * followed. A folder is moved out of artifacts/ only under the exclusive artifact lock, which no lease
 * allows. */
#ifndef CORE_WEIGHTS_STORE_STORE_H
#define CORE_WEIGHTS_STORE_STORE_H

#include <stdatomic.h>
#include <sys/stat.h>

#include "core/weights/document/domain.h"
#include "core/weights/document/manifest.h"
#include "core/weights/lock/lock.h"
#include "core/weights/storage/storage.h"
#include "hostlane/weights.h"

/* --- failure.c --- */

/* Fills *failure (may be NULL) and yields the code's status: the one way to fail in this room. `retryable` is
 * given because one code may be either. */
#define HL_WEIGHT_FAIL(failure, stage, code, retryable, ...)                                                 \
    HL_WEIGHT_FAIL_ERRNO(failure, stage, code, retryable, 0, __VA_ARGS__)
#define HL_WEIGHT_FAIL_ERRNO(failure, stage, code, retryable, errno_value, ...)                              \
    ({                                                                                                       \
        hl_weight_failure_set((failure), HL_WEIGHT_STAGE_##stage, HL_WEIGHT_##code, (retryable),             \
                              (errno_value), __VA_ARGS__);                                                   \
        hl_weight_code_status(HL_WEIGHT_##code);                                                             \
    })
void hl_weight_failure_set(hl_weight_failure *failure, hl_weight_stage stage, hl_weight_code code,
                           bool retryable, int sys_errno, const char *format, ...)
    __attribute__((format(printf, 6, 7)));

/* The same with the text and errno of what a lower room reported. */
hl_status hl_weight_failure_from(hl_weight_failure *failure, hl_weight_stage stage, hl_weight_code code,
                                 bool retryable, const hl_error *err);

/* Sets details to a canonical JSON object given as text ("{}" when it is too long). */
void hl_weight_failure_details(hl_weight_failure *failure, const char *json);

/* Trouble of the system under a domain: ENOSPC and EDQUOT become ENOSPC (capacity, retryable), the rest
 * DOMAIN_UNAVAILABLE (retryable). */
hl_status hl_weight_failure_io(hl_weight_failure *failure, hl_weight_stage stage, const hl_error *err);

/* --- the domain: domain.c, settings.c --- */

struct hl_weight_store {
    atomic_uint references; /* the store's own and one a lease */
    struct hl_domain_document domain;
    struct hl_domain_policy policy;
    char *root_path;
    int root, locks, artifacts, tmp, quarantine,
        deny; /* open folders; -1 for one that a read-only domain lacks */
    dev_t device;
    int64_t timeout_ns;
    bool trust_permissions;
    bool read_only;
    bool aligned_layout;
    uint32_t hash_threads;
};

void hl_store_retain(hl_weight_store *store);
void hl_store_drop(hl_weight_store *store);
bool hl_store_key_is_valid(const char *key); /* 64 lower-case hexadecimal digits */

/* --- validation: validate.c, payloads.c, hashing.c --- */

/* An open artifact that passed: descriptors, manifest, READY. */
struct hl_artifact {
    int folder;
    struct stat entry; /* of the folder */
    hl_manifest *manifest;
    struct hl_ready ready;
    struct hl_artifact_file {
        int fd;
        struct stat st;
        uint64_t data_offset;
    } * files;              /* one for each of manifest->files */
    uint64_t *tensor_begin; /* for each of manifest->tensors: its first byte in its file */
};
void hl_artifact_close(struct hl_artifact *artifact); /* safe on a zeroed one with folder -1 */

/* What a validation found; `verdict` decides what follows. */
enum hl_verdict {
    HL_VERDICT_VALID,
    HL_VERDICT_ABSENT,
    HL_VERDICT_INVALID, /* it breaks a rule: to be denied */
    HL_VERDICT_DENIED,  /* a marker or the sticky bit was there already */
    HL_VERDICT_TROUBLE  /* EIO, EMFILE, …: says nothing about the artifact */
};

/* Validates artifacts/KEY under a shared artifact lock that the caller holds. Looks for marker and sticky bit
 * before and after. `identity` is what was asked for, or NULL (inspection: the manifest's own must then match
 * KEY). Whatever the verdict, `artifact->folder` and `artifact->entry` are those of the folder if it could be
 * opened. `failure` is filled unless VALID or ABSENT. Writes nothing. */
enum hl_verdict hl_artifact_validate(hl_weight_store *store, const char *key,
                                     const hl_weight_identity *identity, hl_weight_validation validation,
                                     struct hl_artifact *artifact, hl_weight_failure *failure);

/* SHA-256 of the parts of files, in parallel. Each job hashes whole file `fd` and compares, and at the same
 * time the tensors inside. `hash_threads` threads share the work across files and inside big ones. On the
 * first mismatch the rest is given up. HL_E_CHECKSUM names the file or tensor; HL_E_SYSTEM with errno. */
struct hl_hash_range {
    uint64_t begin, end;
    char sha256[HL_SHA256_HEX_BYTES]; /* expected, or filled */
    const char *name;                 /* for the error */
};
struct hl_hash_job {
    int fd;
    const char *name;
    uint64_t bytes;
    char sha256[HL_SHA256_HEX_BYTES]; /* of the whole file */
    struct hl_hash_range *ranges;     /* inside it, any order */
    size_t range_count;
};
/* compare: the sums are expected ones, and an empty one is not looked at; else all are filled. */
hl_status hl_hash_run(struct hl_hash_job *jobs, size_t count, uint32_t threads, bool compare, hl_error *err);

/* --- leases: lease.c, lookup.c --- */

/* Maps a valid artifact and moves it and the lock into a lease. On failure both are still the caller's. */
hl_status hl_lease_create(hl_weight_store *store, struct hl_artifact *artifact, struct hl_lock *lock,
                          hl_weight_origin origin, hl_weight_validation validation, hl_weight_lease **lease,
                          hl_weight_failure *failure);
const struct hl_manifest *hl_lease_manifest(const hl_weight_lease *lease);

/* What a lookup ended with, for those who must decide and not only report. */
enum hl_lookup_result {
    HL_LOOKUP_HIT,
    HL_LOOKUP_MISS,
    HL_LOOKUP_INVALID,
    HL_LOOKUP_TIMEOUT,
    HL_LOOKUP_FAILED
};
enum hl_lookup_result hl_store_lookup_as(hl_weight_store *store, const hl_weight_identity *identity,
                                         hl_weight_validation validation, hl_weight_origin origin,
                                         hl_weight_lease **lease, hl_weight_failure *failure);
/* get_or_build with the origin's finer outcome; `result` of the last lookup or build. */
hl_status hl_store_get_or_build_as(hl_weight_store *store, const hl_weight_identity *identity,
                                   hl_weight_validation validation, const hl_weight_producer *producer,
                                   hl_weight_origin *origin, enum hl_lookup_result *result,
                                   hl_weight_lease **lease, hl_weight_failure *failure);

/* --- denial and quarantine: deny.c, quarantine.c --- */

/* Whether deny/KEY.json exists. HL_E_SYSTEM when that cannot be known. */
hl_status hl_deny_present(hl_weight_store *store, const char *key, bool *present, hl_error *err);

/* Condemns the artifact that `artifact` holds open, under the shared lock in `lock`: writes the marker, or
 * where that fails sets the sticky bit, gives the shared lock up, and quarantines the folder if it can have
 * the exclusive lock at once and the folder is still that one. `failure` is the reason, and becomes a
 * retryable one with details.containment when the marker could not be written. The lock is released on
 * return. */
hl_status hl_store_condemn(hl_weight_store *store, const char *key, struct hl_artifact *artifact,
                           struct hl_lock *lock, hl_weight_failure *failure);

/* Moves artifacts/KEY to quarantine/KEY.REASON.UUID, under the exclusive artifact lock that the caller holds.
 */
hl_status hl_quarantine_artifact(hl_weight_store *store, const char *key, const char *reason, hl_error *err);
/* Makes quarantined folders of KEY immutable again that a crash left writable. */
hl_status hl_quarantine_reharden(hl_weight_store *store, const char *key, hl_error *err);
/* Removes tombstones, the deny marker and builds of KEY, in this order, under the build lock and the
 * exclusive artifact lock. */
hl_status hl_store_sweep_remains(hl_weight_store *store, const char *key, hl_error *err);

/* --- building: build.c, writer.c, payload.c, publish.c, capacity.c --- */

/* Whether `bytes` more fit the artifact's, the store's and the file system's limits, with `artifact_bytes`
 * planned for the artifact as a whole. */
hl_status hl_capacity_check(hl_weight_store *store, uint64_t artifact_bytes, uint64_t bytes,
                            hl_weight_failure *failure);

/* A finished build, ready to be published. */
struct hl_build {
    char name[192]; /* its folder in tmp/ */
    int folder;
    hl_manifest *manifest;
    struct hl_ready ready;
};
/* Publishes, under the build lock: takes the artifact lock without a deadline. When it returns HL_OK the
 * artifact is durable, or an equal one was there already and the build is gone. */
hl_status hl_store_publish(hl_weight_store *store, const char *key, struct hl_build *build,
                           hl_weight_failure *failure);

#endif
