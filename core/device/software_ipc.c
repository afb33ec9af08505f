/* Export and import of allocations between processes. A handle says where the exporter's memfd can be opened
 * (/proc/<pid>/fd/<fd>) and what must be found there; the memfd's random name and its inode tell a live
 * allocation from whatever took its number after a free, or its process id after an exit. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/checked.h"
#include "core/device/software_internal.h"

#define MAGIC 0x484c4950u
#define NAME_PREFIX "/memfd:hostlane-device-"
#define TOKEN_BYTES 32

struct handle {
    uint32_t magic;
    int32_t pid;
    int32_t fd;
    uint32_t reserved; /* 0 */
    uint64_t inode;
    uint64_t bytes;
    char token[TOKEN_BYTES]; /* the name's hexadecimal digits */
};
_Static_assert(sizeof(struct handle) == HL_IPC_HANDLE_BYTES, "a handle fills its bytes");

/* The token in the name of the memfd behind `link`, a path in /proc. Sets errno, 0 on success. */
static bool read_token(const char *link, char token[TOKEN_BYTES])
{
    char name[sizeof NAME_PREFIX + TOKEN_BYTES + 16];
    ssize_t size = readlink(link, name, sizeof name);
    size_t prefix = sizeof NAME_PREFIX - 1;
    if (size < 0)
        return false;
    errno = ENOENT;
    if (size < (ssize_t)(prefix + TOKEN_BYTES) || memcmp(name, NAME_PREFIX, prefix) != 0)
        return false;
    errno = 0;
    memcpy(token, name + prefix, TOKEN_BYTES);
    return true;
}

hl_status hl_software_ipc_export(hl_device *device, hl_devptr ptr, struct hl_ipc_export *out, hl_error *err)
{
    struct software_device *dev = software(device);
    hl_status status = hl_software_check_entered(device, "ipc_export", err);
    if (status)
        return status;
    struct handle handle = {.magic = MAGIC, .pid = getpid()};
    struct hl_ipc_export result = {0};
    char link[64];
    struct stat file;
    pthread_mutex_lock(&dev->lock);
    const struct software_region *region = hl_software_find_region(dev, ptr, 1);
    if (!region || region->kind != REGION_DEVICE) {
        status = HL_FAIL_DEVICE(err, HL_E_INVALID, HL_SOFTWARE_STAGE, SOFTWARE_INVALID_VALUE,
                                "ptr: %#" PRIx64 " is not in an allocation of this process", ptr);
        goto unlock;
    }
    snprintf(link, sizeof link, "/proc/self/fd/%d", region->fd);
    if (fstat(region->fd, &file) || !read_token(link, handle.token)) {
        status = HL_FAIL_ERRNO(err, HL_E_SYSTEM, HL_SOFTWARE_STAGE, errno, "cannot look at device memory");
        goto unlock;
    }
    handle.fd = region->fd;
    handle.inode = file.st_ino;
    handle.bytes = region->bytes;
    result.offset = ptr - region->base;
    result.allocation_bytes = region->bytes;
    memcpy(result.handle, &handle, sizeof handle);
    *out = result;
unlock:
    pthread_mutex_unlock(&dev->lock);
    return status;
}

static hl_status check_handle(const struct handle *handle, const struct hl_ipc_export *in, hl_error *err)
{
    if (handle->magic != MAGIC || handle->reserved || handle->pid <= 0 || handle->fd < 0)
        return HL_FAIL_DEVICE(err, HL_E_INVALID, HL_SOFTWARE_STAGE, SOFTWARE_INVALID_VALUE,
                              "handle: not a handle of a software device");
    if (handle->pid == getpid())
        return HL_FAIL_DEVICE(err, HL_E_INVALID, HL_SOFTWARE_STAGE, SOFTWARE_INVALID_CONTEXT,
                              "handle: this process exported it; as on CUDA, only another can import it");
    if (in->allocation_bytes != handle->bytes || !handle->bytes)
        return HL_FAIL_DEVICE(err, HL_E_INVALID, HL_SOFTWARE_STAGE, SOFTWARE_INVALID_VALUE,
                              "allocation_bytes: %" PRIu64 ", the handle says %" PRIu64, in->allocation_bytes,
                              handle->bytes);
    if (in->offset >= handle->bytes)
        return HL_FAIL_DEVICE(err, HL_E_RANGE, HL_SOFTWARE_STAGE, SOFTWARE_INVALID_VALUE,
                              "offset: %" PRIu64 " lies outside an allocation of %" PRIu64 " bytes",
                              in->offset, handle->bytes);
    return HL_OK;
}

static hl_status refuse_stale(const struct handle *handle, hl_error *err)
{
    return HL_FAIL_DEVICE(err, HL_E_INVALID, HL_SOFTWARE_STAGE, SOFTWARE_INVALID_HANDLE,
                          "handle: stale: process %d no longer has this allocation as descriptor %d",
                          handle->pid, handle->fd);
}

/* Looks before it opens, as opening a stranger's descriptor could have effects, and again at what it has got.
 */
static hl_status open_exported(const struct handle *handle, int *out, hl_error *err)
{
    char link[64], token[TOKEN_BYTES];
    struct stat file;
    snprintf(link, sizeof link, "/proc/%d/fd/%d", handle->pid, handle->fd);
    errno = 0;
    if (!read_token(link, token) && (errno == EACCES || errno == EPERM))
        return HL_FAIL_ERRNO(err, HL_E_PERMISSION, HL_SOFTWARE_STAGE, errno,
                             "handle: may not look at process %d", handle->pid);
    if (errno || memcmp(token, handle->token, TOKEN_BYTES) != 0)
        return refuse_stale(handle, err);
    int fd = open(link, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return errno == ENOENT
                   ? refuse_stale(handle, err)
                   : HL_FAIL_ERRNO(err, HL_E_SYSTEM, HL_SOFTWARE_STAGE, errno, "cannot open %s", link);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (!read_token(link, token) || memcmp(token, handle->token, TOKEN_BYTES) != 0 || fstat(fd, &file) ||
        file.st_ino != handle->inode || (uint64_t)file.st_size < handle->bytes) {
        close(fd);
        return refuse_stale(handle, err);
    }
    *out = fd;
    return HL_OK;
}

hl_status hl_software_ipc_import(hl_device *device, const struct hl_ipc_export *in, hl_devptr *ptr,
                                 hl_error *err)
{
    struct software_device *dev = software(device);
    struct handle handle;
    int fd = -1;
    struct software_region *region = NULL;
    hl_status status = hl_software_check_entered(device, "ipc_import", err);
    if (status)
        return status;
    memcpy(&handle, in->handle, sizeof handle);
    status = check_handle(&handle, in, err);
    if (!status)
        status = open_exported(&handle, &fd, err);
    if (!status)
        status = hl_software_map_region(REGION_IMPORT, fd, handle.bytes, &region, err);
    if (status)
        return status;
    region->imported = region->base + in->offset;
    pthread_mutex_lock(&dev->lock);
    status = hl_software_add_region(dev, region, err);
    if (status) {
        hl_software_free_region(region);
    } else {
        dev->counts.imports++;
        *ptr = region->imported;
    }
    pthread_mutex_unlock(&dev->lock);
    return status;
}

hl_status hl_software_ipc_close(hl_device *device, hl_devptr ptr, hl_error *err)
{
    struct software_device *dev = software(device);
    hl_status status = hl_software_check_entered(device, "ipc_close", err);
    if (status)
        return status;
    pthread_mutex_lock(&dev->lock);
    struct software_region *region = hl_software_find_region(dev, ptr, 0);
    if (region && region->kind == REGION_IMPORT && region->imported == ptr && !region->dying) {
        hl_software_remove_region(dev, region);
        dev->counts.imports--;
    } else {
        status = HL_FAIL_DEVICE(err, HL_E_INVALID, HL_SOFTWARE_STAGE, SOFTWARE_INVALID_VALUE,
                                "ptr: %#" PRIx64 " was not returned by ipc_import", ptr);
    }
    pthread_mutex_unlock(&dev->lock);
    return status;
}
