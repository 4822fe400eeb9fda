/* learner.c: the memory of a learner and its passes. */
#include "base/carve.h"
#include "device/memory.h"
#include "kernels/delta_backward.h"
#include "kernels/linear.h"
#include "kernels/weight_gradient.h"
#include "model/cpu/learner_state.h"
#include "model/cpu/product.h"
#include "model/decoder.h"
#include "model/learner_ranks.h"
#include "numerics/delta.h"
#include "numerics/rows.h"
#include "numerics/tree.h"

#include <stdlib.h>
#include <string.h>

static iv_cpu_learner *self(iv_learner *l) { return (iv_cpu_learner *)(void *)l; }

enum { LOGITS_FLOATS = 1024 * 1024 };

/* ---- divisions --------------------------------------------------------------------------------------------------- */

/* The one node of each rank, of `k` elements of a run. */
static iv_status cuts_make(size_t ranks, size_t leaves, size_t k, iv_row_cuts **out, iv_error *err) {
    int level = 0;
    if (ranks == 1) return IV_OK;
    iv_row_cuts *cuts = *out = calloc(1, sizeof *cuts);
    if (!cuts) return iv_fail(err, IV_NO_MEMORY, "learner: no memory");
    while ((size_t)1 << level < leaves) level++;
    for (size_t r = 0; r < ranks; r++) {
        iv_row_cut *cut = &cuts->of[r];
        cut->k = k, cut->nodes = 1;
        cut->node[0].at = (iv_tree_node){level, r}, cut->node[0].k = k, cut->node[0].leaves = (int)leaves;
    }
    iv_learner_node_order(ranks, leaves, &cuts->order);
    return IV_OK;
}

/* ---- memory --------------------------------------------------------------------------------------------------- */

typedef struct widths {
    size_t h, q, kv, up, shared, expert, k, experts, heads, dim, vocab,
        layers;                  /* up, shared: gate's and up's, of this rank */
    size_t gate;                 /* of attention's output gates, or 0 */
    size_t mixed, attended, qkv; /* of the projection before layers with a state, or 0; the widest output of a mixer,
                                  * and projection before one */
    size_t latent_in;            /* outputs of the projection before latent attention */
    size_t run;                  /* the longest sum over outputs */
    size_t widest;               /* of a GEMM input of the backward pass */
    size_t inputs;               /* of a layer */
    size_t rank;                 /* the largest of the adapter that learns, or 0 */
} widths;

/* Latent attention: q, dattended and dqkv have kv_rank and rope_dim a head, or fewer. */
static void use_latent(const iv_model *m, size_t wide, size_t pad, widths *w) {
    const iv_model_config *c = &m->config;
    size_t rank = (size_t)c->kv_rank, key = rank + (size_t)c->rope_dim, low = (size_t)c->q_rank;
    size_t value = (size_t)c->value_dim, head = (size_t)c->head_dim, queries = w->heads * head;
    w->dim = key, w->kv = key, w->q = w->heads * iv_size_max(key, iv_size_max(value, head));
    w->latent_in = (low ? low : queries) + key;
    w->qkv = w->q + 2 * w->kv, w->attended = iv_size_max(w->attended, w->q);
    size_t outputs = iv_size_max(iv_size_max(queries, w->latent_in), iv_size_max(2 * wide, w->h));
    outputs = iv_size_max(outputs, iv_size_max(w->experts + 1, IV_VOCABULARY_BLOCK));
    w->run = iv_size_max(outputs, iv_size_max(value, rank)) + pad, w->widest = iv_size_max(outputs, w->q);
    w->inputs = iv_size_max(iv_size_max(w->h, w->heads * value), iv_size_max(wide, iv_size_max(low, rank)));
    w->inputs = iv_size_max(w->inputs, head);
}

static widths widths_of(const iv_cpu_learner *l) {
    const iv_model *m = l->model;
    const iv_model_config *c = &m->config;
    const iv_tp_shard *s = &m->tp.shard[m->rank];
    widths w = {.h = (size_t)c->hidden_size,
                .dim = (size_t)iv_size_max((size_t)c->head_dim, (size_t)c->wide_head_dim),
                .heads = iv_size_max(s->heads, m->tp.wide[m->rank].heads),
                .layers = (size_t)c->layers,
                .up = m->tp.down.of[m->rank].k,
                .shared = m->tp.shared.of[m->rank].k,
                .expert = c->experts ? (size_t)c->moe_intermediate_size : 0,
                .k = (size_t)c->experts_per_token,
                .experts = (size_t)c->experts,
                .vocab = (size_t)c->vocab_size};
    const iv_tp_shard *other = &m->tp.wide[m->rank];
    size_t dim = (size_t)c->head_dim, wide_dim = (size_t)c->wide_head_dim;
    w.q = iv_size_max(s->heads * dim, other->heads * wide_dim);
    w.kv = iv_size_max(s->kv_heads * dim, other->kv_heads * wide_dim);
    const iv_delta_layout *d = &m->delta_layout;
    for (size_t i = 0; i < w.layers; i++) w.gate = iv_size_max(w.gate, c->layer[i].attention_gate ? w.q : 0);
    w.mixed = d->width, w.qkv = iv_size_max(w.q + 2 * w.kv + w.gate, w.mixed);
    w.attended = iv_size_max(w.q, d->value_heads ? d->value_heads * d->value_dim : d->channels);
    size_t pad = IV_OUTPUT_SLICES_MAX * IV_LEAVES_MAX * IV_CHAIN_STEP,
           wide = iv_size_max(iv_size_max(w.up, w.shared), w.expert);
    w.widest =
        iv_size_max(iv_size_max(w.qkv, 2 * wide), iv_size_max(w.h, iv_size_max(w.experts + 1, IV_VOCABULARY_BLOCK)));
    w.run = w.widest + pad;
    w.inputs = iv_size_max(iv_size_max(w.h, w.attended), wide);
    if (c->kv_rank) use_latent(m, wide, pad, &w);
    if (!l->learned) return w;
    w.rank = l->learned->parts.rank_max;
    w.run = iv_size_max(w.run, iv_padded_k(w.rank)), w.inputs = iv_size_max(w.inputs, w.rank);
    return w;
}

static void *typed(iv_cpu_learner *l, iv_carving *v, size_t count, size_t each) {
    size_t n;
    if (!iv_size_mul(count, each, &n)) v->overflow = true;
    return iv_carve(v, v->overflow ? 0 : n, iv_dtype_bytes(l->model->gemm_type));
}

static float *floats(iv_carving *v, size_t count, size_t each) {
    size_t n;
    if (!iv_size_mul(count, each, &n)) v->overflow = true;
    return iv_carve(v, v->overflow ? 0 : n, sizeof(float));
}

/* Of a layer with a state, whose output is in t->attended. */
static void carve_state(iv_cpu_learner *l, iv_carving *v, iv_tape_layer *t) {
    const iv_delta_layout *d = &l->model->delta_layout;
    size_t n = l->base.rows_max, values = d->value_heads * d->value_dim, borders = n / IV_DELTA_BLOCK;
    t->delta_inputs = typed(l, v, n, d->channels);
    t->delta.z = typed(l, v, n, d->value_heads ? values : d->width);
    if (!d->value_heads) return;
    t->delta_qk = typed(l, v, n, 2 * d->keys);
    t->delta.updates = typed(l, v, n, values), t->delta.o = typed(l, v, n, values);
    t->delta.borders = typed(l, v, borders * values, d->key_dim);
    t->delta.gates = floats(v, n, 3 * d->value_heads);
    if (l->model->config.scan_norm != IV_SCAN_NORM_NONE) t->delta.factors = floats(v, n, d->value_heads);
}

static void carve_latent_slot(iv_cpu_learner *l, iv_carving *v, const widths *w, iv_tape_latent *t) {
    const iv_model_config *c = &l->model->config;
    size_t n = l->base.rows_max, rank = (size_t)c->kv_rank;
    t->low_raw = typed(l, v, n, (size_t)c->q_rank), t->low = typed(l, v, n, (size_t)c->q_rank);
    t->latent_raw = typed(l, v, n, rank), t->rows = typed(l, v, n, w->heads * rank);
    t->still = typed(l, v, n, w->heads * (size_t)(c->head_dim - c->rope_dim));
}

enum { MIXES_ROWS = 1, HAS_STATE = 2 }; /* attention; or not; 0: there is no mixer */

static int kinds_of(const iv_cpu_learner *l, size_t layer) {
    iv_mixer_kind mixer = l->model->config.layer[layer].mixer;
    return mixer == IV_MIXER_ATTENTION ? MIXES_ROWS : iv_mixer_has_state(mixer) ? HAS_STATE : 0;
}

/* The parts of a slot for layers of these kinds; `mixer` and `mlp` select which. */
static void carve_slot(iv_cpu_learner *l, iv_carving *v, const widths *w, iv_tape_layer *t, int kinds, bool mixer,
                       bool mlp) {
    size_t n = l->base.rows_max;
    if (mixer && kinds & HAS_STATE) carve_state(l, v, t);
    if (mixer) t->attended = typed(l, v, n, w->attended);
    if (mixer && kinds & MIXES_ROWS) {
        t->q = typed(l, v, n, w->q), t->k = typed(l, v, n, w->kv), t->v = typed(l, v, n, w->kv);
        if (l->model->config.qk_norm) t->q_raw = typed(l, v, n, w->q), t->k_raw = typed(l, v, n, w->kv);
        if (l->model->config.value_norm) t->v_raw = typed(l, v, n, w->kv);
        if (l->model->config.qk_norm_whole) t->qk_factors = floats(v, n, 2);
        if (w->gate) t->attended_raw = typed(l, v, n, w->q), t->attended_gate = typed(l, v, n, w->q);
        t->lse2 = floats(v, n, w->heads);
        if (l->model->config.kv_rank) carve_latent_slot(l, v, w, &t->latent);
    }
    if (!mlp) return;
    if (iv_config_has_post_norms(&l->model->config)) t->attention_y = floats(v, n, w->h), t->mlp_y = floats(v, n, w->h);
    size_t wide = iv_size_max(w->up, w->expert * w->k);
    t->x_mlp = floats(v, n, w->h);
    t->gate = typed(l, v, n, wide), t->up = typed(l, v, n, wide), t->act = typed(l, v, n, wide);
    if (!w->experts) return;
    t->shared_gate = typed(l, v, n, w->shared), t->shared_up = typed(l, v, n, w->shared);
    t->shared_act = typed(l, v, n, w->shared);
    if (l->model->config.expert_norms) {
        t->shared_y = floats(v, n, w->h), t->experts_y = floats(v, n, w->h);
        t->expert_shares = floats(v, n, w->k);
    }
    t->router_logits = floats(v, n, w->experts + 1), t->expert_weights = floats(v, n, w->k);
    t->expert_ids = iv_carve(v, n * w->k, sizeof *t->expert_ids);
}

static void carve_tape(iv_cpu_learner *l, iv_carving *v, const widths *w) {
    bool attention = l->tape.recompute == IV_RECOMPUTE_NONE, mlp = l->tape.recompute != IV_RECOMPUTE_LAYER;
    iv_tape_layer shared = {0};
    int all = 0;
    for (size_t i = 0; i < w->layers; i++) all |= kinds_of(l, i);
    carve_slot(l, v, w, &shared, all, !attention, !mlp);
    for (size_t i = 0; i < w->layers; i++) {
        iv_tape_layer t = shared;
        t.x = floats(v, l->base.rows_max, w->h);
        carve_slot(l, v, w, &t, kinds_of(l, i), attention, mlp);
        if (v->base) l->tape.layers[i] = t;
    }
}

static void carve_scratch(iv_cpu_learner *l, iv_carving *v, const widths *w) {
    size_t linear, gradient, attention, delta = 0, threads = iv_pool_threads(l->compute.pool);
    if (!iv_linear_scratch(l->base.rows_max, iv_size_max(w->run, w->inputs), &linear) ||
        !iv_weight_gradient_scratch(l->padded_max, threads, &gradient) ||
        !iv_attention_backward_scratch(l->model->gemm_type, w->dim, l->base.rows_max, &attention) ||
        (l->model->delta_layout.value_heads && !iv_delta_backward_scratch(&l->model->delta_layout, &delta)) ||
        !iv_size_mul(iv_size_max(attention, delta), threads, &attention)) {
        v->overflow = true;
        return;
    }
    l->compute.scratch_bytes = iv_size_max(linear, iv_size_max(gradient, attention));
    l->compute.scratch = iv_carve(v, l->compute.scratch_bytes, 1);
}

static void carve_experts(iv_cpu_learner *l, iv_carving *v, const widths *w) {
    size_t n = l->base.rows_max;
    l->expert_gradients = floats(v, n, w->k);
    l->router_gradients = floats(v, n, w->experts + 1);
    if (l->model->config.shared_intermediate_size)
        l->shared_dx = floats(v, n, w->h), l->scale_gradients = floats(v, n, 1);
    if (l->model->config.expert_norms) l->sums_dx = floats(v, 2 * n, w->h), l->scale_terms = floats(v, n, w->experts);
    l->expert_slots = iv_carve(v, n, sizeof *l->expert_slots);
    l->expert_rows = iv_carve(v, l->padded_max, sizeof *l->expert_rows);
}

static void carve_latent(iv_cpu_learner *l, iv_carving *v, const widths *w) {
    const iv_model_config *c = &l->model->config;
    size_t n = l->base.rows_max;
    l->latent_out = typed(l, v, n, w->heads * w->dim), l->latent_dout = typed(l, v, n, w->heads * w->dim);
    l->latent_rows = floats(v, n, iv_size_max(w->heads * (size_t)c->kv_rank, (size_t)c->q_rank));
    l->latent_inputs = floats(v, n, w->latent_in);
}

/* Of an adapter that learns. */
static void carve_adapter(iv_cpu_learner *l, iv_carving *v, const widths *w) {
    size_t n = l->base.rows_max, panel = IV_PANEL_COLUMNS;
    size_t ranks = (w->rank + panel - 1) / panel * panel;
    l->slots = iv_carve(v, n, sizeof *l->slots);
    l->adapter_dz = typed(l, v, n, w->widest);
    l->adapter_t = typed(l, v, n, w->rank), l->adapter_dt = typed(l, v, n, w->rank);
    l->adapter_sums = floats(v, n, w->rank), l->adapter_dx = floats(v, n, w->inputs);
    l->adapter_packed = typed(l, v, l->padded_max, ranks);
    for (size_t i = 0; i < 4; i++) l->rank_sums[i] = floats(v, n, ranks);
    l->head_b = typed(l, v, IV_VOCABULARY_BLOCK, iv_padded_k(w->rank));
    l->head_z = floats(v, n, IV_VOCABULARY_BLOCK);
}

/* Inputs of the widest matrix, over all ranks, but for the embedding's and the head's, which have the hidden size. */
static size_t whole_inputs(const iv_cpu_learner *l, const widths *w) {
    size_t most = w->inputs;
    for (size_t i = 0; i < l->tensor_owner->tensor_count; i++)
        if (iv_parameter_is_trained(&l->tensor_owner->tensors[i]))
            most = iv_size_max(most, l->tensor_owner->tensors[i].columns);
    return most;
}

static void carve_all(iv_cpu_learner *l, iv_carving *v) {
    widths w = widths_of(l);
    size_t n = l->base.rows_max, ranks = l->model->tp.ranks, pages = n / IV_ATTENTION_BLOCK + n / IV_CHAIN_STEP + 1;
    size_t terms = l->model->delta_layout.value_dim;
    l->h_panels = (w.h + IV_PANEL_COLUMNS - 1) / IV_PANEL_COLUMNS;
    carve_scratch(l, v, &w);
    carve_tape(l, v, &w);
    l->dx = l->dblock = floats(v, n, w.h), l->dnormed = floats(v, n, w.h), l->dattended = floats(v, n, w.attended);
    if (iv_config_buffers_blocks(&l->model->config)) l->post_dx = floats(v, n, w.h);
    bool keeps = l->model->config.layer[0].norms == IV_NORMS_SHARED;
    for (size_t i = 0; i < w.layers; i++) keeps |= l->model->config.layer[i].norm_kept;
    if (keeps) l->kept_dnormed = floats(v, n, w.h);
    if (l->model->config.layer_norm) l->centered = floats(v, 2 * n, w.h);
    l->dqkv = floats(v, n, w.qkv), l->dact = floats(v, n, iv_size_max(iv_size_max(w.up, w.shared), w.expert));
    l->dy = typed(l, v, n, w.widest), l->dy_run = typed(l, v, n, w.run);
    if (l->model->config.kv_rank) carve_latent(l, v, &w);
    if (l->model->config.attention_sinks) l->sink_terms = floats(v, n, w.heads);
    if (l->model->config.layer[0].activation.kind == IV_ACTIVATION_XIELU) l->activation_terms = floats(v, n, 2);
    l->factors = floats(v, n, 1), l->head_terms = floats(v, n, iv_size_max(2 * w.dim, terms));
    if (l->model->delta_layout.value_heads) l->log_terms = floats(v, n, l->model->delta_layout.value_heads);
    if (l->model->delta_layout.scan) l->skip_terms = floats(v, n, l->model->delta_layout.value_heads);
    l->packed = typed(l, v, l->padded_max, (w.inputs + IV_PANEL_COLUMNS - 1) / IV_PANEL_COLUMNS * IV_PANEL_COLUMNS);
    l->transposed = typed(l, v, w.run, w.inputs + IV_PANEL_COLUMNS);
    if (!l->weights) l->unpacked = typed(l, v, w.run, whole_inputs(l, &w));
    if (l->learned) carve_adapter(l, v, &w);
    l->row_list = iv_carve(v, iv_size_max(l->padded_max, w.run), sizeof *l->row_list);
    l->predictions = iv_carve(v, n, sizeof *l->predictions);
    l->logit_rows = iv_carve(v, n, sizeof *l->logit_rows);
    l->max = floats(v, n, 1), l->sum = floats(v, n, 1), l->logprobs = floats(v, n, 1),
    l->coefficients = floats(v, n, 1);
    l->slice = iv_size_max(1, iv_size_min(n, LOGITS_FLOATS / w.vocab));
    l->logits = floats(v, 1, iv_size_max(l->slice * w.vocab, n * (IV_VOCABULARY_BLOCK + 2 * IV_PANEL_COLUMNS)));
    for (size_t i = 0; i < 4; i++) l->leaf_sums[i] = floats(v, n, l->h_panels * IV_PANEL_COLUMNS);
    if (ranks > 1)
        l->gathered = floats(v, n * ranks, iv_size_max(iv_size_max(w.h, w.rank), iv_size_max(2 * w.dim, terms)));
    l->axis_rows = iv_carve(v, l->padded_max, sizeof *l->axis_rows);
    l->head_rows = iv_carve(v, l->padded_max, sizeof *l->head_rows);
    l->spans = iv_carve(v, n, sizeof *l->spans), l->ranges = iv_carve(v, n, sizeof *l->ranges);
    l->ids = iv_carve(v, n, sizeof *l->ids);
    l->kv = iv_carve(v, pages, l->model->kv_layout[0].page_bytes), l->pages = iv_carve(v, pages, sizeof *l->pages);
    if (w.experts) carve_experts(l, v, &w);
}

static iv_status allocate(iv_cpu_learner *l, iv_error *err) {
    iv_carving v = {.align = 64};
    l->tape.layers = calloc((size_t)l->model->config.layers, sizeof *l->tape.layers);
    if (!l->tape.layers) return iv_fail(err, IV_NO_MEMORY, "learner: no memory");
    carve_all(l, &v);
    l->data_bytes = v.at;
    if (!v.overflow) l->data = iv_memory_alloc(l->data_bytes);
    if (!l->data)
        return iv_fail(err, IV_NO_MEMORY, "learner: no memory for passes of %zu tokens (%zu MiB)", l->base.rows_max,
                       l->data_bytes >> 20);
    v = (iv_carving){.base = l->data, .align = 64};
    carve_all(l, &v);
    /* Sums over outputs that ranks share run in the forward pass's ops, and may be longer than its own. */
    if (l->compute.scratch_bytes > l->forward->compute.scratch_bytes)
        l->forward->compute.scratch = l->compute.scratch, l->forward->compute.scratch_bytes = l->compute.scratch_bytes;
    return IV_OK;
}

/* Of the layers that are wide, or of the others; a family's layers of one kind all have values of their own, or none.
 */
static iv_status qkv_cuts_make(iv_cpu_learner *l, bool wide, iv_error *err) {
    const iv_model_config *c = &l->model->config;
    const iv_tp_shard *s = iv_tp_shard_of(&l->model->tp, l->model->rank, wide);
    size_t leaves = l->qkv_leaves[wide], dim = (size_t)(wide ? c->wide_head_dim : c->head_dim), parts = 2;
    if (wide && !iv_config_has_wide(c)) return IV_OK;
    for (int64_t i = 0; i < c->layers; i++)
        if (c->layer[i].wide == wide && c->layer[i].values_are_keys) parts = 1;
    size_t leaf = iv_padded_k(s->heads * dim / leaves) + parts * iv_padded_k(s->kv_heads * dim / leaves);
    for (int64_t i = 0; i < c->layers; i++)
        if (c->layer[i].attention_gate) {
            leaf += iv_padded_k(s->heads * dim / leaves);
            break;
        }
    return cuts_make(l->model->tp.ranks, leaves, leaf * leaves, &l->qkv_cuts[wide], err);
}

/* Of the projection before layers with a state. */
static iv_status mixer_cuts_make(iv_cpu_learner *l, iv_error *err) {
    iv_linear_backward_args a = {0};
    size_t layer = 0, run = 0;
    if (l->model->tp.ranks == 1 || !l->model->delta_layout.channels) return IV_OK;
    while (!iv_mixer_has_state(l->model->config.layer[layer].mixer)) layer++;
    iv_recurrent_slices(l, layer, &a);
    for (size_t i = 0; i < a.slices; i++) run += iv_padded_k(a.slice[i].leaf);
    return cuts_make(l->model->tp.ranks, a.leaves, run * a.leaves, &l->mixer_cuts, err);
}

static iv_status open_parts(iv_cpu_learner *l, const iv_cpu_learner_options *o, iv_error *err) {
    iv_learner_leaves leaves;
    IV_TRY(iv_learner_divide(l->model, &leaves, err));
    l->qkv_leaves[0] = leaves.qkv, l->qkv_leaves[1] = leaves.wide_qkv, l->up_leaves = leaves.up,
    l->shared_leaves = leaves.shared, l->head_leaves = leaves.head, l->mixer_leaves = leaves.mixer;
    size_t ranks = l->model->tp.ranks;
    for (int wide = 0; wide < 2; wide++) IV_TRY(qkv_cuts_make(l, wide, err));
    IV_TRY(mixer_cuts_make(l, err));
    size_t up = iv_padded_k((size_t)l->model->config.intermediate_size) / ranks / l->up_leaves;
    size_t ups = iv_activation_inputs(&l->model->config.layer[0].activation); /* a family has one kind */
    IV_TRY(cuts_make(ranks, l->up_leaves, ups * iv_padded_k(up) * l->up_leaves, &l->up_cuts, err));
    size_t shared = iv_padded_k((size_t)l->model->config.shared_intermediate_size) / ranks / l->shared_leaves;
    IV_TRY(cuts_make(ranks, l->shared_leaves, ups * iv_padded_k(shared) * l->shared_leaves, &l->shared_cuts, err));
    IV_TRY(iv_cpu_model_open(l->model, o->kernels, o->arithmetic, o->pool, l->base.rows_max, &l->forward, err));
    l->forward->comm = o->comm, l->forward->learner = l;
    if (l->learned) IV_TRY(iv_cpu_use_adapters(l->forward, l->adapters, l->place, err));
    l->compute.widened = l->forward->compute.widened, l->compute.widened_bytes = l->forward->compute.widened_bytes;
    l->ops = iv_cpu_ops;
    iv_backward_ops(&l->ops);
    l->forward->backend.ops = &l->ops;
    return allocate(l, err);
}

/* ---- passes --------------------------------------------------------------------------------------------------- */

/* A slice of logits: the statistics of its rows. */
static void take_logits(void *context, size_t first, size_t count) {
    iv_cpu_learner *l = context;
    size_t vocab = (size_t)l->model->config.vocab_size;
    float t = l->step->temperature;
    for (size_t i = 0; i < count; i++) {
        float *x = l->logits + i * vocab;
        size_t p = first + i;
        for (size_t k = 0; t != 1.0f && k < vocab; k++) x[k] = x[k] / t;
        if (l->step->allowed) iv_ref_forbid(x, 0, vocab, l->step->allowed);
        l->kernels->sum_exp(x, vocab, &l->max[p], &l->sum[p]);
        l->logprobs[p] = (x[l->predictions[p].target] - l->max[p]) - iv_ref_log(l->sum[p]);
    }
}

static iv_status lay_out(iv_cpu_learner *l, const iv_learner_step *step, size_t from, size_t to, iv_error *err) {
    size_t row = 0, page = 0;
    l->step = step, l->from = from, l->to = to, l->prediction_count = 0;
    if (iv_learner_fit(&l->base, step, from, to - from) < to - from)
        return iv_fail(err, IV_LIMIT, "a pass of %zu sequences from %zu on: wanted at most %zu tokens", to - from, from,
                       l->base.rows_max);
    for (size_t q = from; q < to; q++) {
        const iv_learner_sequence *s = &step->sequences[q];
        l->ranges[q - from] = (iv_row_range){row, s->count};
        l->spans[q - from] = (iv_attention_span){row, s->count, 0, l->pages + page};
        for (size_t i = 0; i * IV_ATTENTION_BLOCK < s->count; i++, page++) l->pages[page] = (uint32_t)page;
        memcpy(l->ids + row, s->ids, s->count * sizeof *l->ids);
        for (size_t t = 1; t < s->count; t++) {
            if (s->mask[t] == 0.0f) continue;
            l->logit_rows[l->prediction_count] = (uint32_t)(row + t - 1);
            l->predictions[l->prediction_count++] = (iv_prediction){(uint32_t)(row + t - 1), iv_learner_target(s, t)};
        }
        row += s->count;
    }
    for (size_t i = 0; l->learned && i < row; i++) l->slots[i] = 1;
    l->batch = (iv_batch){.ids = l->ids,
                          .adapters = l->slots,
                          .tokens = row,
                          .spans = l->spans,
                          .span_count = to - from,
                          .kv = l->kv,
                          .logit_rows = l->logit_rows,
                          .logit_count = l->prediction_count,
                          .logits = l->logits,
                          .logits_max = l->slice,
                          .take = take_logits,
                          .context = l};
    return IV_OK;
}

static void return_logprobs(iv_cpu_learner *l) {
    size_t p = 0;
    for (size_t q = l->from; q < l->to; q++) {
        iv_learner_sequence *s = &l->step->sequences[q];
        for (size_t t = 0; t < s->count; t++) s->logprobs[t] = t && s->mask[t] != 0.0f ? l->logprobs[p++] : 0.0f;
    }
}

static iv_status forward(iv_cpu_learner *l, bool tape, iv_error *err) {
    l->forward->tape = tape ? &l->tape : NULL;
    IV_TRY(iv_cpu_model_forward(l->forward, &l->batch, err));
    if (l->model->rank == 0) return_logprobs(l);
    return IV_OK;
}

static iv_status score(iv_learner *base, const iv_learner_step *step, size_t from, size_t to, iv_error *err) {
    iv_cpu_learner *l = self(base);
    IV_TRY(lay_out(l, step, from, to, err));
    return forward(l, false, err);
}

/* The axes of the pass: all tokens, and those with a prediction. */
static iv_status make_axes(iv_cpu_learner *l, iv_error *err) {
    const iv_learner_step *step = l->step;
    if (step->count > l->axis_sequences_max) {
        iv_axis_sequence *more = realloc(l->axis_sequences, 2 * step->count * sizeof *more);
        if (!more) return iv_fail(err, IV_NO_MEMORY, "learner: no memory for %zu sequences", step->count);
        l->axis_sequences = more, l->axis_sequences_max = 2 * step->count;
    }
    for (size_t q = 0; q < step->count; q++)
        l->axis_sequences[q] = (iv_axis_sequence){step->sequences[q].count, step->sequences[q].rank};
    iv_token_axis_make(l->axis_sequences, step->count, step->ranks, l->from, l->to, l->axis_rows, l->rank_ranges,
                       &l->axis);
    for (size_t q = l->from; q < l->to; q++) {
        size_t n = 0;
        for (size_t t = 1; t < step->sequences[q].count; t++) n += step->sequences[q].mask[t] != 0.0f;
        l->axis_sequences[q].tokens = n;
    }
    iv_token_axis_make(l->axis_sequences, step->count, step->ranks, l->from, l->to, l->head_rows, l->head_ranges,
                       &l->head_axis);
    return IV_OK;
}

/* Statistics and coefficients of rank 0 reach all ranks, or its failure to weigh the pass does, so that none waits. */
static iv_status share_predictions(iv_cpu_learner *l, iv_status weighed, iv_error *err) {
    size_t n = l->prediction_count, p = 0, least = weighed == IV_OK ? SIZE_MAX : 0;
    for (size_t q = l->from; weighed == IV_OK && l->model->rank == 0 && q < l->to; q++) {
        const iv_learner_sequence *s = &l->step->sequences[q];
        for (size_t t = 1; t < s->count; t++)
            if (s->mask[t] != 0.0f) l->coefficients[p++] = s->coefficients[t] / l->step->temperature;
    }
    if (l->model->tp.ranks == 1) return weighed;
    size_t floats_of[IV_RANKS_MAX] = {3 * n};
    const float *parts[IV_RANKS_MAX];
    float *mine = iv_tp_gather_buffer(l->forward);
    if (l->model->rank == 0) {
        memcpy(mine, l->max, n * sizeof *mine), memcpy(mine + n, l->sum, n * sizeof *mine);
        memcpy(mine + 2 * n, l->coefficients, n * sizeof *mine);
    }
    iv_error gathering;
    iv_status status = iv_tp_gather_all(l->forward, floats_of, &least, parts, &gathering);
    if (weighed != IV_OK) return weighed;
    if (status != IV_OK) return iv_fail(err, status, "%s", gathering.message);
    if (least == 0) return iv_fail(err, IV_INVALID, "rank 0 of the tensor-parallel ranks could not weigh the pass");
    if (l->model->rank == 0) return IV_OK;
    memcpy(l->max, parts[0], n * sizeof *mine), memcpy(l->sum, parts[0] + n, n * sizeof *mine);
    memcpy(l->coefficients, parts[0] + 2 * n, n * sizeof *mine);
    return IV_OK;
}

static iv_status pass(iv_learner *base, const iv_learner_step *step, size_t from, size_t to, iv_error *err) {
    iv_cpu_learner *l = self(base);
    IV_TRY(lay_out(l, step, from, to, err));
    IV_TRY(make_axes(l, err));
    IV_TRY(forward(l, true, err));
    iv_status weighed = IV_OK;
    if (step->weigh && l->model->rank == 0) weighed = step->weigh(step->context, from, to, err);
    IV_TRY(share_predictions(l, weighed, err));
    return iv_decoder_backward(l->model, &l->forward->backend, err);
}

/* ---- opening and closing -------------------------------------------------------------------------------------- */

static void close_learner(iv_learner *base) {
    iv_cpu_learner *l = self(base);
    iv_cpu_model_close(l->forward);
    iv_lookups_close(l);
    iv_memory_free(l->data, l->data_bytes);
    free(l->tape.layers), free(l->qkv_cuts[0]), free(l->qkv_cuts[1]), free(l->up_cuts), free(l->shared_cuts),
        free(l->mixer_cuts), free(l->axis_sequences);
    free(l);
}

static size_t bytes_of(const iv_learner *base) {
    const iv_cpu_learner *l = (const iv_cpu_learner *)(const void *)base;
    return l->data_bytes + l->forward->data_bytes;
}

iv_status iv_cpu_learner_open(const iv_model *m, const iv_cpu_learner_options *o, iv_learner **out, iv_error *err) {
    static const iv_learner_ops ops = {.score = score, .pass = pass, .bytes = bytes_of, .close = close_learner};
    if (o->rows_max < 2 || o->rows_max > INT32_MAX / 32)
        return iv_fail(err, IV_INVALID, "tokens of a pass: wanted 2 to 2^26, found %zu", o->rows_max);
    if (!o->weights && !o->learned && m->tp.ranks > 1)
        return iv_fail(err, IV_UNSUPPORTED, "learner without master weights: wanted 1 tensor-parallel rank, found %zu",
                       m->tp.ranks);
    iv_cpu_learner *l = calloc(1, sizeof *l);
    if (!l) return iv_fail(err, IV_NO_MEMORY, "learner: no memory");
    l->base.ops = &ops, l->model = m, l->tensor_owner = o->tensor_owner, l->kernels = o->kernels,
    l->weights = o->learned ? NULL : o->weights;
    l->learned = o->learned, l->adapters = o->adapters, l->place = o->place, l->masters = o->weights;
    l->tape.recompute = o->recompute;
    l->compute = (iv_compute){.kernels = o->kernels, .arithmetic = o->arithmetic, .pool = o->pool};
    l->padded_max = l->base.rows_max = iv_padded_k(o->rows_max);
    l->tied_offset = l->tensor_owner->config.tie_embeddings ? o->elements : 0;
    iv_status status = open_parts(l, o, err);
    if (status == IV_OK)
        *out = &l->base;
    else
        close_learner(&l->base);
    return status;
}
