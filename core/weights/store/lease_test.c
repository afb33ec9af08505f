/* What a lease promises: stable bytes until its last holder lets go, and then nothing left behind. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/testing/cunit.h"
#include "core/weights/store/golden_testing.h"

static struct hl_store_fixture fixture;
static hl_weight_identity *identity;
static hl_weight_failure failure;

static hl_weight_lease *open_lease(void)
{
    hl_weight_lease *lease = NULL;
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    hl_golden_lay(&fixture, HL_GOLDEN_KEY);
    identity = hl_fixture_identity(2, 0);
    HL_REQUIRE_OK(hl_weight_store_lookup(fixture.store, identity, HL_WEIGHT_FULL_CHECKSUM, &lease, &failure),
                  failure.error);
    return lease;
}

static void close_all(void)
{
    hl_weight_identity_free(identity);
    hl_fixture_close(&fixture);
}

/* Whether somebody holds the artifact lock, seen by a process that does not. */
static int is_locked(void *context)
{
    struct hl_lock lock = HL_LOCK_NONE;
    (void)context;
    return hl_lock_take(fixture.store->locks, HL_LOCK_ARTIFACT, HL_GOLDEN_KEY, HL_LOCK_EXCLUSIVE,
                        HL_LOCK_NOT_AT_ALL, false, &lock, NULL) == HL_E_BUSY;
}

static bool seen_locked(void)
{
    return hl_child_end(hl_child_start(is_locked, NULL)) == 1;
}

static bool has_golden_bytes(const hl_weight_lease *lease)
{
    static const unsigned char golden[8] = {0, 0, 0x80, 0x3f, 0, 0, 0, 0x40}; /* 1 and 2, as F32 */
    return memcmp(hl_weight_lease_tensor_at(lease, 0)->data, golden, sizeof golden) == 0;
}

static void a_lease_outlives_denial_removal_and_replacement_of_its_artifact(void)
{
    char from[600], to[600];
    hl_weight_lease *lease = open_lease();
    HL_EXPECT_OK(hl_weight_store_deny(fixture.store, HL_GOLDEN_KEY, "x", &failure), failure.error);
    CU_ASSERT_TRUE(has_golden_bytes(lease));
    snprintf(from, sizeof from, "%s/" HL_GOLDEN_ENTRY, fixture.root);
    snprintf(to, sizeof to, "%s/quarantine/moved", fixture.root);
    hl_fixture_chmod(&fixture, HL_GOLDEN_ENTRY, 0755);
    CU_ASSERT_EQUAL_FATAL(rename(from, to), 0);
    CU_ASSERT_TRUE(has_golden_bytes(lease));
    hl_golden_renew(&fixture); /* another inode */
    hl_fixture_corrupt(&fixture, HL_GOLDEN_PAYLOAD, 200);
    hl_fixture_remove(&fixture, "quarantine/moved"); /* nobody who holds the lock would */
    CU_ASSERT_TRUE(has_golden_bytes(lease));
    hl_weight_lease_release(lease);
    close_all();
}

static void a_lease_lives_until_its_last_holder_lets_go(void)
{
    hl_weight_lease *lease = open_lease();
    const unsigned held = hl_open_descriptors();
    CU_ASSERT_PTR_EQUAL(hl_weight_lease_retain(lease), lease);
    hl_weight_lease_release(lease);
    CU_ASSERT_TRUE(has_golden_bytes(lease));
    CU_ASSERT_TRUE(seen_locked());
    CU_ASSERT_EQUAL(hl_open_descriptors(), held);
    hl_weight_lease_release(lease);
    CU_ASSERT_FALSE(seen_locked());
    CU_ASSERT_EQUAL(hl_mappings_of(HL_GOLDEN_PAYLOAD), 0);
    CU_ASSERT_EQUAL(hl_open_descriptors(), held - 3); /* the folder, the payload, the lock */
    hl_weight_lease_release(NULL);
    close_all();
}

static void a_lease_outlives_its_store(void)
{
    const unsigned before = hl_open_descriptors();
    hl_weight_lease *lease = open_lease();
    hl_weight_store_close(fixture.store);
    fixture.store = NULL;
    CU_ASSERT_TRUE(has_golden_bytes(lease));
    CU_ASSERT_EQUAL(strlen(hl_weight_lease_provenance(lease)->domain_uuid), 32);
    hl_weight_lease_release(lease);
    CU_ASSERT_EQUAL(hl_open_descriptors(), before);
    close_all();
}

static int release_in_child(void *context)
{
    hl_weight_lease *lease = context;
    const unsigned before = hl_open_descriptors();
    const bool same = has_golden_bytes(lease);
    hl_weight_lease_release(lease);
    return same && hl_open_descriptors() == before - 3 && hl_mappings_of(HL_GOLDEN_PAYLOAD) == 0 ? 0 : 1;
}

static void a_childs_release_closes_and_keeps_the_parents_lock(void)
{
    hl_weight_lease *lease = open_lease();
    CU_ASSERT_EQUAL(hl_child_end(hl_child_start(release_in_child, lease)), 0);
    CU_ASSERT_TRUE(seen_locked());
    CU_ASSERT_TRUE(has_golden_bytes(lease));
    hl_weight_lease_release(lease);
    CU_ASSERT_FALSE(seen_locked());
    close_all();
}

struct idle_child {
    hl_weight_lease *lease;
    int proceed[2];
};

static int hold_until_told(void *context)
{
    struct idle_child *child = context;
    close(child->proceed[1]);
    hl_pipe_await(child->proceed[0]);
    return 0;
}

static void a_child_that_keeps_the_descriptors_does_not_keep_the_lock(void)
{
    struct idle_child child = {.lease = open_lease()};
    hl_pipe_open(child.proceed);
    const pid_t pid = hl_child_start(hold_until_told, &child);
    hl_weight_lease_release(child.lease);
    CU_ASSERT_FALSE(seen_locked());
    hl_pipe_send(child.proceed[1]);
    CU_ASSERT_EQUAL(hl_child_end(pid), 0);
    close(child.proceed[0]);
    close(child.proceed[1]);
    close_all();
}

static void *hold_and_release(void *argument)
{
    hl_weight_lease *lease = argument;
    bool same = true;
    for (unsigned i = 0; i < 1000; i++) {
        hl_weight_lease_retain(lease);
        same = same && has_golden_bytes(lease);
        hl_weight_lease_release(lease);
    }
    hl_weight_lease_release(lease);
    return same ? lease : NULL;
}

static void threads_may_hold_and_release_at_once(void)
{
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    hl_weight_lease *lease = open_lease();
    const unsigned held = hl_open_descriptors();
    for (unsigned i = 0; i < THREADS; i++)
        CU_ASSERT_EQUAL_FATAL(
            pthread_create(&threads[i], NULL, hold_and_release, hl_weight_lease_retain(lease)), 0);
    hl_weight_lease_release(lease);
    for (unsigned i = 0; i < THREADS; i++) {
        void *same = NULL;
        pthread_join(threads[i], &same);
        CU_ASSERT_PTR_NOT_NULL(same);
    }
    CU_ASSERT_EQUAL(hl_open_descriptors(), held - 3);
    close_all();
}

static void the_fingerprint_is_of_the_files_and_not_of_their_content(void)
{
    char first[65];
    hl_weight_lease *lease = open_lease();
    snprintf(first, sizeof first, "%s", hl_weight_lease_provenance(lease)->backing_fingerprint);
    hl_weight_lease_release(lease);
    for (unsigned round = 0; round < 2; round++) {
        HL_REQUIRE_OK(hl_weight_store_lookup(fixture.store, identity, HL_WEIGHT_MANIFEST_AND_METADATA, &lease,
                                             &failure),
                      failure.error);
        const char *again = hl_weight_lease_provenance(lease)->backing_fingerprint;
        CU_ASSERT_TRUE((strcmp(first, again) == 0) == (round == 0));
        if (round == 0) { /* the old files stay, so that no inode is used again */
            char from[600], to[600];
            snprintf(from, sizeof from, "%s/" HL_GOLDEN_ENTRY, fixture.root);
            snprintf(to, sizeof to, "%s/quarantine/old", fixture.root);
            hl_fixture_chmod(&fixture, HL_GOLDEN_ENTRY, 0755);
            CU_ASSERT_EQUAL_FATAL(rename(from, to), 0);
            hl_golden_lay(&fixture, HL_GOLDEN_KEY);
        }
        hl_weight_lease_release(lease);
    }
    close_all();
}

HL_TESTS(store_lease, HL_CASE(a_lease_outlives_denial_removal_and_replacement_of_its_artifact),
         HL_CASE(a_lease_lives_until_its_last_holder_lets_go), HL_CASE(a_lease_outlives_its_store),
         HL_CASE(a_childs_release_closes_and_keeps_the_parents_lock),
         HL_CASE(a_child_that_keeps_the_descriptors_does_not_keep_the_lock),
         HL_CASE(threads_may_hold_and_release_at_once),
         HL_CASE(the_fingerprint_is_of_the_files_and_not_of_their_content));
