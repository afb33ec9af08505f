#ifndef CORE_WEIGHTS_STORE_FINGERPRINT_H
#define CORE_WEIGHTS_STORE_FINGERPRINT_H

#include "core/weights/store/store.h"

/* The backing fingerprint of an open artifact: SHA-256 of domain, publication, and for each file its name,
 * device, inode and size. The same files give the same one to every process; files that were published anew
 * give another one, though their content be equal. */
hl_status hl_artifact_fingerprint(const hl_weight_store *store, const struct hl_artifact *artifact,
                                  char hex[HL_SHA256_HEX_BYTES], hl_error *err);

#endif
