/* The victim of late_writes.c: a process that opens device memory of another and has the device write to it
 * until it is killed. */
#ifndef QUALIFICATION_INFLIGHT_WRITER_H
#define QUALIFICATION_INFLIGHT_WRITER_H

#include "qualification/inflight/marks.h"
#include "qualification/restore/process.h"

int writer_role(int channel);
#define WRITER_ROLE                                                                                          \
    {                                                                                                        \
        .name = "writer", .act = writer_role                                                                 \
    }

struct writer_scale {
    bool rehearsal;
    uint64_t bytes;         /* of the memory, and of each of the two sources */
    uint32_t passes, every; /* copies of all of it, and from mark to mark */
    uint32_t repetitions;   /* 0: the program's */
    uint64_t speed;         /* bytes a second of the rehearsal's streams; a pass of it takes long, too */
    int64_t watch_ns;       /* how long to look after the reap, or after the last change */
};
struct writer_scale writer_scale(void);

/* Host memory that the test makes once and every victim has the device read: two different contents. */
void writer_make_sources(const struct writer_scale *scale);
void writer_drop_sources(void);

/* Starts a victim and returns when all of its passes have been submitted. */
void writer_start(struct process *victim, const struct hl_ipc_export *memory, bool kernel);

#endif
