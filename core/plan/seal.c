#include "core/plan/seal.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t hl_plan_checksum(const void *bytes, size_t size)
{
    static const uint64_t zero;
    const size_t field = offsetof(struct hl_plan_header, checksum), after = field + sizeof zero;
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    XXH3_64bits_update(&state, bytes, field);
    XXH3_64bits_update(&state, &zero, sizeof zero);
    XXH3_64bits_update(&state, (const unsigned char *)bytes + after, size - after);
    return XXH3_64bits_digest(&state);
}

void hl_plan_seal(void *bytes, size_t size)
{
    struct hl_plan_header *header = bytes;
    header->checksum = hl_plan_checksum(bytes, size);
}
