#include "qualification/restore/client.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "qualification/restore/manager_process.h"

static void at_point(void *user, enum engine_point point, uint32_t record)
{
    struct client_gate *gate = user;
    pthread_mutex_lock(&gate->lock);
    if (point == ENGINE_AFTER_CLAIM)
        gate->claims[gate->claim_count++ % (sizeof gate->claims / sizeof gate->claims[0])] = (uint16_t)record;
    if (gate->armed && point == gate->point && gate->left-- == 0) {
        gate->armed = false;
        gate->reached = true;
        gate->record = record;
        pthread_cond_broadcast(&gate->changed);
        while (!gate->open)
            pthread_cond_wait(&gate->changed, &gate->lock);
    }
    pthread_mutex_unlock(&gate->lock);
}

static hl_status connect_to(struct client *client, struct world *world, int64_t tick_ns)
{
    hl_engine_options options;
    struct engine_tuning tuning = engine_default_tuning;
    *client = (struct client){.world = world};
    pthread_mutex_init(&client->gate.lock, NULL);
    pthread_cond_init(&client->gate.changed, NULL);
    if (tick_ns != 0)
        tuning.tick_ns = tick_ns;
    hl_engine_options_init(&options);
    options.socket_path = MANAGER_SOCKET;
    options.name = "qualification";
    options.spin_us = 0;
    hl_status status = engine_connect_with(&options, &tuning, &client->engine, &client->err);
    if (status == HL_OK)
        gate_watch(client->engine->grants, at_point, &client->gate);
    return status;
}

void client_connect(struct client *client, struct world *world, int64_t tick_ns)
{
    MUST_OK(connect_to(client, world, tick_ns), client->err);
}

void client_connect_refused(struct client *client, struct world *world, hl_status status)
{
    MUST_STATUS(connect_to(client, world, 0), status, client->err);
}

static void count_release(void *owner)
{
    atomic_fetch_add((_Atomic uint32_t *)owner, 1);
}

void client_batch(struct client *client, const char *instance, hl_context_batch *batch)
{
    struct world *world = client->world;
    hl_context_batch_init(batch);
    batch->instance = instance;
    batch->model = "small";
    batch->layout = world->layout;
    batch->tensors = world->tensors;
    batch->device = world->cuda ? NULL : world->dev;
    for (uint32_t i = 0; i < world->layout->tensor_count; i++) {
        world->tensors[i].name = world->layout->tensors[i].name;
        world->tensors[i].owner = &client->releases;
        world->tensors[i].release = count_release;
    }
}

void client_register(struct client *client, const char *instance)
{
    hl_context_batch batch;
    client_batch(client, instance, &batch);
    MUST_OK(hl_engine_register(client->engine, &batch, &client->binding, &client->err), client->err);
}

void client_open(struct client *client, struct world *world, const char *instance)
{
    client_connect(client, world, 0);
    client_register(client, instance);
}

void client_close(struct client *client)
{
    hl_engine_close(client->engine);
    gate_unwatch(&client->gate);
    client->engine = NULL;
    pthread_cond_destroy(&client->gate.changed);
    pthread_mutex_destroy(&client->gate.lock);
}

hl_stream client_copy_stream(struct client *client)
{
    return hl_transfer_stream(client->binding->transfer);
}

/* --- blocks --- */

static hl_block_key *make_keys(uint64_t first, uint32_t count)
{
    hl_block_key *keys = calloc(count, sizeof *keys);
    MUST(keys != NULL);
    for (uint32_t i = 0; i < count; i++)
        snprintf((char *)keys[i].hash, sizeof keys[i].hash, "block %llu", (unsigned long long)first + i);
    return keys;
}

hl_status client_publish_some(struct client *client, uint32_t group, uint64_t first, uint32_t count,
                              hl_publish_result *result)
{
    struct world *world = client->world;
    hl_publish_request request;
    hl_publish *publish;
    uint32_t *pages = calloc(count, sizeof *pages);
    MUST(pages != NULL);
    for (uint32_t i = 0; i < count; i++) {
        pages[i] = i;
        world_expect(world, group, first + i, i);
    }
    world_upload(world);
    hl_block_key *keys = make_keys(first, count);
    hl_publish_request_init(&request);
    request.group = group;
    request.keys = keys;
    request.pages = pages;
    request.count = count;
    MUST_OK(hl_publish_start(client->binding, &request, &publish, &client->err), client->err);
    hl_status status = hl_publish_wait(publish, PATIENCE_NS, result, &client->err);
    hl_publish_close(publish);
    free(keys);
    free(pages);
    return status;
}

void client_publish(struct client *client, uint64_t first, uint32_t count)
{
    const uint32_t pages = client->world->layout->groups[0].pages;
    for (uint32_t done = 0, some; done < count; done += some) {
        hl_publish_result result;
        some = count - done < pages ? count - done : pages;
        MUST_OK(client_publish_some(client, 0, first + done, some, &result), client->err);
        MUST(result.stored + result.present == some);
    }
}

hl_lease *client_query_group(struct client *client, uint32_t group, uint64_t first, uint32_t count)
{
    hl_query_options options;
    hl_lease *lease = NULL;
    hl_block_key *keys = make_keys(first, count);
    hl_query_options_init(&options);
    options.group = group;
    MUST_OK(hl_query(client->binding, keys, count, &options, &lease, &client->err), client->err);
    free(keys);
    return lease;
}

hl_lease *client_query(struct client *client, uint64_t first, uint32_t count)
{
    hl_lease *lease = client_query_group(client, 0, first, count);
    MUST(hl_lease_hits(lease) == count);
    return lease;
}

hl_restore *client_start_to(struct client *client, hl_lease *lease, const uint32_t *pages, uint32_t count)
{
    hl_restore_request request;
    hl_restore_source source = {.lease = lease, .pages = pages, .count = count};
    hl_restore *restore = NULL;
    hl_restore_request_init(&request);
    request.sources = &source;
    request.source_count = 1;
    MUST_OK(hl_restore_start(client->binding, &request, &restore, &client->err), client->err);
    hl_lease_release(lease);
    return restore;
}

hl_restore *client_start(struct client *client, uint64_t first, uint32_t count, uint32_t at)
{
    uint32_t *pages = calloc(count, sizeof *pages);
    MUST(pages != NULL);
    for (uint32_t i = 0; i < count; i++)
        pages[i] = at + i;
    hl_restore *restore = client_start_to(client, client_query(client, first, count), pages, count);
    free(pages);
    return restore;
}

void client_expect(struct client *client, uint64_t first, uint32_t count, uint32_t at)
{
    for (uint32_t i = 0; i < count; i++)
        world_expect(client->world, 0, first + i, at + i);
}

hl_restore_result client_outcome(struct client *client, hl_restore *restore, hl_status expected)
{
    hl_restore_result result = {0};
    MUST_STATUS(hl_restore_wait(restore, PATIENCE_NS, &result, &client->err), expected, client->err);
    MUST(result.status == expected);
    hl_restore_close(restore);
    return result;
}

void client_restore(struct client *client, uint64_t first, uint32_t count, uint32_t at)
{
    hl_restore_result result = client_outcome(client, client_start(client, first, count, at), HL_OK);
    MUST(result.bytes == count * client->world->layout->groups[0].block_bytes && !result.untouched);
    client_expect(client, first, count, at);
    MUST(world_matches(client->world));
}

/* --- records --- */

struct hl_grant_word client_word(struct client *client, uint32_t record)
{
    return hl_grant_load(client->engine->grants, record);
}

void client_await_state(struct client *client, uint32_t record, uint32_t state)
{
    const int64_t until = hl_clock_ns() + PATIENCE_NS;
    while (client_word(client, record).state != state)
        MUST(hl_clock_ns() < until && sched_yield() == 0);
}

void client_ask_cancel(struct client *client, uint32_t record)
{
    struct hl_grant_record *shared = hl_grant_record_at(client->engine->grants, record);
    atomic_store(&shared->cancel, client_word(client, record).generation);
    hl_grant_mark(client->engine->grants, record);
    engine_signal(client->engine->retirement_fd);
}

/* --- the gate --- */

void client_gate_arm(struct client *client, enum engine_point point, uint32_t passes)
{
    struct client_gate *gate = &client->gate;
    pthread_mutex_lock(&gate->lock);
    gate->armed = true;
    gate->reached = gate->open = false;
    gate->point = point;
    gate->left = passes;
    pthread_mutex_unlock(&gate->lock);
}

uint32_t client_gate_reached(struct client *client)
{
    struct client_gate *gate = &client->gate;
    struct timespec until;
    int waited = 0;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_NS / HL_NS_PER_S;
    pthread_mutex_lock(&gate->lock);
    while (!gate->reached && waited == 0)
        waited = pthread_cond_timedwait(&gate->changed, &gate->lock, &until);
    bool reached = gate->reached;
    uint32_t record = gate->record;
    pthread_mutex_unlock(&gate->lock);
    MUST(reached);
    return record;
}

void client_gate_open(struct client *client)
{
    struct client_gate *gate = &client->gate;
    pthread_mutex_lock(&gate->lock);
    gate->armed = false;
    gate->open = true;
    pthread_cond_broadcast(&gate->changed);
    pthread_mutex_unlock(&gate->lock);
}
