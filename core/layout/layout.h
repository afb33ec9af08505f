/* core/layout's interface is public: an engine describes its tensors with it. */
#ifndef CORE_LAYOUT_LAYOUT_H
#define CORE_LAYOUT_LAYOUT_H

#include "hostlane/layout.h"

#endif
