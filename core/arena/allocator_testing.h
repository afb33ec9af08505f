/* What both test programs of the allocator begin with. Test code only. */
#ifndef CORE_ARENA_ALLOCATOR_TESTING_H
#define CORE_ARENA_ALLOCATOR_TESTING_H

#include <stdio.h>

#include "core/arena/allocator.h"
#include "core/testing/cunit.h"
#include "hostlane/limits.h"

enum { UNIT = HL_ARENA_ALIGN };

static inline hl_allocator *open_space(uint64_t bytes, uint64_t chunk_bytes)
{
    hl_allocator *allocator = NULL;
    hl_error err;
    HL_REQUIRE_OK(hl_allocator_create(bytes, chunk_bytes, NULL, &allocator, &err), err);
    return allocator;
}

static inline struct hl_allocation must_alloc(hl_allocator *allocator, uint64_t bytes)
{
    struct hl_allocation allocation = {0};
    hl_error err;
    HL_REQUIRE_OK(hl_allocator_alloc(allocator, bytes, &allocation, &err), err);
    return allocation;
}

static inline void must_free(hl_allocator *allocator, uint64_t id)
{
    hl_error err;
    HL_EXPECT_OK(hl_allocator_free(allocator, id, &err), err);
}

static inline struct hl_arena_stats stats_of(hl_allocator *allocator)
{
    struct hl_arena_stats stats;
    hl_allocator_get_stats(allocator, &stats);
    return stats;
}

static inline void expect_sound(hl_allocator *allocator)
{
    const char *broken = hl_allocator_verify(allocator);
    if (broken)
        fprintf(stderr, "verify: %s\n", broken);
    CU_ASSERT_PTR_NULL_FATAL(broken);
}

#endif
