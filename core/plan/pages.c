/* Blocks in the order of their destination pages, and the table of their allocations. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/error.h"
#include "core/plan/compile.h"
#include "core/plan/memory.h"

#define STAGE "plan.compile"

/* One sort key holds group, page and the block's index. */
enum { INDEX_BITS = 20, PAGE_BITS = 32, DIGIT_BITS = 8, DIGITS = 5 };
_Static_assert(HL_PLAN_BLOCKS <= 1u << INDEX_BITS, "the index fits the key");
_Static_assert(HL_LAYOUT_GROUPS <= 1u << (DIGITS * DIGIT_BITS - PAGE_BITS),
               "the digits cover group and page");
_Static_assert(INDEX_BITS + DIGITS * DIGIT_BITS <= 64, "the key fits 64 bits");

static unsigned digit_of(uint64_t key, unsigned digit)
{
    return (key >> (INDEX_BITS + digit * DIGIT_BITS)) & ((1u << DIGIT_BITS) - 1);
}

/* Radix sort from the lowest digit; a digit that is the same in every key costs nothing. Returns the array
 * that holds the result: `keys` or `scratch`. */
static uint64_t *sort_keys(uint64_t *keys, uint64_t *scratch, size_t count)
{
    uint32_t places[DIGITS][1u << DIGIT_BITS];
    memset(places, 0, sizeof places);
    for (size_t i = 0; i < count; i++)
        for (unsigned d = 0; d < DIGITS; d++)
            places[d][digit_of(keys[i], d)]++;
    for (unsigned d = 0; d < DIGITS; d++) {
        if (places[d][digit_of(keys[0], d)] == count)
            continue;
        uint32_t next = 0;
        for (unsigned value = 0; value < 1u << DIGIT_BITS; value++) {
            uint32_t here = places[d][value];
            places[d][value] = next;
            next += here;
        }
        for (size_t i = 0; i < count; i++)
            scratch[places[d][digit_of(keys[i], d)]++] = keys[i];
        uint64_t *swap = keys;
        keys = scratch;
        scratch = swap;
    }
    return keys;
}

/* The allocations met so far, found by arena and id: open addressing, at most half full. */
struct directory {
    uint32_t *slots; /* index + 1, or 0 */
    size_t mask;
};

static size_t slot_of(const struct directory *directory, uint64_t arena_id, uint64_t allocation_id)
{
    uint64_t hash = (arena_id * 0x9e3779b97f4a7c15ull) ^ allocation_id;
    hash *= 0xbf58476d1ce4e5b9ull;
    return (hash ^ (hash >> 32)) & directory->mask;
}

static hl_status find_allocation(struct hl_plan_work *work, struct directory *directory, uint32_t block_index,
                                 uint32_t *allocation, hl_error *err)
{
    const struct hl_plan_block *b = &work->request->blocks[block_index];
    for (size_t slot = slot_of(directory, b->arena_id, b->allocation_id);;
         slot = (slot + 1) & directory->mask) {
        uint32_t found = directory->slots[slot];
        if (!found) {
            *allocation = work->allocation_count++;
            directory->slots[slot] = work->allocation_count;
            work->allocations[*allocation] = (struct hl_plan_allocation){.arena_id = b->arena_id,
                                                                         .allocation_id = b->allocation_id,
                                                                         .offset = b->allocation_offset,
                                                                         .bytes = b->allocation_bytes};
            return HL_OK;
        }
        const struct hl_plan_allocation *a = &work->allocations[found - 1];
        if (a->arena_id != b->arena_id || a->allocation_id != b->allocation_id)
            continue;
        if (a->offset != b->allocation_offset || a->bytes != b->allocation_bytes)
            return HL_FAIL(err, HL_E_INVALID, STAGE,
                           "block %u: allocation_offset or allocation_bytes differs from another block of "
                           "allocation %llu",
                           block_index, (unsigned long long)b->allocation_id);
        *allocation = found - 1;
        return HL_OK;
    }
}

static hl_status fill_sources(struct hl_plan_work *work, const uint64_t *keys, struct directory *directory,
                              hl_error *err)
{
    for (size_t i = 0; i < work->request->block_count; i++) {
        uint32_t index = keys[i] & ((1u << INDEX_BITS) - 1);
        const struct hl_plan_block *b = &work->request->blocks[index];
        struct hl_plan_source *source = &work->sources[i];
        if (i && keys[i] >> INDEX_BITS == keys[i - 1] >> INDEX_BITS)
            return HL_FAIL(err, HL_E_OVERLAP, STAGE, "block %u and block %u write page %u of group %u",
                           source[-1].block, index, b->page, b->group);
        *source = (struct hl_plan_source){.src = b->block_offset,
                                          .arena_id = b->arena_id,
                                          .chunk = b->allocation_offset / work->chunk_bytes,
                                          .page = b->page,
                                          .block = index};
        hl_status status = find_allocation(work, directory, index, &source->allocation, err);
        if (status != HL_OK)
            return status;
        work->group_first[b->group + 1]++;
    }
    for (uint32_t group = 0; group < HL_LAYOUT_GROUPS; group++)
        work->group_first[group + 1] += work->group_first[group];
    return HL_OK;
}

hl_status hl_plan_sort_pages(struct hl_plan_work *work, hl_error *err)
{
    size_t count = work->request->block_count, slots = 2;
    while (slots < 2 * count)
        slots *= 2;
    hl_status status = HL_E_NOMEM;
    struct directory directory = {.slots = hl_plan_allocate(slots, sizeof *directory.slots),
                                  .mask = slots - 1};
    uint64_t *keys = hl_plan_allocate(2 * count, sizeof *keys);
    work->sources = hl_plan_allocate(count, sizeof *work->sources);
    work->allocations = hl_plan_allocate(count, sizeof *work->allocations);
    if (!directory.slots || !keys || !work->sources || !work->allocations) {
        HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory to sort %zu blocks", count);
        goto err_free;
    }
    memset(directory.slots, 0, slots * sizeof *directory.slots);
    bool ascending = true;
    for (size_t i = 0; i < count; i++) {
        const struct hl_plan_block *b = &work->request->blocks[i];
        keys[i] = (((uint64_t)b->group << PAGE_BITS) | b->page) << INDEX_BITS | i;
        ascending &= i == 0 || keys[i] > keys[i - 1];
    }
    status = fill_sources(work, ascending ? keys : sort_keys(keys, keys + count, count), &directory, err);
err_free:
    free(keys);
    free(directory.slots);
    return status;
}
