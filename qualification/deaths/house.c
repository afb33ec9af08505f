#include "qualification/deaths/house.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>

#include "core/base/clock.h"
#include "manager/operation.h"
#include "qualification/deaths/stage.h"
#include "qualification/restore/manager_process.h"

#define TICK_NS 20000000l /* of maintenance, which finds what a lost notification hid */
#define PATIENCE (STAGE_PATIENCE_MS * 1000000ll)

static void on_log(void *user, enum hl_manager_log_level level, const char *text)
{
    (void)user;
    if (level != HL_MANAGER_DEBUG)
        fprintf(stderr, "Manager: %s\n", text);
}

bool house_open(struct house *house, uint64_t arena_bytes)
{
    hl_manager_options options;
    hl_error err = {0};
    *house = (struct house){0};
    hl_manager_options_init(&options);
    options.socket_path = MANAGER_SOCKET;
    options.arena_bytes = arena_bytes;
    options.arena_count = 1;
    options.index_blocks = 256;
    options.spin_us = 0;
    options.touch_threads = 1;
    options.numa_node = -2;
    options.lease_ttl_ms = 3600u * 1000;
    options.software = true;
    options.log = on_log;
    if (hl_manager_start(&options, &house->manager, &err) != HL_OK) {
        fprintf(stderr, "hl_manager_start: %s\n", err.text);
        MUST(err.status != HL_OK && err.text[0] != '\0');
        return false;
    }
    const struct timespec tick = {.tv_nsec = TICK_NS};
    const struct itimerspec each = {.it_interval = tick, .it_value = tick};
    pthread_mutex_lock(&house->manager->lock);
    house->manager->part_bytes = HOUSE_PART_BYTES;
    MUST(timerfd_settime(house->manager->timer, 0, &each, NULL) == 0);
    pthread_mutex_unlock(&house->manager->lock);
    return true;
}

void house_freeze(struct house *house)
{
    if (!house->frozen)
        pthread_mutex_lock(&house->manager->lock);
    house->frozen = true;
}

void house_thaw(struct house *house)
{
    if (house->frozen)
        pthread_mutex_unlock(&house->manager->lock);
    house->frozen = false;
}

/* Lock held. */
static struct manager_session *connected(const struct house *house)
{
    for (uint32_t i = 0; i < HL_SESSIONS; i++)
        if (house->manager->sessions[i].state == MANAGER_SESSION_LIVE)
            return &house->manager->sessions[i];
    return NULL;
}

bool house_fill_bank(struct house *house)
{
    pthread_mutex_lock(&house->manager->lock);
    struct manager_session *session = connected(house);
    uint32_t offset;
    const bool filled = session && !house->filled && hl_bank_take(session->bank, HL_PLAN_PART_BYTES, &offset);
    if (filled)
        house->filled = session->serial;
    pthread_mutex_unlock(&house->manager->lock);
    return filled;
}

void house_empty_bank(struct house *house)
{
    pthread_mutex_lock(&house->manager->lock);
    for (uint32_t i = 0; house->filled && i < HL_SESSIONS; i++) {
        struct manager_session *session = &house->manager->sessions[i];
        if (session->state == MANAGER_SESSION_EMPTY || session->serial != house->filled)
            continue;
        hl_bank_give(session->bank, 0, HL_PLAN_PART_BYTES);
        manager_grants_resume(house->manager, session);
    }
    house->filled = 0;
    pthread_mutex_unlock(&house->manager->lock);
}

bool house_has_deferred(const struct house *house)
{
    pthread_mutex_lock(&house->manager->lock);
    const struct manager_session *session = connected(house);
    const bool deferred = session && session->deferred_first;
    pthread_mutex_unlock(&house->manager->lock);
    return deferred;
}

void house_expire_leases(const struct house *house)
{
    pthread_mutex_lock(&house->manager->lock);
    hl_lease_expire_due(house->manager->leases, INT64_MAX);
    pthread_mutex_unlock(&house->manager->lock);
}

enum stage_word house_serve(struct house *house, enum stage_word word)
{
    switch (word) {
    case STAGE_FREEZE:
        house_freeze(house);
        return STAGE_DONE;
    case STAGE_THAW:
        house_thaw(house);
        return STAGE_DONE;
    case STAGE_FILL:
        return house_fill_bank(house) ? STAGE_DONE : STAGE_BUSY;
    case STAGE_EMPTY:
        house_empty_bank(house);
        return STAGE_DONE;
    case STAGE_IS_DEFERRED:
        return house_has_deferred(house) ? STAGE_DONE : STAGE_BUSY;
    case STAGE_RELEASE:
        return house_release_quarantine(house) ? STAGE_DONE : STAGE_BUSY;
    case STAGE_EXPIRE:
        if (house_stats(house).leases > 1)
            return STAGE_BUSY;
        house_expire_leases(house);
        return STAGE_DONE;
    default:
        return STAGE_DONE;
    }
}

hl_manager_snapshot house_stats(const struct house *house)
{
    hl_manager_snapshot snapshot;
    hl_error err = {0};
    MUST_OK(hl_manager_stats(house->manager, &snapshot, &err), err);
    return snapshot;
}

bool house_await_no_sessions(const struct house *house)
{
    const int64_t until = hl_clock_ns() + PATIENCE;
    while (house_stats(house).sessions != 0) {
        if (hl_clock_ns() > until) {
            fprintf(stderr, "a session of a dead engine has not ended\n");
            return false;
        }
        sched_yield();
    }
    return true;
}

/* Records that are granted to an engine of a session which has ended. */
static uint32_t count_granted(const struct house *house)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < HL_SESSIONS; i++) {
        struct manager_session *session = &house->manager->sessions[i];
        if (session->state == MANAGER_SESSION_EMPTY)
            continue;
        for (uint32_t record = 0; session->grants && record < HL_GRANT_RECORDS; record++) {
            const uint32_t state = hl_grant_load(session->grants, record).state;
            count += session->socket >= 0 ||
                     (session->operations[record] && state != HL_GRANT_ACTIVE && state != HL_GRANT_DRAINED);
        }
    }
    return count;
}

/* Lock held. */
static void refuse_connected(const struct house *house)
{
    for (uint32_t i = 0; i < HL_SESSIONS; i++) {
        struct manager_session *session = &house->manager->sessions[i];
        if (session->state != MANAGER_SESSION_LIVE || session->broken)
            continue;
        session->ended = true;
        session->broken = "the test ends it";
        shutdown(session->socket, SHUT_RDWR);
    }
}

/* Also a session that opens only now, as its engine was stopped while it connected. */
void house_refuse_sessions(const struct house *house)
{
    const int64_t until = hl_clock_ns() + PATIENCE;
    uint32_t left = 1;
    while (left) {
        MUST(hl_clock_ns() < until);
        sched_yield();
        pthread_mutex_lock(&house->manager->lock);
        refuse_connected(house);
        left = count_granted(house);
        pthread_mutex_unlock(&house->manager->lock);
    }
}

bool house_is_sound(const struct house *house)
{
    hl_error err = {0};
    if (hl_manager_check(house->manager, &err) == HL_OK)
        return true;
    fprintf(stderr, "hl_manager_check: %s\n", err.text);
    return false;
}

bool house_is_home(const struct house *house)
{
    const hl_manager_snapshot now = house_stats(house);
    if (house_is_sound(house) && now.sessions + now.unresolved + now.bindings + now.leases == 0 &&
        now.operations == 0 && now.quarantined == 0 && now.reserved_bytes == 0 && now.plan_bytes == 0)
        return true;
    fprintf(stderr,
            "not at home: %u sessions, %u unresolved, %u bindings, %u leases, %u operations, %u in "
            "quarantine, %llu bytes reserved, %llu of plans\n",
            now.sessions, now.unresolved, now.bindings, now.leases, now.operations, now.quarantined,
            (unsigned long long)now.reserved_bytes, (unsigned long long)now.plan_bytes);
    return false;
}

/* The `index`-th operation in quarantine; NULL. Lock held. */
static struct manager_operation *quarantined(const struct house *house, uint32_t index)
{
    for (uint32_t i = 0; i < HL_SESSIONS; i++)
        for (uint32_t record = 0; record < HL_GRANT_RECORDS; record++) {
            struct manager_operation *operation = house->manager->sessions[i].operations[record];
            if (operation && operation->phase == MANAGER_QUARANTINED && index-- == 0)
                return operation;
        }
    return NULL;
}

uint32_t house_release_quarantine(const struct house *house)
{
    uint32_t count = 0;
    struct manager_operation *operation;
    pthread_mutex_lock(&house->manager->lock);
    while ((operation = quarantined(house, 0)) != NULL) {
        hl_error err = {0};
        uint64_t identity[3] = {operation->identity.epoch,
                                (uint64_t)operation->identity.record << 32 | operation->identity.generation};
        memcpy(&identity[2], operation->identity.token, sizeof identity[2]);
        MUST_OK(manager_quarantine_release(house->manager, identity, "the test's operator", &err), err);
        count++;
    }
    pthread_mutex_unlock(&house->manager->lock);
    return count;
}

uint32_t house_strange_quarantine(const struct house *house)
{
    uint32_t strange = 0;
    pthread_mutex_lock(&house->manager->lock);
    for (uint32_t i = 0;; i++) {
        const struct manager_operation *operation = quarantined(house, i);
        if (!operation)
            break;
        const uint32_t state = hl_grant_load(operation->session->grants, operation->identity.record).state;
        if (state != HL_GRANT_ACTIVE) {
            fprintf(stderr, "an operation is in quarantine, and its record is %s\n",
                    hl_grant_state_name(state));
            strange++;
        }
    }
    pthread_mutex_unlock(&house->manager->lock);
    return strange;
}

static uint64_t hash_entry(const hl_manager *manager, hl_entry_id entry, uint64_t hash)
{
    struct hl_index_source source;
    hl_error err = {0};
    MUST_OK(hl_index_source(manager->index, entry, &source, &err), err);
    const unsigned char *bytes =
        (const unsigned char *)hl_arena_base(manager->arenas[source.arena]) + source.offset;
    for (uint64_t i = 0; i < source.bytes; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3ull;
    return hash;
}

uint64_t house_quarantined_bytes(const struct house *house)
{
    uint64_t hash = 0xcbf29ce484222325ull;
    pthread_mutex_lock(&house->manager->lock);
    uint32_t index = 0;
    for (const struct manager_operation *one; (one = quarantined(house, index)) != NULL; index++)
        for (uint32_t i = 0; i < one->pins_count; i++) {
            size_t count = 0;
            const hl_entry_id *entries = hl_pins_entries(one->pins[i], &count);
            for (size_t j = 0; j < count; j++)
                hash = hash_entry(house->manager, entries[j], hash);
        }
    pthread_mutex_unlock(&house->manager->lock);
    return index ? hash : 0;
}

bool house_close(struct house *house)
{
    house_thaw(house);
    house_empty_bank(house);
    const uint32_t left = hl_manager_stop(house->manager);
    house->manager = NULL;
    if (left)
        fprintf(stderr, "%u operations are left in a Manager that has stopped\n", left);
    return left == 0;
}
