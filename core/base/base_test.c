#include <stdio.h>
#include <string.h>

#include "core/base/checked.h"
#include "core/base/error.h"
#include "core/base/random.h"
#include "core/base/sha256.h"
#include "core/testing/cunit.h"

static void every_status_has_a_name_and_a_text(void)
{
    CU_ASSERT_STRING_EQUAL(hl_status_name(HL_OK), "OK");
    CU_ASSERT_STRING_EQUAL(hl_status_name(HL_E_CHECKSUM), "E_CHECKSUM");
    CU_ASSERT_STRING_EQUAL(hl_status_text(HL_E_OVERLAP), "two destinations overlap");
    CU_ASSERT_STRING_EQUAL(hl_status_name((hl_status)-999), "unknown");
    CU_ASSERT_STRING_EQUAL(hl_status_text((hl_status)-999), "unknown status");
}

static void an_error_keeps_its_codes_and_cuts_long_text(void)
{
    hl_error err = {0};
    CU_ASSERT_EQUAL(HL_FAIL_ERRNO(&err, HL_E_SYSTEM, "base.test", 2, "cannot open %s", "x"), HL_E_SYSTEM);
    CU_ASSERT_EQUAL(err.sys_errno, 2);
    CU_ASSERT_STRING_EQUAL(err.text, "cannot open x: No such file or directory");
    CU_ASSERT_EQUAL(HL_FAIL_DEVICE(&err, HL_E_DEVICE, "base.test", 700, "%0500d", 1), HL_E_DEVICE);
    CU_ASSERT_EQUAL(err.device_code, 700);
    CU_ASSERT_EQUAL(strlen(err.text), sizeof err.text - 1);
    CU_ASSERT_EQUAL(HL_FAIL(NULL, HL_E_RANGE, "base.test", "no one listens"), HL_E_RANGE);
}

static void checked_arithmetic_refuses_to_wrap(void)
{
    uint64_t out = 7;
    CU_ASSERT_TRUE(hl_add_u64(UINT64_MAX - 1, 1, &out));
    CU_ASSERT_FALSE(hl_add_u64(UINT64_MAX, 1, &out));
    CU_ASSERT_TRUE(hl_mul_u64(1ull << 32, (1ull << 32) - 1, &out));
    CU_ASSERT_FALSE(hl_mul_u64(1ull << 32, 1ull << 32, &out));
    CU_ASSERT_TRUE(hl_within(10, 6, 16));
    CU_ASSERT_FALSE(hl_within(10, 7, 16));
    CU_ASSERT_FALSE(hl_within(UINT64_MAX, 2, 16));
    CU_ASSERT_TRUE(hl_within(16, 0, 16));
    CU_ASSERT_EQUAL(hl_align_up(257, 256), 512);
    CU_ASSERT_FALSE(hl_is_pow2(0));
}

static void the_same_seed_gives_the_same_bytes(void)
{
    hl_random a, b;
    unsigned char x[21], y[21];
    hl_random_seed(&a, 42);
    hl_random_seed(&b, 42);
    hl_random_fill(&a, x, sizeof x);
    hl_random_fill(&b, y, sizeof y);
    CU_ASSERT_EQUAL(memcmp(x, y, sizeof x), 0);
    hl_random_seed(&b, 43);
    hl_random_fill(&b, y, sizeof y);
    CU_ASSERT_NOT_EQUAL(memcmp(x, y, sizeof x), 0);
}

static void a_permutation_holds_each_number_once(void)
{
    enum { N = 1000 };
    uint32_t order[N];
    unsigned char seen[N] = {0};
    hl_random random;
    hl_random_seed(&random, 1);
    hl_random_permutation(&random, order, N);
    unsigned moved = 0;
    for (unsigned i = 0; i < N; i++) {
        CU_ASSERT_FATAL(order[i] < N);
        seen[order[i]]++;
        moved += order[i] != i;
    }
    for (unsigned i = 0; i < N; i++)
        CU_ASSERT_EQUAL(seen[i], 1);
    CU_ASSERT_TRUE(moved > N / 2);
}

static void sha256_matches_the_published_vector(void)
{
    char hex[HL_SHA256_HEX_BYTES];
    hl_error err;
    HL_REQUIRE_OK(hl_sha256("abc", 3, hex, &err), err); /* FIPS 180-2, appendix B.1 */
    CU_ASSERT_STRING_EQUAL(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

static void sha256_of_a_missing_file_names_the_path(void)
{
    char hex[HL_SHA256_HEX_BYTES];
    hl_error err;
    CU_ASSERT_EQUAL(hl_sha256_file("/nonexistent/file", hex, &err), HL_E_SYSTEM);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "/nonexistent/file"));
    CU_ASSERT_EQUAL(hl_sha256_file("/", hex, &err), HL_E_SYSTEM); /* a directory opens, but cannot be read */
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "cannot read"));
}

static void sha256_of_a_file_equals_that_of_its_bytes(void)
{
    static const char path[] = "sha256_test.bin";
    static unsigned char bytes[200000];
    hl_random random;
    hl_random_seed(&random, 9);
    hl_random_fill(&random, bytes, sizeof bytes);
    FILE *file = fopen(path, "wb");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    CU_ASSERT_EQUAL(fwrite(bytes, 1, sizeof bytes, file), sizeof bytes);
    fclose(file);
    char whole[HL_SHA256_HEX_BYTES], read_back[HL_SHA256_HEX_BYTES];
    hl_error err;
    HL_REQUIRE_OK(hl_sha256(bytes, sizeof bytes, whole, &err), err);
    HL_REQUIRE_OK(hl_sha256_file(path, read_back, &err), err);
    CU_ASSERT_STRING_EQUAL(whole, read_back);
    remove(path);
}

HL_TESTS(base, HL_CASE(every_status_has_a_name_and_a_text),
         HL_CASE(an_error_keeps_its_codes_and_cuts_long_text), HL_CASE(checked_arithmetic_refuses_to_wrap),
         HL_CASE(the_same_seed_gives_the_same_bytes), HL_CASE(a_permutation_holds_each_number_once),
         HL_CASE(sha256_matches_the_published_vector), HL_CASE(sha256_of_a_missing_file_names_the_path),
         HL_CASE(sha256_of_a_file_equals_that_of_its_bytes));
