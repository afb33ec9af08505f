/* fsync() of a payload takes as long as the disk needs for all of it, which the producer can use to make the
 * next one. Where no thread is to be had the payload is synchronised at once. */
#include <assert.h>
#include <errno.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/weights/store/writer.h"
#include "faults/hook.h"

#define STAGE "weights.writer"

static int sync_file(int fd)
{
    int result;
    do {
        result = fsync(fd);
    } while (result != 0 && errno == EINTR);
    return result;
}

static void synchronise(hl_weight_payload *payload, hl_error *err)
{
    if (HL_FAULT_STEP(weights_payload_sync, sync_file(payload->fd)) != 0)
        (void)HL_FAIL_ERRNO(err, errno == ENOSPC || errno == EDQUOT ? HL_E_NOSPACE : HL_E_SYSTEM, STAGE,
                            errno, "cannot synchronise %.200s", payload->file.file_name);
    close(payload->fd);
    payload->fd = -1;
}

/* Under the mutex, which is given up meanwhile. */
static void synchronise_next(struct hl_syncer *syncer)
{
    hl_weight_payload *const payload = syncer->waiting;
    syncer->waiting = payload->next_sync;
    pthread_mutex_unlock(&syncer->mutex);
    hl_error err = {.status = HL_OK};
    synchronise(payload, &err);
    pthread_mutex_lock(&syncer->mutex);
    if (err.status && !syncer->error.status)
        syncer->error = err;
}

static void *syncer_main(void *argument)
{
    struct hl_syncer *syncer = argument;
    pthread_mutex_lock(&syncer->mutex);
    for (;;) {
        while (!syncer->waiting && !syncer->finishing)
            pthread_cond_wait(&syncer->changed, &syncer->mutex);
        if (!syncer->waiting)
            break;
        synchronise_next(syncer);
    }
    pthread_mutex_unlock(&syncer->mutex);
    return NULL;
}

void hl_syncer_init(struct hl_syncer *syncer)
{
    *syncer = (struct hl_syncer){.error = {.status = HL_OK}};
    pthread_mutex_init(&syncer->mutex, NULL);
    pthread_cond_init(&syncer->changed, NULL);
}

void hl_syncer_add(struct hl_syncer *syncer, hl_weight_payload *payload)
{
    pthread_mutex_lock(&syncer->mutex);
    assert(!syncer->finishing);
    payload->next_sync = syncer->waiting;
    syncer->waiting = payload;
    if (!syncer->running)
        syncer->running = pthread_create(&syncer->thread, NULL, syncer_main, syncer) == 0;
    if (syncer->running)
        pthread_cond_signal(&syncer->changed);
    else
        synchronise_next(syncer);
    pthread_mutex_unlock(&syncer->mutex);
}

hl_status hl_syncer_finish(struct hl_syncer *syncer, hl_error *err)
{
    pthread_mutex_lock(&syncer->mutex);
    syncer->finishing = true;
    pthread_cond_signal(&syncer->changed);
    const bool running = syncer->running;
    pthread_mutex_unlock(&syncer->mutex);
    if (running)
        pthread_join(syncer->thread, NULL);
    syncer->running = false;
    assert(!syncer->waiting);
    if (syncer->error.status && err)
        *err = syncer->error;
    return syncer->error.status;
}

void hl_syncer_destroy(struct hl_syncer *syncer)
{
    pthread_cond_destroy(&syncer->changed);
    pthread_mutex_destroy(&syncer->mutex);
}
