/* The child of the board's tests: board_victim THREADS HITS KIND makes hits on one point from several threads
 * and exits with the number of hits that an error, a drop or a short transfer met; KIND is error, drop or
 * short. board_victim orphan makes a board, parks a child of its own on it, prints the child's pid and dies.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "faults/hook.h"
#include "faults/testing.h"

#define MOST_THREADS 16

struct work {
    unsigned long hits;
    char kind;
    unsigned long met;
};

static void *make_hits(void *argument)
{
    struct work *work = argument;
    for (unsigned long i = 0; i < work->hits; i++) {
        switch (work->kind) {
        case 'e':
            work->met += HL_FAULT(weights_read_before) != 0;
            break;
        case 'd':
            work->met += HL_FAULT_DROPS(weights_read_before);
            break;
        default:
            work->met += HL_FAULT_SHORTENS(weights_read_before, (size_t)100) != 100;
        }
    }
    return NULL;
}

static int leave_an_orphan(const char *self)
{
    hl_fault_board *board = hl_fault_board_create();
    const unsigned rule = hl_fault_arm(board, "weights_read_before", 1, HL_FAULT_PARK, 0);
    const pid_t child = hl_fault_spawn(board, (const char *const[]){self, "1", "1", "error", NULL}, NULL);
    if (!hl_fault_await_parked(board, rule, 1, HL_FAULT_PATIENCE_NS))
        return 1;
    printf("%d\n", (int)child);
    fflush(stdout);
    kill(getpid(), SIGKILL);
    return 1;
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "orphan"))
        return leave_an_orphan(argv[0]);
    if (argc != 4)
        return 255;
    const unsigned long threads = strtoul(argv[1], NULL, 10);
    if (!threads || threads > MOST_THREADS)
        return 255;
    struct work works[MOST_THREADS];
    pthread_t ids[MOST_THREADS];
    for (unsigned long i = 0; i < threads; i++) {
        works[i] = (struct work){.hits = strtoul(argv[2], NULL, 10), .kind = argv[3][0]};
        if (pthread_create(&ids[i], NULL, make_hits, &works[i]))
            return 255;
    }
    unsigned long met = 0;
    for (unsigned long i = 0; i < threads; i++) {
        pthread_join(ids[i], NULL);
        met += works[i].met;
    }
    return (int)met;
}
