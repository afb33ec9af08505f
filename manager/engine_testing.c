/* The engine that a test plays. */
#include "core/channel/channel.h"
#include "manager/manager_testing.h"

struct hl_grant_record *engine_record(struct world *world, uint32_t session, uint32_t record)
{
    return hl_grant_record_at(world_session(world, session)->grants, record);
}

uint64_t world_query(struct world *world, uint32_t session, uint32_t group, uint64_t first, uint32_t count,
                     uint32_t *hits)
{
    struct manager_session *at = world_session(world, session);
    unsigned char *keys = calloc(count, HL_KEY_BYTES);
    hl_entry_id *entries = calloc(count, sizeof *entries);
    uint64_t lease = 0;
    if (!keys || !entries)
        abort();
    for (uint32_t i = 0; i < count; i++)
        world_key(first + i, keys + (size_t)i * HL_KEY_BYTES);
    pthread_mutex_lock(&world->manager->lock);
    size_t found = hl_index_find_prefix(world->manager->index, WORLD_SPACE, group, keys, count, entries);
    const struct hl_lease_request request = {.session = at->serial,
                                             .group = group,
                                             .entries = entries,
                                             .count = found,
                                             .expires_ns = INT64_MAX,
                                             .budget = &at->bytes};
    if (found > 0)
        HL_REQUIRE_OK(hl_lease_create(world->manager->leases, &request, &lease, &world->err), world->err);
    pthread_mutex_unlock(&world->manager->lock);
    free(keys);
    free(entries);
    if (hits)
        *hits = (uint32_t)found;
    return lease;
}

uint32_t engine_reserve(struct world *world, uint32_t session, uint32_t record)
{
    hl_grant_memory *grants = world_session(world, session)->grants;
    struct hl_grant_record *shared = hl_grant_record_at(grants, record);
    uint32_t generation = hl_grant_load(grants, record).generation;
    CU_ASSERT_TRUE_FATAL(hl_grant_move(grants, record, generation, HL_GRANT_FREE, HL_GRANT_RESERVED));
    atomic_store(&shared->cancel, 0);
    atomic_store(&shared->consumed, 0);
    shared->flags = 0;
    memset(shared->stage_ns, 0, sizeof shared->stage_ns);
    return generation;
}

void engine_submit_bytes(struct world *world, uint32_t session, uint32_t record, const void *bytes,
                         uint32_t size)
{
    struct hl_grant_record *shared = engine_record(world, session, record);
    struct hl_extent *extent = &world->extents[session][record];
    void *at;
    HL_REQUIRE_OK(hl_descriptors_take(world->engine[session], size, extent, &at, &world->err), world->err);
    memcpy(at, bytes, size);
    shared->descriptor_offset = extent->offset;
    shared->descriptor_bytes = extent->bytes;
    atomic_store_explicit(&shared->submitted,
                          hl_grant_load(world_session(world, session)->grants, record).generation,
                          memory_order_release);
}

void engine_submit(struct world *world, uint32_t session, uint32_t record, uint32_t binding,
                   uint32_t lease_count, const uint64_t *leases, const uint32_t *counts,
                   const uint32_t *pages)
{
    struct hl_wire_restore head = {.binding = binding, .lease_count = lease_count};
    uint64_t total = 0;
    for (uint32_t i = 0; i < lease_count; i++) {
        head.leases[i].lease = leases[i];
        head.leases[i].page_count = counts[i];
        total += counts[i];
    }
    size_t size = hl_wire_restore_bytes(total);
    void *bytes = malloc(size);
    HL_REQUIRE_OK(hl_wire_restore_encode(&head, pages, total, bytes, size, &world->err), world->err);
    engine_submit_bytes(world, session, record, bytes, (uint32_t)size);
    free(bytes);
}

uint32_t engine_start(struct world *world, uint32_t session, uint32_t record, uint64_t first, uint32_t count,
                      uint32_t page)
{
    uint32_t *pages = malloc(count * sizeof *pages), hits;
    if (!pages)
        abort();
    for (uint32_t i = 0; i < count; i++) {
        world_store(world, 0, first + i);
        pages[i] = page + 2 * i;
    }
    uint64_t lease = world_query(world, session, 0, first, count, &hits);
    CU_ASSERT_EQUAL_FATAL(hits, count);
    uint32_t generation = engine_reserve(world, session, record);
    engine_submit(world, session, record, 0, 1, &lease, &count, pages);
    free(pages);
    return generation;
}

bool engine_move(struct world *world, uint32_t session, uint32_t record, enum hl_grant_state from,
                 enum hl_grant_state to)
{
    hl_grant_memory *grants = world_session(world, session)->grants;
    return hl_grant_move(grants, record, hl_grant_load(grants, record).generation, from, to);
}

static void copy_range(struct world *world, uint32_t session, const struct hl_plan_part *part,
                       const struct hl_plan_section *section, const struct hl_plan_range *range)
{
    hl_arena *arena = world->manager->arenas[part->allocations[range->allocation].arena_id - 100];
    HL_EXPECT_OK(world->dev->ops->copy(world->dev, HL_COPY_H2D,
                                       world->tensors[session][section->tensor] + range->dst,
                                       (uint64_t)(uintptr_t)hl_arena_base(arena) + range->src, range->bytes,
                                       world->stream, &world->err),
                 world->err);
}

static void copy_section(struct world *world, uint32_t session, const struct hl_plan_part *part,
                         const struct hl_plan_section *section)
{
    for (uint32_t i = 0; i < section->range_count; i++)
        copy_range(world, session, part, section, &part->ranges[section->first_range + i]);
    for (uint32_t i = 0; i < section->run_count; i++) {
        const struct hl_plan_run *run = &part->runs[section->first_run + i];
        for (uint32_t row = 0; row < run->rows; row++) {
            const struct hl_plan_range range = {.allocation = part->rows[run->first_row + row],
                                                .bytes = run->row_bytes,
                                                .src = run->src + row * run->src_pitch,
                                                .dst = run->dst + row * run->dst_pitch};
            copy_range(world, session, part, section, &range);
        }
    }
}

void engine_copy_part(struct world *world, uint32_t session, uint32_t record)
{
    struct manager_session *at = world_session(world, session);
    struct hl_grant_record *shared = engine_record(world, session, record);
    struct hl_plan_part part;
    WORLD_EXPECT_STATE(world, session, record, HL_GRANT_ACTIVE);
    void *bytes = malloc(shared->bank_bytes);
    CU_ASSERT_PTR_NOT_NULL_FATAL(bytes);
    memcpy(bytes, (unsigned char *)hl_grant_bank(at->grants) + shared->bank_offset, shared->bank_bytes);
    HL_REQUIRE_OK(hl_plan_decode(bytes, shared->bank_bytes, &part, &world->err), world->err);
    CU_ASSERT_EQUAL(part.header->identity.epoch, world->manager->epoch);
    CU_ASSERT_EQUAL(memcmp(part.header->identity.token, at->token, sizeof at->token), 0);
    CU_ASSERT_EQUAL(part.header->identity.record, record);
    CU_ASSERT_EQUAL(part.header->identity.generation, hl_grant_load(at->grants, record).generation);
    CU_ASSERT_EQUAL(part.header->part_index, shared->part_index);
    CU_ASSERT_EQUAL(part.header->part_count, shared->part_count);
    atomic_store_explicit(&shared->consumed, shared->part_index + 1u, memory_order_release);
    for (uint32_t i = 0; i < part.header->section_count; i++)
        copy_section(world, session, &part, &part.sections[i]);
    HL_EXPECT_OK(world->dev->ops->stream_synchronize(world->dev, world->stream, &world->err), world->err);
    free(bytes);
}

void engine_drain(struct world *world, uint32_t session, uint32_t record, hl_status status)
{
    struct hl_grant_record *shared = engine_record(world, session, record);
    shared->status = status;
    snprintf(shared->text, sizeof shared->text, "%s", status == HL_OK ? "" : "the engine says so");
    CU_ASSERT_TRUE(engine_move(world, session, record, HL_GRANT_ACTIVE, HL_GRANT_DRAINED));
}

void engine_run_part(struct world *world, uint32_t session, uint32_t record)
{
    struct hl_grant_record *shared = engine_record(world, session, record);
    CU_ASSERT_TRUE(engine_move(world, session, record, HL_GRANT_GRANTED, HL_GRANT_ACTIVE));
    engine_copy_part(world, session, record);
    if (shared->part_index + 1 == shared->part_count)
        engine_drain(world, session, record, HL_OK);
    else
        CU_ASSERT_TRUE(engine_move(world, session, record, HL_GRANT_ACTIVE, HL_GRANT_PART_DRAINED));
}

void engine_retire(struct world *world, uint32_t session, uint32_t record)
{
    struct hl_extent *extent = &world->extents[session][record];
    CU_ASSERT_TRUE(engine_move(world, session, record, HL_GRANT_REAPED, HL_GRANT_FREE));
    if (extent->bytes > 0)
        hl_descriptors_give(world->engine[session], *extent);
    extent->bytes = 0;
}

void engine_cancel(struct world *world, uint32_t session, uint32_t record)
{
    atomic_store(&engine_record(world, session, record)->cancel,
                 hl_grant_load(world_session(world, session)->grants, record).generation);
}

void engine_scribble(struct world *world, uint32_t session, uint32_t record, uint32_t generation,
                     uint32_t state)
{
    atomic_store(&engine_record(world, session, record)->word, (uint64_t)generation << 32 | state);
}
