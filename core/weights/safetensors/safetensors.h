/* core/weights/safetensors owns the file format of payloads: a strict reader of headers, the layout and
 * header of files that the store writes, and a tolerant reader for files that somebody else wrote. It reads
 * through a descriptor or from memory, never maps a file, and never touches tensor bytes. It calls
 * core/weights/json and core/base. core/weights/store and the importer call it.
 *
 * The format: 8 bytes little-endian header length N, N bytes of JSON, then the data, which the tensors cover
 * without hole or overlap. */
#ifndef CORE_WEIGHTS_SAFETENSORS_SAFETENSORS_H
#define CORE_WEIGHTS_SAFETENSORS_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/weights/json/json.h"
#include "hostlane/limits.h"
#include "hostlane/status.h"

/* X(name in the file, bits an element, the framework's name in a manifest). F4 and F6 values are packed,
 * and no framework type counts them one by one, so their manifest names are their own. */
#define HL_SAFETENSORS_DTYPES(X)                                                                             \
    X(F4, 4, "float4_e2m1fn")                                                                                \
    X(F6_E2M3, 6, "float6_e2m3")                                                                             \
    X(F6_E3M2, 6, "float6_e3m2")                                                                             \
    X(BOOL, 8, "torch.bool")                                                                                 \
    X(U8, 8, "torch.uint8")                                                                                  \
    X(I8, 8, "torch.int8")                                                                                   \
    X(F8_E5M2, 8, "torch.float8_e5m2")                                                                       \
    X(F8_E4M3, 8, "torch.float8_e4m3fn")                                                                     \
    X(F8_E8M0, 8, "torch.float8_e8m0fnu")                                                                    \
    X(F8_E4M3FNUZ, 8, "torch.float8_e4m3fnuz")                                                               \
    X(F8_E5M2FNUZ, 8, "torch.float8_e5m2fnuz")                                                               \
    X(I16, 16, "torch.int16")                                                                                \
    X(U16, 16, "torch.uint16")                                                                               \
    X(F16, 16, "torch.float16")                                                                              \
    X(BF16, 16, "torch.bfloat16")                                                                            \
    X(I32, 32, "torch.int32")                                                                                \
    X(U32, 32, "torch.uint32")                                                                               \
    X(F32, 32, "torch.float32")                                                                              \
    X(C64, 64, "torch.complex64")                                                                            \
    X(F64, 64, "torch.float64")                                                                              \
    X(I64, 64, "torch.int64")                                                                                \
    X(U64, 64, "torch.uint64")

enum hl_safetensors_dtype {
#define HL_SAFETENSORS_ENUM(name, bits, framework) HL_SAFETENSORS_##name,
    HL_SAFETENSORS_DTYPES(HL_SAFETENSORS_ENUM)
#undef HL_SAFETENSORS_ENUM
        HL_SAFETENSORS_DTYPE_COUNT
};

const char *hl_safetensors_dtype_name(enum hl_safetensors_dtype dtype);     /* "BF16" */
const char *hl_safetensors_framework_name(enum hl_safetensors_dtype dtype); /* "torch.bfloat16" */
unsigned hl_safetensors_bits(enum hl_safetensors_dtype dtype);
/* Both return false for a name that is not in the list. Case matters. */
bool hl_safetensors_dtype_parse(const char *name, enum hl_safetensors_dtype *dtype);
bool hl_safetensors_framework_parse(const char *name, enum hl_safetensors_dtype *dtype);

/* Bytes of a tensor of that shape. HL_E_OVERFLOW; HL_E_INVALID when sub-byte elements do not fill a byte. */
hl_status hl_safetensors_tensor_bytes(enum hl_safetensors_dtype dtype, const uint64_t *shape, uint32_t rank,
                                      uint64_t *bytes, hl_error *err);

struct hl_safetensors_tensor {
    const char *name; /* UTF-8 */
    enum hl_safetensors_dtype dtype;
    uint32_t rank;
    const uint64_t *shape;
    uint64_t begin, end; /* in the data */
};

struct hl_safetensors_metadata {
    const char *key, *value;
};

/* What the tolerant reader let pass, counted. */
struct hl_safetensors_tolerated {
    uint32_t leading_space;      /* white space before the header's brace */
    uint32_t unaligned_header;   /* a header length that is no multiple of 8 */
    uint32_t misaligned;         /* tensors whose data are not aligned for their type */
    uint32_t unknown_fields;     /* further fields of a tensor's entry */
    uint32_t null_metadata;      /* "__metadata__": null */
    uint32_t duplicate_metadata; /* a metadata key given again (the last is kept) */
};

/* A parsed header. Read-only. */
typedef struct hl_safetensors {
    struct hl_safetensors_tensor *tensors; /* sorted by (begin, end), then by name */
    size_t tensor_count;
    struct hl_safetensors_metadata *metadata;
    size_t metadata_count;
    uint64_t data_offset; /* where the data start in the file: 8 + N */
    uint64_t data_bytes;
    struct hl_safetensors_tolerated tolerated;
    void *storage; /* private */
} hl_safetensors;

enum hl_safetensors_strictness {
    /* For what the store wrote. Beyond the reference reader it refuses: a tensor name twice, an empty name or
     * one with a NUL, unknown fields, anything but an object as an entry, white space before the header,
     * "__metadata__": null or a metadata key twice, a header length that is no multiple of 8, and a product
     * of dimensions that overflows before a zero. Tensors whose data are misaligned for their type are
     * accepted: name order, which the format's other writer uses, makes them. */
    HL_SAFETENSORS_STRICT,
    /* For importing: accepts what `tolerated` counts. Never a tensor name twice, a hole, an overlap, or bytes
     * that no tensor owns. */
    HL_SAFETENSORS_TOLERANT
};

/* Parses the header in `header` (what stands after the 8 bytes of length) of a file of `file_bytes` bytes.
 * `misaligned` is counted in both modes.
 * HL_E_CORRUPT: malformed, with the tensor's name; HL_E_LIMIT: header over HL_SAFETENSORS_HEADER_BYTES or too
 * many tensors or dimensions; HL_E_OVERFLOW: sizes that do not fit 64 bits; HL_E_RANGE: tensors that do not
 * cover the data exactly; HL_E_NOMEM. */
hl_status hl_safetensors_parse(const char *header, uint64_t header_bytes, uint64_t file_bytes,
                               enum hl_safetensors_strictness strictness, hl_safetensors **parsed,
                               hl_error *err);

/* Reads and parses the header of an open file of `file_bytes` bytes, with pread(). Also HL_E_SYSTEM (a read
 * failed) and HL_E_CORRUPT (the file ends inside the header). */
hl_status hl_safetensors_read(int fd, uint64_t file_bytes, enum hl_safetensors_strictness strictness,
                              hl_safetensors **parsed, hl_error *err);
void hl_safetensors_free(hl_safetensors *parsed); /* NULL is allowed */

/* --- writing --- */

struct hl_safetensors_spec {
    const char *name;
    enum hl_safetensors_dtype dtype;
    uint32_t rank;
    const uint64_t *shape;
};

enum hl_safetensors_order {
    HL_SAFETENSORS_BY_NAME, /* byte for byte what vLLM-Omni's store writes: tensors in name order, header
                               padded to 8 */
    HL_SAFETENSORS_ALIGNED /* wide types first, then by name; the header is padded so that the data start at a
                              multiple of HL_SAFETENSORS_DATA_ALIGN: legal for every reader, and good for
                              direct I/O and registration */
};

/* Where everything goes. `offsets[i]` is the first byte of specs[i] in the file. */
struct hl_safetensors_layout {
    char *header; /* the 8 bytes of length and the padded JSON */
    uint64_t header_bytes;
    uint64_t *offsets;
    uint64_t *sizes;
    uint64_t file_bytes;
};

/* Lays out a file. `metadata` may be NULL. HL_E_INVALID: a name twice, empty, "__metadata__" or not UTF-8;
 * HL_E_OVERFLOW; HL_E_LIMIT; HL_E_NOMEM. Zero tensors are allowed. */
hl_status hl_safetensors_lay_out(const struct hl_safetensors_spec *specs, size_t count,
                                 const struct hl_safetensors_metadata *metadata, size_t metadata_count,
                                 enum hl_safetensors_order order, struct hl_safetensors_layout *layout,
                                 hl_error *err);
void hl_safetensors_layout_free(struct hl_safetensors_layout *layout);

#endif
