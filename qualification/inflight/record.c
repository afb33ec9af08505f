#include "qualification/inflight/record.h"

#include <stdlib.h>

#include "qualification/restore/process.h"

static json_t *records;

void record_add(json_t *object)
{
    const char *path = getenv("HOSTLANE_INFLIGHT_JSON");
    if (!records)
        records = json_array();
    MUST(object != NULL && json_array_append_new(records, object) == 0);
    if (path)
        MUST(json_dump_file(records, path, JSON_INDENT(1)) == 0);
}

__attribute__((destructor)) static void forget(void)
{
    json_decref(records);
}

json_t *record_device(const hl_device *dev)
{
    return json_pack("{s:s, s:s, s:s, s:i, s:s}", "kind",
                     dev->info.kind == HL_DEVICE_CUDA ? "cuda" : "software", "name", dev->info.name, "pci_id",
                     dev->info.pci_id, "driver_version", dev->info.driver_version, "evidence",
                     dev->info.kind == HL_DEVICE_CUDA ? "measured" : "rehearsal: evidence for nothing");
}

static double ms(int64_t from, int64_t to)
{
    return (double)(to - from) / 1e6;
}

json_t *record_death(const struct marks_death *death)
{
    json_t *last = death->last_mark_ns ? json_real(ms(death->kill_ns, death->last_mark_ns)) : json_null();
    return json_pack("{s:b, s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:f, s:f, s:o}", "in_flight_at_the_kill",
                     marks_prove_flight(death), "marks_before_the_kill", (int)death->before,
                     "marks_after_the_kill", (int)death->after, "marks_at_the_reap", (int)death->reaped,
                     "marks_submitted", (int)death->submitted, "mark_seen_ns", (json_int_t)death->mark_ns,
                     "kill_called_ns", (json_int_t)death->kill_ns, "reaped_ns", (json_int_t)death->reaped_ns,
                     "kill_returned_ms", ms(death->kill_ns, death->killed_ns), "kill_to_reap_ms",
                     ms(death->kill_ns, death->reaped_ns), "kill_to_last_mark_before_the_reap_ms", last);
}
