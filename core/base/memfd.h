/* Memory that two processes share: a memfd of a fixed size, sealed before anybody else can know it. With the
 * size seals no process can make a mapping's pages vanish, so no access raises SIGBUS. */
#ifndef CORE_BASE_MEMFD_H
#define CORE_BASE_MEMFD_H

#include <fcntl.h>
#include <stdint.h>

#include "hostlane/status.h"

#ifndef F_SEAL_EXEC
#define F_SEAL_EXEC 0x0020 /* Linux 6.3 */
#endif

/* What every shared memory is sealed with. F_SEAL_EXEC, which newer kernels add, says nothing about the data.
 */
#define HL_MEMFD_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* Creates a zeroed memfd of exactly `bytes`, with HL_MEMFD_SEALS and close-on-exec. `name` is what
 * /proc/PID/maps shows; `flags` are further memfd_create flags (MFD_HUGETLB, …) or 0. HL_E_NOMEM or
 * HL_E_SYSTEM. */
hl_status hl_memfd_create(const char *name, unsigned flags, uint64_t bytes, const char *stage, int *fd,
                          hl_error *err);

/* Duplicates (close-on-exec) an fd that a peer handed over, after checking that it is a memfd of exactly
 * `bytes` with exactly HL_MEMFD_SEALS. HL_E_INVALID: not an fd; HL_E_PERMISSION: its seals; HL_E_RANGE: its
 * size. */
hl_status hl_memfd_import(int fd, uint64_t bytes, const char *stage, int *own, hl_error *err);

/* Maps all of it, shared, to read and write. HL_E_PERMISSION when the fd may not be written; HL_E_NOMEM.
 * munmap() undoes it. */
hl_status hl_memfd_map(int fd, uint64_t bytes, const char *stage, void **base, hl_error *err);

#endif
