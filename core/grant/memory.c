#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/memfd.h"
#include "core/grant/grant_memory.h"
#include "faults/hook.h"

static void initialise(struct hl_grant_shared *shared, uint64_t epoch, const unsigned char *token)
{
    shared->header.magic = HL_GRANT_MAGIC;
    shared->header.schema = HL_GRANT_SCHEMA;
    shared->header.layout_signature = hl_grant_layout_signature();
    shared->header.epoch = epoch;
    memcpy(shared->header.token, token, HL_GRANT_TOKEN_BYTES);
    for (uint32_t i = 0; i < HL_GRANT_RECORDS; i++)
        atomic_init(&shared->records[i].word, hl_grant_word_of(1, HL_GRANT_FREE));
}

hl_status hl_grant_memory_create(uint64_t epoch, const unsigned char token[16], hl_grant_memory **out,
                                 hl_error *err)
{
    static const char stage[] = "grant.create";
    hl_grant_memory *memory = calloc(1, sizeof *memory);
    if (!memory)
        return HL_FAIL(err, HL_E_NOMEM, stage, "no memory for a grant memory");
    void *base;
    hl_status status =
        HL_FAULT_CALL(grant_memory_create,
                      hl_memfd_create("hostlane-grant", 0, HL_GRANT_MEMORY_BYTES, stage, &memory->fd, err),
                      HL_FAIL_ERRNO(err, HL_E_SYSTEM, stage, errno, "cannot create a grant memory"));
    if (status != HL_OK)
        goto err_free;
    status = hl_memfd_map(memory->fd, HL_GRANT_MEMORY_BYTES, stage, &base, err);
    if (status != HL_OK)
        goto err_close;
    memory->shared = base;
    initialise(memory->shared, epoch, token);
    *out = memory;
    return HL_OK;

err_close:
    close(memory->fd);
err_free:
    free(memory);
    return status;
}

/* The tokens themselves stay out of the text: error texts end up in logs. */
static hl_status check_header(const struct hl_grant_header *header, uint64_t epoch,
                              const unsigned char *token, hl_error *err)
{
    static const char stage[] = "grant.map";
    const uint64_t signature = hl_grant_layout_signature();
    if (header->magic != HL_GRANT_MAGIC)
        return HL_FAIL(err, HL_E_PROTOCOL, stage, "magic is 0x%08x, not 0x%08x: this is no grant memory",
                       header->magic, HL_GRANT_MAGIC);
    if (header->schema != HL_GRANT_SCHEMA)
        return HL_FAIL(err, HL_E_VERSION, stage, "grant schema is %u, this build has %u", header->schema,
                       HL_GRANT_SCHEMA);
    if (header->layout_signature != signature)
        return HL_FAIL(err, HL_E_VERSION, stage,
                       "layout signature is 0x%016" PRIx64 ", this build has 0x%016" PRIx64,
                       header->layout_signature, signature);
    if (header->epoch != epoch)
        return HL_FAIL(err, HL_E_PROTOCOL, stage, "epoch is %" PRIu64 ", but the Manager announced %" PRIu64,
                       header->epoch, epoch);
    if (memcmp(header->token, token, HL_GRANT_TOKEN_BYTES) != 0)
        return HL_FAIL(err, HL_E_PROTOCOL, stage, "token is another than the Manager announced");
    return HL_OK;
}

hl_status hl_grant_memory_map(int fd, uint64_t epoch, const unsigned char token[16], hl_grant_memory **out,
                              hl_error *err)
{
    static const char stage[] = "grant.map";
    hl_grant_memory *memory = calloc(1, sizeof *memory);
    if (!memory)
        return HL_FAIL(err, HL_E_NOMEM, stage, "no memory for a grant memory");
    void *base;
    hl_status status = hl_memfd_import(fd, HL_GRANT_MEMORY_BYTES, stage, &memory->fd, err);
    if (status != HL_OK)
        goto err_free;
    status =
        HL_FAULT_CALL(grant_memory_map, hl_memfd_map(memory->fd, HL_GRANT_MEMORY_BYTES, stage, &base, err),
                      HL_FAIL_ERRNO(err, HL_E_NOMEM, stage, errno, "cannot map a grant memory"));
    if (status != HL_OK)
        goto err_close;
    memory->shared = base;
    struct hl_grant_header header; /* a copy: the peer may write while it is checked */
    memcpy(&header, base, offsetof(struct hl_grant_header, dirty));
    status = check_header(&header, epoch, token, err);
    if (status != HL_OK)
        goto err_unmap;
    *out = memory;
    return HL_OK;

err_unmap:
    munmap(base, HL_GRANT_MEMORY_BYTES);
err_close:
    close(memory->fd);
err_free:
    free(memory);
    return status;
}

void hl_grant_memory_close(hl_grant_memory *memory)
{
    if (!memory)
        return;
    munmap(memory->shared, HL_GRANT_MEMORY_BYTES);
    close(memory->fd);
    free(memory);
}

int hl_grant_memory_fd(const hl_grant_memory *memory)
{
    return memory->fd;
}

struct hl_grant_record *hl_grant_record_at(hl_grant_memory *memory, uint32_t index)
{
    assert(index < HL_GRANT_RECORDS);
    return &memory->shared->records[index];
}

void *hl_grant_bank(hl_grant_memory *memory)
{
    return memory->shared->bank;
}
