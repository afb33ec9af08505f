/* What a session asks for: bindings, queries, leases, publishes, and what it gets for nonsense. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "manager/client_testing.h"

static void a_registration_brings_every_arena(void)
{
    static struct stand stand;
    struct client client;
    struct test_binding binding;
    struct hl_packet packet;
    hl_arena *arena;
    stand_open(&stand, NULL);
    client_open(&client, HL_PEER_ENGINE);
    test_binding_fill(&binding, "engine", 3);
    client_send_register(&client, &binding);
    client_expect(&client, HL_MESSAGE_REGISTERED, &packet);
    const struct hl_registered *reply = (const struct hl_registered *)packet.bytes;
    CU_ASSERT_EQUAL(reply->arena_count, 2);
    CU_ASSERT_EQUAL_FATAL(packet.fd_count, 2);
    for (unsigned i = 0; i < 2; i++) {
        CU_ASSERT_EQUAL(reply->arenas[i].bytes, STAND_ARENA_BYTES);
        HL_REQUIRE_OK(hl_arena_import(packet.fds[i], reply->arenas[i].arena_id, reply->arenas[i].bytes,
                                      reply->chunk_bytes, &arena, &client.err),
                      client.err);
        hl_arena_destroy(arena);
    }
    hl_packet_close_fds(&packet);
    CU_ASSERT_EQUAL(stand_stats(&stand).bindings, 1);
    stand_check(&stand);
    client_bye(&client);
    stand_sync(&stand);
    CU_ASSERT_EQUAL(stand_stats(&stand).bindings, 0);
    stand_close(&stand);
}

static void a_second_registration_of_the_same_instance_rank_and_device_is_refused(void)
{
    static struct stand stand;
    struct client one, two;
    struct test_binding binding;
    struct hl_packet packet;
    stand_open(&stand, NULL);
    client_open(&one, HL_PEER_ENGINE);
    client_open(&two, HL_PEER_ENGINE);
    uint32_t first = client_register(&one, "engine", 0);
    test_binding_fill(&binding, "engine", 0);
    client_send_register(&one, &binding);
    client_expect_error(&one, HL_E_BUSY, "\"engine\" rank 0");
    client_send_register(&two, &binding);
    client_expect_error(&two, HL_E_BUSY, "process");
    /* Another rank or instance is another binding. */
    CU_ASSERT_NOT_EQUAL(client_register(&one, "engine", 1), first);
    client_register(&two, "other", 0);
    CU_ASSERT_EQUAL(stand_stats(&stand).bindings, 3);
    /* Once it is gone it may come again: another's, too. */
    struct hl_unregister unregister = {.binding = first};
    client_request(&one, &unregister, HL_MESSAGE_UNREGISTER);
    client_expect(&one, HL_MESSAGE_DONE, &packet);
    client_register(&two, "engine", 0);
    client_close(&two);
    stand_sync(&stand);
    client_register(&one, "engine", 0);
    client_bye(&one);
    stand_close(&stand);
}

static void a_binding_that_is_gone_answers_nothing(void)
{
    static struct stand stand;
    struct client client;
    struct hl_packet packet;
    stand_open(&stand, NULL);
    client_open(&client, HL_PEER_ENGINE);
    uint32_t number = client_register(&client, "engine", 0);
    struct hl_unregister unregister = {.binding = number};
    client_request(&client, &unregister, HL_MESSAGE_UNREGISTER);
    client_expect(&client, HL_MESSAGE_DONE, &packet);
    client_request(&client, &unregister, HL_MESSAGE_UNREGISTER);
    client_expect_error(&client, HL_E_NOT_FOUND, "not registered");
    client_send_query(&client, number, 0, 1);
    client_expect_error(&client, HL_E_NOT_FOUND, "not registered");
    unregister.binding = UINT32_MAX;
    client_request(&client, &unregister, HL_MESSAGE_UNREGISTER);
    client_expect_error(&client, HL_E_NOT_FOUND, "not registered");
    client_bye(&client);
    stand_close(&stand);
}

static void what_a_registration_says_is_checked(void)
{
    static struct stand stand;
    struct client client;
    struct test_binding binding;
    stand_open(&stand, NULL);
    client_open(&client, HL_PEER_ENGINE);
    test_binding_fill(&binding, "engine", 0);
    memset(binding.head.device_uuid, 0x5a, sizeof binding.head.device_uuid);
    client_send_register(&client, &binding);
    client_expect_error(&client, HL_E_NO_DEVICE, "5a5a5a5a5a5a5a5a");
    /* An export that is no handle of this device. */
    test_binding_fill(&binding, "engine", 0);
    binding.tensors[1].export.handle[0] = 1;
    binding.tensors[1].export.allocation_bytes = binding.tensors[1].tensor.bytes;
    client_send_register(&client, &binding);
    client_expect_error(&client, HL_E_INVALID, "handle");
    CU_ASSERT_EQUAL(stand_stats(&stand).bindings, 0);
    stand_check(&stand);
    client_register(&client, "engine", 0);
    client_bye(&client);
    stand_close(&stand);
}

static void more_bindings_than_a_session_may_have_are_refused(void)
{
    static struct stand stand;
    struct client client;
    struct test_binding binding;
    stand_open(&stand, NULL);
    client_open(&client, HL_PEER_ENGINE);
    for (uint32_t i = 0; i < HL_SESSION_BINDINGS; i++)
        CU_ASSERT_EQUAL(client_register(&client, "engine", i), i);
    test_binding_fill(&binding, "engine", HL_SESSION_BINDINGS);
    client_send_register(&client, &binding);
    client_expect_error(&client, HL_E_LIMIT, "64 bindings");
    client_bye(&client);
    stand_close(&stand);
}

/* --- queries and leases --- */

static void a_query_pins_the_longest_prefix_and_release_gives_it_back(void)
{
    static struct stand stand;
    struct client client;
    struct hl_packet packet;
    stand_open(&stand, NULL);
    client_open(&client, HL_PEER_ENGINE);
    uint32_t binding = client_register(&client, "engine", 0);
    stand_put_blocks(&stand, &client, binding, 5);
    struct hl_lease_message none = client_query(&client, binding, 5, 3);
    CU_ASSERT_EQUAL(none.hits, 0);
    CU_ASSERT_EQUAL(none.lease, 0);
    struct hl_lease_message lease = client_query(&client, binding, 2, 6);
    CU_ASSERT_EQUAL(lease.hits, 3);
    CU_ASSERT_EQUAL(lease.bytes, 3 * TEST_BLOCK_BYTES);
    CU_ASSERT_EQUAL(lease.ttl_ms, HL_LEASE_TTL_MS);
    CU_ASSERT_EQUAL(stand_stats(&stand).leases, 1);
    CU_ASSERT_EQUAL(stand_stats(&stand).reserved_bytes, 3 * TEST_BLOCK_BYTES);
    stand_check(&stand);
    struct hl_release release = {.lease = lease.lease};
    client_request(&client, &release, HL_MESSAGE_RELEASE);
    client_expect(&client, HL_MESSAGE_DONE, &packet);
    client_request(&client, &release, HL_MESSAGE_RELEASE);
    client_expect_error(&client, HL_E_NOT_FOUND, "");
    CU_ASSERT_EQUAL(stand_stats(&stand).leases, 0);
    CU_ASSERT_EQUAL(stand_stats(&stand).reserved_bytes, 0);
    client_bye(&client);
    stand_close(&stand);
}

static void another_sessions_lease_is_not_ones_own(void)
{
    static struct stand stand;
    struct client owner, other;
    struct hl_packet packet;
    stand_open(&stand, NULL);
    client_open(&owner, HL_PEER_ENGINE);
    client_open(&other, HL_PEER_ENGINE);
    uint32_t binding = client_register(&owner, "engine", 0);
    stand_put_blocks(&stand, &owner, binding, 2);
    struct hl_lease_message lease = client_query(&owner, binding, 0, 2);
    struct hl_release release = {.lease = lease.lease};
    client_request(&other, &release, HL_MESSAGE_RELEASE);
    client_expect_error(&other, HL_E_PERMISSION, "");
    CU_ASSERT_EQUAL(stand_stats(&stand).leases, 1);
    client_request(&owner, &release, HL_MESSAGE_RELEASE);
    client_expect(&owner, HL_MESSAGE_DONE, &packet);
    client_bye(&owner);
    client_bye(&other);
    stand_close(&stand);
}

static void bound_session(hl_manager_options *options)
{
    options->session_bytes = 4ull * TEST_BLOCK_BYTES;
}

static void a_query_beyond_the_sessions_bytes_is_refused_and_reserves_nothing(void)
{
    static struct stand stand;
    struct client client;
    stand_open(&stand, bound_session);
    client_open(&client, HL_PEER_ENGINE);
    uint32_t binding = client_register(&client, "engine", 0);
    stand_put_blocks(&stand, &client, binding, 6);
    struct hl_lease_message lease = client_query(&client, binding, 0, 3);
    CU_ASSERT_EQUAL(lease.hits, 3);
    client_send_query(&client, binding, 0, 2);
    client_expect_error(&client, HL_E_BUDGET, "");
    CU_ASSERT_EQUAL(stand_stats(&stand).reserved_bytes, 3 * TEST_BLOCK_BYTES);
    CU_ASSERT_EQUAL(client_query(&client, binding, 0, 1).hits, 1);
    stand_check(&stand);
    client_bye(&client); /* gives all leases back */
    stand_sync(&stand);
    CU_ASSERT_EQUAL(stand_stats(&stand).reserved_bytes, 0);
    CU_ASSERT_EQUAL(stand_stats(&stand).leases, 0);
    stand_close(&stand);
}

static void live_a_millisecond(hl_manager_options *options)
{
    options->lease_ttl_ms = 1;
}

static void a_lease_expires_and_its_bytes_come_back(void)
{
    static struct stand stand;
    struct client client;
    stand_open(&stand, live_a_millisecond);
    client_open(&client, HL_PEER_ENGINE);
    uint32_t binding = client_register(&client, "engine", 0);
    stand_put_blocks(&stand, &client, binding, 2);
    struct hl_lease_message lease = client_query(&client, binding, 0, 2);
    CU_ASSERT_EQUAL(lease.ttl_ms, 1);
    /* Maintenance ends it, within a second: the Manager is asked until it has. */
    while (stand_stats(&stand).leases > 0)
        stand_sync(&stand);
    CU_ASSERT_EQUAL(stand_stats(&stand).reserved_bytes, 0);
    struct hl_release release = {.lease = lease.lease};
    client_request(&client, &release, HL_MESSAGE_RELEASE);
    client_expect_error(&client, HL_E_EXPIRED, "");
    stand_check(&stand);
    client_bye(&client);
    stand_close(&stand);
}

static void a_namespace_is_shared_by_what_means_the_same_bytes(void)
{
    static struct stand stand;
    struct client client;
    struct test_binding other;
    struct hl_packet packet;
    stand_open(&stand, NULL);
    client_open(&client, HL_PEER_ENGINE);
    uint32_t first = client_register(&client, "one", 0), second = client_register(&client, "two", 0);
    test_binding_fill(&other, "three", 0);
    other.head.model_digest[5] = 1;
    client_send_register(&client, &other);
    client_expect(&client, HL_MESSAGE_REGISTERED, &packet);
    hl_packet_close_fds(&packet);
    uint32_t third = ((const struct hl_registered *)packet.bytes)->binding;
    stand_put_blocks(&stand, &client, first, 4);
    CU_ASSERT_EQUAL(client_query(&client, second, 0, 4).hits, 4);
    CU_ASSERT_EQUAL(client_query(&client, third, 0, 4).hits, 0);
    client_bye(&client);
    stand_close(&stand);
}

/* --- hostile extents --- */

/* One request on a session of its own, which it ends. */
static void expect_session_lost(void *message, enum hl_message_kind kind, const char *text)
{
    struct client client;
    client_open(&client, HL_PEER_ENGINE);
    client_register(&client, "hostile", 0);
    client_request(&client, message, kind);
    client_expect_error(&client, HL_E_PROTOCOL, text);
    client_expect_closed(&client);
    client_close(&client);
}

static void extents_outside_the_descriptor_memory_end_the_session(void)
{
    static struct stand stand;
    struct client bystander;
    const struct hl_extent wrong[] = {
        {HL_DESCRIPTOR_BYTES, 64},
        {HL_DESCRIPTOR_BYTES - 32, 64},
        {0, 64},
        {HL_DESCRIPTOR_HEADER_BYTES - 8, 64},
        {UINT32_MAX - 7, 64},
        {HL_DESCRIPTOR_HEADER_BYTES + 4, 64},
        {HL_DESCRIPTOR_HEADER_BYTES, 0},
    };
    stand_open(&stand, NULL);
    client_open(&bystander, HL_PEER_ENGINE);
    client_register(&bystander, "bystander", 0);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct hl_register message = {.extent = wrong[i]};
        expect_session_lost(&message, HL_MESSAGE_REGISTER, "");
        struct hl_query_message query = {
            .key_count = 2, .keys = wrong[i], .residency = {HL_DESCRIPTOR_HEADER_BYTES, 64}};
        expect_session_lost(&query, HL_MESSAGE_QUERY, "");
        query.keys = (struct hl_extent){HL_DESCRIPTOR_HEADER_BYTES, 64};
        query.residency = wrong[i];
        expect_session_lost(&query, HL_MESSAGE_QUERY, "");
        struct hl_publish_message publish = {.block_count = 2, .blocks = wrong[i]};
        expect_session_lost(&publish, HL_MESSAGE_PUBLISH, "");
    }
    struct hl_query_message few = {.key_count = 3,
                                   .keys = {HL_DESCRIPTOR_HEADER_BYTES, 64},
                                   .residency = {HL_DESCRIPTOR_HEADER_BYTES + 128, 64}};
    expect_session_lost(&few, HL_MESSAGE_QUERY, "keys");
    few.key_count = 2;
    few.residency.bytes = 1;
    expect_session_lost(&few, HL_MESSAGE_QUERY, "residency");
    stand_sync(&stand);
    CU_ASSERT_EQUAL(stand_stats(&stand).sessions, 1);
    CU_ASSERT_EQUAL(stand_stats(&stand).bindings, 1);
    stand_check(&stand);
    client_bye(&bystander);
    stand_close(&stand);
}

static void a_registration_of_noise_ends_the_session(void)
{
    static struct stand stand;
    struct client client;
    struct hl_register message;
    void *at;
    stand_open(&stand, NULL);
    client_open(&client, HL_PEER_ENGINE);
    memset(&message, 0, sizeof message);
    HL_REQUIRE_OK(hl_descriptors_take(client.descriptors, 65536, &message.extent, &at, &client.err),
                  client.err);
    memset(at, 0xa5, 65536);
    client_request(&client, &message, HL_MESSAGE_REGISTER);
    client_expect_error(&client, HL_E_PROTOCOL, "");
    client_expect_closed(&client);
    client_close(&client);
    stand_close(&stand);
}

/* --- publishing: what is refused before a publisher sees it --- */

static void a_publish_without_exports_is_refused(void)
{
    static struct stand stand;
    struct client client;
    stand_open(&stand, NULL);
    client_open(&client, HL_PEER_ENGINE);
    struct hl_publish_message message = client_publish_of(&client, client_register(&client, "engine", 0), 0);
    struct hl_publish_slot *slot = hl_descriptors_slot(client.descriptors, 0);
    atomic_store(&slot->state, HL_PUBLISH_PENDING);
    client_request(&client, &message, HL_MESSAGE_PUBLISH);
    client_expect_error(&client, HL_E_UNSUPPORTED, "without exports");
    message.group = 1;
    client_request(&client, &message, HL_MESSAGE_PUBLISH);
    client_expect_error(&client, HL_E_INVALID, "group is 1");
    CU_ASSERT_EQUAL(atomic_load(&slot->state), HL_PUBLISH_PENDING);
    stand_check(&stand);
    client_bye(&client);
    stand_close(&stand);
}

/* The engine cannot know what became of it, and must not wait for ever. */
static void a_publish_that_nobody_has_read_ends_with_the_channel(void)
{
    static struct stand stand;
    struct client client;
    uint64_t count = 0;
    struct hl_register noise = {.extent = {HL_DESCRIPTOR_BYTES, 64}};
    stand_open(&stand, NULL);
    client_open(&client, HL_PEER_ENGINE);
    client_register(&client, "engine", 0);
    struct hl_publish_slot *slot = hl_descriptors_slot(client.descriptors, 3);
    atomic_store(&slot->state, HL_PUBLISH_PENDING);
    client_request(&client, &noise, HL_MESSAGE_REGISTER);
    client_expect_error(&client, HL_E_PROTOCOL, "");
    client_expect_closed(&client);
    stand_sync(&stand);
    CU_ASSERT_EQUAL(atomic_load(&slot->state), HL_PUBLISH_FINISHED);
    CU_ASSERT_EQUAL(slot->status, HL_E_PEER);
    CU_ASSERT_STRING_EQUAL(slot->text, "the session has ended");
    CU_ASSERT_EQUAL(read(client.signals[HL_FD_PUBLISH], &count, sizeof count), sizeof count);
    CU_ASSERT_EQUAL(atomic_load(&hl_descriptors_slot(client.descriptors, 0)->state), HL_PUBLISH_IDLE);
    client_close(&client);
    stand_close(&stand);
}

static void a_publish_into_a_slot_that_is_not_pending_ends_the_session(void)
{
    static struct stand stand;
    struct client client;
    stand_open(&stand, NULL);
    client_open(&client, HL_PEER_ENGINE);
    struct hl_publish_message message = client_publish_of(&client, client_register(&client, "engine", 0), 0);
    client_request(&client, &message, HL_MESSAGE_PUBLISH);
    client_expect_error(&client, HL_E_PROTOCOL, "slot 0 is not PENDING");
    client_expect_closed(&client);
    client_close(&client);
    stand_close(&stand);
}

HL_TESTS(manager_requests, HL_CASE(a_registration_brings_every_arena),
         HL_CASE(a_second_registration_of_the_same_instance_rank_and_device_is_refused),
         HL_CASE(a_binding_that_is_gone_answers_nothing), HL_CASE(what_a_registration_says_is_checked),
         HL_CASE(more_bindings_than_a_session_may_have_are_refused),
         HL_CASE(a_query_pins_the_longest_prefix_and_release_gives_it_back),
         HL_CASE(another_sessions_lease_is_not_ones_own),
         HL_CASE(a_query_beyond_the_sessions_bytes_is_refused_and_reserves_nothing),
         HL_CASE(a_lease_expires_and_its_bytes_come_back),
         HL_CASE(a_namespace_is_shared_by_what_means_the_same_bytes),
         HL_CASE(extents_outside_the_descriptor_memory_end_the_session),
         HL_CASE(a_registration_of_noise_ends_the_session), HL_CASE(a_publish_without_exports_is_refused),
         HL_CASE(a_publish_that_nobody_has_read_ends_with_the_channel),
         HL_CASE(a_publish_into_a_slot_that_is_not_pending_ends_the_session));
