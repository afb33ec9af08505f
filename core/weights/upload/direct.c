/* Pieces that are read in place, beside STAGING, where the lease is on tmpfs. Pinning a page costs a core a
 * fraction of copying it, but registration is serialised in the driver and alone does not keep a link busy;
 * copying alone takes every core. A direct hand claims pieces some way ahead of the workers, pins their pages
 * as REGISTERED does, and the workers pass them by, so tensors still arrive in their order.
 *
 * A worker passes a piece only when it is pinned. When pinning fails, as it does where another upload has
 * pinned the same pages, the piece is the workers' again and the hand ends: nothing depends on it, and a file
 * that was cut short is met by reading it.
 *
 * Two pieces beside each other share the page where they meet, which cannot be pinned twice: a piece is
 * claimed only when it begins behind the one claimed last. */
#include <assert.h>

#include "core/weights/upload/work.h"

struct hl_upload_tuning hl_upload_tuning = {.spin = false, .direct_hands = 1, .direct_ahead = 8};

uint32_t hl_upload_direct_windows(const hl_upload *upload)
{
    const uint64_t windows = upload->options.register_chunk_bytes / upload->options.slot_bytes;
    const uint64_t wanted = (upload->plan.piece_count + 1) / 2;
    const uint64_t most = windows < HL_UPLOAD_WINDOWS ? windows : HL_UPLOAD_WINDOWS;
    return (uint32_t)(wanted < most ? wanted : most);
}

/* Lock held. */
static bool can_claim(const hl_upload *upload, size_t index)
{
    const struct hl_upload_piece *piece = &upload->plan.pieces[index];
    const struct hl_upload_piece *last = &upload->plan.pieces[upload->direct_last];
    if (piece->begin == piece->end)
        return false;
    return !upload->direct_claimed || piece->region != last->region || piece->begin >= last->end;
}

/* Lock held. The window is used in turn, when the device has read what it was claimed for before. */
static bool await_window(hl_upload *upload)
{
    const uint32_t count = upload->direct_count;
    while (upload->error.status == HL_OK && upload->direct_claimed >= count &&
           upload->direct_pieces[upload->direct_claimed % count] >= upload->retired_count)
        pthread_cond_wait(&upload->retired, &upload->lock);
    return upload->error.status == HL_OK;
}

static struct hl_upload_piece *claim(hl_upload *upload)
{
    struct hl_upload_piece *piece = NULL;
    pthread_mutex_lock(&upload->lock);
    if (await_window(upload)) {
        size_t index = upload->taken_count + hl_upload_tuning.direct_ahead;
        index = index < upload->direct_next ? upload->direct_next : index;
        while (index < upload->plan.piece_count && !can_claim(upload, index))
            index++;
        if (index < upload->plan.piece_count) {
            const size_t window = upload->direct_claimed++ % upload->direct_count;
            piece = &upload->plan.pieces[index];
            piece->direct = true;
            piece->window = upload->window_count + (uint32_t)window;
            upload->direct_pieces[window] = upload->direct_last = index;
            upload->direct_next = index + 2; /* else workers would have nothing to do for a while */
        }
    }
    pthread_mutex_unlock(&upload->lock);
    return piece;
}

static bool pin(hl_upload *upload, struct hl_upload_piece *piece)
{
    struct hl_upload_window *window = &upload->windows[piece->window];
    hl_error err;
    if (!window->event && upload->dev->ops->event_create(upload->dev, 0, &window->event, &err))
        return false;
    return hl_upload_registered.prepare(upload, piece, &err) == HL_OK;
}

void hl_upload_direct_pieces(hl_upload *upload)
{
    struct hl_upload_piece *piece;
    bool pinned = true;
    while (pinned && (piece = claim(upload))) {
        pinned = pin(upload, piece);
        pthread_mutex_lock(&upload->lock);
        assert(upload->taken_count <= (size_t)(piece - upload->plan.pieces));
        piece->direct = pinned;
        piece->prepared = pinned;
        if (piece == &upload->plan.pieces[upload->taken_count])
            pthread_cond_signal(&upload->may_take);
        if (pinned && piece == &upload->plan.pieces[upload->submitted_count])
            pthread_cond_signal(&upload->prepared);
        pthread_mutex_unlock(&upload->lock);
    }
}
