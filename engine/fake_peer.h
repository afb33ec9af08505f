/* A scripted Manager for the engine's tests, in the test's own process, over the real socket, descriptor
 * memory and grant memory. It answers requests by itself on a thread; grants are made step by step by the
 * test, which thereby decides every race, or by fake_serve_grants() for tests that only need a Manager that
 * works. Plans are compiled from real arenas, so that bytes can be compared. Test code only.
 *
 * A checker on the software device refuses every copy whose source is not in a block that an unreaped
 * operation has (I1), and counts it as a violation. */
#ifndef ENGINE_FAKE_PEER_H
#define ENGINE_FAKE_PEER_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/random.h"
#include "core/device/software.h"
#include "core/plan/plan.h"
#include "core/testing/cunit.h"
#include "engine/engine_internal.h"

enum {
    FAKE_ARENAS = 2,
    FAKE_LAYERS = 3,
    FAKE_PAGES = 64,
    FAKE_BLOCKS = 32,
    FAKE_TENSORS = 2 * FAKE_LAYERS,
    FAKE_POISON = 0xa5,
    FAKE_LEASES = 4096
};

struct fake_lease {
    uint32_t first; /* block */
    uint32_t hits;
    bool released;
};

/* What the fake knows about an operation between PREPARING and REAPED. */
struct fake_operation {
    bool live;
    uint32_t generation;
    hl_plan *plan;
    uint32_t next_part;
    struct hl_plan_block *blocks;
    uint32_t block_count;
};

struct fake {
    /* the device and what is on it */
    hl_device *dev;
    hl_layout *layout;
    hl_tensor tensors[FAKE_TENSORS];
    unsigned char *expected[FAKE_TENSORS];
    hl_event events[FAKE_LAYERS];
    hl_random random;

    /* stored blocks */
    hl_arena *arenas[FAKE_ARENAS];
    struct hl_plan_block blocks[FAKE_BLOCKS];
    uint64_t part_bytes; /* of plans; 0: as large as may be */

    /* the socket */
    char folder[8];
    char path[32];
    int listener;
    pthread_t server;
    int victim; /* pid of the process whose death is the Manager's; 0: none */
    int victim_pidfd, victim_pipe;

    /* the session */
    uint64_t epoch;
    unsigned char token[16];
    hl_descriptors *descriptors;
    hl_grant_memory *grants;
    int restore_fd, retirement_fd, publish_fd;
    bool silent; /* writes no eventfd: every wake-up is lost */

    pthread_mutex_t lock; /* what follows */
    pthread_cond_t changed;
    int socket; /* -1: nobody is connected */
    uint32_t pinned[FAKE_BLOCKS];
    struct fake_lease leases[FAKE_LEASES];
    uint32_t lease_count;
    uint32_t received[HL_MESSAGE_KIND_COUNT];
    struct fake_operation operations[HL_GRANT_RECORDS];
    uint32_t bindings;
    bool stop_granting;
    pthread_t granter;
    bool granting;

    /* Called on the server's thread for each checked request, before the usual answer; true: it has answered
     * (or will not). */
    bool (*on_request)(struct fake *fake, const struct hl_packet *packet, enum hl_message_kind kind);
    void *user;
    struct hl_publish_message publish; /* the last one */
};

/* Makes device, arenas, blocks, a listening socket in a new folder, and the server's thread. */
void fake_open(struct fake *fake);
/* Expects that nothing is left on the device and no copy was refused. The engine has been closed. */
void fake_close(struct fake *fake);

/* fake_world.c */
void fake_world_open(struct fake *fake, const struct hl_software_options *software);
void fake_world_close(struct fake *fake);
/* Block `index` goes to `page`: what the tensors must hold then. */
void fake_expect(struct fake *fake, uint32_t index, uint32_t page);
bool fake_tensors_match(struct fake *fake);
hl_status fake_event_query(struct fake *fake, hl_event event);
hl_stream fake_stream(struct fake *fake); /* of the caller's; fake_stream_end() */
void fake_stream_end(struct fake *fake, hl_stream stream);
/* A stream at a hold, with work behind it. */
hl_stream fake_busy_stream(struct fake *fake);
bool fake_is_entered(struct fake *fake);

/* Engine-side conveniences. */
struct fake_client {
    struct fake *fake;
    hl_engine *engine;
    hl_binding *binding;
    hl_error err;
    char log[2048];
};
/* Tuning with a short tick and the fake's victim, if there is one. */
struct engine_tuning fake_tuning(struct fake *fake);
void fake_connect(struct fake *fake, struct fake_client *client, const struct engine_tuning *tuning,
                  uint32_t spin_us);
hl_context_batch fake_batch(struct fake *fake);
void fake_register(struct fake_client *client);
void fake_disconnect(struct fake_client *client); /* closes the engine */
hl_lease *fake_query(struct fake_client *client, uint32_t first, uint32_t count);
/* Starts a restore of blocks first … first + count - 1 to pages 0 …, and updates what is expected. The lease
 * is released at once: the operation keeps it. */
hl_restore *fake_restore(struct fake_client *client, uint32_t first, uint32_t count);
/* The same with what the test sets in `request` (NULL: nothing): ready stream, owner, trace. */
hl_restore *fake_restore_with(struct fake_client *client, uint32_t first, uint32_t count,
                              const hl_restore_request *request);
void fake_open_all(struct fake *fake, struct fake_client *client); /* a fake, an engine, a binding */
void fake_close_all(struct fake *fake, struct fake_client *client);
/* Waits for the outcome, expects it, and closes the handle. */
void fake_expect_outcome(hl_restore *restore, hl_status status, bool untouched);
/* Waits, giving the processor away, until the record of `generation` has been retired. */
void fake_await_retired(struct fake *fake, uint32_t record, uint32_t generation);
void fake_await_loss(struct fake_client *client, hl_status status);
/* Waits for DRAINED and reaps. */
void fake_await_and_reap(struct fake *fake, uint32_t record);

/* fake_grants.c */
/* Waits until a submitted record is there; returns its index, still RESERVED. */
uint32_t fake_await_submission(struct fake *fake);
/* Waits, on the engine's marks, until the record is in `state`. */
void fake_await_state(struct fake *fake, uint32_t record, enum hl_grant_state state);
/* RESERVED → PREPARING, decodes the descriptor, pins the blocks and compiles the plan. */
void fake_prepare(struct fake *fake, uint32_t record);
/* The next part into the bank at `offset`; PREPARING or PART_DRAINED → GRANTED. */
void fake_grant(struct fake *fake, uint32_t record, uint32_t offset);
/* The same, in two steps: what is in the bank and the record can be spoilt between them. */
void fake_place(struct fake *fake, uint32_t record, uint32_t offset);
void fake_publish_grant(struct fake *fake, uint32_t record);
/* fake_await_submission(), fake_prepare() and fake_grant() at 0. Returns the record. */
uint32_t fake_grant_next(struct fake *fake);
bool fake_move(struct fake *fake, uint32_t record, enum hl_grant_state from, enum hl_grant_state to);
/* Writes the outcome; PREPARING → REJECTED. */
void fake_reject(struct fake *fake, uint32_t record, hl_status status, const char *text);
/* Writes the outcome; GRANTED or PART_DRAINED → REVOKED. Whether it won. */
bool fake_revoke(struct fake *fake, uint32_t record, enum hl_grant_state from);
/* Unpins; DRAINED, REVOKED, REJECTED or COMPLETED → REAPED. */
void fake_reap(struct fake *fake, uint32_t record);
void fake_wake(struct fake *fake);
/* Grants, next parts and reaps on a thread of its own until fake_stop_grants(). */
void fake_serve_grants(struct fake *fake);
void fake_stop_grants(struct fake *fake);

/* fake_peer.c */
void fake_hang_up(struct fake *fake); /* the Manager lives on, the session is closed */
void fake_start_victim(struct fake *fake);
void fake_kill_victim(struct fake *fake);
void fake_finish_publish(struct fake *fake, uint32_t slot, hl_status status, uint32_t stored,
                         uint32_t present);
uint32_t fake_received(struct fake *fake, enum hl_message_kind kind);
void fake_await_received(struct fake *fake, enum hl_message_kind kind, uint32_t count);
/* Every reply goes through here: ends the test's process when the kernel refuses it. */
void fake_send(struct fake *fake, const void *message, const int *fds, unsigned fd_count);
void fake_reply_error(struct fake *fake, uint32_t sequence, hl_status status, const char *text);

/* Waits until the eventfd is readable and reads it; ends the test's process after half a minute. */
void fake_await_fd(int fd);

#endif
