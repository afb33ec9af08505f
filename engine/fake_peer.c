/* The fake Manager's socket and session. */
#include "engine/fake_peer.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATIENCE_MS 30000
#define VICTIM "HOSTLANE_FAKE_VICTIM"

void fake_await_fd(int fd)
{
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    if (poll(&ready, 1, PATIENCE_MS) != 1) {
        fprintf(stderr, "the engine has not signalled in %d ms\n", PATIENCE_MS);
        abort();
    }
    engine_quiet(fd);
}

/* A process that only waits for its standard input to end: before main, so that no case runs in it. */
__attribute__((constructor)) static void become_victim(void)
{
    char byte;
    if (!getenv(VICTIM))
        return;
    while (read(0, &byte, 1) < 0 && errno == EINTR)
        continue;
    _exit(0);
}

void fake_start_victim(struct fake *fake)
{
    extern char **environ;
    posix_spawn_file_actions_t actions;
    char self[] = "/proc/self/exe", *arguments[] = {self, NULL};
    int ends[2], pid = 0;
    CU_ASSERT_EQUAL_FATAL(pipe(ends), 0);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[0], 0);
    posix_spawn_file_actions_addclose(&actions, ends[1]);
    setenv(VICTIM, "1", 1);
    CU_ASSERT_EQUAL_FATAL(posix_spawn(&pid, self, &actions, NULL, arguments, environ), 0);
    unsetenv(VICTIM);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[0]);
    fake->victim = pid;
    fake->victim_pipe = ends[1];
    fake->victim_pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    CU_ASSERT_FATAL(fake->victim_pidfd >= 0);
}

void fake_kill_victim(struct fake *fake)
{
    if (fake->victim == 0)
        return;
    kill(fake->victim, SIGKILL);
    waitpid(fake->victim, NULL, 0);
    close(fake->victim_pipe);
    fake->victim = 0;
}

/* --- answers --- */

void fake_reply_error(struct fake *fake, uint32_t sequence, hl_status status, const char *text)
{
    struct hl_error_message message;
    hl_error err = {0};
    hl_error_set(&err, status, "fake", 0, 0, "%s", text);
    hl_error_message_fill(&message, sequence, &err);
    hl_channel_send(fake->socket, &message, NULL, 0, NULL);
}

static void welcome(struct fake *fake, const struct hl_message *head)
{
    struct hl_welcome message = {.epoch = fake->epoch};
    int fds[HL_BOOTSTRAP_FDS] = {hl_descriptors_fd(fake->descriptors), hl_grant_memory_fd(fake->grants),
                                 fake->restore_fd, fake->retirement_fd, fake->publish_fd};
    memcpy(message.token, fake->token, sizeof message.token);
    hl_message_head(&message, HL_MESSAGE_WELCOME, head->sequence);
    hl_channel_send(fake->socket, &message, fds, HL_BOOTSTRAP_FDS, NULL);
}

static void registered(struct fake *fake, const struct hl_message *head)
{
    struct hl_registered message = {.arena_count = FAKE_ARENAS};
    int fds[FAKE_ARENAS];
    pthread_mutex_lock(&fake->lock);
    message.binding = fake->bindings++;
    pthread_mutex_unlock(&fake->lock);
    message.chunk_bytes = hl_arena_chunk_bytes(fake->arenas[0]);
    for (uint32_t i = 0; i < FAKE_ARENAS; i++) {
        message.arenas[i].arena_id = hl_arena_id(fake->arenas[i]);
        message.arenas[i].bytes = hl_arena_bytes(fake->arenas[i]);
        fds[i] = hl_arena_fd(fake->arenas[i]);
    }
    hl_message_head(&message, HL_MESSAGE_REGISTERED, head->sequence);
    hl_channel_send(fake->socket, &message, fds, FAKE_ARENAS, NULL);
}

/* Keys name blocks by their first byte; those from FAKE_BLOCKS on are not resident. */
static void answer_query(struct fake *fake, const struct hl_query_message *query)
{
    struct hl_lease_message message = {.ttl_ms = 1000};
    unsigned char *keys = NULL, residency[FAKE_BLOCKS] = {0};
    void *copy = NULL;
    pthread_mutex_lock(&fake->lock);
    if (hl_descriptors_copy(fake->descriptors, query->keys, HL_QUERY_KEYS * HL_KEY_BYTES, &copy, NULL) !=
        HL_OK)
        abort();
    pthread_mutex_unlock(&fake->lock);
    keys = copy;
    uint32_t hits = 0;
    while (hits < query->key_count && hits < FAKE_BLOCKS && keys[hits * HL_KEY_BYTES] < FAKE_BLOCKS)
        residency[hits++] = HL_RESIDENT_DRAM;
    pthread_mutex_lock(&fake->lock); /* a granter on another thread reads descriptors */
    if (hits > 0)
        hl_descriptors_write(fake->descriptors, query->residency, residency, hits, NULL);
    if (hits > 0 && fake->lease_count < FAKE_LEASES) {
        fake->leases[fake->lease_count++] = (struct fake_lease){.first = keys[0], .hits = hits};
        message.lease = fake->lease_count;
    }
    pthread_mutex_unlock(&fake->lock);
    free(copy);
    message.hits = hits;
    message.bytes = hits * fake->layout->groups[0].block_bytes;
    hl_message_head(&message, HL_MESSAGE_LEASE, query->head.sequence);
    hl_channel_send(fake->socket, &message, NULL, 0, NULL);
}

static void done(struct fake *fake, const struct hl_message *head)
{
    struct hl_done message = {0};
    hl_message_head(&message, HL_MESSAGE_DONE, head->sequence);
    hl_channel_send(fake->socket, &message, NULL, 0, NULL);
}

static void answer(struct fake *fake, const struct hl_packet *packet, enum hl_message_kind kind)
{
    const struct hl_message *head = (const void *)packet->bytes;
    switch (kind) {
    case HL_MESSAGE_HELLO:
        welcome(fake, head);
        break;
    case HL_MESSAGE_REGISTER:
        registered(fake, head);
        break;
    case HL_MESSAGE_QUERY:
        answer_query(fake, (const void *)head);
        break;
    case HL_MESSAGE_RELEASE:
        pthread_mutex_lock(&fake->lock);
        fake->leases[((const struct hl_release *)(const void *)head)->lease - 1].released = true;
        pthread_mutex_unlock(&fake->lock);
        done(fake, head);
        break;
    case HL_MESSAGE_PUBLISH:
        fake->publish = *(const struct hl_publish_message *)(const void *)head;
        done(fake, head);
        break;
    default:
        done(fake, head);
    }
}

static bool serve_one(struct fake *fake)
{
    struct hl_packet packet;
    enum hl_message_kind kind;
    if (hl_channel_receive_until(fake->socket, &packet, -1, NULL) != HL_OK)
        return false;
    if (hl_message_check(&packet, &kind, NULL) != HL_OK)
        abort();
    if (!fake->on_request || !fake->on_request(fake, &packet, kind))
        answer(fake, &packet, kind);
    hl_packet_close_fds(&packet);
    pthread_mutex_lock(&fake->lock);
    fake->received[kind]++;
    pthread_cond_broadcast(&fake->changed);
    pthread_mutex_unlock(&fake->lock);
    return true;
}

/* Ends when the listener is shut down. */
static void *serve(void *argument)
{
    struct fake *fake = argument;
    struct pollfd ready = {.fd = fake->listener, .events = POLLIN};
    while (poll(&ready, 1, -1) == 1) {
        int fd = -1;
        pid_t pid;
        uid_t uid;
        hl_status status = hl_channel_accept(fake->listener, &fd, &pid, &uid, NULL);
        if (status == HL_PENDING && !(ready.revents & POLLHUP))
            continue;
        if (status != HL_OK)
            return NULL;
        pthread_mutex_lock(&fake->lock);
        fake->socket = fd;
        pthread_mutex_unlock(&fake->lock);
        while (serve_one(fake))
            continue;
        pthread_mutex_lock(&fake->lock);
        close(fd);
        fake->socket = -1;
        pthread_mutex_unlock(&fake->lock);
    }
    return NULL;
}

/* --- life --- */

static void open_session(struct fake *fake)
{
    hl_error err = {0};
    hl_random_fill(&fake->random, fake->token, sizeof fake->token);
    fake->epoch = hl_random_next(&fake->random);
    HL_REQUIRE_OK(hl_descriptors_create(&fake->descriptors, &err), err);
    HL_REQUIRE_OK(hl_grant_memory_create(fake->epoch, fake->token, &fake->grants, &err), err);
    fake->restore_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    fake->retirement_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    fake->publish_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

void fake_open(struct fake *fake)
{
    const char *base = getenv("TEST_TMPDIR");
    hl_error err = {0};
    memset(fake, 0, sizeof *fake);
    hl_random_seed(&fake->random, 20260);
    pthread_mutex_init(&fake->lock, NULL);
    engine_cond_init(&fake->changed);
    fake->socket = -1;
    fake_world_open(fake, &(struct hl_software_options){0});
    open_session(fake);
    CU_ASSERT_EQUAL_FATAL(chdir(base ? base : "/tmp"), 0);
    strcpy(fake->folder, "XXXXXX");
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(fake->folder));
    snprintf(fake->path, sizeof fake->path, "%s/s", fake->folder);
    HL_REQUIRE_OK(hl_channel_listen(fake->path, &fake->listener, &err), err);
    CU_ASSERT_EQUAL_FATAL(pthread_create(&fake->server, NULL, serve, fake), 0);
}

void fake_hang_up(struct fake *fake)
{
    pthread_mutex_lock(&fake->lock);
    if (fake->socket >= 0)
        shutdown(fake->socket, SHUT_RDWR);
    pthread_mutex_unlock(&fake->lock);
}

void fake_close(struct fake *fake)
{
    fake_stop_grants(fake);
    fake_hang_up(fake);
    shutdown(fake->listener, SHUT_RDWR);
    pthread_join(fake->server, NULL);
    close(fake->listener);
    unlink(fake->path);
    rmdir(fake->folder);
    if (fake->victim_pidfd > 0) {
        fake_kill_victim(fake);
        close(fake->victim_pidfd);
    }
    for (uint32_t i = 0; i < HL_GRANT_RECORDS; i++) {
        hl_plan_free(fake->operations[i].plan);
        free(fake->operations[i].blocks);
    }
    hl_descriptors_close(fake->descriptors);
    hl_grant_memory_close(fake->grants);
    close(fake->restore_fd);
    close(fake->retirement_fd);
    close(fake->publish_fd);
    fake_world_close(fake);
    pthread_cond_destroy(&fake->changed);
    pthread_mutex_destroy(&fake->lock);
}

uint32_t fake_received(struct fake *fake, enum hl_message_kind kind)
{
    pthread_mutex_lock(&fake->lock);
    uint32_t count = fake->received[kind];
    pthread_mutex_unlock(&fake->lock);
    return count;
}

void fake_await_received(struct fake *fake, enum hl_message_kind kind, uint32_t count)
{
    int64_t deadline = engine_deadline(PATIENCE_MS * 1000000ll);
    pthread_mutex_lock(&fake->lock);
    while (fake->received[kind] < count)
        if (!engine_cond_wait(&fake->changed, &fake->lock, deadline))
            abort();
    pthread_mutex_unlock(&fake->lock);
}

void fake_finish_publish(struct fake *fake, uint32_t slot, hl_status status, uint32_t stored,
                         uint32_t present)
{
    struct hl_publish_slot *at = hl_descriptors_slot(fake->descriptors, slot);
    at->status = status;
    at->stored = stored;
    at->present = present;
    at->bytes = stored * fake->layout->groups[0].block_bytes;
    snprintf(at->text, sizeof at->text, "%s", status == HL_OK ? "" : "as the test wants it");
    atomic_store_explicit(&at->state, HL_PUBLISH_FINISHED, memory_order_release);
    if (!fake->silent)
        engine_signal(fake->publish_fd);
}
