/* domain-policy.json: what a store may hold. Schema 1, or 2 with the key build_admission when builds are
 * serialized, so that a worker that does not know about that refuses the domain. */
#include <inttypes.h>

#include "core/weights/document/domain.h"
#include "core/weights/document/fields.h"

#define STAGE "weights.policy"

enum { SCHEMA_CONCURRENT = 1, SCHEMA_SERIALIZED = 2 };

static void put_limit(struct hl_text *text, const char *key, uint64_t limit)
{
    if (limit == HL_WEIGHT_NO_LIMIT)
        hl_text_print(text, ",\"%s\":null", key);
    else
        hl_text_print(text, ",\"%s\":%" PRIu64, key, limit);
}

void hl_domain_policy_put(struct hl_text *text, const struct hl_domain_policy *policy)
{
    bool serialized = policy->admission == HL_WEIGHT_ADMISSION_SERIALIZED;
    hl_text_print(text, "{%s\"eviction\":\"none\"", serialized ? "\"build_admission\":\"serialized\"," : "");
    put_limit(text, "max_artifact_bytes", policy->max_artifact_bytes);
    put_limit(text, "max_store_bytes", policy->max_store_bytes);
    hl_text_print(
        text, ",\"min_free_bytes\":%" PRIu64 ",\"policy_version\":%" PRIu64 ",\"schema_version\":%d}",
        policy->min_free_bytes, policy->policy_version, serialized ? SCHEMA_SERIALIZED : SCHEMA_CONCURRENT);
}

static hl_status read_limit(const struct hl_fields *fields, const char *key, const hl_json_node *node,
                            uint64_t *limit)
{
    if (hl_json_type_of(node) == HL_JSON_NULL) {
        *limit = HL_WEIGHT_NO_LIMIT;
        return HL_OK;
    }
    hl_status status = hl_field_u64(fields, key, node, 0, limit);
    if (status == HL_OK && *limit == HL_WEIGHT_NO_LIMIT)
        status = HL_FIELD_FAIL(fields, key, "is 2^64 - 1, which no limit can be");
    return status;
}

static hl_status read_policy(const struct hl_fields *fields, const hl_json_node *root, uint64_t version,
                             struct hl_domain_policy *policy)
{
    enum { ADMISSION, EVICTION, ARTIFACT, STORE, FREE, POLICY, SCHEMA, KEYS };
    static const char *const keys[KEYS] = {"build_admission", "eviction",       "max_artifact_bytes",
                                           "max_store_bytes", "min_free_bytes", "policy_version",
                                           "schema_version"};
    static const char *const admissions[] = {"serialized"}, *const evictions[] = {"none"};
    const hl_json_node *found[KEYS];
    size_t chosen = 0;
    bool serialized = version == SCHEMA_SERIALIZED;
    size_t first = serialized ? 0 : EVICTION;
    hl_status status = hl_fields_collect(fields, root, keys + first, KEYS - first, found + first);
    if (status == HL_OK && serialized)
        status = hl_field_choice(fields, keys[ADMISSION], found[ADMISSION], admissions, 1, &chosen);
    if (status == HL_OK)
        status = hl_field_choice(fields, keys[EVICTION], found[EVICTION], evictions, 1, &chosen);
    if (status == HL_OK)
        status = read_limit(fields, keys[ARTIFACT], found[ARTIFACT], &policy->max_artifact_bytes);
    if (status == HL_OK)
        status = read_limit(fields, keys[STORE], found[STORE], &policy->max_store_bytes);
    if (status == HL_OK)
        status = hl_field_u64(fields, keys[FREE], found[FREE], 0, &policy->min_free_bytes);
    if (status == HL_OK)
        status = hl_field_u64(fields, keys[POLICY], found[POLICY], 1, &policy->policy_version);
    if (status == HL_OK && serialized && policy->max_store_bytes == HL_WEIGHT_NO_LIMIT)
        status = HL_FIELD_FAIL(fields, keys[STORE], "is null, though builds are serialized");
    policy->admission = serialized ? HL_WEIGHT_ADMISSION_SERIALIZED : HL_WEIGHT_ADMISSION_CONCURRENT;
    return status;
}

hl_status hl_domain_policy_parse(const char *text, size_t bytes, struct hl_domain_policy *policy,
                                 hl_error *err)
{
    const struct hl_fields fields = {STAGE, HL_E_CORRUPT, NULL, -1, err};
    hl_json *document = NULL;
    struct hl_domain_policy found = {0};
    uint64_t version = 0;
    hl_status status = hl_fields_parse(&fields, text, bytes, &document);
    if (status != HL_OK)
        return status;
    status = hl_fields_schema(&fields, hl_json_root(document), SCHEMA_SERIALIZED, &version);
    if (status == HL_OK)
        status = read_policy(&fields, hl_json_root(document), version, &found);
    hl_json_free(document);
    if (status == HL_OK)
        *policy = found;
    return status;
}
