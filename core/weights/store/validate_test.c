/* Every way in which an artifact can break a rule: what it is called, that it is denied, and that trouble of
 * the moment is not among them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/testing/cunit.h"
#include "core/weights/store/artifact.h"
#include "core/weights/store/golden_testing.h"

static const char entry[] = HL_GOLDEN_ENTRY, ready[] = HL_GOLDEN_ENTRY "/READY.json",
                  manifest[] = HL_GOLDEN_ENTRY "/manifest.json", payload[] = HL_GOLDEN_PAYLOAD,
                  marker[] = "deny/" HL_GOLDEN_KEY ".json";

/* --- the ways --- */

typedef struct hl_store_fixture fixture_t;

static void remove_entry(fixture_t *f, const char *path)
{
    hl_fixture_chmod(f, entry, 0755);
    hl_fixture_remove(f, path);
    hl_fixture_chmod(f, entry, 0555);
}

static void extra_file(fixture_t *f)
{
    hl_golden_add_file(f, "more.safetensors");
}

static void missing_payload(fixture_t *f)
{
    remove_entry(f, payload);
}

static void missing_ready(fixture_t *f)
{
    remove_entry(f, ready);
}

static void missing_manifest(fixture_t *f)
{
    remove_entry(f, manifest);
}

static void linked_payload(fixture_t *f)
{
    hl_golden_make_link(f, HL_GOLDEN_FILE, false);
}

static void linked_manifest(fixture_t *f)
{
    hl_golden_make_link(f, "manifest.json", false);
}

static void linked_ready(fixture_t *f)
{
    hl_golden_make_link(f, "READY.json", false);
}

static void hard_linked_payload(fixture_t *f)
{
    hl_golden_make_link(f, HL_GOLDEN_FILE, true);
}

static void hard_linked_manifest(fixture_t *f)
{
    hl_golden_make_link(f, "manifest.json", true);
}

static void linked_folder(fixture_t *f)
{
    char from[600], to[600];
    snprintf(from, sizeof from, "%s/%s", f->root, entry);
    snprintf(to, sizeof to, "%s/tmp/folder", f->root);
    hl_fixture_remove(f, "tmp/folder");
    hl_fixture_chmod(f, entry, 0755);
    CU_ASSERT_EQUAL_FATAL(rename(from, to), 0);
    CU_ASSERT_EQUAL_FATAL(chmod(to, 0555), 0);
    CU_ASSERT_EQUAL_FATAL(symlink(to, from), 0);
}

static void file_for_folder(fixture_t *f)
{
    hl_fixture_remove(f, entry);
    hl_fixture_overwrite(f, entry, "x", 1);
}

static void folder_for_payload(fixture_t *f)
{
    char path[600];
    missing_payload(f);
    hl_fixture_chmod(f, entry, 0755);
    snprintf(path, sizeof path, "%s/%s", f->root, payload);
    CU_ASSERT_EQUAL_FATAL(mkdir(path, 0555), 0);
    hl_fixture_chmod(f, entry, 0555);
}

static void pipe_for_manifest(fixture_t *f)
{
    char path[600];
    missing_manifest(f);
    hl_fixture_chmod(f, entry, 0755);
    snprintf(path, sizeof path, "%s/%s", f->root, manifest);
    CU_ASSERT_EQUAL_FATAL(mkfifo(path, 0444), 0);
    hl_fixture_chmod(f, entry, 0555);
}

static void writable_folder(fixture_t *f)
{
    hl_fixture_chmod(f, entry, 0755);
}

static void writable_payload(fixture_t *f)
{
    hl_fixture_chmod(f, payload, 0644);
}

static void writable_ready(fixture_t *f)
{
    hl_fixture_chmod(f, ready, 0464);
}

static void writable_manifest(fixture_t *f)
{
    hl_fixture_chmod(f, manifest, 0446);
}

static void longer_payload(fixture_t *f)
{
    size_t bytes;
    char *text = hl_fixture_read(f, payload, &bytes);
    char *longer = calloc(1, bytes + 8);
    memcpy(longer, text, bytes);
    hl_fixture_overwrite(f, payload, longer, bytes + 8);
    free(longer);
    free(text);
}

static void shorter_payload(fixture_t *f)
{
    size_t bytes;
    char *text = hl_fixture_read(f, payload, &bytes);
    hl_fixture_overwrite(f, payload, text, bytes - 1);
    free(text);
}

static void empty_ready(fixture_t *f)
{
    hl_fixture_overwrite(f, ready, "", 0);
}

static void newer_ready(fixture_t *f)
{
    hl_golden_edit_ready(f, "\"schema_version\":1", "\"schema_version\":2");
}

static void other_integrity(fixture_t *f)
{
    hl_golden_edit_ready(f, "full_checksum", "fs_verity");
}

static void torn_manifest(fixture_t *f)
{
    size_t bytes;
    char *text = hl_fixture_read(f, manifest, &bytes);
    hl_fixture_overwrite(f, manifest, text, bytes / 2);
    free(text);
}

static void newer_manifest(fixture_t *f)
{
    hl_golden_edit_manifest(f, "\"schema_version\":1,\"tensors\"", "\"schema_version\":2,\"tensors\"");
}

static void spaced_manifest(fixture_t *f)
{
    hl_golden_edit_manifest(f, "\"artifact_key\":", "\"artifact_key\": ");
}

static void other_manifest(fixture_t *f)
{
    hl_golden_edit_ready(f, "\"manifest_sha256\":\"4a7b", "\"manifest_sha256\":\"4a7c");
}

static void other_content(fixture_t *f)
{
    hl_golden_edit_ready(f, "\"artifact_content_sha256\":\"8c96", "\"artifact_content_sha256\":\"8c97");
}

static void other_content_in_both(fixture_t *f)
{
    hl_golden_edit_manifest(f, "\"artifact_content_sha256\":\"8c96", "\"artifact_content_sha256\":\"8c97");
    hl_golden_edit_ready(f, "\"artifact_content_sha256\":\"8c96", "\"artifact_content_sha256\":\"8c97");
}

static void other_producer_schema(fixture_t *f)
{
    hl_golden_edit_manifest(f, "\"producer_schema\":\"test-producer-v1\"", "\"producer_schema\":\"v2\"");
}

static void other_restorer_schema(fixture_t *f)
{
    hl_golden_edit_manifest(f, "\"restorer_schema\":\"test-restorer-v1\",\"schema",
                            "\"restorer_schema\":\"v2\",\"schema");
}

static void other_key(fixture_t *f)
{
    hl_golden_edit_manifest(f, "\"artifact_key\":\"a12c", "\"artifact_key\":\"b12c");
}

static void no_header(fixture_t *f)
{
    size_t bytes;
    char *text = hl_fixture_read(f, payload, &bytes);
    memset(text, 0xff, 8);
    hl_fixture_overwrite(f, payload, text, bytes);
    hl_golden_forge(f, NULL); /* consistent: only the header is none */
    free(text);
}

static void with_other_shape(struct hl_manifest_tensor *tensors, struct hl_manifest_file *files)
{
    static const uint64_t shape[2] = {3, 4}, stride[2] = {4, 1};
    (void)files;
    tensors[1].shape = shape;
    tensors[1].stride = stride;
}

static void with_other_rank(struct hl_manifest_tensor *tensors, struct hl_manifest_file *files)
{
    static const uint64_t shape[1] = {12}, stride[1] = {1};
    (void)files;
    tensors[1].rank = 1;
    tensors[1].shape = shape;
    tensors[1].stride = stride;
}

static void with_other_strides(struct hl_manifest_tensor *tensors, struct hl_manifest_file *files)
{
    static const uint64_t stride[2] = {1, 4};
    (void)files;
    tensors[1].stride = stride;
}

static void with_other_dtype(struct hl_manifest_tensor *tensors, struct hl_manifest_file *files)
{
    (void)files;
    tensors[1].dtype = "torch.float16";
}

static void with_unknown_dtype(struct hl_manifest_tensor *tensors, struct hl_manifest_file *files)
{
    (void)files;
    tensors[1].dtype = "torch.complex256";
}

static void with_other_bytes(struct hl_manifest_tensor *tensors, struct hl_manifest_file *files)
{
    (void)files;
    tensors[1].bytes += 8;
}

static void with_other_key(struct hl_manifest_tensor *tensors, struct hl_manifest_file *files)
{
    (void)files;
    tensors[1].storage_key = "layer.bias";
}

static void with_other_sum(struct hl_manifest_tensor *tensors, struct hl_manifest_file *files)
{
    (void)tensors;
    files[0].sha256[0] ^= 1;
}

#define FORGED(name, change)                                                                                 \
    static void name(fixture_t *f)                                                                           \
    {                                                                                                        \
        hl_golden_forge(f, change);                                                                          \
    }
FORGED(other_shape, with_other_shape)
FORGED(other_rank, with_other_rank)
FORGED(other_strides, with_other_strides)
FORGED(other_dtype, with_other_dtype)
FORGED(unknown_dtype, with_unknown_dtype)
FORGED(other_bytes, with_other_bytes)
FORGED(other_storage_key, with_other_key)
FORGED(other_sum, with_other_sum)

static void flipped_byte(fixture_t *f)
{
    hl_fixture_corrupt(f, payload, 231);
}

static void flipped_header(fixture_t *f)
{
    hl_fixture_corrupt(f, payload, 30);
}

struct way {
    const char *name;
    void (*make)(fixture_t *f);
    hl_weight_code code;
    bool needs_full, trust_only;
};
#define WAY(name, code)                                                                                      \
    {                                                                                                        \
#name, name, HL_WEIGHT_##code, false, false                                                          \
    }
#define TRUST_WAY(name)                                                                                      \
    {                                                                                                        \
#name, name, HL_WEIGHT_MANIFEST_CORRUPT, false, true                                                 \
    }
#define FULL_WAY(name)                                                                                       \
    {                                                                                                        \
#name, name, HL_WEIGHT_CHECKSUM_MISMATCH, true, false                                                \
    }
static const struct way ways[] = {
    WAY(extra_file, MANIFEST_CORRUPT),
    WAY(missing_payload, MANIFEST_CORRUPT),
    WAY(missing_ready, MANIFEST_CORRUPT),
    WAY(missing_manifest, MANIFEST_CORRUPT),
    WAY(linked_payload, MANIFEST_CORRUPT),
    WAY(linked_manifest, MANIFEST_CORRUPT),
    WAY(linked_ready, MANIFEST_CORRUPT),
    WAY(hard_linked_payload, MANIFEST_CORRUPT),
    WAY(hard_linked_manifest, MANIFEST_CORRUPT),
    WAY(linked_folder, MANIFEST_CORRUPT),
    WAY(file_for_folder, MANIFEST_CORRUPT),
    WAY(folder_for_payload, MANIFEST_CORRUPT),
    WAY(pipe_for_manifest, MANIFEST_CORRUPT),
    TRUST_WAY(writable_folder),
    TRUST_WAY(writable_payload),
    TRUST_WAY(writable_ready),
    TRUST_WAY(writable_manifest),
    WAY(longer_payload, CHECKSUM_MISMATCH),
    WAY(shorter_payload, CHECKSUM_MISMATCH),
    WAY(empty_ready, MANIFEST_CORRUPT),
    WAY(newer_ready, MANIFEST_INCOMPATIBLE),
    WAY(other_integrity, MANIFEST_INCOMPATIBLE),
    WAY(torn_manifest, MANIFEST_CORRUPT),
    WAY(newer_manifest, MANIFEST_INCOMPATIBLE),
    WAY(spaced_manifest, MANIFEST_CORRUPT),
    WAY(other_manifest, CHECKSUM_MISMATCH),
    WAY(other_content, CHECKSUM_MISMATCH),
    WAY(other_content_in_both, CHECKSUM_MISMATCH),
    WAY(other_producer_schema, MANIFEST_INCOMPATIBLE),
    WAY(other_restorer_schema, MANIFEST_INCOMPATIBLE),
    WAY(other_key, MANIFEST_CORRUPT),
    WAY(no_header, MANIFEST_CORRUPT),
    WAY(other_shape, MANIFEST_CORRUPT),
    WAY(other_rank, MANIFEST_CORRUPT),
    WAY(other_strides, MANIFEST_CORRUPT),
    WAY(other_dtype, MANIFEST_CORRUPT),
    WAY(unknown_dtype, MANIFEST_CORRUPT),
    WAY(other_bytes, MANIFEST_CORRUPT),
    WAY(other_storage_key, MANIFEST_CORRUPT),
    FULL_WAY(other_sum),
    FULL_WAY(flipped_byte),
    FULL_WAY(flipped_header),
};

/* --- one look --- */

static bool looks_so(fixture_t *f, const hl_weight_identity *identity, hl_weight_validation validation,
                     hl_weight_code code)
{
    hl_weight_lease *lease = NULL;
    hl_weight_failure failure;
    const unsigned before = hl_open_descriptors();
    const hl_status status =
        hl_weight_store_lookup(hl_fixture_store(f), identity, validation, &lease, &failure);
    const bool as_expected = status == hl_weight_code_status(code) && !lease && failure.code == code &&
                             !failure.retryable && failure.error.text[0] && failure.error.status == status &&
                             hl_open_descriptors() == before;
    if (!as_expected)
        fprintf(stderr, "got %s: %s\n", hl_status_name(status), status ? failure.error.text : "a lease");
    hl_weight_lease_release(lease);
    return as_expected;
}

static bool hits(fixture_t *f, const hl_weight_identity *identity, hl_weight_validation validation)
{
    hl_weight_lease *lease = NULL;
    hl_weight_failure failure;
    const hl_status status =
        hl_weight_store_lookup(hl_fixture_store(f), identity, validation, &lease, &failure);
    if (status != HL_OK)
        fprintf(stderr, "no hit: %s\n", failure.error.text);
    hl_weight_lease_release(lease);
    return status == HL_OK;
}

/* The artifact is broken this way, found so, denied, and stays denied. */
static bool is_refused_and_denied(fixture_t *f, const hl_weight_identity *identity, const struct way *way)
{
    hl_golden_renew(f);
    way->make(f);
    bool good = true;
    if (way->needs_full)
        good = hits(f, identity, HL_WEIGHT_MANIFEST_AND_METADATA) || way->make == flipped_header;
    if (hl_fixture_exists(f, marker)) /* the flipped header may show without a checksum */
        hl_fixture_remove(f, marker);
    good = good &&
           looks_so(f, identity, way->needs_full ? HL_WEIGHT_FULL_CHECKSUM : HL_WEIGHT_MANIFEST_AND_METADATA,
                    way->code);
    good = good && hl_fixture_exists(f, marker) && hl_fixture_mode(f, marker) == 0444;
    good = good && looks_so(f, identity, HL_WEIGHT_MANIFEST_AND_METADATA, HL_WEIGHT_ARTIFACT_DENIED);
    if (!good)
        fprintf(stderr, "not refused as it must be: %s\n", way->name);
    return good;
}

static int refuse_all(void *context)
{
    fixture_t *f = context;
    int wrong = 0;
    hl_weight_identity *identity = hl_fixture_identity(2, 0);
    hl_fixture_store(f);
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++)
        wrong += !is_refused_and_denied(f, identity, &ways[i]);
    hl_weight_identity_free(identity);
    hl_weight_store_close(f->store);
    f->store = NULL;
    return wrong;
}

static void every_broken_rule_is_named_and_denied(void)
{
    fixture_t fixture;
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    CU_ASSERT_EQUAL(refuse_all(&fixture), 0);
    hl_fixture_close(&fixture);
    hl_fixture_open(&fixture, HL_FIXTURE_SHM);
    CU_ASSERT_EQUAL(refuse_all(&fixture), 0);
    hl_fixture_close(&fixture);
}

/* Root may read and write what modes forbid; nobody else may. Run once as somebody else. */
static void the_same_for_a_user_who_is_not_root(void)
{
    fixture_t fixture;
    if (!hl_child_require_second_user())
        return;
    hl_golden_load();
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    CU_ASSERT_EQUAL(hl_child_run_as_nobody(&fixture, refuse_all, &fixture), 0);
    hl_fixture_close(&fixture);
}

static void without_trust_only_modes_and_owners_are_overlooked(void)
{
    fixture_t fixture;
    hl_weight_identity *identity = hl_fixture_identity(2, 0);
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    fixture.options.trust_permissions = false;
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        if (!ways[i].trust_only && i % 7 != 0)
            continue;
        hl_fixture_store(&fixture);
        hl_golden_renew(&fixture);
        ways[i].make(&fixture);
        if (ways[i].trust_only)
            CU_ASSERT_TRUE(hits(&fixture, identity, HL_WEIGHT_FULL_CHECKSUM))
        else if (!ways[i].needs_full)
            CU_ASSERT_TRUE(looks_so(&fixture, identity, HL_WEIGHT_MANIFEST_AND_METADATA, ways[i].code));
    }
    hl_golden_renew(&fixture);
    hl_fixture_chmod(&fixture, entry, 01755); /* in transition: never, trusted or not */
    CU_ASSERT_TRUE(looks_so(&fixture, identity, HL_WEIGHT_MANIFEST_AND_METADATA, HL_WEIGHT_ARTIFACT_DENIED));
    hl_fixture_close(&fixture);
    hl_weight_identity_free(identity);
}

static void what_another_user_owns_is_refused(void)
{
    static const char *const paths[] = {entry, payload, manifest, ready};
    fixture_t fixture;
    if (!hl_child_require_second_user())
        return;
    hl_weight_identity *identity = hl_fixture_identity(2, 0);
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    hl_fixture_store(&fixture);
    for (size_t i = 0; i < 4; i++) {
        char path[600];
        hl_golden_renew(&fixture);
        snprintf(path, sizeof path, "%s/%s", fixture.root, paths[i]);
        CU_ASSERT_EQUAL_FATAL(chown(path, 65534, 65534), 0);
        CU_ASSERT_TRUE(
            looks_so(&fixture, identity, HL_WEIGHT_MANIFEST_AND_METADATA, HL_WEIGHT_MANIFEST_CORRUPT));
    }
    hl_fixture_close(&fixture);
    hl_weight_identity_free(identity);
}

static void an_artifact_under_another_key_is_not_that_artifact(void)
{
    fixture_t fixture;
    char path[128];
    hl_weight_identity *other = hl_fixture_identity(2, 1);
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    hl_golden_lay(&fixture, hl_weight_identity_key(other));
    CU_ASSERT_TRUE(
        looks_so(&fixture, other, HL_WEIGHT_MANIFEST_AND_METADATA, HL_WEIGHT_MANIFEST_INCOMPATIBLE));
    snprintf(path, sizeof path, "deny/%s.json", hl_weight_identity_key(other));
    CU_ASSERT_TRUE(hl_fixture_exists(&fixture, path));
    hl_fixture_close(&fixture);
    hl_weight_identity_free(other);
}

static void a_validation_gives_the_folder_and_writes_nothing(void)
{
    fixture_t fixture;
    struct hl_artifact artifact;
    hl_weight_failure failure;
    hl_fixture_open(&fixture, HL_FIXTURE_DISK);
    hl_golden_lay(&fixture, HL_GOLDEN_KEY);
    hl_weight_store *store = hl_fixture_store(&fixture);
    CU_ASSERT_EQUAL(
        hl_artifact_validate(store, HL_GOLDEN_KEY, NULL, HL_WEIGHT_FULL_CHECKSUM, &artifact, &failure),
        HL_VERDICT_VALID);
    CU_ASSERT_STRING_EQUAL(artifact.manifest->content_sha256, HL_GOLDEN_CONTENT);
    CU_ASSERT_EQUAL(artifact.files[0].data_offset, 200);
    CU_ASSERT_EQUAL(artifact.tensor_begin[0], 200);
    CU_ASSERT_EQUAL(artifact.tensor_begin[1], 208);
    hl_artifact_close(&artifact);
    flipped_byte(&fixture);
    CU_ASSERT_EQUAL(
        hl_artifact_validate(store, HL_GOLDEN_KEY, NULL, HL_WEIGHT_FULL_CHECKSUM, &artifact, &failure),
        HL_VERDICT_INVALID);
    CU_ASSERT_TRUE(artifact.folder >= 0 && artifact.entry.st_ino != 0);
    hl_artifact_close(&artifact);
    hl_artifact_close(&artifact); /* nothing is left to close */
    CU_ASSERT_FALSE(hl_fixture_exists(&fixture, marker));
    CU_ASSERT_EQUAL(
        hl_artifact_validate(store, HL_GOLDEN_KEY, NULL, HL_WEIGHT_FS_VERITY, &artifact, &failure),
        HL_VERDICT_TROUBLE);
    CU_ASSERT_EQUAL(failure.code, HL_WEIGHT_UNSUPPORTED);
    hl_fixture_close(&fixture);
}

HL_TESTS(store_validate, HL_CASE(every_broken_rule_is_named_and_denied),
         HL_CASE(the_same_for_a_user_who_is_not_root),
         HL_CASE(without_trust_only_modes_and_owners_are_overlooked),
         HL_CASE(what_another_user_owns_is_refused),
         HL_CASE(an_artifact_under_another_key_is_not_that_artifact),
         HL_CASE(a_validation_gives_the_folder_and_writes_nothing));
