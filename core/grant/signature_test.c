#include <stdlib.h>
#include <string.h>

#include "core/grant/grant_memory.h"
#include "core/testing/cunit.h"

static struct hl_grant_shape *copy_shapes(void)
{
    size_t bytes = hl_grant_shape_count * sizeof hl_grant_shapes[0];
    struct hl_grant_shape *copy = malloc(bytes);
    CU_ASSERT_PTR_NOT_NULL_FATAL(copy);
    memcpy(copy, hl_grant_shapes, bytes);
    return copy;
}

static void it_is_fnv_1a(void)
{
    /* Published: FNV-1a of "" and of "foobar" are cbf29ce484222325 and 85944171f73967e8. Mixing in seventeen
     * zero bytes multiplies by the prime seventeen times. */
    uint64_t hash = 0x85944171f73967e8ull;
    for (unsigned i = 0; i < 17; i++)
        hash *= 0x100000001b3ull;
    const struct hl_grant_shape shape = {"foobar", 0, 0};
    CU_ASSERT_EQUAL(hl_grant_signature_of(&shape, 0), 0xcbf29ce484222325ull);
    CU_ASSERT_EQUAL(hl_grant_signature_of(&shape, 1), hash);
}

/* The number of schema 5. If this fails, the shared memory has changed: raise HL_GRANT_SCHEMA and write the
 * new number here. */
static void the_signature_is_that_of_the_schema(void)
{
    CU_ASSERT_EQUAL(HL_GRANT_SCHEMA, 5);
    CU_ASSERT_EQUAL(hl_grant_layout_signature(), 0x6792977c94646057ull);
    CU_ASSERT_EQUAL(hl_grant_signature_of(hl_grant_shapes, hl_grant_shape_count), 0x6792977c94646057ull);
}

static void any_changed_shape_changes_it(void)
{
    struct hl_grant_shape *shapes = copy_shapes();
    const uint64_t signature = hl_grant_layout_signature();
    for (size_t i = 0; i < hl_grant_shape_count; i++) {
        const struct hl_grant_shape kept = shapes[i];
        for (unsigned bit = 0; bit < 64; bit++) {
            shapes[i].offset ^= 1ull << bit;
            CU_ASSERT_NOT_EQUAL(hl_grant_signature_of(shapes, hl_grant_shape_count), signature);
            shapes[i] = kept;
            shapes[i].size ^= 1ull << bit;
            CU_ASSERT_NOT_EQUAL(hl_grant_signature_of(shapes, hl_grant_shape_count), signature);
            shapes[i] = kept;
        }
        shapes[i].name = "renamed";
        CU_ASSERT_NOT_EQUAL(hl_grant_signature_of(shapes, hl_grant_shape_count), signature);
        shapes[i] = kept;
    }
    CU_ASSERT_EQUAL(hl_grant_signature_of(shapes, hl_grant_shape_count), signature);
    CU_ASSERT_NOT_EQUAL(hl_grant_signature_of(shapes, hl_grant_shape_count - 1), signature);
    free(shapes);
}

/* As if two fields of one size changed places: every offset and size is there as before. */
static void two_exchanged_fields_change_it(void)
{
    struct hl_grant_shape *shapes = copy_shapes();
    const uint64_t signature = hl_grant_layout_signature();
    unsigned exchanged = 0;
    for (size_t i = 0; i + 1 < hl_grant_shape_count; i++) {
        const char *name = shapes[i].name;
        shapes[i].name = shapes[i + 1].name;
        shapes[i + 1].name = name;
        CU_ASSERT_NOT_EQUAL(hl_grant_signature_of(shapes, hl_grant_shape_count), signature);
        shapes[i + 1].name = shapes[i].name;
        shapes[i].name = name;
        exchanged++;
    }
    CU_ASSERT_TRUE(exchanged > 40);
    free(shapes);
}

/* Whether the listed fields of a struct follow each other from 0 to `size` without a gap. */
static void expect_tiled(const char *prefix, uint64_t size)
{
    uint64_t at = 0;
    for (size_t i = 0; i < hl_grant_shape_count; i++) {
        const struct hl_grant_shape *shape = &hl_grant_shapes[i];
        if (strncmp(shape->name, prefix, strlen(prefix)) != 0)
            continue;
        CU_ASSERT_EQUAL(shape->offset, at);
        at = shape->offset + shape->size;
    }
    CU_ASSERT_EQUAL(at, size);
}

static void every_shared_byte_belongs_to_a_listed_field(void)
{
    expect_tiled("hl_grant_shared.", HL_GRANT_MEMORY_BYTES);
    expect_tiled("hl_grant_header.", HL_GRANT_HEADER_BYTES);
    expect_tiled("hl_grant_record.", 192);
}

static void the_memory_is_as_its_header_draws_it(void)
{
    CU_ASSERT_EQUAL(offsetof(struct hl_grant_shared, records), 4096);
    CU_ASSERT_EQUAL(offsetof(struct hl_grant_shared, bank), 200704);
    CU_ASSERT_EQUAL(HL_GRANT_MEMORY_BYTES, 200704 + 1024 * 1024);
    CU_ASSERT_EQUAL(offsetof(struct hl_grant_header, dirty) % 64, 0);
    CU_ASSERT_EQUAL(offsetof(struct hl_grant_shared, records) % 64, 0);
}

HL_TESTS(signature, HL_CASE(it_is_fnv_1a), HL_CASE(the_signature_is_that_of_the_schema),
         HL_CASE(any_changed_shape_changes_it), HL_CASE(two_exchanged_fields_change_it),
         HL_CASE(every_shared_byte_belongs_to_a_listed_field), HL_CASE(the_memory_is_as_its_header_draws_it));
