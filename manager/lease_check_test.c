#include "manager/lease_private.h"
#include "manager/lease_testing.h"

/* hl_leases_check() must fail on each thing that can be wrong: every case breaks one and names what is said.
 */

static struct lease_world world;

/* Places 0, 1 and 2 are live, 2 of session 2; 3 and 4 have ended. */
static struct hl_leases *open_sound(void)
{
    hl_error err;
    open_world(&world, 8, NULL);
    must_lease(&world, 1, 0, 2, 300);
    must_lease(&world, 1, 2, 2, 200);
    must_lease(&world, 2, 4, 2, 100);
    for (unsigned i = 0; i < 2; i++)
        HL_REQUIRE_OK(hl_lease_give_back(world.leases, 1, must_lease(&world, 1, 6, 1, 50), 0, &err), err);
    expect_sound_leases(&world);
    return world.leases;
}

/* Breaks, looks, mends, and finds all sound again. */
#define BREAK(type, what, value, said)                                                                       \
    do {                                                                                                     \
        hl_error err = {0};                                                                                  \
        type was = (what);                                                                                   \
        (what) = (value);                                                                                    \
        HL_EXPECT_STATUS(hl_leases_check(leases, &err), HL_E_CORRUPT, err);                                  \
        if (!strstr(err.text, said))                                                                         \
            fprintf(stderr, "said: %s, expected: %s\n", err.text, said);                                     \
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, said));                                                      \
        (what) = was;                                                                                        \
        expect_sound_leases(&world);                                                                         \
    } while (0)

static void wrong_counts_are_seen(void)
{
    struct hl_leases *leases = open_sound();
    BREAK(uint64_t, leases->stats.pins, 7, "pins of leases");
    BREAK(uint64_t, leases->stats.bytes, 7, "bytes of leases");
    BREAK(uint64_t, leases->stats.created, 7, "leases begun");
    BREAK(uint64_t, leases->stats.sessions, 7, "sessions: counted 2");
    BREAK(uint64_t, leases->stats.handed_pins, 1, "pins in the index");
    BREAK(uint64_t, leases->places[1].pins->bytes, 7, "bytes of a lease");
    BREAK(uint32_t, leases->sessions[HL_SESSIONS - 1].count, 0, "leases of all sessions");
    close_world(&world);
}

static void wrong_leases_are_seen(void)
{
    struct hl_leases *leases = open_sound();
    BREAK(hl_lease_id, leases->places[1].id, 5, "place 1 has the id 5");
    BREAK(hl_lease_id, leases->places[1].id, 1, "place 1 has the id 1");
    BREAK(enum hl_lease_state, leases->places[1].state, HL_LEASE_CONSUMED, "with pins");
    BREAK(enum hl_lease_state, leases->places[3].state, HL_LEASE_LIVE, "without pins");
    BREAK(hl_entry_id, leases->places[1].pins->entries[0], 9ull << 32, "has left the index");
    BREAK(hl_entry_id, leases->places[1].pins->entries[0], world.blocks[9], "is not pinned");
    close_world(&world);
}

static void wrong_links_are_seen(void)
{
    struct hl_leases *leases = open_sound();
    BREAK(uint32_t, leases->places[1].heap_at, 0, "not where it says");
    BREAK(uint32_t, leases->places[1].heap_at, 90, "not where it says");
    BREAK(int64_t, leases->places[0].expires_ns, -5, "before its parent");
    BREAK(uint64_t, leases->places[0].session, 2, "is broken");
    BREAK(uint32_t, leases->places[1].newer, 1, "is broken");
    BREAK(uint32_t, leases->places[1].older, 0, "leases of a session");
    BREAK(uint32_t, leases->ended_first, 1, "is broken");
    BREAK(uint32_t, leases->ended_last, 4, "not the queue's last");
    BREAK(uint32_t, leases->places[4].newer, 4, "is broken");
    BREAK(uint32_t, leases->ended_first, 5, "ended leases");
    close_world(&world);
}

HL_TESTS(lease_check, HL_CASE(wrong_counts_are_seen), HL_CASE(wrong_leases_are_seen),
         HL_CASE(wrong_links_are_seen));
