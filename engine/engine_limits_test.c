/* What happens when something runs out, several GPUs, and calls that meet each other. */
#include "engine/fake_peer.h"

#include <dirent.h>
#include <sched.h>
#include <sys/resource.h>

static unsigned highest_fd(void)
{
    unsigned highest = 0;
    DIR *list = opendir("/proc/self/fd");
    for (const struct dirent *entry; (entry = readdir(list)) != NULL;)
        if (strtoul(entry->d_name, NULL, 10) > highest)
            highest = (unsigned)strtoul(entry->d_name, NULL, 10);
    closedir(list);
    return highest;
}

/* F11: a registration finds no descriptor left at each of its steps; it leaves nothing, and works later. */
static void a_registration_without_descriptors_leaves_nothing(void)
{
    bool failed = true;
    for (unsigned spare = 0; failed; spare++) {
        struct fake fake;
        struct fake_client client;
        struct hl_software_counts counts;
        struct rlimit before, low;
        fake_open(&fake);
        fake_connect(&fake, &client, NULL, 0);
        hl_context_batch batch = fake_batch(&fake);
        getrlimit(RLIMIT_NOFILE, &before);
        low = before;
        low.rlim_cur = highest_fd() + 1 + spare;
        setrlimit(RLIMIT_NOFILE, &low);
        failed = hl_engine_register(client.engine, &batch, &client.binding, &client.err) != HL_OK;
        setrlimit(RLIMIT_NOFILE, &before);
        if (failed) {
            hl_software_counts(fake.dev, &counts);
            CU_ASSERT_EQUAL(counts.registrations + counts.streams, 0);
            CU_ASSERT_PTR_NULL(client.engine->gpus);
        }
        fake_close_all(&fake, &client);
        CU_ASSERT_FATAL(spare < 100);
    }
}

/* G3: the descriptor memory is full: each request is refused, nothing is consumed, and all goes on later. */
static void full_descriptor_memory_refuses_and_consumes_nothing(void)
{
    static struct hl_extent taken[1024];
    static const uint32_t page = 0;
    struct fake fake;
    struct fake_client client;
    hl_lease *lease = NULL;
    hl_publish *publish = NULL;
    hl_restore *restore = NULL;
    hl_binding *second = NULL;
    const hl_block_key key = {{0}};
    hl_publish_request blocks;
    hl_restore_request request;
    uint32_t count = 0;
    void *at;
    fake_open_all(&fake, &client);
    hl_restore_source source = {.lease = fake_query(&client, 0, 1), .pages = &page, .count = 1};
    for (uint32_t bytes = 8 * HL_MIB; bytes >= 64; bytes /= 2)
        while (hl_descriptors_take(client.engine->descriptors, bytes, &taken[count], &at, NULL) == HL_OK)
            CU_ASSERT_FATAL(++count < 1024);
    hl_context_batch batch = fake_batch(&fake);
    batch.rank = 1;
    hl_publish_request_init(&blocks);
    blocks.keys = &key;
    blocks.pages = &page;
    blocks.count = 1;
    hl_restore_request_init(&request);
    request.sources = &source;
    request.source_count = 1;
    HL_EXPECT_STATUS(hl_query(client.binding, &key, 1, NULL, &lease, &client.err), HL_E_BUDGET, client.err);
    HL_EXPECT_STATUS(hl_publish_start(client.binding, &blocks, &publish, &client.err), HL_E_BUDGET,
                     client.err);
    HL_EXPECT_STATUS(hl_restore_start(client.binding, &request, &restore, &client.err), HL_E_BUDGET,
                     client.err);
    HL_EXPECT_STATUS(hl_engine_register(client.engine, &batch, &second, &client.err), HL_E_BUDGET,
                     client.err);
    while (count > 0)
        hl_descriptors_give(client.engine->descriptors, taken[--count]);
    HL_EXPECT_OK(hl_restore_start(client.binding, &request, &restore, &client.err), client.err);
    uint32_t record = fake_grant_next(&fake);
    fake_await_and_reap(&fake, record);
    fake_expect_outcome(restore, HL_OK, false);
    hl_lease_release(source.lease);
    fake_close_all(&fake, &client);
}

/* R5: the fence itself cannot be recorded: no effect. */
static void a_fence_that_cannot_be_recorded_refuses(void)
{
    static const uint32_t page = 0;
    struct fake fake;
    struct fake_client client;
    hl_restore *restore = NULL;
    hl_restore_request request;
    fake_open_all(&fake, &client);
    hl_stream busy = fake_busy_stream(&fake);
    hl_restore_source source = {.lease = fake_query(&client, 0, 1), .pages = &page, .count = 1};
    hl_restore_request_init(&request);
    request.sources = &source;
    request.source_count = 1;
    request.has_ready_stream = true;
    request.ready_stream = busy;
    hl_software_fail_submit(fake.dev, 1, 2);
    HL_EXPECT_STATUS(hl_restore_start(client.binding, &request, &restore, &client.err), HL_E_DEVICE,
                     client.err);
    CU_ASSERT_EQUAL(client.engine->free_count, HL_GRANT_RECORDS);
    CU_ASSERT_EQUAL(client.binding->gpu->idle_count, client.binding->gpu->event_count);
    hl_lease_release(source.lease);
    hl_software_release(fake.dev, busy);
    fake_stream_end(&fake, busy);
    fake_close_all(&fake, &client);
}

/* G3: as many bindings as a session may have, and one more. */
static void bindings_are_bounded(void)
{
    struct fake fake;
    struct fake_client client;
    hl_binding *binding = NULL;
    fake_open(&fake);
    fake_connect(&fake, &client, NULL, 0);
    hl_context_batch batch = fake_batch(&fake);
    for (batch.rank = 0; batch.rank < HL_SESSION_BINDINGS; batch.rank++)
        HL_REQUIRE_OK(hl_engine_register(client.engine, &batch, &binding, &client.err), client.err);
    HL_EXPECT_STATUS(hl_engine_register(client.engine, &batch, &client.binding, &client.err), HL_E_LIMIT,
                     client.err);
    HL_EXPECT_OK(hl_engine_unregister(binding, &client.err), client.err);
    HL_EXPECT_OK(hl_engine_register(client.engine, &batch, &binding, &client.err), client.err);
    fake_close_all(&fake, &client);
}

/* X1: a worker, mappings and registrations a GPU; the same instance and rank may be on both. */
static void two_gpus_have_a_worker_each(void)
{
    struct fake fake, other;
    struct fake_client client;
    hl_binding *second = NULL;
    hl_tensor tensors[FAKE_TENSORS];
    fake_open_all(&fake, &client);
    fake_open(&other); /* for its device and tensors */
    hl_context_batch batch = fake_batch(&fake);
    memcpy(tensors, other.tensors, sizeof tensors);
    for (uint32_t i = 0; i < FAKE_TENSORS; i++)
        tensors[i].name = "a name of the caller's";
    batch.device = other.dev;
    batch.tensors = tensors;
    HL_REQUIRE_OK(hl_engine_register(client.engine, &batch, &second, &client.err), client.err);
    CU_ASSERT_PTR_NOT_EQUAL(second->gpu->worker, client.binding->gpu->worker);
    hl_restore *restore = fake_restore(&client, 0, 4);
    uint32_t record = fake_grant_next(&fake);
    fake_await_and_reap(&fake, record);
    fake_expect_outcome(restore, HL_OK, false);
    CU_ASSERT_TRUE(fake_tensors_match(&fake));
    HL_EXPECT_OK(hl_engine_unregister(client.binding, &client.err), client.err);
    HL_EXPECT_OK(hl_engine_unregister(second, &client.err), client.err);
    CU_ASSERT_PTR_NULL(client.engine->gpus);
    fake_close_all(&fake, &client);
    fake_close(&other);
}

enum arena_fault { ANOTHER_MEMORY, ANOTHER_SIZE, ARENA_FAULTS };

static bool rename_arena(struct fake *fake, const struct hl_packet *packet, enum hl_message_kind kind)
{
    struct hl_registered message = {.binding = 7, .arena_count = 1};
    int fd = hl_arena_fd(fake->arenas[1]);
    if (kind != HL_MESSAGE_REGISTER || fake->bindings == 0)
        return false;
    message.chunk_bytes = hl_arena_chunk_bytes(fake->arenas[0]);
    message.arenas[0].arena_id = 1;
    message.arenas[0].bytes = hl_arena_bytes(fake->arenas[0]) / (*(enum arena_fault *)fake->user + 1);
    hl_message_head(&message, HL_MESSAGE_REGISTERED,
                    ((const struct hl_message *)(const void *)packet->bytes)->sequence);
    hl_channel_send(fake->socket, &message, &fd, 1, NULL);
    return true;
}

/* R3: an arena keeps its identity: the same id is the same memory, for the second binding too. */
static void an_arena_cannot_become_another(void)
{
    for (enum arena_fault fault = 0; fault < ARENA_FAULTS; fault++) {
        struct fake fake;
        struct fake_client client;
        hl_binding *second = NULL;
        fake_open(&fake);
        fake.user = &fault;
        fake.on_request = rename_arena;
        fake_connect(&fake, &client, NULL, 0);
        fake_register(&client);
        hl_context_batch batch = fake_batch(&fake);
        batch.rank = 1;
        HL_EXPECT_STATUS(hl_engine_register(client.engine, &batch, &second, &client.err), HL_E_PROTOCOL,
                         client.err);
        CU_ASSERT_EQUAL(client.binding->arenas[0]->references, 1);
        fake_close_all(&fake, &client);
    }
}

static bool answer_out_of_step(struct fake *fake, const struct hl_packet *packet, enum hl_message_kind kind)
{
    struct hl_welcome welcome = {0};
    struct hl_done done = {0};
    uint32_t sequence = ((const struct hl_message *)(const void *)packet->bytes)->sequence;
    if (kind != HL_MESSAGE_QUERY)
        return false;
    hl_message_head(&done, HL_MESSAGE_DONE, sequence + 1);
    hl_message_head(&welcome, HL_MESSAGE_WELCOME, sequence);
    if (*(int *)fake->user)
        hl_channel_send(fake->socket, &done, NULL, 0, NULL);
    else
        hl_channel_send(fake->socket, &welcome, NULL, 0, NULL);
    return true;
}

/* G5, F6 */
static void a_reply_out_of_step_loses_the_session(void)
{
    for (int sequence = 0; sequence < 2; sequence++) {
        struct fake fake;
        struct fake_client client;
        const hl_block_key key = {{0}};
        hl_lease *lease = NULL;
        fake_open(&fake);
        fake.user = &sequence;
        fake.on_request = answer_out_of_step;
        fake_connect(&fake, &client, NULL, 0);
        fake_register(&client);
        HL_EXPECT_STATUS(hl_query(client.binding, &key, 1, NULL, &lease, &client.err), HL_E_PROTOCOL,
                         client.err);
        fake_await_loss(&client, HL_E_PROTOCOL);
        fake_close_all(&fake, &client);
    }
}

static void *unregister(void *argument)
{
    hl_engine_unregister(argument, NULL);
    return NULL;
}

/* R12: two ends of one binding, and a close beside them, wait for one another. */
static void ends_meet(void)
{
    struct fake fake;
    struct fake_client client;
    pthread_t thread;
    hl_lease *lease = NULL;
    const hl_block_key key = {{0}};
    fake_open_all(&fake, &client);
    hl_restore *restore = fake_restore(&client, 0, 2);
    CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, unregister, client.binding), 0);
    while (hl_query(client.binding, &key, 1, NULL, &lease, &client.err) == HL_OK) {
        hl_lease_release(lease);
        sched_yield();
    }
    HL_EXPECT_STATUS(hl_engine_unregister(client.binding, &client.err), HL_E_STATE, client.err);
    fake_serve_grants(&fake);
    hl_engine_close(client.engine);
    pthread_join(thread, NULL);
    fake_expect_outcome(restore, HL_OK, false);
    fake_close(&fake);
}

/* A waiter that spins first, and one whose time is shorter than that. */
static void waiters_spin_and_time_out(void)
{
    struct fake fake;
    struct fake_client client;
    fake_open(&fake);
    fake_connect(&fake, &client, NULL, 1000000);
    fake_register(&client);
    hl_restore *restore = fake_restore(&client, 0, 2);
    HL_EXPECT_STATUS(hl_restore_wait(restore, 1000, NULL, &client.err), HL_E_TIMEOUT, client.err);
    HL_EXPECT_STATUS(hl_restore_wait(restore, 0, NULL, &client.err), HL_E_TIMEOUT, client.err);
    fake_serve_grants(&fake);
    HL_EXPECT_OK(hl_restore_wait(restore, INT64_MAX, NULL, &client.err), client.err);
    hl_restore_close(restore);
    fake_close_all(&fake, &client);
}

HL_TESTS(engine_limits, HL_CASE(a_registration_without_descriptors_leaves_nothing),
         HL_CASE(full_descriptor_memory_refuses_and_consumes_nothing),
         HL_CASE(a_fence_that_cannot_be_recorded_refuses), HL_CASE(bindings_are_bounded),
         HL_CASE(two_gpus_have_a_worker_each), HL_CASE(an_arena_cannot_become_another),
         HL_CASE(a_reply_out_of_step_loses_the_session), HL_CASE(ends_meet),
         HL_CASE(waiters_spin_and_time_out));
