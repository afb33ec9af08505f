#include "qualification/restore/process.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/testing/cunit.h"

#define ROLE_VARIABLE "HOSTLANE_RESTORE_ROLE"

enum { CHANNEL = 200, MUST_FAILED = 70 };

static bool is_role;

void process_must(bool holds, const char *file, int line, const char *what, const char *why)
{
    if (!holds || is_role) {
        if (holds)
            return;
        fprintf(stderr, "%s:%d: %s%s%s\n", file, line, what, why[0] ? ": " : "", why);
    }
    if (is_role)
        _exit(MUST_FAILED);
    CU_assertImplementation(holds, (unsigned)line, what, file, "", CU_TRUE);
}

void process_start(struct process *process, const char *role)
{
    extern char **environ;
    char *const argv[] = {(char *)(uintptr_t)role, NULL};
    int pair[2];
    posix_spawn_file_actions_t actions;
    MUST(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pair[1], CHANNEL);
    setenv(ROLE_VARIABLE, role, 1);
    int failed = posix_spawn(&process->pid, "/proc/self/exe", &actions, NULL, argv, environ);
    unsetenv(ROLE_VARIABLE);
    posix_spawn_file_actions_destroy(&actions);
    close(pair[1]);
    process->channel = pair[0];
    MUST(failed == 0);
}

void process_say(int channel, const struct process_message *message)
{
    ssize_t sent;
    do
        sent = send(channel, message, sizeof *message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent < 0 && is_role)
        _exit(0); /* the test has gone */
    MUST(sent == (ssize_t)sizeof *message);
}

bool process_hear(int channel, struct process_message *message)
{
    struct pollfd ready = {.fd = channel, .events = POLLIN};
    if (!is_role)
        MUST(poll(&ready, 1, (int)(PATIENCE_NS / 1000000)) == 1);
    ssize_t got;
    do
        got = recv(channel, message, sizeof *message, 0);
    while (got < 0 && errno == EINTR);
    return got == (ssize_t)sizeof *message;
}

void process_ask(struct process *process, struct process_message *message)
{
    process_say(process->channel, message);
    MUST(process_hear(process->channel, message));
}

static int reap(struct process *process)
{
    int status = -1;
    pid_t pid;
    do
        pid = waitpid(process->pid, &status, 0);
    while (pid < 0 && errno == EINTR);
    MUST(pid == process->pid);
    close(process->channel);
    *process = (struct process){.channel = -1};
    return status;
}

void process_kill(struct process *process)
{
    MUST(kill(process->pid, SIGKILL) == 0);
    int status = reap(process);
    MUST(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

void process_end(struct process *process)
{
    shutdown(process->channel, SHUT_RDWR);
    int status = reap(process);
    MUST(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

void process_stop(struct process *process)
{
    siginfo_t info;
    MUST(kill(process->pid, SIGSTOP) == 0);
    MUST(waitid(P_PID, (id_t)process->pid, &info, WSTOPPED) == 0 && info.si_code == CLD_STOPPED);
}

void process_continue(struct process *process)
{
    siginfo_t info;
    MUST(kill(process->pid, SIGCONT) == 0);
    MUST(waitid(P_PID, (id_t)process->pid, &info, WCONTINUED) == 0);
}

__attribute__((constructor)) static void take_up_role(void)
{
    const struct rlimit no_core = {0};
    const char *name = getenv(ROLE_VARIABLE);
    if (!name)
        return;
    is_role = true;
    unsetenv(ROLE_VARIABLE);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setrlimit(RLIMIT_CORE, &no_core);
    for (unsigned i = 0; i < process_role_count; i++)
        if (!strcmp(name, process_roles[i].name))
            exit(process_roles[i].act(CHANNEL));
    _exit(MUST_FAILED);
}
