/* What an engine does: every way in which an operation can end, one after another. */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "faults/sweep/sweep.h"
#include "faults/testing.h"
#include "qualification/deaths/player.h"
#include "qualification/deaths/stage.h"

#define PATIENCE (STAGE_PATIENCE_MS * 1000000ll)
#define PRESSURE_BLOCKS 48u /* more than HOUSE_ARENA_BYTES hold */
#define PRESSURE_FIRST 1000u

/* --- operations --- */

struct piece {
    uint32_t at, count;
    uint64_t first;
    bool same_page; /* all blocks to page `at`: to be rejected */
    bool behind;    /* the busy stream, and with an event a layer */
    bool gives_up;  /* is to be cancelled */
    bool cut;       /* after a part has drained */
    bool expired;   /* its lease has */
    hl_restore *restore;
};

static bool start_piece(struct player *player, uint32_t slot, struct piece *piece, hl_lease *lease)
{
    uint32_t pages[PLAYER_PAGES];
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
    const bool done = player_did(player, "restore",
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
            player_wrong(player, "a restore succeeded with %llu of %llu bytes",
                         (unsigned long long)result.bytes, (unsigned long long)bytes);
        for (uint32_t i = 0; i < piece->count; i++)
            world_expect(&player->world, 0, piece->first + i, piece->at + i);
        return;
    }
    const bool expected = (piece->gives_up || atomic_load(&player->hurried)) && status == HL_E_CANCELLED;
    if (expected || piece->same_page || piece->expired)
        fprintf(stderr, "engine: %s: %s\n", hl_status_name(status), player->err.text);
    else
        player_did(player, "restore", status);
    if (!result.untouched)
        SPARED(player_forget(player, piece->at, piece->same_page ? 1 : piece->count));
    if (result.untouched ? result.bytes != 0 : expected && piece->gives_up && !piece->cut)
        player_wrong(player, "a restore failed with %llu bytes, untouched %d",
                     (unsigned long long)result.bytes, result.untouched);
}

/* The worker may be draining what an injected error has left behind the held stream, and claims no more until
 * that is let go. */
static bool errs(void)
{
    const char *action = getenv(HL_SWEEP_ACTION);
    return action && action[0] == 'E' && hl_fault_has_fired();
}

/* The first part has its place in the bank then, or had it. */
static void await_claim(struct player *player, const hl_restore *restore)
{
    const int64_t until = hl_clock_ns() + PATIENCE;
    while (hl_grant_load(player->engine->grants, restore->record).state != HL_GRANT_ACTIVE &&
           hl_restore_poll((hl_restore *)(uintptr_t)restore, NULL, NULL) == HL_PENDING &&
           !atomic_load(&player->hurried) && !errs() && hl_clock_ns() < until)
        sched_yield();
}

/* Both are on the device, behind a stream that is let go after they have been started. */
static bool restore_two(struct player *player)
{
    struct piece pieces[2] = {{.first = 0, .count = 4, .at = 8, .behind = true},
                              {.first = 4, .count = 2, .at = 12}};
    hl_lease *leases[2] = {NULL, NULL};
    for (uint32_t i = 0; i < 2; i++)
        leases[i] = player_query(player, pieces[i].first, pieces[i].count);
    if (!leases[0] || !leases[1]) {
        hl_lease_release(leases[0]);
        hl_lease_release(leases[1]);
        return false;
    }
    SPARED(world_hold(&player->world, player->busy));
    bool ok = start_piece(player, 0, &pieces[0], leases[0]);
    if (ok) {
        await_claim(player, pieces[0].restore);
        ok = start_piece(player, 1, &pieces[1], leases[1]);
    } else {
        hl_lease_release(leases[1]);
    }
    if (ok)
        await_claim(player, pieces[1].restore);
    SPARED(world_let_go(&player->world));
    for (uint32_t i = 0; i < 2; i++)
        end_piece(player, i, &pieces[i]);
    return ok;
}

/* RESERVED → FREE: the Manager cannot have claimed it. */
static bool take_back(struct player *player)
{
    struct piece piece = {.first = 6, .count = 1, .at = 14, .gives_up = true};
    hl_lease *lease = player_query(player, piece.first, piece.count);
    if (!lease)
        return false;
    const bool frozen = stage_ask(player->stage, STAGE_FREEZE, -1);
    const bool ok = start_piece(player, 2, &piece, lease);
    if (ok)
        hl_restore_cancel(piece.restore);
    end_piece(player, 2, &piece);
    return frozen && stage_ask(player->stage, STAGE_THAW, -1) && ok;
}

/* Asks until it is so, the operation has ended, or something else goes on that the sweep is about. */
static bool until_stage(struct player *player, const hl_restore *restore, enum stage_word word)
{
    const int64_t until = hl_clock_ns() + PATIENCE;
    enum stage_word answer = STAGE_BUSY;
    while (answer == STAGE_BUSY && !atomic_load(&player->hurried) && hl_clock_ns() < until &&
           !atomic_load(&player->engine->lost) &&
           (!restore || hl_restore_poll((hl_restore *)(uintptr_t)restore, NULL, NULL) == HL_PENDING)) {
        if (!stage_say(player->stage, word, -1) || !stage_hear(player->stage, &answer, NULL))
            return false;
        if (answer == STAGE_BUSY)
            sched_yield();
    }
    return answer == STAGE_DONE;
}

/* PREPARING, deferred, and the library's own request to cancel. */
static bool cancel_deferred(struct player *player)
{
    struct piece piece = {.first = 6, .count = 1, .at = 14, .gives_up = true};
    hl_lease *lease = player_query(player, piece.first, piece.count);
    if (!lease)
        return false;
    until_stage(player, NULL, STAGE_FILL);
    const bool ok = start_piece(player, 5, &piece, lease);
    if (ok) {
        until_stage(player, piece.restore, STAGE_IS_DEFERRED);
        hl_restore_cancel(piece.restore);
    }
    end_piece(player, 5, &piece);
    return stage_ask(player->stage, STAGE_EMPTY, -1) && ok;
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
    hl_lease *lease = player_query(player, piece.first, piece.count);
    if (!lease)
        return false;
    player_set_gate(player, true);
    const bool ok = start_piece(player, 3, &piece, lease);
    while (ok && !player_gate_is_reached(player) && !atomic_load(&player->hurried) &&
           hl_restore_poll(piece.restore, NULL, NULL) == HL_PENDING && hl_clock_ns() < until)
        sched_yield();
    if (ok && player_gate_is_reached(player)) {
        ask_to_cancel(player, piece.restore);
        while (hl_grant_load(player->engine->grants, piece.restore->record).state == HL_GRANT_GRANTED &&
               !atomic_load(&player->engine->dead) && !atomic_load(&player->hurried) && hl_clock_ns() < until)
            sched_yield();
    }
    player_set_gate(player, false);
    end_piece(player, 3, &piece);
    return ok;
}

/* PART_DRAINED → REVOKED: the next part waits for the bank. */
static bool have_cut_short(struct player *player)
{
    struct piece piece = {.first = 0, .count = 4, .at = 8, .behind = true, .gives_up = true, .cut = true};
    hl_lease *lease = player_query(player, piece.first, piece.count);
    if (!lease)
        return false;
    atomic_store(&player->held, true);
    SPARED(world_hold(&player->world, player->busy));
    const bool ok = start_piece(player, 6, &piece, lease);
    if (ok)
        await_claim(player, piece.restore);
    const bool filled = ok && until_stage(player, piece.restore, STAGE_FILL);
    SPARED(world_let_go(&player->world));
    atomic_store(&player->held, false);
    if (filled && until_stage(player, piece.restore, STAGE_IS_DEFERRED))
        ask_to_cancel(player, piece.restore);
    else
        stage_ask(player->stage, STAGE_EMPTY, -1);
    end_piece(player, 6, &piece);
    return stage_ask(player->stage, STAGE_EMPTY, -1) && ok;
}

static bool have_expired(struct player *player)
{
    struct piece piece = {.first = 0, .count = 1, .at = 14, .expired = true};
    hl_lease *lease = player_query(player, piece.first, piece.count);
    if (!lease)
        return false;
    const bool asked = until_stage(player, NULL, STAGE_EXPIRE);
    const bool ok = start_piece(player, 7, &piece, lease);
    end_piece(player, 7, &piece);
    return (asked || atomic_load(&player->hurried)) && ok;
}

static bool have_rejected(struct player *player)
{
    struct piece piece = {.first = 0, .count = 2, .at = 14, .same_page = true};
    hl_lease *lease = player_query(player, piece.first, piece.count);
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
    bool ok = player_connect(player) && player_register(player) &&
              player_publish(player, PRESSURE_FIRST, PLAYER_PAGES, true) &&
              player_publish(player, 0, PLAYER_BLOCKS, false) && restore_two(player) && take_back(player) &&
              cancel_deferred(player) && have_cut_short(player) && have_revoked(player) &&
              have_rejected(player) && have_expired(player);
    hl_lease *lease = ok ? player_query(player, 0, 2) : NULL; /* released, and queried again and kept */
    hl_lease_release(lease);
    lease = lease ? player_query(player, 0, 2) : NULL;
    if (!ok && !player->failed) /* the stage has gone: nothing of the library's failed */
        player->failed = true;
    player_leave(player);
    hl_lease_release(lease);
    player_expect_bytes(player, "the tensors do not hold what was reported");
    return !player->wrong;
}

bool player_press(struct player *player)
{
    struct piece piece = {.first = 0, .count = 6, .at = 8, .behind = true};
    player->stage = -1;
    player->failed = player->wrong = false;
    SPARED(world_poison(&player->world));
    bool ok = player_connect(player) && player_register(player);
    for (uint32_t i = 0; ok && i < PRESSURE_BLOCKS; i += PLAYER_PAGES)
        ok = player_publish(player, PRESSURE_FIRST + i, PLAYER_PAGES, true);
    ok = ok && player_publish(player, 0, PLAYER_BLOCKS, false);
    hl_lease *lease = ok ? player_query(player, piece.first, piece.count) : NULL;
    if (lease && start_piece(player, 0, &piece, lease))
        end_piece(player, 0, &piece);
    if (player->failed || !lease)
        player_wrong(player, "a fresh engine could not restore");
    player_leave(player);
    player_expect_bytes(player, "a fresh engine's tensors do not hold what was restored");
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
        return false;
    case HL_GRANT_ACTIVE:
        return atomic_load(&player->held);
    default:
        return true;
    }
}

void player_hurry(struct player *player)
{
    const int64_t until = hl_clock_ns() + PATIENCE;
    bool waiting = true;
    atomic_store(&player->hurried, true);
    player_set_gate(player, false);
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

/* --- an engine that is to die --- */

void player_die_claimed(struct player *player)
{
    struct piece piece = {.first = 0, .count = 4, .at = 8, .behind = true};
    player->stage = -1;
    SPARED(world_poison(&player->world));
    if (!player_connect(player) || !player_register(player) ||
        !player_publish(player, 0, PLAYER_BLOCKS, false))
        return;
    hl_lease *lease = player_query(player, piece.first, piece.count);
    SPARED(world_hold(&player->world, player->busy));
    if (!lease || !start_piece(player, 0, &piece, lease))
        return;
    await_claim(player, piece.restore);
    kill(getpid(), SIGKILL);
}
