#include <stdlib.h>

#include "manager/index_private.h"
#include "manager/index_testing.h"

/* S3-FIFO as the paper has it, in plain arrays and with exact ghosts, to say who must go next. */

enum { UNIVERSE = 400, RESIDENT = 60, CAPACITY = 4096, STEPS = 30000 };

struct model_queue {
    unsigned numbers[UNIVERSE]; /* oldest first */
    unsigned count;
};

struct model {
    struct model_queue small, main;
    unsigned uses[UNIVERSE], pins[UNIVERSE];
    uint64_t bytes[UNIVERSE]; /* 0: absent */
    uint64_t ghost[UNIVERSE]; /* when it became one; 0: none */
    bool set_aside[UNIVERSE];
    hl_entry_id ids[UNIVERSE];
    uint64_t clock;
    unsigned present;
};

static void append(struct model_queue *queue, unsigned number)
{
    queue->numbers[queue->count++] = number;
}

static unsigned shift(struct model_queue *queue)
{
    unsigned number = queue->numbers[0];
    memmove(queue->numbers, queue->numbers + 1, --queue->count * sizeof *queue->numbers);
    return number;
}

static uint64_t bytes_in(const struct model *model, const struct model_queue *queue)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < queue->count; i++)
        bytes += model->bytes[queue->numbers[i]];
    return bytes;
}

static uint64_t bytes_present(const struct model *model)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < UNIVERSE; i++)
        bytes += model->bytes[i];
    return bytes;
}

static void model_insert(struct model *model, unsigned number, uint64_t bytes)
{
    bool remembered = model->ghost[number] && model->clock - model->ghost[number] < model->present;
    model->ghost[number] = 0;
    model->bytes[number] = bytes;
    model->uses[number] = 0;
    model->present++;
    append(remembered ? &model->main : &model->small, number);
}

static void forget(struct model *model, unsigned number)
{
    model->bytes[number] = 0;
    model->present--;
}

/* UNIVERSE when nothing can go. */
static unsigned model_evict(struct model *model)
{
    while (model->small.count || model->main.count) {
        bool small = model->small.count &&
                     (!model->main.count || bytes_in(model, &model->small) >= bytes_present(model) / 10);
        unsigned number = shift(small ? &model->small : &model->main), uses = model->uses[number];
        model->uses[number] = small ? 0 : uses - (uses > 0);
        if (model->pins[number]) {
            model->set_aside[number] = true;
        } else if (uses > (small ? 1 : 0)) {
            append(&model->main, number);
        } else {
            if (small)
                model->ghost[number] = ++model->clock;
            forget(model, number);
            return number;
        }
    }
    return UNIVERSE;
}

static void use(struct model *model, hl_index *index, unsigned number)
{
    hl_error err;
    HL_EXPECT_OK(hl_index_pin(index, model->ids[number], &err), err);
    model->pins[number]++;
    model->uses[number] += model->uses[number] < 3;
}

static void end_use(struct model *model, hl_index *index, unsigned number)
{
    hl_error err;
    if (!model->pins[number])
        return;
    HL_EXPECT_OK(hl_index_unpin(index, model->ids[number], &err), err);
    if (--model->pins[number] == 0 && model->set_aside[number]) {
        model->set_aside[number] = false;
        append(&model->main, number);
    }
}

static void evict_both(struct model *model, hl_index *index)
{
    unsigned expected = model_evict(model);
    CU_ASSERT_EQUAL_FATAL(evict_number(index), expected == UNIVERSE ? UINT64_MAX : expected);
}

static void evictions_follow_the_published_algorithm(void)
{
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct model *model = calloc(1, sizeof *model);
        CU_ASSERT_PTR_NOT_NULL_FATAL(model);
        hl_index *index = open_index(CAPACITY, NULL);
        hl_random random;
        hl_random_seed(&random, seed);
        for (unsigned i = 0; i < STEPS; i++) {
            unsigned number = (unsigned)hl_random_below(&random, 1 + hl_random_below(&random, UNIVERSE));
            if (!model->bytes[number]) {
                while (model->present >= RESIDENT)
                    evict_both(model, index);
                uint64_t bytes = 1 + hl_random_below(&random, 100);
                model->ids[number] = must_publish(index, number, bytes);
                model_insert(model, number, bytes);
            } else {
                use(model, index, number);
                if (hl_random_below(&random, 20))
                    end_use(model, index, number);
            }
            end_use(model, index, (unsigned)hl_random_below(&random, UNIVERSE));
        }
        struct hl_index_stats stats = index_stats(index);
        CU_ASSERT_EQUAL(stats.small, model->small.count);
        CU_ASSERT_EQUAL(stats.main, model->main.count);
        CU_ASSERT_TRUE(stats.ghost_hits > 100 && stats.evicted > 1000);
        expect_sound(index);
        hl_index_destroy(index);
        free(model);
    }
}

static void a_scan_does_not_drive_out_what_is_used(void)
{
    enum { HOT = 50, COLD = 2000 };
    hl_index *index = open_index(CAPACITY, NULL);
    hl_entry_id hot[HOT];
    hl_error err;
    for (unsigned i = 0; i < HOT; i++) {
        hot[i] = must_publish(index, i, 10);
        for (unsigned uses = 0; uses < 2; uses++) {
            HL_EXPECT_OK(hl_index_pin(index, hot[i], &err), err);
            HL_EXPECT_OK(hl_index_unpin(index, hot[i], &err), err);
        }
    }
    for (unsigned i = HOT; i < HOT + COLD; i++) {
        must_publish(index, i, 10);
        if (i >= 2 * HOT)
            CU_ASSERT_TRUE(evict_number(index) >= HOT);
    }
    for (unsigned i = 0; i < HOT; i++) {
        struct hl_index_key key = key_number(i);
        hl_entry_id id;
        HL_EXPECT_OK(hl_index_find(index, &key, &id, &err), err);
        CU_ASSERT_EQUAL(id, hot[i]);
    }
    hl_index_destroy(index);
}

/* As many as blocks are present, however many have been evicted; the table never grows for them. */
static void ghosts_are_bounded(void)
{
    enum { BLOCKS = 64, ROUNDS = 5000 };
    hl_index *index = open_index(BLOCKS, NULL);
    uint64_t before = index_stats(index).most_bytes;
    for (unsigned i = 0; i < BLOCKS; i++)
        must_publish(index, i, 10);
    for (unsigned i = BLOCKS; i < ROUNDS; i++) {
        CU_ASSERT_NOT_EQUAL(evict_number(index), UINT64_MAX);
        must_publish(index, i, 10);
    }
    CU_ASSERT_EQUAL(index_stats(index).memory_bytes, before);
    CU_ASSERT_EQUAL(index->table.ghost_sets, BLOCKS / HL_INDEX_GHOST_WAYS);
    for (unsigned i = 0; i < 1000; i++) { /* evicted long ago: forgotten */
        CU_ASSERT_NOT_EQUAL(evict_number(index), UINT64_MAX);
        must_publish(index, i, 10);
    }
    CU_ASSERT_EQUAL(index_stats(index).ghost_hits, 0);
    uint64_t last = evict_number(index);
    must_publish(index, last, 10); /* just evicted: remembered */
    CU_ASSERT_EQUAL(index_stats(index).ghost_hits, 1);
    CU_ASSERT_EQUAL(index_stats(index).main, 1);
    expect_sound(index);
    hl_index_destroy(index);
}

static void the_ghost_clock_may_wrap(void)
{
    hl_index *index = open_index(64, NULL);
    for (unsigned i = 0; i < 10; i++)
        must_publish(index, i, 10);
    index->ghost_clock = UINT32_MAX - 2;
    for (unsigned i = 0; i < 6; i++)
        CU_ASSERT_EQUAL(evict_number(index), i);
    for (unsigned i = 2; i < 6; i++)
        must_publish(index, i, 10);
    CU_ASSERT_EQUAL(index_stats(index).ghost_hits, 4);
    expect_sound(index);
    hl_index_destroy(index);
}

static void what_was_set_aside_waits_in_the_main_queue(void)
{
    hl_index *index = open_index(16, NULL);
    hl_entry_id first = must_publish(index, 0, 10);
    hl_error err;
    for (unsigned i = 1; i < 4; i++)
        must_publish(index, i, 10);
    HL_EXPECT_OK(hl_index_pin(index, first, &err), err);
    CU_ASSERT_EQUAL(evict_number(index), 1);
    CU_ASSERT_EQUAL(index_stats(index).set_aside, 1);
    HL_EXPECT_OK(hl_index_pin(index, first, &err), err);
    HL_EXPECT_OK(hl_index_unpin(index, first, &err), err);
    CU_ASSERT_EQUAL(index_stats(index).set_aside, 1);
    HL_EXPECT_OK(hl_index_unpin(index, first, &err), err);
    CU_ASSERT_EQUAL(index_stats(index).main, 1);
    CU_ASSERT_EQUAL(evict_number(index), 2);
    CU_ASSERT_EQUAL(evict_number(index), 3);
    CU_ASSERT_EQUAL(evict_number(index), 0);
    CU_ASSERT_EQUAL(evict_number(index), UINT64_MAX);
    expect_sound(index);
    hl_index_destroy(index);
}

HL_TESTS(index_eviction, HL_CASE(evictions_follow_the_published_algorithm),
         HL_CASE(a_scan_does_not_drive_out_what_is_used), HL_CASE(ghosts_are_bounded),
         HL_CASE(the_ghost_clock_may_wrap), HL_CASE(what_was_set_aside_waits_in_the_main_queue));
