/* int8_matrix.c: weights as int8 codes in panels. */
#include "base/size.h"
#include "kernels/int8.h"
#include "numerics/floats.h"

#include <string.h>

enum { C = IV_PANEL_COLUMNS, PIECE = 512 };

bool iv_int8_shape(iv_matrix *m, int terms) {
    size_t total;
    IV_ASSERT(m->panel_columns == C && m->k <= IV_INT8_K_MAX && terms >= 1 && terms <= IV_INT8_TERMS_MAX);
    m->format = IV_WEIGHT_INT8, m->terms = terms;
    m->panel_bytes = IV_INT8_HEAD_BYTES + m->k_padded * C;
    return iv_size_mul(m->panels, m->panel_bytes, &total);
}

iv_int8_panel iv_int8_panel_of(const iv_matrix *m, size_t p) {
    const unsigned char *at = iv_matrix_panel(m, p);
    return (iv_int8_panel){(const float *)(const void *)at, (const int32_t *)(const void *)(at + 4 * C),
                           (const int8_t *)(at + IV_INT8_HEAD_BYTES)};
}

/* Where a row's scale, sum and codes go; the codes of row n of the panel are 4 of each 128. */
typedef struct place {
    float *scale;
    int32_t *sum;
    int8_t *codes;
} place;

static place place_of(iv_matrix *m, size_t n) {
    unsigned char *at = m->data + n / C * m->panel_bytes;
    return (place){(float *)(void *)at + n % C, (int32_t *)(void *)(at + 4 * C) + n % C,
                   (int8_t *)(at + IV_INT8_HEAD_BYTES) + n % C * 4};
}

static void put_codes(const place *to, const int8_t *codes, size_t from, size_t n) {
    int32_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        to->codes[iv_int8_at(from + i, 0)] = codes[i];
        sum += codes[i];
    }
    *to->sum += sum;
}

/* n numbers from element `at` on, in the type that the matrix stands for. */
static const void *rounded(const iv_matrix *m, iv_dtype type, const void *row, size_t at, size_t n, float *out) {
    const char *from = (const char *)row + at * iv_dtype_bytes(type);
    if (type == m->type) return from;
    for (size_t i = 0; i < n; i++) {
        float x = iv_element(type, from, i);
        if (m->type == IV_F32)
            out[i] = x;
        else
            ((uint16_t *)(void *)out)[i] = m->type == IV_BF16 ? iv_bf16_from_f32(x) : iv_f16_from_f32(x);
    }
    return out;
}

void iv_int8_put(iv_matrix *m, iv_dtype type, const void *rows, size_t columns, size_t column, size_t first,
                 size_t count) {
    size_t bytes = columns * iv_dtype_bytes(type);
    float piece[PIECE];
    int8_t codes[PIECE];
    IV_ASSERT(first + count <= m->n && m->terms && column <= columns && m->k <= columns - column);
    for (size_t r = 0; r < count; r++) {
        const char *row = (const char *)rows + r * bytes;
        place to = place_of(m, first + r);
        uint32_t magnitude = 0;
        for (size_t at = 0, n; at < columns; at += n) {
            n = iv_size_min(PIECE, columns - at);
            uint32_t here = iv_ref_int8_magnitude(m->type, rounded(m, type, row, at, n, piece), n);
            if (here > magnitude) magnitude = here;
        }
        iv_int8_scale s = iv_ref_int8_scale(magnitude, 1);
        *to.scale = s.scale, *to.sum = 0;
        for (size_t at = 0, n; at < m->k; at += n) {
            n = iv_size_min(PIECE, m->k - at);
            iv_ref_int8_codes(m->type, rounded(m, type, row, column + at, n, piece), n, s.inverse, 1, codes, NULL);
            put_codes(&to, codes, at, n);
        }
    }
}

void iv_int8_put_codes(iv_matrix *m, const uint8_t *codes, const float *scales, size_t columns, size_t column,
                       size_t first, size_t count) {
    IV_ASSERT(first + count <= m->n && m->terms && column <= columns && m->k <= columns - column);
    for (size_t r = 0; r < count; r++) {
        place to = place_of(m, first + r);
        *to.scale = scales[r], *to.sum = 0;
        put_codes(&to, (const int8_t *)codes + r * columns + column, 0, m->k);
    }
}

void iv_int8_row(const iv_matrix *m, size_t n, float *out) {
    iv_int8_panel p = iv_int8_panel_of(m, n / C);
    for (size_t k = 0; k < m->k; k++) out[k] = (float)p.codes[iv_int8_at(k, n % C)] * p.scales[n % C];
}
