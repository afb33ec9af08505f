/* One hit: what a program of the *_faults build looks like from outside. */
#include "faults/hook.h"

int main(void)
{
    return HL_FAULT(weights_read_before);
}
