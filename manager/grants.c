/* The Manager's half of the grant record's transitions (core/grant/grant.h has the table).
 *
 * A record is looked at when the engine marked it, and by maintenance, as marks may be lost (I6). Its word is
 * read once; what it says is held against the private owner, which knows what was granted. What contradicts
 * the owner is not repaired: the session is detached, and the sources of that record are kept in quarantine,
 * as nobody can say what the engine is doing with them. */
#include <assert.h>
#include <stdio.h>

#include "core/base/error.h"
#include "faults/hook.h"
#include "manager/operation.h"

#define STAGE "manager.grants"

/* What a session's loss or a request to cancel says. */
struct refusal {
    hl_status status;
    const char *text;
};
static const struct refusal cancelled = {HL_E_CANCELLED, "cancelled by the engine"};
static const struct refusal lost = {HL_E_PEER, "the session has ended"};

/* A session is lost when it has ended or its process has: one without a channel is still served. */
static bool is_lost(const struct manager_session *session)
{
    return session->ended || session->state == MANAGER_SESSION_UNRESOLVED;
}

static bool refused(const struct manager_session *session, uint32_t record, uint32_t generation,
                    struct refusal *refusal)
{
    struct hl_grant_record *shared = hl_grant_record_at(session->grants, record);
    if (is_lost(session)) {
        *refusal = lost;
        return true;
    }
    *refusal = cancelled;
    return atomic_load_explicit(&shared->cancel, memory_order_acquire) == generation;
}

/* The record is not what the Manager's own account says. Unless the session is lost already, this ends it:
 * when it returns, no operation and not even the session need exist any more. */
static void contradicted(hl_manager *manager, struct manager_session *session, uint32_t record)
{
    struct hl_grant_word word = hl_grant_load(session->grants, record);
    struct manager_operation *operation = session->operations[record];
    char reason[160];
    snprintf(reason, sizeof reason, "%s: record %u says %s of generation %u, which contradicts %s",
             hl_status_name(HL_E_PROTOCOL), record, hl_grant_state_name(word.state), word.generation,
             operation ? "its owner" : "that it has no owner");
    if (operation)
        manager_quarantine_because(manager, operation, "its record says %s of generation %u",
                                   hl_grant_state_name(word.state), word.generation);
    if (is_lost(session))
        return;
    manager_log(manager, HL_MANAGER_WARNING, "session %u (\"%s\", process %d) is ended: %s", session->index,
                session->name, (int)session->pid, reason);
    session->ended = true;
    if (session->state == MANAGER_SESSION_LIVE) {
        manager_session_detach(manager, session, reason);
        return;
    }
    hl_lease_drop_session(manager->leases, session->serial);
    manager_grants_lose(manager, session, false);
}

/* The last step of every record: whoever owned its sources has gone. */
static void reap(hl_manager *manager, struct manager_session *session, uint32_t record, uint32_t generation,
                 enum hl_grant_state from)
{
    assert(!session->operations[record]);
    if (HL_FAULT_MOVE(grant_reap, hl_grant_move(session->grants, record, generation, from, HL_GRANT_REAPED)))
        manager_session_notify(session);
    else
        contradicted(manager, session, record);
}

/* PREPARING → REJECTED → REAPED. Nothing is held for the record any more. */
static void reject(hl_manager *manager, struct manager_session *session, uint32_t record, uint32_t generation,
                   hl_status status, const char *text)
{
    manager_record_explain(session, record, status, text);
    manager->counters.rejected++;
    if (HL_FAULT_MOVE(grant_reject, hl_grant_move(session->grants, record, generation, HL_GRANT_PREPARING,
                                                  HL_GRANT_REJECTED)))
        reap(manager, session, record, generation, HL_GRANT_REJECTED);
    else
        contradicted(manager, session, record);
}

/* Releases the operation and takes its record from `from`, which ends here, to REAPED. What waited for its
 * end comes last: it may end the session. */
static void release_and_reap(hl_manager *manager, struct manager_operation *operation,
                             enum hl_grant_state from)
{
    struct manager_session *session = operation->session;
    struct manager_binding *binding = operation->binding;
    const uint64_t serial = session->serial;
    uint32_t record = operation->identity.record, generation = operation->identity.generation;
    manager_operation_release(manager, operation);
    reap(manager, session, record, generation, from);
    if (session->serial == serial)
        manager_binding_settle(manager, session, binding);
}

static void end_rejected(hl_manager *manager, struct manager_operation *operation,
                         const struct refusal *refusal)
{
    struct manager_session *session = operation->session;
    struct manager_binding *binding = operation->binding;
    const uint64_t serial = session->serial;
    uint32_t record = operation->identity.record, generation = operation->identity.generation;
    assert(operation->phase == MANAGER_PREPARED);
    manager_operation_release(manager, operation);
    reject(manager, session, record, generation, refusal->status, refusal->text);
    if (session->serial == serial)
        manager_binding_settle(manager, session, binding);
}

/* GRANTED → REVOKED → REAPED, when the engine has not claimed; false when it has. */
static bool end_revoked(hl_manager *manager, struct manager_operation *operation)
{
    if (!HL_FAULT_MOVE(grant_revoke,
                       hl_grant_move(operation->session->grants, operation->identity.record,
                                     operation->identity.generation, HL_GRANT_GRANTED, HL_GRANT_REVOKED)))
        return false;
    manager->counters.revoked++;
    release_and_reap(manager, operation, HL_GRANT_REVOKED);
    return true;
}

/* PART_DRAINED → REVOKED → REAPED: the part has drained and no other was granted. False when the record is
 * not in that state any more. */
static bool end_between_parts(hl_manager *manager, struct manager_operation *operation,
                              const struct refusal *refusal)
{
    struct manager_session *session = operation->session;
    uint32_t record = operation->identity.record;
    manager_record_explain(session, record, refusal->status, refusal->text);
    if (!HL_FAULT_MOVE(grant_cut_short, hl_grant_move(session->grants, record, operation->identity.generation,
                                                      HL_GRANT_PART_DRAINED, HL_GRANT_REVOKED)))
        return false;
    manager->counters.revoked++;
    release_and_reap(manager, operation, HL_GRANT_REVOKED);
    return true;
}

static void count_restored(hl_manager *manager, const struct manager_operation *operation,
                           const struct manager_completion *completion)
{
    if (completion->status != HL_OK)
        return;
    manager->counters.restored++;
    manager->counters.restored_bytes += operation->payload_bytes;
    if (!completion->traced || !operation->trace)
        return;
    manager->traced.count++;
    for (unsigned i = 0; i < HL_STAGE_COUNT; i++)
        manager->traced.stage_ns[i] += completion->stage_ns[i];
}

/* DRAINED → REAPED. False, and nothing done, when the record is no proof of it: malformed, or a success that
 * skipped parts. */
static bool end_drained(hl_manager *manager, struct manager_operation *operation)
{
    struct manager_session *session = operation->session;
    uint32_t record = operation->identity.record;
    struct hl_grant_record copy;
    struct manager_completion completion;
    hl_grant_copy(session->grants, record, &copy);
    if (!manager_completion_read(&copy, operation->identity.generation, &completion))
        return false;
    if (completion.status == HL_OK && operation->part + 1 != operation->part_count)
        return false;
    if (completion.status != HL_OK)
        manager_log(manager, HL_MANAGER_INFO, "session %u, record %u: the restore failed in the engine: %s",
                    session->index, record, completion.text);
    count_restored(manager, operation, &completion);
    release_and_reap(manager, operation, HL_GRANT_DRAINED);
    return true;
}

static void offer(hl_manager *manager, struct manager_operation *operation)
{
    struct manager_session *session = operation->session;
    uint32_t record = operation->identity.record;
    if (manager_part_offer(operation) == MANAGER_GRANT_SCRIBBLED)
        contradicted(manager, session, record);
}

static bool prepare(struct manager_session *session, uint32_t record, uint32_t generation)
{
    return HL_FAULT_MOVE(grant_prepare, hl_grant_move(session->grants, record, generation, HL_GRANT_RESERVED,
                                                      HL_GRANT_PREPARING));
}

/* RESERVED, and the descriptor complete. The claim comes before anything is decoded or consumed (R6). */
static void claim(hl_manager *manager, struct manager_session *session, uint32_t record, uint32_t generation)
{
    struct manager_operation *operation;
    struct refusal refusal;
    hl_error err = {0};
    if (generation == 0 || (int32_t)(generation - session->generations[record]) <= 0) {
        contradicted(manager, session, record);
        return;
    }
    if (!prepare(session, record, generation))
        return; /* the engine gave it up first */
    session->generations[record] = generation;
    if (refused(session, record, generation, &refusal)) {
        reject(manager, session, record, generation, refusal.status, refusal.text);
        return;
    }
    hl_status status = manager_prepare(manager, session, record, generation, &operation, &err);
    if (status != HL_OK) {
        reject(manager, session, record, generation, status, err.text);
        return;
    }
    manager_operation_install(operation);
    if (refused(session, record, generation, &refusal))
        end_rejected(manager, operation, &refusal);
    else
        offer(manager, operation);
}

static bool is_submitted(const struct manager_session *session, uint32_t record, uint32_t generation)
{
    struct hl_grant_record *shared = hl_grant_record_at(session->grants, record);
    return atomic_load_explicit(&shared->submitted, memory_order_acquire) == generation;
}

/* A record of which the Manager owns nothing: only a submitted one asks for something. */
static void look_unowned(hl_manager *manager, struct manager_session *session, uint32_t record)
{
    struct hl_grant_word word = hl_grant_load(session->grants, record);
    if (word.state == HL_GRANT_FREE || word.state == HL_GRANT_REAPED)
        return;
    if (word.state != HL_GRANT_RESERVED)
        contradicted(manager, session, record);
    else if (is_submitted(session, record, word.generation))
        claim(manager, session, record, word.generation);
}

/* Whether the part that the engine is copying has left the bank; false when it claims parts that it was never
 * granted. */
static bool note_consumed(struct manager_operation *operation)
{
    struct hl_grant_record *shared =
        hl_grant_record_at(operation->session->grants, operation->identity.record);
    uint32_t consumed = atomic_load_explicit(&shared->consumed, memory_order_acquire);
    if (consumed > operation->part + 1)
        return false;
    if (consumed == operation->part + 1)
        manager_part_consumed(operation);
    return true;
}

/* A part that is not the last has drained: acknowledged once, by making the next one the operation's part. */
static bool next_part(hl_manager *manager, struct manager_operation *operation)
{
    struct manager_session *session = operation->session;
    struct refusal refusal;
    if (operation->part + 1 >= operation->part_count)
        return false;
    manager_part_consumed(operation);
    operation->part++;
    operation->phase = MANAGER_BETWEEN_PARTS;
    if (refused(session, operation->identity.record, operation->identity.generation, &refusal))
        return end_between_parts(manager, operation, &refusal);
    offer(manager, operation);
    return true;
}

/* A record with a granted part. False when what it says cannot be. */
static bool look_granted(hl_manager *manager, struct manager_operation *operation, uint32_t state)
{
    struct manager_session *session = operation->session;
    struct refusal refusal;
    if (state == HL_GRANT_GRANTED) {
        if (!refused(session, operation->identity.record, operation->identity.generation, &refusal) ||
            end_revoked(manager, operation))
            return true;
        state = hl_grant_load(session->grants, operation->identity.record).state; /* claimed meanwhile */
    }
    switch (state) {
    case HL_GRANT_ACTIVE:
        return note_consumed(operation);
    case HL_GRANT_PART_DRAINED:
        return next_part(manager, operation);
    case HL_GRANT_DRAINED:
        return end_drained(manager, operation);
    default:
        return false;
    }
}

/* A record that waits for bank space, with nothing granted. False when what it says cannot be. */
static bool look_waiting(hl_manager *manager, struct manager_operation *operation, uint32_t state)
{
    struct manager_session *session = operation->session;
    bool prepared = operation->phase == MANAGER_PREPARED;
    struct refusal refusal;
    if (state != (prepared ? HL_GRANT_PREPARING : HL_GRANT_PART_DRAINED))
        return false;
    if (!refused(session, operation->identity.record, operation->identity.generation, &refusal))
        return true;
    if (!prepared)
        return end_between_parts(manager, operation, &refusal);
    end_rejected(manager, operation, &refusal);
    return true;
}

static void look_owned(hl_manager *manager, struct manager_operation *operation)
{
    struct manager_session *session = operation->session;
    uint32_t record = operation->identity.record;
    struct hl_grant_word word = hl_grant_load(session->grants, record);
    bool possible = word.generation == operation->identity.generation;
    if (possible && operation->phase == MANAGER_GRANTED)
        possible = look_granted(manager, operation, word.state);
    else if (possible)
        possible = look_waiting(manager, operation, word.state);
    if (!possible)
        contradicted(manager, session, record);
}

void manager_grants_look(hl_manager *manager, struct manager_session *session, uint32_t record)
{
    const uint64_t serial = session->serial;
    struct manager_operation *operation = session->operations[record];
    if (operation && operation->phase == MANAGER_QUARANTINED)
        return;
    if (operation)
        look_owned(manager, operation);
    else
        look_unowned(manager, session, record);
    if (session->serial == serial && session->grants)
        manager_grants_resume(manager, session);
    if (session->serial == serial)
        manager_session_settle(manager, session);
}

void manager_grants_resume(hl_manager *manager, struct manager_session *session)
{
    while (!is_lost(session) && session->deferred_first) {
        uint32_t record = session->deferred_first->identity.record;
        enum manager_grant_result result = manager_part_offer_first(session);
        if (result == MANAGER_GRANT_DEFERRED)
            return;
        if (result == MANAGER_GRANT_SCRIBBLED) {
            contradicted(manager, session, record);
            return;
        }
    }
}

void manager_grants_sweep(hl_manager *manager, struct manager_session *session)
{
    const uint64_t serial = session->serial;
    for (uint32_t record = 0; record < HL_GRANT_RECORDS; record++) {
        if (!session->grants || session->serial != serial)
            return;
        if (session->operations[record] || hl_grant_load(session->grants, record).state == HL_GRANT_RESERVED)
            manager_grants_look(manager, session, record);
    }
}

/* --- the session's loss --- */

/* What the operation's granted part leads to; false when its record says nothing that can be. */
static bool lose_granted(hl_manager *manager, struct manager_operation *operation, bool dead)
{
    struct manager_session *session = operation->session;
    uint32_t record = operation->identity.record;
    if (end_revoked(manager, operation))
        return true;
    switch (hl_grant_load(session->grants, record).state) {
    case HL_GRANT_ACTIVE:
        if (dead)
            manager_quarantine_add(manager, session, operation);
        return true;
    case HL_GRANT_PART_DRAINED:
        return operation->part + 1 < operation->part_count && end_between_parts(manager, operation, &lost);
    case HL_GRANT_DRAINED:
        return end_drained(manager, operation);
    default:
        return false;
    }
}

static bool lose_waiting(hl_manager *manager, struct manager_operation *operation)
{
    if (operation->phase == MANAGER_BETWEEN_PARTS)
        return end_between_parts(manager, operation, &lost);
    if (hl_grant_load(operation->session->grants, operation->identity.record).state != HL_GRANT_PREPARING)
        return false;
    end_rejected(manager, operation, &lost);
    return true;
}

static void lose_owned(hl_manager *manager, struct manager_operation *operation, bool dead)
{
    struct hl_grant_word word = hl_grant_load(operation->session->grants, operation->identity.record);
    bool possible = word.generation == operation->identity.generation;
    if (possible && operation->phase == MANAGER_GRANTED)
        possible = lose_granted(manager, operation, dead);
    else if (possible)
        possible = lose_waiting(manager, operation);
    if (!possible)
        manager_quarantine_because(manager, operation, "the session was lost while its record says %s",
                                   hl_grant_state_name(word.state));
}

/* Submitted and never to be prepared: its handle in a living engine is told. */
static void lose_submitted(hl_manager *manager, struct manager_session *session, uint32_t record)
{
    struct hl_grant_word word = hl_grant_load(session->grants, record);
    if (word.state != HL_GRANT_RESERVED || !is_submitted(session, record, word.generation) ||
        (int32_t)(word.generation - session->generations[record]) <= 0)
        return;
    if (!prepare(session, record, word.generation))
        return;
    session->generations[record] = word.generation;
    reject(manager, session, record, word.generation, lost.status, lost.text);
}

void manager_grants_lose(hl_manager *manager, struct manager_session *session, bool dead)
{
    assert(is_lost(session)); /* nothing is admitted or granted any more */
    for (uint32_t record = 0; record < HL_GRANT_RECORDS; record++) {
        struct manager_operation *operation = session->operations[record];
        if (!operation)
            lose_submitted(manager, session, record);
        else if (operation->phase != MANAGER_QUARANTINED)
            lose_owned(manager, operation, dead);
    }
}
