/* READY, the domain's two documents, and deny markers: their bytes, and every rule broken once. */
#include "core/weights/document/document_testing.h"

#define UUID "0123456789abcdef0123456789abcdef"
#define DOMAIN                                                                                               \
    "{\"backend\":\"local_filesystem\",\"domain_id\":\"node\",\"domain_uuid\":\"" UUID                       \
    "\",\"filesystem_type\":\"ext4\",\"schema_version\":1,\"scope\":\"node\",\"storage_class\":\"disk\"}"
#define POLICY                                                                                               \
    "{\"eviction\":\"none\",\"max_artifact_bytes\":null,\"max_store_bytes\":null,\"min_free_bytes\":0,"      \
    "\"policy_version\":1,\"schema_version\":1}"
#define SERIALIZED                                                                                           \
    "{\"build_admission\":\"serialized\",\"eviction\":\"none\",\"max_artifact_bytes\":7,"                    \
    "\"max_store_bytes\":18446744073709551614,\"min_free_bytes\":9,\"policy_version\":3,\"schema_version\":" \
    "2}"
#define DENY                                                                                                 \
    "{\"message\":\"a \\u00e9\",\"reason\":\"checksum_mismatch\",\"schema_version\":1,\"stage\":"            \
    "\"validation\"}"

static void ready_has_the_golden_bytes(void)
{
    size_t bytes = 0;
    char *golden = read_testdata("READY.json", &bytes);
    struct hl_ready ready = {0};
    struct hl_text text = {0};
    hl_error err = {0};
    HL_REQUIRE_OK(hl_ready_parse(golden, bytes, &ready, &err), err);
    CU_ASSERT_STRING_EQUAL(ready.manifest_sha256,
                           "4a7b213dee8ac71b5ef24d463850f88c1936b2bd228dfbf88e9c13149526d4be");
    CU_ASSERT_STRING_EQUAL(ready.content_sha256,
                           "8c96a81a4a8709c2bdd9f84bcba08bbc7ed8655773c5bc3e4a6269b168fe9509");
    CU_ASSERT_STRING_EQUAL(ready.publication_id, "00000000000000000000000000000000");
    hl_ready_put(&text, &ready);
    CU_ASSERT_EQUAL(text.size, bytes);
    CU_ASSERT_STRING_EQUAL(text.bytes, golden);
    hl_text_free(&text);
    free(golden);
}

static const struct change broken_ready[] = {
    {"\"schema_version\":1", "\"schema_version\":2", HL_E_UNSUPPORTED, "schema_version"},
    {"\"schema_version\":1", "\"schema_version\":0", HL_E_UNSUPPORTED, "schema_version"},
    {"\"schema_version\":1", "\"schema_version\":true", HL_E_CORRUPT, "schema_version has the type boolean"},
    {",\"schema_version\":1", "", HL_E_CORRUPT, "schema_version is missing"},
    {"full_checksum", "fs_verity", HL_E_UNSUPPORTED, "integrity_mode is \"fs_verity\", which is not known"},
    {"\"full_checksum\"", "1", HL_E_CORRUPT, "integrity_mode has the type integer"},
    {"{", "{ ", HL_E_CORRUPT, "is not in its canonical encoding"},
    {"00000000000000000000000000000000", "0000000000000000000000000000000", HL_E_CORRUPT,
     "publication_id is not 32 lower-case hexadecimal digits"},
    {"00000000000000000000000000000000", "0000000000000000000000000000000A", HL_E_CORRUPT,
     "publication_id is not 32"},
    {"\"00000000000000000000000000000000\"", "7", HL_E_CORRUPT, "publication_id has the type integer"},
    {"4a7b213d", "4A7b213d", HL_E_CORRUPT, "manifest_sha256 is not 64 lower-case hexadecimal digits"},
    {"8c96a81a", "8c96a81ab", HL_E_CORRUPT, "artifact_content_sha256 is not 64"},
    {"\"publication_id\":\"00000000000000000000000000000000\",", "", HL_E_CORRUPT,
     "publication_id is missing"},
    {"\"schema_version\":1", "\"schema_version\":1,\"z\":1", HL_E_CORRUPT, "the unknown key \"z\""},
    {"{", "[", HL_E_CORRUPT, "expected"},
};

static void every_broken_rule_of_ready_is_refused(void)
{
    size_t bytes = 0;
    char *golden = read_testdata("READY.json", &bytes);
    for (size_t i = 0; i < sizeof broken_ready / sizeof broken_ready[0]; i++) {
        char *text = replaced(golden, broken_ready[i].from, broken_ready[i].to);
        struct hl_ready ready = {.publication_id = "untouched"};
        hl_error err = {0};
        expect_refusal(&broken_ready[i], hl_ready_parse(text, strlen(text), &ready, &err), &err);
        CU_ASSERT_STRING_EQUAL(ready.publication_id, "untouched");
        free(text);
    }
    free(golden);
}

static void a_domain_has_its_bytes_and_is_read_back(void)
{
    static const struct hl_domain_document numa = {.uuid = UUID,
                                                   .scope = HL_WEIGHT_SCOPE_NUMA,
                                                   .domain_id = "é\"1",
                                                   .storage_class = HL_WEIGHT_TMPFS,
                                                   .filesystem_type = "tmpfs"};
    struct hl_domain_document domain = {0};
    struct hl_text text = {0};
    hl_error err = {0};
    HL_REQUIRE_OK(hl_domain_parse(DOMAIN, strlen(DOMAIN), &domain, &err), err);
    CU_ASSERT_EQUAL(domain.scope, HL_WEIGHT_SCOPE_NODE);
    CU_ASSERT_EQUAL(domain.storage_class, HL_WEIGHT_DISK);
    CU_ASSERT_STRING_EQUAL(domain.domain_id, "node");
    CU_ASSERT_STRING_EQUAL(domain.filesystem_type, "ext4");
    hl_domain_put(&text, &domain);
    CU_ASSERT_STRING_EQUAL(text.bytes, DOMAIN);
    hl_text_free(&text);
    hl_domain_put(&text, &numa);
    CU_ASSERT_STRING_EQUAL(
        text.bytes, "{\"backend\":\"local_filesystem\",\"domain_id\":\"\\u00e9\\\"1\",\"domain_uuid\":\"" UUID
                    "\",\"filesystem_type\":\"tmpfs\",\"schema_version\":1,\"scope\":\"numa\","
                    "\"storage_class\":\"tmpfs\"}");
    HL_REQUIRE_OK(hl_domain_parse(text.bytes, text.size, &domain, &err), err);
    CU_ASSERT_STRING_EQUAL(domain.uuid, numa.uuid);
    CU_ASSERT_EQUAL(domain.scope, numa.scope);
    CU_ASSERT_STRING_EQUAL(domain.domain_id, numa.domain_id);
    CU_ASSERT_EQUAL(domain.storage_class, numa.storage_class);
    CU_ASSERT_STRING_EQUAL(domain.filesystem_type, numa.filesystem_type);
    hl_text_free(&text);
}

#define LONG_ID                                                                                              \
    "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"   \
    "0123456789012345678901234567"

static const struct change broken_domains[] = {
    {"\"schema_version\":1", "\"schema_version\":2", HL_E_UNSUPPORTED, "schema_version"},
    {"\"schema_version\":1", "\"schema_version\":1.0", HL_E_CORRUPT, "schema_version has the type real"},
    {"local_filesystem", "object_store", HL_E_UNSUPPORTED, "backend is \"object_store\""},
    {"\"local_filesystem\"", "null", HL_E_CORRUPT, "backend has the type null"},
    {"\"scope\":\"node\"", "\"scope\":\"rack\"", HL_E_CORRUPT, "scope is \"rack\""},
    {"\"disk\"", "\"nvme\"", HL_E_CORRUPT, "storage_class is \"nvme\""},
    {"\"disk\"", "false", HL_E_CORRUPT, "storage_class has the type boolean"},
    {UUID, "0", HL_E_CORRUPT, "domain_uuid is not 32"},
    {"\"domain_id\":\"node\"", "\"domain_id\":\"\"", HL_E_CORRUPT, "domain_id is empty"},
    {"\"domain_id\":\"node\"", "\"domain_id\":\"" LONG_ID "\"", HL_E_CORRUPT, "domain_id has 128 bytes"},
    {"ext4", "", HL_E_CORRUPT, "filesystem_type is empty"},
    {"ext4", "0123456789012345678901234567890x", HL_E_CORRUPT, "filesystem_type has 32 bytes"},
    {"\"scope\":\"node\",", "", HL_E_CORRUPT, "scope is missing"},
    {"\"scope\"", "\"node\":1,\"scope\"", HL_E_CORRUPT, "the unknown key \"node\""},
    {DOMAIN, "", HL_E_CORRUPT, "the text ends"},
    {DOMAIN, "1", HL_E_CORRUPT, "the document has the type integer, not object"},
};

static void every_broken_rule_of_a_domain_is_refused(void)
{
    for (size_t i = 0; i < sizeof broken_domains / sizeof broken_domains[0]; i++) {
        char *text = replaced(DOMAIN, broken_domains[i].from, broken_domains[i].to);
        struct hl_domain_document domain = {.domain_id = "untouched"};
        hl_error err = {0};
        expect_refusal(&broken_domains[i], hl_domain_parse(text, strlen(text), &domain, &err), &err);
        CU_ASSERT_STRING_EQUAL(domain.domain_id, "untouched");
        free(text);
    }
}

static void a_policy_has_its_bytes_and_is_read_back(void)
{
    static const char *const texts[] = {POLICY, SERIALIZED};
    static const struct hl_domain_policy policies[] = {
        {1, HL_WEIGHT_NO_LIMIT, HL_WEIGHT_NO_LIMIT, 0, HL_WEIGHT_ADMISSION_CONCURRENT},
        {3, 7, UINT64_MAX - 1, 9, HL_WEIGHT_ADMISSION_SERIALIZED}};
    for (size_t i = 0; i < 2; i++) {
        struct hl_domain_policy policy = {0};
        struct hl_text text = {0};
        hl_error err = {0};
        hl_domain_policy_put(&text, &policies[i]);
        CU_ASSERT_STRING_EQUAL(text.bytes, texts[i]);
        HL_REQUIRE_OK(hl_domain_policy_parse(text.bytes, text.size, &policy, &err), err);
        CU_ASSERT_EQUAL(policy.policy_version, policies[i].policy_version);
        CU_ASSERT_EQUAL(policy.max_artifact_bytes, policies[i].max_artifact_bytes);
        CU_ASSERT_EQUAL(policy.max_store_bytes, policies[i].max_store_bytes);
        CU_ASSERT_EQUAL(policy.min_free_bytes, policies[i].min_free_bytes);
        CU_ASSERT_EQUAL(policy.admission, policies[i].admission);
        hl_text_free(&text);
    }
}

static const struct change broken_policies[] = {
    {"\"schema_version\":1", "\"schema_version\":3", HL_E_UNSUPPORTED, "schema_version"},
    {"\"schema_version\":1", "\"schema_version\":2", HL_E_CORRUPT, "build_admission is missing"},
    {"{", "{\"build_admission\":\"serialized\",", HL_E_CORRUPT, "the unknown key \"build_admission\""},
    {"\"none\"", "\"lru\"", HL_E_CORRUPT, "eviction is \"lru\""},
    {"\"max_artifact_bytes\":null", "\"max_artifact_bytes\":-1", HL_E_CORRUPT,
     "max_artifact_bytes is not between 0"},
    {"\"max_artifact_bytes\":null", "\"max_artifact_bytes\":18446744073709551615", HL_E_CORRUPT,
     "max_artifact_bytes is 2^64 - 1"},
    {"\"max_store_bytes\":null", "\"max_store_bytes\":\"1\"", HL_E_CORRUPT,
     "max_store_bytes has the type string"},
    {"\"min_free_bytes\":0", "\"min_free_bytes\":null", HL_E_CORRUPT, "min_free_bytes has the type null"},
    {"\"policy_version\":1", "\"policy_version\":0", HL_E_CORRUPT, "policy_version is not between 1"},
    {"\"policy_version\":1,", "", HL_E_CORRUPT, "policy_version is missing"},
    {POLICY, "{", HL_E_CORRUPT, "a key in double quotes"},
};
static const struct change broken_serialized[] = {
    {"\"serialized\"", "\"concurrent\"", HL_E_CORRUPT, "build_admission is \"concurrent\""},
    {"18446744073709551614", "null", HL_E_CORRUPT, "max_store_bytes is null, though builds are serialized"},
};

static void expect_policy_refused(const char *good, const struct change *change)
{
    char *text = replaced(good, change->from, change->to);
    struct hl_domain_policy policy = {.policy_version = 77};
    hl_error err = {0};
    expect_refusal(change, hl_domain_policy_parse(text, strlen(text), &policy, &err), &err);
    CU_ASSERT_EQUAL(policy.policy_version, 77);
    free(text);
}

static void every_broken_rule_of_a_policy_is_refused(void)
{
    for (size_t i = 0; i < sizeof broken_policies / sizeof broken_policies[0]; i++)
        expect_policy_refused(POLICY, &broken_policies[i]);
    for (size_t i = 0; i < sizeof broken_serialized / sizeof broken_serialized[0]; i++)
        expect_policy_refused(SERIALIZED, &broken_serialized[i]);
}

static void white_space_and_order_are_free_in_what_nothing_is_bound_to(void)
{
    static const char text[] =
        " {\"schema_version\": 1, \"policy_version\": 4, \"min_free_bytes\": 1,\n"
        "\"max_store_bytes\": 2, \"max_artifact_bytes\": null, \"eviction\": \"none\"}\n";
    struct hl_domain_policy policy = {0};
    hl_error err = {0};
    HL_REQUIRE_OK(hl_domain_policy_parse(text, strlen(text), &policy, &err), err);
    CU_ASSERT_EQUAL(policy.policy_version, 4);
    CU_ASSERT_EQUAL(policy.max_store_bytes, 2);
}

static void a_deny_marker_has_its_bytes_and_is_read_back(void)
{
    struct hl_deny_marker marker = {.stage = "validation", .reason = "checksum_mismatch", .message = "a é"};
    struct hl_text text = {0};
    hl_error err = {0};
    hl_deny_put(&text, &marker);
    CU_ASSERT_STRING_EQUAL(text.bytes, DENY);
    marker = (struct hl_deny_marker){0};
    HL_REQUIRE_OK(hl_deny_parse(text.bytes, text.size, &marker, &err), err);
    CU_ASSERT_STRING_EQUAL(marker.stage, "validation");
    CU_ASSERT_STRING_EQUAL(marker.reason, "checksum_mismatch");
    CU_ASSERT_STRING_EQUAL(marker.message, "a é");
    hl_text_free(&text);
}

static void a_message_that_is_not_utf8_still_denies(void)
{
    const struct hl_deny_marker marker = {.stage = "lookup", .reason = "r", .message = "cut \xe2\x82"};
    struct hl_text text = {0};
    hl_deny_put(&text, &marker);
    CU_ASSERT_STRING_EQUAL(
        text.bytes, "{\"message\":\"cut ??\",\"reason\":\"r\",\"schema_version\":1,\"stage\":\"lookup\"}");
    hl_text_free(&text);
}

static void a_marker_that_is_too_long_is_cut_between_characters(void)
{
    struct hl_text text = {0};
    struct hl_deny_marker marker = {0};
    hl_error err = {0};
    hl_text_print(&text, "{\"message\":\"");
    for (int i = 0; i < 200; i++)
        hl_text_print(&text, "\\u00e9");
    hl_text_print(&text, "\",\"reason\":\"a\\u0000b\",\"schema_version\":1,\"stage\":\"\"}");
    HL_REQUIRE_OK(hl_deny_parse(text.bytes, text.size, &marker, &err), err);
    CU_ASSERT_EQUAL(strlen(marker.message), 238);
    CU_ASSERT_TRUE(hl_json_valid_utf8(marker.message, strlen(marker.message)));
    CU_ASSERT_STRING_EQUAL(marker.reason, "a");
    CU_ASSERT_STRING_EQUAL(marker.stage, "");
    hl_text_free(&text);
}

static const struct change broken_markers[] = {
    {"\"schema_version\":1", "\"schema_version\":2", HL_E_UNSUPPORTED, "schema_version"},
    {"\"schema_version\":1,", "", HL_E_CORRUPT, "schema_version is missing"},
    {"\"validation\"", "3", HL_E_CORRUPT, "stage has the type integer"},
    {"\"checksum_mismatch\"", "null", HL_E_CORRUPT, "reason has the type null"},
    {"\"a \\u00e9\"", "[]", HL_E_CORRUPT, "message has the type array"},
    {"\"stage\"", "\"step\"", HL_E_CORRUPT, "the unknown key \"step\""},
    {DENY, "{\"message\":\"to", HL_E_CORRUPT, "a string that does not end"},
};

static void every_broken_rule_of_a_marker_is_refused(void)
{
    for (size_t i = 0; i < sizeof broken_markers / sizeof broken_markers[0]; i++) {
        char *text = replaced(DENY, broken_markers[i].from, broken_markers[i].to);
        struct hl_deny_marker marker = {.stage = "untouched"};
        hl_error err = {0};
        expect_refusal(&broken_markers[i], hl_deny_parse(text, strlen(text), &marker, &err), &err);
        CU_ASSERT_STRING_EQUAL(marker.stage, "untouched");
        free(text);
    }
}

HL_TESTS(weights_domain, HL_CASE(ready_has_the_golden_bytes), HL_CASE(every_broken_rule_of_ready_is_refused),
         HL_CASE(a_domain_has_its_bytes_and_is_read_back), HL_CASE(every_broken_rule_of_a_domain_is_refused),
         HL_CASE(a_policy_has_its_bytes_and_is_read_back), HL_CASE(every_broken_rule_of_a_policy_is_refused),
         HL_CASE(white_space_and_order_are_free_in_what_nothing_is_bound_to),
         HL_CASE(a_deny_marker_has_its_bytes_and_is_read_back),
         HL_CASE(a_message_that_is_not_utf8_still_denies),
         HL_CASE(a_marker_that_is_too_long_is_cut_between_characters),
         HL_CASE(every_broken_rule_of_a_marker_is_refused));
