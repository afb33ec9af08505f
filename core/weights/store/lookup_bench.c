/* Measures lookups: lookup_bench --dir FOLDER [--tensors 700] [--files 4] [--mib 512] [--rounds 200]
 * [--threads 0] [--json FILE]. Builds a domain of its own in a fresh folder below FOLDER, removes it again,
 * and prints one JSON object. Times are in microseconds, with everything in the page cache; the least ones
 * are what a machine with other work still shows. The full checksum is given as bytes a second, as a share of
 * threads times what one thread hashes from memory, and as a share of what as many processes hash at the same
 * time, each from its own memory: where processors are threads of one core, that is what they can do
 * together. */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <openssl/evp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/random.h"
#include "core/weights/store/artifact.h"

#define TMPFS_NUMBER 0x01021994

struct plan {
    const char *dir, *json;
    unsigned tensors, files, rounds, threads;
    uint64_t bytes; /* of all payloads */
};

static void die(const char *what, const char *why)
{
    fprintf(stderr, "lookup_bench: %s: %s\n", what, why);
    exit(1);
}

/* --- the artifact --- */

static const char identity_json[] =
    "{\"schema_version\":1,\"source\":{\"model_id\":\"bench/model\",\"revision\":\"0\",\"fingerprint\":\"f\","
    "\"metadata\":{}},\"component\":{\"name\":\"transformer\",\"ownership\":\"dit\",\"metadata\":{}},"
    "\"representation\":{\"name\":\"bf16\",\"dtype\":\"torch.bfloat16\",\"metadata\":{}},\"layout\":{"
    "\"name\":"
    "\"final\",\"tensor_parallel_size\":1,\"tensor_parallel_rank\":0,\"sequence_parallel_size\":1,"
    "\"sequence_parallel_backend\":\"none\",\"metadata\":{}},\"adaptation\":{\"kind\":\"base\","
    "\"fingerprint\":"
    "null,\"metadata\":{}},\"producer\":{\"producer_id\":\"bench\",\"version\":\"1\","
    "\"implementation_fingerprint\":\"i\",\"manifest_schema\":\"m1\",\"restorer_schema\":\"r1\"}}";

static hl_status write_file(const struct plan *plan, hl_weight_writer *writer, unsigned file,
                            hl_weight_tensor_spec *specs, char (*names)[96], void *bytes, uint64_t size,
                            hl_error *err)
{
    static const char *const parts[] = {"self_attn.q_proj.weight", "self_attn.k_proj.weight",
                                        "self_attn.v_proj.weight", "self_attn.o_proj.weight",
                                        "mlp.gate_proj.weight",    "mlp.up_proj.weight",
                                        "mlp.down_proj.weight",    "input_layernorm.weight"};
    const uint64_t shape[2] = {size / 2, 1};
    char file_name[64];
    unsigned count = 0;
    for (unsigned i = file; i < plan->tensors; i += plan->files, count++) {
        snprintf(names[count], sizeof names[count], "model.layers.%u.%s", i / 8, parts[i % 8]);
        specs[count] = (hl_weight_tensor_spec){.name = names[count],
                                               .kind = HL_WEIGHT_PARAMETER,
                                               .role = "weight",
                                               .dtype = "torch.bfloat16",
                                               .rank = 2,
                                               .shape = shape};
    }
    hl_weight_payload *payload = NULL;
    snprintf(file_name, sizeof file_name, "model-%05u-of-%05u.safetensors", file + 1, plan->files);
    hl_status status = hl_weight_writer_open(writer, file_name, specs, count, &payload, err);
    for (unsigned i = 0; i < count && status == HL_OK; i++)
        status = hl_weight_payload_write(payload, i, 0, bytes, size, err);
    if (status != HL_OK)
        return status;
    return hl_weight_payload_close(payload, err);
}

static hl_status produce(void *context, hl_weight_writer *writer, hl_error *err)
{
    const struct plan *plan = context;
    const uint64_t size = (plan->bytes / plan->tensors + 1) & ~1ull;
    hl_weight_tensor_spec *specs = calloc(plan->tensors, sizeof *specs);
    char(*names)[96] = calloc(plan->tensors, sizeof *names);
    unsigned char *bytes = malloc(size);
    hl_status status = specs && names && bytes ? HL_OK : HL_E_NOMEM;
    hl_random random;
    hl_random_seed(&random, 1);
    if (bytes)
        hl_random_fill(&random, bytes, size);
    for (unsigned file = 0; file < plan->files && status == HL_OK; file++)
        status = write_file(plan, writer, file, specs, names, bytes, size, err);
    free(bytes);
    free(names);
    free(specs);
    return status;
}

static void build(const struct plan *plan, hl_weight_store *store, const hl_weight_identity *identity)
{
    const char *key = hl_weight_identity_key(identity);
    const hl_weight_producer producer = {.size = sizeof producer,
                                         .output_keys = &key,
                                         .output_count = 1,
                                         .produce = produce,
                                         .context = (void *)(uintptr_t)plan};
    hl_weight_lease *lease = NULL;
    hl_weight_failure failure;
    hl_weight_origin origin;
    if (hl_weight_store_get_or_build(store, identity, HL_WEIGHT_MANIFEST_AND_METADATA, &producer, &origin,
                                     &lease, &failure) != HL_OK)
        die("build", failure.error.text);
    hl_weight_lease_release(lease);
}

/* --- measuring --- */

enum step {
    LOOKUP,
    READY,
    READ_MANIFEST,
    PARSE_MANIFEST,
    HASH_MANIFEST,
    OPEN_PAYLOADS,
    HEADERS,
    LEASE,
    STEPS
};
static const char *const step_names[STEPS] = {"lookup_and_release", "ready",          "read_manifest",
                                              "parse_manifest",     "hash_manifest",  "open_payloads",
                                              "payload_headers",    "map_and_release"};

static int compare_times(const void *a, const void *b)
{
    const int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return (left > right) - (left < right);
}

/* The sorted times' place `at` of `count`, in microseconds. */
static double us_at(const int64_t *times, unsigned at)
{
    return (double)times[at] / 1000.0;
}

static void print_steps(const char *name, int64_t **times, unsigned at)
{
    printf(",\"%s\":{", name);
    for (unsigned i = 0; i < STEPS; i++)
        printf("%s\"%s\":%.1f", i ? "," : "", step_names[i], us_at(times[i], at));
    printf("}");
}

static void check(hl_status status, const char *step, const hl_error *err)
{
    if (status != HL_OK)
        die(step, err->text);
}

static void measure_steps(hl_weight_store *store, const char *key, unsigned round, int64_t **times)
{
    struct hl_artifact artifact = {.folder = -1};
    struct hl_lock lock = HL_LOCK_NONE;
    hl_weight_lease *lease = NULL;
    hl_weight_failure failure;
    hl_error err;
    char *text = NULL, hex[HL_SHA256_HEX_BYTES];
    size_t bytes = 0;
    check(hl_storage_open_folder(store->artifacts, key, &artifact.folder, &err), "folder", &err);
    int64_t at[STEPS + 1];
    at[READY] = hl_clock_ns();
    check(hl_storage_read_document(artifact.folder, "READY.json", 4096, true, &text, &bytes, &err), "READY",
          &err);
    check(hl_ready_parse(text, bytes, &artifact.ready, &err), "READY", &err);
    free(text);
    at[READ_MANIFEST] = hl_clock_ns();
    check(hl_storage_read_document(artifact.folder, "manifest.json", HL_WEIGHT_DOCUMENT_BYTES, true, &text,
                                   &bytes, &err),
          "manifest", &err);
    at[PARSE_MANIFEST] = hl_clock_ns();
    check(hl_manifest_take(text, bytes, &artifact.manifest, &err), "manifest", &err);
    at[HASH_MANIFEST] = hl_clock_ns();
    check(hl_sha256(artifact.manifest->canonical, bytes, hex, &err), "hash", &err);
    at[OPEN_PAYLOADS] = hl_clock_ns();
    check(hl_artifact_open_payloads(&artifact, true, &err), "payloads", &err);
    at[HEADERS] = hl_clock_ns();
    check(hl_artifact_check_headers(&artifact, &err), "headers", &err);
    at[LEASE] = hl_clock_ns();
    check(hl_lease_create(store, &artifact, &lock, HL_WEIGHT_HIT, HL_WEIGHT_MANIFEST_AND_METADATA, &lease,
                          &failure),
          "lease", &failure.error);
    hl_weight_lease_release(lease);
    at[STEPS] = hl_clock_ns();
    for (unsigned i = READY; i < STEPS; i++)
        times[i][round] = at[i + 1] - at[i];
}

static int64_t measure_lookup(hl_weight_store *store, const hl_weight_identity *identity,
                              hl_weight_validation validation)
{
    hl_weight_lease *lease = NULL;
    hl_weight_failure failure;
    const int64_t begin = hl_clock_ns();
    check(hl_weight_store_lookup(store, identity, validation, &lease, &failure), "lookup", &failure.error);
    hl_weight_lease_release(lease);
    return hl_clock_ns() - begin;
}

/* Bytes that one thread hashes from memory, a slice at a time as the store does, until `end`. */
static uint64_t hash_until(const unsigned char *bytes, size_t slice, int64_t end)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    uint64_t hashed = 0;
    for (; hl_clock_ns() < end; hashed += slice)
        EVP_Digest(bytes, slice, digest, NULL, EVP_sha256(), NULL);
    return hashed;
}

/* What `count` processes hash together while all of them do, in bytes a second. */
static double processes_rate(unsigned count)
{
    const size_t slice = 256 * 1024;
    const int64_t lasts = 300000000, begin = hl_clock_ns() + 20000000;
    uint64_t hashed, total = 0;
    int pipes[2];
    if (pipe(pipes) != 0)
        die("pipe", strerror(errno));
    for (unsigned i = 0; i < count; i++) {
        const pid_t child = fork();
        if (child < 0)
            die("fork", strerror(errno));
        if (child > 0)
            continue;
        unsigned char *bytes = malloc(slice);
        if (!bytes)
            _exit(1);
        memset(bytes, 7, slice);
        hash_until(bytes, slice, begin);
        hashed = hash_until(bytes, slice, begin + lasts);
        _exit(write(pipes[1], &hashed, sizeof hashed) != sizeof hashed);
    }
    close(pipes[1]);
    for (unsigned i = 0; i < count; i++) {
        if (read(pipes[0], &hashed, sizeof hashed) != sizeof hashed)
            die("processes", "one did not report");
        total += hashed;
    }
    close(pipes[0]);
    while (wait(NULL) > 0)
        continue;
    return (double)total / ((double)lasts / 1e9);
}

static uint64_t payload_bytes(hl_weight_store *store, const char *key)
{
    struct hl_artifact artifact;
    hl_weight_failure failure;
    uint64_t total = 0;
    if (hl_artifact_validate(store, key, NULL, HL_WEIGHT_MANIFEST_AND_METADATA, &artifact, &failure) !=
        HL_VERDICT_VALID)
        die("validate", failure.error.text);
    for (size_t i = 0; i < artifact.manifest->file_count; i++)
        total += artifact.manifest->files[i].bytes;
    fprintf(stderr, "%zu bytes of manifest, %zu files hashed in parts\n", artifact.manifest->canonical_bytes,
            hl_artifact_split_files(&artifact, store->hash_threads, HL_SUMS_SPLIT_BYTES));
    hl_artifact_close(&artifact);
    return total;
}

/* The ceilings and the checksum in turn, so that other work on the machine meets them alike; the best of
 * each. */
static void report_checksum(hl_weight_store *store, const hl_weight_identity *identity, double bytes)
{
    double one = 0, together = 0, full = 0;
    for (unsigned i = 0; i < 5; i++) {
        const double alone = processes_rate(1), all = processes_rate(store->hash_threads);
        const double rate = bytes / ((double)measure_lookup(store, identity, HL_WEIGHT_FULL_CHECKSUM) / 1e9);
        one = alone > one ? alone : one;
        together = all > together ? all : together;
        full = rate > full ? rate : full;
    }
    printf(",\"full_checksum\":{\"bytes\":%.0f,\"threads\":%u,\"bytes_per_s\":%.4g,\"one_core_bytes_per_s\":%"
           ".4g,"
           "\"processes_together_bytes_per_s\":%.4g,\"ratio_to_cores\":%.3f,\"ratio_to_processes\":%.3f}}\n",
           bytes, store->hash_threads, full, one, together, full / (one * store->hash_threads),
           full / together);
}

static void report(const struct plan *plan, hl_weight_store *store, const hl_weight_identity *identity)
{
    int64_t *times[STEPS];
    const char *key = hl_weight_identity_key(identity);
    for (unsigned i = 0; i < STEPS; i++)
        if (!(times[i] = calloc(plan->rounds, sizeof **times)))
            die("memory", "none");
    for (unsigned round = 0; round < plan->rounds; round++) {
        times[LOOKUP][round] = measure_lookup(store, identity, HL_WEIGHT_MANIFEST_AND_METADATA);
        measure_steps(store, key, round, times);
    }
    for (unsigned i = 0; i < STEPS; i++)
        qsort(times[i], plan->rounds, sizeof *times[i], compare_times);
    printf("{\"tensors\":%u,\"files\":%u,\"rounds\":%u", plan->tensors, plan->files, plan->rounds);
    print_steps("median_us", times, plan->rounds / 2);
    print_steps("least_us", times, 0);
    report_checksum(store, identity, (double)payload_bytes(store, key));
    for (unsigned i = 0; i < STEPS; i++)
        free(times[i]);
}

/* --- the domain --- */

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *where)
{
    (void)st;
    (void)type;
    (void)where;
    return remove(path);
}

static int open_one(const char *path, const struct stat *st, int type, struct FTW *where)
{
    (void)where;
    (void)type;
    return S_ISDIR(st->st_mode) ? chmod(path, 0700) : 0;
}

static void parse(int argc, char **argv, struct plan *plan)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        const unsigned long value = strtoul(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--dir") == 0)
            plan->dir = argv[i + 1];
        else if (strcmp(argv[i], "--json") == 0)
            plan->json = argv[i + 1];
        else if (strcmp(argv[i], "--tensors") == 0)
            plan->tensors = (unsigned)value;
        else if (strcmp(argv[i], "--files") == 0)
            plan->files = (unsigned)value;
        else if (strcmp(argv[i], "--mib") == 0)
            plan->bytes = (uint64_t)value << 20;
        else if (strcmp(argv[i], "--rounds") == 0)
            plan->rounds = (unsigned)value;
        else if (strcmp(argv[i], "--threads") == 0)
            plan->threads = (unsigned)value;
        else
            die(argv[i], "unknown option");
    }
    if (!plan->dir || !plan->tensors || !plan->files || plan->files > plan->tensors || !plan->rounds)
        die("options", "--dir is needed, and at least one tensor a file and one round");
}

int main(int argc, char **argv)
{
    struct plan plan = {.tensors = 700, .files = 4, .rounds = 200, .bytes = 512ull << 20};
    char base[512], root[600];
    struct statfs st;
    hl_weight_store_options options;
    hl_weight_store *store = NULL;
    hl_weight_identity *identity = NULL;
    hl_weight_failure failure;
    parse(argc, argv, &plan);
    if (plan.json && !freopen(plan.json, "w", stdout))
        die(plan.json, strerror(errno));
    snprintf(base, sizeof base, "%s/lookup-bench-XXXXXX", plan.dir);
    if (!mkdtemp(base) || statfs(base, &st) != 0)
        die(base, "cannot make it");
    snprintf(root, sizeof root, "%s/domain", base);
    hl_weight_store_options_init(&options);
    options.root = root;
    options.storage_class = st.f_type == TMPFS_NUMBER ? HL_WEIGHT_TMPFS : HL_WEIGHT_DISK;
    options.hash_threads = plan.threads;
    check(hl_weight_store_open(&options, &store, &failure), "open", &failure.error);
    check(hl_weight_identity_parse(identity_json, sizeof identity_json - 1, &identity, &failure.error),
          "identity", &failure.error);
    build(&plan, store, identity);
    report(&plan, store, identity);
    hl_weight_identity_free(identity);
    hl_weight_store_close(store);
    nftw(base, open_one, 16, FTW_PHYS);
    nftw(base, remove_one, 16, FTW_PHYS | FTW_DEPTH);
    return 0;
}
