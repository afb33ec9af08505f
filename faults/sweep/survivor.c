/* Survivors: the driver's side, and what a survivor speaks to it with. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "faults/sweep/case.h"

#define NS_PER_MS 1000000
#define BOARD_VARIABLE "HL_FAULT_BOARD="

/* --- the driver's side --- */

/* `added`, and this process' environment without a board. */
static const char **compose(const char *const *added)
{
    size_t count = 1, at = 0;
    for (char **entry = environ; *entry; entry++)
        count++;
    for (size_t i = 0; added[i]; i++)
        count++;
    const char **all = calloc(count, sizeof *all);
    if (!all)
        abort();
    for (; added[at]; at++)
        all[at] = added[at];
    for (char **entry = environ; *entry; entry++)
        if (strncmp(*entry, BOARD_VARIABLE, sizeof BOARD_VARIABLE - 1) != 0)
            all[at++] = *entry;
    return all;
}

static bool await_answer(const struct sweep_survivor *survivor)
{
    struct pollfd ready = {.fd = survivor->channel, .events = POLLIN};
    char answer = 0;
    if (poll(&ready, 1, (int)(HL_FAULT_PATIENCE_NS / NS_PER_MS)) != 1)
        return false;
    return recv(survivor->channel, &answer, 1, 0) == 1 && answer == 'y';
}

bool sweep_survivor_start(struct sweep_survivor *survivor, const char *const *argv,
                          const char *const *environment, int log_fd)
{
    int pair[2];
    posix_spawn_file_actions_t actions;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
        return false;
    if (posix_spawn_file_actions_init(&actions) ||
        posix_spawn_file_actions_adddup2(&actions, pair[1], STDIN_FILENO) ||
        posix_spawn_file_actions_adddup2(&actions, log_fd, STDOUT_FILENO) ||
        posix_spawn_file_actions_adddup2(&actions, log_fd, STDERR_FILENO))
        abort();
    const char **all = compose(environment);
    const int error = posix_spawn(&survivor->pid, argv[0], &actions, NULL, (char **)argv, (char **)all);
    posix_spawn_file_actions_destroy(&actions);
    free(all);
    close(pair[1]);
    survivor->channel = pair[0];
    if (error) {
        survivor->pid = 0;
        close(pair[0]);
        return false;
    }
    return await_answer(survivor);
}

bool sweep_survivor_tell(struct sweep_survivor *survivor, const char *word)
{
    if (!survivor->pid)
        return true;
    const size_t size = strlen(word);
    return send(survivor->channel, word, size, MSG_NOSIGNAL) == (ssize_t)size && await_answer(survivor);
}

bool sweep_survivor_end(struct sweep_survivor *survivor, int *status)
{
    *status = 0;
    if (!survivor->pid)
        return true;
    shutdown(survivor->channel, SHUT_RDWR);
    if (!hl_fault_await_exit(survivor->pid, HL_FAULT_PATIENCE_NS, status))
        return false; /* to be killed */
    close(survivor->channel);
    survivor->pid = 0;
    return true;
}

void sweep_survivor_kill(struct sweep_survivor *survivor)
{
    if (!survivor->pid)
        return;
    kill(survivor->pid, SIGKILL);
    waitpid(survivor->pid, NULL, 0);
    close(survivor->channel);
    survivor->pid = 0;
}

/* --- the survivor's side --- */

void hl_sweep_answer(bool well)
{
    const char answer = well ? 'y' : 'n';
    /* A driver that has gone is seen by the next hl_sweep_hear(). */
    if (send(STDIN_FILENO, &answer, 1, MSG_NOSIGNAL) < 0)
        return;
}

bool hl_sweep_hear(char word[16])
{
    ssize_t size;
    do
        size = recv(STDIN_FILENO, word, 15, 0);
    while (size < 0 && errno == EINTR);
    if (size <= 0)
        return false;
    word[size] = '\0';
    return true;
}
