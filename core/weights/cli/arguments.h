/* The command line of `hostlane weights`. */
#ifndef CORE_WEIGHTS_CLI_ARGUMENTS_H
#define CORE_WEIGHTS_CLI_ARGUMENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "hostlane/weights.h"

enum { WEIGHTS_DONE, WEIGHTS_FAILED, WEIGHTS_USAGE };

enum weights_command {
    WEIGHTS_IMPORT,
    WEIGHTS_LS,
    WEIGHTS_SHOW,
    WEIGHTS_VERIFY,
    WEIGHTS_DENY,
    WEIGHTS_CLEAN,
    WEIGHTS_WHERE,
    WEIGHTS_IDENTITY
};

struct weights_arguments {
    enum weights_command command;
    const char *operand; /* DIR, KEY or FILE; NULL where there is none */
    const char *store, *identity, *reason, *quarantined, *domain_id;
    bool json, quiet, all, tensors, example, help;
    uint64_t wait_seconds, hash_threads;
    bool wait_given;

    /* Settings of a domain. Without any, an import takes those that the domain has. */
    bool settings_given;
    uint64_t storage_class, scope, admission; /* enums of hostlane/weights.h */
    uint64_t max_artifact_bytes, max_store_bytes, min_free_bytes;
    bool aligned;
};

/* WEIGHTS_DONE, or WEIGHTS_USAGE after saying what is wrong on stderr. */
int weights_parse_arguments(int argc, char **argv, struct weights_arguments *arguments);
/* Says what is wrong with the command line; WEIGHTS_USAGE. `about` may be NULL. */
int weights_refuse(const char *what, const char *about);
extern const char weights_usage[];

#endif
