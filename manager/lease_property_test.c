#include <stdlib.h>

#include "manager/lease_private.h"
#include "manager/lease_testing.h"

/* The leases against a model that is as plain as can be, in a time that only the test moves. */

enum { HISTORY = 400, SESSIONS = 5, PLACES = 24, STEPS = 20000 };

struct model_lease {
    hl_lease_id id;
    unsigned session, first, count, handed;
    int64_t expires_ns;
    enum hl_lease_state state;
    uint64_t ended_at; /* order of ends: decides what is still remembered */
    hl_lease_pins *pins;
};

struct world {
    hl_index *index;
    hl_leases *leases;
    hl_entry_id blocks[TEST_BLOCKS];
    hl_budget budgets[SESSIONS];
    hl_random random;
    int64_t now;
    struct model_lease history[HISTORY]; /* a ring; [begun % HISTORY] is next */
    uint64_t begun, ended;
};

static uint64_t below(struct world *world, uint64_t bound)
{
    return hl_random_below(&world->random, bound);
}

static unsigned live_count(const struct world *world)
{
    unsigned live = 0;
    for (unsigned i = 0; i < HISTORY; i++)
        live += world->history[i].state == HL_LEASE_LIVE;
    return live;
}

static uint64_t blocks_taken(const struct world *world, unsigned session)
{
    uint64_t taken = 0;
    for (unsigned i = 0; i < HISTORY; i++)
        if (world->history[i].session == session)
            taken +=
                world->history[i].state == HL_LEASE_LIVE ? world->history[i].count : world->history[i].handed;
    return taken;
}

static void end_model(struct world *world, struct model_lease *lease, enum hl_lease_state state)
{
    lease->state = state;
    lease->ended_at = ++world->ended;
}

/* Whether the library may have forgotten the lease: its place is taken after those that ended before it. */
static bool may_be_forgotten(const struct world *world, const struct model_lease *lease)
{
    unsigned remembered = PLACES - live_count(world);
    return lease->state > HL_LEASE_LIVE && world->ended - lease->ended_at >= remembered;
}

static void begin(struct world *world)
{
    struct model_lease *lease = &world->history[world->begun % HISTORY];
    if (lease->state == HL_LEASE_LIVE || lease->pins)
        return;
    struct model_lease made = {.session = (unsigned)below(world, SESSIONS),
                               .first = (unsigned)below(world, TEST_BLOCKS - 8),
                               .count = 1 + (unsigned)below(world, 8),
                               .expires_ns = world->now + 1 + (int64_t)below(world, 200),
                               .state = HL_LEASE_LIVE};
    struct hl_lease_request request = {.session = made.session,
                                       .entries = world->blocks + made.first,
                                       .count = made.count,
                                       .expires_ns = made.expires_ns,
                                       .budget = &world->budgets[made.session]};
    uint64_t limit = world->budgets[made.session].limit / TEST_BLOCK_BYTES;
    hl_status expected = live_count(world) == PLACES                              ? HL_E_LIMIT
                         : blocks_taken(world, made.session) + made.count > limit ? HL_E_BUDGET
                                                                                  : HL_OK;
    hl_error err;
    HL_EXPECT_STATUS(hl_lease_create(world->leases, &request, &made.id, &err), expected, err);
    if (expected != HL_OK)
        return;
    *lease = made;
    world->begun++;
}

/* What a call on the lease must answer, which may expire it. */
static hl_status expected_of(struct world *world, struct model_lease *lease, unsigned session)
{
    if (lease->id == 0)
        return HL_E_NOT_FOUND;
    if (session != lease->session)
        return HL_E_PERMISSION;
    if (lease->state == HL_LEASE_LIVE && lease->expires_ns <= world->now)
        end_model(world, lease, HL_LEASE_EXPIRED);
    return lease->state == HL_LEASE_LIVE       ? HL_OK
           : lease->state == HL_LEASE_CONSUMED ? HL_E_STATE
           : lease->state == HL_LEASE_EXPIRED  ? HL_E_EXPIRED
                                               : HL_E_NOT_FOUND;
}

static void expect(hl_status got, hl_status expected, bool forgotten)
{
    CU_ASSERT_TRUE(got == expected || (forgotten && got == HL_E_NOT_FOUND));
}

static void use_one(struct world *world, bool consume)
{
    struct model_lease *lease = &world->history[below(world, HISTORY)];
    unsigned session = below(world, 8) ? lease->session : (unsigned)below(world, SESSIONS);
    bool forgotten = may_be_forgotten(world, lease);
    size_t count = 1 + below(world, lease->count ? lease->count : 1);
    hl_error err;
    hl_lease_pins *pins = NULL;
    hl_status expected = expected_of(world, lease, session);
    if (!consume) {
        expect(hl_lease_give_back(world->leases, session, lease->id, world->now, &err), expected, forgotten);
        if (expected == HL_OK)
            end_model(world, lease, HL_LEASE_RELEASED);
        return;
    }
    expect(hl_lease_consume(world->leases, session, lease->id, count, world->now, &pins, &err), expected,
           forgotten);
    CU_ASSERT_EQUAL_FATAL(pins != NULL, expected == HL_OK);
    if (!pins)
        return;
    size_t held;
    const hl_entry_id *entries = hl_pins_entries(pins, &held);
    CU_ASSERT_EQUAL(held, count);
    CU_ASSERT_EQUAL(memcmp(entries, world->blocks + lease->first, count * sizeof *entries), 0);
    CU_ASSERT_EQUAL(hl_pins_bytes(pins), count * TEST_BLOCK_BYTES);
    end_model(world, lease, HL_LEASE_CONSUMED);
    lease->pins = pins;
    lease->handed = (unsigned)count;
}

static void reap_one(struct world *world)
{
    struct model_lease *lease = &world->history[below(world, HISTORY)];
    hl_pins_release(world->leases, lease->pins);
    lease->pins = NULL;
    lease->handed = 0;
}

static void pass_time(struct world *world)
{
    size_t expected = 0;
    world->now += (int64_t)below(world, 40);
    for (struct model_lease *first = world->history; first;) { /* the earliest one goes first */
        first = NULL;
        for (unsigned i = 0; i < HISTORY; i++) {
            struct model_lease *lease = &world->history[i];
            if (lease->state == HL_LEASE_LIVE && lease->expires_ns <= world->now &&
                (!first || lease->expires_ns < first->expires_ns))
                first = lease;
        }
        if (first) {
            end_model(world, first, HL_LEASE_EXPIRED);
            expected++;
        }
    }
    CU_ASSERT_EQUAL(hl_lease_expire_due(world->leases, world->now), expected);
}

static void drop_one(struct world *world)
{
    unsigned session = (unsigned)below(world, SESSIONS);
    size_t expected = 0;
    for (unsigned i = 0; i < HISTORY; i++)
        if (world->history[i].state == HL_LEASE_LIVE && world->history[i].session == session) {
            end_model(world, &world->history[i], HL_LEASE_RELEASED);
            expected++;
        }
    CU_ASSERT_EQUAL(hl_lease_drop_session(world->leases, session), expected);
}

static void compare(struct world *world)
{
    struct hl_leases_stats stats;
    uint64_t blocks = 0;
    hl_error err;
    hl_leases_get_stats(world->leases, &stats);
    CU_ASSERT_EQUAL(stats.live, live_count(world));
    for (unsigned i = 0; i < SESSIONS; i++) {
        CU_ASSERT_EQUAL(hl_budget_used(&world->budgets[i]), blocks_taken(world, i) * TEST_BLOCK_BYTES);
        blocks += blocks_taken(world, i);
    }
    CU_ASSERT_EQUAL(index_stats(world->index).pins, blocks);
    CU_ASSERT_EQUAL(stats.pins + stats.handed_pins, blocks);
    CU_ASSERT_EQUAL(stats.bytes + stats.handed_bytes, blocks * TEST_BLOCK_BYTES);
    HL_REQUIRE_OK(hl_leases_check(world->leases, &err), err);
}

static void step(struct world *world)
{
    uint64_t choice = below(world, 100);
    if (choice < 40)
        begin(world);
    else if (choice < 60)
        use_one(world, true);
    else if (choice < 70)
        use_one(world, false);
    else if (choice < 90)
        reap_one(world);
    else if (choice < 99)
        pass_time(world);
    else
        drop_one(world);
}

static void open_all(struct world *world, uint64_t seed)
{
    struct hl_leases_options options = {.most = PLACES};
    hl_error err;
    hl_random_seed(&world->random, seed);
    world->index = open_index(TEST_BLOCKS, NULL);
    for (unsigned i = 0; i < TEST_BLOCKS; i++)
        world->blocks[i] = must_publish(world->index, i, TEST_BLOCK_BYTES);
    for (unsigned i = 0; i < SESSIONS; i++)
        hl_budget_init(&world->budgets[i], 40 * TEST_BLOCK_BYTES);
    HL_REQUIRE_OK(hl_leases_create(&options, world->index, &world->leases, &err), err);
}

static void any_calls_leave_what_the_model_says(void)
{
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct world *world = calloc(1, sizeof *world);
        CU_ASSERT_PTR_NOT_NULL_FATAL(world);
        open_all(world, seed);
        for (unsigned i = 0; i < STEPS; i++) {
            step(world);
            if (i % 20 == 0)
                compare(world);
        }
        for (unsigned i = 0; i < HISTORY; i++)
            hl_pins_release(world->leases, world->history[i].pins);
        for (unsigned i = 0; i < SESSIONS; i++) {
            hl_lease_drop_session(world->leases, i);
            CU_ASSERT_EQUAL(hl_budget_used(&world->budgets[i]), 0);
        }
        CU_ASSERT_EQUAL(index_stats(world->index).pins, 0);
        CU_ASSERT_TRUE(world->begun > 1000);
        hl_leases_destroy(world->leases);
        hl_index_destroy(world->index);
        free(world);
    }
}

HL_TESTS(lease_property, HL_CASE(any_calls_leave_what_the_model_says));
