#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/testing/cunit.h"
#include "core/weights/storage/scratch.h"
#include "core/weights/storage/storage.h"

#define UUID "0123456789abcdef0123456789abcdef"

static const char *const of_the_form[] = {".it.json." UUID ".tmp",
                                          ".it.json.ffffffffffffffffffffffffffffffff.tmp"};
static const char *const of_another[] = {
    "it.json",
    "it.json." UUID ".tmp",
    ".it.json." UUID,
    ".it.json." UUID ".tmp.",
    ".it.json." UUID ".tm",
    ".it.json." UUID "0.tmp",
    ".it.json.0123456789abcdef0123456789abcde.tmp",
    ".it.json.0123456789ABCDEF0123456789abcdef.tmp",
    ".it.json..tmp",
    ".it.json",
    ".it.jsonx" UUID ".tmp",
    ".it." UUID ".tmp",
    ".other.json." UUID ".tmp",
    UUID ".tmp",
};
enum { FORMS = sizeof of_the_form / sizeof *of_the_form, OTHERS = sizeof of_another / sizeof *of_another };

static void only_names_of_exactly_the_form_are_removed(void)
{
    hl_error err = {0};
    int folder = scratch_open(), before = scratch_next_fd();
    for (size_t i = 0; i < FORMS; i++)
        scratch_write(folder, of_the_form[i], "{", i ? 0600 : 0444);
    for (size_t i = 0; i < OTHERS; i++)
        scratch_write(folder, of_another[i], "kept", 0444);
    HL_EXPECT_OK(hl_storage_sweep_unfinished(folder, "it.json", &err), err);
    for (size_t i = 0; i < FORMS; i++)
        CU_ASSERT_FALSE(scratch_exists(folder, of_the_form[i]));
    for (size_t i = 0; i < OTHERS; i++)
        CU_ASSERT_TRUE(scratch_holds(folder, of_another[i], "kept"));
    HL_EXPECT_OK(hl_storage_sweep_unfinished(folder, "it.json", &err), err);
    CU_ASSERT_EQUAL(scratch_entries(folder), OTHERS);
    CU_ASSERT_EQUAL(scratch_next_fd(), before);
    scratch_close(folder);
}

static void what_is_no_regular_file_stays(void)
{
    hl_error err = {0};
    int folder = scratch_open();
    CU_ASSERT_EQUAL_FATAL(mkdirat(folder, of_the_form[0], 0755), 0);
    CU_ASSERT_EQUAL_FATAL(symlinkat("elsewhere", folder, of_the_form[1]), 0);
    CU_ASSERT_EQUAL_FATAL(mkfifoat(folder, ".it.json.00000000000000000000000000000000.tmp", 0600), 0);
    HL_EXPECT_OK(hl_storage_sweep_unfinished(folder, "it.json", &err), err);
    CU_ASSERT_EQUAL(scratch_entries(folder), 3);
    scratch_close(folder);
}

/* The steps of a replacement are met by steps_test; here is the file that a real one dies over. */
static void dies_over_a_document(int folder)
{
    hl_error err;
    const struct rlimit none = {0, 0};
    /* The kernel kills who writes beyond the limit: with the temporary file open, before a byte is in it. */
    SCRATCH_CHECK(setrlimit(RLIMIT_CORE, &none) == 0 && setrlimit(RLIMIT_FSIZE, &none) == 0);
    (void)hl_storage_replace_document(folder, "it.json", "text", 4, &err);
}

static void what_a_dead_maker_left_is_removed(void)
{
    hl_error err = {0};
    int status = 0, folder = scratch_open();
    const pid_t child = fork();
    if (child == 0) {
        dies_over_a_document(folder);
        _exit(0);
    }
    CU_ASSERT_EQUAL_FATAL(waitpid(child, &status, 0), child);
    CU_ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ);
    CU_ASSERT_EQUAL(scratch_entries(folder), 1);
    HL_EXPECT_OK(hl_storage_sweep_unfinished(folder, "it.json", &err), err);
    CU_ASSERT_EQUAL(scratch_entries(folder), 0);
    scratch_close(folder);
}

static void refused_to_look(int folder)
{
    hl_error err = {0};
    /* Opening the listing looks at the folder by the same call, with other flags. */
    scratch_refuse_argument(SYS_newfstatat, 3, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, EIO);
    SCRATCH_CHECK(hl_storage_sweep_unfinished(folder, "it.json", &err) == HL_E_SYSTEM);
    SCRATCH_CHECK(err.sys_errno == EIO && strstr(err.text, of_the_form[0]));
}

static void refused_to_remove(int folder)
{
    hl_error err = {0};
    scratch_refuse(SYS_unlinkat, EIO);
    SCRATCH_CHECK(hl_storage_sweep_unfinished(folder, "it.json", &err) == HL_E_SYSTEM);
    SCRATCH_CHECK(err.sys_errno == EIO && strstr(err.text, of_the_form[0]));
}

static void refused_to_list(int folder)
{
    hl_error err = {0};
    scratch_refuse(SYS_getdents64, EIO);
    SCRATCH_CHECK(hl_storage_sweep_unfinished(folder, "it.json", &err) == HL_E_SYSTEM);
    SCRATCH_CHECK(err.sys_errno == EIO);
}

static void refused_to_open(int folder)
{
    hl_error err = {0};
    scratch_refuse(SYS_openat, EMFILE);
    SCRATCH_CHECK(hl_storage_sweep_unfinished(folder, "it.json", &err) == HL_E_SYSTEM);
    SCRATCH_CHECK(err.sys_errno == EMFILE);
}

static void each_refused_system_call_comes_out_with_its_errno(void)
{
    static void (*const refusals[])(int) = {refused_to_look, refused_to_remove, refused_to_list,
                                            refused_to_open};
    int folder = scratch_open();
    scratch_write(folder, of_the_form[0], "{", 0600);
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++)
        scratch_in_child(refusals[i], folder);
    CU_ASSERT_TRUE(scratch_exists(folder, of_the_form[0]));
    scratch_close(folder);
}

HL_TESTS(storage_unfinished, HL_CASE(only_names_of_exactly_the_form_are_removed),
         HL_CASE(what_is_no_regular_file_stays), HL_CASE(what_a_dead_maker_left_is_removed),
         HL_CASE(each_refused_system_call_comes_out_with_its_errno));
