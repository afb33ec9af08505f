/* Several processes and one domain. Children are synchronised by pipes; that a child waits for a lock is seen
 * by the descriptor of the lock's file that it has open. */
#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/testing/cunit.h"
#include "core/weights/store/store_testing.h"

enum { CROWD = 16, PATIENCE_S = 60 };

static struct hl_store_fixture fixture;
static hl_weight_failure failure;

/* A process that gets or builds an artifact, and tells how through its exit status. */
struct builder {
    unsigned rank;  /* of the identity */
    bool parks;     /* inside produce(), before it returns */
    bool keeps;     /* the lease, until it is let go on */
    uint64_t bytes; /* 0: the golden tensors */
    int64_t timeout_ns;
    int arrived[2], proceed[2];
    pid_t child;
};

enum { EXIT_FAILED = 100 };

static int run_builder(void *context)
{
    const struct builder *self = context;
    hl_weight_identity *identity = hl_fixture_identity(2, self->rank);
    struct hl_fake_producer fake;
    hl_fake_producer_init(&fake, identity);
    fake.files = fake.tensors = self->bytes > 0;
    fake.tensor_bytes = self->bytes;
    if (self->parks) {
        fake.arrived = self->arrived[1];
        fake.proceed = self->proceed[0];
    }
    fixture.store = NULL;
    if (self->timeout_ns)
        fixture.options.coordination_timeout_ns = self->timeout_ns;
    hl_weight_store *store = NULL;
    hl_weight_lease *lease = NULL;
    hl_weight_origin origin = HL_WEIGHT_HIT;
    if (hl_weight_store_open(&fixture.options, &store, &failure) ||
        hl_weight_store_get_or_build(store, identity, HL_WEIGHT_FULL_CHECKSUM, &fake.producer, &origin,
                                     &lease, &failure)) {
        fprintf(stderr, "child: %s\n", failure.error.text);
        return EXIT_FAILED + (int)failure.code;
    }
    if (self->keeps) {
        hl_pipe_send(self->arrived[1]);
        hl_pipe_await(self->proceed[0]);
    }
    hl_weight_lease_release(lease);
    hl_weight_store_close(store);
    hl_weight_identity_free(identity);
    return (int)origin;
}

static void start(struct builder *builder)
{
    hl_pipe_open(builder->arrived);
    hl_pipe_open(builder->proceed);
    builder->child = hl_child_start(run_builder, builder);
}

static int finish(struct builder *builder)
{
    const int result = hl_child_end(builder->child);
    for (unsigned i = 0; i < 2; i++) {
        close(builder->arrived[i]);
        close(builder->proceed[i]);
    }
    return result;
}

static void start_parked(struct builder *builder)
{
    builder->parks = true;
    start(builder);
    hl_pipe_await(builder->arrived[0]);
}

static int let_finish(struct builder *builder)
{
    hl_pipe_send(builder->proceed[1]);
    return finish(builder);
}

static bool has_open(pid_t pid, const char *suffix)
{
    char path[64], link[600], target[1024];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *dir = opendir(path);
    bool found = false;
    for (const struct dirent *entry; dir && !found && (entry = readdir(dir));) {
        snprintf(link, sizeof link, "%s/%s", path, entry->d_name);
        const ssize_t length = readlink(link, target, sizeof target - 1);
        if (length < (ssize_t)strlen(suffix))
            continue;
        target[length] = 0;
        found = !strcmp(target + length - strlen(suffix), suffix);
    }
    if (dir)
        closedir(dir);
    return found;
}

static void await_waiting(pid_t pid, const char *lock)
{
    const int64_t deadline = hl_clock_ns() + PATIENCE_S * HL_NS_PER_S;
    while (!has_open(pid, lock)) {
        CU_ASSERT_TRUE_FATAL(hl_clock_ns() < deadline);
        sched_yield();
    }
}

static void begin(void)
{
    failure = (hl_weight_failure){0};
    hl_fixture_open(&fixture, HL_FIXTURE_SHM);
    fixture.options.coordination_timeout_ns = PATIENCE_S * HL_NS_PER_S;
    fixture.options.root = fixture.root;
}

static void reopen_with_timeout(int64_t timeout_ns)
{
    fixture.options.coordination_timeout_ns = timeout_ns;
    hl_fixture_reopen(&fixture);
}

static void end(void)
{
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "tmp", ""), 0);
    hl_fixture_close(&fixture);
}

static void expect_holder(const char *details, pid_t pid)
{
    char wanted[64];
    snprintf(wanted, sizeof wanted, "{\"holder_pids\":[%d]}", (int)pid);
    CU_ASSERT_STRING_EQUAL(details, wanted);
}

/* --- one identity --- */

static void race(unsigned count)
{
    struct builder crowd[CROWD];
    memset(crowd, 0, sizeof crowd);
    begin();
    hl_fixture_store(&fixture);
    start_parked(&crowd[0]);
    for (unsigned i = 1; i < count; i++)
        start(&crowd[i]);
    for (unsigned i = 1; i < count; i++)
        await_waiting(crowd[i].child, "/" HL_GOLDEN_KEY ".build.lock");
    CU_ASSERT_EQUAL(let_finish(&crowd[0]), HL_WEIGHT_BUILT);
    for (unsigned i = 1; i < count; i++)
        CU_ASSERT_EQUAL(finish(&crowd[i]), HL_WEIGHT_JOINED);
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "artifacts", ""), 1);
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "quarantine", ""), 0);
    end();
}

static void of_two_processes_one_builds_and_one_joins(void)
{
    race(2);
}

static void of_sixteen_processes_one_builds_and_the_others_join(void)
{
    race(CROWD);
}

/* Nobody is held back: whoever comes first builds, and every other finds or joins. */
static void in_an_open_race_exactly_one_builds(void)
{
    struct builder crowd[CROWD];
    memset(crowd, 0, sizeof crowd);
    begin();
    unsigned built = 0, others = 0;
    for (unsigned i = 0; i < CROWD; i++)
        start(&crowd[i]);
    for (unsigned i = 0; i < CROWD; i++) {
        const int result = finish(&crowd[i]);
        built += result == HL_WEIGHT_BUILT;
        others += result == HL_WEIGHT_JOINED || result == HL_WEIGHT_HIT;
    }
    CU_ASSERT_EQUAL(built, 1);
    CU_ASSERT_EQUAL(others, CROWD - 1);
    end();
}

static void a_waiter_that_gives_up_cancels_nobody(void)
{
    struct builder builder = {0};
    begin();
    start_parked(&builder);
    reopen_with_timeout(HL_NS_PER_S / 20);
    hl_weight_identity *const identity = hl_fixture_identity(2, 0);
    struct hl_fake_producer fake;
    hl_fake_producer_init(&fake, identity);
    hl_weight_lease *lease = NULL;
    hl_weight_origin origin = HL_WEIGHT_HIT;
    HL_EXPECT_FAILURE(
        hl_fixture_look_up(&fixture, identity, HL_WEIGHT_MANIFEST_AND_METADATA, &lease, &failure),
        HL_WEIGHT_LOCAL_MISS, false, failure);
    HL_EXPECT_FAILURE(hl_fixture_get(&fixture, identity, &fake, &origin, &lease, &failure),
                      HL_WEIGHT_ACTIVE_BUILD_TIMEOUT, true, failure);
    expect_holder(failure.details, builder.child);
    CU_ASSERT_EQUAL(fake.runs, 0);
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "tmp", ""), 1);
    CU_ASSERT_EQUAL(let_finish(&builder), HL_WEIGHT_BUILT);
    HL_REQUIRE_OK(hl_fixture_get(&fixture, identity, &fake, &origin, &lease, &failure), failure.error);
    CU_ASSERT_EQUAL(origin, HL_WEIGHT_HIT);
    hl_weight_lease_release(lease);
    hl_weight_identity_free(identity);
    end();
}

static void a_killed_builder_is_succeeded_and_its_remains_are_swept(void)
{
    struct builder killed = {0}, waiting = {0};
    begin();
    start_parked(&killed);
    start(&waiting);
    await_waiting(waiting.child, "/" HL_GOLDEN_KEY ".build.lock");
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "tmp", ""), 1);
    kill(killed.child, SIGKILL);
    CU_ASSERT_EQUAL(finish(&killed), -SIGKILL);
    CU_ASSERT_EQUAL(finish(&waiting), HL_WEIGHT_BUILT);
    end();
}

static void a_builder_that_died_alone_leaves_a_miss(void)
{
    struct builder killed = {0};
    begin();
    start_parked(&killed);
    kill(killed.child, SIGKILL);
    CU_ASSERT_EQUAL(finish(&killed), -SIGKILL);
    hl_weight_identity *const identity = hl_fixture_identity(2, 0);
    hl_weight_lease *lease = NULL;
    HL_EXPECT_FAILURE(
        hl_fixture_look_up(&fixture, identity, HL_WEIGHT_MANIFEST_AND_METADATA, &lease, &failure),
        HL_WEIGHT_LOCAL_MISS, false, failure);
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "tmp", HL_GOLDEN_KEY), 1);
    hl_weight_lease_release(hl_fixture_build_golden(&fixture));
    hl_weight_identity_free(identity);
    end();
}

/* --- several identities --- */

static void builders_of_different_identities_do_not_wait_for_each_other(void)
{
    struct builder first = {.rank = 0}, second = {.rank = 1};
    begin();
    start_parked(&first);
    start_parked(&second);
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "tmp", ""), 2);
    CU_ASSERT_EQUAL(let_finish(&second), HL_WEIGHT_BUILT);
    CU_ASSERT_EQUAL(let_finish(&first), HL_WEIGHT_BUILT);
    hl_fixture_store(&fixture);
    end();
}

static void serialized_builders_take_turns_and_warm_hits_do_not_wait(void)
{
    struct builder warm = {.rank = 0}, parked = {.rank = 1}, next = {.rank = 0};
    begin();
    fixture.options.admission = HL_WEIGHT_ADMISSION_SERIALIZED;
    fixture.options.max_store_bytes = 192 * 1024;
    start(&warm);
    CU_ASSERT_EQUAL(finish(&warm), HL_WEIGHT_BUILT);
    start_parked(&parked);
    start(&next);
    CU_ASSERT_EQUAL(finish(&next), HL_WEIGHT_HIT);
    reopen_with_timeout(HL_NS_PER_S / 20);
    hl_weight_identity *const other = hl_fixture_identity(4, 3);
    struct hl_fake_producer fake;
    hl_fake_producer_init(&fake, other);
    hl_weight_lease *lease = NULL;
    HL_EXPECT_FAILURE(hl_fixture_get(&fixture, other, &fake, NULL, &lease, &failure),
                      HL_WEIGHT_ACTIVE_BUILD_TIMEOUT, true, failure);
    expect_holder(failure.details, parked.child);
    /* A builder that dies gives its turn up. */
    kill(parked.child, SIGKILL);
    CU_ASSERT_EQUAL(finish(&parked), -SIGKILL);
    HL_REQUIRE_OK(hl_fixture_get(&fixture, other, &fake, NULL, &lease, &failure), failure.error);
    hl_weight_lease_release(lease);
    HL_EXPECT_OK(hl_weight_store_clean(fixture.store,
                                       "154f81f66482dc5dd0881b56aa63f76ca9ae7730086c2e700c4aba"
                                       "61da4f14e9",
                                       &failure),
                 failure.error);
    hl_weight_identity_free(other);
    end();
}

/* Each alone fits; the second hears so after the first has ended, not both in the middle. */
static void serialized_builders_do_not_exceed_the_store_together(void)
{
    struct builder first = {.rank = 0, .bytes = 100 * 1024}, second = {.rank = 1, .bytes = 100 * 1024};
    begin();
    fixture.options.admission = HL_WEIGHT_ADMISSION_SERIALIZED;
    fixture.options.max_store_bytes = 192 * 1024;
    start_parked(&first);
    start(&second);
    await_waiting(second.child, "/domain-build.lock");
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "tmp", ""), 1);
    CU_ASSERT_EQUAL(let_finish(&first), HL_WEIGHT_BUILT);
    CU_ASSERT_EQUAL(finish(&second), EXIT_FAILED + HL_WEIGHT_STORE_LIMIT_EXCEEDED);
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "artifacts", ""), 1);
    CU_ASSERT_TRUE(hl_fixture_exists(&fixture, "artifacts/" HL_GOLDEN_KEY));
    end();
}

/* --- removal --- */

static void removal_names_the_builder_or_the_lease_and_waits_for_neither(void)
{
    struct builder builder = {0}, reader = {.keeps = true};
    begin();
    start_parked(&builder);
    hl_weight_store *const store = hl_fixture_store(&fixture);
    HL_EXPECT_FAILURE(hl_weight_store_clean(store, HL_GOLDEN_KEY, &failure), HL_WEIGHT_ACTIVE_BUILD_TIMEOUT,
                      true, failure);
    expect_holder(failure.details, builder.child);
    CU_ASSERT_EQUAL(failure.stage, HL_WEIGHT_STAGE_LIFECYCLE);
    HL_EXPECT_FAILURE(
        hl_weight_store_clean_quarantined(store, HL_GOLDEN_KEY ".validation_failure.x", &failure),
        HL_WEIGHT_ACTIVE_BUILD_TIMEOUT, true, failure);
    CU_ASSERT_EQUAL(let_finish(&builder), HL_WEIGHT_BUILT);
    start(&reader);
    hl_pipe_await(reader.arrived[0]);
    HL_EXPECT_FAILURE(hl_weight_store_clean(store, HL_GOLDEN_KEY, &failure), HL_WEIGHT_ACTIVE_LEASE, true,
                      failure);
    expect_holder(failure.details, reader.child);
    CU_ASSERT_EQUAL(hl_fixture_mode(&fixture, "artifacts/" HL_GOLDEN_KEY), 0555);
    CU_ASSERT_EQUAL(let_finish(&reader), HL_WEIGHT_HIT);
    HL_EXPECT_OK(hl_weight_store_clean(store, HL_GOLDEN_KEY, &failure), failure.error);
    end();
}

static void a_reader_in_another_process_holds_up_a_rebuild_only_shortly(void)
{
    struct builder reader = {.keeps = true};
    begin();
    start(&reader);
    hl_pipe_await(reader.arrived[0]);
    hl_weight_store *const store = hl_fixture_store(&fixture);
    HL_EXPECT_OK(hl_weight_store_deny(store, HL_GOLDEN_KEY, "a test", &failure), failure.error);
    hl_weight_identity *const identity = hl_fixture_identity(2, 0);
    struct hl_fake_producer fake;
    hl_fake_producer_init(&fake, identity);
    hl_weight_lease *lease = NULL;
    HL_EXPECT_FAILURE(hl_fixture_get(&fixture, identity, &fake, NULL, &lease, &failure),
                      HL_WEIGHT_ACTIVE_LEASE, true, failure);
    expect_holder(failure.details, reader.child);
    CU_ASSERT_EQUAL(let_finish(&reader), HL_WEIGHT_BUILT);
    HL_REQUIRE_OK(hl_fixture_get(&fixture, identity, &fake, NULL, &lease, &failure), failure.error);
    hl_weight_lease_release(lease);
    hl_weight_identity_free(identity);
    end();
}

HL_TESTS(processes, HL_CASE(of_two_processes_one_builds_and_one_joins),
         HL_CASE(of_sixteen_processes_one_builds_and_the_others_join),
         HL_CASE(in_an_open_race_exactly_one_builds), HL_CASE(a_waiter_that_gives_up_cancels_nobody),
         HL_CASE(a_killed_builder_is_succeeded_and_its_remains_are_swept),
         HL_CASE(a_builder_that_died_alone_leaves_a_miss),
         HL_CASE(builders_of_different_identities_do_not_wait_for_each_other),
         HL_CASE(serialized_builders_take_turns_and_warm_hits_do_not_wait),
         HL_CASE(serialized_builders_do_not_exceed_the_store_together),
         HL_CASE(removal_names_the_builder_or_the_lease_and_waits_for_neither),
         HL_CASE(a_reader_in_another_process_holds_up_a_rebuild_only_shortly));
