/* The rig. */
#include "core/weights/upload/upload_testing.h"

#include <sys/mman.h>

#include "core/base/checked.h"

static void *allocate(size_t count, size_t bytes)
{
    void *memory = calloc(count ? count : 1, bytes);
    CU_ASSERT_PTR_NOT_NULL_FATAL(memory);
    return memory;
}

bool rig_runs_on_gpu(void)
{
    const char *name = getenv("HOSTLANE_TEST_DEVICE");
    return name && !strcmp(name, "cuda");
}

static hl_device *gpu;

static void close_gpu(void)
{
    hl_device_close(gpu);
}

/* One for all cases: a context takes long to make. */
static hl_device *the_gpu(void)
{
    hl_error err;
    if (gpu)
        return gpu;
    HL_REQUIRE_OK(hl_device_open_cuda(0, &gpu, &err), err);
    atexit(close_gpu);
    return gpu;
}

static void open_device(struct rig *rig, const struct rig_options *options)
{
    static const struct hl_software_options plain;
    if (!options->software && !options->device && rig_runs_on_gpu())
        rig->dev = the_gpu();
    else
        HL_REQUIRE_OK(
            hl_device_open_software_with(options->device ? options->device : &plain, &rig->dev, &rig->err),
            rig->err);
    rig->ops = rig->dev->ops;
}

bool rig_is_software(const struct rig *rig)
{
    return rig->dev->info.kind == HL_DEVICE_SOFTWARE;
}

/* Destinations in the order of the tensors, each `gap` after the one before it; poison first and last. */
static void place_tensors(struct rig *rig, const struct rig_options *options)
{
    uint64_t at = 64;
    rig->count = options->count;
    rig->destinations = allocate(rig->count, sizeof *rig->destinations);
    rig->sizes = allocate(rig->count, sizeof *rig->sizes);
    rig->names = allocate(rig->count, sizeof *rig->names);
    for (size_t i = 0; i < rig->count; i++) {
        snprintf(rig->names[i], sizeof rig->names[i], "t%zu", i);
        rig->sizes[i] = options->bytes[i];
        rig->destinations[i] =
            (hl_weight_destination){.tensor = rig->names[i], .device_ptr = at, .bytes = options->bytes[i]};
        at += options->bytes[i] + options->gap;
    }
    rig->bytes = hl_align_up(at + 64, 65536);
}

static void open_memory(struct rig *rig)
{
    rig->host = mmap(NULL, rig->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CU_ASSERT_PTR_NOT_EQUAL_FATAL(rig->host, MAP_FAILED);
    rig->expected = allocate(rig->bytes, 1);
    HL_REQUIRE_OK(rig->ops->host_register(rig->dev, rig->host, rig->bytes, &rig->err), rig->err);
    HL_REQUIRE_OK(rig->ops->mem_alloc(rig->dev, rig->bytes, &rig->memory, &rig->err), rig->err);
    HL_REQUIRE_OK(rig->ops->stream_create(rig->dev, &rig->stream, &rig->err), rig->err);
    rig_poison(rig);
    memset(rig->expected, RIG_POISON, rig->bytes);
    for (size_t i = 0; i < rig->count; i++) {
        const hl_weight_tensor_view *view = hl_weight_lease_tensor(rig->lease, rig->names[i]);
        if (rig->sizes[i])
            memcpy(rig->expected + rig->destinations[i].device_ptr, view->data, rig->sizes[i]);
        rig->destinations[i].device_ptr += rig->memory;
    }
}

static void shuffle(struct rig *rig, uint64_t seed)
{
    hl_random random;
    hl_random_seed(&random, seed + 1);
    for (size_t i = rig->count; i > 1; i--) {
        const size_t j = hl_random_below(&random, i);
        const hl_weight_destination destination = rig->destinations[i - 1];
        const uint64_t size = rig->sizes[i - 1];
        rig->destinations[i - 1] = rig->destinations[j];
        rig->sizes[i - 1] = rig->sizes[j];
        rig->destinations[j] = destination;
        rig->sizes[j] = size;
    }
}

static void create_events(struct rig *rig)
{
    for (size_t i = 0; i < rig->count; i++) {
        hl_event event;
        HL_REQUIRE_OK(rig->ops->event_create(rig->dev, 0, &event, &rig->err), rig->err);
        rig->destinations[i].event = event;
    }
}

void rig_open(struct rig *rig, const struct rig_options *options)
{
    *rig = (struct rig){0};
    open_device(rig, options);
    HL_REQUIRE_OK(hl_device_enter(rig->dev, &rig->err), rig->err);
    rig->lease = testing_lease_open(options->bytes, options->count, options->files ? options->files : 1,
                                    options->header, options->tmpfs, options->seed);
    place_tensors(rig, options);
    open_memory(rig);
    if (options->shuffled)
        shuffle(rig, options->seed);
    if (!options->no_events)
        create_events(rig);
    hl_weight_upload_options_init(&rig->options);
    rig->options.route = HL_WEIGHT_UPLOAD_STAGING;
    rig->options.staging_bytes = 4 * 65536;
    rig->options.slot_bytes = 65536;
    rig->options.register_chunk_bytes = 8 * 65536;
    rig->options.copy_threads = 3;
    if (rig_is_software(rig))
        hl_software_counts(rig->dev, &rig->before);
}

void rig_close(struct rig *rig)
{
    for (size_t i = 0; i < rig->count; i++)
        if (rig->destinations[i].event)
            HL_EXPECT_OK(rig->ops->event_destroy(rig->dev, rig->destinations[i].event, &rig->err), rig->err);
    HL_EXPECT_OK(rig->ops->stream_destroy(rig->dev, rig->stream, &rig->err), rig->err);
    HL_EXPECT_OK(rig->ops->mem_free(rig->dev, rig->memory, &rig->err), rig->err);
    HL_EXPECT_OK(rig->ops->host_unregister(rig->dev, rig->host, &rig->err), rig->err);
    munmap(rig->host, rig->bytes);
    hl_device_leave(rig->dev);
    if (rig->dev != gpu)
        hl_device_close(rig->dev);
    if (rig->lease) {
        CU_ASSERT_EQUAL(testing_lease_holds(rig->lease), 1);
        hl_weight_lease_release(rig->lease);
    }
    free(rig->expected);
    free(rig->destinations);
    free(rig->sizes);
    free(rig->names);
}

hl_upload *rig_start(struct rig *rig)
{
    hl_upload *upload = NULL;
    HL_REQUIRE_OK(hl_upload_start(rig->dev, rig->lease, &rig->options, rig->destinations, rig->count, &upload,
                                  &rig->err),
                  rig->err);
    CU_ASSERT_PTR_NOT_NULL_FATAL(upload);
    return upload;
}

void rig_upload(struct rig *rig)
{
    hl_weight_upload_result result = {0};
    uint64_t bytes = 0;
    for (size_t i = 0; i < rig->count; i++)
        bytes += rig->sizes[i];
    hl_upload *upload = rig_start(rig);
    HL_EXPECT_OK(hl_upload_wait(upload, -1, &result, &rig->err), rig->err);
    CU_ASSERT_TRUE(result.drained);
    CU_ASSERT_EQUAL(result.bytes, bytes);
    CU_ASSERT_TRUE(result.first_copy_ns <= result.enqueued_ns);
    CU_ASSERT_TRUE(result.first_copy_ns <= result.first_tensor_ns);
    CU_ASSERT_TRUE(result.first_tensor_ns <= result.drained_ns);
    CU_ASSERT_TRUE(result.enqueued_ns <= result.drained_ns);
    CU_ASSERT_TRUE(hl_upload_close(upload));
    for (size_t i = 0; i < rig->count; i++)
        if (rig->destinations[i].event)
            CU_ASSERT_EQUAL(rig->ops->event_query(rig->dev, rig->destinations[i].event, NULL), HL_OK);
    CU_ASSERT_TRUE(rig_matches(rig));
}

void rig_read(struct rig *rig)
{
    HL_REQUIRE_OK(rig->ops->copy(rig->dev, HL_COPY_D2H, (uintptr_t)rig->host, rig->memory, rig->bytes,
                                 rig->stream, &rig->err),
                  rig->err);
    HL_REQUIRE_OK(rig->ops->stream_synchronize(rig->dev, rig->stream, &rig->err), rig->err);
}

bool rig_matches(struct rig *rig)
{
    rig_read(rig);
    return memcmp(rig->host, rig->expected, rig->bytes) == 0;
}

void rig_poison(struct rig *rig)
{
    HL_REQUIRE_OK(rig->ops->fill(rig->dev, rig->memory, RIG_POISON, rig->bytes, rig->stream, &rig->err),
                  rig->err);
    HL_REQUIRE_OK(rig->ops->stream_synchronize(rig->dev, rig->stream, &rig->err), rig->err);
}

void rig_expect_nothing_left(struct rig *rig)
{
    struct hl_software_counts now;
    if (!rig_is_software(rig))
        return;
    hl_software_counts(rig->dev, &now);
    CU_ASSERT_EQUAL(now.registrations, rig->before.registrations);
    CU_ASSERT_EQUAL(now.registered_bytes, rig->before.registered_bytes);
    CU_ASSERT_EQUAL(now.streams, rig->before.streams);
    CU_ASSERT_EQUAL(now.events, rig->before.events);
    CU_ASSERT_EQUAL(now.allocations, rig->before.allocations);
}

bool rig_way_tmpfs(int way)
{
    return way > 0;
}

hl_weight_upload_route rig_way_route(int way)
{
    static const hl_weight_upload_route routes[RIG_WAYS] = {
        HL_WEIGHT_UPLOAD_STAGING, HL_WEIGHT_UPLOAD_REGISTERED, HL_WEIGHT_UPLOAD_AUTO};
    return routes[way];
}

bool rig_can_register(struct rig *rig)
{
    return hl_upload_registered_possible(rig->dev, rig->lease, NULL) == HL_OK;
}
