#include <assert.h>
#include <string.h>

#include "core/base/checked.h"
#include "core/grant/grant_memory.h"

#define TO(name) (1u << HL_GRANT_##name)

/* The table at the top of grant.h. */
static const uint16_t successors[HL_GRANT_STATE_COUNT] = {
    [HL_GRANT_FREE] = TO(RESERVED),
    [HL_GRANT_RESERVED] = TO(FREE) | TO(PREPARING),
    [HL_GRANT_PREPARING] = TO(GRANTED) | TO(MANAGED) | TO(REJECTED),
    [HL_GRANT_GRANTED] = TO(ACTIVE) | TO(REVOKED),
    [HL_GRANT_MANAGED] = TO(COMPLETED),
    [HL_GRANT_ACTIVE] = TO(PART_DRAINED) | TO(DRAINED),
    [HL_GRANT_PART_DRAINED] = TO(GRANTED) | TO(REVOKED),
    [HL_GRANT_DRAINED] = TO(REAPED),
    [HL_GRANT_COMPLETED] = TO(REAPED),
    [HL_GRANT_REVOKED] = TO(REAPED),
    [HL_GRANT_REJECTED] = TO(REAPED),
    [HL_GRANT_REAPED] = TO(FREE),
};

bool hl_grant_transition_exists(enum hl_grant_state from, enum hl_grant_state to)
{
    return (unsigned)from < HL_GRANT_STATE_COUNT && (unsigned)to < HL_GRANT_STATE_COUNT &&
           (successors[from] >> to & 1) != 0;
}

const char *hl_grant_state_name(uint32_t state)
{
    static const char *const names[] = {
#define NAME(name) #name,
        HL_GRANT_STATES(NAME)
#undef NAME
    };
    return state < HL_GRANT_STATE_COUNT ? names[state] : "unknown";
}

static struct hl_grant_word split(uint64_t word)
{
    return (struct hl_grant_word){.generation = (uint32_t)(word >> 32), .state = (uint32_t)word};
}

struct hl_grant_word hl_grant_load(hl_grant_memory *memory, uint32_t index)
{
    return split(atomic_load_explicit(&hl_grant_record_at(memory, index)->word, memory_order_acquire));
}

bool hl_grant_move(hl_grant_memory *memory, uint32_t index, uint32_t generation, enum hl_grant_state from,
                   enum hl_grant_state to)
{
    assert(hl_grant_transition_exists(from, to));
    uint32_t next = generation;
    if (to == HL_GRANT_FREE)
        next = generation == UINT32_MAX ? 1 : generation + 1;
    uint64_t expected = hl_grant_word_of(generation, from);
    return atomic_compare_exchange_strong_explicit(&hl_grant_record_at(memory, index)->word, &expected,
                                                   hl_grant_word_of(next, to), memory_order_acq_rel,
                                                   memory_order_acquire);
}

void hl_grant_copy(hl_grant_memory *memory, uint32_t index, struct hl_grant_record *copy)
{
    struct hl_grant_record *record = hl_grant_record_at(memory, index);
    atomic_init(&copy->word, atomic_load_explicit(&record->word, memory_order_acquire));
    copy->descriptor_offset = record->descriptor_offset;
    copy->descriptor_bytes = record->descriptor_bytes;
    copy->flags = record->flags;
    atomic_init(&copy->submitted, atomic_load_explicit(&record->submitted, memory_order_relaxed));
    atomic_init(&copy->cancel, atomic_load_explicit(&record->cancel, memory_order_relaxed));
    atomic_init(&copy->consumed, atomic_load_explicit(&record->consumed, memory_order_relaxed));
    memcpy(&copy->part_index, &record->part_index,
           sizeof *record - offsetof(struct hl_grant_record, part_index));
}

bool hl_grant_state_needs_owner(uint32_t state)
{
    return state == HL_GRANT_GRANTED || state == HL_GRANT_MANAGED || state == HL_GRANT_ACTIVE ||
           state == HL_GRANT_PART_DRAINED;
}

/* --- what a copy must look like --- */

static bool part_is_sane(const struct hl_grant_record *copy)
{
    return copy->part_index < copy->part_count && copy->bank_bytes > 0 &&
           copy->bank_offset % HL_BANK_UNIT_BYTES == 0 &&
           hl_within(copy->bank_offset, copy->bank_bytes, HL_PLAN_PART_BYTES);
}

static bool status_is_error(int32_t status)
{
    return status < 0 && strcmp(hl_status_name((hl_status)status), "unknown") != 0;
}

bool hl_grant_record_is_sane(const struct hl_grant_record *copy)
{
    if (!memchr(copy->text, '\0', sizeof copy->text))
        return false;
    switch ((uint32_t)atomic_load_explicit(&copy->word, memory_order_relaxed)) {
    case HL_GRANT_FREE:
    case HL_GRANT_RESERVED:
    case HL_GRANT_PREPARING:
    case HL_GRANT_MANAGED:
    case HL_GRANT_PART_DRAINED: /* the Manager may be writing the next part */
    case HL_GRANT_REAPED:
        return true;
    case HL_GRANT_GRANTED:
    case HL_GRANT_ACTIVE:
        return part_is_sane(copy);
    case HL_GRANT_DRAINED:
    case HL_GRANT_COMPLETED:
        return copy->status == HL_OK || status_is_error(copy->status);
    case HL_GRANT_REVOKED:
    case HL_GRANT_REJECTED:
        return status_is_error(copy->status);
    default:
        return false;
    }
}
