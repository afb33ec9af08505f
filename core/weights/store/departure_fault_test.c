/* Removal and competing publications, with a step that fails or a process that dies. Runs as a *_faults twin
 * only. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/testing/cunit.h"
#include "core/weights/store/fault_testing.h"

#define ENTRY "artifacts/" HL_GOLDEN_KEY
#define TOMBSTONE HL_GOLDEN_KEY ".cleanup."

static struct hl_fault_bench bench;
static hl_weight_failure failure;

static unsigned arm(const char *point, uint32_t nth, hl_fault_action action)
{
    return hl_fault_bench_arm(&bench, point, nth, action, EIO);
}

static void expect(hl_weight_origin wanted)
{
    hl_weight_origin origin = HL_WEIGHT_JOINED;
    HL_EXPECT_OK(hl_fault_bench_get(&bench, &origin, &failure), failure.error);
    CU_ASSERT_EQUAL(origin, wanted);
}

static void clean(void)
{
    HL_EXPECT_OK(hl_weight_store_clean(bench.fixture.store, HL_GOLDEN_KEY, &failure), failure.error);
    CU_ASSERT_EQUAL(hl_fixture_count(&bench.fixture, "quarantine", ""), 0);
    CU_ASSERT_FALSE(hl_fixture_exists(&bench.fixture, ENTRY));
}

static void expect_clean_fails(void)
{
    HL_EXPECT_FAILURE(hl_weight_store_clean(bench.fixture.store, HL_GOLDEN_KEY, &failure),
                      HL_WEIGHT_QUARANTINE_FAILED, true, failure);
    CU_ASSERT_EQUAL(failure.stage, HL_WEIGHT_STAGE_LIFECYCLE);
}

/* --- removal --- */

static void a_removal_that_cannot_move_the_artifact_leaves_it_in_use(void)
{
    static const char *const points[] = {"weights_quarantine_open_before", "weights_quarantine_open_after",
                                         "weights_clean_rename_before"};
    hl_fault_bench_open(&bench);
    expect(HL_WEIGHT_BUILT);
    for (unsigned i = 0; i < sizeof points / sizeof points[0]; i++)
        for (unsigned twice = 0; twice < 2; twice++) {
            const unsigned rule = arm(points[i], 1, HL_FAULT_ERROR);
            const unsigned second = twice ? arm("weights_quarantine_harden_before", 1, HL_FAULT_ERROR) : rule;
            expect_clean_fails();
            hl_fault_bench_disarm(&bench, rule);
            if (twice) /* the first try of putting the mode back fails, too */
                hl_fault_bench_disarm(&bench, second);
            CU_ASSERT_EQUAL(hl_fixture_mode(&bench.fixture, ENTRY), 0555);
            CU_ASSERT_EQUAL(hl_fixture_count(&bench.fixture, "quarantine", ""), 0);
            expect(HL_WEIGHT_HIT);
        }
    clean();
    hl_fault_bench_close(&bench);
}

static void a_tombstone_that_stays_is_immutable_and_removed_by_the_next_call(void)
{
    static const struct {
        const char *point;
        uint32_t nth;
    } steps[] = {{"weights_clean_rename_after", 1},
                 {"weights_quarantine_sync_before", 1},
                 {"weights_quarantine_sync_before", 2},
                 {"weights_quarantine_sync_after", 3},
                 {"weights_remove_before", 1}};
    hl_fault_bench_open(&bench);
    for (unsigned i = 0; i < 2 * sizeof steps / sizeof steps[0]; i++) {
        char name[256], path[300];
        expect(HL_WEIGHT_BUILT);
        const unsigned rule = arm(steps[i / 2].point, steps[i / 2].nth, HL_FAULT_ERROR);
        expect_clean_fails();
        hl_fault_bench_disarm(&bench, rule);
        CU_ASSERT_FALSE(hl_fixture_exists(&bench.fixture, ENTRY));
        hl_fixture_find(&bench.fixture, "quarantine", TOMBSTONE, name);
        snprintf(path, sizeof path, "quarantine/%s", name);
        if (strcmp(steps[i / 2].point, "weights_remove_before") != 0)
            CU_ASSERT_EQUAL(hl_fixture_mode(&bench.fixture, path), 01555);
        if (i % 2) {
            clean();
            continue;
        }
        expect(HL_WEIGHT_BUILT); /* a build removes it as well */
        CU_ASSERT_EQUAL(hl_fixture_count(&bench.fixture, "quarantine", ""), 0);
        clean();
    }
    hl_fault_bench_close(&bench);
}

static void a_marker_that_cannot_be_removed_keeps_the_next_call_busy(void)
{
    hl_fault_bench_open(&bench);
    expect(HL_WEIGHT_BUILT);
    HL_EXPECT_OK(hl_weight_store_deny(bench.fixture.store, HL_GOLDEN_KEY, "a test", &failure), failure.error);
    const unsigned rule = arm("weights_deny_remove_before", 1, HL_FAULT_ERROR);
    expect_clean_fails();
    hl_fault_bench_disarm(&bench, rule);
    CU_ASSERT_EQUAL(hl_fixture_count(&bench.fixture, "deny", ""), 1);
    clean();
    CU_ASSERT_EQUAL(hl_fixture_count(&bench.fixture, "deny", ""), 0);
    hl_fault_bench_close(&bench);
}

static int clean_in_child(void *context)
{
    (void)context;
    hl_weight_store *store = NULL;
    if (hl_weight_store_open(&bench.fixture.options, &store, &failure))
        return 2;
    return hl_weight_store_clean(store, HL_GOLDEN_KEY, &failure) == HL_OK ? 0 : 1;
}

static void a_process_may_die_at_any_step_of_a_removal(void)
{
    hl_fault_bench_open(&bench);
    unsigned deaths = 0;
    for (uint32_t i = 0; i < hl_fault_point_count(); i++) {
        const char *const point = hl_fault_point_name(i);
        HL_EXPECT_OK(hl_fault_bench_get(&bench, NULL, &failure), failure.error);
        const unsigned rule = arm(point, 1, HL_FAULT_KILL);
        const int result = hl_child_end(hl_child_start(clean_in_child, NULL));
        const bool died = hl_fault_fired(bench.board, rule) > 0;
        CU_ASSERT_EQUAL(result, died ? -SIGKILL : 0);
        hl_fault_disarm(bench.board, rule);
        deaths += died;
        hl_weight_lease *lease = NULL;
        const hl_status found =
            hl_fixture_look_up(&bench.fixture, bench.identity, HL_WEIGHT_FULL_CHECKSUM, &lease, &failure);
        hl_weight_lease_release(lease);
        /* A whole artifact, none, or a denied one; never a part. */
        if (found)
            CU_ASSERT_TRUE(failure.code == HL_WEIGHT_LOCAL_MISS || failure.code == HL_WEIGHT_ARTIFACT_DENIED);
        HL_EXPECT_OK(hl_fault_bench_get(&bench, NULL, &failure), failure.error);
        CU_ASSERT_EQUAL(hl_fixture_count(&bench.fixture, "quarantine", TOMBSTONE), 0);
    }
    CU_ASSERT_TRUE(deaths >= 10);
    hl_fault_bench_close(&bench);
}

static void a_process_that_dies_before_the_move_leaves_a_denied_artifact(void)
{
    hl_fault_bench_open(&bench);
    expect(HL_WEIGHT_BUILT);
    const unsigned rule = arm("weights_clean_rename_before", 1, HL_FAULT_KILL);
    CU_ASSERT_EQUAL(hl_child_end(hl_child_start(clean_in_child, NULL)), -SIGKILL);
    hl_fault_bench_disarm(&bench, rule);
    bench.fixture.options.trust_permissions = false;
    hl_fixture_reopen(&bench.fixture);
    hl_weight_lease *lease = NULL;
    HL_EXPECT_FAILURE(
        hl_fixture_look_up(&bench.fixture, bench.identity, HL_WEIGHT_MANIFEST_AND_METADATA, &lease, &failure),
        HL_WEIGHT_ARTIFACT_DENIED, false, failure);
    expect(HL_WEIGHT_BUILT);
    CU_ASSERT_EQUAL(hl_fixture_count(&bench.fixture, "quarantine", HL_GOLDEN_KEY ".validation_failure."), 1);
    hl_fault_bench_close(&bench);
}

static void a_quarantined_one_is_removed_by_the_same_name_after_a_failure(void)
{
    static const struct {
        const char *point;
        bool renamed;
    } steps[] = {{"weights_clean_rename_before", false},
                 {"weights_clean_rename_after", true},
                 {"weights_remove_before", true}};
    hl_fault_bench_open(&bench);
    for (unsigned i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        char name[256];
        HL_EXPECT_OK(hl_fault_bench_get(&bench, NULL, &failure), failure.error);
        HL_EXPECT_OK(hl_weight_store_deny(bench.fixture.store, HL_GOLDEN_KEY, "a test", &failure),
                     failure.error);
        HL_EXPECT_OK(hl_fault_bench_get(&bench, NULL, &failure), failure.error);
        hl_fixture_find(&bench.fixture, "quarantine", "", name);
        const unsigned rule = arm(steps[i].point, 1, HL_FAULT_ERROR);
        HL_EXPECT_FAILURE(hl_weight_store_clean_quarantined(bench.fixture.store, name, &failure),
                          HL_WEIGHT_QUARANTINE_FAILED, true, failure);
        hl_fault_bench_disarm(&bench, rule);
        CU_ASSERT_EQUAL(hl_fixture_count(&bench.fixture, "quarantine", TOMBSTONE), steps[i].renamed);
        HL_EXPECT_OK(hl_weight_store_clean_quarantined(bench.fixture.store, name, &failure), failure.error);
        CU_ASSERT_EQUAL(hl_fixture_count(&bench.fixture, "quarantine", ""), 0);
    }
    expect(HL_WEIGHT_HIT);
    hl_fault_bench_close(&bench);
}

static void a_lock_that_cannot_be_opened_is_trouble_of_the_domain(void)
{
    hl_fault_bench_open(&bench);
    for (uint32_t nth = 1; nth <= 5; nth++) { /* lookup, build, lookup, quarantine, publication */
        const unsigned rule = arm("weights_lock_open_before", nth, HL_FAULT_ERROR);
        HL_EXPECT_FAILURE(hl_fault_bench_get(&bench, NULL, &failure), HL_WEIGHT_DOMAIN_UNAVAILABLE, true,
                          failure);
        hl_fault_bench_disarm(&bench, rule);
        CU_ASSERT_EQUAL(hl_fixture_count(&bench.fixture, "tmp", ""), 0);
        CU_ASSERT_EQUAL(hl_fixture_count(&bench.fixture, "artifacts", ""), 0);
    }
    for (uint32_t nth = 1; nth <= 2; nth++) {
        const unsigned rule = arm("weights_lock_open_before", nth, HL_FAULT_ERROR);
        HL_EXPECT_FAILURE(hl_weight_store_clean(bench.fixture.store, HL_GOLDEN_KEY, &failure),
                          HL_WEIGHT_DOMAIN_UNAVAILABLE, true, failure);
        hl_fault_bench_disarm(&bench, rule);
    }
    expect(HL_WEIGHT_BUILT);
    hl_fault_bench_close(&bench);
}

/* --- somebody who publishes without the locks --- */

/* Builds, and puts the artifact that lies at base/other in the way before it returns. */
static hl_status produce_beside_another(struct hl_fake_producer *self, hl_weight_writer *writer,
                                        hl_error *err)
{
    const hl_status status = hl_fake_produce_golden(writer, err);
    char from[300], to[400];
    snprintf(from, sizeof from, "%s/other", bench.fixture.base);
    snprintf(to, sizeof to, "%s/" ENTRY, bench.fixture.root);
    CU_ASSERT_EQUAL(chmod(from, 0755), 0);
    CU_ASSERT_EQUAL(rename(from, to), 0);
    CU_ASSERT_EQUAL(chmod(to, self->extra ? 0755 : 0555), 0);
    return status;
}

/* Builds an artifact of the identity and keeps it at base/other. */
static void make_another(bool same)
{
    char from[400], to[300];
    bench.fake.files = same ? 0 : 1;
    bench.fake.tensors = 1;
    bench.fake.tensor_bytes = 10;
    expect(HL_WEIGHT_BUILT);
    snprintf(from, sizeof from, "%s/" ENTRY, bench.fixture.root);
    snprintf(to, sizeof to, "%s/other", bench.fixture.base);
    CU_ASSERT_EQUAL(chmod(from, 0755), 0);
    CU_ASSERT_EQUAL(rename(from, to), 0);
    bench.fake.instead = produce_beside_another;
}

static void expect_competitor_untouched(void)
{
    CU_ASSERT_EQUAL(hl_fixture_mode(&bench.fixture, ENTRY), 0555);
    expect(HL_WEIGHT_HIT);
}

static void an_equal_competitor_is_the_artifact(void)
{
    for (unsigned stuck = 0; stuck < 2; stuck++) {
        hl_fault_bench_open(&bench);
        make_another(true);
        /* Even where the build cannot be removed. */
        const unsigned rule = stuck ? arm("weights_remove_before", 1, HL_FAULT_ERROR) : 0;
        expect(HL_WEIGHT_BUILT);
        if (stuck)
            hl_fault_bench_disarm(&bench, rule);
        CU_ASSERT_EQUAL(hl_fixture_count(&bench.fixture, "tmp", ""), stuck);
        CU_ASSERT_EQUAL(hl_fixture_count(&bench.fixture, "quarantine", ""), 0);
        expect_competitor_untouched();
        hl_fault_bench_close(&bench);
    }
}

static void another_content_is_a_collision_and_both_are_kept(void)
{
    hl_fault_bench_open(&bench);
    make_another(false);
    HL_EXPECT_FAILURE(hl_fault_bench_get(&bench, NULL, &failure), HL_WEIGHT_IDENTITY_COLLISION, false,
                      failure);
    CU_ASSERT_EQUAL(hl_fixture_count(&bench.fixture, "tmp", ""), 0);
    CU_ASSERT_EQUAL(hl_fixture_count(&bench.fixture, "quarantine", ""), 1);
    char name[256], path[300];
    hl_fixture_find(&bench.fixture, "quarantine", HL_GOLDEN_KEY ".identity-collision.", name);
    snprintf(path, sizeof path, "quarantine/%s", name);
    CU_ASSERT_EQUAL(hl_fixture_mode(&bench.fixture, path), 0555);
    CU_ASSERT_EQUAL(hl_fixture_count(&bench.fixture, path, ""), 3);
    expect_competitor_untouched();
    hl_fault_bench_close(&bench);
}

static void a_collision_that_cannot_be_kept_is_still_a_collision(void)
{
    hl_fault_bench_open(&bench);
    make_another(false);
    const unsigned rule = arm("weights_quarantine_rename_before", 1, HL_FAULT_ERROR);
    HL_EXPECT_FAILURE(hl_fault_bench_get(&bench, NULL, &failure), HL_WEIGHT_IDENTITY_COLLISION, false,
                      failure);
    hl_fault_bench_disarm(&bench, rule);
    CU_ASSERT_EQUAL(hl_fixture_count(&bench.fixture, "tmp", ""), 0);
    CU_ASSERT_EQUAL(hl_fixture_count(&bench.fixture, "quarantine", ""), 0);
    expect_competitor_untouched();
    hl_fault_bench_close(&bench);
}

static void a_competitor_that_cannot_be_read_is_preserved(void)
{
    hl_fault_bench_open(&bench);
    make_another(true);
    const unsigned rule = arm("weights_read_before", 1, HL_FAULT_ERROR);
    HL_EXPECT_FAILURE(hl_fault_bench_get(&bench, NULL, &failure), HL_WEIGHT_DOMAIN_UNAVAILABLE, true,
                      failure);
    hl_fault_bench_disarm(&bench, rule);
    CU_ASSERT_STRING_EQUAL(failure.details, "{\"competing_entry\":\"preserved\",\"outcome_uncertain\":true}");
    CU_ASSERT_EQUAL(hl_fixture_count(&bench.fixture, "tmp", ""), 0);
    expect_competitor_untouched();
    hl_fault_bench_close(&bench);
}

static hl_status produce_beside_rubbish(struct hl_fake_producer *self, hl_weight_writer *writer,
                                        hl_error *err)
{
    (void)self;
    char path[400];
    snprintf(path, sizeof path, "%s/" ENTRY, bench.fixture.root);
    CU_ASSERT_EQUAL(mkdir(path, 0555), 0);
    return hl_fake_produce_golden(writer, err);
}

/* renameat2() must not replace an empty folder, as rename() would. */
static void an_empty_folder_in_the_way_is_a_collision_and_then_quarantined(void)
{
    hl_fault_bench_open(&bench);
    bench.fake.instead = produce_beside_rubbish;
    HL_EXPECT_FAILURE(hl_fault_bench_get(&bench, NULL, &failure), HL_WEIGHT_IDENTITY_COLLISION, false,
                      failure);
    CU_ASSERT_EQUAL(hl_fixture_count(&bench.fixture, ENTRY, ""), 0);
    bench.fake.instead = NULL;
    expect(HL_WEIGHT_BUILT);
    CU_ASSERT_EQUAL(hl_fixture_count(&bench.fixture, "quarantine", HL_GOLDEN_KEY ".validation_failure."), 1);
    hl_fault_bench_close(&bench);
}

/* --- denial while a build ends --- */

static int deny_in_child(void *context)
{
    (void)context;
    hl_weight_store *store = NULL;
    if (hl_weight_store_open(&bench.fixture.options, &store, &failure))
        return 2;
    return hl_weight_store_deny(store, HL_GOLDEN_KEY, "a test", &failure) == HL_OK ? 0 : 1;
}

static int build_in_child(void *context)
{
    (void)context;
    hl_weight_store *store = NULL;
    if (hl_weight_store_open(&bench.fixture.options, &store, &failure))
        return 125;
    bench.fixture.store = store;
    return hl_fault_bench_get(&bench, NULL, &failure) == HL_OK ? 126 : (int)failure.code;
}

static void a_builder_gives_no_lease_on_what_was_denied_meanwhile(void)
{
    hl_fault_bench_open(&bench);
    /* Between the publication and the builder's lease: the locks are those of opening the domain, lookup,
     * build, lookup, quarantine, publication, lease. */
    const unsigned rule = arm("weights_lock_open_before", 7, HL_FAULT_PARK);
    const pid_t builder = hl_child_start(build_in_child, NULL);
    CU_ASSERT_TRUE_FATAL(hl_fault_await_parked(bench.board, rule, 1, HL_FAULT_PATIENCE_NS));
    CU_ASSERT_EQUAL(hl_child_end(hl_child_start(deny_in_child, NULL)), 0);
    hl_fault_release(bench.board, rule);
    CU_ASSERT_EQUAL(hl_child_end(builder), HL_WEIGHT_ARTIFACT_DENIED);
    hl_fault_disarm(bench.board, rule);
    hl_fault_bench_close(&bench);
}

HL_TESTS(departure_fault, HL_CASE(a_removal_that_cannot_move_the_artifact_leaves_it_in_use),
         HL_CASE(a_tombstone_that_stays_is_immutable_and_removed_by_the_next_call),
         HL_CASE(a_marker_that_cannot_be_removed_keeps_the_next_call_busy),
         HL_CASE(a_process_may_die_at_any_step_of_a_removal),
         HL_CASE(a_process_that_dies_before_the_move_leaves_a_denied_artifact),
         HL_CASE(a_quarantined_one_is_removed_by_the_same_name_after_a_failure),
         HL_CASE(a_lock_that_cannot_be_opened_is_trouble_of_the_domain),
         HL_CASE(an_equal_competitor_is_the_artifact),
         HL_CASE(another_content_is_a_collision_and_both_are_kept),
         HL_CASE(a_collision_that_cannot_be_kept_is_still_a_collision),
         HL_CASE(a_competitor_that_cannot_be_read_is_preserved),
         HL_CASE(an_empty_folder_in_the_way_is_a_collision_and_then_quarantined),
         HL_CASE(a_builder_gives_no_lease_on_what_was_denied_meanwhile));
