/* Queries, and the leases that they answer with. */
#include <stdlib.h>
#include <string.h>

#include "core/base/error.h"
#include "engine/engine_internal.h"

static const char stage[] = "engine.query";

static hl_status check_query(const hl_binding *binding, const hl_block_key *keys, size_t count,
                             const hl_query_options *options, hl_error *err)
{
    if (options && options->size != sizeof *options)
        return HL_FAIL(err, HL_E_INVALID, stage, "size is %zu, hl_query_options_init() sets %zu",
                       options->size, sizeof *options);
    if (!keys || count == 0)
        return HL_FAIL(err, HL_E_INVALID, stage, "there are no keys");
    if (count > HL_QUERY_KEYS)
        return HL_FAIL(err, HL_E_LIMIT, stage, "count is %zu, at most %u", count, HL_QUERY_KEYS);
    if (options && options->group >= binding->layout->group_count)
        return HL_FAIL(err, HL_E_RANGE, stage, "group is %u, the layout has %u", options->group,
                       binding->layout->group_count);
    return HL_OK;
}

static hl_lease *new_lease(hl_binding *binding, uint32_t group, size_t count)
{
    hl_lease *lease = calloc(1, sizeof *lease);
    unsigned char *residency = calloc(count, 1);
    if (!lease || !residency) {
        free(lease);
        free(residency);
        return NULL;
    }
    lease->engine = binding->engine;
    lease->binding_serial = binding->serial;
    lease->group = group;
    lease->key_count = count;
    lease->residency = residency;
    engine_hold(lease->engine);
    return lease;
}

static void free_lease(hl_lease *lease)
{
    hl_engine *engine = lease->engine;
    free(lease->residency);
    free(lease);
    engine_drop(engine);
}

/* The Manager may write residencies at any time: the copy is what counts, and only up to the hits. */
static hl_status read_lease(hl_lease *lease, const struct hl_lease_message *reply, const void *residency,
                            hl_error *err)
{
    if (reply->hits > lease->key_count || (reply->hits > 0) != (reply->lease != 0))
        return HL_FAIL(err, HL_E_PROTOCOL, stage, "lease %llu has %u hits of %zu keys",
                       (unsigned long long)reply->lease, reply->hits, lease->key_count);
    memcpy(lease->residency, residency, lease->key_count);
    for (uint32_t i = 0; i < reply->hits; i++)
        if (lease->residency[i] == HL_RESIDENT_NOT || lease->residency[i] > HL_RESIDENT_ENCODED)
            return HL_FAIL(err, HL_E_PROTOCOL, stage, "residency of hit %u is %u", i, lease->residency[i]);
    lease->id = reply->lease;
    lease->hits = reply->hits;
    lease->bytes = reply->bytes;
    return HL_OK;
}

static hl_status ask(hl_binding *binding, const hl_block_key *keys, struct hl_query_message *message,
                     hl_lease *lease, hl_error *err)
{
    hl_engine *engine = binding->engine;
    struct hl_packet packet;
    void *key_bytes = NULL, *residency = NULL;
    uint32_t count = message->key_count;
    hl_status status =
        hl_descriptors_take(engine->descriptors, count * HL_KEY_BYTES, &message->keys, &key_bytes, err);
    if (status != HL_OK)
        return status;
    status = hl_descriptors_take(engine->descriptors, count, &message->residency, &residency, err);
    if (status != HL_OK)
        goto err_keys;
    memcpy(key_bytes, keys, (size_t)count * HL_KEY_BYTES);
    memset(residency, HL_RESIDENT_NOT, count);
    status = engine_request(engine, message, HL_MESSAGE_LEASE, engine->tuning.reply_ns, &packet, NULL, err);
    if (status == HL_OK) {
        hl_error why = {0};
        hl_packet_close_fds(&packet);
        status =
            read_lease(lease, (const struct hl_lease_message *)(const void *)packet.bytes, residency, &why);
        if (status != HL_OK) {
            engine_lose(engine, &why);
            if (err)
                *err = why;
        }
    }
    hl_descriptors_give(engine->descriptors, message->residency);
err_keys:
    hl_descriptors_give(engine->descriptors, message->keys);
    return status;
}

hl_status hl_query(hl_binding *binding, const hl_block_key *keys, size_t count,
                   const hl_query_options *options, hl_lease **out, hl_error *err)
{
    hl_status status = check_query(binding, keys, count, options, err);
    if (status == HL_OK)
        status = engine_binding_enter(binding, err);
    if (status != HL_OK)
        return status;
    struct hl_query_message message = {.binding = binding->manager_id,
                                       .group = options ? options->group : 0,
                                       .key_count = (uint32_t)count,
                                       .ttl_ms = options ? options->ttl_ms : 0};
    hl_message_head(&message, HL_MESSAGE_QUERY, 0);
    hl_lease *lease = new_lease(binding, message.group, count);
    status = lease ? ask(binding, keys, &message, lease, err)
                   : HL_FAIL(err, HL_E_NOMEM, stage, "no memory for a lease of %zu keys", count);
    if (status == HL_OK)
        *out = lease;
    else if (lease)
        free_lease(lease);
    engine_binding_leave(binding);
    return status;
}

size_t hl_lease_hits(const hl_lease *lease)
{
    return lease->hits;
}

uint64_t hl_lease_bytes(const hl_lease *lease)
{
    return lease->bytes;
}

int hl_lease_residency(const hl_lease *lease, size_t index)
{
    return index < lease->hits ? lease->residency[index] : 0;
}

void engine_lease_give_back(hl_lease *lease)
{
    struct hl_release message = {.lease = lease->id};
    struct hl_packet packet;
    hl_message_head(&message, HL_MESSAGE_RELEASE, 0);
    if (engine_request(lease->engine, &message, HL_MESSAGE_DONE, lease->engine->tuning.reply_ns, &packet,
                       NULL, NULL) == HL_OK)
        hl_packet_close_fds(&packet); /* else it has expired, or ends with the session */
    free_lease(lease);
}

void hl_lease_release(hl_lease *lease)
{
    if (!lease)
        return;
    pthread_mutex_lock(&lease->engine->lock);
    enum engine_lease_use use = lease->use;
    lease->released = true;
    pthread_mutex_unlock(&lease->engine->lock);
    if (use == ENGINE_LEASE_PENDING)
        return; /* its operation frees it */
    if (use == ENGINE_LEASE_IDLE && lease->id != 0)
        engine_lease_give_back(lease);
    else
        free_lease(lease);
}

void engine_lease_settle(hl_lease *lease, bool consumed)
{
    hl_engine *engine = lease->engine;
    lease->use = consumed ? ENGINE_LEASE_CONSUMED : ENGINE_LEASE_IDLE;
    if (!lease->released)
        return;
    if (consumed) {
        free_lease(lease);
    } else {
        lease->next_return = engine->returning;
        engine->returning = lease;
        engine_signal(engine->courier_wake);
    }
}
