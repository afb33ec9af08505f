#include <string.h>
#include <unistd.h>

#include "engine/demo/demo.h"

/* What was shown last; the program has one thread and one terminal. */
static struct {
    char stage[32];
    unsigned percent;
} shown;

static void show(const char *stage, uint64_t done, uint64_t total, const char *of)
{
    unsigned percent = total ? (unsigned)((double)done * 100 / (double)total) : 100;
    bool terminal = isatty(STDERR_FILENO);
    unsigned step = terminal ? 1 : 25;
    bool fresh = strncmp(shown.stage, stage, sizeof shown.stage - 1) != 0;
    if (!fresh && percent / step == shown.percent / step)
        return;
    if (!terminal && fresh && percent < step) { /* a log needs no line that says 0 % */
        snprintf(shown.stage, sizeof shown.stage, "%s", stage);
        shown.percent = 0;
        return;
    }
    snprintf(shown.stage, sizeof shown.stage, "%s", stage);
    shown.percent = percent;
    fprintf(stderr, "%s%s: %u %% of %s%s", terminal ? "\r\033[K" : "", stage, percent, of,
            terminal && percent < 100 ? "" : "\n");
    fflush(stderr);
}

void hl_demo_progress(void *user, const char *stage, uint64_t done_bytes, uint64_t total_bytes)
{
    (void)user;
    char size[32];
    hl_demo_format_size(total_bytes, size, sizeof size);
    show(stage, done_bytes, total_bytes, size);
}

void hl_demo_progress_requests(const char *stage, uint64_t done, uint64_t total)
{
    char text[40];
    snprintf(text, sizeof text, "%llu requests", (unsigned long long)total);
    show(stage, done, total, text);
}
