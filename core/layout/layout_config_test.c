#include <fcntl.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/random.h"
#include "core/layout/layout.h"
#include "core/testing/cunit.h"

#define CONFIGS "engine/demo/configs/"
#define BASE                                                                                                 \
    "\"model_type\":\"m\",\"num_hidden_layers\":4,\"num_attention_heads\":8,\"num_key_value_heads\":2,"      \
    "\"head_dim\":16,\"dtype\":\"bfloat16\""

static hl_status parse(const char *json, struct hl_model_geometry *geometry, hl_error *err)
{
    return hl_layout_parse_config(json, strlen(json), geometry, err);
}

/* Parses and expects `status` and a text that holds `word`. */
static void refuse(const char *json, hl_status status, const char *word)
{
    struct hl_model_geometry geometry, before;
    hl_error err = {0};
    memset(&geometry, 0x5a, sizeof geometry);
    before = geometry;
    HL_EXPECT_STATUS(parse(json, &geometry, &err), status, err);
    if (strstr(err.text, word) == NULL)
        fprintf(stderr, "%s: \"%s\" does not name %s\n", json, err.text, word);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, word));
    CU_ASSERT_EQUAL(err.status, status);
    CU_ASSERT_EQUAL(memcmp(&geometry, &before, sizeof geometry), 0);
}

static void refuse_with(const char *fields, hl_status status, const char *word)
{
    char json[2048];
    snprintf(json, sizeof json, "{" BASE "%s%s}", fields[0] != '\0' ? "," : "", fields);
    refuse(json, status, word);
}

static struct hl_model_geometry accept(const char *json)
{
    struct hl_model_geometry geometry = {0};
    hl_error err;
    HL_EXPECT_OK(parse(json, &geometry, &err), err);
    return geometry;
}

/* The sliding layers as a string of s and f. */
static void expect_sliding(const char *fields, const char *layers, uint32_t window)
{
    char json[2048], got[HL_LAYOUT_LAYERS + 1] = "";
    snprintf(json, sizeof json, "{" BASE ",%s}", fields);
    struct hl_model_geometry geometry = accept(json);
    for (uint32_t i = 0; i < geometry.layers; i++)
        got[i] = geometry.sliding[i] ? 's' : 'f';
    if (strcmp(got, layers) != 0)
        fprintf(stderr, "%s: %s instead of %s\n", fields, got, layers);
    CU_ASSERT_STRING_EQUAL(got, layers);
    CU_ASSERT_EQUAL(geometry.window_tokens, window);
}

static void qwen3_has_an_explicit_head_dim_and_no_window(void)
{
    struct hl_model_geometry g;
    hl_error err;
    HL_REQUIRE_OK(hl_layout_load_config(CONFIGS "qwen3-8b.json", &g, &err), err);
    CU_ASSERT_STRING_EQUAL(g.name, "qwen3");
    CU_ASSERT_EQUAL(g.layers, 36);
    CU_ASSERT_EQUAL(g.kv_heads, 8);
    CU_ASSERT_EQUAL(g.head_dim, 128);
    CU_ASSERT_EQUAL(g.value_head_dim, 128);
    CU_ASSERT_EQUAL(g.element_bytes, 2);
    CU_ASSERT_EQUAL(g.mla, 0);
    CU_ASSERT_EQUAL(g.window_tokens, 0);
}

static void llama_head_dim_follows_from_hidden_size(void)
{
    struct hl_model_geometry g;
    hl_error err;
    HL_REQUIRE_OK(hl_layout_load_config(CONFIGS "llama-3.1-8b.json", &g, &err), err);
    CU_ASSERT_EQUAL(g.layers, 32);
    CU_ASSERT_EQUAL(g.kv_heads, 8);
    CU_ASSERT_EQUAL(g.head_dim, 128);
}

static void deepseek_caches_one_latent_vector_whatever_its_heads(void)
{
    struct hl_model_geometry g;
    hl_error err;
    HL_REQUIRE_OK(hl_layout_load_config(CONFIGS "deepseek-mla.json", &g, &err), err);
    CU_ASSERT_EQUAL(g.layers, 61);
    CU_ASSERT_EQUAL(g.mla, 1);
    CU_ASSERT_EQUAL(g.kv_heads, 1);
    CU_ASSERT_EQUAL(g.head_dim, 576);
    CU_ASSERT_EQUAL(g.value_head_dim, 0);
    refuse("{\"model_type\":\"m\",\"num_hidden_layers\":2,\"kv_lora_rank\":512}", HL_E_INVALID,
           "qk_rope_head_dim");
    refuse("{\"model_type\":\"m\",\"num_hidden_layers\":2,\"kv_lora_rank\":0}", HL_E_INVALID, "kv_lora_rank");
    refuse("{\"model_type\":\"m\",\"num_hidden_layers\":2,\"kv_lora_rank\":2.5}", HL_E_INVALID,
           "kv_lora_rank");
    g = accept("{" BASE ",\"kv_lora_rank\":null}");
    CU_ASSERT_EQUAL(g.mla, 0);
}

static void gpt_oss_alternates_sliding_and_full(void)
{
    struct hl_model_geometry g;
    hl_error err;
    HL_REQUIRE_OK(hl_layout_load_config(CONFIGS "gpt-oss-20b.json", &g, &err), err);
    CU_ASSERT_EQUAL(g.layers, 24);
    CU_ASSERT_EQUAL(g.head_dim, 64);
    CU_ASSERT_EQUAL(g.window_tokens, 128);
    for (uint32_t layer = 0; layer < g.layers; layer++)
        CU_ASSERT_EQUAL(g.sliding[layer], layer % 2 == 0);
}

static void each_way_to_say_which_layers_slide_is_read(void)
{
    expect_sliding("\"sliding_window\":null", "ffff", 0);
    expect_sliding("\"sliding_window\":4096", "ssss", 4096);
    expect_sliding("\"use_sliding_window\":false,\"sliding_window\":32,\"max_window_layers\":2", "ffff", 0);
    expect_sliding("\"use_sliding_window\":true,\"sliding_window\":32,\"max_window_layers\":3", "fffs", 32);
    expect_sliding("\"use_sliding_window\":true,\"sliding_window\":32,\"max_window_layers\":0", "ssss", 32);
    expect_sliding("\"use_sliding_window\":true,\"sliding_window\":32,\"max_window_layers\":70", "ffff", 0);
    expect_sliding("\"sliding_window\":32,\"max_window_layers\":2", "ffff", 0);
    expect_sliding("\"sliding_window\":32,\"sliding_window_pattern\":2", "sfsf", 32);
    expect_sliding("\"sliding_window\":32,\"sliding_window_pattern\":6", "ssss", 32);
    expect_sliding("\"sliding_window\":32,\"sliding_window_pattern\":1", "ffff", 0);
    expect_sliding("\"sliding_window\":32,\"sliding_window_pattern\":null", "ssss", 32);
    expect_sliding("\"sliding_window\":32,\"sliding_window_pattern\":2,\"layer_types\":[\"full_attention\","
                   "\"full_attention\",\"full_attention\",\"sliding_attention\"]",
                   "fffs", 32);
    expect_sliding("\"layers_block_type\":[\"attention\",\"attention\",\"attention\",\"attention\"]", "ffff",
                   0);
    expect_sliding("\"attn_type_list\":[1,1,1,1]", "ffff", 0);
}

static void an_architecture_implies_the_pattern_its_files_leave_out(void)
{
    struct hl_model_geometry g =
        accept("{\"model_type\":\"gemma2\",\"num_hidden_layers\":4,\"num_attention_heads\":8,\"head_dim\":4,"
               "\"sliding_window\":64}");
    CU_ASSERT_EQUAL(memcmp(g.sliding, "\1\0\1\0", 4), 0);
    g = accept("{\"model_type\":\"cohere2\",\"num_hidden_layers\":4,\"num_attention_heads\":8,\"head_dim\":4,"
               "\"sliding_window\":64}");
    CU_ASSERT_EQUAL(memcmp(g.sliding, "\1\1\1\0", 4), 0);
    g = accept("{\"model_type\":\"gemma2\",\"num_hidden_layers\":4,\"num_attention_heads\":8,\"head_dim\":4,"
               "\"sliding_window\":null}");
    CU_ASSERT_EQUAL(g.window_tokens, 0);
}

static void sliding_layers_need_a_window(void)
{
    static const char types[] =
        "\"layer_types\":[\"sliding_attention\",\"full_attention\",\"full_attention\","
        "\"full_attention\"]";
    char fields[512];
    refuse_with(types, HL_E_INVALID, "sliding_window");
    refuse_with("\"sliding_window_pattern\":2", HL_E_INVALID, "sliding_window is missing");
    refuse_with("\"use_sliding_window\":true,\"max_window_layers\":1", HL_E_INVALID,
                "sliding_window is missing");
    refuse_with("\"use_sliding_window\":true,\"sliding_window\":8", HL_E_INVALID, "max_window_layers");
    snprintf(fields, sizeof fields, "%s,\"sliding_window\":8,\"use_sliding_window\":false", types);
    refuse_with(fields, HL_E_INVALID, "use_sliding_window");
    snprintf(fields, sizeof fields, "%s,\"sliding_window\":8,\"use_sliding_window\":3", types);
    refuse_with(fields, HL_E_INVALID, "use_sliding_window");
}

static void unsupported_layers_are_named(void)
{
    refuse_with(
        "\"layer_types\":[\"full_attention\",\"full_attention\",\"linear_attention\",\"full_attention\"]",
        HL_E_UNSUPPORTED, "layer 2 is of type \"linear_attention\"");
    refuse_with("\"layers_block_type\":[\"mamba\",\"attention\",\"mamba\",\"mamba\"]", HL_E_UNSUPPORTED,
                "layer 0 is of type \"mamba\"");
    refuse_with("\"layer_types\":[\"x\\u0007\\u00e9\",\"\",\"\",\"\"]", HL_E_UNSUPPORTED, "\"x???\"");
    refuse_with("\"attn_type_list\":[1,1,0,1]", HL_E_UNSUPPORTED, "layer 2");
    refuse_with("\"attn_type_list\":[1,\"1\"]", HL_E_UNSUPPORTED, "layer 1");
    refuse_with("\"attn_type_list\":7", HL_E_INVALID, "attn_type_list");
}

static void caches_of_another_shape_are_unsupported(void)
{
    refuse_with("\"is_encoder_decoder\":true", HL_E_UNSUPPORTED, "is_encoder_decoder");
    refuse_with("\"cross_attention_layers\":[3]", HL_E_UNSUPPORTED, "cross_attention_layers");
    refuse_with("\"index_head_dim\":128", HL_E_UNSUPPORTED, "index_head_dim");
    refuse_with("\"num_kv_shared_layers\":2", HL_E_UNSUPPORTED, "num_kv_shared_layers");
    refuse_with("\"hybrid_override_pattern\":\"M-M*\"", HL_E_UNSUPPORTED, "hybrid_override_pattern");
    refuse_with("\"linear_attn_config\":{\"a\":1}", HL_E_UNSUPPORTED, "linear_attn_config");
    refuse_with("\"full_attention_interval\":4.0", HL_E_UNSUPPORTED, "full_attention_interval");
    accept("{" BASE ",\"is_encoder_decoder\":false,\"cross_attention_layers\":[],\"index_head_dim\":null,"
           "\"num_kv_shared_layers\":0,\"hybrid_override_pattern\":\"\",\"linear_attn_config\":{}}");
}

static void contradictions_are_refused_by_field(void)
{
    refuse_with("\"layer_types\":[\"full_attention\"]", HL_E_INVALID, "layer_types has 1 entries");
    refuse_with("\"layer_types\":[]", HL_E_INVALID, "layer_types has 0 entries");
    refuse_with("\"layer_types\":\"full_attention\"", HL_E_INVALID, "layer_types is a string");
    refuse_with("\"layer_types\":[\"full_attention\",1,null,{}]", HL_E_INVALID,
                "layer_types[1] is an integer");
    refuse_with("\"layer_types\":[\"full_attention\",null,1,1]", HL_E_INVALID, "layer_types[1] is null");
    refuse("{\"model_type\":\"m\",\"num_hidden_layers\":4,\"num_attention_heads\":6,\"hidden_size\":100}",
           HL_E_INVALID, "hidden_size 100");
    refuse("{\"model_type\":\"m\",\"num_hidden_layers\":4,\"num_attention_heads\":6}", HL_E_INVALID,
           "hidden_size");
    refuse("{\"model_type\":\"m\",\"num_hidden_layers\":4,\"num_attention_heads\":6,\"head_dim\":8,"
           "\"num_key_value_heads\":12}",
           HL_E_INVALID, "num_key_value_heads 12");
    refuse("{\"model_type\":\"m\",\"num_hidden_layers\":4,\"num_attention_heads\":6,\"head_dim\":8,"
           "\"num_key_value_heads\":4}",
           HL_E_INVALID, "num_key_value_heads 4");
    refuse_with("\"torch_dtype\":\"float32\"", HL_E_INVALID, "dtype");
    refuse("{\"num_hidden_layers\":4,\"num_attention_heads\":6,\"head_dim\":8}", HL_E_INVALID, "model_type");
    refuse("{\"architectures\":[7],\"num_hidden_layers\":4}", HL_E_INVALID, "model_type");
    refuse("{\"architectures\":\"A\",\"num_hidden_layers\":4}", HL_E_INVALID, "architectures");
    refuse("{\"model_type\":\"m\"}", HL_E_INVALID, "num_hidden_layers");
    refuse("{\"model_type\":\"m\",\"num_hidden_layers\":4}", HL_E_INVALID, "num_attention_heads");
    refuse("{\"text_config\":3," BASE "}", HL_E_INVALID, "text_config");
}

/* Each integer field, each kind of value that is no integer of its range. */
static void what_is_no_integer_in_range_is_refused_by_field(void)
{
    static const char *const fields[] = {"num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                                         "head_dim",          "sliding_window",      "sliding_window_pattern",
                                         "v_head_dim"};
    static const char *const values[] = {"-1",    "0",  "2147483648", "9223372036854775807",  "true", "2.0",
                                         "\"4\"", "[]", "{}",         "-9223372036854775808", "1e3"};
    for (size_t f = 0; f < sizeof fields / sizeof fields[0]; f++) {
        for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
            char json[512] = "{\"model_type\":\"m\"";
            for (size_t other = 0; other < 4; other++)
                if (other != f)
                    snprintf(json + strlen(json), sizeof json - strlen(json), ",\"%s\":4", fields[other]);
            snprintf(json + strlen(json), sizeof json - strlen(json), ",\"%s\":%s}", fields[f], values[v]);
            refuse(json, HL_E_INVALID, fields[f]);
        }
    }
    refuse_with("\"max_window_layers\":-1", HL_E_INVALID, "max_window_layers");
    refuse_with("\"index\":99999999999999999999", HL_E_CORRUPT, "not valid JSON");
}

static void sizes_beyond_the_limits_are_refused(void)
{
    refuse("{\"model_type\":\"m\",\"num_hidden_layers\":1025}", HL_E_LIMIT, "num_hidden_layers is 1025");
    size_t size = HL_LAYOUT_CONFIG_BYTES + 1;
    char *json = malloc(size);
    CU_ASSERT_PTR_NOT_NULL_FATAL(json);
    memset(json, ' ', size);
    memcpy(json, "{" BASE "}", sizeof "{" BASE "}" - 1);
    struct hl_model_geometry g;
    hl_error err;
    HL_EXPECT_STATUS(hl_layout_parse_config(json, size, &g, &err), HL_E_LIMIT, err);
    HL_EXPECT_OK(hl_layout_parse_config(json, size - 1, &g, &err), err);
    free(json);
    CU_ASSERT_EQUAL(hl_layout_load_config("/dev/zero", &g, &err), HL_E_LIMIT);
}

static void the_element_type_is_read_and_may_be_missing(void)
{
    static const struct {
        const char *field;
        uint32_t bytes;
    } types[] = {{"\"dtype\":\"bfloat16\"", 2},
                 {"\"torch_dtype\":\"float16\"", 2},
                 {"\"torch_dtype\":\"torch.float32\"", 4},
                 {"\"dtype\":\"float8_e4m3fn\"", 1},
                 {"\"dtype\":\"float8_e5m2\",\"torch_dtype\":null", 1},
                 {"\"dtype\":\"bfloat16\",\"torch_dtype\":\"bfloat16\"", 2},
                 {"\"dtype\":null", 0}};
    char json[512];
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        snprintf(json, sizeof json,
                 "{\"model_type\":\"m\",\"num_hidden_layers\":4,\"num_attention_heads\":6,\"head_dim\":8,%s}",
                 types[i].field);
        struct hl_model_geometry g = accept(json);
        CU_ASSERT_EQUAL(g.element_bytes, types[i].bytes);
        CU_ASSERT_EQUAL(g.kv_heads, 6); /* every head has its own K and V */
    }
    refuse_with("\"torch_dtype\":\"int7\"", HL_E_INVALID, "torch_dtype is \"int7\"");
    refuse_with("\"torch_dtype\":16", HL_E_INVALID, "torch_dtype is an integer");
    CU_ASSERT_EQUAL(accept("{" BASE ",\"v_head_dim\":8}").value_head_dim, 8);
}

static void a_multimodal_file_is_read_through_its_text_config(void)
{
    struct hl_model_geometry g = accept(
        "{\"model_type\":\"outer\",\"torch_dtype\":\"float32\",\"num_hidden_layers\":99,\"text_config\":{"
        "\"num_hidden_layers\":3,\"num_attention_heads\":4,\"head_dim\":8}}");
    CU_ASSERT_STRING_EQUAL(g.name, "outer");
    CU_ASSERT_EQUAL(g.layers, 3);
    CU_ASSERT_EQUAL(g.element_bytes, 4);
    g = accept("{\"model_type\":\"outer\",\"torch_dtype\":\"float32\",\"text_config\":{" BASE "}}");
    CU_ASSERT_STRING_EQUAL(g.name, "m");
    CU_ASSERT_EQUAL(g.element_bytes, 2);
    g = accept("{\"architectures\":[\"ForCausalLM\"],\"text_config\":null,\"num_hidden_layers\":4,"
               "\"num_attention_heads\":4,\"head_dim\":8}");
    CU_ASSERT_STRING_EQUAL(g.name, "ForCausalLM");
    refuse("{\"model_type\":\"m\",\"torch_dtype\":\"x\",\"text_config\":{\"num_hidden_layers\":3,"
           "\"num_attention_heads\":4,\"head_dim\":8}}",
           HL_E_INVALID, "torch_dtype");
}

static void a_name_is_short_and_printable(void)
{
    char json[512], name[200];
    memset(name, 'n', sizeof name);
    name[HL_NAME_BYTES - 1] = '\0';
    snprintf(json, sizeof json,
             "{\"model_type\":\"%s\",\"num_hidden_layers\":4,\"num_attention_heads\":6,\"head_dim\":8}",
             name);
    CU_ASSERT_STRING_EQUAL(accept(json).name, name);
    snprintf(json, sizeof json, "{\"model_type\":\"%sn\"}", name);
    refuse(json, HL_E_INVALID, "model_type has 128 bytes");
    refuse("{\"model_type\":\"a\\nb\"}", HL_E_INVALID, "model_type has a byte 0x0a");
    refuse("{\"model_type\":\"\\u00e9\"}", HL_E_INVALID, "model_type has a byte 0xc3");
    refuse("{\"model_type\":\"\"}", HL_E_INVALID, "model_type");
    refuse("{\"model_type\":4}", HL_E_INVALID, "model_type is an integer");
}

static void malformed_json_is_corrupt(void)
{
    static const char *const texts[] = {"",
                                        " ",
                                        "{",
                                        "nul",
                                        "7",
                                        "\"s\"",
                                        ("{" BASE "}x"),
                                        ("{" BASE "}{}"),
                                        "{\"a\":1,\"a\":1}",
                                        ("{" BASE ",\"head_dim\":16}"),
                                        "{\"a\":NaN}",
                                        "{\"a\":Infinity}",
                                        "{\"a\":\"\\u0000\"}",
                                        "{\"a\":\"\xff\"}",
                                        "\xef\xbb\xbf{}"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        refuse(texts[i], HL_E_CORRUPT, "not valid JSON");
    refuse("[1]", HL_E_INVALID, "a list");
    struct hl_model_geometry g;
    hl_error err;
    CU_ASSERT_EQUAL(hl_layout_parse_config(NULL, 3, &g, &err), HL_E_INVALID);
    CU_ASSERT_EQUAL(hl_layout_parse_config("{}\0", 3, &g, &err), HL_E_CORRUPT);
}

static void deep_nesting_is_bounded(void)
{
    enum { DEPTH = 500000 };
    char *json = malloc(DEPTH);
    CU_ASSERT_PTR_NOT_NULL_FATAL(json);
    struct hl_model_geometry g;
    hl_error err;
    memset(json, '[', DEPTH);
    HL_EXPECT_STATUS(hl_layout_parse_config(json, DEPTH, &g, &err), HL_E_CORRUPT, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "depth"));
    free(json);
}

static void a_file_that_cannot_be_read_is_named(void)
{
    struct hl_model_geometry g;
    hl_error err;
    CU_ASSERT_EQUAL(hl_layout_load_config("/nonexistent/config.json", &g, &err), HL_E_SYSTEM);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "/nonexistent/config.json"));
    CU_ASSERT_EQUAL(hl_layout_load_config("/", &g, &err), HL_E_SYSTEM); /* opens, but cannot be read */
    CU_ASSERT_EQUAL(hl_layout_load_config("/dev/null", &g, &err), HL_E_CORRUPT);
}

/* A pipe in packet mode hands out one written piece a read. */
static void a_file_that_comes_in_pieces_is_read_whole(void)
{
    static const char json[] = "{" BASE "}";
    int ends[2];
    char path[64];
    struct hl_model_geometry g;
    hl_error err;
    CU_ASSERT_EQUAL_FATAL(pipe2(ends, O_DIRECT | O_CLOEXEC), 0);
    CU_ASSERT_EQUAL(write(ends[1], json, 20), 20);
    CU_ASSERT_EQUAL(write(ends[1], json + 20, strlen(json) - 20), (ssize_t)strlen(json) - 20);
    close(ends[1]);
    snprintf(path, sizeof path, "/proc/self/fd/%d", ends[0]);
    HL_EXPECT_OK(hl_layout_load_config(path, &g, &err), err);
    CU_ASSERT_EQUAL(g.layers, 4);
    close(ends[0]);
}

/* The n-th allocation fails. */
static size_t allocations_left;

static void *fail_at_last(size_t size)
{
    if (allocations_left == 0)
        return NULL;
    allocations_left--;
    return malloc(size);
}

static void every_failed_allocation_of_the_parser_is_reported(void)
{
    static const char json[] = "{" BASE ",\"layer_types\":[\"full_attention\",\"full_attention\","
                               "\"full_attention\",\"full_attention\"]}";
    struct hl_model_geometry g;
    hl_status status = HL_E_NOMEM;
    unsigned out_of_memory = 0;
    json_set_alloc_funcs(fail_at_last, free);
    for (size_t n = 0; n < 1000 && status != HL_OK; n++) {
        hl_error err = {0};
        allocations_left = n;
        status = parse(json, &g, &err);
        CU_ASSERT_TRUE(status == HL_OK || err.text[0] != '\0');
        out_of_memory += status == HL_E_NOMEM;
        CU_ASSERT_TRUE(status == HL_OK || status == HL_E_NOMEM || status == HL_E_CORRUPT);
    }
    json_set_alloc_funcs(malloc, free);
    CU_ASSERT_EQUAL(status, HL_OK);
    CU_ASSERT_TRUE(out_of_memory > 5);
}

static size_t read_config(const char *path, char *bytes, size_t capacity)
{
    FILE *file = fopen(path, "rb");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    size_t size = fread(bytes, 1, capacity, file);
    fclose(file);
    CU_ASSERT_TRUE_FATAL(size > 100 && size < capacity);
    return size;
}

/* Parses an exact-sized heap copy, so that a sanitizer sees a read past it. True when it parsed. */
static bool survive(const char *bytes, size_t size)
{
    struct hl_model_geometry geometry, before;
    hl_error err = {0};
    char *copy = malloc(size + (size == 0));
    CU_ASSERT_PTR_NOT_NULL_FATAL(copy);
    memcpy(copy, bytes, size);
    memset(&geometry, 0x5a, sizeof geometry);
    before = geometry;
    hl_status status = hl_layout_parse_config(copy, size, &geometry, &err);
    free(copy);
    if (status == HL_OK)
        return geometry.layers >= 1 && geometry.layers <= HL_LAYOUT_LAYERS && geometry.kv_heads >= 1 &&
               geometry.head_dim >= 1;
    CU_ASSERT_TRUE(status == HL_E_CORRUPT || status == HL_E_INVALID || status == HL_E_UNSUPPORTED ||
                   status == HL_E_LIMIT);
    CU_ASSERT_TRUE(err.status == status && err.text[0] != '\0');
    CU_ASSERT_EQUAL(memcmp(&geometry, &before, sizeof geometry), 0);
    return false;
}

static void every_truncation_deletion_and_change_of_a_byte_is_survived(void)
{
    static const char *const paths[] = {CONFIGS "qwen3-8b.json", CONFIGS "llama-3.1-8b.json",
                                        CONFIGS "deepseek-mla.json", CONFIGS "gpt-oss-20b.json"};
    unsigned parsed = 0, refused = 0;
    hl_random random;
    hl_random_seed(&random, 17);
    for (size_t p = 0; p < sizeof paths / sizeof paths[0]; p++) {
        char bytes[4096], edited[4096];
        size_t size = read_config(paths[p], bytes, sizeof bytes), end = size;
        while (bytes[end - 1] != '}')
            end--;
        CU_ASSERT_TRUE(survive(bytes, size));
        for (size_t cut = 0; cut < size; cut++)
            CU_ASSERT_EQUAL(survive(bytes, cut), cut >= end);
        for (size_t at = 0; at < size; at++) {
            memcpy(edited, bytes, at);
            memcpy(edited + at, bytes + at + 1, size - at - 1);
            bool ok = survive(edited, size - 1);
            parsed += ok;
            refused += !ok;
            memcpy(edited, bytes, size);
            edited[at] = (char)hl_random_next(&random);
            survive(edited, size);
        }
    }
    CU_ASSERT_TRUE(parsed > 100 && refused > 100);
}

HL_TESTS(layout_config, HL_CASE(qwen3_has_an_explicit_head_dim_and_no_window),
         HL_CASE(llama_head_dim_follows_from_hidden_size),
         HL_CASE(deepseek_caches_one_latent_vector_whatever_its_heads),
         HL_CASE(gpt_oss_alternates_sliding_and_full), HL_CASE(each_way_to_say_which_layers_slide_is_read),
         HL_CASE(an_architecture_implies_the_pattern_its_files_leave_out),
         HL_CASE(sliding_layers_need_a_window), HL_CASE(unsupported_layers_are_named),
         HL_CASE(caches_of_another_shape_are_unsupported), HL_CASE(contradictions_are_refused_by_field),
         HL_CASE(what_is_no_integer_in_range_is_refused_by_field),
         HL_CASE(sizes_beyond_the_limits_are_refused), HL_CASE(the_element_type_is_read_and_may_be_missing),
         HL_CASE(a_multimodal_file_is_read_through_its_text_config), HL_CASE(a_name_is_short_and_printable),
         HL_CASE(malformed_json_is_corrupt), HL_CASE(deep_nesting_is_bounded),
         HL_CASE(a_file_that_cannot_be_read_is_named), HL_CASE(a_file_that_comes_in_pieces_is_read_whole),
         HL_CASE(every_failed_allocation_of_the_parser_is_reported),
         HL_CASE(every_truncation_deletion_and_change_of_a_byte_is_survived));
