/* experts_backward.c: the backward pass of a mixture: each expert once over its tokens, in the order of the batch, then
 * the router through the weights it gave. */
#include "base/size.h"
#include "model/cpu/experts.h"
#include "model/cpu/learner_state.h"
#include "numerics/backward.h"

#include <string.h>

typedef struct expert_job {
    iv_cpu_learner *l;
    const iv_mlp_tensors *t;
    const iv_activation *activation;
    size_t h, n, k, width, rows; /* n: intermediate size; rows: of the expert at work */
    iv_token_axis axis;
} expert_job;

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
    l->expert_gradients[slot] = iv_ref_expert_weight_gradient(l->model->gemm_type, da, act, j->n);
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
    char *dy = (char *)l->dy + row * all * j->width;
    l->kernels->activate_backward(j->activation, l->model->gemm_type, (const char *)t->gate + slot * j->n * j->width,
                                  (const char *)t->up + slot * j->n * j->width, l->dact + row * j->n, j->n,
                                  l->model->gemm_type, dy, dy + (all - j->n) * j->width);
    memcpy((char *)l->forward->gathered + row * j->h * j->width,
           (const char *)l->forward->normed + slot / j->k * j->h * j->width, j->h * j->width);
}

static void scatter_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const expert_job *j = context;
    iv_cpu_learner *l = j->l;
    memcpy(l->forward->terms + slot_of(j, row) * j->h, l->forward->wide + row * j->h, j->h * sizeof(float));
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
                                    .dx = l->dact};
    IV_TRY(iv_linear_backward(l, &down, err));
    iv_pool_run(l->compute.pool, j->rows, weigh_row, j);
    down.dx = NULL, down.x = l->forward->act_memory;
    IV_TRY(iv_linear_backward(l, &down, err));
    iv_pool_run(l->compute.pool, j->rows, activation_row, j);
    iv_linear_backward_args up = {.axis = &j->axis,
                                  .rows = j->rows,
                                  .dy = l->dy,
                                  .dy_stride = iv_activation_inputs(j->activation) * j->n,
                                  .stride = j->h,
                                  .k = j->h,
                                  .leaves = IV_EXPERT_LEAVES,
                                  .x = l->forward->gathered,
                                  .dx = l->forward->wide};
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
    const iv_model_config *c = &l->model->config;
    size_t experts = (size_t)c->experts;
    const iv_tape_layer *tape = l->tape.now;
    float *out = l->router_gradients + t * experts;
    iv_ref_route_backward(tape->router_logits + t * experts, experts, tape->expert_ids + t * j->k,
                          tape->expert_weights + t * j->k, l->expert_gradients + t * j->k, j->k, c->norm_topk_prob,
                          out);
    l->kernels->round(out, experts, l->model->gemm_type, (char *)l->dy + t * experts * j->width);
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

iv_status iv_experts_backward(iv_cpu_learner *l, size_t layer, iv_error *err) {
    const iv_model_config *c = &l->model->config;
    const iv_layer_tensors *tensors = &l->tensor_owner->layer_tensors[layer];
    const iv_tp_shard *shard = iv_learner_shard(l);
    size_t tokens = l->batch.tokens, experts = (size_t)c->experts, padded = iv_padded_k(experts);
    expert_job j = {.l = l,
                    .activation = &l->model->layers[layer].config->activation,
                    .h = (size_t)c->hidden_size,
                    .n = (size_t)c->moe_intermediate_size,
                    .k = (size_t)c->experts_per_token,
                    .width = iv_dtype_bytes(l->model->gemm_type)};
    memcpy(l->forward->expert_ids, l->tape.now->expert_ids, tokens * j.k * sizeof(int32_t));
    for (size_t e = shard->expert_first; e < shard->expert_first + shard->experts; e++) {
        j.t = &tensors->experts[e];
        IV_TRY(run_expert(&j, (int32_t)e, err));
    }
    IV_TRY(share_weights(l, tokens * j.k, err));
    iv_pool_run(l->compute.pool, tokens, route_row, &j);
    size_t leaves = (size_t)iv_leaf_count(padded, IV_SUM_WHOLE);
    iv_linear_backward_args router = {.axis = &l->axis,
                                      .rows = tokens,
                                      .dy = l->dy,
                                      .dy_stride = experts,
                                      .slices = 1,
                                      .slice = {{tensors->router->offset, experts, padded / leaves}},
                                      .stride = j.h,
                                      .k = j.h,
                                      .leaves = leaves,
                                      .dx = l->dnormed,
                                      .x = l->model->rank == 0 ? l->forward->normed : NULL};
    IV_TRY(iv_linear_backward(l, &router, err));
    return iv_cpu_experts_combine(l->forward, tokens, l->dnormed, err);
}
