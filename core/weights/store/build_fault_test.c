/* Each step of a build fails once, before and after it was done, or ends the process: the failure has its
 * code, nothing half-made is visible, and the next build works. Runs as a *_faults twin only. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/testing/cunit.h"
#include "core/weights/store/fault_testing.h"

#define ENTRY "artifacts/" HL_GOLDEN_KEY

static struct hl_fault_bench bench;
static hl_weight_failure failure;

static unsigned arm(const char *step, bool after, uint32_t nth, hl_fault_action action, int sys_errno)
{
    char point[96];
    snprintf(point, sizeof point, "%s_%s", step, after ? "after" : "before");
    return hl_fault_bench_arm(&bench, point, nth, action, (uint64_t)sys_errno);
}

static void expect_built(const char *step)
{
    hl_weight_origin origin = HL_WEIGHT_HIT;
    const hl_status status = hl_fault_bench_get(&bench, &origin, &failure);
    if (status || origin != HL_WEIGHT_BUILT)
        fprintf(stderr, "after %s: origin %d, %s\n", step, (int)origin, failure.error.text);
    CU_ASSERT_EQUAL(status, HL_OK);
    CU_ASSERT_EQUAL(origin, HL_WEIGHT_BUILT);
    CU_ASSERT_EQUAL(hl_fixture_mode(&bench.fixture, ENTRY), 0555);
    CU_ASSERT_EQUAL(hl_fixture_count(&bench.fixture, "tmp", ""), 0);
    CU_ASSERT_EQUAL(hl_fixture_count(&bench.fixture, "deny", ""), 0);
}

static void expect_miss(void)
{
    hl_weight_lease *lease = NULL;
    HL_EXPECT_FAILURE(
        hl_fixture_look_up(&bench.fixture, bench.identity, HL_WEIGHT_MANIFEST_AND_METADATA, &lease, &failure),
        HL_WEIGHT_LOCAL_MISS, false, failure);
}

static void clean(void)
{
    HL_EXPECT_OK(hl_weight_store_clean(bench.fixture.store, HL_GOLDEN_KEY, &failure), failure.error);
}

/* --- before the rename --- */

static const struct {
    const char *step;
    uint32_t nth;
    hl_weight_code code; /* of EIO; ENOSPC is always ENOSPC */
    bool retryable;
} build_steps[] = {
    {"weights_build_folder", 1, HL_WEIGHT_DOMAIN_UNAVAILABLE, true},
    {"weights_payload_open", 1, HL_WEIGHT_PRODUCER_FAILED, false},
    {"weights_payload_reserve", 1, HL_WEIGHT_PRODUCER_FAILED, false},
    {"weights_payload_write", 1, HL_WEIGHT_PRODUCER_FAILED, false}, /* the header */
    {"weights_payload_write", 2, HL_WEIGHT_PRODUCER_FAILED, false},
    {"weights_payload_write", 3, HL_WEIGHT_PRODUCER_FAILED, false},
    {"weights_payload_seal", 1, HL_WEIGHT_PRODUCER_FAILED, false},
    {"weights_payload_sync", 1, HL_WEIGHT_DOMAIN_UNAVAILABLE, true},
    {"weights_document_open", 1, HL_WEIGHT_DOMAIN_UNAVAILABLE, true}, /* the manifest */
    {"weights_document_write", 1, HL_WEIGHT_DOMAIN_UNAVAILABLE, true},
    {"weights_document_sync", 1, HL_WEIGHT_DOMAIN_UNAVAILABLE, true},
    {"weights_document_seal", 1, HL_WEIGHT_DOMAIN_UNAVAILABLE, true},
    {"weights_document_sync", 2, HL_WEIGHT_DOMAIN_UNAVAILABLE, true},
    {"weights_document_open", 2, HL_WEIGHT_DOMAIN_UNAVAILABLE, true}, /* READY.json */
    {"weights_document_write", 2, HL_WEIGHT_DOMAIN_UNAVAILABLE, true},
    {"weights_document_sync", 3, HL_WEIGHT_DOMAIN_UNAVAILABLE, true},
    {"weights_document_seal", 2, HL_WEIGHT_DOMAIN_UNAVAILABLE, true},
    {"weights_document_sync", 4, HL_WEIGHT_DOMAIN_UNAVAILABLE, true},
    {"weights_build_mark", 1, HL_WEIGHT_DOMAIN_UNAVAILABLE, true},
    {"weights_build_sync", 1, HL_WEIGHT_DOMAIN_UNAVAILABLE, true},
};

static void a_build_that_fails_before_its_publication_leaves_nothing(void)
{
    static const int errnos[] = {EIO, ENOSPC, EDQUOT};
    hl_fault_bench_open(&bench);
    for (size_t i = 0; i < sizeof build_steps / sizeof build_steps[0]; i++)
        for (unsigned after = 0; after < 2; after++)
            for (unsigned e = 0; e < 3; e++) {
                const char *const step = build_steps[i].step;
                const unsigned rule = arm(step, after, build_steps[i].nth, HL_FAULT_ERROR, errnos[e]);
                const hl_status status = hl_fault_bench_get(&bench, NULL, &failure);
                const hl_weight_code code = errnos[e] == EIO ? build_steps[i].code : HL_WEIGHT_ENOSPC;
                const bool retryable = errnos[e] == EIO ? build_steps[i].retryable : true;
                if (status != hl_weight_code_status(code) || failure.code != code ||
                    failure.retryable != retryable)
                    fprintf(stderr, "%s %s, %s: got %s %s\n", after ? "after" : "before", step,
                            strerror(errnos[e]), hl_weight_code_name(failure.code), failure.error.text);
                CU_ASSERT_EQUAL(status, hl_weight_code_status(code));
                CU_ASSERT_EQUAL(failure.code, code);
                CU_ASSERT_EQUAL(failure.retryable, retryable);
                hl_fault_bench_disarm(&bench, rule);
                CU_ASSERT_EQUAL(hl_fixture_count(&bench.fixture, "tmp", ""), 0);
                CU_ASSERT_EQUAL(hl_fixture_count(&bench.fixture, "artifacts", ""), 0);
                CU_ASSERT_EQUAL(hl_fixture_count(&bench.fixture, "quarantine", ""), 0);
                expect_miss();
            }
    expect_built("every step");
    hl_fault_bench_close(&bench);
}

static void a_build_that_cannot_be_removed_is_swept_by_the_next(void)
{
    hl_fault_bench_open(&bench);
    const unsigned mark = arm("weights_build_mark", false, 1, HL_FAULT_ERROR, EIO),
                   removal = arm("weights_remove", false, 1, HL_FAULT_ERROR, EIO);
    HL_EXPECT_FAILURE(hl_fault_bench_get(&bench, NULL, &failure), HL_WEIGHT_DOMAIN_UNAVAILABLE, true,
                      failure);
    CU_ASSERT_PTR_NOT_NULL(strstr(failure.error.text, "mark")); /* the first is the one reported */
    hl_fault_bench_disarm(&bench, mark);
    hl_fault_bench_disarm(&bench, removal);
    CU_ASSERT_EQUAL(hl_fixture_count(&bench.fixture, "tmp", ""), 1);
    expect_built("a removal that failed");
    hl_fault_bench_close(&bench);
}

/* The producer's own EIO is its failure, not the domain's. */
static void trouble_of_the_producer_is_the_producers(void)
{
    hl_fault_bench_open(&bench);
    bench.fake.fail_with = HL_E_SYSTEM;
    bench.fake.fail_text = "its checkpoint cannot be read: Input/output error";
    HL_EXPECT_FAILURE(hl_fault_bench_get(&bench, NULL, &failure), HL_WEIGHT_PRODUCER_FAILED, false, failure);
    CU_ASSERT_STRING_EQUAL(failure.error.text, bench.fake.fail_text);
    hl_fault_bench_close(&bench);
}

static void what_was_written_in_order_is_never_read_again(void)
{
    hl_fault_bench_open(&bench);
    hl_weight_lease *lease = NULL;
    HL_REQUIRE_OK(hl_weight_store_get_or_build(bench.fixture.store, bench.identity, HL_WEIGHT_FULL_CHECKSUM,
                                               &bench.fake.producer, NULL, &lease, &failure),
                  failure.error);
    hl_weight_lease_release(lease);
    CU_ASSERT_EQUAL(hl_fault_hits(bench.board, "weights_payload_read_before"), 0);
    HL_REQUIRE_OK(
        hl_fixture_look_up(&bench.fixture, bench.identity, HL_WEIGHT_FULL_CHECKSUM, &lease, &failure),
        failure.error);
    CU_ASSERT_TRUE(hl_fault_hits(bench.board, "weights_payload_read_before") > 0);
    hl_weight_lease_release(lease);
    hl_fault_bench_close(&bench);
}

/* --- behind the rename --- */

static const struct {
    const char *step;
    bool after;
    uint32_t nth;
} publish_steps[] = {
    {"weights_publish_rename", true, 1}, {"weights_publish_harden", false, 1},
    {"weights_publish_harden", true, 1}, {"weights_publish_sync", false, 1},
    {"weights_publish_sync", true, 1},   {"weights_publish_sync", false, 2},
    {"weights_publish_sync", true, 2},   {"weights_publish_sync", false, 3},
    {"weights_publish_sync", true, 3},
};

static unsigned arm_publication(size_t i, int sys_errno)
{
    return arm(publish_steps[i].step, publish_steps[i].after, publish_steps[i].nth, HL_FAULT_ERROR,
               sys_errno);
}

static void expect_one_in_quarantine(const char *reason)
{
    char prefix[128], name[256], path[300];
    snprintf(prefix, sizeof prefix, HL_GOLDEN_KEY ".%s.", reason);
    CU_ASSERT_EQUAL(hl_fixture_count(&bench.fixture, "quarantine", ""), 1);
    hl_fixture_find(&bench.fixture, "quarantine", prefix, name);
    snprintf(path, sizeof path, "quarantine/%s", name);
    CU_ASSERT_EQUAL(hl_fixture_mode(&bench.fixture, path), 0555);
    HL_EXPECT_OK(hl_weight_store_clean_quarantined(bench.fixture.store, name, &failure), failure.error);
}

static void a_failed_publication_is_contained_and_can_be_repeated(void)
{
    hl_fault_bench_open(&bench);
    for (size_t i = 0; i < sizeof publish_steps / sizeof publish_steps[0]; i++) {
        const unsigned rule = arm_publication(i, i % 2 ? EIO : ENOSPC);
        HL_EXPECT_FAILURE(hl_fault_bench_get(&bench, NULL, &failure), HL_WEIGHT_PUBLICATION_FAILED, false,
                          failure);
        CU_ASSERT_STRING_EQUAL(failure.details, "{\"containment\":\"quarantined\"}");
        hl_fault_bench_disarm(&bench, rule);
        CU_ASSERT_EQUAL(hl_fixture_count(&bench.fixture, "tmp", ""), 0);
        expect_miss();
        expect_one_in_quarantine("publication_failure");
        expect_built(publish_steps[i].step);
        clean();
    }
    hl_fault_bench_close(&bench);
}

static void a_rename_that_fails_leaves_nothing(void)
{
    hl_fault_bench_open(&bench);
    const unsigned rule = arm("weights_publish_rename", false, 1, HL_FAULT_ERROR, EIO);
    HL_EXPECT_FAILURE(hl_fault_bench_get(&bench, NULL, &failure), HL_WEIGHT_DOMAIN_UNAVAILABLE, true,
                      failure);
    hl_fault_bench_disarm(&bench, rule);
    CU_ASSERT_EQUAL(hl_fixture_count(&bench.fixture, "tmp", ""), 0);
    CU_ASSERT_EQUAL(hl_fixture_count(&bench.fixture, "quarantine", ""), 0);
    expect_built("weights_publish_rename");
    hl_fault_bench_close(&bench);
}

static void what_cannot_be_contained_is_uncertain_and_kept(void)
{
    static const struct {
        const char *step;
        hl_weight_code found;
    } containment[] = {{"weights_quarantine_open", HL_WEIGHT_ARTIFACT_DENIED},
                       {"weights_quarantine_rename", HL_WEIGHT_ARTIFACT_DENIED}};
    hl_fault_bench_open(&bench);
    for (size_t i = 0; i < sizeof publish_steps / sizeof publish_steps[0]; i++)
        for (size_t c = 0; c < 2; c++) {
            const unsigned rule = arm_publication(i, EIO),
                           second = arm(containment[c].step, false, 1, HL_FAULT_ERROR, EIO);
            HL_EXPECT_FAILURE(hl_fault_bench_get(&bench, NULL, &failure), HL_WEIGHT_DOMAIN_UNAVAILABLE, true,
                              failure);
            CU_ASSERT_STRING_EQUAL(failure.details,
                                   "{\"containment\":\"marked\",\"outcome_uncertain\":true}");
            hl_fault_bench_disarm(&bench, rule);
            hl_fault_bench_disarm(&bench, second);
            CU_ASSERT_EQUAL(hl_fixture_count(&bench.fixture, ENTRY, ""), 3);
            hl_weight_lease *lease = NULL;
            HL_EXPECT_FAILURE(hl_fixture_look_up(&bench.fixture, bench.identity,
                                                 HL_WEIGHT_MANIFEST_AND_METADATA, &lease, &failure),
                              containment[c].found, false, failure);
            expect_built(containment[c].step);
            expect_one_in_quarantine("validation_failure");
            clean();
        }
    hl_fault_bench_close(&bench);
}

/* Neither the mark nor the move works: the artifact stays what it was when the trouble began. */
static void without_mark_and_move_nothing_is_claimed(void)
{
    hl_fault_bench_open(&bench);
    const unsigned rule = arm("weights_publish_sync", false, 3, HL_FAULT_ERROR, EIO),
                   mark = arm("weights_sticky_set", false, 1, HL_FAULT_ERROR, EIO),
                   move = arm("weights_quarantine_open", false, 1, HL_FAULT_ERROR, EIO);
    HL_EXPECT_FAILURE(hl_fault_bench_get(&bench, NULL, &failure), HL_WEIGHT_DOMAIN_UNAVAILABLE, true,
                      failure);
    CU_ASSERT_STRING_EQUAL(failure.details, "{\"containment\":\"failed\",\"outcome_uncertain\":true}");
    hl_fault_bench_disarm(&bench, rule);
    hl_fault_bench_disarm(&bench, mark);
    hl_fault_bench_disarm(&bench, move);
    hl_weight_origin origin = HL_WEIGHT_BUILT;
    HL_EXPECT_OK(hl_fault_bench_get(&bench, &origin, &failure),
                 failure.error); /* it had been committed, and is valid */
    CU_ASSERT_EQUAL(origin, HL_WEIGHT_HIT);
    CU_ASSERT_EQUAL(hl_fixture_mode(&bench.fixture, ENTRY), 0555);
    hl_fault_bench_close(&bench);
}

static void a_quarantine_that_fails_is_reported_and_finished_by_the_next_build(void)
{
    static const struct {
        const char *step;
        bool after;
        uint32_t nth;
        bool moved;
    } steps[] = {
        {"weights_quarantine_open", false, 1, false},   {"weights_quarantine_open", true, 1, false},
        {"weights_quarantine_rename", false, 1, false}, {"weights_quarantine_rename", true, 1, true},
        {"weights_quarantine_sync", false, 1, true},    {"weights_quarantine_sync", true, 3, true},
    };
    hl_fault_bench_open(&bench);
    expect_built("nothing");
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        HL_EXPECT_OK(hl_weight_store_deny(bench.fixture.store, HL_GOLDEN_KEY, "a test", &failure),
                     failure.error);
        const unsigned rule = arm(steps[i].step, steps[i].after, steps[i].nth, HL_FAULT_ERROR, EIO);
        HL_EXPECT_FAILURE(hl_fault_bench_get(&bench, NULL, &failure), HL_WEIGHT_QUARANTINE_FAILED, true,
                          failure);
        hl_fault_bench_disarm(&bench, rule);
        CU_ASSERT_EQUAL(hl_fixture_exists(&bench.fixture, ENTRY), !steps[i].moved);
        if (!steps[i].moved)
            CU_ASSERT_EQUAL(hl_fixture_mode(&bench.fixture, ENTRY), 0555);
        expect_built(steps[i].step);
        expect_one_in_quarantine("validation_failure");
    }
    hl_fault_bench_close(&bench);
}

static void one_failed_hardening_is_tried_again(void)
{
    hl_fault_bench_open(&bench);
    expect_built("nothing");
    HL_EXPECT_OK(hl_weight_store_deny(bench.fixture.store, HL_GOLDEN_KEY, "a test", &failure), failure.error);
    const unsigned rule = arm("weights_quarantine_harden", false, 1, HL_FAULT_ERROR, EIO);
    expect_built("weights_quarantine_harden");
    hl_fault_bench_disarm(&bench, rule);
    expect_one_in_quarantine("validation_failure");
    hl_fault_bench_close(&bench);
}

/* --- the end of the process --- */

static int build_in_child(void *context)
{
    (void)context;
    hl_weight_store *store = NULL;
    if (hl_weight_store_open(&bench.fixture.options, &store, &failure))
        return 2;
    bench.fixture.store = store;
    return hl_fault_bench_get(&bench, NULL, &failure) == HL_OK ? 0 : 1;
}

/* Wherever a build ended, READY.json is its last file. */
static void expect_ready_last(const char *point)
{
    char name[256], ready[300], manifest[300];
    if (hl_fixture_count(&bench.fixture, "tmp", "") != 1)
        return;
    hl_fixture_find(&bench.fixture, "tmp", "", name);
    snprintf(ready, sizeof ready, "tmp/%s/READY.json", name);
    snprintf(manifest, sizeof manifest, "tmp/%s/manifest.json", name);
    const bool last =
        !hl_fixture_exists(&bench.fixture, ready) ||
        (hl_fixture_exists(&bench.fixture, manifest) && hl_fixture_mode(&bench.fixture, manifest) == 0444);
    if (!last)
        fprintf(stderr, "after %s: READY.json before a whole manifest.json\n", point);
    CU_ASSERT_TRUE(last);
}

/* At any step of a build: a miss, a hit or a denial is left, and the next build gives a whole artifact. */
static void a_process_may_die_at_any_step_of_a_build(void)
{
    hl_fault_bench_open(&bench);
    unsigned deaths = 0;
    for (uint32_t i = 0; i < hl_fault_point_count(); i++) {
        const char *const point = hl_fault_point_name(i);
        const unsigned rule = hl_fault_bench_arm(&bench, point, 1, HL_FAULT_KILL, 0);
        const int result = hl_child_end(hl_child_start(build_in_child, NULL));
        const bool died = hl_fault_fired(bench.board, rule) > 0;
        CU_ASSERT_EQUAL(result, died ? -SIGKILL : 0);
        hl_fault_disarm(bench.board, rule);
        deaths += died;
        expect_ready_last(point);
        const hl_status status = hl_fault_bench_get(&bench, NULL, &failure);
        if (status)
            fprintf(stderr, "after %s: %s\n", point, failure.error.text);
        CU_ASSERT_EQUAL(status, HL_OK);
        CU_ASSERT_EQUAL(hl_fixture_mode(&bench.fixture, ENTRY), 0555);
        clean();
        CU_ASSERT_EQUAL(hl_fixture_count(&bench.fixture, "tmp", ""), 0);
        CU_ASSERT_EQUAL(hl_fixture_count(&bench.fixture, "deny", ""), 0);
    }
    CU_ASSERT_TRUE(deaths >= 30);
    hl_fault_bench_close(&bench);
}

/* The same where an entry has to be moved away first. */
static void a_process_may_die_at_any_step_of_a_quarantine(void)
{
    static const char *const steps[] = {"weights_quarantine_open", "weights_quarantine_rename",
                                        "weights_quarantine_harden", "weights_quarantine_sync",
                                        "weights_deny_remove"};
    hl_fault_bench_open(&bench);
    for (unsigned i = 0; i < 2 * sizeof steps / sizeof steps[0]; i++) {
        expect_built("nothing");
        HL_EXPECT_OK(hl_weight_store_deny(bench.fixture.store, HL_GOLDEN_KEY, "a test", &failure),
                     failure.error);
        const unsigned rule = arm(steps[i / 2], i % 2, 1, HL_FAULT_KILL, 0);
        CU_ASSERT_EQUAL(hl_child_end(hl_child_start(build_in_child, NULL)), -SIGKILL);
        hl_fault_bench_disarm(&bench, rule);
        hl_weight_lease *lease = NULL;
        CU_ASSERT_NOT_EQUAL(hl_fixture_look_up(&bench.fixture, bench.identity,
                                               HL_WEIGHT_MANIFEST_AND_METADATA, &lease, &failure),
                            HL_OK);
        expect_built(steps[i / 2]);
        expect_one_in_quarantine("validation_failure");
        clean();
    }
    hl_fault_bench_close(&bench);
}

/* After hardening the artifact is committed, whoever dies. */
static void a_process_that_dies_behind_the_commit_has_published(void)
{
    hl_fault_bench_open(&bench);
    for (unsigned i = 0; i < 2; i++) {
        const unsigned rule = i ? arm("weights_publish_sync", true, 3, HL_FAULT_KILL, 0)
                                : arm("weights_publish_harden", true, 1, HL_FAULT_KILL, 0);
        CU_ASSERT_EQUAL(hl_child_end(hl_child_start(build_in_child, NULL)), -SIGKILL);
        hl_fault_bench_disarm(&bench, rule);
        hl_weight_origin origin = HL_WEIGHT_BUILT;
        HL_EXPECT_OK(hl_fault_bench_get(&bench, &origin, &failure), failure.error);
        CU_ASSERT_EQUAL(origin, HL_WEIGHT_HIT);
        clean();
    }
    hl_fault_bench_close(&bench);
}

HL_TESTS(build_fault, HL_CASE(a_build_that_fails_before_its_publication_leaves_nothing),
         HL_CASE(a_build_that_cannot_be_removed_is_swept_by_the_next),
         HL_CASE(trouble_of_the_producer_is_the_producers),
         HL_CASE(what_was_written_in_order_is_never_read_again),
         HL_CASE(a_failed_publication_is_contained_and_can_be_repeated),
         HL_CASE(a_rename_that_fails_leaves_nothing), HL_CASE(what_cannot_be_contained_is_uncertain_and_kept),
         HL_CASE(without_mark_and_move_nothing_is_claimed),
         HL_CASE(a_quarantine_that_fails_is_reported_and_finished_by_the_next_build),
         HL_CASE(one_failed_hardening_is_tried_again), HL_CASE(a_process_may_die_at_any_step_of_a_build),
         HL_CASE(a_process_may_die_at_any_step_of_a_quarantine),
         HL_CASE(a_process_that_dies_behind_the_commit_has_published));
