/* The parts of the software device that its source files share: software.c (the device and its contexts),
 * software_memory.c (regions), software_registration.c, software_ipc.c, software_stream.c (queues, threads,
 * stepping), software_event.c, software_submit.c (checks at submission), software_execute.c (what runs on the
 * device's threads) and software_control.c (test controls).
 *
 * Locking. `lock` guards every field below it and in every object of the device; it is never held while bytes
 * move, so copies of two streams overlap. A region that is being read or written is pinned, and mem_free,
 * host_unregister and ipc_close wait until no pending task may use the region and no pin is left. */
#ifndef CORE_DEVICE_SOFTWARE_INTERNAL_H
#define CORE_DEVICE_SOFTWARE_INTERNAL_H

#include <pthread.h>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/device/software.h"
#include "faults/hook.h"

#define HL_SOFTWARE_STAGE "device.software"

/* What a CUDA driver answers in the same situation (CUresult). */
enum software_code {
    SOFTWARE_INVALID_VALUE = 1,
    SOFTWARE_OUT_OF_MEMORY = 2,
    SOFTWARE_INVALID_CONTEXT = 201,
    SOFTWARE_INVALID_HANDLE = 400,
    SOFTWARE_NOT_READY = 600,
    SOFTWARE_ILLEGAL_ADDRESS = 700,
    SOFTWARE_ALREADY_REGISTERED = 712,
    SOFTWARE_NOT_REGISTERED = 713,
    SOFTWARE_MISALIGNED_ADDRESS = 716,
    SOFTWARE_NOT_SUPPORTED = 801,
};

enum region_kind { REGION_DEVICE, REGION_IMPORT, REGION_HOST };

/* A range of the device's address space. Owned by the device's table, which is sorted by base. */
struct software_region {
    enum region_kind kind;
    uint64_t base;  /* the address that users know */
    uint64_t bytes; /* what may be accessed */
    size_t mapped;  /* bytes, rounded up to pages */
    unsigned char
        *view; /* where the device reads and writes: host memory itself, or the private view of the memfd */
    int fd;    /* the memfd, or -1 for host memory */
    uint64_t imported; /* REGION_IMPORT: the address that ipc_import returned */
    unsigned pins;     /* accesses under way */
    int count_failure; /* the code of a gather that failed before it added to a counter in here, or 0 */
    bool dying;        /* someone waits to remove it: a second free is refused */
};

/* One event_record: the event and the tasks that wait for it share it. */
struct software_record {
    unsigned references;
    bool done;
    int code;   /* the sticky error of its stream at that moment, or 0 */
    int64_t ns; /* when it was done */
};

struct hl_event_handle {
    struct hl_event_handle *next;
    unsigned flags;
    struct software_record *record; /* the latest, or NULL when never recorded */
};

enum task_kind {
    TASK_COPY, /* `pieces` */
    TASK_ROWS,
    TASK_FILL,
    TASK_GATHER,
    TASK_CHECKSUM,
    TASK_RECORD,
    TASK_WAIT_EVENT,
    TASK_WAIT_VALUE,
    TASK_WRITE_VALUE,
};

struct software_rows {
    uint64_t dst, src;
    size_t dst_pitch, src_pitch, width, rows;
};

struct software_task {
    struct software_task *next;
    uint64_t sequence; /* 1, 2, … in its stream */
    enum task_kind kind;
    enum hl_copy_kind copy_kind;
    union {
        struct software_rows rows;
        struct {
            uint64_t dst;
            uint64_t bytes;
            uint8_t value;
        } fill;
        struct hl_gather_launch gather; /* one layer; its counter, or 0, is `counters` */
        struct hl_checksum_launch checksum;
        struct software_record *record;
        struct {
            uint64_t addr;
            uint32_t value;
        } word;
    };
    size_t piece_count;
    struct hl_copy pieces[]; /* TASK_COPY */
};

struct hl_stream_handle {
    struct hl_stream_handle *next;
    hl_device *dev;
    pthread_t thread;
    bool threaded;       /* `thread` runs */
    pthread_cond_t wake; /* for its thread: the queue, a hold or something that it waits for has changed */
    struct software_task *head, *tail;
    bool running;                        /* a task has left the queue and has not completed */
    const struct software_task *current; /* that task */
    uint64_t submitted;                  /* the last sequence given out */
    uint64_t completed;                  /* the last sequence finished, failed or skipped */
    bool held;
    uint64_t hold_sequence; /* stands before the first task with this sequence or a later one */
    int error;              /* sticky */
    bool closing;
    int64_t free_at_ns; /* the throttled link is busy until then */
};

struct software_device {
    hl_device head;
    uint64_t id; /* of this open; what a thread's context stack holds */
    struct hl_software_options options;

    pthread_mutex_t lock;
    pthread_cond_t changed; /* for callers that wait: a task has completed, a pin was dropped */
    struct software_region **regions;
    size_t region_count, region_capacity;
    uint64_t used_bytes;
    struct hl_stream_handle
        null_stream; /* its thread starts with its first task; also the head of the list */
    struct hl_event_handle *events;
    struct hl_software_counts counts;
    uint64_t fail_submit, fail_execution, fail_register; /* countdowns, 0 when disarmed */
    int fail_submit_code, fail_execution_code, fail_register_code;
    hl_random random;
};

static inline struct software_device *software(hl_device *dev)
{
    return (struct software_device *)dev;
}

/* software.c. HL_E_STATE unless the device is the one that the calling thread entered last. */
hl_status hl_software_check_entered(hl_device *dev, const char *operation, hl_error *err);

/* software.c. The status that goes with a driver's code, as in the CUDA back end. */
hl_status hl_software_status(int code);

/* software_memory.c; lock held. The region that contains [addr, addr + bytes), or NULL. */
struct software_region *hl_software_find_region(struct software_device *dev, uint64_t addr, uint64_t bytes);
/* Adds a region and owns it from then on. HL_E_INVALID when it overlaps another; HL_E_NOMEM. */
hl_status hl_software_add_region(struct software_device *dev, struct software_region *region, hl_error *err);
/* Waits until nothing uses the region, then unmaps and frees it. */
void hl_software_remove_region(struct software_device *dev, struct software_region *region);
/* Unmaps and frees a region that is in no table. */
void hl_software_free_region(struct software_region *region);
/* Maps `fd` (owned by the region from then on, also on failure) twice: PROT_NONE for the user, and the
 * private view. */
hl_status hl_software_map_region(enum region_kind kind, int fd, uint64_t bytes,
                                 struct software_region **region, hl_error *err);

/* software_stream.c. */
void hl_software_init_stream(struct software_device *dev, struct hl_stream_handle *stream);
void hl_software_stop_stream(struct software_device *dev,
                             struct hl_stream_handle *stream); /* drops its queue */
/* Lock held. NULL when the handle names no live stream of the device. */
struct hl_stream_handle *hl_software_find_stream(struct software_device *dev, hl_stream stream);
/* Lock held. Waits until done(dev, arg); in single-step mode runs tasks meanwhile. */
void hl_software_await(struct software_device *dev,
                       bool (*done)(struct software_device *dev, const void *arg), const void *arg);
/* Lock held. Whether a task that is queued or running may use the region. */
bool hl_software_uses_region(struct software_device *dev, const struct software_region *region);
/* Lock held. Whether the stream runs a task or could run its next one. */
bool hl_software_can_go_on(struct software_device *dev, const struct hl_stream_handle *stream);
void hl_software_wake_all(
    struct software_device *dev); /* lock held: streams that wait for an event or a word look again */
/* Lock held. Executes one task as hl_software_step() says. */
unsigned hl_software_step_locked(struct software_device *dev, int choice);
/* Queues `task` and those that follow it by `next`, all or none (owned from then on, also on failure). For a
 * batch `accepted` gets how many copies were queued. */
hl_status hl_software_submit(hl_device *dev, hl_stream stream, struct software_task *task, size_t *accepted,
                             hl_error *err);
struct software_task *hl_software_new_task(enum task_kind kind, size_t pieces, hl_error *err);

/* software_event.c; lock held. */
void hl_software_drop_record(struct software_record *record);

/* software_execute.c. Called without the lock; returns 0 or the code that becomes the stream's sticky error.
 */
int hl_software_execute(struct software_device *dev, struct hl_stream_handle *stream,
                        const struct software_task *task);
/* Moves bytes between device memory and the host outside any stream; false when the range is not device
 * memory. */
bool hl_software_access_now(struct software_device *dev, uint64_t addr, void *host, size_t bytes, bool write);
/* Lock held. Reads the word; false when no region holds it. */
bool hl_software_read_word(struct software_device *dev, uint64_t addr, uint32_t *word);

/* The operations of the table, by file. */
hl_status hl_software_mem_alloc(hl_device *dev, size_t bytes, hl_devptr *ptr, hl_error *err);
hl_status hl_software_mem_free(hl_device *dev, hl_devptr ptr, hl_error *err);
hl_status hl_software_host_register(hl_device *dev, void *ptr, size_t bytes, hl_error *err);
hl_status hl_software_host_register_read(hl_device *dev, const void *ptr, size_t bytes, hl_error *err);
hl_status hl_software_host_unregister(hl_device *dev, void *ptr, hl_error *err);
hl_status hl_software_host_pointer(hl_device *dev, void *ptr, hl_devptr *mapped, hl_error *err);
hl_status hl_software_memory_info(hl_device *dev, uint64_t *free_bytes, uint64_t *total_bytes, hl_error *err);

hl_status hl_software_ipc_export(hl_device *dev, hl_devptr ptr, struct hl_ipc_export *out, hl_error *err);
hl_status hl_software_ipc_import(hl_device *dev, const struct hl_ipc_export *in, hl_devptr *ptr,
                                 hl_error *err);
hl_status hl_software_ipc_close(hl_device *dev, hl_devptr ptr, hl_error *err);

hl_status hl_software_stream_create(hl_device *dev, hl_stream *stream, hl_error *err);
hl_status hl_software_stream_destroy(hl_device *dev, hl_stream stream, hl_error *err);
hl_status hl_software_stream_query(hl_device *dev, hl_stream stream, hl_error *err);
hl_status hl_software_stream_synchronize(hl_device *dev, hl_stream stream, hl_error *err);

hl_status hl_software_event_create(hl_device *dev, unsigned flags, hl_event *event, hl_error *err);
hl_status hl_software_event_destroy(hl_device *dev, hl_event event, hl_error *err);
hl_status hl_software_event_record(hl_device *dev, hl_event event, hl_stream stream, hl_error *err);
hl_status hl_software_event_query(hl_device *dev, hl_event event, hl_error *err);
hl_status hl_software_event_synchronize(hl_device *dev, hl_event event, hl_error *err);
hl_status hl_software_event_elapsed(hl_device *dev, hl_event start, hl_event end, int64_t *ns, hl_error *err);
hl_status hl_software_stream_wait_event(hl_device *dev, hl_stream stream, hl_event event, hl_error *err);

hl_status hl_software_stream_wait_value(hl_device *dev, hl_stream stream, hl_devptr addr, uint32_t value,
                                        hl_error *err);
hl_status hl_software_stream_write_value(hl_device *dev, hl_stream stream, hl_devptr addr, uint32_t value,
                                         hl_error *err);
hl_status hl_software_fill(hl_device *dev, hl_devptr dst, uint8_t value, size_t bytes, hl_stream stream,
                           hl_error *err);
hl_status hl_software_copy(hl_device *dev, enum hl_copy_kind kind, uint64_t dst, uint64_t src, size_t bytes,
                           hl_stream stream, hl_error *err);
hl_status hl_software_copy_rows(hl_device *dev, enum hl_copy_kind kind, uint64_t dst, size_t dst_pitch,
                                uint64_t src, size_t src_pitch, size_t width, size_t rows, hl_stream stream,
                                hl_error *err);
hl_status hl_software_copy_batch(hl_device *dev, enum hl_copy_kind kind, const struct hl_copy *copies,
                                 size_t count, hl_stream stream, size_t *accepted, hl_error *err);
hl_status hl_software_gather(hl_device *dev, const struct hl_gather_launch *launch, hl_stream stream,
                             hl_error *err);
hl_status hl_software_checksum(hl_device *dev, const struct hl_checksum_launch *launch, hl_stream stream,
                               hl_error *err);

/* software_steps.c: the operations as steps of faults/points.h. */
#if defined(HL_FAULTS) && HL_FAULTS
const struct hl_device_ops *hl_software_steps(const struct hl_device_ops *ops);
#define HL_SOFTWARE_STEPS(ops) hl_software_steps(ops)
#else
#define HL_SOFTWARE_STEPS(ops) (ops)
#endif

#endif
