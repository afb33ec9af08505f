/* Restores and publishes through the dispatcher: signals, marks, channels that close, processes that die. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/device/software.h"
#include "manager/client_testing.h"

/* --- restores: how the dispatcher gets to them --- */

static void restore(struct stand *stand, bool lose_notifications)
{
    struct client client;
    client_open(&client, HL_PEER_ENGINE);
    uint32_t binding = client_register(&client, "engine", 0);
    stand_put_blocks(stand, &client, binding, 4);
    struct hl_lease_message lease = client_query(&client, binding, 0, 4);
    uint32_t generation = client_submit(&client, 5, binding, &lease);
    client_await(&client, 5, HL_GRANT_GRANTED);
    CU_ASSERT_EQUAL(stand_stats(stand).operations, 1);
    stand_check(stand);
    /* With operations admitted, UNREGISTER waits. */
    struct hl_unregister unregister = {.binding = binding};
    client_request(&client, &unregister, HL_MESSAGE_UNREGISTER);
    struct hl_release release = {.lease = 999};
    client_request(&client, &release, HL_MESSAGE_RELEASE);
    client_expect_error(&client, HL_E_NOT_FOUND, "");
    client_send_query(&client, binding, 0, 1);
    client_expect_error(&client, HL_E_STATE, "being unregistered");
    client_drain(&client, 5, generation);
    if (!lose_notifications)
        client_notify(&client, 5);
    client_await(&client, 5, HL_GRANT_REAPED);
    struct hl_packet packet;
    client.sequence -= 2; /* UNREGISTER's */
    client_expect(&client, HL_MESSAGE_DONE, &packet);
    client.sequence += 2;
    CU_ASSERT_EQUAL(stand_stats(stand).operations, 0);
    CU_ASSERT_EQUAL(stand_stats(stand).bindings, 0);
    CU_ASSERT_EQUAL(stand_stats(stand).reserved_bytes, 0);
    CU_ASSERT_EQUAL(stand_stats(stand).restored, 1);
    stand_check(stand);
    client_bye(&client);
}

static void unregister_waits_for_the_bindings_operations(void)
{
    static struct stand stand;
    stand_open(&stand, NULL);
    restore(&stand, false);
    stand_close(&stand);
}

static void a_lost_notification_only_delays(void)
{
    static struct stand stand;
    stand_open(&stand, NULL);
    restore(&stand, true);
    stand_close(&stand);
}

static void spin(hl_manager_options *options)
{
    options->spin_us = HL_MANAGER_SPIN_US;
}

static void a_spinning_dispatcher_sees_marks_without_a_signal(void)
{
    static struct stand stand;
    stand_open(&stand, spin);
    restore(&stand, false);
    stand_close(&stand);
}

static void records_are_served_after_the_channel_was_closed(void)
{
    static struct stand stand;
    struct client client;
    stand_open(&stand, NULL);
    client_open(&client, HL_PEER_ENGINE);
    uint32_t binding = client_register(&client, "engine", 0);
    stand_put_blocks(&stand, &client, binding, 4);
    struct hl_lease_message one = client_query(&client, binding, 0, 2),
                            two = client_query(&client, binding, 0, 4);
    uint32_t first = client_submit(&client, 0, binding, &one);
    client_await(&client, 0, HL_GRANT_GRANTED);
    close(client.fd);
    client.fd = -1;
    stand_sync(&stand);
    CU_ASSERT_EQUAL(stand_stats(&stand).sessions, 1);
    /* What was granted goes on, and what is asked through the records is answered: the leases are still held.
     */
    uint32_t second = client_submit(&client, 1, binding, &two);
    client_await(&client, 1, HL_GRANT_GRANTED);
    client_drain(&client, 0, first);
    client_drain(&client, 1, second);
    client_notify(&client, 0);
    client_notify(&client, 1);
    client_await(&client, 0, HL_GRANT_REAPED);
    client_await(&client, 1, HL_GRANT_REAPED);
    /* Nothing can be asked for any more: the session ends though its process lives. */
    stand_sync(&stand);
    CU_ASSERT_EQUAL(stand_stats(&stand).sessions, 0);
    CU_ASSERT_EQUAL(stand_stats(&stand).reserved_bytes, 0);
    stand_check(&stand);
    client_close(&client);
    stand_close(&stand);
}

static void stopping_revokes_what_nobody_claimed(void)
{
    static struct stand stand;
    struct client client;
    stand_open(&stand, NULL);
    client_open(&client, HL_PEER_ENGINE);
    uint32_t binding = client_register(&client, "engine", 0);
    stand_put_blocks(&stand, &client, binding, 1);
    struct hl_lease_message lease = client_query(&client, binding, 0, 1);
    client_submit(&client, 0, binding, &lease);
    client_await(&client, 0, HL_GRANT_GRANTED);
    CU_ASSERT_EQUAL(stand_close(&stand), 0);
    CU_ASSERT_EQUAL(hl_grant_load(client.grants, 0).state, HL_GRANT_REAPED);
    client_close(&client);
}

/* --- exports: an engine in a process of its own --- */

enum { ALLOCATION_BYTES = 8192, FIRST_OFFSET = 512, PUBLISHED_PAGE = 3 };

/* Cuts its tensors from one allocation and publishes a page, byte i of which (over all tensors, in their
 * order) is i. Then it stays until the Manager goes. */
static void role_publisher(void)
{
    struct client client;
    struct test_binding binding;
    struct hl_packet packet;
    hl_device *dev;
    hl_devptr memory;
    if (!client_is_role())
        return;
    client_open(&client, HL_PEER_ENGINE);
    test_binding_fill(&binding, "publisher", 0);
    HL_REQUIRE_OK(hl_device_open_software(&dev, &client.err), client.err);
    HL_REQUIRE_OK(hl_device_enter(dev, &client.err), client.err);
    HL_REQUIRE_OK(dev->ops->mem_alloc(dev, ALLOCATION_BYTES, &memory, &client.err), client.err);
    for (uint32_t i = 0, byte = 0; i < TEST_TENSORS; i++) {
        const hl_devptr tensor = memory + FIRST_OFFSET + i * binding.tensors[i].tensor.bytes;
        unsigned char page[TEST_BLOCK_BYTES / TEST_TENSORS];
        HL_REQUIRE_OK(dev->ops->ipc_export(dev, tensor, &binding.tensors[i].export, &client.err), client.err);
        for (size_t j = 0; j < sizeof page; j++)
            page[j] = (unsigned char)byte++;
        hl_software_poke(dev, tensor + PUBLISHED_PAGE * sizeof page, page, sizeof page);
    }
    client_send_register(&client, &binding);
    client_expect(&client, HL_MESSAGE_REGISTERED, &packet);
    hl_packet_close_fds(&packet);
    const uint32_t number = ((const struct hl_registered *)packet.bytes)->binding;
    struct hl_publish_message message = client_publish_of(&client, number, PUBLISHED_PAGE);
    struct hl_publish_slot *slot = hl_descriptors_slot(client.descriptors, 0);
    atomic_store(&slot->state, HL_PUBLISH_PENDING);
    client_request(&client, &message, HL_MESSAGE_PUBLISH);
    client_expect(&client, HL_MESSAGE_DONE, &packet);
    client_expect_closed(&client);
    CU_ASSERT_EQUAL(atomic_load(&slot->state), HL_PUBLISH_FINISHED);
    CU_ASSERT_EQUAL(slot->status, HL_OK);
    CU_ASSERT_EQUAL(slot->stored, 1);
    client_close(&client);
    hl_device_leave(dev);
    hl_device_close(dev);
}

static void tensors_cut_from_one_allocation_are_imported_once_and_published(void)
{
    static struct stand stand;
    const struct hl_index_key key = {.space = 1};
    struct hl_index_source source;
    hl_entry_id entry;
    stand_open(&stand, NULL);
    int pid = client_spawn("role_publisher");
    while (stand_stats(&stand).published_blocks == 0 && kill(pid, 0) == 0)
        stand_sync(&stand);
    pthread_mutex_lock(&stand.manager->lock);
    CU_ASSERT_EQUAL(stand.manager->sessions[0].bindings[0].import_count, 1);
    CU_ASSERT_EQUAL(stand.manager->sessions[0].bindings[0].publishes, 0);
    HL_REQUIRE_OK(hl_index_find(stand.manager->index, &key, &entry, &stand.err), stand.err);
    HL_REQUIRE_OK(hl_index_source(stand.manager->index, entry, &source, &stand.err), stand.err);
    const unsigned char *block =
        (const unsigned char *)hl_arena_base(stand.manager->arenas[source.arena]) + source.offset;
    CU_ASSERT_EQUAL(source.bytes, TEST_BLOCK_BYTES);
    for (uint32_t i = 0; i < TEST_BLOCK_BYTES; i++)
        CU_ASSERT_EQUAL(block[i], (unsigned char)i);
    pthread_mutex_unlock(&stand.manager->lock);
    stand_check(&stand);
    stand_close(&stand);
    CU_ASSERT_EQUAL(client_wait(pid), 0);
}

HL_TESTS(manager_serving, HL_CASE(unregister_waits_for_the_bindings_operations),
         HL_CASE(a_lost_notification_only_delays), HL_CASE(a_spinning_dispatcher_sees_marks_without_a_signal),
         HL_CASE(records_are_served_after_the_channel_was_closed),
         HL_CASE(stopping_revokes_what_nobody_claimed),
         HL_CASE(tensors_cut_from_one_allocation_are_imported_once_and_published), HL_CASE(role_publisher));
