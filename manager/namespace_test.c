#include "manager/namespace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/testing/cunit.h"
#include "manager/index_testing.h"

enum { SCHEMA = 9, ELEMENT = 2 };

static const unsigned char digest[32] = {1, 2, 3};

/* A small model's cache: 4 KV heads over `tp_size` ranks. */
static hl_layout *make_layout(uint32_t tp_size, uint32_t tp_rank, int full_heads, uint32_t page_tokens)
{
    struct hl_model_geometry geometry = {
        .name = "small", .layers = 2, .kv_heads = 4, .head_dim = 64, .element_bytes = ELEMENT};
    struct hl_layout_options options = {.kind = HL_LAYOUT_SPLIT,
                                        .order = full_heads ? HL_BLOCK_TOKEN_MAJOR : HL_BLOCK_COMPONENT_MAJOR,
                                        .page_tokens = page_tokens,
                                        .pages = 4,
                                        .tp_size = tp_size,
                                        .tp_rank = tp_rank,
                                        .store_full_heads = full_heads};
    hl_layout *layout = NULL;
    hl_error err;
    HL_REQUIRE_OK(hl_layout_from_model(&geometry, &options, &layout, &err), err);
    return layout;
}

static hl_namespaces *open_namespaces(uint32_t most)
{
    hl_namespaces *namespaces = NULL;
    hl_error err;
    HL_REQUIRE_OK(hl_namespaces_create(most, NULL, &namespaces, &err), err);
    return namespaces;
}

/* Describes, interns, and frees the layout. */
static uint32_t id_of(hl_namespaces *namespaces, const char *model, uint32_t rank, hl_layout *layout)
{
    struct hl_namespace_key key;
    uint32_t id = 0;
    hl_error err;
    HL_REQUIRE_OK(hl_namespace_describe(model, digest, ELEMENT, rank, SCHEMA, layout, &key, &err), err);
    HL_REQUIRE_OK(hl_namespaces_intern(namespaces, &key, &id, &err), err);
    hl_layout_free(layout);
    return id;
}

static void ranks_that_fill_different_slots_of_a_block_are_apart(void)
{
    hl_namespaces *namespaces = open_namespaces(8);
    uint32_t id = id_of(namespaces, "m", 0, make_layout(2, 0, 1, 16));
    CU_ASSERT_EQUAL(id, 1);
    uint32_t other = id_of(namespaces, "m", 1, make_layout(2, 1, 1, 16));
    CU_ASSERT_NOT_EQUAL(other, id);
    /* The same rank number of another split fills another slot. */
    uint32_t finer = id_of(namespaces, "m", 1, make_layout(4, 1, 1, 16));
    CU_ASSERT_TRUE(finer != id && finer != other);
    CU_ASSERT_EQUAL(id_of(namespaces, "m", 0, make_layout(2, 0, 1, 16)), id);
    /* Of 8 ranks two replicate each of the 4 heads. */
    CU_ASSERT_EQUAL(id_of(namespaces, "m", 2, make_layout(8, 2, 1, 16)), finer);
    CU_ASSERT_EQUAL(id_of(namespaces, "m", 3, make_layout(8, 3, 1, 16)), finer);
    CU_ASSERT_EQUAL(hl_namespaces_count(namespaces), 3);
    hl_namespaces_destroy(namespaces);
}

static void ranks_that_store_their_own_heads_are_apart(void)
{
    hl_namespaces *namespaces = open_namespaces(8);
    uint32_t first = id_of(namespaces, "m", 0, make_layout(2, 0, 0, 16));
    CU_ASSERT_NOT_EQUAL(id_of(namespaces, "m", 1, make_layout(2, 1, 0, 16)), first);
    CU_ASSERT_EQUAL(id_of(namespaces, "m", 0, make_layout(2, 0, 0, 16)), first);
    /* Of 8 ranks two replicate each head: these two have the same blocks. */
    uint32_t replica = id_of(namespaces, "m", 2, make_layout(8, 2, 0, 16));
    CU_ASSERT_EQUAL(id_of(namespaces, "m", 3, make_layout(8, 3, 0, 16)), replica);
    CU_ASSERT_NOT_EQUAL(id_of(namespaces, "m", 4, make_layout(8, 4, 0, 16)), replica);
    hl_namespaces_destroy(namespaces);
}

static void a_layout_that_does_not_say_keeps_ranks_apart(void)
{
    hl_namespaces *namespaces = open_namespaces(8);
    hl_layout *silent[3];
    for (unsigned i = 0; i < 3; i++) {
        silent[i] = make_layout(2, i % 2, 0, 16);
        memset(&silent[i]->content, 0, sizeof silent[i]->content);
    }
    uint32_t first = id_of(namespaces, "m", 0, silent[0]);
    CU_ASSERT_NOT_EQUAL(id_of(namespaces, "m", 1, silent[1]), first);
    CU_ASSERT_EQUAL(id_of(namespaces, "m", 0, silent[2]), first);
    hl_namespaces_destroy(namespaces);
}

static void every_fact_of_a_key_counts(void)
{
    hl_namespaces *namespaces = open_namespaces(16);
    hl_layout *layout = make_layout(1, 0, 0, 16);
    struct hl_namespace_key key, other[10];
    uint32_t id = 0, its = 0;
    hl_error err;
    HL_REQUIRE_OK(hl_namespace_describe("model", digest, ELEMENT, 0, SCHEMA, layout, &key, &err), err);
    CU_ASSERT_EQUAL(key.rank, HL_NAMESPACE_EVERY_RANK);
    HL_REQUIRE_OK(hl_namespaces_intern(namespaces, &key, &id, &err), err);
    for (unsigned i = 0; i < 10; i++)
        other[i] = key;
    strcpy(other[0].model, "mode");
    other[1].model_digest[31] ^= 1;
    other[2].block_digest[63] = other[2].block_digest[63] == '0' ? '1' : '0';
    other[3].element_bytes = 1;
    other[4].rank = 0;
    other[5].cache_schema = SCHEMA + 1;
    strcpy(other[6].model, "model\nmodel_digest 00"); /* text that looks like the next line */
    other[7].slot_first_head = 1;
    other[8].slot_heads = 1;
    other[9] = other[8];
    for (unsigned i = 0; i < 9; i++) {
        HL_REQUIRE_OK(hl_namespaces_intern(namespaces, &other[i], &its, &err), err);
        CU_ASSERT_EQUAL(its, i + 2);
    }
    HL_REQUIRE_OK(hl_namespaces_intern(namespaces, &other[9], &its, &err), err);
    CU_ASSERT_EQUAL(its, 10);
    HL_REQUIRE_OK(hl_namespaces_intern(namespaces, &key, &its, &err), err);
    CU_ASSERT_EQUAL(its, id);
    hl_layout_free(layout);
    layout = make_layout(1, 0, 0, 32);
    CU_ASSERT_EQUAL(id_of(namespaces, "model", 0, layout), 11);
    hl_namespaces_destroy(namespaces);
}

static void what_a_binding_may_not_say_is_named(void)
{
    hl_layout *layout = make_layout(1, 0, 0, 16);
    struct hl_namespace_key key = {.rank = 77};
    char endless[HL_NAME_BYTES];
    hl_error err;
    memset(endless, 'x', sizeof endless);
    HL_EXPECT_STATUS(hl_namespace_describe("", digest, 2, 0, SCHEMA, layout, &key, &err), HL_E_INVALID, err);
    CU_ASSERT_STRING_EQUAL(err.text, "model is empty");
    HL_EXPECT_STATUS(hl_namespace_describe(endless, digest, 2, 0, SCHEMA, layout, &key, &err), HL_E_INVALID,
                     err);
    CU_ASSERT_STRING_EQUAL(err.text, "model is not terminated");
    HL_EXPECT_STATUS(hl_namespace_describe("m", digest, 0, 0, SCHEMA, layout, &key, &err), HL_E_INVALID, err);
    CU_ASSERT_STRING_EQUAL(err.text, "element_bytes is 0");
    HL_EXPECT_STATUS(hl_namespace_describe("m", digest, 2, 0, 0, layout, &key, &err), HL_E_INVALID, err);
    CU_ASSERT_STRING_EQUAL(err.text, "cache_schema is 0");
    HL_EXPECT_STATUS(hl_namespace_describe("m", digest, 4, 0, SCHEMA, layout, &key, &err), HL_E_INVALID, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "content says 2"));
    CU_ASSERT_EQUAL(key.rank, 77);
    hl_layout_free(layout);
}

static void text_that_is_not_terminated_is_refused(void)
{
    hl_namespaces *namespaces = open_namespaces(4);
    struct hl_namespace_key key = {.model = "m"};
    uint32_t id = 99;
    hl_error err;
    HL_EXPECT_STATUS(hl_namespaces_intern(namespaces, &key, &id, &err), HL_E_INVALID, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "block_digest"));
    memset(key.block_digest, 'a', sizeof key.block_digest);
    HL_EXPECT_STATUS(hl_namespaces_intern(namespaces, &key, &id, &err), HL_E_INVALID, err);
    key.block_digest[64] = 0;
    memset(key.model, 'm', sizeof key.model);
    HL_EXPECT_STATUS(hl_namespaces_intern(namespaces, &key, &id, &err), HL_E_INVALID, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "model"));
    CU_ASSERT_TRUE(id == 99 && hl_namespaces_count(namespaces) == 0);
    key.model[HL_NAME_BYTES - 1] = 0; /* the longest */
    HL_EXPECT_OK(hl_namespaces_intern(namespaces, &key, &id, &err), err);
    hl_namespaces_destroy(namespaces);
}

static void there_are_only_so_many_namespaces(void)
{
    hl_namespaces *namespaces = open_namespaces(2);
    struct hl_namespace_key key = {.model = "m"};
    uint32_t id = 0;
    hl_error err;
    memset(key.block_digest, 'a', 64);
    for (unsigned i = 0; i < 2; i++) {
        key.element_bytes = i;
        HL_EXPECT_OK(hl_namespaces_intern(namespaces, &key, &id, &err), err);
        CU_ASSERT_EQUAL(id, i + 1);
    }
    key.element_bytes = 2;
    HL_EXPECT_STATUS(hl_namespaces_intern(namespaces, &key, &id, &err), HL_E_LIMIT, err);
    CU_ASSERT_EQUAL(id, 2);
    key.element_bytes = 0; /* one that is there needs no room */
    HL_EXPECT_OK(hl_namespaces_intern(namespaces, &key, &id, &err), err);
    CU_ASSERT_EQUAL(id, 1);
    CU_ASSERT_EQUAL(strlen(hl_namespaces_digest(namespaces, 2)), 64);
    CU_ASSERT_STRING_NOT_EQUAL(hl_namespaces_digest(namespaces, 1), hl_namespaces_digest(namespaces, 2));
    CU_ASSERT_PTR_NULL(hl_namespaces_digest(namespaces, 0));
    CU_ASSERT_PTR_NULL(hl_namespaces_digest(namespaces, 3));
    hl_namespaces_destroy(namespaces);
}

static void bounds_and_missing_memory_are_typed(void)
{
    hl_namespaces *namespaces = NULL;
    struct test_memory memory;
    hl_error err;
    test_memory_open(&memory);
    HL_EXPECT_STATUS(hl_namespaces_create(0, NULL, &namespaces, &err), HL_E_INVALID, err);
    HL_EXPECT_STATUS(hl_namespaces_create(HL_NAMESPACES_MOST + 1, NULL, &namespaces, &err), HL_E_LIMIT, err);
    for (unsigned refuse = 1; refuse <= 2; refuse++) {
        memory.refuse = refuse;
        HL_EXPECT_STATUS(hl_namespaces_create(4, &memory.memory, &namespaces, &err), HL_E_NOMEM, err);
        CU_ASSERT_TRUE(memory.pieces == 0 && namespaces == NULL);
    }
    HL_EXPECT_OK(hl_namespaces_create(4, &memory.memory, &namespaces, &err), err);
    hl_namespaces_destroy(namespaces);
    CU_ASSERT_TRUE(memory.pieces == 0 && memory.bytes == 0);
    hl_namespaces_destroy(NULL);
}

HL_TESTS(namespace, HL_CASE(ranks_that_fill_different_slots_of_a_block_are_apart),
         HL_CASE(ranks_that_store_their_own_heads_are_apart),
         HL_CASE(a_layout_that_does_not_say_keeps_ranks_apart), HL_CASE(every_fact_of_a_key_counts),
         HL_CASE(what_a_binding_may_not_say_is_named), HL_CASE(text_that_is_not_terminated_is_refused),
         HL_CASE(there_are_only_so_many_namespaces), HL_CASE(bounds_and_missing_memory_are_typed));
