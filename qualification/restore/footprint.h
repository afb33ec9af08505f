/* What a process holds of the system: a leak shows as a difference between two equal moments. */
#ifndef QUALIFICATION_RESTORE_FOOTPRINT_H
#define QUALIFICATION_RESTORE_FOOTPRINT_H

#include <stdint.h>

struct footprint {
    uint64_t fds;
    uint64_t maps; /* lines of /proc/self/maps */
    uint64_t resident_kib;
};

void footprint_take(struct footprint *footprint);

#endif
