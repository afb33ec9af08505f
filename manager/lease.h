/* manager/lease owns what queries hold: a lease pins the blocks that a query found and keeps their bytes
 * taken from its session's budget, until it is consumed, released, expired, or its session goes. It calls
 * core/base, core/grant (budgets) and manager/index. The Manager calls it under its own lock: nothing here is
 * thread-safe, and no clock is read: the caller says what time it is.
 *
 *     LIVE -> CONSUMED   hl_lease_consume(), before its time has come; the pins of the first blocks go to an
 *                        hl_lease_pins, the others are given back
 *     LIVE -> EXPIRED    its time has come: hl_lease_expire_due(), or whoever uses it first after that
 *     LIVE -> RELEASED   hl_lease_give_back() or hl_lease_drop_session()
 *
 * Exactly one of them happens, once; each gives every pin and byte back or hands it on (I2). Calls on a lease
 * that is not LIVE, or not the session's, change nothing:
 *
 *     HL_E_PERMISSION   another session's (said of a lease in any state that is still remembered)
 *     HL_E_EXPIRED      EXPIRED
 *     HL_E_STATE        CONSUMED
 *     HL_E_NOT_FOUND    RELEASED, never given, or ended so long ago that it is forgotten: an ended lease is
 *                       remembered until its place is needed, and the place that ended first goes first */
#ifndef MANAGER_LEASE_H
#define MANAGER_LEASE_H

#include <stddef.h>
#include <stdint.h>

#include "core/grant/grant.h"
#include "hostlane/limits.h"
#include "hostlane/status.h"
#include "manager/index.h"

typedef struct hl_leases hl_leases;
typedef uint64_t hl_lease_id; /* never given twice; 0 is none */

struct hl_leases_options {
    uint32_t most;                        /* live leases, 1 to HL_LEASES_MOST */
    const struct hl_index_memory *memory; /* copied; NULL: the system's */
};

/* `index` must outlive the leases. HL_E_INVALID or HL_E_LIMIT for `most`, HL_E_NOMEM. */
hl_status hl_leases_create(const struct hl_leases_options *options, hl_index *index, hl_leases **leases,
                           hl_error *err);

/* NULL is allowed. Live leases are released; every hl_lease_pins has been released. */
void hl_leases_destroy(hl_leases *leases);

struct hl_lease_request {
    uint64_t session;           /* the owner; a number that no two sessions share, as an epoch */
    uint32_t binding;           /* the session's, on which it was queried */
    uint32_t group;             /* storage group */
    const hl_entry_id *entries; /* PRESENT ones, in the query's order; an entry may come twice */
    size_t count;               /* 1 to HL_QUERY_KEYS */
    int64_t expires_ns;
    hl_budget *budget; /* the session's source bytes; outlives the lease and the pins that come from it */
};

/* Pins every entry and takes the blocks' bytes from the budget, or does nothing. HL_E_INVALID or HL_E_LIMIT
 * (count), HL_E_LIMIT (leases, pins of an entry, sessions), HL_E_NOT_FOUND or HL_E_STATE for an entry,
 * HL_E_BUDGET, HL_E_NOMEM. O(entries + log leases). */
hl_status hl_lease_create(hl_leases *leases, const struct hl_lease_request *request, hl_lease_id *id,
                          hl_error *err);

struct hl_lease_info {
    uint32_t binding;
    uint32_t group;
    const hl_entry_id *entries; /* borrowed: until the lease ends */
    size_t count;
    uint64_t bytes;
    int64_t expires_ns;
};

/* A live lease, to plan with before it is consumed. */
hl_status hl_lease_get(hl_leases *leases, uint64_t session, hl_lease_id id, int64_t now_ns,
                       struct hl_lease_info *info, hl_error *err);

/* Pins that a consumed lease left to a restore. */
typedef struct hl_lease_pins hl_lease_pins;

/* Ends the lease and hands the pins and bytes of its first `count` blocks (1 to all) to *pins; the others are
 * unpinned and their bytes given back. HL_E_RANGE for the count leaves the lease as it is. Nothing else fails
 * after hl_lease_get() has succeeded with the same `now_ns`: a restore validates all its leases first. */
hl_status hl_lease_consume(hl_leases *leases, uint64_t session, hl_lease_id id, size_t count, int64_t now_ns,
                           hl_lease_pins **pins, hl_error *err);

const hl_entry_id *hl_pins_entries(const hl_lease_pins *pins, size_t *count);
uint64_t hl_pins_bytes(const hl_lease_pins *pins);

/* Unpins and gives the bytes back. NULL is allowed. */
void hl_pins_release(hl_leases *leases, hl_lease_pins *pins);

/* Ends a lease that will not be consumed. */
hl_status hl_lease_give_back(hl_leases *leases, uint64_t session, hl_lease_id id, int64_t now_ns,
                             hl_error *err);

/* Expires every lease whose time has come (expires_ns <= now_ns), earliest first. Returns how many. */
size_t hl_lease_expire_due(hl_leases *leases, int64_t now_ns);

/* The earliest expiry; false without a live lease. */
bool hl_lease_next_expiry(const hl_leases *leases, int64_t *expires_ns);

/* Releases every lease of a session; pins that were handed on stay with their owners. Returns how many. */
size_t hl_lease_drop_session(hl_leases *leases, uint64_t session);

struct hl_leases_stats {
    uint64_t live, sessions;
    uint64_t pins, bytes;                          /* of live leases */
    uint64_t handed_pins, handed_bytes;            /* of hl_lease_pins */
    uint64_t created, consumed, expired, released; /* ever */
};
void hl_leases_get_stats(const hl_leases *leases, struct hl_leases_stats *stats);

/* Checks every invariant, also that the index counts exactly the pins held here: nothing else may pin.
 * O(leases + their entries). HL_E_CORRUPT says which does not hold. */
hl_status hl_leases_check(const hl_leases *leases, hl_error *err);

#endif
