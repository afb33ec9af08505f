/* The Manager's arenas as one GPU sees them: mapped and registered once, shared by the GPU's bindings. Every
 * pointer comes from this process's own mapping. */
#include <stdlib.h>
#include <sys/stat.h>

#include "core/base/error.h"
#include "engine/engine_internal.h"
#include "faults/hook.h"

static const char stage[] = "engine.arenas";

/* The fd must be of the memory that is mapped under this id already. */
static hl_status check_same(const struct engine_arena *arena, uint64_t bytes, uint64_t chunk_bytes, int fd,
                            hl_error *err)
{
    struct stat mine, theirs;
    if (arena->bytes != bytes || arena->chunk_bytes != chunk_bytes)
        return HL_FAIL(
            err, HL_E_PROTOCOL, stage, "arena %llu now has %llu bytes in chunks of %llu, not %llu in %llu",
            (unsigned long long)arena->id, (unsigned long long)bytes, (unsigned long long)chunk_bytes,
            (unsigned long long)arena->bytes, (unsigned long long)arena->chunk_bytes);
    if (fstat(hl_arena_fd(arena->arena), &mine) != 0 || fstat(fd, &theirs) != 0 ||
        mine.st_ino != theirs.st_ino || mine.st_dev != theirs.st_dev)
        return HL_FAIL(err, HL_E_PROTOCOL, stage, "arena %llu is now another memory",
                       (unsigned long long)arena->id);
    return HL_OK;
}

static void free_arena(struct engine_arena *arena)
{
    hl_registration_release(arena->registration);
    hl_arena_destroy(arena->arena);
    free(arena);
}

static hl_status add_arena(struct engine_gpu *gpu, uint64_t id, uint64_t bytes, uint64_t chunk_bytes, int fd,
                           struct engine_arena **out, hl_error *err)
{
    struct engine_arena *arena = calloc(1, sizeof *arena);
    if (!arena)
        return HL_FAIL(err, HL_E_NOMEM, stage, "no memory for an arena");
    *arena = (struct engine_arena){.id = id, .bytes = bytes, .chunk_bytes = chunk_bytes};
    hl_status status =
        HL_FAULT_CALL(engine_arena_import, hl_arena_import(fd, id, bytes, chunk_bytes, &arena->arena, err),
                      HL_FAIL_ERRNO(err, HL_E_NOMEM, stage, errno, "cannot map an arena"));
    if (status == HL_OK)
        status =
            HL_FAULT_CALL(engine_arena_register,
                          hl_arena_register(arena->arena, gpu->dev, NULL, NULL, &arena->registration, err),
                          HL_FAIL_ERRNO(err, HL_E_NOMEM, stage, errno, "cannot register an arena"));
    if (status != HL_OK) {
        free_arena(arena);
        return status;
    }
    arena->next = gpu->arenas;
    gpu->arenas = arena;
    *out = arena;
    return HL_OK;
}

static hl_status take_arena(struct hl_binding *binding, uint64_t id, uint64_t bytes, uint64_t chunk_bytes,
                            int fd, hl_error *err)
{
    struct engine_gpu *gpu = binding->gpu;
    struct engine_arena *arena = gpu->arenas;
    for (uint32_t i = 0; i < binding->arena_count; i++)
        if (binding->arenas[i]->id == id)
            return HL_FAIL(err, HL_E_PROTOCOL, stage, "arena %llu is named twice", (unsigned long long)id);
    while (arena && arena->id != id)
        arena = arena->next;
    hl_status status = arena ? check_same(arena, bytes, chunk_bytes, fd, err)
                             : add_arena(gpu, id, bytes, chunk_bytes, fd, &arena, err);
    if (status != HL_OK)
        return status;
    arena->references++;
    binding->arenas[binding->arena_count++] = arena;
    return HL_OK;
}

hl_status engine_arenas_take(struct hl_binding *binding, const struct hl_registered *reply,
                             struct hl_packet *packet, hl_error *err)
{
    hl_status status = HL_OK;
    if (reply->arena_count != packet->fd_count)
        return HL_FAIL(err, HL_E_PROTOCOL, stage, "%u arenas came with %u fds", reply->arena_count,
                       packet->fd_count);
    for (uint32_t i = 0; status == HL_OK && i < reply->arena_count; i++)
        status = take_arena(binding, reply->arenas[i].arena_id, reply->arenas[i].bytes, reply->chunk_bytes,
                            packet->fds[i], err);
    if (status != HL_OK)
        engine_arenas_give(binding);
    return status;
}

void engine_arenas_give(struct hl_binding *binding)
{
    for (uint32_t i = 0; i < binding->arena_count; i++) {
        struct engine_arena *arena = binding->arenas[i];
        if (--arena->references > 0)
            continue;
        struct engine_arena **link = &binding->gpu->arenas;
        while (*link != arena)
            link = &(*link)->next;
        *link = arena->next;
        free_arena(arena);
    }
    binding->arena_count = 0;
}
