/* delta_backward.c: the delta rule's gradients for one key head's value heads of one sequence, block by block from the
 * last. Everything that is a product is a chain of a tile kernel; within 16 rows the gradients of updates come row by
 * row, the last one first. A scan has none of the products of keys with updates' gradients, which need no order. */
#include "kernels/delta_backward.h"
#include "base/carve.h"
#include "base/size.h"
#include "kernels/pack_columns.h"
#include "numerics/delta.h"
#include "numerics/delta_backward.h"
#include "numerics/floats.h"
#include "numerics/fma32.h"
#include "numerics/rows.h"
#include "numerics/tree.h"

#include <string.h>

enum { B = IV_DELTA_BLOCK, T = IV_DELTA_STEP, C = IV_PANEL_COLUMNS, DIM_MAX = 512 };

/* Operands of a block. `rows`: outputs are rows of the block; `columns`: its rows are the inner dimension. */
typedef struct operands {
    iv_matrix key_rows, update_rows;                         /* [64][key_dim], [64][value_dim] */
    iv_matrix key_columns, query_columns;                    /* [key_dim][64] */
    iv_matrix dout_columns, dv_columns;                      /* [value_dim][64] */
    iv_matrix state_of_values, next_of_values, next_of_keys; /* [key_dim][value_dim] twice, [value_dim][key_dim] */
    iv_matrix ones;                                          /* [32][64] */
} operands;

/* Pairs of rows [64][64] in the type; `turned`: element [i][t] of the pair t, i. +0 where a pair has no product. */
typedef struct pairs {
    unsigned char *query, *key;        /* turned: the forward pass's weights; key with the other sign */
    unsigned char *dout, *dout_turned; /* decayed products of dO with updates */
    unsigned char *dv_both;            /* of dV, with the other sign, both ways */
    unsigned char *sums, *sums_turned; /* the products of both */
} pairs;

typedef struct scratch {
    operands m;
    pairs p;
    float *key_scores, *query_scores; /* [2 panels][64][32], of the key head */
    float *dout_scores, *dv_scores;   /* the same, of a value head */
    float *du;                        /* [value panels][64][32] */
    float *y, *z, *border, *dq, *dk;  /* [key panels][64][32]; y and z: products with the state; border: with next */
    float *row_sums;                  /* [64][32] */
    float *next;                      /* [value heads][value panels][key_dim][32]: of the states behind the block */
    unsigned char *rounded;           /* [key_dim][value_dim] in the type: R(next) */
    unsigned char *dv;                /* [64][value_dim] in the type */
    unsigned char *decayed;           /* [key_dim][64] in the type */
    void *packed;
} scratch;

typedef struct job {
    const iv_compute *c;
    const iv_delta_backward_args *a;
    const iv_delta_layout *l;
    const iv_delta_span *span;
    const iv_tile_kernel *tile;
    scratch s;
    size_t key_head, width; /* width: bytes of an element */
    /* The block at work. */
    size_t index, row, rows, steps; /* row: the first in the batch */
    bool is_last;                   /* no gradient comes from behind it */
    float total[B];
} job;

/* ---- memory ---------------------------------------------------------------------------------------------- */

static bool matrix(iv_carving *v, iv_matrix *m, iv_dtype type, size_t n, size_t k) {
    if (!iv_matrix_shape(m, type, n, k)) return false;
    m->data = iv_carve(v, iv_matrix_bytes(m), 1);
    return true;
}

static void carve(const iv_delta_layout *l, iv_carving *v, scratch *s) {
    size_t k = l->key_dim, n = l->value_dim, keys = (k + C - 1) / C * B * C, values = (n + C - 1) / C * B * C;
    operands *m = &s->m;
    bool shaped = matrix(v, &m->key_rows, l->type, B, k) && matrix(v, &m->update_rows, l->type, B, n) &&
                  matrix(v, &m->key_columns, l->type, k, B) && matrix(v, &m->query_columns, l->type, k, B) &&
                  matrix(v, &m->dout_columns, l->type, n, B) && matrix(v, &m->dv_columns, l->type, n, B) &&
                  matrix(v, &m->state_of_values, l->type, k, n) && matrix(v, &m->next_of_values, l->type, k, n) &&
                  matrix(v, &m->next_of_keys, l->type, n, k) && matrix(v, &m->ones, l->type, C, B);
    unsigned char **square[] = {&s->p.query,   &s->p.key,  &s->p.dout,       &s->p.dout_turned,
                                &s->p.dv_both, &s->p.sums, &s->p.sums_turned};
    float **scores[] = {&s->key_scores, &s->query_scores, &s->dout_scores, &s->dv_scores};
    float **of_keys[] = {&s->y, &s->z, &s->border, &s->dq, &s->dk};
    if (!shaped) v->overflow = true;
    for (size_t i = 0; i < sizeof square / sizeof *square; i++) *square[i] = iv_carve(v, B * B, sizeof(float));
    for (size_t i = 0; i < sizeof scores / sizeof *scores; i++) *scores[i] = iv_carve(v, 2 * B * C, sizeof(float));
    for (size_t i = 0; i < sizeof of_keys / sizeof *of_keys; i++) *of_keys[i] = iv_carve(v, keys, sizeof(float));
    s->du = iv_carve(v, values, sizeof(float)), s->row_sums = iv_carve(v, B * C, sizeof(float));
    s->next = iv_carve(v, l->group * ((n + C - 1) / C) * k * C, sizeof(float));
    s->rounded = iv_carve(v, k * n, sizeof(float)), s->dv = iv_carve(v, B * n, sizeof(float));
    s->decayed = iv_carve(v, k * B, sizeof(float));
    s->packed =
        iv_carve(v, IV_TILE_HEADER_BYTES + 8 * IV_TILE_ROWS_MAX * iv_padded_k(iv_size_max(iv_size_max(k, n), B)), 1);
}

bool iv_delta_backward_scratch(const iv_delta_layout *l, size_t *bytes) {
    scratch s;
    iv_carving v = {.align = 64};
    if (l->key_dim > DIM_MAX || l->value_dim > DIM_MAX) return false;
    carve(l, &v, &s);
    *bytes = v.at;
    return !v.overflow;
}

/* ---- operands -------------------------------------------------------------------------------------------- */

static void put(iv_dtype type, void *to, size_t at, const void *from, size_t i) {
    if (type == IV_F32)
        ((float *)to)[at] = ((const float *)from)[i];
    else
        ((uint16_t *)to)[at] = ((const uint16_t *)from)[i];
}

/* Rows of the block as outputs of the matrix. */
static void pack_rows(const job *j, iv_matrix *m, const void *rows, size_t stride, size_t n) {
    memset(m->data, 0, iv_matrix_bytes(m));
    iv_matrix_pack(m, j->l->type, rows, stride, 0, n);
}

/* Rows as the inner dimension: n of them, then zeros. */
static void pack_columns(const job *j, iv_matrix *m, const void *rows, size_t stride, size_t n) {
    const void *row[DIM_MAX];
    for (size_t i = 0; i < m->k_padded; i++) row[i] = i < n ? (const char *)rows + i * stride * j->width : NULL;
    iv_pack_column_panels(j->c->kernels, j->l->type, row, m, 0, m->panels);
}

static const char *row_of(const job *j, bool key) {
    const iv_delta_layout *l = j->l;
    size_t at = j->row * 2 * l->keys + (key ? l->keys : 0) + j->key_head * l->key_dim;
    return (const char *)j->a->forward->qk + at * j->width;
}

/* Of the block's first row: a value head's part of rows of value_heads * value_dim. */
static const char *values_of(const job *j, const void *rows, size_t head) {
    return (const char *)rows + (j->row * j->l->value_heads + head) * j->l->value_dim * j->width;
}
static size_t values_stride(const job *j) { return j->l->value_heads * j->l->value_dim; }

/* acc[panel][`of` rows][32], rows [from, to): chains over k elements of rows x continued over a matrix's inner elements
 * from `first` on. */
static void chains(const job *j, const void *x, size_t stride, size_t from, size_t to, size_t k, const iv_matrix *m,
                   size_t first, float *acc, size_t of) {
    size_t k_padded = iv_padded_k(k);
    for (size_t r = from, n; r < to; r += n) {
        n = iv_size_min(j->tile->rows_max, to - r);
        j->tile->pack(j->l->type, (const char *)x + r * stride * j->width, stride, n, k, k_padded, j->s.packed);
        for (size_t p = 0; p < m->panels; p++)
            j->tile->chain(j->s.packed, n, iv_matrix_panel(m, p) + first * C * j->width, k_padded,
                           acc + (p * of + r) * C);
    }
}

/* The same over a step of 16 of square matrices. */
static void step_chains(const job *j, const unsigned char *x, size_t from, size_t to, size_t step, const iv_matrix *m,
                        float *acc) {
    chains(j, x + step * T * j->width, B, from, to, T, m, step * T, acc, B);
}

static float *at(float *acc, size_t row, size_t i) { return &acc[(i / C * B + row) * C + i % C]; }

static void scale_rows(const job *j, float *acc, size_t panels, size_t row, float by) {
    for (size_t p = 0; p < panels; p++) j->c->kernels->scale(acc + (p * B + row) * C, C, by);
}

/* ---- pairs of rows --------------------------------------------------------------------------------------- */

/* A row of pairs, rounded: elements 0 to t, then zeros, and the same turned. Either may be NULL. */
static void put_pairs(const job *j, float *row, size_t t, unsigned char *to, unsigned char *turned) {
    float rounded[B]; /* storage for any type */
    memset(row + t + 1, 0, (B - t - 1) * sizeof *row);
    j->c->kernels->round(row, B, j->l->type, to ? (void *)(to + t * B * j->width) : rounded);
    const void *from = to ? (const void *)(to + t * B * j->width) : rounded;
    for (size_t i = 0; turned && i < B; i++) put(j->l->type, turned, i * B + t, from, i);
}

/* The weights of the forward pass, of one value head. */
static void weigh(const job *j) {
    size_t bytes = B * B * j->width;
    memset(j->s.p.query, 0, bytes), memset(j->s.p.key, 0, bytes);
    for (size_t t = 0; t < j->rows; t++) {
        float factor[B], query[B], key[B];
        j->c->kernels->decays(j->total[t], j->total, t + 1, factor);
        for (size_t i = 0; i <= t; i++) {
            query[i] = factor[i] * *at(j->s.query_scores, t, i);
            if (!j->l->scan) key[i] = 0.0f - factor[i] * *at(j->s.key_scores, t, i);
        }
        put_pairs(j, query, t, NULL, j->s.p.query);
        if (j->l->scan) continue;
        key[t] = 0.0f;
        put_pairs(j, key, t, NULL, j->s.p.key);
    }
}

/* Products of dO and dV with the updates: decayed, and by the weights. */
static void weigh_gradients(const job *j, const char *dout) {
    const iv_delta_layout *l = j->l;
    const pairs *p = &j->s.p;
    size_t square = B * B * j->width;
    memset(j->s.dout_scores, 0, 2 * B * C * sizeof(float)), memset(j->s.dv_scores, 0, 2 * B * C * sizeof(float));
    chains(j, dout, values_stride(j), 0, j->rows, l->value_dim, &j->s.m.update_rows, 0, j->s.dout_scores, B);
    if (!l->scan) chains(j, j->s.dv, l->value_dim, 0, j->rows, l->value_dim, &j->s.m.update_rows, 0, j->s.dv_scores, B);
    memset(p->dout_turned, 0, square), memset(p->dv_both, 0, square), memset(p->sums_turned, 0, square);
    for (size_t t = 0; t < j->rows; t++) {
        float factor[B], out[B], dv[B], sums[B];
        j->c->kernels->decays(j->total[t], j->total, t + 1, factor);
        for (size_t i = 0; i <= t; i++) {
            float o = *at(j->s.dout_scores, t, i), v = *at(j->s.dv_scores, t, i);
            out[i] = factor[i] * o, sums[i] = iv_element(l->type, p->query, i * B + t) * o;
            if (l->scan) continue;
            dv[i] = 0.0f - factor[i] * v, sums[i] = sums[i] + iv_element(l->type, p->key, i * B + t) * v;
        }
        if (l->scan) {
            sums[t] = 0.0f;
            put_pairs(j, out, t, p->dout, p->dout_turned), put_pairs(j, sums, t, p->sums, p->sums_turned);
            continue;
        }
        dv[t] = sums[t] = 0.0f;
        put_pairs(j, out, t, p->dout, p->dout_turned), put_pairs(j, sums, t, p->sums, p->sums_turned);
        float rounded[B]; /* storage for any type */
        j->c->kernels->round(dv, t + 1, l->type, rounded);
        for (size_t i = 0; i < t; i++)
            put(l->type, p->dv_both, t * B + i, rounded, i), put(l->type, p->dv_both, i * B + t, rounded, i);
    }
}

/* ---- gradients of updates -------------------------------------------------------------------------------- */

/* From a row's complete du: dv, and the gradient of beta's logit. Of a scan du itself is kept. */
static void update_row(job *j, size_t head, size_t t, const char *updates) {
    const iv_delta_layout *l = j->l;
    float *dx = j->a->dx + (j->row + t) * l->width, *dv = dx + 2 * l->keys + head * l->value_dim;
    float beta = j->a->forward->kept->gates[(j->row + t) * 3 * l->value_heads + head], du[DIM_MAX], update[DIM_MAX];
    for (size_t i = 0; i < l->value_dim; i++) {
        du[i] = *at(j->s.du, t, i) + 0.0f, dv[i] = iv_canonical(l->scan ? du[i] : beta * du[i]);
        update[i] = iv_element(l->type, updates, t * values_stride(j) + i);
    }
    if (l->scan) return;
    float product = j->c->kernels->row_dot(IV_F32, du, update, l->value_dim);
    dx[l->width - 2 * l->value_heads + head] = iv_canonical(iv_delta_gate_gradient(product, beta));
    void *typed = j->s.dv + t * l->value_dim * j->width;
    j->c->kernels->round(dv, l->value_dim, l->type, typed);
    iv_matrix *m = &j->s.m.dv_columns;
    for (size_t i = 0; i < l->value_dim; i++)
        put(l->type, m->data, i / C * (m->panel_bytes / j->width) + iv_panel_index(l->type, t, i % C), typed, i);
}

static void substitute(job *j, size_t head, const char *updates) {
    const iv_delta_layout *l = j->l;
    memset(j->s.du, 0, j->s.m.next_of_keys.panels * B * C * sizeof(float));
    memset(j->s.m.dv_columns.data, 0, iv_matrix_bytes(&j->s.m.dv_columns));
    for (size_t t = 0; t < j->rows && !j->is_last; t++) {
        chains(j, row_of(j, true), 2 * l->keys, t, t + 1, l->key_dim, &j->s.m.next_of_keys, 0, j->s.du, B);
        scale_rows(j, j->s.du, j->s.m.next_of_keys.panels, t, iv_ref_delta_factor(j->total[B - 1], j->total[t]));
    }
    for (size_t s = j->steps; s-- > 0;)
        step_chains(j, j->s.p.query, 0, iv_size_min(j->rows, s * T + T), s, &j->s.m.dout_columns, j->s.du);
    for (size_t s = j->steps; s-- > 0;) {
        for (size_t t = iv_size_min(j->rows, s * T + T); t-- > s * T;) {
            if (!l->scan) step_chains(j, j->s.p.key, t, t + 1, s, &j->s.m.dv_columns, j->s.du);
            update_row(j, head, t, updates);
        }
        if (!l->scan) step_chains(j, j->s.p.key, 0, s * T, s, &j->s.m.dv_columns, j->s.du);
    }
}

/* ---- gradients of keys and queries ----------------------------------------------------------------------- */

/* A row's dq and dk: set by the key head's first value head, added to by the others. */
static void store_row(const job *j, size_t t, bool adds) {
    const iv_delta_layout *l = j->l;
    float *q = j->a->dx + (j->row + t) * l->width + j->key_head * l->key_dim, *k = q + l->keys;
    for (size_t c = 0; c < l->key_dim; c++) {
        float dq = iv_canonical(*at(j->s.dq, t, c) + 0.0f), dk = iv_canonical(*at(j->s.dk, t, c) + 0.0f);
        q[c] = adds ? iv_canonical(q[c] + dq) : dq, k[c] = adds ? iv_canonical(k[c] + dk) : dk;
    }
}

/* y, z and border; own and behind: the products of their rows with q and k. */
static void border_products(const job *j, const char *dout, const char *updates, float *own, float *behind) {
    const iv_delta_layout *l = j->l;
    size_t panels = j->s.m.key_columns.panels, bytes = panels * B * C * sizeof(float);
    memset(j->s.y, 0, bytes), memset(j->s.z, 0, bytes), memset(j->s.border, 0, bytes);
    if (j->index) {
        chains(j, dout, values_stride(j), 0, j->rows, l->value_dim, &j->s.m.state_of_values, 0, j->s.y, B);
        if (!l->scan) chains(j, j->s.dv, l->value_dim, 0, j->rows, l->value_dim, &j->s.m.state_of_values, 0, j->s.z, B);
    }
    if (!j->is_last)
        chains(j, updates, values_stride(j), 0, j->rows, l->value_dim, &j->s.m.next_of_values, 0, j->s.border, B);
    for (size_t t = 0; t < j->rows; t++) {
        float factor = iv_ref_delta_factor(j->total[t], 0.0f), q[DIM_MAX], k[DIM_MAX], x[DIM_MAX];
        scale_rows(j, j->s.y, panels, t, factor), scale_rows(j, j->s.z, panels, t, factor);
        if (!j->is_last) scale_rows(j, j->s.border, panels, t, iv_ref_delta_factor(j->total[B - 1], j->total[t]));
        for (size_t c = 0; c < l->key_dim; c++) {
            q[c] = iv_element(l->type, row_of(j, false), t * 2 * l->keys + c);
            k[c] = iv_element(l->type, row_of(j, true), t * 2 * l->keys + c);
            x[c] = *at(j->s.y, t, c);
        }
        own[t] = j->c->kernels->row_dot(IV_F32, q, x, l->key_dim);
        for (size_t c = 0; c < l->key_dim; c++) x[c] = *at(j->s.z, t, c);
        if (!l->scan) own[t] = own[t] - j->c->kernels->row_dot(IV_F32, k, x, l->key_dim);
        for (size_t c = 0; c < l->key_dim; c++) x[c] = *at(j->s.border, t, c);
        behind[t] = j->c->kernels->row_dot(IV_F32, k, x, l->key_dim);
    }
}

static void key_gradients(const job *j, bool adds) {
    size_t n = j->s.m.key_columns.panels * B * C;
    memcpy(j->s.dq, j->s.y, n * sizeof(float));
    for (size_t i = 0; i < n; i++) j->s.dk[i] = j->l->scan ? j->s.border[i] : j->s.border[i] - j->s.z[i];
    for (size_t s = 0; s < j->steps; s++) step_chains(j, j->s.p.dout, s * T, j->rows, s, &j->s.m.key_columns, j->s.dq);
    if (!j->l->scan) chains(j, j->s.p.dv_both, B, 0, j->rows, j->steps * T, &j->s.m.key_columns, 0, j->s.dk, B);
    for (size_t s = 0; s < j->steps; s++)
        step_chains(j, j->s.p.dout_turned, 0, iv_size_min(j->rows, s * T + T), s, &j->s.m.query_columns, j->s.dk);
    for (size_t t = 0; t < j->rows; t++) store_row(j, t, adds);
}

/* own += the sums of a row's products less those of its column. */
static void add_pair_sums(const job *j, float *own) {
    float column[B];
    memset(j->s.row_sums, 0, B * C * sizeof(float));
    for (size_t s = 0; s < j->steps; s++)
        step_chains(j, j->s.p.sums_turned, 0, iv_size_min(j->rows, s * T + T), s, &j->s.m.ones, j->s.row_sums);
    for (size_t t = 0; t < j->rows; t++) column[t] = *at(j->s.row_sums, t, 0);
    memset(j->s.row_sums, 0, B * C * sizeof(float));
    for (size_t s = 0; s < j->steps; s++) step_chains(j, j->s.p.sums, s * T, j->rows, s, &j->s.m.ones, j->s.row_sums);
    for (size_t t = 0; t < j->rows; t++) own[t] = (*at(j->s.row_sums, t, 0) - column[t]) + own[t];
}

/* ---- borders --------------------------------------------------------------------------------------------- */

/* R of the gradient of the state behind the block, both ways. */
static void round_next(job *j, const float *next) {
    const iv_delta_layout *l = j->l;
    for (size_t k = 0; k < l->key_dim; k++)
        for (size_t p = 0; p < j->s.m.next_of_keys.panels; p++)
            j->c->kernels->round(next + (p * l->key_dim + k) * C, iv_size_min(C, l->value_dim - p * C), l->type,
                                 j->s.rounded + (k * l->value_dim + p * C) * j->width);
    pack_rows(j, &j->s.m.next_of_values, j->s.rounded, l->value_dim, l->key_dim);
    pack_columns(j, &j->s.m.next_of_keys, j->s.rounded, l->value_dim, l->key_dim);
}

/* The gradient of the state's decay over the block. */
static float decay_of_state(const job *j, const char *state, const float *next) {
    const iv_delta_layout *l = j->l;
    float lanes[IV_ROW_LANES] = {0};
    if (j->is_last || !state) return 0.0f;
    for (size_t c = 0, i = 0; c < l->key_dim; c++)
        for (size_t e = 0; e < l->value_dim; e++, i++) {
            float *lane = &lanes[i % IV_ROW_LANES];
            *lane = iv_fma(iv_element(l->type, state, i), next[(e / C * l->key_dim + c) * C + e % C], *lane);
        }
    return iv_ref_delta_factor(j->total[B - 1], 0.0f) * iv_ref_fold_lanes(lanes);
}

/* [key_dim][64] of q or k, decayed from the border; k with the other sign. */
static void decay_rows(const job *j, bool key) {
    const iv_delta_layout *l = j->l;
    float factor[B], row[B] = {0};
    for (size_t t = 0; t < j->rows; t++) factor[t] = iv_ref_delta_factor(j->total[t], 0.0f);
    for (size_t c = 0; c < l->key_dim; c++) {
        for (size_t t = 0; t < j->rows; t++) {
            float x = factor[t] * iv_element(l->type, row_of(j, key), t * 2 * l->keys + c);
            row[t] = key ? 0.0f - x : x;
        }
        j->c->kernels->round(row, B, l->type, j->s.decayed + c * B * j->width);
    }
}

/* next becomes the gradient of the state at the border where the block begins. */
static void move_border(const job *j, float *next) {
    const iv_delta_layout *l = j->l;
    size_t floats = j->s.m.dout_columns.panels * l->key_dim * C;
    if (j->is_last)
        memset(next, 0, floats * sizeof *next);
    else
        j->c->kernels->scale(next, floats, iv_ref_delta_factor(j->total[B - 1], 0.0f));
    decay_rows(j, false);
    chains(j, j->s.decayed, B, 0, l->key_dim, j->steps * T, &j->s.m.dout_columns, 0, next, l->key_dim);
    if (l->scan) return;
    decay_rows(j, true);
    chains(j, j->s.decayed, B, 0, l->key_dim, j->steps * T, &j->s.m.dv_columns, 0, next, l->key_dim);
}

/* ---- blocks ---------------------------------------------------------------------------------------------- */

static void run_value_head(job *j, size_t value) {
    const iv_delta_layout *l = j->l;
    const iv_delta_kept *kept = j->a->forward->kept;
    size_t head = j->key_head * l->group + value, elements = l->key_dim * l->value_dim;
    const char *state = NULL; /* zero */
    if (j->index)
        state = (const char *)kept->borders +
                ((j->span->border + j->index - 1) * l->value_heads + head) * elements * j->width;
    const char *updates = values_of(j, kept->updates, head), *dout = values_of(j, j->a->dout, head);
    float *next = j->s.next + value * j->s.m.dout_columns.panels * l->key_dim * C, own[B], behind[B], decays[B];
    for (size_t t = 0; t < j->rows; t++)
        j->total[t] = (t ? j->total[t - 1] : 0.0f) + kept->gates[((j->row + t) * 3 + 1) * l->value_heads + head];
    pack_rows(j, &j->s.m.update_rows, updates, values_stride(j), j->rows);
    pack_columns(j, &j->s.m.dout_columns, dout, values_stride(j), j->rows);
    if (state) pack_rows(j, &j->s.m.state_of_values, state, l->value_dim, l->key_dim);
    if (!j->is_last) round_next(j, next);
    weigh(j);
    substitute(j, head, updates);
    weigh_gradients(j, dout);
    border_products(j, dout, updates, own, behind);
    key_gradients(j, value > 0);
    add_pair_sums(j, own);
    iv_ref_delta_totals_backward(j->rows, own, behind, decay_of_state(j, state, next), decays);
    for (size_t t = 0; t < j->rows; t++)
        j->a->dx[(j->row + t) * l->width + l->width - l->value_heads + head] = decays[t];
    if (j->index) move_border(j, next);
}

/* What the value heads share. */
static void begin_block(job *j) {
    const iv_delta_layout *l = j->l;
    size_t stride = 2 * l->keys, bytes = 2 * B * C * sizeof(float);
    pack_rows(j, &j->s.m.key_rows, row_of(j, true), stride, j->rows);
    pack_columns(j, &j->s.m.key_columns, row_of(j, true), stride, j->rows);
    pack_columns(j, &j->s.m.query_columns, row_of(j, false), stride, j->rows);
    memset(j->s.key_scores, 0, bytes), memset(j->s.query_scores, 0, bytes);
    if (!l->scan) chains(j, row_of(j, true), stride, 0, j->rows, l->key_dim, &j->s.m.key_rows, 0, j->s.key_scores, B);
    chains(j, row_of(j, false), stride, 0, j->rows, l->key_dim, &j->s.m.key_rows, 0, j->s.query_scores, B);
}

void iv_delta_heads_backward(const iv_compute *c, const iv_delta_backward_args *a, const iv_delta_span *s,
                             size_t key_head, void *memory) {
    const iv_delta_layout *l = a->layout;
    job j = {.c = c,
             .a = a,
             .l = l,
             .span = s,
             .tile = iv_tile_for(&c->kernels->tiles, c->arithmetic, l->type, iv_weight_plain(l->type)),
             .key_head = key_head,
             .width = iv_dtype_bytes(l->type),
             .is_last = true};
    iv_carving v = {.base = memory, .align = 64};
    float one[B];
    IV_ASSERT(l->group_first == 0 && l->value_heads == l->key_heads * l->group && s->position == 0);
    carve(l, &v, &j.s);
    for (size_t i = 0; i < B; i++) one[i] = 1.0f;
    c->kernels->round(one, B, l->type, j.s.dv);
    memset(j.s.m.ones.data, 0, iv_matrix_bytes(&j.s.m.ones));
    iv_matrix_pack(&j.s.m.ones, l->type, j.s.dv, B, 0, 1);
    for (size_t b = (s->rows + B - 1) / B; b-- > 0; j.is_last = false) {
        j.index = b, j.row = s->first_row + b * B, j.rows = iv_size_min(B, s->rows - b * B);
        j.steps = (j.rows + T - 1) / T;
        begin_block(&j);
        for (size_t value = 0; value < l->group; value++) run_value_head(&j, value);
    }
}
