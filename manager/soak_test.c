/* Publishes, queries, restores, cancellations and evictions in random order, over an arena smaller than the
 * working set, with a bank that holds two parts. Every restored page is compared; the device's checker sees
 * every copy: a restore reads pinned sources only, a publish writes where nothing is visible. */
#include "manager/manager_testing.h"

enum { STEPS = 30000, KEYS = 400, RECORDS = 8, SLOTS = 4, PAGES_EACH = 6, SLOT_PAGES = 64 };

struct soak {
    struct world world;
    hl_random random;
    struct {
        bool busy;
        uint32_t count, pages[PAGES_EACH];
        uint64_t keys[PAGES_EACH];
    } restores[WORLD_SESSIONS][RECORDS];
    bool publishing[WORLD_SESSIONS][SLOTS];
    uint64_t restored, published, unsaid, rejected;
};

static uint32_t below(struct soak *soak, uint32_t bound)
{
    return (uint32_t)hl_random_below(&soak->random, bound);
}

static void publish(struct soak *soak, uint32_t session)
{
    uint32_t slot = below(soak, SLOTS), count = 1 + below(soak, PAGES_EACH);
    uint32_t page = SLOT_PAGES + slot * PAGES_EACH;
    uint64_t first = below(soak, KEYS);
    if (soak->publishing[session][slot]) {
        struct hl_publish_slot outcome = world_publish_outcome(&soak->world, session, slot);
        CU_ASSERT_TRUE(outcome.status == HL_OK || outcome.status == HL_E_NOSPACE);
        soak->published += outcome.stored;
        soak->publishing[session][slot] = false;
        return;
    }
    for (uint32_t i = 0; i < count; i++)
        world_fill_page(&soak->world, session, 0, page + i, first + i);
    world_publish(&soak->world, session, slot, 0, first, count, page);
    soak->publishing[session][slot] = true;
}

static void start(struct soak *soak, uint32_t session, uint32_t record)
{
    uint32_t count = 1 + below(soak, PAGES_EACH), hits;
    uint64_t first = below(soak, KEYS), lease = world_query(&soak->world, session, 0, first, count, &hits);
    if (!lease)
        return;
    uint32_t order[PAGES_EACH];
    hl_random_permutation(&soak->random, order, PAGES_EACH);
    soak->restores[session][record].busy = true;
    soak->restores[session][record].count = 1 + below(soak, hits);
    for (uint32_t i = 0; i < soak->restores[session][record].count; i++) {
        soak->restores[session][record].keys[i] = first + i;
        soak->restores[session][record].pages[i] = record * PAGES_EACH + order[i];
    }
    engine_reserve(&soak->world, session, record);
    engine_submit(&soak->world, session, record, 0, 1, &lease, &soak->restores[session][record].count,
                  soak->restores[session][record].pages);
}

static void finish(struct soak *soak, uint32_t session, uint32_t record)
{
    struct hl_grant_record *shared = engine_record(&soak->world, session, record);
    if (shared->status == HL_OK) {
        for (uint32_t i = 0; i < soak->restores[session][record].count; i++)
            CU_ASSERT_TRUE_FATAL(world_page_holds(&soak->world, session, 0,
                                                  soak->restores[session][record].pages[i],
                                                  soak->restores[session][record].keys[i]));
        soak->restored++;
    } else {
        CU_ASSERT_TRUE(shared->status == HL_E_CANCELLED || shared->status == HL_E_DEVICE);
        soak->rejected++;
    }
    engine_retire(&soak->world, session, record);
    soak->restores[session][record].busy = false;
}

/* One step of the engine with its record; every fourth time the Manager is not told. */
static void advance(struct soak *soak, uint32_t session, uint32_t record)
{
    struct world *world = &soak->world;
    if (!soak->restores[session][record].busy) {
        start(soak, session, record);
    } else {
        if (below(soak, 24) == 0)
            engine_cancel(world, session, record);
        switch (world_state(world, session, record)) {
        case HL_GRANT_GRANTED:
            CU_ASSERT_TRUE(engine_move(world, session, record, HL_GRANT_GRANTED, HL_GRANT_ACTIVE));
            break;
        case HL_GRANT_ACTIVE:
            engine_copy_part(world, session, record);
            if (below(soak, 16) == 0)
                engine_drain(world, session, record, HL_E_DEVICE);
            else if (engine_record(world, session, record)->part_index + 1 ==
                     engine_record(world, session, record)->part_count)
                engine_drain(world, session, record, HL_OK);
            else
                CU_ASSERT_TRUE(engine_move(world, session, record, HL_GRANT_ACTIVE, HL_GRANT_PART_DRAINED));
            break;
        case HL_GRANT_REAPED:
            finish(soak, session, record);
            break;
        default:
            break; /* the Manager's turn */
        }
    }
    if (below(soak, 4) != 0)
        world_look(world, session, record);
    else
        soak->unsaid++;
}

static void step(struct soak *soak)
{
    uint32_t session = below(soak, WORLD_SESSIONS), arena;
    switch (below(soak, 10)) {
    case 0:
    case 1:
        publish(soak, session);
        break;
    case 2:
        world_sweep(&soak->world, session);
        break;
    case 3:
        pthread_mutex_lock(&soak->world.manager->lock);
        manager_store_evict(soak->world.manager, &arena, NULL); /* all may be pinned */
        hl_lease_drop_session(soak->world.manager->leases, soak->world.manager->sessions[session].serial);
        pthread_mutex_unlock(&soak->world.manager->lock);
        /* Submitted restores lose their leases with it. */
        for (uint32_t i = 0; i < RECORDS; i++)
            if (world_state(&soak->world, session, i) == HL_GRANT_RESERVED) {
                CU_ASSERT_TRUE(engine_move(&soak->world, session, i, HL_GRANT_RESERVED, HL_GRANT_FREE));
                hl_descriptors_give(soak->world.engine[session], soak->world.extents[session][i]);
                soak->world.extents[session][i].bytes = 0;
                soak->restores[session][i].busy = false;
            }
        break;
    default:
        advance(soak, session, below(soak, RECORDS));
    }
}

static void bytes_are_right_whatever_is_evicted_meanwhile(void)
{
    static struct soak soak;
    memset(&soak, 0, sizeof soak);
    hl_random_seed(&soak.random, 7);
    world_open(&soak.world, &(struct world_options){.layout = world_layout(HL_LAYOUT_SPLIT, 0, 96),
                                                    .arena_bytes = 32 * HL_KIB,
                                                    .arenas = 2, /* 128 blocks for KEYS keys */
                                                    .index_blocks = 120,
                                                    .bank_bytes = 768,
                                                    .part_bytes = 384,
                                                    .publisher = true});
    for (unsigned i = 0; i < STEPS; i++) {
        step(&soak);
        if (i % 64 == 0) {
            pthread_mutex_lock(&soak.world.manager->lock);
            HL_EXPECT_OK(hl_leases_check(soak.world.manager->leases, &soak.world.err), soak.world.err);
            HL_EXPECT_OK(hl_index_check(soak.world.manager->index, &soak.world.err), soak.world.err);
            pthread_mutex_unlock(&soak.world.manager->lock);
        }
    }
    for (uint32_t session = 0; session < WORLD_SESSIONS; session++)
        for (uint32_t slot = 0; slot < SLOTS; slot++)
            if (soak.publishing[session][slot])
                soak.published += world_publish_outcome(&soak.world, session, slot).stored;
    world_check(&soak.world);
    CU_ASSERT_EQUAL(world_session(&soak.world, 0)->state, MANAGER_SESSION_LIVE);
    CU_ASSERT_EQUAL(world_session(&soak.world, 1)->state, MANAGER_SESSION_LIVE);
    /* All of it happened. */
    CU_ASSERT_TRUE(soak.restored > 100 && soak.published > 400 && soak.rejected > 10 && soak.unsaid > 100);
    CU_ASSERT_TRUE(soak.world.manager->counters.evicted_blocks > 200);
    CU_ASSERT_TRUE(soak.world.manager->counters.revoked > 0);
    struct hl_software_counts counts;
    hl_software_counts(soak.world.dev, &counts);
    CU_ASSERT_EQUAL(counts.violations, 0);
    for (uint32_t session = 0; session < WORLD_SESSIONS; session++)
        for (uint32_t i = 0; i < RECORDS; i++)
            if (world_state(&soak.world, session, i) == HL_GRANT_ACTIVE)
                engine_drain(&soak.world, session, i, HL_E_DEVICE); /* else quarantine would be right */
    world_close(&soak.world);
}

HL_TESTS(soak, HL_CASE(bytes_are_right_whatever_is_evicted_meanwhile));
