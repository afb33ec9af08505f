/* SHA-256 of bytes as they are written, and threads that do it beside the writing. A write of a megabyte
 * costs about half a millisecond of hashing for the file and as much for the tensor; with a lane for each
 * they overlap with each other and with the copy into the page cache. */
#ifndef CORE_WEIGHTS_STORE_STREAM_HASH_H
#define CORE_WEIGHTS_STORE_STREAM_HASH_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "core/base/sha256.h"

struct evp_md_ctx_st;

/* One running digest. Zero-initialise. */
struct hl_stream_hash {
    struct evp_md_ctx_st *context; /* NULL: not running */
    bool failed;
};
hl_status hl_stream_hash_begin(struct hl_stream_hash *hash, hl_error *err);
void hl_stream_hash_add(struct hl_stream_hash *hash, const void *bytes, size_t size);
/* Ends it and gives the digest; false when OpenSSL failed somewhere on the way. */
bool hl_stream_hash_end(struct hl_stream_hash *hash, char hex[HL_SHA256_HEX_BYTES]);
void hl_stream_hash_drop(struct hl_stream_hash *hash); /* ends it without a digest; not running is allowed */

/* A thread that adds to one digest at a time. Used by one thread; `mutex` guards what it shares with its own.
 * Zero-initialise. */
struct hl_hash_lane {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool running, stopping;
    struct hl_stream_hash *hash; /* what to add to; NULL: idle */
    const void *bytes;           /* stay the caller's until hl_hash_lane_wait() returns */
    size_t size;
};
bool hl_hash_lane_start(struct hl_hash_lane *lane); /* false: no thread is to be had; hash without */
void hl_hash_lane_add(struct hl_hash_lane *lane, struct hl_stream_hash *hash, const void *bytes, size_t size);
void hl_hash_lane_wait(struct hl_hash_lane *lane);
void hl_hash_lane_stop(struct hl_hash_lane *lane); /* not running is allowed */

#endif
