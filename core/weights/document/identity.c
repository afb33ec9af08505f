/* Identities: exact keys, exact types, canonical bytes, and the key that is their SHA-256. */
#include "core/weights/document/identity.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/weights/document/fields.h"

#define STAGE "weights.identity"

/* One level less than a manifest may have, since a manifest holds an identity. */
enum { IDENTITY_DEPTH = 126 };

enum field_kind { ANY, TEXT, TEXT_OR_NULL, COUNT, INDEX };

/* Where a field's value goes in struct hl_weight_identity. Fields and sections stand in the order of the
 * canonical encoding. */
struct field {
    const char *key;
    enum field_kind kind;
    size_t offset;
};
#define FIELD(key, kind, member)                                                                             \
    {                                                                                                        \
        key, kind, offsetof(struct hl_weight_identity, member)                                               \
    }
#define METADATA                                                                                             \
    {                                                                                                        \
        "metadata", ANY, 0                                                                                   \
    }

enum { MOST_FIELDS = 6 };
struct section {
    const char *name;
    size_t count;
    struct field fields[MOST_FIELDS];
};

static const struct section sections[] = {
    {"adaptation",
     3,
     {FIELD("fingerprint", TEXT_OR_NULL, adaptation_fingerprint), FIELD("kind", TEXT, adaptation_kind),
      METADATA}},
    {"component", 3, {METADATA, FIELD("name", TEXT, component), FIELD("ownership", TEXT, ownership)}},
    {"layout",
     6,
     {METADATA, FIELD("name", TEXT, layout),
      FIELD("sequence_parallel_backend", TEXT, sequence_parallel_backend),
      FIELD("sequence_parallel_size", COUNT, sequence_parallel_size),
      FIELD("tensor_parallel_rank", INDEX, tensor_parallel_rank),
      FIELD("tensor_parallel_size", COUNT, tensor_parallel_size)}},
    {"producer",
     5,
     {FIELD("implementation_fingerprint", TEXT, implementation_fingerprint),
      FIELD("manifest_schema", TEXT, manifest_schema), FIELD("producer_id", TEXT, producer_id),
      FIELD("restorer_schema", TEXT, restorer_schema), FIELD("version", TEXT, producer_version)}},
    {"representation", 3, {FIELD("dtype", TEXT, dtype), METADATA, FIELD("name", TEXT, representation)}},
    {"source",
     4,
     {FIELD("fingerprint", TEXT, source_fingerprint), METADATA, FIELD("model_id", TEXT, model_id),
      FIELD("revision", TEXT, revision)}},
};
enum { SECTIONS = sizeof sections / sizeof sections[0], SCHEMA_VERSION = SECTIONS };

static hl_status read_field(const struct hl_fields *fields, const struct field *field,
                            const hl_json_node *node, hl_weight_identity *identity)
{
    void *value = (char *)identity + field->offset;
    switch (field->kind) {
    case ANY:
        return HL_OK;
    case TEXT:
        return hl_field_name_text(fields, field->key, node, (const char **)value);
    case TEXT_OR_NULL:
        if (hl_json_type_of(node) == HL_JSON_NULL)
            return HL_OK;
        return hl_field_text(fields, field->key, node, (const char **)value);
    case COUNT:
        return hl_field_u64(fields, field->key, node, 1, (uint64_t *)value);
    case INDEX:
        return hl_field_u64(fields, field->key, node, 0, (uint64_t *)value);
    }
    assert(!"a kind of field that the switch does not know");
    return HL_E_INVALID;
}

static hl_status read_section(const struct section *section, const hl_json_node *node,
                              hl_weight_identity *identity, hl_error *err)
{
    const struct hl_fields fields = {STAGE, HL_E_INVALID, section->name, -1, err};
    const char *keys[MOST_FIELDS];
    const hl_json_node *found[MOST_FIELDS];
    for (size_t i = 0; i < section->count; i++)
        keys[i] = section->fields[i].key;
    hl_status status = hl_fields_collect(&fields, node, keys, section->count, found);
    for (size_t i = 0; status == HL_OK && i < section->count; i++)
        status = read_field(&fields, &section->fields[i], found[i], identity);
    return status;
}

/* Rules between fields. */
static hl_status check_together(const hl_weight_identity *identity, hl_error *err)
{
    const struct hl_fields layout = {STAGE, HL_E_INVALID, "layout", -1, err};
    if (identity->tensor_parallel_rank >= identity->tensor_parallel_size)
        return HL_FIELD_FAIL(&layout, "tensor_parallel_rank", "is %llu of a tensor_parallel_size of %llu",
                             (unsigned long long)identity->tensor_parallel_rank,
                             (unsigned long long)identity->tensor_parallel_size);
    const struct hl_fields adaptation = {STAGE, HL_E_INVALID, "adaptation", -1, err};
    const char *fingerprint = identity->adaptation_fingerprint;
    if (strcmp(identity->adaptation_kind, "base") != 0 && !(fingerprint && *fingerprint))
        return HL_FIELD_FAIL(&adaptation, "fingerprint", "is needed for any kind but base");
    return HL_OK;
}

static hl_status read_identity(const hl_json_node *root, hl_weight_identity *identity, hl_error *err)
{
    const struct hl_fields fields = {STAGE, HL_E_INVALID, NULL, -1, err};
    const char *keys[SECTIONS + 1];
    const hl_json_node *found[SECTIONS + 1];
    for (size_t i = 0; i < SECTIONS; i++)
        keys[i] = sections[i].name;
    keys[SCHEMA_VERSION] = "schema_version";
    hl_status status = hl_fields_collect(&fields, root, keys, SECTIONS + 1, found);
    if (status == HL_OK)
        status = hl_field_u64(&fields, "schema_version", found[SCHEMA_VERSION], 1, &identity->schema_version);
    for (size_t i = 0; status == HL_OK && i < SECTIONS; i++)
        status = read_section(&sections[i], found[i], identity, err);
    return status == HL_OK ? check_together(identity, err) : status;
}

/* The canonical bytes of a value, which become the identity's, and the document that its strings lie in. */
static hl_status take_canonical(const hl_json_node *node, hl_weight_identity *identity, hl_error *err)
{
    static const struct hl_json_rules rules = {
        .max_bytes = HL_WEIGHT_IDENTITY_BYTES, .max_depth = IDENTITY_DEPTH, .stage = STAGE};
    struct hl_text canonical = {0};
    hl_json_put_canonical(&canonical, node);
    identity->canonical = canonical.bytes;
    identity->canonical_bytes = canonical.size;
    hl_status status = hl_text_status(&canonical, STAGE, err);
    if (status == HL_OK)
        status = hl_json_parse(canonical.bytes, canonical.size, &rules, &identity->document, err);
    return status;
}

hl_status hl_identity_from_node(const hl_json_node *node, hl_weight_identity **identity, hl_error *err)
{
    hl_weight_identity *made = calloc(1, sizeof *made);
    if (!made)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for an identity");
    hl_status status = take_canonical(node, made, err);
    if (status == HL_OK)
        status = read_identity(hl_json_root(made->document), made, err);
    if (status == HL_OK)
        status = hl_sha256(made->canonical, made->canonical_bytes, made->key, err);
    if (status != HL_OK)
        goto err_free;
    *identity = made;
    return HL_OK;
err_free:
    hl_weight_identity_free(made);
    return status;
}

hl_status hl_weight_identity_parse(const char *json, size_t bytes, hl_weight_identity **identity,
                                   hl_error *err)
{
    static const struct hl_json_rules rules = {
        .max_bytes = HL_WEIGHT_IDENTITY_BYTES, .max_depth = IDENTITY_DEPTH, .stage = STAGE};
    if (!json || !identity)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "%s is NULL", json ? "identity" : "json");
    hl_json *document = NULL;
    hl_status status = hl_json_parse(json, bytes, &rules, &document, err);
    if (status == HL_OK)
        status = hl_identity_from_node(hl_json_root(document), identity, err);
    hl_json_free(document);
    return status;
}

void hl_weight_identity_free(hl_weight_identity *identity)
{
    if (!identity)
        return;
    hl_json_free(identity->document);
    free(identity->canonical);
    free(identity);
}

const char *hl_weight_identity_key(const hl_weight_identity *identity)
{
    return identity->key;
}

const char *hl_weight_identity_json(const hl_weight_identity *identity, size_t *bytes)
{
    if (bytes)
        *bytes = identity->canonical_bytes;
    return identity->canonical;
}
