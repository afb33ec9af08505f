/* Plan parts on their way through a session's bank: granting, deferring, fairness. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "faults/hook.h"
#include "manager/operation.h"

void manager_record_explain(struct manager_session *session, uint32_t record, hl_status status,
                            const char *text)
{
    struct hl_grant_record *shared = hl_grant_record_at(session->grants, record);
    char line[HL_GRANT_TEXT_BYTES] = {0};
    snprintf(line, sizeof line, "%.*s", (int)sizeof line - 1, text);
    shared->status = status;
    shared->bytes = 0;
    memcpy(shared->text, line, sizeof line);
}

void manager_part_withdraw(struct manager_operation *operation)
{
    struct manager_session *session = operation->session;
    if (!operation->deferred)
        return;
    struct manager_operation *before = NULL;
    for (struct manager_operation *at = session->deferred_first; at != operation; at = at->deferred_next) {
        assert(at);
        before = at;
    }
    *(before ? &before->deferred_next : &session->deferred_first) = operation->deferred_next;
    if (session->deferred_last == operation)
        session->deferred_last = before;
    operation->deferred = false;
    operation->deferred_next = NULL;
}

static enum manager_grant_result defer(struct manager_operation *operation)
{
    struct manager_session *session = operation->session;
    assert(!operation->deferred);
    *(session->deferred_last ? &session->deferred_last->deferred_next : &session->deferred_first) = operation;
    session->deferred_last = operation;
    HL_FAULT_STORE(manager_part_defer, operation->deferred = true);
    return MANAGER_GRANT_DEFERRED;
}

void manager_part_consumed(struct manager_operation *operation)
{
    if (!operation->bank_held)
        return;
    HL_FAULT_STORE(manager_bank_give,
                   hl_bank_give(operation->session->bank, operation->bank_offset, operation->bank_bytes));
    operation->bank_held = false;
}

/* Copies the part into the bank and publishes it. What a revocation will say is written now: once the record
 * is GRANTED its fields are the engine's to write. */
static enum manager_grant_result grant(struct manager_operation *operation)
{
    struct manager_session *session = operation->session;
    uint32_t record = operation->identity.record;
    size_t size;
    const void *bytes = hl_plan_part_bytes(operation->plan, operation->part, &size);
    assert(!operation->bank_held && operation->part < operation->part_count && size <= HL_PLAN_PART_BYTES);
    assert(operation->installed && operation->phase != MANAGER_GRANTED);
    if (!HL_FAULT_CALL(manager_bank_take,
                       hl_bank_take(session->bank, (uint32_t)size, &operation->bank_offset), false))
        return MANAGER_GRANT_DEFERRED;
    operation->bank_bytes = (uint32_t)size;
    operation->bank_held = true;
    HL_FAULT_STORE(
        manager_part_place,
        memcpy((unsigned char *)hl_grant_bank(session->grants) + operation->bank_offset, bytes, size));

    struct hl_grant_record *shared = hl_grant_record_at(session->grants, record);
    shared->part_index = (uint16_t)operation->part;
    shared->part_count = (uint16_t)operation->part_count;
    shared->bank_offset = operation->bank_offset;
    shared->bank_bytes = operation->bank_bytes;
    manager_record_explain(session, record, HL_E_CANCELLED, "the Manager revoked it before it was claimed");

    enum hl_grant_state from =
        operation->phase == MANAGER_PREPARED ? HL_GRANT_PREPARING : HL_GRANT_PART_DRAINED;
    manager_part_withdraw(operation);
    if (!HL_FAULT_MOVE_EITHER(
            from == HL_GRANT_PREPARING, grant_first_part, grant_next_part,
            hl_grant_move(session->grants, record, operation->identity.generation, from, HL_GRANT_GRANTED))) {
        manager_part_consumed(operation);
        return MANAGER_GRANT_SCRIBBLED;
    }
    operation->phase = MANAGER_GRANTED;
    manager_session_notify(session);
    return MANAGER_GRANT_DONE;
}

enum manager_grant_result manager_part_offer(struct manager_operation *operation)
{
    if (operation->session->deferred_first)
        return defer(operation);
    enum manager_grant_result result = grant(operation);
    return result == MANAGER_GRANT_DEFERRED ? defer(operation) : result;
}

enum manager_grant_result manager_part_offer_first(struct manager_session *session)
{
    return grant(session->deferred_first);
}
