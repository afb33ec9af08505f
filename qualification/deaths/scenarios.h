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
#endif

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

#endif
