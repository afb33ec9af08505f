/* The check of a received message. Total: every sequence of bytes is either a message that may be read as its
 * kind's struct or an error that names the field. */
#include <string.h>

#include "core/base/checked.h"
#include "core/base/error.h"
#include "core/channel/message.h"
#include "core/channel/text.h"

#define STAGE "channel.message"

static hl_status check_zero(const char *kind, const char *field, uint64_t value, hl_error *err)
{
    if (value == 0)
        return HL_OK;
    return HL_FAIL(err, HL_E_PROTOCOL, STAGE, "%s: %s is %llu, not 0", kind, field,
                   (unsigned long long)value);
}

/* `least` to `most`, both allowed. */
static hl_status check_between(const char *kind, const char *field, uint64_t value, uint64_t least,
                               uint64_t most, hl_error *err)
{
    if (value >= least && value <= most)
        return HL_OK;
    return HL_FAIL(err, HL_E_PROTOCOL, STAGE, "%s: %s is %llu, not %llu to %llu", kind, field,
                   (unsigned long long)value, (unsigned long long)least, (unsigned long long)most);
}

static hl_status check_text(const char *kind, const char *field, const char *text, size_t size, hl_error *err)
{
    const char *fault = hl_channel_text_fault(text, size);
    return fault ? HL_FAIL(err, HL_E_PROTOCOL, STAGE, "%s: %s %s", kind, field, fault) : HL_OK;
}

hl_status hl_extent_check(struct hl_extent extent, const char *field, const char *stage, hl_error *err)
{
    const char *fault = extent.bytes == 0                            ? "is empty"
                        : extent.offset % 8 != 0                     ? "is not 8-byte aligned"
                        : extent.offset < HL_DESCRIPTOR_HEADER_BYTES ? "lies in the publish slots"
                        : !hl_within(extent.offset, extent.bytes, HL_DESCRIPTOR_BYTES)
                            ? "leaves the descriptor memory"
                            : NULL;
    if (!fault)
        return HL_OK;
    return HL_FAIL(err, HL_E_PROTOCOL, stage, "%s (offset %u, bytes %u) %s", field, extent.offset,
                   extent.bytes, fault);
}

/* An extent of exactly `count` items of `item_bytes`; both are within limits already. */
static hl_status check_extent(const char *field, struct hl_extent extent, uint32_t count, uint32_t item_bytes,
                              hl_error *err)
{
    hl_status status = hl_extent_check(extent, field, STAGE, err);
    if (status != HL_OK || extent.bytes == (uint64_t)count * item_bytes)
        return status;
    return HL_FAIL(err, HL_E_PROTOCOL, STAGE, "%s (offset %u, bytes %u) is not %u times %u bytes", field,
                   extent.offset, extent.bytes, count, item_bytes);
}

static hl_status check_hello(const struct hl_hello *m, hl_error *err)
{
    hl_status status = check_between("HELLO", "role", m->role, HL_PEER_ENGINE, HL_PEER_TOOL, err);
    if (status == HL_OK)
        status = check_zero("HELLO", "zero", m->zero, err);
    if (status == HL_OK)
        status = check_text("HELLO", "name", m->name, sizeof m->name, err);
    return status;
}

static hl_status check_error(const struct hl_error_message *m, hl_error *err)
{
    if (!hl_status_is_failure(m->status))
        return HL_FAIL(err, HL_E_PROTOCOL, STAGE, "ERROR: status is %d, which is no failure", m->status);
    hl_status status = check_zero("ERROR", "zero", m->zero, err);
    if (status == HL_OK)
        status = check_text("ERROR", "text", m->text, sizeof m->text, err);
    return status;
}

static hl_status check_welcome(unsigned fd_count, hl_error *err)
{
    if (fd_count == 0 || fd_count == HL_BOOTSTRAP_FDS)
        return HL_OK;
    return HL_FAIL(err, HL_E_PROTOCOL, STAGE, "WELCOME: fd_count is %u, not %d (engine) or 0 (tool)",
                   fd_count, HL_BOOTSTRAP_FDS);
}

static hl_status check_arena(const struct hl_registered *m, uint32_t i, hl_error *err)
{
    uint64_t id = m->arenas[i].arena_id, bytes = m->arenas[i].bytes;
    if (i >= m->arena_count) {
        hl_status status = check_zero("REGISTERED", "arena_id after arena_count", id, err);
        return status != HL_OK ? status : check_zero("REGISTERED", "bytes after arena_count", bytes, err);
    }
    if (id == 0)
        return HL_FAIL(err, HL_E_PROTOCOL, STAGE, "REGISTERED: arenas[%u].arena_id is 0", i);
    if (bytes == 0 || bytes > HL_ARENA_MAX_BYTES)
        return HL_FAIL(err, HL_E_PROTOCOL, STAGE, "REGISTERED: arenas[%u].bytes is %llu, not 1 to %llu", i,
                       (unsigned long long)bytes, HL_ARENA_MAX_BYTES);
    for (uint32_t k = 0; k < i; k++)
        if (m->arenas[k].arena_id == id)
            return HL_FAIL(err, HL_E_PROTOCOL, STAGE, "REGISTERED: arenas[%u].arena_id is that of arenas[%u]",
                           i, k);
    return HL_OK;
}

static hl_status check_registered(const struct hl_registered *m, unsigned fd_count, hl_error *err)
{
    hl_status status = check_between("REGISTERED", "arena_count", m->arena_count, 1, HL_ARENA_IMPORTS, err);
    if (status == HL_OK && fd_count != m->arena_count)
        status = HL_FAIL(err, HL_E_PROTOCOL, STAGE, "REGISTERED: fd_count is %u, arena_count %u", fd_count,
                         m->arena_count);
    if (status == HL_OK)
        status = check_between("REGISTERED", "chunk_bytes", m->chunk_bytes, 1, HL_ARENA_CHUNK_BYTES, err);
    for (uint32_t i = 0; status == HL_OK && i < HL_ARENA_IMPORTS; i++)
        status = check_arena(m, i, err);
    return status;
}

static hl_status check_query(const struct hl_query_message *m, hl_error *err)
{
    hl_status status = check_between("QUERY", "group", m->group, 0, HL_LAYOUT_GROUPS - 1, err);
    if (status == HL_OK)
        status = check_between("QUERY", "key_count", m->key_count, 1, HL_QUERY_KEYS, err);
    if (status == HL_OK)
        status = check_extent("QUERY: keys", m->keys, m->key_count, HL_KEY_BYTES, err);
    if (status == HL_OK)
        status = check_extent("QUERY: residency", m->residency, m->key_count, 1, err);
    return status;
}

/* No hits, no lease, and nothing reserved. */
static hl_status check_lease(const struct hl_lease_message *m, hl_error *err)
{
    hl_status status = check_between("LEASE", "hits", m->hits, 0, HL_QUERY_KEYS, err);
    if (status == HL_OK && (m->lease == 0) != (m->hits == 0))
        status = HL_FAIL(err, HL_E_PROTOCOL, STAGE, "LEASE: lease is %llu with hits %u",
                         (unsigned long long)m->lease, m->hits);
    if (status == HL_OK && m->hits == 0)
        status = check_zero("LEASE", "bytes without hits", m->bytes, err);
    return status;
}

static hl_status check_publish(const struct hl_publish_message *m, hl_error *err)
{
    hl_status status = check_between("PUBLISH", "group", m->group, 0, HL_LAYOUT_GROUPS - 1, err);
    if (status == HL_OK)
        status = check_between("PUBLISH", "block_count", m->block_count, 1, HL_PUBLISH_BLOCKS, err);
    if (status == HL_OK)
        status = check_between("PUBLISH", "slot", m->slot, 0, HL_PUBLISH_SLOTS - 1, err);
    if (status == HL_OK)
        status =
            check_extent("PUBLISH: blocks", m->blocks, m->block_count, sizeof(struct hl_publish_block), err);
    return status;
}

static hl_status check_admin(const struct hl_admin *m, hl_error *err)
{
    hl_status status = check_between("ADMIN", "verb", m->verb, HL_ADMIN_STATUS, HL_ADMIN_CHECK, err);
    if (status == HL_OK && m->verb == HL_ADMIN_RELEASE)
        status = check_between("ADMIN", "confirmed", m->confirmed, 0, 1, err);
    if (status == HL_OK && m->verb != HL_ADMIN_RELEASE &&
        (m->confirmed != 0 || !hl_channel_is_zero(m->operation, sizeof m->operation)))
        status = HL_FAIL(err, HL_E_PROTOCOL, STAGE,
                         "ADMIN: confirmed (%u) or operation is not 0 with verb %u, which takes neither",
                         m->confirmed, m->verb);
    if (status == HL_OK)
        status = check_text("ADMIN", "operator_name", m->operator_name, sizeof m->operator_name, err);
    return status;
}

static hl_status check_body(const struct hl_packet *packet, enum hl_message_kind kind, hl_error *err)
{
    const void *m = packet->bytes;
    switch (kind) {
    case HL_MESSAGE_HELLO:
        return check_hello(m, err);
    case HL_MESSAGE_ERROR:
        return check_error(m, err);
    case HL_MESSAGE_WELCOME:
        return check_welcome(packet->fd_count, err);
    case HL_MESSAGE_REGISTER:
        return hl_extent_check(((const struct hl_register *)m)->extent, "REGISTER: extent", STAGE, err);
    case HL_MESSAGE_REGISTERED:
        return check_registered(m, packet->fd_count, err);
    case HL_MESSAGE_UNREGISTER:
        return check_zero("UNREGISTER", "zero", ((const struct hl_unregister *)m)->zero, err);
    case HL_MESSAGE_QUERY:
        return check_query(m, err);
    case HL_MESSAGE_LEASE:
        return check_lease(m, err);
    case HL_MESSAGE_RELEASE:
        return check_between("RELEASE", "lease", ((const struct hl_release *)m)->lease, 1, UINT64_MAX, err);
    case HL_MESSAGE_PUBLISH:
        return check_publish(m, err);
    case HL_MESSAGE_ADMIN:
        return check_admin(m, err);
    case HL_MESSAGE_BYE:
    case HL_MESSAGE_DONE: /* any value */
    case HL_MESSAGE_NONE:
    case HL_MESSAGE_KIND_COUNT:
        break;
    }
    return HL_OK;
}

/* Before the size, which another version may have changed. */
static hl_status check_bootstrap_version(const struct hl_packet *packet, hl_error *err)
{
    uint32_t version;
    size_t at = offsetof(struct hl_hello, bootstrap_version);
    if (packet->size < at + sizeof version)
        return HL_OK;
    memcpy(&version, packet->bytes + at, sizeof version);
    if (version == HL_BOOTSTRAP_VERSION)
        return HL_OK;
    return HL_FAIL(err, HL_E_VERSION, STAGE, "bootstrap_version is %u, this side has %u", version,
                   HL_BOOTSTRAP_VERSION);
}

hl_status hl_message_check(const struct hl_packet *packet, enum hl_message_kind *out, hl_error *err)
{
    struct hl_message head;
    if (packet->size < sizeof head)
        return HL_FAIL(err, HL_E_PROTOCOL, STAGE, "the message has %zu bytes, its head needs %zu",
                       packet->size, sizeof head);
    memcpy(&head, packet->bytes, sizeof head);
    if (head.magic != HL_MESSAGE_MAGIC)
        return HL_FAIL(err, HL_E_PROTOCOL, STAGE, "magic is 0x%08x, not 0x%08x", head.magic,
                       HL_MESSAGE_MAGIC);
    if (head.kind == HL_MESSAGE_NONE || head.kind >= HL_MESSAGE_KIND_COUNT)
        return HL_FAIL(err, HL_E_PROTOCOL, STAGE, "kind is %u, not 1 to %d", head.kind,
                       HL_MESSAGE_KIND_COUNT - 1);
    enum hl_message_kind kind = (enum hl_message_kind)head.kind;
    const struct hl_message_rule *rule = hl_message_rule(kind);
    hl_status status = kind == HL_MESSAGE_HELLO ? check_bootstrap_version(packet, err) : HL_OK;
    if (status != HL_OK)
        return status;
    if (head.bytes != packet->size || head.bytes != rule->bytes)
        return HL_FAIL(err, HL_E_PROTOCOL, STAGE, "%s: bytes is %u in a message of %zu, %s has %zu",
                       rule->name, head.bytes, packet->size, rule->name, rule->bytes);
    if (packet->fd_count < rule->fds_least || packet->fd_count > rule->fds_most)
        return HL_FAIL(err, HL_E_PROTOCOL, STAGE, "%s: fd_count is %u, not %u to %u", rule->name,
                       packet->fd_count, rule->fds_least, rule->fds_most);
    status = check_body(packet, kind, err);
    if (status == HL_OK)
        *out = kind;
    return status;
}
