/* What the tests of uploads stand on: a stand-in for a lease (its accessors, over files of known bytes,
 * linked in place of the store's), and a rig of a device, poisoned device memory with a destination for each
 * tensor, and events. Test code only.
 *
 * The device is that of HOSTLANE_TEST_DEVICE ("software", the default, or "cuda"), or the software device
 * where a test needs its controls. */
#ifndef CORE_WEIGHTS_UPLOAD_UPLOAD_TESTING_H
#define CORE_WEIGHTS_UPLOAD_UPLOAD_TESTING_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/random.h"
#include "core/device/software.h"
#include "core/testing/cunit.h"
#include "core/weights/upload/work.h"

enum { RIG_POISON = 0xa5 };

/* --- the stand-in for a lease --- */

/* Files with `bytes[i]` bytes of tensor i, in turn: tensor i is in file i * files / count, called "t0", "t1",
 * … Each file has a header of `header` bytes before its first tensor. tmpfs: below /dev/shm, else below
 * $TEST_TMPDIR, and said not to be one. */
hl_weight_lease *testing_lease_open(const uint64_t *bytes, size_t count, unsigned files, uint64_t header,
                                    bool tmpfs, uint64_t seed);
unsigned testing_leases(void); /* not released by everybody */
unsigned testing_lease_holds(const hl_weight_lease *lease);
void testing_lease_cut(hl_weight_lease *lease, unsigned file, uint64_t bytes); /* ftruncate */
void testing_lease_break(hl_weight_lease *lease, unsigned file); /* reading it fails with EISDIR */

/* --- the rig --- */

struct rig_options {
    const uint64_t *bytes; /* of each tensor */
    size_t count;
    unsigned files; /* 0: one */
    uint64_t header;
    bool tmpfs;
    uint64_t gap;  /* device bytes between destinations */
    bool shuffled; /* destinations in random order, and so sent */
    bool software; /* needs the software device */
    bool no_events;
    const struct hl_software_options *device; /* NULL: none of its options; else also `software` */
    uint64_t seed;
};

struct rig {
    hl_device *dev;
    const struct hl_device_ops *ops;
    hl_weight_lease *lease;
    hl_devptr memory;
    size_t bytes;        /* of memory and host */
    unsigned char *host; /* registered; what rig_read() fills */
    unsigned char *expected;
    hl_weight_destination *destinations; /* in the order of sending */
    uint64_t *sizes;                     /* of their tensors */
    char (*names)[24];
    size_t count;
    hl_stream stream;
    hl_weight_upload_options options; /* small ring, small chunk; a test changes them */
    struct hl_software_counts before; /* of the software device, after opening */
    hl_error err;
};

void rig_open(struct rig *rig, const struct rig_options *options);
void rig_close(struct rig *rig); /* expects the lease to have no other holder, if it is still held */
bool rig_is_software(const struct rig *rig);
bool rig_runs_on_gpu(void); /* unless a rig needs the software device */

/* Starts, waits until drained, closes; expects success and every byte in its place. */
void rig_upload(struct rig *rig);
hl_upload *rig_start(struct rig *rig); /* must succeed */
/* Whether the device's memory is as expected, poison between the tensors included. */
bool rig_matches(struct rig *rig);
void rig_poison(struct rig *rig); /* makes the device's memory poison again */
/* Reads the device's memory into `host`. */
void rig_read(struct rig *rig);
/* Nothing is left on the software device that was not there after opening. */
void rig_expect_nothing_left(struct rig *rig);
/* The ways an upload can go: STAGING from a disk, and from tmpfs REGISTERED, and AUTO, which is STAGING. Of
 * the rig's options, `tmpfs`; of the upload's, the route. */
enum { RIG_WAYS = 3 };
bool rig_way_tmpfs(int way);
hl_weight_upload_route rig_way_route(int way);
/* Whether this device and lease allow the REGISTERED route. */
bool rig_can_register(struct rig *rig);

#endif
