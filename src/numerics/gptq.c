/* gptq.c: sums of inputs, the factors of their matrix, and the codes of rows. */
#include "numerics/gptq.h"
#include "base/status.h"
#include "numerics/dequantize.h"
#include "numerics/floats.h"
#include "numerics/quantize.h"

#include <stdlib.h>
#include <string.h>

/* ---- the inputs' matrix ---------------------------------------------------------------------------------- */

enum { SIDE = 4 };

/* H[i .. i + SIDE)[j .. j + SIDE), input after input. */
static void add_square(double *h, size_t k, size_t i, size_t j, const double *x, size_t count) {
    double sum[SIDE][SIDE];
    for (size_t a = 0; a < SIDE; a++)
        for (size_t b = 0; b < SIDE; b++) sum[a][b] = h[(i + a) * k + j + b];
    for (size_t t = 0; t < count; t++) {
        const double *p = x + t * k + i, *q = x + t * k + j;
        for (size_t a = 0; a < SIDE; a++)
            for (size_t b = 0; b < SIDE; b++) sum[a][b] += p[a] * q[b];
    }
    for (size_t a = 0; a < SIDE; a++)
        for (size_t b = 0; b < SIDE; b++) h[(i + a) * k + j + b] = sum[a][b];
}

void iv_gptq_add(double *h, size_t k, size_t first, size_t end, const double *x, size_t count) {
    size_t i = first;
    for (; i % SIDE == 0 && i + SIDE <= end; i += SIDE)
        for (size_t j = 0; j < i + SIDE; j += SIDE) add_square(h, k, i, j, x, count);
    for (; i < end; i++)
        for (size_t j = 0; j <= i; j++) {
            double sum = h[i * k + j];
            for (size_t t = 0; t < count; t++) sum += x[t * k + i] * x[t * k + j];
            h[i * k + j] = sum;
        }
}

void iv_gptq_damp(double *h, size_t k, double damping) {
    double sum = 0;
    for (size_t i = 0; i < k; i++) sum += h[i * k + i];
    double more = sum > 0 ? damping * (sum / (double)k) : 1;
    for (size_t i = 0; i < k; i++) h[i * k + i] += more;
}

typedef struct column {
    double size;
    uint32_t at;
} column;

static int larger_first(const void *a, const void *b) {
    const column *x = a, *y = b;
    if (x->size != y->size) return x->size < y->size ? 1 : -1;
    return (x->at > y->at) - (x->at < y->at);
}

bool iv_gptq_order(const double *h, size_t k, uint32_t *order) {
    column *all = malloc(k * sizeof *all);
    if (!all) return false;
    for (size_t i = 0; i < k; i++) all[i] = (column){h[i * k + i], (uint32_t)i};
    qsort(all, k, sizeof *all, larger_first);
    for (size_t i = 0; i < k; i++) order[i] = all[i].at;
    free(all);
    return true;
}

void iv_gptq_reorder(const double *h, size_t k, const uint32_t *order, double *out) {
    for (size_t i = 0; i < k; i++)
        for (size_t j = 0; j <= i; j++) {
            size_t a = order[i], b = order[j];
            out[i * k + j] = a > b ? h[a * k + b] : h[b * k + a];
        }
}

/* ---- factors --------------------------------------------------------------------------------------------- */

bool iv_gptq_factor(double *h, size_t k, size_t begin, size_t end) {
    for (size_t m = end; m-- > begin;) {
        double *row = h + m * k, d = row[m];
        if (!(d > 0)) return false;
        for (size_t i = 0; i < m; i++) row[i] /= d;
        for (size_t j = begin; j < m; j++) {
            double size = row[j] * d, *other = h + j * k;
            for (size_t i = 0; i <= j; i++) other[i] -= size * row[i];
        }
    }
    return true;
}

void iv_gptq_take(double *h, size_t k, size_t begin, size_t end, size_t row) {
    double *to = h + row * k;
    for (size_t m = end; m-- > begin;) {
        const double *of = h + m * k;
        double size = of[row] * of[m];
        for (size_t i = 0; i <= row; i++) to[i] -= size * of[i];
    }
}

/* ---- rows ------------------------------------------------------------------------------------------------ */

enum { ROWS = IV_GPTQ_ROWS };
typedef double eight[ROWS]; /* a column of the rows */

typedef struct row_job {
    const iv_gptq_layer *l;
    size_t rows;
    const float *w;
    uint8_t *codes;
    float *scales, *values;
    eight *given, *corrected, *errors; /* [columns] */
} row_job;

size_t iv_gptq_scratch(size_t columns) { return 3 * columns * ROWS; }

/* c += the sum over columns [from, to) of e A[.][k]. */
static void correct(const row_job *j, size_t k, size_t from, size_t to, double *c) {
    const double *a = j->l->factor + k * j->l->columns;
    for (size_t i = from; i < to; i++)
        for (size_t r = 0; r < ROWS; r++) c[r] += j->errors[i][r] * a[i];
}

static float stored_value(iv_dtype type, float x) {
    if (type == IV_F32) return x;
    return type == IV_BF16 ? iv_bf16_to_f32(iv_bf16_from_f32(x)) : iv_f16_to_f32(iv_f16_from_f32(x));
}

/* A group's numbers as they would be if its columns were not rounded, in float32 where its values will be. */
static void look_ahead(const row_job *j, size_t begin, size_t end) {
    size_t columns = j->l->columns;
    for (size_t k = begin; k < end; k++) {
        eight v;
        memcpy(v, j->corrected[k], sizeof v);
        if (begin > 0) correct(j, k, begin, k, v);
        for (size_t r = 0; r < ROWS; r++) j->errors[k][r] = j->given[k][r] - v[r];
        for (size_t r = 0; r < j->rows; r++) j->values[r * columns + k] = (float)v[r];
    }
}

static void set_scales(const row_job *j, size_t begin, size_t n, const float *from, float scale[ROWS]) {
    const iv_gptq_layer *l = j->l;
    for (size_t r = 0; r < j->rows; r++)
        scale[r] = iv_quantize_scale(l->format, from + r * l->columns + begin, n, l->global, l->type,
                                     j->scales + r * (l->columns / l->group) + begin / l->group);
}

/* Column k of the order, which is column `at` of the rows. */
static void round_column(const row_job *j, size_t k, size_t at, const double *c, const float *scale) {
    size_t columns = j->l->columns;
    for (size_t r = 0; r < j->rows; r++) {
        float x = (float)c[r];
        uint8_t *code = j->codes + r * columns + at;
        iv_quantize_codes(j->l->format, &x, 1, scale[r], code);
        float value = stored_value(j->l->type, iv_weight_code(j->l->format, code, 0) * scale[r]);
        j->values[r * columns + at] = value;
        j->errors[k][r] = j->given[k][r] - (double)value;
    }
}

static void round_in_groups(const row_job *j) {
    size_t columns = j->l->columns, group = j->l->group;
    float scale[ROWS];
    for (size_t begin = 0; begin < columns; begin += group) {
        for (size_t k = begin; k < begin + group; k++) {
            memcpy(j->corrected[k], j->given[k], sizeof(eight));
            correct(j, k, 0, begin, j->corrected[k]);
        }
        look_ahead(j, begin, begin + group);
        set_scales(j, begin, group, j->values, scale);
        for (size_t k = begin; k < begin + group; k++) {
            correct(j, k, begin, k, j->corrected[k]);
            round_column(j, k, k, j->corrected[k], scale);
        }
    }
}

static void round_in_order(const row_job *j) {
    size_t columns = j->l->columns, group = j->l->group;
    float *scale = (float *)(void *)j->corrected; /* [groups][ROWS]; c is a column here */
    for (size_t begin = 0; begin < columns; begin += group)
        set_scales(j, begin, group, j->w, scale + begin / group * ROWS);
    for (size_t k = 0; k < columns; k++) {
        size_t at = j->l->order[k];
        eight c;
        memcpy(c, j->given[k], sizeof c);
        correct(j, k, 0, k, c);
        round_column(j, k, at, c, scale + at / group * ROWS);
    }
}

void iv_gptq_rows(const iv_gptq_layer *l, size_t rows, const float *w, uint8_t *codes, float *scales, float *values,
                  double *scratch) {
    IV_ASSERT(rows <= ROWS && l->columns % l->group == 0);
    eight *memory = (eight *)scratch;
    const row_job j = {l, rows, w, codes, scales, values, memory, memory + l->columns, memory + 2 * l->columns};
    memset(scratch, 0, iv_gptq_scratch(l->columns) * sizeof *scratch);
    for (size_t k = 0; k < l->columns; k++)
        for (size_t r = 0; r < rows; r++) j.given[k][r] = (double)w[r * l->columns + (l->order ? l->order[k] : k)];
    if (l->order)
        round_in_order(&j);
    else
        round_in_groups(&j);
}
