/* Uploads of what a real store leased: every byte arrives by both routes, and an artifact that is denied,
 * replaced, and wanted away stays whole until the upload has drained. On the software device, which reads its
 * sources when a copy runs. */
#include "core/weights/store/store_testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "core/base/random.h"
#include "core/device/software.h"
#include "core/testing/cunit.h"
#include "core/weights/upload/upload.h"

enum { FILES = 3, TENSORS = 5, BYTES = 300001, COUNT = FILES * TENSORS, GAP = 77, SEED = 5 };

/* What varies: where the store is, and how the bytes go. */
static const struct way {
    enum hl_fixture_place place;
    hl_weight_upload_route asked;
} ways[] = {{HL_FIXTURE_DISK, HL_WEIGHT_UPLOAD_STAGING},
            {HL_FIXTURE_SHM, HL_WEIGHT_UPLOAD_STAGING},
            {HL_FIXTURE_SHM, HL_WEIGHT_UPLOAD_REGISTERED},
            {HL_FIXTURE_SHM, HL_WEIGHT_UPLOAD_AUTO}};
enum { WAYS = sizeof ways / sizeof *ways };

static struct world {
    struct hl_store_fixture fixture;
    hl_weight_identity *identity;
    const char *key;
    hl_weight_lease *lease;
    hl_device *dev;
    hl_stream stream;
    hl_devptr memory;
    unsigned char *host; /* registered */
    size_t bytes;
    hl_weight_destination destinations[COUNT];
    hl_weight_upload_options options;
    hl_error err;
} world;

static hl_weight_lease *get(hl_weight_origin expected)
{
    struct hl_fake_producer fake;
    hl_weight_lease *lease = NULL;
    hl_weight_failure failure;
    hl_weight_origin origin;
    hl_fake_producer_init(&fake, world.identity);
    fake.files = FILES;
    fake.tensors = TENSORS;
    fake.tensor_bytes = BYTES;
    fake.seed = SEED;
    HL_REQUIRE_OK(hl_fixture_get(&world.fixture, world.identity, &fake, &origin, &lease, &failure),
                  failure.error);
    CU_ASSERT_EQUAL(origin, expected);
    return lease;
}

static void open_device(void)
{
    HL_REQUIRE_OK(hl_device_open_software(&world.dev, &world.err), world.err);
    const struct hl_device_ops *ops = world.dev->ops;
    HL_REQUIRE_OK(hl_device_enter(world.dev, &world.err), world.err);
    HL_REQUIRE_OK(ops->stream_create(world.dev, &world.stream, &world.err), world.err);
    world.bytes = (COUNT * (BYTES + GAP) / 65536 + 1) * 65536;
    HL_REQUIRE_OK(ops->mem_alloc(world.dev, world.bytes, &world.memory, &world.err), world.err);
    world.host = mmap(NULL, world.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CU_ASSERT_PTR_NOT_EQUAL_FATAL(world.host, MAP_FAILED);
    HL_REQUIRE_OK(ops->host_register(world.dev, world.host, world.bytes, &world.err), world.err);
}

static void open_world(const struct way *way)
{
    memset(&world, 0, sizeof world);
    hl_fixture_open(&world.fixture, way->place);
    world.identity = hl_fixture_identity(1, 0);
    world.key = hl_weight_identity_key(world.identity);
    world.lease = get(HL_WEIGHT_BUILT);
    CU_ASSERT_EQUAL_FATAL(hl_weight_lease_tensor_count(world.lease), COUNT);
    open_device();
    hl_weight_upload_options_init(&world.options);
    world.options.route = way->asked;
    world.options.staging_bytes = 4 * 65536;
    world.options.slot_bytes = 65536;
    world.options.register_chunk_bytes = 8 * 65536;
    world.options.copy_threads = 3;
    for (size_t i = 0; i < COUNT; i++)
        world.destinations[i] =
            (hl_weight_destination){.tensor = hl_weight_lease_tensor_at(world.lease, i)->name,
                                    .device_ptr = world.memory + i * (BYTES + GAP),
                                    .bytes = BYTES};
}

static void close_world(void)
{
    const struct hl_device_ops *ops = world.dev->ops;
    HL_EXPECT_OK(ops->host_unregister(world.dev, world.host, &world.err), world.err);
    munmap(world.host, world.bytes);
    HL_EXPECT_OK(ops->mem_free(world.dev, world.memory, &world.err), world.err);
    HL_EXPECT_OK(ops->stream_destroy(world.dev, world.stream, &world.err), world.err);
    hl_device_leave(world.dev);
    hl_device_close(world.dev);
    hl_weight_lease_release(world.lease);
    hl_weight_identity_free(world.identity);
    hl_fixture_close(&world.fixture);
}

static void read_back(void)
{
    const struct hl_device_ops *ops = world.dev->ops;
    HL_REQUIRE_OK(ops->copy(world.dev, HL_COPY_D2H, (uintptr_t)world.host, world.memory, world.bytes,
                            world.stream, &world.err),
                  world.err);
    HL_REQUIRE_OK(ops->stream_synchronize(world.dev, world.stream, &world.err), world.err);
}

/* What the producer wrote, made anew: what a tensor's view shows is not asked. */
static void expect_every_byte(void)
{
    unsigned char *expected = malloc(BYTES);
    CU_ASSERT_PTR_NOT_NULL_FATAL(expected);
    read_back();
    for (unsigned i = 0; i < COUNT; i++) {
        const char *name = world.destinations[i].tensor; /* "file000.tensor00000" */
        const uint64_t file = strtoul(name + 4, NULL, 10), tensor = strtoul(name + 14, NULL, 10);
        hl_random random;
        hl_random_seed(&random, SEED + file * TENSORS + tensor);
        hl_random_fill(&random, expected, BYTES);
        CU_ASSERT_EQUAL(memcmp(world.host + i * (BYTES + GAP), expected, BYTES), 0);
    }
    free(expected);
}

static hl_upload *start_upload(void)
{
    hl_upload *upload = NULL;
    HL_REQUIRE_OK(hl_upload_start(world.dev, world.lease, &world.options, world.destinations, COUNT, &upload,
                                  &world.err),
                  world.err);
    return upload;
}

static void finish_upload(hl_upload *upload, hl_weight_upload_route route)
{
    hl_weight_upload_result result;
    HL_EXPECT_OK(hl_upload_wait(upload, -1, &result, &world.err), world.err);
    CU_ASSERT_TRUE(result.drained);
    CU_ASSERT_EQUAL(result.bytes, (uint64_t)COUNT * BYTES);
    CU_ASSERT_EQUAL(result.route, route == HL_WEIGHT_UPLOAD_AUTO ? HL_WEIGHT_UPLOAD_STAGING : route);
    CU_ASSERT_TRUE(hl_upload_close(upload));
}

static void what_was_built_arrives_by_each_route(void)
{
    for (int i = 0; i < WAYS; i++) {
        open_world(&ways[i]);
        finish_upload(start_upload(), ways[i].asked);
        expect_every_byte();
        close_world();
    }
}

/* The upload is the only holder, and has not been able to write a byte yet. */
static hl_upload *start_held(void)
{
    world.options.ready_stream = world.stream;
    hl_software_hold(world.dev, world.stream, 1);
    HL_EXPECT_OK(world.dev->ops->fill(world.dev, world.memory, 0x5a, world.bytes, world.stream, &world.err),
                 world.err);
    hl_upload *upload = start_upload();
    for (size_t i = 0; i < COUNT; i++)
        world.destinations[i].tensor = strdup(world.destinations[i].tensor); /* the lease's until now */
    hl_weight_lease_release(world.lease);
    world.lease = NULL;
    return upload;
}

static void free_names(void)
{
    for (size_t i = 0; i < COUNT; i++)
        free((void *)(uintptr_t)world.destinations[i].tensor);
}

static void an_artifact_cannot_be_cleaned_until_its_upload_has_drained(void)
{
    for (int i = 0; i < WAYS; i++) {
        hl_weight_failure failure;
        open_world(&ways[i]);
        hl_upload *upload = start_held();
        HL_EXPECT_FAILURE(hl_weight_store_clean(world.fixture.store, world.key, &failure),
                          HL_WEIGHT_ACTIVE_LEASE, true, failure);
        hl_software_release(world.dev, world.stream);
        finish_upload(upload, ways[i].asked);
        expect_every_byte();
        HL_EXPECT_OK(hl_weight_store_clean(world.fixture.store, world.key, &failure), failure.error);
        free_names();
        close_world();
    }
}

static void a_denied_artifact_stays_whole_until_its_upload_has_drained(void)
{
    for (int i = 0; i < WAYS; i++) {
        hl_weight_failure failure;
        hl_weight_lease *refused = NULL;
        open_world(&ways[i]);
        hl_upload *upload = start_held();
        HL_EXPECT_OK(hl_weight_store_deny(world.fixture.store, world.key, "under test", &failure),
                     failure.error);
        HL_EXPECT_FAILURE(hl_fixture_look_up(&world.fixture, world.identity, HL_WEIGHT_MANIFEST_AND_METADATA,
                                             &refused, &failure),
                          HL_WEIGHT_ARTIFACT_DENIED, false, failure);
        hl_software_release(world.dev, world.stream);
        finish_upload(upload, ways[i].asked);
        expect_every_byte();
        hl_weight_lease_release(get(HL_WEIGHT_BUILT)); /* which quarantines the denied one */
        CU_ASSERT_EQUAL(hl_fixture_count(&world.fixture, "quarantine", ""), 1);
        free_names();
        close_world();
    }
}

/* As nobody does who takes the lock: its folder is moved away, and then removed, under the upload. */
static void an_artifact_removed_by_force_is_uploaded_from_the_files_that_were_leased(void)
{
    for (int i = 0; i < WAYS; i++) {
        char from[600], to[600];
        open_world(&ways[i]);
        hl_upload *upload = start_held();
        snprintf(from, sizeof from, "%s/artifacts/%s", world.fixture.root, world.key);
        snprintf(to, sizeof to, "%s/quarantine/moved", world.fixture.root);
        CU_ASSERT_EQUAL_FATAL(chmod(from, 0755), 0);
        CU_ASSERT_EQUAL_FATAL(rename(from, to), 0);
        hl_fixture_remove(&world.fixture, "quarantine/moved");
        hl_software_release(world.dev, world.stream);
        finish_upload(upload, ways[i].asked);
        expect_every_byte();
        hl_weight_lease_release(get(HL_WEIGHT_BUILT));
        free_names();
        close_world();
    }
}

HL_TESTS(upload_store, HL_CASE(what_was_built_arrives_by_each_route),
         HL_CASE(an_artifact_cannot_be_cleaned_until_its_upload_has_drained),
         HL_CASE(a_denied_artifact_stays_whole_until_its_upload_has_drained),
         HL_CASE(an_artifact_removed_by_force_is_uploaded_from_the_files_that_were_leased));
