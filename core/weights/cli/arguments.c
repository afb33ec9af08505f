#include "core/weights/cli/arguments.h"

#include <ctype.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char weights_usage[] =
    "Usage: hostlane weights COMMAND [FLAGS]\n\n"
    "  import DIR --identity FILE   copies a folder of safetensors files into the store\n"
    "  ls                           what the store holds\n"
    "  show KEY [--tensors]         one artifact\n"
    "  verify KEY | --all           hashes every byte of artifacts; changes nothing\n"
    "  deny KEY --reason TEXT       marks an artifact as not to be used\n"
    "  clean KEY | --quarantined NAME\n"
    "                               removes an artifact, or one in quarantine as `ls` names it\n"
    "  where                        the store's folder, file system, policy and space\n"
    "  identity FILE | --example    the key of an identity, or an example to begin with\n\n"
    "  --store ROOT   default $HOSTLANE_WEIGHTS, else /var/lib/hostlane/weights for root and\n"
    "                 $XDG_DATA_HOME/hostlane/weights (~/.local/share/hostlane/weights) for others\n"
    "  --json         one line of JSON on standard output, also for a failure\n"
    "  --wait SECONDS for a lock that another process holds: import 600, others 10\n"
    "  --hash-threads COUNT\n\n"
    "Of import, when it creates the store (later they must be the same, or be left out):\n"
    "  --storage-class disk|tmpfs  --scope node|numa  --domain-id NAME  --admission concurrent|serialized\n"
    "  --max-artifact-bytes SIZE  --max-store-bytes SIZE  --min-free-bytes SIZE   (4096, 512M, 80G, 2T)\n"
    "and of one import: --aligned (data at multiples of 4096), --quiet (no progress).\n\n"
    "Exit status: 0 done, 1 failed, 2 wrong usage. hostlane-weights(1) says more.\n";

/* --- the two tables --- */

static const struct {
    const char *word;
    const char *operand; /* what it is called; NULL: none */
} commands[] = {
    [WEIGHTS_IMPORT] = {"import", "DIR"}, [WEIGHTS_LS] = {"ls", NULL},
    [WEIGHTS_SHOW] = {"show", "KEY"},     [WEIGHTS_VERIFY] = {"verify", "KEY"},
    [WEIGHTS_DENY] = {"deny", "KEY"},     [WEIGHTS_CLEAN] = {"clean", "KEY"},
    [WEIGHTS_WHERE] = {"where", NULL},    [WEIGHTS_IDENTITY] = {"identity", "FILE"},
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

#define OF(command) (1u << WEIGHTS_##command)
#define OF_STORES (OF(IMPORT) | OF(LS) | OF(SHOW) | OF(VERIFY) | OF(DENY) | OF(CLEAN) | OF(WHERE))
#define OF_ALL (OF_STORES | OF(IDENTITY))

enum form { SWITCH, TEXT, SIZE, COUNT, CHOICE };

static const struct flag {
    const char *name;
    enum form form;
    size_t field; /* offset of a bool, const char * or uint64_t */
    unsigned commands;
    bool setting; /* of the domain */
    const char *choices[2];
} flags[] = {
#define FIELD(name) offsetof(struct weights_arguments, name)
    {"--help", SWITCH, FIELD(help), OF_ALL, false, {0}},
    {"--json", SWITCH, FIELD(json), OF_ALL, false, {0}},
    {"--store", TEXT, FIELD(store), OF_STORES, false, {0}},
    {"--wait", COUNT, FIELD(wait_seconds), OF_STORES, false, {0}},
    {"--hash-threads", COUNT, FIELD(hash_threads), OF(IMPORT) | OF(VERIFY), false, {0}},
    {"--identity", TEXT, FIELD(identity), OF(IMPORT), false, {0}},
    {"--quiet", SWITCH, FIELD(quiet), OF(IMPORT), false, {0}},
    {"--aligned", SWITCH, FIELD(aligned), OF(IMPORT), false, {0}},
    {"--storage-class", CHOICE, FIELD(storage_class), OF(IMPORT), true, {"disk", "tmpfs"}},
    {"--scope", CHOICE, FIELD(scope), OF(IMPORT), true, {"node", "numa"}},
    {"--admission", CHOICE, FIELD(admission), OF(IMPORT), true, {"concurrent", "serialized"}},
    {"--domain-id", TEXT, FIELD(domain_id), OF(IMPORT), true, {0}},
    {"--max-artifact-bytes", SIZE, FIELD(max_artifact_bytes), OF(IMPORT), true, {0}},
    {"--max-store-bytes", SIZE, FIELD(max_store_bytes), OF(IMPORT), true, {0}},
    {"--min-free-bytes", SIZE, FIELD(min_free_bytes), OF(IMPORT), true, {0}},
    {"--tensors", SWITCH, FIELD(tensors), OF(SHOW), false, {0}},
    {"--all", SWITCH, FIELD(all), OF(VERIFY), false, {0}},
    {"--reason", TEXT, FIELD(reason), OF(DENY), false, {0}},
    {"--quarantined", TEXT, FIELD(quarantined), OF(CLEAN), false, {0}},
    {"--example", SWITCH, FIELD(example), OF(IDENTITY), false, {0}},
#undef FIELD
};

int weights_refuse(const char *what, const char *about)
{
    fprintf(stderr, "hostlane weights: %s%s%s%s; see hostlane weights --help\n", what, about ? " \"" : "",
            about ? about : "", about ? "\"" : "");
    return WEIGHTS_USAGE;
}

/* --- values --- */

static bool parse_count(const char *text, uint64_t most, uint64_t *value)
{
    char *end;
    if (!isdigit((unsigned char)text[0]))
        return false;
    errno = 0;
    *value = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0' && *value <= most;
}

/* A number of bytes, with K, M, G or T for powers of 1024, and "iB" behind that if one likes. */
static bool parse_size(const char *text, uint64_t *value)
{
    static const char units[] = "KMGT";
    char *end;
    if (!isdigit((unsigned char)text[0]))
        return false;
    errno = 0;
    uint64_t number = strtoull(text, &end, 10);
    if (errno != 0)
        return false;
    const char *unit = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
    if (unit) {
        const unsigned shift = 10 * (unsigned)(unit - units + 1);
        if (number > UINT64_MAX >> shift)
            return false;
        number <<= shift;
        end++;
        if (strcmp(end, "iB") == 0)
            end += 2;
    }
    *value = number;
    return *end == '\0';
}

static bool parse_value(const struct flag *flag, const char *text, void *field)
{
    switch (flag->form) {
    case TEXT:
        *(const char **)field = text;
        return text[0] != '\0';
    case SIZE:
        return parse_size(text, field);
    case COUNT:
        return parse_count(text, 1u << 20, field);
    case CHOICE:
        for (uint64_t i = 0; i < 2; i++) {
            if (strcmp(text, flag->choices[i]) == 0) {
                *(uint64_t *)field = i;
                return true;
            }
        }
        return false;
    default:
        return false;
    }
}

/* --- words --- */

static const struct flag *find_flag(const char *word)
{
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        if (strcmp(word, flags[i].name) == 0)
            return &flags[i];
    return strcmp(word, "-h") == 0 ? find_flag("--help") : NULL;
}

/* Takes the flag at argv[*at] and its value; `used` collects which. */
static int take_flag(int argc, char **argv, int *at, struct weights_arguments *arguments, uint32_t *used)
{
    const struct flag *flag = find_flag(argv[*at]);
    if (!flag)
        return weights_refuse("there is no flag", argv[*at]);
    void *field = (char *)arguments + flag->field;
    *used |= 1u << (flag - flags);
    if (flag->setting)
        arguments->settings_given = true;
    if (flag->form == SWITCH) {
        *(bool *)field = true;
        return WEIGHTS_DONE;
    }
    if (*at + 1 >= argc)
        return weights_refuse("a value is missing after", flag->name);
    const char *value = argv[++*at];
    if (!parse_value(flag, value, field)) {
        fprintf(stderr, "hostlane weights: %s \"%s\": ", flag->name, value);
        if (flag->form == CHOICE)
            fprintf(stderr, "not %s or %s\n", flag->choices[0], flag->choices[1]);
        else
            fprintf(stderr, "%s\n",
                    flag->form == TEXT   ? "empty"
                    : flag->form == SIZE ? "no size (4096, 512M, 80G)"
                                         : "no number");
        return WEIGHTS_USAGE;
    }
    return WEIGHTS_DONE;
}

static int check_used(const struct weights_arguments *arguments, uint32_t used)
{
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        if ((used & 1u << i) && !(flags[i].commands & 1u << arguments->command)) {
            fprintf(stderr, "hostlane weights: %s is no flag of %s; see hostlane weights --help\n",
                    flags[i].name, commands[arguments->command].word);
            return WEIGHTS_USAGE;
        }
    }
    return WEIGHTS_DONE;
}

/* What each command needs beside its flags' values. */
static int check_needs(const struct weights_arguments *arguments)
{
    const char *operand = arguments->operand;
    switch (arguments->command) {
    case WEIGHTS_IMPORT:
        if (!operand)
            return weights_refuse("import takes the folder to import", NULL);
        return arguments->identity
                   ? WEIGHTS_DONE
                   : weights_refuse("import takes --identity FILE; `hostlane weights identity "
                                    "--example` prints one to begin with",
                                    NULL);
    case WEIGHTS_SHOW:
        return operand ? WEIGHTS_DONE : weights_refuse("show takes a KEY of `hostlane weights ls`", NULL);
    case WEIGHTS_VERIFY:
        return !operand == arguments->all ? WEIGHTS_DONE : weights_refuse("verify takes KEY or --all", NULL);
    case WEIGHTS_DENY:
        if (!operand)
            return weights_refuse("deny takes a KEY of `hostlane weights ls`", NULL);
        return arguments->reason ? WEIGHTS_DONE
                                 : weights_refuse("deny takes --reason TEXT, which others will read", NULL);
    case WEIGHTS_CLEAN:
        return !operand == !!arguments->quarantined
                   ? WEIGHTS_DONE
                   : weights_refuse("clean takes KEY or --quarantined NAME", NULL);
    case WEIGHTS_IDENTITY:
        return !operand == arguments->example ? WEIGHTS_DONE
                                              : weights_refuse("identity takes FILE or --example", NULL);
    default:
        return WEIGHTS_DONE;
    }
}

static int find_command(const char *word, enum weights_command *command)
{
    for (unsigned i = 0; i < COMMANDS; i++) {
        if (strcmp(word, commands[i].word) == 0) {
            *command = (enum weights_command)i;
            return WEIGHTS_DONE;
        }
    }
    return weights_refuse("there is no command", word);
}

int weights_parse_arguments(int argc, char **argv, struct weights_arguments *arguments)
{
    uint32_t used = 0;
    bool found = false;
    _Static_assert(sizeof flags / sizeof flags[0] <= 32, "`used` has a bit for each flag");
    *arguments = (struct weights_arguments){.wait_seconds = UINT64_MAX,
                                            .max_artifact_bytes = HL_WEIGHT_NO_LIMIT,
                                            .max_store_bytes = HL_WEIGHT_NO_LIMIT};
    for (int at = 1; at < argc; at++) {
        int code = WEIGHTS_DONE;
        if (argv[at][0] == '-')
            code = take_flag(argc, argv, &at, arguments, &used);
        else if (!found) {
            code = find_command(argv[at], &arguments->command);
            found = true;
        } else if (commands[arguments->command].operand && !arguments->operand)
            arguments->operand = argv[at];
        else
            code = weights_refuse("too many arguments, from", argv[at]);
        if (code != WEIGHTS_DONE)
            return code;
    }
    if (arguments->help)
        return WEIGHTS_DONE;
    if (!found)
        return weights_refuse("a command is missing", NULL);
    arguments->wait_given = arguments->wait_seconds != UINT64_MAX;
    const int code = check_used(arguments, used);
    return code == WEIGHTS_DONE ? check_needs(arguments) : code;
}
