/* `hostlane weights …` alone, for tests of its twin. */
#include <string.h>

#include "core/weights/cli/cli.h"

int main(int argc, char **argv)
{
    return argc > 1 && strcmp(argv[1], "weights") == 0 ? hl_weights_main(argc - 1, argv + 1) : 2;
}
