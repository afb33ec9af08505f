/* REGISTERED: the pages of tmpfs mappings, pinned piece by piece where they are. A page that is pinned stays
 * readable for the device even when its file is cut short; one that is not there any more fails to be pinned,
 * which is told from other failures by the file's size.
 *
 * Unpinning costs about as much as pinning. What the device has read stays pinned until its window is wanted
 * again, when a worker unpins it, or else until the end, which nobody waits for. Only where two pieces have
 * a page in common, which cannot be pinned twice, the retirer unpins each at once. */
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/checked.h"
#include "core/weights/upload/work.h"

#define STAGE "upload.registered"

static void *address_of(const hl_upload *upload, uint32_t region, uint64_t offset)
{
    const char *address = hl_weight_lease_region_at(upload->lease, region)->address;
    return (void *)(uintptr_t)(address + offset);
}

static hl_status unpin(hl_upload *upload, struct hl_upload_window *window, hl_error *err)
{
    if (!window->pinned)
        return HL_OK;
    hl_status status = upload->dev->ops->host_unregister(upload->dev, window->pinned, err);
    if (!status)
        window->pinned = NULL;
    return status;
}

static hl_status pin_piece(hl_upload *upload, struct hl_upload_piece *piece, hl_error *err)
{
    struct hl_upload_window *window = &upload->windows[piece->window];
    const size_t bytes = piece->end - piece->begin;
    hl_status status = unpin(upload, window, err);
    if (status)
        return status;
    if (!bytes) /* of a piece for tensors without bytes */
        return HL_OK;
    const hl_weight_region *region = hl_weight_lease_region_at(upload->lease, piece->region);
    status = hl_upload_check_length(region, err);
    if (status)
        return status;
    void *pages = address_of(upload, piece->region, piece->begin);
    (void)madvise(pages, bytes, MADV_POPULATE_READ); /* pinning finds them faster; never a signal */
    status = upload->dev->ops->host_register_read(upload->dev, pages, bytes, err);
    if (status) {
        (void)hl_upload_check_length(region, err); /* a better reason, if it is one */
        return err->status;
    }
    window->pinned = pages;
    window->pinned_bytes = bytes;
    return HL_OK;
}

static uint64_t address_in_file(const hl_upload *upload, const struct hl_upload_piece *piece,
                                const struct hl_upload_part *part)
{
    (void)piece;
    return (uintptr_t)address_of(upload, part->region, part->offset);
}

static hl_status leave_piece(hl_upload *upload, struct hl_upload_piece *piece, hl_error *err)
{
    return upload->plan.disjoint ? HL_OK : unpin(upload, &upload->windows[piece->window], err);
}

const struct hl_upload_route hl_upload_registered = {.name = HL_WEIGHT_UPLOAD_REGISTERED,
                                                     .prepare = pin_piece,
                                                     .source = address_in_file,
                                                     .retire = leave_piece,
                                                     .reuse_latest = false};

/* Pins a page to see: that a driver has the flag does not say that it takes these pages. */
static hl_status try_page(hl_device *dev, const hl_weight_region *region, hl_error *err)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    hl_error reason;
    void *pages = (void *)(uintptr_t)region->address;
    if (!dev->ops->host_register_read(dev, pages, page, &reason))
        return dev->ops->host_unregister(dev, pages, err);
    return HL_FAIL_DEVICE(err, HL_E_UNSUPPORTED, STAGE, reason.device_code,
                          "%s: its pages cannot be pinned: %.120s", region->file_name, reason.text);
}

hl_status hl_upload_registered_possible(hl_device *dev, const hl_weight_lease *lease, hl_error *err)
{
    const hl_weight_region *first = NULL;
    if (!dev->info.read_only_registration)
        return HL_FAIL(err, HL_E_UNSUPPORTED, STAGE, "the device cannot register memory that is only read");
    for (size_t i = 0; i < hl_weight_lease_region_count(lease); i++) {
        const hl_weight_region *region = hl_weight_lease_region_at(lease, i);
        if (!region->tmpfs)
            return HL_FAIL(err, HL_E_UNSUPPORTED, STAGE, "%s is not on tmpfs", region->file_name);
        if (!first && region->length)
            first = region;
    }
    return first ? try_page(dev, first, err) : HL_OK;
}
