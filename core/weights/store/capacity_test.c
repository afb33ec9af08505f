/* What a build may take, and what happens when there is no more. */
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "core/testing/cunit.h"
#include "core/weights/storage/scratch.h"
#include "core/weights/store/store_testing.h"

enum { GOLDEN_BYTES = 232, GOLDEN_DOCUMENTS = 1680 + 283 };

static struct hl_store_fixture fixture;
static hl_weight_identity *identity;
static struct hl_fake_producer fake;
static hl_weight_failure failure;

static void begin(void)
{
    hl_fixture_open(&fixture, HL_FIXTURE_SHM);
    identity = hl_fixture_identity(2, 0);
    hl_fake_producer_init(&fake, identity);
}

static void end(void)
{
    hl_weight_identity_free(identity);
    hl_fixture_close(&fixture);
}

static hl_status get(void)
{
    hl_weight_lease *lease = NULL;
    const hl_status status = hl_fixture_get(&fixture, identity, &fake, NULL, &lease, &failure);
    hl_weight_lease_release(lease);
    return status;
}

static void expect_refused(hl_weight_code code)
{
    HL_EXPECT_FAILURE(get(), code, true, failure);
    CU_ASSERT_EQUAL(failure.stage, HL_WEIGHT_STAGE_CAPACITY);
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "tmp", ""), 0);
    CU_ASSERT_FALSE(hl_fixture_exists(&fixture, "artifacts/" HL_GOLDEN_KEY));
}

static void an_artifact_is_counted_with_its_documents(void)
{
    static const uint64_t too_little[] = {1, GOLDEN_BYTES - 1, GOLDEN_BYTES,
                                          GOLDEN_BYTES + GOLDEN_DOCUMENTS - 1};
    for (unsigned i = 0; i <= sizeof too_little / sizeof too_little[0]; i++) {
        begin();
        const bool fits = i == sizeof too_little / sizeof too_little[0];
        fixture.options.max_artifact_bytes = fits ? GOLDEN_BYTES + GOLDEN_DOCUMENTS : too_little[i];
        if (fits)
            HL_EXPECT_OK(get(), failure.error);
        else
            expect_refused(HL_WEIGHT_ARTIFACT_TOO_LARGE);
        end();
    }
}

static void the_sum_of_the_files_counts(void)
{
    begin();
    fake.files = 3;
    fake.tensors = 1;
    fake.tensor_bytes = 4096;
    fixture.options.max_artifact_bytes = 2 * 4096 + 1000;
    expect_refused(HL_WEIGHT_ARTIFACT_TOO_LARGE);
    end();
}

/* As allocated: what is quarantined, too, until it is cleaned. */
static void the_store_is_counted_with_what_is_quarantined(void)
{
    char name[256];
    begin();
    fake.files = 1;
    fake.tensors = 1;
    fake.tensor_bytes = 300000;
    fixture.options.max_store_bytes = 512 * 1024;
    HL_EXPECT_OK(get(), failure.error);
    HL_EXPECT_OK(hl_weight_store_deny(fixture.store, HL_GOLDEN_KEY, "a test", &failure), failure.error);
    expect_refused(HL_WEIGHT_STORE_LIMIT_EXCEEDED);
    hl_fixture_find(&fixture, "quarantine", "", name);
    HL_EXPECT_OK(hl_weight_store_clean_quarantined(fixture.store, name, &failure), failure.error);
    HL_EXPECT_OK(get(), failure.error);
    hl_weight_identity *const other = hl_fixture_identity(2, 1);
    struct hl_fake_producer second;
    hl_fake_producer_init(&second, other);
    second.files = second.tensors = 1;
    second.tensor_bytes = 300000;
    hl_weight_lease *lease = NULL;
    HL_EXPECT_FAILURE(hl_fixture_get(&fixture, other, &second, NULL, &lease, &failure),
                      HL_WEIGHT_STORE_LIMIT_EXCEEDED, true, failure);
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "tmp", ""), 0);
    HL_EXPECT_OK(get(), failure.error); /* a warm one needs nothing */
    hl_weight_identity_free(other);
    end();
}

static void what_must_stay_free_is_not_taken(void)
{
    begin();
    fixture.options.min_free_bytes = UINT64_MAX - 1;
    expect_refused(HL_WEIGHT_INSUFFICIENT_CAPACITY);
    end();
}

static hl_status rewrite(struct hl_fake_producer *self, hl_weight_writer *writer, hl_error *err)
{
    hl_error inner;
    const hl_status status = hl_fake_produce_golden(writer, &inner);
    HL_EXPECT_STATUS(status, HL_E_LIMIT, inner);
    if (self->extra)
        return HL_OK;
    snprintf(err->text, sizeof err->text, "it did not work");
    return HL_E_DEVICE;
}

static void the_code_is_the_capacitys_whatever_the_producer_says(void)
{
    begin();
    fixture.options.max_artifact_bytes = 100;
    fake.instead = rewrite;
    expect_refused(HL_WEIGHT_ARTIFACT_TOO_LARGE);
    fake.extra = &fake; /* swallows it */
    expect_refused(HL_WEIGHT_ARTIFACT_TOO_LARGE);
    end();
}

/* --- a small file system --- */

static void resize(const char *path, const char *what, unsigned long value)
{
    char options[64];
    snprintf(options, sizeof options, "%s=%lu", what, value);
    SCRATCH_CHECK(mount(NULL, path, NULL, MS_REMOUNT, options) == 0);
}

/* Every amount of space or files from none up to what a build needs: it fails, typed, and leaves nothing. */
static void fill_up(const char *mount_path, bool files)
{
    struct statfs st;
    unsigned failures = 0;
    SCRATCH_CHECK(statfs(mount_path, &st) == 0);
    const unsigned long used =
        files ? st.f_files - st.f_ffree : (st.f_blocks - st.f_bfree) * (unsigned long)st.f_bsize / 4096;
    for (unsigned more = 0; more < 64; more++) {
        resize(mount_path, files ? "nr_inodes" : "nr_blocks", used + more);
        if (get() == HL_OK)
            break;
        failures++;
        const bool typed =
            failure.code == HL_WEIGHT_ENOSPC || failure.code == HL_WEIGHT_INSUFFICIENT_CAPACITY;
        if (!typed)
            fprintf(stderr, "%u more: %s\n", more, failure.error.text);
        SCRATCH_CHECK(typed && failure.retryable);
        SCRATCH_CHECK(hl_fixture_count(&fixture, "tmp", "") == 0);
        SCRATCH_CHECK(hl_fixture_count(&fixture, "artifacts", "") == 0);
    }
    /* A folder, three payloads and two documents; two pages a payload and one a document. */
    SCRATCH_CHECK(failures == (files ? 6 : 8));
    SCRATCH_CHECK(hl_fixture_count(&fixture, "artifacts", "") == 1);
}

/* Mounts 4 MiB and lets the fixture's domain be in it. */
static int mount_small(int folder, const char *name, char path[192])
{
    SCRATCH_CHECK(mkdirat(folder, name, 0755) == 0);
    const int small = scratch_mount("tmpfs", name, 0, "size=4m");
    snprintf(path, 192, "%s/%s", scratch_path(), name);
    fixture = (struct hl_store_fixture){0};
    snprintf(fixture.root, sizeof fixture.root, "%s/domain", path);
    hl_weight_store_options_init(&fixture.options);
    fixture.options.root = fixture.root;
    fixture.options.storage_class = HL_WEIGHT_TMPFS;
    fixture.options.hash_threads = 2;
    return small;
}

static void build_in_little_space(int folder)
{
    char path[192];
    for (unsigned files = 0; files < 2; files++) {
        const int small = mount_small(folder, files ? "files" : "space", path);
        identity = hl_fixture_identity(2, 0);
        hl_fake_producer_init(&fake, identity);
        fake.files = 3;
        fake.tensors = 1;
        fake.tensor_bytes = 8000;
        /* The lock files stay once they are made. */
        HL_EXPECT_OK(get(), failure.error);
        HL_EXPECT_OK(hl_weight_store_clean(fixture.store, HL_GOLDEN_KEY, &failure), failure.error);
        fill_up(path, files);
        hl_weight_store_close(fixture.store);
        hl_weight_identity_free(identity);
        close(small);
    }
}

static void a_full_file_system_fails_the_build_at_every_write(void)
{
    const int folder = scratch_open();
    scratch_with_mounts(build_in_little_space, folder);
    CU_ASSERT_TRUE(folder >= 0);
    scratch_close(folder);
}

/* The root and five folders, a lock and two documents: a file each; a page each of the documents. */
static void create_in_little_space(int folder)
{
    char path[192];
    for (unsigned files = 0; files < 2; files++) {
        const int small = mount_small(folder, files ? "files" : "space", path);
        hl_weight_store *store = NULL;
        struct statfs st;
        unsigned failures = 0;
        SCRATCH_CHECK(statfs(path, &st) == 0);
        const unsigned long used = files ? st.f_files - st.f_ffree : 1;
        for (unsigned more = 0; more < 32 && !store; more++) {
            if (files)
                resize(path, "nr_inodes", used + more);
            else if (more) /* no blocks at all means no limit */
                resize(path, "nr_blocks", more);
            else
                continue;
            const hl_status status = hl_weight_store_open(&fixture.options, &store, &failure);
            if (status == HL_OK)
                break;
            failures++;
            SCRATCH_CHECK(failure.code == HL_WEIGHT_ENOSPC && failure.retryable && !store);
        }
        SCRATCH_CHECK(store && (files ? failures == 9 : failures > 0));
        SCRATCH_CHECK(hl_fixture_count(&fixture, "", "") == 7);
        hl_weight_store_close(store);
        close(small);
    }
}

static void a_full_file_system_fails_the_creation_at_every_write(void)
{
    const int folder = scratch_open();
    scratch_with_mounts(create_in_little_space, folder);
    CU_ASSERT_TRUE(folder >= 0);
    scratch_close(folder);
}

/* Neither a request nor a reader can write a marker; the folder's own bit needs no space. */
static void condemn_without_space(int folder)
{
    char path[192];
    for (unsigned by_request = 0; by_request < 2; by_request++) {
        const int small = mount_small(folder, by_request ? "request" : "reader", path);
        struct statfs st;
        hl_weight_lease *lease = NULL;
        identity = hl_fixture_identity(2, 0);
        hl_fake_producer_init(&fake, identity);
        HL_EXPECT_OK(get(), failure.error);
        hl_fixture_corrupt(&fixture, "artifacts/" HL_GOLDEN_KEY "/" HL_GOLDEN_FILE, 210);
        SCRATCH_CHECK(statfs(path, &st) == 0);
        resize(path, "nr_inodes", st.f_files - st.f_ffree);
        if (by_request) {
            HL_EXPECT_OK(hl_weight_store_deny(fixture.store, HL_GOLDEN_KEY, "x", &failure), failure.error);
            SCRATCH_CHECK(hl_fixture_mode(&fixture, "artifacts/" HL_GOLDEN_KEY) == 01555);
        } else {
            SCRATCH_CHECK(hl_fixture_look_up(&fixture, identity, HL_WEIGHT_FULL_CHECKSUM, &lease, &failure) ==
                              HL_E_NOSPACE &&
                          failure.code == HL_WEIGHT_ENOSPC && failure.retryable &&
                          strstr(failure.details, "completed"));
        }
        SCRATCH_CHECK(hl_fixture_count(&fixture, "deny", "") == 0);
        SCRATCH_CHECK(hl_fixture_look_up(&fixture, identity, HL_WEIGHT_MANIFEST_AND_METADATA, &lease,
                                         &failure) == (by_request ? HL_E_DENIED : HL_E_MISS));
        SCRATCH_CHECK(!lease);
        hl_weight_store_close(fixture.store);
        hl_weight_identity_free(identity);
        close(small);
    }
}

static void a_full_file_system_condemns_by_the_folders_own_bit(void)
{
    const int folder = scratch_open();
    scratch_with_mounts(condemn_without_space, folder);
    CU_ASSERT_TRUE(folder >= 0);
    scratch_close(folder);
}

HL_TESTS(capacity, HL_CASE(an_artifact_is_counted_with_its_documents), HL_CASE(the_sum_of_the_files_counts),
         HL_CASE(the_store_is_counted_with_what_is_quarantined), HL_CASE(what_must_stay_free_is_not_taken),
         HL_CASE(the_code_is_the_capacitys_whatever_the_producer_says),
         HL_CASE(a_full_file_system_fails_the_build_at_every_write),
         HL_CASE(a_full_file_system_fails_the_creation_at_every_write),
         HL_CASE(a_full_file_system_condemns_by_the_folders_own_bit));
