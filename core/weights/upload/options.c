/* Options: defaults, bounds, and what 0 stands for. */
#include <inttypes.h>
#include <sched.h>

#include "core/base/checked.h"
#include "core/weights/upload/work.h"

#define STAGE "upload.options"

/* What a copy and what a file's page are counted in. */
#define UNIT 4096u

#define DEFAULT_STAGING (64 * HL_MIB)
#define DEFAULT_SLOT (2 * HL_MIB)
#define DEFAULT_CHUNK (1 * HL_GIB)
#define MOST_PIECE (64 * HL_MIB) /* where it is not given */
#define MOST_THREADS 12u         /* where it is not given */

void hl_weight_upload_options_init(hl_weight_upload_options *options)
{
    *options = (hl_weight_upload_options){.size = sizeof *options, .route = HL_WEIGHT_UPLOAD_AUTO};
}

/* Where every core copies, none is left for the submitter and the retirer. */
uint32_t hl_upload_threads_for(uint32_t cores)
{
    const uint32_t threads = cores * 3 / 4;
    return !threads ? 1 : threads < MOST_THREADS ? threads : MOST_THREADS;
}

static uint32_t count_cores(void)
{
    cpu_set_t cores;
    return sched_getaffinity(0, sizeof cores, &cores) ? 1 : (uint32_t)CPU_COUNT(&cores);
}

static hl_status check_bytes(const char *field, uint64_t bytes, uint64_t most, hl_error *err)
{
    if (bytes % UNIT)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "%s: %" PRIu64 " is not a multiple of %u", field, bytes,
                       UNIT);
    if (bytes > most)
        return HL_FAIL(err, HL_E_LIMIT, STAGE, "%s: %" PRIu64 " is more than %" PRIu64, field, bytes, most);
    return HL_OK;
}

static hl_status check_route(hl_weight_upload_route route, hl_error *err)
{
    switch (route) {
    case HL_WEIGHT_UPLOAD_AUTO:
    case HL_WEIGHT_UPLOAD_STAGING:
    case HL_WEIGHT_UPLOAD_REGISTERED:
        return HL_OK;
    }
    return HL_FAIL(err, HL_E_INVALID, STAGE, "route: %d is none", (int)route);
}

static hl_status check_ring(const hl_weight_upload_options *options, hl_error *err)
{
    hl_status status = check_bytes("staging_bytes", options->staging_bytes, HL_ARENA_CHUNK_BYTES, err);
    if (!status)
        status = check_bytes("slot_bytes", options->slot_bytes, HL_UPLOAD_SLOT_BYTES, err);
    if (status)
        return status;
    if (options->staging_bytes / options->slot_bytes < 2)
        return HL_FAIL(err, HL_E_INVALID, STAGE,
                       "staging_bytes: %" PRIu64 " has no room for two slots of %" PRIu64,
                       options->staging_bytes, options->slot_bytes);
    return HL_OK;
}

/* A ring given without a slot is cut into four at least, a slot given without a ring gets a ring of four. */
static void fill_in(hl_weight_upload_options *options)
{
    if (!options->slot_bytes) {
        options->slot_bytes = DEFAULT_SLOT;
        if (options->staging_bytes && options->staging_bytes < 4 * DEFAULT_SLOT)
            options->slot_bytes = options->staging_bytes / 4 / UNIT * UNIT;
        if (!options->slot_bytes)
            options->slot_bytes = UNIT;
    }
    if (!options->staging_bytes)
        options->staging_bytes =
            options->slot_bytes <= DEFAULT_STAGING / 4 ? DEFAULT_STAGING : 4 * options->slot_bytes;
    if (!options->register_chunk_bytes)
        options->register_chunk_bytes = DEFAULT_CHUNK;
    if (!options->register_piece_bytes) {
        const uint64_t eighth = options->register_chunk_bytes / 8 / UNIT * UNIT;
        options->register_piece_bytes = !eighth ? UNIT : eighth < MOST_PIECE ? eighth : MOST_PIECE;
    }
    if (!options->copy_threads)
        options->copy_threads = hl_upload_threads_for(count_cores());
}

hl_status hl_upload_options_resolve(const hl_weight_upload_options *options,
                                    hl_weight_upload_options *resolved, hl_error *err)
{
    if (options->size != sizeof *options)
        return HL_FAIL(err, HL_E_INVALID, STAGE,
                       "options.size: %zu, this library's is %zu: call hl_weight_upload_options_init()",
                       options->size, sizeof *options);
    hl_weight_upload_options filled = *options;
    hl_status status = check_route(options->route, err);
    if (!status)
        status = check_bytes("slot_bytes", options->slot_bytes, HL_UPLOAD_SLOT_BYTES, err);
    if (status)
        return status;
    fill_in(&filled);
    status = check_ring(&filled, err);
    if (!status)
        status = check_bytes("register_chunk_bytes", filled.register_chunk_bytes, HL_ARENA_CHUNK_BYTES, err);
    if (!status)
        status = check_bytes("register_piece_bytes", filled.register_piece_bytes, filled.register_chunk_bytes,
                             err);
    if (status)
        return status;
    if (filled.copy_threads > HL_UPLOAD_THREADS)
        return HL_FAIL(err, HL_E_LIMIT, STAGE, "copy_threads: %" PRIu32 " is more than %u",
                       filled.copy_threads, HL_UPLOAD_THREADS);
    *resolved = filled;
    return HL_OK;
}
