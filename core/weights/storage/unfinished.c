/* What replacements of a document leave when their process dies. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/weights/storage/storage.h"
#include "faults/hook.h"

#define STAGE "weights.storage"

/* ".NAME.UUID.tmp", as hl_storage_replace_document() makes it. */
static bool is_unfinished(const char *entry, const char *name)
{
    const size_t length = strlen(name);
    if (entry[0] != '.' || strncmp(entry + 1, name, length) != 0 || entry[1 + length] != '.')
        return false;
    const char *const uuid = entry + 1 + length + 1;
    return strspn(uuid, "0123456789abcdef") == 32 && !strcmp(uuid + 32, ".tmp");
}

/* One that is no file of this user's was not made by any replacement of his. */
static hl_status sweep_entry(int folder, const char *entry, hl_error *err)
{
    struct stat st;
    if (fstatat(folder, entry, &st, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) != 0)
        return errno == ENOENT
                   ? HL_OK
                   : HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot look at %.100s", entry);
    if (!S_ISREG(st.st_mode) || st.st_uid != geteuid())
        return HL_OK;
    if (HL_FAULT_STEP(weights_remove, unlinkat(folder, entry, 0)) != 0 && errno != ENOENT)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot remove %.100s", entry);
    return HL_OK;
}

hl_status hl_storage_sweep_unfinished(int parent, const char *name, hl_error *err)
{
    const int fd = openat(parent, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *const stream = fd >= 0 ? fdopendir(fd) : NULL;
    if (!stream) {
        const hl_status status = HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot read a folder");
        if (fd >= 0)
            close(fd);
        return status;
    }
    hl_status status = HL_OK;
    while (!status) {
        errno = 0;
        const struct dirent *const entry = readdir(stream);
        if (!entry) {
            if (errno)
                status = HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot read a folder");
            break;
        }
        if (is_unfinished(entry->d_name, name))
            status = sweep_entry(parent, entry->d_name, err);
    }
    closedir(stream);
    return status;
}
