/* pages.h: the memory of keys and values in pages of 64 tokens, and which tables hold which pages. Bookkeeping only.
 *
 * A page is free, held by one or more tables, or idle: held by none but kept in the prefix index until it is needed.
 * Pages of the index are shared and never written: a table writes only after its `shared` leading pages. */
#ifndef IV_KV_PAGES_H
#define IV_KV_PAGES_H

#include "kernels/paged_kv.h"
#include "kv/prefix_index.h"

/* A page index names a page in every layer. */
typedef struct iv_kv_pool {
    iv_kv_layout layout;
    size_t layers, pages, free_count;
    unsigned char *data; /* [layer][page]; NULL if the pages are in other memory */
    size_t data_bytes;
    uint32_t *free_pages; /* a stack */
    uint32_t *holders;    /* [page]: number of tables that hold it */
    iv_prefix_index index;
} iv_kv_pool;

/* Bytes of one token over all layers. */
size_t iv_kv_token_bytes(const iv_kv_layout *layout, size_t layers);

/* Number of pages for a number of tokens. */
static inline size_t iv_kv_pages_for(size_t tokens) {
    return tokens / IV_ATTENTION_BLOCK + (tokens % IV_ATTENTION_BLOCK != 0);
}

/* IV_NO_MEMORY: the message has the bytes. */
iv_status iv_kv_pool_open(iv_kv_pool *pool, const iv_kv_layout *layout, size_t layers, size_t pages, iv_error *err);
void iv_kv_pool_close(iv_kv_pool *pool);

static inline unsigned char *iv_kv_layer(const iv_kv_pool *p, size_t layer) {
    return p->data + layer * p->pages * p->layout.page_bytes;
}

/* Pages that a table can allocate: free or idle. */
static inline size_t iv_kv_available(const iv_kv_pool *p) { return p->free_count + p->index.idle; }

/* The pages of one sequence, in order of position. */
typedef struct iv_kv_table {
    uint32_t *pages; /* [capacity] */
    size_t count, capacity;
    size_t shared; /* leading pages that are in the index, read-only */
} iv_kv_table;

iv_status iv_kv_table_open(iv_kv_table *t, size_t tokens_max, iv_error *err);

/* Allocates pages until the table covers `tokens` tokens; evicts idle pages when none is free. IV_BUSY, without any
 * allocation, if too few are available. */
iv_status iv_kv_table_grow(iv_kv_table *t, iv_kv_pool *pool, size_t tokens, iv_error *err);

/* Releases every page; those of the index stay in it. The table is empty and may grow again. */
void iv_kv_table_release(iv_kv_table *t, iv_kv_pool *pool);

/* Releases and frees the table. */
void iv_kv_table_close(iv_kv_table *t, iv_kv_pool *pool);

/* ---- prefixes ---- */

/* The number of leading pages of a sequence in the index, at most `limit`; *idle: those that no table holds. */
size_t iv_kv_match(const iv_kv_pool *pool, const int32_t *tokens, size_t limit, size_t *idle);

/* An empty table takes the first `pages` pages of the sequence, as iv_kv_match returned them. */
void iv_kv_attach(iv_kv_table *t, iv_kv_pool *pool, const int32_t *tokens, size_t pages);

/* Adds the full pages of the first `computed` tokens to the index. If the index has an equal page, the table holds that
 * one instead, so that equal prefixes share memory. */
void iv_kv_publish(iv_kv_table *t, iv_kv_pool *pool, const int32_t *tokens, size_t computed);

/* Pages that only this table holds, which become available when it releases them. */
size_t iv_kv_exclusive_pages(const iv_kv_table *t, const iv_kv_pool *pool);

/* Frees all idle pages. */
void iv_kv_evict_idle(iv_kv_pool *pool);

#endif
