/* experts.c: routes every row, runs each chosen expert once over its rows, and adds each row's terms in the tree over
 * expert ids. Rows are independent, so their grouping is free. */
#include "model/cpu/experts.h"
#include "model/cpu/product.h"
#include "model/cpu/norms.h"
#include "model/cpu/mlp.h"
#include "numerics/attention.h"
#include "numerics/floats.h"
#include "numerics/rows.h"

#include <string.h>

enum { INPUT_FLOATS = 512 };

typedef struct job {
    iv_cpu_model *s;
    const iv_layer *layer;
    iv_router router;
    const iv_mlp *expert;
    bool scales_inputs; /* the routing weights do, not outputs */
    size_t rows;        /* gathered for the expert at work */
    float *out;         /* [tokens][hidden]: the weighted sums are added to it */
    float *part;        /* the own nodes, token by token */
    const float *parts[IV_RANKS_MAX];
} job;

static size_t k_of(const iv_cpu_model *s) { return (size_t)s->model->config.experts_per_token; }

static void route_row(void *context, size_t row, size_t worker) {
    (void)worker;
    iv_cpu_model *s = ((job *)context)->s;
    size_t k = k_of(s);
    int32_t *ids = s->expert_ids + row * k;
    float *weights = s->expert_weights + row * k;
    const iv_layer *l = ((job *)context)->layer;
    iv_ref_route_by(&((job *)context)->router, s->router_logits + row * l->router.n, l->router_correction, ids,
                    weights);
    iv_ref_sort_experts(ids, weights, k);
    if (!l->expert_scales) return;
    if (s->tape) memcpy(s->tape->now->expert_shares + row * k, weights, k * sizeof *weights);
    for (size_t i = 0; i < k; i++) weights[i] = weights[i] * l->expert_scales[ids[i]];
}

static void activate_row(void *context, size_t row, size_t worker) {
    (void)worker;
    job *j = context;
    iv_cpu_model *s = j->s;
    size_t bytes = (size_t)s->model->config.moe_intermediate_size * iv_dtype_bytes(s->model->gemm_type);
    size_t kept = (s->expert_rows[2 * row] * k_of(s) + s->expert_rows[2 * row + 1]) * bytes;
    char *act = (char *)s->act + row * bytes;
    iv_tape_layer *t = s->tape ? s->tape->now : NULL;
    iv_cpu_activate(s, &j->layer->config->activation, s->wide, row, (size_t)s->model->config.moe_intermediate_size,
                    s->model->gemm_type, act, t ? (char *)t->gate + kept : NULL, t ? (char *)t->up + kept : NULL);
    if (t) memcpy((char *)s->tape->now->act + kept, act, bytes);
}

/* Weights one expert's output row and puts it where its token's terms wait. */
static void scatter_row(void *context, size_t row, size_t worker) {
    (void)worker;
    job *j = context;
    iv_cpu_model *s = j->s;
    size_t hidden = (size_t)s->model->config.hidden_size,
           slot = s->expert_rows[2 * row] * k_of(s) + s->expert_rows[2 * row + 1];
    const float *y = s->wide + row * hidden;
    float *term = s->terms + slot * hidden, w = j->scales_inputs ? 1.0f : s->expert_weights[slot];
    for (size_t i = 0; i < hidden; i++) term[i] = w * y[i];
}

/* All terms of one token, where one rank has them all. */
static void combine_row(void *context, size_t row, size_t worker) {
    (void)worker;
    iv_cpu_model *s = ((job *)context)->s;
    size_t hidden = (size_t)s->model->config.hidden_size, k = k_of(s);
    const float *terms = s->terms + row * k * hidden;
    float *x = ((job *)context)->out + row * hidden;
    for (size_t i = 0; i < hidden; i++) {
        float of_element[IV_EXPERTS_PER_TOKEN_MAX];
        for (size_t e = 0; e < k; e++) of_element[e] = terms[e * hidden + i];
        x[i] = iv_canonical(x[i] + iv_ref_combine(s->expert_ids + row * k, of_element, k));
    }
}

/* Chosen experts of one token, from slot `at` on, that stand in one canonical node of one rank's experts. */
typedef struct group {
    size_t rank, end; /* slots [at, end) */
} group;

static size_t rank_of(const iv_tp_plan *tp, int32_t expert) {
    size_t r = 0;
    while ((size_t)expert >= tp->shard[r].expert_first + tp->shard[r].experts) r++;
    return r;
}

/* Leaves of an aligned block that lies in [first, last) share a canonical node: grow from `expert` while it does. */
static size_t node_end(const iv_tp_shard *s, int32_t expert) {
    size_t first = (size_t)expert, size = 1, last = s->expert_first + s->experts;
    for (;;) {
        size_t wider = first / (2 * size) * (2 * size);
        if (wider < s->expert_first || wider + 2 * size > last) return first / size * size + size;
        size *= 2;
    }
}

static group group_at(const iv_cpu_model *s, const int32_t *ids, size_t at) {
    const iv_tp_plan *tp = &s->model->tp;
    group g = {.rank = rank_of(tp, ids[at]), .end = at + 1};
    size_t last = node_end(&tp->shard[g.rank], ids[at]);
    while (g.end < k_of(s) && (size_t)ids[g.end] < last) g.end++;
    return g;
}

/* How many nodes each rank has for the tokens before each. */
static void count_nodes(iv_cpu_model *s, size_t tokens) {
    size_t ranks = s->model->tp.ranks, k = k_of(s);
    uint32_t *count = s->node_counts; /* [token][rank] */
    memset(count, 0, ranks * sizeof *count);
    for (size_t t = 0; t < tokens; t++, count += ranks) {
        memcpy(count + ranks, count, ranks * sizeof *count);
        for (size_t at = 0; at < k;) {
            group g = group_at(s, s->expert_ids + t * k, at);
            count[ranks + g.rank]++;
            at = g.end;
        }
    }
}

static float *node_row(const iv_cpu_model *s, const float *part, size_t row, size_t rank, size_t nth) {
    const iv_tp_plan *tp = &s->model->tp;
    return (float *)part + (s->node_counts[row * tp->ranks + rank] + nth) * (size_t)s->model->config.hidden_size;
}

/* Adds up the own nodes of one token. */
static void node_sums(void *context, size_t row, size_t worker) {
    (void)worker;
    job *j = context;
    iv_cpu_model *s = j->s;
    size_t hidden = (size_t)s->model->config.hidden_size, k = k_of(s), nth = 0;
    const int32_t *ids = s->expert_ids + row * k;
    const float *terms = s->terms + row * k * hidden;
    for (size_t at = 0; at < k;) {
        group g = group_at(s, ids, at);
        if (g.rank == s->model->rank) {
            float *out = node_row(s, j->part, row, g.rank, nth++), of_element[IV_EXPERTS_PER_TOKEN_MAX];
            for (size_t i = 0; i < hidden; i++) {
                for (size_t e = at; e < g.end; e++) of_element[e - at] = terms[e * hidden + i];
                out[i] = iv_ref_combine(ids + at, of_element, g.end - at);
            }
        }
        at = g.end;
    }
}

/* A node acts in the tree like its first expert alone: an absent side passes the other through. */
static void join_row(void *context, size_t row, size_t worker) {
    (void)worker;
    job *j = context;
    iv_cpu_model *s = j->s;
    size_t hidden = (size_t)s->model->config.hidden_size, k = k_of(s), count = 0, nth[IV_RANKS_MAX] = {0};
    const int32_t *ids = s->expert_ids + row * k;
    const float *node[IV_EXPERTS_PER_TOKEN_MAX];
    int32_t id[IV_EXPERTS_PER_TOKEN_MAX];
    for (size_t at = 0; at < k; count++) {
        group g = group_at(s, ids, at);
        node[count] = node_row(s, j->parts[g.rank], row, g.rank, nth[g.rank]++), id[count] = ids[at];
        at = g.end;
    }
    float *x = j->out + row * hidden;
    for (size_t i = 0; i < hidden; i++) {
        float of_element[IV_EXPERTS_PER_TOKEN_MAX];
        for (size_t e = 0; e < count; e++) of_element[e] = node[e][i];
        x[i] = iv_canonical(x[i] + iv_ref_combine(id, of_element, count));
    }
}

void iv_cpu_expert_input(const iv_cpu_model *s, size_t slot, void *out) {
    const iv_model *m = s->model;
    size_t hidden = (size_t)m->config.hidden_size, width = iv_dtype_bytes(m->gemm_type);
    const char *row = (const char *)s->normed + slot / k_of(s) * hidden * width;
    float x[INPUT_FLOATS], w = s->expert_weights[slot];
    if (!m->config.router_scales_inputs) {
        memcpy(out, row, hidden * width);
        return;
    }
    for (size_t i = 0; i < hidden; i += INPUT_FLOATS) {
        size_t n = iv_size_min(INPUT_FLOATS, hidden - i);
        for (size_t e = 0; e < n; e++) x[e] = iv_element(m->gemm_type, row, i + e) * w;
        s->compute.kernels->round(x, n, m->gemm_type, (char *)out + i * width);
    }
}

static void run_expert(job *j, size_t tokens, int32_t expert) {
    iv_cpu_model *s = j->s;
    const iv_model *m = s->model;
    size_t k = k_of(s), row_bytes = (size_t)m->config.hidden_size * iv_dtype_bytes(m->gemm_type);
    j->rows = 0;
    for (size_t t = 0; t < tokens; t++)
        for (size_t e = 0; e < k; e++) {
            if (s->expert_ids[t * k + e] != expert) continue;
            iv_cpu_expert_input(s, t * k + e, (char *)s->gathered + j->rows * row_bytes);
            s->expert_rows[2 * j->rows] = (uint32_t)t, s->expert_rows[2 * j->rows + 1] = (uint32_t)e;
            j->rows++;
        }
    if (j->rows == 0) return;
    const iv_mlp *w = j->expert;
    iv_product_rows rows = {s->expert_rows, 2};
    iv_cpu_product(s, iv_site(m, j->layer, IV_SITE_UP, (size_t)expert),
                   &(iv_linear_args){.weight = &w->gate_up,
                                     .type = m->gemm_type,
                                     .x = s->gathered,
                                     .x_stride = w->gate_up.k,
                                     .rows = j->rows,
                                     .bias = w->gate_up_bias,
                                     .out = s->wide,
                                     .out_stride = w->gate_up.n},
                   rows);
    iv_pool_run(s->compute.pool, j->rows, activate_row, j);
    if (iv_cpu_ends_at_act(s, j->layer)) return;
    iv_cpu_product(s, iv_site(m, j->layer, IV_SITE_DOWN, (size_t)expert),
                   &(iv_linear_args){.weight = w->down,
                                     .type = m->gemm_type,
                                     .x = s->act,
                                     .x_stride = w->down->k,
                                     .rows = j->rows,
                                     .bias = w->down_bias,
                                     .out = s->wide,
                                     .out_stride = w->down->n},
                   rows);
    iv_pool_run(s->compute.pool, j->rows, scatter_row, j);
}

static void keep_routing(const job *j, size_t tokens) {
    iv_cpu_model *s = j->s;
    iv_tape_layer *t = s->tape->now;
    memcpy(t->router_logits, s->router_logits, tokens * j->layer->router.n * sizeof(float));
    memcpy(t->expert_ids, s->expert_ids, tokens * k_of(s) * sizeof(int32_t));
    memcpy(t->expert_weights, s->expert_weights, tokens * k_of(s) * sizeof(float));
}

/* For requests that report them. */
static void report_routing(const iv_cpu_model *s, const iv_layer *layer, size_t tokens) {
    size_t k = k_of(s), at = (size_t)(layer - s->model->layers) * k;
    for (size_t row = 0; row < tokens; row++)
        for (size_t i = 0; i < k && s->batch->routed[row]; i++)
            s->batch->routed[row][at + i] = (uint16_t)s->expert_ids[row * k + i];
}

/* Logits and choices. */
static void route(iv_cpu_model *s, const iv_layer *layer, size_t tokens) {
    job j = {.s = s,
             .layer = layer,
             .router = iv_config_router(&s->model->config),
             .scales_inputs = s->model->config.router_scales_inputs};
    iv_cpu_product(s, iv_site(s->model, layer, IV_SITE_ROUTER, 0),
                   &(iv_linear_args){.weight = &layer->router,
                                     .type = s->model->gemm_type,
                                     .x = s->normed,
                                     .x_stride = layer->router.k,
                                     .rows = tokens,
                                     .bias = layer->router_bias,
                                     .out = s->router_logits,
                                     .out_stride = layer->router.n},
                   (iv_product_rows){0});
    iv_pool_run(s->compute.pool, tokens, route_row, &j);
    if (s->tape) keep_routing(&j, tokens);
    if (s->batch && s->batch->routed && s->model->rank == 0) report_routing(s, layer, tokens);
}

/* out += the combined outputs of the chosen experts. */
static iv_status run_experts(iv_cpu_model *s, const iv_layer *layer, size_t tokens, float *out, iv_error *err) {
    job j = {.s = s, .layer = layer, .scales_inputs = s->model->config.router_scales_inputs};
    const iv_tp_shard *shard = &s->model->tp.shard[s->model->rank];
    for (size_t e = shard->expert_first; e < shard->expert_first + shard->experts; e++) {
        j.expert = &layer->experts[e];
        run_expert(&j, tokens, (int32_t)e);
    }
    return iv_cpu_ends_at_act(s, layer) ? IV_OK : iv_cpu_experts_combine(s, tokens, out, err);
}

static iv_status run_shared(iv_cpu_model *s, const iv_layer *layer, float *out, iv_error *err) {
    if (!s->model->config.shared_intermediate_size) return IV_OK;
    iv_mlp_part part = iv_cpu_shared_part(s, layer);
    iv_cpu_mlp_act(s, &part);
    return iv_cpu_ends_at_act(s, layer) ? IV_OK : iv_cpu_mlp_down(s, &part, out, err);
}

iv_status iv_cpu_experts(iv_cpu_model *s, const iv_layer *layer, size_t tokens, float *out, iv_error *err) {
    route(s, layer, tokens);
    IV_TRY(run_experts(s, layer, tokens, out, err));
    return run_shared(s, layer, out, err);
}

/* ---- norms of their own ---------------------------------------------------------------------------------------- */

typedef struct sum_job {
    iv_cpu_model *s;
    const iv_layer *layer;
    const float *x;
    float *shared, *experts, *out;
} sum_job;

static void router_input_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const sum_job *j = context;
    const iv_model *m = j->s->model;
    const iv_kernels *k = j->s->compute.kernels;
    size_t hidden = (size_t)m->config.hidden_size;
    float *y = j->s->block + row * hidden; /* free until the block's end */
    k->rmsnorm(j->x + row * hidden, j->layer->router_norm, (float)m->config.rms_norm_eps, hidden, IV_F32, y);
    k->scale(y, hidden, iv_attention_scale(hidden));
    k->round(y, hidden, m->gemm_type, (char *)j->s->normed + row * hidden * iv_dtype_bytes(m->gemm_type));
}

void iv_cpu_router_input(iv_cpu_model *s, const iv_layer *layer, const float *x) {
    iv_pool_run(s->compute.pool, s->batch->tokens, router_input_row, &(sum_job){.s = s, .layer = layer, .x = x});
}

static void add_sums_row(void *context, size_t row, size_t worker) {
    (void)worker;
    const sum_job *j = context;
    const iv_model *m = j->s->model;
    const iv_kernels *k = j->s->compute.kernels;
    size_t hidden = (size_t)m->config.hidden_size, at = row * hidden;
    float eps = (float)m->config.rms_norm_eps,
          *other = j->s->terms + row * (size_t)m->config.experts_per_token * hidden;
    k->rmsnorm(j->shared + at, j->layer->shared_post_norm, eps, hidden, IV_F32, j->out + at);
    k->rmsnorm(j->experts + at, j->layer->experts_post_norm, eps, hidden, IV_F32, other);
    k->add(j->out + at, other, hidden);
}

iv_status iv_cpu_normed_experts(iv_cpu_model *s, const iv_layer *layer, const float *x, float *out, iv_error *err) {
    size_t tokens = s->batch->tokens, bytes = tokens * (size_t)s->model->config.hidden_size * sizeof(float);
    const iv_tape_layer *t = s->tape ? s->tape->now : NULL;
    sum_job j = {s, layer, x, t ? t->shared_y : s->sums[0], t ? t->experts_y : s->sums[1], out};
    memset(j.shared, 0, bytes), memset(j.experts, 0, bytes);
    IV_TRY(run_shared(s, layer, j.shared, err));
    iv_cpu_router_input(s, layer, x);
    route(s, layer, tokens);
    iv_cpu_norm(s, x, layer->experts_norm);
    IV_TRY(run_experts(s, layer, tokens, j.experts, err));
    if (!iv_cpu_ends_at_act(s, layer)) iv_pool_run(s->compute.pool, tokens, add_sums_row, &j);
    return IV_OK;
}

iv_status iv_cpu_experts_combine(iv_cpu_model *s, size_t tokens, float *out, iv_error *err) {
    job j = {.s = s, .out = out};
    const iv_tp_plan *tp = &s->model->tp;
    if (tp->ranks == 1) {
        iv_pool_run(s->compute.pool, tokens, combine_row, &j);
        return IV_OK;
    }
    count_nodes(s, tokens);
    size_t floats[IV_RANKS_MAX];
    for (size_t r = 0; r < tp->ranks; r++)
        floats[r] = s->node_counts[tokens * tp->ranks + r] * (size_t)s->model->config.hidden_size;
    j.part = iv_tp_gather_buffer(s);
    iv_pool_run(s->compute.pool, tokens, node_sums, &j);
    IV_TRY(iv_tp_gather_all(s, floats, NULL, j.parts, err));
    iv_pool_run(s->compute.pool, tokens, join_row, &j);
    return IV_OK;
}
