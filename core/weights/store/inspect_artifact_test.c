#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/testing/cunit.h"
#include "core/weights/store/store.h"
#include "core/weights/store/store_testing.h"

#define PAYLOAD "artifacts/" HL_GOLDEN_KEY "/" HL_GOLDEN_FILE

static hl_weight_artifact_snapshot *inspect(struct hl_store_fixture *fixture, hl_weight_validation validation)
{
    hl_weight_artifact_snapshot *snapshot = NULL;
    hl_weight_failure failure;
    HL_REQUIRE_OK(hl_weight_store_inspect_artifact(hl_fixture_store(fixture), HL_GOLDEN_KEY, validation,
                                                   &snapshot, &failure),
                  failure.error);
    CU_ASSERT_STRING_EQUAL(snapshot->artifact_key, HL_GOLDEN_KEY);
    return snapshot;
}

static void an_artifact_shows_what_a_lease_shows(void)
{
    struct hl_store_fixture fixture;
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    hl_weight_lease *lease = hl_fixture_build_golden(&fixture);
    hl_weight_artifact_snapshot *snapshot = inspect(&fixture, HL_WEIGHT_FULL_CHECKSUM);
    const hl_weight_provenance *provenance = hl_weight_lease_provenance(lease);
    CU_ASSERT_TRUE(snapshot->present);
    CU_ASSERT_TRUE(snapshot->valid);
    CU_ASSERT_EQUAL(snapshot->bytes, 232);
    CU_ASSERT_STRING_EQUAL(snapshot->publication_id, provenance->publication_id);
    CU_ASSERT_STRING_EQUAL(snapshot->backing_fingerprint, provenance->backing_fingerprint);
    CU_ASSERT_PTR_NOT_NULL_FATAL(snapshot->manifest_json);
    CU_ASSERT_EQUAL(strlen(snapshot->manifest_json), 1680);
    CU_ASSERT_EQUAL(snapshot->tensor_count, hl_weight_lease_tensor_count(lease));
    for (size_t i = 0; i < snapshot->tensor_count; i++) {
        const hl_weight_tensor_view *seen = &snapshot->tensors[i],
                                    *leased = hl_weight_lease_tensor_at(lease, i);
        CU_ASSERT_STRING_EQUAL(seen->name, leased->name);
        CU_ASSERT_STRING_EQUAL(seen->dtype, leased->dtype);
        CU_ASSERT_EQUAL(seen->bytes, leased->bytes);
        CU_ASSERT_EQUAL(seen->rank, leased->rank);
        CU_ASSERT_EQUAL(seen->region, leased->region);
        CU_ASSERT_EQUAL(seen->region_offset, leased->region_offset);
        CU_ASSERT_PTR_NULL(seen->data);
    }
    CU_ASSERT_TRUE(snapshot->artifact_lock_active); /* the lease */
    CU_ASSERT_FALSE(snapshot->build_lock_active);
    hl_weight_artifact_snapshot_free(snapshot);
    hl_weight_lease_release(lease);
    snapshot = inspect(&fixture, HL_WEIGHT_MANIFEST_AND_METADATA);
    CU_ASSERT_FALSE(snapshot->artifact_lock_active);
    hl_weight_artifact_snapshot_free(snapshot);
    hl_weight_artifact_snapshot_free(NULL);
    hl_fixture_close(&fixture);
}

static void an_absent_artifact_is_no_failure_and_makes_no_lock_file(void)
{
    struct hl_store_fixture fixture;
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    (void)hl_fixture_store(&fixture);
    const unsigned locks = hl_fixture_count(&fixture, "locks", "");
    hl_weight_artifact_snapshot *snapshot = inspect(&fixture, HL_WEIGHT_MANIFEST_AND_METADATA);
    CU_ASSERT_FALSE(snapshot->present);
    CU_ASSERT_FALSE(snapshot->valid);
    CU_ASSERT_PTR_NULL(snapshot->manifest_json);
    CU_ASSERT_EQUAL(snapshot->tensor_count, 0);
    hl_weight_artifact_snapshot_free(snapshot);
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "locks", ""), locks);
    hl_fixture_close(&fixture);
}

/* The difference between an inspection and a lookup: no marker. */
static void a_corrupt_artifact_is_reported_and_not_denied(void)
{
    struct hl_store_fixture fixture;
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    hl_weight_lease_release(hl_fixture_build_golden(&fixture));
    hl_fixture_corrupt(&fixture, PAYLOAD, 215);
    hl_weight_artifact_snapshot *snapshot = inspect(&fixture, HL_WEIGHT_MANIFEST_AND_METADATA);
    CU_ASSERT_TRUE(snapshot->valid); /* no tensor byte is read */
    hl_weight_artifact_snapshot_free(snapshot);
    snapshot = inspect(&fixture, HL_WEIGHT_FULL_CHECKSUM);
    CU_ASSERT_TRUE(snapshot->present);
    CU_ASSERT_FALSE(snapshot->valid);
    CU_ASSERT_EQUAL(snapshot->failure.code, HL_WEIGHT_CHECKSUM_MISMATCH);
    CU_ASSERT_EQUAL(snapshot->tensor_count, 2); /* what it says it is */
    CU_ASSERT_EQUAL(snapshot->backing_fingerprint[0], '\0');
    hl_weight_artifact_snapshot_free(snapshot);
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "deny", ""), 0);
    CU_ASSERT_EQUAL(hl_fixture_mode(&fixture, "artifacts/" HL_GOLDEN_KEY), 0555);
    hl_fixture_close(&fixture);
}

static void a_denied_artifact_still_shows_its_manifest(void)
{
    struct hl_store_fixture fixture;
    hl_weight_failure failure;
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    hl_weight_lease_release(hl_fixture_build_golden(&fixture));
    HL_EXPECT_OK(hl_weight_store_deny(fixture.store, HL_GOLDEN_KEY, "test", &failure), failure.error);
    hl_weight_artifact_snapshot *snapshot = inspect(&fixture, HL_WEIGHT_MANIFEST_AND_METADATA);
    CU_ASSERT_TRUE(snapshot->present);
    CU_ASSERT_FALSE(snapshot->valid);
    CU_ASSERT_EQUAL(snapshot->failure.code, HL_WEIGHT_ARTIFACT_DENIED);
    CU_ASSERT_PTR_NOT_NULL(snapshot->manifest_json);
    CU_ASSERT_EQUAL(strlen(snapshot->publication_id), 32);
    hl_weight_artifact_snapshot_free(snapshot);
    hl_fixture_close(&fixture);
}

static void documents_that_cannot_be_read_are_left_out(void)
{
    struct hl_store_fixture fixture;
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    hl_weight_lease_release(hl_fixture_build_golden(&fixture));
    hl_fixture_overwrite(&fixture, "artifacts/" HL_GOLDEN_KEY "/manifest.json", "{}", 2);
    hl_fixture_overwrite(&fixture, "artifacts/" HL_GOLDEN_KEY "/READY.json", "[]", 2);
    hl_weight_artifact_snapshot *snapshot = inspect(&fixture, HL_WEIGHT_MANIFEST_AND_METADATA);
    CU_ASSERT_TRUE(snapshot->present);
    CU_ASSERT_FALSE(snapshot->valid);
    CU_ASSERT_PTR_NULL(snapshot->manifest_json);
    CU_ASSERT_EQUAL(snapshot->publication_id[0], '\0');
    CU_ASSERT_TRUE(snapshot->bytes > 0); /* what the folder takes */
    hl_weight_artifact_snapshot_free(snapshot);
    hl_fixture_close(&fixture);
}

static void a_file_in_the_place_of_an_artifact_is_invalid(void)
{
    struct hl_store_fixture fixture;
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    (void)hl_fixture_store(&fixture);
    hl_fixture_overwrite(&fixture, "artifacts/" HL_GOLDEN_KEY, "file", 4);
    hl_weight_artifact_snapshot *snapshot = inspect(&fixture, HL_WEIGHT_MANIFEST_AND_METADATA);
    CU_ASSERT_TRUE(snapshot->present);
    CU_ASSERT_FALSE(snapshot->valid);
    CU_ASSERT_EQUAL(snapshot->failure.code, HL_WEIGHT_MANIFEST_CORRUPT);
    hl_weight_artifact_snapshot_free(snapshot);
    hl_fixture_close(&fixture);
}

static void lock_activity_is_that_of_the_moment(void)
{
    struct hl_store_fixture fixture;
    struct hl_lock build, artifact;
    hl_error err = {0};
    hl_weight_artifact_snapshot *snapshot = NULL;
    hl_weight_failure failure;
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    hl_weight_lease_release(hl_fixture_build_golden(&fixture));
    fixture.options.coordination_timeout_ns = 1;
    hl_fixture_reopen(&fixture);
    HL_REQUIRE_OK(hl_lock_take(fixture.store->locks, HL_LOCK_BUILD, HL_GOLDEN_KEY, HL_LOCK_EXCLUSIVE,
                               HL_LOCK_FOREVER, false, &build, &err),
                  err);
    snapshot = inspect(&fixture, HL_WEIGHT_MANIFEST_AND_METADATA);
    CU_ASSERT_TRUE(snapshot->build_lock_active);
    CU_ASSERT_FALSE(snapshot->artifact_lock_active);
    CU_ASSERT_TRUE(snapshot->valid);
    hl_weight_artifact_snapshot_free(snapshot);
    HL_REQUIRE_OK(hl_lock_take(fixture.store->locks, HL_LOCK_ARTIFACT, HL_GOLDEN_KEY, HL_LOCK_EXCLUSIVE,
                               HL_LOCK_FOREVER, false, &artifact, &err),
                  err);
    CU_ASSERT_EQUAL(hl_weight_store_inspect_artifact(fixture.store, HL_GOLDEN_KEY,
                                                     HL_WEIGHT_MANIFEST_AND_METADATA, &snapshot, &failure),
                    HL_E_TIMEOUT);
    CU_ASSERT_EQUAL(failure.code, HL_WEIGHT_ACTIVE_BUILD_TIMEOUT);
    CU_ASSERT_TRUE(failure.retryable);
    hl_lock_release(&artifact);
    hl_lock_release(&build);
    hl_fixture_close(&fixture);
}

static void a_domain_without_locks_is_inspected_too(void)
{
    struct hl_store_fixture fixture;
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    hl_weight_lease_release(hl_fixture_build_golden(&fixture));
    hl_fixture_remove(&fixture, "locks");
    fixture.options.read_only = true;
    hl_fixture_reopen(&fixture);
    hl_weight_artifact_snapshot *snapshot = inspect(&fixture, HL_WEIGHT_FULL_CHECKSUM);
    CU_ASSERT_TRUE(snapshot->valid);
    hl_weight_artifact_snapshot_free(snapshot);
    CU_ASSERT_FALSE(hl_fixture_exists(&fixture, "locks"));
    hl_fixture_close(&fixture);
}

static void wrong_arguments_are_refused(void)
{
    struct hl_store_fixture fixture;
    hl_weight_artifact_snapshot *snapshot = NULL;
    hl_weight_failure failure;
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    hl_weight_store *store = hl_fixture_store(&fixture);
    static const char *const keys[] = {NULL, "", "abc", "../" HL_GOLDEN_KEY, HL_GOLDEN_KEY "0"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        CU_ASSERT_EQUAL(
            hl_weight_store_inspect_artifact(store, keys[i], HL_WEIGHT_FULL_CHECKSUM, &snapshot, &failure),
            HL_E_INVALID);
        CU_ASSERT_EQUAL(failure.code, HL_WEIGHT_INVALID_CONFIG);
    }
    CU_ASSERT_EQUAL(
        hl_weight_store_inspect_artifact(store, HL_GOLDEN_KEY, HL_WEIGHT_FS_VERITY, &snapshot, NULL),
        HL_E_UNSUPPORTED);
    CU_ASSERT_PTR_NULL(snapshot);
    hl_fixture_close(&fixture);
}

HL_TESTS(inspect_artifact, HL_CASE(an_artifact_shows_what_a_lease_shows),
         HL_CASE(an_absent_artifact_is_no_failure_and_makes_no_lock_file),
         HL_CASE(a_corrupt_artifact_is_reported_and_not_denied),
         HL_CASE(a_denied_artifact_still_shows_its_manifest),
         HL_CASE(documents_that_cannot_be_read_are_left_out),
         HL_CASE(a_file_in_the_place_of_an_artifact_is_invalid), HL_CASE(lock_activity_is_that_of_the_moment),
         HL_CASE(a_domain_without_locks_is_inspected_too), HL_CASE(wrong_arguments_are_refused));
