#include <stdio.h>
#include <string.h>

#include "core/testing/cunit.h"
#include "core/weights/runtime/runtime.h"

static const hl_weight_code codes[] = {
#define CODE(name, text, status, remedy) HL_WEIGHT_##name,
    HL_WEIGHT_CODE_LIST(CODE)
#undef CODE
};
enum { CODES = sizeof codes / sizeof codes[0] };

static hl_weight_action after(hl_weight_mode mode, hl_weight_code code, bool retryable)
{
    const hl_weight_failure failure = {.code = code, .retryable = retryable};
    return hl_policy_after_failure(mode, &failure);
}

static void every_code_is_decided_upon(void)
{
    for (size_t i = 0; i < CODES; i++) {
        if (hl_policy_fallback_of(codes[i]) == HL_POLICY_UNDECIDED)
            fprintf(stderr, "%s is not in the table\n", hl_weight_code_name(codes[i]));
        CU_ASSERT_NOT_EQUAL(hl_policy_fallback_of(codes[i]), HL_POLICY_UNDECIDED);
    }
    CU_ASSERT_EQUAL(hl_policy_fallback_of((hl_weight_code)CODES), HL_POLICY_UNDECIDED);
}

static void required_mode_never_falls_back(void)
{
    for (size_t i = 0; i < CODES; i++) {
        CU_ASSERT_EQUAL(after(HL_WEIGHT_MODE_REQUIRED, codes[i], true), HL_WEIGHT_ACTION_FAIL_STARTUP);
        CU_ASSERT_EQUAL(after(HL_WEIGHT_MODE_REQUIRED, codes[i], false), HL_WEIGHT_ACTION_FAIL_STARTUP);
    }
}

/* Written out again, apart from the table under test. */
static void preferred_mode_falls_back_on_what_may_pass_or_is_only_unusable(void)
{
    static const struct {
        hl_weight_code code;
        bool when_retryable, otherwise;
    } expected[] = {
        {HL_WEIGHT_LOCAL_MISS, true, true},
        {HL_WEIGHT_ARTIFACT_DENIED, true, true},
        {HL_WEIGHT_MANIFEST_CORRUPT, true, true},
        {HL_WEIGHT_MANIFEST_INCOMPATIBLE, true, true},
        {HL_WEIGHT_CHECKSUM_MISMATCH, true, true},
        {HL_WEIGHT_DOMAIN_UNAVAILABLE, true, false},
        {HL_WEIGHT_ACTIVE_BUILD_TIMEOUT, true, false},
        {HL_WEIGHT_ENOSPC, true, false},
        {HL_WEIGHT_INSUFFICIENT_CAPACITY, true, false},
        {HL_WEIGHT_PRODUCER_UNAVAILABLE, true, false},
        {HL_WEIGHT_UNSUPPORTED, false, false},
        {HL_WEIGHT_INVALID_CONFIG, false, false},
        {HL_WEIGHT_STORAGE_CLASS_MISMATCH, false, false},
        {HL_WEIGHT_DOMAIN_POLICY_MISMATCH, false, false},
        {HL_WEIGHT_IDENTITY_COLLISION, false, false},
        {HL_WEIGHT_PRODUCER_FAILED, false, false},
        {HL_WEIGHT_PRODUCER_UNSUPPORTED, false, false},
        {HL_WEIGHT_PUBLICATION_FAILED, false, false},
    };
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        const hl_weight_code code = expected[i].code;
        CU_ASSERT_EQUAL(after(HL_WEIGHT_MODE_PREFERRED, code, true) == HL_WEIGHT_ACTION_CANONICAL_FALLBACK,
                        expected[i].when_retryable);
        CU_ASSERT_EQUAL(after(HL_WEIGHT_MODE_PREFERRED, code, false) == HL_WEIGHT_ACTION_CANONICAL_FALLBACK,
                        expected[i].otherwise);
    }
}

static void a_lookup_is_followed_by_what_its_result_allows(void)
{
    const hl_weight_failure passing = {.code = HL_WEIGHT_DOMAIN_UNAVAILABLE, .retryable = true};
    static const struct {
        enum hl_lookup_result result;
        hl_weight_action local, remote, required;
        hl_weight_attempt_result shown;
    } expected[] = {
        {HL_LOOKUP_HIT, HL_WEIGHT_ACTION_RETURN_LEASE, HL_WEIGHT_ACTION_RETURN_LEASE,
         HL_WEIGHT_ACTION_RETURN_LEASE, HL_WEIGHT_ATTEMPT_HIT},
        {HL_LOOKUP_MISS, HL_WEIGHT_ACTION_TRY_PRODUCER, HL_WEIGHT_ACTION_TRY_REMOTE,
         HL_WEIGHT_ACTION_TRY_PRODUCER, HL_WEIGHT_ATTEMPT_MISS},
        {HL_LOOKUP_INVALID, HL_WEIGHT_ACTION_QUARANTINE_THEN_PRODUCE, HL_WEIGHT_ACTION_TRY_REMOTE,
         HL_WEIGHT_ACTION_QUARANTINE_THEN_PRODUCE, HL_WEIGHT_ATTEMPT_ERROR},
        {HL_LOOKUP_TIMEOUT, HL_WEIGHT_ACTION_CANONICAL_FALLBACK, HL_WEIGHT_ACTION_CANONICAL_FALLBACK,
         HL_WEIGHT_ACTION_FAIL_STARTUP, HL_WEIGHT_ATTEMPT_TIMEOUT},
        {HL_LOOKUP_FAILED, HL_WEIGHT_ACTION_CANONICAL_FALLBACK, HL_WEIGHT_ACTION_CANONICAL_FALLBACK,
         HL_WEIGHT_ACTION_FAIL_STARTUP, HL_WEIGHT_ATTEMPT_ERROR},
    };
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        const enum hl_lookup_result result = expected[i].result;
        CU_ASSERT_EQUAL(
            hl_policy_after_lookup(HL_WEIGHT_MODE_PREFERRED, HL_WEIGHT_REMOTE_DISABLED, result, &passing),
            expected[i].local);
        CU_ASSERT_EQUAL(
            hl_policy_after_lookup(HL_WEIGHT_MODE_PREFERRED, HL_WEIGHT_REMOTE_TRY, result, &passing),
            expected[i].remote);
        CU_ASSERT_EQUAL(
            hl_policy_after_lookup(HL_WEIGHT_MODE_REQUIRED, HL_WEIGHT_REMOTE_DISABLED, result, &passing),
            expected[i].required);
        CU_ASSERT_EQUAL(hl_policy_attempt_result(result), expected[i].shown);
    }
}

static void options_fill(hl_weight_runtime_options *options)
{
    hl_weight_runtime_options_init(options);
    options->mode = HL_WEIGHT_MODE_REQUIRED;
    options->store.root = "/nowhere/at/all";
}

/* Each wrong option is refused by name; nothing is opened. */
static void a_wrong_option_is_named(void)
{
    static char long_name[HL_NAME_BYTES + 1];
    memset(long_name, 'x', HL_NAME_BYTES);
    hl_weight_runtime_options options;
    hl_weight_failure failure;
    hl_weight_runtime *runtime = NULL;
#define REFUSES(field, value, expected_code, word)                                                           \
    do {                                                                                                     \
        options_fill(&options);                                                                              \
        options.field = (value);                                                                             \
        CU_ASSERT_EQUAL(hl_weight_runtime_create(&options, &runtime, &failure),                              \
                        hl_weight_code_status(expected_code));                                               \
        CU_ASSERT_EQUAL(failure.code, expected_code);                                                        \
        CU_ASSERT_EQUAL(failure.stage, HL_WEIGHT_STAGE_CONFIGURATION);                                       \
        CU_ASSERT_FALSE(failure.retryable);                                                                  \
        CU_ASSERT_PTR_NOT_NULL(strstr(failure.error.text, word));                                            \
        CU_ASSERT_PTR_NULL(runtime);                                                                         \
    } while (0)
    REFUSES(size, 1, HL_WEIGHT_INVALID_CONFIG, "size");
    REFUSES(mode, (hl_weight_mode)9, HL_WEIGHT_INVALID_CONFIG, "mode");
    REFUSES(validation, (hl_weight_validation)9, HL_WEIGHT_INVALID_CONFIG, "validation");
    REFUSES(remote, (hl_weight_remote)9, HL_WEIGHT_INVALID_CONFIG, "remote");
    REFUSES(store.size, 1, HL_WEIGHT_INVALID_CONFIG, "store.size");
    REFUSES(store.root, NULL, HL_WEIGHT_INVALID_CONFIG, "store.root");
    REFUSES(store.root, "relative", HL_WEIGHT_INVALID_CONFIG, "store.root");
    REFUSES(store.domain_id, "", HL_WEIGHT_INVALID_CONFIG, "domain_id");
    REFUSES(store.domain_id, long_name, HL_WEIGHT_INVALID_CONFIG, "domain_id");
    REFUSES(store.scope, (hl_weight_scope)7, HL_WEIGHT_INVALID_CONFIG, "scope");
    REFUSES(store.storage_class, (hl_weight_storage_class)7, HL_WEIGHT_INVALID_CONFIG, "storage_class");
    REFUSES(store.admission, (hl_weight_admission)7, HL_WEIGHT_INVALID_CONFIG, "admission");
    REFUSES(store.admission, HL_WEIGHT_ADMISSION_SERIALIZED, HL_WEIGHT_INVALID_CONFIG, "max_store_bytes");
    REFUSES(store.coordination_timeout_ns, 0, HL_WEIGHT_INVALID_CONFIG, "coordination_timeout_ns");
    REFUSES(allow_post_load_publish, true, HL_WEIGHT_INVALID_CONFIG, "allow_post_load_publish");
    REFUSES(validation, HL_WEIGHT_FS_VERITY, HL_WEIGHT_UNSUPPORTED, "fs_verity");
    REFUSES(numa_prefault, true, HL_WEIGHT_UNSUPPORTED, "numa_prefault");
    REFUSES(verify_numa_residency, true, HL_WEIGHT_UNSUPPORTED, "verify_numa_residency");
    REFUSES(background_scrub, true, HL_WEIGHT_UNSUPPORTED, "background_scrub");
#undef REFUSES
    CU_ASSERT_EQUAL(hl_weight_runtime_create(NULL, &runtime, &failure), HL_E_INVALID);
}

static void disabled_mode_looks_at_nothing_but_the_mode(void)
{
    hl_weight_runtime_options options;
    hl_weight_failure failure;
    hl_weight_runtime *runtime = NULL;
    hl_weight_lease *lease = (hl_weight_lease *)&options;
    hl_weight_report report;
    options_fill(&options);
    options.mode = HL_WEIGHT_MODE_DISABLED;
    options.store.root = (const char *)1; /* would crash if it were read */
    options.store.size = 0;
    options.validation = HL_WEIGHT_FS_VERITY;
    options.background_scrub = true;
    HL_REQUIRE_OK(hl_weight_runtime_create(&options, &runtime, &failure), failure.error);
    HL_EXPECT_OK(hl_weight_runtime_resolve(runtime, (const hl_weight_identity *)1,
                                           (const hl_weight_producer *)1, 3, &lease, &report, &failure),
                 failure.error);
    CU_ASSERT_PTR_NULL(lease);
    CU_ASSERT_EQUAL(report.outcome, HL_WEIGHT_OUTCOME_CANONICAL_DIRECT);
    CU_ASSERT_EQUAL(report.attempt_count, 1);
    CU_ASSERT_EQUAL(report.attempts[0].result, HL_WEIGHT_ATTEMPT_SKIPPED);
    CU_ASSERT_EQUAL(report.attempts[0].action, HL_WEIGHT_ACTION_SKIP);
    hl_weight_runtime_free(runtime);
    hl_weight_runtime_free(NULL);
}

static void every_result_action_and_outcome_has_a_name(void)
{
    CU_ASSERT_STRING_EQUAL(hl_weight_attempt_result_name(HL_WEIGHT_ATTEMPT_HIT), "hit");
    CU_ASSERT_STRING_EQUAL(hl_weight_attempt_result_name(HL_WEIGHT_ATTEMPT_SKIPPED), "skipped");
    CU_ASSERT_STRING_EQUAL(hl_weight_attempt_result_name((hl_weight_attempt_result)99), "unknown");
    CU_ASSERT_STRING_EQUAL(hl_weight_action_name(HL_WEIGHT_ACTION_RETURN_LEASE), "return_lease");
    CU_ASSERT_STRING_EQUAL(hl_weight_action_name(HL_WEIGHT_ACTION_QUARANTINE_THEN_PRODUCE),
                           "quarantine_then_produce");
    CU_ASSERT_STRING_EQUAL(hl_weight_action_name(HL_WEIGHT_ACTION_SKIP), "skip");
    CU_ASSERT_STRING_EQUAL(hl_weight_action_name((hl_weight_action)99), "unknown");
    CU_ASSERT_STRING_EQUAL(hl_weight_outcome_name(HL_WEIGHT_OUTCOME_LOCAL_HIT), "local_hit");
    CU_ASSERT_STRING_EQUAL(hl_weight_outcome_name(HL_WEIGHT_OUTCOME_FAILED), "failed");
    CU_ASSERT_STRING_EQUAL(hl_weight_outcome_name((hl_weight_outcome)99), "unknown");
}

HL_TESTS(policy, HL_CASE(every_code_is_decided_upon), HL_CASE(required_mode_never_falls_back),
         HL_CASE(preferred_mode_falls_back_on_what_may_pass_or_is_only_unusable),
         HL_CASE(a_lookup_is_followed_by_what_its_result_allows), HL_CASE(a_wrong_option_is_named),
         HL_CASE(disabled_mode_looks_at_nothing_but_the_mode),
         HL_CASE(every_result_action_and_outcome_has_a_name));
