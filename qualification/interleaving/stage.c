#include "qualification/interleaving/stage.h"

#include <stdlib.h>
#include <string.h>

#include "core/testing/cunit.h"

enum { BYTES = STAGE_RECORDS * STAGE_PARTS * STAGE_PART_BYTES, PAGE = 4096 };

unsigned char stage_pattern(unsigned record, uint32_t generation, uint32_t part)
{
    return (unsigned char)(1 + 64 * record + 8 * generation + part);
}

unsigned char *stage_source(const struct stage *stage, unsigned record, uint32_t part)
{
    return stage->sources + (record * STAGE_PARTS + part) * STAGE_PART_BYTES;
}

hl_devptr stage_page(const struct stage *stage, unsigned record, uint32_t part)
{
    return stage->pages + (record * STAGE_PARTS + part) * STAGE_PART_BYTES;
}

enum hl_grant_state stage_state(const struct stage *stage, unsigned record)
{
    return (enum hl_grant_state)hl_grant_load(stage->memory, record).state;
}

void stage_open(struct stage *stage, const struct scenario *scenario, enum defect defect)
{
    static const unsigned char token[16] = "interleaving";
    const struct hl_software_options options = {.single_step = true, .seed = 1};
    hl_error err;
    *stage = (struct stage){.scenario = *scenario, .defect = defect};
    HL_REQUIRE_OK(hl_device_open_software_with(&options, &stage->dev, &err), err);
    HL_REQUIRE_OK(hl_device_enter(stage->dev, &err), err);
    for (unsigned i = 0; i < STAGE_RECORDS; i++)
        HL_REQUIRE_OK(stage->dev->ops->stream_create(stage->dev, &stage->streams[i], &err), err);
    stage->sources = aligned_alloc(PAGE, PAGE);
    CU_ASSERT_PTR_NOT_NULL_FATAL(stage->sources);
    HL_REQUIRE_OK(stage->dev->ops->host_register(stage->dev, stage->sources, PAGE, &err), err);
    HL_REQUIRE_OK(stage->dev->ops->mem_alloc(stage->dev, BYTES, &stage->pages, &err), err);
    HL_REQUIRE_OK(hl_grant_memory_create(1, token, &stage->memory, &err), err);
    HL_REQUIRE_OK(hl_bank_create(STAGE_PART_BYTES, &stage->bank, &err), err);
    stage_reset(stage);
}

void stage_close(struct stage *stage)
{
    hl_error err;
    stage_reset(stage);
    HL_EXPECT_OK(stage->dev->ops->mem_free(stage->dev, stage->pages, &err), err);
    HL_EXPECT_OK(stage->dev->ops->host_unregister(stage->dev, stage->sources, &err), err);
    for (unsigned i = 0; i < STAGE_RECORDS; i++)
        HL_EXPECT_OK(stage->dev->ops->stream_destroy(stage->dev, stage->streams[i], &err), err);
    hl_device_leave(stage->dev);
    hl_device_close(stage->dev);
    free(stage->sources);
    hl_bank_destroy(stage->bank);
    hl_grant_memory_close(stage->memory);
}

void stage_reset(struct stage *stage)
{
    while (hl_software_step(stage->dev, 0) != 0)
        ;
    for (unsigned i = 0; i < STAGE_RECORDS; i++) {
        struct hl_grant_record *shared = hl_grant_record_at(stage->memory, i);
        if (stage->sides[i].bank_held)
            hl_bank_give(stage->bank, stage->sides[i].bank_offset, STAGE_PART_BYTES);
        memset(shared, 0, sizeof *shared);
        atomic_store(&shared->word, 1ull << 32 | HL_GRANT_FREE);
    }
    memset(stage->sides, 0, sizeof stage->sides);
    memset(stage->sources, 0xee, PAGE);
    stage->engine_dead = stage->death_seen = 0;
    stage->violation = NULL;
}

/* --- what must hold --- */

static bool all_bytes_are(const unsigned char *bytes, unsigned char value)
{
    for (unsigned i = 0; i < STAGE_PART_BYTES; i++)
        if (bytes[i] != value)
            return false;
    return true;
}

/* I1: what the device has yet to read is there. */
static bool sources_stand(const struct stage *stage, unsigned record)
{
    const struct memory_of_sides *side = &stage->sides[record];
    for (uint32_t i = 0; i < side->in_flight; i++) {
        uint32_t part = side->first_in_flight + i;
        if (!side->owner || !all_bytes_are(stage_source(stage, record, part),
                                           stage_pattern(record, side->engine_generation, part)))
            return false;
    }
    return true;
}

/* I9: whoever was told of success finds the bytes. */
static bool pages_stand(const struct stage *stage, unsigned record)
{
    const struct memory_of_sides *side = &stage->sides[record];
    unsigned char page[STAGE_PART_BYTES];
    for (uint32_t part = 0; side->drained && part < stage->scenario.parts; part++) {
        hl_software_peek(stage->dev, page, stage_page(stage, record, part), sizeof page);
        if (!all_bytes_are(page, stage_pattern(record, side->engine_generation, part)))
            return false;
    }
    return true;
}

/* I4: whoever holds another generation moves nothing. */
static bool stale_moves_change_nothing(const struct stage *stage, unsigned record)
{
    uint32_t generation = hl_grant_load(stage->memory, record).generation;
    for (unsigned from = 0; from < HL_GRANT_STATE_COUNT; from++)
        for (unsigned to = 0; to < HL_GRANT_STATE_COUNT; to++)
            if (hl_grant_transition_exists(from, to) &&
                (hl_grant_move(stage->memory, record, generation - 1, from, to) ||
                 hl_grant_move(stage->memory, record, generation + 1, from, to)))
                return false;
    return true;
}

static const char *record_violation(const struct stage *stage, unsigned record)
{
    const struct memory_of_sides *side = &stage->sides[record];
    enum hl_grant_state state = stage_state(stage, record);
    if (!sources_stand(stage, record))
        return "I1: a source is reused before it is read";
    if (side->owner && (state == HL_GRANT_FREE || state == HL_GRANT_RESERVED || state == HL_GRANT_REAPED))
        return "I2: an owner outlives its operation";
    if (state == HL_GRANT_DRAINED && side->in_flight > 0)
        return "I9: drained under a copy";
    if (side->in_flight > 0 &&
        (side->engine_at == E_IDLE || side->engine_at == E_RESERVED || side->engine_at == E_RETIRING))
        return "I3: pages are given back under a copy";
    if (side->manager_at == M_KEPT && !side->owner)
        return "I7: quarantine is not kept";
    if (side->manager_at != M_CLOSING && hl_grant_state_needs_owner(state) && !side->owner)
        return "I5: granted without an owner";
    if (!pages_stand(stage, record))
        return "I9: success without the bytes";
    if (!stale_moves_change_nothing(stage, record))
        return "I4: a stale generation moved the record";
    return NULL;
}

const char *stage_violation(struct stage *stage)
{
    uint32_t held = 0;
    const char *violation = stage->violation;
    for (unsigned i = 0; i < stage->scenario.records; i++) {
        held += stage->sides[i].bank_held * STAGE_PART_BYTES;
        if (!violation)
            violation = record_violation(stage, i);
    }
    if (!violation && hl_bank_used(stage->bank) != held)
        violation = "I2: bank space is lost or taken twice";
    return violation;
}
