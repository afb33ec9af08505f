#include "qualification/inflight/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/channel/channel.h"
#include "qualification/restore/manager_process.h"
#include "qualification/restore/tool.h"
#include "qualification/restore/world.h"

/* $HOSTLANE_MANAGER, or beside this program, or where a build puts it. */
static void find_program(char *path, size_t size)
{
    static const char *const places[] = {"hostlane-manager", "../../manager/hostlane-manager",
                                         "../bin/hostlane-manager"};
    const char *given = getenv("HOSTLANE_MANAGER");
    char self[512];
    if (given) {
        snprintf(path, size, "%s", given);
        return;
    }
    const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    MUST(length > 0 && length < (ssize_t)sizeof self - 1);
    self[length] = '\0';
    *strrchr(self, '/') = '\0';
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        snprintf(path, size, "%s/%s", self, places[i]);
        if (access(path, X_OK) == 0)
            return;
    }
    MUST(!"hostlane-manager is in $HOSTLANE_MANAGER, beside this program, or where a build puts it");
}

/* The channel brings one message, the size of the arena, and closes with the exec. */
int daemon_role(int channel)
{
    struct process_message message;
    char program[1024], bytes[32];
    MUST(process_hear(channel, &message));
    snprintf(bytes, sizeof bytes, "%llu", (unsigned long long)message.values[0]);
    find_program(program, sizeof program);
    MUST(fcntl(channel, F_SETFD, FD_CLOEXEC) == 0);
    char *const argv[] = {program,
                          "--socket",
                          MANAGER_SOCKET,
                          "--software",
                          world_wants_cuda() ? "false" : "true",
                          "--arena-bytes",
                          bytes,
                          "--index-blocks",
                          "4096",
                          "--touch-threads",
                          "4",
                          NULL};
    execv(program, argv);
    MUST(!"the daemon runs");
    return 1;
}

void daemon_start(struct process *daemon, uint64_t arena_bytes)
{
    const int64_t until = hl_clock_ns() + PATIENCE_NS;
    const struct process_message message = {.values = {arena_bytes}};
    int fd;
    pid_t pid;
    process_start(daemon, "daemon");
    process_say(daemon->channel, &message);
    while (hl_channel_connect(MANAGER_SOCKET, &fd, &pid, NULL) != HL_OK) {
        if (waitpid(daemon->pid, NULL, WNOHANG) != 0 || hl_clock_ns() > until)
            MUST(!"the daemon takes connections");
        sched_yield();
    }
    close(fd);
}

void daemon_forget(struct process *daemon)
{
    close(daemon->channel);
    *daemon = (struct process){.channel = -1};
}

void daemon_end(struct process *daemon)
{
    int status = -1;
    pid_t pid;
    MUST(kill(daemon->pid, SIGTERM) == 0);
    do
        pid = waitpid(daemon->pid, &status, 0);
    while (pid < 0 && errno == EINTR);
    MUST(pid == daemon->pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    daemon_forget(daemon);
}

static json_t *ask(enum hl_admin_verb verb)
{
    hl_status status;
    json_t *json = tool_ask(verb, NULL, 0, &status);
    MUST(json != NULL);
    return json;
}

uint64_t daemon_number(const char *field)
{
    json_t *json = ask(HL_ADMIN_STATUS);
    const json_t *number = json_object_get(json, field);
    MUST(json_is_integer(number));
    const uint64_t value = (uint64_t)json_integer_value(number);
    json_decref(json);
    return value;
}

uint64_t daemon_permits(void)
{
    json_t *json = ask(HL_ADMIN_STATUS);
    const json_t *gpus = json_object_get(json, "gpus");
    MUST(json_array_size(gpus) == 1);
    const json_t *permits = json_object_get(json_array_get(gpus, 0), "restores");
    MUST(json_is_integer(permits));
    const uint64_t value = (uint64_t)json_integer_value(permits);
    json_decref(json);
    return value;
}

void daemon_await(const char *field, uint64_t value)
{
    const int64_t until = hl_clock_ns() + PATIENCE_NS;
    while (daemon_number(field) != value)
        MUST(hl_clock_ns() < until && sched_yield() == 0);
}

void daemon_check(void)
{
    json_t *json = ask(HL_ADMIN_CHECK);
    MUST(json_is_true(json_object_get(json, "ok")));
    json_decref(json);
}
