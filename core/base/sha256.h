/* SHA-256 through OpenSSL's EVP interface. */
#ifndef CORE_BASE_SHA256_H
#define CORE_BASE_SHA256_H

#include <stddef.h>

#include "hostlane/status.h"

#define HL_SHA256_HEX_BYTES 65 /* 64 lower-case hexadecimal digits and a NUL */

/* Digest of `size` bytes. HL_E_NOMEM when OpenSSL cannot allocate. */
hl_status hl_sha256(const void *bytes, size_t size, char hex[HL_SHA256_HEX_BYTES], hl_error *err);

/* Digest of a file's content, read through `path`. HL_E_SYSTEM when it cannot be read. */
hl_status hl_sha256_file(const char *path, char hex[HL_SHA256_HEX_BYTES], hl_error *err);

#endif
