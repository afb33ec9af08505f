/* Opening what others may have put there: no link is followed, nothing blocks, and what is no regular file
 * with one name is refused before a byte of it is read. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/weights/storage/storage.h"
#include "faults/hook.h"

#define STAGE "weights.storage"

bool hl_storage_is_structural(int sys_errno)
{
    return sys_errno == EACCES || sys_errno == EISDIR || sys_errno == ELOOP || sys_errno == ENOENT ||
           sys_errno == ENOTDIR || sys_errno == EPERM;
}

static hl_status check_owner(const struct stat *st, const char *name, hl_error *err)
{
    if (st->st_uid != geteuid())
        return HL_FAIL(err, HL_E_PERMISSION, STAGE, "%s belongs to user %u, not to user %u who runs this",
                       name, (unsigned)st->st_uid, (unsigned)geteuid());
    return HL_OK;
}

hl_status hl_storage_check_folder(const struct stat *st, const char *name, hl_error *err)
{
    if (!S_ISDIR(st->st_mode))
        return HL_FAIL(err, HL_E_PERMISSION, STAGE, "%s is not a folder", name);
    if (st->st_mode & (S_IWGRP | S_IWOTH))
        return HL_FAIL(err, HL_E_PERMISSION, STAGE, "%s is writable by others (mode %04o)", name,
                       (unsigned)(st->st_mode & 07777));
    return check_owner(st, name, err);
}

hl_status hl_storage_check_file(const struct stat *st, const char *name, hl_error *err)
{
    if (!S_ISREG(st->st_mode))
        return HL_FAIL(err, HL_E_PERMISSION, STAGE, "%s is not a regular file", name);
    if (st->st_mode & (S_IWUSR | S_IWGRP | S_IWOTH))
        return HL_FAIL(err, HL_E_PERMISSION, STAGE, "%s is writable (mode %04o)", name,
                       (unsigned)(st->st_mode & 07777));
    return check_owner(st, name, err);
}

hl_status hl_storage_open_folder(int parent, const char *name, int *out, hl_error *err)
{
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot open the folder %s", name);
    *out = fd;
    return HL_OK;
}

hl_status hl_storage_make_folder(int parent, const char *name, bool trusted, int *out, hl_error *err)
{
    int fd = -1;
    struct stat st;
    hl_error tried;
    hl_status status = hl_storage_open_folder(parent, name, &fd, &tried);
    if (status != HL_OK && tried.sys_errno == ENOENT) {
        if (HL_FAULT_STEP(weights_folder_make, mkdirat(parent, name, 0700)) != 0 && errno != EEXIST)
            return HL_FAIL_ERRNO(err, errno == ENOSPC || errno == EDQUOT ? HL_E_NOSPACE : HL_E_SYSTEM, STAGE,
                                 errno, "cannot make the folder %s", name);
        status = hl_storage_open_folder(parent, name, &fd, &tried);
    }
    if (status != HL_OK) {
        if (err)
            *err = tried;
        return status;
    }
    if (fstat(fd, &st) != 0) {
        status = HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot look at the folder %s", name);
        goto err_close;
    }
    if (trusted && (status = hl_storage_check_folder(&st, name, err)) != HL_OK)
        goto err_close;
    *out = fd;
    return HL_OK;

err_close:
    close(fd);
    return status;
}

hl_status hl_storage_open_file(int parent, const char *name, struct stat *st, int *out, hl_error *err)
{
    hl_status status;
    struct stat found;
    int fd = openat(parent, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) {
        /* A link gives ELOOP; a socket or a device without a driver ENXIO or ENODEV. */
        bool other = errno == ELOOP || errno == ENXIO || errno == ENODEV;
        return HL_FAIL_ERRNO(err, other ? HL_E_CORRUPT : HL_E_SYSTEM, STAGE, errno, "cannot open the file %s",
                             name);
    }
    if (fstat(fd, &found) != 0) {
        status = HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot look at the file %s", name);
        goto err_close;
    }
    if (!S_ISREG(found.st_mode)) {
        status = HL_FAIL(err, HL_E_CORRUPT, STAGE, "%s is not a regular file", name);
        goto err_close;
    }
    if (found.st_nlink != 1) {
        status = HL_FAIL(err, HL_E_CORRUPT, STAGE, "%s has %" PRIu64 " links instead of one", name,
                         (uint64_t)found.st_nlink);
        goto err_close;
    }
    *st = found;
    *out = fd;
    return HL_OK;

err_close:
    close(fd);
    return status;
}

/* Reads exactly `size` bytes and sees the end behind them; `text` has room for one more. */
static hl_status read_all(int fd, const char *name, char *text, size_t size, hl_error *err)
{
    size_t used = 0;
    for (;;) {
        const size_t wanted = size + 1 - used;
        ssize_t got = HL_FAULT_STEP(weights_read, pread(fd, text + used, wanted, (off_t)used));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot read %s", name);
        used += (size_t)got;
        if (used > size || (got == 0 && used < size))
            return HL_FAIL(err, HL_E_CORRUPT, STAGE, "%s changed its size of %zu bytes while it was read",
                           name, size);
        if (got == 0)
            return HL_OK;
    }
}

hl_status hl_storage_read_document(int parent, const char *name, size_t max_bytes, bool trusted, char **out,
                                   size_t *bytes, hl_error *err)
{
    struct stat st;
    int fd = -1;
    hl_status status = hl_storage_open_file(parent, name, &st, &fd, err);
    if (status != HL_OK)
        return status;
    if (trusted && (status = hl_storage_check_file(&st, name, err)) != HL_OK)
        goto err_close;
    const size_t size = (size_t)st.st_size;
    if (st.st_size < 0 || (uint64_t)st.st_size > max_bytes) {
        status = HL_FAIL(err, HL_E_LIMIT, STAGE, "%s has %lld bytes, more than %zu", name,
                         (long long)st.st_size, max_bytes);
        goto err_close;
    }
    char *text = size < SIZE_MAX ? malloc(size + 1) : NULL;
    if (!text) {
        status = HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for the %zu bytes of %s", size, name);
        goto err_close;
    }
    status = read_all(fd, name, text, size, err);
    if (status != HL_OK)
        goto err_free;
    text[size] = 0;
    close(fd);
    *out = text;
    *bytes = size;
    return HL_OK;

err_free:
    free(text);
err_close:
    close(fd);
    return status;
}
