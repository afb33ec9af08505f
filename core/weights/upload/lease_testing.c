/* The stand-in for a lease. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/weights/upload/upload_testing.h"

struct hl_weight_lease {
    atomic_uint holds;
    size_t count, files;
    hl_weight_tensor_view *views;
    char (*names)[24];
    hl_weight_region *regions;
    char (*file_names)[40];
};

static atomic_uint live;

static void *allocate(size_t count, size_t bytes)
{
    void *memory = calloc(count ? count : 1, bytes);
    CU_ASSERT_PTR_NOT_NULL_FATAL(memory);
    return memory;
}

static int create_file(bool tmpfs)
{
    char path[512];
    const char *folder = getenv("TEST_TMPDIR");
    snprintf(path, sizeof path, "%s/upload-XXXXXX", tmpfs ? "/dev/shm" : folder ? folder : "/tmp");
    const int fd = mkostemp(path, O_CLOEXEC);
    CU_ASSERT_TRUE_FATAL(fd >= 0);
    unlink(path);
    return fd;
}

static void fill_file(hl_weight_region *region, bool tmpfs, uint64_t bytes, hl_random *random)
{
    region->fd = create_file(tmpfs);
    region->tmpfs = tmpfs;
    region->length = bytes;
    CU_ASSERT_EQUAL_FATAL(ftruncate(region->fd, (off_t)bytes), 0);
    if (!bytes)
        return;
    void *writable = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, region->fd, 0);
    CU_ASSERT_PTR_NOT_EQUAL_FATAL(writable, MAP_FAILED);
    hl_random_fill(random, writable, bytes);
    munmap(writable, bytes);
    region->address = mmap(NULL, bytes, PROT_READ, MAP_SHARED, region->fd, 0);
    CU_ASSERT_PTR_NOT_EQUAL_FATAL(region->address, MAP_FAILED);
}

hl_weight_lease *testing_lease_open(const uint64_t *bytes, size_t count, unsigned files, uint64_t header,
                                    bool tmpfs, uint64_t seed)
{
    hl_random random;
    hl_weight_lease *lease = allocate(1, sizeof *lease);
    hl_random_seed(&random, seed);
    atomic_init(&lease->holds, 1);
    atomic_fetch_add(&live, 1);
    lease->count = count;
    lease->files = files;
    lease->views = allocate(count, sizeof *lease->views);
    lease->names = allocate(count, sizeof *lease->names);
    lease->regions = allocate(files, sizeof *lease->regions);
    lease->file_names = allocate(files, sizeof *lease->file_names);
    for (size_t file = 0, i = 0; file < files; file++) {
        uint64_t offset = header;
        for (; i < count && i * files / count == file; i++) {
            snprintf(lease->names[i], sizeof lease->names[i], "t%zu", i);
            lease->views[i] = (hl_weight_tensor_view){.name = lease->names[i],
                                                      .bytes = bytes[i],
                                                      .region = (uint32_t)file,
                                                      .region_offset = offset};
            offset += bytes[i];
        }
        snprintf(lease->file_names[file], sizeof lease->file_names[file], "part%zu.safetensors", file);
        lease->regions[file].file_name = lease->file_names[file];
        fill_file(&lease->regions[file], tmpfs, offset, &random);
    }
    for (size_t i = 0; i < count; i++) {
        const char *base = lease->regions[lease->views[i].region].address;
        lease->views[i].data = bytes[i] ? base + lease->views[i].region_offset : NULL;
    }
    return lease;
}

unsigned testing_leases(void)
{
    return atomic_load(&live);
}

unsigned testing_lease_holds(const hl_weight_lease *lease)
{
    return atomic_load(&lease->holds);
}

void testing_lease_cut(hl_weight_lease *lease, unsigned file, uint64_t bytes)
{
    CU_ASSERT_EQUAL_FATAL(ftruncate(lease->regions[file].fd, (off_t)bytes), 0);
}

void testing_lease_break(hl_weight_lease *lease, unsigned file)
{
    const int folder = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CU_ASSERT_TRUE_FATAL(folder >= 0);
    CU_ASSERT_TRUE_FATAL(dup3(folder, lease->regions[file].fd, O_CLOEXEC) >= 0);
    close(folder);
}

/* --- hostlane/weights.h, as far as uploads ask --- */

const hl_weight_tensor_view *hl_weight_lease_tensor(const hl_weight_lease *lease, const char *name)
{
    char *end;
    if (name[0] != 't' || !name[1])
        return NULL;
    const size_t index = strtoul(name + 1, &end, 10);
    return *end || index >= lease->count ? NULL : &lease->views[index];
}

size_t hl_weight_lease_region_count(const hl_weight_lease *lease)
{
    return lease->files;
}

const hl_weight_region *hl_weight_lease_region_at(const hl_weight_lease *lease, size_t index)
{
    return &lease->regions[index];
}

hl_weight_lease *hl_weight_lease_retain(hl_weight_lease *lease)
{
    atomic_fetch_add(&lease->holds, 1);
    return lease;
}

void hl_weight_lease_release(hl_weight_lease *lease)
{
    if (atomic_fetch_sub(&lease->holds, 1) != 1)
        return;
    for (size_t i = 0; i < lease->files; i++) {
        if (lease->regions[i].address)
            munmap((void *)(uintptr_t)lease->regions[i].address, lease->regions[i].length);
        close(lease->regions[i].fd);
    }
    free(lease->views);
    free(lease->names);
    free(lease->regions);
    free(lease->file_names);
    free(lease);
    atomic_fetch_sub(&live, 1);
}
