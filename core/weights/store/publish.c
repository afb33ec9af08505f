/* A finished build becomes the artifact. One rename makes it visible, still marked as in transition; clearing
 * the mark is the commit. What fails behind the rename cannot be undone by another rename alone, so it is
 * contained: marked again and moved to quarantine, or, where even that fails, reported as uncertain and left
 * as it is. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/weights/store/departure.h"
#include "faults/hook.h"

#define STAGE "weights.publish"

static hl_status status_of(int sys_errno)
{
    return sys_errno == ENOSPC || sys_errno == EDQUOT ? HL_E_NOSPACE : HL_E_SYSTEM;
}

/* --- an entry that is there already --- */

enum competitor { SAME, DIFFERENT, UNKNOWN };

static enum competitor compare_text(const char *text, size_t bytes, const struct hl_build *build,
                                    hl_error *err)
{
    hl_manifest *other = NULL;
    const hl_status status = hl_manifest_parse(text, bytes, &other, err);
    if (status == HL_E_NOMEM)
        return UNKNOWN;
    if (status)
        return DIFFERENT;
    const hl_manifest *const own = build->manifest;
    const bool same =
        other->identity->canonical_bytes == own->identity->canonical_bytes &&
        !memcmp(other->identity->canonical, own->identity->canonical, own->identity->canonical_bytes) &&
        !strcmp(other->content_sha256, own->content_sha256) &&
        !strcmp(other->producer_schema, own->producer_schema) &&
        !strcmp(other->restorer_schema, own->restorer_schema) &&
        !strcmp(other->format_metadata, own->format_metadata);
    hl_manifest_free(other);
    return same ? SAME : DIFFERENT;
}

/* What cannot be an artifact's manifest is no equal one; what cannot be read now may be. */
static enum competitor judge_error(const hl_error *err)
{
    const bool says_something = err->status == HL_E_CORRUPT || err->status == HL_E_LIMIT ||
                                err->status == HL_E_PERMISSION || hl_storage_is_structural(err->sys_errno);
    return says_something ? DIFFERENT : UNKNOWN;
}

static enum competitor compare(hl_weight_store *store, const char *key, const struct hl_build *build,
                               hl_error *err)
{
    int folder = -1;
    char *text = NULL;
    size_t bytes = 0;
    if (hl_storage_open_folder(store->artifacts, key, &folder, err))
        return judge_error(err);
    enum competitor result;
    if (hl_storage_read_document(folder, "manifest.json", HL_WEIGHT_DOCUMENT_BYTES, false, &text, &bytes,
                                 err))
        result = judge_error(err);
    else
        result = compare_text(text, bytes, build, err);
    free(text);
    close(folder);
    return result;
}

/* The build is kept, so that the two can be compared; the entry is not touched. */
static hl_status report_collision(hl_weight_store *store, const char *key, const struct hl_build *build,
                                  hl_weight_failure *failure)
{
    char name[HL_STORE_NAME_BYTES];
    hl_error err;
    const hl_status status =
        HL_WEIGHT_FAIL(failure, PRODUCTION, IDENTITY_COLLISION, false,
                       "artifact %s exists with other content than this build's, which is %s", key,
                       build->manifest->content_sha256);
    if (hl_departure_name(key, HL_REASON_COLLISION, name, &err) == HL_OK &&
        HL_FAULT_STEP(weights_quarantine_rename,
                      renameat(store->tmp, build->name, store->quarantine, name)) == 0) {
        /* The collision is the failure to report, whatever becomes of these. */
        (void)HL_FAULT_STEP(weights_quarantine_harden, fchmod(build->folder, 0555));
        (void)HL_FAULT_STEP(weights_quarantine_sync, fsync(store->quarantine));
    }
    return status;
}

static hl_status meet_competitor(hl_weight_store *store, const char *key, const struct hl_build *build,
                                 hl_weight_failure *failure)
{
    hl_error err;
    switch (compare(store, key, build, &err)) {
    case SAME: {
        /* The entry is the artifact; a build that cannot be removed is swept by the next one. */
        hl_error ignored;
        (void)hl_storage_remove_tree(store->tmp, build->name, &ignored);
        return HL_OK;
    }
    case DIFFERENT:
        return report_collision(store, key, build, failure);
    case UNKNOWN:
        break;
    }
    const hl_status status =
        hl_weight_failure_from(failure, HL_WEIGHT_STAGE_PRODUCTION, HL_WEIGHT_DOMAIN_UNAVAILABLE, true, &err);
    hl_weight_failure_details(failure, "{\"competing_entry\":\"preserved\",\"outcome_uncertain\":true}");
    return status;
}

/* --- behind the rename --- */

/* The mark first, for readers; then the move, which fails without harm to it. */
static hl_status contain(hl_weight_store *store, const char *key, const struct hl_build *build,
                         const hl_error *cause, hl_weight_failure *failure)
{
    hl_error err;
    const bool marked = HL_FAULT_STEP(weights_sticky_set, fchmod(build->folder, S_ISVTX | 0755)) == 0;
    if (hl_quarantine_artifact(store, key, HL_REASON_PUBLICATION, &err) == HL_OK) {
        const hl_status status = hl_weight_failure_from(failure, HL_WEIGHT_STAGE_PRODUCTION,
                                                        HL_WEIGHT_PUBLICATION_FAILED, false, cause);
        hl_weight_failure_details(failure, "{\"containment\":\"quarantined\"}");
        return status;
    }
    const hl_status status = hl_weight_failure_from(failure, HL_WEIGHT_STAGE_PRODUCTION,
                                                    HL_WEIGHT_DOMAIN_UNAVAILABLE, true, cause);
    hl_weight_failure_details(failure, marked ? "{\"containment\":\"marked\",\"outcome_uncertain\":true}"
                                              : "{\"containment\":\"failed\",\"outcome_uncertain\":true}");
    return status;
}

static hl_status synchronise(int folder, const char *what, hl_error *err)
{
    if (HL_FAULT_STEP(weights_publish_sync, fsync(folder)) != 0)
        return HL_FAIL_ERRNO(err, status_of(errno), STAGE, errno, "cannot synchronise %s", what);
    return HL_OK;
}

static hl_status commit(hl_weight_store *store, const char *key, const struct hl_build *build, hl_error *err)
{
    if (HL_FAULT_STEP(weights_publish_harden, fchmod(build->folder, 0555)) != 0)
        return HL_FAIL_ERRNO(err, status_of(errno), STAGE, errno, "cannot make artifact %s immutable", key);
    hl_status status = synchronise(build->folder, "the artifact", err);
    if (!status)
        status = synchronise(store->tmp, "tmp/", err);
    if (!status)
        status = hl_departure_allow(store, key, err);
    return status ? status : synchronise(store->artifacts, "artifacts/", err);
}

/* --- the rename --- */

/* Refuses an entry that is there, atomically where the file system can; elsewhere the artifact lock keeps
 * every cooperating process away between the look and the rename. */
static int rename_build(hl_weight_store *store, const char *key, const char *name)
{
    struct stat st;
    if (renameat2(store->tmp, name, store->artifacts, key, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return -1;
    if (fstatat(store->artifacts, key, &st, AT_SYMLINK_NOFOLLOW) == 0) {
        errno = EEXIST;
        return -1;
    }
    return errno == ENOENT ? renameat(store->tmp, name, store->artifacts, key) : -1;
}

static hl_status publish_locked(hl_weight_store *store, const char *key, struct hl_build *build,
                                hl_weight_failure *failure)
{
    hl_error err;
    struct stat own, st;
    if (fstat(build->folder, &own) != 0) {
        (void)HL_FAIL_ERRNO(&err, HL_E_SYSTEM, STAGE, errno, "cannot look at the build");
        return hl_weight_failure_io(failure, HL_WEIGHT_STAGE_PRODUCTION, &err);
    }
    if (HL_FAULT_STEP(weights_publish_rename, rename_build(store, key, build->name)) != 0) {
        const int rename_errno = errno;
        /* Reported as failed, and yet the build is at its new name. */
        if (fstatat(store->tmp, build->name, &st, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT &&
            hl_departure_is_at(store, key, &own)) {
            (void)HL_FAIL_ERRNO(&err, status_of(rename_errno), STAGE, rename_errno,
                                "the rename to artifacts/%s reported a failure", key);
            return contain(store, key, build, &err, failure);
        }
        if (rename_errno == EEXIST || rename_errno == ENOTEMPTY)
            return meet_competitor(store, key, build, failure);
        (void)HL_FAIL_ERRNO(&err, status_of(rename_errno), STAGE, rename_errno,
                            "cannot move the build to artifacts/%s", key);
        return hl_weight_failure_io(failure, HL_WEIGHT_STAGE_PRODUCTION, &err);
    }
    if (commit(store, key, build, &err) != HL_OK)
        return contain(store, key, build, &err, failure);
    return HL_OK;
}

hl_status hl_store_publish(hl_weight_store *store, const char *key, struct hl_build *build,
                           hl_weight_failure *failure)
{
    hl_error err;
    struct hl_lock lock = HL_LOCK_NONE;
    /* Without a deadline: the work is done, and whoever has the lock is a lookup that ends by itself. */
    if (hl_lock_take(store->locks, HL_LOCK_ARTIFACT, key, HL_LOCK_EXCLUSIVE, HL_LOCK_FOREVER, false, &lock,
                     &err))
        return hl_weight_failure_io(failure, HL_WEIGHT_STAGE_PRODUCTION, &err);
    const hl_status status = publish_locked(store, key, build, failure);
    hl_lock_release(&lock);
    return status;
}
