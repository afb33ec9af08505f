/* Explicit removal, where nobody is in the way. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/testing/cunit.h"
#include "core/weights/store/store_testing.h"

#define ENTRY "artifacts/" HL_GOLDEN_KEY

static struct hl_store_fixture fixture;
static hl_weight_failure failure;

static void clean_at(enum hl_fixture_place place)
{
    hl_fixture_open(&fixture, place);
    hl_weight_lease_release(hl_fixture_build_golden(&fixture));
    HL_EXPECT_OK(hl_weight_store_clean(fixture.store, HL_GOLDEN_KEY, &failure), failure.error);
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "artifacts", ""), 0);
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "quarantine", ""), 0);
    CU_ASSERT_TRUE(hl_fixture_exists(&fixture, "locks/" HL_GOLDEN_KEY ".build.lock"));
    CU_ASSERT_TRUE(hl_fixture_exists(&fixture, "locks/" HL_GOLDEN_KEY ".artifact.lock"));
    HL_EXPECT_FAILURE(hl_weight_store_clean(fixture.store, HL_GOLDEN_KEY, &failure), HL_WEIGHT_LOCAL_MISS,
                      false, failure);
    hl_weight_lease_release(hl_fixture_build_golden(&fixture));
    hl_fixture_close(&fixture);
}

static void an_artifact_is_removed_whole_and_can_be_built_again(void)
{
    clean_at(HL_FIXTURE_DISK);
    clean_at(HL_FIXTURE_SHM);
}

static void keys_are_checked(void)
{
    static const char *const wrong[] = {NULL,
                                        "",
                                        "..",
                                        "A12c08be7d23c79642c9eb7197803beeb33206d51d130ff7fd98eed6bf6d1bb0",
                                        HL_GOLDEN_KEY "0",
                                        "../" HL_GOLDEN_KEY};
    hl_fixture_open(&fixture, HL_FIXTURE_SHM);
    for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        HL_EXPECT_FAILURE(hl_weight_store_clean(hl_fixture_store(&fixture), wrong[i], &failure),
                          HL_WEIGHT_INVALID_CONFIG, false, failure);
    hl_fixture_close(&fixture);
}

static void its_marker_and_the_remains_of_its_builds_go_along(void)
{
    static const char *const folders[] = {"tmp/" HL_GOLDEN_KEY ".1.x",
                                          "quarantine/" HL_GOLDEN_KEY ".cleanup.x",
                                          "quarantine/" HL_GOLDEN_KEY ".validation_failure.x"};
    hl_fixture_open(&fixture, HL_FIXTURE_SHM);
    hl_weight_store *const store = hl_fixture_store(&fixture);
    char path[600];
    /* Each alone is something to remove, but for what is quarantined. */
    for (unsigned i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", fixture.root, folders[i]);
        CU_ASSERT_EQUAL_FATAL(mkdir(path, 0555), 0);
        if (i < 2)
            HL_EXPECT_OK(hl_weight_store_clean(store, HL_GOLDEN_KEY, &failure), failure.error);
        else
            HL_EXPECT_FAILURE(hl_weight_store_clean(store, HL_GOLDEN_KEY, &failure), HL_WEIGHT_LOCAL_MISS,
                              false, failure);
        CU_ASSERT_EQUAL(hl_fixture_exists(&fixture, folders[i]), i == 2);
    }
    hl_fixture_overwrite(&fixture, "deny/" HL_GOLDEN_KEY ".json", "torn", 4);
    HL_EXPECT_OK(hl_weight_store_clean(store, HL_GOLDEN_KEY, &failure), failure.error);
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "deny", ""), 0);
    hl_weight_lease_release(hl_fixture_build_golden(&fixture));
    HL_EXPECT_OK(hl_weight_store_deny(store, HL_GOLDEN_KEY, "a test", &failure), failure.error);
    HL_EXPECT_OK(hl_weight_store_clean(store, HL_GOLDEN_KEY, &failure), failure.error);
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "deny", ""), 0);
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "artifacts", ""), 0);
    hl_fixture_close(&fixture);
}

static void a_quarantined_artifact_is_removed_by_its_name(void)
{
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    for (unsigned i = 0; i < 2; i++) {
        hl_weight_lease_release(hl_fixture_build_golden(&fixture));
        HL_EXPECT_OK(hl_weight_store_deny(fixture.store, HL_GOLDEN_KEY, "a test", &failure), failure.error);
    }
    hl_weight_lease_release(hl_fixture_build_golden(&fixture));
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "quarantine", ""), 2);
    for (unsigned left = 2; left > 0; left--) {
        hl_weight_domain_snapshot *snapshot = NULL;
        HL_REQUIRE_OK(hl_weight_store_inspect_domain(fixture.store, &snapshot, &failure), failure.error);
        char name[256] = "";
        for (size_t i = 0; i < snapshot->inventory_count; i++)
            if (snapshot->inventory[i].state == HL_WEIGHT_STATE_QUARANTINED)
                snprintf(name, sizeof name, "%s", snapshot->inventory[i].storage_name);
        hl_weight_domain_snapshot_free(snapshot);
        HL_EXPECT_OK(hl_weight_store_clean_quarantined(fixture.store, name, &failure), failure.error);
        CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "quarantine", ""), left - 1);
        HL_EXPECT_FAILURE(hl_weight_store_clean_quarantined(fixture.store, name, &failure),
                          HL_WEIGHT_LOCAL_MISS, false, failure);
    }
    CU_ASSERT_TRUE(hl_fixture_exists(&fixture, ENTRY));
    hl_fixture_close(&fixture);
}

static void names_that_are_no_quarantined_artifact_are_refused(void)
{
    static const char *const wrong[] = {NULL,
                                        "",
                                        ".",
                                        "..",
                                        "../artifacts",
                                        HL_GOLDEN_KEY,
                                        HL_GOLDEN_KEY ".",
                                        HL_GOLDEN_KEY "x.y",
                                        HL_GOLDEN_KEY "./../../artifacts",
                                        "../quarantine/" HL_GOLDEN_KEY ".x.y"};
    hl_fixture_open(&fixture, HL_FIXTURE_SHM);
    hl_weight_lease_release(hl_fixture_build_golden(&fixture));
    for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        HL_EXPECT_FAILURE(hl_weight_store_clean_quarantined(fixture.store, wrong[i], &failure),
                          HL_WEIGHT_INVALID_CONFIG, false, failure);
    char path[600];
    snprintf(path, sizeof path, "%s/quarantine/" HL_GOLDEN_KEY ".link.x", fixture.root);
    CU_ASSERT_EQUAL_FATAL(symlink("../" ENTRY, path), 0);
    HL_EXPECT_FAILURE(hl_weight_store_clean_quarantined(fixture.store, HL_GOLDEN_KEY ".link.x", &failure),
                      HL_WEIGHT_QUARANTINE_FAILED, false, failure);
    hl_fixture_overwrite(&fixture, "quarantine/" HL_GOLDEN_KEY ".file.x", "x", 1);
    HL_EXPECT_FAILURE(hl_weight_store_clean_quarantined(fixture.store, HL_GOLDEN_KEY ".file.x", &failure),
                      HL_WEIGHT_QUARANTINE_FAILED, false, failure);
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "quarantine", ""), 2);
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, ENTRY, ""), 3);
    hl_fixture_close(&fixture);
}

static void a_lease_in_this_process_is_respected_too(void)
{
    hl_fixture_open(&fixture, HL_FIXTURE_SHM);
    hl_weight_lease *const lease = hl_fixture_build_golden(&fixture);
    HL_EXPECT_FAILURE(hl_weight_store_clean(fixture.store, HL_GOLDEN_KEY, &failure), HL_WEIGHT_ACTIVE_LEASE,
                      true, failure);
    hl_weight_lease_release(lease);
    HL_EXPECT_OK(hl_weight_store_clean(fixture.store, HL_GOLDEN_KEY, NULL), failure.error);
    hl_fixture_close(&fixture);
}

HL_TESTS(clean, HL_CASE(an_artifact_is_removed_whole_and_can_be_built_again), HL_CASE(keys_are_checked),
         HL_CASE(its_marker_and_the_remains_of_its_builds_go_along),
         HL_CASE(a_quarantined_artifact_is_removed_by_its_name),
         HL_CASE(names_that_are_no_quarantined_artifact_are_refused),
         HL_CASE(a_lease_in_this_process_is_respected_too));
