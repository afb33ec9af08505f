#include "core/weights/store/departure.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/error.h"
#include "faults/hook.h"

#define STAGE "weights.store"

/* Moving a folder to another parent changes its "..", for which its owner needs write permission; the sticky
 * bit denies the artifact meanwhile, also when this process dies here. */
#define MODE_IN_TRANSIT (S_ISVTX | 0755)
#define MODE_QUARANTINED 0555
#define MODE_TOMBSTONE (S_ISVTX | 0555)

hl_status hl_departure_name(const char *key, const char *reason, char name[HL_STORE_NAME_BYTES],
                            hl_error *err)
{
    char uuid[HL_WEIGHT_UUID_BYTES];
    const hl_status status = hl_storage_uuid(uuid, err);
    if (status)
        return status;
    const int length = snprintf(name, HL_STORE_NAME_BYTES, "%s.%s.%s", key, reason, uuid);
    if (length < 0 || length >= HL_STORE_NAME_BYTES)
        return HL_FAIL(err, HL_E_LIMIT, STAGE, "the reason %.64s is too long", reason);
    return HL_OK;
}

static hl_status status_of(int sys_errno)
{
    return sys_errno == ENOSPC || sys_errno == EDQUOT ? HL_E_NOSPACE : HL_E_SYSTEM;
}

static hl_status open_entry(hl_weight_store *store, const char *key, int *folder, hl_error *err)
{
    hl_error found;
    if (hl_storage_open_folder(store->artifacts, key, folder, &found) == HL_OK)
        return HL_OK;
    if (found.sys_errno == ENOENT)
        return HL_FAIL(err, HL_E_NOT_FOUND, STAGE, "there is no artifact %s", key);
    if (found.sys_errno == ENOTDIR || found.sys_errno == ELOOP)
        return HL_FAIL(err, HL_E_CORRUPT, STAGE, "artifacts/%s is not a folder", key);
    return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, found.sys_errno, "cannot open artifacts/%s", key);
}

/* A second try, because the first error may have been of the moment and a folder must not stay writable. */
static int harden(int folder, mode_t mode)
{
    int result = (int)HL_FAULT_STEP(weights_quarantine_harden, fchmod(folder, mode));
    if (result != 0)
        result = (int)HL_FAULT_STEP(weights_quarantine_harden, fchmod(folder, mode));
    return result;
}

bool hl_departure_is_at(hl_weight_store *store, const char *key, const struct stat *folder)
{
    struct stat st;
    if (fstatat(store->artifacts, key, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return errno != ENOENT;
    return st.st_dev == folder->st_dev && st.st_ino == folder->st_ino;
}

static long rename_entry(hl_weight_store *store, const char *key, const char *name, bool tombstone)
{
    if (tombstone)
        return HL_FAULT_STEP(weights_clean_rename, renameat(store->artifacts, key, store->quarantine, name));
    return HL_FAULT_STEP(weights_quarantine_rename, renameat(store->artifacts, key, store->quarantine, name));
}

static hl_status synchronise(hl_weight_store *store, int folder, const char *name, hl_error *err)
{
    const int folders[] = {folder, store->quarantine, store->artifacts};
    for (unsigned i = 0; i < sizeof folders / sizeof folders[0]; i++)
        if (HL_FAULT_STEP(weights_quarantine_sync, fsync(folders[i])) != 0)
            return HL_FAIL_ERRNO(err, status_of(errno), STAGE, errno, "cannot synchronise the move to %.150s",
                                 name);
    return HL_OK;
}

static hl_status move_open(hl_weight_store *store, const char *key, const char *name, bool tombstone,
                           int folder, hl_error *err)
{
    struct stat before;
    if (fstat(folder, &before) != 0)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot look at artifacts/%s", key);
    hl_status status = HL_OK;
    if (HL_FAULT_STEP(weights_quarantine_open, fchmod(folder, MODE_IN_TRANSIT)) != 0)
        status = HL_FAIL_ERRNO(err, status_of(errno), STAGE, errno, "cannot make %s movable", key);
    else if (rename_entry(store, key, name, tombstone) != 0)
        status = HL_FAIL_ERRNO(err, status_of(errno), STAGE, errno, "cannot move %s to quarantine", key);
    if (status && hl_departure_is_at(store, key, &before)) {
        (void)harden(folder, before.st_mode & 07777);
        return status;
    }
    if (harden(folder, tombstone ? MODE_TOMBSTONE : MODE_QUARANTINED) != 0 && !status)
        status = HL_FAIL_ERRNO(err, status_of(errno), STAGE, errno, "cannot make %.150s immutable", name);
    return status ? status : synchronise(store, folder, name, err);
}

hl_status hl_departure_move(hl_weight_store *store, const char *key, const char *name, bool tombstone,
                            hl_error *err)
{
    int folder = -1;
    hl_status status = open_entry(store, key, &folder, err);
    if (status)
        return status;
    status = move_open(store, key, name, tombstone, folder, err);
    close(folder);
    return status;
}

hl_status hl_departure_allow(hl_weight_store *store, const char *key, hl_error *err)
{
    char name[HL_STORE_NAME_BYTES];
    snprintf(name, sizeof name, "%s.json", key);
    if (HL_FAULT_STEP(weights_deny_remove, unlinkat(store->deny, name, 0)) != 0) {
        if (errno == ENOENT)
            return HL_OK;
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot remove deny/%s", name);
    }
    return hl_storage_sync(store->deny, err);
}

hl_status hl_departure_each(int folder, const char *key,
                            hl_status (*visit)(void *context, const char *name, hl_error *err), void *context,
                            hl_error *err)
{
    /* A description of its own: the position in a folder is shared by duplicates. */
    const int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *const dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (!dir) {
        const int open_errno = errno;
        if (fd >= 0)
            close(fd);
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, open_errno, "cannot read a folder of the store");
    }
    const size_t length = strlen(key);
    hl_status status = HL_OK;
    while (!status) {
        errno = 0;
        const struct dirent *const entry = readdir(dir);
        if (!entry) {
            if (errno)
                status = HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot read a folder of the store");
            break;
        }
        if (!strncmp(entry->d_name, key, length) && entry->d_name[length] == '.')
            status = visit(context, entry->d_name, err);
    }
    closedir(dir);
    return status;
}

enum { HOLDERS_SHOWN = 16 };

hl_status hl_departure_blocked(hl_weight_store *store, enum hl_lock_kind kind, const char *key,
                               hl_weight_stage stage, hl_weight_code code, const hl_error *err,
                               hl_weight_failure *failure)
{
    if (err->status != HL_E_TIMEOUT && err->status != HL_E_BUSY)
        return hl_weight_failure_io(failure, stage, err);
    const hl_status status = hl_weight_failure_from(failure, stage, code, true, err);
    pid_t holders[HOLDERS_SHOWN];
    size_t count = 0;
    hl_lock_holders(store->locks, kind, key, holders, HOLDERS_SHOWN, &count);
    struct hl_text json = {0};
    hl_text_print(&json, "{\"holder_pids\":[");
    for (size_t i = 0; i < count && i < HOLDERS_SHOWN; i++)
        hl_text_print(&json, "%s%d", i ? "," : "", (int)holders[i]);
    hl_text_print(&json, "]}");
    if (!hl_text_status(&json, STAGE, NULL))
        hl_weight_failure_details(failure, json.bytes);
    hl_text_free(&json);
    return status;
}
