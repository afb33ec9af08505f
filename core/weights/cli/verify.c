/* verify: hashes every byte of one artifact or of all that are ready. It reports and denies nothing: what to
 * do about a bad one is the operator's decision. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/weights/cli/commands.h"
#include "core/weights/cli/open.h"
#include "core/weights/cli/print.h"
#include "core/weights/cli/progress.h"
#include "core/weights/store/store.h"

struct verification {
    hl_weight_store *store;
    bool json, terminal;
    bool listed;         /* the keys come from the inventory */
    struct hl_text list; /* of JSON objects */
    size_t good, bad;
};

static void report_json(struct verification *all, const char *key, const hl_weight_failure *failure,
                        uint64_t bytes, int64_t elapsed_ns)
{
    weights_json_open(&all->list, NULL, '{');
    weights_json_string(&all->list, "key", key);
    weights_json_bool(&all->list, "valid", !failure);
    if (failure)
        weights_json_failure(&all->list, "failure", failure);
    else {
        weights_json_number(&all->list, "bytes", bytes);
        weights_json_number(&all->list, "elapsed_ns", (uint64_t)elapsed_ns);
    }
    weights_json_close(&all->list, '}');
}

static void report(struct verification *all, const char *key, const hl_weight_failure *failure,
                   uint64_t bytes, int64_t elapsed_ns)
{
    char size[WEIGHTS_SIZE_BYTES], rate[WEIGHTS_SIZE_BYTES];
    *(failure ? &all->bad : &all->good) += 1;
    if (all->json) {
        report_json(all, key, failure, bytes, elapsed_ns);
        return;
    }
    if (failure) {
        printf("%s  BAD\n", key);
        weights_print_failure(stdout, "  ", failure);
        return;
    }
    const double seconds = (double)elapsed_ns / (double)HL_NS_PER_S;
    printf("%s  good, %s (%s/s)\n", key, weights_size(size, bytes),
           weights_size(rate, seconds > 0 ? (uint64_t)((double)bytes / seconds) : 0));
}

/* On a terminal: what is being hashed, as long as it takes. */
static void show_work(const struct verification *all, const char *key)
{
    if (all->terminal)
        fprintf(stderr, "hashing %.64s…", key);
}

static void hide_work(const struct verification *all)
{
    if (all->terminal)
        fprintf(stderr, "\r%80s\r", "");
}

static void verify_one(struct verification *all, const char *key)
{
    hl_weight_artifact_snapshot *artifact = NULL;
    hl_weight_failure failure;
    const int64_t started = hl_clock_ns();
    show_work(all, key);
    hl_status status =
        hl_weight_store_inspect_artifact(all->store, key, HL_WEIGHT_FULL_CHECKSUM, &artifact, &failure);
    hide_work(all);
    if (status == HL_OK && !artifact->present && all->listed) { /* removed since */
        hl_weight_artifact_snapshot_free(artifact);
        return;
    }
    if (status == HL_OK && !artifact->present)
        status = HL_WEIGHT_FAIL(&failure, LOOKUP, LOCAL_MISS, false, "there is no artifact %s", key);
    if (status != HL_OK)
        report(all, key, &failure, 0, 0);
    else
        report(all, key, artifact->valid ? NULL : &artifact->failure, artifact->bytes,
               hl_clock_ns() - started);
    hl_weight_artifact_snapshot_free(artifact);
}

static hl_status verify_all(struct verification *all, hl_weight_failure *failure)
{
    hl_weight_domain_snapshot *domain;
    const hl_status status = hl_weight_store_inspect_domain(all->store, &domain, failure);
    if (status != HL_OK)
        return status;
    for (size_t i = 0; i < domain->inventory_count; i++)
        if (domain->inventory[i].state == HL_WEIGHT_STATE_READY)
            verify_one(all, domain->inventory[i].artifact_key);
    hl_weight_domain_snapshot_free(domain);
    return HL_OK;
}

static bool print_end(struct verification *all)
{
    if (!all->json) {
        if (all->good + all->bad != 1)
            printf("%zu good, %zu bad\n", all->good, all->bad);
        return fflush(stdout) == 0;
    }
    struct hl_text json = {0};
    weights_json_open(&json, NULL, '{');
    weights_json_bool(&json, "ok", all->bad == 0);
    weights_json_close(&all->list, ']');
    weights_json_raw(&json, "artifacts", all->list.failed ? "null" : all->list.bytes);
    weights_json_close(&json, '}');
    return weights_json_print(&json);
}

int weights_verify(const struct weights_arguments *arguments)
{
    struct verification all = {.json = arguments->json,
                               .terminal = !arguments->json && isatty(STDERR_FILENO),
                               .listed = arguments->all};
    hl_weight_failure failure;
    int code = weights_open_store(arguments, WEIGHTS_LOOKS, &all.store);
    if (code != WEIGHTS_DONE)
        return code;
    weights_json_open(&all.list, NULL, '[');
    if (!arguments->all)
        verify_one(&all, arguments->operand);
    else if (verify_all(&all, &failure) != HL_OK)
        code = weights_fail(arguments->json, &failure);
    if (code == WEIGHTS_DONE)
        code = print_end(&all) && all.bad == 0 ? WEIGHTS_DONE : WEIGHTS_FAILED;
    hl_text_free(&all.list);
    hl_weight_store_close(all.store);
    return code;
}
