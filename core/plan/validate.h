/* The two halves of validation; private to the room. */
#ifndef CORE_PLAN_VALIDATE_H
#define CORE_PLAN_VALIDATE_H

#include "core/plan/plan.h"

/* HL_E_OVERLAP when two destinations of a decoded part, whose bounds have been checked, share a byte. */
hl_status hl_plan_check_destinations(const struct hl_plan_part *part, hl_error *err);

#endif
