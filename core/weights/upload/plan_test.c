/* Random targets, and what must hold of every plan of them. */
#include "core/weights/upload/upload_testing.h"

enum { TARGETS = 200, REGIONS = 3, PAGE = 4096 };

struct world {
    struct hl_upload_target targets[TARGETS];
    hl_weight_upload_options options;
    struct hl_upload_plan plan;
};

/* Tensors one behind the other in their files, in a random order, to addresses with and without gaps. */
static void make_world(struct world *world, uint64_t seed)
{
    hl_random random;
    uint64_t ends[REGIONS] = {0}, at = 1 << 20;
    hl_random_seed(&random, seed);
    hl_weight_upload_options_init(&world->options);
    world->options.slot_bytes = PAGE * (1 + hl_random_below(&random, 64));
    world->options.staging_bytes = 4 * world->options.slot_bytes;
    world->options.register_chunk_bytes = PAGE * (1 + hl_random_below(&random, 300));
    world->options.register_piece_bytes = PAGE * (1 + world->options.register_chunk_bytes / PAGE / 9);
    world->options.copy_threads = 1 + (uint32_t)hl_random_below(&random, 4);
    const uint64_t most = hl_random_below(&random, 2) ? 500 : 300000;
    for (size_t i = 0; i < TARGETS; i++) {
        struct hl_upload_target *target = &world->targets[i];
        target->region = (uint32_t)hl_random_below(&random, REGIONS);
        target->offset = ends[target->region];
        target->bytes = hl_random_below(&random, 8) ? hl_random_below(&random, most) : 0;
        target->dst = at;
        at += target->bytes + (hl_random_below(&random, 2) ? 0 : hl_random_below(&random, 1000));
        ends[target->region] += target->bytes;
    }
    for (size_t i = TARGETS; seed % 2 && i > 1; i--) {
        const size_t j = hl_random_below(&random, i);
        const struct hl_upload_target target = world->targets[i - 1];
        world->targets[i - 1] = world->targets[j];
        world->targets[j] = target;
    }
}

/* The parts, in order, are the targets, byte by byte; each target ends in the piece that says so. */
static void expect_every_byte_once(const struct world *world)
{
    const struct hl_upload_plan *plan = &world->plan;
    size_t part = 0, target = 0, next_target = 0;
    uint64_t in_part = 0, in_target = 0, bytes = 0;
    for (size_t i = 0; i < plan->piece_count; i++) {
        const struct hl_upload_piece *piece = &plan->pieces[i];
        CU_ASSERT_EQUAL(piece->part, part);
        CU_ASSERT_EQUAL(piece->target, next_target);
        CU_ASSERT_TRUE(piece->part_count <= HL_UPLOAD_PARTS);
        next_target += piece->target_count;
        while (part < piece->part + piece->part_count) {
            const struct hl_upload_part *here = &plan->parts[part];
            while (in_target == world->targets[target].bytes) {
                target++;
                in_target = 0;
            }
            const struct hl_upload_target *there = &world->targets[target];
            const uint64_t left = there->bytes - in_target, rest = here->bytes - in_part;
            CU_ASSERT_EQUAL(here->region, there->region);
            CU_ASSERT_EQUAL(here->dst + in_part, there->dst + in_target);
            CU_ASSERT_EQUAL(here->offset + in_part, there->offset + in_target);
            const uint64_t step = left < rest ? left : rest;
            in_part += step;
            in_target += step;
            bytes += step;
            if (in_part == here->bytes) {
                part++;
                in_part = 0;
            }
        }
        /* What ends here has ended, what does not end here has not. */
        while (target < TARGETS && in_target == world->targets[target].bytes && target < next_target) {
            target++;
            in_target = 0;
        }
        CU_ASSERT_TRUE(target >= next_target);
    }
    CU_ASSERT_EQUAL(next_target, TARGETS);
    CU_ASSERT_EQUAL(part, plan->part_count);
    CU_ASSERT_EQUAL(bytes, plan->bytes);
}

static void slots_hold_their_parts_apart(void)
{
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct world world;
        hl_error err;
        make_world(&world, seed);
        HL_REQUIRE_OK(hl_upload_plan_staging(&world.options, world.targets, TARGETS, &world.plan, &err), err);
        expect_every_byte_once(&world);
        for (size_t i = 0; i < world.plan.piece_count; i++) {
            const struct hl_upload_piece *piece = &world.plan.pieces[i];
            uint64_t end = 0;
            for (size_t j = 0; j < piece->part_count; j++) {
                const struct hl_upload_part *part = &world.plan.parts[piece->part + j];
                const struct hl_upload_part *last = j ? part - 1 : NULL;
                CU_ASSERT_TRUE(part->place >= end);
                CU_ASSERT_TRUE(part->place % HL_UPLOAD_ALIGN == 0 || part->place == end);
                if (last && last->dst + last->bytes == part->dst)
                    CU_ASSERT_EQUAL(part->place, end);
                end = part->place + part->bytes;
            }
            CU_ASSERT_EQUAL(piece->bytes, end);
            CU_ASSERT_TRUE(end <= world.options.slot_bytes);
        }
        hl_upload_plan_free(&world.plan);
    }
}

static bool share_a_page(const struct hl_upload_piece *a, const struct hl_upload_piece *b)
{
    return a->region == b->region && a->begin < b->end && b->begin < a->end;
}

static void chunks_cover_their_parts_and_wait_for_shared_pages(void)
{
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct world world;
        hl_error err;
        make_world(&world, seed);
        HL_REQUIRE_OK(hl_upload_plan_registered(&world.options, world.targets, TARGETS, &world.plan, &err),
                      err);
        expect_every_byte_once(&world);
        for (size_t i = 0; i < world.plan.piece_count; i++) {
            const struct hl_upload_piece *piece = &world.plan.pieces[i];
            CU_ASSERT_EQUAL(piece->begin % PAGE, 0);
            CU_ASSERT_EQUAL(piece->end % PAGE, 0);
            CU_ASSERT_TRUE(piece->end - piece->begin <= hl_upload_chunk_bytes(&world.options));
            for (size_t j = 0; j < piece->part_count; j++) {
                const struct hl_upload_part *part = &world.plan.parts[piece->part + j];
                CU_ASSERT_EQUAL(part->region, piece->region);
                CU_ASSERT_TRUE(part->offset >= piece->begin && part->offset + part->bytes <= piece->end);
            }
            for (size_t back = 1; back <= HL_UPLOAD_CHUNKS && back <= i; back++)
                if (share_a_page(piece, &world.plan.pieces[i - back]))
                    CU_ASSERT_TRUE(!world.plan.disjoint && piece->after != HL_UPLOAD_NONE &&
                                   piece->after >= i - back);
            CU_ASSERT_TRUE(piece->after == HL_UPLOAD_NONE || piece->after < i);
        }
        hl_upload_plan_free(&world.plan);
    }
}

/* Else chunks of one file would wait for each other all the time. */
static void chunks_of_a_file_in_order_share_no_page(void)
{
    struct world world;
    hl_error err;
    make_world(&world, 2);
    world.options.register_piece_bytes = 2 * PAGE;
    uint64_t end = 100;
    for (size_t i = 0; i < TARGETS; i++) {
        world.targets[i].region = 0;
        world.targets[i].offset = end;
        world.targets[i].bytes = 1 + 97 * i;
        end += world.targets[i].bytes;
    }
    HL_REQUIRE_OK(hl_upload_plan_registered(&world.options, world.targets, TARGETS, &world.plan, &err), err);
    CU_ASSERT_TRUE(world.plan.piece_count > 2);
    CU_ASSERT_TRUE(world.plan.disjoint);
    for (size_t i = 0; i < world.plan.piece_count; i++)
        CU_ASSERT_EQUAL(world.plan.pieces[i].after, HL_UPLOAD_NONE);
    hl_upload_plan_free(&world.plan);
}

HL_TESTS(upload_plan, HL_CASE(slots_hold_their_parts_apart),
         HL_CASE(chunks_cover_their_parts_and_wait_for_shared_pages),
         HL_CASE(chunks_of_a_file_in_order_share_no_page));
