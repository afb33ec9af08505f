/* The check of a received message is total, and what it refuses it names. */
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "core/base/random.h"
#include "core/channel/channel_testing.h"
#include "core/channel/message_samples.h"

static struct hl_packet packet;
static hl_error err;

#define EVERY_KIND(kind)                                                                                     \
    enum hl_message_kind kind = HL_MESSAGE_NONE + 1;                                                         \
    kind < HL_MESSAGE_KIND_COUNT;                                                                            \
    kind++

static hl_status check(enum hl_message_kind *kind)
{
    err = (hl_error){.text = ""};
    return hl_message_check(&packet, kind, &err);
}

static void expect_refused(hl_status expected, const char *text)
{
    enum hl_message_kind kind = HL_MESSAGE_KIND_COUNT;
    hl_status status = check(&kind);
    CU_ASSERT_EQUAL(status, expected);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, text));
    if (status != expected || !strstr(err.text, text))
        fprintf(stderr, "expected \"%s\", got %s: %s\n", text, hl_status_name(status), err.text);
    CU_ASSERT_EQUAL(kind, HL_MESSAGE_KIND_COUNT);
}

static void every_kind_has_a_size_a_name_and_a_head(void)
{
    for (EVERY_KIND(kind)) {
        struct hl_message head;
        sample_fill(&packet, kind);
        memcpy(&head, packet.bytes, sizeof head);
        CU_ASSERT_TRUE(hl_message_bytes(kind) >= sizeof head && hl_message_bytes(kind) <= HL_MESSAGE_BYTES);
        CU_ASSERT_TRUE(strlen(hl_message_kind_name(kind)) >= 3);
        CU_ASSERT_EQUAL(head.magic, HL_MESSAGE_MAGIC);
        CU_ASSERT_EQUAL(head.kind, kind);
        CU_ASSERT_EQUAL(head.bytes, hl_message_bytes(kind));
        CU_ASSERT_EQUAL(head.sequence, 42);
        for (enum hl_message_kind other = HL_MESSAGE_NONE + 1; other < kind; other++)
            CU_ASSERT_STRING_NOT_EQUAL(hl_message_kind_name(kind), hl_message_kind_name(other));
    }
    CU_ASSERT_EQUAL(hl_message_bytes(HL_MESSAGE_NONE), 0);
    CU_ASSERT_EQUAL(hl_message_bytes(HL_MESSAGE_KIND_COUNT), 0);
    CU_ASSERT_STRING_EQUAL(hl_message_kind_name(HL_MESSAGE_NONE), "unknown");
    CU_ASSERT_STRING_EQUAL(hl_message_kind_name((enum hl_message_kind)4711), "unknown");
    CU_ASSERT_STRING_EQUAL(hl_message_kind_name(HL_MESSAGE_REGISTERED), "REGISTERED");
}

static void every_kind_goes_over_a_socket_and_is_accepted(void)
{
    static struct hl_packet received;
    int pair[2], fds[HL_BOOTSTRAP_FDS] = {0, 0, 0, 0, 0};
    socket_pair(pair);
    for (EVERY_KIND(kind)) {
        enum hl_message_kind got = HL_MESSAGE_NONE;
        sample_fill(&packet, kind);
        HL_REQUIRE_OK(hl_channel_send(pair[0], packet.bytes, fds, packet.fd_count, &err), err);
        HL_REQUIRE_OK(hl_channel_receive(pair[1], &received, &err), err);
        HL_EXPECT_OK(hl_message_check(&received, &got, &err), err);
        CU_ASSERT_EQUAL(got, kind);
        CU_ASSERT_EQUAL(received.size, packet.size);
        CU_ASSERT_EQUAL(memcmp(received.bytes, packet.bytes, packet.size), 0);
        CU_ASSERT_EQUAL(received.fd_count, packet.fd_count);
        hl_packet_close_fds(&received);
    }
    close(pair[0]);
    close(pair[1]);
}

static void a_head_that_lies_is_refused(void)
{
    struct hl_message *head = (struct hl_message *)(void *)packet.bytes;
    sample_fill(&packet, HL_MESSAGE_DONE);
    head->magic ^= 1;
    expect_refused(HL_E_PROTOCOL, "magic is 0x4c4e4149");
    sample_fill(&packet, HL_MESSAGE_DONE);
    head->kind = 0;
    expect_refused(HL_E_PROTOCOL, "kind is 0");
    head->kind = HL_MESSAGE_KIND_COUNT;
    expect_refused(HL_E_PROTOCOL, "kind is 14");
    head->kind = UINT32_MAX;
    expect_refused(HL_E_PROTOCOL, "kind is 4294967295");
    sample_fill(&packet, HL_MESSAGE_DONE);
    head->bytes = 0;
    expect_refused(HL_E_PROTOCOL, "DONE: bytes is 0");
    head->bytes = UINT32_MAX;
    expect_refused(HL_E_PROTOCOL, "DONE: bytes is 4294967295");
}

static void every_truncation_and_every_excess_is_refused(void)
{
    for (EVERY_KIND(kind)) {
        size_t bytes = hl_message_bytes(kind);
        for (size_t size = 0; size <= bytes + 16; size++) {
            if (size == bytes)
                continue;
            sample_fill(&packet, kind);
            packet.size = size; /* the head says otherwise */
            expect_refused(HL_E_PROTOCOL, "bytes");
            if (size < sizeof(struct hl_message))
                continue;
            ((struct hl_message *)(void *)packet.bytes)->bytes = (uint32_t)size; /* the head agrees */
            expect_refused(HL_E_PROTOCOL, "bytes");
        }
    }
}

static void fds_that_a_kind_does_not_bring_are_refused(void)
{
    for (EVERY_KIND(kind)) {
        for (unsigned count = 0; count <= HL_MESSAGE_FDS; count++) {
            bool allowed = count == 0 ? kind != HL_MESSAGE_REGISTERED
                                      : (kind == HL_MESSAGE_WELCOME && count == HL_BOOTSTRAP_FDS) ||
                                            (kind == HL_MESSAGE_REGISTERED && count == 2) ||
                                            (kind == HL_MESSAGE_DONE && count == 1);
            enum hl_message_kind got;
            sample_fill(&packet, kind);
            packet.fd_count = count;
            if (allowed)
                HL_EXPECT_OK(check(&got), err);
            else
                expect_refused(HL_E_PROTOCOL, "fd_count");
        }
    }
}

/* Puts `value` into an integer field and says what became of the message. */
static hl_status try_value(const struct field *field, uint64_t value)
{
    enum hl_message_kind kind = HL_MESSAGE_NONE;
    sample_fill(&packet, field->kind);
    memcpy(packet.bytes + field->offset, &value, field->size); /* little-endian */
    hl_status status = check(&kind);
    CU_ASSERT_TRUE(status == HL_OK || status == HL_E_PROTOCOL || status == HL_E_VERSION);
    CU_ASSERT_TRUE((status == HL_OK) == (kind == field->kind));
    if (status != HL_OK && !strstr(err.text, field->name)) {
        fprintf(stderr, "%s of %s as %llx: %s\n", field->name, hl_message_kind_name(field->kind),
                (unsigned long long)value, err.text);
        CU_FAIL("the error does not name the field");
    }
    return status;
}

static void try_integer(const struct field *field, hl_random *random)
{
    unsigned refused = 0, tried = 0;
    for (unsigned bit = 0; bit < 8 * field->size; bit++)
        for (int delta = -1; delta <= 1; delta++, tried++)
            refused += try_value(field, (1ull << bit) + (uint64_t)(int64_t)delta) != HL_OK;
    for (int i = 0; i < 50; i++, tried++)
        refused += try_value(field, hl_random_next(random)) != HL_OK;
    CU_ASSERT_EQUAL(try_value(field, 0) != HL_OK && field->sort == FIELD_ZERO, false);
    if (field->sort == FIELD_ANY)
        CU_ASSERT_EQUAL(refused, 0);
    if (field->sort == FIELD_BOUNDED)
        CU_ASSERT_TRUE(refused > 0);
    if (field->sort == FIELD_ZERO)
        CU_ASSERT_TRUE(refused >= tried - 2); /* 2^0 - 1, and a random number that is 0 in its low bytes */
}

static void try_text(const struct field *field)
{
    for (size_t at = 0; at < field->size; at++) {
        static const unsigned char hostile[] = {1, '\n', 0x1b, 0x7f, 0x80, 0xff};
        for (size_t i = 0; i < sizeof hostile; i++) {
            sample_fill(&packet, field->kind);
            packet.bytes[field->offset + at] = hostile[i];
            expect_refused(HL_E_PROTOCOL, field->name);
        }
    }
    sample_fill(&packet, field->kind);
    memset(packet.bytes + field->offset, 'x', field->size);
    expect_refused(HL_E_PROTOCOL, "has no NUL");
    sample_fill(&packet, field->kind);
    packet.bytes[field->offset + field->size - 1] = 'x';
    expect_refused(HL_E_PROTOCOL, field->name);
    sample_fill(&packet, field->kind);
    memset(packet.bytes + field->offset, 'x', field->size - 1); /* as long as it may be */
    enum hl_message_kind kind;
    HL_EXPECT_OK(check(&kind), err);
    memset(packet.bytes + field->offset, 0, field->size);
    HL_EXPECT_OK(check(&kind), err);
}

static void every_hostile_value_of_every_field_is_refused_by_name_or_harmless(void)
{
    hl_random random;
    hl_random_seed(&random, 1);
    for (size_t i = 0; i < field_count; i++)
        if (fields[i].sort == FIELD_TEXT)
            try_text(&fields[i]);
        else
            try_integer(&fields[i], &random);
}

/* The table above would pass a field that it does not have. */
static void the_table_of_fields_is_complete(void)
{
    for (EVERY_KIND(kind)) {
        size_t covered = sizeof(struct hl_message);
        for (size_t i = 0; i < field_count; i++)
            if (fields[i].kind == kind)
                covered += fields[i].size;
        if (kind == HL_MESSAGE_WELCOME)
            covered += 13; /* of the token's bytes three stand for all */
        if (kind == HL_MESSAGE_REGISTERED)
            covered += 60 * 16; /* of the unused arenas the first and the last */
        CU_ASSERT_EQUAL(covered, hl_message_bytes(kind));
    }
}

static void bounds_are_exact(void)
{
    static const struct {
        enum hl_message_kind kind;
        const char *name;
        uint64_t least, most;
    } bounds[] = {
        {HL_MESSAGE_HELLO, "role", 1, 2},
        {HL_MESSAGE_REGISTERED, "chunk_bytes", 1, HL_ARENA_CHUNK_BYTES},
        {HL_MESSAGE_REGISTERED, "bytes", 1, HL_ARENA_MAX_BYTES},
        {HL_MESSAGE_QUERY, "group", 0, HL_LAYOUT_GROUPS - 1},
        {HL_MESSAGE_LEASE, "hits", 1, HL_QUERY_KEYS},
        {HL_MESSAGE_RELEASE, "lease", 1, UINT64_MAX},
        {HL_MESSAGE_PUBLISH, "group", 0, HL_LAYOUT_GROUPS - 1},
        {HL_MESSAGE_PUBLISH, "slot", 0, HL_PUBLISH_SLOTS - 1},
        {HL_MESSAGE_ADMIN, "confirmed", 0, 1},
    };
    for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++) {
        const struct field *field = fields;
        while (field->kind != bounds[i].kind || strcmp(field->name, bounds[i].name) != 0)
            field++;
        CU_ASSERT_EQUAL(try_value(field, bounds[i].least), HL_OK);
        CU_ASSERT_EQUAL(try_value(field, bounds[i].most), HL_OK);
        if (bounds[i].least > 0)
            CU_ASSERT_NOT_EQUAL(try_value(field, bounds[i].least - 1), HL_OK);
        if (bounds[i].most < UINT64_MAX)
            CU_ASSERT_NOT_EQUAL(try_value(field, bounds[i].most + 1), HL_OK);
    }
}

static void counts_and_extents_must_agree(void)
{
    struct hl_register *announced = (struct hl_register *)(void *)packet.bytes;
    struct hl_query_message *query = (struct hl_query_message *)(void *)packet.bytes;
    struct hl_publish_message *publish = (struct hl_publish_message *)(void *)packet.bytes;
    enum hl_message_kind kind;
    sample_fill(&packet, HL_MESSAGE_REGISTER);
    announced->extent.offset += 4;
    expect_refused(HL_E_PROTOCOL, "REGISTER: extent (offset 8196, bytes 1000) is not 8-byte aligned");
    sample_fill(&packet, HL_MESSAGE_QUERY);
    query->key_count = HL_QUERY_KEYS;
    query->keys.bytes = HL_QUERY_KEYS * HL_KEY_BYTES;
    query->residency = (struct hl_extent){HL_DESCRIPTOR_BYTES - HL_QUERY_KEYS, HL_QUERY_KEYS};
    HL_EXPECT_OK(check(&kind), err);
    query->residency.offset += 8;
    expect_refused(HL_E_PROTOCOL, "QUERY: residency (offset 16646152, bytes 131072) leaves");
    query->key_count = HL_QUERY_KEYS + 1;
    expect_refused(HL_E_PROTOCOL, "key_count is 131073");
    query->key_count = 0x08000001u; /* times 32 is 32 in 32 bits */
    query->keys.bytes = HL_KEY_BYTES;
    expect_refused(HL_E_PROTOCOL, "key_count");
    sample_fill(&packet, HL_MESSAGE_PUBLISH);
    publish->block_count = HL_PUBLISH_BLOCKS;
    publish->blocks.bytes = HL_PUBLISH_BLOCKS * sizeof(struct hl_publish_block);
    HL_EXPECT_OK(check(&kind), err);
    publish->blocks.bytes -= 8;
    expect_refused(HL_E_PROTOCOL, "PUBLISH: blocks (offset 8704, bytes 2621432) is not 65536 times 40 bytes");
}

static void fields_that_depend_on_each_other_are_checked_together(void)
{
    struct hl_lease_message *lease = (struct hl_lease_message *)(void *)packet.bytes;
    struct hl_admin *admin = (struct hl_admin *)(void *)packet.bytes;
    struct hl_registered *registered = (struct hl_registered *)(void *)packet.bytes;
    enum hl_message_kind kind;
    sample_fill(&packet, HL_MESSAGE_LEASE);
    lease->lease = 0;
    lease->hits = 0;
    expect_refused(HL_E_PROTOCOL, "bytes without hits");
    lease->bytes = 0;
    HL_EXPECT_OK(check(&kind), err);
    for (uint32_t verb = HL_ADMIN_STATUS; verb <= HL_ADMIN_CHECK; verb++) {
        sample_fill(&packet, HL_MESSAGE_ADMIN);
        admin->verb = verb;
        if (verb == HL_ADMIN_RELEASE)
            continue;
        expect_refused(HL_E_PROTOCOL, "confirmed");
        admin->confirmed = 0;
        expect_refused(HL_E_PROTOCOL, "or operation is not 0");
        memset(admin->operation, 0, sizeof admin->operation);
        HL_EXPECT_OK(check(&kind), err);
    }
    sample_fill(&packet, HL_MESSAGE_REGISTERED);
    registered->arenas[1].arena_id = registered->arenas[0].arena_id;
    expect_refused(HL_E_PROTOCOL, "arenas[1].arena_id is that of arenas[0]");
}

static void random_bytes_are_refused_or_harmless(void)
{
    unsigned accepted = 0;
    hl_random random;
    hl_random_seed(&random, 20260929);
    for (int round = 0; round < 100000; round++) {
        enum hl_message_kind kind = HL_MESSAGE_NONE;
        struct hl_message *head = (struct hl_message *)(void *)packet.bytes;
        uint64_t how = hl_random_next(&random);
        packet.size = hl_random_below(&random, 300);
        packet.fd_count = (unsigned)hl_random_below(&random, HL_MESSAGE_FDS + 1);
        if (how % 4 == 0) { /* a valid message with some bytes changed */
            sample_fill(&packet,
                        (enum hl_message_kind)(1 + hl_random_below(&random, HL_MESSAGE_KIND_COUNT - 1)));
            for (uint64_t n = hl_random_below(&random, 4); n > 0; n--)
                packet.bytes[hl_random_below(&random, packet.size)] = (unsigned char)hl_random_next(&random);
        } else {
            hl_random_fill(&random, packet.bytes, 320);
            head->magic = how % 4 > 1 ? HL_MESSAGE_MAGIC : head->magic;
            head->kind %= how % 4 > 1 ? HL_MESSAGE_KIND_COUNT + 1 : UINT32_MAX;
            if (how % 4 == 3) {
                packet.size = hl_message_bytes((enum hl_message_kind)head->kind);
                head->bytes = (uint32_t)packet.size;
                packet.fd_count = 0;
            }
        }
        hl_status status = check(&kind);
        CU_ASSERT_FATAL(status == HL_OK || status == HL_E_PROTOCOL || status == HL_E_VERSION);
        CU_ASSERT_FATAL(status != HL_OK || (kind == head->kind && packet.size == hl_message_bytes(kind)));
        CU_ASSERT_FATAL(status == HL_OK || err.text[0] != '\0');
        accepted += status == HL_OK;
    }
    CU_ASSERT_TRUE(accepted > 1000); /* else only the first checks were reached */
}

static void an_error_comes_back_as_it_was_sent(void)
{
#define STATUS(name, value, text) value,
    static const int all[] = { HL_STATUS_LIST(STATUS) };
#undef STATUS
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct hl_error_message *m = (struct hl_error_message *)(void *)packet.bytes;
        hl_error sent = {
            .status = (hl_status)all[i], .sys_errno = 5, .stage = "there", .text = "what was wrong"};
        hl_error got = {.text = ""};
        enum hl_message_kind kind;
        hl_error_message_fill(m, 9, &sent);
        packet.size = sizeof *m;
        packet.fd_count = 0;
        if (all[i] >= 0) {
            expect_refused(HL_E_PROTOCOL, "status");
            CU_ASSERT_EQUAL(hl_error_message_read(m, &got), HL_E_PROTOCOL);
            continue;
        }
        HL_EXPECT_OK(check(&kind), err);
        CU_ASSERT_EQUAL(m->head.sequence, 9);
        CU_ASSERT_EQUAL(hl_error_message_read(m, &got), all[i]);
        CU_ASSERT_EQUAL(got.status, all[i]);
        CU_ASSERT_STRING_EQUAL(got.text, "what was wrong");
        CU_ASSERT_STRING_EQUAL(got.stage, "channel.peer");
        CU_ASSERT_EQUAL(got.sys_errno, 0); /* an errno of another process */
        CU_ASSERT_EQUAL(hl_error_message_read(m, NULL), all[i]);
    }
}

/* Text from a file name or a third library may hold anything. */
static void an_error_with_wild_text_is_made_printable(void)
{
    struct hl_error_message *m = (struct hl_error_message *)(void *)packet.bytes;
    enum hl_message_kind kind;
    hl_error sent = {.status = HL_E_SYSTEM}, got;
    memset(sent.text, 0xc3, sizeof sent.text); /* no NUL either */
    sent.text[3] = '\n';
    hl_error_message_fill(m, 0, &sent);
    packet.size = sizeof *m;
    packet.fd_count = 0;
    HL_EXPECT_OK(check(&kind), err);
    CU_ASSERT_EQUAL(strspn(m->text, "?"), sizeof m->text - 1);
    m->text[4] = '\n';
    CU_ASSERT_EQUAL(hl_error_message_read(m, &got), HL_E_PROTOCOL);
    CU_ASSERT_PTR_NOT_NULL(strstr(got.text, "text has a byte that is not printable"));
}

HL_TESTS(message, HL_CASE(every_kind_has_a_size_a_name_and_a_head),
         HL_CASE(every_kind_goes_over_a_socket_and_is_accepted), HL_CASE(a_head_that_lies_is_refused),
         HL_CASE(every_truncation_and_every_excess_is_refused),
         HL_CASE(fds_that_a_kind_does_not_bring_are_refused),
         HL_CASE(every_hostile_value_of_every_field_is_refused_by_name_or_harmless),
         HL_CASE(the_table_of_fields_is_complete), HL_CASE(bounds_are_exact),
         HL_CASE(counts_and_extents_must_agree),
         HL_CASE(fields_that_depend_on_each_other_are_checked_together),
         HL_CASE(random_bytes_are_refused_or_harmless), HL_CASE(an_error_comes_back_as_it_was_sent),
         HL_CASE(an_error_with_wild_text_is_made_printable));
