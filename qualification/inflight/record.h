/* What a test has seen, for people and later checks: an array of objects in the file that
 * $HOSTLANE_INFLIGHT_JSON names, written anew with each addition; without the variable nothing is written. */
#ifndef QUALIFICATION_INFLIGHT_RECORD_H
#define QUALIFICATION_INFLIGHT_RECORD_H

#include <jansson.h>

#include "qualification/inflight/marks.h"

/* Takes the reference. */
void record_add(json_t *object);
/* The device's name, kind, driver and capability. */
json_t *record_device(const hl_device *dev);
/* Times in milliseconds from the kill on. */
json_t *record_death(const struct marks_death *death);

#endif
