#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "core/base/error.h"
#include "core/testing/cunit.h"
#include "core/weights/runtime/runtime.h"
#include "core/weights/store/store_testing.h"

/* A model that counts what is done to it. */
struct model {
    unsigned planned, discarded;
    atomic_uint committed;
    hl_status plan_status, commit_status;
    bool silent; /* fails without a text */
    const void *bytes;
};

static hl_status plan_model(void *context, const hl_weight_lease *lease, void **planned, hl_error *err)
{
    struct model *model = context;
    model->planned++;
    if (model->plan_status != HL_OK)
        return model->silent ? model->plan_status
                             : HL_FAIL(err, model->plan_status, "test", "layer.scale has another shape");
    *planned = (void *)hl_weight_lease_tensor(lease, "layer.scale");
    return *planned ? HL_OK : HL_FAIL(err, HL_E_NOT_FOUND, "test", "no layer.scale");
}

static hl_status commit_model(void *context, void *planned, hl_error *err)
{
    struct model *model = context;
    atomic_fetch_add(&model->committed, 1);
    model->bytes = ((const hl_weight_tensor_view *)planned)->data;
    return model->commit_status == HL_OK
               ? HL_OK
               : HL_FAIL(err, model->commit_status, "test", "half of the layers are filled");
}

static void discard_model(void *context, void *planned)
{
    struct model *model = context;
    CU_ASSERT_PTR_NOT_NULL(planned);
    model->discarded++;
}

struct bench {
    struct hl_store_fixture fixture;
    hl_weight_lease *lease;
    struct model model;
    hl_weight_restorer restorer;
    hl_weight_failure failure;
};

static void bench_open(struct bench *bench)
{
    memset(bench, 0, sizeof *bench);
    hl_fixture_open(&bench->fixture, HL_FIXTURE_DISK);
    bench->lease = hl_fixture_build_golden(&bench->fixture);
    bench->restorer =
        (hl_weight_restorer){.size = sizeof bench->restorer,
                             .restorer_schema = hl_lease_manifest(bench->lease)->restorer_schema,
                             .plan = plan_model,
                             .commit = commit_model,
                             .discard = discard_model,
                             .context = &bench->model};
}

static void bench_close(struct bench *bench)
{
    hl_weight_lease_release(bench->lease);
    hl_fixture_close(&bench->fixture);
}

static hl_weight_plan *plan(struct bench *bench)
{
    hl_weight_plan *made = NULL;
    HL_REQUIRE_OK(hl_weight_restore_plan(bench->lease, &bench->restorer, &made, &bench->failure),
                  bench->failure.error);
    return made;
}

static void a_plan_changes_nothing_and_a_commit_does_once(void)
{
    struct bench bench;
    bench_open(&bench);
    hl_weight_plan *made = plan(&bench);
    CU_ASSERT_EQUAL(bench.model.planned, 1);
    CU_ASSERT_EQUAL(bench.model.committed, 0);
    HL_EXPECT_OK(hl_weight_restore_commit(made, &bench.failure), bench.failure.error);
    CU_ASSERT_EQUAL(bench.model.committed, 1);
    CU_ASSERT_PTR_EQUAL(bench.model.bytes, hl_weight_lease_tensor(bench.lease, "layer.scale")->data);
    CU_ASSERT_EQUAL(hl_weight_restore_commit(made, &bench.failure), HL_E_STATE);
    CU_ASSERT_EQUAL(bench.failure.code, HL_WEIGHT_INVALID_CONFIG);
    CU_ASSERT_EQUAL(bench.failure.error.status, HL_E_STATE);
    CU_ASSERT_EQUAL(hl_weight_restore_commit(made, NULL), HL_E_STATE);
    CU_ASSERT_EQUAL(bench.model.committed, 1);
    CU_ASSERT_EQUAL(bench.model.discarded, 0);
    hl_weight_restore_close(made);
    CU_ASSERT_EQUAL(bench.model.discarded, 1);
    hl_weight_restore_close(NULL);
    bench_close(&bench);
}

static void a_plan_that_is_never_committed_is_discarded(void)
{
    struct bench bench;
    bench_open(&bench);
    hl_weight_restore_close(plan(&bench));
    CU_ASSERT_EQUAL(bench.model.committed, 0);
    CU_ASSERT_EQUAL(bench.model.discarded, 1);
    bench.restorer.discard = NULL;
    hl_weight_restore_close(plan(&bench));
    bench_close(&bench);
}

static void a_refused_plan_leaves_the_model_for_another_way(void)
{
    struct bench bench;
    hl_weight_plan *made = NULL;
    bench_open(&bench);
    bench.model.plan_status = HL_E_RANGE;
    CU_ASSERT_EQUAL(hl_weight_restore_plan(bench.lease, &bench.restorer, &made, &bench.failure),
                    hl_weight_code_status(HL_WEIGHT_RESTORE_PREFLIGHT_FAILED));
    CU_ASSERT_EQUAL(bench.failure.code, HL_WEIGHT_RESTORE_PREFLIGHT_FAILED);
    CU_ASSERT_EQUAL(bench.failure.stage, HL_WEIGHT_STAGE_RESTORATION);
    CU_ASSERT_TRUE(bench.failure.retryable);
    CU_ASSERT_PTR_NOT_NULL(strstr(bench.failure.error.text, "layer.scale has another shape"));
    CU_ASSERT_PTR_NULL(made);
    bench.model.silent = true;
    (void)hl_weight_restore_plan(bench.lease, &bench.restorer, &made, &bench.failure);
    CU_ASSERT_PTR_NOT_NULL(strstr(bench.failure.error.text, "no reason"));
    CU_ASSERT_EQUAL(bench.model.discarded, 0);
    CU_ASSERT_EQUAL(bench.model.committed, 0);
    bench_close(&bench);
}

static void a_failed_commit_condemns_the_model(void)
{
    struct bench bench;
    bench_open(&bench);
    bench.model.commit_status = HL_E_DEVICE;
    hl_weight_plan *made = plan(&bench);
    CU_ASSERT_EQUAL(hl_weight_restore_commit(made, &bench.failure),
                    hl_weight_code_status(HL_WEIGHT_RESTORE_COMMIT_FAILED));
    CU_ASSERT_EQUAL(bench.failure.code, HL_WEIGHT_RESTORE_COMMIT_FAILED);
    CU_ASSERT_FALSE(bench.failure.retryable);
    CU_ASSERT_EQUAL(hl_weight_restore_commit(made, &bench.failure), HL_E_STATE); /* no second try */
    CU_ASSERT_EQUAL(bench.model.committed, 1);
    hl_weight_restore_close(made);
    CU_ASSERT_EQUAL(bench.model.discarded, 1);
    bench_close(&bench);
}

static void a_restorer_of_another_schema_is_not_asked(void)
{
    struct bench bench;
    hl_weight_plan *made = NULL;
    bench_open(&bench);
    bench.restorer.restorer_schema = "another-v1";
    CU_ASSERT_EQUAL(hl_weight_restore_plan(bench.lease, &bench.restorer, &made, &bench.failure),
                    HL_E_NOT_FOUND);
    CU_ASSERT_EQUAL(bench.failure.code, HL_WEIGHT_RESTORER_UNAVAILABLE);
    CU_ASSERT_PTR_NOT_NULL(strstr(bench.failure.error.text, "another-v1"));
    CU_ASSERT_EQUAL(bench.model.planned, 0);
    bench_close(&bench);
}

static void a_wrong_restorer_is_named(void)
{
    struct bench bench;
    hl_weight_plan *made = NULL;
    bench_open(&bench);
    const hl_weight_restorer good = bench.restorer;
#define REFUSES(word)                                                                                        \
    do {                                                                                                     \
        CU_ASSERT_EQUAL(hl_weight_restore_plan(bench.lease, &bench.restorer, &made, &bench.failure),         \
                        HL_E_INVALID);                                                                       \
        CU_ASSERT_EQUAL(bench.failure.code, HL_WEIGHT_INVALID_CONFIG);                                       \
        CU_ASSERT_PTR_NOT_NULL(strstr(bench.failure.error.text, word));                                      \
        bench.restorer = good;                                                                               \
    } while (0)
    bench.restorer.size = 1;
    REFUSES("size");
    bench.restorer.restorer_schema = NULL;
    REFUSES("restorer_schema");
    bench.restorer.plan = NULL;
    REFUSES("plan");
    bench.restorer.commit = NULL;
    REFUSES("commit");
#undef REFUSES
    CU_ASSERT_EQUAL(hl_weight_restore_plan(NULL, &good, &made, NULL), HL_E_INVALID);
    CU_ASSERT_EQUAL(hl_weight_restore_plan(bench.lease, NULL, &made, NULL), HL_E_INVALID);
    CU_ASSERT_PTR_NULL(made);
    bench_close(&bench);
}

struct race {
    pthread_barrier_t start;
    hl_weight_plan *plan;
    atomic_uint won;
};

static void *race_to_commit(void *context)
{
    struct race *race = context;
    pthread_barrier_wait(&race->start);
    if (hl_weight_restore_commit(race->plan, NULL) == HL_OK)
        atomic_fetch_add(&race->won, 1);
    return NULL;
}

static void of_two_commits_at_once_one_runs(void)
{
    struct bench bench;
    struct race race;
    pthread_t threads[2];
    bench_open(&bench);
    race.plan = plan(&bench);
    atomic_init(&race.won, 0);
    pthread_barrier_init(&race.start, NULL, 2);
    for (int i = 0; i < 2; i++)
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, race_to_commit, &race), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    CU_ASSERT_EQUAL(race.won, 1);
    CU_ASSERT_EQUAL(bench.model.committed, 1);
    pthread_barrier_destroy(&race.start);
    hl_weight_restore_close(race.plan);
    bench_close(&bench);
}

HL_TESTS(restore, HL_CASE(a_plan_changes_nothing_and_a_commit_does_once),
         HL_CASE(a_plan_that_is_never_committed_is_discarded),
         HL_CASE(a_refused_plan_leaves_the_model_for_another_way),
         HL_CASE(a_failed_commit_condemns_the_model), HL_CASE(a_restorer_of_another_schema_is_not_asked),
         HL_CASE(a_wrong_restorer_is_named), HL_CASE(of_two_commits_at_once_one_runs));
