/* Test controls of the software device. Production code opens it through device.h and never includes this.
 *
 * Device memory is a memfd that its user cannot touch: addresses returned by mem_alloc are mapped PROT_NONE,
 * and only the device's own threads have a view that can be read and written. A stray host access therefore
 * faults, and another process can import an allocation from its fd. A stream is a FIFO with a thread; each
 * event_record makes a record of its own, which waits and queries bind to, so that re-recording behaves as on
 * CUDA. Sources are read when the copy executes; the copies of a batch execute last to first, as they have no
 * order.
 *
 * Errors. A copy, fill or word whose address is not inside one registration or one allocation is refused at
 * submission (HL_E_INVALID, code 1). What a gather or checksum finds in its tables is checked when it runs: a
 * bad address is code 700, a page off its alignment 716, both HL_E_DEVICE and sticky on their stream. An
 * event recorded after a failure reports it, and a stream that waits for such an event fails with it, as on
 * CUDA, where the whole context would have failed. Importing a handle in the process that exported it is
 * refused, as on CUDA.
 *
 * A gather with layers is one operation a layer, which copies the layer and then adds `blocks` to its
 * counter: streams may be held, stepped and made to fail between two layers of a launch. When such an
 * operation fails, a stream that waits for a value in the memory that the counter lies in, and has not got
 * it, fails with it.
 *
 * Waiting. mem_free, host_unregister and ipc_close wait for queued copies that use the memory, and for every
 * queued gather and checksum; stream_destroy for the stream's work. Closing the device waits for the
 * operation under way only: it drops what is queued, and ends holds and waits. */
#ifndef CORE_DEVICE_SOFTWARE_H
#define CORE_DEVICE_SOFTWARE_H

#include "core/device/device.h"

/* What one executed copy is about to do, shown to the checker before the bytes move. */
struct hl_software_access {
    enum hl_copy_kind kind;
    uint64_t dst;
    uint64_t src;
    uint64_t bytes;
    hl_stream stream;
};

/* Returns 0 to allow the access; anything else makes the copy fail with HL_E_DEVICE (sticky on its stream)
 * and counts as a violation. Called on the device's threads, for every contiguous piece of every copy, batch,
 * strided copy and gather. */
typedef int (*hl_software_checker)(void *user, const struct hl_software_access *access);

struct hl_software_options {
    hl_software_checker checker; /* may be NULL */
    void *checker_user;
    uint64_t bytes_per_second; /* bandwidth of each stream; 0: as fast as memcpy. Not in single-step mode */
    uint64_t memory_bytes;     /* capacity; 0: 16 GiB. Beyond it mem_alloc fails as CUDA does (code 2) */
    bool single_step; /* no threads: work runs only inside hl_software_step() or a synchronising call */
    uint64_t seed;    /* single_step: orders streams that could both go next */
    bool no_read_only_registration; /* as GPUs that refuse host_register_read */
};

hl_status hl_device_open_software_with(const struct hl_software_options *options, hl_device **dev,
                                       hl_error *err);

/* Holds `stream` before its n-th operation from now (1 is the next one submitted) executes; 0 holds at once,
 * before whatever would execute next. Waits nothing. */
void hl_software_hold(hl_device *dev, hl_stream stream, uint64_t nth);
/* Blocks until `stream` cannot go on for now: it is idle, held, or waits for an event or a word. */
void hl_software_wait_settled(hl_device *dev, hl_stream stream);
void hl_software_release(hl_device *dev, hl_stream stream);
/* Blocks until `stream` stands at a hold (its earlier operations have finished). */
void hl_software_wait_held(hl_device *dev, hl_stream stream);

/* The n-th asynchronous submission to any stream from now fails with HL_E_DEVICE and `device_code`, having
 * accepted nothing (for copy_batch: having accepted the first half). 0 disarms. */
void hl_software_fail_submit(hl_device *dev, uint64_t nth, int device_code);
/* The n-th operation to execute on any stream from now fails with `device_code`: it and every later operation
 * of its stream is skipped, and the stream's error is sticky. 0 disarms. */
void hl_software_fail_execution(hl_device *dev, uint64_t nth, int device_code);
/* The n-th call from now of host_register or host_register_read (1 is the next) fails with `device_code` and
 * the status that goes with it (2: HL_E_NOMEM). 0 disarms. */
void hl_software_fail_register(hl_device *dev, uint64_t nth, int device_code);

/* single_step: executes one operation of a stream that can go on, chosen by the seeded generator among them
 * (the next choice if `choice` is -1, else the choice-th runnable stream in creation order,
 * the null stream first). Returns how many
 * streams could have gone on, 0 when none (nothing was executed). */
unsigned hl_software_step(hl_device *dev, int choice);

struct hl_software_counts {
    uint64_t submitted;             /* asynchronous operations */
    uint64_t executed;              /* of them, those that did their work: not the failed and the skipped */
    uint64_t violations;            /* accesses the checker refused */
    uint64_t allocations;           /* live device allocations */
    uint64_t registrations;         /* live host registrations */
    uint64_t registered_bytes;      /* in them */
    uint64_t registered_bytes_peak; /* most at once so far */
    uint64_t streams;               /* live, the null stream not counted */
    uint64_t events;                /* live */
    uint64_t imports;               /* live IPC imports */
};
void hl_software_counts(hl_device *dev, struct hl_software_counts *counts);

/* Copies between host memory and device memory at once, outside any stream, for a test to look at or set
 * device bytes. Fails a test's process (abort) when the range is not device memory. */
void hl_software_peek(hl_device *dev, void *host, hl_devptr src, size_t bytes);
void hl_software_poke(hl_device *dev, hl_devptr dst, const void *host, size_t bytes);

#endif
