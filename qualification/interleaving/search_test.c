/* Every order of the two sides' and the device's steps, within the bounds of a scenario. Worlds that several
 * orders reach are expanded once, and the orders counted through them; each world is reached by taking its
 * steps anew on the real record, bank and device. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/testing/cunit.h"
#include "qualification/interleaving/stage.h"

enum { MOST_STEPS = 128, SLOTS = 1 << 18, MOST_WORLDS = SLOTS / 2 };

/* A world as bytes: records without what says nothing to anybody (text, stages). */
struct world {
    struct memory_of_sides sides[STAGE_RECORDS];
    struct {
        uint32_t generation, state, submitted, cancel, consumed, part, status, bank_offset;
    } records[STAGE_RECORDS];
    uint32_t engine_dead, death_seen;
};

struct taken {
    const struct step *step;
    unsigned record;
};

struct search {
    struct stage stage;
    struct world *worlds;
    double *orders; /* from each world to an end */
    uint32_t *slots;
    uint32_t count, ends, kept;
    uint64_t steps;
    struct taken path[MOST_STEPS];
    unsigned depth, deepest;
    const char *violation;
    bool apart; /* each order is walked to its end, also through worlds that were there before */
};

static void take_world(const struct stage *stage, struct world *world)
{
    memset(world, 0, sizeof *world);
    memcpy(world->sides, stage->sides, sizeof world->sides);
    for (unsigned i = 0; i < stage->scenario.records; i++) {
        struct hl_grant_record copy;
        hl_grant_copy(stage->memory, i, &copy);
        struct hl_grant_word word = hl_grant_load(stage->memory, i);
        world->records[i].generation = word.generation;
        world->records[i].state = word.state;
        world->records[i].submitted = atomic_load(&copy.submitted);
        world->records[i].cancel = atomic_load(&copy.cancel);
        world->records[i].consumed = atomic_load(&copy.consumed);
        world->records[i].part = copy.part_index;
        world->records[i].status = (uint32_t)copy.status;
        world->records[i].bank_offset = copy.bank_offset;
    }
    world->engine_dead = stage->engine_dead;
    world->death_seen = stage->death_seen;
}

static uint32_t hash_of(const struct world *world)
{
    const unsigned char *bytes = (const unsigned char *)world;
    uint64_t hash = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < sizeof *world; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3ull;
    return (uint32_t)(hash ^ hash >> 32);
}

/* The world's index; *known says whether it has been there before. */
static uint32_t enter_world(struct search *s, const struct world *world, bool *known)
{
    uint32_t slot = hash_of(world) % SLOTS;
    for (; s->slots[slot] != 0; slot = (slot + 1) % SLOTS)
        if (memcmp(&s->worlds[s->slots[slot] - 1], world, sizeof *world) == 0) {
            *known = true;
            return s->slots[slot] - 1;
        }
    CU_ASSERT_FATAL(s->count < MOST_WORLDS);
    s->worlds[s->count] = *world;
    s->slots[slot] = ++s->count;
    *known = false;
    return s->count - 1;
}

static void replay(struct search *s)
{
    stage_reset(&s->stage);
    for (unsigned i = 0; i < s->depth; i++)
        s->path[i].step->run(&s->stage, s->path[i].record);
    s->steps += s->depth;
}

static void tell(const struct search *s)
{
    fprintf(stderr, "%s, after:\n", s->violation);
    for (unsigned i = 0; i < s->depth; i++)
        fprintf(stderr, "  record %u: %s\n", s->path[i].record, s->path[i].step->name);
}

/* Where a run ends: nothing may be left over, except what a death has left in quarantine. */
static void check_end(struct search *s)
{
    const struct stage *stage = &s->stage;
    s->ends++;
    for (unsigned i = 0; i < stage->scenario.records && !s->violation; i++) {
        const struct memory_of_sides *side = &stage->sides[i];
        s->kept += side->manager_at == M_KEPT;
        bool finished = side->engine_at == E_IDLE && side->operations == stage->scenario.operations;
        if (side->owner && side->manager_at != M_KEPT)
            s->violation = "I2: credits are left at the end";
        else if (!stage->engine_dead && !finished)
            s->violation = "an operation is stuck";
    }
}

static double expand(struct search *s);

/* Takes every enabled step of a list; the stage is in the world of the path before and after. */
static double expand_all(struct search *s, const struct step *steps, unsigned count, unsigned *enabled)
{
    double orders = 0;
    for (unsigned i = 0; i < count; i++)
        for (unsigned record = 0; record < s->stage.scenario.records && !s->violation; record++) {
            if (!steps[i].enabled(&s->stage, record))
                continue;
            ++*enabled;
            CU_ASSERT_FATAL(s->depth < MOST_STEPS);
            s->path[s->depth++] = (struct taken){&steps[i], record};
            steps[i].run(&s->stage, record);
            s->steps++;
            orders += expand(s);
            if (s->violation)
                return 0;
            s->depth--;
            replay(s);
        }
    return orders;
}

/* How many orders lead from here to an end. */
static double expand(struct search *s)
{
    struct world world;
    bool known;
    unsigned enabled = 0;
    if (s->depth > s->deepest)
        s->deepest = s->depth;
    s->violation = stage_violation(&s->stage);
    if (s->violation)
        return 0;
    take_world(&s->stage, &world);
    uint32_t index = enter_world(s, &world, &known);
    if (known && !s->apart)
        return s->orders[index];
    double orders = expand_all(s, engine_steps, engine_step_count, &enabled);
    orders += expand_all(s, manager_steps, manager_step_count, &enabled);
    orders += expand_all(s, world_steps, world_step_count, &enabled);
    if (enabled == 0) {
        check_end(s);
        orders = 1;
    }
    s->orders[index] = orders;
    return orders;
}

static double explore(struct search *s, const struct scenario *scenario, enum defect defect, bool apart)
{
    memset(s, 0, sizeof *s);
    s->apart = apart;
    stage_open(&s->stage, scenario, defect);
    s->worlds = malloc(MOST_WORLDS * sizeof *s->worlds);
    s->orders = calloc(MOST_WORLDS, sizeof *s->orders);
    s->slots = calloc(SLOTS, sizeof *s->slots);
    CU_ASSERT_FATAL(s->worlds && s->orders && s->slots);
    return expand(s);
}

static void forget(struct search *s)
{
    stage_close(&s->stage);
    free(s->worlds);
    free(s->orders);
    free(s->slots);
}

/* --- cases --- */

static void expect_to_hold(const char *name, const struct scenario *scenario, double at_least)
{
    struct search s;
    double orders = explore(&s, scenario, NO_DEFECT, false);
    if (s.violation)
        tell(&s);
    CU_ASSERT_PTR_NULL(s.violation);
    CU_ASSERT_TRUE(orders >= at_least);
    CU_ASSERT_EQUAL(s.kept > 0, scenario->death);
    printf("%s: %.4g interleavings of up to %u steps, through %u worlds with %u ends, %llu steps taken\n",
           name, orders, s.deepest, s.count, s.ends, (unsigned long long)s.steps);
    forget(&s);
}

static void one_record_twice_with_cancellation_and_revocation(void)
{
    const struct scenario scenario = {
        .records = 1, .operations = 2, .parts = 2, .cancel = true, .revoke = true};
    expect_to_hold("one record, 2 operations of 2 parts", &scenario, 1000);
}

static void one_record_and_the_engine_may_die(void)
{
    const struct scenario scenario = {
        .records = 1, .operations = 2, .parts = 2, .cancel = true, .revoke = true, .death = true};
    expect_to_hold("one record, 2 operations of 2 parts, death", &scenario, 1000);
}

static void two_records_share_the_bank(void)
{
    const struct scenario scenario = {.records = 2, .operations = 2, .parts = 2};
    expect_to_hold("two records, 2 operations of 2 parts each, room for one part", &scenario, 1e6);
}

static void two_records_and_all_that_may_befall_them(void)
{
    const struct scenario scenario = {
        .records = 2, .operations = 1, .parts = 2, .cancel = true, .revoke = true, .death = true};
    expect_to_hold("two records, an operation of 2 parts each, death", &scenario, 1e6);
}

/* That worlds look the same is enough to expand them once: walked one by one, the orders are as many, and end
 * alike. */
static void orders_walked_one_by_one_are_as_many(void)
{
    const struct scenario scenario = {
        .records = 1, .operations = 1, .parts = 2, .cancel = true, .revoke = true, .death = true};
    struct search merged, apart;
    double orders = explore(&merged, &scenario, NO_DEFECT, false);
    CU_ASSERT_EQUAL(explore(&apart, &scenario, NO_DEFECT, true), orders);
    CU_ASSERT_PTR_NULL(apart.violation);
    CU_ASSERT_EQUAL((double)apart.ends, orders);
    CU_ASSERT_EQUAL(apart.count, merged.count);
    CU_ASSERT_TRUE(orders > 1000);
    printf("one record, an operation of 2 parts, death: %u interleavings walked one by one\n", apart.ends);
    forget(&apart); /* the device entered last is left first */
    forget(&merged);
}

static void every_defect_is_found(void)
{
    static const struct {
        enum defect defect;
        unsigned records;
        const char *found;
    } cases[] = {
        {EARLY_DRAIN, 1, "I3"},         {BLIND_REVOKE, 1, "I1"},     {STALE_CLAIM, 1, "I4"},
        {BANK_AT_CLAIM, 2, "the bank"}, {RELEASE_ON_DEATH, 1, "I7"}, {RELEASE_AFTER_PART, 1, "I5"},
        {OWNER_AFTER_GRANT, 1, "I5"},
    };
    _Static_assert(sizeof cases / sizeof cases[0] == DEFECTS - 1, "each defect has its case");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const bool one = cases[i].records == 1;
        const struct scenario scenario = {.records = cases[i].records,
                                          .operations = one ? 2 : 1,
                                          .parts = 2,
                                          .cancel = one,
                                          .revoke = one,
                                          .death = cases[i].defect == RELEASE_ON_DEATH};
        struct search s;
        explore(&s, &scenario, cases[i].defect, false);
        if (!s.violation || strncmp(s.violation, cases[i].found, strlen(cases[i].found)) != 0)
            fprintf(stderr, "defect %d: %s\n", (int)cases[i].defect, s.violation ? s.violation : "not found");
        CU_ASSERT_PTR_NOT_NULL_FATAL(s.violation);
        CU_ASSERT_EQUAL(strncmp(s.violation, cases[i].found, strlen(cases[i].found)), 0);
        forget(&s);
    }
}

HL_TESTS(interleaving_search, HL_CASE(one_record_twice_with_cancellation_and_revocation),
         HL_CASE(one_record_and_the_engine_may_die), HL_CASE(two_records_share_the_bank),
         HL_CASE(two_records_and_all_that_may_befall_them), HL_CASE(orders_walked_one_by_one_are_as_many),
         HL_CASE(every_defect_is_found));
