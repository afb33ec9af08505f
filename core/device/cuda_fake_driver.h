/* What a test and the library built from cuda_fake_driver.c share: the test finds fake_driver() with dlsym,
 * sets what the answers should be and reads what was asked. */
#ifndef CORE_DEVICE_CUDA_FAKE_DRIVER_H
#define CORE_DEVICE_CUDA_FAKE_DRIVER_H

#include <stdbool.h>
#include <stddef.h>

struct fake_driver {
    /* Set by the test. */
    const char *failing; /* this driver function answers `code` */
    int code;
    const char *missing; /* the driver does not have this function */
    int version;         /* nor what came after this CUDA version; 0: 13.0 */
    int device_count;
    int compute_major;
    int virtual_arch; /* that the kernels' code was compiled for */
    int numa_node;
    int read_only_register;
    float elapsed_ms;
    /* Read by the test. */
    int retained;     /* contexts retained and not released */
    int entered;      /* contexts pushed and not popped */
    int modules;      /* loaded and not unloaded */
    int imports;      /* opened and not closed */
    unsigned flags;   /* of the last call that has flags: register, stream or event */
    size_t copies;    /* single and strided copies accepted */
    size_t batched;   /* copies accepted in batches */
    bool host_source; /* of the last strided copy */
    bool host_destination;
    unsigned blocks; /* of the last launch */
    unsigned threads;
    unsigned shared;
};

struct fake_driver *fake_driver(void);

#endif
