/* Children that carry a board: posix_spawn, as a forked child of a threaded test may do almost nothing. */
#include <errno.h>
#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "faults/board.h"
#include "faults/testing.h"

#define NS_PER_S 1000000000ll
#define NS_PER_MS 1000000ll

static void broken(const char *what, int error)
{
    fprintf(stderr, "hl_fault_spawn: %s: %s\n", what, strerror(error));
    abort();
}

static bool same_name(const char *a, const char *b)
{
    const size_t length = strcspn(b, "=");
    return !strncmp(a, b, length) && a[length] == '=';
}

/* This process' environment without a board and without what `extra` sets; then `extra` and `board_text`. */
static const char **compose_environment(const char *const *extra, const char *board_text)
{
    size_t count = 2;
    for (char **entry = environ; *entry; entry++)
        count++;
    for (size_t i = 0; extra && extra[i]; i++)
        count++;
    const char **all = calloc(count, sizeof *all);
    if (!all)
        broken("environment", ENOMEM);
    size_t at = 0;
    for (char **entry = environ; *entry; entry++) {
        bool replaced = same_name(*entry, HL_FAULT_BOARD_ENV "=");
        for (size_t i = 0; extra && extra[i]; i++)
            replaced |= same_name(*entry, extra[i]);
        if (!replaced)
            all[at++] = *entry;
    }
    for (size_t i = 0; extra && extra[i]; i++)
        all[at++] = extra[i];
    if (board_text)
        all[at++] = board_text;
    return all;
}

pid_t hl_fault_spawn(const hl_fault_board *board, const char *const *argv, const char *const *environment)
{
    return hl_fault_spawn_logged(board, argv, environment, -1);
}

pid_t hl_fault_spawn_logged(const hl_fault_board *board, const char *const *argv,
                            const char *const *environment, int log_fd)
{
    char text[64];
    posix_spawn_file_actions_t actions;
    int error = posix_spawn_file_actions_init(&actions);
    if (!error && board) {
        /* Onto itself: the child's copy loses close-on-exec, this process' does not. */
        snprintf(text, sizeof text, HL_FAULT_BOARD_ENV "=%d", board->creator_fd);
        error = posix_spawn_file_actions_adddup2(&actions, board->creator_fd, board->creator_fd);
    }
    if (!error && log_fd >= 0)
        error = posix_spawn_file_actions_adddup2(&actions, log_fd, STDOUT_FILENO);
    if (!error && log_fd >= 0)
        error = posix_spawn_file_actions_adddup2(&actions, log_fd, STDERR_FILENO);
    if (error)
        broken(argv[0], error);
    const char **all = compose_environment(environment, board ? text : NULL);
    pid_t child = -1;
    error = posix_spawn(&child, argv[0], &actions, NULL, (char **)argv, (char **)all);
    if (error)
        broken(argv[0], error);
    free(all);
    posix_spawn_file_actions_destroy(&actions);
    return child;
}

bool hl_fault_await_exit(pid_t child, int64_t timeout_ns, int *status)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const int64_t deadline = (int64_t)now.tv_sec * NS_PER_S + now.tv_nsec + timeout_ns;
    const int pidfd = (int)syscall(SYS_pidfd_open, child, 0);
    if (pidfd < 0)
        return false;
    bool ended = false;
    for (;;) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        const int64_t left = deadline - ((int64_t)now.tv_sec * NS_PER_S + now.tv_nsec);
        struct pollfd poller = {.fd = pidfd, .events = POLLIN};
        const int ready = poll(&poller, 1, left > 0 ? (int)(left / NS_PER_MS + 1) : 0);
        if (ready > 0) {
            ended = waitpid(child, status, 0) == child;
            break;
        }
        if (left <= 0)
            break;
    }
    close(pidfd);
    return ended;
}
