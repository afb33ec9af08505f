/* Quantiles by nearest rank. */
#include <stddef.h>

#include "core/testing/cunit.h"
#include "qualification/bench/latency.h"

enum { COUNT = 150 };
static struct latency_sample samples[COUNT];

/* 150, 149, … 1 in one field, ten times that in another. */
static void fill(void)
{
    for (int i = 0; i < COUNT; i++) {
        samples[i] = (struct latency_sample){.ns = COUNT - i};
        samples[i].stage_ns[HL_STAGE_DRAINED] = 10ull * (uint64_t)(COUNT - i);
    }
}

static void a_quantile_is_the_sample_of_the_nearest_rank(void)
{
    const size_t ns = offsetof(struct latency_sample, ns);
    fill();
    CU_ASSERT_EQUAL(latency_quantile(samples, COUNT, ns, 0), 1);
    CU_ASSERT_EQUAL(latency_quantile(samples, COUNT, ns, 50), 75);
    CU_ASSERT_EQUAL(latency_quantile(samples, COUNT, ns, 95), 143);
    CU_ASSERT_EQUAL(latency_quantile(samples, COUNT, ns, 99), 149);
    CU_ASSERT_EQUAL(latency_quantile(samples, COUNT, ns, 100), 150);
}

static void a_quantile_is_of_the_field_that_is_named(void)
{
    const size_t drained = offsetof(struct latency_sample, stage_ns) + HL_STAGE_DRAINED * sizeof(uint64_t);
    fill();
    CU_ASSERT_EQUAL(latency_quantile(samples, COUNT, drained, 50), 750);
}

static void one_sample_is_every_quantile(void)
{
    const struct latency_sample one = {.ns = 7};
    CU_ASSERT_EQUAL(latency_quantile(&one, 1, offsetof(struct latency_sample, ns), 50), 7);
    CU_ASSERT_EQUAL(latency_quantile(&one, 1, offsetof(struct latency_sample, ns), 99), 7);
}

HL_TESTS(samples, HL_CASE(a_quantile_is_the_sample_of_the_nearest_rank),
         HL_CASE(a_quantile_is_of_the_field_that_is_named), HL_CASE(one_sample_is_every_quantile));
