/* The engine and the real Manager, in two processes on software devices: publish, query, restore; two
 * engines; a restarted engine; budgets. The Manager is the daemon, $HOSTLANE_MANAGER. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/device/software.h"
#include "core/testing/cunit.h"
#include "engine/engine_internal.h"

enum { LAYERS = 4, PAGES = 256, BLOCKS = 64, TENSORS = 2 * LAYERS, PATIENCE_MS = 30000 };

/* --- the Manager's process --- */

struct node {
    char folder[8];
    char path[32];
    int pid;
    int from; /* its standard error */
};

/* The daemon's path, made absolute before a case changes the folder. */
static const char *daemon_path(void)
{
    static char path[4096];
    const char *given = getenv("HOSTLANE_MANAGER");
    if (!path[0] && (!given || !realpath(given, path))) {
        fprintf(stderr, "HOSTLANE_MANAGER does not name the Manager's program\n");
        abort();
    }
    return path;
}

/* It says "ready" once clients can connect. */
static void await_ready(struct node *node)
{
    char text[4096] = "";
    size_t used = 0;
    while (!strstr(text, " ready\n")) {
        struct pollfd output = {.fd = node->from, .events = POLLIN};
        CU_ASSERT_EQUAL_FATAL(poll(&output, 1, PATIENCE_MS), 1);
        ssize_t size = read(node->from, text + used, sizeof text - 1 - used);
        if (size <= 0)
            fprintf(stderr, "the Manager has not started: %s\n", text);
        CU_ASSERT_FATAL(size > 0);
        used += (size_t)size;
        text[used] = '\0';
    }
}

static void node_start(struct node *node)
{
    extern char **environ;
    const char *base = getenv("TEST_TMPDIR"), *program = daemon_path();
    posix_spawn_file_actions_t actions;
    int ends[2];
    CU_ASSERT_EQUAL_FATAL(chdir(base ? base : "/tmp"), 0);
    strcpy(node->folder, "XXXXXX");
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(node->folder));
    snprintf(node->path, sizeof node->path, "%s/s", node->folder);
    char *arguments[] = {(char *)(uintptr_t)program,
                         "--socket",
                         node->path,
                         "--software",
                         "true",
                         "--arena-bytes",
                         "8M",
                         "--arena-count",
                         "2",
                         "--numa-node",
                         "any",
                         "--touch-threads",
                         "1",
                         "--index-blocks",
                         "4096",
                         NULL};
    CU_ASSERT_EQUAL_FATAL(pipe2(ends, O_CLOEXEC), 0);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 2);
    CU_ASSERT_EQUAL_FATAL(posix_spawn(&node->pid, program, &actions, NULL, arguments, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    node->from = ends[0];
    await_ready(node);
}

/* It ends by itself, with nothing in quarantine. */
static void node_stop(struct node *node)
{
    int status = -1;
    kill(node->pid, SIGTERM);
    CU_ASSERT_EQUAL(waitpid(node->pid, &status, 0), node->pid);
    CU_ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(node->from);
    unlink(node->path);
    rmdir(node->folder);
}

/* --- an engine with its device and tensors --- */

struct host {
    hl_device *dev;
    hl_layout *layout;
    hl_tensor tensors[TENSORS];
    unsigned char *bytes[TENSORS]; /* what the test has put there, or expects */
    hl_event events[LAYERS];
    hl_random random;
    hl_engine *engine;
    hl_binding *binding;
    hl_error err;
};

static void host_connect(struct host *host, const struct node *node, const char *instance)
{
    hl_engine_options options;
    hl_context_batch batch;
    hl_engine_options_init(&options);
    options.socket_path = node->path;
    HL_REQUIRE_OK(hl_engine_connect(&options, &host->engine, &host->err), host->err);
    hl_context_batch_init(&batch);
    batch.instance = instance;
    batch.model = "small";
    batch.layout = host->layout;
    batch.tensors = host->tensors;
    batch.device = host->dev;
    HL_REQUIRE_OK(hl_engine_register(host->engine, &batch, &host->binding, &host->err), host->err);
}

static void host_open(struct host *host, uint64_t seed)
{
    const struct hl_model_geometry geometry = {
        .name = "small", .layers = LAYERS, .kv_heads = 2, .head_dim = 16, .element_bytes = 2};
    const struct hl_layout_options layout = {.kind = HL_LAYOUT_SPLIT, .page_tokens = 8, .pages = PAGES};
    memset(host, 0, sizeof *host);
    hl_random_seed(&host->random, seed);
    HL_REQUIRE_OK(hl_device_open_software(&host->dev, &host->err), host->err);
    HL_REQUIRE_OK(hl_layout_from_model(&geometry, &layout, &host->layout, &host->err), host->err);
    CU_ASSERT_EQUAL_FATAL(host->layout->tensor_count, TENSORS);
    HL_REQUIRE_OK(hl_device_enter(host->dev, &host->err), host->err);
    for (uint32_t i = 0; i < TENSORS; i++) {
        hl_tensor *tensor = &host->tensors[i];
        tensor->bytes = host->layout->tensors[i].bytes;
        host->bytes[i] = malloc(tensor->bytes);
        hl_random_fill(&host->random, host->bytes[i], tensor->bytes);
        HL_REQUIRE_OK(host->dev->ops->mem_alloc(host->dev, tensor->bytes, &tensor->device_ptr, &host->err),
                      host->err);
        hl_software_poke(host->dev, tensor->device_ptr, host->bytes[i], tensor->bytes);
    }
    for (uint32_t i = 0; i < LAYERS; i++)
        HL_REQUIRE_OK(host->dev->ops->event_create(host->dev, 0, &host->events[i], &host->err), host->err);
    hl_device_leave(host->dev);
}

static void host_close(struct host *host)
{
    hl_engine_close(host->engine);
    HL_REQUIRE_OK(hl_device_enter(host->dev, &host->err), host->err);
    for (uint32_t i = 0; i < TENSORS; i++) {
        host->dev->ops->mem_free(host->dev, host->tensors[i].device_ptr, NULL);
        free(host->bytes[i]);
    }
    for (uint32_t i = 0; i < LAYERS; i++)
        host->dev->ops->event_destroy(host->dev, host->events[i], NULL);
    hl_device_leave(host->dev);
    hl_device_close(host->dev);
    hl_layout_free(host->layout);
}

static void make_keys(hl_block_key *keys, uint32_t first, uint32_t count)
{
    memset(keys, 0, count * sizeof *keys);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t value = first + i;
        memcpy(keys[i].hash, &value, sizeof value);
    }
}

/* Blocks first … of keys, from pages first …. */
static void host_publish(struct host *host, uint32_t first, uint32_t count, uint32_t stored)
{
    hl_block_key keys[BLOCKS];
    uint32_t pages[BLOCKS];
    hl_publish_request request;
    hl_publish *publish = NULL;
    hl_publish_result result;
    make_keys(keys, first, count);
    for (uint32_t i = 0; i < count; i++)
        pages[i] = first + i;
    hl_publish_request_init(&request);
    request.keys = keys;
    request.pages = pages;
    request.count = count;
    HL_REQUIRE_OK(hl_publish_start(host->binding, &request, &publish, &host->err), host->err);
    HL_EXPECT_OK(hl_publish_wait(publish, -1, &result, &host->err), host->err);
    CU_ASSERT_EQUAL(result.stored, stored);
    CU_ASSERT_EQUAL(result.stored + result.present, count);
    hl_publish_close(publish);
}

static hl_lease *host_query(struct host *host, uint32_t first, uint32_t count, uint32_t hits)
{
    hl_block_key keys[BLOCKS];
    hl_lease *lease = NULL;
    make_keys(keys, first, count);
    HL_REQUIRE_OK(hl_query(host->binding, keys, count, NULL, &lease, &host->err), host->err);
    CU_ASSERT_EQUAL(hl_lease_hits(lease), hits);
    return lease;
}

static hl_status host_start(struct host *host, uint32_t first, uint32_t count, uint32_t page,
                            hl_restore **restore)
{
    uint32_t pages[BLOCKS];
    hl_restore_request request;
    hl_restore_source source = {
        .lease = host_query(host, first, count, count), .pages = pages, .count = count};
    for (uint32_t i = 0; i < count; i++)
        pages[i] = page + i;
    hl_restore_request_init(&request);
    request.sources = &source;
    request.source_count = 1;
    request.layer_events = (void *const *)host->events;
    hl_status status = hl_restore_start(host->binding, &request, restore, &host->err);
    hl_lease_release(source.lease);
    return status;
}

static void host_restore(struct host *host, uint32_t first, uint32_t count, uint32_t page)
{
    hl_restore *restore = NULL;
    HL_REQUIRE_OK(host_start(host, first, count, page, &restore), host->err);
    HL_EXPECT_OK(hl_restore_wait(restore, -1, NULL, &host->err), host->err);
    hl_restore_close(restore);
}

/* Page `page` of `host` holds what page `source` of `other` held when it was published. */
static bool page_holds(struct host *host, uint32_t page, const struct host *other, uint32_t source)
{
    bool same = true;
    unsigned char got[4096];
    for (uint32_t i = 0; i < host->layout->component_count; i++) {
        const struct hl_layout_component *component = &host->layout->components[i];
        uint64_t bytes = component->page_stride;
        CU_ASSERT_FATAL(bytes <= sizeof got && component->rows == 1);
        hl_software_peek(host->dev, got,
                         host->tensors[component->tensor].device_ptr + component->offset + page * bytes,
                         bytes);
        same = same &&
               memcmp(got, other->bytes[component->tensor] + component->offset + source * bytes, bytes) == 0;
    }
    return same;
}

/* --- cases --- */

/* R1, T1 */
static void what_one_engine_publishes_another_restores(void)
{
    struct node node;
    struct host writer, reader;
    node_start(&node);
    host_open(&writer, 1);
    host_open(&reader, 2);
    host_connect(&writer, &node, "writer");
    host_connect(&reader, &node, "reader");
    hl_lease *none = host_query(&reader, 0, BLOCKS, 0);
    hl_lease_release(none);
    host_publish(&writer, 0, BLOCKS / 2, BLOCKS / 2);
    host_publish(&writer, 0, BLOCKS, BLOCKS / 2); /* the first half is there already */
    host_restore(&reader, 0, BLOCKS, 100);
    for (uint32_t i = 0; i < BLOCKS; i++)
        CU_ASSERT_TRUE(page_holds(&reader, 100 + i, &writer, i));
    host_restore(&writer, 3, 5, 0); /* its own blocks, to other pages */
    for (uint32_t i = 0; i < 5; i++)
        CU_ASSERT_TRUE(page_holds(&writer, i, &writer, 3 + i));
    CU_ASSERT_TRUE(page_holds(&reader, 0, &reader, 0)); /* pages that nobody named */
    host_close(&writer);
    host_close(&reader);
    node_stop(&node);
}

/* R1, G8, R12: blocks outlive the engine that published them, and a registration. */
static void a_restarted_engine_reuses_blocks(void)
{
    struct node node;
    struct host host;
    node_start(&node);
    host_open(&host, 3);
    host_connect(&host, &node, "instance");
    host_publish(&host, 0, 16, 16);
    HL_EXPECT_OK(hl_engine_unregister(host.binding, &host.err), host.err);
    hl_engine_close(host.engine);
    for (int round = 0; round < 2; round++) {
        host_connect(&host, &node, "instance");
        host_restore(&host, 0, 16, 50);
        for (uint32_t i = 0; i < 16; i++)
            CU_ASSERT_TRUE(page_holds(&host, 50 + i, &host, i));
        if (round == 0)
            hl_engine_close(host.engine);
    }
    host_close(&host);
    node_stop(&node);
}

/* G3: 128 restores a GPU; what is beyond is refused with untouched pages, and the permits come back. */
static void the_permits_of_a_gpu_are_exact(void)
{
    enum { STARTED = HL_GPU_RESTORES + 40 };
    static hl_restore *restores[STARTED];
    struct node node;
    struct host host;
    uint32_t refused = 0;
    hl_restore_result result;
    node_start(&node);
    host_open(&host, 4);
    host_connect(&host, &node, "instance");
    host_publish(&host, 0, 4, 4);
    hl_stream stream = hl_transfer_stream(host.binding->transfer);
    hl_software_hold(host.dev, stream, 0);
    for (uint32_t i = 0; i < STARTED; i++)
        HL_REQUIRE_OK(host_start(&host, 0, 1, 60, &restores[i]), host.err);
    /* Those beyond the permits end while every copy is held. */
    while (refused < STARTED - HL_GPU_RESTORES) {
        refused = 0;
        for (uint32_t i = 0; i < STARTED; i++)
            refused += hl_restore_poll(restores[i], &result, &host.err) == HL_E_BUDGET && result.untouched;
    }
    hl_software_release(host.dev, stream);
    uint32_t restored = 0;
    for (uint32_t i = 0; i < STARTED; i++) {
        restored += hl_restore_wait(restores[i], -1, &result, &host.err) == HL_OK;
        hl_restore_close(restores[i]);
    }
    CU_ASSERT_EQUAL(refused, STARTED - HL_GPU_RESTORES);
    CU_ASSERT_EQUAL(restored, HL_GPU_RESTORES);
    CU_ASSERT_TRUE(page_holds(&host, 60, &host, 0));
    /* A permit is held until the Manager has reaped, which nobody here waits for. */
    hl_restore *again = NULL;
    hl_status status;
    do {
        HL_REQUIRE_OK(host_start(&host, 1, 1, 61, &again), host.err);
        status = hl_restore_wait(again, -1, &result, &host.err);
        hl_restore_close(again);
    } while (status == HL_E_BUDGET);
    HL_EXPECT_OK(status, host.err);
    CU_ASSERT_TRUE(page_holds(&host, 61, &host, 1));
    host_close(&host);
    node_stop(&node);
}

/* I8: the real process dies by SIGKILL while a copy stands on the device: the bytes arrive. */
static void a_killed_manager_changes_no_claimed_restore(void)
{
    struct node node;
    struct host host;
    hl_restore *restore = NULL;
    int status;
    node_start(&node);
    host_open(&host, 5);
    host_connect(&host, &node, "instance");
    host_publish(&host, 0, 32, 32);
    hl_stream stream = hl_transfer_stream(host.binding->transfer);
    hl_software_hold(host.dev, stream, 0);
    HL_REQUIRE_OK(host_start(&host, 0, 32, 80, &restore), host.err);
    HL_EXPECT_OK(hl_restore_wait_enqueued(restore, -1, &host.err), host.err);
    hl_software_wait_held(host.dev, stream);
    kill(node.pid, SIGKILL);
    waitpid(node.pid, &status, 0);
    while (hl_engine_health(host.engine, &host.err) == HL_OK)
        continue;
    CU_ASSERT_EQUAL(hl_restore_poll(restore, NULL, NULL), HL_PENDING);
    hl_software_release(host.dev, stream);
    HL_EXPECT_OK(hl_restore_wait(restore, -1, NULL, &host.err), host.err);
    for (uint32_t i = 0; i < 32; i++)
        CU_ASSERT_TRUE(page_holds(&host, 80 + i, &host, i));
    hl_restore_close(restore);
    host_close(&host);
    close(node.from);
    unlink(node.path);
    rmdir(node.folder);
}

HL_TESTS(engine_manager, HL_CASE(what_one_engine_publishes_another_restores),
         HL_CASE(a_restarted_engine_reuses_blocks), HL_CASE(the_permits_of_a_gpu_are_exact),
         HL_CASE(a_killed_manager_changes_no_claimed_restore));
