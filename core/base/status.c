#include "hostlane/status.h"

const char *hl_status_name(hl_status status)
{
    switch (status) {
#define HL_STATUS_NAME(name, value, text)                                                                    \
    case HL_##name:                                                                                          \
        return #name;
        HL_STATUS_LIST(HL_STATUS_NAME)
#undef HL_STATUS_NAME
    }
    return "unknown";
}

const char *hl_status_text(hl_status status)
{
    switch (status) {
#define HL_STATUS_TEXT(name, value, text)                                                                    \
    case HL_##name:                                                                                          \
        return text;
        HL_STATUS_LIST(HL_STATUS_TEXT)
#undef HL_STATUS_TEXT
    }
    return "unknown status";
}
