/* store_victim WORD… FOLDER does the words in order on the domain FOLDER/domain, and exits as faults/sweep
 * wants: 0 all done, 1 the last word failed as it should, more: something is wrong.
 *
 *   tmpfs disk         the storage class
 *   myself nobody      as whom; nobody is uid 65534
 *   serialized         the domain admits one build at a time
 *   other swept        which artifact the words after it are about; at first the swept one
 *   empty-root         makes the domain's folder
 *   open               opens the domain for changes, as all below do that change it
 *   build              get_or_build, which must give a whole artifact
 *   deny clean         as the store's functions; clean-rest is content when there is nothing left to clean
 *   quarantined-clean  removes one quarantined folder; -rest: if there is one
 *   lookup             any answer is done, but a hit is whole
 *   contained          a lookup of a spoilt artifact, which must be condemned without a marker
 *   spoil              inverts a byte of the artifact
 *   look…              conditions.c
 *   then-…             if the process before this one was done: what a reader sees now
 *   still-hit          what a reader sees now, however the process before ended
 *   settle=N           conditions.c; settle-plus=N allows one folder more for every fault of the case */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "faults/sweep/sweep.h"
#include "qualification/weights/victim.h"

#define NOBODY 65534
#define WRONG 3
#define USAGE 99
#define STORE_BYTES (64u << 20) /* of a domain that serializes builds: more than all of them take */

enum verdict victim_wrong(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    return VERDICT_WRONG;
}

enum verdict victim_failed(const char *what, hl_status status, const hl_weight_failure *failure)
{
    fprintf(stderr, "%s: %s, %s/%s%s: %s %s\n", what, hl_status_name(status),
            hl_weight_stage_name(failure->stage), hl_weight_code_name(failure->code),
            failure->retryable ? " (retryable)" : "", failure->error.text, failure->details);
    if (failure->error.status != status || !failure->error.text[0] || failure->details[0] != '{' ||
        hl_weight_code_status(failure->code) != status)
        return victim_wrong("that is no good report");
    return VERDICT_FAILED;
}

void victim_options(const struct victim *victim, hl_weight_store_options *options)
{
    hl_weight_store_options_init(options);
    options->root = "/proc/self/cwd/domain";
    options->storage_class = victim->storage_class;
    options->admission = victim->admission;
    if (victim->admission == HL_WEIGHT_ADMISSION_SERIALIZED)
        options->max_store_bytes = STORE_BYTES;
    options->hash_threads = 1;
}

enum verdict victim_open(struct victim *victim)
{
    if (victim->store)
        return VERDICT_DONE;
    hl_weight_store_options options;
    victim_options(victim, &options);
    hl_weight_failure failure = {0};
    const hl_status status = hl_weight_store_open(&options, &victim->store, &failure);
    return status ? victim_failed("open", status, &failure) : VERDICT_DONE;
}

static enum verdict build(struct victim *victim)
{
    hl_weight_producer producer;
    product_producer(&producer, &victim->key);
    hl_weight_origin origin;
    hl_weight_lease *lease = NULL;
    hl_weight_failure failure = {0};
    const hl_status status = hl_weight_store_get_or_build(
        victim->store, victim->identity, HL_WEIGHT_FULL_CHECKSUM, &producer, &origin, &lease, &failure);
    if (status)
        return lease ? victim_wrong("a build that failed gave a lease")
                     : victim_failed("get_or_build", status, &failure);
    const bool whole = product_is_whole(lease);
    hl_weight_lease_release(lease);
    return whole ? VERDICT_DONE : victim_wrong("what was built is not whole");
}

static enum verdict lookup(struct victim *victim)
{
    hl_weight_lease *lease = NULL;
    hl_weight_failure failure = {0};
    const hl_status status =
        hl_weight_store_lookup(victim->store, victim->identity, HL_WEIGHT_FULL_CHECKSUM, &lease, &failure);
    if (status == HL_E_MISS || failure.code == HL_WEIGHT_ARTIFACT_DENIED ||
        failure.code == HL_WEIGHT_CHECKSUM_MISMATCH)
        return VERDICT_DONE;
    if (status)
        return victim_failed("lookup", status, &failure);
    const bool whole = product_is_whole(lease);
    hl_weight_lease_release(lease);
    return whole ? VERDICT_DONE : victim_wrong("a lookup hit what is not whole");
}

static enum verdict contained(struct victim *victim)
{
    hl_weight_lease *lease = NULL;
    hl_weight_failure failure = {0};
    const hl_status status =
        hl_weight_store_lookup(victim->store, victim->identity, HL_WEIGHT_FULL_CHECKSUM, &lease, &failure);
    if (!status) {
        hl_weight_lease_release(lease);
        return victim_wrong("a spoilt artifact was hit");
    }
    const enum verdict verdict = victim_failed("lookup", status, &failure);
    return verdict == VERDICT_FAILED && failure.retryable && strstr(failure.details, "containment")
               ? VERDICT_DONE
               : verdict;
}

static enum verdict clean(struct victim *victim, bool rest)
{
    hl_weight_failure failure = {0};
    const hl_status status = hl_weight_store_clean(victim->store, victim->key, &failure);
    if (!status || (rest && status == HL_E_MISS))
        return VERDICT_DONE;
    return victim_failed("clean", status, &failure);
}

static enum verdict clean_quarantined(struct victim *victim, bool rest)
{
    hl_weight_domain_snapshot *snapshot = NULL;
    hl_weight_failure failure = {0};
    hl_status status = hl_weight_store_inspect_domain(victim->store, &snapshot, &failure);
    if (status)
        return victim_failed("inspect", status, &failure);
    const char *name = NULL;
    for (size_t i = 0; i < snapshot->inventory_count && !name; i++)
        if (snapshot->inventory[i].state == HL_WEIGHT_STATE_QUARANTINED)
            name = snapshot->inventory[i].storage_name;
    enum verdict verdict = VERDICT_DONE;
    if (name)
        status = hl_weight_store_clean_quarantined(victim->store, name, &failure);
    else if (!rest)
        verdict = victim_wrong("nothing is in quarantine");
    if (status)
        verdict = victim_failed("clean_quarantined", status, &failure);
    hl_weight_domain_snapshot_free(snapshot);
    return verdict;
}

static enum verdict deny(struct victim *victim)
{
    hl_weight_failure failure = {0};
    const hl_status status = hl_weight_store_deny(victim->store, victim->key, "swept", &failure);
    return status ? victim_failed("deny", status, &failure) : VERDICT_DONE;
}

static enum verdict spoil(struct victim *victim)
{
    char path[256];
    snprintf(path, sizeof path, "domain/artifacts/%s/%s", victim->key, product_file());
    unsigned char byte = 0;
    struct stat st;
    if (chmod(path, 0600))
        return victim_wrong("cannot open what is to be spoilt");
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    const bool read = fd >= 0 && !fstat(fd, &st) && pread(fd, &byte, 1, st.st_size - 1) == 1;
    byte ^= 0xff;
    const bool written = read && pwrite(fd, &byte, 1, st.st_size - 1) == 1 && !fchmod(fd, 0444);
    if (fd >= 0)
        close(fd);
    return written ? VERDICT_DONE : victim_wrong("cannot spoil");
}

static enum verdict become_nobody(void)
{
    if (setresgid(NOBODY, NOBODY, NOBODY) || setresuid(NOBODY, NOBODY, NOBODY))
        return victim_wrong("cannot become uid %d", NOBODY);
    return VERDICT_DONE;
}

static enum verdict make_root(void)
{
    return mkdir("domain", 0700) ? victim_wrong("cannot make the root") : VERDICT_DONE;
}

static void turn_to(struct victim *victim, unsigned identity)
{
    victim->identity = victim->identities[identity];
    victim->key = hl_weight_identity_key(victim->identity);
}

/* Words that need no open store. */
static bool do_before_opening(struct victim *victim, const char *word, enum verdict *verdict)
{
    static const struct {
        const char *word;
        unsigned allowed;
    } looks[] = {{"look", SEEN_HIT | SEEN_MISS},
                 {"look-denied", SEEN_HIT | SEEN_MISS | SEEN_DENIED},
                 {"look-spoilt", SEEN_MISS | SEEN_DENIED | SEEN_SPOILT | SEEN_HIT}};
    *verdict = VERDICT_DONE;
    if (!strcmp(word, "tmpfs"))
        victim->storage_class = HL_WEIGHT_TMPFS;
    else if (!strcmp(word, "disk"))
        victim->storage_class = HL_WEIGHT_DISK;
    else if (!strcmp(word, "myself"))
        return true;
    else if (!strcmp(word, "nobody"))
        *verdict = become_nobody();
    else if (!strcmp(word, "serialized"))
        victim->admission = HL_WEIGHT_ADMISSION_SERIALIZED;
    else if (!strcmp(word, "swept") || !strcmp(word, "other"))
        turn_to(victim, !strcmp(word, "other"));
    else if (!strcmp(word, "empty-root"))
        *verdict = make_root();
    else if (!strcmp(word, "spoil"))
        *verdict = spoil(victim);
    else if (!strncmp(word, "settle=", 7))
        *verdict = victim_settle(victim, (unsigned)strtoul(word + 7, NULL, 10));
    else if (!strncmp(word, "settle-plus=", 12))
        *verdict = victim_settle(victim, victim->faults + (unsigned)strtoul(word + 12, NULL, 10));
    else {
        for (size_t i = 0; i < sizeof looks / sizeof looks[0]; i++)
            if (!strcmp(word, looks[i].word)) {
                *verdict = victim_look(victim, looks[i].allowed);
                return true;
            }
        return false;
    }
    return true;
}

/* Words that say what is to be seen, if what went before was done. */
static bool do_then(struct victim *victim, const char *word, enum verdict *verdict)
{
    static const struct {
        const char *word;
        unsigned seen;
    } thens[] = {{"then-hit", SEEN_HIT},
                 {"then-miss", SEEN_MISS},
                 {"then-denied", SEEN_DENIED},
                 {"then-gone", SEEN_MISS | SEEN_DENIED}};
    if (!strcmp(word, "still-hit")) {
        *verdict = victim_expect(victim, SEEN_HIT);
        return true;
    }
    for (size_t i = 0; i < sizeof thens / sizeof thens[0]; i++)
        if (!strcmp(word, thens[i].word)) {
            *verdict =
                strcmp(victim->outcome, "done") != 0 ? VERDICT_DONE : victim_expect(victim, thens[i].seen);
            return true;
        }
    return false;
}

static enum verdict operate(struct victim *victim, const char *word)
{
    enum verdict verdict;
    if (do_before_opening(victim, word, &verdict) || do_then(victim, word, &verdict))
        return verdict;
    verdict = victim_open(victim);
    if (verdict != VERDICT_DONE)
        return verdict;
    if (!strcmp(word, "open"))
        return verdict;
    if (!strcmp(word, "build"))
        return build(victim);
    if (!strcmp(word, "lookup"))
        return lookup(victim);
    if (!strcmp(word, "contained"))
        return contained(victim);
    if (!strcmp(word, "deny"))
        return deny(victim);
    if (!strcmp(word, "clean") || !strcmp(word, "clean-rest"))
        return clean(victim, !strcmp(word, "clean-rest"));
    if (!strcmp(word, "quarantined-clean") || !strcmp(word, "quarantined-clean-rest"))
        return clean_quarantined(victim, !strcmp(word, "quarantined-clean-rest"));
    return victim_wrong("no such word: %s", word);
}

int main(int argc, char **argv)
{
    if (argc < 3 || chdir(argv[argc - 1]))
        return USAGE;
    const char *outcome = getenv(HL_SWEEP_OUTCOME), *faults = getenv(HL_SWEEP_FAULTS);
    struct victim victim = {.storage_class = HL_WEIGHT_DISK,
                            .admission = HL_WEIGHT_ADMISSION_CONCURRENT,
                            .identities = {product_identity("1"), product_identity("2")},
                            .outcome = outcome ? outcome : "",
                            .faults = faults ? (unsigned)strtoul(faults, NULL, 10) : 0};
    if (!victim.identities[0] || !victim.identities[1])
        return USAGE;
    turn_to(&victim, 0);
    enum verdict verdict = VERDICT_DONE;
    for (int i = 1; i < argc - 1 && verdict == VERDICT_DONE; i++)
        verdict = operate(&victim, argv[i]);
    hl_weight_store_close(victim.store);
    hl_weight_identity_free(victim.identities[0]);
    hl_weight_identity_free(victim.identities[1]);
    return verdict == VERDICT_DONE ? HL_SWEEP_DONE : verdict == VERDICT_FAILED ? HL_SWEEP_FAILED : WRONG;
}
