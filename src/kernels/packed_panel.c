/* packed_panel.c: the layout of packed panels, and the scalar widening. */
#include "kernels/packed_panel.h"
#include "base/size.h"
#include "numerics/floats.h"

#include <string.h>

enum { C = IV_PANEL_COLUMNS };

static size_t head_bytes(const iv_code_form *f) {
    return C * iv_dtype_bytes(f->scale_type) * (f->second == IV_SECOND_NONE ? 1 : 2);
}

static size_t code_bytes(const iv_code_form *f, size_t k) { return k * C * (size_t)iv_code_bits(f->kind) / 8; }

static size_t group_bytes(const iv_matrix *m) { return head_bytes(&m->codes) + code_bytes(&m->codes, m->codes.group); }

bool iv_packed_panel_shape(iv_matrix *m, const iv_code_form *form, size_t group) {
    size_t total;
    IV_ASSERT(m->panel_columns == C && group > 0 && (group % 16 == 0 || group >= m->k));
    m->format = form->format, m->codes = *form;
    m->codes.group = iv_size_min(group, m->k_padded);
    if (group >= m->k) m->codes.group = m->k_padded;
    size_t groups = (m->k_padded + m->codes.group - 1) / m->codes.group;
    m->panel_bytes = (groups * head_bytes(form) + code_bytes(form, m->k_padded) + 63) / 64 * 64; /* k < SIZE_MAX / 64 */
    return iv_size_mul(m->panels, m->panel_bytes, &total);
}

static void put_scale(iv_dtype type, unsigned char *at, size_t i, float x) {
    if (type == IV_F32)
        memcpy(at + 4 * i, &x, sizeof x);
    else {
        uint16_t h = type == IV_BF16 ? iv_bf16_from_f32(x) : iv_f16_from_f32(x);
        memcpy(at + 2 * i, &h, sizeof h);
    }
}

static void put_codes(const iv_code_form *f, unsigned char *at, size_t c, const uint8_t *codes, size_t n) {
    if (iv_code_bits(f->kind) == 8) {
        for (size_t i = 0; i < n; i++) at[i * C + c] = codes[i];
        return;
    }
    for (size_t i = 0; i < n; i += 8) {
        uint32_t word = 0;
        for (size_t j = 0; j < 8 && i + j < n; j++) word |= (uint32_t)(codes[i + j] & 15u) << (4 * j);
        memcpy(at + (i / 8 * C + c) * 4, &word, sizeof word);
    }
}

void iv_packed_panel_put(iv_matrix *m, const iv_packed_rows_in *in, size_t first, size_t count) {
    const iv_code_form *f = &m->codes;
    IV_ASSERT(first + count <= m->n && !iv_weight_is_plain(m->format));
    for (size_t r = 0; r < count; r++) {
        size_t c = (first + r) % C;
        unsigned char *at = m->data + (first + r) / C * m->panel_bytes;
        const uint8_t *codes = in->codes + r * in->stride;
        for (size_t k = 0; k < m->k; k += f->group, at += group_bytes(m)) {
            size_t g = r * in->groups + (in->column + k) / in->group;
            put_scale(f->scale_type, at, c, in->scales[g]);
            if (f->second != IV_SECOND_NONE) put_scale(f->scale_type, at, C + c, in->seconds[g]);
            put_codes(f, at + head_bytes(f), c, codes + k, iv_size_min(f->group, m->k - k));
        }
    }
}

static uint8_t code_at(const iv_code_form *f, const unsigned char *codes, size_t k, size_t c) {
    if (iv_code_bits(f->kind) == 8) return codes[k * C + c];
    uint32_t word;
    memcpy(&word, codes + (k / 8 * C + c) * 4, sizeof word);
    return word >> (k % 8 * 4) & 15;
}

static float value_at(const iv_code_form *f, const unsigned char *scales, const unsigned char *codes, size_t k,
                      size_t c) {
    float second = f->second == IV_SECOND_NONE ? 0.0f : iv_element(f->scale_type, scales, C + c);
    return iv_code_value(f, code_at(f, codes, k, c), iv_element(f->scale_type, scales, c), second);
}

void iv_widen_scalar(const iv_code_form *form, iv_dtype type, const void *scales, const void *codes, size_t k,
                     void *out) {
    for (size_t i = 0; i < k; i++)
        for (size_t c = 0; c < C; c++) {
            float x = value_at(form, scales, codes, i, c);
            size_t at = iv_panel_index(type, i, c);
            if (type == IV_F32)
                ((float *)out)[at] = x;
            else
                ((uint16_t *)out)[at] = type == IV_BF16 ? iv_bf16_from_f32(x) : iv_f16_from_f32(x);
        }
}

/* Zeros from k to k_padded: a pad code may stand for another number. */
static void clear_pad(const iv_matrix *m, void *out) {
    size_t width = iv_dtype_bytes(m->type);
    for (size_t k = m->k; k < m->k_padded; k++)
        for (size_t c = 0; c < C; c++) memset((char *)out + iv_panel_index(m->type, k, c) * width, 0, width);
}

void iv_packed_panel_widen(const iv_kernels *kernels, const iv_matrix *m, size_t p, void *out) {
    const unsigned char *at = iv_matrix_panel(m, p);
    size_t width = iv_dtype_bytes(m->type);
    for (size_t k = 0; k < m->k_padded; k += m->codes.group, at += group_bytes(m))
        kernels->widen(&m->codes, m->type, at, at + head_bytes(&m->codes), iv_size_min(m->codes.group, m->k_padded - k),
                       (char *)out + k * C * width);
    if (m->k < m->k_padded) clear_pad(m, out);
}

void iv_packed_panel_row(const iv_matrix *m, size_t n, float *out) {
    const unsigned char *at = iv_matrix_panel(m, n / C);
    for (size_t k = 0; k < m->k; k += m->codes.group, at += group_bytes(m))
        for (size_t i = 0; i < iv_size_min(m->codes.group, m->k - k); i++)
            out[k + i] = value_at(&m->codes, at, at + head_bytes(&m->codes), i, n % C);
    for (size_t k = 0; k < m->k && m->type != IV_F32; k++)
        out[k] = m->type == IV_BF16 ? iv_bf16_to_f32(iv_bf16_from_f32(out[k])) : iv_f16_to_f32(iv_f16_from_f32(out[k]));
}
