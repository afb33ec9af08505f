/* Binding descriptions: what is encoded is decoded, and nothing else is. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/base/random.h"
#include "core/channel/channel_testing.h"

static hl_error err;

/* A binding as an engine would describe it, its encoding, and room to spoil that. */
struct description {
    hl_layout *layout;
    struct hl_wire_binding head;
    struct hl_wire_tensor *tensors;
    unsigned char *bytes; /* exactly `size` */
    size_t size;
};

static void describe(struct description *d)
{
    static const struct hl_model_geometry model = {
        .name = "test", .layers = 3, .kv_heads = 4, .head_dim = 8, .element_bytes = 2};
    const struct hl_layout_options options = {.kind = HL_LAYOUT_SPLIT, .page_tokens = 16, .pages = 10};
    memset(d, 0, sizeof *d);
    HL_REQUIRE_OK(hl_layout_from_model(&model, &options, &d->layout, &err), err);
    d->head = (struct hl_wire_binding){.instance = "engine-0",
                                       .model = "org/model",
                                       .model_digest = {1, 2, 3},
                                       .rank = 2,
                                       .element_bytes = 2,
                                       .device_uuid = {9, 9, 9},
                                       .layers = d->layout->layers,
                                       .page_tokens = d->layout->page_tokens,
                                       .group_count = d->layout->group_count,
                                       .tensor_count = d->layout->tensor_count,
                                       .component_count = d->layout->component_count,
                                       .content = d->layout->content};
    memcpy(d->head.groups, d->layout->groups, sizeof d->head.groups);
    d->tensors = calloc(d->head.tensor_count, sizeof *d->tensors);
    for (uint32_t i = 0; i < d->head.tensor_count; i++) {
        d->tensors[i].tensor = d->layout->tensors[i];
        if (i % 2 == 0) /* the others have no export */
            d->tensors[i].export = (struct hl_ipc_export){
                .handle = {7}, .offset = 512 * i, .allocation_bytes = 512 * i + d->tensors[i].tensor.bytes};
    }
    d->size = hl_wire_binding_bytes(d->head.tensor_count, d->head.component_count);
    d->bytes = malloc(d->size);
    CU_ASSERT_PTR_NOT_NULL_FATAL(d->bytes);
}

static void encode(struct description *d)
{
    HL_REQUIRE_OK(
        hl_wire_binding_encode(&d->head, d->tensors, d->layout->components, d->bytes, d->size, &err), err);
}

static void discard(struct description *d)
{
    hl_layout_free(d->layout);
    free(d->tensors);
    free(d->bytes);
}

static struct hl_wire_binding *head_of(struct description *d)
{
    return (struct hl_wire_binding *)(void *)d->bytes;
}

static struct hl_wire_tensor *tensors_of(struct description *d)
{
    return (struct hl_wire_tensor *)(void *)(d->bytes + sizeof(struct hl_wire_binding));
}

static unsigned char *components_of(struct description *d)
{
    return d->bytes + sizeof(struct hl_wire_binding) + d->head.tensor_count * sizeof(struct hl_wire_tensor);
}

/* Spoils nothing else: outputs stay what they were. */
static void expect_not_decoded(struct description *d, hl_status expected, const char *text)
{
    struct hl_wire_binding head = {.rank = 77};
    const struct hl_wire_tensor *tensors = NULL;
    hl_layout *layout = NULL;
    err.text[0] = '\0';
    hl_status status = hl_wire_binding_decode(d->bytes, d->size, &head, &tensors, &layout, &err);
    CU_ASSERT_EQUAL(status, expected);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, text));
    if (status != expected || !strstr(err.text, text))
        fprintf(stderr, "expected \"%s\", got %s: %s\n", text, hl_status_name(status), err.text);
    CU_ASSERT_PTR_NULL(layout);
    CU_ASSERT_PTR_NULL(tensors);
    CU_ASSERT_EQUAL(head.rank, 77);
    hl_layout_free(layout);
    encode(d);
}

static void a_binding_is_decoded_as_it_was_encoded(void)
{
    struct description d;
    struct hl_wire_binding head;
    const struct hl_wire_tensor *tensors = NULL;
    hl_layout *layout = NULL;
    char ours[65], theirs[65];
    describe(&d);
    encode(&d);
    HL_REQUIRE_OK(hl_wire_binding_decode(d.bytes, d.size, &head, &tensors, &layout, &err), err);
    CU_ASSERT_EQUAL(memcmp(&head, &d.head, sizeof head), 0);
    CU_ASSERT_EQUAL(memcmp(tensors, d.tensors, d.head.tensor_count * sizeof *tensors), 0);
    CU_ASSERT_EQUAL(layout->component_count, d.layout->component_count);
    for (uint32_t i = 0; i < layout->component_count; i++) {
        const struct hl_layout_component *a = &layout->components[i], *b = &d.layout->components[i];
        CU_ASSERT_TRUE(a->layer == b->layer && a->group == b->group && a->tensor == b->tensor &&
                       a->role == b->role && a->offset == b->offset && a->page_stride == b->page_stride &&
                       a->row_bytes == b->row_bytes && a->row_stride == b->row_stride && a->rows == b->rows &&
                       a->block_offset == b->block_offset && a->block_row_stride == b->block_row_stride);
    }
    HL_REQUIRE_OK(hl_layout_block_digest(layout, theirs, &err), err);
    HL_REQUIRE_OK(hl_layout_block_digest(d.layout, ours, &err), err);
    CU_ASSERT_STRING_EQUAL(theirs, ours);
    hl_layout_free(layout);
    discard(&d);
}

/* What an engine has in padding and behind the ends of its names is not the Manager's to see. */
static void an_encoding_is_a_function_of_what_it_says(void)
{
    struct description d;
    unsigned char *clean;
    describe(&d);
    encode(&d);
    clean = malloc(d.size);
    memcpy(clean, d.bytes, d.size);
    for (uint32_t i = 0; i < d.head.component_count; i++)
        memset((unsigned char *)&d.layout->components[i] + 52, 0xee, 4);
    for (uint32_t i = 0; i < d.head.tensor_count; i++) {
        size_t end = strlen(d.tensors[i].tensor.name) + 1;
        memset(d.tensors[i].tensor.name + end, 0xee, HL_NAME_BYTES - end);
    }
    memset(d.bytes, 0xee, d.size);
    encode(&d);
    CU_ASSERT_EQUAL(memcmp(d.bytes, clean, d.size), 0);
    free(clean);
    discard(&d);
}

static void each_hostile_field_of_a_binding_is_named(void)
{
    struct description d;
    describe(&d);
    encode(&d);
#define SPOIL(statement, status, text)                                                                       \
    do {                                                                                                     \
        statement;                                                                                           \
        expect_not_decoded(&d, status, text);                                                                \
    } while (0)
    SPOIL(memset(head_of(&d)->instance, 'x', HL_NAME_BYTES), HL_E_PROTOCOL, "instance has no NUL");
    SPOIL(head_of(&d)->instance[2] = '\n', HL_E_PROTOCOL, "instance has a byte that is not printable");
    SPOIL(head_of(&d)->instance[100] = 'x', HL_E_PROTOCOL, "instance has bytes after its NUL");
    SPOIL(head_of(&d)->model[0] = (char)0x9b, HL_E_PROTOCOL, "model has a byte that is not printable");
    SPOIL(head_of(&d)->element_bytes = 4, HL_E_PROTOCOL, "element_bytes is 4, the content's is 2");
    SPOIL(head_of(&d)->layers = 0, HL_E_PROTOCOL, "layers is 0");
    SPOIL(head_of(&d)->layers = HL_LAYOUT_LAYERS + 1, HL_E_PROTOCOL, "layers is 1025");
    SPOIL(head_of(&d)->layers = 2, HL_E_RANGE, "layer");
    SPOIL(head_of(&d)->page_tokens = 0, HL_E_PROTOCOL, "page_tokens is 0");
    SPOIL(head_of(&d)->page_tokens = HL_LAYOUT_PAGE_TOKENS + 1, HL_E_PROTOCOL, "page_tokens is 4097");
    SPOIL(head_of(&d)->group_count = 0, HL_E_PROTOCOL, "group_count is 0");
    SPOIL(head_of(&d)->group_count = HL_LAYOUT_GROUPS + 1, HL_E_PROTOCOL, "group_count is 17");
    SPOIL(head_of(&d)->group_count = UINT32_MAX, HL_E_PROTOCOL, "group_count is 4294967295");
    SPOIL(head_of(&d)->group_count = 2, HL_E_INVALID, "group 1");
    SPOIL(head_of(&d)->groups[5].pages = 1, HL_E_PROTOCOL, "groups is not zero from group_count 1 on");
    SPOIL(head_of(&d)->groups[0].pages = UINT32_MAX, HL_E_RANGE, "page_stride");
    SPOIL(head_of(&d)->tensor_count = 0, HL_E_PROTOCOL, "tensor_count is 0");
    SPOIL(head_of(&d)->tensor_count++, HL_E_PROTOCOL, "size is");
    SPOIL(head_of(&d)->tensor_count = HL_LAYOUT_TENSORS + 1, HL_E_PROTOCOL, "tensor_count is 4097");
    SPOIL(head_of(&d)->tensor_count = UINT32_MAX, HL_E_PROTOCOL, "tensor_count is 4294967295");
    SPOIL(head_of(&d)->component_count = 0, HL_E_PROTOCOL, "component_count is 0");
    SPOIL(head_of(&d)->component_count--, HL_E_PROTOCOL, "size is");
    SPOIL(head_of(&d)->component_count = UINT32_MAX, HL_E_PROTOCOL, "component_count is 4294967295");
    SPOIL((head_of(&d)->tensor_count += 9, head_of(&d)->component_count -= 27), HL_E_PROTOCOL, "count is");
    SPOIL(head_of(&d)->zero = 1, HL_E_PROTOCOL, "zero is 1");
    SPOIL(head_of(&d)->zero_tail = 1, HL_E_PROTOCOL, "zero_tail 1");
    SPOIL(head_of(&d)->content.heads = 0, HL_E_INVALID, "heads");
    SPOIL(tensors_of(&d)[1].tensor.name[0] = 7, HL_E_PROTOCOL, "tensors[1].name has a byte");
    SPOIL(memset(tensors_of(&d)[3].tensor.name, 'x', HL_NAME_BYTES), HL_E_PROTOCOL,
          "tensors[3].name has no NUL");
    SPOIL(tensors_of(&d)[1].tensor.bytes = 1, HL_E_RANGE, "tensor 1");
    SPOIL(tensors_of(&d)[2].export.allocation_bytes--, HL_E_PROTOCOL, "tensors[2].export");
    SPOIL(tensors_of(&d)[2].export.offset = UINT64_MAX, HL_E_PROTOCOL, "tensors[2].export");
    SPOIL(tensors_of(&d)[1].export.handle[63] = 1, HL_E_PROTOCOL, "tensors[1].export");
    SPOIL(components_of(&d)[72 * 4 + 53] = 1, HL_E_PROTOCOL, "components[4]: the gap");
    SPOIL(components_of(&d)[72 * 2 + 12] = 9, HL_E_INVALID, "component 2: role 9");
    SPOIL(components_of(&d)[72 * 2 + 8] = 99, HL_E_RANGE, "component 2: tensor is 99");
#undef SPOIL
    discard(&d);
}

static void every_other_size_of_a_binding_is_refused(void)
{
    struct description d;
    describe(&d);
    encode(&d);
    for (size_t size = 0; size < d.size; size++) {
        struct hl_wire_binding head;
        const struct hl_wire_tensor *tensors;
        hl_layout *layout = NULL;
        unsigned char *cut = malloc(size + 1); /* its own allocation: a read past it is seen */
        memcpy(cut, d.bytes, size);
        CU_ASSERT_EQUAL(hl_wire_binding_decode(cut, size, &head, &tensors, &layout, &err), HL_E_PROTOCOL);
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "size is"));
        CU_ASSERT_PTR_NULL(layout);
        free(cut);
    }
    unsigned char *longer = calloc(1, d.size + 8);
    struct description more = d;
    memcpy(longer, d.bytes, d.size);
    more.bytes = longer;
    more.size = d.size + 8;
    struct hl_wire_binding head;
    const struct hl_wire_tensor *tensors;
    hl_layout *layout;
    HL_EXPECT_STATUS(hl_wire_binding_decode(more.bytes, more.size, &head, &tensors, &layout, &err),
                     HL_E_PROTOCOL, err);
    HL_EXPECT_STATUS(hl_wire_binding_decode(longer + 1, d.size, &head, &tensors, &layout, &err), HL_E_INVALID,
                     err);
    free(longer);
    discard(&d);
}

/* Whatever the bytes are, the answer is a validated layout or a typed error. */
static void a_binding_with_random_bytes_is_refused_or_valid(void)
{
    enum { ROUNDS = 20000 };
    struct description d;
    hl_random random;
    unsigned accepted = 0;
    hl_random_seed(&random, 3);
    describe(&d);
    encode(&d);
    unsigned char *clean = malloc(d.size);
    memcpy(clean, d.bytes, d.size);
    for (int round = 0; round < ROUNDS; round++) {
        struct hl_wire_binding head;
        const struct hl_wire_tensor *tensors;
        hl_layout *layout = NULL;
        for (uint64_t n = 1 + hl_random_below(&random, 3); n > 0; n--)
            d.bytes[hl_random_below(&random, d.size)] ^= (unsigned char)(1u << hl_random_below(&random, 8));
        hl_status status = hl_wire_binding_decode(d.bytes, d.size, &head, &tensors, &layout, &err);
        CU_ASSERT_FATAL(status <= 0 && (status == HL_OK) == (layout != NULL));
        if (status == HL_OK) {
            accepted++;
            CU_ASSERT_EQUAL(hl_layout_validate(layout, &err), HL_OK);
            hl_layout_free(layout);
        }
        memcpy(d.bytes, clean, d.size);
    }
    CU_ASSERT_TRUE(accepted > 0 && accepted < ROUNDS);
    free(clean);
    discard(&d);
}

static void a_binding_that_would_be_refused_is_not_encoded(void)
{
    struct description d;
    describe(&d);
    memset(d.bytes, 0x11, d.size);
#define REFUSED(statement, undo, status, said)                                                               \
    do {                                                                                                     \
        statement;                                                                                           \
        HL_EXPECT_STATUS(                                                                                    \
            hl_wire_binding_encode(&d.head, d.tensors, d.layout->components, d.bytes, d.size, &err), status, \
            err);                                                                                            \
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, said));                                                      \
        CU_ASSERT_EQUAL(d.bytes[0], 0x11);                                                                   \
        undo;                                                                                                \
    } while (0)
    uint32_t tensors = d.head.tensor_count;
    REFUSED(d.head.tensor_count = HL_LAYOUT_TENSORS + 1, d.head.tensor_count = tensors, HL_E_LIMIT,
            "tensor_count");
    REFUSED(d.head.tensor_count = 0, d.head.tensor_count = tensors, HL_E_LIMIT, "tensor_count");
    REFUSED(d.size--, d.size++, HL_E_INVALID, "size is");
    REFUSED(d.head.zero_tail = 1, d.head.zero_tail = 0, HL_E_INVALID, "zero_tail");
    REFUSED(d.head.instance[0] = '\t', d.head.instance[0] = 'e', HL_E_INVALID, "instance");
    REFUSED(d.tensors[1].tensor.name[0] = '\t', d.tensors[1].tensor.name[0] = 't', HL_E_INVALID,
            "tensors[1].name");
    REFUSED(d.tensors[0].export.allocation_bytes = 1, (void)0, HL_E_INVALID, "tensors[0].export");
#undef REFUSED
    discard(&d);
    CU_ASSERT_EQUAL(hl_wire_binding_bytes(HL_LAYOUT_TENSORS + 1, 1), 0);
    CU_ASSERT_EQUAL(hl_wire_binding_bytes(1, UINT32_MAX), 0);
    CU_ASSERT_TRUE(hl_wire_binding_bytes(HL_LAYOUT_TENSORS, HL_LAYOUT_COMPONENTS) <
                   HL_DESCRIPTOR_BYTES - HL_DESCRIPTOR_HEADER_BYTES);
}

HL_TESTS(wire_binding, HL_CASE(a_binding_is_decoded_as_it_was_encoded),
         HL_CASE(an_encoding_is_a_function_of_what_it_says),
         HL_CASE(each_hostile_field_of_a_binding_is_named), HL_CASE(every_other_size_of_a_binding_is_refused),
         HL_CASE(a_binding_with_random_bytes_is_refused_or_valid),
         HL_CASE(a_binding_that_would_be_refused_is_not_encoded));
