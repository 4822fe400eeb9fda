/* head_backward.c: from the coefficients of predictions to the gradient of the last layer's output. Logits are computed
 * again in blocks of the vocabulary, so that a block's gradients serve the weights and continue the chains of the
 * input's before the next block overwrites them. */
#include "base/cpu.h"
#include "base/size.h"
#include "kernels/linear.h"
#include "kernels/pack_columns.h"
#include "kernels/weight_gradient.h"
#include "model/cpu/learner_state.h"
#include "numerics/floats.h"
#include "numerics/rows.h"

#include <string.h>

typedef struct head_job {
    iv_cpu_learner *l;
    const iv_tensor *tensor;
    size_t h, count, width;
    size_t first, n, padded;     /* the block's columns */
    size_t logits_first, stride; /* column of the first logit there is; floats from row to row */
    iv_matrix x;                 /* the normed rows over the axis */
    const iv_adapted *m;         /* of the adapter that learns, or NULL */
    size_t at_a, at_b;           /* its A and B in the flat buffer */
    iv_matrix t;                 /* R(A x) over the axis */
} head_job;

/* A sum over the vocabulary in leaves: of the inputs' gradient, or of that of t. */
typedef struct leaf_sum {
    float *acc, *waiting[4];
    size_t floats;
} leaf_sum;

/* The gradient of the head's products through the shape of logits y. */
static void shaped_gradient(const head_job *j, size_t i, const float *y, const float *x, char *out) {
    iv_cpu_learner *l = j->l;
    enum { CHUNK = 256 };
    for (size_t at = 0; at < j->n; at += CHUNK) {
        float d[CHUNK];
        size_t n = iv_size_min(CHUNK, j->n - at);
        l->kernels->logits_backward(x + at, j->first + at, n, l->max[i], l->sum[i], l->coefficients[i],
                                    (size_t)l->predictions[i].target, IV_F32, d);
        for (size_t k = 0; k < n; k++) d[k] = iv_ref_shape_gradient(l->model->scales.logits, y[at + k], d[k]);
        l->kernels->round(d, n, l->model->gemm_type, out + at * j->width);
    }
}

static void gradient_row(void *context, size_t i, size_t worker) {
    (void)worker;
    const head_job *j = context;
    iv_cpu_learner *l = j->l;
    bool shaped = iv_shapes_logits(&l->model->scales);
    float *x = l->logits + i * j->stride + (j->first - j->logits_first), t = l->step->temperature;
    if (j->m) l->kernels->add_scaled(x, l->head_z + i * j->n, j->m->scale, j->n);
    float y[IV_VOCABULARY_BLOCK];
    char *out = (char *)l->dy + i * j->padded * j->width;
    if (shaped) {
        iv_cpu_shape_logits(l->forward, x, j->n);
        memcpy(y, x, j->n * sizeof *y);
    }
    for (size_t k = 0; t != 1.0f && k < j->n; k++) x[k] = x[k] / t;
    if (l->step->allowed) iv_ref_forbid(x, j->first, j->n, l->step->allowed);
    if (shaped)
        shaped_gradient(j, i, y, x, out);
    else
        l->kernels->logits_backward(x, j->first, j->n, l->max[i], l->sum[i], l->coefficients[i],
                                    (size_t)l->predictions[i].target, l->model->gemm_type, out);
    memset(out + j->n * j->width, 0, (j->padded - j->n) * j->width);
}

static size_t block_offset(const head_job *j) { return j->tensor->offset + j->first * j->h; }

/* The block's logits: the same bits whatever panels they come from. */
static void block_logits(head_job *j) {
    iv_cpu_learner *l = j->l;
    iv_matrix w = l->model->head;
    if (l->model->tp.ranks == 1) {
        size_t panel = j->first / IV_PANEL_COLUMNS, end = (j->first + j->n + IV_PANEL_COLUMNS - 1) / IV_PANEL_COLUMNS;
        j->logits_first = panel * IV_PANEL_COLUMNS;
        w.n = iv_size_min(w.n, end * IV_PANEL_COLUMNS) - j->logits_first;
        w.data += panel * w.panel_bytes, w.panels = end - panel;
    } else { /* a rank's panels do not end where its leaves do */
        bool shaped = iv_matrix_shape(&w, l->model->head.type, j->n, j->h);
        IV_ASSERT(shaped);
        w.data = memset(l->transposed, 0, iv_matrix_bytes(&w));
        iv_matrix_pack(&w, iv_learner_rows_type(l), iv_learner_rows(l, block_offset(j), j->n, j->h, 0), j->h, 0, j->n);
        j->logits_first = j->first;
    }
    j->stride = w.n;
    iv_linear(&l->compute, &(iv_linear_args){.weight = &w,
                                             .type = l->model->gemm_type,
                                             .x = l->forward->normed,
                                             .x_stride = j->h,
                                             .rows = j->count,
                                             .out = l->logits,
                                             .out_stride = w.n});
}

/* Sums of weight gradients of the block's outputs. */
static void sum_block(const head_job *j, const iv_matrix *x, const void *dy, size_t offset, size_t stride) {
    iv_cpu_learner *l = j->l;
    iv_weight_gradient(&l->compute, &(iv_weight_gradient_args){.axis = &l->head_axis,
                                                               .x = x,
                                                               .type = l->model->gemm_type,
                                                               .dy = dy,
                                                               .dy_stride = j->padded,
                                                               .n = j->n,
                                                               .sums = &l->step->sums,
                                                               .offset = offset,
                                                               .stride = stride});
}

/* acc += dy W over the block's outputs, whose rows of k inputs are at `from`. */
static void continue_sum(const head_job *j, const void *from, iv_dtype type, size_t k, const void *dy, float *acc) {
    iv_cpu_learner *l = j->l;
    size_t row_bytes = k * iv_dtype_bytes(type);
    for (size_t i = 0; i < j->padded; i++) l->row_list[i] = i < j->n ? (const char *)from + i * row_bytes : NULL;
    iv_matrix transposed;
    bool shaped = iv_matrix_shape(&transposed, l->model->gemm_type, k, j->padded);
    IV_ASSERT(shaped);
    transposed.data = l->transposed;
    iv_pack_columns(&l->compute, type, l->row_list, &transposed);
    iv_linear_continue(
        &l->compute,
        &(iv_linear_args){
            .weight = &transposed, .type = l->model->gemm_type, .x = dy, .x_stride = j->padded, .rows = j->count},
        acc);
}

/* ---- the adapter ------------------------------------------------------------------------------------------- */

static const float *block_b(const head_job *j) { return j->l->masters + j->at_b + j->first * j->m->rank; }

/* head_z = B t of the block. */
static void block_term(const head_job *j) {
    iv_cpu_learner *l = j->l;
    iv_matrix b;
    bool shaped = iv_matrix_shape(&b, l->model->gemm_type, j->n, j->m->rank);
    IV_ASSERT(shaped);
    b.leaves = 1, b.data = memset(l->head_b, 0, iv_matrix_bytes(&b));
    iv_matrix_pack(&b, IV_F32, block_b(j), j->m->rank, 0, j->n);
    iv_linear(&l->compute, &(iv_linear_args){.weight = &b,
                                             .type = l->model->gemm_type,
                                             .x = l->adapter_t,
                                             .x_stride = j->m->rank,
                                             .rows = j->count,
                                             .out = l->head_z,
                                             .out_stride = j->n});
}

static void scaled_row(void *context, size_t i, size_t worker) {
    (void)worker;
    const head_job *j = context;
    iv_cpu_learner *l = j->l;
    iv_dtype type = l->model->gemm_type;
    float x[IV_VOCABULARY_BLOCK];
    size_t at = i * j->padded;
    for (size_t k = 0; k < j->padded; k++) x[k] = j->m->scale * iv_element(type, l->dy, at + k);
    l->kernels->round(x, j->n, type, (char *)l->adapter_dz + at * j->width);
    memset((char *)l->adapter_dz + (at + j->n) * j->width, 0, (j->padded - j->n) * j->width);
}

static void block_adapter(const head_job *j, float *acc) {
    iv_cpu_learner *l = j->l;
    iv_pool_run(l->compute.pool, j->count, scaled_row, (void *)(uintptr_t)j);
    sum_block(j, &j->t, l->adapter_dz, j->at_b + j->first * j->m->rank, j->m->rank);
    continue_sum(j, block_b(j), IV_F32, j->m->rank, l->adapter_dz, acc);
}

static void run_block(head_job *j, float *acc, float *rank_acc) {
    iv_cpu_learner *l = j->l;
    j->padded = iv_padded_k(j->n);
    block_logits(j);
    if (j->m) block_term(j);
    iv_pool_run(l->compute.pool, j->count, gradient_row, j);
    if (!l->learned) sum_block(j, &j->x, l->dy, block_offset(j), j->h);
    continue_sum(j, iv_learner_rows(l, block_offset(j), j->n, j->h, 0), iv_learner_rows_type(l), j->h, l->dy, acc);
    if (j->m) block_adapter(j, rank_acc);
}

/* of: [4] arrays of count rows of k floats, in panels. */
static leaf_sum leaf_sum_of(const head_job *j, float *const *of, size_t k) {
    size_t columns = (k + IV_PANEL_COLUMNS - 1) / IV_PANEL_COLUMNS * IV_PANEL_COLUMNS;
    return (leaf_sum){of[0], {of[1], of[2], of[3], NULL}, j->count * columns};
}

/* Leaf i of `leaves` is complete: it joins its siblings. */
static void end_leaf(const head_job *j, leaf_sum *s, size_t i, size_t leaves) {
    size_t level = 0;
    for (; i >> level & 1; level++)
        iv_learner_add_nodes(j->l, s->waiting[level], s->acc, s->floats, j->l->compute.arithmetic == IV_FMA32);
    if (i + 1 == leaves) return;
    float *t = s->waiting[level];
    s->waiting[level] = s->acc, s->acc = t;
}

/* The sum's rows of k floats. */
static void take_sum(const head_job *j, const leaf_sum *s, size_t k, float *out) {
    iv_cpu_learner *l = j->l;
    iv_matrix shape;
    bool shaped = iv_matrix_shape(&shape, l->model->gemm_type, k, IV_VOCABULARY_BLOCK);
    IV_ASSERT(shaped);
    iv_linear_result(
        &l->compute,
        &(iv_linear_args){.weight = &shape, .type = l->model->gemm_type, .rows = j->count, .out = out, .out_stride = k},
        s->acc);
}

/* This rank's leaves of the sum over the vocabulary, in dnormed; and of t's gradient, in adapter_sums. */
static void run_leaves(head_job *j) {
    iv_cpu_learner *l = j->l;
    size_t vocab = j->tensor->rows, leaves = l->head_leaves, all = leaves * l->model->tp.ranks;
    size_t leaf = iv_padded_k(vocab) / all, first = l->model->rank * leaves, rank = j->m ? j->m->rank : 0;
    leaf_sum sum = leaf_sum_of(j, l->leaf_sums, j->h), inner = leaf_sum_of(j, l->rank_sums, rank);
    for (size_t i = 0; i < leaves; i++) {
        size_t end = iv_size_min(vocab, (first + i + 1) * leaf);
        memset(sum.acc, 0, sum.floats * sizeof *sum.acc);
        if (rank) memset(inner.acc, 0, inner.floats * sizeof *inner.acc);
        for (j->first = iv_size_min(vocab, (first + i) * leaf); j->first < end; j->first += j->n) {
            j->n = iv_size_min(IV_VOCABULARY_BLOCK, end - j->first);
            run_block(j, sum.acc, inner.acc);
        }
        end_leaf(j, &sum, i, leaves);
        if (rank) end_leaf(j, &inner, i, leaves);
    }
    take_sum(j, &sum, j->h, l->dnormed);
    if (rank) take_sum(j, &inner, rank, l->adapter_sums);
}

/* t of all predictions, by row and over the axis. */
static void begin_adapter(head_job *j) {
    iv_cpu_learner *l = j->l;
    const iv_model *m = l->model;
    j->m = iv_learner_adapted(l, iv_site_head(m));
    if (!j->m) return;
    j->at_a = l->learned->a[j->m->module]->offset, j->at_b = l->learned->b[j->m->module]->offset;
    l->kernels->linear(&l->compute, &(iv_linear_args){.weight = &j->m->a[0],
                                                      .type = m->gemm_type,
                                                      .x = l->forward->normed,
                                                      .x_stride = j->h,
                                                      .rows = j->count,
                                                      .out = l->adapter_sums,
                                                      .out_stride = j->m->rank});
    iv_learner_round(l, l->adapter_sums, j->count, j->m->rank, l->adapter_t);
    iv_learner_pack(l, &l->head_axis, l->adapter_t, j->m->rank, j->m->rank, l->adapter_packed, &j->t);
}

/* A's gradient, and its part of dnormed. */
static iv_status end_adapter(head_job *j, iv_error *err) {
    iv_cpu_learner *l = j->l;
    if (!j->m) return IV_OK;
    IV_TRY(iv_ranks_add_rows(l, l->adapter_sums, j->count * j->m->rank, l->compute.arithmetic == IV_FMA32, err));
    iv_learner_round(l, l->adapter_sums, j->count, j->m->rank, l->adapter_dt);
    iv_adapter_end(l, &(iv_adapter_end_args){.axis = &l->head_axis,
                                             .rows = j->count,
                                             .rank = j->m->rank,
                                             .at_a = j->at_a,
                                             .k = j->h,
                                             .x = l->model->rank == 0 ? &j->x : NULL,
                                             .dx = l->dnormed});
    return IV_OK;
}

static void norm_row(void *context, size_t i, size_t worker) {
    (void)worker;
    const head_job *j = context;
    iv_cpu_learner *l = j->l;
    size_t row = l->predictions[i].row;
    float *dx = l->dx + row * j->h;
    float *centered = l->centered ? l->centered + i * j->h : NULL;
    l->factors[i] =
        iv_learner_norm_row(l, l->forward->x + row * j->h, l->model->final_norm, (float)l->model->config.rms_norm_eps,
                            l->dnormed + i * j->h, dx, centered, l->base.rows_max * j->h);
}

static void norm_columns(void *context, size_t i, size_t first, size_t count, float *acc) {
    const head_job *j = context;
    iv_cpu_learner *l = j->l;
    const float *x = l->centered ? l->centered + i * j->h : l->forward->x + l->predictions[i].row * j->h;
    l->kernels->norm_weight_backward(l->dnormed + i * j->h + first, x + first, l->factors[i], count, acc);
}

iv_status iv_head_backward(iv_cpu_learner *l, iv_error *err) {
    const iv_model *owner = l->tensor_owner;
    head_job j = {.l = l,
                  .tensor = owner->head_tensor ? owner->head_tensor : owner->embedding_tensor,
                  .h = (size_t)l->model->config.hidden_size,
                  .count = l->prediction_count,
                  .width = iv_dtype_bytes(l->model->gemm_type)};
    iv_learner_pack(l, &l->head_axis, l->forward->normed, j.h, j.h, l->packed, &j.x);
    begin_adapter(&j);
    run_leaves(&j);
    IV_TRY(iv_ranks_add_rows(l, l->dnormed, j.count * j.h, l->compute.arithmetic == IV_FMA32, err));
    IV_TRY(end_adapter(&j, err));
    memset(l->dx, 0, l->batch.tokens * j.h * sizeof *l->dx);
    iv_pool_run(l->compute.pool, j.count, norm_row, &j);
    if (l->model->rank > 0) return IV_OK;
    iv_learner_sum_columns(
        l, &(iv_axis_columns){&l->head_axis, &l->step->sums, owner->final_norm_tensor->offset, j.h, norm_columns, &j});
    return IV_OK;
}
