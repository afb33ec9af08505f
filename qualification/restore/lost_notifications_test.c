/* Notifications are hints (I6): of those that cross a session, in both directions, a third is lost over ten
 * thousand restores, with publishes between them, and then all are lost for a while. Nothing is lost or
 * stuck, and every byte is right. Maintenance, which finds what was missed, ticks faster here than in the
 * product; that is the only difference. */
#include "core/base/random.h"
#include "qualification/restore/notification_loss.h"
#include "qualification/restore/scene.h"

enum {
    ENGINES = 2,
    FLIGHT = 24, /* restores of one engine at a time */
    ROUNDS = (SANITIZED ? 1000 : 10000) / ENGINES / FLIGHT + 1,
    TICK_NS = 1000000
};

static int lossy_manager_role(int channel)
{
    atomic_store(&notification_loss.manager, 1);
    atomic_store(&notification_loss.one_in, 3);
    atomic_store(&notification_loss.seed, 77);
    return manager_process_role(channel);
}

static int deaf_manager_role(int channel)
{
    atomic_store(&notification_loss.manager, 1);
    atomic_store(&notification_loss.one_in, 1);
    return manager_process_role(channel);
}

const struct process_role process_roles[] = {{.name = "manager", .act = lossy_manager_role},
                                             {.name = "deaf manager", .act = deaf_manager_role}};
const unsigned process_role_count = sizeof process_roles / sizeof process_roles[0];

struct lossy {
    struct process manager;
    struct world worlds[ENGINES];
    struct client clients[ENGINES];
};

static void open_lossy(struct lossy *lossy, const char *role)
{
    struct manager_settings_of_a_test settings = MANAGER_DEFAULTS;
    settings.tick_ns = TICK_NS;
    folder_enter();
    manager_start_as(&lossy->manager, role, &settings);
    atomic_store(&notification_loss.fd_count, 0);
    for (int i = 0; i < ENGINES; i++) {
        char name[16];
        snprintf(name, sizeof name, "engine %d", i);
        world_open(&lossy->worlds[i], &WORLD_DEFAULTS);
        client_connect(&lossy->clients[i], &lossy->worlds[i], TICK_NS);
        client_register(&lossy->clients[i], name);
        atomic_store(&notification_loss.fds[i], lossy->clients[i].engine->retirement_fd);
        atomic_store(&notification_loss.fd_count, i + 1);
    }
}

static void close_lossy(struct lossy *lossy)
{
    for (int i = 0; i < ENGINES; i++) {
        client_close(&lossy->clients[i]);
        world_close(&lossy->worlds[i]);
    }
    atomic_store(&notification_loss.fd_count, 0);
    MANAGER_AWAIT(&lossy->manager, sessions, 0);
    manager_check(&lossy->manager, true);
    manager_end(&lossy->manager);
    folder_leave();
}

/* Restores of one to three blocks to pages of their own, all in flight together. */
static void fly(struct client *client, hl_random *random, uint64_t first, uint32_t blocks)
{
    hl_restore *restores[FLIGHT];
    uint32_t page = 0;
    for (unsigned i = 0; i < FLIGHT; i++) {
        const uint32_t count = 1 + (uint32_t)hl_random_below(random, 2);
        const uint64_t block = first + hl_random_below(random, blocks - count);
        restores[i] = client_start(client, block, count, page);
        client_expect(client, block, count, page);
        page += count;
    }
    for (unsigned i = 0; i < FLIGHT; i++)
        client_outcome(client, restores[i], HL_OK);
}

static void a_third_of_all_notifications_is_lost(void)
{
    enum { BLOCKS = 60 };
    struct lossy lossy;
    hl_random random;
    hl_random_seed(&random, 1);
    atomic_store(&notification_loss.seed, 33);
    atomic_store(&notification_loss.one_in, 3);
    open_lossy(&lossy, "manager");
    for (unsigned round = 0; round < ROUNDS; round++)
        for (int i = 0; i < ENGINES; i++) {
            struct client *client = &lossy.clients[i];
            const uint64_t first =
                (round / 16 * ENGINES + (unsigned)i) * BLOCKS; /* fresh ones now and then */
            if (round % 16 == 0)
                client_publish(client, first, BLOCKS);
            fly(client, &random, first, BLOCKS);
            if (round % 16 == 15 || round + 1 == ROUNDS)
                CU_ASSERT_TRUE(world_matches(&lossy.worlds[i]));
        }
    CU_ASSERT_TRUE(atomic_load(&notification_loss.lost) > ROUNDS);
    CU_ASSERT_TRUE(atomic_load(&notification_loss.passed) > ROUNDS);
    MANAGER_AWAIT(&lossy.manager, restored, (uint64_t)ROUNDS * ENGINES * FLIGHT); /* reaped, every one */
    close_lossy(&lossy);
}

/* Not one arrives, in either direction: only maintenance is left. */
static void all_notifications_are_lost(void)
{
    struct lossy lossy;
    hl_random random;
    hl_random_seed(&random, 2);
    atomic_store(&notification_loss.one_in, 1);
    const uint64_t passed = atomic_load(&notification_loss.passed);
    open_lossy(&lossy, "deaf manager");
    client_publish(&lossy.clients[0], 0, 60);
    for (unsigned round = 0; round < (SANITIZED ? 4 : 20); round++)
        for (int i = 0; i < ENGINES; i++) {
            fly(&lossy.clients[i], &random, 0, 60);
            CU_ASSERT_TRUE(world_matches(&lossy.worlds[i]));
        }
    CU_ASSERT_EQUAL(atomic_load(&notification_loss.passed), passed);
    close_lossy(&lossy);
}

HL_TESTS(lost_notifications, HL_CASE(a_third_of_all_notifications_is_lost),
         HL_CASE(all_notifications_are_lost));
