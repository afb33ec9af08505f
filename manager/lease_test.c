#include "manager/lease.h"

#include <string.h>

#include "manager/lease_testing.h"

/* Says what each call on a lease answers, and that none of them changes anything. */
static void expect_refused(struct lease_world *world, uint64_t session, hl_lease_id id, int64_t now_ns,
                           hl_status expected)
{
    struct hl_lease_info info;
    hl_lease_pins *pins = NULL;
    hl_error err;
    struct hl_leases_stats before = lease_stats(world), after;
    HL_EXPECT_STATUS(hl_lease_get(world->leases, session, id, now_ns, &info, &err), expected, err);
    HL_EXPECT_STATUS(hl_lease_consume(world->leases, session, id, 1, now_ns, &pins, &err), expected, err);
    HL_EXPECT_STATUS(hl_lease_give_back(world->leases, session, id, now_ns, &err), expected, err);
    CU_ASSERT_PTR_NULL(pins);
    after = lease_stats(world);
    CU_ASSERT_EQUAL(memcmp(&before, &after, sizeof before), 0);
    expect_sound_leases(world);
}

static void a_lease_pins_its_blocks_and_takes_their_bytes(void)
{
    struct lease_world world;
    struct hl_lease_info info;
    hl_error err;
    open_world(&world, 8, NULL);
    hl_lease_id id = must_lease(&world, 1, 4, 3, 1000);
    CU_ASSERT_EQUAL(index_stats(world.index).pins, 3);
    CU_ASSERT_EQUAL(hl_budget_used(&world.budgets[0]), 3 * TEST_BLOCK_BYTES);
    HL_EXPECT_OK(hl_lease_get(world.leases, 1, id, 999, &info, &err), err);
    CU_ASSERT_TRUE(info.binding == 5 && info.group == 1 && info.count == 3 && info.expires_ns == 1000);
    CU_ASSERT_EQUAL(info.bytes, 3 * TEST_BLOCK_BYTES);
    CU_ASSERT_EQUAL(memcmp(info.entries, world.blocks + 4, 3 * sizeof *info.entries), 0);
    for (unsigned i = 0; i < TEST_BLOCKS - 3; i++) { /* all but the leased ones may go */
        uint64_t number = evict_number(world.index);
        CU_ASSERT_TRUE(number < 4 || number > 6);
    }
    CU_ASSERT_EQUAL(evict_number(world.index), UINT64_MAX);
    HL_EXPECT_OK(hl_lease_give_back(world.leases, 1, id, 999, &err), err);
    expect_all_returned(&world);
    expect_refused(&world, 1, id, 999, HL_E_NOT_FOUND);
    CU_ASSERT_NOT_EQUAL(evict_number(world.index), UINT64_MAX);
    close_world(&world);
}

static void consuming_hands_on_the_first_blocks_and_returns_the_rest(void)
{
    struct lease_world world;
    hl_lease_pins *pins = NULL;
    struct hl_index_info info;
    hl_error err;
    size_t count;
    open_world(&world, 8, NULL);
    hl_lease_id id = must_lease(&world, 1, 10, 5, 1000);
    HL_EXPECT_STATUS(hl_lease_consume(world.leases, 1, id, 0, 10, &pins, &err), HL_E_RANGE, err);
    HL_EXPECT_STATUS(hl_lease_consume(world.leases, 1, id, 6, 10, &pins, &err), HL_E_RANGE, err);
    CU_ASSERT_EQUAL(lease_stats(&world).live, 1);
    HL_REQUIRE_OK(hl_lease_consume(world.leases, 1, id, 2, 10, &pins, &err), err);
    CU_ASSERT_EQUAL(memcmp(hl_pins_entries(pins, &count), world.blocks + 10, 2 * sizeof(hl_entry_id)), 0);
    CU_ASSERT_EQUAL(count, 2);
    CU_ASSERT_EQUAL(hl_pins_bytes(pins), 2 * TEST_BLOCK_BYTES);
    CU_ASSERT_EQUAL(hl_budget_used(&world.budgets[0]), 2 * TEST_BLOCK_BYTES);
    for (unsigned i = 10; i < 15; i++) {
        HL_EXPECT_OK(hl_index_get(world.index, world.blocks[i], &info, &err), err);
        CU_ASSERT_EQUAL(info.pins, i < 12);
    }
    expect_sound_leases(&world);
    hl_pins_release(world.leases, pins);
    hl_pins_release(world.leases, NULL);
    expect_all_returned(&world);
    close_world(&world);
}

static void a_lease_is_consumed_once(void)
{
    struct lease_world world;
    hl_lease_pins *pins = NULL;
    hl_error err;
    open_world(&world, 8, NULL);
    hl_lease_id id = must_lease(&world, 1, 0, 4, 1000);
    HL_REQUIRE_OK(hl_lease_consume(world.leases, 1, id, 4, 10, &pins, &err), err);
    expect_refused(&world, 1, id, 10, HL_E_STATE);
    expect_refused(&world, 1, id, 5000, HL_E_STATE); /* its time has no meaning any more */
    hl_pins_release(world.leases, pins);
    expect_refused(&world, 1, id, 10, HL_E_STATE);
    expect_all_returned(&world);
    close_world(&world);
}

static void another_sessions_lease_is_refused_in_every_state(void)
{
    struct lease_world world;
    hl_lease_pins *pins = NULL;
    hl_error err;
    open_world(&world, 8, NULL);
    hl_lease_id live = must_lease(&world, 1, 0, 1, 1000), consumed = must_lease(&world, 1, 1, 1, 1000),
                released = must_lease(&world, 1, 2, 1, 1000), expired = must_lease(&world, 1, 3, 1, 10);
    HL_REQUIRE_OK(hl_lease_consume(world.leases, 1, consumed, 1, 5, &pins, &err), err);
    HL_EXPECT_OK(hl_lease_give_back(world.leases, 1, released, 5, &err), err);
    CU_ASSERT_EQUAL(hl_lease_expire_due(world.leases, 10), 1);
    expect_refused(&world, 2, live, 20, HL_E_PERMISSION);
    expect_refused(&world, 2, live, 5000, HL_E_PERMISSION); /* nor does a stranger expire it */
    expect_refused(&world, 2, consumed, 20, HL_E_PERMISSION);
    expect_refused(&world, 2, released, 20, HL_E_PERMISSION);
    expect_refused(&world, 2, expired, 20, HL_E_PERMISSION);
    CU_ASSERT_EQUAL(lease_stats(&world).live, 1);
    hl_pins_release(world.leases, pins);
    close_world(&world);
}

static void expiry_before_consumption_wins(void)
{
    struct lease_world world;
    open_world(&world, 8, NULL);
    hl_lease_id id = must_lease(&world, 1, 0, 4, 1000);
    CU_ASSERT_EQUAL(hl_lease_expire_due(world.leases, 999), 0);
    CU_ASSERT_EQUAL(hl_lease_expire_due(world.leases, 1000), 1);
    expect_all_returned(&world);
    expect_refused(&world, 1, id, 1000, HL_E_EXPIRED);
    expect_refused(&world, 1, id, 0, HL_E_EXPIRED); /* a clock read before the expiry does not revive it */
    close_world(&world);
}

static void consumption_before_expiry_wins(void)
{
    struct lease_world world;
    hl_lease_pins *pins = NULL;
    hl_error err;
    open_world(&world, 8, NULL);
    hl_lease_id id = must_lease(&world, 1, 0, 4, 1000);
    HL_REQUIRE_OK(hl_lease_consume(world.leases, 1, id, 3, 999, &pins, &err), err);
    CU_ASSERT_EQUAL(hl_lease_expire_due(world.leases, INT64_MAX), 0);
    CU_ASSERT_EQUAL(index_stats(world.index).pins, 3);
    CU_ASSERT_EQUAL(hl_budget_used(&world.budgets[0]), 3 * TEST_BLOCK_BYTES);
    hl_pins_release(world.leases, pins);
    expect_all_returned(&world);
    close_world(&world);
}

static void a_due_lease_expires_when_it_is_used_first(void)
{
    struct lease_world world;
    struct hl_lease_info info;
    hl_lease_pins *pins = NULL;
    hl_error err;
    open_world(&world, 8, NULL);
    hl_lease_id id = must_lease(&world, 1, 0, 4, 1000);
    HL_EXPECT_STATUS(hl_lease_consume(world.leases, 1, id, 4, 1000, &pins, &err), HL_E_EXPIRED, err);
    expect_all_returned(&world);
    CU_ASSERT_EQUAL(hl_lease_expire_due(world.leases, 1000), 0); /* once */
    id = must_lease(&world, 1, 0, 4, 1000);
    HL_EXPECT_STATUS(hl_lease_get(world.leases, 1, id, 1001, &info, &err), HL_E_EXPIRED, err);
    id = must_lease(&world, 1, 0, 4, 1000);
    HL_EXPECT_STATUS(hl_lease_give_back(world.leases, 1, id, 1001, &err), HL_E_EXPIRED, err);
    CU_ASSERT_EQUAL(lease_stats(&world).expired, 3);
    expect_all_returned(&world);
    close_world(&world);
}

static void leases_expire_in_the_order_of_their_time(void)
{
    struct lease_world world;
    int64_t next = 0;
    open_world(&world, 8, NULL);
    CU_ASSERT_FALSE(hl_lease_next_expiry(world.leases, &next));
    hl_lease_id late = must_lease(&world, 1, 0, 1, 300), early = must_lease(&world, 1, 1, 1, -100),
                middle = must_lease(&world, 2, 2, 1, 200);
    CU_ASSERT_TRUE(hl_lease_next_expiry(world.leases, &next) && next == -100);
    CU_ASSERT_EQUAL(hl_lease_expire_due(world.leases, 0), 1);
    CU_ASSERT_TRUE(hl_lease_next_expiry(world.leases, &next) && next == 200);
    CU_ASSERT_EQUAL(hl_lease_expire_due(world.leases, 250), 1);
    expect_refused(&world, 1, early, 250, HL_E_EXPIRED);
    expect_refused(&world, 2, middle, 250, HL_E_EXPIRED);
    CU_ASSERT_TRUE(hl_lease_next_expiry(world.leases, &next) && next == 300);
    CU_ASSERT_EQUAL(hl_lease_expire_due(world.leases, 300), 1);
    expect_refused(&world, 1, late, 250, HL_E_EXPIRED);
    expect_all_returned(&world);
    close_world(&world);
}

static void a_lost_session_returns_every_credit_but_those_handed_on(void)
{
    struct lease_world world;
    hl_lease_pins *pins = NULL;
    hl_error err;
    open_world(&world, 16, NULL);
    hl_lease_id ids[4];
    for (unsigned i = 0; i < 4; i++) {
        ids[i] = must_lease(&world, 1, i, 3, 1000 + i);
        must_lease(&world, 2, i, 2, 1000 + i);
    }
    HL_REQUIRE_OK(hl_lease_consume(world.leases, 1, ids[1], 2, 10, &pins, &err), err);
    CU_ASSERT_EQUAL(hl_lease_drop_session(world.leases, 1), 3);
    CU_ASSERT_EQUAL(hl_lease_drop_session(world.leases, 1), 0);
    CU_ASSERT_EQUAL(hl_lease_drop_session(world.leases, 77), 0);
    expect_sound_leases(&world);
    CU_ASSERT_EQUAL(hl_budget_used(&world.budgets[0]), 2 * TEST_BLOCK_BYTES); /* quarantine, say */
    CU_ASSERT_EQUAL(hl_budget_used(&world.budgets[1]), 8 * TEST_BLOCK_BYTES);
    CU_ASSERT_EQUAL(lease_stats(&world).handed_pins, 2);
    expect_refused(&world, 1, ids[0], 10, HL_E_NOT_FOUND);
    hl_pins_release(world.leases, pins);
    CU_ASSERT_EQUAL(hl_budget_used(&world.budgets[0]), 0);
    CU_ASSERT_EQUAL(hl_lease_drop_session(world.leases, 2), 4);
    expect_all_returned(&world);
    close_world(&world);
}

static void a_refused_lease_leaves_nothing_behind(void)
{
    struct lease_world world;
    hl_lease_id id = 99;
    hl_error err;
    open_world(&world, 2, NULL);
    struct hl_lease_request request = request_of(&world, 1, 0, 21, 1000);
    HL_EXPECT_STATUS(hl_lease_create(world.leases, &request, &id, &err), HL_E_BUDGET, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "2100 bytes"));
    expect_all_returned(&world);
    request.count = 0;
    HL_EXPECT_STATUS(hl_lease_create(world.leases, &request, &id, &err), HL_E_INVALID, err);
    request.count = HL_QUERY_KEYS + 1;
    HL_EXPECT_STATUS(hl_lease_create(world.leases, &request, &id, &err), HL_E_LIMIT, err);
    hl_entry_id stale[3] = {world.blocks[0], world.blocks[1], world.blocks[1] + (1ull << 32)};
    request = request_of(&world, 1, 0, 3, 1000);
    request.entries = stale;
    HL_EXPECT_STATUS(hl_lease_create(world.leases, &request, &id, &err), HL_E_NOT_FOUND, err);
    expect_all_returned(&world);
    must_lease(&world, 1, 0, 1, 1000);
    must_lease(&world, 2, 0, 1, 1000);
    request = request_of(&world, 1, 0, 1, 1000);
    HL_EXPECT_STATUS(hl_lease_create(world.leases, &request, &id, &err), HL_E_LIMIT, err);
    CU_ASSERT_EQUAL(id, 99);
    CU_ASSERT_EQUAL(lease_stats(&world).created, 2);
    close_world(&world);
}

static void one_block_may_be_in_a_lease_twice(void)
{
    struct lease_world world;
    hl_lease_pins *pins = NULL;
    hl_error err;
    open_world(&world, 2, NULL);
    hl_entry_id twice[2] = {world.blocks[3], world.blocks[3]};
    struct hl_lease_request request = request_of(&world, 1, 0, 2, 1000);
    hl_lease_id id;
    request.entries = twice;
    HL_REQUIRE_OK(hl_lease_create(world.leases, &request, &id, &err), err);
    CU_ASSERT_EQUAL(index_stats(world.index).pins, 2);
    HL_REQUIRE_OK(hl_lease_consume(world.leases, 1, id, 1, 10, &pins, &err), err);
    CU_ASSERT_EQUAL(index_stats(world.index).pins, 1);
    hl_pins_release(world.leases, pins);
    expect_all_returned(&world);
    close_world(&world);
}

static void ids_are_never_given_twice(void)
{
    struct lease_world world;
    hl_lease_id ids[100];
    hl_error err;
    open_world(&world, 3, NULL);
    for (unsigned i = 0; i < 100; i++) {
        ids[i] = must_lease(&world, 1, 0, 1, 1000);
        for (unsigned j = 0; j < i; j++)
            CU_ASSERT_NOT_EQUAL(ids[i], ids[j]);
        HL_EXPECT_OK(hl_lease_give_back(world.leases, 1, ids[i], 10, &err), err);
    }
    for (unsigned i = 0; i < 100; i++)
        expect_refused(&world, 1, ids[i], 10, HL_E_NOT_FOUND);
    static const hl_lease_id never[] = {0, 1, HL_LEASES_MOST - 1, UINT64_MAX, 1ull << 63};
    for (unsigned i = 0; i < 5; i++)
        expect_refused(&world, 1, never[i], 10, HL_E_NOT_FOUND);
    close_world(&world);
}

/* Two leases in turn, three places: what a lease ended with is known until two others have begun. */
static void an_ended_lease_is_remembered_until_its_place_is_needed(void)
{
    struct lease_world world;
    open_world(&world, 3, NULL);
    hl_lease_id id = must_lease(&world, 1, 0, 1, 1000);
    CU_ASSERT_EQUAL(hl_lease_expire_due(world.leases, 1000), 1);
    for (unsigned i = 0; i < 2; i++) {
        must_lease(&world, 2, 0, 1, 2000);
        expect_refused(&world, 1, id, 1000, HL_E_EXPIRED);
    }
    must_lease(&world, 2, 0, 1, 2000);
    expect_refused(&world, 1, id, 1000, HL_E_NOT_FOUND);
    close_world(&world);
}

static void only_so_many_sessions_have_leases(void)
{
    struct lease_world world;
    hl_lease_id id = 99;
    hl_error err;
    open_world(&world, HL_SESSIONS + 2, NULL);
    hl_budget_init(&world.budgets[0], 1000 * TEST_BLOCK_BYTES);
    struct hl_lease_request request = request_of(&world, 1, 0, 1, 1000);
    for (unsigned i = 0; i < HL_SESSIONS; i++) {
        request.session = 100 + i;
        HL_REQUIRE_OK(hl_lease_create(world.leases, &request, &id, &err), err);
    }
    request.session = 1;
    HL_EXPECT_STATUS(hl_lease_create(world.leases, &request, &id, &err), HL_E_LIMIT, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "sessions"));
    CU_ASSERT_EQUAL(lease_stats(&world).sessions, HL_SESSIONS);
    CU_ASSERT_EQUAL(hl_lease_drop_session(world.leases, 130), 1);
    HL_EXPECT_OK(hl_lease_create(world.leases, &request, &id, &err), err);
    expect_sound_leases(&world);
    close_world(&world);
}

static void options_out_of_bounds_and_missing_memory_are_typed(void)
{
    struct hl_leases_options options = {0};
    struct lease_world world;
    struct test_memory memory;
    hl_leases *leases = NULL;
    hl_lease_id id = 99;
    hl_error err;
    HL_EXPECT_STATUS(hl_leases_create(&options, NULL, &leases, &err), HL_E_INVALID, err);
    options.most = HL_LEASES_MOST + 1;
    HL_EXPECT_STATUS(hl_leases_create(&options, NULL, &leases, &err), HL_E_LIMIT, err);
    test_memory_open(&memory);
    options = (struct hl_leases_options){.most = 4, .memory = &memory.memory};
    for (unsigned refuse = 1; refuse <= 3; refuse++) {
        memory.refuse = refuse;
        HL_EXPECT_STATUS(hl_leases_create(&options, NULL, &leases, &err), HL_E_NOMEM, err);
        CU_ASSERT_TRUE(memory.pieces == 0 && leases == NULL);
    }
    open_world(&world, 4, &memory.memory);
    struct hl_lease_request request = request_of(&world, 1, 0, 3, 1000);
    memory.refuse = 1;
    HL_EXPECT_STATUS(hl_lease_create(world.leases, &request, &id, &err), HL_E_NOMEM, err);
    CU_ASSERT_EQUAL(id, 99);
    expect_all_returned(&world);
    must_lease(&world, 1, 0, 3, 1000); /* and a live one is released when all goes */
    close_world(&world);
    CU_ASSERT_TRUE(memory.pieces == 0 && memory.bytes == 0);
    hl_leases_destroy(NULL);
}

HL_TESTS(lease, HL_CASE(a_lease_pins_its_blocks_and_takes_their_bytes),
         HL_CASE(consuming_hands_on_the_first_blocks_and_returns_the_rest), HL_CASE(a_lease_is_consumed_once),
         HL_CASE(another_sessions_lease_is_refused_in_every_state), HL_CASE(expiry_before_consumption_wins),
         HL_CASE(consumption_before_expiry_wins), HL_CASE(a_due_lease_expires_when_it_is_used_first),
         HL_CASE(leases_expire_in_the_order_of_their_time),
         HL_CASE(a_lost_session_returns_every_credit_but_those_handed_on),
         HL_CASE(a_refused_lease_leaves_nothing_behind), HL_CASE(one_block_may_be_in_a_lease_twice),
         HL_CASE(ids_are_never_given_twice), HL_CASE(an_ended_lease_is_remembered_until_its_place_is_needed),
         HL_CASE(only_so_many_sessions_have_leases),
         HL_CASE(options_out_of_bounds_and_missing_memory_are_typed));
