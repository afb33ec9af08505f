#include <string.h>

#include "core/arena/ranges.h"

/* Ids are dense when they are given, but survivors may share any pattern of low bits. */
static uint64_t scatter(uint64_t id)
{
    id ^= id >> 32;
    id *= 0x9e3779b97f4a7c15ull;
    return id ^ (id >> 29);
}

static unsigned segment_of(uint64_t bucket, uint64_t *first_bucket)
{
    if (bucket < HL_ID_TABLE_FIRST) {
        *first_bucket = 0;
        return 0;
    }
    unsigned top = 63u - (unsigned)__builtin_clzll(bucket);
    *first_bucket = 1ull << top;
    return top - (unsigned)__builtin_ctz(HL_ID_TABLE_FIRST) + 1;
}

static struct hl_range **head_of(const struct hl_id_table *table, uint64_t bucket)
{
    uint64_t first;
    unsigned segment = segment_of(bucket, &first);
    return &table->segments[segment][bucket - first];
}

/* Buckets from `buckets - half` to `half` have not been split yet and also hold what belongs into their upper
 * twin. */
static uint64_t bucket_of(const struct hl_id_table *table, uint64_t id)
{
    uint64_t hash = scatter(id);
    uint64_t bucket = hash & (2 * table->half - 1);
    return bucket < table->buckets ? bucket : hash & (table->half - 1);
}

bool hl_id_table_open(struct hl_id_table *table, const struct hl_allocator_memory *memory)
{
    memset(table, 0, sizeof *table);
    table->memory = memory;
    table->buckets = table->half = HL_ID_TABLE_FIRST;
    table->segments[0] = memory->get(memory->user, HL_ID_TABLE_FIRST * sizeof(struct hl_range *));
    return table->segments[0] != NULL;
}

void hl_id_table_close(struct hl_id_table *table)
{
    for (unsigned i = 0; i < HL_ID_TABLE_SEGMENTS; i++)
        if (table->segments[i])
            table->memory->put(table->memory->user, table->segments[i]);
}

/* Adds one bucket and moves its share out of its lower twin. */
static void split(struct hl_id_table *table)
{
    uint64_t first, upper = table->buckets;
    unsigned segment = segment_of(upper, &first);
    if (segment >= HL_ID_TABLE_SEGMENTS)
        return;
    if (!table->segments[segment])
        table->segments[segment] = table->memory->get(table->memory->user, first * sizeof(struct hl_range *));
    if (!table->segments[segment])
        return;
    struct hl_range **from = head_of(table, upper - table->half), **to = head_of(table, upper);
    table->buckets++;
    while (*from) {
        struct hl_range *range = *from;
        if ((scatter(range->used.id) & (2 * table->half - 1)) == upper) {
            *from = range->used.chain;
            range->used.chain = *to;
            *to = range;
        } else {
            from = &range->used.chain;
        }
    }
    if (table->buckets == 2 * table->half)
        table->half *= 2;
}

void hl_id_table_insert(struct hl_id_table *table, struct hl_range *range)
{
    if (table->entries >= table->buckets)
        split(table);
    struct hl_range **head = head_of(table, bucket_of(table, range->used.id));
    range->used.chain = *head;
    *head = range;
    table->entries++;
}

static struct hl_range **find_link(const struct hl_id_table *table, uint64_t id)
{
    struct hl_range **link = head_of(table, bucket_of(table, id));
    while (*link && (*link)->used.id != id)
        link = &(*link)->used.chain;
    return link;
}

struct hl_range *hl_id_table_find(const struct hl_id_table *table, uint64_t id)
{
    return *find_link(table, id);
}

struct hl_range *hl_id_table_remove(struct hl_id_table *table, uint64_t id)
{
    struct hl_range **link = find_link(table, id);
    struct hl_range *range = *link;
    if (range) {
        *link = range->used.chain;
        table->entries--;
    }
    return range;
}
