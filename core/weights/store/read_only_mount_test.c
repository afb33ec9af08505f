/* A domain on a mount that is read-only, or becomes so under an open store: as root and as a user whom
 * permissions bind, on tmpfs and on whatever holds $TEST_TMPDIR. Each case makes its mount in a private mount
 * namespace, for which root needs CAP_SYS_ADMIN over its own user namespace (in a container: the capability
 * SYS_ADMIN, and a profile that allows mount(2); no user namespace is needed). Root without it fails here;
 * who is not root and gets none either is told that nothing was run. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <linux/magic.h>

#include "core/testing/cunit.h"
#include "core/weights/storage/scratch.h"
#include "core/weights/store/store_testing.h"

#define ENTRY "artifacts/" HL_GOLDEN_KEY

/* Whom the domain holds an artifact of, in each state. */
static struct {
    hl_weight_identity *ready, *spoilt, *denied, *twice, *absent;
} all;

struct user {
    struct hl_store_fixture fixture;
    bool nobody;
    int opened[2], overtaken[2]; /* pipes */
};

#define EXPECT(call, expected_code, may_retry)                                                               \
    do {                                                                                                     \
        const hl_status status_ = (call);                                                                    \
        const bool so_ = status_ == hl_weight_code_status(expected_code) &&                                  \
                         failure.code == (expected_code) && failure.retryable == (may_retry);                \
        if (!so_)                                                                                            \
            fprintf(stderr, "%s: %s, %s: %s\n", #call, hl_status_name(status_),                              \
                    hl_weight_code_name(failure.code), failure.error.text);                                  \
        SCRATCH_CHECK(so_);                                                                                  \
    } while (0)

static hl_weight_failure failure;
static hl_weight_lease *lease;

static hl_status get(hl_weight_store *store, const hl_weight_identity *identity, unsigned *runs)
{
    struct hl_fake_producer fake;
    hl_weight_origin origin;
    hl_fake_producer_init(&fake, identity);
    lease = NULL;
    const hl_status status = hl_weight_store_get_or_build(store, identity, HL_WEIGHT_MANIFEST_AND_METADATA,
                                                          &fake.producer, &origin, &lease, &failure);
    *runs = fake.runs;
    return status;
}

static hl_status look_up(hl_weight_store *store, const hl_weight_identity *identity)
{
    lease = NULL;
    return hl_weight_store_lookup(store, identity, HL_WEIGHT_FULL_CHECKSUM, &lease, &failure);
}

static void build(hl_weight_store *store, const hl_weight_identity *identity)
{
    unsigned runs = 0;
    SCRATCH_CHECK(get(store, identity, &runs) == HL_OK && runs == 1);
    hl_weight_lease_release(lease);
}

/* While the mount can be written. */
static int fill(void *context)
{
    struct user *user = context;
    struct hl_store_fixture *fixture = &user->fixture;
    char path[256];
    scratch_failures = 0;
    hl_weight_store *store = hl_fixture_store(fixture);
    build(store, all.ready);
    build(store, all.spoilt);
    build(store, all.denied);
    build(store, all.twice);
    SCRATCH_CHECK(hl_fixture_mode(fixture, ENTRY) == 0555);
    snprintf(path, sizeof path, "artifacts/%s/" HL_GOLDEN_FILE, hl_weight_identity_key(all.spoilt));
    hl_fixture_corrupt(fixture, path, 210);
    SCRATCH_CHECK(hl_weight_store_deny(store, hl_weight_identity_key(all.denied), "x", &failure) == HL_OK);
    SCRATCH_CHECK(hl_weight_store_deny(store, hl_weight_identity_key(all.twice), "x", &failure) == HL_OK);
    build(store, all.twice);
    SCRATCH_CHECK(hl_fixture_count(fixture, "quarantine", "") == 1);
    hl_weight_store_close(store);
    return scratch_failures;
}

static void open_what_may_be_opened(struct user *user, hl_weight_store **store)
{
    hl_weight_store_options o = user->fixture.options;
    char path[320];
    o.root = user->fixture.root;
    EXPECT(hl_weight_store_open(&o, store, &failure), HL_WEIGHT_DOMAIN_UNAVAILABLE, true);
    SCRATCH_CHECK(failure.error.sys_errno == EROFS && strstr(failure.error.text, "read_only"));
    snprintf(path, sizeof path, "%s/new", user->fixture.base);
    o.root = path;
    EXPECT(hl_weight_store_open(&o, store, &failure), HL_WEIGHT_DOMAIN_UNAVAILABLE, true);
    SCRATCH_CHECK(failure.error.sys_errno == EROFS && access(path, F_OK) != 0);
    o.read_only = true; /* nothing is there to be read */
    EXPECT(hl_weight_store_open(&o, store, &failure), HL_WEIGHT_DOMAIN_UNAVAILABLE, true);
    o.root = user->fixture.root;
    SCRATCH_CHECK(*store == NULL && hl_weight_store_open(&o, store, &failure) == HL_OK);
}

static void read_artifacts(hl_weight_store *store)
{
    unsigned runs = 1;
    SCRATCH_CHECK(look_up(store, all.ready) == HL_OK);
    hl_weight_lease *held = lease;
    const hl_weight_tensor_view *scale = hl_weight_lease_tensor(held, "layer.scale");
    SCRATCH_CHECK(scale && ((const float *)scale->data)[1] == 2.0f);
    hl_weight_artifact_snapshot *artifact = NULL;
    SCRATCH_CHECK(hl_weight_store_inspect_artifact(store, HL_GOLDEN_KEY, HL_WEIGHT_FULL_CHECKSUM, &artifact,
                                                   &failure) == HL_OK);
    /* The lock is the kernel's and needs no writing. */
    SCRATCH_CHECK(artifact->present && artifact->valid && artifact->artifact_lock_active &&
                  !artifact->build_lock_active);
    hl_weight_artifact_snapshot_free(artifact);
    SCRATCH_CHECK(get(store, all.ready, &runs) == HL_OK && runs == 0);
    hl_weight_lease_release(lease);
    SCRATCH_CHECK(scale && ((const float *)scale->data)[0] == 1.0f);
    hl_weight_lease_release(held);
    for (unsigned time = 0; time < 2; time++) { /* found again: nothing could be recorded */
        EXPECT(look_up(store, all.spoilt), HL_WEIGHT_CHECKSUM_MISMATCH, false);
        SCRATCH_CHECK(strstr(failure.details, "nothing was recorded"));
    }
    EXPECT(look_up(store, all.denied), HL_WEIGHT_ARTIFACT_DENIED, false);
    EXPECT(look_up(store, all.absent), HL_WEIGHT_LOCAL_MISS, false);
}

static void refuse_changes(hl_weight_store *store, const char *quarantined)
{
    unsigned runs = 1;
    EXPECT(get(store, all.absent, &runs), HL_WEIGHT_UNSUPPORTED, false);
    SCRATCH_CHECK(runs == 0);
    EXPECT(get(store, all.denied, &runs), HL_WEIGHT_UNSUPPORTED, false);
    SCRATCH_CHECK(runs == 0);
    EXPECT(hl_weight_store_deny(store, HL_GOLDEN_KEY, "x", &failure), HL_WEIGHT_UNSUPPORTED, false);
    EXPECT(hl_weight_store_clean(store, HL_GOLDEN_KEY, &failure), HL_WEIGHT_UNSUPPORTED, false);
    EXPECT(hl_weight_store_clean_quarantined(store, quarantined, &failure), HL_WEIGHT_UNSUPPORTED, false);
}

static void count_states(const hl_weight_domain_snapshot *domain, unsigned counts[4],
                         const char **quarantined)
{
    for (size_t i = 0; i < domain->inventory_count; i++) {
        counts[domain->inventory[i].state]++;
        if (domain->inventory[i].state == HL_WEIGHT_STATE_QUARANTINED)
            *quarantined = domain->inventory[i].storage_name;
    }
}

static int meet_a_read_only_mount(void *context)
{
    struct user *user = context;
    unsigned counts[4] = {0};
    const char *quarantined = "";
    hl_weight_store *store = NULL;
    hl_weight_domain_snapshot *domain = NULL;
    scratch_failures = 0;
    open_what_may_be_opened(user, &store);
    if (!store)
        return scratch_failures;
    read_artifacts(store);
    SCRATCH_CHECK(hl_weight_store_inspect_domain(store, &domain, &failure) == HL_OK);
    count_states(domain, counts, &quarantined);
    SCRATCH_CHECK(counts[HL_WEIGHT_STATE_READY] == 3 && counts[HL_WEIGHT_STATE_DENIED] == 1 &&
                  counts[HL_WEIGHT_STATE_QUARANTINED] == 1 && counts[HL_WEIGHT_STATE_TEMPORARY] == 0);
    refuse_changes(store, quarantined);
    hl_weight_domain_snapshot_free(domain);
    hl_weight_store_close(store);
    return scratch_failures;
}

/* The store was opened for changes; then the administrator made the mount read-only. */
static int be_overtaken(void *context)
{
    struct user *user = context;
    char quarantined[256];
    unsigned runs = 1;
    scratch_failures = 0;
    hl_weight_store *store = hl_fixture_store(&user->fixture);
    hl_fixture_find(&user->fixture, "quarantine", "", quarantined);
    hl_pipe_send(user->opened[1]);
    hl_pipe_await(user->overtaken[0]);
    EXPECT(get(store, all.absent, &runs), HL_WEIGHT_DOMAIN_UNAVAILABLE, true);
    SCRATCH_CHECK(runs == 0 && failure.error.sys_errno == EROFS);
    EXPECT(hl_weight_store_deny(store, HL_GOLDEN_KEY, "x", &failure), HL_WEIGHT_DOMAIN_UNAVAILABLE, true);
    EXPECT(hl_weight_store_clean(store, HL_GOLDEN_KEY, &failure), HL_WEIGHT_DOMAIN_UNAVAILABLE, true);
    EXPECT(hl_weight_store_clean_quarantined(store, quarantined, &failure), HL_WEIGHT_DOMAIN_UNAVAILABLE,
           true);
    SCRATCH_CHECK(hl_fixture_count(&user->fixture, "artifacts", "") == 4);
    SCRATCH_CHECK(hl_fixture_count(&user->fixture, "deny", "") == 1);
    SCRATCH_CHECK(hl_fixture_count(&user->fixture, "tmp", "") == 0);
    hl_weight_store_close(store);
    return scratch_failures;
}

/* --- who and where --- */

static pid_t start(struct user *user, int (*run)(void *context))
{
    return user->nobody ? hl_child_start_as_nobody(&user->fixture, run, user) : hl_child_start(run, user);
}

static void place(struct user *user, const char *path)
{
    struct statfs st;
    struct hl_store_fixture *fixture = &user->fixture;
    SCRATCH_CHECK(statfs(path, &st) == 0);
    snprintf(fixture->base, sizeof fixture->base, "%s", path);
    snprintf(fixture->root, sizeof fixture->root, "%s/domain", path);
    hl_weight_store_options_init(&fixture->options);
    fixture->options.root = fixture->root;
    fixture->options.hash_threads = 1;
    fixture->options.storage_class = st.f_type == TMPFS_MAGIC ? HL_WEIGHT_TMPFS : HL_WEIGHT_DISK;
}

/* Makes it read-only for this namespace only. */
static bool seal(const char *path)
{
    return mount(NULL, path, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL) == 0;
}

static void use_a_mount(struct user *user, const char *path)
{
    place(user, path);
    SCRATCH_CHECK(hl_child_end(start(user, fill)) == 0);
    hl_pipe_open(user->opened);
    hl_pipe_open(user->overtaken);
    const pid_t overtaken = start(user, be_overtaken);
    hl_pipe_await(user->opened[0]);
    SCRATCH_CHECK(seal(path));
    hl_pipe_send(user->overtaken[1]);
    SCRATCH_CHECK(hl_child_end(overtaken) == 0);
    SCRATCH_CHECK(hl_child_end(start(user, meet_a_read_only_mount)) == 0);
}

static bool as_nobody;

static void on_each_mount(int folder)
{
    struct user user = {.nobody = as_nobody};
    char path[192];
    SCRATCH_CHECK(mkdirat(folder, "tmpfs", 0755) == 0 && mkdirat(folder, "bind", 0755) == 0);
    close(scratch_mount("tmpfs", "tmpfs", 0, "size=4m"));
    snprintf(path, sizeof path, "%s/tmpfs", scratch_path());
    use_a_mount(&user, path);
    user = (struct user){.nobody = as_nobody};
    snprintf(path, sizeof path, "%s/bind", scratch_path());
    SCRATCH_CHECK(mount(path, path, NULL, MS_BIND, NULL) == 0);
    use_a_mount(&user, path);
}

static void run_case(bool nobody)
{
    const int folder = scratch_open();
    as_nobody = nobody;
    all.ready = hl_fixture_identity(2, 0);
    all.spoilt = hl_fixture_identity(2, 1);
    all.denied = hl_fixture_identity_of_model("denied");
    all.twice = hl_fixture_identity_of_model("twice");
    all.absent = hl_fixture_identity_of_model("absent");
    scratch_with_mounts(on_each_mount, folder);
    hl_weight_identity *const identities[] = {all.ready, all.spoilt, all.denied, all.twice, all.absent};
    for (size_t i = 0; i < 5; i++)
        hl_weight_identity_free(identities[i]);
    scratch_close(folder);
}

static void a_read_only_mount_is_for_reading(void)
{
    run_case(false);
}

static void a_read_only_mount_is_for_reading_by_a_user_without_privilege(void)
{
    if (hl_child_require_second_user())
        run_case(true);
}

HL_TESTS(store_read_only_mount, HL_CASE(a_read_only_mount_is_for_reading),
         HL_CASE(a_read_only_mount_is_for_reading_by_a_user_without_privilege));
