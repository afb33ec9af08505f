/* Every death, stop, error and lost notification of a Manager, enumerated, while its engine lives on: what
 * was granted drains and is reported, nothing else is, and another Manager serves the same engine and fresh
 * ones. */
#include "qualification/deaths/scenarios.h"

/* What is asked again until it has happened, and marks that may come together. */
static const char *const varying[] = {"channel_receive_before", "channel_receive_after",
                                      "grant_marks_take_before", "grant_marks_take_after", NULL};

static void manager(void)
{
    sweep("deaths_manager_test", &(hl_sweep_scenario){
                                     .name = "manager",
                                     .survivor = ROLE("engine-survives"),
                                     .victim = ROLE("manager"),
                                     .recover = ROLE("manager"),
                                     .check = ROLE("manager-settles"),
                                     .varying = varying,
                                 });
}

HL_TESTS(deaths_manager, HL_CASE(manager));
