/* pages.h: the memory of keys and values, in pages of 64 tokens, and who holds which page. Bookkeeping only. */
#ifndef IV_KV_PAGES_H
#define IV_KV_PAGES_H

#include "kernels/paged_kv.h"

/* One page number names a page in every layer. */
typedef struct iv_kv_pool {
    iv_kv_layout layout;
    size_t layers, pages, free_count;
    unsigned char *data; /* [layer][page] */
    size_t data_bytes;
    uint32_t *free_pages; /* a stack: the last freed is the next given */
} iv_kv_pool;

/* Bytes that one token takes over all layers. */
size_t iv_kv_token_bytes(const iv_kv_layout *layout, size_t layers);

/* IV_NO_MEMORY names the bytes wanted. */
iv_status iv_kv_pool_open(iv_kv_pool *pool, const iv_kv_layout *layout, size_t layers, size_t pages, iv_error *err);
void iv_kv_pool_close(iv_kv_pool *pool);

static inline unsigned char *iv_kv_layer(const iv_kv_pool *p, size_t layer) {
    return p->data + layer * p->pages * p->layout.page_bytes;
}

/* The pages of one sequence, in order of position. */
typedef struct iv_kv_table {
    uint32_t *pages; /* [capacity] */
    size_t count, capacity;
} iv_kv_table;

iv_status iv_kv_table_open(iv_kv_table *t, size_t tokens_max, iv_error *err);

/* Makes the table cover `tokens` tokens. IV_BUSY, with nothing taken, if the pool has too few free pages. */
iv_status iv_kv_table_grow(iv_kv_table *t, iv_kv_pool *pool, size_t tokens, iv_error *err);

/* Gives every page back and frees the table. */
void iv_kv_table_close(iv_kv_table *t, iv_kv_pool *pool);

#endif
