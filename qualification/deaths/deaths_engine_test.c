/* Every death, stop, error and lost notification of an engine, enumerated, while its Manager lives on: what
 * the engine had claimed and not drained is in quarantine, everything else is home, and other engines
 * restore. */
#include "qualification/deaths/scenarios.h"

/* What is asked again until it has happened. */
static const char *const varying[] = {STEP("channel_receive"), STEP("device_enter"),
                                      STEP("device_event_query"), NULL};

static void engine(void)
{
    sweep("deaths_engine_test", &(hl_sweep_scenario){
                                    .name = "engine",
                                    .survivor = ROLE("manager-survives"),
                                    .victim = ROLE("engine"),
                                    .look = ROLE("visitor"),
                                    .recover = ROLE("engine"),
                                    .check = ROLE("settle"),
                                    .varying = varying,
                                    .hits_a_point = MOST_HITS,
                                });
}

/* The Manager ends its session meanwhile, and grants its sources' space to others: it must be refused. */
static void engine_that_wakes_late(void)
{
    if (SANITIZED)
        return; /* no stops there */
    sweep("deaths_engine_test", &(hl_sweep_scenario){
                                    .name = "engine_that_wakes_late",
                                    .survivor = ROLE("manager-refuses"),
                                    .victim = ROLE("engine-may-lose"),
                                    .look = ROLE("visitor"),
                                    .check = ROLE("settle"),
                                    .varying = varying,
                                    .hits_a_point = MOST_HITS,
                                    .only_stops = true,
                                });
}

/* The gather kernel's launches. */
static void engine_by_kernel(void)
{
    sweep("deaths_engine_test",
          &(hl_sweep_scenario){
              .name = "engine_by_kernel",
              .survivor = ROLE("manager-survives"),
              .victim = ROLE("engine-by-kernel"),
              .look = ROLE("visitor"),
              .check = ROLE("settle"),
              .varying = varying,
              .points = (const char *const[]){"device_gather", "device_stream_wait_value", NULL},
          });
}

/* Points of the Manager, which deaths_manager_test hits. */
static const char *const not_the_engines[] = {UNREACHABLE,
                                              STEP("channel_accept"),
                                              STEP("channel_bind"),
                                              STEP("channel_descriptors_create"),
                                              STEP("channel_extent_copy"),
                                              STEP("channel_extent_write"),
                                              "channel_fds_send",
                                              STEP("channel_listen"),
                                              STEP("channel_signal_publish"),
                                              STEP("channel_signal_restore"),
                                              STEP("channel_slot_finish"),
                                              STEP("device_event_synchronize"),
                                              STEP("device_ipc_close"),
                                              STEP("device_ipc_import"),
                                              STEP("device_open"),
                                              STEP("grant_cut_short"),
                                              STEP("grant_first_part"),
                                              STEP("grant_marks_take"),
                                              STEP("grant_memory_create"),
                                              STEP("grant_next_part"),
                                              STEP("grant_prepare"),
                                              STEP("grant_reap"),
                                              STEP("grant_reject"),
                                              STEP("grant_revoke"),
                                              NULL};

static void every_point_of_the_engine_was_hit(void)
{
    static const char *const prefixes[] = {"engine_", "grant_", "channel_", "device_", "plan_"};
    CU_ASSERT_PTR_NOT_NULL_FATAL(totals);
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
        CU_ASSERT_EQUAL(hl_sweep_report(totals, prefixes[i], not_the_engines), 0);
    hl_sweep_totals_free(totals);
    totals = NULL;
}

HL_TESTS(deaths_engine, HL_CASE(engine), HL_CASE(engine_that_wakes_late), HL_CASE(engine_by_kernel),
         HL_CASE(every_point_of_the_engine_was_hit));
