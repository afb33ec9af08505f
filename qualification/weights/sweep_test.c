/* Every death and every error of every step of the weight store, enumerated. After each, fresh processes find
 * a whole artifact or none, build what is missing, and find nothing left of what happened but a declared
 * number of quarantined folders. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <linux/magic.h>

#include "core/testing/cunit.h"
#include "faults/sweep/sweep.h"

#define NOBODY 65534
#define WORDS(...)                                                                                           \
    (const char *const[])                                                                                    \
    {                                                                                                        \
        victim, storage, who, __VA_ARGS__, NULL                                                              \
    }

/* A process of a sanitized build takes long to start, and what it finds, errors find. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#else
#define SANITIZED false
#endif

static const int errors[] = {EIO, ENOSPC, 0};
static hl_sweep_totals *totals;
static const char *victim;
static const char *storage; /* the class of the place that begin() chose */
static const char *who;     /* "myself" or "nobody" */
static char folder[512];

/* A folder for the runs: below /dev/shm or, with `disk`, below $TEST_TMPDIR whatever that is. */
static void begin(bool disk, bool nobody)
{
    const char *base = disk ? getenv("TEST_TMPDIR") : "/dev/shm";
    snprintf(folder, sizeof folder, "%s/weights-sweep-XXXXXX", base ? base : "/tmp");
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
    CU_ASSERT_EQUAL_FATAL(chmod(folder, 0755), 0);
    struct statfs st;
    CU_ASSERT_EQUAL_FATAL(statfs(folder, &st), 0);
    storage = st.f_type == TMPFS_MAGIC ? "tmpfs" : "disk";
    who = nobody ? "nobody" : "myself";
    victim = getenv("HL_STORE_VICTIM");
    CU_ASSERT_PTR_NOT_NULL_FATAL(victim);
    if (!totals)
        totals = hl_sweep_totals_create();
}

static void end(const hl_sweep_scenario *scenario)
{
    hl_sweep_scenario full = *scenario;
    char replay[256];
    snprintf(replay, sizeof replay,
             "bazel test //qualification/weights:sweep_test --test_env=HL_FAULT_REPLAY --test_arg=%s "
             "--test_output=all",
             scenario->name);
    full.replay = replay;
    full.errors = errors;
    full.light = SANITIZED;
    full.owner = strcmp(who, "nobody") != 0 ? geteuid() : NOBODY;
    CU_ASSERT_TRUE(hl_sweep_run(&full, folder, totals));
    rmdir(folder);
}

/* Only root can; where it cannot either, the scenarios must not be taken for swept. */
static bool may_be_nobody(void)
{
    if (geteuid() == 0)
        return true;
    printf("    NOT RUN: only root can become somebody else\n");
    CU_PASS("said above");
    return false;
}

static void sweep_creation(const char *name, bool nobody)
{
    begin(false, nobody);
    end(&(hl_sweep_scenario){
        .name = name,
        .prepare = WORDS("empty-root"),
        .victim = WORDS("open"),
        .look = WORDS("look"),
        .recover = WORDS("open"),
        .check = WORDS("open", "build", "settle=0"),
        .second_hits_a_point = 1,
    });
}

static void sweep_first_build(const char *name, bool nobody)
{
    begin(false, nobody);
    end(&(hl_sweep_scenario){
        .name = name,
        .victim = WORDS("build"),
        .look = WORDS("look-denied"),
        .recover = WORDS("build"),
        .check = WORDS("then-hit", "build", "settle-plus=0"),
        .second_hits_a_point = nobody ? 1 : 2,
    });
}

static void sweep_rebuild(const char *name, bool nobody)
{
    begin(false, nobody);
    end(&(hl_sweep_scenario){
        .name = name,
        .prepare = WORDS("build", "deny"),
        .victim = WORDS("build"),
        .look = WORDS("look-denied"),
        .recover = WORDS("build"),
        .check = WORDS("then-hit", "build", "settle-plus=1"),
        .second_hits_a_point = nobody ? 1 : 2,
    });
}

static void creation(void)
{
    sweep_creation("creation", false);
}

static void creation_by_nobody(void)
{
    if (may_be_nobody())
        sweep_creation("creation_by_nobody", true);
}

static void first_build(void)
{
    sweep_first_build("first_build", false);
}

static void first_build_by_nobody(void)
{
    if (may_be_nobody())
        sweep_first_build("first_build_by_nobody", true);
}

static void rebuild_after_denial(void)
{
    sweep_rebuild("rebuild_after_denial", false);
}

static void rebuild_after_denial_by_nobody(void)
{
    if (may_be_nobody())
        sweep_rebuild("rebuild_after_denial_by_nobody", true);
}

/* Who dies as the one that is admitted leaves the admission to builders of every artifact. */
static void serialized_build(void)
{
    begin(false, false);
    end(&(hl_sweep_scenario){
        .name = "serialized_build",
        .prepare = WORDS("serialized", "open"),
        .victim = WORDS("serialized", "build"),
        .look = WORDS("serialized", "look-denied"),
        .recover = WORDS("serialized", "build"),
        .check =
            WORDS("serialized", "other", "build", "clean", "swept", "then-hit", "build", "settle-plus=0"),
        .hits_a_point = 2, /* the same steps as in first_build, under one lock more */
        .second_hits_a_point = 1,
    });
}

static void denial(void)
{
    begin(false, false);
    end(&(hl_sweep_scenario){
        .name = "denial",
        .prepare = WORDS("build"),
        .victim = WORDS("deny"),
        .look = WORDS("look-denied"),
        .recover = WORDS("build"),
        .check = WORDS("then-denied", "build", "settle-plus=1"),
    });
}

static void clean(void)
{
    begin(false, false);
    end(&(hl_sweep_scenario){
        .name = "clean",
        .prepare = WORDS("build"),
        .victim = WORDS("clean"),
        .look = WORDS("look-denied"),
        .recover = WORDS("clean-rest"),
        .check = WORDS("then-miss", "build", "settle-plus=0"),
    });
}

static void clean_of_a_denied_artifact_on_disk(void)
{
    begin(true, false);
    end(&(hl_sweep_scenario){
        .name = "clean_of_a_denied_artifact_on_disk",
        .prepare = WORDS("build", "deny"),
        .victim = WORDS("clean"),
        .look = WORDS("look-denied"),
        .recover = WORDS("clean-rest"),
        .check = WORDS("then-miss", "build", "settle-plus=0"),
    });
}

static void clean_of_quarantine(void)
{
    begin(false, false);
    end(&(hl_sweep_scenario){
        .name = "clean_of_quarantine",
        .prepare = WORDS("build", "deny", "build"),
        .victim = WORDS("quarantined-clean"),
        .look = WORDS("look"),
        .recover = WORDS("quarantined-clean-rest"),
        .check = WORDS("still-hit", "quarantined-clean-rest", "build", "settle=0"),
    });
}

static void lookup(void)
{
    begin(false, false);
    end(&(hl_sweep_scenario){
        .name = "lookup",
        .prepare = WORDS("build"),
        .victim = WORDS("lookup"),
        .look = WORDS("look"),
        .recover = WORDS("lookup"),
        .check = WORDS("still-hit", "build", "settle=0"),
    });
}

static void lookup_of_a_spoilt_artifact(void)
{
    begin(false, false);
    end(&(hl_sweep_scenario){
        .name = "lookup_of_a_spoilt_artifact",
        .prepare = WORDS("build", "spoil"),
        .victim = WORDS("lookup"),
        .look = WORDS("look-spoilt"),
        .recover = WORDS("build"),
        .check = WORDS("then-gone", "build", "settle-plus=1"),
    });
}

static void lookup_of_a_spoilt_artifact_without_room_for_a_marker(void)
{
    begin(false, false);
    end(&(hl_sweep_scenario){
        .name = "lookup_of_a_spoilt_artifact_without_room_for_a_marker",
        .prepare = WORDS("build", "spoil"),
        .victim = WORDS("contained"),
        .look = WORDS("look-spoilt"),
        .recover = WORDS("build"),
        .check = WORDS("then-gone", "build", "settle-plus=1"),
        .always = (const char *const[]){"weights_deny_write_before:1:ENOSPC", NULL},
    });
}

static void every_point_of_the_store_was_hit(void)
{
    CU_ASSERT_PTR_NOT_NULL_FATAL(totals);
    CU_ASSERT_EQUAL(hl_sweep_report(totals, "weights_", NULL), 0);
    hl_sweep_totals_free(totals);
    totals = NULL;
}

HL_TESTS(weights_sweep, HL_CASE(creation), HL_CASE(creation_by_nobody), HL_CASE(first_build),
         HL_CASE(first_build_by_nobody), HL_CASE(rebuild_after_denial),
         HL_CASE(rebuild_after_denial_by_nobody), HL_CASE(serialized_build), HL_CASE(denial), HL_CASE(clean),
         HL_CASE(clean_of_a_denied_artifact_on_disk), HL_CASE(clean_of_quarantine), HL_CASE(lookup),
         HL_CASE(lookup_of_a_spoilt_artifact), HL_CASE(lookup_of_a_spoilt_artifact_without_room_for_a_marker),
         HL_CASE(every_point_of_the_store_was_hit));
