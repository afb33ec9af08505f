/* A build without a CUDA toolkit says so, and its default device is the software one. */
#include <string.h>

#include "core/device/device.h"
#include "core/testing/cunit.h"

static void the_cuda_device_says_what_the_build_lacks(void)
{
    hl_device *dev = NULL;
    hl_error err = {0};
    HL_EXPECT_STATUS(hl_device_open_cuda(0, &dev, &err), HL_E_NO_DEVICE, err);
    CU_ASSERT_PTR_NULL(dev);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "built without a CUDA toolkit"));
}

static void the_default_device_is_the_software_one(void)
{
    hl_device *dev = NULL;
    hl_error err = {0};
    HL_REQUIRE_OK(hl_device_open_default(&dev, &err), err);
    CU_ASSERT_EQUAL(dev->info.kind, HL_DEVICE_SOFTWARE);
    hl_device_close(dev);
}

HL_TESTS(cuda_absent, HL_CASE(the_cuda_device_says_what_the_build_lacks),
         HL_CASE(the_default_device_is_the_software_one));
