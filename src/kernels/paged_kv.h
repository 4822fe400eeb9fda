/* paged_kv.h: how keys and values of one layer lie in a page of 64 tokens.
 *
 * A page holds one attention block at an absolute position. For each KV head it is two packed matrices in
 * the panel layout of matrix.h: K with 64 outputs (keys) of key_dim inputs, V with value_dim outputs of 64
 * inputs, so attention runs on the tile kernels of the linear layers. Unwritten slots are finite. */
#ifndef IV_KERNELS_PAGED_KV_H
#define IV_KERNELS_PAGED_KV_H

#include "kernels/matrix.h"

typedef struct iv_kv_layout {
    iv_dtype type;
    size_t heads, key_dim, value_dim;
    iv_matrix keys, values; /* shapes only, of one head in one page */
    size_t head_bytes;      /* K then V of one head, or K alone where values are shared */
    size_t page_bytes;      /* from one page of a layer to the next, at least heads * head_bytes */
    bool shared;            /* values are the first value_dim elements of keys, and stored once, as these */
    bool elsewhere;         /* pages are on a GPU, K [64][key_dim] then V a head (kernels/cuda/ops.h), or K alone */
} iv_kv_layout;

/* False when a size overflows. */
bool iv_kv_layout_make(iv_kv_layout *l, iv_dtype type, size_t heads, size_t key_dim, size_t value_dim);

/* The same with shared values; value_dim <= key_dim. */
bool iv_kv_layout_make_shared(iv_kv_layout *l, iv_dtype type, size_t heads, size_t key_dim, size_t value_dim);

/* The layout of a GPU's pages: sizes alone, nothing here reads or writes them. shared: as above. */
bool iv_kv_layout_make_elsewhere(iv_kv_layout *l, iv_dtype type, size_t heads, size_t key_dim, size_t value_dim,
                                 bool shared);

/* Writes one token's K and V of one head (key_dim and value_dim elements of the layout's type) to slot 0..63. v is not
 * read where values are shared.
 * False if a value is not finite: nothing is written, so that a page never holds a NaN or an infinity. */
bool iv_kv_write(const iv_kv_layout *l, unsigned char *page, size_t head, size_t slot, const void *k, const void *v);

static inline const unsigned char *iv_kv_keys(const iv_kv_layout *l, const unsigned char *page, size_t head) {
    return page + head * l->head_bytes;
}
/* Not of a layout with shared values: turned_values.h. */
static inline const unsigned char *iv_kv_values(const iv_kv_layout *l, const unsigned char *page, size_t head) {
    return page + head * l->head_bytes + iv_matrix_bytes(&l->keys);
}

#endif
