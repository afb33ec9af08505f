/* Request traces in the format of the Mooncake project: JSON lines with `timestamp` (ms), `input_length`,
 * `output_length` (tokens) and `hash_ids`, one id for each block of 512 tokens of the prompt; equal ids mean
 * equal prefixes. A file is hostile until it is read. */
#ifndef ENGINE_DEMO_PROCESSES_TRACE_H
#define ENGINE_DEMO_PROCESSES_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hostlane/status.h"

#define HL_TRACE_BLOCK_TOKENS 512u
#define HL_TRACE_LINE_BYTES (1u << 20) /* of one line */
#define HL_TRACE_REQUEST_IDS 8192u     /* of one request: 4 million tokens */
#define HL_TRACE_IDS (1u << 28)        /* of a trace */

struct hl_trace_request {
    int64_t timestamp;
    int64_t input_length;
    int64_t output_length;
    uint32_t first; /* in ids */
    uint32_t count;
};

struct hl_trace {
    struct hl_trace_request *requests;
    uint64_t *ids;
    uint32_t request_count;
    uint32_t id_count;
    uint32_t most_ids; /* of one request */
    uint32_t unique;   /* different ids */
    size_t request_room, id_room;
};

/* Reads at most `most` requests (0: all). HL_E_SYSTEM when the file cannot be read; HL_E_CORRUPT for a line
 * that is no JSON object, HL_E_INVALID for a missing or mistyped field, HL_E_LIMIT, each with the line's
 * number; HL_E_INVALID for a file without a request; HL_E_NOMEM. Free with hl_trace_free(). */
hl_status hl_trace_read(const char *path, uint32_t most, struct hl_trace *trace, hl_error *err);
void hl_trace_free(struct hl_trace *trace);

/* Writes a trace in which a few prompts are asked for often and extended (Zipf's law). The same seed gives
 * the same file. HL_E_SYSTEM, HL_E_NOMEM. */
hl_status hl_trace_generate(const char *path, uint32_t requests, uint64_t seed, hl_error *err);

/* --- reference_cache.c: an endless cache, in the simplest way that can be right --- */
typedef struct hl_reference_cache hl_reference_cache;
hl_status hl_reference_open(hl_reference_cache **cache, hl_error *err);
void hl_reference_close(hl_reference_cache *cache); /* NULL is allowed */
/* How many of the first ids have been seen: the longest prefix. */
uint32_t hl_reference_hits(const hl_reference_cache *cache, const uint64_t *ids, uint32_t count);
/* HL_E_NOMEM: some of them may have been added. */
hl_status hl_reference_add(hl_reference_cache *cache, const uint64_t *ids, uint32_t count, hl_error *err);
uint32_t hl_reference_size(const hl_reference_cache *cache);
/* The number of an id in the order of being added, or UINT32_MAX. */
uint32_t hl_reference_number(const hl_reference_cache *cache, uint64_t id);

#endif
