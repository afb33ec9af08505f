#include <inttypes.h>

#include "core/base/error.h"
#include "core/channel/message.h"
#include "core/channel/text.h"
#include "core/grant/grant.h"
#include "core/plan/plan.h"

/* FNV-1a over 64-bit values: tells layouts apart that differ by accident, which is all it is for. */
static uint64_t fold(uint64_t hash, uint64_t value)
{
    for (int shift = 0; shift < 64; shift += 8)
        hash = (hash ^ ((value >> shift) & 0xff)) * 0x100000001b3ull;
    return hash;
}

#define PLACE(type, field) ((uint64_t)offsetof(type, field) << 32 | sizeof(((type *)0)->field))

/* Structs whose fields are all of one version with the kinds' sizes below are covered by those sizes; here
 * are those that another room owns or whose fields could trade places unseen. */
static const uint64_t layout_facts[] = {
    HL_MESSAGE_BYTES,
    HL_MESSAGE_FDS,
    HL_BOOTSTRAP_FDS,
    HL_DESCRIPTOR_BYTES,
    HL_DESCRIPTOR_HEADER_BYTES,
    HL_PUBLISH_SLOTS,
    HL_ARENA_IMPORTS,
    HL_RESTORE_LEASES,
    PLACE(struct hl_hello, layout_signature),
    PLACE(struct hl_hello, role),
    PLACE(struct hl_hello, name),
    PLACE(struct hl_welcome, epoch),
    PLACE(struct hl_welcome, token),
    PLACE(struct hl_welcome, session),
    PLACE(struct hl_welcome, lease_ttl_ms),
    PLACE(struct hl_extent, offset),
    PLACE(struct hl_extent, bytes),
    PLACE(struct hl_registered, binding),
    PLACE(struct hl_registered, arena_count),
    PLACE(struct hl_registered, chunk_bytes),
    PLACE(struct hl_registered, arenas),
    PLACE(struct hl_query_message, binding),
    PLACE(struct hl_query_message, group),
    PLACE(struct hl_query_message, key_count),
    PLACE(struct hl_query_message, ttl_ms),
    PLACE(struct hl_query_message, keys),
    PLACE(struct hl_query_message, residency),
    PLACE(struct hl_lease_message, lease),
    PLACE(struct hl_lease_message, hits),
    PLACE(struct hl_lease_message, ttl_ms),
    PLACE(struct hl_lease_message, bytes),
    PLACE(struct hl_publish_message, binding),
    PLACE(struct hl_publish_message, group),
    PLACE(struct hl_publish_message, block_count),
    PLACE(struct hl_publish_message, slot),
    PLACE(struct hl_publish_message, blocks),
    PLACE(struct hl_publish_block, key),
    PLACE(struct hl_publish_block, page),
    PLACE(struct hl_admin, verb),
    PLACE(struct hl_admin, confirmed),
    PLACE(struct hl_admin, operation),
    PLACE(struct hl_admin, operator_name),
    PLACE(struct hl_error_message, status),
    PLACE(struct hl_error_message, text),
    sizeof(struct hl_publish_slot),
    PLACE(struct hl_publish_slot, state),
    PLACE(struct hl_publish_slot, status),
    PLACE(struct hl_publish_slot, stored),
    PLACE(struct hl_publish_slot, present),
    PLACE(struct hl_publish_slot, bytes),
    PLACE(struct hl_publish_slot, text),
    sizeof(struct hl_wire_binding),
    PLACE(struct hl_wire_binding, instance),
    PLACE(struct hl_wire_binding, model),
    PLACE(struct hl_wire_binding, model_digest),
    PLACE(struct hl_wire_binding, rank),
    PLACE(struct hl_wire_binding, element_bytes),
    PLACE(struct hl_wire_binding, device_uuid),
    PLACE(struct hl_wire_binding, layers),
    PLACE(struct hl_wire_binding, page_tokens),
    PLACE(struct hl_wire_binding, group_count),
    PLACE(struct hl_wire_binding, tensor_count),
    PLACE(struct hl_wire_binding, component_count),
    PLACE(struct hl_wire_binding, groups),
    PLACE(struct hl_wire_binding, content),
    sizeof(struct hl_layout_group),
    PLACE(struct hl_layout_group, pages),
    PLACE(struct hl_layout_group, window_tokens),
    PLACE(struct hl_layout_group, block_bytes),
    PLACE(struct hl_layout_content, element_bytes),
    PLACE(struct hl_layout_content, model_heads),
    PLACE(struct hl_layout_content, first_head),
    PLACE(struct hl_layout_content, heads),
    PLACE(struct hl_layout_content, rank_first_head),
    PLACE(struct hl_layout_content, rank_heads),
    PLACE(struct hl_layout_content, head_major),
    sizeof(struct hl_wire_tensor),
    PLACE(struct hl_wire_tensor, tensor.bytes),
    PLACE(struct hl_wire_tensor, tensor.name),
    PLACE(struct hl_wire_tensor, export.handle),
    PLACE(struct hl_wire_tensor, export.offset),
    PLACE(struct hl_wire_tensor, export.allocation_bytes),
    sizeof(struct hl_layout_component),
    PLACE(struct hl_layout_component, layer),
    PLACE(struct hl_layout_component, group),
    PLACE(struct hl_layout_component, tensor),
    PLACE(struct hl_layout_component, role),
    PLACE(struct hl_layout_component, offset),
    PLACE(struct hl_layout_component, page_stride),
    PLACE(struct hl_layout_component, row_bytes),
    PLACE(struct hl_layout_component, row_stride),
    PLACE(struct hl_layout_component, rows),
    PLACE(struct hl_layout_component, block_offset),
    PLACE(struct hl_layout_component, block_row_stride),
    sizeof(struct hl_wire_restore),
    PLACE(struct hl_wire_restore, lease_count),
    PLACE(struct hl_wire_restore, leases),
};

uint64_t hl_channel_layout_signature(void)
{
    uint64_t hash = 0xcbf29ce484222325ull;
    for (unsigned kind = HL_MESSAGE_NONE + 1; kind < HL_MESSAGE_KIND_COUNT; kind++) {
        const struct hl_message_rule *rule = hl_message_rule((enum hl_message_kind)kind);
        for (const char *letter = rule->name; *letter; letter++)
            hash = fold(hash, (unsigned char)*letter);
        hash = fold(fold(hash, kind), rule->bytes);
    }
    for (size_t i = 0; i < sizeof layout_facts / sizeof layout_facts[0]; i++)
        hash = fold(hash, layout_facts[i]);
    return hash;
}

static uint64_t combined_signature(void)
{
    return fold(fold(0xcbf29ce484222325ull, hl_grant_layout_signature()), hl_channel_layout_signature());
}

void hl_hello_fill(struct hl_hello *hello, enum hl_peer_role role, const char *name)
{
    *hello = (struct hl_hello){.bootstrap_version = HL_BOOTSTRAP_VERSION,
                               .channel_abi = HL_CHANNEL_ABI,
                               .lifecycle = HL_LIFECYCLE_VERSION,
                               .plan_version = HL_PLAN_VERSION,
                               .cache_schema = HL_CACHE_SCHEMA,
                               .grant_schema = HL_GRANT_SCHEMA,
                               .layout_signature = combined_signature(),
                               .role = role};
    hl_message_head(hello, HL_MESSAGE_HELLO, 0);
    hl_channel_text_fill(hello->name, sizeof hello->name, name ? name : "");
}

hl_status hl_hello_check(const struct hl_hello *hello, hl_error *err)
{
    static const char stage[] = "channel.hello";
    const struct {
        const char *field;
        uint32_t theirs, ours;
    } versions[] = {
        {"bootstrap_version", hello->bootstrap_version, HL_BOOTSTRAP_VERSION},
        {"channel_abi", hello->channel_abi, HL_CHANNEL_ABI},
        {"lifecycle", hello->lifecycle, HL_LIFECYCLE_VERSION},
        {"plan_version", hello->plan_version, HL_PLAN_VERSION},
        {"cache_schema", hello->cache_schema, HL_CACHE_SCHEMA},
        {"grant_schema", hello->grant_schema, HL_GRANT_SCHEMA},
    };
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++)
        if (versions[i].theirs != versions[i].ours)
            return HL_FAIL(err, HL_E_VERSION, stage, "%s is %u, this side has %u", versions[i].field,
                           versions[i].theirs, versions[i].ours);
    if (hello->layout_signature != combined_signature())
        return HL_FAIL(err, HL_E_VERSION, stage,
                       "layout_signature is 0x%016" PRIx64 ", this side has 0x%016" PRIx64,
                       hello->layout_signature, combined_signature());
    return HL_OK;
}
