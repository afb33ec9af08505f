/* Entries that are not to be used, kept for whoever wants to know why, and what crashes left behind. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/weights/store/departure.h"
#include "faults/hook.h"

#define STAGE "weights.store"

hl_status hl_quarantine_artifact(hl_weight_store *store, const char *key, const char *reason, hl_error *err)
{
    char name[HL_STORE_NAME_BYTES];
    const hl_status status = hl_departure_name(key, reason, name, err);
    return status ? status : hl_departure_move(store, key, name, false, err);
}

static bool is_tombstone(const char *name)
{
    static const char reason[] = "." HL_REASON_TOMBSTONE ".";
    return !strncmp(name + 64, reason, strlen(reason));
}

/* A crash between the move and the last chmod left it writable and sticky. What is no folder is left alone:
 * the store did not put it there. */
static hl_status reharden_one(void *context, const char *name, hl_error *err)
{
    hl_weight_store *store = context;
    if (is_tombstone(name))
        return HL_OK;
    int folder = -1;
    hl_error found;
    if (hl_storage_open_folder(store->quarantine, name, &folder, &found)) {
        if (hl_storage_is_structural(found.sys_errno))
            return HL_OK;
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, found.sys_errno, "cannot open quarantine/%.150s", name);
    }
    struct stat st;
    hl_status status = HL_OK;
    if (fstat(folder, &st) != 0)
        status = HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot look at quarantine/%.150s", name);
    else if ((st.st_mode & 07777) != 0555 &&
             (HL_FAULT_STEP(weights_quarantine_harden, fchmod(folder, 0555)) != 0 || fsync(folder) != 0))
        status =
            HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot make quarantine/%.150s immutable", name);
    close(folder);
    return status;
}

hl_status hl_quarantine_reharden(hl_weight_store *store, const char *key, hl_error *err)
{
    return hl_departure_each(store->quarantine, key, reharden_one, store, err);
}

struct sweep {
    int folder;
    bool tombstones_only;
    bool removed;
};

static hl_status sweep_one(void *context, const char *name, hl_error *err)
{
    struct sweep *sweep = context;
    if (sweep->tombstones_only && !is_tombstone(name))
        return HL_OK;
    sweep->removed = true;
    return hl_storage_remove_tree(sweep->folder, name, err);
}

static hl_status sweep(hl_weight_store *store, int folder, const char *key, bool *removed, hl_error *err)
{
    struct sweep sweep = {.folder = folder, .tombstones_only = folder == store->quarantine};
    hl_status status = hl_departure_each(folder, key, sweep_one, &sweep, err);
    if (!status && sweep.removed)
        status = hl_storage_sync(folder, err);
    *removed = *removed || sweep.removed;
    return status;
}

hl_status hl_departure_sweep_tombstones(hl_weight_store *store, const char *key, bool *removed, hl_error *err)
{
    return sweep(store, store->quarantine, key, removed, err);
}

hl_status hl_departure_sweep(hl_weight_store *store, const char *key, bool *removed, hl_error *err)
{
    bool any = false;
    hl_status status = sweep(store, store->quarantine, key, &any, err);
    if (!status)
        status = hl_departure_allow(store, key, err);
    if (!status)
        status = sweep(store, store->tmp, key, &any, err);
    if (!status && removed)
        *removed = any;
    return status;
}

hl_status hl_store_sweep_remains(hl_weight_store *store, const char *key, hl_error *err)
{
    return hl_departure_sweep(store, key, NULL, err);
}
