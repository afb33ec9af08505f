/* What a producer may and may not do with its writer. */
#include "core/weights/store/writer.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/testing/cunit.h"
#include "core/weights/store/store_testing.h"

static struct hl_store_fixture fixture;
static hl_weight_identity *identity;
static struct hl_fake_producer fake;

static void begin(void)
{
    hl_fixture_open(&fixture, HL_FIXTURE_SHM);
    identity = hl_fixture_identity(2, 0);
    hl_fake_producer_init(&fake, identity);
}

static void end(void)
{
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "tmp", ""), 0);
    hl_weight_identity_free(identity);
    hl_fixture_close(&fixture);
}

static void expect_built(hl_weight_lease **lease)
{
    hl_weight_failure failure;
    hl_weight_origin origin = HL_WEIGHT_HIT;
    HL_REQUIRE_OK(hl_fixture_get(&fixture, identity, &fake, &origin, lease, &failure), failure.error);
    CU_ASSERT_EQUAL(origin, HL_WEIGHT_BUILT);
}

static void expect_producer_failed(const char *text)
{
    hl_weight_failure failure = {0};
    hl_weight_lease *lease = NULL;
    HL_EXPECT_FAILURE(hl_fixture_get(&fixture, identity, &fake, NULL, &lease, &failure),
                      HL_WEIGHT_PRODUCER_FAILED, false, failure);
    CU_ASSERT_EQUAL(failure.stage, HL_WEIGHT_STAGE_PRODUCTION);
    if (!strstr(failure.error.text, text))
        fprintf(stderr, "wanted \"%s\" in: %s\n", text, failure.error.text);
    CU_ASSERT_PTR_NOT_NULL(strstr(failure.error.text, text));
    CU_ASSERT_PTR_NULL(lease);
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "artifacts", ""), 0);
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "tmp", ""), 0);
}

/* --- declarations --- */

static hl_status declare_wrongly(struct hl_fake_producer *self, hl_weight_writer *writer, hl_error *err)
{
    (void)self;
    static const uint64_t shape[65] = {2}, huge[2] = {1ull << 40, 1ull << 40};
    const hl_weight_tensor_spec good = {"a", HL_WEIGHT_PARAMETER, "weight", "torch.uint8", 1, shape};
    const struct {
        const char *file;
        hl_weight_tensor_spec spec;
        hl_status status;
        const char *names;
    } wrong[] = {
        {NULL, good, HL_E_INVALID, "file_name"},
        {"", good, HL_E_INVALID, "file_name"},
        {"..", good, HL_E_INVALID, "file_name"},
        {"../x.safetensors", good, HL_E_INVALID, "file_name"},
        {"a/b.safetensors", good, HL_E_INVALID, "file_name"},
        {"weights.bin", good, HL_E_INVALID, "file_name"},
        {".safetensors", good, HL_E_INVALID, "file_name"},
        {"x.safetensors", {NULL, 0, "weight", "torch.uint8", 1, shape}, HL_E_INVALID, "name"},
        {"x.safetensors", {"", 0, "weight", "torch.uint8", 1, shape}, HL_E_INVALID, "name"},
        {"x.safetensors",
         {"__metadata__", 0, "weight", "torch.uint8", 1, shape},
         HL_E_INVALID,
         "__metadata__"},
        {"x.safetensors", {"\xff", 0, "weight", "torch.uint8", 1, shape}, HL_E_INVALID, ""},
        {"x.safetensors", {"a", 7, "weight", "torch.uint8", 1, shape}, HL_E_INVALID, "kind"},
        {"x.safetensors", {"a", 0, "", "torch.uint8", 1, shape}, HL_E_INVALID, "role"},
        {"x.safetensors", {"a", 0, NULL, "torch.uint8", 1, shape}, HL_E_INVALID, "role"},
        {"x.safetensors", {"a", 0, "\xc3", "torch.uint8", 1, shape}, HL_E_INVALID, "role"},
        {"x.safetensors", {"a", 0, "weight", "uint8", 1, shape}, HL_E_INVALID, "dtype"},
        {"x.safetensors", {"a", 0, "weight", NULL, 1, shape}, HL_E_INVALID, "dtype"},
        {"x.safetensors", {"a", 0, "weight", "torch.uint8", 65, shape}, HL_E_LIMIT, "rank"},
        {"x.safetensors", {"a", 0, "weight", "torch.uint8", 1, NULL}, HL_E_INVALID, "shape"},
        {"x.safetensors", {"a", 0, "weight", "torch.uint8", 2, huge}, HL_E_OVERFLOW, ""},
    };
    hl_weight_payload *payload = NULL;
    hl_error tried;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        HL_EXPECT_STATUS(hl_weight_writer_open(writer, wrong[i].file, &wrong[i].spec, 1, &payload, &tried),
                         wrong[i].status, tried);
        if (!strstr(tried.text, wrong[i].names))
            fprintf(stderr, "case %zu: %s\n", i, tried.text);
        CU_ASSERT_PTR_NOT_NULL(strstr(tried.text, wrong[i].names));
    }
    const hl_weight_tensor_spec twice[2] = {good, good};
    HL_EXPECT_STATUS(hl_weight_writer_open(writer, "x.safetensors", twice, 2, &payload, &tried), HL_E_INVALID,
                     tried);
    HL_EXPECT_STATUS(hl_weight_writer_open(writer, "x.safetensors", &good, 0, &payload, &tried), HL_E_INVALID,
                     tried);
    CU_ASSERT_PTR_NULL(payload);
    /* What was refused changed nothing. */
    const hl_status status = hl_fake_produce_golden(writer, err);
    const hl_weight_tensor_spec other = {"layer.scale", 0, "scale", "torch.uint8", 1, shape};
    HL_EXPECT_STATUS(hl_weight_writer_open(writer, HL_GOLDEN_FILE, &good, 1, &payload, &tried), HL_E_INVALID,
                     tried);
    HL_EXPECT_STATUS(hl_weight_writer_open(writer, "x.safetensors", &other, 1, &payload, &tried),
                     HL_E_INVALID, tried);
    CU_ASSERT_PTR_NOT_NULL(strstr(tried.text, "layer.scale"));
    return status;
}

static void a_wrong_declaration_is_refused_and_changes_nothing(void)
{
    begin();
    fake.instead = declare_wrongly;
    hl_weight_lease *lease = NULL;
    expect_built(&lease);
    CU_ASSERT_EQUAL(hl_weight_lease_tensor_count(lease), 2);
    hl_weight_lease_release(lease);
    end();
}

/* --- writes --- */

static const uint64_t ten[1] = {10};
static const hl_weight_tensor_spec ten_bytes = {"t", HL_WEIGHT_BUFFER, "table", "torch.uint8", 1, ten};

static hl_status write_wrongly(struct hl_fake_producer *self, hl_weight_writer *writer, hl_error *err)
{
    (void)self;
    static const char bytes[16] = "0123456789abcde";
    hl_weight_payload *payload = NULL;
    hl_status status = hl_weight_writer_open(writer, "x.safetensors", &ten_bytes, 1, &payload, err);
    if (status)
        return status;
    hl_error tried;
    HL_EXPECT_STATUS(hl_weight_payload_write(payload, 1, 0, bytes, 1, &tried), HL_E_RANGE, tried);
    HL_EXPECT_STATUS(hl_weight_payload_write(payload, 0, 0, bytes, 11, &tried), HL_E_RANGE, tried);
    HL_EXPECT_STATUS(hl_weight_payload_write(payload, 0, 11, bytes, 0, &tried), HL_E_RANGE, tried);
    HL_EXPECT_STATUS(hl_weight_payload_write(payload, 0, UINT64_MAX, bytes, 2, &tried), HL_E_RANGE, tried);
    HL_EXPECT_OK(hl_weight_payload_write(payload, 0, 10, bytes, 0, &tried), tried);
    HL_EXPECT_OK(hl_weight_payload_write(payload, 0, 4, bytes, 3, &tried), tried);
    HL_EXPECT_STATUS(hl_weight_payload_write(payload, 0, 0, bytes, 5, &tried), HL_E_OVERLAP, tried);
    CU_ASSERT_PTR_NOT_NULL(strstr(tried.text, "tensor t"));
    HL_EXPECT_STATUS(hl_weight_payload_write(payload, 0, 6, bytes, 4, &tried), HL_E_OVERLAP, tried);
    HL_EXPECT_OK(hl_weight_payload_write(payload, 0, 0, bytes, 4, &tried), tried);
    HL_EXPECT_OK(hl_weight_payload_write(payload, 0, 7, bytes + 7, 3, &tried), tried);
    HL_EXPECT_OK(hl_weight_payload_close(payload, err), *err);
    HL_EXPECT_STATUS(hl_weight_payload_write(payload, 0, 0, bytes, 1, &tried), HL_E_STATE, tried);
    HL_EXPECT_STATUS(hl_weight_payload_close(payload, &tried), HL_E_STATE, tried);
    HL_EXPECT_OK(hl_weight_payload_close(NULL, &tried), tried);
    return HL_OK;
}

static void every_byte_is_written_once(void)
{
    begin();
    fake.instead = write_wrongly;
    hl_weight_lease *lease = NULL;
    expect_built(&lease);
    const hl_weight_tensor_view *const view = hl_weight_lease_tensor(lease, "t");
    CU_ASSERT_EQUAL_FATAL(view->bytes, 10);
    CU_ASSERT_EQUAL(memcmp(view->data, "0123012789", 10), 0);
    hl_weight_lease_release(lease);
    end();
}

static hl_status leave_a_gap(struct hl_fake_producer *self, hl_weight_writer *writer, hl_error *err)
{
    hl_weight_payload *payload = NULL;
    hl_status status = hl_weight_writer_open(writer, "x.safetensors", &ten_bytes, 1, &payload, err);
    if (!status)
        status = hl_weight_payload_write(payload, 0, 0, "0123", 4, err);
    if (status)
        return status;
    status = hl_weight_payload_close(payload, err);
    HL_EXPECT_STATUS(status, HL_E_RANGE, *err);
    return self->extra ? HL_OK : status; /* swallows it */
}

static void a_gap_fails_the_build_even_if_the_producer_does_not_say_so(void)
{
    begin();
    fake.instead = leave_a_gap;
    expect_producer_failed("byte 4 of 10");
    fake.extra = &fake;
    expect_producer_failed("byte 4 of 10");
    fake.instead = NULL;
    hl_weight_lease *lease = NULL;
    expect_built(&lease);
    hl_weight_lease_release(lease);
    end();
}

/* --- the order of writes --- */

static void expect_content(hl_weight_lease *lease, char content[65], const char *what)
{
    const char *const got = hl_weight_lease_provenance(lease)->content_sha256;
    if (!content[0])
        snprintf(content, 65, "%s", got);
    if (strcmp(content, got) != 0)
        fprintf(stderr, "%s differs\n", what);
    CU_ASSERT_STRING_EQUAL(content, got);
}

/* Large enough for the threads that hash beside the writing; and what a full checksum then finds. */
static void any_order_and_width_of_writes_gives_the_same_artifact(void)
{
    static const struct {
        const char *what;
        size_t width;
        bool backwards;
        uint32_t threads;
    } ways[] = {{"a tensor a write", 0, false, 2},
                {"a tensor a write, one thread", 0, false, 1},
                {"large pieces", 300 * 1024, false, 2},
                {"small pieces", 999, false, 2},
                {"backwards", 0, true, 2},
                {"pieces backwards", 70001, true, 2}};
    char content[65] = "";
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        begin();
        fixture.options.hash_threads = ways[i].threads;
        fake.files = 2;
        fake.tensors = 3;
        fake.tensor_bytes = 700001;
        fake.seed = 7;
        fake.write_bytes = ways[i].width;
        fake.backwards = ways[i].backwards;
        hl_weight_lease *lease = NULL;
        expect_built(&lease);
        expect_content(lease, content, ways[i].what);
        hl_weight_lease_release(lease);
        hl_weight_failure failure;
        HL_REQUIRE_OK(hl_fixture_look_up(&fixture, identity, HL_WEIGHT_FULL_CHECKSUM, &lease, &failure),
                      failure.error);
        expect_content(lease, content, ways[i].what);
        hl_weight_lease_release(lease);
        end();
    }
}

static hl_status produce_shapes(struct hl_fake_producer *self, hl_weight_writer *writer, hl_error *err)
{
    (void)self;
    static const uint64_t none[3] = {3, 0, 5}, cube[3] = {2, 3, 4};
    static const hl_weight_tensor_spec specs[] = {
        {"scalar", HL_WEIGHT_BUFFER, "step", "torch.int64", 0, NULL},
        {"none", HL_WEIGHT_PARAMETER, "weight", "torch.float32", 3, none},
        {"cube", HL_WEIGHT_PARAMETER, "weight", "torch.float8_e4m3fn", 3, cube},
    };
    static const char bytes[24] = "abcdefghijklmnopqrstuvwx";
    hl_weight_payload *payload = NULL;
    hl_status status = hl_weight_writer_open(writer, "x.safetensors", specs, 3, &payload, err);
    if (!status)
        status = hl_weight_payload_write(payload, 0, 0, bytes, 8, err);
    if (!status)
        status = hl_weight_payload_write(payload, 2, 0, bytes, 24, err);
    return status ? status : hl_weight_payload_close(payload, err);
}

static void scalars_and_empty_tensors_are_tensors(void)
{
    begin();
    fake.instead = produce_shapes;
    hl_weight_lease *lease = NULL;
    expect_built(&lease);
    const hl_weight_tensor_view *const scalar = hl_weight_lease_tensor(lease, "scalar");
    const hl_weight_tensor_view *const none = hl_weight_lease_tensor(lease, "none");
    const hl_weight_tensor_view *const cube = hl_weight_lease_tensor(lease, "cube");
    CU_ASSERT_PTR_NOT_NULL_FATAL(scalar);
    CU_ASSERT_PTR_NOT_NULL_FATAL(none);
    CU_ASSERT_PTR_NOT_NULL_FATAL(cube);
    CU_ASSERT_TRUE(scalar->rank == 0 && scalar->bytes == 8 && !memcmp(scalar->data, "abcdefgh", 8));
    CU_ASSERT_TRUE(none->bytes == 0 && none->data == NULL);
    CU_ASSERT_TRUE(none->stride[0] == 5 && none->stride[1] == 5 && none->stride[2] == 1);
    CU_ASSERT_TRUE(cube->stride[0] == 12 && cube->stride[1] == 4 && cube->stride[2] == 1);
    CU_ASSERT_STRING_EQUAL(cube->dtype, "torch.float8_e4m3fn");
    hl_weight_lease_release(lease);
    end();
}

/* --- threads --- */

enum { WRITERS = 4 };

struct thread_of_producer {
    pthread_t thread;
    hl_weight_writer *writer;
    unsigned number;
    hl_status status;
};

static void *write_one_file(void *argument)
{
    struct thread_of_producer *self = argument;
    char file[32], name[32], *bytes = malloc(1u << 20);
    CU_ASSERT_PTR_NOT_NULL_FATAL(bytes);
    memset(bytes, 'a' + (int)self->number, 1u << 20);
    snprintf(file, sizeof file, "part-%u.safetensors", self->number);
    snprintf(name, sizeof name, "tensor-%u", self->number);
    const uint64_t shape[1] = {1u << 20};
    const hl_weight_tensor_spec spec = {name, HL_WEIGHT_PARAMETER, "weight", "torch.uint8", 1, shape};
    hl_weight_payload *payload = NULL;
    hl_error err;
    self->status = hl_weight_writer_open(self->writer, file, &spec, 1, &payload, &err);
    for (unsigned i = 0; i < 2 && !self->status; i++)
        self->status = hl_weight_payload_write(payload, 0, i << 19, bytes, 1u << 19, &err);
    if (!self->status)
        self->status = hl_weight_payload_close(payload, &err);
    free(bytes);
    return NULL;
}

static hl_status produce_with_threads(struct hl_fake_producer *self, hl_weight_writer *writer, hl_error *err)
{
    (void)self;
    (void)err;
    struct thread_of_producer threads[WRITERS];
    for (unsigned i = 0; i < WRITERS; i++) {
        threads[i] = (struct thread_of_producer){.writer = writer, .number = i};
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i].thread, NULL, write_one_file, &threads[i]), 0);
    }
    for (unsigned i = 0; i < WRITERS; i++) {
        pthread_join(threads[i].thread, NULL);
        CU_ASSERT_EQUAL(threads[i].status, HL_OK);
    }
    return HL_OK;
}

static void files_may_be_written_by_threads_of_their_own(void)
{
    begin();
    fake.instead = produce_with_threads;
    hl_weight_lease *lease = NULL;
    expect_built(&lease);
    CU_ASSERT_EQUAL(hl_weight_lease_region_count(lease), WRITERS);
    hl_weight_lease_release(lease);
    hl_weight_failure failure;
    HL_REQUIRE_OK(hl_fixture_look_up(&fixture, identity, HL_WEIGHT_FULL_CHECKSUM, &lease, &failure),
                  failure.error);
    hl_weight_lease_release(lease);
    end();
}

/* --- whose writer it is, and how long --- */

struct inherited {
    hl_weight_writer *writer;
    hl_weight_payload *payload;
};

static int use_inherited(void *context)
{
    const struct inherited *it = context;
    hl_error err;
    hl_weight_payload *payload = NULL;
    const bool refused =
        hl_weight_payload_write(it->payload, 0, 0, "x", 1, &err) == HL_E_STATE &&
        hl_weight_payload_close(it->payload, &err) == HL_E_STATE &&
        hl_weight_writer_open(it->writer, "y.safetensors", &ten_bytes, 1, &payload, &err) == HL_E_STATE;
    return refused ? 0 : 1;
}

static hl_status produce_with_a_child(struct hl_fake_producer *self, hl_weight_writer *writer, hl_error *err)
{
    (void)self;
    struct inherited it = {.writer = writer};
    hl_status status = hl_weight_writer_open(writer, "x.safetensors", &ten_bytes, 1, &it.payload, err);
    if (status)
        return status;
    CU_ASSERT_EQUAL(hl_child_end(hl_child_start(use_inherited, &it)), 0);
    status = hl_weight_payload_write(it.payload, 0, 0, "0123456789", 10, err);
    return status ? status : hl_weight_payload_close(it.payload, err);
}

static void a_forked_child_is_refused_and_disturbs_nothing(void)
{
    begin();
    fake.instead = produce_with_a_child;
    hl_weight_lease *lease = NULL;
    expect_built(&lease);
    hl_weight_lease_release(lease);
    end();
}

static void after_produce_has_returned_the_writer_refuses(void)
{
    begin();
    hl_weight_store *const store = hl_fixture_store(&fixture);
    hl_weight_writer writer;
    hl_weight_payload *payload = NULL, *other = NULL;
    hl_weight_failure failure;
    hl_error err;
    int folder = -1;
    HL_REQUIRE_OK(hl_storage_make_folder(store->tmp, "build", true, &folder, &err), err);
    hl_writer_init(&writer, store, folder);
    HL_REQUIRE_OK(hl_weight_writer_open(&writer, "x.safetensors", &ten_bytes, 1, &payload, &err), err);
    HL_EXPECT_FAILURE(hl_writer_end(&writer, HL_OK, NULL, &failure), HL_WEIGHT_PRODUCER_FAILED, false,
                      failure);
    CU_ASSERT_PTR_NOT_NULL(strstr(failure.error.text, "x.safetensors"));
    HL_EXPECT_STATUS(hl_weight_payload_write(payload, 0, 0, "x", 1, &err), HL_E_STATE, err);
    HL_EXPECT_STATUS(hl_weight_payload_close(payload, &err), HL_E_STATE, err);
    HL_EXPECT_STATUS(hl_weight_writer_open(&writer, "y.safetensors", &ten_bytes, 1, &other, &err), HL_E_STATE,
                     err);
    hl_writer_destroy(&writer);
    close(folder);
    HL_EXPECT_OK(hl_storage_remove_tree(store->tmp, "build", &err), err);
    end();
}

HL_TESTS(writer, HL_CASE(a_wrong_declaration_is_refused_and_changes_nothing),
         HL_CASE(every_byte_is_written_once),
         HL_CASE(a_gap_fails_the_build_even_if_the_producer_does_not_say_so),
         HL_CASE(any_order_and_width_of_writes_gives_the_same_artifact),
         HL_CASE(scalars_and_empty_tensors_are_tensors),
         HL_CASE(files_may_be_written_by_threads_of_their_own),
         HL_CASE(a_forked_child_is_refused_and_disturbs_nothing),
         HL_CASE(after_produce_has_returned_the_writer_refuses));
