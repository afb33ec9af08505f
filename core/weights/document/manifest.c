/* Reading a manifest. Its strings lie in the parsed document until everything else is known to be right, and
 * then in one block of their own: a role, a type or a file that many tensors have is kept once. */
#include "core/weights/document/manifest.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/weights/document/fields.h"
#include "core/weights/document/manifest_put.h"

struct storage {
    char *strings;
    uint64_t *sizes; /* shapes and strides of all tensors */
    size_t size_count;
};

enum {
    KEY_CONTENT,
    KEY_ARTIFACT,
    KEY_FILES,
    KEY_FORMAT,
    KEY_IDENTITY,
    KEY_PRODUCER,
    KEY_RESTORER,
    KEY_SCHEMA,
    KEY_TENSORS,
    KEYS
};
static const char *const manifest_keys[KEYS] = {
    "artifact_content_sha256", "artifact_key",    "files",          "format_metadata", "identity",
    "producer_schema",         "restorer_schema", "schema_version", "tensors"};

bool hl_manifest_file_name_is_safe(const char *name)
{
    static const char *const reserved[] = {"", ".", "..", "manifest.json", "READY.json"};
    size_t size = strnlen(name, HL_WEIGHT_FILE_NAME_BYTES);
    if (size == HL_WEIGHT_FILE_NAME_BYTES || !hl_json_valid_utf8(name, size))
        return false;
    for (size_t i = 0; i < sizeof reserved / sizeof reserved[0]; i++) {
        if (strcmp(name, reserved[i]) == 0)
            return false;
    }
    for (size_t i = 0; i < size; i++) {
        if (name[i] == '/' || name[i] == 0x7f || (unsigned char)name[i] < 0x20)
            return false;
    }
    return true;
}

static hl_status check_file_name(const struct hl_fields *fields, const char *name)
{
    if (!hl_manifest_file_name_is_safe(name))
        return HL_FIELD_FAIL(fields, "file_name", "is not a safe name for a file");
    return HL_OK;
}

/* An array of at least one and at most `most` elements. */
static hl_status read_count(const struct hl_fields *fields, const char *key, const hl_json_node *node,
                            size_t most, size_t *count)
{
    hl_status status = hl_field_type(fields, key, node, HL_JSON_ARRAY);
    if (status != HL_OK)
        return status;
    *count = hl_json_count(node);
    if (*count == 0)
        return HL_FIELD_FAIL(fields, key, "is empty");
    if (*count > most)
        return HL_FAIL(fields->err, HL_E_LIMIT, fields->stage, "%zu %s, of which %zu are allowed", *count,
                       key, most);
    return HL_OK;
}

static hl_status read_file(const struct hl_fields *fields, const hl_json_node *node,
                           struct hl_manifest_file *file)
{
    static const char *const keys[] = {"file_name", "sha256", "size"};
    const hl_json_node *found[3];
    hl_status status = hl_fields_collect(fields, node, keys, 3, found);
    if (status == HL_OK)
        status = hl_field_name_text(fields, "file_name", found[0], &file->file_name);
    if (status == HL_OK)
        status = check_file_name(fields, file->file_name);
    if (status == HL_OK)
        status = hl_field_hex(fields, "sha256", found[1], HL_SHA256_HEX_BYTES - 1, file->sha256);
    if (status == HL_OK)
        status = hl_field_u64(fields, "size", found[2], 0, &file->bytes);
    return status;
}

static hl_status read_files(const struct hl_fields *root, const hl_json_node *array, hl_manifest *manifest)
{
    size_t count = 0;
    hl_status status = read_count(root, "files", array, HL_WEIGHT_FILES, &count);
    if (status != HL_OK)
        return status;
    manifest->files = calloc(count, sizeof *manifest->files);
    if (!manifest->files)
        return HL_FAIL(root->err, HL_E_NOMEM, root->stage, "no memory for %zu files", count);
    struct hl_fields fields = *root;
    fields.path = "files";
    for (const hl_json_node *node = hl_json_first(array); node; node = hl_json_next(node)) {
        size_t i = manifest->file_count++;
        fields.index = (ptrdiff_t)i;
        status = read_file(&fields, node, &manifest->files[i]);
        if (status != HL_OK)
            return status;
        if (i > 0 && strcmp(manifest->files[i - 1].file_name, manifest->files[i].file_name) >= 0)
            return HL_FIELD_FAIL(&fields, "file_name", "is not after the one before it");
    }
    return HL_OK;
}

/* Appends the sizes in `array` to the manifest's. */
static hl_status read_sizes(const struct hl_fields *fields, const char *key, const hl_json_node *array,
                            struct storage *storage, const uint64_t **sizes, uint32_t *count)
{
    hl_status status = hl_field_type(fields, key, array, HL_JSON_ARRAY);
    if (status != HL_OK)
        return status;
    if (hl_json_count(array) > HL_WEIGHT_RANK)
        return HL_FAIL(fields->err, HL_E_LIMIT, fields->stage,
                       "%s[%td].%s has %zu sizes, of which %u are allowed", fields->path, fields->index, key,
                       hl_json_count(array), HL_WEIGHT_RANK);
    *sizes = storage->sizes + storage->size_count;
    *count = (uint32_t)hl_json_count(array);
    for (const hl_json_node *node = hl_json_first(array); node; node = hl_json_next(node)) {
        status = hl_field_u64(fields, key, node, 0, &storage->sizes[storage->size_count++]);
        if (status != HL_OK)
            return status;
    }
    return HL_OK;
}

static int compare_file_name(const void *name, const void *file)
{
    return strcmp(name, ((const struct hl_manifest_file *)file)->file_name);
}

/* The file that holds a tensor is one of the manifest's, whose names are safe. */
static hl_status find_file(const struct hl_fields *fields, const hl_manifest *manifest,
                           struct hl_manifest_tensor *tensor)
{
    const struct hl_manifest_file *file = bsearch(tensor->file_name, manifest->files, manifest->file_count,
                                                  sizeof *manifest->files, compare_file_name);
    if (!file) {
        hl_status status = check_file_name(fields, tensor->file_name);
        return status == HL_OK ? HL_FIELD_FAIL(fields, "file_name", "is not among the files") : status;
    }
    tensor->file = (uint32_t)(file - manifest->files);
    return HL_OK;
}

static hl_status read_tensor(const struct hl_fields *fields, const hl_json_node *node, hl_manifest *manifest,
                             struct hl_manifest_tensor *tensor)
{
    enum { DTYPE, FILE_NAME, KIND, NAME, BYTES, ROLE, SHA256, SHAPE, STORAGE_KEY, STRIDE, COUNT };
    static const char *const keys[COUNT] = {"dtype", "file_name", "kind",  "name",        "nbytes",
                                            "role",  "sha256",    "shape", "storage_key", "stride"};
    static const char *const kinds[] = {"parameter", "buffer"};
    const hl_json_node *found[COUNT];
    size_t kind = 0;
    uint32_t strides = 0;
    hl_status status = hl_fields_collect(fields, node, keys, COUNT, found);
    if (status == HL_OK)
        status = hl_field_name_text(fields, "name", found[NAME], &tensor->name);
    if (status == HL_OK)
        status = hl_field_choice(fields, "kind", found[KIND], kinds, 2, &kind);
    if (status == HL_OK)
        status = hl_field_name_text(fields, "role", found[ROLE], &tensor->role);
    if (status == HL_OK)
        status = hl_field_name_text(fields, "file_name", found[FILE_NAME], &tensor->file_name);
    if (status == HL_OK)
        status = find_file(fields, manifest, tensor);
    if (status == HL_OK)
        status = hl_field_name_text(fields, "storage_key", found[STORAGE_KEY], &tensor->storage_key);
    if (status == HL_OK)
        status = hl_field_name_text(fields, "dtype", found[DTYPE], &tensor->dtype);
    if (status == HL_OK)
        status = read_sizes(fields, "shape", found[SHAPE], manifest->storage, &tensor->shape, &tensor->rank);
    if (status == HL_OK)
        status = read_sizes(fields, "stride", found[STRIDE], manifest->storage, &tensor->stride, &strides);
    if (status == HL_OK && strides != tensor->rank)
        status = HL_FIELD_FAIL(fields, "stride", "has %u sizes for a shape of %u", strides, tensor->rank);
    if (status == HL_OK)
        status = hl_field_u64(fields, "nbytes", found[BYTES], 0, &tensor->bytes);
    if (status == HL_OK)
        status = hl_field_hex(fields, "sha256", found[SHA256], HL_SHA256_HEX_BYTES - 1, tensor->sha256);
    tensor->kind = kind == 0 ? HL_WEIGHT_PARAMETER : HL_WEIGHT_BUFFER;
    return status;
}

/* Room for the shapes and strides of all tensors, which are integers of the document. */
static hl_status reserve_sizes(const struct hl_fields *fields, const hl_json *document,
                               struct storage *storage)
{
    size_t count = hl_json_integers(document);
    storage->sizes = malloc((count + 1) * sizeof *storage->sizes);
    if (!storage->sizes)
        return HL_FAIL(fields->err, HL_E_NOMEM, fields->stage, "no memory for %zu sizes", count);
    return HL_OK;
}

static int compare_places(const void *left, const void *right, void *context)
{
    const struct hl_manifest_tensor *tensors = context;
    const struct hl_manifest_tensor *a = &tensors[*(const uint32_t *)left];
    const struct hl_manifest_tensor *b = &tensors[*(const uint32_t *)right];
    return a->file != b->file ? (a->file > b->file ? 1 : -1) : strcmp(a->storage_key, b->storage_key);
}

/* Whether the keys in each file ascend, as they do where they are the tensors' names. `last` has room for one
 * place a file. */
static bool places_ascend(const hl_manifest *manifest, uint32_t *last)
{
    for (size_t i = 0; i < manifest->file_count; i++)
        last[i] = UINT32_MAX;
    for (size_t i = 0; i < manifest->tensor_count; i++) {
        const struct hl_manifest_tensor *tensor = &manifest->tensors[i];
        uint32_t before = last[tensor->file];
        if (before != UINT32_MAX && strcmp(manifest->tensors[before].storage_key, tensor->storage_key) >= 0)
            return false;
        last[tensor->file] = (uint32_t)i;
    }
    return true;
}

/* No two tensors have the same key in the same file. */
static hl_status check_places(const struct hl_fields *root, const hl_manifest *manifest)
{
    hl_status status = HL_OK;
    size_t places =
        manifest->tensor_count > manifest->file_count ? manifest->tensor_count : manifest->file_count;
    uint32_t *order = malloc(places * sizeof *order);
    if (!order)
        return HL_FAIL(root->err, HL_E_NOMEM, root->stage, "no memory to order %zu tensors",
                       manifest->tensor_count);
    if (places_ascend(manifest, order))
        goto free_order;
    for (size_t i = 0; i < manifest->tensor_count; i++)
        order[i] = (uint32_t)i;
    qsort_r(order, manifest->tensor_count, sizeof *order, compare_places, manifest->tensors);
    for (size_t i = 1; i < manifest->tensor_count; i++) {
        if (compare_places(&order[i - 1], &order[i], manifest->tensors) != 0)
            continue;
        struct hl_fields fields = *root;
        fields.path = "tensors";
        fields.index = order[i];
        status = HL_FIELD_FAIL(&fields, "storage_key", "is another tensor's in the same file");
        break;
    }
free_order:
    free(order);
    return status;
}

static hl_status read_tensors(const struct hl_fields *root, const hl_json *document,
                              const hl_json_node *array, hl_manifest *manifest)
{
    size_t count = 0;
    hl_status status = read_count(root, "tensors", array, HL_WEIGHT_TENSORS, &count);
    if (status == HL_OK)
        status = reserve_sizes(root, document, manifest->storage);
    if (status != HL_OK)
        return status;
    manifest->tensors = calloc(count, sizeof *manifest->tensors);
    if (!manifest->tensors)
        return HL_FAIL(root->err, HL_E_NOMEM, root->stage, "no memory for %zu tensors", count);
    struct hl_fields fields = *root;
    fields.path = "tensors";
    for (const hl_json_node *node = hl_json_first(array); node; node = hl_json_next(node)) {
        size_t i = manifest->tensor_count++;
        fields.index = (ptrdiff_t)i;
        status = read_tensor(&fields, node, manifest, &manifest->tensors[i]);
        if (status != HL_OK)
            return status;
        if (i > 0 && strcmp(manifest->tensors[i - 1].name, manifest->tensors[i].name) >= 0)
            return HL_FIELD_FAIL(&fields, "name", "is not after the one before it");
    }
    return check_places(root, manifest);
}

static hl_status read_identity(const struct hl_fields *root, const hl_json_node *node,
                               const hl_json_node *key, hl_manifest *manifest)
{
    hl_error inner = {0};
    hl_status status = hl_identity_from_node(node, &manifest->identity, &inner);
    if (status != HL_OK)
        return HL_FAIL(root->err, status == HL_E_INVALID ? root->refusal : status, root->stage,
                       "identity: %s", inner.text);
    char stated[HL_SHA256_HEX_BYTES];
    status = hl_field_hex(root, "artifact_key", key, HL_SHA256_HEX_BYTES - 1, stated);
    if (status == HL_OK && strcmp(stated, manifest->identity->key) != 0)
        status = HL_FIELD_FAIL(root, "artifact_key", "is not the identity's");
    return status;
}

static hl_status check_content(const struct hl_fields *root, const hl_json_node *tensors,
                               const hl_manifest *manifest)
{
    char content[HL_SHA256_HEX_BYTES];
    hl_status status = hl_manifest_text_content_sha256(manifest->canonical, tensors, content, root->err);
    if (status == HL_OK && strcmp(content, manifest->content_sha256) != 0)
        status = HL_FAIL(root->err, HL_E_CHECKSUM, root->stage,
                         "artifact_content_sha256 is not the digest of the tensors");
    return status;
}

static const char *keep(char **strings, const char *string)
{
    size_t size = strlen(string) + 1;
    char *kept = memcpy(*strings, string, size);
    *strings += size;
    return kept;
}

/* Moves all strings out of the document. Each has two quotes more in the text than it has NULs here. */
static hl_status keep_strings(const struct hl_fields *root, hl_manifest *manifest)
{
    struct storage *storage = manifest->storage;
    char *strings = malloc(manifest->canonical_bytes);
    if (!strings)
        return HL_FAIL(root->err, HL_E_NOMEM, root->stage, "no memory for the names of %zu tensors",
                       manifest->tensor_count);
    storage->strings = strings;
    manifest->producer_schema = keep(&strings, manifest->producer_schema);
    manifest->restorer_schema = keep(&strings, manifest->restorer_schema);
    for (size_t i = 0; i < manifest->file_count; i++)
        manifest->files[i].file_name = keep(&strings, manifest->files[i].file_name);
    const char *role = "", *dtype = "";
    for (size_t i = 0; i < manifest->tensor_count; i++) {
        struct hl_manifest_tensor *tensor = &manifest->tensors[i];
        bool key_is_name = strcmp(tensor->storage_key, tensor->name) == 0;
        tensor->file_name = manifest->files[tensor->file].file_name;
        tensor->name = keep(&strings, tensor->name);
        tensor->storage_key = key_is_name ? tensor->name : keep(&strings, tensor->storage_key);
        tensor->role = role = strcmp(tensor->role, role) == 0 ? role : keep(&strings, tensor->role);
        tensor->dtype = dtype = strcmp(tensor->dtype, dtype) == 0 ? dtype : keep(&strings, tensor->dtype);
    }
    assert(strings <= storage->strings + manifest->canonical_bytes);
    return HL_OK;
}

static char *copy_text(const char *text, size_t bytes)
{
    char *copy = malloc(bytes + 1);
    if (copy) {
        if (bytes > 0)
            memcpy(copy, text, bytes);
        copy[bytes] = '\0';
    }
    return copy;
}

static hl_status read_root(const struct hl_fields *root, hl_json *document, hl_manifest *manifest)
{
    const hl_json_node *found[KEYS];
    hl_status status = hl_fields_collect(root, hl_json_root(document), manifest_keys, KEYS, found);
    if (status == HL_OK)
        status = hl_field_name_text(root, "producer_schema", found[KEY_PRODUCER], &manifest->producer_schema);
    if (status == HL_OK)
        status = hl_field_name_text(root, "restorer_schema", found[KEY_RESTORER], &manifest->restorer_schema);
    if (status == HL_OK)
        status = read_identity(root, found[KEY_IDENTITY], found[KEY_ARTIFACT], manifest);
    if (status == HL_OK)
        status = read_files(root, found[KEY_FILES], manifest);
    if (status == HL_OK)
        status = read_tensors(root, document, found[KEY_TENSORS], manifest);
    if (status == HL_OK)
        status = hl_field_hex(root, manifest_keys[KEY_CONTENT], found[KEY_CONTENT], HL_SHA256_HEX_BYTES - 1,
                              manifest->content_sha256);
    if (status == HL_OK)
        status = keep_strings(root, manifest);
    if (status != HL_OK)
        return status;
    hl_json_restore(document); /* the digests are of the text as it was */
    status = check_content(root, found[KEY_TENSORS], manifest);
    if (status == HL_OK)
        status =
            hl_sha256(manifest->canonical, manifest->canonical_bytes, manifest->canonical_sha256, root->err);
    if (status != HL_OK)
        return status;
    size_t begin = hl_json_begin(found[KEY_FORMAT]);
    manifest->format_metadata =
        copy_text(manifest->canonical + begin, hl_json_end(found[KEY_FORMAT]) - begin);
    if (!manifest->format_metadata)
        return HL_FAIL(root->err, HL_E_NOMEM, root->stage, "no memory for format_metadata");
    return HL_OK;
}

static hl_status read_text(const struct hl_fields *root, hl_manifest *manifest)
{
    hl_json *document = NULL;
    uint64_t version = 0;
    hl_status status =
        hl_fields_parse_within(root, manifest->canonical, manifest->canonical_bytes, &document);
    if (status != HL_OK)
        return status;
    status = hl_fields_schema(root, hl_json_root(document), 1, &version);
    if (status == HL_OK)
        status = hl_fields_check_canonical(root, document);
    if (status == HL_OK)
        status = read_root(root, document, manifest);
    hl_json_free(document);
    return status;
}

hl_status hl_manifest_read(char *text, size_t bytes, hl_status refusal, hl_manifest **manifest, hl_error *err)
{
    const struct hl_fields root = {HL_MANIFEST_STAGE, refusal, NULL, -1, err};
    hl_manifest *made = calloc(1, sizeof *made);
    if (!made || !(made->storage = calloc(1, sizeof(struct storage)))) {
        free(made);
        free(text);
        return HL_FAIL(err, HL_E_NOMEM, root.stage, "no memory for a manifest");
    }
    made->canonical = text;
    made->canonical_bytes = bytes;
    hl_status status = read_text(&root, made);
    if (status != HL_OK)
        goto err_free;
    *manifest = made;
    return HL_OK;
err_free:
    hl_manifest_free(made);
    return status;
}

hl_status hl_manifest_take(char *text, size_t bytes, hl_manifest **manifest, hl_error *err)
{
    return hl_manifest_read(text, bytes, HL_E_CORRUPT, manifest, err);
}

hl_status hl_manifest_parse(const char *text, size_t bytes, hl_manifest **manifest, hl_error *err)
{
    char *copy = copy_text(text, bytes);
    if (!copy)
        return HL_FAIL(err, HL_E_NOMEM, HL_MANIFEST_STAGE, "no memory for a manifest of %zu bytes", bytes);
    return hl_manifest_take(copy, bytes, manifest, err);
}

void hl_manifest_free(hl_manifest *manifest)
{
    if (!manifest)
        return;
    struct storage *storage = manifest->storage;
    hl_weight_identity_free(manifest->identity);
    free(manifest->tensors);
    free(manifest->files);
    free(manifest->canonical);
    free(manifest->format_metadata);
    free(storage->strings);
    free(storage->sizes);
    free(storage);
    free(manifest);
}

static int compare_tensor_name(const void *name, const void *tensor)
{
    return strcmp(name, ((const struct hl_manifest_tensor *)tensor)->name);
}

ptrdiff_t hl_manifest_find(const hl_manifest *manifest, const char *name)
{
    const struct hl_manifest_tensor *found = bsearch(name, manifest->tensors, manifest->tensor_count,
                                                     sizeof *manifest->tensors, compare_tensor_name);
    return found ? found - manifest->tensors : -1;
}
