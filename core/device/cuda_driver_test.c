/* Finding the CUDA driver on machines without one. The table of driver functions is published once a process,
 * so the one case that completes it comes last. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/device/cuda_fake_driver.h"
#include "core/device/device.h"
#include "core/testing/cunit.h"

/* Makes one of the test's libraries the driver; its settings stay until the next call. */
static struct fake_driver *use_library(const char *file)
{
    const char *folder = getenv("FAKE_DRIVERS");
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder ? folder : "core/device", file);
    setenv("HOSTLANE_CUDA_LIBRARY", path, 1);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        CU_FAIL_FATAL("the test's library cannot be loaded");
    }
    union {
        void *object;
        struct fake_driver *(*function)(void);
    } settings = {dlsym(library, "fake_driver")};
    CU_ASSERT_PTR_NOT_NULL_FATAL(settings.object);
    struct fake_driver *fake = settings.function();
    memset(fake, 0, sizeof *fake);
    return fake;
}

/* Opens device 0, which must fail with HL_E_NO_DEVICE and a text that has `reason`, touching no output. */
static void expect_no_device(const char *reason)
{
    hl_device *untouched = (hl_device *)(void *)&untouched, *dev = untouched;
    hl_error err = {0};
    HL_EXPECT_STATUS(hl_device_open_cuda(0, &dev, &err), HL_E_NO_DEVICE, err);
    CU_ASSERT_PTR_EQUAL(dev, untouched);
    CU_ASSERT_EQUAL(err.status, HL_E_NO_DEVICE);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, reason));
    if (!strstr(err.text, reason))
        fprintf(stderr, "\"%s\" is not in \"%s\"\n", reason, err.text);
}

static void a_missing_library_is_named(void)
{
    setenv("HOSTLANE_CUDA_LIBRARY", "/nowhere/libcuda.so.1", 1);
    expect_no_device("/nowhere/libcuda.so.1");
    expect_no_device("/nowhere/libcuda.so.1"); /* each call says why, not only the first */
}

static void an_empty_setting_means_the_system_driver(void)
{
    setenv("HOSTLANE_CUDA_LIBRARY", "", 1);
    hl_device *dev = NULL;
    hl_error err = {0};
    hl_status status = hl_device_open_cuda(1 << 20, &dev, &err); /* no machine has so many devices */
    CU_ASSERT_EQUAL(status, HL_E_NO_DEVICE);
    CU_ASSERT_TRUE(strstr(err.text, "libcuda.so.1") || strstr(err.text, "ordinal") ||
                   strstr(err.text, "cuInit"));
}

static void a_library_that_is_no_driver_is_refused(void)
{
    use_library("libfake_no_driver.so");
    expect_no_device("has no cuGetProcAddress");
}

static void a_missing_function_is_named(void)
{
    struct fake_driver *fake = use_library("libfake_cuda.so");
    fake->missing = "cuMemAlloc";
    expect_no_device("cuMemAlloc of version 3020");
    fake->missing = "cuLaunchKernel"; /* the last of the list */
    expect_no_device("cuLaunchKernel");
}

static void a_function_newer_than_the_driver_is_named(void)
{
    use_library("libfake_cuda.so")->version = 11060;
    expect_no_device("cuStreamWaitValue32 of version 11070");
}

static void a_driver_before_12_is_asked_through_its_own_entry(void)
{
    struct fake_driver *fake = use_library("libfake_cuda_11.so");
    fake->version = 11080;
    fake->missing = "cuMemFree";
    expect_no_device("cuMemFree");
}

static void the_default_device_is_then_the_software_one(void)
{
    setenv("HOSTLANE_CUDA_LIBRARY", "/nowhere/libcuda.so.1", 1);
    hl_device *dev;
    hl_error err = {0};
    HL_REQUIRE_OK(hl_device_open_default(&dev, &err), err);
    CU_ASSERT_EQUAL(dev->info.kind, HL_DEVICE_SOFTWARE);
    hl_device_close(dev);
}

static void a_driver_without_a_device_says_so(void)
{
    struct fake_driver *fake = use_library("libfake_cuda.so");
    fake->failing = "cuInit";
    fake->code = 100;
    expect_no_device("cuInit: CUDA_ERROR_NO_DEVICE (100)");
    fake->failing = NULL;
    expect_no_device("ordinal: 0, the CUDA driver shows 0 device(s)");
}

HL_TESTS(cuda_driver, HL_CASE(a_missing_library_is_named), HL_CASE(a_library_that_is_no_driver_is_refused),
         HL_CASE(a_missing_function_is_named), HL_CASE(a_function_newer_than_the_driver_is_named),
         HL_CASE(a_driver_before_12_is_asked_through_its_own_entry),
         HL_CASE(the_default_device_is_then_the_software_one), HL_CASE(a_driver_without_a_device_says_so),
         HL_CASE(an_empty_setting_means_the_system_driver));
