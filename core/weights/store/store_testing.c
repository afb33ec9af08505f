#include "core/weights/store/store_testing.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <linux/capability.h>
#include <linux/magic.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/random.h"
#include "core/testing/cunit.h"

#define STAGE "store.testing"

/* Ends the case with the reason; a fixture that does not work is no result. */
#define REQUIRE(condition)                                                                                   \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, strerror(errno));             \
            CU_FAIL_FATAL(#condition);                                                                       \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)

/* --- a domain --- */

static bool is_tmpfs(const char *path)
{
    struct statfs st;
    REQUIRE(statfs(path, &st) == 0);
    return st.f_type == TMPFS_MAGIC;
}

void hl_fixture_open(struct hl_store_fixture *fixture, enum hl_fixture_place place)
{
    *fixture = (struct hl_store_fixture){0};
    const char *parent = place == HL_FIXTURE_SHM ? "/dev/shm" : getenv("TEST_TMPDIR");
    snprintf(fixture->base, sizeof fixture->base, "%s/hl-store-XXXXXX", parent ? parent : "/tmp");
    REQUIRE(mkdtemp(fixture->base));
    REQUIRE(chmod(fixture->base, 0755) == 0);
    snprintf(fixture->root, sizeof fixture->root, "%s/domain", fixture->base);
    hl_weight_store_options_init(&fixture->options);
    fixture->options.root = fixture->root;
    fixture->options.storage_class = is_tmpfs(fixture->base) ? HL_WEIGHT_TMPFS : HL_WEIGHT_DISK;
    fixture->options.coordination_timeout_ns = 20 * HL_NS_PER_S;
    fixture->options.hash_threads = 2;
}

hl_weight_store *hl_fixture_store(struct hl_store_fixture *fixture)
{
    if (!fixture->store) {
        hl_weight_failure failure;
        fixture->options.root = fixture->root;
        HL_REQUIRE_OK(hl_weight_store_open(&fixture->options, &fixture->store, &failure), failure.error);
    }
    return fixture->store;
}

void hl_fixture_reopen(struct hl_store_fixture *fixture)
{
    hl_weight_store_close(fixture->store);
    fixture->store = NULL;
    hl_fixture_store(fixture);
}

static int make_writable(const char *path, const struct stat *st, int type, struct FTW *where)
{
    (void)where;
    if (type == FTW_D || type == FTW_DNR)
        return chmod(path, 0700);
    (void)st;
    return 0;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *where)
{
    (void)st;
    (void)type;
    (void)where;
    return remove(path);
}

static void remove_tree(const char *path)
{
    struct stat st;
    if (lstat(path, &st) != 0)
        return;
    nftw(path, make_writable, 16, FTW_PHYS);
    REQUIRE(nftw(path, remove_one, 16, FTW_PHYS | FTW_DEPTH) == 0);
}

void hl_fixture_close(struct hl_store_fixture *fixture)
{
    hl_weight_store_close(fixture->store);
    fixture->store = NULL;
    remove_tree(fixture->base);
}

/* --- identities --- */

static hl_weight_identity *identity_of(const char *model_id, unsigned size, unsigned rank)
{
    char json[2048];
    snprintf(json, sizeof json,
             "{\"schema_version\":1,"
             "\"source\":{\"model_id\":\"%s\",\"revision\":\"0123456789abcdef\","
             "\"fingerprint\":\"source-files-sha256\",\"metadata\":{}},"
             "\"component\":{\"name\":\"transformer\",\"ownership\":\"diffusion.dit\",\"metadata\":{}},"
             "\"representation\":{\"name\":\"runtime-bf16\",\"dtype\":\"torch.bfloat16\",\"metadata\":{}},"
             "\"layout\":{\"name\":\"final-module-layout\",\"tensor_parallel_size\":%u,"
             "\"tensor_parallel_rank\":%u,\"sequence_parallel_size\":1,"
             "\"sequence_parallel_backend\":\"none\",\"metadata\":{}},"
             "\"adaptation\":{\"kind\":\"base\",\"fingerprint\":null,\"metadata\":{}},"
             "\"producer\":{\"producer_id\":\"test.final-layout\",\"version\":\"1\","
             "\"implementation_fingerprint\":\"implementation-sha256\","
             "\"manifest_schema\":\"test-producer-v1\",\"restorer_schema\":\"test-restorer-v1\"}}",
             model_id, size, rank);
    hl_weight_identity *identity = NULL;
    hl_error err;
    HL_REQUIRE_OK(hl_weight_identity_parse(json, strlen(json), &identity, &err), err);
    return identity;
}

hl_weight_identity *hl_fixture_identity(unsigned tensor_parallel_size, unsigned tensor_parallel_rank)
{
    return identity_of("test-org/test-model", tensor_parallel_size, tensor_parallel_rank);
}

hl_weight_identity *hl_fixture_identity_of_model(const char *model_id)
{
    return identity_of(model_id, 1, 0);
}

/* --- a producer --- */

hl_status hl_fake_produce_golden(hl_weight_writer *writer, hl_error *err)
{
    /* 0 … 11 as bfloat16, and 1 and 2 as float. */
    static const uint16_t weight[12] = {0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0,
                                        0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120, 0x4130};
    static const float scale[2] = {1, 2};
    static const uint64_t weight_shape[2] = {4, 3}, scale_shape[1] = {2};
    static const hl_weight_tensor_spec specs[2] = {
        {"layer.weight", HL_WEIGHT_PARAMETER, "weight", "torch.bfloat16", 2, weight_shape},
        {"layer.scale", HL_WEIGHT_BUFFER, "scale", "torch.float32", 1, scale_shape},
    };
    hl_weight_payload *payload = NULL;
    hl_status status = hl_weight_writer_open(writer, HL_GOLDEN_FILE, specs, 2, &payload, err);
    if (status)
        return status;
    status = hl_weight_payload_write(payload, 1, 0, scale, sizeof scale, err);
    if (!status)
        status = hl_weight_payload_write(payload, 0, 0, weight, sizeof weight, err);
    hl_error ignored;
    const hl_status closed = hl_weight_payload_close(payload, status ? &ignored : err);
    return status ? status : closed;
}

static hl_status write_tensor(const struct hl_fake_producer *fake, hl_weight_payload *payload, size_t index,
                              const unsigned char *bytes, hl_error *err)
{
    const uint64_t step = fake->write_bytes ? fake->write_bytes : fake->tensor_bytes;
    const uint64_t steps = step ? (fake->tensor_bytes + step - 1) / step : 0;
    for (uint64_t i = 0; i < steps; i++) {
        const uint64_t begin = (fake->backwards ? steps - 1 - i : i) * step;
        const uint64_t left = fake->tensor_bytes - begin;
        const hl_status status = hl_weight_payload_write(payload, index, begin, bytes + begin,
                                                         (size_t)(left < step ? left : step), err);
        if (status)
            return status;
    }
    return HL_OK;
}

static hl_status write_tensors(const struct hl_fake_producer *fake, hl_weight_payload *payload, unsigned file,
                               hl_error *err)
{
    unsigned char *bytes = malloc((size_t)fake->tensor_bytes + 1);
    REQUIRE(bytes);
    hl_status status = HL_OK;
    for (unsigned i = 0; i < fake->tensors && !status; i++) {
        const unsigned index = fake->backwards ? fake->tensors - 1 - i : i;
        hl_random random;
        hl_random_seed(&random, fake->seed + (uint64_t)file * fake->tensors + index);
        hl_random_fill(&random, bytes, (size_t)fake->tensor_bytes);
        status = write_tensor(fake, payload, index, bytes, err);
    }
    free(bytes);
    return status;
}

static hl_status produce_file(const struct hl_fake_producer *fake, hl_weight_writer *writer, unsigned file,
                              hl_error *err)
{
    hl_weight_tensor_spec *specs = calloc(fake->tensors + 1u, sizeof *specs);
    char(*names)[32] = calloc(fake->tensors + 1u, sizeof *names);
    REQUIRE(specs && names);
    for (unsigned i = 0; i < fake->tensors; i++) {
        snprintf(names[i], sizeof names[i], "file%03u.tensor%05u", file, i);
        specs[i] = (hl_weight_tensor_spec){names[i], HL_WEIGHT_PARAMETER, "weight", "torch.uint8",
                                           1,        &fake->tensor_bytes};
    }
    char file_name[64];
    snprintf(file_name, sizeof file_name, "model-%05u-of-%05u.safetensors", file + 1, fake->files);
    hl_weight_payload *payload = NULL;
    hl_status status = hl_weight_writer_open(writer, file_name, specs, fake->tensors, &payload, err);
    free(names);
    free(specs);
    if (status)
        return status;
    status = write_tensors(fake, payload, file, err);
    hl_error ignored;
    const hl_status closed = hl_weight_payload_close(payload, status ? &ignored : err);
    return status ? status : closed;
}

static hl_status produce(void *context, hl_weight_writer *writer, hl_error *err)
{
    struct hl_fake_producer *fake = context;
    fake->runs++;
    if (fake->instead)
        return fake->instead(fake, writer, err);
    for (unsigned file = 0; file < fake->files || file == 0; file++) {
        const hl_status status =
            fake->files ? produce_file(fake, writer, file, err) : hl_fake_produce_golden(writer, err);
        if (status)
            return status;
        if (file == 0 && fake->arrived >= 0)
            hl_pipe_send(fake->arrived);
        if (file == 0 && fake->proceed >= 0)
            hl_pipe_await(fake->proceed);
        if (fake->fail_with)
            return HL_FAIL(err, fake->fail_with, STAGE, "%s", fake->fail_text ? fake->fail_text : "asked to");
    }
    return HL_OK;
}

void hl_fake_producer_init(struct hl_fake_producer *fake, const hl_weight_identity *identity)
{
    *fake = (struct hl_fake_producer){.arrived = -1, .proceed = -1};
    snprintf(fake->key, sizeof fake->key, "%s", hl_weight_identity_key(identity));
    fake->keys[0] = fake->key;
    fake->producer = (hl_weight_producer){
        .size = sizeof fake->producer,
        .scope = HL_WEIGHT_SINGLE_PROCESS,
        .phase = HL_WEIGHT_PRE_LOAD_SAFE,
        .output_keys = fake->keys,
        .output_count = 1,
        .produce = produce,
        .context = fake,
    };
}

hl_status hl_fixture_get(struct hl_store_fixture *fixture, const hl_weight_identity *identity,
                         struct hl_fake_producer *fake, hl_weight_origin *origin, hl_weight_lease **lease,
                         hl_weight_failure *failure)
{
    return hl_weight_store_get_or_build(hl_fixture_store(fixture), identity, HL_WEIGHT_MANIFEST_AND_METADATA,
                                        &fake->producer, origin, lease, failure);
}

hl_status hl_fixture_look_up(struct hl_store_fixture *fixture, const hl_weight_identity *identity,
                             hl_weight_validation validation, hl_weight_lease **lease,
                             hl_weight_failure *failure)
{
    return hl_weight_store_lookup(hl_fixture_store(fixture), identity, validation, lease, failure);
}

hl_weight_lease *hl_fixture_build_golden(struct hl_store_fixture *fixture)
{
    hl_weight_identity *identity = hl_fixture_identity(2, 0);
    struct hl_fake_producer fake;
    hl_fake_producer_init(&fake, identity);
    hl_weight_lease *lease = NULL;
    hl_weight_origin origin;
    hl_weight_failure failure;
    const hl_status status =
        hl_weight_store_get_or_build(hl_fixture_store(fixture), identity, HL_WEIGHT_MANIFEST_AND_METADATA,
                                     &fake.producer, &origin, &lease, &failure);
    hl_weight_identity_free(identity);
    HL_REQUIRE_OK(status, failure.error);
    return lease;
}

/* --- what lies in the domain --- */

static void path_below(const struct hl_store_fixture *fixture, const char *path, char full[1024])
{
    snprintf(full, 1024, "%s/%s", fixture->root, path);
}

bool hl_fixture_exists(const struct hl_store_fixture *fixture, const char *path)
{
    char full[1024];
    path_below(fixture, path, full);
    struct stat st;
    return lstat(full, &st) == 0;
}

unsigned hl_fixture_mode(const struct hl_store_fixture *fixture, const char *path)
{
    char full[1024];
    path_below(fixture, path, full);
    struct stat st;
    REQUIRE(lstat(full, &st) == 0);
    return st.st_mode & 07777u;
}

static unsigned scan(const struct hl_store_fixture *fixture, const char *folder, const char *prefix,
                     char name[256])
{
    char full[1024];
    path_below(fixture, folder, full);
    DIR *dir = opendir(full);
    REQUIRE(dir);
    unsigned count = 0;
    for (const struct dirent *entry; (entry = readdir(dir));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..") ||
            strncmp(entry->d_name, prefix, strlen(prefix)) != 0)
            continue;
        count++;
        snprintf(name, 256, "%s", entry->d_name);
    }
    closedir(dir);
    return count;
}

unsigned hl_fixture_count(const struct hl_store_fixture *fixture, const char *folder, const char *prefix)
{
    char name[256];
    return scan(fixture, folder, prefix, name);
}

void hl_fixture_find(const struct hl_store_fixture *fixture, const char *folder, const char *prefix,
                     char name[256])
{
    const unsigned count = scan(fixture, folder, prefix, name);
    CU_ASSERT_EQUAL_FATAL(count, 1);
}

char *hl_fixture_read(const struct hl_store_fixture *fixture, const char *path, size_t *bytes)
{
    char full[1024];
    path_below(fixture, path, full);
    FILE *file = fopen(full, "rb");
    REQUIRE(file);
    struct stat st;
    REQUIRE(fstat(fileno(file), &st) == 0);
    char *text = malloc((size_t)st.st_size + 1);
    REQUIRE(text && fread(text, 1, (size_t)st.st_size, file) == (size_t)st.st_size);
    text[st.st_size] = 0;
    *bytes = (size_t)st.st_size;
    fclose(file);
    return text;
}

/* Opens for writing what the owner may not write. */
static int open_against_mode(const char *full, int flags, mode_t *mode)
{
    struct stat st;
    *mode = 0444;
    if (stat(full, &st) == 0) {
        *mode = st.st_mode & 07777u;
        REQUIRE(chmod(full, 0600) == 0);
    }
    const int fd = open(full, flags | O_CLOEXEC, 0600);
    REQUIRE(fd >= 0);
    return fd;
}

void hl_fixture_corrupt(const struct hl_store_fixture *fixture, const char *path, uint64_t offset)
{
    char full[1024];
    path_below(fixture, path, full);
    mode_t mode;
    const int fd = open_against_mode(full, O_RDWR, &mode);
    unsigned char byte = 0;
    REQUIRE(pread(fd, &byte, 1, (off_t)offset) == 1);
    byte = (unsigned char)~byte;
    REQUIRE(pwrite(fd, &byte, 1, (off_t)offset) == 1);
    REQUIRE(fchmod(fd, mode) == 0);
    close(fd);
}

void hl_fixture_overwrite(const struct hl_store_fixture *fixture, const char *path, const void *bytes,
                          size_t size)
{
    char full[1024];
    path_below(fixture, path, full);
    mode_t mode;
    const int fd = open_against_mode(full, O_RDWR | O_CREAT | O_TRUNC, &mode);
    REQUIRE(write(fd, bytes, size) == (ssize_t)size);
    REQUIRE(fchmod(fd, mode) == 0);
    close(fd);
}

void hl_fixture_chmod(const struct hl_store_fixture *fixture, const char *path, unsigned mode)
{
    char full[1024];
    path_below(fixture, path, full);
    REQUIRE(chmod(full, mode) == 0);
}

void hl_fixture_remove(const struct hl_store_fixture *fixture, const char *path)
{
    char full[1024];
    path_below(fixture, path, full);
    remove_tree(full);
}

/* --- other processes --- */

pid_t hl_child_start(int (*run)(void *context), void *context)
{
    fflush(NULL);
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0)
        _exit(run(context));
    return child;
}

int hl_child_end(pid_t child)
{
    int status = 0;
    while (waitpid(child, &status, 0) < 0)
        REQUIRE(errno == EINTR);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

enum { NOBODY = 65534 };

static int become_nobody(void *context)
{
    (void)context;
    return setresgid(NOBODY, NOBODY, NOBODY) || setresuid(NOBODY, NOBODY, NOBODY);
}

static bool can_drop(void)
{
    return geteuid() == 0 && hl_child_end(hl_child_start(become_nobody, NULL)) == 0;
}

bool hl_child_require_second_user(void)
{
    const bool can = can_drop();
    if (!can)
        fprintf(stderr, "    NOT RUN: uid %u cannot become uid %d\n", (unsigned)geteuid(), NOBODY);
    CU_ASSERT_TRUE(can || geteuid() != 0);
    return can;
}

static int drop_capabilities(void *context)
{
    (void)context;
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    const struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {0};
    return syscall(SYS_capset, &header, none) != 0;
}

struct unprivileged {
    struct hl_store_fixture *fixture;
    int (*become)(void *context);
    int (*run)(void *context);
    void *context;
};

/* In the child: the fixture is its own copy. */
static int run_unprivileged(void *context)
{
    const struct unprivileged *self = context;
    struct hl_store_fixture *fixture = self->fixture;
    if (chdir(fixture->base) || self->become(NULL))
        return 125;
    /* Dropping privileges closed /proc/self to the process itself, which the path below goes through. */
    if (prctl(PR_SET_DUMPABLE, 1))
        return 125;
    fixture->store = NULL;
    snprintf(fixture->base, sizeof fixture->base, "/proc/self/cwd");
    snprintf(fixture->root, sizeof fixture->root, "/proc/self/cwd/domain");
    fixture->options.root = fixture->root;
    return self->run(self->context);
}

pid_t hl_child_start_as_nobody(struct hl_store_fixture *fixture, int (*run)(void *context), void *context)
{
    struct stat st;
    REQUIRE(stat(fixture->base, &st) == 0);
    REQUIRE(st.st_uid == NOBODY || chown(fixture->base, NOBODY, NOBODY) == 0);
    struct unprivileged self = {fixture, become_nobody, run, context};
    return hl_child_start(run_unprivileged, &self);
}

int hl_child_run_as_nobody(struct hl_store_fixture *fixture, int (*run)(void *context), void *context)
{
    return hl_child_end(hl_child_start_as_nobody(fixture, run, context));
}

int hl_child_run_unprivileged(struct hl_store_fixture *fixture, int (*run)(void *context), void *context)
{
    if (can_drop()) {
        fprintf(stderr, "as uid %d\n", NOBODY);
        return hl_child_run_as_nobody(fixture, run, context);
    }
    fprintf(stderr, "as uid %u without capabilities\n", (unsigned)geteuid());
    struct unprivileged self = {fixture, drop_capabilities, run, context};
    return hl_child_end(hl_child_start(run_unprivileged, &self));
}

void hl_pipe_open(int ends[2])
{
    REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
}

void hl_pipe_send(int fd)
{
    REQUIRE(write(fd, "x", 1) == 1);
}

void hl_pipe_await(int fd)
{
    char byte;
    ssize_t got;
    while ((got = read(fd, &byte, 1)) < 0 && errno == EINTR)
        continue;
    REQUIRE(got == 1);
}
