/* core/weights/document owns the texts that a weight store keeps: an artifact's identity and manifest, READY,
 * the domain's description and policy, and the deny marker. Each is canonical JSON with an exact set of keys
 * (schema 1, which the store shares with vLLM-Omni's). It reads and writes memory, never files; it calls
 * core/weights/json and core/base. core/weights/store calls it.
 *
 * The identity says exactly which weights: source, component, representation, layout, adaptation and
 * producer. Nothing about how they travel is in it (no device, no transfer mode, no data-parallel or
 * sequence-parallel rank), so that workers that need the same bytes find the same artifact. */
#ifndef CORE_WEIGHTS_DOCUMENT_IDENTITY_H
#define CORE_WEIGHTS_DOCUMENT_IDENTITY_H

#include "core/base/sha256.h"
#include "core/weights/json/json.h"
#include "hostlane/weights.h"

/* What the public, opaque hl_weight_identity holds. Strings live as long as it. Any thread may read it;
 * nobody writes it. */
struct hl_weight_identity {
    char key[HL_SHA256_HEX_BYTES]; /* SHA-256 of the canonical bytes */
    char *canonical;               /* NUL-terminated */
    size_t canonical_bytes;
    hl_json *document; /* what the strings below point into */
    uint64_t schema_version;
    const char *model_id, *revision, *source_fingerprint;
    const char *component, *ownership;
    const char *representation, *dtype;
    const char *layout, *sequence_parallel_backend;
    uint64_t tensor_parallel_size, tensor_parallel_rank, sequence_parallel_size;
    const char *adaptation_kind, *adaptation_fingerprint; /* the fingerprint is NULL when it was null */
    const char *producer_id, *producer_version, *implementation_fingerprint, *manifest_schema,
        *restorer_schema;
};

/* hl_weight_identity_parse() of a node of a larger document (the manifest holds one). A text that holds a NUL
 * is HL_E_INVALID, except in metadata. */
hl_status hl_identity_from_node(const hl_json_node *node, hl_weight_identity **identity, hl_error *err);

#endif
