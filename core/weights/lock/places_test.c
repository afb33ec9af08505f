/* Locks in folders that cannot be written, entries that are no lock files, and who is seen to hold one. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/testing/cunit.h"
#include "core/weights/lock/lock.h"
#include "core/weights/lock/proc_locks.h"
#include "core/weights/storage/scratch.h"

#define KEY "a63d64bbdd7f1f5923929f66493c3bef31a7de7cdb21d5aa303c8ee49496c102"
#define FILE_NAME KEY ".artifact.lock"

static hl_status take(int folder, enum hl_lock_mode mode, bool read_only, struct hl_lock *lock, hl_error *err)
{
    *lock = HL_LOCK_NONE;
    return hl_lock_take(folder, HL_LOCK_ARTIFACT, KEY, mode, HL_LOCK_NOT_AT_ALL, read_only, lock, err);
}

static bool is_active(int folder)
{
    hl_error err = {0};
    bool active = false;
    HL_EXPECT_OK(hl_lock_is_active(folder, HL_LOCK_ARTIFACT, KEY, &active, &err), err);
    return active;
}

static void a_missing_file_is_not_found_and_not_made_when_reading_only(void)
{
    hl_error err = {0};
    struct hl_lock lock, exclusive;
    int folder = scratch_open();
    HL_EXPECT_STATUS(take(folder, HL_LOCK_SHARED, true, &lock, &err), HL_E_NOT_FOUND, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, FILE_NAME));
    CU_ASSERT_EQUAL(lock.fd, -1);
    CU_ASSERT_FALSE(is_active(folder));
    CU_ASSERT_EQUAL(scratch_entries(folder), 0);
    scratch_write(folder, FILE_NAME, "", 0600);
    HL_EXPECT_OK(take(folder, HL_LOCK_SHARED, true, &lock, &err), err);
    CU_ASSERT_EQUAL(fcntl(lock.fd, F_GETFL) & O_ACCMODE, O_RDONLY);
    HL_EXPECT_STATUS(take(folder, HL_LOCK_EXCLUSIVE, false, &exclusive, &err), HL_E_BUSY, err);
    hl_lock_release(&lock);
    HL_EXPECT_OK(take(folder, HL_LOCK_EXCLUSIVE, true, &exclusive, &err), err);
    HL_EXPECT_STATUS(take(folder, HL_LOCK_SHARED, true, &lock, &err), HL_E_BUSY, err);
    hl_lock_release(&exclusive);
    scratch_close(folder);
}

/* As a user who may not write the folder, in which his lock file is. */
static void lock_in_a_read_only_folder(int folder)
{
    hl_error err = {0};
    struct hl_lock lock;
    bool active = true;
    SCRATCH_CHECK(fchmod(folder, 0555) == 0);
    SCRATCH_CHECK(take(folder, HL_LOCK_SHARED, true, &lock, &err) == HL_OK);
    hl_lock_release(&lock);
    SCRATCH_CHECK(take(folder, HL_LOCK_EXCLUSIVE, false, &lock, &err) == HL_OK); /* it exists */
    hl_lock_release(&lock);
    SCRATCH_CHECK(hl_lock_is_active(folder, HL_LOCK_ARTIFACT, KEY, &active, &err) == HL_OK && !active);
    SCRATCH_CHECK(hl_lock_take(folder, HL_LOCK_BUILD, KEY, HL_LOCK_SHARED, 0, true, &lock, &err) ==
                  HL_E_NOT_FOUND);
    SCRATCH_CHECK(hl_lock_take(folder, HL_LOCK_BUILD, KEY, HL_LOCK_SHARED, 0, false, &lock, &err) ==
                      HL_E_SYSTEM &&
                  err.sys_errno == EACCES);
    struct stat st;
    SCRATCH_CHECK(fstatat(folder, "domain-init.lock", &st, AT_SYMLINK_NOFOLLOW) == 0);
    if (st.st_uid != geteuid()) {
        active = false;
        SCRATCH_CHECK(hl_lock_take(folder, HL_LOCK_DOMAIN_INIT, NULL, HL_LOCK_SHARED, 0, true, &lock, &err) ==
                          HL_E_SYSTEM &&
                      err.sys_errno == EACCES);
        SCRATCH_CHECK(hl_lock_is_active(folder, HL_LOCK_DOMAIN_INIT, NULL, &active, &err) == HL_E_SYSTEM &&
                      !active);
    }
    SCRATCH_CHECK(fchmod(folder, 0755) == 0);
}

static void a_read_only_folder_has_locks_for_who_only_reads(void)
{
    int folder = scratch_open();
    scratch_write(folder, FILE_NAME, "", 0600);
    scratch_write(folder, "domain-init.lock", "", 0600);
    if (scratch_can_be_two_users(folder))
        CU_ASSERT_EQUAL_FATAL(fchownat(folder, FILE_NAME, SCRATCH_OTHER_USER, SCRATCH_OTHER_USER, 0), 0);
    scratch_without_privilege(lock_in_a_read_only_folder, folder);
    scratch_close(folder);
}

static void lock_on_a_read_only_mount(int folder)
{
    hl_error err = {0};
    struct hl_lock lock;
    char point[4096];
    SCRATCH_CHECK(mkdirat(folder, "mount", 0700) == 0);
    int mounted = scratch_mount("tmpfs", "mount", 0, "size=64k");
    scratch_write(mounted, FILE_NAME, "", 0600);
    snprintf(point, sizeof point, "%s/mount", scratch_path());
    SCRATCH_CHECK(mount(NULL, point, NULL, MS_REMOUNT | MS_RDONLY, NULL) == 0);
    SCRATCH_CHECK(take(mounted, HL_LOCK_SHARED, false, &lock, &err) == HL_E_SYSTEM && err.sys_errno == EROFS);
    SCRATCH_CHECK(take(mounted, HL_LOCK_SHARED, true, &lock, &err) == HL_OK);
    bool active = false;
    SCRATCH_CHECK(hl_lock_is_active(mounted, HL_LOCK_ARTIFACT, KEY, &active, &err) == HL_OK && active);
    hl_lock_release(&lock);
    close(mounted);
}

static void a_read_only_mount_has_locks_for_who_only_reads(void)
{
    int folder = scratch_open();
    scratch_with_mounts(lock_on_a_read_only_mount, folder);
    scratch_close(folder);
}

static void what_is_no_regular_file_is_no_lock(void)
{
    static const char *const kinds[] = {"link", "broken link", "folder", "pipe"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        hl_error err = {0};
        struct hl_lock lock;
        bool active = true;
        int folder = scratch_open(), before = scratch_next_fd(), made = -1;
        scratch_write(folder, "target", "", 0600);
        switch (i) {
        case 0:
            made = symlinkat("target", folder, FILE_NAME);
            break;
        case 1:
            made = symlinkat("nowhere", folder, FILE_NAME);
            break;
        case 2:
            made = mkdirat(folder, FILE_NAME, 0700);
            break;
        default:
            made = mkfifoat(folder, FILE_NAME, 0600);
        }
        CU_ASSERT_EQUAL_FATAL(made, 0);
        for (int read_only = 0; read_only < 2; read_only++) {
            HL_EXPECT_STATUS(take(folder, HL_LOCK_SHARED, read_only, &lock, &err), HL_E_SYSTEM, err);
            CU_ASSERT_NOT_EQUAL(err.sys_errno, 0);
            CU_ASSERT_EQUAL(lock.fd, -1);
        }
        HL_EXPECT_STATUS(hl_lock_is_active(folder, HL_LOCK_ARTIFACT, KEY, &active, &err), HL_E_SYSTEM, err);
        CU_ASSERT_TRUE(active);
        CU_ASSERT_EQUAL(scratch_entries(folder), 2);
        CU_ASSERT_EQUAL(scratch_next_fd(), before);
        scratch_close(folder);
    }
}

static void refuse_flock(int folder, int sys_errno, hl_status expected)
{
    hl_error err = {0};
    struct hl_lock lock;
    bool active = false;
    const int before = scratch_next_fd();
    scratch_refuse(SYS_flock, sys_errno);
    SCRATCH_CHECK(take(folder, HL_LOCK_SHARED, false, &lock, &err) == expected && lock.fd == -1);
    hl_status status = hl_lock_is_active(folder, HL_LOCK_ARTIFACT, KEY, &active, &err);
    if (expected == HL_E_BUSY)
        SCRATCH_CHECK(status == HL_OK && active);
    else
        SCRATCH_CHECK(status == expected && err.sys_errno == sys_errno && !active);
    SCRATCH_CHECK(scratch_next_fd() == before);
}

static void no_locks_left(int folder)
{
    refuse_flock(folder, ENOLCK, HL_E_SYSTEM);
}

/* What some file systems say for EWOULDBLOCK. */
static void no_access(int folder)
{
    refuse_flock(folder, EACCES, HL_E_BUSY);
}

static void what_flock_refuses_is_told_apart(void)
{
    int folder = scratch_open();
    scratch_in_child(no_locks_left, folder);
    scratch_in_child(no_access, folder);
    scratch_close(folder);
}

static void activity_is_anybodys_lock_of_any_mode(void)
{
    hl_error err = {0};
    struct hl_lock lock;
    int folder = scratch_open();
    for (int mode = HL_LOCK_SHARED; mode <= HL_LOCK_EXCLUSIVE; mode++) {
        HL_REQUIRE_OK(take(folder, (enum hl_lock_mode)mode, false, &lock, &err), err);
        CU_ASSERT_TRUE(is_active(folder));
        hl_lock_release(&lock);
        CU_ASSERT_FALSE(is_active(folder));
    }
    CU_ASSERT_EQUAL(scratch_entries(folder), 1);
    scratch_close(folder);
}

/* A child that holds the shared lock, twice, until it is killed. */
static pid_t start_holder(int folder, int ready, int end)
{
    fflush(NULL);
    pid_t pid = fork();
    CU_ASSERT_TRUE_FATAL(pid >= 0);
    if (pid == 0) {
        hl_error err = {0};
        struct hl_lock first, second;
        char word = 'h';
        bool held = take(folder, HL_LOCK_SHARED, false, &first, &err) == HL_OK &&
                    take(folder, HL_LOCK_SHARED, false, &second, &err) == HL_OK;
        if (!held || write(ready, &word, 1) != 1)
            _exit(1);
        _exit(read(end, &word, 1) == 0 ? 0 : 1);
    }
    return pid;
}

static bool is_one_of(pid_t pid, const pid_t *pids, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (pids[i] == pid)
            return true;
    return false;
}

static void holders_are_listed_once_each(void)
{
    enum { COUNT = 3, MOST = 8 };
    pid_t pids[COUNT], holders[MOST];
    size_t count = 77;
    int folder = scratch_open(), ready[2], ends[2];
    char word;
    hl_lock_holders(folder, HL_LOCK_ARTIFACT, KEY, holders, MOST, &count);
    CU_ASSERT_EQUAL(count, 0);
    CU_ASSERT_EQUAL(scratch_entries(folder), 0);
    CU_ASSERT_TRUE_FATAL(pipe2(ready, O_CLOEXEC) == 0 && pipe2(ends, O_CLOEXEC) == 0);
    for (int i = 0; i < COUNT; i++) {
        pids[i] = start_holder(folder, ready[1], ends[0]);
        CU_ASSERT_EQUAL(read(ready[0], &word, 1), 1);
    }
    hl_lock_holders(folder, HL_LOCK_ARTIFACT, KEY, holders, MOST, &count);
    CU_ASSERT_EQUAL(count, COUNT);
    for (int i = 0; i < COUNT && count == COUNT; i++)
        CU_ASSERT_TRUE(is_one_of(pids[i], holders, count));
    hl_lock_holders(folder, HL_LOCK_ARTIFACT, KEY, holders, 2, &count);
    CU_ASSERT_EQUAL(count, 2);
    hl_lock_holders(folder, HL_LOCK_ARTIFACT, KEY, holders, 0, &count);
    CU_ASSERT_EQUAL(count, 0);
    hl_lock_holders(folder, HL_LOCK_BUILD, KEY, holders, MOST, &count);
    CU_ASSERT_EQUAL(count, 0);
    for (int i = 0; i < COUNT; i++) {
        kill(pids[i], SIGKILL);
        CU_ASSERT_EQUAL(waitpid(pids[i], NULL, 0), pids[i]);
    }
    hl_lock_holders(folder, HL_LOCK_ARTIFACT, KEY, holders, MOST, &count);
    CU_ASSERT_EQUAL(count, 0);
    for (int i = 0; i < 2; i++) {
        close(ready[i]);
        close(ends[i]);
    }
    scratch_close(folder);
}

static void only_lines_of_holders_on_the_inode_name_one(void)
{
    static const char *const holder[] = {"12: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF\n",
                                         "1: FLOCK  ADVISORY  READ 4711 fe:00:1234 0 EOF",
                                         "1: FLOCK ADVISORY READ 4711 FE:0:1234 0 EOF\n",
                                         "100000: FLOCK  MSNFS     READ  4711 fe:00:1234 0 EOF\n"};
    static const char *const none[] = {
        "",
        "\n",
        "1: -> FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF\n",
        "1: POSIX  ADVISORY  WRITE 4711 fe:00:1234 0 EOF\n",
        "1: OFDLCK ADVISORY  WRITE -1 fe:00:1234 0 EOF\n",
        "1: LEASE  ACTIVE    READ 4711 fe:00:1234 0 EOF\n",
        "1: FLOCK  ADVISORY  WRITE -1 fe:00:1234 0 EOF\n",
        "1: FLOCK  ADVISORY  WRITE 0 fe:00:1234 0 EOF\n",
        "1: FLOCK  ADVISORY  WRITE 4294967297 fe:00:1234 0 EOF\n",
        "1: FLOCK  ADVISORY  WRITE 4711 fe:01:1234 0 EOF\n",
        "1: FLOCK  ADVISORY  WRITE 4711 fd:00:1234 0 EOF\n",
        "1: FLOCK  ADVISORY  WRITE 4711 fe:00:12345 0 EOF\n",
        "1: FLOCK  ADVISORY  WRITE 4711 fe:00:123 0 EOF\n",
        "1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234\n",
        "1: FLOCK  ADVISORY  WRITE 4711 fe:00\n",
        "1: FLOCK  ADVISORY  WRITE 4711 <none>:0 0 EOF\n",
        "1: FLOCK  ADVISORY  WRITE 4711 fe:00:99999999999999999999999999 0 EOF\n",
        "1: FLOCK  ADVISORY  WRITE 4711\n",
        "1: FLOCK  ADVISORY  WRITE\n",
        "1: FLOCK\n",
        "1:\n",
        "1\n",
        "x: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF\n",
        "-1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF\n",
        "FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF\n",
    };
    for (size_t i = 0; i < sizeof holder / sizeof *holder; i++) {
        pid_t pid = 0;
        CU_ASSERT_TRUE(hl_lock_line_holder(holder[i], makedev(0xfe, 0), 1234, &pid));
        CU_ASSERT_EQUAL(pid, 4711);
    }
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        pid_t pid = 7;
        CU_ASSERT_FALSE(hl_lock_line_holder(none[i], makedev(0xfe, 0), 1234, &pid));
        CU_ASSERT_EQUAL(pid, 7);
    }
}

HL_TESTS(places, HL_CASE(a_missing_file_is_not_found_and_not_made_when_reading_only),
         HL_CASE(a_read_only_folder_has_locks_for_who_only_reads),
         HL_CASE(a_read_only_mount_has_locks_for_who_only_reads), HL_CASE(what_is_no_regular_file_is_no_lock),
         HL_CASE(what_flock_refuses_is_told_apart), HL_CASE(activity_is_anybodys_lock_of_any_mode),
         HL_CASE(holders_are_listed_once_each), HL_CASE(only_lines_of_holders_on_the_inode_name_one));
