/* The Manager's state, and who touches what.
 *
 * One lock (`lock`) guards all of it. The dispatcher thread holds it while it handles an event; a publisher
 * thread takes it to allocate, to complete and to reply, and never while bytes move. Tools' requests are
 * answered by the dispatcher.
 *
 * Files: manager.c (start, stop, stats), check.c (I2 and the snapshot), gpus.c, dispatch.c (the loop),
 * greeting.c (accept, HELLO), session.c (bootstrap, loss), requests.c (release, publish admission, BYE),
 * bindings.c (register, unregister), query.c, admin.c (JSON for tools), store.c (arena space and eviction),
 * prepare.c (a restore descriptor becomes a plan), grants.c (claim's counterpart, reaping, loss), parts.c
 * (bank and parts), operation.c (credits and their return), quarantine.c, publisher.c (one thread a GPU) and
 * publish_copy.c (its copies), options.c, log.c; settings.c and main.c (the daemon). */
#ifndef MANAGER_STATE_H
#define MANAGER_STATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/arena/arena.h"
#include "core/channel/channel.h"
#include "core/device/device.h"
#include "core/grant/grant.h"
#include "core/layout/layout.h"
#include "core/plan/plan.h"
#include "hostlane/manager.h"
#include "manager/index.h"
#include "manager/lease.h"
#include "manager/namespace.h"

struct manager_publisher; /* publisher.c */
struct manager_operation; /* grants.c: a grant's owner */

/* One GPU that some binding uses. Made when first needed, kept until the Manager stops. */
struct manager_gpu {
    hl_device *dev;
    unsigned char uuid[16];
    hl_registration *registrations[HL_ARENA_IMPORTS]; /* of arenas[i] */
    hl_budget permits;                                /* HL_GPU_RESTORES; held through quarantine */
    struct manager_publisher *publisher;
};

struct manager_binding {
    bool live;
    bool closing; /* admits nothing more */
    uint32_t gpu; /* index into gpus */
    uint32_t namespace_id;
    hl_layout *layout;
    hl_devptr *tensors; /* layout->tensor_count addresses inside `imports`; 0: the engine exported none */
    hl_devptr *imports; /* one for each distinct allocation: what ipc_import() returned */
    uint32_t import_count;
    char instance[HL_NAME_BYTES];
    uint32_t rank;
    uint32_t operations; /* admitted, not reaped: grants.c counts, then calls manager_binding_settle() */
    uint32_t publishes;  /* accepted, not replied: requests.c counts up, manager_publish_replied() down */
    uint32_t unregister_sequence; /* closing: the request to answer once both are 0 */
    bool answer_unregister;       /* there is such a request */
};

enum manager_session_state {
    MANAGER_SESSION_EMPTY,
    MANAGER_SESSION_LIVE,      /* channel open */
    MANAGER_SESSION_DETACHED,  /* channel closed, process alive: its records are still served */
    MANAGER_SESSION_UNRESOLVED /* process dead, operations in quarantine */
};

struct manager_session {
    enum manager_session_state state;
    uint32_t index;
    int socket; /* -1 once closed */
    int pidfd;
    pid_t pid;
    char name[64];
    unsigned char token[16];
    bool welcomed; /* HELLO has been answered */
    bool tool;     /* a tool: no memory, no records */
    hl_grant_memory *grants;
    hl_descriptors *descriptors;
    int restore_fd, retirement_fd, publish_fd;
    hl_bank *bank;
    hl_budget bytes;      /* leases and operations */
    hl_budget plan_bytes; /* HL_PLAN_SESSION_BYTES */
    /* Unlike the index never used again: names the session in hl_leases (hl_lease_request.session), and tells
     * an event of a former session of this slot. */
    uint64_t serial;
    bool ended; /* BYE, or the Manager stops, or it broke the protocol: nothing more is granted */
    const char
        *broken; /* why the channel was shut down; the dispatcher detaches the session in its next round */
    uint64_t looks[HL_GRANT_RECORDS / 64]; /* dispatch.c: marks taken, records not looked at yet */
    uint64_t publish_slots; /* in use: bit = slot; private, as the slot's own state is the peer's */
    struct manager_binding bindings[HL_SESSION_BINDINGS];
    struct manager_operation *operations[HL_GRANT_RECORDS]; /* the owner of each record's grant, or NULL */
    uint32_t generations[HL_GRANT_RECORDS]; /* the last one of each record that was claimed; 0: none */
    struct manager_operation *deferred_first, *deferred_last; /* prepared, waiting for bank space; FIFO */
    uint32_t operation_count;
    uint32_t quarantined;
};

/* A connection whose HELLO has not come yet. It takes no session; while all are taken, others wait in the
 * listener's queue. */
struct manager_greeting {
    int socket; /* -1: unused */
    pid_t pid;
    uint64_t serial;
    int64_t deadline_ns;
};

enum {
    MANAGER_TOOL_SESSIONS = 8,
    MANAGER_SESSION_SLOTS = HL_SESSIONS + MANAGER_TOOL_SESSIONS,
    MANAGER_GREETINGS = 16
};

struct hl_manager {
    hl_manager_options options; /* socket_path is this struct's own copy */
    uint64_t epoch;
    pthread_mutex_t lock;
    hl_arena *arenas[HL_ARENA_IMPORTS];
    uint32_t arena_count;
    struct manager_gpu gpus[16];
    uint32_t gpu_count;
    hl_index *index;
    hl_namespaces *namespaces;
    hl_leases *leases;
    /* Engines have the first HL_SESSIONS. Tools have the rest, so that an operator gets in when quarantine
     * has used up all others. */
    struct manager_session sessions[MANAGER_SESSION_SLOTS];
    struct manager_greeting greetings[MANAGER_GREETINGS];
    uint64_t serial;              /* of the latest connection */
    hl_manager_snapshot counters; /* only the totals since the start */
    struct {                      /* restores that reported their stages (O1): sums, for means */
        uint64_t count;
        uint64_t stage_ns[HL_STAGE_COUNT];
    } traced;
    /* Arena space given up for good: a failed copy may still be writing it. */
    uint64_t leaked_blocks, leaked_bytes;
    struct hl_plan_block *plan_blocks; /* prepare.c's, kept between operations; free()d by who frees this */
    uint64_t plan_blocks_room;
    uint64_t part_bytes;     /* bound on a plan's part; 0: HL_PLAN_PART_BYTES */
    uint64_t metadata_bytes; /* bound on a plan; 0: HL_PLAN_OPERATION_BYTES */
    int listener;
    int epoll;
    int wake;       /* eventfd: another thread wants the dispatcher's attention */
    int timer;      /* timerfd: maintenance, each second */
    bool listening; /* the listener is watched: there is room for another greeting */
    pthread_t dispatcher;
    bool stopping;
    int64_t started_ns;
    hl_manager *kept_before; /* manager.c: of those that ended with operations in quarantine */
};

/* --- between the files; all are called with the lock held unless they say otherwise --- */

void manager_log(hl_manager *manager, enum hl_manager_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* store.c: space for one block in any arena, evicting unpinned blocks as needed. HL_E_NOSPACE when pins leave
 * none. */
hl_status manager_store_take(hl_manager *manager, uint64_t bytes, uint32_t *arena,
                             struct hl_allocation *allocation, hl_error *err);
void manager_store_give(hl_manager *manager, uint32_t arena, uint64_t allocation_id);
/* Evicts the block that is worth least, and says whose arena has got room. HL_E_NOSPACE as above. */
hl_status manager_store_evict(hl_manager *manager, uint32_t *arena, hl_error *err);

/* greeting.c and session.c */
void manager_session_accept(hl_manager *manager);
/* The channel is closed or broken: `reason` is logged. The process may live on. */
void manager_session_detach(hl_manager *manager, struct manager_session *session, const char *reason);
/* The pidfd fired. */
void manager_session_died(hl_manager *manager, struct manager_session *session);
/* Frees a session without channel, operations and publishes that can have no new ones: its process is dead,
 * or it said BYE, or it has no lease left to restore from. Called after each of those has changed; the
 * session may be gone afterwards. */
void manager_session_settle(hl_manager *manager, struct manager_session *session);
/* Wakes the engine's worker. No effect on a session that has no engine any more. */
void manager_session_notify(struct manager_session *session);

/* requests.c and bindings.c: one received packet of a welcomed session. */
void manager_request(hl_manager *manager, struct manager_session *session, struct hl_packet *packet);
/* A binding that is closing and has nothing left: releases it and answers the request. */
void manager_binding_settle(hl_manager *manager, struct manager_session *session,
                            struct manager_binding *binding);
/* A publish of this binding has its outcome in `slot`, which is FINISHED, and the session has been told
 * through publish_fd: frees the slot for the next publish, counts binding->publishes down and settles binding
 * and session. Called by the publisher's thread with the lock held, once for each publish that
 * manager_publish() accepted; nothing of session or binding is touched after it. */
void manager_publish_replied(hl_manager *manager, struct manager_session *session,
                             struct manager_binding *binding, uint32_t slot);
/* gpus.c: the GPU with this uuid, opened and registered with every arena, its publisher started, when it is
 * new. */
hl_status manager_gpu_get(hl_manager *manager, const unsigned char uuid[16], uint32_t *gpu, hl_error *err);

/* admin.c: the JSON answer to a tool, in a memfd. */
hl_status manager_admin(hl_manager *manager, const struct hl_admin *request, int *json_fd, hl_error *err);

/* grants.c: looks at one marked record and does what its state asks for. */
void manager_grants_look(hl_manager *manager, struct manager_session *session, uint32_t record);
/* Every record that has an owner, and every submitted one: for maintenance after lost notifications. */
void manager_grants_sweep(hl_manager *manager, struct manager_session *session);
/* Revokes what has not been claimed, releases what has drained; with `dead`, quarantines what is active (I7).
 */
void manager_grants_lose(hl_manager *manager, struct manager_session *session, bool dead);
/* A deferred grant may fit now. */
void manager_grants_resume(hl_manager *manager, struct manager_session *session);

/* prepare.c: decodes and validates the descriptor of a record in PREPARING, compiles its plan, consumes its
 * leases. On success *operation owns the pins, the bytes, the plan bytes and a permit. On failure nothing is
 * consumed, except for HL_E_BUDGET of plan bytes, which consumes the leases and releases their sources. */
hl_status manager_prepare(hl_manager *manager, struct manager_session *session, uint32_t record,
                          uint32_t generation, struct manager_operation **operation, hl_error *err);

/* quarantine.c */
void manager_quarantine_add(hl_manager *manager, struct manager_session *session,
                            struct manager_operation *operation);
/* An operator's decision: releases the sources of one quarantined operation. HL_E_NOT_FOUND. */
hl_status manager_quarantine_release(hl_manager *manager, const uint64_t operation[3],
                                     const char *operator_name, hl_error *err);

/* publisher.c: accepts a publish (blocks are copied); the outcome goes to the session's slot. The caller
 * (requests.c) has checked binding, group, pages, slot and exports, and counts the publish when this returns
 * HL_OK; the publisher ends it with manager_publish_replied(). Session and binding live until then. */
hl_status manager_publisher_start(hl_manager *manager, uint32_t gpu, hl_error *err);
hl_status manager_publish(hl_manager *manager, struct manager_session *session,
                          struct manager_binding *binding, const struct hl_publish_message *request,
                          const struct hl_publish_block *blocks, hl_error *err);
/* Without the lock: finishes what was accepted, joins the thread. Called when no session admits any more. */
void manager_publisher_stop(hl_manager *manager, uint32_t gpu);
/* T1: called by the dispatcher each second; warns once a minute of a publish that has run for longer than
 * that. */
void manager_publisher_watch(hl_manager *manager, uint32_t gpu, int64_t now_ns);

#endif
