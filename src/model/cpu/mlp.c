/* mlp.c: gate and up, activation, down. */
#include "model/cpu/mlp.h"
#include "model/cpu/product.h"
#include "numerics/router.h"

typedef struct job {
    iv_cpu_model *s;
    const iv_mlp_part *p;
    size_t n;
} job;

iv_mlp_part iv_cpu_dense_part(iv_cpu_model *s, const iv_layer *l) {
    const iv_tape_layer *t = s->tape ? s->tape->now : NULL;
    return (iv_mlp_part){.w = l->experts,
                         .cuts = &s->model->tp.down,
                         .up_site = iv_site(s->model, l, IV_SITE_UP, 0),
                         .down_site = iv_site(s->model, l, IV_SITE_DOWN, 0),
                         .activation = iv_layer_activation(l, l->experts),
                         .gate_scale = s->model->scales.gate,
                         .gate = t ? t->gate : NULL,
                         .up = t ? t->up : NULL,
                         .act = s->act};
}

iv_mlp_part iv_cpu_shared_part(iv_cpu_model *s, const iv_layer *l) {
    const iv_tape_layer *t = s->tape ? s->tape->now : NULL;
    const iv_model_config *c = &s->model->config;
    return (iv_mlp_part){.w = &l->shared,
                         .cuts = &s->model->tp.shared,
                         .up_site = iv_site(s->model, l, IV_SITE_SHARED_UP, 0),
                         .down_site = iv_site(s->model, l, IV_SITE_SHARED_DOWN, 0),
                         .activation = iv_layer_activation(l, &l->shared),
                         .gate_scale = 1.0f,
                         .gate = t ? t->shared_gate : NULL,
                         .up = t ? t->shared_up : NULL,
                         .act = t ? t->shared_act : s->act,
                         .scales = c->shared_gate ? s->router_logits + c->experts : NULL,
                         .scales_apart = l->router.n};
}

void iv_cpu_activate(const iv_cpu_model *s, const iv_activation *a, const float *wide, size_t row, size_t n,
                     iv_dtype type, void *act, void *gate, void *up) {
    const iv_kernels *k = s->compute.kernels;
    const float *of_up = wide + (row + 1) * iv_activation_inputs(a) * n - n,
                *of_gate = iv_activation_is_gated(a) ? of_up - n : NULL;
    if (gate && of_gate) k->round(of_gate, n, s->model->gemm_type, gate);
    if (up) k->round(of_up, n, s->model->gemm_type, up);
    k->activate(a, of_gate, of_up, n, type, act); /* last: it may replace its inputs */
}

static void act_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const job *j = context;
    const iv_kernels *k = j->s->compute.kernels;
    iv_dtype type = j->s->model->gemm_type;
    size_t at = row * j->n * iv_dtype_bytes(type);
    void *act = (char *)j->p->act + at;
    float *scaled = j->s->wide + row * iv_activation_inputs(&j->p->activation) * j->n;
    bool scales = j->p->scales != NULL;
    if (j->p->gate_scale != 1.0f) k->scale(scaled, j->n, j->p->gate_scale);
    iv_cpu_activate(j->s, &j->p->activation, j->s->wide, row, j->n, scales ? IV_F32 : type, scales ? scaled : act,
                    j->p->gate ? (char *)j->p->gate + at : NULL, j->p->up ? (char *)j->p->up + at : NULL);
    if (!scales) return;
    k->scale(scaled, j->n, iv_ref_sigmoid(j->p->scales[row * j->p->scales_apart]));
    k->round(scaled, j->n, type, act);
}

void iv_cpu_mlp_act(iv_cpu_model *s, const iv_mlp_part *p) {
    const iv_matrix *w = &p->w->gate_up;
    job j = {.s = s, .p = p, .n = p->cuts->of[s->model->rank].k};
    if (j.n == 0) return;
    iv_cpu_product(s, p->up_site,
                   &(iv_linear_args){.weight = w,
                                     .type = s->model->gemm_type,
                                     .x = s->normed,
                                     .x_stride = w->k,
                                     .rows = s->batch->tokens,
                                     .bias = p->w->gate_up_bias,
                                     .out = s->wide,
                                     .out_stride = w->n},
                   (iv_product_rows){0});
    iv_pool_run(s->compute.pool, s->batch->tokens, act_row, &j);
}

iv_status iv_cpu_mlp_down(iv_cpu_model *s, const iv_mlp_part *p, float *out, iv_error *err) {
    const iv_row_cut *cut = &p->cuts->of[s->model->rank];
    return iv_cpu_row_product(s, p->down_site,
                              &(iv_row_parallel_args){.cuts = p->cuts,
                                                      .nodes = p->w->down,
                                                      .bias = p->w->down_bias,
                                                      .x = p->act,
                                                      .x_stride = cut->k,
                                                      .x_first = cut->first,
                                                      .rows = s->batch->tokens,
                                                      .out = out},
                              err);
}
