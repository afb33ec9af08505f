/* From a weight lease to a GPU: the consumer of hostlane/weights.h that needs the CUDA driver (loaded at run
 * time). */
#ifndef HOSTLANE_WEIGHTS_UPLOAD_H
#define HOSTLANE_WEIGHTS_UPLOAD_H

#include "hostlane/weights.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hl_weight_upload hl_weight_upload; /* one upload in progress */

typedef enum hl_weight_upload_route {
    HL_WEIGHT_UPLOAD_AUTO,       /* STAGING on every file system */
    HL_WEIGHT_UPLOAD_STAGING,    /* copied by threads into a ring of pinned slots */
    HL_WEIGHT_UPLOAD_REGISTERED, /* tmpfs: pinned in place. Slower, as a driver pins one call after another,
                                    but a quarter of the CPU time. HL_E_UNSUPPORTED where it cannot be */
} hl_weight_upload_route;

typedef struct hl_weight_upload_options {
    size_t size; /* set by hl_weight_upload_options_init() */
    int device;  /* CUDA ordinal; 0 */
    hl_weight_upload_route route;
    uint64_t staging_bytes;        /* pinned memory of the ring; 0: 64 MiB */
    uint64_t slot_bytes;           /* of one slot, a multiple of 4096; 0: 2 MiB */
    uint64_t register_chunk_bytes; /* REGISTERED: pinned at once; 0: 1 GiB, at most HL_ARENA_CHUNK_BYTES */
    uint64_t register_piece_bytes; /* of them, pinned by one call of one thread, a multiple of 4096; 0: an
                                      eighth of register_chunk_bytes, at most 64 MiB */
    uint32_t copy_threads;         /* 0: three quarters of the cores, at least 1, at most 12 */
    void *ready_stream; /* CUstream whose work so far must finish before the first byte is written; NULL: none
                         */
    bool ready_stream_given; /* so that the legacy default stream, which is NULL, can be named */
} hl_weight_upload_options;
HL_API void hl_weight_upload_options_init(hl_weight_upload_options *options);

typedef struct hl_weight_destination {
    const char *tensor;  /* its name in the lease */
    uint64_t device_ptr; /* where its bytes go; at least the tensor's `bytes` of device memory */
    uint64_t bytes;      /* of room there; HL_E_RANGE when the tensor is larger */
    void *event;         /* CUevent recorded after the tensor's last byte, or NULL; each given once */
} hl_weight_destination;

typedef struct hl_weight_upload_result {
    uint64_t bytes;
    hl_weight_upload_route route; /* the one taken */
    int64_t first_copy_ns;        /* from the start to the first submitted copy, host clock */
    int64_t first_tensor_ns;      /* to when the host saw that a tensor had arrived; 0: none has */
    int64_t enqueued_ns;          /* to the last submitted copy */
    int64_t drained_ns;           /* to the end of the last copy */
    bool drained; /* true: the destinations may be reused. false: some copy may still write to them */
} hl_weight_upload_result;

/* Checks every destination (unknown or repeated tensor, too little room, overlap, a repeated event:
 * HL_E_INVALID, HL_E_RANGE, HL_E_OVERLAP; nothing started), retains the lease until drained, and starts.
 * Tensors are sent in the order given. The lease may be released by the caller at once. Names and arrays are
 * copied. The caller's CUDA context is preserved. HL_E_NO_DEVICE, HL_E_DEVICE, HL_E_NOMEM, HL_E_UNSUPPORTED.
 */
HL_API hl_status hl_weight_upload_start(hl_weight_lease *lease, const hl_weight_upload_options *options,
                                        const hl_weight_destination *destinations, size_t count,
                                        hl_weight_upload **upload, hl_error *err);

/* Returns when every event has been recorded, so that streams may wait on them. HL_E_TIMEOUT changes nothing.
 * timeout_ns < 0: no limit. */
HL_API hl_status hl_weight_upload_wait_enqueued(hl_weight_upload *upload, int64_t timeout_ns, hl_error *err);

/* Returns when every byte has arrived, or the upload failed and what was accepted has finished. *result (may
 * be NULL) is filled unless HL_E_TIMEOUT. HL_E_CORRUPT: the file ended before its manifest says (a truncation
 * after validation). */
HL_API hl_status hl_weight_upload_wait(hl_weight_upload *upload, int64_t timeout_ns,
                                       hl_weight_upload_result *result, hl_error *err);

/* Waits for what was accepted, then lets go of everything. NULL is allowed. */
HL_API void hl_weight_upload_close(hl_weight_upload *upload);

#ifdef __cplusplus
}
#endif

#endif
