#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/testing/cunit.h"
#include "core/weights/storage/scratch.h"
#include "core/weights/storage/storage.h"

static bool is_sealed(int folder, const char *name)
{
    struct stat st;
    return fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
           (st.st_mode & 07777) == 0444 && st.st_nlink == 1;
}

static void a_created_document_is_whole_and_read_only(void)
{
    hl_error err = {0};
    int folder = scratch_open(), before = scratch_next_fd();
    HL_EXPECT_OK(hl_storage_create_document(folder, "new", "text", 4, &err), err);
    CU_ASSERT_TRUE(scratch_holds(folder, "new", "text") && is_sealed(folder, "new"));
    HL_EXPECT_OK(hl_storage_create_document(folder, "empty", "", 0, &err), err);
    CU_ASSERT_TRUE(scratch_holds(folder, "empty", "") && is_sealed(folder, "empty"));
    CU_ASSERT_EQUAL(scratch_next_fd(), before);
    scratch_close(folder);
}

static void what_exists_is_never_created_again_nor_changed(void)
{
    hl_error err = {0};
    int folder = scratch_open();
    scratch_write(folder, "there", "old", 0644);
    CU_ASSERT_EQUAL_FATAL(symlinkat("elsewhere", folder, "link"), 0);
    CU_ASSERT_EQUAL_FATAL(mkdirat(folder, "folder", 0755), 0);
    static const char *const names[] = {"there", "link", "folder"};
    for (size_t i = 0; i < 3; i++) {
        HL_EXPECT_STATUS(hl_storage_create_document(folder, names[i], "new", 3, &err), HL_E_BUSY, err);
        CU_ASSERT_EQUAL(err.sys_errno, EEXIST);
        CU_ASSERT_TRUE(scratch_exists(folder, names[i]));
    }
    CU_ASSERT_TRUE(scratch_holds(folder, "there", "old"));
    CU_ASSERT_FALSE(scratch_exists(folder, "elsewhere"));
    scratch_close(folder);
}

static void a_replaced_document_is_another_file_under_the_same_name(void)
{
    hl_error err = {0};
    struct stat old, new;
    int folder = scratch_open(), before = scratch_next_fd();
    HL_EXPECT_OK(hl_storage_replace_document(folder, "it", "first", 5, &err), err);
    CU_ASSERT_TRUE(scratch_holds(folder, "it", "first") && is_sealed(folder, "it"));
    int reader = openat(folder, "it", O_RDONLY | O_CLOEXEC);
    CU_ASSERT_EQUAL_FATAL(fstat(reader, &old), 0);
    HL_EXPECT_OK(hl_storage_replace_document(folder, "it", "second", 6, &err), err);
    CU_ASSERT_TRUE(scratch_holds(folder, "it", "second") && is_sealed(folder, "it"));
    CU_ASSERT_EQUAL_FATAL(fstatat(folder, "it", &new, 0), 0);
    CU_ASSERT_NOT_EQUAL(new.st_ino, old.st_ino);
    char text[6] = {0};
    CU_ASSERT_TRUE(pread(reader, text, 5, 0) == 5 && !strcmp(text, "first"));
    close(reader);
    CU_ASSERT_EQUAL(scratch_entries(folder), 1);
    CU_ASSERT_EQUAL(scratch_next_fd(), before);
    scratch_close(folder);
}

static void a_link_is_replaced_and_not_followed(void)
{
    hl_error err = {0};
    int folder = scratch_open();
    scratch_write(folder, "target", "old", 0644);
    CU_ASSERT_EQUAL_FATAL(symlinkat("target", folder, "it"), 0);
    HL_EXPECT_OK(hl_storage_replace_document(folder, "it", "new", 3, &err), err);
    CU_ASSERT_TRUE(scratch_holds(folder, "it", "new") && is_sealed(folder, "it"));
    CU_ASSERT_TRUE(scratch_holds(folder, "target", "old"));
    CU_ASSERT_EQUAL(scratch_entries(folder), 2);
    scratch_close(folder);
}

static void a_folder_in_the_place_of_a_document_stays(void)
{
    hl_error err = {0};
    struct stat st;
    int folder = scratch_open();
    CU_ASSERT_EQUAL_FATAL(mkdirat(folder, "it", 0755), 0);
    HL_EXPECT_STATUS(hl_storage_replace_document(folder, "it", "new", 3, &err), HL_E_SYSTEM, err);
    CU_ASSERT_EQUAL(err.sys_errno, EISDIR);
    CU_ASSERT_TRUE(fstatat(folder, "it", &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode));
    CU_ASSERT_EQUAL(scratch_entries(folder), 1);
    scratch_close(folder);
}

static void names_that_cannot_be_leave_nothing(void)
{
    hl_error err = {0};
    char name[300];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    int folder = scratch_open(), before = scratch_next_fd();
    HL_EXPECT_STATUS(hl_storage_replace_document(folder, name, "x", 1, &err), HL_E_SYSTEM, err);
    CU_ASSERT_EQUAL(err.sys_errno, ENAMETOOLONG);
    HL_EXPECT_STATUS(hl_storage_create_document(folder, name, "x", 1, &err), HL_E_SYSTEM, err);
    CU_ASSERT_EQUAL(err.sys_errno, ENAMETOOLONG);
    HL_EXPECT_STATUS(hl_storage_create_document(folder, "missing/it", "x", 1, &err), HL_E_SYSTEM, err);
    CU_ASSERT_EQUAL(err.sys_errno, ENOENT);
    CU_ASSERT_EQUAL(scratch_entries(folder), 0);
    CU_ASSERT_EQUAL(scratch_next_fd(), before);
    scratch_close(folder);
}

static void writing_to_a_full_device_is_no_space(void)
{
    hl_error err = {0};
    int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    CU_ASSERT_TRUE_FATAL(full >= 0);
    HL_EXPECT_STATUS(hl_storage_write_at(full, "x", 1, 0, &err), HL_E_NOSPACE, err);
    CU_ASSERT_EQUAL(err.sys_errno, ENOSPC);
    HL_EXPECT_OK(hl_storage_write_at(full, "x", 0, 0, &err), err);
    close(full);
    HL_EXPECT_STATUS(hl_storage_write_at(full, "x", 1, 0, &err), HL_E_SYSTEM, err);
    CU_ASSERT_EQUAL(err.sys_errno, EBADF);
    HL_EXPECT_STATUS(hl_storage_write_at(full, "x", 2, INT64_MAX - 1, &err), HL_E_OVERFLOW, err);
    HL_EXPECT_STATUS(hl_storage_write_at(full, "x", 1, UINT64_MAX, &err), HL_E_OVERFLOW, err);
    HL_EXPECT_STATUS(hl_storage_sync(full, &err), HL_E_SYSTEM, err);
}

static void what_is_reserved_has_its_size_and_keeps_its_bytes(void)
{
    hl_error err = {0};
    struct stat st;
    int folder = scratch_open();
    int fd = openat(folder, "payload", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    HL_EXPECT_OK(hl_storage_reserve(fd, 0, &err), err);
    CU_ASSERT_TRUE(fstat(fd, &st) == 0 && st.st_size == 0);
    HL_EXPECT_OK(hl_storage_reserve(fd, 100000, &err), err);
    CU_ASSERT_TRUE(fstat(fd, &st) == 0 && st.st_size == 100000);
    HL_EXPECT_OK(hl_storage_write_at(fd, "xyz", 3, 99997, &err), err);
    HL_EXPECT_OK(hl_storage_reserve(fd, 10, &err), err);
    CU_ASSERT_TRUE(fstat(fd, &st) == 0 && st.st_size == 100000);
    char text[4] = {0};
    CU_ASSERT_TRUE(pread(fd, text, 4, 99997) == 3 && !strcmp(text, "xyz"));
    HL_EXPECT_OK(hl_storage_sync(fd, &err), err);
    HL_EXPECT_STATUS(hl_storage_reserve(fd, UINT64_MAX, &err), HL_E_OVERFLOW, err);
    close(fd);
    HL_EXPECT_STATUS(hl_storage_reserve(fd, 10, &err), HL_E_SYSTEM, err);
    scratch_close(folder);
}

static char *filler(size_t bytes)
{
    char *text = malloc(bytes);
    if (text)
        memset(text, 'f', bytes);
    return text;
}

/* Runs on a tmpfs of 64 KiB. */
static void fill_a_small_file_system(int folder)
{
    enum { TOO_MUCH = 256 << 10 };
    hl_error err = {0};
    char *text = filler(TOO_MUCH);
    SCRATCH_CHECK(mkdirat(folder, "small", 0700) == 0);
    int small = scratch_mount("tmpfs", "small", 0, "size=64k");
    SCRATCH_CHECK(small >= 0 && text);
    scratch_write(small, "old", "old", 0444);
    SCRATCH_CHECK(hl_storage_replace_document(small, "old", text, TOO_MUCH, &err) == HL_E_NOSPACE);
    SCRATCH_CHECK(err.sys_errno == ENOSPC && strstr(err.text, "old"));
    SCRATCH_CHECK(scratch_holds(small, "old", "old") && scratch_entries(small) == 1);
    SCRATCH_CHECK(hl_storage_create_document(small, "new", text, TOO_MUCH, &err) == HL_E_NOSPACE);
    SCRATCH_CHECK(err.sys_errno == ENOSPC && scratch_entries(small) == 1);
    int fd = openat(small, "payload", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    SCRATCH_CHECK(hl_storage_reserve(fd, TOO_MUCH, &err) == HL_E_NOSPACE && err.sys_errno == ENOSPC);
    SCRATCH_CHECK(hl_storage_write_at(fd, text, TOO_MUCH, 0, &err) == HL_E_NOSPACE &&
                  err.sys_errno == ENOSPC);
    uint64_t available = 1;
    SCRATCH_CHECK(hl_storage_free_bytes(small, &available, &err) == HL_OK && available == 0);
    SCRATCH_CHECK(hl_storage_replace_document(small, "old", "n", 1, &err) == HL_E_NOSPACE);
    SCRATCH_CHECK(scratch_holds(small, "old", "old") && scratch_entries(small) == 2);
    SCRATCH_CHECK(ftruncate(fd, 0) == 0 && hl_storage_replace_document(small, "old", "n", 1, &err) == HL_OK);
    close(fd);
    close(small);
    /* A file system without room for one more name. */
    SCRATCH_CHECK(mkdirat(folder, "few", 0700) == 0);
    int few = scratch_mount("tmpfs", "few", 0, "nr_inodes=1");
    SCRATCH_CHECK(hl_storage_make_folder(few, "folder", true, &fd, &err) == HL_E_NOSPACE);
    SCRATCH_CHECK(hl_storage_create_document(few, "it", "x", 1, &err) == HL_E_NOSPACE);
    SCRATCH_CHECK(hl_storage_replace_document(few, "it", "x", 1, &err) == HL_E_NOSPACE &&
                  err.sys_errno == ENOSPC);
    close(few);
    free(text);
}

static void a_full_file_system_is_no_space_and_the_old_document_stays(void)
{
    int folder = scratch_open();
    scratch_with_mounts(fill_a_small_file_system, folder);
    scratch_close(folder);
}

/* ramfs has no fallocate(). */
static void reserve_where_it_cannot_be(int folder)
{
    hl_error err = {0};
    struct stat st;
    SCRATCH_CHECK(mkdirat(folder, "ramfs", 0700) == 0);
    int ramfs = scratch_mount("ramfs", "ramfs", 0, "");
    int fd = openat(ramfs, "payload", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    SCRATCH_CHECK(fallocate(fd, 0, 0, 10) != 0 && errno == EOPNOTSUPP);
    SCRATCH_CHECK(hl_storage_reserve(fd, 5000, &err) == HL_OK);
    SCRATCH_CHECK(fstat(fd, &st) == 0 && st.st_size == 5000);
    SCRATCH_CHECK(hl_storage_reserve(fd, 50, &err) == HL_OK);
    SCRATCH_CHECK(fstat(fd, &st) == 0 && st.st_size == 5000);
    close(fd);
    close(ramfs);
}

static void where_nothing_can_be_reserved_the_size_is_set(void)
{
    int folder = scratch_open();
    scratch_with_mounts(reserve_where_it_cannot_be, folder);
    scratch_close(folder);
}

static void replace_without_swap(int folder)
{
    hl_error err = {0};
    scratch_refuse(SYS_renameat2, EINVAL);
    SCRATCH_CHECK(renameat2(folder, "a", folder, "b", RENAME_NOREPLACE) != 0 && errno == EINVAL);
    SCRATCH_CHECK(hl_storage_replace_document(folder, "new", "new", 3, &err) == HL_OK);
    SCRATCH_CHECK(hl_storage_replace_document(folder, "it", "new", 3, &err) == HL_OK);
    SCRATCH_CHECK(hl_storage_replace_document(folder, "folder", "new", 3, &err) == HL_E_SYSTEM &&
                  err.sys_errno == EISDIR);
}

static void replace_with_an_io_error(int folder)
{
    hl_error err = {0};
    scratch_refuse(SYS_renameat2, EIO);
    SCRATCH_CHECK(hl_storage_replace_document(folder, "it", "third", 5, &err) == HL_E_SYSTEM &&
                  err.sys_errno == EIO);
}

static void where_names_cannot_be_swapped_a_plain_rename_replaces(void)
{
    int folder = scratch_open();
    scratch_write(folder, "it", "old", 0444);
    CU_ASSERT_EQUAL_FATAL(mkdirat(folder, "folder", 0755), 0);
    scratch_in_child(replace_without_swap, folder);
    CU_ASSERT_TRUE(scratch_holds(folder, "it", "new") && is_sealed(folder, "it"));
    CU_ASSERT_TRUE(scratch_holds(folder, "new", "new"));
    CU_ASSERT_EQUAL(scratch_entries(folder), 3);
    scratch_in_child(replace_with_an_io_error, folder);
    CU_ASSERT_TRUE(scratch_holds(folder, "it", "new"));
    CU_ASSERT_EQUAL(scratch_entries(folder), 3);
    scratch_close(folder);
}

static void uuids_are_random_and_of_version_4(void)
{
    enum { COUNT = 64 };
    hl_error err = {0};
    char uuids[COUNT][33];
    for (int i = 0; i < COUNT; i++) {
        memset(uuids[i], '!', sizeof uuids[i]);
        HL_REQUIRE_OK(hl_storage_uuid(uuids[i], &err), err);
        CU_ASSERT_EQUAL(strspn(uuids[i], "0123456789abcdef"), 32);
        CU_ASSERT_EQUAL(uuids[i][32], 0);
        CU_ASSERT_EQUAL(uuids[i][12], '4');
        CU_ASSERT_PTR_NOT_NULL(strchr("89ab", uuids[i][16]));
        for (int j = 0; j < i; j++)
            CU_ASSERT_STRING_NOT_EQUAL(uuids[i], uuids[j]);
    }
}

HL_TESTS(document, HL_CASE(a_created_document_is_whole_and_read_only),
         HL_CASE(what_exists_is_never_created_again_nor_changed),
         HL_CASE(a_replaced_document_is_another_file_under_the_same_name),
         HL_CASE(a_link_is_replaced_and_not_followed), HL_CASE(a_folder_in_the_place_of_a_document_stays),
         HL_CASE(names_that_cannot_be_leave_nothing), HL_CASE(writing_to_a_full_device_is_no_space),
         HL_CASE(what_is_reserved_has_its_size_and_keeps_its_bytes),
         HL_CASE(a_full_file_system_is_no_space_and_the_old_document_stays),
         HL_CASE(where_nothing_can_be_reserved_the_size_is_set),
         HL_CASE(where_names_cannot_be_swapped_a_plain_rename_replaces),
         HL_CASE(uuids_are_random_and_of_version_4));
