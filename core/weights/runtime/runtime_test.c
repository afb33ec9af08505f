#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/testing/cunit.h"
#include "core/weights/runtime/runtime.h"
#include "core/weights/store/store_testing.h"

/* A runtime on a fresh domain, and what its observer saw. */
struct bench {
    struct hl_store_fixture fixture;
    hl_weight_runtime_options options;
    hl_weight_runtime *runtime;
    hl_weight_identity *identity;
    struct hl_fake_producer fake;
    unsigned observed;
    hl_weight_report seen, report;
    hl_weight_failure failure;
    hl_weight_lease *lease;
};

static void observe(void *context, const hl_weight_report *report)
{
    struct bench *bench = context;
    bench->observed++;
    bench->seen = *report;
}

static void bench_open(struct bench *bench, hl_weight_mode mode)
{
    memset(bench, 0, sizeof *bench);
    hl_fixture_open(&bench->fixture, HL_FIXTURE_DISK);
    bench->identity = hl_fixture_identity(2, 0);
    hl_fake_producer_init(&bench->fake, bench->identity);
    hl_weight_runtime_options_init(&bench->options);
    bench->options.mode = mode;
    bench->options.store = bench->fixture.options;
    bench->options.store.root = bench->fixture.root;
    bench->options.observe = observe;
    bench->options.observe_context = bench;
}

static void bench_close(struct bench *bench)
{
    hl_weight_lease_release(bench->lease);
    hl_weight_runtime_free(bench->runtime);
    hl_weight_identity_free(bench->identity);
    hl_fixture_close(&bench->fixture);
}

/* Resolves with `count` producers (0 or 1), and checks what holds of every resolution. */
static hl_status resolve(struct bench *bench, size_t count)
{
    if (!bench->runtime)
        HL_REQUIRE_OK(hl_weight_runtime_create(&bench->options, &bench->runtime, &bench->failure),
                      bench->failure.error);
    hl_weight_lease_release(bench->lease);
    bench->lease = NULL;
    bench->observed = 0;
    memset(&bench->failure, 0, sizeof bench->failure);
    const hl_status status = hl_weight_runtime_resolve(bench->runtime, bench->identity, &bench->fake.producer,
                                                       count, &bench->lease, &bench->report, &bench->failure);
    CU_ASSERT_EQUAL(bench->observed, 1); /* one terminal report, however it ends */
    CU_ASSERT_STRING_EQUAL(bench->seen.resolution_id, bench->report.resolution_id);
    CU_ASSERT_EQUAL(bench->seen.outcome, bench->report.outcome);
    CU_ASSERT_EQUAL(bench->seen.attempt_count, bench->report.attempt_count);
    CU_ASSERT_EQUAL(bench->seen.elapsed_ns, bench->report.elapsed_ns);
    CU_ASSERT_EQUAL(strspn(bench->report.resolution_id, "0123456789abcdef"), 32);
    CU_ASSERT_TRUE(bench->report.attempt_count >= 1 && bench->report.attempt_count <= 4);
    int64_t sum = 0;
    for (uint32_t i = 0; i < bench->report.attempt_count; i++) {
        CU_ASSERT_TRUE(bench->report.attempts[i].elapsed_ns >= 0);
        sum += bench->report.attempts[i].elapsed_ns;
    }
    CU_ASSERT_TRUE(sum <= bench->report.elapsed_ns);
    const bool leased = bench->report.outcome == HL_WEIGHT_OUTCOME_LOCAL_HIT ||
                        bench->report.outcome == HL_WEIGHT_OUTCOME_LOCAL_PRODUCTION;
    CU_ASSERT_EQUAL(bench->lease != NULL, leased);
    CU_ASSERT_EQUAL(status != HL_OK, bench->report.outcome == HL_WEIGHT_OUTCOME_FAILED);
    if (status != HL_OK)
        CU_ASSERT_EQUAL(status, hl_weight_code_status(bench->failure.code));
    return status;
}

static void expect_attempt(const struct bench *bench, uint32_t index, hl_weight_stage stage,
                           hl_weight_attempt_result result, hl_weight_action action)
{
    CU_ASSERT_TRUE_FATAL(index < bench->report.attempt_count);
    const hl_weight_attempt *attempt = &bench->report.attempts[index];
    if (attempt->stage != stage || attempt->result != result || attempt->action != action)
        fprintf(stderr, "attempt %u: %s %s %s\n", index, hl_weight_stage_name(attempt->stage),
                hl_weight_attempt_result_name(attempt->result), hl_weight_action_name(attempt->action));
    CU_ASSERT_EQUAL(attempt->stage, stage);
    CU_ASSERT_EQUAL(attempt->result, result);
    CU_ASSERT_EQUAL(attempt->action, action);
}

#define ATTEMPT(bench, index, stage, result, action)                                                         \
    expect_attempt(bench, index, HL_WEIGHT_STAGE_##stage, HL_WEIGHT_ATTEMPT_##result,                        \
                   HL_WEIGHT_ACTION_##action)

/* --- the way of a resolution --- */

static void the_first_builds_and_the_second_finds(void)
{
    struct bench bench;
    bench_open(&bench, HL_WEIGHT_MODE_REQUIRED);
    HL_EXPECT_OK(resolve(&bench, 1), bench.failure.error);
    CU_ASSERT_EQUAL(bench.report.outcome, HL_WEIGHT_OUTCOME_LOCAL_PRODUCTION);
    CU_ASSERT_EQUAL(bench.report.attempt_count, 2);
    ATTEMPT(&bench, 0, LOOKUP, MISS, TRY_PRODUCER);
    ATTEMPT(&bench, 1, PRODUCTION, SUCCESS, RETURN_LEASE);
    CU_ASSERT_FALSE(bench.report.attempts[0].failed); /* a miss is no failure */
    CU_ASSERT_EQUAL(hl_weight_lease_provenance(bench.lease)->origin, HL_WEIGHT_BUILT);
    char first[33];
    memcpy(first, bench.report.resolution_id, sizeof first);

    HL_EXPECT_OK(resolve(&bench, 1), bench.failure.error);
    CU_ASSERT_EQUAL(bench.report.outcome, HL_WEIGHT_OUTCOME_LOCAL_HIT);
    CU_ASSERT_EQUAL(bench.report.attempt_count, 1);
    ATTEMPT(&bench, 0, LOOKUP, HIT, RETURN_LEASE);
    CU_ASSERT_EQUAL(bench.fake.runs, 1);
    CU_ASSERT_STRING_NOT_EQUAL(first, bench.report.resolution_id);
    bench_close(&bench);
}

static void a_miss_without_a_producer_ends_by_mode(void)
{
    struct bench bench;
    bench_open(&bench, HL_WEIGHT_MODE_PREFERRED);
    HL_EXPECT_OK(resolve(&bench, 0), bench.failure.error);
    CU_ASSERT_EQUAL(bench.report.outcome, HL_WEIGHT_OUTCOME_CANONICAL_FALLBACK);
    ATTEMPT(&bench, 0, LOOKUP, MISS, TRY_PRODUCER);
    ATTEMPT(&bench, 1, PRODUCTION, SKIPPED, CANONICAL_FALLBACK);
    CU_ASSERT_EQUAL(bench.failure.code, HL_WEIGHT_PRODUCER_UNAVAILABLE);
    bench_close(&bench);

    bench_open(&bench, HL_WEIGHT_MODE_REQUIRED);
    CU_ASSERT_EQUAL(resolve(&bench, 0), HL_E_NOT_FOUND);
    ATTEMPT(&bench, 1, PRODUCTION, SKIPPED, FAIL_STARTUP);
    bench_close(&bench);
}

static void a_producer_that_may_not_run_is_skipped(void)
{
    struct bench bench;
    bench_open(&bench, HL_WEIGHT_MODE_PREFERRED);
    bench.fake.producer.phase = HL_WEIGHT_POST_LOAD_ONLY;
    HL_EXPECT_OK(resolve(&bench, 1), bench.failure.error);
    CU_ASSERT_PTR_NOT_NULL(strstr(bench.failure.error.text, "1 declare it for later"));
    bench.fake.producer.phase = HL_WEIGHT_PRE_LOAD_SAFE;
    bench.fake.keys[0] = "another";
    HL_EXPECT_OK(resolve(&bench, 1), bench.failure.error);
    CU_ASSERT_EQUAL(bench.failure.code, HL_WEIGHT_PRODUCER_UNAVAILABLE);
    CU_ASSERT_EQUAL(bench.fake.runs, 0);
    bench_close(&bench);

    bench_open(&bench, HL_WEIGHT_MODE_PREFERRED);
    bench.options.allow_local_build = false;
    HL_EXPECT_OK(resolve(&bench, 1), bench.failure.error);
    CU_ASSERT_PTR_NOT_NULL(strstr(bench.failure.error.text, "allow_local_build"));
    CU_ASSERT_EQUAL(bench.fake.runs, 0);
    bench_close(&bench);
}

static void a_store_opened_for_reading_finds_and_never_builds(void)
{
    struct bench bench;
    bench_open(&bench, HL_WEIGHT_MODE_PREFERRED);
    hl_weight_lease_release(hl_fixture_build_golden(&bench.fixture));
    bench.options.store.read_only = true;
    HL_EXPECT_OK(resolve(&bench, 1), bench.failure.error);
    CU_ASSERT_EQUAL(bench.report.outcome, HL_WEIGHT_OUTCOME_LOCAL_HIT);
    hl_weight_identity_free(bench.identity);
    bench.identity = hl_fixture_identity(2, 1);
    HL_EXPECT_OK(resolve(&bench, 1), bench.failure.error);
    CU_ASSERT_EQUAL(bench.report.outcome, HL_WEIGHT_OUTCOME_CANONICAL_FALLBACK);
    CU_ASSERT_PTR_NOT_NULL(strstr(bench.failure.error.text, "reading only"));
    bench_close(&bench);
}

static void an_invalid_artifact_is_replaced(void)
{
    struct bench bench;
    bench_open(&bench, HL_WEIGHT_MODE_REQUIRED);
    hl_weight_lease_release(hl_fixture_build_golden(&bench.fixture));
    hl_fixture_corrupt(&bench.fixture, "artifacts/" HL_GOLDEN_KEY "/" HL_GOLDEN_FILE, 215);
    bench.options.validation = HL_WEIGHT_FULL_CHECKSUM;
    HL_EXPECT_OK(resolve(&bench, 1), bench.failure.error);
    CU_ASSERT_EQUAL(bench.report.outcome, HL_WEIGHT_OUTCOME_LOCAL_PRODUCTION);
    ATTEMPT(&bench, 0, LOOKUP, ERROR, QUARANTINE_THEN_PRODUCE);
    CU_ASSERT_TRUE(bench.report.attempts[0].failed);
    CU_ASSERT_EQUAL(bench.report.attempts[0].failure.code, HL_WEIGHT_CHECKSUM_MISMATCH);
    CU_ASSERT_EQUAL(hl_fixture_count(&bench.fixture, "quarantine", HL_GOLDEN_KEY), 1);
    bench_close(&bench);
}

static void an_invalid_artifact_without_a_producer_ends_by_mode(void)
{
    for (int required = 0; required < 2; required++) {
        struct bench bench;
        bench_open(&bench, required ? HL_WEIGHT_MODE_REQUIRED : HL_WEIGHT_MODE_PREFERRED);
        hl_weight_lease_release(hl_fixture_build_golden(&bench.fixture));
        HL_EXPECT_OK(hl_weight_store_deny(bench.fixture.store, HL_GOLDEN_KEY, "test", &bench.failure),
                     bench.failure.error);
        CU_ASSERT_EQUAL(resolve(&bench, 0), required ? HL_E_NOT_FOUND : HL_OK);
        CU_ASSERT_EQUAL(bench.report.attempts[0].failure.code, HL_WEIGHT_ARTIFACT_DENIED);
        bench_close(&bench);
    }
}

/* --- remote --- */

static void remote_is_refused_and_no_producer_runs(void)
{
    static const hl_weight_remote remotes[] = {HL_WEIGHT_REMOTE_TRY, HL_WEIGHT_REMOTE_REQUIRE};
    static const hl_weight_mode modes[] = {HL_WEIGHT_MODE_PREFERRED, HL_WEIGHT_MODE_REQUIRED};
    for (int i = 0; i < 4; i++) {
        struct bench bench;
        bench_open(&bench, modes[i % 2]);
        bench.options.remote = remotes[i / 2];
        CU_ASSERT_EQUAL(resolve(&bench, 1), HL_E_UNSUPPORTED);
        CU_ASSERT_EQUAL(bench.failure.code, HL_WEIGHT_UNSUPPORTED);
        CU_ASSERT_EQUAL(bench.failure.stage, HL_WEIGHT_STAGE_REMOTE);
        ATTEMPT(&bench, 0, LOOKUP, MISS, TRY_REMOTE);
        ATTEMPT(&bench, 1, REMOTE, ERROR, FAIL_STARTUP);
        CU_ASSERT_EQUAL(bench.fake.runs, 0);
        bench_close(&bench);
    }
}

static void a_local_artifact_needs_no_remote(void)
{
    struct bench bench;
    bench_open(&bench, HL_WEIGHT_MODE_REQUIRED);
    hl_weight_lease_release(hl_fixture_build_golden(&bench.fixture));
    bench.options.remote = HL_WEIGHT_REMOTE_REQUIRE;
    HL_EXPECT_OK(resolve(&bench, 1), bench.failure.error);
    CU_ASSERT_EQUAL(bench.report.outcome, HL_WEIGHT_OUTCOME_LOCAL_HIT);
    bench_close(&bench);
}

/* --- failures --- */

static void a_failing_producer_stays_visible_in_preferred_mode(void)
{
    struct bench bench;
    bench_open(&bench, HL_WEIGHT_MODE_PREFERRED);
    bench.fake.fail_with = HL_E_SYSTEM;
    bench.fake.fail_text = "the disk of the producer";
    CU_ASSERT_EQUAL(resolve(&bench, 1), HL_E_SYSTEM);
    CU_ASSERT_EQUAL(bench.failure.code, HL_WEIGHT_PRODUCER_FAILED);
    CU_ASSERT_PTR_NOT_NULL(strstr(bench.failure.error.text, "the disk of the producer"));
    ATTEMPT(&bench, 1, PRODUCTION, ERROR, FAIL_STARTUP);
    bench_close(&bench);
}

static void a_full_store_falls_back_in_preferred_mode(void)
{
    for (int required = 0; required < 2; required++) {
        struct bench bench;
        bench_open(&bench, required ? HL_WEIGHT_MODE_REQUIRED : HL_WEIGHT_MODE_PREFERRED);
        bench.options.store.max_artifact_bytes = 16;
        CU_ASSERT_EQUAL(resolve(&bench, 1), required ? HL_E_LIMIT : HL_OK);
        CU_ASSERT_EQUAL(bench.failure.code, HL_WEIGHT_ARTIFACT_TOO_LARGE);
        expect_attempt(&bench, 1, HL_WEIGHT_STAGE_PRODUCTION, HL_WEIGHT_ATTEMPT_ERROR,
                       required ? HL_WEIGHT_ACTION_FAIL_STARTUP : HL_WEIGHT_ACTION_CANONICAL_FALLBACK);
        bench_close(&bench);
    }
}

static void a_busy_artifact_ends_the_resolution_by_mode(void)
{
    for (int required = 0; required < 2; required++) {
        struct bench bench;
        struct hl_lock lock;
        hl_error err = {0};
        bench_open(&bench, required ? HL_WEIGHT_MODE_REQUIRED : HL_WEIGHT_MODE_PREFERRED);
        HL_REQUIRE_OK(hl_lock_take(hl_fixture_store(&bench.fixture)->locks, HL_LOCK_ARTIFACT, HL_GOLDEN_KEY,
                                   HL_LOCK_EXCLUSIVE, HL_LOCK_FOREVER, false, &lock, &err),
                      err);
        bench.options.store.coordination_timeout_ns = 1;
        CU_ASSERT_EQUAL(resolve(&bench, 1), required ? HL_E_TIMEOUT : HL_OK);
        CU_ASSERT_EQUAL(bench.failure.code, HL_WEIGHT_ACTIVE_BUILD_TIMEOUT);
        CU_ASSERT_EQUAL(bench.report.attempt_count, 1);
        expect_attempt(&bench, 0, HL_WEIGHT_STAGE_LOOKUP, HL_WEIGHT_ATTEMPT_TIMEOUT,
                       required ? HL_WEIGHT_ACTION_FAIL_STARTUP : HL_WEIGHT_ACTION_CANONICAL_FALLBACK);
        CU_ASSERT_EQUAL(bench.fake.runs, 0);
        hl_lock_release(&lock);
        HL_EXPECT_OK(resolve(&bench, 1), bench.failure.error); /* and recovers */
        bench_close(&bench);
    }
}

static void a_folder_that_cannot_be_trusted_fails_in_preferred_mode_too(void)
{
    struct bench bench;
    bench_open(&bench, HL_WEIGHT_MODE_PREFERRED);
    CU_ASSERT_EQUAL(mkdir(bench.fixture.root, 0700), 0);
    CU_ASSERT_EQUAL(chmod(bench.fixture.root, 0777), 0);
    CU_ASSERT_NOT_EQUAL(resolve(&bench, 1), HL_OK);
    CU_ASSERT_EQUAL(bench.failure.code, HL_WEIGHT_DOMAIN_UNAVAILABLE);
    CU_ASSERT_FALSE(bench.failure.retryable);
    ATTEMPT(&bench, 0, DOMAIN, ERROR, FAIL_STARTUP);
    CU_ASSERT_EQUAL(chmod(bench.fixture.root, 0700), 0);
    HL_EXPECT_OK(resolve(&bench, 1), bench.failure.error); /* a failed opening is not remembered */
    bench_close(&bench);
}

static void a_wrong_call_is_reported_once(void)
{
    struct bench bench;
    bench_open(&bench, HL_WEIGHT_MODE_PREFERRED);
    hl_weight_identity *identity = bench.identity;
    bench.identity = NULL;
    CU_ASSERT_EQUAL(resolve(&bench, 1), HL_E_INVALID);
    ATTEMPT(&bench, 0, CONFIGURATION, ERROR, FAIL_STARTUP);
    CU_ASSERT_FALSE(hl_fixture_exists(&bench.fixture, "")); /* nothing was opened */
    bench.identity = identity;
    bench.fake.producer.size = 3;
    CU_ASSERT_EQUAL(resolve(&bench, 1), HL_E_INVALID);
    CU_ASSERT_PTR_NOT_NULL(strstr(bench.failure.error.text, "size"));
    bench_close(&bench);
}

static void report_and_failure_may_be_left_out(void)
{
    struct bench bench;
    hl_weight_lease *lease = NULL;
    bench_open(&bench, HL_WEIGHT_MODE_REQUIRED);
    bench.options.observe = NULL;
    HL_REQUIRE_OK(hl_weight_runtime_create(&bench.options, &bench.runtime, NULL), bench.failure.error);
    CU_ASSERT_EQUAL(hl_weight_runtime_resolve(bench.runtime, bench.identity, NULL, 0, &lease, NULL, NULL),
                    HL_E_NOT_FOUND);
    CU_ASSERT_EQUAL(hl_weight_runtime_resolve(bench.runtime, bench.identity, NULL, 1, &lease, NULL, NULL),
                    HL_E_INVALID);
    CU_ASSERT_PTR_NULL(lease);
    bench_close(&bench);
}

HL_TESTS(runtime, HL_CASE(the_first_builds_and_the_second_finds),
         HL_CASE(a_miss_without_a_producer_ends_by_mode), HL_CASE(a_producer_that_may_not_run_is_skipped),
         HL_CASE(a_store_opened_for_reading_finds_and_never_builds), HL_CASE(an_invalid_artifact_is_replaced),
         HL_CASE(an_invalid_artifact_without_a_producer_ends_by_mode),
         HL_CASE(remote_is_refused_and_no_producer_runs), HL_CASE(a_local_artifact_needs_no_remote),
         HL_CASE(a_failing_producer_stays_visible_in_preferred_mode),
         HL_CASE(a_full_store_falls_back_in_preferred_mode),
         HL_CASE(a_busy_artifact_ends_the_resolution_by_mode),
         HL_CASE(a_folder_that_cannot_be_trusted_fails_in_preferred_mode_too),
         HL_CASE(a_wrong_call_is_reported_once), HL_CASE(report_and_failure_may_be_left_out));
