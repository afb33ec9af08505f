#include "manager/client_testing.h"

#include <errno.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/clock.h"

#define SOCKET "m/s"
#define ROLE_VARIABLE "HOSTLANE_MANAGER_ROLE"

/* --- the Manager --- */

static void on_log(void *user, enum hl_manager_log_level level, const char *text)
{
    struct stand *stand = user;
    (void)level;
    pthread_mutex_lock(&stand->log_lock);
    int size = snprintf(stand->log + stand->log_size, sizeof stand->log - stand->log_size, "%s\n", text);
    if (stand->log_size + (size_t)size < sizeof stand->log)
        stand->log_size += (size_t)size;
    pthread_mutex_unlock(&stand->log_lock);
}

bool stand_logged(struct stand *stand, const char *text)
{
    pthread_mutex_lock(&stand->log_lock);
    bool found = strstr(stand->log, text);
    pthread_mutex_unlock(&stand->log_lock);
    if (!found)
        fprintf(stderr, "not in the log: %s\n", text);
    return found;
}

void stand_enter_folder(char *folder, size_t size)
{
    const char *base = getenv("TEST_TMPDIR");
    CU_ASSERT_FATAL(snprintf(folder, size, "%s/mXXXXXX", base ? base : "/tmp") < (int)size);
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
    CU_ASSERT_EQUAL_FATAL(chdir(folder), 0);
}

void stand_open(struct stand *stand, void (*change)(hl_manager_options *options))
{
    hl_manager_options options;
    memset(stand, 0, sizeof *stand);
    pthread_mutex_init(&stand->log_lock, NULL);
    stand_enter_folder(stand->folder, sizeof stand->folder);
    hl_manager_options_init(&options);
    options.socket_path = SOCKET;
    options.arena_bytes = STAND_ARENA_BYTES;
    options.arena_count = 2;
    options.index_blocks = 1024;
    options.spin_us = 0;
    options.software = true;
    options.log = on_log;
    options.log_user = stand;
    if (change)
        change(&options);
    HL_REQUIRE_OK(hl_manager_start(&options, &stand->manager, &stand->err), stand->err);
}

uint32_t stand_close(struct stand *stand)
{
    uint32_t quarantined = hl_manager_stop(stand->manager);
    CU_ASSERT_NOT_EQUAL(access(SOCKET, F_OK), 0);
    unlink(SOCKET ".lock");
    rmdir("m");
    CU_ASSERT_EQUAL(chdir("/"), 0);
    rmdir(stand->folder);
    return quarantined;
}

void stand_sync(struct stand *stand)
{
    struct client tool;
    (void)stand;
    client_open(&tool, HL_PEER_TOOL);
    client_bye(&tool);
}

hl_manager_snapshot stand_stats(struct stand *stand)
{
    hl_manager_snapshot snapshot = {0};
    HL_EXPECT_OK(hl_manager_stats(stand->manager, &snapshot, &stand->err), stand->err);
    return snapshot;
}

void stand_check(struct stand *stand)
{
    HL_EXPECT_OK(hl_manager_check(stand->manager, &stand->err), stand->err);
}

/* --- a client --- */

void client_connect(struct client *client)
{
    pid_t pid;
    *client = (struct client){.fd = -1, .signals = {-1, -1, -1, -1, -1}};
    HL_REQUIRE_OK(hl_channel_connect(SOCKET, &client->fd, &pid, &client->err), client->err);
}

void client_open(struct client *client, enum hl_peer_role role)
{
    struct hl_hello hello;
    struct hl_packet packet;
    client_connect(client);
    hl_hello_fill(&hello, role, "test");
    client_request(client, &hello, HL_MESSAGE_HELLO);
    client_expect(client, HL_MESSAGE_WELCOME, &packet);
    memcpy(&client->welcome, packet.bytes, sizeof client->welcome);
    CU_ASSERT_EQUAL_FATAL(packet.fd_count, role == HL_PEER_ENGINE ? HL_BOOTSTRAP_FDS : 0);
    if (role == HL_PEER_TOOL)
        return;
    for (unsigned i = 0; i < HL_BOOTSTRAP_FDS; i++)
        client->signals[i] = packet.fds[i];
    HL_REQUIRE_OK(hl_descriptors_map(packet.fds[HL_FD_DESCRIPTORS], &client->descriptors, &client->err),
                  client->err);
    HL_REQUIRE_OK(hl_grant_memory_map(packet.fds[HL_FD_GRANTS], client->welcome.epoch, client->welcome.token,
                                      &client->grants, &client->err),
                  client->err);
}

void client_close(struct client *client)
{
    if (client->fd >= 0)
        close(client->fd);
    for (unsigned i = 0; i < HL_BOOTSTRAP_FDS; i++)
        if (client->signals[i] >= 0)
            close(client->signals[i]);
    hl_descriptors_close(client->descriptors);
    hl_grant_memory_close(client->grants);
    *client = (struct client){.fd = -1, .signals = {-1, -1, -1, -1, -1}};
}

void client_bye(struct client *client)
{
    struct hl_message bye;
    struct hl_packet packet;
    client_request(client, &bye, HL_MESSAGE_BYE);
    client_expect(client, HL_MESSAGE_DONE, &packet);
    client_expect_closed(client);
    client_close(client);
}

void client_send(struct client *client, const void *bytes, size_t size, const int *fds, unsigned fd_count)
{
    struct iovec data = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = size};
    union {
        char bytes[CMSG_SPACE(HL_MESSAGE_FDS * sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
    if (fd_count > 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        *head = (struct cmsghdr){
            .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(fd_count * sizeof(int))};
        memcpy(CMSG_DATA(head), fds, fd_count * sizeof(int));
    }
    /* The Manager may have closed already: what then comes back says so. */
    (void)!sendmsg(client->fd, &message, MSG_NOSIGNAL);
}

void client_request(struct client *client, void *message, enum hl_message_kind kind)
{
    hl_message_head(message, kind, ++client->sequence);
    client_send(client, message, hl_message_bytes(kind), NULL, 0);
}

/* Linux may report the end of a SEQPACKET connection although a last packet came before it, when both arrive
 * while the queue is being looked at; the second look is reliable. */
static hl_status receive(struct client *client, struct hl_packet *packet)
{
    const int64_t deadline_ns = hl_clock_ns() + STAND_WAIT_NS;
    hl_status status = hl_channel_receive_until(client->fd, packet, deadline_ns, &client->err);
    return status != HL_E_PEER ? status
                               : hl_channel_receive_until(client->fd, packet, deadline_ns, &client->err);
}

void client_expect(struct client *client, enum hl_message_kind kind, struct hl_packet *packet)
{
    enum hl_message_kind got;
    HL_REQUIRE_OK(receive(client, packet), client->err);
    HL_REQUIRE_OK(hl_message_check(packet, &got, &client->err), client->err);
    if (got == HL_MESSAGE_ERROR)
        fprintf(stderr, "ERROR: %s\n", ((const struct hl_error_message *)packet->bytes)->text);
    CU_ASSERT_EQUAL_FATAL(got, kind);
    CU_ASSERT_EQUAL(((const struct hl_message *)packet->bytes)->sequence, client->sequence);
}

void client_expect_error(struct client *client, hl_status status, const char *text)
{
    struct hl_packet packet;
    HL_REQUIRE_OK(receive(client, &packet), client->err);
    hl_status got = hl_error_message_read((const struct hl_error_message *)packet.bytes, &client->err);
    if (got != status || !strstr(client->err.text, text))
        fprintf(stderr, "got %s: %s\n", hl_status_name(got), client->err.text);
    CU_ASSERT_EQUAL(got, status);
    CU_ASSERT_PTR_NOT_NULL(strstr(client->err.text, text));
    hl_packet_close_fds(&packet);
}

void client_expect_closed(struct client *client)
{
    struct hl_packet packet;
    hl_status status;
    while ((status = receive(client, &packet)) == HL_OK)
        hl_packet_close_fds(&packet);
    /* Bytes that the Manager did not read any more turn the end into a reset. */
    CU_ASSERT_TRUE(status == HL_E_PEER || (status == HL_E_SYSTEM && client->err.sys_errno == ECONNRESET));
}

/* --- other processes --- */

bool client_is_role(void)
{
    const bool role = getenv(ROLE_VARIABLE) != NULL;
    if (!role)
        CU_PASS("another process's part");
    return role;
}

int client_spawn(const char *role)
{
    extern char **environ;
    char *const argv[] = {"role", (char *)(uintptr_t)role, NULL};
    const char *xml = getenv("XML_OUTPUT_FILE");
    char *kept = xml ? strdup(xml) : NULL;
    pid_t pid;
    setenv(ROLE_VARIABLE, role, 1);
    unsetenv("XML_OUTPUT_FILE"); /* this process's */
    int failed = posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ);
    unsetenv(ROLE_VARIABLE);
    if (kept)
        setenv("XML_OUTPUT_FILE", kept, 1);
    free(kept);
    CU_ASSERT_EQUAL_FATAL(failed, 0);
    return pid;
}

int client_wait(int pid)
{
    int status = -1;
    CU_ASSERT_EQUAL(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
