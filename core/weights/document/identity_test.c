/* Identities: the golden keys, and every rule broken once. */
#include "core/weights/document/document_testing.h"

static void expect_key(const char *json, const char *key, const char *canonical)
{
    hl_weight_identity *identity = NULL;
    hl_error err = {0};
    size_t bytes = 0;
    HL_REQUIRE_OK(hl_weight_identity_parse(json, strlen(json), &identity, &err), err);
    CU_ASSERT_STRING_EQUAL(hl_weight_identity_key(identity), key);
    CU_ASSERT_STRING_EQUAL(hl_weight_identity_json(identity, &bytes), canonical);
    CU_ASSERT_EQUAL(bytes, strlen(canonical));
    CU_ASSERT_STRING_EQUAL(hl_weight_identity_json(identity, NULL), canonical);
    hl_weight_identity_free(identity);
}

static void expect_changed_key(const char *from, const char *to, const char *key)
{
    char *json = replaced(TEST_IDENTITY, from, to);
    expect_key(json, key, json);
    free(json);
}

static void golden_keys_are_reproduced(void)
{
    expect_key(TEST_IDENTITY, "a63d64bbdd7f1f5923929f66493c3bef31a7de7cdb21d5aa303c8ee49496c102",
               TEST_IDENTITY);
    expect_changed_key("\"tensor_parallel_rank\":0,\"tensor_parallel_size\":1",
                       "\"tensor_parallel_rank\":1,\"tensor_parallel_size\":2",
                       "154f81f66482dc5dd0881b56aa63f76ca9ae7730086c2e700c4aba61da4f14e9");
    expect_changed_key("\"tensor_parallel_size\":1", "\"tensor_parallel_size\":2",
                       "a12c08be7d23c79642c9eb7197803beeb33206d51d130ff7fd98eed6bf6d1bb0");
    expect_changed_key("\"fingerprint\":null,\"kind\":\"base\"",
                       "\"fingerprint\":\"adapter-sha256\",\"kind\":\"merged-lora\"",
                       "81edadc87ed077631a1b166f3050bcff6ad13080ab3bf8e613d60ad3bab2c930");
}

#define SOURCE                                                                                               \
    "\"source\":{\"fingerprint\":\"source-files-sha256\",\"metadata\":{},\"model_id\":"                      \
    "\"test-org/test-model\",\"revision\":\"0123456789abcdef\"}"

static void the_golden_key_of_unicode_and_reals_is_reproduced(void)
{
    char *json = replaced(
        TEST_IDENTITY, SOURCE,
        "\"source\":{\"revision\":\"r\",\"model_id\":\"モデル/😀\",\"fingerprint\":\"f\",\"metadata\":"
        "{\"b\":[1.0,1e16,1E-7,-0.0,123456789012345678901234567890],\"a\":\"\\u007F\\n\\u2028\\/\\\"\\\\\","
        "\"\xef\xbf\xbf\":1,\"\xf0\x90\x80\x80\":2}}");
    char *canonical = replaced(
        TEST_IDENTITY, SOURCE,
        "\"source\":{\"fingerprint\":\"f\",\"metadata\":{\"a\":\"\\u007f\\n\\u2028/"
        "\\\"\\\\\",\"b\":[1.0,1e+16,"
        "1e-07,-0.0,123456789012345678901234567890],\"\\uffff\":1,\"\\ud800\\udc00\":2},\"model_id\":"
        "\"\\u30e2\\u30c7\\u30eb/\\ud83d\\ude00\",\"revision\":\"r\"}");
    expect_key(json, "87b3686cb2bd7ef5004a369a9b712d9d13b794400de91b767b090b92ed73edc8", canonical);
    free(canonical);
    free(json);
}

static void order_of_keys_and_white_space_are_free(void)
{
    char *spaced = replaced(TEST_IDENTITY, "\"layout\":{\"metadata\":{},\"name\":\"final-module-layout\",",
                            "\n \"layout\" :\t{ \"name\":\"final\\u002dmodule-layout\" , \"metadata\":{ },");
    expect_key(spaced, "a63d64bbdd7f1f5923929f66493c3bef31a7de7cdb21d5aa303c8ee49496c102", TEST_IDENTITY);
    char *moved = replaced(spaced, "\"schema_version\":1,", "");
    char *front = replaced(moved, "{\"adaptation\"", "{\"schema_version\":1,\"adaptation\"");
    expect_key(front, "a63d64bbdd7f1f5923929f66493c3bef31a7de7cdb21d5aa303c8ee49496c102", TEST_IDENTITY);
    free(front);
    free(moved);
    free(spaced);
}

static void fields_are_filled(void)
{
    char *json = replaced(TEST_IDENTITY, "\"fingerprint\":null,\"kind\":\"base\"",
                          "\"fingerprint\":\"a\",\"kind\":\"lora\"");
    hl_weight_identity *identity = NULL;
    hl_error err = {0};
    HL_REQUIRE_OK(hl_weight_identity_parse(json, strlen(json), &identity, &err), err);
    CU_ASSERT_EQUAL(identity->schema_version, 1);
    CU_ASSERT_STRING_EQUAL(identity->model_id, "test-org/test-model");
    CU_ASSERT_STRING_EQUAL(identity->revision, "0123456789abcdef");
    CU_ASSERT_STRING_EQUAL(identity->source_fingerprint, "source-files-sha256");
    CU_ASSERT_STRING_EQUAL(identity->component, "transformer");
    CU_ASSERT_STRING_EQUAL(identity->ownership, "diffusion.dit");
    CU_ASSERT_STRING_EQUAL(identity->representation, "runtime-bf16");
    CU_ASSERT_STRING_EQUAL(identity->dtype, "torch.bfloat16");
    CU_ASSERT_STRING_EQUAL(identity->layout, "final-module-layout");
    CU_ASSERT_STRING_EQUAL(identity->sequence_parallel_backend, "none");
    CU_ASSERT_EQUAL(identity->tensor_parallel_size, 1);
    CU_ASSERT_EQUAL(identity->tensor_parallel_rank, 0);
    CU_ASSERT_EQUAL(identity->sequence_parallel_size, 1);
    CU_ASSERT_STRING_EQUAL(identity->adaptation_kind, "lora");
    CU_ASSERT_STRING_EQUAL(identity->adaptation_fingerprint, "a");
    CU_ASSERT_STRING_EQUAL(identity->producer_id, "test.final-layout");
    CU_ASSERT_STRING_EQUAL(identity->producer_version, "1");
    CU_ASSERT_STRING_EQUAL(identity->implementation_fingerprint, "implementation-sha256");
    CU_ASSERT_STRING_EQUAL(identity->manifest_schema, "test-producer-v1");
    CU_ASSERT_STRING_EQUAL(identity->restorer_schema, "test-restorer-v1");
    hl_weight_identity_free(identity);
    free(json);
}

#define RANK "\"tensor_parallel_rank\":0"
#define NO_ADAPTER "\"fingerprint\":null,\"kind\":\"base\""

static const struct change broken_rules[] = {
    /* keys */
    {"\"schema_version\":1,", "", HL_E_INVALID, "schema_version is missing"},
    {"\"metadata\":{},\"model_id\"", "\"model_id\"", HL_E_INVALID, "source.metadata is missing"},
    {"\"version\":\"1\"", "\"versions\":\"1\"", HL_E_INVALID, "producer has the unknown key \"versions\""},
    {"\"name\":\"transformer\",", "\"name\":\"transformer\",\"note\":1,", HL_E_INVALID,
     "component has the unknown key \"note\""},
    {"\"schema_version\":1", "\"schema_version\":1,\"transfer\":{}", HL_E_INVALID,
     "the document has the unknown key \"transfer\""},
    {",\"sequence_parallel_size\":1", "", HL_E_INVALID, "layout.sequence_parallel_size is missing"},
    {"\"fingerprint\":null,", "", HL_E_INVALID, "adaptation.fingerprint is missing"},
    /* how weights travel is no part of what they are */
    {RANK, RANK ",\"data_parallel_rank\":0", HL_E_INVALID,
     "layout has the unknown key \"data_parallel_rank\""},
    {RANK, RANK ",\"data_parallel_size\":1", HL_E_INVALID,
     "layout has the unknown key \"data_parallel_size\""},
    {RANK, RANK ",\"sequence_parallel_rank\":0", HL_E_INVALID,
     "layout has the unknown key \"sequence_parallel_rank\""},
    {RANK, RANK ",\"device\":\"cuda:0\"", HL_E_INVALID, "layout has the unknown key \"device\""},
    {"\"dtype\":", "\"transfer_mode\":\"mmap\",\"dtype\":", HL_E_INVALID,
     "representation has the unknown key \"transfer_mode\""},
    /* types: nothing is coerced */
    {"\"schema_version\":1", "\"schema_version\":\"1\"", HL_E_INVALID,
     "schema_version has the type string, not integer"},
    {"\"schema_version\":1", "\"schema_version\":true", HL_E_INVALID,
     "schema_version has the type boolean, not integer"},
    {"\"schema_version\":1", "\"schema_version\":1.0", HL_E_INVALID,
     "schema_version has the type real, not integer"},
    {RANK, "\"tensor_parallel_rank\":false", HL_E_INVALID,
     "layout.tensor_parallel_rank has the type boolean, not integer"},
    {RANK, "\"tensor_parallel_rank\":0.0", HL_E_INVALID,
     "layout.tensor_parallel_rank has the type real, not integer"},
    {RANK, "\"tensor_parallel_rank\":null", HL_E_INVALID,
     "layout.tensor_parallel_rank has the type null, not integer"},
    {RANK, "\"tensor_parallel_rank\":\"0\"", HL_E_INVALID,
     "layout.tensor_parallel_rank has the type string, not integer"},
    {"\"tensor_parallel_size\":1", "\"tensor_parallel_size\":1e0", HL_E_INVALID,
     "layout.tensor_parallel_size has the type real, not integer"},
    {"\"sequence_parallel_size\":1", "\"sequence_parallel_size\":[1]", HL_E_INVALID,
     "layout.sequence_parallel_size has the type array, not integer"},
    {"\"version\":\"1\"", "\"version\":1", HL_E_INVALID, "producer.version has the type integer, not string"},
    {"\"name\":\"runtime-bf16\"", "\"name\":null", HL_E_INVALID,
     "representation.name has the type null, not string"},
    {"\"fingerprint\":null", "\"fingerprint\":1", HL_E_INVALID,
     "adaptation.fingerprint has the type integer, not string"},
    {"\"fingerprint\":null", "\"fingerprint\":false", HL_E_INVALID,
     "adaptation.fingerprint has the type boolean, not string"},
    {"{\"metadata\":{},\"name\":\"transformer\",\"ownership\":\"diffusion.dit\"}", "[]", HL_E_INVALID,
     "component has the type array, not object"},
    {SOURCE, "\"source\":null", HL_E_INVALID, "source has the type null, not object"},
    {TEST_IDENTITY, "[]", HL_E_INVALID, "the document has the type array, not object"},
    {TEST_IDENTITY, "\"x\"", HL_E_INVALID, "the document has the type string, not object"},
    /* ranges */
    {"\"schema_version\":1", "\"schema_version\":0", HL_E_INVALID, "schema_version is not between 1"},
    {"\"schema_version\":1", "\"schema_version\":-1", HL_E_INVALID, "schema_version is not between 1"},
    {"\"tensor_parallel_size\":1", "\"tensor_parallel_size\":0", HL_E_INVALID,
     "layout.tensor_parallel_size is not between 1"},
    {"\"sequence_parallel_size\":1", "\"sequence_parallel_size\":0", HL_E_INVALID,
     "layout.sequence_parallel_size is not between 1"},
    {RANK, "\"tensor_parallel_rank\":-1", HL_E_INVALID, "layout.tensor_parallel_rank is not between 0"},
    {RANK, "\"tensor_parallel_rank\":1", HL_E_INVALID,
     "layout.tensor_parallel_rank is 1 of a tensor_parallel_size of 1"},
    {"\"tensor_parallel_size\":1", "\"tensor_parallel_size\":18446744073709551616", HL_E_INVALID,
     "layout.tensor_parallel_size is not between 1 and 2^64 - 1"},
    /* empty */
    {"test-org/test-model", "", HL_E_INVALID, "source.model_id is empty"},
    {"0123456789abcdef", "", HL_E_INVALID, "source.revision is empty"},
    {"source-files-sha256", "", HL_E_INVALID, "source.fingerprint is empty"},
    {"\"transformer\"", "\"\"", HL_E_INVALID, "component.name is empty"},
    {"diffusion.dit", "", HL_E_INVALID, "component.ownership is empty"},
    {"runtime-bf16", "", HL_E_INVALID, "representation.name is empty"},
    {"torch.bfloat16", "", HL_E_INVALID, "representation.dtype is empty"},
    {"final-module-layout", "", HL_E_INVALID, "layout.name is empty"},
    {"\"none\"", "\"\"", HL_E_INVALID, "layout.sequence_parallel_backend is empty"},
    {"\"base\"", "\"\"", HL_E_INVALID, "adaptation.kind is empty"},
    {"test.final-layout", "", HL_E_INVALID, "producer.producer_id is empty"},
    {"\"version\":\"1\"", "\"version\":\"\"", HL_E_INVALID, "producer.version is empty"},
    {"implementation-sha256", "", HL_E_INVALID, "producer.implementation_fingerprint is empty"},
    {"test-producer-v1", "", HL_E_INVALID, "producer.manifest_schema is empty"},
    {"test-restorer-v1", "", HL_E_INVALID, "producer.restorer_schema is empty"},
    {"test-org/test-model", "a\\u0000b", HL_E_INVALID, "source.model_id holds a NUL"},
    /* adaptation */
    {NO_ADAPTER, "\"fingerprint\":null,\"kind\":\"merged-lora\"", HL_E_INVALID,
     "adaptation.fingerprint is needed for any kind but base"},
    {NO_ADAPTER, "\"fingerprint\":\"\",\"kind\":\"merged-lora\"", HL_E_INVALID,
     "adaptation.fingerprint is needed for any kind but base"},
    /* no JSON, or not strict */
    {"test-org/test-model", "\\ud800", HL_E_CORRUPT, "a surrogate without its other half"},
    {"\"metadata\":{},\"model_id\"", "\"metadata\":{\"a\":\"\\udfff\"},\"model_id\"", HL_E_CORRUPT,
     "a surrogate without its other half"},
    {"\"metadata\":{},\"model_id\"", "\"metadata\":{\"a\":1,\"a\":1},\"model_id\"", HL_E_CORRUPT,
     "the key \"a\" is given twice"},
    {"\"schema_version\":1", "\"schema_version\":1,\"schema_version\":1", HL_E_CORRUPT,
     "the key \"schema_version\" is given twice"},
    {"\"metadata\":{},\"model_id\"", "\"metadata\":NaN,\"model_id\"", HL_E_CORRUPT, "no JSON value"},
    {"\"metadata\":{},\"model_id\"", "\"metadata\":1e400,\"model_id\"", HL_E_CORRUPT, "no double can hold"},
    {TEST_IDENTITY, "", HL_E_CORRUPT, "the text ends"},
    {TEST_IDENTITY, "{", HL_E_CORRUPT, "a key in double quotes"},
};

static void every_broken_rule_is_refused_by_its_name(void)
{
    for (size_t i = 0; i < sizeof broken_rules / sizeof broken_rules[0]; i++) {
        char *json = replaced(TEST_IDENTITY, broken_rules[i].from, broken_rules[i].to);
        hl_weight_identity *identity = NULL;
        hl_error err = {0};
        hl_status status = hl_weight_identity_parse(json, strlen(json), &identity, &err);
        expect_refusal(&broken_rules[i], status, &err);
        CU_ASSERT_STRING_EQUAL(err.stage, "weights.identity");
        CU_ASSERT_PTR_NULL(identity);
        free(json);
    }
}

static void what_the_rules_leave_free_is_accepted(void)
{
    static const char *const changes[][2] = {
        {"\"schema_version\":1", "\"schema_version\":2"},
        {RANK, "\"tensor_parallel_rank\":-0"},
        {"\"fingerprint\":null", "\"fingerprint\":\"kept\""},
        {"\"fingerprint\":null", "\"fingerprint\":\"\""},
        {"\"metadata\":{},\"model_id\"", "\"metadata\":null,\"model_id\""},
        {"\"metadata\":{},\"model_id\"", "\"metadata\":[1,[2.5,\"\\u0000\"]],\"model_id\""},
    };
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        char *json = replaced(TEST_IDENTITY, changes[i][0], changes[i][1]);
        hl_weight_identity *identity = NULL;
        hl_error err = {0};
        HL_EXPECT_OK(hl_weight_identity_parse(json, strlen(json), &identity, &err), err);
        hl_weight_identity_free(identity);
        free(json);
    }
    hl_weight_identity_free(NULL);
}

static void each_difference_gives_another_key(void)
{
    static const char *const changes[][2] = {
        {"test-org/test-model", "test-org/test-mode1"},
        {"\"metadata\":{},\"model_id\"", "\"metadata\":[],\"model_id\""},
        {"\"sequence_parallel_size\":1", "\"sequence_parallel_size\":2"},
        {"\"fingerprint\":null", "\"fingerprint\":\"\""},
        {"\"version\":\"1\"", "\"version\":\"2\""},
    };
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        char *json = replaced(TEST_IDENTITY, changes[i][0], changes[i][1]);
        hl_weight_identity *identity = NULL;
        hl_error err = {0};
        HL_REQUIRE_OK(hl_weight_identity_parse(json, strlen(json), &identity, &err), err);
        CU_ASSERT_STRING_NOT_EQUAL(hl_weight_identity_key(identity),
                                   "a63d64bbdd7f1f5923929f66493c3bef31a7de7cdb21d5aa303c8ee49496c102");
        hl_weight_identity_free(identity);
        free(json);
    }
}

/* The identity with metadata of `bytes` times 'x' or, longer when encoded, U+00E9. */
static hl_status parse_long(size_t bytes, const char *character, hl_error *err)
{
    struct hl_text metadata = {0};
    hl_weight_identity *identity = NULL;
    hl_text_print(&metadata, "\"metadata\":\"");
    for (size_t i = 0; i < bytes; i++)
        hl_text_append(&metadata, character, strlen(character));
    hl_text_print(&metadata, "\",\"model_id\"");
    char *json = replaced(TEST_IDENTITY, "\"metadata\":{},\"model_id\"", metadata.bytes);
    hl_status status = hl_weight_identity_parse(json, strlen(json), &identity, err);
    CU_ASSERT_EQUAL(status == HL_OK, identity != NULL);
    hl_weight_identity_free(identity);
    hl_text_free(&metadata);
    free(json);
    return status;
}

static void an_identity_is_bounded_as_text_and_as_canonical_bytes(void)
{
    hl_error err = {0};
    size_t room = HL_WEIGHT_IDENTITY_BYTES - strlen(TEST_IDENTITY);
    HL_EXPECT_OK(parse_long(room, "x", &err), err);
    HL_EXPECT_STATUS(parse_long(room + 1, "x", &err), HL_E_LIMIT, err);
    HL_EXPECT_OK(parse_long(room / 6, "\xc3\xa9", &err), err);
    HL_EXPECT_STATUS(parse_long(room / 6 + 1, "\xc3\xa9", &err), HL_E_LIMIT, err);
}

static void missing_arguments_are_refused(void)
{
    hl_weight_identity *identity = NULL;
    hl_error err = {0};
    HL_EXPECT_STATUS(hl_weight_identity_parse(NULL, 0, &identity, &err), HL_E_INVALID, err);
    CU_ASSERT_STRING_EQUAL(err.text, "json is NULL");
    HL_EXPECT_STATUS(hl_weight_identity_parse("{}", 2, NULL, &err), HL_E_INVALID, err);
    HL_EXPECT_STATUS(hl_weight_identity_parse("{}", 2, &identity, NULL), HL_E_INVALID, err);
    CU_ASSERT_PTR_NULL(identity);
}

HL_TESTS(weights_identity, HL_CASE(golden_keys_are_reproduced),
         HL_CASE(the_golden_key_of_unicode_and_reals_is_reproduced),
         HL_CASE(order_of_keys_and_white_space_are_free), HL_CASE(fields_are_filled),
         HL_CASE(every_broken_rule_is_refused_by_its_name), HL_CASE(what_the_rules_leave_free_is_accepted),
         HL_CASE(each_difference_gives_another_key),
         HL_CASE(an_identity_is_bounded_as_text_and_as_canonical_bytes),
         HL_CASE(missing_arguments_are_refused));
