/* matrix.c: packing into panels of 32 outputs. */
#include "kernels/matrix.h"
#include "base/size.h"
#include "kernels/int8.h"
#include "kernels/kernels.h"
#include "kernels/packed_panel.h"
#include "numerics/floats.h"
#include "numerics/tree.h"

#include <stdlib.h>
#include <string.h>

enum { C = IV_PANEL_COLUMNS };

bool iv_matrix_shape(iv_matrix *m, iv_dtype type, size_t n, size_t k) {
    size_t total;
    IV_ASSERT(type == IV_BF16 || type == IV_F16 || type == IV_F32);
    if (n > SIZE_MAX / 64 || k > SIZE_MAX / 64) return false;
    *m = (iv_matrix){.format = iv_weight_plain(type),
                     .type = type,
                     .n = n,
                     .k = k,
                     .k_padded = iv_padded_k(k),
                     .panels = (n + C - 1) / C,
                     .panel_columns = C};
    m->leaves = iv_leaf_count(m->k_padded, IV_SUM_WHOLE);
    return iv_size_mul(m->k_padded, C * iv_dtype_bytes(type), &m->panel_bytes) &&
           iv_size_mul(m->panels, m->panel_bytes, &total);
}

bool iv_matrix_shape_rows(iv_matrix *m, iv_dtype type, size_t n, size_t k, bool paired) {
    size_t total;
    if (!iv_matrix_shape(m, type, n, k)) return false;
    IV_ASSERT(!paired || n % 16 == 0);
    m->panels = n, m->panel_columns = 1, m->paired = paired;
    m->panel_bytes = m->k_padded * iv_dtype_bytes(type);
    return iv_size_mul(m->panels, m->panel_bytes, &total);
}

static void put_f32(iv_dtype type, void *panel, size_t at, float x) {
    if (type == IV_F32)
        ((float *)panel)[at] = x;
    else
        ((uint16_t *)panel)[at] = type == IV_BF16 ? iv_bf16_from_f32(x) : iv_f16_from_f32(x);
}

/* The common case: copies `count` rows unchanged to columns c and up of one panel, in blocks of pairs of k so small
 * that the cache lines being filled stay in the L1 cache. */
static void pack_bf16(uint32_t *panel, size_t c, const uint16_t *rows, size_t stride, size_t count, size_t k) {
    enum { BLOCK = 32 };
    size_t pairs = k / 2;
    for (size_t from = 0; from < pairs; from += BLOCK) {
        size_t to = iv_size_min(from + BLOCK, pairs);
        for (size_t r = 0; r < count; r++)
            for (size_t i = from; i < to; i++) memcpy(&panel[i * C + c + r], rows + r * stride + 2 * i, sizeof *panel);
    }
    for (size_t r = 0; k % 2 && r < count; r++) panel[pairs * C + c + r] = rows[r * stride + k - 1];
}

/* The same for rows of floats, which are rounded. */
static void pack_rounded(uint32_t *panel, size_t c, const float *rows, size_t stride, size_t count, size_t k) {
    enum { BLOCK = 64 };
    for (size_t from = 0; from < k; from += BLOCK) {
        size_t n = iv_size_min(BLOCK, k - from);
        for (size_t r = 0; r < count; r++) {
            uint16_t rounded[BLOCK + 1];
            const float *row = rows + r * stride + from;
            for (size_t i = 0; i < n; i++) rounded[i] = iv_bf16_from_f32(row[i]);
            rounded[n] = 0;
            for (size_t i = 0; i < n; i += 2) memcpy(&panel[(from + i) / 2 * C + c + r], rounded + i, sizeof *panel);
        }
    }
}

void iv_matrix_pack(iv_matrix *m, iv_dtype from, const void *rows, size_t stride, size_t first, size_t count) {
    IV_ASSERT(first + count <= m->n && m->panel_columns == C && iv_weight_is_plain(m->format));
    const char *row = rows;
    size_t row_bytes = stride * iv_dtype_bytes(from);
    for (size_t n = first, here; n < first + count; n += here, row += here * row_bytes) {
        unsigned char *panel = m->data + n / C * m->panel_bytes;
        here = iv_size_min(C - n % C, first + count - n);
        if (from == IV_BF16 && m->type == IV_BF16) {
            pack_bf16((uint32_t *)(void *)panel, n % C, (const uint16_t *)(const void *)row, stride, here, m->k);
            continue;
        }
        if (from == IV_F32 && m->type == IV_BF16) {
            pack_rounded((uint32_t *)(void *)panel, n % C, (const float *)(const void *)row, stride, here, m->k);
            continue;
        }
        for (size_t r = 0; r < here; r++)
            for (size_t k = 0; k < m->k; k++)
                put_f32(m->type, panel, iv_panel_index(m->type, k, n % C + r),
                        iv_element(from, row + r * row_bytes, k));
    }
}

/* Rows in m->type, `pitch` bytes apart, copied from or to a memory space: one of from and to is NULL. */
typedef struct transfer {
    iv_memspace *memspace;
    const char *from;
    char *to;
    size_t pitch, done; /* done: rows */
} transfer;

/* Evenly spaced rows: `runs` runs of `run` rows, as far apart as those of W or, where paired, twice as far. */
static iv_status move_runs(const iv_matrix *m, transfer *t, size_t first, size_t run, size_t runs, iv_error *err) {
    size_t row = m->panel_bytes, width = run == 1 ? m->k * iv_dtype_bytes(m->type) : run * row;
    size_t there = run == 1 ? row : 2 * run * row, here = run * t->pitch, at = t->done * t->pitch;
    unsigned char *data = m->data + iv_matrix_row_index(m, first) * row;
    t->done += run * runs;
    if (t->from) return t->memspace->write(t->memspace, data, there, t->from + at, here, width, runs, err);
    return t->memspace->read(t->memspace, t->to + at, here, data, there, width, runs, err);
}

static iv_status move_rows(const iv_matrix *m, transfer *t, size_t first, size_t count, iv_error *err) {
    bool whole = t->pitch == m->panel_bytes && m->k == m->k_padded; /* eight rows are one piece */
    if (!m->paired) return move_runs(m, t, first, 1, count, err);
    while (count > 0) {
        size_t half = m->n / 2, left = iv_size_min(count, half - first % half), here = iv_size_min(8 - first % 8, left);
        if (whole && here == 8) {
            here = left / 8 * 8;
            IV_TRY(move_runs(m, t, first, 8, here / 8, err));
        } else
            IV_TRY(move_runs(m, t, first, 1, here, err));
        first += here, count -= here;
    }
    return IV_OK;
}

static iv_status put_rows(const iv_matrix *m, iv_memspace *memspace, const char *from, size_t pitch, size_t first,
                          size_t count, iv_error *err) {
    transfer t = {.memspace = memspace, .from = from, .pitch = pitch};
    return move_rows(m, &t, first, count, err);
}

iv_status iv_matrix_get(const iv_matrix *m, iv_memspace *memspace, void *rows, size_t stride, size_t first,
                        size_t count, iv_error *err) {
    IV_ASSERT(first + count <= m->n && m->panel_columns == 1);
    transfer t = {.memspace = memspace, .to = rows, .pitch = stride * iv_dtype_bytes(m->type)};
    return move_rows(m, &t, first, count, err);
}

iv_status iv_matrix_put(iv_matrix *m, iv_memspace *memspace, iv_dtype from, const void *rows, size_t stride,
                        size_t first, size_t count, iv_error *err) {
    IV_ASSERT(first + count <= m->n && m->panel_columns == 1);
    if (from == m->type) return put_rows(m, memspace, rows, stride * iv_dtype_bytes(from), first, count, err);
    char *converted = malloc(count * m->panel_bytes);
    if (!converted) return iv_fail(err, IV_NO_MEMORY, "weights: no memory to convert %zu rows", count);
    for (size_t r = 0; r < count; r++)
        for (size_t k = 0; k < m->k; k++)
            put_f32(m->type, converted + r * m->panel_bytes, k,
                    iv_element(from, (const char *)rows + r * stride * iv_dtype_bytes(from), k));
    for (size_t r = 0; r < count && m->k < m->k_padded; r++)
        memset(converted + r * m->panel_bytes + m->k * iv_dtype_bytes(m->type), 0,
               (m->k_padded - m->k) * iv_dtype_bytes(m->type));
    iv_status status = put_rows(m, memspace, converted, m->panel_bytes, first, count, err);
    free(converted);
    return status;
}

/* Row by row as floats, which are exact in m->type. */
static void unpack_packed(const iv_matrix *m, void *rows, size_t stride, size_t first, size_t count) {
    float *row = malloc(m->k * sizeof *row);
    IV_ASSERT(row);
    for (size_t r = 0; r < count; r++) {
        iv_matrix_row(m, first + r, row);
        for (size_t k = 0; k < m->k; k++) put_f32(m->type, rows, r * stride + k, row[k]);
    }
    free(row);
}

void iv_matrix_unpack(const iv_matrix *m, void *rows, size_t stride, size_t first, size_t count) {
    IV_ASSERT(first + count <= m->n && m->panel_columns == C);
    size_t width = iv_dtype_bytes(m->type);
    if (!iv_weight_is_plain(m->format)) {
        unpack_packed(m, rows, stride, first, count);
        return;
    }
    for (size_t r = 0; r < count; r++) {
        const unsigned char *panel = iv_matrix_panel(m, (first + r) / C);
        unsigned char *row = (unsigned char *)rows + r * stride * width;
        for (size_t k = 0; k < m->k; k++)
            memcpy(row + k * width, panel + iv_panel_index(m->type, k, (first + r) % C) * width, width);
    }
}

void iv_matrix_row(const iv_matrix *m, size_t n, float *out) {
    if (m->terms) {
        iv_int8_row(m, n, out);
        return;
    }
    if (!iv_weight_is_plain(m->format)) {
        iv_packed_panel_row(m, n, out);
        return;
    }
    const unsigned char *panel = iv_matrix_panel(m, n / C);
    for (size_t k = 0; k < m->k; k++) out[k] = iv_element(m->type, panel, iv_panel_index(m->type, k, n % C));
}
