#include <inttypes.h>

#include "core/base/error.h"
#include "manager/lease_private.h"

/* Every part counts anew what the leases say of themselves; the first difference is reported. */

#define BROKEN(...) HL_FAIL(err, HL_E_CORRUPT, HL_LEASE_STAGE, __VA_ARGS__)

static hl_status compare(const char *what, uint64_t counted, uint64_t kept, hl_error *err)
{
    if (counted == kept)
        return HL_OK;
    return BROKEN("%s: counted %" PRIu64 ", the leases say %" PRIu64, what, counted, kept);
}

static hl_status check_pins(const hl_leases *leases, const struct hl_lease *lease, hl_error *err)
{
    uint64_t bytes = 0;
    struct hl_index_info info;
    for (size_t i = 0; i < lease->pins->count; i++) {
        if (hl_index_get(leases->index, lease->pins->entries[i], &info, NULL) != HL_OK)
            return BROKEN("block %zu of lease %" PRIu64 " has left the index", i, lease->id);
        if (info.pins == 0)
            return BROKEN("block %zu of lease %" PRIu64 " is not pinned", i, lease->id);
        bytes += info.source.bytes;
    }
    return compare("bytes of a lease", bytes, lease->pins->bytes, err);
}

static hl_status check_lease(const hl_leases *leases, uint32_t place, hl_error *err)
{
    const struct hl_lease *lease = &leases->places[place];
    if ((lease->id & (HL_LEASES_MOST - 1)) != place || lease->id < HL_LEASES_MOST)
        return BROKEN("place %" PRIu32 " has the id %" PRIu64, place, lease->id);
    if ((lease->state == HL_LEASE_LIVE) != (lease->pins != NULL))
        return BROKEN("lease %" PRIu64 " is in state %d with%s pins", lease->id, (int)lease->state,
                      lease->pins ? "" : "out");
    if (lease->state != HL_LEASE_LIVE)
        return HL_OK;
    if (lease->heap_at >= leases->stats.live || leases->heap[lease->heap_at] != place)
        return BROKEN("lease %" PRIu64 " is not where it says in the heap", lease->id);
    if (lease->heap_at > 0 &&
        hl_lease_due_before(lease, &leases->places[leases->heap[(lease->heap_at - 1) / 2]]))
        return BROKEN("lease %" PRIu64 " is due before its parent in the heap", lease->id);
    return check_pins(leases, lease, err);
}

static hl_status check_places(const hl_leases *leases, hl_error *err)
{
    uint64_t live = 0, pins = 0, bytes = 0;
    hl_status status;
    for (uint32_t place = 0; place < leases->fresh; place++) {
        const struct hl_lease *lease = &leases->places[place];
        if ((status = check_lease(leases, place, err)) != HL_OK)
            return status;
        if (lease->state != HL_LEASE_LIVE)
            continue;
        live++;
        pins += lease->pins->count;
        bytes += lease->pins->bytes;
    }
    const struct hl_leases_stats *stats = &leases->stats;
    if ((status = compare("live leases", live, stats->live, err)) != HL_OK ||
        (status = compare("pins of leases", pins, stats->pins, err)) != HL_OK ||
        (status = compare("bytes of leases", bytes, stats->bytes, err)) != HL_OK)
        return status;
    return compare("leases begun", stats->live + stats->consumed + stats->expired + stats->released,
                   stats->created, err);
}

static hl_status check_session(const hl_leases *leases, const struct hl_lease_session *session,
                               uint64_t *total, hl_error *err)
{
    uint32_t newer = 0;
    uint64_t count = 0;
    for (uint32_t at = session->newest; at; newer = at, at = leases->places[at - 1].older, count++) {
        const struct hl_lease *lease = &leases->places[at - 1];
        if (lease->session != session->session || lease->state != HL_LEASE_LIVE || lease->newer != newer ||
            count == session->count)
            return BROKEN("the list of session %" PRIu64 " is broken at place %" PRIu32, session->session,
                          at - 1);
    }
    *total += count;
    return compare("leases of a session", count, session->count, err);
}

static hl_status check_sessions(const hl_leases *leases, hl_error *err)
{
    uint64_t sessions = 0, total = 0;
    hl_status status;
    for (unsigned i = 0; i < HL_SESSIONS; i++) {
        if (leases->sessions[i].count == 0)
            continue;
        sessions++;
        if ((status = check_session(leases, &leases->sessions[i], &total, err)) != HL_OK)
            return status;
    }
    if ((status = compare("leases of all sessions", total, leases->stats.live, err)) != HL_OK)
        return status;
    return compare("sessions", sessions, leases->stats.sessions, err);
}

static hl_status check_ended(const hl_leases *leases, hl_error *err)
{
    uint64_t count = 0, expected = leases->fresh - leases->stats.live;
    uint32_t last = 0;
    for (uint32_t at = leases->ended_first; at; last = at, at = leases->places[at - 1].newer, count++)
        if (leases->places[at - 1].state == HL_LEASE_LIVE || count == expected)
            return BROKEN("the queue of ended leases is broken at place %" PRIu32, at - 1);
    if (leases->ended_last != last)
        return BROKEN("the last ended lease is not the queue's last");
    return compare("ended leases", count, expected, err);
}

hl_status hl_leases_check(const hl_leases *leases, hl_error *err)
{
    struct hl_index_stats index;
    hl_status status;
    if ((status = check_places(leases, err)) != HL_OK || (status = check_sessions(leases, err)) != HL_OK ||
        (status = check_ended(leases, err)) != HL_OK)
        return status;
    hl_index_get_stats(leases->index, &index);
    return compare("pins in the index", index.pins, leases->stats.pins + leases->stats.handed_pins, err);
}
