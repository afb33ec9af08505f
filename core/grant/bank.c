#include <assert.h>
#include <stdlib.h>

#include "core/base/error.h"
#include "core/grant/grant.h"

/* A maximal free run of units, or one taken range. The entry of its first unit describes it; that of its last
 * unit repeats it, so that a neighbour finds where it begins. Entries in between mean nothing. */
struct span {
    uint16_t units; /* at most 16384 */
    uint8_t taken;
    uint8_t slack; /* of a taken range: bytes of the last unit that were not asked for */
};
_Static_assert(HL_PLAN_PART_BYTES / HL_BANK_UNIT_BYTES <= UINT16_MAX, "a span's units fit");

struct hl_bank {
    uint32_t units;
    uint32_t used; /* units */
    struct span spans[];
};

static void set_span(hl_bank *bank, uint32_t first, uint32_t units, uint8_t taken, uint8_t slack)
{
    bank->spans[first] = (struct span){.units = (uint16_t)units, .taken = taken, .slack = slack};
    bank->spans[first + units - 1] = bank->spans[first];
}

static uint32_t units_of(uint32_t bytes)
{
    return bytes / HL_BANK_UNIT_BYTES + (bytes % HL_BANK_UNIT_BYTES != 0);
}

hl_status hl_bank_create(uint32_t bytes, hl_bank **out, hl_error *err)
{
    static const char stage[] = "grant.bank";
    if (bytes == 0 || bytes % HL_BANK_UNIT_BYTES != 0)
        return HL_FAIL(err, HL_E_INVALID, stage, "bytes is %u, not a multiple of %u", bytes,
                       HL_BANK_UNIT_BYTES);
    if (bytes > HL_PLAN_PART_BYTES)
        return HL_FAIL(err, HL_E_LIMIT, stage, "bytes is %u, a plan bank has at most %llu", bytes,
                       HL_PLAN_PART_BYTES);
    uint32_t units = bytes / HL_BANK_UNIT_BYTES;
    hl_bank *bank = calloc(1, sizeof *bank + units * sizeof bank->spans[0]);
    if (!bank)
        return HL_FAIL(err, HL_E_NOMEM, stage, "no memory for a plan bank of %u bytes", bytes);
    bank->units = units;
    set_span(bank, 0, units, 0, 0);
    *out = bank;
    return HL_OK;
}

void hl_bank_destroy(hl_bank *bank)
{
    free(bank);
}

/* Visits at most twice as many spans as there are ranges taken, hence parts granted: never every unit. */
bool hl_bank_take(hl_bank *bank, uint32_t bytes, uint32_t *offset)
{
    assert(bytes > 0);
    uint32_t wanted = units_of(bytes);
    for (uint32_t first = 0; first < bank->units; first += bank->spans[first].units) {
        struct span span = bank->spans[first];
        if (span.taken || span.units < wanted)
            continue;
        set_span(bank, first, wanted, 1, (uint8_t)(wanted * HL_BANK_UNIT_BYTES - bytes));
        if (span.units > wanted)
            set_span(bank, first + wanted, span.units - wanted, 0, 0);
        bank->used += wanted;
        *offset = first * HL_BANK_UNIT_BYTES;
        return true;
    }
    return false;
}

/* Whether a span begins at `unit`: entries inside a span are leftovers. */
static bool begins_at(const hl_bank *bank, uint32_t unit)
{
    uint32_t first = 0;
    while (first < unit && first < bank->units)
        first += bank->spans[first].units;
    return first == unit && first < bank->units;
}

void hl_bank_give(hl_bank *bank, uint32_t offset, uint32_t bytes)
{
    assert(offset % HL_BANK_UNIT_BYTES == 0);
    uint32_t first = offset / HL_BANK_UNIT_BYTES;
    assert(begins_at(bank, first));
    struct span span = bank->spans[first];
    uint32_t units = span.units;
    assert(span.taken && units * HL_BANK_UNIT_BYTES - span.slack == bytes);
    bank->used -= units;
    if (first + units < bank->units && !bank->spans[first + units].taken)
        units += bank->spans[first + units].units;
    if (first > 0 && !bank->spans[first - 1].taken) {
        uint32_t before = bank->spans[first - 1].units;
        first -= before;
        units += before;
    }
    set_span(bank, first, units, 0, 0);
}

uint32_t hl_bank_used(const hl_bank *bank)
{
    return bank->used * HL_BANK_UNIT_BYTES;
}
