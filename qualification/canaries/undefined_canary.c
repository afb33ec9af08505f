#include <limits.h>

int main(int argc, char **argv)
{
    (void)argv;
    volatile int largest = INT_MAX;
    volatile int sum = largest + argc; /* overflows: argc is at least 1 */
    return sum == 0;
}
