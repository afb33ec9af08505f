/* The Manager as it is deployed: the program hostlane-manager. This program runs itself again with --role
 * manager, asks the kernel to be killed when its starter dies, and becomes the Manager. The Manager's log
 * goes through a pipe that is read until it says that it is ready; what little follows fits the pipe. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "qualification/bench/latency.h"

#define STAGE "latency.manager"
#define PATIENCE_NS (120 * HL_NS_PER_S)

/* The name and not the link, which under valgrind is valgrind's. */
static hl_status read_self(char *path, size_t size, hl_error *err)
{
    ssize_t length = readlink("/proc/self/exe", path, size - 1);
    if (length <= 0 || (size_t)length == size - 1)
        return HL_FAIL(err, HL_E_SYSTEM, STAGE, "cannot find this program");
    path[length] = '\0';
    return HL_OK;
}

/* --- the Manager's side --- */

hl_status latency_manager_program(char *path, size_t size, hl_error *err)
{
    static const char *const places[] = {"hostlane-manager", "../../manager/hostlane-manager",
                                         "restore_latency.runfiles/hostlane/manager/hostlane-manager"};
    const char *given = getenv("HOSTLANE_MANAGER");
    char self[512];
    if (given) {
        snprintf(path, size, "%s", given);
        return HL_OK;
    }
    hl_status status = read_self(self, sizeof self, err);
    if (status)
        return status;
    *strrchr(self, '/') = '\0';
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        snprintf(path, size, "%s/%s", self, places[i]);
        if (access(path, X_OK) == 0)
            return HL_OK;
    }
    return HL_FAIL(err, HL_E_NOT_FOUND, STAGE,
                   "no hostlane-manager in $HOSTLANE_MANAGER, beside this program, or where a build puts it");
}

int latency_manager_role(const struct latency_options *options)
{
    char program[1024], spin[16];
    hl_error err;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (latency_manager_program(program, sizeof program, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    snprintf(spin, sizeof spin, "%u", options->spin_on ? options->spin_us : 0);
    char *const argv[] = {program,
                          "--socket",
                          (char *)options->socket,
                          "--spin-us",
                          spin,
                          "--software",
                          options->cuda ? "false" : "true",
                          "--arena-bytes",
                          "64M",
                          "--index-blocks",
                          "4096",
                          "--touch-threads",
                          "2",
                          NULL};
    execv(program, argv);
    fprintf(stderr, "cannot run %s: %s\n", program, strerror(errno));
    return 1;
}

/* --- the starter's side --- */

extern char **environ;

static hl_status spawn(const struct latency_options *options, uint32_t spin_us,
                       struct latency_manager *manager, int log, hl_error *err)
{
    char spin[16], self[512];
    hl_status status = read_self(self, sizeof self, err);
    if (status)
        return status;
    snprintf(spin, sizeof spin, "%u", spin_us ? spin_us : 1);
    char *const argv[] = {self,
                          "--role",
                          "manager",
                          "--socket",
                          manager->socket,
                          "--device",
                          options->cuda ? "cuda" : "software",
                          "--spin",
                          spin_us ? "on" : "off",
                          "--spin-us",
                          spin,
                          NULL};
    posix_spawn_file_actions_t actions;
    int code = posix_spawn_file_actions_init(&actions);
    if (code)
        return HL_FAIL_ERRNO(err, HL_E_NOMEM, STAGE, code, "cannot prepare the Manager's start");
    code = posix_spawn_file_actions_adddup2(&actions, log, STDERR_FILENO);
    if (!code)
        code = posix_spawn(&manager->pid, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (code) {
        manager->pid = 0;
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, code, "cannot start the Manager");
    }
    return HL_OK;
}

/* Adds what the log has to `said`, dropping what does not fit; false at its end. */
static bool read_log(struct latency_manager *manager)
{
    char text[512];
    ssize_t got = read(manager->log, text, sizeof text);
    size_t room = sizeof manager->said - 1 - strlen(manager->said);
    if (got <= 0)
        return got < 0 && errno == EINTR;
    strncat(manager->said, text, (size_t)got < room ? (size_t)got : room);
    return true;
}

static hl_status await_ready(struct latency_manager *manager, hl_error *err)
{
    const int64_t deadline = hl_clock_ns() + PATIENCE_NS;
    struct pollfd log = {.fd = manager->log, .events = POLLIN};
    while (!strstr(manager->said, "INFO ready\n")) {
        int64_t left_ms = (deadline - hl_clock_ns()) / 1000000;
        if (left_ms <= 0)
            return HL_FAIL(err, HL_E_TIMEOUT, STAGE, "the Manager was not ready in time: %.150s",
                           manager->said);
        if (poll(&log, 1, (int)left_ms) > 0 && !read_log(manager))
            return HL_FAIL(err, HL_E_PEER, STAGE, "the Manager ended while it started: %.150s",
                           manager->said);
    }
    return HL_OK;
}

static hl_status open_log(int ends[2], hl_error *err)
{
    if (pipe2(ends, O_CLOEXEC))
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot make a pipe");
    return HL_OK;
}

static hl_status make_folder(struct latency_manager *manager, hl_error *err)
{
    const char *parent = getenv("TMPDIR");
    if (!parent || !*parent)
        parent = "/tmp";
    int size = snprintf(manager->folder, sizeof manager->folder, "%s/latency-XXXXXX", parent);
    if (size < 0 || (size_t)size >= sizeof manager->folder)
        return HL_FAIL(err, HL_E_LIMIT, STAGE, "TMPDIR is too long for a socket's path: %.100s", parent);
    if (!mkdtemp(manager->folder))
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot make a folder in %s", parent);
    snprintf(manager->socket, sizeof manager->socket, "%s/socket", manager->folder);
    return HL_OK;
}

static int end(struct latency_manager *manager, int signal_number)
{
    char lock[sizeof manager->socket + 8];
    int wait_status = 0;
    if (manager->pid)
        kill(manager->pid, signal_number);
    while (manager->pid && waitpid(manager->pid, &wait_status, 0) < 0 && errno == EINTR)
        continue;
    manager->pid = 0;
    close(manager->log);
    snprintf(lock, sizeof lock, "%s.lock", manager->socket); /* what the socket's owner leaves */
    unlink(lock);
    unlink(manager->socket);
    rmdir(manager->folder);
    return wait_status;
}

hl_status latency_manager_start(const struct latency_options *options, uint32_t spin_us,
                                struct latency_manager *manager, hl_error *err)
{
    int ends[2];
    *manager = (struct latency_manager){0};
    hl_status status = make_folder(manager, err);
    if (status)
        return status;
    status = open_log(ends, err);
    if (status) {
        rmdir(manager->folder);
        return status;
    }
    manager->log = ends[0];
    status = spawn(options, spin_us, manager, ends[1], err);
    close(ends[1]);
    if (!status)
        status = await_ready(manager, err);
    if (status)
        end(manager, SIGKILL);
    return status;
}

hl_status latency_manager_stop(struct latency_manager *manager, hl_error *err)
{
    int wait_status = end(manager, SIGTERM);
    if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0)
        return HL_OK;
    return HL_FAIL(err, HL_E_STATE, STAGE, "the Manager ended with wait status %d", wait_status);
}
