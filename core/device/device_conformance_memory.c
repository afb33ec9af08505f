/* Conformance: allocations, registrations and sharing with another process. */
#include <spawn.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/device/device_conformance.h"

enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, ALREADY_REGISTERED = 712, NOT_REGISTERED = 713 };

#define PAGE ((size_t)65536) /* a multiple of every page size in use */

void memory_info_follows_allocations(void)
{
    struct conformance c;
    uint64_t before, after, total;
    hl_devptr ptr;
    conformance_open(&c);
    HL_REQUIRE_OK(c.ops->memory_info(c.dev, &before, &total, &c.err), c.err);
    CU_ASSERT_TRUE(before <= total);
    HL_REQUIRE_OK(c.ops->mem_alloc(c.dev, 64u << 20, &ptr, &c.err), c.err);
    HL_REQUIRE_OK(c.ops->memory_info(c.dev, &after, &total, &c.err), c.err);
    CU_ASSERT_TRUE(after < before);
    HL_EXPECT_OK(c.ops->mem_free(c.dev, ptr, &c.err), c.err);
    conformance_close(&c);
}

void an_absurd_allocation_fails_with_its_code(void)
{
    struct conformance c;
    hl_devptr ptr = 7;
    conformance_open(&c);
    HL_EXPECT_STATUS(c.ops->mem_alloc(c.dev, (size_t)1 << 60, &ptr, &c.err), HL_E_NOMEM, c.err);
    CU_ASSERT_EQUAL(c.err.device_code, OUT_OF_MEMORY);
    CU_ASSERT_TRUE(c.ops->mem_alloc(c.dev, 0, &ptr, &c.err) < 0);
    CU_ASSERT_EQUAL(c.err.device_code, INVALID_VALUE);
    CU_ASSERT_EQUAL(ptr, 7);
    conformance_close(&c);
}

void a_second_free_is_refused(void)
{
    struct conformance c;
    hl_devptr ptr;
    conformance_open(&c);
    HL_REQUIRE_OK(c.ops->mem_alloc(c.dev, 4096, &ptr, &c.err), c.err);
    HL_EXPECT_OK(c.ops->mem_free(c.dev, ptr, &c.err), c.err);
    HL_EXPECT_STATUS(c.ops->mem_free(c.dev, ptr, &c.err), HL_E_INVALID, c.err);
    CU_ASSERT_EQUAL(c.err.device_code, INVALID_VALUE);
    conformance_close(&c);
}

void freeing_memory_waits_for_its_copies(void)
{
    struct conformance c;
    hl_devptr ptr;
    conformance_open(&c);
    HL_REQUIRE_OK(c.ops->mem_alloc(c.dev, AREA_BYTES, &ptr, &c.err), c.err);
    HL_EXPECT_OK(c.ops->copy(c.dev, HL_COPY_H2D, ptr, (uintptr_t)c.source, AREA_BYTES, c.stream, &c.err),
                 c.err);
    HL_EXPECT_OK(c.ops->copy(c.dev, HL_COPY_D2H, (uintptr_t)c.result, ptr, AREA_BYTES, c.stream, &c.err),
                 c.err);
    HL_EXPECT_OK(c.ops->mem_free(c.dev, ptr, &c.err), c.err);
    conformance_sync(&c, c.stream);
    CU_ASSERT_EQUAL(memcmp(c.result, c.source, AREA_BYTES), 0);
    conformance_close(&c);
}

void a_host_pointer_may_lie_inside_a_registration(void)
{
    struct conformance c;
    hl_devptr inside;
    const struct hl_gather piece_size = {.bytes = 100};
    conformance_open(&c);
    HL_REQUIRE_OK(c.ops->host_pointer(c.dev, c.source + PAGE + 24, &inside, &c.err), c.err);
    CU_ASSERT_EQUAL(inside, c.source_mapped + PAGE + 24);
    struct hl_gather piece = piece_size;
    piece.src = inside;
    piece.dst = c.memory;
    memcpy(c.words + 2, &piece, sizeof piece);
    const struct hl_gather_launch launch = {.descriptors = c.words_mapped + 8, .count = 1, .blocks = 1};
    HL_EXPECT_OK(c.ops->gather(c.dev, &launch, c.stream, &c.err), c.err);
    conformance_read(&c, c.memory, 101);
    CU_ASSERT_EQUAL(memcmp(c.result, c.source + PAGE + 24, 100), 0);
    CU_ASSERT_EQUAL(c.result[100], 0xdd);
    conformance_close(&c);
}

static void *map_pages(size_t bytes)
{
    void *pages =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    CU_ASSERT_PTR_NOT_EQUAL_FATAL(pages, MAP_FAILED);
    return pages;
}

void unregistered_memory_has_no_device_pointer(void)
{
    struct conformance c;
    hl_devptr mapped = 7;
    conformance_open(&c);
    void *pages = map_pages(PAGE);
    CU_ASSERT_TRUE(c.ops->host_pointer(c.dev, pages, &mapped, &c.err) < 0);
    CU_ASSERT_NOT_EQUAL(c.err.device_code, 0);
    CU_ASSERT_EQUAL(mapped, 7);
    HL_REQUIRE_OK(c.ops->host_register(c.dev, pages, PAGE, &c.err), c.err);
    HL_EXPECT_OK(c.ops->host_pointer(c.dev, pages, &mapped, &c.err), c.err);
    HL_EXPECT_OK(c.ops->host_unregister(c.dev, pages, &c.err), c.err);
    CU_ASSERT_TRUE(c.ops->host_pointer(c.dev, pages, &mapped, &c.err) < 0);
    HL_EXPECT_STATUS(c.ops->host_unregister(c.dev, pages, &c.err), HL_E_NOT_FOUND, c.err);
    CU_ASSERT_EQUAL(c.err.device_code, NOT_REGISTERED);
    munmap(pages, PAGE);
    conformance_close(&c);
}

void a_second_registration_is_refused(void)
{
    struct conformance c;
    hl_devptr mapped;
    conformance_open(&c);
    unsigned char *pages = map_pages(2 * PAGE);
    HL_REQUIRE_OK(c.ops->host_register(c.dev, pages, 2 * PAGE, &c.err), c.err);
    HL_EXPECT_STATUS(c.ops->host_register(c.dev, pages, 2 * PAGE, &c.err), HL_E_BUSY, c.err);
    CU_ASSERT_EQUAL(c.err.device_code, ALREADY_REGISTERED);
    HL_EXPECT_OK(c.ops->host_pointer(c.dev, pages + PAGE, &mapped, &c.err),
                 c.err); /* the first still stands */
    HL_EXPECT_OK(c.ops->host_unregister(c.dev, pages, &c.err), c.err);
    munmap(pages, 2 * PAGE);
    conformance_close(&c);
}

/* A file's read-only mapping on a tmpfs, which is where a device can read pages in place. */
static const unsigned char *map_file_to_read(const void *content)
{
    int fd = memfd_create("conformance", MFD_CLOEXEC);
    CU_ASSERT_TRUE_FATAL(fd >= 0);
    CU_ASSERT_EQUAL_FATAL(write(fd, content, 2 * PAGE), (ssize_t)(2 * PAGE));
    void *pages = mmap(NULL, 2 * PAGE, PROT_READ, MAP_SHARED, fd, 0);
    CU_ASSERT_PTR_NOT_EQUAL_FATAL(pages, MAP_FAILED);
    close(fd);
    return pages;
}

void memory_that_is_only_read_is_registered_as_such_or_not_at_all(void)
{
    struct conformance c;
    conformance_open(&c);
    const unsigned char *pages = map_file_to_read(c.source);
    void *unwritable = (void *)(uintptr_t)pages;
    CU_ASSERT_TRUE(c.ops->host_register(c.dev, unwritable, PAGE, &c.err) < 0);
    CU_ASSERT_NOT_EQUAL(c.err.device_code, 0);
    hl_status status = c.ops->host_register_read(c.dev, pages, PAGE, &c.err);
    printf("read-only registration: %s\n", hl_status_name(status));
    HL_EXPECT_STATUS(status, c.dev->info.read_only_registration ? HL_OK : HL_E_UNSUPPORTED, c.err);
    if (status == HL_OK) {
        HL_EXPECT_OK(
            c.ops->copy(c.dev, HL_COPY_H2D, c.memory, (uintptr_t)pages + 100, 5000, c.stream, &c.err), c.err);
        conformance_read(&c, c.memory, 5001);
        CU_ASSERT_EQUAL(memcmp(c.result, c.source + 100, 5000), 0);
        CU_ASSERT_EQUAL(c.result[5000], 0xdd);
        HL_EXPECT_OK(c.ops->host_unregister(c.dev, unwritable, &c.err), c.err);
    }
    munmap(unwritable, 2 * PAGE);
    conformance_close(&c);
}

/* --- another process: this program again, with the export in its environment --- */

#define CHILD_VARIABLE "HOSTLANE_CONFORMANCE_IMPORT"
#define SHARED_BYTES 3000

/* Reads what the parent wrote at the exported address, inverts it there, and reports where it failed. */
static int use_import(const struct hl_ipc_export *export)
{
    static _Alignas(65536) unsigned char host[65536];
    hl_devptr ptr;
    hl_stream stream;
    hl_error err = {0};
    hl_device *dev = conformance_find_device(&err);
    if (!dev)
        return 1;
    const struct hl_device_ops *ops = dev->ops;
    if (hl_device_enter(dev, &err) || ops->stream_create(dev, &stream, &err) ||
        ops->host_register(dev, host, sizeof host, &err))
        return 2;
    if (ops->ipc_import(dev, export, &ptr, &err)) {
        fprintf(stderr, "ipc_import: %s\n", err.text);
        return 3;
    }
    if (ops->copy(dev, HL_COPY_D2H, (uintptr_t)host, ptr, SHARED_BYTES, stream, &err) ||
        ops->stream_synchronize(dev, stream, &err))
        return 4;
    for (unsigned i = 0; i < SHARED_BYTES; i++)
        host[i] ^= 0xff;
    if (ops->copy(dev, HL_COPY_H2D, ptr, (uintptr_t)host, SHARED_BYTES, stream, &err) ||
        ops->stream_synchronize(dev, stream, &err))
        return 5;
    if (ops->ipc_close(dev, ptr, &err) || ops->ipc_close(dev, ptr, &err) == HL_OK)
        return 6;
    if (ops->host_unregister(dev, host, &err) || ops->stream_destroy(dev, stream, &err))
        return 7;
    hl_device_leave(dev);
    return 0;
}

static void encode(const struct hl_ipc_export *export, char text[2 * sizeof *export + 1])
{
    const unsigned char *bytes = (const void *)export;
    for (size_t i = 0; i < sizeof *export; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
}

static void decode(const char *text, struct hl_ipc_export *export)
{
    unsigned char *bytes = (void *)export;
    for (size_t i = 0; i < sizeof *export; i++) {
        const char digits[] = {text[2 * i], text[2 * i + 1], 0};
        bytes[i] = (unsigned char)strtoul(digits, NULL, 16);
    }
}

/* Runs before the shared main, which knows only cases. */
__attribute__((constructor)) static void become_importer(void)
{
    const char *text = getenv(CHILD_VARIABLE);
    struct hl_ipc_export export;
    if (!text || strlen(text) != 2 * sizeof export)
        return;
    decode(text, &export);
    exit(use_import(&export));
}

/* The exit status of this program run as the importer. */
static int run_importer(const struct hl_ipc_export *export)
{
    extern char **environ;
    char text[2 * sizeof *export + 1], *const argv[] = {(char *)(uintptr_t) "importer", NULL};
    pid_t child;
    int status = -1;
    encode(export, text);
    setenv(CHILD_VARIABLE, text, 1);
    int failed = posix_spawn(&child, "/proc/self/exe", NULL, NULL, argv, environ);
    unsetenv(CHILD_VARIABLE);
    CU_ASSERT_EQUAL_FATAL(failed, 0);
    CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void another_process_uses_an_exported_address(void)
{
    struct conformance c;
    struct hl_ipc_export export = {0};
    hl_devptr first, second;
    conformance_open(&c);
    HL_REQUIRE_OK(c.ops->mem_alloc(c.dev, PAGE, &first, &c.err), c.err);
    HL_REQUIRE_OK(c.ops->mem_alloc(c.dev, PAGE, &second, &c.err),
                  c.err); /* may share the first one's allocation */
    hl_devptr shared = second + 4104;
    HL_EXPECT_OK(c.ops->fill(c.dev, second, 0x11, PAGE, c.stream, &c.err), c.err);
    HL_EXPECT_OK(c.ops->copy(c.dev, HL_COPY_H2D, shared, (uintptr_t)c.source, SHARED_BYTES, c.stream, &c.err),
                 c.err);
    conformance_sync(&c, c.stream);
    HL_REQUIRE_OK(c.ops->ipc_export(c.dev, shared, &export, &c.err), c.err);
    CU_ASSERT_TRUE(export.offset >= 4104);
    CU_ASSERT_TRUE(export.allocation_bytes >= export.offset + SHARED_BYTES);
    CU_ASSERT_EQUAL(run_importer(&export), 0);
    conformance_read(&c, second, PAGE);
    for (unsigned i = 0; i < SHARED_BYTES; i++)
        CU_ASSERT_EQUAL_FATAL(c.result[4104 + i], c.source[i] ^ 0xff);
    CU_ASSERT_TRUE(all_bytes_are(c.result, 0x11, 4104));
    CU_ASSERT_TRUE(all_bytes_are(c.result + 4104 + SHARED_BYTES, 0x11, PAGE - 4104 - SHARED_BYTES));
    HL_EXPECT_OK(c.ops->mem_free(c.dev, first, &c.err), c.err);
    HL_EXPECT_OK(c.ops->mem_free(c.dev, second, &c.err), c.err);
    conformance_close(&c);
}

void only_device_memory_is_exported(void)
{
    struct conformance c;
    struct hl_ipc_export export = {.offset = 7};
    conformance_open(&c);
    CU_ASSERT_TRUE(c.ops->ipc_export(c.dev, c.source_mapped, &export, &c.err) < 0);
    CU_ASSERT_NOT_EQUAL(c.err.device_code, 0);
    CU_ASSERT_TRUE(c.ops->ipc_close(c.dev, c.memory, &c.err) < 0);
    CU_ASSERT_EQUAL(export.offset, 7);
    conformance_close(&c);
}
