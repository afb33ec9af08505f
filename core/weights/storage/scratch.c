#include "core/weights/storage/scratch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <grp.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/testing/cunit.h"

int scratch_failures;
static char path[PATH_MAX];
static bool is_child;

/* A fatal assertion leaves the case with longjmp(): in a child that would go on with the parent's cases. */
static void require(bool holds)
{
    if (is_child && !holds) {
        fprintf(stderr, "in a child: the test's own preparation failed: %s\n", strerror(errno));
        _exit(1);
    }
    CU_ASSERT_TRUE_FATAL(holds);
}

int scratch_open(void)
{
    const char *base = getenv("TEST_TMPDIR");
    snprintf(path, sizeof path, "%s/scratch.XXXXXX", base ? base : "/tmp");
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(path));
    CU_ASSERT_EQUAL_FATAL(chmod(path, 0755), 0);
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CU_ASSERT_TRUE_FATAL(folder >= 0);
    return folder;
}

const char *scratch_path(void)
{
    return path;
}

static int permit(const char *entry, const struct stat *st, int kind, struct FTW *at)
{
    (void)st;
    (void)at;
    if (kind == FTW_D || kind == FTW_DNR)
        chmod(entry, 0700);
    return 0;
}

static int discard(const char *entry, const struct stat *st, int kind, struct FTW *at)
{
    (void)st;
    (void)kind;
    (void)at;
    return remove(entry);
}

void scratch_close(int folder)
{
    close(folder);
    nftw(path, permit, 16, FTW_PHYS);
    CU_ASSERT_EQUAL(nftw(path, discard, 16, FTW_PHYS | FTW_DEPTH), 0);
}

void scratch_write(int folder, const char *name, const char *text, mode_t mode)
{
    int fd = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    require(fd >= 0);
    require(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    require(fchmod(fd, mode) == 0);
    close(fd);
}

bool scratch_holds(int folder, const char *name, const char *text)
{
    char found[4096];
    int fd = openat(folder, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t got = read(fd, found, sizeof found);
    close(fd);
    return got == (ssize_t)strlen(text) && !memcmp(found, text, (size_t)got);
}

bool scratch_exists(int folder, const char *name)
{
    struct stat st;
    return fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

size_t scratch_entries(int folder)
{
    size_t count = 0;
    DIR *stream = fdopendir(openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    require(stream != NULL);
    while (readdir(stream))
        count++;
    closedir(stream);
    return count - 2;
}

int scratch_next_fd(void)
{
    int fd = dup(0);
    close(fd);
    return fd;
}

/* How a child becomes what its steps need; 0, or the errno that says why not. */
static int become_nothing(void)
{
    return 0;
}

static int become_other_user(void)
{
    if (setgroups(0, NULL) != 0 ||
        setresgid(SCRATCH_OTHER_USER, SCRATCH_OTHER_USER, SCRATCH_OTHER_USER) != 0 ||
        setresuid(SCRATCH_OTHER_USER, SCRATCH_OTHER_USER, SCRATCH_OTHER_USER) != 0)
        return errno;
    return 0;
}

static int drop_capabilities(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {0};
    return syscall(SYS_capset, &header, none) != 0 ? errno : 0;
}

static int own_mounts(void)
{
    return unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ? errno : 0;
}

static bool write_whole(const char *file, const char *text)
{
    int fd = open(file, O_WRONLY | O_CLOEXEC);
    bool written = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        close(fd);
    return written;
}

static int own_user_and_mounts(void)
{
    char users[64], groups[64];
    snprintf(users, sizeof users, "0 %u 1", (unsigned)geteuid());
    snprintf(groups, sizeof groups, "0 %u 1", (unsigned)getegid());
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0 || !write_whole("/proc/self/uid_map", users) ||
        !write_whole("/proc/self/setgroups", "deny") || !write_whole("/proc/self/gid_map", groups) ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        return errno;
    return 0;
}

enum { NOT_BECOME = 100 };

/* The child's exit status: failed checks, or NOT_BECOME. */
static int run(int (*become)(void), void (*steps)(int folder), int folder)
{
    int status = -1;
    fflush(NULL);
    pid_t child = fork();
    CU_ASSERT_TRUE_FATAL(child >= 0);
    if (child == 0) {
        scratch_failures = 0;
        is_child = true;
        if (become() != 0)
            _exit(NOT_BECOME);
        if (become == own_mounts || become == own_user_and_mounts) {
            /* What was open before is on the other namespace's mounts. */
            int again = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
            SCRATCH_CHECK(dup3(again, folder, O_CLOEXEC) == folder);
            close(again);
        }
        steps(folder);
        fflush(NULL);
        _exit(scratch_failures < NOT_BECOME ? scratch_failures : NOT_BECOME - 1);
    }
    CU_ASSERT_EQUAL_FATAL(waitpid(child, &status, 0), child);
    CU_ASSERT_TRUE(WIFEXITED(status));
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

void scratch_in_child(void (*steps)(int folder), int folder)
{
    CU_ASSERT_EQUAL(run(become_nothing, steps, folder), 0);
}

void scratch_without_privilege(void (*steps)(int folder), int folder)
{
    if (geteuid() == 0 && fchown(folder, SCRATCH_OTHER_USER, SCRATCH_OTHER_USER) == 0) {
        printf("    permissions bind: steps run as uid %d\n", SCRATCH_OTHER_USER);
        CU_ASSERT_EQUAL(run(become_other_user, steps, folder), 0);
    } else {
        printf("    permissions bind: steps run as uid %u without capabilities\n", (unsigned)geteuid());
        CU_ASSERT_EQUAL(run(drop_capabilities, steps, folder), 0);
    }
}

bool scratch_can_be_two_users(int folder)
{
    const uid_t user = geteuid();
    bool can = user == 0 && fchown(folder, SCRATCH_OTHER_USER, SCRATCH_OTHER_USER) == 0;
    if (can) {
        CU_ASSERT_EQUAL_FATAL(fchown(folder, user, getegid()), 0);
    } else {
        printf("    NOT RUN: uid %u cannot be two users here\n", (unsigned)user);
    }
    CU_ASSERT_TRUE(can || user != 0);
    return can;
}

bool scratch_with_mounts(void (*steps)(int folder), int folder)
{
    int failed = run(own_mounts, steps, folder);
    if (failed != NOT_BECOME) {
        printf("    mounts were made in a mount namespace, as this user\n");
        CU_ASSERT_EQUAL(failed, 0);
        return true;
    }
    failed = run(own_user_and_mounts, steps, folder);
    if (failed != NOT_BECOME) {
        printf("    mounts were made in a user and mount namespace\n");
        CU_ASSERT_EQUAL(failed, 0);
        return true;
    }
    printf("    NOT RUN: this system allows no mounts, not in a user namespace either\n");
    CU_ASSERT_NOT_EQUAL(own_mounts(), 0);
    CU_ASSERT_NOT_EQUAL(geteuid(), 0);
    return false;
}

int scratch_mount(const char *type, const char *name, unsigned long flags, const char *options)
{
    char point[PATH_MAX + 256];
    snprintf(point, sizeof point, "%s/%s", path, name);
    if (mount(type, point, type, flags, options) != 0) {
        fprintf(stderr, "cannot mount %s on %s: %s\n", type, point, strerror(errno));
        return -1;
    }
    return open(point, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static void install(struct sock_filter *filter, size_t count)
{
    struct sock_fprog program = {.len = (unsigned short)count, .filter = filter};
    require(is_child && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
            prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

void scratch_refuse(long number, int sys_errno)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)sys_errno),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    install(filter, sizeof filter / sizeof *filter);
}

void scratch_refuse_argument(long number, unsigned argument, unsigned value, int sys_errno)
{
    /* The low half of an argument comes first on this machine. */
    const unsigned at = (unsigned)offsetof(struct seccomp_data, args) + argument * (unsigned)sizeof(__u64);
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)sys_errno),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    install(filter, sizeof filter / sizeof *filter);
}
