/* hostlane/weights_upload.h: an upload with a CUDA device of its own. */
#include <stdlib.h>

#include "core/weights/upload/work.h"

#define STAGE "upload"

struct hl_weight_upload {
    hl_device *dev;
    hl_upload *upload;
};

hl_status hl_weight_upload_start(hl_weight_lease *lease, const hl_weight_upload_options *options,
                                 const hl_weight_destination *destinations, size_t count,
                                 hl_weight_upload **upload, hl_error *err)
{
    if (!lease || !options || !upload)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "%s: NULL",
                       !lease     ? "lease"
                       : !options ? "options"
                                  : "upload");
    hl_weight_upload_options resolved;
    hl_status status = hl_upload_options_resolve(options, &resolved, err);
    if (status)
        return status;
    hl_weight_upload *opened = calloc(1, sizeof *opened);
    if (!opened)
        return HL_FAIL(err, HL_E_NOMEM, STAGE, "no memory for an upload");
    status = hl_device_open_cuda(resolved.device, &opened->dev, err);
    if (status)
        goto err_free;
    status = hl_upload_start(opened->dev, lease, &resolved, destinations, count, &opened->upload, err);
    if (status)
        goto err_device;
    *upload = opened;
    return HL_OK;
err_device:
    hl_device_close(opened->dev);
err_free:
    free(opened);
    return status;
}

hl_status hl_weight_upload_wait_enqueued(hl_weight_upload *upload, int64_t timeout_ns, hl_error *err)
{
    if (!upload)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "upload: NULL");
    return hl_upload_wait_enqueued(upload->upload, timeout_ns, err);
}

hl_status hl_weight_upload_wait(hl_weight_upload *upload, int64_t timeout_ns, hl_weight_upload_result *result,
                                hl_error *err)
{
    if (!upload)
        return HL_FAIL(err, HL_E_INVALID, STAGE, "upload: NULL");
    return hl_upload_wait(upload->upload, timeout_ns, result, err);
}

/* The device stays open under an upload that was kept. */
void hl_weight_upload_close(hl_weight_upload *upload)
{
    if (!upload)
        return;
    if (hl_upload_close(upload->upload))
        hl_device_close(upload->dev);
    free(upload);
}
