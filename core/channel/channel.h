/* core/channel owns how a Manager and an engine talk outside the grant memory: the Unix socket, the control
 * messages on it, the bootstrap, and the descriptor memory for what does not fit in a message. It calls
 * core/base and (for the layout signature and the descriptors' contents) core/grant. Both manager and engine
 * call it.
 *
 * Socket: AF_UNIX, SOCK_SEQPACKET, mode 0600, in a folder of mode 0700 owned by the user. One message is one
 * packet: a struct hl_message head, a body of fixed layout, nothing else. Requests are answered in order, one
 * reply each, with the request's sequence number; nothing is retransmitted. All integers are little-endian.
 *
 * A message from a peer is hostile until hl_message_check() has passed it: kind, size, fd count, every zero
 * field and every bound. Text is printable ASCII (0x20 to 0x7e), has a NUL, and only zero bytes after it. */
#ifndef CORE_CHANNEL_CHANNEL_H
#define CORE_CHANNEL_CHANNEL_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/device/device.h"
#include "core/layout/layout.h"
#include "hostlane/limits.h"
#include "hostlane/status.h"

#define HL_BOOTSTRAP_VERSION 7u
#define HL_CHANNEL_ABI 11u
#define HL_LIFECYCLE_VERSION 4u
#define HL_CACHE_SCHEMA 9u
/* plan: HL_PLAN_VERSION, grant: HL_GRANT_SCHEMA */

#define HL_MESSAGE_MAGIC 0x4c4e4148u /* "HANL" */

/* X(name): the one list of kinds, in wire order from 1. HELLO and ERROR come first and keep their numbers and
 * layouts in every version, so that peers of different versions can tell each other so. */
#define HL_MESSAGE_KINDS(X)                                                                                  \
    X(HELLO)    /* engine or tool → Manager: versions; answered by WELCOME or ERROR */                     \
    X(ERROR)    /* the request failed: status and text */                                                    \
    X(WELCOME)  /* epoch, token; 5 fds for an engine, none for a tool */                                     \
    X(REGISTER) /* a binding, described in the descriptor memory; answered by REGISTERED with the arenas'    \
                   fds */                                                                                    \
    X(REGISTERED)                                                                                            \
    X(UNREGISTER) /* answered by DONE when no operation of the binding is left */                            \
    X(QUERY)      /* keys in the descriptor memory; answered by LEASE, residency written back there */       \
    X(LEASE)                                                                                                 \
    X(RELEASE) /* a lease that will not be consumed; answered by DONE */                                     \
    X(PUBLISH) /* blocks in the descriptor memory; answered by DONE when accepted; the outcome is in its     \
                  slot */                                                                                    \
    X(ADMIN)   /* tool → Manager: a verb; answered by DONE with one fd, a memfd of JSON */                 \
    X(BYE)     /* orderly close, a head and nothing else; answered by DONE */                                \
    X(DONE)

enum hl_message_kind {
    HL_MESSAGE_NONE,
#define HL_MESSAGE_ENUM(name) HL_MESSAGE_##name,
    HL_MESSAGE_KINDS(HL_MESSAGE_ENUM)
#undef HL_MESSAGE_ENUM
        HL_MESSAGE_KIND_COUNT
};

struct hl_message {
    uint32_t magic;
    uint32_t kind;
    uint32_t bytes;    /* of head and body */
    uint32_t sequence; /* the requester's; replies repeat it */
};

enum hl_peer_role { HL_PEER_ENGINE = 1, HL_PEER_TOOL = 2 };

struct hl_hello {
    struct hl_message head;
    uint32_t bootstrap_version;
    uint32_t channel_abi;
    uint32_t lifecycle;
    uint32_t plan_version;
    uint32_t cache_schema;
    uint32_t grant_schema;
    uint64_t layout_signature; /* hl_grant_layout_signature() combined with hl_channel_layout_signature() */
    uint32_t role;             /* hl_peer_role */
    uint32_t zero;
    char name[64]; /* for people: "vllm rank 0"; NUL-terminated, printable */
};

/* With the role ENGINE five fds come along, in this order. */
enum hl_bootstrap_fd {
    HL_FD_DESCRIPTORS, /* descriptor memory */
    HL_FD_GRANTS,      /* grant memory */
    HL_FD_RESTORE,     /* eventfd, Manager → engine: look at your records */
    HL_FD_RETIREMENT,  /* eventfd, engine → Manager: take the dirty bitset */
    HL_FD_PUBLISH,     /* eventfd, Manager → engine: look at your publish slots */
    HL_BOOTSTRAP_FDS
};

struct hl_welcome {
    struct hl_message head;
    uint64_t epoch;
    unsigned char token[16];
    uint32_t session; /* index, for messages to people */
    uint32_t lease_ttl_ms;
};

/* Where in the descriptor memory a request's body lies. */
struct hl_extent {
    uint32_t offset; /* a multiple of 8 */
    uint32_t bytes;
};

struct hl_register {
    struct hl_message head;
    struct hl_extent extent; /* a binding description, below */
};

/* fds: the arenas', in the order of `arenas`. A Manager has at most HL_ARENA_IMPORTS arenas. */
struct hl_registered {
    struct hl_message head;
    uint32_t binding; /* the Manager's handle on it, of this session */
    uint32_t arena_count;
    uint64_t chunk_bytes;
    struct {
        uint64_t arena_id;
        uint64_t bytes;
    } arenas[HL_ARENA_IMPORTS];
};

struct hl_unregister {
    struct hl_message head;
    uint32_t binding;
    uint32_t zero;
};

struct hl_query_message {
    struct hl_message head;
    uint32_t binding;
    uint32_t group;             /* storage group */
    uint32_t key_count;         /* 1 to HL_QUERY_KEYS */
    uint32_t ttl_ms;            /* 0: the Manager's default */
    struct hl_extent keys;      /* key_count × HL_KEY_BYTES, in prefix order */
    struct hl_extent residency; /* key_count bytes, written by the Manager: an hl_residency each */
};

enum hl_residency { HL_RESIDENT_NOT, HL_RESIDENT_DRAM, HL_RESIDENT_SSD, HL_RESIDENT_ENCODED };

struct hl_lease_message {
    struct hl_message head;
    uint64_t lease; /* 0 when hits is 0 */
    uint32_t hits;  /* longest resident prefix */
    uint32_t ttl_ms;
    uint64_t bytes; /* reserved against the session's budget */
};

struct hl_release {
    struct hl_message head;
    uint64_t lease;
};

struct hl_publish_message {
    struct hl_message head;
    uint32_t binding;
    uint32_t group;
    uint32_t block_count; /* 1 to HL_PUBLISH_BLOCKS */
    uint32_t slot; /* of the descriptor memory's publish slots, in state PENDING, chosen by the engine */
    struct hl_extent blocks; /* block_count × struct hl_publish_block */
};

struct hl_publish_block {
    unsigned char key[HL_KEY_BYTES];
    uint32_t page; /* source page */
    uint32_t zero;
};

enum hl_admin_verb {
    HL_ADMIN_STATUS = 1,
    HL_ADMIN_SESSIONS,
    HL_ADMIN_ARENAS,
    HL_ADMIN_QUARANTINE,
    HL_ADMIN_RELEASE,
    HL_ADMIN_CHECK
};

struct hl_admin {
    struct hl_message head;
    uint32_t verb;
    uint32_t confirmed;    /* RELEASE: 1, the operator said so explicitly */
    uint64_t operation[3]; /* RELEASE: epoch, record << 32 | generation, first 8 bytes of the token */
    char operator_name[64];
};

struct hl_done {
    struct hl_message head;
    uint64_t value; /* what the request's comment says; else 0 */
};

struct hl_error_message {
    struct hl_message head;
    int32_t status;
    uint32_t zero;
    char text[240];
};

/* --- the socket --- */

/* Binds and listens at `path`, whose folder is made with mode 0700 when missing, and refused
 * (HL_E_PERMISSION) when it is not the user's or others can enter it. A stale socket of a dead Manager is
 * replaced; a live one is HL_E_BUSY. */
hl_status hl_channel_listen(const char *path, int *fd, hl_error *err);
/* Accepts one connection (close-on-exec, non-blocking). HL_PENDING when there is none; HL_E_PERMISSION, and
 * the connection closed, for another user. *pid and *uid say who the peer is in both cases (and are written
 * in no other). HL_E_SYSTEM otherwise, with EMFILE while this process has no descriptor left: the connection
 * then still waits. */
hl_status hl_channel_accept(int listener, int *fd, pid_t *pid, uid_t *uid, hl_error *err);
/* Connects, without waiting; the new socket is blocking. HL_E_PEER when nobody listens, HL_E_BUSY when the
 * Manager has as many connections waiting as it takes, HL_E_PERMISSION when the socket or its listener is
 * another user's. *pid is the Manager's. */
hl_status hl_channel_connect(const char *path, int *fd, pid_t *pid, hl_error *err);

/* Sends one message, of the size in its head, with its fds (borrowed). HL_E_PEER when the peer has gone;
 * HL_E_BUSY when a non-blocking socket's buffer is full: nothing was sent. HL_E_INVALID for a size that no
 * message has or an fd that is not open, HL_E_LIMIT for too many. Never raises SIGPIPE. */
hl_status hl_channel_send(int fd, const void *message, const int *fds, unsigned fd_count, hl_error *err);

/* A received message: at most HL_MESSAGE_BYTES and HL_MESSAGE_FDS. fds are close-on-exec and the packet's:
 * hl_packet_close_fds() closes them, but those that its owner has taken out by putting -1 there. */
struct hl_packet {
    _Alignas(8) unsigned char bytes[HL_MESSAGE_BYTES];
    size_t size;
    int fds[HL_MESSAGE_FDS];
    unsigned fd_count;
};

/* Receives one message. HL_PENDING when a non-blocking socket has none; HL_E_PEER at the end; HL_E_PROTOCOL
 * for a packet that was cut (too long, or more fds than HL_MESSAGE_FDS or than this process can open: all are
 * closed) or is empty. Unless it returns HL_OK the packet is empty: size and fd_count are 0. */
hl_status hl_channel_receive(int fd, struct hl_packet *packet, hl_error *err);
/* The same on any socket, waiting up to deadline_ns (hl_clock_ns time; negative: for ever). HL_E_TIMEOUT. */
hl_status hl_channel_receive_until(int fd, struct hl_packet *packet, int64_t deadline_ns, hl_error *err);
void hl_packet_close_fds(struct hl_packet *packet);

/* Checks a packet as a message: magic, a known kind, `bytes` equal to the packet's and to the kind's fixed
 * size, the fd count that the kind may carry, zero fields zero, names terminated and printable, counts within
 * limits.h. On success the packet may be read as the kind's struct. HL_E_PROTOCOL names the field; the fds
 * stay the packet's. A HELLO of another bootstrap version is HL_E_VERSION, whatever else it holds. */
hl_status hl_message_check(const struct hl_packet *packet, enum hl_message_kind *kind, hl_error *err);

/* HL_E_VERSION naming the first difference with both numbers. */
hl_status hl_hello_check(const struct hl_hello *hello, hl_error *err);
/* A complete HELLO with sequence 0. The name (NULL: none) is cut to fit, its unprintable bytes become '?'. */
void hl_hello_fill(struct hl_hello *hello, enum hl_peer_role role, const char *name);

/* Fills the head of a message of `kind`; the body is the caller's. */
void hl_message_head(void *message, enum hl_message_kind kind, uint32_t sequence);
size_t hl_message_bytes(enum hl_message_kind kind); /* the fixed size; 0 when there is no such kind */
const char *hl_message_kind_name(enum hl_message_kind kind); /* "HELLO"; "unknown" */
/* Turns an hl_error into an ERROR reply and back. read() returns the peer's status, with its text and the
 * stage "channel.peer" in *err; HL_E_PROTOCOL when the message (which need not have been checked) carries
 * no failure. */
void hl_error_message_fill(struct hl_error_message *message, uint32_t sequence, const hl_error *err);
hl_status hl_error_message_read(const struct hl_error_message *message, hl_error *err);

/* Computed from the kinds' numbers and the sizes and offsets of everything that this room puts on the wire.
 */
uint64_t hl_channel_layout_signature(void);

/* --- the descriptor memory ---
 *
 * A sealed memfd of HL_DESCRIPTOR_BYTES: the publish slots, then space that the engine gives out to
 * its requests. An extent belongs to the request from its announcement until the reply (for a restore: until
 * the record has left PREPARING); the Manager copies it out before it looks at it, and writes only
 * residencies and publish slots. */
#define HL_DESCRIPTOR_HEADER_BYTES (HL_PUBLISH_SLOTS * 128u)

enum hl_publish_state { HL_PUBLISH_IDLE, HL_PUBLISH_PENDING, HL_PUBLISH_FINISHED };

struct hl_publish_slot {
    /* engine: IDLE → PENDING before it sends PUBLISH, FINISHED → IDLE when read. Manager: PENDING → FINISHED.
     */
    _Atomic uint32_t state;
    /* Manager, before FINISHED */
    int32_t status;
    uint32_t stored;  /* blocks published now */
    uint32_t present; /* blocks that were there already */
    uint64_t bytes;
    char text[HL_GRANT_TEXT_BYTES];
    uint64_t zero[2];
};
_Static_assert(sizeof(struct hl_publish_slot) == 128, "two cache lines");

typedef struct hl_descriptors hl_descriptors;
hl_status hl_descriptors_create(hl_descriptors **descriptors, hl_error *err); /* Manager */
/* Engine; the fd is duplicated. HL_E_PERMISSION when the memory is not sealed against every change of size or
 * cannot be written, HL_E_RANGE when its size is another. */
hl_status hl_descriptors_map(int fd, hl_descriptors **descriptors, hl_error *err);
void hl_descriptors_close(hl_descriptors *descriptors); /* NULL is allowed */
int hl_descriptors_fd(const hl_descriptors *descriptors);
struct hl_publish_slot *hl_descriptors_slot(hl_descriptors *descriptors,
                                            uint32_t slot); /* slot < HL_PUBLISH_SLOTS */
/* Engine: space for a request, 64-byte aligned, holding whatever its last user left; extent->bytes is
 * `bytes`. Thread-safe. HL_E_BUDGET when the memory is full, HL_E_LIMIT when it could never hold as much,
 * HL_E_INVALID for 0 bytes, HL_E_STATE on the Manager's side. */
hl_status hl_descriptors_take(hl_descriptors *descriptors, uint32_t bytes, struct hl_extent *extent,
                              void **at, hl_error *err);
/* Engine: asserts that exactly this was taken. Thread-safe. */
void hl_descriptors_give(hl_descriptors *descriptors, struct hl_extent extent);
/* Manager: copies a peer's extent out into fresh memory (free()). HL_E_PROTOCOL when it is empty,
 * misaligned, outside, overlaps the header, or is larger than max_bytes. */
hl_status hl_descriptors_copy(const hl_descriptors *descriptors, struct hl_extent extent, size_t max_bytes,
                              void **copy, hl_error *err);
/* Manager: writes into a peer's extent, with the same checks; HL_E_PROTOCOL too when it is smaller than
 * `size`.
 */
hl_status hl_descriptors_write(hl_descriptors *descriptors, struct hl_extent extent, const void *bytes,
                               size_t size, hl_error *err);

/* --- what lies in extents --- */

/* Binding description: this head, then `tensor_count` struct hl_wire_tensor, then `component_count` struct
 * hl_layout_component as in layout.h. */
struct hl_wire_binding {
    char instance[HL_NAME_BYTES]; /* engine instance; with rank and device it names a binding */
    char model[HL_NAME_BYTES];
    unsigned char model_digest[32]; /* of what else decides the meaning of bytes: weights, adapters */
    uint32_t rank;
    uint32_t element_bytes; /* 0: not said; else as in `content` where that says */
    unsigned char device_uuid[16];
    uint32_t layers;
    uint32_t page_tokens;
    uint32_t group_count;
    uint32_t tensor_count;
    uint32_t component_count;
    uint32_t zero;
    struct hl_layout_group groups[HL_LAYOUT_GROUPS]; /* zero from group_count on */
    struct hl_layout_content content;
    uint32_t zero_tail;
};
/* An export of all zeros: the tensor has none. Else the tensor lies in the exported allocation. */
struct hl_wire_tensor {
    struct hl_layout_tensor tensor;
    struct hl_ipc_export export;
};

/* Restore descriptor: this head, then for each lease its pages (uint32_t each, in the lease's order), padded
 * with zeros to 8 bytes at the end only. */
struct hl_wire_restore {
    uint32_t binding;
    uint32_t lease_count; /* 1 to HL_RESTORE_LEASES */
    struct {
        uint64_t lease;      /* not 0, and each once */
        uint32_t page_count; /* 1 to the lease's hits: the first so many blocks */
        uint32_t zero;
    } leases[HL_RESTORE_LEASES]; /* zero from lease_count on */
};

/* Both encoders write `size` bytes, which must be what the *_bytes() function says, at an 8-byte aligned
 * `out`, and refuse (HL_E_INVALID, HL_E_LIMIT) what the decoder would refuse as a structure; whether the
 * layout is valid is the decoder's to say. Padding, tails of names and zero fields come out zero. *_bytes()
 * is 0 for counts beyond the limits.
 *
 * The decoders are for private copies (8-byte aligned, as malloc() gives them): counts against limits.h, the
 * exact size, zero fields, text; HL_E_PROTOCOL names the field. Pointers they return point into `bytes`. */
size_t hl_wire_binding_bytes(uint32_t tensor_count, uint32_t component_count);
hl_status hl_wire_binding_encode(const struct hl_wire_binding *head, const struct hl_wire_tensor *tensors,
                                 const struct hl_layout_component *components, void *out, size_t size,
                                 hl_error *err);
/* *layout is validated (errors of hl_layout_from_components()); free it with hl_layout_free(). */
hl_status hl_wire_binding_decode(const void *bytes, size_t size, struct hl_wire_binding *head,
                                 const struct hl_wire_tensor **tensors, hl_layout **layout, hl_error *err);

size_t hl_wire_restore_bytes(uint64_t page_count); /* of all leases; at most HL_PLAN_BLOCKS */
hl_status hl_wire_restore_encode(const struct hl_wire_restore *head, const uint32_t *pages,
                                 uint64_t page_count, void *out, size_t size, hl_error *err);
hl_status hl_wire_restore_decode(const void *bytes, size_t size, struct hl_wire_restore *head,
                                 const uint32_t **pages, uint64_t *page_count, hl_error *err);

#endif
