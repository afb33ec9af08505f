/* Sums in parallel, and the two equal ways to check a whole file. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/random.h"
#include "core/testing/cunit.h"
#include "core/weights/store/artifact.h"
#include "core/weights/store/golden_testing.h"

enum { FILES = 3, RANGES = 5, BYTES = 700001 };

struct files {
    unsigned char *bytes[FILES];
    struct hl_hash_job jobs[FILES];
    struct hl_hash_range ranges[FILES][RANGES];
};

static void make_files(struct files *files)
{
    static const char *const names[FILES] = {"a.safetensors", "b.safetensors", "c.safetensors"};
    hl_random random;
    hl_random_seed(&random, 7);
    for (unsigned i = 0; i < FILES; i++) {
        const char *folder = getenv("TEST_TMPDIR");
        const int fd = open(folder ? folder : "/tmp", O_TMPFILE | O_RDWR, 0600);
        files->bytes[i] = malloc(BYTES);
        CU_ASSERT_TRUE_FATAL(fd >= 0 && files->bytes[i]);
        hl_random_fill(&random, files->bytes[i], BYTES);
        CU_ASSERT_EQUAL_FATAL(pwrite(fd, files->bytes[i], BYTES, 0), BYTES);
        files->jobs[i] = (struct hl_hash_job){
            .fd = fd, .name = names[i], .bytes = BYTES, .ranges = files->ranges[i], .range_count = RANGES};
        for (uint64_t r = 0; r < RANGES; r++)
            files->ranges[i][r] = (struct hl_hash_range){.begin = r * (BYTES / RANGES),
                                                         .end = r == 4 ? BYTES : (r + 1) * (BYTES / RANGES),
                                                         .name = "tensor"};
        files->ranges[i][2].end = files->ranges[i][2].begin; /* none */
    }
}

static void free_files(struct files *files)
{
    for (unsigned i = 0; i < FILES; i++) {
        close(files->jobs[i].fd);
        free(files->bytes[i]);
    }
}

static void sums_are_those_of_the_bytes_whatever_the_threads(void)
{
    static const uint32_t threads[] = {1, 2, 7, 64};
    struct files files;
    char hex[HL_SHA256_HEX_BYTES];
    hl_error err;
    make_files(&files);
    for (size_t t = 0; t < 4; t++) {
        HL_EXPECT_OK(hl_hash_run(files.jobs, FILES, threads[t], false, &err), err);
        for (unsigned i = 0; i < FILES; i++) {
            CU_ASSERT_EQUAL(hl_sha256(files.bytes[i], BYTES, hex, &err), HL_OK);
            CU_ASSERT_STRING_EQUAL(files.jobs[i].sha256, hex);
            for (unsigned r = 0; r < RANGES; r++) {
                struct hl_hash_range *range = &files.ranges[i][r];
                CU_ASSERT_EQUAL(
                    hl_sha256(files.bytes[i] + range->begin, range->end - range->begin, hex, &err), HL_OK);
                CU_ASSERT_STRING_EQUAL(range->sha256, hex);
            }
        }
        HL_EXPECT_OK(hl_hash_run(files.jobs, FILES, threads[t], true, &err), err);
    }
    free_files(&files);
}

static void a_sum_that_differs_names_its_file_or_tensor(void)
{
    struct files files;
    hl_error err;
    make_files(&files);
    HL_REQUIRE_OK(hl_hash_run(files.jobs, FILES, 2, false, &err), err);
    files.jobs[1].sha256[0] ^= 1;
    HL_EXPECT_STATUS(hl_hash_run(files.jobs, FILES, 2, true, &err), HL_E_CHECKSUM, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "b.safetensors"));
    files.jobs[1].sha256[0] = 0; /* an empty one is not looked at */
    HL_EXPECT_OK(hl_hash_run(files.jobs, FILES, 2, true, &err), err);
    files.ranges[2][4].sha256[63] ^= 1;
    files.ranges[2][4].name = "the.tensor";
    HL_EXPECT_STATUS(hl_hash_run(files.jobs, FILES, 1, true, &err), HL_E_CHECKSUM, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "the.tensor"));
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "c.safetensors"));
    files.ranges[2][4].sha256[0] = 0;
    HL_EXPECT_OK(hl_hash_run(files.jobs, FILES, 1, true, &err), err);
    free_files(&files);
}

static void a_file_that_ends_early_or_cannot_be_read_is_told_apart(void)
{
    struct files files;
    hl_error err;
    make_files(&files);
    HL_REQUIRE_OK(hl_hash_run(files.jobs, FILES, 2, false, &err), err);
    CU_ASSERT_EQUAL_FATAL(ftruncate(files.jobs[0].fd, 10), 0);
    HL_EXPECT_STATUS(hl_hash_run(files.jobs, FILES, 3, true, &err), HL_E_CHECKSUM, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "ends at 10"));
    const int file = files.jobs[0].fd;
    int ends[2];
    CU_ASSERT_EQUAL_FATAL(pipe(ends), 0);
    files.jobs[0].fd = ends[0]; /* no pread() on a pipe */
    HL_EXPECT_STATUS(hl_hash_run(files.jobs, 1, 2, true, &err), HL_E_SYSTEM, err);
    CU_ASSERT_TRUE(err.sys_errno != 0);
    files.jobs[0].fd = file;
    close(ends[0]);
    close(ends[1]);
    HL_EXPECT_OK(hl_hash_run(NULL, 0, 2, true, &err), err);
    free_files(&files);
}

/* Opens the golden artifact's parts as a validation would. */
static void open_artifact(struct hl_store_fixture *fixture, struct hl_artifact *artifact)
{
    hl_weight_failure failure;
    CU_ASSERT_EQUAL_FATAL(hl_artifact_validate(hl_fixture_store(fixture), HL_GOLDEN_KEY, NULL,
                                               HL_WEIGHT_MANIFEST_AND_METADATA, artifact, &failure),
                          HL_VERDICT_VALID);
}

static void a_file_hashed_in_parts_is_checked_to_its_last_byte(void)
{
    struct hl_store_fixture fixture;
    struct hl_artifact artifact;
    hl_error err;
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    hl_golden_lay(&fixture, HL_GOLDEN_KEY);
    open_artifact(&fixture, &artifact);
    CU_ASSERT_EQUAL(hl_artifact_split_files(&artifact, 2, 0), 1); /* one file, two threads */
    CU_ASSERT_EQUAL(hl_artifact_split_files(&artifact, 1, 0), 0);
    CU_ASSERT_EQUAL(hl_artifact_split_files(&artifact, 2, HL_SUMS_SPLIT_BYTES), 0);
    HL_EXPECT_OK(hl_artifact_check_sums(&artifact, 2, 0, &err), err);
    for (uint64_t at = 0; at < 232; at++) { /* length, header, metadata, padding, both tensors */
        hl_fixture_corrupt(&fixture, HL_GOLDEN_PAYLOAD, at);
        HL_EXPECT_STATUS(hl_artifact_check_sums(&artifact, 2, 0, &err), HL_E_CHECKSUM, err);
        CU_ASSERT_EQUAL(hl_artifact_split_files(&artifact, 2, 0), at >= 200); /* a header of its own: whole */
        hl_fixture_corrupt(&fixture, HL_GOLDEN_PAYLOAD, at);
    }
    HL_EXPECT_OK(hl_artifact_check_sums(&artifact, 2, 0, &err), err);
    hl_artifact_close(&artifact);
    hl_fixture_close(&fixture);
}

static void what_the_store_writes_in_either_layout_can_be_hashed_in_parts(void)
{
    for (uint32_t aligned = 0; aligned < 2; aligned++) {
        struct hl_store_fixture fixture;
        struct hl_artifact artifact;
        hl_error err;
        hl_fixture_open(&fixture, HL_FIXTURE_DISK);
        fixture.options.aligned_layout = aligned;
        hl_weight_lease_release(hl_fixture_build_golden(&fixture));
        open_artifact(&fixture, &artifact);
        CU_ASSERT_EQUAL(hl_artifact_split_files(&artifact, 2, 0), 1);
        HL_EXPECT_OK(hl_artifact_check_sums(&artifact, 2, 0, &err), err);
        HL_EXPECT_OK(hl_artifact_check_sums(&artifact, 2, HL_SUMS_SPLIT_BYTES, &err), err);
        hl_artifact_close(&artifact);
        hl_fixture_close(&fixture);
    }
}

static void files_are_split_only_where_whole_ones_leave_threads_idle(void)
{
    struct hl_store_fixture fixture;
    struct hl_artifact artifact;
    struct hl_fake_producer fake;
    hl_weight_failure failure;
    hl_weight_origin origin;
    hl_weight_lease *lease = NULL;
    hl_weight_identity *identity = hl_fixture_identity(2, 0);
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    hl_fake_producer_init(&fake, identity);
    fake.files = 4;
    fake.tensors = 3;
    fake.tensor_bytes = 10000;
    HL_REQUIRE_OK(hl_fixture_get(&fixture, identity, &fake, &origin, &lease, &failure), failure.error);
    hl_weight_lease_release(lease);
    open_artifact(&fixture, &artifact);
    CU_ASSERT_EQUAL(hl_artifact_split_files(&artifact, 2, 0), 0);
    CU_ASSERT_EQUAL(hl_artifact_split_files(&artifact, 4, 0), 0);
    CU_ASSERT_EQUAL(hl_artifact_split_files(&artifact, 3, 0), 4);
    CU_ASSERT_EQUAL(hl_artifact_split_files(&artifact, 8, 0), 4);
    hl_artifact_close(&artifact);
    hl_fixture_close(&fixture);
    hl_weight_identity_free(identity);
}

HL_TESTS(store_hashing, HL_CASE(sums_are_those_of_the_bytes_whatever_the_threads),
         HL_CASE(a_sum_that_differs_names_its_file_or_tensor),
         HL_CASE(a_file_that_ends_early_or_cannot_be_read_is_told_apart),
         HL_CASE(a_file_hashed_in_parts_is_checked_to_its_last_byte),
         HL_CASE(what_the_store_writes_in_either_layout_can_be_hashed_in_parts),
         HL_CASE(files_are_split_only_where_whole_ones_leave_threads_idle));
