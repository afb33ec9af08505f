/* core/layout owns the geometry of KV memory: where the bytes of page p of each layer lie in the engine's
 * tensors, and where they lie in a stored block. It is arithmetic only; it calls core/base. core/plan turns
 * it into ranges.
 *
 * Words. A *tensor* is one device allocation that the engine registered. A *component* is one role (K, V, …)
 * of one layer: an affine set of rows in a tensor. A *storage group* is a set of layers that share block keys
 * and page indices (hybrid models have several: full attention, sliding window). A *block* is what one page
 * of every layer of one group holds, stored as one arena allocation.
 *
 *     device address of row r of page p  = tensor base + offset + p * page_stride + r * row_stride
 *     offset in the stored block         = block_offset + r * block_row_stride
 *     width                              = row_bytes
 *
 * The stride of a dimension of one row or one page is not looked at.
 * Components are in consuming order: layer 0's K then V, layer 1's K then V, … (R14).
 *
 * Who calls what: the engine's registration builds a layout (from a model's config.json or explicitly), the
 * Manager copies and validates what the engine sent, core/plan reads it. A built layout is immutable: any
 * thread may read it. */
#ifndef HOSTLANE_LAYOUT_H
#define HOSTLANE_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "hostlane/limits.h"
#include "hostlane/status.h"

/* X(name, text, what the component holds). The order is the consuming order inside a layer. */
#define HL_ROLE_LIST(X)                                                                                      \
    X(K, "k", "keys")                                                                                        \
    X(V, "v", "values")                                                                                      \
    X(FUSED, "kv", "K and V of a head side by side")                                                         \
    X(LATENT, "latent", "MLA's compressed vector and rope part")                                             \
    X(STATE, "state", "opaque per-page state of an explicit layout")

enum hl_role {
#define HL_ROLE_ENUM(name, text, meaning) HL_ROLE_##name,
    HL_ROLE_LIST(HL_ROLE_ENUM)
#undef HL_ROLE_ENUM
};

struct hl_layout_component {
    uint32_t layer;  /* registered layer: the index of its event */
    uint32_t group;  /* storage group */
    uint32_t tensor; /* index into the tensors */
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

/* What the bytes of a block mean, as far as the layout's builder knows: it decides nothing about ranges, only
 * which blocks are the same (hl_layout_block_digest). Heads are the model's KV heads. All zero: an explicit
 * layout that does not say, whose blocks are then told apart by their geometry alone. */
struct hl_layout_content {
    uint32_t element_bytes;
    uint32_t model_heads; /* KV heads of the whole model */
    uint32_t first_head;  /* a stored block holds heads first_head … first_head + heads - 1 */
    uint32_t heads;
    uint32_t rank_first_head; /* this binding's pages hold these of them */
    uint32_t rank_heads;
    uint32_t head_major; /* 1: a page is [heads][tokens][dim]; 0: [tokens][heads][dim] */
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
    struct hl_layout_content content;
} hl_layout;

/* How the engine lays its tensors out: X(name, text, shape). A page is [tokens][heads][dim], contiguous. */
#define HL_LAYOUT_KIND_LIST(X)                                                                               \
    X(CONTIGUOUS, "contiguous", "a tensor a layer, [2][pages][page]: all K pages, then all V pages")         \
    X(SPLIT, "split", "two tensors a layer, K and V, each [pages][page]")                                    \
    X(FUSED, "fused", "a tensor a layer, [pages][tokens][heads][K dim, then V dim]")                         \
    X(MLA, "mla", "a tensor a layer, [pages][page] of the compressed latent and rope part")                  \
    X(PAGE_FIRST, "page-first", "a tensor a group, [pages][layers of the group][K page, V page or latent]")

enum hl_layout_kind {
#define HL_LAYOUT_KIND_ENUM(name, text, shape) HL_LAYOUT_##name,
    HL_LAYOUT_KIND_LIST(HL_LAYOUT_KIND_ENUM)
#undef HL_LAYOUT_KIND_ENUM
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
    uint32_t kv_heads;       /* of the whole model; 1 with MLA */
    uint32_t head_dim;       /* K elements a head; with MLA: latent + rope elements */
    uint32_t value_head_dim; /* V elements a head; 0: as head_dim, and with MLA, which stores no V */
    uint32_t element_bytes;  /* of torch_dtype/dtype; 0: the file does not say */
    int mla;                 /* the cache holds one latent vector a token */
    uint32_t window_tokens;  /* of the sliding layers; 0 when there are none */
    uint8_t sliding[HL_LAYOUT_LAYERS]; /* 1: the layer uses the window */
};

/* Reads a Hugging Face config.json, hostile until validated. Multimodal files with a text_config are read
 * through it.
 *
 * Which layers slide: layer_types (or layers_block_type) where the file has it; else, with use_sliding_window
 * or max_window_layers (Qwen), the layers from max_window_layers on, and none unless use_sliding_window is
 * true; else sliding_window_pattern n, every n-th layer full (for gemma2, gemma3 and cohere2 also when the
 * file leaves it to the architecture); else every layer when sliding_window is a number.
 *
 * HL_E_CORRUPT for JSON that does not parse (also a key given twice, and the NaN and Infinity that Python
 * writes), HL_E_INVALID for a missing, mistyped, out-of-bounds or contradictory field, HL_E_UNSUPPORTED for a
 * cache that this room cannot describe (linear attention, Mamba, per-layer head counts, shared or
 * cross-attention caches, …); the text names the field, and the layer and its type. HL_E_LIMIT for a file
 * over HL_LAYOUT_CONFIG_BYTES or more than HL_LAYOUT_LAYERS layers. HL_E_NOMEM. */
HL_API hl_status hl_layout_parse_config(const char *json, size_t size, struct hl_model_geometry *geometry,
                                        hl_error *err);

/* Reads the file at `path` and parses it. HL_E_SYSTEM when it cannot be read. */
HL_API hl_status hl_layout_load_config(const char *path, struct hl_model_geometry *geometry, hl_error *err);

struct hl_layout_options {
    enum hl_layout_kind kind; /* MLA models take MLA or PAGE_FIRST, others all but MLA */
    enum hl_block_order order;
    uint32_t page_tokens;   /* tokens a page, 1 to HL_LAYOUT_PAGE_TOKENS */
    uint32_t pages;         /* device pages of each group, >= 1 */
    uint32_t element_bytes; /* 1, 2 or 4; 0: as the model says, which then must; 1 for an FP8 cache */
    uint32_t tp_size;       /* ranks that the engine's heads are split over; 0 or 1: none */
    uint32_t tp_rank;       /* this binding's rank */
    int store_full_heads;   /* 1: a stored block holds the heads of all ranks, of which this rank selects its
                               slot (rows of a token); 0: it holds this rank's heads only */
};

/* Lays a model's cache out. With full and sliding layers there are two groups (0 full attention, 1 sliding);
 * with one sort of layer there is one. When kv_heads < tp_size heads are replicated (tp_size must then be a
 * multiple): rank r holds head r / (tp_size / kv_heads). MLA latents are replicated on every rank. A page
 * that is contiguous in the tensor and in the block is one row, else there is a row a token. HL_E_INVALID
 * names the option or geometry field, HL_E_OVERFLOW when the cache does not fit 64 bits, HL_E_NOMEM. Free
 * with hl_layout_free(). */
HL_API hl_status hl_layout_from_model(const struct hl_model_geometry *geometry,
                                      const struct hl_layout_options *options, hl_layout **layout,
                                      hl_error *err);

/* Copies an explicit layout, as an engine registers it, and validates the copy. Errors as
 * hl_layout_validate(), and HL_E_NOMEM. */
HL_API hl_status hl_layout_from_components(const hl_layout *description, hl_layout **layout, hl_error *err);

/* Every index and count is in bounds; components are in consuming order (layer, then role) and a layer's are
 * of one group; every group has one; row_bytes > 0; rows of a page, pages of a component and components of a
 * tensor do not overlap on the device; every row of every page lies in its tensor; every block row lies in
 * the block and block rows do not overlap; `content` is all zero or consistent with the rows. HL_E_RANGE,
 * HL_E_OVERLAP, HL_E_INVALID or HL_E_LIMIT, with the component and the field; HL_E_NOMEM. Any values are safe
 * to pass, near 2^64 too.
 *
 * Components of different groups may share bytes page for page (one page pool under several groups, as vLLM's
 * hybrid models have): page p of one may then overlap page p of the other, and no other page. Which of them
 * holds page p is the engine's to know; core/plan refuses a restore that writes both.
 *
 * The overlap test never accepts an overlap. It refuses some sets that are disjoint (HL_E_OVERLAP):
 *  - a component whose pages and rows are woven, neither all rows of a page below the next page nor all pages
 * of a row below the next row;
 *  - two components of one tensor whose extents overlap and whose page strides differ (both having several
 * pages), or that share no period of one page stride in which each lies whole;
 *  - two components that meet inside such a period with different row strides, or whose rows would meet if
 * the shorter one had more rows. */
HL_API hl_status hl_layout_validate(const hl_layout *layout, hl_error *err);

HL_API void hl_layout_free(hl_layout *layout); /* NULL is allowed */

/* SHA-256 (hex) over a canonical text of everything that decides where bytes are within a block and which
 * heads they are (not the tensors, page counts or windows): two layouts of one model with one digest can
 * exchange blocks. Kinds that store the same block share it, and so do all ranks and TP sizes that store full
 * heads, each seeing its slot of the block. The model itself, and what its elements mean beyond their size,
 * belong to the namespace. The layout must be valid. HL_E_NOMEM. */
HL_API hl_status hl_layout_block_digest(const hl_layout *layout, char hex[65], hl_error *err);

/* Bytes of one page over all components of a layer; 0 for a layer without any. */
HL_API uint64_t hl_layout_layer_page_bytes(const hl_layout *layout, uint32_t layer);

const char *
hl_layout_kind_name(enum hl_layout_kind kind); /* "contiguous", "split", …; "unknown" for others */
HL_API const char *hl_layout_role_name(enum hl_role role); /* "k", "v", …; "unknown" for others */

/* HL_E_INVALID for a name that is none. */
HL_API hl_status hl_layout_kind_parse(const char *name, enum hl_layout_kind *kind, hl_error *err);

#endif
