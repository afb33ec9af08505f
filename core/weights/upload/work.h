/* What the files of this room share.
 *
 * An upload is a list of pieces, in the order of the caller's tensors, that pass through three hands: a
 * worker prepares a piece (STAGING: reads it into a pinned slot; REGISTERED: pins its pages), the submitter
 * hands its copies to the device and records the events of the tensors that end in it, and the retirer waits
 * until the device has read it and lets its window go. Workers take pieces in order and finish them in any
 * order; they are submitted and retired in order. A window is what bounds them: a slot of the ring, or the
 * right to pin a chunk. check.c makes targets of destinations, plan.c pieces of targets, pipeline.c has the
 * three hands, staging.c and registered.c say what preparing is, upload.c starts, waits and ends. */
#ifndef CORE_WEIGHTS_UPLOAD_WORK_H
#define CORE_WEIGHTS_UPLOAD_WORK_H

#include <pthread.h>

#include "core/base/error.h"
#include "core/weights/upload/upload.h"

/* Most parts of one piece. */
#define HL_UPLOAD_PARTS 1024u

/* Where a part that does not follow its predecessor begins in a slot: a multiple of this. */
#define HL_UPLOAD_ALIGN 256u

/* Most windows on the REGISTERED route, and most where pieces have pages in common. */
#define HL_UPLOAD_WINDOWS 4096u
#define HL_UPLOAD_CHUNKS 8u

/* No earlier piece. */
#define HL_UPLOAD_NONE SIZE_MAX

/* A destination that was found good. */
struct hl_upload_target {
    hl_devptr dst;
    uint64_t bytes;
    uint64_t offset; /* of the tensor in its region, which is its file */
    uint32_t region;
    hl_event event; /* or NULL */
};

/* Bytes of one file that go to one place. */
struct hl_upload_part {
    hl_devptr dst;
    uint64_t offset;
    uint64_t bytes;
    uint64_t place; /* STAGING: in its slot */
    uint32_t region;
};

struct hl_upload_piece {
    size_t part, part_count;     /* of plan.parts */
    size_t target, target_count; /* the targets whose last byte it holds */
    uint64_t bytes;              /* STAGING: used of the slot */
    uint64_t begin, end;         /* REGISTERED: whole pages of `region` */
    uint32_t region;
    size_t
        after; /* REGISTERED: this earlier piece has a page in common and must have been retired, or NONE */
    uint32_t window; /* while it is on its way */
    bool prepared;   /* upload.lock */
};

struct hl_upload_plan {
    struct hl_upload_part *parts;
    size_t part_count, part_capacity;
    struct hl_upload_piece *pieces;
    size_t piece_count, piece_capacity;
    uint64_t bytes; /* in all */
    bool disjoint;  /* REGISTERED: no page is in two pieces */
};

struct hl_upload_window {
    hl_event event; /* recorded after the window's copies */
    void *pinned;   /* what is registered for it, or NULL */
    size_t pinned_bytes;
};

struct hl_upload_route;

struct hl_upload {
    /* Constant while threads run. */
    hl_device *dev;
    hl_weight_lease *lease;
    hl_weight_upload_options options; /* no zeros left */
    const struct hl_upload_route *route;
    struct hl_upload_target *targets;
    size_t target_count;
    struct hl_upload_plan plan;
    hl_stream stream;
    hl_event ready; /* of ready_stream, or NULL */
    int64_t start_ns;
    unsigned char *ring; /* STAGING: slot i at ring + i * slot_bytes */
    void *ring_mapping;
    size_t ring_mapped;
    struct hl_upload_window *windows; /* each belongs to the piece that holds it */
    uint32_t window_count;
    struct hl_copy *copies; /* the submitter's, HL_UPLOAD_PARTS of them */
    pthread_t coordinator;

    pthread_mutex_t lock;
    pthread_cond_t may_take;  /* for workers */
    pthread_cond_t prepared;  /* for the submitter */
    pthread_cond_t submitted; /* for the retirer */
    bool started;             /* no thread is being started any more */
    pthread_cond_t progress;  /* for waiting callers: enqueued or ended */
    uint32_t *free_windows;   /* a ring of window_count places, taken from its head */
    uint32_t free_head, free_count;
    size_t taken_count, submitted_count, retired_count; /* of pieces, in order */
    bool submitter_done;
    bool touched;   /* a copy was handed to the device, accepted or not */
    hl_error error; /* the first failure, or status HL_OK; once set, no piece is taken or submitted */
    bool enqueued, ended;
    hl_weight_upload_result result; /* final when ended */

    struct hl_upload *next_kept; /* upload.c */
};

struct hl_upload_route {
    hl_weight_upload_route name;
    /* On a worker thread, with the device entered. */
    hl_status (*prepare)(hl_upload *upload, struct hl_upload_piece *piece, hl_error *err);
    /* The host address of a part, once prepared. */
    uint64_t (*source)(const hl_upload *upload, const struct hl_upload_piece *piece,
                       const struct hl_upload_part *part);
    /* On the retirer's thread, with the device entered, when the device has read the piece. */
    hl_status (*retire)(hl_upload *upload, struct hl_upload_piece *piece, hl_error *err);
    /* Whether the window retired last is taken first (its slot may still be in a cache), or last (what is
     * pinned for it stays so for as long as other windows suffice). */
    bool reuse_latest;
};

/* options.c: refuses what is wrong, and fills in what is 0. */
hl_status hl_upload_options_resolve(const hl_weight_upload_options *options,
                                    hl_weight_upload_options *resolved, hl_error *err);
/* Copying threads where they are not given and `cores` may be used. */
uint32_t hl_upload_threads_for(uint32_t cores);

/* check.c: *targets, one a destination in the same order, is freed by the caller. */
hl_status hl_upload_check(const hl_weight_lease *lease, const hl_weight_destination *destinations,
                          size_t count, struct hl_upload_target **targets, hl_error *err);

/* plan.c. The options are resolved. On failure nothing is kept. */
hl_status hl_upload_plan_staging(const hl_weight_upload_options *options,
                                 const struct hl_upload_target *targets, size_t count,
                                 struct hl_upload_plan *plan, hl_error *err);
hl_status hl_upload_plan_registered(const hl_weight_upload_options *options,
                                    const struct hl_upload_target *targets, size_t count,
                                    struct hl_upload_plan *plan, hl_error *err);
void hl_upload_plan_free(struct hl_upload_plan *plan);
/* The pages pinned by one piece of the REGISTERED route at most. */
uint64_t hl_upload_chunk_bytes(const hl_weight_upload_options *options);

/* staging.c. open() maps the ring for upload->window_count slots and pins the first, with the device entered;
 * close() undoes it when no window is pinned any more. */
extern const struct hl_upload_route hl_upload_staging;
hl_status hl_upload_ring_open(hl_upload *upload, hl_error *err);
void hl_upload_ring_close(hl_upload *upload);

/* length.c: HL_E_CORRUPT when the file is shorter than it was when it was validated, saying where it ends. */
hl_status hl_upload_check_length(const hl_weight_region *region, hl_error *err);

/* registered.c. HL_OK when the device reads the pages of every region in place; the device is entered. */
extern const struct hl_upload_route hl_upload_registered;
hl_status hl_upload_registered_possible(hl_device *dev, const hl_weight_lease *lease, hl_error *err);

/* pipeline.c: moves all pieces, on the calling thread and others, with the device entered. Returns when no
 * other thread is left and nothing more will be submitted; upload->error says how it went. */
void hl_upload_run(hl_upload *upload);
/* Keeps the first failure and stops the hands. */
void hl_upload_fail(hl_upload *upload, const hl_error *err);

#endif
