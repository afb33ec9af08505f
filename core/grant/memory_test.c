#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/memfd.h"
#include "core/grant/grant_memory.h"
#include "core/testing/cunit.h"

enum { ROLE_FD = 9, RECORD = 700 };
#define EPOCH 0x1122334455667788ull
static const char role_variable[] = "HL_GRANT_TEST_ROLE";
static const unsigned char token[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

static hl_grant_memory *must_create(void)
{
    hl_grant_memory *memory = NULL;
    hl_error err;
    HL_REQUIRE_OK(hl_grant_memory_create(EPOCH, token, &memory, &err), err);
    return memory;
}

static int next_fd(void)
{
    int fd = dup(0);
    close(fd);
    return fd;
}

/* Expects a refusal whose text has `word`, and neither output nor fd left. */
static void expect_refused(int fd, uint64_t epoch, const unsigned char *with, hl_status status,
                           const char *word)
{
    hl_grant_memory *memory = NULL;
    hl_error err = {0};
    int before = next_fd();
    HL_EXPECT_STATUS(hl_grant_memory_map(fd, epoch, with, &memory, &err), status, err);
    CU_ASSERT_PTR_NULL(memory);
    CU_ASSERT_STRING_EQUAL(err.stage, "grant.map");
    if (!strstr(err.text, word))
        fprintf(stderr, "the error does not say %s: %s\n", word, err.text);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, word));
    CU_ASSERT_EQUAL(next_fd(), before);
}

/* --- creation --- */

static void a_new_memory_is_sealed_and_all_its_records_are_free(void)
{
    hl_grant_memory *memory = must_create();
    uint32_t indices[HL_GRANT_RECORDS];
    int fd = hl_grant_memory_fd(memory);
    CU_ASSERT_EQUAL(fcntl(fd, F_GET_SEALS) & ~F_SEAL_EXEC, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    CU_ASSERT_EQUAL(fcntl(fd, F_GETFD), FD_CLOEXEC);
    CU_ASSERT_EQUAL(lseek(fd, 0, SEEK_END), (off_t)HL_GRANT_MEMORY_BYTES);
    for (uint32_t i = 0; i < HL_GRANT_RECORDS; i++) {
        struct hl_grant_word word = hl_grant_load(memory, i);
        CU_ASSERT_EQUAL(word.state, HL_GRANT_FREE);
        CU_ASSERT_EQUAL(word.generation, 1);
        CU_ASSERT_NOT_EQUAL(atomic_load(&hl_grant_record_at(memory, i)->submitted), word.generation);
        CU_ASSERT_NOT_EQUAL(atomic_load(&hl_grant_record_at(memory, i)->cancel), word.generation);
    }
    CU_ASSERT_EQUAL(hl_grant_take_marks(memory, indices), 0);
    unsigned char *base = (unsigned char *)memory->shared;
    CU_ASSERT_PTR_EQUAL(hl_grant_record_at(memory, 0), base + 4096);
    CU_ASSERT_PTR_EQUAL(hl_grant_record_at(memory, 1023), base + 4096 + 1023 * 192);
    CU_ASSERT_PTR_EQUAL(hl_grant_bank(memory), base + 200704);
    hl_grant_memory_close(memory);
    hl_grant_memory_close(NULL);
}

static void running_out_of_descriptors_creates_and_maps_nothing(void)
{
    hl_grant_memory *memory = must_create(), *other = NULL;
    struct rlimit limit, none;
    hl_error err = {0};
    CU_ASSERT_EQUAL_FATAL(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = limit;
    none.rlim_cur = (rlim_t)next_fd();
    CU_ASSERT_EQUAL_FATAL(setrlimit(RLIMIT_NOFILE, &none), 0);
    HL_EXPECT_STATUS(hl_grant_memory_create(EPOCH, token, &other, &err), HL_E_SYSTEM, err);
    CU_ASSERT_EQUAL(err.sys_errno, EMFILE);
    HL_EXPECT_STATUS(hl_grant_memory_map(hl_grant_memory_fd(memory), EPOCH, token, &other, &err), HL_E_SYSTEM,
                     err);
    CU_ASSERT_EQUAL(err.sys_errno, EMFILE);
    CU_ASSERT_EQUAL_FATAL(setrlimit(RLIMIT_NOFILE, &limit), 0);
    CU_ASSERT_PTR_NULL(other);
    hl_grant_memory_close(memory);
}

static void running_out_of_address_space_creates_and_maps_nothing(void)
{
    hl_grant_memory *memory = must_create(), *other = NULL;
    struct rlimit limit, none;
    hl_error err = {0};
    hl_status created, mapped;
    int before = next_fd();
    CU_ASSERT_EQUAL_FATAL(getrlimit(RLIMIT_AS, &limit), 0);
    none = limit;
    none.rlim_cur = 1; /* what is mapped stays, nothing is added */
    CU_ASSERT_EQUAL_FATAL(setrlimit(RLIMIT_AS, &none), 0);
    created = hl_grant_memory_create(EPOCH, token, &other, &err);
    mapped = hl_grant_memory_map(hl_grant_memory_fd(memory), EPOCH, token, &other, &err);
    CU_ASSERT_EQUAL_FATAL(setrlimit(RLIMIT_AS, &limit), 0);
    CU_ASSERT_EQUAL(created, HL_E_NOMEM);
    CU_ASSERT_EQUAL(mapped, HL_E_NOMEM);
    CU_ASSERT_EQUAL(err.sys_errno, ENOMEM);
    CU_ASSERT_PTR_NULL(other);
    CU_ASSERT_EQUAL(next_fd(), before);
    hl_grant_memory_close(memory);
}

/* --- refusals --- */

static int memfd_with(uint64_t bytes, int seals)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CU_ASSERT_FATAL(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
    CU_ASSERT_EQUAL_FATAL(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static void another_size_is_refused(void)
{
    static const uint64_t sizes[] = {0, HL_GRANT_MEMORY_BYTES - 1, HL_GRANT_MEMORY_BYTES + 4096};
    for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int fd = memfd_with(sizes[i], HL_MEMFD_SEALS);
        expect_refused(fd, EPOCH, token, HL_E_RANGE, "bytes is 1249280");
        close(fd);
    }
}

static void other_seals_are_refused(void)
{
    static const int seals[] = {0, F_SEAL_SHRINK | F_SEAL_GROW, F_SEAL_SHRINK | F_SEAL_SEAL,
                                F_SEAL_GROW | F_SEAL_SEAL, HL_MEMFD_SEALS | F_SEAL_WRITE};
    for (unsigned i = 0; i < sizeof seals / sizeof seals[0]; i++) {
        int fd = memfd_with(HL_GRANT_MEMORY_BYTES, seals[i]);
        expect_refused(fd, EPOCH, token, HL_E_PERMISSION, "seals");
        close(fd);
    }
    expect_refused(-1, EPOCH, token, HL_E_INVALID, "fd -1");
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    expect_refused(null, EPOCH, token, HL_E_PERMISSION, "not a memfd");
    close(null);
}

static void a_memory_that_may_not_be_written_is_refused(void)
{
    char path[64];
    hl_grant_memory *memory = must_create();
    snprintf(path, sizeof path, "/proc/self/fd/%d", hl_grant_memory_fd(memory));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    CU_ASSERT_FATAL(fd >= 0);
    expect_refused(fd, EPOCH, token, HL_E_PERMISSION, "cannot map");
    close(fd);
    hl_grant_memory_close(memory);
}

static void another_magic_schema_or_layout_is_refused(void)
{
    char both[128];
    hl_grant_memory *memory = must_create();
    struct hl_grant_header *header = &memory->shared->header;
    int fd = hl_grant_memory_fd(memory);

    header->magic ^= 1;
    expect_refused(fd, EPOCH, token, HL_E_PROTOCOL, "magic is 0x544e5246, not 0x544e5247");
    header->magic ^= 1;
    header->schema = 4;
    expect_refused(fd, EPOCH, token, HL_E_VERSION, "schema is 4, this build has 5");
    header->schema = HL_GRANT_SCHEMA;
    header->layout_signature ^= 1ull << 63;
    snprintf(both, sizeof both, "signature is 0x%016llx, this build has 0x%016llx",
             (unsigned long long)header->layout_signature, (unsigned long long)hl_grant_layout_signature());
    expect_refused(fd, EPOCH, token, HL_E_VERSION, both);
    hl_grant_memory_close(memory);

    fd = memfd_with(HL_GRANT_MEMORY_BYTES, HL_MEMFD_SEALS); /* all zero */
    expect_refused(fd, 0, token, HL_E_PROTOCOL, "magic is 0x00000000");
    close(fd);
}

/* I4, and I8: a surviving memory of another Manager is no memory of this session. */
static void another_epoch_or_token_is_refused(void)
{
    hl_grant_memory *memory = must_create();
    int fd = hl_grant_memory_fd(memory);
    expect_refused(fd, EPOCH + 1, token, HL_E_PROTOCOL,
                   "epoch is 1234605616436508552, but the Manager announced 1234605616436508553");
    expect_refused(fd, EPOCH + (1ull << 32), token, HL_E_PROTOCOL, "epoch");
    expect_refused(fd, 0, token, HL_E_PROTOCOL, "epoch");
    for (unsigned i = 0; i < sizeof token; i++) {
        unsigned char other[16];
        memcpy(other, token, sizeof other);
        other[i] ^= 0x80;
        expect_refused(fd, EPOCH, other, HL_E_PROTOCOL, "token");
    }
    hl_grant_memory_close(memory);
}

static void errors_need_no_listener(void)
{
    hl_grant_memory *memory = NULL;
    CU_ASSERT_EQUAL(hl_grant_memory_map(-1, EPOCH, token, &memory, NULL), HL_E_INVALID);
    CU_ASSERT_PTR_NULL(memory);
}

/* --- two processes --- */

/* The engine: this program, started again with the variable set. It maps what it finds at ROLE_FD, takes a
 * record, submits it and marks it, and dies. */
__attribute__((constructor)) static void act_as_engine(void)
{
    if (!getenv(role_variable))
        return;
    hl_grant_memory *memory = NULL;
    if (hl_grant_memory_map(ROLE_FD, EPOCH, token, &memory, NULL) != HL_OK)
        _exit(2);
    if (!hl_grant_move(memory, RECORD, 1, HL_GRANT_FREE, HL_GRANT_RESERVED))
        _exit(3);
    struct hl_grant_record *record = hl_grant_record_at(memory, RECORD);
    record->descriptor_offset = 4096;
    record->descriptor_bytes = 320;
    atomic_store_explicit(&record->submitted, 1, memory_order_release);
    hl_grant_mark(memory, RECORD);
    if (memcmp(hl_grant_bank(memory), "plan", 5) != 0)
        _exit(4);
    hl_grant_memory_close(memory);
    _exit(0);
}

static int run_engine(int fd)
{
    char variable[64];
    char *arguments[] = {"grant_engine", NULL}, *environment[] = {variable, NULL};
    posix_spawn_file_actions_t actions;
    pid_t pid = -1;
    int outcome = -1;
    snprintf(variable, sizeof variable, "%s=engine", role_variable);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, ROLE_FD);
    CU_ASSERT_EQUAL_FATAL(posix_spawn(&pid, "/proc/self/exe", &actions, NULL, arguments, environment), 0);
    posix_spawn_file_actions_destroy(&actions);
    CU_ASSERT_EQUAL(waitpid(pid, &outcome, 0), pid);
    return outcome;
}

static void what_a_dead_engine_wrote_is_seen_by_the_manager(void)
{
    hl_grant_memory *memory = must_create();
    uint32_t indices[HL_GRANT_RECORDS];
    memcpy(hl_grant_bank(memory), "plan", 5);
    CU_ASSERT_EQUAL(run_engine(hl_grant_memory_fd(memory)), 0);
    CU_ASSERT_EQUAL(hl_grant_take_marks(memory, indices), 1);
    CU_ASSERT_EQUAL(indices[0], RECORD);
    struct hl_grant_record copy;
    hl_grant_copy(memory, RECORD, &copy);
    CU_ASSERT_TRUE(hl_grant_record_is_sane(&copy));
    CU_ASSERT_EQUAL(atomic_load(&copy.submitted), 1);
    CU_ASSERT_EQUAL(copy.descriptor_offset, 4096);
    CU_ASSERT_EQUAL(copy.descriptor_bytes, 320);
    CU_ASSERT_TRUE(hl_grant_move(memory, RECORD, 1, HL_GRANT_RESERVED, HL_GRANT_PREPARING));
    hl_grant_memory_close(memory);
}

static void a_mapping_outlives_the_creators_own(void)
{
    hl_grant_memory *memory = must_create(), *mapped = NULL;
    hl_error err;
    HL_REQUIRE_OK(hl_grant_memory_map(hl_grant_memory_fd(memory), EPOCH, token, &mapped, &err), err);
    CU_ASSERT_NOT_EQUAL(hl_grant_memory_fd(mapped), hl_grant_memory_fd(memory));
    CU_ASSERT_TRUE(hl_grant_move(mapped, 0, 1, HL_GRANT_FREE, HL_GRANT_RESERVED));
    CU_ASSERT_EQUAL(hl_grant_load(memory, 0).state, HL_GRANT_RESERVED);
    hl_grant_memory_close(memory);
    CU_ASSERT_EQUAL(hl_grant_load(mapped, 0).state, HL_GRANT_RESERVED);
    CU_ASSERT_TRUE(hl_grant_move(mapped, 0, 1, HL_GRANT_RESERVED, HL_GRANT_FREE));
    hl_grant_memory_close(mapped);
}

HL_TESTS(memory, HL_CASE(a_new_memory_is_sealed_and_all_its_records_are_free),
         HL_CASE(running_out_of_descriptors_creates_and_maps_nothing),
         HL_CASE(running_out_of_address_space_creates_and_maps_nothing), HL_CASE(another_size_is_refused),
         HL_CASE(other_seals_are_refused), HL_CASE(a_memory_that_may_not_be_written_is_refused),
         HL_CASE(another_magic_schema_or_layout_is_refused), HL_CASE(another_epoch_or_token_is_refused),
         HL_CASE(errors_need_no_listener), HL_CASE(what_a_dead_engine_wrote_is_seen_by_the_manager),
         HL_CASE(a_mapping_outlives_the_creators_own));
