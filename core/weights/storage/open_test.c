#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/testing/cunit.h"
#include "core/weights/storage/scratch.h"
#include "core/weights/storage/storage.h"

static void only_errnos_of_structure_are_structural(void)
{
    static const int structural[] = {EACCES, EISDIR, ELOOP, ENOENT, ENOTDIR, EPERM};
    static const int others[] = {0, EIO, EMFILE, ENFILE, ENOMEM, ESTALE, ENOSPC, EROFS, EINTR, EBUSY, ENXIO};
    for (size_t i = 0; i < sizeof structural / sizeof *structural; i++)
        CU_ASSERT_TRUE(hl_storage_is_structural(structural[i]));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        CU_ASSERT_FALSE(hl_storage_is_structural(others[i]));
}

static void trust_is_ownership_and_no_write_permission(void)
{
    hl_error err;
    struct stat st = {.st_uid = geteuid(), .st_mode = S_IFDIR | 0755};
    for (mode_t mode = 0; mode < 010000; mode++) {
        st.st_mode = S_IFDIR | mode;
        hl_status expected = mode & 022 ? HL_E_PERMISSION : HL_OK;
        CU_ASSERT_EQUAL(hl_storage_check_folder(&st, "it", NULL), expected);
        st.st_mode = S_IFREG | mode;
        expected = mode & 0222 ? HL_E_PERMISSION : HL_OK;
        CU_ASSERT_EQUAL(hl_storage_check_file(&st, "it", NULL), expected);
    }
    st.st_mode = S_IFREG | 0444;
    HL_EXPECT_STATUS(hl_storage_check_folder(&st, "it", &err), HL_E_PERMISSION, err);
    st.st_mode = S_IFDIR | 0555;
    HL_EXPECT_STATUS(hl_storage_check_file(&st, "it", &err), HL_E_PERMISSION, err);
    st.st_uid = geteuid() + 1;
    HL_EXPECT_STATUS(hl_storage_check_folder(&st, "it", &err), HL_E_PERMISSION, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "it belongs to user"));
    st.st_mode = S_IFREG | 0444;
    HL_EXPECT_STATUS(hl_storage_check_file(&st, "it", &err), HL_E_PERMISSION, err);
}

static int make_socket(int folder, const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    /* A socket's address is short: it goes through the open folder. */
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%s", folder, name);
    CU_ASSERT_EQUAL_FATAL(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

static void expect_no_file(int folder, const char *name, hl_status expected, int sys_errno)
{
    hl_error err = {0};
    struct stat st = {.st_size = 77};
    char *text = (char *)&st;
    size_t bytes = 7;
    int fd = -7, before = scratch_next_fd();
    HL_EXPECT_STATUS(hl_storage_open_file(folder, name, &st, &fd, &err), expected, err);
    CU_ASSERT_EQUAL(err.sys_errno, sys_errno);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, name));
    HL_EXPECT_STATUS(hl_storage_read_document(folder, name, 100, false, &text, &bytes, &err), expected, err);
    CU_ASSERT_EQUAL(err.sys_errno, sys_errno);
    CU_ASSERT_EQUAL(fd, -7);
    CU_ASSERT_EQUAL(st.st_size, 77);
    CU_ASSERT_TRUE(bytes == 7 && text == (char *)&st);
    CU_ASSERT_EQUAL(scratch_next_fd(), before);
}

static void what_is_not_one_regular_file_is_refused_and_never_waited_for(void)
{
    int folder = scratch_open();
    scratch_write(folder, "file", "text", 0444);
    CU_ASSERT_EQUAL_FATAL(symlinkat("file", folder, "link"), 0);
    CU_ASSERT_EQUAL_FATAL(symlinkat("nowhere", folder, "broken"), 0);
    CU_ASSERT_EQUAL_FATAL(mkdirat(folder, "folder", 0755), 0);
    CU_ASSERT_EQUAL_FATAL(mkfifoat(folder, "pipe", 0644), 0);
    int socket_fd = make_socket(folder, "socket");
    expect_no_file(folder, "link", HL_E_CORRUPT, ELOOP);
    expect_no_file(folder, "broken", HL_E_CORRUPT, ELOOP);
    expect_no_file(folder, "folder", HL_E_CORRUPT, 0);
    expect_no_file(folder, "pipe", HL_E_CORRUPT, 0);
    expect_no_file(folder, "socket", HL_E_CORRUPT, ENXIO);
    expect_no_file(folder, "missing", HL_E_SYSTEM, ENOENT);
    expect_no_file(folder, "file/below", HL_E_SYSTEM, ENOTDIR);
    expect_no_file(AT_FDCWD, "/dev/zero", HL_E_CORRUPT, 0);
    CU_ASSERT_EQUAL_FATAL(linkat(folder, "file", folder, "second", 0), 0);
    expect_no_file(folder, "file", HL_E_CORRUPT, 0);
    expect_no_file(folder, "second", HL_E_CORRUPT, 0);
    close(socket_fd);
    if (mknodat(folder, "device", S_IFCHR | 0600, makedev(1, 5)) == 0)
        expect_no_file(folder, "device", HL_E_CORRUPT, 0);
    else
        printf("    no device could be made here: %s; /dev/zero stands for it\n", strerror(errno));
    scratch_close(folder);
}

static void a_file_is_opened_with_its_stat_and_closed_on_exec(void)
{
    hl_error err;
    struct stat st;
    int fd = -1, folder = scratch_open();
    scratch_write(folder, "file", "text", 0444);
    HL_REQUIRE_OK(hl_storage_open_file(folder, "file", &st, &fd, &err), err);
    CU_ASSERT_TRUE(st.st_size == 4 && S_ISREG(st.st_mode));
    CU_ASSERT_EQUAL(fcntl(fd, F_GETFD), FD_CLOEXEC);
    CU_ASSERT_EQUAL(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
    close(fd);
    scratch_close(folder);
}

static void a_document_is_read_whole_within_its_bound(void)
{
    hl_error err = {0};
    char *text = NULL;
    size_t bytes = 0;
    int folder = scratch_open(), before = scratch_next_fd();
    scratch_write(folder, "document", "{\"a\":1}", 0444);
    scratch_write(folder, "empty", "", 0444);
    HL_REQUIRE_OK(hl_storage_read_document(folder, "document", 7, true, &text, &bytes, &err), err);
    CU_ASSERT_TRUE(bytes == 7 && !strcmp(text, "{\"a\":1}"));
    free(text);
    HL_REQUIRE_OK(hl_storage_read_document(folder, "empty", 0, true, &text, &bytes, &err), err);
    CU_ASSERT_TRUE(bytes == 0 && !*text);
    free(text);
    HL_EXPECT_STATUS(hl_storage_read_document(folder, "document", 6, true, &text, &bytes, &err), HL_E_LIMIT,
                     err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "document has 7 bytes"));
    CU_ASSERT_EQUAL(scratch_next_fd(), before);
    scratch_close(folder);
}

static void a_trusted_document_has_no_write_permission(void)
{
    hl_error err = {0};
    char *text = NULL;
    size_t bytes = 0;
    int folder = scratch_open();
    scratch_write(folder, "writable", "x", 0644);
    HL_EXPECT_STATUS(hl_storage_read_document(folder, "writable", 7, true, &text, &bytes, &err),
                     HL_E_PERMISSION, err);
    HL_EXPECT_OK(hl_storage_read_document(folder, "writable", 7, false, &text, &bytes, &err), err);
    free(text);
    scratch_close(folder);
}

/* A file of /proc says that it has no bytes, and has some: one that grows while it is read. */
static void a_size_that_does_not_hold_is_corrupt(void)
{
    hl_error err = {0};
    char *text = NULL;
    size_t bytes = 0;
    int before = scratch_next_fd();
    HL_EXPECT_STATUS(
        hl_storage_read_document(AT_FDCWD, "/proc/self/status", 4096, false, &text, &bytes, &err),
        HL_E_CORRUPT, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "changed its size"));
    CU_ASSERT_PTR_NULL(text);
    CU_ASSERT_EQUAL(scratch_next_fd(), before);
}

static void only_a_folder_is_opened_as_one(void)
{
    hl_error err = {0};
    int fd = -7, folder = scratch_open();
    scratch_write(folder, "file", "", 0444);
    CU_ASSERT_EQUAL_FATAL(mkdirat(folder, "folder", 0755), 0);
    CU_ASSERT_EQUAL_FATAL(symlinkat("folder", folder, "link"), 0);
    CU_ASSERT_EQUAL_FATAL(mkfifoat(folder, "pipe", 0644), 0);
    static const struct {
        const char *name;
        int sys_errno;
    } refused[] = {{"file", ENOTDIR}, {"link", ENOTDIR}, {"pipe", ENOTDIR}, {"missing", ENOENT}};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        HL_EXPECT_STATUS(hl_storage_open_folder(folder, refused[i].name, &fd, &err), HL_E_SYSTEM, err);
        CU_ASSERT_EQUAL(err.sys_errno, refused[i].sys_errno);
        CU_ASSERT_EQUAL(fd, -7);
    }
    HL_EXPECT_STATUS(hl_storage_make_folder(folder, "link", false, &fd, &err), HL_E_SYSTEM, err);
    HL_EXPECT_STATUS(hl_storage_make_folder(folder, "file", false, &fd, &err), HL_E_SYSTEM, err);
    HL_REQUIRE_OK(hl_storage_open_folder(folder, "folder", &fd, &err), err);
    CU_ASSERT_EQUAL(fcntl(fd, F_GETFD), FD_CLOEXEC);
    close(fd);
    scratch_close(folder);
}

static void a_folder_is_made_for_its_owner_alone_or_opened_as_it_is(void)
{
    hl_error err = {0};
    struct stat st;
    int fd = -1, folder = scratch_open(), before = scratch_next_fd();
    HL_REQUIRE_OK(hl_storage_make_folder(folder, "new", true, &fd, &err), err);
    CU_ASSERT_TRUE(fstat(fd, &st) == 0 && (st.st_mode & 07777) == 0700 && st.st_uid == geteuid());
    close(fd);
    CU_ASSERT_EQUAL_FATAL(fchmodat(folder, "new", 0777, 0), 0);
    fd = -7;
    HL_EXPECT_STATUS(hl_storage_make_folder(folder, "new", true, &fd, &err), HL_E_PERMISSION, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "new is writable by others (mode 0777)"));
    CU_ASSERT_EQUAL(fd, -7);
    CU_ASSERT_EQUAL(scratch_next_fd(), before);
    HL_REQUIRE_OK(hl_storage_make_folder(folder, "new", false, &fd, &err), err);
    close(fd);
    HL_EXPECT_STATUS(hl_storage_make_folder(folder, "a/b", false, &fd, &err), HL_E_SYSTEM, err);
    CU_ASSERT_EQUAL(err.sys_errno, ENOENT);
    scratch_close(folder);
}

HL_TESTS(open, HL_CASE(only_errnos_of_structure_are_structural),
         HL_CASE(trust_is_ownership_and_no_write_permission),
         HL_CASE(what_is_not_one_regular_file_is_refused_and_never_waited_for),
         HL_CASE(a_file_is_opened_with_its_stat_and_closed_on_exec),
         HL_CASE(a_document_is_read_whole_within_its_bound),
         HL_CASE(a_trusted_document_has_no_write_permission), HL_CASE(a_size_that_does_not_hold_is_corrupt),
         HL_CASE(only_a_folder_is_opened_as_one),
         HL_CASE(a_folder_is_made_for_its_owner_alone_or_opened_as_it_is));
