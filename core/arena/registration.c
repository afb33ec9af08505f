#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "core/arena/arena_private.h"
#include "core/base/checked.h"
#include "core/base/error.h"

struct hl_registration {
    hl_arena *arena;
    hl_device *dev;
    uint64_t chunks;
    hl_devptr mapped[]; /* of each chunk's first byte; the device need not map chunks side by side */
};

static unsigned char *chunk_base(const hl_arena *arena, uint64_t chunk)
{
    return arena->base + chunk * arena->chunk_bytes;
}

static uint64_t chunk_size(const hl_arena *arena, uint64_t chunk)
{
    uint64_t left = arena->bytes - chunk * arena->chunk_bytes;
    return left < arena->chunk_bytes ? left : arena->chunk_bytes;
}

/* A chunk that the device refuses to let go stays pinned as long as the device is open; nobody could do more
 * about it. */
static void unregister_chunks(hl_registration *registration, uint64_t count)
{
    hl_device *dev = registration->dev;
    while (count-- > 0)
        (void)dev->ops->host_unregister(dev, chunk_base(registration->arena, count), NULL);
}

static hl_status register_chunk(hl_registration *registration, uint64_t chunk, hl_error *err)
{
    hl_device *dev = registration->dev;
    unsigned char *base = chunk_base(registration->arena, chunk);
    hl_status status = dev->ops->host_register(dev, base, chunk_size(registration->arena, chunk), err);
    if (status != HL_OK)
        return status;
    status = dev->ops->host_pointer(dev, base, &registration->mapped[chunk], err);
    if (status != HL_OK)
        (void)dev->ops->host_unregister(dev, base, NULL);
    return status;
}

/* The device's error, with the chunk in front. */
static hl_status name_chunk(const hl_registration *registration, uint64_t chunk, const hl_error *cause,
                            hl_error *err)
{
    const hl_arena *arena = registration->arena;
    hl_status status = HL_FAIL_DEVICE(
        err, cause->status, "arena.register", cause->device_code,
        "chunk %" PRIu64 " of %" PRIu64 " (offset %" PRIu64 ", %" PRIu64 " bytes): %s", chunk,
        registration->chunks, chunk * arena->chunk_bytes, chunk_size(arena, chunk), cause->text);
    if (err)
        err->sys_errno = cause->sys_errno; /* its description is already in the text */
    return status;
}

static hl_status register_all(hl_registration *registration, hl_arena_progress progress, void *user,
                              hl_error *err)
{
    const hl_arena *arena = registration->arena;
    if (progress)
        progress(user, "register", 0, arena->bytes);
    for (uint64_t chunk = 0; chunk < registration->chunks; chunk++) {
        hl_error cause = {0};
        hl_status status = register_chunk(registration, chunk, &cause);
        if (status != HL_OK) {
            unregister_chunks(registration, chunk);
            return name_chunk(registration, chunk, &cause, err);
        }
        if (progress)
            progress(user, "register", chunk * arena->chunk_bytes + chunk_size(arena, chunk), arena->bytes);
    }
    return HL_OK;
}

hl_status hl_arena_register(hl_arena *arena, hl_device *dev, hl_arena_progress progress, void *progress_user,
                            hl_registration **out, hl_error *err)
{
    uint64_t chunks = (arena->bytes - 1) / arena->chunk_bytes + 1;
    hl_registration *registration = calloc(1, sizeof *registration + chunks * sizeof registration->mapped[0]);
    if (!registration)
        return HL_FAIL(err, HL_E_NOMEM, "arena.register", "no memory for %" PRIu64 " chunks", chunks);
    registration->arena = arena;
    registration->dev = dev;
    registration->chunks = chunks;
    hl_status status = hl_device_enter(dev, err);
    if (status != HL_OK)
        goto err_free;
    status = register_all(registration, progress, progress_user, err);
    hl_device_leave(dev);
    if (status != HL_OK)
        goto err_free;
    atomic_fetch_add(&arena->registrations, 1);
    *out = registration;
    return HL_OK;

err_free:
    free(registration);
    return status;
}

void hl_registration_release(hl_registration *registration)
{
    if (!registration)
        return;
    /* A device that cannot be entered is lost, and its registrations with it. */
    if (hl_device_enter(registration->dev, NULL) == HL_OK) {
        unregister_chunks(registration, registration->chunks);
        hl_device_leave(registration->dev);
    }
    unsigned before = atomic_fetch_sub(&registration->arena->registrations, 1);
    assert(before > 0);
    free(registration);
}

const hl_arena *hl_registration_arena(const hl_registration *registration)
{
    return registration->arena;
}

hl_status hl_registration_pointer(const hl_registration *registration, uint64_t offset, uint64_t bytes,
                                  hl_devptr *ptr, hl_error *err)
{
    const hl_arena *arena = registration->arena;
    if (bytes == 0)
        return HL_FAIL(err, HL_E_INVALID, "arena.pointer", "bytes is 0");
    if (!hl_within(offset, bytes, arena->bytes))
        return HL_FAIL(err, HL_E_RANGE, "arena.pointer",
                       "offset %" PRIu64 " and %" PRIu64 " bytes leave the arena of %" PRIu64, offset, bytes,
                       arena->bytes);
    uint64_t chunk = offset / arena->chunk_bytes, inside = offset % arena->chunk_bytes;
    if (!hl_within(inside, bytes, arena->chunk_bytes))
        return HL_FAIL(err, HL_E_RANGE, "arena.pointer",
                       "offset %" PRIu64 " and %" PRIu64 " bytes cross a chunk of %" PRIu64, offset, bytes,
                       arena->chunk_bytes);
    *ptr = registration->mapped[chunk] + inside;
    return HL_OK;
}
