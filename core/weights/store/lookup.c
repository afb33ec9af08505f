/* Lookups: the shared artifact lock, a validation, and a lease or the reason why there is none.
 *
 * A read-only store takes its locks on descriptors that are open for reading, and cannot create a lock file.
 * A key without one has never been built in this domain: there is nothing to find. An artifact without its
 * lock file was put there by something else (a copy of artifacts/ alone): no removal would respect a lease on
 * it, so that none is given. Copies of a domain must bring locks/ along. */
#include <fcntl.h>

#include "core/base/error.h"
#include "core/weights/store/departure.h"
#include "core/weights/store/store.h"

static enum hl_lookup_result miss(const char *key, hl_weight_failure *failure)
{
    hl_weight_failure_set(failure, HL_WEIGHT_STAGE_LOOKUP, HL_WEIGHT_LOCAL_MISS, false, 0,
                          "there is no artifact %.64s", key);
    return HL_LOOKUP_MISS;
}

/* *result is set unless the lock was taken. */
static bool take_lock(hl_weight_store *store, const char *key, struct hl_lock *lock,
                      enum hl_lookup_result *result, hl_weight_failure *failure)
{
    hl_error err;
    const hl_status status = hl_lock_take(store->locks, HL_LOCK_ARTIFACT, key, HL_LOCK_SHARED,
                                          store->timeout_ns, store->read_only, lock, &err);
    if (status == HL_OK)
        return true;
    if (status == HL_E_TIMEOUT) {
        hl_departure_blocked(store, HL_LOCK_ARTIFACT, key, HL_WEIGHT_STAGE_LOOKUP,
                             HL_WEIGHT_ACTIVE_BUILD_TIMEOUT, &err, failure);
        *result = HL_LOOKUP_TIMEOUT;
    } else {
        hl_weight_failure_io(failure, HL_WEIGHT_STAGE_LOOKUP, &err);
        *result = status == HL_E_NOT_FOUND ? HL_LOOKUP_MISS : HL_LOOKUP_FAILED;
    }
    return false;
}

static bool entry_exists(const hl_weight_store *store, const char *key)
{
    struct stat st;
    return store->artifacts >= 0 && fstatat(store->artifacts, key, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

/* A read-only store and no lock file. Builders make the lock file before the artifact: one that appeared
 * after the first look brought it along, hence the second. */
static bool take_missing_lock(hl_weight_store *store, const char *key, struct hl_lock *lock,
                              enum hl_lookup_result *result, hl_weight_failure *failure)
{
    if (!entry_exists(store, key)) {
        *result = miss(key, failure);
        return false;
    }
    if (store->locks >= 0 && take_lock(store, key, lock, result, failure))
        return true;
    if (store->locks >= 0 && *result != HL_LOOKUP_MISS)
        return false;
    hl_weight_failure_set(
        failure, HL_WEIGHT_STAGE_LOOKUP, HL_WEIGHT_DOMAIN_UNAVAILABLE, true, 0,
        "locks/%.64s.artifact.lock is missing, and a read-only store cannot make it: open the "
        "store once to write, or copy locks/ with the artifacts",
        key);
    *result = HL_LOOKUP_FAILED;
    return false;
}

static enum hl_lookup_result found_invalid(hl_weight_store *store, const char *key,
                                           struct hl_artifact *artifact, struct hl_lock *lock,
                                           hl_weight_failure *failure)
{
    if (store->read_only) {
        hl_weight_failure_details(failure,
                                  "{\"denied\":false,\"reason\":\"the store is open read-only: nothing "
                                  "was recorded\"}");
        return HL_LOOKUP_INVALID;
    }
    return hl_store_condemn(store, key, artifact, lock, failure) == HL_OK ? HL_LOOKUP_INVALID
                                                                          : HL_LOOKUP_FAILED;
}

static enum hl_lookup_result look_up_locked(hl_weight_store *store, const hl_weight_identity *identity,
                                            hl_weight_validation validation, hl_weight_origin origin,
                                            struct hl_lock *lock, hl_weight_lease **lease,
                                            hl_weight_failure *failure)
{
    struct hl_artifact artifact;
    enum hl_lookup_result result = HL_LOOKUP_FAILED;
    switch (hl_artifact_validate(store, identity->key, identity, validation, &artifact, failure)) {
    case HL_VERDICT_VALID:
        if (hl_lease_create(store, &artifact, lock, origin, validation, lease, failure) == HL_OK)
            result = HL_LOOKUP_HIT;
        break;
    case HL_VERDICT_ABSENT:
        result = miss(identity->key, failure);
        break;
    case HL_VERDICT_DENIED:
        result = HL_LOOKUP_INVALID;
        break;
    case HL_VERDICT_INVALID:
        result = found_invalid(store, identity->key, &artifact, lock, failure);
        break;
    case HL_VERDICT_TROUBLE:
        break;
    }
    hl_artifact_close(&artifact);
    return result;
}

enum hl_lookup_result hl_store_lookup_as(hl_weight_store *store, const hl_weight_identity *identity,
                                         hl_weight_validation validation, hl_weight_origin origin,
                                         hl_weight_lease **lease, hl_weight_failure *failure)
{
    struct hl_lock lock = HL_LOCK_NONE;
    hl_weight_failure unasked;
    enum hl_lookup_result result = HL_LOOKUP_MISS;
    if (!failure)
        failure = &unasked; /* condemning needs the reason, whether or not the caller does */
    if (validation == HL_WEIGHT_FS_VERITY) {
        hl_weight_failure_set(failure, HL_WEIGHT_STAGE_LOOKUP, HL_WEIGHT_UNSUPPORTED, false, 0,
                              "fs-verity is no validation that this store offers");
        return HL_LOOKUP_FAILED;
    }
    if (store->read_only && store->locks < 0) {
        if (!take_missing_lock(store, identity->key, &lock, &result, failure))
            return result;
    } else if (!take_lock(store, identity->key, &lock, &result, failure)) {
        if (result != HL_LOOKUP_MISS || !take_missing_lock(store, identity->key, &lock, &result, failure))
            return result;
    }
    result = look_up_locked(store, identity, validation, origin, &lock, lease, failure);
    hl_lock_release(&lock); /* a lease has taken it over */
    return result;
}

hl_status hl_weight_store_lookup(hl_weight_store *store, const hl_weight_identity *identity,
                                 hl_weight_validation validation, hl_weight_lease **lease,
                                 hl_weight_failure *failure)
{
    hl_weight_failure reason;
    if (!identity || (unsigned)validation > HL_WEIGHT_FS_VERITY)
        return HL_WEIGHT_FAIL(failure, LOOKUP, INVALID_CONFIG, false,
                              identity ? "validation is %d, no value of hl_weight_validation"
                                       : "no identity was given (validation %d)",
                              (int)validation);
    if (hl_store_lookup_as(store, identity, validation, HL_WEIGHT_HIT, lease, &reason) == HL_LOOKUP_HIT)
        return HL_OK;
    if (failure)
        *failure = reason;
    return reason.error.status;
}
