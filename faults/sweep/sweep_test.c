/* The sweep passes a program that is right, and finds each way in which one is wrong. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/testing/cunit.h"
#include "faults/sweep/case.h"
#include "faults/sweep/sweep.h"

static const int errors[] = {EIO, ENOSPC, 0};
static char folder[512];

static const char *begin(void)
{
    const char *base = getenv("TEST_TMPDIR");
    snprintf(folder, sizeof folder, "%s/sweep-XXXXXX", base ? base : "/tmp");
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(folder));
    CU_ASSERT_PTR_NOT_NULL_FATAL(getenv("HL_SWEEP_TOY"));
    return getenv("HL_SWEEP_TOY");
}

static bool light;
static const char *survivor; /* the toy's role, or NULL */
static const char *const *aborts;
static const char *const *varying;
static const char *const *points;

/* Sweeps the toy in these roles; gives the totals, which the caller frees. */
static bool sweep(const char *victim, const char *recover, hl_sweep_totals *totals)
{
    const char *toy = begin();
    const hl_sweep_scenario scenario = {
        .name = victim,
        .replay = "sweep_test",
        .survivor = survivor ? (const char *const[]){toy, survivor, NULL} : NULL,
        .victim = (const char *const[]){toy, victim, NULL},
        .look = (const char *const[]){toy, "look", NULL},
        .recover = (const char *const[]){toy, recover, NULL},
        .check = (const char *const[]){toy, "check", NULL},
        .aborts = aborts,
        .varying = varying,
        .points = points,
        .errors = errors,
        .light = light,
        .owner = geteuid(),
    };
    const bool passed = hl_sweep_run(&scenario, folder, totals);
    sweep_folder_remove(folder);
    return passed;
}

static bool sweep_passes(const char *victim, const char *recover)
{
    hl_sweep_totals *totals = hl_sweep_totals_create();
    const bool passed = sweep(victim, recover, totals);
    hl_sweep_totals_free(totals);
    return passed;
}

static void a_program_that_is_right_passes_every_case(void)
{
    hl_sweep_totals *totals = hl_sweep_totals_create();
    CU_ASSERT_TRUE(sweep("write", "recover", totals));
    static const char *const unused[] = {"weights_document_sync_before", "weights_document_sync_after",
                                         "weights_document_seal_before", "weights_document_seal_after", NULL};
    CU_ASSERT_EQUAL(hl_sweep_report(totals, "weights_document", unused), 0);
    CU_ASSERT_EQUAL(hl_sweep_report(totals, "weights_document", NULL), 4);
    static const char *const hit[] = {"weights_document_open_before", NULL};
    CU_ASSERT_EQUAL(hl_sweep_report(totals, "weights_document_open", hit), 1);
    hl_sweep_totals_free(totals);
}

static void a_light_sweep_still_finds_what_a_death_or_an_error_leaves(void)
{
    light = true;
    CU_ASSERT_TRUE(sweep_passes("write", "recover"));
    CU_ASSERT_FALSE(sweep_passes("torn", "look"));
    CU_ASSERT_FALSE(sweep_passes("litter", "recover"));
    light = false;
}

static void half_a_file_after_a_death_is_found(void)
{
    CU_ASSERT_FALSE(sweep_passes("torn", "look"));
}

static void litter_after_an_error_is_found(void)
{
    CU_ASSERT_FALSE(sweep_passes("litter", "recover"));
}

static void success_that_is_none_is_found(void)
{
    CU_ASSERT_FALSE(sweep_passes("silent", "recover"));
}

static void a_recovery_that_fails_is_found(void)
{
    CU_ASSERT_FALSE(sweep_passes("write", "stubborn"));
}

static void a_program_whose_runs_differ_is_found(void)
{
    /* Its hits depend on its pid modulo 4, and the two pids are at least one apart. */
    bool found = false;
    for (int i = 0; i < 5 && !found; i++)
        found = !sweep_passes("shaky", "recover");
    CU_ASSERT_TRUE(found);
}

static void hits_may_vary_where_that_is_declared(void)
{
    varying = (const char *const[]){"weights_read_before", NULL};
    for (int i = 0; i < 3; i++)
        CU_ASSERT_TRUE(sweep_passes("shaky", "recover"));
    varying = NULL;
}

static void only_some_points_are_swept_where_that_is_said(void)
{
    points = (const char *const[]){"weights_document_open", NULL};
    CU_ASSERT_TRUE(sweep_passes("silent", "recover")); /* it is the rename that it keeps silent about */
    points = NULL;
    CU_ASSERT_FALSE(sweep_passes("silent", "recover"));
}

static void an_abort_is_a_death_where_that_is_declared(void)
{
    CU_ASSERT_FALSE(sweep_passes("abort", "recover"));
    aborts = (const char *const[]){"weights_document_open_before",
                                   "weights_document_open_after",
                                   "weights_document_write_before",
                                   "weights_document_write_after",
                                   "weights_document_rename_before",
                                   "weights_document_rename_after",
                                   NULL};
    CU_ASSERT_TRUE(sweep_passes("abort", "recover"));
    aborts = NULL;
}

static void a_survivor_is_told_what_happens_and_must_agree(void)
{
    survivor = "survive";
    CU_ASSERT_TRUE(sweep_passes("write", "recover"));
    static const char *const bad[] = {"quarrel", "desert", "linger"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        survivor = bad[i];
        CU_ASSERT_FALSE(sweep_passes("write", "recover"));
    }
    survivor = NULL;
}

static void a_case_is_text_that_can_be_read_back(void)
{
    static const char *const good[] = {
        "weights_document_rename_before:1:kill",
        "weights_document_rename_after:12:park+kill",
        "weights_document_rename_after:2:park+stop",
        "weights_document_rename_after:2:drop",
        "weights_document_write_after:2:ENOSPC",
        "weights_write_short:2:short=7",
        "weights_document_rename_before:1:kill/weights_document_open_after:3:kill",
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct sweep_case one;
        char text[256] = "";
        CU_ASSERT_TRUE_FATAL(sweep_case_parse(good[i], &one));
        sweep_case_text(&one, text, sizeof text);
        CU_ASSERT_STRING_EQUAL(text, good[i]);
    }
    static const char *const bad[] = {
        "",
        "kill",
        "no_such_point:1:kill",
        "weights_document_rename_before:0:kill",
        "weights_document_rename_before:1x:kill",
        "weights_document_rename_before:1:EWHATEVER",
        "weights_document_rename_before:1:EIO/weights_document_open_after:3:kill",
        "weights_document_rename_before:1:kill/weights_document_open_after:3:EIO",
        "weights_document_rename_before:1:kill/",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct sweep_case one;
        CU_ASSERT_FALSE(sweep_case_parse(bad[i], &one));
    }
}

static void a_replay_runs_one_case_and_judges_it_alike(void)
{
    CU_ASSERT_EQUAL(setenv("HL_FAULT_REPLAY", "weights_document_write_after:1:kill", 1), 0);
    CU_ASSERT_TRUE(sweep_passes("write", "recover"));
    CU_ASSERT_FALSE(sweep_passes("torn", "look"));
    setenv("HL_FAULT_REPLAY", "weights_document_write_after:3:kill", 1);
    CU_ASSERT_FALSE(sweep_passes("write", "recover")); /* there are two hits: it does not fire */
    setenv("HL_FAULT_REPLAY", "weights_document_write_after:1:kill/weights_document_rename_before:1:kill", 1);
    CU_ASSERT_TRUE(sweep_passes("write", "recover"));
    CU_ASSERT_FALSE(sweep_passes("write", "stubborn"));
    setenv("HL_FAULT_REPLAY", "nothing", 1);
    CU_ASSERT_FALSE(sweep_passes("write", "recover"));
    unsetenv("HL_FAULT_REPLAY");
}

static void a_cap_takes_the_first_hits_and_the_last(void)
{
    CU_ASSERT_TRUE(sweep_hit_is_taken(5, 9, 0));
    CU_ASSERT_TRUE(sweep_hit_is_taken(1, 9, 3));
    CU_ASSERT_TRUE(sweep_hit_is_taken(2, 9, 3));
    CU_ASSERT_FALSE(sweep_hit_is_taken(3, 9, 3));
    CU_ASSERT_FALSE(sweep_hit_is_taken(8, 9, 3));
    CU_ASSERT_TRUE(sweep_hit_is_taken(9, 9, 3));
    CU_ASSERT_TRUE(sweep_hit_is_taken(2, 2, 3));
}

static void folders_go_whatever_their_modes(void)
{
    begin();
    char path[1024];
    snprintf(path, sizeof path, "%s/a", folder);
    CU_ASSERT_TRUE(sweep_folder_make(path, geteuid()));
    CU_ASSERT_FALSE(sweep_folder_make(path, geteuid()));
    snprintf(path, sizeof path, "%s/a/b", folder);
    CU_ASSERT_EQUAL(symlink("/", path), 0);
    snprintf(path, sizeof path, "%s/a/c", folder);
    CU_ASSERT_EQUAL(mkdir(path, 0500), 0);
    snprintf(path, sizeof path, "%s/a", folder);
    CU_ASSERT_EQUAL(chmod(path, 0555), 0);
    CU_ASSERT_TRUE(sweep_folder_remove(folder));
    CU_ASSERT_EQUAL(access(folder, F_OK), -1);
    CU_ASSERT_FALSE(sweep_folder_remove(folder));
}

HL_TESTS(fault_sweep, HL_CASE(a_program_that_is_right_passes_every_case),
         HL_CASE(a_light_sweep_still_finds_what_a_death_or_an_error_leaves),
         HL_CASE(half_a_file_after_a_death_is_found), HL_CASE(litter_after_an_error_is_found),
         HL_CASE(success_that_is_none_is_found), HL_CASE(a_recovery_that_fails_is_found),
         HL_CASE(a_program_whose_runs_differ_is_found), HL_CASE(hits_may_vary_where_that_is_declared),
         HL_CASE(only_some_points_are_swept_where_that_is_said),
         HL_CASE(an_abort_is_a_death_where_that_is_declared),
         HL_CASE(a_survivor_is_told_what_happens_and_must_agree),
         HL_CASE(a_case_is_text_that_can_be_read_back), HL_CASE(a_replay_runs_one_case_and_judges_it_alike),
         HL_CASE(a_cap_takes_the_first_hits_and_the_last), HL_CASE(folders_go_whatever_their_modes));
