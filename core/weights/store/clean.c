/* Explicit removal. It never waits and never takes anything from whoever uses it: the build lock, then the
 * exclusive artifact lock, or the failure that names their holders. An entry first becomes a tombstone in
 * quarantine/, by one rename, so that no reader ever sees a half-removed one, and what a crash leaves the
 * next clean-up or build removes. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/weights/store/departure.h"
#include "faults/hook.h"

#define STAGE "weights.clean"

static hl_status fail_quarantine(hl_weight_failure *failure, const hl_error *err)
{
    return hl_weight_failure_from(failure, HL_WEIGHT_STAGE_LIFECYCLE, HL_WEIGHT_QUARANTINE_FAILED,
                                  err->status != HL_E_CORRUPT, err);
}

static hl_status fail_missing(hl_weight_failure *failure, const char *name)
{
    return HL_WEIGHT_FAIL(failure, LIFECYCLE, LOCAL_MISS, false, "there is nothing of %.150s to remove",
                          name);
}

struct locks {
    struct hl_lock build, artifact;
};

static void release(struct locks *locks)
{
    hl_lock_release(&locks->artifact);
    hl_lock_release(&locks->build);
}

static hl_status take_locks(hl_weight_store *store, const char *key, struct locks *locks,
                            hl_weight_failure *failure)
{
    hl_error err;
    *locks = (struct locks){HL_LOCK_NONE, HL_LOCK_NONE};
    if (store->read_only)
        return HL_WEIGHT_FAIL(failure, LIFECYCLE, UNSUPPORTED, false,
                              "the store was opened read-only: nothing can be removed");
    if (hl_lock_take(store->locks, HL_LOCK_BUILD, key, HL_LOCK_EXCLUSIVE, HL_LOCK_NOT_AT_ALL, false,
                     &locks->build, &err))
        return hl_departure_blocked(store, HL_LOCK_BUILD, key, HL_WEIGHT_STAGE_LIFECYCLE,
                                    HL_WEIGHT_ACTIVE_BUILD_TIMEOUT, &err, failure);
    if (hl_lock_take(store->locks, HL_LOCK_ARTIFACT, key, HL_LOCK_EXCLUSIVE, HL_LOCK_NOT_AT_ALL, false,
                     &locks->artifact, &err)) {
        const hl_status status = hl_departure_blocked(store, HL_LOCK_ARTIFACT, key, HL_WEIGHT_STAGE_LIFECYCLE,
                                                      HL_WEIGHT_ACTIVE_LEASE, &err, failure);
        release(locks);
        return status;
    }
    return HL_OK;
}

/* --- an artifact --- */

static hl_status clean_locked(hl_weight_store *store, const char *key, hl_weight_failure *failure)
{
    char name[HL_STORE_NAME_BYTES];
    hl_error err;
    bool denied = false, removed = false;
    hl_status status = hl_departure_name(key, HL_REASON_TOMBSTONE, name, &err);
    if (!status)
        status = hl_deny_present(store, key, &denied, &err);
    if (status)
        return hl_weight_failure_io(failure, HL_WEIGHT_STAGE_LIFECYCLE, &err);
    const hl_status moved = hl_departure_move(store, key, name, true, &err);
    if (moved && moved != HL_E_NOT_FOUND)
        return fail_quarantine(failure, &err);
    if (hl_departure_sweep(store, key, &removed, &err))
        return fail_quarantine(failure, &err);
    return moved == HL_OK || denied || removed ? HL_OK : fail_missing(failure, key);
}

hl_status hl_weight_store_clean(hl_weight_store *store, const char *key, hl_weight_failure *failure)
{
    if (!hl_store_key_is_valid(key))
        return HL_WEIGHT_FAIL(failure, LIFECYCLE, INVALID_CONFIG, false,
                              "key \"%.80s\" is not 64 lower-case hexadecimal digits", key ? key : "(null)");
    struct locks locks;
    hl_status status = take_locks(store, key, &locks, failure);
    if (status)
        return status;
    status = clean_locked(store, key, failure);
    release(&locks);
    return status;
}

/* --- a quarantined one --- */

/* KEY.REST, one component. */
static bool split_name(const char *name, char key[HL_SHA256_HEX_BYTES])
{
    const size_t digits = HL_SHA256_HEX_BYTES - 1;
    if (!name || strlen(name) <= digits + 1 || strlen(name) >= HL_STORE_NAME_BYTES || strchr(name, '/') ||
        name[digits] != '.')
        return false;
    memcpy(key, name, digits);
    key[digits] = 0;
    return hl_store_key_is_valid(key);
}

/* A rename within one folder, for which an immutable entry needs no write permission. */
static hl_status bury(hl_weight_store *store, const char *key, const char *name, hl_error *err)
{
    char tombstone[HL_STORE_NAME_BYTES];
    struct stat st;
    if (fstatat(store->quarantine, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return HL_FAIL_ERRNO(err, errno == ENOENT ? HL_E_NOT_FOUND : HL_E_SYSTEM, STAGE, errno,
                             "cannot look at quarantine/%.150s", name);
    if (!S_ISDIR(st.st_mode))
        return HL_FAIL(err, HL_E_CORRUPT, STAGE, "quarantine/%.150s is not a folder", name);
    hl_status status = hl_departure_name(key, HL_REASON_TOMBSTONE, tombstone, err);
    if (status)
        return status;
    if (HL_FAULT_STEP(weights_clean_rename,
                      renameat(store->quarantine, name, store->quarantine, tombstone)) != 0)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot rename quarantine/%.150s", name);
    return hl_storage_sync(store->quarantine, err);
}

static hl_status clean_quarantined_locked(hl_weight_store *store, const char *key, const char *name,
                                          hl_weight_failure *failure)
{
    hl_error err;
    bool removed = false;
    const hl_status buried = bury(store, key, name, &err);
    if (buried && buried != HL_E_NOT_FOUND)
        return fail_quarantine(failure, &err);
    if (hl_departure_sweep_tombstones(store, key, &removed, &err))
        return fail_quarantine(failure, &err);
    return removed ? HL_OK : fail_missing(failure, name);
}

hl_status hl_weight_store_clean_quarantined(hl_weight_store *store, const char *storage_name,
                                            hl_weight_failure *failure)
{
    char key[HL_SHA256_HEX_BYTES];
    if (!split_name(storage_name, key))
        return HL_WEIGHT_FAIL(failure, LIFECYCLE, INVALID_CONFIG, false,
                              "\"%.100s\" is not the name of a quarantined artifact",
                              storage_name ? storage_name : "(null)");
    struct locks locks;
    hl_status status = take_locks(store, key, &locks, failure);
    if (status)
        return status;
    status = clean_quarantined_locked(store, key, storage_name, failure);
    release(&locks);
    return status;
}
