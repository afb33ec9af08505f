/* What the engine's files share: the session, its GPUs, bindings, leases, operations and publishes.
 *
 * Files, in the way of a restore: options.c (defaults and checks), connect.c (bootstrap), engine.c (threads,
 * close), client.c (one request, one reply), gpus.c (one device, its worker and events), arenas.c (imports),
 * describe.c and binding.c (registration), query.c, restore.c (start), handle.c (wait, poll, cancel),
 * worker.c (the thread), operation.c (what it does with one record), retire.c (the retirement thread),
 * publish.c and courier.c (fences and control messages off the caller's thread).
 *
 * Threads. A worker a GPU drives the executors of that GPU's bindings and is the only one that moves a record
 * out of RESERVED, GRANTED or ACTIVE. One retirement thread watches the Manager (socket, process), moves
 * REAPED to FREE, reads publish slots, and calls the owners' release callbacks. One courier sends what no
 * caller waits for.
 *
 * Locks, outermost first: `registering` (registrations and their ends, one at a time), `request` (the
 * socket), `lock` (everything below that says so). Nothing that can wait for a peer or a device is called
 * under `lock`.
 *
 * The Restore eventfd is never read: each thread has it in an epoll set of its own, edge-triggered, so that
 * one write by the Manager wakes all of them and none can take it from another. */
#ifndef ENGINE_ENGINE_INTERNAL_H
#define ENGINE_ENGINE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "core/arena/arena.h"
#include "core/channel/channel.h"
#include "core/device/device.h"
#include "core/grant/grant.h"
#include "core/transfer/transfer.h"
#include "hostlane/engine.h"

/* What connecting takes beside the public options: the defaults in production, others in tests. */
struct engine_tuning {
    int64_t reply_ns;    /* for a reply that needs no work of the Manager's */
    int64_t register_ns; /* for REGISTERED: a new GPU registers every arena first */
    int64_t tick_ns;     /* maintenance, which finds what a lost notification hid (I6) */
    int manager_pidfd;   /* borrowed: the process whose end is the Manager's; -1: the one behind the socket */
};
extern const struct engine_tuning engine_default_tuning;

struct engine_worker;

/* A shared, registered mapping of one of the Manager's arenas; in the list of its GPU. */
struct engine_arena {
    struct engine_arena *next;
    uint64_t id, bytes, chunk_bytes;
    hl_arena *arena; /* a mapping a GPU */
    hl_registration *registration;
    uint32_t references; /* bindings */
};

/* One GPU in use by a binding; `registering` guards all but the events. */
struct engine_gpu {
    struct engine_gpu *next;
    hl_engine *engine;
    hl_device *dev;
    bool owned; /* opened here, by `ordinal` */
    int ordinal;
    uint32_t references; /* bindings */
    struct engine_arena *arenas;
    struct engine_worker *worker;
    hl_event *idle_events; /* engine->lock: room for all that exist */
    size_t idle_count, event_count;
};

struct engine_owner {
    void *owner;
    void (*release)(void *owner);
};

struct hl_binding {
    struct hl_binding *next; /* engine->lock */
    hl_engine *engine;
    uint64_t serial;     /* never used again in this engine; leases name it */
    uint32_t manager_id; /* the Manager's handle on it */
    char instance[HL_NAME_BYTES];
    uint32_t rank;
    struct engine_gpu *gpu;
    hl_layout *layout;
    uint64_t page_bytes[HL_LAYOUT_GROUPS]; /* what a restored page of a group moves */
    struct engine_arena *arenas[HL_ARENA_IMPORTS];
    uint32_t arena_count;
    hl_transfer *transfer; /* the worker's while operations > 0 */
    struct engine_owner *owners;
    uint32_t owner_count;
    /* engine->lock */
    bool closing;        /* admits nothing more */
    uint32_t users;      /* calls inside the library that use it */
    uint32_t operations; /* not settled */
    uint32_t publishes;  /* not finished */
};

enum engine_lease_use {
    ENGINE_LEASE_IDLE,
    ENGINE_LEASE_PENDING, /* an operation that has not been granted wants to consume it */
    ENGINE_LEASE_CONSUMED
};

struct hl_lease {
    hl_engine *engine; /* counted */
    uint64_t binding_serial;
    uint64_t id; /* the Manager's; 0: no hits */
    uint32_t group;
    uint32_t hits;
    uint64_t bytes;
    size_t key_count;
    unsigned char *residency;
    /* engine->lock */
    enum engine_lease_use use;
    bool released;                /* by its user; the last to need it frees it */
    struct hl_lease *next_return; /* engine->returning: to be given back by the courier */
};

enum engine_progress { ENGINE_STARTED, ENGINE_ENQUEUED, ENGINE_FINISHED };

/* An operation; its user's handle and the engine each hold a reference. */
struct hl_restore {
    hl_engine *engine; /* counted while the handle lives: results stay readable */
    _Atomic uint32_t references;
    /* fixed by hl_restore_start() */
    struct hl_binding *binding; /* until settled */
    uint32_t record, generation;
    int64_t start_ns; /* 0: not traced */
    uint64_t expected_bytes;
    hl_event ready_event; /* NULL: the destinations were ready */
    hl_event *layer_events;
    hl_lease **leases;
    uint32_t lease_count;
    struct engine_owner events_owner;
    struct engine_worker *worker; /* while `progress` is not FINISHED */
    _Atomic bool cancel;
    /* the worker's */
    struct hl_restore *next; /* of its list */
    hl_operation *operation; /* NULL until the first claim */
    struct hl_extent extent; /* bytes 0: given back */
    uint32_t parts;          /* claimed */
    bool copying;            /* ACTIVE: a part is on the device */
    bool last;               /* and it is the last one */
    bool cancel_sent;
    bool managed; /* the Manager's worker may be writing the pages */
    uint64_t stage_ns[HL_STAGE_COUNT];
    /* engine->lock to write; `progress` may be read without */
    _Atomic int progress;
    bool taken_back; /* the record went from RESERVED to FREE */
    bool abandoned;  /* the record is not what it should be: never used again */
    struct hl_restore *next_retiring;
    hl_restore_result result;
    hl_error error;
    pthread_cond_t changed;
};

struct engine_worker {
    hl_engine *engine;
    hl_device *dev;
    pthread_t thread;
    int epoll;
    int wake;            /* eventfd: an operation, a cancellation or the Manager's end */
    unsigned char *part; /* private copy of the part being submitted, HL_PLAN_PART_BYTES */
    hl_restore *first;   /* the worker's own list, in order of arrival */
    /* engine->lock */
    hl_restore *incoming;
    hl_restore **incoming_tail;
    bool stop;
    _Atomic bool news;   /* `incoming` or `stop` has changed */
    _Atomic bool asleep; /* or about to be: `wake` must be written */
};

enum engine_publish_state {
    ENGINE_PUBLISH_FENCED,  /* waits for the producer, or for the courier */
    ENGINE_PUBLISH_SENT,    /* accepted: the slot will say */
    ENGINE_PUBLISH_FINISHED /* result and error are valid */
};

struct hl_publish {
    hl_engine *engine; /* counted */
    _Atomic uint32_t references;
    struct hl_binding *binding; /* until finished */
    hl_event fence;             /* NULL: nothing to wait for */
    struct hl_publish_message message;
    /* engine->lock */
    struct hl_publish *next; /* of engine->fenced */
    enum engine_publish_state state;
    hl_publish_result result;
    hl_error error;
    pthread_cond_t changed;
};

/* Owners to release, in one piece so that it cannot fail later. */
struct engine_release {
    struct engine_release *next;
    struct engine_owner *owners; /* NULL entries are allowed; borrowed */
    uint32_t count;
    bool done; /* engine->lock; `changed` is signalled */
};

struct hl_engine {
    _Atomic uint32_t references; /* the user's, and one a handle, lease or publish */
    hl_engine_options options;
    struct engine_tuning tuning;

    int socket, pidfd;
    pid_t manager;
    uint64_t epoch;
    unsigned char token[16];
    hl_descriptors *descriptors;
    hl_grant_memory *grants;
    int restore_fd, retirement_fd, publish_fd;
    int completion_fd;
    _Atomic bool completion_raised; /* since hl_engine_completion_clear() */
    int retire_wake, courier_wake;  /* eventfds, read by their threads */
    int retire_epoll;
    pthread_t retirement, courier;

    pthread_mutex_t registering;
    struct engine_gpu *gpus;

    pthread_mutex_t request;
    uint32_t sequence;

    pthread_mutex_t lock;
    pthread_cond_t changed; /* counts, bindings, releases */
    bool closing;
    bool stop, courier_stop; /* of the two threads */
    _Atomic bool dead;       /* the Manager's process has ended */
    _Atomic bool lost;       /* the channel is closed or broken; set after `loss` */
    hl_error loss;           /* why */
    uint64_t next_serial;
    struct hl_binding *bindings;
    uint32_t operations;                    /* not settled */
    uint32_t publishes;                     /* not finished */
    uint32_t generations[HL_GRANT_RECORDS]; /* of the records in `free_records` */
    uint16_t free_records[HL_GRANT_RECORDS];
    uint32_t free_count;
    hl_restore *retiring; /* settled; the record waits to be reaped */
    struct engine_release *releases;
    hl_publish *slots[HL_PUBLISH_SLOTS];
    hl_publish *fenced;
    hl_lease *returning;
    struct engine_worker *workers[HL_SESSION_BINDINGS]; /* of the GPUs; NULL when unused */
};

/* options.c */
hl_status engine_options_check(const hl_engine_options *options, hl_error *err);
void engine_log(hl_engine *engine, enum hl_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* connect.c: fills in the session's peer half; on failure nothing stays open. */
hl_status engine_bootstrap(hl_engine *engine, hl_error *err);
void engine_disconnect(hl_engine *engine);

/* engine.c */
hl_status engine_connect_with(const hl_engine_options *options, const struct engine_tuning *tuning,
                              hl_engine **engine, hl_error *err);
void engine_hold(hl_engine *engine);
void engine_drop(hl_engine *engine);
/* Records why the session is lost, once, and wakes everybody who has to know. Without the lock. */
void engine_lose(hl_engine *engine, const hl_error *why);
/* HL_OK while requests may be sent; else the loss. Without the lock. */
hl_status engine_check_peer(hl_engine *engine, hl_error *err);
void engine_signal(int eventfd);
void engine_signal_manager(hl_engine *engine);
void engine_completed(hl_engine *engine); /* raises completion_fd, once between two clears */
void engine_quiet(int eventfd);           /* reads it empty */
/* Accepted device work whose completion cannot be established: says so in the log and aborts (I9). */
_Noreturn void engine_cannot_continue(hl_engine *engine, uint32_t record, const char *text);
/* A condition variable on the monotonic clock; a wait until `deadline_ns` (negative: for ever). False: it
 * has passed. */
void engine_cond_init(pthread_cond_t *cond);
bool engine_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline_ns);
int64_t engine_deadline(int64_t timeout_ns);
/* Runs the callbacks on the retirement thread and waits for it. */
void engine_release_owners(hl_engine *engine, struct engine_owner *owners, uint32_t count);

/* client.c: sends `message` and waits for its one reply, of `kind` or ERROR (then the peer's status). A reply
 * that breaks the protocol or does not come in time loses the session. On success packet->fds are the
 * caller's. *sent (may be NULL) says, after a failure, whether the Manager may have read the request. */
hl_status engine_request(hl_engine *engine, void *message, enum hl_message_kind kind, int64_t reply_ns,
                         struct hl_packet *packet, bool *sent, hl_error *err);

/* gpus.c: `registering` is held for the first two. */
hl_status engine_gpu_take(hl_engine *engine, hl_device *dev, int ordinal, struct engine_gpu **gpu,
                          hl_error *err);
void engine_gpu_give(struct engine_gpu *gpu);
/* A reusable event, recorded on `stream` when that is busy; *event is NULL when it is idle, which proves that
 * its work has finished. */
hl_status engine_gpu_fence(struct engine_gpu *gpu, hl_stream stream, hl_event *event, hl_error *err);
void engine_gpu_give_event(struct engine_gpu *gpu, hl_event event); /* NULL is allowed */

/* arenas.c: `registering` is held. Imports and registers what the reply names and this GPU does not have. */
hl_status engine_arenas_take(struct hl_binding *binding, const struct hl_registered *reply,
                             struct hl_packet *packet, hl_error *err);
void engine_arenas_give(struct hl_binding *binding);

/* describe.c: checks a batch and copies what the binding keeps of it; writes its description into descriptor
 * memory. */
hl_status engine_batch_check(const hl_context_batch *batch, enum hl_route *route, hl_error *err);
hl_status engine_binding_new(hl_engine *engine, const hl_context_batch *batch, hl_binding **binding,
                             hl_error *err);
void engine_binding_free(hl_binding *binding);
hl_status engine_binding_describe(hl_binding *binding, const hl_context_batch *batch,
                                  struct hl_extent *extent, hl_error *err);

/* binding.c: HL_E_STATE or the loss when the binding admits nothing; else it stays until _leave(). */
hl_status engine_binding_enter(hl_binding *binding, hl_error *err);
void engine_binding_leave(hl_binding *binding);

/* query.c: with the lock held. Frees it, or hands it to the courier, when nobody needs it any more. */
void engine_lease_settle(hl_lease *lease, bool consumed);
void engine_lease_give_back(hl_lease *lease); /* without the lock: asks the Manager, frees it */

/* handle.c: the outcome is known. Takes and leaves the lock; wakes the waiters. */
void engine_restore_enqueued(hl_restore *restore);
void engine_restore_drop(hl_restore *restore);
void engine_restore_free(hl_restore *restore); /* restore.c: the last reference has gone */

/* worker.c */
hl_status engine_worker_start(hl_engine *engine, hl_device *dev, struct engine_worker **worker,
                              hl_error *err);
void engine_worker_stop(struct engine_worker *worker);
void engine_worker_add(struct engine_worker *worker, hl_restore *restore); /* lock held */
void engine_worker_wake(struct engine_worker *worker);

/* operation.c: does what the record asks for. True when something happened; *settled when the worker has
 * nothing more to do with it. */
bool engine_operation_look(struct engine_worker *worker, hl_restore *restore, bool *settled);

/* retire.c */
hl_status engine_retire_start(hl_engine *engine, hl_error *err);
void engine_retire_stop(hl_engine *engine);

/* courier.c */
hl_status engine_courier_start(hl_engine *engine, hl_error *err);
void engine_courier_stop(hl_engine *engine);

/* publish.c */
/* The Manager has written the slot, or its outcome will never come: `failure` says so. */
void engine_publish_collect(hl_engine *engine, uint32_t slot, const hl_error *failure);
/* It was never announced, or was refused. Without the lock. */
void engine_publish_fail(hl_publish *publish, const hl_error *error);

#endif
