/* A Manager's start and end, and what its callers may ask in between. */
#include "hostlane/manager.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "core/arena/host_memory.h"
#include "core/base/checked.h"
#include "core/base/clock.h"
#include "core/base/error.h"
#include "faults/hook.h"
#include "manager/check.h"
#include "manager/dispatch.h"
#include "manager/gpus.h"
#include "manager/options.h"
#include "manager/session.h"

static const char stage[] = "manager.start";

/* Managers that ended with operations in quarantine: somebody may still read their arenas, which therefore
 * stay for as long as the process. Kept reachable so that a leak checker can tell them from a leak. */
static _Atomic(hl_manager *) kept_for_quarantine;

enum { LEASES = 1u << 16, NAMESPACES = 4096 };

/* --- what it consists of --- */

static hl_status make_epoch(uint64_t *epoch, hl_error *err)
{
    do
        if (getrandom(epoch, sizeof *epoch, 0) != sizeof *epoch)
            return HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, errno, "cannot make an epoch");
    while (*epoch == 0);
    return HL_OK;
}

static void close_arenas(hl_manager *manager)
{
    while (manager->arena_count > 0)
        hl_arena_destroy(manager->arenas[--manager->arena_count]);
}

/* An arena's id is the epoch with the arena's number in its low bits: never 0, and not that of another
 * Manager's arena, also one that had this socket before. */
static hl_status make_arenas(hl_manager *manager, int device_node, hl_error *err)
{
    const hl_manager_options *options = &manager->options;
    const int node = options->numa_node == -1 ? device_node : options->numa_node;
    struct manager_progress progress = {.options = options};
    struct hl_arena_options wanted = {
        .bytes = options->arena_bytes,
        .pages = (enum hl_page_size)options->page_size,
        .numa_node = node < 0 ? -1 : node,
        .threads = options->touch_threads,
        .progress = manager_progress_report,
        .progress_user = &progress,
    };
    const uint64_t arena_bytes = hl_align_up(options->arena_bytes, hl_host_page_bytes(wanted.pages));
    progress.total_bytes = arena_bytes * options->arena_count;
    for (uint32_t i = 0; i < options->arena_count; i++) {
        wanted.arena_id = (manager->epoch & ~0xffull) | (i + 1);
        hl_status status =
            HL_FAULT_CALL(manager_arena_create, hl_arena_create(&wanted, &manager->arenas[i], err),
                          HL_FAIL_ERRNO(err, HL_E_NOMEM, stage, errno, "arena %u cannot be had", i));
        if (status != HL_OK) {
            close_arenas(manager);
            return status;
        }
        manager->arena_count++;
        progress.before_bytes += arena_bytes;
    }
    return HL_OK;
}

static void close_tables(hl_manager *manager)
{
    hl_leases_destroy(manager->leases);
    hl_namespaces_destroy(manager->namespaces);
    hl_index_destroy(manager->index);
}

static hl_status make_tables(hl_manager *manager, hl_error *err)
{
    const struct hl_index_options index = {.capacity = manager->options.index_blocks};
    const struct hl_leases_options leases = {.most = LEASES};
    hl_status status = hl_index_create(&index, &manager->index, err);
    if (status == HL_OK)
        status = hl_namespaces_create(NAMESPACES, NULL, &manager->namespaces, err);
    if (status == HL_OK)
        status = hl_leases_create(&leases, manager->index, &manager->leases, err);
    if (status != HL_OK)
        close_tables(manager);
    return status;
}

static hl_status check_host(hl_manager *manager, hl_error *err)
{
    const uint64_t pinned = manager->options.arena_bytes * manager->options.arena_count;
    uint64_t memlock;
    bool is_short;
    hl_status status = manager_options_check_host("", pinned, &memlock, &is_short, err);
    if (status == HL_OK && is_short && !manager->options.software)
        manager_log(manager, HL_MANAGER_WARNING,
                    "RLIMIT_MEMLOCK is %" PRIu64 " bytes and %" PRIu64
                    " will be pinned: raise it (ulimit -l, LimitMEMLOCK=) if the driver refuses",
                    memlock, pinned);
    return status;
}

/* --- start --- */

static hl_status allocate(const hl_manager_options *options, hl_manager **out, hl_error *err)
{
    hl_manager *manager = calloc(1, sizeof *manager);
    char *path = strdup(options->socket_path);
    if (!manager || !path) {
        free(path);
        free(manager);
        return HL_FAIL(err, HL_E_NOMEM, stage, "no memory for a Manager");
    }
    manager->options = *options;
    manager->started_ns = hl_clock_ns();
    manager->options.socket_path = path;
    manager->listener = manager->epoll = manager->wake = manager->timer = -1;
    pthread_mutex_init(&manager->lock, NULL);
    for (uint32_t i = 0; i < MANAGER_GREETINGS; i++)
        manager->greetings[i].socket = -1;
    *out = manager;
    return HL_OK;
}

static void deallocate(hl_manager *manager)
{
    pthread_mutex_destroy(&manager->lock);
    free(manager->plan_blocks);
    free((char *)(uintptr_t)manager->options.socket_path);
    free(manager);
}

/* While it still listens, so that the name is not yet another's. */
static void close_listener(hl_manager *manager)
{
    if (manager->listener < 0)
        return;
    unlink(manager->options.socket_path);
    close(manager->listener);
    manager->listener = -1;
}

/* Everything that a Manager holds while it serves, in an order in which each step may fail. */
static hl_status furnish(hl_manager *manager, hl_error *err)
{
    hl_device *dev;
    uint32_t gpu;
    hl_status status = manager_gpus_open_first(manager, &dev, err);
    if (status != HL_OK)
        return status;
    status = make_arenas(manager, dev->info.numa_node, err);
    if (status != HL_OK)
        goto err_close_device;
    status = make_tables(manager, err);
    if (status != HL_OK)
        goto err_close_arenas;
    status = manager_dispatch_open(manager, err);
    if (status != HL_OK)
        goto err_close_tables;
    status = manager_gpus_add(manager, dev, &gpu, err);
    if (status != HL_OK)
        goto err_close_dispatch;
    return HL_OK;
err_close_dispatch:
    manager_dispatch_close(manager);
err_close_tables:
    close_tables(manager);
err_close_arenas:
    close_arenas(manager);
err_close_device:
    hl_device_close(dev);
    return status;
}

static void strip(hl_manager *manager)
{
    manager_gpus_close(manager);
    manager_dispatch_close(manager);
    close_tables(manager);
    close_arenas(manager);
}

HL_API hl_status hl_manager_start(const hl_manager_options *given, hl_manager **out, hl_error *err)
{
    hl_manager_options options;
    hl_manager *manager;
    hl_status status = manager_options_read(given, &options, err);
    if (status == HL_OK)
        status = allocate(&options, &manager, err);
    if (status != HL_OK)
        return status;
    status = make_epoch(&manager->epoch, err);
    if (status == HL_OK)
        status = check_host(manager, err);
    /* First, for a second Manager must be refused before it pins anything. Clients that connect meanwhile
     * wait. */
    if (status == HL_OK)
        status = hl_channel_listen(manager->options.socket_path, &manager->listener, err);
    if (status != HL_OK)
        goto err_deallocate;
    status = furnish(manager, err);
    if (status != HL_OK)
        goto err_close_listener;
    int failed =
        HL_FAULT_CALL(manager_dispatch_start,
                      pthread_create(&manager->dispatcher, NULL, manager_dispatch_run, manager), errno);
    if (failed) {
        status = HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, failed, "cannot start the dispatcher");
        goto err_strip;
    }
    *out = manager;
    return HL_OK;
err_strip:
    manager_gpus_stop_publishers(manager);
    strip(manager);
err_close_listener:
    close_listener(manager);
err_deallocate:
    deallocate(manager);
    return status;
}

/* --- stop --- */

static uint32_t count_quarantine(const hl_manager *manager)
{
    uint32_t quarantined = 0;
    for (uint32_t i = 0; i < HL_SESSIONS; i++)
        quarantined += manager->sessions[i].quarantined;
    return quarantined;
}

HL_API uint32_t hl_manager_stop(hl_manager *manager)
{
    if (!manager)
        return 0;
    pthread_mutex_lock(&manager->lock);
    HL_FAULT_STORE(manager_stop, manager->stopping = true);
    manager_dispatch_listen(manager, false);
    close_listener(manager);
    manager_session_end_greetings(manager);
    pthread_mutex_unlock(&manager->lock);
    manager_dispatch_wake(manager);
    pthread_join(manager->dispatcher, NULL);
    manager_gpus_stop_publishers(manager);
    uint32_t quarantined = count_quarantine(manager);
    if (quarantined == 0) {
        strip(manager);
        deallocate(manager);
        return 0;
    }
    manager_log(manager, HL_MANAGER_ERROR,
                "stopped with %u operations in quarantine: their arenas stay pinned until this process ends",
                quarantined);
    manager_dispatch_close(manager);
    manager->kept_before = atomic_exchange(&kept_for_quarantine, manager);
    return quarantined;
}

/* --- questions --- */

HL_API hl_status hl_manager_stats(hl_manager *manager, hl_manager_snapshot *snapshot, hl_error *err)
{
    if (!manager || !snapshot)
        return HL_FAIL(err, HL_E_INVALID, "manager.stats", "manager or snapshot is NULL");
    pthread_mutex_lock(&manager->lock);
    manager_take_snapshot(manager, snapshot);
    pthread_mutex_unlock(&manager->lock);
    return HL_OK;
}

HL_API hl_status hl_manager_check(hl_manager *manager, hl_error *err)
{
    if (!manager)
        return HL_FAIL(err, HL_E_INVALID, "manager.check", "manager is NULL");
    pthread_mutex_lock(&manager->lock);
    hl_status status = manager_check_locked(manager, err);
    pthread_mutex_unlock(&manager->lock);
    return status;
}
