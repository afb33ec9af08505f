/* What a producer declares before it writes: checked whole and copied, so that the declaration in memory, the
 * header in the file and the entry in the manifest are one. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/checked.h"
#include "core/base/error.h"
#include "core/weights/store/writer.h"

#define STAGE "weights.writer"

static const char suffix[] = ".safetensors";

static hl_status check_file_name(const char *name, hl_error *err)
{
    if (!name || !hl_manifest_file_name_is_safe(name))
        return HL_FAIL(err, HL_E_INVALID, STAGE, "file_name \"%.64s\" is not one safe name",
                       name ? name : "(null)");
    const size_t length = strlen(name);
    if (length <= strlen(suffix) || strcmp(name + length - strlen(suffix), suffix) != 0)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "file_name \"%.64s\" does not end in %s", name, suffix);
    return HL_OK;
}

static hl_status check_spec(const hl_weight_tensor_spec *spec, size_t index, hl_error *err)
{
    enum hl_safetensors_dtype dtype;
    if (!spec->name || !spec->name[0])
        return HL_FAIL(err, HL_E_INVALID, STAGE, "tensor %zu has no name", index);
    if (spec->kind != HL_WEIGHT_PARAMETER && spec->kind != HL_WEIGHT_BUFFER)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "tensor %.64s: kind %d is none", spec->name,
                       (int)spec->kind);
    if (!spec->role || !spec->role[0] || !hl_json_valid_utf8(spec->role, strlen(spec->role)))
        return HL_FAIL(err, HL_E_INVALID, STAGE, "tensor %.64s: role is empty or not UTF-8", spec->name);
    if (!spec->dtype || !hl_safetensors_framework_parse(spec->dtype, &dtype))
        return HL_FAIL(err, HL_E_INVALID, STAGE, "tensor %.64s: dtype \"%.64s\" is not known", spec->name,
                       spec->dtype ? spec->dtype : "(null)");
    if (spec->rank > HL_WEIGHT_RANK)
        return HL_FAIL(err, HL_E_LIMIT, STAGE, "tensor %.64s: rank %" PRIu32 " exceeds %u", spec->name,
                       spec->rank, HL_WEIGHT_RANK);
    if (spec->rank && !spec->shape)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "tensor %.64s has no shape", spec->name);
    return HL_OK;
}

static hl_status lay_out(hl_weight_writer *writer, const hl_weight_tensor_spec *specs, size_t count,
                         struct hl_safetensors_layout *layout, hl_error *err)
{
    static const struct hl_safetensors_metadata metadata[] = {{"format", "pt"}, {"host_weight_runtime", "1"}};
    struct hl_safetensors_spec *files = calloc(count, sizeof *files);
    if (!files)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "a declaration of %zu tensors", count);
    for (size_t i = 0; i < count; i++) {
        files[i] = (struct hl_safetensors_spec){
            .name = specs[i].name, .rank = specs[i].rank, .shape = specs[i].shape};
        hl_safetensors_framework_parse(specs[i].dtype, &files[i].dtype);
    }
    const hl_status status = hl_safetensors_lay_out(
        files, count, metadata, sizeof metadata / sizeof metadata[0],
        writer->store->aligned_layout ? HL_SAFETENSORS_ALIGNED : HL_SAFETENSORS_BY_NAME, layout, err);
    free(files);
    return status;
}

/* Strides of a contiguous row-major tensor, in elements; a dimension of none counts as one, as frameworks
 * print them. */
static bool fill_strides(uint32_t rank, const uint64_t *shape, uint64_t *stride)
{
    uint64_t step = 1;
    for (uint32_t i = rank; i-- > 0;) {
        stride[i] = step;
        if (i > 0 && !hl_mul_u64(step, shape[i] ? shape[i] : 1, &step))
            return false;
    }
    return true;
}

static char *copy_text(char **at, const char *text)
{
    const size_t size = strlen(text) + 1;
    char *const copy = memcpy(*at, text, size);
    *at += size;
    return copy;
}

static hl_status copy_specs(hl_weight_payload *payload, const hl_weight_tensor_spec *specs,
                            const struct hl_safetensors_layout *layout, hl_error *err)
{
    char *text = payload->strings;
    uint64_t *number = payload->numbers;
    for (size_t i = 0; i < payload->tensor_count; i++) {
        const uint32_t rank = specs[i].rank;
        struct hl_payload_tensor *const tensor = &payload->tensors[i];
        enum hl_safetensors_dtype dtype = HL_SAFETENSORS_U8;
        hl_safetensors_framework_parse(specs[i].dtype, &dtype);
        uint64_t *const shape = number, *const stride = number + rank;
        number += 2 * (size_t)rank;
        if (rank)
            memcpy(shape, specs[i].shape, rank * sizeof *shape);
        if (!fill_strides(rank, shape, stride))
            return HL_FAIL(err, HL_E_OVERFLOW, STAGE, "tensor %.64s: its strides do not fit 64 bits",
                           specs[i].name);
        const char *const name = copy_text(&text, specs[i].name);
        tensor->entry = (struct hl_manifest_tensor){
            .name = name,
            .kind = specs[i].kind,
            .role = copy_text(&text, specs[i].role),
            .file_name = payload->file.file_name,
            .storage_key = name,
            .dtype = hl_safetensors_framework_name(dtype),
            .rank = rank,
            .shape = shape,
            .stride = stride,
            .bytes = layout->sizes[i],
        };
        tensor->offset = layout->offsets[i];
    }
    return HL_OK;
}

static hl_status allocate(const char *file_name, const hl_weight_tensor_spec *specs, size_t count,
                          hl_weight_payload **payload, hl_error *err)
{
    size_t text = strlen(file_name) + 1, numbers = 1;
    for (size_t i = 0; i < count; i++) {
        text += strlen(specs[i].name) + strlen(specs[i].role) + 2;
        numbers += 2 * (size_t)specs[i].rank;
    }
    hl_weight_payload *made = calloc(1, sizeof *made);
    if (!made)
        goto err_nomem;
    made->fd = -1;
    made->tensors = calloc(count, sizeof *made->tensors);
    made->strings = malloc(text);
    made->numbers = malloc(numbers * sizeof *made->numbers);
    if (!made->tensors || !made->strings || !made->numbers)
        goto err_free;
    made->tensor_count = count;
    char *const name = made->strings + text - (strlen(file_name) + 1);
    memcpy(name, file_name, strlen(file_name) + 1);
    made->file.file_name = name;
    *payload = made;
    return HL_OK;

err_free:
    hl_payload_free(made);
err_nomem:
    return HL_FAIL(err, HL_E_NOMEM, STAGE, "a declaration of %zu tensors", count);
}

hl_status hl_payload_declare(hl_weight_writer *writer, const char *file_name,
                             const hl_weight_tensor_spec *specs, size_t count,
                             struct hl_safetensors_layout *layout, hl_weight_payload **payload, hl_error *err)
{
    hl_status status = check_file_name(file_name, err);
    if (status)
        return status;
    if (!specs || count == 0)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "%.64s declares no tensor", file_name);
    if (count > HL_WEIGHT_TENSORS)
        return HL_FAIL(err, HL_E_LIMIT, STAGE, "%.64s declares %zu tensors, more than %u", file_name, count,
                       HL_WEIGHT_TENSORS);
    for (size_t i = 0; i < count; i++)
        if ((status = check_spec(&specs[i], i, err)))
            return status;
    if ((status = lay_out(writer, specs, count, layout, err)))
        return status;
    hl_weight_payload *made = NULL;
    if ((status = allocate(file_name, specs, count, &made, err)))
        goto err_layout;
    if ((status = copy_specs(made, specs, layout, err)))
        goto err_payload;
    made->writer = writer;
    made->file.bytes = layout->file_bytes;
    *payload = made;
    return HL_OK;

err_payload:
    hl_payload_free(made);
err_layout:
    hl_safetensors_layout_free(layout);
    return status;
}
