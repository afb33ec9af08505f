/* Every death, stop, error and lost notification of an engine, enumerated, while its Manager lives on: what
 * the engine had claimed and not drained is in quarantine, everything else is home, and other engines
 * restore. */
#include "qualification/deaths/scenarios.h"

#define MOST_HITS 8u /* of a point; only those of the device, the channel and its memory have more */

/* What is asked again until it has happened. */
static const char *const varying[] = {"channel_receive_before",
                                      "channel_receive_after",
                                      "device_enter_before",
                                      "device_enter_after",
                                      "device_event_query_before",
                                      "device_event_query_after",
                                      NULL};

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

HL_TESTS(deaths_engine, HL_CASE(engine), HL_CASE(engine_that_wakes_late));
