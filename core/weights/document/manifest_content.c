/* The digest of an artifact's content. */
#include <assert.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdio.h>
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

/* Gathers a text in pieces for its digest, without holding it whole: memory that is touched for the first
 * time costs more than hashing as much. */
struct digest {
    EVP_MD_CTX *context;
    size_t filled;
    char gathered[8192];
};

static bool add(struct digest *digest, const char *bytes, size_t size)
{
    if (size > sizeof digest->gathered - digest->filled) {
        if (!EVP_DigestUpdate(digest->context, digest->gathered, digest->filled))
            return false;
        digest->filled = 0;
    }
    if (size > sizeof digest->gathered)
        return EVP_DigestUpdate(digest->context, bytes, size);
    memcpy(digest->gathered + digest->filled, bytes, size);
    digest->filled += size;
    return true;
}

static bool end(struct digest *digest, char hex[HL_SHA256_HEX_BYTES])
{
    unsigned char bytes[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    if (!EVP_DigestUpdate(digest->context, digest->gathered, digest->filled) ||
        !EVP_DigestFinal_ex(digest->context, bytes, &size))
        return false;
    assert(2 * size == HL_SHA256_HEX_BYTES - 1);
    for (unsigned i = 0; i < size; i++)
        snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
    return true;
}

/* Adds an entry's text without file_name and storage_key. */
static bool add_meaning(struct digest *digest, const char *canonical, const hl_json_node *tensor)
{
    enum { FILE_NAME = 1, STORAGE_KEY = 8 }; /* places in the order of the keys; neither is the last */
    size_t begin = hl_json_begin(tensor), place = 0;
    bool good = true;
    for (const hl_json_node *member = hl_json_first(tensor); member; member = hl_json_next(member), place++) {
        if (place != FILE_NAME && place != STORAGE_KEY)
            continue;
        good = good && add(digest, canonical + begin, hl_json_key_begin(member) - begin);
        begin = hl_json_end(member) + 1; /* behind the comma */
    }
    return good && add(digest, canonical + begin, hl_json_end(tensor) - begin);
}

hl_status hl_manifest_text_content_sha256(const char *canonical, const hl_json_node *tensors,
                                          char hex[HL_SHA256_HEX_BYTES], hl_error *err)
{
    struct digest digest = {.context = EVP_MD_CTX_new()};
    bool good = digest.context && EVP_DigestInit_ex(digest.context, EVP_sha256(), NULL);
    for (const hl_json_node *tensor = hl_json_first(tensors); good && tensor; tensor = hl_json_next(tensor))
        good = add_meaning(&digest, canonical, tensor);
    good = good && end(&digest, hex);
    EVP_MD_CTX_free(digest.context);
    return good ? HL_OK : HL_FAIL(err, HL_E_NOMEM, HL_MANIFEST_STAGE, "OpenSSL could not compute a SHA-256");
}
