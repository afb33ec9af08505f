/* What the test programs of the leases begin with. Test code only. */
#ifndef MANAGER_LEASE_TESTING_H
#define MANAGER_LEASE_TESTING_H

#include "manager/index_testing.h"
#include "manager/lease.h"

enum { TEST_BLOCKS = 64, TEST_BLOCK_BYTES = 100 };

/* An index full of blocks, leases on it, and two sessions' budgets. */
struct lease_world {
    hl_index *index;
    hl_leases *leases;
    hl_entry_id blocks[TEST_BLOCKS];
    hl_budget budgets[2]; /* of the sessions 1 and 2 */
};

static inline void open_world(struct lease_world *world, uint32_t most, const struct hl_index_memory *memory)
{
    struct hl_leases_options options = {.most = most, .memory = memory};
    hl_error err;
    world->index = open_index(TEST_BLOCKS, NULL);
    for (unsigned i = 0; i < TEST_BLOCKS; i++)
        world->blocks[i] = must_publish(world->index, i, TEST_BLOCK_BYTES);
    hl_budget_init(&world->budgets[0], 20 * TEST_BLOCK_BYTES);
    hl_budget_init(&world->budgets[1], 20 * TEST_BLOCK_BYTES);
    HL_REQUIRE_OK(hl_leases_create(&options, world->index, &world->leases, &err), err);
}

static inline struct hl_leases_stats lease_stats(const struct lease_world *world)
{
    struct hl_leases_stats stats;
    hl_leases_get_stats(world->leases, &stats);
    return stats;
}

static inline void expect_sound_leases(const struct lease_world *world)
{
    hl_error err;
    HL_REQUIRE_OK(hl_leases_check(world->leases, &err), err);
    expect_sound(world->index);
}

/* Every credit is back: nothing pinned, nothing taken (I2). */
static inline void expect_all_returned(const struct lease_world *world)
{
    expect_sound_leases(world);
    CU_ASSERT_EQUAL(index_stats(world->index).pins, 0);
    CU_ASSERT_EQUAL(hl_budget_used(&world->budgets[0]), 0);
    CU_ASSERT_EQUAL(hl_budget_used(&world->budgets[1]), 0);
    CU_ASSERT_EQUAL(lease_stats(world).handed_pins, 0);
    CU_ASSERT_EQUAL(lease_stats(world).handed_bytes, 0);
}

static inline void close_world(struct lease_world *world)
{
    hl_leases_destroy(world->leases);
    CU_ASSERT_EQUAL(index_stats(world->index).pins, 0);
    hl_index_destroy(world->index);
}

/* `count` blocks from `first` on. */
static inline struct hl_lease_request request_of(struct lease_world *world, uint64_t session, unsigned first,
                                                 size_t count, int64_t expires_ns)
{
    return (struct hl_lease_request){.session = session,
                                     .binding = 5,
                                     .group = 1,
                                     .entries = world->blocks + first,
                                     .count = count,
                                     .expires_ns = expires_ns,
                                     .budget = &world->budgets[session - 1]};
}

static inline hl_lease_id must_lease(struct lease_world *world, uint64_t session, unsigned first,
                                     size_t count, int64_t expires_ns)
{
    struct hl_lease_request request = request_of(world, session, first, count, expires_ns);
    hl_lease_id id = 0;
    hl_error err;
    HL_REQUIRE_OK(hl_lease_create(world->leases, &request, &id, &err), err);
    return id;
}

#endif
