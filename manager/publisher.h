/* One GPU's publisher: a thread that copies pages of imported tensors into arenas. Private to publisher.c and
 * publish_copy.c; tests hold its stream.
 *
 * Queues are guarded by the Manager's lock. A turn takes one batch of blocks from the first publish of the
 * next session that has one: publishes of a session run in order, sessions take turns. Between taking a batch
 * and completing it the publish, its session and its binding stay, as the binding counts the publish. */
#ifndef MANAGER_PUBLISHER_H
#define MANAGER_PUBLISHER_H

#include "manager/state.h"

enum {
    MANAGER_PUBLISH_BATCH = 64,    /* blocks between two looks at other sessions */
    MANAGER_PUBLISH_PIECES = 4096, /* copies handed to the device in one call */
    MANAGER_PUBLISH_WARN_S = 60
};
#define MANAGER_PUBLISH_BATCH_BYTES (32ull * HL_MIB) /* a batch ends with the block that reaches it */

struct manager_publish {
    struct manager_publish *next; /* of the same session */
    struct manager_session *session;
    struct manager_binding *binding;
    uint32_t group;
    uint32_t slot;
    bool gaps; /* the layout leaves bytes of a block unwritten */
    int64_t warned_ns;
    int64_t accepted_ns;
    uint32_t stored, present;
    uint64_t bytes;
    hl_status status;
    char text[HL_GRANT_TEXT_BYTES];
    uint32_t block_count;
    uint32_t next_block; /* the first one that no batch has taken */
    struct hl_publish_block blocks[];
};

/* A block that this publisher alone may write, until it is completed or abandoned. */
struct manager_publish_target {
    hl_entry_id entry;
    uint32_t arena;
    struct hl_allocation allocation;
    uint32_t page;
};

struct manager_publish_batch {
    struct manager_publish *publish;
    uint32_t count;
    struct manager_publish_target targets[MANAGER_PUBLISH_BATCH];
};

struct manager_publisher {
    hl_manager *manager;
    hl_device *dev;
    pthread_t thread;
    pthread_cond_t work; /* with the Manager's lock: a publish was queued, or stopping */
    bool stopping;
    struct {
        struct manager_publish *first, *last;
    } queues[HL_SESSIONS]; /* by session index */
    uint32_t turn;         /* the session index that is asked first next time */
    uint32_t queued;
    /* The thread's own. */
    hl_stream stream; /* NULL after a copy that could not be drained: the next batch makes another */
    hl_event event;
    struct manager_publish_batch batch;
    struct hl_copy pieces[MANAGER_PUBLISH_PIECES];
    uint32_t piece_count;
};

/* publish_copy.c: without the lock. */

/* Makes stream and event. */
hl_status manager_publish_open_stream(struct manager_publisher *publisher, hl_error *err);
void manager_publish_close_stream(struct manager_publisher *publisher);

/* Copies every row of every target's page into its block and waits. *drained (also on failure): nothing of
 * the batch is being written any more. */
hl_status manager_publish_copy(struct manager_publisher *publisher, bool *drained, hl_error *err);

/* Whether the components of a group leave bytes of its block out. */
bool manager_publish_has_gaps(const hl_layout *layout, uint32_t group);

#endif
