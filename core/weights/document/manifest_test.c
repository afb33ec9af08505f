/* The manifest: golden bytes, and every rule broken once, both in a text and in parts. */
#include "core/weights/document/document_testing.h"

#define GOLDEN_SHA256 "4a7b213dee8ac71b5ef24d463850f88c1936b2bd228dfbf88e9c13149526d4be"
#define GOLDEN_CONTENT "8c96a81a4a8709c2bdd9f84bcba08bbc7ed8655773c5bc3e4a6269b168fe9509"
#define FILE_SHA256 "6c0994d0048a2d0ab3338bf6b4c24c39be8aa3fe14184cd96524ea2aa2f95f44"
#define SCALE_SHA256 "b9c80b5adeca450753a16950c3cc655d271f7bef7a485bc83f112b72fef21d37"
#define WEIGHT_SHA256 "b77f881fda0756b047b0ccc8d286142e74f5fb1ed0eae86c12e9ade4ad877751"

static hl_weight_identity *test_identity(void)
{
    char *json = replaced(TEST_IDENTITY, "\"tensor_parallel_size\":1", "\"tensor_parallel_size\":2");
    hl_weight_identity *identity = NULL;
    hl_error err = {0};
    HL_REQUIRE_OK(hl_weight_identity_parse(json, strlen(json), &identity, &err), err);
    free(json);
    return identity;
}

/* The parts of the golden artifact, in the wrong order, for a test to change. */
struct parts {
    struct hl_manifest_tensor tensors[2];
    struct hl_manifest_file files[2];
    struct hl_manifest_parts parts;
};

static void fill_parts(struct parts *p, const hl_weight_identity *identity)
{
    static const uint64_t shape[] = {4, 3}, stride[] = {3, 1}, scale_shape[] = {2}, scale_stride[] = {1};
    *p = (struct parts){
        .tensors = {{.name = "layer.weight",
                     .kind = HL_WEIGHT_PARAMETER,
                     .role = "weight",
                     .file_name = "weights.safetensors",
                     .storage_key = "layer.weight",
                     .dtype = "torch.bfloat16",
                     .rank = 2,
                     .shape = shape,
                     .stride = stride,
                     .bytes = 24,
                     .sha256 = WEIGHT_SHA256},
                    {.name = "layer.scale",
                     .kind = HL_WEIGHT_BUFFER,
                     .role = "scale",
                     .file_name = "weights.safetensors",
                     .storage_key = "layer.scale",
                     .dtype = "torch.float32",
                     .rank = 1,
                     .shape = scale_shape,
                     .stride = scale_stride,
                     .bytes = 8,
                     .sha256 = SCALE_SHA256}},
        .files = {{.file_name = "weights.safetensors", .bytes = 232, .sha256 = FILE_SHA256},
                  {.file_name = "second.safetensors", .bytes = 0, .sha256 = FILE_SHA256}},
    };
    p->parts = (struct hl_manifest_parts){
        .identity = identity, .tensors = p->tensors, .tensor_count = 2, .files = p->files, .file_count = 1};
}

static void the_golden_manifest_is_read(void)
{
    size_t bytes = 0;
    char *golden = read_testdata("manifest.json", &bytes);
    hl_manifest *manifest = NULL;
    hl_error err = {0};
    CU_ASSERT_EQUAL(bytes, 1680);
    HL_REQUIRE_OK(hl_manifest_parse(golden, bytes, &manifest, &err), err);
    CU_ASSERT_STRING_EQUAL(manifest->canonical_sha256, GOLDEN_SHA256);
    CU_ASSERT_STRING_EQUAL(manifest->content_sha256, GOLDEN_CONTENT);
    CU_ASSERT_STRING_EQUAL(manifest->canonical, golden);
    CU_ASSERT_EQUAL(manifest->canonical_bytes, bytes);
    CU_ASSERT_STRING_EQUAL(manifest->format_metadata, "{}");
    CU_ASSERT_STRING_EQUAL(manifest->producer_schema, "test-producer-v1");
    CU_ASSERT_STRING_EQUAL(manifest->restorer_schema, "test-restorer-v1");
    CU_ASSERT_STRING_EQUAL(manifest->identity->key,
                           "a12c08be7d23c79642c9eb7197803beeb33206d51d130ff7fd98eed6bf6d1bb0");
    CU_ASSERT_EQUAL_FATAL(manifest->tensor_count, 2);
    CU_ASSERT_EQUAL_FATAL(manifest->file_count, 1);
    const struct hl_manifest_tensor *weight = &manifest->tensors[1];
    CU_ASSERT_STRING_EQUAL(weight->name, "layer.weight");
    CU_ASSERT_EQUAL(weight->kind, HL_WEIGHT_PARAMETER);
    CU_ASSERT_STRING_EQUAL(weight->role, "weight");
    CU_ASSERT_STRING_EQUAL(weight->dtype, "torch.bfloat16");
    CU_ASSERT_EQUAL(weight->rank, 2);
    CU_ASSERT_EQUAL(weight->shape[0] * 100 + weight->shape[1], 403);
    CU_ASSERT_EQUAL(weight->stride[0] * 100 + weight->stride[1], 301);
    CU_ASSERT_EQUAL(weight->bytes, 24);
    CU_ASSERT_EQUAL(weight->file, 0);
    CU_ASSERT_EQUAL(manifest->files[0].bytes, 232);
    CU_ASSERT_EQUAL(hl_manifest_find(manifest, "layer.weight"), 1);
    CU_ASSERT_EQUAL(hl_manifest_find(manifest, "layer.scale"), 0);
    CU_ASSERT_EQUAL(hl_manifest_find(manifest, "layer"), -1);
    CU_ASSERT_EQUAL(hl_manifest_find(manifest, ""), -1);
    hl_manifest_free(manifest);
    hl_manifest_free(NULL);
    free(golden);
}

static void the_golden_manifest_is_built_byte_for_byte_from_parts(void)
{
    size_t bytes = 0;
    char *golden = read_testdata("manifest.json", &bytes);
    hl_weight_identity *identity = test_identity();
    struct parts p;
    hl_manifest *manifest = NULL;
    hl_error err = {0};
    fill_parts(&p, identity);
    HL_REQUIRE_OK(hl_manifest_build(&p.parts, &manifest, &err), err);
    hl_weight_identity_free(identity);
    CU_ASSERT_EQUAL(manifest->canonical_bytes, bytes);
    CU_ASSERT_STRING_EQUAL(manifest->canonical, golden);
    CU_ASSERT_STRING_EQUAL(manifest->canonical_sha256, GOLDEN_SHA256);
    CU_ASSERT_STRING_EQUAL(manifest->content_sha256, GOLDEN_CONTENT);
    CU_ASSERT_EQUAL(manifest->tensors[0].file, 0);
    hl_manifest_free(manifest);
    free(golden);
}

static void the_content_digest_does_not_depend_on_files(void)
{
    hl_weight_identity *identity = test_identity();
    struct parts p;
    hl_manifest *manifest = NULL;
    hl_error err = {0};
    fill_parts(&p, identity);
    p.parts.file_count = 2;
    p.tensors[1].file_name = "second.safetensors";
    p.tensors[1].storage_key = "layer.weight"; /* the same key as the other's, in another file */
    p.parts.format_metadata = " {\"b\": 1e0, \"a\":\"é\"} ";
    HL_REQUIRE_OK(hl_manifest_build(&p.parts, &manifest, &err), err);
    CU_ASSERT_STRING_EQUAL(manifest->content_sha256, GOLDEN_CONTENT);
    CU_ASSERT_STRING_NOT_EQUAL(manifest->canonical_sha256, GOLDEN_SHA256);
    CU_ASSERT_STRING_EQUAL(manifest->format_metadata, "{\"a\":\"\\u00e9\",\"b\":1.0}");
    CU_ASSERT_EQUAL(manifest->tensors[0].file, 0);
    CU_ASSERT_EQUAL(manifest->tensors[1].file, 1);
    hl_manifest *again = NULL;
    HL_REQUIRE_OK(hl_manifest_parse(manifest->canonical, manifest->canonical_bytes, &again, &err), err);
    CU_ASSERT_STRING_EQUAL(again->canonical_sha256, manifest->canonical_sha256);
    hl_manifest_free(again);
    hl_manifest_free(manifest);
    hl_weight_identity_free(identity);
}

static const char file_entry[] =
    "{\"file_name\":\"weights.safetensors\",\"sha256\":\"" FILE_SHA256 "\",\"size\":232}";
static const char two_files[] =
    "{\"file_name\":\"weights.safetensors\",\"sha256\":\"" FILE_SHA256
    "\",\"size\":232},{\"file_name\":\"a\",\"sha256\":\"" FILE_SHA256 "\",\"size\":232}";
static const char same_file_twice[] = "{\"file_name\":\"weights.safetensors\",\"sha256\":\"" FILE_SHA256
                                      "\",\"size\":232},{\"file_name\":\"weights.safetensors\",\"sha256\":"
                                      "\"" FILE_SHA256 "\",\"size\":0}";

#define SCALE_PLACE "\"file_name\":\"weights.safetensors\",\"kind\":\"buffer\""

static const struct change broken_rules[] = {
    /* the document */
    {"\"schema_version\":1,\"tensors\"", "\"schema_version\":2,\"tensors\"", HL_E_UNSUPPORTED,
     "schema_version"},
    {"\"schema_version\":1,\"tensors\"", "\"schema_version\":\"1\",\"tensors\"", HL_E_CORRUPT,
     "schema_version has the type string"},
    {"\"schema_version\":1,\"tensors\"", "\"tensors\"", HL_E_CORRUPT, "schema_version is missing"},
    {"\"format_metadata\":{}", "\"format_metadata\": {}", HL_E_CORRUPT, "is not in its canonical encoding"},
    {"\"format_metadata\":{}", "\"format_metadata\":{\"b\":1,\"a\":1}", HL_E_CORRUPT, "canonical"},
    {"\"format_metadata\":{}", "\"format_metadata\":1e5", HL_E_CORRUPT, "canonical"},
    {"\"format_metadata\":{}", "\"format_metadata\":{\"a\":1,\"a\":1}", HL_E_CORRUPT, "given twice"},
    {"\"format_metadata\":{},", "", HL_E_CORRUPT, "format_metadata is missing"},
    {"\"format_metadata\":{}", "\"format_more\":{}", HL_E_CORRUPT, "the unknown key \"format_more\""},
    {"\"producer_schema\":\"test-producer-v1\"", "\"producer_schema\":\"\"", HL_E_CORRUPT,
     "producer_schema is empty"},
    {"\"restorer_schema\":\"test-restorer-v1\",\"schema", "\"restorer_schema\":1,\"schema", HL_E_CORRUPT,
     "restorer_schema has the type integer"},
    {GOLDEN_CONTENT, FILE_SHA256, HL_E_CHECKSUM, "artifact_content_sha256 is not the digest"},
    {GOLDEN_CONTENT, "abc", HL_E_CORRUPT, "artifact_content_sha256 is not 64"},
    {"a12c08be", "a12c08bf", HL_E_CORRUPT, "artifact_key is not the identity's"},
    {"a12c08be", "A12c08be", HL_E_CORRUPT, "artifact_key is not 64"},
    {"\"test-org/test-model\"", "\"\"", HL_E_CORRUPT, "identity: source.model_id is empty"},
    {"\"test-org/test-model\"", "\"another\"", HL_E_CORRUPT, "artifact_key is not the identity's"},
    /* files */
    {file_entry, "", HL_E_CORRUPT, "files is empty"},
    {file_entry, "7", HL_E_CORRUPT, "files[0] has the type integer"},
    {file_entry, two_files, HL_E_CORRUPT, "files[1].file_name is not after"},
    {file_entry, same_file_twice, HL_E_CORRUPT, "files[1].file_name is not after"},
    {"\"size\":232", "\"size\":-232", HL_E_CORRUPT, "files[0].size is not between 0"},
    {"\"size\":232", "\"size\":\"232\"", HL_E_CORRUPT, "files[0].size has the type string"},
    {"\"size\":232", "\"size\":232,\"zero\":0", HL_E_CORRUPT, "files[0] has the unknown key \"zero\""},
    {",\"size\":232", "", HL_E_CORRUPT, "files[0].size is missing"},
    {FILE_SHA256, "6C0994d0048a2d0ab3338bf6b4c24c39be8aa3fe14184cd96524ea2aa2f95f44", HL_E_CORRUPT,
     "files[0].sha256 is not 64"},
    {"{\"file_name\":\"weights.safetensors\"", "{\"file_name\":\"../x\"", HL_E_CORRUPT,
     "files[0].file_name is not a safe name"},
    {"{\"file_name\":\"weights.safetensors\"", "{\"file_name\":\"READY.json\"", HL_E_CORRUPT,
     "files[0].file_name is not a safe name"},
    {"{\"file_name\":\"weights.safetensors\"", "{\"file_name\":\"\"", HL_E_CORRUPT,
     "files[0].file_name is empty"},
    /* tensors */
    {SCALE_PLACE, "\"file_name\":\"other\",\"kind\":\"buffer\"", HL_E_CORRUPT,
     "tensors[0].file_name is not among the files"},
    {SCALE_PLACE, "\"file_name\":\"a/b\",\"kind\":\"buffer\"", HL_E_CORRUPT,
     "tensors[0].file_name is not a safe name"},
    {"\"kind\":\"buffer\"", "\"kind\":\"constant\"", HL_E_CORRUPT, "tensors[0].kind is \"constant\""},
    {"\"name\":\"layer.scale\"", "\"name\":\"\"", HL_E_CORRUPT, "tensors[0].name is empty"},
    {"\"name\":\"layer.scale\"", "\"name\":\"a\\u0000b\"", HL_E_CORRUPT, "tensors[0].name holds a NUL"},
    {"\"name\":\"layer.scale\"", "\"name\":\"layer.weight\"", HL_E_CORRUPT, "tensors[1].name is not after"},
    {"\"name\":\"layer.scale\"", "\"name\":\"z\"", HL_E_CORRUPT, "tensors[1].name is not after"},
    {"\"storage_key\":\"layer.scale\"", "\"storage_key\":\"layer.weight\"", HL_E_CORRUPT,
     "storage_key is another tensor's in the same file"},
    {"\"storage_key\":\"layer.scale\"", "\"storage_key\":\"\"", HL_E_CORRUPT,
     "tensors[0].storage_key is empty"},
    {"\"dtype\":\"torch.float32\"", "\"dtype\":\"\"", HL_E_CORRUPT, "tensors[0].dtype is empty"},
    {"\"role\":\"scale\"", "\"role\":\"\"", HL_E_CORRUPT, "tensors[0].role is empty"},
    {"\"role\":\"scale\",", "", HL_E_CORRUPT, "tensors[0].role is missing"},
    {"\"nbytes\":8", "\"nbytes\":\"8\"", HL_E_CORRUPT, "tensors[0].nbytes has the type string"},
    {"\"nbytes\":8", "\"nbytes\":18446744073709551616", HL_E_CORRUPT, "tensors[0].nbytes is not between 0"},
    {"\"nbytes\":8", "\"nbytes\":9", HL_E_CHECKSUM, "artifact_content_sha256 is not the digest"},
    {SCALE_SHA256, WEIGHT_SHA256, HL_E_CHECKSUM, "artifact_content_sha256 is not the digest"},
    {SCALE_SHA256, "0", HL_E_CORRUPT, "tensors[0].sha256 is not 64"},
    {"\"shape\":[2]", "\"shape\":[-2]", HL_E_CORRUPT, "tensors[0].shape is not between 0"},
    {"\"shape\":[2]", "\"shape\":[2.0]", HL_E_CORRUPT, "tensors[0].shape has the type real"},
    {"\"shape\":[2]", "\"shape\":[true]", HL_E_CORRUPT, "tensors[0].shape has the type boolean"},
    {"\"shape\":[2]", "\"shape\":2", HL_E_CORRUPT, "tensors[0].shape has the type integer, not array"},
    {"\"shape\":[2]", "\"shape\":[2,1]", HL_E_CORRUPT, "tensors[0].stride has 1 sizes for a shape of 2"},
    {"\"stride\":[1]", "\"stride\":[]", HL_E_CORRUPT, "tensors[0].stride has 0 sizes for a shape of 1"},
    {"\"stride\":[1]", "\"stride\":{}", HL_E_CORRUPT, "tensors[0].stride has the type object, not array"},
    {"\"tensors\":[{", "\"tensors\":[0,{", HL_E_CORRUPT, "tensors[0] has the type integer, not object"},
};

static void every_broken_rule_of_a_text_is_refused(void)
{
    size_t bytes = 0;
    char *golden = read_testdata("manifest.json", &bytes);
    for (size_t i = 0; i < sizeof broken_rules / sizeof broken_rules[0]; i++) {
        char *text = replaced(golden, broken_rules[i].from, broken_rules[i].to);
        hl_manifest *manifest = NULL;
        hl_error err = {0};
        expect_refusal(&broken_rules[i], hl_manifest_parse(text, strlen(text), &manifest, &err), &err);
        CU_ASSERT_PTR_NULL(manifest);
        free(text);
    }
    free(golden);
}

static void a_manifest_without_tensors_and_one_cut_anywhere_are_refused(void)
{
    size_t bytes = 0;
    char *golden = read_testdata("manifest.json", &bytes);
    hl_manifest *manifest = NULL;
    hl_error err = {0};
    for (size_t cut = 0; cut < bytes; cut++)
        CU_ASSERT_EQUAL(hl_manifest_parse(golden, cut, &manifest, &err), HL_E_CORRUPT);
    *strstr(golden, "\"tensors\":[") = '\0';
    struct hl_text empty = {0}, other = {0};
    hl_text_print(&empty, "%s\"tensors\":[]}", golden);
    hl_text_print(&other, "%s\"tensors\":{}}", golden);
    HL_EXPECT_STATUS(hl_manifest_parse(empty.bytes, empty.size, &manifest, &err), HL_E_CORRUPT, err);
    CU_ASSERT_STRING_EQUAL(err.text, "tensors is empty");
    HL_EXPECT_STATUS(hl_manifest_parse(other.bytes, other.size, &manifest, &err), HL_E_CORRUPT, err);
    CU_ASSERT_STRING_EQUAL(err.text, "tensors has the type object, not array");
    hl_text_free(&other);
    hl_text_free(&empty);
    CU_ASSERT_PTR_NULL(manifest);
    free(golden);
}

static void too_many_files_or_dimensions_are_refused(void)
{
    size_t bytes = 0;
    char *golden = read_testdata("manifest.json", &bytes);
    struct hl_text files = {0}, shape = {0};
    hl_manifest *manifest = NULL;
    hl_error err = {0};
    for (unsigned i = 0; i <= HL_WEIGHT_FILES; i++)
        hl_text_print(&files, "%s{\"file_name\":\"%05u\",\"sha256\":\"" FILE_SHA256 "\",\"size\":1}",
                      i ? "," : "", i);
    for (unsigned i = 0; i <= HL_WEIGHT_RANK; i++)
        hl_text_print(&shape, "%s1", i ? "," : "\"shape\":[");
    hl_text_print(&shape, "]");
    char *many_files = replaced(golden, file_entry, files.bytes);
    char *many_sizes = replaced(golden, "\"shape\":[2]", shape.bytes);
    HL_EXPECT_STATUS(hl_manifest_parse(many_files, strlen(many_files), &manifest, &err), HL_E_LIMIT, err);
    CU_ASSERT_STRING_EQUAL(err.text, "4097 files, of which 4096 are allowed");
    HL_EXPECT_STATUS(hl_manifest_parse(many_sizes, strlen(many_sizes), &manifest, &err), HL_E_LIMIT, err);
    CU_ASSERT_STRING_EQUAL(err.text, "tensors[0].shape has 65 sizes, of which 64 are allowed");
    free(many_sizes);
    free(many_files);
    hl_text_free(&shape);
    hl_text_free(&files);
    free(golden);
}

/* Builds after `change` has spoilt the parts. */
static void expect_build_refused(void (*change)(struct parts *p), hl_status expected, const char *says)
{
    hl_weight_identity *identity = test_identity();
    struct parts p;
    hl_manifest *manifest = NULL;
    hl_error err = {0};
    fill_parts(&p, identity);
    change(&p);
    HL_EXPECT_STATUS(hl_manifest_build(&p.parts, &manifest, &err), expected, err);
    if (!strstr(err.text, says))
        fprintf(stderr, "%s is not in: %s\n", says, err.text);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, says));
    CU_ASSERT_PTR_NULL(manifest);
    hl_weight_identity_free(identity);
}

#define SPOIL(name, statement)                                                                               \
    static void name(struct parts *p)                                                                        \
    {                                                                                                        \
        statement;                                                                                           \
    }
SPOIL(no_identity, p->parts.identity = NULL)
SPOIL(no_tensor, p->parts.tensor_count = 0)
SPOIL(no_file, p->parts.file_count = 0)
SPOIL(too_many_tensors, p->parts.tensor_count = HL_WEIGHT_TENSORS + 1)
SPOIL(too_many_files, p->parts.file_count = HL_WEIGHT_FILES + 1)
SPOIL(null_name, p->tensors[1].name = NULL)
SPOIL(empty_name, p->tensors[1].name = "")
SPOIL(same_name, p->tensors[1].name = "layer.weight")
SPOIL(name_not_utf8, p->tensors[0].name = "\xff")
SPOIL(unknown_kind, p->tensors[0].kind = (hl_weight_tensor_kind)7)
SPOIL(empty_role, p->tensors[0].role = "")
SPOIL(null_dtype, p->tensors[0].dtype = NULL)
SPOIL(same_place, p->tensors[1].storage_key = "layer.weight")
SPOIL(undeclared_file, p->tensors[1].file_name = "second.safetensors")
SPOIL(unsafe_file, p->files[0].file_name = "a/b")
SPOIL(null_file, p->files[0].file_name = NULL)
SPOIL(null_shape, p->tensors[0].shape = NULL)
SPOIL(null_stride, p->tensors[0].stride = NULL)
SPOIL(too_many_dimensions, p->tensors[0].rank = HL_WEIGHT_RANK + 1)
SPOIL(tensor_digest, p->tensors[0].sha256[3] = 'A')
SPOIL(file_digest, p->files[0].sha256[10] = '\0')
SPOIL(metadata_no_json, p->parts.format_metadata = "{")
SPOIL(metadata_nan, p->parts.format_metadata = "[NaN]")
SPOIL(same_file, p->files[1].file_name = "weights.safetensors"; p->parts.file_count = 2)

static void parts_that_break_a_rule_are_refused(void)
{
    expect_build_refused(no_identity, HL_E_INVALID, "identity is NULL");
    expect_build_refused(no_tensor, HL_E_INVALID, "tensors is empty");
    expect_build_refused(no_file, HL_E_INVALID, "files is empty");
    expect_build_refused(too_many_tensors, HL_E_LIMIT, "1048577 tensors");
    expect_build_refused(too_many_files, HL_E_LIMIT, "4097 files");
    expect_build_refused(null_name, HL_E_INVALID, "tensors[1].name is NULL");
    expect_build_refused(empty_name, HL_E_INVALID, "name is empty");
    expect_build_refused(same_name, HL_E_INVALID, "tensors[1].name is not after the one before it");
    expect_build_refused(name_not_utf8, HL_E_INVALID, "tensors[0].name is not UTF-8");
    expect_build_refused(unknown_kind, HL_E_INVALID, "tensors[0].kind is 7");
    expect_build_refused(empty_role, HL_E_INVALID, "role is empty");
    expect_build_refused(null_dtype, HL_E_INVALID, "tensors[0].dtype is NULL");
    expect_build_refused(same_place, HL_E_INVALID, "storage_key is another tensor's");
    expect_build_refused(undeclared_file, HL_E_INVALID, "file_name is not among the files");
    expect_build_refused(unsafe_file, HL_E_INVALID, "files[0].file_name is not a safe name");
    expect_build_refused(null_file, HL_E_INVALID, "files[0].file_name is NULL");
    expect_build_refused(null_shape, HL_E_INVALID, "tensors[0].shape is NULL");
    expect_build_refused(null_stride, HL_E_INVALID, "tensors[0].stride is NULL");
    expect_build_refused(too_many_dimensions, HL_E_LIMIT, "tensors[0] has 65 dimensions");
    expect_build_refused(tensor_digest, HL_E_INVALID, "tensors[0].sha256 is not 64");
    expect_build_refused(file_digest, HL_E_INVALID, "files[0].sha256 is not 64");
    expect_build_refused(metadata_no_json, HL_E_INVALID, "format_metadata: byte 1");
    expect_build_refused(metadata_nan, HL_E_INVALID, "format_metadata: byte 1");
    expect_build_refused(same_file, HL_E_INVALID, "files[1].file_name is not after the one before it");
}

static void file_names_are_one_safe_component(void)
{
    static const char *const safe[] = {"a",  "weights.safetensors", "...", ".hidden", "モデル", "a b",
                                       "\\", "ready.json"};
    static const char *const unsafe[] = {"",     ".",     "..",   "/",          "a/b",          "../x",
                                         "a\nb", "a\x7f", "\xff", "READY.json", "manifest.json"};
    for (size_t i = 0; i < sizeof safe / sizeof safe[0]; i++)
        CU_ASSERT_TRUE(hl_manifest_file_name_is_safe(safe[i]));
    for (size_t i = 0; i < sizeof unsafe / sizeof unsafe[0]; i++)
        CU_ASSERT_FALSE(hl_manifest_file_name_is_safe(unsafe[i]));
    char name[HL_WEIGHT_FILE_NAME_BYTES + 1];
    memset(name, 'x', sizeof name);
    name[HL_WEIGHT_FILE_NAME_BYTES] = '\0';
    CU_ASSERT_FALSE(hl_manifest_file_name_is_safe(name));
    name[HL_WEIGHT_FILE_NAME_BYTES - 1] = '\0';
    CU_ASSERT_TRUE(hl_manifest_file_name_is_safe(name));
}

static void a_scalar_and_an_empty_tensor_are_tensors(void)
{
    static const uint64_t none[] = {0, 3};
    hl_weight_identity *identity = test_identity();
    struct parts p;
    hl_manifest *manifest = NULL;
    hl_error err = {0};
    fill_parts(&p, identity);
    p.tensors[0].rank = 0;
    p.tensors[0].shape = p.tensors[0].stride = NULL;
    p.tensors[1].rank = 2;
    p.tensors[1].shape = p.tensors[1].stride = none;
    p.tensors[1].bytes = 0;
    HL_REQUIRE_OK(hl_manifest_build(&p.parts, &manifest, &err), err);
    CU_ASSERT_EQUAL(manifest->tensors[1].rank, 0);
    CU_ASSERT_EQUAL(manifest->tensors[0].shape[1], 3);
    CU_ASSERT_PTR_NOT_NULL(strstr(manifest->canonical, "\"shape\":[],"));
    hl_manifest_free(manifest);
    hl_weight_identity_free(identity);
}

HL_TESTS(weights_manifest, HL_CASE(the_golden_manifest_is_read),
         HL_CASE(the_golden_manifest_is_built_byte_for_byte_from_parts),
         HL_CASE(the_content_digest_does_not_depend_on_files),
         HL_CASE(every_broken_rule_of_a_text_is_refused),
         HL_CASE(a_manifest_without_tensors_and_one_cut_anywhere_are_refused),
         HL_CASE(too_many_files_or_dimensions_are_refused), HL_CASE(parts_that_break_a_rule_are_refused),
         HL_CASE(file_names_are_one_safe_component), HL_CASE(a_scalar_and_an_empty_tensor_are_tensors));
