#include "qualification/scenarios/gated.h"

#include "core/base/error.h"

#define STAGE "scenarios.gated"

static struct {
    const struct hl_device_ops *real;
    struct hl_device_ops ops;
    hl_devptr word; /* of the hold, and what it waits for */
    uint32_t value;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    hl_stream stream;
    struct gated_plan plan;
    uint32_t copies, registrations, refused_registration;
    bool reached, open;
} gated = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

/* --- on the way to the device --- */

/* The copy's number; 0: none of ours. *status: whether the device gets it. */
static uint32_t enter(hl_device *dev, enum hl_copy_kind kind, hl_stream stream, hl_status *status,
                      hl_error *err)
{
    *status = HL_OK;
    pthread_mutex_lock(&gated.lock);
    const bool ours = kind == HL_COPY_H2D && stream && stream == gated.stream;
    const uint32_t number = ours ? ++gated.copies : 0;
    const bool kept = ours && number == gated.plan.refuse && !gated.plan.taken;
    const bool held = ours && number == gated.plan.hold_before;
    const hl_devptr word = gated.word;
    const uint32_t value = gated.value;
    pthread_mutex_unlock(&gated.lock);
    if (held)
        *status = gated.real->stream_wait_value(dev, stream, word, value, err);
    if (kept)
        *status = HL_E_DEVICE;
    return number;
}

/* What the executor hears of it. */
static hl_status leave(uint32_t number, hl_status status, hl_error *err)
{
    pthread_mutex_lock(&gated.lock);
    const bool refused = number != 0 && number == gated.plan.refuse;
    if (number != 0 && (refused || number == gated.plan.stop_after)) {
        gated.reached = true;
        pthread_cond_broadcast(&gated.changed);
    }
    while (number != 0 && number == gated.plan.stop_after && !gated.open)
        pthread_cond_wait(&gated.changed, &gated.lock);
    pthread_mutex_unlock(&gated.lock);
    return refused ? HL_FAIL_DEVICE(err, HL_E_DEVICE, STAGE, 719, "the test refuses copy %u", number)
                   : status;
}

static hl_status gate_copy(hl_device *dev, enum hl_copy_kind kind, uint64_t dst, uint64_t src, size_t bytes,
                           hl_stream stream, hl_error *err)
{
    hl_status status;
    const uint32_t number = enter(dev, kind, stream, &status, err);
    if (status == HL_OK)
        status = gated.real->copy(dev, kind, dst, src, bytes, stream, err);
    return leave(number, status, err);
}

static hl_status gate_rows(hl_device *dev, enum hl_copy_kind kind, uint64_t dst, size_t dst_pitch,
                           uint64_t src, size_t src_pitch, size_t width, size_t rows, hl_stream stream,
                           hl_error *err)
{
    hl_status status;
    const uint32_t number = enter(dev, kind, stream, &status, err);
    if (status == HL_OK)
        status = gated.real->copy_rows(dev, kind, dst, dst_pitch, src, src_pitch, width, rows, stream, err);
    return leave(number, status, err);
}

static hl_status gate_batch(hl_device *dev, enum hl_copy_kind kind, const struct hl_copy *copies,
                            size_t count, hl_stream stream, size_t *accepted, hl_error *err)
{
    hl_status status;
    const uint32_t number = enter(dev, kind, stream, &status, err);
    *accepted = 0;
    if (status == HL_OK)
        status = gated.real->copy_batch(dev, kind, copies, count, stream, accepted, err);
    return leave(number, status, err);
}

static hl_status gate_register(hl_device *dev, void *ptr, size_t bytes, hl_error *err)
{
    pthread_mutex_lock(&gated.lock);
    const bool refused = ++gated.registrations == gated.refused_registration;
    pthread_mutex_unlock(&gated.lock);
    if (refused)
        return HL_FAIL_DEVICE(err, HL_E_NOMEM, STAGE, 2, "the test refuses a registration");
    return gated.real->host_register(dev, ptr, bytes, err);
}

/* Before any thread of the engine knows the device. */
static void take_device(hl_device *dev)
{
    gated.real = dev->ops;
    gated.ops = *dev->ops;
    gated.ops.copy = gate_copy;
    gated.ops.copy_rows = gate_rows;
    gated.ops.copy_batch = gate_batch;
    gated.ops.host_register = gate_register;
    gated.stream = NULL;
    gated.refused_registration = 0;
    dev->ops = &gated.ops;
}

/* --- the scene --- */

void gated_connect(struct scene *scene, const struct manager_settings_of_a_test *settings,
                   const struct world_options *world)
{
    folder_enter();
    manager_start(&scene->manager, settings);
    world_open(&scene->world, world);
    take_device(scene->world.dev);
    client_connect(&scene->client, &scene->world, 0);
}

hl_status gated_register(struct scene *scene)
{
    struct client *client = &scene->client;
    hl_context_batch batch;
    client_batch(client, "engine", &batch);
    batch.device = scene->world.dev;
    batch.route = "direct";
    return hl_engine_register(client->engine, &batch, &client->binding, &client->err);
}

void gated_open(struct scene *scene, const struct manager_settings_of_a_test *settings,
                const struct world_options *world)
{
    gated_connect(scene, settings, world);
    HL_REQUIRE_OK(gated_register(scene), scene->client.err);
}

void gated_arm(struct scene *scene, const struct gated_plan *plan)
{
    if (plan->hold_before != 0)
        scene->world.holds++;
    pthread_mutex_lock(&gated.lock);
    gated.stream = client_copy_stream(&scene->client);
    gated.plan = *plan;
    gated.word = scene->world.word_ptr;
    gated.value = scene->world.holds;
    gated.copies = 0;
    gated.reached = gated.open = false;
    pthread_mutex_unlock(&gated.lock);
}

uint32_t gated_count(void)
{
    pthread_mutex_lock(&gated.lock);
    const uint32_t count = gated.copies;
    pthread_mutex_unlock(&gated.lock);
    return count;
}

void gated_await(void)
{
    struct timespec until;
    int waited = 0;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_NS / HL_NS_PER_S;
    pthread_mutex_lock(&gated.lock);
    while (!gated.reached && waited == 0)
        waited = pthread_cond_timedwait(&gated.changed, &gated.lock, &until);
    const bool reached = gated.reached;
    pthread_mutex_unlock(&gated.lock);
    MUST(reached);
}

void gated_go(void)
{
    pthread_mutex_lock(&gated.lock);
    gated.open = true;
    pthread_cond_broadcast(&gated.changed);
    pthread_mutex_unlock(&gated.lock);
}

void gated_refuse_registration(uint32_t nth)
{
    pthread_mutex_lock(&gated.lock);
    gated.refused_registration = nth;
    gated.registrations = 0;
    pthread_mutex_unlock(&gated.lock);
}

uint32_t gated_registrations(void)
{
    pthread_mutex_lock(&gated.lock);
    const uint32_t count = gated.registrations;
    pthread_mutex_unlock(&gated.lock);
    return count;
}
