#include <stdio.h>
#include <string.h>

#include "core/base/sha256.h"
#include "core/layout/layout.h"
#include "core/testing/cunit.h"

static const struct hl_model_geometry small = {
    .name = "small", .layers = 4, .kv_heads = 4, .head_dim = 8, .value_head_dim = 8, .element_bytes = 2};
static const struct hl_layout_options plain = {.kind = HL_LAYOUT_SPLIT, .page_tokens = 16, .pages = 8};

static hl_layout *lay_out(const struct hl_model_geometry *geometry, const struct hl_layout_options *options)
{
    hl_layout *layout = NULL;
    hl_error err;
    HL_REQUIRE_OK(hl_layout_from_model(geometry, options, &layout, &err), err);
    return layout;
}

static const char *digest(const struct hl_model_geometry *geometry, struct hl_layout_options options)
{
    static char hex[8][HL_SHA256_HEX_BYTES];
    static unsigned next;
    char *mine = hex[next++ % 8];
    hl_error err;
    hl_layout *layout = lay_out(geometry, &options);
    HL_EXPECT_OK(hl_layout_block_digest(layout, mine, &err), err);
    CU_ASSERT_EQUAL(strlen(mine), 64);
    hl_layout_free(layout);
    return mine;
}

static void kinds_that_store_the_same_block_share_a_digest(void)
{
    struct hl_layout_options o = plain;
    const char *split = digest(&small, o);
    o.kind = HL_LAYOUT_CONTIGUOUS;
    CU_ASSERT_STRING_EQUAL(digest(&small, o), split);
    o.kind = HL_LAYOUT_PAGE_FIRST;
    CU_ASSERT_STRING_EQUAL(digest(&small, o), split);
    o.pages = 99;
    CU_ASSERT_STRING_EQUAL(digest(&small, o), split);
    o.kind = HL_LAYOUT_FUSED;
    CU_ASSERT_STRING_NOT_EQUAL(digest(&small, o), split);
}

static void all_ranks_that_store_full_heads_share_a_digest(void)
{
    for (int kind = HL_LAYOUT_CONTIGUOUS; kind <= HL_LAYOUT_FUSED; kind++)
        for (int order = 0; order < 2; order++) {
            struct hl_layout_options o = plain;
            o.kind = (enum hl_layout_kind)kind;
            o.order = (enum hl_block_order)order;
            o.store_full_heads = 1;
            const char *whole = digest(&small, o);
            for (o.tp_size = 2; o.tp_size <= 8; o.tp_size *= 2)
                for (o.tp_rank = 0; o.tp_rank < o.tp_size; o.tp_rank++)
                    CU_ASSERT_STRING_EQUAL(digest(&small, o), whole);
        }
}

static void ranks_that_store_their_own_heads_share_a_digest_with_replicas_only(void)
{
    struct hl_layout_options o = plain;
    const char *whole = digest(&small, o);
    o.tp_size = 8; /* two ranks a head */
    const char *first = digest(&small, o);
    CU_ASSERT_STRING_NOT_EQUAL(first, whole);
    o.tp_rank = 1;
    CU_ASSERT_STRING_EQUAL(digest(&small, o), first);
    o.tp_rank = 2;
    CU_ASSERT_STRING_NOT_EQUAL(digest(&small, o), first);
}

static void what_moves_bytes_in_a_block_changes_the_digest(void)
{
    const char *base = digest(&small, plain);
    struct hl_layout_options o = plain;
    o.page_tokens = 32;
    CU_ASSERT_STRING_NOT_EQUAL(digest(&small, o), base);
    o.element_bytes = 1; /* 32 tokens of 1 byte are as long as 16 of 2 */
    CU_ASSERT_STRING_NOT_EQUAL(digest(&small, o), base);
    o = plain;
    o.order = HL_BLOCK_TOKEN_MAJOR;
    CU_ASSERT_STRING_NOT_EQUAL(digest(&small, o), base);
    struct hl_model_geometry g = small;
    g.kv_heads = 8;
    CU_ASSERT_STRING_NOT_EQUAL(digest(&g, plain), base);
    g.head_dim = g.value_head_dim = 4; /* twice the heads of half the dim are as long */
    CU_ASSERT_STRING_NOT_EQUAL(digest(&g, plain), base);
    g = small;
    g.layers = 5;
    CU_ASSERT_STRING_NOT_EQUAL(digest(&g, plain), base);
    g = small;
    g.sliding[1] = 1;
    g.window_tokens = 64;
    const char *hybrid = digest(&g, plain);
    CU_ASSERT_STRING_NOT_EQUAL(hybrid, base);
    g.window_tokens = 128;
    CU_ASSERT_STRING_EQUAL(digest(&g, plain), hybrid);
}

/* The value was computed from the text by another program. */
static void the_digest_does_not_change_between_releases(void)
{
    CU_ASSERT_STRING_EQUAL(digest(&small, plain),
                           "f86df880a78eda0c938e2ff60b469f152d128482f559297976c312e23620262e");
}

static void kinds_have_names_that_parse(void)
{
    hl_error err;
    enum hl_layout_kind kind;
    for (int i = HL_LAYOUT_CONTIGUOUS; i <= HL_LAYOUT_PAGE_FIRST; i++) {
        HL_EXPECT_OK(hl_layout_kind_parse(hl_layout_kind_name((enum hl_layout_kind)i), &kind, &err), err);
        CU_ASSERT_EQUAL((int)kind, i);
    }
    CU_ASSERT_STRING_EQUAL(hl_layout_kind_name(HL_LAYOUT_PAGE_FIRST), "page-first");
    CU_ASSERT_STRING_EQUAL(hl_layout_kind_name((enum hl_layout_kind)9), "unknown");
    CU_ASSERT_STRING_EQUAL(hl_layout_role_name(HL_ROLE_STATE), "state");
    CU_ASSERT_STRING_EQUAL(hl_layout_role_name((enum hl_role)9), "unknown");
    CU_ASSERT_EQUAL(hl_layout_kind_parse("Split", &kind, &err), HL_E_INVALID);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "Split"));
    CU_ASSERT_EQUAL(hl_layout_kind_parse(NULL, &kind, &err), HL_E_INVALID);
    CU_ASSERT_EQUAL((int)kind, HL_LAYOUT_PAGE_FIRST);
}

HL_TESTS(layout_digest, HL_CASE(kinds_that_store_the_same_block_share_a_digest),
         HL_CASE(all_ranks_that_store_full_heads_share_a_digest),
         HL_CASE(ranks_that_store_their_own_heads_share_a_digest_with_replicas_only),
         HL_CASE(what_moves_bytes_in_a_block_changes_the_digest),
         HL_CASE(the_digest_does_not_change_between_releases), HL_CASE(kinds_have_names_that_parse));
