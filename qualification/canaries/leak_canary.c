#include <stdlib.h>

/* The only pointer to a block is overwritten. */
int main(void)
{
    void *volatile lost = malloc(64);
    lost = NULL;
    return lost != NULL;
}
