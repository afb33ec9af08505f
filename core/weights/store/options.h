/* Private to core/weights/store: what a caller may ask a domain to be. */
#ifndef CORE_WEIGHTS_STORE_OPTIONS_H
#define CORE_WEIGHTS_STORE_OPTIONS_H

#include "core/weights/store/store.h"

/* INVALID_CONFIG names the option. Touches no file. */
hl_status hl_store_options_check(const hl_weight_store_options *options, hl_weight_failure *failure);

#endif
