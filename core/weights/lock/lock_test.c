/* Children talk through pipes: nothing here waits for time to pass, except in waits whose outcome does not
 * depend on it. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/testing/cunit.h"
#include "core/weights/lock/lock.h"
#include "core/weights/storage/scratch.h"

#define KEY "a63d64bbdd7f1f5923929f66493c3bef31a7de7cdb21d5aa303c8ee49496c102"
#define OTHER_KEY "154f81f66482dc5dd0881b56aa63f76ca9ae7730086c2e700c4aba61da4f14e9"

static hl_status take(int folder, enum hl_lock_mode mode, int64_t wait_ns, struct hl_lock *lock)
{
    hl_error err = {0};
    *lock = HL_LOCK_NONE;
    hl_status status = hl_lock_take(folder, HL_LOCK_ARTIFACT, KEY, mode, wait_ns, false, lock, &err);
    if (status != HL_OK && !strstr(err.text, KEY ".artifact.lock"))
        fprintf(stderr, "the error does not name the lock: %s\n", err.text);
    CU_ASSERT_TRUE(status == HL_OK || (lock->fd == -1 && strstr(err.text, KEY ".artifact.lock")));
    return status;
}

/* Whether it could be had at once. */
static bool is_free(int folder, enum hl_lock_mode mode)
{
    struct hl_lock lock;
    hl_status status = take(folder, mode, HL_LOCK_NOT_AT_ALL, &lock);
    CU_ASSERT_TRUE(status == HL_OK || status == HL_E_BUSY);
    hl_lock_release(&lock);
    return status == HL_OK;
}

/* --- a child that follows orders --- */

struct child {
    pid_t pid;
    int order, answer; /* the test's ends */
};

static void say(int fd, char word)
{
    if (write(fd, &word, 1) != 1)
        _exit(90);
}

/* 0 when the other end is gone. */
static char hear(int fd)
{
    char word = 0;
    ssize_t got;
    do {
        got = read(fd, &word, 1);
    } while (got < 0 && errno == EINTR);
    return got == 1 ? word : 0;
}

static struct child start(int folder,
                          void (*life)(int folder, int order, int answer, struct hl_lock *inherited),
                          struct hl_lock *inherited)
{
    int orders[2], answers[2];
    CU_ASSERT_TRUE_FATAL(pipe2(orders, O_CLOEXEC) == 0 && pipe2(answers, O_CLOEXEC) == 0);
    fflush(NULL);
    pid_t pid = fork();
    CU_ASSERT_TRUE_FATAL(pid >= 0);
    if (pid == 0) {
        close(orders[1]);
        close(answers[0]);
        life(folder, orders[0], answers[1], inherited);
        _exit(0);
    }
    close(orders[0]);
    close(answers[1]);
    return (struct child){.pid = pid, .order = orders[1], .answer = answers[0]};
}

/* Ends it by closing its orders; returns its exit status. */
static int end(struct child *child)
{
    int status = -1;
    close(child->order);
    CU_ASSERT_EQUAL(waitpid(child->pid, &status, 0), child->pid);
    close(child->answer);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Takes the lock, says so, and holds it until told to release it; then says that and waits for the end. */
static void hold(int folder, int order, int answer, enum hl_lock_mode mode)
{
    struct hl_lock lock = HL_LOCK_NONE;
    if (hl_lock_take(folder, HL_LOCK_ARTIFACT, KEY, mode, HL_LOCK_FOREVER, false, &lock, NULL) != HL_OK)
        _exit(1);
    say(answer, 'h');
    if (hear(order) == 'r') {
        hl_lock_release(&lock);
        say(answer, 'r');
        hear(order);
    }
}

static void hold_shared(int folder, int order, int answer, struct hl_lock *inherited)
{
    (void)inherited;
    hold(folder, order, answer, HL_LOCK_SHARED);
}

static void hold_exclusive(int folder, int order, int answer, struct hl_lock *inherited)
{
    (void)inherited;
    hold(folder, order, answer, HL_LOCK_EXCLUSIVE);
}

/* --- the cases --- */

static void names_are_those_of_the_format(void)
{
    char name[HL_LOCK_NAME_BYTES];
    hl_lock_name(HL_LOCK_DOMAIN_INIT, NULL, name);
    CU_ASSERT_STRING_EQUAL(name, "domain-init.lock");
    hl_lock_name(HL_LOCK_DOMAIN_BUILD, NULL, name);
    CU_ASSERT_STRING_EQUAL(name, "domain-build.lock");
    hl_lock_name(HL_LOCK_BUILD, KEY, name);
    CU_ASSERT_STRING_EQUAL(name, KEY ".build.lock");
    hl_lock_name(HL_LOCK_ARTIFACT, KEY, name);
    CU_ASSERT_STRING_EQUAL(name, KEY ".artifact.lock");
}

static void each_name_is_a_lock_of_its_own(void)
{
    static const struct {
        enum hl_lock_kind kind;
        const char *key;
    } all[] = {{HL_LOCK_DOMAIN_INIT, NULL}, {HL_LOCK_DOMAIN_BUILD, NULL}, {HL_LOCK_BUILD, KEY},
               {HL_LOCK_BUILD, OTHER_KEY},  {HL_LOCK_ARTIFACT, KEY},      {HL_LOCK_ARTIFACT, OTHER_KEY}};
    enum { COUNT = sizeof all / sizeof *all };
    struct hl_lock locks[COUNT];
    hl_error err;
    int folder = scratch_open(), before = scratch_next_fd();
    for (int i = 0; i < COUNT; i++)
        HL_EXPECT_OK(hl_lock_take(folder, all[i].kind, all[i].key, HL_LOCK_EXCLUSIVE, HL_LOCK_NOT_AT_ALL,
                                  false, &locks[i], &err),
                     err);
    CU_ASSERT_EQUAL(scratch_entries(folder), COUNT);
    for (int i = 0; i < COUNT; i++)
        hl_lock_release(&locks[i]);
    CU_ASSERT_EQUAL(scratch_entries(folder), COUNT); /* never deleted */
    CU_ASSERT_EQUAL(scratch_next_fd(), before);
    scratch_close(folder);
}

static void a_lock_file_is_its_owners_alone_and_closed_on_exec(void)
{
    struct hl_lock lock;
    struct stat st;
    int folder = scratch_open();
    CU_ASSERT_EQUAL_FATAL(take(folder, HL_LOCK_EXCLUSIVE, HL_LOCK_NOT_AT_ALL, &lock), HL_OK);
    CU_ASSERT_TRUE(fstatat(folder, KEY ".artifact.lock", &st, AT_SYMLINK_NOFOLLOW) == 0);
    CU_ASSERT_TRUE((st.st_mode & 07777) == 0600 && st.st_size == 0);
    CU_ASSERT_EQUAL(fcntl(lock.fd, F_GETFD), FD_CLOEXEC);
    CU_ASSERT_EQUAL(lock.owner, getpid());
    CU_ASSERT_EQUAL(lock.mode, HL_LOCK_EXCLUSIVE);
    hl_lock_release(&lock);
    CU_ASSERT_EQUAL(lock.fd, -1);
    hl_lock_release(&lock); /* nothing is held: nothing happens */
    CU_ASSERT_EQUAL(lock.fd, -1);
    scratch_close(folder);
}

/* The API has no upgrade; asking for a second lock beside the first is refused and keeps the first. */
static void descriptors_of_one_process_share_and_exclude(void)
{
    struct hl_lock first, second, third;
    int folder = scratch_open(), before = scratch_next_fd();
    CU_ASSERT_EQUAL(take(folder, HL_LOCK_SHARED, HL_LOCK_NOT_AT_ALL, &first), HL_OK);
    CU_ASSERT_EQUAL(take(folder, HL_LOCK_SHARED, HL_LOCK_NOT_AT_ALL, &second), HL_OK);
    CU_ASSERT_EQUAL(take(folder, HL_LOCK_EXCLUSIVE, HL_LOCK_NOT_AT_ALL, &third), HL_E_BUSY);
    hl_lock_release(&first);
    CU_ASSERT_FALSE(is_free(folder, HL_LOCK_EXCLUSIVE));
    hl_lock_release(&second);
    CU_ASSERT_EQUAL(take(folder, HL_LOCK_EXCLUSIVE, HL_LOCK_NOT_AT_ALL, &third), HL_OK);
    CU_ASSERT_FALSE(is_free(folder, HL_LOCK_SHARED));
    CU_ASSERT_FALSE(is_free(folder, HL_LOCK_EXCLUSIVE));
    hl_lock_release(&third);
    CU_ASSERT_EQUAL(scratch_next_fd(), before);
    scratch_close(folder);
}

static void processes_share_and_exclude(void)
{
    int folder = scratch_open();
    struct child child = start(folder, hold_shared, NULL);
    CU_ASSERT_EQUAL(hear(child.answer), 'h');
    CU_ASSERT_TRUE(is_free(folder, HL_LOCK_SHARED));
    CU_ASSERT_FALSE(is_free(folder, HL_LOCK_EXCLUSIVE));
    say(child.order, 'r');
    CU_ASSERT_EQUAL(hear(child.answer), 'r');
    CU_ASSERT_TRUE(is_free(folder, HL_LOCK_EXCLUSIVE));
    CU_ASSERT_EQUAL(end(&child), 0);
    child = start(folder, hold_exclusive, NULL);
    CU_ASSERT_EQUAL(hear(child.answer), 'h');
    CU_ASSERT_FALSE(is_free(folder, HL_LOCK_SHARED));
    CU_ASSERT_EQUAL(end(&child), 0); /* it ended without a release: the kernel lets go */
    CU_ASSERT_TRUE(is_free(folder, HL_LOCK_EXCLUSIVE));
    scratch_close(folder);
}

static void a_deadline_ends_the_wait_and_no_wait_is_busy(void)
{
    struct hl_lock lock;
    int folder = scratch_open(), before = scratch_next_fd();
    struct child child = start(folder, hold_exclusive, NULL);
    CU_ASSERT_EQUAL(hear(child.answer), 'h');
    const int open_now = scratch_next_fd();
    CU_ASSERT_EQUAL(take(folder, HL_LOCK_SHARED, HL_LOCK_NOT_AT_ALL, &lock), HL_E_BUSY);
    CU_ASSERT_EQUAL(take(folder, HL_LOCK_SHARED, 1, &lock), HL_E_TIMEOUT);
    CU_ASSERT_EQUAL(take(folder, HL_LOCK_SHARED, 5000000, &lock), HL_E_TIMEOUT);
    CU_ASSERT_EQUAL(take(folder, HL_LOCK_EXCLUSIVE, 5000000, &lock), HL_E_TIMEOUT);
    CU_ASSERT_EQUAL(scratch_next_fd(), open_now);
    CU_ASSERT_EQUAL(end(&child), 0);
    CU_ASSERT_EQUAL(take(folder, HL_LOCK_EXCLUSIVE, INT64_MAX, &lock), HL_OK);
    hl_lock_release(&lock);
    CU_ASSERT_EQUAL(scratch_next_fd(), before);
    scratch_close(folder);
}

/* Finds the lock taken, says so, and waits for it as long as it takes. */
static void wait_for_it(int folder, int order, int answer, struct hl_lock *inherited)
{
    (void)inherited;
    struct hl_lock lock = HL_LOCK_NONE;
    if (hl_lock_take(folder, HL_LOCK_ARTIFACT, KEY, HL_LOCK_EXCLUSIVE, HL_LOCK_NOT_AT_ALL, false, &lock,
                     NULL) != HL_E_BUSY)
        _exit(1);
    say(answer, 'w');
    if (hl_lock_take(folder, HL_LOCK_ARTIFACT, KEY, HL_LOCK_EXCLUSIVE, HL_LOCK_FOREVER, false, &lock, NULL) !=
        HL_OK)
        _exit(2);
    say(answer, 'h');
    hear(order);
}

static void who_waits_has_it_after_the_release(void)
{
    struct hl_lock lock;
    int folder = scratch_open();
    CU_ASSERT_EQUAL_FATAL(take(folder, HL_LOCK_SHARED, HL_LOCK_NOT_AT_ALL, &lock), HL_OK);
    struct child child = start(folder, wait_for_it, NULL);
    CU_ASSERT_EQUAL(hear(child.answer), 'w');
    hl_lock_release(&lock);
    CU_ASSERT_EQUAL(hear(child.answer), 'h');
    CU_ASSERT_FALSE(is_free(folder, HL_LOCK_SHARED));
    CU_ASSERT_EQUAL(end(&child), 0);
    scratch_close(folder);
}

enum { SIGNALS = 20 };
static volatile sig_atomic_t signals;
static int signal_answer;

static void on_alarm(int number)
{
    (void)number;
    if (++signals == SIGNALS)
        say(signal_answer, 's');
}

/* Waits while signals arrive; the lock becomes free only after the twentieth. */
static void wait_under_signals(int folder, int order, int answer, struct hl_lock *inherited)
{
    (void)inherited;
    struct hl_lock lock = HL_LOCK_NONE;
    struct sigaction action = {.sa_handler = on_alarm}; /* no SA_RESTART */
    struct itimerval every = {.it_interval.tv_usec = 1000, .it_value.tv_usec = 1000}, never = {0};
    signal_answer = answer;
    if (sigaction(SIGALRM, &action, NULL) != 0 || setitimer(ITIMER_REAL, &every, NULL) != 0)
        _exit(1);
    hl_status status =
        hl_lock_take(folder, HL_LOCK_ARTIFACT, KEY, HL_LOCK_EXCLUSIVE, HL_LOCK_FOREVER, false, &lock, NULL);
    setitimer(ITIMER_REAL, &never, NULL);
    if (status != HL_OK || signals < SIGNALS)
        _exit(2);
    say(answer, 'h');
    hear(order);
}

static void signals_do_not_end_the_wait(void)
{
    struct hl_lock lock;
    int folder = scratch_open();
    CU_ASSERT_EQUAL_FATAL(take(folder, HL_LOCK_EXCLUSIVE, HL_LOCK_NOT_AT_ALL, &lock), HL_OK);
    struct child child = start(folder, wait_under_signals, NULL);
    CU_ASSERT_EQUAL(hear(child.answer), 's');
    hl_lock_release(&lock);
    CU_ASSERT_EQUAL(hear(child.answer), 'h');
    CU_ASSERT_EQUAL(end(&child), 0);
    scratch_close(folder);
}

/* --- fork --- */

static void release_what_was_inherited(int folder, int order, int answer, struct hl_lock *inherited)
{
    (void)folder;
    hl_lock_release(inherited);
    if (inherited->fd != -1)
        _exit(1);
    say(answer, 'r');
    hear(order);
}

static void keep_what_was_inherited(int folder, int order, int answer, struct hl_lock *inherited)
{
    (void)folder;
    if (inherited->fd < 0)
        _exit(1);
    say(answer, 'k');
    hear(order);
}

static void a_childs_release_keeps_the_parents_lock(void)
{
    static const enum hl_lock_mode modes[] = {HL_LOCK_SHARED, HL_LOCK_EXCLUSIVE};
    for (int i = 0; i < 2; i++) {
        struct hl_lock lock;
        int folder = scratch_open();
        CU_ASSERT_EQUAL_FATAL(take(folder, modes[i], HL_LOCK_NOT_AT_ALL, &lock), HL_OK);
        struct child child = start(folder, release_what_was_inherited, &lock);
        CU_ASSERT_EQUAL(hear(child.answer), 'r');
        CU_ASSERT_FALSE(is_free(folder, HL_LOCK_EXCLUSIVE));
        CU_ASSERT_EQUAL(end(&child), 0);
        CU_ASSERT_FALSE(is_free(folder, HL_LOCK_EXCLUSIVE));
        hl_lock_release(&lock);
        CU_ASSERT_TRUE(is_free(folder, HL_LOCK_EXCLUSIVE));
        scratch_close(folder);
    }
}

static void the_owners_release_frees_it_while_a_child_has_the_descriptor(void)
{
    struct hl_lock lock;
    int folder = scratch_open();
    CU_ASSERT_EQUAL_FATAL(take(folder, HL_LOCK_EXCLUSIVE, HL_LOCK_NOT_AT_ALL, &lock), HL_OK);
    struct child child = start(folder, keep_what_was_inherited, &lock);
    CU_ASSERT_EQUAL(hear(child.answer), 'k');
    hl_lock_release(&lock);
    CU_ASSERT_TRUE(is_free(folder, HL_LOCK_EXCLUSIVE));
    CU_ASSERT_EQUAL(end(&child), 0);
    scratch_close(folder);
}

HL_TESTS(lock, HL_CASE(names_are_those_of_the_format), HL_CASE(each_name_is_a_lock_of_its_own),
         HL_CASE(a_lock_file_is_its_owners_alone_and_closed_on_exec),
         HL_CASE(descriptors_of_one_process_share_and_exclude), HL_CASE(processes_share_and_exclude),
         HL_CASE(a_deadline_ends_the_wait_and_no_wait_is_busy), HL_CASE(who_waits_has_it_after_the_release),
         HL_CASE(signals_do_not_end_the_wait), HL_CASE(a_childs_release_keeps_the_parents_lock),
         HL_CASE(the_owners_release_frees_it_while_a_child_has_the_descriptor));
