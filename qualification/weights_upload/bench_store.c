/* A store with the tensors of an 8B model, as many of its layers as were asked for, in several files; or one
 * that exists. */
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statfs.h>

#include "core/base/random.h"
#include "hostlane/limits.h"
#include "qualification/weights_upload/upload_bench.h"

/* What tensors are filled from, at changing offsets. */
#define POOL_BYTES (64 * HL_MIB)
#define WRITE_BYTES (8 * HL_MIB)

/* Of a layer of Llama 3 8B: vocabulary 128256, hidden 4096, 8 heads of keys and values, 14336 inside. */
enum { VOCABULARY = 128256, HIDDEN = 4096, KEYS = 1024, INSIDE = 14336, PARTS = 9 };
static const struct {
    const char *name;
    uint64_t rows, columns;
} layer_parts[PARTS] = {
    {"input_layernorm.weight", HIDDEN, 1},       {"self_attn.q_proj.weight", HIDDEN, HIDDEN},
    {"self_attn.k_proj.weight", KEYS, HIDDEN},   {"self_attn.v_proj.weight", KEYS, HIDDEN},
    {"self_attn.o_proj.weight", HIDDEN, HIDDEN}, {"post_attention_layernorm.weight", HIDDEN, 1},
    {"mlp.gate_proj.weight", INSIDE, HIDDEN},    {"mlp.up_proj.weight", INSIDE, HIDDEN},
    {"mlp.down_proj.weight", HIDDEN, INSIDE},
};

static const char identity_json[] =
    "{\"schema_version\":1,\"source\":{\"model_id\":\"bench/"
    "upload\",\"revision\":\"0\",\"fingerprint\":\"f\","
    "\"metadata\":{}},\"component\":{\"name\":\"transformer\",\"ownership\":\"llm\",\"metadata\":{}},"
    "\"representation\":{\"name\":\"bf16\",\"dtype\":\"torch.bfloat16\",\"metadata\":{}},\"layout\":{"
    "\"name\":\"final\",\"tensor_parallel_size\":1,\"tensor_parallel_rank\":0,\"sequence_parallel_size\":1,"
    "\"sequence_parallel_backend\":\"none\",\"metadata\":{}},\"adaptation\":{\"kind\":\"base\","
    "\"fingerprint\":null,\"metadata\":{}},\"producer\":{\"producer_id\":\"bench\",\"version\":\"1\","
    "\"implementation_fingerprint\":\"i\",\"manifest_schema\":\"m1\",\"restorer_schema\":\"r1\"}}";

struct made {
    hl_weight_writer *writer;
    hl_weight_tensor_spec *specs;
    uint64_t (*shapes)[2];
    char (*names)[96];
    size_t count;
    unsigned char *pool;
    hl_error errors[BENCH_FILES];
};

static void add(struct made *made, uint64_t rows, uint64_t columns)
{
    uint64_t *shape = made->shapes[made->count];
    shape[0] = rows;
    shape[1] = columns;
    made->specs[made->count] = (hl_weight_tensor_spec){.name = made->names[made->count],
                                                       .kind = HL_WEIGHT_PARAMETER,
                                                       .role = "weight",
                                                       .dtype = "torch.bfloat16",
                                                       .rank = columns == 1 ? 1 : 2,
                                                       .shape = shape};
    made->count++;
}

static uint64_t layer_bytes(uint64_t divisor)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < PARTS; i++) {
        const uint64_t columns = layer_parts[i].columns;
        bytes += 2 * (layer_parts[i].rows / divisor) * (columns == 1 ? 1 : columns / divisor);
    }
    return bytes;
}

/* A model too large for two layers is made narrower. */
static void plan_tensors(struct made *made, uint64_t bytes)
{
    uint64_t divisor = 1;
    while (divisor < 64 && 2 * (VOCABULARY / divisor) * (HIDDEN / divisor) + 2 * layer_bytes(divisor) > bytes)
        divisor *= 2;
    const uint64_t embedding = 2 * (VOCABULARY / divisor) * (HIDDEN / divisor);
    const uint64_t left = bytes > embedding ? bytes - embedding : 0;
    const size_t layers = (left + layer_bytes(divisor) / 2) / layer_bytes(divisor) + 1;
    const size_t most = 1 + layers * PARTS;
    made->specs = calloc(most, sizeof *made->specs);
    made->shapes = calloc(most, sizeof *made->shapes);
    made->names = calloc(most, sizeof *made->names);
    if (!made->specs || !made->shapes || !made->names)
        bench_die("no memory for the tensors' names", NULL);
    snprintf(made->names[0], sizeof made->names[0], "model.embed_tokens.weight");
    add(made, VOCABULARY / divisor, HIDDEN / divisor);
    for (size_t layer = 0; layer < layers; layer++)
        for (unsigned i = 0; i < PARTS; i++) {
            const uint64_t columns = layer_parts[i].columns;
            snprintf(made->names[made->count], sizeof made->names[0], "model.layers.%zu.%s", layer,
                     layer_parts[i].name);
            add(made, layer_parts[i].rows / divisor, columns == 1 ? 1 : columns / divisor);
        }
}

static hl_status write_tensor(const struct made *made, hl_weight_payload *payload, size_t index,
                              size_t in_file, hl_error *err)
{
    const uint64_t bytes = 2 * made->shapes[index][0] * made->shapes[index][1];
    hl_status status = HL_OK;
    for (uint64_t done = 0; !status && done < bytes; done += WRITE_BYTES) {
        const uint64_t size = bytes - done < WRITE_BYTES ? bytes - done : WRITE_BYTES;
        const uint64_t at = (index * 7919 + done / WRITE_BYTES) * 1000003 * 8 % (POOL_BYTES - WRITE_BYTES);
        status = hl_weight_payload_write(payload, in_file, done, made->pool + at, size, err);
    }
    return status;
}

static void write_file(void *context, unsigned file, unsigned files)
{
    struct made *made = context;
    hl_error *err = &made->errors[file];
    const size_t first = made->count * file / files, end = made->count * (file + 1) / files;
    char name[64];
    hl_weight_payload *payload;
    snprintf(name, sizeof name, "model-%05u-of-%05u.safetensors", file + 1, files);
    err->status = hl_weight_writer_open(made->writer, name, made->specs + first, end - first, &payload, err);
    if (err->status)
        return;
    for (size_t i = first; i < end && !err->status; i++)
        err->status = write_tensor(made, payload, i, i - first, err);
    hl_error closing;
    const hl_status closed = hl_weight_payload_close(payload, &closing);
    if (!err->status && closed)
        *err = closing;
}

static hl_status produce(void *context, hl_weight_writer *writer, hl_error *err)
{
    struct made *made = context;
    made->writer = writer;
    bench_parallel(BENCH_FILES, write_file, made);
    for (unsigned i = 0; i < BENCH_FILES; i++)
        if (made->errors[i].status) {
            *err = made->errors[i];
            return err->status;
        }
    return HL_OK;
}

static void fill_pool(void *context, unsigned index, unsigned threads)
{
    struct made *made = context;
    hl_random random;
    hl_random_seed(&random, index + 1);
    hl_random_fill(&random, made->pool + index * (POOL_BYTES / threads), POOL_BYTES / threads);
}

static void build(struct bench_world *world)
{
    struct made made = {.pool = malloc(POOL_BYTES)};
    const char *key = hl_weight_identity_key(world->identity);
    const hl_weight_producer producer = {.size = sizeof producer,
                                         .output_keys = &key,
                                         .output_count = 1,
                                         .produce = produce,
                                         .context = &made};
    hl_weight_lease *lease = NULL;
    hl_weight_failure failure;
    hl_weight_origin origin;
    if (!made.pool)
        bench_die("no memory to fill tensors from", NULL);
    bench_parallel(4, fill_pool, &made);
    plan_tensors(&made, world->options->bytes);
    const int64_t start = hl_clock_ns();
    if (hl_weight_store_get_or_build(world->store, world->identity, HL_WEIGHT_MANIFEST_AND_METADATA,
                                     &producer, &origin, &lease, &failure))
        bench_die("cannot build the artifact", &failure.error);
    printf("built in %.1f s\n", (double)(hl_clock_ns() - start) / 1e9);
    hl_weight_lease_release(lease);
    free(made.pool);
    free(made.specs);
    free(made.shapes);
    free(made.names);
}

static char *read_text(const char *path, size_t *bytes)
{
    char *text = malloc(HL_WEIGHT_IDENTITY_BYTES);
    FILE *file = fopen(path, "rb");
    if (!text || !file)
        bench_die(path, NULL);
    *bytes = fread(text, 1, HL_WEIGHT_IDENTITY_BYTES, file);
    fclose(file);
    return text;
}

void bench_store_open(struct bench_world *world)
{
    const struct bench_options *options = world->options;
    hl_weight_store_options store;
    hl_weight_failure failure;
    hl_error err;
    struct statfs fs;
    char root[1024];
    size_t bytes = sizeof identity_json - 1;
    char *text = options->identity ? read_text(options->identity, &bytes) : NULL;
    bench_must(hl_weight_identity_parse(text ? text : identity_json, bytes, &world->identity, &err),
               "the identity", &err);
    free(text);
    hl_weight_store_options_init(&store);
    if (options->store) {
        store.root = options->store;
        store.read_only = store.adopt = true;
    } else {
        snprintf(root, sizeof root, "%s/store", options->dir);
        store.root = root;
        if (statfs(options->dir, &fs))
            bench_die(options->dir, NULL);
        if (fs.f_type == TMPFS_MAGIC)
            store.storage_class = HL_WEIGHT_TMPFS;
    }
    if (hl_weight_store_open(&store, &world->store, &failure))
        bench_die("cannot open the store", &failure.error);
    if (!options->store)
        build(world);
}

hl_weight_lease *bench_lease(const struct bench_world *world)
{
    hl_weight_lease *lease = NULL;
    hl_weight_failure failure;
    if (hl_weight_store_lookup(world->store, world->identity, HL_WEIGHT_MANIFEST_AND_METADATA, &lease,
                               &failure))
        bench_die("cannot look the artifact up", &failure.error);
    return lease;
}
