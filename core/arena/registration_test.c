#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/arena/arena.h"
#include "core/device/software.h"
#include "core/testing/cunit.h"
#include "hostlane/limits.h"

enum { CHUNK = 64 * 1024, CHUNKS = 5, BYTES = CHUNK * (CHUNKS - 1) + 4096, OUT_OF_MEMORY = 2 };

struct fixture {
    hl_device *dev;
    hl_arena *arena;
};

static void open_fixture(struct fixture *f)
{
    struct hl_arena_options options = {
        .arena_id = 1, .bytes = BYTES, .numa_node = -1, .threads = 1, .chunk_bytes = CHUNK};
    hl_error err;
    *f = (struct fixture){0};
    HL_REQUIRE_OK(hl_device_open_software(&f->dev, &err), err);
    HL_REQUIRE_OK(hl_arena_create(&options, &f->arena, &err), err);
}

static void close_fixture(struct fixture *f)
{
    hl_arena_destroy(f->arena);
    hl_device_close(f->dev);
}

static uint64_t live_registrations(hl_device *dev)
{
    struct hl_software_counts counts;
    hl_software_counts(dev, &counts);
    return counts.registrations;
}

static hl_registration *must_register(struct fixture *f)
{
    hl_registration *registration = NULL;
    hl_error err;
    HL_REQUIRE_OK(hl_arena_register(f->arena, f->dev, NULL, NULL, &registration, &err), err);
    return registration;
}

struct seen_progress {
    uint64_t calls;
    uint64_t last;
    uint64_t bad;
};

static void see_progress(void *user, const char *stage, uint64_t done, uint64_t total)
{
    struct seen_progress *seen = user;
    seen->calls++;
    seen->bad += done < seen->last || total != BYTES || strcmp(stage, "register") != 0;
    seen->last = done;
}

/* --- the way of the bytes --- */

static void a_registration_covers_every_chunk_and_reports_each(void)
{
    struct fixture f;
    struct seen_progress seen = {0};
    hl_registration *registration = NULL;
    hl_error err;
    open_fixture(&f);
    HL_REQUIRE_OK(hl_arena_register(f.arena, f.dev, see_progress, &seen, &registration, &err), err);
    CU_ASSERT_EQUAL(live_registrations(f.dev), CHUNKS);
    CU_ASSERT_EQUAL(seen.calls, CHUNKS + 1);
    CU_ASSERT_EQUAL(seen.last, BYTES);
    CU_ASSERT_EQUAL(seen.bad, 0);
    CU_ASSERT_PTR_EQUAL(hl_registration_arena(registration), f.arena);
    hl_registration_release(registration);
    hl_registration_release(NULL);
    CU_ASSERT_EQUAL(live_registrations(f.dev), 0);
    close_fixture(&f);
}

static void an_arena_smaller_than_a_chunk_is_one_registration(void)
{
    struct hl_arena_options options = {.arena_id = 1, .bytes = 4096, .numa_node = -1, .threads = 1};
    struct fixture f = {0};
    hl_error err;
    HL_REQUIRE_OK(hl_device_open_software(&f.dev, &err), err);
    HL_REQUIRE_OK(hl_arena_create(&options, &f.arena, &err), err);
    hl_registration *registration = must_register(&f);
    CU_ASSERT_EQUAL(live_registrations(f.dev), 1);
    hl_registration_release(registration);
    close_fixture(&f);
}

static void two_devices_register_one_arena(void)
{
    struct fixture f, other = {0};
    hl_error err;
    open_fixture(&f);
    HL_REQUIRE_OK(hl_device_open_software(&other.dev, &err), err);
    other.arena = f.arena;
    hl_registration *first = must_register(&f), *second = must_register(&other);
    hl_registration_release(first);
    CU_ASSERT_EQUAL(live_registrations(f.dev), 0);
    CU_ASSERT_EQUAL(live_registrations(other.dev), CHUNKS);
    hl_registration_release(second);
    hl_device_close(other.dev);
    close_fixture(&f);
}

/* Device memory to host memory through the addresses that the registration gave. */
static void registered_bytes_can_be_copied_from_each_chunk(void)
{
    struct fixture f;
    hl_devptr device_memory = 0, host = 0;
    hl_stream stream = NULL;
    hl_error err;
    open_fixture(&f);
    unsigned char *base = hl_arena_base(f.arena), back[256];
    hl_registration *registration = must_register(&f);
    HL_REQUIRE_OK(hl_device_enter(f.dev, &err), err);
    HL_REQUIRE_OK(f.dev->ops->stream_create(f.dev, &stream, &err), err);
    HL_REQUIRE_OK(f.dev->ops->mem_alloc(f.dev, 4096, &device_memory, &err), err);
    for (uint64_t chunk = 0; chunk < CHUNKS; chunk++) {
        uint64_t offset = chunk * CHUNK + 4096 - 256;
        memset(base + offset, (int)(0x80 + chunk), 256);
        HL_REQUIRE_OK(hl_registration_pointer(registration, offset, 256, &host, &err), err);
        struct hl_gather piece = {device_memory, host, 256};
        memcpy(base, &piece, sizeof piece);
        HL_REQUIRE_OK(hl_registration_pointer(registration, 0, sizeof piece, &host, &err), err);
        struct hl_gather_launch launch = {
            .descriptors = host, .count = 1, .blocks = 1, .method = HL_GATHER_LOADS};
        HL_EXPECT_OK(f.dev->ops->gather(f.dev, &launch, stream, &err), err);
        HL_EXPECT_OK(f.dev->ops->stream_synchronize(f.dev, stream, &err), err);
        hl_software_peek(f.dev, back, device_memory, sizeof back);
        CU_ASSERT_EQUAL(memcmp(back, base + offset, sizeof back), 0);
    }
    HL_EXPECT_OK(f.dev->ops->mem_free(f.dev, device_memory, &err), err);
    HL_EXPECT_OK(f.dev->ops->stream_destroy(f.dev, stream, &err), err);
    hl_device_leave(f.dev);
    hl_registration_release(registration);
    close_fixture(&f);
}

static void pointers_outside_the_arena_or_across_chunks_are_refused(void)
{
    static const struct {
        uint64_t offset, bytes;
        hl_status status;
        const char *word;
    } cases[] = {
        {0, 0, HL_E_INVALID, "bytes"},        {BYTES, 1, HL_E_RANGE, "leave"},
        {BYTES - 1, 2, HL_E_RANGE, "leave"},  {UINT64_MAX, 1, HL_E_RANGE, "leave"},
        {1, UINT64_MAX, HL_E_RANGE, "leave"}, {0, BYTES + 1, HL_E_RANGE, "leave"},
        {CHUNK - 1, 2, HL_E_RANGE, "cross"},  {0, CHUNK + 1, HL_E_RANGE, "cross"},
        {0, BYTES, HL_E_RANGE, "cross"},      {0, CHUNK, HL_OK, NULL},
        {CHUNK, CHUNK, HL_OK, NULL},          {CHUNK - 1, 1, HL_OK, NULL},
        {BYTES - 4096, 4096, HL_OK, NULL},
    };
    struct fixture f;
    open_fixture(&f);
    hl_registration *registration = must_register(&f);
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        hl_devptr ptr = 123;
        hl_error err = {0};
        HL_EXPECT_STATUS(hl_registration_pointer(registration, cases[i].offset, cases[i].bytes, &ptr, &err),
                         cases[i].status, err);
        CU_ASSERT_EQUAL(ptr == 123, cases[i].status != HL_OK);
        if (cases[i].word)
            CU_ASSERT_PTR_NOT_NULL(strstr(err.text, cases[i].word));
    }
    CU_ASSERT_EQUAL(hl_registration_pointer(registration, BYTES, 1, NULL, NULL), HL_E_RANGE);
    hl_registration_release(registration);
    close_fixture(&f);
}

/* --- failures --- */

static void when_any_chunk_fails_those_before_it_are_unregistered(void)
{
    struct fixture f;
    open_fixture(&f);
    for (uint64_t failing = 1; failing <= CHUNKS; failing++) {
        struct seen_progress seen = {0};
        hl_registration *registration = NULL;
        hl_error err = {0};
        char word[64];
        hl_software_fail_register(f.dev, failing, OUT_OF_MEMORY);
        hl_status status = hl_arena_register(f.arena, f.dev, see_progress, &seen, &registration, &err);
        CU_ASSERT_NOT_EQUAL(status, HL_OK);
        CU_ASSERT_EQUAL(err.status, status);
        CU_ASSERT_EQUAL(err.device_code, OUT_OF_MEMORY);
        snprintf(word, sizeof word, "chunk %u of %u", (unsigned)failing - 1, (unsigned)CHUNKS);
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, word));
        CU_ASSERT_PTR_NULL(registration);
        CU_ASSERT_EQUAL(live_registrations(f.dev), 0);
        CU_ASSERT_EQUAL(seen.last, (failing - 1) * CHUNK);
    }
    hl_software_fail_register(f.dev, 1, OUT_OF_MEMORY);
    hl_registration *registration = NULL;
    CU_ASSERT_NOT_EQUAL(hl_arena_register(f.arena, f.dev, NULL, NULL, &registration, NULL), HL_OK);
    registration = must_register(&f); /* nothing of the failures is left */
    CU_ASSERT_EQUAL(live_registrations(f.dev), CHUNKS);
    hl_registration_release(registration);
    close_fixture(&f);
}

static void registering_twice_with_one_device_leaves_the_first_alone(void)
{
    struct fixture f;
    hl_registration *second = NULL;
    hl_error err = {0};
    open_fixture(&f);
    hl_registration *first = must_register(&f);
    CU_ASSERT_NOT_EQUAL(hl_arena_register(f.arena, f.dev, NULL, NULL, &second, &err), HL_OK);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "chunk 0 of"));
    CU_ASSERT_PTR_NULL(second);
    CU_ASSERT_EQUAL(live_registrations(f.dev), CHUNKS);
    hl_registration_release(first);
    CU_ASSERT_EQUAL(live_registrations(f.dev), 0);
    close_fixture(&f);
}

/* A device whose table is a copy of the software device's, with one operation replaced. */
static uint64_t pointers_left;
static const struct hl_device_ops *true_ops;
static uint64_t enters, leaves;

static hl_status failing_pointer(hl_device *dev, void *ptr, hl_devptr *mapped, hl_error *err)
{
    if (pointers_left-- > 0)
        return true_ops->host_pointer(dev, ptr, mapped, err);
    if (err)
        *err = (hl_error){.status = HL_E_DEVICE, .device_code = 1, .sys_errno = 0, .text = "no address"};
    return HL_E_DEVICE;
}

static hl_status failing_enter(hl_device *dev, hl_error *err)
{
    (void)dev;
    if (err)
        *err = (hl_error){.status = HL_E_DEVICE, .device_code = 201, .text = "no context"};
    return HL_E_DEVICE;
}

static hl_status counted_enter(hl_device *dev, hl_error *err)
{
    enters++;
    return true_ops->enter(dev, err);
}

static void counted_leave(hl_device *dev)
{
    leaves++;
    true_ops->leave(dev);
}

static void a_chunk_without_an_address_is_rolled_back_too(void)
{
    struct fixture f;
    open_fixture(&f);
    true_ops = f.dev->ops;
    struct hl_device_ops ops = *true_ops;
    ops.host_pointer = failing_pointer;
    f.dev->ops = &ops;
    for (uint64_t good = 0; good < CHUNKS; good++) {
        hl_registration *registration = NULL;
        hl_error err = {0};
        pointers_left = good;
        CU_ASSERT_EQUAL(hl_arena_register(f.arena, f.dev, NULL, NULL, &registration, &err), HL_E_DEVICE);
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "no address"));
        CU_ASSERT_EQUAL(err.device_code, 1);
        CU_ASSERT_EQUAL(live_registrations(f.dev), 0);
    }
    f.dev->ops = true_ops;
    close_fixture(&f);
}

static void a_device_that_cannot_be_entered_is_left_alone(void)
{
    struct fixture f;
    hl_registration *registration = NULL;
    hl_error err = {0};
    open_fixture(&f);
    true_ops = f.dev->ops;
    struct hl_device_ops ops = *true_ops;
    ops.enter = failing_enter;
    f.dev->ops = &ops;
    CU_ASSERT_EQUAL(hl_arena_register(f.arena, f.dev, NULL, NULL, &registration, &err), HL_E_DEVICE);
    CU_ASSERT_EQUAL(err.device_code, 201);
    f.dev->ops = true_ops;
    CU_ASSERT_EQUAL(live_registrations(f.dev), 0);
    registration = must_register(&f);
    f.dev->ops = &ops;
    hl_registration_release(registration); /* the context is lost: nothing to unregister, nothing leaked */
    f.dev->ops = true_ops;
    CU_ASSERT_EQUAL(live_registrations(f.dev), CHUNKS);
    HL_REQUIRE_OK(hl_device_enter(f.dev, &err), err);
    for (uint64_t i = 0; i < CHUNKS; i++) {
        unsigned char *chunk = (unsigned char *)hl_arena_base(f.arena) + i * CHUNK;
        HL_EXPECT_OK(f.dev->ops->host_unregister(f.dev, chunk, &err), err);
    }
    hl_device_leave(f.dev);
    close_fixture(&f);
}

static void each_enter_has_its_leave_also_when_a_chunk_fails(void)
{
    struct fixture f;
    hl_registration *registration = NULL;
    open_fixture(&f);
    true_ops = f.dev->ops;
    struct hl_device_ops ops = *true_ops;
    ops.enter = counted_enter;
    ops.leave = counted_leave;
    f.dev->ops = &ops;
    enters = leaves = 0;
    hl_software_fail_register(f.dev, 2, OUT_OF_MEMORY);
    CU_ASSERT_NOT_EQUAL(hl_arena_register(f.arena, f.dev, NULL, NULL, &registration, NULL), HL_OK);
    CU_ASSERT_EQUAL(enters, 1);
    CU_ASSERT_EQUAL(leaves, 1);
    hl_registration_release(must_register(&f));
    CU_ASSERT_EQUAL(enters, 3);
    CU_ASSERT_EQUAL(leaves, 3);
    f.dev->ops = true_ops;
    close_fixture(&f);
}

HL_TESTS(registration, HL_CASE(a_registration_covers_every_chunk_and_reports_each),
         HL_CASE(an_arena_smaller_than_a_chunk_is_one_registration), HL_CASE(two_devices_register_one_arena),
         HL_CASE(registered_bytes_can_be_copied_from_each_chunk),
         HL_CASE(pointers_outside_the_arena_or_across_chunks_are_refused),
         HL_CASE(when_any_chunk_fails_those_before_it_are_unregistered),
         HL_CASE(registering_twice_with_one_device_leaves_the_first_alone),
         HL_CASE(a_chunk_without_an_address_is_rolled_back_too),
         HL_CASE(a_device_that_cannot_be_entered_is_left_alone),
         HL_CASE(each_enter_has_its_leave_also_when_a_chunk_fails));
