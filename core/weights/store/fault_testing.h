/* What the tests of failing steps share: the golden artifact's domain, identity and producer, and the board
 * that this process hits. Links with the *_faults twins only. */
#ifndef CORE_WEIGHTS_STORE_FAULT_TESTING_H
#define CORE_WEIGHTS_STORE_FAULT_TESTING_H

#include "core/weights/store/store_testing.h"
#include "faults/testing.h"

enum { HL_FAULT_BENCH_RULES = 8 };

struct hl_fault_bench {
    struct hl_store_fixture fixture; /* on /dev/shm, its store open */
    hl_fault_board *board;           /* in use by this process */
    hl_weight_identity *identity;
    struct hl_fake_producer fake;
    char points[HL_FAULT_BENCH_RULES][64]; /* what each rule was armed at */
};

void hl_fault_bench_open(struct hl_fault_bench *bench);
void hl_fault_bench_close(struct hl_fault_bench *bench);

/* get_or_build, and lets go of the lease. */
hl_status hl_fault_bench_get(struct hl_fault_bench *bench, hl_weight_origin *origin,
                             hl_weight_failure *failure);

/* hl_fault_arm() on the bench's board. */
unsigned hl_fault_bench_arm(struct hl_fault_bench *bench, const char *point, uint32_t nth,
                            hl_fault_action action, uint64_t argument);
/* Asserts that such a rule fired, naming its point if it did not, and disarms it. */
void hl_fault_bench_disarm(struct hl_fault_bench *bench, unsigned rule);

#endif
