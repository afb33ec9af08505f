/* The engine side of Hostlane: an inference engine's worker process links this library, connects to the
 * node's Manager, registers its KV tensors, asks which blocks are resident, restores them with its own GPU
 * work, and publishes new ones.
 *
 * Ownership. What a function creates is closed with its partner; NULL is accepted by every close. Tensors and
 * events that are handed in stay the caller's; where an owner and a release callback come along, the library
 * keeps the owner until the last device work that may touch it has finished and then calls release(owner)
 * once, on a thread of its own.
 *
 * Destination pages. The library never knows which pages the engine's scheduler has given to whom. The caller
 * keeps them reserved from hl_restore_start() until hl_restore_poll() or hl_restore_wait() reports the
 * outcome; a timeout or a closed handle changes nothing about that.
 *
 * Threads. Every function may be called from any thread. Several engines may live in one process. Waiting
 * calls block only their caller. Nothing here prints; the library aborts the process in one case: accepted
 * device work whose completion cannot be established (a page would otherwise be reused under a copy).
 *
 * fork. A child must not use or close what its parent opened. */
#ifndef HOSTLANE_ENGINE_H
#define HOSTLANE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hostlane/layout.h"
#include "hostlane/limits.h"
#include "hostlane/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hl_engine hl_engine;   /* one session with a Manager */
typedef struct hl_binding hl_binding; /* one registered instance, rank and device */
typedef struct hl_lease hl_lease;     /* resident blocks, pinned by a query */
typedef struct hl_publish hl_publish; /* one publish in progress */
typedef struct hl_restore hl_restore; /* a handle on one operation */
struct hl_device;                     /* core/device/device.h: only for devices other than CUDA's */

enum hl_log_level { HL_LOG_DEBUG, HL_LOG_INFO, HL_LOG_WARNING, HL_LOG_ERROR };
typedef void (*hl_log_callback)(void *user, enum hl_log_level level, const char *text);

typedef struct hl_engine_options {
    size_t size;             /* set by hl_engine_options_init() */
    const char *socket_path; /* the Manager's socket */
    const char *name;        /* shown by the Manager's tools; printable, at most 63 bytes */
    uint32_t spin_us;        /* a worker watches its records so long before it sleeps; 0: sleeps at once */
    hl_log_callback log;     /* may be NULL */
    void *log_user;
} hl_engine_options;
HL_API void hl_engine_options_init(hl_engine_options *options);

/* Connects and starts the session's threads. HL_E_PEER (nobody listens), HL_E_PERMISSION (another user's
 * Manager), HL_E_VERSION (both numbers in the text), HL_E_BUDGET (the Manager has HL_SESSIONS sessions). */
HL_API hl_status hl_engine_connect(const hl_engine_options *options, hl_engine **engine, hl_error *err);

/* Stops admission, waits for accepted operations and publishes, unregisters what is registered, ends the
 * session. */
HL_API void hl_engine_close(hl_engine *engine);

/* Readable when a restore or a publish of this engine has finished; stays so until
 * hl_engine_completion_clear(). For the caller's poll loop; owned by the engine. */
HL_API int hl_engine_completion_fd(const hl_engine *engine);
HL_API void hl_engine_completion_clear(hl_engine *engine);

/* HL_OK while the Manager lives and has not dropped the session; else HL_E_PEER or HL_E_PROTOCOL with the
 * reason. Results of operations that were granted before stay readable. */
HL_API hl_status hl_engine_health(hl_engine *engine, hl_error *err);

/* --- bindings --- */

typedef struct hl_tensor {
    const char *name;
    uint64_t device_ptr; /* base of the tensor: the start of the layout's tensor of the same index */
    uint64_t bytes;
    void *owner; /* kept until the last work that may touch the tensor has finished; may be NULL */
    void (*release)(void *owner);
} hl_tensor;

typedef struct hl_context_batch {
    size_t size;          /* set by hl_context_batch_init() */
    const char *instance; /* names the engine instance; a second live registration of the same instance, rank
                             and device is HL_E_BUSY */
    uint32_t rank;
    const char *model; /* for people */
    unsigned char
        model_digest[32];     /* of what decides the meaning of the bytes: weights, adapters, RoPE settings */
    const hl_layout *layout;  /* validated and copied */
    const hl_tensor *tensors; /* layout->tensor_count of them */
    struct hl_device *device; /* NULL: CUDA device `cuda_ordinal`, through its primary context */
    int cuda_ordinal;
    const char *route; /* "auto", "direct" or "kernel"; NULL: "auto" */
    uint32_t sm_cap;   /* SMs that the gather kernel may take; 0: 4 */
} hl_context_batch;
HL_API void hl_context_batch_init(hl_context_batch *batch);

/* Registers: exports the tensors to the Manager (for publishing), maps and registers the Manager's arenas
 * once for each GPU, and starts the native worker. On failure no owner is kept and no release is called. */
HL_API hl_status hl_engine_register(hl_engine *engine, const hl_context_batch *batch, hl_binding **binding,
                                    hl_error *err);

/* Stops admission, waits for accepted operations to drain and publishes to finish, releases the owners. The
 * binding is gone afterwards, also when the Manager could not be told (HL_E_PEER). */
HL_API hl_status hl_engine_unregister(hl_binding *binding, hl_error *err);

/* --- queries --- */

typedef struct hl_block_key {
    unsigned char
        hash[HL_KEY_BYTES]; /* the engine's block hash, zero-padded; the namespace is added by the binding */
} hl_block_key;

typedef struct hl_query_options {
    size_t size;     /* set by hl_query_options_init() */
    uint32_t group;  /* storage group */
    uint32_t ttl_ms; /* 0: the Manager's default */
} hl_query_options;
HL_API void hl_query_options_init(hl_query_options *options);

/* Which of `keys`, taken in order, are resident: the longest prefix is pinned. A lease without hits is HL_OK
 * too. HL_E_BUDGET when the session has reserved as many bytes as it may. `options` may be NULL. */
HL_API hl_status hl_query(hl_binding *binding, const hl_block_key *keys, size_t count,
                          const hl_query_options *options, hl_lease **lease, hl_error *err);
HL_API size_t hl_lease_hits(const hl_lease *lease);
HL_API uint64_t hl_lease_bytes(const hl_lease *lease);
/* 0: not resident (also past the hits), 1: in DRAM. */
HL_API int hl_lease_residency(const hl_lease *lease, size_t index);
/* Gives the lease back; a lease that a restore has consumed is only freed. */
HL_API void hl_lease_release(hl_lease *lease);

/* --- publishing --- */

typedef struct hl_publish_request {
    size_t size; /* set by hl_publish_request_init() */
    uint32_t group;
    const hl_block_key *keys;
    const uint32_t *pages; /* the page that holds the block of the same index; copied */
    size_t count;
    void *producer_stream; /* its work at the time of the call must finish before the pages are read */
    bool has_producer_stream;
} hl_publish_request;
HL_API void hl_publish_request_init(hl_publish_request *request);

typedef struct hl_publish_result {
    uint64_t stored;  /* blocks that became resident */
    uint64_t present; /* blocks that were resident or being published already */
    uint64_t bytes;
} hl_publish_result;

/* Hands the blocks to the Manager's worker. The pages must keep their bytes until the outcome is known. */
HL_API hl_status hl_publish_start(hl_binding *binding, const hl_publish_request *request,
                                  hl_publish **publish, hl_error *err);
/* HL_PENDING, or the outcome: HL_E_NOSPACE when not all blocks fitted (*result says how many did). */
HL_API hl_status hl_publish_poll(hl_publish *publish, hl_publish_result *result, hl_error *err);
/* The same, waiting; HL_E_TIMEOUT changes nothing. timeout_ns < 0: for ever. */
HL_API hl_status hl_publish_wait(hl_publish *publish, int64_t timeout_ns, hl_publish_result *result,
                                 hl_error *err);
HL_API void hl_publish_close(hl_publish *publish); /* the publish goes on; only the handle goes */

/* --- restoring --- */

typedef struct hl_restore_source {
    hl_lease *lease;       /* consumed once the Manager has validated the request */
    const uint32_t *pages; /* destination page of the lease's first `count` blocks; copied */
    size_t count;          /* 1 to the lease's hits */
} hl_restore_source;

typedef struct hl_restore_request {
    size_t size;                      /* set by hl_restore_request_init() */
    const hl_restore_source *sources; /* leases of this binding, no lease twice */
    size_t source_count;
    void *ready_stream; /* CUstream whose earlier work must finish before the pages may be written */
    bool has_ready_stream;
    void *const *layer_events; /* CUevent, one a registered layer, live and distinct; or NULL */
    void *events_owner;        /* kept until the operation has drained; may be NULL */
    void (*release_events)(void *owner);
    bool trace; /* take the six stage clocks */
} hl_restore_request;
HL_API void hl_restore_request_init(hl_restore_request *request);

typedef struct hl_restore_result {
    hl_status status; /* HL_OK: every byte has arrived */
    bool untouched;   /* nothing was submitted: the pages hold what they held */
    uint64_t bytes;
    uint64_t stage_ns[6]; /* cumulative from hl_restore_start(): ready, dispatched, dequeued, claimed,
                             enqueued, drained; all zero without `trace` */
} hl_restore_result;

/* Starts an operation. Refused without any effect: HL_E_INVALID, HL_E_RANGE, HL_E_STATE (lease of another
 * binding, closed binding), HL_E_BUDGET (HL_GRANT_RECORDS operations pending), HL_E_DEVICE (the ready stream
 * reports an error). */
HL_API hl_status hl_restore_start(hl_binding *binding, const hl_restore_request *request,
                                  hl_restore **restore, hl_error *err);
/* Returns HL_OK when every layer's event has been recorded, so that the consumer may enqueue its waits, or
 * the failure. It says nothing about completion. timeout_ns < 0: for ever; HL_E_TIMEOUT changes nothing. */
HL_API hl_status hl_restore_wait_enqueued(hl_restore *restore, int64_t timeout_ns, hl_error *err);
/* HL_PENDING, or the outcome of the whole operation: result->status, with the reason in *err. */
HL_API hl_status hl_restore_poll(hl_restore *restore, hl_restore_result *result, hl_error *err);
HL_API hl_status hl_restore_wait(hl_restore *restore, int64_t timeout_ns, hl_restore_result *result,
                                 hl_error *err);
/* Asks for cancellation: an operation that has not been granted ends with HL_E_CANCELLED and untouched pages;
 * a granted one goes on. The outcome is reported as usual. */
HL_API void hl_restore_cancel(hl_restore *restore);
HL_API void hl_restore_close(hl_restore *restore); /* the operation goes on; only the handle goes */

#ifdef __cplusplus
}
#endif

#endif
