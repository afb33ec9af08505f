/* Compiling and validating while each allocation in turn is refused. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/plan/plan_fixture.h"
#include "core/testing/cunit.h"
#include "faults/testing.h"

struct scene {
    hl_layout layout;
    struct hl_fixture_world world;
    struct hl_plan_request request;
};

static void set_scene(struct scene *scene, enum hl_fixture_kind kind)
{
    const struct hl_fixture_shape shape = {.kind = kind,
                                           .layers = 3,
                                           .groups = 1,
                                           .pages = 12,
                                           .page_tokens = 1,
                                           .k_bytes = 16,
                                           .v_bytes = 16,
                                           .slots = 1,
                                           .empty_layer = 1};
    const struct hl_fixture_placement placement = {
        .arenas = 1, .chunk_bytes = 4096, .blocks_per_allocation = 1, .align = 256};
    const uint32_t blocks = 7;
    hl_random random;
    hl_random_seed(&random, 5);
    hl_fixture_layout(&shape, &scene->layout);
    hl_fixture_world(&scene->layout, &blocks, &placement, false, false, &random, &scene->world);
    scene->world.blocks[5].page = 8; /* apart from the others: a range each */
    scene->world.blocks[6].page = 11;
    scene->request = (struct hl_plan_request){
        .layout = &scene->layout, .blocks = scene->world.blocks, .block_count = blocks, .part_bytes = 1024};
}

static void free_scene(struct scene *scene)
{
    hl_fixture_free_world(&scene->world);
    hl_fixture_free_layout(&scene->layout);
}

/* How many allocations a compilation makes, each refused once. */
static unsigned refuse_each(const struct scene *scene)
{
    hl_fault_board *board = hl_fault_board_create();
    unsigned n = 1;
    hl_fault_use_board(board);
    for (;; n++) {
        hl_plan *plan = NULL;
        hl_error err = {0};
        const unsigned rule = hl_fault_arm(board, "plan_memory_take", n, HL_FAULT_ERROR, ENOMEM);
        const hl_status status = hl_plan_compile(&scene->request, &plan, &err);
        const bool fired = hl_fault_fired(board, rule) > 0;
        hl_fault_disarm(board, rule);
        if (!fired) {
            HL_EXPECT_OK(status, err);
            hl_plan_free(plan);
            break;
        }
        HL_EXPECT_STATUS(status, HL_E_NOMEM, err);
        CU_ASSERT_PTR_NULL(plan);
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "no memory"));
    }
    hl_fault_use_board(NULL);
    hl_fault_board_free(board);
    return n - 1;
}

static void a_compilation_without_memory_leaks_nothing(void)
{
    unsigned most = 0;
    for (int kind = 0; kind < HL_FIXTURE_KINDS; kind++) {
        struct scene scene;
        set_scene(&scene, (enum hl_fixture_kind)kind);
        const unsigned allocations = refuse_each(&scene);
        most = allocations > most ? allocations : most;
        free_scene(&scene);
    }
    CU_ASSERT_TRUE(most >= 9);
}

static void a_validation_without_memory_is_an_error(void)
{
    struct scene scene;
    struct hl_plan_part part;
    hl_plan *plan;
    hl_error err;
    size_t size;
    set_scene(&scene, HL_FIXTURE_CONTIGUOUS);
    scene.request.part_bytes = 0;
    HL_REQUIRE_OK(hl_plan_compile(&scene.request, &plan, &err), err);
    const void *bytes = hl_plan_part_bytes(plan, 0, &size);
    void *own = hl_fixture_private(bytes, size);
    hl_plan_free(plan);
    HL_REQUIRE_OK(hl_plan_decode(own, size, &part, &err), err);
    CU_ASSERT_TRUE_FATAL(part.header->range_count >= 2);
    /* Out of order, so that destinations have to be sorted, which takes memory. */
    struct hl_plan_range *ranges =
        (struct hl_plan_range *)((unsigned char *)own +
                                 ((const unsigned char *)part.ranges - (const unsigned char *)own));
    const uint64_t first = ranges[0].dst;
    ranges[0].dst = ranges[1].dst;
    ranges[1].dst = first;
    const uint32_t first_bytes = ranges[0].bytes;
    CU_ASSERT_EQUAL(first_bytes, ranges[1].bytes);
    hl_fault_board *board = hl_fault_board_create();
    hl_fault_use_board(board);
    for (unsigned n = 1; n <= 2; n++) {
        const unsigned rule = hl_fault_arm(board, "plan_memory_take", n, HL_FAULT_ERROR, ENOMEM);
        HL_EXPECT_STATUS(hl_plan_validate(&part, &scene.world.tables, &err), HL_E_NOMEM, err);
        CU_ASSERT_EQUAL(hl_fault_fired(board, rule), 1);
        hl_fault_disarm(board, rule);
    }
    HL_EXPECT_OK(hl_plan_validate(&part, &scene.world.tables, &err), err);
    hl_fault_use_board(NULL);
    hl_fault_board_free(board);
    free(own);
    free_scene(&scene);
}

HL_TESTS(plan_memory_faults, HL_CASE(a_compilation_without_memory_leaks_nothing),
         HL_CASE(a_validation_without_memory_is_an_error));
