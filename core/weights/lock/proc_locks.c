#include "core/weights/lock/proc_locks.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "core/weights/lock/lock.h"

/* Passes over a number of digits in `base` and the character `end` behind it. */
static bool take_number(const char **at, int base, char end, unsigned long long *number)
{
    char *behind;
    if (!strchr("0123456789abcdefABCDEF", **at) || !**at)
        return false;
    errno = 0;
    *number = strtoull(*at, &behind, base);
    if (errno || behind == *at || *behind != end)
        return false;
    *at = behind + 1;
    return true;
}

/* Passes over blanks, a word and the blanks behind it. */
static bool take_word(const char **at, const char *word)
{
    const char *from = *at + strspn(*at, " ");
    size_t size = strcspn(from, " \n");
    if (size == 0 || (word && (size != strlen(word) || memcmp(from, word, size) != 0)))
        return false;
    *at = from + size + strspn(from + size, " ");
    return true;
}

/* "12: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF", device in hexadecimal. A waiter has "->" before FLOCK.
 */
bool hl_lock_line_holder(const char *line, dev_t device, ino_t inode, pid_t *holder)
{
    unsigned long long number, process, major_number, minor_number, inode_number;
    if (!take_number(&line, 10, ':', &number) || !take_word(&line, "FLOCK") || !take_word(&line, NULL) ||
        !take_word(&line, NULL))
        return false;
    if (!take_number(&line, 10, ' ', &process) || !take_number(&line, 16, ':', &major_number) ||
        !take_number(&line, 16, ':', &minor_number) || !take_number(&line, 10, ' ', &inode_number))
        return false;
    if (process == 0 || process > INT_MAX || major_number != major(device) || minor_number != minor(device) ||
        inode_number != inode)
        return false;
    *holder = (pid_t)process;
    return true;
}

static bool is_among(pid_t holder, const pid_t *holders, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (holders[i] == holder)
            return true;
    return false;
}

void hl_lock_holders(int locks, enum hl_lock_kind kind, const char *key, pid_t *holders, size_t most,
                     size_t *count)
{
    char name[HL_LOCK_NAME_BYTES], *line = NULL;
    struct stat st;
    size_t found = 0, capacity = 0;
    pid_t holder;
    *count = 0;
    hl_lock_name(kind, key, name);
    if (fstatat(locks, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return;
    FILE *file = fopen("/proc/locks", "re");
    if (!file)
        return;
    while (found < most && getline(&line, &capacity, file) > 0)
        if (hl_lock_line_holder(line, st.st_dev, st.st_ino, &holder) && !is_among(holder, holders, found))
            holders[found++] = holder;
    free(line);
    fclose(file);
    *count = found;
}
