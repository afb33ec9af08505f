/* What a hit does, seen from inside the process that hits. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/testing/cunit.h"
#include "faults/hook.h"
#include "faults/testing.h"

#define POINT "weights_read_before"
#define AFTER "weights_read_after"

static hl_fault_board *begin(void)
{
    hl_fault_board *board = hl_fault_board_create();
    hl_fault_use_board(board);
    return board;
}

static void end(hl_fault_board *board)
{
    hl_fault_use_board(NULL);
    hl_fault_board_free(board);
}

static unsigned calls;

/* Stands for a system call that succeeds. */
static long call(long result)
{
    calls++;
    errno = 0;
    return result;
}

static long failing_call(void)
{
    calls++;
    errno = ENOENT;
    return -1;
}

static void without_a_board_nothing_happens(void)
{
    errno = ERANGE;
    CU_ASSERT_EQUAL(HL_FAULT(weights_read_before), 0);
    CU_ASSERT_FALSE(HL_FAULT_DROPS(weights_read_before));
    CU_ASSERT_EQUAL(HL_FAULT_SHORTENS(weights_read_before, (size_t)9), 9);
    CU_ASSERT_EQUAL(errno, ERANGE);
    CU_ASSERT_EQUAL(HL_FAULT_STEP(weights_read, call(5)), 5);
}

static void hits_are_counted_without_any_rule(void)
{
    hl_fault_board *board = begin();
    errno = ERANGE;
    for (int i = 0; i < 3; i++)
        CU_ASSERT_EQUAL(HL_FAULT(weights_read_before), 0);
    CU_ASSERT_EQUAL(errno, ERANGE);
    CU_ASSERT_EQUAL(HL_FAULT_STEP(weights_read, call(5)), 5);
    CU_ASSERT_EQUAL(hl_fault_hits(board, POINT), 4);
    CU_ASSERT_EQUAL(hl_fault_hits(board, AFTER), 1);
    CU_ASSERT_EQUAL(hl_fault_hits(board, "weights_remove_after"), 0);
    hl_fault_use_board(NULL);
    CU_ASSERT_EQUAL(HL_FAULT(weights_read_before), 0);
    CU_ASSERT_EQUAL(hl_fault_hits(board, POINT), 4);
    hl_fault_use_board(board);
    hl_fault_board_reset(board);
    CU_ASSERT_EQUAL(hl_fault_hits(board, POINT), 0);
    end(board);
}

static void an_error_before_a_step_replaces_the_call(void)
{
    hl_fault_board *board = begin();
    const unsigned rule = hl_fault_arm(board, POINT, 2, HL_FAULT_ERROR, ENOSPC);
    calls = 0;
    CU_ASSERT_EQUAL(HL_FAULT_STEP(weights_read, call(7)), 7);
    CU_ASSERT_EQUAL(hl_fault_fired(board, rule), 0);
    CU_ASSERT_FALSE(hl_fault_has_fired());
    CU_ASSERT_EQUAL(HL_FAULT_STEP(weights_read, call(7)), -1);
    CU_ASSERT_EQUAL(errno, ENOSPC);
    CU_ASSERT_EQUAL(calls, 1);
    CU_ASSERT_EQUAL(hl_fault_fired(board, rule), 1);
    CU_ASSERT_TRUE(hl_fault_has_fired());
    CU_ASSERT_EQUAL(hl_fault_hits(board, AFTER), 1);
    CU_ASSERT_EQUAL(HL_FAULT_STEP(weights_read, call(7)), 7);
    CU_ASSERT_EQUAL(hl_fault_fired(board, rule), 1);
    end(board);
}

static void an_error_after_a_step_makes_a_done_call_fail(void)
{
    hl_fault_board *board = begin();
    hl_fault_arm(board, AFTER, 1, HL_FAULT_ERROR, EIO);
    calls = 0;
    CU_ASSERT_EQUAL(HL_FAULT_STEP(weights_read, call(7)), -1);
    CU_ASSERT_EQUAL(errno, EIO);
    CU_ASSERT_EQUAL(calls, 1);
    end(board);
}

static void a_step_keeps_the_errno_of_its_own_failure(void)
{
    hl_fault_board *board = begin();
    hl_fault_arm(board, AFTER, 1, HL_FAULT_NONE, 0);
    CU_ASSERT_EQUAL(HL_FAULT_STEP(weights_read, failing_call()), -1);
    CU_ASSERT_EQUAL(errno, ENOENT);
    end(board);
}

static void *allocate(void)
{
    calls++;
    return &calls;
}

/* Taken and then reported as a failure it would be lost. */
static void an_error_before_a_call_replaces_it_and_after_it_none_can_be(void)
{
    hl_fault_board *board = begin();
    uint32_t after;
    hl_fault_arm(board, "manager_session_place_before", 1, HL_FAULT_ERROR, ENOSPC);
    calls = 0;
    CU_ASSERT_PTR_NULL(HL_FAULT_CALL(manager_session_place, allocate(), NULL));
    CU_ASSERT_EQUAL(errno, ENOSPC);
    CU_ASSERT_EQUAL(calls, 0);
    CU_ASSERT_EQUAL(hl_fault_hits(board, "manager_session_place_after"), 0);
    CU_ASSERT_PTR_EQUAL(HL_FAULT_CALL(manager_session_place, allocate(), NULL), &calls);
    CU_ASSERT_EQUAL(calls, 1);
    CU_ASSERT_EQUAL_FATAL(hl_fault_hits(board, "manager_session_place_after"), 1);
    CU_ASSERT_TRUE_FATAL(hl_fault_point_find("manager_session_place_after", &after));
    CU_ASSERT_EQUAL(hl_fault_suits(board, after), HL_FAULT_NONE);
    CU_ASSERT_EQUAL(hl_fault_suits(board, after - 1), HL_FAULT_ERROR);
    end(board);
}

static void a_submission_may_fail_on_either_side(void)
{
    hl_fault_board *board = begin();
    calls = 0;
    hl_fault_arm(board, "device_copy_before", 1, HL_FAULT_ERROR, EIO);
    CU_ASSERT_EQUAL(HL_FAULT_SUBMIT(device_copy, call(3), -7), -7);
    CU_ASSERT_EQUAL(calls, 0);
    hl_fault_arm(board, "device_copy_after", 1, HL_FAULT_ERROR, EPIPE);
    CU_ASSERT_EQUAL(HL_FAULT_SUBMIT(device_copy, call(3), -7), -7);
    CU_ASSERT_EQUAL(errno, EPIPE);
    CU_ASSERT_EQUAL(calls, 1);
    CU_ASSERT_EQUAL(HL_FAULT_SUBMIT(device_copy, call(3), -7), 3);
    end(board);
}

static void a_store_stands_between_its_points(void)
{
    hl_fault_board *board = begin();
    uint32_t before;
    int stored = 0;
    HL_FAULT_STORE(grant_submit, stored = (int)hl_fault_hits(board, "grant_submit_before") + 10);
    CU_ASSERT_EQUAL(stored, 11);
    CU_ASSERT_EQUAL(hl_fault_hits(board, "grant_submit_after"), 1);
    CU_ASSERT_TRUE_FATAL(hl_fault_point_find("grant_submit_before", &before));
    CU_ASSERT_EQUAL(hl_fault_suits(board, before), HL_FAULT_NONE);
    end(board);
}

static void after_a_move_stands_who_has_made_it(void)
{
    hl_fault_board *board = begin();
    CU_ASSERT_FALSE(HL_FAULT_MOVE(grant_claim, call(0) != 0));
    CU_ASSERT_EQUAL(hl_fault_hits(board, "grant_claim_after"), 0);
    CU_ASSERT_TRUE(HL_FAULT_MOVE(grant_claim, call(1) != 0));
    CU_ASSERT_EQUAL(hl_fault_hits(board, "grant_claim_after"), 1);
    CU_ASSERT_EQUAL(hl_fault_hits(board, "grant_claim_before"), 2);
    end(board);
}

static void a_dropped_notification_is_not_sent(void)
{
    hl_fault_board *board = begin();
    int sent = 0;
    hl_fault_arm(board, "channel_signal_restore_before", 1, HL_FAULT_DROP, 0);
    HL_FAULT_NOTIFY(channel_signal_restore, sent++);
    CU_ASSERT_EQUAL(sent, 0);
    HL_FAULT_NOTIFY(channel_signal_restore, sent++);
    CU_ASSERT_EQUAL(sent, 1);
    CU_ASSERT_EQUAL(hl_fault_hits(board, "channel_signal_restore_after"), 2);
    end(board);
}

static void a_persistent_error_stays_until_it_is_disarmed(void)
{
    hl_fault_board *board = begin();
    const unsigned rule = hl_fault_arm_spec(
        board, &(hl_fault_rule_spec){
                   .point = POINT, .nth = 2, .action = HL_FAULT_ERROR, .argument = EIO, .persistent = true});
    CU_ASSERT_EQUAL(HL_FAULT(weights_read_before), 0);
    for (int i = 0; i < 3; i++)
        CU_ASSERT_EQUAL(HL_FAULT(weights_read_before), EIO);
    hl_fault_disarm(board, rule);
    CU_ASSERT_EQUAL(HL_FAULT(weights_read_before), 0);
    CU_ASSERT_EQUAL(hl_fault_fired(board, rule), 3);
    /* A rule counts from its arming, not from the board's making. */
    const unsigned again = hl_fault_arm(board, POINT, 1, HL_FAULT_ERROR, ENOSPC);
    CU_ASSERT_EQUAL(again, rule);
    CU_ASSERT_EQUAL(HL_FAULT(weights_read_before), ENOSPC);
    end(board);
}

static void a_drop_loses_one_notification(void)
{
    hl_fault_board *board = begin();
    hl_fault_arm(board, POINT, 2, HL_FAULT_DROP, 0);
    CU_ASSERT_FALSE(HL_FAULT_DROPS(weights_read_before));
    CU_ASSERT_TRUE(HL_FAULT_DROPS(weights_read_before));
    CU_ASSERT_FALSE(HL_FAULT_DROPS(weights_read_before));
    end(board);
}

static void a_short_transfer_is_offered_at_least_one_byte(void)
{
    hl_fault_board *board = begin();
    hl_fault_arm(board, POINT, 1, HL_FAULT_SHORT, 10);
    hl_fault_arm(board, POINT, 2, HL_FAULT_SHORT, 0);
    hl_fault_arm(board, POINT, 3, HL_FAULT_SHORT, 1000);
    CU_ASSERT_EQUAL(HL_FAULT_SHORTENS(weights_read_before, (size_t)64), 10);
    CU_ASSERT_EQUAL(HL_FAULT_SHORTENS(weights_read_before, (size_t)64), 1);
    CU_ASSERT_EQUAL(HL_FAULT_SHORTENS(weights_read_before, (size_t)64), 64);
    CU_ASSERT_EQUAL(HL_FAULT_SHORTENS(weights_read_before, (size_t)64), 64);
    end(board);
}

static void a_delay_takes_at_least_its_time(void)
{
    enum { DELAY_NS = 2000000 };
    hl_fault_board *board = begin();
    hl_fault_arm(board, POINT, 1, HL_FAULT_DELAY, DELAY_NS);
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    CU_ASSERT_EQUAL(HL_FAULT(weights_read_before), 0);
    clock_gettime(CLOCK_MONOTONIC, &to);
    CU_ASSERT_TRUE((to.tv_sec - from.tv_sec) * 1000000000l + to.tv_nsec - from.tv_nsec >= DELAY_NS);
    end(board);
}

static void rules_that_meet_in_one_hit_all_act_and_the_first_error_counts(void)
{
    hl_fault_board *board = begin();
    unsigned rules[8];
    for (unsigned i = 0; i < 8; i++)
        rules[i] = hl_fault_arm(board, POINT, 1, i ? HL_FAULT_ERROR : HL_FAULT_NONE, EIO + i);
    CU_ASSERT_EQUAL(HL_FAULT(weights_read_before), EIO + 1);
    for (unsigned i = 0; i < 8; i++)
        CU_ASSERT_EQUAL(hl_fault_fired(board, rules[i]), 1);
    end(board);
}

static void *hit_many(void *argument)
{
    unsigned long *errors = argument;
    for (int i = 0; i < 1000; i++)
        *errors += HL_FAULT(weights_read_before) != 0;
    return NULL;
}

static void of_many_threads_one_makes_the_nth_hit(void)
{
    enum { THREADS = 4 };
    hl_fault_board *board = begin();
    hl_fault_arm(board, POINT, 3999, HL_FAULT_ERROR, EIO);
    const unsigned beyond = hl_fault_arm(board, POINT, 4001, HL_FAULT_ERROR, EIO);
    pthread_t ids[THREADS];
    unsigned long errors[THREADS] = {0}, sum = 0;
    for (int i = 0; i < THREADS; i++)
        CU_ASSERT_EQUAL_FATAL(pthread_create(&ids[i], NULL, hit_many, &errors[i]), 0);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(ids[i], NULL);
        sum += errors[i];
    }
    CU_ASSERT_EQUAL(sum, 1);
    CU_ASSERT_EQUAL(hl_fault_hits(board, POINT), 4000);
    CU_ASSERT_EQUAL(hl_fault_fired(board, beyond), 0);
    end(board);
}

static void *hit_once(void *result)
{
    *(int *)result = HL_FAULT(weights_read_before);
    return NULL;
}

static void parked_threads_are_seen_and_let_go(void)
{
    enum { THREADS = 3 };
    hl_fault_board *board = begin();
    const unsigned rule = hl_fault_arm_spec(
        board, &(hl_fault_rule_spec){.point = POINT, .nth = 1, .action = HL_FAULT_PARK, .persistent = true});
    pthread_t ids[THREADS];
    int results[THREADS];
    for (int i = 0; i < THREADS; i++)
        CU_ASSERT_EQUAL_FATAL(pthread_create(&ids[i], NULL, hit_once, &results[i]), 0);
    CU_ASSERT_TRUE(hl_fault_await_parked(board, rule, THREADS, HL_FAULT_PATIENCE_NS));
    CU_ASSERT_TRUE(hl_fault_parked_tid(board, rule) > 0);
    hl_fault_disarm(board, rule);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(ids[i], NULL);
        CU_ASSERT_EQUAL(results[i], 0);
    }
    CU_ASSERT_EQUAL(hl_fault_parked(board, rule), 0);
    CU_ASSERT_EQUAL(hl_fault_fired(board, rule), THREADS);
    end(board);
}

static void what_does_not_happen_is_not_awaited_for_ever(void)
{
    hl_fault_board *board = begin();
    const unsigned rule = hl_fault_arm(board, POINT, 1, HL_FAULT_PARK, 0);
    CU_ASSERT_FALSE(hl_fault_await_parked(board, rule, 1, 1000000));
    CU_ASSERT_FALSE(hl_fault_await_fired(board, rule, 1, 1000000));
    end(board);
}

static void every_point_has_its_own_name(void)
{
    const uint32_t count = hl_fault_point_count();
    CU_ASSERT_EQUAL(count, (uint32_t)HL_FAULT_POINT_COUNT);
    for (uint32_t i = 0; i < count; i++) {
        CU_ASSERT_PTR_NOT_NULL_FATAL(hl_fault_point_name(i));
        for (uint32_t j = 0; j < i; j++)
            CU_ASSERT_STRING_NOT_EQUAL(hl_fault_point_name(i), hl_fault_point_name(j));
    }
    CU_ASSERT_PTR_NULL(hl_fault_point_name(count));
    CU_ASSERT_STRING_EQUAL(hl_fault_point_name(HL_FAULT_AT_weights_remove_after), "weights_remove_after");
}

HL_TESTS(fault_hook, HL_CASE(without_a_board_nothing_happens), HL_CASE(hits_are_counted_without_any_rule),
         HL_CASE(an_error_before_a_step_replaces_the_call),
         HL_CASE(an_error_after_a_step_makes_a_done_call_fail),
         HL_CASE(a_step_keeps_the_errno_of_its_own_failure),
         HL_CASE(an_error_before_a_call_replaces_it_and_after_it_none_can_be),
         HL_CASE(a_submission_may_fail_on_either_side), HL_CASE(a_store_stands_between_its_points),
         HL_CASE(after_a_move_stands_who_has_made_it), HL_CASE(a_dropped_notification_is_not_sent),
         HL_CASE(a_persistent_error_stays_until_it_is_disarmed), HL_CASE(a_drop_loses_one_notification),
         HL_CASE(a_short_transfer_is_offered_at_least_one_byte), HL_CASE(a_delay_takes_at_least_its_time),
         HL_CASE(rules_that_meet_in_one_hit_all_act_and_the_first_error_counts),
         HL_CASE(of_many_threads_one_makes_the_nth_hit), HL_CASE(parked_threads_are_seen_and_let_go),
         HL_CASE(what_does_not_happen_is_not_awaited_for_ever), HL_CASE(every_point_has_its_own_name));
