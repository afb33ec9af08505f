/* The digest of an artifact's content. */
#include <inttypes.h>
#include <string.h>

#include "core/base/error.h"
#include "core/weights/document/manifest_put.h"

const char *hl_manifest_kind_name(hl_weight_tensor_kind kind)
{
    return kind == HL_WEIGHT_PARAMETER ? "parameter" : "buffer";
}

void hl_manifest_put_text(struct hl_text *text, const char *string)
{
    hl_json_put_string(text, string, strlen(string));
}

void hl_manifest_put_sizes(struct hl_text *text, const uint64_t *sizes, uint32_t count)
{
    hl_text_append(text, "[", 1);
    for (uint32_t i = 0; i < count; i++)
        hl_text_print(text, i ? ",%" PRIu64 : "%" PRIu64, sizes[i]);
    hl_text_append(text, "]", 1);
}

static void put_meaning(struct hl_text *text, const struct hl_manifest_tensor *tensor)
{
    hl_text_print(text, "{\"dtype\":");
    hl_manifest_put_text(text, tensor->dtype);
    hl_text_print(text, ",\"kind\":\"%s\",\"name\":", hl_manifest_kind_name(tensor->kind));
    hl_manifest_put_text(text, tensor->name);
    hl_text_print(text, ",\"nbytes\":%" PRIu64 ",\"role\":", tensor->bytes);
    hl_manifest_put_text(text, tensor->role);
    hl_text_print(text, ",\"sha256\":\"%s\",\"shape\":", tensor->sha256);
    hl_manifest_put_sizes(text, tensor->shape, tensor->rank);
    hl_text_print(text, ",\"stride\":");
    hl_manifest_put_sizes(text, tensor->stride, tensor->rank);
    hl_text_append(text, "}", 1);
}

hl_status hl_manifest_content_sha256(const struct hl_manifest_tensor *tensors, size_t count,
                                     char hex[HL_SHA256_HEX_BYTES], hl_error *err)
{
    struct hl_text text = {0};
    for (size_t i = 0; i < count; i++)
        put_meaning(&text, &tensors[i]);
    hl_status status = hl_text_status(&text, HL_MANIFEST_STAGE, err);
    if (status == HL_OK)
        status = hl_sha256(text.bytes, text.size, hex, err);
    hl_text_free(&text);
    return status;
}
