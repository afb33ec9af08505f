#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/testing/cunit.h"
#include "core/weights/storage/magic.h"
#include "core/weights/storage/scratch.h"
#include "core/weights/storage/storage.h"

static const struct {
    const char *type;
    enum hl_filesystem_class class;
} types[] = {
    {"aufs", HL_FILESYSTEM_DISK},          {"bcachefs", HL_FILESYSTEM_DISK},
    {"btrfs", HL_FILESYSTEM_DISK},         {"erofs", HL_FILESYSTEM_DISK},
    {"ext2", HL_FILESYSTEM_DISK},          {"ext3", HL_FILESYSTEM_DISK},
    {"ext4", HL_FILESYSTEM_DISK},          {"f2fs", HL_FILESYSTEM_DISK},
    {"fuseblk", HL_FILESYSTEM_DISK},       {"jfs", HL_FILESYSTEM_DISK},
    {"ntfs3", HL_FILESYSTEM_DISK},         {"overlay", HL_FILESYSTEM_DISK},
    {"reiserfs", HL_FILESYSTEM_DISK},      {"rootfs", HL_FILESYSTEM_DISK},
    {"xfs", HL_FILESYSTEM_DISK},           {"zfs", HL_FILESYSTEM_DISK},
    {"tmpfs", HL_FILESYSTEM_TMPFS},        {"ramfs", HL_FILESYSTEM_TMPFS},
    {"9p", HL_FILESYSTEM_REMOTE},          {"afs", HL_FILESYSTEM_REMOTE},
    {"beegfs", HL_FILESYSTEM_REMOTE},      {"ceph", HL_FILESYSTEM_REMOTE},
    {"cifs", HL_FILESYSTEM_REMOTE},        {"fuse.gcsfuse", HL_FILESYSTEM_REMOTE},
    {"fuse.s3fs", HL_FILESYSTEM_REMOTE},   {"fuse.sshfs", HL_FILESYSTEM_REMOTE},
    {"gcsfuse", HL_FILESYSTEM_REMOTE},     {"glusterfs", HL_FILESYSTEM_REMOTE},
    {"gpfs", HL_FILESYSTEM_REMOTE},        {"lustre", HL_FILESYSTEM_REMOTE},
    {"nfs", HL_FILESYSTEM_REMOTE},         {"nfs4", HL_FILESYSTEM_REMOTE},
    {"orangefs", HL_FILESYSTEM_REMOTE},    {"panfs", HL_FILESYSTEM_REMOTE},
    {"s3fs", HL_FILESYSTEM_REMOTE},        {"smb3", HL_FILESYSTEM_REMOTE},
    {"sshfs", HL_FILESYSTEM_REMOTE},       {"virtiofs", HL_FILESYSTEM_REMOTE},
    {"wekafs", HL_FILESYSTEM_REMOTE},      {"hugetlbfs", HL_FILESYSTEM_UNKNOWN},
    {"exfat", HL_FILESYSTEM_UNKNOWN},      {"msdos", HL_FILESYSTEM_UNKNOWN},
    {"vfat", HL_FILESYSTEM_UNKNOWN},       {"fuse", HL_FILESYSTEM_UNKNOWN},
    {"fuse.other", HL_FILESYSTEM_UNKNOWN}, {"unknownfs", HL_FILESYSTEM_UNKNOWN},
    {"proc", HL_FILESYSTEM_UNKNOWN},       {"", HL_FILESYSTEM_UNKNOWN},
    {"EXT4", HL_FILESYSTEM_UNKNOWN},       {"ext", HL_FILESYSTEM_UNKNOWN},
    {"ext44", HL_FILESYSTEM_UNKNOWN},
};

static hl_status find(const char *text, uint64_t mount_id, struct hl_filesystem *filesystem, hl_error *err)
{
    memset(filesystem, 0x5a, sizeof *filesystem);
    return hl_filesystem_from_mountinfo(text, strlen(text), mount_id, filesystem, err);
}

static void every_type_has_its_class_by_name_alone_and_in_a_line(void)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        char line[256];
        hl_error err;
        struct hl_filesystem filesystem;
        CU_ASSERT_EQUAL(hl_filesystem_classify(types[i].type), types[i].class);
        if (!*types[i].type)
            continue;
        snprintf(line, sizeof line,
                 "36 35 98:0 / /mnt rw,noatime master:1 - %s /dev/root rw,errors=continue\n", types[i].type);
        HL_EXPECT_OK(find(line, 36, &filesystem, &err), err);
        CU_ASSERT_STRING_EQUAL(filesystem.type, types[i].type);
        CU_ASSERT_EQUAL(filesystem.class, types[i].class);
        CU_ASSERT_FALSE(filesystem.read_only);
    }
}

static void of_stacked_mounts_the_id_decides_and_not_the_path(void)
{
    static const char text[] = "20 1 8:1 / / rw - ext4 /dev/a rw\n"
                               "30 20 0:40 / /data rw - nfs4 server:/x rw\n"
                               "31 30 0:41 / /data rw shared:7 master:2 - tmpfs tmpfs rw,size=1k\n"
                               "310 20 0:42 / /data/longer ro - xfs /dev/b rw\n"
                               "3 20 0:43 / /other rw - btrfs /dev/c ro,subvol=/\n";
    hl_error err;
    struct hl_filesystem filesystem;
    HL_EXPECT_OK(find(text, 30, &filesystem, &err), err);
    CU_ASSERT_STRING_EQUAL(filesystem.type, "nfs4");
    HL_EXPECT_OK(find(text, 31, &filesystem, &err), err);
    CU_ASSERT_STRING_EQUAL(filesystem.type, "tmpfs");
    HL_EXPECT_OK(find(text, 310, &filesystem, &err), err);
    CU_ASSERT_STRING_EQUAL(filesystem.type, "xfs");
    CU_ASSERT_TRUE(filesystem.read_only);
    HL_EXPECT_OK(find(text, 3, &filesystem, &err), err);
    CU_ASSERT_TRUE(filesystem.read_only);
    HL_EXPECT_STATUS(find(text, 32, &filesystem, &err), HL_E_NOT_FOUND, err);
    HL_EXPECT_STATUS(find("", 32, &filesystem, &err), HL_E_NOT_FOUND, err);
    CU_ASSERT_EQUAL((unsigned char)filesystem.type[0], 0x5a);
}

static void escapes_are_undone_and_paths_that_look_like_fields_are_none(void)
{
    hl_error err;
    struct hl_filesystem filesystem;
    HL_EXPECT_OK(
        find("7 1 0:5 / /a\\040-\\040nfs\\040b rw - ext4 /dev/my\\040disk rw\n", 7, &filesystem, &err), err);
    CU_ASSERT_STRING_EQUAL(filesystem.type, "ext4");
    HL_EXPECT_OK(find("7 1 0:5 / / rw - fuse.a\\040b\\134c x rw\n", 7, &filesystem, &err), err);
    CU_ASSERT_STRING_EQUAL(filesystem.type, "fuse.a b\\c");
    HL_EXPECT_OK(find("7 1 0:5 / / rw - ext\\064 x rw\n", 7, &filesystem, &err), err);
    CU_ASSERT_EQUAL(filesystem.class, HL_FILESYSTEM_DISK);
    HL_EXPECT_OK(find("7 1 0:5 / / rw - tmpfs  rw\n", 7, &filesystem, &err), err);
    CU_ASSERT_EQUAL(filesystem.class, HL_FILESYSTEM_TMPFS);
    HL_EXPECT_OK(find("7 1 0:5 / / rw,ro - ext4 x rw,ro\n", 7, &filesystem, &err), err);
    CU_ASSERT_FALSE(filesystem.read_only);
}

static void a_type_too_long_is_cut_and_unknown(void)
{
    hl_error err;
    struct hl_filesystem filesystem;
    HL_EXPECT_OK(
        find("7 1 0:5 / / rw - fuse.0123456789012345678901234567890123456789 x rw\n", 7, &filesystem, &err),
        err);
    CU_ASSERT_EQUAL(strlen(filesystem.type), sizeof filesystem.type - 1);
    CU_ASSERT_EQUAL(filesystem.class, HL_FILESYSTEM_UNKNOWN);
}

static void every_malformed_line_is_refused(void)
{
    static const char *const lines[] = {
        "\n",
        "x 1 0:5 / / rw - ext4 x rw\n",
        " 7 1 0:5 / / rw - ext4 x rw\n",
        "18446744073709551616 1 0:5 / / rw - ext4 x rw\n",
        "7\n",
        "7 1 0:5 /\n",
        "7 1 0:5 / /\n",
        "7 1 0:5 / / rw\n",
        "7 1 0:5 / / rw -\n",
        "7 1 0:5 / / rw - \n",
        "7 1 0:5 / / rw - ext4\n",
        "7 1 0:5 / / rw - ext4 \n",
        "7 1 0:5 / / rw - ext4 x\n",
        "7 1 0:5 / / rw - ext4 x \n",
        "7 1 0:5 / / rw - ext4 x rx\n",
        "7 1 0:5 / / rwx - ext4 x rw\n",
        "7 1 0:5 / / r - ext4 x rw\n",
        "7 1 0:5 / / rw ext4 x rw\n",
        "7 1 0:5 / / rw  - ext4 x rw\n",
        "7 1 0:5 / / rw - ext\\04 x rw\n",
        "7 1 0:5 / / rw - ext\\ x rw\n",
        "7 1 0:5 / / rw - ext\\089 x rw\n",
        "7 1 0:5 / / rw - ext\\777 x rw\n",
        "7 1 0:5 / / rw - ext4\\000 x rw\n",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        hl_error err = {0};
        struct hl_filesystem filesystem;
        HL_EXPECT_STATUS(find(lines[i], 7, &filesystem, &err), HL_E_CORRUPT, err);
        CU_ASSERT_EQUAL((unsigned char)filesystem.type[0], 0x5a);
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "line 1"));
    }
}

static void every_cut_of_the_text_is_noticed(void)
{
    static const char text[] = "20 1 8:1 / / rw - ext4 /dev/a rw\n30 20 0:40 / /data rw - tmpfs t rw\n";
    const size_t first = (size_t)(strchr(text, '\n') - text) + 1;
    for (size_t bytes = 0; bytes < sizeof text - 1; bytes++) {
        hl_error err;
        struct hl_filesystem filesystem;
        char *exact = malloc(bytes + !bytes); /* an over-read is seen by the sanitizer */
        CU_ASSERT_PTR_NOT_NULL_FATAL(exact);
        memcpy(exact, text, bytes);
        hl_status status = hl_filesystem_from_mountinfo(exact, bytes, 30, &filesystem, &err);
        CU_ASSERT_EQUAL(status, bytes == 0 || bytes == first ? HL_E_NOT_FOUND : HL_E_CORRUPT);
        free(exact);
    }
}

static void a_nul_inside_is_no_end(void)
{
    static const char text[] = "7 1 0:5 / / rw - ex\0t4 x rw\n8 1 0:5 / / rw - ext4 x rw\n";
    hl_error err;
    struct hl_filesystem filesystem;
    HL_EXPECT_STATUS(hl_filesystem_from_mountinfo(text, sizeof text - 1, 7, &filesystem, &err), HL_E_CORRUPT,
                     err);
    HL_EXPECT_OK(hl_filesystem_from_mountinfo(text, sizeof text - 1, 8, &filesystem, &err), err);
}

static void the_last_of_a_hundred_thousand_mounts_is_found(void)
{
    enum { MOUNTS = 100000, LINE = 64 };
    hl_error err;
    struct hl_filesystem filesystem;
    char *text = malloc((size_t)MOUNTS * LINE);
    size_t bytes = 0;
    CU_ASSERT_PTR_NOT_NULL_FATAL(text);
    for (int i = 1; i <= MOUNTS; i++)
        bytes += (size_t)snprintf(text + bytes, LINE, "%d 1 0:%d / /m/%d rw - %s x rw\n", i, i, i,
                                  i == MOUNTS ? "xfs" : "proc");
    HL_EXPECT_OK(hl_filesystem_from_mountinfo(text, bytes, MOUNTS, &filesystem, &err), err);
    CU_ASSERT_STRING_EQUAL(filesystem.type, "xfs");
    free(text);
}

static void a_number_of_another_file_system_contradicts_the_name(void)
{
    static const struct {
        const char *type;
        uint32_t magic;
    } pairs[] = {
        {"ext2", 0xEF53},      {"ext4", 0xEF53},        {"xfs", 0x58465342},    {"btrfs", 0x9123683E},
        {"f2fs", 0xF2F52010},  {"overlay", 0x794C7630}, {"erofs", 0xE0F5E1E2},  {"tmpfs", 0x01021994},
        {"ramfs", 0x858458F6}, {"rootfs", 0x01021994},  {"rootfs", 0x858458F6}, {"nfs4", 0x6969},
        {"cifs", 0xFF534D42},  {"smb3", 0xFE534D42},    {"9p", 0x01021997},     {"fuseblk", 0x65735546}};
    static const uint32_t hugetlbfs = 0x958458F6, proc = 0x9FA0;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        CU_ASSERT_FALSE(hl_magic_contradicts(pairs[i].type, pairs[i].magic));
        CU_ASSERT_TRUE(hl_magic_contradicts(pairs[i].type, hugetlbfs));
        CU_ASSERT_TRUE(hl_magic_contradicts(pairs[i].type, 0));
    }
    CU_ASSERT_TRUE(hl_magic_contradicts("ext4", 0x6969));
    CU_ASSERT_FALSE(hl_magic_contradicts("proc", proc));
    CU_ASSERT_FALSE(hl_magic_contradicts("fuse.sshfs", hugetlbfs));
}

static void the_file_system_of_an_open_file_is_found(void)
{
    hl_error err = {0};
    struct hl_filesystem filesystem;
    int folder = scratch_open(), proc = open("/proc", O_RDONLY | O_CLOEXEC);
    HL_REQUIRE_OK(hl_filesystem_of(folder, &filesystem, &err), err);
    printf("    the scratch folder is on %s\n", filesystem.type);
    CU_ASSERT_FALSE(filesystem.read_only);
    HL_REQUIRE_OK(hl_filesystem_of(proc, &filesystem, &err), err);
    CU_ASSERT_STRING_EQUAL(filesystem.type, "proc");
    CU_ASSERT_EQUAL(filesystem.class, HL_FILESYSTEM_UNKNOWN);
    close(proc);
    HL_EXPECT_STATUS(hl_filesystem_of(proc, &filesystem, &err), HL_E_SYSTEM, err);
    CU_ASSERT_STRING_EQUAL(filesystem.type, "proc");
    scratch_close(folder);
}

/* A pipe lives on a mount of the kernel's own, which no mountinfo lists. */
static void a_mount_that_is_not_visible_is_an_error(void)
{
    hl_error err = {0};
    struct hl_filesystem filesystem = {.type = "kept"};
    int ends[2];
    CU_ASSERT_EQUAL_FATAL(pipe2(ends, O_CLOEXEC), 0);
    HL_EXPECT_STATUS(hl_filesystem_of(ends[0], &filesystem, &err), HL_E_SYSTEM, err);
    CU_ASSERT_STRING_EQUAL(filesystem.type, "kept");
    close(ends[0]);
    close(ends[1]);
}

static void stack_mounts(int folder)
{
    hl_error err;
    struct hl_filesystem below, first, second, read_only;
    SCRATCH_CHECK(mkdirat(folder, "point", 0700) == 0);
    int below_fd = openat(folder, "point", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int first_fd = scratch_mount("tmpfs", "point", 0, "size=64k");
    int second_fd = scratch_mount("ramfs", "point", 0, "");
    SCRATCH_CHECK(first_fd >= 0 && second_fd >= 0);
    SCRATCH_CHECK(hl_filesystem_of(folder, &below, &err) == HL_OK);
    SCRATCH_CHECK(hl_filesystem_of(first_fd, &first, &err) == HL_OK);
    SCRATCH_CHECK(hl_filesystem_of(second_fd, &second, &err) == HL_OK);
    SCRATCH_CHECK(!strcmp(first.type, "tmpfs") && first.class == HL_FILESYSTEM_TMPFS);
    SCRATCH_CHECK(!strcmp(second.type, "ramfs") && second.class == HL_FILESYSTEM_TMPFS);
    SCRATCH_CHECK(hl_filesystem_of(below_fd, &first, &err) == HL_OK && !strcmp(first.type, below.type));
    int read_only_fd = scratch_mount("tmpfs", "point", MS_RDONLY, "size=64k");
    SCRATCH_CHECK(hl_filesystem_of(read_only_fd, &read_only, &err) == HL_OK && read_only.read_only);
    close(read_only_fd);
    close(second_fd);
    close(first_fd);
    close(below_fd);
}

static void each_of_real_stacked_mounts_is_told_apart(void)
{
    int folder = scratch_open();
    scratch_with_mounts(stack_mounts, folder);
    scratch_close(folder);
}

static void free_space_is_asked_of_an_open_folder(void)
{
    hl_error err = {0};
    uint64_t bytes = 0;
    int folder = scratch_open();
    HL_EXPECT_OK(hl_storage_free_bytes(folder, &bytes, &err), err);
    CU_ASSERT_TRUE(bytes > 0);
    scratch_close(folder);
    HL_EXPECT_STATUS(hl_storage_free_bytes(-1, &bytes, &err), HL_E_SYSTEM, err);
}

HL_TESTS(filesystem, HL_CASE(every_type_has_its_class_by_name_alone_and_in_a_line),
         HL_CASE(of_stacked_mounts_the_id_decides_and_not_the_path),
         HL_CASE(escapes_are_undone_and_paths_that_look_like_fields_are_none),
         HL_CASE(a_type_too_long_is_cut_and_unknown), HL_CASE(every_malformed_line_is_refused),
         HL_CASE(every_cut_of_the_text_is_noticed), HL_CASE(a_nul_inside_is_no_end),
         HL_CASE(the_last_of_a_hundred_thousand_mounts_is_found),
         HL_CASE(a_number_of_another_file_system_contradicts_the_name),
         HL_CASE(the_file_system_of_an_open_file_is_found), HL_CASE(a_mount_that_is_not_visible_is_an_error),
         HL_CASE(each_of_real_stacked_mounts_is_told_apart), HL_CASE(free_space_is_asked_of_an_open_folder));
