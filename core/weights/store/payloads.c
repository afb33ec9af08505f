/* An artifact's payload files held against its manifest: inodes first, headers later (validate.c). */
#include <stdlib.h>
#include <string.h>

#include "core/base/checked.h"
#include "core/base/error.h"
#include "core/weights/safetensors/safetensors.h"
#include "core/weights/store/artifact.h"

#define STAGE "weights.payloads"

/* --- inodes --- */

static hl_status open_payload(struct hl_artifact *artifact, size_t index, bool trusted, hl_error *err)
{
    const struct hl_manifest_file *entry = &artifact->manifest->files[index];
    struct hl_artifact_file *file = &artifact->files[index];
    hl_status status = hl_storage_open_file(artifact->folder, entry->file_name, &file->st, &file->fd, err);
    if (status != HL_OK)
        return status;
    if (file->st.st_size < 0 || (uint64_t)file->st.st_size != entry->bytes)
        return HL_FAIL(err, HL_E_CHECKSUM, STAGE, "%.128s has %lld bytes, not %llu", entry->file_name,
                       (long long)file->st.st_size, (unsigned long long)entry->bytes);
    return trusted ? hl_storage_check_file(&file->st, entry->file_name, err) : HL_OK;
}

hl_status hl_artifact_open_payloads(struct hl_artifact *artifact, bool trusted, hl_error *err)
{
    const hl_manifest *manifest = artifact->manifest;
    artifact->files = calloc(manifest->file_count, sizeof *artifact->files);
    artifact->tensor_begin = calloc(manifest->tensor_count, sizeof *artifact->tensor_begin);
    if (artifact->files)
        for (size_t i = 0; i < manifest->file_count; i++)
            artifact->files[i].fd = -1;
    if (!artifact->files || !artifact->tensor_begin)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory to open %zu files", manifest->file_count);
    hl_status status = HL_OK;
    for (size_t i = 0; i < manifest->file_count && status == HL_OK; i++)
        status = open_payload(artifact, i, trusted, err);
    return status;
}

/* --- headers --- */

/* The manifest's tensors of one file, sorted by storage key: what its header must list, and no more. */
struct expected {
    const hl_manifest *manifest;
    size_t *tensors;
    size_t count;
    size_t hint; /* where the next one is looked for first: headers are mostly in the order of names */
};

static int compare_keys(const void *a, const void *b, void *context)
{
    const struct hl_manifest_tensor *tensors = context;
    return strcmp(tensors[*(const size_t *)a].storage_key, tensors[*(const size_t *)b].storage_key);
}

static void sort_expected(struct expected *expected)
{
    struct hl_manifest_tensor *tensors = expected->manifest->tensors;
    for (size_t i = 1; i < expected->count; i++)
        if (compare_keys(&expected->tensors[i - 1], &expected->tensors[i], tensors) > 0) {
            qsort_r(expected->tensors, expected->count, sizeof *expected->tensors, compare_keys, tensors);
            return;
        }
}

static bool find_expected(struct expected *expected, const char *key, size_t *tensor)
{
    const struct hl_manifest_tensor *tensors = expected->manifest->tensors;
    size_t low = 0, high = expected->count, at = expected->hint;
    while (low < high) {
        if (at < low || at >= high)
            at = low + (high - low) / 2;
        const int order = strcmp(key, tensors[expected->tensors[at]].storage_key);
        if (order == 0) {
            expected->hint = at + 1;
            *tensor = expected->tensors[at];
            return true;
        }
        if (order < 0)
            high = at;
        else
            low = at + 1;
        at = low + (high - low) / 2;
    }
    return false;
}

/* Payloads are contiguous, row-major; a dimension of none counts as one in strides, as frameworks have it. */
static bool strides_are_plain(const struct hl_manifest_tensor *tensor)
{
    uint64_t step = 1;
    for (uint32_t i = tensor->rank; i-- > 0;) {
        if (tensor->stride[i] != step)
            return false;
        if (i > 0 && !hl_mul_u64(step, tensor->shape[i] ? tensor->shape[i] : 1, &step))
            return false;
    }
    return true;
}

static hl_status check_tensor(const struct hl_manifest_tensor *tensor,
                              const struct hl_safetensors_tensor *found, hl_error *err)
{
    enum hl_safetensors_dtype dtype;
    if (!hl_safetensors_framework_parse(tensor->dtype, &dtype) || dtype != found->dtype)
        return HL_FAIL(err, HL_E_CORRUPT, STAGE, "tensor %.96s is %s in its file, %.64s in the manifest",
                       tensor->name, hl_safetensors_dtype_name(found->dtype), tensor->dtype);
    if (tensor->rank != found->rank ||
        (tensor->rank > 0 && memcmp(tensor->shape, found->shape, tensor->rank * sizeof *tensor->shape) != 0))
        return HL_FAIL(err, HL_E_CORRUPT, STAGE, "tensor %.96s has another shape in its file", tensor->name);
    if (!strides_are_plain(tensor))
        return HL_FAIL(err, HL_E_CORRUPT, STAGE, "tensor %.96s has strides of no contiguous tensor",
                       tensor->name);
    if (tensor->bytes != found->end - found->begin)
        return HL_FAIL(err, HL_E_CORRUPT, STAGE, "tensor %.96s has %llu bytes in its file, not %llu",
                       tensor->name, (unsigned long long)(found->end - found->begin),
                       (unsigned long long)tensor->bytes);
    return HL_OK;
}

static hl_status check_header(struct hl_artifact *artifact, size_t index, struct expected *expected,
                              const hl_safetensors *header, hl_error *err)
{
    const char *file_name = artifact->manifest->files[index].file_name;
    /* Names are unique in a strict header: with the same count, each found once, the sets are equal. */
    if (header->tensor_count != expected->count)
        return HL_FAIL(err, HL_E_CORRUPT, STAGE, "%.128s holds %zu tensors, not %zu", file_name,
                       header->tensor_count, expected->count);
    for (size_t i = 0; i < header->tensor_count; i++) {
        const struct hl_safetensors_tensor *found = &header->tensors[i];
        size_t tensor;
        if (!find_expected(expected, found->name, &tensor))
            return HL_FAIL(err, HL_E_CORRUPT, STAGE, "%.96s holds the tensor %.96s, which is not declared",
                           file_name, found->name);
        hl_status status = check_tensor(&artifact->manifest->tensors[tensor], found, err);
        if (status != HL_OK)
            return status;
        artifact->tensor_begin[tensor] = header->data_offset + found->begin;
    }
    artifact->files[index].data_offset = header->data_offset;
    return HL_OK;
}

static hl_status read_header(struct hl_artifact *artifact, size_t index, struct expected *expected,
                             hl_error *err)
{
    hl_safetensors *header = NULL;
    hl_status status = hl_safetensors_read(artifact->files[index].fd, artifact->manifest->files[index].bytes,
                                           HL_SAFETENSORS_STRICT, &header, err);
    if (status != HL_OK)
        return status;
    sort_expected(expected);
    status = check_header(artifact, index, expected, header, err);
    hl_safetensors_free(header);
    return status;
}

/* Gives every file its tensors, in the order of their names. */
static void sort_by_file(const hl_manifest *manifest, size_t *indices, struct expected *expected)
{
    for (size_t i = 0; i < manifest->tensor_count; i++)
        expected[manifest->tensors[i].file].count++;
    for (size_t i = 0; i < manifest->file_count; i++) {
        const size_t count = expected[i].count;
        expected[i] = (struct expected){.manifest = manifest, .tensors = indices};
        indices += count;
    }
    for (size_t i = 0; i < manifest->tensor_count; i++) {
        struct expected *own = &expected[manifest->tensors[i].file];
        own->tensors[own->count++] = i;
    }
}

hl_status hl_artifact_check_headers(struct hl_artifact *artifact, hl_error *err)
{
    const hl_manifest *manifest = artifact->manifest;
    size_t *indices = calloc(manifest->tensor_count, sizeof *indices);
    struct expected *expected = calloc(manifest->file_count, sizeof *expected);
    hl_status status = HL_OK;
    if (!indices || !expected) {
        status = HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for %zu tensors", manifest->tensor_count);
        goto out;
    }
    sort_by_file(manifest, indices, expected);
    for (size_t i = 0; i < manifest->file_count && status == HL_OK; i++)
        status = read_header(artifact, i, &expected[i], err);
out:
    free(expected);
    free(indices);
    return status;
}
