/* Preparation: every refusal has its type and consumes nothing, but for the session's plan budget, which
 * consumes the leases and frees their sources (R8). */
#include "core/base/clock.h"
#include "manager/manager_testing.h"

static const struct world_options plain = {0};

struct held {
    uint64_t pins, leases, bytes, permits, plan_bytes;
};

static struct held held(struct world *world)
{
    struct hl_index_stats index;
    struct hl_leases_stats leases;
    hl_index_get_stats(world->manager->index, &index);
    hl_leases_get_stats(world->manager->leases, &leases);
    return (struct held){.pins = index.pins,
                         .leases = leases.live,
                         .bytes = hl_budget_used(&world_session(world, 0)->bytes),
                         .permits = hl_budget_used(&world->manager->gpus[0].permits),
                         .plan_bytes = hl_budget_used(&world_session(world, 0)->plan_bytes)};
}

/* Looks at the submitted record 0 and expects its rejection, with nothing changed; the record is FREE again.
 */
static void expect_refusal(struct world *world, hl_status status, const char *text)
{
    struct held before = held(world), after;
    world_look(world, 0, 0);
    WORLD_EXPECT_STATE(world, 0, 0, HL_GRANT_REAPED);
    struct hl_grant_record *record = engine_record(world, 0, 0);
    if (record->status != status || !strstr(record->text, text))
        fprintf(stderr, "got %s: %s\n", hl_status_name((hl_status)record->status), record->text);
    CU_ASSERT_EQUAL(record->status, status);
    CU_ASSERT_PTR_NOT_NULL(strstr(record->text, text));
    after = held(world);
    CU_ASSERT_EQUAL(memcmp(&before, &after, sizeof before), 0);
    CU_ASSERT_EQUAL(world_session(world, 0)->operation_count, 0);
    CU_ASSERT_EQUAL(world_session(world, 0)->state, MANAGER_SESSION_LIVE);
    world_check(world);
    engine_retire(world, 0, 0);
}

static uint64_t lease_on(struct world *world, uint64_t first, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        world_store(world, 0, first + i);
    return world_query(world, 0, 0, first, count, NULL);
}

static void submit(struct world *world, uint32_t binding, uint64_t lease, uint32_t count, uint32_t page)
{
    uint32_t pages[64];
    for (uint32_t i = 0; i < count; i++)
        pages[i] = page + i;
    engine_reserve(world, 0, 0);
    engine_submit(world, 0, 0, binding, 1, &lease, &count, pages);
}

static void descriptor_that_is_none_is_refused(void)
{
    struct world world;
    world_open(&world, &plain);
    uint64_t lease = lease_on(&world, 1, 2);
    static const struct hl_extent extents[] = {{0, 2048},
                                               {HL_DESCRIPTOR_HEADER_BYTES + 4, 2048},
                                               {HL_DESCRIPTOR_HEADER_BYTES, 0},
                                               {HL_DESCRIPTOR_BYTES - 8, 2048},
                                               {0xfffffff8u, 2048},
                                               {HL_DESCRIPTOR_HEADER_BYTES, 0xffffffffu}};
    for (size_t i = 0; i < sizeof extents / sizeof extents[0]; i++) {
        submit(&world, 0, lease, 2, 0);
        engine_record(&world, 0, 0)->descriptor_offset = extents[i].offset;
        engine_record(&world, 0, 0)->descriptor_bytes = extents[i].bytes;
        expect_refusal(&world, HL_E_PROTOCOL, "extent");
    }
    struct hl_wire_restore head = {.lease_count = 0};
    engine_reserve(&world, 0, 0);
    engine_submit_bytes(&world, 0, 0, &head, sizeof head);
    expect_refusal(&world, HL_E_PROTOCOL, "lease_count");
    head.lease_count = 2;
    head.leases[0].lease = head.leases[1].lease = lease;
    head.leases[0].page_count = head.leases[1].page_count = 1;
    engine_reserve(&world, 0, 0);
    engine_submit_bytes(&world, 0, 0, &head, sizeof head);
    expect_refusal(&world, HL_E_PROTOCOL, "leases[1].lease is that of leases[0]");
    world_close(&world);
}

static void binding_must_be_live_and_open(void)
{
    struct world world;
    world_open(&world, &plain);
    uint64_t lease = lease_on(&world, 1, 1);
    static const uint32_t numbers[] = {1, HL_SESSION_BINDINGS - 1, HL_SESSION_BINDINGS, UINT32_MAX};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        submit(&world, numbers[i], lease, 1, 0);
        expect_refusal(&world, HL_E_NOT_FOUND, "is not registered");
    }
    world_session(&world, 0)->bindings[0].publishes = 1; /* keeps it closing */
    world_session(&world, 0)->bindings[0].closing = true;
    world_session(&world, 0)->publish_slots = 1;
    submit(&world, 0, lease, 1, 0);
    expect_refusal(&world, HL_E_STATE, "is being unregistered");
    world_session(&world, 0)->bindings[0].publishes = 0;
    world_session(&world, 0)->bindings[0].closing = false;
    world_session(&world, 0)->publish_slots = 0;
    world_close(&world);
}

static void lease_must_be_the_sessions_and_alive(void)
{
    struct world world;
    world_open(&world, &plain);
    uint64_t lease = lease_on(&world, 1, 2);
    submit(&world, 0, lease + 1000, 1, 0);
    expect_refusal(&world, HL_E_NOT_FOUND, "lease");
    uint64_t other = world_query(&world, 1, 0, 1, 1, NULL);
    submit(&world, 0, other, 1, 0);
    expect_refusal(&world, HL_E_PERMISSION, "lease");
    submit(&world, 0, lease, 3, 0);
    expect_refusal(&world, HL_E_RANGE, "lease 0 has 2 blocks, page_count is 3");
    submit(&world, 0, lease, 2, 0); /* the same lease is good all the same, once */
    world_look(&world, 0, 0);
    engine_run_part(&world, 0, 0);
    world_look(&world, 0, 0);
    engine_retire(&world, 0, 0);
    submit(&world, 0, lease, 2, 0);
    expect_refusal(&world, HL_E_STATE, "lease");
    world_close(&world);
}

static hl_lease_id make_lease(struct world *world, uint32_t binding, uint64_t key, int64_t expires_ns)
{
    struct hl_index_key index = {.space = WORLD_SPACE};
    hl_entry_id entry;
    hl_lease_id lease;
    world_store(world, 0, key);
    world_key(key, index.hash);
    pthread_mutex_lock(&world->manager->lock);
    HL_REQUIRE_OK(hl_index_find(world->manager->index, &index, &entry, &world->err), world->err);
    const struct hl_lease_request request = {.session = world_session(world, 0)->serial,
                                             .binding = binding,
                                             .entries = &entry,
                                             .count = 1,
                                             .expires_ns = expires_ns,
                                             .budget = &world_session(world, 0)->bytes};
    HL_REQUIRE_OK(hl_lease_create(world->manager->leases, &request, &lease, &world->err), world->err);
    pthread_mutex_unlock(&world->manager->lock);
    return lease;
}

/* Expiry and consumption: whichever comes first, and the other finds nothing left. */
static void lease_expires_or_is_consumed(void)
{
    struct world world;
    world_open(&world, &plain);
    submit(&world, 0, make_lease(&world, 0, 5, hl_clock_ns() - 1), 1, 0);
    world_look(&world, 0, 0);
    CU_ASSERT_EQUAL(engine_record(&world, 0, 0)->status, HL_E_EXPIRED);
    CU_ASSERT_EQUAL(held(&world).pins, 0);
    engine_retire(&world, 0, 0);

    hl_lease_id lease = make_lease(&world, 0, 5, hl_clock_ns() + 3600 * HL_NS_PER_S);
    submit(&world, 0, lease, 1, 0);
    world_look(&world, 0, 0);
    pthread_mutex_lock(&world.manager->lock);
    CU_ASSERT_EQUAL(hl_lease_expire_due(world.manager->leases, INT64_MAX), 0);
    pthread_mutex_unlock(&world.manager->lock);
    CU_ASSERT_EQUAL(held(&world).pins, 1);
    engine_run_part(&world, 0, 0);
    world_look(&world, 0, 0);
    CU_ASSERT_EQUAL(world.manager->counters.restored, 1);
    world_expect_idle(&world);
    world_close(&world);
}

static void lease_of_another_binding_is_refused(void)
{
    struct world world;
    world_open(&world, &plain);
    submit(&world, 0, make_lease(&world, 3, 5, INT64_MAX), 1, 0);
    expect_refusal(&world, HL_E_STATE, "lease 0 is of binding 3, the restore of binding 0");
    world_session(&world, 0)->bindings[0].namespace_id = WORLD_SPACE + 1; /* the number is another's now */
    submit(&world, 0, make_lease(&world, 0, 5, INT64_MAX), 1, 0);
    expect_refusal(&world, HL_E_STATE, "of a binding that has gone");
    world_session(&world, 0)->bindings[0].namespace_id = WORLD_SPACE;
    world_close(&world);
}

static void destinations_are_checked_before_anything_is_consumed(void)
{
    struct world world;
    world_open(&world, &plain);
    uint64_t leases[2] = {lease_on(&world, 1, 2), lease_on(&world, 10, 1)};
    submit(&world, 0, leases[0], 2, 63);
    expect_refusal(&world, HL_E_RANGE, "page 64");
    const uint32_t counts[2] = {2, 1}, pages[3] = {4, 5, 4};
    engine_reserve(&world, 0, 0);
    engine_submit(&world, 0, 0, 0, 2, leases, counts, pages);
    expect_refusal(&world, HL_E_OVERLAP, "page 4");
    world_close(&world);
}

static void only_blocks_in_dram_are_restored(void)
{
    struct world world;
    world_open(&world, &plain);
    for (uint32_t residency = HL_RESIDENT_SSD; residency <= HL_RESIDENT_ENCODED; residency++) {
        struct hl_index_key key = {.space = WORLD_SPACE};
        struct hl_index_source source = {.allocation = 7, .bytes = 512, .residency = residency};
        struct hl_index_victim victim;
        hl_entry_id entry;
        bool present;
        world_store(&world, 0, 1);
        world_key(2, key.hash);
        HL_REQUIRE_OK(hl_index_reserve(world.manager->index, &key, &entry, &present, &world.err), world.err);
        HL_REQUIRE_OK(hl_index_complete(world.manager->index, entry, &source, &world.err), world.err);
        uint64_t lease = world_query(&world, 0, 0, 1, 2, NULL); /* one in DRAM, one not: mixed */
        struct held before = held(&world);
        submit(&world, 0, lease, 2, 0);
        world_look(&world, 0, 0);
        CU_ASSERT_EQUAL(engine_record(&world, 0, 0)->status, HL_E_UNSUPPORTED);
        CU_ASSERT_EQUAL(held(&world).pins, before.pins);
        engine_retire(&world, 0, 0);
        HL_EXPECT_OK(
            hl_lease_give_back(world.manager->leases, world_session(&world, 0)->serial, lease, 0, &world.err),
            world.err);
        HL_EXPECT_OK(hl_index_remove(world.manager->index, entry, &victim, &world.err), world.err);
    }
    world_close(&world);
}

/* --- budgets --- */

static void gpu_admits_128_restores_and_no_more(void)
{
    struct world world;
    world_open(&world, &plain);
    for (uint32_t i = 0; i < HL_GPU_RESTORES; i++) {
        engine_start(&world, 1, i, 100 + i, 1, i % 64);
        world_look(&world, 1, i);
        WORLD_EXPECT_STATE(&world, 1, i, HL_GRANT_GRANTED);
    }
    CU_ASSERT_EQUAL(held(&world).permits, HL_GPU_RESTORES);
    uint64_t lease = lease_on(&world, 1, 1);
    submit(&world, 0, lease, 1, 0);
    expect_refusal(&world, HL_E_BUDGET, "128 restores");
    engine_run_part(&world, 1, 0);
    world_look(&world, 1, 0);
    submit(&world, 0, lease, 1, 0); /* the lease was kept */
    world_look(&world, 0, 0);
    WORLD_EXPECT_STATE(&world, 0, 0, HL_GRANT_GRANTED);
    world_engine_dies(&world, 1); /* unclaimed grants are revoked: their permits come back */
    CU_ASSERT_EQUAL(held(&world).permits, 1);
    world_close(&world);
}

/* Metadata of the plan that restores `count` blocks from key 1 on. */
static uint64_t metadata_of(struct world *world, uint32_t count)
{
    uint64_t lease = lease_on(world, 1, count);
    submit(world, 0, lease, count, 0);
    world_look(world, 0, 0);
    uint64_t bytes = held(world).plan_bytes;
    engine_run_part(world, 0, 0);
    world_look(world, 0, 0);
    engine_retire(world, 0, 0);
    CU_ASSERT_TRUE(bytes > 0);
    return bytes;
}

static void metadata_bound_is_exact_and_consumes_nothing(void)
{
    struct world world;
    world_open(&world, &plain);
    uint64_t bytes = metadata_of(&world, 3);
    uint64_t lease = lease_on(&world, 1, 3);
    world.manager->metadata_bytes = bytes - 1;
    submit(&world, 0, lease, 3, 0);
    expect_refusal(&world, HL_E_LIMIT, "");
    world.manager->metadata_bytes = bytes;
    submit(&world, 0, lease, 3, 0);
    world_look(&world, 0, 0);
    WORLD_EXPECT_STATE(&world, 0, 0, HL_GRANT_GRANTED);
    world_close(&world);
}

static void plan_budget_is_exact_and_its_refusal_consumes_the_leases(void)
{
    struct world world;
    world_open(&world, &plain);
    uint64_t bytes = metadata_of(&world, 3);
    for (int extra = 0; extra < 2; extra++) {
        hl_budget_init(&world_session(&world, 0)->plan_bytes, 2 * bytes - 1 + (unsigned)extra);
        uint64_t first = lease_on(&world, 1, 3), second = lease_on(&world, 1, 3);
        submit(&world, 0, first, 3, 0);
        world_look(&world, 0, 0);
        WORLD_EXPECT_STATE(&world, 0, 0, HL_GRANT_GRANTED);
        const uint32_t count = 3, pages[3] = {10, 11, 12};
        engine_reserve(&world, 0, 1);
        engine_submit(&world, 0, 1, 0, 1, &second, &count, pages);
        world_look(&world, 0, 1);
        if (extra) {
            WORLD_EXPECT_STATE(&world, 0, 1, HL_GRANT_GRANTED);
            engine_run_part(&world, 0, 1);
            world_look(&world, 0, 1);
        } else {
            struct hl_leases_stats leases;
            WORLD_EXPECT_STATE(&world, 0, 1, HL_GRANT_REAPED);
            CU_ASSERT_EQUAL(engine_record(&world, 0, 1)->status, HL_E_BUDGET);
            hl_leases_get_stats(world.manager->leases, &leases);
            CU_ASSERT_EQUAL(leases.live, 0);       /* consumed */
            CU_ASSERT_EQUAL(held(&world).pins, 3); /* the first one's */
            CU_ASSERT_EQUAL(held(&world).permits, 1);
        }
        world_check(&world);
        engine_retire(&world, 0, 1);
        engine_run_part(&world, 0, 0);
        world_look(&world, 0, 0);
        engine_retire(&world, 0, 0);
        world_expect_idle(&world);
    }
    world_close(&world);
}

/* --- what is accepted --- */

static void part_of_a_lease_returns_the_rest(void)
{
    struct world world;
    world_open(&world, &plain);
    uint64_t lease = lease_on(&world, 1, 5);
    uint64_t block_bytes = world.layout->groups[0].block_bytes;
    CU_ASSERT_EQUAL(held(&world).bytes, 5 * block_bytes);
    submit(&world, 0, lease, 2, 8);
    world_look(&world, 0, 0);
    CU_ASSERT_EQUAL(held(&world).pins, 2);
    CU_ASSERT_EQUAL(held(&world).bytes, 2 * block_bytes);
    CU_ASSERT_EQUAL(world_session(&world, 0)->operations[0]->source_bytes, 2 * block_bytes);
    engine_run_part(&world, 0, 0);
    world_look(&world, 0, 0);
    CU_ASSERT_TRUE(world_page_holds(&world, 0, 0, 8, 1) && world_page_holds(&world, 0, 0, 9, 2));
    world_expect_idle(&world);
    world_close(&world);
}

static void many_leases_make_one_operation(void)
{
    struct world world;
    uint64_t leases[HL_RESTORE_LEASES];
    uint32_t counts[HL_RESTORE_LEASES], pages[HL_RESTORE_LEASES];
    world_open(&world, &plain);
    for (uint32_t i = 0; i < HL_RESTORE_LEASES; i++) {
        leases[i] = lease_on(&world, 10 * i, 1);
        counts[i] = 1;
        pages[i] = HL_RESTORE_LEASES - 1 - i;
    }
    engine_reserve(&world, 0, 0);
    engine_submit(&world, 0, 0, 0, HL_RESTORE_LEASES, leases, counts, pages);
    world_look(&world, 0, 0);
    CU_ASSERT_EQUAL(held(&world).leases, 0);
    engine_run_part(&world, 0, 0);
    world_look(&world, 0, 0);
    for (uint32_t i = 0; i < HL_RESTORE_LEASES; i++)
        CU_ASSERT_TRUE(world_page_holds(&world, 0, 0, pages[i], 10 * i));
    world_expect_idle(&world);
    world_close(&world);
}

static void stage_report_is_kept_when_asked_for_and_valid(void)
{
    static const uint64_t a_day = 24ull * 3600 * 1000000000;
    static const struct {
        bool asked, valid;
        uint64_t stage_ns[HL_STAGE_COUNT];
    } reports[] = {{true, true, {1, 2, 3, 4, 5, 6}},
                   {true, true, {0, 0, 0, 0, 0, 1}},
                   {true, true, {a_day, a_day, a_day, a_day, a_day, a_day}},
                   {false, true, {1, 2, 3, 4, 5, 6}},
                   {true, false, {0}},
                   {true, false, {1, 2, 3, 2, 5, 6}},
                   {true, false, {1, 2, 3, 4, 5, a_day + 1}},
                   {true, false, {UINT64_MAX, 2, 3, 4, 5, 6}}};
    struct world world;
    uint64_t count = 0;
    world_open(&world, &plain);
    for (size_t i = 0; i < sizeof reports / sizeof reports[0]; i++) {
        submit(&world, 0, lease_on(&world, 1, 1), 1, 0);
        engine_record(&world, 0, 0)->flags = reports[i].asked ? HL_GRANT_TRACE : 0;
        world_look(&world, 0, 0);
        CU_ASSERT_TRUE(engine_move(&world, 0, 0, HL_GRANT_GRANTED, HL_GRANT_ACTIVE));
        memcpy(engine_record(&world, 0, 0)->stage_ns, reports[i].stage_ns, sizeof reports[i].stage_ns);
        engine_drain(&world, 0, 0, HL_OK);
        world_look(&world, 0, 0);
        engine_retire(&world, 0, 0); /* drain, reaping and reuse go on whatever is reported (O1) */
        count += reports[i].asked && reports[i].valid;
        CU_ASSERT_EQUAL(world.manager->traced.count, count);
    }
    CU_ASSERT_EQUAL(world.manager->traced.stage_ns[HL_STAGE_DRAINED], 6 + 1 + a_day);
    CU_ASSERT_EQUAL(world.manager->counters.restored, sizeof reports / sizeof reports[0]);
    world_close(&world);
}

HL_TESTS(prepare, HL_CASE(descriptor_that_is_none_is_refused), HL_CASE(binding_must_be_live_and_open),
         HL_CASE(lease_must_be_the_sessions_and_alive), HL_CASE(lease_expires_or_is_consumed),
         HL_CASE(lease_of_another_binding_is_refused),
         HL_CASE(destinations_are_checked_before_anything_is_consumed),
         HL_CASE(only_blocks_in_dram_are_restored), HL_CASE(gpu_admits_128_restores_and_no_more),
         HL_CASE(metadata_bound_is_exact_and_consumes_nothing),
         HL_CASE(plan_budget_is_exact_and_its_refusal_consumes_the_leases),
         HL_CASE(part_of_a_lease_returns_the_rest), HL_CASE(many_leases_make_one_operation),
         HL_CASE(stage_report_is_kept_when_asked_for_and_valid));
