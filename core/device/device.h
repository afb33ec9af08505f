/* core/device owns the one interface through which Hostlane touches a GPU, and its two implementations:
 * cuda.c (the CUDA driver, loaded at run time) and software.c (a device in host memory, for machines without
 * a GPU and for tests that need control over every copy). It knows nothing about blocks, plans or processes.
 * core/arena, core/transfer, engine and manager call it; it calls core/base only.
 *
 * Contexts. Each operation needs the device to be entered on the calling thread: hl_device_enter() makes the
 * device's primary context current and hl_device_leave() puts back whatever the caller had. They nest. An
 * operation outside fails with HL_E_STATE on the software device; on CUDA it would run in the caller's
 * context, so tests run on the software device catch it.
 *
 * Handles. On CUDA an hl_stream is a CUstream and an hl_event is a CUevent, so that an engine's own streams
 * and events pass through unchanged; the null stream is the legacy default stream. On the software device
 * they are its own.
 *
 * Threads. Every operation may be called from any thread; calls on one stream take effect in the order of the
 * calls.
 *
 * Errors. Each operation returns HL_OK or an error with `device_code` set to the driver's own code (software:
 * to the code that a CUDA driver would give). An error of asynchronous work is sticky: later operations on
 * that stream (on CUDA: in that context) report it again. HL_PENDING is returned by the two queries only. */
#ifndef CORE_DEVICE_DEVICE_H
#define CORE_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hostlane/status.h"

/* An address in the device's address space; 0 is never valid. For registered host memory it is what a kernel
 * reads. */
typedef uint64_t hl_devptr;

typedef struct hl_device hl_device;
typedef struct hl_stream_handle *hl_stream;
typedef struct hl_event_handle *hl_event;

enum hl_device_kind { HL_DEVICE_CUDA, HL_DEVICE_SOFTWARE };

struct hl_device_info {
    enum hl_device_kind kind;
    char name[128];    /* "NVIDIA H200", "software device" */
    uint8_t uuid[16];  /* stable across processes for one device */
    char pci_id[16];   /* "0000:17:00.0"; empty on the software device */
    int numa_node;     /* nearest node, or -1 when the system does not say */
    int compute_major; /* 9 on Hopper; 0 on the software device */
    int compute_minor;
    int sm_count;
    int driver_version; /* as cuDriverGetVersion: 13000; 0 on the software device */
    uint64_t memory_bytes;
    bool bulk_copy;              /* the gather kernel can use Hopper's bulk asynchronous copies */
    bool read_only_registration; /* host_register_read works */
};

enum hl_copy_kind { HL_COPY_H2D, HL_COPY_D2H, HL_COPY_D2D };

/* One copy of a batch. Host addresses are passed as integers, as in the driver's interface. */
struct hl_copy {
    uint64_t dst;
    uint64_t src;
    uint64_t bytes;
};

/* One descriptor of the gather kernel: 24 bytes, read by the device. `src` and `dst` are device-visible
 * addresses (for host memory what host_pointer returned). */
struct hl_gather {
    hl_devptr dst;
    hl_devptr src;
    uint64_t bytes;
};
_Static_assert(sizeof(struct hl_gather) == 24, "the kernel reads descriptors of 24 bytes");

enum hl_gather_method {
    HL_GATHER_LOADS, /* plain loads and stores; any device, any alignment */
    HL_GATHER_BULK   /* Hopper bulk copies through shared memory; 16-byte aligned addresses and sizes; see
                        bulk_copy */
};

/* Most layers of one launch. */
#define HL_GATHER_LAYERS 32u

/* A launch may say where the layers of its list end. Then it copies layer by layer, and each of its blocks,
 * after it has copied its share of layer k, adds 1 to the word counters[k]: a stream that has waited until
 * the word has grown by `blocks` (stream_wait_value) sees the layer's bytes, while the launch goes on with
 * the next layer. A block passes the layers in order. When a launch fails, its counts never come, and a
 * stream that waits for them fails, too. */
struct hl_gather_launch {
    hl_devptr descriptors; /* `count` struct hl_gather in memory that the device can read until the launch
                              completed */
    uint32_t count;
    uint32_t blocks; /* thread blocks, each of which keeps one SM busy: the cap on SMs */
    enum hl_gather_method method;
    uint32_t layer_count;       /* at most HL_GATHER_LAYERS; 0: nothing is counted */
    const uint32_t *layer_ends; /* host memory, read by the call: layer k is the descriptors from the end of
                                   layer k - 1 to layer_ends[k]; ascending, the last is `count` */
    hl_devptr counters;         /* device memory: a 32-bit word a layer, 4-byte aligned, written by no other
                                   launch until this one has completed */
};

/* A launch of the checksum kernel: for each i < count writes to sums[i] the hl_page_checksum() of
 * `page_bytes` bytes at base + offsets[i]. offsets and sums are arrays of uint64_t in device-visible memory;
 * page_bytes is a multiple of 8 and every page is 8-byte aligned. */
struct hl_checksum_launch {
    hl_devptr base;
    hl_devptr offsets;
    hl_devptr sums;
    uint64_t page_bytes;
    uint32_t count;
};

#define HL_IPC_HANDLE_BYTES 64u

/* What another process needs to map a device allocation: a handle on the allocation that holds the address,
 * and where in it the address lies (a CUDA handle names the allocation's base). */
struct hl_ipc_export {
    unsigned char handle[HL_IPC_HANDLE_BYTES];
    uint64_t offset;           /* of the exported address from the allocation's base */
    uint64_t allocation_bytes; /* of the whole allocation */
};

enum { HL_EVENT_TIMING = 1 }; /* event_create flag: the event can be given to event_elapsed */

struct hl_device_ops {
    void (*close)(hl_device *dev);
    hl_status (*enter)(hl_device *dev, hl_error *err);
    void (*leave)(hl_device *dev);
    hl_status (*memory_info)(hl_device *dev, uint64_t *free_bytes, uint64_t *total_bytes, hl_error *err);

    hl_status (*mem_alloc)(hl_device *dev, size_t bytes, hl_devptr *ptr, hl_error *err);
    hl_status (*mem_free)(hl_device *dev, hl_devptr ptr, hl_error *err); /* waits for work that uses it */
    hl_status (*fill)(hl_device *dev, hl_devptr dst, uint8_t value, size_t bytes, hl_stream stream,
                      hl_error *err);

    /* Pins [ptr, ptr + bytes), both multiples of the page size, and maps it for the device. */
    hl_status (*host_register)(hl_device *dev, void *ptr, size_t bytes, hl_error *err);
    /* The same for memory that this process may only read, as a file's read-only mapping is: the device, too,
     * may only read it. host_register refuses such memory. HL_E_UNSUPPORTED without read_only_registration.
     */
    hl_status (*host_register_read)(hl_device *dev, const void *ptr, size_t bytes, hl_error *err);
    hl_status (*host_unregister)(hl_device *dev, void *ptr, hl_error *err);
    hl_status (*host_pointer)(hl_device *dev, void *ptr, hl_devptr *mapped, hl_error *err);

    hl_status (*ipc_export)(hl_device *dev, hl_devptr ptr, struct hl_ipc_export *out, hl_error *err);
    /* Maps the exported allocation and returns the exported address (base + offset) in this process. */
    hl_status (*ipc_import)(hl_device *dev, const struct hl_ipc_export *in, hl_devptr *ptr, hl_error *err);
    /* `ptr` is the address that ipc_import returned. */
    hl_status (*ipc_close)(hl_device *dev, hl_devptr ptr, hl_error *err);

    /* The stream does not wait on the null stream. */
    hl_status (*stream_create)(hl_device *dev, hl_stream *stream, hl_error *err);
    /* Returns once the handle is no longer usable. On CUDA pending work still finishes afterwards:
     * synchronise first when memory that it uses goes away. */
    hl_status (*stream_destroy)(hl_device *dev, hl_stream stream, hl_error *err);
    /* HL_OK idle, HL_PENDING busy. */
    hl_status (*stream_query)(hl_device *dev, hl_stream stream, hl_error *err);
    hl_status (*stream_synchronize)(hl_device *dev, hl_stream stream, hl_error *err);
    hl_status (*stream_wait_event)(hl_device *dev, hl_stream stream, hl_event event, hl_error *err);
    /* The stream waits until the 32-bit word at `addr` (device-visible, 4-byte aligned) is >= value, read
     * cyclically: (int32_t)(*addr - value) >= 0. */
    hl_status (*stream_wait_value)(hl_device *dev, hl_stream stream, hl_devptr addr, uint32_t value,
                                   hl_error *err);
    /* The stream writes the word. */
    hl_status (*stream_write_value)(hl_device *dev, hl_stream stream, hl_devptr addr, uint32_t value,
                                    hl_error *err);

    hl_status (*event_create)(hl_device *dev, unsigned flags, hl_event *event, hl_error *err);
    hl_status (*event_destroy)(hl_device *dev, hl_event event, hl_error *err);
    /* A wait or query sees the latest record at the time of the call; a never recorded event is complete. */
    hl_status (*event_record)(hl_device *dev, hl_event event, hl_stream stream, hl_error *err);
    /* HL_OK complete, HL_PENDING not. */
    hl_status (*event_query)(hl_device *dev, hl_event event, hl_error *err);
    hl_status (*event_synchronize)(hl_device *dev, hl_event event, hl_error *err);
    /* Nanoseconds from `start` to `end`, both HL_EVENT_TIMING and complete; negative when end came first. */
    hl_status (*event_elapsed)(hl_device *dev, hl_event start, hl_event end, int64_t *ns, hl_error *err);

    /* Asynchronous copies. The host side must be registered (software: else HL_E_INVALID); sources are read
     * when the copy runs, so they must stay untouched until then. */
    hl_status (*copy)(hl_device *dev, enum hl_copy_kind kind, uint64_t dst, uint64_t src, size_t bytes,
                      hl_stream stream, hl_error *err);
    /* `rows` rows of `width` bytes; pitches are >= width, in bytes. */
    hl_status (*copy_rows)(hl_device *dev, enum hl_copy_kind kind, uint64_t dst, size_t dst_pitch,
                           uint64_t src, size_t src_pitch, size_t width, size_t rows, hl_stream stream,
                           hl_error *err);
    /* All of them, in any order. *accepted (never NULL) is how many copies the device may have started, also
     * when the call fails. The stream is not the null stream. */
    hl_status (*copy_batch)(hl_device *dev, enum hl_copy_kind kind, const struct hl_copy *copies,
                            size_t count, hl_stream stream, size_t *accepted, hl_error *err);
    hl_status (*gather)(hl_device *dev, const struct hl_gather_launch *launch, hl_stream stream,
                        hl_error *err);
    hl_status (*checksum)(hl_device *dev, const struct hl_checksum_launch *launch, hl_stream stream,
                          hl_error *err);
};

/* The common head of both implementations. */
struct hl_device {
    const struct hl_device_ops *ops;
    struct hl_device_info info;
};

/* Opens CUDA device `ordinal` through libcuda.so.1 (or the library that HOSTLANE_CUDA_LIBRARY names) and
 * retains its primary context; never creates another. HL_E_NO_DEVICE, with the reason, when this build has no
 * CUDA back end, the driver or a required driver function is missing, or there is no such device. */
hl_status hl_device_open_cuda(int ordinal, hl_device **dev, hl_error *err);

/* Opens a software device with default controls; core/device/software.h has the test controls. */
hl_status hl_device_open_software(hl_device **dev, hl_error *err);

/* Opens CUDA device 0 if there is one, else the software device. */
hl_status hl_device_open_default(hl_device **dev, hl_error *err);

/* Releases the device (NULL is allowed). The caller has destroyed what it created on it. */
void hl_device_close(hl_device *dev);

/* For implementations: whether the layers of a launch are as they should be; HL_E_LIMIT or HL_E_INVALID, with
 * `device_code`, naming the field. */
hl_status hl_gather_check_layers(const struct hl_gather_launch *launch, const char *stage, int device_code,
                                 hl_error *err);

static inline hl_status hl_device_enter(hl_device *dev, hl_error *err)
{
    return dev->ops->enter(dev, err);
}

static inline void hl_device_leave(hl_device *dev)
{
    dev->ops->leave(dev);
}

/* The checksum of a page, equal on host and devices: the sum over i of word[i] * (2 * i + 1), modulo 2^64,
 * with the page read as little-endian 64-bit words. `bytes` is a multiple of 8. It finds swapped, stale and
 * shifted pages; it is no digest. */
uint64_t hl_page_checksum(const void *page, size_t bytes);

#endif
