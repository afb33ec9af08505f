/* SHA-256 of files and of ranges inside them, by several threads.
 *
 * One SHA-256 is one sequence: it cannot be shared between threads. The work is therefore cut into streams, a
 * whole file or a range of one, which the threads take from one queue, the longest first. With streams that
 * are small against total / threads the threads end together; the longest stream is the least time. Whoever
 * wants big files faster asks for the sums of their ranges (see checksums.c). */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/weights/store/store.h"
#include "faults/hook.h"

#define STAGE "weights.hash"

/* One read: small enough to stay in the core's own cache between the copy and the hash. The kernel is told of
 * a whole HL_WEIGHT_HASH_CHUNK_BYTES before. */
static const size_t slice_bytes = 256 * 1024;

/* One running digest. */
struct stream {
    int fd;
    const char *file, *range; /* range: NULL for the whole file */
    uint64_t begin, end;
    char *sha256; /* expected, or to be filled */
};

struct queue {
    struct stream *streams;
    size_t count;
    bool compare;
    EVP_MD *digest; /* fetched once: looking it up costs more than hashing a small tensor */
    atomic_size_t next;
    atomic_bool stopped;
    pthread_mutex_t mutex; /* guards status and error */
    hl_status status;
    hl_error error; /* the first */
};

static void fail_queue(struct queue *queue, hl_status status, const hl_error *err)
{
    pthread_mutex_lock(&queue->mutex);
    if (queue->status == HL_OK) {
        queue->status = status;
        queue->error = *err;
    }
    pthread_mutex_unlock(&queue->mutex);
    atomic_store_explicit(&queue->stopped, true, memory_order_relaxed);
}

/* --- one stream --- */

static hl_status read_slice(const struct stream *stream, void *buffer, size_t size, uint64_t at, size_t *got,
                            hl_error *err)
{
    ssize_t result;
    do {
        result = HL_FAULT_STEP(weights_payload_read, pread(stream->fd, buffer, size, (off_t)at));
    } while (result < 0 && errno == EINTR);
    if (result < 0)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot read %.128s at %" PRIu64, stream->file,
                             at);
    if (result == 0)
        return HL_FAIL(err, HL_E_CHECKSUM, STAGE, "%.128s ends at %" PRIu64 ", not at %" PRIu64, stream->file,
                       at, stream->end);
    *got = (size_t)result;
    return HL_OK;
}

static hl_status update(struct queue *queue, EVP_MD_CTX *context, const struct stream *stream, void *buffer,
                        hl_error *err)
{
    uint64_t told = stream->begin;
    for (uint64_t at = stream->begin; at < stream->end;) {
        if (atomic_load_explicit(&queue->stopped, memory_order_relaxed))
            return HL_E_CANCELLED; /* somebody else failed; nobody looks at this */
        while (told < stream->end && told < at + HL_WEIGHT_HASH_CHUNK_BYTES) {
            posix_fadvise(stream->fd, (off_t)told, (off_t)HL_WEIGHT_HASH_CHUNK_BYTES, POSIX_FADV_WILLNEED);
            told += HL_WEIGHT_HASH_CHUNK_BYTES;
        }
        const uint64_t left = stream->end - at;
        size_t got = 0;
        hl_status status =
            read_slice(stream, buffer, left < slice_bytes ? (size_t)left : slice_bytes, at, &got, err);
        if (status != HL_OK)
            return status;
        if (!EVP_DigestUpdate(context, buffer, got))
            return HL_FAIL(err, HL_E_NOMEM, STAGE, "OpenSSL could not go on with a SHA-256");
        at += got;
    }
    return HL_OK;
}

static void print_hex(const unsigned char *digest, char hex[HL_SHA256_HEX_BYTES])
{
    static const char digits[] = "0123456789abcdef";
    for (unsigned i = 0; i < 32; i++) {
        hex[2 * i] = digits[digest[i] >> 4];
        hex[2 * i + 1] = digits[digest[i] & 15];
    }
    hex[64] = 0;
}

static hl_status hash_stream(struct queue *queue, EVP_MD_CTX *context, const struct stream *stream,
                             void *buffer, hl_error *err)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    char hex[HL_SHA256_HEX_BYTES];
    if (!EVP_DigestInit_ex2(context, queue->digest, NULL))
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "OpenSSL could not start a SHA-256");
    hl_status status = update(queue, context, stream, buffer, err);
    if (status != HL_OK)
        return status;
    if (!EVP_DigestFinal_ex(context, digest, &size))
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "OpenSSL could not end a SHA-256");
    assert(size == 32);
    print_hex(digest, hex);
    if (!queue->compare)
        memcpy(stream->sha256, hex, sizeof hex);
    else if (strcmp(stream->sha256, hex) != 0)
        return HL_FAIL(err, HL_E_CHECKSUM, STAGE, "%s%.96s%s%.96s has the SHA-256 %.16s…, not %.16s…",
                       stream->range ? "tensor " : "", stream->range ? stream->range : stream->file,
                       stream->range ? " in " : "", stream->range ? stream->file : "", hex, stream->sha256);
    return HL_OK;
}

/* --- the threads --- */

static void *work(void *argument)
{
    struct queue *queue = argument;
    hl_error err = {0};
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    void *buffer = malloc(slice_bytes);
    hl_status status = HL_OK;
    if (!context || !buffer)
        status = HL_FAIL(&err, HL_E_NOMEM, STAGE, "no memory to hash with");
    while (status == HL_OK && !atomic_load_explicit(&queue->stopped, memory_order_relaxed)) {
        const size_t mine = atomic_fetch_add_explicit(&queue->next, 1, memory_order_relaxed);
        if (mine >= queue->count)
            break;
        status = hash_stream(queue, context, &queue->streams[mine], buffer, &err);
    }
    if (status != HL_OK && status != HL_E_CANCELLED)
        fail_queue(queue, status, &err);
    free(buffer);
    EVP_MD_CTX_free(context);
    return NULL;
}

/* The caller is one of the threads. Where the system gives fewer than asked for, those hash everything. */
static void run(struct queue *queue, uint32_t threads)
{
    const size_t wanted = threads < queue->count ? threads : queue->count;
    pthread_t *others = wanted > 1 ? calloc(wanted - 1, sizeof *others) : NULL;
    size_t started = 0;
    while (others && started + 1 < wanted && pthread_create(&others[started], NULL, work, queue) == 0)
        started++;
    work(queue);
    for (size_t i = 0; i < started; i++)
        pthread_join(others[i], NULL);
    free(others);
}

/* --- the queue --- */

static int longest_first(const void *a, const void *b)
{
    const struct stream *left = a, *right = b;
    const uint64_t one = left->end - left->begin, other = right->end - right->begin;
    if (one != other)
        return one < other ? 1 : -1;
    return (left->begin > right->begin) - (left->begin < right->begin);
}

static void add_job(struct queue *queue, struct hl_hash_job *job)
{
    if (!queue->compare || job->sha256[0])
        queue->streams[queue->count++] =
            (struct stream){job->fd, job->name, NULL, 0, job->bytes, job->sha256};
    for (size_t i = 0; i < job->range_count; i++) {
        struct hl_hash_range *range = &job->ranges[i];
        assert(range->begin <= range->end && range->end <= job->bytes);
        if (!queue->compare || range->sha256[0])
            queue->streams[queue->count++] =
                (struct stream){job->fd, job->name, range->name, range->begin, range->end, range->sha256};
    }
}

hl_status hl_hash_run(struct hl_hash_job *jobs, size_t count, uint32_t threads, bool compare, hl_error *err)
{
    struct queue queue = {.compare = compare, .mutex = PTHREAD_MUTEX_INITIALIZER};
    size_t most = 0;
    for (size_t i = 0; i < count; i++)
        most += 1 + jobs[i].range_count;
    queue.streams = calloc(most ? most : 1, sizeof *queue.streams);
    queue.digest = EVP_MD_fetch(NULL, "SHA256", NULL);
    if (!queue.streams || !queue.digest) {
        queue.status = HL_FAIL(&queue.error, HL_E_NOMEM, STAGE, "no memory to hash %zu sums", most);
        goto out;
    }
    for (size_t i = 0; i < count; i++)
        add_job(&queue, &jobs[i]);
    qsort(queue.streams, queue.count, sizeof *queue.streams, longest_first);
    run(&queue, threads);
out:
    EVP_MD_free(queue.digest);
    free(queue.streams);
    if (queue.status != HL_OK && err)
        *err = queue.error;
    return queue.status;
}
