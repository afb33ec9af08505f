/* STAGING: a ring of pinned slots, and page-cache bytes read into them. Reading, unlike touching a mapping,
 * meets a file that was cut short with a short count and not with SIGBUS, and sets up no page tables. */
#include <errno.h>
#include <inttypes.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/checked.h"
#include "core/weights/upload/work.h"

#define STAGE "upload.staging"

/* What huge pages begin and end on. */
#define HUGE_BYTES (2 * HL_MIB)

static unsigned char *slot_of(const hl_upload *upload, uint32_t window)
{
    return upload->ring + window * upload->options.slot_bytes;
}

/* A slot is pinned when it is used for the first time: an upload takes no more slots than it needs to keep
 * the device busy, and their first touch and registration are shared out among the workers. */
static hl_status pin_slot(hl_upload *upload, uint32_t window, hl_error *err)
{
    struct hl_upload_window *held = &upload->windows[window];
    unsigned char *slot = slot_of(upload, window);
    if (held->pinned)
        return HL_OK;
    (void)madvise(slot, upload->options.slot_bytes, MADV_POPULATE_WRITE); /* else registration does it */
    hl_status status = upload->dev->ops->host_register(upload->dev, slot, upload->options.slot_bytes, err);
    if (status)
        return status;
    held->pinned = slot;
    held->pinned_bytes = upload->options.slot_bytes;
    return HL_OK;
}

/* Private, and left out of children: no fork moves pages that the device reads. */
hl_status hl_upload_ring_open(hl_upload *upload, hl_error *err)
{
    const uint64_t bytes = upload->window_count * upload->options.slot_bytes;
    const size_t mapped = bytes + HUGE_BYTES;
    void *mapping =
        mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED)
        return HL_FAIL_ERRNO(err, HL_E_NOMEM, STAGE, errno, "cannot map a ring of %" PRIu64 " bytes", bytes);
    (void)madvise(mapping, mapped, MADV_DONTFORK);
    (void)madvise(mapping, mapped, MADV_HUGEPAGE);
    upload->ring_mapping = mapping;
    upload->ring_mapped = mapped;
    upload->ring = (void *)(uintptr_t)hl_align_up((uintptr_t)mapping, HUGE_BYTES);
    hl_status status = pin_slot(upload, 0, err);
    if (status)
        hl_upload_ring_close(upload);
    return status;
}

void hl_upload_ring_close(hl_upload *upload)
{
    if (upload->ring_mapping)
        munmap(upload->ring_mapping, upload->ring_mapped);
    upload->ring_mapping = NULL;
    upload->ring = NULL;
}

/* The file was found to end at or before `offset`. */
static hl_status say_where_it_ends(const hl_weight_region *region, uint64_t offset, hl_error *err)
{
    hl_status status = hl_upload_check_length(region, err);
    return status ? status
                  : HL_FAIL(err, HL_E_CORRUPT, STAGE, "%s: ended before byte %" PRIu64 " for a while",
                            region->file_name, offset);
}

static hl_status read_part(const hl_weight_region *region, const struct hl_upload_part *part,
                           unsigned char *to, hl_error *err)
{
    for (uint64_t done = 0; done < part->bytes;) {
        const ssize_t got = pread(region->fd, to + done, part->bytes - done, (off_t)(part->offset + done));
        if (got > 0)
            done += (uint64_t)got;
        else if (got == 0)
            return say_where_it_ends(region, part->offset + done, err);
        else if (errno != EINTR)
            return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "%s: cannot read at byte %" PRIu64,
                                 region->file_name, part->offset + done);
    }
    return HL_OK;
}

static hl_status fill_slot(hl_upload *upload, struct hl_upload_piece *piece, hl_error *err)
{
    hl_status status = pin_slot(upload, piece->window, err);
    unsigned char *slot = slot_of(upload, piece->window);
    for (size_t i = 0; !status && i < piece->part_count; i++) {
        const struct hl_upload_part *part = &upload->plan.parts[piece->part + i];
        status =
            read_part(hl_weight_lease_region_at(upload->lease, part->region), part, slot + part->place, err);
    }
    return status;
}

static uint64_t address_in_slot(const hl_upload *upload, const struct hl_upload_piece *piece,
                                const struct hl_upload_part *part)
{
    return (uintptr_t)slot_of(upload, piece->window) + part->place;
}

/* The slot stays pinned for the next piece. */
static hl_status leave_slot(hl_upload *upload, struct hl_upload_piece *piece, hl_error *err)
{
    (void)upload;
    (void)piece;
    (void)err;
    return HL_OK;
}

const struct hl_upload_route hl_upload_staging = {.name = HL_WEIGHT_UPLOAD_STAGING,
                                                  .prepare = fill_slot,
                                                  .source = address_in_slot,
                                                  .retire = leave_slot,
                                                  .reuse_latest = true};
