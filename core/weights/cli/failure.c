/* How the tool says a failure. */
#include <errno.h>
#include <string.h>

#include "core/weights/cli/arguments.h"
#include "core/weights/cli/interrupt.h"
#include "core/weights/cli/print.h"

/* What somebody at the command line can do, where that is more than the library's own words say. NULL: those
 * do. */
static const char *own_remedy(const hl_weight_failure *failure)
{
    switch (failure->code) {
    case HL_WEIGHT_DOMAIN_UNAVAILABLE:
        if (failure->error.sys_errno == EROFS)
            return "ls, show, verify and where work on a read-only file system; to change the store, mount "
                   "it "
                   "writable";
        if (failure->error.sys_errno == ENOENT || failure->error.sys_errno == ENOTDIR)
            return "name the store's folder with --store ROOT or $HOSTLANE_WEIGHTS; `hostlane weights "
                   "import` "
                   "creates it, in a folder that exists";
        return NULL;
    case HL_WEIGHT_STORAGE_CLASS_MISMATCH:
        return "give --storage-class as the file system is (disk or tmpfs), or another folder with --store";
    case HL_WEIGHT_DOMAIN_POLICY_MISMATCH:
        return "leave the store's settings out, or give those that `hostlane weights where` shows";
    case HL_WEIGHT_LOCAL_MISS:
        return "`hostlane weights ls` shows what the store holds";
    case HL_WEIGHT_ARTIFACT_DENIED:
        return "import it again, which replaces it, or remove it with `hostlane weights clean`";
    case HL_WEIGHT_PRODUCER_FAILED:
        return weights_interrupted()
                   ? "import it again; what was copied so far is removed"
                   : "correct the folder that is imported, or download it again; of a Hugging Face cache it "
                     "is snapshots/REVISION";
    default:
        return NULL;
    }
}

const char *weights_remedy(const hl_weight_failure *failure)
{
    const char *own = own_remedy(failure);
    return own ? own : hl_weight_code_remedy(failure->code);
}

void weights_json_failure(struct hl_text *json, const char *key, const hl_weight_failure *failure)
{
    weights_json_open(json, key, '{');
    weights_json_string(json, "stage", hl_weight_stage_name(failure->stage));
    weights_json_string(json, "code", hl_weight_code_name(failure->code));
    weights_json_string(json, "status", hl_status_name(failure->error.status));
    weights_json_bool(json, "retryable", failure->retryable);
    weights_json_string(json, "text", failure->error.text);
    weights_json_raw(json, "details", failure->details[0] ? failure->details : "{}");
    weights_json_string(json, "remedy", weights_remedy(failure));
    weights_json_close(json, '}');
}

void weights_print_failure(FILE *to, const char *indent, const hl_weight_failure *failure)
{
    char text[sizeof failure->error.text];
    memcpy(text, failure->error.text, sizeof text);
    fprintf(to, "%s%s: %s: %s\n", indent, hl_weight_stage_name(failure->stage),
            hl_weight_code_name(failure->code), weights_plain(text));
    if (failure->details[0] && strcmp(failure->details, "{}") != 0)
        fprintf(to, "%sdetails: %s\n", indent, failure->details);
    fprintf(to, "%swhat to do: %s%s\n", indent, weights_remedy(failure),
            failure->retryable && !own_remedy(failure) ? " (it may pass: try again)" : "");
}

int weights_fail(bool json, const hl_weight_failure *failure)
{
    if (!json) {
        fputs("hostlane weights: failed\n", stderr);
        weights_print_failure(stderr, "  ", failure);
        return WEIGHTS_FAILED;
    }
    struct hl_text text = {0};
    weights_json_open(&text, NULL, '{');
    weights_json_bool(&text, "ok", false);
    weights_json_failure(&text, "failure", failure);
    weights_json_close(&text, '}');
    weights_json_print(&text);
    return WEIGHTS_FAILED;
}
