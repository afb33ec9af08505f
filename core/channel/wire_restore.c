#include <inttypes.h>
#include <stdint.h>
#include <string.h>

#include "core/base/checked.h"
#include "core/base/error.h"
#include "core/channel/channel.h"
#include "core/channel/text.h"

_Static_assert(sizeof(struct hl_wire_restore) == 2 * 4 + HL_RESTORE_LEASES * 16, "no padding");

static const char stage[] = "channel.restore";

size_t hl_wire_restore_bytes(uint64_t page_count)
{
    if (page_count > HL_PLAN_BLOCKS)
        return 0;
    return sizeof(struct hl_wire_restore) + hl_align_up(page_count * sizeof(uint32_t), 8);
}

/* A zero lease is none, and a lease is consumed once. */
static hl_status check_lease(const struct hl_wire_restore *head, uint32_t i, hl_status failure, hl_error *err)
{
    if (head->leases[i].lease == 0)
        return HL_FAIL(err, failure, stage, "leases[%u].lease is 0", i);
    if (head->leases[i].page_count == 0 || head->leases[i].page_count > HL_PLAN_BLOCKS)
        return HL_FAIL(err, failure, stage, "leases[%u].page_count is %u, not 1 to %u", i,
                       head->leases[i].page_count, HL_PLAN_BLOCKS);
    if (head->leases[i].zero != 0)
        return HL_FAIL(err, failure, stage, "leases[%u].zero is %u, not 0", i, head->leases[i].zero);
    for (uint32_t k = 0; k < i; k++)
        if (head->leases[k].lease == head->leases[i].lease)
            return HL_FAIL(err, failure, stage, "leases[%u].lease is that of leases[%u]", i, k);
    return HL_OK;
}

/* Both sides' check; only the status of a failure differs. */
static hl_status check_head(const struct hl_wire_restore *head, hl_status failure, uint64_t *page_count,
                            hl_error *err)
{
    uint64_t pages = 0;
    if (head->lease_count == 0 || head->lease_count > HL_RESTORE_LEASES)
        return HL_FAIL(err, failure, stage, "lease_count is %u, not 1 to %u", head->lease_count,
                       HL_RESTORE_LEASES);
    for (uint32_t i = 0; i < head->lease_count; i++) {
        hl_status status = check_lease(head, i, failure, err);
        if (status != HL_OK)
            return status;
        pages += head->leases[i].page_count;
    }
    if (!hl_channel_is_zero(&head->leases[head->lease_count],
                            (HL_RESTORE_LEASES - head->lease_count) * sizeof head->leases[0]))
        return HL_FAIL(err, failure, stage, "leases is not zero from lease_count %u on", head->lease_count);
    if (pages > HL_PLAN_BLOCKS)
        return HL_FAIL(err, failure, stage,
                       "page_count is %" PRIu64 " over all leases, at most %u are allowed", pages,
                       HL_PLAN_BLOCKS);
    *page_count = pages;
    return HL_OK;
}

hl_status hl_wire_restore_encode(const struct hl_wire_restore *head, const uint32_t *pages,
                                 uint64_t page_count, void *out, size_t size, hl_error *err)
{
    uint64_t counted;
    hl_status status = check_head(head, HL_E_INVALID, &counted, err);
    if (status != HL_OK)
        return status;
    if (page_count != counted)
        return HL_FAIL(err, HL_E_INVALID, stage, "page_count is %" PRIu64 ", the leases' are %" PRIu64,
                       page_count, counted);
    if (size != hl_wire_restore_bytes(page_count))
        return HL_FAIL(err, HL_E_INVALID, stage, "size is %zu, %" PRIu64 " pages need %zu", size, page_count,
                       hl_wire_restore_bytes(page_count));
    unsigned char *at = out;
    size_t page_bytes = (size_t)page_count * sizeof *pages, end = sizeof *head + page_bytes;
    memcpy(at, head, sizeof *head);
    memcpy(at + sizeof *head, pages, page_bytes);
    memset(at + end, 0, size - end);
    return HL_OK;
}

hl_status hl_wire_restore_decode(const void *bytes, size_t size, struct hl_wire_restore *out,
                                 const uint32_t **pages, uint64_t *page_count, hl_error *err)
{
    struct hl_wire_restore head;
    uint64_t counted;
    if ((uintptr_t)bytes % 8 != 0)
        return HL_FAIL(err, HL_E_INVALID, stage, "bytes is not 8-byte aligned");
    if (size < sizeof head)
        return HL_FAIL(err, HL_E_PROTOCOL, stage, "size is %zu, the head needs %zu", size, sizeof head);
    memcpy(&head, bytes, sizeof head);
    hl_status status = check_head(&head, HL_E_PROTOCOL, &counted, err);
    if (status != HL_OK)
        return status;
    if (size != hl_wire_restore_bytes(counted))
        return HL_FAIL(err, HL_E_PROTOCOL, stage, "size is %zu, %" PRIu64 " pages need %zu", size, counted,
                       hl_wire_restore_bytes(counted));
    size_t end = sizeof head + (size_t)counted * sizeof **pages;
    if (!hl_channel_is_zero((const unsigned char *)bytes + end, size - end))
        return HL_FAIL(err, HL_E_PROTOCOL, stage, "the padding after the pages is not zero");
    *out = head;
    *pages = (const uint32_t *)(const void *)((const unsigned char *)bytes + sizeof head);
    *page_count = counted;
    return HL_OK;
}
