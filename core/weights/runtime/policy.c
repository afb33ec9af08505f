#include "core/weights/runtime/runtime.h"

#include <assert.h>
#include <string.h>

/* One row a code, in the order of the list. A code added to the list and not here is UNDECIDED, which a test
 * refuses. */
static const enum hl_policy_fallback fallback_of_code[] = {
    /* wrong call, wrong set-up: another way of loading would hide it */
    [HL_WEIGHT_INVALID_CONFIG] = HL_POLICY_NEVER,
    [HL_WEIGHT_STORAGE_CLASS_MISMATCH] = HL_POLICY_NEVER,
    [HL_WEIGHT_DOMAIN_POLICY_MISMATCH] = HL_POLICY_NEVER,
    [HL_WEIGHT_NUMA_PLACEMENT_INVALID] = HL_POLICY_NEVER,
    [HL_WEIGHT_COHORT_POLICY_MISMATCH] = HL_POLICY_NEVER,
    [HL_WEIGHT_UNSUPPORTED] = HL_POLICY_NEVER,

    /* the folder and the locks: trouble of the moment, or a folder that cannot be trusted */
    [HL_WEIGHT_DOMAIN_UNAVAILABLE] = HL_POLICY_IF_RETRYABLE,
    [HL_WEIGHT_ACTIVE_BUILD_TIMEOUT] = HL_POLICY_IF_RETRYABLE,
    [HL_WEIGHT_ACTIVE_LEASE] = HL_POLICY_IF_RETRYABLE,
    [HL_WEIGHT_QUARANTINE_FAILED] = HL_POLICY_IF_RETRYABLE,

    /* no artifact, or none that may be used */
    [HL_WEIGHT_LOCAL_MISS] = HL_POLICY_ALWAYS,
    [HL_WEIGHT_ARTIFACT_DENIED] = HL_POLICY_ALWAYS,
    [HL_WEIGHT_MANIFEST_INCOMPATIBLE] = HL_POLICY_ALWAYS,
    [HL_WEIGHT_MANIFEST_CORRUPT] = HL_POLICY_ALWAYS,
    [HL_WEIGHT_CHECKSUM_MISMATCH] = HL_POLICY_ALWAYS,

    /* other nodes: nothing raises them yet */
    [HL_WEIGHT_REMOTE_MISS] = HL_POLICY_IF_RETRYABLE,
    [HL_WEIGHT_REMOTE_UNAVAILABLE] = HL_POLICY_IF_RETRYABLE,
    [HL_WEIGHT_REMOTE_AUTH_FAILED] = HL_POLICY_NEVER,
    [HL_WEIGHT_REMOTE_TIMEOUT] = HL_POLICY_IF_RETRYABLE,
    [HL_WEIGHT_REMOTE_ARTIFACT_INVALID] = HL_POLICY_IF_RETRYABLE,

    /* producers: a broken one is not to be worked around silently, a missing one is */
    [HL_WEIGHT_IDENTITY_COLLISION] = HL_POLICY_NEVER,
    [HL_WEIGHT_PUBLICATION_FAILED] = HL_POLICY_NEVER,
    [HL_WEIGHT_PRODUCER_FAILED] = HL_POLICY_NEVER,
    [HL_WEIGHT_PRODUCER_UNSUPPORTED] = HL_POLICY_NEVER,
    [HL_WEIGHT_PRODUCER_UNAVAILABLE] = HL_POLICY_IF_RETRYABLE,
    [HL_WEIGHT_PRODUCTION_TIMEOUT] = HL_POLICY_IF_RETRYABLE,

    /* space */
    [HL_WEIGHT_ARTIFACT_TOO_LARGE] = HL_POLICY_IF_RETRYABLE,
    [HL_WEIGHT_STORE_LIMIT_EXCEEDED] = HL_POLICY_IF_RETRYABLE,
    [HL_WEIGHT_INSUFFICIENT_CAPACITY] = HL_POLICY_IF_RETRYABLE,
    [HL_WEIGHT_ENOSPC] = HL_POLICY_IF_RETRYABLE,

    /* restoring: after a resolution, so that no resolution meets them. A plan that was refused left the model
     * as it was; a commit that failed did not. */
    [HL_WEIGHT_RESTORER_UNAVAILABLE] = HL_POLICY_NEVER,
    [HL_WEIGHT_RESTORE_PREFLIGHT_FAILED] = HL_POLICY_IF_RETRYABLE,
    [HL_WEIGHT_RESTORE_COMMIT_FAILED] = HL_POLICY_NEVER,
    [HL_WEIGHT_CANONICAL_SOURCE_FAILED] = HL_POLICY_NEVER,
};

enum hl_policy_fallback hl_policy_fallback_of(hl_weight_code code)
{
    const size_t count = sizeof fallback_of_code / sizeof fallback_of_code[0];
    return (size_t)code < count ? fallback_of_code[code] : HL_POLICY_UNDECIDED;
}

hl_weight_action hl_policy_after_failure(hl_weight_mode mode, const hl_weight_failure *failure)
{
    const enum hl_policy_fallback fallback = hl_policy_fallback_of(failure->code);
    const bool may =
        fallback == HL_POLICY_ALWAYS || (fallback == HL_POLICY_IF_RETRYABLE && failure->retryable);
    return mode == HL_WEIGHT_MODE_PREFERRED && may ? HL_WEIGHT_ACTION_CANONICAL_FALLBACK
                                                   : HL_WEIGHT_ACTION_FAIL_STARTUP;
}

/* What a lookup is followed by, whatever the mode; BY_FAILURE asks the table of codes. */
static const struct {
    hl_weight_attempt_result shown;
    bool by_failure;
    hl_weight_action action;
} after_lookup[] = {
    [HL_LOOKUP_HIT] = {HL_WEIGHT_ATTEMPT_HIT, false, HL_WEIGHT_ACTION_RETURN_LEASE},
    [HL_LOOKUP_MISS] = {HL_WEIGHT_ATTEMPT_MISS, false, HL_WEIGHT_ACTION_TRY_PRODUCER},
    [HL_LOOKUP_INVALID] = {HL_WEIGHT_ATTEMPT_ERROR, false, HL_WEIGHT_ACTION_QUARANTINE_THEN_PRODUCE},
    [HL_LOOKUP_TIMEOUT] = {HL_WEIGHT_ATTEMPT_TIMEOUT, true, HL_WEIGHT_ACTION_FAIL_STARTUP},
    [HL_LOOKUP_FAILED] = {HL_WEIGHT_ATTEMPT_ERROR, true, HL_WEIGHT_ACTION_FAIL_STARTUP},
};

hl_weight_action hl_policy_after_lookup(hl_weight_mode mode, hl_weight_remote remote,
                                        enum hl_lookup_result result, const hl_weight_failure *failure)
{
    if (after_lookup[result].by_failure)
        return hl_policy_after_failure(mode, failure);
    if (result != HL_LOOKUP_HIT && remote != HL_WEIGHT_REMOTE_DISABLED)
        return HL_WEIGHT_ACTION_TRY_REMOTE;
    return after_lookup[result].action;
}

hl_weight_attempt_result hl_policy_attempt_result(enum hl_lookup_result result)
{
    return after_lookup[result].shown;
}

/* --- options --- */

#define REFUSE(failure, code, ...) HL_WEIGHT_FAIL(failure, CONFIGURATION, code, false, __VA_ARGS__)

static hl_status check_store_options(const hl_weight_store_options *store, hl_weight_failure *failure)
{
    if (store->size != sizeof *store)
        return REFUSE(failure, INVALID_CONFIG,
                      "store.size is %zu, not %zu: use hl_weight_runtime_options_init()", store->size,
                      sizeof *store);
    if (!store->root || store->root[0] != '/')
        return REFUSE(failure, INVALID_CONFIG, "store.root is %s, not an absolute path",
                      store->root ? store->root : "missing");
    if (!store->domain_id || store->domain_id[0] == '\0' || strlen(store->domain_id) >= HL_NAME_BYTES)
        return REFUSE(failure, INVALID_CONFIG, "store.domain_id is missing, empty or longer than %u bytes",
                      HL_NAME_BYTES - 1);
    if (store->scope > HL_WEIGHT_SCOPE_NUMA)
        return REFUSE(failure, INVALID_CONFIG, "store.scope is %d, no scope", (int)store->scope);
    if (store->storage_class > HL_WEIGHT_TMPFS)
        return REFUSE(failure, INVALID_CONFIG, "store.storage_class is %d, no class",
                      (int)store->storage_class);
    if (store->admission > HL_WEIGHT_ADMISSION_SERIALIZED)
        return REFUSE(failure, INVALID_CONFIG, "store.admission is %d, no admission", (int)store->admission);
    if (store->admission == HL_WEIGHT_ADMISSION_SERIALIZED && store->max_store_bytes == HL_WEIGHT_NO_LIMIT)
        return REFUSE(failure, INVALID_CONFIG, "store.admission is serialized, which needs max_store_bytes");
    if (store->coordination_timeout_ns <= 0)
        return REFUSE(failure, INVALID_CONFIG, "store.coordination_timeout_ns is %lld, not positive",
                      (long long)store->coordination_timeout_ns);
    return HL_OK;
}

hl_status hl_policy_check_options(const hl_weight_runtime_options *options, hl_weight_failure *failure)
{
    assert(options->mode != HL_WEIGHT_MODE_DISABLED);
    if (options->mode > HL_WEIGHT_MODE_REQUIRED)
        return REFUSE(failure, INVALID_CONFIG, "mode is %d, no mode", (int)options->mode);
    if (options->validation > HL_WEIGHT_FS_VERITY)
        return REFUSE(failure, INVALID_CONFIG, "validation is %d, no validation", (int)options->validation);
    if (options->remote > HL_WEIGHT_REMOTE_REQUIRE)
        return REFUSE(failure, INVALID_CONFIG, "remote is %d, no remote policy", (int)options->remote);
    const hl_status status = check_store_options(&options->store, failure);
    if (status != HL_OK)
        return status;
    if (options->allow_post_load_publish)
        return REFUSE(failure, INVALID_CONFIG,
                      "allow_post_load_publish: there is no way to publish a loaded model yet");
    if (options->validation == HL_WEIGHT_FS_VERITY)
        return REFUSE(failure, UNSUPPORTED, "validation fs_verity");
    if (options->numa_prefault || options->verify_numa_residency)
        return REFUSE(failure, UNSUPPORTED, "%s",
                      options->numa_prefault ? "numa_prefault" : "verify_numa_residency");
    if (options->background_scrub)
        return REFUSE(failure, UNSUPPORTED, "background_scrub");
    return HL_OK;
}
