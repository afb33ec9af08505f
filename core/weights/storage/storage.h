/* core/weights/storage owns how the weight store touches a file system: what kind it is, folders and
 * documents opened without following links, documents written so that they exist whole or not at all, removal
 * of folders, and space. It knows nothing of artifacts. It calls core/base and faults/hook; core/weights/lock
 * and core/weights/store call it.
 *
 * Every step that changes the file system is a fault point (faults/hook.h), before and after.
 *
 * Errors keep errno: hl_storage_is_structural() tells an entry that is not what it must be (missing, a link,
 * a folder, not permitted) from trouble of the moment (EIO, too many open files). */
#ifndef CORE_WEIGHTS_STORAGE_STORAGE_H
#define CORE_WEIGHTS_STORAGE_STORAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "hostlane/status.h"

/* --- file systems --- */

enum hl_filesystem_class {
    HL_FILESYSTEM_DISK,
    HL_FILESYSTEM_TMPFS,
    HL_FILESYSTEM_REMOTE,
    HL_FILESYSTEM_UNKNOWN
};

struct hl_filesystem {
    char type[32]; /* the kernel's name: "ext4" */
    enum hl_filesystem_class class;
    bool read_only; /* the mount */
};

/* By name, from the list of local, tmpfs and remote types; anything else is unknown. */
enum hl_filesystem_class hl_filesystem_classify(const char *type);

/* Finds mount `mount_id` (statx STATX_MNT_ID) in the text of a mountinfo file. HL_E_NOT_FOUND, HL_E_CORRUPT.
 * The type and the options that mountinfo escapes (\040) are unescaped. */
hl_status hl_filesystem_from_mountinfo(const char *mountinfo, size_t bytes, uint64_t mount_id,
                                       struct hl_filesystem *filesystem, hl_error *err);

/* The file system that holds an open file or folder: its mount id looked up in /proc/self/mountinfo, and
 * checked against the magic number of statfs() where a number is known for the name. HL_E_SYSTEM,
 * HL_E_UNSUPPORTED (name and number contradict each other). Remote and unknown are not errors here. */
hl_status hl_filesystem_of(int fd, struct hl_filesystem *filesystem, hl_error *err);

/* Bytes that an unprivileged user may still allocate, and whether `bytes` fit beside `keep_free`. */
hl_status hl_storage_free_bytes(int fd, uint64_t *bytes, hl_error *err);

/* Bytes allocated (st_blocks) by everything below an open folder, itself included, on its file system. Links
 * are counted, not followed; what vanishes on the way is left out; a file with several names counts for each.
 */
hl_status hl_storage_tree_bytes(int directory, uint64_t *bytes, hl_error *err);

/* --- opening --- */

bool hl_storage_is_structural(int sys_errno); /* EACCES EISDIR ELOOP ENOENT ENOTDIR EPERM */

/* What a trusted entry is: owned by the effective user, and for folders not writable by group or others, for
 * files without any write permission bit. */
hl_status hl_storage_check_folder(const struct stat *st, const char *name,
                                  hl_error *err);                                        /* HL_E_PERMISSION */
hl_status hl_storage_check_file(const struct stat *st, const char *name, hl_error *err); /* HL_E_PERMISSION */

/* Opens a folder below `parent` (O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC). HL_E_SYSTEM with errno. */
hl_status hl_storage_open_folder(int parent, const char *name, int *fd, hl_error *err);

/* The same, creating it with mode 0700 first when it is missing; with `trusted` checked by
 * hl_storage_check_folder(). HL_E_NOSPACE. */
hl_status hl_storage_make_folder(int parent, const char *name, bool trusted, int *fd, hl_error *err);

/* Opens a regular file with one link (O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC) and gives its stat. A
 * pipe or device in its place does not block: HL_E_CORRUPT for anything that is not one regular file, a link
 * among them. HL_E_SYSTEM with errno. */
hl_status hl_storage_open_file(int parent, const char *name, struct stat *st, int *fd, hl_error *err);

/* Reads a whole file opened like that. With `trusted`, hl_storage_check_file(). HL_E_LIMIT beyond
 * `max_bytes`; HL_E_CORRUPT when it is no regular file or its size changes while it is read. The text is
 * freed with free(). */
hl_status hl_storage_read_document(int parent, const char *name, size_t max_bytes, bool trusted, char **text,
                                   size_t *bytes, hl_error *err);

/* --- changing --- */

/* Writes NAME by way of a temporary file and a rename; mode 0444; the file and the folder are synchronised.
 * An existing NAME is replaced; on failure it is as before and no temporary file is left, except that what
 * was renamed stays on a file system that can't exchange two names (RENAME_EXCHANGE), should synchronising
 * the folder then fail. A crash may leave ".NAME.UUID.tmp", which hl_storage_sweep_unfinished() removes.
 * HL_E_SYSTEM, HL_E_NOSPACE (ENOSPC, EDQUOT). */
hl_status hl_storage_replace_document(int parent, const char *name, const char *text, size_t bytes,
                                      hl_error *err);

/* Removes this user's files of exactly that form. It cannot tell a dead maker's from a living one's: only for
 * who holds the lock without which nobody replaces NAME. Stops at the first failure. HL_E_SYSTEM. */
hl_status hl_storage_sweep_unfinished(int parent, const char *name, hl_error *err);

/* Creates NAME (O_EXCL, 0600), writes, synchronises, makes it 0444, synchronises again. Does not synchronise
 * the folder. On failure NAME is gone again. HL_E_BUSY when it exists. */
hl_status hl_storage_create_document(int parent, const char *name, const char *text, size_t bytes,
                                     hl_error *err);

/* Reserves [0, bytes) of a file; falls back to setting the size where the file system cannot reserve. */
hl_status hl_storage_reserve(int fd, uint64_t bytes, hl_error *err);

/* Writes all of it, however often the kernel stops short. */
hl_status hl_storage_write_at(int fd, const void *bytes, size_t size, uint64_t offset, hl_error *err);

hl_status hl_storage_sync(int fd, hl_error *err); /* fsync() */

/* Removes the folder NAME and everything in it, also folders without write permission that this user owns;
 * follows no link, crosses no mount (HL_E_SYSTEM with EBUSY). A missing NAME is success; one that is no
 * folder is not. Stops at the first failure; the next call goes on. */
hl_status hl_storage_remove_tree(int parent, const char *name, hl_error *err);

/* A random UUID of version 4, as 32 hexadecimal digits, from the kernel's generator. */
hl_status hl_storage_uuid(char uuid[33], hl_error *err);

#endif
