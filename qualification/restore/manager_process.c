#include "qualification/restore/manager_process.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "manager/state.h"
#include "qualification/restore/world.h"

enum verb { START = 1, STATS, CHECK, EXPIRE, BOUND, ARENA, AWAIT_LOG, LOGGED, FOOTPRINT, STOP };

enum { LOG_BYTES = 1 << 20 };

static struct {
    hl_manager *manager;
    pthread_mutex_t lock;
    pthread_cond_t grown;
    size_t size;
    char text[LOG_BYTES];
} role = {.lock = PTHREAD_MUTEX_INITIALIZER, .grown = PTHREAD_COND_INITIALIZER};

/* --- in the Manager's process --- */

static void on_log(void *user, enum hl_manager_log_level level, const char *text)
{
    (void)user;
    (void)level;
    pthread_mutex_lock(&role.lock);
    int size = snprintf(role.text + role.size, sizeof role.text - role.size, "%s\n", text);
    if (role.size + (size_t)size < sizeof role.text)
        role.size += (size_t)size;
    else
        role.text[role.size] = '\0';
    pthread_cond_broadcast(&role.grown);
    pthread_mutex_unlock(&role.lock);
}

static uint32_t count_log(const char *text)
{
    uint32_t count = 0;
    for (const char *at = strstr(role.text, text); at; at = strstr(at + 1, text))
        count++;
    return count;
}

static uint32_t await_log(const char *text)
{
    struct timespec until;
    int waited = 0;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_NS / HL_NS_PER_S / 2;
    pthread_mutex_lock(&role.lock);
    while (count_log(text) == 0 && waited == 0)
        waited = pthread_cond_timedwait(&role.grown, &role.lock, &until);
    uint32_t count = count_log(text);
    if (count == 0)
        fprintf(stderr, "not in the Manager's log: %s; it has:\n%s", text, role.text);
    pthread_mutex_unlock(&role.lock);
    return count;
}

static hl_status start(struct process_message *message, hl_error *err)
{
    hl_manager_options options;
    hl_manager_options_init(&options);
    options.socket_path = MANAGER_SOCKET;
    options.arena_bytes = message->values[0];
    options.arena_count = (uint32_t)message->values[1];
    options.index_blocks = (uint32_t)message->values[2];
    options.spin_us = (uint32_t)message->values[3];
    options.touch_threads = 1;
    options.numa_node = -2;
    options.lease_ttl_ms = 3600u * 1000;
    options.software = !world_wants_cuda();
    options.log = on_log;
    hl_status status = hl_manager_start(&options, &role.manager, err);
    if (status != HL_OK)
        return status;
    pthread_mutex_lock(&role.manager->lock);
    role.manager->part_bytes = message->values[4];
    role.manager->metadata_bytes = message->values[5];
    if (message->values[6] != 0) {
        const struct timespec tick = {.tv_nsec = (long)message->values[6]};
        const struct itimerspec each = {.it_interval = tick, .it_value = tick};
        MUST(timerfd_settime(role.manager->timer, 0, &each, NULL) == 0);
    }
    message->values[0] = role.manager->epoch;
    pthread_mutex_unlock(&role.manager->lock);
    return HL_OK;
}

static void expire(void)
{
    pthread_mutex_lock(&role.manager->lock);
    hl_lease_expire_due(role.manager->leases, INT64_MAX);
    pthread_mutex_unlock(&role.manager->lock);
}

static void bound(const struct process_message *message)
{
    pthread_mutex_lock(&role.manager->lock);
    if (message->values[0] != 0)
        role.manager->metadata_bytes = message->values[0];
    for (uint32_t i = 0; message->values[1] != 0 && i < HL_SESSIONS; i++)
        role.manager->sessions[i].plan_bytes.limit = message->values[1];
    pthread_mutex_unlock(&role.manager->lock);
}

static hl_status answer(struct process_message *message, hl_error *err)
{
    switch ((enum verb)message->verb) {
    case START:
        return start(message, err);
    case STATS:
        return hl_manager_stats(role.manager, &message->snapshot, err);
    case CHECK:
        return hl_manager_check(role.manager, err);
    case EXPIRE:
        expire();
        return HL_OK;
    case BOUND:
        bound(message);
        return HL_OK;
    case ARENA:
        message->values[1] = hl_arena_bytes(role.manager->arenas[message->values[0]]);
        message->values[0] = (uint64_t)(uintptr_t)hl_arena_base(role.manager->arenas[message->values[0]]);
        return HL_OK;
    case AWAIT_LOG:
        message->values[0] = await_log(message->text);
        return HL_OK;
    case LOGGED:
        pthread_mutex_lock(&role.lock);
        message->values[0] = count_log(message->text);
        pthread_mutex_unlock(&role.lock);
        return HL_OK;
    case FOOTPRINT: {
        struct footprint now;
        footprint_take(&now);
        message->values[0] = now.fds;
        message->values[1] = now.maps;
        message->values[2] = now.resident_kib;
        return HL_OK;
    }
    case STOP:
        message->values[0] = hl_manager_stop(role.manager);
        role.manager = NULL;
        return HL_OK;
    }
    MUST(!"a verb");
    return HL_E_INVALID;
}

int manager_process_role(int channel)
{
    struct process_message message;
    while (process_hear(channel, &message)) {
        hl_error err = {0};
        message.status = answer(&message, &err);
        if (message.status != HL_OK)
            snprintf(message.text, sizeof message.text, "%s", err.text);
        process_say(channel, &message);
    }
    hl_manager_stop(role.manager);
    return 0;
}

/* --- in the test's process --- */

static char folder[256];

void folder_enter(void)
{
    const char *base = getenv("TEST_TMPDIR");
    MUST(snprintf(folder, sizeof folder, "%s/rXXXXXX", base ? base : "/tmp") < (int)sizeof folder);
    MUST(mkdtemp(folder) != NULL);
    MUST(chdir(folder) == 0);
}

void folder_leave(void)
{
    unlink(MANAGER_SOCKET);
    unlink(MANAGER_SOCKET ".lock");
    rmdir("m");
    MUST(chdir("/") == 0);
    rmdir(folder);
}

static struct process_message ask(struct process *manager, enum verb verb, uint64_t first, uint64_t second,
                                  const char *text)
{
    struct process_message message = {.verb = verb, .values = {first, second}};
    snprintf(message.text, sizeof message.text, "%s", text);
    process_ask(manager, &message);
    return message;
}

void manager_start(struct process *manager, const struct manager_settings_of_a_test *settings)
{
    manager_start_as(manager, "manager", settings);
}

void manager_start_as(struct process *manager, const char *name,
                      const struct manager_settings_of_a_test *settings)
{
    struct process_message message = {
        .verb = START,
        .values = {settings->arena_bytes, settings->arena_count, settings->index_blocks, settings->spin_us,
                   settings->part_bytes, settings->metadata_bytes, settings->tick_ns}};
    process_start(manager, name);
    process_ask(manager, &message);
    process_must(message.status == HL_OK, __FILE__, __LINE__, "hl_manager_start()", message.text);
}

hl_manager_snapshot manager_stats(struct process *manager)
{
    return ask(manager, STATS, 0, 0, "").snapshot;
}

struct footprint manager_footprint(struct process *manager)
{
    struct process_message message = ask(manager, FOOTPRINT, 0, 0, "");
    return (struct footprint){message.values[0], message.values[1], message.values[2]};
}

void manager_check(struct process *manager, bool idle)
{
    struct process_message message = ask(manager, CHECK, 0, 0, "");
    process_must(message.status == HL_OK, __FILE__, __LINE__, "hl_manager_check()", message.text);
    if (!idle)
        return;
    hl_manager_snapshot now = manager_stats(manager);
    MUST(now.operations == 0 && now.quarantined == 0 && now.leases == 0);
    MUST(now.reserved_bytes == 0 && now.plan_bytes == 0);
}

void manager_expire(struct process *manager)
{
    ask(manager, EXPIRE, 0, 0, "");
}

void manager_bound(struct process *manager, uint64_t metadata_bytes, uint64_t plan_bytes)
{
    ask(manager, BOUND, metadata_bytes, plan_bytes, "");
}

uint64_t manager_arena(struct process *manager, uint32_t index, uint64_t *bytes)
{
    struct process_message message = ask(manager, ARENA, index, 0, "");
    *bytes = message.values[1];
    return message.values[0];
}

uint32_t manager_await_log(struct process *manager, const char *text)
{
    uint32_t count = (uint32_t)ask(manager, AWAIT_LOG, 0, 0, text).values[0];
    process_must(count > 0, __FILE__, __LINE__, "the Manager logs", text);
    return count;
}

uint32_t manager_logged(struct process *manager, const char *text)
{
    return (uint32_t)ask(manager, LOGGED, 0, 0, text).values[0];
}

void manager_stop_begin(struct process *manager)
{
    struct process_message message = {.verb = STOP};
    process_say(manager->channel, &message);
}

uint32_t manager_stop_finish(struct process *manager)
{
    struct process_message message;
    MUST(process_hear(manager->channel, &message));
    return (uint32_t)message.values[0];
}

uint32_t manager_stop(struct process *manager)
{
    manager_stop_begin(manager);
    return manager_stop_finish(manager);
}

void manager_end(struct process *manager)
{
    MUST(manager_stop(manager) == 0);
    process_end(manager);
}
