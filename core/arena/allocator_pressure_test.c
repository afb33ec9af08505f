/* The allocator under sustained load: each answer is compared with a model that shares nothing with it. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/arena/allocator_testing.h"
#include "core/arena/ranges.h"
#include "core/base/random.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

#ifdef SANITIZED
enum { PRESSURE_OPS = 300000, SCALE_LIVE = 20000, THREAD_OPS = 30000 };
#else
enum { PRESSURE_OPS = 3000000, SCALE_LIVE = 300000, THREAD_OPS = 300000 };
#endif

/* One byte a unit of HL_ARENA_ALIGN: whether it is allocated. */
struct model {
    hl_allocator *allocator;
    unsigned char *taken;
    uint64_t units;
    uint64_t chunk_units;
    struct hl_allocation *live;
    size_t live_count;
    size_t live_capacity;
    uint64_t used_bytes;
    uint64_t last_id;
    uint64_t refused;
};

static void model_open(struct model *model, uint64_t bytes, uint64_t chunk_bytes)
{
    *model = (struct model){
        .units = bytes / UNIT, .chunk_units = chunk_bytes / UNIT, .live_capacity = bytes / UNIT};
    model->allocator = open_space(bytes, chunk_bytes);
    model->taken = calloc(model->units, 1);
    model->live = calloc(model->live_capacity, sizeof *model->live);
    CU_ASSERT_FATAL(model->taken && model->live);
}

static void model_close(struct model *model)
{
    hl_allocator_destroy(model->allocator);
    free(model->taken);
    free(model->live);
}

static bool all_are(const unsigned char *taken, uint64_t units, unsigned char value)
{
    return taken[0] == value && (units == 1 || memcmp(taken, taken + 1, units - 1) == 0);
}

static void model_largest(const struct model *model, uint64_t *largest, uint64_t *ranges)
{
    uint64_t run = 0, best = 0, count = 0;
    for (uint64_t i = 0; i < model->units; i++) {
        if (i % model->chunk_units == 0)
            run = 0;
        run = model->taken[i] ? 0 : run + 1;
        count += run == 1;
        best = run > best ? run : best;
    }
    *largest = best * UNIT;
    *ranges = count;
}

/* Counters, largest range and number of ranges are exactly the model's, and largest_free means what it says.
 */
static void model_compare(struct model *model)
{
    uint64_t largest, ranges;
    model_largest(model, &largest, &ranges);
    struct hl_arena_stats stats = stats_of(model->allocator);
    CU_ASSERT_EQUAL(stats.used_bytes, model->used_bytes);
    CU_ASSERT_EQUAL(stats.free_bytes, model->units * UNIT - model->used_bytes);
    CU_ASSERT_EQUAL(stats.live, model->live_count);
    CU_ASSERT_EQUAL(stats.last_id, model->last_id);
    CU_ASSERT_EQUAL(stats.largest_free, largest);
    CU_ASSERT_EQUAL(stats.free_ranges, ranges);
    struct hl_allocation allocation;
    if (largest < model->chunk_units * UNIT)
        CU_ASSERT_EQUAL(hl_allocator_alloc(model->allocator, largest + 1, &allocation, NULL), HL_E_NOSPACE);
    if (largest) {
        allocation = must_alloc(model->allocator, largest);
        model->last_id++;
        must_free(model->allocator, allocation.id);
    }
    expect_sound(model->allocator);
}

static bool model_alloc(struct model *model, uint64_t bytes)
{
    struct hl_allocation allocation;
    if (hl_allocator_alloc(model->allocator, bytes, &allocation, NULL) != HL_OK) {
        model->refused++;
        return false;
    }
    uint64_t first = allocation.offset / UNIT, units = allocation.bytes / UNIT;
    bool good = allocation.id == model->last_id + 1 && allocation.offset % UNIT == 0 &&
                allocation.bytes == (bytes + UNIT - 1) / UNIT * UNIT && first + units <= model->units &&
                first / model->chunk_units == (first + units - 1) / model->chunk_units &&
                all_are(model->taken + first, units, 0);
    CU_ASSERT_FATAL(good);
    memset(model->taken + first, 1, units);
    model->last_id = allocation.id;
    model->used_bytes += allocation.bytes;
    model->live[model->live_count++] = allocation;
    return true;
}

static void model_free(struct model *model, size_t index)
{
    struct hl_allocation allocation = model->live[index];
    bool good = all_are(model->taken + allocation.offset / UNIT, allocation.bytes / UNIT, 1) &&
                hl_allocator_free(model->allocator, allocation.id, NULL) == HL_OK;
    CU_ASSERT_FATAL(good);
    memset(model->taken + allocation.offset / UNIT, 0, allocation.bytes / UNIT);
    model->used_bytes -= allocation.bytes;
    model->live[index] = model->live[--model->live_count];
}

static void model_free_all(struct model *model)
{
    while (model->live_count)
        model_free(model, model->live_count - 1);
    CU_ASSERT_EQUAL(stats_of(model->allocator).free_ranges, (model->units - 1) / model->chunk_units + 1);
    model_compare(model);
}

/* 256 B up to 2^(8 + doublings), each power of two equally often: the sizes of blocks of any layout. */
static uint64_t mixed_size(hl_random *random, unsigned doublings)
{
    uint64_t low = 256ull << hl_random_below(random, doublings);
    return low + hl_random_below(random, low);
}

static void press(uint64_t seed, uint64_t bytes, uint64_t chunk_bytes, unsigned doublings)
{
    struct model model;
    hl_random random;
    hl_random_seed(&random, seed);
    model_open(&model, bytes, chunk_bytes);
    for (uint64_t op = 0; op < PRESSURE_OPS; op++) {
        /* Waves: the share of allocations swings, so that the space fills, drains and fills again. */
        uint64_t share = op / (PRESSURE_OPS / 10) % 2 ? 40 : 70;
        if (model.live_count == 0 || hl_random_below(&random, 100) < share)
            model_alloc(&model, mixed_size(&random, doublings));
        else
            model_free(&model, (size_t)hl_random_below(&random, model.live_count));
        if (op % (PRESSURE_OPS / 20) == 0)
            model_compare(&model);
    }
    CU_ASSERT_TRUE(model.refused > 0); /* it was under pressure */
    model_compare(&model);
    model_free_all(&model);
    model_close(&model);
}

static void millions_of_mixed_calls_agree_with_a_model(void)
{
    press(20240611, 192 * HL_MIB + 3 * 4096, 48 * HL_MIB, 14); /* up to 4 MiB; the last chunk is short */
}

static void millions_of_small_calls_agree_with_a_model(void)
{
    press(20240612, 64 * HL_MIB, 5 * 4096, 6); /* up to 16 KiB, in chunks of no power of two */
}

static void freeing_every_other_leaves_no_room_for_twice_the_size(void)
{
    struct model model;
    model_open(&model, 64 * HL_MIB, 16 * HL_MIB);
    while (model_alloc(&model, 4096))
        continue;
    size_t count = model.live_count;
    CU_ASSERT_EQUAL(count, 64 * HL_MIB / 4096);
    for (size_t i = count; i-- > 0;)
        if (model.live[i].offset / 4096 % 2)
            model_free(&model, i);
    model_compare(&model);
    CU_ASSERT_EQUAL(stats_of(model.allocator).free_ranges, count / 2);
    CU_ASSERT_FALSE(model_alloc(&model, 8192));
    for (size_t i = 0; i < count / 4; i++) /* the same size again finds every hole */
        CU_ASSERT_TRUE(model_alloc(&model, 4096));
    model_free_all(&model);
    for (size_t i = 0; i < 64 * HL_MIB / 8192; i++)
        CU_ASSERT_TRUE(model_alloc(&model, 8192));
    model_free_all(&model);
    model_close(&model);
}

static void a_space_of_16_tib_needs_no_memory_of_its_own(void)
{
    hl_allocator *allocator = open_space(HL_ARENA_MAX_BYTES, HL_ARENA_CHUNK_BYTES);
    uint64_t *ids = calloc(SCALE_LIVE, sizeof *ids);
    hl_random random;
    hl_random_seed(&random, 5);
    CU_ASSERT_PTR_NOT_NULL_FATAL(ids);
    CU_ASSERT_EQUAL(stats_of(allocator).free_ranges, 256);
    for (int i = 0; i < SCALE_LIVE; i++)
        ids[i] = must_alloc(allocator, mixed_size(&random, 14)).id;
    expect_sound(allocator);
    for (int i = 0; i < SCALE_LIVE; i += 2)
        must_free(allocator, ids[i]);
    expect_sound(allocator);
    for (int i = 1; i < SCALE_LIVE; i += 2)
        must_free(allocator, ids[i]);
    CU_ASSERT_EQUAL(stats_of(allocator).free_ranges, 256);
    expect_sound(allocator);
    free(ids);
    hl_allocator_destroy(allocator);
}

/* Records used, counted in the structure: what makes a call O(log n) is the height of the tree and the
 * chains' length. */
static void the_tree_stays_low_and_the_chains_short(void)
{
    enum { N = SCALE_LIVE };
    hl_allocator *allocator = open_space(HL_ARENA_MAX_BYTES, HL_ARENA_CHUNK_BYTES);
    for (int i = 0; i < N; i++)
        must_alloc(allocator,
                   (uint64_t)(1 + i / 2) * UNIT); /* ascending sizes: the worst order for a plain tree */
    for (int i = 1; i <= N; i += 2)
        must_free(allocator, (uint64_t)i);
    expect_sound(allocator);
    unsigned log2 = 64u - (unsigned)__builtin_clzll(allocator->free_ranges);
    CU_ASSERT_TRUE(allocator->tree->height <= log2 * 3 / 2 + 1);
    uint64_t longest = 0;
    for (int i = 2; i <= N; i += 2) {
        uint64_t length = 0;
        for (struct hl_range *r = hl_id_table_find(&allocator->table, (uint64_t)i); r; r = r->used.chain)
            length++;
        longest = length > longest ? length : longest;
    }
    CU_ASSERT_TRUE(longest <= 16);
    hl_allocator_destroy(allocator);
}

/* --- threads --- */

struct worker {
    hl_allocator *allocator;
    unsigned char *owner; /* one byte a unit, written without a lock: sharing a unit would be a race */
    unsigned char tag;
    uint64_t bad;
};

static void *allocate_and_free(void *user)
{
    enum { HELD = 64 };
    struct worker *worker = user;
    struct hl_allocation held[HELD] = {0};
    uint64_t last = 0;
    hl_random random;
    hl_random_seed(&random, worker->tag);
    for (uint64_t op = 0; op < THREAD_OPS; op++) {
        struct hl_allocation *slot = &held[hl_random_below(&random, HELD)], found;
        unsigned char *owner = worker->owner + slot->offset / UNIT;
        if (slot->id) {
            worker->bad += !all_are(owner, slot->bytes / UNIT, worker->tag);
            worker->bad += hl_allocator_find(worker->allocator, slot->id, &found, NULL) != HL_OK;
            memset(owner, 0, slot->bytes / UNIT);
            worker->bad += hl_allocator_free(worker->allocator, slot->id, NULL) != HL_OK;
            slot->id = 0;
        } else if (hl_allocator_alloc(worker->allocator, 1 + hl_random_below(&random, 32768), slot, NULL) ==
                   HL_OK) {
            owner = worker->owner + slot->offset / UNIT;
            worker->bad += !all_are(owner, slot->bytes / UNIT, 0) || slot->id <= last;
            last = slot->id;
            memset(owner, worker->tag, slot->bytes / UNIT);
        }
    }
    for (int i = 0; i < HELD; i++)
        if (held[i].id) {
            memset(worker->owner + held[i].offset / UNIT, 0, held[i].bytes / UNIT);
            worker->bad += hl_allocator_free(worker->allocator, held[i].id, NULL) != HL_OK;
        }
    return NULL;
}

static void two_threads_never_share_a_byte(void)
{
    enum { THREADS = 2 };
    uint64_t bytes = 1 * HL_MIB;
    hl_allocator *allocator = open_space(bytes, 512 * HL_KIB);
    unsigned char *owner = calloc(bytes / UNIT, 1);
    CU_ASSERT_PTR_NOT_NULL_FATAL(owner);
    struct worker workers[THREADS];
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){allocator, owner, (unsigned char)(i + 1), 0};
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, allocate_and_free, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        CU_ASSERT_EQUAL(workers[i].bad, 0);
    }
    expect_sound(allocator);
    CU_ASSERT_EQUAL(stats_of(allocator).live, 0);
    CU_ASSERT_EQUAL(stats_of(allocator).free_ranges, 2);
    free(owner);
    hl_allocator_destroy(allocator);
}

HL_TESTS(allocator_pressure, HL_CASE(millions_of_mixed_calls_agree_with_a_model),
         HL_CASE(millions_of_small_calls_agree_with_a_model),
         HL_CASE(freeing_every_other_leaves_no_room_for_twice_the_size),
         HL_CASE(a_space_of_16_tib_needs_no_memory_of_its_own),
         HL_CASE(the_tree_stays_low_and_the_chains_short), HL_CASE(two_threads_never_share_a_byte));
