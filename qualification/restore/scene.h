/* The usual stage: a Manager in its own process, and the test's process as an engine with its world. */
#ifndef QUALIFICATION_RESTORE_SCENE_H
#define QUALIFICATION_RESTORE_SCENE_H

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/testing/cunit.h"
#include "qualification/restore/client.h"
#include "qualification/restore/engine_process.h"
#include "qualification/restore/manager_process.h"
#include "qualification/restore/tool.h"

struct scene {
    struct process manager;
    struct world world;
    struct client client;
};

void scene_open(struct scene *scene);
void scene_open_with(struct scene *scene, const struct manager_settings_of_a_test *settings,
                     const struct world_options *world);
/* Closes the engine, expects the bytes that are expected, I2, and that every credit has come back. */
void scene_close(struct scene *scene);
/* The same after the Manager has been killed or stopped: only the engine's side is left. */
void scene_close_orphan(struct scene *scene);

/* Calls on a thread of their own that are bound to wait. */
struct scene_call {
    pthread_t thread;
    struct scene *scene;
    void (*act)(struct scene_call *call);
    hl_status status;
    hl_error err;
    _Atomic bool returned;
};
void scene_call_begin(struct scene_call *call, struct scene *scene, void (*act)(struct scene_call *call));
void scene_call_finish(struct scene_call *call);
/* Unregistering, waited for until it has stopped admission. */
void scene_unregister_begin(struct scene_call *call, struct scene *scene);

#endif
