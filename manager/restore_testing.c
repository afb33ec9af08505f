/* Bindings, blocks and restores of the tests' clients. */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "manager/client_testing.h"

static hl_layout *make_layout(void)
{
    const struct hl_model_geometry geometry = {
        .name = "test", .layers = 2, .kv_heads = 1, .head_dim = 16, .element_bytes = 2};
    const struct hl_layout_options options = {
        .kind = HL_LAYOUT_SPLIT, .page_tokens = 4, .pages = TEST_PAGES, .element_bytes = 2};
    hl_layout *layout = NULL;
    hl_error err;
    HL_REQUIRE_OK(hl_layout_from_model(&geometry, &options, &layout, &err), err);
    return layout;
}

void test_binding_fill(struct test_binding *binding, const char *instance, uint32_t rank)
{
    hl_layout *layout = make_layout();
    hl_device *dev;
    hl_error err;
    memset(binding, 0, sizeof *binding);
    CU_ASSERT_EQUAL_FATAL(layout->tensor_count, TEST_TENSORS);
    CU_ASSERT_EQUAL_FATAL(layout->component_count, TEST_TENSORS);
    CU_ASSERT_EQUAL_FATAL(layout->groups[0].block_bytes, TEST_BLOCK_BYTES);
    snprintf(binding->head.instance, sizeof binding->head.instance, "%s", instance);
    snprintf(binding->head.model, sizeof binding->head.model, "test model");
    binding->head.rank = rank;
    binding->head.layers = layout->layers;
    binding->head.page_tokens = layout->page_tokens;
    binding->head.group_count = layout->group_count;
    binding->head.tensor_count = layout->tensor_count;
    binding->head.component_count = layout->component_count;
    memcpy(binding->head.groups, layout->groups, sizeof binding->head.groups);
    binding->head.content = layout->content;
    for (uint32_t i = 0; i < TEST_TENSORS; i++) {
        binding->tensors[i].tensor = layout->tensors[i];
        binding->components[i] = layout->components[i];
    }
    HL_REQUIRE_OK(hl_device_open_software(&dev, &err), err);
    memcpy(binding->head.device_uuid, dev->info.uuid, sizeof binding->head.device_uuid);
    hl_device_close(dev);
    hl_layout_free(layout);
}

struct hl_extent client_send_register(struct client *client, const struct test_binding *binding)
{
    struct hl_register message;
    const size_t bytes = hl_wire_binding_bytes(TEST_TENSORS, TEST_TENSORS);
    void *at;
    memset(&message, 0, sizeof message);
    HL_REQUIRE_OK(
        hl_descriptors_take(client->descriptors, (uint32_t)bytes, &message.extent, &at, &client->err),
        client->err);
    HL_REQUIRE_OK(hl_wire_binding_encode(&binding->head, binding->tensors, binding->components, at, bytes,
                                         &client->err),
                  client->err);
    client_request(client, &message, HL_MESSAGE_REGISTER);
    return message.extent;
}

uint32_t client_register(struct client *client, const char *instance, uint32_t rank)
{
    struct test_binding binding;
    struct hl_packet packet;
    test_binding_fill(&binding, instance, rank);
    struct hl_extent extent = client_send_register(client, &binding);
    client_expect(client, HL_MESSAGE_REGISTERED, &packet);
    hl_packet_close_fds(&packet);
    hl_descriptors_give(client->descriptors, extent);
    return ((const struct hl_registered *)packet.bytes)->binding;
}

static void fill_key(unsigned char key[HL_KEY_BYTES], uint32_t number)
{
    memset(key, 0, HL_KEY_BYTES);
    memcpy(key, &number, sizeof number);
}

void stand_put_blocks(struct stand *stand, const struct client *client, uint32_t binding, uint32_t count)
{
    hl_manager *manager = stand->manager;
    pthread_mutex_lock(&manager->lock);
    const uint32_t space = manager->sessions[client->welcome.session].bindings[binding].namespace_id;
    for (uint32_t i = 0; i < count; i++) {
        struct hl_index_key key = {.space = space};
        struct hl_allocation allocation;
        hl_entry_id entry;
        uint32_t arena;
        bool present;
        fill_key(key.hash, i);
        HL_REQUIRE_OK(hl_index_reserve(manager->index, &key, &entry, &present, &stand->err), stand->err);
        HL_REQUIRE_OK(manager_store_take(manager, TEST_BLOCK_BYTES, &arena, &allocation, &stand->err),
                      stand->err);
        const struct hl_index_source source = {.allocation = allocation.id,
                                               .offset = allocation.offset,
                                               .bytes = TEST_BLOCK_BYTES,
                                               .arena = arena,
                                               .residency = HL_RESIDENT_DRAM};
        HL_REQUIRE_OK(hl_index_complete(manager->index, entry, &source, &stand->err), stand->err);
    }
    pthread_mutex_unlock(&manager->lock);
}

struct hl_extent client_send_query(struct client *client, uint32_t binding, uint32_t first, uint32_t count)
{
    struct hl_query_message message;
    struct hl_extent both;
    unsigned char *at;
    void *space;
    const uint32_t key_bytes = count * HL_KEY_BYTES;
    memset(&message, 0, sizeof message);
    HL_REQUIRE_OK(hl_descriptors_take(client->descriptors, key_bytes + count, &both, &space, &client->err),
                  client->err);
    at = space;
    for (uint32_t i = 0; i < count; i++)
        fill_key(at + (size_t)i * HL_KEY_BYTES, first + i);
    memset(at + key_bytes, 0xee, count);
    message.binding = binding;
    message.key_count = count;
    message.keys = (struct hl_extent){.offset = both.offset, .bytes = key_bytes};
    message.residency = (struct hl_extent){.offset = both.offset + key_bytes, .bytes = count};
    client_request(client, &message, HL_MESSAGE_QUERY);
    return both;
}

struct hl_lease_message client_query(struct client *client, uint32_t binding, uint32_t first, uint32_t count)
{
    struct hl_packet packet;
    struct hl_lease_message lease;
    struct hl_extent extent = client_send_query(client, binding, first, count);
    client_expect(client, HL_MESSAGE_LEASE, &packet);
    memcpy(&lease, packet.bytes, sizeof lease);
    void *residency;
    HL_REQUIRE_OK(hl_descriptors_copy(client->descriptors, extent, extent.bytes, &residency, &client->err),
                  client->err);
    for (uint32_t i = 0; i < count; i++)
        CU_ASSERT_EQUAL(((unsigned char *)residency)[count * HL_KEY_BYTES + i],
                        i < lease.hits ? HL_RESIDENT_DRAM : HL_RESIDENT_NOT);
    free(residency);
    hl_descriptors_give(client->descriptors, extent);
    return lease;
}

uint32_t client_submit(struct client *client, uint32_t record, uint32_t binding,
                       const struct hl_lease_message *lease)
{
    struct hl_grant_record *shared = hl_grant_record_at(client->grants, record);
    const uint32_t generation = hl_grant_load(client->grants, record).generation;
    const size_t bytes = hl_wire_restore_bytes(lease->hits);
    struct hl_wire_restore head;
    struct hl_extent extent;
    uint32_t pages[TEST_PAGES];
    void *at;
    for (uint32_t i = 0; i < TEST_PAGES; i++)
        pages[i] = i;
    memset(&head, 0, sizeof head);
    head.binding = binding;
    head.lease_count = 1;
    head.leases[0].lease = lease->lease;
    head.leases[0].page_count = lease->hits;
    CU_ASSERT_TRUE_FATAL(hl_grant_move(client->grants, record, generation, HL_GRANT_FREE, HL_GRANT_RESERVED));
    HL_REQUIRE_OK(hl_descriptors_take(client->descriptors, (uint32_t)bytes, &extent, &at, &client->err),
                  client->err);
    HL_REQUIRE_OK(hl_wire_restore_encode(&head, pages, lease->hits, at, bytes, &client->err), client->err);
    shared->descriptor_offset = extent.offset;
    shared->descriptor_bytes = extent.bytes;
    shared->flags = 0;
    atomic_store(&shared->cancel, 0);
    atomic_store(&shared->consumed, 0);
    atomic_store(&shared->submitted, generation);
    client_notify(client, record);
    return generation;
}

void client_await(struct client *client, uint32_t record, enum hl_grant_state state)
{
    const int64_t deadline_ns = hl_clock_ns() + STAND_WAIT_NS;
    while (hl_grant_load(client->grants, record).state != state && hl_clock_ns() < deadline_ns) {
        struct pollfd signal = {.fd = client->signals[HL_FD_RESTORE], .events = POLLIN};
        eventfd_t count;
        poll(&signal, 1, 1000);
        eventfd_read(signal.fd, &count);
    }
    CU_ASSERT_EQUAL_FATAL(hl_grant_load(client->grants, record).state, state);
}

struct hl_publish_message client_publish_of(struct client *client, uint32_t binding, uint32_t page)
{
    struct hl_publish_message message;
    struct hl_publish_block *block;
    void *at;
    memset(&message, 0, sizeof message);
    HL_REQUIRE_OK(hl_descriptors_take(client->descriptors, sizeof *block, &message.blocks, &at, &client->err),
                  client->err);
    block = at;
    *block = (struct hl_publish_block){.page = page};
    message.binding = binding;
    message.block_count = 1;
    return message;
}

void client_drain(struct client *client, uint32_t record, uint32_t generation)
{
    CU_ASSERT_TRUE_FATAL(
        hl_grant_move(client->grants, record, generation, HL_GRANT_GRANTED, HL_GRANT_ACTIVE));
    struct hl_grant_record *shared = hl_grant_record_at(client->grants, record);
    atomic_store(&shared->consumed, 1);
    shared->status = HL_OK;
    memset(shared->text, 0, sizeof shared->text);
    CU_ASSERT_TRUE_FATAL(
        hl_grant_move(client->grants, record, generation, HL_GRANT_ACTIVE, HL_GRANT_DRAINED));
}

void client_notify(struct client *client, uint32_t record)
{
    hl_grant_mark(client->grants, record);
    eventfd_write(client->signals[HL_FD_RETIREMENT], 1);
}
