#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/random.h"
#include "core/base/sha256.h"
#include "engine/demo/processes/processes.h"

#define STAGE "demo.engine"

enum { PUBLISH_AT_ONCE = 4096 };

const char *const hl_demo_stage_names[6] = {"ready",   "dispatched", "dequeued",
                                            "claimed", "enqueued",   "drained"};

char **hl_demo_role_arguments(const hl_demo *demo, int argc, char **argv, const char *role,
                              const char *socket)
{
    enum { MORE = 6 };
    size_t count = (size_t)argc + MORE;
    char **words = calloc(count + 1, sizeof *words);
    if (!words)
        return NULL;
    size_t used = 0;
    words[used++] = "/proc/self/exe";
    for (int i = 1; i < argc; i++)
        words[used++] = argv[i];
    const char *more[MORE] = {"--role",   role,
                              "--socket", socket,
                              "--device", demo->dev->info.kind == HL_DEVICE_CUDA ? "cuda" : "software"};
    for (int i = 0; i < MORE; i++)
        words[used++] = (char *)more[i];
    return words;
}

void hl_demo_key(uint64_t number, hl_block_key *key)
{
    hl_random random;
    hl_random_seed(&random, number);
    hl_random_fill(&random, key->hash, sizeof key->hash);
}

/* --- the session --- */

/* Of the config file: it says all that the demo knows about what the bytes mean. */
static hl_status digest_model(const hl_demo *demo, unsigned char digest[32], hl_error *err)
{
    char hex[HL_SHA256_HEX_BYTES];
    hl_status status = hl_sha256_file(demo->config_path, hex, err);
    for (size_t i = 0; i < 32 && !status; i++) {
        char pair[3] = {hex[2 * i], hex[2 * i + 1], '\0'};
        digest[i] = (unsigned char)strtoul(pair, NULL, 16);
    }
    return status;
}

static hl_status register_tensors(hl_demo *demo, const char *instance, struct hl_demo_engine *engine,
                                  hl_error *err)
{
    const hl_layout *layout = demo->layout;
    hl_tensor *tensors = calloc(layout->tensor_count, sizeof *tensors);
    if (!tensors)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for %u tensors", layout->tensor_count);
    for (uint32_t t = 0; t < layout->tensor_count; t++)
        tensors[t] = (hl_tensor){.name = layout->tensors[t].name,
                                 .device_ptr = demo->tensors[t].base,
                                 .bytes = demo->tensors[t].bytes};
    hl_context_batch batch;
    hl_context_batch_init(&batch);
    batch.instance = instance;
    batch.rank = demo->options.tp_rank;
    batch.model = demo->geometry.name;
    batch.layout = layout;
    batch.tensors = tensors;
    batch.device = demo->dev->info.kind == HL_DEVICE_CUDA ? NULL : demo->dev;
    batch.route = hl_route_name(demo->options.route);
    batch.sm_cap = demo->options.sms;
    hl_status status = digest_model(demo, batch.model_digest, err);
    if (!status)
        status = hl_engine_register(engine->engine, &batch, &engine->binding, err);
    free(tensors);
    return status;
}

static void print_log(void *user, enum hl_log_level level, const char *text)
{
    if (level >= HL_LOG_WARNING)
        fprintf(stderr, "%s: %s\n", (const char *)user, text);
}

hl_status hl_demo_engine_open(hl_demo *demo, const char *instance, struct hl_demo_engine *engine,
                              hl_error *err)
{
    *engine = (struct hl_demo_engine){.demo = demo};
    hl_engine_options options;
    hl_engine_options_init(&options);
    options.socket_path = demo->options.socket;
    options.name = instance;
    options.log = print_log;
    options.log_user = (void *)instance;
    hl_status status = hl_engine_connect(&options, &engine->engine, err);
    if (status)
        return status;
    status = register_tensors(demo, instance, engine, err);
    if (status) {
        hl_engine_close(engine->engine);
        engine->engine = NULL;
    }
    return status;
}

void hl_demo_engine_close(struct hl_demo_engine *engine)
{
    if (engine->binding)
        (void)hl_engine_unregister(engine->binding, NULL); /* HL_E_PEER: the Manager was killed */
    hl_engine_close(engine->engine);
    *engine = (struct hl_demo_engine){0};
}

hl_status hl_demo_engine_publish(struct hl_demo_engine *engine, uint32_t group, const hl_block_key *keys,
                                 const uint32_t *pages, size_t count, hl_publish_result *total, hl_error *err)
{
    hl_status outcome = HL_OK;
    for (size_t first = 0; first < count; first += PUBLISH_AT_ONCE) {
        hl_publish_request request;
        hl_publish_request_init(&request);
        request.group = group;
        request.keys = keys + first;
        request.pages = pages + first;
        request.count = count - first < PUBLISH_AT_ONCE ? count - first : PUBLISH_AT_ONCE;
        request.producer_stream = engine->demo->work;
        request.has_producer_stream = true;
        hl_publish *publish;
        hl_publish_result result;
        hl_status status = hl_publish_start(engine->binding, &request, &publish, err);
        if (status)
            return status;
        status = hl_publish_wait(publish, HL_DEMO_PATIENCE_NS, &result, err);
        hl_publish_close(publish);
        if (status && status != HL_E_NOSPACE)
            return status;
        total->stored += result.stored;
        total->present += result.present;
        total->bytes += result.bytes;
        outcome = outcome ? outcome : status;
    }
    return outcome;
}

/* --- engine A --- */

static hl_status publish_groups(struct hl_demo_engine *engine, hl_publish_result *total, hl_error *err)
{
    const hl_demo *demo = engine->demo;
    hl_block_key *keys = calloc(demo->block_count, sizeof *keys);
    uint32_t *pages = calloc(demo->block_count, sizeof *pages);
    hl_status status = HL_OK;
    if (!keys || !pages)
        status = HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for the keys of %u blocks", demo->block_count);
    for (uint32_t b = 0; b < demo->block_count && !status; b++) {
        hl_demo_key(b, &keys[b]);
        pages[b] = demo->blocks[b].source;
    }
    for (uint32_t g = 0; g < demo->layout->group_count && !status; g++) {
        uint32_t first = demo->group_first[g];
        status = hl_demo_engine_publish(engine, g, keys + first, pages + first, hl_demo_group_blocks(demo, g),
                                        total, err);
    }
    free(keys);
    free(pages);
    return status;
}

static hl_status publish_and_wait(hl_demo *demo, hl_error *err)
{
    struct hl_demo_engine engine;
    hl_status status = hl_demo_plan_geometry(demo, err);
    if (!status)
        status = hl_demo_allocate_device_memory(demo, err);
    if (!status)
        status = hl_demo_fill(demo, HL_DEMO_SOURCES, err);
    if (!status)
        status = hl_demo_engine_open(demo, "engine A", &engine, err);
    if (status)
        return status;
    hl_publish_result total = {0};
    int64_t start = hl_clock_ns();
    status = publish_groups(&engine, &total, err);
    int64_t publish_ns = hl_clock_ns() - start;
    if (!status && total.stored != demo->block_count)
        status = HL_FAIL(err, HL_E_STATE, STAGE, "%llu of %u blocks were stored",
                         (unsigned long long)total.stored, demo->block_count);
    if (!status)
        status = hl_demo_send_report(json_pack("{s:s, s:I, s:I, s:I}", "event", "published", "blocks",
                                               (json_int_t)total.stored, "bytes", (json_int_t)total.bytes,
                                               "publish_ns", (json_int_t)publish_ns),
                                     err);
    if (!status) /* SIGKILL comes instead */
        status = hl_demo_await_command(err);
    hl_demo_engine_close(&engine);
    return status;
}

/* --- every role --- */

static hl_status run_engine(hl_demo *demo, struct hl_demo_mismatch *mismatch, hl_error *err)
{
    const char *role = demo->options.role;
    if (!strcmp(role, "publish"))
        return publish_and_wait(demo, err);
    if (!strcmp(role, "restore"))
        return hl_demo_restore_role(demo, mismatch, err);
    if (!strcmp(role, "replay"))
        return hl_demo_replay_role(demo, mismatch, err);
    return HL_FAIL(err, HL_E_INVALID, STAGE, "--role %.40s: no such role", role);
}

static int enter_and_run(hl_demo *demo)
{
    hl_error err = {0};
    struct hl_demo_mismatch mismatch = {0};
    hl_status status = hl_device_enter(demo->dev, &err);
    if (!status) {
        status = run_engine(demo, &mismatch, &err);
        hl_demo_close(demo);
        hl_device_leave(demo->dev);
    }
    if (status)
        hl_demo_report_error(demo, &err, stderr);
    else if (mismatch.what)
        hl_demo_report_mismatch(&mismatch, stdout);
    if (status)
        return HL_DEMO_ERROR;
    return mismatch.what ? HL_DEMO_MISMATCH : HL_DEMO_OK;
}

int hl_demo_run_role(hl_demo *demo)
{
    hl_error err;
    if (!demo->options.socket) {
        fprintf(stderr, "hostlane-demo: --role is for the processes that the demo starts itself\n");
        return HL_DEMO_USAGE;
    }
    hl_demo_become_child();
    if (!strcmp(demo->options.role, "manager"))
        return hl_demo_manager_role(&demo->options);
    if (hl_demo_open_device(&demo->options, &demo->dev, &err)) {
        hl_demo_report_error(demo, &err, stderr);
        return HL_DEMO_ERROR;
    }
    assert(demo->dev);
    int code = enter_and_run(demo);
    hl_device_close(demo->dev);
    return code;
}
