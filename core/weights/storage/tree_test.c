#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/testing/cunit.h"
#include "core/weights/storage/scratch.h"
#include "core/weights/storage/storage.h"

enum { DEEP = 1000 };

static uint64_t allocated(int folder, const char *name)
{
    struct stat st;
    return fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) == 0 ? (uint64_t)st.st_blocks * 512 : UINT64_MAX;
}

/* NAME/d/d/d…, with a file in each. */
static void make_deep(int folder, const char *name, int levels)
{
    CU_ASSERT_EQUAL_FATAL(mkdirat(folder, name, 0755), 0);
    int at = openat(folder, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int i = 1; i < levels; i++) {
        scratch_write(at, "file", "x", 0444);
        CU_ASSERT_EQUAL_FATAL(mkdirat(at, "d", 0755), 0);
        int below = openat(at, "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        CU_ASSERT_TRUE_FATAL(below >= 0);
        close(at);
        at = below;
    }
    close(at);
}

static int make_folder(int parent, const char *name)
{
    CU_ASSERT_EQUAL_FATAL(mkdirat(parent, name, 0755), 0);
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CU_ASSERT_TRUE_FATAL(fd >= 0);
    return fd;
}

static void links_are_removed_and_what_they_point_to_stays(void)
{
    hl_error err = {0};
    int folder = scratch_open(), before = scratch_next_fd();
    int outside = make_folder(folder, "outside"), tree = make_folder(folder, "tree");
    scratch_write(outside, "kept", "kept", 0444);
    scratch_write(folder, "file", "kept", 0444);
    CU_ASSERT_EQUAL_FATAL(symlinkat("../outside", tree, "to-folder"), 0);
    CU_ASSERT_EQUAL_FATAL(symlinkat("../file", tree, "to-file"), 0);
    CU_ASSERT_EQUAL_FATAL(symlinkat("..", tree, "up"), 0);
    CU_ASSERT_EQUAL_FATAL(symlinkat("nowhere", tree, "broken"), 0);
    CU_ASSERT_EQUAL_FATAL(linkat(folder, "file", tree, "second-name", 0), 0);
    CU_ASSERT_EQUAL_FATAL(mkfifoat(tree, "pipe", 0600), 0);
    close(tree);
    HL_EXPECT_OK(hl_storage_remove_tree(folder, "tree", &err), err);
    CU_ASSERT_FALSE(scratch_exists(folder, "tree"));
    CU_ASSERT_TRUE(scratch_holds(outside, "kept", "kept") && scratch_holds(folder, "file", "kept"));
    close(outside);
    CU_ASSERT_EQUAL(scratch_next_fd(), before);
    scratch_close(folder);
}

static void what_is_no_folder_stays_and_what_is_missing_is_success(void)
{
    hl_error err = {0};
    int folder = scratch_open();
    int outside = make_folder(folder, "outside");
    scratch_write(folder, "file", "x", 0444);
    CU_ASSERT_EQUAL_FATAL(symlinkat("outside", folder, "link"), 0);
    HL_EXPECT_OK(hl_storage_remove_tree(folder, "missing", &err), err);
    HL_EXPECT_STATUS(hl_storage_remove_tree(folder, "file", &err), HL_E_SYSTEM, err);
    CU_ASSERT_EQUAL(err.sys_errno, ENOTDIR);
    HL_EXPECT_STATUS(hl_storage_remove_tree(folder, "link", &err), HL_E_SYSTEM, err);
    CU_ASSERT_EQUAL(err.sys_errno, ENOTDIR);
    CU_ASSERT_EQUAL(scratch_entries(folder), 3);
    close(outside);
    scratch_close(folder);
}

static void with_few_descriptors(int folder)
{
    hl_error err = {0};
    uint64_t bytes = 0;
    struct rlimit limit = {.rlim_cur = 128, .rlim_max = 128};
    int tree = openat(folder, "tree", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    SCRATCH_CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    SCRATCH_CHECK(hl_storage_tree_bytes(tree, &bytes, &err) == HL_OK && bytes > 0);
    close(tree);
    SCRATCH_CHECK(hl_storage_remove_tree(folder, "tree", &err) == HL_OK);
}

static void a_thousand_levels_need_few_descriptors(void)
{
    int folder = scratch_open();
    make_deep(folder, "tree", DEEP);
    scratch_in_child(with_few_descriptors, folder);
    CU_ASSERT_EQUAL(scratch_entries(folder), 0);
    scratch_close(folder);
}

static void many_folders_side_by_side_are_removed(void)
{
    hl_error err = {0};
    int folder = scratch_open(), tree = make_folder(folder, "tree");
    for (int i = 0; i < 300; i++) {
        char name[32];
        snprintf(name, sizeof name, "folder-%d", i);
        int below = make_folder(tree, name);
        scratch_write(below, "a", "x", 0444);
        scratch_write(below, "b", "x", 0444);
        close(below);
        snprintf(name, sizeof name, "file-%d", i);
        scratch_write(tree, name, "x", 0400);
    }
    close(tree);
    HL_EXPECT_OK(hl_storage_remove_tree(folder, "tree", &err), err);
    CU_ASSERT_EQUAL(scratch_entries(folder), 0);
    scratch_close(folder);
}

/* All of these modes keep their owner from removing what is inside, unless he changes them. */
static void remove_own_read_only_folders(int folder)
{
    static const mode_t modes[] = {0555, 0500, 0400, 0300, 0100, 0000, 01555, 01755};
    hl_error err = {0};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        SCRATCH_CHECK(mkdirat(folder, "tree", 0755) == 0);
        SCRATCH_CHECK(mkdirat(folder, "tree/below", 0755) == 0);
        int fd = openat(folder, "tree/below/file", O_WRONLY | O_CREAT | O_CLOEXEC, 0444);
        SCRATCH_CHECK(fd >= 0);
        close(fd);
        SCRATCH_CHECK(fchmodat(folder, "tree/below", modes[i], 0) == 0);
        SCRATCH_CHECK(fchmodat(folder, "tree", modes[i], 0) == 0);
        SCRATCH_CHECK(hl_storage_remove_tree(folder, "tree", &err) == HL_OK);
        SCRATCH_CHECK(!scratch_exists(folder, "tree"));
    }
}

static void read_only_folders_of_its_own_are_removed(void)
{
    int folder = scratch_open();
    scratch_in_child(remove_own_read_only_folders, folder);
    scratch_without_privilege(remove_own_read_only_folders, folder);
    CU_ASSERT_EQUAL(scratch_entries(folder), 0);
    scratch_close(folder);
}

static void meet_mounts(int folder)
{
    hl_error err = {0};
    uint64_t before = 0, after = 0;
    char from[4096], to[4096];
    SCRATCH_CHECK(mkdirat(folder, "tree", 0755) == 0 && mkdirat(folder, "tree/tmpfs", 0755) == 0 &&
                  mkdirat(folder, "tree/bound", 0755) == 0 && mkdirat(folder, "elsewhere", 0755) == 0);
    int elsewhere = openat(folder, "elsewhere", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int tree = openat(folder, "tree", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    SCRATCH_CHECK(hl_storage_tree_bytes(tree, &before, &err) == HL_OK);
    scratch_write(elsewhere, "kept", "kept", 0444);
    int tmpfs = scratch_mount("tmpfs", "tree/tmpfs", 0, "size=64k");
    scratch_write(tmpfs, "kept", "kept", 0444);
    snprintf(from, sizeof from, "%s/elsewhere", scratch_path());
    snprintf(to, sizeof to, "%s/tree/bound", scratch_path());
    SCRATCH_CHECK(mount(from, to, NULL, MS_BIND, NULL) == 0); /* the same device: only its mount id differs */
    SCRATCH_CHECK(hl_storage_tree_bytes(tree, &after, &err) == HL_OK && after == allocated(tree, ".") &&
                  after <= before);
    SCRATCH_CHECK(hl_storage_remove_tree(folder, "tree", &err) == HL_E_SYSTEM && err.sys_errno == EBUSY);
    SCRATCH_CHECK(hl_storage_remove_tree(tree, "bound", &err) == HL_E_SYSTEM && err.sys_errno == EBUSY);
    SCRATCH_CHECK(hl_storage_remove_tree(tree, "tmpfs", &err) == HL_E_SYSTEM && err.sys_errno == EBUSY);
    SCRATCH_CHECK(scratch_holds(tmpfs, "kept", "kept") && scratch_holds(elsewhere, "kept", "kept"));
    close(tmpfs);
    SCRATCH_CHECK(umount2(to, MNT_DETACH) == 0);
    snprintf(to, sizeof to, "%s/tree/tmpfs", scratch_path());
    SCRATCH_CHECK(umount2(to, MNT_DETACH) == 0);
    SCRATCH_CHECK(hl_storage_remove_tree(folder, "tree", &err) == HL_OK);
    SCRATCH_CHECK(scratch_holds(elsewhere, "kept", "kept"));
    close(tree);
    close(elsewhere);
}

static void no_mount_is_crossed(void)
{
    int folder = scratch_open();
    scratch_with_mounts(meet_mounts, folder);
    scratch_close(folder);
}

static void a_tree_has_the_blocks_of_all_its_entries(void)
{
    hl_error err = {0};
    uint64_t bytes = 0, expected;
    char block[5000] = {1};
    int folder = scratch_open(), before = scratch_next_fd();
    int below = make_folder(folder, "below");
    scratch_write(folder, "small", "x", 0444);
    int fd = openat(below, "large", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    HL_EXPECT_OK(hl_storage_write_at(fd, block, sizeof block, 0, &err), err);
    HL_EXPECT_OK(hl_storage_write_at(fd, block, 1, 10 << 20, &err), err); /* a hole of 10 MiB takes nothing */
    HL_EXPECT_OK(hl_storage_sync(fd, &err), err);
    close(fd);
    CU_ASSERT_EQUAL_FATAL(symlinkat("/usr", folder, "link"), 0);
    syncfs(folder);
    expected = allocated(folder, ".") + allocated(folder, "small") + allocated(folder, "link") +
               allocated(folder, "below") + allocated(below, "large");
    HL_EXPECT_OK(hl_storage_tree_bytes(folder, &bytes, &err), err);
    CU_ASSERT_EQUAL(bytes, expected);
    CU_ASSERT_TRUE(bytes > sizeof block && bytes < 10 << 20);
    /* A file with two names counts for each. */
    CU_ASSERT_EQUAL_FATAL(linkat(below, "large", folder, "again", 0), 0);
    HL_EXPECT_OK(hl_storage_tree_bytes(folder, &bytes, &err), err);
    CU_ASSERT_EQUAL(bytes, expected + allocated(below, "large"));
    close(below);
    CU_ASSERT_EQUAL(scratch_next_fd(), before);
    HL_EXPECT_STATUS(hl_storage_tree_bytes(-1, &bytes, &err), HL_E_SYSTEM, err);
    scratch_close(folder);
}

HL_TESTS(tree, HL_CASE(links_are_removed_and_what_they_point_to_stays),
         HL_CASE(what_is_no_folder_stays_and_what_is_missing_is_success),
         HL_CASE(a_thousand_levels_need_few_descriptors), HL_CASE(many_folders_side_by_side_are_removed),
         HL_CASE(read_only_folders_of_its_own_are_removed), HL_CASE(no_mount_is_crossed),
         HL_CASE(a_tree_has_the_blocks_of_all_its_entries));
