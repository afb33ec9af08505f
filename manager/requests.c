/* What engines and tools ask for. Each request is answered once, by its reply or by ERROR; UNREGISTER when
 * nothing of the binding is left. */
#include "manager/requests.h"

#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "faults/hook.h"
#include "manager/bindings.h"
#include "manager/dispatch.h"
#include "manager/session.h"

static void send_done(struct manager_session *session, uint32_t sequence, const int *fd)
{
    struct hl_done message = {.value = 0};
    hl_message_head(&message, HL_MESSAGE_DONE, sequence);
    manager_session_send(session, &message, fd, fd ? 1 : 0);
}

static hl_status release(hl_manager *manager, struct manager_session *session,
                         const struct hl_release *request, hl_error *err)
{
    hl_status status;
    HL_FAULT_STORE(manager_lease_return, status = hl_lease_give_back(manager->leases, session->serial,
                                                                     request->lease, hl_clock_ns(), err));
    if (status == HL_OK)
        send_done(session, request->head.sequence, NULL);
    return status;
}

/* --- PUBLISH --- */

static hl_status check_publish(struct manager_session *session, const struct manager_binding *binding,
                               const struct hl_publish_message *request, hl_error *err)
{
    static const char stage[] = "manager.publish";
    if (request->group >= binding->layout->group_count)
        return HL_FAIL(err, HL_E_INVALID, stage, "group is %u, the binding has %u", request->group,
                       binding->layout->group_count);
    if (request->blocks.bytes != (uint64_t)request->block_count * sizeof(struct hl_publish_block))
        return HL_FAIL(err, HL_E_PROTOCOL, stage, "blocks: %u bytes are not %u blocks of %zu",
                       request->blocks.bytes, request->block_count, sizeof(struct hl_publish_block));
    if (session->publish_slots >> request->slot & 1)
        return HL_FAIL(err, HL_E_PROTOCOL, stage, "slot %u belongs to a publish that runs", request->slot);
    if (atomic_load(&hl_descriptors_slot(session->descriptors, request->slot)->state) != HL_PUBLISH_PENDING)
        return HL_FAIL(err, HL_E_PROTOCOL, stage, "slot %u is not PENDING", request->slot);
    if (!manager_binding_is_exported(binding, request->group))
        return HL_FAIL(err, HL_E_UNSUPPORTED, stage,
                       "\"%.80s\" was registered without exports of all tensors of group %u, which the "
                       "Manager needs to read its pages",
                       binding->instance, request->group);
    return HL_OK;
}

static hl_status check_blocks(const struct manager_binding *binding, const struct hl_publish_message *request,
                              const struct hl_publish_block *blocks, hl_error *err)
{
    static const char stage[] = "manager.publish";
    const uint32_t pages = binding->layout->groups[request->group].pages;
    for (uint32_t i = 0; i < request->block_count; i++) {
        if (blocks[i].zero != 0)
            return HL_FAIL(err, HL_E_PROTOCOL, stage, "block %u: a zero field is %u", i, blocks[i].zero);
        if (blocks[i].page >= pages)
            return HL_FAIL(err, HL_E_RANGE, stage, "block %u: page is %u, group %u has %u", i, blocks[i].page,
                           request->group, pages);
    }
    return HL_OK;
}

static hl_status publish(hl_manager *manager, struct manager_session *session,
                         const struct hl_publish_message *request, hl_error *err)
{
    struct manager_binding *binding;
    void *blocks;
    hl_status status = manager_binding_find(session, request->binding, &binding, err);
    if (status == HL_OK)
        status = check_publish(session, binding, request, err);
    if (status == HL_OK)
        status =
            hl_descriptors_copy(session->descriptors, request->blocks, request->blocks.bytes, &blocks, err);
    if (status != HL_OK)
        return status;
    status = check_blocks(binding, request, blocks, err);
    if (status == HL_OK)
        status = manager_publish(manager, session, binding, request, blocks, err);
    free(blocks);
    if (status != HL_OK)
        return status;
    session->publish_slots |= 1ull << request->slot;
    binding->publishes++;
    send_done(session, request->head.sequence, NULL);
    return HL_OK;
}

void manager_publish_replied(hl_manager *manager, struct manager_session *session,
                             struct manager_binding *binding, uint32_t slot)
{
    session->publish_slots &= ~(1ull << slot);
    binding->publishes--;
    manager_binding_settle(manager, session, binding);
    manager_session_settle(manager, session);
    if (manager->stopping) /* the dispatcher waits for it */
        manager_dispatch_wake(manager);
}

/* --- ADMIN and BYE --- */

static hl_status admin(hl_manager *manager, struct manager_session *session, const struct hl_admin *request,
                       hl_error *err)
{
    int json;
    hl_status status = manager_admin(manager, request, &json, err);
    if (status != HL_OK)
        return status;
    send_done(session, request->head.sequence, &json);
    close(json);
    return HL_OK;
}

static void bye(hl_manager *manager, struct manager_session *session, uint32_t sequence)
{
    session->ended = true;
    send_done(session, sequence, NULL);
    manager_session_detach(manager, session, "it said BYE");
}

/* --- all --- */

static hl_status answer(hl_manager *manager, struct manager_session *session, enum hl_message_kind kind,
                        const void *message, hl_error *err)
{
    static const char stage[] = "manager.request";
    if (session->tool && kind != HL_MESSAGE_ADMIN && kind != HL_MESSAGE_BYE)
        return HL_FAIL(err, HL_E_PROTOCOL, stage, "%s: a tool may only send ADMIN and BYE",
                       hl_message_kind_name(kind));
    switch (kind) {
    case HL_MESSAGE_REGISTER:
        return manager_binding_register(manager, session, message, err);
    case HL_MESSAGE_UNREGISTER:
        return manager_binding_unregister(manager, session, message, err);
    case HL_MESSAGE_QUERY:
        return manager_query(manager, session, message, err);
    case HL_MESSAGE_RELEASE:
        return release(manager, session, message, err);
    case HL_MESSAGE_PUBLISH:
        return publish(manager, session, message, err);
    case HL_MESSAGE_ADMIN:
        return admin(manager, session, message, err);
    case HL_MESSAGE_BYE:
        bye(manager, session, ((const struct hl_message *)message)->sequence);
        return HL_OK;
    default:
        return HL_FAIL(err, HL_E_PROTOCOL, stage, "%s is no request", hl_message_kind_name(kind));
    }
}

/* Whether the peer no longer speaks the protocol, so that nothing more is read from it. */
static bool ends_session(hl_status status)
{
    return status == HL_E_PROTOCOL || status == HL_E_VERSION;
}

void manager_request(hl_manager *manager, struct manager_session *session, struct hl_packet *packet)
{
    const struct hl_message *head = (const struct hl_message *)packet->bytes;
    const uint32_t sequence = packet->size >= sizeof *head ? head->sequence : 0;
    enum hl_message_kind kind;
    hl_error err;
    hl_status status = hl_message_check(packet, &kind, &err);
    if (status == HL_OK)
        status = answer(manager, session, kind, packet->bytes, &err);
    if (status == HL_OK)
        return;
    struct hl_error_message message;
    hl_error_message_fill(&message, sequence, &err);
    manager_session_send(session, &message, NULL, 0);
    if (ends_session(status))
        manager_session_detach(manager, session, err.text);
    else
        manager_log(manager, HL_MANAGER_DEBUG, "session %u: %s", session->index, err.text);
}
