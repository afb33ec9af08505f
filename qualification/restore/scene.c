#include "qualification/restore/scene.h"

void scene_open_with(struct scene *scene, const struct manager_settings_of_a_test *settings,
                     const struct world_options *world)
{
    folder_enter();
    manager_start(&scene->manager, settings);
    world_open(&scene->world, world);
    client_open(&scene->client, &scene->world, "engine");
}

void scene_open(struct scene *scene)
{
    scene_open_with(scene, &MANAGER_DEFAULTS, &WORLD_DEFAULTS);
}

void scene_close_orphan(struct scene *scene)
{
    CU_ASSERT_TRUE(world_matches(&scene->world));
    if (scene->client.engine)
        client_close(&scene->client);
    world_close(&scene->world);
    folder_leave();
}

void scene_close(struct scene *scene)
{
    CU_ASSERT_TRUE(world_matches(&scene->world));
    client_close(&scene->client);
    world_close(&scene->world);
    MANAGER_AWAIT(&scene->manager, sessions, 0);
    manager_check(&scene->manager, true);
    manager_end(&scene->manager);
    folder_leave();
}

static void *run_call(void *argument)
{
    struct scene_call *call = argument;
    call->act(call);
    atomic_store(&call->returned, true);
    return NULL;
}

void scene_call_begin(struct scene_call *call, struct scene *scene, void (*act)(struct scene_call *call))
{
    *call = (struct scene_call){.scene = scene, .act = act};
    MUST(pthread_create(&call->thread, NULL, run_call, call) == 0);
}

void scene_call_finish(struct scene_call *call)
{
    pthread_join(call->thread, NULL);
}

static void unregister(struct scene_call *call)
{
    call->status = hl_engine_unregister(call->scene->client.binding, &call->err);
}

void scene_unregister_begin(struct scene_call *call, struct scene *scene)
{
    hl_engine *engine = scene->client.engine;
    const int64_t until = hl_clock_ns() + PATIENCE_NS;
    bool closing = false;
    scene_call_begin(call, scene, unregister);
    while (!closing) {
        MUST(hl_clock_ns() < until);
        sched_yield();
        pthread_mutex_lock(&engine->lock);
        closing = scene->client.binding->closing;
        pthread_mutex_unlock(&engine->lock);
    }
}
