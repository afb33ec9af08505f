#include <string.h>

#include "core/grant/grant_memory.h"

#define CONSTANT(name)                                                                                       \
    {                                                                                                        \
#name, name, 0                                                                                       \
    }
#define FIELD(type, field)                                                                                   \
    {                                                                                                        \
#type "." #field, offsetof(struct type, field), sizeof(((struct type *)0)->field)                    \
    }
#define STATE(name) {"state." #name, HL_GRANT_##name, 0},

/* Everything in the shared memory, in the order of its bytes; signature_test checks that no byte of a record
 * or of the header is missing here. Names are in it, so that two fields of one size cannot be exchanged
 * unnoticed. */
const struct hl_grant_shape hl_grant_shapes[] = {
    CONSTANT(HL_GRANT_MAGIC),
    CONSTANT(HL_GRANT_SCHEMA),
    CONSTANT(HL_GRANT_RECORDS),
    CONSTANT(HL_GRANT_TEXT_BYTES),
    CONSTANT(HL_PLAN_PART_BYTES),
    CONSTANT(HL_GRANT_MEMORY_BYTES),
    CONSTANT(HL_BANK_UNIT_BYTES),
    CONSTANT(HL_GRANT_TRACE),
    CONSTANT(HL_STAGE_READY),
    CONSTANT(HL_STAGE_DISPATCHED),
    CONSTANT(HL_STAGE_DEQUEUED),
    CONSTANT(HL_STAGE_CLAIMED),
    CONSTANT(HL_STAGE_ENQUEUED),
    CONSTANT(HL_STAGE_DRAINED),
    CONSTANT(HL_STAGE_COUNT),
    HL_GRANT_STATES(STATE) FIELD(hl_grant_shared, header),
    FIELD(hl_grant_shared, records),
    FIELD(hl_grant_shared, bank),
    FIELD(hl_grant_header, magic),
    FIELD(hl_grant_header, schema),
    FIELD(hl_grant_header, layout_signature),
    FIELD(hl_grant_header, epoch),
    FIELD(hl_grant_header, token),
    FIELD(hl_grant_header, zero_line),
    FIELD(hl_grant_header, dirty),
    FIELD(hl_grant_header, zero_tail),
    FIELD(hl_grant_record, word),
    FIELD(hl_grant_record, descriptor_offset),
    FIELD(hl_grant_record, descriptor_bytes),
    FIELD(hl_grant_record, flags),
    FIELD(hl_grant_record, submitted),
    FIELD(hl_grant_record, cancel),
    FIELD(hl_grant_record, consumed),
    FIELD(hl_grant_record, part_index),
    FIELD(hl_grant_record, part_count),
    FIELD(hl_grant_record, bank_offset),
    FIELD(hl_grant_record, bank_bytes),
    FIELD(hl_grant_record, status),
    FIELD(hl_grant_record, bytes),
    FIELD(hl_grant_record, stage_ns),
    FIELD(hl_grant_record, text),
};

const size_t hl_grant_shape_count = sizeof hl_grant_shapes / sizeof hl_grant_shapes[0];

static uint64_t mix_byte(uint64_t hash, unsigned char byte)
{
    return (hash ^ byte) * 0x100000001b3ull;
}

static uint64_t mix_number(uint64_t hash, uint64_t number)
{
    for (unsigned i = 0; i < 8; i++)
        hash = mix_byte(hash, (unsigned char)(number >> 8 * i));
    return hash;
}

uint64_t hl_grant_signature_of(const struct hl_grant_shape *shapes, size_t count)
{
    uint64_t hash = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < count; i++) {
        const char *name = shapes[i].name;
        for (size_t j = 0; j <= strlen(name); j++)
            hash = mix_byte(hash, (unsigned char)name[j]);
        hash = mix_number(hash, shapes[i].offset);
        hash = mix_number(hash, shapes[i].size);
    }
    return hash;
}

uint64_t hl_grant_layout_signature(void)
{
    return hl_grant_signature_of(hl_grant_shapes, hl_grant_shape_count);
}
