#include "core/weights/cli/progress.h"

#include <stdarg.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/weights/cli/print.h"

enum { BAR_CELLS = 24 };
static const int64_t redraw_ns = HL_NS_PER_S / 10;

const char *weights_time(char text[WEIGHTS_TIME_BYTES], double seconds)
{
    if (seconds > 359999) {
        snprintf(text, WEIGHTS_TIME_BYTES, "-:--");
        return text;
    }
    const unsigned whole = (unsigned)(seconds + 0.5);
    if (seconds < 10) {
        snprintf(text, WEIGHTS_TIME_BYTES, "%.1f s", seconds);
        return text;
    }
    if (whole >= 3600)
        snprintf(text, WEIGHTS_TIME_BYTES, "%u:%02u:%02u", whole / 3600, whole / 60 % 60, whole % 60);
    else
        snprintf(text, WEIGHTS_TIME_BYTES, "%u:%02u", whole / 60, whole % 60);
    return text;
}

void weights_progress_begin(struct weights_progress *progress, enum weights_progress_form form, FILE *to,
                            uint64_t total)
{
    *progress =
        (struct weights_progress){.form = form, .to = to, .total = total, .started_ns = hl_clock_ns()};
}

/* "45%  5.5 GiB of 12.3 GiB  1.1 GiB/s  0:06 left" */
static void describe(const struct weights_progress *progress, char *text, size_t size)
{
    char done[WEIGHTS_SIZE_BYTES], total[WEIGHTS_SIZE_BYTES], rate[WEIGHTS_SIZE_BYTES],
        left[WEIGHTS_TIME_BYTES];
    const double seconds = (double)(hl_clock_ns() - progress->started_ns) / (double)HL_NS_PER_S;
    const double speed = seconds > 0 ? (double)progress->done / seconds : 0;
    const double remaining = (double)(progress->total - progress->done);
    snprintf(text, size, "%3.0f%%  %s of %s  %s/s  %s left",
             progress->total ? 100.0 * (double)progress->done / (double)progress->total : 100.0,
             weights_size(done, progress->done), weights_size(total, progress->total),
             weights_size(rate, (uint64_t)speed), weights_time(left, speed > 0 ? remaining / speed : 360000));
}

/* Rewrites the terminal's line; a shorter text leaves nothing of the longer one behind it. */
static void draw(struct weights_progress *progress, const char *text)
{
    const size_t width = strlen(text);
    fprintf(progress->to, "\r%s%*s", text, width < progress->width ? (int)(progress->width - width) : 0, "");
    fflush(progress->to);
    progress->width = width;
}

static void draw_bar(struct weights_progress *progress)
{
    char described[128], line[192], bar[BAR_CELLS + 1];
    const size_t filled =
        progress->total ? (size_t)((double)progress->done / (double)progress->total * BAR_CELLS) : BAR_CELLS;
    memset(bar, '.', BAR_CELLS);
    memset(bar, '#', filled);
    bar[BAR_CELLS] = '\0';
    describe(progress, described, sizeof described);
    snprintf(line, sizeof line, "[%s] %s", bar, described);
    draw(progress, line);
}

void weights_progress_add(struct weights_progress *progress, uint64_t bytes)
{
    progress->done += bytes;
    if (progress->form == WEIGHTS_PROGRESS_BAR) {
        const int64_t now = hl_clock_ns();
        if (progress->drawn_ns != 0 && now - progress->drawn_ns < redraw_ns &&
            progress->done < progress->total)
            return;
        progress->drawn_ns = now;
        draw_bar(progress);
    } else if (progress->form == WEIGHTS_PROGRESS_LINES && progress->total) {
        const unsigned tenths = (unsigned)((double)progress->done / (double)progress->total * 10);
        if (tenths <= progress->tenths)
            return;
        progress->tenths = tenths;
        char described[128];
        describe(progress, described, sizeof described);
        fprintf(progress->to, "%s\n", described);
    }
}

static void take_bar_away(struct weights_progress *progress)
{
    if (progress->form != WEIGHTS_PROGRESS_BAR || progress->width == 0)
        return;
    draw(progress, "");
    fputc('\r', progress->to);
}

void weights_progress_say(struct weights_progress *progress, const char *format, ...)
{
    va_list list;
    if (progress->form == WEIGHTS_PROGRESS_NONE)
        return;
    take_bar_away(progress);
    va_start(list, format);
    vfprintf(progress->to, format, list);
    va_end(list);
    fputc('\n', progress->to);
    progress->width = 0;
}

void weights_progress_end(struct weights_progress *progress)
{
    take_bar_away(progress);
    fflush(progress->to);
    progress->form = WEIGHTS_PROGRESS_NONE;
}
