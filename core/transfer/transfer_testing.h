/* What the tests of the executor stand on: a device, two registered arenas with blocks of known bytes,
 * poisoned tensors laid out by a hand-made layout, and a naive copier that says what the tensors must hold
 * afterwards. Test code only.
 *
 * The device is that of HOSTLANE_TEST_DEVICE ("software", the default, or "cuda"), or the software device
 * where the test needs its controls. There a checker sees every copy: its source must lie in an allocation of
 * a block that is being restored, its destination in a tensor; what it refuses is counted by the device as a
 * violation. */
#ifndef CORE_TRANSFER_TRANSFER_TESTING_H
#define CORE_TRANSFER_TRANSFER_TESTING_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/device/software.h"
#include "core/testing/cunit.h"
#include "core/transfer/executor.h"

enum { RIG_ARENAS = 2, RIG_POISON = 0xa5 };

enum rig_tensors { RIG_SPLIT, RIG_CONTIGUOUS, RIG_PAGE_FIRST };

/* K and V of each layer, `tokens` rows of `row_bytes` a page. Layer l is in group l % groups. */
struct rig_shape {
    uint32_t layers;
    uint32_t pages;  /* of each group on the device */
    uint32_t blocks; /* stored, of each group; at most pages */
    uint32_t tokens;
    uint32_t row_bytes;
    uint32_t groups;
    enum rig_tensors tensors;
    bool token_major; /* a stored block holds, token by token, the rows of all components */
    uint32_t gap;     /* bytes between device pages */
    uint32_t skew;    /* bytes before a component's page 0 */
};

struct rig_options {
    struct rig_shape shape;
    uint64_t seed;
    uint64_t chunk_bytes; /* registration chunks of the arenas at least; 0: a few blocks each */
    bool software;        /* needs the software device, with its checker */
    bool single_step;
};

struct rig {
    hl_device *dev;
    struct rig_shape shape;
    hl_random random;
    hl_layout *layout;
    hl_arena *arenas[RIG_ARENAS];
    hl_registration *registrations[RIG_ARENAS];
    struct hl_tensor_binding *tensors;
    unsigned char **expected;     /* what each tensor must hold */
    hl_event *events;             /* one a layer */
    struct hl_plan_block *blocks; /* all stored blocks: group by group, page unset until rig_compile() */
    uint32_t block_count;
    struct hl_plan_identity identity;
    hl_transfer *transfer;
    hl_plan *plan;

    pthread_mutex_t lock; /* guards what the checker reads */
    bool *allowed;        /* a block's allocation may be read */
    bool whole_arenas; /* any byte of the arenas may be read: for hostile plans that name other allocations */
    bool keep_allowed; /* rig_compile() allows its blocks in addition: an earlier plan is still at work */
};

/* Opens everything but the executor and the plan; ends the case when it cannot. */
void rig_open(struct rig *rig, const struct rig_options *options);
void rig_close(struct rig *rig);

/* Options for the rig's tensors and arenas, to be changed by the test. */
struct hl_transfer_options rig_transfer_options(struct rig *rig, enum hl_route route);
void rig_open_transfer(struct rig *rig, enum hl_route route);
void rig_close_transfer(struct rig *rig);

/* Compiles a plan of `count` blocks of each group in `groups` (a bit each) to random pages, or, when
 * `ordered`, block i to page i; lets the checker allow their allocations, and updates `expected`. part_bytes
 * as in hl_plan_request. Replaces the rig's plan; the identity's generation is raised. */
void rig_compile(struct rig *rig, uint32_t groups, uint32_t count, bool ordered, uint64_t part_bytes);

hl_operation *rig_start(struct rig *rig);
/* Submits part `part` of the plan from a private copy that is freed before this returns. */
hl_status rig_submit_part(struct rig *rig, hl_operation *operation, size_t part, hl_error *err);
/* Start, all parts, drain, close; expects success. */
void rig_restore(struct rig *rig);

/* Whether every byte of every tensor is as expected. */
bool rig_tensors_match(struct rig *rig);
/* Poisons the tensors, and `expected` too. */
void rig_poison(struct rig *rig);
/* The device's bytes of a tensor, read through the software device's back door: no stream is touched. */
void rig_peek(struct rig *rig, uint32_t tensor, unsigned char *bytes);

/* A private, 8-byte aligned copy of a part; free() it. */
void *rig_copy_part(struct rig *rig, size_t part, size_t *size);

struct hl_software_counts rig_counts(struct rig *rig);

/* Whether this thread is inside a device's context: what the executor must leave as it found it. */
bool rig_is_entered(struct rig *rig);

#endif
