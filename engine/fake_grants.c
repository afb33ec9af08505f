/* The fake Manager's half of the grant protocol. */
#include "engine/fake_peer.h"

static struct hl_grant_record *record_at(struct fake *fake, uint32_t record)
{
    return hl_grant_record_at(fake->grants, record);
}

void fake_wake(struct fake *fake)
{
    if (!fake->silent)
        engine_signal(fake->restore_fd);
}

bool fake_move(struct fake *fake, uint32_t record, enum hl_grant_state from, enum hl_grant_state to)
{
    return hl_grant_move(fake->grants, record, hl_grant_load(fake->grants, record).generation, from, to);
}

static bool is_submitted(struct fake *fake, uint32_t record)
{
    struct hl_grant_word word = hl_grant_load(fake->grants, record);
    return word.state == HL_GRANT_RESERVED &&
           atomic_load_explicit(&record_at(fake, record)->submitted, memory_order_acquire) == word.generation;
}

uint32_t fake_await_submission(struct fake *fake)
{
    for (;;) {
        for (uint32_t i = 0; i < HL_GRANT_RECORDS; i++)
            if (is_submitted(fake, i))
                return i;
        fake_await_fd(fake->retirement_fd);
    }
}

void fake_await_state(struct fake *fake, uint32_t record, enum hl_grant_state state)
{
    while (hl_grant_load(fake->grants, record).state != (uint32_t)state)
        fake_await_fd(fake->retirement_fd);
}

static void compile(struct fake *fake, uint32_t record, const struct hl_wire_restore *head,
                    const uint32_t *pages, uint64_t page_count)
{
    struct fake_operation *operation = &fake->operations[record];
    hl_error err = {0};
    uint32_t next = 0;
    operation->blocks = calloc(page_count, sizeof *operation->blocks);
    pthread_mutex_lock(&fake->lock);
    for (uint32_t i = 0; i < head->lease_count; i++) {
        const struct fake_lease *lease = &fake->leases[head->leases[i].lease - 1];
        for (uint32_t b = 0; b < head->leases[i].page_count; b++, next++) {
            operation->blocks[next] = fake->blocks[lease->first + b];
            operation->blocks[next].page = pages[next];
            fake->pinned[lease->first + b]++;
        }
    }
    pthread_mutex_unlock(&fake->lock);
    operation->block_count = next;
    struct hl_plan_request request = {
        .layout = fake->layout,
        .identity = {.epoch = fake->epoch, .record = record, .generation = operation->generation},
        .blocks = operation->blocks,
        .block_count = next,
        .chunk_bytes = hl_arena_chunk_bytes(fake->arenas[0]),
        .part_bytes = fake->part_bytes};
    memcpy(request.identity.token, fake->token, sizeof fake->token);
    HL_REQUIRE_OK(hl_plan_compile(&request, &operation->plan, &err), err);
}

/* The record has just been claimed for preparation. */
static void prepare_claimed(struct fake *fake, uint32_t record)
{
    struct hl_grant_record *shared = record_at(fake, record);
    struct hl_extent extent;
    struct hl_wire_restore head;
    const uint32_t *pages;
    uint64_t page_count;
    void *copy = NULL;
    hl_error err = {0};
    extent = (struct hl_extent){shared->descriptor_offset, shared->descriptor_bytes};
    fake->operations[record] =
        (struct fake_operation){.live = true, .generation = hl_grant_load(fake->grants, record).generation};
    pthread_mutex_lock(&fake->lock); /* the server writes residencies into descriptor memory */
    hl_status status = hl_descriptors_copy(fake->descriptors, extent, HL_DESCRIPTOR_BYTES, &copy, &err);
    pthread_mutex_unlock(&fake->lock);
    HL_REQUIRE_OK(status, err);
    HL_REQUIRE_OK(hl_wire_restore_decode(copy, extent.bytes, &head, &pages, &page_count, &err), err);
    compile(fake, record, &head, pages, page_count);
    free(copy);
}

void fake_prepare(struct fake *fake, uint32_t record)
{
    CU_ASSERT_TRUE_FATAL(fake_move(fake, record, HL_GRANT_RESERVED, HL_GRANT_PREPARING));
    prepare_claimed(fake, record);
}

static void write_outcome(struct fake *fake, uint32_t record, hl_status status, const char *text)
{
    struct hl_grant_record *shared = record_at(fake, record);
    shared->status = status;
    snprintf(shared->text, sizeof shared->text, "%s", text);
}

/* The outcome of a revocation is written too, for in GRANTED this side writes no more. */
void fake_place(struct fake *fake, uint32_t record, uint32_t offset)
{
    struct fake_operation *operation = &fake->operations[record];
    struct hl_grant_record *shared = record_at(fake, record);
    size_t size;
    const void *part = hl_plan_part_bytes(operation->plan, operation->next_part, &size);
    memcpy((unsigned char *)hl_grant_bank(fake->grants) + offset, part, size);
    shared->part_index = (uint16_t)operation->next_part++;
    shared->part_count = (uint16_t)hl_plan_part_count(operation->plan);
    shared->bank_offset = offset;
    shared->bank_bytes = (uint32_t)size;
    write_outcome(fake, record, HL_E_EXPIRED, "revoked by the test");
}

void fake_publish_grant(struct fake *fake, uint32_t record)
{
    CU_ASSERT_TRUE(fake_move(fake, record, HL_GRANT_PREPARING, HL_GRANT_GRANTED) ||
                   fake_move(fake, record, HL_GRANT_PART_DRAINED, HL_GRANT_GRANTED));
    fake_wake(fake);
}

void fake_grant(struct fake *fake, uint32_t record, uint32_t offset)
{
    fake_place(fake, record, offset);
    fake_publish_grant(fake, record);
}

uint32_t fake_grant_next(struct fake *fake)
{
    uint32_t record = fake_await_submission(fake);
    fake_prepare(fake, record);
    fake_grant(fake, record, 0);
    return record;
}

void fake_reject(struct fake *fake, uint32_t record, hl_status status, const char *text)
{
    write_outcome(fake, record, status, text);
    CU_ASSERT_TRUE(fake_move(fake, record, HL_GRANT_PREPARING, HL_GRANT_REJECTED));
    fake_wake(fake);
}

bool fake_revoke(struct fake *fake, uint32_t record, enum hl_grant_state from)
{
    bool won = fake_move(fake, record, from, HL_GRANT_REVOKED);
    if (won)
        fake_wake(fake);
    return won;
}

static void forget(struct fake *fake, uint32_t record)
{
    struct fake_operation *operation = &fake->operations[record];
    pthread_mutex_lock(&fake->lock);
    for (uint32_t i = 0; i < operation->block_count; i++)
        for (uint32_t b = 0; b < FAKE_BLOCKS; b++)
            if (fake->blocks[b].arena_id == operation->blocks[i].arena_id &&
                fake->blocks[b].allocation_id == operation->blocks[i].allocation_id)
                fake->pinned[b]--;
    pthread_mutex_unlock(&fake->lock);
    hl_plan_free(operation->plan);
    free(operation->blocks);
    *operation = (struct fake_operation){0};
}

void fake_reap(struct fake *fake, uint32_t record)
{
    struct hl_grant_word word = hl_grant_load(fake->grants, record);
    forget(fake, record);
    CU_ASSERT_TRUE(hl_grant_move(fake->grants, record, word.generation, (enum hl_grant_state)word.state,
                                 HL_GRANT_REAPED));
    fake_wake(fake);
}

/* --- a Manager that works --- */

/* Each record's parts go to a slice of the bank of its own; the test keeps parts below it. */
static void serve_record(struct fake *fake, uint32_t record)
{
    uint32_t offset = record % 64 * (uint32_t)(HL_PLAN_PART_BYTES / 64);
    switch (hl_grant_load(fake->grants, record).state) {
    case HL_GRANT_RESERVED: /* unless the engine takes it back */
        if (!is_submitted(fake, record) || !fake_move(fake, record, HL_GRANT_RESERVED, HL_GRANT_PREPARING))
            return;
        prepare_claimed(fake, record);
        fake_grant(fake, record, offset);
        return;
    case HL_GRANT_PART_DRAINED:
        fake_grant(fake, record, offset);
        return;
    case HL_GRANT_DRAINED:
        fake_reap(fake, record);
        return;
    default:
        return;
    }
}

static void *serve_grants(void *argument)
{
    struct fake *fake = argument;
    uint32_t marks[HL_GRANT_RECORDS];
    for (;;) {
        pthread_mutex_lock(&fake->lock);
        bool stop = fake->stop_granting;
        pthread_mutex_unlock(&fake->lock);
        if (stop)
            return NULL;
        size_t count = hl_grant_take_marks(fake->grants, marks);
        for (size_t i = 0; i < count; i++)
            serve_record(fake, marks[i]);
        if (count == 0)
            fake_await_fd(fake->retirement_fd);
    }
}

void fake_serve_grants(struct fake *fake)
{
    fake->stop_granting = false;
    CU_ASSERT_EQUAL_FATAL(pthread_create(&fake->granter, NULL, serve_grants, fake), 0);
    fake->granting = true;
}

void fake_stop_grants(struct fake *fake)
{
    if (!fake->granting)
        return;
    pthread_mutex_lock(&fake->lock);
    fake->stop_granting = true;
    pthread_mutex_unlock(&fake->lock);
    engine_signal(fake->retirement_fd);
    pthread_join(fake->granter, NULL);
    fake->granting = false;
}
