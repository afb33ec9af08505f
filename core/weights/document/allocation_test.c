/* Memory that runs out: each allocation of each operation fails once, in turn. */
#include "core/testing/allocation.h"
#include "core/weights/document/document_testing.h"

static hl_status parse_unordered(hl_error *err)
{
    static const char text[] = "{\"c\":[1,2,3,4,5,6,7,8,9,10,11,12,13],\"b\":{\"y\":1,\"x\":2},\"a\":0}";
    const struct hl_json_rules rules = {.max_bytes = 4096, .max_depth = 9, .stage = "test.json"};
    hl_json *document = NULL;
    hl_status status = hl_json_parse(text, sizeof text - 1, &rules, &document, err);
    CU_ASSERT_EQUAL(status == HL_OK, document != NULL);
    if (status == HL_OK) {
        struct hl_text canonical = {0};
        hl_json_put_canonical(&canonical, hl_json_root(document));
        hl_text_append(&canonical, "after a failure nothing is appended", 35);
        status = hl_text_status(&canonical, "test.json", err);
        hl_text_free(&canonical);
    }
    hl_json_free(document);
    return status;
}

static hl_status parse_identity(hl_error *err)
{
    hl_weight_identity *identity = NULL;
    hl_status status = hl_weight_identity_parse(TEST_IDENTITY, strlen(TEST_IDENTITY), &identity, err);
    CU_ASSERT_EQUAL(status == HL_OK, identity != NULL);
    hl_weight_identity_free(identity);
    return status;
}

static char *golden;
static size_t golden_bytes;
static hl_manifest *golden_manifest;

static hl_status parse_manifest(hl_error *err)
{
    hl_manifest *manifest = NULL;
    hl_status status = hl_manifest_parse(golden, golden_bytes, &manifest, err);
    CU_ASSERT_EQUAL(status == HL_OK, manifest != NULL);
    hl_manifest_free(manifest);
    return status;
}

static hl_status build_manifest(hl_error *err)
{
    const struct hl_manifest_parts parts = {.identity = golden_manifest->identity,
                                            .tensors = golden_manifest->tensors,
                                            .tensor_count = golden_manifest->tensor_count,
                                            .files = golden_manifest->files,
                                            .file_count = golden_manifest->file_count};
    hl_manifest *manifest = NULL;
    hl_status status = hl_manifest_build(&parts, &manifest, err);
    CU_ASSERT_EQUAL(status == HL_OK, manifest != NULL);
    hl_manifest_free(manifest);
    return status;
}

static hl_status parse_domain(hl_error *err)
{
    static const char text[] = "{\"backend\":\"local_filesystem\",\"domain_id\":\"node\",\"domain_uuid\":"
                               "\"0123456789abcdef0123456789abcdef\",\"filesystem_type\":\"ext4\","
                               "\"schema_version\":1,\"scope\":\"node\",\"storage_class\":\"disk\"}";
    struct hl_domain_document domain;
    return hl_domain_parse(text, sizeof text - 1, &domain, err);
}

static hl_status parse_policy(hl_error *err)
{
    static const char text[] = "{\"eviction\":\"none\",\"max_artifact_bytes\":null,\"max_store_bytes\":null,"
                               "\"min_free_bytes\":0,\"policy_version\":1,\"schema_version\":1}";
    struct hl_domain_policy policy;
    return hl_domain_policy_parse(text, sizeof text - 1, &policy, err);
}

static hl_status parse_deny(hl_error *err)
{
    static const char text[] = "{\"message\":\"m\",\"reason\":\"r\",\"schema_version\":1,\"stage\":\"s\"}";
    struct hl_deny_marker marker;
    return hl_deny_parse(text, sizeof text - 1, &marker, err);
}

static hl_status parse_ready(hl_error *err)
{
    const struct hl_ready ready = {"0123456789abcdef0123456789abcdef",
                                   "4a7b213dee8ac71b5ef24d463850f88c1936b2bd228dfbf88e9c13149526d4be",
                                   "8c96a81a4a8709c2bdd9f84bcba08bbc7ed8655773c5bc3e4a6269b168fe9509"};
    struct hl_ready found;
    struct hl_text text = {0};
    hl_ready_put(&text, &ready);
    hl_status status = hl_text_status(&text, "test.ready", err);
    if (status == HL_OK)
        status = hl_ready_parse(text.bytes, text.size, &found, err);
    hl_text_free(&text);
    return status;
}

static void json_survives_every_failed_allocation(void)
{
    CU_ASSERT_TRUE(hl_fail_each_allocation(parse_unordered) >= 6);
}

static void an_identity_survives_every_failed_allocation(void)
{
    CU_ASSERT_TRUE(hl_fail_each_allocation(parse_identity) >= 8);
}

static void a_manifest_survives_every_failed_allocation(void)
{
    hl_error err = {0};
    golden = read_testdata("manifest.json", &golden_bytes);
    HL_REQUIRE_OK(hl_manifest_parse(golden, golden_bytes, &golden_manifest, &err), err);
    CU_ASSERT_TRUE(hl_fail_each_allocation(parse_manifest) >= 15);
    CU_ASSERT_TRUE(hl_fail_each_allocation(build_manifest) >= 25);
    hl_manifest_free(golden_manifest);
    free(golden);
}

static void small_documents_survive_every_failed_allocation(void)
{
    CU_ASSERT_TRUE(hl_fail_each_allocation(parse_ready) >= 4);
    CU_ASSERT_TRUE(hl_fail_each_allocation(parse_domain) >= 3);
    CU_ASSERT_TRUE(hl_fail_each_allocation(parse_policy) >= 3);
    CU_ASSERT_TRUE(hl_fail_each_allocation(parse_deny) >= 3);
}

HL_TESTS(weights_allocation, HL_CASE(json_survives_every_failed_allocation),
         HL_CASE(an_identity_survives_every_failed_allocation),
         HL_CASE(a_manifest_survives_every_failed_allocation),
         HL_CASE(small_documents_survive_every_failed_allocation));
