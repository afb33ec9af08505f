/* An engine of a run: its GPU's world, and the one script of what it does with a Manager that may die, stop
 * or refuse at any moment, with a library in which any step may fail.
 *
 * Whatever happens, an operation's report must be true: every byte of one that succeeded has arrived, pages
 * of one that is reported untouched hold what they held, and nothing else has been written. What holds no
 * more is said on standard error, and makes the script wrong. */
#ifndef QUALIFICATION_DEATHS_PLAYER_H
#define QUALIFICATION_DEATHS_PLAYER_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/engine_internal.h"
#include "qualification/restore/gate.h"
#include "qualification/restore/world.h"

#define PLAYER_OPERATIONS 5

struct player_gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool armed, reached;
};

struct player {
    struct world world;
    hl_stream busy; /* of the world: what readiness waits for */
    int stage;      /* -1: there is none */
    const char *instance;
    hl_engine *engine;
    hl_binding *binding;
    struct player_gate gate;
    _Atomic uint32_t releases; /* owners given back */
    pthread_mutex_t lock;
    hl_restore *operations[PLAYER_OPERATIONS]; /* lock: alive, for player_hurry() */
    hl_lease *leases[2];                       /* of operations that start after all are there */

    bool failed;          /* the library reported a failure */
    _Atomic bool hurried; /* operations may have been cancelled from outside */
    bool wrong;
    hl_error err;
};

/* The world; before any holdings are taken. */
void player_open(struct player *player, const char *instance);
void player_close(struct player *player);

/* The whole script: connects, registers, publishes blocks, restores some to other pages by several parts, two
 * operations at a time and both behind a busy stream, has one taken back, one revoked and one rejected, gives
 * a lease back, closes. With `stage` -1, without what needs the Manager to stand still. Returns !wrong;
 * `failed` and `hurried` say more. */
bool player_play(struct player *player, int stage);

/* Publishes more than the Manager's arena can hold, so that every source which nobody keeps is evicted and
 * its space written again; then restores blocks and compares. Returns !wrong: nothing may fail. */
bool player_press(struct player *player);

/* By another thread, while the Manager does nothing: cancels what runs, and waits until nothing is left to do
 * without the Manager. */
void player_hurry(struct player *player);

#endif
