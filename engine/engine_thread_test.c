/* Many threads on one engine and several engines at once, against Managers that work. What each thread moves
 * is its own pages; at the end every byte is where it belongs. */
#include "engine/fake_peer.h"

#include <sched.h>

enum { THREADS = 6, ROUNDS = 12, PER_THREAD = 4 };

struct worker {
    struct fake_client *client;
    uint32_t index;
    hl_status failed;
    hl_error err;
    pthread_t thread;
    bool cancels;
};

/* Each thread has pages of its own; its last round decides what they hold. */
static hl_status restore_once(struct worker *worker, uint32_t round)
{
    hl_block_key keys[PER_THREAD] = {0};
    uint32_t pages[PER_THREAD], first = (worker->index + round) % (FAKE_BLOCKS - PER_THREAD);
    hl_restore *restore = NULL;
    hl_lease *lease = NULL;
    hl_restore_request request;
    hl_restore_result result;
    for (uint32_t i = 0; i < PER_THREAD; i++) {
        keys[i].hash[0] = (unsigned char)(first + i);
        pages[i] = worker->index * PER_THREAD + i;
    }
    hl_status status = hl_query(worker->client->binding, keys, PER_THREAD, NULL, &lease, &worker->err);
    if (status != HL_OK)
        return status;
    hl_restore_source source = {.lease = lease, .pages = pages, .count = PER_THREAD};
    hl_restore_request_init(&request);
    request.sources = &source;
    request.source_count = 1;
    request.trace = round % 2;
    status = hl_restore_start(worker->client->binding, &request, &restore, &worker->err);
    hl_lease_release(lease);
    if (status != HL_OK)
        return status;
    if (worker->cancels && round + 1 < ROUNDS)
        hl_restore_cancel(restore);
    if (round % 3 == 0)
        hl_restore_wait_enqueued(restore, -1, NULL);
    if (round % 4 == 1) {
        while (hl_restore_poll(restore, &result, &worker->err) == HL_PENDING)
            sched_yield();
        status = hl_restore_poll(restore, &result, &worker->err);
    } else {
        status = hl_restore_wait(restore, -1, &result, &worker->err);
    }
    hl_restore_close(restore);
    return status == HL_E_CANCELLED && worker->cancels && result.untouched ? HL_OK : status;
}

static void *run(void *argument)
{
    struct worker *worker = argument;
    for (uint32_t round = 0; round < ROUNDS && worker->failed == HL_OK; round++)
        worker->failed = restore_once(worker, round);
    return NULL;
}

static void run_threads(struct fake_client *clients[], uint32_t count, bool cancels)
{
    static struct worker workers[2 * THREADS];
    for (uint32_t i = 0; i < count * THREADS; i++) {
        workers[i] =
            (struct worker){.client = clients[i / THREADS], .index = i % THREADS, .cancels = cancels};
        CU_ASSERT_EQUAL_FATAL(pthread_create(&workers[i].thread, NULL, run, &workers[i]), 0);
    }
    for (uint32_t i = 0; i < count * THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        HL_EXPECT_OK(workers[i].failed, workers[i].err);
    }
    for (uint32_t c = 0; c < count; c++)
        for (uint32_t index = 0; index < THREADS; index++)
            for (uint32_t i = 0; i < PER_THREAD; i++)
                fake_expect(clients[c]->fake, (index + ROUNDS - 1) % (FAKE_BLOCKS - PER_THREAD) + i,
                            index * PER_THREAD + i);
}

static void threads_restore_at_once(void)
{
    for (int cancels = 0; cancels < 2; cancels++) {
        struct fake fake;
        struct fake_client client, *clients[] = {&client};
        fake_open(&fake);
        fake.part_bytes = 640;
        fake_connect(&fake, &client, NULL, cancels ? 0 : 20);
        fake_register(&client);
        fake_serve_grants(&fake);
        run_threads(clients, 1, cancels);
        CU_ASSERT_TRUE(fake_tensors_match(&fake));
        fake_close_all(&fake, &client);
    }
}

/* Nothing is global: two sessions of one process do not know of each other. */
static void two_engines_live_in_one_process(void)
{
    static struct fake fakes[2];
    struct fake_client first, second, *clients[] = {&first, &second};
    for (int i = 0; i < 2; i++) {
        fake_open_all(&fakes[i], clients[i]);
        fake_serve_grants(&fakes[i]);
    }
    run_threads(clients, 2, false);
    CU_ASSERT_TRUE(fake_tensors_match(&fakes[0]));
    fake_close_all(&fakes[0], &first);
    hl_restore *restore = fake_restore(&second, 0, 1); /* the other one goes on */
    fake_expect_outcome(restore, HL_OK, false);
    fake_close_all(&fakes[1], &second);
}

static void *close_engine(void *argument)
{
    hl_engine_close(argument);
    return NULL;
}

/* R12: closing while operations run waits for them, and their handles stay readable. */
static void closing_waits_for_what_was_accepted(void)
{
    struct fake fake;
    struct fake_client client;
    pthread_t thread;
    hl_restore *restores[16];
    hl_restore_result result;
    fake_open_all(&fake, &client);
    for (uint32_t i = 0; i < 16; i++)
        restores[i] = fake_restore(&client, i, 4);
    CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, close_engine, client.engine), 0);
    fake_serve_grants(&fake);
    pthread_join(thread, NULL);
    for (uint32_t i = 0; i < 16; i++) {
        HL_EXPECT_OK(hl_restore_wait(restores[i], 0, &result, &client.err), client.err);
        CU_ASSERT_TRUE(result.bytes > 0);
        hl_restore_close(restores[i]);
    }
    CU_ASSERT_TRUE(fake_tensors_match(&fake));
    fake_close(&fake);
}

HL_TESTS(engine_thread, HL_CASE(threads_restore_at_once), HL_CASE(two_engines_live_in_one_process),
         HL_CASE(closing_waits_for_what_was_accepted));
