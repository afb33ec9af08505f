/* What an operation and a publish take, refused one thing at a time; the engine is played by the test. The
 * record or the slot says why, every credit is where it was, and the next one works. */
#include <errno.h>

#include "faults/testing.h"
#include "manager/manager_testing.h"

static hl_fault_board *board;

static void begin(void)
{
    board = hl_fault_board_create();
    hl_fault_use_board(board);
}

/* When no thread is at a point. */
static void end(void)
{
    hl_fault_use_board(NULL);
    hl_fault_board_free(board);
}

static void finish(struct world *world, uint32_t record)
{
    while (world_state(world, 0, record) == HL_GRANT_GRANTED) {
        engine_run_part(world, 0, record);
        world_look(world, 0, record);
    }
    WORLD_EXPECT_STATE(world, 0, record, HL_GRANT_REAPED);
    engine_retire(world, 0, record);
}

/* Whether the fault was reached; then the record was rejected with `status`. */
static bool refuse(struct world *world, const char *point, uint32_t nth, hl_status status, uint32_t record)
{
    const unsigned rule = hl_fault_arm(board, point, nth, HL_FAULT_ERROR, ENOMEM);
    engine_start(world, 0, record, 100 * (record + 1), 3, 10);
    world_look(world, 0, record);
    const bool fired = hl_fault_fired(board, rule) > 0;
    hl_fault_disarm(board, rule);
    if (!fired) {
        finish(world, record);
        return false;
    }
    WORLD_EXPECT_STATE(world, 0, record, HL_GRANT_REAPED);
    const struct hl_grant_record *shared = engine_record(world, 0, record);
    if (shared->status != status)
        fprintf(stderr, "%s, hit %u: %s, %s\n", point, nth, hl_status_name((hl_status)shared->status),
                shared->text);
    CU_ASSERT_EQUAL(shared->status, status);
    CU_ASSERT_NOT_EQUAL(shared->text[0], '\0');
    CU_ASSERT_PTR_NULL(world_session(world, 0)->operations[record]);
    CU_ASSERT_EQUAL(hl_budget_used(&world->manager->gpus[0].permits), 0);
    CU_ASSERT_EQUAL(hl_budget_used(&world_session(world, 0)->plan_bytes), 0);
    CU_ASSERT_EQUAL(hl_bank_used(world_session(world, 0)->bank), 0);
    world_check(world);
    engine_retire(world, 0, record);
    return true;
}

static void an_operation_that_cannot_be_had_is_rejected(void)
{
    static const struct {
        const char *point;
        hl_status status;
    } failures[] = {
        {"channel_extent_copy_before", HL_E_NOMEM},
        {"manager_permit_take_before", HL_E_BUDGET},
        {"plan_memory_take", HL_E_NOMEM},
        {"manager_plan_bytes_take_before", HL_E_BUDGET},
        {"manager_lease_consume_before", HL_E_NOMEM},
    };
    const struct world_options options = {0};
    struct world world;
    uint32_t record = 0;
    world_open(&world, &options);
    begin();
    for (size_t i = 0; i < sizeof failures / sizeof failures[0]; i++) {
        uint32_t nth = 1;
        while (refuse(&world, failures[i].point, nth, failures[i].status, record++))
            nth++;
        CU_ASSERT_TRUE(nth > 1);
    }
    end();
    world_close(&world);
}

/* A part that finds no space waits, and maintenance or the next look grants it. */
static void a_part_without_space_is_deferred(void)
{
    const struct world_options options = {.part_bytes = 320};
    for (uint32_t nth = 1; nth <= 2; nth++) {
        struct world world;
        world_open(&world, &options);
        begin();
        const unsigned rule = hl_fault_arm(board, "manager_bank_take_before", nth, HL_FAULT_ERROR, ENOSPC);
        engine_start(&world, 0, 0, 100, 6, 0);
        for (unsigned look = 0; look < 100 && world_state(&world, 0, 0) != HL_GRANT_REAPED; look++) {
            if (world_state(&world, 0, 0) == HL_GRANT_GRANTED)
                engine_run_part(&world, 0, 0);
            world_sweep(&world, 0);
            world_check(&world);
        }
        CU_ASSERT_EQUAL(hl_fault_fired(board, rule), 1);
        CU_ASSERT_TRUE(hl_fault_hits(board, "grant_next_part_after") > 0);
        WORLD_EXPECT_STATE(&world, 0, 0, HL_GRANT_REAPED);
        for (uint32_t i = 0; i < 6; i++)
            CU_ASSERT_TRUE(world_page_holds(&world, 0, 0, 2 * i, 100 + i));
        end();
        world_expect_idle(&world);
        engine_retire(&world, 0, 0);
        world_close(&world);
    }
}

static void publish_and_expect(struct world *world, uint32_t slot, uint64_t key, hl_status status,
                               uint32_t stored)
{
    world_fill_page(world, 0, 0, 3, key);
    world_publish(world, 0, slot, 0, key, 1, 3);
    const struct hl_publish_slot outcome = world_publish_outcome(world, 0, slot);
    if (outcome.status != status)
        fprintf(stderr, "got %s: %s\n", hl_status_name((hl_status)outcome.status), outcome.text);
    CU_ASSERT_EQUAL(outcome.status, status);
    CU_ASSERT_EQUAL(outcome.stored, stored);
}

static void a_publish_that_fails_stores_nothing_and_the_next_one_does(void)
{
    static const struct {
        const char *point;
        hl_status status;
    } failures[] = {
        {"manager_block_reserve_before", HL_E_NOSPACE}, {"manager_block_take_before", HL_E_NOSPACE},
        {"device_enter_before", HL_E_DEVICE},           {"device_event_record_before", HL_E_DEVICE},
        {"device_event_record_after", HL_E_DEVICE},     {"device_event_synchronize_before", HL_E_DEVICE},
    };
    const struct world_options options = {.publisher = true};
    struct world world;
    world_open(&world, &options);
    begin();
    for (uint32_t i = 0; i < sizeof failures / sizeof failures[0]; i++) {
        const unsigned char *stored;
        const uint64_t key = 500 + i;
        world_fill_page(&world, 0, 0, 3, key); /* the device is used before the fault is armed */
        const unsigned rule = hl_fault_arm_spec(
            board, &(hl_fault_rule_spec){
                       .point = failures[i].point, .nth = 1, .action = HL_FAULT_ERROR, .argument = EIO});
        world_publish(&world, 0, i, 0, key, 1, 3);
        const struct hl_publish_slot outcome = world_publish_outcome(&world, 0, i);
        CU_ASSERT_EQUAL(outcome.status, failures[i].status);
        CU_ASSERT_EQUAL(outcome.stored, 0);
        CU_ASSERT_NOT_EQUAL(outcome.text[0], '\0');
        CU_ASSERT_EQUAL(hl_fault_fired(board, rule), 1);
        hl_fault_disarm(board, rule);
        CU_ASSERT_FALSE(world_stored(&world, 0, key, &stored));
        world_check(&world);
        publish_and_expect(&world, i, key, HL_OK, 1);
    }
    CU_ASSERT_EQUAL(world.manager->leaked_blocks, 0);
    world_close(&world);
    end();
}

static void a_publish_that_cannot_be_taken_is_refused(void)
{
    const struct world_options options = {.publisher = true};
    const uint64_t key = 9;
    struct world world;
    world_open(&world, &options);
    begin();
    hl_fault_arm(board, "manager_publish_accept_before", 1, HL_FAULT_ERROR, ENOMEM);
    pthread_mutex_lock(&world.manager->lock);
    HL_EXPECT_STATUS(world_publish_locked(&world, 0, 0, 0, &key, 1, 3), HL_E_NOMEM, world.err);
    pthread_mutex_unlock(&world.manager->lock);
    publish_and_expect(&world, 0, key, HL_OK, 1);
    world_close(&world);
    end();
}

HL_TESTS(manager_steps, HL_CASE(an_operation_that_cannot_be_had_is_rejected),
         HL_CASE(a_part_without_space_is_deferred),
         HL_CASE(a_publish_that_fails_stores_nothing_and_the_next_one_does),
         HL_CASE(a_publish_that_cannot_be_taken_is_refused));
