/* How far an import is: a bar on a terminal, a line at each tenth and each file elsewhere, or nothing. */
#ifndef CORE_WEIGHTS_CLI_PROGRESS_H
#define CORE_WEIGHTS_CLI_PROGRESS_H

#include <stdint.h>
#include <stdio.h>

enum weights_progress_form { WEIGHTS_PROGRESS_NONE, WEIGHTS_PROGRESS_LINES, WEIGHTS_PROGRESS_BAR };

struct weights_progress {
    enum weights_progress_form form;
    FILE *to;
    uint64_t total, done; /* bytes */
    int64_t started_ns, drawn_ns;
    unsigned tenths; /* said so far */
    size_t width;    /* of the bar's line on the terminal */
};

void weights_progress_begin(struct weights_progress *progress, enum weights_progress_form form, FILE *to,
                            uint64_t total);
void weights_progress_add(struct weights_progress *progress, uint64_t bytes);
/* A line of its own: "model-00001-of-00002.safetensors: done". */
void weights_progress_say(struct weights_progress *progress, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void weights_progress_end(struct weights_progress *progress); /* takes the bar away */

/* "0.7 s", "0:17", "1:02:03" */
#define WEIGHTS_TIME_BYTES 24
const char *weights_time(char text[WEIGHTS_TIME_BYTES], double seconds);

#endif
