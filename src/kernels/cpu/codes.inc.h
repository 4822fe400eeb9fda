/* codes.inc.h: numbers and scales of packed panels in the vector vocabulary: a lane is an output. Before including it:
 * a codes_*.h. */
#ifndef IV_KERNELS_CODES_INC_H
#define IV_KERNELS_CODES_INC_H

#include "kernels/cpu/tile_common.h"

IV_INLINE vf value_of(const iv_code_second second, vf t, vf s, vf z) {
    if (second == IV_SECOND_ZERO) t = v_sub(t, z);
    t = v_mul(t, s);
    return second == IV_SECOND_MIN ? v_add(t, z) : t;
}

/* To bfloat16, to the nearest even: c has 8 more significant bits than it can, so p is rounded in it. Exact for numbers
 * that are neither subnormal nor near the largest (tests/kernels/test_packed_panel.c: all fractions). */
IV_INLINE vf round_bf16(vf p) {
    vf c = v_fma(p, v_set(0x1p16f), p);
    return v_sub(c, v_sub(c, p));
}

IV_INLINE vf e4m3(const int8_t *p) { return v_mul(e4m3_small(p), v_set(256.0f)); }

/* ---- scales --------------------------------------------------------------------------------------------- */

IV_INLINE vf load_number(iv_dtype type, const unsigned char *numbers, int i) {
    if (type == IV_F32) return v_load((const float *)(const void *)numbers + i);
    const uint16_t *h = (const uint16_t *)(const void *)numbers + i;
    return type == IV_BF16 ? v_load_bf16(h) : v_load_f16(h);
}

IV_INLINE vf inner_number(const iv_code_form *f, const unsigned char *bytes) {
    vi words = load_bytes((const int8_t *)bytes);
    return vi_to_float(f->inner == IV_INNER_UINT8 ? vi_and(words, vi_set(255)) : words);
}

/* Of columns from i on. */
IV_INLINE vf scale_of(const iv_code_form *f, const iv_packed_group *g, int i) {
    if (f->inner == IV_INNER_NONE) return load_number(f->scale_type, g->head, i);
    vf outer = load_number(f->scale_type, g->outer, i);
    if (f->inner < IV_INNER_E4M3) return v_mul(outer, inner_number(f, g->head + i));
    vf inner = e4m3((const int8_t *)g->head + i);
    return f->inner == IV_INNER_E4M3 ? v_mul(inner, outer) : v_div(inner, outer);
}

IV_INLINE vf second_of(const iv_code_form *f, const iv_packed_group *g, int i) {
    if (f->second == IV_SECOND_NONE) return v_set(0.0f);
    if (f->inner == IV_INNER_NONE) return load_number(f->scale_type, g->head, IV_PANEL_COLUMNS + i);
    vf product = v_mul(load_number(f->scale_type, g->outer, IV_PANEL_COLUMNS + i),
                       inner_number(f, g->head + IV_PANEL_COLUMNS + i));
    return v_float(vi_xor(v_bits(product), vi_set(0x80000000u)));
}

/* Whether numbers are 0 or from 2^-80 to 2^80 in size: then nothing that is made of them and codes is subnormal or
 * overflows. Compares integers, as subnormal floats may be flushed. */
IV_INLINE vi not_moderate(vf x) {
    const uint32_t least = 47u << 23, most = 207u << 23;
    vi size = vi_and(v_bits(x), vi_set(0x7fffffffu)), ones = vi_set(0xffffffffu);
    vi small = vi_and(vi_sub(size, vi_set(least)), vi_xor(vi_sub(size, vi_set(1)), ones));
    return vi_or(small, vi_sub(vi_set(most), size)); /* the sign bit says so */
}

/* Of columns from i on, those that groups' numbers are made of. */
IV_INLINE vi numbers_not_moderate(const iv_code_form *f, const iv_packed_group *g, int i) {
    const unsigned char *numbers = f->inner == IV_INNER_NONE ? g->head : g->outer;
    vi bad = not_moderate(load_number(f->scale_type, numbers, i));
    if (f->second == IV_SECOND_NONE) return bad;
    return vi_or(bad, not_moderate(load_number(f->scale_type, numbers, IV_PANEL_COLUMNS + i)));
}

/* ---- codes of 5 and 6 bits ------------------------------------------------------------------------------ */

typedef struct wide_codes {
    vi low[2], high;
} wide_codes;

/* Sixteen of k of columns from i on. */
IV_INLINE wide_codes load_wide(iv_code_kind kind, const unsigned char *codes, int i) {
    const unsigned char *high = codes + 8 * IV_PANEL_COLUMNS;
    wide_codes w = {{vi_load(codes + 4 * i), vi_load(codes + 4 * (IV_PANEL_COLUMNS + i))}, vi_set(0)};
    w.high = kind == IV_CODES_INT6 ? vi_load(high + 4 * i) : load_halves(high + 2 * i);
    return w;
}

/* The numbers of k + j, j from 0 to 15 in turn. */
IV_INLINE vf next_wide(iv_code_kind kind, wide_codes *w, int j) {
    vi low = vi_and(w->low[j / 8], vi_set(15)), code;
    w->low[j / 8] = vi_shr(w->low[j / 8], 4);
    if (kind == IV_CODES_INT6) {
        code = vi_or(low, vi_and(vi_shl(w->high, 4), vi_set(48)));
        w->high = vi_shr(w->high, 2);
        return v_sub(vi_to_float(code), v_set(32.0f));
    }
    code = vi_or(low, vi_and(vi_shl(w->high, 4), vi_set(16)));
    w->high = vi_shr(w->high, 1);
    return kind == IV_CODES_INT5 ? v_sub(vi_to_float(code), v_set(16.0f)) : vi_to_float(code);
}

#endif
