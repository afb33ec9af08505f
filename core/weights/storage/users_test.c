/* What belongs to another user. Bazel's sandbox knows one user only, hence this runs outside of it. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/testing/cunit.h"
#include "core/weights/storage/scratch.h"
#include "core/weights/storage/storage.h"

static int make_folder(int parent, const char *name)
{
    CU_ASSERT_EQUAL_FATAL(mkdirat(parent, name, 0755), 0);
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CU_ASSERT_TRUE_FATAL(fd >= 0);
    return fd;
}

/* `folder` belongs to whoever runs this; "roots" and "sealed" were made before he became somebody else. */
static void meet_another_users_entries(int folder)
{
    hl_error err = {0};
    struct stat st;
    char *text = NULL;
    size_t bytes = 0;
    int fd = -1;
    SCRATCH_CHECK(hl_storage_read_document(folder, "roots", 9, true, &text, &bytes, &err) == HL_E_PERMISSION);
    SCRATCH_CHECK(hl_storage_read_document(folder, "roots", 9, false, &text, &bytes, &err) == HL_OK);
    free(text);
    SCRATCH_CHECK(hl_storage_open_file(folder, "sealed", &st, &fd, &err) == HL_E_SYSTEM &&
                  err.sys_errno == EACCES);
    SCRATCH_CHECK(hl_storage_make_folder(folder, "roots-folder", true, &fd, &err) == HL_E_PERMISSION);
    SCRATCH_CHECK(hl_storage_make_folder(folder, "own", true, &fd, &err) == HL_OK);
    SCRATCH_CHECK(fchmod(fd, 0555) == 0);
    int below = -1;
    SCRATCH_CHECK(hl_storage_make_folder(fd, "below", true, &below, &err) == HL_E_SYSTEM &&
                  err.sys_errno == EACCES);
    SCRATCH_CHECK(hl_storage_create_document(fd, "document", "x", 1, &err) == HL_E_SYSTEM &&
                  err.sys_errno == EACCES);
    SCRATCH_CHECK(hl_storage_replace_document(fd, "document", "x", 1, &err) == HL_E_SYSTEM &&
                  err.sys_errno == EACCES);
    SCRATCH_CHECK(below == -1);
    close(fd);
}

static void another_users_entries_are_not_trusted(void)
{
    int folder = scratch_open();
    scratch_write(folder, "roots", "x", 0444);
    scratch_write(folder, "sealed", "x", 0400);
    CU_ASSERT_EQUAL_FATAL(mkdirat(folder, "roots-folder", 0755), 0);
    if (scratch_can_be_two_users(folder))
        scratch_without_privilege(meet_another_users_entries, folder);
    CU_ASSERT_TRUE(scratch_exists(folder, "roots"));
    scratch_close(folder);
}

/* Root's entries in a folder that is the other user's. */
static void fail_at_another_users_entries(int folder)
{
    hl_error err = {0};
    uint64_t bytes = 7;
    int before = scratch_next_fd();
    SCRATCH_CHECK(hl_storage_remove_tree(folder, "readable", &err) == HL_E_SYSTEM && err.sys_errno == EACCES);
    SCRATCH_CHECK(strstr(err.text, "roots-file"));
    SCRATCH_CHECK(scratch_exists(folder, "readable/roots-file"));
    SCRATCH_CHECK(hl_storage_remove_tree(folder, "sealed", &err) == HL_E_SYSTEM && err.sys_errno == EACCES);
    SCRATCH_CHECK(scratch_exists(folder, "sealed"));
    SCRATCH_CHECK(hl_storage_tree_bytes(folder, &bytes, &err) == HL_E_SYSTEM && err.sys_errno == EACCES);
    SCRATCH_CHECK(bytes == 7);
    SCRATCH_CHECK(hl_storage_remove_tree(folder, "empty", &err) == HL_OK);
    SCRATCH_CHECK(hl_storage_remove_tree(folder, "mine", &err) == HL_OK); /* his file in a folder of mine */
    SCRATCH_CHECK(scratch_next_fd() == before);
}

static void another_users_folder_is_not_emptied(void)
{
    int folder = scratch_open();
    CU_ASSERT_EQUAL(scratch_entries(folder), 0);
    if (!scratch_can_be_two_users(folder)) {
        scratch_close(folder);
        return;
    }
    int readable = make_folder(folder, "readable"), mine = make_folder(folder, "mine");
    scratch_write(readable, "roots-file", "x", 0666);
    scratch_write(mine, "roots-file", "x", 0600);
    CU_ASSERT_EQUAL_FATAL(fchown(mine, SCRATCH_OTHER_USER, SCRATCH_OTHER_USER), 0);
    CU_ASSERT_EQUAL_FATAL(mkdirat(folder, "sealed", 0700), 0);
    CU_ASSERT_EQUAL_FATAL(mkdirat(folder, "empty", 0755), 0);
    close(readable);
    close(mine);
    scratch_without_privilege(fail_at_another_users_entries, folder);
    CU_ASSERT_EQUAL(scratch_entries(folder), 2);
    scratch_close(folder);
}

HL_TESTS(users, HL_CASE(another_users_entries_are_not_trusted), HL_CASE(another_users_folder_is_not_emptied));
