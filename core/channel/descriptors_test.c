/* The descriptor memory: space for requests on the engine's side, private copies on the Manager's. */
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/random.h"
#include "core/channel/channel_testing.h"

#define SPACE_BYTES (HL_DESCRIPTOR_BYTES - HL_DESCRIPTOR_HEADER_BYTES)

static hl_error err;

struct sides {
    hl_descriptors *manager, *engine;
};

static void open_sides(struct sides *sides)
{
    HL_REQUIRE_OK(hl_descriptors_create(&sides->manager, &err), err);
    HL_REQUIRE_OK(hl_descriptors_map(hl_descriptors_fd(sides->manager), &sides->engine, &err), err);
}

static void close_sides(struct sides *sides)
{
    hl_descriptors_close(sides->engine);
    hl_descriptors_close(sides->manager);
}

static void memory_is_sealed_zeroed_and_closed_on_exec(void)
{
    struct sides sides;
    unsigned before = open_fds();
    open_sides(&sides);
    int fd = hl_descriptors_fd(sides.manager), own = hl_descriptors_fd(sides.engine);
    CU_ASSERT_NOT_EQUAL(fd, own);
    CU_ASSERT_EQUAL(fcntl(fd, F_GETFD), FD_CLOEXEC);
    CU_ASSERT_EQUAL(fcntl(own, F_GETFD), FD_CLOEXEC);
    CU_ASSERT_NOT_EQUAL(ftruncate(fd, 0), 0);
    CU_ASSERT_NOT_EQUAL(ftruncate(fd, (off_t)(2 * HL_DESCRIPTOR_BYTES)), 0);
    for (uint32_t slot = 0; slot < HL_PUBLISH_SLOTS; slot++) {
        CU_ASSERT_EQUAL(atomic_load(&hl_descriptors_slot(sides.engine, slot)->state), HL_PUBLISH_IDLE);
        atomic_store(&hl_descriptors_slot(sides.engine, slot)->state, slot + 1);
    }
    for (uint32_t slot = 0; slot < HL_PUBLISH_SLOTS; slot++)
        CU_ASSERT_EQUAL(atomic_load(&hl_descriptors_slot(sides.manager, slot)->state), slot + 1);
    close_sides(&sides);
    hl_descriptors_close(NULL);
    CU_ASSERT_EQUAL(open_fds(), before);
}

static void without_a_free_fd_there_is_no_memory(void)
{
    hl_descriptors *manager = NULL, *engine = NULL;
    fds_limit(0);
    hl_status status = hl_descriptors_create(&manager, &err);
    fds_unlimited();
    HL_EXPECT_STATUS(status, HL_E_SYSTEM, err);
    CU_ASSERT_PTR_NULL(manager);
    HL_REQUIRE_OK(hl_descriptors_create(&manager, &err), err);
    fds_limit(0);
    status = hl_descriptors_map(hl_descriptors_fd(manager), &engine, &err);
    fds_unlimited();
    HL_EXPECT_STATUS(status, HL_E_SYSTEM, err);
    CU_ASSERT_PTR_NULL(engine);
    hl_descriptors_close(manager);
}

static void expect_not_mapped(int fd, hl_status status)
{
    hl_descriptors *descriptors = (hl_descriptors *)&err;
    unsigned before = open_fds();
    HL_EXPECT_STATUS(hl_descriptors_map(fd, &descriptors, &err), status, err);
    CU_ASSERT_PTR_EQUAL(descriptors, (hl_descriptors *)&err);
    CU_ASSERT_EQUAL(open_fds(), before);
    close(fd);
}

static int make_memfd(uint64_t bytes, int seals)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CU_ASSERT_FATAL(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 && fcntl(fd, F_ADD_SEALS, seals) == 0);
    return fd;
}

static void other_memory_is_not_mapped(void)
{
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    hl_descriptors *manager;
    char path[64];
    expect_not_mapped(make_memfd(HL_DESCRIPTOR_BYTES, 0), HL_E_PERMISSION);
    expect_not_mapped(make_memfd(HL_DESCRIPTOR_BYTES, F_SEAL_GROW | F_SEAL_SEAL), HL_E_PERMISSION);
    expect_not_mapped(make_memfd(HL_DESCRIPTOR_BYTES, F_SEAL_SHRINK | F_SEAL_SEAL), HL_E_PERMISSION);
    expect_not_mapped(make_memfd(HL_DESCRIPTOR_BYTES, seals | F_SEAL_WRITE), HL_E_PERMISSION);
    expect_not_mapped(make_memfd(HL_DESCRIPTOR_BYTES - 4096, seals), HL_E_RANGE);
    expect_not_mapped(make_memfd(HL_DESCRIPTOR_BYTES + 4096, seals), HL_E_RANGE);
    expect_not_mapped(make_memfd(0, seals), HL_E_RANGE);
    expect_not_mapped(open("/dev/null", O_RDWR | O_CLOEXEC), HL_E_PERMISSION);
    expect_not_mapped(-1, HL_E_INVALID);
    HL_REQUIRE_OK(hl_descriptors_create(&manager, &err), err);
    snprintf(path, sizeof path, "/proc/self/fd/%d", hl_descriptors_fd(manager));
    expect_not_mapped(open(path, O_RDONLY | O_CLOEXEC), HL_E_PERMISSION);
    hl_descriptors_close(manager);
}

/* One extent that the test holds, filled with its own byte. */
struct holding {
    struct hl_extent extent;
    unsigned char *at;
    unsigned char fill;
};

static bool holds(const struct holding *holding)
{
    for (uint32_t i = 0; i < holding->extent.bytes; i++)
        if (holding->at[i] != holding->fill)
            return false;
    return true;
}

static void expect_free_of_others(const struct holding *held, size_t count, struct hl_extent extent)
{
    CU_ASSERT_EQUAL(extent.offset % 64, 0);
    CU_ASSERT_TRUE(extent.offset >= HL_DESCRIPTOR_HEADER_BYTES);
    CU_ASSERT_TRUE((uint64_t)extent.offset + extent.bytes <= HL_DESCRIPTOR_BYTES);
    for (size_t i = 0; i < count; i++)
        CU_ASSERT_TRUE(extent.offset + extent.bytes <= held[i].extent.offset ||
                       held[i].extent.offset + held[i].extent.bytes <= extent.offset);
}

static uint32_t random_size(hl_random *random)
{
    uint64_t largest = hl_random_below(random, 8) == 0 ? 4 * HL_MIB : 1 + hl_random_below(random, 20000);
    return (uint32_t)(1 + hl_random_below(random, largest));
}

/* Largest gap that the model leaves, in whole 64-byte units. */
static uint64_t largest_gap(const struct holding *held, size_t count)
{
    uint64_t largest = 0, from = HL_DESCRIPTOR_HEADER_BYTES;
    for (;;) {
        uint64_t next = HL_DESCRIPTOR_BYTES, after = 0;
        for (size_t i = 0; i < count; i++)
            if (held[i].extent.offset >= from && held[i].extent.offset < next) {
                next = held[i].extent.offset;
                after = (next + held[i].extent.bytes + 63) / 64 * 64;
            }
        largest = next - from > largest ? next - from : largest;
        if (after == 0)
            return largest;
        from = after;
    }
}

static void extents_are_disjoint_and_refused_only_when_no_gap_fits(void)
{
    enum { ROUNDS = 6000, MOST = 300 };
    static struct holding held[MOST];
    struct sides sides;
    size_t count = 0;
    unsigned refused = 0;
    hl_random random;
    hl_random_seed(&random, 7);
    open_sides(&sides);
    for (int round = 0; round < ROUNDS; round++) {
        if (count < MOST && hl_random_below(&random, 100) < (round / 1000 % 2 ? 40u : 60u)) {
            struct holding new = {.fill = (unsigned char)round};
            uint32_t bytes = random_size(&random);
            hl_status status = hl_descriptors_take(sides.engine, bytes, &new.extent, (void **)&new.at, &err);
            CU_ASSERT_EQUAL(status, largest_gap(held, count) >= bytes ? HL_OK : HL_E_BUDGET);
            refused += status == HL_E_BUDGET;
            if (status != HL_OK)
                continue;
            CU_ASSERT_EQUAL(new.extent.bytes, bytes);
            expect_free_of_others(held, count, new.extent);
            memset(new.at, new.fill, new.extent.bytes);
            held[count++] = new;
        } else if (count > 0) {
            size_t i = (size_t)hl_random_below(&random, count);
            CU_ASSERT_TRUE(round % 8 != 0 || holds(&held[i]));
            hl_descriptors_give(sides.engine, held[i].extent);
            held[i] = held[--count];
        }
    }
    CU_ASSERT_TRUE(refused > 0);
    while (count > 0) {
        CU_ASSERT_TRUE(holds(&held[--count]));
        hl_descriptors_give(sides.engine, held[count].extent);
    }
    struct holding all; /* everything has merged again */
    HL_REQUIRE_OK(hl_descriptors_take(sides.engine, SPACE_BYTES, &all.extent, (void **)&all.at, &err), err);
    hl_descriptors_give(sides.engine, all.extent);
    close_sides(&sides);
}

static void sizes_that_cannot_be_are_refused(void)
{
    struct sides sides;
    struct hl_extent extent = {1, 2}, all;
    void *at = &extent, *base;
    open_sides(&sides);
    HL_EXPECT_STATUS(hl_descriptors_take(sides.engine, 0, &extent, &at, &err), HL_E_INVALID, err);
    HL_EXPECT_STATUS(hl_descriptors_take(sides.engine, SPACE_BYTES + 1, &extent, &at, &err), HL_E_LIMIT, err);
    HL_EXPECT_STATUS(hl_descriptors_take(sides.engine, UINT32_MAX, &extent, &at, &err), HL_E_LIMIT, err);
    HL_EXPECT_STATUS(hl_descriptors_take(sides.manager, 64, &extent, &at, &err), HL_E_STATE, err);
    HL_REQUIRE_OK(hl_descriptors_take(sides.engine, SPACE_BYTES, &all, &base, &err), err);
    HL_EXPECT_STATUS(hl_descriptors_take(sides.engine, 1, &extent, &at, &err), HL_E_BUDGET, err);
    hl_descriptors_give(sides.engine, all);
    CU_ASSERT_EQUAL(extent.offset, 1);
    CU_ASSERT_EQUAL(extent.bytes, 2);
    CU_ASSERT_PTR_EQUAL(at, &extent);
    close_sides(&sides);
}

struct taker {
    pthread_t thread;
    hl_descriptors *engine;
    unsigned number;
};

static void *take_and_give(void *argument)
{
    const struct taker *thread = argument;
    hl_random random;
    struct hl_extent kept[16];
    unsigned char *at[16];
    uintptr_t failures = 0;
    unsigned char mine = (unsigned char)(thread->number * 50);
    hl_random_seed(&random, thread->number);
    for (int round = 0; round < 300; round++) {
        for (int i = 0; i < 16; i++) {
            uint32_t bytes = 1 + (uint32_t)hl_random_below(&random, 3000);
            failures += hl_descriptors_take(thread->engine, bytes, &kept[i], (void **)&at[i], NULL) != HL_OK;
            memset(at[i], mine + i, bytes);
        }
        for (int i = 0; i < 16; i++) {
            struct holding holding = {kept[i], at[i], (unsigned char)(mine + i)};
            failures += !holds(&holding);
            hl_descriptors_give(thread->engine, kept[i]);
        }
    }
    return (void *)failures;
}

static void threads_share_the_space(void)
{
    struct sides sides;
    struct taker takers[4];
    open_sides(&sides);
    for (unsigned i = 0; i < 4; i++) {
        takers[i] = (struct taker){.engine = sides.engine, .number = i};
        CU_ASSERT_EQUAL_FATAL(pthread_create(&takers[i].thread, NULL, take_and_give, &takers[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        void *failures = &sides;
        pthread_join(takers[i].thread, &failures);
        CU_ASSERT_PTR_NULL(failures);
    }
    close_sides(&sides);
}

static void giving_back_what_was_not_taken_aborts(void)
{
    static const char *const wrongs[] = {"twice", "shorter", "elsewhere", "never", "manager", "slot"};
    for (size_t i = 0; i < sizeof wrongs / sizeof wrongs[0]; i++) {
        struct role role;
        role_start(&role, "misuse", wrongs[i]);
        role_expect_abort(&role);
    }
}

static void hostile_extents_are_refused(void)
{
    static const struct {
        struct hl_extent extent;
        const char *text;
    } hostile[] = {
        {{HL_DESCRIPTOR_HEADER_BYTES, 0}, "is empty"},
        {{0, 0}, "is empty"},
        {{HL_DESCRIPTOR_HEADER_BYTES + 1, 8}, "is not 8-byte aligned"},
        {{HL_DESCRIPTOR_HEADER_BYTES + 4, 8}, "is not 8-byte aligned"},
        {{0, 8}, "lies in the publish slots"},
        {{HL_DESCRIPTOR_HEADER_BYTES - 8, 8}, "lies in the publish slots"},
        {{HL_DESCRIPTOR_HEADER_BYTES - 8, 4096}, "lies in the publish slots"},
        {{HL_DESCRIPTOR_BYTES - 8, 9}, "leaves the descriptor memory"},
        {{HL_DESCRIPTOR_BYTES, 1}, "leaves the descriptor memory"},
        {{HL_DESCRIPTOR_BYTES, UINT32_MAX}, "leaves the descriptor memory"},
        {{UINT32_MAX - 7, 1}, "leaves the descriptor memory"},
        {{UINT32_MAX - 7, UINT32_MAX}, "leaves the descriptor memory"},
        {{HL_DESCRIPTOR_HEADER_BYTES, UINT32_MAX}, "leaves the descriptor memory"},
        {{HL_DESCRIPTOR_HEADER_BYTES, SPACE_BYTES + 1}, "leaves the descriptor memory"},
    };
    struct sides sides;
    open_sides(&sides);
    for (size_t i = 0; i < sizeof hostile / sizeof hostile[0]; i++) {
        void *copy = &sides;
        HL_EXPECT_STATUS(hl_descriptors_copy(sides.manager, hostile[i].extent, SIZE_MAX, &copy, &err),
                         HL_E_PROTOCOL, err);
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, hostile[i].text));
        CU_ASSERT_PTR_EQUAL(copy, &sides);
        HL_EXPECT_STATUS(hl_descriptors_write(sides.manager, hostile[i].extent, "x", 1, &err), HL_E_PROTOCOL,
                         err);
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, hostile[i].text));
    }
    close_sides(&sides);
}

static void a_copy_is_bounded_by_its_reader_and_a_write_by_its_extent(void)
{
    struct sides sides;
    struct hl_extent extent;
    void *at, *copy = NULL;
    open_sides(&sides);
    HL_REQUIRE_OK(hl_descriptors_take(sides.engine, 100, &extent, &at, &err), err);
    memset(at, 0x5a, 128);
    HL_EXPECT_STATUS(hl_descriptors_copy(sides.manager, extent, 99, &copy, &err), HL_E_PROTOCOL, err);
    CU_ASSERT_PTR_NULL(copy);
    HL_REQUIRE_OK(hl_descriptors_copy(sides.manager, extent, 100, &copy, &err), err);
    CU_ASSERT_EQUAL(memcmp(copy, at, 100), 0);
    free(copy);
    HL_EXPECT_STATUS(hl_descriptors_write(sides.manager, extent, sides.manager, 101, &err), HL_E_PROTOCOL,
                     err);
    HL_EXPECT_OK(hl_descriptors_write(sides.manager, extent, "\1\2\3", 3, &err), err);
    CU_ASSERT_EQUAL(memcmp(at, "\1\2\3\x5a", 4), 0);
    CU_ASSERT_EQUAL(((unsigned char *)at)[100], 0x5a);
    HL_EXPECT_OK(
        hl_descriptors_copy(sides.manager, (struct hl_extent){HL_DESCRIPTOR_BYTES - 8, 8}, 8, &copy, &err),
        err); /* the very end */
    free(copy);
    close_sides(&sides);
}

/* The engine, in a process of its own: maps the memory that it is sent, writes a request, announces it, and
 * changes it once the Manager has copied it out. */
static int run_engine(int channel)
{
    static struct hl_packet packet;
    struct hl_register announced;
    hl_descriptors *engine;
    void *at;
    if (hl_channel_receive(channel, &packet, NULL) != HL_OK || packet.fd_count != 1 ||
        hl_descriptors_map(packet.fds[0], &engine, NULL) != HL_OK)
        return ROLE_UNSTAGED;
    hl_packet_close_fds(&packet);
    hl_message_head(&announced, HL_MESSAGE_REGISTER, 1);
    if (hl_descriptors_take(engine, 4096, &announced.extent, &at, NULL) != HL_OK)
        return ROLE_UNSTAGED;
    memset(at, 'a', 4096);
    if (hl_channel_send(channel, &announced, NULL, 0, NULL) != HL_OK ||
        hl_channel_receive(channel, &packet, NULL) != HL_OK)
        return 1;
    memset(at, 'b', 2048);
    announced.head.sequence = 2;
    if (hl_channel_send(channel, &announced, NULL, 0, NULL) != HL_OK ||
        hl_channel_receive(channel, &packet, NULL) != HL_OK)
        return 2;
    if (memcmp(at, "written", 7) != 0)
        return 3;
    hl_descriptors_give(engine, announced.extent);
    hl_descriptors_close(engine);
    return 0;
}

static struct hl_extent receive_extent(int channel)
{
    static struct hl_packet packet;
    enum hl_message_kind kind = HL_MESSAGE_NONE;
    HL_REQUIRE_OK(hl_channel_receive(channel, &packet, &err), err);
    HL_REQUIRE_OK(hl_message_check(&packet, &kind, &err), err);
    CU_ASSERT_EQUAL_FATAL(kind, HL_MESSAGE_REGISTER);
    return ((struct hl_register *)(void *)packet.bytes)->extent;
}

static bool all_are(const unsigned char *bytes, size_t count, unsigned char value)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != value)
            return false;
    return true;
}

static void two_processes_share_the_memory_and_a_copy_stays_as_it_was(void)
{
    struct role engine;
    struct hl_done done = {.value = 0};
    hl_descriptors *manager;
    void *first = NULL, *second = NULL;
    hl_message_head(&done, HL_MESSAGE_DONE, 1);
    HL_REQUIRE_OK(hl_descriptors_create(&manager, &err), err);
    role_start(&engine, "engine", "");
    int fd = hl_descriptors_fd(manager);
    HL_REQUIRE_OK(hl_channel_send(engine.channel, &done, &fd, 1, &err), err);
    struct hl_extent extent = receive_extent(engine.channel);
    HL_REQUIRE_OK(hl_descriptors_copy(manager, extent, HL_DESCRIPTOR_BYTES, &first, &err), err);
    HL_REQUIRE_OK(hl_channel_send(engine.channel, &done, NULL, 0, &err), err);
    extent = receive_extent(engine.channel);
    HL_REQUIRE_OK(hl_descriptors_copy(manager, extent, HL_DESCRIPTOR_BYTES, &second, &err), err);
    CU_ASSERT_TRUE(all_are(first, 4096, 'a'));
    CU_ASSERT_TRUE(all_are(second, 2048, 'b'));
    CU_ASSERT_TRUE(all_are((unsigned char *)second + 2048, 2048, 'a'));
    HL_EXPECT_OK(hl_descriptors_write(manager, extent, "written", 7, &err), err);
    CU_ASSERT_TRUE(all_are(second, 2048, 'b'));
    HL_REQUIRE_OK(hl_channel_send(engine.channel, &done, NULL, 0, &err), err);
    role_expect_exit(&engine, 0);
    free(first);
    free(second);
    hl_descriptors_close(manager);
}

static int run_misuse(const char *how)
{
    hl_descriptors *manager, *engine;
    struct hl_extent extent;
    void *at;
    if (hl_descriptors_create(&manager, NULL) != HL_OK ||
        hl_descriptors_map(hl_descriptors_fd(manager), &engine, NULL) != HL_OK ||
        hl_descriptors_take(engine, 1000, &extent, &at, NULL) != HL_OK)
        return ROLE_UNSTAGED;
    close(2); /* what the assertion prints */
    if (strcmp(how, "twice") == 0)
        hl_descriptors_give(engine, extent);
    if (strcmp(how, "shorter") == 0)
        extent.bytes--;
    if (strcmp(how, "elsewhere") == 0)
        extent.offset += 64;
    if (strcmp(how, "never") == 0)
        extent = (struct hl_extent){HL_DESCRIPTOR_BYTES, 8};
    if (strcmp(how, "slot") == 0)
        return hl_descriptors_slot(engine, HL_PUBLISH_SLOTS) == NULL;
    hl_descriptors_give(strcmp(how, "manager") == 0 ? manager : engine, extent);
    return 0;
}

int role_run(const char *role, const char *argument, int channel)
{
    return strcmp(role, "engine") == 0 ? run_engine(channel) : run_misuse(argument);
}

HL_TESTS(descriptors, HL_CASE(memory_is_sealed_zeroed_and_closed_on_exec),
         HL_CASE(other_memory_is_not_mapped), HL_CASE(without_a_free_fd_there_is_no_memory),
         HL_CASE(extents_are_disjoint_and_refused_only_when_no_gap_fits),
         HL_CASE(sizes_that_cannot_be_are_refused), HL_CASE(threads_share_the_space),
         HL_CASE(giving_back_what_was_not_taken_aborts), HL_CASE(hostile_extents_are_refused),
         HL_CASE(a_copy_is_bounded_by_its_reader_and_a_write_by_its_extent),
         HL_CASE(two_processes_share_the_memory_and_a_copy_stays_as_it_was));
