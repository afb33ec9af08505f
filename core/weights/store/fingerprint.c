#include "core/weights/store/fingerprint.h"

#include <string.h>

hl_status hl_artifact_fingerprint(const hl_weight_store *store, const struct hl_artifact *artifact,
                                  char hex[HL_SHA256_HEX_BYTES], hl_error *err)
{
    struct hl_text text = {0};
    hl_text_print(&text, "{\"domain_uuid\":\"%s\",\"files\":[", store->domain.uuid);
    for (size_t i = 0; i < artifact->manifest->file_count; i++) {
        const struct stat *st = &artifact->files[i].st;
        const char *name = artifact->manifest->files[i].file_name;
        hl_text_print(&text, "%s{\"device\":%llu,\"file\":", i ? "," : "", (unsigned long long)st->st_dev);
        hl_json_put_string(&text, name, strlen(name));
        hl_text_print(&text, ",\"inode\":%llu,\"size\":%lld}", (unsigned long long)st->st_ino,
                      (long long)st->st_size);
    }
    hl_text_print(&text, "],\"publication_id\":\"%s\"}", artifact->ready.publication_id);
    hl_status status = hl_text_status(&text, "weights.fingerprint", err);
    if (status == HL_OK)
        status = hl_sha256(text.bytes, text.size, hex, err);
    hl_text_free(&text);
    return status;
}
