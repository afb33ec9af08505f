/* What a Manager may be asked to be: the library's options, the daemon's flags and files, and refusals to
 * start. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "manager/client_testing.h"
#include "manager/options.h"
#include "manager/settings.h"

/* --- the library's options --- */

static hl_manager_options valid(void)
{
    hl_manager_options options;
    hl_manager_options_init(&options);
    options.socket_path = "m/s";
    options.arena_bytes = HL_MIB;
    options.index_blocks = 64;
    options.software = true;
    return options;
}

static void expect_refused(const hl_manager_options *options, hl_status status, const char *text)
{
    hl_manager *manager = (hl_manager *)&status;
    hl_error err = {0};
    HL_EXPECT_STATUS(hl_manager_start(options, &manager, &err), status, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, text));
    if (!strstr(err.text, text))
        fprintf(stderr, "\"%s\" is not in: %s\n", text, err.text);
    CU_ASSERT_PTR_EQUAL(manager, (hl_manager *)&status);
}

#define REFUSE(field, value, status, text)                                                                   \
    do {                                                                                                     \
        hl_manager_options wrong_ = valid();                                                                 \
        wrong_.field = (value);                                                                              \
        expect_refused(&wrong_, (status), (text));                                                           \
    } while (0)

static void an_option_that_cannot_be_is_named(void)
{
    expect_refused(NULL, HL_E_INVALID, "options is NULL");
    REFUSE(size, 0, HL_E_INVALID, "size is 0");
    REFUSE(size, sizeof(hl_manager_options) + 8, HL_E_INVALID, "size is");
    REFUSE(socket_path, NULL, HL_E_INVALID, "socket_path");
    REFUSE(socket_path, "", HL_E_INVALID, "socket_path");
    REFUSE(arena_bytes, 0, HL_E_INVALID, "arena_bytes is 0");
    REFUSE(arena_bytes, HL_ARENA_MAX_BYTES + 1, HL_E_LIMIT, "arena_bytes is");
    REFUSE(arena_count, 0, HL_E_INVALID, "arena_count is 0");
    REFUSE(arena_count, HL_ARENA_IMPORTS + 1, HL_E_LIMIT, "arena_count is 65");
    REFUSE(page_size, 3, HL_E_INVALID, "page_size is 3");
    REFUSE(page_size, -1, HL_E_INVALID, "page_size is -1");
    REFUSE(numa_node, -3, HL_E_INVALID, "numa_node is -3");
    REFUSE(numa_node, 1000, HL_E_INVALID, "numa_node is 1000");
    REFUSE(touch_threads, HL_ARENA_TOUCH_THREADS + 1, HL_E_LIMIT, "touch_threads is 65");
    REFUSE(index_blocks, 0, HL_E_INVALID, "index_blocks is 0");
    REFUSE(index_blocks, HL_INDEX_BLOCKS + 1, HL_E_LIMIT, "index_blocks is");
    REFUSE(lease_ttl_ms, 0, HL_E_INVALID, "lease_ttl_ms is 0");
    REFUSE(spin_us, HL_MANAGER_SPIN_US + 1, HL_E_LIMIT, "spin_us is 10001");
}

static void the_options_of_an_older_caller_get_defaults(void)
{
    hl_manager_options given = valid(), read;
    hl_error err;
    given.size = offsetof(hl_manager_options, lease_ttl_ms);
    given.lease_ttl_ms = 0; /* beyond what the caller knows: not looked at */
    given.spin_us = UINT32_MAX;
    HL_REQUIRE_OK(manager_options_read(&given, &read, &err), err);
    CU_ASSERT_EQUAL(read.size, sizeof read);
    CU_ASSERT_EQUAL(read.arena_bytes, HL_MIB);
    CU_ASSERT_EQUAL(read.lease_ttl_ms, HL_LEASE_TTL_MS);
    CU_ASSERT_EQUAL(read.spin_us, 20);
    CU_ASSERT_FALSE(read.software);
}

/* --- starting --- */

static void a_second_manager_is_refused_before_it_pins_anything(void)
{
    static struct stand stand;
    stand_open(&stand, NULL);
    /* More than the machine has: if it came to that, the refusal would be another. */
    REFUSE(arena_bytes, HL_ARENA_MAX_BYTES, HL_E_BUSY, "listening");
    struct client client;
    client_open(&client, HL_PEER_ENGINE);
    client_bye(&client);
    stand_close(&stand);
}

static void a_manager_that_cannot_start_leaves_nothing(void)
{
    char folder[PATH_MAX];
    stand_enter_folder(folder, sizeof folder);
    REFUSE(arena_bytes, HL_ARENA_MAX_BYTES, HL_E_NOMEM, "available");
    CU_ASSERT_NOT_EQUAL(access("m/s", F_OK), 0);
    /* Nothing is in the way of a start that can be. */
    hl_manager_options options = valid();
    hl_manager *manager;
    hl_error err;
    HL_REQUIRE_OK(hl_manager_start(&options, &manager, &err), err);
    CU_ASSERT_EQUAL(access("m/s", F_OK), 0);
    hl_manager_stop(manager);
    CU_ASSERT_NOT_EQUAL(access("m/s", F_OK), 0);
    unlink("m/s.lock");
    rmdir("m");
}

static void huge_pages_that_are_not_there_are_named(void)
{
    char folder[PATH_MAX];
    hl_manager_options options = valid();
    stand_enter_folder(folder, sizeof folder);
    options.page_size = 2;
    options.arena_bytes = HL_ARENA_MAX_BYTES; /* no machine has reserved 16384 pages of 1 GiB */
    options.numa_node = -2;
    expect_refused(&options, HL_E_NOMEM, "huge pages");
    unlink("m/s.lock");
    rmdir("m");
}

static void a_folder_that_others_can_enter_is_refused(void)
{
    char folder[PATH_MAX];
    stand_enter_folder(folder, sizeof folder);
    CU_ASSERT_EQUAL_FATAL(mkdir("open", 0700) | chmod("open", 0755), 0);
    REFUSE(socket_path, "open/s", HL_E_PERMISSION, "0755");
    rmdir("open");
}

/* --- the host --- */

static void write_limits(const char *content)
{
    FILE *file = fopen("proc/self/limits", "w");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    fputs(content, file);
    fclose(file);
}

static void the_memlock_limit_is_read_and_compared(void)
{
    char folder[PATH_MAX];
    hl_error err;
    uint64_t limit = 7;
    bool is_short = true;
    stand_enter_folder(folder, sizeof folder);
    HL_EXPECT_STATUS(manager_options_check_host(".", 1, &limit, &is_short, &err), HL_E_SYSTEM, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "/proc/self/limits"));
    CU_ASSERT_EQUAL_FATAL(mkdir("proc", 0700) | mkdir("proc/self", 0700), 0);
    write_limits("Max open files   1024   1024   files\n");
    HL_EXPECT_STATUS(manager_options_check_host(".", 1, &limit, &is_short, &err), HL_E_SYSTEM, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "Max locked memory"));
    write_limits("Max locked memory         some   some   bytes\n");
    HL_EXPECT_STATUS(manager_options_check_host(".", 1, &limit, &is_short, &err), HL_E_SYSTEM, err);
    CU_ASSERT_EQUAL(limit, 7);
    write_limits("Max open files   1 1 files\nMax locked memory         8388608   8388608   bytes\n");
    HL_EXPECT_OK(manager_options_check_host(".", 8388608, &limit, &is_short, &err), err);
    CU_ASSERT_EQUAL(limit, 8388608);
    CU_ASSERT_FALSE(is_short);
    HL_EXPECT_OK(manager_options_check_host(".", 8388609, &limit, &is_short, &err), err);
    CU_ASSERT_TRUE(is_short);
    write_limits("Max locked memory         unlimited   unlimited   bytes\n");
    HL_EXPECT_OK(manager_options_check_host(".", UINT64_MAX, &limit, &is_short, &err), err);
    CU_ASSERT_FALSE(is_short);
    HL_EXPECT_OK(manager_options_check_host("", 1, &limit, &is_short, &err), err); /* the real one */
}

/* --- the daemon's settings --- */

static hl_status read_settings(struct manager_settings *settings, hl_error *err, int argc, const char **argv)
{
    manager_settings_init(settings);
    *err = (hl_error){0};
    return manager_settings_read(settings, argc, (char *const *)(uintptr_t)argv, err);
}
#define READ(settings, err, ...)                                                                             \
    read_settings((settings), (err), sizeof((const char *[]){"manager", __VA_ARGS__}) / sizeof(char *),      \
                  (const char *[]){"manager", __VA_ARGS__})

static void flags_set_every_option(void)
{
    struct manager_settings settings;
    hl_error err;
    HL_REQUIRE_OK(READ(&settings, &err, "--socket", "/run/x/s", "--arena-bytes=3G", "--arena-count", "2",
                       "--page-size", "2M", "--numa-node", "any", "--touch-threads", "4", "--index-blocks",
                       "1000", "--lease-ttl-ms", "500", "--session-bytes", "512K", "--spin-us", "0",
                       "--software", "--log-level", "debug"),
                  err);
    CU_ASSERT_STRING_EQUAL(settings.options.socket_path, "/run/x/s");
    CU_ASSERT_EQUAL(settings.options.arena_bytes, 3 * HL_GIB);
    CU_ASSERT_EQUAL(settings.options.arena_count, 2);
    CU_ASSERT_EQUAL(settings.options.page_size, 1);
    CU_ASSERT_EQUAL(settings.options.numa_node, -2);
    CU_ASSERT_EQUAL(settings.options.touch_threads, 4);
    CU_ASSERT_EQUAL(settings.options.index_blocks, 1000);
    CU_ASSERT_EQUAL(settings.options.lease_ttl_ms, 500);
    CU_ASSERT_EQUAL(settings.options.session_bytes, 512 * HL_KIB);
    CU_ASSERT_EQUAL(settings.options.spin_us, 0);
    CU_ASSERT_TRUE(settings.options.software);
    CU_ASSERT_EQUAL(settings.log_level, HL_MANAGER_DEBUG);
    CU_ASSERT_FALSE(settings.help || settings.print_options);
    HL_REQUIRE_OK(READ(&settings, &err, "--numa-node", "3", "--software", "false", "--help"), err);
    CU_ASSERT_EQUAL(settings.options.numa_node, 3);
    CU_ASSERT_FALSE(settings.options.software);
    CU_ASSERT_TRUE(settings.help);
}

static void a_flag_that_cannot_be_is_named(void)
{
    static const struct {
        const char *flag, *value, *text;
    } wrong[] = {
        {"--arena-bytes", "-1", "--arena-bytes is \"-1\""},
        {"--arena-bytes", "1X", "K, M, G or T"},
        {"--arena-bytes", "1GB", "K, M, G or T"},
        {"--arena-bytes", "99999999999T", "--arena-bytes"},
        {"--arena-count", "4294967296", "32 bits"},
        {"--arena-count", "", "--arena-count"},
        {"--page-size", "4K", "regular, 2M or 1G"},
        {"--numa-node", "near", "device"},
        {"--software=maybe", "--help", "true or false"},
        {"--log-level", "loud", "debug, info"},
        {"--socket", "", "PATH"},
        {"--colour", "red", "no flag \"--colour\""},
        {"arena", "x", "is no flag"},
        {"--help=1", "--help", "takes no value"},
        {"--", "x", "is no flag"},
    };
    struct manager_settings settings;
    hl_error err;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        HL_EXPECT_STATUS(READ(&settings, &err, wrong[i].flag, wrong[i].value), HL_E_INVALID, err);
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, wrong[i].text));
    }
    HL_EXPECT_STATUS(READ(&settings, &err, "--arena-count"), HL_E_INVALID, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "needs a value"));
}

static void write_file(const char *path, const char *content, size_t size)
{
    FILE *file = fopen(path, "w");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    CU_ASSERT_EQUAL(fwrite(content, 1, size, file), size);
    fclose(file);
}

static void a_file_is_read_and_flags_win_wherever_they_stand(void)
{
    static const char content[] =
        "# a Manager\n\n  arena-count = 3 \nspin-us=7\nsoftware = true\nlog-level = error";
    struct manager_settings settings;
    char folder[PATH_MAX];
    hl_error err;
    stand_enter_folder(folder, sizeof folder);
    write_file("conf", content, sizeof content - 1);
    HL_REQUIRE_OK(READ(&settings, &err, "--spin-us", "9", "--config", "conf"), err);
    CU_ASSERT_EQUAL(settings.options.arena_count, 3);
    CU_ASSERT_EQUAL(settings.options.spin_us, 9);
    CU_ASSERT_TRUE(settings.options.software);
    CU_ASSERT_EQUAL(settings.log_level, HL_MANAGER_ERROR);
    unlink("conf");
}

static void a_line_that_cannot_be_is_named(void)
{
    static const struct {
        const char *content, *text;
    } wrong[] = {
        {"spin-us = 1\nspin-us\n", "line 2"},
        {"\n\ncolour = red\n", "line 3: there is no setting \"colour\""},
        {"arena-count = many\n", "arena-count is \"many\", expected"},
        {"config = other\n", "no setting"},
    };
    struct manager_settings settings;
    char folder[PATH_MAX], big[MANAGER_SETTINGS_BYTES + 1];
    hl_error err;
    stand_enter_folder(folder, sizeof folder);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        write_file("conf", wrong[i].content, strlen(wrong[i].content));
        HL_EXPECT_STATUS(READ(&settings, &err, "--config", "conf"), HL_E_INVALID, err);
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, wrong[i].text));
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "conf"));
    }
    write_file("conf", "spin-us = 1\0", 12);
    HL_EXPECT_STATUS(READ(&settings, &err, "--config", "conf"), HL_E_INVALID, err);
    memset(big, '\n', sizeof big);
    write_file("conf", big, sizeof big);
    HL_EXPECT_STATUS(READ(&settings, &err, "--config", "conf"), HL_E_INVALID, err);
    write_file("conf", big, sizeof big - 1);
    HL_EXPECT_OK(READ(&settings, &err, "--config", "conf"), err);
    HL_EXPECT_STATUS(READ(&settings, &err, "--config", "missing"), HL_E_SYSTEM, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "missing"));
    HL_EXPECT_STATUS(READ(&settings, &err, "--config", "."), HL_E_SYSTEM, err);
    unlink("conf");
}

static void what_is_printed_reads_back_the_same(void)
{
    struct manager_settings settings, again;
    char folder[PATH_MAX], first[4096] = {0}, second[4096] = {0};
    hl_error err;
    stand_enter_folder(folder, sizeof folder);
    HL_REQUIRE_OK(READ(&settings, &err, "--arena-bytes", "5M", "--numa-node", "any", "--page-size", "1G",
                       "--software", "--print-options"),
                  err);
    CU_ASSERT_TRUE(settings.print_options);
    FILE *file = fmemopen(first, sizeof first, "w");
    manager_settings_print(&settings, file);
    fclose(file);
    write_file("conf", first, strlen(first));
    HL_REQUIRE_OK(READ(&again, &err, "--config", "conf"), err);
    file = fmemopen(second, sizeof second, "w");
    manager_settings_print(&again, file);
    fclose(file);
    CU_ASSERT_STRING_EQUAL(first, second);
    CU_ASSERT_PTR_NOT_NULL(strstr(first, "arena-bytes = 5242880\n"));
    unlink("conf");
}

HL_TESTS(manager_options, HL_CASE(an_option_that_cannot_be_is_named),
         HL_CASE(the_options_of_an_older_caller_get_defaults),
         HL_CASE(a_second_manager_is_refused_before_it_pins_anything),
         HL_CASE(a_manager_that_cannot_start_leaves_nothing),
         HL_CASE(huge_pages_that_are_not_there_are_named), HL_CASE(a_folder_that_others_can_enter_is_refused),
         HL_CASE(the_memlock_limit_is_read_and_compared), HL_CASE(flags_set_every_option),
         HL_CASE(a_flag_that_cannot_be_is_named), HL_CASE(a_file_is_read_and_flags_win_wherever_they_stand),
         HL_CASE(a_line_that_cannot_be_is_named), HL_CASE(what_is_printed_reads_back_the_same));
