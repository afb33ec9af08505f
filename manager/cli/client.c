#include "manager/cli/client.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/error.h"

static const char stage[] = "cli";

#define ANSWER_WAIT_NS (30 * HL_NS_PER_S)
#define ANSWER_BYTES (64ull * HL_MIB)

/* Receives the reply of the kind that is wanted, or the Manager's error. */
static hl_status receive(int fd, enum hl_message_kind wanted, struct hl_packet *packet, hl_error *err)
{
    enum hl_message_kind kind;
    hl_status status = hl_channel_receive_until(fd, packet, hl_clock_ns() + ANSWER_WAIT_NS, err);
    if (status != HL_OK)
        return status;
    status = hl_message_check(packet, &kind, err);
    if (status == HL_OK && kind == HL_MESSAGE_ERROR)
        status = hl_error_message_read((const struct hl_error_message *)packet->bytes, err);
    else if (status == HL_OK && kind != wanted)
        status = HL_FAIL(err, HL_E_PROTOCOL, stage, "the Manager answered %s instead of %s",
                         hl_message_kind_name(kind), hl_message_kind_name(wanted));
    if (status != HL_OK)
        hl_packet_close_fds(packet);
    return status;
}

static hl_status greet(int fd, hl_error *err)
{
    struct hl_hello hello;
    struct hl_packet packet;
    hl_hello_fill(&hello, HL_PEER_TOOL, "hostlane");
    hl_status status = hl_channel_send(fd, &hello, NULL, 0, err);
    if (status == HL_OK)
        status = receive(fd, HL_MESSAGE_WELCOME, &packet, err);
    if (status == HL_OK)
        hl_packet_close_fds(&packet);
    return status;
}

static hl_status parse(int fd, json_t **answer, hl_error *err)
{
    struct stat file;
    json_error_t reason;
    if (fstat(fd, &file) != 0)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, errno, "cannot look at the answer");
    if (file.st_size <= 0 || (uint64_t)file.st_size > ANSWER_BYTES)
        return HL_FAIL(err, HL_E_PROTOCOL, stage, "the answer has %lld bytes", (long long)file.st_size);
    char *text = malloc((size_t)file.st_size);
    if (!text)
        return HL_FAIL(err, HL_E_NOMEM, stage, "no memory for the answer");
    hl_status status = HL_OK;
    if (pread(fd, text, (size_t)file.st_size, 0) != file.st_size) {
        status = HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, errno, "cannot read the answer");
        goto free_text;
    }
    *answer = json_loadb(text, (size_t)file.st_size, 0, &reason);
    if (!*answer)
        status = HL_FAIL(err, HL_E_PROTOCOL, stage, "the answer is no JSON: %s", reason.text);
free_text:
    free(text);
    return status;
}

static hl_status ask(int fd, struct hl_admin *request, json_t **answer, hl_error *err)
{
    struct hl_packet packet;
    hl_message_head(request, HL_MESSAGE_ADMIN, 1);
    hl_status status = hl_channel_send(fd, request, NULL, 0, err);
    if (status == HL_OK)
        status = receive(fd, HL_MESSAGE_DONE, &packet, err);
    if (status != HL_OK)
        return status;
    status = packet.fd_count == 1
                 ? parse(packet.fds[0], answer, err)
                 : HL_FAIL(err, HL_E_PROTOCOL, stage, "the answer came with %u descriptors", packet.fd_count);
    hl_packet_close_fds(&packet);
    return status;
}

static void leave(int fd)
{
    struct hl_message bye;
    struct hl_packet packet;
    hl_message_head(&bye, HL_MESSAGE_BYE, 2);
    if (hl_channel_send(fd, &bye, NULL, 0, NULL) == HL_OK &&
        receive(fd, HL_MESSAGE_DONE, &packet, NULL) == HL_OK)
        hl_packet_close_fds(&packet);
}

hl_status cli_ask(const char *socket_path, struct hl_admin *request, json_t **answer, hl_error *err)
{
    int fd;
    pid_t pid;
    hl_status status = hl_channel_connect(socket_path, &fd, &pid, err);
    if (status != HL_OK)
        return status;
    status = greet(fd, err);
    if (status == HL_OK)
        status = ask(fd, request, answer, err);
    if (status == HL_OK)
        leave(fd);
    close(fd);
    return status;
}

const char *cli_advice(hl_status status)
{
    switch (status) {
    case HL_E_PEER:
        return "start hostlane-manager, or name its socket with --socket PATH";
    case HL_E_PERMISSION:
        return "run this as the user that runs the Manager";
    case HL_E_VERSION:
        return "use the hostlane tool that was built with this Manager";
    case HL_E_TIMEOUT:
        return "the Manager may be pinning memory (see its log): try again later";
    case HL_E_BUDGET:
    case HL_E_BUSY:
        return "other tools are connected: try again";
    case HL_E_NOT_FOUND:
        return "see `hostlane quarantine list` for what is there";
    default:
        return NULL;
    }
}
