/* Restore descriptors: what is encoded is decoded, and nothing else is. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/base/random.h"
#include "core/channel/channel_testing.h"

static hl_error err;

enum { PAGES = 3 + 1 + 5 };

static struct hl_wire_restore some_head(void)
{
    return (struct hl_wire_restore){.binding = 4,
                                    .lease_count = 3,
                                    .leases = {{.lease = 10, .page_count = 3},
                                               {.lease = 7, .page_count = 1},
                                               {.lease = 1ull << 60, .page_count = 5}}};
}

static unsigned char *encode(size_t *size)
{
    struct hl_wire_restore head = some_head();
    uint32_t pages[PAGES];
    for (uint32_t i = 0; i < PAGES; i++)
        pages[i] = 1000 - i;
    *size = hl_wire_restore_bytes(PAGES);
    unsigned char *bytes = malloc(*size);
    CU_ASSERT_PTR_NOT_NULL_FATAL(bytes);
    HL_REQUIRE_OK(hl_wire_restore_encode(&head, pages, PAGES, bytes, *size, &err), err);
    return bytes;
}

static void a_restore_is_decoded_as_it_was_encoded(void)
{
    struct hl_wire_restore head, sent = some_head();
    const uint32_t *pages = NULL;
    uint64_t count = 0;
    size_t size;
    unsigned char *bytes = encode(&size);
    CU_ASSERT_EQUAL(size % 8, 0);
    HL_REQUIRE_OK(hl_wire_restore_decode(bytes, size, &head, &pages, &count, &err), err);
    CU_ASSERT_EQUAL(memcmp(&head, &sent, sizeof head), 0);
    CU_ASSERT_EQUAL_FATAL(count, PAGES);
    for (uint32_t i = 0; i < PAGES; i++)
        CU_ASSERT_EQUAL(pages[i], 1000 - i);
    free(bytes);
}

static void the_largest_restore_fits_the_descriptor_memory(void)
{
    struct hl_wire_restore head = {.lease_count = HL_RESTORE_LEASES}, got;
    const uint32_t *pages;
    uint64_t count;
    for (uint32_t i = 0; i < HL_RESTORE_LEASES; i++) {
        head.leases[i].lease = i + 1;
        head.leases[i].page_count = HL_PLAN_BLOCKS / HL_RESTORE_LEASES;
    }
    size_t size = hl_wire_restore_bytes(HL_PLAN_BLOCKS);
    CU_ASSERT_TRUE(size <= HL_DESCRIPTOR_BYTES - HL_DESCRIPTOR_HEADER_BYTES);
    uint32_t *zeros = calloc(HL_PLAN_BLOCKS, sizeof *zeros);
    void *bytes = malloc(size);
    HL_REQUIRE_OK(hl_wire_restore_encode(&head, zeros, HL_PLAN_BLOCKS, bytes, size, &err), err);
    HL_REQUIRE_OK(hl_wire_restore_decode(bytes, size, &got, &pages, &count, &err), err);
    CU_ASSERT_EQUAL(count, HL_PLAN_BLOCKS);
    head.leases[5].page_count++; /* one block too many in all */
    HL_EXPECT_STATUS(hl_wire_restore_encode(&head, zeros, HL_PLAN_BLOCKS + 1, bytes, size, &err),
                     HL_E_INVALID, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "page_count is 1048577 over all leases"));
    memcpy(bytes, &head, sizeof head);
    HL_EXPECT_STATUS(hl_wire_restore_decode(bytes, size, &got, &pages, &count, &err), HL_E_PROTOCOL, err);
    CU_ASSERT_EQUAL(hl_wire_restore_bytes(HL_PLAN_BLOCKS + 1), 0);
    CU_ASSERT_EQUAL(hl_wire_restore_bytes(UINT64_MAX), 0);
    CU_ASSERT_EQUAL(hl_wire_restore_bytes(1), hl_wire_restore_bytes(2));
    free(zeros);
    free(bytes);
}

static void expect_not_decoded(unsigned char *bytes, size_t size, const char *text)
{
    struct hl_wire_restore head = {.binding = 77};
    const uint32_t *pages = NULL;
    uint64_t count = 77;
    err.text[0] = '\0';
    HL_EXPECT_STATUS(hl_wire_restore_decode(bytes, size, &head, &pages, &count, &err), HL_E_PROTOCOL, err);
    if (!strstr(err.text, text))
        fprintf(stderr, "expected \"%s\", got \"%s\"\n", text, err.text);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, text));
    CU_ASSERT_EQUAL(head.binding, 77);
    CU_ASSERT_PTR_NULL(pages);
    CU_ASSERT_EQUAL(count, 77);
}

static void each_hostile_field_of_a_restore_is_named(void)
{
    size_t size;
    unsigned char *bytes = encode(&size), *clean = encode(&size);
    struct hl_wire_restore *head = (struct hl_wire_restore *)(void *)bytes;
#define SPOIL(statement, text)                                                                               \
    do {                                                                                                     \
        statement;                                                                                           \
        expect_not_decoded(bytes, size, text);                                                               \
        memcpy(bytes, clean, size);                                                                          \
    } while (0)
    SPOIL(head->lease_count = 0, "lease_count is 0");
    SPOIL(head->lease_count = HL_RESTORE_LEASES + 1, "lease_count is 65");
    SPOIL(head->lease_count = UINT32_MAX, "lease_count is 4294967295");
    SPOIL(head->lease_count = 2, "leases is not zero from lease_count 2 on");
    SPOIL(head->lease_count = 4, "leases[3].lease is 0");
    SPOIL(head->leases[63].zero = 1, "leases is not zero from lease_count 3 on");
    SPOIL(head->leases[0].lease = 0, "leases[0].lease is 0");
    SPOIL(head->leases[2].lease = 10, "leases[2].lease is that of leases[0]");
    SPOIL(head->leases[1].page_count = 0, "leases[1].page_count is 0");
    SPOIL(head->leases[1].page_count = UINT32_MAX, "leases[1].page_count is 4294967295");
    SPOIL(head->leases[1].page_count = HL_PLAN_BLOCKS, "page_count is 1048584 over all leases");
    SPOIL(head->leases[1].page_count = 3, "11 pages need"); /* 10 would fit the padded size */
    SPOIL(head->leases[2].zero = 5, "leases[2].zero is 5");
    SPOIL(bytes[size - 1] = 1, "padding after the pages");
#undef SPOIL
    free(bytes);
    free(clean);
}

static void every_other_size_of_a_restore_is_refused(void)
{
    size_t size;
    unsigned char *bytes = encode(&size);
    struct hl_wire_restore head;
    const uint32_t *pages;
    uint64_t count;
    for (size_t cut = 0; cut < size; cut++) {
        unsigned char *less = malloc(cut + 1);
        memcpy(less, bytes, cut);
        expect_not_decoded(less, cut, "size is");
        free(less);
    }
    unsigned char *more = calloc(1, size + 8);
    memcpy(more, bytes, size);
    expect_not_decoded(more, size + 8, "size is");
    expect_not_decoded(more, size + 1, "size is");
    HL_EXPECT_STATUS(hl_wire_restore_decode(more + 4, size, &head, &pages, &count, &err), HL_E_INVALID, err);
    free(more);
    free(bytes);
}

static void random_restores_are_refused_or_harmless(void)
{
    size_t size;
    unsigned char *clean = encode(&size), *bytes = malloc(size);
    unsigned accepted = 0;
    hl_random random;
    hl_random_seed(&random, 11);
    for (int round = 0; round < 100000; round++) {
        struct hl_wire_restore head;
        const uint32_t *pages;
        uint64_t count = 0;
        memcpy(bytes, clean, size);
        for (uint64_t n = hl_random_below(&random, 4); n > 0; n--)
            bytes[hl_random_below(&random, n % 2 ? size : 64)] = (unsigned char)hl_random_next(&random);
        hl_status status = hl_wire_restore_decode(bytes, size, &head, &pages, &count, &err);
        CU_ASSERT_FATAL(status == HL_OK || status == HL_E_PROTOCOL);
        CU_ASSERT_FATAL(status != HL_OK || (count <= PAGES + 1 && pages == (uint32_t *)(void *)bytes + 258));
        accepted += status == HL_OK;
    }
    CU_ASSERT_TRUE(accepted > 1000 && accepted < 90000);
    free(bytes);
    free(clean);
}

static void a_restore_that_would_be_refused_is_not_encoded(void)
{
    struct hl_wire_restore head = some_head();
    uint32_t pages[PAGES] = {0};
    unsigned char bytes[2048] = {0x11};
    HL_EXPECT_STATUS(hl_wire_restore_encode(&head, pages, PAGES - 1, bytes, sizeof bytes, &err), HL_E_INVALID,
                     err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "page_count is 8, the leases' are 9"));
    HL_EXPECT_STATUS(hl_wire_restore_encode(&head, pages, PAGES, bytes, sizeof bytes, &err), HL_E_INVALID,
                     err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "size is 2048"));
    head.leases[9].lease = 1;
    HL_EXPECT_STATUS(hl_wire_restore_encode(&head, pages, PAGES, bytes, hl_wire_restore_bytes(PAGES), &err),
                     HL_E_INVALID, err);
    CU_ASSERT_EQUAL(bytes[0], 0x11);
}

HL_TESTS(wire_restore, HL_CASE(a_restore_is_decoded_as_it_was_encoded),
         HL_CASE(the_largest_restore_fits_the_descriptor_memory),
         HL_CASE(each_hostile_field_of_a_restore_is_named), HL_CASE(every_other_size_of_a_restore_is_refused),
         HL_CASE(random_restores_are_refused_or_harmless),
         HL_CASE(a_restore_that_would_be_refused_is_not_encoded));
