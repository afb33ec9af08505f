/* The header of an open file. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/weights/safetensors/header.h"
#include "faults/hook.h"

/* Reads exactly `bytes` bytes at `offset`. */
static hl_status read_exactly(int fd, void *to, uint64_t bytes, uint64_t offset, hl_error *err)
{
    uint64_t done = 0;
    while (done < bytes) {
        long got =
            HL_FAULT_STEP(weights_read, pread(fd, (char *)to + done, bytes - done, (off_t)(offset + done)));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return HL_FAIL_ERRNO(err, HL_E_SYSTEM, HL_SAFETENSORS_STAGE, errno,
                                 "reading %" PRIu64 " bytes at %" PRIu64, bytes, offset);
        if (got == 0)
            return HL_FAIL(err, HL_E_CORRUPT, HL_SAFETENSORS_STAGE,
                           "the file ends at byte %" PRIu64 ", inside its header", offset + done);
        done += (uint64_t)got;
    }
    return HL_OK;
}

static hl_status read_length(int fd, uint64_t file_bytes, uint64_t *length, hl_error *err)
{
    unsigned char bytes[HL_SAFETENSORS_LENGTH_BYTES];
    if (file_bytes < sizeof bytes)
        return HL_FAIL(err, HL_E_CORRUPT, HL_SAFETENSORS_STAGE,
                       "a file of %" PRIu64 " bytes has no room for a header's length", file_bytes);
    hl_status status = read_exactly(fd, bytes, sizeof bytes, 0, err);
    if (status != HL_OK)
        return status;
    uint64_t value = 0;
    for (size_t i = sizeof bytes; i-- > 0;)
        value = value << 8 | bytes[i];
    if (value > HL_SAFETENSORS_HEADER_BYTES)
        return HL_FAIL(err, HL_E_LIMIT, HL_SAFETENSORS_STAGE,
                       "a header of %" PRIu64 " bytes, of which %llu are allowed", value,
                       HL_SAFETENSORS_HEADER_BYTES);
    /* Before memory is taken for it: a small file may claim much. */
    if (value > file_bytes - sizeof bytes)
        return HL_FAIL(err, HL_E_CORRUPT, HL_SAFETENSORS_STAGE,
                       "a file of %" PRIu64 " bytes ends inside its header of %" PRIu64, file_bytes, value);
    *length = value;
    return HL_OK;
}

hl_status hl_safetensors_read(int fd, uint64_t file_bytes, enum hl_safetensors_strictness strictness,
                              hl_safetensors **parsed, hl_error *err)
{
    uint64_t length = 0;
    hl_status status = read_length(fd, file_bytes, &length, err);
    if (status != HL_OK)
        return status;
    char *header = malloc(length ? length : 1);
    if (!header)
        return HL_FAIL(err, HL_E_NOMEM, HL_SAFETENSORS_STAGE, "no memory for a header of %" PRIu64 " bytes",
                       length);
    status = read_exactly(fd, header, length, HL_SAFETENSORS_LENGTH_BYTES, err);
    if (status == HL_OK)
        status = hl_safetensors_parse(header, length, file_bytes, strictness, parsed, err);
    free(header);
    return status;
}
