/* One tensor's entry: {"dtype": …, "shape": […], "data_offsets": [begin, end]}. */
#include <inttypes.h>
#include <string.h>

#include "core/base/error.h"
#include "core/weights/safetensors/header.h"

enum field { DTYPE, SHAPE, OFFSETS, FIELD_COUNT };

static const char *const field_names[FIELD_COUNT] = {"dtype", "shape", "data_offsets"};
static const size_t field_bytes[FIELD_COUNT] = {5, 5, 12};

/* Fails about a tensor, which is the header's member `tensor`. */
#define REFUSE(scan, status, tensor, format, ...)                                                            \
    ({                                                                                                       \
        char name_[HL_JSON_QUOTE_BYTES];                                                                     \
        HL_FAIL((scan)->err, status, HL_SAFETENSORS_STAGE, "tensor %s: " format, quote_name(tensor, name_),  \
                __VA_ARGS__);                                                                                \
    })

static const char *quote_name(const hl_json_node *tensor, char quoted[HL_JSON_QUOTE_BYTES])
{
    size_t size = 0;
    const char *name = hl_json_key(tensor, &size);
    return hl_json_quote(quoted, name, size);
}

/* The field of that key, or FIELD_COUNT. */
static enum field field_of(const hl_json_node *member)
{
    size_t size = 0;
    const char *key = hl_json_key(member, &size);
    enum field field = DTYPE;
    while (field < FIELD_COUNT && (field_bytes[field] != size || memcmp(key, field_names[field], size) != 0))
        field++;
    return field;
}

static hl_status refuse_unknown(const struct hl_safetensors_scan *scan, const hl_json_node *tensor,
                                const hl_json_node *member)
{
    char quoted[HL_JSON_QUOTE_BYTES];
    size_t size = 0;
    const char *key = hl_json_key(member, &size);
    return REFUSE(scan, HL_E_CORRUPT, tensor, "unknown field %s", hl_json_quote(quoted, key, size));
}

static hl_status find_fields(struct hl_safetensors_scan *scan, const hl_json_node *tensor,
                             const hl_json_node *fields[FIELD_COUNT])
{
    if (hl_json_type_of(tensor) != HL_JSON_OBJECT)
        return REFUSE(scan, HL_E_CORRUPT, tensor, "the entry is %s, not an object",
                      hl_json_type_name(hl_json_type_of(tensor)));
    for (const hl_json_node *member = hl_json_first(tensor); member; member = hl_json_next(member)) {
        enum field field = field_of(member);
        if (field == FIELD_COUNT) {
            if (scan->strictness == HL_SAFETENSORS_STRICT)
                return refuse_unknown(scan, tensor, member);
            scan->tolerated.unknown_fields++;
            continue;
        }
        if (fields[field])
            return REFUSE(scan, HL_E_CORRUPT, tensor, "%s is given twice", field_names[field]);
        fields[field] = member;
    }
    for (enum field field = DTYPE; field < FIELD_COUNT; field++)
        if (!fields[field])
            return REFUSE(scan, HL_E_CORRUPT, tensor, "%s is missing", field_names[field]);
    return HL_OK;
}

static hl_status read_dtype(const struct hl_safetensors_scan *scan, const hl_json_node *tensor,
                            const hl_json_node *node, enum hl_safetensors_dtype *dtype)
{
    char quoted[HL_JSON_QUOTE_BYTES];
    size_t size = 0;
    if (hl_json_type_of(node) != HL_JSON_STRING)
        return REFUSE(scan, HL_E_CORRUPT, tensor, "dtype is %s, not a string",
                      hl_json_type_name(hl_json_type_of(node)));
    const char *name = hl_json_string(node, &size);
    if (strlen(name) != size || !hl_safetensors_dtype_parse(name, dtype))
        return REFUSE(scan, HL_E_CORRUPT, tensor, "unknown dtype %s", hl_json_quote(quoted, name, size));
    return HL_OK;
}

/* A number of shape or data_offsets. */
static hl_status read_number(const struct hl_safetensors_scan *scan, const hl_json_node *tensor,
                             enum field field, const hl_json_node *node, uint64_t *value)
{
    if (hl_json_type_of(node) != HL_JSON_INTEGER)
        return REFUSE(scan, HL_E_CORRUPT, tensor, "%s holds %s where an integer is expected",
                      field_names[field], hl_json_type_name(hl_json_type_of(node)));
    if (scan->text[hl_json_begin(node)] == '-')
        return REFUSE(scan, HL_E_CORRUPT, tensor, "%s holds a number with a sign", field_names[field]);
    if (!hl_json_u64(node, value))
        return REFUSE(scan, HL_E_OVERFLOW, tensor, "%s holds a number beyond 64 bits", field_names[field]);
    return HL_OK;
}

/* Reads an array of at most `capacity` numbers, which is not 0, into `values`. */
static hl_status read_numbers(const struct hl_safetensors_scan *scan, const hl_json_node *tensor,
                              enum field field, const hl_json_node *node, uint64_t *values)
{
    for (const hl_json_node *item = hl_json_first(node); item; item = hl_json_next(item), values++) {
        hl_status status = read_number(scan, tensor, field, item, values);
        if (status != HL_OK)
            return status;
    }
    return HL_OK;
}

static hl_status expect_array(const struct hl_safetensors_scan *scan, const hl_json_node *tensor,
                              enum field field, const hl_json_node *node)
{
    if (hl_json_type_of(node) != HL_JSON_ARRAY)
        return REFUSE(scan, HL_E_CORRUPT, tensor, "%s is %s, not an array", field_names[field],
                      hl_json_type_name(hl_json_type_of(node)));
    return HL_OK;
}

/* Reads the shape and says how many bytes it takes. */
static hl_status read_shape(const struct hl_safetensors_scan *scan, const hl_json_node *tensor,
                            const hl_json_node *node, enum hl_safetensors_dtype dtype, uint64_t *bytes)
{
    uint64_t shape[HL_WEIGHT_RANK];
    size_t rank = hl_json_count(node);
    hl_status status = expect_array(scan, tensor, SHAPE, node);
    if (status != HL_OK)
        return status;
    if (rank > HL_WEIGHT_RANK)
        return REFUSE(scan, HL_E_LIMIT, tensor, "%zu dimensions, of which %u are allowed", rank,
                      HL_WEIGHT_RANK);
    status = read_numbers(scan, tensor, SHAPE, node, shape);
    if (status != HL_OK)
        return status;
    status = hl_safetensors_measure(dtype, shape, (uint32_t)rank, bytes);
    if (status == HL_E_OVERFLOW)
        return REFUSE(scan, HL_E_OVERFLOW, tensor, "its shape has more bits of %s than 64 bits count",
                      hl_safetensors_dtype_name(dtype));
    if (status == HL_E_INVALID)
        return REFUSE(scan, HL_E_CORRUPT, tensor, "its elements of %u bits do not fill the last byte",
                      hl_safetensors_bits(dtype));
    return status;
}

static hl_status read_offsets(const struct hl_safetensors_scan *scan, const hl_json_node *tensor,
                              const hl_json_node *node, struct hl_safetensors_entry *entry)
{
    uint64_t offsets[2] = {0};
    hl_status status = expect_array(scan, tensor, OFFSETS, node);
    if (status != HL_OK)
        return status;
    if (hl_json_count(node) != 2)
        return REFUSE(scan, HL_E_CORRUPT, tensor, "data_offsets has %zu numbers instead of 2",
                      hl_json_count(node));
    status = read_numbers(scan, tensor, OFFSETS, node, offsets);
    if (status != HL_OK)
        return status;
    if (offsets[0] > offsets[1])
        return REFUSE(scan, HL_E_RANGE, tensor, "its data begin at %" PRIu64 " and end at %" PRIu64,
                      offsets[0], offsets[1]);
    entry->begin = offsets[0];
    entry->end = offsets[1];
    return HL_OK;
}

static hl_status read_name(const struct hl_safetensors_scan *scan, const hl_json_node *tensor,
                           const char **name)
{
    size_t size = 0;
    *name = hl_json_key(tensor, &size);
    if (size == 0)
        return HL_FAIL(scan->err, HL_E_CORRUPT, HL_SAFETENSORS_STAGE, "a tensor with an empty name");
    if (strlen(*name) != size)
        return REFUSE(scan, HL_E_CORRUPT, tensor, "its name holds a NUL at byte %zu", strlen(*name));
    return HL_OK;
}

hl_status hl_safetensors_read_entry(struct hl_safetensors_scan *scan, const hl_json_node *tensor,
                                    struct hl_safetensors_entry *entry)
{
    const hl_json_node *fields[FIELD_COUNT] = {NULL};
    uint64_t bytes = 0;
    hl_status status = read_name(scan, tensor, &entry->name);
    if (status == HL_OK)
        status = find_fields(scan, tensor, fields);
    if (status == HL_OK)
        status = read_dtype(scan, tensor, fields[DTYPE], &entry->dtype);
    if (status == HL_OK)
        status = read_shape(scan, tensor, fields[SHAPE], entry->dtype, &bytes);
    if (status == HL_OK)
        status = read_offsets(scan, tensor, fields[OFFSETS], entry);
    if (status != HL_OK)
        return status;
    if (entry->end - entry->begin != bytes)
        return REFUSE(scan, HL_E_CORRUPT, tensor,
                      "its data are %" PRIu64 " bytes, and its shape and dtype take %" PRIu64,
                      entry->end - entry->begin, bytes);
    entry->shape = fields[SHAPE];
    return HL_OK;
}
