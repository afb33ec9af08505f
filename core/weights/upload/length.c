/* Whether a file is as long as it was. */
#include <errno.h>
#include <inttypes.h>
#include <sys/stat.h>

#include "core/weights/upload/work.h"

#define STAGE "upload.length"

hl_status hl_upload_check_length(const hl_weight_region *region, hl_error *err)
{
    struct stat st;
    if (fstat(region->fd, &st))
        return HL_FAIL_ERRNO(err, HL_E_SYSTEM, STAGE, errno, "%s: cannot ask for its size",
                             region->file_name);
    if ((uint64_t)st.st_size < region->length)
        return HL_FAIL(err, HL_E_CORRUPT, STAGE,
                       "%s: ends at byte %jd of %" PRIu64 ": it was cut short after validation",
                       region->file_name, (intmax_t)st.st_size, region->length);
    return HL_OK;
}
