/* Every fault point, once. X(name) is one point; S(name) is a step: a point before and a point after. The
 * board, the sweeps and the documentation iterate this list; a point that no sweep ever hits fails the sweep.
 */
#ifndef FAULTS_POINTS_H
#define FAULTS_POINTS_H

/* core/weights: every step that changes the file system, and reads that decide. Grouped by what they are part
 * of. */
#define HL_FAULT_POINTS_WEIGHTS(X, S)                                                                        \
    S(weights_folder_make)       /* storage: a folder of the domain */                                       \
    S(weights_document_open)     /* storage: the file of a new document */                                   \
    S(weights_document_write)    /* storage */                                                               \
    X(weights_write_short)       /* storage: how much one write is offered */                                \
    S(weights_document_sync)     /* storage */                                                               \
    S(weights_document_seal)     /* storage: chmod 0444 */                                                   \
    S(weights_document_rename)   /* storage: over the old document */                                        \
    S(weights_folder_sync)       /* storage */                                                               \
    S(weights_lock_open)         /* lock */                                                                  \
    S(weights_read)              /* storage: reading a document */                                           \
    S(weights_payload_read)      /* store: reading a payload to hash it */                                   \
    S(weights_entry_find)        /* store: an artifact's folder, looked for */                               \
    S(weights_entry_open)        /* store: an artifact's folder */                                           \
    S(weights_deny_open)         /* store: a deny marker, looked for */                                      \
    S(weights_deny_write)        /* store: a deny marker, created */                                         \
    S(weights_deny_remove)       /* store */                                                                 \
    S(weights_sticky_set)        /* store: the folder's invalid bit */                                       \
    S(weights_build_folder)      /* store: mkdir tmp/KEY.PID.UUID */                                         \
    S(weights_payload_open)      /* store */                                                                 \
    S(weights_payload_reserve)   /* store */                                                                 \
    S(weights_payload_write)     /* store */                                                                 \
    S(weights_payload_seal)      /* store: chmod 0444 */                                                     \
    S(weights_payload_sync)      /* store */                                                                 \
    S(weights_build_mark)        /* store: chmod 01755 of a finished build */                                \
    S(weights_build_sync)        /* store */                                                                 \
    S(weights_publish_rename)    /* store: the build becomes the artifact */                                 \
    S(weights_publish_harden)    /* store: chmod 0555, which clears the invalid bit: the logical commit */   \
    S(weights_publish_sync)      /* store: entry, tmp/ and artifacts/ */                                     \
    S(weights_quarantine_open)   /* store: write permission for the move */                                  \
    S(weights_quarantine_rename) /* store */                                                                 \
    S(weights_quarantine_harden) /* store */                                                                 \
    S(weights_quarantine_sync)   /* store */                                                                 \
    S(weights_clean_rename)      /* store: to a tombstone */                                                 \
    S(weights_remove_unlock)     /* storage: write permission for a folder to be removed */                  \
    S(weights_remove)            /* storage: one unlink or rmdir */

/* core/plan: both processes. */
#define HL_FAULT_POINTS_PLAN(X, S) X(plan_memory_take) /* one array of a plan being compiled or validated */

/* The grant record's transitions and what else is published in a session's grant memory. A transition's point
 * "after" is reached by who has made it. */
#define HL_FAULT_POINTS_GRANT(X, S)                                                                          \
    S(grant_memory_create) /* Manager: a session's grant memory */                                           \
    S(grant_memory_map)    /* engine */                                                                      \
    S(grant_reserve)       /* engine: FREE to RESERVED */                                                    \
    S(grant_submit)        /* engine: the descriptor is complete */                                          \
    S(grant_withdraw)      /* engine: RESERVED to FREE */                                                    \
    S(grant_cancel)        /* engine: the request to cancel */                                               \
    S(grant_claim)         /* engine: GRANTED to ACTIVE */                                                   \
    S(grant_consume)       /* engine: the part has left the bank */                                          \
    S(grant_part_drained)  /* engine: ACTIVE to PART_DRAINED */                                              \
    S(grant_drained)       /* engine: ACTIVE to DRAINED */                                                   \
    S(grant_free)          /* engine: REAPED to FREE */                                                      \
    S(grant_mark)          /* engine: a bit of the dirty bitset; may be lost */                              \
    S(grant_marks_take)    /* Manager: a word of the dirty bitset */                                         \
    S(grant_prepare)       /* Manager: RESERVED to PREPARING */                                              \
    S(grant_first_part)    /* Manager: PREPARING to GRANTED */                                               \
    S(grant_next_part)     /* Manager: PART_DRAINED to GRANTED */                                            \
    S(grant_reject)        /* Manager: PREPARING to REJECTED */                                              \
    S(grant_revoke)        /* Manager: GRANTED to REVOKED */                                                 \
    S(grant_cut_short)     /* Manager: PART_DRAINED to REVOKED */                                            \
    S(grant_reap)          /* Manager: an ended record to REAPED */

/* core/channel, and its signals and slots where they are used. */
#define HL_FAULT_POINTS_CHANNEL(X, S)                                                                        \
    S(channel_bind)               /* Manager: the socket's name */                                           \
    S(channel_listen)             /* Manager: from here on engines can connect */                            \
    S(channel_accept)             /* Manager */                                                              \
    S(channel_connect)            /* engine, tool */                                                         \
    S(channel_send)               /* both: one message */                                                    \
    X(channel_fds_send)           /* Manager: a message that brings descriptors */                           \
    S(channel_receive)            /* both: one look for a message */                                         \
    X(channel_fds_receive)        /* engine, tool: descriptors have come */                                  \
    S(channel_descriptors_create) /* Manager: a session's descriptor memory */                               \
    S(channel_descriptors_map)    /* engine */                                                               \
    S(channel_extent_take)        /* engine: space for a request */                                          \
    S(channel_extent_give)        /* engine: the Manager needs it no more */                                 \
    S(channel_extent_copy)        /* Manager: memory for a request's copy */                                 \
    S(channel_extent_write)       /* Manager: residencies */                                                 \
    S(channel_signal_retirement)  /* engine to Manager; may be lost */                                       \
    S(channel_signal_restore)     /* Manager to engine; may be lost */                                       \
    S(channel_signal_publish)     /* Manager to engine; may be lost */                                       \
    S(channel_slot_pending)       /* engine: a publish slot, IDLE to PENDING */                              \
    S(channel_slot_withdraw)      /* engine: PENDING to IDLE, as it was not accepted */                      \
    S(channel_slot_finish)        /* Manager: PENDING to FINISHED */                                         \
    S(channel_slot_read)          /* engine: FINISHED to IDLE */

/* core/device: every call that hands something to the device, or takes or gives back something of its. Either
 * process, either device. */
#define HL_FAULT_POINTS_DEVICE(X, S)                                                                         \
    S(device_open)               /* CUDA: the primary context is retained */                                 \
    S(device_enter)              /* the context becomes the thread's */                                      \
    S(device_mem_alloc)          /* memory */                                                                \
    S(device_mem_free)           /* memory */                                                                \
    S(device_host_register)      /* memory: host pages pinned */                                             \
    S(device_host_unregister)    /* memory */                                                                \
    S(device_host_pointer)       /* memory: its device address */                                            \
    S(device_ipc_export)         /* memory of the engine's */                                                \
    S(device_ipc_import)         /* memory of the engine's, in the Manager */                                \
    S(device_ipc_close)          /* memory of the engine's, in the Manager */                                \
    S(device_stream_create)      /* stream */                                                                \
    S(device_stream_destroy)     /* stream */                                                                \
    S(device_stream_query)       /* stream: what is asked again until it has finished */                     \
    S(device_stream_synchronize) /* stream */                                                                \
    S(device_stream_wait_event)  /* submission */                                                            \
    S(device_stream_wait_value)  /* submission */                                                            \
    S(device_stream_write_value) /* submission */                                                            \
    S(device_event_create)       /* event */                                                                 \
    S(device_event_destroy)      /* event */                                                                 \
    S(device_event_record)       /* submission */                                                            \
    S(device_event_query)        /* event: what is asked again until it has finished */                      \
    S(device_event_synchronize)  /* event */                                                                 \
    S(device_fill)               /* submission */                                                            \
    S(device_copy)               /* submission */                                                            \
    S(device_copy_rows)          /* submission */                                                            \
    S(device_copy_batch)         /* submission: one call of the driver */                                    \
    S(device_gather)             /* submission: a kernel launch */                                           \
    S(device_checksum)           /* submission: a kernel launch */

/* engine: what only this process sees of its steps. */
#define HL_FAULT_POINTS_ENGINE(X, S)                                                                         \
    S(engine_manager_watch)   /* connect: the Manager's process */                                           \
    S(engine_eventfd_create)  /* connect */                                                                  \
    S(engine_retire_start)    /* connect: a thread */                                                        \
    S(engine_courier_start)   /* connect: a thread */                                                        \
    S(engine_worker_start)    /* register: a thread */                                                       \
    S(engine_arena_import)    /* register: a mapping */                                                      \
    S(engine_arena_register)  /* register */                                                                 \
    S(engine_transfer_open)   /* register: the executor */                                                   \
    S(engine_binding_list)    /* register: the binding may be used */                                        \
    S(engine_record_take)     /* start: a record, the leases, the counts */                                  \
    S(engine_follow)          /* start: the worker is given the operation */                                 \
    S(engine_cancel)          /* the user's wish */                                                          \
    S(engine_leases_consume)  /* after the claim */                                                          \
    S(engine_part_copy)       /* after the claim: out of the bank */                                         \
    S(engine_operation_start) /* after the claim: the executor's operation */                                \
    S(engine_part_submit)     /* after the claim: the part's copies */                                       \
    S(engine_outcome_write)   /* before DRAINED: status, bytes, clocks, text */                              \
    S(engine_settle)          /* the user sees the outcome */                                                \
    S(engine_owner_release)   /* a callback: the user may reuse what the operation used */                   \
    S(engine_record_give)     /* the record may serve again */                                               \
    S(engine_publish_admit)   /* publish: a slot, the counts */                                              \
    S(engine_publish_settle)  /* publish: the user sees the outcome */                                       \
    S(engine_loss)            /* the session is lost */                                                      \
    S(engine_unregister)      /* a binding's executor, arenas and GPU are given back */                      \
    S(engine_bye)             /* close: the last request */                                                  \
    S(engine_disconnect)      /* close: mappings and descriptors */

/* manager: every step that takes or gives back something. */
#define HL_FAULT_POINTS_MANAGER(X, S)                                                                        \
    S(manager_arena_create)       /* start */                                                                \
    S(manager_arena_register)     /* start, or the first binding of a GPU */                                 \
    S(manager_publisher_start)    /* start, or the first binding of a GPU: a thread */                       \
    S(manager_dispatch_open)      /* start: its descriptors */                                               \
    S(manager_dispatch_start)     /* start: a thread */                                                      \
    S(manager_watch)              /* a descriptor joins the epoll set */                                     \
    S(manager_session_place)      /* session: one of the table */                                            \
    S(manager_session_process)    /* session: the peer's pidfd */                                            \
    S(manager_session_eventfd)    /* session: one of three signals */                                        \
    S(manager_session_live)       /* session: welcomed */                                                    \
    S(manager_session_detach)     /* session: its channel has gone */                                        \
    S(manager_session_death)      /* session: its process has gone */                                        \
    S(manager_session_free)       /* session: its place and memory are given back */                         \
    S(manager_namespace_take)     /* binding */                                                              \
    S(manager_binding_live)       /* binding */                                                              \
    S(manager_binding_release)    /* binding: its imports are given back */                                  \
    S(manager_lease_create)       /* lease: pins, and bytes of the session's budget */                       \
    S(manager_lease_consume)      /* lease: its pins become an operation's */                                \
    S(manager_lease_return)       /* lease: given back unused */                                             \
    S(manager_lease_expire)       /* lease */                                                                \
    S(manager_lease_drop)         /* lease: with its session */                                              \
    S(manager_permit_take)        /* operation: one of the GPU's restores */                                 \
    S(manager_permit_give)        /* operation */                                                            \
    S(manager_plan_bytes_take)    /* operation */                                                            \
    S(manager_plan_bytes_give)    /* operation */                                                            \
    S(manager_sources_release)    /* operation: pins and their bytes */                                      \
    S(manager_owner_install)      /* operation: it owns its record's grant */                                \
    S(manager_owner_remove)       /* operation: nobody does */                                               \
    S(manager_bank_take)          /* part: space in the bank */                                              \
    S(manager_bank_give)          /* part */                                                                 \
    S(manager_part_place)         /* part: its bytes in the bank */                                          \
    S(manager_part_defer)         /* part: it waits for space */                                             \
    S(manager_quarantine_enter)   /* quarantine */                                                           \
    S(manager_quarantine_release) /* quarantine: an operator's decision */                                   \
    S(manager_publish_accept)     /* publish: it is in the queue */                                          \
    S(manager_block_reserve)      /* publish: a key */                                                       \
    S(manager_block_take)         /* publish: arena space */                                                 \
    S(manager_block_complete)     /* publish: a block can be found */                                        \
    S(manager_block_abandon)      /* publish: key and space are given back */                                \
    S(manager_block_evict)        /* publish, start of a block: the one that is worth least */               \
    S(manager_stop)               /* nothing more is admitted */

#define HL_FAULT_POINTS(X, S)                                                                                \
    HL_FAULT_POINTS_WEIGHTS(X, S)                                                                            \
    HL_FAULT_POINTS_PLAN(X, S)                                                                               \
    HL_FAULT_POINTS_GRANT(X, S)                                                                              \
    HL_FAULT_POINTS_CHANNEL(X, S)                                                                            \
    HL_FAULT_POINTS_DEVICE(X, S)                                                                             \
    HL_FAULT_POINTS_ENGINE(X, S)                                                                             \
    HL_FAULT_POINTS_MANAGER(X, S)

#endif
