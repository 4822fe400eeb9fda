/* prefix_index.h: maps prefixes to pages: a tree whose nodes are full pages.
 *
 * The key of a page is its parent (the previous page of the sequence) and its 64 tokens. A hash selects the bucket, and
 * all tokens are compared. So the path from the root to a page is the whole prefix, at absolute positions.
 *
 * Pages that no sequence holds are idle and in a list, least recently used first. A sequence that holds a page holds
 * its ancestors, and releases descendants first, so the least recently used page never has a child in the index. */
#ifndef IV_KV_PREFIX_INDEX_H
#define IV_KV_PREFIX_INDEX_H

#include "base/status.h"
#include "numerics/attention.h"

#define IV_NO_PAGE UINT32_MAX

typedef struct iv_prefix_node {
    uint32_t parent;       /* IV_NO_PAGE: the first page of a sequence */
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

/* Allocates nodes for every page of a pool. */
iv_status iv_prefix_index_open(iv_prefix_index *x, size_t pages, iv_error *err);
void iv_prefix_index_close(iv_prefix_index *x);

/* The page that holds these 64 tokens after `parent`; IV_NO_PAGE if there is none. */
uint32_t iv_prefix_find(const iv_prefix_index *x, uint32_t parent, const int32_t *tokens);

/* Adds a held page. parent is in the index or IV_NO_PAGE, and has no equal child. */
void iv_prefix_add(iv_prefix_index *x, uint32_t page, uint32_t parent, const int32_t *tokens);

/* The last holder of a page of the index released it, or a first one took it. */
void iv_prefix_mark_idle(iv_prefix_index *x, uint32_t page);
void iv_prefix_mark_held(iv_prefix_index *x, uint32_t page);

/* Removes the least recently used idle page from the index; IV_NO_PAGE if none is idle. */
uint32_t iv_prefix_evict(iv_prefix_index *x);

#endif
