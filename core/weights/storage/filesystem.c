/* What kind of file system a mount is, by the kernel's name for it. The lists are those of the store's
 * format: a domain on a file system that is in none of them is refused, hence exfat and msdos (no modes) and
 * hugetlbfs (no writes) are absent on purpose. */
#include <inttypes.h>
#include <string.h>

#include "core/base/error.h"
#include "core/weights/storage/storage.h"

#define STAGE "weights.filesystem"

static const char *const disk_types[] = {"aufs",     "bcachefs", "btrfs",   "erofs", "ext2",  "ext3",
                                         "ext4",     "f2fs",     "fuseblk", "jfs",   "ntfs3", "overlay",
                                         "reiserfs", "rootfs",   "xfs",     "zfs"};
static const char *const tmpfs_types[] = {"tmpfs", "ramfs"};
static const char *const remote_types[] = {
    "9p",         "afs",     "beegfs", "ceph",   "cifs",  "fuse.gcsfuse", "fuse.s3fs",
    "fuse.sshfs", "gcsfuse", "gpfs",   "lustre", "nfs",   "nfs4",         "glusterfs",
    "orangefs",   "panfs",   "s3fs",   "smb3",   "sshfs", "virtiofs",     "wekafs"};

static bool contains(const char *const *types, size_t count, const char *type)
{
    for (size_t i = 0; i < count; i++)
        if (!strcmp(types[i], type))
            return true;
    return false;
}

enum hl_filesystem_class hl_filesystem_classify(const char *type)
{
    if (contains(disk_types, sizeof disk_types / sizeof *disk_types, type))
        return HL_FILESYSTEM_DISK;
    if (contains(tmpfs_types, sizeof tmpfs_types / sizeof *tmpfs_types, type))
        return HL_FILESYSTEM_TMPFS;
    if (contains(remote_types, sizeof remote_types / sizeof *remote_types, type))
        return HL_FILESYSTEM_REMOTE;
    return HL_FILESYSTEM_UNKNOWN;
}

/* A part of the text, not terminated. */
struct span {
    const char *at;
    size_t size;
};

/* Cuts the next field off a line: fields are separated by one space each, none is empty. */
static bool next_field(struct span *line, struct span *field)
{
    const char *space = memchr(line->at, ' ', line->size);
    size_t size = space ? (size_t)(space - line->at) : line->size;
    if (size == 0)
        return false;
    *field = (struct span){line->at, size};
    size_t used = space ? size + 1 : size;
    line->at += used;
    line->size -= used;
    return true;
}

static bool parse_number(struct span field, uint64_t *number)
{
    uint64_t value = 0;
    for (size_t i = 0; i < field.size; i++) {
        if (field.at[i] < '0' || field.at[i] > '9' || __builtin_mul_overflow(value, 10u, &value) ||
            __builtin_add_overflow(value, (uint64_t)(field.at[i] - '0'), &value))
            return false;
    }
    *number = value;
    return field.size > 0;
}

/* The kernel writes space, tab, newline and backslash as \ooo. A name that does not fit is cut: none of the
 * known ones is that long, so it stays unknown. */
static bool unescape(struct span field, char *text, size_t capacity)
{
    size_t used = 0;
    for (size_t i = 0; i < field.size; i++) {
        unsigned char byte = (unsigned char)field.at[i];
        if (byte == '\\') {
            unsigned value = 0;
            if (field.size - i < 4)
                return false;
            for (size_t digit = 1; digit <= 3; digit++) {
                if (field.at[i + digit] < '0' || field.at[i + digit] > '7')
                    return false;
                value = value * 8 + (unsigned)(field.at[i + digit] - '0');
            }
            if (value > 255)
                return false;
            byte = (unsigned char)value;
            i += 3;
        }
        if (byte == 0)
            return false;
        if (used + 1 < capacity)
            text[used++] = (char)byte;
    }
    text[used] = 0;
    return true;
}

/* The kernel writes "rw" or "ro" first, before any option of the file system's own making. */
static bool parse_access(struct span options, bool *read_only)
{
    if (options.size < 2 || (options.size > 2 && options.at[2] != ','))
        return false;
    *read_only = !memcmp(options.at, "ro", 2);
    return *read_only || !memcmp(options.at, "rw", 2);
}

/* What follows the mount id: PARENT MAJOR:MINOR ROOT POINT OPTIONS [TAG…] - TYPE SOURCE SUPER-OPTIONS. The
 * source may be empty. */
static bool parse_mount(struct span line, struct hl_filesystem *filesystem)
{
    struct span field, options;
    bool mount_read_only, super_read_only;
    for (int skipped = 0; skipped < 4; skipped++)
        if (!next_field(&line, &field))
            return false;
    if (!next_field(&line, &options) || !parse_access(options, &mount_read_only))
        return false;
    do {
        if (!next_field(&line, &field))
            return false;
    } while (field.size != 1 || field.at[0] != '-');
    if (!next_field(&line, &field) || !unescape(field, filesystem->type, sizeof filesystem->type))
        return false;
    const char *last = memrchr(line.at, ' ', line.size);
    if (!last)
        return false;
    options = (struct span){last + 1, (size_t)(line.at + line.size - (last + 1))};
    if (!parse_access(options, &super_read_only))
        return false;
    filesystem->class = hl_filesystem_classify(filesystem->type);
    filesystem->read_only = mount_read_only || super_read_only;
    return true;
}

/* Only the wanted line is looked into: an odd mount elsewhere must not close a domain. */
hl_status hl_filesystem_from_mountinfo(const char *mountinfo, size_t bytes, uint64_t mount_id,
                                       struct hl_filesystem *filesystem, hl_error *err)
{
    uint64_t number = 0;
    for (size_t at = 0; at < bytes; number++) {
        struct span line = {mountinfo + at, bytes - at}, field;
        uint64_t id;
        const char *newline = memchr(line.at, '\n', line.size);
        if (!newline)
            return HL_FAIL(err, HL_E_CORRUPT, STAGE, "line %" PRIu64 " of mountinfo is cut off", number + 1);
        line.size = (size_t)(newline - line.at);
        at += line.size + 1;
        if (!next_field(&line, &field) || !parse_number(field, &id))
            return HL_FAIL(err, HL_E_CORRUPT, STAGE, "line %" PRIu64 " of mountinfo has no mount id",
                           number + 1);
        if (id != mount_id)
            continue;
        struct hl_filesystem found = {0};
        if (!parse_mount(line, &found))
            return HL_FAIL(err, HL_E_CORRUPT, STAGE,
                           "line %" PRIu64 " of mountinfo, mount %" PRIu64 ", is malformed", number + 1,
                           mount_id);
        *filesystem = found;
        return HL_OK;
    }
    return HL_FAIL(err, HL_E_NOT_FOUND, STAGE, "mount %" PRIu64 " is not in mountinfo", mount_id);
}
