#include <stdlib.h>

static __attribute__((noinline)) void release(volatile char *bytes)
{
    free((void *)bytes);
}

/* A read after free. The pointer and the pointee are volatile: the optimiser would remove a plain load. */
int main(void)
{
    volatile char *volatile bytes = malloc(16);
    if (!bytes)
        return 2;
    bytes[3] = 1;
    release(bytes);
    return bytes[3] == 1;
}
