/* Files that vanish or shrink under a lookup, at every point that it passes: it ends with a lease on what it
 * had opened whole, or with a typed failure; never with a part. Nobody who respects the locks does that.
 * Runs as a *_faults twin only. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/testing/cunit.h"
#include "core/weights/store/golden_testing.h"
#include "faults/testing.h"

static struct hl_store_fixture fixture;
static hl_fault_board *board;
static hl_weight_identity *identity;

struct look {
    hl_status status;
    hl_weight_lease *lease;
    hl_weight_failure failure;
};

static void *look_up(void *argument)
{
    struct look *look = argument;
    look->status = hl_weight_store_lookup(fixture.store, identity, HL_WEIGHT_FULL_CHECKSUM, &look->lease,
                                          &look->failure);
    return NULL;
}

static bool has_golden_bytes(const hl_weight_lease *lease)
{
    static const unsigned char scale[8] = {0, 0, 0x80, 0x3f, 0, 0, 0, 0x40}; /* 1 and 2, as F32 */
    const hl_weight_tensor_view *const view = hl_weight_lease_tensor(lease, "layer.scale");
    return hl_weight_lease_tensor_count(lease) == 2 && view && view->bytes == sizeof scale &&
           !memcmp(view->data, scale, sizeof scale);
}

/* What vanishes. */
static const char *const victims[] = {HL_GOLDEN_ENTRY "/READY.json", HL_GOLDEN_ENTRY "/manifest.json",
                                      HL_GOLDEN_PAYLOAD, HL_GOLDEN_ENTRY};
enum { VICTIMS = sizeof victims / sizeof victims[0], WHOLE_FOLDER = 3 };

static void take_away(unsigned victim)
{
    if (victim < WHOLE_FOLDER) {
        char path[600];
        snprintf(path, sizeof path, "%s/%s", fixture.root, victims[victim]);
        hl_fixture_chmod(&fixture, HL_GOLDEN_ENTRY, 0755);
        CU_ASSERT_EQUAL(unlink(path), 0);
        hl_fixture_chmod(&fixture, HL_GOLDEN_ENTRY, 0555);
    } else {
        hl_fixture_remove(&fixture, victims[victim]);
    }
}

static void cut_short(unsigned unused)
{
    char path[600];
    (void)unused;
    snprintf(path, sizeof path, "%s/" HL_GOLDEN_PAYLOAD, fixture.root);
    hl_fixture_chmod(&fixture, HL_GOLDEN_PAYLOAD, 0600);
    CU_ASSERT_EQUAL(truncate(path, 210), 0);
    hl_fixture_chmod(&fixture, HL_GOLDEN_PAYLOAD, 0444);
}

static bool is_typed(const struct look *look)
{
    static const hl_weight_code codes[] = {HL_WEIGHT_LOCAL_MISS, HL_WEIGHT_MANIFEST_CORRUPT,
                                           HL_WEIGHT_CHECKSUM_MISMATCH, HL_WEIGHT_ARTIFACT_DENIED,
                                           HL_WEIGHT_DOMAIN_UNAVAILABLE};
    bool known = false;
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        known |= look->failure.code == codes[i];
    return known && !look->lease && look->status == hl_weight_code_status(look->failure.code) &&
           look->failure.error.text[0];
}

/* A lookup stands at the nth hit of a point while `happens`. Yields whether it hit. */
static bool meet(const char *point, uint32_t nth, void (*happens)(unsigned), unsigned victim)
{
    pthread_t thread;
    struct look look = {0};
    hl_golden_renew(&fixture);
    const unsigned before = hl_open_descriptors();
    const unsigned rule = hl_fault_arm(board, point, nth, HL_FAULT_PARK, 0);
    CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, look_up, &look), 0);
    CU_ASSERT_TRUE_FATAL(hl_fault_await_parked(board, rule, 1, HL_FAULT_PATIENCE_NS));
    happens(victim);
    hl_fault_release(board, rule);
    pthread_join(thread, NULL);
    hl_fault_disarm(board, rule);
    const bool hit = look.status == HL_OK;
    /* What was cut short behind its validation is not read here: that ends a process by a signal. */
    const bool well = hit ? happens == cut_short || has_golden_bytes(look.lease) : is_typed(&look);
    if (!well)
        fprintf(stderr, "%s hit %u, %s: %s %s\n", point, nth, victims[victim], hl_status_name(look.status),
                look.failure.error.text);
    CU_ASSERT_TRUE(well);
    hl_weight_lease_release(look.lease);
    CU_ASSERT_EQUAL(hl_open_descriptors(), before);
    return hit;
}

/* Every hit of every point that a lookup passes. Counts them, and the lookups that hit. */
static void meet_everywhere(void (*happens)(unsigned), unsigned victim, unsigned *places, unsigned *hits)
{
    struct look look = {0};
    uint32_t *const passed = calloc(hl_fault_point_count(), sizeof *passed);
    CU_ASSERT_PTR_NOT_NULL_FATAL(passed);
    hl_golden_renew(&fixture);
    for (uint32_t i = 0; i < hl_fault_point_count(); i++)
        passed[i] = hl_fault_hits_at(board, i);
    look_up(&look);
    CU_ASSERT_EQUAL_FATAL(look.status, HL_OK);
    hl_weight_lease_release(look.lease);
    for (uint32_t i = 0; i < hl_fault_point_count(); i++)
        passed[i] = hl_fault_hits_at(board, i) - passed[i];
    *places = *hits = 0;
    for (uint32_t i = 0; i < hl_fault_point_count(); i++)
        for (uint32_t nth = 1; nth <= passed[i]; nth++) {
            *hits += meet(hl_fault_point_name(i), nth, happens, victim);
            (*places)++;
        }
    free(passed);
}

static void begin(void)
{
    hl_fixture_open(&fixture, HL_FIXTURE_SHM);
    fixture.options.hash_threads = 1;
    hl_golden_lay(&fixture, HL_GOLDEN_KEY);
    identity = hl_fixture_identity(2, 0);
    board = hl_fault_board_create();
    hl_fault_use_board(board);
}

static void end(void)
{
    hl_fault_use_board(NULL);
    hl_fault_board_free(board);
    hl_weight_identity_free(identity);
    hl_fixture_close(&fixture);
}

static void what_vanishes_under_a_lookup_gives_no_part_of_an_artifact(void)
{
    for (unsigned victim = 0; victim < VICTIMS; victim++) {
        unsigned places = 0, hits = 0;
        begin();
        meet_everywhere(take_away, victim, &places, &hits);
        printf("    %s: %u places, %u hits\n", victims[victim], places, hits);
        /* Early it is missed, late the lookup has it open. */
        CU_ASSERT_TRUE(places >= 20 && hits > 0 && hits < places);
        end();
    }
}

static void what_shrinks_under_a_lookup_is_never_validated(void)
{
    unsigned places = 0, hits = 0;
    begin();
    meet_everywhere(cut_short, 2, &places, &hits);
    printf("    cut short: %u places, %u hits\n", places, hits);
    CU_ASSERT_TRUE(places >= 20 && hits > 0 && hits < places);
    CU_ASSERT_TRUE(hl_fixture_exists(&fixture, "artifacts"));
    end();
}

HL_TESTS(store_vanishing, HL_CASE(what_vanishes_under_a_lookup_gives_no_part_of_an_artifact),
         HL_CASE(what_shrinks_under_a_lookup_is_never_validated));
