/* widen.inc.h: iv_kernels.widen in the vector vocabulary: a lane is an output.
 *
 * Before including it: a vec_*.h, and
 *   WIDEN_NAME                 the function
 *   widen_table, its load and look_up(table, codes)   16 floats, of which the low four bits of each word choose
 *   load_bytes(p)              V_LANES bytes as words, signed
 *   e4m3(words)                the numbers of e4m3 codes in sign-extended words */
#include "kernels/cpu/tile_common.h"
#include "numerics/weight_codes.h"

enum { VECTORS = IV_PANEL_COLUMNS / V_LANES };

IV_INLINE vf value_of(const iv_code_second second, vf t, vf s, vf z) {
    if (second == IV_SECOND_ZERO) t = v_sub(t, z);
    t = v_mul(t, s);
    return second == IV_SECOND_MIN ? v_add(t, z) : t;
}

/* Rounded to bfloat16 in the high halves. No weight is a NaN. */
IV_INLINE vi round_up_high(vf x) {
    vi u = v_bits(x);
    return vi_add(vi_add(u, vi_set(0x7fffu)), vi_and(vi_shr(u, 16), vi_set(1)));
}

/* Columns [column, column + V_LANES) of k and k + 1, k even. */
IV_INLINE void store_pair(const iv_dtype type, char *out, size_t k, int column, vf even, vf odd) {
    size_t pair = (k * IV_PANEL_COLUMNS + (size_t)column) * iv_dtype_bytes(type);
    if (type == IV_BF16) {
        vi low = vi_shr(round_up_high(even), 16), high = vi_and(round_up_high(odd), vi_set(0xffff0000u));
        v_store((float *)(void *)(out + k * IV_PANEL_COLUMNS * 2 + (size_t)column * 4), v_float(vi_or(low, high)));
    } else if (type == IV_F16) {
        v_store_f16((uint16_t *)(void *)(out + pair), even);
        v_store_f16((uint16_t *)(void *)(out + pair + 2 * IV_PANEL_COLUMNS), odd);
    } else {
        v_store((float *)(void *)(out + pair), even);
        v_store((float *)(void *)(out + pair + 4 * IV_PANEL_COLUMNS), odd);
    }
}

typedef struct numbers {
    vf scale[VECTORS], second[VECTORS];
} numbers;

IV_INLINE vf load_number(iv_dtype type, const char *p, int i) {
    if (type == IV_F32) return v_load((const float *)(const void *)p + i);
    const uint16_t *h = (const uint16_t *)(const void *)p + i;
    return type == IV_BF16 ? v_load_bf16(h) : v_load_f16(h);
}

IV_INLINE void bytes(const bool is_e4m3, const iv_code_second second, const iv_dtype type, const numbers *n,
                     const int8_t *codes, size_t k, char *out) {
    for (size_t i = 0; i < k; i += 2, codes += 2 * IV_PANEL_COLUMNS)
        for (int v = 0; v < VECTORS; v++) {
            vi a = load_bytes(codes + v * V_LANES), b = load_bytes(codes + IV_PANEL_COLUMNS + v * V_LANES);
            vf even = is_e4m3 ? e4m3(a) : vi_to_float(a), odd = is_e4m3 ? e4m3(b) : vi_to_float(b);
            store_pair(type, out, i, v * V_LANES, value_of(second, even, n->scale[v], n->second[v]),
                       value_of(second, odd, n->scale[v], n->second[v]));
        }
}

IV_INLINE void nibbles(const iv_code_second second, const iv_dtype type, const float *values, const numbers *n,
                       const uint32_t *codes, size_t k, char *out) {
    widen_table t = load_table(values);
    for (size_t i = 0; i < k; i += 8, codes += IV_PANEL_COLUMNS)
        for (int v = 0; v < VECTORS; v++) {
            vi words = vi_load(codes + v * V_LANES);
            for (size_t j = 0; j < 8; j += 2) {
                vf even = look_up(&t, words), odd = look_up(&t, vi_shr(words, 4));
                words = vi_shr(words, 8);
                store_pair(type, out, i + j, v * V_LANES, value_of(second, even, n->scale[v], n->second[v]),
                           value_of(second, odd, n->scale[v], n->second[v]));
            }
        }
}

IV_INLINE void widen_as(const iv_code_form *form, const iv_code_second second, const iv_dtype type, const numbers *n,
                        const void *codes, size_t k, void *out) {
    if (form->kind == IV_CODES_E4M3)
        bytes(true, second, type, n, codes, k, out);
    else if (form->kind == IV_CODES_INT8)
        bytes(false, second, type, n, codes, k, out);
    else
        nibbles(second, type, iv_code_table(form->kind), n, codes, k, out);
}

IV_INLINE void widen_to(const iv_code_form *form, const iv_dtype type, const numbers *n, const void *codes, size_t k,
                        void *out) {
    switch (form->second) {
    case IV_SECOND_NONE: widen_as(form, IV_SECOND_NONE, type, n, codes, k, out); return;
    case IV_SECOND_ZERO: widen_as(form, IV_SECOND_ZERO, type, n, codes, k, out); return;
    case IV_SECOND_MIN: widen_as(form, IV_SECOND_MIN, type, n, codes, k, out); return;
    }
}

void WIDEN_NAME(const iv_code_form *form, iv_dtype type, const void *scales, const void *codes, size_t k, void *out) {
    numbers n;
    for (int v = 0; v < VECTORS; v++) {
        n.scale[v] = load_number(form->scale_type, scales, v * V_LANES);
        n.second[v] = form->second == IV_SECOND_NONE
                          ? v_set(0.0f)
                          : load_number(form->scale_type, scales, IV_PANEL_COLUMNS + v * V_LANES);
    }
    if (type == IV_BF16)
        widen_to(form, IV_BF16, &n, codes, k, out);
    else if (type == IV_F16)
        widen_to(form, IV_F16, &n, codes, k, out);
    else
        widen_to(form, IV_F32, &n, codes, k, out);
}
