#include <stdlib.h>

#include "manager/index_private.h"
#include "manager/index_testing.h"

/* The slot tables alone, with tags that no keyed hash would give: all equal, all in the last home, few
 * values. The model is a list of (tag, place). */

enum { CAPACITY = 16384, PLACES = 9000 };

struct world {
    hl_index *index;
    hl_random random;
    uint32_t tags[PLACES];
    bool there[PLACES];
    unsigned shape;
};

static uint32_t choose_tag(struct world *world)
{
    uint32_t any = (uint32_t)hl_random_next(&world->random);
    switch (world->shape) {
    case 0:
        return any;
    case 1:
        return UINT32_MAX; /* one tag, in the last home */
    case 2:
        return 0;
    case 3:
        return any % 3 * 0x7fffffffu; /* three tags */
    case 4:
        return UINT32_MAX - any % 100000; /* the last homes: all of them behind the homes */
    default:
        return 0x80000000u + any % 4000000; /* one dense run */
    }
}

static void check_table(const struct world *world, const struct hl_index_table *table, size_t *seen)
{
    uint32_t before = 0;
    for (size_t p = 0; table->slots && p < hl_index_slot_count(table); p++) {
        struct hl_index_slot slot = table->slots[p];
        if (!slot.entry)
            continue;
        size_t home = hl_index_home(table, slot.tag);
        CU_ASSERT_FATAL(slot.entry <= PLACES && world->there[slot.entry - 1]);
        CU_ASSERT_FATAL(world->tags[slot.entry - 1] == slot.tag);
        CU_ASSERT_FATAL(hl_index_table_of(world->index, slot.tag) == table);
        CU_ASSERT_FATAL(home <= p && before <= slot.tag);
        CU_ASSERT_FATAL(home == p || table->slots[p - 1].entry != 0);
        before = slot.tag;
        ++*seen;
    }
}

static void check_tables(const struct world *world)
{
    size_t seen = 0, expected = 0;
    check_table(world, &world->index->table, &seen);
    check_table(world, &world->index->former, &seen);
    for (unsigned i = 0; i < PLACES; i++)
        expected += world->there[i];
    CU_ASSERT_EQUAL_FATAL(seen, expected);
}

static void add(struct world *world, uint32_t place)
{
    hl_index *index = world->index;
    if (index->live == index->table.limit)
        CU_ASSERT_TRUE_FATAL(hl_index_table_grow(index));
    hl_index_table_move(index);
    world->tags[place] = choose_tag(world);
    world->there[place] = true;
    hl_index_table_insert(index, world->tags[place], place);
    index->live++;
}

static void take(struct world *world, uint32_t place)
{
    hl_index_table_remove(world->index, world->tags[place], place);
    world->there[place] = false;
    world->index->live--;
}

static void run_shape(unsigned shape, unsigned places, uint64_t seed)
{
    struct world *world = calloc(1, sizeof *world);
    CU_ASSERT_PTR_NOT_NULL_FATAL(world);
    world->index = open_index(CAPACITY, NULL);
    world->shape = shape;
    hl_random_seed(&world->random, seed);
    for (uint32_t place = 0; place < places; place++) {
        add(world, place);
        uint32_t other = (uint32_t)hl_random_below(&world->random, place + 1);
        if (world->there[other] && place % 4 == 0)
            take(world, other);
        if (place % 500 == 0 || (world->index->former.slots && place % 25 == 0))
            check_tables(world);
    }
    check_tables(world);
    for (uint32_t place = 0; place < places; place++)
        if (world->there[place]) {
            take(world, place);
            if (place % 500 == 0)
                check_tables(world);
        }
    check_tables(world);
    hl_index_destroy(world->index);
    free(world);
}

static void scattered_tags_are_kept_through_moves(void)
{
    run_shape(0, PLACES, 1);
    CU_PASS("checked on the way");
}

static void tags_that_all_meet_in_one_place_are_kept(void)
{
    run_shape(1, 6500, 2);
    run_shape(2, 6500, 3);
    CU_PASS("checked on the way");
}

static void few_tags_are_kept(void)
{
    run_shape(3, 6500, 4);
    CU_PASS("checked on the way");
}

static void tags_of_the_last_homes_are_kept(void)
{
    run_shape(4, 6500, 5);
    CU_PASS("checked on the way");
}

static void one_dense_run_is_kept(void)
{
    run_shape(5, 6500, 6);
    CU_PASS("checked on the way");
}

/* An attacker who knew the seed: keys searched for until all of them have the first home. */
static void keys_of_one_home_are_found_and_removed(void)
{
    enum { KEYS = 100 };
    hl_index *index = open_index(4096, NULL);
    struct hl_index_key keys[KEYS];
    hl_entry_id ids[KEYS], id;
    hl_error err;
    unsigned chosen = 0;
    for (uint64_t number = 0; chosen < KEYS; number++) {
        struct hl_index_key key = key_number(number);
        uint32_t tag = (uint32_t)(hl_index_hash(test_seed, 1u << 8, key.hash) >> 32);
        if (hl_index_home(&index->table, tag) != 17)
            continue;
        struct hl_index_source source = source_number(number, 10);
        ids[chosen] = must_reserve(index, &key);
        HL_REQUIRE_OK(hl_index_complete(index, ids[chosen], &source, &err), err);
        keys[chosen++] = key;
    }
    expect_sound(index);
    for (unsigned gone = 0; gone < KEYS; gone++) {
        struct hl_index_victim victim;
        HL_EXPECT_OK(hl_index_remove(index, ids[(gone * 37) % KEYS], &victim, &err), err);
        ids[(gone * 37) % KEYS] = 0;
        for (unsigned i = 0; i < KEYS; i++) {
            id = 0;
            CU_ASSERT_EQUAL(hl_index_find(index, &keys[i], &id, &err), ids[i] ? HL_OK : HL_E_MISS);
            CU_ASSERT_EQUAL(id, ids[i]);
        }
    }
    expect_sound(index);
    hl_index_destroy(index);
}

/* Two keys with one 32-bit tag, as in ten million there are some: only the whole key decides. */
static void keys_of_one_tag_are_told_apart(void)
{
    hl_index *index = open_index(16, NULL);
    struct hl_index_key key = key_number(1), other = key_number(2);
    uint32_t tag = (uint32_t)(hl_index_hash(test_seed, 1u << 8, key.hash) >> 32), place;
    hl_entry_id first = must_publish(index, 1, 10), second = must_publish(index, 2, 10);
    uint32_t its_tag = (uint32_t)(hl_index_hash(test_seed, 1u << 8, other.hash) >> 32);
    hl_index_table_remove(index, its_tag, (uint32_t)second);
    hl_index_table_insert(index, tag, (uint32_t)second); /* as if its hash were the first one's */
    CU_ASSERT_TRUE(hl_index_table_find(index, tag, 1u << 8, key.hash, &place));
    CU_ASSERT_EQUAL(place, (uint32_t)first);
    CU_ASSERT_TRUE(hl_index_table_find(index, tag, 1u << 8, other.hash, &place));
    CU_ASSERT_EQUAL(place, (uint32_t)second);
    CU_ASSERT_FALSE(hl_index_table_find(index, tag, 2u << 8, key.hash, &place));
    hl_index_destroy(index);
}

/* The pause of one publish is bounded by runs, not by the table. */
static void a_move_ends_before_the_next_has_to_start(void)
{
    enum { BLOCKS = 16384 };
    hl_index *index = open_index(BLOCKS, NULL);
    unsigned moving = 0, moves = 0;
    for (unsigned i = 0; i < BLOCKS; i++) {
        bool before = index->former.slots != NULL;
        must_publish(index, i, 10);
        moving += index->former.slots != NULL;
        moves += !before && index->former.slots != NULL;
    }
    CU_ASSERT_EQUAL(moves, 2);
    CU_ASSERT_TRUE(moving > 100 && moving < BLOCKS / 16);
    CU_ASSERT_EQUAL(index->table.limit, BLOCKS);
    CU_ASSERT_PTR_NULL(index->former.slots);
    hl_index_destroy(index);
}

HL_TESTS(index_slots, HL_CASE(scattered_tags_are_kept_through_moves),
         HL_CASE(tags_that_all_meet_in_one_place_are_kept), HL_CASE(few_tags_are_kept),
         HL_CASE(tags_of_the_last_homes_are_kept), HL_CASE(one_dense_run_is_kept),
         HL_CASE(keys_of_one_home_are_found_and_removed), HL_CASE(keys_of_one_tag_are_told_apart),
         HL_CASE(a_move_ends_before_the_next_has_to_start));
