/* QUERY: the longest resident prefix of an engine's keys, pinned by a lease. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "faults/hook.h"
#include "manager/bindings.h"
#include "manager/requests.h"
#include "manager/session.h"

static const char stage[] = "manager.query";

static hl_status check_extents(const struct hl_query_message *request, hl_error *err)
{
    if (request->keys.bytes != (uint64_t)request->key_count * HL_KEY_BYTES)
        return HL_FAIL(err, HL_E_PROTOCOL, stage, "keys: %u bytes are not %u keys of %u", request->keys.bytes,
                       request->key_count, HL_KEY_BYTES);
    if (request->residency.bytes < request->key_count)
        return HL_FAIL(err, HL_E_PROTOCOL, stage, "residency: %u bytes do not hold %u",
                       request->residency.bytes, request->key_count);
    return HL_OK;
}

/* Where each hit lies, and zeros for the rest of the keys. */
static hl_status fill_residency(const hl_manager *manager, const hl_entry_id *entries, size_t hits,
                                unsigned char *residency, size_t count, hl_error *err)
{
    memset(residency, HL_RESIDENT_NOT, count);
    for (size_t i = 0; i < hits; i++) {
        struct hl_index_source source;
        hl_status status = hl_index_source(manager->index, entries[i], &source, err);
        if (status != HL_OK)
            return status;
        residency[i] = (unsigned char)source.residency;
    }
    return HL_OK;
}

static uint32_t ttl_of(const hl_manager *manager, const struct hl_query_message *request)
{
    const uint32_t most = manager->options.lease_ttl_ms;
    return request->ttl_ms == 0 || request->ttl_ms > most ? most : request->ttl_ms;
}

static hl_status lease(hl_manager *manager, struct manager_session *session,
                       const struct hl_query_message *request, const hl_entry_id *entries, size_t hits,
                       struct hl_lease_message *reply, hl_error *err)
{
    const struct hl_lease_request wanted = {
        .session = session->serial,
        .binding = request->binding,
        .group = request->group,
        .entries = entries,
        .count = hits,
        .expires_ns = hl_clock_ns() + (int64_t)reply->ttl_ms * 1000000,
        .budget = &session->bytes,
    };
    struct hl_lease_info info;
    hl_status status =
        HL_FAULT_CALL(manager_lease_create, hl_lease_create(manager->leases, &wanted, &reply->lease, err),
                      HL_FAIL_ERRNO(err, HL_E_NOMEM, stage, errno, "no memory for a lease"));
    if (status == HL_OK)
        status =
            hl_lease_get(manager->leases, session->serial, reply->lease, wanted.expires_ns - 1, &info, err);
    if (status != HL_OK)
        return status;
    reply->hits = (uint32_t)hits;
    reply->bytes = info.bytes;
    return HL_OK;
}

static hl_status answer(hl_manager *manager, struct manager_session *session,
                        const struct hl_query_message *request, uint32_t namespace_id,
                        const unsigned char *keys, hl_entry_id *entries, unsigned char *residency,
                        hl_error *err)
{
    struct hl_lease_message reply = {.ttl_ms = ttl_of(manager, request)};
    size_t hits =
        hl_index_find_prefix(manager->index, namespace_id, request->group, keys, request->key_count, entries);
    hl_status status = fill_residency(manager, entries, hits, residency, request->key_count, err);
    if (status == HL_OK)
        status = hl_descriptors_write(session->descriptors, request->residency, residency, request->key_count,
                                      err);
    if (status == HL_OK && hits > 0)
        status = lease(manager, session, request, entries, hits, &reply, err);
    if (status != HL_OK)
        return status;
    hl_message_head(&reply, HL_MESSAGE_LEASE, request->head.sequence);
    manager_session_send(session, &reply, NULL, 0);
    return HL_OK;
}

hl_status manager_query(hl_manager *manager, struct manager_session *session,
                        const struct hl_query_message *request, hl_error *err)
{
    struct manager_binding *binding;
    void *keys;
    hl_status status = check_extents(request, err);
    if (status == HL_OK)
        status = manager_binding_find(session, request->binding, &binding, err);
    if (status != HL_OK)
        return status;
    if (request->group >= binding->layout->group_count)
        return HL_FAIL(err, HL_E_INVALID, stage, "group is %u, the binding has %u", request->group,
                       binding->layout->group_count);
    status = hl_descriptors_copy(session->descriptors, request->keys, request->keys.bytes, &keys, err);
    if (status != HL_OK)
        return status;
    hl_entry_id *entries = calloc(request->key_count, sizeof *entries);
    unsigned char *residency = malloc(request->key_count);
    if (!entries || !residency)
        status = HL_FAIL(err, HL_E_NOMEM, stage, "no memory for %u keys", request->key_count);
    else
        status = answer(manager, session, request, binding->namespace_id, keys, entries, residency, err);
    free(residency);
    free(entries);
    free(keys);
    return status;
}
