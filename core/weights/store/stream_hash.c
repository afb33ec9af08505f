#include "core/weights/store/stream_hash.h"

#include <assert.h>
#include <openssl/evp.h>
#include <stdio.h>

#include "core/base/error.h"

#define STAGE "weights.writer"

hl_status hl_stream_hash_begin(struct hl_stream_hash *hash, hl_error *err)
{
    assert(!hash->context);
    hash->failed = false;
    hash->context = EVP_MD_CTX_new();
    if (hash->context && EVP_DigestInit_ex(hash->context, EVP_sha256(), NULL))
        return HL_OK;
    hl_stream_hash_drop(hash);
    return HL_FAIL(err, HL_E_NOMEM, STAGE, "OpenSSL could not start a SHA-256");
}

void hl_stream_hash_add(struct hl_stream_hash *hash, const void *bytes, size_t size)
{
    if (!EVP_DigestUpdate(hash->context, bytes, size))
        hash->failed = true;
}

bool hl_stream_hash_end(struct hl_stream_hash *hash, char hex[HL_SHA256_HEX_BYTES])
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    const bool good = !hash->failed && EVP_DigestFinal_ex(hash->context, digest, &size) != 0;
    hl_stream_hash_drop(hash);
    for (unsigned i = 0; good && i < size; i++)
        snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    return good;
}

void hl_stream_hash_drop(struct hl_stream_hash *hash)
{
    EVP_MD_CTX_free(hash->context);
    hash->context = NULL;
}

static void *lane_main(void *argument)
{
    struct hl_hash_lane *lane = argument;
    pthread_mutex_lock(&lane->mutex);
    for (;;) {
        while (!lane->hash && !lane->stopping)
            pthread_cond_wait(&lane->changed, &lane->mutex);
        if (!lane->hash)
            break;
        struct hl_stream_hash *const hash = lane->hash;
        const void *const bytes = lane->bytes;
        const size_t size = lane->size;
        pthread_mutex_unlock(&lane->mutex);
        hl_stream_hash_add(hash, bytes, size);
        pthread_mutex_lock(&lane->mutex);
        lane->hash = NULL;
        pthread_cond_broadcast(&lane->changed);
    }
    pthread_mutex_unlock(&lane->mutex);
    return NULL;
}

bool hl_hash_lane_start(struct hl_hash_lane *lane)
{
    assert(!lane->running);
    pthread_mutex_init(&lane->mutex, NULL);
    pthread_cond_init(&lane->changed, NULL);
    lane->stopping = false;
    lane->hash = NULL;
    lane->running = pthread_create(&lane->thread, NULL, lane_main, lane) == 0;
    if (!lane->running) {
        pthread_cond_destroy(&lane->changed);
        pthread_mutex_destroy(&lane->mutex);
    }
    return lane->running;
}

void hl_hash_lane_add(struct hl_hash_lane *lane, struct hl_stream_hash *hash, const void *bytes, size_t size)
{
    pthread_mutex_lock(&lane->mutex);
    assert(!lane->hash);
    lane->hash = hash;
    lane->bytes = bytes;
    lane->size = size;
    pthread_cond_broadcast(&lane->changed);
    pthread_mutex_unlock(&lane->mutex);
}

void hl_hash_lane_wait(struct hl_hash_lane *lane)
{
    pthread_mutex_lock(&lane->mutex);
    while (lane->hash)
        pthread_cond_wait(&lane->changed, &lane->mutex);
    pthread_mutex_unlock(&lane->mutex);
}

void hl_hash_lane_stop(struct hl_hash_lane *lane)
{
    if (!lane->running)
        return;
    pthread_mutex_lock(&lane->mutex);
    lane->stopping = true;
    pthread_cond_broadcast(&lane->changed);
    pthread_mutex_unlock(&lane->mutex);
    pthread_join(lane->thread, NULL);
    pthread_cond_destroy(&lane->changed);
    pthread_mutex_destroy(&lane->mutex);
    lane->running = false;
}
