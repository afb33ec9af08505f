/* What a domain holds. Looks and changes nothing: no lock is taken, no folder created, no marker written, so
 * that it works on a read-only mount and beside builders; what vanishes while it looks is left out. */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/weights/store/store.h"

#define STAGE "weights.inspect"
#define KEY_DIGITS 64u

/* The public snapshot, and what owns its memory. */
struct snapshot {
    hl_weight_domain_snapshot public;
    hl_weight_inventory_entry *entries; /* storage_name and reason of each are allocated */
    size_t count, capacity;
    char *root;
};

const char *hl_weight_inventory_state_name(hl_weight_inventory_state state)
{
    static const char *const names[] = {"ready", "denied", "quarantined", "temporary"};
    return (size_t)state < sizeof names / sizeof names[0] ? names[state] : "unknown";
}

/* --- entries --- */

static hl_status add_entry(struct snapshot *snapshot, hl_weight_inventory_state state, const char *name,
                           uint64_t bytes, const char *reason, hl_error *err)
{
    if (snapshot->count == snapshot->capacity) {
        const size_t capacity = snapshot->capacity ? 2 * snapshot->capacity : 16;
        hl_weight_inventory_entry *grown = realloc(snapshot->entries, capacity * sizeof *grown);
        if (!grown)
            return HL_FAIL(err, HL_E_NOMEM, STAGE, "%zu inventory entries", capacity);
        snapshot->entries = grown;
        snapshot->capacity = capacity;
    }
    hl_weight_inventory_entry *entry = &snapshot->entries[snapshot->count];
    memset(entry, 0, sizeof *entry);
    memcpy(entry->artifact_key, name, KEY_DIGITS);
    entry->state = state;
    entry->bytes = bytes;
    char *own_name = strdup(name);
    char *own_reason = strdup(reason);
    if (!own_name || !own_reason) {
        free(own_name);
        free(own_reason);
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "the name of an inventory entry");
    }
    entry->storage_name = own_name;
    entry->reason = own_reason;
    snapshot->count++;
    return HL_OK;
}

/* Orders by key, then state, then name: the storage name begins with the key. */
static int compare_entries(const void *left, const void *right)
{
    const hl_weight_inventory_entry *a = left, *b = right;
    const int keys = strcmp(a->artifact_key, b->artifact_key);
    if (keys != 0)
        return keys;
    if (a->state != b->state)
        return a->state < b->state ? -1 : 1;
    return strcmp(a->storage_name, b->storage_name);
}

static bool begins_with_key(const char *name)
{
    char key[KEY_DIGITS + 1];
    if (strnlen(name, KEY_DIGITS) < KEY_DIGITS)
        return false;
    memcpy(key, name, KEY_DIGITS);
    key[KEY_DIGITS] = '\0';
    return hl_store_key_is_valid(key);
}

/* --- what each folder's names mean --- */

/* "CODE: message" of a marker; a torn one denies as well. */
static void read_marker(hl_weight_store *store, const char *key, char *reason, size_t size)
{
    char name[KEY_DIGITS + sizeof ".json"];
    char *text = NULL;
    size_t bytes = 0;
    struct hl_deny_marker marker;
    snprintf(name, sizeof name, "%.64s.json", key);
    if (hl_storage_read_document(store->deny, name, HL_WEIGHT_DOCUMENT_BYTES, false, &text, &bytes, NULL) !=
            HL_OK ||
        hl_deny_parse(text, bytes, &marker, NULL) != HL_OK)
        snprintf(reason, size, "the deny marker cannot be read");
    else
        snprintf(reason, size, "%s%s%s", marker.reason, marker.message[0] ? ": " : "", marker.message);
    free(text);
}

static hl_status read_artifact(struct snapshot *snapshot, hl_weight_store *store, const char *name,
                               const struct stat *st, uint64_t bytes, hl_error *err)
{
    char reason[400] = "";
    bool denied = false;
    if (name[KEY_DIGITS] != '\0')
        return HL_OK; /* no artifact's name */
    if (store->deny >= 0) {
        const hl_status status = hl_deny_present(store, name, &denied, err);
        if (status != HL_OK)
            return status;
    }
    if (denied)
        read_marker(store, name, reason, sizeof reason);
    else if (!S_ISDIR(st->st_mode))
        snprintf(reason, sizeof reason, "it is no folder");
    else if (st->st_mode & S_ISVTX)
        snprintf(reason, sizeof reason, "in transition: a publication, denial or removal was interrupted");
    return add_entry(snapshot, reason[0] || denied ? HL_WEIGHT_STATE_DENIED : HL_WEIGHT_STATE_READY, name,
                     bytes, reason, err);
}

static hl_status read_temporary(struct snapshot *snapshot, hl_weight_store *store, const char *name,
                                const struct stat *st, uint64_t bytes, hl_error *err)
{
    (void)store;
    (void)st;
    return add_entry(snapshot, HL_WEIGHT_STATE_TEMPORARY, name, bytes, "", err);
}

/* KEY.REASON.UUID */
static hl_status read_quarantined(struct snapshot *snapshot, hl_weight_store *store, const char *name,
                                  const struct stat *st, uint64_t bytes, hl_error *err)
{
    char reason[64] = "";
    const char *begin = name + KEY_DIGITS;
    (void)store;
    (void)st;
    if (*begin == '.')
        snprintf(reason, sizeof reason, "%.*s", (int)strcspn(begin + 1, "."), begin + 1);
    return add_entry(snapshot, HL_WEIGHT_STATE_QUARANTINED, name, bytes, reason, err);
}

typedef hl_status read_entry(struct snapshot *snapshot, hl_weight_store *store, const char *name,
                             const struct stat *st, uint64_t bytes, hl_error *err);

/* Bytes of an entry, and its stat; *gone when it vanished. */
static hl_status measure(int parent, const char *name, struct stat *st, uint64_t *bytes, bool *gone,
                         hl_error *err)
{
    int fd;
    *gone = false;
    if (fstatat(parent, name, st, AT_SYMLINK_NOFOLLOW) != 0) {
        *gone = errno == ENOENT;
        return *gone ? HL_OK : HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "stat %.96s", name);
    }
    *bytes = (uint64_t)st->st_blocks * 512;
    if (!S_ISDIR(st->st_mode))
        return HL_OK;
    hl_error open_error = {0};
    if (hl_storage_open_folder(parent, name, &fd, &open_error) != HL_OK) {
        if (open_error.sys_errno == ENOENT)
            *gone = true;
        else if (open_error.sys_errno != EACCES) /* another user's: shown with what its folder takes */
            return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, open_error.sys_errno, "open %.96s", name);
        return HL_OK;
    }
    const hl_status status = hl_storage_tree_bytes(fd, bytes, err);
    close(fd);
    return status;
}

/* Calls `read` for every name in an open folder that begins with a key. */
static hl_status read_folder(struct snapshot *snapshot, hl_weight_store *store, int folder, read_entry *read,
                             hl_error *err)
{
    if (folder < 0)
        return HL_OK; /* a read-only domain without it */
    /* A description of its own: the store's has one position for all threads. */
    const int own = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (own < 0)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "open a folder of the domain");
    DIR *list = fdopendir(own);
    if (!list) {
        close(own);
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "read a folder of the domain");
    }
    hl_status status = HL_OK;
    const struct dirent *found;
    while (status == HL_OK && (errno = 0, found = readdir(list)) != NULL) {
        struct stat st;
        uint64_t bytes = 0;
        bool gone;
        if (!begins_with_key(found->d_name))
            continue;
        status = measure(folder, found->d_name, &st, &bytes, &gone, err);
        if (status == HL_OK && !gone)
            status = read(snapshot, store, found->d_name, &st, bytes, err);
    }
    if (status == HL_OK && errno != 0)
        status = HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "read a folder of the domain");
    closedir(list);
    return status;
}

/* --- the snapshot --- */

static hl_status fill(struct snapshot *snapshot, hl_weight_store *store, hl_error *err)
{
    hl_weight_domain_snapshot *to = &snapshot->public;
    snapshot->root = strdup(store->root_path);
    if (!snapshot->root)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "the root's path");
    to->root = snapshot->root;
    memcpy(to->domain_uuid, store->domain.uuid, sizeof to->domain_uuid);
    to->scope = store->domain.scope;
    to->storage_class = store->domain.storage_class;
    to->policy_version = store->policy.policy_version;
    to->max_artifact_bytes = store->policy.max_artifact_bytes;
    to->max_store_bytes = store->policy.max_store_bytes;
    to->min_free_bytes = store->policy.min_free_bytes;
    to->admission = store->policy.admission;
    hl_status status = hl_storage_tree_bytes(store->root, &to->store_bytes, err);
    if (status == HL_OK)
        status = hl_storage_free_bytes(store->root, &to->filesystem_free_bytes, err);
    if (status == HL_OK)
        status = read_folder(snapshot, store, store->artifacts, read_artifact, err);
    if (status == HL_OK)
        status = read_folder(snapshot, store, store->tmp, read_temporary, err);
    if (status == HL_OK)
        status = read_folder(snapshot, store, store->quarantine, read_quarantined, err);
    if (status != HL_OK)
        return status;
    if (snapshot->count)
        qsort(snapshot->entries, snapshot->count, sizeof *snapshot->entries, compare_entries);
    to->inventory = snapshot->entries;
    to->inventory_count = snapshot->count;
    return HL_OK;
}

hl_status hl_weight_store_inspect_domain(hl_weight_store *store, hl_weight_domain_snapshot **out,
                                         hl_weight_failure *failure)
{
    hl_error err = {0};
    /* The names of domain and file system are copied behind the snapshot, which may outlive the store. */
    struct snapshot *snapshot =
        calloc(1, sizeof *snapshot + sizeof store->domain.domain_id + sizeof store->domain.filesystem_type);
    if (!snapshot)
        return HL_WEIGHT_FAIL(failure, LIFECYCLE, DOMAIN_UNAVAILABLE, true, "out of memory");
    char *names = (char *)(snapshot + 1);
    memcpy(names, store->domain.domain_id, sizeof store->domain.domain_id);
    memcpy(names + sizeof store->domain.domain_id, store->domain.filesystem_type,
           sizeof store->domain.filesystem_type);
    snapshot->public.domain_id = names;
    snapshot->public.filesystem_type = names + sizeof store->domain.domain_id;
    if (fill(snapshot, store, &err) != HL_OK) {
        hl_weight_domain_snapshot_free(&snapshot->public);
        return hl_weight_failure_io(failure, HL_WEIGHT_STAGE_LIFECYCLE, &err);
    }
    *out = &snapshot->public;
    return HL_OK;
}

void hl_weight_domain_snapshot_free(hl_weight_domain_snapshot *public)
{
    if (!public)
        return;
    struct snapshot *snapshot = (struct snapshot *)public; /* its first member */
    for (size_t i = 0; i < snapshot->count; i++) {
        free((char *)snapshot->entries[i].storage_name);
        free((char *)snapshot->entries[i].reason);
    }
    free(snapshot->entries);
    free(snapshot->root);
    free(snapshot);
}
