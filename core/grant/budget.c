#include <assert.h>

#include "core/grant/grant.h"

void hl_budget_init(hl_budget *budget, uint64_t limit)
{
    atomic_init(&budget->used, 0);
    budget->limit = limit;
}

/* Acquire, and release in give: what its last holder did with the credited thing happens before what the next
 * one does. */
bool hl_budget_take(hl_budget *budget, uint64_t amount)
{
    uint64_t used = atomic_load_explicit(&budget->used, memory_order_relaxed);
    do {
        if (amount > budget->limit - used)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&budget->used, &used, used + amount, memory_order_acquire,
                                                    memory_order_relaxed));
    return true;
}

void hl_budget_give(hl_budget *budget, uint64_t amount)
{
    uint64_t before = atomic_fetch_sub_explicit(&budget->used, amount, memory_order_release);
    assert(amount <= before);
}

uint64_t hl_budget_used(const hl_budget *budget)
{
    return atomic_load_explicit(&budget->used, memory_order_relaxed);
}
