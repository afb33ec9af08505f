/* What a producer writes through, from the store's side. A writer belongs to one build: its folder in tmp/,
 * the payloads opened there, and what went wrong. It lives from before produce() is called until the build is
 * published or given up; a producer must not keep it or its payloads beyond its own return. Until then a call
 * after produce() has returned, or from a process that was forked meanwhile, is refused with HL_E_STATE and
 * changes nothing.
 *
 * Threads. `mutex` guards the lists, the counts and the first failure; the content of a payload belongs to
 * the one thread that writes it, and after its close to the writer. */
#ifndef CORE_WEIGHTS_STORE_WRITER_H
#define CORE_WEIGHTS_STORE_WRITER_H

#include <pthread.h>

#include "core/weights/safetensors/safetensors.h"
#include "core/weights/store/coverage.h"
#include "core/weights/store/store.h"
#include "core/weights/store/stream_hash.h"

enum hl_tensor_hash {
    HL_TENSOR_UNHASHED,
    HL_TENSOR_HASHING, /* every write so far continued the one before */
    HL_TENSOR_HASHED,
    HL_TENSOR_LOST /* written in another order: hashed again from the file, at the close */
};

/* A declared tensor on its way into a file. */
struct hl_payload_tensor {
    struct hl_manifest_tensor entry; /* strings point into the payload's; sha256 is filled at the latest by
                                        the close */
    uint64_t offset;                 /* of its first byte in the file */
    struct hl_coverage coverage;
    enum hl_tensor_hash state;
    uint64_t hashed; /* bytes */
    struct hl_stream_hash hash;
};

enum hl_payload_state {
    HL_PAYLOAD_OPEN,
    HL_PAYLOAD_FAILED, /* a byte may be missing: only its close is left, which fails */
    HL_PAYLOAD_COMPLETE,
    HL_PAYLOAD_ABANDONED /* closed without success */
};

struct hl_weight_payload {
    hl_weight_writer *writer;
    hl_weight_payload *next;      /* of the writer's; under its mutex */
    hl_weight_payload *next_sync; /* of those that wait to be synchronised; under the syncer's mutex */
    enum hl_payload_state state;
    int fd; /* read and write; -1 once it is closed and synchronised */
    struct hl_manifest_file file;
    struct hl_payload_tensor *tensors; /* as declared */
    size_t tensor_count;
    char *strings;      /* names, roles, dtypes of the tensors */
    uint64_t *numbers;  /* shapes and strides */
    bool file_in_order; /* so far every write continued the file where the last one ended */
    uint64_t file_hashed;
    struct hl_stream_hash file_hash;
    struct hl_hash_lane lanes[2]; /* the file's and the tensor's; running after the first large write */
};

/* One thread that synchronises finished payloads while the producer goes on. */
struct hl_syncer {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool running, finishing;
    hl_weight_payload *waiting; /* any order */
    hl_error error;             /* the first; status HL_OK: none */
};
void hl_syncer_init(struct hl_syncer *syncer);
void hl_syncer_add(struct hl_syncer *syncer, hl_weight_payload *payload);
/* Awaits all that was added and ends the thread; the first error. */
hl_status hl_syncer_finish(struct hl_syncer *syncer, hl_error *err);
void hl_syncer_destroy(struct hl_syncer *syncer); /* after hl_syncer_finish() */

struct hl_weight_writer {
    hl_weight_store *store;
    pid_t owner;
    int folder; /* the build's; belongs to the build */
    pthread_mutex_t mutex;
    pthread_cond_t idle;
    unsigned calls; /* inside the writer now: what they use is not closed before they left */
    bool ended;
    hl_weight_payload *payloads; /* the last opened first */
    size_t payload_count, tensor_count;
    uint64_t planned_bytes; /* of all payloads */
    unsigned lanes;         /* running, over all payloads */
    const char **names;     /* of all tensors: a hash table with open addressing */
    size_t name_slots;      /* a power of two, or 0 */
    bool out_of_capacity;   /* the build has failed, whatever the producer makes of it */
    hl_weight_failure capacity;
    bool failed; /* a payload has; `error` says how the first did */
    hl_error error;
    struct hl_syncer syncer;
};

void hl_writer_init(hl_weight_writer *writer, hl_weight_store *store, int folder);
/* Refuses further calls, closes what the producer left open, awaits what is being synchronised. HL_OK when
 * everything is complete and on the disk. Otherwise the failure, whose code is that of the capacity if that
 * was what the build ran out of, else PRODUCER_FAILED with what `produced` and `produced_error` say, or what
 * the system said when the bytes could not be synchronised. */
hl_status hl_writer_end(hl_weight_writer *writer, hl_status produced, const hl_error *produced_error,
                        hl_weight_failure *failure);
void hl_writer_destroy(hl_weight_writer *writer); /* after hl_writer_end() */

/* For payload.c. Every call of a producer is between an enter that succeeds and a leave. */
hl_status hl_writer_enter(hl_weight_writer *writer, hl_error *err); /* HL_E_STATE */
void hl_writer_leave(hl_weight_writer *writer);
bool hl_writer_take_lane(hl_weight_writer *writer); /* whether one more may run */
void hl_writer_return_lane(hl_weight_writer *writer);
/* Checks names, counts and capacity, and takes the payload into the list. On failure it stays the caller's.
 */
hl_status hl_writer_admit(hl_weight_writer *writer, hl_weight_payload *payload, hl_error *err);
void hl_writer_note(hl_weight_writer *writer, const hl_error *err); /* a payload has failed with it */
void hl_payload_release(hl_weight_payload *payload); /* ends its threads, frees what only writing needs */
void hl_payload_discard(hl_weight_payload *payload); /* and closes its file */
void hl_payload_free(hl_weight_payload *payload);
/* Whether all of it was written, and how it hashes. */
hl_status hl_payload_complete(hl_weight_payload *payload, hl_error *err);
/* Lays the file out and copies the declaration; opens nothing. */
hl_status hl_payload_declare(hl_weight_writer *writer, const char *file_name,
                             const hl_weight_tensor_spec *specs, size_t count,
                             struct hl_safetensors_layout *layout, hl_weight_payload **payload,
                             hl_error *err);

/* Writes manifest.json, then READY.json, and marks the folder as finished and in transition; synchronised. */
hl_status hl_build_finish(hl_weight_writer *writer, const hl_weight_identity *identity,
                          const char *format_metadata, struct hl_build *build, hl_weight_failure *failure);

#endif
