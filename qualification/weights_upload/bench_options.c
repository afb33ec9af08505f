/* Arguments. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hostlane/limits.h"
#include "qualification/weights_upload/upload_bench.h"

enum argument {
    DEVICE = 256,
    ORDINAL,
    DIR,
    GIB,
    STORE,
    IDENTITY,
    SAMPLES,
    SWEEP,
    VERIFY,
    KEEP,
    JSON,
    RING,
    SLOT,
    CHUNK,
    PIECE,
    THREADS,
    HELP
};

static const struct option longs[] = {{"device", required_argument, NULL, DEVICE},
                                      {"ordinal", required_argument, NULL, ORDINAL},
                                      {"dir", required_argument, NULL, DIR},
                                      {"gib", required_argument, NULL, GIB},
                                      {"store", required_argument, NULL, STORE},
                                      {"identity", required_argument, NULL, IDENTITY},
                                      {"samples", required_argument, NULL, SAMPLES},
                                      {"sweep", no_argument, NULL, SWEEP},
                                      {"verify", no_argument, NULL, VERIFY},
                                      {"keep", no_argument, NULL, KEEP},
                                      {"json", required_argument, NULL, JSON},
                                      {"ring-mib", required_argument, NULL, RING},
                                      {"slot-mib", required_argument, NULL, SLOT},
                                      {"chunk-mib", required_argument, NULL, CHUNK},
                                      {"piece-mib", required_argument, NULL, PIECE},
                                      {"threads", required_argument, NULL, THREADS},
                                      {"help", no_argument, NULL, HELP},
                                      {0}};

static void print_help(void)
{
    fputs("usage: upload_bench --dir FOLDER [OPTIONS]\n"
          "       upload_bench --store FOLDER --identity FILE [OPTIONS]\n"
          "\n"
          "Measures P11: host weights from a lease to a GPU, beside the link's ceiling.\n"
          "\n"
          "  --device cuda|software  software (default): what it shows has no meaning for a GPU\n"
          "  --ordinal N             of the CUDA device (default 0)\n"
          "  --dir FOLDER            makes a store in FOLDER/store, and removes it unless --keep\n"
          "  --gib G                 of tensors in it, of the shapes of an 8B model in bf16 (default 1)\n"
          "  --samples N             of each case after its first (default 5)\n"
          "  --sweep                 other slots and rings, and the parts of an upload\n"
          "  --verify                compares every byte after every case, not after the first ones only\n"
          "  --ring-mib N, --slot-mib N, --chunk-mib N, --piece-mib N, --threads N\n"
          "                          of the uploads (default: the library's)\n"
          "  --json FILE             every sample, the machine and the program's digest\n",
          stdout);
}

static bool parse_number(const char *text, double least, double most, double *number)
{
    char *end;
    errno = 0;
    *number = strtod(text, &end);
    return !errno && end != text && !*end && *number >= least && *number <= most;
}

static bool take_mib(const char *text, uint64_t *bytes)
{
    double number;
    if (!parse_number(text, 1, 65536, &number))
        return false;
    *bytes = (uint64_t)number * HL_MIB;
    return true;
}

static bool take_number(int argument, const char *text, struct bench_options *options)
{
    double number;
    switch (argument) {
    case ORDINAL:
        if (!parse_number(text, 0, 63, &number))
            return false;
        options->ordinal = (int)number;
        return true;
    case GIB:
        if (!parse_number(text, 0.001, 256, &number))
            return false;
        options->bytes = (uint64_t)(number * (double)HL_GIB);
        return true;
    case SAMPLES:
        if (!parse_number(text, 1, BENCH_SAMPLES - 1, &number))
            return false;
        options->samples = (unsigned)number;
        return true;
    case THREADS:
        if (!parse_number(text, 1, HL_UPLOAD_THREADS, &number))
            return false;
        options->upload.copy_threads = (uint32_t)number;
        return true;
    case RING:
        return take_mib(text, &options->upload.staging_bytes);
    case SLOT:
        return take_mib(text, &options->upload.slot_bytes);
    case CHUNK:
        return take_mib(text, &options->upload.register_chunk_bytes);
    case PIECE:
        return take_mib(text, &options->upload.register_piece_bytes);
    default:
        return false;
    }
}

static bool take(int argument, const char *text, struct bench_options *options)
{
    switch (argument) {
    case DEVICE:
        options->cuda = !strcmp(text, "cuda");
        return options->cuda || !strcmp(text, "software");
    case DIR:
        options->dir = text;
        return true;
    case STORE:
        options->store = text;
        return true;
    case IDENTITY:
        options->identity = text;
        return true;
    case SWEEP:
        options->sweep = true;
        return true;
    case VERIFY:
        options->verify = true;
        return true;
    case KEEP:
        options->keep = true;
        return true;
    case JSON:
        options->json = text;
        return true;
    default:
        return take_number(argument, text, options);
    }
}

bool bench_options_parse(int argc, char **argv, struct bench_options *options, int *exit_status)
{
    *options = (struct bench_options){.bytes = HL_GIB, .samples = 5};
    hl_weight_upload_options_init(&options->upload);
    *exit_status = 2;
    for (int argument; (argument = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
        if (argument == HELP) {
            print_help();
            *exit_status = 0;
            return false;
        }
        if (!take(argument, optarg, options)) {
            fprintf(stderr, "upload_bench: %s is not understood\n", argv[optind - 1]);
            return false;
        }
    }
    const bool made = options->dir && !options->store && !options->identity;
    const bool found = !options->dir && options->store && options->identity;
    if (optind == argc && (made || found))
        return true;
    fputs("upload_bench: --dir, or --store and --identity, are needed\n", stderr);
    return false;
}
