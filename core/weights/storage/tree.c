/* Removing a folder with all it holds, and counting what one takes. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/weights/storage/storage.h"
#include "core/weights/storage/walk.h"
#include "faults/hook.h"

#define STAGE "weights.storage"

/* --- removal --- */

/* A folder loses its entries only to whom may write it. One that somebody else owns is left as it is: if
 * permission is missing there, the removal that follows says so. */
static hl_status allow_removal(int folder, const char *path, const char *name, hl_error *err)
{
    struct stat st;
    if (fstat(folder, &st) != 0)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot look at the folder %s", name);
    if (st.st_uid != geteuid() || (st.st_mode & S_IRWXU) == S_IRWXU)
        return HL_OK;
    const mode_t mode = (st.st_mode & 07777) | S_IRWXU;
    if (HL_FAULT_STEP(weights_remove_unlock, path ? chmod(path, mode) : fchmod(folder, mode)) != 0)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot get write permission for the folder %s",
                             name);
    return HL_OK;
}

static hl_status removal_enters(void *context, int folder, hl_error *err)
{
    (void)context;
    return allow_removal(folder, NULL, "to be removed", err);
}

/* A folder that may not be read can still be named by a descriptor, and changed through it. */
static hl_status removal_unlocks(void *context, int parent, const char *name, hl_error *err)
{
    (void)context;
    char path[64];
    int fd = openat(parent, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return HL_OK;
    if (fd < 0)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot open the folder %s", name);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    hl_status status = allow_removal(fd, path, name, err);
    close(fd);
    return status;
}

static hl_status removal_sees(void *context, int folder, const char *name, bool *is_folder, hl_error *err)
{
    (void)context;
    if (HL_FAULT_STEP(weights_remove, unlinkat(folder, name, 0)) == 0 || errno == ENOENT)
        return HL_OK;
    const int unlink_errno = errno;
    struct stat st;
    if ((unlink_errno == EISDIR || unlink_errno == EPERM) &&
        fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) == 0 && S_ISDIR(st.st_mode)) {
        *is_folder = true;
        return HL_OK;
    }
    return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, unlink_errno, "cannot remove %s", name);
}

static hl_status remove_folder(void *context, int parent, const char *name, hl_error *err)
{
    (void)context;
    if (HL_FAULT_STEP(weights_remove, unlinkat(parent, name, AT_REMOVEDIR)) != 0 && errno != ENOENT)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot remove the folder %s", name);
    return HL_OK;
}

static hl_status removal_meets_mount(void *context, const char *name, hl_error *err)
{
    (void)context;
    return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, EBUSY, "the folder %s is another mount", name);
}

static const struct hl_walk_visitor removal = {.enter = removal_enters,
                                               .unlock = removal_unlocks,
                                               .entry = removal_sees,
                                               .leave = remove_folder,
                                               .mount = removal_meets_mount};

/* Whether `folder`, opened below `parent`, is a mount of its own. */
static hl_status check_no_mount(int parent, int folder, const char *name, hl_error *err)
{
    struct statx above, below;
    const unsigned mask = STATX_BASIC_STATS | STATX_MNT_ID;
    if (statx(parent, "", AT_EMPTY_PATH, mask, &above) != 0 ||
        statx(folder, "", AT_EMPTY_PATH, mask, &below) != 0)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot look at the folder %s", name);
    const bool ids = above.stx_mask & below.stx_mask & STATX_MNT_ID;
    if (above.stx_dev_major != below.stx_dev_major || above.stx_dev_minor != below.stx_dev_minor ||
        (ids && above.stx_mnt_id != below.stx_mnt_id))
        return removal_meets_mount(NULL, name, err);
    return HL_OK;
}

hl_status hl_storage_remove_tree(int parent, const char *name, hl_error *err)
{
    assert(*name && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0);
    const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    hl_status status;
    int top = openat(parent, name, flags);
    if (top < 0 && errno == EACCES) {
        status = removal_unlocks(NULL, parent, name, err);
        if (status != HL_OK)
            return status;
        top = openat(parent, name, flags);
    }
    if (top < 0 && errno == ENOENT)
        return HL_OK;
    if (top < 0)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot open the folder %s", name);
    status = check_no_mount(parent, top, name, err);
    if (status == HL_OK)
        status = allow_removal(top, NULL, name, err);
    if (status == HL_OK)
        status = hl_walk(top, &removal, err);
    close(top);
    return status == HL_OK ? remove_folder(NULL, parent, name, err) : status;
}

/* --- counting --- */

static hl_status counting_enters(void *context, int folder, hl_error *err)
{
    uint64_t *bytes = context;
    struct stat st;
    if (fstat(folder, &st) != 0)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot look at a folder");
    *bytes += (uint64_t)st.st_blocks * 512;
    return HL_OK;
}

static hl_status counting_sees(void *context, int folder, const char *name, bool *is_folder, hl_error *err)
{
    uint64_t *bytes = context;
    struct stat st;
    if (fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) != 0) {
        if (errno == ENOENT)
            return HL_OK;
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot look at %s", name);
    }
    *is_folder = S_ISDIR(st.st_mode);
    /* Not compared by device: on overlayfs a file may have another than its folder. */
    if (!*is_folder)
        *bytes += (uint64_t)st.st_blocks * 512;
    return HL_OK;
}

static hl_status counting_meets_mount(void *context, const char *name, hl_error *err)
{
    (void)context;
    (void)name;
    (void)err;
    return HL_OK;
}

hl_status hl_storage_tree_bytes(int directory, uint64_t *bytes, hl_error *err)
{
    uint64_t counted = 0;
    const struct hl_walk_visitor counting = {
        .context = &counted, .enter = counting_enters, .entry = counting_sees, .mount = counting_meets_mount};
    hl_status status = hl_walk(directory, &counting, err);
    if (status == HL_OK)
        *bytes = counted;
    return status;
}
