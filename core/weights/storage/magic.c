#include "core/weights/storage/magic.h"

#include <stddef.h>
#include <string.h>

/* What statfs() says for a name; up to two numbers where the kernel's versions differ. FUSE has one number
 * for local and remote file systems, which is why names decide. From linux/magic.h and the file systems'
 * sources.
 */
static const struct {
    const char *type;
    uint32_t magic[2];
} known[] = {
    {"ext2", {0xEF53, 0xEF53}},
    {"ext3", {0xEF53, 0xEF53}},
    {"ext4", {0xEF53, 0xEF53}},
    {"xfs", {0x58465342, 0x58465342}},
    {"btrfs", {0x9123683E, 0x9123683E}},
    {"f2fs", {0xF2F52010, 0xF2F52010}},
    {"overlay", {0x794C7630, 0x794C7630}},
    {"erofs", {0xE0F5E1E2, 0xE0F5E1E2}},
    {"reiserfs", {0x52654973, 0x52654973}},
    {"zfs", {0x2FC12FC1, 0x2FC12FC1}},
    {"jfs", {0x3153464A, 0x3153464A}},
    {"bcachefs", {0xCA451A4E, 0xCA451A4E}},
    {"aufs", {0x61756673, 0x61756673}},
    {"ntfs3", {0x7366746E, 0x7366746E}},
    {"rootfs", {0x01021994, 0x858458F6}},
    {"tmpfs", {0x01021994, 0x01021994}},
    {"ramfs", {0x858458F6, 0x858458F6}},
    {"nfs", {0x6969, 0x6969}},
    {"nfs4", {0x6969, 0x6969}},
    {"cifs", {0xFF534D42, 0xFE534D42}},
    {"smb3", {0xFE534D42, 0xFF534D42}},
    {"ceph", {0x00C36400, 0x00C36400}},
    {"9p", {0x01021997, 0x01021997}},
    {"afs", {0x5346414F, 0x6B414653}},
    {"fuseblk", {0x65735546, 0x65735546}},
    {"virtiofs", {0x65735546, 0x65735546}},
};

bool hl_magic_contradicts(const char *type, uint32_t magic)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i].type, type))
            return magic != known[i].magic[0] && magic != known[i].magic[1];
    return false;
}
