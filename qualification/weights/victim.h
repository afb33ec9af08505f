/* The program that sweeps of the weight store start in every role: one or a few operations on the domain in
 * the folder it is given, in a fresh process each. */
#ifndef QUALIFICATION_WEIGHTS_VICTIM_H
#define QUALIFICATION_WEIGHTS_VICTIM_H

#include "hostlane/weights.h"

/* What the words on the command line act on. */
struct victim {
    hl_weight_storage_class storage_class;
    hl_weight_admission admission;
    hl_weight_identity *identities[2]; /* the swept artifact's and another's */
    hl_weight_identity *identity;      /* whichever of them the words are about */
    const char *key;
    const char *outcome;    /* how the process before this one ended, as HL_SWEEP_OUTCOME says; "" */
    unsigned faults;        /* as HL_SWEEP_FAULTS says */
    hl_weight_store *store; /* opened by the first operation */
};

/* How a word ended. */
enum verdict {
    VERDICT_DONE,
    VERDICT_FAILED, /* the library reported a failure, and reported it well */
    VERDICT_WRONG   /* anything else; said on standard error */
};

/* Says why on standard error. */
enum verdict victim_wrong(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* FAILED when the failure is a good report of `status`, else WRONG. */
enum verdict victim_failed(const char *what, hl_status status, const hl_weight_failure *failure);
/* The settings of the domain, with which all open it. */
void victim_options(const struct victim *victim, hl_weight_store_options *options);
/* Opens the store for changes, once. */
enum verdict victim_open(struct victim *victim);

/* --- product.c: the artifact of the sweeps; the other identity has an equal one --- */

#define PRODUCT_FILES 2u

hl_weight_identity *product_identity(const char *revision);
/* Writes it; a hl_weight_producer's. */
void product_producer(hl_weight_producer *producer, const char *const *key);
/* Whether every tensor of the lease is there, and nothing else, byte for byte. */
bool product_is_whole(const hl_weight_lease *lease);
/* The name of a payload file, to be spoilt. */
const char *product_file(void);

/* --- conditions.c: what must hold --- */

enum seen { SEEN_HIT = 1, SEEN_MISS = 2, SEEN_DENIED = 4, SEEN_SPOILT = 8 };

/* What a fresh reader sees, who changes nothing: one of `allowed`, and a hit is whole. While its maker is
 * stopped a reader may also be told to wait, and where the domain itself isn't complete, that there is none.
 */
enum verdict victim_look(struct victim *victim, unsigned allowed);
/* What a reader sees who may condemn what is wrong: one of `expected`. */
enum verdict victim_expect(struct victim *victim, unsigned expected);
/* After the next build: the artifact is whole, nothing else is in the domain but at most `quarantined`
 * folders in quarantine, and no lock is held. */
enum verdict victim_settle(struct victim *victim, unsigned quarantined);

#endif
