/* What a compilation refuses, and the order and completeness of what it makes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/plan/memory.h"
#include "core/plan/plan_fixture.h"
#include "core/testing/cunit.h"

/* Two layers of split K and V, four pages, two blocks, each in its own allocation. */
struct scene {
    struct hl_layout_component components[4];
    struct hl_layout_tensor tensors[4];
    hl_layout layout;
    struct hl_plan_block blocks[4];
    struct hl_plan_request request;
};

static void set_scene(struct scene *s)
{
    memset(s, 0, sizeof *s);
    for (uint32_t i = 0; i < 4; i++) {
        s->tensors[i] = (struct hl_layout_tensor){.bytes = 4 * 64, .name = "tensor"};
        s->components[i] = (struct hl_layout_component){.layer = i / 2,
                                                        .tensor = i,
                                                        .role = i % 2 ? HL_ROLE_V : HL_ROLE_K,
                                                        .page_stride = 64,
                                                        .row_bytes = 64,
                                                        .row_stride = 64,
                                                        .rows = 1,
                                                        .block_offset = i * 64,
                                                        .block_row_stride = 64};
        s->blocks[i] = (struct hl_plan_block){.arena_id = 7,
                                              .allocation_id = 1 + i,
                                              .allocation_offset = i * 1024,
                                              .allocation_bytes = 256,
                                              .block_offset = i * 1024,
                                              .page = 3 - i};
    }
    s->layout = (hl_layout){.layers = 2,
                            .page_tokens = 1,
                            .component_count = 4,
                            .tensor_count = 4,
                            .group_count = 1,
                            .components = s->components,
                            .tensors = s->tensors,
                            .groups = {{.pages = 4, .block_bytes = 256}}};
    s->request = (struct hl_plan_request){.layout = &s->layout, .blocks = s->blocks, .block_count = 2};
}

static struct hl_plan_part part_of(const hl_plan *plan, size_t index)
{
    size_t size;
    struct hl_plan_part part = {0};
    hl_error err;
    const void *bytes = hl_plan_part_bytes(plan, index, &size);
    HL_REQUIRE_OK(hl_plan_decode(bytes, size, &part, &err), err);
    return part;
}

static void expect_refused(struct scene *s, hl_status status, const char *text)
{
    hl_plan *plan = (hl_plan *)s; /* must be left alone */
    hl_error err = {0};
    hl_status got = hl_plan_compile(&s->request, &plan, &err);
    if (got != status || !strstr(err.text, text))
        fprintf(stderr, "got %s, %s; expected %s, %s\n", hl_status_name(got), err.text,
                hl_status_name(status), text);
    CU_ASSERT_EQUAL(got, status);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, text));
    CU_ASSERT_PTR_EQUAL(plan, (hl_plan *)s);
    CU_ASSERT_EQUAL(hl_plan_compile(&s->request, &plan, NULL), status);
}

#define EXPECT_REFUSED(field, value, status, text)                                                           \
    do {                                                                                                     \
        struct scene s;                                                                                      \
        set_scene(&s);                                                                                       \
        s.field = (value);                                                                                   \
        expect_refused(&s, (status), (text));                                                                \
    } while (0)

static void every_field_of_the_request_is_checked(void)
{
    EXPECT_REFUSED(request.layout, NULL, HL_E_INVALID, "layout");
    EXPECT_REFUSED(request.blocks, NULL, HL_E_INVALID, "blocks");
    EXPECT_REFUSED(request.block_count, HL_PLAN_BLOCKS + 1ull, HL_E_LIMIT, "block_count");
    EXPECT_REFUSED(request.part_bytes, 319, HL_E_INVALID, "part_bytes");
    EXPECT_REFUSED(request.part_bytes, HL_PLAN_PART_BYTES + 1, HL_E_INVALID, "part_bytes");
    EXPECT_REFUSED(request.first_part_bytes, 319, HL_E_INVALID, "first_part_bytes");
    EXPECT_REFUSED(request.first_part_bytes, HL_PLAN_PART_BYTES + 1, HL_E_INVALID, "first_part_bytes");
    EXPECT_REFUSED(request.metadata_bytes, HL_PLAN_OPERATION_BYTES + 1, HL_E_INVALID, "metadata_bytes");
}

static void every_field_of_a_block_is_checked(void)
{
    EXPECT_REFUSED(blocks[1].arena_id, 0, HL_E_INVALID, "block 1: arena_id");
    EXPECT_REFUSED(blocks[1].allocation_id, 0, HL_E_INVALID, "block 1: allocation_id");
    EXPECT_REFUSED(blocks[1].group, 1, HL_E_RANGE, "block 1: group");
    EXPECT_REFUSED(blocks[1].group, UINT32_MAX, HL_E_RANGE, "block 1: group");
    EXPECT_REFUSED(blocks[1].page, 4, HL_E_RANGE, "block 1: page");
    EXPECT_REFUSED(blocks[1].allocation_bytes, 0, HL_E_INVALID, "block 1: allocation_bytes");
    EXPECT_REFUSED(blocks[1].allocation_bytes, UINT64_MAX, HL_E_OVERFLOW, "block 1: allocation_offset");
    EXPECT_REFUSED(blocks[1].allocation_bytes, 255, HL_E_RANGE, "block 1: block_offset");
    EXPECT_REFUSED(blocks[1].block_offset, 1023, HL_E_RANGE, "block 1: block_offset");
    EXPECT_REFUSED(blocks[1].block_offset, 1025, HL_E_RANGE, "block 1: block_offset");
    EXPECT_REFUSED(blocks[1].block_offset, UINT64_MAX, HL_E_RANGE, "block 1: block_offset");
    EXPECT_REFUSED(request.chunk_bytes, 1100, HL_E_RANGE, "block 1: its allocation");
    EXPECT_REFUSED(blocks[1].allocation_id, 1, HL_E_INVALID,
                   "block 0: allocation_offset or allocation_bytes");
}

static void every_bound_of_the_layout_is_checked(void)
{
    EXPECT_REFUSED(layout.layers, 0, HL_E_INVALID, "layers");
    EXPECT_REFUSED(layout.layers, HL_LAYOUT_LAYERS + 1, HL_E_INVALID, "layers");
    EXPECT_REFUSED(layout.layers, 1, HL_E_INVALID, "component 2: layer");
    EXPECT_REFUSED(layout.component_count, HL_LAYOUT_COMPONENTS + 1, HL_E_INVALID, "component_count");
    EXPECT_REFUSED(layout.components, NULL, HL_E_INVALID, "component_count");
    EXPECT_REFUSED(layout.tensor_count, HL_LAYOUT_TENSORS + 1, HL_E_INVALID, "tensor_count");
    EXPECT_REFUSED(layout.tensors, NULL, HL_E_INVALID, "tensor_count");
    EXPECT_REFUSED(layout.group_count, HL_LAYOUT_GROUPS + 1, HL_E_INVALID, "group_count");
    EXPECT_REFUSED(layout.groups[0].pages, 0, HL_E_INVALID, "group 0: pages");
    EXPECT_REFUSED(layout.groups[0].block_bytes, 255, HL_E_RANGE, "component 3: its rows");
    EXPECT_REFUSED(layout.tensor_count, 3, HL_E_INVALID, "component 3: tensor");
}

static void every_bound_of_a_component_is_checked(void)
{
    EXPECT_REFUSED(components[0].layer, 1, HL_E_INVALID, "component 1: layer");
    EXPECT_REFUSED(components[1].layer, 2, HL_E_INVALID, "component 1: layer");
    EXPECT_REFUSED(components[1].group, 1, HL_E_INVALID, "component 1: group");
    EXPECT_REFUSED(components[1].tensor, 4, HL_E_INVALID, "component 1: tensor");
    EXPECT_REFUSED(components[1].rows, 0, HL_E_INVALID, "component 1: rows");
    EXPECT_REFUSED(components[1].row_bytes, 0, HL_E_INVALID, "component 1: row_bytes");
    EXPECT_REFUSED(components[1].row_bytes, 65, HL_E_RANGE, "component 1: its pages");
    EXPECT_REFUSED(components[1].offset, 1, HL_E_RANGE, "component 1: its pages");
    EXPECT_REFUSED(components[1].offset, UINT64_MAX, HL_E_RANGE, "component 1: its pages");
    EXPECT_REFUSED(components[1].page_stride, UINT64_MAX, HL_E_RANGE, "component 1: its pages");
    EXPECT_REFUSED(components[1].rows, UINT32_MAX, HL_E_RANGE, "component 1: its pages");
    EXPECT_REFUSED(components[1].block_offset, 193, HL_E_RANGE, "component 1: its rows");
    EXPECT_REFUSED(components[1].block_offset, UINT64_MAX - 63, HL_E_RANGE, "component 1: its rows");
}

static void two_blocks_with_one_page_are_refused_by_index(void)
{
    struct scene s;
    set_scene(&s);
    s.request.block_count = 4;
    s.blocks[3].page = s.blocks[1].page;
    expect_refused(&s, HL_E_OVERLAP, "block 1 and block 3 write page 2 of group 0");
}

static void components_that_share_bytes_are_refused_by_index(void)
{
    struct scene s;
    set_scene(&s);
    s.components[3].tensor = 0; /* the second layer's V over the first layer's K */
    expect_refused(&s, HL_E_OVERLAP,
                   "component 0 of block 1 and component 3 of block 1 overlap at byte 128 of tensor 0");
    s.tensors[0].bytes =
        8 * 64; /* one page further on, with other pages between: only page 2 of one is page 3 of the other */
    s.components[3].offset = 64;
    expect_refused(&s, HL_E_OVERLAP, "component 0 of block 0 and component 3 of block 1 overlap at byte 192");
    s.components[3].offset = 63 + 64; /* by one byte */
    expect_refused(&s, HL_E_OVERLAP, "overlap at byte 255");
    s.components[3].offset = 128; /* apart */
    hl_plan *plan;
    hl_error err;
    HL_REQUIRE_OK(hl_plan_compile(&s.request, &plan, &err), err);
    hl_plan_free(plan);
}

static void a_component_that_overlaps_itself_is_refused(void)
{
    struct scene s;
    set_scene(&s);
    s.components[2].page_stride = 63;
    expect_refused(&s, HL_E_OVERLAP, "component 2 of block 1 and component 2 of block 0");
    s.request.block_count = 1; /* one page cannot meet another */
    hl_plan *plan;
    hl_error err;
    HL_REQUIRE_OK(hl_plan_compile(&s.request, &plan, &err), err);
    hl_plan_free(plan);
    s.components[2].rows = 2; /* its own rows can */
    s.components[2].row_bytes = 32;
    s.components[2].row_stride = 31;
    expect_refused(&s, HL_E_OVERLAP, "component 2 of block 0 and component 2 of block 0");
}

static void groups_may_share_a_tensor_but_no_page_of_it(void)
{
    struct scene s;
    set_scene(&s);
    for (uint32_t i = 2; i < 4; i++) {
        s.components[i].group = 1;
        s.components[i].tensor = i - 2;
    }
    s.layout.group_count = 2;
    s.layout.groups[1] = s.layout.groups[0];
    s.request.block_count = 3;
    s.blocks[2].group = 1;
    hl_plan *plan;
    hl_error err;
    HL_REQUIRE_OK(hl_plan_compile(&s.request, &plan, &err), err);
    hl_plan_free(plan);
    s.blocks[2].page = 3;
    expect_refused(&s, HL_E_OVERLAP,
                   "component 0 of block 0 and component 2 of block 2 overlap at byte 192 of tensor 0");
}

static void a_plan_of_no_blocks_completes_every_layer(void)
{
    struct scene s;
    set_scene(&s);
    s.request.blocks = NULL;
    s.request.block_count = 0;
    hl_plan *plan;
    hl_error err;
    HL_REQUIRE_OK(hl_plan_compile(&s.request, &plan, &err), err);
    CU_ASSERT_EQUAL(hl_plan_part_count(plan), 1);
    struct hl_plan_part part = part_of(plan, 0);
    CU_ASSERT_EQUAL(part.header->section_count, 2);
    CU_ASSERT_EQUAL(part.header->range_count + part.header->run_count + part.header->allocation_count, 0);
    for (uint32_t i = 0; i < 2; i++) {
        CU_ASSERT_EQUAL(part.sections[i].layer, i);
        CU_ASSERT_EQUAL(part.sections[i].flags, HL_PLAN_LAYER_LAST);
    }
    struct hl_plan_stats stats;
    hl_plan_get_stats(plan, &stats);
    CU_ASSERT_EQUAL(stats.metadata_bytes, 96 + 2 * 32);
    CU_ASSERT_EQUAL(stats.payload_bytes, 0);
    hl_plan_free(plan);
    hl_plan_free(NULL);
}

static void a_layer_writes_k_before_v_and_pages_in_order(void)
{
    struct scene s;
    set_scene(&s);
    for (uint32_t i = 0; i < 4; i++) { /* one tensor a layer: all K pages, then all V pages */
        s.components[i].tensor = i / 2;
        s.components[i].offset = i % 2 * 256;
        s.tensors[i].bytes = 512;
    }
    s.request.block_count = 3; /* too few for a run; pages 3, 2, 1 */
    s.request.identity =
        (struct hl_plan_identity){.epoch = 1, .token = "fifteen letters", .record = 2, .generation = 3};
    hl_plan *plan;
    hl_error err;
    HL_REQUIRE_OK(hl_plan_compile(&s.request, &plan, &err), err);
    struct hl_plan_part part = part_of(plan, 0);
    CU_ASSERT_EQUAL(memcmp(&part.header->identity, &s.request.identity, sizeof s.request.identity), 0);
    CU_ASSERT_EQUAL_FATAL(part.header->section_count, 2);
    CU_ASSERT_EQUAL_FATAL(part.header->range_count, 12);
    static const uint64_t dst[] = {64, 128, 192, 320, 384, 448};
    for (uint32_t i = 0; i < 12; i++) {
        const struct hl_plan_range *r = &part.ranges[i];
        uint64_t block = 2 - i % 3, component = i / 3; /* K0 V0 K1 V1 */
        CU_ASSERT_EQUAL(r->dst, dst[i % 6]);
        CU_ASSERT_EQUAL(r->src, block * 1024 + component * 64);
        CU_ASSERT_EQUAL(part.allocations[r->allocation].allocation_id, 1 + block);
    }
    hl_plan_free(plan);
}

static void a_part_lists_only_the_allocations_it_uses(void)
{
    struct scene s;
    set_scene(&s);
    s.request.block_count = 4;
    s.request.part_bytes = 320;
    hl_plan *plan;
    hl_error err;
    HL_REQUIRE_OK(hl_plan_compile(&s.request, &plan, &err), err);
    CU_ASSERT_TRUE(hl_plan_part_count(plan) >= 4);
    for (size_t i = 0; i < hl_plan_part_count(plan); i++) {
        struct hl_plan_part part = part_of(plan, i);
        for (uint32_t a = 0; a < part.header->allocation_count; a++) {
            unsigned uses = 0;
            for (uint32_t k = 0; k < part.header->range_count; k++)
                uses += part.ranges[k].allocation == a;
            for (uint32_t k = 0; k < part.header->row_count; k++)
                uses += part.rows[k] == a;
            CU_ASSERT_TRUE(uses > 0);
        }
    }
    hl_plan_free(plan);
}

/* A part takes what fits: it ends less than a range with its section and allocation below its bound. */
static void bounds_of_parts_double_from_the_first(void)
{
    struct scene s;
    hl_plan *plan;
    hl_error err;
    const size_t element = sizeof(struct hl_plan_range) + sizeof(struct hl_plan_allocation);
    set_scene(&s);
    s.request.block_count = 4;
    s.request.first_part_bytes = 320;
    s.request.part_bytes = 500;
    HL_REQUIRE_OK(hl_plan_compile(&s.request, &plan, &err), err);
    size_t count = hl_plan_part_count(plan), largest = 0;
    CU_ASSERT_TRUE_FATAL(count >= 3);
    for (size_t i = 0; i < count; i++) {
        size_t size, bound = i == 0 ? 320 : 500;
        hl_plan_part_bytes(plan, i, &size);
        largest = size > largest ? size : largest;
        CU_ASSERT_TRUE(size <= bound);
        CU_ASSERT_TRUE(i + 1 == count || size + sizeof(struct hl_plan_section) + element > bound);
    }
    CU_ASSERT_TRUE(largest > 320);
    hl_plan_free(plan);
}

/* Whatever the size of parts, a plan fits its own size and no less. */
static void expect_exact_bound(struct scene *s)
{
    for (uint64_t part_bytes = 320; part_bytes <= 1024; part_bytes += 28) {
        hl_plan *plan;
        hl_error err;
        struct hl_plan_stats stats;
        s->request.part_bytes = part_bytes;
        s->request.metadata_bytes = 0;
        HL_REQUIRE_OK(hl_plan_compile(&s->request, &plan, &err), err);
        hl_plan_get_stats(plan, &stats);
        hl_plan_free(plan);
        for (uint64_t less = 0; less < stats.metadata_bytes; less += 4) {
            s->request.metadata_bytes = stats.metadata_bytes - less;
            hl_status status = hl_plan_compile(&s->request, &plan, &err);
            CU_ASSERT_EQUAL(status, less ? HL_E_LIMIT : HL_OK);
            if (status == HL_OK)
                hl_plan_free(plan);
            else
                CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "metadata_bytes"));
        }
    }
}

static void the_metadata_bound_is_exact(void)
{
    struct scene s;
    set_scene(&s);
    s.request.block_count = 4;
    expect_exact_bound(&s); /* single ranges: the sources descend */
    for (uint32_t i = 0; i < 4; i++)
        s.blocks[i].page = i;
    expect_exact_bound(&s); /* runs over four allocations */
    for (uint32_t i = 0; i < 4; i++) {
        s.blocks[i].allocation_id = 1;
        s.blocks[i].allocation_offset = 0;
        s.blocks[i].allocation_bytes = 4096;
    }
    s.layout.layers = 9;
    expect_exact_bound(&s); /* runs in one allocation, and empty layers */
    for (uint32_t i = 0; i < 4; i++) {
        s.components[i].page_stride = s.components[i].row_bytes = 1ull << 34;
        s.components[i].block_offset = 0;
        s.tensors[i].bytes = 1ull << 36;
        s.blocks[i].block_offset = i << 4;
        s.blocks[i].allocation_bytes = 1ull << 35;
    }
    s.layout.groups[0].block_bytes = 1ull << 34;
    expect_exact_bound(&s); /* pieces that are cut */
}

/* 2^31 rows of a byte that cannot merge: refused by arithmetic, not by walking or listing them. */
static void rows_beyond_the_metadata_bound_are_refused_at_once(void)
{
    struct scene s;
    set_scene(&s);
    s.components[0].rows = 1u << 31;
    s.components[0].row_bytes = 1;
    s.components[0].row_stride = 2;
    s.components[0].page_stride = 1; /* would need the pieces listed */
    s.components[0].block_row_stride = 0;
    s.tensors[0].bytes = 1ull << 33;
    expect_refused(&s, HL_E_LIMIT, "needs at least");
}

static void sums_that_overflow_are_refused(void)
{
    struct scene s;
    set_scene(&s);
    for (uint32_t i = 0; i < 4; i++) {
        s.components[i].offset = 0;
        s.components[i].page_stride = 0;
        s.components[i].block_offset = 0;
        s.components[i].row_bytes = 1ull << 62;
        s.tensors[i].bytes = 1ull << 62;
    }
    for (uint32_t i = 0; i < 2; i++) {
        s.blocks[i].allocation_bytes = 1ull << 62;
        s.blocks[i].allocation_offset = s.blocks[i].block_offset = 0;
    }
    s.layout.groups[0].block_bytes = 1ull << 62;
    s.request.chunk_bytes = 1ull << 62;
    expect_refused(&s, HL_E_OVERFLOW, "payload_bytes");
}

static void a_group_without_components_moves_nothing(void)
{
    struct scene s;
    set_scene(&s);
    s.layout.group_count = 2;
    s.layout.groups[1] = s.layout.groups[0];
    s.blocks[0].group = s.blocks[1].group = 1;
    hl_plan *plan;
    hl_error err;
    HL_REQUIRE_OK(hl_plan_compile(&s.request, &plan, &err), err);
    struct hl_plan_part part = part_of(plan, 0);
    CU_ASSERT_EQUAL(part.header->payload_bytes, 0);
    CU_ASSERT_EQUAL(part.header->allocation_count, 0);
    hl_plan_free(plan);
}

static void an_array_that_does_not_fit_is_refused(void)
{
    CU_ASSERT_PTR_NULL(hl_plan_allocate(SIZE_MAX, 2));
}

HL_TESTS(plan_compile, HL_CASE(bounds_of_parts_double_from_the_first),
         HL_CASE(every_field_of_the_request_is_checked), HL_CASE(every_field_of_a_block_is_checked),
         HL_CASE(every_bound_of_the_layout_is_checked), HL_CASE(every_bound_of_a_component_is_checked),
         HL_CASE(two_blocks_with_one_page_are_refused_by_index),
         HL_CASE(components_that_share_bytes_are_refused_by_index),
         HL_CASE(a_component_that_overlaps_itself_is_refused),
         HL_CASE(groups_may_share_a_tensor_but_no_page_of_it),
         HL_CASE(a_plan_of_no_blocks_completes_every_layer),
         HL_CASE(a_layer_writes_k_before_v_and_pages_in_order),
         HL_CASE(a_part_lists_only_the_allocations_it_uses), HL_CASE(the_metadata_bound_is_exact),
         HL_CASE(rows_beyond_the_metadata_bound_are_refused_at_once), HL_CASE(sums_that_overflow_are_refused),
         HL_CASE(a_group_without_components_moves_nothing), HL_CASE(an_array_that_does_not_fit_is_refused));
