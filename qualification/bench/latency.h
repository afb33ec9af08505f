/* qualification/bench measures a restore as an engine sees it: a Manager in another process, an engine in
 * this one, and beside each figure what the same bytes cost without Hostlane (the floor) and without a
 * Manager (the executor alone), in the same process and minute.
 *
 * Two cases, of performance.md: p5, one 4 KiB page; p6, 36 layers x 128 pages x 4 KiB through 32 leases of 4
 * blocks. Both have one fused tensor a layer, so that a block has one piece of 4 KiB a layer.
 *
 * Destinations. Each restore has a slot of pages to itself, poisoned before; when all slots are used every
 * byte of them is compared, and they are poisoned again. None of that is inside a measured interval.
 *
 *     latency_main.c     one case after the other        manager_process.c  the Manager in its process
 *     latency_options.c  the command line                world.c            device and host memory of a case
 *     passes.c           the order of what is measured   slots.c            poison, compare
 *     floors.c           raw copies, executor alone      session.c          the engine: publish, restore
 *     samples.c          quantiles                       latency_report.c   JSON and what is printed */
#ifndef QUALIFICATION_BENCH_LATENCY_H
#define QUALIFICATION_BENCH_LATENCY_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "core/arena/arena.h"
#include "core/device/device.h"
#include "core/grant/grant.h"
#include "core/layout/layout.h"
#include "core/transfer/transfer.h"
#include "hostlane/engine.h"

enum {
    LATENCY_PAGE_BYTES = 4096,
    LATENCY_BLOCKS = 128, /* most blocks of a case */
    LATENCY_REWARM = 3    /* unmeasured restores after slots were compared */
};

struct latency_options {
    bool cuda;
    int ordinal;
    uint32_t samples, warmup; /* of each thing measured */
    uint32_t spin_us;         /* of Manager and engine where they spin */
    bool spin_on, spin_off;   /* which of the two are measured */
    bool case_p5, case_p6;
    uint32_t slots; /* 0: by device and case */
    enum hl_route route;
    uint32_t sms;
    bool ascending;     /* destinations in order instead of scattered */
    bool layer_events;  /* a restore records one a layer */
    bool restores_only; /* no floors, no traced pass: to count what restores do */
    const char *json;
    /* Of a process that this program started itself. */
    const char *role, *socket;
};

/* HL_E_INVALID names the argument. *help: only the text is wanted. */
hl_status latency_options_parse(int argc, char **argv, struct latency_options *options, bool *help,
                                hl_error *err);
void latency_options_help(FILE *out);

/* --- manager_process.c --- */

struct latency_manager {
    pid_t pid; /* 0: none */
    int log;   /* read end of its log */
    char folder[64], socket[80];
    char said[4096]; /* the log's beginning */
};
hl_status latency_manager_start(const struct latency_options *options, uint32_t spin_us,
                                struct latency_manager *manager, hl_error *err);
/* HL_E_STATE when it did not end well. */
hl_status latency_manager_stop(struct latency_manager *manager, hl_error *err);
/* The program that becomes the Manager. HL_E_NOT_FOUND. */
hl_status latency_manager_program(char *path, size_t size, hl_error *err);
int latency_manager_role(const struct latency_options *options);

/* --- world.c --- */

struct latency_case {
    const char *name;
    uint32_t layers, blocks, leases;
};
extern const struct latency_case latency_p5, latency_p6;

struct latency_world {
    const struct latency_options *options;
    const struct latency_case *shape;
    hl_device *dev; /* entered on the calling thread */
    hl_layout *layout;
    hl_devptr *tensors; /* a layer */
    hl_devptr flat;     /* what the floor copies to: one piece of all bytes */
    hl_stream copies;   /* the floor's */
    hl_stream ready;    /* idle: handed to restores */
    hl_event *layer_events;
    hl_arena *source; /* the blocks, one after another; what the executor alone copies from */
    hl_registration *source_registration;
    struct hl_allocation *allocations; /* of each block */
    hl_arena *readback;
    hl_registration *readback_registration;
    uint32_t slots,
        used;        /* slot s has pages [blocks * (1 + s), blocks * (2 + s)); before: what is published */
    uint32_t rewarm; /* restores still to come that are not measured */
    uint64_t compared_bytes;
};
hl_status latency_world_open(const struct latency_options *options, const struct latency_case *shape,
                             hl_device *dev, struct latency_world *world, hl_error *err);
void latency_world_close(struct latency_world *world);
uint64_t latency_case_bytes(const struct latency_case *shape);
uint64_t latency_block_bytes(const struct latency_case *shape);

/* --- slots.c --- */

/* Writes the blocks into the pages that are published. */
hl_status latency_fill(struct latency_world *world, hl_error *err);
hl_status latency_poison(struct latency_world *world, hl_error *err);
/* HL_E_CORRUPT when a byte of a used slot is not what was published. Poisons all afterwards. */
hl_status latency_compare(struct latency_world *world, hl_error *err);
/* Where the next operation writes: the page of each block. Compares first when all slots are used. */
hl_status latency_take_slot(struct latency_world *world, uint32_t pages[LATENCY_BLOCKS], hl_error *err);

/* --- one measurement each: nanoseconds --- */

struct latency_sample {
    int64_t ns;       /* the whole */
    int64_t start_ns; /* restore: hl_restore_start() alone; executor: compiling the plan, not part of `ns` */
    int64_t query_ns; /* restore: before it, not part of `ns` */
    uint64_t stage_ns[HL_STAGE_COUNT];
};

/* floors.c: one copy of the case's bytes from registered memory, and synchronising its stream. */
hl_status latency_floor_once(struct latency_world *world, struct latency_sample *sample, hl_error *err);
/* The same plan by the same executor without Manager, worker or shared record. */
hl_status latency_executor_open(struct latency_world *world, hl_transfer **transfer, hl_error *err);
hl_status latency_executor_once(struct latency_world *world, hl_transfer *transfer,
                                struct latency_sample *sample, hl_error *err);

/* session.c */
struct latency_session {
    struct latency_world *world;
    hl_engine *engine;
    hl_binding *binding;
    hl_block_key keys[LATENCY_BLOCKS];
};
hl_status latency_session_open(struct latency_world *world, const char *socket, uint32_t spin_us,
                               struct latency_session *session, hl_error *err);
hl_status latency_session_publish(struct latency_session *session, hl_error *err);
hl_status latency_session_close(struct latency_session *session, hl_error *err);
hl_status latency_restore_once(struct latency_session *session, bool trace, struct latency_sample *sample,
                               hl_error *err);

/* --- passes.c --- */

enum latency_subject { LATENCY_FLOOR, LATENCY_EXECUTOR, LATENCY_RESTORE, LATENCY_TRACED, LATENCY_SUBJECTS };

struct latency_result {
    const struct latency_case *shape;
    uint32_t spin_us;
    uint32_t count; /* of each that was measured */
    struct latency_sample *samples[LATENCY_SUBJECTS];
    uint64_t compared_bytes;
    uint32_t slots;
};
/* A Manager, a session and every pass of one case. */
hl_status latency_measure(const struct latency_options *options, const struct latency_case *shape,
                          hl_device *dev, uint32_t spin_us, struct latency_result *result, hl_error *err);
void latency_result_free(struct latency_result *result);
extern const char *const latency_subject_names[LATENCY_SUBJECTS];

/* --- samples.c --- */

/* Nearest rank, of a field at `offset` (an int64_t or uint64_t) in `count` > 0 samples. */
int64_t latency_quantile(const struct latency_sample *samples, uint32_t count, size_t offset,
                         unsigned percent);

/* --- latency_report.c --- */

void latency_report_head(const struct latency_options *options, const hl_device *dev, FILE *out);
void latency_report_case(const struct latency_result *result, FILE *out);
/* With raw samples, machine, device and the digest of this program. */
hl_status latency_report_json(const struct latency_options *options, const hl_device *dev,
                              const struct latency_result *results, size_t count, hl_error *err);

#endif
