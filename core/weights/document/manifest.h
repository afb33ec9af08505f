/* The manifest lists an artifact's tensors and files with their digests; READY binds a publication to it.
 * Both are hostile until parsed: exact keys, exact types, bounded, canonical bytes. */
#ifndef CORE_WEIGHTS_DOCUMENT_MANIFEST_H
#define CORE_WEIGHTS_DOCUMENT_MANIFEST_H

#include "core/weights/document/identity.h"

#define HL_WEIGHT_UUID_BYTES 33 /* 32 lower-case hexadecimal digits and a NUL; the store writes version 4 */

struct hl_manifest_tensor {
    const char *name;
    hl_weight_tensor_kind kind;
    const char *role;
    const char *file_name;
    const char *storage_key; /* its name inside the file */
    const char *dtype;       /* as the framework spells it: "torch.bfloat16" */
    uint32_t rank;
    const uint64_t *shape;  /* rank sizes */
    const uint64_t *stride; /* rank strides, in elements */
    uint64_t bytes;
    char sha256[HL_SHA256_HEX_BYTES];
    uint32_t file; /* index into files: filled by hl_manifest_parse() and hl_manifest_build() */
};

struct hl_manifest_file {
    const char *file_name;
    uint64_t bytes;
    char sha256[HL_SHA256_HEX_BYTES];
};

/* Owned by its creator; freed with hl_manifest_free(). Read-only after creation. */
typedef struct hl_manifest {
    hl_weight_identity *identity;
    const char *producer_schema, *restorer_schema;
    struct hl_manifest_tensor *tensors; /* sorted by name, unique */
    size_t tensor_count;
    struct hl_manifest_file *files; /* sorted by name, unique */
    size_t file_count;
    char content_sha256[HL_SHA256_HEX_BYTES]; /* over the tensors, independent of how files shard them */
    char *canonical;                          /* the bytes of manifest.json */
    size_t canonical_bytes;
    char canonical_sha256[HL_SHA256_HEX_BYTES]; /* what READY repeats as manifest_sha256 */
    char *format_metadata;                      /* canonical JSON */
    void *storage;                              /* private: what the strings above point into */
} hl_manifest;

/* What a manifest is made from; everything is copied. Tensors and files in any order. `sha256` of each is
 * given, `file` is ignored. */
struct hl_manifest_parts {
    const hl_weight_identity *identity;
    const struct hl_manifest_tensor *tensors;
    size_t tensor_count;
    const struct hl_manifest_file *files;
    size_t file_count;
    const char *format_metadata; /* any JSON; NULL: {} */
};

/* HL_E_INVALID names the field: an empty or unsafe name, a name twice, a file that is not declared, a (file,
 * storage key) twice, a stride list of another length, no tensor, no file, sizes beyond the limits. */
hl_status hl_manifest_build(const struct hl_manifest_parts *parts, hl_manifest **manifest, hl_error *err);

/* HL_E_CORRUPT: not canonical bytes, not the exact keys, a rule broken, a digest of the content that is not
 * that of the tensors (HL_E_CHECKSUM). HL_E_UNSUPPORTED: another schema_version. HL_E_LIMIT, HL_E_NOMEM. */
hl_status hl_manifest_parse(const char *text, size_t bytes, hl_manifest **manifest, hl_error *err);
/* The same of a text that malloc() gave, with a NUL behind it: it becomes the manifest's, or is freed when
 * the manifest is refused. */
hl_status hl_manifest_take(char *text, size_t bytes, hl_manifest **manifest, hl_error *err);
void hl_manifest_free(hl_manifest *manifest); /* NULL is allowed */

/* Index of the tensor of that name, or -1. Logarithmic. */
ptrdiff_t hl_manifest_find(const hl_manifest *manifest, const char *name);

/* Whether `name` can name a payload inside an artifact: one component, not ".", "..", "manifest.json" or
 * "READY.json", at most HL_WEIGHT_FILE_NAME_BYTES - 1 bytes of UTF-8 without control characters. */
bool hl_manifest_file_name_is_safe(const char *name);

/* READY.json: exists only in a complete artifact. */
struct hl_ready {
    char publication_id[HL_WEIGHT_UUID_BYTES];
    char manifest_sha256[HL_SHA256_HEX_BYTES];
    char content_sha256[HL_SHA256_HEX_BYTES];
};
/* Appends the canonical bytes. */
void hl_ready_put(struct hl_text *text, const struct hl_ready *ready);
/* HL_E_CORRUPT, or HL_E_UNSUPPORTED for another schema_version or integrity_mode. Canonical bytes only. */
hl_status hl_ready_parse(const char *text, size_t bytes, struct hl_ready *ready, hl_error *err);

#endif
