/* What the software device does to a process that misuses it, and sharing memory between processes. */
#include <errno.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/device/software_testing.h"

static const struct hl_software_options plain;

/* A sanitizer turns the signal into an exit status of its own. */
static void expect_death(const char *role)
{
    int in, out;
    int pid = role_start(role, &in, &out);
    int status = role_end(pid);
    close(in);
    close(out);
    CU_ASSERT_TRUE(WIFSIGNALED(status) ||
                   (WIFEXITED(status) && WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != ROLE_SURVIVED &&
                    WEXITSTATUS(status) != ROLE_UNSTAGED));
}

static void a_stray_host_access_to_device_memory_faults(void)
{
    expect_death("touch");
}

static void leaving_a_device_that_is_not_entered_aborts(void)
{
    expect_death("leave");
}

static void controls_used_wrongly_abort(void)
{
    expect_death("peek");
    expect_death("hold");
    expect_death("step");
}

struct exporter {
    int pid, in, out;
    struct hl_ipc_export export;
};

static void start_exporter(struct exporter *exporter)
{
    exporter->pid = role_start("export", &exporter->in, &exporter->out);
    CU_ASSERT_EQUAL_FATAL(read(exporter->out, &exporter->export, sizeof exporter->export),
                          (ssize_t)sizeof exporter->export);
}

static void free_exported(struct exporter *exporter)
{
    char answer = 0;
    CU_ASSERT_EQUAL(write(exporter->in, "f", 1), 1);
    CU_ASSERT_EQUAL(read(exporter->out, &answer, 1), 1);
    CU_ASSERT_EQUAL(answer, 'f');
}

static void end_exporter(struct exporter *exporter)
{
    close(exporter->in);
    CU_ASSERT_EQUAL(role_end(exporter->pid), 0);
    close(exporter->out);
}

static void expect_stale(struct bench *t, const struct hl_ipc_export *export)
{
    hl_devptr ptr = 7;
    HL_EXPECT_STATUS(t->ops->ipc_import(t->dev, export, &ptr, &t->err), HL_E_INVALID, t->err);
    CU_ASSERT_EQUAL(t->err.device_code, 400);
    CU_ASSERT_PTR_NOT_NULL(strstr(t->err.text, "stale"));
    CU_ASSERT_EQUAL(ptr, 7);
}

static void a_handle_is_stale_after_a_free_and_after_an_exit(void)
{
    struct bench t;
    struct exporter exporter;
    hl_devptr ptr;
    unsigned char seen[ROLE_BYTES - ROLE_OFFSET];
    bench_open(&t, &plain);
    start_exporter(&exporter);
    HL_REQUIRE_OK(t.ops->ipc_import(t.dev, &exporter.export, &ptr, &t.err), t.err);
    free_exported(&exporter);
    expect_stale(&t, &exporter.export);
    end_exporter(&exporter);
    expect_stale(&t, &exporter.export);
    /* What was imported before stays until it is closed. */
    hl_software_peek(t.dev, seen, ptr, sizeof seen);
    for (unsigned i = 0; i < sizeof seen; i++)
        CU_ASSERT_EQUAL(seen[i], 0x3c);
    HL_EXPECT_STATUS(t.ops->ipc_close(t.dev, ptr - 1, &t.err), HL_E_INVALID, t.err);
    HL_EXPECT_STATUS(t.ops->mem_free(t.dev, ptr, &t.err), HL_E_INVALID, t.err);
    HL_EXPECT_OK(t.ops->ipc_close(t.dev, ptr, &t.err), t.err);
    HL_EXPECT_STATUS(t.ops->ipc_close(t.dev, ptr, &t.err), HL_E_INVALID, t.err);
    bench_close(&t);
}

static void an_import_counts_as_device_memory_and_is_bounded(void)
{
    struct bench t;
    struct exporter exporter;
    struct hl_software_counts counts;
    struct hl_ipc_export again;
    hl_devptr ptr;
    bench_open(&t, &plain);
    start_exporter(&exporter);
    HL_REQUIRE_OK(t.ops->ipc_import(t.dev, &exporter.export, &ptr, &t.err), t.err);
    hl_software_counts(t.dev, &counts);
    CU_ASSERT_EQUAL(counts.imports, 1);
    const uint64_t left = ROLE_BYTES - ROLE_OFFSET;
    HL_EXPECT_OK(t.ops->copy(t.dev, HL_COPY_D2D, t.memory, ptr, left, t.a, &t.err), t.err);
    HL_EXPECT_STATUS(t.ops->copy(t.dev, HL_COPY_D2D, t.memory, ptr, left + 1, t.a, &t.err), HL_E_INVALID,
                     t.err);
    HL_EXPECT_STATUS(t.ops->ipc_export(t.dev, ptr, &again, &t.err), HL_E_INVALID, t.err); /* not its own */
    HL_EXPECT_OK(t.ops->stream_synchronize(t.dev, t.a, &t.err), t.err);
    HL_EXPECT_OK(t.ops->ipc_close(t.dev, ptr, &t.err), t.err);
    end_exporter(&exporter);
    bench_close(&t);
}

static void a_changed_handle_is_refused(void)
{
    struct bench t;
    struct exporter exporter;
    hl_devptr ptr = 7;
    bench_open(&t, &plain);
    start_exporter(&exporter);
    for (unsigned i = 0; i < HL_IPC_HANDLE_BYTES; i++) {
        struct hl_ipc_export changed = exporter.export;
        changed.handle[i] ^= 0x41;
        hl_status status = t.ops->ipc_import(t.dev, &changed, &ptr, &t.err);
        if (status != HL_E_INVALID && status != HL_E_PERMISSION)
            fprintf(stderr, "byte %u changed: %s\n", i, hl_status_name(status));
        CU_ASSERT_TRUE(status == HL_E_INVALID || status == HL_E_PERMISSION);
    }
    struct hl_ipc_export changed = exporter.export;
    changed.allocation_bytes++;
    HL_EXPECT_STATUS(t.ops->ipc_import(t.dev, &changed, &ptr, &t.err), HL_E_INVALID, t.err);
    changed = exporter.export;
    changed.offset = ROLE_BYTES;
    HL_EXPECT_STATUS(t.ops->ipc_import(t.dev, &changed, &ptr, &t.err), HL_E_RANGE, t.err);
    CU_ASSERT_EQUAL(ptr, 7);
    end_exporter(&exporter);
    bench_close(&t);
}

static void running_out_of_descriptors_is_a_system_error(void)
{
    struct bench t;
    struct exporter exporter;
    struct rlimit limit, none;
    struct hl_software_counts counts;
    hl_devptr ptr = 7;
    bench_open(&t, &plain);
    start_exporter(&exporter);
    CU_ASSERT_EQUAL_FATAL(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = limit;
    none.rlim_cur = 0;
    CU_ASSERT_EQUAL_FATAL(setrlimit(RLIMIT_NOFILE, &none), 0);
    HL_EXPECT_STATUS(t.ops->mem_alloc(t.dev, 4096, &ptr, &t.err), HL_E_SYSTEM, t.err);
    CU_ASSERT_EQUAL(t.err.sys_errno, EMFILE);
    HL_EXPECT_STATUS(t.ops->ipc_import(t.dev, &exporter.export, &ptr, &t.err), HL_E_SYSTEM, t.err);
    CU_ASSERT_EQUAL(t.err.sys_errno, EMFILE);
    CU_ASSERT_EQUAL_FATAL(setrlimit(RLIMIT_NOFILE, &limit), 0);
    CU_ASSERT_EQUAL(ptr, 7);
    hl_software_counts(t.dev, &counts);
    CU_ASSERT_EQUAL(counts.allocations, 1);
    CU_ASSERT_EQUAL(counts.imports, 0);
    end_exporter(&exporter);
    bench_close(&t);
}

static void a_process_cannot_import_its_own_export(void)
{
    struct bench t;
    struct hl_ipc_export export;
    hl_devptr ptr = 7;
    bench_open(&t, &plain);
    HL_REQUIRE_OK(t.ops->ipc_export(t.dev, t.memory + 5, &export, &t.err), t.err);
    CU_ASSERT_EQUAL(export.offset, 5);
    CU_ASSERT_EQUAL(export.allocation_bytes, BENCH_BYTES);
    HL_EXPECT_STATUS(t.ops->ipc_import(t.dev, &export, &ptr, &t.err), HL_E_INVALID, t.err);
    CU_ASSERT_EQUAL(t.err.device_code, 201);
    HL_EXPECT_STATUS(t.ops->ipc_export(t.dev, t.memory + BENCH_BYTES, &export, &t.err), HL_E_INVALID, t.err);
    HL_EXPECT_STATUS(t.ops->ipc_export(t.dev, (uintptr_t)t.host, &export, &t.err), HL_E_INVALID, t.err);
    CU_ASSERT_EQUAL(export.offset, 5);
    bench_close(&t);
}

HL_TESTS(software_process, HL_CASE(a_stray_host_access_to_device_memory_faults),
         HL_CASE(leaving_a_device_that_is_not_entered_aborts), HL_CASE(controls_used_wrongly_abort),
         HL_CASE(a_handle_is_stale_after_a_free_and_after_an_exit),
         HL_CASE(an_import_counts_as_device_memory_and_is_bounded), HL_CASE(a_changed_handle_is_refused),
         HL_CASE(running_out_of_descriptors_is_a_system_error),
         HL_CASE(a_process_cannot_import_its_own_export));
