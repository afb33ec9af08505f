/* Which pieces become one range, which become rows of a run, and which never do. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/plan/plan_fixture.h"
#include "core/testing/cunit.h"

enum { PAGES = 64, BLOCKS = 16 };

/* One component of one page-sized row; block i goes to page i, lying where the case puts it. */
struct scene {
    struct hl_layout_component components[2];
    struct hl_layout_tensor tensor;
    hl_layout layout;
    struct hl_plan_block blocks[BLOCKS];
    struct hl_plan_request request;
    hl_plan *plan;
    struct hl_plan_part part;
};

static void set_scene(struct scene *s, size_t blocks, uint64_t page_bytes, uint64_t pitch)
{
    memset(s, 0, sizeof *s);
    s->tensor = (struct hl_layout_tensor){.bytes = 2 * PAGES * page_bytes, .name = "tensor"};
    s->components[0] = (struct hl_layout_component){.page_stride = page_bytes,
                                                    .row_bytes = page_bytes,
                                                    .row_stride = page_bytes,
                                                    .rows = 1,
                                                    .block_row_stride = page_bytes};
    for (uint32_t i = 0; i < blocks; i++)
        s->blocks[i] = (struct hl_plan_block){.arena_id = 1,
                                              .allocation_id = 1 + i,
                                              .allocation_offset = i * pitch,
                                              .allocation_bytes = page_bytes,
                                              .block_offset = i * pitch,
                                              .page = i};
    s->layout = (hl_layout){.layers = 1,
                            .page_tokens = 1,
                            .component_count = 1,
                            .tensor_count = 1,
                            .group_count = 1,
                            .components = s->components,
                            .tensors = &s->tensor,
                            .groups = {{.pages = PAGES, .block_bytes = page_bytes}}};
    s->request = (struct hl_plan_request){.layout = &s->layout, .blocks = s->blocks, .block_count = blocks};
}

/* All blocks in one allocation. */
static void join_allocations(struct scene *s)
{
    const struct hl_plan_block *last = &s->blocks[s->request.block_count - 1];
    uint64_t end = last->block_offset + s->layout.groups[0].block_bytes;
    for (size_t i = 0; i < s->request.block_count; i++) {
        s->blocks[i].allocation_id = 1;
        s->blocks[i].allocation_offset = 0;
        s->blocks[i].allocation_bytes = end;
    }
}

/* Compiles, and decodes part `index`. */
static void compile(struct scene *s, size_t index)
{
    hl_error err;
    size_t size;
    hl_plan_free(s->plan);
    s->plan = NULL;
    HL_REQUIRE_OK(hl_plan_compile(&s->request, &s->plan, &err), err);
    CU_ASSERT_FATAL(index < hl_plan_part_count(s->plan));
    const void *bytes = hl_plan_part_bytes(s->plan, index, &size);
    HL_REQUIRE_OK(hl_plan_decode(bytes, size, &s->part, &err), err);
}

static void expect_counts(struct scene *s, uint64_t ranges, uint64_t runs, uint64_t rows)
{
    struct hl_plan_stats stats;
    compile(s, 0);
    hl_plan_get_stats(s->plan, &stats);
    CU_ASSERT_EQUAL(stats.ranges, ranges);
    CU_ASSERT_EQUAL(stats.runs, runs);
    CU_ASSERT_EQUAL(stats.run_rows, rows);
    CU_ASSERT_EQUAL(stats.pieces, s->request.block_count * s->components[0].rows);
    hl_plan_free(s->plan);
    s->plan = NULL;
}

static void touching_pages_of_one_allocation_are_one_range(void)
{
    struct scene s;
    set_scene(&s, 8, 64, 64);
    join_allocations(&s);
    compile(&s, 0);
    CU_ASSERT_EQUAL_FATAL(s.part.header->range_count, 1);
    CU_ASSERT_EQUAL(s.part.ranges[0].bytes, 8 * 64);
    CU_ASSERT_EQUAL(s.part.ranges[0].src, 0);
    CU_ASSERT_EQUAL(s.part.ranges[0].dst, 0);
    hl_plan_free(s.plan);
}

static void nothing_merges_across_allocations(void)
{
    struct scene s;
    set_scene(&s, 3, 64, 64); /* touching, each block with its own allocation */
    expect_counts(&s, 3, 0, 0);
    join_allocations(&s);
    expect_counts(&s, 1, 0, 0);
    s.blocks[1].arena_id = 2; /* the same allocation id in another arena is another allocation */
    expect_counts(&s, 3, 0, 0);
}

static void pieces_merge_only_when_both_sides_touch(void)
{
    struct scene s;
    set_scene(&s, 3, 64, 65); /* a gap in the source */
    join_allocations(&s);
    expect_counts(&s, 3, 0, 0);
    set_scene(&s, 3, 64, 64); /* a gap in the pages */
    join_allocations(&s);
    s.blocks[2].page = 5;
    expect_counts(&s, 2, 0, 0);
    s.blocks[0].page = 1; /* pages in the order opposite to the blocks' */
    s.blocks[1].page = 0;
    expect_counts(&s, 3, 0, 0);
}

static void four_rows_at_one_pitch_are_a_run(void)
{
    struct scene s;
    set_scene(&s, 3, 64, 100);
    expect_counts(&s, 3, 0, 0);
    set_scene(&s, 4, 64, 100);
    expect_counts(&s, 0, 1, 4);
    set_scene(&s, 16, 64, 64); /* touching sources, apart by their allocations */
    compile(&s, 0);
    CU_ASSERT_EQUAL_FATAL(s.part.header->run_count, 1);
    const struct hl_plan_run *run = s.part.runs;
    CU_ASSERT_EQUAL(run->rows, 16);
    CU_ASSERT_EQUAL(run->row_bytes, 64);
    CU_ASSERT_EQUAL(run->src_pitch, 64);
    CU_ASSERT_EQUAL(run->dst_pitch, 64);
    for (uint32_t i = 0; i < 16; i++) /* each row keeps its own */
        CU_ASSERT_EQUAL(s.part.allocations[s.part.rows[i]].allocation_id, 1 + i);
    hl_plan_free(s.plan);
}

static void a_run_stays_in_one_arena_and_chunk(void)
{
    struct scene s;
    set_scene(&s, 8, 64, 128);
    expect_counts(&s, 0, 1, 8);
    s.request.chunk_bytes = 512; /* four blocks a chunk */
    expect_counts(&s, 0, 2, 8);
    s.request.chunk_bytes = 384; /* three */
    expect_counts(&s, 8, 0, 0);
    s.request.chunk_bytes = 0;
    for (uint32_t i = 4; i < 8; i++)
        s.blocks[i].arena_id = 2;
    expect_counts(&s, 0, 2, 8);
    for (uint32_t i = 0; i < 8; i++)
        s.blocks[i].arena_id = 1 + i % 2;
    expect_counts(&s, 8, 0, 0);
}

static void sources_of_a_run_ascend_without_overlap(void)
{
    struct scene s;
    set_scene(&s, 8, 64, 128);
    for (uint32_t i = 0; i < 8; i++)
        s.blocks[i].page = 7 - i; /* a constant but negative pitch */
    expect_counts(&s, 8, 0, 0);
    set_scene(&s, 8, 64, 0); /* one stored block for all pages: pitch 0 */
    join_allocations(&s);
    expect_counts(&s, 8, 0, 0);
    set_scene(&s, 8, 64, 32); /* stored blocks that overlap one another */
    join_allocations(&s);
    expect_counts(&s, 8, 0, 0);
}

static void rows_of_another_width_end_a_run(void)
{
    struct scene s;
    set_scene(&s, 10, 64, 128);
    s.blocks[5].allocation_id = s.blocks[4].allocation_id; /* 4 and 5 touch and merge: twice as wide */
    s.blocks[4].allocation_bytes = s.blocks[5].allocation_bytes = 128;
    s.blocks[5].allocation_offset = s.blocks[4].allocation_offset;
    s.blocks[5].block_offset = s.blocks[4].block_offset + 64;
    expect_counts(&s, 1, 2, 8);
}

static void a_broken_row_begins_the_next_run(void)
{
    struct scene s;
    set_scene(&s, 8, 64, 128);
    for (uint32_t i = 3; i < 8; i++) /* three rows at one pitch, then, from the third, six at another */
        s.blocks[i].page = 2 + 2 * (i - 2);
    compile(&s, 0);
    CU_ASSERT_EQUAL_FATAL(s.part.header->run_count, 1);
    CU_ASSERT_EQUAL(s.part.header->range_count, 2);
    CU_ASSERT_EQUAL(s.part.runs[0].rows, 6);
    CU_ASSERT_EQUAL(s.part.runs[0].dst, 128);
    CU_ASSERT_EQUAL(s.part.runs[0].dst_pitch, 128);
    hl_plan_free(s.plan);
}

static void rows_inside_a_block_form_runs(void)
{
    struct scene s;
    set_scene(&s, 2, 256, 4096);
    s.components[0].rows = 16; /* a rank's slot of a token: 16 of 64 bytes */
    s.components[0].row_bytes = s.components[0].row_stride = 16;
    s.components[0].block_offset = 16;
    s.components[0].block_row_stride = 64;
    s.layout.groups[0].block_bytes = 1024;
    for (uint32_t i = 0; i < 2; i++)
        s.blocks[i].allocation_bytes = 1024;
    expect_counts(&s, 0, 2, 32);
    compile(&s, 0);
    CU_ASSERT_EQUAL(s.part.header->allocation_count, 2);
    CU_ASSERT_EQUAL(s.part.runs[0].src, 16);
    CU_ASSERT_EQUAL(s.part.runs[0].src_pitch, 64);
    CU_ASSERT_EQUAL(s.part.runs[1].dst, 256);
    hl_plan_free(s.plan);
}

static void components_that_touch_on_both_sides_are_one(void)
{
    struct scene s;
    set_scene(&s, 2, 64, 1000);
    s.components[1] = s.components[0]; /* K and V inside a page, next to each other in the block */
    s.components[1].offset = s.components[1].block_offset = 64;
    s.components[0].page_stride = s.components[1].page_stride = 128;
    s.layout.component_count = 2;
    s.layout.groups[0].block_bytes = 128;
    s.blocks[0].allocation_bytes = s.blocks[1].allocation_bytes = 128;
    compile(&s, 0);
    CU_ASSERT_EQUAL_FATAL(s.part.header->range_count, 2);
    CU_ASSERT_EQUAL(s.part.ranges[1].bytes, 128);
    struct hl_plan_stats stats;
    hl_plan_get_stats(s.plan, &stats);
    CU_ASSERT_EQUAL(stats.pieces, 4);
    s.components[1].layer = 1; /* not over two layers: each has its event */
    s.layout.layers = 2;
    compile(&s, 0);
    CU_ASSERT_EQUAL(s.part.header->range_count, 4);
    CU_ASSERT_EQUAL(s.part.header->section_count, 2);
    hl_plan_free(s.plan);
}

static void longer_ranges_are_cut_at_a_multiple_of_16(void)
{
    struct scene s;
    const uint64_t page = (1ull << 32) + 48; /* two pages merge to 2^33 + 96 bytes */
    set_scene(&s, 2, page, page);
    join_allocations(&s);
    compile(&s, 0);
    CU_ASSERT_EQUAL_FATAL(s.part.header->range_count, 3);
    uint64_t at = 0;
    for (uint32_t i = 0; i < 3; i++) {
        CU_ASSERT_EQUAL(s.part.ranges[i].src, at);
        CU_ASSERT_EQUAL(s.part.ranges[i].dst, at);
        CU_ASSERT_EQUAL(at % 16, 0);
        at += s.part.ranges[i].bytes;
    }
    CU_ASSERT_EQUAL(at, 2 * page);
    hl_plan_free(s.plan);
}

static void a_run_continues_in_the_next_part(void)
{
    struct scene s;
    set_scene(&s, 16, 64, 128);
    join_allocations(&s);
    s.request.part_bytes = 320; /* header 96, allocation 32, section 32, run 48: 28 rows fit */
    expect_counts(&s, 0, 1, 16);
    s.request.part_bytes = 320; /* with an allocation a row: 4 fit */
    set_scene(&s, 16, 64, 128);
    s.request.part_bytes = 320;
    expect_counts(&s, 0, 4, 16);
    compile(&s, 3);
    CU_ASSERT_EQUAL(s.part.header->part_count, 4);
    CU_ASSERT_EQUAL(s.part.sections[0].flags, HL_PLAN_LAYER_LAST);
    CU_ASSERT_EQUAL(s.part.runs[0].dst, 12 * 64);
    compile(&s, 2);
    CU_ASSERT_EQUAL(s.part.sections[0].flags, 0);
    s.request.block_count = 14; /* two rows are left over for the last part */
    compile(&s, 3);
    CU_ASSERT_EQUAL(s.part.header->range_count, 2);
    CU_ASSERT_EQUAL(s.part.header->run_count, 0);
    hl_plan_free(s.plan);
}

HL_TESTS(plan_merge, HL_CASE(touching_pages_of_one_allocation_are_one_range),
         HL_CASE(nothing_merges_across_allocations), HL_CASE(pieces_merge_only_when_both_sides_touch),
         HL_CASE(four_rows_at_one_pitch_are_a_run), HL_CASE(a_run_stays_in_one_arena_and_chunk),
         HL_CASE(sources_of_a_run_ascend_without_overlap), HL_CASE(rows_of_another_width_end_a_run),
         HL_CASE(a_broken_row_begins_the_next_run), HL_CASE(rows_inside_a_block_form_runs),
         HL_CASE(components_that_touch_on_both_sides_are_one),
         HL_CASE(longer_ranges_are_cut_at_a_multiple_of_16), HL_CASE(a_run_continues_in_the_next_part));
