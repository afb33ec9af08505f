/* Leases: a validated artifact, mapped once a file, and the shared lock that keeps it in its place.
 *
 * The mappings are of the descriptors that were validated; no name is looked up again. The lock is let go
 * last: until then nobody may remove the files. After a fork the child's copy only closes and unmaps what the
 * child inherited (hl_lock_release() knows who took the lock). */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/base/error.h"
#include "core/weights/store/fingerprint.h"
#include "core/weights/store/store.h"

#define STAGE "weights.lease"

struct hl_weight_lease {
    atomic_uint holders;
    hl_weight_store *store;
    struct hl_artifact artifact;
    struct hl_lock lock;
    hl_weight_region *regions;    /* one for each of the manifest's files */
    hl_weight_tensor_view *views; /* one for each of the manifest's tensors, which are sorted by name */
    hl_weight_provenance provenance;
    char domain_uuid[HL_WEIGHT_UUID_BYTES];
    char fingerprint[HL_SHA256_HEX_BYTES];
};

/* --- making one --- */

static void unmap(hl_weight_lease *lease)
{
    for (size_t i = lease->artifact.manifest->file_count; i-- > 0;)
        if (lease->regions[i].address)
            munmap((void *)(uintptr_t)lease->regions[i].address, lease->regions[i].length);
}

/* One mapping a file, however many tensors: a process may have few mappings (vm.max_map_count), and
 * transports register whole regions. */
static hl_status map_files(hl_weight_lease *lease, hl_error *err)
{
    const hl_manifest *manifest = lease->artifact.manifest;
    for (size_t i = 0; i < manifest->file_count; i++) {
        const int fd = lease->artifact.files[i].fd;
        void *address = mmap(NULL, manifest->files[i].bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (address == MAP_FAILED)
            return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot map %.128s",
                                 manifest->files[i].file_name);
        lease->regions[i] =
            (hl_weight_region){.file_name = manifest->files[i].file_name,
                               .address = address,
                               .length = manifest->files[i].bytes,
                               .fd = fd,
                               .tmpfs = lease->store->domain.storage_class == HL_WEIGHT_TMPFS};
    }
    return HL_OK;
}

static void fill_views(hl_weight_lease *lease)
{
    const hl_manifest *manifest = lease->artifact.manifest;
    for (size_t i = 0; i < manifest->tensor_count; i++) {
        const struct hl_manifest_tensor *tensor = &manifest->tensors[i];
        const hl_weight_region *region = &lease->regions[tensor->file];
        const uint64_t begin = lease->artifact.tensor_begin[i];
        assert(begin <= region->length && tensor->bytes <= region->length - begin);
        lease->views[i] = (hl_weight_tensor_view){
            .name = tensor->name,
            .kind = tensor->kind,
            .role = tensor->role,
            .dtype = tensor->dtype,
            .file_name = tensor->file_name,
            .rank = tensor->rank,
            .shape = tensor->shape,
            .stride = tensor->stride,
            .data = tensor->bytes ? (const unsigned char *)region->address + begin : NULL,
            .bytes = tensor->bytes,
            .region = tensor->file,
            .region_offset = begin,
        };
    }
}

static hl_status allocate(const hl_manifest *manifest, hl_weight_lease **lease, hl_error *err)
{
    hl_weight_lease *fresh = calloc(1, sizeof *fresh);
    if (!fresh)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for a lease");
    fresh->regions = calloc(manifest->file_count, sizeof *fresh->regions);
    fresh->views = calloc(manifest->tensor_count, sizeof *fresh->views);
    if (!fresh->regions || !fresh->views) {
        free(fresh->regions);
        free(fresh->views);
        free(fresh);
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for a lease of %zu tensors",
                       manifest->tensor_count);
    }
    *lease = fresh;
    return HL_OK;
}

static void describe(hl_weight_lease *lease, hl_weight_origin origin, hl_weight_validation validation)
{
    const hl_manifest *manifest = lease->artifact.manifest;
    memcpy(lease->domain_uuid, lease->store->domain.uuid, sizeof lease->domain_uuid);
    lease->provenance = (hl_weight_provenance){
        .artifact_key = manifest->identity->key,
        .content_sha256 = manifest->content_sha256,
        .domain_uuid = lease->domain_uuid,
        .publication_id = lease->artifact.ready.publication_id,
        .producer_id = manifest->identity->producer_id,
        .backing_fingerprint = lease->fingerprint,
        .origin = origin,
        .validation = validation,
    };
}

hl_status hl_lease_create(hl_weight_store *store, struct hl_artifact *artifact, struct hl_lock *lock,
                          hl_weight_origin origin, hl_weight_validation validation, hl_weight_lease **out,
                          hl_weight_failure *failure)
{
    hl_weight_lease *lease = NULL;
    hl_error err;
    hl_status status = allocate(artifact->manifest, &lease, &err);
    if (status != HL_OK)
        return hl_weight_failure_io(failure, HL_WEIGHT_STAGE_LOOKUP, &err);
    atomic_init(&lease->holders, 1);
    lease->store = store;
    lease->artifact = *artifact; /* the caller's until nothing can fail any more */
    status = hl_artifact_fingerprint(store, artifact, lease->fingerprint, &err);
    if (status == HL_OK)
        status = map_files(lease, &err);
    if (status != HL_OK) {
        unmap(lease);
        free(lease->views);
        free(lease->regions);
        free(lease);
        return hl_weight_failure_io(failure, HL_WEIGHT_STAGE_LOOKUP, &err);
    }
    fill_views(lease);
    describe(lease, origin, validation);
    lease->lock = *lock;
    hl_store_retain(store);
    *artifact = (struct hl_artifact){.folder = -1};
    *lock = HL_LOCK_NONE;
    *out = lease;
    return HL_OK;
}

/* --- holding one --- */

hl_weight_lease *hl_weight_lease_retain(hl_weight_lease *lease)
{
    const unsigned before = atomic_fetch_add_explicit(&lease->holders, 1, memory_order_relaxed);
    assert(before > 0);
    return lease;
}

void hl_weight_lease_release(hl_weight_lease *lease)
{
    if (!lease)
        return;
    const unsigned before = atomic_fetch_sub_explicit(&lease->holders, 1, memory_order_acq_rel);
    assert(before > 0);
    if (before > 1)
        return;
    unmap(lease);
    hl_artifact_close(&lease->artifact);
    hl_lock_release(&lease->lock);
    hl_store_drop(lease->store);
    free(lease->views);
    free(lease->regions);
    free(lease);
}

/* --- looking at one --- */

const struct hl_manifest *hl_lease_manifest(const hl_weight_lease *lease)
{
    return lease->artifact.manifest;
}

size_t hl_weight_lease_tensor_count(const hl_weight_lease *lease)
{
    return lease->artifact.manifest->tensor_count;
}

const hl_weight_tensor_view *hl_weight_lease_tensor_at(const hl_weight_lease *lease, size_t index)
{
    return index < lease->artifact.manifest->tensor_count ? &lease->views[index] : NULL;
}

const hl_weight_tensor_view *hl_weight_lease_tensor(const hl_weight_lease *lease, const char *name)
{
    const ptrdiff_t index = name ? hl_manifest_find(lease->artifact.manifest, name) : -1;
    return index >= 0 ? &lease->views[index] : NULL;
}

size_t hl_weight_lease_region_count(const hl_weight_lease *lease)
{
    return lease->artifact.manifest->file_count;
}

const hl_weight_region *hl_weight_lease_region_at(const hl_weight_lease *lease, size_t index)
{
    return index < lease->artifact.manifest->file_count ? &lease->regions[index] : NULL;
}

const hl_weight_provenance *hl_weight_lease_provenance(const hl_weight_lease *lease)
{
    return &lease->provenance;
}

const char *hl_weight_lease_identity_json(const hl_weight_lease *lease, size_t *bytes)
{
    return hl_weight_identity_json(lease->artifact.manifest->identity, bytes);
}

const char *hl_weight_lease_format_metadata(const hl_weight_lease *lease)
{
    return lease->artifact.manifest->format_metadata;
}

hl_status hl_weight_lease_prefetch(const hl_weight_lease *lease, hl_error *err)
{
    for (size_t i = 0; i < lease->artifact.manifest->file_count; i++) {
        const hl_weight_region *region = &lease->regions[i];
        const int failed = posix_fadvise(region->fd, 0, (off_t)region->length, POSIX_FADV_WILLNEED);
        if (failed)
            return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, failed, "cannot prefetch %.128s",
                                 region->file_name);
    }
    return HL_OK;
}
