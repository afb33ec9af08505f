/* domain.json: where a store is. */
#include "core/weights/document/domain.h"

#include <string.h>

#include "core/weights/document/fields.h"

#define STAGE "weights.domain"

static const char *const scopes[] = {[HL_WEIGHT_SCOPE_NODE] = "node", [HL_WEIGHT_SCOPE_NUMA] = "numa"};
static const char *const classes[] = {[HL_WEIGHT_DISK] = "disk", [HL_WEIGHT_TMPFS] = "tmpfs"};
static const char *const backends[] = {"local_filesystem"};

void hl_domain_put(struct hl_text *text, const struct hl_domain_document *domain)
{
    hl_text_print(text, "{\"backend\":\"%s\",\"domain_id\":", backends[0]);
    hl_json_put_string(text, domain->domain_id, strlen(domain->domain_id));
    hl_text_print(text, ",\"domain_uuid\":\"%s\",\"filesystem_type\":", domain->uuid);
    hl_json_put_string(text, domain->filesystem_type, strlen(domain->filesystem_type));
    hl_text_print(text, ",\"schema_version\":1,\"scope\":\"%s\",\"storage_class\":\"%s\"}",
                  scopes[domain->scope], classes[domain->storage_class]);
}

/* A non-empty text that fits `capacity` bytes with its NUL. */
static hl_status read_bounded(const struct hl_fields *fields, const char *key, const hl_json_node *node,
                              char *copy, size_t capacity)
{
    const char *found = NULL;
    hl_status status = hl_field_name_text(fields, key, node, &found);
    if (status != HL_OK)
        return status;
    size_t size = strlen(found);
    if (size >= capacity)
        return HL_FIELD_FAIL(fields, key, "has %zu bytes, of which %zu are allowed", size, capacity - 1);
    memcpy(copy, found, size + 1);
    return HL_OK;
}

static hl_status read_domain(const struct hl_fields *fields, const hl_json_node *root,
                             struct hl_domain_document *domain)
{
    enum { BACKEND, ID, UUID, FILESYSTEM, SCHEMA, SCOPE, CLASS, KEYS };
    static const char *const keys[KEYS] = {"backend",        "domain_id", "domain_uuid",  "filesystem_type",
                                           "schema_version", "scope",     "storage_class"};
    const hl_json_node *found[KEYS];
    struct hl_fields unsupported = *fields;
    unsupported.refusal = HL_E_UNSUPPORTED;
    size_t backend = 0, scope = 0, class = 0;
    hl_status status = hl_fields_collect(fields, root, keys, KEYS, found);
    if (status == HL_OK)
        status = hl_field_type(fields, keys[BACKEND], found[BACKEND], HL_JSON_STRING);
    if (status == HL_OK)
        status = hl_field_choice(&unsupported, keys[BACKEND], found[BACKEND], backends, 1, &backend);
    if (status == HL_OK)
        status = hl_field_choice(fields, keys[SCOPE], found[SCOPE], scopes, 2, &scope);
    if (status == HL_OK)
        status = hl_field_choice(fields, keys[CLASS], found[CLASS], classes, 2, &class);
    if (status == HL_OK)
        status = hl_field_hex(fields, keys[UUID], found[UUID], HL_WEIGHT_UUID_BYTES - 1, domain->uuid);
    if (status == HL_OK)
        status = read_bounded(fields, keys[ID], found[ID], domain->domain_id, sizeof domain->domain_id);
    if (status == HL_OK)
        status = read_bounded(fields, keys[FILESYSTEM], found[FILESYSTEM], domain->filesystem_type,
                              sizeof domain->filesystem_type);
    domain->scope = (hl_weight_scope)scope;
    domain->storage_class = (hl_weight_storage_class) class;
    return status;
}

hl_status hl_domain_parse(const char *text, size_t bytes, struct hl_domain_document *domain, hl_error *err)
{
    const struct hl_fields fields = {STAGE, HL_E_CORRUPT, NULL, -1, err};
    hl_json *document = NULL;
    struct hl_domain_document found = {0};
    uint64_t version = 0;
    hl_status status = hl_fields_parse(&fields, text, bytes, &document);
    if (status != HL_OK)
        return status;
    status = hl_fields_schema(&fields, hl_json_root(document), 1, &version);
    if (status == HL_OK)
        status = read_domain(&fields, hl_json_root(document), &found);
    hl_json_free(document);
    if (status == HL_OK)
        *domain = found;
    return status;
}
