/* A source that changes while it is imported publishes nothing, and neither does an import that is
 * interrupted. The tool's twin is parked after its first write, the change is made, the tool goes on.
 * $HL_WEIGHTS_TOOL is the twin. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/testing/cunit.h"
#include "core/weights/safetensors/safetensors.h"
#include "core/weights/store/store_testing.h"
#include "faults/testing.h"

enum { TENSOR_BYTES = 64 };

struct scene {
    struct hl_store_fixture fixture; /* its domain is the store that the tool creates */
    char source[320], file[384], identity[320], log[320];
    pid_t tool;
};

static void put_file(const char *path, const void *bytes, size_t size)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    CU_ASSERT_TRUE_FATAL(fd >= 0);
    CU_ASSERT_EQUAL_FATAL(write(fd, bytes, size), (ssize_t)size);
    close(fd);
}

static void put_source(const char *path)
{
    const uint64_t shape[] = {TENSOR_BYTES};
    const struct hl_safetensors_spec specs[] = {
        {.name = "a", .dtype = HL_SAFETENSORS_U8, .rank = 1, .shape = shape},
        {.name = "b", .dtype = HL_SAFETENSORS_U8, .rank = 1, .shape = shape}};
    struct hl_safetensors_layout layout;
    hl_error err = {0};
    HL_REQUIRE_OK(hl_safetensors_lay_out(specs, 2, NULL, 0, HL_SAFETENSORS_BY_NAME, &layout, &err), err);
    char *bytes = calloc(1, layout.file_bytes);
    CU_ASSERT_PTR_NOT_NULL_FATAL(bytes);
    memcpy(bytes, layout.header, layout.header_bytes);
    put_file(path, bytes, layout.file_bytes);
    free(bytes);
    hl_safetensors_layout_free(&layout);
}

static void scene_open(struct scene *scene)
{
    hl_fixture_open(&scene->fixture, HL_FIXTURE_DISK);
    snprintf(scene->source, sizeof scene->source, "%s/source", scene->fixture.base);
    snprintf(scene->file, sizeof scene->file, "%s/model.safetensors", scene->source);
    snprintf(scene->identity, sizeof scene->identity, "%s/identity.json", scene->fixture.base);
    snprintf(scene->log, sizeof scene->log, "%s/log", scene->fixture.base);
    CU_ASSERT_EQUAL_FATAL(mkdir(scene->source, 0755), 0);
    put_source(scene->file);
    hl_weight_identity *identity = hl_fixture_identity(2, 0);
    size_t bytes;
    const char *text = hl_weight_identity_json(identity, &bytes);
    put_file(scene->identity, text, bytes);
    hl_weight_identity_free(identity);
}

/* Imports; `change` happens in the middle. The exit status, or 128 and the signal's number. */
static int import(struct scene *scene, void (*change)(const struct scene *scene))
{
    const char *tool = getenv("HL_WEIGHTS_TOOL");
    CU_ASSERT_PTR_NOT_NULL_FATAL(tool);
    const char *const argv[] = {tool,
                                "weights",
                                "import",
                                scene->source,
                                "--identity",
                                scene->identity,
                                "--store",
                                scene->fixture.root,
                                "--storage-class",
                                scene->fixture.options.storage_class == HL_WEIGHT_TMPFS ? "tmpfs" : "disk",
                                NULL};
    hl_fault_board *board = hl_fault_board_create();
    const int log = open(scene->log, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    CU_ASSERT_TRUE_FATAL(log >= 0);
    const unsigned rule = hl_fault_arm(board, "weights_payload_write_after", 1, HL_FAULT_PARK, 0);
    scene->tool = hl_fault_spawn_logged(board, argv, NULL, log);
    CU_ASSERT_TRUE_FATAL(hl_fault_await_parked(board, rule, 1, HL_FAULT_PATIENCE_NS));
    change(scene);
    hl_fault_release(board, rule);
    int status = -1;
    CU_ASSERT_TRUE_FATAL(hl_fault_await_exit(scene->tool, HL_FAULT_PATIENCE_NS, &status));
    close(log);
    hl_fault_board_free(board);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static bool log_says(const struct scene *scene, const char *text)
{
    size_t bytes;
    struct hl_store_fixture base = scene->fixture;
    snprintf(base.root, sizeof base.root, "%s", scene->fixture.base);
    char *log = hl_fixture_read(&base, "log", &bytes);
    char *ended = strndup(log, bytes);
    const bool says = ended && strstr(ended, text);
    if (!says)
        fprintf(stderr, "the log does not say \"%s\":\n%s\n", text, ended ? ended : "");
    free(ended);
    free(log);
    return says;
}

static void expect_nothing_left(void (*change)(const struct scene *scene), int status, const char *text)
{
    struct scene scene;
    scene_open(&scene);
    CU_ASSERT_EQUAL(import(&scene, change), status);
    CU_ASSERT_TRUE(log_says(&scene, "producer_failed"));
    CU_ASSERT_TRUE(log_says(&scene, text));
    CU_ASSERT_EQUAL(hl_fixture_count(&scene.fixture, "artifacts", ""), 0);
    CU_ASSERT_EQUAL(hl_fixture_count(&scene.fixture, "tmp", ""), 0);
    CU_ASSERT_EQUAL(hl_fixture_count(&scene.fixture, "quarantine", ""), 0);
    hl_fixture_close(&scene.fixture);
}

static void expect_nothing_published(void (*change)(const struct scene *scene), const char *text)
{
    expect_nothing_left(change, 1, text);
}

/* --- changes --- */

static void nothing(const struct scene *scene)
{
    (void)scene;
}

static void grow(const struct scene *scene)
{
    const int fd = open(scene->file, O_WRONLY | O_APPEND | O_CLOEXEC);
    CU_ASSERT_EQUAL(write(fd, "x", 1), 1);
    close(fd);
}

static void touch(const struct scene *scene)
{
    const struct timespec times[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
    CU_ASSERT_EQUAL(utimensat(AT_FDCWD, scene->file, times, 0), 0);
}

/* The same bytes and times, and another file. */
static void replace(const struct scene *scene)
{
    char other[400];
    struct stat st;
    snprintf(other, sizeof other, "%s.new", scene->file);
    put_source(other);
    CU_ASSERT_EQUAL(stat(scene->file, &st), 0);
    const struct timespec times[2] = {st.st_atim, st.st_mtim};
    CU_ASSERT_EQUAL(utimensat(AT_FDCWD, other, times, 0), 0);
    CU_ASSERT_EQUAL(rename(other, scene->file), 0);
}

static void shrink(const struct scene *scene)
{
    struct stat st;
    CU_ASSERT_EQUAL(stat(scene->file, &st), 0);
    CU_ASSERT_EQUAL(truncate(scene->file, st.st_size - TENSOR_BYTES), 0);
}

static void remove_file(const struct scene *scene)
{
    CU_ASSERT_EQUAL(unlink(scene->file), 0);
}

static void an_unchanged_source_is_published(void)
{
    struct scene scene;
    scene_open(&scene);
    CU_ASSERT_EQUAL(import(&scene, nothing), 0);
    CU_ASSERT_EQUAL(hl_fixture_count(&scene.fixture, "artifacts", HL_GOLDEN_KEY), 1);
    hl_fixture_close(&scene.fixture);
}

static void a_source_that_grew_is_not(void)
{
    expect_nothing_published(grow, "model.safetensors changed");
}

static void a_source_with_another_time_is_not(void)
{
    expect_nothing_published(touch, "model.safetensors changed");
}

static void a_source_replaced_by_an_equal_file_is_not(void)
{
    expect_nothing_published(replace, "model.safetensors changed");
}

static void a_source_that_shrank_is_not(void)
{
    expect_nothing_published(shrink, "model.safetensors became shorter");
}

static void a_source_that_vanished_is_not(void)
{
    expect_nothing_published(remove_file, "model.safetensors vanished");
}

/* --- signals --- */

static void interrupt(const struct scene *scene)
{
    CU_ASSERT_EQUAL(kill(scene->tool, SIGINT), 0);
}

static void terminate(const struct scene *scene)
{
    CU_ASSERT_EQUAL(kill(scene->tool, SIGTERM), 0);
}

static void hang_up(const struct scene *scene)
{
    CU_ASSERT_EQUAL(kill(scene->tool, SIGHUP), 0);
}

static void an_interrupted_import_removes_what_it_copied_and_ends_by_the_signal(void)
{
    static const struct {
        int number;
        void (*send)(const struct scene *scene);
        const char *text;
    } ways[] = {{SIGINT, interrupt, "interrupted by signal 2"},
                {SIGTERM, terminate, "interrupted by signal 15"},
                {SIGHUP, hang_up, "interrupted by signal 1"}};
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        CU_ASSERT_PTR_NOT_EQUAL(signal(ways[i].number, SIG_DFL), SIG_ERR); /* the tool inherits it */
        expect_nothing_left(ways[i].send, 128 + ways[i].number, ways[i].text);
    }
}

static void a_signal_that_is_ignored_stays_so(void)
{
    struct scene scene;
    scene_open(&scene);
    void (*const before)(int) = signal(SIGHUP, SIG_IGN);
    CU_ASSERT_EQUAL(import(&scene, hang_up), 0);
    CU_ASSERT_PTR_NOT_EQUAL(signal(SIGHUP, before), SIG_ERR);
    CU_ASSERT_EQUAL(hl_fixture_count(&scene.fixture, "artifacts", HL_GOLDEN_KEY), 1);
    hl_fixture_close(&scene.fixture);
}

HL_TESTS(import_changed, HL_CASE(an_unchanged_source_is_published), HL_CASE(a_source_that_grew_is_not),
         HL_CASE(a_source_with_another_time_is_not), HL_CASE(a_source_replaced_by_an_equal_file_is_not),
         HL_CASE(a_source_that_shrank_is_not), HL_CASE(a_source_that_vanished_is_not),
         HL_CASE(an_interrupted_import_removes_what_it_copied_and_ends_by_the_signal),
         HL_CASE(a_signal_that_is_ignored_stays_so));
