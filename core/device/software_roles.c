/* What the software device's tests need another process for: this program started again with a role in its
 * environment, taken up before the shared main. A role that should have died ends with ROLE_SURVIVED instead.
 */
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/device/software_testing.h"

#define ROLE_VARIABLE "HOSTLANE_SOFTWARE_ROLE"

int role_start(const char *role, int *in, int *out)
{
    extern char **environ;
    int to[2], from[2];
    char *const argv[] = {(char *)(uintptr_t)role, NULL};
    pid_t pid;
    posix_spawn_file_actions_t actions;
    CU_ASSERT_EQUAL_FATAL(pipe2(to, O_CLOEXEC) | pipe2(from, O_CLOEXEC), 0);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to[0], 0);
    posix_spawn_file_actions_adddup2(&actions, from[1], 1);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0); /* what a death prints */
    setenv(ROLE_VARIABLE, role, 1);
    int failed = posix_spawn(&pid, "/proc/self/exe", &actions, NULL, argv, environ);
    unsetenv(ROLE_VARIABLE);
    CU_ASSERT_EQUAL_FATAL(failed, 0);
    posix_spawn_file_actions_destroy(&actions);
    close(to[0]);
    close(from[1]);
    *in = to[1];
    *out = from[0];
    return pid;
}

int role_end(int pid)
{
    int status = -1;
    CU_ASSERT_EQUAL(waitpid(pid, &status, 0), pid);
    return status;
}

struct stage {
    hl_device *dev;
    hl_devptr memory;
    hl_stream stream;
};

static bool open_stage(struct stage *stage)
{
    return hl_device_open_software(&stage->dev, NULL) == HL_OK &&
           hl_device_enter(stage->dev, NULL) == HL_OK &&
           stage->dev->ops->mem_alloc(stage->dev, ROLE_BYTES, &stage->memory, NULL) == HL_OK &&
           stage->dev->ops->stream_create(stage->dev, &stage->stream, NULL) == HL_OK;
}

static int touch_device_memory(struct stage *stage)
{
    *(volatile unsigned char *)(uintptr_t)stage->memory = 1;
    return ROLE_SURVIVED;
}

static int leave_twice(struct stage *stage)
{
    hl_device_leave(stage->dev);
    hl_device_leave(stage->dev);
    return ROLE_SURVIVED;
}

static int peek_at_host_memory(struct stage *stage)
{
    unsigned char byte, other = 1;
    hl_software_peek(stage->dev, &byte, (uintptr_t)&other, 1);
    return ROLE_SURVIVED;
}

static int hold_a_dead_stream(struct stage *stage)
{
    stage->dev->ops->stream_destroy(stage->dev, stage->stream, NULL);
    hl_software_hold(stage->dev, stage->stream, 0);
    return ROLE_SURVIVED;
}

static int step_with_threads(struct stage *stage)
{
    hl_software_step(stage->dev, -1);
    return ROLE_SURVIVED;
}

/* Exports an address inside its allocation, and frees the allocation when told to; ends when its input does.
 */
static int export_memory(struct stage *stage)
{
    unsigned char pattern[ROLE_BYTES];
    struct hl_ipc_export export;
    char command;
    memset(pattern, 0x3c, sizeof pattern);
    hl_software_poke(stage->dev, stage->memory, pattern, sizeof pattern);
    if (stage->dev->ops->ipc_export(stage->dev, stage->memory + ROLE_OFFSET, &export, NULL) ||
        write(1, &export, sizeof export) != sizeof export)
        return 2;
    while (read(0, &command, 1) == 1)
        if (stage->dev->ops->mem_free(stage->dev, stage->memory, NULL) || write(1, &command, 1) != 1)
            return 3;
    hl_device_leave(stage->dev);
    hl_device_close(stage->dev);
    return 0;
}

__attribute__((constructor)) static void take_up_role(void)
{
    static const struct {
        const char *name;
        int (*act)(struct stage *);
    } roles[] = {{"touch", touch_device_memory}, {"leave", leave_twice},      {"peek", peek_at_host_memory},
                 {"hold", hold_a_dead_stream},   {"step", step_with_threads}, {"export", export_memory}};
    const struct rlimit no_core = {0};
    const char *role = getenv(ROLE_VARIABLE);
    struct stage stage;
    if (!role)
        return;
    setrlimit(RLIMIT_CORE, &no_core);
    for (unsigned i = 0; i < sizeof roles / sizeof roles[0]; i++)
        if (!strcmp(role, roles[i].name))
            exit(open_stage(&stage) ? roles[i].act(&stage) : ROLE_UNSTAGED);
    exit(ROLE_UNSTAGED);
}
