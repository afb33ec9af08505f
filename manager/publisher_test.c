/* Publishing: bytes, visibility, turns, failures and pressure. The publisher's stream is held where an order
 * of events matters. */
#include <sched.h>

#include "core/base/clock.h"
#include "manager/manager_testing.h"

static hl_stream publishing(struct world *world)
{
    return world->manager->gpus[0].publisher->stream;
}

static void fill_pages(struct world *world, uint32_t session, uint32_t group, uint64_t first, uint32_t count,
                       uint32_t page)
{
    for (uint32_t i = 0; i < count; i++)
        world_fill_page(world, session, group, page + i, first + i);
}

static bool stored_bytes_are_right(struct world *world, uint32_t group, uint64_t key)
{
    const unsigned char *stored;
    uint64_t size = world->layout->groups[group].block_bytes;
    unsigned char *expected = malloc(size);
    CU_ASSERT_PTR_NOT_NULL_FATAL(expected);
    world_block_bytes(world, group, key, expected);
    bool right = world_stored(world, group, key, &stored) && memcmp(stored, expected, size) == 0;
    free(expected);
    return right;
}

static bool is_visible(struct world *world, uint64_t key)
{
    const unsigned char *stored;
    return world_stored(world, 0, key, &stored);
}

/* Expects the outcome of a publish, and answers its counts. */
static void expect_outcome(struct world *world, uint32_t session, uint32_t slot, hl_status status,
                           uint32_t stored, uint32_t present)
{
    struct hl_publish_slot outcome = world_publish_outcome(world, session, slot);
    if (outcome.status != status)
        fprintf(stderr, "got %s: %s\n", hl_status_name((hl_status)outcome.status), outcome.text);
    CU_ASSERT_EQUAL(outcome.status, status);
    CU_ASSERT_EQUAL(outcome.stored, stored);
    CU_ASSERT_EQUAL(outcome.present, present);
    CU_ASSERT_EQUAL(outcome.bytes, stored * world->layout->groups[0].block_bytes);
    CU_ASSERT_EQUAL(outcome.text[0] == '\0', status == HL_OK);
}

static uint64_t used_bytes(struct world *world)
{
    struct hl_arena_stats stats;
    hl_arena_get_stats(world->manager->arenas[0], &stats);
    return stats.used_bytes;
}

/* --- bytes --- */

/* Publishes from pages and restores to others, over an arena full of old bytes. */
static void round_trip(hl_layout *layout)
{
    const struct world_options options = {.layout = layout, .publisher = true};
    struct world world;
    world_open(&world, &options);
    memset(hl_arena_base(world.manager->arenas[0]), 0xee, hl_arena_bytes(world.manager->arenas[0]));
    for (uint32_t group = 0; group < layout->group_count; group++) {
        fill_pages(&world, 0, group, 100, 9, 3);
        world_publish(&world, 0, group, group, 100, 9, 3);
    }
    for (uint32_t group = 0; group < layout->group_count; group++) {
        struct hl_publish_slot outcome = world_publish_outcome(&world, 0, group);
        CU_ASSERT_EQUAL(outcome.status, HL_OK);
        CU_ASSERT_EQUAL(outcome.stored, 9);
        CU_ASSERT_EQUAL(outcome.bytes, 9 * layout->groups[group].block_bytes);
        for (uint64_t key = 100; key < 109; key++)
            CU_ASSERT_TRUE(stored_bytes_are_right(&world, group, key));
        const uint32_t count = 9, pages[9] = {20, 31, 12, 13, 14, 30, 29, 28, 15};
        uint64_t lease = world_query(&world, 1, group, 100, 9, NULL); /* another session's engine */
        engine_reserve(&world, 1, group);
        engine_submit(&world, 1, group, 0, 1, &lease, &count, pages);
        world_look(&world, 1, group);
        engine_run_part(&world, 1, group);
        world_look(&world, 1, group);
        for (uint32_t i = 0; i < 9; i++)
            CU_ASSERT_TRUE(world_page_holds(&world, 1, group, pages[i], 100 + i));
    }
    world_close(&world);
}

static void bytes_are_exact_for_every_layout(void)
{
    static const enum hl_layout_kind kinds[] = {HL_LAYOUT_CONTIGUOUS, HL_LAYOUT_SPLIT, HL_LAYOUT_FUSED,
                                                HL_LAYOUT_MLA, HL_LAYOUT_PAGE_FIRST};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        round_trip(world_layout(kinds[i], HL_BLOCK_COMPONENT_MAJOR, 32));
        round_trip(world_layout(kinds[i], HL_BLOCK_TOKEN_MAJOR, 32));
    }
}

static hl_layout *make_layout(const struct hl_model_geometry *geometry,
                              const struct hl_layout_options *options)
{
    hl_layout *layout = NULL;
    hl_error err = {0};
    HL_REQUIRE_OK(hl_layout_from_model(geometry, options, &layout, &err), err);
    return layout;
}

static void groups_are_published_apart(void)
{
    const struct hl_model_geometry geometry = {.name = "hybrid",
                                               .layers = 5,
                                               .kv_heads = 2,
                                               .head_dim = 8,
                                               .element_bytes = 2,
                                               .window_tokens = 16,
                                               .sliding = {1, 0, 1, 1, 0}};
    static const enum hl_layout_kind kinds[] = {HL_LAYOUT_SPLIT, HL_LAYOUT_PAGE_FIRST};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        round_trip(make_layout(&geometry,
                               &(struct hl_layout_options){.kind = kinds[i], .page_tokens = 4, .pages = 32}));
}

/* A rank writes its heads; the bytes that it does not write are 0, whatever the space held before. */
static void bytes_that_the_layout_leaves_out_are_zero(void)
{
    const struct hl_model_geometry geometry = {
        .name = "wide", .layers = 2, .kv_heads = 4, .head_dim = 8, .element_bytes = 2};
    for (uint32_t rank = 0; rank < 2; rank++)
        for (int order = 0; order < 2; order++) {
            hl_layout *layout = make_layout(&geometry, &(struct hl_layout_options){.kind = HL_LAYOUT_SPLIT,
                                                                                   .order = order,
                                                                                   .page_tokens = 4,
                                                                                   .pages = 32,
                                                                                   .tp_size = 2,
                                                                                   .tp_rank = rank,
                                                                                   .store_full_heads = 1});
            CU_ASSERT_TRUE(manager_publish_has_gaps(layout, 0));
            round_trip(layout);
        }
}

static void large_publishes_go_in_batches(void)
{
    const struct world_options options = {.layout = world_layout(HL_LAYOUT_FUSED, 0, 1024),
                                          .publisher = true};
    struct world world;
    world_open(&world, &options);
    fill_pages(&world, 0, 0, 0, 1000, 5);
    world_publish(&world, 0, 63, 0, 0, 1000, 5);
    expect_outcome(&world, 0, 63, HL_OK, 1000, 0);
    for (uint64_t key = 0; key < 1000; key++)
        CU_ASSERT_TRUE(stored_bytes_are_right(&world, 0, key));
    CU_ASSERT_EQUAL(world.manager->counters.published_blocks, 1000);
    world_check(&world);
    world_close(&world);
}

static void lone_contiguous_block_is_one_copy(void)
{
    struct world world;
    struct hl_software_counts before, after;
    world_open(&world, &(struct world_options){.layout = world_layout(HL_LAYOUT_PAGE_FIRST, 0, 32),
                                               .publisher = true});
    fill_pages(&world, 0, 0, 1, 1, 4);
    hl_software_counts(world.dev, &before);
    world_publish(&world, 0, 0, 0, 1, 1, 4);
    expect_outcome(&world, 0, 0, HL_OK, 1, 0);
    hl_software_counts(world.dev, &after);
    CU_ASSERT_EQUAL(after.submitted - before.submitted, 2); /* the copy and its event */
    CU_ASSERT_TRUE(stored_bytes_are_right(&world, 0, 1));
    world_close(&world);
}

/* --- visibility --- */

static void blocks_are_invisible_until_their_bytes_are_complete(void)
{
    struct world world;
    struct hl_index_stats stats;
    world_open(&world, &(struct world_options){.publisher = true});
    fill_pages(&world, 0, 0, 1, 3, 0);
    hl_software_hold(world.dev, publishing(&world), 2); /* the bytes arrive; the batch's event does not */
    world_publish(&world, 0, 0, 0, 1, 3, 0);
    hl_software_wait_held(world.dev, publishing(&world));
    pthread_mutex_lock(&world.manager->lock);
    hl_index_get_stats(world.manager->index, &stats);
    pthread_mutex_unlock(&world.manager->lock);
    CU_ASSERT_EQUAL(stats.writing, 3);
    CU_ASSERT_EQUAL(stats.present, 0);
    CU_ASSERT_EQUAL(world_query(&world, 0, 0, 1, 3, NULL), 0);
    CU_ASSERT_EQUAL(atomic_load(&hl_descriptors_slot(world.engine[0], 0)->state), HL_PUBLISH_PENDING);
    hl_software_release(world.dev, publishing(&world));
    expect_outcome(&world, 0, 0, HL_OK, 3, 0);
    CU_ASSERT_TRUE(is_visible(&world, 1) && is_visible(&world, 2) && is_visible(&world, 3));
    world_close(&world);
}

/* T1: the slot's state alone publishes the outcome. Read in the Manager's own mapping: a thread sanitizer
 * does not see that two mappings are one memory. */
static void a_finished_slot_publishes_its_outcome(void)
{
    struct world world;
    world_open(&world, &(struct world_options){.publisher = true});
    fill_pages(&world, 0, 0, 1, 3, 0);
    const struct hl_publish_slot *slot = hl_descriptors_slot(world_session(&world, 0)->descriptors, 0);
    world_publish(&world, 0, 0, 0, 1, 3, 0);
    while (atomic_load_explicit(&slot->state, memory_order_acquire) != HL_PUBLISH_FINISHED)
        sched_yield();
    CU_ASSERT_EQUAL(slot->status, HL_OK);
    CU_ASSERT_EQUAL(slot->stored, 3);
    CU_ASSERT_EQUAL(slot->bytes, 3ull * world.layout->groups[0].block_bytes);
    expect_outcome(&world, 0, 0, HL_OK, 3, 0);
    world_close(&world);
}

static void block_that_is_there_or_on_its_way_is_counted_present(void)
{
    static const uint64_t keys[6] = {7, 8, 7, 8, 7, 9};
    struct world world;
    world_open(&world, &(struct world_options){.publisher = true});
    fill_pages(&world, 0, 0, 7, 2, 0);
    world_fill_page(&world, 0, 0, 5, 9);
    pthread_mutex_lock(&world.manager->lock);
    HL_REQUIRE_OK(world_publish_locked(&world, 0, 0, 0, keys, 6, 0), world.err);
    pthread_mutex_unlock(&world.manager->lock);
    expect_outcome(&world, 0, 0, HL_OK, 3, 3);
    world_publish(&world, 1, 4, 0, 7, 3, 20);
    expect_outcome(&world, 1, 4, HL_OK, 0, 3);
    for (uint64_t key = 7; key < 10; key++)
        CU_ASSERT_TRUE(stored_bytes_are_right(&world, 0, key));
    world_close(&world);
}

/* --- turns --- */

static void sessions_take_turns_and_each_is_served_in_order(void)
{
    uint64_t keys[192];
    struct world world;
    world_open(&world,
               &(struct world_options){.layout = world_layout(HL_LAYOUT_SPLIT, 0, 256), .publisher = true});
    fill_pages(&world, 0, 0, 0, 192, 0);
    fill_pages(&world, 1, 0, 1000, 1, 0);
    for (uint32_t i = 0; i < 192; i++)
        keys[i] = i;
    /* A batch is one batch call and one event: the first of session 0, then the one of session 1. */
    hl_software_hold(world.dev, publishing(&world), 5);
    pthread_mutex_lock(&world.manager->lock);
    const uint64_t other = 1000;
    HL_REQUIRE_OK(world_publish_locked(&world, 0, 0, 0, keys, 192, 0), world.err);
    HL_REQUIRE_OK(world_publish_locked(&world, 0, 1, 0, keys, 1, 0), world.err);
    HL_REQUIRE_OK(world_publish_locked(&world, 1, 0, 0, &other, 1, 0), world.err);
    pthread_mutex_unlock(&world.manager->lock);
    expect_outcome(&world, 1, 0, HL_OK, 1, 0);
    CU_ASSERT_EQUAL(atomic_load(&hl_descriptors_slot(world.engine[0], 0)->state), HL_PUBLISH_PENDING);
    CU_ASSERT_TRUE(is_visible(&world, 63));
    CU_ASSERT_FALSE(is_visible(&world, 64));
    hl_software_release(world.dev, publishing(&world));
    expect_outcome(&world, 0, 0, HL_OK, 192, 0);
    expect_outcome(&world, 0, 1, HL_OK, 0, 1);
    world_close(&world);
}

static void slow_publish_warns_once_a_minute_and_frees_nothing(void)
{
    struct world world;
    world_open(&world, &(struct world_options){.publisher = true});
    hl_software_hold(world.dev, publishing(&world), 0);
    int64_t now = hl_clock_ns();
    world_publish(&world, 0, 0, 0, 1, 2, 0);
    world_publish(&world, 1, 3, 0, 5, 1, 0);
    hl_software_wait_held(world.dev, publishing(&world));
    static const struct {
        int seconds;
        unsigned lines;
    } looks[] = {{0, 0}, {59, 0}, {61, 2}, {62, 2}, {120, 2}, {122, 4}, {3600, 6}};
    for (size_t i = 0; i < sizeof looks / sizeof looks[0]; i++) {
        unsigned lines = 0;
        pthread_mutex_lock(&world.manager->lock);
        manager_publisher_watch(world.manager, 0, now + looks[i].seconds * HL_NS_PER_S + HL_NS_PER_S / 2);
        pthread_mutex_unlock(&world.manager->lock);
        for (const char *at = world.log; (at = strstr(at, "blocks begun after")); at++)
            lines++;
        CU_ASSERT_EQUAL(lines, looks[i].lines);
    }
    hl_software_release(world.dev, publishing(&world));
    expect_outcome(&world, 0, 0, HL_OK, 2, 0);
    expect_outcome(&world, 1, 3, HL_OK, 1, 0);
    world_close(&world);
}

static void stopping_finishes_what_was_accepted(void)
{
    struct world world;
    world_open(&world, &(struct world_options){.publisher = true});
    fill_pages(&world, 0, 0, 0, 20, 0);
    for (uint32_t slot = 0; slot < 20; slot++)
        world_publish(&world, 0, slot, 0, slot, 1, slot);
    manager_publisher_stop(world.manager, 0);
    for (uint32_t slot = 0; slot < 20; slot++)
        expect_outcome(&world, 0, slot, HL_OK, 1, 0);
    const uint64_t key = 99;
    pthread_mutex_lock(&world.manager->lock);
    HL_EXPECT_STATUS(world_publish_locked(&world, 0, 0, 0, &key, 1, 0), HL_E_STATE, world.err);
    pthread_mutex_unlock(&world.manager->lock);
    world_close(&world);
}

/* --- failures --- */

static void refused_copy_gives_back_keys_and_space(void)
{
    /* Token-major blocks are copied row by row: 4 calls a block, then the event. */
    struct world world;
    world_open(&world,
               &(struct world_options){.layout = world_layout(HL_LAYOUT_SPLIT, HL_BLOCK_TOKEN_MAJOR, 32),
                                       .publisher = true});
    fill_pages(&world, 0, 0, 1, 3, 0);
    for (uint64_t nth = 1; nth <= 13; nth++) {
        hl_software_fail_submit(world.dev, nth, 700);
        world_publish(&world, 0, 0, 0, 1, 3, 0);
        expect_outcome(&world, 0, 0, HL_E_DEVICE, 0, 0);
        CU_ASSERT_EQUAL(used_bytes(&world), 0);
        CU_ASSERT_FALSE(is_visible(&world, 1) || is_visible(&world, 2) || is_visible(&world, 3));
        world_check(&world);
    }
    world_publish(&world, 0, 0, 0, 1, 3, 0);
    expect_outcome(&world, 0, 0, HL_OK, 3, 0);
    CU_ASSERT_TRUE(stored_bytes_are_right(&world, 0, 2));
    CU_ASSERT_EQUAL(world.manager->leaked_bytes, 0);
    world_close(&world);
}

static void failed_batch_keeps_those_before_it(void)
{
    struct world world;
    world_open(&world,
               &(struct world_options){.layout = world_layout(HL_LAYOUT_SPLIT, 0, 128), .publisher = true});
    fill_pages(&world, 0, 0, 0, 100, 0);
    hl_software_fail_submit(world.dev, 3, 700); /* the second batch's copies: half of them were accepted */
    world_publish(&world, 0, 0, 0, 0, 100, 0);
    expect_outcome(&world, 0, 0, HL_E_DEVICE, MANAGER_PUBLISH_BATCH, 0);
    CU_ASSERT_EQUAL(used_bytes(&world), MANAGER_PUBLISH_BATCH * world.layout->groups[0].block_bytes);
    CU_ASSERT_TRUE(stored_bytes_are_right(&world, 0, 63));
    CU_ASSERT_FALSE(is_visible(&world, 64));
    world_close(&world);
}

/* The stream cannot be drained: its space may still be written, and is never used again. */
static void copy_whose_end_is_unknown_costs_its_space(void)
{
    struct world world;
    world_open(&world, &(struct world_options){.publisher = true});
    fill_pages(&world, 0, 0, 1, 3, 0);
    hl_software_fail_execution(world.dev, 1, 700);
    world_publish(&world, 0, 0, 0, 1, 3, 0);
    expect_outcome(&world, 0, 0, HL_E_DEVICE, 0, 0);
    uint64_t lost = 3 * world.layout->groups[0].block_bytes;
    CU_ASSERT_EQUAL(world.manager->leaked_bytes, lost);
    CU_ASSERT_EQUAL(used_bytes(&world), lost);
    CU_ASSERT_PTR_NOT_NULL(strstr(world.log, "bytes of arena are given up"));
    CU_ASSERT_FALSE(is_visible(&world, 1));
    world_publish(&world, 0, 0, 0, 1, 3, 0); /* on a stream of its own */
    expect_outcome(&world, 0, 0, HL_OK, 3, 0);
    CU_ASSERT_TRUE(stored_bytes_are_right(&world, 0, 1));
    CU_ASSERT_EQUAL(used_bytes(&world), 2 * lost);
    world_check(&world);
    world_close(&world);
}

/* What the engine's death leaves: the batch under way is finished, the binding stays until then. */
static void death_during_a_publish_waits_for_its_copies(void)
{
    struct world world;
    world_open(&world,
               &(struct world_options){.layout = world_layout(HL_LAYOUT_SPLIT, 0, 128), .publisher = true});
    struct manager_session *session = world_session(&world, 0);
    fill_pages(&world, 0, 0, 0, 100, 0);
    hl_software_hold(world.dev, publishing(&world), 2); /* its first batch ends with the event */
    world_publish(&world, 0, 0, 0, 0, 100, 0);
    world_publish(&world, 0, 1, 0, 200, 1, 0);
    hl_software_wait_held(world.dev, publishing(&world));
    world_engine_dies(&world, 0);
    CU_ASSERT_EQUAL(session->state, MANAGER_SESSION_UNRESOLVED);
    CU_ASSERT_TRUE(session->bindings[0].live);
    hl_software_release(world.dev, publishing(&world));
    manager_publisher_stop(world.manager, 0);
    CU_ASSERT_EQUAL(session->state, MANAGER_SESSION_EMPTY);
    CU_ASSERT_TRUE(stored_bytes_are_right(&world, 0, 0) && stored_bytes_are_right(&world, 0, 63));
    CU_ASSERT_FALSE(is_visible(&world, 64) || is_visible(&world, 200));
    world_close(&world);
}

/* --- pressure --- */

static void pressure_evicts_what_nobody_uses(void)
{
    /* 128 blocks of 512 bytes. */
    struct world world;
    world_open(&world, &(struct world_options){.arena_bytes = 64 * HL_KIB, .publisher = true});
    for (uint64_t key = 0; key < 128; key++)
        world_store(&world, 0, key);
    engine_start(&world, 1, 0, 40, 30, 0); /* pins 40 to 69 */
    world_look(&world, 1, 0);
    uint64_t lease = world_query(&world, 1, 0, 90, 10, NULL);
    CU_ASSERT_TRUE(lease != 0);
    fill_pages(&world, 0, 0, 1000, 60, 0);
    world_publish(&world, 0, 0, 0, 1000, 60, 0);
    expect_outcome(&world, 0, 0, HL_OK, 60, 0);
    CU_ASSERT_EQUAL(world.manager->counters.evicted_blocks, 60);
    for (uint64_t key = 40; key < 70; key++)
        CU_ASSERT_TRUE(stored_bytes_are_right(&world, 0, key));
    for (uint64_t key = 90; key < 100; key++)
        CU_ASSERT_TRUE(stored_bytes_are_right(&world, 0, key));
    for (uint64_t key = 1000; key < 1060; key++)
        CU_ASSERT_TRUE(stored_bytes_are_right(&world, 0, key));
    engine_run_part(&world, 1, 0);
    world_look(&world, 1, 0);
    for (uint32_t i = 0; i < 30; i++)
        CU_ASSERT_TRUE(world_page_holds(&world, 1, 0, 2 * i, 40 + i));
    world_check(&world);
    world_close(&world);
}

static void no_space_says_how_many_were_stored(void)
{
    struct world world;
    world_open(&world, &(struct world_options){.arena_bytes = 64 * HL_KIB, .publisher = true});
    for (uint64_t key = 0; key < 128; key++)
        world_store(&world, 0, key);
    engine_start(&world, 1, 0, 0, 10, 0);
    world_look(&world, 1, 0);
    uint64_t lease = world_query(&world, 1, 0, 10, 113, NULL); /* 5 blocks are nobody's */
    CU_ASSERT_TRUE(lease != 0);
    fill_pages(&world, 0, 0, 1000, 20, 0);
    world_publish(&world, 0, 0, 0, 1000, 20, 0);
    expect_outcome(&world, 0, 0, HL_E_NOSPACE, 5, 0);
    for (uint64_t key = 0; key < 123; key++)
        CU_ASSERT_TRUE(stored_bytes_are_right(&world, 0, key));
    for (uint64_t key = 1000; key < 1005; key++)
        CU_ASSERT_TRUE(stored_bytes_are_right(&world, 0, key));
    CU_ASSERT_FALSE(is_visible(&world, 1005));
    world_check(&world);
    world_close(&world);
}

static void full_index_makes_room_too(void)
{
    struct world world;
    world_open(&world, &(struct world_options){.index_blocks = 16, .publisher = true});
    for (uint64_t key = 0; key < 16; key++)
        world_store(&world, 0, key);
    fill_pages(&world, 0, 0, 100, 4, 0);
    world_publish(&world, 0, 0, 0, 100, 4, 0);
    expect_outcome(&world, 0, 0, HL_OK, 4, 0);
    CU_ASSERT_TRUE(stored_bytes_are_right(&world, 0, 103));
    uint32_t hits;
    for (uint64_t key = 0; key < 104; key++)
        if (is_visible(&world, key))
            CU_ASSERT_TRUE(world_query(&world, 1, 0, key, 1, &hits) != 0);
    world_publish(&world, 0, 0, 0, 200, 2, 0);
    expect_outcome(&world, 0, 0, HL_E_NOSPACE, 0, 0);
    world_check(&world);
    world_close(&world);
}

static void several_arenas_are_filled_evenly(void)
{
    struct world world;
    world_open(&world, &(struct world_options){.arena_bytes = 64 * HL_KIB, .arenas = 3, .publisher = true});
    for (uint64_t key = 0; key < 384; key++)
        world_store(&world, 0, key);
    CU_ASSERT_EQUAL(world.manager->counters.evicted_blocks, 0);
    for (uint64_t key = 0; key < 384; key++)
        CU_ASSERT_TRUE(stored_bytes_are_right(&world, 0, key));
    fill_pages(&world, 0, 0, 1000, 8, 0);
    world_publish(&world, 0, 0, 0, 1000, 8, 0);
    expect_outcome(&world, 0, 0, HL_OK, 8, 0);
    CU_ASSERT_EQUAL(world.manager->counters.evicted_blocks, 8);
    struct hl_allocation allocation;
    uint32_t arena;
    pthread_mutex_lock(&world.manager->lock);
    HL_EXPECT_STATUS(manager_store_take(world.manager, 65 * HL_KIB, &arena, &allocation, &world.err),
                     HL_E_RANGE, world.err);
    HL_EXPECT_STATUS(manager_store_take(world.manager, 0, &arena, &allocation, &world.err), HL_E_RANGE,
                     world.err);
    HL_REQUIRE_OK(manager_store_take(world.manager, 64 * HL_KIB, &arena, &allocation, &world.err), world.err);
    manager_store_give(world.manager, arena, allocation.id); /* a block as large as an arena */
    pthread_mutex_unlock(&world.manager->lock);
    world_check(&world);
    world_close(&world);
}

/* Free bytes in pieces are no room: another arena is asked before anything is evicted. */
static void arena_in_pieces_is_passed_over(void)
{
    struct world world;
    struct hl_allocation pieces[16], block;
    uint32_t arena;
    world_open(&world, &(struct world_options){.arena_bytes = 64 * HL_KIB, .arenas = 2});
    world_store(&world, 0, 1);
    for (uint32_t i = 0; i < 16; i++) /* 4 KiB each; every second one is given back */
        HL_REQUIRE_OK(
            hl_arena_alloc(world.manager->arenas[0], 4 * HL_KIB - (i == 0 ? 512 : 0), &pieces[i], &world.err),
            world.err);
    for (uint32_t i = 1; i < 16; i += 2)
        HL_REQUIRE_OK(hl_arena_free(world.manager->arenas[0], pieces[i].id, &world.err), world.err);
    struct hl_allocation half;
    HL_REQUIRE_OK(hl_arena_alloc(world.manager->arenas[1], 40 * HL_KIB, &half, &world.err), world.err);
    pthread_mutex_lock(&world.manager->lock);
    HL_REQUIRE_OK(manager_store_take(world.manager, 8 * HL_KIB, &arena, &block, &world.err), world.err);
    CU_ASSERT_EQUAL(arena, 1); /* 24 KiB in one piece, where arena 0 has 32 KiB in eight */
    CU_ASSERT_EQUAL(world.manager->counters.evicted_blocks, 0);
    manager_store_give(world.manager, arena, block.id);
    manager_store_give(world.manager, 1, half.id);
    for (uint32_t i = 0; i < 16; i += 2)
        manager_store_give(world.manager, 0, pieces[i].id);
    pthread_mutex_unlock(&world.manager->lock);
    world_check(&world);
    world_close(&world);
}

HL_TESTS(publisher, HL_CASE(bytes_are_exact_for_every_layout), HL_CASE(groups_are_published_apart),
         HL_CASE(bytes_that_the_layout_leaves_out_are_zero), HL_CASE(large_publishes_go_in_batches),
         HL_CASE(lone_contiguous_block_is_one_copy),
         HL_CASE(blocks_are_invisible_until_their_bytes_are_complete),
         HL_CASE(a_finished_slot_publishes_its_outcome),
         HL_CASE(block_that_is_there_or_on_its_way_is_counted_present),
         HL_CASE(sessions_take_turns_and_each_is_served_in_order),
         HL_CASE(slow_publish_warns_once_a_minute_and_frees_nothing),
         HL_CASE(stopping_finishes_what_was_accepted), HL_CASE(refused_copy_gives_back_keys_and_space),
         HL_CASE(failed_batch_keeps_those_before_it), HL_CASE(copy_whose_end_is_unknown_costs_its_space),
         HL_CASE(death_during_a_publish_waits_for_its_copies), HL_CASE(pressure_evicts_what_nobody_uses),
         HL_CASE(no_space_says_how_many_were_stored), HL_CASE(full_index_makes_room_too),
         HL_CASE(several_arenas_are_filled_evenly), HL_CASE(arena_in_pieces_is_passed_over));
