#include "core/channel/channel_testing.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROLE_VARIABLE "CHANNEL_TEST_ROLE"
#define ROLE_CHANNEL 3

void folder_make(char folder[8])
{
    const char *base = getenv("TEST_TMPDIR");
    CU_ASSERT_EQUAL_FATAL(chdir(base ? base : "/tmp"), 0);
    memcpy(folder, "XXXXXX", 7);
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
}

const char *folder_path(const char *folder, const char *file, char path[64])
{
    CU_ASSERT_FATAL(snprintf(path, 64, "%s/%s", folder, file) < 64);
    return path;
}

unsigned open_fds(void)
{
    unsigned count = 0;
    DIR *list = opendir("/proc/self/fd");
    CU_ASSERT_PTR_NOT_NULL_FATAL(list);
    for (const struct dirent *entry; (entry = readdir(list));)
        count += entry->d_name[0] != '.';
    closedir(list);
    return count - 1; /* the list itself */
}

static struct rlimit fd_limit;

void fds_limit(unsigned count)
{
    int next = dup(0);
    CU_ASSERT_EQUAL_FATAL(getrlimit(RLIMIT_NOFILE, &fd_limit), 0);
    struct rlimit low = {.rlim_cur = (rlim_t)next + count, .rlim_max = fd_limit.rlim_max};
    close(next);
    CU_ASSERT_EQUAL_FATAL(setrlimit(RLIMIT_NOFILE, &low), 0);
}

void fds_unlimited(void)
{
    CU_ASSERT_EQUAL_FATAL(setrlimit(RLIMIT_NOFILE, &fd_limit), 0);
}

__attribute__((weak)) int role_run(const char *role, const char *argument, int channel)
{
    (void)role, (void)argument, (void)channel;
    return ROLE_UNSTAGED;
}

/* Before main, so that the test program's cases do not run; _exit, so that nothing of it is torn down. */
__attribute__((constructor)) static void become_role(void)
{
    const char *role = getenv(ROLE_VARIABLE);
    if (!role)
        return;
    char *argument = strchr(role, ' ');
    *argument++ = '\0';
    struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    alarm(60); /* whatever becomes of the test */
    _exit(role_run(role, argument, ROLE_CHANNEL));
}

void role_start(struct role *role, const char *name, const char *argument)
{
    extern char **environ;
    char *const argv[] = {"role", NULL};
    char variable[128];
    int pair[2];
    posix_spawn_file_actions_t actions;
    socket_pair(pair);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pair[1], 100); /* 3 may be the pair's own number */
    posix_spawn_file_actions_adddup2(&actions, 100, ROLE_CHANNEL);
    posix_spawn_file_actions_addclose(&actions, 100);
    snprintf(variable, sizeof variable, "%s %s", name, argument);
    setenv(ROLE_VARIABLE, variable, 1);
    int failed = posix_spawn(&role->pid, "/proc/self/exe", &actions, NULL, argv, environ);
    unsetenv(ROLE_VARIABLE);
    posix_spawn_file_actions_destroy(&actions);
    CU_ASSERT_EQUAL_FATAL(failed, 0);
    close(pair[1]);
    role->channel = pair[0];
}

static int end_role(struct role *role)
{
    int status = -1;
    close(role->channel);
    CU_ASSERT_EQUAL_FATAL(waitpid(role->pid, &status, 0), role->pid);
    return status;
}

void role_expect_exit(struct role *role, int expected)
{
    int status = end_role(role);
    CU_ASSERT_TRUE(WIFEXITED(status));
    CU_ASSERT_EQUAL(WEXITSTATUS(status), expected);
}

void role_expect_abort(struct role *role)
{
    int status = end_role(role);
    CU_ASSERT_TRUE(WIFSIGNALED(status) ? WTERMSIG(status) == SIGABRT
                                       : WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != ROLE_UNSTAGED);
}

void socket_pair(int pair[2])
{
    CU_ASSERT_EQUAL_FATAL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
}
