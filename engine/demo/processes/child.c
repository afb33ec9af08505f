#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "engine/demo/processes/processes.h"

#define STAGE "demo.child"

enum { LINE_BYTES = 4 << 20 }; /* of one report */

static volatile sig_atomic_t interrupted;

static void interrupt(int number)
{
    interrupted = number;
}

void hl_demo_catch_interrupts(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = interrupt}; /* without SA_RESTART: a wait must notice */
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        sigaction(numbers[i], &action, NULL);
    signal(SIGPIPE, SIG_IGN);
}

/* --- starting --- */

extern char **environ;

static hl_status spawn(struct hl_demo_child *child, char *const argv[], int stdin_fd, int report_fd,
                       int log_fd, hl_error *err)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, defaults;
    sigemptyset(&none);
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    int code = posix_spawn_file_actions_init(&actions);
    if (code)
        return HL_FAIL_ERRNO(err, HL_E_NOMEM, STAGE, code, "cannot prepare the start of %s", child->name);
    code = posix_spawnattr_init(&attributes);
    if (code) {
        posix_spawn_file_actions_destroy(&actions);
        return HL_FAIL_ERRNO(err, HL_E_NOMEM, STAGE, code, "cannot prepare the start of %s", child->name);
    }
    if (log_fd >= 0) /* first: it may have the number that the reports are given */
        code = posix_spawn_file_actions_adddup2(&actions, log_fd, STDOUT_FILENO);
    if (!code && log_fd >= 0)
        code = posix_spawn_file_actions_adddup2(&actions, log_fd, STDERR_FILENO);
    if (!code)
        code = posix_spawn_file_actions_adddup2(&actions, stdin_fd, STDIN_FILENO);
    if (!code)
        code = posix_spawn_file_actions_adddup2(&actions, report_fd, HL_DEMO_REPORT_FD);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    if (!code)
        code = posix_spawn(&child->pid, argv[0], &actions, &attributes, argv, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    if (code) {
        child->pid = 0;
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, code, "cannot start %s as %s", child->name, argv[0]);
    }
    return HL_OK;
}

/* A descriptor above those that the child will be given, so that no dup2 there can overwrite another. */
static hl_status open_pipe(int ends[2], hl_error *err)
{
    int low[2];
    if (pipe2(low, O_CLOEXEC))
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot make a pipe");
    for (int i = 0; i < 2; i++) {
        ends[i] = fcntl(low[i], F_DUPFD_CLOEXEC, HL_DEMO_REPORT_FD + 1);
        close(low[i]);
    }
    if (ends[0] >= 0 && ends[1] >= 0)
        return HL_OK;
    for (int i = 0; i < 2; i++)
        if (ends[i] >= 0)
            close(ends[i]);
    return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot make a pipe");
}

hl_status hl_demo_child_start(struct hl_demo_child *child, const char *name, char *const argv[], int log_fd,
                              hl_error *err)
{
    int reports[2], commands[2];
    *child = (struct hl_demo_child){.name = name, .pidfd = -1, .report = -1, .command = -1};
    hl_status status = open_pipe(reports, err);
    if (status)
        return status;
    status = open_pipe(commands, err);
    if (status)
        goto err_close_reports;
    status = spawn(child, argv, commands[0], reports[1], log_fd, err);
    close(commands[0]);
    close(reports[1]);
    child->report = reports[0];
    child->command = commands[1];
    if (status) {
        hl_demo_child_close(child);
        return status;
    }
    child->pidfd = pidfd_open(child->pid, 0);
    if (child->pidfd < 0) {
        status = HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot watch %s (pidfd_open)", name);
        hl_demo_child_close(child);
    }
    return status;
err_close_reports:
    close(reports[0]);
    close(reports[1]);
    return status;
}

/* --- waiting --- */

/* HL_OK when one of the descriptors is ready. */
static hl_status await(const struct hl_demo_child *child, struct pollfd *fds, nfds_t count,
                       int64_t deadline_ns, hl_error *err)
{
    for (;;) {
        int64_t left = deadline_ns - hl_clock_ns();
        if (interrupted)
            return HL_FAIL(err, HL_E_CANCELLED, STAGE, "interrupted by signal %d", (int)interrupted);
        if (left <= 0)
            return HL_FAIL(err, HL_E_TIMEOUT, STAGE, "%s gave no sign in time", child->name);
        struct timespec timeout = {left / HL_NS_PER_S, left % HL_NS_PER_S};
        int ready = ppoll(fds, count, &timeout, NULL);
        if (ready > 0)
            return HL_OK;
        if (ready < 0 && errno != EINTR)
            return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot wait for %s", child->name);
    }
}

static void reap(struct hl_demo_child *child)
{
    while (waitpid(child->pid, &child->wait_status, 0) < 0 && errno == EINTR)
        continue;
    child->ended = true;
}

hl_status hl_demo_child_wait(struct hl_demo_child *child, int64_t timeout_ns, hl_error *err)
{
    struct pollfd end = {.fd = child->pidfd, .events = POLLIN};
    if (child->ended)
        return HL_OK;
    hl_status status = await(child, &end, 1, hl_clock_ns() + timeout_ns, err);
    if (!status)
        reap(child);
    return status;
}

static hl_status say_ended(struct hl_demo_child *child, hl_error *err)
{
    hl_status status = hl_demo_child_wait(child, HL_DEMO_PATIENCE_NS, err);
    if (status)
        return status;
    if (WIFSIGNALED(child->wait_status))
        return HL_FAIL(err, HL_E_PEER, STAGE, "%s (process %d) died of signal %d", child->name,
                       (int)child->pid, WTERMSIG(child->wait_status));
    return HL_FAIL(err, HL_E_PEER, STAGE, "%s (process %d) ended with status %d", child->name,
                   (int)child->pid, WEXITSTATUS(child->wait_status));
}

/* Reads what there is. *open is false at the pipe's end. */
static hl_status read_more(struct hl_demo_child *child, bool *open, hl_error *err)
{
    if (child->used == child->room) {
        size_t room = child->room ? 2 * child->room : 4096;
        char *grown = room <= LINE_BYTES ? realloc(child->line, room) : NULL;
        if (!grown)
            return HL_FAIL(err, HL_E_PROTOCOL, STAGE, "%s reports more than %d bytes in a line", child->name,
                           LINE_BYTES);
        child->line = grown;
        child->room = room;
    }
    ssize_t got = read(child->report, child->line + child->used, child->room - child->used);
    if (got < 0 && errno != EINTR)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot read from %s", child->name);
    *open = got != 0;
    child->used += got > 0 ? (size_t)got : 0;
    return HL_OK;
}

/* The first whole line as JSON, if there is one. */
static hl_status take_line(struct hl_demo_child *child, json_t **report, hl_error *err)
{
    const char *end = child->used ? memchr(child->line, '\n', child->used) : NULL;
    *report = NULL;
    if (!end)
        return HL_OK;
    json_error_t reason;
    size_t size = (size_t)(end - child->line) + 1;
    json_t *object = json_loadb(child->line, size - 1, JSON_REJECT_DUPLICATES, &reason);
    child->used -= size;
    memmove(child->line, child->line + size, child->used);
    if (!json_is_object(object)) {
        json_decref(object);
        return HL_FAIL(err, HL_E_PROTOCOL, STAGE, "%s reports something that is no JSON object", child->name);
    }
    *report = object;
    return HL_OK;
}

hl_status hl_demo_child_report(struct hl_demo_child *child, const char *event, json_t **report, hl_error *err)
{
    int64_t deadline = hl_clock_ns() + HL_DEMO_PATIENCE_NS;
    for (;;) {
        json_t *object;
        hl_status status = take_line(child, &object, err);
        if (status)
            return status;
        const char *name = json_string_value(json_object_get(object, "event"));
        if (object && name && !strcmp(name, event)) {
            *report = object;
            return HL_OK;
        }
        if (object && (!name || strcmp(name, "progress") != 0)) {
            status = HL_FAIL(err, HL_E_PROTOCOL, STAGE, "%s reports \"%.40s\" instead of \"%s\"", child->name,
                             name ? name : "", event);
            json_decref(object);
            return status;
        }
        if (object) { /* it works: the wait begins anew */
            json_decref(object);
            deadline = hl_clock_ns() + HL_DEMO_PATIENCE_NS;
            continue;
        }
        struct pollfd report_fd = {.fd = child->report, .events = POLLIN};
        bool open = true;
        status = await(child, &report_fd, 1, deadline, err);
        if (!status)
            status = read_more(child, &open, err);
        if (!status && !open)
            status = say_ended(child, err);
        if (status)
            return status;
    }
}

hl_status hl_demo_child_go_on(struct hl_demo_child *child, hl_error *err)
{
    if (write(child->command, "\n", 1) != 1)
        return HL_FAIL_ERRNO(err, HL_E_PEER, STAGE, errno, "cannot tell %s to go on", child->name);
    return HL_OK;
}

/* --- ending --- */

hl_status hl_demo_child_kill(struct hl_demo_child *child, hl_error *err)
{
    if (child->ended)
        return HL_FAIL(err, HL_E_STATE, STAGE, "%s ended before it was to be killed", child->name);
    if (pidfd_send_signal(child->pidfd, SIGKILL, NULL, 0))
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot kill %s", child->name);
    hl_status status = hl_demo_child_wait(child, HL_DEMO_PATIENCE_NS, err);
    if (status)
        return status;
    if (!WIFSIGNALED(child->wait_status) || WTERMSIG(child->wait_status) != SIGKILL)
        return HL_FAIL(err, HL_E_STATE, STAGE, "%s did not die of SIGKILL, but ended with wait status %d",
                       child->name, child->wait_status);
    return HL_OK;
}

void hl_demo_child_close(struct hl_demo_child *child)
{
    if (!child->name)
        return;
    if (child->pid && !child->ended) {
        kill(child->pid, SIGKILL);
        reap(child);
    }
    if (child->pidfd >= 0)
        close(child->pidfd);
    if (child->report >= 0)
        close(child->report);
    if (child->command >= 0)
        close(child->command);
    free(child->line);
    *child = (struct hl_demo_child){0};
}

int hl_demo_child_code(const struct hl_demo_child *child)
{
    if (!child->ended || !WIFEXITED(child->wait_status))
        return HL_DEMO_ERROR;
    int code = WEXITSTATUS(child->wait_status);
    return code == HL_DEMO_OK || code == HL_DEMO_MISMATCH ? code : HL_DEMO_ERROR;
}

/* --- the child's own side --- */

void hl_demo_become_child(void)
{
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct pollfd parent = {.fd = STDIN_FILENO};
    if (poll(&parent, 1, 0) == 1 && parent.revents & POLLHUP) /* it died before that */
        _exit(HL_DEMO_ERROR);
    /* what it opens and starts must not hold the parent's pipe */
    (void)fcntl(HL_DEMO_REPORT_FD, F_SETFD, FD_CLOEXEC);
}

hl_status hl_demo_send_report(json_t *report, hl_error *err)
{
    char *text = report ? json_dumps(report, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(report);
    if (!text)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for a report");
    size_t size = strlen(text), done = 0;
    text[size++] = '\n'; /* in place of the NUL */
    hl_status status = HL_OK;
    while (done < size && !status) {
        ssize_t sent = write(HL_DEMO_REPORT_FD, text + done, size - done);
        if (sent < 0 && errno != EINTR)
            status = HL_FAIL_ERRNO(err, HL_E_PEER, STAGE, errno, "cannot report to the parent process");
        done += sent > 0 ? (size_t)sent : 0;
    }
    free(text);
    return status;
}

hl_status hl_demo_await_command(hl_error *err)
{
    char word;
    ssize_t got;
    do
        got = read(STDIN_FILENO, &word, 1);
    while (got < 0 && errno == EINTR);
    if (got != 1)
        return HL_FAIL(err, HL_E_PEER, STAGE, "the parent process has gone");
    return HL_OK;
}
