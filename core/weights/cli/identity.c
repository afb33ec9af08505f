/* Identities on the command line: reading one, its key, and an example to begin with. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/weights/cli/commands.h"
#include "core/weights/cli/print.h"
#include "core/weights/store/store.h"

#define STAGE "weights.identity"
#define PLACEHOLDER "REPLACE-ME"

/* Valid as it stands. An import refuses it while a placeholder is left. */
static const char example[] = "{\n"
                              "  \"schema_version\": 1,\n"
                              "  \"source\": {\n"
                              "    \"model_id\": \"" PLACEHOLDER "-organisation/model\",\n"
                              "    \"revision\": \"" PLACEHOLDER "-immutable-commit\",\n"
                              "    \"fingerprint\": \"" PLACEHOLDER "-digest-of-the-source-files\",\n"
                              "    \"metadata\": {}\n"
                              "  },\n"
                              "  \"component\": {\n"
                              "    \"name\": \"transformer\",\n"
                              "    \"ownership\": \"model\",\n"
                              "    \"metadata\": {}\n"
                              "  },\n"
                              "  \"representation\": {\n"
                              "    \"name\": \"checkpoint\",\n"
                              "    \"dtype\": \"torch.bfloat16\",\n"
                              "    \"metadata\": {}\n"
                              "  },\n"
                              "  \"layout\": {\n"
                              "    \"name\": \"checkpoint-layout\",\n"
                              "    \"tensor_parallel_size\": 1,\n"
                              "    \"tensor_parallel_rank\": 0,\n"
                              "    \"sequence_parallel_size\": 1,\n"
                              "    \"sequence_parallel_backend\": \"none\",\n"
                              "    \"metadata\": {}\n"
                              "  },\n"
                              "  \"adaptation\": {\n"
                              "    \"kind\": \"base\",\n"
                              "    \"fingerprint\": null,\n"
                              "    \"metadata\": {}\n"
                              "  },\n"
                              "  \"producer\": {\n"
                              "    \"producer_id\": \"hostlane.import\",\n"
                              "    \"version\": \"1\",\n"
                              "    \"implementation_fingerprint\": \"hostlane.import-1\",\n"
                              "    \"manifest_schema\": \"hostlane-import-v1\",\n"
                              "    \"restorer_schema\": \"" PLACEHOLDER "-what-your-loader-understands\"\n"
                              "  }\n"
                              "}\n";

static hl_status read_file(const char *path, char **text, size_t *bytes, hl_error *err)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    char *read_text = malloc(HL_WEIGHT_IDENTITY_BYTES + 1);
    size_t done = 0;
    ssize_t got = -1;
    hl_status status = HL_OK;
    if (fd < 0)
        status = HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot open %.160s", path);
    else if (!read_text)
        status = HL_FAIL(err, HL_E_NOMEM, STAGE, "an identity's text");
    while (status == HL_OK && done <= HL_WEIGHT_IDENTITY_BYTES) {
        got = read(fd, read_text + done, HL_WEIGHT_IDENTITY_BYTES + 1 - done);
        if (got == 0)
            break;
        if (got > 0)
            done += (size_t)got;
        else if (errno != EINTR)
            status = HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "cannot read %.160s", path);
    }
    if (status == HL_OK && done > HL_WEIGHT_IDENTITY_BYTES)
        status = HL_FAIL(err, HL_E_LIMIT, STAGE, "%.160s is longer than %llu bytes", path,
                         HL_WEIGHT_IDENTITY_BYTES);
    if (fd >= 0)
        close(fd);
    if (status != HL_OK) {
        free(read_text);
        return status;
    }
    *text = read_text;
    *bytes = done;
    return HL_OK;
}

int weights_read_identity(const struct weights_arguments *arguments, const char *path,
                          hl_weight_identity **identity)
{
    char *text = NULL;
    size_t bytes = 0;
    hl_weight_failure failure;
    hl_error err = {0};
    hl_status status = read_file(path, &text, &bytes, &err);
    if (status == HL_OK)
        status = hl_weight_identity_parse(text, bytes, identity, &err);
    free(text);
    if (status == HL_OK)
        return WEIGHTS_DONE;
    (void)HL_WEIGHT_FAIL_ERRNO(&failure, CONFIGURATION, INVALID_CONFIG, false, 0, "identity %.80s: %s", path,
                               err.text);
    return weights_fail(arguments->json, &failure);
}

int weights_check_placeholders(const struct weights_arguments *arguments, const hl_weight_identity *identity)
{
    hl_weight_failure failure;
    if (!strstr(hl_weight_identity_json(identity, NULL), PLACEHOLDER))
        return WEIGHTS_DONE;
    (void)HL_WEIGHT_FAIL(&failure, CONFIGURATION, INVALID_CONFIG, false,
                         "identity %.160s still holds a placeholder of the example, " PLACEHOLDER "-…",
                         arguments->identity);
    return weights_fail(arguments->json, &failure);
}

int weights_show_identity(const struct weights_arguments *arguments)
{
    hl_weight_identity *identity = NULL;
    if (arguments->example) {
        fputs(example, stdout);
        return fflush(stdout) == 0 ? WEIGHTS_DONE : WEIGHTS_FAILED;
    }
    const int code = weights_read_identity(arguments, arguments->operand, &identity);
    if (code != WEIGHTS_DONE)
        return code;
    bool good;
    if (arguments->json) {
        struct hl_text json = {0};
        weights_json_open(&json, NULL, '{');
        weights_json_bool(&json, "ok", true);
        weights_json_string(&json, "key", hl_weight_identity_key(identity));
        weights_json_raw(&json, "identity", hl_weight_identity_json(identity, NULL));
        weights_json_close(&json, '}');
        good = weights_json_print(&json);
    } else {
        printf("%s\n", hl_weight_identity_key(identity));
        good = fflush(stdout) == 0;
    }
    hl_weight_identity_free(identity);
    return good ? WEIGHTS_DONE : WEIGHTS_FAILED;
}
