#include "manager/index_private.h"
#include "manager/index_testing.h"

/* hl_index_check() must fail on each thing that can be wrong: every case breaks one and names what is said.
 */

enum { BLOCKS = 6 };

/* Places 0 to 2 are in the small queue, of which 1 is pinned; 3 is in the main one, 4 is being written, 5 is
 * free. */
static hl_index *open_sound(void)
{
    hl_index *index = open_index(16, NULL);
    struct hl_index_key key = key_number(4);
    struct hl_index_victim victim;
    hl_entry_id ids[BLOCKS];
    hl_error err;
    for (unsigned i = 0; i < 4; i++)
        ids[i] = must_publish(index, i, 10 + i);
    ids[4] = must_reserve(index, &key);
    ids[5] = must_publish(index, 5, 15);
    HL_REQUIRE_OK(hl_index_remove(index, ids[5], &victim, &err), err);
    HL_REQUIRE_OK(hl_index_pin(index, ids[1], &err), err);
    hl_index_queue_drop(index, 3);
    hl_index_queue_push(index, 3, HL_QUEUE_MAIN);
    expect_sound(index);
    return index;
}

static void expect_broken(hl_index *index, const char *said)
{
    hl_error err = {0};
    HL_EXPECT_STATUS(hl_index_check(index, &err), HL_E_CORRUPT, err);
    if (!strstr(err.text, said))
        fprintf(stderr, "said: %s, expected: %s\n", err.text, said);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, said));
    hl_index_destroy(index);
}

#define BREAK(how, said)                                                                                     \
    do {                                                                                                     \
        hl_index *index = open_sound();                                                                      \
        how;                                                                                                 \
        expect_broken(index, said);                                                                          \
    } while (0)

static void wrong_counts_are_seen(void)
{
    BREAK(index->present++, "present entries");
    BREAK(index->present_bytes++, "present bytes");
    BREAK(index->pinned--, "pinned entries");
    BREAK(index->pinned_bytes++, "pinned bytes");
    BREAK(index->pins++, "pins: counted 1");
    BREAK(index->live++, "live entries");
    BREAK(index->queues[HL_QUEUE_SMALL].bytes++, "bytes of a queue");
    BREAK(index->queues[HL_QUEUE_MAIN].count++, "entries of a queue");
    BREAK(index->queues[HL_QUEUE_SET_ASIDE].count++, "entries set aside");
    BREAK(index->queues[HL_QUEUE_SET_ASIDE].bytes++, "bytes set aside");
}

static void wrong_entries_are_seen(void)
{
    BREAK(index->entries[0].generation = 0, "generation 0");
    BREAK(index->entries[4].pins = 1, "not PRESENT");
    BREAK(index->entries[4].bytes = 1, "not PRESENT");
    BREAK(index->entries[0].allocation = 0, "without a source");
    BREAK(index->entries[0].residency = 0, "without a source");
    BREAK(index->entries[0].queue = HL_QUEUE_NONE, "in no queue");
    BREAK(index->entries[0].queue = HL_QUEUE_SET_ASIDE, "set aside without a pin");
}

static void wrong_links_are_seen(void)
{
    BREAK(index->entries[0].queue = HL_QUEUE_MAIN, "which is not of it");
    BREAK(index->links[1].older = 0, "disagree");
    BREAK(index->links[2].newer = 1, "which is not of it");
    BREAK(index->queues[HL_QUEUE_SMALL].newest = 1, "not its last");
    BREAK(index->free_head = 1, "which is not free");
    BREAK(index->free_head = 0, "free places");
    BREAK(index->links[5].newer = 6, "free list is longer");
}

/* The occupied slots, in order. */
static struct hl_index_slot *slot_number(hl_index *index, unsigned number)
{
    struct hl_index_slot *slot = index->table.slots;
    for (;; slot++)
        if (slot->entry && number-- == 0)
            return slot;
}

static void move_slot(hl_index *index, unsigned number, size_t to)
{
    struct hl_index_slot *from = slot_number(index, number), slot = *from;
    *from = (struct hl_index_slot){0};
    index->table.slots[to] = slot;
}

static void swap_entries(hl_index *index)
{
    struct hl_index_slot *a = slot_number(index, 0), *b = slot_number(index, 1);
    uint32_t entry = a->entry;
    a->entry = b->entry;
    b->entry = entry;
}

static void double_key(hl_index *index)
{
    index->entries[5] = index->entries[4];
    index->entries[5].generation = 2;
    index->live++;
    index->free_head = 0;
    uint64_t hash = hl_index_hash(index->seed, index->entries[4].space, index->entries[4].hash);
    hl_index_table_insert(index, (uint32_t)(hash >> 32), 5);
}

static void wrong_slots_are_seen(void)
{
    BREAK(slot_number(index, 0)->entry = 6, "which is free");
    BREAK(slot_number(index, 0)->entry = 60, "which is free");
    BREAK(swap_entries(index), "another tag");
    BREAK(move_slot(index, 4, 0), "before its home");
    BREAK(move_slot(index, 4, index->table.homes), "cannot be reached");
    BREAK(*slot_number(index, 2) = (struct hl_index_slot){0}, "slots: counted");
    BREAK(double_key(index), "have one key");
    BREAK(index->boundary = 1, "no former table");
    BREAK(index->table.limit = 4, "entries in a table for 4");
}

/* In the middle of a move: the former table still holds the larger tags. */
static void a_boundary_that_tables_do_not_keep_is_seen(void)
{
    enum { FIRST = HL_INDEX_FIRST_LIMIT };
    static const uint64_t wrong[] = {0, HL_INDEX_NO_MOVE};
    for (unsigned i = 0; i < 2; i++) {
        hl_index *index = open_index(2 * FIRST, NULL);
        for (unsigned block = 0; block < FIRST + 10; block++)
            must_publish(index, block, 10);
        CU_ASSERT_PTR_NOT_NULL_FATAL(index->former.slots);
        expect_sound(index);
        index->boundary = wrong[i]; /* makes the one table wrong, then the other */
        expect_broken(index, "wrong table for its tag");
    }
}

HL_TESTS(index_check, HL_CASE(wrong_counts_are_seen), HL_CASE(wrong_entries_are_seen),
         HL_CASE(wrong_links_are_seen), HL_CASE(wrong_slots_are_seen),
         HL_CASE(a_boundary_that_tables_do_not_keep_is_seen));
