/* Where the tensors of a new file go, and the header that says so. The header's keys are in the order of
 * their code points in either order of the data, as Python's sort_keys has them. */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/checked.h"
#include "core/base/error.h"
#include "core/weights/safetensors/header.h"

struct draft {
    const struct hl_safetensors_spec *specs;
    size_t count;
    const void **by_name; /* the specs */
    const void **by_place;
    const void **pairs; /* the metadata, by key */
    size_t pair_count;
    uint64_t *begins; /* of each spec in the data */
    uint64_t *sizes;
    uint64_t data_bytes;
    hl_error *err;
};

static int compare_names(const void *left, const void *right)
{
    const struct hl_safetensors_spec *a = left, *b = right;
    return strcmp(a->name, b->name);
}

static int compare_widths(const void *left, const void *right)
{
    const struct hl_safetensors_spec *a = left, *b = right;
    return (int)hl_safetensors_bits(b->dtype) - (int)hl_safetensors_bits(a->dtype);
}

static int compare_keys(const void *left, const void *right)
{
    const struct hl_safetensors_metadata *a = left, *b = right;
    return strcmp(a->key, b->key);
}

static hl_status refuse(const struct draft *draft, const char *what, const char *name, const char *why)
{
    char quoted[HL_JSON_QUOTE_BYTES];
    return HL_FAIL(draft->err, HL_E_INVALID, HL_SAFETENSORS_STAGE, "%s %s %s", what,
                   hl_json_quote(quoted, name, strlen(name)), why);
}

static hl_status check_spec(const struct draft *draft, const struct hl_safetensors_spec *spec)
{
    if (!spec->name || !spec->name[0])
        return HL_FAIL(draft->err, HL_E_INVALID, HL_SAFETENSORS_STAGE, "a tensor with an empty name");
    if (strcmp(spec->name, HL_SAFETENSORS_METADATA) == 0)
        return refuse(draft, "tensor", spec->name, "has the name of the metadata");
    if (!hl_json_valid_utf8(spec->name, strlen(spec->name)))
        return refuse(draft, "tensor", spec->name, "has a name that is not UTF-8");
    if ((size_t)spec->dtype >= HL_SAFETENSORS_DTYPE_COUNT)
        return refuse(draft, "tensor", spec->name, "has a dtype that does not exist");
    if (spec->rank > HL_WEIGHT_RANK)
        return HL_FAIL(draft->err, HL_E_LIMIT, HL_SAFETENSORS_STAGE,
                       "a tensor of %" PRIu32 " dimensions, of which %u are allowed", spec->rank,
                       HL_WEIGHT_RANK);
    return HL_OK;
}

static hl_status check_pair(const struct draft *draft, const struct hl_safetensors_metadata *pair)
{
    if (!hl_json_valid_utf8(pair->key, strlen(pair->key)))
        return refuse(draft, "metadata", pair->key, "has a key that is not UTF-8");
    if (!hl_json_valid_utf8(pair->value, strlen(pair->value)))
        return refuse(draft, "metadata", pair->key, "has a value that is not UTF-8");
    return HL_OK;
}

static hl_status check_inputs(const struct draft *draft, const struct hl_safetensors_metadata *metadata)
{
    hl_status status = HL_OK;
    if (draft->count > HL_WEIGHT_TENSORS)
        return HL_FAIL(draft->err, HL_E_LIMIT, HL_SAFETENSORS_STAGE, "%zu tensors, of which %u are allowed",
                       draft->count, HL_WEIGHT_TENSORS);
    for (size_t i = 0; status == HL_OK && i < draft->count; i++)
        status = check_spec(draft, &draft->specs[i]);
    for (size_t i = 0; status == HL_OK && i < draft->pair_count; i++)
        status = check_pair(draft, &metadata[i]);
    return status;
}

static void *room(size_t count, size_t size)
{
    return calloc(count ? count : 1, size);
}

static hl_status allocate(struct draft *draft)
{
    draft->by_name = room(draft->count, sizeof *draft->by_name);
    draft->by_place = room(draft->count, sizeof *draft->by_place);
    draft->pairs = room(draft->pair_count, sizeof *draft->pairs);
    draft->begins = room(draft->count, sizeof *draft->begins);
    draft->sizes = room(draft->count, sizeof *draft->sizes);
    if (!draft->by_name || !draft->by_place || !draft->pairs || !draft->begins || !draft->sizes)
        return HL_FAIL(draft->err, HL_E_NOMEM, HL_SAFETENSORS_STAGE, "no memory to lay out %zu tensors",
                       draft->count);
    return HL_OK;
}

static hl_status order_specs(struct draft *draft, enum hl_safetensors_order order)
{
    for (size_t i = 0; i < draft->count; i++)
        draft->by_name[i] = &draft->specs[i];
    hl_status status = hl_safetensors_sort(draft->by_name, draft->count, compare_names, draft->err);
    for (size_t i = 1; status == HL_OK && i < draft->count; i++) {
        const struct hl_safetensors_spec *spec = draft->by_name[i];
        if (compare_names(draft->by_name[i - 1], spec) == 0)
            status = refuse(draft, "tensor", spec->name, "is given twice");
    }
    if (status != HL_OK)
        return status;
    memcpy(draft->by_place, draft->by_name, draft->count * sizeof *draft->by_place);
    if (order == HL_SAFETENSORS_BY_NAME)
        return HL_OK;
    return hl_safetensors_sort(draft->by_place, draft->count, compare_widths, draft->err);
}

static hl_status order_pairs(struct draft *draft, const struct hl_safetensors_metadata *metadata)
{
    for (size_t i = 0; i < draft->pair_count; i++)
        draft->pairs[i] = &metadata[i];
    hl_status status = hl_safetensors_sort(draft->pairs, draft->pair_count, compare_keys, draft->err);
    for (size_t i = 1; status == HL_OK && i < draft->pair_count; i++) {
        const struct hl_safetensors_metadata *pair = draft->pairs[i];
        if (compare_keys(draft->pairs[i - 1], pair) == 0)
            status = refuse(draft, "metadata", pair->key, "is given twice");
    }
    return status;
}

static hl_status place(struct draft *draft)
{
    for (size_t i = 0; i < draft->count; i++) {
        const struct hl_safetensors_spec *spec = draft->by_place[i];
        size_t index = (size_t)(spec - draft->specs);
        hl_status status = hl_safetensors_tensor_bytes(spec->dtype, spec->shape, spec->rank,
                                                       &draft->sizes[index], draft->err);
        if (status != HL_OK)
            return status;
        draft->begins[index] = draft->data_bytes;
        if (!hl_add_u64(draft->data_bytes, draft->sizes[index], &draft->data_bytes))
            return HL_FAIL(draft->err, HL_E_OVERFLOW, HL_SAFETENSORS_STAGE,
                           "the data of %zu tensors have more bytes than 64 bits count", draft->count);
    }
    return HL_OK;
}

static void put_tensor(struct hl_text *text, const struct draft *draft,
                       const struct hl_safetensors_spec *spec)
{
    size_t index = (size_t)(spec - draft->specs);
    uint64_t begin = draft->begins[index];
    hl_json_put_string(text, spec->name, strlen(spec->name));
    hl_text_print(text, ":{\"data_offsets\":[%" PRIu64 ",%" PRIu64 "],\"dtype\":\"%s\",\"shape\":[", begin,
                  begin + draft->sizes[index], hl_safetensors_dtype_name(spec->dtype));
    for (uint32_t i = 0; i < spec->rank; i++)
        hl_text_print(text, i ? ",%" PRIu64 : "%" PRIu64, spec->shape[i]);
    hl_text_append(text, "]}", 2);
}

static void put_metadata(struct hl_text *text, const struct draft *draft)
{
    hl_json_put_string(text, HL_SAFETENSORS_METADATA, strlen(HL_SAFETENSORS_METADATA));
    for (size_t i = 0; i < draft->pair_count; i++) {
        const struct hl_safetensors_metadata *pair = draft->pairs[i];
        hl_text_append(text, i ? "," : ":{", i ? 1 : 2);
        hl_json_put_string(text, pair->key, strlen(pair->key));
        hl_text_append(text, ":", 1);
        hl_json_put_string(text, pair->value, strlen(pair->value));
    }
    hl_text_append(text, "}", 1);
}

static void put_object(struct hl_text *text, const struct draft *draft)
{
    bool metadata_due = draft->pair_count > 0;
    size_t written = 0;
    for (size_t i = 0; i < draft->count || metadata_due; written++) {
        const struct hl_safetensors_spec *spec = i < draft->count ? draft->by_name[i] : NULL;
        if (text->size > HL_SAFETENSORS_HEADER_BYTES)
            return; /* already too long: close_header() refuses it */
        hl_text_append(text, written ? "," : "{", 1);
        if (metadata_due && (!spec || strcmp(HL_SAFETENSORS_METADATA, spec->name) < 0)) {
            put_metadata(text, draft);
            metadata_due = false;
        } else {
            put_tensor(text, draft, spec);
            i++;
        }
    }
    hl_text_append(text, written ? "}" : "{}", written ? 1 : 2);
}

/* Pads the header with spaces so that the data start at a multiple of `alignment`, and writes its length. */
static hl_status close_header(struct hl_text *text, uint64_t alignment, hl_error *err)
{
    static const char spaces[HL_SAFETENSORS_DATA_ALIGN] = {[0 ... HL_SAFETENSORS_DATA_ALIGN - 1] = ' '};
    assert(alignment <= sizeof spaces);
    hl_text_append(text, spaces, hl_align_up(text->size, alignment) - text->size);
    hl_status status = hl_text_status(text, HL_SAFETENSORS_STAGE, err);
    if (status != HL_OK)
        return status;
    if (text->size - HL_SAFETENSORS_LENGTH_BYTES > HL_SAFETENSORS_HEADER_BYTES)
        return HL_FAIL(err, HL_E_LIMIT, HL_SAFETENSORS_STAGE, "a header of more than %llu bytes",
                       HL_SAFETENSORS_HEADER_BYTES);
    uint64_t length = text->size - HL_SAFETENSORS_LENGTH_BYTES;
    for (size_t i = 0; i < HL_SAFETENSORS_LENGTH_BYTES; i++)
        text->bytes[i] = (char)(length >> 8 * i & 0xff);
    return HL_OK;
}

static hl_status write_header(const struct draft *draft, enum hl_safetensors_order order,
                              struct hl_text *text)
{
    static const char no_length_yet[HL_SAFETENSORS_LENGTH_BYTES] = {0};
    hl_text_append(text, no_length_yet, sizeof no_length_yet);
    put_object(text, draft);
    return close_header(text, order == HL_SAFETENSORS_ALIGNED ? HL_SAFETENSORS_DATA_ALIGN : 8, draft->err);
}

static void free_draft(struct draft *draft)
{
    free(draft->by_name);
    free(draft->by_place);
    free(draft->pairs);
    free(draft->begins);
    free(draft->sizes);
}

hl_status hl_safetensors_lay_out(const struct hl_safetensors_spec *specs, size_t count,
                                 const struct hl_safetensors_metadata *metadata, size_t metadata_count,
                                 enum hl_safetensors_order order, struct hl_safetensors_layout *layout,
                                 hl_error *err)
{
    struct draft draft = {.specs = specs, .count = count, .pair_count = metadata_count, .err = err};
    struct hl_text text = {0};
    uint64_t file_bytes = 0;
    hl_status status = check_inputs(&draft, metadata);
    if (status == HL_OK)
        status = allocate(&draft);
    if (status == HL_OK)
        status = order_specs(&draft, order);
    if (status == HL_OK)
        status = order_pairs(&draft, metadata);
    if (status == HL_OK)
        status = place(&draft);
    if (status == HL_OK)
        status = write_header(&draft, order, &text);
    if (status == HL_OK && !hl_add_u64(text.size, draft.data_bytes, &file_bytes))
        status = HL_FAIL(err, HL_E_OVERFLOW, HL_SAFETENSORS_STAGE,
                         "header and data have more bytes than 64 bits count");
    if (status != HL_OK)
        goto err_free;
    for (size_t i = 0; i < count; i++)
        draft.begins[i] += text.size;
    *layout = (struct hl_safetensors_layout){.header = text.bytes,
                                             .header_bytes = text.size,
                                             .offsets = draft.begins,
                                             .sizes = draft.sizes,
                                             .file_bytes = file_bytes};
    draft.begins = draft.sizes = NULL; /* the layout's now */
    free_draft(&draft);
    return HL_OK;
err_free:
    hl_text_free(&text);
    free_draft(&draft);
    return status;
}

void hl_safetensors_layout_free(struct hl_safetensors_layout *layout)
{
    free(layout->header);
    free(layout->offsets);
    free(layout->sizes);
    *layout = (struct hl_safetensors_layout){0};
}
