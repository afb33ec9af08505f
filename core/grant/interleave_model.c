#include "core/grant/interleave_model.h"

/* Record fields are read and written in m->record; m->w holds them as they were before the step. */
static bool move(struct model *m, uint32_t generation, enum hl_grant_state from, enum hl_grant_state to)
{
    return hl_grant_move(m->memory, 0, generation, from, to);
}

/* --- engine --- */

static bool engine_is(const struct world *w, enum engine_at at)
{
    return !w->engine_dead && w->engine_at == at;
}

static bool can_reserve(const struct world *w)
{
    return engine_is(w, E_IDLE) && w->state == HL_GRANT_FREE && w->operations < MODEL_OPERATIONS;
}

static void reserve(struct model *m)
{
    m->w.engine_generation = m->w.generation;
    if (!move(m, m->w.generation, HL_GRANT_FREE, HL_GRANT_RESERVED))
        return;
    m->w.engine_at = E_RESERVED;
    m->w.operations++;
    m->w.asked_cancel = 0;
    m->w.holds_pages = 1;
}

static bool can_submit(const struct world *w)
{
    return engine_is(w, E_RESERVED);
}

static void submit(struct model *m)
{
    if (m->defect != CANCEL_NOT_CLEARED)
        atomic_store(&m->record->cancel, 0);
    atomic_store(&m->record->consumed, 0);
    atomic_store(&m->record->submitted, m->w.engine_generation);
    m->w.engine_at = E_WAITING;
}

static bool can_give_up(const struct world *w)
{
    return engine_is(w, E_RESERVED) || engine_is(w, E_WAITING);
}

static void give_up(struct model *m)
{
    if (!move(m, m->w.engine_generation, HL_GRANT_RESERVED, HL_GRANT_FREE))
        return;
    m->w.holds_pages = 0;
    m->w.engine_at = E_IDLE;
}

static bool can_ask_cancel(const struct world *w)
{
    return engine_is(w, E_WAITING) && !w->asked_cancel;
}

static void ask_cancel(struct model *m)
{
    m->w.asked_cancel = 1;
    atomic_store(&m->record->cancel, m->w.engine_generation);
}

static bool sees_grant(const struct world *w)
{
    return engine_is(w, E_WAITING) && w->state == HL_GRANT_GRANTED;
}

static void take_up_grant(struct model *m)
{
    m->w.engine_at = E_CLAIMING;
}

static bool can_claim(const struct world *w)
{
    return engine_is(w, E_CLAIMING);
}

static void claim(struct model *m)
{
    bool won = move(m, m->w.engine_generation, HL_GRANT_GRANTED, HL_GRANT_ACTIVE);
    m->w.engine_at = won ? E_ACTIVE : E_WAITING;
}

static bool is_active(const struct world *w)
{
    return engine_is(w, E_ACTIVE);
}

static void start_copy(struct model *m)
{
    m->w.last_part = m->record->part_index + 1 == m->record->part_count;
    atomic_fetch_add(&m->record->consumed, 1);
    m->w.in_flight = 1;
    m->w.engine_at = E_COPYING;
}

static void refuse_plan(struct model *m)
{
    m->w.engine_result = m->record->status = HL_E_CORRUPT;
    m->w.engine_at = E_WRITTEN;
}

static bool sees_part_drained(const struct world *w)
{
    return engine_is(w, E_COPYING) && w->in_flight == 0 && !w->last_part;
}

static void end_part(struct model *m)
{
    if (move(m, m->w.engine_generation, HL_GRANT_ACTIVE, HL_GRANT_PART_DRAINED))
        m->w.engine_at = E_WAITING;
}

static bool sees_all_drained(const struct world *w)
{
    return engine_is(w, E_COPYING) && w->in_flight == 0 && w->last_part;
}

static void write_result(struct model *m)
{
    m->w.engine_result = m->record->status = HL_OK;
    m->w.engine_at = E_WRITTEN;
}

static bool has_written(const struct world *w)
{
    return engine_is(w, E_WRITTEN);
}

static void end_operation(struct model *m)
{
    if (!move(m, m->w.engine_generation, HL_GRANT_ACTIVE, HL_GRANT_DRAINED))
        return;
    m->w.holds_pages = 0;
    m->w.engine_at = E_RETIRING;
}

static bool sees_managers_outcome(const struct world *w)
{
    return engine_is(w, E_WAITING) && (w->state == HL_GRANT_REJECTED || w->state == HL_GRANT_REVOKED ||
                                       w->state == HL_GRANT_COMPLETED || w->state == HL_GRANT_REAPED);
}

static void take_managers_outcome(struct model *m)
{
    m->w.engine_result = m->record->status;
    m->w.holds_pages = 0;
    m->w.engine_at = E_RETIRING;
}

static bool can_retire(const struct world *w)
{
    return engine_is(w, E_RETIRING) && w->state == HL_GRANT_REAPED;
}

static void retire(struct model *m)
{
    if (move(m, m->w.engine_generation, HL_GRANT_REAPED, HL_GRANT_FREE))
        m->w.engine_at = E_IDLE;
}

static bool engine_lives(const struct world *w)
{
    return !w->engine_dead;
}

static void engine_dies(struct model *m)
{
    m->w.engine_dead = 1;
}

/* --- Manager --- */

static bool manager_is(const struct world *w, enum manager_at at)
{
    return !w->manager_dead && w->manager_at == at;
}

static bool sees_request(const struct world *w)
{
    return manager_is(w, M_IDLE) && w->state == HL_GRANT_RESERVED && w->submitted == w->generation;
}

static void take_up_request(struct model *m)
{
    m->w.manager_generation = m->w.generation;
    m->w.manager_at = M_CLAIMING;
}

static bool can_prepare(const struct world *w)
{
    return manager_is(w, M_CLAIMING);
}

static void prepare(struct model *m)
{
    if (m->defect == CURRENT_GENERATION)
        m->w.manager_generation = m->w.generation;
    bool won = move(m, m->w.manager_generation, HL_GRANT_RESERVED, HL_GRANT_PREPARING);
    m->w.manager_at = won ? M_PREPARING : M_IDLE;
}

static bool is_preparing(const struct world *w)
{
    return manager_is(w, M_PREPARING);
}

static bool is_cancelled(const struct world *w)
{
    return is_preparing(w) && w->cancel == w->generation;
}

static void cancel(struct model *m)
{
    m->record->status = HL_E_CANCELLED;
    m->w.manager_at = M_REJECTING;
}

static void refuse(struct model *m)
{
    m->record->status = HL_E_BUDGET;
    m->w.manager_at = M_REJECTING;
}

static bool is_rejecting(const struct world *w)
{
    return manager_is(w, M_REJECTING);
}

static void reject(struct model *m)
{
    if (move(m, m->w.manager_generation, HL_GRANT_PREPARING, HL_GRANT_REJECTED))
        m->w.manager_at = M_RUNNING;
}

static bool can_accept(const struct world *w)
{
    return is_preparing(w) && !is_cancelled(w);
}

static void accept_raw(struct model *m)
{
    m->w.credit = 1;
    m->record->part_index = 0;
    m->record->part_count = MODEL_PARTS;
    m->record->bank_offset = 0;
    m->record->bank_bytes = 64;
    m->record->status = HL_E_EXPIRED; /* what a revocation will say */
    m->w.manager_at = m->defect == OWNER_AFTER_GRANT ? M_GRANTING : M_OWNING;
}

static bool is_owning(const struct world *w)
{
    return manager_is(w, M_OWNING);
}

static void install_owner(struct model *m)
{
    m->w.owner = 1;
    m->w.manager_at = m->defect == OWNER_AFTER_GRANT ? M_RUNNING : M_GRANTING;
}

static bool is_granting(const struct world *w)
{
    return manager_is(w, M_GRANTING);
}

static void grant(struct model *m)
{
    if (!move(m, m->w.manager_generation, HL_GRANT_PREPARING, HL_GRANT_GRANTED) &&
        !move(m, m->w.manager_generation, HL_GRANT_PART_DRAINED, HL_GRANT_GRANTED))
        return;
    m->w.manager_at = m->defect == OWNER_AFTER_GRANT && !m->w.owner ? M_OWNING : M_RUNNING;
}

static void accept_managed(struct model *m)
{
    m->w.credit = m->w.owner = 1;
    if (move(m, m->w.manager_generation, HL_GRANT_PREPARING, HL_GRANT_MANAGED))
        m->w.manager_at = M_WORKING;
}

static bool is_working(const struct world *w)
{
    return manager_is(w, M_WORKING);
}

static void work(struct model *m)
{
    m->record->status = HL_OK;
    m->w.manager_at = M_WORKED;
}

static bool has_worked(const struct world *w)
{
    return manager_is(w, M_WORKED);
}

static void complete(struct model *m)
{
    if (move(m, m->w.manager_generation, HL_GRANT_MANAGED, HL_GRANT_COMPLETED))
        m->w.manager_at = M_RUNNING;
}

static bool sees_part(const struct world *w)
{
    return manager_is(w, M_RUNNING) && w->state == HL_GRANT_PART_DRAINED;
}

static bool can_grant_next(const struct world *w)
{
    return sees_part(w) && !w->engine_dead;
}

static void prepare_next(struct model *m)
{
    m->record->part_index++;
    m->record->status = HL_E_EXPIRED;
    m->w.manager_at = M_GRANTING;
}

static void decide_to_revoke_part(struct model *m)
{
    m->record->status = HL_E_CANCELLED;
    m->w.manager_at = M_REVOKING_PART;
}

static bool is_revoking_part(const struct world *w)
{
    return manager_is(w, M_REVOKING_PART);
}

static void revoke_part(struct model *m)
{
    if (move(m, m->w.manager_generation, HL_GRANT_PART_DRAINED, HL_GRANT_REVOKED))
        m->w.manager_at = M_RUNNING;
}

static bool sees_unclaimed(const struct world *w)
{
    return manager_is(w, M_RUNNING) && w->state == HL_GRANT_GRANTED;
}

static void decide_to_revoke(struct model *m)
{
    m->w.manager_at = M_REVOKING;
}

static bool is_revoking(const struct world *w)
{
    return manager_is(w, M_REVOKING);
}

static void revoke(struct model *m)
{
    if (m->defect == REASON_IN_GRANTED)
        m->record->status = HL_E_EXPIRED;
    move(m, m->w.manager_generation, HL_GRANT_GRANTED, HL_GRANT_REVOKED);
    m->w.manager_at = M_RUNNING;
}

static bool sees_end(const struct world *w)
{
    return manager_is(w, M_RUNNING) && (w->state == HL_GRANT_DRAINED || w->state == HL_GRANT_COMPLETED ||
                                        w->state == HL_GRANT_REVOKED || w->state == HL_GRANT_REJECTED);
}

static void release(struct model *m)
{
    m->w.owner = m->w.credit = 0;
    m->w.manager_at = M_REAPING;
}

static bool is_reaping(const struct world *w)
{
    return manager_is(w, M_REAPING);
}

static void reap(struct model *m)
{
    if (m->defect == FORGOTTEN_REAP ||
        move(m, m->w.manager_generation, (enum hl_grant_state)m->w.state, HL_GRANT_REAPED))
        m->w.manager_at = M_IDLE;
}

static bool sees_orphan(const struct world *w)
{
    return manager_is(w, M_RUNNING) && w->engine_dead && w->state == HL_GRANT_ACTIVE && !w->quarantined;
}

static void quarantine(struct model *m)
{
    m->w.quarantined = 1;
    if (m->defect == RELEASE_AFTER_DEATH)
        m->w.owner = m->w.credit = 0;
}

static bool manager_lives(const struct world *w)
{
    return !w->manager_dead;
}

static void manager_dies(struct model *m)
{
    m->w.manager_dead = 1;
}

/* --- device: goes on after both have died --- */

static bool is_copying(const struct world *w)
{
    return w->in_flight > 0;
}

static void drain(struct model *m)
{
    m->w.in_flight = 0;
}

const struct rule model_rules[] = {
    {"engine reserves", can_reserve, reserve},
    {"engine submits", can_submit, submit},
    {"engine gives up", can_give_up, give_up},
    {"engine asks to cancel", can_ask_cancel, ask_cancel},
    {"engine sees the grant", sees_grant, take_up_grant},
    {"engine claims", can_claim, claim},
    {"engine submits copies", is_active, start_copy},
    {"engine refuses the plan", is_active, refuse_plan},
    {"engine ends a part", sees_part_drained, end_part},
    {"engine writes the result", sees_all_drained, write_result},
    {"engine ends the operation", has_written, end_operation},
    {"engine takes the Manager's outcome", sees_managers_outcome, take_managers_outcome},
    {"engine retires", can_retire, retire},
    {"engine dies", engine_lives, engine_dies},
    {"Manager sees the request", sees_request, take_up_request},
    {"Manager claims the descriptor", can_prepare, prepare},
    {"Manager cancels", is_cancelled, cancel},
    {"Manager refuses", is_preparing, refuse},
    {"Manager rejects", is_rejecting, reject},
    {"Manager accepts", can_accept, accept_raw},
    {"Manager installs the owner", is_owning, install_owner},
    {"Manager grants", is_granting, grant},
    {"Manager takes the work itself", can_accept, accept_managed},
    {"Manager works", is_working, work},
    {"Manager completes", has_worked, complete},
    {"Manager prepares the next part", can_grant_next, prepare_next},
    {"Manager decides to revoke after a part", sees_part, decide_to_revoke_part},
    {"Manager revokes after a part", is_revoking_part, revoke_part},
    {"Manager decides to revoke", sees_unclaimed, decide_to_revoke},
    {"Manager revokes", is_revoking, revoke},
    {"Manager releases the sources", sees_end, release},
    {"Manager reaps", is_reaping, reap},
    {"Manager quarantines", sees_orphan, quarantine},
    {"Manager dies", manager_lives, manager_dies},
    {"device drains", is_copying, drain},
};

const unsigned model_rule_count = sizeof model_rules / sizeof model_rules[0];
