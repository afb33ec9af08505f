#include "manager/check.h"

#include <inttypes.h>

#include "core/base/checked.h"
#include "core/base/error.h"
#include "manager/operation.h"
#include "manager/session.h"

static const char stage[] = "manager.check";

/* --- what a session's operations hold, added up --- */

struct holdings {
    uint32_t operations, quarantined;
    uint64_t source_bytes, plan_bytes, bank_bytes;
    uint32_t of_binding[HL_SESSION_BINDINGS];
};

static void add_operation(struct holdings *holdings, const struct manager_session *session,
                          const struct manager_operation *operation)
{
    holdings->operations++;
    holdings->quarantined += operation->phase == MANAGER_QUARANTINED;
    holdings->plan_bytes += operation->plan_bytes;
    if (operation->bank_held)
        holdings->bank_bytes += hl_align_up(operation->bank_bytes, HL_BANK_UNIT_BYTES);
    for (uint32_t i = 0; i < operation->pins_count; i++)
        holdings->source_bytes += hl_pins_bytes(operation->pins[i]);
    holdings->of_binding[operation->binding - session->bindings]++;
}

static void add_up(const struct manager_session *session, struct holdings *holdings)
{
    *holdings = (struct holdings){0};
    for (uint32_t i = 0; i < HL_GRANT_RECORDS; i++)
        if (session->operations[i])
            add_operation(holdings, session, session->operations[i]);
}

static uint32_t permits_held(const hl_manager *manager, const struct manager_gpu *gpu)
{
    uint32_t held = 0;
    for (uint32_t i = 0; i < HL_SESSIONS; i++)
        for (uint32_t j = 0; j < HL_GRANT_RECORDS; j++)
            held += manager->sessions[i].operations[j] && manager->sessions[i].operations[j]->gpu == gpu;
    return held;
}

/* --- comparing --- */

static hl_status compare(const char *what, uint32_t of, uint64_t counted, uint64_t owned, hl_error *err)
{
    if (counted == owned)
        return HL_OK;
    return HL_FAIL(err, HL_E_STATE, stage, "%s %u: %" PRIu64 " are counted, owners have %" PRIu64, what, of,
                   counted, owned);
}

static hl_status compare_all(const char *what, uint64_t counted, uint64_t owned, hl_error *err)
{
    if (counted == owned)
        return HL_OK;
    return HL_FAIL(err, HL_E_STATE, stage, "%s: %" PRIu64 " are counted, owners have %" PRIu64, what, counted,
                   owned);
}

static hl_status check_session(const struct manager_session *session, hl_error *err)
{
    struct holdings owned;
    const uint32_t index = session->index;
    add_up(session, &owned);
    hl_status status =
        compare("operations of session", index, session->operation_count, owned.operations, err);
    if (status == HL_OK)
        status =
            compare("quarantined operations of session", index, session->quarantined, owned.quarantined, err);
    if (status == HL_OK)
        status = compare("plan_bytes of session", index, hl_budget_used(&session->plan_bytes),
                         owned.plan_bytes, err);
    if (status == HL_OK)
        status = compare("bank bytes of session", index, hl_bank_used(session->bank), owned.bank_bytes, err);
    for (uint32_t i = 0; i < HL_SESSION_BINDINGS && status == HL_OK; i++) {
        status =
            compare("operations of binding", i, session->bindings[i].operations, owned.of_binding[i], err);
        if (status == HL_OK && owned.of_binding[i] != 0 && !session->bindings[i].live)
            status = HL_FAIL(err, HL_E_STATE, stage, "binding %u of session %u is gone and has %u operations",
                             i, index, owned.of_binding[i]);
    }
    if (status == HL_OK)
        status = compare("publishes of session", index, manager_session_publishes(session),
                         (uint64_t)__builtin_popcountll(session->publish_slots), err);
    return status;
}

/* Sources: what budgets count is what leases and operations pin. */
static hl_status check_sources(const hl_manager *manager, hl_error *err)
{
    struct hl_leases_stats leases;
    uint64_t reserved = 0, handed = 0;
    hl_leases_get_stats(manager->leases, &leases);
    for (uint32_t i = 0; i < HL_SESSIONS; i++) {
        struct holdings owned;
        if (!manager->sessions[i].grants)
            continue;
        add_up(&manager->sessions[i], &owned);
        reserved += hl_budget_used(&manager->sessions[i].bytes);
        handed += owned.source_bytes;
    }
    hl_status status = compare_all("source bytes of operations", leases.handed_bytes, handed, err);
    return status != HL_OK ? status
                           : compare_all("reserved bytes", reserved, leases.bytes + leases.handed_bytes, err);
}

/* Arena space: a block has one allocation, and one that is being written may have it already. */
static hl_status check_arenas(const hl_manager *manager, hl_error *err)
{
    struct hl_index_stats blocks;
    uint64_t live = 0;
    hl_index_get_stats(manager->index, &blocks);
    for (uint32_t i = 0; i < manager->arena_count; i++) {
        struct hl_arena_stats stats;
        hl_arena_get_stats(manager->arenas[i], &stats);
        live += stats.live;
    }
    if (live < blocks.present + manager->leaked_blocks ||
        live > blocks.present + blocks.writing + manager->leaked_blocks)
        return HL_FAIL(err, HL_E_STATE, stage,
                       "arena allocations: %" PRIu64 " live for %" PRIu64 " blocks and %" PRIu64
                       " being written",
                       live, blocks.present, blocks.writing);
    return HL_OK;
}

/* Rooms say what they found with a code of their own. */
static hl_status as_state(hl_status status, hl_error *err)
{
    if (status != HL_OK && err)
        err->status = HL_E_STATE;
    return status != HL_OK ? HL_E_STATE : HL_OK;
}

hl_status manager_check_locked(const hl_manager *manager, hl_error *err)
{
    hl_status status = HL_OK;
    for (uint32_t i = 0; i < HL_SESSIONS && status == HL_OK; i++)
        if (manager->sessions[i].grants)
            status = check_session(&manager->sessions[i], err);
    for (uint32_t i = 0; i < manager->gpu_count && status == HL_OK; i++)
        status = compare("permits of GPU", i, hl_budget_used(&manager->gpus[i].permits),
                         permits_held(manager, &manager->gpus[i]), err);
    if (status == HL_OK)
        status = check_sources(manager, err);
    if (status == HL_OK)
        status = check_arenas(manager, err);
    if (status == HL_OK)
        status = as_state(hl_index_check(manager->index, err), err);
    if (status == HL_OK)
        status = as_state(hl_leases_check(manager->leases, err), err);
    return status;
}

/* --- the snapshot --- */

static void count_session(const struct manager_session *session, hl_manager_snapshot *snapshot)
{
    if (session->state == MANAGER_SESSION_EMPTY)
        return;
    if (session->state == MANAGER_SESSION_UNRESOLVED)
        snapshot->unresolved++;
    else
        snapshot->sessions++;
    for (uint32_t i = 0; i < HL_SESSION_BINDINGS; i++)
        snapshot->bindings += session->bindings[i].live;
    snapshot->operations += session->operation_count;
    snapshot->quarantined += session->quarantined;
    snapshot->reserved_bytes += hl_budget_used(&session->bytes);
    snapshot->plan_bytes += hl_budget_used(&session->plan_bytes);
}

void manager_take_snapshot(const hl_manager *manager, hl_manager_snapshot *snapshot)
{
    struct hl_leases_stats leases;
    struct hl_index_stats blocks;
    *snapshot = manager->counters;
    snapshot->epoch = manager->epoch;
    for (uint32_t i = 0; i < HL_SESSIONS; i++)
        count_session(&manager->sessions[i], snapshot);
    hl_leases_get_stats(manager->leases, &leases);
    snapshot->leases = (uint32_t)leases.live;
    hl_index_get_stats(manager->index, &blocks);
    snapshot->blocks = blocks.present;
    snapshot->block_bytes = blocks.present_bytes;
    for (uint32_t i = 0; i < manager->arena_count; i++) {
        struct hl_arena_stats arena;
        hl_arena_get_stats(manager->arenas[i], &arena);
        snapshot->arena_bytes += arena.bytes;
        snapshot->arena_used_bytes += arena.used_bytes;
    }
}
