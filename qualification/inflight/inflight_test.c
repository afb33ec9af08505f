/* F3 and F4 with copies proven to be in flight: a process is killed while a progress mark that the copy
 * stream has written is there and the next one, which it has accepted, is not (marks.h). The Manager is the
 * program hostlane-manager, the engine is the engine library on its own executor; each case by both routes.
 *
 * On the software device the stream stands at a gate between two copies instead: that rehearses these
 * programs and shows the protocol's side, but nothing about hardware that is copying. */
#include <stdlib.h>
#include <string.h>

#include "core/testing/cunit.h"
#include "qualification/inflight/copier.h"
#include "qualification/inflight/daemon.h"
#include "qualification/inflight/record.h"
#include "qualification/restore/manager_process.h"
#include "qualification/restore/tool.h"

const struct process_role process_roles[] = {DAEMON_ROLE, COPIER_ROLE};
const unsigned process_role_count = sizeof process_roles / sizeof process_roles[0];

/* The kill waits for this mark. */
enum { KILL_AT = 2 };

struct stage {
    struct marks *marks;
    struct copier_scale scale;
    struct process daemon, engine;
    const char *route;
    struct marks_death death;
};

/* Room for 24 blocks, of which a restore takes 14. */
static uint64_t arena_bytes(const struct stage *stage)
{
    return 24 * stage->scale.block_bytes;
}

/* An engine with a restore of blocks 0 … 13 under way. */
static void open_stage(struct stage *stage, const char *route)
{
    *stage = (struct stage){.route = route, .scale = copier_scale()};
    folder_enter();
    stage->marks = marks_create();
    daemon_start(&stage->daemon, arena_bytes(stage));
    copier_start(&stage->engine, "engine", route);
    copier_publish(&stage->engine, 0, stage->scale.blocks);
    copier_begin(&stage->engine, 0);
}

static void close_stage(struct stage *stage)
{
    daemon_await("sessions", 0);
    CU_ASSERT_EQUAL(daemon_number("operations"), 0);
    CU_ASSERT_EQUAL(daemon_number("reserved_bytes"), 0);
    CU_ASSERT_EQUAL(daemon_permits(), 0);
    daemon_check();
    daemon_end(&stage->daemon);
    marks_close(stage->marks);
    folder_leave();
}

static json_t *describe(const struct stage *stage, const char *name)
{
    const uint64_t bytes = stage->scale.blocks * stage->scale.block_bytes;
    return json_pack("{s:s, s:s, s:s, s:I, s:i, s:I, s:o}", "case", name, "route", stage->route, "device",
                     world_wants_cuda() ? "cuda" : "software, a rehearsal: evidence for nothing",
                     "restored_bytes", (json_int_t)bytes, "each_copy_is_submitted",
                     (int)stage->scale.plan.passes, "bytes_from_mark_to_mark",
                     (json_int_t)stage->scale.plan.mark_bytes, "death", record_death(&stage->death));
}

/* The engine drains what it has begun and says so only then; its bytes are exact. Then a Manager behind the
 * same address: a fresh engine restores through it, and the first one's pages and mapping are left alone. */
static void kill_manager(const char *route)
{
    struct stage stage;
    struct copier_outcome outcome;
    struct process fresh;
    open_stage(&stage, route);
    marks_kill(stage.marks, KILL_AT, stage.daemon.pid, &stage.death);
    daemon_forget(&stage.daemon);
    CU_ASSERT_TRUE(marks_prove_flight(&stage.death));
    atomic_store(&stage.marks->gate, 1);
    copier_finish(&stage.engine, &outcome);
    CU_ASSERT_EQUAL(outcome.status, HL_OK);
    CU_ASSERT_TRUE(outcome.exact);
    CU_ASSERT_TRUE(outcome.was_drained);
    CU_ASSERT_EQUAL(outcome.bytes, stage.scale.blocks * stage.scale.block_bytes);
    CU_ASSERT_EQUAL(outcome.progress, outcome.submitted); /* I9: not before the last copy */
    CU_ASSERT_EQUAL(outcome.submitted * stage.scale.plan.mark_bytes, outcome.bytes * stage.scale.plan.passes);
    json_t *seen = describe(&stage, "manager_killed_in_flight");
    json_t *engine = json_pack("{s:s, s:b, s:b, s:i, s:i, s:I}", "status", hl_status_name(outcome.status),
                               "exact", outcome.exact, "drained", outcome.was_drained, "marks_at_the_outcome",
                               (int)outcome.progress, "marks_submitted_in_all", (int)outcome.submitted,
                               "outcome_ns", (json_int_t)outcome.returned_ns);
    json_object_set_new(seen, "engine", engine);
    json_object_set_new(seen, "still_copying_after_the_reap",
                        json_boolean(stage.death.reaped < outcome.submitted));
    daemon_start(&stage.daemon, arena_bytes(&stage));
    copier_start(&fresh, "fresh", "auto");
    copier_publish(&fresh, 100, 8);
    copier_restore(&fresh, 100, 8, 3);
    const bool kept = copier_matches(&stage.engine);
    CU_ASSERT_TRUE(kept);
    json_object_set_new(seen, "fresh_client_restored_exactly", json_true());
    json_object_set_new(seen, "pages_kept_under_a_new_manager", json_boolean(kept));
    record_add(seen);
    copier_end(&fresh);
    copier_end(&stage.engine);
    close_stage(&stage);
}

/* What the Manager holds for the dead engine. */
static bool is_quarantined(const struct stage *stage)
{
    return daemon_number("quarantined") == 1 && daemon_number("unresolved") == 1 &&
           daemon_number("operations") == 1 && daemon_permits() == 1 &&
           daemon_number("reserved_bytes") == stage->scale.blocks * stage->scale.block_bytes;
}

/* The Manager keeps the sources and every credit, however much is published after it, until an operator says
 * otherwise; a fresh engine restores the very same blocks, exactly. */
static void kill_engine(const char *route)
{
    struct stage stage;
    struct process fresh;
    uint64_t operations[2][3];
    open_stage(&stage, route);
    marks_kill(stage.marks, KILL_AT, stage.engine.pid, &stage.death);
    daemon_forget(&stage.engine); /* its channel */
    CU_ASSERT_TRUE(marks_prove_flight(&stage.death));
    marks_clear(stage.marks);
    daemon_await("quarantined", 1);
    daemon_await("unresolved", 1);
    const bool at_first = is_quarantined(&stage);
    copier_start(&fresh, "fresh", route);
    for (unsigned i = 0; i < 4; i++) /* in all more than the arena holds */
        copier_publish(&fresh, 100 + 8 * i, 8);
    const uint64_t evicted = daemon_number("evicted_blocks");
    copier_restore(&fresh, 0, stage.scale.blocks, 1);
    copier_restore(&fresh, 124, 8, 3);
    const bool at_last = is_quarantined(&stage);
    CU_ASSERT_TRUE(at_first);
    CU_ASSERT_TRUE(at_last);
    CU_ASSERT_TRUE(evicted > 0);
    daemon_check();
    CU_ASSERT_EQUAL_FATAL(tool_quarantine(operations, 2), 1);
    CU_ASSERT_EQUAL(tool_release(operations[0], 0), HL_E_INVALID); /* not confirmed */
    CU_ASSERT_EQUAL(tool_release(operations[0], 1), HL_OK);
    CU_ASSERT_EQUAL(daemon_number("quarantined"), 0);
    CU_ASSERT_EQUAL(daemon_permits(), 0);
    CU_ASSERT_EQUAL(daemon_number("reserved_bytes"), 0);
    copier_restore(&fresh, 124, 8, 3);
    json_t *seen = describe(&stage, "engine_killed_in_flight");
    json_object_set_new(seen, "quarantined", json_boolean(at_first));
    json_object_set_new(seen, "quarantined_after_the_arena_was_filled_again", json_boolean(at_last));
    json_object_set_new(seen, "blocks_evicted_meanwhile", json_integer((json_int_t)evicted));
    json_object_set_new(seen, "fresh_client_restored_exactly", json_true());
    json_object_set_new(seen, "credits_home_after_the_operators_release", json_true());
    record_add(seen);
    copier_end(&fresh);
    close_stage(&stage);
}

static void a_manager_killed_while_copy_engines_read_leaves_an_exact_restore(void)
{
    kill_manager("direct");
}

static void a_manager_killed_while_a_kernel_reads_leaves_an_exact_restore(void)
{
    kill_manager("kernel");
}

static void an_engine_killed_while_copy_engines_read_is_quarantined(void)
{
    kill_engine("direct");
}

static void an_engine_killed_while_a_kernel_reads_is_quarantined(void)
{
    kill_engine("kernel");
}

HL_TESTS(inflight, HL_CASE(a_manager_killed_while_copy_engines_read_leaves_an_exact_restore),
         HL_CASE(a_manager_killed_while_a_kernel_reads_leaves_an_exact_restore),
         HL_CASE(an_engine_killed_while_copy_engines_read_is_quarantined),
         HL_CASE(an_engine_killed_while_a_kernel_reads_is_quarantined));
