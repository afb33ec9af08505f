/* Folders of runs. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "faults/sweep/case.h"

bool sweep_folder_make(const char *path, uid_t owner)
{
    if (mkdir(path, 0755))
        return false;
    return owner == geteuid() || !chown(path, owner, (gid_t)owner);
}

static bool remove_inside(int parent, const char *name)
{
    const int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return !unlinkat(parent, name, 0);
    bool ok = !fchmod(fd, 0700);
    DIR *listing = fdopendir(fd);
    if (!listing) {
        close(fd);
        return false;
    }
    for (struct dirent *entry; (entry = readdir(listing));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            ok &= remove_inside(fd, entry->d_name);
    closedir(listing);
    return ok && !unlinkat(parent, name, AT_REMOVEDIR);
}

bool sweep_folder_remove(const char *path)
{
    return remove_inside(AT_FDCWD, path);
}
