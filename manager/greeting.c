/* Connections before their HELLO: who may connect, and which versions. */
#include <errno.h>
#include <inttypes.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "manager/dispatch.h"
#include "manager/session.h"

enum { ROUND_ACCEPTS = 16 };
#define HELLO_WAIT_NS (5 * HL_NS_PER_S)

static struct manager_greeting *free_greeting(hl_manager *manager)
{
    for (uint32_t i = 0; i < MANAGER_GREETINGS; i++)
        if (manager->greetings[i].socket < 0)
            return &manager->greetings[i];
    return NULL;
}

static void end_greeting(hl_manager *manager, struct manager_greeting *greeting)
{
    close(greeting->socket);
    *greeting = (struct manager_greeting){.socket = -1};
    if (!manager->stopping)
        manager_dispatch_listen(manager, true);
}

static void begin_greeting(hl_manager *manager, struct manager_greeting *greeting, int socket, pid_t pid)
{
    hl_error err;
    *greeting = (struct manager_greeting){
        .socket = socket,
        .pid = pid,
        .serial = ++manager->serial,
        .deadline_ns = hl_clock_ns() + HELLO_WAIT_NS,
    };
    if (manager_dispatch_watch(manager, socket, MANAGER_WATCH_GREETING,
                               (uint32_t)(greeting - manager->greetings), greeting->serial, &err) != HL_OK) {
        manager_log(manager, HL_MANAGER_ERROR, "the connection of process %d is dropped: %s", (int)pid,
                    err.text);
        end_greeting(manager, greeting);
    }
}

void manager_session_accept(hl_manager *manager)
{
    for (unsigned i = 0; i < ROUND_ACCEPTS; i++) {
        struct manager_greeting *greeting = free_greeting(manager);
        int socket;
        pid_t pid;
        uid_t uid;
        hl_error err;
        if (!greeting) {
            manager_dispatch_listen(manager, false);
            return;
        }
        hl_status status = hl_channel_accept(manager->listener, &socket, &pid, &uid, &err);
        if (status == HL_PENDING)
            return;
        if (status == HL_OK) {
            begin_greeting(manager, greeting, socket, pid);
        } else if (status == HL_E_PERMISSION) {
            manager_log(manager, HL_MANAGER_WARNING, "refused a connection of user %u, process %d: %s",
                        (unsigned)uid, (int)pid, err.text);
        } else {
            /* The connection still waits, and waking for it again at once would change nothing. */
            manager_log(manager, HL_MANAGER_ERROR, "%s", err.text);
            manager_dispatch_listen(manager, false);
            return;
        }
    }
}

static hl_status check_hello(const struct hl_packet *packet, hl_error *err)
{
    enum hl_message_kind kind;
    hl_status status = hl_message_check(packet, &kind, err);
    if (status != HL_OK)
        return status;
    if (kind != HL_MESSAGE_HELLO)
        return HL_FAIL(err, HL_E_PROTOCOL, "manager.hello", "the first message is %s, not HELLO",
                       hl_message_kind_name(kind));
    return hl_hello_check((const struct hl_hello *)packet->bytes, err);
}

static void refuse(hl_manager *manager, const struct manager_greeting *greeting,
                   const struct hl_packet *packet, const hl_error *err)
{
    struct hl_error_message message;
    const struct hl_message *head = (const struct hl_message *)packet->bytes;
    manager_log(manager, HL_MANAGER_WARNING, "refused process %d: %s", (int)greeting->pid, err->text);
    hl_error_message_fill(&message, packet->size >= sizeof *head ? head->sequence : 0, err);
    hl_channel_send(greeting->socket, &message, NULL, 0, NULL); /* if it still listens */
}

void manager_session_greet(hl_manager *manager, uint32_t index)
{
    struct manager_greeting *greeting = &manager->greetings[index];
    struct hl_packet packet;
    hl_error err;
    hl_status status = hl_channel_receive(greeting->socket, &packet, &err);
    if (status == HL_PENDING)
        return;
    if (status == HL_OK)
        status = check_hello(&packet, &err);
    if (status == HL_OK) {
        manager_dispatch_unwatch(manager, greeting->socket);
        status = manager_session_open(manager, greeting->socket, greeting->pid,
                                      (const struct hl_hello *)packet.bytes, &err);
        if (status == HL_OK)
            greeting->socket = -1; /* the session's */
    }
    hl_packet_close_fds(&packet);
    if (status == HL_OK) {
        *greeting = (struct manager_greeting){.socket = -1};
        manager_dispatch_listen(manager, true);
        return;
    }
    if (status != HL_E_PEER) /* who connects and leaves, as a starting Manager does, is nobody's business */
        refuse(manager, greeting, &packet, &err);
    end_greeting(manager, greeting);
}

void manager_session_expire_greetings(hl_manager *manager, int64_t now_ns)
{
    for (uint32_t i = 0; i < MANAGER_GREETINGS; i++) {
        struct manager_greeting *greeting = &manager->greetings[i];
        if (greeting->socket < 0 || now_ns < greeting->deadline_ns)
            continue;
        manager_log(manager, HL_MANAGER_WARNING, "process %d connected and sent no HELLO: dropped",
                    (int)greeting->pid);
        end_greeting(manager, greeting);
    }
    if (!manager->stopping)
        manager_dispatch_listen(manager, true);
}

void manager_session_end_greetings(hl_manager *manager)
{
    for (uint32_t i = 0; i < MANAGER_GREETINGS; i++)
        if (manager->greetings[i].socket >= 0)
            end_greeting(manager, &manager->greetings[i]);
}
