/* The bootstrap against Managers that do it wrong, and registration. */
#include "engine/fake_peer.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static unsigned open_fds(void)
{
    unsigned count = 0;
    DIR *list = opendir("/proc/self/fd");
    while (readdir(list))
        count++;
    closedir(list);
    return count;
}

/* How the fake answers HELLO. */
enum fault {
    HANG_UP,
    SILENT,
    WRONG_KIND,
    WRONG_SEQUENCE,
    GARBAGE,
    NO_FDS,
    FOUR_FDS,
    UNSEALED,
    SHORT_GRANTS,
    SHORT_DESCRIPTORS,
    WRONG_TOKEN,
    WRONG_EPOCH,
    USED_RECORD,
    PIPE_RESTORE,
    PIPE_RETIREMENT,
    PIPE_PUBLISH,
    REFUSE_VERSION,
    REFUSE_BUDGET,
    FAULTS
};

static const hl_status expected[FAULTS] = {[HANG_UP] = HL_E_PEER,
                                           [SILENT] = HL_E_PEER,
                                           [WRONG_KIND] = HL_E_PROTOCOL,
                                           [WRONG_SEQUENCE] = HL_E_PROTOCOL,
                                           [GARBAGE] = HL_E_PROTOCOL,
                                           [NO_FDS] = HL_E_PROTOCOL,
                                           [FOUR_FDS] = HL_E_PROTOCOL,
                                           [UNSEALED] = HL_E_PERMISSION,
                                           [SHORT_GRANTS] = HL_E_RANGE,
                                           [SHORT_DESCRIPTORS] = HL_E_RANGE,
                                           [WRONG_TOKEN] = HL_E_PROTOCOL,
                                           [WRONG_EPOCH] = HL_E_PROTOCOL,
                                           [USED_RECORD] = HL_E_PROTOCOL,
                                           [PIPE_RESTORE] = HL_E_PROTOCOL,
                                           [PIPE_RETIREMENT] = HL_E_PROTOCOL,
                                           [PIPE_PUBLISH] = HL_E_PROTOCOL,
                                           [REFUSE_VERSION] = HL_E_VERSION,
                                           [REFUSE_BUDGET] = HL_E_BUDGET};

static int sealed_memfd(size_t bytes, bool sealed)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CU_ASSERT_EQUAL_FATAL(ftruncate(fd, (off_t)bytes), 0);
    if (sealed)
        CU_ASSERT_EQUAL_FATAL(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    return fd;
}

static void send_welcome(struct fake *fake, enum fault fault, uint32_t sequence)
{
    struct hl_welcome message = {.epoch = fake->epoch + (fault == WRONG_EPOCH)};
    int fds[HL_BOOTSTRAP_FDS] = {hl_descriptors_fd(fake->descriptors), hl_grant_memory_fd(fake->grants),
                                 fake->restore_fd, fake->retirement_fd, fake->publish_fd};
    unsigned count = fault == NO_FDS ? 0 : fault == FOUR_FDS ? 4 : HL_BOOTSTRAP_FDS;
    int ends[2], own = -1;
    CU_ASSERT_EQUAL_FATAL(pipe2(ends, O_CLOEXEC), 0);
    memcpy(message.token, fake->token, sizeof message.token);
    message.token[0] ^= fault == WRONG_TOKEN;
    if (fault >= PIPE_RESTORE && fault <= PIPE_PUBLISH)
        fds[HL_FD_RESTORE + (fault - PIPE_RESTORE)] = ends[1];
    if (fault == UNSEALED)
        fds[HL_FD_DESCRIPTORS] = own = sealed_memfd(HL_DESCRIPTOR_BYTES, false);
    if (fault == SHORT_DESCRIPTORS)
        fds[HL_FD_DESCRIPTORS] = own = sealed_memfd(4096, true);
    if (fault == SHORT_GRANTS)
        fds[HL_FD_GRANTS] = own = sealed_memfd(4096, true);
    if (fault == USED_RECORD)
        atomic_store(&hl_grant_record_at(fake->grants, 1000)->word, 1ull << 32 | HL_GRANT_ACTIVE);
    hl_message_head(&message, HL_MESSAGE_WELCOME, sequence + (fault == WRONG_SEQUENCE));
    hl_channel_send(fake->socket, &message, fds, count, NULL);
    if (own >= 0)
        close(own);
    close(ends[0]);
    close(ends[1]);
}

static bool answer_wrongly(struct fake *fake, const struct hl_packet *packet, enum hl_message_kind kind)
{
    enum fault fault = *(enum fault *)fake->user;
    uint32_t sequence = ((const struct hl_message *)(const void *)packet->bytes)->sequence;
    struct hl_done done = {0};
    if (kind != HL_MESSAGE_HELLO)
        return false;
    switch (fault) {
    case HANG_UP:
        shutdown(fake->socket, SHUT_RDWR);
        return true;
    case SILENT:
        return true;
    case WRONG_KIND:
    case GARBAGE:
        hl_message_head(&done, HL_MESSAGE_DONE, sequence);
        done.head.magic ^= fault == GARBAGE;
        hl_channel_send(fake->socket, &done, NULL, 0, NULL);
        return true;
    case REFUSE_VERSION:
        fake_reply_error(fake, sequence, HL_E_VERSION, "channel_abi is 11, this side has 12");
        return true;
    case REFUSE_BUDGET:
        fake_reply_error(fake, sequence, HL_E_BUDGET, "64 sessions are live");
        return true;
    default:
        send_welcome(fake, fault, sequence);
        return true;
    }
}

static hl_status try_connect(struct fake *fake, hl_engine **engine, hl_error *err)
{
    hl_engine_options options;
    struct engine_tuning tuning = fake_tuning(fake);
    tuning.reply_ns = 200 * 1000000;
    hl_engine_options_init(&options);
    options.socket_path = fake->path;
    return engine_connect_with(&options, &tuning, engine, err);
}

/* G1, G2, R3, F6 */
static void every_wrong_bootstrap_is_refused_and_leaves_nothing(void)
{
    for (enum fault fault = 0; fault < FAULTS; fault++) {
        struct fake fake;
        hl_engine *engine = NULL;
        hl_error err = {0};
        fake_open(&fake);
        fake.user = &fault;
        fake.on_request = answer_wrongly;
        unsigned before = open_fds();
        HL_EXPECT_STATUS(try_connect(&fake, &engine, &err), expected[fault], err);
        CU_ASSERT_PTR_NULL(engine);
        CU_ASSERT_TRUE(err.text[0] != '\0' && err.stage != NULL);
        fake_hang_up(&fake);
        pthread_mutex_lock(&fake.lock);
        while (fake.socket >= 0) {
            pthread_mutex_unlock(&fake.lock);
            sched_yield();
            pthread_mutex_lock(&fake.lock);
        }
        pthread_mutex_unlock(&fake.lock);
        CU_ASSERT_EQUAL(open_fds(), before);
        fake_close(&fake);
    }
}

static void nobody_listening_is_a_missing_peer(void)
{
    hl_engine *engine = NULL;
    hl_engine_options options;
    hl_error err = {0};
    hl_engine_options_init(&options);
    options.socket_path = "there-is-no-such-socket";
    HL_EXPECT_STATUS(hl_engine_connect(&options, &engine, &err), HL_E_PEER, err);
}

static void options_are_checked(void)
{
    static const char long_name[] = "0123456789012345678901234567890123456789012345678901234567890123";
    char path[256];
    hl_engine *engine = NULL;
    hl_engine_options options;
    hl_error err = {0};
    memset(path, 'x', sizeof path - 1);
    path[sizeof path - 1] = '\0';
    HL_EXPECT_STATUS(hl_engine_connect(NULL, &engine, &err), HL_E_INVALID, err);
    hl_engine_options_init(&options);
    HL_EXPECT_STATUS(hl_engine_connect(&options, &engine, &err), HL_E_INVALID, err);
    options.socket_path = path;
    HL_EXPECT_STATUS(hl_engine_connect(&options, &engine, &err), HL_E_INVALID, err);
    options.socket_path = "s";
    options.name = long_name;
    HL_EXPECT_STATUS(hl_engine_connect(&options, &engine, &err), HL_E_INVALID, err);
    options.name = NULL;
    HL_EXPECT_STATUS(hl_engine_connect(&options, &engine, &err), HL_E_INVALID, err);
    options.name = "e";
    options.spin_us = 2000000;
    HL_EXPECT_STATUS(hl_engine_connect(&options, &engine, &err), HL_E_INVALID, err);
    options.spin_us = 0;
    options.size--;
    HL_EXPECT_STATUS(hl_engine_connect(&options, &engine, &err), HL_E_INVALID, err);
    hl_engine_close(NULL);
    hl_engine_unregister(NULL, NULL);
    hl_lease_release(NULL);
    hl_restore_close(NULL);
    hl_publish_close(NULL);
}

/* --- registration --- */

static void expect_batch(struct fake_client *client, const hl_context_batch *batch, hl_status status)
{
    hl_binding *binding = NULL;
    HL_EXPECT_STATUS(hl_engine_register(client->engine, batch, &binding, &client->err), status, client->err);
    CU_ASSERT_PTR_NULL(binding);
}

static void never(void *owner)
{
    (void)owner;
    CU_FAIL("an owner was released that had not been kept");
}

/* R4: geometry and names are validated; nothing is kept. */
static void bad_batches_are_refused(void)
{
    struct fake fake;
    struct fake_client client;
    hl_tensor tensors[FAKE_TENSORS];
    fake_open(&fake);
    fake_connect(&fake, &client, NULL, 0);
    hl_context_batch good = fake_batch(&fake), batch = good;
    memcpy(tensors, fake.tensors, sizeof tensors);
    for (uint32_t i = 0; i < FAKE_TENSORS; i++) {
        tensors[i].owner = &fake;
        tensors[i].release = never;
    }
    good.tensors = tensors;
    expect_batch(&client, NULL, HL_E_INVALID);
#define EXPECT_BATCH(change, status)                                                                         \
    batch = good;                                                                                            \
    change;                                                                                                  \
    expect_batch(&client, &batch, status)
    EXPECT_BATCH(batch.size++, HL_E_INVALID);
    EXPECT_BATCH(batch.instance = NULL, HL_E_INVALID);
    EXPECT_BATCH(batch.instance = "", HL_E_INVALID);
    EXPECT_BATCH(batch.instance = "two\nlines", HL_E_INVALID);
    EXPECT_BATCH(batch.model = NULL, HL_E_INVALID);
    EXPECT_BATCH(batch.layout = NULL, HL_E_INVALID);
    EXPECT_BATCH(batch.tensors = NULL, HL_E_INVALID);
    EXPECT_BATCH(batch.route = "teleport", HL_E_INVALID);
    EXPECT_BATCH(batch.sm_cap = HL_TRANSFER_MAX_SMS + 1, HL_E_INVALID);
    EXPECT_BATCH((batch.device = NULL, batch.cuda_ordinal = -1), HL_E_INVALID);
    EXPECT_BATCH((batch.device = NULL, batch.cuda_ordinal = 999), HL_E_NO_DEVICE);
    tensors[1].bytes--;
    EXPECT_BATCH((void)0, HL_E_RANGE);
    tensors[1].bytes++;
    tensors[2].device_ptr = 0;
    EXPECT_BATCH((void)0, HL_E_INVALID);
    tensors[2].device_ptr = 4096; /* no device memory */
    EXPECT_BATCH((void)0, HL_E_INVALID);
    CU_ASSERT_EQUAL(fake_received(&fake, HL_MESSAGE_REGISTER), 0);
    CU_ASSERT_PTR_NULL(client.engine->gpus);
    fake_close_all(&fake, &client);
}

/* R3, R4, G3: arenas are mapped and registered once a GPU and shared; a live instance cannot come twice. */
static void bindings_of_one_gpu_share_its_registrations(void)
{
    struct fake fake;
    struct fake_client client;
    struct hl_software_counts one, two;
    hl_binding *second = NULL;
    fake_open_all(&fake, &client);
    hl_context_batch batch = fake_batch(&fake);
    hl_software_counts(fake.dev, &one);
    HL_EXPECT_STATUS(hl_engine_register(client.engine, &batch, &second, &client.err), HL_E_BUSY, client.err);
    batch.rank = 1;
    HL_REQUIRE_OK(hl_engine_register(client.engine, &batch, &second, &client.err), client.err);
    CU_ASSERT_EQUAL(client.engine->gpus->references, 2);
    CU_ASSERT_PTR_NULL(client.engine->gpus->next);
    CU_ASSERT_EQUAL(client.binding->arena_count, FAKE_ARENAS);
    for (uint32_t i = 0; i < FAKE_ARENAS; i++) {
        CU_ASSERT_PTR_EQUAL(client.binding->arenas[i], second->arenas[i]);
        CU_ASSERT_EQUAL(second->arenas[i]->references, 2);
    }
    HL_EXPECT_OK(hl_engine_unregister(client.binding, &client.err), client.err);
    client.binding = second;
    hl_restore *restore = fake_restore(&client, 0, 4);
    uint32_t record = fake_grant_next(&fake);
    fake_await_and_reap(&fake, record);
    fake_expect_outcome(restore, HL_OK, false);
    CU_ASSERT_TRUE(fake_tensors_match(&fake));
    HL_EXPECT_OK(hl_engine_unregister(second, &client.err), client.err);
    hl_software_counts(fake.dev, &two);
    CU_ASSERT_EQUAL(two.registrations, 0);
    CU_ASSERT_TRUE(one.registrations > 0);
    fake_close_all(&fake, &client);
}

enum reply_fault { REPLY_ERROR, REPLY_ARENA_TWICE, REPLY_WRONG_SIZE, REPLY_NO_FD, REPLY_FAULTS };

static bool register_wrongly(struct fake *fake, const struct hl_packet *packet, enum hl_message_kind kind)
{
    enum reply_fault fault = *(enum reply_fault *)fake->user;
    uint32_t sequence = ((const struct hl_message *)(const void *)packet->bytes)->sequence;
    struct hl_registered message = {.binding = 0, .arena_count = 2};
    int fds[2] = {hl_arena_fd(fake->arenas[0]), hl_arena_fd(fake->arenas[1])};
    if (kind != HL_MESSAGE_REGISTER)
        return false;
    if (fault == REPLY_ERROR) {
        fake_reply_error(fake, sequence, HL_E_LIMIT, "64 bindings");
        return true;
    }
    message.chunk_bytes = hl_arena_chunk_bytes(fake->arenas[0]);
    for (uint32_t i = 0; i < 2; i++) {
        message.arenas[i].arena_id = fault == REPLY_ARENA_TWICE ? 1 : i + 1;
        message.arenas[i].bytes = hl_arena_bytes(fake->arenas[i]);
    }
    if (fault == REPLY_WRONG_SIZE)
        message.arenas[1].bytes += 4096;
    hl_message_head(&message, HL_MESSAGE_REGISTERED, sequence);
    hl_channel_send(fake->socket, &message, fds, fault == REPLY_NO_FD ? 1 : 2, NULL);
    return true;
}

/* F11: what had been mapped and registered is undone, the Manager is told, and the next registration works.
 */
static void a_wrong_reply_leaves_nothing_registered(void)
{
    static const hl_status statuses[REPLY_FAULTS] = {HL_E_LIMIT, HL_E_PROTOCOL, HL_E_RANGE, HL_E_PROTOCOL};
    for (enum reply_fault fault = 0; fault < REPLY_FAULTS; fault++) {
        struct fake fake;
        struct fake_client client;
        struct hl_software_counts counts;
        fake_open(&fake);
        fake.user = &fault;
        fake.on_request = register_wrongly;
        fake_connect(&fake, &client, NULL, 0);
        unsigned before = open_fds();
        hl_context_batch batch = fake_batch(&fake);
        expect_batch(&client, &batch, statuses[fault]);
        hl_software_counts(fake.dev, &counts);
        CU_ASSERT_EQUAL(counts.registrations + counts.streams, 0);
        CU_ASSERT_TRUE(open_fds() <= before); /* the fake may have closed its socket */
        fake_close_all(&fake, &client);
    }
}

static void a_failed_host_registration_rolls_back(void)
{
    bool failed = true;
    for (uint64_t nth = 1; failed; nth++) {
        struct fake fake;
        struct fake_client client;
        struct hl_software_counts counts;
        fake_open(&fake);
        fake_connect(&fake, &client, NULL, 0);
        hl_context_batch batch = fake_batch(&fake);
        hl_software_fail_register(fake.dev, nth, 2);
        hl_status status = hl_engine_register(client.engine, &batch, &client.binding, &client.err);
        failed = status != HL_OK;
        hl_software_fail_register(fake.dev, 0, 0);
        if (failed) {
            CU_ASSERT_EQUAL(status, HL_E_NOMEM);
            hl_software_counts(fake.dev, &counts);
            CU_ASSERT_EQUAL(counts.registrations + counts.streams, 0);
            fake_await_received(&fake, HL_MESSAGE_UNREGISTER, 1);
            CU_ASSERT_EQUAL(fake_received(&fake, HL_MESSAGE_UNREGISTER), 1);
            fake_register(&client);
        }
        fake_close_all(&fake, &client);
        CU_ASSERT_FATAL(nth < 100);
    }
}

/* --- requests --- */

enum lease_fault { LEASE_TOO_MANY_HITS, LEASE_WITHOUT_ID, LEASE_BAD_RESIDENCY, LEASE_LATE, LEASE_FAULTS };

static bool lease_wrongly(struct fake *fake, const struct hl_packet *packet, enum hl_message_kind kind)
{
    enum lease_fault fault = *(enum lease_fault *)fake->user;
    struct hl_lease_message message = {.lease = 1, .hits = 1};
    if (kind != HL_MESSAGE_QUERY)
        return false;
    if (fault == LEASE_LATE)
        return true;
    message.hits = fault == LEASE_TOO_MANY_HITS ? 3 : 1;
    message.lease = fault == LEASE_WITHOUT_ID ? 0 : 1;
    hl_message_head(&message, HL_MESSAGE_LEASE,
                    ((const struct hl_message *)(const void *)packet->bytes)->sequence);
    hl_channel_send(fake->socket, &message, NULL, 0, NULL);
    return true;
}

/* G5: nothing is sent twice: a reply that is wrong or missing ends the session. */
static void a_wrong_lease_loses_the_session(void)
{
    for (enum lease_fault fault = 0; fault < LEASE_FAULTS; fault++) {
        struct fake fake;
        struct fake_client client;
        const hl_block_key keys[2] = {{{0}}, {{1}}};
        hl_lease *lease = NULL;
        fake_open(&fake);
        fake.user = &fault;
        fake.on_request = lease_wrongly;
        struct engine_tuning tuning = fake_tuning(&fake);
        tuning.reply_ns = fault == LEASE_LATE ? 100 * 1000000 : tuning.reply_ns;
        fake_connect(&fake, &client, &tuning, 0);
        fake_register(&client);
        hl_status status = hl_query(client.binding, keys, 2, NULL, &lease, &client.err);
        HL_EXPECT_STATUS(status, fault == LEASE_LATE ? HL_E_PEER : HL_E_PROTOCOL, client.err);
        CU_ASSERT_PTR_NULL(lease);
        fake_await_loss(&client, status);
        HL_EXPECT_STATUS(hl_query(client.binding, keys, 2, NULL, &lease, &client.err), status, client.err);
        CU_ASSERT_TRUE(strstr(client.log, "lost") != NULL);
        fake_disconnect(&client);
        fake_await_received(&fake, HL_MESSAGE_QUERY, 1);
        CU_ASSERT_EQUAL(fake_received(&fake, HL_MESSAGE_QUERY), 1);
        fake_close(&fake);
    }
}

static void a_query_answers_the_longest_prefix(void)
{
    struct fake fake;
    struct fake_client client;
    hl_lease *lease = NULL;
    hl_query_options options;
    const hl_block_key keys[4] = {{{5}}, {{6}}, {{200}}, {{7}}};
    fake_open_all(&fake, &client);
    HL_REQUIRE_OK(hl_query(client.binding, keys, 4, NULL, &lease, &client.err), client.err);
    CU_ASSERT_EQUAL(hl_lease_hits(lease), 2);
    CU_ASSERT_EQUAL(hl_lease_residency(lease, 1), 1);
    CU_ASSERT_EQUAL(hl_lease_residency(lease, 2), 0);
    CU_ASSERT_EQUAL(hl_lease_residency(lease, 99), 0);
    CU_ASSERT_TRUE(hl_lease_bytes(lease) > 0);
    hl_lease_release(lease);
    fake_await_received(&fake, HL_MESSAGE_RELEASE, 1);
    CU_ASSERT_EQUAL(fake_received(&fake, HL_MESSAGE_RELEASE), 1);
    HL_REQUIRE_OK(hl_query(client.binding, keys + 2, 1, NULL, &lease, &client.err), client.err);
    CU_ASSERT_EQUAL(hl_lease_hits(lease), 0);
    hl_lease_release(lease);
    fake_await_received(&fake, HL_MESSAGE_RELEASE, 1);
    CU_ASSERT_EQUAL(fake_received(&fake, HL_MESSAGE_RELEASE), 1);
    lease = NULL;
    HL_EXPECT_STATUS(hl_query(client.binding, NULL, 4, NULL, &lease, &client.err), HL_E_INVALID, client.err);
    HL_EXPECT_STATUS(hl_query(client.binding, keys, 0, NULL, &lease, &client.err), HL_E_INVALID, client.err);
    HL_EXPECT_STATUS(hl_query(client.binding, keys, HL_QUERY_KEYS + 1, NULL, &lease, &client.err), HL_E_LIMIT,
                     client.err);
    hl_query_options_init(&options);
    options.group = 1;
    HL_EXPECT_STATUS(hl_query(client.binding, keys, 4, &options, &lease, &client.err), HL_E_RANGE,
                     client.err);
    options.size = 0;
    HL_EXPECT_STATUS(hl_query(client.binding, keys, 4, &options, &lease, &client.err), HL_E_INVALID,
                     client.err);
    fake_close_all(&fake, &client);
}

HL_TESTS(engine_connect, HL_CASE(every_wrong_bootstrap_is_refused_and_leaves_nothing),
         HL_CASE(nobody_listening_is_a_missing_peer), HL_CASE(options_are_checked),
         HL_CASE(bad_batches_are_refused), HL_CASE(bindings_of_one_gpu_share_its_registrations),
         HL_CASE(a_wrong_reply_leaves_nothing_registered), HL_CASE(a_failed_host_registration_rolls_back),
         HL_CASE(a_wrong_lease_loses_the_session), HL_CASE(a_query_answers_the_longest_prefix));
