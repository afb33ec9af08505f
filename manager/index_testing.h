/* What the test programs of the index and the leases begin with. Test code only. */
#ifndef MANAGER_INDEX_TESTING_H
#define MANAGER_INDEX_TESTING_H

#include <stdio.h>
#include <string.h>

#include "core/base/random.h"
#include "core/testing/cunit.h"
#include "manager/index.h"

static const uint64_t test_seed[2] = {0x0706050403020100ull, 0x0f0e0d0c0b0a0908ull};

/* Memory that counts what is out and refuses the n-th piece. */
struct test_memory {
    struct hl_index_memory memory;
    size_t pieces, bytes; /* out now */
    unsigned refuse;      /* 1: the next piece; 0: none */
};

static inline void *test_memory_get(void *user, size_t bytes)
{
    struct test_memory *test = user;
    if (test->refuse && --test->refuse == 0)
        return NULL;
    test->pieces++;
    test->bytes += bytes;
    return hl_index_system_memory.get(NULL, bytes);
}

static inline void test_memory_put(void *user, void *memory, size_t bytes)
{
    struct test_memory *test = user;
    test->pieces--;
    test->bytes -= bytes;
    hl_index_system_memory.put(NULL, memory, bytes);
}

static inline void test_memory_open(struct test_memory *test)
{
    *test = (struct test_memory){.memory = {.get = test_memory_get, .put = test_memory_put, .user = test}};
}

static inline hl_index *open_index(uint64_t capacity, const struct hl_index_memory *memory)
{
    struct hl_index_options options = {.capacity = capacity, .seed = test_seed, .memory = memory};
    hl_index *index = NULL;
    hl_error err;
    HL_REQUIRE_OK(hl_index_create(&options, &index, &err), err);
    return index;
}

static inline struct hl_index_key key_number(uint64_t number)
{
    struct hl_index_key key = {.space = 1};
    memcpy(key.hash, &number, sizeof number);
    return key;
}

static inline struct hl_index_source source_number(uint64_t number, uint64_t bytes)
{
    return (struct hl_index_source){
        .allocation = number + 1, .offset = number * 4096, .bytes = bytes, .arena = 3, .residency = 1};
}

static inline hl_entry_id must_reserve(hl_index *index, const struct hl_index_key *key)
{
    hl_entry_id id = 0;
    bool present = true;
    hl_error err;
    HL_REQUIRE_OK(hl_index_reserve(index, key, &id, &present, &err), err);
    CU_ASSERT_FALSE_FATAL(present);
    return id;
}

static inline hl_entry_id must_publish(hl_index *index, uint64_t number, uint64_t bytes)
{
    struct hl_index_key key = key_number(number);
    struct hl_index_source source = source_number(number, bytes);
    hl_error err;
    hl_entry_id id = must_reserve(index, &key);
    HL_REQUIRE_OK(hl_index_complete(index, id, &source, &err), err);
    return id;
}

/* The number of the key that was evicted; UINT64_MAX when there is nothing to evict. */
static inline uint64_t evict_number(hl_index *index)
{
    struct hl_index_victim victim;
    hl_error err;
    hl_status status = hl_index_evict_next(index, &victim, &err);
    uint64_t number = UINT64_MAX;
    if (status == HL_OK)
        memcpy(&number, victim.key.hash, sizeof number);
    else
        CU_ASSERT_EQUAL(status, HL_E_NOSPACE);
    return number;
}

static inline struct hl_index_stats index_stats(const hl_index *index)
{
    struct hl_index_stats stats;
    hl_index_get_stats(index, &stats);
    return stats;
}

static inline void expect_sound(const hl_index *index)
{
    hl_error err;
    HL_REQUIRE_OK(hl_index_check(index, &err), err);
}

#endif
