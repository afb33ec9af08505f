#include "core/weights/storage/walk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "core/base/error.h"

#define STAGE "weights.storage"

/* So many folders of the chain stay open. A deeper walk closes those above and comes back through "..", which
 * fails when somebody moved the folder in the meantime; no store is that deep. */
enum { OPEN_LEVELS = 64 };

/* A folder being walked, and the names of the folders in it that are not yet. */
struct level {
    int fd; /* -1: closed, to be reached through ".." */
    dev_t device;
    ino_t inode;
    char *names; /* each with its NUL */
    size_t size, capacity;
    size_t next;    /* where the next name begins */
    size_t current; /* the name that is being walked */
};

struct walk {
    const struct hl_walk_visitor *visitor;
    uint64_t mount_id; /* of the top; 0 where the kernel does not tell */
    dev_t device;
    struct level *levels;
    size_t depth, capacity;
};

static hl_status remember(struct level *level, const char *name, hl_error *err)
{
    size_t bytes = strlen(name) + 1;
    if (level->capacity - level->size < bytes) {
        size_t capacity = 2 * level->capacity + bytes + 64;
        char *grown = realloc(level->names, capacity);
        if (!grown)
            return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for the names of a folder");
        level->names = grown;
        level->capacity = capacity;
    }
    memcpy(level->names + level->size, name, bytes);
    level->size += bytes;
    return HL_OK;
}

static hl_status read_folder(const struct walk *walk, struct level *level, hl_error *err)
{
    hl_status status = HL_OK;
    int fd = openat(level->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return HL_OK;
    DIR *stream = fd >= 0 ? fdopendir(fd) : NULL;
    if (!stream) {
        status = HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot read a folder");
        if (fd >= 0)
            close(fd);
        return status;
    }
    for (;;) {
        bool is_folder = false;
        errno = 0;
        const struct dirent *entry = readdir(stream);
        if (!entry) {
            if (errno && errno != ENOENT)
                status = HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot read a folder");
            break;
        }
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        status = walk->visitor->entry(walk->visitor->context, level->fd, entry->d_name, &is_folder, err);
        if (status == HL_OK && is_folder)
            status = remember(level, entry->d_name, err);
        if (status != HL_OK)
            break;
    }
    closedir(stream);
    return status;
}

/* Takes over `fd`, also when it fails. */
static hl_status push(struct walk *walk, int fd, const struct statx *folder, hl_error *err)
{
    if (walk->depth == walk->capacity) {
        size_t capacity = 2 * walk->capacity + 16;
        struct level *grown = realloc(walk->levels, capacity * sizeof *grown);
        if (!grown) {
            close(fd);
            return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for a walk %zu folders deep", capacity);
        }
        walk->levels = grown;
        walk->capacity = capacity;
    }
    if (walk->depth > OPEN_LEVELS) {
        struct level *above = &walk->levels[walk->depth - 1];
        close(above->fd);
        above->fd = -1;
    }
    struct level *level = &walk->levels[walk->depth++];
    *level = (struct level){
        .fd = fd, .device = makedev(folder->stx_dev_major, folder->stx_dev_minor), .inode = folder->stx_ino};
    hl_status status = walk->visitor->enter(walk->visitor->context, fd, err);
    return status == HL_OK ? read_folder(walk, level, err) : status;
}

/* Opens the folder above again, if need be, from the one that is done. */
static hl_status reopen(struct level *above, int below, hl_error *err)
{
    struct stat st;
    if (above->fd >= 0)
        return HL_OK;
    int fd = openat(below, "..", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0) {
        hl_status status =
            HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot go back to the folder above");
        if (fd >= 0)
            close(fd);
        return status;
    }
    if (st.st_dev != above->device || st.st_ino != above->inode) {
        close(fd);
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, ESTALE, "a folder was moved while it was walked");
    }
    above->fd = fd;
    return HL_OK;
}

static hl_status pop(struct walk *walk, hl_error *err)
{
    struct level *level = &walk->levels[walk->depth - 1];
    hl_status status = HL_OK;
    if (walk->depth > 1) {
        struct level *above = level - 1;
        status = reopen(above, level->fd, err);
        if (status == HL_OK && walk->visitor->leave)
            status =
                walk->visitor->leave(walk->visitor->context, above->fd, above->names + above->current, err);
    }
    free(level->names);
    close(level->fd);
    walk->depth--;
    return status;
}

static int open_below(int parent, const char *name)
{
    return openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* Walks into the folder `name`, unless it is gone, no folder any more, or another file system's. */
static hl_status descend(struct walk *walk, int parent, const char *name, hl_error *err)
{
    const struct hl_walk_visitor *visitor = walk->visitor;
    struct statx folder;
    int fd = open_below(parent, name);
    if (fd < 0 && errno == EACCES && visitor->unlock) {
        hl_status status = visitor->unlock(visitor->context, parent, name, err);
        if (status != HL_OK)
            return status;
        fd = open_below(parent, name);
    }
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR || errno == ELOOP))
        return HL_OK;
    if (fd < 0)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot open the folder %s", name);
    if (statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_MNT_ID, &folder) != 0) {
        hl_status status =
            HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot look at the folder %s", name);
        close(fd);
        return status;
    }
    uint64_t mount_id = folder.stx_mask & STATX_MNT_ID ? folder.stx_mnt_id : 0;
    if (mount_id != walk->mount_id || makedev(folder.stx_dev_major, folder.stx_dev_minor) != walk->device) {
        close(fd);
        return visitor->mount(visitor->context, name, err);
    }
    return push(walk, fd, &folder, err);
}

static hl_status start(struct walk *walk, int top, hl_error *err)
{
    struct statx folder;
    int fd = openat(top, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_MNT_ID, &folder) != 0) {
        hl_status status = HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot open a folder to walk");
        if (fd >= 0)
            close(fd);
        return status;
    }
    walk->mount_id = folder.stx_mask & STATX_MNT_ID ? folder.stx_mnt_id : 0;
    walk->device = makedev(folder.stx_dev_major, folder.stx_dev_minor);
    return push(walk, fd, &folder, err);
}

hl_status hl_walk(int top, const struct hl_walk_visitor *visitor, hl_error *err)
{
    struct walk walk = {.visitor = visitor};
    hl_status status = start(&walk, top, err);
    while (status == HL_OK && walk.depth > 0) {
        struct level *level = &walk.levels[walk.depth - 1];
        if (level->next == level->size) {
            status = pop(&walk, err);
            continue;
        }
        level->current = level->next;
        level->next += strlen(level->names + level->next) + 1;
        status = descend(&walk, level->fd, level->names + level->current, err);
    }
    while (walk.depth > 0) {
        struct level *level = &walk.levels[--walk.depth];
        free(level->names);
        if (level->fd >= 0)
            close(level->fd);
    }
    free(walk.levels);
    return status;
}
