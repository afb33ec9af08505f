/* upload_bench measures P11: from a lease, whose bytes are in the page cache, to a GPU, beside what the link
 * gives (the ceiling: one copy of as many bytes from one pinned buffer, in the same run). A bench: what
 * cannot be done ends the process with a reason. bench_options.c reads arguments, bench_store.c makes the
 * store, bench_world.c has device and memory, bench_host.c measures the parts an upload is made of,
 * bench_upload.c measures uploads, bench_report.c writes what came out. */
#ifndef QUALIFICATION_WEIGHTS_UPLOAD_UPLOAD_BENCH_H
#define QUALIFICATION_WEIGHTS_UPLOAD_UPLOAD_BENCH_H

#include <jansson.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/device/device.h"
#include "core/weights/upload/upload.h"

enum { BENCH_SAMPLES = 64, BENCH_CASES = 48, BENCH_FILES = 4 };

struct bench_options {
    bool cuda;
    int ordinal;
    const char *dir;      /* where a store is made */
    uint64_t bytes;       /* of the tensors made */
    const char *store;    /* or a store that exists, */
    const char *identity; /* and the file with the identity of its artifact */
    unsigned samples;     /* after the first */
    bool sweep;           /* other slots and rings, and the parts of an upload */
    bool verify;          /* after every case, else after the first ones */
    bool keep;            /* the store that was made */
    const char *json;
    hl_weight_upload_options upload; /* what was asked for by options; the defaults otherwise */
};

struct bench_world {
    const struct bench_options *options;
    hl_weight_store *store;
    hl_weight_identity *identity;
    hl_device *dev;
    hl_stream stream;
    hl_weight_lease *lease;
    uint64_t bytes; /* of all tensors */
    size_t count;   /* of tensors, in the order of their files */
    hl_weight_destination *destinations;
    uint64_t *sizes;
    hl_devptr memory;
    uint64_t memory_bytes;
    unsigned char
        *pinned; /* `bytes` rounded up, of ordinary memory: the ceiling's source, and for downloads */
    uint64_t pinned_bytes;
    int64_t pin_ns;
    bool tmpfs;
    double ceiling; /* bytes a second */
    json_t *ceilings, *parts, *cases;
};

struct bench_case {
    const char *label;
    hl_weight_upload_options upload;
    bool fresh; /* a new lease for every sample: nothing is mapped or pinned yet */
};

/* Ends the process. */
_Noreturn void bench_die(const char *what, const hl_error *err);
void bench_must(hl_status status, const char *what, const hl_error *err);

/* bench_options.c: NULL, or the status to exit with in *exit_status. */
bool bench_options_parse(int argc, char **argv, struct bench_options *options, int *exit_status);

/* bench_store.c */
void bench_store_open(struct bench_world *world);
hl_weight_lease *bench_lease(const struct bench_world *world);

/* bench_world.c */
void bench_world_open(struct bench_world *world, const struct bench_options *options);
void bench_world_close(struct bench_world *world);
void bench_lease_renew(struct bench_world *world); /* another mapping of the same files */
void bench_poison(struct bench_world *world);
void bench_verify(struct bench_world *world, const char *label); /* every byte, or the end of the process */
/* Runs work(context, i, threads) for each i < threads, each on a thread of its own; the time it took. */
int64_t bench_parallel(unsigned threads, void (*work)(void *context, unsigned index, unsigned threads),
                       void *context);
unsigned bench_cpus(void);
int64_t bench_median(const int64_t *values, size_t count);
double bench_rate(uint64_t bytes, int64_t ns); /* bytes a second */

/* bench_host.c, bench_upload.c: append to the world's JSON, and print. */
void bench_measure_ceiling(struct bench_world *world, const char *when);
void bench_measure_parts(struct bench_world *world);
void bench_measure_case(struct bench_world *world, const struct bench_case *measured);

/* bench_report.c */
void bench_report(const struct bench_world *world);

#endif
