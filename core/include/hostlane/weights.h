/* The host-weight store of Hostlane: immutable, runtime-ready model weights, kept once on a node and shared
 * by every process on it through the page cache. A worker states exactly which weights it needs (an
 * identity); it gets a lease on a validated artifact, or becomes the one that builds it, or is told why
 * neither is possible and whether it may load the weights another way.
 *
 * A store is a folder on a local file system (the domain). Artifacts in it are complete or absent: a build is
 * invisible until one rename publishes it, and READY.json is the last file written into it. The kernel's file
 * locks are the only state that processes share beside the files, so that a process may die anywhere.
 *
 * Ownership. What a function creates is closed with its partner; NULL is accepted by every close. Strings and
 * arrays that a function returns belong to the object they were asked of.
 *
 * Threads. A store, an identity and a lease may be used from any thread; a writer's files each from one
 * thread at a time.
 *
 * fork. A child may close what it inherited and must not use it otherwise; closing there never releases a
 * lock that its parent holds. Only the process that opened a lease can release it.
 *
 * Errors. Functions of the store fill an hl_weight_failure: stage, code, whether another way of loading may
 * be tried, and a text that names the file or field. Outputs are set only on success. */
#ifndef HOSTLANE_WEIGHTS_H
#define HOSTLANE_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hostlane/limits.h"
#include "hostlane/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hl_weight_identity hl_weight_identity; /* exactly which weights */
typedef struct hl_weight_store hl_weight_store;       /* an open domain */
typedef struct hl_weight_lease hl_weight_lease; /* a published artifact, mapped and locked against removal */
typedef struct hl_weight_writer hl_weight_writer;   /* where a producer puts tensors */
typedef struct hl_weight_payload hl_weight_payload; /* one file of a writer */
typedef struct hl_weight_runtime hl_weight_runtime; /* the policy of one loader */
typedef struct hl_weight_plan hl_weight_plan; /* a validated way to put a lease's tensors into a model */

#define HL_WEIGHT_NO_LIMIT UINT64_MAX

/* --- failures --- */

/* X(name, text in reports and deny markers) */
#define HL_WEIGHT_STAGE_LIST(X)                                                                              \
    X(CONFIGURATION, "configuration")                                                                        \
    X(DOMAIN, "domain")                                                                                      \
    X(LOOKUP, "lookup")                                                                                      \
    X(VALIDATION, "validation")                                                                              \
    X(REMOTE, "remote")                                                                                      \
    X(PRODUCTION, "production")                                                                              \
    X(CAPACITY, "capacity")                                                                                  \
    X(RESTORATION, "restoration")                                                                            \
    X(LIFECYCLE, "lifecycle")                                                                                \
    X(CANONICAL_LOADING, "canonical_loading")

/* X(name, text, status that functions return with it, what an operator can do). The codes marked reserved are
 * part of the shared schema; nothing in this library raises them. */
#define HL_WEIGHT_CODE_LIST(X)                                                                               \
    X(INVALID_CONFIG, "invalid_config", HL_E_INVALID, "correct the option that the text names")              \
    X(DOMAIN_UNAVAILABLE, "domain_unavailable", HL_E_SYSTEM,                                                 \
      "check that the store's folder exists, is owned by this user and not writable by others, and is "      \
      "readable")                                                                                            \
    X(STORAGE_CLASS_MISMATCH, "storage_class_mismatch", HL_E_INVALID,                                        \
      "choose the storage class of the file system that holds the store, or a folder on another one")        \
    X(DOMAIN_POLICY_MISMATCH, "domain_policy_mismatch", HL_E_INVALID,                                        \
      "open the store with the settings it was created with, which `hostlane weights where` shows")          \
    X(NUMA_PLACEMENT_INVALID, "numa_placement_invalid", HL_E_INVALID, "reserved")                            \
    X(COHORT_POLICY_MISMATCH, "cohort_policy_mismatch", HL_E_INVALID, "reserved")                            \
    X(UNSUPPORTED, "unsupported", HL_E_UNSUPPORTED, "leave the option out, or use a local file system")      \
    X(LOCAL_MISS, "local_miss", HL_E_MISS, "import or build the artifact, or allow a local build")           \
    X(REMOTE_MISS, "remote_miss", HL_E_MISS, "reserved")                                                     \
    X(REMOTE_UNAVAILABLE, "remote_unavailable", HL_E_SYSTEM, "reserved")                                     \
    X(REMOTE_AUTH_FAILED, "remote_auth_failed", HL_E_PERMISSION, "reserved")                                 \
    X(REMOTE_TIMEOUT, "remote_timeout", HL_E_TIMEOUT, "reserved")                                            \
    X(REMOTE_ARTIFACT_INVALID, "remote_artifact_invalid", HL_E_CORRUPT, "reserved")                          \
    X(ACTIVE_BUILD_TIMEOUT, "active_build_timeout", HL_E_TIMEOUT,                                            \
      "wait for the process that builds or changes the artifact; the details name it")                       \
    X(ACTIVE_LEASE, "active_lease", HL_E_BUSY,                                                               \
      "end the processes that use the artifact; the details name them")                                      \
    X(ARTIFACT_DENIED, "artifact_denied", HL_E_DENIED, "build or import the artifact again, or clean it")    \
    X(MANIFEST_INCOMPATIBLE, "manifest_incompatible", HL_E_CORRUPT,                                          \
      "another version wrote the artifact: build it again")                                                  \
    X(MANIFEST_CORRUPT, "manifest_corrupt", HL_E_CORRUPT, "build or import the artifact again")              \
    X(CHECKSUM_MISMATCH, "checksum_mismatch", HL_E_CHECKSUM,                                                 \
      "the stored bytes changed: check the disk or memory, and build the artifact again")                    \
    X(IDENTITY_COLLISION, "identity_collision", HL_E_DENIED,                                                 \
      "two builds of one identity differ: the producer is not deterministic or its fingerprint is wrong")    \
    X(PUBLICATION_FAILED, "publication_failed", HL_E_SYSTEM, "see the text; the build is in quarantine")     \
    X(PRODUCER_FAILED, "producer_failed", HL_E_SYSTEM, "see the producer's own error in the text")           \
    X(PRODUCER_UNSUPPORTED, "producer_unsupported", HL_E_UNSUPPORTED, "use a single-process producer")       \
    X(PRODUCER_UNAVAILABLE, "producer_unavailable", HL_E_NOT_FOUND,                                          \
      "register a producer that declares this identity, and allow local builds")                             \
    X(PRODUCTION_TIMEOUT, "production_timeout", HL_E_TIMEOUT, "reserved")                                    \
    X(ARTIFACT_TOO_LARGE, "artifact_too_large", HL_E_LIMIT, "raise max_artifact_bytes in a new domain")      \
    X(STORE_LIMIT_EXCEEDED, "store_limit_exceeded", HL_E_LIMIT,                                              \
      "clean artifacts or quarantine, or raise max_store_bytes in a new domain")                             \
    X(INSUFFICIENT_CAPACITY, "insufficient_capacity", HL_E_NOSPACE, "free space on the file system")         \
    X(ENOSPC, "enospc", HL_E_NOSPACE, "free space on the file system")                                       \
    X(QUARANTINE_FAILED, "quarantine_failed", HL_E_SYSTEM, "see the text, and try again")                    \
    X(RESTORER_UNAVAILABLE, "restorer_unavailable", HL_E_NOT_FOUND,                                          \
      "use a restorer of the artifact's restorer schema")                                                    \
    X(RESTORE_PREFLIGHT_FAILED, "restore_preflight_failed", HL_E_INVALID,                                    \
      "the model was not touched: load it another way, or correct the restorer")                             \
    X(RESTORE_COMMIT_FAILED, "restore_commit_failed", HL_E_STATE,                                            \
      "discard the model: it is partly filled; construct a fresh one")                                       \
    X(CANONICAL_SOURCE_FAILED, "canonical_source_failed", HL_E_SYSTEM, "reserved")

typedef enum hl_weight_stage {
#define HL_WEIGHT_STAGE_ENUM(name, text) HL_WEIGHT_STAGE_##name,
    HL_WEIGHT_STAGE_LIST(HL_WEIGHT_STAGE_ENUM)
#undef HL_WEIGHT_STAGE_ENUM
} hl_weight_stage;

typedef enum hl_weight_code {
#define HL_WEIGHT_CODE_ENUM(name, text, status, remedy) HL_WEIGHT_##name,
    HL_WEIGHT_CODE_LIST(HL_WEIGHT_CODE_ENUM)
#undef HL_WEIGHT_CODE_ENUM
} hl_weight_code;

HL_API const char *hl_weight_stage_name(hl_weight_stage stage); /* "lookup"; never NULL */
HL_API const char *hl_weight_code_name(hl_weight_code code);    /* "active_lease"; never NULL */
HL_API const char *hl_weight_code_remedy(hl_weight_code code);  /* what to do; never NULL */
HL_API hl_status hl_weight_code_status(hl_weight_code code);

/* Why a call on a store failed. `error` has the status, errno and text. `retryable` says that the failure is
 * of the moment: a runtime in preferred mode falls back on it. `details` is a canonical JSON object, "{}"
 * when there is nothing to add; cut to "{}" rather than in the middle. */
typedef struct hl_weight_failure {
    hl_error error;
    hl_weight_stage stage;
    hl_weight_code code;
    bool retryable;
    char details[512];
} hl_weight_failure;

/* --- identity --- */

/* Parses an identity: a JSON object with exactly the keys of schema 1 (hostlane-weights(7) lists them); key
 * order and white space are free, layout's and adaptation's defaults are not filled in. HL_E_INVALID names
 * the field: unknown or missing, of another type (nothing is coerced), empty, out of range. HL_E_CORRUPT: no
 * JSON, a key twice, a lone surrogate. HL_E_LIMIT, HL_E_NOMEM. */
HL_API hl_status hl_weight_identity_parse(const char *json, size_t bytes, hl_weight_identity **identity,
                                          hl_error *err);
HL_API void hl_weight_identity_free(hl_weight_identity *identity);
HL_API const char *hl_weight_identity_key(const hl_weight_identity *identity); /* 64 hexadecimal digits */
HL_API const char *hl_weight_identity_json(const hl_weight_identity *identity, size_t *bytes); /* canonical */

/* --- stores --- */

typedef enum hl_weight_scope { HL_WEIGHT_SCOPE_NODE, HL_WEIGHT_SCOPE_NUMA } hl_weight_scope;
typedef enum hl_weight_storage_class { HL_WEIGHT_DISK, HL_WEIGHT_TMPFS } hl_weight_storage_class;
typedef enum hl_weight_admission {
    HL_WEIGHT_ADMISSION_CONCURRENT, /* builds of different identities run at once, and may together exceed
                                       max_store_bytes */
    HL_WEIGHT_ADMISSION_SERIALIZED  /* one build at a time in the domain; needs max_store_bytes */
} hl_weight_admission;

typedef enum hl_weight_validation {
    HL_WEIGHT_MANIFEST_AND_METADATA, /* identity, publication, sizes, headers: no tensor byte is read */
    HL_WEIGHT_FULL_CHECKSUM,         /* and every byte is hashed */
    HL_WEIGHT_FS_VERITY              /* refused as UNSUPPORTED */
} hl_weight_validation;

/* Settings of a domain. The first to open a folder writes them; later they must be equal (policy fields are
 * authoritative once written: another request is refused with DOMAIN_POLICY_MISMATCH). */
typedef struct hl_weight_store_options {
    size_t size;           /* set by hl_weight_store_options_init() */
    const char *root;      /* absolute path; created (0700) when missing and its parent exists */
    hl_weight_scope scope; /* node */
    const char *domain_id; /* "node"; at most HL_NAME_BYTES - 1 bytes */
    hl_weight_storage_class storage_class; /* disk */
    uint64_t max_artifact_bytes;           /* HL_WEIGHT_NO_LIMIT */
    uint64_t max_store_bytes;        /* HL_WEIGHT_NO_LIMIT; counts ready, temporary and quarantined bytes */
    uint64_t min_free_bytes;         /* 0; what a build must leave free on the file system */
    hl_weight_admission admission;   /* concurrent */
    int64_t coordination_timeout_ns; /* 600 s; bounds each wait for a lock, never a build */
    bool trust_permissions;          /* true: files that another user owns or that are writable are refused */
    bool read_only; /* false; true: an existing domain for lookups, inspection and leases only, also on a
                       read-only mount; nothing is created or written, not even a deny marker */
    bool adopt;     /* false; true: take settings from the domain's own documents instead of comparing; the
                       domain must exist. For tools */
    uint32_t hash_threads;   /* 0: one a core, at most HL_WEIGHT_HASH_THREADS */
    uint32_t aligned_layout; /* 0; 1: payloads are written wide types first with data at a multiple of 4096,
                                not byte for byte as vLLM-Omni writes them; same content digest */
} hl_weight_store_options;
HL_API void hl_weight_store_options_init(hl_weight_store_options *options);

/* Opens a domain, creating it unless read_only or adopt. INVALID_CONFIG, UNSUPPORTED (remote or unknown file
 * system), STORAGE_CLASS_MISMATCH, DOMAIN_POLICY_MISMATCH, DOMAIN_UNAVAILABLE. */
HL_API hl_status hl_weight_store_open(const hl_weight_store_options *options, hl_weight_store **store,
                                      hl_weight_failure *failure);
HL_API void hl_weight_store_close(hl_weight_store *store); /* leases stay valid */

/* The artifact of an identity. HL_E_MISS without a failure's code meaning anything but LOCAL_MISS when there
 * is none. An artifact that breaks a rule is denied (a marker in the store) before the call returns; a
 * passing trouble of the system (EIO, too many files) denies nothing. */
HL_API hl_status hl_weight_store_lookup(hl_weight_store *store, const hl_weight_identity *identity,
                                        hl_weight_validation validation, hl_weight_lease **lease,
                                        hl_weight_failure *failure);

/* --- production --- */

typedef enum hl_weight_tensor_kind { HL_WEIGHT_PARAMETER, HL_WEIGHT_BUFFER } hl_weight_tensor_kind;

/* A tensor that a producer is going to write. Contiguous, row-major, little-endian. */
typedef struct hl_weight_tensor_spec {
    const char *name;
    hl_weight_tensor_kind kind;
    const char *role;  /* what it is to the model: "weight", "scale"; not empty */
    const char *dtype; /* the framework's name: "torch.bfloat16" */
    uint32_t rank;     /* 0: a scalar */
    const uint64_t *shape;
} hl_weight_tensor_spec;

/* Opens one payload file and reserves its space. `file_name` is one safe name that ends in ".safetensors"; a
 * tensor's name is unique in the artifact. Specs are copied. Several files may be open at once. The error's
 * status is HL_E_INVALID for a wrong declaration, HL_E_LIMIT or HL_E_NOSPACE for capacity. */
HL_API hl_status hl_weight_writer_open(hl_weight_writer *writer, const char *file_name,
                                       const hl_weight_tensor_spec *tensors, size_t count,
                                       hl_weight_payload **payload, hl_error *err);

/* Writes bytes of tensor `index` (as declared) at `offset` inside it. Every byte of every tensor is written
 * exactly once, in any order; writing a tensor from its start to its end hashes it on the way. HL_E_RANGE,
 * HL_E_OVERLAP, HL_E_NOSPACE, HL_E_SYSTEM, HL_E_STATE (closed). */
HL_API hl_status hl_weight_payload_write(hl_weight_payload *payload, size_t index, uint64_t offset,
                                         const void *bytes, size_t size, hl_error *err);

/* Ends the file: HL_E_RANGE when a byte was not written. The payload is gone on success and failure. */
HL_API hl_status hl_weight_payload_close(hl_weight_payload *payload, hl_error *err);

typedef enum hl_weight_producer_scope {
    HL_WEIGHT_SINGLE_PROCESS,
    HL_WEIGHT_GROUP_COHORT,   /* refused: PRODUCER_UNSUPPORTED */
    HL_WEIGHT_ARTIFACT_BUNDLE /* refused: PRODUCER_UNSUPPORTED */
} hl_weight_producer_scope;

typedef enum hl_weight_producer_phase {
    HL_WEIGHT_PRE_LOAD_SAFE,
    HL_WEIGHT_POST_LOAD_ONLY /* a runtime does not call it before the model is loaded */
} hl_weight_producer_phase;

/* Builds one artifact. produce() runs in the process that holds the build lock, writes through `writer` only,
 * closes its payloads, and returns HL_OK; it cannot publish. It is not interrupted: supervise a producer that
 * can hang from outside, by ending its process. Nothing it wrote survives its failure.
 *
 * The writer is the store's. Once produce() has returned it refuses every call (HL_E_STATE), and payloads
 * that are still open fail the build; once hl_weight_store_get_or_build() has returned, writer and payloads
 * are freed, and no call on them is allowed. */
typedef struct hl_weight_producer {
    size_t size; /* sizeof(hl_weight_producer) */
    hl_weight_producer_scope scope;
    hl_weight_producer_phase phase;
    const char *const *output_keys; /* the artifact keys it declares: exactly the identity's */
    size_t output_count;
    const char *manifest_schema; /* NULL: the identity's; another: PRODUCER_FAILED */
    const char *restorer_schema; /* NULL: the identity's */
    const char *format_metadata; /* any JSON for the manifest; NULL: {} */
    hl_status (*produce)(void *context, hl_weight_writer *writer, hl_error *err);
    void *context;
} hl_weight_producer;

typedef enum hl_weight_origin {
    HL_WEIGHT_HIT,   /* it was there */
    HL_WEIGHT_BUILT, /* this call built it */
    HL_WEIGHT_JOINED /* another process built it while this call waited */
} hl_weight_origin;

/* Looks the artifact up and, when there is none or an invalid one, builds it: exactly one builder a node for
 * one identity, the others wait and join. A waiter's timeout (ACTIVE_BUILD_TIMEOUT) cancels nobody. */
HL_API hl_status hl_weight_store_get_or_build(hl_weight_store *store, const hl_weight_identity *identity,
                                              hl_weight_validation validation,
                                              const hl_weight_producer *producer, hl_weight_origin *origin,
                                              hl_weight_lease **lease, hl_weight_failure *failure);

/* --- leases --- */

typedef struct hl_weight_tensor_view {
    const char *name;
    hl_weight_tensor_kind kind;
    const char *role;
    const char *dtype;
    const char *file_name;
    uint32_t rank;
    const uint64_t *shape;
    const uint64_t *stride; /* in elements */
    const void *data; /* read-only memory of the process, backed by the page cache; NULL when bytes is 0 */
    uint64_t bytes;
    uint32_t region;        /* index of the mapping that holds it */
    uint64_t region_offset; /* of data in that mapping */
} hl_weight_tensor_view;

/* One mapping a file: what a transport may register (in chunks) or read. */
typedef struct hl_weight_region {
    const char *file_name;
    const void *address;
    uint64_t length; /* the file's size */
    int fd;          /* the validated file, open for reading; belongs to the lease */
    bool tmpfs;
} hl_weight_region;

typedef struct hl_weight_provenance {
    const char *artifact_key;
    const char *content_sha256;
    const char *domain_uuid;
    const char *publication_id;
    const char *producer_id;
    const char *backing_fingerprint; /* changes when other files back the same artifact */
    hl_weight_origin origin;
    hl_weight_validation validation;
} hl_weight_provenance;

HL_API size_t hl_weight_lease_tensor_count(const hl_weight_lease *lease);
HL_API const hl_weight_tensor_view *hl_weight_lease_tensor_at(const hl_weight_lease *lease, size_t index);
HL_API const hl_weight_tensor_view *hl_weight_lease_tensor(const hl_weight_lease *lease, const char *name);
HL_API size_t hl_weight_lease_region_count(const hl_weight_lease *lease);
HL_API const hl_weight_region *hl_weight_lease_region_at(const hl_weight_lease *lease, size_t index);
HL_API const hl_weight_provenance *hl_weight_lease_provenance(const hl_weight_lease *lease);
HL_API const char *hl_weight_lease_identity_json(const hl_weight_lease *lease, size_t *bytes);
HL_API const char *hl_weight_lease_format_metadata(const hl_weight_lease *lease);

/* Another hold on the same lease: it lives until every holder has released it. */
HL_API hl_weight_lease *hl_weight_lease_retain(hl_weight_lease *lease);

/* Starts reading the payloads into the page cache without waiting for it. HL_E_SYSTEM. */
HL_API hl_status hl_weight_lease_prefetch(const hl_weight_lease *lease, hl_error *err);

/* Gives one hold up; the last unmaps everything and lets go of the artifact. Views and regions die with it: a
 * transport drains first. The artifact's bytes are stable until here, whatever is denied, quarantined,
 * cleaned or published meanwhile. */
HL_API void hl_weight_lease_release(hl_weight_lease *lease);

/* --- lifecycle --- */

/* Keys are 64 lower-case hexadecimal digits; anything else is INVALID_CONFIG. A store opened read_only
 * changes nothing: UNSUPPORTED. */

/* Marks the artifact as not to be used; later lookups find ARTIFACT_DENIED, the next build quarantines it.
 * Live leases go on. LOCAL_MISS when there is no artifact; denying a denied one changes nothing. `reason` is
 * text. */
HL_API hl_status hl_weight_store_deny(hl_weight_store *store, const char *key, const char *reason,
                                      hl_weight_failure *failure);

/* Removes the artifact, its deny marker and the remains of its builds. Never waits: ACTIVE_BUILD_TIMEOUT or
 * ACTIVE_LEASE with the holders' process ids in the details. LOCAL_MISS when there is nothing. */
HL_API hl_status hl_weight_store_clean(hl_weight_store *store, const char *key, hl_weight_failure *failure);

/* Removes one quarantined artifact by the name that an inspection shows. The same failures. */
HL_API hl_status hl_weight_store_clean_quarantined(hl_weight_store *store, const char *storage_name,
                                                   hl_weight_failure *failure);

/* --- inspection: reads, and changes nothing --- */

typedef enum hl_weight_inventory_state {
    HL_WEIGHT_STATE_READY,
    HL_WEIGHT_STATE_DENIED,
    HL_WEIGHT_STATE_QUARANTINED,
    HL_WEIGHT_STATE_TEMPORARY
} hl_weight_inventory_state;
HL_API const char *hl_weight_inventory_state_name(hl_weight_inventory_state state);

typedef struct hl_weight_inventory_entry {
    char artifact_key[65];
    hl_weight_inventory_state state;
    const char *storage_name; /* the folder's name */
    uint64_t bytes;           /* allocated */
    const char *reason;       /* of a denied or quarantined one, else "" */
} hl_weight_inventory_entry;

typedef struct hl_weight_domain_snapshot {
    const char *root;
    char domain_uuid[33];
    hl_weight_scope scope;
    const char *domain_id;
    hl_weight_storage_class storage_class; /* TMPFS: every byte below is memory, and may be swapped */
    const char *filesystem_type;
    uint64_t policy_version, max_artifact_bytes, max_store_bytes, min_free_bytes;
    hl_weight_admission admission;
    uint64_t store_bytes;                       /* allocated by everything in the domain */
    uint64_t filesystem_free_bytes;             /* for an unprivileged user */
    const hl_weight_inventory_entry *inventory; /* sorted by (key, state, name) */
    size_t inventory_count;
} hl_weight_domain_snapshot;

HL_API hl_status hl_weight_store_inspect_domain(hl_weight_store *store, hl_weight_domain_snapshot **snapshot,
                                                hl_weight_failure *failure);
HL_API void hl_weight_domain_snapshot_free(hl_weight_domain_snapshot *snapshot);

typedef struct hl_weight_artifact_snapshot {
    char artifact_key[65];
    bool present;
    bool valid;                /* passed the validation asked for, and is not denied */
    hl_weight_failure failure; /* why not, when present and not valid */
    uint64_t bytes;            /* of its files */
    const char *manifest_json; /* canonical, or NULL when it could not be read */
    char publication_id[33];   /* empty likewise */
    char backing_fingerprint[65];
    bool build_lock_active; /* at the moment of asking; locks are no registry of owners */
    bool artifact_lock_active;
    const hl_weight_tensor_view *tensors; /* data is NULL: an inspection maps nothing */
    size_t tensor_count;
} hl_weight_artifact_snapshot;

/* Validates without denying. HL_OK also when the artifact is absent or not valid. */
HL_API hl_status hl_weight_store_inspect_artifact(hl_weight_store *store, const char *key,
                                                  hl_weight_validation validation,
                                                  hl_weight_artifact_snapshot **snapshot,
                                                  hl_weight_failure *failure);
HL_API void hl_weight_artifact_snapshot_free(hl_weight_artifact_snapshot *snapshot);

/* --- the runtime: the one place where failures become actions --- */

typedef enum hl_weight_mode {
    HL_WEIGHT_MODE_DISABLED,  /* touches nothing: no folder, no identity */
    HL_WEIGHT_MODE_PREFERRED, /* a miss, an invalid artifact or a retryable failure may be loaded another way
                               */
    HL_WEIGHT_MODE_REQUIRED   /* no lease: failure */
} hl_weight_mode;

typedef enum hl_weight_remote {
    HL_WEIGHT_REMOTE_DISABLED,
    HL_WEIGHT_REMOTE_TRY,
    HL_WEIGHT_REMOTE_REQUIRE
} hl_weight_remote;

typedef enum hl_weight_attempt_result {
    HL_WEIGHT_ATTEMPT_HIT,
    HL_WEIGHT_ATTEMPT_MISS,
    HL_WEIGHT_ATTEMPT_SUCCESS,
    HL_WEIGHT_ATTEMPT_TIMEOUT,
    HL_WEIGHT_ATTEMPT_ERROR,
    HL_WEIGHT_ATTEMPT_SKIPPED
} hl_weight_attempt_result;

typedef enum hl_weight_action {
    HL_WEIGHT_ACTION_RETURN_LEASE,
    HL_WEIGHT_ACTION_TRY_REMOTE,
    HL_WEIGHT_ACTION_TRY_PRODUCER,
    HL_WEIGHT_ACTION_QUARANTINE_THEN_PRODUCE,
    HL_WEIGHT_ACTION_CANONICAL_FALLBACK,
    HL_WEIGHT_ACTION_FAIL_STARTUP,
    HL_WEIGHT_ACTION_SKIP
} hl_weight_action;

typedef enum hl_weight_outcome {
    HL_WEIGHT_OUTCOME_LOCAL_HIT,          /* with a lease */
    HL_WEIGHT_OUTCOME_REMOTE_IMPORT,      /* reserved */
    HL_WEIGHT_OUTCOME_LOCAL_PRODUCTION,   /* with a lease */
    HL_WEIGHT_OUTCOME_CANONICAL_DIRECT,   /* disabled: load the model as if there were no store */
    HL_WEIGHT_OUTCOME_CANONICAL_FALLBACK, /* load the model without the store */
    HL_WEIGHT_OUTCOME_FAILED
} hl_weight_outcome;

HL_API const char *hl_weight_attempt_result_name(hl_weight_attempt_result result);
HL_API const char *hl_weight_action_name(hl_weight_action action);
HL_API const char *hl_weight_outcome_name(hl_weight_outcome outcome);

typedef struct hl_weight_attempt {
    hl_weight_stage stage;
    hl_weight_attempt_result result;
    hl_weight_action action; /* what followed from it */
    int64_t elapsed_ns;
    bool failed;
    hl_weight_failure failure;
} hl_weight_attempt;

typedef struct hl_weight_report {
    char resolution_id[33]; /* a random UUID */
    hl_weight_outcome outcome;
    hl_weight_attempt attempts[4];
    uint32_t attempt_count;
    int64_t elapsed_ns;
} hl_weight_report;

typedef struct hl_weight_runtime_options {
    size_t size;         /* set by hl_weight_runtime_options_init() */
    hl_weight_mode mode; /* disabled */
    hl_weight_store_options store;
    hl_weight_validation validation; /* manifest and metadata */
    hl_weight_remote remote;      /* disabled; anything else: UNSUPPORTED when resolving, no producer runs */
    bool allow_local_build;       /* true */
    bool allow_post_load_publish; /* false; true: INVALID_CONFIG until such an entry point exists */
    bool numa_prefault;           /* false; true: UNSUPPORTED */
    bool verify_numa_residency;   /* false; true: UNSUPPORTED */
    bool background_scrub;        /* false; true: UNSUPPORTED */
    void (*observe)(void *context,
                    const hl_weight_report *report); /* exactly once a resolution; may be NULL */
    void *observe_context;
} hl_weight_runtime_options;
HL_API void hl_weight_runtime_options_init(hl_weight_runtime_options *options);

/* Checks the options and keeps a copy; the store is opened by the first resolution that needs it. In disabled
 * mode nothing but the mode is looked at. */
HL_API hl_status hl_weight_runtime_create(const hl_weight_runtime_options *options,
                                          hl_weight_runtime **runtime, hl_weight_failure *failure);
HL_API void hl_weight_runtime_free(hl_weight_runtime *runtime);

/* Local artifact, then (refused) remote, then a producer, then the caller's own loader if the mode allows.
 * HL_OK with a lease, or HL_OK with *lease NULL when the report's outcome is canonical (then *failure, if
 * given, says why for a fallback). `identity` may be NULL in disabled mode only; `producers` may be empty;
 * the first that is safe before loading and declares the identity runs. `report` may be NULL; it is filled on
 * failure as well. */
HL_API hl_status hl_weight_runtime_resolve(hl_weight_runtime *runtime, const hl_weight_identity *identity,
                                           const hl_weight_producer *producers, size_t producer_count,
                                           hl_weight_lease **lease, hl_weight_report *report,
                                           hl_weight_failure *failure);

/* --- restoring a model from a lease --- */

/* How a model integration takes tensors over. plan() checks everything and changes neither model nor lease;
 * commit() alone changes the model; discard() frees what plan() made, committed or not. */
typedef struct hl_weight_restorer {
    size_t size;                 /* sizeof(hl_weight_restorer) */
    const char *restorer_schema; /* must equal the artifact's, else RESTORER_UNAVAILABLE */
    hl_status (*plan)(void *context, const hl_weight_lease *lease, void **planned, hl_error *err);
    hl_status (*commit)(void *context, void *planned, hl_error *err);
    void (*discard)(void *context, void *planned); /* may be NULL */
    void *context;
} hl_weight_restorer;

/* RESTORER_UNAVAILABLE, or RESTORE_PREFLIGHT_FAILED (retryable: the model is untouched). The lease outlives
 * the plan. */
HL_API hl_status hl_weight_restore_plan(const hl_weight_lease *lease, const hl_weight_restorer *restorer,
                                        hl_weight_plan **plan, hl_weight_failure *failure);

/* Once: a second call is refused with HL_E_STATE (INVALID_CONFIG) and calls nothing. RESTORE_COMMIT_FAILED
 * means that the model is partly filled and must be discarded. */
HL_API hl_status hl_weight_restore_commit(hl_weight_plan *plan, hl_weight_failure *failure);
HL_API void hl_weight_restore_close(hl_weight_plan *plan);

#ifdef __cplusplus
}
#endif

#endif
