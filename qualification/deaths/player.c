#include "qualification/deaths/player.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "faults/testing.h"
#include "qualification/deaths/stage.h"
#include "qualification/restore/manager_process.h"

#define PATIENCE (STAGE_PATIENCE_MS * 1000000ll)
#define PAGES 16u
#define BLOCKS 8u           /* 0 to 7, from the pages of these numbers */
#define PRESSURE_BLOCKS 32u /* more than HOUSE_ARENA_BYTES hold */
#define PRESSURE_FIRST 1000u

static const struct world_options options = {.layers = 3, .pages = PAGES, .page_tokens = 4, .head_dim = 16};

/* The world's own calls of the device are no part of what is swept. */
#define SPARED(call)                                                                                         \
    do {                                                                                                     \
        hl_fault_spare_thread(true);                                                                         \
        call;                                                                                                \
        hl_fault_spare_thread(false);                                                                        \
    } while (0)

/* --- what is reported --- */

__attribute__((format(printf, 2, 3))) static void wrong(struct player *player, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    player->wrong = true;
}

/* A failure must say what it is. */
static bool is_done(struct player *player, const char *what, hl_status status)
{
    if (status == HL_OK)
        return true;
    if (status > 0 || !strcmp(hl_status_name(status), "unknown") || !player->err.text[0])
        wrong(player, "%s: status %d without a reason", what, (int)status);
    if (status == HL_E_TIMEOUT)
        wrong(player, "%s: it hangs", what);
    fprintf(stderr, "engine: %s: %s: %s\n", what, hl_status_name(status), player->err.text);
    player->failed = true;
    return false;
}

/* --- the world --- */

void player_open(struct player *player, const char *instance)
{
    *player = (struct player){.stage = -1, .instance = instance};
    pthread_mutex_init(&player->lock, NULL);
    pthread_mutex_init(&player->gate.lock, NULL);
    pthread_cond_init(&player->gate.changed, NULL);
    SPARED(world_open(&player->world, &options));
    SPARED(player->busy = world_stream_new(&player->world));
}

void player_close(struct player *player)
{
    SPARED(world_stream_end(&player->world, player->busy));
    SPARED(world_close(&player->world)); /* expects that nothing is left on the device, no page pinned */
    pthread_cond_destroy(&player->gate.changed);
    pthread_mutex_destroy(&player->gate.lock);
    pthread_mutex_destroy(&player->lock);
}

/* Whatever these pages hold now is what they should. */
static void forget(struct player *player, uint32_t at, uint32_t count)
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

static void expect_bytes(struct player *player, const char *otherwise)
{
    bool match = false;
    SPARED(match = world_matches(&player->world));
    if (!match)
        wrong(player, "%s", otherwise);
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

static void set_gate(struct player *player, bool armed)
{
    struct player_gate *gate = &player->gate;
    pthread_mutex_lock(&gate->lock);
    gate->armed = armed;
    gate->reached = false;
    pthread_cond_broadcast(&gate->changed);
    pthread_mutex_unlock(&gate->lock);
}

static bool gate_is_reached(struct player *player)
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

static bool connect_engine(struct player *player)
{
    hl_engine_options wanted;
    struct engine_tuning tuning = engine_default_tuning;
    hl_engine_options_init(&wanted);
    wanted.socket_path = MANAGER_SOCKET;
    wanted.name = player->instance;
    wanted.spin_us = 0;
    wanted.log = on_log;
    hl_engine *engine = NULL;
    if (!is_done(player, "connect", engine_connect_with(&wanted, &tuning, &engine, &player->err)))
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

static bool register_tensors(struct player *player)
{
    struct world *world = &player->world;
    hl_context_batch batch;
    hl_context_batch_init(&batch);
    batch.instance = player->instance;
    batch.model = "small";
    batch.layout = world->layout;
    batch.tensors = world->tensors;
    batch.device = world->dev;
    for (uint32_t i = 0; i < world->layout->tensor_count; i++) {
        world->tensors[i].name = world->layout->tensors[i].name;
        world->tensors[i].owner = &player->releases;
        world->tensors[i].release = count_release;
    }
    return is_done(player, "register",
                   hl_engine_register(player->engine, &batch, &player->binding, &player->err));
}

/* Also what failed half-way; every tensor's owner comes back, once. */
static void end_session(struct player *player)
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
        wrong(player, "not every owner of a tensor was released once");
}

/* --- blocks --- */

static void name_blocks(hl_block_key *keys, uint64_t first, uint32_t count)
{
    memset(keys, 0, count * sizeof *keys);
    for (uint32_t i = 0; i < count; i++)
        snprintf((char *)keys[i].hash, sizeof keys[i].hash, "block %llu", (unsigned long long)first + i);
}

/* From page i, i < count. Behind a busy stream: pages are read after it only. */
static bool publish(struct player *player, uint64_t first, uint32_t count, bool may_not_fit)
{
    struct world *world = &player->world;
    hl_block_key keys[PAGES];
    uint32_t pages[PAGES];
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
    if (!is_done(player, "publish", status))
        return false;
    if (result.stored + result.present != count)
        wrong(player, "a publish of %u blocks reports %llu and %llu", count,
              (unsigned long long)result.stored, (unsigned long long)result.present);
    return !player->wrong;
}

/* Another engine may evict blocks between their publish and this, once. */
static hl_lease *query(struct player *player, uint64_t first, uint32_t count)
{
    hl_block_key keys[PAGES];
    name_blocks(keys, first, count);
    for (unsigned turn = 0; turn < 2; turn++) {
        hl_lease *lease = NULL;
        if (!is_done(player, "query", hl_query(player->binding, keys, count, NULL, &lease, &player->err)))
            return NULL;
        if (hl_lease_hits(lease) == count)
            return lease;
        fprintf(stderr, "engine: %zu of %u blocks are resident\n", hl_lease_hits(lease), count);
        hl_lease_release(lease);
        if (!publish(player, 0, BLOCKS, false))
            return NULL;
    }
    wrong(player, "published blocks are not resident");
    return NULL;
}

/* --- operations --- */

struct piece {
    uint32_t at, count;
    uint64_t first;
    bool same_page; /* all blocks to page `at`: to be rejected */
    bool behind;    /* the busy stream, and with an event a layer */
    bool gives_up;  /* is to be cancelled */
    hl_restore *restore;
};

static bool start_piece(struct player *player, uint32_t slot, struct piece *piece, hl_lease *lease)
{
    uint32_t pages[PAGES];
    hl_restore_request request;
    for (uint32_t i = 0; i < piece->count; i++)
        pages[i] = piece->at + (piece->same_page ? 0 : i);
    hl_restore_source source = {.lease = lease, .pages = pages, .count = piece->count};
    hl_restore_request_init(&request);
    request.sources = &source;
    request.source_count = 1;
    if (piece->behind) {
        request.ready_stream = player->busy;
        request.has_ready_stream = true;
        request.layer_events = (void *const *)player->world.events;
        request.trace = true;
    }
    const bool done = is_done(player, "restore",
                              hl_restore_start(player->binding, &request, &piece->restore, &player->err));
    hl_lease_release(lease);
    pthread_mutex_lock(&player->lock);
    player->operations[slot] = done ? piece->restore : NULL;
    pthread_mutex_unlock(&player->lock);
    return done;
}

/* The outcome, and what the pages must hold by it. */
static void end_piece(struct player *player, uint32_t slot, struct piece *piece)
{
    hl_restore_result result = {0};
    const uint64_t bytes = piece->count * player->world.layout->groups[0].block_bytes;
    if (!piece->restore)
        return;
    const hl_status status = hl_restore_wait(piece->restore, PATIENCE, &result, &player->err);
    pthread_mutex_lock(&player->lock);
    player->operations[slot] = NULL;
    pthread_mutex_unlock(&player->lock);
    hl_restore_close(piece->restore);
    piece->restore = NULL;
    if (status == HL_OK) {
        if (result.bytes != bytes || result.untouched || piece->same_page)
            wrong(player, "a restore succeeded with %llu of %llu bytes", (unsigned long long)result.bytes,
                  (unsigned long long)bytes);
        for (uint32_t i = 0; i < piece->count; i++)
            world_expect(&player->world, 0, piece->first + i, piece->at + i);
        return;
    }
    const bool expected = (piece->gives_up || atomic_load(&player->hurried)) && status == HL_E_CANCELLED;
    if (expected || piece->same_page)
        fprintf(stderr, "engine: %s: %s\n", hl_status_name(status), player->err.text);
    else
        is_done(player, "restore", status);
    if (!result.untouched)
        SPARED(forget(player, piece->at, piece->same_page ? 1 : piece->count));
    if (result.untouched ? result.bytes != 0 : expected && piece->gives_up)
        wrong(player, "a restore failed with %llu bytes, untouched %d", (unsigned long long)result.bytes,
              result.untouched);
}

/* Both are on the device, behind a stream that is let go after they have been started. */
static bool restore_two(struct player *player)
{
    struct piece pieces[2] = {{.first = 0, .count = 4, .at = 8, .behind = true},
                              {.first = 4, .count = 2, .at = 12}};
    hl_lease *leases[2] = {NULL, NULL};
    for (uint32_t i = 0; i < 2; i++)
        leases[i] = query(player, pieces[i].first, pieces[i].count);
    if (!leases[0] || !leases[1]) {
        hl_lease_release(leases[0]);
        hl_lease_release(leases[1]);
        return false;
    }
    SPARED(world_hold(&player->world, player->busy));
    bool ok = start_piece(player, 0, &pieces[0], leases[0]);
    if (ok)
        ok = start_piece(player, 1, &pieces[1], leases[1]);
    else
        hl_lease_release(leases[1]);
    SPARED(world_let_go(&player->world));
    for (uint32_t i = 0; i < 2; i++)
        end_piece(player, i, &pieces[i]);
    return ok;
}

/* RESERVED → FREE: the Manager cannot have claimed it. */
static bool take_back(struct player *player)
{
    struct piece piece = {.first = 6, .count = 1, .at = 14, .gives_up = true};
    hl_lease *lease = query(player, piece.first, piece.count);
    if (!lease)
        return false;
    const bool frozen = stage_ask(player->stage, STAGE_FREEZE, -1);
    const bool ok = start_piece(player, 2, &piece, lease);
    if (ok)
        hl_restore_cancel(piece.restore);
    end_piece(player, 2, &piece);
    return frozen && stage_ask(player->stage, STAGE_THAW, -1) && ok;
}

/* What hl_restore_cancel() has the worker do, which stands at the gate. */
static void ask_to_cancel(struct player *player, const hl_restore *restore)
{
    struct hl_grant_record *record = hl_grant_record_at(player->engine->grants, restore->record);
    atomic_store(&record->cancel, restore->generation);
    hl_grant_mark(player->engine->grants, restore->record);
    engine_signal(player->engine->retirement_fd);
}

/* GRANTED → REVOKED while the worker is about to claim. */
static bool have_revoked(struct player *player)
{
    struct piece piece = {.first = 7, .count = 1, .at = 15, .gives_up = true};
    const int64_t until = hl_clock_ns() + PATIENCE;
    hl_lease *lease = query(player, piece.first, piece.count);
    if (!lease)
        return false;
    set_gate(player, true);
    const bool ok = start_piece(player, 3, &piece, lease);
    while (ok && !gate_is_reached(player) && !atomic_load(&player->hurried) &&
           hl_restore_poll(piece.restore, NULL, NULL) == HL_PENDING && hl_clock_ns() < until)
        sched_yield();
    if (ok && gate_is_reached(player)) {
        ask_to_cancel(player, piece.restore);
        while (hl_grant_load(player->engine->grants, piece.restore->record).state == HL_GRANT_GRANTED &&
               !atomic_load(&player->engine->dead) && !atomic_load(&player->hurried) && hl_clock_ns() < until)
            sched_yield();
    }
    set_gate(player, false);
    end_piece(player, 3, &piece);
    return ok;
}

static bool have_rejected(struct player *player)
{
    struct piece piece = {.first = 0, .count = 2, .at = 14, .same_page = true};
    hl_lease *lease = query(player, piece.first, piece.count);
    const bool ok = lease && start_piece(player, 4, &piece, lease);
    end_piece(player, 4, &piece);
    return ok;
}

/* --- the whole --- */

bool player_play(struct player *player, int stage)
{
    player->stage = stage;
    player->failed = player->wrong = false;
    atomic_store(&player->hurried, false);
    SPARED(world_poison(&player->world));
    bool ok = connect_engine(player) && register_tensors(player) && publish(player, 0, BLOCKS, false) &&
              restore_two(player) && (stage < 0 || take_back(player)) && have_revoked(player) &&
              have_rejected(player);
    hl_lease *lease = ok ? query(player, 0, 2) : NULL;
    hl_lease_release(lease);
    if (!ok && !player->failed) /* the stage has gone: nothing of the library's failed */
        player->failed = true;
    end_session(player);
    expect_bytes(player, "the tensors do not hold what was reported");
    return !player->wrong;
}

bool player_press(struct player *player)
{
    struct piece piece = {.first = 0, .count = 6, .at = 8, .behind = true};
    player->stage = -1;
    player->failed = player->wrong = false;
    SPARED(world_poison(&player->world));
    bool ok = connect_engine(player) && register_tensors(player);
    for (uint32_t i = 0; ok && i < PRESSURE_BLOCKS; i += PAGES)
        ok = publish(player, PRESSURE_FIRST + i, PAGES, true);
    ok = ok && publish(player, 0, BLOCKS, false);
    hl_lease *lease = ok ? query(player, piece.first, piece.count) : NULL;
    if (lease && start_piece(player, 0, &piece, lease))
        end_piece(player, 0, &piece);
    if (player->failed || !lease)
        wrong(player, "a fresh engine could not restore");
    end_session(player);
    expect_bytes(player, "a fresh engine's tensors do not hold what was restored");
    return !player->wrong;
}

/* --- while the Manager is stopped --- */

static bool waits_for_manager(struct player *player, const hl_restore *restore)
{
    if (hl_restore_poll((hl_restore *)(uintptr_t)restore, NULL, NULL) != HL_PENDING)
        return true;
    switch (hl_grant_load(player->engine->grants, restore->record).state) {
    case HL_GRANT_RESERVED:
    case HL_GRANT_GRANTED:
    case HL_GRANT_ACTIVE:
        return false;
    default:
        return true;
    }
}

void player_hurry(struct player *player)
{
    const int64_t until = hl_clock_ns() + PATIENCE;
    bool waiting = true;
    atomic_store(&player->hurried, true);
    set_gate(player, false);
    while (waiting) {
        MUST(hl_clock_ns() < until);
        sched_yield();
        waiting = false;
        pthread_mutex_lock(&player->lock);
        for (uint32_t i = 0; player->engine && i < PLAYER_OPERATIONS; i++)
            if (player->operations[i]) {
                hl_restore_cancel(player->operations[i]);
                waiting = waiting || !waits_for_manager(player, player->operations[i]);
            }
        pthread_mutex_unlock(&player->lock);
    }
}
