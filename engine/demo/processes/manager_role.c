#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "engine/demo/processes/processes.h"

#define STAGE "demo.manager"

enum { PROBE_MS = 5, LOG_LINES_BYTES = 2048 };
#define STOP_PATIENCE_NS (30 * HL_NS_PER_S)

/* --- the parent's side --- */

static bool runnable(char *path, size_t size, const char *folder, const char *rest)
{
    int used = snprintf(path, size, "%s%s", folder, rest);
    return used > 0 && (size_t)used < size && access(path, X_OK) == 0;
}

/* $HOSTLANE_MANAGER, else beside this program, else where a build puts it. */
static hl_status find_program(char *self, char *path, size_t size, hl_error *err)
{
    ssize_t length = readlink("/proc/self/exe", self, PATH_MAX - 1);
    if (length < 0)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot read /proc/self/exe");
    self[length] = '\0';
    const char *configured = getenv("HOSTLANE_MANAGER");
    if (configured) {
        if (!runnable(path, size, configured, ""))
            return HL_FAIL(err, HL_E_NOT_FOUND, STAGE, "HOSTLANE_MANAGER names %.150s, which cannot be run",
                           configured);
        return HL_OK;
    }
    char folder[PATH_MAX];
    memcpy(folder, self, (size_t)length + 1);
    *strrchr(folder, '/') = '\0';
    if (runnable(path, size, folder, "/hostlane-manager") ||
        runnable(path, size, folder, "/../../manager/hostlane-manager") ||
        runnable(path, size, self, ".runfiles/hostlane/manager/hostlane-manager"))
        return HL_OK;
    return HL_FAIL(err, HL_E_NOT_FOUND, STAGE,
                   "no hostlane-manager in $HOSTLANE_MANAGER, beside this program, or where a build puts it");
}

static hl_status make_folder(struct hl_demo_manager *manager, hl_error *err)
{
    const char *base = getenv("TMPDIR");
    if (!base || !*base)
        base = "/tmp";
    int used = snprintf(manager->folder, sizeof manager->folder, "%s/hostlane-demo.XXXXXX", base);
    snprintf(manager->socket, sizeof manager->socket, "%s/manager.sock", manager->folder);
    snprintf(manager->log, sizeof manager->log, "%s/manager.log", manager->folder);
    if (used >= (int)sizeof manager->folder ||
        strlen(manager->socket) >= sizeof((struct sockaddr_un *)0)->sun_path) {
        manager->folder[0] = '\0';
        return HL_FAIL(err, HL_E_LIMIT, STAGE, "TMPDIR is too long for a socket's path: %.150s", base);
    }
    if (!mkdtemp(manager->folder)) { /* which makes it 0700 */
        hl_status status =
            HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot make the folder %.150s", manager->folder);
        manager->folder[0] = '\0';
        return status;
    }
    snprintf(manager->socket, sizeof manager->socket, "%s/manager.sock", manager->folder);
    snprintf(manager->log, sizeof manager->log, "%s/manager.log", manager->folder);
    return HL_OK;
}

/* Whether somebody accepts connections there. */
static bool answers(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return false;
    memcpy(address.sun_path, path, strlen(path) + 1); /* make_folder() has checked its length */
    bool connected = connect(fd, (struct sockaddr *)&address, sizeof address) == 0;
    close(fd);
    return connected;
}

static hl_status await_socket(struct hl_demo_manager *manager, hl_error *err)
{
    int64_t deadline = hl_clock_ns() + HL_DEMO_PATIENCE_NS;
    while (!answers(manager->socket)) {
        hl_status status = hl_demo_child_wait(&manager->child, PROBE_MS * 1000000ll, err);
        if (status == HL_OK)
            return HL_FAIL(err, HL_E_PEER, STAGE, "the Manager ended before it listened");
        if (status != HL_E_TIMEOUT || hl_clock_ns() >= deadline)
            return status;
    }
    return HL_OK;
}

static hl_status start_child(const hl_demo *demo, uint64_t arena_bytes, struct hl_demo_manager *manager,
                             hl_error *err)
{
    char self[PATH_MAX], program[PATH_MAX], bytes[24];
    hl_status status = find_program(self, program, sizeof program, err);
    if (status)
        return status;
    int log_fd = open(manager->log, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600);
    if (log_fd < 0)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot make %.150s", manager->log);
    snprintf(bytes, sizeof bytes, "%llu", (unsigned long long)arena_bytes);
    bool software = demo->dev->info.kind == HL_DEVICE_SOFTWARE;
    /* The process is this program first: it ties its life to the parent's, and then becomes the Manager. */
    char *argv[] = {self,
                    "--role=manager",
                    "--program",
                    program,
                    "--socket",
                    manager->socket,
                    "--cache-bytes",
                    bytes,
                    software ? "--device=software" : "--device=cuda",
                    demo->options.huge ? "--huge" : NULL,
                    NULL};
    status = hl_demo_child_start(&manager->child, "the Manager", argv, log_fd, err);
    close(log_fd);
    return status;
}

hl_status hl_demo_manager_start(const hl_demo *demo, uint64_t arena_bytes, struct hl_demo_manager *manager,
                                hl_error *err)
{
    *manager = (struct hl_demo_manager){0};
    hl_status status = make_folder(manager, err);
    if (!status)
        status = start_child(demo, arena_bytes, manager, err);
    return status ? status : await_socket(manager, err);
}

void hl_demo_manager_close(struct hl_demo_manager *manager)
{
    if (manager->child.pid && !manager->child.ended) {
        kill(manager->child.pid, SIGTERM);
        (void)hl_demo_child_wait(&manager->child, STOP_PATIENCE_NS, NULL);
    }
    hl_demo_child_close(&manager->child);
    if (!manager->folder[0])
        return;
    static const char *const names[] = {"manager.sock", "manager.sock.lock", "manager.log"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[sizeof manager->folder + 32];
        snprintf(path, sizeof path, "%s/%s", manager->folder, names[i]);
        unlink(path);
    }
    rmdir(manager->folder);
    manager->folder[0] = '\0';
}

void hl_demo_manager_print_log(const struct hl_demo_manager *manager, FILE *out)
{
    FILE *file = manager->log[0] ? fopen(manager->log, "re") : NULL;
    if (!file)
        return;
    char text[LOG_LINES_BYTES + 1];
    if (fseek(file, -LOG_LINES_BYTES, SEEK_END))
        rewind(file);
    size_t size = fread(text, 1, LOG_LINES_BYTES, file);
    fclose(file);
    text[size] = '\0';
    if (size)
        fprintf(out, "the Manager said:\n%s%s", text, text[size - 1] == '\n' ? "" : "\n");
}

/* --- the Manager's side --- */

int hl_demo_manager_role(const struct hl_demo_options *options)
{
    char bytes[24];
    snprintf(bytes, sizeof bytes, "%llu", (unsigned long long)options->cache_bytes);
    const char *argv[] = {options->program,
                          "--socket",
                          options->socket,
                          "--arena-bytes",
                          bytes,
                          "--page-size",
                          options->huge ? "2M" : "regular",
                          "--software",
                          options->device == HL_DEMO_DEVICE_SOFTWARE ? "true" : "false",
                          NULL};
    execv(options->program, (char *const *)argv);
    fprintf(stderr, "cannot run %s: %s\n", options->program, strerror(errno));
    return HL_DEMO_ERROR;
}
