/* One build after the other in one process: what a publication looks like on disk, and what becomes of an
 * entry that is not to be used. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/testing/cunit.h"
#include "core/weights/safetensors/safetensors.h"
#include "core/weights/store/store.h"
#include "core/weights/store/store_testing.h"

#define ENTRY "artifacts/" HL_GOLDEN_KEY

static struct hl_store_fixture fixture;
static hl_weight_identity *identity;
static struct hl_fake_producer fake;
static hl_weight_failure failure;

static void begin(enum hl_fixture_place place)
{
    hl_fixture_open(&fixture, place);
    identity = hl_fixture_identity(2, 0);
    hl_fake_producer_init(&fake, identity);
    failure = (hl_weight_failure){0};
}

static void end(void)
{
    hl_weight_identity_free(identity);
    hl_fixture_close(&fixture);
}

static hl_weight_lease *get(hl_weight_origin wanted)
{
    hl_weight_lease *lease = NULL;
    hl_weight_origin origin = HL_WEIGHT_HIT;
    HL_REQUIRE_OK(hl_fixture_get(&fixture, identity, &fake, &origin, &lease, &failure), failure.error);
    CU_ASSERT_EQUAL(origin, wanted);
    CU_ASSERT_EQUAL(hl_weight_lease_provenance(lease)->origin, wanted);
    return lease;
}

static void get_and_release(hl_weight_origin wanted)
{
    hl_weight_lease_release(get(wanted));
}

static void expect_refused(hl_weight_code code, bool retryable)
{
    hl_weight_lease *lease = NULL;
    HL_EXPECT_FAILURE(hl_fixture_get(&fixture, identity, &fake, NULL, &lease, &failure), code, retryable,
                      failure);
    CU_ASSERT_PTR_NULL(lease);
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "tmp", ""), 0);
}

/* --- what is published --- */

static char *read_golden(const char *name, size_t *bytes)
{
    char path[256];
    snprintf(path, sizeof path, "core/weights/store/testdata/golden/%s", name);
    FILE *file = fopen(path, "rb");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    char *text = calloc(1, 4096);
    CU_ASSERT_PTR_NOT_NULL_FATAL(text);
    *bytes = fread(text, 1, 4095, file);
    fclose(file);
    return text;
}

static void expect_same_file(const char *name, size_t size)
{
    char path[256];
    size_t wanted_bytes = 0, bytes = 0;
    snprintf(path, sizeof path, ENTRY "/%s", name);
    char *wanted = read_golden(name, &wanted_bytes), *text = hl_fixture_read(&fixture, path, &bytes);
    CU_ASSERT_EQUAL(bytes, size);
    CU_ASSERT_EQUAL_FATAL(bytes, wanted_bytes);
    CU_ASSERT_EQUAL(memcmp(text, wanted, bytes), 0);
    free(text);
    free(wanted);
}

/* READY.json differs in the publication's id alone. */
static void expect_same_ready(const char *publication_id)
{
    size_t wanted_bytes = 0, bytes = 0;
    char *wanted = read_golden("READY.json", &wanted_bytes),
         *text = hl_fixture_read(&fixture, ENTRY "/READY.json", &bytes);
    char *const id = strstr(text, publication_id);
    CU_ASSERT_PTR_NOT_NULL_FATAL(id);
    CU_ASSERT_TRUE(id[12] == '4' && strchr("89ab", id[16])); /* a UUID of version 4 */
    memset(id, '0', 32);
    CU_ASSERT_EQUAL_FATAL(bytes, wanted_bytes);
    CU_ASSERT_EQUAL(memcmp(text, wanted, bytes), 0);
    free(text);
    free(wanted);
}

static void build_golden_at(enum hl_fixture_place place)
{
    begin(place);
    hl_weight_lease *const lease = get(HL_WEIGHT_BUILT);
    expect_same_file(HL_GOLDEN_FILE, 232);
    expect_same_file("manifest.json", 1680);
    expect_same_ready(hl_weight_lease_provenance(lease)->publication_id);
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, ENTRY, ""), 3);
    CU_ASSERT_EQUAL(hl_fixture_mode(&fixture, ENTRY), 0555);
    CU_ASSERT_EQUAL(hl_fixture_mode(&fixture, ENTRY "/READY.json"), 0444);
    CU_ASSERT_EQUAL(hl_fixture_mode(&fixture, ENTRY "/manifest.json"), 0444);
    CU_ASSERT_EQUAL(hl_fixture_mode(&fixture, ENTRY "/" HL_GOLDEN_FILE), 0444);
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "tmp", ""), 0);
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "quarantine", ""), 0);
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "deny", ""), 0);
    hl_weight_lease_release(lease);
    end();
}

static void the_golden_artifact_is_written_byte_for_byte(void)
{
    build_golden_at(HL_FIXTURE_DISK);
    build_golden_at(HL_FIXTURE_SHM);
}

static void the_aligned_layout_has_the_same_content(void)
{
    begin(HL_FIXTURE_SHM);
    fixture.options.aligned_layout = 1;
    hl_weight_lease *const lease = get(HL_WEIGHT_BUILT);
    CU_ASSERT_STRING_EQUAL(hl_weight_lease_provenance(lease)->content_sha256, HL_GOLDEN_CONTENT);
    const hl_weight_tensor_view *const scale = hl_weight_lease_tensor(lease, "layer.scale");
    CU_ASSERT_EQUAL(scale->region_offset % HL_SAFETENSORS_DATA_ALIGN, 0);
    hl_weight_lease_release(lease);
    end();
}

static void a_second_call_finds_what_the_first_built(void)
{
    begin(HL_FIXTURE_DISK);
    hl_weight_lease *const built = get(HL_WEIGHT_BUILT), *const found = get(HL_WEIGHT_HIT);
    CU_ASSERT_EQUAL(fake.runs, 1);
    const hl_weight_provenance *const first = hl_weight_lease_provenance(built),
                                      *const second = hl_weight_lease_provenance(found);
    CU_ASSERT_STRING_EQUAL(first->publication_id, second->publication_id);
    CU_ASSERT_STRING_EQUAL(first->backing_fingerprint, second->backing_fingerprint);
    hl_weight_lease_release(found);
    hl_weight_lease_release(built);
    end();
}

static void two_publications_of_one_identity_have_the_same_content(void)
{
    begin(HL_FIXTURE_SHM);
    fake.files = 3;
    fake.tensors = 2;
    fake.tensor_bytes = 100;
    char content[65], publication[33];
    hl_weight_lease *lease = get(HL_WEIGHT_BUILT);
    snprintf(content, sizeof content, "%s", hl_weight_lease_provenance(lease)->content_sha256);
    snprintf(publication, sizeof publication, "%s", hl_weight_lease_provenance(lease)->publication_id);
    hl_weight_lease_release(lease);
    HL_EXPECT_OK(hl_weight_store_clean(fixture.store, HL_GOLDEN_KEY, &failure), failure.error);
    lease = get(HL_WEIGHT_BUILT);
    CU_ASSERT_STRING_EQUAL(hl_weight_lease_provenance(lease)->content_sha256, content);
    CU_ASSERT_STRING_NOT_EQUAL(hl_weight_lease_provenance(lease)->publication_id, publication);
    hl_weight_lease_release(lease);
    end();
}

static void a_build_counts_as_the_full_checksum_that_was_asked_for(void)
{
    begin(HL_FIXTURE_SHM);
    hl_weight_lease *lease = NULL;
    HL_REQUIRE_OK(hl_weight_store_get_or_build(hl_fixture_store(&fixture), identity, HL_WEIGHT_FULL_CHECKSUM,
                                               &fake.producer, NULL, &lease, &failure),
                  failure.error);
    CU_ASSERT_EQUAL(hl_weight_lease_provenance(lease)->validation, HL_WEIGHT_FULL_CHECKSUM);
    hl_weight_lease_release(lease);
    end();
}

/* --- who may build --- */

static void a_producer_that_cannot_make_the_artifact_never_runs(void)
{
    static const char *const others[] = {HL_GOLDEN_KEY, HL_GOLDEN_KEY};
    static const char *const wrong[] = {"0000000000000000000000000000000000000000000000000000000000000000"};
    begin(HL_FIXTURE_SHM);
    const hl_weight_producer good = fake.producer;
    fake.producer.scope = HL_WEIGHT_GROUP_COHORT;
    hl_fixture_store(&fixture);
    expect_refused(HL_WEIGHT_PRODUCER_UNSUPPORTED, false);
    fake.producer.scope = HL_WEIGHT_ARTIFACT_BUNDLE;
    expect_refused(HL_WEIGHT_PRODUCER_UNSUPPORTED, false);
    fake.producer = good;
    fake.producer.output_keys = others;
    fake.producer.output_count = 2;
    expect_refused(HL_WEIGHT_PRODUCER_UNAVAILABLE, false);
    fake.producer.output_keys = wrong;
    fake.producer.output_count = 1;
    expect_refused(HL_WEIGHT_PRODUCER_UNAVAILABLE, false);
    fake.producer.output_count = 0;
    expect_refused(HL_WEIGHT_PRODUCER_UNAVAILABLE, false);
    fake.producer = good;
    fake.producer.size = 8;
    expect_refused(HL_WEIGHT_INVALID_CONFIG, false);
    fake.producer = good;
    fake.producer.produce = NULL;
    expect_refused(HL_WEIGHT_INVALID_CONFIG, false);
    fake.producer = good;
    fake.producer.manifest_schema = "another";
    expect_refused(HL_WEIGHT_PRODUCER_FAILED, false);
    CU_ASSERT_PTR_NOT_NULL(strstr(failure.error.text, "manifest_schema"));
    fake.producer = good;
    fake.producer.restorer_schema = "another";
    expect_refused(HL_WEIGHT_PRODUCER_FAILED, false);
    CU_ASSERT_PTR_NOT_NULL(strstr(failure.error.text, "restorer_schema"));
    CU_ASSERT_EQUAL(fake.runs, 0);
    hl_weight_lease *lease = NULL;
    HL_EXPECT_FAILURE(hl_weight_store_get_or_build(fixture.store, identity, HL_WEIGHT_FS_VERITY, &good, NULL,
                                                   &lease, &failure),
                      HL_WEIGHT_UNSUPPORTED, false, failure);
    CU_ASSERT_EQUAL(fake.runs, 0);
    end();
}

static hl_status say_nothing(struct hl_fake_producer *self, hl_weight_writer *writer, hl_error *err)
{
    (void)writer;
    (void)err;
    return self->extra ? HL_OK : HL_PENDING;
}

static hl_status leave_open(struct hl_fake_producer *self, hl_weight_writer *writer, hl_error *err)
{
    (void)self;
    static const uint64_t shape[1] = {1};
    const hl_weight_tensor_spec spec = {"t", HL_WEIGHT_BUFFER, "x", "torch.uint8", 1, shape};
    hl_weight_payload *payload = NULL;
    hl_status status = hl_weight_writer_open(writer, "open.safetensors", &spec, 1, &payload, err);
    return status ? status : hl_weight_payload_write(payload, 0, 0, "x", 1, err);
}

static void what_the_producer_did_wrong_is_said_and_nothing_is_left(void)
{
    begin(HL_FIXTURE_DISK);
    fake.fail_with = HL_E_CORRUPT;
    fake.fail_text = "the checkpoint has no layer 7";
    expect_refused(HL_WEIGHT_PRODUCER_FAILED, false);
    CU_ASSERT_STRING_EQUAL(failure.error.text, "the checkpoint has no layer 7");
    CU_ASSERT_EQUAL(failure.stage, HL_WEIGHT_STAGE_PRODUCTION);
    fake.fail_with = HL_OK;
    fake.instead = say_nothing;
    expect_refused(HL_WEIGHT_PRODUCER_FAILED, false);
    CU_ASSERT_PTR_NOT_NULL(strstr(failure.error.text, "no reason"));
    fake.extra = &fake;
    expect_refused(HL_WEIGHT_PRODUCER_FAILED, false);
    CU_ASSERT_PTR_NOT_NULL(strstr(failure.error.text, "wrote nothing"));
    fake.instead = leave_open;
    expect_refused(HL_WEIGHT_PRODUCER_FAILED, false);
    CU_ASSERT_PTR_NOT_NULL(strstr(failure.error.text, "open.safetensors"));
    fake.instead = NULL;
    fake.producer.format_metadata = "{not json";
    expect_refused(HL_WEIGHT_PRODUCER_FAILED, false);
    fake.producer.format_metadata = "{\"b\": 1, \"a\": [true]}";
    hl_weight_lease *const lease = get(HL_WEIGHT_BUILT);
    CU_ASSERT_STRING_EQUAL(hl_weight_lease_format_metadata(lease), "{\"a\":[true],\"b\":1}");
    hl_weight_lease_release(lease);
    end();
}

static void a_read_only_store_builds_nothing(void)
{
    begin(HL_FIXTURE_SHM);
    hl_fixture_store(&fixture);
    fixture.options.read_only = true;
    hl_fixture_reopen(&fixture);
    expect_refused(HL_WEIGHT_UNSUPPORTED, false);
    HL_EXPECT_FAILURE(hl_weight_store_clean(fixture.store, HL_GOLDEN_KEY, &failure), HL_WEIGHT_UNSUPPORTED,
                      false, failure);
    CU_ASSERT_EQUAL(fake.runs, 0);
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "artifacts", ""), 0);
    end();
}

/* --- an entry that is not to be used --- */

static void expect_one_quarantined(const char *reason)
{
    char prefix[128], name[256], path[300];
    snprintf(prefix, sizeof prefix, HL_GOLDEN_KEY ".%s.", reason);
    hl_fixture_find(&fixture, "quarantine", prefix, name);
    snprintf(path, sizeof path, "quarantine/%s", name);
    CU_ASSERT_EQUAL(hl_fixture_mode(&fixture, path), 0555);
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "quarantine", ""), 1);
}

static void a_corrupt_payload_is_quarantined_once_and_built_again(void)
{
    begin(HL_FIXTURE_DISK);
    get_and_release(HL_WEIGHT_BUILT);
    hl_fixture_corrupt(&fixture, ENTRY "/" HL_GOLDEN_FILE, 231);
    get_and_release(HL_WEIGHT_HIT); /* metadata cannot see it */
    hl_weight_lease *lease = NULL;
    HL_EXPECT_FAILURE(hl_fixture_look_up(&fixture, identity, HL_WEIGHT_FULL_CHECKSUM, &lease, &failure),
                      HL_WEIGHT_CHECKSUM_MISMATCH, false, failure);
    HL_EXPECT_FAILURE(
        hl_fixture_look_up(&fixture, identity, HL_WEIGHT_MANIFEST_AND_METADATA, &lease, &failure),
        HL_WEIGHT_ARTIFACT_DENIED, false, failure);
    get_and_release(HL_WEIGHT_BUILT);
    CU_ASSERT_EQUAL(fake.runs, 2);
    expect_one_quarantined("validation_failure");
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "deny", ""), 0);
    get_and_release(HL_WEIGHT_HIT);
    end();
}

static void one_call_denies_quarantines_and_builds(void)
{
    begin(HL_FIXTURE_SHM);
    get_and_release(HL_WEIGHT_BUILT);
    hl_fixture_chmod(&fixture, ENTRY, 0755);
    get_and_release(HL_WEIGHT_BUILT);
    expect_one_quarantined("validation_failure");
    end();
}

static void a_folder_left_in_transition_is_denied_and_replaced(void)
{
    begin(HL_FIXTURE_SHM);
    get_and_release(HL_WEIGHT_BUILT);
    hl_fixture_chmod(&fixture, ENTRY, 01755);
    hl_weight_lease *lease = NULL;
    HL_EXPECT_FAILURE(
        hl_fixture_look_up(&fixture, identity, HL_WEIGHT_MANIFEST_AND_METADATA, &lease, &failure),
        HL_WEIGHT_ARTIFACT_DENIED, false, failure);
    get_and_release(HL_WEIGHT_BUILT);
    expect_one_quarantined("validation_failure");
    end();
}

static void a_link_in_place_of_an_artifact_is_never_moved_nor_followed(void)
{
    begin(HL_FIXTURE_SHM);
    hl_fixture_store(&fixture);
    char path[400];
    snprintf(path, sizeof path, "%s/" ENTRY, fixture.root);
    CU_ASSERT_EQUAL_FATAL(symlink("/", path), 0);
    expect_refused(HL_WEIGHT_QUARANTINE_FAILED, false);
    CU_ASSERT_EQUAL(fake.runs, 0);
    CU_ASSERT_TRUE(hl_fixture_exists(&fixture, ENTRY));
    HL_EXPECT_FAILURE(hl_weight_store_clean(fixture.store, HL_GOLDEN_KEY, &failure),
                      HL_WEIGHT_QUARANTINE_FAILED, false, failure);
    CU_ASSERT_EQUAL(unlink(path), 0);
    get_and_release(HL_WEIGHT_BUILT);
    end();
}

static void a_lease_on_a_denied_artifact_is_named_and_not_awaited(void)
{
    begin(HL_FIXTURE_SHM);
    hl_weight_lease *const lease = get(HL_WEIGHT_BUILT);
    HL_EXPECT_OK(hl_weight_store_deny(fixture.store, HL_GOLDEN_KEY, "a test", &failure), failure.error);
    const int64_t before = hl_clock_ns();
    expect_refused(HL_WEIGHT_ACTIVE_LEASE, true);
    CU_ASSERT_TRUE(hl_clock_ns() - before < fixture.options.coordination_timeout_ns);
    char holder[64];
    snprintf(holder, sizeof holder, "{\"holder_pids\":[%d]}", (int)getpid());
    CU_ASSERT_STRING_EQUAL(failure.details, holder);
    /* Its bytes are as they were. */
    CU_ASSERT_EQUAL(((const unsigned char *)hl_weight_lease_tensor(lease, "layer.scale")->data)[3], 0x3f);
    hl_weight_lease_release(lease);
    get_and_release(HL_WEIGHT_BUILT);
    expect_one_quarantined("validation_failure");
    CU_ASSERT_EQUAL(fake.runs, 2);
    end();
}

/* W6: whoever has both locks was asked for the domain's first. */
static void a_serialized_build_waits_for_the_domain_before_its_artifact(void)
{
    struct hl_lock domain = HL_LOCK_NONE, turn = HL_LOCK_NONE;
    hl_error err;
    begin(HL_FIXTURE_SHM);
    fixture.options.admission = HL_WEIGHT_ADMISSION_SERIALIZED;
    fixture.options.max_store_bytes = 1 << 20;
    fixture.options.coordination_timeout_ns = 1000 * 1000;
    const int locks = hl_fixture_store(&fixture)->locks;
    HL_EXPECT_OK(hl_lock_take(locks, HL_LOCK_DOMAIN_BUILD, HL_GOLDEN_KEY, HL_LOCK_EXCLUSIVE,
                              HL_LOCK_NOT_AT_ALL, false, &domain, &err),
                 err);
    HL_EXPECT_OK(hl_lock_take(locks, HL_LOCK_BUILD, HL_GOLDEN_KEY, HL_LOCK_EXCLUSIVE, HL_LOCK_NOT_AT_ALL,
                              false, &turn, &err),
                 err);
    expect_refused(HL_WEIGHT_ACTIVE_BUILD_TIMEOUT, true);
    CU_ASSERT_PTR_NOT_NULL(strstr(failure.error.text, "domain-build.lock"));
    hl_lock_release(&domain);
    expect_refused(HL_WEIGHT_ACTIVE_BUILD_TIMEOUT, true);
    CU_ASSERT_PTR_NOT_NULL(strstr(failure.error.text, HL_GOLDEN_KEY ".build.lock"));
    hl_lock_release(&turn);
    CU_ASSERT_EQUAL(fake.runs, 0);
    get_and_release(HL_WEIGHT_BUILT);
    end();
}

static void what_a_crash_left_is_swept_by_the_next_build(void)
{
    begin(HL_FIXTURE_DISK);
    hl_fixture_store(&fixture);
    hl_weight_identity *const other = hl_fixture_identity(2, 1);
    char path[600];
    const char *const left[] = {"tmp/%s.1.x", "quarantine/%s.cleanup.x",
                                "quarantine/%s.validation_failure.x"};
    for (unsigned i = 0; i < 3; i++)
        for (unsigned both = 0; both < 2; both++) {
            char name[256];
            snprintf(name, sizeof name, left[i], both ? hl_weight_identity_key(other) : HL_GOLDEN_KEY);
            snprintf(path, sizeof path, "%s/%s", fixture.root, name);
            CU_ASSERT_EQUAL_FATAL(mkdir(path, 0755), 0);
            CU_ASSERT_EQUAL(chmod(path, 01755), 0);
        }
    hl_fixture_overwrite(&fixture, "deny/" HL_GOLDEN_KEY ".json", "torn", 4);
    get_and_release(HL_WEIGHT_BUILT);
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "deny", ""), 0);
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "tmp", HL_GOLDEN_KEY), 0);
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "quarantine", HL_GOLDEN_KEY), 1);
    CU_ASSERT_EQUAL(hl_fixture_mode(&fixture, "quarantine/" HL_GOLDEN_KEY ".validation_failure.x"), 0555);
    /* The other artifact's are its own builder's business. */
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "tmp", hl_weight_identity_key(other)), 1);
    CU_ASSERT_EQUAL(hl_fixture_count(&fixture, "quarantine", hl_weight_identity_key(other)), 2);
    hl_weight_identity_free(other);
    end();
}

HL_TESTS(build, HL_CASE(the_golden_artifact_is_written_byte_for_byte),
         HL_CASE(the_aligned_layout_has_the_same_content), HL_CASE(a_second_call_finds_what_the_first_built),
         HL_CASE(two_publications_of_one_identity_have_the_same_content),
         HL_CASE(a_build_counts_as_the_full_checksum_that_was_asked_for),
         HL_CASE(a_producer_that_cannot_make_the_artifact_never_runs),
         HL_CASE(what_the_producer_did_wrong_is_said_and_nothing_is_left),
         HL_CASE(a_read_only_store_builds_nothing),
         HL_CASE(a_corrupt_payload_is_quarantined_once_and_built_again),
         HL_CASE(one_call_denies_quarantines_and_builds),
         HL_CASE(a_folder_left_in_transition_is_denied_and_replaced),
         HL_CASE(a_link_in_place_of_an_artifact_is_never_moved_nor_followed),
         HL_CASE(a_lease_on_a_denied_artifact_is_named_and_not_awaited),
         HL_CASE(a_serialized_build_waits_for_the_domain_before_its_artifact),
         HL_CASE(what_a_crash_left_is_swept_by_the_next_build));
