/* Trouble of the moment denies nothing; a marker that appears during a lookup counts; and every way in which
 * denying itself can fail leaves a broken artifact unusable. Runs as a *_faults twin only. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/testing/cunit.h"
#include "core/weights/store/golden_testing.h"
#include "faults/testing.h"

static const char marker[] = "deny/" HL_GOLDEN_KEY ".json";

static hl_fault_board *board;
static struct hl_store_fixture fixture;
static hl_weight_identity *identity;
static hl_weight_lease *lease;
static hl_weight_failure failure;

static void open_golden(void)
{
    board = hl_fault_board_create();
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    hl_golden_lay(&fixture, HL_GOLDEN_KEY);
    identity = hl_fixture_identity(2, 0);
    hl_fault_use_board(board);
}

static void close_golden(void)
{
    hl_fault_use_board(NULL);
    hl_fault_board_free(board);
    hl_weight_identity_free(identity);
    hl_fixture_close(&fixture);
}

static hl_status look_up(hl_weight_validation validation)
{
    lease = NULL;
    return hl_weight_store_lookup(fixture.store, identity, validation, &lease, &failure);
}

static void expect_hit(hl_weight_validation validation)
{
    HL_EXPECT_OK(look_up(validation), failure.error);
    hl_weight_lease_release(lease);
}

static void trouble_of_the_moment_is_retryable_and_denies_nothing(void)
{
    static const struct {
        const char *point;
        uint32_t nth;
        int error;
    } troubles[] = {
        {"weights_lock_open_before", 1, EIO},    {"weights_lock_open_before", 1, EMFILE},
        {"weights_entry_find_before", 1, EIO},   {"weights_deny_open_before", 1, EIO},
        {"weights_deny_open_before", 2, EIO},    {"weights_entry_open_before", 1, EIO},
        {"weights_entry_open_after", 1, EMFILE}, {"weights_entry_open_before", 1, ESTALE},
        {"weights_read_before", 1, EIO},         {"weights_read_after", 3, EIO},
        {"weights_payload_read_before", 1, EIO}, {"weights_payload_read_after", 1, EIO},
    };
    open_golden();
    expect_hit(HL_WEIGHT_FULL_CHECKSUM);
    for (size_t i = 0; i < sizeof troubles / sizeof troubles[0]; i++) {
        const unsigned before = hl_open_descriptors();
        const unsigned rule = hl_fault_arm(board, troubles[i].point, troubles[i].nth, HL_FAULT_ERROR,
                                           (uint64_t)troubles[i].error);
        HL_EXPECT_FAILURE(look_up(HL_WEIGHT_FULL_CHECKSUM), HL_WEIGHT_DOMAIN_UNAVAILABLE, true, failure);
        if (hl_fault_fired(board, rule) != 1)
            fprintf(stderr, "not reached: %s\n", troubles[i].point);
        CU_ASSERT_EQUAL(hl_fault_fired(board, rule), 1);
        CU_ASSERT_EQUAL(failure.error.sys_errno, troubles[i].error);
        CU_ASSERT_EQUAL(hl_open_descriptors(), before);
        CU_ASSERT_FALSE(hl_fixture_exists(&fixture, marker));
        hl_fault_disarm(board, rule);
        expect_hit(HL_WEIGHT_FULL_CHECKSUM);
    }
    close_golden();
}

static void an_error_of_structure_is_the_artifacts_fault(void)
{
    static const int errors[] = {EACCES, EISDIR, ELOOP, ENOTDIR, EPERM};
    open_golden();
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        const unsigned rule =
            hl_fault_arm(board, "weights_read_before", 1, HL_FAULT_ERROR, (uint64_t)errors[i]);
        HL_EXPECT_FAILURE(look_up(HL_WEIGHT_MANIFEST_AND_METADATA), HL_WEIGHT_MANIFEST_CORRUPT, false,
                          failure);
        hl_fault_disarm(board, rule);
        CU_ASSERT_TRUE(hl_fixture_exists(&fixture, marker));
        hl_fixture_remove(&fixture, marker);
    }
    close_golden();
}

/* --- a marker that appears --- */

static void *look_up_in_thread(void *argument)
{
    hl_status *status = argument;
    *status = look_up(HL_WEIGHT_MANIFEST_AND_METADATA);
    return NULL;
}

/* A lookup stands still where it has validated everything, and meets what `happens` meanwhile. */
static void meet(void (*happens)(void))
{
    pthread_t thread;
    hl_status status = HL_OK;
    const unsigned rule = hl_fault_arm(board, "weights_deny_open_before", 2, HL_FAULT_PARK, 0);
    CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, look_up_in_thread, &status), 0);
    CU_ASSERT_TRUE_FATAL(hl_fault_await_parked(board, rule, 1, HL_FAULT_PATIENCE_NS));
    happens();
    hl_fault_release(board, rule);
    pthread_join(thread, NULL);
    hl_fault_disarm(board, rule);
    HL_EXPECT_FAILURE(status, HL_WEIGHT_ARTIFACT_DENIED, false, failure);
    CU_ASSERT_PTR_NULL(lease);
}

static void find_it_broken(void)
{
    hl_weight_lease *stronger = NULL;
    hl_weight_failure reason;
    hl_fixture_corrupt(&fixture, HL_GOLDEN_PAYLOAD, 210);
    HL_EXPECT_FAILURE(
        hl_weight_store_lookup(fixture.store, identity, HL_WEIGHT_FULL_CHECKSUM, &stronger, &reason),
        HL_WEIGHT_CHECKSUM_MISMATCH, false, reason);
}

static void mark_it_sticky(void)
{
    hl_fixture_chmod(&fixture, HL_GOLDEN_ENTRY, 01555);
}

static void a_weaker_lookup_does_not_return_what_a_stronger_one_has_denied(void)
{
    open_golden();
    meet(find_it_broken);
    close_golden();
}

static void a_sticky_bit_that_appears_denies(void)
{
    open_golden();
    meet(mark_it_sticky);
    close_golden();
}

/* --- containment --- */

/* Full-checksum lookup of a corrupt artifact whose marker cannot be written. */
static void expect_contained(hl_weight_code code, const char *mark, const char *quarantine)
{
    char details[256];
    const unsigned before = hl_open_descriptors();
    HL_EXPECT_FAILURE(look_up(HL_WEIGHT_FULL_CHECKSUM), code, true, failure);
    CU_ASSERT_EQUAL(hl_open_descriptors(), before);
    snprintf(details, sizeof details,
             "{\"containment\":{\"invalidation_marker\":\"%s\",\"quarantine\":\"%s\"},\"reason\":"
             "\"checksum_mismatch\"}",
             mark, quarantine);
    if (strcmp(failure.details, details) != 0)
        fprintf(stderr, "details are %s\n", failure.details);
    CU_ASSERT_STRING_EQUAL(failure.details, details);
    CU_ASSERT_PTR_NOT_NULL(strstr(failure.error.text, HL_GOLDEN_FILE));
}

static void a_marker_that_cannot_be_written_leads_to_quarantine(void)
{
    static const struct {
        const char *point;
        int error;
        hl_weight_code code;
    } faults[] = {{"weights_deny_write_before", ENOSPC, HL_WEIGHT_ENOSPC},
                  {"weights_deny_write_before", EDQUOT, HL_WEIGHT_ENOSPC},
                  {"weights_deny_write_before", EIO, HL_WEIGHT_DOMAIN_UNAVAILABLE},
                  {"weights_deny_write_before", EROFS, HL_WEIGHT_DOMAIN_UNAVAILABLE},
                  {"weights_document_open_before", EIO, HL_WEIGHT_DOMAIN_UNAVAILABLE},
                  {"weights_document_sync_before", ENOSPC, HL_WEIGHT_ENOSPC}};
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        char name[256];
        open_golden();
        hl_fixture_corrupt(&fixture, HL_GOLDEN_PAYLOAD, 210);
        hl_fault_arm(board, faults[i].point, 1, HL_FAULT_ERROR, (uint64_t)faults[i].error);
        expect_contained(faults[i].code, "artifact_mode", "completed");
        CU_ASSERT_FALSE(hl_fixture_exists(&fixture, marker));
        CU_ASSERT_FALSE(hl_fixture_exists(&fixture, HL_GOLDEN_ENTRY));
        hl_fixture_find(&fixture, "quarantine", HL_GOLDEN_KEY ".validation_failure.", name);
        HL_EXPECT_FAILURE(look_up(HL_WEIGHT_MANIFEST_AND_METADATA), HL_WEIGHT_LOCAL_MISS, false, failure);
        close_golden();
    }
}

static void a_lease_keeps_the_folder_in_its_place_but_marked(void)
{
    open_golden();
    HL_REQUIRE_OK(look_up(HL_WEIGHT_MANIFEST_AND_METADATA), failure.error);
    hl_weight_lease *other = lease;
    hl_fixture_corrupt(&fixture, HL_GOLDEN_PAYLOAD, 231);
    hl_fault_arm(board, "weights_deny_write_before", 1, HL_FAULT_ERROR, ENOSPC);
    expect_contained(HL_WEIGHT_ENOSPC, "artifact_mode", "deferred_for_active_lease");
    CU_ASSERT_EQUAL(hl_fixture_mode(&fixture, HL_GOLDEN_ENTRY), 01555);
    HL_EXPECT_FAILURE(look_up(HL_WEIGHT_MANIFEST_AND_METADATA), HL_WEIGHT_ARTIFACT_DENIED, false, failure);
    CU_ASSERT_EQUAL(((const float *)hl_weight_lease_tensor_at(other, 0)->data)[1], 2.0f);
    hl_weight_lease_release(other);
    close_golden();
}

static void without_the_lock_or_a_look_the_folder_stays_marked(void)
{
    open_golden();
    hl_fixture_corrupt(&fixture, HL_GOLDEN_PAYLOAD, 210);
    hl_fault_arm(board, "weights_deny_write_before", 1, HL_FAULT_ERROR, EIO);
    hl_fault_arm(board, "weights_lock_open_before", 2, HL_FAULT_ERROR, EIO);
    expect_contained(HL_WEIGHT_DOMAIN_UNAVAILABLE, "artifact_mode", "deferred_for_lock_error");
    HL_EXPECT_FAILURE(look_up(HL_WEIGHT_MANIFEST_AND_METADATA), HL_WEIGHT_ARTIFACT_DENIED, false, failure);
    close_golden();

    open_golden();
    hl_fixture_corrupt(&fixture, HL_GOLDEN_PAYLOAD, 210);
    hl_fault_arm(board, "weights_deny_write_before", 1, HL_FAULT_ERROR, EIO);
    hl_fault_arm(board, "weights_entry_find_before", 2, HL_FAULT_ERROR, EIO);
    expect_contained(HL_WEIGHT_DOMAIN_UNAVAILABLE, "artifact_mode", "deferred_for_unverified_artifact");
    HL_EXPECT_FAILURE(look_up(HL_WEIGHT_MANIFEST_AND_METADATA), HL_WEIGHT_ARTIFACT_DENIED, false, failure);
    close_golden();
}

static void a_folder_that_was_never_open_is_not_moved(void)
{
    open_golden();
    hl_fixture_remove(&fixture, HL_GOLDEN_ENTRY);
    hl_fixture_overwrite(&fixture, HL_GOLDEN_ENTRY, "x", 1); /* a file */
    hl_fault_arm(board, "weights_deny_write_before", 1, HL_FAULT_ERROR, EIO);
    HL_EXPECT_FAILURE(look_up(HL_WEIGHT_FULL_CHECKSUM), HL_WEIGHT_DOMAIN_UNAVAILABLE, true, failure);
    CU_ASSERT_PTR_NOT_NULL(strstr(failure.details, "\"quarantine\":\"deferred_for_unverified_artifact\""));
    CU_ASSERT_PTR_NOT_NULL(strstr(failure.details, "\"invalidation_marker\":\"failed\""));
    CU_ASSERT_TRUE(hl_fixture_exists(&fixture, HL_GOLDEN_ENTRY));
    close_golden();
}

static void where_nothing_can_be_marked_the_failure_says_so(void)
{
    open_golden();
    hl_fixture_corrupt(&fixture, HL_GOLDEN_PAYLOAD, 210);
    hl_fault_arm(board, "weights_deny_write_before", 1, HL_FAULT_ERROR, EIO);
    hl_fault_arm(board, "weights_sticky_set_before", 1, HL_FAULT_ERROR, EIO);
    hl_fault_arm(board, "weights_quarantine_rename_before", 1, HL_FAULT_ERROR, EIO);
    HL_EXPECT_FAILURE(look_up(HL_WEIGHT_FULL_CHECKSUM), HL_WEIGHT_DOMAIN_UNAVAILABLE, true, failure);
    CU_ASSERT_PTR_NOT_NULL(strstr(failure.details, "\"invalidation_marker\":\"failed\""));
    CU_ASSERT_PTR_NOT_NULL(strstr(failure.details, "\"quarantine\":\"failed\""));
    close_golden();
}

/* --- between the two locks --- */

static void *look_up_fully(void *argument)
{
    hl_status *status = argument;
    *status = look_up(HL_WEIGHT_FULL_CHECKSUM);
    return NULL;
}

/* The condemning lookup has given the shared lock up and is about to look for the folder again. */
static void hand_over(void (*happens)(void), const char *outcome)
{
    pthread_t thread;
    hl_status status = HL_OK;
    hl_fixture_corrupt(&fixture, HL_GOLDEN_PAYLOAD, 210);
    hl_fault_arm(board, "weights_deny_write_before", 1, HL_FAULT_ERROR, ENOSPC);
    const unsigned rule = hl_fault_arm(board, "weights_lock_open_before", 2, HL_FAULT_PARK, 0);
    CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, look_up_fully, &status), 0);
    CU_ASSERT_TRUE_FATAL(hl_fault_await_parked(board, rule, 1, HL_FAULT_PATIENCE_NS));
    happens();
    hl_fault_release(board, rule);
    pthread_join(thread, NULL);
    HL_EXPECT_FAILURE(status, HL_WEIGHT_ENOSPC, true, failure);
    CU_ASSERT_PTR_NOT_NULL(strstr(failure.details, outcome));
}

static void vanish(void)
{
    char from[600], to[600];
    snprintf(from, sizeof from, "%s/" HL_GOLDEN_ENTRY, fixture.root);
    snprintf(to, sizeof to, "%s/quarantine/by-another", fixture.root);
    hl_fixture_chmod(&fixture, HL_GOLDEN_ENTRY, 0755);
    CU_ASSERT_EQUAL_FATAL(rename(from, to), 0);
}

static void be_rebuilt(void)
{
    vanish();
    hl_golden_lay(&fixture, HL_GOLDEN_KEY);
}

static void an_artifact_rebuilt_meanwhile_is_not_quarantined(void)
{
    open_golden();
    hand_over(be_rebuilt, "\"quarantine\":\"already_replaced\"");
    expect_hit(HL_WEIGHT_FULL_CHECKSUM);
    close_golden();
}

static void an_artifact_gone_meanwhile_is_left_gone(void)
{
    open_golden();
    hand_over(vanish, "\"quarantine\":\"already_absent\"");
    HL_EXPECT_FAILURE(look_up(HL_WEIGHT_FULL_CHECKSUM), HL_WEIGHT_LOCAL_MISS, false, failure);
    close_golden();
}

/* --- by request --- */

static void a_request_to_deny_works_on_a_full_file_system(void)
{
    open_golden();
    hl_fault_arm(board, "weights_deny_write_before", 1, HL_FAULT_ERROR, ENOSPC);
    HL_EXPECT_OK(hl_weight_store_deny(fixture.store, HL_GOLDEN_KEY, "x", &failure), failure.error);
    HL_EXPECT_FAILURE(look_up(HL_WEIGHT_MANIFEST_AND_METADATA), HL_WEIGHT_ARTIFACT_DENIED, false, failure);
    close_golden();
    open_golden();
    hl_fault_arm(board, "weights_deny_write_before", 1, HL_FAULT_ERROR, ENOSPC);
    hl_fault_arm(board, "weights_sticky_set_before", 1, HL_FAULT_ERROR, EIO);
    HL_EXPECT_FAILURE(hl_weight_store_deny(fixture.store, HL_GOLDEN_KEY, "x", &failure), HL_WEIGHT_ENOSPC,
                      true, failure);
    expect_hit(HL_WEIGHT_FULL_CHECKSUM);
    hl_fault_arm(board, "weights_entry_find_before", 1, HL_FAULT_ERROR, EIO);
    HL_EXPECT_FAILURE(hl_weight_store_deny(fixture.store, HL_GOLDEN_KEY, "x", &failure),
                      HL_WEIGHT_DOMAIN_UNAVAILABLE, true, failure);
    hl_fault_arm(board, "weights_lock_open_before", 1, HL_FAULT_ERROR, EIO);
    HL_EXPECT_FAILURE(hl_weight_store_deny(fixture.store, HL_GOLDEN_KEY, "x", &failure),
                      HL_WEIGHT_DOMAIN_UNAVAILABLE, true, failure);
    close_golden();
}

/* --- opening --- */

static void every_step_of_creating_a_domain_may_fail_and_be_repeated(void)
{
    static const char *const steps[] = {
        "weights_folder_make",   "weights_lock_open",     "weights_document_open",   "weights_document_write",
        "weights_document_sync", "weights_document_seal", "weights_document_rename", "weights_folder_sync"};
    static const int errors[] = {EIO, ENOSPC};
    board = hl_fault_board_create();
    for (size_t i = 0; i < 4 * sizeof steps / sizeof steps[0]; i++) {
        char point[64];
        hl_weight_store *store = NULL;
        snprintf(point, sizeof point, "%s_%s", steps[i / 4], i & 1 ? "after" : "before");
        const int error = errors[i / 2 % 2];
        hl_fixture_open(&fixture, HL_FIXTURE_DISK);
        const unsigned before = hl_open_descriptors();
        hl_fault_use_board(board);
        const unsigned rule = hl_fault_arm(board, point, 1, HL_FAULT_ERROR, (uint64_t)error);
        HL_EXPECT_FAILURE(hl_weight_store_open(&fixture.options, &store, &failure),
                          error == EIO ? HL_WEIGHT_DOMAIN_UNAVAILABLE : HL_WEIGHT_ENOSPC, true, failure);
        if (hl_fault_fired(board, rule) != 1)
            fprintf(stderr, "not reached: %s\n", point);
        CU_ASSERT_EQUAL(hl_fault_fired(board, rule), 1);
        hl_fault_disarm(board, rule);
        hl_fault_use_board(NULL);
        CU_ASSERT_EQUAL(hl_open_descriptors(), before);
        hl_fixture_store(&fixture);
        hl_fixture_close(&fixture);
    }
    hl_fault_board_free(board);
}

static void what_a_dead_opener_left_is_swept_or_the_opening_fails(void)
{
    static const char left[] = ".domain.json.0123456789abcdef0123456789abcdef.tmp";
    hl_weight_store *store = NULL;
    board = hl_fault_board_create();
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    hl_fixture_reopen(&fixture);
    hl_fixture_overwrite(&fixture, left, "{", 1);
    const unsigned before = hl_open_descriptors();
    hl_fault_use_board(board);
    const unsigned rule = hl_fault_arm(board, "weights_remove_before", 1, HL_FAULT_ERROR, EIO);
    HL_EXPECT_FAILURE(hl_weight_store_open(&fixture.options, &store, &failure), HL_WEIGHT_DOMAIN_UNAVAILABLE,
                      true, failure);
    CU_ASSERT_EQUAL(hl_fault_fired(board, rule), 1);
    CU_ASSERT_TRUE(hl_fixture_exists(&fixture, left));
    CU_ASSERT_EQUAL(hl_open_descriptors(), before);
    hl_fault_use_board(NULL);
    hl_fixture_reopen(&fixture);
    CU_ASSERT_FALSE(hl_fixture_exists(&fixture, left));
    hl_fixture_close(&fixture);
    hl_fault_board_free(board);
}

HL_TESTS(store_lookup_fault, HL_CASE(trouble_of_the_moment_is_retryable_and_denies_nothing),
         HL_CASE(an_error_of_structure_is_the_artifacts_fault),
         HL_CASE(a_weaker_lookup_does_not_return_what_a_stronger_one_has_denied),
         HL_CASE(a_sticky_bit_that_appears_denies),
         HL_CASE(a_marker_that_cannot_be_written_leads_to_quarantine),
         HL_CASE(a_lease_keeps_the_folder_in_its_place_but_marked),
         HL_CASE(without_the_lock_or_a_look_the_folder_stays_marked),
         HL_CASE(a_folder_that_was_never_open_is_not_moved),
         HL_CASE(where_nothing_can_be_marked_the_failure_says_so),
         HL_CASE(an_artifact_rebuilt_meanwhile_is_not_quarantined),
         HL_CASE(an_artifact_gone_meanwhile_is_left_gone),
         HL_CASE(a_request_to_deny_works_on_a_full_file_system),
         HL_CASE(every_step_of_creating_a_domain_may_fail_and_be_repeated),
         HL_CASE(what_a_dead_opener_left_is_swept_or_the_opening_fails));
