#include "core/layout/attention.h"

#include <assert.h>
#include <string.h>

#include "core/base/error.h"
#include "core/layout/fields.h"

#define STAGE HL_LAYOUT_CONFIG_STAGE

/* Fields whose presence means that layers keep something else than one K and one V page of equal heads. A
 * null, false, 0 or empty value says nothing, as configuration classes write out their defaults. */
static const struct {
    const char *field;
    const char *reason;
} foreign[] = {
    {"is_encoder_decoder", "an encoder-decoder also caches cross attention"},
    {"cross_attention_layers", "cross-attention layers cache the image, not the tokens"},
    {"index_head_dim", "sparse attention's indexer has a cache of its own"},
    {"attention_chunk_size", "chunked attention is neither full nor sliding"},
    {"num_kv_shared_layers", "layers that share another layer's cache"},
    {"hybrid_override_pattern", "a hybrid with Mamba layers"},
    {"hybrid_layer_pattern", "layers with different head counts"},
    {"linear_attn_config", "linear attention layers"},
    {"full_attention_interval", "linear attention layers between the full ones"},
    {"attn_layer_period", "a hybrid with Mamba layers"},
    {"attn_layer_indices", "a hybrid with Mamba layers"},
    {"block_configs", "per-layer head counts"},
    {"global_head_dim", "full layers with another head_dim"},
    {"num_global_key_value_heads", "full layers with another head count"},
    {"swa_head_dim", "sliding layers with another head_dim"},
    {"swa_num_key_value_heads", "sliding layers with another head count"},
};

static bool says_something(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_NULL:
    case JSON_FALSE:
        return false;
    case JSON_INTEGER:
        return json_integer_value(value) != 0;
    case JSON_STRING:
        return json_string_length(value) != 0;
    case JSON_ARRAY:
        return json_array_size(value) != 0;
    case JSON_OBJECT:
        return json_object_size(value) != 0;
    default:
        return true;
    }
}

static hl_status refuse_foreign_caches(const json_t *config, hl_error *err)
{
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) {
        const json_t *value = json_object_get(config, foreign[i].field);
        if (value != NULL && says_something(value))
            return HL_FAIL(err, HL_E_UNSUPPORTED, STAGE, "%s is set: %s, which is not supported",
                           foreign[i].field, foreign[i].reason);
    }
    const json_t *types; /* MiniMax: 1 is full attention, 0 is lightning (linear) attention */
    hl_status status = hl_layout_read_list(config, "attn_type_list", &types, err);
    if (status != HL_OK)
        return status;
    for (size_t layer = 0; layer < json_array_size(types); layer++) {
        const json_t *type = json_array_get(types, layer);
        if (!json_is_integer(type) || json_integer_value(type) != 1)
            return HL_FAIL(err, HL_E_UNSUPPORTED, STAGE,
                           "layer %zu is not of type 1 in attn_type_list: linear attention is not supported",
                           layer);
    }
    return HL_OK;
}

/* One entry per layer. Sets `sliding`; *count is how many slide. */
static hl_status read_layer_types(const char *field, const json_t *types, struct hl_model_geometry *geometry,
                                  uint32_t *count, hl_error *err)
{
    if (json_array_size(types) != geometry->layers)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "%s has %zu entries and num_hidden_layers is %u", field,
                       json_array_size(types), geometry->layers);
    for (uint32_t layer = 0; layer < geometry->layers; layer++) {
        const json_t *entry = json_array_get(types, layer);
        if (!json_is_string(entry))
            return HL_FAIL(err, HL_E_INVALID, STAGE, "%s[%u] is %s and must be a string", field, layer,
                           hl_layout_json_type(entry));
        const char *type = json_string_value(entry);
        char quoted[HL_QUOTE_BYTES];
        if (strcmp(type, "sliding_attention") == 0)
            geometry->sliding[layer] = 1;
        else if (strcmp(type, "full_attention") != 0 && strcmp(type, "attention") != 0)
            return HL_FAIL(err, HL_E_UNSUPPORTED, STAGE,
                           "layer %u is of type \"%s\" in %s, which is not supported", layer,
                           hl_layout_quote(type, quoted), field);
        *count += geometry->sliding[layer];
    }
    return HL_OK;
}

/* Every `pattern`-th layer is full. */
static uint32_t apply_pattern(uint32_t pattern, struct hl_model_geometry *geometry)
{
    uint32_t count = 0;
    for (uint32_t layer = 0; layer < geometry->layers; layer++) {
        geometry->sliding[layer] = (layer + 1) % pattern != 0;
        count += geometry->sliding[layer];
    }
    return count;
}

static uint32_t slide_from(uint32_t first, struct hl_model_geometry *geometry)
{
    uint32_t count = 0;
    for (uint32_t layer = first; layer < geometry->layers; layer++, count++)
        geometry->sliding[layer] = 1;
    return count;
}

/* The pattern that an architecture's older files leave out, or 0. */
static uint32_t implied_pattern(const char *model)
{
    static const struct {
        const char *model;
        uint32_t pattern;
    } implied[] = {{"gemma2", 2}, {"gemma3_text", 6}, {"gemma3", 6}, {"cohere2", 4}};
    for (size_t i = 0; i < sizeof implied / sizeof implied[0]; i++)
        if (strcmp(model, implied[i].model) == 0)
            return implied[i].pattern;
    return 0;
}

/* Without a list of types. `window` is 0 when sliding_window is absent or null. */
static hl_status derive_sliding(const json_t *config, uint32_t window, struct hl_model_geometry *geometry,
                                uint32_t *count, hl_error *err)
{
    bool use, has_use = hl_layout_find_field(config, "use_sliding_window") != NULL;
    bool has_first, has_pattern;
    uint32_t first, pattern;
    hl_status status = hl_layout_read_flag(config, "use_sliding_window", false, &use, err);
    if (status == HL_OK)
        status = hl_layout_read_integer(config, "max_window_layers", 0, &has_first, &first, err);
    if (status == HL_OK)
        status = hl_layout_read_integer(config, "sliding_window_pattern", 1, &has_pattern, &pattern, err);
    if (status != HL_OK)
        return status;
    if (has_use || has_first) {
        if (use && !has_first)
            return HL_FAIL(err, HL_E_INVALID, STAGE,
                           "max_window_layers is missing and use_sliding_window is true");
        *count = use ? slide_from(first, geometry) : 0;
        return HL_OK;
    }
    if (!has_pattern)
        pattern = window != 0 ? implied_pattern(geometry->name) : 0;
    if (pattern != 0)
        *count = apply_pattern(pattern, geometry);
    else
        *count = window != 0 ? slide_from(0, geometry) : 0;
    return HL_OK;
}

static hl_status read_types_or_derive(const json_t *config, uint32_t window,
                                      struct hl_model_geometry *geometry, uint32_t *count, hl_error *err)
{
    static const char *const fields[] = {"layer_types", "layers_block_type"};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        const json_t *types;
        hl_status status = hl_layout_read_list(config, fields[i], &types, err);
        if (status != HL_OK)
            return status;
        if (types == NULL)
            continue;
        status = read_layer_types(fields[i], types, geometry, count, err);
        bool use;
        if (status == HL_OK)
            status = hl_layout_read_flag(config, "use_sliding_window", true, &use, err);
        if (status == HL_OK && *count != 0 && !use)
            status = HL_FAIL(err, HL_E_INVALID, STAGE,
                             "use_sliding_window is false and %s has sliding layers", fields[i]);
        return status;
    }
    return derive_sliding(config, window, geometry, count, err);
}

hl_status hl_layout_read_attention(const json_t *config, struct hl_model_geometry *geometry, hl_error *err)
{
    assert(geometry->layers >= 1 && geometry->layers <= HL_LAYOUT_LAYERS);
    bool has_window;
    uint32_t window, count = 0;
    hl_status status = hl_layout_read_integer(config, "sliding_window", 1, &has_window, &window, err);
    if (status == HL_OK)
        status = read_types_or_derive(config, window, geometry, &count, err);
    if (status == HL_OK)
        status = refuse_foreign_caches(config, err);
    if (status != HL_OK)
        return status;
    if (count != 0 && !has_window)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "sliding_window is missing and %u layers slide", count);
    geometry->window_tokens = count != 0 ? window : 0;
    return HL_OK;
}
