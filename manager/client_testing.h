/* The bench of the Manager's own tests: a Manager on the software device with small arenas, its log, and
 * clients that speak the protocol message by message, so that they can also break it. */
#ifndef MANAGER_CLIENT_TESTING_H
#define MANAGER_CLIENT_TESTING_H

#include <limits.h>
#include <pthread.h>
#include <stdio.h>

#include "core/channel/channel.h"
#include "core/grant/grant.h"
#include "core/testing/cunit.h"
#include "manager/state.h"

#define STAND_ARENA_BYTES (2 * HL_MIB)
#define STAND_WAIT_NS (30 * 1000000000ll) /* no test waits so long: a hang fails instead of hanging */

struct stand {
    hl_manager *manager;
    char folder[PATH_MAX]; /* of its own, the current directory while it stands */
    hl_error err;
    pthread_mutex_t log_lock;
    size_t log_size;
    char log[1 << 18];
};

/* Two arenas, no spinning unless `change` (may be NULL) says otherwise. */
void stand_open(struct stand *stand, void (*change)(hl_manager_options *options));
/* Stops the Manager; returns how many operations were in quarantine. Its log can still be read. */
uint32_t stand_close(struct stand *stand);
bool stand_logged(struct stand *stand, const char *text);
/* Everything that the dispatcher was told before has been handled. */
void stand_sync(struct stand *stand);
hl_manager_snapshot stand_stats(struct stand *stand);
/* Checks I2 through the public call. */
void stand_check(struct stand *stand);

/* Makes a folder below $TEST_TMPDIR and enters it, so that sockets in it have short paths. */
void stand_enter_folder(char *folder, size_t size);

struct client {
    int fd;
    uint32_t sequence;
    struct hl_welcome welcome;
    int signals[HL_BOOTSTRAP_FDS]; /* restore, retirement, publish at their places */
    hl_descriptors *descriptors;
    hl_grant_memory *grants;
    hl_error err;
};

/* Connects to the socket in the current directory, and says nothing. */
void client_connect(struct client *client);
/* Connects, says HELLO, maps what comes (nothing for a tool). */
void client_open(struct client *client, enum hl_peer_role role);
/* Closes the connection without a word. */
void client_close(struct client *client);
void client_bye(struct client *client);

void client_send(struct client *client, const void *bytes, size_t size, const int *fds, unsigned fd_count);
/* Fills in the head and sends. */
void client_request(struct client *client, void *message, enum hl_message_kind kind);
/* Receives the reply to the latest request, which is of that kind. */
void client_expect(struct client *client, enum hl_message_kind kind, struct hl_packet *packet);
/* An ERROR with this status and this text in it. */
void client_expect_error(struct client *client, hl_status status, const char *text);
/* The Manager closes the connection; an ERROR before that is read over. */
void client_expect_closed(struct client *client);

/* --- bindings, blocks, restores --- */

/* A small model: two layers, K and V apart, 8 pages of 4 tokens; a block has 512 bytes. */
enum { TEST_PAGES = 8, TEST_TENSORS = 4, TEST_BLOCK_BYTES = 512 };

struct test_binding {
    struct hl_wire_binding head;
    struct hl_wire_tensor tensors[TEST_TENSORS];
    struct hl_layout_component components[TEST_TENSORS];
};
/* Of the software device, without exports. */
void test_binding_fill(struct test_binding *binding, const char *instance, uint32_t rank);
/* Sends REGISTER with its description in the descriptor memory, whose extent it returns. */
struct hl_extent client_send_register(struct client *client, const struct test_binding *binding);
/* Registers; returns the number. */
uint32_t client_register(struct client *client, const char *instance, uint32_t rank);
/* Puts `count` blocks with keys 0, 1, 2, … into the index as if the binding had published them. */
void stand_put_blocks(struct stand *stand, const struct client *client, uint32_t binding, uint32_t count);
/* Asks for keys first … first + count - 1. */
struct hl_extent client_send_query(struct client *client, uint32_t binding, uint32_t first, uint32_t count);
struct hl_lease_message client_query(struct client *client, uint32_t binding, uint32_t first, uint32_t count);
/* Submits a restore of all of the lease's blocks into pages 0, 1, 2, …; returns the record's generation. */
uint32_t client_submit(struct client *client, uint32_t record, uint32_t binding,
                       const struct hl_lease_message *lease);
/* Waits until the record is in this state. */
void client_await(struct client *client, uint32_t record, enum hl_grant_state state);

/* A PUBLISH, not sent yet, of one block with a key of zeros into slot 0. */
struct hl_publish_message client_publish_of(struct client *client, uint32_t binding, uint32_t page);
/* What an engine does with a granted record: claims it, and says that all has drained. */
void client_drain(struct client *client, uint32_t record, uint32_t generation);
/* Marks the record and signals. */
void client_notify(struct client *client, uint32_t record);

/* A case that is another process's part: `return` unless client_is_role(). client_spawn() runs this program
 * again, in the current directory, for that case alone; returns its pid. */
bool client_is_role(void);
int client_spawn(const char *role);
int client_wait(int pid); /* its exit status, 0 when the case passed; -1 when it was killed */

#endif
