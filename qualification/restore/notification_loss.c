#include "qualification/restore/notification_loss.h"

#include <stdbool.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct notification_loss notification_loss;

ssize_t __real_write(int fd, const void *bytes, size_t size);
int __real_eventfd_write(int fd, eventfd_t value);
ssize_t __wrap_write(int fd, const void *bytes, size_t size);
int __wrap_eventfd_write(int fd, eventfd_t value);

/* splitmix64: each call of each thread draws its own. */
static bool is_lost(void)
{
    const uint32_t one_in = atomic_load(&notification_loss.one_in);
    uint64_t x = atomic_fetch_add(&notification_loss.seed, 0x9e3779b97f4a7c15ull);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    const bool lost = one_in != 0 && (x ^ (x >> 31)) % one_in == 0;
    atomic_fetch_add(lost ? &notification_loss.lost : &notification_loss.passed, 1);
    return lost;
}

static bool crosses_a_session(int fd)
{
    for (int i = 0; i < atomic_load(&notification_loss.fd_count); i++)
        if (atomic_load(&notification_loss.fds[i]) == fd)
            return true;
    return false;
}

ssize_t __wrap_write(int fd, const void *bytes, size_t size)
{
    return crosses_a_session(fd) && is_lost() ? (ssize_t)size : __real_write(fd, bytes, size);
}

int __wrap_eventfd_write(int fd, eventfd_t value)
{
    return atomic_load(&notification_loss.manager) && is_lost() ? 0 : __real_eventfd_write(fd, value);
}
