/* What the tests of the store's lower rooms stand on: a scratch folder, children that are another user or
 * have mounts of their own, and checks that count in a child. */
#ifndef CORE_WEIGHTS_STORAGE_SCRATCH_H
#define CORE_WEIGHTS_STORAGE_SCRATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>

enum { SCRATCH_OTHER_USER = 65534 };

/* Makes an empty folder (0755) below $TEST_TMPDIR and opens it. Its path is scratch_path(). */
int scratch_open(void);
const char *scratch_path(void);
/* Closes and removes it with all it holds. */
void scratch_close(int folder);

/* Creates a file with that text and mode. */
void scratch_write(int folder, const char *name, const char *text, mode_t mode);
bool scratch_holds(int folder, const char *name, const char *text);
bool scratch_exists(int folder, const char *name);
size_t scratch_entries(int folder);
/* The lowest free descriptor: the same before and after means that none was left open. */
int scratch_next_fd(void);

/* In a child: counts and prints what does not hold. */
extern int scratch_failures;
#define SCRATCH_CHECK(condition)                                                                             \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: in a child: %s does not hold\n", __FILE__, __LINE__, #condition);        \
            scratch_failures++;                                                                              \
        }                                                                                                    \
    } while (0)

/* Runs `steps` in a forked child and asserts that it ended with no failed check. */
void scratch_in_child(void (*steps)(int folder), int folder);
/* The same as somebody whom permissions bind: root gives `folder` to another user and becomes him, or, where
 * no other user exists (in Bazel's sandbox), gives up its capabilities. Prints which. */
void scratch_without_privilege(void (*steps)(int folder), int folder);
/* Whether this is root, and another user exists. Prints when not; root without one has failed the test. */
bool scratch_can_be_two_users(int folder);
/* The same in a mount namespace of its own, in which scratch_mount() works. Prints how it was got; when there
 * is no way, prints that, asserts that the kernel forbids it, and returns false. Root must get one, for which
 * it needs CAP_SYS_ADMIN over its own user namespace or a new one: else the test has failed. */
bool scratch_with_mounts(void (*steps)(int folder), int folder);
/* In such a child: mounts `type` on NAME (a folder of the scratch folder) and opens the root of the mount. */
int scratch_mount(const char *type, const char *name, unsigned long flags, const char *options);

/* In any child: from here on the kernel answers system calls of that number (SYS_…) with that errno. */
void scratch_refuse(long number, int sys_errno);
/* Only calls whose `argument` (from 0) has that value in its low 32 bits. */
void scratch_refuse_argument(long number, unsigned argument, unsigned value, int sys_errno);

#endif
