/* core/layout owns the geometry of KV memory: where the bytes of page p of each layer lie in the engine's tensors, and
 * where they lie in a stored block. It is arithmetic only; it calls core/base. core/plan turns it into ranges.
 *
 * Words. A *tensor* is one device allocation that the engine registered. A *component* is one role (K, V, …) of one
 * layer: an affine set of rows in a tensor. A *storage group* is a set of layers that share block keys and page indices
 * (hybrid models have several: full attention, sliding window). A *block* is what one page of every layer of one
 * group holds, stored as one arena allocation.
 *
 *     device address of row r of page p  = tensor base + offset + p * page_stride + r * row_stride
 *     offset in the stored block         = block_offset + r * block_row_stride
 *     width                              = row_bytes
 *
 * Components are in consuming order: layer 0's K then V, layer 1's K then V, … (R14). */
#ifndef CORE_LAYOUT_LAYOUT_H
#define CORE_LAYOUT_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "hostlane/limits.h"
#include "hostlane/status.h"

enum hl_role { HL_ROLE_K, HL_ROLE_V, HL_ROLE_FUSED, HL_ROLE_LATENT, HL_ROLE_STATE };

struct hl_layout_component {
    uint32_t layer;            /* registered layer: the index of its event */
    uint32_t group;            /* storage group */
    uint32_t tensor;           /* index into the tensors */
    enum hl_role role;
    uint64_t offset;           /* bytes from the tensor's base to row 0 of page 0 */
    uint64_t page_stride;      /* bytes from page to page */
    uint64_t row_bytes;        /* contiguous bytes a row */
    uint64_t row_stride;       /* bytes from row to row on the device; row_bytes when a page is contiguous */
    uint32_t rows;             /* rows a page, >= 1 */
    uint64_t block_offset;     /* bytes from the block's start to row 0 */
    uint64_t block_row_stride; /* bytes from row to row in the block */
};

struct hl_layout_tensor {
    uint64_t bytes;
    char name[HL_NAME_BYTES]; /* "model.layers.7.k", for messages */
};

struct hl_layout_group {
    uint32_t pages;         /* pages each component of the group has on the device */
    uint32_t window_tokens; /* sliding window, or 0 for full attention */
    uint64_t block_bytes;   /* size of a stored block */
};

typedef struct hl_layout {
    uint32_t layers;
    uint32_t page_tokens;
    uint32_t component_count;
    uint32_t tensor_count;
    uint32_t group_count;
    struct hl_layout_component *components; /* consuming order */
    struct hl_layout_tensor *tensors;
    struct hl_layout_group groups[HL_LAYOUT_GROUPS];
} hl_layout;

/* How the engine lays its tensors out. */
enum hl_layout_kind {
    HL_LAYOUT_CONTIGUOUS, /* a tensor a layer, [2][pages][page]: all K pages, then all V pages */
    HL_LAYOUT_SPLIT,      /* two tensors a layer, K and V, each [pages][page] */
    HL_LAYOUT_FUSED,      /* a tensor a layer, [pages][page], K and V packed inside a page */
    HL_LAYOUT_MLA,        /* a tensor a layer, [pages][page] of the compressed latent and rope part */
    HL_LAYOUT_PAGE_FIRST  /* a tensor a group, [pages][layers][K, V or latent] */
};

/* How a stored block is ordered. */
enum hl_block_order {
    HL_BLOCK_COMPONENT_MAJOR, /* each component's page in one piece: K0 V0 K1 V1 … */
    HL_BLOCK_TOKEN_MAJOR      /* per token, all components of all layers: one row a token */
};

/* What a model's config.json says about its KV cache. */
struct hl_model_geometry {
    char name[HL_NAME_BYTES]; /* model_type, or the first architecture */
    uint32_t layers;
    uint32_t kv_heads;        /* 1 with MLA */
    uint32_t head_dim;        /* K and V elements a head; with MLA: latent + rope elements */
    uint32_t value_head_dim;  /* V elements a head where they differ from K's; 0 with MLA */
    uint32_t element_bytes;   /* of torch_dtype/dtype */
    int mla;                  /* the cache holds one latent vector a token */
    uint32_t window_tokens;   /* of the sliding layers, or 0 */
    uint8_t sliding[HL_LAYOUT_LAYERS]; /* 1: the layer uses the window */
};

/* Reads a Hugging Face config.json, hostile until validated. Multimodal files with a text_config are read through it.
 * HL_E_CORRUPT for JSON that does not parse, HL_E_INVALID for a missing, mistyped, out-of-bounds or contradictory field,
 * which the text names; HL_E_LIMIT for a file over HL_LAYOUT_CONFIG_BYTES. */
hl_status hl_layout_parse_config(const char *json, size_t size, struct hl_model_geometry *geometry, hl_error *err);

/* Reads the file at `path` and parses it. HL_E_SYSTEM when it cannot be read. */
hl_status hl_layout_load_config(const char *path, struct hl_model_geometry *geometry, hl_error *err);

struct hl_layout_options {
    enum hl_layout_kind kind;     /* MLA models take MLA or PAGE_FIRST, others all but MLA */
    enum hl_block_order order;
    uint32_t page_tokens;         /* tokens a page, 1 to HL_LAYOUT_PAGE_TOKENS */
    uint32_t pages;               /* device pages of each group, >= 1 */
    uint32_t element_bytes;       /* 0: as the model says; 1 for an FP8 cache */
    uint32_t tp_size;             /* ranks that the engine's heads are split over; 0 or 1: none */
    uint32_t tp_rank;             /* this binding's rank */
    int store_full_heads;         /* 1: a stored block holds the heads of all ranks, of which this rank selects its
                                     slot (rows of a token); 0: it holds this rank's heads only */
};

/* Lays a model's cache out. With sliding layers there are two groups (0 full attention, 1 sliding), else one. When
 * kv_heads < tp_size heads are replicated (tp_size must then be a multiple). MLA latents are replicated on every rank.
 * HL_E_INVALID names the option. Free with hl_layout_free(). */
hl_status hl_layout_from_model(const struct hl_model_geometry *geometry, const struct hl_layout_options *options,
                               hl_layout **layout, hl_error *err);

/* Copies and validates an explicit layout, as an engine registers it. */
hl_status hl_layout_from_components(const hl_layout *description, hl_layout **layout, hl_error *err);

/* Every index and count is in bounds; components are in consuming order; row_bytes > 0; rows of a page, pages of a
 * component and components of a tensor do not overlap on the device; every row of every page lies in its tensor; every
 * block row lies in the block and block rows do not overlap. HL_E_RANGE, HL_E_OVERLAP, HL_E_INVALID or HL_E_LIMIT, with
 * the component and the field. */
hl_status hl_layout_validate(const hl_layout *layout, hl_error *err);

void hl_layout_free(hl_layout *layout); /* NULL is allowed */

/* SHA-256 (hex) over a canonical text of everything that decides where bytes are within a block (not the tensors' sizes
 * or page counts): two layouts with one digest can exchange blocks. */
hl_status hl_layout_block_digest(const hl_layout *layout, char hex[65], hl_error *err);

/* Bytes of one page over all components of a layer. */
uint64_t hl_layout_layer_page_bytes(const hl_layout *layout, uint32_t layer);

const char *hl_layout_kind_name(enum hl_layout_kind kind);                     /* "contiguous", "split", … */
hl_status hl_layout_kind_parse(const char *name, enum hl_layout_kind *kind, hl_error *err);

#endif
