/* What both sweeps over the restore protocol share. */
#ifndef QUALIFICATION_DEATHS_SCENARIOS_H
#define QUALIFICATION_DEATHS_SCENARIOS_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/testing/cunit.h"
#include "faults/sweep/sweep.h"

/* A process of a sanitized build takes long to start, and what it finds, kills and errors find. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#else
#define SANITIZED false
/* A step's two points. */
#define STEP(name) name "_before", name "_after"

/* Points that neither side hits. Only the demo, which verifies device memory, launches a checksum; only tests
 * have a stream write a value. The software device's cost model prefers a batch for the few small pages of
 * these runs: core/transfer's fault tests have the other copies. No Manager on the software device refuses a
 * publish that the library sends: the slot's withdrawal has a test in engine/. */
#define UNREACHABLE                                                                                          \
    STEP("device_checksum"), STEP("device_copy"), STEP("device_copy_rows"), STEP("channel_slot_withdraw"),   \
        STEP("device_stream_write_value")

#endif

#define MOST_HITS 8u /* of a point: the first seven and the last */

static const int errors[] = {EIO, 0};
static hl_sweep_totals *totals;

#define ROLE(name)                                                                                           \
    (const char *const[])                                                                                    \
    {                                                                                                        \
        getenv("HL_DEATHS_PROCESS"), name, NULL                                                              \
    }

/* A socket's path is short: the runs are below /dev/shm. */
static void sweep(const char *test, const hl_sweep_scenario *scenario)
{
    char folder[] = "/dev/shm/deaths-XXXXXX", replay[256];
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
    CU_ASSERT_PTR_NOT_NULL_FATAL(getenv("HL_DEATHS_PROCESS"));
    if (!totals)
        totals = hl_sweep_totals_create();
    hl_sweep_scenario full = *scenario;
    snprintf(replay, sizeof replay,
             "bazel test //qualification/deaths:%s --test_env=HL_FAULT_REPLAY --test_arg=%s "
             "--test_output=all",
             test, scenario->name);
    full.replay = replay;
    full.errors = errors;
    full.light = SANITIZED;
    full.owner = geteuid();
    CU_ASSERT_TRUE(hl_sweep_run(&full, folder, totals));
    rmdir(folder);
}

/* A step's two points. */
#define STEP(name) name "_before", name "_after"

/* Points that neither side hits, with the reason. */
#define UNREACHABLE                                                                                          \
    /* only programs that verify device memory launch it: the demo */                                        \
    STEP("device_checksum"), /* the software device's cost model prefers batches for what a few small pages  \
                                are; core/transfer's fault tests have them */                                \
        STEP("device_copy"), STEP("device_copy_rows"), /* a Manager that refuses a publish it can read does  \
                                                          not exist on the software device */                \
        STEP("channel_slot_withdraw"), STEP("device_stream_write_value")

#endif
