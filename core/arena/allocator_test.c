#include "core/arena/allocator.h"

#include <stdlib.h>
#include <string.h>

#include "core/arena/allocator_testing.h"
#include "core/arena/ranges.h"

/* --- the contract of each call --- */

static void a_new_space_is_one_free_range_a_chunk(void)
{
    hl_allocator *allocator = open_space(10 * HL_MIB, 4 * HL_MIB);
    struct hl_arena_stats stats = stats_of(allocator);
    CU_ASSERT_EQUAL(stats.bytes, 10 * HL_MIB);
    CU_ASSERT_EQUAL(stats.used_bytes, 0);
    CU_ASSERT_EQUAL(stats.free_bytes, 10 * HL_MIB);
    CU_ASSERT_EQUAL(stats.largest_free, 4 * HL_MIB);
    CU_ASSERT_EQUAL(stats.free_ranges, 3);
    CU_ASSERT_EQUAL(stats.live, 0);
    CU_ASSERT_EQUAL(stats.last_id, 0);
    expect_sound(allocator);
    hl_allocator_destroy(allocator);
    hl_allocator_destroy(NULL);
}

static void sizes_are_rounded_up_to_the_alignment(void)
{
    hl_allocator *allocator = open_space(1 * HL_MIB, 1 * HL_MIB);
    struct hl_allocation one = must_alloc(allocator, 1), two = must_alloc(allocator, UNIT + 1);
    CU_ASSERT_EQUAL(one.bytes, UNIT);
    CU_ASSERT_EQUAL(two.bytes, 2 * UNIT);
    CU_ASSERT_EQUAL(one.offset % UNIT, 0);
    CU_ASSERT_EQUAL(two.offset, UNIT);
    CU_ASSERT_EQUAL(stats_of(allocator).used_bytes, 3 * UNIT);
    hl_allocator_destroy(allocator);
}

static void refused_sizes_change_nothing(void)
{
    hl_allocator *allocator = open_space(2 * HL_MIB, 1 * HL_MIB);
    struct hl_allocation allocation = {77, 77, 77};
    hl_error err;
    CU_ASSERT_EQUAL(hl_allocator_alloc(allocator, 0, &allocation, &err), HL_E_INVALID);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "bytes"));
    CU_ASSERT_EQUAL(hl_allocator_alloc(allocator, HL_MIB + 1, &allocation, &err), HL_E_RANGE);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "1048577"));
    CU_ASSERT_EQUAL(hl_allocator_alloc(allocator, UINT64_MAX, &allocation, &err), HL_E_RANGE);
    CU_ASSERT_EQUAL(hl_allocator_alloc(allocator, UINT64_MAX, &allocation, NULL), HL_E_RANGE);
    must_alloc(allocator, HL_MIB);
    must_alloc(allocator, HL_MIB);
    CU_ASSERT_EQUAL(hl_allocator_alloc(allocator, 1, &allocation, &err), HL_E_NOSPACE);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "0 are free"));
    CU_ASSERT_EQUAL(allocation.id, 77);
    CU_ASSERT_EQUAL(allocation.offset, 77);
    CU_ASSERT_EQUAL(stats_of(allocator).last_id, 2);
    CU_ASSERT_EQUAL(stats_of(allocator).largest_free, 0);
    hl_allocator_destroy(allocator);
}

static void a_space_smaller_than_a_chunk_refuses_more_than_itself(void)
{
    hl_allocator *allocator = open_space(1 * HL_MIB, HL_ARENA_CHUNK_BYTES);
    struct hl_allocation allocation;
    hl_error err;
    CU_ASSERT_EQUAL(hl_allocator_alloc(allocator, HL_MIB + 1, &allocation, &err), HL_E_RANGE);
    must_alloc(allocator, HL_MIB);
    hl_allocator_destroy(allocator);
}

static void ids_grow_also_when_an_offset_comes_back(void)
{
    hl_allocator *allocator = open_space(1 * HL_MIB, 1 * HL_MIB);
    hl_error err;
    for (uint64_t id = 1; id <= 5; id++) {
        struct hl_allocation allocation = must_alloc(allocator, 4096);
        CU_ASSERT_EQUAL(allocation.id, id);
        CU_ASSERT_EQUAL(allocation.offset, 0);
        must_free(allocator, id);
        CU_ASSERT_EQUAL(hl_allocator_free(allocator, id, &err), HL_E_NOT_FOUND);
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "has been freed"));
    }
    hl_allocator_destroy(allocator);
}

static void only_live_allocations_are_found(void)
{
    hl_allocator *allocator = open_space(1 * HL_MIB, 1 * HL_MIB);
    struct hl_allocation first = must_alloc(allocator, 100), second = must_alloc(allocator, 5000), found;
    hl_error err;
    HL_EXPECT_OK(hl_allocator_find(allocator, second.id, &found, &err), err);
    CU_ASSERT_EQUAL(memcmp(&found, &second, sizeof found), 0);
    must_free(allocator, first.id);
    found = second;
    CU_ASSERT_EQUAL(hl_allocator_find(allocator, first.id, &found, &err), HL_E_NOT_FOUND);
    CU_ASSERT_EQUAL(hl_allocator_find(allocator, 3, &found, &err), HL_E_NOT_FOUND);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "was never given"));
    CU_ASSERT_EQUAL(hl_allocator_find(allocator, 0, &found, &err), HL_E_NOT_FOUND);
    CU_ASSERT_EQUAL(hl_allocator_free(allocator, 0, &err), HL_E_NOT_FOUND);
    CU_ASSERT_EQUAL(hl_allocator_free(allocator, UINT64_MAX, NULL), HL_E_NOT_FOUND);
    CU_ASSERT_EQUAL(found.id, second.id);
    hl_allocator_destroy(allocator);
}

static void the_tightest_hole_is_taken(void)
{
    static const uint64_t holes[] = {4096, 1024, 2048, 1024};
    hl_allocator *allocator = open_space(1 * HL_MIB, 1 * HL_MIB);
    struct hl_allocation hole[4];
    for (int i = 0; i < 4; i++) {
        hole[i] = must_alloc(allocator, holes[i]);
        must_alloc(allocator, UNIT); /* keeps the holes apart */
    }
    for (int i = 0; i < 4; i++)
        must_free(allocator, hole[i].id);
    CU_ASSERT_EQUAL(must_alloc(allocator, 768).offset, hole[1].offset); /* lowest of the two equal ones */
    CU_ASSERT_EQUAL(must_alloc(allocator, 1024).offset, hole[3].offset);
    CU_ASSERT_EQUAL(must_alloc(allocator, 2048).offset, hole[2].offset);
    CU_ASSERT_EQUAL(must_alloc(allocator, 2049).offset, hole[0].offset);
    expect_sound(allocator);
    hl_allocator_destroy(allocator);
}

static void free_neighbours_merge_in_either_order_but_not_across_chunks(void)
{
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (int i = 0; i < 6; i++) {
        hl_allocator *allocator = open_space(2 * HL_MIB, 1 * HL_MIB);
        uint64_t id[3];
        id[0] = must_alloc(allocator, HL_MIB / 2).id;
        id[1] = must_alloc(allocator, HL_MIB / 2).id;
        id[2] = must_alloc(allocator, HL_MIB).id;
        for (int j = 0; j < 3; j++) {
            must_free(allocator, id[orders[i][j]]);
            expect_sound(allocator);
        }
        CU_ASSERT_EQUAL(stats_of(allocator).free_ranges, 2);
        CU_ASSERT_EQUAL(stats_of(allocator).largest_free, HL_MIB);
        hl_allocator_destroy(allocator);
    }
}

/* --- the records' own memory --- */

struct counted_memory {
    long live;
    long calls;
    long fail_at;      /* this call and later ones fail; 0: none */
    size_t fail_other; /* every size but this fails; 0: none */
};

static void *counted_get(void *user, size_t bytes)
{
    struct counted_memory *memory = user;
    memory->calls++;
    if ((memory->fail_at && memory->calls >= memory->fail_at) ||
        (memory->fail_other && bytes != memory->fail_other))
        return NULL;
    memory->live++;
    return calloc(1, bytes);
}

static void counted_put(void *user, void *bytes)
{
    ((struct counted_memory *)user)->live--;
    free(bytes);
}

static void creation_without_memory_leaks_nothing(void)
{
    uint64_t chunks = 3 * HL_RANGE_SLAB_RANGES;
    for (long fail_at = 1; fail_at <= 5; fail_at++) {
        struct counted_memory memory = {.fail_at = fail_at};
        struct hl_allocator_memory source = {counted_get, counted_put, &memory};
        hl_allocator *allocator = NULL;
        hl_error err;
        CU_ASSERT_EQUAL(hl_allocator_create(chunks * 4096, 4096, &source, &allocator, &err), HL_E_NOMEM);
        CU_ASSERT_PTR_NULL(allocator);
        CU_ASSERT_EQUAL(memory.calls, fail_at);
        CU_ASSERT_EQUAL(memory.live, 0);
    }
}

static void allocation_without_memory_changes_nothing(void)
{
    struct counted_memory memory = {0};
    struct hl_allocator_memory source = {counted_get, counted_put, &memory};
    struct hl_allocation allocation = {0};
    hl_allocator *allocator = NULL;
    hl_error err;
    HL_REQUIRE_OK(hl_allocator_create(16 * HL_MIB, 16 * HL_MIB, &source, &allocator, &err), err);
    memory.fail_at = 1;
    hl_status status = HL_OK;
    uint64_t done = 0;
    while ((status = hl_allocator_alloc(allocator, UNIT, &allocation, &err)) == HL_OK)
        done++;
    CU_ASSERT_EQUAL(status, HL_E_NOMEM);
    CU_ASSERT_EQUAL(done, HL_RANGE_SLAB_RANGES - 1);
    CU_ASSERT_EQUAL(stats_of(allocator).live, done);
    CU_ASSERT_EQUAL(stats_of(allocator).last_id, done);
    expect_sound(allocator);
    /* What needs no new record still succeeds, and afterwards there is one again. */
    HL_EXPECT_OK(hl_allocator_alloc(allocator, stats_of(allocator).largest_free, &allocation, &err), err);
    must_free(allocator, allocation.id);
    must_free(allocator, done);
    memory.fail_at = 0;
    HL_EXPECT_OK(hl_allocator_alloc(allocator, UNIT, &allocation, &err), err);
    expect_sound(allocator);
    hl_allocator_destroy(allocator);
    CU_ASSERT_EQUAL(memory.live, 0);
}

static void without_memory_for_the_table_chains_get_longer(void)
{
    struct counted_memory memory = {0};
    struct hl_allocator_memory source = {counted_get, counted_put, &memory};
    hl_allocator *allocator = NULL;
    hl_error err;
    HL_REQUIRE_OK(hl_allocator_create(16 * HL_MIB, 16 * HL_MIB, &source, &allocator, &err), err);
    memory.fail_other = sizeof(struct hl_range_slab);
    for (int i = 0; i < 8 * (int)HL_ID_TABLE_FIRST; i++)
        must_alloc(allocator, UNIT);
    CU_ASSERT_EQUAL(allocator->table.buckets, HL_ID_TABLE_FIRST);
    memory.fail_other = 0;
    for (int i = 0; i < 8 * (int)HL_ID_TABLE_FIRST; i++) /* the table catches up, one bucket an insertion */
        must_alloc(allocator, UNIT);
    CU_ASSERT_EQUAL(allocator->table.buckets, 9 * HL_ID_TABLE_FIRST);
    expect_sound(allocator);
    hl_allocator_destroy(allocator);
    CU_ASSERT_EQUAL(memory.live, 0);
}

/* --- the detector itself --- */

static void verify_finds_damage(void)
{
    hl_allocator *allocator = open_space(4 * HL_MIB, 1 * HL_MIB);
    struct hl_allocation kept = must_alloc(allocator, 4096);
    struct hl_range *used = hl_id_table_find(&allocator->table, kept.id), *rest = used->after;
    expect_sound(allocator);
#define DAMAGED(statement, undo)                                                                             \
    statement;                                                                                               \
    CU_ASSERT_PTR_NOT_NULL(hl_allocator_verify(allocator));                                                  \
    undo;                                                                                                    \
    expect_sound(allocator)
    DAMAGED(rest->offset += UNIT, rest->offset -= UNIT);
    DAMAGED(rest->bytes += UNIT, rest->bytes -= UNIT);
    DAMAGED(rest->bytes += 1, rest->bytes -= 1);
    DAMAGED(allocator->used_bytes++, allocator->used_bytes--);
    DAMAGED(allocator->live++, allocator->live--);
    DAMAGED(allocator->free_ranges++, allocator->free_ranges--);
    DAMAGED(allocator->last_id--, allocator->last_id++);
    DAMAGED(allocator->bytes += UNIT, allocator->bytes -= UNIT);
    DAMAGED(allocator->table.entries++, allocator->table.entries--);
    DAMAGED(allocator->tree->height++, allocator->tree->height--);
    DAMAGED(used->used.id++, used->used.id--);
    DAMAGED(rest->before = NULL, rest->before = used);
    DAMAGED(allocator->chunk_bytes = 2 * HL_MIB,
            allocator->chunk_bytes = HL_MIB); /* free neighbours, unmerged */
    DAMAGED(allocator->chunk_bytes = HL_MIB / 2, allocator->chunk_bytes = HL_MIB);
    struct hl_range *root = allocator->tree, *low = root->free.left, *high = root->free.right;
    DAMAGED((root->free.left = high, root->free.right = low),
            (root->free.left = low, root->free.right = high));
    struct hl_range *leaf = hl_free_tree_largest(root);
    DAMAGED(leaf->free.right = used, leaf->free.right = NULL);
    DAMAGED(allocator->tree = NULL, allocator->tree = root);
#undef DAMAGED
    hl_allocator_destroy(allocator);
}

HL_TESTS(allocator, HL_CASE(a_new_space_is_one_free_range_a_chunk),
         HL_CASE(sizes_are_rounded_up_to_the_alignment), HL_CASE(refused_sizes_change_nothing),
         HL_CASE(a_space_smaller_than_a_chunk_refuses_more_than_itself),
         HL_CASE(ids_grow_also_when_an_offset_comes_back), HL_CASE(only_live_allocations_are_found),
         HL_CASE(the_tightest_hole_is_taken),
         HL_CASE(free_neighbours_merge_in_either_order_but_not_across_chunks),
         HL_CASE(creation_without_memory_leaks_nothing), HL_CASE(allocation_without_memory_changes_nothing),
         HL_CASE(without_memory_for_the_table_chains_get_longer), HL_CASE(verify_finds_damage));
