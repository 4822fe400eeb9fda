/* delta_backward.c: the gradients of a block's rows, from the last block to the first. */
#include "numerics/delta_backward.h"
#include "numerics/attention.h"
#include "numerics/delta.h"
#include "numerics/floats.h"
#include "numerics/fma32.h"
#include "numerics/router.h"
#include "numerics/rows.h"
#include "numerics/tree.h"
#include "numerics/vec_scalar.h"
#include "numerics/elementary.h"

#include <stdlib.h>
#include <string.h>

enum { B = IV_DELTA_BLOCK, T = IV_DELTA_STEP, DIM = 512 };

void iv_ref_delta_totals_backward(size_t rows, const float *own, const float *behind, float first, float *out) {
    float sum = 0.0f;
    for (size_t t = rows; t-- > 0;) out[t] = sum = sum + own[t];
    for (size_t t = 0; t < rows; t++) out[t] = iv_canonical(out[t] + first), first = first + behind[t];
}

float iv_ref_delta_decay_backward(float ddecay, float a, float dt_bias, float a_log) {
    return iv_canonical((ddecay * (0.0f - v_exp(a_log))) * iv_ref_sigmoid(a + dt_bias));
}

float iv_ref_scan_step_backward(float of_step, float ddecay, float dt, float dt_bias, float a_log, float low,
                                float high) {
    float step = iv_ref_softplus(dt + dt_bias);
    if (step < low || step > high) return 0.0f;
    return iv_canonical((of_step + ddecay * (0.0f - v_exp(a_log))) * iv_ref_sigmoid(dt + dt_bias));
}

static void store(iv_dtype type, void *p, size_t i, float x) {
    if (type == IV_F32)
        ((float *)p)[i] = iv_canonical(x);
    else
        ((uint16_t *)p)[i] = type == IV_BF16 ? iv_bf16_from_f32(x) : iv_f16_from_f32(x);
}

/* Square matrices [64][64] of a block in the type, +0 where a pair of rows has no product. */
typedef struct work {
    const iv_ref_delta_backward_args *a;
    size_t first, rows, steps; /* of the block at work */
    float *next, *state;       /* [key_dim][value_dim]: gradient of the state behind, and at the border */
    void *rounded;             /* R(next) */
    float total[B];
    float p[B * B], pq[B * B], of_out[B * B], of_dv[B * B], sums[B * B]; /* storage for any type */
    float dv[B * DIM], du[B * DIM];                                      /* dv: storage for any type */
} work;

static float element(const work *w, const void *p, size_t i) { return iv_element(w->a->type, p, i); }

typedef float getter(const work *w, const void *x, size_t i, size_t at);

/* A chain over inner elements [from, to) of x's and y's getters, `at` their other index. */
static float chain(const work *w, float acc, const void *x, getter *gx, size_t ax, const void *y, getter *gy, size_t ay,
                   size_t from, size_t to) {
    float a[DIM], b[DIM]; /* storage for any type */
    for (size_t i = from; i < to; i++)
        store(w->a->type, a, i - from, gx(w, x, i, ax)), store(w->a->type, b, i - from, gy(w, y, i, ay));
    return iv_ref_chain(w->a->arithmetic, w->a->type, acc, a, b, to - from);
}

/* Rows over their elements, and elements over the block's rows. */
static float key_row(const work *w, const void *x, size_t i, size_t t) {
    return i < w->a->key_dim ? element(w, x, (w->first + t) * w->a->key_dim + i) : 0.0f;
}
static float value_row(const work *w, const void *x, size_t i, size_t t) {
    return i < w->a->value_dim ? element(w, x, (w->first + t) * w->a->value_dim + i) : 0.0f;
}
static float dv_row(const work *w, const void *x, size_t i, size_t t) {
    return i < w->a->value_dim ? element(w, x, t * w->a->value_dim + i) : 0.0f;
}
static float key_column(const work *w, const void *x, size_t t, size_t c) {
    return t < w->rows ? key_row(w, x, c, t) : 0.0f;
}
static float value_column(const work *w, const void *x, size_t t, size_t j) {
    return t < w->rows ? value_row(w, x, j, t) : 0.0f;
}
static float dv_column(const work *w, const void *x, size_t t, size_t j) {
    return t < w->rows ? dv_row(w, x, j, t) : 0.0f;
}
/* A state's row of elements of d_v, and its column of d_k. */
static float state_row(const work *w, const void *x, size_t j, size_t c) {
    return j < w->a->value_dim ? element(w, x, c * w->a->value_dim + j) : 0.0f;
}
static float state_column(const work *w, const void *x, size_t c, size_t j) {
    return c < w->a->key_dim ? element(w, x, c * w->a->value_dim + j) : 0.0f;
}
/* A matrix's row, its column, its column with the other sign, and both with it. */
static float matrix_row(const work *w, const void *x, size_t i, size_t t) { return element(w, x, t * B + i); }
static float matrix_column(const work *w, const void *x, size_t t, size_t i) { return element(w, x, t * B + i); }
static float minus_column(const work *w, const void *x, size_t t, size_t i) {
    return t > i ? 0.0f - element(w, x, t * B + i) : 0.0f;
}
static float minus_both(const work *w, const void *x, size_t s, size_t t) {
    return s < t ? 0.0f - element(w, x, t * B + s) : minus_column(w, x, s, t);
}
static float one(const work *w, const void *x, size_t i, size_t at) {
    (void)w, (void)x, (void)i, (void)at;
    return 1.0f;
}
static float decayed(const work *w, const void *x, size_t t, size_t c) {
    return t < w->rows ? iv_ref_delta_factor(w->total[t], 0.0f) * key_row(w, x, c, t) : 0.0f;
}
static float minus_decayed(const work *w, const void *x, size_t t, size_t c) {
    return t < w->rows ? 0.0f - decayed(w, x, t, c) : 0.0f;
}

static void weigh(work *w) {
    const iv_ref_delta_backward_args *a = w->a;
    size_t padded = iv_padded_k(a->key_dim);
    memset(w->p, 0, sizeof w->p), memset(w->pq, 0, sizeof w->pq);
    for (size_t t = 0; t < w->rows; t++) {
        w->total[t] = (t ? w->total[t - 1] : 0.0f) + a->decay[w->first + t];
        for (size_t i = 0; i <= t; i++) {
            float f = iv_ref_delta_factor(w->total[t], w->total[i]);
            store(a->type, w->pq, t * B + i, f * chain(w, 0.0f, a->q, key_row, t, a->k, key_row, i, 0, padded));
            if (i < t && !a->scan)
                store(a->type, w->p, t * B + i, f * chain(w, 0.0f, a->k, key_row, t, a->k, key_row, i, 0, padded));
        }
    }
}

/* The decay from row t to the border behind the block; +0 where there is none. */
static float to_border(const work *w, size_t t) {
    return w->first + B < w->a->n ? iv_ref_delta_factor(w->total[B - 1], w->total[t]) : 0.0f;
}

/* du and dv of the rows, the last one first. */
static void substitute(work *w) {
    const iv_ref_delta_backward_args *a = w->a;
    size_t padded = iv_padded_k(a->key_dim), n = a->value_dim;
    memset(w->dv, 0, sizeof w->dv);
    for (size_t t = w->rows; t-- > 0;) {
        float lanes[IV_ROW_LANES] = {0}, beta = a->scan ? 1.0f : a->beta[w->first + t];
        for (size_t j = 0; j < n; j++) {
            float x = to_border(w, t) * chain(w, 0.0f, a->k, key_row, t, w->rounded, state_column, j, 0, padded);
            for (size_t s = w->steps; s-- > t / T;)
                x = chain(w, x, w->pq, matrix_column, t, a->dout, value_column, j, s * T, s * T + T);
            for (size_t s = w->steps; s-- > t / T && !a->scan;)
                x = chain(w, x, w->p, minus_column, t, w->dv, dv_column, j, s * T, s * T + T);
            float *lane = &lanes[j % IV_ROW_LANES];
            w->du[t * n + j] = x + 0.0f;
            a->dv[(w->first + t) * n + j] = iv_canonical(a->scan ? w->du[t * n + j] : beta * w->du[t * n + j]);
            *lane = iv_fma(w->du[t * n + j], element(w, a->updates, (w->first + t) * n + j), *lane);
        }
        if (a->scan) continue;
        for (size_t j = 0; j < n; j++) store(a->type, w->dv, t * n + j, a->dv[(w->first + t) * n + j]);
        a->dbeta[w->first + t] = iv_canonical(iv_delta_gate_gradient(iv_ref_fold_lanes(lanes), beta));
    }
}

static void weigh_gradients(work *w) {
    const iv_ref_delta_backward_args *a = w->a;
    size_t padded = iv_padded_k(a->value_dim);
    memset(w->of_out, 0, sizeof w->of_out), memset(w->of_dv, 0, sizeof w->of_dv), memset(w->sums, 0, sizeof w->sums);
    for (size_t t = 0; t < w->rows; t++)
        for (size_t i = 0; i <= t; i++) {
            float f = iv_ref_delta_factor(w->total[t], w->total[i]);
            float o = chain(w, 0.0f, a->dout, value_row, t, a->updates, value_row, i, 0, padded);
            store(a->type, w->of_out, t * B + i, f * o);
            if (i == t) continue;
            if (a->scan) {
                store(a->type, w->sums, t * B + i, element(w, w->pq, t * B + i) * o);
                continue;
            }
            float v = chain(w, 0.0f, w->dv, dv_row, t, a->updates, value_row, i, 0, padded);
            store(a->type, w->of_dv, t * B + i, f * v);
            store(a->type, w->sums, t * B + i, element(w, w->pq, t * B + i) * o - element(w, w->p, t * B + i) * v);
        }
}

/* dq and dk of a row; own and behind: its parts of the decays' gradients. */
static void row_gradients(work *w, const void *border, size_t t, float *own, float *behind) {
    const iv_ref_delta_backward_args *a = w->a;
    size_t padded = iv_padded_k(a->value_dim), step = t / T;
    float factor = iv_ref_delta_factor(w->total[t], 0.0f), lanes[3][IV_ROW_LANES] = {{0}};
    for (size_t c = 0; c < a->key_dim; c++) {
        float y = factor * chain(w, 0.0f, a->dout, value_row, t, border, state_row, c, 0, padded);
        float z = a->scan ? 0.0f : factor * chain(w, 0.0f, w->dv, dv_row, t, border, state_row, c, 0, padded);
        float b = to_border(w, t) * chain(w, 0.0f, a->updates, value_row, t, w->rounded, state_row, c, 0, padded);
        float q = element(w, a->q, (w->first + t) * a->key_dim + c), k = key_row(w, a->k, c, t);
        size_t lane = c % IV_ROW_LANES;
        lanes[0][lane] = iv_fma(q, y, lanes[0][lane]), lanes[1][lane] = iv_fma(k, z, lanes[1][lane]);
        lanes[2][lane] = iv_fma(k, b, lanes[2][lane]);
        float dk = a->scan ? b : chain(w, b - z, w->of_dv, minus_both, t, a->k, key_column, c, 0, w->steps * T);
        dk = chain(w, dk, w->of_out, matrix_column, t, a->q, key_column, c, step * T, w->steps * T);
        float dq = chain(w, y, w->of_out, matrix_row, t, a->k, key_column, c, 0, step * T + T);
        a->dq[(w->first + t) * a->key_dim + c] = iv_canonical(dq + 0.0f);
        a->dk[(w->first + t) * a->key_dim + c] = iv_canonical(dk + 0.0f);
    }
    float row = chain(w, 0.0f, w->sums, matrix_row, t, NULL, one, 0, 0, step * T + T);
    float column = chain(w, 0.0f, w->sums, matrix_column, t, NULL, one, 0, step * T, w->steps * T);
    float of_state = iv_ref_fold_lanes(lanes[0]);
    *own = (row - column) + (a->scan ? of_state : of_state - iv_ref_fold_lanes(lanes[1]));
    *behind = iv_ref_fold_lanes(lanes[2]);
}

/* Through the state at the border: the gradient of its decay, and that of the state before the block. */
static float border_gradient(work *w, const void *border) {
    const iv_ref_delta_backward_args *a = w->a;
    bool is_last = w->first + B >= a->n;
    float last = is_last ? 0.0f : iv_ref_delta_factor(w->total[B - 1], 0.0f), lanes[IV_ROW_LANES] = {0};
    for (size_t c = 0; c < a->key_dim; c++)
        for (size_t j = 0; j < a->value_dim; j++) {
            size_t i = c * a->value_dim + j;
            float *lane = &lanes[i % IV_ROW_LANES];
            *lane = iv_fma(element(w, border, i), w->next[i], *lane);
            float s = is_last ? 0.0f : w->next[i] * last;
            s = chain(w, s, a->q, decayed, c, a->dout, value_column, j, 0, w->steps * T);
            w->state[i] = a->scan ? s : chain(w, s, a->k, minus_decayed, c, w->dv, dv_column, j, 0, w->steps * T);
        }
    return last * iv_ref_fold_lanes(lanes);
}

bool iv_ref_delta_backward(const iv_ref_delta_backward_args *a) {
    size_t elements = a->key_dim * a->value_dim, width = iv_dtype_bytes(a->type);
    work *w = a->key_dim <= DIM && a->value_dim <= DIM ? calloc(1, sizeof *w) : NULL;
    if (!w) return false;
    w->a = a, w->next = calloc(elements, sizeof(float)), w->state = calloc(elements, sizeof(float));
    w->rounded = calloc(elements, sizeof(float));
    bool enough = w->next && w->state && w->rounded;
    for (size_t b = (a->n + B - 1) / B; enough && b-- > 0;) {
        const char *border = (const char *)a->borders + b * elements * width;
        float own[B], behind[B];
        w->first = b * B, w->rows = a->n - b * B < B ? a->n - b * B : B, w->steps = (w->rows + T - 1) / T;
        for (size_t i = 0; i < elements; i++) store(a->type, w->rounded, i, w->next[i]);
        weigh(w), substitute(w), weigh_gradients(w);
        for (size_t t = 0; t < w->rows; t++) row_gradients(w, border, t, &own[t], &behind[t]);
        iv_ref_delta_totals_backward(w->rows, own, behind, border_gradient(w, border), a->ddecay + w->first);
        float *swap = w->next;
        w->next = w->state, w->state = swap;
    }
    free(w->next), free(w->state), free(w->rounded), free(w);
    return enough;
}
