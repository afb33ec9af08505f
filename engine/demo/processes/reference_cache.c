#include <stdlib.h>

#include "core/base/error.h"
#include "engine/demo/processes/trace.h"

#define STAGE "demo.reference"

enum { FIRST_SLOTS = 1024 };

/* Open addressing with linear probing; at most half of the slots are used. `number` is 1 + the id's number, 0
 * for a free slot, as every id is allowed. */
struct slot {
    uint64_t id;
    uint32_t number;
};

struct hl_reference_cache {
    struct slot *slots;
    uint64_t mask;
    uint32_t used;
};

/* splitmix64's mixer: ids are often consecutive. */
static uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

static struct slot *find(const hl_reference_cache *cache, uint64_t id)
{
    uint64_t at = mix(id) & cache->mask;
    while (cache->slots[at].number && cache->slots[at].id != id)
        at = (at + 1) & cache->mask;
    return &cache->slots[at];
}

hl_status hl_reference_open(hl_reference_cache **cache, hl_error *err)
{
    hl_reference_cache *made = malloc(sizeof *made);
    struct slot *slots = calloc(FIRST_SLOTS, sizeof *slots);
    if (!made || !slots) {
        free(made);
        free(slots);
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for the reference cache");
    }
    *made = (hl_reference_cache){.slots = slots, .mask = FIRST_SLOTS - 1};
    *cache = made;
    return HL_OK;
}

void hl_reference_close(hl_reference_cache *cache)
{
    if (!cache)
        return;
    free(cache->slots);
    free(cache);
}

uint32_t hl_reference_hits(const hl_reference_cache *cache, const uint64_t *ids, uint32_t count)
{
    uint32_t hits = 0;
    while (hits < count && find(cache, ids[hits])->number)
        hits++;
    return hits;
}

static hl_status grow(hl_reference_cache *cache, hl_error *err)
{
    uint64_t count = 2 * (cache->mask + 1);
    struct slot *slots = calloc(count, sizeof *slots);
    if (!slots)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for a reference cache of %u ids", cache->used);
    hl_reference_cache grown = {.slots = slots, .mask = count - 1, .used = cache->used};
    for (uint64_t i = 0; i <= cache->mask; i++)
        if (cache->slots[i].number)
            *find(&grown, cache->slots[i].id) = cache->slots[i];
    free(cache->slots);
    *cache = grown;
    return HL_OK;
}

hl_status hl_reference_add(hl_reference_cache *cache, const uint64_t *ids, uint32_t count, hl_error *err)
{
    for (uint32_t i = 0; i < count; i++) {
        if (find(cache, ids[i])->number)
            continue;
        if (2 * ((uint64_t)cache->used + 1) > cache->mask + 1) {
            hl_status status = grow(cache, err);
            if (status)
                return status;
        }
        *find(cache, ids[i]) = (struct slot){.id = ids[i], .number = ++cache->used};
    }
    return HL_OK;
}

uint32_t hl_reference_size(const hl_reference_cache *cache)
{
    return cache->used;
}

uint32_t hl_reference_number(const hl_reference_cache *cache, uint64_t id)
{
    return find(cache, id)->number - 1;
}
