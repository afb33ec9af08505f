/* Parts that are wrong, stale, out of order or hostile: refused before anything is submitted. Software device
 * only. */
#include "core/transfer/transfer_testing.h"

static const struct rig_shape shape = {
    .layers = 3, .pages = 24, .blocks = 16, .tokens = 2, .row_bytes = 96, .groups = 1};

enum { PART_BYTES = 400 };

static void open_rig(struct rig *rig)
{
    rig_open(rig, &(struct rig_options){.shape = shape, .seed = 21, .software = true});
    rig_open_transfer(rig, HL_ROUTE_AUTO);
    rig_compile(rig, 1, shape.blocks, false, PART_BYTES);
    CU_ASSERT_TRUE_FATAL(hl_plan_part_count(rig->plan) > 2 * shape.layers);
}

/* Submits `bytes`; nothing may reach the device, and the operation is over. */
static void expect_refusal(struct rig *rig, hl_operation *operation, const void *bytes, size_t size,
                           hl_status expected, const char *named)
{
    hl_error err = {0}, again = {0};
    struct hl_operation_result result = {0};
    uint64_t submitted = rig_counts(rig).submitted;
    HL_EXPECT_STATUS(hl_operation_submit(operation, bytes, size, &err), expected, err);
    CU_ASSERT_EQUAL(rig_counts(rig).submitted, submitted);
    if (!strstr(err.text, named))
        fprintf(stderr, "\"%s\" does not name %s\n", err.text, named);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, named));
    HL_EXPECT_STATUS(rig_submit_part(rig, operation, 0, &again), HL_E_STATE, again);
    HL_EXPECT_STATUS(hl_operation_drain(operation, &result, &again), expected, again);
    CU_ASSERT_TRUE(result.drained && !result.submitted);
    CU_ASSERT_STRING_EQUAL(again.text, err.text);
}

static void another_operations_part_is_refused(void)
{
    struct rig rig;
    open_rig(&rig);
    for (int field = 0; field < 4; field++) {
        size_t size;
        void *bytes = rig_copy_part(&rig, 0, &size);
        struct hl_plan_header *header = bytes;
        header->identity.epoch += field == 0;
        header->identity.token[15] ^= field == 1;
        header->identity.record += field == 2;
        header->identity.generation -= field == 3;
        hl_plan_seal(bytes, size);
        hl_operation *operation = rig_start(&rig);
        expect_refusal(&rig, operation, bytes, size, HL_E_STATE, field == 1 ? "another token" : "identity");
        hl_operation_close(operation);
        free(bytes);
    }
    rig_close(&rig);
}

static void parts_come_in_order(void)
{
    struct rig rig;
    hl_error err = {0};
    open_rig(&rig);
    for (size_t first = 0; first < 3; first++)
        for (size_t then = 0; then < 4; then++) {
            if (then == first)
                continue; /* the next one */
            hl_operation *operation = rig_start(&rig);
            for (size_t i = 0; i < first; i++)
                HL_EXPECT_OK(rig_submit_part(&rig, operation, i, &err), err);
            size_t size;
            void *bytes = rig_copy_part(&rig, then, &size);
            expect_refusal(&rig, operation, bytes, size, HL_E_STATE, "part_index");
            free(bytes);
            hl_operation_close(operation);
        }
    rig_close(&rig);
}

static void the_part_count_does_not_change(void)
{
    struct rig rig;
    hl_error err = {0};
    size_t size;
    open_rig(&rig);
    hl_operation *operation = rig_start(&rig);
    HL_EXPECT_OK(rig_submit_part(&rig, operation, 0, &err), err);
    void *bytes = rig_copy_part(&rig, 1, &size);
    ((struct hl_plan_header *)bytes)->part_count++;
    hl_plan_seal(bytes, size);
    expect_refusal(&rig, operation, bytes, size, HL_E_STATE, "part_count");
    free(bytes);
    hl_operation_close(operation);
    rig_close(&rig);
}

/* The last section of a part, for editing. */
static struct hl_plan_section *last_section(void *bytes)
{
    struct hl_plan_header *header = bytes;
    struct hl_plan_allocation *allocations = (struct hl_plan_allocation *)(header + 1);
    struct hl_plan_section *sections = (struct hl_plan_section *)(allocations + header->allocation_count);
    return &sections[header->section_count - 1];
}

/* Submits the parts in order; the first that ends in a section with these flags has its "last" flag turned.
 * The part that shows the damage is refused: the next one when a layer ended too early, the final one when it
 * never ended. */
static void submit_with_flag_turned(struct rig *rig, uint32_t flags, const char *named)
{
    size_t parts = hl_plan_part_count(rig->plan), shows = parts;
    hl_error err = {0};
    hl_operation *operation = rig_start(rig);
    for (size_t i = 0; i <= shows && i < parts; i++) {
        size_t size;
        void *bytes = rig_copy_part(rig, i, &size);
        struct hl_plan_section *section = last_section(bytes);
        if (shows == parts && section->flags == flags) {
            section->flags ^= HL_PLAN_LAYER_LAST;
            hl_plan_seal(bytes, size);
            shows = flags ? parts - 1 : i + 1;
        }
        if (i == shows) {
            expect_refusal(rig, operation, bytes, size, HL_E_CORRUPT, named);
        } else {
            HL_EXPECT_OK(hl_operation_submit(operation, bytes, size, &err), err);
        }
        free(bytes);
    }
    CU_ASSERT_TRUE(shows < parts);
    hl_operation_close(operation);
}

/* Whether a part other than the final one ends with its layer. */
static bool some_part_ends_a_layer(struct rig *rig)
{
    bool found = false;
    for (size_t i = 0; !found && i + 1 < hl_plan_part_count(rig->plan); i++) {
        size_t size;
        void *bytes = rig_copy_part(rig, i, &size);
        found = last_section(bytes)->flags == HL_PLAN_LAYER_LAST;
        free(bytes);
    }
    return found;
}

static void a_layer_that_ends_twice_or_never_is_refused(void)
{
    struct rig rig;
    open_rig(&rig);
    submit_with_flag_turned(&rig, 0, "goes on after its last section");
    rig_close(&rig);
    open_rig(&rig);
    for (uint64_t part_bytes = PART_BYTES; !some_part_ends_a_layer(&rig) && part_bytes < 4096;
         part_bytes += 8)
        rig_compile(&rig, 1, rig.shape.blocks, false, part_bytes);
    submit_with_flag_turned(&rig, HL_PLAN_LAYER_LAST, "layers are complete");
    rig_close(&rig);
}

static void broken_bytes_are_refused(void)
{
    struct rig rig;
    size_t size;
    open_rig(&rig);
    void *bytes = rig_copy_part(&rig, 0, &size);
    hl_operation *operation = rig_start(&rig);
    ((unsigned char *)bytes)[size - 1] ^= 1;
    expect_refusal(&rig, operation, bytes, size, HL_E_CHECKSUM, "checksum");
    hl_operation_close(operation);
    operation = rig_start(&rig);
    expect_refusal(&rig, operation, bytes, 40, HL_E_CORRUPT, "part_bytes");
    hl_operation_close(operation);
    operation = rig_start(&rig);
    ((struct hl_plan_header *)bytes)->version = 3;
    hl_plan_seal(bytes, size);
    expect_refusal(&rig, operation, bytes, size, HL_E_VERSION, "version");
    hl_operation_close(operation);
    free(bytes);
    rig_close(&rig);
}

/* The same plan against tables that are not those it was made for. */
static void the_executors_own_tables_decide(void)
{
    struct rig rig;
    open_rig(&rig);
    rig_close_transfer(&rig);
    rig_compile(&rig, 1, shape.blocks, false, 0);
    for (int change = 0; change < 4; change++) {
        hl_error err = {0};
        hl_status expected = HL_E_NOT_FOUND;
        struct hl_tensor_binding tensors[16];
        struct hl_transfer_options options = rig_transfer_options(&rig, HL_ROUTE_AUTO);
        memcpy(tensors, rig.tensors, options.tensor_count * sizeof *tensors);
        options.tensors = tensors;
        switch (change) {
        case 0:
            options.layers++;
            expected = HL_E_INVALID;
            break;
        case 1:
            options.tensor_count--;
            break;
        case 2:
            options.registration_count--;
            break;
        case 3:
            tensors[0].bytes = shape.tokens * shape.row_bytes;
            expected = HL_E_RANGE;
            break;
        }
        HL_REQUIRE_OK(hl_transfer_open(&options, &rig.transfer, &err), err);
        hl_operation *operation = NULL;
        HL_REQUIRE_OK(hl_operation_start(rig.transfer,
                                         &(struct hl_operation_options){.identity = rig.identity}, &operation,
                                         &err),
                      err);
        size_t size;
        void *bytes = rig_copy_part(&rig, 0, &size);
        expect_refusal(&rig, operation, bytes, size, expected, "");
        free(bytes);
        hl_operation_close(operation);
        rig_close_transfer(&rig);
    }
    rig_close(&rig);
}

/* A part refused in the middle of an operation: what was accepted has drained, and the executor goes on. */
static void a_refusal_in_the_middle_drains_first(void)
{
    struct rig rig;
    hl_error err = {0};
    struct hl_operation_result result = {0};
    open_rig(&rig);
    hl_operation *operation = rig_start(&rig);
    HL_EXPECT_OK(rig_submit_part(&rig, operation, 0, &err), err);
    HL_EXPECT_STATUS(rig_submit_part(&rig, operation, 2, &err), HL_E_STATE, err);
    struct hl_software_counts counts = rig_counts(&rig);
    CU_ASSERT_EQUAL(counts.executed, counts.submitted);
    HL_EXPECT_STATUS(hl_operation_poll(operation, &result, &err), HL_E_STATE, err);
    CU_ASSERT_TRUE(result.drained && result.bytes > 0);
    hl_operation_close(operation);
    rig_restore(&rig);
    CU_ASSERT_TRUE(rig_tensors_match(&rig));
    rig_close(&rig);
}

/* Sealed mutations: whatever the bytes say, either nothing is submitted or every access stays inside arenas
 * and tensors (the device's checker counts those that do not). */
static void a_mutated_part_does_no_harm(void)
{
    struct rig rig;
    hl_random random;
    unsigned refused = 0, accepted = 0;
    hl_random_seed(&random, 4);
    open_rig(&rig);
    rig.whole_arenas = true;
    rig_compile(&rig, 1, shape.blocks, false, 0);
    for (unsigned round = 0; round < 3000; round++) {
        size_t size;
        hl_error err = {0};
        struct hl_operation_result result = {0};
        unsigned char *bytes = rig_copy_part(&rig, 0, &size);
        for (uint64_t edits = 1 + hl_random_below(&random, 2); edits > 0; edits--) {
            size_t at = sizeof(uint64_t) * 2 + hl_random_below(&random, size - sizeof(uint64_t) * 2);
            bytes[at] = hl_random_below(&random, 2)
                            ? (unsigned char)hl_random_next(&random)
                            : (unsigned char)(bytes[at] ^ 1u << hl_random_below(&random, 8));
        }
        hl_plan_seal(bytes, size);
        hl_operation *operation = rig_start(&rig);
        uint64_t submitted = rig_counts(&rig).submitted;
        if (hl_operation_submit(operation, bytes, size, &err) == HL_OK) {
            accepted++;
            HL_EXPECT_OK(hl_operation_drain(operation, &result, &err), err);
        } else {
            refused++;
            CU_ASSERT_EQUAL(rig_counts(&rig).submitted, submitted);
        }
        hl_operation_close(operation);
        free(bytes);
    }
    CU_ASSERT_TRUE(refused > 1000 && accepted > 100);
    CU_ASSERT_EQUAL(rig_counts(&rig).violations, 0);
    rig_close(&rig);
}

HL_TESTS(transfer_refusal, HL_CASE(another_operations_part_is_refused), HL_CASE(parts_come_in_order),
         HL_CASE(the_part_count_does_not_change), HL_CASE(a_layer_that_ends_twice_or_never_is_refused),
         HL_CASE(broken_bytes_are_refused), HL_CASE(the_executors_own_tables_decide),
         HL_CASE(a_refusal_in_the_middle_drains_first), HL_CASE(a_mutated_part_does_no_harm));
