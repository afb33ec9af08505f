/* The leases' structures, for their own sources and for the test that breaks them on purpose. */
#ifndef MANAGER_LEASE_PRIVATE_H
#define MANAGER_LEASE_PRIVATE_H

#include "manager/lease.h"

#define HL_LEASE_STAGE "manager.lease"

/* An id is the place's generation and the place: a generation of 44 bits never comes round. */
enum { HL_LEASE_PLACE_BITS = 20 };
_Static_assert(HL_LEASES_MOST == 1u << HL_LEASE_PLACE_BITS, "every place has an id");

enum hl_lease_state {
    HL_LEASE_UNUSED,
    HL_LEASE_LIVE,
    HL_LEASE_CONSUMED,
    HL_LEASE_EXPIRED,
    HL_LEASE_RELEASED
};

/* Made with the lease, so that handing it on cannot fail. */
struct hl_lease_pins {
    hl_budget *budget;
    uint64_t bytes; /* taken from the budget */
    size_t count;   /* pinned entries */
    size_t room;    /* of `entries`, as allocated */
    hl_entry_id entries[];
};

struct hl_lease {
    hl_lease_id id; /* kept after its end, with session and state */
    uint64_t session;
    enum hl_lease_state state;
    uint32_t binding, group;
    int64_t expires_ns;
    hl_lease_pins *pins;   /* LIVE only */
    uint32_t heap_at;      /* LIVE: its index in the heap */
    uint32_t older, newer; /* LIVE: in the session's list; ended: `newer` in the queue of ended; place + 1 */
};

struct hl_lease_session {
    uint64_t session;
    uint32_t newest; /* place + 1 */
    uint32_t count;  /* 0: unused */
};

struct hl_leases {
    struct hl_index_memory memory;
    hl_index *index;
    uint32_t most;
    uint32_t fresh;                   /* places below it have been used */
    uint32_t ended_first, ended_last; /* places to use again, in the order of their ends; place + 1 */
    struct hl_lease *places;
    uint32_t *heap; /* live places; the parent of i, (i - 1) / 2, is not due after i */
    struct hl_lease_session sessions[HL_SESSIONS];
    struct hl_leases_stats stats;
};

/* --- lease_heap.c --- */
void hl_lease_heap_add(struct hl_leases *leases, uint32_t place);    /* counts it in stats.live */
void hl_lease_heap_remove(struct hl_leases *leases, uint32_t place); /* and out of it */
/* Whether a is due before b; leases of one time in the order of their ids. */
bool hl_lease_due_before(const struct hl_lease *a, const struct hl_lease *b);

#endif
