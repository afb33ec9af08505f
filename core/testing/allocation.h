/* Memory that runs out: a test that links with //core/testing:allocation has this allocator before the C
 * library's (the linker puts it there, in that program only), and lets each allocation of an operation fail
 * once, in turn. */
#ifndef CORE_TESTING_ALLOCATION_H
#define CORE_TESTING_ALLOCATION_H

#include "hostlane/status.h"

/* Runs `operation` with 0, 1, 2, … allocations until it needs no more, and asserts that each refused run says
 * HL_E_NOMEM and the last one succeeds. `operation` returns its status, checks that no output was set when it
 * failed, and leaves nothing behind (which the address sanitizer sees). Returns how often it was refused.
 * From one thread; what other threads allocate meanwhile is counted as well. */
long hl_fail_each_allocation(hl_status (*operation)(hl_error *err));

#endif
