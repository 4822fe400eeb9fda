/* int8_matrix.c: weights as int8 codes in panels. */
#include "base/size.h"
#include "kernels/int8.h"
#include "numerics/floats.h"

#include <stdlib.h>
#include <string.h>

enum { C = IV_PANEL_COLUMNS, PIECE = 512 };

bool iv_int8_shape(iv_matrix *m, int terms) {
    size_t total;
    IV_ASSERT(m->k <= IV_INT8_K_MAX && terms >= 1 && terms <= IV_INT8_TERMS_MAX);
    m->format = IV_WEIGHT_INT8, m->terms = terms;
    m->panel_bytes = m->panel_columns == C ? IV_INT8_HEAD_BYTES + m->k_padded * C : m->k_padded + sizeof(float);
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

/* Of a whole row of the layer. */
static iv_int8_scale scale_of(const iv_matrix *m, iv_dtype type, const void *row, size_t columns) {
    float piece[PIECE];
    uint32_t magnitude = 0;
    for (size_t at = 0, n; at < columns; at += n) {
        n = iv_size_min(PIECE, columns - at);
        uint32_t here = iv_ref_int8_magnitude(m->type, rounded(m, type, row, at, n, piece), n);
        if (here > magnitude) magnitude = here;
    }
    return iv_ref_int8_scale(magnitude, 1);
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
        iv_int8_scale s = scale_of(m, type, row, columns);
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

/* ---- rows in a memory space ------------------------------------------------------------------------------------- */

/* Rows from `first` on, at most `count`: runs of rows that lie one behind another, as far apart again. */
typedef struct runs {
    size_t run, count;
} runs;

static runs runs_of(const iv_matrix *m, size_t first, size_t count) {
    if (!m->paired) return (runs){count, 1};
    size_t half = m->n / 2, left = iv_size_min(count, half - first % half);
    if (first % 8 || left < 8) return (runs){iv_size_min(left, 8 - first % 8), 1};
    return (runs){8, left / 8};
}

static unsigned char *codes_at(const iv_matrix *m, size_t row) {
    return m->data + iv_matrix_row_index(m, row) * m->k_padded;
}
static unsigned char *scale_at(const iv_matrix *m, size_t row) {
    return m->data + m->n * m->k_padded + iv_matrix_row_index(m, row) * sizeof(float);
}

/* Codes [count][k_padded] and their scales. */
static iv_status write_rows(iv_matrix *m, iv_memspace *memspace, const int8_t *codes, const float *scales, size_t first,
                            size_t count, iv_error *err) {
    for (size_t at = 0; at < count;) {
        runs r = runs_of(m, first + at, count - at);
        size_t bytes = r.run * m->k_padded, of_scales = r.run * sizeof *scales;
        if (bytes)
            IV_TRY(memspace->write(memspace, codes_at(m, first + at), 2 * bytes, codes + at * m->k_padded, bytes, bytes,
                                   r.count, err));
        IV_TRY(memspace->write(memspace, scale_at(m, first + at), 2 * of_scales, scales + at, of_scales, of_scales,
                               r.count, err));
        at += r.run * r.count;
    }
    return IV_OK;
}

/* Room for some rows; NULL: there is none. */
typedef struct chunk {
    size_t rows;
    int8_t *codes;
    float *scales;
} chunk;

static iv_status open_chunk(const iv_matrix *m, size_t count, chunk *c, iv_error *err) {
    enum { CHUNK_BYTES = 1 << 20 };
    c->rows = iv_size_max(1, iv_size_min(count, CHUNK_BYTES / (m->k_padded + 1)));
    c->codes = calloc(c->rows, m->k_padded ? m->k_padded : 1), c->scales = calloc(c->rows, sizeof *c->scales);
    if (c->codes && c->scales) return IV_OK;
    free(c->codes), free(c->scales);
    return iv_fail(err, IV_NO_MEMORY, "weights: no memory to quantize %zu rows", c->rows);
}

static void close_chunk(chunk *c) { free(c->codes), free(c->scales); }

iv_status iv_int8_put_in(iv_matrix *m, iv_memspace *memspace, iv_dtype type, const void *rows, size_t columns,
                         size_t column, size_t first, size_t count, iv_error *err) {
    chunk c;
    float piece[PIECE];
    iv_status status = IV_OK;
    IV_ASSERT(first + count <= m->n && m->terms && column <= columns && m->k <= columns - column);
    IV_TRY(open_chunk(m, count, &c, err));
    for (size_t at = 0, n; status == IV_OK && at < count; at += n) {
        n = iv_size_min(c.rows, count - at);
        for (size_t r = 0; r < n; r++) {
            const char *row = (const char *)rows + (at + r) * columns * iv_dtype_bytes(type);
            iv_int8_scale s = scale_of(m, type, row, columns);
            c.scales[r] = s.scale;
            for (size_t k = 0, here; k < m->k; k += here) {
                here = iv_size_min(PIECE, m->k - k);
                iv_ref_int8_codes(m->type, rounded(m, type, row, column + k, here, piece), here, s.inverse, 1,
                                  c.codes + r * m->k_padded + k, NULL);
            }
        }
        status = write_rows(m, memspace, c.codes, c.scales, first + at, n, err);
    }
    close_chunk(&c);
    return status;
}

iv_status iv_int8_put_codes_in(iv_matrix *m, iv_memspace *memspace, const uint8_t *codes, const float *scales,
                               size_t columns, size_t column, size_t first, size_t count, iv_error *err) {
    chunk c;
    iv_status status = IV_OK;
    IV_ASSERT(first + count <= m->n && m->terms && column <= columns && m->k <= columns - column);
    IV_TRY(open_chunk(m, count, &c, err));
    for (size_t at = 0, n; status == IV_OK && at < count; at += n) {
        n = iv_size_min(c.rows, count - at);
        for (size_t r = 0; r < n; r++) memcpy(c.codes + r * m->k_padded, codes + (at + r) * columns + column, m->k);
        status = write_rows(m, memspace, c.codes, scales + at, first + at, n, err);
    }
    close_chunk(&c);
    return status;
}

static void put_value(iv_dtype type, void *row, size_t i, float x) {
    if (type == IV_F32)
        ((float *)row)[i] = x;
    else
        ((uint16_t *)row)[i] = type == IV_BF16 ? iv_bf16_from_f32(x) : iv_f16_from_f32(x);
}

iv_status iv_int8_get(const iv_matrix *m, iv_memspace *memspace, void *rows, size_t stride, size_t first, size_t count,
                      iv_error *err) {
    chunk c;
    iv_status status = IV_OK;
    IV_ASSERT(first + count <= m->n && m->terms && m->panel_columns == 1);
    IV_TRY(open_chunk(m, 1, &c, err));
    for (size_t r = 0; status == IV_OK && r < count && m->k; r++) {
        char *row = (char *)rows + r * stride * iv_dtype_bytes(m->type);
        status = memspace->read(memspace, c.codes, m->k, codes_at(m, first + r), m->k, m->k, 1, err);
        if (status == IV_OK)
            status = memspace->read(memspace, c.scales, sizeof(float), scale_at(m, first + r), sizeof(float),
                                    sizeof(float), 1, err);
        for (size_t k = 0; status == IV_OK && k < m->k; k++) put_value(m->type, row, k, (float)c.codes[k] * *c.scales);
    }
    close_chunk(&c);
    return status;
}
