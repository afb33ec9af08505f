/* The full checksum of an artifact: every byte of every payload is held against the manifest.
 *
 * The plain way is the sum of each file. A file's sum is one stream, so that an artifact of one big file, or
 * of five files on four cores, would leave cores idle. Such files are hashed in parts instead: the sum of
 * each tensor, and the header compared with the one that the manifest implies. That proves as much:
 *   - the header's bytes must be exactly those that the store writes for the tensors of the manifest (length,
 *     JSON, metadata, padding), in one of its two layouts; both are functions of the manifest alone;
 *   - behind it the tensors lie one after another to the end of the file without a hole, and each has its
 *     SHA-256 in the manifest.
 * So every byte is fixed by the manifest, whose own SHA-256 READY holds, as it is by the file's sum. A file
 * whose header is anything else, by another writer or damaged, is hashed whole. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/weights/safetensors/safetensors.h"
#include "core/weights/store/artifact.h"

#define STAGE "weights.checksums"

/* The tensors of one file, by ascending index in the manifest. */
struct members {
    size_t *tensors;
    size_t count;
};

/* --- whether to split --- */

static int larger_first(const void *a, const void *b)
{
    const uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left < right) - (left > right);
}

/* The bytes of the thread that is busy longest when whole files are taken longest first. */
static uint64_t longest_thread(uint64_t *sizes, size_t count, uint64_t *loads, uint32_t threads)
{
    uint64_t longest = 0;
    qsort(sizes, count, sizeof *sizes, larger_first);
    for (size_t i = 0; i < count; i++) {
        uint32_t idlest = 0;
        for (uint32_t t = 1; t < threads; t++)
            if (loads[t] < loads[idlest])
                idlest = t;
        loads[idlest] += sizes[i];
        if (loads[idlest] > longest)
            longest = loads[idlest];
    }
    return longest;
}

/* Splitting pays when whole files keep the threads busy unevenly, by a twentieth of the work or more. */
static bool is_uneven(const hl_manifest *manifest, uint32_t threads)
{
    uint64_t total = 0;
    uint64_t *sizes = calloc(manifest->file_count + threads, sizeof *sizes);
    if (!sizes)
        return false;
    for (size_t i = 0; i < manifest->file_count; i++) {
        sizes[i] = manifest->files[i].bytes;
        total += sizes[i];
    }
    const uint64_t longest =
        longest_thread(sizes, manifest->file_count, sizes + manifest->file_count, threads);
    free(sizes);
    const uint64_t even = total / threads;
    return longest > even && longest - even > even / 20;
}

/* --- what a file must look like --- */

static hl_status lay_out(const hl_manifest *manifest, const struct members *members,
                         enum hl_safetensors_order order, struct hl_safetensors_layout *layout)
{
    /* What the store writes into every payload, and vLLM-Omni's too. */
    static const struct hl_safetensors_metadata metadata[] = {{"format", "pt"}, {"host_weight_runtime", "1"}};
    struct hl_safetensors_spec *specs = calloc(members->count ? members->count : 1, sizeof *specs);
    if (!specs)
        return HL_E_NOMEM;
    hl_status status = HL_OK;
    for (size_t i = 0; i < members->count && status == HL_OK; i++) {
        const struct hl_manifest_tensor *tensor = &manifest->tensors[members->tensors[i]];
        specs[i] = (struct hl_safetensors_spec){
            .name = tensor->storage_key, .rank = tensor->rank, .shape = tensor->shape};
        if (!hl_safetensors_framework_parse(tensor->dtype, &specs[i].dtype))
            status = HL_E_INVALID;
    }
    if (status == HL_OK)
        status = hl_safetensors_lay_out(specs, members->count, metadata, sizeof metadata / sizeof metadata[0],
                                        order, layout, NULL);
    free(specs);
    return status;
}

static bool begins_with(int fd, const char *bytes, uint64_t size)
{
    char *found = malloc(size);
    bool same = found != NULL;
    for (uint64_t at = 0; same && at < size;) {
        const ssize_t got = pread(fd, found + at, size - at, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        same = got > 0;
        at += got > 0 ? (uint64_t)got : 0;
    }
    same = same && memcmp(found, bytes, size) == 0;
    free(found);
    return same;
}

/* Whether the file is laid out so from its first byte to its last; then fills the ranges. */
static bool fill_ranges(const struct hl_artifact *artifact, size_t file, const struct members *members,
                        enum hl_safetensors_order order, struct hl_hash_range *ranges)
{
    const hl_manifest *manifest = artifact->manifest;
    struct hl_safetensors_layout layout;
    if (lay_out(manifest, members, order, &layout) != HL_OK)
        return false;
    bool same = layout.file_bytes == manifest->files[file].bytes;
    for (size_t i = 0; same && i < members->count; i++) {
        const struct hl_manifest_tensor *tensor = &manifest->tensors[members->tensors[i]];
        same = layout.sizes[i] == tensor->bytes;
        ranges[i] = (struct hl_hash_range){
            .begin = layout.offsets[i], .end = layout.offsets[i] + layout.sizes[i], .name = tensor->name};
        memcpy(ranges[i].sha256, tensor->sha256, sizeof ranges[i].sha256);
    }
    same = same && begins_with(artifact->files[file].fd, layout.header, layout.header_bytes);
    hl_safetensors_layout_free(&layout);
    return same;
}

/* --- jobs --- */

/* Sorts the tensors by file, keeping their order; `indices` has room for all, `members` is zeroed. */
static void sort_by_file(const hl_manifest *manifest, size_t *indices, struct members *members)
{
    for (size_t i = 0; i < manifest->tensor_count; i++)
        members[manifest->tensors[i].file].count++;
    size_t at = 0;
    for (size_t i = 0; i < manifest->file_count; i++) {
        members[i].tensors = indices + at;
        at += members[i].count;
        members[i].count = 0;
    }
    for (size_t i = 0; i < manifest->tensor_count; i++) {
        struct members *own = &members[manifest->tensors[i].file];
        own->tensors[own->count++] = i;
    }
}

struct sums {
    struct hl_hash_job *jobs;
    struct hl_hash_range *ranges; /* one for each tensor, grouped by file */
    size_t *indices;
    struct members *members;
};

static void free_sums(struct sums *sums)
{
    free(sums->jobs);
    free(sums->ranges);
    free(sums->indices);
    free(sums->members);
}

static hl_status plan_sums(const struct hl_artifact *artifact, uint32_t threads, uint64_t split_bytes,
                           struct sums *sums, size_t *split, hl_error *err)
{
    const hl_manifest *manifest = artifact->manifest;
    *sums = (struct sums){.jobs = calloc(manifest->file_count, sizeof *sums->jobs),
                          .ranges = calloc(manifest->tensor_count, sizeof *sums->ranges),
                          .indices = calloc(manifest->tensor_count, sizeof *sums->indices),
                          .members = calloc(manifest->file_count, sizeof *sums->members)};
    if (!sums->jobs || !sums->ranges || !sums->indices || !sums->members) {
        free_sums(sums);
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for the sums of %zu tensors",
                       manifest->tensor_count);
    }
    sort_by_file(manifest, sums->indices, sums->members);
    const bool splits = threads > 1 && is_uneven(manifest, threads);
    *split = 0;
    struct hl_hash_range *ranges = sums->ranges;
    for (size_t i = 0; i < manifest->file_count; i++) {
        const struct members *members = &sums->members[i];
        struct hl_hash_job *job = &sums->jobs[i];
        *job = (struct hl_hash_job){.fd = artifact->files[i].fd,
                                    .name = manifest->files[i].file_name,
                                    .bytes = manifest->files[i].bytes};
        if (splits && job->bytes >= split_bytes &&
            (fill_ranges(artifact, i, members, HL_SAFETENSORS_BY_NAME, ranges) ||
             fill_ranges(artifact, i, members, HL_SAFETENSORS_ALIGNED, ranges))) {
            job->ranges = ranges;
            job->range_count = members->count;
            (*split)++;
        } else {
            memcpy(job->sha256, manifest->files[i].sha256, sizeof job->sha256);
        }
        ranges += members->count;
    }
    return HL_OK;
}

hl_status hl_artifact_check_sums(const struct hl_artifact *artifact, uint32_t threads, uint64_t split_bytes,
                                 hl_error *err)
{
    struct sums sums;
    size_t split;
    hl_status status = plan_sums(artifact, threads, split_bytes, &sums, &split, err);
    if (status != HL_OK)
        return status;
    status = hl_hash_run(sums.jobs, artifact->manifest->file_count, threads, true, err);
    free_sums(&sums);
    return status;
}

size_t hl_artifact_split_files(const struct hl_artifact *artifact, uint32_t threads, uint64_t split_bytes)
{
    struct sums sums;
    size_t split = 0;
    if (plan_sums(artifact, threads, split_bytes, &sums, &split, NULL) == HL_OK)
        free_sums(&sums);
    return split;
}
