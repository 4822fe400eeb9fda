/* mlp_backward.c: the backward pass of an MLP that all tokens pass (mlp.h). Law: NUMERICS.md 15.6, 15.9. */
#include "base/size.h"
#include "model/cpu/norms.h"
#include "model/cpu/learner_state.h"
#include "numerics/backward.h"
#include "numerics/floats.h"

typedef struct job {
    iv_cpu_learner *l;
    const iv_mlp_backward_args *a;
    size_t n, leaf; /* of the rank's part: values, values of a leaf */
} job;

iv_gradient_slice iv_whole_slice(size_t offset, size_t n, size_t *leaves) {
    size_t padded = iv_padded_k(n);
    *leaves = (size_t)iv_leaf_count(padded, IV_SUM_WHOLE);
    return (iv_gradient_slice){offset, n, padded / *leaves};
}

void iv_up_slices(const iv_mlp_tensors *t, size_t first, size_t n, size_t leaf, iv_linear_backward_args *a) {
    const iv_tensor *of[] = {t->gate, t->up};
    for (size_t i = 0; i < 2; i++)
        if (of[i]) a->slice[a->slices++] = (iv_gradient_slice){of[i]->offset + first, n, leaf};
}

/* The tree over leaves. */
static float add_leaves(float *leaf, size_t leaves) {
    for (size_t stride = 1; stride < leaves; stride *= 2)
        for (size_t i = 0; i < leaves; i += 2 * stride) leaf[i] = leaf[i] + leaf[i + stride];
    return leaf[0];
}

/* The gradient of a row's scale, of the rank's leaves; da becomes that of the activation before it was scaled. */
static void scale_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    iv_cpu_learner *l = j->l;
    iv_dtype type = l->model->gemm_type;
    const iv_mlp_part *p = &j->a->part;
    const char *act = (const char *)p->act + row * j->n * iv_dtype_bytes(type);
    float *da = l->dact + row * j->n, leaf[IV_LEAVES_MAX];
    for (size_t i = 0; i < j->a->leaves; i++) {
        size_t first = iv_size_min(j->n, i * j->leaf), n = iv_size_min(j->leaf, j->n - first);
        leaf[i] = iv_ref_expert_weight_gradient(type, da + first, act + first * iv_dtype_bytes(type), n);
    }
    j->a->scale_gradients[row] = add_leaves(leaf, j->a->leaves);
    l->kernels->scale(da, j->n, iv_ref_sigmoid(p->scales[row * p->scales_apart]));
}

/* From that of a scale to that of its logit. */
static void logit_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    const iv_mlp_part *p = &j->a->part;
    float *out = j->a->scale_gradients + row;
    *out = iv_canonical(*out * (1.0f - iv_ref_sigmoid(p->scales[row * p->scales_apart])));
}

static iv_status scales_backward(job *j, iv_error *err) {
    iv_cpu_learner *l = j->l;
    if (!j->a->part.scales) return IV_OK;
    iv_pool_run(l->compute.pool, l->batch.tokens, scale_row, j);
    IV_TRY(iv_ranks_add_rows(l, j->a->scale_gradients, l->batch.tokens, false, err));
    iv_pool_run(l->compute.pool, l->batch.tokens, logit_row, j);
    return IV_OK;
}

/* A row's parts of the gradients of the numbers of xIELU. */
static void number_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    iv_cpu_learner *l = j->l;
    const iv_mlp_part *p = &j->a->part;
    iv_dtype type = l->model->gemm_type;
    float leaf[2][IV_LEAVES_MAX], sums[2];
    for (size_t i = 0; i < j->a->leaves; i++) {
        size_t first = iv_size_min(j->n, i * j->leaf), n = iv_size_min(j->leaf, j->n - first), at = row * j->n + first;
        const char *x = (const char *)p->up + at * iv_dtype_bytes(type);
        iv_ref_xielu_sums(&p->activation, type, x, l->dact + at, n, sums);
        leaf[0][i] = sums[0], leaf[1][i] = sums[1];
    }
    for (size_t k = 0; k < 2; k++) l->activation_terms[2 * row + k] = add_leaves(leaf[k], j->a->leaves);
}

/* From those of softplus to those of the weights. */
static void softplus_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    const iv_mlp *w = j->a->part.w;
    float *terms = j->l->activation_terms + 2 * row;
    terms[0] = iv_canonical(terms[0] * iv_ref_sigmoid(*w->alpha_p));
    terms[1] = iv_canonical(terms[1] * iv_ref_sigmoid(*w->alpha_n));
}

static iv_status numbers_backward(job *j, iv_error *err) {
    iv_cpu_learner *l = j->l;
    size_t rows = l->batch.tokens;
    if (j->a->part.activation.kind != IV_ACTIVATION_XIELU) return IV_OK;
    iv_pool_run(l->compute.pool, rows, number_row, j);
    IV_TRY(iv_ranks_add_rows(l, l->activation_terms, 2 * rows, false, err));
    if (l->model->rank > 0) return IV_OK;
    iv_pool_run(l->compute.pool, rows, softplus_row, j);
    iv_bias_backward(l, &l->axis, l->activation_terms, 2, 0, 1, j->a->t->alpha_p->offset);
    iv_bias_backward(l, &l->axis, l->activation_terms, 2, 1, 1, j->a->t->alpha_n->offset);
    return IV_OK;
}

static void activation_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    iv_cpu_learner *l = j->l;
    const iv_mlp_part *p = &j->a->part;
    iv_dtype type = l->model->gemm_type;
    size_t width = iv_dtype_bytes(type), all = iv_activation_inputs(&p->activation) * j->n, at = row * j->n * width;
    const char *gate = (const char *)p->gate + at, *up = (const char *)p->up + at;
    char *dy = (char *)l->dy + row * all * width;
    const float *da = l->dact + row * j->n;
    if (!j->a->t->up_bias && p->gate_scale == 1.0f) {
        l->kernels->activate_backward(&p->activation, type, gate, up, da, j->n, type, dy, dy + (all - j->n) * width);
        return;
    }
    float *wide = l->forward->wide + row * all;
    l->kernels->activate_backward(&p->activation, type, gate, up, da, j->n, IV_F32, wide, wide + all - j->n);
    if (p->gate_scale != 1.0f) l->kernels->scale(wide, j->n, p->gate_scale);
    l->kernels->round(wide, all, type, dy);
}

iv_status iv_mlp_backward(iv_cpu_learner *l, const iv_mlp_backward_args *a, iv_error *err) {
    const iv_mlp_tensors *t = a->t;
    const iv_row_cut *cut = &a->part.cuts->of[l->model->rank];
    size_t rows = l->batch.tokens, h = (size_t)l->model->config.hidden_size, n = cut->k;
    size_t all = iv_activation_inputs(&a->part.activation) * n, leaf = iv_padded_k(a->whole) / a->leaves;
    job j = {l, a, n, leaf / l->model->tp.ranks};
    iv_learner_round(l, l->dblock, rows, h, l->dy);
    iv_linear_backward_args down = {.axis = &l->axis,
                                    .rows = rows,
                                    .dy = l->dy,
                                    .dy_stride = h,
                                    .slices = 1,
                                    .stride = a->whole,
                                    .k = n,
                                    .x = a->part.act,
                                    .dx = l->dact,
                                    .adapted = iv_learner_adapted(l, a->part.down_site),
                                    .inputs = a->part.cuts};
    down.slice[0] = iv_whole_slice(t->down->offset + cut->first, h, &down.leaves);
    IV_TRY(iv_linear_backward(l, &down, err));
    if (t->down_bias && l->model->rank == 0) iv_bias_backward(l, &l->axis, l->dblock, h, 0, h, t->down_bias->offset);
    IV_TRY(scales_backward(&j, err));
    IV_TRY(numbers_backward(&j, err));
    iv_pool_run(l->compute.pool, rows, activation_row, &j);
    if (t->gate_bias) iv_bias_backward(l, &l->axis, l->forward->wide, all, 0, n, t->gate_bias->offset + cut->first);
    if (t->up_bias) iv_bias_backward(l, &l->axis, l->forward->wide, all, all - n, n, t->up_bias->offset + cut->first);
    iv_cpu_norm(l->forward, a->x, a->norm);
    iv_linear_backward_args up = {.axis = &l->axis,
                                  .rows = rows,
                                  .dy = l->dy,
                                  .dy_stride = all,
                                  .stride = h,
                                  .k = h,
                                  .leaves = a->leaves,
                                  .cuts = a->up_cuts,
                                  .x = l->forward->normed,
                                  .dx = a->dx,
                                  .adapted = iv_learner_adapted(l, a->part.up_site)};
    iv_up_slices(t, cut->first * h, n, j.leaf, &up);
    return iv_linear_backward(l, &up, err);
}
