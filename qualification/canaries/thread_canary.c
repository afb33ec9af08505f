#include <pthread.h>

/* Two threads write one plain word without order. */
static volatile int word;

static void *write_word(void *argument)
{
    for (int i = 0; i < 1000; i++)
        word += *(const int *)argument;
    return NULL;
}

int main(void)
{
    int one = 1, two = 2;
    pthread_t a, b;
    if (pthread_create(&a, NULL, write_word, &one) || pthread_create(&b, NULL, write_word, &two))
        return 2;
    pthread_join(a, NULL);
    pthread_join(b, NULL);
    return 0;
}
