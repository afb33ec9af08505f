/* The checksum of a part; private to the room. */
#ifndef CORE_PLAN_SEAL_H
#define CORE_PLAN_SEAL_H

#include <stddef.h>
#include <stdint.h>

#include "core/plan/plan.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire format is that of the machine");

/* XXH3-64 of a part of at least a header, as if its checksum field were 0. */
uint64_t hl_plan_checksum(const void *bytes, size_t size);

#endif
