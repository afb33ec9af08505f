#include "qualification/deaths/player.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/device/software.h"
#include "faults/sweep/sweep.h"
#include "faults/testing.h"
#include "qualification/deaths/stage.h"
#include "qualification/restore/manager_process.h"

#define PATIENCE (STAGE_PATIENCE_MS * 1000000ll)

static const struct world_options options = {
    .layers = 3, .pages = PLAYER_PAGES, .page_tokens = 4, .head_dim = 16};

/* --- what is reported --- */

void player_wrong(struct player *player, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    player->wrong = true;
}

/* A failure must say what it is. */
bool player_did(struct player *player, const char *what, hl_status status)
{
    if (status == HL_OK)
        return true;
    if (status > 0 || !strcmp(hl_status_name(status), "unknown") || !player->err.text[0])
        player_wrong(player, "%s: status %d without a reason", what, (int)status);
    if (status == HL_E_TIMEOUT)
        player_wrong(player, "%s: it hangs", what);
    fprintf(stderr, "engine: %s: %s: %s\n", what, hl_status_name(status), player->err.text);
    player->failed = true;
    return false;
}

/* --- the world --- */

/* What a device has refused to give up is still there, and nothing else: no page is pinned. */
static void expect_empty_device(struct player *player)
{
    static const char *const refused[] = {"device_mem_free_before", "device_host_unregister_before",
                                          "device_stream_destroy_before", "device_event_destroy_before"};
    const char *point = getenv(HL_SWEEP_POINT), *action = getenv(HL_SWEEP_ACTION);
    struct hl_software_counts counts;
    uint64_t allowed = 0;
    hl_software_counts(player->dev, &counts);
    const uint64_t left =
        counts.streams + counts.events + counts.registrations + counts.allocations + counts.imports;
    for (size_t i = 0; point && action && action[0] == 'E' && i < sizeof refused / sizeof refused[0]; i++)
        allowed += !strcmp(point, refused[i]);
    if (left > allowed || counts.violations != 0)
        player_wrong(player,
                     "the device has %llu streams, %llu events, %llu registrations, %llu allocations left",
                     (unsigned long long)counts.streams, (unsigned long long)counts.events,
                     (unsigned long long)counts.registrations, (unsigned long long)counts.allocations);
}

void player_open(struct player *player, const char *instance)
{
    *player = (struct player){.stage = -1, .instance = instance};
    pthread_mutex_init(&player->lock, NULL);
    pthread_mutex_init(&player->gate.lock, NULL);
    pthread_cond_init(&player->gate.changed, NULL);
    struct world_options wanted = options;
    SPARED(MUST_OK(hl_device_open_software(&player->dev, &player->err), player->err));
    wanted.dev = player->dev;
    SPARED(world_open(&player->world, &wanted));
    SPARED(player->busy = world_stream_new(&player->world));
}

void player_close(struct player *player)
{
    SPARED(world_stream_end(&player->world, player->busy));
    SPARED(world_close(&player->world));
    expect_empty_device(player);
    hl_device_close(player->dev);
    pthread_cond_destroy(&player->gate.changed);
    pthread_mutex_destroy(&player->gate.lock);
    pthread_mutex_destroy(&player->lock);
}

/* Whatever these pages hold now is what they should. */
void player_forget(struct player *player, uint32_t at, uint32_t count)
{
    struct world *world = &player->world;
    const hl_layout *layout = world->layout;
    unsigned char *now = malloc(world->bytes);
    MUST(now != NULL);
    world_read_on(world, world->stream, 0, now, world->bytes);
    for (uint32_t i = 0; i < layout->component_count; i++) {
        const struct hl_layout_component *c = &layout->components[i];
        const uint64_t base = world->tensors[c->tensor].device_ptr - world->memory + c->offset;
        for (uint32_t page = at; page < at + count; page++)
            for (uint32_t row = 0; row < c->rows; row++) {
                const uint64_t from = base + page * c->page_stride + row * c->row_stride;
                memcpy(world->expected + from, now + from, c->row_bytes);
            }
    }
    free(now);
}

void player_expect_bytes(struct player *player, const char *otherwise)
{
    bool match = false;
    SPARED(match = world_matches(&player->world));
    if (!match)
        player_wrong(player, "%s", otherwise);
}

/* --- the session --- */

static void at_point(void *user, enum engine_point point, uint32_t record)
{
    struct player_gate *gate = user;
    (void)record;
    pthread_mutex_lock(&gate->lock);
    gate->reached = gate->reached || (gate->armed && point == ENGINE_BEFORE_CLAIM);
    while (gate->armed && point == ENGINE_BEFORE_CLAIM)
        pthread_cond_wait(&gate->changed, &gate->lock);
    pthread_mutex_unlock(&gate->lock);
}

void player_set_gate(struct player *player, bool armed)
{
    struct player_gate *gate = &player->gate;
    pthread_mutex_lock(&gate->lock);
    gate->armed = armed;
    gate->reached = false;
    pthread_cond_broadcast(&gate->changed);
    pthread_mutex_unlock(&gate->lock);
}

bool player_gate_is_reached(struct player *player)
{
    pthread_mutex_lock(&player->gate.lock);
    const bool reached = player->gate.reached;
    pthread_mutex_unlock(&player->gate.lock);
    return reached;
}

static void on_log(void *user, enum hl_log_level level, const char *text)
{
    (void)user;
    (void)level;
    fprintf(stderr, "engine: %s\n", text);
}

bool player_connect(struct player *player)
{
    hl_engine_options wanted;
    struct engine_tuning tuning = engine_default_tuning;
    hl_engine_options_init(&wanted);
    wanted.socket_path = MANAGER_SOCKET;
    wanted.name = player->instance;
    wanted.spin_us = 0;
    wanted.log = on_log;
    hl_engine *engine = NULL;
    if (!player_did(player, "connect", engine_connect_with(&wanted, &tuning, &engine, &player->err)))
        return false;
    gate_watch(engine->grants, at_point, &player->gate);
    pthread_mutex_lock(&player->lock);
    player->engine = engine;
    pthread_mutex_unlock(&player->lock);
    return player->stage < 0 || stage_ask(player->stage, STAGE_GRANTS, hl_grant_memory_fd(engine->grants));
}

static void count_release(void *owner)
{
    atomic_fetch_add((_Atomic uint32_t *)owner, 1);
}

bool player_register(struct player *player)
{
    struct world *world = &player->world;
    hl_context_batch batch;
    hl_context_batch_init(&batch);
    batch.instance = player->instance;
    batch.model = "small";
    batch.layout = world->layout;
    batch.tensors = world->tensors;
    batch.device = world->dev;
    batch.route = player->route;
    for (uint32_t i = 0; i < world->layout->tensor_count; i++) {
        world->tensors[i].name = world->layout->tensors[i].name;
        world->tensors[i].owner = &player->releases;
        world->tensors[i].release = count_release;
    }
    return player_did(player, "register",
                      hl_engine_register(player->engine, &batch, &player->binding, &player->err));
}

/* Also what failed half-way; every tensor's owner comes back, once. */
void player_leave(struct player *player)
{
    struct world *world = &player->world;
    const uint32_t owners = player->binding ? world->layout->tensor_count : 0;
    if (player->binding && hl_engine_unregister(player->binding, &player->err) != HL_OK)
        player->failed = true;
    player->binding = NULL;
    pthread_mutex_lock(&player->lock);
    hl_engine *engine = player->engine;
    player->engine = NULL;
    pthread_mutex_unlock(&player->lock);
    hl_engine_close(engine);
    gate_unwatch(&player->gate);
    if (atomic_exchange(&player->releases, 0) != owners)
        player_wrong(player, "not every owner of a tensor was released once");
}

/* --- blocks --- */

static void name_blocks(hl_block_key *keys, uint64_t first, uint32_t count)
{
    memset(keys, 0, count * sizeof *keys);
    for (uint32_t i = 0; i < count; i++)
        snprintf((char *)keys[i].hash, sizeof keys[i].hash, "block %llu", (unsigned long long)first + i);
}

/* From page i, i < count. Behind a busy stream: pages are read after it only. */
bool player_publish(struct player *player, uint64_t first, uint32_t count, bool may_not_fit)
{
    struct world *world = &player->world;
    hl_block_key keys[PLAYER_PAGES];
    uint32_t pages[PLAYER_PAGES];
    hl_publish_request request;
    hl_publish_result result = {0};
    hl_publish *handle = NULL;
    for (uint32_t i = 0; i < count; i++) {
        pages[i] = i;
        world_expect(world, 0, first + i, i);
    }
    SPARED(world_upload(world));
    name_blocks(keys, first, count);
    hl_publish_request_init(&request);
    request.keys = keys;
    request.pages = pages;
    request.count = count;
    request.producer_stream = player->busy;
    request.has_producer_stream = true;
    SPARED(world_hold(world, player->busy));
    hl_status status = hl_publish_start(player->binding, &request, &handle, &player->err);
    SPARED(world_let_go(world));
    if (status == HL_OK) {
        status = hl_publish_wait(handle, PATIENCE, &result, &player->err);
        hl_publish_close(handle);
    }
    if (status == HL_E_NOSPACE && may_not_fit)
        return true;
    if (!player_did(player, "publish", status))
        return false;
    if (result.stored + result.present != count)
        player_wrong(player, "a publish of %u blocks reports %llu and %llu", count,
                     (unsigned long long)result.stored, (unsigned long long)result.present);
    return !player->wrong;
}

/* Another engine may evict blocks between their publish and this, once. */
hl_lease *player_query(struct player *player, uint64_t first, uint32_t count)
{
    hl_block_key keys[PLAYER_PAGES];
    name_blocks(keys, first, count);
    for (unsigned turn = 0; turn < 2; turn++) {
        hl_lease *lease = NULL;
        if (!player_did(player, "query", hl_query(player->binding, keys, count, NULL, &lease, &player->err)))
            return NULL;
        if (hl_lease_hits(lease) == count)
            return lease;
        fprintf(stderr, "engine: %zu of %u blocks are resident\n", hl_lease_hits(lease), count);
        hl_lease_release(lease);
        if (!player_publish(player, 0, PLAYER_BLOCKS, false))
            return NULL;
    }
    player_wrong(player, "published blocks are not resident");
    return NULL;
}
