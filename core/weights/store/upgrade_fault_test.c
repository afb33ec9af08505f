/* No operation of a store locks a descriptor that holds a lock already: flock() would change the lock by
 * letting go of it first, so that another could slip in between. The linker puts an flock() before the C
 * library's here that asks the kernel what the descriptor holds. Runs as a *_faults twin only, because one
 * way to an exclusive lock leads through a marker that cannot be written. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "core/testing/cunit.h"
#include "core/weights/store/fault_testing.h"

int __real_flock(int fd, int operation);
int __wrap_flock(int fd, int operation);

static unsigned taken, exclusive, upgraded;

/* The kernel lists what an open file description holds. */
static bool holds_a_lock(int fd)
{
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    FILE *const info = fopen(path, "re");
    bool holds = false;
    while (info && fgets(line, sizeof line, info))
        holds |= !strncmp(line, "lock:", 5);
    if (info)
        fclose(info);
    return holds;
}

int __wrap_flock(int fd, int operation)
{
    const int kind = operation & ~LOCK_NB;
    const bool held = kind != LOCK_UN && holds_a_lock(fd);
    const int result = __real_flock(fd, operation);
    if (result == 0 && kind != LOCK_UN) {
        taken++;
        exclusive += kind == LOCK_EX;
        upgraded += held;
    }
    return result;
}

static struct hl_fault_bench bench;
static hl_weight_failure failure;

static void an_upgrade_would_be_seen(void)
{
    hl_fault_bench_open(&bench);
    const int fd = open(bench.fixture.base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    upgraded = 0;
    CU_ASSERT_EQUAL(flock(fd, LOCK_SH), 0);
    CU_ASSERT_EQUAL(upgraded, 0);
    CU_ASSERT_EQUAL(flock(fd, LOCK_EX), 0);
    CU_ASSERT_EQUAL(upgraded, 1);
    close(fd);
    hl_fault_bench_close(&bench);
}

static hl_status look_up(hl_weight_lease **lease)
{
    *lease = NULL;
    return hl_fixture_look_up(&bench.fixture, bench.identity, HL_WEIGHT_FULL_CHECKSUM, lease, &failure);
}

static void corrupt(void)
{
    hl_fixture_corrupt(&bench.fixture, "artifacts/" HL_GOLDEN_KEY "/" HL_GOLDEN_FILE, 210);
}

static void build(hl_weight_origin wanted)
{
    hl_weight_origin origin = HL_WEIGHT_JOINED;
    HL_EXPECT_OK(hl_fault_bench_get(&bench, &origin, &failure), failure.error);
    CU_ASSERT_EQUAL(origin, wanted);
}

/* Every way in which a lookup ends, the last with the folder moved away by the condemning reader himself. */
static void condemn(hl_weight_store *store)
{
    hl_weight_lease *lease = NULL, *held = NULL;
    HL_EXPECT_OK(look_up(&held), failure.error);
    HL_EXPECT_FAILURE(hl_weight_store_clean(store, HL_GOLDEN_KEY, &failure), HL_WEIGHT_ACTIVE_LEASE, true,
                      failure);
    hl_weight_lease_release(held);
    corrupt();
    HL_EXPECT_FAILURE(look_up(&lease), HL_WEIGHT_CHECKSUM_MISMATCH, false, failure);
    HL_EXPECT_FAILURE(look_up(&lease), HL_WEIGHT_ARTIFACT_DENIED, false, failure);
    build(HL_WEIGHT_BUILT);
    corrupt();
    const unsigned rule = hl_fault_bench_arm(&bench, "weights_deny_write_before", 1, HL_FAULT_ERROR, ENOSPC);
    HL_EXPECT_FAILURE(look_up(&lease), HL_WEIGHT_ENOSPC, true, failure);
    hl_fault_bench_disarm(&bench, rule);
    CU_ASSERT_PTR_NOT_NULL(strstr(failure.details, "completed"));
    HL_EXPECT_FAILURE(look_up(&lease), HL_WEIGHT_LOCAL_MISS, false, failure);
}

static void inspect(hl_weight_store *store)
{
    hl_weight_artifact_snapshot *artifact = NULL;
    hl_weight_domain_snapshot *domain = NULL;
    HL_EXPECT_OK(
        hl_weight_store_inspect_artifact(store, HL_GOLDEN_KEY, HL_WEIGHT_FULL_CHECKSUM, &artifact, &failure),
        failure.error);
    HL_EXPECT_OK(hl_weight_store_inspect_domain(store, &domain, &failure), failure.error);
    hl_weight_artifact_snapshot_free(artifact);
    hl_weight_domain_snapshot_free(domain);
}

static void live(void)
{
    char quarantined[256];
    hl_weight_store *const store = hl_fixture_store(&bench.fixture);
    build(HL_WEIGHT_BUILT);
    build(HL_WEIGHT_HIT);
    inspect(store);
    condemn(store);
    hl_fixture_remove(&bench.fixture, "quarantine");
    hl_fixture_reopen(&bench.fixture);
    build(HL_WEIGHT_BUILT);
    HL_EXPECT_OK(hl_weight_store_deny(bench.fixture.store, HL_GOLDEN_KEY, "x", &failure), failure.error);
    build(HL_WEIGHT_BUILT);
    hl_fixture_find(&bench.fixture, "quarantine", "", quarantined);
    HL_EXPECT_OK(hl_weight_store_clean_quarantined(bench.fixture.store, quarantined, &failure),
                 failure.error);
    HL_EXPECT_OK(hl_weight_store_clean(bench.fixture.store, HL_GOLDEN_KEY, &failure), failure.error);
}

static void no_operation_upgrades_a_lock(void)
{
    hl_fault_bench_open(&bench);
    taken = exclusive = upgraded = 0;
    live();
    CU_ASSERT_EQUAL(upgraded, 0);
    CU_ASSERT_TRUE(exclusive > 0 && taken > exclusive);
    hl_fault_bench_close(&bench);
}

HL_TESTS(store_upgrade, HL_CASE(an_upgrade_would_be_seen), HL_CASE(no_operation_upgrades_a_lock));
