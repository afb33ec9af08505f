#include <assert.h>

#include "core/arena/ranges.h"

/* An AVL tree of n nodes is lower than 1.45 log2(n + 2); 2^58 ranges of HL_ARENA_ALIGN would fill 64 bits. */
enum { MAX_DEPTH = 96 };

static bool sorts_before(const struct hl_range *a, const struct hl_range *b)
{
    return a->bytes != b->bytes ? a->bytes < b->bytes : a->offset < b->offset;
}

static int height_of(const struct hl_range *range)
{
    return range ? range->height : 0;
}

static void measure(struct hl_range *range)
{
    int left = height_of(range->free.left), right = height_of(range->free.right);
    range->height = (uint8_t)((left > right ? left : right) + 1);
}

static void rotate_left(struct hl_range **link)
{
    struct hl_range *down = *link, *up = down->free.right;
    down->free.right = up->free.left;
    up->free.left = down;
    measure(down);
    measure(up);
    *link = up;
}

static void rotate_right(struct hl_range **link)
{
    struct hl_range *down = *link, *up = down->free.left;
    down->free.left = up->free.right;
    up->free.right = down;
    measure(down);
    measure(up);
    *link = up;
}

/* Restores the balance at *link, whose subtrees are balanced and differ by at most 2. */
static void rebalance(struct hl_range **link)
{
    struct hl_range *top = *link;
    int lean = height_of(top->free.left) - height_of(top->free.right);
    if (lean > 1) {
        if (height_of(top->free.left->free.left) < height_of(top->free.left->free.right))
            rotate_left(&top->free.left);
        rotate_right(link);
    } else if (lean < -1) {
        if (height_of(top->free.right->free.right) < height_of(top->free.right->free.left))
            rotate_right(&top->free.right);
        rotate_left(link);
    } else {
        measure(top);
    }
}

/* Goes up the path as long as heights change; above the first subtree that kept its height nothing can have
 * changed. */
static void rebalance_path(struct hl_range **path[], unsigned depth)
{
    while (depth > 0) {
        struct hl_range **link = path[--depth];
        uint8_t before = (*link)->height;
        rebalance(link);
        if ((*link)->height == before)
            break;
    }
}

void hl_free_tree_insert(struct hl_range **root, struct hl_range *range)
{
    struct hl_range **path[MAX_DEPTH], **link = root;
    unsigned depth = 0;
    while (*link) {
        assert(depth < MAX_DEPTH);
        path[depth++] = link;
        link = sorts_before(range, *link) ? &(*link)->free.left : &(*link)->free.right;
    }
    range->free.left = range->free.right = NULL;
    range->height = 1;
    *link = range;
    rebalance_path(path, depth);
}

void hl_free_tree_remove(struct hl_range **root, struct hl_range *range)
{
    struct hl_range **path[MAX_DEPTH], **link = root;
    unsigned depth = 0;
    while (*link != range) {
        assert(*link && depth < MAX_DEPTH);
        path[depth++] = link;
        link = sorts_before(range, *link) ? &(*link)->free.left : &(*link)->free.right;
    }
    if (!range->free.left || !range->free.right) {
        *link = range->free.left ? range->free.left : range->free.right;
        rebalance_path(path, depth);
        return;
    }
    path[depth++] = link;
    unsigned below = depth; /* where the path goes through range->right, which its successor's takes over */
    struct hl_range **successor_link = &range->free.right;
    while ((*successor_link)->free.left) {
        assert(depth < MAX_DEPTH);
        path[depth++] = successor_link;
        successor_link = &(*successor_link)->free.left;
    }
    struct hl_range *successor = *successor_link;
    *successor_link = successor->free.right;
    successor->free = range->free;
    successor->height = range->height;
    *link = successor;
    if (depth > below)
        path[below] = &successor->free.right;
    rebalance_path(path, depth);
}

struct hl_range *hl_free_tree_fit(struct hl_range *root, uint64_t bytes)
{
    struct hl_range *best = NULL;
    while (root) {
        if (root->bytes >= bytes) {
            best = root;
            root = root->free.left;
        } else {
            root = root->free.right;
        }
    }
    return best;
}

struct hl_range *hl_free_tree_largest(struct hl_range *root)
{
    while (root && root->free.right)
        root = root->free.right;
    return root;
}
