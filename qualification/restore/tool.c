#include "qualification/restore/tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "qualification/restore/manager_process.h"

int raw_connect(void)
{
    int fd;
    pid_t pid;
    hl_error err = {0};
    MUST_OK(hl_channel_connect(MANAGER_SOCKET, &fd, &pid, &err), err);
    return fd;
}

bool raw_request(int fd, const void *message, const int *fds, unsigned fd_count, struct hl_packet *packet)
{
    hl_error err = {0};
    hl_status status = hl_channel_send(fd, message, fds, fd_count, &err);
    if (status == HL_OK)
        status = hl_channel_receive_until(fd, packet, hl_clock_ns() + PATIENCE_NS, &err);
    process_must(status == HL_OK || status == HL_E_PEER, __FILE__, __LINE__, "a request", err.text);
    return status == HL_OK;
}

int raw_hello(enum hl_peer_role role, struct hl_packet *packet)
{
    struct hl_hello hello;
    int fd = raw_connect();
    hl_hello_fill(&hello, role, "raw");
    MUST(raw_request(fd, &hello, NULL, 0, packet));
    return fd;
}

void raw_await_close(int fd)
{
    const int64_t until = hl_clock_ns() + PATIENCE_NS;
    struct hl_packet packet;
    hl_error err = {0};
    hl_status status;
    while ((status = hl_channel_receive_until(fd, &packet, until, &err)) == HL_OK)
        hl_packet_close_fds(&packet);
    MUST_STATUS(status, HL_E_PEER, err);
    close(fd);
}

static json_t *read_json(struct hl_packet *packet)
{
    struct stat file;
    MUST(packet->fd_count == 1 && fstat(packet->fds[0], &file) == 0);
    char *text = malloc((size_t)file.st_size + 1);
    MUST(text != NULL && pread(packet->fds[0], text, (size_t)file.st_size, 0) == file.st_size);
    json_t *json = json_loadb(text, (size_t)file.st_size, 0, NULL);
    MUST(json != NULL);
    free(text);
    return json;
}

json_t *tool_ask(enum hl_admin_verb verb, const uint64_t operation[3], uint32_t confirmed, hl_status *status)
{
    struct hl_admin request = {.verb = verb, .confirmed = confirmed};
    struct hl_packet packet;
    json_t *json = NULL;
    int fd = raw_hello(HL_PEER_TOOL, &packet);
    hl_packet_close_fds(&packet);
    hl_message_head(&request, HL_MESSAGE_ADMIN, 1);
    if (operation)
        memcpy(request.operation, operation, sizeof request.operation);
    snprintf(request.operator_name, sizeof request.operator_name, "operator of the test");
    MUST(raw_request(fd, &request, NULL, 0, &packet));
    const struct hl_message *head = (const struct hl_message *)packet.bytes;
    *status = HL_OK;
    if (head->kind == HL_MESSAGE_DONE)
        json = read_json(&packet);
    else
        *status = hl_error_message_read((const struct hl_error_message *)packet.bytes, NULL);
    hl_packet_close_fds(&packet);
    close(fd);
    return json;
}

/* The first 8 bytes of a token, written as hexadecimal digits, as the number that they are in memory. */
static uint64_t read_token(const char *digits)
{
    unsigned char bytes[8];
    uint64_t token;
    for (size_t i = 0; i < sizeof bytes; i++)
        MUST(sscanf(digits + 2 * i, "%2hhx", &bytes[i]) == 1);
    memcpy(&token, bytes, sizeof token);
    return token;
}

size_t tool_quarantine(uint64_t operations[][3], size_t room)
{
    hl_status status;
    json_t *json = tool_ask(HL_ADMIN_QUARANTINE, NULL, 0, &status), *one;
    size_t index;
    MUST(json != NULL);
    const json_t *list = json_object_get(json, "quarantine");
    json_array_foreach(list, index, one)
    {
        if (index >= room)
            break;
        operations[index][0] = strtoull(json_string_value(json_object_get(one, "epoch")), NULL, 16);
        operations[index][1] = (uint64_t)json_integer_value(json_object_get(one, "record")) << 32 |
                               (uint64_t)json_integer_value(json_object_get(one, "generation"));
        operations[index][2] = read_token(json_string_value(json_object_get(one, "token8")));
    }
    index = json_array_size(list);
    json_decref(json);
    return index;
}

hl_status tool_release(const uint64_t operation[3], uint32_t confirmed)
{
    hl_status status;
    json_t *json = tool_ask(HL_ADMIN_RELEASE, operation, confirmed, &status);
    if (json)
        json_decref(json);
    return status;
}
