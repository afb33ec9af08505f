/* Each failure code can be met, or the public header says that it is reserved. One way to each code; the
 * rooms' own tests have the others. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/base/error.h"
#include "core/testing/cunit.h"
#include "core/weights/runtime/runtime.h"
#include "core/weights/store/store_testing.h"
#if defined(HL_FAULTS) && HL_FAULTS
#include "faults/testing.h"
#endif

/* What a provocation works with; it returns the status of the call that failed and leaves the failure. */
struct scene {
    struct hl_store_fixture fixture;
    hl_weight_identity *identity;
    struct hl_fake_producer fake;
    hl_weight_failure failure;
    hl_weight_lease *lease; /* released at the end */
};

static hl_status build(struct scene *scene)
{
    hl_weight_origin origin;
    return hl_weight_store_get_or_build(hl_fixture_store(&scene->fixture), scene->identity,
                                        HL_WEIGHT_MANIFEST_AND_METADATA, &scene->fake.producer, &origin,
                                        &scene->lease, &scene->failure);
}

static hl_status look_up(struct scene *scene, hl_weight_validation validation)
{
    return hl_weight_store_lookup(hl_fixture_store(&scene->fixture), scene->identity, validation,
                                  &scene->lease, &scene->failure);
}

static hl_status reopen(struct scene *scene)
{
    hl_weight_store *other = NULL;
    const hl_status status = hl_weight_store_open(&scene->fixture.options, &other, &scene->failure);
    hl_weight_store_close(other);
    return status;
}

static void put_golden(struct scene *scene)
{
    hl_weight_lease_release(hl_fixture_build_golden(&scene->fixture));
}

/* --- domain --- */

static hl_status invalid_config(struct scene *scene)
{
    scene->fixture.options.root = "relative";
    return reopen(scene);
}

static hl_status domain_unavailable(struct scene *scene)
{
    scene->fixture.options.root = "/dev/null/store";
    return reopen(scene);
}

static hl_status storage_class_mismatch(struct scene *scene)
{
    scene->fixture.options.storage_class =
        scene->fixture.options.storage_class == HL_WEIGHT_DISK ? HL_WEIGHT_TMPFS : HL_WEIGHT_DISK;
    return reopen(scene);
}

static hl_status domain_policy_mismatch(struct scene *scene)
{
    (void)hl_fixture_store(&scene->fixture);
    scene->fixture.options.min_free_bytes = 4096;
    return reopen(scene);
}

static hl_status unsupported(struct scene *scene)
{
    return look_up(scene, HL_WEIGHT_FS_VERITY);
}

/* --- lookups --- */

static hl_status local_miss(struct scene *scene)
{
    return look_up(scene, HL_WEIGHT_MANIFEST_AND_METADATA);
}

static hl_status active_build_timeout(struct scene *scene)
{
    struct hl_lock lock;
    hl_error err = {0};
    scene->fixture.options.coordination_timeout_ns = 1;
    HL_REQUIRE_OK(hl_lock_take(hl_fixture_store(&scene->fixture)->locks, HL_LOCK_BUILD, HL_GOLDEN_KEY,
                               HL_LOCK_EXCLUSIVE, HL_LOCK_FOREVER, false, &lock, &err),
                  err);
    const hl_status status = build(scene);
    hl_lock_release(&lock);
    return status;
}

static hl_status active_lease(struct scene *scene)
{
    scene->lease = hl_fixture_build_golden(&scene->fixture);
    return hl_weight_store_clean(scene->fixture.store, HL_GOLDEN_KEY, &scene->failure);
}

static hl_status artifact_denied(struct scene *scene)
{
    put_golden(scene);
    HL_EXPECT_OK(hl_weight_store_deny(scene->fixture.store, HL_GOLDEN_KEY, "test", &scene->failure),
                 scene->failure.error);
    return look_up(scene, HL_WEIGHT_MANIFEST_AND_METADATA);
}

static hl_status overwritten_ready(struct scene *scene, const char *ready)
{
    put_golden(scene);
    hl_fixture_overwrite(&scene->fixture, "artifacts/" HL_GOLDEN_KEY "/READY.json", ready, strlen(ready));
    return look_up(scene, HL_WEIGHT_MANIFEST_AND_METADATA);
}

static hl_status manifest_incompatible(struct scene *scene)
{
    return overwritten_ready(
        scene, "{\"artifact_content_sha256\":\"" HL_GOLDEN_CONTENT
               "\",\"integrity_mode\":\"full_checksum\",\"manifest_sha256\":\"" HL_GOLDEN_CONTENT
               "\",\"publication_id\":\"0123456789abcdef0123456789abcdef\",\"schema_version\":2}");
}

static hl_status manifest_corrupt(struct scene *scene)
{
    return overwritten_ready(scene, "{");
}

static hl_status checksum_mismatch(struct scene *scene)
{
    put_golden(scene);
    hl_fixture_corrupt(&scene->fixture, "artifacts/" HL_GOLDEN_KEY "/" HL_GOLDEN_FILE, 215);
    return look_up(scene, HL_WEIGHT_FULL_CHECKSUM);
}

/* --- production --- */

/* Something that keeps no rules puts an artifact of other content in the place, while this one is built. */
static hl_status build_beside_a_rival(struct hl_fake_producer *fake, hl_weight_writer *writer, hl_error *err)
{
    struct scene *scene = fake->extra;
    struct scene rival = {.identity = scene->identity};
    char from[512], to[512];
    hl_fixture_open(&rival.fixture, HL_FIXTURE_DISK);
    hl_fake_producer_init(&rival.fake, rival.identity);
    rival.fake.files = rival.fake.tensors = 1;
    rival.fake.tensor_bytes = 64;
    HL_EXPECT_OK(build(&rival), rival.failure.error);
    hl_weight_lease_release(rival.lease);
    snprintf(from, sizeof from, "%s/artifacts/" HL_GOLDEN_KEY, rival.fixture.root);
    snprintf(to, sizeof to, "%s/artifacts/" HL_GOLDEN_KEY, scene->fixture.root);
    CU_ASSERT_EQUAL(chmod(from, 0755), 0);
    CU_ASSERT_EQUAL(rename(from, to), 0);
    CU_ASSERT_EQUAL(chmod(to, 0555), 0);
    hl_fixture_close(&rival.fixture);
    return hl_fake_produce_golden(writer, err);
}

static hl_status identity_collision(struct scene *scene)
{
    scene->fake.instead = build_beside_a_rival;
    scene->fake.extra = scene;
    return build(scene);
}

/* A folder where a deny marker would be: publication cannot remove it behind the rename. */
static hl_status build_beside_a_stuck_marker(struct hl_fake_producer *fake, hl_weight_writer *writer,
                                             hl_error *err)
{
    const struct scene *scene = fake->extra;
    char path[512];
    snprintf(path, sizeof path, "%s/deny/" HL_GOLDEN_KEY ".json", scene->fixture.root);
    CU_ASSERT_EQUAL(mkdir(path, 0700), 0);
    return hl_fake_produce_golden(writer, err);
}

static hl_status publication_failed(struct scene *scene)
{
    scene->fake.instead = build_beside_a_stuck_marker;
    scene->fake.extra = scene;
    return build(scene);
}

static hl_status producer_failed(struct scene *scene)
{
    scene->fake.fail_with = HL_E_SYSTEM;
    return build(scene);
}

static hl_status producer_unsupported(struct scene *scene)
{
    scene->fake.producer.scope = HL_WEIGHT_GROUP_COHORT;
    return build(scene);
}

static hl_status producer_unavailable(struct scene *scene)
{
    scene->fake.keys[0] = "another";
    return build(scene);
}

/* --- capacity --- */

static hl_status artifact_too_large(struct scene *scene)
{
    scene->fixture.options.max_artifact_bytes = 16;
    return build(scene);
}

static hl_status store_limit_exceeded(struct scene *scene)
{
    scene->fixture.options.max_store_bytes = 16;
    return build(scene);
}

static hl_status insufficient_capacity(struct scene *scene)
{
    scene->fixture.options.min_free_bytes = 1ull << 60;
    return build(scene);
}

#if defined(HL_FAULTS) && HL_FAULTS
static hl_status enospc(struct scene *scene)
{
    hl_fault_board *board = hl_fault_board_create();
    hl_fault_arm(board, "weights_payload_reserve_before", 1, HL_FAULT_ERROR, ENOSPC);
    hl_fault_use_board(board);
    const hl_status status = build(scene);
    hl_fault_use_board(NULL);
    hl_fault_board_free(board);
    return status;
}
#else
#define enospc NULL /* a full file system is the twin's: see HL_FAULTS above */
#endif

/* --- lifecycle --- */

static hl_status quarantine_failed(struct scene *scene)
{
    (void)hl_fixture_store(&scene->fixture);
    hl_fixture_overwrite(&scene->fixture, "artifacts/" HL_GOLDEN_KEY, "no folder", 9);
    return build(scene);
}

/* --- restoring --- */

static hl_status refuse_plan(void *context, const hl_weight_lease *lease, void **planned, hl_error *err)
{
    (void)context;
    (void)lease;
    (void)planned;
    return HL_FAIL(err, HL_E_INVALID, "test", "another shape");
}

static hl_status accept_plan(void *context, const hl_weight_lease *lease, void **planned, hl_error *err)
{
    (void)context;
    (void)lease;
    (void)err;
    *planned = NULL;
    return HL_OK;
}

static hl_status fail_commit(void *context, void *planned, hl_error *err)
{
    (void)context;
    (void)planned;
    return HL_FAIL(err, HL_E_DEVICE, "test", "half of it");
}

static hl_status restore(struct scene *scene, const char *schema,
                         hl_status (*plan)(void *, const hl_weight_lease *, void **, hl_error *))
{
    hl_weight_plan *made = NULL;
    scene->lease = hl_fixture_build_golden(&scene->fixture);
    const hl_weight_restorer restorer = {
        .size = sizeof restorer,
        .restorer_schema = schema ? schema : hl_lease_manifest(scene->lease)->restorer_schema,
        .plan = plan,
        .commit = fail_commit};
    hl_status status = hl_weight_restore_plan(scene->lease, &restorer, &made, &scene->failure);
    if (status == HL_OK)
        status = hl_weight_restore_commit(made, &scene->failure);
    hl_weight_restore_close(made);
    return status;
}

static hl_status restorer_unavailable(struct scene *scene)
{
    return restore(scene, "another", accept_plan);
}

static hl_status restore_preflight_failed(struct scene *scene)
{
    return restore(scene, NULL, refuse_plan);
}

static hl_status restore_commit_failed(struct scene *scene)
{
    return restore(scene, NULL, accept_plan);
}

/* --- all --- */

static const struct {
    hl_weight_code code;
    hl_status (*provoke)(struct scene *scene);
} ways[] = {
    {HL_WEIGHT_INVALID_CONFIG, invalid_config},
    {HL_WEIGHT_DOMAIN_UNAVAILABLE, domain_unavailable},
    {HL_WEIGHT_STORAGE_CLASS_MISMATCH, storage_class_mismatch},
    {HL_WEIGHT_DOMAIN_POLICY_MISMATCH, domain_policy_mismatch},
    {HL_WEIGHT_UNSUPPORTED, unsupported},
    {HL_WEIGHT_LOCAL_MISS, local_miss},
    {HL_WEIGHT_ACTIVE_BUILD_TIMEOUT, active_build_timeout},
    {HL_WEIGHT_ACTIVE_LEASE, active_lease},
    {HL_WEIGHT_ARTIFACT_DENIED, artifact_denied},
    {HL_WEIGHT_MANIFEST_INCOMPATIBLE, manifest_incompatible},
    {HL_WEIGHT_MANIFEST_CORRUPT, manifest_corrupt},
    {HL_WEIGHT_CHECKSUM_MISMATCH, checksum_mismatch},
    {HL_WEIGHT_IDENTITY_COLLISION, identity_collision},
    {HL_WEIGHT_PUBLICATION_FAILED, publication_failed},
    {HL_WEIGHT_PRODUCER_FAILED, producer_failed},
    {HL_WEIGHT_PRODUCER_UNSUPPORTED, producer_unsupported},
    {HL_WEIGHT_PRODUCER_UNAVAILABLE, producer_unavailable},
    {HL_WEIGHT_ARTIFACT_TOO_LARGE, artifact_too_large},
    {HL_WEIGHT_STORE_LIMIT_EXCEEDED, store_limit_exceeded},
    {HL_WEIGHT_INSUFFICIENT_CAPACITY, insufficient_capacity},
    {HL_WEIGHT_ENOSPC, enospc},
    {HL_WEIGHT_QUARANTINE_FAILED, quarantine_failed},
    {HL_WEIGHT_RESTORER_UNAVAILABLE, restorer_unavailable},
    {HL_WEIGHT_RESTORE_PREFLIGHT_FAILED, restore_preflight_failed},
    {HL_WEIGHT_RESTORE_COMMIT_FAILED, restore_commit_failed},
};
enum { WAYS = sizeof ways / sizeof ways[0] };

static bool has_way(hl_weight_code code)
{
    for (size_t i = 0; i < WAYS; i++)
        if (ways[i].code == code)
            return true;
    return false;
}

static void each_code_has_a_way_to_it_or_is_reserved(void)
{
#define CHECK(name, text, status, remedy)                                                                    \
    do {                                                                                                     \
        const bool reserved = strcmp(remedy, "reserved") == 0;                                               \
        if (has_way(HL_WEIGHT_##name) == reserved)                                                           \
            fprintf(stderr, "%s is %s\n", text,                                                              \
                    reserved ? "reserved, and has a way to it" : "not reserved, and has no way to it");      \
        CU_ASSERT_NOT_EQUAL(has_way(HL_WEIGHT_##name), reserved);                                            \
    } while (0);
    HL_WEIGHT_CODE_LIST(CHECK)
#undef CHECK
}

static void each_way_ends_in_its_code(void)
{
    for (size_t i = 0; i < WAYS; i++) {
        struct scene scene = {0};
        if (!ways[i].provoke)
            continue;
        hl_fixture_open(&scene.fixture, HL_FIXTURE_DISK);
        scene.identity = hl_fixture_identity(2, 0);
        hl_fake_producer_init(&scene.fake, scene.identity);
        const hl_status status = ways[i].provoke(&scene);
        if (scene.failure.code != ways[i].code)
            fprintf(stderr, "wanted %s, got %s: %s\n", hl_weight_code_name(ways[i].code),
                    hl_weight_code_name(scene.failure.code), scene.failure.error.text);
        CU_ASSERT_EQUAL(scene.failure.code, ways[i].code);
        CU_ASSERT_EQUAL(status, hl_weight_code_status(ways[i].code));
        CU_ASSERT_NOT_EQUAL(scene.failure.error.text[0], '\0');
        CU_ASSERT_EQUAL(scene.failure.details[0], '{');
        hl_weight_lease_release(scene.lease);
        hl_weight_identity_free(scene.identity);
        hl_fixture_close(&scene.fixture);
    }
}

HL_TESTS(codes, HL_CASE(each_code_has_a_way_to_it_or_is_reserved), HL_CASE(each_way_ends_in_its_code));
