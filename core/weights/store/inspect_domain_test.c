#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/testing/cunit.h"
#include "core/weights/store/store.h"
#include "core/weights/store/store_testing.h"

#define OTHER_KEY "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
#define FIRST_KEY "0000000000000000000000000000000000000000000000000000000000000000"

static hl_weight_domain_snapshot *inspect(struct hl_store_fixture *fixture)
{
    hl_weight_domain_snapshot *snapshot = NULL;
    hl_weight_failure failure;
    HL_REQUIRE_OK(hl_weight_store_inspect_domain(hl_fixture_store(fixture), &snapshot, &failure),
                  failure.error);
    return snapshot;
}

static void make_folder(const struct hl_store_fixture *fixture, const char *path, mode_t mode)
{
    char full[600];
    snprintf(full, sizeof full, "%s/%s", fixture->root, path);
    CU_ASSERT_EQUAL(mkdir(full, 0700), 0);
    CU_ASSERT_EQUAL(chmod(full, mode), 0);
}

static void expect_entry(const hl_weight_domain_snapshot *snapshot, size_t index, const char *name,
                         hl_weight_inventory_state state, const char *reason)
{
    CU_ASSERT_TRUE_FATAL(index < snapshot->inventory_count);
    const hl_weight_inventory_entry *entry = &snapshot->inventory[index];
    CU_ASSERT_STRING_EQUAL(entry->storage_name, name);
    CU_ASSERT_EQUAL(entry->state, state);
    CU_ASSERT_EQUAL(strncmp(entry->artifact_key, name, 64), 0);
    CU_ASSERT_EQUAL(entry->artifact_key[64], '\0');
    if (!strstr(entry->reason, reason))
        fprintf(stderr, "reason of %s: %s\n", name, entry->reason);
    CU_ASSERT_PTR_NOT_NULL(strstr(entry->reason, reason));
}

static void a_domain_shows_its_settings_and_space(void)
{
    struct hl_store_fixture fixture;
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    fixture.options.domain_id = "rack 7";
    fixture.options.max_artifact_bytes = 1 << 30;
    fixture.options.max_store_bytes = 1ull << 31;
    fixture.options.min_free_bytes = 4096;
    fixture.options.admission = HL_WEIGHT_ADMISSION_SERIALIZED;
    hl_weight_domain_snapshot *snapshot = inspect(&fixture);
    CU_ASSERT_STRING_EQUAL(snapshot->root, fixture.root);
    CU_ASSERT_EQUAL(strspn(snapshot->domain_uuid, "0123456789abcdef"), 32);
    CU_ASSERT_EQUAL(snapshot->scope, HL_WEIGHT_SCOPE_NODE);
    CU_ASSERT_STRING_EQUAL(snapshot->domain_id, "rack 7");
    CU_ASSERT_EQUAL(snapshot->storage_class, fixture.options.storage_class);
    CU_ASSERT_NOT_EQUAL(snapshot->filesystem_type[0], '\0');
    CU_ASSERT_EQUAL(snapshot->policy_version, 1);
    CU_ASSERT_EQUAL(snapshot->max_artifact_bytes, 1 << 30);
    CU_ASSERT_EQUAL(snapshot->max_store_bytes, 1ull << 31);
    CU_ASSERT_EQUAL(snapshot->min_free_bytes, 4096);
    CU_ASSERT_EQUAL(snapshot->admission, HL_WEIGHT_ADMISSION_SERIALIZED);
    CU_ASSERT_TRUE(snapshot->filesystem_free_bytes > 0);
    CU_ASSERT_EQUAL(snapshot->inventory_count, 0);
    const uint64_t empty = snapshot->store_bytes;
    hl_weight_domain_snapshot_free(snapshot);
    hl_weight_lease_release(hl_fixture_build_golden(&fixture));
    snapshot = inspect(&fixture);
    CU_ASSERT_TRUE(snapshot->store_bytes > empty);
    CU_ASSERT_TRUE(snapshot->store_bytes >= snapshot->inventory[0].bytes);
    hl_weight_store_close(fixture.store); /* a snapshot needs no store */
    fixture.store = NULL;
    CU_ASSERT_STRING_EQUAL(snapshot->domain_id, "rack 7");
    expect_entry(snapshot, 0, HL_GOLDEN_KEY, HL_WEIGHT_STATE_READY, "");
    hl_weight_domain_snapshot_free(snapshot);
    hl_weight_domain_snapshot_free(NULL);
    hl_fixture_close(&fixture);
}

static void tmpfs_is_said_to_be_memory(void)
{
    struct hl_store_fixture fixture;
    hl_fixture_open(&fixture, HL_FIXTURE_SHM);
    hl_weight_domain_snapshot *snapshot = inspect(&fixture);
    CU_ASSERT_EQUAL(snapshot->storage_class, HL_WEIGHT_TMPFS);
    CU_ASSERT_STRING_EQUAL(snapshot->filesystem_type, "tmpfs");
    hl_weight_domain_snapshot_free(snapshot);
    hl_fixture_close(&fixture);
}

/* Names that are no entry of the store are left out; the rest is sorted by key, state and name. */
static void everything_in_the_domain_is_listed_in_order(void)
{
    struct hl_store_fixture fixture;
    hl_weight_failure failure;
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    hl_weight_lease_release(hl_fixture_build_golden(&fixture));
    HL_EXPECT_OK(hl_weight_store_deny(fixture.store, HL_GOLDEN_KEY, "bad blocks", &failure), failure.error);
    make_folder(&fixture, "artifacts/" OTHER_KEY, 01755);
    make_folder(&fixture, "tmp/" HL_GOLDEN_KEY ".12.abc", 0700);
    make_folder(&fixture, "quarantine/" HL_GOLDEN_KEY ".validation_failure.0123", 0555);
    make_folder(&fixture, "quarantine/" OTHER_KEY ".cleanup.0123", 0555);
    make_folder(&fixture, "artifacts/" OTHER_KEY ".more", 0555); /* not a key */
    make_folder(&fixture, "tmp/stray", 0700);
    make_folder(&fixture, "quarantine/ABCD", 0700);
    hl_fixture_overwrite(&fixture, "artifacts/" FIRST_KEY, "a file", 6);

    hl_weight_domain_snapshot *snapshot = inspect(&fixture);
    CU_ASSERT_EQUAL(snapshot->inventory_count, 6);
    expect_entry(snapshot, 0, FIRST_KEY, HL_WEIGHT_STATE_DENIED, "no folder");
    expect_entry(snapshot, 1, HL_GOLDEN_KEY, HL_WEIGHT_STATE_DENIED, "bad blocks");
    expect_entry(snapshot, 2, HL_GOLDEN_KEY ".validation_failure.0123", HL_WEIGHT_STATE_QUARANTINED,
                 "validation_failure");
    expect_entry(snapshot, 3, HL_GOLDEN_KEY ".12.abc", HL_WEIGHT_STATE_TEMPORARY, "");
    expect_entry(snapshot, 4, OTHER_KEY, HL_WEIGHT_STATE_DENIED, "in transition");
    expect_entry(snapshot, 5, OTHER_KEY ".cleanup.0123", HL_WEIGHT_STATE_QUARANTINED, "cleanup");
    hl_weight_domain_snapshot_free(snapshot);
    hl_fixture_close(&fixture);
}

static void a_torn_marker_denies_as_well(void)
{
    struct hl_store_fixture fixture;
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    hl_weight_lease_release(hl_fixture_build_golden(&fixture));
    hl_fixture_overwrite(&fixture, "deny/" HL_GOLDEN_KEY ".json", "{\"sche", 6);
    hl_weight_domain_snapshot *snapshot = inspect(&fixture);
    expect_entry(snapshot, 0, HL_GOLDEN_KEY, HL_WEIGHT_STATE_DENIED, "cannot be read");
    hl_weight_domain_snapshot_free(snapshot);
    hl_fixture_close(&fixture);
}

static void a_marker_without_an_artifact_is_no_entry(void)
{
    struct hl_store_fixture fixture;
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    (void)hl_fixture_store(&fixture);
    hl_fixture_overwrite(&fixture, "deny/" HL_GOLDEN_KEY ".json", "{}", 2);
    hl_weight_domain_snapshot *snapshot = inspect(&fixture);
    CU_ASSERT_EQUAL(snapshot->inventory_count, 0);
    hl_weight_domain_snapshot_free(snapshot);
    hl_fixture_close(&fixture);
}

/* Opened for reading, a domain may lack folders and is left exactly as it is. */
static void a_read_only_domain_is_inspected_as_it_lies(void)
{
    struct hl_store_fixture fixture;
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    hl_weight_lease_release(hl_fixture_build_golden(&fixture));
    hl_fixture_remove(&fixture, "tmp");
    hl_fixture_remove(&fixture, "quarantine");
    hl_fixture_remove(&fixture, "deny");
    fixture.options.read_only = true;
    hl_fixture_reopen(&fixture);
    const unsigned entries = hl_fixture_count(&fixture, "", ""),
                   locks = hl_fixture_count(&fixture, "locks", "");
    hl_weight_domain_snapshot *snapshot = inspect(&fixture);
    CU_ASSERT_EQUAL(snapshot->inventory_count, 1);
    hl_weight_domain_snapshot_free(snapshot);
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "", ""), entries);
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "locks", ""), locks);
    hl_fixture_close(&fixture);
}

static void states_have_names(void)
{
    CU_ASSERT_STRING_EQUAL(hl_weight_inventory_state_name(HL_WEIGHT_STATE_READY), "ready");
    CU_ASSERT_STRING_EQUAL(hl_weight_inventory_state_name(HL_WEIGHT_STATE_TEMPORARY), "temporary");
    CU_ASSERT_STRING_EQUAL(hl_weight_inventory_state_name((hl_weight_inventory_state)9), "unknown");
}

HL_TESTS(inspect_domain, HL_CASE(a_domain_shows_its_settings_and_space), HL_CASE(tmpfs_is_said_to_be_memory),
         HL_CASE(everything_in_the_domain_is_listed_in_order), HL_CASE(a_torn_marker_denies_as_well),
         HL_CASE(a_marker_without_an_artifact_is_no_entry),
         HL_CASE(a_read_only_domain_is_inspected_as_it_lies), HL_CASE(states_have_names));
