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

#define HL_FAULT_POINTS(X, S) HL_FAULT_POINTS_WEIGHTS(X, S)

#endif
