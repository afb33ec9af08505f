#include "manager/namespace.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/base/error.h"

#define STAGE "manager.namespace"

struct hl_namespaces {
    struct hl_index_memory memory;
    uint32_t most, count;
    char (*digests)[HL_SHA256_HEX_BYTES]; /* of namespace i + 1 */
};

static size_t digests_bytes(uint32_t most)
{
    return (size_t)most * HL_SHA256_HEX_BYTES;
}

hl_status hl_namespaces_create(uint32_t most, const struct hl_index_memory *memory,
                               hl_namespaces **namespaces, hl_error *err)
{
    if (!memory)
        memory = &hl_index_system_memory;
    if (most == 0)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "most is 0 namespaces");
    if (most > HL_NAMESPACES_MOST)
        return HL_FAIL(err, HL_E_LIMIT, STAGE, "most is %" PRIu32 " namespaces, at most %u are allowed", most,
                       HL_NAMESPACES_MOST);
    hl_namespaces *made = hl_index_memory_get(memory, sizeof *made);
    if (!made)
        goto err_none;
    made->digests = hl_index_memory_get(memory, digests_bytes(most));
    if (!made->digests)
        goto err_made;
    made->memory = *memory;
    made->most = most;
    *namespaces = made;
    return HL_OK;
err_made:
    hl_index_memory_put(memory, made, sizeof *made);
err_none:
    return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for %" PRIu32 " namespaces", most);
}

void hl_namespaces_destroy(hl_namespaces *namespaces)
{
    if (!namespaces)
        return;
    struct hl_index_memory memory = namespaces->memory;
    hl_index_memory_put(&memory, namespaces->digests, digests_bytes(namespaces->most));
    hl_index_memory_put(&memory, namespaces, sizeof *namespaces);
}

static bool says_which_heads(const hl_layout *layout)
{
    static const struct hl_layout_content nothing;
    return memcmp(&layout->content, &nothing, sizeof nothing) != 0;
}

/* A rank that fills only its slot of a block publishes one with gaps: under a name that other ranks share,
 * they would find it present and restore the gaps. */
static bool holds_whole_blocks(const hl_layout *layout)
{
    return layout->content.rank_first_head == layout->content.first_head &&
           layout->content.rank_heads == layout->content.heads;
}

hl_status hl_namespace_describe(const char *model, const unsigned char model_digest[32],
                                uint32_t element_bytes, uint32_t rank, uint32_t cache_schema,
                                const hl_layout *layout, struct hl_namespace_key *key, hl_error *err)
{
    struct hl_namespace_key made = {.element_bytes = element_bytes, .cache_schema = cache_schema};
    size_t length = strnlen(model, HL_NAME_BYTES);
    if (length == 0 || length == HL_NAME_BYTES)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "model is %s", length ? "not terminated" : "empty");
    if (element_bytes == 0 || cache_schema == 0)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "%s is 0", element_bytes ? "cache_schema" : "element_bytes");
    bool by_content = says_which_heads(layout);
    if (by_content && layout->content.element_bytes != element_bytes)
        return HL_FAIL(err, HL_E_INVALID, STAGE,
                       "element_bytes is %" PRIu32 ", the layout's content says %" PRIu32, element_bytes,
                       layout->content.element_bytes);
    hl_status status = hl_layout_block_digest(layout, made.block_digest, err);
    if (status != HL_OK)
        return status;
    memcpy(made.model, model, length);
    memcpy(made.model_digest, model_digest, sizeof made.model_digest);
    made.rank = by_content ? HL_NAMESPACE_EVERY_RANK : rank;
    if (!holds_whole_blocks(layout)) {
        made.slot_first_head = layout->content.rank_first_head;
        made.slot_heads = layout->content.rank_heads;
    }
    *key = made;
    return HL_OK;
}

/* One line a fact; the model's length goes before its bytes, which may hold anything. */
static hl_status digest_of(const struct hl_namespace_key *key, char hex[HL_SHA256_HEX_BYTES], hl_error *err)
{
    char text[HL_NAME_BYTES + 4 * HL_SHA256_HEX_BYTES + 128];
    size_t model = strnlen(key->model, sizeof key->model);
    if (model == sizeof key->model)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "model is not terminated");
    if (strnlen(key->block_digest, sizeof key->block_digest) != HL_SHA256_HEX_BYTES - 1)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "block_digest is not %d digits", HL_SHA256_HEX_BYTES - 1);
    int used =
        snprintf(text, sizeof text, "hostlane namespace 2\nmodel %zu %s\nmodel_digest ", model, key->model);
    for (size_t i = 0; i < sizeof key->model_digest; i++)
        used += snprintf(text + used, sizeof text - (size_t)used, "%02x", key->model_digest[i]);
    used += snprintf(text + used, sizeof text - (size_t)used,
                     "\nblock %s\nelement_bytes %" PRIu32 "\nrank %" PRIu32 "\nschema %" PRIu32
                     "\nslot %" PRIu32 " %" PRIu32 "\n",
                     key->block_digest, key->element_bytes, key->rank, key->cache_schema,
                     key->slot_first_head, key->slot_heads);
    return hl_sha256(text, (size_t)used, hex, err);
}

/* Bindings are registered now and then, and there are few namespaces: a scan is enough. */
hl_status hl_namespaces_intern(hl_namespaces *namespaces, const struct hl_namespace_key *key, uint32_t *id,
                               hl_error *err)
{
    char hex[HL_SHA256_HEX_BYTES];
    hl_status status = digest_of(key, hex, err);
    if (status != HL_OK)
        return status;
    for (uint32_t i = 0; i < namespaces->count; i++)
        if (!memcmp(namespaces->digests[i], hex, sizeof hex)) {
            *id = i + 1;
            return HL_OK;
        }
    if (namespaces->count == namespaces->most)
        return HL_FAIL(err, HL_E_LIMIT, STAGE, "there are %" PRIu32 " namespaces already", namespaces->most);
    memcpy(namespaces->digests[namespaces->count], hex, sizeof hex);
    *id = ++namespaces->count;
    return HL_OK;
}

const char *hl_namespaces_digest(const hl_namespaces *namespaces, uint32_t id)
{
    return id >= 1 && id <= namespaces->count ? namespaces->digests[id - 1] : NULL;
}

uint32_t hl_namespaces_count(const hl_namespaces *namespaces)
{
    return namespaces->count;
}
