/* The bench of the software device's own tests: a device with options, entered, with registered host memory,
 * device memory and two streams. */
#ifndef CORE_DEVICE_SOFTWARE_TESTING_H
#define CORE_DEVICE_SOFTWARE_TESTING_H

#include <stdio.h>
#include <string.h>

#include "core/device/software.h"
#include "core/testing/cunit.h"

#define BENCH_BYTES ((size_t)65536)

struct bench {
    hl_device *dev;
    const struct hl_device_ops *ops;
    unsigned char *host; /* BENCH_BYTES, byte i is (i * 7) & 0xff */
    hl_devptr memory;    /* BENCH_BYTES, 0 */
    hl_stream a, b;
    hl_error err;
};

void bench_open(struct bench *bench, const struct hl_software_options *options);
/* Destroys what bench_open() made and expects that nothing else is left. */
void bench_close(struct bench *bench);

/* Copies `bytes` bytes from host + offset to memory + offset on `stream`. */
hl_status bench_copy(struct bench *bench, hl_stream stream, size_t offset, size_t bytes);
/* Whether [offset, offset + bytes) of the memory holds what bench_copy() puts there. */
bool bench_arrived(struct bench *bench, size_t offset, size_t bytes);

/* Runs this program again as `role` (software_roles.c), with pipes to its standard input and from its
 * standard output; returns its process id. */
int role_start(const char *role, int *in, int *out);
/* Its wait status. */
int role_end(int pid);

enum {
    ROLE_SURVIVED = 42, /* exit status of a role that should have died */
    ROLE_UNSTAGED = 43, /* of one that could not begin */
    ROLE_BYTES = 8192,  /* a role's allocation */
    ROLE_OFFSET = 4100  /* where in it the exported address lies */
};

#endif
