/* The retirement thread: it holds each settled operation's record until the Manager has reaped it, and
 * watches whether the Manager is there at all. Nobody's readiness or result waits for it (R11). */
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "engine/engine_internal.h"
#include "faults/hook.h"

enum watched { WATCH_SOCKET, WATCH_PROCESS, WATCH_RESTORE, WATCH_PUBLISH, WATCH_WAKE, WATCHED };

static void release(struct engine_owner *owner)
{
    if (owner->owner && owner->release)
        HL_FAULT_STORE(engine_owner_release, owner->release(owner->owner));
    *owner = (struct engine_owner){0};
}

/* Whether the record has been dealt with; *usable when it may serve a new generation. */
static bool retire_record(hl_engine *engine, const hl_restore *restore, bool *usable)
{
    if (restore->taken_back) {
        *usable = true;
        return true;
    }
    if (restore->abandoned || atomic_load(&engine->dead))
        return true;
    struct hl_grant_word word = hl_grant_load(engine->grants, restore->record);
    if (word.generation != restore->generation)
        return true; /* scribbled: never used again */
    *usable = word.state == HL_GRANT_REAPED &&
              HL_FAULT_MOVE(grant_free, hl_grant_move(engine->grants, restore->record, restore->generation,
                                                      HL_GRANT_REAPED, HL_GRANT_FREE));
    return *usable;
}

static void give_record(hl_engine *engine, uint32_t record)
{
    struct hl_grant_word word = hl_grant_load(engine->grants, record);
    if (word.state != HL_GRANT_FREE)
        return; /* scribbled */
    pthread_mutex_lock(&engine->lock);
    engine->generations[record] = word.generation;
    HL_FAULT_STORE(engine_record_give, engine->free_records[engine->free_count++] = (uint16_t)record);
    pthread_mutex_unlock(&engine->lock);
}

static void retire_all(hl_engine *engine, bool ending)
{
    pthread_mutex_lock(&engine->lock);
    hl_restore *list = engine->retiring, *kept = NULL;
    engine->retiring = NULL;
    pthread_mutex_unlock(&engine->lock);
    while (list) {
        hl_restore *restore = list;
        bool usable = false;
        list = restore->next_retiring;
        release(&restore->events_owner);
        if (retire_record(engine, restore, &usable) || ending) {
            if (usable)
                give_record(engine, restore->record);
            engine_restore_drop(restore);
        } else {
            restore->next_retiring = kept;
            kept = restore;
        }
    }
    pthread_mutex_lock(&engine->lock);
    while (kept) {
        hl_restore *next = kept->next_retiring;
        kept->next_retiring = engine->retiring;
        engine->retiring = kept;
        kept = next;
    }
    pthread_mutex_unlock(&engine->lock);
}

static void run_releases(hl_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    while (engine->releases) {
        struct engine_release *next = engine->releases;
        engine->releases = next->next;
        pthread_mutex_unlock(&engine->lock);
        for (uint32_t i = 0; i < next->count; i++)
            release(&next->owners[i]);
        pthread_mutex_lock(&engine->lock);
        next->done = true;
        pthread_cond_broadcast(&engine->changed);
    }
    pthread_mutex_unlock(&engine->lock);
}

void engine_release_owners(hl_engine *engine, struct engine_owner *owners, uint32_t count)
{
    struct engine_release waiting = {.owners = owners, .count = count};
    pthread_mutex_lock(&engine->lock);
    waiting.next = engine->releases;
    engine->releases = &waiting;
    engine_signal(engine->retire_wake);
    while (!waiting.done)
        engine_cond_wait(&engine->changed, &engine->lock, -1);
    pthread_mutex_unlock(&engine->lock);
}

/* --- the Manager's end --- */

static void stop_watching(hl_engine *engine, int fd)
{
    epoll_ctl(engine->retire_epoll, EPOLL_CTL_DEL, fd, NULL);
}

static void see_death(hl_engine *engine)
{
    hl_error why = {0};
    hl_error_set(&why, HL_E_PEER, "engine.peer", 0, 0, "the Manager, process %d, has ended",
                 (int)engine->manager);
    stop_watching(engine, engine->pidfd);
    atomic_store(&engine->dead, true);
    engine_lose(engine, &why);
}

static void see_hangup(hl_engine *engine)
{
    hl_error why = {0};
    hl_error_set(&why, HL_E_PEER, "engine.peer", 0, 0, "the Manager has closed the session");
    stop_watching(engine, engine->socket);
    engine_lose(engine, &why);
}

static void collect_publishes(hl_engine *engine)
{
    hl_error why = {0};
    bool dead = atomic_load(&engine->dead);
    pthread_mutex_lock(&engine->lock);
    bool any = engine->publishes > 0;
    pthread_mutex_unlock(&engine->lock);
    if (!any)
        return;
    if (dead)
        engine_check_peer(engine, &why);
    for (uint32_t slot = 0; slot < HL_PUBLISH_SLOTS; slot++)
        engine_publish_collect(engine, slot, dead ? &why : NULL);
}

/* How long it may sleep; while something is awaited from the Manager, no longer than a tick (I6). */
static int wait_ms(hl_engine *engine, bool *stop)
{
    pthread_mutex_lock(&engine->lock);
    bool waiting = engine->retiring != NULL || engine->publishes > 0;
    *stop = engine->stop;
    pthread_mutex_unlock(&engine->lock);
    return waiting ? (int)(engine->tuning.tick_ns / 1000000) + 1 : -1;
}

static void *retire(void *argument)
{
    hl_engine *engine = argument;
    struct epoll_event events[WATCHED];
    bool stop = false;
    pthread_setname_np(pthread_self(), "hl-retire");
    for (;;) {
        int timeout = wait_ms(engine, &stop);
        if (stop)
            break;
        int count = epoll_wait(engine->retire_epoll, events, WATCHED, timeout);
        for (int i = 0; i < count; i++) {
            if (events[i].data.u32 == WATCH_PROCESS)
                see_death(engine);
            else if (events[i].data.u32 == WATCH_SOCKET)
                see_hangup(engine);
            else if (events[i].data.u32 == WATCH_WAKE)
                engine_quiet(engine->retire_wake);
        }
        collect_publishes(engine);
        retire_all(engine, false);
        run_releases(engine);
    }
    retire_all(engine, true);
    return NULL;
}

hl_status engine_retire_start(hl_engine *engine, hl_error *err)
{
    static const char stage[] = "engine.retire";
    const struct {
        int fd;
        uint32_t events;
    } watched[WATCHED] = {[WATCH_SOCKET] = {engine->socket, EPOLLRDHUP},
                          [WATCH_PROCESS] = {engine->pidfd, EPOLLIN},
                          [WATCH_RESTORE] = {engine->restore_fd, EPOLLIN | EPOLLET},
                          [WATCH_PUBLISH] = {engine->publish_fd, EPOLLIN | EPOLLET},
                          [WATCH_WAKE] = {engine->retire_wake, EPOLLIN}};
    engine->retire_epoll = epoll_create1(EPOLL_CLOEXEC);
    if (engine->retire_epoll < 0)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, errno, "cannot create an epoll set");
    for (uint32_t i = 0; i < WATCHED; i++) {
        struct epoll_event event = {.events = watched[i].events, .data.u32 = i};
        if (epoll_ctl(engine->retire_epoll, EPOLL_CTL_ADD, watched[i].fd, &event) != 0) {
            hl_status status = HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, errno, "cannot watch the Manager");
            close(engine->retire_epoll);
            return status;
        }
    }
    int failed =
        HL_FAULT_CALL(engine_retire_start, pthread_create(&engine->retirement, NULL, retire, engine), errno);
    if (failed) {
        close(engine->retire_epoll);
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, failed, "cannot start the retirement thread");
    }
    return HL_OK;
}

void engine_retire_stop(hl_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    engine->stop = true;
    pthread_mutex_unlock(&engine->lock);
    engine_signal(engine->retire_wake);
    pthread_join(engine->retirement, NULL);
    close(engine->retire_epoll);
    engine->retire_epoll = -1;
}
