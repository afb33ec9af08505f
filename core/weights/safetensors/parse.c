/* A header's text becomes an hl_safetensors. */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/error.h"
#include "core/weights/safetensors/header.h"

/* What the reference reader takes: further fields may nest. */
#define HEADER_DEPTH 127u

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* What can be said without reading the text as JSON. */
static hl_status check_frame(struct hl_safetensors_scan *scan, uint64_t header_bytes, uint64_t file_bytes)
{
    bool strict = scan->strictness == HL_SAFETENSORS_STRICT;
    if (header_bytes > HL_SAFETENSORS_HEADER_BYTES)
        return HL_FAIL(scan->err, HL_E_LIMIT, HL_SAFETENSORS_STAGE,
                       "a header of %" PRIu64 " bytes, of which %llu are allowed", header_bytes,
                       HL_SAFETENSORS_HEADER_BYTES);
    if (file_bytes < HL_SAFETENSORS_LENGTH_BYTES || header_bytes > file_bytes - HL_SAFETENSORS_LENGTH_BYTES)
        return HL_FAIL(scan->err, HL_E_CORRUPT, HL_SAFETENSORS_STAGE,
                       "a file of %" PRIu64 " bytes ends inside its header of %" PRIu64, file_bytes,
                       header_bytes);
    uint64_t space = 0;
    while (space < header_bytes && is_space(scan->text[space]))
        space++;
    if (strict && space > 0)
        return HL_FAIL(scan->err, HL_E_CORRUPT, HL_SAFETENSORS_STAGE, "white space before the header");
    if (strict && header_bytes % 8 != 0)
        return HL_FAIL(scan->err, HL_E_CORRUPT, HL_SAFETENSORS_STAGE,
                       "a header of %" PRIu64 " bytes, which is no multiple of 8", header_bytes);
    scan->tolerated.leading_space = (uint32_t)space;
    scan->tolerated.unaligned_header = header_bytes % 8 != 0;
    return HL_OK;
}

static hl_status read_entries(struct hl_safetensors_scan *scan, const hl_json_node *root,
                              const hl_json_node *metadata)
{
    size_t count = hl_json_count(root) - (metadata != NULL);
    if (count > HL_WEIGHT_TENSORS)
        return HL_FAIL(scan->err, HL_E_LIMIT, HL_SAFETENSORS_STAGE, "%zu tensors, of which %u are allowed",
                       count, HL_WEIGHT_TENSORS);
    scan->entries = calloc(count ? count : 1, sizeof *scan->entries);
    if (!scan->entries)
        return HL_FAIL(scan->err, HL_E_NOMEM, HL_SAFETENSORS_STAGE, "no memory for %zu tensors", count);
    for (const hl_json_node *member = hl_json_first(root); member; member = hl_json_next(member)) {
        if (member == metadata)
            continue;
        if (strcmp(hl_json_key(member, NULL), HL_SAFETENSORS_METADATA) == 0)
            return HL_FAIL(scan->err, HL_E_CORRUPT, HL_SAFETENSORS_STAGE,
                           HL_SAFETENSORS_METADATA " is given twice");
        hl_status status = hl_safetensors_read_entry(scan, member, &scan->entries[scan->count]);
        if (status != HL_OK)
            return status;
        scan->count++;
    }
    assert(scan->count == count);
    return HL_OK;
}

/* Fills the scan from the document, whose strings it then points to. */
static hl_status scan_document(struct hl_safetensors_scan *scan, const hl_json *document,
                               uint64_t data_offset, uint64_t data_bytes)
{
    const hl_json_node *root = hl_json_root(document);
    if (hl_json_type_of(root) != HL_JSON_OBJECT)
        return HL_FAIL(scan->err, HL_E_CORRUPT, HL_SAFETENSORS_STAGE, "the header is %s, not an object",
                       hl_json_type_name(hl_json_type_of(root)));
    const hl_json_node *metadata = hl_json_member(root, HL_SAFETENSORS_METADATA);
    hl_status status = read_entries(scan, root, metadata);
    if (status == HL_OK && metadata)
        status = hl_safetensors_read_metadata(scan, metadata);
    /* In strict mode the document has no duplicates; in tolerant mode they may be elsewhere. */
    if (status == HL_OK && hl_json_duplicates(document) > 0)
        status = hl_safetensors_check_names(scan);
    if (status == HL_OK)
        status = hl_safetensors_order_entries(scan);
    if (status == HL_OK)
        status = hl_safetensors_check_cover(scan, data_offset, data_bytes);
    return status;
}

/* One block that holds what the result keeps, widest alignment first. */
struct keep {
    struct hl_safetensors_tensor *tensors;
    struct hl_safetensors_metadata *metadata;
    uint64_t *dimensions;
    char *strings;
};

static const char *keep_string(struct keep *keep, const char *string)
{
    size_t size = strlen(string) + 1;
    char *kept = memcpy(keep->strings, string, size);
    keep->strings += size;
    return kept;
}

/* How much the block needs. Everything is bounded by a multiple of the header's bytes. */
static size_t keep_bytes(const struct hl_safetensors_scan *scan)
{
    size_t bytes = scan->count * sizeof(struct hl_safetensors_tensor) +
                   scan->pair_count * sizeof(struct hl_safetensors_metadata);
    for (size_t i = 0; i < scan->count; i++)
        bytes += hl_json_count(scan->entries[i].shape) * sizeof(uint64_t) + strlen(scan->entries[i].name) + 1;
    for (size_t i = 0; i < scan->pair_count; i++)
        bytes += strlen(scan->pairs[i].key) + strlen(scan->pairs[i].value) + 2;
    return bytes;
}

static struct hl_safetensors_tensor keep_tensor(struct keep *keep, const struct hl_safetensors_entry *entry)
{
    struct hl_safetensors_tensor tensor = {.name = keep_string(keep, entry->name),
                                           .dtype = entry->dtype,
                                           .rank = (uint32_t)hl_json_count(entry->shape),
                                           .shape = keep->dimensions,
                                           .begin = entry->begin,
                                           .end = entry->end};
    for (const hl_json_node *item = hl_json_first(entry->shape); item; item = hl_json_next(item)) {
        bool fits = hl_json_u64(item, keep->dimensions++);
        assert(fits);
    }
    return tensor;
}

static size_t count_dimensions(const struct hl_safetensors_scan *scan)
{
    size_t count = 0;
    for (size_t i = 0; i < scan->count; i++)
        count += hl_json_count(scan->entries[i].shape);
    return count;
}

static hl_status keep_result(const struct hl_safetensors_scan *scan, hl_safetensors **parsed)
{
    size_t bytes = keep_bytes(scan);
    hl_safetensors *made = calloc(1, sizeof *made);
    char *block = malloc(bytes + 1);
    if (!made || !block) {
        free(made);
        free(block);
        return HL_FAIL(scan->err, HL_E_NOMEM, HL_SAFETENSORS_STAGE, "no memory for %zu tensors", scan->count);
    }
    struct keep keep = {.tensors = (void *)block};
    keep.metadata = (void *)(keep.tensors + scan->count);
    keep.dimensions = (void *)(keep.metadata + scan->pair_count);
    keep.strings = (void *)(keep.dimensions + count_dimensions(scan));
    for (size_t i = 0; i < scan->count; i++)
        keep.tensors[i] = keep_tensor(&keep, scan->order[i]);
    for (size_t i = 0; i < scan->pair_count; i++) {
        keep.metadata[i].key = keep_string(&keep, scan->pairs[i].key);
        keep.metadata[i].value = keep_string(&keep, scan->pairs[i].value);
    }
    assert(keep.strings == block + bytes);
    *made = (hl_safetensors){.tensors = keep.tensors,
                             .tensor_count = scan->count,
                             .metadata = keep.metadata,
                             .metadata_count = scan->pair_count,
                             .tolerated = scan->tolerated,
                             .storage = block};
    *parsed = made;
    return HL_OK;
}

hl_status hl_safetensors_parse(const char *header, uint64_t header_bytes, uint64_t file_bytes,
                               enum hl_safetensors_strictness strictness, hl_safetensors **parsed,
                               hl_error *err)
{
    const struct hl_json_rules rules = {.max_bytes = HL_SAFETENSORS_HEADER_BYTES,
                                        .max_depth = HEADER_DEPTH,
                                        .stage = HL_SAFETENSORS_STAGE,
                                        .keep_duplicates = strictness == HL_SAFETENSORS_TOLERANT};
    struct hl_safetensors_scan scan = {.text = header, .strictness = strictness, .err = err};
    hl_json *document = NULL;
    hl_safetensors *made = NULL;
    hl_status status = check_frame(&scan, header_bytes, file_bytes);
    if (status != HL_OK)
        return status;
    uint64_t data_offset = HL_SAFETENSORS_LENGTH_BYTES + header_bytes;
    status = hl_json_parse(header, header_bytes, &rules, &document, err);
    if (status != HL_OK)
        return status;
    status = scan_document(&scan, document, data_offset, file_bytes - data_offset);
    if (status == HL_OK)
        status = keep_result(&scan, &made);
    free(scan.pairs);
    free(scan.order);
    free(scan.entries);
    hl_json_free(document);
    if (status != HL_OK)
        return status;
    made->data_offset = data_offset;
    made->data_bytes = file_bytes - data_offset;
    *parsed = made;
    return HL_OK;
}

void hl_safetensors_free(hl_safetensors *parsed)
{
    if (!parsed)
        return;
    free(parsed->storage);
    free(parsed);
}
