/* Requests on the socket: one at a time, each with one reply. Nothing is sent twice. */
#include <sys/socket.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "engine/engine_internal.h"

static const char stage[] = "engine.request";

/* The channel cannot be trusted to be in step any more. */
static hl_status lose(hl_engine *engine, const hl_error *why, hl_error *err)
{
    engine_lose(engine, why);
    shutdown(engine->socket, SHUT_RDWR);
    if (err)
        *err = *why;
    return why->status;
}

static hl_status read_reply(const struct hl_message *request, enum hl_message_kind expected,
                            const struct hl_packet *packet, bool *refused, hl_error *err)
{
    enum hl_message_kind kind;
    hl_status status = hl_message_check(packet, &kind, err);
    if (status != HL_OK)
        return status;
    const struct hl_message *head = (const struct hl_message *)(const void *)packet->bytes;
    const char *name = hl_message_kind_name((enum hl_message_kind)request->kind);
    if (head->sequence != request->sequence)
        return HL_FAIL(err, HL_E_PROTOCOL, stage, "sequence is %u, %s had %u", head->sequence, name,
                       request->sequence);
    if (kind == HL_MESSAGE_ERROR) {
        status = hl_error_message_read((const struct hl_error_message *)(const void *)head, err);
        *refused = true;
        return status;
    }
    if (kind != expected)
        return HL_FAIL(err, HL_E_PROTOCOL, stage, "%s was answered by %s", name, hl_message_kind_name(kind));
    return HL_OK;
}

static hl_status exchange(hl_engine *engine, struct hl_message *head, enum hl_message_kind kind,
                          int64_t reply_ns, struct hl_packet *packet, bool *sent, hl_error *err)
{
    hl_error why = {0};
    bool refused = false;
    hl_status status = engine_check_peer(engine, err);
    if (status != HL_OK)
        return status;
    head->sequence = ++engine->sequence;
    status = hl_channel_send(engine->socket, head, NULL, 0, &why);
    if (status != HL_OK)
        return lose(engine, &why, err);
    *sent = true;
    status = hl_channel_receive_until(engine->socket, packet, hl_clock_ns() + reply_ns, &why);
    if (status == HL_E_TIMEOUT)
        status =
            HL_FAIL(&why, HL_E_PEER, stage, "the Manager did not answer %s in %lld ms",
                    hl_message_kind_name((enum hl_message_kind)head->kind), (long long)(reply_ns / 1000000));
    if (status != HL_OK)
        return lose(engine, &why, err);
    status = read_reply(head, kind, packet, &refused, &why);
    if (status == HL_OK)
        return HL_OK;
    hl_packet_close_fds(packet);
    if (!refused)
        return lose(engine, &why, err);
    *sent = false; /* refused: the Manager does nothing with it */
    if (err)
        *err = why;
    return status;
}

hl_status engine_request(hl_engine *engine, void *message, enum hl_message_kind kind, int64_t reply_ns,
                         struct hl_packet *packet, bool *sent, hl_error *err)
{
    bool ignored;
    if (!sent)
        sent = &ignored;
    *sent = false;
    pthread_mutex_lock(&engine->request);
    hl_status status = exchange(engine, message, kind, reply_ns, packet, sent, err);
    pthread_mutex_unlock(&engine->request);
    return status;
}
