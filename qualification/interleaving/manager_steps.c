/* The Manager's steps, as manager/grants.c, parts.c and quarantine.c take them. */
#include <string.h>

#include "qualification/interleaving/stage.h"

static bool manager_is(const struct stage *stage, unsigned record, enum manager_at at)
{
    return stage->sides[record].manager_at == (uint32_t)at;
}

static bool move(struct stage *stage, unsigned record, enum hl_grant_state from, enum hl_grant_state to)
{
    return hl_grant_move(stage->memory, record, stage->sides[record].manager_generation, from, to);
}

static void must_move(struct stage *stage, unsigned record, enum hl_grant_state from, enum hl_grant_state to)
{
    if (!move(stage, record, from, to))
        stage->violation = "I4: the Manager's record was moved by somebody else";
}

static bool is_refused(const struct stage *stage, unsigned record)
{
    const struct hl_grant_record *shared = hl_grant_record_at(stage->memory, record);
    return stage->death_seen || atomic_load_explicit(&shared->cancel, memory_order_acquire) ==
                                    stage->sides[record].manager_generation;
}

static void give_bank(struct stage *stage, unsigned record)
{
    struct memory_of_sides *side = &stage->sides[record];
    if (side->bank_held)
        hl_bank_give(stage->bank, side->bank_offset, STAGE_PART_BYTES);
    side->bank_held = side->bank_offset = 0;
}

/* Another block's bytes may come at once. */
static void release_sources(struct stage *stage, unsigned record)
{
    if (!stage->sides[record].owner)
        stage->violation = "I2: released twice";
    stage->sides[record].owner = 0;
    memset(stage_source(stage, record, 0), 0xee, STAGE_PARTS * STAGE_PART_BYTES);
}

/* The record has its outcome: what is left is release and REAPED, in two steps. */
static void close_from(struct stage *stage, unsigned record, enum hl_grant_state from)
{
    stage->sides[record].manager_at = M_CLOSING;
    stage->sides[record].closes_from = from;
}

/* --- the request --- */

static bool sees_request(const struct stage *stage, unsigned record)
{
    struct hl_grant_word word = hl_grant_load(stage->memory, record);
    const struct hl_grant_record *shared = hl_grant_record_at(stage->memory, record);
    return manager_is(stage, record, M_IDLE) && word.state == HL_GRANT_RESERVED &&
           atomic_load_explicit(&shared->submitted, memory_order_acquire) == word.generation;
}

static void take_up_request(struct stage *stage, unsigned record)
{
    stage->sides[record].manager_generation = hl_grant_load(stage->memory, record).generation;
    stage->sides[record].manager_at = M_CLAIMING;
}

static bool can_claim(const struct stage *stage, unsigned record)
{
    return manager_is(stage, record, M_CLAIMING);
}

static void claim(struct stage *stage, unsigned record)
{
    struct memory_of_sides *side = &stage->sides[record];
    const struct hl_grant_record *shared = hl_grant_record_at(stage->memory, record);
    if (stage->defect == STALE_CLAIM)
        side->manager_generation = hl_grant_load(stage->memory, record).generation;
    if (!move(stage, record, HL_GRANT_RESERVED, HL_GRANT_PREPARING)) {
        side->manager_at = M_IDLE;
        return;
    }
    side->manager_at = M_PREPARING;
    if (shared->descriptor_offset != side->manager_generation)
        stage->violation = "I4: a descriptor of another generation was claimed";
}

static bool can_prepare(const struct stage *stage, unsigned record)
{
    return manager_is(stage, record, M_PREPARING);
}

static void prepare(struct stage *stage, unsigned record)
{
    struct memory_of_sides *side = &stage->sides[record];
    if (is_refused(stage, record)) {
        hl_grant_record_at(stage->memory, record)->status = HL_E_CANCELLED;
        must_move(stage, record, HL_GRANT_PREPARING, HL_GRANT_REJECTED);
        close_from(stage, record, HL_GRANT_REJECTED);
        return;
    }
    for (uint32_t part = 0; part < stage->scenario.parts; part++)
        memset(stage_source(stage, record, part), stage_pattern(record, side->manager_generation, part),
               STAGE_PART_BYTES);
    side->owner = stage->defect != OWNER_AFTER_GRANT;
    side->part = 0;
    side->manager_at = M_OWNING;
}

/* --- parts --- */

static bool offers(const struct stage *stage, unsigned record)
{
    bool waits = manager_is(stage, record, M_OWNING) || manager_is(stage, record, M_BETWEEN);
    return waits && !is_refused(stage, record) && hl_bank_used(stage->bank) == 0;
}

static void grant(struct stage *stage, unsigned record)
{
    struct memory_of_sides *side = &stage->sides[record];
    struct hl_grant_record *shared = hl_grant_record_at(stage->memory, record);
    const uint32_t plan[3] = {record, side->manager_generation, side->part};
    if (!hl_bank_take(stage->bank, STAGE_PART_BYTES, &side->bank_offset))
        stage->violation = "I2: the bank has lost its room";
    side->bank_held = 1;
    memcpy((unsigned char *)hl_grant_bank(stage->memory) + side->bank_offset, plan, sizeof plan);
    shared->part_index = (uint16_t)side->part;
    shared->part_count = (uint16_t)stage->scenario.parts;
    shared->bank_offset = side->bank_offset;
    shared->bank_bytes = STAGE_PART_BYTES;
    shared->status = HL_E_EXPIRED; /* what a revocation will say */
    must_move(stage, record, side->manager_at == M_OWNING ? HL_GRANT_PREPARING : HL_GRANT_PART_DRAINED,
              HL_GRANT_GRANTED);
    side->manager_at = M_GRANTED;
}

static bool refuses_waiting(const struct stage *stage, unsigned record)
{
    bool waits = manager_is(stage, record, M_OWNING) || manager_is(stage, record, M_BETWEEN);
    return waits && is_refused(stage, record);
}

static void refuse_waiting(struct stage *stage, unsigned record)
{
    bool prepared = stage->sides[record].manager_at == M_OWNING;
    enum hl_grant_state to = prepared ? HL_GRANT_REJECTED : HL_GRANT_REVOKED;
    hl_grant_record_at(stage->memory, record)->status = HL_E_CANCELLED;
    must_move(stage, record, prepared ? HL_GRANT_PREPARING : HL_GRANT_PART_DRAINED, to);
    close_from(stage, record, to);
}

static bool sees_consumed(const struct stage *stage, unsigned record)
{
    const struct memory_of_sides *side = &stage->sides[record];
    const struct hl_grant_record *shared = hl_grant_record_at(stage->memory, record);
    uint32_t consumed = atomic_load_explicit(&shared->consumed, memory_order_acquire);
    return manager_is(stage, record, M_GRANTED) && side->bank_held &&
           stage_state(stage, record) == HL_GRANT_ACTIVE &&
           (consumed == side->part + 1 || stage->defect == BANK_AT_CLAIM);
}

static bool sees_part(const struct stage *stage, unsigned record)
{
    return manager_is(stage, record, M_GRANTED) && stage_state(stage, record) == HL_GRANT_PART_DRAINED;
}

static void acknowledge_part(struct stage *stage, unsigned record)
{
    give_bank(stage, record);
    stage->sides[record].part++;
    stage->sides[record].manager_at = M_BETWEEN;
    if (stage->defect == RELEASE_AFTER_PART)
        release_sources(stage, record);
}

static bool late_owner(const struct stage *stage, unsigned record)
{
    return stage->defect == OWNER_AFTER_GRANT && manager_is(stage, record, M_GRANTED) &&
           !stage->sides[record].owner;
}

static void install_owner(struct stage *stage, unsigned record)
{
    stage->sides[record].owner = 1;
}

/* --- the end --- */

static bool decides_to_revoke(const struct stage *stage, unsigned record)
{
    return manager_is(stage, record, M_GRANTED) && stage_state(stage, record) == HL_GRANT_GRANTED &&
           (stage->scenario.revoke || is_refused(stage, record));
}

static void decide_to_revoke(struct stage *stage, unsigned record)
{
    stage->sides[record].manager_at = M_REVOKING;
}

static bool can_revoke(const struct stage *stage, unsigned record)
{
    return manager_is(stage, record, M_REVOKING);
}

static void revoke(struct stage *stage, unsigned record)
{
    struct memory_of_sides *side = &stage->sides[record];
    if (stage->defect == BLIND_REVOKE)
        atomic_store(&hl_grant_record_at(stage->memory, record)->word,
                     (uint64_t)side->manager_generation << 32 | HL_GRANT_REVOKED);
    else if (!move(stage, record, HL_GRANT_GRANTED, HL_GRANT_REVOKED)) {
        side->manager_at = M_GRANTED;
        return;
    }
    close_from(stage, record, HL_GRANT_REVOKED);
}

static bool sees_drained(const struct stage *stage, unsigned record)
{
    return manager_is(stage, record, M_GRANTED) && stage_state(stage, record) == HL_GRANT_DRAINED;
}

static void end_drained(struct stage *stage, unsigned record)
{
    struct hl_grant_record copy;
    hl_grant_copy(stage->memory, record, &copy);
    if (!hl_grant_record_is_sane(&copy) || copy.status != HL_OK ||
        copy.bytes != (uint64_t)stage->scenario.parts * STAGE_PART_BYTES)
        stage->violation = "the result is not the engine's";
    close_from(stage, record, HL_GRANT_DRAINED);
}

static bool is_closing(const struct stage *stage, unsigned record)
{
    return manager_is(stage, record, M_CLOSING);
}

static void close_record(struct stage *stage, unsigned record)
{
    struct memory_of_sides *side = &stage->sides[record];
    if (side->owner) {
        give_bank(stage, record);
        release_sources(stage, record);
        return;
    }
    must_move(stage, record, (enum hl_grant_state)side->closes_from, HL_GRANT_REAPED);
    side->manager_at = M_IDLE;
    side->manager_generation = side->part = side->closes_from = 0;
}

static bool learns_of_death(const struct stage *stage, unsigned record)
{
    return record == 0 && stage->engine_dead && !stage->death_seen;
}

static void learn_of_death(struct stage *stage, unsigned record)
{
    (void)record;
    stage->death_seen = 1;
}

static bool sees_orphan(const struct stage *stage, unsigned record)
{
    return stage->death_seen && manager_is(stage, record, M_GRANTED) &&
           stage_state(stage, record) == HL_GRANT_ACTIVE;
}

static void quarantine(struct stage *stage, unsigned record)
{
    stage->sides[record].manager_at = M_KEPT;
    if (stage->defect == RELEASE_ON_DEATH)
        release_sources(stage, record);
}

const struct step manager_steps[] = {
    {"Manager sees the request", sees_request, take_up_request},
    {"Manager claims the descriptor", can_claim, claim},
    {"Manager prepares or rejects", can_prepare, prepare},
    {"Manager grants a part", offers, grant},
    {"Manager refuses what waits", refuses_waiting, refuse_waiting},
    {"Manager takes the bank's room back", sees_consumed, give_bank},
    {"Manager acknowledges a part", sees_part, acknowledge_part},
    {"Manager installs the owner late", late_owner, install_owner},
    {"Manager decides to revoke", decides_to_revoke, decide_to_revoke},
    {"Manager revokes", can_revoke, revoke},
    {"Manager sees the end", sees_drained, end_drained},
    {"Manager releases, then reaps", is_closing, close_record},
    {"Manager learns of the engine's death", learns_of_death, learn_of_death},
    {"Manager quarantines", sees_orphan, quarantine},
};
const unsigned manager_step_count = sizeof manager_steps / sizeof manager_steps[0];
