/* The file system that holds an open file: by the id of its mount, so that of two mounts stacked on one path
 * it is the right one, and no path is looked at. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/weights/storage/magic.h"
#include "core/weights/storage/storage.h"

#define STAGE "weights.filesystem"
#define MOUNTINFO "/proc/self/mountinfo"

/* fs.mount-max allows 100000 mounts, and a line is mostly two paths. */
enum { MOUNTINFO_BYTES = 64 << 20 };

static hl_status read_mountinfo(char **text, size_t *bytes, hl_error *err)
{
    hl_status status;
    size_t used = 0, capacity = 0;
    char *buffer = NULL;
    int fd = open(MOUNTINFO, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot open " MOUNTINFO);
    for (;;) {
        if (used == capacity) {
            capacity = capacity ? 2 * capacity : 64 << 10;
            char *grown = capacity <= MOUNTINFO_BYTES ? realloc(buffer, capacity) : NULL;
            if (!grown) {
                status = HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for %zu bytes of " MOUNTINFO, capacity);
                goto err_free;
            }
            buffer = grown;
        }
        ssize_t got = read(fd, buffer + used, capacity - used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            status = HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot read " MOUNTINFO);
            goto err_free;
        }
        if (got == 0)
            break;
        used += (size_t)got;
    }
    close(fd);
    *text = buffer;
    *bytes = used;
    return HL_OK;

err_free:
    free(buffer);
    close(fd);
    return status;
}

hl_status hl_filesystem_of(int fd, struct hl_filesystem *filesystem, hl_error *err)
{
    struct statx file;
    struct statfs kernel;
    struct hl_filesystem found;
    char *text = NULL;
    size_t bytes = 0;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_MNT_ID, &file) != 0)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot ask for the mount of fd %d", fd);
    if (!(file.stx_mask & STATX_MNT_ID))
        return HL_FAIL(err, HL_E_UNSUPPORTED, STAGE, "the kernel does not tell a file's mount (before 5.8)");
    if (fstatfs(fd, &kernel) != 0)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot ask for the file system of fd %d", fd);
    hl_status status = read_mountinfo(&text, &bytes, err);
    if (status != HL_OK)
        return status;
    status = hl_filesystem_from_mountinfo(text, bytes, file.stx_mnt_id, &found, err);
    free(text);
    if (status == HL_E_NOT_FOUND)
        return HL_FAIL(err, HL_E_SYSTEM, STAGE, "mount %" PRIu64 " of fd %d is not visible here or detached",
                       (uint64_t)file.stx_mnt_id, fd);
    if (status != HL_OK)
        return status;
    if (hl_magic_contradicts(found.type, (uint32_t)kernel.f_type))
        return HL_FAIL(err, HL_E_UNSUPPORTED, STAGE, "the file system is named %s but has the number 0x%x",
                       found.type, (unsigned)kernel.f_type);
    *filesystem = found;
    return HL_OK;
}

hl_status hl_storage_free_bytes(int fd, uint64_t *bytes, hl_error *err)
{
    struct statvfs space;
    uint64_t available;
    if (fstatvfs(fd, &space) != 0)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, "weights.storage", errno, "cannot ask for free space");
    if (__builtin_mul_overflow((uint64_t)space.f_bavail, (uint64_t)space.f_frsize, &available))
        available = UINT64_MAX;
    *bytes = available;
    return HL_OK;
}
