#include "core/device/device_conformance.h"

#define HL_CONFORMANCE_CASE(name) HL_CASE(name),
HL_TESTS(device_conformance, HL_CONFORMANCE_CASES(HL_CONFORMANCE_CASE));
