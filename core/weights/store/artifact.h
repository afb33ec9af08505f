/* Private to core/weights/store: the steps of a validation (validate.c has their order). */
#ifndef CORE_WEIGHTS_STORE_ARTIFACT_H
#define CORE_WEIGHTS_STORE_ARTIFACT_H

#include "core/weights/store/store.h"

/* payloads.c: opens every payload and looks at what its inode says: a regular file with one name, the size of
 * the manifest, not to be written. Statuses: HL_E_CORRUPT, HL_E_PERMISSION, HL_E_CHECKSUM (the size), and
 * HL_E_SYSTEM with errno. */
hl_status hl_artifact_open_payloads(struct hl_artifact *artifact, bool trusted, hl_error *err);

/* payloads.c: reads their headers and holds them against the manifest: the same tensors, each with its type,
 * shape, strides and size. Fills data_offset and tensor_begin. HL_E_CORRUPT names the tensor; and what
 * hl_safetensors_read() gives. */
hl_status hl_artifact_check_headers(struct hl_artifact *artifact, hl_error *err);

/* checksums.c: hashes every byte of every payload and compares. HL_E_CHECKSUM names the file or tensor. A
 * file of at least `split_bytes` may be hashed in parts. */
hl_status hl_artifact_check_sums(const struct hl_artifact *artifact, uint32_t threads, uint64_t split_bytes,
                                 hl_error *err);
#define HL_SUMS_SPLIT_BYTES (64ull * HL_MIB)

/* Files and tensors that a check would hash by their own sums, for tests and the bench: how many files are
 * hashed in parts. */
size_t hl_artifact_split_files(const struct hl_artifact *artifact, uint32_t threads, uint64_t split_bytes);

#endif
