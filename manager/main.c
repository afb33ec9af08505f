/* hostlane-manager: the Manager in a process of its own. */
#include <errno.h>
#include <inttypes.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "hostlane/manager.h"
#include "manager/settings.h"

enum { EXIT_STOPPED, EXIT_NO_START, EXIT_USAGE, EXIT_QUARANTINE };

static void write_line(const char *level, const char *text)
{
    struct timespec now;
    struct tm parts;
    char when[32];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &parts);
    /* One call, so that lines of several threads do not mix. */
    fprintf(stderr, "%s.%03ldZ %s %s\n", when, now.tv_nsec / 1000000, level, text);
}

static void on_log(void *user, enum hl_manager_log_level level, const char *text)
{
    static const char *const names[] = {"DEBUG", "INFO", "WARNING", "ERROR"};
    const struct manager_settings *settings = user;
    if (level >= settings->log_level)
        write_line(names[level], text);
}

/* Pinning takes minutes where arenas are large: a line for every tenth. */
struct pinning {
    const struct manager_settings *settings;
    const char *stage;
    unsigned tenths;
};

static void on_progress(void *user, const char *stage, uint64_t done_bytes, uint64_t total_bytes)
{
    struct pinning *pinning = user;
    char text[128];
    unsigned tenths = total_bytes ? (unsigned)((double)done_bytes / (double)total_bytes * 10) : 10;
    if (pinning->stage != stage)
        *pinning = (struct pinning){.settings = pinning->settings, .stage = stage};
    if (tenths <= pinning->tenths)
        return;
    pinning->tenths = tenths;
    snprintf(text, sizeof text, "%s: %u%% of %" PRIu64 " MiB", stage, tenths * 10,
             total_bytes / (uint64_t)HL_MIB);
    on_log((void *)(uintptr_t)pinning->settings, HL_MANAGER_INFO, text);
}

/* A session has nine descriptors on this side, a message brings more; the usual soft limit is 1024. */
static void raise_descriptor_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

/* Blocked before the Manager's threads start, which inherit it: the signals then come through the fd only. */
static int open_signals(sigset_t *signals)
{
    sigemptyset(signals);
    sigaddset(signals, SIGTERM);
    sigaddset(signals, SIGINT);
    sigprocmask(SIG_BLOCK, signals, NULL);
    return signalfd(-1, signals, SFD_CLOEXEC);
}

static bool wait_for_signal(int fd)
{
    struct signalfd_siginfo info;
    ssize_t size;
    do
        size = read(fd, &info, sizeof info);
    while (size < 0 && errno == EINTR);
    return size == sizeof info;
}

static int serve(struct manager_settings *settings)
{
    struct pinning pinning = {.settings = settings};
    hl_manager *manager;
    hl_error err;
    sigset_t signals;
    int fd = open_signals(&signals);
    if (fd < 0) {
        write_line("ERROR", "cannot make a signalfd");
        return EXIT_NO_START;
    }
    settings->options.log = on_log;
    settings->options.log_user = settings;
    settings->options.progress = on_progress;
    settings->options.progress_user = &pinning;
    if (hl_manager_start(&settings->options, &manager, &err) != HL_OK) {
        char text[320];
        snprintf(text, sizeof text, "cannot start: %s (%s)", err.text, hl_status_name(err.status));
        write_line("ERROR", text);
        close(fd);
        return EXIT_NO_START;
    }
    on_log(settings, HL_MANAGER_INFO, "ready");
    wait_for_signal(fd);
    close(fd);
    on_log(settings, HL_MANAGER_INFO, "stopping; waits for engines that are copying");
    sigprocmask(SIG_UNBLOCK, &signals, NULL); /* a second signal ends the process */
    uint32_t quarantined = hl_manager_stop(manager);
    on_log(settings, HL_MANAGER_INFO, "stopped");
    return quarantined ? EXIT_QUARANTINE : EXIT_STOPPED;
}

int main(int argc, char *argv[])
{
    /* Large plans come and go with every restore: from memory that stays mapped and touched they cost half as
     * much (manager/prepare_bench.c). */
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    static struct manager_settings settings;
    hl_error err;
    manager_settings_init(&settings);
    if (manager_settings_read(&settings, argc, argv, &err) != HL_OK) {
        fprintf(stderr, "hostlane-manager: %s\n", err.text);
        return err.status == HL_E_INVALID ? EXIT_USAGE : EXIT_NO_START;
    }
    if (settings.help) {
        manager_settings_help(stdout);
        return EXIT_STOPPED;
    }
    if (settings.print_options) {
        manager_settings_print(&settings, stdout);
        return EXIT_STOPPED;
    }
    raise_descriptor_limit();
    return serve(&settings);
}
