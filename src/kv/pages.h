/* pages.h: the memory of keys and values in pages of 64 tokens, and which tables hold which pages. Bookkeeping only.
 *
 * A page is free, held by one or more tables, or idle: held by none but kept in the prefix index until it is needed.
 * Pages of the index are shared and never written: a table writes only after its `shared` leading blocks. A table
 * has the pages of a group with a window only from the first block on that its next token reads. */
#ifndef IV_KV_PAGES_H
#define IV_KV_PAGES_H

#include "kernels/paged_kv.h"
#include "kv/groups.h"
#include "kv/prefix_index.h"
#include "kv/states.h"

/* A page index names a page in every plane. */
typedef struct iv_kv_pool {
    iv_kv_groups groups;
    size_t page_bytes; /* of a plane */
    size_t pages, free_count;
    unsigned char *data; /* [plane][page]; NULL if the pages are in other memory */
    size_t data_bytes;
    uint32_t *free_pages; /* a stack */
    uint32_t *holders;    /* [page]: number of tables that hold it */
    iv_states states;     /* without slots if no layer has a state */
    iv_prefix_index index;
} iv_kv_pool;

/* IV_NO_MEMORY: the message has the bytes. One group of `layers` layers without a window. */
iv_status iv_kv_pool_open(iv_kv_pool *pool, const iv_kv_layout *layout, size_t layers, size_t pages, iv_error *err);
/* layout: of the groups' pages; they have the same bytes. blocks: of all sequences together, at most: a limit for the
 * index, which keeps blocks without pages where every group has a window. states, slots: of layers with a state; NULL:
 * there are none. */
iv_status iv_kv_pool_open_groups(iv_kv_pool *pool, const iv_kv_layout *layout, const iv_kv_groups *groups, size_t pages,
                                 size_t blocks, const iv_state_layout *states, size_t slots, iv_error *err);
void iv_kv_pool_close(iv_kv_pool *pool);

static inline size_t iv_kv_plane_bytes(const iv_kv_pool *p) { return p->pages * p->page_bytes; }
static inline unsigned char *iv_kv_plane(const iv_kv_pool *p, size_t plane) {
    return p->data + plane * iv_kv_plane_bytes(p);
}

/* Pages that a table can allocate: free or idle. */
static inline size_t iv_kv_available(const iv_kv_pool *p) {
    return p->free_count + p->index.idle[IV_PREFIX_PAGE].count;
}

/* The pages of one sequence, in order of position. */
typedef struct iv_kv_table {
    uint32_t *pages;                  /* [group][capacity]; below `first` they are another's by now */
    size_t count, capacity;           /* blocks */
    uint32_t first[IV_KV_GROUPS_MAX]; /* the first block that a group has */
    size_t shared;                    /* leading blocks that are in the index, read-only */
    uint32_t root;                    /* of its prefixes in the index */
    uint32_t node;                    /* the last of them, or the root */
    iv_state_track state;             /* of layers that have one */
} iv_kv_table;

iv_status iv_kv_table_open(iv_kv_table *t, const iv_kv_pool *pool, size_t tokens_max, iv_error *err);

/* Allocates pages until the table covers `tokens` tokens; evicts idle pages when none is free. IV_BUSY, without any
 * allocation, if too few are available. */
iv_status iv_kv_table_grow(iv_kv_table *t, iv_kv_pool *pool, size_t tokens, iv_error *err);

/* No token before position `computed` will be computed again: releases the pages that no later one reads. */
void iv_kv_table_trim(iv_kv_table *t, iv_kv_pool *pool, size_t computed);

/* Before its first block: another root than that of the base. */
void iv_kv_table_use_root(iv_kv_table *t, uint32_t root);

/* Releases every page; those of the index stay in it. The table is empty and may grow again. */
void iv_kv_table_release(iv_kv_table *t, iv_kv_pool *pool);

/* Releases and frees the table. */
void iv_kv_table_close(iv_kv_table *t, iv_kv_pool *pool);

/* The pages of a group, by block. */
static inline const uint32_t *iv_kv_table_group(const iv_kv_table *t, size_t group) {
    return t->pages + group * t->capacity;
}

/* ---- prefixes ---- */

/* The most leading blocks of a sequence below a root, at most `limit`, after which it can continue: the index has all
 * pages that the next token reads, and the state if layers have one. idle[2]: those pages, and slots, that no table
 * holds. */
size_t iv_kv_match(const iv_kv_pool *pool, uint32_t root, const int32_t *tokens, size_t limit, size_t idle[2]);

/* An empty table takes the pages of the first `blocks` blocks of the sequence, as iv_kv_match returned them. */
void iv_kv_attach(iv_kv_table *t, iv_kv_pool *pool, const int32_t *tokens, size_t blocks);

/* Adds the full pages of the first `computed` tokens to the index. If the index has an equal page, the table holds that
 * one instead, so that equal prefixes share memory. */
void iv_kv_publish(iv_kv_table *t, iv_kv_pool *pool, const int32_t *tokens, size_t computed);

/* Pages that only this table holds, which become available when it releases them. */
size_t iv_kv_exclusive_pages(const iv_kv_table *t, const iv_kv_pool *pool);

/* Frees all idle pages. */
void iv_kv_evict_idle(iv_kv_pool *pool);

#endif
