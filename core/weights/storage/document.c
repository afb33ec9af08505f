/* Documents that exist whole or not at all, and the writing beneath them. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/weights/storage/storage.h"
#include "faults/hook.h"

#define STAGE "weights.storage"

static hl_status status_of(int system_error)
{
    return system_error == ENOSPC || system_error == EDQUOT ? HL_E_NOSPACE : HL_E_SYSTEM;
}

/* -1 and errno, or 0. A write of no bytes would go on for ever. */
static int write_all(int fd, const char *bytes, size_t size, uint64_t offset)
{
    while (size > 0) {
        const size_t offered = HL_FAULT_SHORTENS(weights_write_short, size);
        ssize_t done = pwrite(fd, bytes, offered, (off_t)offset);
        if (done < 0 && errno == EINTR)
            continue;
        if (done == 0)
            errno = EIO;
        if (done <= 0)
            return -1;
        bytes += done;
        size -= (size_t)done;
        offset += (uint64_t)done;
    }
    return 0;
}

static int sync_all(int fd)
{
    int result;
    do {
        result = fsync(fd);
    } while (result != 0 && errno == EINTR);
    return result;
}

hl_status hl_storage_write_at(int fd, const void *bytes, size_t size, uint64_t offset, hl_error *err)
{
    uint64_t end;
    if (__builtin_add_overflow(offset, (uint64_t)size, &end) || end > INT64_MAX)
        return HL_FAIL(err, HL_E_OVERFLOW, STAGE, "%zu bytes at %" PRIu64 " end beyond the largest file",
                       size, offset);
    if (write_all(fd, bytes, size, offset) != 0)
        return HL_FAIL_ERRNO(err, status_of(errno), STAGE, errno, "cannot write %zu bytes at %" PRIu64, size,
                             offset);
    return HL_OK;
}

hl_status hl_storage_sync(int fd, hl_error *err)
{
    if (sync_all(fd) != 0)
        return HL_FAIL_ERRNO(err, status_of(errno), STAGE, errno, "cannot synchronise");
    return HL_OK;
}

hl_status hl_storage_reserve(int fd, uint64_t bytes, hl_error *err)
{
    struct stat st;
    int result;
    if (bytes > INT64_MAX)
        return HL_FAIL(err, HL_E_OVERFLOW, STAGE, "%" PRIu64 " bytes are more than a file can have", bytes);
    if (bytes == 0)
        return HL_OK;
    do {
        result = fallocate(fd, 0, 0, (off_t)bytes);
    } while (result != 0 && errno == EINTR);
    if (result != 0 && (errno == EOPNOTSUPP || errno == ENOSYS)) {
        result = fstat(fd, &st);
        if (result == 0 && (uint64_t)st.st_size < bytes)
            result = ftruncate(fd, (off_t)bytes);
    }
    if (result != 0)
        return HL_FAIL_ERRNO(err, status_of(errno), STAGE, errno, "cannot reserve %" PRIu64 " bytes", bytes);
    return HL_OK;
}

hl_status hl_storage_uuid(char uuid[33], hl_error *err)
{
    unsigned char random[16];
    ssize_t got;
    do { /* up to 256 bytes come whole or not at all */
        got = getrandom(random, sizeof random, 0);
    } while (got < 0 && errno == EINTR);
    if (got != (ssize_t)sizeof random)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "the kernel gives no random bytes");
    random[6] = (unsigned char)(0x40 | (random[6] & 0x0f));
    random[8] = (unsigned char)(0x80 | (random[8] & 0x3f));
    for (unsigned i = 0; i < sizeof random; i++)
        snprintf(uuid + 2 * i, 3, "%02x", random[i]);
    return HL_OK;
}

/* The steps on the way to a document; each says what it was at when it fails. A descriptor that a step
 * yields is stored whatever the step reports, so that a failure behind it loses nothing. */
static long create_file(int parent, const char *file, int *fd)
{
    return HL_FAULT_STEP(
        weights_document_open,
        *fd = openat(parent, file, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
}

static hl_status write_step(int fd, const char *name, const char *text, size_t bytes, hl_error *err)
{
    if (HL_FAULT_STEP(weights_document_write, write_all(fd, text, bytes, 0)) != 0)
        return HL_FAIL_ERRNO(err, status_of(errno), STAGE, errno, "cannot write %s", name);
    return HL_OK;
}

static hl_status sync_step(int fd, const char *name, hl_error *err)
{
    if (HL_FAULT_STEP(weights_document_sync, sync_all(fd)) != 0)
        return HL_FAIL_ERRNO(err, status_of(errno), STAGE, errno, "cannot synchronise %s", name);
    return HL_OK;
}

static hl_status seal_step(int fd, const char *name, hl_error *err)
{
    if (HL_FAULT_STEP(weights_document_seal, fchmod(fd, 0444)) != 0)
        return HL_FAIL_ERRNO(err, status_of(errno), STAGE, errno, "cannot make %s read-only", name);
    return HL_OK;
}

hl_status hl_storage_create_document(int parent, const char *name, const char *text, size_t bytes,
                                     hl_error *err)
{
    hl_status status;
    int fd = -1;
    if (create_file(parent, name, &fd) < 0) {
        status = HL_FAIL_ERRNO(err, errno == EEXIST ? HL_E_BUSY : status_of(errno), STAGE, errno,
                               "cannot create %s", name);
        if (fd >= 0)
            goto err_unlink;
        return status;
    }
    if ((status = write_step(fd, name, text, bytes, err)) != HL_OK ||
        (status = sync_step(fd, name, err)) != HL_OK || (status = seal_step(fd, name, err)) != HL_OK ||
        (status = sync_step(fd, name, err)) != HL_OK)
        goto err_unlink;
    close(fd); /* synchronised: nothing is left that close() could fail to write */
    return HL_OK;

err_unlink:
    unlinkat(parent, name, 0);
    close(fd);
    return status;
}

/* How the new file came to its name, which decides how it is taken back. */
enum placed {
    PLACED_NOT,
    PLACED_NEW,     /* nothing was there */
    PLACED_SWAPPED, /* the temporary name has the old one now */
    PLACED_OVER     /* the old one is gone: the file system knows no swap */
};

static int place(int parent, const char *temporary, const char *name, enum placed *placed)
{
    if (renameat2(parent, temporary, parent, name, RENAME_NOREPLACE) == 0) {
        *placed = PLACED_NEW;
        return 0;
    }
    struct stat st;
    if (errno == EEXIST && fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode)) {
        errno = EISDIR; /* a swap would move it away */
        return -1;
    }
    if (errno == EEXIST && renameat2(parent, temporary, parent, name, RENAME_EXCHANGE) == 0) {
        *placed = PLACED_SWAPPED;
        return 0;
    }
    if (errno != EINVAL && errno != ENOSYS)
        return -1;
    if (renameat(parent, temporary, parent, name) != 0)
        return -1;
    *placed = PLACED_OVER;
    return 0;
}

static void take_back(int parent, const char *temporary, const char *name, enum placed placed)
{
    switch (placed) {
    case PLACED_NOT:
        unlinkat(parent, temporary, 0);
        break;
    case PLACED_NEW:
        unlinkat(parent, name, 0);
        break;
    case PLACED_SWAPPED:
        renameat(parent, temporary, parent, name);
        break;
    case PLACED_OVER:
        break;
    }
}

hl_status hl_storage_replace_document(int parent, const char *name, const char *text, size_t bytes,
                                      hl_error *err)
{
    char uuid[33], temporary[NAME_MAX + 1];
    int fd = -1;
    enum placed placed = PLACED_NOT;
    hl_status status = hl_storage_uuid(uuid, err);
    if (status != HL_OK)
        return status;
    int length = snprintf(temporary, sizeof temporary, ".%s.%s.tmp", name, uuid);
    if (length < 0 || (size_t)length >= sizeof temporary)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, ENAMETOOLONG, "%.64s… has no temporary name", name);
    if (create_file(parent, temporary, &fd) < 0) {
        status = HL_FAIL_ERRNO(err, status_of(errno), STAGE, errno, "cannot create %s", temporary);
        if (fd >= 0)
            goto err_take_back;
        return status;
    }
    if ((status = write_step(fd, name, text, bytes, err)) != HL_OK ||
        (status = seal_step(fd, name, err)) != HL_OK || (status = sync_step(fd, name, err)) != HL_OK)
        goto err_take_back;
    if (HL_FAULT_STEP(weights_document_rename, place(parent, temporary, name, &placed)) != 0) {
        status = HL_FAIL_ERRNO(err, status_of(errno), STAGE, errno, "cannot give %s its name", name);
        goto err_take_back;
    }
    if (HL_FAULT_STEP(weights_folder_sync, sync_all(parent)) != 0) {
        status =
            HL_FAIL_ERRNO(err, status_of(errno), STAGE, errno, "cannot synchronise the folder of %s", name);
        goto err_take_back;
    }
    if (placed == PLACED_SWAPPED && HL_FAULT_STEP(weights_remove, unlinkat(parent, temporary, 0)) != 0) {
        status = HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot remove the old %s", name);
        goto err_take_back;
    }
    close(fd);
    return HL_OK;

err_take_back:
    take_back(parent, temporary, name, placed);
    close(fd);
    return status;
}
