/* prefix_index.h: which pages hold which prefixes: a tree whose nodes are full pages.
 *
 * A page is found by its parent (the page before it in the sequence) and by its 64 tokens, compared one by one; a hash
 * only says where to look. So the way from the root to a page spells the whole prefix, at absolute positions.
 *
 * Pages that no sequence holds are idle, in a list from the longest idle to the latest. A sequence holds a page's
 * ancestors with it and lets go of descendants first, so the longest idle page never has a child in the index. */
#ifndef IV_KV_PREFIX_INDEX_H
#define IV_KV_PREFIX_INDEX_H

#include "base/status.h"
#include "numerics/attention.h"

#define IV_NO_PAGE UINT32_MAX

typedef struct iv_prefix_node {
    uint32_t parent;       /* IV_NO_PAGE: begins a sequence */
    uint32_t next;         /* in the bucket */
    uint32_t older, newer; /* in the list of idle pages */
    uint32_t children;     /* in the index */
    bool indexed, idle;
    int32_t tokens[IV_ATTENTION_BLOCK];
} iv_prefix_node;

typedef struct iv_prefix_index {
    size_t pages, bucket_count; /* buckets: a power of two */
    iv_prefix_node *nodes;      /* [page] */
    uint32_t *buckets;          /* the first page of each */
    uint32_t oldest, newest;    /* idle */
    size_t indexed, idle;
} iv_prefix_index;

/* Room for every page of a pool, taken once. */
iv_status iv_prefix_index_open(iv_prefix_index *x, size_t pages, iv_error *err);
void iv_prefix_index_close(iv_prefix_index *x);

/* The page that holds these 64 tokens after `parent`; IV_NO_PAGE if there is none. */
uint32_t iv_prefix_find(const iv_prefix_index *x, uint32_t parent, const int32_t *tokens);

/* Adds a page that is held. parent is in the index or IV_NO_PAGE, and has no such child yet. */
void iv_prefix_add(iv_prefix_index *x, uint32_t page, uint32_t parent, const int32_t *tokens);

/* The last holder let go of a page of the index, or a first one took it. */
void iv_prefix_rest(iv_prefix_index *x, uint32_t page);
void iv_prefix_wake(iv_prefix_index *x, uint32_t page);

/* Takes the longest idle page out of the index; IV_NO_PAGE if none is idle. */
uint32_t iv_prefix_evict(iv_prefix_index *x);

#endif
