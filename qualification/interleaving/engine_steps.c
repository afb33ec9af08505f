/* The engine's steps, as engine/restore.c, operation.c and retire.c take them; and the device's and death's.
 */
#include <string.h>

#include "core/testing/cunit.h"
#include "qualification/interleaving/stage.h"

static bool engine_is(const struct stage *stage, unsigned record, enum engine_at at)
{
    return !stage->engine_dead && stage->sides[record].engine_at == (uint32_t)at;
}

static bool move(struct stage *stage, unsigned record, enum hl_grant_state from, enum hl_grant_state to)
{
    return hl_grant_move(stage->memory, record, stage->sides[record].engine_generation, from, to);
}

/* A move that nobody can have come before. */
static void must_move(struct stage *stage, unsigned record, enum hl_grant_state from, enum hl_grant_state to)
{
    if (!move(stage, record, from, to))
        stage->violation = "I4: the engine's record was moved by somebody else";
}

static bool can_reserve(const struct stage *stage, unsigned record)
{
    return engine_is(stage, record, E_IDLE) && stage_state(stage, record) == HL_GRANT_FREE &&
           stage->sides[record].operations < stage->scenario.operations;
}

static void reserve(struct stage *stage, unsigned record)
{
    struct memory_of_sides *side = &stage->sides[record];
    side->engine_generation = hl_grant_load(stage->memory, record).generation;
    must_move(stage, record, HL_GRANT_FREE, HL_GRANT_RESERVED);
    side->engine_at = E_RESERVED;
    side->operations++;
    side->parts = side->asked = side->drained = 0;
}

static bool can_announce(const struct stage *stage, unsigned record)
{
    return engine_is(stage, record, E_RESERVED);
}

static void announce(struct stage *stage, unsigned record)
{
    struct hl_grant_record *shared = hl_grant_record_at(stage->memory, record);
    uint32_t generation = stage->sides[record].engine_generation;
    shared->descriptor_offset = generation;
    atomic_store_explicit(&shared->cancel, 0, memory_order_relaxed);
    atomic_store_explicit(&shared->consumed, 0, memory_order_relaxed);
    atomic_store_explicit(&shared->submitted, generation, memory_order_release);
    stage->sides[record].engine_at = E_WAITING;
}

static bool can_take_back(const struct stage *stage, unsigned record)
{
    return stage->scenario.cancel && engine_is(stage, record, E_WAITING) &&
           stage_state(stage, record) == HL_GRANT_RESERVED;
}

static void take_back(struct stage *stage, unsigned record)
{
    must_move(stage, record, HL_GRANT_RESERVED, HL_GRANT_FREE);
    stage->sides[record].engine_at = E_IDLE;
}

/* RESERVED or PREPARING was seen at any time before. */
static bool can_cancel(const struct stage *stage, unsigned record)
{
    return stage->scenario.cancel && engine_is(stage, record, E_WAITING) && !stage->sides[record].asked &&
           stage->sides[record].parts == 0;
}

static void cancel(struct stage *stage, unsigned record)
{
    atomic_store_explicit(&hl_grant_record_at(stage->memory, record)->cancel,
                          stage->sides[record].engine_generation, memory_order_release);
    stage->sides[record].asked = 1;
}

static bool sees_grant(const struct stage *stage, unsigned record)
{
    return engine_is(stage, record, E_WAITING) && stage_state(stage, record) == HL_GRANT_GRANTED;
}

static void take_up_grant(struct stage *stage, unsigned record)
{
    stage->sides[record].engine_at = E_CLAIMING;
}

static bool can_claim(const struct stage *stage, unsigned record)
{
    return engine_is(stage, record, E_CLAIMING);
}

static void claim(struct stage *stage, unsigned record)
{
    bool won = move(stage, record, HL_GRANT_GRANTED, HL_GRANT_ACTIVE);
    stage->sides[record].engine_at = won ? E_ACTIVE : E_WAITING;
}

static bool can_submit(const struct stage *stage, unsigned record)
{
    return engine_is(stage, record, E_ACTIVE);
}

/* The bank holds what names the part: record, generation, part. */
static void submit(struct stage *stage, unsigned record)
{
    struct memory_of_sides *side = &stage->sides[record];
    struct hl_grant_record grant;
    uint32_t plan[3];
    hl_error err;
    hl_grant_copy(stage->memory, record, &grant);
    if (!hl_grant_record_is_sane(&grant) || grant.part_index != side->parts)
        stage->violation = "I4: the grant is not the next part of this request";
    memcpy(plan, (unsigned char *)hl_grant_bank(stage->memory) + grant.bank_offset, sizeof plan);
    if (plan[0] != record || plan[1] != side->engine_generation || plan[2] != side->parts)
        stage->violation = "the bank has another part";
    HL_REQUIRE_OK(stage->dev->ops->copy(stage->dev, HL_COPY_H2D, stage_page(stage, record, side->parts),
                                        (uintptr_t)stage_source(stage, record, side->parts), STAGE_PART_BYTES,
                                        stage->streams[record], &err),
                  err);
    if (side->in_flight++ == 0)
        side->first_in_flight = side->parts;
    side->parts++;
    atomic_store_explicit(&hl_grant_record_at(stage->memory, record)->consumed, side->parts,
                          memory_order_release);
    side->engine_at = E_COPYING;
}

static bool sees_drained(const struct stage *stage, unsigned record)
{
    hl_error err;
    if (!engine_is(stage, record, E_COPYING))
        return false;
    return stage->defect == EARLY_DRAIN ||
           stage->dev->ops->stream_query(stage->dev, stage->streams[record], &err) == HL_OK;
}

static void end_part(struct stage *stage, unsigned record)
{
    struct memory_of_sides *side = &stage->sides[record];
    if (side->parts == stage->scenario.parts) {
        struct hl_grant_record *shared = hl_grant_record_at(stage->memory, record);
        shared->status = HL_OK;
        shared->bytes = (uint64_t)side->parts * STAGE_PART_BYTES;
        side->engine_at = E_WRITTEN;
        return;
    }
    must_move(stage, record, HL_GRANT_ACTIVE, HL_GRANT_PART_DRAINED);
    side->engine_at = E_WAITING;
}

static bool can_drain(const struct stage *stage, unsigned record)
{
    return engine_is(stage, record, E_WRITTEN);
}

static void drain(struct stage *stage, unsigned record)
{
    must_move(stage, record, HL_GRANT_ACTIVE, HL_GRANT_DRAINED);
    stage->sides[record].engine_at = E_RETIRING;
    stage->sides[record].drained = 1;
}

static bool sees_outcome(const struct stage *stage, unsigned record)
{
    enum hl_grant_state state = stage_state(stage, record);
    return engine_is(stage, record, E_WAITING) &&
           (state == HL_GRANT_REVOKED || state == HL_GRANT_REJECTED || state == HL_GRANT_REAPED);
}

static void take_outcome(struct stage *stage, unsigned record)
{
    struct hl_grant_record copy;
    hl_grant_copy(stage->memory, record, &copy);
    if (!hl_grant_record_is_sane(&copy) || (copy.status != HL_E_CANCELLED && copy.status != HL_E_EXPIRED))
        stage->violation = "the outcome is not the Manager's";
    stage->sides[record].engine_at = E_RETIRING;
}

static bool can_retire(const struct stage *stage, unsigned record)
{
    return engine_is(stage, record, E_RETIRING) && stage_state(stage, record) == HL_GRANT_REAPED;
}

static void retire(struct stage *stage, unsigned record)
{
    must_move(stage, record, HL_GRANT_REAPED, HL_GRANT_FREE);
    stage->sides[record].engine_at = E_IDLE;
}

const struct step engine_steps[] = {
    {"engine reserves", can_reserve, reserve},
    {"engine announces", can_announce, announce},
    {"engine takes back", can_take_back, take_back},
    {"engine asks to cancel", can_cancel, cancel},
    {"engine sees the grant", sees_grant, take_up_grant},
    {"engine claims", can_claim, claim},
    {"engine takes the part and submits", can_submit, submit},
    {"engine sees the part drained", sees_drained, end_part},
    {"engine ends the operation", can_drain, drain},
    {"engine takes the Manager's outcome", sees_outcome, take_outcome},
    {"engine retires", can_retire, retire},
};
const unsigned engine_step_count = sizeof engine_steps / sizeof engine_steps[0];

/* --- the device, which goes on after a death --- */

static bool is_copying(const struct stage *stage, unsigned record)
{
    return stage->sides[record].in_flight > 0;
}

/* The record's place among the streams that can go on, which the device counts in the order of their making.
 */
static void copy(struct stage *stage, unsigned record)
{
    int choice = record == 1 && stage->sides[0].in_flight > 0 ? 1 : 0;
    if (hl_software_step(stage->dev, choice) == 0)
        stage->violation = "the device has nothing to do";
    stage->sides[record].in_flight--;
    stage->sides[record].first_in_flight++;
}

static bool may_die(const struct stage *stage, unsigned record)
{
    return record == 0 && stage->scenario.death && !stage->engine_dead;
}

static void die(struct stage *stage, unsigned record)
{
    (void)record;
    stage->engine_dead = 1;
}

const struct step world_steps[] = {
    {"device copies", is_copying, copy},
    {"engine dies", may_die, die},
};
const unsigned world_step_count = sizeof world_steps / sizeof world_steps[0];
