/* One operation on the software device against a scripted Manager: bytes, parts, races, failures. */
#include "engine/fake_peer.h"

static void open_all(struct fake *fake, struct fake_client *client)
{
    fake_open(fake);
    fake_connect(fake, client, NULL, 0);
    fake_register(client);
}

static void close_all(struct fake *fake, struct fake_client *client)
{
    fake_disconnect(client);
    fake_close(fake);
}

/* The usual end: DRAINED is reaped, the record serves a new generation, the handle says what happened. */
static void expect_outcome(hl_restore *restore, hl_status status, bool untouched)
{
    hl_restore_result result;
    hl_error err = {0};
    HL_EXPECT_STATUS(hl_restore_wait(restore, -1, &result, &err), status, err);
    CU_ASSERT_EQUAL(result.status, status);
    CU_ASSERT_EQUAL(result.untouched, untouched);
    CU_ASSERT_EQUAL(hl_restore_poll(restore, &result, &err), status);
    hl_restore_close(restore);
}

static void reap(struct fake *fake, uint32_t record)
{
    fake_await_state(fake, record, HL_GRANT_DRAINED);
    fake_reap(fake, record);
}

/* R1, R9, R10 */
static void blocks_arrive_and_every_layer_event_is_recorded(void)
{
    struct fake fake;
    struct fake_client client;
    open_all(&fake, &client);
    hl_restore *restore = fake_restore(&client, 3, 20);
    CU_ASSERT_EQUAL(hl_restore_poll(restore, NULL, NULL), HL_PENDING);
    uint32_t record = fake_grant_next(&fake);
    HL_EXPECT_OK(hl_restore_wait_enqueued(restore, -1, &client.err), client.err);
    reap(&fake, record);
    expect_outcome(restore, HL_OK, false);
    for (uint32_t i = 0; i < FAKE_LAYERS; i++)
        CU_ASSERT_EQUAL(fake_event_query(&fake, fake.events[i]), HL_OK);
    CU_ASSERT_TRUE(fake_tensors_match(&fake));
    CU_ASSERT_EQUAL(fake_received(&fake, HL_MESSAGE_RELEASE), 0); /* consumed leases are not given back */
    close_all(&fake, &client);
}

HL_TESTS(engine_restore, HL_CASE(blocks_arrive_and_every_layer_event_is_recorded));
