#include "core/weights/store/fault_testing.h"

#include <stdio.h>

#include "core/testing/cunit.h"

void hl_fault_bench_open(struct hl_fault_bench *bench)
{
    hl_fixture_open(&bench->fixture, HL_FIXTURE_SHM);
    bench->identity = hl_fixture_identity(2, 0);
    hl_fake_producer_init(&bench->fake, bench->identity);
    hl_fixture_store(&bench->fixture);
    bench->board = hl_fault_board_create();
    hl_fault_use_board(bench->board);
}

void hl_fault_bench_close(struct hl_fault_bench *bench)
{
    hl_fault_use_board(NULL);
    hl_fault_board_free(bench->board);
    hl_weight_identity_free(bench->identity);
    hl_fixture_close(&bench->fixture);
}

hl_status hl_fault_bench_get(struct hl_fault_bench *bench, hl_weight_origin *origin,
                             hl_weight_failure *failure)
{
    hl_weight_lease *lease = NULL;
    const hl_status status =
        hl_fixture_get(&bench->fixture, bench->identity, &bench->fake, origin, &lease, failure);
    hl_weight_lease_release(lease);
    return status;
}

unsigned hl_fault_bench_arm(struct hl_fault_bench *bench, const char *point, uint32_t nth,
                            hl_fault_action action, uint64_t argument)
{
    const unsigned rule = hl_fault_arm(bench->board, point, nth, action, argument);
    CU_ASSERT_TRUE_FATAL(rule < HL_FAULT_BENCH_RULES);
    snprintf(bench->points[rule], sizeof bench->points[rule], "%s", point);
    return rule;
}

void hl_fault_bench_disarm(struct hl_fault_bench *bench, unsigned rule)
{
    const bool fired = hl_fault_fired(bench->board, rule) > 0;
    if (!fired)
        fprintf(stderr, "%s was not reached\n", bench->points[rule]);
    CU_ASSERT_TRUE(fired);
    hl_fault_disarm(bench->board, rule);
}
