/* int8.inc.h: rows to codes and sums to floats in the vector vocabulary. Before including it: a vec_*.h, and
 * INT8_STORE(p, x), which stores the low bytes of V_LANES words as the kernel has its codes, INT8_CODE_BYTES each, and
 * INT8_ZERO, the byte of a code of zero. */
#include "kernels/int8.h"

#include <string.h>

enum { INT8_BLOCK = 16 }; /* numbers at once: rows are padded to them */

static uint32_t magnitude(iv_dtype type, const void *x, size_t n) {
    if (type == IV_F32) {
        uint32_t most = 0;
        for (size_t i = 0; i < n; i++) {
            uint32_t u = iv_bits(((const float *)x)[i]) & 0x7fffffffu;
            most = u > most ? u : most;
        }
        return most;
    }
    uint16_t most = 0; /* the order of 16-bit types is that of their floats */
    for (size_t i = 0; i < n; i++) {
        uint16_t u = ((const uint16_t *)x)[i] & 0x7fffu;
        most = u > most ? u : most;
    }
    return iv_bits(iv_element(type, &most, 0));
}

static inline vf load(iv_dtype type, const void *x, size_t i) {
    if (type == IV_F32) return v_load((const float *)x + i);
    return type == IV_BF16 ? v_load_bf16((const uint16_t *)x + i) : v_load_f16((const uint16_t *)x + i);
}

/* The low byte of p + 1.5 * 2^23 is the nearest integer. */
static inline void block(iv_dtype type, const void *x, vf inverse, int terms, char *high, char *low) {
    const vf m = v_set(0x1.8p23f), step = v_set(IV_INT8_LOW);
    for (size_t i = 0; i < INT8_BLOCK; i += V_LANES) {
        vf p = v_mul(load(type, x, i), inverse), t = v_add(p, m);
        INT8_STORE(high + i * INT8_CODE_BYTES, v_bits(t));
        if (terms == 1) continue;
        vf rest = v_sub(p, v_sub(t, m));
        INT8_STORE(low + i * INT8_CODE_BYTES, v_bits(v_add(v_mul(rest, step), m)));
    }
}

static void quantize(iv_dtype type, const void *x, size_t n, size_t n_padded, float inverse, int terms, void *high,
                     void *low) {
    size_t width = iv_dtype_bytes(type), whole = n / INT8_BLOCK * INT8_BLOCK, i = 0;
    const vf factor = v_set(inverse);
    if (inverse == 0.0f) { /* of numbers that are not finite too */
        memset(high, INT8_ZERO, n_padded * INT8_CODE_BYTES);
        if (terms == 2) memset(low, INT8_ZERO, n_padded * INT8_CODE_BYTES);
        return;
    }
    for (; i < n_padded; i += INT8_BLOCK) {
        char rest[INT8_BLOCK * sizeof(float)] = {0};
        const void *from = (const char *)x + i * width;
        if (i >= whole) from = memcpy(rest, from, (n - i) * width);
        block(type, from, factor, terms, (char *)high + i * INT8_CODE_BYTES, (char *)low + i * INT8_CODE_BYTES);
    }
}

static void results(const int32_t *sums, int terms, float row_scale, const float *scales, float *out) {
    const vf row = v_set(row_scale), step = v_set(IV_INT8_LOW);
    for (size_t c = 0; c < IV_PANEL_COLUMNS; c += V_LANES) {
        vf t = vi_to_float(vi_load(sums + c));
        if (terms == 2) t = v_fma(t, step, vi_to_float(vi_load(sums + IV_PANEL_COLUMNS + c)));
        t = v_mul(v_mul(t, row), v_load(scales + c));
        v_store(out + c, v_select(v_is_nan(t), v_float(vi_set(IV_NAN_F32_BITS)), t));
    }
}
