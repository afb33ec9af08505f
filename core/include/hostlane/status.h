/* Outcomes and error text: every public function of Hostlane returns an hl_status and, on failure, fills the
 * caller's hl_error.
 *
 * The hundreds say what is lost, so that a caller can decide without knowing each code:
 *   -1xx  the call is wrong; nothing happened, correct the call
 *   -2xx  this request is lost; the session goes on
 *   -3xx  this session is lost; connect again
 *   -4xx  stored bytes cannot be used; recompute or rebuild them
 *   -5xx  the device or the system failed
 */
#ifndef HOSTLANE_STATUS_H
#define HOSTLANE_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

#define HL_API __attribute__((visibility("default")))

/* X(name, value, what it means). The one list: the enum, hl_status_name() and hl_status_text() use it. */
#define HL_STATUS_LIST(X)                                                                                    \
    X(OK, 0, "success")                                                                                      \
    X(PENDING, 1, "not finished yet")                                                                        \
    X(E_INVALID, -100, "an argument or a field is not valid")                                                \
    X(E_RANGE, -101, "a range lies outside its owner")                                                       \
    X(E_OVERLAP, -102, "two destinations overlap")                                                           \
    X(E_STATE, -103, "the object is not in a state that allows this call")                                   \
    X(E_BUSY, -104, "the object is in use")                                                                  \
    X(E_OVERFLOW, -105, "a size does not fit its type")                                                      \
    X(E_UNSUPPORTED, -106, "not supported by this build, device or system")                                  \
    X(E_NOT_FOUND, -107, "no such object")                                                                   \
    X(E_LIMIT, -108, "a fixed limit (hostlane/limits.h) would be exceeded")                                  \
    X(E_MISS, -200, "the block is not resident")                                                             \
    X(E_EXPIRED, -201, "the lease has expired")                                                              \
    X(E_CANCELLED, -202, "cancelled before it was granted")                                                  \
    X(E_BUDGET, -203, "a byte or record budget is used up")                                                  \
    X(E_TIMEOUT, -204, "the wait ended before the outcome was known; nothing was freed")                     \
    X(E_PEER, -300, "the other process has gone")                                                            \
    X(E_PROTOCOL, -301, "the other process broke the protocol")                                              \
    X(E_VERSION, -302, "the other process speaks another version")                                           \
    X(E_PERMISSION, -303, "not permitted")                                                                   \
    X(E_CORRUPT, -400, "the bytes are malformed")                                                            \
    X(E_DENIED, -401, "the artifact has been denied")                                                        \
    X(E_CHECKSUM, -402, "the bytes do not match their checksum")                                             \
    X(E_DEVICE, -500, "the device reported an error")                                                        \
    X(E_SYSTEM, -501, "a system call failed")                                                                \
    X(E_NOMEM, -502, "out of memory")                                                                        \
    X(E_NOSPACE, -503, "out of space in an arena or a file system")                                          \
    X(E_NO_DEVICE, -504, "no such device, driver or toolkit")

typedef enum hl_status {
#define HL_STATUS_ENUM(name, value, text) HL_##name = value,
    HL_STATUS_LIST(HL_STATUS_ENUM)
#undef HL_STATUS_ENUM
} hl_status;

/* What failed, where, and why. Owned by the caller, who may pass NULL wherever a function takes one; it is
 * written only when the function fails. `stage` is a string constant that names the room and step
 * ("plan.decode"). */
typedef struct hl_error {
    hl_status status;
    int sys_errno;   /* errno of the failing system call, or 0 */
    int device_code; /* CUresult of the failing driver call, or 0 */
    const char *stage;
    char text[240]; /* one sentence, NUL-terminated; names the offending field and its value */
} hl_error;

/* The status's name without the HL_ prefix ("E_RANGE"), or "unknown". Never NULL; a string constant. */
HL_API const char *hl_status_name(hl_status status);

/* What the status means, in a few words. Never NULL; a string constant. */
HL_API const char *hl_status_text(hl_status status);

#ifdef __cplusplus
}
#endif

#endif
