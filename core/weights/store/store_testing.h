/* What the tests of the store, and of the rooms above it, share: a private domain to work in, the golden
 * identity, a producer that does what it is told, and eyes and hands for what lies on disk. Every function
 * ends the test case (CU_FAIL_FATAL) when the fixture itself cannot do its work. */
#ifndef CORE_WEIGHTS_STORE_STORE_TESTING_H
#define CORE_WEIGHTS_STORE_STORE_TESTING_H

#include <sys/types.h>

#include "hostlane/weights.h"

/* The artifact that vLLM-Omni's own code makes of the golden identity and producer. */
#define HL_GOLDEN_KEY "a12c08be7d23c79642c9eb7197803beeb33206d51d130ff7fd98eed6bf6d1bb0"
#define HL_GOLDEN_CONTENT "8c96a81a4a8709c2bdd9f84bcba08bbc7ed8655773c5bc3e4a6269b168fe9509"
#define HL_GOLDEN_FILE "weights.safetensors"

/* --- a domain --- */

enum hl_fixture_place {
    HL_FIXTURE_DISK, /* below $TEST_TMPDIR, whatever file system that is */
    HL_FIXTURE_SHM   /* below /dev/shm */
};

struct hl_store_fixture {
    char base[256]; /* a fresh folder of this fixture, 0755 */
    char root[288]; /* base/domain: not created before a store is opened */
    hl_weight_store_options
        options;            /* for root, its storage class, and waits of 20 s; change before opening */
    hl_weight_store *store; /* NULL until hl_fixture_store() */
};

void hl_fixture_open(struct hl_store_fixture *fixture, enum hl_fixture_place place);
hl_weight_store *hl_fixture_store(struct hl_store_fixture *fixture); /* opens it the first time */
void hl_fixture_reopen(struct hl_store_fixture *fixture);            /* with options as they are now */
void hl_fixture_close(struct hl_store_fixture *fixture); /* closes the store and removes everything */

/* --- identities --- */

/* The golden identity is rank 0 of 2; another rank or size is another artifact. */
hl_weight_identity *hl_fixture_identity(unsigned tensor_parallel_size, unsigned tensor_parallel_rank);
hl_weight_identity *hl_fixture_identity_of_model(const char *model_id); /* plain ASCII */

/* --- a producer --- */

/* With `files` 0 it writes the golden file; else `files` files of `tensors` U8 tensors of `tensor_bytes`
 * pseudo-random bytes. Zeroed fields are the defaults. */
struct hl_fake_producer {
    hl_weight_producer producer; /* what a store gets */
    char key[65];
    const char *keys[1];
    unsigned files, tensors;
    uint64_t tensor_bytes;
    uint64_t seed;
    size_t write_bytes;  /* bytes a write; 0: a tensor a write */
    bool backwards;      /* last tensor first, each from its end */
    unsigned runs;       /* how often produce() ran */
    hl_status fail_with; /* not HL_OK: fails with it after the first file */
    const char *fail_text;
    int arrived, proceed; /* pipes' ends, or -1: inside produce(), after the first file was written, a byte
                             goes out through `arrived` and one is awaited from `proceed` */
    /* Runs in place of all of the above. */
    hl_status (*instead)(struct hl_fake_producer *fake, hl_weight_writer *writer, hl_error *err);
    void *extra;
};
void hl_fake_producer_init(struct hl_fake_producer *fake, const hl_weight_identity *identity);
/* Writes the golden tensors through a writer, for an `instead`. */
hl_status hl_fake_produce_golden(hl_weight_writer *writer, hl_error *err);

/* get_or_build in the fixture's store, with metadata validation. */
hl_status hl_fixture_get(struct hl_store_fixture *fixture, const hl_weight_identity *identity,
                         struct hl_fake_producer *fake, hl_weight_origin *origin, hl_weight_lease **lease,
                         hl_weight_failure *failure);
hl_status hl_fixture_look_up(struct hl_store_fixture *fixture, const hl_weight_identity *identity,
                             hl_weight_validation validation, hl_weight_lease **lease,
                             hl_weight_failure *failure);

/* Asserts a failed call's code and whether it may be retried, and shows its text if that is not so. */
#define HL_EXPECT_FAILURE(call, expected_code, may_retry, failure)                                           \
    do {                                                                                                     \
        const hl_status status_ = (call);                                                                    \
        const bool as_expected_ = status_ == hl_weight_code_status(expected_code) &&                         \
                                  (failure).code == (expected_code) && (failure).retryable == (may_retry);   \
        if (!as_expected_)                                                                                   \
            fprintf(stderr, "%s:%d: %s: %s, code %s, %s: %s\n", __FILE__, __LINE__, #call,                   \
                    hl_status_name(status_), hl_weight_code_name((failure).code),                            \
                    (failure).retryable ? "retryable" : "final", (failure).error.text);                      \
        CU_ASSERT_TRUE(as_expected_);                                                                        \
    } while (0)

/* get_or_build of the identity with the golden producer, which must succeed; gives the lease. */
hl_weight_lease *hl_fixture_build_golden(struct hl_store_fixture *fixture);

/* --- what lies in the domain; paths are relative to its root --- */

bool hl_fixture_exists(const struct hl_store_fixture *fixture, const char *path);
unsigned hl_fixture_mode(const struct hl_store_fixture *fixture, const char *path); /* 07777 of it */
/* Entries of a folder whose names begin with `prefix` ("" for all). */
unsigned hl_fixture_count(const struct hl_store_fixture *fixture, const char *folder, const char *prefix);
/* The only such entry. */
void hl_fixture_find(const struct hl_store_fixture *fixture, const char *folder, const char *prefix,
                     char name[256]);
/* Whole file, freed with free(). */
char *hl_fixture_read(const struct hl_store_fixture *fixture, const char *path, size_t *bytes);
/* Inverts one byte in place, whatever the file's mode, which stays. */
void hl_fixture_corrupt(const struct hl_store_fixture *fixture, const char *path, uint64_t offset);
/* Replaces a file's content, whatever the file's mode, which stays; creates it (0444) when missing. */
void hl_fixture_overwrite(const struct hl_store_fixture *fixture, const char *path, const void *bytes,
                          size_t size);
void hl_fixture_chmod(const struct hl_store_fixture *fixture, const char *path, unsigned mode);
void hl_fixture_remove(const struct hl_store_fixture *fixture, const char *path); /* a tree, if there */

/* --- other processes --- */

/* Forks a child that runs and _exits with run()'s result. The child must open stores of its own. Only from a
 * process with one thread. */
pid_t hl_child_start(int (*run)(void *context), void *context);
int hl_child_end(pid_t child); /* awaits it; its exit status, or minus the signal that ended it */
/* Whether this process can become uid 65534. Who is not root cannot, and that is printed; root that cannot
 * (in Bazel's sandbox, which knows one user) has failed the test. */
bool hl_child_require_second_user(void);
/* Runs in a child as uid and gid 65534, which sees the fixture's folder as `/proc/self/cwd` (a parent folder
 * need not be open to it); fixture->base and root are set so in the child. Gives the folder to that uid. */
pid_t hl_child_start_as_nobody(struct hl_store_fixture *fixture, int (*run)(void *context), void *context);
int hl_child_run_as_nobody(struct hl_store_fixture *fixture, int (*run)(void *context), void *context);
/* The same as somebody whom permissions bind: uid 65534, or, where there is no such uid to become (in Bazel's
 * sandbox), this user without capabilities. Prints which. */
int hl_child_run_unprivileged(struct hl_store_fixture *fixture, int (*run)(void *context), void *context);
/* Bytes through pipes: the test's only synchronisation. */
void hl_pipe_open(int ends[2]);
void hl_pipe_send(int fd);
void hl_pipe_await(int fd);

#endif
