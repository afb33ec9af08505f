#include "manager/operation.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "faults/hook.h"

static const uint64_t a_day_ns = 24ull * 60 * 60 * 1000 * 1000 * 1000;

void manager_operation_install(struct manager_operation *operation)
{
    struct manager_session *session = operation->session;
    assert(!operation->installed && !session->operations[operation->identity.record]);
    HL_FAULT_STORE(manager_owner_install, session->operations[operation->identity.record] = operation);
    session->operation_count++;
    operation->binding->operations++;
    operation->installed = true;
}

void manager_operation_release(hl_manager *manager, struct manager_operation *operation)
{
    struct manager_session *session = operation->session;
    manager_part_withdraw(operation);
    manager_part_consumed(operation);
    for (uint32_t i = 0; i < operation->pins_count; i++)
        HL_FAULT_STORE(manager_sources_release, hl_pins_release(manager->leases, operation->pins[i]));
    if (operation->plan_bytes > 0)
        HL_FAULT_STORE(manager_plan_bytes_give, hl_budget_give(&session->plan_bytes, operation->plan_bytes));
    if (operation->gpu)
        HL_FAULT_STORE(manager_permit_give, hl_budget_give(&operation->gpu->permits, 1));
    if (operation->installed) {
        assert(session->operations[operation->identity.record] == operation);
        assert(session->operation_count > 0 && operation->binding->operations > 0);
        HL_FAULT_STORE(manager_owner_remove, session->operations[operation->identity.record] = NULL);
        session->operation_count--;
        operation->binding->operations--;
    }
    if (operation->phase == MANAGER_QUARANTINED) {
        assert(session->quarantined > 0);
        session->quarantined--;
    }
    hl_plan_free(operation->plan);
    free(operation);
}

static bool stages_are_valid(const uint64_t stage_ns[HL_STAGE_COUNT])
{
    uint64_t before = 0;
    for (unsigned i = 0; i < HL_STAGE_COUNT; before = stage_ns[i++])
        if (stage_ns[i] < before || stage_ns[i] > a_day_ns)
            return false;
    return before > 0;
}

bool manager_completion_read(const struct hl_grant_record *copy, uint32_t generation,
                             struct manager_completion *completion)
{
    uint64_t word = atomic_load_explicit(&copy->word, memory_order_relaxed);
    if (word != ((uint64_t)generation << 32 | HL_GRANT_DRAINED) || !hl_grant_record_is_sane(copy))
        return false;
    *completion = (struct manager_completion){.status = (hl_status)copy->status};
    memcpy(completion->text, copy->text, sizeof completion->text);
    completion->traced = stages_are_valid(copy->stage_ns);
    if (completion->traced)
        memcpy(completion->stage_ns, copy->stage_ns, sizeof completion->stage_ns);
    return true;
}
