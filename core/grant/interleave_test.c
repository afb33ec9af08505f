#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/grant/interleave_model.h"
#include "core/testing/cunit.h"

enum { SLOTS = 1 << 17, MOST = SLOTS / 2 };

/* The worlds reached, each with how it was reached, so that a violation can be told as a story. */
struct reached {
    struct world world;
    uint32_t parent, rule;
};

struct search {
    struct model model;
    struct reached *reached;
    uint32_t *slots; /* open addressing: index into reached + 1 */
    uint32_t count;
    uint32_t ends, quarantines;                             /* worlds without a step but death */
    bool moved[HL_GRANT_STATE_COUNT][HL_GRANT_STATE_COUNT]; /* transitions that were taken */
    const char *violation;
    uint32_t violator;
};

/* --- the record and the world --- */

static void put_record(struct model *m)
{
    const struct world *w = &m->w;
    atomic_store(&m->record->word, hl_grant_word_of(w->generation, w->state));
    atomic_store(&m->record->submitted, w->submitted);
    atomic_store(&m->record->cancel, w->cancel);
    atomic_store(&m->record->consumed, w->consumed);
    m->record->part_index = (uint16_t)w->part_index;
    m->record->part_count = (uint16_t)w->part_count;
    m->record->bank_bytes = w->bank_bytes;
    m->record->status = w->status;
}

static void get_record(struct model *m)
{
    struct hl_grant_word word = hl_grant_load(m->memory, 0);
    struct world *w = &m->w;
    w->generation = word.generation;
    w->state = word.state;
    w->submitted = atomic_load(&m->record->submitted);
    w->cancel = atomic_load(&m->record->cancel);
    w->consumed = atomic_load(&m->record->consumed);
    w->part_index = m->record->part_index;
    w->part_count = m->record->part_count;
    w->bank_bytes = m->record->bank_bytes;
    w->status = m->record->status;
}

/* --- what must hold in every world --- */

/* I4: whoever holds another generation moves nothing, whatever it tries. */
static bool stale_moves_change_nothing(struct model *m)
{
    const unsigned char *record = (const unsigned char *)m->record;
    unsigned char before[sizeof *m->record];
    memcpy(before, record, sizeof before);
    for (uint32_t from = 0; from < HL_GRANT_STATE_COUNT; from++)
        for (uint32_t to = 0; to < HL_GRANT_STATE_COUNT; to++)
            if (hl_grant_transition_exists(from, to) &&
                (hl_grant_move(m->memory, 0, m->w.generation - 1, from, to) ||
                 hl_grant_move(m->memory, 0, m->w.generation + 1, from, to)))
                return false;
    return memcmp(before, record, sizeof before) == 0;
}

static bool result_stands(const struct world *w)
{
    if (w->state == HL_GRANT_DRAINED)
        return w->status == w->engine_result;
    return w->state != HL_GRANT_REVOKED || w->status == HL_E_EXPIRED || w->status == HL_E_CANCELLED;
}

static bool cancelled_unasked(const struct world *w)
{
    return w->state == HL_GRANT_REJECTED && w->status == HL_E_CANCELLED && !w->asked_cancel;
}

/* What does not hold in this world, or NULL. */
static const char *violated(struct model *m)
{
    const struct world *w = &m->w;
    struct hl_grant_record copy;
    hl_grant_copy(m->memory, 0, &copy);
    if (!hl_grant_record_is_sane(&copy))
        return "the record is not sane";
    if (w->in_flight > 0 && !w->owner)
        return "I1: a copy reads sources that nobody owns";
    if (w->owner && !w->credit)
        return "I2: an owner without credit";
    if (w->credit &&
        (w->state == HL_GRANT_FREE || w->state == HL_GRANT_RESERVED || w->state == HL_GRANT_REAPED))
        return "I2: credit outlives its operation";
    if (w->in_flight > 0 && !w->holds_pages)
        return "I3: pages are given back under a copy";
    if (hl_grant_state_needs_owner(w->state) && !w->owner)
        return "I5: granted without an owner";
    if (w->state == HL_GRANT_PREPARING && w->submitted != w->generation)
        return "I4: an unsubmitted descriptor is claimed";
    if (w->quarantined && !w->owner)
        return "I7: a quarantined source is released";
    if (!result_stands(w))
        return "the result is not its writer's";
    if (cancelled_unasked(w))
        return "cancelled without a request";
    if (!stale_moves_change_nothing(m))
        return "I4: a stale generation moved the record";
    return NULL;
}

/* --- the search --- */

static uint32_t hash_of(const struct world *world)
{
    const unsigned char *bytes = (const unsigned char *)world;
    uint64_t hash = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < sizeof *world; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3ull;
    return (uint32_t)(hash ^ hash >> 32);
}

/* Adds the model's world unless it is known. */
static void reach(struct search *s, uint32_t parent, uint32_t rule)
{
    uint32_t slot = hash_of(&s->model.w) % SLOTS;
    for (; s->slots[slot] != 0; slot = (slot + 1) % SLOTS)
        if (memcmp(&s->reached[s->slots[slot] - 1].world, &s->model.w, sizeof s->model.w) == 0)
            return;
    CU_ASSERT_FATAL(s->count < MOST);
    s->reached[s->count] = (struct reached){.world = s->model.w, .parent = parent, .rule = rule};
    s->slots[slot] = ++s->count;
    const char *violation = violated(&s->model);
    if (violation && !s->violation) {
        s->violation = violation;
        s->violator = s->count - 1;
    }
}

static void expand(struct search *s, uint32_t index)
{
    const struct world from = s->reached[index].world;
    unsigned steps = 0;
    for (unsigned i = 0; i < model_rule_count; i++) {
        if (!model_rules[i].enabled(&from))
            continue;
        s->model.w = from;
        put_record(&s->model);
        model_rules[i].run(&s->model);
        get_record(&s->model);
        s->moved[from.state][s->model.w.state] |= from.state != s->model.w.state;
        bool death =
            s->model.w.engine_dead != from.engine_dead || s->model.w.manager_dead != from.manager_dead;
        steps += !death && memcmp(&s->model.w, &from, sizeof from) != 0;
        reach(s, index, i);
    }
    if (steps > 0)
        return;
    s->ends++;
    s->quarantines += from.quarantined;
    /* Where nobody has died, nothing may be left over. */
    if (!from.engine_dead && !from.manager_dead && !s->violation &&
        (from.state != HL_GRANT_FREE || from.credit || from.holds_pages ||
         from.operations < MODEL_OPERATIONS)) {
        s->violation = "stuck";
        s->violator = index;
    }
}

static void tell(const struct search *s, uint32_t index)
{
    if (index == 0)
        return;
    tell(s, s->reached[index].parent);
    fprintf(stderr, "  %-40s %s\n", model_rules[s->reached[index].rule].name,
            hl_grant_state_name(s->reached[index].world.state));
}

/* Enumerates every world that any interleaving reaches, breadth first, up to the first violation. */
static void explore(struct search *s, enum model_defect defect, uint32_t first_generation)
{
    static const unsigned char token[16] = "interleave test";
    hl_error err;
    memset(s, 0, sizeof *s);
    HL_REQUIRE_OK(hl_grant_memory_create(1, token, &s->model.memory, &err), err);
    s->model.record = hl_grant_record_at(s->model.memory, 0);
    s->model.defect = defect;
    s->reached = malloc(MOST * sizeof *s->reached);
    s->slots = calloc(SLOTS, sizeof *s->slots);
    CU_ASSERT_FATAL(s->reached && s->slots);
    s->model.w.generation = first_generation;
    s->model.w.cancel = first_generation; /* left over from 2^32 generations ago */
    put_record(&s->model);
    reach(s, 0, 0);
    for (uint32_t i = 0; i < s->count && !s->violation; i++)
        expand(s, i);
}

static void forget(struct search *s)
{
    hl_grant_memory_close(s->model.memory);
    free(s->reached);
    free(s->slots);
}

/* --- cases --- */

static void expect_all_interleavings_to_hold(uint32_t first_generation)
{
    struct search s;
    explore(&s, NO_DEFECT, first_generation);
    if (s.violation) {
        fprintf(stderr, "%s, after:\n", s.violation);
        tell(&s, s.violator);
    }
    CU_ASSERT_PTR_NULL(s.violation);
    CU_ASSERT_TRUE(s.ends > 0);
    CU_ASSERT_TRUE(s.quarantines > 0);
    CU_ASSERT_TRUE(s.count > 1000);
    for (uint32_t from = 0; from < HL_GRANT_STATE_COUNT; from++)
        for (uint32_t to = 0; to < HL_GRANT_STATE_COUNT; to++)
            CU_ASSERT_EQUAL(s.moved[from][to], hl_grant_transition_exists(from, to));
    printf("%u worlds, %u ends\n", s.count, s.ends);
    forget(&s);
}

static void every_interleaving_keeps_the_invariants(void)
{
    expect_all_interleavings_to_hold(1);
}

static void and_where_generations_begin_anew(void)
{
    expect_all_interleavings_to_hold(UINT32_MAX);
}

static void every_defect_is_found(void)
{
    static const char *const found[MODEL_DEFECTS] = {
        [OWNER_AFTER_GRANT] = "I5",  [RELEASE_AFTER_DEATH] = "I5",       [REASON_IN_GRANTED] = "the result",
        [CURRENT_GENERATION] = "I4", [CANCEL_NOT_CLEARED] = "cancelled", [FORGOTTEN_REAP] = "stuck",
    };
    for (unsigned defect = NO_DEFECT + 1; defect < MODEL_DEFECTS; defect++) {
        struct search s;
        explore(&s, defect, 1);
        if (!s.violation || strncmp(s.violation, found[defect], strlen(found[defect])) != 0)
            fprintf(stderr, "defect %u: %s\n", defect, s.violation ? s.violation : "not found");
        CU_ASSERT_PTR_NOT_NULL_FATAL(s.violation);
        CU_ASSERT_EQUAL(strncmp(s.violation, found[defect], strlen(found[defect])), 0);
        forget(&s);
    }
}

HL_TESTS(interleave, HL_CASE(every_interleaving_keeps_the_invariants),
         HL_CASE(and_where_generations_begin_anew), HL_CASE(every_defect_is_found));
