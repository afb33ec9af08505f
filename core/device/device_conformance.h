/* One suite over struct hl_device_ops for every device. HOSTLANE_TEST_DEVICE names it: "software" (the
 * default) or "cuda", which fails when there is none. It uses nothing but device.h: a stream is held with
 * stream_wait_value on a word of registered host memory. */
#ifndef CORE_DEVICE_DEVICE_CONFORMANCE_H
#define CORE_DEVICE_DEVICE_CONFORMANCE_H

#include <stdio.h>
#include <string.h>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/device/device.h"
#include "core/testing/cunit.h"

/* X(case) in the order of the run, by source file. */
#define HL_CONFORMANCE_CASES(X)                                                                              \
    X(a_context_is_entered_nested_and_restored)                                                              \
    X(a_thread_is_outside_until_it_enters)                                                                   \
    X(operations_of_a_stream_run_in_order)                                                                   \
    X(the_null_stream_runs_work)                                                                             \
    X(query_is_pending_until_the_work_is_done)                                                               \
    X(a_wait_binds_to_the_record_at_its_call)                                                                \
    X(an_event_never_recorded_is_complete)                                                                   \
    X(recording_again_makes_an_event_pending)                                                                \
    X(a_destroyed_event_still_releases_its_waiters)                                                          \
    X(elapsed_time_has_a_sign)                                                                               \
    X(elapsed_time_needs_timed_complete_events)                                                              \
    X(destroying_a_stream_finishes_its_work)                                                                 \
    X(wait_value_compares_cyclically)                                                                        \
    X(write_value_releases_another_stream)                                                                   \
    X(one_stream_takes_work_from_many_threads)                                                               \
    X(memory_info_follows_allocations)                                                                       \
    X(an_absurd_allocation_fails_with_its_code)                                                              \
    X(a_second_free_is_refused)                                                                              \
    X(freeing_memory_waits_for_its_copies)                                                                   \
    X(a_host_pointer_may_lie_inside_a_registration)                                                          \
    X(unregistered_memory_has_no_device_pointer)                                                             \
    X(memory_that_is_only_read_is_registered_as_such_or_not_at_all)                                          \
    X(a_second_registration_is_refused)                                                                      \
    X(another_process_uses_an_exported_address)                                                              \
    X(only_device_memory_is_exported)                                                                        \
    X(copies_of_all_sizes_and_alignments_arrive)                                                             \
    X(strided_copies_touch_only_their_rows)                                                                  \
    X(batches_of_none_one_and_many_arrive)                                                                   \
    X(sources_are_read_when_the_copy_runs)                                                                   \
    X(fill_writes_exactly_its_range)                                                                         \
    X(a_gather_with_loads_takes_any_alignment)                                                               \
    X(a_gather_in_bulk_takes_large_pieces)                                                                   \
    X(a_launch_counts_its_layers_when_they_have_arrived)                                                     \
    X(descriptors_are_read_when_the_gather_runs)                                                             \
    X(an_empty_gather_does_nothing)                                                                          \
    X(the_device_computes_the_page_checksum)

#define HL_CONFORMANCE_DECLARE(name) void name(void);
HL_CONFORMANCE_CASES(HL_CONFORMANCE_DECLARE)
#undef HL_CONFORMANCE_DECLARE

#define AREA_BYTES ((size_t)4 << 20)
#define WORDS 16

/* What a case works with: the device, entered; registered host memory in two areas and some words; device
 * memory in two areas; two streams. */
struct conformance {
    hl_device *dev;
    const struct hl_device_ops *ops;
    unsigned char *source; /* AREA_BYTES, random */
    unsigned char *result; /* AREA_BYTES, 0xee */
    uint32_t *words;       /* WORDS, 0 */
    hl_devptr source_mapped, result_mapped, words_mapped;
    hl_devptr memory; /* AREA_BYTES, 0xdd */
    hl_devptr other;  /* AREA_BYTES */
    hl_stream stream, second;
    hl_error err;
};

void conformance_open(struct conformance *c);
void conformance_close(struct conformance *c);

/* The device of the run, not entered: one for all cases, as a CUDA context takes long to make. NULL, with the
 * reason, when there is none; the other ends the case instead. */
hl_device *conformance_find_device(hl_error *err);
hl_device *conformance_device(void);

/* Holds `stream` until the host stores a value of at least `value` in word `index`. */
void conformance_hold(struct conformance *c, hl_stream stream, unsigned index, uint32_t value);
void conformance_release(struct conformance *c, unsigned index, uint32_t value);

void conformance_sync(struct conformance *c, hl_stream stream);

/* Copies [src, src + bytes) of device memory into `result` and waits. */
void conformance_read(struct conformance *c, hl_devptr src, size_t bytes);

/* Whether all `bytes` bytes at `at` are `value`. */
bool all_bytes_are(const unsigned char *at, unsigned char value, size_t bytes);

#endif
