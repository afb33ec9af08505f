#include "core/channel/message_samples.h"

#include <stdio.h>
#include <string.h>

static void fill_registered(struct hl_registered *m)
{
    m->binding = 3;
    m->arena_count = 2;
    m->chunk_bytes = HL_ARENA_CHUNK_BYTES;
    for (uint32_t i = 0; i < m->arena_count; i++) {
        m->arenas[i].arena_id = 11 + i;
        m->arenas[i].bytes = HL_GIB;
    }
}

static void fill_query(struct hl_query_message *m)
{
    m->binding = 3;
    m->group = 1;
    m->key_count = 5;
    m->ttl_ms = 1000;
    m->keys = (struct hl_extent){HL_DESCRIPTOR_HEADER_BYTES, 5 * HL_KEY_BYTES};
    m->residency = (struct hl_extent){HL_DESCRIPTOR_HEADER_BYTES + 256, 5};
}

static void fill_publish(struct hl_publish_message *m)
{
    m->binding = 3;
    m->group = 1;
    m->block_count = 7;
    m->slot = 2;
    m->blocks = (struct hl_extent){HL_DESCRIPTOR_HEADER_BYTES + 512, 7 * sizeof(struct hl_publish_block)};
}

static void fill_admin(struct hl_admin *m)
{
    m->verb = HL_ADMIN_RELEASE;
    m->confirmed = 1;
    m->operation[0] = 12;
    m->operation[1] = 5ull << 32 | 6;
    m->operation[2] = 0x1234;
    strcpy(m->operator_name, "night shift");
}

void sample_fill(struct hl_packet *packet, enum hl_message_kind kind)
{
    static const hl_error failure = {.status = HL_E_BUDGET, .text = "a budget is used up"};
    void *m = packet->bytes;
    memset(packet, 0, sizeof *packet);
    switch (kind) {
    case HL_MESSAGE_HELLO:
        hl_hello_fill(m, HL_PEER_ENGINE, "engine rank 0");
        break;
    case HL_MESSAGE_ERROR:
        hl_error_message_fill(m, 0, &failure);
        break;
    case HL_MESSAGE_WELCOME:
        *(struct hl_welcome *)m = (struct hl_welcome){
            .epoch = 12, .token = {1, 2, 3}, .session = 4, .lease_ttl_ms = HL_LEASE_TTL_MS};
        packet->fd_count = HL_BOOTSTRAP_FDS;
        break;
    case HL_MESSAGE_REGISTER:
        ((struct hl_register *)m)->extent = (struct hl_extent){HL_DESCRIPTOR_HEADER_BYTES, 1000};
        break;
    case HL_MESSAGE_REGISTERED:
        fill_registered(m);
        packet->fd_count = 2;
        break;
    case HL_MESSAGE_UNREGISTER:
        ((struct hl_unregister *)m)->binding = 3;
        break;
    case HL_MESSAGE_QUERY:
        fill_query(m);
        break;
    case HL_MESSAGE_LEASE:
        *(struct hl_lease_message *)m =
            (struct hl_lease_message){.lease = 99, .hits = 4, .ttl_ms = 1000, .bytes = 65536};
        break;
    case HL_MESSAGE_RELEASE:
        ((struct hl_release *)m)->lease = 99;
        break;
    case HL_MESSAGE_PUBLISH:
        fill_publish(m);
        break;
    case HL_MESSAGE_ADMIN:
        fill_admin(m);
        break;
    case HL_MESSAGE_DONE:
        ((struct hl_done *)m)->value = 77;
        break;
    case HL_MESSAGE_BYE:
    case HL_MESSAGE_NONE:
    case HL_MESSAGE_KIND_COUNT:
        break;
    }
    hl_message_head(m, kind, 42);
    packet->size = hl_message_bytes(kind);
    for (unsigned i = 0; i < packet->fd_count; i++)
        packet->fds[i] = -1;
}

#define FIELD(kind_, type, field, name_, sort_)                                                              \
    {                                                                                                        \
        .kind = HL_MESSAGE_##kind_, .name = (name_), .offset = offsetof(type, field),                        \
        .size = sizeof(((type *)0)->field), .sort = FIELD_##sort_                                            \
    }

const struct field fields[] = {
    FIELD(HELLO, struct hl_hello, bootstrap_version, "bootstrap_version", BOUNDED),
    FIELD(HELLO, struct hl_hello, channel_abi, "channel_abi", ANY), /* the rest is for hl_hello_check() */
    FIELD(HELLO, struct hl_hello, lifecycle, "lifecycle", ANY),
    FIELD(HELLO, struct hl_hello, plan_version, "plan_version", ANY),
    FIELD(HELLO, struct hl_hello, cache_schema, "cache_schema", ANY),
    FIELD(HELLO, struct hl_hello, grant_schema, "grant_schema", ANY),
    FIELD(HELLO, struct hl_hello, layout_signature, "layout_signature", ANY),
    FIELD(HELLO, struct hl_hello, role, "role", BOUNDED),
    FIELD(HELLO, struct hl_hello, zero, "zero", ZERO),
    FIELD(HELLO, struct hl_hello, name, "name", TEXT),
    FIELD(ERROR, struct hl_error_message, status, "status", BOUNDED),
    FIELD(ERROR, struct hl_error_message, zero, "zero", ZERO),
    FIELD(ERROR, struct hl_error_message, text, "text", TEXT),
    FIELD(WELCOME, struct hl_welcome, epoch, "epoch", ANY),
    FIELD(WELCOME, struct hl_welcome, token[0], "token", ANY),
    FIELD(WELCOME, struct hl_welcome, token[1], "token", ANY),
    FIELD(WELCOME, struct hl_welcome, token[15], "token", ANY),
    FIELD(WELCOME, struct hl_welcome, session, "session", ANY),
    FIELD(WELCOME, struct hl_welcome, lease_ttl_ms, "lease_ttl_ms", ANY),
    FIELD(REGISTER, struct hl_register, extent.offset, "extent (offset", BOUNDED),
    FIELD(REGISTER, struct hl_register, extent.bytes, "bytes", BOUNDED),
    FIELD(REGISTERED, struct hl_registered, binding, "binding", ANY),
    FIELD(REGISTERED, struct hl_registered, arena_count, "arena_count", BOUNDED),
    FIELD(REGISTERED, struct hl_registered, chunk_bytes, "chunk_bytes", BOUNDED),
    FIELD(REGISTERED, struct hl_registered, arenas[0].arena_id, "arena_id", BOUNDED),
    FIELD(REGISTERED, struct hl_registered, arenas[0].bytes, "bytes", BOUNDED),
    FIELD(REGISTERED, struct hl_registered, arenas[1].arena_id, "arena_id", BOUNDED),
    FIELD(REGISTERED, struct hl_registered, arenas[1].bytes, "bytes", BOUNDED),
    FIELD(REGISTERED, struct hl_registered, arenas[2].arena_id, "arena_id", ZERO),
    FIELD(REGISTERED, struct hl_registered, arenas[2].bytes, "bytes", ZERO),
    FIELD(REGISTERED, struct hl_registered, arenas[63].arena_id, "arena_id", ZERO),
    FIELD(REGISTERED, struct hl_registered, arenas[63].bytes, "bytes", ZERO),
    FIELD(UNREGISTER, struct hl_unregister, binding, "binding", ANY),
    FIELD(UNREGISTER, struct hl_unregister, zero, "zero", ZERO),
    FIELD(QUERY, struct hl_query_message, binding, "binding", ANY),
    FIELD(QUERY, struct hl_query_message, group, "group", BOUNDED),
    FIELD(QUERY, struct hl_query_message, key_count, "key", BOUNDED),
    FIELD(QUERY, struct hl_query_message, ttl_ms, "ttl_ms", ANY),
    FIELD(QUERY, struct hl_query_message, keys.offset, "keys (offset", BOUNDED),
    FIELD(QUERY, struct hl_query_message, keys.bytes, "keys (offset", BOUNDED),
    FIELD(QUERY, struct hl_query_message, residency.offset, "residency (offset", BOUNDED),
    FIELD(QUERY, struct hl_query_message, residency.bytes, "residency (offset", BOUNDED),
    FIELD(LEASE, struct hl_lease_message, lease, "lease", BOUNDED),
    FIELD(LEASE, struct hl_lease_message, hits, "hits", BOUNDED),
    FIELD(LEASE, struct hl_lease_message, ttl_ms, "ttl_ms", ANY),
    FIELD(LEASE, struct hl_lease_message, bytes, "bytes", ANY),
    FIELD(RELEASE, struct hl_release, lease, "lease", BOUNDED),
    FIELD(PUBLISH, struct hl_publish_message, binding, "binding", ANY),
    FIELD(PUBLISH, struct hl_publish_message, group, "group", BOUNDED),
    FIELD(PUBLISH, struct hl_publish_message, block_count, "block", BOUNDED),
    FIELD(PUBLISH, struct hl_publish_message, slot, "slot", BOUNDED),
    FIELD(PUBLISH, struct hl_publish_message, blocks.offset, "blocks (offset", BOUNDED),
    FIELD(PUBLISH, struct hl_publish_message, blocks.bytes, "blocks (offset", BOUNDED),
    FIELD(ADMIN, struct hl_admin, verb, "verb", BOUNDED),
    FIELD(ADMIN, struct hl_admin, confirmed, "confirmed", BOUNDED),
    FIELD(ADMIN, struct hl_admin, operation[0], "operation", ANY),
    FIELD(ADMIN, struct hl_admin, operation[1], "operation", ANY),
    FIELD(ADMIN, struct hl_admin, operation[2], "operation", ANY),
    FIELD(ADMIN, struct hl_admin, operator_name, "operator_name", TEXT),
    FIELD(DONE, struct hl_done, value, "value", ANY),
};

const size_t field_count = sizeof fields / sizeof fields[0];
