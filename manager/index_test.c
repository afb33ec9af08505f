#include "manager/index.h"

#include <errno.h>
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "manager/index_hash.h"
#include "manager/index_private.h"
#include "manager/index_testing.h"

/* Stands in for the C library's: interrupted once, then as the kernel says, or without a source. */
static unsigned interruptions;
static bool no_random_bytes;

ssize_t getrandom(void *bytes, size_t size, unsigned flags)
{
    if (no_random_bytes || interruptions > 0) {
        errno = interruptions > 0 ? EINTR : ENOSYS;
        interruptions -= interruptions > 0;
        return -1;
    }
    return syscall(SYS_getrandom, bytes, size, flags);
}

static void a_block_is_found_only_once_it_is_complete(void)
{
    hl_index *index = open_index(16, NULL);
    struct hl_index_key key = key_number(7);
    struct hl_index_source source = source_number(7, 100), got;
    struct hl_index_info info;
    hl_entry_id id, found = 99;
    hl_error err;
    HL_EXPECT_STATUS(hl_index_find(index, &key, &found, &err), HL_E_MISS, err);
    id = must_reserve(index, &key);
    HL_EXPECT_STATUS(hl_index_find(index, &key, &found, &err), HL_E_MISS, err);
    HL_EXPECT_STATUS(hl_index_source(index, id, &got, &err), HL_E_STATE, err);
    HL_EXPECT_STATUS(hl_index_pin(index, id, &err), HL_E_STATE, err);
    HL_EXPECT_OK(hl_index_get(index, id, &info, &err), err);
    CU_ASSERT_EQUAL(info.state, HL_INDEX_WRITING);
    CU_ASSERT_EQUAL(found, 99);
    CU_ASSERT_EQUAL(evict_number(index), UINT64_MAX);
    HL_EXPECT_OK(hl_index_complete(index, id, &source, &err), err);
    HL_EXPECT_OK(hl_index_find(index, &key, &found, &err), err);
    CU_ASSERT_EQUAL(found, id);
    HL_EXPECT_OK(hl_index_source(index, id, &got, &err), err);
    CU_ASSERT_EQUAL(memcmp(&got, &source, sizeof got), 0);
    HL_EXPECT_OK(hl_index_get(index, id, &info, &err), err);
    CU_ASSERT_EQUAL(memcmp(&info.key, &key, sizeof key), 0);
    CU_ASSERT_EQUAL(info.state, HL_INDEX_PRESENT);
    expect_sound(index);
    hl_index_destroy(index);
}

static void two_publishes_of_one_key_do_not_meet(void)
{
    hl_index *index = open_index(16, NULL);
    struct hl_index_key key = key_number(7);
    struct hl_index_source source = source_number(7, 100);
    hl_entry_id id = must_reserve(index, &key), other = 99;
    bool present = true;
    hl_error err;
    HL_EXPECT_STATUS(hl_index_reserve(index, &key, &other, &present, &err), HL_E_BUSY, err);
    CU_ASSERT_TRUE(other == 99 && present);
    HL_EXPECT_OK(hl_index_abandon(index, id, &err), err);
    HL_EXPECT_OK(hl_index_reserve(index, &key, &other, &present, &err), err);
    CU_ASSERT_TRUE(other != id && !present);
    HL_EXPECT_STATUS(hl_index_complete(index, id, &source, &err), HL_E_NOT_FOUND, err);
    HL_EXPECT_OK(hl_index_complete(index, other, &source, &err), err);
    HL_EXPECT_STATUS(hl_index_complete(index, other, &source, &err), HL_E_STATE, err);
    HL_EXPECT_STATUS(hl_index_abandon(index, other, &err), HL_E_STATE, err);
    HL_EXPECT_OK(hl_index_reserve(index, &key, &id, &present, &err), err);
    CU_ASSERT_TRUE(id == other && present);
    expect_sound(index);
    hl_index_destroy(index);
}

static void keys_of_namespaces_and_groups_are_apart(void)
{
    hl_index *index = open_index(16, NULL);
    hl_entry_id id, found;
    hl_error err;
    struct hl_index_source source = source_number(1, 1);
    struct hl_index_key key = key_number(7), other = key, far = key;
    other.group = 1;
    far.space = HL_INDEX_NAMESPACES - 1;
    far.group = HL_INDEX_GROUPS - 1;
    id = must_reserve(index, &key);
    HL_EXPECT_OK(hl_index_complete(index, id, &source, &err), err);
    HL_EXPECT_STATUS(hl_index_find(index, &other, &found, &err), HL_E_MISS, err);
    HL_EXPECT_STATUS(hl_index_find(index, &far, &found, &err), HL_E_MISS, err);
    id = must_reserve(index, &far);
    HL_EXPECT_OK(hl_index_complete(index, id, &source, &err), err);
    HL_EXPECT_OK(hl_index_find(index, &far, &found, &err), err);
    CU_ASSERT_EQUAL(found, id);
    far.space++;
    HL_EXPECT_STATUS(hl_index_find(index, &far, &found, &err), HL_E_MISS, err);
    hl_index_destroy(index);
}

static void a_key_or_source_out_of_range_is_named(void)
{
    hl_index *index = open_index(16, NULL);
    struct hl_index_key key = key_number(7);
    const struct hl_index_source good = source_number(1, 1);
    struct hl_index_source bad[7] = {good, good, good, good, good, good, good};
    static const char *const fields[7] = {"allocation", "offset",    "bytes",    "bytes",
                                          "arena",      "residency", "residency"};
    hl_entry_id id = 0;
    bool present;
    hl_error err;
    key.space = HL_INDEX_NAMESPACES;
    HL_EXPECT_STATUS(hl_index_reserve(index, &key, &id, &present, &err), HL_E_RANGE, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "namespace"));
    key.space = 1;
    key.group = HL_INDEX_GROUPS;
    HL_EXPECT_STATUS(hl_index_reserve(index, &key, &id, &present, &err), HL_E_RANGE, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "group"));
    key.group = 0;
    id = must_reserve(index, &key);
    bad[0].allocation = 0;
    bad[1].offset = 1ull << 48;
    bad[2].bytes = 0;
    bad[3].bytes = HL_INDEX_BLOCK_BYTES + 1;
    bad[4].arena = HL_INDEX_ARENAS;
    bad[5].residency = 0;
    bad[6].residency = 4;
    for (unsigned i = 0; i < 7; i++) {
        HL_EXPECT_STATUS(hl_index_complete(index, id, &bad[i], &err), HL_E_RANGE, err);
        CU_ASSERT_EQUAL(strncmp(err.text, fields[i], strlen(fields[i])), 0);
    }
    CU_ASSERT_EQUAL(index_stats(index).writing, 1);
    struct hl_index_source largest = {UINT64_MAX, (1ull << 48) - 1, HL_INDEX_BLOCK_BYTES, HL_INDEX_ARENAS - 1,
                                      3},
                           got;
    HL_EXPECT_OK(hl_index_complete(index, id, &largest, &err), err);
    HL_EXPECT_OK(hl_index_source(index, id, &got, &err), err);
    CU_ASSERT_EQUAL(memcmp(&got, &largest, sizeof got), 0);
    expect_sound(index);
    hl_index_destroy(index);
}

static void a_prefix_ends_at_the_first_absent_key(void)
{
    enum { KEYS = 100 };
    hl_index *index = open_index(KEYS, NULL);
    unsigned char keys[KEYS][HL_KEY_BYTES];
    hl_entry_id ids[KEYS], expected[KEYS];
    hl_error err;
    for (unsigned i = 0; i < KEYS; i++) {
        struct hl_index_key key = key_number(i);
        memcpy(keys[i], key.hash, HL_KEY_BYTES);
        expected[i] = must_publish(index, i, 10);
    }
    for (unsigned count = 0; count <= KEYS; count++) {
        CU_ASSERT_EQUAL(hl_index_find_prefix(index, 1, 0, keys[0], count, ids), count);
        CU_ASSERT_EQUAL(memcmp(ids, expected, count * sizeof *ids), 0);
    }
    for (unsigned gone = KEYS; gone-- > 0;) {
        struct hl_index_victim victim;
        HL_EXPECT_OK(hl_index_remove(index, expected[gone], &victim, &err), err);
        CU_ASSERT_EQUAL(victim.id, expected[gone]);
        CU_ASSERT_EQUAL(hl_index_find_prefix(index, 1, 0, keys[0], KEYS, ids), gone);
        struct hl_index_key key = key_number(gone); /* being written is absent, too */
        must_reserve(index, &key);
        CU_ASSERT_EQUAL(hl_index_find_prefix(index, 1, 0, keys[0], KEYS, ids), gone);
    }
    CU_ASSERT_EQUAL(hl_index_find_prefix(index, 2, 0, keys[0], KEYS, ids), 0);
    CU_ASSERT_EQUAL(hl_index_find_prefix(index, HL_INDEX_NAMESPACES, 0, keys[0], KEYS, ids), 0);
    CU_ASSERT_EQUAL(hl_index_find_prefix(index, 1, HL_INDEX_GROUPS, keys[0], KEYS, ids), 0);
    expect_sound(index);
    hl_index_destroy(index);
}

static void a_full_index_takes_a_block_for_each_that_leaves(void)
{
    hl_index *index = open_index(3, NULL);
    struct hl_index_key key = key_number(9);
    hl_entry_id id, old;
    bool present;
    hl_error err;
    must_publish(index, 0, 10);
    must_publish(index, 1, 10);
    must_publish(index, 2, 10);
    HL_EXPECT_STATUS(hl_index_reserve(index, &key, &id, &present, &err), HL_E_NOSPACE, err);
    key = key_number(1);
    HL_EXPECT_OK(hl_index_reserve(index, &key, &old, &present, &err), err); /* what is there needs no room */
    CU_ASSERT_TRUE(present);
    CU_ASSERT_EQUAL(evict_number(index), 0);
    must_publish(index, 9, 10);
    CU_ASSERT_EQUAL(index_stats(index).present, 3);
    CU_ASSERT_EQUAL(index_stats(index).evicted, 1);
    expect_sound(index);
    hl_index_destroy(index);
}

static void a_pinned_block_is_neither_evicted_nor_removed(void)
{
    hl_index *index = open_index(16, NULL);
    struct hl_index_victim victim;
    hl_entry_id ids[4];
    hl_error err;
    for (unsigned i = 0; i < 4; i++) {
        ids[i] = must_publish(index, i, 10);
        HL_EXPECT_OK(hl_index_pin(index, ids[i], &err), err);
    }
    HL_EXPECT_OK(hl_index_pin(index, ids[2], &err), err);
    for (unsigned again = 0; again < 2; again++) { /* from the queues, and once all are set aside */
        HL_EXPECT_STATUS(hl_index_evict_next(index, &victim, &err), HL_E_NOSPACE, err);
        CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "4 of them pinned"));
        expect_sound(index);
    }
    CU_ASSERT_EQUAL(index_stats(index).set_aside, 4);
    HL_EXPECT_STATUS(hl_index_remove(index, ids[2], &victim, &err), HL_E_BUSY, err);
    HL_EXPECT_OK(hl_index_unpin(index, ids[2], &err), err);
    HL_EXPECT_STATUS(hl_index_remove(index, ids[2], &victim, &err), HL_E_BUSY, err);
    HL_EXPECT_OK(hl_index_unpin(index, ids[2], &err), err);
    HL_EXPECT_STATUS(hl_index_unpin(index, ids[2], &err), HL_E_STATE, err);
    CU_ASSERT_EQUAL(index_stats(index).pins, 3);
    CU_ASSERT_EQUAL(index_stats(index).pinned_bytes, 30);
    CU_ASSERT_EQUAL(evict_number(index), 2);
    HL_EXPECT_OK(hl_index_unpin(index, ids[0], &err), err);
    HL_EXPECT_OK(hl_index_remove(index, ids[0], &victim, &err), err);
    CU_ASSERT_EQUAL(victim.source.allocation, 1);
    expect_sound(index);
    hl_index_destroy(index);
}

static void an_entry_takes_only_so_many_pins(void)
{
    hl_index *index = open_index(1, NULL);
    hl_entry_id id = must_publish(index, 0, 10);
    hl_error err;
    uint32_t pinned = 0;
    while (pinned < HL_INDEX_PINS && hl_index_pin(index, id, &err) == HL_OK)
        pinned++;
    CU_ASSERT_EQUAL(pinned, HL_INDEX_PINS);
    HL_EXPECT_STATUS(hl_index_pin(index, id, &err), HL_E_LIMIT, err);
    CU_ASSERT_EQUAL(index_stats(index).pins, HL_INDEX_PINS);
    expect_sound(index);
    hl_index_destroy(index);
}

static void an_id_whose_entry_has_gone_is_refused(void)
{
    hl_index *index = open_index(1, NULL);
    struct hl_index_victim victim;
    struct hl_index_source source;
    struct hl_index_info info;
    hl_entry_id stale[4] = {0, 1ull << 32 | 5, UINT64_MAX, must_publish(index, 0, 10)}, now = 0;
    hl_error err;
    CU_ASSERT_EQUAL(evict_number(index), 0);
    for (unsigned full = 0; full < 2; full++) { /* the place is free, then another block's */
        for (unsigned i = 0; i < 4; i++) {
            HL_EXPECT_STATUS(hl_index_pin(index, stale[i], &err), HL_E_NOT_FOUND, err);
            HL_EXPECT_STATUS(hl_index_unpin(index, stale[i], &err), HL_E_NOT_FOUND, err);
            HL_EXPECT_STATUS(hl_index_source(index, stale[i], &source, &err), HL_E_NOT_FOUND, err);
            HL_EXPECT_STATUS(hl_index_get(index, stale[i], &info, &err), HL_E_NOT_FOUND, err);
            HL_EXPECT_STATUS(hl_index_remove(index, stale[i], &victim, &err), HL_E_NOT_FOUND, err);
            HL_EXPECT_STATUS(hl_index_abandon(index, stale[i], &err), HL_E_NOT_FOUND, err);
        }
        if (full == 0)
            now = must_publish(index, 1, 10);
    }
    CU_ASSERT_NOT_EQUAL(now, stale[3]);
    CU_ASSERT_EQUAL((uint32_t)now, (uint32_t)stale[3]);
    expect_sound(index);
    hl_index_destroy(index);
}

static void a_namespace_is_removed_but_for_what_is_in_use(void)
{
    enum { BLOCKS = 1000 };
    hl_index *index = open_index(BLOCKS + 2, NULL);
    struct hl_index_key key = key_number(0);
    struct hl_index_source source = source_number(0, 10);
    struct hl_index_victim victims[64];
    struct hl_index_cursor cursor = {0};
    hl_entry_id pinned = 0, id;
    hl_error err;
    size_t removed = 0;
    bool done = false;
    for (unsigned i = 0; i < BLOCKS; i++) {
        key = key_number(i);
        key.space = 1 + i % 2;
        id = must_reserve(index, &key);
        HL_REQUIRE_OK(hl_index_complete(index, id, &source, &err), err);
        pinned = i == 501 ? id : pinned;
    }
    HL_EXPECT_OK(hl_index_pin(index, pinned, &err), err);
    key.space = 2;
    key.group = 5;
    must_reserve(index, &key);
    while (!done) {
        size_t got = hl_index_remove_namespace(index, 2, &cursor, victims, 64, &done);
        for (size_t i = 0; i < got; i++)
            CU_ASSERT_EQUAL(victims[i].key.space, 2);
        removed += got;
    }
    CU_ASSERT_EQUAL(removed, BLOCKS / 2 - 1);
    CU_ASSERT_EQUAL(cursor.kept, 2);
    CU_ASSERT_EQUAL(index_stats(index).present, BLOCKS / 2 + 1);
    HL_EXPECT_OK(hl_index_unpin(index, pinned, &err), err);
    cursor = (struct hl_index_cursor){0};
    CU_ASSERT_EQUAL(hl_index_remove_namespace(index, 2, &cursor, victims, 64, &done), 1);
    CU_ASSERT_TRUE(done && cursor.kept == 1);
    expect_sound(index);
    hl_index_destroy(index);
}

static void one_step_of_a_removal_looks_at_a_bounded_number(void)
{
    enum { BLOCKS = HL_INDEX_SWEEP + 10 };
    hl_index *index = open_index(BLOCKS, NULL);
    struct hl_index_cursor cursor = {0};
    struct hl_index_victim victim;
    bool done = true;
    for (unsigned i = 0; i < BLOCKS; i++)
        must_publish(index, i, 1);
    CU_ASSERT_EQUAL(hl_index_remove_namespace(index, 2, &cursor, &victim, 1, &done), 0);
    CU_ASSERT_TRUE(!done && cursor.place == HL_INDEX_SWEEP);
    CU_ASSERT_EQUAL(hl_index_remove_namespace(index, 2, &cursor, &victim, 1, &done), 0);
    CU_ASSERT_TRUE(done);
    hl_index_destroy(index);
}

static void a_walk_sees_every_entry_once(void)
{
    enum { BLOCKS = 50 };
    hl_index *index = open_index(BLOCKS, NULL);
    struct hl_index_cursor cursor = {0};
    struct hl_index_info info;
    unsigned seen[BLOCKS] = {0}, total = 0;
    for (unsigned i = 0; i < BLOCKS; i++)
        must_publish(index, i, 10);
    for (unsigned i = 0; i < 10; i++)
        CU_ASSERT_EQUAL(evict_number(index), i);
    while (hl_index_next(index, &cursor, &info)) {
        uint64_t number;
        memcpy(&number, info.key.hash, sizeof number);
        CU_ASSERT_FATAL(number < BLOCKS);
        CU_ASSERT_EQUAL(info.source.allocation, number + 1);
        seen[number]++;
        total++;
    }
    for (unsigned i = 0; i < BLOCKS; i++)
        CU_ASSERT_EQUAL(seen[i], i >= 10);
    CU_ASSERT_EQUAL(total, BLOCKS - 10);
    hl_index_destroy(index);
}

static void options_out_of_bounds_and_missing_memory_are_typed(void)
{
    struct hl_index_options options = {.seed = test_seed};
    hl_index *index = (hl_index *)1;
    hl_error err;
    HL_EXPECT_STATUS(hl_index_create(&options, &index, &err), HL_E_INVALID, err);
    options.capacity = HL_INDEX_BLOCKS + 1ull;
    HL_EXPECT_STATUS(hl_index_create(&options, &index, &err), HL_E_LIMIT, err);
    struct test_memory memory;
    test_memory_open(&memory);
    options = (struct hl_index_options){.capacity = 100, .memory = &memory.memory};
    unsigned refused = 0;
    for (hl_status status = HL_E_NOMEM; status != HL_OK; refused++) {
        memory.refuse = refused + 1;
        status = hl_index_create(&options, &index, &err);
        CU_ASSERT_TRUE(status == HL_OK ||
                       (status == HL_E_NOMEM && memory.pieces == 0 && index == (hl_index *)1));
    }
    CU_ASSERT_EQUAL(refused, 6); /* the index, entries, links, slots, ghosts; then it succeeds */
    hl_index_destroy(index);
    CU_ASSERT_TRUE(memory.pieces == 0 && memory.bytes == 0);
    hl_index_destroy(NULL);
}

static void an_index_that_cannot_grow_stays_as_it_is(void)
{
    enum { FIRST = 4096 };
    struct test_memory memory;
    struct hl_index_key key = key_number(FIRST);
    hl_entry_id id = 99;
    bool present = true;
    hl_error err;
    test_memory_open(&memory);
    hl_index *index = open_index(10 * FIRST, &memory.memory);
    for (unsigned i = 0; i < FIRST; i++)
        must_publish(index, i, 10);
    size_t pieces = memory.pieces;
    for (unsigned refuse = 1; refuse <= 2; refuse++) { /* slots, then ghosts */
        memory.refuse = refuse;
        HL_EXPECT_STATUS(hl_index_reserve(index, &key, &id, &present, &err), HL_E_NOMEM, err);
        CU_ASSERT_TRUE(id == 99 && present && memory.pieces == pieces);
        expect_sound(index);
    }
    for (unsigned i = FIRST; i < 10 * FIRST; i++)
        must_publish(index, i, 10);
    expect_sound(index);
    hl_index_destroy(index);
    CU_ASSERT_TRUE(memory.pieces == 0 && memory.bytes == 0);
}

static void a_large_index_costs_little_until_it_fills(void)
{
    hl_index *index = open_index(HL_INDEX_BLOCKS, NULL);
    for (unsigned i = 0; i < 1000; i++)
        must_publish(index, i, 10);
    struct hl_index_stats stats = index_stats(index);
    CU_ASSERT_TRUE(stats.memory_bytes < 200000);
    CU_ASSERT_TRUE(stats.most_bytes <= 96ull * HL_INDEX_BLOCKS);
    expect_sound(index);
    hl_index_destroy(index);
}

static void the_seed_is_random_unless_given(void)
{
    struct hl_index_options options = {.capacity = 4};
    hl_index *a = NULL, *b = NULL;
    hl_error err;
    interruptions = 1;
    HL_REQUIRE_OK(hl_index_create(&options, &a, &err), err);
    HL_REQUIRE_OK(hl_index_create(&options, &b, &err), err);
    CU_ASSERT_NOT_EQUAL(memcmp(a->seed, b->seed, sizeof a->seed), 0);
    hl_index_destroy(a);
    hl_index_destroy(b);
    no_random_bytes = true;
    a = NULL;
    HL_EXPECT_STATUS(hl_index_create(&options, &a, &err), HL_E_SYSTEM, err);
    CU_ASSERT_TRUE(a == NULL && err.sys_errno == ENOSYS);
    no_random_bytes = false;
}

static void address_space_that_cannot_be_had_is_refused(void)
{
    CU_ASSERT_PTR_NULL(hl_index_memory_get(&hl_index_system_memory, 1ull << 60));
    hl_index_memory_put(&hl_index_system_memory, NULL, 1ull << 60);
}

static void the_hash_is_siphash_1_3(void)
{
    EVP_MAC *mac = EVP_MAC_fetch(NULL, "SIPHASH", NULL);
    CU_ASSERT_PTR_NOT_NULL_FATAL(mac);
    for (unsigned count = 0; count <= 5; count++) {
        EVP_MAC_CTX *context = EVP_MAC_CTX_new(mac);
        unsigned rounds[2] = {1, 3}, size = 8;
        OSSL_PARAM params[] = {OSSL_PARAM_construct_uint(OSSL_MAC_PARAM_SIZE, &size),
                               OSSL_PARAM_construct_uint(OSSL_MAC_PARAM_C_ROUNDS, &rounds[0]),
                               OSSL_PARAM_construct_uint(OSSL_MAC_PARAM_D_ROUNDS, &rounds[1]),
                               OSSL_PARAM_construct_end()};
        uint64_t words[5] = {1, 2, 0x8000000000000000ull, UINT64_MAX, 12345}, expected = 0;
        size_t written = 0;
        CU_ASSERT_EQUAL(EVP_MAC_init(context, (const unsigned char *)test_seed, 16, params), 1);
        CU_ASSERT_EQUAL(EVP_MAC_update(context, (const unsigned char *)words, 8ul * count), 1);
        CU_ASSERT_EQUAL(EVP_MAC_final(context, (unsigned char *)&expected, &written, 8), 1);
        CU_ASSERT_EQUAL(written, 8);
        CU_ASSERT_EQUAL(hl_index_sip(test_seed, words, count), expected);
        EVP_MAC_CTX_free(context);
    }
    EVP_MAC_free(mac);
}

HL_TESTS(index, HL_CASE(a_block_is_found_only_once_it_is_complete),
         HL_CASE(two_publishes_of_one_key_do_not_meet), HL_CASE(keys_of_namespaces_and_groups_are_apart),
         HL_CASE(a_key_or_source_out_of_range_is_named), HL_CASE(a_prefix_ends_at_the_first_absent_key),
         HL_CASE(a_full_index_takes_a_block_for_each_that_leaves),
         HL_CASE(a_pinned_block_is_neither_evicted_nor_removed), HL_CASE(an_entry_takes_only_so_many_pins),
         HL_CASE(an_id_whose_entry_has_gone_is_refused),
         HL_CASE(a_namespace_is_removed_but_for_what_is_in_use),
         HL_CASE(one_step_of_a_removal_looks_at_a_bounded_number), HL_CASE(a_walk_sees_every_entry_once),
         HL_CASE(options_out_of_bounds_and_missing_memory_are_typed),
         HL_CASE(an_index_that_cannot_grow_stays_as_it_is),
         HL_CASE(a_large_index_costs_little_until_it_fills), HL_CASE(the_seed_is_random_unless_given),
         HL_CASE(address_space_that_cannot_be_had_is_refused), HL_CASE(the_hash_is_siphash_1_3));
