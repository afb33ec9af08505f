#include <stdlib.h>

#include "manager/index_testing.h"

/* The index against a model that is as plain as can be: an array of what should be there. */

enum { UNIVERSE = 700, CAPACITY = 300, STEPS = 60000 };

struct model_block {
    enum hl_index_state state;
    hl_entry_id id, stale;
    uint64_t bytes;
    uint32_t pins;
};

struct world {
    hl_index *index;
    hl_random random;
    struct model_block blocks[UNIVERSE];
    unsigned live;
};

static void model_leave(struct world *world, uint64_t number)
{
    struct model_block *block = &world->blocks[number];
    *block = (struct model_block){.stale = block->id};
    world->live--;
}

static void try_reserve(struct world *world, uint64_t number)
{
    struct model_block *block = &world->blocks[number];
    struct hl_index_key key = key_number(number);
    hl_entry_id id = 0;
    bool present = false;
    hl_error err;
    hl_status expected = block->state == HL_INDEX_WRITING                           ? HL_E_BUSY
                         : block->state == HL_INDEX_FREE && world->live == CAPACITY ? HL_E_NOSPACE
                                                                                    : HL_OK;
    HL_EXPECT_STATUS(hl_index_reserve(world->index, &key, &id, &present, &err), expected, err);
    if (expected != HL_OK)
        return;
    CU_ASSERT_EQUAL(present, block->state == HL_INDEX_PRESENT);
    if (present) {
        CU_ASSERT_EQUAL(id, block->id);
        return;
    }
    CU_ASSERT_NOT_EQUAL(id, block->stale);
    block->id = id;
    block->state = HL_INDEX_WRITING;
    world->live++;
}

static void try_complete(struct world *world, uint64_t number)
{
    struct model_block *block = &world->blocks[number];
    uint64_t bytes = 1 + hl_random_below(&world->random, 1000);
    struct hl_index_source source = source_number(number, bytes);
    hl_error err;
    hl_status expected = block->state == HL_INDEX_WRITING ? HL_OK
                         : block->state == HL_INDEX_FREE  ? HL_E_NOT_FOUND
                                                          : HL_E_STATE;
    hl_entry_id id = block->state == HL_INDEX_FREE ? block->stale : block->id;
    HL_EXPECT_STATUS(hl_index_complete(world->index, id, &source, &err), expected, err);
    if (expected == HL_OK) {
        block->state = HL_INDEX_PRESENT;
        block->bytes = bytes;
    }
}

static void try_abandon(struct world *world, uint64_t number)
{
    struct model_block *block = &world->blocks[number];
    hl_error err;
    if (block->state != HL_INDEX_WRITING)
        return;
    HL_EXPECT_OK(hl_index_abandon(world->index, block->id, &err), err);
    model_leave(world, number);
}

static void try_pin(struct world *world, uint64_t number)
{
    struct model_block *block = &world->blocks[number];
    hl_error err;
    if (block->state != HL_INDEX_PRESENT)
        return;
    HL_EXPECT_OK(hl_index_pin(world->index, block->id, &err), err);
    block->pins++;
}

static void try_unpin(struct world *world, uint64_t number)
{
    struct model_block *block = &world->blocks[number];
    hl_error err;
    if (block->state != HL_INDEX_PRESENT)
        return;
    HL_EXPECT_STATUS(hl_index_unpin(world->index, block->id, &err), block->pins ? HL_OK : HL_E_STATE, err);
    block->pins -= block->pins > 0;
}

static void try_remove(struct world *world, uint64_t number)
{
    struct model_block *block = &world->blocks[number];
    struct hl_index_victim victim;
    hl_error err;
    if (block->state != HL_INDEX_PRESENT)
        return;
    HL_EXPECT_STATUS(hl_index_remove(world->index, block->id, &victim, &err), block->pins ? HL_E_BUSY : HL_OK,
                     err);
    if (!block->pins)
        model_leave(world, number);
}

static void evict_one(struct world *world)
{
    struct hl_index_victim victim;
    hl_error err;
    unsigned evictable = 0;
    for (unsigned i = 0; i < UNIVERSE; i++)
        evictable += world->blocks[i].state == HL_INDEX_PRESENT && !world->blocks[i].pins;
    hl_status expected = evictable ? HL_OK : HL_E_NOSPACE;
    HL_EXPECT_STATUS(hl_index_evict_next(world->index, &victim, &err), expected, err);
    if (expected != HL_OK)
        return;
    uint64_t number;
    memcpy(&number, victim.key.hash, sizeof number);
    CU_ASSERT_FATAL(number < UNIVERSE);
    struct model_block *block = &world->blocks[number];
    CU_ASSERT_FATAL(block->state == HL_INDEX_PRESENT && block->pins == 0);
    struct hl_index_source source = source_number(number, block->bytes);
    CU_ASSERT_EQUAL(victim.id, block->id);
    CU_ASSERT_EQUAL(memcmp(&victim.source, &source, sizeof source), 0);
    model_leave(world, number);
}

static void look_up_run(struct world *world, uint64_t number)
{
    unsigned char keys[40][HL_KEY_BYTES];
    hl_entry_id ids[40];
    size_t count = hl_random_below(&world->random, 41), expected = 0;
    for (size_t i = 0; i < count; i++) {
        struct hl_index_key key = key_number((number + i) % UNIVERSE);
        memcpy(keys[i], key.hash, HL_KEY_BYTES);
    }
    while (expected < count && world->blocks[(number + expected) % UNIVERSE].state == HL_INDEX_PRESENT)
        expected++;
    CU_ASSERT_EQUAL_FATAL(hl_index_find_prefix(world->index, 1, 0, keys[0], count, ids), expected);
    for (size_t i = 0; i < expected; i++)
        CU_ASSERT_EQUAL(ids[i], world->blocks[(number + i) % UNIVERSE].id);
}

static void compare_totals(struct world *world)
{
    struct hl_index_stats stats = index_stats(world->index), model = {0};
    for (unsigned i = 0; i < UNIVERSE; i++) {
        const struct model_block *block = &world->blocks[i];
        model.writing += block->state == HL_INDEX_WRITING;
        model.present += block->state == HL_INDEX_PRESENT;
        model.present_bytes += block->bytes;
        model.pinned += block->pins > 0;
        model.pinned_bytes += block->pins ? block->bytes : 0;
        model.pins += block->pins;
    }
    CU_ASSERT_EQUAL(stats.writing, model.writing);
    CU_ASSERT_EQUAL(stats.present, model.present);
    CU_ASSERT_EQUAL(stats.present_bytes, model.present_bytes);
    CU_ASSERT_EQUAL(stats.pinned, model.pinned);
    CU_ASSERT_EQUAL(stats.pinned_bytes, model.pinned_bytes);
    CU_ASSERT_EQUAL(stats.pins, model.pins);
    CU_ASSERT_EQUAL(stats.small + stats.main + stats.set_aside, stats.present);
}

static void step(struct world *world)
{
    uint64_t number = hl_random_below(&world->random, UNIVERSE);
    switch (hl_random_below(&world->random, 12)) {
    case 0:
    case 1:
    case 2:
        try_reserve(world, number);
        break;
    case 3:
    case 4:
    case 5:
        try_complete(world, number);
        break;
    case 6:
        try_abandon(world, number);
        break;
    case 7:
        try_pin(world, number);
        break;
    case 8:
        try_unpin(world, number);
        break;
    case 9:
        try_remove(world, number);
        break;
    case 10:
        evict_one(world);
        break;
    default:
        look_up_run(world, number);
    }
}

static void any_calls_leave_what_the_model_says(void)
{
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct world *world = calloc(1, sizeof *world);
        CU_ASSERT_PTR_NOT_NULL_FATAL(world);
        hl_random_seed(&world->random, seed);
        world->index = open_index(CAPACITY, NULL);
        for (unsigned i = 0; i < STEPS; i++) {
            step(world);
            if (i % 500 == 0) {
                compare_totals(world);
                expect_sound(world->index);
            }
        }
        hl_index_destroy(world->index);
        free(world);
    }
}

/* Every key stays where it belongs while tables are moved, in any state of the move. */
static void keys_stay_found_while_tables_grow(void)
{
    enum { BLOCKS = 20000 };
    static hl_entry_id ids[BLOCKS];
    hl_index *index = open_index(BLOCKS, NULL);
    hl_random random;
    hl_error err;
    unsigned present = 0;
    hl_random_seed(&random, 5);
    for (unsigned i = 0; i < BLOCKS; i++) {
        ids[i] = must_publish(index, i, 10);
        present++;
        uint64_t other = hl_random_below(&random, i + 1);
        if (i % 5 == 0 && ids[other]) {
            struct hl_index_victim victim;
            HL_EXPECT_OK(hl_index_remove(index, ids[other], &victim, &err), err);
            ids[other] = 0;
            present--;
        }
        other = hl_random_below(&random, i + 1);
        struct hl_index_key key = key_number(other);
        hl_entry_id id = 0;
        hl_status expected = ids[other] ? HL_OK : HL_E_MISS;
        HL_EXPECT_STATUS(hl_index_find(index, &key, &id, &err), expected, err);
        CU_ASSERT_EQUAL(id, ids[other]);
        bool moving = (i > 4096 && i < 5600) || (i > 10200 && i < 10400);
        if (i % 1000 == 0 || (moving && i % 50 == 0))
            expect_sound(index);
    }
    CU_ASSERT_EQUAL(index_stats(index).present, present);
    for (unsigned i = 0; i < BLOCKS; i++) {
        struct hl_index_key key = key_number(i);
        hl_entry_id id = 0;
        CU_ASSERT_EQUAL(hl_index_find(index, &key, &id, &err), ids[i] ? HL_OK : HL_E_MISS);
        CU_ASSERT_EQUAL(id, ids[i]);
    }
    hl_index_destroy(index);
}

HL_TESTS(index_property, HL_CASE(any_calls_leave_what_the_model_says),
         HL_CASE(keys_stay_found_while_tables_grow));
