/* packed.c: codes, scales and zero points of the rows that are asked for, as they are or widened by the law's
 * reference. */
#include "format/packed.h"
#include "base/size.h"
#include "numerics/dequantize.h"
#include "numerics/floats.h"

#include <stdlib.h>
#include <string.h>

/* ---- checks --------------------------------------------------------------------------------------------- */

static bool is_float(iv_dtype t) { return t == IV_BF16 || t == IV_F16 || t == IV_F32; }
static bool is_transposed(iv_weight_format f) { return f >= IV_WEIGHT_AWQ && f <= IV_WEIGHT_GPTQ8; }
static size_t bits(const iv_packed *p) { return (size_t)iv_weight_facts_of(p->format)->bits; }
static size_t per_word(const iv_packed *p) { return 32 / bits(p); }

/* Bytes of a row of data. */
static bool row_bytes(const iv_packed *p, size_t *out) {
    const iv_weight_facts *f = iv_weight_facts_of(p->format);
    if (iv_weight_is_plain(p->format)) return iv_size_mul(p->columns, f->block_bytes, out);
    if (iv_weight_is_gguf_block(p->format))
        return p->columns % f->block == 0 && iv_size_mul(p->columns / f->block, f->block_bytes, out);
    if (p->format == IV_WEIGHT_PACK4 || p->format == IV_WEIGHT_PACK8) {
        *out = (p->columns / per_word(p) + (p->columns % per_word(p) != 0)) * 4;
        return true;
    }
    *out = f->bits == 4 ? p->columns / 2 : p->columns;
    return f->bits != 4 || p->columns % 2 == 0;
}

static iv_status check_bytes(const iv_tensor_info *t, size_t rows, size_t columns, size_t width, const char *of,
                             iv_error *err) {
    size_t n;
    if (!iv_size_mul(rows, columns, &n) || !iv_size_mul(n, width, &n) || n != t->bytes)
        return iv_fail(err, IV_FORMAT, "%s: wanted %zu x %zu elements of %zu bytes for %s, found %zu bytes", t->name,
                       rows, columns, width, of, t->bytes);
    return IV_OK;
}

static iv_status check_scales(const iv_packed *p, iv_error *err) {
    const iv_weight_facts *f = iv_weight_facts_of(p->format);
    const iv_tensor_info *s = p->scale;
    if (!s) return iv_fail(err, IV_FORMAT, "%s: has no scales", p->data->name);
    bool e8m0 = s->dtype == IV_U8 || s->dtype == IV_F8_E8M0;
    bool right = f->scale == IV_SCALE_E8M0          ? e8m0
                 : f->scale == IV_SCALE_E4M3_TENSOR ? s->dtype == IV_F8_E4M3
                                                    : is_float(s->dtype) || e8m0;
    if (!right)
        return iv_fail(err, IV_UNSUPPORTED, "%s: scales of %s weights cannot be %s", s->name, f->name,
                       iv_dtype_name(s->dtype));
    IV_ASSERT(p->block_rows && p->group && p->scale_rows && p->scale_columns);
    IV_TRY(check_bytes(s, p->scale_rows, p->scale_columns, iv_dtype_bytes(s->dtype), p->data->name, err));
    bool wide =
        is_transposed(p->format)
            ? p->scale_rows >= (p->columns - 1) / p->group + 1 && p->scale_columns == p->rows
            : p->scale_rows >= (p->rows - 1) / p->block_rows + 1 && p->scale_columns >= (p->columns - 1) / p->group + 1;
    if (!wide)
        return iv_fail(err, IV_FORMAT, "%s: wanted scales of %zu x %zu weights in groups of %zu x %zu, found %zu x %zu",
                       s->name, p->rows, p->columns, p->block_rows, p->group, p->scale_rows, p->scale_columns);
    if (f->scale == IV_SCALE_E4M3_TENSOR && !p->global)
        return iv_fail(err, IV_FORMAT, "%s: has no global scale", p->data->name);
    if (p->global && (p->global->dtype != IV_F32 || p->global->elements != 1))
        return iv_fail(err, IV_FORMAT, "%s: wanted one float32, found %zu of %s", p->global->name, p->global->elements,
                       iv_dtype_name(p->global->dtype));
    return IV_OK;
}

static iv_status check_zeros(const iv_packed *p, iv_error *err) {
    if (!p->zero) return IV_OK;
    if (p->format == IV_WEIGHT_INT8 || p->format == IV_WEIGHT_FP8) {
        if (p->zero->dtype != IV_I8)
            return iv_fail(err, IV_UNSUPPORTED, "%s: wanted int8, found %s", p->zero->name,
                           iv_dtype_name(p->zero->dtype));
        return check_bytes(p->zero, p->scale_rows, p->scale_columns, 1, p->data->name, err);
    }
    size_t words = (p->rows + per_word(p) - 1) / per_word(p);
    if (is_transposed(p->format)) return check_bytes(p->zero, p->scale_rows, words, 4, p->data->name, err);
    return check_bytes(p->zero, words, p->scale_columns, 4, p->data->name, err);
}

iv_status iv_packed_check(const iv_packed *p, iv_error *err) {
    size_t row, n;
    if (p->rows == 0 || p->columns == 0) return iv_fail(err, IV_FORMAT, "%s: is empty", p->data->name);
    if (is_transposed(p->format)) {
        bool awq = p->format == IV_WEIGHT_AWQ;
        size_t along = awq ? p->rows : p->columns;
        if (along % per_word(p) != 0)
            return iv_fail(err, IV_FORMAT, "%s: wanted a multiple of %zu, found %zu", p->data->name, per_word(p),
                           along);
        IV_TRY(check_bytes(p->data, awq ? p->columns : p->columns / per_word(p), awq ? p->rows / per_word(p) : p->rows,
                           4, "its shape", err));
        if (p->group_of && (p->group_of->dtype != IV_I32 || p->group_of->elements != p->columns))
            return iv_fail(err, IV_FORMAT, "%s: wanted %zu of int32, found %zu of %s", p->group_of->name, p->columns,
                           p->group_of->elements, iv_dtype_name(p->group_of->dtype));
    } else {
        if (!row_bytes(p, &row))
            return iv_fail(err, IV_FORMAT, "%s: rows of %zu do not divide into blocks of %s", p->data->name, p->columns,
                           iv_weight_facts_of(p->format)->name);
        if (!iv_size_add(p->base, p->rows, &n) || !iv_size_mul(n, row, &n) || n > p->data->bytes)
            return iv_fail(err, IV_FORMAT, "%s: wanted %zu rows of %zu bytes, found %zu bytes", p->data->name,
                           p->base + p->rows, row, p->data->bytes);
        if (p->head_rows && (p->head_rows % 2 || p->rows % p->head_rows))
            return iv_fail(err, IV_FORMAT, "%s: %zu rows do not divide into heads of %zu", p->data->name, p->rows,
                           p->head_rows);
    }
    if (iv_weight_facts_of(p->format)->scale == IV_SCALE_NONE || iv_weight_is_gguf_block(p->format)) return IV_OK;
    IV_TRY(check_scales(p, err));
    return check_zeros(p, err);
}

size_t iv_packed_bytes(const iv_packed *p, size_t rows) {
    size_t row = 0;
    if (is_transposed(p->format)) return rows == p->rows ? p->data->bytes : p->data->bytes / p->rows * rows;
    IV_ASSERT(row_bytes(p, &row));
    return row * rows;
}

/* ---- scales --------------------------------------------------------------------------------------------- */

typedef struct widening {
    const iv_packed *p;
    iv_packed_source *source;
    void *user;
    iv_error *err;
    uint8_t *raw;          /* of data */
    float *scales, *zeros; /* of the rows at hand */
    int32_t *groups;
} widening;

static float scale_value(const iv_packed *p, const uint8_t *raw, size_t i) {
    switch (p->scale->dtype) {
    case IV_F8_E4M3: return iv_e4m3_to_f32(raw[i]);
    case IV_U8:
    case IV_F8_E8M0: return iv_e8m0_to_f32(raw[i]);
    default: return iv_element(p->scale->dtype, raw, i);
    }
}

/* Rows [first, first + rows) of the scales, as float32. */
static iv_status read_scales(widening *w, size_t first, size_t rows) {
    const iv_packed *p = w->p;
    size_t width = iv_dtype_bytes(p->scale->dtype), n = rows * p->scale_columns;
    uint8_t *raw = malloc(n * width);
    w->scales = malloc(n * sizeof *w->scales);
    if (!raw || !w->scales) {
        free(raw);
        return iv_fail(w->err, IV_NO_MEMORY, "%s: no memory for its scales", p->data->name);
    }
    float global = 1;
    iv_status status = w->source(w->user, p->scale, raw, first * p->scale_columns * width, n * width, w->err);
    if (status == IV_OK && p->global) status = w->source(w->user, p->global, &global, 0, sizeof global, w->err);
    for (size_t i = 0; status == IV_OK && i < n; i++) {
        float s = scale_value(p, raw, i);
        w->scales[i] = !p->global ? s : p->global_use == IV_GLOBAL_DIVIDES ? s / global : s * global;
    }
    free(raw);
    return status;
}

/* The zero points of the rows at hand: [rows][scale_columns], as their codes' values. */
static iv_status read_zeros(widening *w, size_t first, size_t rows) {
    const iv_packed *p = w->p;
    size_t columns = p->scale_columns;
    if (!p->zero) return IV_OK;
    bool bytes = p->format == IV_WEIGHT_INT8 || p->format == IV_WEIGHT_FP8;
    size_t per = bytes ? p->block_rows : per_word(p), begin = first / per, count = (first + rows - 1) / per + 1 - begin;
    size_t width = bytes ? 1 : 4, n = count * columns * width;
    uint8_t *raw = malloc(n);
    w->zeros = malloc(rows * columns * sizeof *w->zeros);
    iv_status status = raw && w->zeros ? w->source(w->user, p->zero, raw, begin * columns * width, n, w->err)
                                       : iv_fail(w->err, IV_NO_MEMORY, "%s: no memory", p->data->name);
    for (size_t r = 0; status == IV_OK && r < rows; r++)
        for (size_t g = 0; g < columns; g++) {
            size_t at = ((first + r) / per - begin) * columns + g;
            uint32_t word;
            if (bytes) {
                w->zeros[r * columns + g] = (float)(int8_t)raw[at];
                continue;
            }
            memcpy(&word, raw + 4 * at, sizeof word);
            int code = (int)(word >> ((first + r) % per * bits(p)) & ((1u << bits(p)) - 1));
            w->zeros[r * columns + g] = (float)(code - (1 << (bits(p) - 1)));
        }
    free(raw);
    return status;
}

/* ---- rows that lie one after another -------------------------------------------------------------------- */

/* Where a row lies: a head's row i of its first half and row i of its second are neighbours there. */
static size_t stored_row(const iv_packed *p, size_t r) {
    if (!p->head_rows) return p->base + r;
    size_t head = r / p->head_rows, i = r % p->head_rows, half = p->head_rows / 2;
    return p->base + head * p->head_rows + i % half * 2 + i / half;
}

static iv_status read_codes(widening *w, size_t first, size_t rows, size_t row) {
    const iv_packed *p = w->p;
    w->raw = malloc(rows * row);
    if (!w->raw) return iv_fail(w->err, IV_NO_MEMORY, "%s: no memory for %zu rows", p->data->name, rows);
    if (!p->head_rows) return w->source(w->user, p->data, w->raw, stored_row(p, first) * row, rows * row, w->err);
    for (size_t r = 0; r < rows; r++)
        IV_TRY(w->source(w->user, p->data, w->raw + r * row, stored_row(p, first + r) * row, row, w->err));
    return IV_OK;
}

static iv_status by_rows(widening *w, size_t first, size_t rows, float *out) {
    const iv_packed *p = w->p;
    size_t row = 0, first_scale = first / (p->block_rows ? p->block_rows : 1);
    IV_ASSERT(row_bytes(p, &row));
    IV_TRY(read_codes(w, first, rows, row));
    if (p->scale) {
        IV_TRY(read_scales(w, first_scale, (first + rows - 1) / p->block_rows + 1 - first_scale));
        IV_TRY(read_zeros(w, first, rows));
    }
    for (size_t r = 0; r < rows; r++, out += p->columns) {
        const uint8_t *codes = w->raw + r * row;
        if (iv_weight_is_plain(p->format))
            for (size_t i = 0; i < p->columns; i++) out[i] = iv_element((iv_dtype)p->format, codes, i);
        else if (iv_weight_is_gguf_block(p->format))
            iv_dequantize_gguf(p->format, codes, p->columns, out);
        else
            iv_dequantize_codes(p->format, codes, 0, p->columns,
                                w->scales + ((first + r) / p->block_rows - first_scale) * p->scale_columns,
                                w->zeros ? w->zeros + r * p->scale_columns : NULL, p->group, out);
    }
    return IV_OK;
}

/* ---- AWQ, GPTQ: outputs lie along the rows of the file -------------------------------------------------- */

/* Words [begin, end) of every row of a matrix of int32. */
static iv_status read_words(widening *w, const iv_tensor_info *t, size_t rows, size_t columns, size_t begin, size_t end,
                            uint32_t **out) {
    size_t n = end - begin;
    *out = malloc(rows * n * sizeof **out);
    if (!*out) return iv_fail(w->err, IV_NO_MEMORY, "%s: no memory for %zu rows", t->name, rows);
    for (size_t k = 0; k < rows; k++)
        IV_TRY(w->source(w->user, t, *out + k * n, (k * columns + begin) * 4, n * 4, w->err));
    return IV_OK;
}

static size_t nibble_of(const iv_packed *p, size_t output) {
    static const uint8_t awq[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    return p->format == IV_WEIGHT_AWQ ? awq[output % 8] : output % per_word(p);
}

static iv_status group_of(widening *w, size_t k, size_t *out) {
    *out = w->groups ? (size_t)w->groups[k] : k / w->p->group;
    if ((w->groups && w->groups[k] < 0) || *out >= w->p->scale_rows)
        return iv_fail(w->err, IV_FORMAT, "%s: input %zu: wanted a group below %zu, found %zd", w->p->data->name, k,
                       w->p->scale_rows, (ptrdiff_t)*out);
    return IV_OK;
}

/* The words that hold the codes and zero points of some outputs. */
typedef struct columns {
    uint32_t *codes, *zeros;
    size_t begin, words, code_words; /* begin: the first word of a row of zeros, and of codes where they lie so */
} columns;

static iv_status read_columns(widening *w, size_t first, size_t rows, columns *c) {
    const iv_packed *p = w->p;
    bool awq = p->format == IV_WEIGHT_AWQ;
    size_t per = per_word(p), end = (first + rows - 1) / per + 1;
    c->begin = first / per, c->words = end - c->begin, c->code_words = awq ? c->words : rows;
    IV_TRY(read_words(w, p->data, awq ? p->columns : p->columns / per, awq ? p->rows / per : p->rows,
                      awq ? c->begin : first, awq ? end : first + rows, &c->codes));
    if (p->zero) IV_TRY(read_words(w, p->zero, p->scale_rows, (p->rows + per - 1) / per, c->begin, end, &c->zeros));
    return read_scales(w, 0, p->scale_rows);
}

/* Of input k and of group g, output first + r. */
static uint32_t column_code(const iv_packed *p, const columns *c, size_t first, size_t k, size_t r) {
    size_t output = first + r, per = per_word(p);
    uint32_t word = p->format == IV_WEIGHT_AWQ
                        ? c->codes[k * c->code_words + output / per - c->begin] >> nibble_of(p, output) * bits(p)
                        : c->codes[k / per * c->code_words + r] >> (k % per * bits(p));
    return word & ((1u << bits(p)) - 1);
}

static uint32_t column_zero(const iv_packed *p, const columns *c, size_t first, size_t g, size_t r) {
    size_t output = first + r;
    uint32_t mask = (1u << bits(p)) - 1;
    if (!c->zeros) return 1u << (bits(p) - 1);
    uint32_t z = c->zeros[g * c->words + output / per_word(p) - c->begin] >> nibble_of(p, output) * bits(p) & mask;
    return p->zero_from_one ? (z + 1) & mask : z;
}

static iv_status by_columns(widening *w, size_t first, size_t rows, float *out) {
    const iv_packed *p = w->p;
    columns c = {0};
    iv_status status = read_columns(w, first, rows, &c);
    if (status == IV_OK && p->group_of) {
        w->groups = malloc(p->group_of->bytes);
        status = w->groups ? w->source(w->user, p->group_of, w->groups, 0, p->group_of->bytes, w->err)
                           : iv_fail(w->err, IV_NO_MEMORY, "%s: no memory", p->group_of->name);
    }
    for (size_t k = 0, g; status == IV_OK && k < p->columns; k++) {
        status = group_of(w, k, &g);
        for (size_t r = 0; status == IV_OK && r < rows; r++) {
            int q = (int)column_code(p, &c, first, k, r) - (int)column_zero(p, &c, first, g, r);
            out[r * p->columns + k] = (float)q * w->scales[g * p->scale_columns + first + r];
        }
    }
    free(c.codes), free(c.zeros);
    return status;
}

iv_status iv_packed_rows(const iv_packed *p, iv_packed_source *source, void *user, size_t first, size_t rows,
                         float *out, iv_error *err) {
    widening w = {.p = p, .source = source, .user = user, .err = err};
    IV_ASSERT(first <= p->rows && rows <= p->rows - first);
    if (rows == 0) return IV_OK;
    iv_status status = (is_transposed(p->format) ? by_columns : by_rows)(&w, first, rows, out);
    free(w.raw), free(w.scales), free(w.zeros), free(w.groups);
    for (size_t i = 0; p->minus_one && status == IV_OK && i < rows * p->columns; i++) out[i] -= 1.0f;
    return status;
}

/* ---- codes ---------------------------------------------------------------------------------------------- */

static iv_code_kind kind_of(iv_weight_format f) {
    switch (f) {
    case IV_WEIGHT_FP8:
    case IV_WEIGHT_MXFP8: return IV_CODES_E4M3;
    case IV_WEIGHT_INT8:
    case IV_WEIGHT_PACK8:
    case IV_WEIGHT_GPTQ8: return IV_CODES_INT8;
    case IV_WEIGHT_PACK4:
    case IV_WEIGHT_AWQ:
    case IV_WEIGHT_GPTQ4: return IV_CODES_INT4;
    default: return IV_CODES_E2M1;
    }
}

/* A zero point of up to nine bits is exact in all three types. */
static iv_dtype scale_type_of(const iv_packed *p) {
    if (p->global) return IV_F32;
    return is_float(p->scale->dtype) ? p->scale->dtype : IV_BF16; /* a power of two, or e4m3 */
}

bool iv_packed_form(const iv_packed *p, iv_code_form *out) {
    if (!p->data || iv_weight_is_plain(p->format) || p->group_of || p->minus_one) return false;
    if (iv_weight_is_gguf_block(p->format)) {
        *out = iv_gguf_form(p->format);
        return true;
    }
    *out = (iv_code_form){.format = p->format,
                          .kind = kind_of(p->format),
                          .second = p->zero ? IV_SECOND_ZERO : IV_SECOND_NONE,
                          .scale_type = scale_type_of(p),
                          .group = iv_size_min(p->group, p->columns)};
    return p->group >= p->columns || p->group % 16 == 0;
}

static size_t groups_of(const iv_packed *p, const iv_code_form *f) { return (p->columns - 1) / f->group + 1; }

/* A byte for each code of a row as it lies in the file. */
static void spread_codes(const iv_packed *p, const uint8_t *row, uint8_t *out) {
    if (iv_weight_facts_of(p->format)->bits == 4)
        for (size_t i = 0; i < p->columns; i++) out[i] = row[i / 2] >> (i % 2 * 4) & 15;
    else
        for (size_t i = 0; i < p->columns; i++) out[i] = p->format == IV_WEIGHT_PACK8 ? row[i] ^ 128 : row[i];
}

static iv_status codes_by_rows(widening *w, const iv_code_form *f, size_t first, size_t rows, iv_packed_codes_out *o) {
    const iv_packed *p = w->p;
    size_t row = 0, first_scale = first / (p->block_rows ? p->block_rows : 1), groups = groups_of(p, f);
    IV_ASSERT(row_bytes(p, &row));
    IV_TRY(read_codes(w, first, rows, row));
    if (p->scale) {
        IV_TRY(read_scales(w, first_scale, (first + rows - 1) / p->block_rows + 1 - first_scale));
        IV_TRY(read_zeros(w, first, rows));
    }
    for (size_t r = 0; r < rows; r++) {
        const uint8_t *from = w->raw + r * row;
        float *seconds = o->seconds + r * groups;
        if (iv_weight_is_gguf_block(p->format)) {
            iv_gguf_codes(p->format, from, p->columns, o->codes + r * p->columns, o->scales + r * groups, seconds);
            continue;
        }
        spread_codes(p, from, o->codes + r * p->columns);
        size_t at = ((first + r) / p->block_rows - first_scale) * p->scale_columns;
        memcpy(o->scales + r * groups, w->scales + at, groups * sizeof *o->scales);
        if (w->zeros) memcpy(seconds, w->zeros + r * p->scale_columns, groups * sizeof *seconds);
    }
    return IV_OK;
}

/* Codes and zero points are stored with the same offset. */
static void column_codes(const widening *w, const columns *c, const iv_code_form *f, size_t first, size_t rows,
                         iv_packed_codes_out *o) {
    const iv_packed *p = w->p;
    size_t groups = groups_of(p, f);
    int middle = 1 << (bits(p) - 1);
    for (size_t k = 0; k < p->columns; k++)
        for (size_t r = 0; r < rows; r++) {
            uint32_t q = column_code(p, c, first, k, r);
            o->codes[r * p->columns + k] = (uint8_t)(f->kind == IV_CODES_INT8 ? (int)q - middle : (int)q);
        }
    for (size_t g = 0; g < groups; g++)
        for (size_t r = 0; r < rows; r++) {
            o->scales[r * groups + g] = w->scales[g * p->scale_columns + first + r];
            if (p->zero) o->seconds[r * groups + g] = (float)((int)column_zero(p, c, first, g, r) - middle);
        }
}

iv_status iv_packed_codes(const iv_packed *p, iv_packed_source *source, void *user, size_t first, size_t rows,
                          iv_packed_codes_out *out, iv_error *err) {
    widening w = {.p = p, .source = source, .user = user, .err = err};
    iv_code_form f;
    IV_ASSERT(first <= p->rows && rows <= p->rows - first && iv_packed_form(p, &f));
    if (rows == 0) return IV_OK;
    iv_status status;
    if (is_transposed(p->format)) {
        columns c = {0};
        status = read_columns(&w, first, rows, &c);
        if (status == IV_OK) column_codes(&w, &c, &f, first, rows, out);
        free(c.codes), free(c.zeros);
    } else {
        status = codes_by_rows(&w, &f, first, rows, out);
    }
    free(w.raw), free(w.scales), free(w.zeros), free(w.groups);
    return status;
}
