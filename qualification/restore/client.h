/* An engine of a test: the library's calls as a test needs them, with the places where its worker can be
 * stopped. */
#ifndef QUALIFICATION_RESTORE_CLIENT_H
#define QUALIFICATION_RESTORE_CLIENT_H

#include <pthread.h>

#include "engine/engine_internal.h"
#include "qualification/restore/gate.h"
#include "qualification/restore/world.h"

/* Stops the worker at the n-th time that it comes to `point`, until client_gate_open(). */
struct client_gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool armed, reached, open;
    enum engine_point point;
    uint32_t left;         /* passes before it stops */
    uint32_t record;       /* that it stopped at */
    uint16_t claims[4096]; /* records in the order in which they were claimed */
    uint32_t claim_count;
};

struct client {
    struct world *world;
    hl_engine *engine;
    hl_binding *binding;
    struct client_gate gate;
    _Atomic uint32_t releases; /* owners of tensors that were given back */
    hl_error err;
};

/* Connects. `tick_ns` 0: the library's. */
void client_connect(struct client *client, struct world *world, int64_t tick_ns);
/* Connects to the socket, expecting `status`; client->err says why. */
void client_connect_refused(struct client *client, struct world *world, hl_status status);
void client_batch(struct client *client, const char *instance, hl_context_batch *batch);
void client_register(struct client *client, const char *instance);
void client_open(struct client *client, struct world *world, const char *instance);
void client_close(struct client *client);

hl_stream client_copy_stream(struct client *client);

/* Publishes blocks first … first + count - 1 of group 0, from the pages of these numbers modulo the pages. */
void client_publish(struct client *client, uint64_t first, uint32_t count);
/* The same for one batch of at most the layout's pages, expecting nothing; also other groups. */
hl_status client_publish_some(struct client *client, uint32_t group, uint64_t first, uint32_t count,
                              hl_publish_result *result);

/* A lease of exactly these blocks. */
hl_lease *client_query(struct client *client, uint64_t first, uint32_t count);
hl_lease *client_query_group(struct client *client, uint32_t group, uint64_t first, uint32_t count);
/* Restores the lease's first blocks to `pages`; releases the lease. */
hl_restore *client_start_to(struct client *client, hl_lease *lease, const uint32_t *pages, uint32_t count);
/* Queries blocks and restores block first + i to page at + i. */
hl_restore *client_start(struct client *client, uint64_t first, uint32_t count, uint32_t at);
/* What must be there once that has happened. */
void client_expect(struct client *client, uint64_t first, uint32_t count, uint32_t at);
/* Waits for the outcome and closes the handle. */
hl_restore_result client_outcome(struct client *client, hl_restore *restore, hl_status expected);
/* The whole way, and the bytes. */
void client_restore(struct client *client, uint64_t first, uint32_t count, uint32_t at);

struct hl_grant_word client_word(struct client *client, uint32_t record);
void client_await_state(struct client *client, uint32_t record, uint32_t state);
/* Sets the record's request to cancel as the library does, in any state, and tells the Manager. */
void client_ask_cancel(struct client *client, uint32_t record);

void client_gate_arm(struct client *client, enum engine_point point, uint32_t passes);
uint32_t client_gate_reached(struct client *client);
void client_gate_open(struct client *client);

#endif
