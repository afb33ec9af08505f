#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/error.h"
#include "qualification/bench/latency.h"

#define STAGE "latency.options"

enum latency_option {
    DEVICE = 256,
    ORDINAL,
    SAMPLES,
    WARMUP,
    SPIN,
    SPIN_US,
    CASE,
    SLOTS,
    ROUTE,
    SMS,
    ASCENDING,
    EVENTS,
    ONLY,
    JSON,
    ROLE,
    SOCKET,
    HELP
};

static const struct option longs[] = {{"device", required_argument, NULL, DEVICE},
                                      {"ordinal", required_argument, NULL, ORDINAL},
                                      {"samples", required_argument, NULL, SAMPLES},
                                      {"warmup", required_argument, NULL, WARMUP},
                                      {"spin", required_argument, NULL, SPIN},
                                      {"spin-us", required_argument, NULL, SPIN_US},
                                      {"case", required_argument, NULL, CASE},
                                      {"slots", required_argument, NULL, SLOTS},
                                      {"route", required_argument, NULL, ROUTE},
                                      {"sms", required_argument, NULL, SMS},
                                      {"ascending", no_argument, NULL, ASCENDING},
                                      {"layer-events", no_argument, NULL, EVENTS},
                                      {"restores-only", no_argument, NULL, ONLY},
                                      {"json", required_argument, NULL, JSON},
                                      {"role", required_argument, NULL, ROLE},
                                      {"socket", required_argument, NULL, SOCKET},
                                      {"help", no_argument, NULL, HELP},
                                      {0}};

void latency_options_help(FILE *out)
{
    fputs("usage: restore_latency [OPTIONS]\n"
          "\n"
          "Measures P5 and P6: a restore from its start to its outcome, the Manager in another process.\n"
          "\n"
          "  --device cuda|software  software (default): what it shows has no meaning for a GPU\n"
          "  --ordinal N             of the CUDA device (default 0)\n"
          "  --case p5|p6|all        default all\n"
          "  --spin on|off|both      default both\n"
          "  --spin-us N             of Manager and engine where they spin (default 200)\n"
          "  --samples N             of each thing measured (default 150)\n"
          "  --warmup N              before them (default 20)\n"
          "  --route auto|direct|kernel  default auto\n"
          "  --sms N                 SMs that the gather kernel may take (default 8)\n"
          "  --ascending             destinations in order instead of scattered\n"
          "  --layer-events          each restore records an event a layer\n"
          "  --slots N               restores between two comparisons (default: by device and case)\n"
          "  --restores-only         no floors and no traced pass\n"
          "  --json FILE             every sample, the machine and the program's digest\n",
          out);
}

static hl_status parse_number(const char *name, const char *text, uint32_t least, uint32_t most,
                              uint32_t *value, hl_error *err)
{
    char *end;
    errno = 0;
    long number = strtol(text, &end, 10);
    if (errno || end == text || *end || number < (long)least || number > (long)most)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "--%s %.40s: a number from %u to %u is needed", name, text,
                       least, most);
    *value = (uint32_t)number;
    return HL_OK;
}

/* Which of two words, or of a third for both. */
static hl_status parse_pair(const char *name, const char *text, const char *const words[3], bool *first,
                            bool *second, hl_error *err)
{
    bool both = !strcmp(text, words[2]);
    *first = both || !strcmp(text, words[0]);
    *second = both || !strcmp(text, words[1]);
    if (*first || *second)
        return HL_OK;
    return HL_FAIL(err, HL_E_INVALID, STAGE, "--%s %.40s: %s, %s or %s is needed", name, text, words[0],
                   words[1], words[2]);
}

static hl_status parse_device(const char *text, struct latency_options *options, hl_error *err)
{
    options->cuda = !strcmp(text, "cuda");
    if (options->cuda || !strcmp(text, "software"))
        return HL_OK;
    return HL_FAIL(err, HL_E_INVALID, STAGE, "--device %.40s: cuda or software is needed", text);
}

static hl_status parse_one(int option, const char *text, struct latency_options *options, hl_error *err)
{
    static const char *const spins[3] = {"on", "off", "both"}, *const cases[3] = {"p5", "p6", "all"};
    uint32_t number;
    hl_status status;
    switch (option) {
    case DEVICE:
        return parse_device(text, options, err);
    case ORDINAL:
        status = parse_number("ordinal", text, 0, 63, &number, err);
        if (!status)
            options->ordinal = (int)number;
        return status;
    case SAMPLES:
        return parse_number("samples", text, 4, 1000000, &options->samples, err);
    case WARMUP:
        return parse_number("warmup", text, 0, 1000000, &options->warmup, err);
    case SPIN:
        return parse_pair("spin", text, spins, &options->spin_on, &options->spin_off, err);
    case SPIN_US:
        return parse_number("spin-us", text, 1, 10000, &options->spin_us, err);
    case CASE:
        return parse_pair("case", text, cases, &options->case_p5, &options->case_p6, err);
    case SLOTS:
        return parse_number("slots", text, LATENCY_REWARM + 1, 100000, &options->slots, err);
    case ROUTE:
        return hl_route_parse(text, &options->route, err);
    case SMS:
        return parse_number("sms", text, 1, HL_TRANSFER_MAX_SMS, &options->sms, err);
    case ASCENDING:
        options->ascending = true;
        return HL_OK;
    case EVENTS:
        options->layer_events = true;
        return HL_OK;
    case ONLY:
        options->restores_only = true;
        return HL_OK;
    case JSON:
        options->json = text;
        return HL_OK;
    case ROLE:
        options->role = text;
        return HL_OK;
    case SOCKET:
        options->socket = text;
        return HL_OK;
    default:
        return HL_FAIL(err, HL_E_INVALID, STAGE, "the arguments are not understood");
    }
}

hl_status latency_options_parse(int argc, char **argv, struct latency_options *options, bool *help,
                                hl_error *err)
{
    *options = (struct latency_options){.samples = 150,
                                        .warmup = 20,
                                        .spin_us = 200,
                                        .spin_on = true,
                                        .spin_off = true,
                                        .case_p5 = true,
                                        .case_p6 = true,
                                        .route = HL_ROUTE_AUTO,
                                        .sms = 8};
    *help = false;
    for (int option; (option = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
        if (option == HELP) {
            *help = true;
            return HL_OK;
        }
        hl_status status = parse_one(option, optarg, options, err);
        if (status)
            return status;
    }
    if (optind < argc)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "%.60s is no option", argv[optind]);
    if (options->role && (strcmp(options->role, "manager") != 0 || !options->socket))
        return HL_FAIL(err, HL_E_INVALID, STAGE, "--role is for processes that this program starts itself");
    return HL_OK;
}
