/* Private to core/weights/document: the texts that a manifest is made of. */
#ifndef CORE_WEIGHTS_DOCUMENT_MANIFEST_PUT_H
#define CORE_WEIGHTS_DOCUMENT_MANIFEST_PUT_H

#include "core/weights/document/manifest.h"

#define HL_MANIFEST_STAGE "weights.manifest"

/* SHA-256 over what each tensor means: everything but the place where it is stored. Tensors in name order. */
hl_status hl_manifest_content_sha256(const struct hl_manifest_tensor *tensors, size_t count,
                                     char hex[HL_SHA256_HEX_BYTES], hl_error *err);

/* The same of tensors as they stand in a canonical manifest's text: entries with exactly the keys they must
 * have. What they mean is that text without file_name and storage_key. */
hl_status hl_manifest_text_content_sha256(const char *canonical, const hl_json_node *tensors,
                                          char hex[HL_SHA256_HEX_BYTES], hl_error *err);

/* hl_manifest_take() with a broken rule being `refusal`. */
hl_status hl_manifest_read(char *text, size_t bytes, hl_status refusal, hl_manifest **manifest,
                           hl_error *err);

void hl_manifest_put_text(struct hl_text *text, const char *string);
void hl_manifest_put_sizes(struct hl_text *text, const uint64_t *sizes, uint32_t count);
const char *hl_manifest_kind_name(hl_weight_tensor_kind kind);

#endif
