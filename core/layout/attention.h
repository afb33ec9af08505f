/* What a config.json says about each layer's attention: which layers slide, and whether the cache is one that
 * this room can describe at all. */
#ifndef CORE_LAYOUT_ATTENTION_H
#define CORE_LAYOUT_ATTENTION_H

#include <jansson.h>

#include "core/layout/layout.h"

/* Fills `sliding` and `window_tokens`; `name` and `layers` are set. HL_E_INVALID, HL_E_UNSUPPORTED. */
hl_status hl_layout_read_attention(const json_t *config, struct hl_model_geometry *geometry, hl_error *err);

#endif
