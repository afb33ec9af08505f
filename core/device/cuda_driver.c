#include "core/device/cuda_driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

#define STAGE "device.cuda_driver"

/* The signature that every entry of cuGetProcAddress is read through; the caller of a table member casts
 * back. */
typedef void (*driver_function)(void);

struct lookup {
    const char *library;
    PFN_cuGetProcAddress_v12000 find;        /* of drivers since 12.0 */
    PFN_cuGetProcAddress_v11030 find_before; /* of older drivers; used when `find` is NULL */
};

/* dlsym() returns an object pointer; POSIX promises that this conversion holds. */
static driver_function symbol(void *library, const char *name)
{
    union {
        void *object;
        driver_function function;
    } found = {dlsym(library, name)};
    return found.function;
}

/* NULL when the driver does not have `name` with the signature of CUDA version `version`. */
static driver_function find_function(const struct lookup *lookup, const char *name, int version)
{
    union {
        void *object;
        driver_function function;
    } found = {NULL};
    CUresult result;
    if (lookup->find)
        result = lookup->find(name, &found.object, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, NULL);
    else
        result = lookup->find_before(name, &found.object, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
    return result == CUDA_SUCCESS ? found.function : NULL;
}

static hl_status open_library(struct lookup *lookup, hl_error *err)
{
    const char *name = secure_getenv("HOSTLANE_CUDA_LIBRARY");
    lookup->library = name && *name ? name : "libcuda.so.1";
    /* Kept for the life of the process: a driver that has started threads cannot be unloaded. */
    void *library = dlopen(lookup->library, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *reason = dlerror();
        return HL_FAIL(err, HL_E_NO_DEVICE, STAGE, "cannot load the CUDA driver %s: %s", lookup->library,
                       reason ? reason : "no reason given");
    }
    lookup->find = (PFN_cuGetProcAddress_v12000)symbol(library, "cuGetProcAddress_v2");
    lookup->find_before = (PFN_cuGetProcAddress_v11030)symbol(library, "cuGetProcAddress");
    if (!lookup->find && !lookup->find_before)
        return HL_FAIL(err, HL_E_NO_DEVICE, STAGE,
                       "%s has no cuGetProcAddress: not a CUDA driver, or one before 11.3", lookup->library);
    return HL_OK;
}

static hl_status fill_table(struct hl_cuda_driver *table, hl_error *err)
{
    struct lookup lookup;
    hl_status status = open_library(&lookup, err);
    if (status)
        return status;
#define FIND(member, function, version, required)                                                            \
    table->member = (PFN_##function##_v##version)find_function(&lookup, #function, version);                 \
    if ((required) && !table->member)                                                                        \
        return HL_FAIL(err, HL_E_NO_DEVICE, STAGE, "the CUDA driver %s lacks %s of version %d",              \
                       lookup.library, #function, version);
    HL_CUDA_FUNCTIONS(FIND)
#undef FIND
    return HL_OK;
}

hl_status hl_cuda_driver_load(const struct hl_cuda_driver **driver, hl_error *err)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct hl_cuda_driver table; /* written once, before `complete`; then constant */
    static bool complete;

    pthread_mutex_lock(&lock);
    hl_status status = HL_OK;
    if (!complete) {
        struct hl_cuda_driver found;
        status = fill_table(&found, err);
        if (!status) {
            table = found;
            complete = true;
        }
    }
    pthread_mutex_unlock(&lock);
    if (!status)
        *driver = &table;
    return status;
}

static hl_status status_of(CUresult result)
{
    switch (result) {
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_HANDLE:
        return HL_E_INVALID;
    case CUDA_ERROR_OUT_OF_MEMORY:
        return HL_E_NOMEM;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
        return HL_E_NO_DEVICE;
    case CUDA_ERROR_INVALID_CONTEXT: /* no context is current: the caller has not entered the device */
    case CUDA_ERROR_NOT_READY:       /* only where completion was required: the queries test for it first */
        return HL_E_STATE;
    case CUDA_ERROR_NOT_SUPPORTED:
        return HL_E_UNSUPPORTED;
    case CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED:
        return HL_E_BUSY;
    case CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED:
    case CUDA_ERROR_NOT_FOUND:
        return HL_E_NOT_FOUND;
    default:
        return HL_E_DEVICE;
    }
}

hl_status hl_cuda_status(const struct hl_cuda_driver *driver, CUresult result, const char *stage,
                         const char *function, hl_error *err)
{
    if (result == CUDA_SUCCESS)
        return HL_OK;
    const char *name = NULL;
    if (driver->error_name(result, &name) != CUDA_SUCCESS || !name)
        name = "an unknown code";
    return HL_FAIL_DEVICE(err, status_of(result), stage, (int)result, "%s: %s (%d)", function, name,
                          (int)result);
}
