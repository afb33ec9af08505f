/* Lookups of the golden artifact, denial by request, and read-only stores. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/testing/cunit.h"
#include "core/weights/store/golden_testing.h"

static const char marker[] = "deny/" HL_GOLDEN_KEY ".json";

static struct hl_store_fixture fixture;
static hl_weight_identity *identity;
static hl_weight_lease *lease;
static hl_weight_failure failure;

static void open_golden(void)
{
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    hl_golden_lay(&fixture, HL_GOLDEN_KEY);
    identity = hl_fixture_identity(2, 0);
}

static void close_golden(void)
{
    hl_weight_identity_free(identity);
    hl_fixture_close(&fixture);
}

static hl_status look_up(hl_weight_validation validation)
{
    lease = NULL;
    return hl_weight_store_lookup(hl_fixture_store(&fixture), identity, validation, &lease, &failure);
}

static void the_golden_artifact_is_found_and_is_what_it_says(void)
{
    static const hl_weight_validation validations[] = {HL_WEIGHT_MANIFEST_AND_METADATA,
                                                       HL_WEIGHT_FULL_CHECKSUM};
    open_golden();
    for (size_t i = 0; i < 2; i++) {
        HL_REQUIRE_OK(look_up(validations[i]), failure.error);
        const hl_weight_provenance *from = hl_weight_lease_provenance(lease);
        CU_ASSERT_STRING_EQUAL(from->artifact_key, HL_GOLDEN_KEY);
        CU_ASSERT_STRING_EQUAL(from->content_sha256, HL_GOLDEN_CONTENT);
        CU_ASSERT_STRING_EQUAL(from->domain_uuid, fixture.store->domain.uuid);
        CU_ASSERT_STRING_EQUAL(from->publication_id, "00000000000000000000000000000000");
        CU_ASSERT_STRING_EQUAL(from->producer_id, "test.final-layout");
        CU_ASSERT_EQUAL(strlen(from->backing_fingerprint), 64);
        CU_ASSERT_EQUAL(from->origin, HL_WEIGHT_HIT);
        CU_ASSERT_EQUAL(from->validation, validations[i]);
        hl_weight_lease_release(lease);
    }
    close_golden();
}

static void views_are_the_tensors_bytes_in_one_mapping_a_file(void)
{
    open_golden();
    HL_REQUIRE_OK(look_up(HL_WEIGHT_FULL_CHECKSUM), failure.error);
    CU_ASSERT_EQUAL(hl_weight_lease_tensor_count(lease), 2);
    const hl_weight_tensor_view *weight = hl_weight_lease_tensor(lease, "layer.weight");
    const hl_weight_tensor_view *scale = hl_weight_lease_tensor_at(lease, 0);
    CU_ASSERT_PTR_NOT_NULL_FATAL(weight);
    CU_ASSERT_STRING_EQUAL(scale->name, "layer.scale");
    CU_ASSERT_EQUAL(scale->kind, HL_WEIGHT_BUFFER);
    CU_ASSERT_STRING_EQUAL(weight->dtype, "torch.bfloat16");
    CU_ASSERT_STRING_EQUAL(weight->role, "weight");
    CU_ASSERT_TRUE(weight->rank == 2 && weight->shape[0] == 4 && weight->shape[1] == 3);
    CU_ASSERT_TRUE(weight->stride[0] == 3 && weight->stride[1] == 1 && weight->bytes == 24);
    const uint16_t *values = weight->data;
    for (unsigned i = 0; i < 12; i++) { /* bfloat16 is the upper half of a float */
        float value = (float)i;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        CU_ASSERT_EQUAL(values[i], bits >> 16);
    }
    CU_ASSERT_EQUAL(((const float *)scale->data)[0], 1.0f);
    CU_ASSERT_EQUAL(((const float *)scale->data)[1], 2.0f);
    CU_ASSERT_EQUAL(hl_weight_lease_region_count(lease), 1);
    const hl_weight_region *region = hl_weight_lease_region_at(lease, 0);
    CU_ASSERT_STRING_EQUAL(region->file_name, HL_GOLDEN_FILE);
    CU_ASSERT_EQUAL(region->length, 232);
    CU_ASSERT_PTR_EQUAL(weight->data, (const char *)region->address + weight->region_offset);
    CU_ASSERT_EQUAL(region->tmpfs, fixture.options.storage_class == HL_WEIGHT_TMPFS);
    CU_ASSERT_EQUAL(hl_mappings_of(HL_GOLDEN_PAYLOAD), 1);
    CU_ASSERT_PTR_NULL(hl_weight_lease_tensor(lease, "layer.bias"));
    CU_ASSERT_PTR_NULL(hl_weight_lease_tensor(lease, NULL));
    CU_ASSERT_PTR_NULL(hl_weight_lease_tensor_at(lease, 2));
    CU_ASSERT_PTR_NULL(hl_weight_lease_region_at(lease, 1));
    CU_ASSERT_STRING_EQUAL(hl_weight_lease_format_metadata(lease), "{}");
    size_t bytes[2];
    const char *json = hl_weight_lease_identity_json(lease, &bytes[0]);
    CU_ASSERT_STRING_EQUAL(json, hl_weight_identity_json(identity, &bytes[1]));
    CU_ASSERT_EQUAL(bytes[0], bytes[1]);
    HL_EXPECT_OK(hl_weight_lease_prefetch(lease, &failure.error), failure.error);
    hl_weight_lease_release(lease);
    CU_ASSERT_EQUAL(hl_mappings_of(HL_GOLDEN_PAYLOAD), 0);
    close_golden();
}

static void no_artifact_is_a_miss_and_a_marker_alone_denies_nothing(void)
{
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    identity = hl_fixture_identity(2, 0);
    HL_EXPECT_FAILURE(look_up(HL_WEIGHT_FULL_CHECKSUM), HL_WEIGHT_LOCAL_MISS, false, failure);
    hl_fixture_overwrite(&fixture, marker, "torn", 4);
    HL_EXPECT_FAILURE(look_up(HL_WEIGHT_FULL_CHECKSUM), HL_WEIGHT_LOCAL_MISS, false, failure);
    CU_ASSERT_EQUAL(hl_weight_store_lookup(fixture.store, identity, HL_WEIGHT_FULL_CHECKSUM, &lease, NULL),
                    HL_E_MISS);
    close_golden();
}

static void any_entry_of_its_name_denies(void)
{
    char path[600];
    open_golden();
    hl_fixture_overwrite(&fixture, marker, "torn", 4);
    HL_EXPECT_FAILURE(look_up(HL_WEIGHT_FULL_CHECKSUM), HL_WEIGHT_ARTIFACT_DENIED, false, failure);
    hl_fixture_remove(&fixture, marker);
    snprintf(path, sizeof path, "%s/%s", fixture.root, marker);
    CU_ASSERT_EQUAL_FATAL(symlink("nowhere", path), 0);
    HL_EXPECT_FAILURE(look_up(HL_WEIGHT_FULL_CHECKSUM), HL_WEIGHT_ARTIFACT_DENIED, false, failure);
    CU_ASSERT_EQUAL_FATAL(unlink(path), 0);
    HL_EXPECT_OK(look_up(HL_WEIGHT_FULL_CHECKSUM), failure.error);
    hl_weight_lease_release(lease);
    close_golden();
}

static void a_flipped_byte_is_found_by_the_full_checksum_and_then_by_everybody(void)
{
    struct hl_deny_marker found;
    size_t bytes;
    hl_error err;
    open_golden();
    hl_fixture_corrupt(&fixture, HL_GOLDEN_PAYLOAD, 210);
    HL_EXPECT_OK(look_up(HL_WEIGHT_MANIFEST_AND_METADATA), failure.error);
    hl_weight_lease *weaker = lease;
    HL_EXPECT_FAILURE(look_up(HL_WEIGHT_FULL_CHECKSUM), HL_WEIGHT_CHECKSUM_MISMATCH, false, failure);
    CU_ASSERT_PTR_NOT_NULL(strstr(failure.error.text, HL_GOLDEN_FILE));
    HL_EXPECT_FAILURE(look_up(HL_WEIGHT_MANIFEST_AND_METADATA), HL_WEIGHT_ARTIFACT_DENIED, false, failure);
    char *text = hl_fixture_read(&fixture, marker, &bytes);
    HL_REQUIRE_OK(hl_deny_parse(text, bytes, &found, &err), err);
    CU_ASSERT_STRING_EQUAL(found.stage, "validation");
    CU_ASSERT_STRING_EQUAL(found.reason, "checksum_mismatch");
    CU_ASSERT_PTR_NOT_NULL(strstr(found.message, HL_GOLDEN_FILE));
    free(text);
    hl_weight_lease_release(weaker);
    close_golden();
}

static void a_caller_without_interest_in_the_reason_denies_as_well(void)
{
    open_golden();
    hl_fixture_corrupt(&fixture, HL_GOLDEN_PAYLOAD, 210);
    CU_ASSERT_EQUAL(hl_weight_store_lookup(fixture.store, identity, HL_WEIGHT_FULL_CHECKSUM, &lease, NULL),
                    HL_E_CHECKSUM);
    CU_ASSERT_TRUE(hl_fixture_exists(&fixture, marker));
    close_golden();
}

static void what_cannot_be_asked_is_refused(void)
{
    open_golden();
    HL_EXPECT_FAILURE(look_up(HL_WEIGHT_FS_VERITY), HL_WEIGHT_UNSUPPORTED, false, failure);
    HL_EXPECT_FAILURE(look_up((hl_weight_validation)9), HL_WEIGHT_INVALID_CONFIG, false, failure);
    HL_EXPECT_FAILURE(hl_weight_store_lookup(fixture.store, NULL, HL_WEIGHT_FULL_CHECKSUM, &lease, &failure),
                      HL_WEIGHT_INVALID_CONFIG, false, failure);
    CU_ASSERT_FALSE(hl_fixture_exists(&fixture, marker));
    close_golden();
}

static int hold_lock(const char *name, int operation)
{
    char path[600];
    snprintf(path, sizeof path, "%s/locks/%s", fixture.root, name);
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CU_ASSERT_TRUE_FATAL(fd >= 0 && flock(fd, operation) == 0);
    return fd;
}

static void the_wait_for_a_publication_is_bounded_and_names_who_holds_it(void)
{
    char pid[32];
    open_golden();
    fixture.options.coordination_timeout_ns = 1000000;
    hl_fixture_reopen(&fixture);
    const int held = hold_lock(HL_GOLDEN_KEY ".artifact.lock", LOCK_EX);
    const unsigned before = hl_open_descriptors();
    HL_EXPECT_FAILURE(look_up(HL_WEIGHT_FULL_CHECKSUM), HL_WEIGHT_ACTIVE_BUILD_TIMEOUT, true, failure);
    CU_ASSERT_EQUAL(hl_open_descriptors(), before);
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    /* The kernel may not tell the holders (another PID namespace). */
    CU_ASSERT_TRUE(strcmp(failure.details, "{}") == 0 || strstr(failure.details, pid));
    HL_EXPECT_FAILURE(hl_weight_store_deny(fixture.store, HL_GOLDEN_KEY, "no", &failure),
                      HL_WEIGHT_ACTIVE_BUILD_TIMEOUT, true, failure);
    close(held);
    HL_EXPECT_OK(look_up(HL_WEIGHT_FULL_CHECKSUM), failure.error);
    hl_weight_lease_release(lease);
    close_golden();
}

/* --- denial by request --- */

static void denying_takes_effect_for_later_lookups_and_spares_leases(void)
{
    struct hl_deny_marker found;
    size_t bytes;
    hl_error err;
    open_golden();
    HL_REQUIRE_OK(look_up(HL_WEIGHT_FULL_CHECKSUM), failure.error);
    hl_weight_lease *before = lease;
    HL_EXPECT_OK(hl_weight_store_deny(fixture.store, HL_GOLDEN_KEY, "wrong weights", &failure),
                 failure.error);
    char *text = hl_fixture_read(&fixture, marker, &bytes);
    HL_EXPECT_OK(hl_weight_store_deny(fixture.store, HL_GOLDEN_KEY, "again", &failure), failure.error);
    HL_REQUIRE_OK(hl_deny_parse(text, bytes, &found, &err), err);
    CU_ASSERT_STRING_EQUAL(found.stage, "lifecycle");
    CU_ASSERT_STRING_EQUAL(found.reason, "artifact_denied");
    CU_ASSERT_STRING_EQUAL(found.message, "wrong weights");
    free(text);
    HL_EXPECT_FAILURE(look_up(HL_WEIGHT_MANIFEST_AND_METADATA), HL_WEIGHT_ARTIFACT_DENIED, false, failure);
    CU_ASSERT_EQUAL(((const float *)hl_weight_lease_tensor_at(before, 0)->data)[1], 2.0f);
    hl_weight_lease_release(before);
    close_golden();
}

static void denying_needs_a_key_a_reason_and_an_artifact(void)
{
    char reason[1024];
    size_t bytes;
    struct hl_deny_marker found;
    hl_error err;
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    hl_weight_store *store = hl_fixture_store(&fixture);
    identity = hl_fixture_identity(2, 0);
    HL_EXPECT_FAILURE(hl_weight_store_deny(store, "../artifacts", "x", &failure), HL_WEIGHT_INVALID_CONFIG,
                      false, failure);
    HL_EXPECT_FAILURE(hl_weight_store_deny(store, HL_GOLDEN_KEY, "", &failure), HL_WEIGHT_INVALID_CONFIG,
                      false, failure);
    HL_EXPECT_FAILURE(hl_weight_store_deny(store, HL_GOLDEN_KEY, NULL, &failure), HL_WEIGHT_INVALID_CONFIG,
                      false, failure);
    HL_EXPECT_FAILURE(hl_weight_store_deny(store, HL_GOLDEN_KEY, "x", &failure), HL_WEIGHT_LOCAL_MISS, false,
                      failure);
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "deny", ""), 0);
    hl_golden_lay(&fixture, HL_GOLDEN_KEY);
    for (size_t i = 0; i + 1 < sizeof reason; i += 2) /* two bytes a letter: the cut must not split one */
        memcpy(reason + i, "\xc3\xa9", 2);
    reason[sizeof reason - 1] = 0;
    HL_EXPECT_OK(hl_weight_store_deny(store, HL_GOLDEN_KEY, reason, &failure), failure.error);
    char *text = hl_fixture_read(&fixture, marker, &bytes);
    HL_EXPECT_OK(hl_deny_parse(text, bytes, &found, &err), err);
    free(text);
    close_golden();
}

/* --- read-only --- */

static void open_read_only(void)
{
    fixture.options.read_only = true;
    hl_fixture_reopen(&fixture);
}

static void a_read_only_store_finds_and_locks_and_writes_nothing(void)
{
    open_golden();
    HL_REQUIRE_OK(look_up(HL_WEIGHT_FULL_CHECKSUM), failure.error); /* makes the lock file */
    hl_weight_lease_release(lease);
    open_read_only();
    HL_REQUIRE_OK(look_up(HL_WEIGHT_FULL_CHECKSUM), failure.error);
    struct hl_lock lock = HL_LOCK_NONE;
    hl_error err;
    CU_ASSERT_EQUAL(hl_lock_take(fixture.store->locks, HL_LOCK_ARTIFACT, HL_GOLDEN_KEY, HL_LOCK_EXCLUSIVE,
                                 HL_LOCK_NOT_AT_ALL, false, &lock, &err),
                    HL_E_BUSY);
    hl_weight_lease_release(lease);
    hl_fixture_corrupt(&fixture, HL_GOLDEN_PAYLOAD, 210);
    HL_EXPECT_FAILURE(look_up(HL_WEIGHT_FULL_CHECKSUM), HL_WEIGHT_CHECKSUM_MISMATCH, false, failure);
    CU_ASSERT_PTR_NOT_NULL(strstr(failure.details, "nothing was recorded"));
    CU_ASSERT_FALSE(hl_fixture_exists(&fixture, marker));
    HL_EXPECT_FAILURE(hl_weight_store_deny(fixture.store, HL_GOLDEN_KEY, "x", &failure),
                      HL_WEIGHT_UNSUPPORTED, false, failure);
    close_golden();
}

static void a_read_only_store_without_the_lock_file_says_so_or_misses(void)
{
    open_golden();
    open_read_only();
    HL_EXPECT_FAILURE(look_up(HL_WEIGHT_FULL_CHECKSUM), HL_WEIGHT_DOMAIN_UNAVAILABLE, true, failure);
    CU_ASSERT_PTR_NOT_NULL(strstr(failure.error.text, ".artifact.lock is missing"));
    hl_fixture_remove(&fixture, HL_GOLDEN_ENTRY);
    HL_EXPECT_FAILURE(look_up(HL_WEIGHT_FULL_CHECKSUM), HL_WEIGHT_LOCAL_MISS, false, failure);
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "locks", HL_GOLDEN_KEY), 0);
    close_golden();
}

static void a_read_only_store_may_lack_folders(void)
{
    static const char *const folders[] = {"locks", "artifacts", "tmp", "quarantine", "deny"};
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    identity = hl_fixture_identity(2, 0);
    hl_fixture_store(&fixture);
    for (size_t i = 0; i < 5; i++)
        hl_fixture_remove(&fixture, folders[i]);
    open_read_only();
    HL_EXPECT_FAILURE(look_up(HL_WEIGHT_FULL_CHECKSUM), HL_WEIGHT_LOCAL_MISS, false, failure);
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "", ""), 2); /* the two documents */
    hl_weight_store_close(fixture.store);
    fixture.store = NULL;
    fixture.options.read_only = false;
    hl_golden_lay(&fixture, HL_GOLDEN_KEY);
    hl_fixture_remove(&fixture, "locks");
    open_read_only();
    HL_EXPECT_FAILURE(look_up(HL_WEIGHT_FULL_CHECKSUM), HL_WEIGHT_DOMAIN_UNAVAILABLE, true, failure);
    close_golden();
}

HL_TESTS(store_lookup, HL_CASE(the_golden_artifact_is_found_and_is_what_it_says),
         HL_CASE(views_are_the_tensors_bytes_in_one_mapping_a_file),
         HL_CASE(no_artifact_is_a_miss_and_a_marker_alone_denies_nothing),
         HL_CASE(any_entry_of_its_name_denies),
         HL_CASE(a_flipped_byte_is_found_by_the_full_checksum_and_then_by_everybody),
         HL_CASE(a_caller_without_interest_in_the_reason_denies_as_well),
         HL_CASE(what_cannot_be_asked_is_refused),
         HL_CASE(the_wait_for_a_publication_is_bounded_and_names_who_holds_it),
         HL_CASE(denying_takes_effect_for_later_lookups_and_spares_leases),
         HL_CASE(denying_needs_a_key_a_reason_and_an_artifact),
         HL_CASE(a_read_only_store_finds_and_locks_and_writes_nothing),
         HL_CASE(a_read_only_store_without_the_lock_file_says_so_or_misses),
         HL_CASE(a_read_only_store_may_lack_folders));
