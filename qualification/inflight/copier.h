/* An engine whose restores carry progress marks, in a process of its own. Its world is as large as the device
 * asks for: on a GPU a restore is seconds of copying, on the software device it stands at a gate instead. */
#ifndef QUALIFICATION_INFLIGHT_COPIER_H
#define QUALIFICATION_INFLIGHT_COPIER_H

#include "qualification/inflight/marks.h"
#include "qualification/restore/process.h"
#include "qualification/restore/world.h"

int copier_role(int channel);
#define COPIER_ROLE                                                                                          \
    {                                                                                                        \
        .name = "copier", .act = copier_role                                                                 \
    }

struct copier_scale {
    struct world_options world;
    uint64_t block_bytes;
    uint32_t blocks; /* that a restore moves, to pages 1 … blocks; the world has two pages more */
    struct marks_plan plan;
};
struct copier_scale copier_scale(void);

/* Connects to the Manager and registers; `route` is "direct" or "kernel". */
void copier_start(struct process *copier, const char *instance, const char *route);
void copier_publish(struct process *copier, uint64_t first, uint32_t count);
/* Starts the restore of `blocks` blocks from `first` on, with marks; returns before it is claimed. */
void copier_begin(struct process *copier, uint64_t first);

/* What the engine says of it. */
struct copier_outcome {
    hl_status status;
    bool exact;                   /* every byte of its tensors, also those that nobody should have touched */
    uint32_t progress, submitted; /* when the outcome had been returned */
    bool was_drained;             /* and the record was DRAINED, with the generation of the restore */
    uint64_t bytes;
    int64_t returned_ns; /* CLOCK_MONOTONIC */
    char text[240];
};
void copier_finish(struct process *copier, struct copier_outcome *outcome);
/* Restores without marks, and compares every byte. */
void copier_restore(struct process *copier, uint64_t first, uint32_t count, uint32_t at);
/* Whether its tensors still hold what they held. */
bool copier_matches(struct process *copier);
void copier_end(struct process *copier);

#endif
