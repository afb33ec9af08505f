/* For the reader's tests: the golden artifact as vLLM-Omni's store wrote it, laid into a domain without any
 * help of this library's writer, and changed there in ways that a writer never would. */
#ifndef CORE_WEIGHTS_STORE_GOLDEN_TESTING_H
#define CORE_WEIGHTS_STORE_GOLDEN_TESTING_H

#include "core/weights/store/store.h"
#include "core/weights/store/store_testing.h"

#define HL_GOLDEN_ENTRY "artifacts/" HL_GOLDEN_KEY
#define HL_GOLDEN_PAYLOAD HL_GOLDEN_ENTRY "/" HL_GOLDEN_FILE

/* Reads the golden files, which stay in memory: before a child becomes somebody who cannot. */
void hl_golden_load(void);
/* Opens the fixture's store and copies the golden artifact to artifacts/`key`, immutable. */
void hl_golden_lay(struct hl_store_fixture *fixture, const char *key);
/* Removes the artifact and its marker, and lays it anew. */
void hl_golden_renew(struct hl_store_fixture *fixture);

/* Replaces `from` in the manifest by `to`, and lets READY have the new manifest's SHA-256. */
void hl_golden_edit_manifest(struct hl_store_fixture *fixture, const char *from, const char *to);
/* Replaces `from` by `to` in READY. */
void hl_golden_edit_ready(struct hl_store_fixture *fixture, const char *from, const char *to);

/* Changes the manifest's parts and writes it and READY as a consistent publication. The file's size and sum
 * are taken from the file that lies there when `change` leaves them. */
void hl_golden_forge(struct hl_store_fixture *fixture,
                     void (*change)(struct hl_manifest_tensor *tensors, struct hl_manifest_file *files));

/* Adds an entry to the artifact's folder, whatever its mode, which stays. */
void hl_golden_add_file(struct hl_store_fixture *fixture, const char *name);
/* Replaces the entry `name` of the artifact by a link to a copy of it outside. */
void hl_golden_make_link(struct hl_store_fixture *fixture, const char *name, bool hard);

unsigned hl_open_descriptors(void);        /* of this process */
unsigned hl_mappings_of(const char *path); /* lines of /proc/self/maps that name it */

#endif
