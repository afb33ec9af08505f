#include "core/base/sha256.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <unistd.h>

#include "core/base/error.h"

#define STAGE "base.sha256"

static void encode_hex(const unsigned char *digest, unsigned size, char hex[HL_SHA256_HEX_BYTES])
{
    for (unsigned i = 0; i < size; i++)
        snprintf(hex + 2 * i, 3, "%02x", digest[i]);
}

hl_status hl_sha256(const void *bytes, size_t size, char hex[HL_SHA256_HEX_BYTES], hl_error *err)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned digest_size = 0;
    if (!EVP_Digest(bytes, size, digest, &digest_size, EVP_sha256(), NULL))
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "OpenSSL could not compute a SHA-256");
    encode_hex(digest, digest_size, hex);
    return HL_OK;
}

hl_status hl_sha256_file(const char *path, char hex[HL_SHA256_HEX_BYTES], hl_error *err)
{
    hl_status status = HL_OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot open %s", path);
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    if (!context || !EVP_DigestInit_ex(context, EVP_sha256(), NULL)) {
        status = HL_FAIL(err, HL_E_NOMEM, STAGE, "OpenSSL could not start a SHA-256");
        goto err_free;
    }
    unsigned char buffer[1 << 16];
    ssize_t got;
    while ((got = read(fd, buffer, sizeof buffer)) != 0) {
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            status = HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot read %s", path);
            goto err_free;
        }
        EVP_DigestUpdate(context, buffer, (size_t)got);
    }
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned digest_size = 0;
    EVP_DigestFinal_ex(context, digest, &digest_size);
    encode_hex(digest, digest_size, hex);
err_free:
    EVP_MD_CTX_free(context);
    close(fd);
    return status;
}
