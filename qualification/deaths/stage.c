#include "qualification/deaths/stage.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "qualification/restore/process.h"

static const struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = STAGE_SOCKET};

int stage_listen(void)
{
    const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    MUST(listener >= 0 && bind(listener, (const struct sockaddr *)&address, sizeof address) == 0);
    MUST(listen(listener, 8) == 0);
    return listener;
}

int stage_accept(int listener)
{
    return accept4(listener, NULL, NULL, SOCK_CLOEXEC);
}

int stage_connect(void)
{
    const int stage = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    MUST(stage >= 0);
    if (connect(stage, (const struct sockaddr *)&address, sizeof address) == 0)
        return stage;
    close(stage);
    return -1;
}

bool stage_say(int stage, enum stage_word word, int passed)
{
    unsigned char byte = (unsigned char)word;
    struct iovec bytes = {.iov_base = &byte, .iov_len = 1};
    union {
        char room[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1};
    if (passed >= 0) {
        message.msg_control = control.room;
        message.msg_controllen = sizeof control.room;
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        *head = (struct cmsghdr){
            .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
        memcpy(CMSG_DATA(head), &passed, sizeof passed);
    }
    return sendmsg(stage, &message, MSG_NOSIGNAL) == 1;
}

bool stage_hear(int stage, enum stage_word *word, int *passed)
{
    unsigned char byte = 0;
    struct iovec bytes = {.iov_base = &byte, .iov_len = 1};
    union {
        char room[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct msghdr message = {.msg_iov = &bytes,
                             .msg_iovlen = 1,
                             .msg_control = control.room,
                             .msg_controllen = sizeof control.room};
    struct pollfd ready = {.fd = stage, .events = POLLIN};
    if (poll(&ready, 1, STAGE_PATIENCE_MS) != 1 || recvmsg(stage, &message, MSG_CMSG_CLOEXEC) != 1)
        return false;
    *word = (enum stage_word)byte;
    int fd = -1;
    const struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    if (head && head->cmsg_type == SCM_RIGHTS)
        memcpy(&fd, CMSG_DATA(head), sizeof fd);
    if (passed)
        *passed = fd;
    else if (fd >= 0)
        close(fd);
    return true;
}

bool stage_ask(int stage, enum stage_word word, int passed)
{
    enum stage_word answer;
    return stage_say(stage, word, passed) && stage_hear(stage, &answer, NULL) && answer == STAGE_DONE;
}
