/* core/weights/upload moves a lease's tensors to a GPU at the speed of its link. It is apart from the store,
 * which never knows about devices: it calls core/weights/store through hostlane/weights.h, core/device and
 * core/base.
 *
 * Two ways. STAGING: threads copy page-cache bytes into a bounded ring of pinned slots, from which the device
 * copies; it works on every file system. REGISTERED: the pages of a tmpfs mapping are pinned where they are,
 * in chunks, and the device reads them; no byte is copied by the host.
 *
 * Rules. A tensor's event is recorded after its last byte's copy. Nothing is released, unpinned or reported
 * before every accepted copy has finished: hl_upload_close() drains. When draining itself fails the process
 * must not reuse the destinations, and the upload keeps lease, slots and registrations for ever (and says
 * so). */
#ifndef CORE_WEIGHTS_UPLOAD_UPLOAD_H
#define CORE_WEIGHTS_UPLOAD_UPLOAD_H

#include "core/device/device.h"
#include "hostlane/weights_upload.h"

typedef struct hl_upload hl_upload;

/* As hl_weight_upload_start(), on an open device, which outlives the upload. */
hl_status hl_upload_start(hl_device *dev, hl_weight_lease *lease, const hl_weight_upload_options *options,
                          const hl_weight_destination *destinations, size_t count, hl_upload **upload,
                          hl_error *err);
/* Both as their namesakes in hostlane/weights_upload.h. */
hl_status hl_upload_wait_enqueued(hl_upload *upload, int64_t timeout_ns, hl_error *err);
hl_status hl_upload_wait(hl_upload *upload, int64_t timeout_ns, hl_weight_upload_result *result,
                         hl_error *err);
/* Submits no more, waits for what was submitted, and frees the upload. False: the device could not say that
 * it has finished, and the upload was kept; then `dev` must stay open, too. */
bool hl_upload_close(hl_upload *upload);

#endif
