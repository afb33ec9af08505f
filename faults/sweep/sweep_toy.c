/* What the sweep's own test sweeps: sweep_toy ROLE FOLDER writes FOLDER/text by way of a temporary file, or
 * in one of the wrong ways that a sweep must find.
 *
 *   write      right
 *   torn       writes the file in place: a death leaves half of it
 *   litter     leaves its temporary file behind after an error
 *   silent     reports success although it could not rename
 *   shaky      makes another number of hits every time
 *   recover    the same as write
 *   stubborn   the same, but takes a temporary file for a reason to fail
 *   check      the text is whole, or absent after a failure; nothing else is there
 *   look       the text is whole or absent
 *   abort      aborts where write would report an error
 *   survive    a survivor that looks at each word; it leaves "heard" with all of them in FOLDER
 *   quarrel    a survivor that does not agree to a death
 *   desert     a survivor that is never ready
 *   linger     a survivor that ends badly */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "faults/hook.h"
#include "faults/sweep/sweep.h"

#define TEXT "first half, second half"
#define HALF 11

static int write_halves(const char *path)
{
    const int fd = (int)HL_FAULT_STEP(weights_document_open, open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644));
    if (fd < 0)
        return -1;
    size_t done = 0;
    while (done < sizeof TEXT - 1) {
        const size_t most = done < HALF ? HALF - done : sizeof TEXT - 1 - done;
        const size_t size = HL_FAULT_SHORTENS(weights_write_short, most);
        const long written = HL_FAULT_STEP(weights_document_write, write(fd, &TEXT[done], size));
        if (written < 0) {
            close(fd);
            return -1;
        }
        done += (size_t)written;
    }
    close(fd);
    return 0;
}

static int write_text(const char *role)
{
    const bool torn = !strcmp(role, "torn");
    if (write_halves(torn ? "text" : "text.tmp"))
        goto err_tmp;
    if (!torn && HL_FAULT_STEP(weights_document_rename, rename("text.tmp", "text")) &&
        strcmp(role, "silent") != 0) {
        unlink("text");
        goto err_tmp;
    }
    return HL_SWEEP_DONE;
err_tmp:
    if (strcmp(role, "litter") != 0)
        unlink("text.tmp");
    return HL_SWEEP_FAILED;
}

static int survive(const char *role)
{
    char word[16];
    const int heard = open("heard", O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (heard < 0 || !strcmp(role, "desert"))
        return 6;
    hl_sweep_answer(true);
    while (hl_sweep_hear(word)) {
        const bool written = dprintf(heard, "%s ", word) > 0;
        hl_sweep_answer(written && (strcmp(role, "quarrel") != 0 || strcmp(word, "killed") != 0));
    }
    close(heard);
    return !strcmp(role, "linger") ? 7 : HL_SWEEP_DONE;
}

/* Whether a survivor has heard what it should. */
static bool all_was_heard(const char *outcome)
{
    char heard[64] = "", expected[64];
    const char *action = getenv(HL_SWEEP_ACTION), *faults = getenv(HL_SWEEP_FAULTS);
    const int fd = open("heard", O_RDONLY);
    if (fd < 0)
        return errno == ENOENT; /* there is no survivor */
    const ssize_t got = read(fd, heard, sizeof heard - 1);
    close(fd);
    const bool twice = faults && !strcmp(faults, "2"), died = !strcmp(outcome, "killed");
    snprintf(expected, sizeof expected, "%s%s %s%schecking ",
             action && !strcmp(action, "park+stop") ? "stopped " : "", outcome, twice ? "killed " : "",
             died ? "done " : "");
    return got > 0 && !strcmp(heard, expected);
}

/* Whether the text is whole; `absent_ok`: or not there. */
static bool text_is_whole(bool absent_ok)
{
    char text[64] = {0};
    const int fd = open("text", O_RDONLY);
    if (fd < 0)
        return absent_ok && errno == ENOENT;
    const ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    return got == sizeof TEXT - 1 && !strcmp(text, TEXT);
}

int main(int argc, char **argv)
{
    const struct rlimit no_core = {0};
    setrlimit(RLIMIT_CORE, &no_core);
    if (argc != 3 || chdir(argv[2]))
        return 99;
    const char *role = argv[1], *outcome = getenv(HL_SWEEP_OUTCOME);
    if (!strcmp(role, "check")) {
        if (!text_is_whole(outcome && strcmp(outcome, "done") != 0) || !access("text.tmp", F_OK) ||
            !all_was_heard(outcome ? outcome : "")) {
            fprintf(stderr, "the text or what is beside it is wrong\n");
            return 1;
        }
        return 0;
    }
    if (!strcmp(role, "look"))
        return text_is_whole(true) ? 0 : 1;
    if (!strcmp(role, "survive") || !strcmp(role, "quarrel") || !strcmp(role, "desert") ||
        !strcmp(role, "linger"))
        return survive(role);
    if (!strcmp(role, "stubborn") && !access("text.tmp", F_OK))
        return 5;
    if (!strcmp(role, "shaky"))
        for (int i = getpid() % 4 + 4; i > 0; i--)
            (void)HL_FAULT(weights_read_before);
    const int status = write_text(role);
    if (status == HL_SWEEP_FAILED && !strcmp(role, "abort"))
        abort();
    return status;
}
