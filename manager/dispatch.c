/* The loop of the one thread that serves sessions. Each round handles a bounded number of events, messages
 * and records of every session that has some, so that a busy session delays another by a round and no more.
 */
#include "manager/dispatch.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "faults/hook.h"
#include "manager/session.h"

enum {
    ROUND_EVENTS = 64,
    ROUND_MESSAGES = 16, /* of one session */
    ROUND_RECORDS = 32   /* of one session: looking at one may compile a plan */
};

/* What epoll hands back: kind, index, and the low bits of the serial. */
#define WATCH_SERIAL_BITS 48
#define WATCH_SERIAL_MASK ((1ull << WATCH_SERIAL_BITS) - 1)
_Static_assert(MANAGER_SESSION_SLOTS <= 256, "a session's index fits the 8 bits that a watch has for it");

static uint64_t pack(enum manager_watch kind, uint32_t index, uint64_t serial)
{
    return (uint64_t)kind << 56 | (uint64_t)index << WATCH_SERIAL_BITS | (serial & WATCH_SERIAL_MASK);
}

hl_status manager_dispatch_watch(hl_manager *manager, int fd, enum manager_watch kind, uint32_t index,
                                 uint64_t serial, hl_error *err)
{
    /* The retirement eventfd is never read: each write is an edge, which costs no call to take. */
    struct epoll_event event = {.events = kind == MANAGER_WATCH_RETIREMENT ? EPOLLIN | EPOLLET : EPOLLIN,
                                .data.u64 = pack(kind, index, serial)};
    if (HL_FAULT_CALL(manager_watch, epoll_ctl(manager->epoll, EPOLL_CTL_ADD, fd, &event), -1) != 0)
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, "manager.watch", errno, "cannot watch a descriptor");
    return HL_OK;
}

void manager_dispatch_unwatch(hl_manager *manager, int fd)
{
    epoll_ctl(manager->epoll, EPOLL_CTL_DEL, fd, NULL);
}

void manager_dispatch_listen(hl_manager *manager, bool on)
{
    if (on == manager->listening || manager->listener < 0)
        return;
    if (!on)
        manager_dispatch_unwatch(manager, manager->listener);
    else if (manager_dispatch_watch(manager, manager->listener, MANAGER_WATCH_LISTENER, 0, 0, NULL) != HL_OK)
        return; /* maintenance tries again */
    manager->listening = on;
}

hl_status manager_dispatch_open(hl_manager *manager, hl_error *err)
{
    static const char stage[] = "manager.dispatch";
    const struct itimerspec each_second = {.it_interval.tv_sec = 1, .it_value.tv_sec = 1};
    hl_status status;
    manager->epoll = HL_FAULT_CALL(manager_dispatch_open, epoll_create1(EPOLL_CLOEXEC), -1);
    manager->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    manager->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (manager->epoll < 0 || manager->wake < 0 || manager->timer < 0 ||
        timerfd_settime(manager->timer, 0, &each_second, NULL) != 0) {
        status = HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, errno, "cannot make the dispatcher's descriptors");
        goto err_close;
    }
    status = manager_dispatch_watch(manager, manager->wake, MANAGER_WATCH_WAKE, 0, 0, err);
    if (status == HL_OK)
        status = manager_dispatch_watch(manager, manager->timer, MANAGER_WATCH_TIMER, 0, 0, err);
    if (status == HL_OK)
        status = manager_dispatch_watch(manager, manager->listener, MANAGER_WATCH_LISTENER, 0, 0, err);
    if (status != HL_OK)
        goto err_close;
    manager->listening = true;
    return HL_OK;
err_close:
    manager_dispatch_close(manager);
    return status;
}

void manager_dispatch_close(hl_manager *manager)
{
    int *const fds[] = {&manager->timer, &manager->wake, &manager->epoll};
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++) {
        if (*fds[i] >= 0)
            close(*fds[i]);
        *fds[i] = -1;
    }
    manager->listening = false;
}

void manager_dispatch_wake(hl_manager *manager)
{
    eventfd_write(manager->wake, 1);
}

static void clear(int fd)
{
    uint64_t count;
    /* Nothing to read: another round has. */
    while (read(fd, &count, sizeof count) < 0 && errno == EINTR)
        ;
}

/* --- records --- */

/* Adds the records that the engine has marked to those to look at. */
static bool take_marks(struct manager_session *session)
{
    uint32_t marked[HL_GRANT_RECORDS];
    size_t count = hl_grant_take_marks(session->grants, marked);
    for (size_t i = 0; i < count; i++)
        session->looks[marked[i] / 64] |= 1ull << (marked[i] % 64);
    return count > 0;
}

static bool take_look(struct manager_session *session, uint32_t *record)
{
    for (uint32_t word = 0; word < HL_GRANT_RECORDS / 64; word++) {
        uint64_t *looks = &session->looks[word];
        if (*looks) {
            *record = word * 64 + (uint32_t)__builtin_ctzll(*looks);
            *looks &= *looks - 1;
            return true;
        }
    }
    return false;
}

/* Looks at up to ROUND_RECORDS records of each session; true when some are left. Looking at a record may end
 * its session. */
static bool look_at_records(hl_manager *manager)
{
    bool more = false;
    for (uint32_t i = 0; i < HL_SESSIONS; i++) {
        struct manager_session *session = &manager->sessions[i];
        const uint64_t serial = session->serial;
        uint32_t record;
        unsigned looked = 0;
        while (session->grants && session->serial == serial && looked < ROUND_RECORDS &&
               take_look(session, &record)) {
            manager_grants_look(manager, session, record);
            looked++;
        }
        more = more || looked == ROUND_RECORDS;
    }
    return more;
}

/* --- events --- */

static void on_socket(hl_manager *manager, struct manager_session *session)
{
    const uint64_t serial = session->serial;
    for (unsigned i = 0; i < ROUND_MESSAGES && session->serial == serial && session->socket >= 0; i++) {
        struct hl_packet packet;
        hl_error err;
        if (session->broken) {
            manager_session_detach(manager, session, session->broken);
            return;
        }
        hl_status status = hl_channel_receive(session->socket, &packet, &err);
        if (status == HL_PENDING)
            return;
        if (status != HL_OK) {
            manager_session_detach(manager, session,
                                   status == HL_E_PEER ? "its channel was closed" : err.text);
            return;
        }
        manager_request(manager, session, &packet);
        hl_packet_close_fds(&packet);
    }
}

static void on_session(hl_manager *manager, enum manager_watch kind, struct manager_session *session)
{
    switch (kind) {
    case MANAGER_WATCH_SOCKET:
        on_socket(manager, session);
        break;
    case MANAGER_WATCH_RETIREMENT: /* the signal first, then the marks: one set meanwhile signals again */
        take_marks(session);
        break;
    case MANAGER_WATCH_PROCESS:
        manager_session_died(manager, session);
        break;
    default:
        assert(!"a watch of no session");
    }
}

/* What may have been missed (I6), and what nobody announces. */
static void maintain(hl_manager *manager)
{
    int64_t now_ns = hl_clock_ns();
    hl_lease_expire_due(manager->leases, now_ns);
    for (uint32_t i = 0; i < HL_SESSIONS; i++) {
        struct manager_session *session = &manager->sessions[i];
        if (!session->grants)
            continue;
        const uint64_t serial = session->serial;
        take_marks(session);
        manager_grants_sweep(manager, session);
        if (session->serial == serial)
            manager_session_settle(manager, session);
    }
    for (uint32_t i = 0; i < manager->gpu_count; i++)
        manager_publisher_watch(manager, i, now_ns);
    manager_session_expire_greetings(manager, now_ns);
}

static void on_event(hl_manager *manager, uint64_t data)
{
    const enum manager_watch kind = (enum manager_watch)(data >> 56);
    const uint32_t index = data >> WATCH_SERIAL_BITS & 0xff;
    const uint64_t serial = data & WATCH_SERIAL_MASK;
    switch (kind) {
    case MANAGER_WATCH_LISTENER:
        if (manager->listening)
            manager_session_accept(manager);
        break;
    case MANAGER_WATCH_WAKE:
        clear(manager->wake);
        break;
    case MANAGER_WATCH_TIMER:
        clear(manager->timer);
        maintain(manager);
        break;
    case MANAGER_WATCH_GREETING:
        if ((manager->greetings[index].serial & WATCH_SERIAL_MASK) == serial)
            manager_session_greet(manager, index);
        break;
    default:
        if ((manager->sessions[index].serial & WATCH_SERIAL_MASK) == serial)
            on_session(manager, kind, &manager->sessions[index]);
    }
}

/* --- spinning --- */

static inline void relax(void)
{
#if defined __x86_64__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("yield");
#endif
}

/* Whether a session has marked a record. */
static bool watch_marks(hl_manager *manager)
{
    bool marked = false;
    pthread_mutex_lock(&manager->lock);
    for (uint32_t i = 0; i < HL_SESSIONS; i++)
        if (manager->sessions[i].grants)
            marked = take_marks(&manager->sessions[i]) || marked;
    pthread_mutex_unlock(&manager->lock);
    return marked;
}

/* Watches the dirty bitsets for about a microsecond. True when the dispatcher is not to sleep: a record is
 * marked, or spin_us have not passed since an engine last wanted something. What follows a query or the part
 * just handled then pays no wake-up; a message is seen between two calls. */
static bool keep_watching(hl_manager *manager, int64_t *until_ns, bool active)
{
    enum { TURNS = 4, PAUSES = 16 };
    if (manager->options.spin_us == 0)
        return false;
    const int64_t now_ns = hl_clock_ns();
    if (active)
        *until_ns = now_ns + (int64_t)manager->options.spin_us * 1000;
    if (now_ns >= *until_ns)
        return false;
    for (unsigned turn = 0; turn < TURNS; turn++) {
        if (watch_marks(manager)) {
            *until_ns = now_ns + (int64_t)manager->options.spin_us * 1000;
            break;
        }
        for (unsigned i = 0; i < PAUSES; i++)
            relax();
    }
    return true;
}

/* --- stopping --- */

/* Ends what can be ended; true when the rest is quarantine. An engine that is copying has no deadline. */
static bool stopped(hl_manager *manager)
{
    bool done = true;
    for (uint32_t i = 0; i < MANAGER_SESSION_SLOTS; i++) {
        struct manager_session *session = &manager->sessions[i];
        if (session->state != MANAGER_SESSION_EMPTY)
            done = manager_session_stop(manager, session) && done;
    }
    return done;
}

void *manager_dispatch_run(void *arg)
{
    hl_manager *manager = arg;
    struct epoll_event events[ROUND_EVENTS];
    bool more = false;
    int64_t until_ns = 0;
    for (;;) {
        bool active;
        int count = epoll_wait(manager->epoll, events, ROUND_EVENTS, more ? 0 : -1);
        assert(count >= 0 || errno == EINTR);
        pthread_mutex_lock(&manager->lock);
        active = false;
        for (int i = 0; i < count; i++) {
            const enum manager_watch kind = (enum manager_watch)(events[i].data.u64 >> 56);
            active = active || kind == MANAGER_WATCH_SOCKET || kind == MANAGER_WATCH_RETIREMENT;
            on_event(manager, events[i].data.u64);
        }
        more = look_at_records(manager);
        bool done = manager->stopping && stopped(manager);
        pthread_mutex_unlock(&manager->lock);
        if (done)
            return NULL;
        more = keep_watching(manager, &until_ns, active) || more;
    }
}
