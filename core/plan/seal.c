#include "core/plan/seal.h"

#include "core/base/checked.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t hl_plan_checksum(const void *bytes, size_t size)
{
    static const uint64_t zero;
    const size_t field = offsetof(struct hl_plan_header, checksum), after = field + sizeof zero;
    /* aligned by hand: a sanitizer's stack does not keep 64 bytes */
    unsigned char room[sizeof(XXH3_state_t) + _Alignof(XXH3_state_t)];
    XXH3_state_t *state = (XXH3_state_t *)(void *)hl_align_up((uintptr_t)room, _Alignof(XXH3_state_t));
    XXH3_64bits_reset(state);
    XXH3_64bits_update(state, bytes, field);
    XXH3_64bits_update(state, &zero, sizeof zero);
    XXH3_64bits_update(state, (const unsigned char *)bytes + after, size - after);
    return XXH3_64bits_digest(state);
}

void hl_plan_seal(void *bytes, size_t size)
{
    struct hl_plan_header *header = bytes;
    header->checksum = hl_plan_checksum(bytes, size);
}
