/* canonical_tool: for each line of standard input, a JSON document, writes one line: its canonical bytes, or
 * '!' and the name of the status with which it was refused. With the argument "identity" a line is an
 * identity, and the answer is its key and its canonical bytes. For comparing with another implementation. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/weights/json/json.h"
#include "hostlane/limits.h"
#include "hostlane/weights.h"

static const struct hl_json_rules rules = {
    .max_bytes = HL_WEIGHT_DOCUMENT_BYTES, .max_depth = 127, .stage = "weights.canonical"};

static hl_status put_document(const char *line, size_t size, struct hl_text *answer, hl_error *err)
{
    hl_json *document = NULL;
    hl_status status = hl_json_parse(line, size, &rules, &document, err);
    if (status != HL_OK)
        return status;
    hl_json_put_canonical(answer, hl_json_root(document));
    hl_json_free(document);
    return hl_text_status(answer, rules.stage, err);
}

static hl_status put_identity(const char *line, size_t size, struct hl_text *answer, hl_error *err)
{
    hl_weight_identity *identity = NULL;
    hl_status status = hl_weight_identity_parse(line, size, &identity, err);
    if (status != HL_OK)
        return status;
    size_t bytes = 0;
    const char *json = hl_weight_identity_json(identity, &bytes);
    hl_text_print(answer, "%s ", hl_weight_identity_key(identity));
    hl_text_append(answer, json, bytes);
    hl_weight_identity_free(identity);
    return hl_text_status(answer, rules.stage, err);
}

static bool answer_line(const char *line, size_t size, bool identities)
{
    hl_error err = {0};
    struct hl_text answer = {0};
    hl_status status =
        identities ? put_identity(line, size, &answer, &err) : put_document(line, size, &answer, &err);
    bool written = status == HL_OK ? fwrite(answer.bytes, 1, answer.size, stdout) == answer.size
                                   : printf("!%s %s", hl_status_name(status), err.text) > 0;
    hl_text_free(&answer);
    return written && putchar('\n') != EOF;
}

int main(int argc, char **argv)
{
    bool identities = argc == 2 && strcmp(argv[1], "identity") == 0;
    if (argc > 1 && !identities) {
        fprintf(stderr, "usage: canonical_tool [identity] < LINES\n");
        return 2;
    }
    char *line = NULL;
    size_t capacity = 0;
    ssize_t got;
    bool good = true;
    while (good && (got = getline(&line, &capacity, stdin)) >= 0)
        good = answer_line(line, (size_t)got - (line[got - 1] == '\n'), identities);
    free(line);
    if (!good || ferror(stdin) || fflush(stdout) != 0) {
        fprintf(stderr, "canonical_tool: input or output failed\n");
        return 1;
    }
    return 0;
}
