#include "core/testing/allocation.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/testing/cunit.h"

enum { ALLOCATIONS_MOST = 1000 };

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
char *__real_strndup(const char *string, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
char *__wrap_strndup(const char *string, size_t size);

static long allocations_left = -1; /* until one fails; -1: none does */
static bool one_failed;

static bool allowed(void)
{
    if (allocations_left != 0)
        return allocations_left < 0 || allocations_left-- > 0;
    allocations_left = -1;
    one_failed = true;
    return false;
}

void *__wrap_malloc(size_t size)
{
    return allowed() ? __real_malloc(size) : NULL;
}

void *__wrap_calloc(size_t count, size_t size)
{
    return allowed() ? __real_calloc(count, size) : NULL;
}

void *__wrap_realloc(void *old, size_t size)
{
    return allowed() ? __real_realloc(old, size) : NULL;
}

char *__wrap_strndup(const char *string, size_t size)
{
    return allowed() ? __real_strndup(string, size) : NULL;
}

long hl_fail_each_allocation(hl_status (*operation)(hl_error *err))
{
    for (long allowance = 0;; allowance++) {
        hl_error err = {0};
        CU_ASSERT_TRUE_FATAL(allowance < ALLOCATIONS_MOST);
        one_failed = false;
        allocations_left = allowance;
        const hl_status status = operation(&err);
        allocations_left = -1;
        if (!one_failed) {
            HL_EXPECT_OK(status, err);
            return allowance;
        }
        CU_ASSERT_EQUAL(status, HL_E_NOMEM);
        CU_ASSERT_EQUAL(err.status, HL_E_NOMEM);
    }
}
