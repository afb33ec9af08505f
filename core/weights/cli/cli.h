/* core/weights/cli owns the words `hostlane weights …`: an operator's way to import, list, look at, verify,
 * deny and remove artifacts. It needs no Manager. It calls core/weights/store through hostlane/weights.h, and
 * core/weights/safetensors and core/weights/json for the folders that it imports. Only the tool calls it, and
 * only this room of the core prints. */
#ifndef CORE_WEIGHTS_CLI_CLI_H
#define CORE_WEIGHTS_CLI_CLI_H

/* argv[0] is the word before the command ("weights"). Returns the exit status: 0 done, 1 failed, 2 wrong
 * usage. */
int hl_weights_main(int argc, char **argv);

#endif
