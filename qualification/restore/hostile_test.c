/* A hostile peer beside a healthy one. Whatever it sends or scribbles, the Manager lives, drops it with a
 * reason in the log, and the healthy session's restores stay exact throughout. Each attack comes from a
 * process of its own, so that what it mapped and holds goes as it would in earnest. */
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base/random.h"
#include "qualification/restore/scene.h"

enum { ROUNDS = SANITIZED ? 60 : 400 };

/* --- what a hostile process does, without the engine library --- */

struct hostile {
    int fd;
    struct hl_welcome welcome;
    int fds[HL_BOOTSTRAP_FDS];
    hl_descriptors *descriptors;
    hl_grant_memory *grants;
    hl_random random;
    hl_error err;
};

static void hostile_open(struct hostile *hostile)
{
    struct hl_packet packet;
    *hostile = (struct hostile){0};
    hl_random_seed(&hostile->random, 9);
    hostile->fd = raw_hello(HL_PEER_ENGINE, &packet);
    memcpy(&hostile->welcome, packet.bytes, sizeof hostile->welcome);
    MUST(packet.fd_count == HL_BOOTSTRAP_FDS);
    memcpy(hostile->fds, packet.fds, sizeof hostile->fds);
    MUST_OK(hl_descriptors_map(packet.fds[HL_FD_DESCRIPTORS], &hostile->descriptors, &hostile->err),
            hostile->err);
    MUST_OK(hl_grant_memory_map(packet.fds[HL_FD_GRANTS], hostile->welcome.epoch, hostile->welcome.token,
                                &hostile->grants, &hostile->err),
            hostile->err);
}

static void ring(struct hostile *hostile, uint32_t record)
{
    hl_grant_mark(hostile->grants, record);
    eventfd_write(hostile->fds[HL_FD_RETIREMENT], 1);
}

/* Random packets, one connection each: as a first message, and after a good HELLO. */
static void send_random_bytes(uint64_t rounds)
{
    unsigned char bytes[HL_MESSAGE_BYTES];
    hl_random random;
    hl_random_seed(&random, 11);
    for (uint64_t i = 0; i < rounds; i++) {
        struct hl_packet packet;
        int fd = i % 2 ? raw_hello(HL_PEER_TOOL, &packet) : raw_connect();
        size_t size = 1 + hl_random_below(&random, sizeof bytes);
        hl_random_fill(&random, bytes, size);
        if (i % 3 == 0) { /* a head that is nearly right */
            hl_message_head(bytes, (enum hl_message_kind)(1 + hl_random_below(&random, 13)), (uint32_t)i);
            size = size < sizeof(struct hl_message) ? sizeof(struct hl_message) : size;
        }
        MUST(send(fd, bytes, size, MSG_NOSIGNAL) == (ssize_t)size);
        raw_await_close(fd);
    }
}

/* Every message cut at every length. */
static void send_truncated_messages(uint64_t rounds)
{
    (void)rounds;
    for (int kind = HL_MESSAGE_HELLO; kind < HL_MESSAGE_KIND_COUNT; kind++) {
        const size_t whole = hl_message_bytes((enum hl_message_kind)kind);
        for (size_t size = 1; size < whole; size += size < 24 ? 1 : whole / 4) {
            unsigned char bytes[HL_MESSAGE_BYTES] = {0};
            hl_message_head(bytes, (enum hl_message_kind)kind, 0);
            int fd = raw_connect();
            MUST(send(fd, bytes, size, MSG_NOSIGNAL) == (ssize_t)size);
            raw_await_close(fd);
        }
    }
}

/* Descriptors where none belong, and more than any message carries. */
static void send_wrong_descriptors(uint64_t rounds)
{
    for (uint64_t i = 0; i < rounds; i++) {
        struct hl_packet packet;
        struct hl_hello hello;
        struct hl_message bye;
        int many[HL_MESSAGE_FDS], null = open("/dev/null", O_RDONLY | O_CLOEXEC);
        const unsigned count = 1 + (unsigned)(i % HL_MESSAGE_FDS);
        for (unsigned j = 0; j < HL_MESSAGE_FDS; j++)
            many[j] = null;
        hl_hello_fill(&hello, HL_PEER_ENGINE, "hostile");
        hl_message_head(&bye, HL_MESSAGE_BYE, 1);
        int fd = i % 2 ? raw_hello(HL_PEER_ENGINE, &packet) : raw_connect();
        if (i % 2)
            hl_packet_close_fds(&packet);
        hl_error err = {0};
        MUST_OK(hl_channel_send(fd, i % 2 ? (void *)&bye : (void *)&hello, many, count, &err), err);
        raw_await_close(fd);
        close(null);
    }
}

/* Another layout signature, whose text has both values. */
static void send_a_wrong_signature(uint64_t rounds)
{
    for (uint64_t i = 0; i < rounds; i++) {
        struct hl_packet packet;
        struct hl_hello hello;
        hl_error err = {0};
        hl_hello_fill(&hello, HL_PEER_ENGINE, "hostile");
        hello.layout_signature ^= 1ull << (i % 64);
        int fd = raw_connect();
        MUST(raw_request(fd, &hello, NULL, 0, &packet));
        MUST(hl_error_message_read((const struct hl_error_message *)packet.bytes, &err) == HL_E_VERSION);
        raw_await_close(fd);
    }
}

/* A session's HELLO said again inside it, and its memory's token and epoch claimed by another one. */
static void replay_a_token(uint64_t rounds)
{
    (void)rounds;
    struct hostile first, second;
    struct hl_hello hello;
    hl_grant_memory *none;
    hostile_open(&first);
    hostile_open(&second);
    MUST(memcmp(first.welcome.token, second.welcome.token, sizeof first.welcome.token) != 0);
    MUST(hl_grant_memory_map(second.fds[HL_FD_GRANTS], first.welcome.epoch, first.welcome.token, &none,
                             &second.err) == HL_E_PROTOCOL);
    hl_hello_fill(&hello, HL_PEER_ENGINE, "hostile");
    MUST_OK(hl_channel_send(second.fd, &hello, NULL, 0, &second.err), second.err);
    raw_await_close(second.fd);
    struct hl_release release = {.lease = 1}; /* another session's, if anybody's */
    struct hl_packet packet;
    hl_message_head(&release, HL_MESSAGE_RELEASE, 1);
    for (release.lease = 1; release.lease < 200; release.lease++) {
        MUST(raw_request(first.fd, &release, NULL, 0, &packet));
        MUST(((const struct hl_message *)packet.bytes)->kind == HL_MESSAGE_ERROR);
    }
    uint64_t operation[3] = {first.welcome.epoch, 1, 0};
    memcpy(&operation[2], first.welcome.token, sizeof operation[2]);
    MUST(tool_release(operation, 1) == HL_E_NOT_FOUND);
}

static void *flip(void *argument)
{
    _Atomic uint64_t *words = argument; /* 64 of them, and one that says when to end */
    for (uint64_t i = 0; !atomic_load(&words[64]); i++)
        atomic_fetch_xor(&words[i % 64], 1ull << (i * 7 % 64));
    return NULL;
}

/* A descriptor whose words change while the Manager reads it. */
static void flip_a_descriptor(uint64_t rounds)
{
    struct hostile hostile;
    struct hl_extent extent;
    pthread_t flipper;
    void *at;
    hostile_open(&hostile);
    MUST_OK(hl_descriptors_take(hostile.descriptors, 65 * 8, &extent, &at, &hostile.err), hostile.err);
    memset(at, 0, 65 * 8);
    MUST(pthread_create(&flipper, NULL, flip, at) == 0);
    for (uint64_t i = 0; i < rounds; i++) {
        const uint32_t record = (uint32_t)(i % HL_GRANT_RECORDS);
        struct hl_grant_record *shared = hl_grant_record_at(hostile.grants, record);
        struct hl_grant_word word = hl_grant_load(hostile.grants, record);
        MUST(hl_grant_move(hostile.grants, record, word.generation, HL_GRANT_FREE, HL_GRANT_RESERVED));
        shared->descriptor_offset = extent.offset;
        shared->descriptor_bytes = 64 * 8;
        atomic_store(&shared->submitted, word.generation);
        ring(&hostile, record);
        const int64_t until = hl_clock_ns() + PATIENCE_NS;
        while (hl_grant_load(hostile.grants, record).state != HL_GRANT_REAPED)
            MUST(hl_clock_ns() < until && sched_yield() == 0);
        MUST(shared->status < 0);
        MUST(hl_grant_move(hostile.grants, record, word.generation, HL_GRANT_REAPED, HL_GRANT_FREE));
    }
    struct hl_register request = {.extent = {extent.offset, 64 * 8}};
    struct hl_packet packet;
    hl_message_head(&request, HL_MESSAGE_REGISTER, 1);
    MUST(raw_request(hostile.fd, &request, NULL, 0, &packet)); /* and the binding's */
    atomic_store((_Atomic uint64_t *)at + 64, 1);
    pthread_join(flipper, NULL);
}

/* Random words over a record, again and again, until the Manager has had enough. */
static void scribble_over_records(uint64_t rounds)
{
    for (uint64_t i = 0; i < rounds / 20 + 1; i++) {
        struct hostile hostile;
        hostile_open(&hostile);
        hl_random_seed(&hostile.random, i);
        for (unsigned j = 0; j < 64; j++) {
            const uint32_t record = (uint32_t)hl_random_below(&hostile.random, HL_GRANT_RECORDS);
            struct hl_grant_record *shared = hl_grant_record_at(hostile.grants, record);
            hl_random_fill(&hostile.random, (char *)shared + 8, sizeof *shared - 8);
            /* Low states are likely ones: half of them with a plausible generation. */
            uint64_t word = hl_random_next(&hostile.random);
            if (j % 2)
                word = 1ull << 32 | hl_random_below(&hostile.random, HL_GRANT_STATE_COUNT + 2);
            if (j % 4 == 1)
                atomic_store(&shared->submitted, 1);
            atomic_store(&shared->word, word);
            ring(&hostile, record);
        }
        raw_await_close(hostile.fd);
        hl_descriptors_close(hostile.descriptors);
        hl_grant_memory_close(hostile.grants);
        for (unsigned j = 0; j < HL_BOOTSTRAP_FDS; j++)
            close(hostile.fds[j]);
    }
}

static const struct attack {
    const char *name;
    void (*act)(uint64_t rounds);
    const char *reason; /* in the Manager's log */
} attacks[] = {{"random bytes", send_random_bytes, "refused process"},
               {"truncated messages", send_truncated_messages, "refused process"},
               {"wrong descriptors", send_wrong_descriptors, "fd"},
               {"a wrong signature", send_a_wrong_signature, "signature"},
               {"a replayed token", replay_a_token, "HELLO is no request"},
               {"a flipping descriptor", flip_a_descriptor, ""},
               {"scribbled records", scribble_over_records, "which contradicts"}};

static int hostile_role(int channel)
{
    struct process_message message;
    MUST(process_hear(channel, &message));
    attacks[message.values[0]].act(ROUNDS);
    process_say(channel, &message);
    process_hear(channel, &message); /* the end of the test, or SIGKILL */
    return 0;
}

/* An engine like any other that scribbles over a record which it has claimed, and dies. */
static int scribbler_role(int channel)
{
    struct process_message message;
    struct world world;
    struct client client;
    MUST(process_hear(channel, &message));
    world_open(&world, &WORLD_DEFAULTS);
    client_open(&client, &world, "scribbler");
    client_gate_arm(&client, ENGINE_AFTER_CLAIM, 0);
    hl_restore *restore = client_start(&client, 0, 16, 0);
    const uint32_t record = client_gate_reached(&client);
    struct hl_grant_record *shared = hl_grant_record_at(client.engine->grants, record);
    atomic_store(&shared->word, (uint64_t)restore->generation << 32 | message.values[0]);
    hl_grant_mark(client.engine->grants, record);
    engine_signal(client.engine->retirement_fd);
    process_say(channel, &message);
    process_hear(channel, &message);
    _exit(0);
}

const struct process_role process_roles[] = {
    MANAGER_ROLE, {.name = "hostile", .act = hostile_role}, {.name = "scribbler", .act = scribbler_role}};
const unsigned process_role_count = sizeof process_roles / sizeof process_roles[0];

/* --- the healthy session --- */

/* Restores for as long as the attack lasts, and at least once. */
static void withstand(unsigned index)
{
    struct scene scene;
    struct process hostile;
    struct process_message message = {.values = {index}};
    uint64_t restored = 0;
    scene_open(&scene);
    client_publish(&scene.client, 0, 48);
    hl_lease *kept = client_query(&scene.client, 0, 8);
    process_start(&hostile, "hostile");
    process_say(hostile.channel, &message);
    struct pollfd over = {.fd = hostile.channel, .events = POLLIN};
    do {
        client_restore(&scene.client, restored % 32, 16, 48);
        restored++;
    } while (poll(&over, 1, 0) == 0);
    MUST(process_hear(hostile.channel, &message));
    process_kill(&hostile);
    const uint32_t pages[8] = {40, 41, 42, 43, 44, 45, 46, 47};
    client_outcome(&scene.client, client_start_to(&scene.client, kept, pages, 8), HL_OK);
    client_expect(&scene.client, 0, 8, 40);
    MANAGER_AWAIT(&scene.manager, sessions, 1);
    HL_EXPECT_OK(hl_engine_health(scene.client.engine, &scene.client.err), scene.client.err);
    if (attacks[index].reason[0])
        CU_ASSERT_TRUE(manager_logged(&scene.manager, attacks[index].reason) > 0);
    CU_ASSERT_EQUAL(manager_stats(&scene.manager).restored, restored + 1);
    scene_close(&scene);
}

static void random_bytes_are_refused(void)
{
    withstand(0);
}

static void truncated_messages_are_refused(void)
{
    withstand(1);
}

static void unexpected_descriptors_are_refused(void)
{
    withstand(2);
}

static void a_wrong_signature_is_refused(void)
{
    withstand(3);
}

static void a_replayed_token_opens_nothing(void)
{
    withstand(4);
}

static void a_descriptor_that_changes_while_being_read_is_refused(void)
{
    withstand(5);
}

static void a_scribbled_record_ends_its_session_only(void)
{
    withstand(6);
}

/* Each state that the record of a claimed operation cannot be in: nobody knows what the device does, so that
 * the sources stay until an operator releases them. */
static void a_scribbled_record_of_a_claimed_operation_keeps_its_sources(void)
{
    static const uint32_t states[] = {HL_GRANT_FREE,         HL_GRANT_RESERVED,
                                      HL_GRANT_PREPARING,    HL_GRANT_MANAGED,
                                      HL_GRANT_COMPLETED,    HL_GRANT_REJECTED,
                                      HL_GRANT_PART_DRAINED, HL_GRANT_REAPED,
                                      HL_GRANT_STATE_COUNT,  255};
    struct scene scene;
    scene_open(&scene);
    client_publish(&scene.client, 0, 48);
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++) {
        struct process scribbler;
        struct process_message message = {.values = {states[i]}};
        uint64_t operations[1][3];
        process_start(&scribbler, "scribbler");
        process_ask(&scribbler, &message);
        MANAGER_AWAIT(&scene.manager, quarantined, 1);
        client_restore(&scene.client, 0, 16, 48);
        process_kill(&scribbler);
        MANAGER_AWAIT(&scene.manager, unresolved, 1);
        hl_manager_snapshot now = manager_stats(&scene.manager);
        CU_ASSERT_EQUAL(now.quarantined, 1);
        CU_ASSERT_EQUAL(now.reserved_bytes, 16 * 1024);
        manager_check(&scene.manager, false);
        CU_ASSERT_EQUAL_FATAL(tool_quarantine(operations, 1), 1);
        CU_ASSERT_EQUAL(tool_release(operations[0], 1), HL_OK);
        MANAGER_AWAIT(&scene.manager, unresolved, 0);
    }
    manager_await_log(&scene.manager, "which contradicts its owner");
    scene_close(&scene);
}

HL_TESTS(hostile, HL_CASE(random_bytes_are_refused), HL_CASE(truncated_messages_are_refused),
         HL_CASE(unexpected_descriptors_are_refused), HL_CASE(a_wrong_signature_is_refused),
         HL_CASE(a_replayed_token_opens_nothing),
         HL_CASE(a_descriptor_that_changes_while_being_read_is_refused),
         HL_CASE(a_scribbled_record_ends_its_session_only),
         HL_CASE(a_scribbled_record_of_a_claimed_operation_keeps_its_sources));
