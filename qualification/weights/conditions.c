/* What must hold around a death. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "qualification/weights/victim.h"

#define ROOT "domain"
#define DOMAIN_DOCUMENTS 2u
#define DOMAIN_ENTRIES 7u
#define STOPPED_WAIT_NS 1000000 /* what a reader gives a maker who is stopped */

static const char *seen_name(enum seen seen)
{
    switch (seen) {
    case SEEN_HIT:
        return "a hit";
    case SEEN_MISS:
        return "a miss";
    case SEEN_DENIED:
        return "a denied artifact";
    default:
        return "a spoilt artifact";
    }
}

/* One lookup with every byte hashed. */
static enum verdict look_with(struct victim *victim, hl_weight_store *store, enum seen *seen,
                              hl_weight_failure *failure)
{
    hl_weight_lease *lease = NULL;
    const hl_status status =
        hl_weight_store_lookup(store, victim->identity, HL_WEIGHT_FULL_CHECKSUM, &lease, failure);
    if (!status) {
        *seen = SEEN_HIT;
        const bool whole = product_is_whole(lease);
        hl_weight_lease_release(lease);
        return whole ? VERDICT_DONE : victim_wrong("a lookup hit what is not whole");
    }
    if (lease)
        return victim_wrong("a lookup that failed gave a lease");
    if (status == HL_E_MISS)
        *seen = SEEN_MISS;
    else if (failure->code == HL_WEIGHT_ARTIFACT_DENIED)
        *seen = SEEN_DENIED;
    else if (failure->code == HL_WEIGHT_CHECKSUM_MISMATCH)
        *seen = SEEN_SPOILT;
    else
        return victim_failed("lookup", status, failure);
    return VERDICT_DONE;
}

static bool domain_is_complete(void)
{
    return !access(ROOT "/domain.json", F_OK) && !access(ROOT "/domain-policy.json", F_OK) &&
           !access(ROOT "/artifacts", F_OK) && !access(ROOT "/locks", F_OK) && !access(ROOT "/deny", F_OK);
}

enum verdict victim_look(struct victim *victim, unsigned allowed)
{
    const bool stopped = !victim->outcome[0];
    hl_weight_store_options options;
    victim_options(victim, &options);
    options.read_only = true;
    if (stopped)
        options.coordination_timeout_ns = STOPPED_WAIT_NS;
    const bool complete = domain_is_complete();
    hl_weight_store *store = NULL;
    hl_weight_failure failure = {0};
    const hl_status status = hl_weight_store_open(&options, &store, &failure);
    if (status) {
        const enum verdict verdict = victim_failed("look: open", status, &failure);
        return verdict == VERDICT_FAILED && !complete ? VERDICT_DONE : VERDICT_WRONG;
    }
    enum seen seen = SEEN_MISS;
    enum verdict verdict = look_with(victim, store, &seen, &failure);
    hl_weight_store_close(store);
    if (verdict == VERDICT_FAILED && stopped && failure.code == HL_WEIGHT_ACTIVE_BUILD_TIMEOUT)
        return VERDICT_DONE;
    if (verdict != VERDICT_DONE)
        return VERDICT_WRONG;
    return allowed & seen ? VERDICT_DONE : victim_wrong("a look sees %s", seen_name(seen));
}

enum verdict victim_expect(struct victim *victim, unsigned expected)
{
    enum seen seen = SEEN_MISS;
    hl_weight_failure failure = {0};
    enum verdict verdict = victim_open(victim);
    if (verdict == VERDICT_DONE)
        verdict = look_with(victim, victim->store, &seen, &failure);
    if (verdict != VERDICT_DONE)
        return verdict;
    return expected & seen ? VERDICT_DONE : victim_wrong("a reader finds %s", seen_name(seen));
}

/* Entries of a folder of the domain; those that `allowed` does not let through are said and counted as well.
 */
static unsigned count_entries(const char *folder,
                              bool (*allowed)(const struct victim *victim, const char *name),
                              const struct victim *victim, unsigned *strange)
{
    char path[64];
    snprintf(path, sizeof path, ROOT "/%s", folder);
    DIR *listing = opendir(path);
    unsigned count = 0;
    if (!listing) {
        victim_wrong("%s: %s", path, strerror(errno));
        (*strange)++;
        return 0;
    }
    for (struct dirent *entry; (entry = readdir(listing));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        count++;
        if (!allowed(victim, entry->d_name)) {
            victim_wrong("left: %s/%s", path, entry->d_name);
            (*strange)++;
        }
    }
    closedir(listing);
    return count;
}

static bool nothing(const struct victim *victim, const char *name)
{
    (void)victim, (void)name;
    return false;
}

/* The two documents and the five folders, each as it is made: nothing that a maker died over. */
static bool of_the_domain(const struct victim *victim, const char *name)
{
    static const char *const names[] = {"domain.json", "domain-policy.json", "locks", "artifacts",
                                        "tmp",         "quarantine",         "deny"};
    char path[512];
    struct stat st;
    (void)victim;
    snprintf(path, sizeof path, ROOT "/%s", name);
    if (lstat(path, &st))
        return false;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!strcmp(names[i], name))
            return i < DOMAIN_DOCUMENTS ? st.st_mode == (S_IFREG | 0444) && st.st_nlink == 1
                                        : st.st_mode == (S_IFDIR | 0700);
    return false;
}

static bool is_lock_of(const char *key, const char *name)
{
    return !strncmp(name, key, 64) &&
           (!strcmp(name + 64, ".build.lock") || !strcmp(name + 64, ".artifact.lock"));
}

static bool is_lock(const struct victim *victim, const char *name)
{
    return !strcmp(name, "domain-init.lock") || !strcmp(name, "domain-build.lock") ||
           is_lock_of(hl_weight_identity_key(victim->identities[0]), name) ||
           is_lock_of(hl_weight_identity_key(victim->identities[1]), name);
}

static bool is_the_artifact(const struct victim *victim, const char *name)
{
    return !strcmp(name, victim->key);
}

static bool is_quarantined(const struct victim *victim, const char *name)
{
    char path[512];
    struct stat st;
    snprintf(path, sizeof path, ROOT "/quarantine/%s", name);
    return !strncmp(name, victim->key, 64) && !strstr(name, ".cleanup.") && !lstat(path, &st) &&
           (st.st_mode & 07777) == 0555;
}

static enum verdict no_lock_is_held(struct victim *victim)
{
    hl_weight_artifact_snapshot *snapshot = NULL;
    hl_weight_failure failure = {0};
    const hl_status status = hl_weight_store_inspect_artifact(victim->store, victim->key,
                                                              HL_WEIGHT_FULL_CHECKSUM, &snapshot, &failure);
    if (status)
        return victim_failed("inspect", status, &failure);
    const bool well = snapshot->present && snapshot->valid && !snapshot->build_lock_active &&
                      !snapshot->artifact_lock_active;
    hl_weight_artifact_snapshot_free(snapshot);
    return well ? VERDICT_DONE : victim_wrong("the artifact is not valid, or a lock is held");
}

enum verdict victim_settle(struct victim *victim, unsigned quarantined)
{
    unsigned strange = 0;
    const unsigned entries = count_entries("", of_the_domain, victim, &strange);
    count_entries("tmp", nothing, victim, &strange);
    count_entries("deny", nothing, victim, &strange);
    count_entries("locks", is_lock, victim, &strange);
    const unsigned artifacts = count_entries("artifacts", is_the_artifact, victim, &strange);
    const unsigned kept = count_entries("quarantine", is_quarantined, victim, &strange);
    if (strange || artifacts != 1)
        return victim_wrong("%u artifacts, %u strange entries", artifacts, strange);
    if (entries != DOMAIN_ENTRIES)
        return victim_wrong("%u entries in the domain's folder", entries);
    if (kept > quarantined)
        return victim_wrong("%u folders in quarantine, at most %u are due", kept, quarantined);
    const enum verdict verdict = victim_open(victim);
    return verdict == VERDICT_DONE ? no_lock_is_held(victim) : verdict;
}
