/* READY.json. */
#include "core/weights/document/fields.h"
#include "core/weights/document/manifest.h"

#define STAGE "weights.ready"

void hl_ready_put(struct hl_text *text, const struct hl_ready *ready)
{
    hl_text_print(text,
                  "{\"artifact_content_sha256\":\"%s\",\"integrity_mode\":\"full_checksum\","
                  "\"manifest_sha256\":\"%s\",\"publication_id\":\"%s\",\"schema_version\":1}",
                  ready->content_sha256, ready->manifest_sha256, ready->publication_id);
}

static hl_status read_mode(const struct hl_fields *fields, const hl_json_node *node)
{
    static const char *const modes[] = {"full_checksum"};
    const char *mode = NULL;
    size_t chosen = 0;
    hl_status status = hl_field_text(fields, "integrity_mode", node, &mode);
    if (status != HL_OK)
        return status;
    struct hl_fields unsupported = *fields;
    unsupported.refusal = HL_E_UNSUPPORTED;
    return hl_field_choice(&unsupported, "integrity_mode", node, modes, 1, &chosen);
}

static hl_status read_ready(const struct hl_fields *fields, const hl_json_node *root, struct hl_ready *ready)
{
    enum { CONTENT, MODE, MANIFEST, PUBLICATION, SCHEMA, KEYS };
    static const char *const keys[KEYS] = {"artifact_content_sha256", "integrity_mode", "manifest_sha256",
                                           "publication_id", "schema_version"};
    const hl_json_node *found[KEYS];
    hl_status status = hl_fields_collect(fields, root, keys, KEYS, found);
    if (status == HL_OK)
        status = read_mode(fields, found[MODE]);
    if (status == HL_OK)
        status = hl_field_hex(fields, keys[CONTENT], found[CONTENT], HL_SHA256_HEX_BYTES - 1,
                              ready->content_sha256);
    if (status == HL_OK)
        status = hl_field_hex(fields, keys[MANIFEST], found[MANIFEST], HL_SHA256_HEX_BYTES - 1,
                              ready->manifest_sha256);
    if (status == HL_OK)
        status = hl_field_hex(fields, keys[PUBLICATION], found[PUBLICATION], HL_WEIGHT_UUID_BYTES - 1,
                              ready->publication_id);
    return status;
}

hl_status hl_ready_parse(const char *text, size_t bytes, struct hl_ready *ready, hl_error *err)
{
    const struct hl_fields fields = {STAGE, HL_E_CORRUPT, NULL, -1, err};
    hl_json *document = NULL;
    struct hl_ready found = {0};
    uint64_t version = 0;
    hl_status status = hl_fields_parse(&fields, text, bytes, &document);
    if (status != HL_OK)
        return status;
    status = hl_fields_schema(&fields, hl_json_root(document), 1, &version);
    if (status == HL_OK)
        status = hl_fields_check_canonical(&fields, document);
    if (status == HL_OK)
        status = read_ready(&fields, hl_json_root(document), &found);
    hl_json_free(document);
    if (status == HL_OK)
        *ready = found;
    return status;
}
