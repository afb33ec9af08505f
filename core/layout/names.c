#include <string.h>

#include "core/base/error.h"
#include "core/layout/layout.h"

const char *hl_layout_kind_name(enum hl_layout_kind kind)
{
    switch (kind) {
#define KIND_NAME(name, text, shape)                                                                         \
    case HL_LAYOUT_##name:                                                                                   \
        return text;
        HL_LAYOUT_KIND_LIST(KIND_NAME)
#undef KIND_NAME
    }
    return "unknown";
}

const char *hl_layout_role_name(enum hl_role role)
{
    switch (role) {
#define ROLE_NAME(name, text, meaning)                                                                       \
    case HL_ROLE_##name:                                                                                     \
        return text;
        HL_ROLE_LIST(ROLE_NAME)
#undef ROLE_NAME
    }
    return "unknown";
}

hl_status hl_layout_kind_parse(const char *name, enum hl_layout_kind *kind, hl_error *err)
{
    static const enum hl_layout_kind kinds[] = {
#define KIND(name, text, shape) HL_LAYOUT_##name,
        HL_LAYOUT_KIND_LIST(KIND)
#undef KIND
    };
    for (size_t i = 0; name != NULL && i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(name, hl_layout_kind_name(kinds[i])) == 0) {
            *kind = kinds[i];
            return HL_OK;
        }
    }
    return HL_FAIL(err, HL_E_INVALID, "layout.kind", "kind is \"%.80s\", which is no layout kind",
                   name != NULL ? name : "");
}
