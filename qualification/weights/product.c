/* The artifact of the sweeps: two files, so that a death between them is met, one of which is written in
 * parts.
 */
#include <stdio.h>
#include <string.h>

#include "qualification/weights/victim.h"

static const char identity_format[] =
    "{\"schema_version\":1,"
    "\"source\":{\"model_id\":\"hostlane/swept\",\"revision\":\"%s\",\"fingerprint\":\"f\",\"metadata\":{}},"
    "\"component\":{\"name\":\"transformer\",\"ownership\":\"whole\",\"metadata\":{}},"
    "\"representation\":{\"name\":\"runtime\",\"dtype\":\"torch.bfloat16\",\"metadata\":{}},"
    "\"layout\":{\"name\":\"final\",\"tensor_parallel_size\":1,\"tensor_parallel_rank\":0,"
    "\"sequence_parallel_size\":1,\"sequence_parallel_backend\":\"none\",\"metadata\":{}},"
    "\"adaptation\":{\"kind\":\"base\",\"fingerprint\":null,\"metadata\":{}},"
    "\"producer\":{\"producer_id\":\"sweep\",\"version\":\"1\",\"implementation_fingerprint\":\"i\","
    "\"manifest_schema\":\"m\",\"restorer_schema\":\"r\"}}";

static const struct tensor {
    unsigned file;
    const char *name, *dtype;
    uint32_t rank;
    uint64_t shape[2];
    uint64_t bytes;
    uint64_t part; /* bytes a write */
} tensors[] = {
    {0, "a.scale", "torch.float32", 1, {2}, 8, 8},
    {0, "a.weight", "torch.bfloat16", 2, {4, 3}, 24, 24},
    {1, "b.weight", "torch.uint8", 1, {96}, 96, 64},
};
enum { TENSORS = sizeof tensors / sizeof tensors[0] };

static const char *const files[PRODUCT_FILES] = {"a.safetensors", "b.safetensors"};

const char *product_file(void)
{
    return files[1];
}

static unsigned char byte_at(unsigned tensor, uint64_t offset)
{
    return (unsigned char)(31 * tensor + 7 * offset + 1);
}

hl_weight_identity *product_identity(const char *revision)
{
    char text[sizeof identity_format + 64];
    hl_weight_identity *identity = NULL;
    hl_error err;
    const int length = snprintf(text, sizeof text, identity_format, revision);
    if (hl_weight_identity_parse(text, (size_t)length, &identity, &err)) {
        fprintf(stderr, "identity: %s\n", err.text);
        return NULL;
    }
    return identity;
}

static hl_status write_tensor(hl_weight_payload *payload, unsigned tensor, size_t index, hl_error *err)
{
    unsigned char bytes[128];
    for (uint64_t at = 0; at < tensors[tensor].bytes; at++)
        bytes[at] = byte_at(tensor, at);
    for (uint64_t at = 0; at < tensors[tensor].bytes; at += tensors[tensor].part) {
        const uint64_t left = tensors[tensor].bytes - at;
        const uint64_t size = left < tensors[tensor].part ? left : tensors[tensor].part;
        const hl_status status = hl_weight_payload_write(payload, index, at, bytes + at, (size_t)size, err);
        if (status)
            return status;
    }
    return HL_OK;
}

static hl_status write_file(hl_weight_writer *writer, unsigned file, hl_error *err)
{
    hl_weight_tensor_spec specs[TENSORS];
    unsigned which[TENSORS];
    size_t count = 0;
    for (unsigned i = 0; i < TENSORS; i++)
        if (tensors[i].file == file) {
            which[count] = i;
            specs[count++] = (hl_weight_tensor_spec){.name = tensors[i].name,
                                                     .kind = HL_WEIGHT_PARAMETER,
                                                     .role = "weight",
                                                     .dtype = tensors[i].dtype,
                                                     .rank = tensors[i].rank,
                                                     .shape = tensors[i].shape};
        }
    hl_weight_payload *payload = NULL;
    hl_status status = hl_weight_writer_open(writer, files[file], specs, count, &payload, err);
    if (status)
        return status;
    for (size_t i = 0; i < count && !status; i++)
        status = write_tensor(payload, which[i], i, err);
    hl_error ignored;
    const hl_status closed = hl_weight_payload_close(payload, status ? &ignored : err);
    return status ? status : closed;
}

static hl_status produce(void *context, hl_weight_writer *writer, hl_error *err)
{
    (void)context;
    hl_status status = HL_OK;
    for (unsigned file = 0; file < PRODUCT_FILES && !status; file++)
        status = write_file(writer, file, err);
    return status;
}

void product_producer(hl_weight_producer *producer, const char *const *key)
{
    *producer = (hl_weight_producer){.size = sizeof *producer,
                                     .scope = HL_WEIGHT_SINGLE_PROCESS,
                                     .phase = HL_WEIGHT_PRE_LOAD_SAFE,
                                     .output_keys = key,
                                     .output_count = 1,
                                     .produce = produce};
}

bool product_is_whole(const hl_weight_lease *lease)
{
    if (hl_weight_lease_tensor_count(lease) != TENSORS)
        return false;
    for (unsigned i = 0; i < TENSORS; i++) {
        const hl_weight_tensor_view *view = hl_weight_lease_tensor(lease, tensors[i].name);
        if (!view || view->bytes != tensors[i].bytes || strcmp(view->file_name, files[tensors[i].file]) != 0)
            return false;
        for (uint64_t at = 0; at < view->bytes; at++)
            if (((const unsigned char *)view->data)[at] != byte_at(i, at))
                return false;
    }
    return true;
}
