/* Headers of files: what concerns a file's size and reading it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/testing/cunit.h"
#include "core/weights/safetensors/safetensors_fixture.h"

#define GOLDEN "core/weights/safetensors/testdata/golden.safetensors"

enum { GOLDEN_BYTES = 232, GOLDEN_HEADER_BYTES = 192 };

static void read_golden(char bytes[GOLDEN_BYTES])
{
    int fd = open(GOLDEN, O_RDONLY | O_CLOEXEC);
    CU_ASSERT_TRUE_FATAL(fd >= 0);
    CU_ASSERT_EQUAL_FATAL(pread(fd, bytes, GOLDEN_BYTES, 0), GOLDEN_BYTES);
    close(fd);
}

/* Reads in both modes and expects the same status; returns the strict reader's result or NULL. */
static hl_safetensors *read_both(int fd, uint64_t file_bytes, hl_status expected, const char *says)
{
    hl_safetensors *strict = NULL, *tolerant = NULL;
    hl_error err = {0};
    HL_EXPECT_STATUS(hl_safetensors_read(fd, file_bytes, HL_SAFETENSORS_TOLERANT, &tolerant, &err), expected,
                     err);
    HL_EXPECT_STATUS(hl_safetensors_read(fd, file_bytes, HL_SAFETENSORS_STRICT, &strict, &err), expected,
                     err);
    CU_ASSERT_EQUAL(strict != NULL, expected == HL_OK);
    CU_ASSERT_EQUAL(tolerant != NULL, expected == HL_OK);
    if (expected != HL_OK && !strstr(err.text, says))
        fprintf(stderr, "'%s' does not say '%s'\n", err.text, says);
    CU_ASSERT_TRUE(expected == HL_OK || strstr(err.text, says));
    hl_safetensors_free(tolerant);
    return strict;
}

static void expect_refused(const void *bytes, size_t size, hl_status expected, const char *says)
{
    int fd = file_make(bytes, size);
    hl_safetensors_free(read_both(fd, size, expected, says));
    close(fd);
}

static void the_golden_file_is_read(void)
{
    char bytes[GOLDEN_BYTES];
    read_golden(bytes);
    int fd = file_make(bytes, sizeof bytes);
    hl_safetensors *parsed = read_both(fd, sizeof bytes, HL_OK, "");
    close(fd);
    CU_ASSERT_PTR_NOT_NULL_FATAL(parsed);
    require_sound(parsed);
    CU_ASSERT_EQUAL(parsed->data_offset, 200);
    CU_ASSERT_EQUAL(parsed->data_bytes, 32);
    CU_ASSERT_EQUAL_FATAL(parsed->tensor_count, 2);
    CU_ASSERT_STRING_EQUAL(parsed->tensors[0].name, "layer.scale");
    CU_ASSERT_STRING_EQUAL(parsed->tensors[1].name, "layer.weight");
    CU_ASSERT_EQUAL(parsed->tensors[1].dtype, HL_SAFETENSORS_BF16);
    CU_ASSERT_EQUAL(parsed->tensors[1].begin, 8);
    CU_ASSERT_EQUAL_FATAL(parsed->metadata_count, 2);
    CU_ASSERT_STRING_EQUAL(parsed->metadata[0].key, "format");
    CU_ASSERT_STRING_EQUAL(parsed->metadata[1].value, "1");
    hl_safetensors_free(parsed);
}

static void a_file_of_0_to_7_bytes_is_corrupt(void)
{
    for (size_t size = 0; size < 8; size++)
        expect_refused("\0\0\0\0\0\0\0", size, HL_E_CORRUPT, "no room for a header's length");
}

static void put_length(char bytes[8], uint64_t length)
{
    for (int i = 0; i < 8; i++)
        bytes[i] = (char)(length >> 8 * i & 0xff);
}

static void lengths_beyond_the_file_or_the_limit_are_refused(void)
{
    static const struct {
        const char *name;
        uint64_t length;
        hl_status expected;
        const char *says;
    } rows[] = {
        {"N = 1 more than the file holds", GOLDEN_BYTES - 8 + 1, HL_E_CORRUPT, "ends inside its header"},
        {"N = 100000000 on a short file", 100000000, HL_E_CORRUPT, "ends inside its header"},
        {"N = 100000001", 100000001, HL_E_LIMIT, "100000001 bytes, of which 100000000"},
        {"N = 2^63", 1ull << 63, HL_E_LIMIT, "of which 100000000"},
        {"N = 2^64 - 8", UINT64_MAX - 7, HL_E_LIMIT, "of which 100000000"},
        {"N = 2^64 - 1", UINT64_MAX, HL_E_LIMIT, "of which 100000000"},
        {"N = 0", 0, HL_E_CORRUPT, "byte 0"},
        {"N = the whole file", GOLDEN_BYTES - 8, HL_E_CORRUPT, "byte 192"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char bytes[GOLDEN_BYTES];
        read_golden(bytes);
        put_length(bytes, rows[i].length);
        expect_refused(bytes, sizeof bytes, rows[i].expected, rows[i].says);
    }
}

static void a_file_cut_at_any_byte_or_longer_by_one_is_refused(void)
{
    char bytes[GOLDEN_BYTES + 1] = {0};
    read_golden(bytes);
    for (size_t size = 0; size <= GOLDEN_BYTES + 1; size++) {
        if (size == GOLDEN_BYTES)
            continue;
        bool in_header = size < 8 + GOLDEN_HEADER_BYTES;
        expect_refused(bytes, size, in_header ? HL_E_CORRUPT : HL_E_RANGE, in_header ? "" : "end at 32 of");
    }
}

/* The header's text cut at each byte, in memory of exactly that size and with a file as large as it claims:
 * nothing behind it is read. */
static void a_header_cut_at_any_byte_is_corrupt_and_not_read_past(void)
{
    char bytes[GOLDEN_BYTES];
    read_golden(bytes);
    size_t text_bytes = GOLDEN_HEADER_BYTES;
    while (bytes[8 + text_bytes - 1] == ' ')
        text_bytes--;
    for (size_t size = 0; size < text_bytes; size++) {
        for (int mode = HL_SAFETENSORS_STRICT; mode <= HL_SAFETENSORS_TOLERANT; mode++) {
            struct header_text header = header_make(bytes + 8, size, false);
            hl_safetensors *parsed = NULL;
            hl_error err = {0};
            HL_EXPECT_STATUS(hl_safetensors_parse(header.bytes, header.size, 8 + header.size + 32,
                                                  (enum hl_safetensors_strictness)mode, &parsed, &err),
                             HL_E_CORRUPT, err);
            CU_ASSERT_PTR_NULL(parsed);
            header_free(&header);
        }
    }
}

static void a_header_in_memory_must_fit_its_limit_and_its_file(void)
{
    for (int mode = HL_SAFETENSORS_STRICT; mode <= HL_SAFETENSORS_TOLERANT; mode++) {
        enum hl_safetensors_strictness strictness = (enum hl_safetensors_strictness)mode;
        hl_safetensors *parsed = NULL;
        hl_error err = {0};
        HL_EXPECT_STATUS(hl_safetensors_parse("{}      ", HL_SAFETENSORS_HEADER_BYTES + 1, UINT64_MAX,
                                              strictness, &parsed, &err),
                         HL_E_LIMIT, err);
        HL_EXPECT_STATUS(hl_safetensors_parse("{}      ", 8, 15, strictness, &parsed, &err), HL_E_CORRUPT,
                         err);
        HL_EXPECT_STATUS(hl_safetensors_parse("{}      ", 8, 7, strictness, &parsed, &err), HL_E_CORRUPT,
                         err);
        HL_EXPECT_STATUS(hl_safetensors_parse("{}      ", 8, 0, strictness, &parsed, &err), HL_E_CORRUPT,
                         err);
        CU_ASSERT_PTR_NULL(parsed);
    }
}

/* The caller's size is a claim as the header is: a file cut after it was measured ends early. */
static void a_file_shorter_than_the_caller_says_is_corrupt(void)
{
    char bytes[GOLDEN_BYTES];
    read_golden(bytes);
    for (size_t size = 0; size < 8 + GOLDEN_HEADER_BYTES; size++) {
        int fd = file_make(bytes, size);
        hl_safetensors_free(read_both(fd, GOLDEN_BYTES, HL_E_CORRUPT, "inside its header"));
        close(fd);
    }
}

static void a_length_that_a_sparse_file_backs_is_read_and_found_corrupt(void)
{
    char length[8];
    put_length(length, 8 * HL_MIB);
    int fd = file_make(length, sizeof length);
    CU_ASSERT_EQUAL_FATAL(ftruncate(fd, (off_t)(8 + 8 * HL_MIB)), 0);
    hl_safetensors_free(read_both(fd, 8 + 8 * HL_MIB, HL_E_CORRUPT, "byte 0"));
    close(fd);
}

static void a_descriptor_that_cannot_be_read_gives_the_system_error(void)
{
    char bytes[GOLDEN_BYTES];
    hl_safetensors *parsed = NULL;
    hl_error err = {0};
    read_golden(bytes);
    int fd = file_make(bytes, sizeof bytes), pipe_fds[2] = {-1, -1};
    close(fd);
    HL_EXPECT_STATUS(hl_safetensors_read(fd, sizeof bytes, HL_SAFETENSORS_STRICT, &parsed, &err), HL_E_SYSTEM,
                     err);
    CU_ASSERT_EQUAL(err.sys_errno, EBADF);
    int directory = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CU_ASSERT_TRUE_FATAL(directory >= 0);
    HL_EXPECT_STATUS(hl_safetensors_read(directory, sizeof bytes, HL_SAFETENSORS_STRICT, &parsed, &err),
                     HL_E_SYSTEM, err);
    CU_ASSERT_EQUAL(err.sys_errno, EISDIR);
    close(directory);
    CU_ASSERT_EQUAL_FATAL(pipe2(pipe_fds, O_CLOEXEC), 0);
    HL_EXPECT_STATUS(hl_safetensors_read(pipe_fds[0], sizeof bytes, HL_SAFETENSORS_STRICT, &parsed, &err),
                     HL_E_SYSTEM, err);
    CU_ASSERT_EQUAL(err.sys_errno, ESPIPE);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    CU_ASSERT_PTR_NULL(parsed);
}

HL_TESTS(read, HL_CASE(the_golden_file_is_read), HL_CASE(a_file_of_0_to_7_bytes_is_corrupt),
         HL_CASE(lengths_beyond_the_file_or_the_limit_are_refused),
         HL_CASE(a_file_cut_at_any_byte_or_longer_by_one_is_refused),
         HL_CASE(a_header_cut_at_any_byte_is_corrupt_and_not_read_past),
         HL_CASE(a_header_in_memory_must_fit_its_limit_and_its_file),
         HL_CASE(a_file_shorter_than_the_caller_says_is_corrupt),
         HL_CASE(a_length_that_a_sparse_file_backs_is_read_and_found_corrupt),
         HL_CASE(a_descriptor_that_cannot_be_read_gives_the_system_error));
