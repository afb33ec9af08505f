/* Making a manifest: its canonical text is written from the parts and then read like any other, so that there
 * is one set of rules. What the text could not express is refused before. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/error.h"
#include "core/weights/document/manifest_put.h"

#define STAGE HL_MANIFEST_STAGE

static hl_status check_text(const char *string, const char *list, size_t index, const char *key,
                            hl_error *err)
{
    if (!string)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "%s[%zu].%s is NULL", list, index, key);
    if (!hl_json_valid_utf8(string, strlen(string)))
        return HL_FAIL(err, HL_E_INVALID, STAGE, "%s[%zu].%s is not UTF-8", list, index, key);
    return HL_OK;
}

static hl_status check_digest(const char *sha256, const char *list, size_t index, hl_error *err)
{
    if (strnlen(sha256, HL_SHA256_HEX_BYTES) != HL_SHA256_HEX_BYTES - 1 ||
        strspn(sha256, "0123456789abcdef") != HL_SHA256_HEX_BYTES - 1)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "%s[%zu].sha256 is not 64 lower-case hexadecimal digits",
                       list, index);
    return HL_OK;
}

static hl_status check_tensor(const struct hl_manifest_tensor *tensor, size_t index, hl_error *err)
{
    const char *const texts[] = {tensor->name, tensor->role, tensor->file_name, tensor->storage_key,
                                 tensor->dtype};
    static const char *const keys[] = {"name", "role", "file_name", "storage_key", "dtype"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        hl_status status = check_text(texts[i], "tensors", index, keys[i], err);
        if (status != HL_OK)
            return status;
    }
    if (tensor->kind != HL_WEIGHT_PARAMETER && tensor->kind != HL_WEIGHT_BUFFER)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "tensors[%zu].kind is %d", index, (int)tensor->kind);
    if (tensor->rank > HL_WEIGHT_RANK)
        return HL_FAIL(err, HL_E_LIMIT, STAGE, "tensors[%zu] has %u dimensions, of which %u are allowed",
                       index, tensor->rank, HL_WEIGHT_RANK);
    if (tensor->rank > 0 && (!tensor->shape || !tensor->stride))
        return HL_FAIL(err, HL_E_INVALID, STAGE, "tensors[%zu].%s is NULL", index,
                       tensor->shape ? "stride" : "shape");
    return check_digest(tensor->sha256, "tensors", index, err);
}

static hl_status check_parts(const struct hl_manifest_parts *parts, hl_error *err)
{
    hl_status status = HL_OK;
    if (!parts->identity)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "identity is NULL");
    if (parts->tensor_count == 0 || parts->file_count == 0)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "%s is empty", parts->file_count ? "tensors" : "files");
    if (parts->tensor_count > HL_WEIGHT_TENSORS || parts->file_count > HL_WEIGHT_FILES)
        return HL_FAIL(err, HL_E_LIMIT, STAGE, "%zu tensors in %zu files, of which %u in %u are allowed",
                       parts->tensor_count, parts->file_count, HL_WEIGHT_TENSORS, HL_WEIGHT_FILES);
    for (size_t i = 0; status == HL_OK && i < parts->tensor_count; i++)
        status = check_tensor(&parts->tensors[i], i, err);
    for (size_t i = 0; status == HL_OK && i < parts->file_count; i++) {
        status = check_text(parts->files[i].file_name, "files", i, "file_name", err);
        if (status == HL_OK)
            status = check_digest(parts->files[i].sha256, "files", i, err);
    }
    return status;
}

static int compare_tensors(const void *left, const void *right)
{
    return strcmp(((const struct hl_manifest_tensor *)left)->name,
                  ((const struct hl_manifest_tensor *)right)->name);
}

static int compare_files(const void *left, const void *right)
{
    return strcmp(((const struct hl_manifest_file *)left)->file_name,
                  ((const struct hl_manifest_file *)right)->file_name);
}

/* A sorted copy of an array, which is not empty. */
static void *sorted_copy(const void *array, size_t count, size_t size,
                         int (*compare)(const void *, const void *))
{
    void *copy = malloc(count * size);
    if (copy) {
        memcpy(copy, array, count * size);
        qsort(copy, count, size, compare);
    }
    return copy;
}

/* format_metadata is any JSON; its canonical encoding goes into the text. */
static hl_status put_metadata(struct hl_text *text, const char *json, hl_error *err)
{
    /* One level below the manifest's own. */
    static const struct hl_json_rules rules = {
        .max_bytes = HL_WEIGHT_DOCUMENT_BYTES, .max_depth = 126, .stage = STAGE};
    hl_json *document = NULL;
    hl_error inner = {0};
    if (!json)
        json = "{}";
    hl_status status = hl_json_parse(json, strlen(json), &rules, &document, &inner);
    if (status != HL_OK)
        return HL_FAIL(err, status == HL_E_CORRUPT ? HL_E_INVALID : status, STAGE, "format_metadata: %s",
                       inner.text);
    hl_json_put_canonical(text, hl_json_root(document));
    hl_json_free(document);
    return HL_OK;
}

static void put_file(struct hl_text *text, const struct hl_manifest_file *file)
{
    hl_text_print(text, "{\"file_name\":");
    hl_manifest_put_text(text, file->file_name);
    hl_text_print(text, ",\"sha256\":\"%s\",\"size\":%" PRIu64 "}", file->sha256, file->bytes);
}

static void put_tensor(struct hl_text *text, const struct hl_manifest_tensor *tensor)
{
    hl_text_print(text, "{\"dtype\":");
    hl_manifest_put_text(text, tensor->dtype);
    hl_text_print(text, ",\"file_name\":");
    hl_manifest_put_text(text, tensor->file_name);
    hl_text_print(text, ",\"kind\":\"%s\",\"name\":", hl_manifest_kind_name(tensor->kind));
    hl_manifest_put_text(text, tensor->name);
    hl_text_print(text, ",\"nbytes\":%" PRIu64 ",\"role\":", tensor->bytes);
    hl_manifest_put_text(text, tensor->role);
    hl_text_print(text, ",\"sha256\":\"%s\",\"shape\":", tensor->sha256);
    hl_manifest_put_sizes(text, tensor->shape, tensor->rank);
    hl_text_print(text, ",\"storage_key\":");
    hl_manifest_put_text(text, tensor->storage_key);
    hl_text_print(text, ",\"stride\":");
    hl_manifest_put_sizes(text, tensor->stride, tensor->rank);
    hl_text_append(text, "}", 1);
}

static hl_status put_manifest(struct hl_text *text, const struct hl_manifest_parts *parts, hl_error *err)
{
    const hl_weight_identity *identity = parts->identity;
    char content[HL_SHA256_HEX_BYTES];
    hl_status status = hl_manifest_content_sha256(parts->tensors, parts->tensor_count, content, err);
    if (status != HL_OK)
        return status;
    hl_text_print(text, "{\"artifact_content_sha256\":\"%s\",\"artifact_key\":\"%s\",\"files\":[", content,
                  identity->key);
    for (size_t i = 0; i < parts->file_count; i++) {
        hl_text_append(text, ",", i > 0);
        put_file(text, &parts->files[i]);
    }
    hl_text_print(text, "],\"format_metadata\":");
    status = put_metadata(text, parts->format_metadata, err);
    if (status != HL_OK)
        return status;
    hl_text_print(text, ",\"identity\":");
    hl_text_append(text, identity->canonical, identity->canonical_bytes);
    hl_text_print(text, ",\"producer_schema\":");
    hl_manifest_put_text(text, identity->manifest_schema);
    hl_text_print(text, ",\"restorer_schema\":");
    hl_manifest_put_text(text, identity->restorer_schema);
    hl_text_print(text, ",\"schema_version\":1,\"tensors\":[");
    for (size_t i = 0; i < parts->tensor_count; i++) {
        hl_text_append(text, ",", i > 0);
        put_tensor(text, &parts->tensors[i]);
    }
    hl_text_append(text, "]}", 2);
    return hl_text_status(text, STAGE, err);
}

hl_status hl_manifest_build(const struct hl_manifest_parts *parts, hl_manifest **manifest, hl_error *err)
{
    hl_status status = check_parts(parts, err);
    if (status != HL_OK)
        return status;
    struct hl_text text = {0};
    struct hl_manifest_tensor *tensors =
        sorted_copy(parts->tensors, parts->tensor_count, sizeof *tensors, compare_tensors);
    struct hl_manifest_file *files =
        sorted_copy(parts->files, parts->file_count, sizeof *files, compare_files);
    if (!tensors || !files) {
        status = HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory to order %zu tensors", parts->tensor_count);
        goto free_copies;
    }
    struct hl_manifest_parts sorted = *parts;
    sorted.tensors = tensors;
    sorted.files = files;
    status = put_manifest(&text, &sorted, err);
    if (status == HL_OK) {
        status = hl_manifest_read(text.bytes, text.size, HL_E_INVALID, manifest, err);
        text = (struct hl_text){0}; /* the manifest's, or gone */
    }
free_copies:
    hl_text_free(&text);
    free(files);
    free(tensors);
    return status;
}
