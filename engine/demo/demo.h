/* engine/demo is one program, hostlane-demo. By default it runs Hostlane as it is deployed, in several
 * processes (processes/processes.h). With --in-process it drives the rooms of core/ itself and measures them:
 * it publishes the KV cache of a model's geometry from a device into a pinned arena, restores it to other
 * pages while a consumer reads each layer as soon as its event fires, and compares every byte. This header is
 * what both modes share; it calls core/layout, core/plan, core/arena, core/device and core/transfer.
 *
 * Files, in the order of the data's way: options.c → geometry.c (device, model, layout, which page is whose)
 * → memory.c (tensors, arena, staging) → publish.c → restore.c → measure.c → verify.c → report.c, results.c
 * and trace.c; in_process.c drives them, main.c chooses the mode.
 *
 * Bytes. Page contents come from a generator seeded by (seed, component, block), so that any page can be made
 * again and compared on the host, in another process too. Every device page holds the poison byte before a
 * restore; a page that is no destination must hold it afterwards. The device stays entered on the main
 * thread, the only one. */
#ifndef ENGINE_DEMO_DEMO_H
#define ENGINE_DEMO_DEMO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "core/arena/arena.h"
#include "core/device/device.h"
#include "core/layout/layout.h"
#include "core/plan/plan.h"
#include "core/transfer/transfer.h"

#define HL_DEMO_POISON 0xA5u
#define HL_DEMO_MAX_RUNS 10000u

enum hl_demo_exit { HL_DEMO_OK = 0, HL_DEMO_MISMATCH = 1, HL_DEMO_USAGE = 2, HL_DEMO_ERROR = 3 };

/* --- options.c --- */
enum hl_demo_device { HL_DEMO_DEVICE_AUTO, HL_DEMO_DEVICE_CUDA, HL_DEMO_DEVICE_SOFTWARE };
enum hl_demo_pitch { HL_DEMO_SCATTERED, HL_DEMO_CONSTANT };
enum hl_demo_mode { HL_DEMO_PROCESSES, HL_DEMO_IN_PROCESS, HL_DEMO_REPLAY, HL_DEMO_GENERATE };

struct hl_demo_options {
    const char *model_config; /* NULL: the default file, see hl_demo_find_config */
    const char *trace_out;
    const char *json_out;
    enum hl_layout_kind layout;
    bool layout_given; /* else split, or mla for a latent cache */
    enum hl_block_order order;
    enum hl_route route;
    enum hl_demo_pitch pitch;
    enum hl_demo_device device;
    uint32_t pages; /* restored pages of each layer; 0: by device */
    uint32_t page_tokens;
    uint32_t element_bytes; /* 0: as the model says */
    uint32_t tp_size;
    uint32_t tp_rank;
    bool store_full_heads;
    bool huge;
    bool help;
    uint32_t sms;              /* 0: the executor's default */
    uint32_t part_bytes;       /* bound on one plan part: consumers are queued after each part */
    uint32_t first_part_bytes; /* bound on the first part, at most part_bytes */
    uint32_t warmup;
    uint32_t runs;
    uint64_t seed;
    /* which mode; hl_demo_mode() */
    bool in_process;
    const char *trace;          /* replayed */
    const char *trace_generate; /* written */
    /* of a replay */
    uint32_t trace_requests; /* 0: all; of a generated trace 1000 */
    uint32_t trace_scale;    /* 0: chosen */
    uint64_t cache_bytes;    /* 0: as much as the trace's blocks take up */
    /* of a process that the demo started: what it is, where the Manager listens, and its program */
    const char *role;
    const char *socket;
    const char *program;
};

/* Parses `--name value` and `--name=value`. HL_E_INVALID names the option. Text values point into argv. */
hl_status hl_demo_options_parse(int argc, char **argv, struct hl_demo_options *options, hl_error *err);
enum hl_demo_mode hl_demo_mode(const struct hl_demo_options *options);
void hl_demo_usage(FILE *out);
const char *hl_demo_order_name(enum hl_block_order order);
const char *hl_demo_pitch_name(enum hl_demo_pitch pitch);

/* --- the state of one program run --- */

struct hl_demo_block {
    uint32_t group;
    uint32_t source; /* device page that it is published from */
    uint32_t page;   /* device page that it is restored to; never anybody's source */
    struct hl_allocation allocation;
};

/* How the consumer reads one component: a unit is a page, or a row where a page's rows are not adjacent. */
struct hl_demo_reader {
    uint64_t first; /* index of the component's first unit in offsets, sums and expected */
    uint64_t unit_bytes;
    uint32_t units; /* a page */
    uint32_t count; /* units × blocks of the group */
};

struct hl_demo_span {
    const char *name; /* a string constant */
    int run;          /* -1: before the first run */
    int64_t start_ns; /* host clock */
    int64_t end_ns;
};

/* One restore. Times are nanoseconds after the base event, which precedes the operation on the copy stream.
 */
struct hl_demo_run {
    int64_t total_ns; /* until the last layer's event */
    int64_t base_ns;  /* host clock when the base event was recorded */
    int64_t compile_ns;
    int64_t submit_ns; /* host time in all submit calls, with the consumer's launches between them */
    int64_t drain_ns;
    int64_t *ready; /* by layer; `consumer_start` and `consumer_end` likewise, in one allocation */
    int64_t *consumer_start;
    int64_t *consumer_end;
};

typedef struct hl_demo {
    struct hl_demo_options options; /* with defaults filled in once the device is known */
    char config_path[4096];
    hl_device *dev;
    hl_arena_progress progress; /* NULL: nobody watches */
    struct hl_model_geometry geometry;
    hl_layout *layout;
    struct hl_demo_block *blocks; /* group 0's, then group 1's, … */
    uint32_t block_count;
    uint32_t group_first[HL_LAYOUT_GROUPS + 1]; /* index of each group's first block */
    uint64_t payload_bytes;                     /* that one restore copies */

    hl_stream work;     /* fills, publishes, poisons and reads back */
    hl_stream consumer; /* reads layers as they become ready */
    struct hl_tensor_binding *tensors;
    unsigned char *staging; /* registered host memory for all other transfers */
    size_t staging_bytes;
    unsigned char *scratch; /* host memory for one component's page, and for one block */
    size_t scratch_bytes;
    struct hl_demo_reader *readers; /* by component */
    uint64_t unit_count;
    hl_devptr offsets; /* device arrays of unit_count 64-bit words */
    hl_devptr sums;
    uint64_t *expected; /* the sums that a correct restore gives */
    hl_arena *arena;
    hl_registration *registration;

    hl_transfer *transfer;
    hl_event base_event;
    hl_event *layer_events; /* by layer; start_events and end_events in the same allocation */
    hl_event *start_events;
    hl_event *end_events;
    struct hl_plan_block *plan_blocks;
    struct hl_plan_stats plan_stats;
    size_t plan_parts;
    struct hl_layer_result *layer_results; /* of the last run */

    hl_devptr ceiling_target;
    uint64_t ceiling_bytes;
    int64_t *ceiling_ns; /* samples */
    uint32_t ceiling_count;

    struct hl_demo_run *runs; /* measured ones */
    uint32_t run_count;       /* finished */
    struct hl_demo_span *spans;
    size_t span_count;
    size_t span_room;
    char state_digest[65]; /* SHA-256 over the checksums of all device pages after the last run */
} hl_demo;

/* A zeroed hl_demo with `options` and an entered `dev` is a valid start: each step below fills its part in.
 */

/* --- geometry.c --- */
hl_status hl_demo_open_device(const struct hl_demo_options *options, hl_device **dev, hl_error *err);
/* Writes the path of the default model config: $HOSTLANE_CONFIGS, then beside the program, then its runfiles.
 */
hl_status hl_demo_find_config(char *path, size_t size, hl_error *err);
/* Reads the model that the options name into demo->geometry. */
hl_status hl_demo_read_model(hl_demo *demo, hl_error *err);
/* Reads the model, lays it out and chooses pages. */
hl_status hl_demo_plan_geometry(hl_demo *demo, hl_error *err);
/* The same from demo->geometry. */
hl_status hl_demo_plan_pages(hl_demo *demo, hl_error *err);
uint32_t hl_demo_group_blocks(const hl_demo *demo, uint32_t group);
/* Device bytes from a page's first to its last byte, gaps between rows included. */
uint64_t hl_demo_page_extent(const struct hl_layout_component *component);
hl_devptr hl_demo_page_address(const hl_demo *demo, const struct hl_layout_component *component,
                               uint32_t page);

/* --- memory.c --- */
/* What the blocks take up in an arena: no block crosses a chunk, hence each chunk may waste one. */
uint64_t hl_demo_arena_bytes(const hl_demo *demo);
/* All but the arena: stream, staging, tensors, readers. */
hl_status hl_demo_allocate_device_memory(hl_demo *demo, hl_error *err);
/* The same and the arena with its allocations. */
hl_status hl_demo_allocate_memory(hl_demo *demo, hl_error *err);
/* Waits for the device and frees everything in any partly filled state; leaves the device open. */
void hl_demo_close(hl_demo *demo);
/* Copies between pageable host memory and the device through the staging buffer, and waits. */
hl_status hl_demo_upload(hl_demo *demo, hl_devptr dst, const void *src, size_t bytes, hl_error *err);
hl_status hl_demo_download(hl_demo *demo, void *dst, hl_devptr src, size_t bytes, hl_error *err);

/* --- publish.c --- */
/* The generated contents of a block's page of one component: its rows, adjacent. */
void hl_demo_page_bytes(const hl_demo *demo, uint32_t component, uint32_t block, unsigned char *bytes);
/* Queues on `work` the copy of a page between the device (rows at row_stride) and registered host memory
 * (rows at host_stride). */
hl_status hl_demo_copy_page(hl_demo *demo, enum hl_copy_kind kind,
                            const struct hl_layout_component *component, hl_devptr device, void *host,
                            uint64_t host_stride, hl_error *err);
/* Keeps the sums that a consumer of restored pages must get, without a device. */
void hl_demo_expect(hl_demo *demo);
enum hl_demo_side { HL_DEMO_SOURCES, HL_DEMO_DESTINATIONS };
/* Uploads every block's generated bytes to its pages on one side and keeps the expected sums. */
hl_status hl_demo_fill(hl_demo *demo, enum hl_demo_side side, hl_error *err);
/* Copies every row of every source page to its place in the block's allocation, and waits. */
hl_status hl_demo_publish(hl_demo *demo, hl_error *err);
/* Fills every tensor with the poison byte and the sums with 0, and waits. */
hl_status hl_demo_poison(hl_demo *demo, hl_error *err);

/* --- restore.c --- */
/* The consumer's stream and all events, without an executor. */
hl_status hl_demo_open_consumer(hl_demo *demo, hl_error *err);
/* Queues the reading of one layer behind the layer's event, which has been recorded: a wait sees the latest
 * record. */
hl_status hl_demo_queue_consumer(hl_demo *demo, uint32_t layer, hl_error *err);
/* Reads all events' times after the base event into *run; they are complete. */
hl_status hl_demo_read_times(hl_demo *demo, struct hl_demo_run *run, hl_error *err);
hl_status hl_demo_open_restore(hl_demo *demo, hl_error *err);
void hl_demo_close_restore(hl_demo *demo);
/* One restore with its consumer; `generation` tells operations apart. Fills *run, whose arrays the caller
 * frees with hl_demo_free_run, only on success. */
hl_status hl_demo_restore(hl_demo *demo, uint32_t generation, struct hl_demo_run *run, hl_error *err);

/* --- measure.c --- */
hl_status hl_demo_alloc_run(uint32_t layers, struct hl_demo_run *run, hl_error *err);
void hl_demo_free_run(struct hl_demo_run *run);
/* Appends `samples` times of one contiguous copy from the arena to the device. */
hl_status hl_demo_measure_ceiling(hl_demo *demo, uint32_t samples, hl_error *err);
/* The lower median; count > 0. Without memory to sort it is the first value. */
int64_t hl_demo_median(const int64_t *values, uint32_t count);
int64_t hl_demo_median_ceiling(const hl_demo *demo);
/* The measured run whose total is the median. */
const struct hl_demo_run *hl_demo_median_run(const hl_demo *demo);
double hl_demo_gbps(uint64_t bytes, int64_t ns); /* 10^9 bytes a second */
/* Whether a consumer started before the last layer was ready. */
bool hl_demo_overlapped(const struct hl_demo_run *run, uint32_t layers);
/* Keeps a host stage for the trace; running out of memory drops it. */
void hl_demo_add_span(hl_demo *demo, const char *name, int run, int64_t start_ns, int64_t end_ns);

/* --- verify.c --- */
struct hl_demo_mismatch {
    const char *what; /* NULL: everything was as it must be */
    uint32_t layer;
    enum hl_role role;
    uint32_t page;   /* device page; for a published block its source page */
    uint64_t offset; /* of the first wrong byte in the page's rows, or in the block */
    uint64_t expected;
    uint64_t got;
};

/* Each returns HL_OK when the comparison could be made, whatever it found. */
hl_status hl_demo_verify_published(hl_demo *demo, struct hl_demo_mismatch *mismatch, hl_error *err);
hl_status hl_demo_verify_sums(hl_demo *demo, struct hl_demo_mismatch *mismatch, hl_error *err);
/* Every byte of every page of every component, destination or not; keeps state_digest when all are right. */
hl_status hl_demo_verify_restored(hl_demo *demo, struct hl_demo_mismatch *mismatch, hl_error *err);
/* Event order: layers complete in order, no consumer starts before its layer is ready. */
void hl_demo_verify_order(const hl_demo *demo, const struct hl_demo_run *run,
                          struct hl_demo_mismatch *mismatch);
const char *hl_demo_role_name(enum hl_role role);

/* --- in_process.c --- */
/* The in-process mode between entering and leaving the device; the program's exit status. */
int hl_demo_run_in_process(hl_demo *demo);

/* --- report.c, progress.c, results.c, trace.c --- */
void hl_demo_report_device(const hl_demo *demo, FILE *out);
/* Device, model, layout and blocks. */
void hl_demo_report_geometry(const hl_demo *demo, FILE *out);
/* The same and the arena. */
void hl_demo_report_setup(const hl_demo *demo, FILE *out);
void hl_demo_report_result(const hl_demo *demo, FILE *out);
void hl_demo_report_mismatch(const struct hl_demo_mismatch *mismatch, FILE *out);
void hl_demo_report_error(const hl_demo *demo, const hl_error *err, FILE *out);
/* "1.07 GiB", "18.0 MiB": for people. */
void hl_demo_format_size(uint64_t bytes, char *text, size_t size);
/* Shows progress on stderr: one line that is rewritten on a terminal, else a line each quarter. */
void hl_demo_progress(void *user, const char *stage, uint64_t done_bytes, uint64_t total_bytes);
void hl_demo_progress_requests(const char *stage, uint64_t done, uint64_t total);
hl_status hl_demo_write_results(const hl_demo *demo, const char *path, hl_error *err);
hl_status hl_demo_write_trace(const hl_demo *demo, const char *path, hl_error *err);

#endif
