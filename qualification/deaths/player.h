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
#include "faults/testing.h"
#include "qualification/restore/gate.h"
#include "qualification/restore/world.h"

#define PLAYER_OPERATIONS 8

struct player_gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool armed, reached;
};

struct player {
    hl_device *dev;
    struct world world;
    hl_stream busy; /* of the world: what readiness waits for */
    int stage;      /* -1: there is none */
    const char *instance, *route;
    hl_engine *engine;
    hl_binding *binding;
    struct player_gate gate;
    _Atomic uint32_t releases; /* owners given back */
    pthread_mutex_t lock;
    hl_restore *operations[PLAYER_OPERATIONS]; /* lock: alive, for player_hurry() */

    bool failed;          /* the library reported a failure */
    _Atomic bool held;    /* what runs on the device waits for this process */
    _Atomic bool hurried; /* operations may have been cancelled from outside */
    bool wrong;
    hl_error err;
};

/* The world; before any holdings are taken. */
void player_open(struct player *player, const char *instance);
void player_close(struct player *player);

/* The whole script: connects, registers, publishes blocks, restores some to other pages by several parts, two
 * operations at a time and both behind a busy stream, has one taken back, one revoked and one rejected, gives
 * a lease back, closes. Returns !wrong;
 * `failed` and `hurried` say more. */
bool player_play(struct player *player, int stage);

/* Publishes more than the Manager's arena can hold, so that every source which nobody keeps is evicted and
 * its space written again; then restores blocks and compares. Returns !wrong: nothing may fail. */
bool player_press(struct player *player);

/* By another thread, while the Manager does nothing: cancels what runs, and waits until nothing is left to do
 * without the Manager. */
void player_hurry(struct player *player);

/* Claims a restore that cannot drain, and is killed; returns when there is no Manager to do that with. */
void player_die_claimed(struct player *player);

/* --- player.c, for script.c --- */

/* The world's own calls of the device are no part of what is swept. */
#define SPARED(call)                                                                                         \
    do {                                                                                                     \
        hl_fault_spare_thread(true);                                                                         \
        call;                                                                                                \
        hl_fault_spare_thread(false);                                                                        \
    } while (0)

#define PLAYER_PAGES 16u
#define PLAYER_BLOCKS 8u /* 0 to 7, from the pages of these numbers */

void player_wrong(struct player *player, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Whether the call succeeded; a failure must say what it is. */
bool player_did(struct player *player, const char *what, hl_status status);
/* Whatever these pages hold now is what they should. */
void player_forget(struct player *player, uint32_t at, uint32_t count);
void player_expect_bytes(struct player *player, const char *otherwise);
bool player_connect(struct player *player);
bool player_register(struct player *player);
void player_leave(struct player *player);
/* Lets no worker claim while it is armed. */
void player_set_gate(struct player *player, bool armed);
bool player_gate_is_reached(struct player *player);
bool player_publish(struct player *player, uint64_t first, uint32_t count, bool may_not_fit);
/* A lease of all of them. */
hl_lease *player_query(struct player *player, uint64_t first, uint32_t count);

#endif
