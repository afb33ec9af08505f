#include "core/base/memfd.h"

#include <errno.h>
#include <inttypes.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/error.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008u /* Linux 6.3; it adds F_SEAL_EXEC */
#endif

static hl_status status_of(int system_error)
{
    return system_error == ENOMEM || system_error == ENOSPC ? HL_E_NOMEM : HL_E_SYSTEM;
}

hl_status hl_memfd_create(const char *name, unsigned flags, uint64_t bytes, const char *stage, int *out,
                          hl_error *err)
{
    hl_status status;
    flags |= MFD_CLOEXEC | MFD_ALLOW_SEALING;
    /* Some hosts (vm.memfd_noexec) allow only memfds that can't be executed; kernels before 6.3 don't know
     * the flag. */
    int fd = memfd_create(name, flags | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL)
        fd = memfd_create(name, flags);
    if (fd < 0)
        return HL_FAIL_ERRNO(err, status_of(errno), stage, errno, "cannot create the memfd %s", name);
    if (ftruncate(fd, (off_t)bytes) != 0) {
        status = HL_FAIL_ERRNO(err, status_of(errno), stage, errno,
                               "cannot give the memfd %s %" PRIu64 " bytes", name, bytes);
        goto err_close;
    }
    if (fcntl(fd, F_ADD_SEALS, HL_MEMFD_SEALS) != 0) {
        status = HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, errno, "cannot seal the memfd %s", name);
        goto err_close;
    }
    *out = fd;
    return HL_OK;

err_close:
    close(fd);
    return status;
}

/* Seals before size: the size of what is not sealed says nothing. Only a memfd can have both size seals: what
 * else knows seals at all (a file on tmpfs) is born with F_SEAL_SEAL alone. A seal on writing would make the
 * mapping fail later. */
static hl_status check(int fd, uint64_t bytes, const char *stage, hl_error *err)
{
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0)
        return HL_FAIL_ERRNO(err, errno == EINVAL ? HL_E_PERMISSION : HL_E_SYSTEM, stage, errno,
                             "the fd is not a memfd: its seals cannot be read");
    if ((seals & ~F_SEAL_EXEC) != HL_MEMFD_SEALS)
        return HL_FAIL(
            err, HL_E_PERMISSION, stage,
            "the memfd has seals 0x%x, not exactly those against shrinking, growing and sealing (0x%x)",
            (unsigned)seals, (unsigned)HL_MEMFD_SEALS);
    struct stat file;
    if (fstat(fd, &file) != 0)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, errno, "cannot look at the memfd");
    if ((uint64_t)file.st_size != bytes)
        return HL_FAIL(err, HL_E_RANGE, stage, "bytes is %" PRIu64 ", but the memfd has %lld", bytes,
                       (long long)file.st_size);
    return HL_OK;
}

hl_status hl_memfd_import(int fd, uint64_t bytes, const char *stage, int *own, hl_error *err)
{
    int duplicate = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (duplicate < 0)
        return HL_FAIL_ERRNO(err, errno == EBADF ? HL_E_INVALID : HL_E_SYSTEM, stage, errno,
                             "cannot duplicate fd %d", fd);
    hl_status status = check(duplicate, bytes, stage, err);
    if (status != HL_OK) {
        close(duplicate);
        return status;
    }
    *own = duplicate;
    return HL_OK;
}

hl_status hl_memfd_map(int fd, uint64_t bytes, const char *stage, void **base, hl_error *err)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return HL_FAIL_ERRNO(err, errno == EACCES || errno == EPERM ? HL_E_PERMISSION : status_of(errno),
                             stage, errno, "cannot map %" PRIu64 " bytes", bytes);
    *base = at;
    return HL_OK;
}
