/* prefix_index.h: maps prefixes to pages: a tree whose nodes are full blocks of 64 tokens.
 *
 * The key of a node is its parent (the previous block of the sequence) and its 64 tokens. A hash selects the bucket,
 * and all tokens are compared. So the path from the root to a node is the whole prefix, at absolute positions. A node
 * has a page for each KV group, or lacks it: pages behind a window are evicted before others of the prefix.
 *
 * It may also have a slot: the state of recurrent layers after the block (states.h). Slots are numbered after the
 * pages.
 *
 * A node exists as long as it has a page or slot, a child or a holder (a table that published or found it last).
 *
 * Pages that no table holds are idle and in a list, least recently used first; slots are in another list. A table
 * releases its pages from the end of the sequence, so a page of a group without window is evicted after those of the
 * blocks that follow it. */
#ifndef IV_KV_PREFIX_INDEX_H
#define IV_KV_PREFIX_INDEX_H

#include "base/status.h"
#include "numerics/attention.h"

#define IV_NO_PAGE UINT32_MAX
#define IV_NO_NODE UINT32_MAX
#define IV_FIRST_ROOT 0x80000000u /* numbers from here on are no nodes */

/* What the first block of a sequence has for a parent: blocks below different roots are never equal, as their pages
 * were computed with different weights. IV_NO_NODE is the root of the base. */
static inline bool iv_prefix_is_root(uint32_t node) { return node >= IV_FIRST_ROOT; }

typedef struct iv_prefix_node {
    uint32_t parent;                   /* a root: the first block of a sequence */
    uint32_t next;                     /* in the bucket, or among the unused nodes */
    uint32_t children, holders, pages; /* how many it has; pages: and slots */
    int32_t tokens[IV_ATTENTION_BLOCK];
} iv_prefix_node;

typedef struct iv_prefix_page {
    uint32_t node;         /* IV_NO_NODE: not in the index */
    uint32_t group;        /* of the node's pages; the slot comes after the last */
    uint32_t older, newer; /* in the list of idle pages */
    bool idle;
} iv_prefix_page;

typedef enum iv_prefix_kind { IV_PREFIX_PAGE, IV_PREFIX_SLOT } iv_prefix_kind;

typedef struct iv_prefix_list {
    uint32_t oldest, newest;
    size_t count;
} iv_prefix_list;

typedef struct iv_prefix_index {
    size_t page_count, slot_count, node_count, groups, bucket_count; /* buckets: a power of two */
    iv_prefix_page *pages;                                           /* [page_count + slot_count] */
    iv_prefix_node *nodes;                                           /* [node] */
    uint32_t *of_node;      /* [node][groups + 1]: its pages and its slot, or IV_NO_PAGE */
    uint32_t *buckets;      /* the first node of each */
    uint32_t unused;        /* the first unused node */
    iv_prefix_list idle[2]; /* of pages, of slots */
    size_t indexed;         /* pages and slots */
} iv_prefix_index;

/* Allocates entries for the pages and slots of a pool, and nodes. With one group, as many nodes as pages suffice. */
iv_status iv_prefix_index_open(iv_prefix_index *x, size_t pages, size_t slots, size_t groups, size_t nodes,
                               iv_error *err);
void iv_prefix_index_close(iv_prefix_index *x);

/* The node of these 64 tokens after `parent`; IV_NO_NODE if there is none. */
uint32_t iv_prefix_find(const iv_prefix_index *x, uint32_t parent, const int32_t *tokens);

/* Adds a node, which `parent` does not have yet. IV_NO_NODE: all nodes are in use. The caller gives it a page or a
 * holder. */
uint32_t iv_prefix_add(iv_prefix_index *x, uint32_t parent, const int32_t *tokens);

/* A held page becomes the node's page of a group, which the node lacks. */
void iv_prefix_put(iv_prefix_index *x, uint32_t node, size_t group, uint32_t page);

static inline uint32_t iv_prefix_page_of(const iv_prefix_index *x, uint32_t node, size_t group) {
    return x->of_node[node * (x->groups + 1) + group];
}
static inline bool iv_prefix_has(const iv_prefix_index *x, uint32_t page) { return x->pages[page].node != IV_NO_NODE; }

/* A table holds a node, or no longer; a root is fine. */
void iv_prefix_hold(iv_prefix_index *x, uint32_t node);
void iv_prefix_let_go(iv_prefix_index *x, uint32_t node);

/* The last holder of a page of the index released it, or a first one took it. */
void iv_prefix_mark_idle(iv_prefix_index *x, uint32_t page);
void iv_prefix_mark_held(iv_prefix_index *x, uint32_t page);

/* Removes the least recently used idle page, or slot, from the index; IV_NO_PAGE if none is idle. */
uint32_t iv_prefix_evict(iv_prefix_index *x, iv_prefix_kind kind);

/* Removes an idle page or slot from the index. */
void iv_prefix_remove(iv_prefix_index *x, uint32_t page);

#endif
