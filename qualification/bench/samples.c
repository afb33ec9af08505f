#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "qualification/bench/latency.h"

static int compare(const void *a, const void *b)
{
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return (left > right) - (left < right);
}

int64_t latency_quantile(const struct latency_sample *samples, uint32_t count, size_t offset,
                         unsigned percent)
{
    assert(count > 0 && percent <= 100);
    int64_t *sorted = malloc(count * sizeof *sorted);
    assert(sorted);
    for (uint32_t i = 0; i < count; i++)
        memcpy(&sorted[i], (const unsigned char *)&samples[i] + offset, sizeof sorted[i]);
    qsort(sorted, count, sizeof *sorted, compare);
    uint32_t rank = (uint32_t)(((uint64_t)percent * count + 99) / 100);
    int64_t value = sorted[rank > 0 ? rank - 1 : 0];
    free(sorted);
    return value;
}
