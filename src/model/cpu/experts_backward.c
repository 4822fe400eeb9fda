/* experts_backward.c: the backward pass of a mixture: each expert once over its tokens, in the order of the batch, then
 * the router through the weights it gave. */
#include "base/size.h"
#include "model/cpu/norms.h"
#include "model/cpu/experts.h"
#include "model/cpu/learner_state.h"
#include "numerics/backward.h"
#include "numerics/router.h"

#include <string.h>

typedef struct expert_job {
    iv_cpu_learner *l;
    const iv_mlp_tensors *t;
    const float *down_bias; /* of the expert at work, or NULL */
    const iv_layer *layer;
    const iv_activation *activation;
    size_t h, n, k, width, rows; /* n: intermediate size; rows: of the expert at work */
    bool scales_inputs;          /* the routing weights do, not outputs */
    iv_router router;
    const float *scales; /* factors of routing weights, or NULL */
    size_t outputs;      /* of the router, with the shared expert's gate */
    iv_token_axis axis;
} expert_job;

static const iv_adapted *adapted_at(const expert_job *j, iv_site_kind kind, size_t expert) {
    return iv_learner_adapted(j->l, iv_site(j->l->model, j->layer, kind, expert));
}

static size_t slot_of(const expert_job *j, size_t row) { return j->l->expert_slots[row]; }

/* The rows of an expert, and their axis: padded per sequence. */
static void list_rows(expert_job *j, int32_t expert) {
    iv_cpu_learner *l = j->l;
    j->rows = 0;
    for (size_t q = l->from; q < l->to; q++) {
        size_t before = j->rows, first = l->ranges[q - l->from].first;
        for (size_t t = first; t < first + l->ranges[q - l->from].rows; t++)
            for (size_t s = 0; s < j->k; s++)
                if (l->tape.now->expert_ids[t * j->k + s] == expert)
                    l->expert_slots[j->rows++] = (uint32_t)(t * j->k + s);
        l->axis_sequences[q].tokens = j->rows - before;
    }
    iv_token_axis_make(l->axis_sequences, l->step->count, l->step->ranks, l->from, l->to, l->expert_rows,
                       l->expert_ranges, &j->axis);
}

static void gradient_in(void *context, size_t row, size_t worker) { /* dy = R(dx) */
    (void)worker;
    const expert_job *j = context;
    iv_cpu_learner *l = j->l;
    const float *dx = l->dblock + slot_of(j, row) / j->k * j->h;
    l->kernels->round(dx, j->h, l->model->gemm_type, (char *)l->dy + row * j->h * j->width);
}

/* After the unweighted gradient of act: that of the routing weight; then dy = R(weight dx), and act in order. */
static void weigh_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const expert_job *j = context;
    iv_cpu_learner *l = j->l;
    size_t slot = slot_of(j, row);
    float *da = l->dact + row * j->n, *dx = l->forward->wide + row * j->h, w = l->tape.now->expert_weights[slot];
    const char *act = (const char *)l->tape.now->act + slot * j->n * j->width;
    if (j->scales_inputs) {
        memcpy((char *)l->forward->act_memory + row * j->n * j->width, act, j->n * j->width);
        return;
    }
    l->expert_gradients[slot] = iv_ref_expert_weight_gradient(l->model->gemm_type, da, act, j->n);
    if (j->down_bias) /* a part of what the weight scales */
        l->expert_gradients[slot] += l->kernels->row_dot(IV_F32, l->dblock + slot / j->k * j->h, j->down_bias, j->h);
    for (size_t i = 0; i < j->n; i++) da[i] = da[i] * w;
    memcpy((char *)l->forward->act_memory + row * j->n * j->width, act, j->n * j->width);
    memcpy(dx, l->dblock + slot / j->k * j->h, j->h * sizeof *dx);
    for (size_t i = 0; i < j->h; i++) dx[i] = dx[i] * w;
    l->kernels->round(dx, j->h, l->model->gemm_type, (char *)l->dy + row * j->h * j->width);
}

static void activation_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const expert_job *j = context;
    iv_cpu_learner *l = j->l;
    size_t slot = slot_of(j, row), all = iv_activation_inputs(j->activation) * j->n;
    const iv_tape_layer *t = l->tape.now;
    const char *gate = (const char *)t->gate + slot * j->n * j->width,
               *up = (const char *)t->up + slot * j->n * j->width;
    bool bias = j->t->up_bias != NULL;
    iv_dtype type = l->model->gemm_type, to = bias ? IV_F32 : type;
    char *typed = (char *)l->dy + row * all * j->width, *dy = bias ? (char *)(l->forward->wide + row * all) : typed;
    l->kernels->activate_backward(j->activation, type, gate, up, l->dact + row * j->n, j->n, to, dy,
                                  dy + (all - j->n) * iv_dtype_bytes(to));
    if (bias) l->kernels->round(l->forward->wide + row * all, all, type, typed);
    iv_cpu_expert_input(l->forward, slot, (char *)l->forward->gathered + row * j->h * j->width);
}

static void scatter_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const expert_job *j = context;
    iv_cpu_learner *l = j->l;
    size_t slot = slot_of(j, row);
    float *term = memcpy(l->forward->terms + slot * j->h, l->forward->wide + row * j->h, j->h * sizeof *term);
    if (!j->scales_inputs) return;
    const char *input = (const char *)l->forward->normed + slot / j->k * j->h * j->width;
    l->expert_gradients[slot] = iv_ref_expert_weight_gradient(l->model->gemm_type, term, input, j->h);
    l->kernels->scale(term, j->h, l->tape.now->expert_weights[slot]);
}

static iv_status run_expert(expert_job *j, int32_t expert, iv_error *err) {
    iv_cpu_learner *l = j->l;
    list_rows(j, expert);
    iv_pool_run(l->compute.pool, j->rows, gradient_in, j);
    iv_linear_backward_args down = {.axis = &j->axis,
                                    .rows = j->rows,
                                    .dy = l->dy,
                                    .dy_stride = j->h,
                                    .slices = 1,
                                    .slice = {{j->t->down->offset, j->h, j->h}},
                                    .stride = j->n,
                                    .k = j->n,
                                    .leaves = IV_EXPERT_LEAVES,
                                    .dx = l->dact,
                                    .adapted = adapted_at(j, IV_SITE_DOWN, (size_t)expert)};
    IV_TRY(iv_linear_backward(l, &down, err));
    iv_pool_run(l->compute.pool, j->rows, weigh_row, j);
    down.dx = NULL, down.x = l->forward->act_memory;
    IV_TRY(iv_linear_backward(l, &down, err));
    if (j->t->down_bias) iv_bias_backward(l, &j->axis, l->forward->wide, j->h, 0, j->h, j->t->down_bias->offset);
    iv_pool_run(l->compute.pool, j->rows, activation_row, j);
    size_t all = iv_activation_inputs(j->activation) * j->n;
    if (j->t->gate_bias) iv_bias_backward(l, &j->axis, l->forward->wide, all, 0, j->n, j->t->gate_bias->offset);
    if (j->t->up_bias) iv_bias_backward(l, &j->axis, l->forward->wide, all, all - j->n, j->n, j->t->up_bias->offset);
    iv_linear_backward_args up = {.axis = &j->axis,
                                  .rows = j->rows,
                                  .dy = l->dy,
                                  .dy_stride = all,
                                  .stride = j->h,
                                  .k = j->h,
                                  .leaves = IV_EXPERT_LEAVES,
                                  .x = l->forward->gathered,
                                  .dx = l->forward->wide,
                                  .adapted = adapted_at(j, IV_SITE_UP, (size_t)expert)};
    iv_up_slices(j->t, 0, j->n, j->n, &up);
    IV_TRY(iv_linear_backward(l, &up, err));
    iv_pool_run(l->compute.pool, j->rows, scatter_row, j);
    return IV_OK;
}

/* The gradient of a token's router logits from that of its weights. */
static void route_row(void *context, size_t t, size_t worker) {
    (void)worker;
    const expert_job *j = context;
    iv_cpu_learner *l = j->l;
    const iv_tape_layer *tape = l->tape.now;
    float *out = l->router_gradients + t * j->outputs, *dw = l->expert_gradients + t * j->k;
    const float *weights = tape->expert_weights + t * j->k;
    const int32_t *ids = tape->expert_ids + t * j->k;
    if (j->scales) {
        float *terms = memset(l->scale_terms + t * j->router.experts, 0, j->router.experts * sizeof *terms);
        weights = tape->expert_shares + t * j->k;
        for (size_t s = 0; s < j->k; s++) terms[ids[s]] = dw[s] * weights[s], dw[s] = dw[s] * j->scales[ids[s]];
    }
    iv_ref_route_by_backward(&j->router, tape->router_logits + t * j->outputs, ids, weights, dw, out);
    if (j->outputs > j->router.experts) out[j->router.experts] = l->scale_gradients[t];
    l->kernels->round(out, j->outputs, l->model->gemm_type, (char *)l->dy + t * j->outputs * j->width);
}

/* Each rank has the gradients of its own experts' weights. */
static iv_status share_weights(iv_cpu_learner *l, size_t n, iv_error *err) {
    const iv_tp_plan *tp = &l->model->tp;
    size_t floats[IV_RANKS_MAX];
    const float *parts[IV_RANKS_MAX];
    if (tp->ranks == 1) return IV_OK;
    for (size_t r = 0; r < tp->ranks; r++) floats[r] = n;
    memcpy(iv_tp_gather_buffer(l->forward), l->expert_gradients, n * sizeof(float));
    IV_TRY(iv_tp_gather_all(l->forward, floats, NULL, parts, err));
    for (size_t i = 0; i < n; i++) {
        size_t expert = (size_t)l->tape.now->expert_ids[i], r = 0;
        while (expert >= tp->shard[r].expert_first + tp->shard[r].experts) r++;
        l->expert_gradients[i] = parts[r][i];
    }
    return IV_OK;
}

/* Before the experts: its gate's gradient is one of the router's outputs. */
static iv_status shared_backward(iv_cpu_learner *l, size_t layer, iv_error *err) {
    const iv_layer *w = &l->model->layers[layer];
    size_t whole = (size_t)l->model->config.shared_intermediate_size;
    if (!whole) return IV_OK;
    iv_mlp_backward_args a = {.part = iv_cpu_shared_part(l->forward, w),
                              .t = &l->tensor_owner->layer_tensors[layer].shared,
                              .norm = w->mlp_norm,
                              .x = l->tape.now->x_mlp,
                              .whole = whole,
                              .leaves = l->shared_leaves,
                              .up_cuts = l->shared_cuts,
                              .dx = l->shared_dx,
                              .scale_gradients = l->scale_gradients};
    if (a.part.scales) a.part.scales = l->tape.now->router_logits + l->model->config.experts;
    return iv_mlp_backward(l, &a, err);
}

static void add_shared_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const expert_job *j = context;
    j->l->kernels->add(j->l->dnormed + row * j->h, j->l->shared_dx + row * j->h, j->h);
}

static expert_job job_of(iv_cpu_learner *l, size_t layer) {
    const iv_model_config *c = &l->model->config;
    return (expert_job){.l = l,
                        .layer = &l->model->layers[layer],
                        .activation = &l->model->layers[layer].config->activation,
                        .router = iv_config_router(c),
                        .scales_inputs = c->router_scales_inputs,
                        .scales = l->model->layers[layer].expert_scales,
                        .outputs = l->model->layers[layer].router.n,
                        .h = (size_t)c->hidden_size,
                        .n = (size_t)c->moe_intermediate_size,
                        .k = (size_t)c->experts_per_token,
                        .width = iv_dtype_bytes(l->model->gemm_type)};
}

/* Of all experts' weights and inputs, whose rows are in forward->normed, and of the routing weights. */
static iv_status chosen_backward(expert_job *j, size_t layer, iv_error *err) {
    iv_cpu_learner *l = j->l;
    const iv_layer_tensors *tensors = &l->tensor_owner->layer_tensors[layer];
    const iv_tp_shard *shard = iv_learner_shard(l);
    size_t tokens = l->batch.tokens;
    memcpy(l->forward->expert_ids, l->tape.now->expert_ids, tokens * j->k * sizeof(int32_t));
    memcpy(l->forward->expert_weights, l->tape.now->expert_weights, tokens * j->k * sizeof(float));
    for (size_t e = shard->expert_first; e < shard->expert_first + shard->experts; e++) {
        j->t = &tensors->experts[e], j->down_bias = l->model->layers[layer].experts[e].down_bias;
        IV_TRY(run_expert(j, (int32_t)e, err));
    }
    return share_weights(l, tokens * j->k, err);
}

/* dnormed = the gradient of the router's input, whose rows are in forward->normed. */
static iv_status router_backward(expert_job *j, size_t layer, iv_error *err) {
    iv_cpu_learner *l = j->l;
    const iv_layer_tensors *tensors = &l->tensor_owner->layer_tensors[layer];
    size_t tokens = l->batch.tokens, experts = j->router.experts, padded = iv_padded_k(experts);
    iv_pool_run(l->compute.pool, tokens, route_row, j);
    size_t leaves = (size_t)iv_leaf_count(padded, IV_SUM_WHOLE);
    iv_linear_backward_args router = {.axis = &l->axis,
                                      .rows = tokens,
                                      .dy = l->dy,
                                      .dy_stride = j->outputs,
                                      .slices = 1,
                                      .slice = {{tensors->router->offset, experts, padded / leaves}},
                                      .stride = j->h,
                                      .k = j->h,
                                      .leaves = leaves,
                                      .dx = l->dnormed,
                                      .x = l->model->rank == 0 ? l->forward->normed : NULL,
                                      .adapted = adapted_at(j, IV_SITE_ROUTER, 0)};
    if (tensors->shared_gate) router.slice[router.slices++] = (iv_gradient_slice){tensors->shared_gate->offset, 1, 1};
    IV_TRY(iv_linear_backward(l, &router, err));
    if (tensors->router_bias && l->model->rank == 0)
        iv_bias_backward(l, &l->axis, l->router_gradients, j->outputs, 0, experts, tensors->router_bias->offset);
    if (tensors->expert_scales && l->model->rank == 0)
        iv_bias_backward(l, &l->axis, l->scale_terms, experts, 0, experts, tensors->expert_scales->offset);
    return IV_OK;
}

iv_status iv_experts_backward(iv_cpu_learner *l, size_t layer, iv_error *err) {
    expert_job j = job_of(l, layer);
    IV_TRY(shared_backward(l, layer, err));
    IV_TRY(chosen_backward(&j, layer, err));
    IV_TRY(router_backward(&j, layer, err));
    IV_TRY(iv_cpu_experts_combine(l->forward, l->batch.tokens, l->dnormed, err));
    if (l->shared_dx) iv_pool_run(l->compute.pool, l->batch.tokens, add_shared_row, &j);
    return IV_OK;
}

static void scale_input_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const expert_job *j = context;
    j->l->kernels->scale(j->l->dnormed + row * j->h, j->h, iv_attention_scale(j->h));
}

iv_status iv_normed_experts_backward(iv_cpu_learner *l, size_t layer, iv_error *err) {
    const iv_layer *w = &l->model->layers[layer];
    const iv_layer_tensors *t = &l->tensor_owner->layer_tensors[layer];
    const iv_tape_layer *tape = l->tape.now;
    expert_job j = job_of(l, layer);
    size_t n = l->batch.tokens * j.h;
    float *of_shared = l->sums_dx, *of_experts = l->sums_dx + l->base.rows_max * j.h, *dblock = l->dblock;
    memset(of_shared, 0, n * sizeof *of_shared), memset(of_experts, 0, n * sizeof *of_experts);
    iv_learner_norm(l, tape->shared_y, w->shared_post_norm, t->shared_post_norm, dblock, of_shared);
    iv_learner_norm(l, tape->experts_y, w->experts_post_norm, t->experts_post_norm, dblock, of_experts);
    l->dblock = of_shared;
    IV_TRY(shared_backward(l, layer, err));
    l->dblock = of_experts;
    iv_cpu_norm(l->forward, tape->x_mlp, w->experts_norm);
    IV_TRY(chosen_backward(&j, layer, err));
    iv_cpu_router_input(l->forward, w, tape->x_mlp);
    IV_TRY(router_backward(&j, layer, err));
    iv_pool_run(l->compute.pool, l->batch.tokens, scale_input_row, &j);
    iv_learner_norm(l, tape->x_mlp, w->router_norm, t->router_norm, l->dnormed, l->dx);
    memset(l->dnormed, 0, n * sizeof *l->dnormed);
    IV_TRY(iv_cpu_experts_combine(l->forward, l->batch.tokens, l->dnormed, err));
    iv_learner_norm(l, tape->x_mlp, w->experts_norm, t->experts_norm, l->dnormed, l->dx);
    memcpy(l->dnormed, l->shared_dx, n * sizeof *l->dnormed);
    l->dblock = dblock;
    return IV_OK;
}
