/* pages.h: the memory of keys and values, in pages of 64 tokens, and who holds which page. Bookkeeping only.
 *
 * A page is free, or held by one table or more, or idle: held by none but kept in the prefix index, free on demand.
 * Pages of the index are shared and never written: a table writes only behind its `shared` leading pages. */
#ifndef IV_KV_PAGES_H
#define IV_KV_PAGES_H

#include "kernels/paged_kv.h"
#include "kv/prefix_index.h"

/* One page number names a page in every layer. */
typedef struct iv_kv_pool {
    iv_kv_layout layout;
    size_t layers, pages, free_count;
    unsigned char *data; /* [layer][page]; NULL where the layout is of pages elsewhere */
    size_t data_bytes;
    uint32_t *free_pages; /* a stack: the last freed is the next given */
    uint32_t *holders;    /* [page]: how many tables hold it */
    iv_prefix_index index;
} iv_kv_pool;

/* Bytes that one token takes over all layers. */
size_t iv_kv_token_bytes(const iv_kv_layout *layout, size_t layers);

/* Pages that hold so many tokens. */
static inline size_t iv_kv_pages_for(size_t tokens) {
    return tokens / IV_ATTENTION_BLOCK + (tokens % IV_ATTENTION_BLOCK != 0);
}

/* IV_NO_MEMORY names the bytes wanted. */
iv_status iv_kv_pool_open(iv_kv_pool *pool, const iv_kv_layout *layout, size_t layers, size_t pages, iv_error *err);
void iv_kv_pool_close(iv_kv_pool *pool);

static inline unsigned char *iv_kv_layer(const iv_kv_pool *p, size_t layer) {
    return p->data + layer * p->pages * p->layout.page_bytes;
}

/* Pages that a table could get: free or idle. */
static inline size_t iv_kv_available(const iv_kv_pool *p) { return p->free_count + p->index.idle; }

/* The pages of one sequence, in order of position. */
typedef struct iv_kv_table {
    uint32_t *pages; /* [capacity] */
    size_t count, capacity;
    size_t shared; /* leading pages that are in the index: read only */
} iv_kv_table;

iv_status iv_kv_table_open(iv_kv_table *t, size_t tokens_max, iv_error *err);

/* Makes the table cover `tokens` tokens, evicting idle pages where none is free. IV_BUSY, with nothing taken, if the
 * pool has too few of both. */
iv_status iv_kv_table_grow(iv_kv_table *t, iv_kv_pool *pool, size_t tokens, iv_error *err);

/* Gives every page back; those of the index stay in it. The table is empty and may grow again. */
void iv_kv_table_release(iv_kv_table *t, iv_kv_pool *pool);

/* Releases and frees the table. */
void iv_kv_table_close(iv_kv_table *t, iv_kv_pool *pool);

/* ---- prefixes ---- */

/* How many pages, at most `limit`, the index has of a sequence's beginning; *idle: how many of them nobody holds. */
size_t iv_kv_match(const iv_kv_pool *pool, const int32_t *tokens, size_t limit, size_t *idle);

/* An empty table takes the first `pages` pages of the sequence, which iv_kv_match has just found. */
void iv_kv_attach(iv_kv_table *t, iv_kv_pool *pool, const int32_t *tokens, size_t pages);

/* The first `computed` tokens of the sequence are in the cache: its full pages enter the index. Where the index has
 * such a page already the table holds that one from now on, so that equal prefixes share their memory. */
void iv_kv_publish(iv_kv_table *t, iv_kv_pool *pool, const int32_t *tokens, size_t computed);

/* Pages that would be available if the table let go of them. */
size_t iv_kv_sole(const iv_kv_table *t, const iv_kv_pool *pool);

/* Empties the index of all pages that nobody holds. */
void iv_kv_forget(iv_kv_pool *pool);

#endif
