#include "manager/lease.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "core/base/error.h"
#include "faults/hook.h"
#include "manager/lease_private.h"

/* --- life --- */

hl_status hl_leases_create(const struct hl_leases_options *options, hl_index *index, hl_leases **leases,
                           hl_error *err)
{
    const struct hl_index_memory *memory = options->memory ? options->memory : &hl_index_system_memory;
    if (options->most == 0)
        return HL_FAIL(err, HL_E_INVALID, HL_LEASE_STAGE, "most is 0 leases");
    if (options->most > HL_LEASES_MOST)
        return HL_FAIL(err, HL_E_LIMIT, HL_LEASE_STAGE, "most is %" PRIu32 " leases, at most %u are allowed",
                       options->most, HL_LEASES_MOST);
    hl_leases *made = hl_index_memory_get(memory, sizeof *made);
    if (!made)
        goto err_none;
    made->places = hl_index_memory_get(memory, options->most * sizeof *made->places);
    if (!made->places)
        goto err_made;
    made->heap = hl_index_memory_get(memory, options->most * sizeof *made->heap);
    if (!made->heap)
        goto err_places;
    made->memory = *memory;
    made->index = index;
    made->most = options->most;
    *leases = made;
    return HL_OK;
err_places:
    hl_index_memory_put(memory, made->places, options->most * sizeof *made->places);
err_made:
    hl_index_memory_put(memory, made, sizeof *made);
err_none:
    return HL_FAIL(err, HL_E_NOMEM, HL_LEASE_STAGE, "no memory for %" PRIu32 " leases", options->most);
}

void hl_leases_destroy(hl_leases *leases)
{
    if (!leases)
        return;
    assert(leases->stats.handed_pins == 0);
    for (unsigned i = 0; i < HL_SESSIONS; i++)
        if (leases->sessions[i].count)
            hl_lease_drop_session(leases, leases->sessions[i].session);
    struct hl_index_memory memory = leases->memory;
    hl_index_memory_put(&memory, leases->heap, leases->most * sizeof *leases->heap);
    hl_index_memory_put(&memory, leases->places, leases->most * sizeof *leases->places);
    hl_index_memory_put(&memory, leases, sizeof *leases);
}

/* --- pins --- */

static size_t pins_bytes(size_t room)
{
    return sizeof(hl_lease_pins) + room * sizeof(hl_entry_id);
}

static void unpin_from(hl_index *index, const hl_lease_pins *pins, size_t first)
{
    for (size_t i = first; i < pins->count; i++) {
        hl_status status = hl_index_unpin(index, pins->entries[i], NULL);
        assert(status == HL_OK); /* a pinned entry stays */
    }
}

/* Pins every entry and counts its bytes, or none. */
static hl_status pin_all(hl_index *index, const struct hl_lease_request *request, hl_lease_pins *pins,
                         hl_error *err)
{
    struct hl_index_source source;
    for (; pins->count < request->count; pins->count++) {
        hl_entry_id entry = request->entries[pins->count];
        hl_status status = hl_index_pin(index, entry, err);
        if (status != HL_OK) {
            unpin_from(index, pins, 0);
            return status;
        }
        status = hl_index_source(index, entry, &source, NULL);
        assert(status == HL_OK);
        pins->entries[pins->count] = entry;
        pins->bytes += source.bytes;
    }
    return HL_OK;
}

static void free_pins(hl_leases *leases, hl_lease_pins *pins)
{
    unpin_from(leases->index, pins, 0);
    hl_budget_give(pins->budget, pins->bytes);
    hl_index_memory_put(&leases->memory, pins, pins_bytes(pins->room));
}

/* Gives back what lies behind the first `count` entries. */
static void keep_first(hl_leases *leases, hl_lease_pins *pins, size_t count)
{
    uint64_t rest = 0;
    struct hl_index_source source;
    for (size_t i = count; i < pins->count; i++) {
        hl_status status = hl_index_source(leases->index, pins->entries[i], &source, NULL);
        assert(status == HL_OK);
        rest += source.bytes;
    }
    unpin_from(leases->index, pins, count);
    hl_budget_give(pins->budget, rest);
    pins->bytes -= rest;
    pins->count = count;
}

const hl_entry_id *hl_pins_entries(const hl_lease_pins *pins, size_t *count)
{
    *count = pins->count;
    return pins->entries;
}

uint64_t hl_pins_bytes(const hl_lease_pins *pins)
{
    return pins->bytes;
}

void hl_pins_release(hl_leases *leases, hl_lease_pins *pins)
{
    if (!pins)
        return;
    assert(leases->stats.handed_pins >= pins->count && leases->stats.handed_bytes >= pins->bytes);
    leases->stats.handed_pins -= pins->count;
    leases->stats.handed_bytes -= pins->bytes;
    free_pins(leases, pins);
}

/* --- sessions --- */

/* The session's list, or an unused one, or NULL when all are in use. */
static struct hl_lease_session *session_of(hl_leases *leases, uint64_t session)
{
    struct hl_lease_session *unused = NULL;
    for (unsigned i = 0; i < HL_SESSIONS; i++) {
        struct hl_lease_session *at = &leases->sessions[i];
        if (at->count && at->session == session)
            return at;
        if (!at->count)
            unused = at;
    }
    return unused;
}

static void join_session(hl_leases *leases, struct hl_lease_session *of, uint32_t place)
{
    struct hl_lease *lease = &leases->places[place];
    if (of->count++ == 0) {
        *of = (struct hl_lease_session){.session = lease->session, .count = 1};
        leases->stats.sessions++;
    }
    lease->older = of->newest;
    lease->newer = 0;
    if (of->newest)
        leases->places[of->newest - 1].newer = place + 1;
    of->newest = place + 1;
}

static void leave_session(hl_leases *leases, uint32_t place)
{
    struct hl_lease *lease = &leases->places[place];
    struct hl_lease_session *of = session_of(leases, lease->session);
    assert(of && of->count && of->session == lease->session);
    if (lease->older)
        leases->places[lease->older - 1].newer = lease->newer;
    if (lease->newer)
        leases->places[lease->newer - 1].older = lease->older;
    else
        of->newest = lease->older;
    if (--of->count == 0)
        leases->stats.sessions--;
}

/* --- beginning and end --- */

static hl_status check_request(hl_leases *leases, const struct hl_lease_request *request, hl_error *err)
{
    if (request->count == 0)
        return HL_FAIL(err, HL_E_INVALID, HL_LEASE_STAGE, "count is 0 blocks");
    if (request->count > HL_QUERY_KEYS)
        return HL_FAIL(err, HL_E_LIMIT, HL_LEASE_STAGE, "count is %zu blocks, at most %u are allowed",
                       request->count, HL_QUERY_KEYS);
    if (leases->stats.live == leases->most)
        return HL_FAIL(err, HL_E_LIMIT, HL_LEASE_STAGE, "there are %" PRIu32 " leases already", leases->most);
    if (!session_of(leases, request->session))
        return HL_FAIL(err, HL_E_LIMIT, HL_LEASE_STAGE, "%u sessions have leases already", HL_SESSIONS);
    return HL_OK;
}

/* Unused places first, so that ended leases are remembered for long. */
static uint32_t take_place(hl_leases *leases)
{
    if (leases->fresh < leases->most) {
        leases->places[leases->fresh].id = leases->fresh; /* generation 0, which no id has */
        return leases->fresh++;
    }
    uint32_t place = leases->ended_first - 1;
    leases->ended_first = leases->places[place].newer;
    if (!leases->ended_first)
        leases->ended_last = 0;
    return place;
}

static hl_lease_id start(hl_leases *leases, const struct hl_lease_request *request, hl_lease_pins *pins)
{
    uint32_t place = take_place(leases);
    struct hl_lease *lease = &leases->places[place];
    *lease = (struct hl_lease){.id = lease->id + HL_LEASES_MOST,
                               .session = request->session,
                               .state = HL_LEASE_LIVE,
                               .binding = request->binding,
                               .group = request->group,
                               .expires_ns = request->expires_ns,
                               .pins = pins};
    hl_lease_heap_add(leases, place);
    join_session(leases, session_of(leases, request->session), place);
    leases->stats.pins += pins->count;
    leases->stats.bytes += pins->bytes;
    leases->stats.created++;
    return lease->id;
}

hl_status hl_lease_create(hl_leases *leases, const struct hl_lease_request *request, hl_lease_id *id,
                          hl_error *err)
{
    hl_status status = check_request(leases, request, err);
    if (status != HL_OK)
        return status;
    hl_lease_pins *pins = hl_index_memory_get(&leases->memory, pins_bytes(request->count));
    if (!pins)
        return HL_FAIL(err, HL_E_NOMEM, HL_LEASE_STAGE, "no memory for a lease of %zu blocks",
                       request->count);
    pins->budget = request->budget;
    pins->room = request->count;
    if ((status = pin_all(leases->index, request, pins, err)) != HL_OK)
        goto err_pins;
    if (!hl_budget_take(request->budget, pins->bytes)) {
        status =
            HL_FAIL(err, HL_E_BUDGET, HL_LEASE_STAGE,
                    "%" PRIu64 " bytes do not fit the session's budget: %" PRIu64 " of %" PRIu64 " are taken",
                    pins->bytes, hl_budget_used(request->budget), request->budget->limit);
        goto err_unpin;
    }
    *id = start(leases, request, pins);
    return HL_OK;
err_unpin:
    unpin_from(leases->index, pins, 0);
err_pins:
    hl_index_memory_put(&leases->memory, pins, pins_bytes(request->count));
    return status;
}

/* The one way out of LIVE. The pins are the caller's. */
static hl_lease_pins *end(hl_leases *leases, uint32_t place, enum hl_lease_state state)
{
    struct hl_lease *lease = &leases->places[place];
    hl_lease_pins *pins = lease->pins;
    assert(lease->state == HL_LEASE_LIVE);
    hl_lease_heap_remove(leases, place);
    leave_session(leases, place);
    leases->stats.pins -= pins->count;
    leases->stats.bytes -= pins->bytes;
    leases->stats.consumed += state == HL_LEASE_CONSUMED;
    leases->stats.expired += state == HL_LEASE_EXPIRED;
    leases->stats.released += state == HL_LEASE_RELEASED;
    lease->state = state;
    lease->pins = NULL;
    lease->newer = 0;
    *(leases->ended_last ? &leases->places[leases->ended_last - 1].newer : &leases->ended_first) = place + 1;
    leases->ended_last = place + 1;
    return pins;
}

static hl_status refuse(const struct hl_lease *lease, hl_error *err)
{
    switch (lease->state) {
    case HL_LEASE_CONSUMED:
        return HL_FAIL(err, HL_E_STATE, HL_LEASE_STAGE, "lease %" PRIu64 " has been consumed", lease->id);
    case HL_LEASE_EXPIRED:
        return HL_FAIL(err, HL_E_EXPIRED, HL_LEASE_STAGE, "lease %" PRIu64 " has expired", lease->id);
    default:
        return HL_FAIL(err, HL_E_NOT_FOUND, HL_LEASE_STAGE, "lease %" PRIu64 " has been released", lease->id);
    }
}

/* A LIVE lease of the session whose time has not come. */
static hl_status find_live(hl_leases *leases, uint64_t session, hl_lease_id id, int64_t now_ns,
                           uint32_t *place, hl_error *err)
{
    uint32_t at = (uint32_t)(id & (HL_LEASES_MOST - 1));
    if (at >= leases->fresh || leases->places[at].id != id)
        return HL_FAIL(err, HL_E_NOT_FOUND, HL_LEASE_STAGE, "lease %" PRIu64 " is not known", id);
    const struct hl_lease *lease = &leases->places[at];
    if (lease->session != session)
        return HL_FAIL(err, HL_E_PERMISSION, HL_LEASE_STAGE, "lease %" PRIu64 " is another session's", id);
    if (lease->state == HL_LEASE_LIVE && lease->expires_ns <= now_ns)
        free_pins(leases, end(leases, at, HL_LEASE_EXPIRED));
    if (lease->state != HL_LEASE_LIVE)
        return refuse(lease, err);
    *place = at;
    return HL_OK;
}

hl_status hl_lease_get(hl_leases *leases, uint64_t session, hl_lease_id id, int64_t now_ns,
                       struct hl_lease_info *info, hl_error *err)
{
    uint32_t place;
    hl_status status = find_live(leases, session, id, now_ns, &place, err);
    if (status != HL_OK)
        return status;
    const struct hl_lease *lease = &leases->places[place];
    *info = (struct hl_lease_info){.binding = lease->binding,
                                   .group = lease->group,
                                   .entries = lease->pins->entries,
                                   .count = lease->pins->count,
                                   .bytes = lease->pins->bytes,
                                   .expires_ns = lease->expires_ns};
    return HL_OK;
}

hl_status hl_lease_consume(hl_leases *leases, uint64_t session, hl_lease_id id, size_t count, int64_t now_ns,
                           hl_lease_pins **pins, hl_error *err)
{
    uint32_t place;
    hl_status status = find_live(leases, session, id, now_ns, &place, err);
    if (status != HL_OK)
        return status;
    size_t held = leases->places[place].pins->count;
    if (count == 0 || count > held)
        return HL_FAIL(err, HL_E_RANGE, HL_LEASE_STAGE, "count is %zu of the %zu blocks of lease %" PRIu64,
                       count, held, id);
    hl_lease_pins *taken = end(leases, place, HL_LEASE_CONSUMED);
    keep_first(leases, taken, count);
    leases->stats.handed_pins += taken->count;
    leases->stats.handed_bytes += taken->bytes;
    *pins = taken;
    return HL_OK;
}

hl_status hl_lease_give_back(hl_leases *leases, uint64_t session, hl_lease_id id, int64_t now_ns,
                             hl_error *err)
{
    uint32_t place;
    hl_status status = find_live(leases, session, id, now_ns, &place, err);
    if (status == HL_OK)
        free_pins(leases, end(leases, place, HL_LEASE_RELEASED));
    return status;
}

bool hl_lease_next_expiry(const hl_leases *leases, int64_t *expires_ns)
{
    if (leases->stats.live == 0)
        return false;
    *expires_ns = leases->places[leases->heap[0]].expires_ns;
    return true;
}

size_t hl_lease_expire_due(hl_leases *leases, int64_t now_ns)
{
    size_t expired = 0;
    int64_t next;
    while (hl_lease_next_expiry(leases, &next) && next <= now_ns) {
        HL_FAULT_STORE(manager_lease_expire,
                       free_pins(leases, end(leases, leases->heap[0], HL_LEASE_EXPIRED)));
        expired++;
    }
    return expired;
}

size_t hl_lease_drop_session(hl_leases *leases, uint64_t session)
{
    struct hl_lease_session *of = session_of(leases, session);
    size_t dropped = 0;
    while (of && of->count && of->session == session) {
        HL_FAULT_STORE(manager_lease_drop, free_pins(leases, end(leases, of->newest - 1, HL_LEASE_RELEASED)));
        dropped++;
    }
    return dropped;
}

void hl_leases_get_stats(const hl_leases *leases, struct hl_leases_stats *stats)
{
    *stats = leases->stats;
}
