/* The calls that tests make on the engine again and again. */
#include "engine/fake_peer.h"

#include <sched.h>

struct engine_tuning fake_tuning(struct fake *fake)
{
    struct engine_tuning tuning = engine_default_tuning;
    tuning.tick_ns = 5 * 1000000;
    if (fake->victim)
        tuning.manager_pidfd = fake->victim_pidfd;
    return tuning;
}

static void keep_log(void *user, enum hl_log_level level, const char *text)
{
    struct fake_client *client = user;
    (void)level;
    pthread_mutex_lock(&client->fake->lock);
    size_t used = strlen(client->log);
    snprintf(client->log + used, sizeof client->log - used, "%s\n", text);
    pthread_mutex_unlock(&client->fake->lock);
}

void fake_connect(struct fake *fake, struct fake_client *client, const struct engine_tuning *tuning,
                  uint32_t spin_us)
{
    struct engine_tuning usual = fake_tuning(fake);
    hl_engine_options options;
    memset(client, 0, sizeof *client);
    client->fake = fake;
    hl_engine_options_init(&options);
    options.socket_path = fake->path;
    options.name = "engine test";
    options.spin_us = spin_us;
    options.log = keep_log;
    options.log_user = client;
    HL_REQUIRE_OK(engine_connect_with(&options, tuning ? tuning : &usual, &client->engine, &client->err),
                  client->err);
}

hl_context_batch fake_batch(struct fake *fake)
{
    hl_context_batch batch;
    hl_context_batch_init(&batch);
    batch.instance = "instance 0";
    batch.model = "small";
    batch.layout = fake->layout;
    batch.tensors = fake->tensors;
    batch.device = fake->dev;
    return batch;
}

void fake_register(struct fake_client *client)
{
    hl_context_batch batch = fake_batch(client->fake);
    HL_REQUIRE_OK(hl_engine_register(client->engine, &batch, &client->binding, &client->err), client->err);
}

void fake_disconnect(struct fake_client *client)
{
    hl_engine_close(client->engine);
    client->engine = NULL;
}

hl_lease *fake_query(struct fake_client *client, uint32_t first, uint32_t count)
{
    hl_block_key keys[FAKE_BLOCKS] = {0};
    hl_lease *lease = NULL;
    hl_error err = {0};
    for (uint32_t i = 0; i < count; i++)
        keys[i].hash[0] = (unsigned char)(first + i);
    HL_REQUIRE_OK(hl_query(client->binding, keys, count, NULL, &lease, &err), err);
    CU_ASSERT_EQUAL_FATAL(hl_lease_hits(lease), count);
    return lease;
}

hl_restore *fake_restore(struct fake_client *client, uint32_t first, uint32_t count)
{
    return fake_restore_with(client, first, count, NULL);
}

hl_restore *fake_restore_with(struct fake_client *client, uint32_t first, uint32_t count,
                              const hl_restore_request *wanted)
{
    uint32_t pages[FAKE_BLOCKS];
    hl_restore *restore = NULL;
    hl_restore_request request;
    hl_error err = {0};
    hl_restore_source source = {.lease = fake_query(client, first, count), .pages = pages, .count = count};
    for (uint32_t i = 0; i < count; i++) {
        pages[i] = i;
        fake_expect(client->fake, first + i, i);
    }
    hl_restore_request_init(&request);
    if (wanted)
        request = *wanted;
    request.sources = &source;
    request.source_count = 1;
    request.layer_events = (void *const *)client->fake->events;
    HL_REQUIRE_OK(hl_restore_start(client->binding, &request, &restore, &err), err);
    hl_lease_release(source.lease);
    return restore;
}

void fake_open_all(struct fake *fake, struct fake_client *client)
{
    fake_open(fake);
    fake_connect(fake, client, NULL, 0);
    fake_register(client);
}

void fake_close_all(struct fake *fake, struct fake_client *client)
{
    fake_disconnect(client);
    fake_close(fake);
}

void fake_expect_outcome(hl_restore *restore, hl_status status, bool untouched)
{
    hl_restore_result result;
    hl_error err = {0};
    HL_EXPECT_STATUS(hl_restore_wait(restore, -1, &result, &err), status, err);
    CU_ASSERT_EQUAL(result.status, status);
    CU_ASSERT_EQUAL(result.untouched, untouched);
    CU_ASSERT_EQUAL(hl_restore_poll(restore, &result, &err), status);
    hl_restore_close(restore);
}

void fake_await_retired(struct fake *fake, uint32_t record, uint32_t generation)
{
    while (hl_grant_load(fake->grants, record).generation == generation)
        sched_yield();
    CU_ASSERT_EQUAL(hl_grant_load(fake->grants, record).generation, generation + 1);
}

void fake_await_loss(struct fake_client *client, hl_status status)
{
    hl_status health;
    while ((health = hl_engine_health(client->engine, &client->err)) == HL_OK)
        sched_yield();
    HL_EXPECT_STATUS(health, status, client->err);
}

void fake_await_and_reap(struct fake *fake, uint32_t record)
{
    fake_await_state(fake, record, HL_GRANT_DRAINED);
    fake_reap(fake, record);
}
