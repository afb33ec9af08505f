/* Peers of different versions part at the first message, and both numbers are in the error. */
#include <inttypes.h>
#include <stdio.h>

#include "core/channel/channel_testing.h"
#include "core/grant/grant.h"
#include "core/plan/plan.h"

static hl_error err;

static void this_version_accepts_itself(void)
{
    struct hl_packet packet = {.size = sizeof(struct hl_hello)};
    struct hl_hello *hello = (struct hl_hello *)(void *)packet.bytes;
    enum hl_message_kind kind;
    hl_hello_fill(hello, HL_PEER_TOOL, "status");
    HL_EXPECT_OK(hl_message_check(&packet, &kind, &err), err);
    CU_ASSERT_EQUAL(kind, HL_MESSAGE_HELLO);
    HL_EXPECT_OK(hl_hello_check(hello, &err), err);
    CU_ASSERT_EQUAL(hello->role, HL_PEER_TOOL);
    CU_ASSERT_STRING_EQUAL(hello->name, "status");
    CU_ASSERT_EQUAL(hello->head.sequence, 0);
}

static void the_versions_are_those_of_the_source_design(void)
{
    struct hl_hello hello;
    hl_hello_fill(&hello, HL_PEER_ENGINE, NULL);
    CU_ASSERT_EQUAL(hello.bootstrap_version, 7);
    CU_ASSERT_EQUAL(hello.channel_abi, 11);
    CU_ASSERT_EQUAL(hello.lifecycle, 4);
    CU_ASSERT_EQUAL(hello.cache_schema, 9);
    CU_ASSERT_EQUAL(hello.plan_version, HL_PLAN_VERSION);
    CU_ASSERT_EQUAL(hello.grant_schema, HL_GRANT_SCHEMA);
    CU_ASSERT_STRING_EQUAL(hello.name, "");
}

static void expect_difference(struct hl_hello *hello, uint32_t *version, const char *name)
{
    static const int64_t deltas[] = {-1, 1, 1000, INT32_MIN};
    uint32_t ours = *version;
    for (size_t i = 0; i < sizeof deltas / sizeof deltas[0]; i++) {
        char text[100];
        *version = (uint32_t)(ours + deltas[i]);
        HL_EXPECT_STATUS(hl_hello_check(hello, &err), HL_E_VERSION, err);
        snprintf(text, sizeof text, "%s is %" PRIu32 ", this side has %" PRIu32, name, *version, ours);
        CU_ASSERT_STRING_EQUAL(err.text, text);
        CU_ASSERT_EQUAL(err.status, HL_E_VERSION);
    }
    *version = ours;
    HL_EXPECT_OK(hl_hello_check(hello, &err), err);
}

static void each_version_that_differs_is_named_with_both_numbers(void)
{
    struct hl_hello hello;
    hl_hello_fill(&hello, HL_PEER_ENGINE, "engine");
    expect_difference(&hello, &hello.bootstrap_version, "bootstrap_version");
    expect_difference(&hello, &hello.channel_abi, "channel_abi");
    expect_difference(&hello, &hello.lifecycle, "lifecycle");
    expect_difference(&hello, &hello.plan_version, "plan_version");
    expect_difference(&hello, &hello.cache_schema, "cache_schema");
    expect_difference(&hello, &hello.grant_schema, "grant_schema");
}

static void another_layout_is_named_with_both_signatures(void)
{
    struct hl_hello hello;
    char text[200];
    hl_hello_fill(&hello, HL_PEER_ENGINE, "engine");
    for (int bit = 0; bit < 64; bit++) {
        uint64_t ours = hello.layout_signature;
        hello.layout_signature ^= 1ull << bit;
        HL_EXPECT_STATUS(hl_hello_check(&hello, &err), HL_E_VERSION, err);
        snprintf(text, sizeof text, "layout_signature is 0x%016" PRIx64 ", this side has 0x%016" PRIx64,
                 hello.layout_signature, ours);
        CU_ASSERT_STRING_EQUAL(err.text, text);
        hello.layout_signature = ours;
    }
}

static void of_two_differences_the_first_is_named(void)
{
    struct hl_hello hello;
    hl_hello_fill(&hello, HL_PEER_ENGINE, "engine");
    hello.layout_signature++;
    hello.cache_schema = 8;
    hello.lifecycle = 3;
    HL_EXPECT_STATUS(hl_hello_check(&hello, &err), HL_E_VERSION, err);
    CU_ASSERT_STRING_EQUAL(err.text, "lifecycle is 3, this side has 4");
}

/* Its HELLO may be longer or shorter and its other fields mean other things. */
static void another_bootstrap_version_is_told_apart_whatever_its_size(void)
{
    struct hl_packet packet;
    struct hl_hello *hello = (struct hl_hello *)(void *)packet.bytes;
    for (size_t size = sizeof(struct hl_message); size <= HL_MESSAGE_BYTES; size += 4) {
        enum hl_message_kind kind;
        memset(&packet, 0xa5, sizeof packet);
        packet.fd_count = 0;
        packet.size = size;
        hl_message_head(hello, HL_MESSAGE_HELLO, 0);
        hello->head.bytes = (uint32_t)size;
        hello->bootstrap_version = 6;
        HL_EXPECT_STATUS(hl_message_check(&packet, &kind, &err),
                         size < sizeof(struct hl_message) + 4 ? HL_E_PROTOCOL : HL_E_VERSION, err);
        if (size >= sizeof(struct hl_message) + 4)
            CU_ASSERT_STRING_EQUAL(err.text, "bootstrap_version is 6, this side has 7");
    }
}

static void a_name_is_cut_and_made_printable(void)
{
    struct hl_hello hello;
    char longer[100];
    memset(longer, 'n', sizeof longer);
    longer[99] = '\0';
    hl_hello_fill(&hello, HL_PEER_ENGINE, longer);
    CU_ASSERT_EQUAL(strlen(hello.name), sizeof hello.name - 1);
    hl_hello_fill(&hello, HL_PEER_ENGINE, "tab\there\x1b[31m");
    CU_ASSERT_STRING_EQUAL(hello.name, "tab?here?[31m");
}

static void the_signature_is_the_same_every_time(void)
{
    CU_ASSERT_EQUAL(hl_channel_layout_signature(), hl_channel_layout_signature());
    CU_ASSERT_NOT_EQUAL(hl_channel_layout_signature(), 0);
    CU_ASSERT_NOT_EQUAL(hl_channel_layout_signature(), hl_grant_layout_signature());
}

HL_TESTS(versions, HL_CASE(this_version_accepts_itself), HL_CASE(the_versions_are_those_of_the_source_design),
         HL_CASE(each_version_that_differs_is_named_with_both_numbers),
         HL_CASE(another_layout_is_named_with_both_signatures),
         HL_CASE(of_two_differences_the_first_is_named),
         HL_CASE(another_bootstrap_version_is_told_apart_whatever_its_size),
         HL_CASE(a_name_is_cut_and_made_printable), HL_CASE(the_signature_is_the_same_every_time));
