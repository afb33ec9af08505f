/* What the engine's stores into the shared record publish. The Manager's side is a thread that reads through
 * the engine's own mapping: a thread sanitizer does not see that two mappings are one memory. */
#include "engine/fake_peer.h"

#include <sched.h>

struct peer {
    hl_engine *engine;
    uint32_t record, generation;
    hl_status status;
    hl_error err;
    struct hl_wire_restore head;
    pthread_t thread;
};

static void start_peer(struct peer *peer, struct fake_client *client, void *(*run)(void *))
{
    hl_engine *engine = client->engine;
    *peer = (struct peer){.engine = engine, .record = engine->free_records[engine->free_count - 1]};
    peer->generation = engine->generations[peer->record];
    CU_ASSERT_EQUAL_FATAL(pthread_create(&peer->thread, NULL, run, peer), 0);
}

static void finish(struct fake *fake, struct fake_client *client, hl_restore *restore, uint32_t record)
{
    fake_await_and_reap(fake, record);
    fake_expect_outcome(restore, HL_OK, false);
    CU_ASSERT_TRUE(fake_tensors_match(fake));
    fake_close_all(fake, client);
}

static void *read_submission(void *argument)
{
    struct peer *peer = argument;
    struct hl_grant_record *shared = hl_grant_record_at(peer->engine->grants, peer->record);
    const uint32_t *pages;
    uint64_t page_count;
    void *copy = NULL;
    while (atomic_load_explicit(&shared->submitted, memory_order_acquire) != peer->generation)
        sched_yield();
    const struct hl_extent extent = {.offset = shared->descriptor_offset, .bytes = shared->descriptor_bytes};
    peer->status =
        hl_descriptors_copy(peer->engine->descriptors, extent, HL_DESCRIPTOR_BYTES, &copy, &peer->err);
    if (peer->status == HL_OK)
        peer->status =
            hl_wire_restore_decode(copy, extent.bytes, &peer->head, &pages, &page_count, &peer->err);
    free(copy);
    return NULL;
}

/* R6: neither a mark nor a signal is needed to see the descriptor whole. */
static void a_submission_publishes_the_descriptor(void)
{
    struct fake fake;
    struct fake_client client;
    struct peer peer;
    fake_open_all(&fake, &client);
    start_peer(&peer, &client, read_submission);
    hl_restore *restore = fake_restore(&client, 0, 8);
    pthread_join(peer.thread, NULL);
    HL_EXPECT_OK(peer.status, peer.err);
    CU_ASSERT_EQUAL(peer.head.binding, client.binding->manager_id);
    CU_ASSERT_EQUAL(peer.head.leases[0].page_count, 8);
    uint32_t record = fake_grant_next(&fake);
    CU_ASSERT_EQUAL(record, peer.record);
    finish(&fake, &client, restore, record);
}

static void *use_the_bank_again(void *argument)
{
    struct peer *peer = argument;
    struct hl_grant_record *shared = hl_grant_record_at(peer->engine->grants, peer->record);
    while (atomic_load_explicit(&shared->consumed, memory_order_acquire) != 1)
        sched_yield();
    memset((unsigned char *)hl_grant_bank(peer->engine->grants) + shared->bank_offset, 0xff,
           shared->bank_bytes);
    return NULL;
}

/* G6: from then on its space may hold another part. */
static void a_consumed_part_has_left_the_bank(void)
{
    struct fake fake;
    struct fake_client client;
    struct peer peer;
    fake_open_all(&fake, &client);
    start_peer(&peer, &client, use_the_bank_again);
    hl_restore *restore = fake_restore(&client, 0, 8);
    uint32_t record = fake_grant_next(&fake);
    pthread_join(peer.thread, NULL);
    CU_ASSERT_EQUAL(record, peer.record);
    finish(&fake, &client, restore, record);
}

HL_TESTS(engine_order, HL_CASE(a_submission_publishes_the_descriptor),
         HL_CASE(a_consumed_part_has_left_the_bank));
