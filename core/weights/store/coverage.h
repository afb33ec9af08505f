/* Which bytes of a tensor have been written: disjoint spans in ascending order, neighbours joined. Writing in
 * order keeps one span; whoever writes rows of several sources into one tensor keeps one a row until the gaps
 * close. The array has its free room where the last change was (a gap buffer), so that such writers, who go
 * through the tensor again and again, pay for each span once and not for all behind it. */
#ifndef CORE_WEIGHTS_STORE_COVERAGE_H
#define CORE_WEIGHTS_STORE_COVERAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hostlane/status.h"

struct hl_span {
    uint64_t begin, end;
};

/* Zero-initialise. Spans are spans[0, head) and spans[capacity - tail, capacity). */
struct hl_coverage {
    struct hl_span *spans;
    size_t head, tail, capacity;
};

/* Adds [begin, end). HL_E_OVERLAP, and nothing is added, when a byte of it was there; HL_E_NOMEM. */
hl_status hl_coverage_add(struct hl_coverage *coverage, uint64_t begin, uint64_t end, hl_error *err);

/* Whether [0, size) is all there; if not, *gap is the first byte that is missing. */
bool hl_coverage_complete(const struct hl_coverage *coverage, uint64_t size, uint64_t *gap);
void hl_coverage_free(struct hl_coverage *coverage);

#endif
