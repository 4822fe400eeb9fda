/* paged_kv.c: scattering a token's key and value into its page. */
#include "kernels/paged_kv.h"
#include "base/size.h"
#include "kernels/kernels.h"
#include "numerics/attention.h"

#include <string.h>

enum { C = IV_PANEL_COLUMNS };

bool iv_kv_layout_make(iv_kv_layout *l, iv_dtype type, size_t heads, size_t key_dim, size_t value_dim) {
    *l = (iv_kv_layout){.type = type, .heads = heads, .key_dim = key_dim, .value_dim = value_dim};
    return iv_matrix_shape(&l->keys, type, IV_ATTENTION_BLOCK, key_dim) &&
           iv_matrix_shape(&l->values, type, value_dim, IV_ATTENTION_BLOCK) &&
           iv_size_add(iv_matrix_bytes(&l->keys), iv_matrix_bytes(&l->values), &l->head_bytes) &&
           iv_size_mul(l->head_bytes, heads, &l->page_bytes);
}

bool iv_kv_layout_make_shared(iv_kv_layout *l, iv_dtype type, size_t heads, size_t key_dim, size_t value_dim) {
    if (!iv_kv_layout_make(l, type, heads, key_dim, value_dim)) return false;
    l->shared = true, l->head_bytes = iv_matrix_bytes(&l->keys);
    return iv_size_mul(l->head_bytes, heads, &l->page_bytes);
}

bool iv_kv_layout_make_elsewhere(iv_kv_layout *l, iv_dtype type, size_t heads, size_t key_dim, size_t value_dim,
                                 bool shared) {
    *l = (iv_kv_layout){
        .type = type, .heads = heads, .key_dim = key_dim, .value_dim = value_dim, .elsewhere = true, .shared = shared};
    return iv_size_add(key_dim, shared ? 0 : value_dim, &l->head_bytes) &&
           iv_size_mul(l->head_bytes, IV_ATTENTION_BLOCK * iv_dtype_bytes(type), &l->head_bytes) &&
           iv_size_mul(l->head_bytes, heads, &l->page_bytes);
}

static bool finite_values(iv_dtype type, const void *p, size_t n) {
    static const uint32_t exponent[3] = {0x7f80u, 0x7c00u, 0x7f800000u};
    uint32_t mask = exponent[type];
    bool bad = false;
    for (size_t i = 0; i < n; i++) {
        uint32_t u = type == IV_F32 ? ((const uint32_t *)p)[i] : ((const uint16_t *)p)[i];
        bad |= (u & mask) == mask;
    }
    return !bad;
}

/* The index of element (n, k) in a packed matrix. */
static size_t index_of(const iv_matrix *m, size_t n, size_t k) {
    return n / C * (m->k_padded * C) + iv_panel_index(m->type, k, n % C);
}

static void copy(iv_dtype type, void *to, size_t at, const void *from, size_t i) {
    if (type == IV_F32)
        ((float *)to)[at] = ((const float *)from)[i];
    else
        ((uint16_t *)to)[at] = ((const uint16_t *)from)[i];
}

bool iv_kv_write(const iv_kv_layout *l, unsigned char *page, size_t head, size_t slot, const void *k, const void *v) {
    if (!finite_values(l->type, k, l->key_dim)) return false;
    if (!l->shared && !finite_values(l->type, v, l->value_dim)) return false;
    unsigned char *keys = page + head * l->head_bytes, *values = keys + iv_matrix_bytes(&l->keys);
    for (size_t d = 0; d < l->key_dim; d++) copy(l->type, keys, index_of(&l->keys, slot, d), k, d);
    for (size_t d = 0; d < l->value_dim && !l->shared; d++) copy(l->type, values, index_of(&l->values, d, slot), v, d);
    return true;
}
