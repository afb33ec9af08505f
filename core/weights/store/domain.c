/* Opening a domain. What kind of file system it would be on is known before anything is created; its two
 * documents are written once, under a lock, and compared ever after. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/weights/store/options.h"
#include "core/weights/store/settings.h"

#define STAGE "weights.domain"

bool hl_store_key_is_valid(const char *key)
{
    if (!key)
        return false;
    size_t digits = strspn(key, "0123456789abcdef");
    return digits == HL_SHA256_HEX_BYTES - 1 && key[digits] == 0;
}

void hl_store_retain(hl_weight_store *store)
{
    const unsigned before = atomic_fetch_add_explicit(&store->references, 1, memory_order_relaxed);
    assert(before > 0);
}

static void close_folder(int fd)
{
    if (fd >= 0)
        close(fd);
}

void hl_store_drop(hl_weight_store *store)
{
    const unsigned before = atomic_fetch_sub_explicit(&store->references, 1, memory_order_acq_rel);
    assert(before > 0);
    if (before > 1)
        return;
    close_folder(store->deny);
    close_folder(store->quarantine);
    close_folder(store->tmp);
    close_folder(store->artifacts);
    close_folder(store->locks);
    close_folder(store->root);
    free(store->root_path);
    free(store);
}

void hl_weight_store_close(hl_weight_store *store)
{
    if (store)
        hl_store_drop(store);
}

/* --- the file system --- */

static hl_status check_filesystem(int fd, const hl_weight_store *store,
                                  const hl_weight_store_options *options, struct hl_filesystem *filesystem,
                                  hl_weight_failure *failure)
{
    hl_error err;
    hl_status status = hl_filesystem_of(fd, filesystem, &err);
    if (status == HL_E_UNSUPPORTED)
        return hl_weight_failure_from(failure, HL_WEIGHT_STAGE_DOMAIN, HL_WEIGHT_UNSUPPORTED, false, &err);
    if (status != HL_OK)
        return hl_store_unavailable(store, &err, failure);
    if (filesystem->class == HL_FILESYSTEM_REMOTE || filesystem->class == HL_FILESYSTEM_UNKNOWN)
        return HL_WEIGHT_FAIL(failure, DOMAIN, UNSUPPORTED, false,
                              "the file system of %s is %s, which is %s: a store needs a local one",
                              store->root_path, filesystem->type,
                              filesystem->class == HL_FILESYSTEM_REMOTE ? "remote" : "not known to be local");
    const bool tmpfs = filesystem->class == HL_FILESYSTEM_TMPFS;
    if (!options->adopt && tmpfs != (options->storage_class == HL_WEIGHT_TMPFS))
        return HL_WEIGHT_FAIL(failure, DOMAIN, STORAGE_CLASS_MISMATCH, false,
                              "storage_class is %s, but %s is on %s", tmpfs ? "disk" : "tmpfs",
                              store->root_path, filesystem->type);
    if (filesystem->read_only && !options->read_only)
        return HL_WEIGHT_FAIL_ERRNO(failure, DOMAIN, DOMAIN_UNAVAILABLE, true, EROFS,
                                    "%s can only be opened with read_only", store->root_path);
    return HL_OK;
}

/* --- folders --- */

static hl_status open_parent(const hl_weight_store *store, const char **name, int *parent,
                             hl_weight_failure *failure)
{
    char path[PATH_MAX];
    hl_error err;
    const char *slash = strrchr(store->root_path, '/');
    const size_t length = slash == store->root_path ? 1 : (size_t)(slash - store->root_path);
    memcpy(path, store->root_path, length);
    path[length] = 0;
    /* O_PATH: the right to search it is enough. Links on the way are the operator's own. */
    const int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        hl_error_set(&err, HL_E_SYSTEM, STAGE, errno, 0, "cannot open the folder above the root");
        return hl_store_unavailable(store, &err, failure);
    }
    *name = slash + 1;
    *parent = fd;
    return HL_OK;
}

/* Opens a folder that must be there. */
static hl_status open_existing(int parent, const char *name, bool trusted, int *folder, hl_error *err)
{
    int fd = -1;
    struct stat st;
    hl_status status = hl_storage_open_folder(parent, name, &fd, err);
    if (status != HL_OK)
        return status;
    if (fstat(fd, &st) != 0)
        status = HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot look at the folder %s", name);
    else if (trusted)
        status = hl_storage_check_folder(&st, name, err);
    if (status == HL_OK)
        *folder = fd;
    else
        close(fd);
    return status;
}

/* Opens the root, creating it where that is allowed, and only on a file system that will do. */
static hl_status open_root(hl_weight_store *store, const hl_weight_store_options *options,
                           struct hl_filesystem *filesystem, hl_weight_failure *failure)
{
    int parent = -1;
    const char *name = NULL;
    hl_error err;
    hl_status status = open_parent(store, &name, &parent, failure);
    if (status != HL_OK)
        return status;
    assert(name);
    const bool creates = !options->read_only && !options->adopt;
    struct stat st;
    const bool missing = fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT;
    if (missing && creates) {
        status = check_filesystem(parent, store, options, filesystem, failure);
        if (status != HL_OK)
            goto out;
        status = hl_storage_make_folder(parent, name, store->trust_permissions, &store->root, &err);
    } else {
        status = open_existing(parent, name, store->trust_permissions, &store->root, &err);
    }
    if (status != HL_OK) {
        status = hl_store_unavailable(store, &err, failure);
        goto out;
    }
    status = check_filesystem(store->root, store, options, filesystem, failure);
    if (status == HL_OK && fstat(store->root, &st) != 0) {
        hl_error_set(&err, HL_E_SYSTEM, STAGE, errno, 0, "cannot look at the root");
        status = hl_store_unavailable(store, &err, failure);
    }
    if (status == HL_OK)
        store->device = st.st_dev;
out:
    close(parent);
    return status;
}

/* Artifacts move from folder to folder by renames, which no file system's border may cross. */
static hl_status check_device(const hl_weight_store *store, int fd, const char *name,
                              hl_weight_failure *failure)
{
    struct stat st;
    hl_error err;
    if (fstat(fd, &st) != 0) {
        hl_error_set(&err, HL_E_SYSTEM, STAGE, errno, 0, "cannot look at the folder %s", name);
        return hl_store_unavailable(store, &err, failure);
    }
    if (st.st_dev != store->device)
        return HL_WEIGHT_FAIL(failure, DOMAIN, DOMAIN_UNAVAILABLE, false,
                              "the folder %s of %s is another file system", name, store->root_path);
    return HL_OK;
}

static hl_status open_folders(hl_weight_store *store, hl_weight_failure *failure)
{
    const struct {
        const char *name;
        int *fd;
    } folders[] = {{"locks", &store->locks},
                   {"artifacts", &store->artifacts},
                   {"tmp", &store->tmp},
                   {"quarantine", &store->quarantine},
                   {"deny", &store->deny}};
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        hl_error err;
        const char *name = folders[i].name;
        hl_status status =
            store->read_only
                ? open_existing(store->root, name, store->trust_permissions, folders[i].fd, &err)
                : hl_storage_make_folder(store->root, name, store->trust_permissions, folders[i].fd, &err);
        if (status != HL_OK && store->read_only && err.sys_errno == ENOENT)
            continue; /* a domain that nothing was built in yet */
        if (status != HL_OK)
            return hl_store_unavailable(store, &err, failure);
        if ((status = check_device(store, *folders[i].fd, name, failure)) != HL_OK)
            return status;
    }
    return HL_OK;
}

/* --- opening --- */

/* The wait is for another process that opens the domain now: short, but a stopped one must not hang us. */
static hl_status establish_locked(hl_weight_store *store, const hl_weight_store_options *options,
                                  const struct hl_filesystem *filesystem, hl_weight_failure *failure)
{
    struct hl_lock lock = HL_LOCK_NONE;
    hl_error err;
    hl_status status = hl_lock_take(store->locks, HL_LOCK_DOMAIN_INIT, NULL, HL_LOCK_EXCLUSIVE,
                                    store->timeout_ns, false, &lock, &err);
    if (status != HL_OK)
        return hl_store_unavailable(store, &err, failure);
    status = hl_store_settings_establish(store, options, filesystem, failure);
    hl_lock_release(&lock);
    return status;
}

static uint32_t cores(void)
{
    cpu_set_t set;
    const int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return count < 1 ? 1 : count > (int)HL_WEIGHT_HASH_THREADS ? HL_WEIGHT_HASH_THREADS : (uint32_t)count;
}

static hl_weight_store *new_store(const hl_weight_store_options *options)
{
    hl_weight_store *store = calloc(1, sizeof *store);
    size_t length = strlen(options->root);
    while (options->root[length - 1] == '/')
        length--;
    if (!store || !(store->root_path = strndup(options->root, length))) {
        free(store);
        return NULL;
    }
    atomic_init(&store->references, 1);
    store->root = store->locks = store->artifacts = store->tmp = store->quarantine = store->deny = -1;
    store->timeout_ns = options->coordination_timeout_ns;
    store->trust_permissions = options->trust_permissions;
    store->read_only = options->read_only;
    store->aligned_layout = options->aligned_layout != 0;
    store->hash_threads = options->hash_threads ? options->hash_threads : cores();
    return store;
}

hl_status hl_weight_store_open(const hl_weight_store_options *options, hl_weight_store **out,
                               hl_weight_failure *failure)
{
    struct hl_filesystem filesystem;
    hl_status status = hl_store_options_check(options, failure);
    if (status != HL_OK)
        return status;
    hl_weight_store *store = new_store(options);
    if (!store)
        return HL_WEIGHT_FAIL(failure, DOMAIN, DOMAIN_UNAVAILABLE, true, "no memory to open a store");
    status = open_root(store, options, &filesystem, failure);
    /* What must exist already is recognised before a folder is made beside it. */
    if (status == HL_OK && (options->adopt || options->read_only))
        status = hl_store_settings_load(store, failure);
    if (status == HL_OK)
        status = open_folders(store, failure);
    if (status == HL_OK && !options->adopt && !options->read_only)
        status = establish_locked(store, options, &filesystem, failure);
    if (status == HL_OK)
        status = hl_store_settings_compare(store, options, &filesystem, failure);
    if (status != HL_OK) {
        hl_store_drop(store);
        return status;
    }
    *out = store;
    return HL_OK;
}
