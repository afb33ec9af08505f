/* Element types, and what a tensor of a shape takes. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "core/base/checked.h"
#include "core/base/error.h"
#include "core/weights/safetensors/header.h"

static const struct {
    const char *name, *framework;
    uint8_t name_bytes, framework_bytes;
    unsigned bits;
} dtypes[] = {
#define HL_SAFETENSORS_ROW(name, bits, framework)                                                            \
    {#name, framework, sizeof #name - 1, sizeof framework - 1, bits},
    HL_SAFETENSORS_DTYPES(HL_SAFETENSORS_ROW)
#undef HL_SAFETENSORS_ROW
};

_Static_assert(sizeof dtypes / sizeof dtypes[0] == HL_SAFETENSORS_DTYPE_COUNT, "one row a type");

const char *hl_safetensors_dtype_name(enum hl_safetensors_dtype dtype)
{
    assert((size_t)dtype < HL_SAFETENSORS_DTYPE_COUNT);
    return dtypes[dtype].name;
}

const char *hl_safetensors_framework_name(enum hl_safetensors_dtype dtype)
{
    assert((size_t)dtype < HL_SAFETENSORS_DTYPE_COUNT);
    return dtypes[dtype].framework;
}

unsigned hl_safetensors_bits(enum hl_safetensors_dtype dtype)
{
    assert((size_t)dtype < HL_SAFETENSORS_DTYPE_COUNT);
    return dtypes[dtype].bits;
}

bool hl_safetensors_dtype_parse(const char *name, enum hl_safetensors_dtype *dtype)
{
    const size_t bytes = strlen(name);
    for (size_t i = 0; i < HL_SAFETENSORS_DTYPE_COUNT; i++) {
        if (dtypes[i].name_bytes == bytes && memcmp(name, dtypes[i].name, bytes) == 0) {
            *dtype = (enum hl_safetensors_dtype)i;
            return true;
        }
    }
    return false;
}

bool hl_safetensors_framework_parse(const char *name, enum hl_safetensors_dtype *dtype)
{
    const size_t bytes = strlen(name);
    for (size_t i = 0; i < HL_SAFETENSORS_DTYPE_COUNT; i++) {
        if (dtypes[i].framework_bytes == bytes && memcmp(name, dtypes[i].framework, bytes) == 0) {
            *dtype = (enum hl_safetensors_dtype)i;
            return true;
        }
    }
    return false;
}

hl_status hl_safetensors_measure(enum hl_safetensors_dtype dtype, const uint64_t *shape, uint32_t rank,
                                 uint64_t *bytes)
{
    /* The dimensions that are not 0 must fit too, wherever a 0 stands: whoever computes strides multiplies
     * them without it. */
    uint64_t elements = 1, bits = 0;
    bool empty = false;
    for (uint32_t i = 0; i < rank; i++) {
        empty |= shape[i] == 0;
        if (shape[i] != 0 && !hl_mul_u64(elements, shape[i], &elements))
            return HL_E_OVERFLOW;
    }
    if (empty)
        elements = 0;
    if (!hl_mul_u64(elements, hl_safetensors_bits(dtype), &bits))
        return HL_E_OVERFLOW;
    if (bits % 8 != 0)
        return HL_E_INVALID;
    *bytes = bits / 8;
    return HL_OK;
}

hl_status hl_safetensors_tensor_bytes(enum hl_safetensors_dtype dtype, const uint64_t *shape, uint32_t rank,
                                      uint64_t *bytes, hl_error *err)
{
    hl_status status = hl_safetensors_measure(dtype, shape, rank, bytes);
    if (status == HL_E_OVERFLOW)
        return HL_FAIL(err, status, HL_SAFETENSORS_STAGE,
                       "a shape of %" PRIu32 " dimensions of %s has more bits than 64 bits count", rank,
                       hl_safetensors_dtype_name(dtype));
    if (status == HL_E_INVALID)
        return HL_FAIL(err, status, HL_SAFETENSORS_STAGE,
                       "a shape whose %s elements of %u bits do not fill its last byte",
                       hl_safetensors_dtype_name(dtype), hl_safetensors_bits(dtype));
    return status;
}
