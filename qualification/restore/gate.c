#include "qualification/restore/gate.h"

#include <pthread.h>
#include <stdlib.h>

enum { WATCHED = 128 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct watch {
    const hl_grant_memory *grants; /* NULL: unused */
    gate_visitor visit;
    void *user;
} watches[WATCHED];

bool __real_hl_grant_move(hl_grant_memory *memory, uint32_t index, uint32_t generation,
                          enum hl_grant_state from, enum hl_grant_state to);
bool __wrap_hl_grant_move(hl_grant_memory *memory, uint32_t index, uint32_t generation,
                          enum hl_grant_state from, enum hl_grant_state to);

void gate_watch(const hl_grant_memory *grants, gate_visitor visit, void *user)
{
    struct watch *unused = NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < WATCHED; i++) {
        if (watches[i].grants == grants || watches[i].user == user)
            watches[i] = (struct watch){0};
        if (!watches[i].grants)
            unused = &watches[i];
    }
    if (!unused)
        abort();
    *unused = (struct watch){grants, visit, user};
    pthread_mutex_unlock(&lock);
}

void gate_unwatch(const void *user)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < WATCHED; i++)
        if (watches[i].user == user)
            watches[i] = (struct watch){0};
    pthread_mutex_unlock(&lock);
}

static void visit(const hl_grant_memory *grants, enum engine_point point, uint32_t record)
{
    struct watch found = {0};
    pthread_mutex_lock(&lock);
    for (int i = 0; i < WATCHED; i++)
        if (watches[i].grants == grants)
            found = watches[i];
    pthread_mutex_unlock(&lock);
    if (found.visit)
        found.visit(found.user, point, record);
}

bool __wrap_hl_grant_move(hl_grant_memory *memory, uint32_t index, uint32_t generation,
                          enum hl_grant_state from, enum hl_grant_state to)
{
    const bool claims = from == HL_GRANT_GRANTED && to == HL_GRANT_ACTIVE;
    if (claims)
        visit(memory, ENGINE_BEFORE_CLAIM, index);
    if (to == HL_GRANT_DRAINED)
        visit(memory, ENGINE_BEFORE_DRAINED, index);
    const bool moved = __real_hl_grant_move(memory, index, generation, from, to);
    if (claims && moved)
        visit(memory, ENGINE_AFTER_CLAIM, index);
    return moved;
}
