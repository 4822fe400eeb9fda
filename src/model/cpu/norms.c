/* norms.c: norms of the rows of the residual stream, and back. Law: NUMERICS.md 8.2, 15.6, 15.7. */
#include "model/cpu/norms.h"
#include "model/cpu/learner_state.h"

typedef struct forward_job {
    iv_cpu_model *s;
    const float *x, *weight; /* weight NULL: x is only rounded */
} forward_job;

static void forward_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const forward_job *j = context;
    const iv_model *m = j->s->model;
    const iv_kernels *k = j->s->compute.kernels;
    size_t hidden = (size_t)m->config.hidden_size;
    const float *x = j->x + row * hidden;
    char *normed = (char *)j->s->normed + row * hidden * iv_dtype_bytes(m->gemm_type);
    if (m->config.layer_norm && j->weight) {
        k->center(x, hidden, j->s->centered + row * hidden);
        x = j->s->centered + row * hidden;
    }
    if (j->weight)
        k->rmsnorm(x, j->weight, (float)m->config.rms_norm_eps, hidden, m->gemm_type, normed);
    else
        k->round(x, hidden, m->gemm_type, normed);
}

void iv_cpu_norm(iv_cpu_model *s, const float *x, const float *weight) {
    forward_job j = {s, x, weight};
    iv_pool_run(s->compute.pool, s->batch->tokens, forward_row, &j);
}

/* ---- backward --------------------------------------------------------------------------------------------------- */

typedef struct backward_job {
    iv_cpu_learner *l;
    const float *x, *weight, *dy;
    float *dx; /* to which the gradient is added */
    float eps;
} backward_job;

static size_t hidden_of(const iv_cpu_learner *l) { return (size_t)l->model->config.hidden_size; }

float iv_learner_norm_row(const iv_cpu_learner *l, const float *x, const float *weight, float eps, const float *dy,
                          float *dx, float *centered, size_t apart) {
    const iv_kernels *k = l->kernels;
    size_t h = hidden_of(l);
    if (!l->model->config.layer_norm) return k->rmsnorm_backward(x, weight, eps, h, dy, dx, dx);
    float *gradient = centered + apart;
    k->center(x, h, centered);
    float r = k->rmsnorm_backward(centered, weight, eps, h, dy, NULL, gradient);
    k->center(gradient, h, gradient);
    k->add(dx, gradient, h);
    return r;
}

static void backward_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const backward_job *j = context;
    iv_cpu_learner *l = j->l;
    size_t h = hidden_of(l), at = row * h;
    float *centered = l->centered ? l->centered + at : NULL;
    l->factors[row] =
        iv_learner_norm_row(l, j->x + at, j->weight, j->eps, j->dy + at, j->dx + at, centered, l->base.rows_max * h);
}

static void weight_columns(void *context, size_t row, size_t first, size_t count, float *acc) {
    const backward_job *j = context;
    size_t at = row * hidden_of(j->l) + first;
    j->l->kernels->norm_weight_backward(j->dy + at, j->x + at, j->l->factors[row], count, acc);
}

static void norm_backward(backward_job j, const iv_tensor *tensor) {
    iv_cpu_learner *l = j.l;
    iv_pool_run(l->compute.pool, l->batch.tokens, backward_row, &j);
    if (l->model->config.layer_norm) j.x = l->centered;
    if (l->model->rank > 0) return;
    iv_learner_sum_columns(
        l, &(iv_axis_columns){&l->axis, &l->step->sums, tensor->offset, hidden_of(l), weight_columns, &j});
}

void iv_learner_norm(iv_cpu_learner *l, const float *x, const float *weight, const iv_tensor *tensor, const float *dy,
                     float *dx) {
    norm_backward((backward_job){l, x, weight, dy, dx, (float)l->model->config.rms_norm_eps}, tensor);
}

void iv_learner_post_norm(iv_cpu_learner *l, const float *x, const float *weight, const iv_tensor *tensor,
                          const float *dy, float *dx) {
    norm_backward((backward_job){l, x, weight, dy, dx, (float)iv_config_post_eps(&l->model->config)}, tensor);
}
