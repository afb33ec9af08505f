/* Races and losses, forced both ways: cancellation, revocation, lost wake-ups, a Manager that goes away in
 * each state. */
#include "engine/fake_peer.h"
#include "faults/testing.h"

#include <sched.h>

/* Holds the engine's worker at a point, once. */
struct gate {
    hl_fault_board *board;
    unsigned rule;
};

static void make_gate(struct gate *gate, const char *point)
{
    gate->board = hl_fault_board_create();
    gate->rule = hl_fault_arm(gate->board, point, 1, HL_FAULT_PARK, 0);
    hl_fault_use_board(gate->board);
}

static void await_gate(struct gate *gate)
{
    CU_ASSERT_TRUE_FATAL(hl_fault_await_parked(gate->board, gate->rule, 1, HL_FAULT_PATIENCE_NS));
}

static void open_gate(struct gate *gate)
{
    hl_fault_release(gate->board, gate->rule);
}

/* After the engine has been closed: nobody is at a point. */
static void end_gate(struct gate *gate)
{
    hl_fault_use_board(NULL);
    hl_fault_board_free(gate->board);
}

static hl_stream copy_stream(struct fake_client *client)
{
    return hl_transfer_stream(client->binding->transfer);
}

/* G9: before the Manager took it up, the engine takes the record back. */
static void a_cancelled_reservation_is_taken_back(void)
{
    struct fake fake;
    struct fake_client client;
    fake_open_all(&fake, &client);
    hl_restore *restore = fake_restore(&client, 0, 2);
    uint32_t record = fake_await_submission(&fake);
    uint32_t generation = hl_grant_load(fake.grants, record).generation;
    hl_restore_cancel(restore);
    fake_expect_outcome(restore, HL_E_CANCELLED, true);
    fake_await_retired(&fake, record, generation);
    CU_ASSERT_EQUAL(hl_grant_load(fake.grants, record).state, HL_GRANT_FREE);
    fake_await_received(&fake, HL_MESSAGE_RELEASE, 1); /* the lease was not consumed */
    fake_close_all(&fake, &client);
}

/* G9: during preparation it is a request; the end comes after the Manager's clean-up. */
static void a_cancelled_preparation_ends_with_the_managers_answer(void)
{
    struct fake fake;
    struct fake_client client;
    fake_open_all(&fake, &client);
    hl_restore *restore = fake_restore(&client, 0, 2);
    uint32_t record = fake_await_submission(&fake);
    fake_prepare(&fake, record);
    struct hl_grant_record *shared = hl_grant_record_at(fake.grants, record);
    hl_restore_cancel(restore);
    while (atomic_load(&shared->cancel) != hl_grant_load(fake.grants, record).generation)
        fake_await_fd(fake.retirement_fd);
    CU_ASSERT_EQUAL(hl_restore_poll(restore, NULL, NULL), HL_PENDING);
    fake_reject(&fake, record, HL_E_CANCELLED, "cancelled");
    fake_reap(&fake, record);
    fake_expect_outcome(restore, HL_E_CANCELLED, true);
    fake_close_all(&fake, &client);
}

/* A granted operation goes on. */
static void cancelling_a_granted_operation_changes_nothing(void)
{
    struct fake fake;
    struct fake_client client;
    fake_open_all(&fake, &client);
    hl_restore *restore = fake_restore(&client, 0, 8);
    hl_software_hold(fake.dev, copy_stream(&client), 0);
    uint32_t record = fake_grant_next(&fake);
    HL_EXPECT_OK(hl_restore_wait_enqueued(restore, -1, &client.err), client.err);
    hl_restore_cancel(restore);
    hl_software_release(fake.dev, copy_stream(&client));
    fake_await_and_reap(&fake, record);
    HL_EXPECT_OK(hl_restore_wait(restore, -1, NULL, &client.err), client.err);
    hl_restore_cancel(restore);
    fake_expect_outcome(restore, HL_OK, false);
    CU_ASSERT_TRUE(fake_tensors_match(&fake));
    fake_close_all(&fake, &client);
}

/* G4, F7: the revocation first: the claim fails, no page is touched. */
static void a_revocation_before_the_claim_wins(void)
{
    struct fake fake;
    struct fake_client client;
    struct gate gate;
    hl_error err = {0};
    fake_open(&fake);
    make_gate(&gate, "grant_claim_before");
    fake_connect(&fake, &client, NULL, 0);
    fake_register(&client);
    hl_restore *restore = fake_restore(&client, 0, 4);
    uint32_t record = fake_grant_next(&fake);
    await_gate(&gate);
    CU_ASSERT_TRUE(fake_revoke(&fake, record, HL_GRANT_GRANTED));
    open_gate(&gate);
    HL_EXPECT_STATUS(hl_restore_wait(restore, -1, NULL, &err), HL_E_EXPIRED, err);
    CU_ASSERT_STRING_EQUAL(err.text, "revoked by the test");
    fake_expect_outcome(restore, HL_E_EXPIRED, true);
    fake_reap(&fake, record);
    fake_close_all(&fake, &client);
    end_gate(&gate);
}

/* G4, F7: the claim first: the revocation fails, the bytes arrive. */
static void a_revocation_after_the_claim_is_refused(void)
{
    struct fake fake;
    struct fake_client client;
    struct gate gate;
    fake_open(&fake);
    make_gate(&gate, "grant_claim_after");
    fake_connect(&fake, &client, NULL, 0);
    fake_register(&client);
    hl_restore *restore = fake_restore(&client, 0, 4);
    uint32_t record = fake_grant_next(&fake);
    await_gate(&gate);
    CU_ASSERT_FALSE(fake_revoke(&fake, record, HL_GRANT_GRANTED));
    open_gate(&gate);
    fake_await_and_reap(&fake, record);
    fake_expect_outcome(restore, HL_OK, false);
    CU_ASSERT_TRUE(fake_tensors_match(&fake));
    fake_close_all(&fake, &client);
    end_gate(&gate);
}

/* Between two parts nothing is on the device: the rest may be revoked, and the pages are not what they were.
 */
static void a_revocation_between_parts_ends_it(void)
{
    struct fake fake;
    struct fake_client client;
    fake_open_all(&fake, &client);
    fake.part_bytes = 1024;
    hl_restore *restore = fake_restore(&client, 0, 24);
    uint32_t record = fake_grant_next(&fake);
    fake_await_state(&fake, record, HL_GRANT_PART_DRAINED);
    CU_ASSERT_TRUE(fake_revoke(&fake, record, HL_GRANT_PART_DRAINED));
    fake_expect_outcome(restore, HL_E_EXPIRED, false);
    fake_reap(&fake, record);
    fake_close_all(&fake, &client);
}

/* R8: a rejection comes with its code and text; the lease may have been consumed or not. */
static void a_rejection_carries_code_and_text(void)
{
    struct fake fake;
    struct fake_client client;
    hl_error err = {0};
    fake_open_all(&fake, &client);
    hl_restore *restore = fake_restore(&client, 0, 4);
    uint32_t record = fake_await_submission(&fake);
    fake_prepare(&fake, record);
    fake_reject(&fake, record, HL_E_BUDGET, "the session has prepared as much as it may");
    HL_EXPECT_STATUS(hl_restore_wait_enqueued(restore, -1, &err), HL_E_BUDGET, err);
    CU_ASSERT_STRING_EQUAL(err.text, "the session has prepared as much as it may");
    fake_expect_outcome(restore, HL_E_BUDGET, true);
    fake_reap(&fake, record);
    fake_await_received(&fake, HL_MESSAGE_RELEASE, 1);
    fake_close_all(&fake, &client);
}

/* I6, G5, F6: a Manager that never writes an eventfd delays, and loses nothing; sleeping and spinning. */
static void lost_wake_ups_only_delay(void)
{
    for (uint32_t spin_us = 0; spin_us <= 100; spin_us += 100) {
        struct fake fake;
        struct fake_client client;
        fake_open(&fake);
        fake.silent = true;
        fake.part_bytes = 1024;
        fake_connect(&fake, &client, NULL, spin_us);
        fake_register(&client);
        hl_restore *restore = fake_restore(&client, 0, 24);
        uint32_t record = fake_await_submission(&fake);
        uint32_t generation = hl_grant_load(fake.grants, record).generation;
        fake_prepare(&fake, record);
        size_t parts = hl_plan_part_count(fake.operations[record].plan);
        for (uint32_t part = 0; part < parts; part++) {
            fake_grant(&fake, record, 0);
            fake_await_state(&fake, record, part + 1 < parts ? HL_GRANT_PART_DRAINED : HL_GRANT_DRAINED);
        }
        fake_reap(&fake, record);
        fake_expect_outcome(restore, HL_OK, false);
        fake_await_retired(&fake, record, generation);
        CU_ASSERT_TRUE(fake_tensors_match(&fake));
        fake_close_all(&fake, &client);
    }
}

enum death {
    DEATH_RESERVED,
    DEATH_PREPARING,
    DEATH_GRANTED,
    DEATH_ACTIVE,
    DEATH_PART_DRAINED,
    DEATH_DRAINED,
    DEATHS
};

/* Brings a fresh operation to the state in which the Manager is to die. */
static uint32_t stage_death(struct fake *fake, struct fake_client *client, enum death death,
                            struct gate *gate)
{
    uint32_t record = fake_await_submission(fake);
    if (death == DEATH_RESERVED)
        return record;
    fake_prepare(fake, record);
    if (death == DEATH_PREPARING)
        return record;
    if (death == DEATH_ACTIVE)
        hl_software_hold(fake->dev, copy_stream(client), 0);
    fake_grant(fake, record, 0);
    if (death == DEATH_GRANTED)
        await_gate(gate);
    if (death == DEATH_ACTIVE)
        hl_software_wait_held(fake->dev, copy_stream(client));
    if (death == DEATH_PART_DRAINED)
        fake_await_state(fake, record, HL_GRANT_PART_DRAINED);
    if (death == DEATH_DRAINED)
        fake_await_state(fake, record, HL_GRANT_DRAINED);
    return record;
}

/* I8, F3, G5, G8: what was granted completes with exact bytes; what was not leaves the pages alone. */
static void the_managers_death_changes_no_granted_result(void)
{
    static const struct {
        hl_status status;
        bool untouched;
    } outcomes[DEATHS] = {[DEATH_RESERVED] = {HL_E_PEER, true},      [DEATH_PREPARING] = {HL_E_PEER, true},
                          [DEATH_GRANTED] = {HL_OK, false},          [DEATH_ACTIVE] = {HL_OK, false},
                          [DEATH_PART_DRAINED] = {HL_E_PEER, false}, [DEATH_DRAINED] = {HL_OK, false}};
    for (enum death death = 0; death < DEATHS; death++) {
        struct fake fake;
        struct fake_client client;
        struct gate gate = {0};
        hl_lease *lease = NULL;
        const hl_block_key key = {{0}};
        fake_open(&fake);
        fake_start_victim(&fake);
        if (death == DEATH_GRANTED)
            make_gate(&gate, "grant_claim_before");
        fake_connect(&fake, &client, NULL, 0);
        fake_register(&client);
        fake.part_bytes = death == DEATH_PART_DRAINED ? 1024 : 0;
        hl_restore *restore = fake_restore(&client, 0, 24);
        stage_death(&fake, &client, death, &gate);
        fake_kill_victim(&fake);
        fake_await_loss(&client, HL_E_PEER);
        if (death == DEATH_GRANTED)
            open_gate(&gate);
        if (death == DEATH_ACTIVE)
            hl_software_release(fake.dev, copy_stream(&client));
        fake_expect_outcome(restore, outcomes[death].status, outcomes[death].untouched);
        if (outcomes[death].status == HL_OK)
            CU_ASSERT_TRUE(fake_tensors_match(&fake));
        HL_EXPECT_STATUS(hl_query(client.binding, &key, 1, NULL, &lease, &client.err), HL_E_PEER, client.err);
        fake_close_all(&fake, &client);
        if (death == DEATH_GRANTED)
            end_gate(&gate);
    }
}

/* I8: what was granted and not looked at when the Manager died is copied all the same: the worker, held
 * before its claim of another record, sees the death first and then this grant. */
static void a_grant_seen_only_after_the_managers_death_is_copied(void)
{
    struct fake fake;
    struct fake_client client;
    struct gate gate;
    fake_open(&fake);
    fake_start_victim(&fake);
    make_gate(&gate, "grant_claim_before");
    fake_connect(&fake, &client, NULL, 0);
    fake_register(&client);
    hl_restore *first = fake_restore(&client, 0, 8);
    fake_grant_next(&fake);
    await_gate(&gate);
    hl_restore *second = fake_restore(&client, 8, 8);
    uint32_t record = fake_await_submission(&fake);
    fake_prepare(&fake, record);
    fake_grant(&fake, record, HL_PLAN_PART_BYTES / 2);
    fake_kill_victim(&fake);
    fake_await_loss(&client, HL_E_PEER);
    open_gate(&gate);
    fake_expect_outcome(first, HL_OK, false);
    fake_expect_outcome(second, HL_OK, false);
    CU_ASSERT_TRUE(fake_tensors_match(&fake));
    fake_close_all(&fake, &client);
    end_gate(&gate);
}

/* The channel closes and the Manager lives on: what it has taken up it ends itself, the rest is taken back.
 */
static void a_closed_channel_leaves_records_to_the_manager(void)
{
    struct fake fake;
    struct fake_client client;
    fake_open_all(&fake, &client);
    hl_restore *granted = fake_restore(&client, 0, 4);
    uint32_t a = fake_await_submission(&fake);
    fake_prepare(&fake, a);
    hl_restore *rejected = fake_restore(&client, 0, 4);
    uint32_t b = fake_await_submission(&fake);
    fake_prepare(&fake, b);
    hl_restore *reserved = fake_restore(&client, 0, 4);
    fake_await_submission(&fake);
    fake_hang_up(&fake);
    fake_await_loss(&client, HL_E_PEER);
    fake_expect_outcome(reserved, HL_E_PEER, true);
    CU_ASSERT_EQUAL(hl_restore_poll(rejected, NULL, NULL), HL_PENDING);
    fake_reject(&fake, b, HL_E_CANCELLED, "the session is gone");
    fake_expect_outcome(rejected, HL_E_CANCELLED, true);
    fake_reap(&fake, b);
    fake_grant(&fake, a, 0);
    fake_expect_outcome(granted, HL_OK, false);
    fake_await_and_reap(&fake, a);
    CU_ASSERT_TRUE(fake_tensors_match(&fake));
    fake_close_all(&fake, &client);
}

struct ending {
    hl_binding *binding;
    hl_status status;
};

static void *unregister(void *argument)
{
    struct ending *ending = argument;
    ending->status = hl_engine_unregister(ending->binding, NULL);
    return NULL;
}

static void count_release(void *owner)
{
    atomic_fetch_add((_Atomic int *)owner, 1);
}

/* R4, R12, F8: unregistering admits nothing more, waits for the copies, then releases each tensor once; fresh
 * owners can be registered afterwards. */
static void unregister_waits_and_releases_owners_once(void)
{
    static _Atomic int releases[FAKE_TENSORS];
    struct fake fake;
    struct fake_client client;
    struct ending ending;
    pthread_t thread;
    hl_lease *lease = NULL;
    const hl_block_key key = {{0}};
    hl_status status;
    fake_open(&fake);
    fake_connect(&fake, &client, NULL, 0);
    for (uint32_t i = 0; i < FAKE_TENSORS; i++) {
        fake.tensors[i].owner = &releases[i];
        fake.tensors[i].release = count_release;
    }
    for (int round = 1; round <= 2; round++) {
        fake_register(&client);
        hl_restore *restore = fake_restore(&client, 0, 8);
        hl_software_hold(fake.dev, copy_stream(&client), 0);
        uint32_t record = fake_grant_next(&fake);
        HL_EXPECT_OK(hl_restore_wait_enqueued(restore, -1, &client.err), client.err);
        ending.binding = client.binding;
        CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, unregister, &ending), 0);
        while ((status = hl_query(client.binding, &key, 1, NULL, &lease, &client.err)) == HL_OK) {
            hl_lease_release(lease);
            sched_yield();
        }
        HL_EXPECT_STATUS(status, HL_E_STATE, client.err);
        for (uint32_t i = 0; i < FAKE_TENSORS; i++)
            CU_ASSERT_EQUAL(atomic_load(&releases[i]), round - 1);
        hl_software_release(fake.dev, copy_stream(&client));
        pthread_join(thread, NULL);
        CU_ASSERT_EQUAL(ending.status, HL_OK);
        for (uint32_t i = 0; i < FAKE_TENSORS; i++)
            CU_ASSERT_EQUAL(atomic_load(&releases[i]), round);
        fake_expect_outcome(restore, HL_OK, false);
        fake_await_and_reap(&fake, record);
    }
    CU_ASSERT_TRUE(fake_tensors_match(&fake));
    fake_close_all(&fake, &client);
}

/* G8: behind the same address another Manager: old leases are refused, a new registration works. */
static void leases_of_an_older_session_are_refused(void)
{
    struct fake old, fresh;
    struct fake_client before, after;
    const uint32_t page = 0;
    hl_restore *restore = NULL;
    hl_restore_request request;
    hl_restore_result result;
    fake_open_all(&old, &before);
    hl_restore *finished = fake_restore(&before, 0, 1);
    uint32_t record = fake_grant_next(&old);
    fake_await_and_reap(&old, record);
    hl_lease *lease = fake_query(&before, 0, 1);
    HL_EXPECT_OK(hl_restore_wait(finished, -1, NULL, &before.err), before.err);
    fake_close_all(&old, &before);
    fake_open_all(&fresh, &after);
    hl_restore_request_init(&request);
    hl_restore_source source = {.lease = lease, .pages = &page, .count = 1};
    request.sources = &source;
    request.source_count = 1;
    HL_EXPECT_STATUS(hl_restore_start(after.binding, &request, &restore, &after.err), HL_E_STATE, after.err);
    hl_lease_release(lease);
    /* The old handle keeps its issuer: its result is still there. */
    HL_EXPECT_OK(hl_restore_poll(finished, &result, &before.err), before.err);
    CU_ASSERT_TRUE(result.bytes > 0);
    hl_restore_close(finished);
    restore = fake_restore(&after, 0, 4);
    record = fake_grant_next(&fresh);
    fake_await_and_reap(&fresh, record);
    fake_expect_outcome(restore, HL_OK, false);
    CU_ASSERT_TRUE(fake_tensors_match(&fresh));
    fake_close_all(&fresh, &after);
}

HL_TESTS(engine_race, HL_CASE(a_cancelled_reservation_is_taken_back),
         HL_CASE(a_cancelled_preparation_ends_with_the_managers_answer),
         HL_CASE(cancelling_a_granted_operation_changes_nothing), HL_CASE(a_revocation_before_the_claim_wins),
         HL_CASE(a_revocation_after_the_claim_is_refused), HL_CASE(a_revocation_between_parts_ends_it),
         HL_CASE(a_rejection_carries_code_and_text), HL_CASE(lost_wake_ups_only_delay),
         HL_CASE(the_managers_death_changes_no_granted_result),
         HL_CASE(a_grant_seen_only_after_the_managers_death_is_copied),
         HL_CASE(a_closed_channel_leaves_records_to_the_manager),
         HL_CASE(unregister_waits_and_releases_owners_once), HL_CASE(leases_of_an_older_session_are_refused));
