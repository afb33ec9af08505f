#include <assert.h>

#include "manager/lease_private.h"

/* A binary heap of the live leases, the earliest expiry on top; each lease knows where it is. */

bool hl_lease_due_before(const struct hl_lease *a, const struct hl_lease *b)
{
    return a->expires_ns != b->expires_ns ? a->expires_ns < b->expires_ns : a->id < b->id;
}

static bool before(const struct hl_leases *leases, uint32_t a, uint32_t b)
{
    return hl_lease_due_before(&leases->places[a], &leases->places[b]);
}

static void put(struct hl_leases *leases, uint32_t at, uint32_t place)
{
    leases->heap[at] = place;
    leases->places[place].heap_at = at;
}

static void rise(struct hl_leases *leases, uint32_t at, uint32_t place)
{
    while (at > 0 && before(leases, place, leases->heap[(at - 1) / 2])) {
        put(leases, at, leases->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    put(leases, at, place);
}

static void sink(struct hl_leases *leases, uint32_t at, uint32_t place, uint32_t count)
{
    for (uint32_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && before(leases, leases->heap[child + 1], leases->heap[child]))
            child++;
        if (!before(leases, leases->heap[child], place))
            break;
        put(leases, at, leases->heap[child]);
    }
    put(leases, at, place);
}

void hl_lease_heap_add(struct hl_leases *leases, uint32_t place)
{
    assert(leases->stats.live < leases->most);
    rise(leases, (uint32_t)leases->stats.live++, place);
}

void hl_lease_heap_remove(struct hl_leases *leases, uint32_t place)
{
    uint32_t at = leases->places[place].heap_at, last = (uint32_t)--leases->stats.live;
    assert(at <= last && leases->heap[at] == place);
    if (at == last)
        return;
    uint32_t moved = leases->heap[last];
    if (at > 0 && before(leases, moved, leases->heap[(at - 1) / 2]))
        rise(leases, at, moved);
    else
        sink(leases, at, moved, last);
}
