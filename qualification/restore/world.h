/* One engine's GPU world: a device, a layout, its tensors, and what they must hold.
 *
 * The bytes of a block follow from its key alone, so that any process can say what must arrive. `expected`
 * mirrors the tensors: a test writes there what should happen, and world_matches() compares every byte, also
 * those that nobody should have touched. HOSTLANE_TEST_DEVICE=cuda puts the same world on a GPU. */
#ifndef QUALIFICATION_RESTORE_WORLD_H
#define QUALIFICATION_RESTORE_WORLD_H

#include <stdatomic.h>

#include "core/device/device.h"
#include "core/layout/layout.h"
#include "hostlane/engine.h"
#include "qualification/restore/process.h"

enum { WORLD_POISON = 0xee };

struct world_options {
    uint32_t layers;
    uint32_t pages; /* of each group */
    uint32_t page_tokens;
    uint32_t head_dim;
    bool sliding;   /* the second half of the layers is a group of its own */
    hl_device *dev; /* borrowed; NULL: opens one */
};
/* Two layers, 64 pages, blocks of 1 KiB. */
#define WORLD_DEFAULTS ((struct world_options){.layers = 2, .pages = 64, .page_tokens = 4, .head_dim = 32})

struct world {
    hl_device *dev;
    bool own_dev, cuda;
    hl_layout *layout;
    hl_devptr memory; /* one allocation, of which the tensors are cut */
    uint64_t bytes;
    hl_tensor *tensors;
    unsigned char *expected; /* `bytes` */
    unsigned char *staging;  /* registered: `bytes`, then the word */
    uint64_t staging_bytes;
    _Atomic uint32_t *word; /* what held streams wait for */
    hl_devptr word_ptr;
    uint32_t holds;
    hl_stream stream; /* the test's own copies */
    hl_event *events; /* one a layer */
    hl_error err;
};

bool world_wants_cuda(void);
void world_open(struct world *world, const struct world_options *options);
/* On the software device, expects that nothing else is left on it. */
void world_close(struct world *world);

/* The block's bytes. */
void world_block(uint64_t key, void *bytes, size_t size);
/* `page` of `group` should hold block `key`. */
void world_expect(struct world *world, uint32_t group, uint64_t key, uint32_t page);
/* Puts what is expected onto the device. */
void world_upload(struct world *world);
/* Poison everywhere, expected and on the device. */
void world_poison(struct world *world);
bool world_matches(struct world *world);
/* Copies `size` bytes of tensor memory, at `offset`, on `stream` into `to`, and waits. */
void world_read_on(struct world *world, hl_stream stream, uint64_t offset, void *to, size_t size);

/* Lets `stream` stand still until world_let_go(). At most one stream is held at a time. */
void world_hold(struct world *world, hl_stream stream);
void world_let_go(struct world *world);

hl_stream world_stream_new(struct world *world);
void world_stream_end(struct world *world, hl_stream stream);

/* Whether the calling thread has the device's context current. */
bool world_is_entered(struct world *world);

#endif
