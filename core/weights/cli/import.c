/* import: a folder of safetensors files becomes an artifact. The producer here reads each file once, in the
 * order in which the store's file is laid out, so that the store hashes everything on the way. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/weights/cli/commands.h"
#include "core/weights/cli/interrupt.h"
#include "core/weights/cli/open.h"
#include "core/weights/cli/print.h"
#include "core/weights/cli/progress.h"
#include "core/weights/cli/source.h"
#include "core/weights/store/store.h"

#define STAGE "weights.import"
enum { READ_BYTES = 8 << 20, AHEAD_BYTES = 4 * READ_BYTES };

struct import {
    const struct weights_arguments *arguments;
    struct weights_source source;
    struct weights_progress progress;
    int64_t started_ns;
    char *buffer;
};

/* --- one file --- */

/* The order of the store's file (hl_safetensors_order); another order would be right as well, and slower. */
static int compare_by_name(const void *left, const void *right)
{
    const struct hl_safetensors_tensor *const *a = left, *const *b = right;
    return strcmp((*a)->name, (*b)->name);
}

static int compare_aligned(const void *left, const void *right)
{
    const struct hl_safetensors_tensor *const *a = left, *const *b = right;
    const unsigned wide = hl_safetensors_bits((*a)->dtype), other = hl_safetensors_bits((*b)->dtype);
    return wide != other ? (wide > other ? -1 : 1) : compare_by_name(left, right);
}

static hl_status interrupted(hl_error *err)
{
    return HL_FAIL(err, HL_E_CANCELLED, STAGE, "interrupted by signal %d", weights_interrupted());
}

static hl_status copy_tensor(struct import *import, int fd, const struct weights_source_file *file,
                             const struct hl_safetensors_tensor *tensor, hl_weight_payload *payload,
                             size_t index, hl_error *err)
{
    const uint64_t bytes = tensor->end - tensor->begin;
    const uint64_t begin = file->header->data_offset + tensor->begin;
    for (uint64_t done = 0; done < bytes;) {
        if (weights_interrupted())
            return interrupted(err);
        const size_t wish = bytes - done < READ_BYTES ? (size_t)(bytes - done) : READ_BYTES;
        const ssize_t got = pread(fd, import->buffer, wish, (off_t)(begin + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot read %.120s", file->name);
        if (got == 0)
            return HL_FAIL(err, HL_E_STATE, STAGE, "%.120s became shorter while it was imported", file->name);
        /* The next reads run while these bytes are hashed and written. */
        posix_fadvise(fd, (off_t)(begin + done + (uint64_t)got), AHEAD_BYTES, POSIX_FADV_WILLNEED);
        const hl_status status =
            hl_weight_payload_write(payload, index, done, import->buffer, (size_t)got, err);
        if (status != HL_OK)
            return status;
        done += (uint64_t)got;
        weights_progress_add(&import->progress, (uint64_t)got);
    }
    return HL_OK;
}

/* The file's tensors as the store will lay them out. */
static hl_status order_tensors(const struct import *import, const struct weights_source_file *file,
                               const struct hl_safetensors_tensor ***tensors, hl_weight_tensor_spec **specs,
                               hl_error *err)
{
    const size_t count = file->header->tensor_count;
    const struct hl_safetensors_tensor **ordered = calloc(count, sizeof *ordered);
    hl_weight_tensor_spec *made = calloc(count, sizeof *made);
    if (!ordered || !made) {
        free(ordered);
        free(made);
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "%zu tensors", count);
    }
    for (size_t i = 0; i < count; i++)
        ordered[i] = &file->header->tensors[i];
    qsort(ordered, count, sizeof *ordered, import->arguments->aligned ? compare_aligned : compare_by_name);
    for (size_t i = 0; i < count; i++)
        made[i] = (hl_weight_tensor_spec){.name = ordered[i]->name,
                                          .kind = HL_WEIGHT_PARAMETER,
                                          .role = "weight",
                                          .dtype = hl_safetensors_framework_name(ordered[i]->dtype),
                                          .rank = ordered[i]->rank,
                                          .shape = ordered[i]->shape};
    *tensors = ordered;
    *specs = made;
    return HL_OK;
}

static hl_status copy_file(struct import *import, const struct weights_source_file *file,
                           hl_weight_writer *writer, hl_error *err)
{
    const struct hl_safetensors_tensor **tensors = NULL;
    hl_weight_tensor_spec *specs = NULL;
    hl_weight_payload *payload = NULL;
    int fd;
    hl_status status = weights_source_open_file(&import->source, file, &fd, err);
    if (status != HL_OK)
        return status;
    posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    status = order_tensors(import, file, &tensors, &specs, err);
    if (status == HL_OK)
        status = hl_weight_writer_open(writer, file->name, specs, file->header->tensor_count, &payload, err);
    for (size_t i = 0; status == HL_OK && i < file->header->tensor_count; i++)
        status = copy_tensor(import, fd, file, tensors[i], payload, i, err);
    if (payload) {
        const hl_status closed = hl_weight_payload_close(payload, status == HL_OK ? err : NULL);
        status = status == HL_OK ? closed : status;
    }
    free(specs);
    free(tensors);
    close(fd);
    return status;
}

/* --- the producer --- */

static enum weights_progress_form progress_form(const struct weights_arguments *arguments)
{
    if (arguments->json || arguments->quiet)
        return WEIGHTS_PROGRESS_NONE;
    return isatty(STDERR_FILENO) ? WEIGHTS_PROGRESS_BAR : WEIGHTS_PROGRESS_LINES;
}

static hl_status copy_all(struct import *import, hl_weight_writer *writer, hl_error *err)
{
    const struct weights_source *source = &import->source;
    char size[WEIGHTS_SIZE_BYTES];
    import->buffer = malloc(READ_BYTES);
    if (!import->buffer)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "a buffer of %d bytes", READ_BYTES);
    hl_status status = weights_source_check_unchanged(source, err);
    for (size_t i = 0; status == HL_OK && i < source->file_count; i++) {
        status = copy_file(import, &source->files[i], writer, err);
        if (status == HL_OK)
            weights_progress_say(&import->progress, "%s: copied, %s (%zu of %zu)", source->files[i].name,
                                 weights_size(size, source->files[i].tensor_bytes), i + 1,
                                 source->file_count);
    }
    /* Whatever changed since the headers were read: nothing may be published of it. */
    if (status == HL_OK)
        status = weights_source_check_unchanged(source, err);
    free(import->buffer);
    import->buffer = NULL;
    return status;
}

static hl_status produce(void *context, hl_weight_writer *writer, hl_error *err)
{
    struct import *import = context;
    char size[WEIGHTS_SIZE_BYTES];
    weights_progress_begin(&import->progress, progress_form(import->arguments), stderr,
                           import->source.tensor_bytes);
    weights_progress_say(&import->progress, "importing tensors %zu, files %zu, %s",
                         import->source.tensor_count, import->source.file_count,
                         weights_size(size, import->source.tensor_bytes));
    weights_interrupt_begin();
    hl_status status = copy_all(import, writer, err);
    weights_interrupt_end();
    if (status == HL_OK && weights_interrupted()) /* after the last read */
        status = interrupted(err);
    if (status == HL_OK)
        weights_progress_say(&import->progress, "publishing");
    weights_progress_end(&import->progress);
    return status;
}

/* --- what was tolerated --- */

static const struct {
    const char *name, *meaning;
    size_t field;
} oddities[] = {
#define ODDITY(name, meaning)                                                                                \
    {                                                                                                        \
#name, meaning, offsetof(struct hl_safetensors_tolerated, name)                                      \
    }
    ODDITY(leading_space, "white space before the header"),
    ODDITY(unaligned_header, "a header length that is no multiple of 8"),
    ODDITY(misaligned, "tensors that are not aligned for their type"),
    ODDITY(unknown_fields, "unknown fields of tensors, left out"),
    ODDITY(null_metadata, "\"__metadata__\": null"),
    ODDITY(duplicate_metadata, "metadata given again"),
};
enum { ODDITIES = sizeof oddities / sizeof oddities[0] };

static uint32_t tolerated(const struct weights_source_file *file, size_t oddity)
{
    return *(const uint32_t *)((const char *)&file->header->tolerated + oddities[oddity].field);
}

static void say_what_was_tolerated(const struct weights_source *source)
{
    for (size_t i = 0; i < source->file_count; i++)
        for (size_t k = 0; k < ODDITIES; k++)
            if (tolerated(&source->files[i], k))
                fprintf(stderr, "note: %s: %s (%u times)\n", source->files[i].name, oddities[k].meaning,
                        tolerated(&source->files[i], k));
    if (source->claimed_bytes && source->claimed_bytes != source->tensor_bytes)
        fprintf(stderr, "note: %s: total_size is %" PRIu64 ", the tensors have %" PRIu64 " bytes\n",
                source->index_name, source->claimed_bytes, source->tensor_bytes);
}

/* --- the result --- */

static const char *origin_name(hl_weight_origin origin)
{
    return origin == HL_WEIGHT_BUILT ? "built" : origin == HL_WEIGHT_JOINED ? "joined" : "hit";
}

static bool print_json(const struct import *import, const hl_weight_lease *lease, hl_weight_origin origin)
{
    const hl_weight_provenance *provenance = hl_weight_lease_provenance(lease);
    struct hl_text json = {0};
    weights_json_open(&json, NULL, '{');
    weights_json_bool(&json, "ok", true);
    weights_json_string(&json, "key", provenance->artifact_key);
    weights_json_string(&json, "origin", origin_name(origin));
    weights_json_string(&json, "content_sha256", provenance->content_sha256);
    weights_json_string(&json, "publication_id", provenance->publication_id);
    weights_json_number(&json, "tensors", import->source.tensor_count);
    weights_json_number(&json, "files", import->source.file_count);
    weights_json_number(&json, "tensor_bytes", import->source.tensor_bytes);
    weights_json_number(&json, "elapsed_ns", (uint64_t)(hl_clock_ns() - import->started_ns));
    weights_json_open(&json, "tolerated", '{');
    for (size_t k = 0; k < ODDITIES; k++) {
        uint64_t sum = 0;
        for (size_t i = 0; i < import->source.file_count; i++)
            sum += tolerated(&import->source.files[i], k);
        weights_json_number(&json, oddities[k].name, sum);
    }
    weights_json_close(&json, '}');
    weights_json_close(&json, '}');
    return weights_json_print(&json);
}

static bool print_result(const struct import *import, const hl_weight_lease *lease, hl_weight_origin origin)
{
    char size[WEIGHTS_SIZE_BYTES], time[WEIGHTS_TIME_BYTES], rate[WEIGHTS_SIZE_BYTES];
    const hl_weight_provenance *provenance = hl_weight_lease_provenance(lease);
    const struct weights_source *source = &import->source;
    const double seconds = (double)(hl_clock_ns() - import->started_ns) / (double)HL_NS_PER_S;
    if (origin == HL_WEIGHT_BUILT)
        printf("imported %s\n  tensors %zu, files %zu, %s in %s (%s/s)\n", provenance->artifact_key,
               source->tensor_count, source->file_count, weights_size(size, source->tensor_bytes),
               weights_time(time, seconds),
               weights_size(rate, (uint64_t)((double)source->tensor_bytes / seconds)));
    else
        printf("%s %s\n  nothing was copied\n",
               origin == HL_WEIGHT_HIT ? "already there:" : "another process imported",
               provenance->artifact_key);
    printf("  content SHA-256 %s\n  publication     %s\n", provenance->content_sha256,
           provenance->publication_id);
    return fflush(stdout) == 0;
}

/* --- all --- */

/* Of this moment only: another build may begin and end between here and the store's own wait. */
static void say_that_it_waits(const struct weights_arguments *arguments, hl_weight_store *store,
                              const char *key)
{
    hl_weight_artifact_snapshot *artifact = NULL;
    if (progress_form(arguments) == WEIGHTS_PROGRESS_NONE ||
        hl_weight_store_inspect_artifact(store, key, HL_WEIGHT_MANIFEST_AND_METADATA, &artifact, NULL) !=
            HL_OK)
        return;
    if (artifact->build_lock_active && !(artifact->present && artifact->valid))
        fputs("another process builds this artifact or removes it: waiting for it\n", stderr);
    hl_weight_artifact_snapshot_free(artifact);
}

static int build(struct import *import, hl_weight_store *store, const hl_weight_identity *identity)
{
    const char *const keys[] = {hl_weight_identity_key(identity)};
    const bool json = import->arguments->json;
    hl_weight_producer producer = {.size = sizeof producer,
                                   .scope = HL_WEIGHT_SINGLE_PROCESS,
                                   .phase = HL_WEIGHT_PRE_LOAD_SAFE,
                                   .output_keys = keys,
                                   .output_count = 1,
                                   .produce = produce,
                                   .context = import};
    hl_weight_lease *lease;
    hl_weight_origin origin;
    hl_weight_failure failure;
    say_that_it_waits(import->arguments, store, keys[0]);
    const hl_status status = hl_weight_store_get_or_build(store, identity, HL_WEIGHT_MANIFEST_AND_METADATA,
                                                          &producer, &origin, &lease, &failure);
    if (status != HL_OK)
        return weights_fail(json, &failure);
    const bool good = json ? print_json(import, lease, origin) : print_result(import, lease, origin);
    hl_weight_lease_release(lease);
    return good ? WEIGHTS_DONE : WEIGHTS_FAILED;
}

static int import_identity(const struct weights_arguments *arguments, const hl_weight_identity *identity)
{
    struct import import = {.arguments = arguments, .started_ns = hl_clock_ns()};
    hl_weight_store *store;
    hl_weight_failure failure;
    hl_error err = {0};
    if (weights_source_open(arguments->operand, &import.source, &err) != HL_OK) {
        hl_weight_failure_from(&failure, HL_WEIGHT_STAGE_PRODUCTION, HL_WEIGHT_PRODUCER_FAILED, false, &err);
        return weights_fail(arguments->json, &failure);
    }
    if (!arguments->json && !arguments->quiet)
        say_what_was_tolerated(&import.source);
    int code = weights_open_store(arguments, WEIGHTS_CREATES, &store);
    if (code == WEIGHTS_DONE) {
        code = build(&import, store, identity);
        hl_weight_store_close(store);
    }
    weights_source_close(&import.source);
    return code;
}

int weights_import(const struct weights_arguments *arguments)
{
    hl_weight_identity *identity = NULL;
    int code = weights_read_identity(arguments, arguments->identity, &identity);
    if (code != WEIGHTS_DONE)
        return code;
    code = weights_check_placeholders(arguments, identity);
    if (code == WEIGHTS_DONE)
        code = import_identity(arguments, identity);
    hl_weight_identity_free(identity);
    weights_interrupt_pass_on();
    return code;
}
