/* Publishing against a scripted Manager, and the refusals of a restore's request. */
#include "engine/fake_peer.h"

static hl_publish_request make_publish(void)
{
    static const hl_block_key keys[3] = {{{1}}, {{2}}, {{3}}};
    static const uint32_t pages[3] = {7, 0, 9};
    hl_publish_request request;
    hl_publish_request_init(&request);
    request.keys = keys;
    request.pages = pages;
    request.count = 3;
    return request;
}

static void expect_publish(hl_publish *publish, hl_status status, uint64_t stored, uint64_t present)
{
    hl_publish_result result = {.stored = 99};
    hl_error err = {0};
    HL_EXPECT_STATUS(hl_publish_wait(publish, -1, &result, &err), status, err);
    CU_ASSERT_EQUAL(result.stored, stored);
    CU_ASSERT_EQUAL(result.present, present);
    CU_ASSERT_EQUAL(hl_publish_poll(publish, NULL, NULL), status);
    hl_publish_close(publish);
}

/* T1, R10: keys and pages reach the Manager as they were given; the slot says what came of it. */
static void blocks_are_announced_and_the_outcome_is_read(void)
{
    struct fake fake;
    struct fake_client client;
    hl_publish *publish = NULL;
    void *copy = NULL;
    fake_open_all(&fake, &client);
    hl_publish_request request = make_publish();
    HL_REQUIRE_OK(hl_publish_start(client.binding, &request, &publish, &client.err), client.err);
    fake_await_received(&fake, HL_MESSAGE_PUBLISH, 1);
    CU_ASSERT_EQUAL(hl_publish_poll(publish, NULL, NULL), HL_PENDING);
    HL_EXPECT_STATUS(hl_publish_wait(publish, 1000, NULL, &client.err), HL_E_TIMEOUT, client.err);
    CU_ASSERT_EQUAL(fake.publish.block_count, 3);
    /* The extent is given back, and nobody has taken it since. */
    HL_REQUIRE_OK(
        hl_descriptors_copy(fake.descriptors, fake.publish.blocks, HL_DESCRIPTOR_BYTES, &copy, &client.err),
        client.err);
    const struct hl_publish_block *blocks = copy;
    for (uint32_t i = 0; i < 3; i++) {
        CU_ASSERT_EQUAL(blocks[i].page, request.pages[i]);
        CU_ASSERT_EQUAL(memcmp(blocks[i].key, request.keys[i].hash, HL_KEY_BYTES), 0);
    }
    free(copy);
    fake_finish_publish(&fake, fake.publish.slot, HL_OK, 2, 1);
    expect_publish(publish, HL_OK, 2, 1);
    CU_ASSERT_EQUAL(atomic_load(&hl_descriptors_slot(fake.descriptors, fake.publish.slot)->state),
                    HL_PUBLISH_IDLE);
    fake_close_all(&fake, &client);
}

static void too_little_space_says_how_much_fitted(void)
{
    struct fake fake;
    struct fake_client client;
    hl_publish *publish = NULL;
    hl_error err = {0};
    fake_open_all(&fake, &client);
    hl_publish_request request = make_publish();
    HL_REQUIRE_OK(hl_publish_start(client.binding, &request, &publish, &client.err), client.err);
    fake_await_received(&fake, HL_MESSAGE_PUBLISH, 1);
    fake_finish_publish(&fake, fake.publish.slot, HL_E_NOSPACE, 1, 0);
    HL_EXPECT_STATUS(hl_publish_wait(publish, -1, NULL, &err), HL_E_NOSPACE, err);
    CU_ASSERT_STRING_EQUAL(err.text, "as the test wants it");
    expect_publish(publish, HL_E_NOSPACE, 1, 0);
    fake_close_all(&fake, &client);
}

/* I6: the maintenance tick finds a slot whose wake-up was lost. */
static void a_lost_publish_wake_up_only_delays(void)
{
    struct fake fake;
    struct fake_client client;
    hl_publish *publish = NULL;
    fake_open_all(&fake, &client);
    fake.silent = true;
    hl_publish_request request = make_publish();
    HL_REQUIRE_OK(hl_publish_start(client.binding, &request, &publish, &client.err), client.err);
    fake_await_received(&fake, HL_MESSAGE_PUBLISH, 1);
    fake_finish_publish(&fake, fake.publish.slot, HL_OK, 3, 0);
    expect_publish(publish, HL_OK, 3, 0);
    fake_close_all(&fake, &client);
}

/* T1: the caller does not wait, and PUBLISH is not sent before the producer has finished; a publish without
 * such a fence overtakes it. */
static void a_busy_producer_holds_the_announcement_back(void)
{
    struct fake fake;
    struct fake_client client;
    hl_publish *fenced = NULL, *free_one = NULL;
    fake_open_all(&fake, &client);
    hl_stream busy = fake_busy_stream(&fake);
    hl_publish_request request = make_publish();
    request.has_producer_stream = true;
    request.producer_stream = busy;
    HL_REQUIRE_OK(hl_publish_start(client.binding, &request, &fenced, &client.err), client.err);
    request.has_producer_stream = false;
    HL_REQUIRE_OK(hl_publish_start(client.binding, &request, &free_one, &client.err), client.err);
    fake_await_received(&fake, HL_MESSAGE_PUBLISH, 1);
    uint32_t slot = fake.publish.slot;
    fake_finish_publish(&fake, slot, HL_OK, 3, 0);
    expect_publish(free_one, HL_OK, 3, 0);
    fake_await_received(&fake, HL_MESSAGE_PUBLISH, 1);
    CU_ASSERT_EQUAL(fake_received(&fake, HL_MESSAGE_PUBLISH), 1);
    CU_ASSERT_EQUAL(hl_publish_poll(fenced, NULL, NULL), HL_PENDING);
    hl_software_release(fake.dev, busy);
    fake_await_received(&fake, HL_MESSAGE_PUBLISH, 2);
    CU_ASSERT_NOT_EQUAL(fake.publish.slot, slot);
    fake_finish_publish(&fake, fake.publish.slot, HL_OK, 0, 3);
    expect_publish(fenced, HL_OK, 0, 3);
    fake_stream_end(&fake, busy);
    fake_close_all(&fake, &client);
}

static void a_failed_producer_stream_rejects(void)
{
    struct fake fake;
    struct fake_client client;
    hl_publish *publish = NULL;
    fake_open_all(&fake, &client);
    hl_stream busy = fake_busy_stream(&fake);
    hl_publish_request request = make_publish();
    request.has_producer_stream = true;
    request.producer_stream = busy;
    /* The work fails after the fence was recorded: the outcome is the failure, and nothing is announced. */
    hl_software_fail_execution(fake.dev, 1, 700);
    HL_REQUIRE_OK(hl_publish_start(client.binding, &request, &publish, &client.err), client.err);
    hl_software_release(fake.dev, busy);
    expect_publish(publish, HL_E_DEVICE, 0, 0);
    HL_EXPECT_STATUS(hl_publish_start(client.binding, &request, &publish, &client.err), HL_E_DEVICE,
                     client.err);
    CU_ASSERT_EQUAL(fake_received(&fake, HL_MESSAGE_PUBLISH), 0);
    fake_stream_end(&fake, busy);
    fake_close_all(&fake, &client);
}

static bool refuse_publish(struct fake *fake, const struct hl_packet *packet, enum hl_message_kind kind)
{
    if (kind != HL_MESSAGE_PUBLISH)
        return false;
    fake_reply_error(fake, ((const struct hl_message *)(const void *)packet->bytes)->sequence,
                     HL_E_UNSUPPORTED, "tensor 0 has no export");
    return true;
}

static void a_refused_publish_frees_its_slot(void)
{
    struct fake fake;
    struct fake_client client;
    hl_publish *publish = NULL;
    fake_open_all(&fake, &client);
    fake.on_request = refuse_publish;
    hl_publish_request request = make_publish();
    for (uint32_t i = 0; i < HL_PUBLISH_SLOTS + 2; i++) {
        HL_REQUIRE_OK(hl_publish_start(client.binding, &request, &publish, &client.err), client.err);
        expect_publish(publish, HL_E_UNSUPPORTED, 0, 0);
    }
    CU_ASSERT_EQUAL(atomic_load(&hl_descriptors_slot(fake.descriptors, 0)->state), HL_PUBLISH_IDLE);
    fake_close_all(&fake, &client);
}

/* G3: as many publishes as there are slots; a dropped handle keeps its slot until the outcome. */
static void publishes_are_bounded_by_slots(void)
{
    struct fake fake;
    struct fake_client client;
    hl_publish *publish = NULL;
    fake_open_all(&fake, &client);
    hl_publish_request request = make_publish();
    for (uint32_t i = 0; i < HL_PUBLISH_SLOTS; i++) {
        HL_REQUIRE_OK(hl_publish_start(client.binding, &request, &publish, &client.err), client.err);
        hl_publish_close(publish);
    }
    HL_EXPECT_STATUS(hl_publish_start(client.binding, &request, &publish, &client.err), HL_E_BUDGET,
                     client.err);
    fake_await_received(&fake, HL_MESSAGE_PUBLISH, HL_PUBLISH_SLOTS);
    for (uint32_t i = 0; i < HL_PUBLISH_SLOTS; i++)
        fake_finish_publish(&fake, i, HL_OK, 3, 0);
    fake_close_all(&fake, &client);
}

/* A slot that says what cannot be. */
static void a_senseless_slot_is_a_protocol_error(void)
{
    for (int i = 0; i < 2; i++) {
        struct fake fake;
        struct fake_client client;
        hl_publish *publish = NULL;
        fake_open_all(&fake, &client);
        hl_publish_request request = make_publish();
        HL_REQUIRE_OK(hl_publish_start(client.binding, &request, &publish, &client.err), client.err);
        fake_await_received(&fake, HL_MESSAGE_PUBLISH, 1);
        fake_finish_publish(&fake, fake.publish.slot, i ? (hl_status)-7777 : HL_OK, i ? 0 : 4, 0);
        expect_publish(publish, HL_E_PROTOCOL, 0, 0);
        fake_close_all(&fake, &client);
    }
}

/* A closed channel says nothing about a publish that was accepted: the Manager may still read the pages. Its
 * death does. */
static void an_accepted_publish_outlives_the_channel(void)
{
    for (int die = 0; die < 2; die++) {
        struct fake fake;
        struct fake_client client;
        hl_publish *publish = NULL, *late = NULL;
        fake_open(&fake);
        fake_start_victim(&fake);
        fake_connect(&fake, &client, NULL, 0);
        fake_register(&client);
        hl_stream busy = fake_busy_stream(&fake);
        hl_publish_request request = make_publish();
        HL_REQUIRE_OK(hl_publish_start(client.binding, &request, &publish, &client.err), client.err);
        fake_await_received(&fake, HL_MESSAGE_PUBLISH, 1);
        request.has_producer_stream = true;
        request.producer_stream = busy;
        HL_REQUIRE_OK(hl_publish_start(client.binding, &request, &late, &client.err), client.err);
        fake_hang_up(&fake);
        fake_await_loss(&client, HL_E_PEER);
        expect_publish(late, HL_E_PEER, 0, 0);
        CU_ASSERT_EQUAL(hl_publish_poll(publish, NULL, NULL), HL_PENDING);
        if (die)
            fake_kill_victim(&fake);
        else
            fake_finish_publish(&fake, fake.publish.slot, HL_OK, 3, 0);
        expect_publish(publish, die ? HL_E_PEER : HL_OK, die ? 0 : 3, 0);
        hl_software_release(fake.dev, busy);
        fake_stream_end(&fake, busy);
        fake_close_all(&fake, &client);
    }
}

static void bad_publish_requests_are_refused(void)
{
    static uint32_t outside[3] = {0, FAKE_PAGES, 1};
    struct fake fake;
    struct fake_client client;
    hl_publish *publish = NULL;
    fake_open_all(&fake, &client);
    const hl_publish_request good = make_publish();
    hl_publish_request request;
#define EXPECT_PUBLISH(change, wanted)                                                                       \
    request = good;                                                                                          \
    change;                                                                                                  \
    HL_EXPECT_STATUS(hl_publish_start(client.binding, &request, &publish, &client.err), wanted, client.err)
    EXPECT_PUBLISH(request.size = 1, HL_E_INVALID);
    EXPECT_PUBLISH(request.keys = NULL, HL_E_INVALID);
    EXPECT_PUBLISH(request.pages = NULL, HL_E_INVALID);
    EXPECT_PUBLISH(request.count = 0, HL_E_INVALID);
    EXPECT_PUBLISH(request.count = HL_PUBLISH_BLOCKS + 1, HL_E_LIMIT);
    EXPECT_PUBLISH(request.group = 1, HL_E_RANGE);
    EXPECT_PUBLISH(request.pages = outside, HL_E_RANGE);
    CU_ASSERT_PTR_NULL(publish);
    fake_close_all(&fake, &client);
}

/* R9, R10: whatever is wrong with a restore is refused before a record is announced or a lease consumed. */
static void bad_restore_requests_are_refused(void)
{
    static const uint32_t pages[4] = {0, 1, 2, 3}, outside[4] = {0, 1, 2, FAKE_PAGES};
    struct fake fake;
    struct fake_client client;
    hl_restore *restore = NULL;
    fake_open_all(&fake, &client);
    void *events[FAKE_LAYERS], *twice[FAKE_LAYERS], *missing[FAKE_LAYERS], *dead[FAKE_LAYERS];
    for (uint32_t i = 0; i < FAKE_LAYERS; i++)
        events[i] = twice[i] = missing[i] = dead[i] = fake.events[i];
    twice[2] = twice[0];
    missing[1] = NULL;
    dead[1] = &fake; /* no event of this device */
    hl_restore_source source, good_source = {fake_query(&client, 0, 4), pages, 4}, two[2];
    hl_restore_request request, good;
    hl_restore_request_init(&good);
    good.sources = &source;
    good.source_count = 1;
    good.layer_events = events;
#define EXPECT_RESTORE(change, wanted)                                                                       \
    source = good_source;                                                                                    \
    request = good;                                                                                          \
    change;                                                                                                  \
    HL_EXPECT_STATUS(hl_restore_start(client.binding, &request, &restore, &client.err), wanted, client.err)
    HL_EXPECT_STATUS(hl_restore_start(client.binding, NULL, &restore, &client.err), HL_E_INVALID, client.err);
    EXPECT_RESTORE(request.size = 1, HL_E_INVALID);
    EXPECT_RESTORE(request.sources = NULL, HL_E_INVALID);
    EXPECT_RESTORE(request.source_count = 0, HL_E_INVALID);
    EXPECT_RESTORE(request.source_count = HL_RESTORE_LEASES + 1, HL_E_LIMIT);
    EXPECT_RESTORE(source.lease = NULL, HL_E_INVALID);
    EXPECT_RESTORE(source.pages = NULL, HL_E_INVALID);
    EXPECT_RESTORE(source.pages = outside, HL_E_RANGE);
    EXPECT_RESTORE(source.count = 0, HL_E_RANGE);
    EXPECT_RESTORE(source.count = 5, HL_E_RANGE);
    EXPECT_RESTORE(request.layer_events = twice, HL_E_INVALID);
    EXPECT_RESTORE(request.layer_events = missing, HL_E_INVALID);
    EXPECT_RESTORE(request.layer_events = dead, HL_E_INVALID);
    two[0] = two[1] = good_source;
    EXPECT_RESTORE((request.sources = two, request.source_count = 2), HL_E_INVALID);
    CU_ASSERT_PTR_NULL(restore);
    CU_ASSERT_EQUAL(client.engine->free_count, HL_GRANT_RECORDS);
    CU_ASSERT_EQUAL(good_source.lease->use, ENGINE_LEASE_IDLE);
    for (uint32_t i = 0; i < HL_GRANT_RECORDS; i++)
        CU_ASSERT_EQUAL(hl_grant_load(fake.grants, i).state, HL_GRANT_FREE);
    /* The lease is as good as before; without events too. */
    EXPECT_RESTORE(request.layer_events = NULL, HL_OK);
    uint32_t record = fake_grant_next(&fake);
    fake_await_and_reap(&fake, record);
    HL_EXPECT_OK(hl_restore_wait(restore, -1, NULL, &client.err), client.err);
    hl_restore_close(restore);
    hl_lease_release(good_source.lease);
    fake_close_all(&fake, &client);
}

HL_TESTS(engine_publish, HL_CASE(blocks_are_announced_and_the_outcome_is_read),
         HL_CASE(too_little_space_says_how_much_fitted), HL_CASE(a_lost_publish_wake_up_only_delays),
         HL_CASE(a_busy_producer_holds_the_announcement_back), HL_CASE(a_failed_producer_stream_rejects),
         HL_CASE(a_refused_publish_frees_its_slot), HL_CASE(publishes_are_bounded_by_slots),
         HL_CASE(a_senseless_slot_is_a_protocol_error), HL_CASE(an_accepted_publish_outlives_the_channel),
         HL_CASE(bad_publish_requests_are_refused), HL_CASE(bad_restore_requests_are_refused));
