/* What the kernel refuses comes out with its errno, whatever is in the way of undoing what was begun. Each
 * case runs in a child, in which one system call or the opening of files no longer works. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/testing/cunit.h"
#include "core/weights/storage/scratch.h"
#include "core/weights/storage/storage.h"

static bool is_system_error(hl_status status, const hl_error *err, int sys_errno)
{
    if (status != HL_E_SYSTEM || err->sys_errno != sys_errno)
        fprintf(stderr, "got %s, errno %d: %s\n", hl_status_name(status), err->sys_errno,
                status == HL_OK ? "" : err->text);
    return status == HL_E_SYSTEM && err->sys_errno == sys_errno;
}

static void no_random_bytes(int folder)
{
    hl_error err = {0};
    char uuid[33] = "kept";
    scratch_refuse(SYS_getrandom, EIO);
    SCRATCH_CHECK(is_system_error(hl_storage_uuid(uuid, &err), &err, EIO) && !strcmp(uuid, "kept"));
    SCRATCH_CHECK(is_system_error(hl_storage_replace_document(folder, "new", "x", 1, &err), &err, EIO));
    SCRATCH_CHECK(scratch_entries(folder) == 2);
}

static void no_statx(int folder)
{
    hl_error err = {0};
    struct hl_filesystem filesystem;
    uint64_t bytes = 7;
    scratch_refuse(SYS_statx, EIO);
    SCRATCH_CHECK(is_system_error(hl_filesystem_of(folder, &filesystem, &err), &err, EIO));
    SCRATCH_CHECK(is_system_error(hl_storage_tree_bytes(folder, &bytes, &err), &err, EIO) && bytes == 7);
    SCRATCH_CHECK(is_system_error(hl_storage_remove_tree(folder, "tree", &err), &err, EIO));
    SCRATCH_CHECK(scratch_exists(folder, "tree/below/file"));
}

/* The C library then makes do without statx(), and no mount has an id: domains are refused, trees are still
 * told apart by their devices. */
static void no_mount_ids(int folder)
{
    hl_error err = {0};
    struct hl_filesystem filesystem;
    uint64_t bytes = 0;
    scratch_refuse(SYS_statx, ENOSYS);
    SCRATCH_CHECK(hl_filesystem_of(folder, &filesystem, &err) == HL_E_UNSUPPORTED);
    SCRATCH_CHECK(hl_storage_tree_bytes(folder, &bytes, &err) == HL_OK && bytes > 0);
    SCRATCH_CHECK(hl_storage_remove_tree(folder, "tree", &err) == HL_OK && !scratch_exists(folder, "tree"));
}

static void no_statfs(int folder)
{
    hl_error err = {0};
    struct hl_filesystem filesystem;
    uint64_t bytes = 7;
    scratch_refuse(SYS_fstatfs, EIO);
    SCRATCH_CHECK(is_system_error(hl_filesystem_of(folder, &filesystem, &err), &err, EIO));
    SCRATCH_CHECK(is_system_error(hl_storage_free_bytes(folder, &bytes, &err), &err, EIO) && bytes == 7);
}

static void no_stat(int folder)
{
    hl_error err = {0};
    struct stat st;
    uint64_t bytes = 7;
    int fd = -7, before = scratch_next_fd();
    scratch_refuse(SYS_newfstatat, EIO);
    scratch_refuse(SYS_fstat, EIO);
    SCRATCH_CHECK(is_system_error(hl_storage_open_file(folder, "it", &st, &fd, &err), &err, EIO));
    SCRATCH_CHECK(is_system_error(hl_storage_make_folder(folder, "tree", true, &fd, &err), &err, EIO));
    SCRATCH_CHECK(is_system_error(hl_storage_tree_bytes(folder, &bytes, &err), &err, EIO) && bytes == 7);
    SCRATCH_CHECK(is_system_error(hl_storage_remove_tree(folder, "tree", &err), &err, EIO));
    SCRATCH_CHECK(fd == -7 && scratch_next_fd() == before);
}

static void no_listing(int folder)
{
    hl_error err = {0};
    uint64_t bytes = 7;
    int before = scratch_next_fd();
    scratch_refuse(SYS_getdents64, EIO);
    SCRATCH_CHECK(is_system_error(hl_storage_tree_bytes(folder, &bytes, &err), &err, EIO) && bytes == 7);
    SCRATCH_CHECK(is_system_error(hl_storage_remove_tree(folder, "tree", &err), &err, EIO));
    SCRATCH_CHECK(scratch_next_fd() == before);
}

/* The first error is told, not that of the clean-up behind it. */
static void no_sync_and_no_removal(int folder)
{
    hl_error err = {0};
    int before = scratch_next_fd();
    scratch_refuse(SYS_fsync, EIO);
    scratch_refuse(SYS_unlinkat, EPERM);
    SCRATCH_CHECK(is_system_error(hl_storage_create_document(folder, "new", "x", 1, &err), &err, EIO));
    SCRATCH_CHECK(is_system_error(hl_storage_replace_document(folder, "it", "x", 1, &err), &err, EIO));
    SCRATCH_CHECK(is_system_error(hl_storage_sync(folder, &err), &err, EIO));
    SCRATCH_CHECK(scratch_holds(folder, "it", "old") && scratch_next_fd() == before);
    SCRATCH_CHECK(is_system_error(hl_storage_remove_tree(folder, "tree", &err), &err, EPERM));
    SCRATCH_CHECK(scratch_exists(folder, "tree/below/file"));
}

static void no_reservation(int folder)
{
    hl_error err = {0};
    struct stat st;
    int fd = openat(folder, "payload", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    scratch_refuse(SYS_fallocate, EOPNOTSUPP);
    SCRATCH_CHECK(hl_storage_reserve(fd, 5000, &err) == HL_OK && fstat(fd, &st) == 0 && st.st_size == 5000);
    scratch_refuse(SYS_ftruncate, EFBIG);
    SCRATCH_CHECK(is_system_error(hl_storage_reserve(fd, 6000, &err), &err, EFBIG));
    SCRATCH_CHECK(hl_storage_reserve(fd, 4000, &err) == HL_OK);
    close(fd);
}

/* Every number of free descriptors from none up: an error while they are too few, success then, and what is
 * refused leaves no descriptor. Outputs stay as they were. */
static void few_descriptors(int folder)
{
    bool space = false, sized = false, read = false;
    const int free_fd = scratch_next_fd();
    for (int more = 0; more < 8; more++) {
        hl_error err = {0};
        struct hl_filesystem filesystem = {.type = "kept"};
        uint64_t bytes = 7;
        char *text = NULL;
        size_t size = 7;
        struct rlimit limit = {.rlim_cur = (rlim_t)(free_fd + more), .rlim_max = 1024};
        SCRATCH_CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
        hl_status status = hl_filesystem_of(folder, &filesystem, &err);
        SCRATCH_CHECK(status == HL_OK ||
                      (!space && is_system_error(status, &err, EMFILE) && filesystem.type[0] == 'k'));
        space = status == HL_OK;
        status = hl_storage_tree_bytes(folder, &bytes, &err);
        SCRATCH_CHECK(status == HL_OK || (!sized && is_system_error(status, &err, EMFILE) && bytes == 7));
        sized = status == HL_OK;
        status = hl_storage_read_document(folder, "it", 9, true, &text, &size, &err);
        SCRATCH_CHECK(status == HL_OK || (!read && is_system_error(status, &err, EMFILE) && !text));
        read = status == HL_OK;
        free(text);
        status = hl_storage_remove_tree(folder, "tree", &err);
        SCRATCH_CHECK(status == HL_OK || is_system_error(status, &err, EMFILE));
        limit.rlim_cur = 1024;
        SCRATCH_CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0 && scratch_next_fd() == free_fd);
    }
    SCRATCH_CHECK(space && sized && read && !scratch_exists(folder, "tree"));
}

static void refused(void (*steps)(int folder))
{
    int folder = scratch_open();
    scratch_write(folder, "it", "old", 0444);
    CU_ASSERT_TRUE_FATAL(mkdirat(folder, "tree", 0755) == 0 && mkdirat(folder, "tree/below", 0755) == 0);
    scratch_write(folder, "tree/below/file", "x", 0444);
    scratch_in_child(steps, folder);
    CU_ASSERT_TRUE(scratch_holds(folder, "it", "old"));
    scratch_close(folder);
}

static void each_refused_system_call_comes_out_with_its_errno(void)
{
    refused(no_random_bytes);
    refused(no_statx);
    refused(no_mount_ids);
    refused(no_statfs);
    refused(no_stat);
    refused(no_listing);
    refused(no_reservation);
}

static void a_clean_up_that_fails_does_not_mask_the_first_error(void)
{
    refused(no_sync_and_no_removal);
}

static void too_few_descriptors_are_an_error_that_leaks_none(void)
{
    refused(few_descriptors);
}

HL_TESTS(refusals, HL_CASE(each_refused_system_call_comes_out_with_its_errno),
         HL_CASE(a_clean_up_that_fails_does_not_mask_the_first_error),
         HL_CASE(too_few_descriptors_are_an_error_that_leaks_none));
