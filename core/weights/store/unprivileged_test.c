/* A whole life as a user whom permissions bind: moving an immutable folder to another parent is where root
 * sees no difference. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/testing/cunit.h"
#include "core/weights/store/store_testing.h"

#define ENTRY "artifacts/" HL_GOLDEN_KEY

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: in a child: %s does not hold: %s\n", __FILE__, __LINE__, #condition,     \
                    failure.error.text);                                                                     \
            return 1;                                                                                        \
        }                                                                                                    \
    } while (0)

static hl_weight_failure failure;

static hl_status build(struct hl_store_fixture *fixture, hl_weight_origin wanted)
{
    hl_weight_identity *const identity = hl_fixture_identity(2, 0);
    struct hl_fake_producer fake;
    hl_fake_producer_init(&fake, identity);
    hl_weight_lease *lease = NULL;
    hl_weight_origin origin = HL_WEIGHT_HIT;
    hl_status status = hl_fixture_get(fixture, identity, &fake, &origin, &lease, &failure);
    if (!status && origin != wanted)
        status = HL_E_STATE;
    hl_weight_lease_release(lease);
    hl_weight_identity_free(identity);
    return status;
}

static int live(void *context)
{
    struct hl_store_fixture *const fixture = context;
    char quarantined[256];
    struct stat st;
    CHECK(build(fixture, HL_WEIGHT_BUILT) == HL_OK);
    CHECK(build(fixture, HL_WEIGHT_HIT) == HL_OK);
    CHECK(hl_fixture_mode(fixture, ENTRY) == 0555);
    CHECK(stat("domain/" ENTRY, &st) == 0 && st.st_uid == geteuid());
    /* Permissions do bind. */
    CHECK(rename("domain/" ENTRY, "moved") != 0);
    hl_weight_store *const store = hl_fixture_store(fixture);
    CHECK(hl_weight_store_deny(store, HL_GOLDEN_KEY, "a test", &failure) == HL_OK);
    CHECK(build(fixture, HL_WEIGHT_BUILT) == HL_OK);
    CHECK(hl_fixture_count(fixture, "quarantine", HL_GOLDEN_KEY ".validation_failure.") == 1);
    hl_fixture_find(fixture, "quarantine", "", quarantined);
    CHECK(hl_weight_store_clean_quarantined(store, quarantined, &failure) == HL_OK);
    CHECK(hl_weight_store_clean(store, HL_GOLDEN_KEY, &failure) == HL_OK);
    CHECK(hl_fixture_count(fixture, "artifacts", "") == 0 &&
          hl_fixture_count(fixture, "quarantine", "") == 0);
    CHECK(build(fixture, HL_WEIGHT_BUILT) == HL_OK);
    hl_fixture_chmod(fixture, ENTRY, 01555);
    CHECK(build(fixture, HL_WEIGHT_BUILT) == HL_OK);
    hl_weight_store_close(store);
    return 0;
}

static void live_at(enum hl_fixture_place place)
{
    struct hl_store_fixture fixture;
    hl_fixture_open(&fixture, place);
    CU_ASSERT_EQUAL(hl_child_run_unprivileged(&fixture, live, &fixture), 0);
    hl_fixture_close(&fixture);
}

static void an_artifact_lives_and_dies_without_privilege_on_disk(void)
{
    live_at(HL_FIXTURE_DISK);
}

static void an_artifact_lives_and_dies_without_privilege_in_memory(void)
{
    live_at(HL_FIXTURE_SHM);
}

HL_TESTS(unprivileged, HL_CASE(an_artifact_lives_and_dies_without_privilege_on_disk),
         HL_CASE(an_artifact_lives_and_dies_without_privilege_in_memory));
