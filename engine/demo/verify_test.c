#include <stdio.h>
#include <string.h>

#include "engine/demo/demo_testing.h"

/* The demo's own detectors must find what they are for: each case changes one byte behind the demo's back, on
 * the software device, and sees it named. */

enum { PAGES = HL_DEMO_TESTING_PAGES, LAYERS = HL_DEMO_TESTING_LAYERS };

/* Filled and published. */
static hl_demo *open_demo(enum hl_layout_kind layout, enum hl_block_order order, enum hl_demo_pitch pitch,
                          uint64_t seed)
{
    hl_demo *demo = hl_demo_testing_open(layout, seed);
    demo->options.order = order;
    demo->options.pitch = pitch;
    hl_error err;
    HL_REQUIRE_OK(hl_demo_plan_pages(demo, &err), err);
    HL_REQUIRE_OK(hl_demo_allocate_memory(demo, &err), err);
    HL_REQUIRE_OK(hl_demo_fill(demo, HL_DEMO_SOURCES, &err), err);
    HL_REQUIRE_OK(hl_demo_publish(demo, &err), err);
    return demo;
}

static bool is(const struct hl_demo_mismatch *mismatch, const char *what)
{
    return mismatch->what && strcmp(mismatch->what, what) == 0;
}

/* Every destination as a correct restore leaves it, without a restore. */
static void set_restored(hl_demo *demo)
{
    hl_error err;
    HL_REQUIRE_OK(hl_demo_poison(demo, &err), err);
    HL_REQUIRE_OK(hl_demo_fill(demo, HL_DEMO_DESTINATIONS, &err), err);
}

static void flip(hl_demo *demo, hl_devptr at)
{
    unsigned char byte;
    hl_software_peek(demo->dev, &byte, at, 1);
    byte ^= 0x10;
    hl_software_poke(demo->dev, at, &byte, 1);
}

static const enum hl_layout_kind kinds[] = {HL_LAYOUT_SPLIT, HL_LAYOUT_CONTIGUOUS, HL_LAYOUT_FUSED,
                                            HL_LAYOUT_PAGE_FIRST};

static void every_layout_publishes_what_was_filled(void)
{
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        for (int order = 0; order < 2; order++) {
            hl_demo *demo = open_demo(kinds[k], (enum hl_block_order)order, HL_DEMO_SCATTERED, 3);
            struct hl_demo_mismatch mismatch;
            hl_error err;
            HL_EXPECT_OK(hl_demo_verify_published(demo, &mismatch, &err), err);
            CU_ASSERT_PTR_NULL(mismatch.what);
            hl_demo_testing_close(demo);
        }
}

static void a_wrong_published_byte_is_named(void)
{
    hl_demo *demo = open_demo(HL_LAYOUT_SPLIT, HL_BLOCK_COMPONENT_MAJOR, HL_DEMO_SCATTERED, 3);
    const struct hl_demo_block *block = &demo->blocks[2];
    const struct hl_layout_component *component = &demo->layout->components[3]; /* V of layer 1 */
    unsigned char *stored = (unsigned char *)hl_arena_base(demo->arena) + block->allocation.offset;
    stored[component->block_offset + 5] ^= 1;
    struct hl_demo_mismatch mismatch;
    hl_error err;
    HL_EXPECT_OK(hl_demo_verify_published(demo, &mismatch, &err), err);
    CU_ASSERT_TRUE(is(&mismatch, "published block"));
    CU_ASSERT_EQUAL(mismatch.layer, 1);
    CU_ASSERT_EQUAL(mismatch.role, HL_ROLE_V);
    CU_ASSERT_EQUAL(mismatch.page, block->source);
    CU_ASSERT_EQUAL(mismatch.offset, component->block_offset + 5);
    CU_ASSERT_EQUAL(mismatch.expected ^ mismatch.got, 1);
    hl_demo_testing_close(demo);
}

static void a_wrong_restored_byte_is_named_in_every_layout(void)
{
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        hl_demo *demo = open_demo(kinds[k], HL_BLOCK_TOKEN_MAJOR, HL_DEMO_SCATTERED, 4);
        struct hl_demo_mismatch mismatch;
        hl_error err;
        set_restored(demo);
        HL_EXPECT_OK(hl_demo_verify_restored(demo, &mismatch, &err), err);
        CU_ASSERT_PTR_NULL(mismatch.what);

        const struct hl_layout_component *last = &demo->layout->components[demo->layout->component_count - 1];
        uint32_t page = demo->blocks[1].page;
        flip(demo, hl_demo_page_address(demo, last, page) + (last->rows - 1) * last->row_stride + 7);
        HL_EXPECT_OK(hl_demo_verify_restored(demo, &mismatch, &err), err);
        CU_ASSERT_TRUE(is(&mismatch, "restored page"));
        CU_ASSERT_EQUAL(mismatch.layer, LAYERS - 1);
        CU_ASSERT_EQUAL(mismatch.role, last->role);
        CU_ASSERT_EQUAL(mismatch.page, page);
        CU_ASSERT_EQUAL(mismatch.offset, (last->rows - 1) * last->row_bytes + 7);
        CU_ASSERT_EQUAL(mismatch.expected ^ mismatch.got, 0x10);
        hl_demo_testing_close(demo);
    }
}

static void a_written_page_that_is_no_destination_is_named(void)
{
    hl_demo *demo = open_demo(HL_LAYOUT_SPLIT, HL_BLOCK_COMPONENT_MAJOR, HL_DEMO_SCATTERED, 5);
    set_restored(demo);
    const struct hl_layout_component *first = &demo->layout->components[0];
    uint32_t page = demo->blocks[0].source; /* no source is a destination */
    flip(demo, hl_demo_page_address(demo, first, page));
    struct hl_demo_mismatch mismatch;
    hl_error err;
    HL_EXPECT_OK(hl_demo_verify_restored(demo, &mismatch, &err), err);
    CU_ASSERT_TRUE(is(&mismatch, "page that is no destination"));
    CU_ASSERT_EQUAL(mismatch.layer, 0);
    CU_ASSERT_EQUAL(mismatch.page, page);
    CU_ASSERT_EQUAL(mismatch.expected, HL_DEMO_POISON);
    hl_demo_testing_close(demo);
}

static void a_wrong_consumer_sum_is_named(void)
{
    hl_demo *demo = open_demo(HL_LAYOUT_SPLIT, HL_BLOCK_COMPONENT_MAJOR, HL_DEMO_SCATTERED, 6);
    set_restored(demo);
    struct hl_demo_mismatch mismatch;
    hl_error err;
    HL_REQUIRE_OK(hl_demo_upload(demo, demo->sums, demo->expected, demo->unit_count * 8, &err), err);
    HL_EXPECT_OK(hl_demo_verify_sums(demo, &mismatch, &err), err);
    CU_ASSERT_PTR_NULL(mismatch.what);
    flip(demo, demo->sums + (demo->readers[4].first + 2) * 8); /* block 2, K of layer 2 */
    HL_EXPECT_OK(hl_demo_verify_sums(demo, &mismatch, &err), err);
    CU_ASSERT_PTR_NOT_NULL_FATAL(mismatch.what);
    CU_ASSERT_EQUAL(mismatch.layer, 2);
    CU_ASSERT_EQUAL(mismatch.role, HL_ROLE_K);
    CU_ASSERT_EQUAL(mismatch.page, demo->blocks[2].page);
    hl_demo_testing_close(demo);
}

static void event_times_out_of_order_are_named(void)
{
    hl_layout layout = {.layers = 3};
    hl_device dev = {.info = {.kind = HL_DEVICE_SOFTWARE}};
    hl_demo demo = {.dev = &dev, .layout = &layout};
    int64_t ready[] = {10, 20, 30}, start[] = {10, 21, 30};
    struct hl_demo_run run = {.total_ns = 30, .ready = ready, .consumer_start = start};
    struct hl_demo_mismatch mismatch;
    hl_demo_verify_order(&demo, &run, &mismatch);
    CU_ASSERT_PTR_NULL(mismatch.what);
    CU_ASSERT_TRUE(hl_demo_overlapped(&run, 3));
    start[1] = 19;
    dev.info.kind = HL_DEVICE_CUDA; /* whose time stamps are coarser than that */
    hl_demo_verify_order(&demo, &run, &mismatch);
    CU_ASSERT_PTR_NULL(mismatch.what);
    dev.info.kind = HL_DEVICE_SOFTWARE;
    hl_demo_verify_order(&demo, &run, &mismatch);
    CU_ASSERT_PTR_NOT_NULL_FATAL(mismatch.what);
    CU_ASSERT_EQUAL(mismatch.layer, 1);
    start[1] = 21;
    ready[2] = 19;
    hl_demo_verify_order(&demo, &run, &mismatch);
    CU_ASSERT_PTR_NOT_NULL_FATAL(mismatch.what);
    CU_ASSERT_EQUAL(mismatch.layer, 2);
    int64_t late[] = {30, 30, 31};
    run.consumer_start = late;
    CU_ASSERT_FALSE(hl_demo_overlapped(&run, 3));
}

static void no_page_is_a_source_and_a_destination(void)
{
    for (int pitch = 0; pitch < 2; pitch++) {
        hl_demo *demo = open_demo(HL_LAYOUT_SPLIT, HL_BLOCK_COMPONENT_MAJOR, (enum hl_demo_pitch)pitch, 8);
        unsigned char used[2 * PAGES] = {0};
        for (uint32_t b = 0; b < demo->block_count; b++) {
            used[demo->blocks[b].source]++;
            used[demo->blocks[b].page]++;
        }
        for (uint32_t p = 0; p < 2 * PAGES; p++)
            CU_ASSERT_EQUAL(used[p], 1);
        hl_demo_testing_close(demo);
    }
}

static void constant_pitch_means_consecutive_blocks_and_pages(void)
{
    hl_demo *demo = open_demo(HL_LAYOUT_SPLIT, HL_BLOCK_COMPONENT_MAJOR, HL_DEMO_CONSTANT, 9);
    for (uint32_t b = 1; b < demo->block_count; b++) {
        CU_ASSERT_EQUAL(demo->blocks[b].page, demo->blocks[b - 1].page + 1);
        CU_ASSERT_EQUAL(demo->blocks[b].allocation.offset,
                        demo->blocks[b - 1].allocation.offset + demo->blocks[b - 1].allocation.bytes);
    }
    hl_demo_testing_close(demo);
}

static void the_state_digest_depends_on_the_bytes(void)
{
    char digest[3][65];
    for (int i = 0; i < 3; i++) {
        hl_demo *demo =
            open_demo(HL_LAYOUT_SPLIT, HL_BLOCK_COMPONENT_MAJOR, HL_DEMO_CONSTANT, i == 2 ? 11 : 10);
        set_restored(demo);
        struct hl_demo_mismatch mismatch;
        hl_error err;
        HL_EXPECT_OK(hl_demo_verify_restored(demo, &mismatch, &err), err);
        memcpy(digest[i], demo->state_digest, sizeof digest[i]);
        hl_demo_testing_close(demo);
    }
    CU_ASSERT_STRING_EQUAL(digest[0], digest[1]);
    CU_ASSERT_STRING_NOT_EQUAL(digest[0], digest[2]);
}

HL_TESTS(verify, HL_CASE(every_layout_publishes_what_was_filled), HL_CASE(a_wrong_published_byte_is_named),
         HL_CASE(a_wrong_restored_byte_is_named_in_every_layout),
         HL_CASE(a_written_page_that_is_no_destination_is_named), HL_CASE(a_wrong_consumer_sum_is_named),
         HL_CASE(event_times_out_of_order_are_named), HL_CASE(no_page_is_a_source_and_a_destination),
         HL_CASE(constant_pitch_means_consecutive_blocks_and_pages),
         HL_CASE(the_state_digest_depends_on_the_bytes));
