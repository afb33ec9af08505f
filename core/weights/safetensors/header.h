/* Private to core/weights/safetensors: how a header goes from text to tensors. parse.c drives it: the JSON
 * document, then one entry for each tensor (entry.c), the metadata (metadata.c), the order and the cover
 * (cover.c), and last the result, which owns copies of all that it keeps; the document is freed. Nothing
 * here is worse than n log n in the size of the header. */
#ifndef CORE_WEIGHTS_SAFETENSORS_HEADER_H
#define CORE_WEIGHTS_SAFETENSORS_HEADER_H

#include "core/weights/safetensors/safetensors.h"

#define HL_SAFETENSORS_STAGE "weights.safetensors"
#define HL_SAFETENSORS_METADATA "__metadata__"
#define HL_SAFETENSORS_LENGTH_BYTES 8u /* of the header's length, before the header */

/* One tensor while its header is being read. The strings and nodes are the document's. */
struct hl_safetensors_entry {
    const char *name;
    const hl_json_node *shape; /* an array of integers that fit */
    enum hl_safetensors_dtype dtype;
    uint64_t begin, end; /* begin <= end, and what lies between is what shape and dtype take */
};

struct hl_safetensors_scan {
    const char *text; /* of the header: a number's sign is looked up there */
    enum hl_safetensors_strictness strictness;
    struct hl_safetensors_tolerated tolerated;
    struct hl_safetensors_entry *entries; /* in the order of the text */
    const void **order;                   /* the entries, in the order of the result */
    size_t count;
    struct hl_safetensors_metadata *pairs; /* by key, each key once */
    size_t pair_count;
    hl_error *err;
};

/* entry.c: checks one member of the header's object, a tensor, and fills `entry`. */
hl_status hl_safetensors_read_entry(struct hl_safetensors_scan *scan, const hl_json_node *tensor,
                                    struct hl_safetensors_entry *entry);

/* metadata.c: fills scan->pairs from the value of "__metadata__". */
hl_status hl_safetensors_read_metadata(struct hl_safetensors_scan *scan, const hl_json_node *value);

/* cover.c: puts the entries in order, and checks that they cover `data_bytes` exactly. */
hl_status hl_safetensors_order_entries(struct hl_safetensors_scan *scan);
hl_status hl_safetensors_check_cover(struct hl_safetensors_scan *scan, uint64_t data_offset,
                                     uint64_t data_bytes);
/* cover.c: refuses a name that two entries have. Leaves the order alone. */
hl_status hl_safetensors_check_names(const struct hl_safetensors_scan *scan);

/* order.c: sorts pointers, equal ones in the order they had. n log n, and linear for a few ascending
 * stretches. HL_E_NOMEM. */
typedef int hl_safetensors_compare(const void *left, const void *right);
hl_status hl_safetensors_sort(const void **items, size_t count, hl_safetensors_compare *compare,
                              hl_error *err);

/* dtypes.c: hl_safetensors_tensor_bytes() without the error's text. */
hl_status hl_safetensors_measure(enum hl_safetensors_dtype dtype, const uint64_t *shape, uint32_t rank,
                                 uint64_t *bytes);

#endif
