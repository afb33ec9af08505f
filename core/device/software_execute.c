/* What a task does when its turn comes, on the device's threads. Each contiguous piece resolves its addresses
 * and pins their regions, asks the checker, and moves its bytes without any lock. */
#include <string.h>

#include "core/base/clock.h"
#include "core/device/software_internal.h"

/* [addr, addr + bytes) in a pinned region. */
struct pinned {
    struct software_region *region;
    unsigned char *at;
};

/* Lock held. */
static bool pin(struct software_device *dev, uint64_t addr, uint64_t bytes, struct pinned *out)
{
    struct software_region *region = hl_software_find_region(dev, addr, bytes);
    if (!region)
        return false;
    region->pins++;
    *out = (struct pinned){region, region->view + (addr - region->base)};
    return true;
}

/* Lock held. */
static void unpin(struct software_device *dev, struct pinned pinned)
{
    pinned.region->pins--;
    if (pinned.region->dying)
        pthread_cond_broadcast(&dev->changed);
}

static bool pin_one(struct software_device *dev, uint64_t addr, uint64_t bytes, struct pinned *out)
{
    pthread_mutex_lock(&dev->lock);
    bool found = pin(dev, addr, bytes, out);
    pthread_mutex_unlock(&dev->lock);
    return found;
}

static void unpin_one(struct software_device *dev, struct pinned pinned)
{
    pthread_mutex_lock(&dev->lock);
    unpin(dev, pinned);
    pthread_mutex_unlock(&dev->lock);
}

static bool pin_pair(struct software_device *dev, uint64_t dst, uint64_t src, uint64_t bytes,
                     struct pinned *to, struct pinned *from)
{
    pthread_mutex_lock(&dev->lock);
    bool found = pin(dev, dst, bytes, to);
    if (found && !pin(dev, src, bytes, from)) {
        unpin(dev, *to);
        found = false;
    }
    pthread_mutex_unlock(&dev->lock);
    return found;
}

static void unpin_pair(struct software_device *dev, struct pinned to, struct pinned from)
{
    pthread_mutex_lock(&dev->lock);
    unpin(dev, to);
    unpin(dev, from);
    pthread_mutex_unlock(&dev->lock);
}

static enum hl_copy_kind kind_of(const struct software_region *to, const struct software_region *from)
{
    if (to->kind == REGION_HOST)
        return HL_COPY_D2H;
    return from->kind == REGION_HOST ? HL_COPY_H2D : HL_COPY_D2D;
}

static bool checker_allows(struct software_device *dev, const struct hl_software_access *access)
{
    if (!dev->options.checker || dev->options.checker(dev->options.checker_user, access) == 0)
        return true;
    pthread_mutex_lock(&dev->lock);
    dev->counts.violations++;
    pthread_mutex_unlock(&dev->lock);
    return false;
}

static int move(struct software_device *dev, struct hl_stream_handle *stream, uint64_t dst, uint64_t src,
                uint64_t bytes)
{
    struct pinned to, from;
    int code = 0;
    if (!bytes)
        return 0;
    if (!pin_pair(dev, dst, src, bytes, &to, &from))
        return SOFTWARE_ILLEGAL_ADDRESS;
    const struct hl_software_access access = {
        .kind = kind_of(to.region, from.region),
        .dst = dst,
        .src = src,
        .bytes = bytes,
        .stream = stream == &dev->null_stream ? NULL : stream,
    };
    if (checker_allows(dev, &access))
        memmove(to.at, from.at, bytes);
    else
        code = SOFTWARE_ILLEGAL_ADDRESS;
    unpin_pair(dev, to, from);
    return code;
}

/* Holds the stream for as long as its link would need for `bytes`; ended early by closing. */
static void throttle(struct software_device *dev, struct hl_stream_handle *stream, int64_t start_ns,
                     uint64_t bytes)
{
    if (!dev->options.bytes_per_second || dev->options.single_step || !bytes)
        return;
    double seconds = (double)bytes / (double)dev->options.bytes_per_second;
    if (stream->free_at_ns < start_ns)
        stream->free_at_ns = start_ns;
    stream->free_at_ns += (int64_t)(seconds * (double)HL_NS_PER_S);
    const struct timespec until = {.tv_sec = stream->free_at_ns / HL_NS_PER_S,
                                   .tv_nsec = stream->free_at_ns % HL_NS_PER_S};
    pthread_mutex_lock(&dev->lock);
    while (!stream->closing && hl_clock_ns() < stream->free_at_ns)
        pthread_cond_timedwait(&stream->wake, &dev->lock, &until);
    pthread_mutex_unlock(&dev->lock);
}

/* The pieces of a batch have no order; the last goes first, so that nobody comes to rely on one. */
static int copy_pieces(struct software_device *dev, struct hl_stream_handle *stream,
                       const struct software_task *task, uint64_t *bytes)
{
    int code = 0;
    for (size_t i = task->piece_count; i > 0 && !code; i--) {
        const struct hl_copy *piece = &task->pieces[i - 1];
        code = move(dev, stream, piece->dst, piece->src, piece->bytes);
        *bytes += piece->bytes;
    }
    return code;
}

static int copy_rows(struct software_device *dev, struct hl_stream_handle *stream,
                     const struct software_rows *rows, uint64_t *bytes)
{
    int code = 0;
    for (size_t i = 0; i < rows->rows && !code; i++) {
        code =
            move(dev, stream, rows->dst + i * rows->dst_pitch, rows->src + i * rows->src_pitch, rows->width);
        *bytes += rows->width;
    }
    return code;
}

static int fill(struct software_device *dev, const struct software_task *task)
{
    struct pinned to;
    if (!task->fill.bytes)
        return 0;
    if (!pin_one(dev, task->fill.dst, task->fill.bytes, &to))
        return SOFTWARE_ILLEGAL_ADDRESS;
    memset(to.at, task->fill.value, task->fill.bytes);
    unpin_one(dev, to);
    return 0;
}

static int add_to_word(struct software_device *dev, uint64_t addr, uint32_t value)
{
    struct pinned word;
    if (!pin_one(dev, addr, sizeof value, &word))
        return SOFTWARE_ILLEGAL_ADDRESS;
    __atomic_fetch_add((uint32_t *)(void *)word.at, value, __ATOMIC_RELEASE);
    unpin_one(dev, word);
    return 0;
}

static int gather(struct software_device *dev, struct hl_stream_handle *stream,
                  const struct hl_gather_launch *launch, uint64_t *bytes)
{
    struct pinned table;
    int code = 0;
    if (launch->count && !pin_one(dev, launch->descriptors, launch->count * sizeof(struct hl_gather), &table))
        return SOFTWARE_ILLEGAL_ADDRESS;
    for (uint32_t i = 0; i < launch->count && !code; i++) {
        struct hl_gather piece;
        memcpy(&piece, table.at + i * sizeof piece, sizeof piece);
        code = move(dev, stream, piece.dst, piece.src, piece.bytes);
        *bytes += piece.bytes;
    }
    if (launch->count)
        unpin_one(dev, table);
    return code || !launch->counters ? code : add_to_word(dev, launch->counters, launch->blocks);
}

static int checksum_page(struct software_device *dev, uint64_t addr, uint64_t bytes, unsigned char *sum)
{
    struct pinned page;
    uint64_t value;
    if (addr % 8)
        return SOFTWARE_MISALIGNED_ADDRESS;
    if (!pin_one(dev, addr, bytes, &page))
        return SOFTWARE_ILLEGAL_ADDRESS;
    value = hl_page_checksum(page.at, bytes);
    memcpy(sum, &value, sizeof value);
    unpin_one(dev, page);
    return 0;
}

static int checksum(struct software_device *dev, const struct hl_checksum_launch *launch)
{
    struct pinned offsets, sums;
    int code = 0;
    if (!pin_one(dev, launch->offsets, launch->count * 8ull, &offsets))
        return SOFTWARE_ILLEGAL_ADDRESS;
    if (!pin_one(dev, launch->sums, launch->count * 8ull, &sums)) {
        unpin_one(dev, offsets);
        return SOFTWARE_ILLEGAL_ADDRESS;
    }
    for (uint32_t i = 0; i < launch->count && !code; i++) {
        uint64_t offset;
        memcpy(&offset, offsets.at + 8ull * i, 8);
        code = checksum_page(dev, launch->base + offset, launch->page_bytes, sums.at + 8ull * i);
    }
    unpin_one(dev, sums);
    unpin_one(dev, offsets);
    return code;
}

bool hl_software_read_word(struct software_device *dev, uint64_t addr, uint32_t *word)
{
    const struct software_region *region = hl_software_find_region(dev, addr, sizeof *word);
    if (!region)
        return false;
    *word = __atomic_load_n((const uint32_t *)(const void *)(region->view + (addr - region->base)),
                            __ATOMIC_ACQUIRE);
    return true;
}

static int write_word(struct software_device *dev, uint64_t addr, uint32_t value)
{
    struct pinned word;
    if (!pin_one(dev, addr, sizeof value, &word))
        return SOFTWARE_ILLEGAL_ADDRESS;
    __atomic_store_n((uint32_t *)(void *)word.at, value, __ATOMIC_RELEASE);
    unpin_one(dev, word);
    return 0;
}

/* The stream runs a wait when its condition holds, or when no region has the word any more. */
static int finish_wait(struct software_device *dev, uint64_t addr)
{
    uint32_t word;
    pthread_mutex_lock(&dev->lock);
    bool found = hl_software_read_word(dev, addr, &word);
    pthread_mutex_unlock(&dev->lock);
    return found ? 0 : SOFTWARE_ILLEGAL_ADDRESS;
}

int hl_software_execute(struct software_device *dev, struct hl_stream_handle *stream,
                        const struct software_task *task)
{
    int64_t start_ns = hl_clock_ns();
    uint64_t bytes = 0;
    int code = 0;
    switch (task->kind) {
    case TASK_COPY:
        code = copy_pieces(dev, stream, task, &bytes);
        break;
    case TASK_ROWS:
        code = copy_rows(dev, stream, &task->rows, &bytes);
        break;
    case TASK_FILL:
        code = fill(dev, task);
        break;
    case TASK_GATHER:
        code = gather(dev, stream, &task->gather, &bytes);
        break;
    case TASK_CHECKSUM:
        code = checksum(dev, &task->checksum);
        break;
    case TASK_WAIT_VALUE:
        code = finish_wait(dev, task->word.addr);
        break;
    case TASK_WRITE_VALUE:
        code = write_word(dev, task->word.addr, task->word.value);
        break;
    case TASK_RECORD:
    case TASK_WAIT_EVENT:
        break;
    }
    throttle(dev, stream, start_ns, bytes);
    return code;
}

bool hl_software_access_now(struct software_device *dev, uint64_t addr, void *host, size_t bytes, bool write)
{
    struct pinned at;
    if (!pin_one(dev, addr, bytes, &at))
        return false;
    bool is_device = at.region->kind != REGION_HOST;
    if (is_device && write)
        memcpy(at.at, host, bytes);
    else if (is_device)
        memcpy(host, at.at, bytes);
    unpin_one(dev, at);
    return is_device;
}
