/* What the tests of grants, preparation, quarantine and publishing stand on: a Manager without dispatcher and
 * without other processes. Arenas, index, leases, one software GPU with a publisher, and sessions whose
 * engine the test plays: it moves the records of the same grant memory, writes descriptors through its own
 * mapping of the descriptor memory, and copies what plans say. Test code only.
 *
 * Block contents: block `key` holds world_block_bytes(), wherever it is stored; a device page holds the rows
 * of it that the layout says. Bytes of a stored block that the layout does not write are 0. */
#ifndef MANAGER_MANAGER_TESTING_H
#define MANAGER_MANAGER_TESTING_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/device/software.h"
#include "core/testing/cunit.h"
#include "manager/operation.h"
#include "manager/publisher.h"

enum { WORLD_SESSIONS = 2, WORLD_POISON = 0xa5, WORLD_LOG_BYTES = 8192, WORLD_SPACE = 1 };

struct world_options {
    hl_layout *layout;         /* taken; NULL: world_layout(HL_LAYOUT_SPLIT) of 64 pages */
    uint64_t arena_bytes;      /* of each; 0: 1 MiB */
    uint32_t arenas;           /* 0: 1 */
    uint64_t index_blocks;     /* 0: 4096 */
    uint32_t bank_bytes;       /* of each session's plan bank; 0: all of it */
    uint64_t part_bytes;       /* bound on a plan's part; 0: the Manager's */
    bool publisher;            /* start the GPU's publisher */
    uint64_t bytes_per_second; /* of the device; 0: no throttle */
};

struct world {
    hl_manager *manager;
    hl_device *dev;
    hl_layout *layout; /* of binding 0 of each session; the Manager's binding has a copy */
    hl_descriptors *engine[WORLD_SESSIONS]; /* the engine's mapping */
    hl_devptr tensors[WORLD_SESSIONS][64];
    struct hl_extent extents[WORLD_SESSIONS][HL_GRANT_RECORDS]; /* of descriptors; bytes 0: none */
    hl_stream stream;                                           /* the engines' copies */
    char log[WORLD_LOG_BYTES];                                  /* all lines, cut at its end */
    size_t log_used;
    hl_error err;
};

/* A layout of a small model by kind: 2 layers, pages of 4 tokens. */
hl_layout *world_layout(enum hl_layout_kind kind, enum hl_block_order order, uint32_t pages);

void world_open(struct world *world, const struct world_options *options);
/* Expects that every credit has been returned (I2) and nothing is left on the device, then frees. Sessions
 * that are still there are ended first as by the death of their engine. */
void world_close(struct world *world);
/* Expects that every credit has a live owner (I2), by the Manager's own check. */
void world_check(struct world *world);
/* Expects that nothing is held: no pin, no byte, no permit, no plan byte, no bank space. */
void world_expect_idle(struct world *world);

static inline struct manager_session *world_session(struct world *world, uint32_t session)
{
    return &world->manager->sessions[session];
}

/* --- blocks --- */

/* The bytes of block `key` as stored; `bytes` has block_bytes of the group. */
void world_block_bytes(const struct world *world, uint32_t group, uint64_t key, unsigned char *bytes);
void world_key(uint64_t key, unsigned char hash[HL_KEY_BYTES]);
/* Puts a block where a publish would: reserved, filled, completed. Evicts when it must. */
void world_store(struct world *world, uint32_t group, uint64_t key);
/* The stored bytes; false when it is not present. */
bool world_stored(struct world *world, uint32_t group, uint64_t key, const unsigned char **bytes);

/* Fills the page's rows with those of the block / expects them to be. */
void world_fill_page(struct world *world, uint32_t session, uint32_t group, uint32_t page, uint64_t key);
bool world_page_holds(struct world *world, uint32_t session, uint32_t group, uint32_t page, uint64_t key);

/* --- what an engine does --- */

/* A lease on keys first … first + count - 1; 0 when the first is not present; *hits may be less. */
uint64_t world_query(struct world *world, uint32_t session, uint32_t group, uint64_t first, uint32_t count,
                     uint32_t *hits);
/* FREE → RESERVED with a clean record. Returns the generation. */
uint32_t engine_reserve(struct world *world, uint32_t session, uint32_t record);
/* Writes the descriptor and says that it is complete. */
void engine_submit(struct world *world, uint32_t session, uint32_t record, uint32_t binding,
                   uint32_t lease_count, const uint64_t *leases, const uint32_t *counts,
                   const uint32_t *pages);
/* The same of raw bytes. */
void engine_submit_bytes(struct world *world, uint32_t session, uint32_t record, const void *bytes,
                         uint32_t size);
/* Stores, queries and submits `count` blocks from key `first` on to pages `page`, page + 2, …: a whole
 * request. Returns the generation. */
uint32_t engine_start(struct world *world, uint32_t session, uint32_t record, uint64_t first, uint32_t count,
                      uint32_t page);
bool engine_move(struct world *world, uint32_t session, uint32_t record, enum hl_grant_state from,
                 enum hl_grant_state to);
/* Takes the granted part out of the bank, copies what it says, waits. Expects ACTIVE. */
void engine_copy_part(struct world *world, uint32_t session, uint32_t record);
/* GRANTED → ACTIVE, copy, consumed, → PART_DRAINED or DRAINED (with `status`). */
void engine_run_part(struct world *world, uint32_t session, uint32_t record);
/* Writes the completion and moves ACTIVE → DRAINED. */
void engine_drain(struct world *world, uint32_t session, uint32_t record, hl_status status);
/* REAPED → FREE, and the descriptor's space back. */
void engine_retire(struct world *world, uint32_t session, uint32_t record);
void engine_cancel(struct world *world, uint32_t session, uint32_t record);
struct hl_grant_record *engine_record(struct world *world, uint32_t session, uint32_t record);
/* Writes any word. */
void engine_scribble(struct world *world, uint32_t session, uint32_t record, uint32_t generation,
                     uint32_t state);

/* --- what the dispatcher does --- */

void world_look(struct world *world, uint32_t session, uint32_t record);
void world_sweep(struct world *world, uint32_t session);
void world_engine_dies(struct world *world, uint32_t session);
void world_detach(struct world *world, uint32_t session, bool ended);
/* As requests.c: has blocks first, first + 1, … published from pages page, page + 1, … through `slot`. */
void world_publish(struct world *world, uint32_t session, uint32_t slot, uint32_t group, uint64_t first,
                   uint32_t count, uint32_t page);
/* The same of any keys, with the Manager's lock held. */
hl_status world_publish_locked(struct world *world, uint32_t session, uint32_t slot, uint32_t group,
                               const uint64_t *keys, uint32_t count, uint32_t page);
/* Waits for the outcome and gives the slot back. */
struct hl_publish_slot world_publish_outcome(struct world *world, uint32_t session, uint32_t slot);

uint32_t world_state(struct world *world, uint32_t session, uint32_t record);
#define WORLD_EXPECT_STATE(world, session, record, expected)                                                 \
    do {                                                                                                     \
        uint32_t state_ = world_state(world, session, record);                                               \
        if (state_ != (expected))                                                                            \
            fprintf(stderr, "%s:%d: record %u is %s, not %s\n", __FILE__, __LINE__, (unsigned)(record),      \
                    hl_grant_state_name(state_), hl_grant_state_name(expected));                             \
        CU_ASSERT_EQUAL(state_, (expected));                                                                 \
    } while (0)

#endif
