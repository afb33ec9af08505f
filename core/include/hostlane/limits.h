/* Every fixed bound of Hostlane, named once. A request beyond one is refused with HL_E_LIMIT (or the code
 * that the comment names) before anything is changed. Sizes are bytes unless the name says otherwise. */
#ifndef HOSTLANE_LIMITS_H
#define HOSTLANE_LIMITS_H

#define HL_KIB (1024ull)
#define HL_MIB (1024ull * HL_KIB)
#define HL_GIB (1024ull * HL_MIB)

/* Arenas. A registration call of 512 GiB and more fails in the driver (16 bytes of page table for each 4 KiB
 * page in one kernel allocation), hence chunks; no copy may cross from one chunk into the next. */
#define HL_ARENA_MAX_BYTES (16ull * 1024 * HL_GIB)
#define HL_ARENA_CHUNK_BYTES (64ull * HL_GIB)
#define HL_ARENA_ALIGN 256u /* every allocation starts and ends on it: bulk copies need 16, lines are 128 */
#define HL_ARENA_TOUCH_THREADS 64u /* most threads that first-touch one arena */
#define HL_ARENA_IMPORTS 64u       /* arenas one client may have mapped */

/* Layouts. */
#define HL_LAYOUT_LAYERS 1024u     /* layers in one binding */
#define HL_LAYOUT_COMPONENTS 4096u /* K, V, latent, … buffers in one binding */
#define HL_LAYOUT_TENSORS 4096u    /* registered tensors in one binding */
#define HL_LAYOUT_GROUPS 16u       /* storage groups in one binding */
#define HL_LAYOUT_PAGE_TOKENS 4096u
#define HL_LAYOUT_CONFIG_BYTES (1ull * HL_MIB) /* a model's config.json */

/* Plans. */
#define HL_PLAN_PART_BYTES (1ull * HL_MIB)       /* one encoded part, and the plan bank it goes through */
#define HL_PLAN_OPERATION_BYTES (32ull * HL_MIB) /* all parts of one operation */
#define HL_PLAN_SESSION_BYTES (64ull * HL_MIB)   /* all prepared parts of one session, else HL_E_BUDGET */
#define HL_PLAN_BLOCKS (1u << 20)                /* blocks in one restore */

/* The executor. */
#define HL_TRANSFER_MAX_SMS 64u        /* most thread blocks the gather kernel may be given */
#define HL_TRANSFER_BATCH_COPIES 4096u /* copies handed to the driver in one batch call */

/* Sessions and grants. */
#define HL_GRANT_RECORDS 1024u  /* records of a session: operations it may have pending */
#define HL_GRANT_TEXT_BYTES 88u /* error text inside a record */
#define HL_SESSIONS 64u         /* live sessions and unresolved ones; beyond it HL_E_BUDGET */
#define HL_GPU_RESTORES 128u    /* admitted restores a GPU, held through quarantine; HL_E_BUDGET */
#define HL_SESSION_BINDINGS 64u /* registered instances of one session */
#define HL_DESCRIPTOR_BYTES (16ull * HL_MIB) /* descriptor memory of one session */
#define HL_MESSAGE_BYTES 4096u               /* one control message */
#define HL_MESSAGE_FDS 64u                   /* file descriptors with one control message */
#define HL_QUERY_KEYS (1u << 17)             /* keys in one query */
#define HL_RESTORE_LEASES 64u                /* leases that one restore consumes */
#define HL_PUBLISH_BLOCKS (1u << 16)         /* blocks in one publish */
#define HL_PUBLISH_SLOTS 64u                 /* publishes of one session that may be pending */
#define HL_KEY_BYTES 32u                     /* an engine's block hash, zero-padded */
#define HL_LEASE_TTL_MS 30000u               /* default time to live of a lease */
#define HL_LEASES_MOST (1u << 20)            /* live leases of one Manager */
#define HL_NAMESPACES_MOST 65536u            /* namespaces of one Manager */
#define HL_INDEX_BLOCKS 10000000u            /* blocks in one Manager's index */

/* What an entry of the index has bits for. */
#define HL_INDEX_NAMESPACES (1u << 24) /* namespace ids are below it */
#define HL_INDEX_GROUPS (1u << 8)      /* groups are below it */
#define HL_INDEX_ARENAS (1u << 16)     /* arena indices are below it */
#define HL_INDEX_BLOCK_BYTES ((1ull << 36) - 1)
#define HL_INDEX_PINS ((1u << 20) - 1) /* pins of one entry; the next is HL_E_LIMIT */
#define HL_INDEX_SWEEP 65536u          /* places that one step of a namespace's removal looks at */

/* Host weights. */
#define HL_WEIGHT_DOCUMENT_BYTES (64ull * HL_MIB)  /* manifest.json and every smaller document */
#define HL_WEIGHT_IDENTITY_BYTES (1ull * HL_MIB)   /* an identity, as text and as canonical bytes */
#define HL_WEIGHT_TENSORS (1u << 20)               /* tensors in one artifact */
#define HL_WEIGHT_FILES 4096u                      /* payload files in one artifact */
#define HL_WEIGHT_RANK 64u                         /* dimensions of one tensor */
#define HL_WEIGHT_FILE_NAME_BYTES 256u             /* a payload's name with its NUL */
#define HL_WEIGHT_HASH_THREADS 8u                  /* most threads that hash one artifact, unless asked for */
#define HL_WEIGHT_HASH_CHUNK_BYTES (8ull * HL_MIB) /* one read while hashing */
#define HL_WEIGHT_QUARANTINE_WAIT_MS 500u          /* a builder's wait for readers of a replaced artifact */
#define HL_UPLOAD_THREADS 64u                      /* threads that copy for one upload */
#define HL_UPLOAD_SLOT_BYTES (1ull * HL_GIB)       /* one slot of an upload's ring */
#define HL_SAFETENSORS_HEADER_BYTES (100ull * 1000 * 1000) /* the format's own bound on N */
#define HL_SAFETENSORS_DATA_ALIGN 4096u                    /* where data start in the aligned layout */

/* Text. */
#define HL_NAME_BYTES 128u /* a tensor, layer or model name with its NUL */

#endif
