/* tensor_data.c: between a checkpoint's rows and the slices that ranks hold. */
#include "model/tensor_data.h"
#include "base/size.h"
#include "kernels/int8.h"
#include "kernels/packed_panel.h"
#include "kernels/packed_units.h"
#include "numerics/floats.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 1024 * 1024 };

/* ---- checks --------------------------------------------------------------------------------------------- */

/* Index of the first value that is a NaN or an infinity; n if all are finite. */
static size_t first_not_finite(iv_dtype type, const void *p, size_t n) {
    static const uint32_t exponent[3] = {0x7f80u, 0x7c00u, 0x7f800000u};
    uint32_t mask = exponent[type];
    for (size_t at = 0; at < n; at += 256) { /* blocks without a branch inside */
        size_t end = iv_size_min(at + 256, n);
        uint32_t bad = 0;
        if (type == IV_F32)
            for (size_t i = at; i < end; i++) bad |= (((const uint32_t *)p)[i] & mask) == mask;
        else
            for (size_t i = at; i < end; i++) bad |= (((const uint16_t *)p)[i] & mask) == mask;
        if (!bad) continue;
        for (size_t i = at; i < end; i++) {
            uint32_t u = type == IV_F32 ? ((const uint32_t *)p)[i] : ((const uint16_t *)p)[i];
            if ((u & mask) == mask) return i;
        }
    }
    return n;
}

static void to_floats(iv_dtype type, const void *p, size_t n, float *out) {
    for (size_t i = 0; i < n; i++) out[i] = iv_element(type, p, i);
}

/* Whether one of n floats becomes an infinity, or is none already, in a type of 16 bits. */
static bool any_too_large(const float *x, size_t n, iv_dtype to) {
    uint32_t least = to == IV_BF16 ? 0x7f7f8000u : 0x477ff000u, bad = 0;
    for (size_t i = 0; i < n; i++) bad |= (iv_bits(x[i]) & 0x7fffffffu) >= least;
    return bad;
}

/* Rounds n values to another type. Index of the first one that becomes an infinity; n if none does. out may be NULL. */
static size_t convert(iv_dtype from, iv_dtype to, const void *p, size_t n, void *out) {
    size_t bad = n;
    if (to == IV_F32) {
        if (out) to_floats(from, p, n, out);
        return n;
    }
    for (size_t i = n; i-- > 0;) {
        float x = iv_element(from, p, i);
        uint16_t rounded = to == IV_BF16 ? iv_bf16_from_f32(x) : iv_f16_from_f32(x);
        uint16_t mask = to == IV_BF16 ? 0x7f80u : 0x7c00u;
        if ((rounded & mask) == mask) bad = i;
        if (out) ((uint16_t *)out)[i] = rounded;
    }
    return bad;
}

static iv_status check_values(const iv_tensor *t, size_t element, iv_dtype from, const void *data, size_t n,
                              iv_error *err) {
    if (from == IV_F32 && t->held != IV_F32 && !any_too_large(data, n, t->held)) return IV_OK; /* the usual case */
    size_t bad = first_not_finite(from, data, n);
    if (bad < n) return iv_fail(err, IV_FORMAT, "%s: element %zu is not a finite number", t->info.name, element + bad);
    bad = from == t->held ? n : convert(from, t->held, data, n, NULL);
    if (bad < n)
        return iv_fail(err, IV_FORMAT, "%s: element %zu is too large for %s", t->info.name, element + bad,
                       iv_dtype_name(t->held));
    return IV_OK;
}

static iv_status check_size(const iv_tensor *t, iv_dtype dtype, size_t bytes, iv_error *err) {
    if (dtype != IV_BF16 && dtype != IV_F16 && dtype != IV_F32)
        return iv_fail(err, IV_INVALID, "%s: wanted bfloat16, float16 or float32, found %s", t->info.name,
                       iv_dtype_name(dtype));
    size_t want = t->rows * t->columns * iv_dtype_bytes(dtype);
    if (bytes == want) return IV_OK;
    return iv_fail(err, IV_INVALID, "%s: wanted %zu bytes (%zu rows of %zu in %s), found %zu", t->info.name, want,
                   t->rows, t->columns, iv_dtype_name(dtype), bytes);
}

/* ---- which ranks hold what ------------------------------------------------------------------------------ */

static size_t slice_columns(const iv_tensor_slice *s) { return s->matrix ? s->matrix->k : 1; }

/* Slices are runs of whole rows, or of whole columns: do they cover everything in this direction? */
static bool covers(const iv_tensor *t, bool by_rows) {
    size_t reach = 0, end = by_rows ? t->rows : t->columns;
    for (bool further = true; further && reach < end;) {
        further = false;
        for (const iv_tensor_slice *s = t->slices; s; s = s->next) {
            bool full = by_rows ? slice_columns(s) == t->columns : s->begin == 0 && s->end == t->rows;
            size_t from = by_rows ? s->begin : s->column, to = by_rows ? s->end : s->column + slice_columns(s);
            if (full && from <= reach && to > reach) reach = to, further = true;
        }
    }
    return reach >= end;
}

bool iv_tensor_is_whole(const iv_tensor *t) { return !t->unused && (covers(t, true) || covers(t, false)); }

/* ---- reading -------------------------------------------------------------------------------------------- */

/* The part [begin, end) of a slice's rows, in the type it is held in, `stride` elements from row to row. */
static iv_status unpack(const iv_tensor_slice *s, size_t begin, size_t end, void *rows, size_t stride, iv_error *err) {
    size_t at = s->first + (begin - s->begin), count = end - begin;
    if (s->vector)
        memcpy(rows, s->vector + at, count * sizeof *s->vector);
    else if (s->owner->memspace && s->matrix->terms)
        return iv_int8_get(s->matrix, s->owner->memspace, rows, stride, at, count, err);
    else if (s->owner->memspace)
        return iv_weight_is_plain(s->matrix->format)
                   ? iv_matrix_get(s->matrix, s->owner->memspace, rows, stride, at, count, err)
                   : iv_packed_units_get(s->matrix, s->owner->memspace, rows, stride, at, count, err);
    else
        iv_matrix_unpack(s->matrix, rows, stride, at, count);
    return IV_OK;
}

/* The rows of one slice among [first, first + rows), to their columns of out. */
static iv_status read_slice(const iv_tensor *t, const iv_tensor_slice *s, size_t first, size_t rows, iv_dtype dtype,
                            char *out, iv_error *err) {
    size_t begin = iv_size_max(first, s->begin), end = iv_size_min(first + rows, s->end), k = slice_columns(s);
    if (begin >= end || k == 0) return IV_OK;
    size_t width = iv_dtype_bytes(dtype), held = iv_dtype_bytes(t->held);
    out += ((begin - first) * t->columns + s->column) * width;
    if (dtype == t->held) return unpack(s, begin, end, out, t->columns, err);
    size_t step = iv_size_max(1, CHUNK_BYTES / (k * held));
    void *chunk = malloc(iv_size_min(step, end - begin) * k * held);
    iv_status status = chunk ? IV_OK : iv_fail(err, IV_NO_MEMORY, "%s: no memory to read it", t->info.name);
    for (size_t at = begin, n; status == IV_OK && at < end; at += n) {
        n = iv_size_min(step, end - at);
        status = unpack(s, at, at + n, chunk, k, err);
        for (size_t r = 0; status == IV_OK && r < n; r++, out += t->columns * width) {
            size_t bad = convert(t->held, dtype, (const char *)chunk + r * k * held, k, out);
            if (bad < k)
                status = iv_fail(err, IV_LIMIT, "%s: element %zu is too large for %s", t->info.name,
                                 (at + r) * t->columns + s->column + bad, iv_dtype_name(dtype));
        }
    }
    free(chunk);
    return status;
}

iv_status iv_tensor_read_rows(const iv_tensor *t, size_t first, size_t rows, iv_dtype dtype, void *out, iv_error *err) {
    IV_ASSERT(first <= t->rows && rows <= t->rows - first);
    if (!iv_tensor_is_whole(t))
        return iv_fail(err, IV_UNSUPPORTED, "%s: this process does not hold %s", t->info.name,
                       t->slices ? "all of it" : "it");
    for (const iv_tensor_slice *s = t->slices; s; s = s->next) IV_TRY(read_slice(t, s, first, rows, dtype, out, err));
    return IV_OK;
}

iv_status iv_tensor_read(const iv_tensor *t, iv_dtype dtype, void *out, size_t bytes, iv_error *err) {
    IV_TRY(check_size(t, dtype, bytes, err));
    return iv_tensor_read_rows(t, 0, t->rows, dtype, out, err);
}

/* ---- writing -------------------------------------------------------------------------------------------- */

/* Rows [first, first + rows) to one of a tensor's slices. */
static iv_status write_slice(const iv_tensor *t, const iv_tensor_slice *s, size_t first, size_t rows, iv_dtype from,
                             const void *data, iv_error *err) {
    size_t begin = iv_size_max(first, s->begin), end = iv_size_min(first + rows, s->end);
    if (begin >= end) return IV_OK;
    size_t element = (begin - first) * t->columns + s->column, at = s->first + (begin - s->begin);
    const char *part = (const char *)data + element * iv_dtype_bytes(from);
    if (s->vector) {
        to_floats(from, part, end - begin, s->vector + at);
        for (size_t i = at; s->plus_one && i < at + (end - begin); i++) s->plus_one[i] = 1.0f + s->vector[i];
    } else if (s->matrix->terms && !t->packed) {
        const char *rows_of = (const char *)data + (begin - first) * t->columns * iv_dtype_bytes(from);
        if (s->owner->memspace)
            return iv_int8_put_in(s->matrix, s->owner->memspace, from, rows_of, t->columns, s->column, at, end - begin,
                                  err);
        iv_int8_put(s->matrix, from, rows_of, t->columns, s->column, at, end - begin);
    } else if (!iv_weight_is_plain(s->matrix->format))
        return IV_OK;
    else if (s->owner->memspace)
        return iv_matrix_put(s->matrix, s->owner->memspace, from, part, t->columns, at, end - begin, err);
    else
        iv_matrix_pack(s->matrix, from, part, t->columns, at, end - begin);
    return IV_OK;
}

iv_status iv_tensor_write_rows(const iv_tensor *t, size_t first, size_t rows, iv_dtype from, const void *data,
                               iv_error *err) {
    IV_ASSERT(first <= t->rows && rows <= t->rows - first && !t->unused && !t->same_as);
    IV_TRY(check_values(t, first * t->columns, from, data, rows * t->columns, err));
    for (const iv_tensor_slice *s = t->slices; s; s = s->next) IV_TRY(write_slice(t, s, first, rows, from, data, err));
    return IV_OK;
}

iv_status iv_tensor_write_codes(const iv_tensor *t, size_t first, size_t rows, const iv_row_codes *in, iv_error *err) {
    size_t groups = iv_code_groups(&t->codes, t->columns), outers = iv_code_outers(&t->codes, t->columns);
    for (const iv_tensor_slice *s = t->slices; s; s = s->next) {
        size_t begin = iv_size_max(first, s->begin), end = iv_size_min(first + rows, s->end), skip = begin - first;
        if (begin >= end || !s->matrix || iv_weight_is_plain(s->matrix->format)) continue;
        if (s->matrix->terms && s->owner->memspace) {
            IV_TRY(iv_int8_put_codes_in(s->matrix, s->owner->memspace, in->codes + skip * t->columns,
                                        in->scales + skip * groups, t->columns, s->column,
                                        s->first + (begin - s->begin), end - begin, err));
            continue;
        }
        if (s->matrix->terms) {
            iv_int8_put_codes(s->matrix, in->codes + skip * t->columns, in->scales + skip * groups, t->columns,
                              s->column, s->first + (begin - s->begin), end - begin);
            continue;
        }
        const iv_packed_rows_in part = {.rows = {in->codes + skip * t->columns, in->scales + skip * groups,
                                                 in->seconds + skip * groups, in->outer_scales + skip * outers,
                                                 in->outer_seconds + skip * outers},
                                        .form = &t->codes,
                                        .columns = t->columns,
                                        .column = s->column};
        size_t at = s->first + (begin - s->begin);
        if (s->owner->memspace)
            IV_TRY(iv_packed_units_put(s->matrix, s->owner->memspace, &part, at, end - begin, err));
        else
            iv_packed_panel_put(s->matrix, &part, at, end - begin);
    }
    return IV_OK;
}

iv_status iv_tensor_write(iv_model *first, iv_tensor *t, iv_dtype from, const void *data, size_t bytes, iv_error *err) {
    if (t->unused) return iv_fail(err, IV_INVALID, "%s: the model does not use it", t->info.name);
    if (t->same_as)
        return iv_fail(err, IV_INVALID, "%s: is tied to %s: write that one", t->info.name, t->same_as->info.name);
    if (t->packed || t->int8)
        return iv_fail(err, IV_UNSUPPORTED, "%s: is held %s", t->info.name, t->int8 ? "as int8" : "packed");
    IV_TRY(check_size(t, from, bytes, err));
    IV_TRY(iv_tensor_write_rows(t, 0, t->rows, from, data, err));
    t->changed = true;
    for (size_t i = 0; i < first->tensor_count; i++)
        if (first->tensors[i].same_as == t) first->tensors[i].changed = true;
    return IV_OK;
}

/* ---- by name ---------------------------------------------------------------------------------------------- */

static int by_name(const void *name, const void *t) { return strcmp(name, ((const iv_tensor *)t)->info.name); }

iv_tensor *iv_model_tensor(iv_model *first, const char *name) {
    return first->tensor_count ? bsearch(name, first->tensors, first->tensor_count, sizeof *first->tensors, by_name)
                               : NULL;
}
