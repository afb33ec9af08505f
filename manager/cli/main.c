/* hostlane: asks a Manager what it holds, and tells it an operator's decision. `hostlane weights …` is about
 * host weights, which need no Manager. */
#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/weights/cli/cli.h"
#include "manager/cli/client.h"
#include "manager/cli/tables.h"
#include "manager/socket_path.h"

enum { EXIT_DONE, EXIT_FAILED, EXIT_USAGE };

struct command {
    const char *words[2]; /* the second may be NULL */
    enum hl_admin_verb verb;
    int operands;
    void (*print)(const json_t *answer, FILE *to);
};

static const struct command commands[] = {
    {{"status", NULL}, HL_ADMIN_STATUS, 0, cli_print_status},
    {{"sessions", NULL}, HL_ADMIN_SESSIONS, 0, cli_print_sessions},
    {{"arenas", NULL}, HL_ADMIN_ARENAS, 0, cli_print_arenas},
    {{"quarantine", "list"}, HL_ADMIN_QUARANTINE, 0, cli_print_quarantine},
    {{"quarantine", "release"}, HL_ADMIN_RELEASE, 4, cli_print_release},
    {{"check", NULL}, HL_ADMIN_CHECK, 0, cli_print_check},
};

static const char usage[] =
    "Usage: hostlane [--socket PATH] [--json] COMMAND\n\n"
    "  status      the Manager, its GPUs and totals\n"
    "  sessions    engines and tools, with their bindings\n"
    "  arenas      host memory\n"
    "  check       adds up every credit; fails when one has no owner\n"
    "  quarantine list\n"
    "              operations whose engine died, or broke the protocol, while copying\n"
    "  quarantine release EPOCH RECORD GENERATION TOKEN8 --yes-release-while-dma-may-run --operator NAME\n"
    "              gives the sources of one of them back, as `quarantine list` shows it. A GPU that still\n"
    "              reads them would read other blocks' bytes: be sure that it does not.\n"
    "  weights …   host weights, without a Manager: hostlane weights --help\n\n"
    "  --socket PATH  the Manager's socket; default $XDG_RUNTIME_DIR/hostlane/manager.sock, else\n"
    "                 /tmp/hostlane-UID/manager.sock\n"
    "  --json         the Manager's answer as it is\n"
    "Exit status: 0 done, 1 failed, 2 wrong usage.\n";

struct arguments {
    const char *socket, *operator_name;
    bool json, confirmed, help;
    const char *words[8];
    int word_count;
};

static int refuse(const char *what, const char *about)
{
    fprintf(stderr, "hostlane: %s%s%s%s; see hostlane --help\n", what, about ? " \"" : "", about ? about : "",
            about ? "\"" : "");
    return EXIT_USAGE;
}

static bool take_value(int argc, char *argv[], int *at, const char *name, const char **value)
{
    if (strcmp(argv[*at], name) != 0 || *at + 1 >= argc)
        return false;
    *value = argv[++*at];
    return true;
}

static int parse_arguments(int argc, char *argv[], struct arguments *arguments)
{
    const int most = sizeof arguments->words / sizeof arguments->words[0];
    for (int at = 1; at < argc; at++) {
        const char *word = argv[at];
        if (take_value(argc, argv, &at, "--socket", &arguments->socket) ||
            take_value(argc, argv, &at, "--operator", &arguments->operator_name))
            continue;
        if (strcmp(word, "--json") == 0)
            arguments->json = true;
        else if (strcmp(word, "--yes-release-while-dma-may-run") == 0)
            arguments->confirmed = true;
        else if (strcmp(word, "--help") == 0)
            arguments->help = true;
        else if (strcmp(word, "--socket") == 0 || strcmp(word, "--operator") == 0)
            return refuse("a value is missing after", word);
        else if (word[0] == '-')
            return refuse("there is no flag", word);
        else if (arguments->word_count == most)
            return refuse("too many arguments, from", word);
        else
            arguments->words[arguments->word_count++] = word;
    }
    return EXIT_DONE;
}

static const struct command *find_command(const struct arguments *arguments, int *words)
{
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        *words = commands[i].words[1] ? 2 : 1;
        if (arguments->word_count >= *words && strcmp(arguments->words[0], commands[i].words[0]) == 0 &&
            (*words == 1 || strcmp(arguments->words[1], commands[i].words[1]) == 0))
            return &commands[i];
    }
    return NULL;
}

/* --- what to release --- */

static bool parse_number(const char *text, unsigned long long most, uint64_t *value)
{
    assert(text); /* the command has as many operands as it needs */
    char *end;
    if (!isdigit((unsigned char)text[0]))
        return false;
    errno = 0;
    *value = strtoull(text, &end, strncmp(text, "0x", 2) == 0 ? 16 : 10);
    return errno == 0 && *end == '\0' && *value <= most;
}

/* 16 hexadecimal digits: the token's first eight bytes, in their order. */
static bool parse_token(const char *text, uint64_t *token)
{
    unsigned char bytes[8];
    if (strlen(text) != 16 || strspn(text, "0123456789abcdefABCDEF") != 16)
        return false;
    for (int i = 0; i < 8; i++) {
        const char digits[3] = {text[2 * i], text[2 * i + 1], '\0'};
        bytes[i] = (unsigned char)strtoul(digits, NULL, 16);
    }
    memcpy(token, bytes, sizeof bytes);
    return true;
}

static int fill_release(const struct arguments *arguments, const char *const *operands,
                        struct hl_admin *request)
{
    uint64_t record, generation;
    if (!parse_number(operands[0], ULLONG_MAX, &request->operation[0]))
        return refuse("EPOCH is no number:", operands[0]);
    if (!parse_number(operands[1], HL_GRANT_RECORDS - 1, &record))
        return refuse("RECORD is no record's number:", operands[1]);
    if (!parse_number(operands[2], UINT32_MAX, &generation))
        return refuse("GENERATION is no 32-bit number:", operands[2]);
    if (!parse_token(operands[3], &request->operation[2]))
        return refuse("TOKEN8 is not 16 hexadecimal digits:", operands[3]);
    if (!arguments->confirmed)
        return refuse("a GPU may still be reading these bytes: say --yes-release-while-dma-may-run", NULL);
    if (!arguments->operator_name || arguments->operator_name[0] == '\0')
        return refuse("the log says who released it: say --operator NAME", NULL);
    if (strlen(arguments->operator_name) >= sizeof request->operator_name)
        return refuse("the operator's name is too long:", arguments->operator_name);
    request->operation[1] = record << 32 | generation;
    request->confirmed = 1;
    memcpy(request->operator_name, arguments->operator_name, strlen(arguments->operator_name) + 1);
    return EXIT_DONE;
}

/* --- all --- */

static int ask(const struct arguments *arguments, const struct command *command, struct hl_admin *request)
{
    char path[PATH_MAX];
    json_t *answer;
    hl_error err;
    manager_socket_path(path);
    const char *socket = arguments->socket ? arguments->socket : path;
    if (cli_ask(socket, request, &answer, &err) != HL_OK) {
        const char *advice = cli_advice(err.status);
        fprintf(stderr, "hostlane: %s (%s)%s%s\n", err.text, hl_status_name(err.status), advice ? "\n" : "",
                advice ? advice : "");
        return EXIT_FAILED;
    }
    if (arguments->json) {
        json_dumpf(answer, stdout, JSON_INDENT(2) | JSON_SORT_KEYS);
        fputc('\n', stdout);
    } else {
        command->print(answer, stdout);
    }
    const json_t *ok = json_object_get(answer, "ok");
    int code = ok && !json_is_true(ok) ? EXIT_FAILED : EXIT_DONE;
    json_decref(answer);
    return fflush(stdout) == 0 ? code : EXIT_FAILED;
}

int main(int argc, char *argv[])
{
    struct arguments arguments = {0};
    int words;
    if (argc > 1 && strcmp(argv[1], "weights") == 0)
        return hl_weights_main(argc - 1, argv + 1);
    int code = parse_arguments(argc, argv, &arguments);
    if (code != EXIT_DONE)
        return code;
    if (arguments.help) {
        fputs(usage, stdout);
        return EXIT_DONE;
    }
    if (arguments.word_count == 0)
        return refuse("a command is missing", NULL);
    const struct command *command = find_command(&arguments, &words);
    if (!command)
        return refuse("there is no command", arguments.words[0]);
    if (arguments.word_count - words != command->operands)
        return refuse(command->operands ? "release takes EPOCH RECORD GENERATION TOKEN8 of `quarantine list`"
                                        : "too many arguments",
                      NULL);
    struct hl_admin request = {.verb = command->verb};
    if (command->verb == HL_ADMIN_RELEASE)
        code = fill_release(&arguments, arguments.words + words, &request);
    return code == EXIT_DONE ? ask(&arguments, command, &request) : code;
}
