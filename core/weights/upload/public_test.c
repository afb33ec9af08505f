/* hostlane/weights_upload.h as a program calls it: what it refuses, and where there is no GPU. */
#include "core/weights/upload/upload_testing.h"

static const uint64_t bytes[] = {5000, 70000};

static hl_weight_lease *lease;
static hl_weight_upload_options options;
static hl_weight_destination destinations[2];
static hl_weight_upload *upload;
static hl_error err;

static void open_lease(void)
{
    lease = testing_lease_open(bytes, 2, 1, 8, false, 1);
    hl_weight_upload_options_init(&options);
    destinations[0] = (hl_weight_destination){.tensor = "t0", .device_ptr = 4096, .bytes = bytes[0]};
    destinations[1] = (hl_weight_destination){.tensor = "t1", .device_ptr = 65536, .bytes = bytes[1]};
    upload = NULL;
}

/* Nothing was started, nothing is held. */
static void close_lease(void)
{
    CU_ASSERT_PTR_NULL(upload);
    CU_ASSERT_EQUAL(testing_lease_holds(lease), 1);
    hl_weight_lease_release(lease);
    CU_ASSERT_EQUAL(testing_leases(), 0);
}

static void missing_arguments_are_refused_by_name(void)
{
    hl_weight_upload_result result;
    open_lease();
    HL_EXPECT_STATUS(hl_weight_upload_start(NULL, &options, destinations, 2, &upload, &err), HL_E_INVALID,
                     err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "lease"));
    HL_EXPECT_STATUS(hl_weight_upload_start(lease, NULL, destinations, 2, &upload, &err), HL_E_INVALID, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "options"));
    HL_EXPECT_STATUS(hl_weight_upload_start(lease, &options, destinations, 2, NULL, &err), HL_E_INVALID, err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "upload"));
    HL_EXPECT_STATUS(hl_weight_upload_wait(NULL, 0, &result, &err), HL_E_INVALID, err);
    HL_EXPECT_STATUS(hl_weight_upload_wait_enqueued(NULL, 0, &err), HL_E_INVALID, err);
    hl_weight_upload_close(NULL);
    close_lease();
}

/* Before a device is looked for. */
static void wrong_options_are_refused_without_a_device(void)
{
    open_lease();
    options.slot_bytes = 4095;
    HL_EXPECT_STATUS(hl_weight_upload_start(lease, &options, destinations, 2, &upload, &err), HL_E_INVALID,
                     err);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "slot_bytes"));
    close_lease();
}

static void without_a_driver_there_is_no_device(void)
{
    open_lease();
    HL_EXPECT_STATUS(hl_weight_upload_start(lease, &options, destinations, 2, &upload, &err), HL_E_NO_DEVICE,
                     err);
    CU_ASSERT_NOT_EQUAL(err.text[0], '\0');
    HL_EXPECT_STATUS(hl_weight_upload_start(lease, &options, destinations, 2, &upload, NULL), HL_E_NO_DEVICE,
                     err);
    close_lease();
}

HL_TESTS(upload_public, HL_CASE(missing_arguments_are_refused_by_name),
         HL_CASE(wrong_options_are_refused_without_a_device), HL_CASE(without_a_driver_there_is_no_device));
