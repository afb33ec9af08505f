/* Denial: a marker in deny/ whose presence alone counts, so that a torn one denies too; and what is done
 * where the marker cannot be written, so that an artifact found broken is not handed out by the next lookup.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/weights/store/store.h"
#include "faults/hook.h"

#define STAGE "weights.deny"
#define MARKER_NAME_BYTES 80

static void marker_name(const char *key, char name[MARKER_NAME_BYTES])
{
    snprintf(name, MARKER_NAME_BYTES, "%.64s.json", key);
}

hl_status hl_deny_present(hl_weight_store *store, const char *key, bool *present, hl_error *err)
{
    char name[MARKER_NAME_BYTES];
    struct stat st;
    if (store->deny < 0) {
        *present = false;
        return HL_OK;
    }
    marker_name(key, name);
    /* Whatever has the name denies: a link that leads nowhere, too. */
    if (HL_FAULT_STEP(weights_deny_open, fstatat(store->deny, name, &st, AT_SYMLINK_NOFOLLOW)) == 0)
        *present = true;
    else if (errno == ENOENT)
        *present = false;
    else
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot look for deny/%s", name);
    return HL_OK;
}

/* --- the marker --- */

/* As a step: 0, or -1 and errno. *err has the text. */
static int create_marker(int deny, const char *name, const struct hl_text *text, hl_error *err)
{
    const hl_status status = hl_storage_create_document(deny, name, text->bytes, text->size, err);
    if (status == HL_OK || status == HL_E_BUSY) /* there already: denied is denied */
        return 0;
    errno = err->sys_errno ? err->sys_errno : EIO;
    return -1;
}

/* Text of a file or a caller: UTF-8 that ends where it fits. */
static void copy_message(char *to, size_t size, const char *message)
{
    size_t length = strnlen(message, size - 1);
    while (length > 0 && !hl_json_valid_utf8(message, length))
        length--;
    if (length == 0)
        snprintf(to, size, "no reason was given");
    else
        snprintf(to, size, "%.*s", (int)length, message);
}

static hl_status write_marker(hl_weight_store *store, const char *key, hl_weight_stage stage,
                              hl_weight_code reason, const char *message, hl_error *err)
{
    char name[MARKER_NAME_BYTES];
    struct hl_deny_marker marker;
    struct hl_text text = {0};
    marker_name(key, name);
    snprintf(marker.stage, sizeof marker.stage, "%s", hl_weight_stage_name(stage));
    snprintf(marker.reason, sizeof marker.reason, "%s", hl_weight_code_name(reason));
    copy_message(marker.message, sizeof marker.message, message);
    hl_deny_put(&text, &marker);
    hl_status status = hl_text_status(&text, STAGE, err);
    if (status == HL_OK) {
        hl_error cause = {0};
        if (HL_FAULT_STEP(weights_deny_write, create_marker(store->deny, name, &text, &cause)) != 0)
            status = HL_FAIL_ERRNO(err, errno == ENOSPC || errno == EDQUOT ? HL_E_NOSPACE : HL_E_SYSTEM,
                                   STAGE, errno, "cannot write deny/%s", name);
    }
    if (status == HL_OK)
        status = hl_storage_sync(store->deny, err);
    hl_text_free(&text);
    return status;
}

/* The mark that needs no space: in the inode that is there anyhow. */
static bool set_sticky(int folder)
{
    struct stat st;
    if (folder < 0 || fstat(folder, &st) != 0 ||
        HL_FAULT_STEP(weights_sticky_set, fchmod(folder, (st.st_mode & 07777) | S_ISVTX)) != 0)
        return false;
    fsync(folder); /* as durable as the system can make it now; it is seen from here on in any case */
    return true;
}

/* --- condemning --- */

/* Quarantines the condemned folder if nobody uses it. The shared lock is given up before the exclusive one is
 * asked for, so that another process may have replaced the artifact in between: only the folder that is still
 * held open as `artifact` is moved. */
static const char *contain(hl_weight_store *store, const char *key, const struct hl_artifact *artifact)
{
    struct hl_lock exclusive = HL_LOCK_NONE;
    struct stat st;
    hl_error err;
    const char *outcome = "failed";
    if (artifact->folder < 0)
        return "deferred_for_unverified_artifact";
    hl_status status = hl_lock_take(store->locks, HL_LOCK_ARTIFACT, key, HL_LOCK_EXCLUSIVE,
                                    HL_LOCK_NOT_AT_ALL, false, &exclusive, &err);
    if (status != HL_OK)
        return status == HL_E_BUSY ? "deferred_for_active_lease" : "deferred_for_lock_error";
    if (HL_FAULT_STEP(weights_entry_find, fstatat(store->artifacts, key, &st, AT_SYMLINK_NOFOLLOW)) != 0)
        outcome = errno == ENOENT ? "already_absent" : "deferred_for_unverified_artifact";
    else if (st.st_dev != artifact->entry.st_dev || st.st_ino != artifact->entry.st_ino)
        outcome = "already_replaced";
    else if (hl_quarantine_artifact(store, key, "validation_failure", &err) == HL_OK)
        outcome = "completed";
    hl_lock_release(&exclusive);
    return outcome;
}

hl_status hl_store_condemn(hl_weight_store *store, const char *key, struct hl_artifact *artifact,
                           struct hl_lock *lock, hl_weight_failure *failure)
{
    hl_error err;
    hl_status status = write_marker(store, key, failure->stage, failure->code, failure->error.text, &err);
    if (status == HL_OK) {
        hl_lock_release(lock);
        return HL_OK;
    }
    const bool marked = set_sticky(artifact->folder);
    hl_lock_release(lock);
    const char *quarantine = contain(store, key, artifact);
    char text[sizeof err.text], details[sizeof failure->details];
    snprintf(text, sizeof text, "%.110s; and %.110s", failure->error.text, err.text);
    memcpy(err.text, text, sizeof text);
    snprintf(details, sizeof details,
             "{\"containment\":{\"invalidation_marker\":\"%s\",\"quarantine\":\"%s\"},\"reason\":\"%s\"}",
             marked ? "artifact_mode" : "failed", quarantine, hl_weight_code_name(failure->code));
    status = hl_weight_failure_io(failure, HL_WEIGHT_STAGE_VALIDATION, &err);
    hl_weight_failure_details(failure, details);
    return status;
}

/* --- by request --- */

static hl_status deny_locked(hl_weight_store *store, const char *key, const char *reason,
                             hl_weight_failure *failure)
{
    struct stat st;
    hl_error err;
    if (HL_FAULT_STEP(weights_entry_find, fstatat(store->artifacts, key, &st, AT_SYMLINK_NOFOLLOW)) != 0) {
        if (errno == ENOENT)
            return HL_WEIGHT_FAIL(failure, LIFECYCLE, LOCAL_MISS, false, "there is no artifact %.64s", key);
        hl_error_set(&err, HL_E_SYSTEM, STAGE, errno, 0, "cannot look at artifacts/%.64s", key);
        return hl_weight_failure_io(failure, HL_WEIGHT_STAGE_LIFECYCLE, &err);
    }
    if (write_marker(store, key, HL_WEIGHT_STAGE_LIFECYCLE, HL_WEIGHT_ARTIFACT_DENIED, reason, &err) == HL_OK)
        return HL_OK;
    /* On a full file system the folder's own bit still denies; only the reason is lost. */
    int folder = -1;
    const bool marked =
        hl_storage_open_folder(store->artifacts, key, &folder, NULL) == HL_OK && set_sticky(folder);
    if (folder >= 0)
        close(folder);
    return marked ? HL_OK : hl_weight_failure_io(failure, HL_WEIGHT_STAGE_LIFECYCLE, &err);
}

hl_status hl_weight_store_deny(hl_weight_store *store, const char *key, const char *reason,
                               hl_weight_failure *failure)
{
    struct hl_lock lock = HL_LOCK_NONE;
    hl_error err;
    if (!hl_store_key_is_valid(key))
        return HL_WEIGHT_FAIL(failure, LIFECYCLE, INVALID_CONFIG, false,
                              "the key is not 64 lower-case hexadecimal digits");
    if (!reason || !reason[0])
        return HL_WEIGHT_FAIL(failure, LIFECYCLE, INVALID_CONFIG, false, "the reason is empty");
    if (store->read_only)
        return HL_WEIGHT_FAIL(failure, LIFECYCLE, UNSUPPORTED, false,
                              "the store was opened read-only: nothing can be denied");
    /* Shared: neither may the artifact be replaced meanwhile, nor need its users stop. */
    hl_status status = hl_lock_take(store->locks, HL_LOCK_ARTIFACT, key, HL_LOCK_SHARED, store->timeout_ns,
                                    false, &lock, &err);
    if (status == HL_E_TIMEOUT)
        return hl_weight_failure_from(failure, HL_WEIGHT_STAGE_LIFECYCLE, HL_WEIGHT_ACTIVE_BUILD_TIMEOUT,
                                      true, &err);
    if (status != HL_OK)
        return hl_weight_failure_io(failure, HL_WEIGHT_STAGE_LIFECYCLE, &err);
    status = deny_locked(store, key, reason, failure);
    hl_lock_release(&lock);
    return status;
}
