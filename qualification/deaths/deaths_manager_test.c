/* Every death, stop, error and lost notification of a Manager, enumerated, while its engine lives on: what
 * was granted drains and is reported, nothing else is, and another Manager serves the same engine and fresh
 * ones. */
#include "qualification/deaths/scenarios.h"

/* What is asked again until it has happened, and marks that may come together. */
static const char *const varying[] = {STEP("channel_receive"), STEP("grant_marks_take"),
                                      STEP("manager_bank_take"), NULL};

static void manager(void)
{
    sweep("deaths_manager_test", &(hl_sweep_scenario){
                                     .name = "manager",
                                     .survivor = ROLE("engine-survives"),
                                     .victim = ROLE("manager"),
                                     .recover = ROLE("manager"),
                                     .check = ROLE("manager-settles"),
                                     .varying = varying,
                                     .hits_a_point = MOST_HITS,
                                 });
}

/* Another engine dies over what it has claimed. */
static void manager_of_a_dead_engine(void)
{
    sweep("deaths_manager_test",
          &(hl_sweep_scenario){
              .name = "manager_of_a_dead_engine",
              .survivor = ROLE("engines-survive-and-die"),
              .victim = ROLE("manager"),
              .recover = ROLE("manager"),
              .check = ROLE("manager-settles"),
              .varying = varying,
              .points = (const char *const[]){"manager_quarantine_", "manager_session_death", NULL},
          });
}

static void manager_that_cannot_copy(void)
{
    sweep("deaths_manager_test", &(hl_sweep_scenario){
                                     .name = "manager_that_cannot_copy",
                                     .survivor = ROLE("engine-survives-hampered"),
                                     .victim = ROLE("manager"),
                                     .recover = ROLE("manager"),
                                     .check = ROLE("manager-settles"),
                                     .always = (const char *const[]){"device_copy_batch_before:1:EIO", NULL},
                                     .varying = varying,
                                     .points = (const char *const[]){"manager_block_abandon", NULL},
                                 });
}

/* Points of the engine, which deaths_engine_test hits. */
static const char *const not_the_managers[] = {UNREACHABLE,
                                               STEP("device_gather"),
                                               STEP("device_stream_wait_value"),
                                               STEP("channel_connect"),
                                               STEP("channel_descriptors_map"),
                                               STEP("channel_extent_give"),
                                               STEP("channel_extent_take"),
                                               "channel_fds_receive",
                                               STEP("channel_signal_retirement"),
                                               STEP("channel_slot_pending"),
                                               STEP("channel_slot_read"),
                                               STEP("device_event_query"),
                                               STEP("device_fill"),
                                               STEP("device_ipc_export"),
                                               STEP("device_mem_alloc"),
                                               STEP("device_mem_free"),
                                               STEP("device_stream_query"),

                                               STEP("device_stream_wait_event"),
                                               STEP("grant_cancel"),
                                               STEP("grant_claim"),
                                               STEP("grant_consume"),
                                               STEP("grant_drained"),
                                               STEP("grant_free"),
                                               STEP("grant_mark"),
                                               STEP("grant_memory_map"),
                                               STEP("grant_part_drained"),
                                               STEP("grant_reserve"),
                                               STEP("grant_submit"),
                                               STEP("grant_withdraw"),
                                               NULL};

static void every_point_of_the_manager_was_hit(void)
{
    static const char *const prefixes[] = {"manager_", "grant_", "channel_", "device_", "plan_"};
    CU_ASSERT_PTR_NOT_NULL_FATAL(totals);
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
        CU_ASSERT_EQUAL(hl_sweep_report(totals, prefixes[i], not_the_managers), 0);
    hl_sweep_totals_free(totals);
    totals = NULL;
}

HL_TESTS(deaths_manager, HL_CASE(manager), HL_CASE(manager_of_a_dead_engine),
         HL_CASE(manager_that_cannot_copy), HL_CASE(every_point_of_the_manager_was_hit));
