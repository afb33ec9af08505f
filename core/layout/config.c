#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/layout/attention.h"
#include "core/layout/fields.h"
#include "core/layout/layout.h"

#define STAGE HL_LAYOUT_CONFIG_STAGE

/* model_type of the text model, else of the whole, else the first architecture. */
static hl_status read_name(const json_t *root, const json_t *text, char name[HL_NAME_BYTES], hl_error *err)
{
    const char *field = "model_type", *value;
    hl_status status = hl_layout_read_text(text, field, &value, err);
    if (status == HL_OK && value == NULL)
        status = hl_layout_read_text(root, field, &value, err);
    if (status == HL_OK && value == NULL) {
        const json_t *list;
        field = "architectures";
        status = hl_layout_read_list(root, field, &list, err);
        if (status == HL_OK)
            value = json_string_value(json_array_get(list, 0));
    }
    if (status != HL_OK)
        return status;
    if (value == NULL || value[0] == '\0')
        return HL_FAIL(err, HL_E_INVALID, STAGE,
                       "model_type is missing, and so is a first entry of architectures");
    size_t length = strlen(value);
    if (length >= HL_NAME_BYTES)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "%s has %zu bytes, at most %u are allowed", field, length,
                       HL_NAME_BYTES - 1);
    for (const char *c = value; *c != '\0'; c++)
        if (*c <= ' ' || *c > '~')
            return HL_FAIL(err, HL_E_INVALID, STAGE, "%s has a byte 0x%02x, only printable ASCII is allowed",
                           field, (unsigned char)*c);
    memcpy(name, value, length + 1);
    return HL_OK;
}

/* 0 for a type that is not known. */
static uint32_t dtype_bytes(const char *dtype)
{
    static const struct {
        const char *dtype;
        uint32_t bytes;
    } known[] = {{"bfloat16", 2},      {"float16", 2},         {"float32", 4},     {"float8_e4m3", 1},
                 {"float8_e4m3fn", 1}, {"float8_e4m3fnuz", 1}, {"float8_e5m2", 1}, {"float8_e5m2fnuz", 1}};
    if (strncmp(dtype, "torch.", 6) == 0)
        dtype += 6;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(dtype, known[i].dtype) == 0)
            return known[i].bytes;
    return 0;
}

/* *bytes is 0 when neither field is there. */
static hl_status read_dtype(const json_t *object, uint32_t *bytes, hl_error *err)
{
    static const char *const fields[] = {"dtype", "torch_dtype"};
    uint32_t found = 0;
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        const char *dtype;
        char quoted[HL_QUOTE_BYTES];
        hl_status status = hl_layout_read_text(object, fields[i], &dtype, err);
        if (status != HL_OK)
            return status;
        if (dtype == NULL)
            continue;
        uint32_t one = dtype_bytes(dtype);
        if (one == 0)
            return HL_FAIL(err, HL_E_INVALID, STAGE, "%s is \"%s\", which is not a known element type",
                           fields[i], hl_layout_quote(dtype, quoted));
        if (found != 0 && found != one)
            return HL_FAIL(err, HL_E_INVALID, STAGE, "torch_dtype and dtype contradict each other");
        found = one;
    }
    *bytes = found;
    return HL_OK;
}

/* MLA: one vector a token of the latent and the rope part; whatever num_key_value_heads says. */
static hl_status read_latent(const json_t *text, uint32_t rank, struct hl_model_geometry *geometry,
                             hl_error *err)
{
    uint32_t rope;
    hl_status status = hl_layout_require_integer(text, "qk_rope_head_dim", &rope, err);
    if (status != HL_OK)
        return status;
    geometry->mla = 1;
    geometry->kv_heads = 1;
    geometry->head_dim = rank + rope; /* both are below 2^31 */
    return HL_OK;
}

static hl_status read_head_dim(const json_t *text, uint32_t heads, uint32_t *head_dim, hl_error *err)
{
    bool present;
    uint32_t hidden;
    hl_status status = hl_layout_read_integer(text, "head_dim", 1, &present, head_dim, err);
    if (status != HL_OK || present)
        return status;
    status = hl_layout_require_integer(text, "hidden_size", &hidden, err);
    if (status != HL_OK)
        return status;
    if (hidden % heads != 0)
        return HL_FAIL(err, HL_E_INVALID, STAGE,
                       "hidden_size %u is not a multiple of num_attention_heads %u, and head_dim is missing",
                       hidden, heads);
    *head_dim = hidden / heads;
    return HL_OK;
}

static hl_status read_heads(const json_t *text, struct hl_model_geometry *geometry, hl_error *err)
{
    bool present;
    uint32_t heads;
    hl_status status = hl_layout_require_integer(text, "num_attention_heads", &heads, err);
    if (status == HL_OK)
        status = hl_layout_read_integer(text, "num_key_value_heads", 1, &present, &geometry->kv_heads, err);
    if (status == HL_OK && !present)
        geometry->kv_heads = heads; /* multi-head attention, from before the field existed */
    if (status == HL_OK && heads % geometry->kv_heads != 0)
        status =
            HL_FAIL(err, HL_E_INVALID, STAGE, "num_key_value_heads %u does not divide num_attention_heads %u",
                    geometry->kv_heads, heads);
    if (status == HL_OK)
        status = read_head_dim(text, heads, &geometry->head_dim, err);
    if (status == HL_OK)
        status = hl_layout_read_integer(text, "v_head_dim", 1, &present, &geometry->value_head_dim, err);
    if (status == HL_OK && !present)
        geometry->value_head_dim = geometry->head_dim;
    return status;
}

static hl_status read_vectors(const json_t *text, struct hl_model_geometry *geometry, hl_error *err)
{
    bool latent;
    uint32_t rank;
    hl_status status = hl_layout_read_integer(text, "kv_lora_rank", 1, &latent, &rank, err);
    if (status != HL_OK)
        return status;
    return latent ? read_latent(text, rank, geometry, err) : read_heads(text, geometry, err);
}

static hl_status read_layers(const json_t *text, uint32_t *layers, hl_error *err)
{
    hl_status status = hl_layout_require_integer(text, "num_hidden_layers", layers, err);
    if (status == HL_OK && *layers > HL_LAYOUT_LAYERS)
        status = HL_FAIL(err, HL_E_LIMIT, STAGE, "num_hidden_layers is %u, at most %u are allowed", *layers,
                         HL_LAYOUT_LAYERS);
    return status;
}

static hl_status read_geometry(const json_t *root, struct hl_model_geometry *geometry, hl_error *err)
{
    const json_t *text = hl_layout_find_field(root, "text_config");
    if (text == NULL)
        text = root;
    else if (!json_is_object(text))
        return HL_FAIL(err, HL_E_INVALID, STAGE, "text_config is %s and must be an object",
                       hl_layout_json_type(text));
    hl_status status = read_name(root, text, geometry->name, err);
    if (status == HL_OK)
        status = read_layers(text, &geometry->layers, err);
    if (status == HL_OK)
        status = hl_layout_read_attention(text, geometry, err);
    if (status == HL_OK)
        status = read_vectors(text, geometry, err);
    if (status == HL_OK)
        status = read_dtype(text, &geometry->element_bytes, err);
    if (status == HL_OK && geometry->element_bytes == 0 && text != root)
        status = read_dtype(root, &geometry->element_bytes, err);
    return status;
}

hl_status hl_layout_parse_config(const char *json, size_t size, struct hl_model_geometry *geometry,
                                 hl_error *err)
{
    if (json == NULL)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "json is NULL");
    if (size > HL_LAYOUT_CONFIG_BYTES)
        return HL_FAIL(err, HL_E_LIMIT, STAGE, "the file has %zu bytes, at most %llu are allowed", size,
                       HL_LAYOUT_CONFIG_BYTES);
    json_error_t parse = {0};
    json_t *root = json_loadb(json, size, JSON_REJECT_DUPLICATES, &parse);
    if (root == NULL) {
        char quoted[HL_QUOTE_BYTES];
        if (parse.text[0] == '\0') /* jansson explains every error but a failed allocation */
            return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory to parse %zu bytes of JSON", size);
        return HL_FAIL(err, HL_E_CORRUPT, STAGE, "not valid JSON at line %d, column %d: %s", parse.line,
                       parse.column, hl_layout_quote(parse.text, quoted));
    }
    struct hl_model_geometry parsed = {0};
    hl_status status;
    if (json_is_object(root))
        status = read_geometry(root, &parsed, err);
    else
        status = HL_FAIL(err, HL_E_INVALID, STAGE, "the file holds %s and must hold an object",
                         hl_layout_json_type(root));
    json_decref(root);
    if (status == HL_OK)
        *geometry = parsed;
    return status;
}

/* Reads at most `capacity` bytes; a file that fills them is refused by its size later. */
static hl_status read_up_to(int fd, const char *path, char *bytes, size_t capacity, size_t *size,
                            hl_error *err)
{
    size_t used = 0;
    while (used < capacity) {
        ssize_t got = read(fd, bytes + used, capacity - used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot read %s", path);
        if (got == 0)
            break;
        used += (size_t)got;
    }
    *size = used;
    return HL_OK;
}

hl_status hl_layout_load_config(const char *path, struct hl_model_geometry *geometry, hl_error *err)
{
    size_t capacity = HL_LAYOUT_CONFIG_BYTES + 1, size = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot open %s", path);
    hl_status status;
    char *bytes = malloc(capacity);
    if (bytes == NULL) {
        status = HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory to read %s", path);
        goto err_close;
    }
    status = read_up_to(fd, path, bytes, capacity, &size, err);
    if (status == HL_OK)
        status = hl_layout_parse_config(bytes, size, geometry, err);
    free(bytes);
err_close:
    close(fd);
    return status;
}
