/* packed_panel.c: the layout of packed panels, and the scalar widening. */
#include "kernels/packed_panel.h"
#include "base/size.h"
#include "numerics/floats.h"

#include <string.h>

enum { C = IV_PANEL_COLUMNS };

static size_t numbers(const iv_code_form *f) { return f->second == IV_SECOND_NONE ? C : 2 * C; }

static size_t head_bytes(const iv_code_form *f) {
    return numbers(f) * (f->inner == IV_INNER_NONE ? iv_dtype_bytes(f->scale_type) : 1);
}

static size_t outer_bytes(const iv_code_form *f) {
    return f->inner == IV_INNER_NONE ? 0 : numbers(f) * iv_dtype_bytes(f->scale_type);
}

static size_t code_bytes(const iv_code_form *f, size_t k) { return k * C * (size_t)iv_code_bits(f->kind) / 8; }

bool iv_packed_panel_shape(iv_matrix *m, const iv_code_form *form) {
    size_t total;
    IV_ASSERT(m->panel_columns == C && form->group > 0 && (form->group % 16 == 0 || form->group >= m->k));
    m->format = form->format, m->codes = *form;
    iv_code_form *f = &m->codes;
    if (f->group >= m->k) f->group = m->k_padded;
    if (f->outer >= m->k) f->outer = m->k_padded;
    if (f->inner == IV_INNER_NONE) f->outer = f->group;
    IV_ASSERT(f->outer % f->group == 0 || f->outer == m->k_padded);
    size_t groups = iv_code_groups(f, m->k_padded), outers = iv_code_outers(f, m->k_padded);
    size_t heads = groups * head_bytes(f) + outers * outer_bytes(f); /* k < SIZE_MAX / 64 */
    m->panel_bytes = (heads + code_bytes(f, m->k_padded) + 63) / 64 * 64;
    return iv_size_mul(m->panels, m->panel_bytes, &total);
}

iv_packed_view iv_packed_panel_view(const iv_matrix *m, size_t p) {
    const iv_code_form *f = &m->codes;
    iv_packed_view v = {
        .form = f, .at = iv_matrix_panel(m, p), .outer_bytes = outer_bytes(f), .head_bytes = head_bytes(f)};
    v.group_bytes = v.head_bytes + code_bytes(f, f->group);
    v.per_outer = f->inner == IV_INNER_NONE ? 1 : (f->outer - 1) / f->group + 1;
    v.outer_stride = v.outer_bytes + v.per_outer * v.group_bytes;
    return v;
}

static void put_number(iv_dtype type, unsigned char *at, size_t i, float x) {
    if (type == IV_F32)
        memcpy(at + 4 * i, &x, sizeof x);
    else {
        uint16_t h = type == IV_BF16 ? iv_bf16_from_f32(x) : iv_f16_from_f32(x);
        memcpy(at + 2 * i, &h, sizeof h);
    }
}

/* Of one column; columns of a panel have no byte in common. */
static void put_codes(const iv_code_form *f, unsigned char *at, size_t c, const uint8_t *codes, size_t n) {
    int bits = iv_code_bits(f->kind);
    if (bits == 8) {
        for (size_t i = 0; i < n; i++) at[i * C + c] = codes[i];
        return;
    }
    for (size_t i = 0; i < n; i += 16, at += code_bytes(f, 16)) {
        uint32_t low[2] = {0, 0}, high = 0;
        for (size_t j = 0; j < 16 && i + j < n; j++) {
            low[j / 8] |= (uint32_t)(codes[i + j] & 15) << (j % 8 * 4);
            high |= (uint32_t)(codes[i + j] >> 4) << (j * (size_t)(bits - 4));
        }
        memcpy(at + c * 4, &low[0], 4), memcpy(at + (C + c) * 4, &low[1], 4);
        uint16_t half = (uint16_t)high;
        if (bits == 5) memcpy(at + 2 * C * 4 + c * 2, &half, sizeof half);
        if (bits == 6) memcpy(at + 2 * C * 4 + c * 4, &high, sizeof high);
    }
}

static void put_numbers(const iv_code_form *f, const iv_packed_group *to, size_t c, const iv_row_codes *in, size_t g,
                        size_t o) {
    bool second = f->second != IV_SECOND_NONE;
    unsigned char *head = (unsigned char *)(uintptr_t)to->head, *outer = (unsigned char *)(uintptr_t)to->outer;
    if (f->inner == IV_INNER_NONE) {
        put_number(f->scale_type, head, c, in->scales[g]);
        if (second) put_number(f->scale_type, head, C + c, in->seconds[g]);
        return;
    }
    head[c] = (unsigned char)(int)in->scales[g];
    put_number(f->scale_type, outer, c, in->outer_scales[o]);
    if (!second) return;
    head[C + c] = (unsigned char)(int)in->seconds[g];
    put_number(f->scale_type, outer, C + c, in->outer_seconds[o]);
}

void iv_packed_panel_put(iv_matrix *m, const iv_packed_rows_in *in, size_t first, size_t count) {
    const iv_code_form *f = &m->codes;
    size_t groups = iv_code_groups(in->form, in->columns), outers = iv_code_outers(in->form, in->columns);
    IV_ASSERT(first + count <= m->n && !iv_weight_is_plain(m->format));
    for (size_t r = 0; r < count; r++) {
        iv_packed_view v = iv_packed_panel_view(m, (first + r) / C);
        size_t c = (first + r) % C;
        for (size_t k = 0; k < m->k; k += f->group) {
            iv_packed_group to = iv_packed_group_at(&v, k / f->group);
            size_t at = in->column + k;
            put_numbers(f, &to, c, &in->rows, r * groups + at / in->form->group, r * outers + at / in->form->outer);
            put_codes(f, (unsigned char *)(uintptr_t)to.codes, c, in->rows.codes + r * in->columns + at,
                      iv_size_min(f->group, m->k - k));
        }
    }
}

static uint8_t code_at(const iv_code_form *f, const unsigned char *codes, size_t k, size_t c) {
    int bits = iv_code_bits(f->kind);
    uint32_t low, high = 0;
    uint16_t half;
    if (bits == 8) return codes[k * C + c];
    codes += k / 16 * code_bytes(f, 16), k %= 16;
    memcpy(&low, codes + (k / 8 * C + c) * 4, sizeof low);
    if (bits == 5) memcpy(&half, codes + 2 * C * 4 + c * 2, sizeof half), high = half;
    if (bits == 6) memcpy(&high, codes + 2 * C * 4 + c * 4, sizeof high);
    size_t more = (size_t)(bits - 4);
    return (uint8_t)((low >> (k % 8 * 4) & 15) | (high >> (k * more) & ((1u << more) - 1)) << 4);
}

static float inner_number(const iv_code_form *f, unsigned char byte) {
    return f->inner == IV_INNER_INT8 ? (float)(int8_t)byte : (float)byte;
}

static float scale_at(const iv_code_form *f, const iv_packed_group *g, size_t c) {
    if (f->inner == IV_INNER_NONE) return iv_element(f->scale_type, g->head, c);
    return iv_code_scale(f, iv_element(f->scale_type, g->outer, c), inner_number(f, g->head[c]));
}

static float second_at(const iv_code_form *f, const iv_packed_group *g, size_t c) {
    if (f->second == IV_SECOND_NONE) return 0.0f;
    if (f->inner == IV_INNER_NONE) return iv_element(f->scale_type, g->head, C + c);
    return iv_code_second_of(f, iv_element(f->scale_type, g->outer, C + c), inner_number(f, g->head[C + c]));
}

void iv_widen_scalar(const iv_code_form *form, iv_dtype type, const iv_packed_group *group, size_t k, void *out) {
    for (size_t c = 0; c < C; c++) {
        float scale = scale_at(form, group, c), second = second_at(form, group, c);
        for (size_t i = 0; i < k; i++) {
            float x = iv_code_value(form, code_at(form, group->codes, i, c), scale, second);
            size_t at = iv_panel_index(type, i, c);
            if (type == IV_F32)
                ((float *)out)[at] = x;
            else
                ((uint16_t *)out)[at] = type == IV_BF16 ? iv_bf16_from_f32(x) : iv_f16_from_f32(x);
        }
    }
}

/* Zeros from k to k_padded: a pad code may stand for another number. */
static void clear_pad(const iv_matrix *m, void *out) {
    size_t width = iv_dtype_bytes(m->type);
    for (size_t k = m->k; k < m->k_padded; k++)
        for (size_t c = 0; c < C; c++) memset((char *)out + iv_panel_index(m->type, k, c) * width, 0, width);
}

void iv_packed_panel_widen(const iv_kernels *kernels, const iv_matrix *m, size_t p, void *out) {
    iv_packed_view v = iv_packed_panel_view(m, p);
    size_t width = iv_dtype_bytes(m->type), group = m->codes.group;
    for (size_t k = 0; k < m->k_padded; k += group) {
        iv_packed_group g = iv_packed_group_at(&v, k / group);
        kernels->widen(&m->codes, m->type, &g, iv_size_min(group, m->k_padded - k), (char *)out + k * C * width);
    }
    if (m->k < m->k_padded) clear_pad(m, out);
}

void iv_packed_panel_row(const iv_matrix *m, size_t n, float *out) {
    iv_packed_view v = iv_packed_panel_view(m, n / C);
    const iv_code_form *f = &m->codes;
    size_t c = n % C;
    for (size_t k = 0; k < m->k; k += f->group) {
        iv_packed_group g = iv_packed_group_at(&v, k / f->group);
        float scale = scale_at(f, &g, c), second = second_at(f, &g, c);
        for (size_t i = 0; i < iv_size_min(f->group, m->k - k); i++)
            out[k + i] = iv_code_value(f, code_at(f, g.codes, i, c), scale, second);
    }
    for (size_t k = 0; k < m->k && m->type != IV_F32; k++)
        out[k] = m->type == IV_BF16 ? iv_bf16_to_f32(iv_bf16_from_f32(out[k])) : iv_f16_to_f32(iv_f16_from_f32(out[k]));
}
