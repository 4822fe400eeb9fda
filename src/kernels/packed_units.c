/* packed_units.c: the units of a matrix, written and read eight rows at a time. */
#include "kernels/packed_units.h"
#include "base/size.h"
#include "numerics/dequantize.h"
#include "numerics/floats.h"

#include <stdlib.h>
#include <string.h>

static size_t leaf_length(const iv_matrix *m) { return m->k_padded / (size_t)m->leaves; }
static size_t leaf_units(const iv_matrix *m) { return (leaf_length(m) + IV_UNIT_K - 1) / IV_UNIT_K; }

static size_t divisor(size_t a, size_t b) {
    while (b) {
        size_t rest = a % b;
        a = b, b = rest;
    }
    return a;
}

iv_unit_form iv_packed_units_form(const iv_matrix *m) {
    const iv_code_form *f = &m->codes;
    size_t scales = IV_UNIT_ROWS * iv_dtype_bytes(f->scale_type) * (f->second ? 2 : 1);
    iv_unit_form u = {.kind = f->kind, .second = f->second, .scale_type = f->scale_type};
    u.groups = (int)(IV_UNIT_K / f->group);
    u.code_bytes = IV_UNIT_ROWS * IV_UNIT_K * iv_code_bits(f->kind) / 8;
    u.bytes = u.code_bytes + u.groups * (int)scales;
    return u;
}

/* The form that units have for rows of form f; groups are set by the caller. */
static iv_code_form held_form(const iv_code_form *f) {
    iv_code_form held = *f;
    if (f->inner != IV_INNER_NONE) held.inner = IV_INNER_NONE, held.scale_type = IV_F32;
    if (iv_code_bits(f->kind) != 4 && iv_code_bits(f->kind) != 8) held.kind = IV_CODES_INT8;
    return held;
}

/* A code of 5 or 6 bits as int8. */
static uint8_t held_code(iv_code_kind kind, uint8_t code) {
    int bias = kind == IV_CODES_INT5 ? 16 : kind == IV_CODES_INT6 ? 32 : 0;
    return (uint8_t)(code - bias);
}

bool iv_packed_units_shape(iv_matrix *m, const iv_code_form *form) {
    size_t total, group = form->group;
    IV_ASSERT(m->panel_columns == 1 && (group % 16 == 0 || group >= m->k) && m->n % IV_UNIT_ROWS == 0 &&
              m->k == m->k_padded);
    m->format = form->format, m->codes = held_form(form);
    m->codes.group = group >= m->k ? IV_UNIT_K : divisor(IV_UNIT_K, group);
    if (m->leaves > 1 && group < m->k) m->codes.group = divisor(m->codes.group, leaf_length(m));
    m->codes.outer = m->codes.group;
    m->panel_columns = IV_UNIT_ROWS, m->panels = m->n / IV_UNIT_ROWS;
    return iv_size_mul(leaf_units(m) * (size_t)m->leaves, (size_t)iv_packed_units_form(m).bytes, &m->panel_bytes) &&
           iv_size_mul(m->panels, m->panel_bytes, &total);
}

/* Of a column of a unit: the byte of its code in row 0, and its shift if of 4 bits. Rows are row_bytes apart. */
typedef struct places {
    size_t row_bytes;
    uint8_t byte[IV_UNIT_K], shift[IV_UNIT_K];
} places;

static places places_of(int bits) {
    places p = {.row_bytes = IV_UNIT_K * (size_t)bits / 8};
    for (size_t column = 0; column < IV_UNIT_K; column++) {
        size_t step = column / 16, lane = column % 8 / 2, second = column % 2, high = column % 16 / 8;
        if (bits == 8) {
            p.byte[column] = (uint8_t)(lane * 16 + step * 4 + high * 2 + second);
            continue;
        }
        size_t nibble = step % 2 * 2 + high + second * 4;
        p.byte[column] = (uint8_t)(lane * 8 + step / 2 * 4 + nibble / 2), p.shift[column] = (uint8_t)(nibble % 2 * 4);
    }
    return p;
}

static void put_scale(iv_dtype type, unsigned char *at, float x) {
    if (type == IV_F32) {
        memcpy(at, &x, sizeof x);
        return;
    }
    uint16_t h = type == IV_BF16 ? iv_bf16_from_f32(x) : iv_f16_from_f32(x);
    memcpy(at, &h, sizeof h);
}

static float scale_from(iv_dtype type, const unsigned char *at) {
    float x;
    uint16_t h;
    if (type == IV_F32) {
        memcpy(&x, at, sizeof x);
        return x;
    }
    memcpy(&h, at, sizeof h);
    return type == IV_BF16 ? iv_bf16_to_f32(h) : iv_f16_to_f32(h);
}

/* The scale (or second, `back` elements behind it) of a group and a row. */
static size_t scale_at(const iv_unit_form *u, size_t group, size_t row, bool second) {
    size_t index = group * IV_UNIT_ROWS + row + (second ? (size_t)u->groups * IV_UNIT_ROWS : 0);
    return (size_t)u->code_bytes + index * iv_dtype_bytes(u->scale_type);
}

/* The columns of a matrix, unit by unit: first is the first column of unit `index` of eight rows, which has `count`. */
typedef struct unit_columns {
    size_t index, first, count;
} unit_columns;

static unit_columns columns_of(const iv_matrix *m, size_t index) {
    size_t at = index % leaf_units(m) * IV_UNIT_K, first = index / leaf_units(m) * leaf_length(m) + at;
    size_t end = iv_size_min(iv_size_min(first - at + leaf_length(m), first + IV_UNIT_K), m->k);
    return (unit_columns){index, first, end > first ? end - first : 0};
}

/* Scale and second of a column of the matrix, from row `row` of in. */
static void numbers_of(const iv_packed_rows_in *in, size_t row, size_t column, float *scale, float *second) {
    const iv_code_form *f = in->form;
    size_t at = in->column + column, group = row * iv_code_groups(f, in->columns) + at / f->group;
    size_t outer = row * iv_code_outers(f, in->columns) + at / f->outer;
    bool inner = f->inner != IV_INNER_NONE;
    *scale = in->rows.scales[group], *second = f->second == IV_SECOND_NONE ? 0.0f : in->rows.seconds[group];
    if (inner && f->second != IV_SECOND_NONE) *second = iv_code_second_of(f, in->rows.outer_seconds[outer], *second);
    if (inner) *scale = iv_code_scale(f, in->rows.outer_scales[outer], *scale);
}

/* Row r of a unit, from row `row` of in. */
static void put_row(const iv_matrix *m, const iv_unit_form *u, const places *at, const iv_packed_rows_in *in,
                    size_t row, size_t r, const unit_columns *c, unsigned char *unit) {
    const uint8_t *codes = in->rows.codes + row * in->columns + in->column + c->first;
    unsigned char *to = unit + r * at->row_bytes;
    bool bytes = iv_code_bits(u->kind) == 8;
    uint8_t none = u->kind == IV_CODES_INT4 ? 8 : 0; /* of columns beyond the leaf */
    for (size_t k = 0; k < IV_UNIT_K; k++) {
        uint8_t code = k < c->count ? held_code(in->form->kind, codes[k]) : none;
        unsigned char *byte = &to[at->byte[k]];
        *byte = (unsigned char)(bytes ? code : (*byte & ~(15 << at->shift[k])) | (code & 15) << at->shift[k]);
    }
    for (size_t k = 0; k < c->count; k += m->codes.group) {
        size_t group = k / m->codes.group;
        float scale, second;
        numbers_of(in, row, c->first + k, &scale, &second);
        put_scale(u->scale_type, unit + scale_at(u, group, r, false), scale);
        if (u->second) put_scale(u->scale_type, unit + scale_at(u, group, r, true), second);
    }
}

/* Rows [from, to) of the eight at `panel`, of which row 0 is row `first` of in. */
static void put_rows(const iv_matrix *m, const iv_unit_form *u, const places *at, const iv_packed_rows_in *in,
                     size_t first, size_t from, size_t to, unsigned char *panel) {
    for (size_t i = 0; i < m->panel_bytes / (size_t)u->bytes; i++) {
        unit_columns c = columns_of(m, i);
        for (size_t r = from; r < to; r++) put_row(m, u, at, in, first + r - from, r, &c, panel + i * (size_t)u->bytes);
    }
}

iv_status iv_packed_units_put(iv_matrix *m, iv_memspace *memspace, const iv_packed_rows_in *in, size_t first,
                              size_t count, iv_error *err) {
    IV_ASSERT(first + count <= m->n);
    iv_unit_form u = iv_packed_units_form(m);
    places at = places_of(iv_code_bits(u.kind));
    size_t bytes = m->panel_bytes;
    unsigned char *panel = malloc(bytes);
    iv_status status = panel ? IV_OK : iv_fail(err, IV_NO_MEMORY, "no memory for eight rows of a packed matrix");
    for (size_t row = 0, here; status == IV_OK && row < count; row += here) {
        size_t index = iv_matrix_row_index(m, first + row), from = index % IV_UNIT_ROWS;
        unsigned char *to = m->data + index / IV_UNIT_ROWS * bytes;
        here = iv_size_min(IV_UNIT_ROWS - from, count - row);
        memset(panel, 0, bytes);
        if (here < IV_UNIT_ROWS) status = memspace->read(memspace, panel, bytes, to, bytes, bytes, 1, err);
        put_rows(m, &u, &at, in, row, from, from + here, panel);
        if (status == IV_OK) status = memspace->write(memspace, to, bytes, panel, bytes, bytes, 1, err);
    }
    free(panel);
    return status;
}

static void get_row(const iv_matrix *m, const iv_unit_form *u, const unsigned char *panel, size_t r, float *out) {
    places at = places_of(iv_code_bits(u->kind));
    for (size_t i = 0; i < m->panel_bytes / (size_t)u->bytes; i++) {
        const unsigned char *unit = panel + i * (size_t)u->bytes, *row = unit + r * at.row_bytes;
        unit_columns c = columns_of(m, i);
        for (size_t k = 0; k < c.count; k++) {
            uint8_t code = (uint8_t)(row[at.byte[k]] >> at.shift[k]);
            size_t group = k / m->codes.group;
            float second = u->second ? scale_from(u->scale_type, unit + scale_at(u, group, r, true)) : 0.0f;
            out[c.first + k] =
                iv_code_value(&m->codes, code, scale_from(u->scale_type, unit + scale_at(u, group, r, false)), second);
        }
    }
}

iv_status iv_packed_units_get(const iv_matrix *m, iv_memspace *memspace, void *rows, size_t stride, size_t first,
                              size_t count, iv_error *err) {
    iv_unit_form u = iv_packed_units_form(m);
    unsigned char *panel = malloc(m->panel_bytes);
    float *row = malloc((m->k ? m->k : 1) * sizeof *row);
    iv_status status = panel && row ? IV_OK : iv_fail(err, IV_NO_MEMORY, "no memory for rows of a packed matrix");
    size_t held = SIZE_MAX;
    for (size_t i = 0; status == IV_OK && i < count; i++) {
        size_t at = iv_matrix_row_index(m, first + i), p = at / IV_UNIT_ROWS;
        if (p != held)
            status = memspace->read(memspace, panel, m->panel_bytes, m->data + p * m->panel_bytes, m->panel_bytes,
                                    m->panel_bytes, 1, err);
        if (status != IV_OK) break;
        held = p;
        get_row(m, &u, panel, at % IV_UNIT_ROWS, row);
        iv_weights_round(m->type, row, m->k, (char *)rows + i * stride * iv_dtype_bytes(m->type));
    }
    free(panel), free(row);
    return status;
}
