/* Every interleaving of a tiny restore with what surrounds it: a forward pass that still reads the
 * destination pages (ready stream), the executor's two streams, and a consumer that waits for each layer's
 * event and reads the layer. The software device runs one operation at a time, and the test makes each
 * choice. */
#include <sys/mman.h>

#include "core/transfer/transfer_testing.h"

/* The kernel route has a stream more, and with it many more interleavings: two layers will do. */
enum { LAYERS = 4, KERNEL_LAYERS = 2, MAX_STEPS = 64, PAGE = 4096 };

/* The choices of one run: what was taken at each step, and how many there were. */
struct path {
    int choice[MAX_STEPS];
    unsigned width[MAX_STEPS];
    unsigned depth;
};

/* The next path in order; false after the last one. */
static bool next_path(struct path *path)
{
    while (path->depth > 0) {
        unsigned last = path->depth - 1;
        if (path->choice[last] + 1 < (int)path->width[last]) {
            path->choice[last]++;
            for (unsigned i = path->depth; i < MAX_STEPS; i++)
                path->choice[i] = 0;
            return true;
        }
        path->depth--;
    }
    return false;
}

struct stage {
    struct rig rig;
    hl_stream forward;
    hl_stream consumer;
    unsigned char *host; /* registered: what forward and consumer read, a page a tensor each */
};

static void open_stage(struct stage *stage, uint32_t layers)
{
    hl_error err = {0};
    const struct rig_shape shape = {.layers = layers,
                                    .pages = 2,
                                    .blocks = 2,
                                    .tokens = 1,
                                    .row_bytes = 64,
                                    .groups = 1,
                                    .tensors = RIG_CONTIGUOUS};
    struct rig *rig = &stage->rig;
    rig_open(rig, &(struct rig_options){.shape = shape, .seed = 2, .software = true, .single_step = true});
    stage->host = mmap(NULL, 2 * LAYERS * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    HL_REQUIRE_OK(hl_device_enter(rig->dev, &err), err);
    HL_REQUIRE_OK(rig->dev->ops->host_register(rig->dev, stage->host, 2 * LAYERS * PAGE, &err), err);
    HL_REQUIRE_OK(rig->dev->ops->stream_create(rig->dev, &stage->forward, &err), err);
    HL_REQUIRE_OK(rig->dev->ops->stream_create(rig->dev, &stage->consumer, &err), err);
    hl_device_leave(rig->dev);
}

static void close_stage(struct stage *stage)
{
    hl_error err = {0};
    struct rig *rig = &stage->rig;
    HL_REQUIRE_OK(hl_device_enter(rig->dev, &err), err);
    HL_REQUIRE_OK(rig->dev->ops->stream_destroy(rig->dev, stage->forward, &err), err);
    HL_REQUIRE_OK(rig->dev->ops->stream_destroy(rig->dev, stage->consumer, &err), err);
    HL_REQUIRE_OK(rig->dev->ops->host_unregister(rig->dev, stage->host, &err), err);
    hl_device_leave(rig->dev);
    munmap(stage->host, 2 * LAYERS * PAGE);
    rig_close(rig);
}

/* Reads every layer's tensor to the host on `stream`, after the layer's event when `wait`. */
static void read_layers(struct stage *stage, hl_stream stream, unsigned char *host, bool wait)
{
    hl_error err = {0};
    struct rig *rig = &stage->rig;
    HL_REQUIRE_OK(hl_device_enter(rig->dev, &err), err);
    for (uint32_t i = 0; i < rig->shape.layers; i++) {
        if (wait)
            HL_REQUIRE_OK(rig->dev->ops->stream_wait_event(rig->dev, stream, rig->events[i], &err), err);
        HL_REQUIRE_OK(rig->dev->ops->copy(rig->dev, HL_COPY_D2H, (uint64_t)(uintptr_t)(host + i * PAGE),
                                          rig->tensors[i].base, rig->tensors[i].bytes, stream, &err),
                      err);
    }
    hl_device_leave(rig->dev);
}

static void follow(struct rig *rig, struct path *path)
{
    for (path->depth = 0;; path->depth++) {
        CU_ASSERT_FATAL(path->depth < MAX_STEPS);
        path->width[path->depth] = hl_software_step(rig->dev, path->choice[path->depth]);
        if (path->width[path->depth] == 0)
            return;
    }
}

/* What was read before and after the restore. `waited` false: the consumer did not wait for the events. */
static bool run_path(struct stage *stage, enum hl_route route, struct path *path, bool waited)
{
    struct rig *rig = &stage->rig;
    hl_error err = {0};
    struct hl_operation_result result = {0};
    hl_operation *operation = NULL;
    unsigned char *before = stage->host, *after = stage->host + LAYERS * PAGE;
    struct hl_transfer_options fresh = rig_transfer_options(rig, route);
    /* Each path on an executor of its own: one that has a history closes a ring segment now and then. */
    HL_REQUIRE_OK(hl_transfer_open_with_ring(&fresh, 2, 64, &rig->transfer, &err), err);
    rig_poison(rig);
    rig_compile(rig, 1, rig->shape.blocks, true, 0);
    read_layers(stage, stage->forward, before, false);
    struct hl_operation_options options = {.identity = rig->identity,
                                           .has_ready_stream = true,
                                           .ready_stream = stage->forward,
                                           .layer_events = rig->events};
    HL_REQUIRE_OK(hl_operation_start(rig->transfer, &options, &operation, &err), err);
    HL_REQUIRE_OK(rig_submit_part(rig, operation, 0, &err), err);
    read_layers(stage, stage->consumer, after, waited);
    follow(rig, path);
    HL_EXPECT_OK(hl_operation_poll(operation, &result, &err), err);
    hl_operation_close(operation);
    rig_close_transfer(rig);
    bool good = true;
    for (uint32_t i = 0; i < rig->shape.layers; i++) {
        for (uint64_t b = 0; b < rig->tensors[i].bytes; b++)
            good = good && before[i * PAGE + b] == RIG_POISON;
        good = good && memcmp(after + i * PAGE, rig->expected[i], rig->tensors[i].bytes) == 0;
    }
    return good;
}

/* Counts the interleavings and those in which somebody read the wrong bytes. */
static void explore(enum hl_route route, bool waited, unsigned *paths, unsigned *bad)
{
    struct stage stage;
    struct path path = {0};
    open_stage(&stage, route == HL_ROUTE_KERNEL ? KERNEL_LAYERS : LAYERS);
    do {
        *bad += !run_path(&stage, route, &path, waited);
        ++*paths;
    } while (next_path(&path));
    CU_ASSERT_EQUAL(rig_counts(&stage.rig).violations, 0);
    close_stage(&stage);
}

static void no_interleaving_shows_an_incomplete_layer(void)
{
    for (int route = HL_ROUTE_DIRECT; route <= HL_ROUTE_KERNEL; route++) {
        unsigned paths = 0, bad = 0;
        explore((enum hl_route)route, true, &paths, &bad);
        CU_ASSERT_TRUE(paths > 100);
        CU_ASSERT_EQUAL(bad, 0);
    }
}

/* The canary: a consumer that does not wait is caught in some interleavings, and not in all. */
static void a_consumer_that_does_not_wait_is_caught(void)
{
    unsigned paths = 0, bad = 0;
    explore(HL_ROUTE_KERNEL, false, &paths, &bad);
    CU_ASSERT_TRUE(bad > 0 && bad < paths);
}

HL_TESTS(transfer_interleave, HL_CASE(no_interleaving_shows_an_incomplete_layer),
         HL_CASE(a_consumer_that_does_not_wait_is_caught));
