/* What a process holds of the system, name by name: descriptors, shared mappings and threads. A leak is a
 * difference between two moments at which it should hold the same. Private memory is not in it: its mappings
 * come and go with the allocator, and the leak checker looks at that. */
#ifndef QUALIFICATION_DEATHS_HOLDINGS_H
#define QUALIFICATION_DEATHS_HOLDINGS_H

#include <stdbool.h>
#include <stddef.h>

struct holdings {
    char **names; /* sorted */
    size_t count;
};

void holdings_take(struct holdings *holdings);
/* Says on standard error what is there in one of them only. */
bool holdings_same(const struct holdings *before, const struct holdings *now);
void holdings_free(struct holdings *holdings);

/* Takes them again, and compares; `kept` differences are allowed. Threads that have been joined may take a
 * moment to disappear from /proc. */
bool holdings_are_again(const struct holdings *before, size_t kept);

#endif
