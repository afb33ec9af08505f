/* Many sessions do everything at once, for a bounded number of restores, or for HOSTLANE_SOAK_SECONDS: no
 * byte is wrong, nothing leaks, nobody starves. And the same over an arena that is smaller than what is
 * published, so that blocks go while others are pinned: a pinned block that went would be a wrong byte (I1).
 */
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/random.h"
#include "qualification/restore/scene.h"

enum {
    MOST_PROCESSES = 8,
    MOST_ENGINES = 8, /* of a process */
    PUBLISHED = 8,    /* blocks of one publish, from the first pages */
    FLIGHT = 2,       /* so that 64 sessions reach the 128 restores that a GPU admits */
    LENGTH = 16,      /* most blocks of one restore */
    STARVED = 8       /* the slowest session has at least this part of the fastest one's restores */
};

/* Seen by all processes of a soak: a file in the working folder. */
struct board {
    _Atomic bool done;
    _Atomic uint64_t restored[MOST_PROCESSES * MOST_ENGINES];
    _Atomic uint64_t cancelled, published, refused;
};

struct soak {
    uint32_t processes, engines;
    uint64_t target; /* restores of the fastest session */
    uint64_t span;   /* keys */
};

/* --- one session, a thread of a soak's process --- */

struct session {
    struct board *board;
    hl_device *dev;
    struct soak soak;
    uint32_t number;
    int64_t until_ns;
    pthread_t thread;
    struct world world;
    struct client client;
    hl_random random;
};

static void publish_some(struct session *session)
{
    hl_publish_result result = {0};
    const uint64_t first = hl_random_below(&session->random, session->soak.span - PUBLISHED);
    hl_status status = client_publish_some(&session->client, 0, first, PUBLISHED, &result);
    MUST(status == HL_OK || status == HL_E_NOSPACE);
    atomic_fetch_add(&session->board->published, result.stored);
}

struct flight {
    hl_restore *restore;
    uint64_t first;
    uint32_t count, at;
};

/* Some blocks that are resident together, to pages that nothing else uses; NULL when there are none. */
static void begin(struct session *session, struct flight *flight, uint32_t at)
{
    uint32_t pages[LENGTH];
    flight->first = hl_random_below(&session->random, session->soak.span - LENGTH);
    flight->at = at;
    hl_lease *lease = client_query_group(&session->client, 0, flight->first, LENGTH);
    flight->count = (uint32_t)hl_lease_hits(lease);
    flight->restore = NULL;
    if (flight->count == 0 || hl_random_below(&session->random, 8) == 0) {
        hl_lease_release(lease);
        return;
    }
    for (uint32_t i = 0; i < flight->count; i++)
        pages[i] = at + i;
    flight->restore = client_start_to(&session->client, lease, pages, flight->count);
    if (hl_random_below(&session->random, 6) == 0)
        hl_restore_cancel(flight->restore);
}

static void finish(struct session *session, struct flight *flight)
{
    struct board *board = session->board;
    hl_restore_result result;
    hl_error err = {0};
    hl_status status = hl_restore_wait(flight->restore, PATIENCE_NS, &result, &err);
    hl_restore_close(flight->restore);
    if (status == HL_OK) {
        client_expect(&session->client, flight->first, flight->count, flight->at);
        if (atomic_fetch_add(&board->restored[session->number], 1) + 1 >= session->soak.target &&
            session->until_ns == 0)
            atomic_store(&board->done, true);
        return;
    }
    process_must(status == HL_E_CANCELLED || status == HL_E_BUDGET, __FILE__, __LINE__, "a restore",
                 err.text);
    MUST(result.untouched);
    atomic_fetch_add(status == HL_E_CANCELLED ? &board->cancelled : &board->refused, 1);
}

static void *run_session(void *argument)
{
    struct session *session = argument;
    struct flight flights[FLIGHT];
    for (uint64_t turn = 0; !atomic_load(&session->board->done); turn++) {
        if (hl_random_below(&session->random, 6) == 0)
            publish_some(session);
        for (unsigned i = 0; i < FLIGHT; i++)
            begin(session, &flights[i], PUBLISHED + i * LENGTH);
        for (unsigned i = 0; i < FLIGHT; i++)
            if (flights[i].restore)
                finish(session, &flights[i]);
        if (turn % 4 == 0)
            MUST(world_matches(&session->world));
        if (session->until_ns != 0 && hl_clock_ns() > session->until_ns)
            atomic_store(&session->board->done, true);
    }
    MUST(world_matches(&session->world));
    return NULL;
}

/* --- a soak's process --- */

enum verb { BEGIN = 1, RUN, END };

static struct session sessions[MOST_ENGINES];

static struct board *map_board(void)
{
    int fd = open("board", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    MUST(fd >= 0 && ftruncate(fd, sizeof(struct board)) == 0);
    struct board *board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MUST(board != MAP_FAILED);
    close(fd);
    return board;
}

static void open_sessions(const struct process_message *message, struct board *board, hl_device *dev)
{
    struct world_options options = WORLD_DEFAULTS;
    const struct soak soak = {(uint32_t)message->values[1], (uint32_t)message->values[2], message->values[3],
                              message->values[4]};
    options.dev = dev;
    for (uint32_t i = 0; i < soak.engines; i++) {
        struct session *session = &sessions[i];
        char name[32];
        *session = (struct session){.board = board, .dev = dev, .soak = soak};
        session->number = (uint32_t)message->values[0] * soak.engines + i;
        if (message->values[5] != 0)
            session->until_ns = hl_clock_ns() + (int64_t)message->values[5] * HL_NS_PER_S;
        hl_random_seed(&session->random, session->number + 1);
        snprintf(name, sizeof name, "engine %u", session->number);
        world_open(&session->world, &options);
        client_open(&session->client, &session->world, name);
        publish_some(session);
    }
}

static void run_sessions(uint32_t engines)
{
    for (uint32_t i = 0; i < engines; i++)
        MUST(pthread_create(&sessions[i].thread, NULL, run_session, &sessions[i]) == 0);
    for (uint32_t i = 0; i < engines; i++)
        pthread_join(sessions[i].thread, NULL);
}

static void close_sessions(uint32_t engines, struct process_message *message)
{
    struct footprint now;
    for (uint32_t i = 0; i < engines; i++) {
        client_close(&sessions[i].client);
        world_close(&sessions[i].world);
    }
    malloc_trim(0);
    footprint_take(&now);
    message->values[0] = now.fds;
    message->values[1] = now.maps;
    message->values[2] = now.resident_kib;
}

static int soak_role(int channel)
{
    struct process_message message;
    struct board *board = map_board();
    hl_device *dev;
    uint32_t engines = 0;
    hl_error err = {0};
    mallopt(M_ARENA_MAX, 2); /* so that a map is the product's, not the allocator's */
    MUST_OK(world_wants_cuda() ? hl_device_open_cuda(0, &dev, &err) : hl_device_open_software(&dev, &err),
            err);
    while (process_hear(channel, &message)) {
        if (message.verb == BEGIN) {
            engines = (uint32_t)message.values[2];
            open_sessions(&message, board, dev);
        } else if (message.verb == RUN) {
            run_sessions(engines);
        } else {
            close_sessions(engines, &message);
        }
        process_say(channel, &message);
    }
    hl_device_close(dev);
    munmap(board, sizeof *board);
    return 0;
}

const struct process_role process_roles[] = {MANAGER_ROLE, {.name = "soak", .act = soak_role}};
const unsigned process_role_count = sizeof process_roles / sizeof process_roles[0];

/* --- the test --- */

static void hear_all(struct process *processes, uint32_t count, struct process_message *messages)
{
    for (uint32_t i = 0; i < count; i++)
        MUST(process_hear(processes[i].channel, &messages[i]));
}

static uint64_t seconds_wanted(void)
{
    const char *text = getenv("HOSTLANE_SOAK_SECONDS");
    return text ? strtoull(text, NULL, 10) : 0;
}

/* Every engine opens, everybody runs at once, every engine closes. messages[i].values then has the footprint
 * of process i. */
static void cycle(struct process *processes, const struct soak *soak, uint64_t seconds, struct board *board,
                  struct process_message *messages)
{
    memset(board, 0, sizeof *board);
    for (uint32_t i = 0; i < soak->processes; i++) {
        messages[i] = (struct process_message){
            .verb = BEGIN, .values = {i, soak->processes, soak->engines, soak->target, soak->span, seconds}};
        process_say(processes[i].channel, &messages[i]);
    }
    hear_all(processes, soak->processes, messages);
    for (enum verb verb = RUN; verb <= END; verb++) {
        for (uint32_t i = 0; i < soak->processes; i++) {
            messages[i].verb = verb;
            process_say(processes[i].channel, &messages[i]);
        }
        struct pollfd first = {.fd = processes[0].channel, .events = POLLIN};
        poll(&first, 1, -1); /* a long soak takes longer than hear_all() waits */
        hear_all(processes, soak->processes, messages);
    }
}

/* Two equal moments: what is more the second time has leaked. */
static void expect_no_growth(const char *who, struct footprint before, struct footprint after)
{
    fprintf(stderr, "%s: %llu fds, %llu maps, %llu KiB; then %llu, %llu, %llu\n", who,
            (unsigned long long)before.fds, (unsigned long long)before.maps,
            (unsigned long long)before.resident_kib, (unsigned long long)after.fds,
            (unsigned long long)after.maps, (unsigned long long)after.resident_kib);
    CU_ASSERT_EQUAL(after.fds, before.fds);
    if (SANITIZED) /* its allocator keeps what was freed */
        return;
    CU_ASSERT_TRUE(after.maps <= before.maps + 8);
    CU_ASSERT_TRUE(after.resident_kib <= before.resident_kib + 8192);
}

static void soak(const struct soak *soak, const struct manager_settings_of_a_test *settings,
                 hl_manager_snapshot *end)
{
    struct process manager, processes[MOST_PROCESSES];
    struct process_message first[MOST_PROCESSES], second[MOST_PROCESSES];
    uint64_t least = UINT64_MAX, most = 0;
    folder_enter();
    manager_start(&manager, settings);
    struct board *board = map_board();
    for (uint32_t i = 0; i < soak->processes; i++)
        process_start(&processes[i], "soak");
    struct soak warm = *soak;
    warm.target = soak->target / 8 + 1;
    cycle(processes, &warm, 0, board, first);
    MANAGER_AWAIT(&manager, sessions, 0);
    struct footprint before = manager_footprint(&manager);
    cycle(processes, soak, seconds_wanted(), board, second);
    MANAGER_AWAIT(&manager, sessions, 0);
    expect_no_growth("the Manager", before, manager_footprint(&manager));
    for (uint32_t i = 0; i < soak->processes; i++) {
        const uint64_t *a = first[i].values, *b = second[i].values;
        expect_no_growth("engines", (struct footprint){a[0], a[1], a[2]},
                         (struct footprint){b[0], b[1], b[2]});
        process_end(&processes[i]);
    }
    for (uint32_t i = 0; i < soak->processes * soak->engines; i++) {
        const uint64_t restored = atomic_load(&board->restored[i]);
        least = restored < least ? restored : least;
        most = restored > most ? restored : most;
    }
    fprintf(stderr,
            "restores of a session: %llu to %llu; %llu cancelled, %llu refused, %llu blocks published\n",
            (unsigned long long)least, (unsigned long long)most, (unsigned long long)board->cancelled,
            (unsigned long long)board->refused, (unsigned long long)board->published);
    CU_ASSERT_TRUE(most > 0 && least * STARVED >= most);
    CU_ASSERT_TRUE(atomic_load(&board->cancelled) > 0);
    *end = manager_stats(&manager);
    manager_check(&manager, true);
    manager_end(&manager);
    munmap(board, sizeof *board);
    unlink("board");
    folder_leave();
}

static void sixty_four_sessions_share_a_manager(void)
{
    struct manager_settings_of_a_test settings = MANAGER_DEFAULTS;
    const struct soak many = {.processes = SANITIZED ? 4 : 8,
                              .engines = SANITIZED ? 4 : 8,
                              .target = SANITIZED ? 60 : 400,
                              .span = 2000};
    hl_manager_snapshot end;
    soak(&many, &settings, &end);
    CU_ASSERT_EQUAL(end.evicted_blocks, 0);
}

/* 192 blocks fit, 1500 are published over and over. */
static void a_small_arena_evicts_and_every_byte_is_right(void)
{
    struct manager_settings_of_a_test settings = MANAGER_DEFAULTS;
    const struct soak few = {.processes = 2, .engines = 4, .target = SANITIZED ? 100 : 1500, .span = 1500};
    hl_manager_snapshot end;
    settings.arena_bytes = 96 << 10;
    soak(&few, &settings, &end);
    CU_ASSERT_TRUE(end.evicted_blocks > (SANITIZED ? 200 : 2000));
}

HL_TESTS(sessions_soak, HL_CASE(sixty_four_sessions_share_a_manager),
         HL_CASE(a_small_arena_evicts_and_every_byte_is_right));
