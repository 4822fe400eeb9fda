/* learner_memory.c: where a learner's buffers are. Buffers of the forward ops, of the head and of the backward ops
 * share memory: a value that outlives these phases is on the tape or among those that are carved first. */
#include "base/carve.h"
#include "model/cuda/learner_adapter.h"

enum { LINE = 32 }; /* floats */

static size_t lines(size_t floats) { return (floats + LINE - 1) / LINE * LINE; }

void iv_gpu_learner_sizes(gpu_learner *l) {
    const iv_model_config *c = &l->m->config;
    size_t dim = (size_t)c->head_dim;
    l->f.rows_max = iv_gpu_whole_tiles(l->base.rows_max), l->width = iv_dtype_bytes(l->m->gemm_type);
    l->h = (size_t)c->hidden_size, l->h_stride = iv_padded_k(l->h);
    l->heads = l->shard->heads, l->kv_heads = l->shard->kv_heads;
    l->q = l->heads * dim, l->q_stride = iv_padded_k(l->q), l->kv = l->kv_heads * dim;
    const iv_row_cut *cut = &l->m->tp.down.of[l->f.rank];
    l->up = cut->k, l->up_first = cut->first, l->act_stride = iv_padded_k(l->up);
    l->experts = (size_t)c->experts, l->k = (size_t)c->experts_per_token;
    l->expert_n = c->experts ? (size_t)c->moe_intermediate_size : 0, l->expert_stride = iv_padded_k(l->expert_n);
    if (c->attention_bias) l->qkv_biases = lines(2 * l->q + 2 * l->kv);
    if (c->mlp_bias) l->gate_up_biases = lines(2 * l->up);
    if (c->mlp_bias && c->experts) l->expert_up_apart = lines(2 * l->expert_n), l->expert_down_apart = lines(l->h);
    l->gate_up_biases = iv_size_max(l->gate_up_biases, l->shard->experts * (l->expert_up_apart + l->expert_down_apart));
    const iv_row_cut *shared = &l->m->tp.shared.of[l->f.rank];
    if (c->shared_intermediate_size)
        l->shared = shared->k, l->shared_first = shared->first, l->shared_stride = iv_padded_k(l->shared);
    l->router_outputs = l->experts + c->shared_gate;
    l->sequences_max = l->base.rows_max / IV_CHAIN_STEP;
    const iv_delta_layout *d = &l->m->delta_layout;
    for (int64_t i = 0; i < c->layers; i++) l->gate = c->layer[i].attention_gate ? l->q : l->gate;
    l->delta_values = d->value_heads * d->value_dim;
    l->outs = iv_size_max(l->q, d->value_heads ? l->delta_values : d->channels);
    l->qkv_row = iv_size_max(l->q + 2 * l->kv + l->gate, d->width);
    if (l->f.ranks > 1) l->taps_apart = lines(d->channels * d->taps);
    size_t vocab = (size_t)c->vocab_size, slice = l->logits_floats / vocab;
    if (slice > IV_CHAIN_STEP) slice = slice / IV_CHAIN_STEP * IV_CHAIN_STEP;
    l->logits_floats = iv_size_max(1, iv_size_min(slice, l->base.rows_max)) * iv_padded_k(vocab);
}

static void *rows_of(iv_carving *v, size_t rows, size_t columns, size_t width) {
    size_t n;
    if (!iv_size_mul(rows, columns, &n)) v->overflow = true;
    return iv_carve(v, v->overflow ? 0 : n, width);
}

/* What two more barriers cost. Tests replace it. */
size_t iv_gpu_learner_shared_bytes(void) { return 1 << 20; }

/* Rows of a chunk: all that a layer usually has with their padding, within the limit; one expert's are at most those of
 * the pass. */
static size_t chunk_rows(const gpu_learner *l) {
    size_t row = (l->h_stride + l->expert_stride + 2 * l->expert_n + l->expert_concat_max) * l->width +
                 (l->h + l->expert_n) * sizeof(float);
    size_t rows = iv_size_min(2 * l->f.rows_max * l->k, l->chunk_bytes / row);
    return iv_gpu_whole_tiles(iv_size_max(l->f.rows_max, rows));
}

/* Rows of layers, or of the experts of a layer or of a chunk. */
static size_t adapted_rows(const gpu_learner *l, bool experts) {
    return experts ? iv_size_max(l->f.rows_max * l->k, l->expert_rows_max) : l->f.rows_max;
}

/* ---- the tape --------------------------------------------------------------------------------------------------- */

static unsigned char *typed(const gpu_learner *l, iv_carving *v, size_t columns) {
    return rows_of(v, l->f.rows_max, columns, l->width);
}

/* Of a layer with a state, whose output is in t->attended. */
static void carve_delta(const gpu_learner *l, iv_carving *v, gpu_values *t) {
    const iv_delta_layout *d = &l->m->delta_layout;
    gpu_delta_values *k = &t->delta;
    if (!d->channels) return;
    k->kept.inputs = typed(l, v, d->channels);
    k->kept.z = typed(l, v, d->value_heads ? l->delta_values : d->width);
    if (!d->value_heads) return;
    k->qk = typed(l, v, 2 * d->keys), k->kept.updates = typed(l, v, l->delta_values);
    k->kept.o = typed(l, v, l->delta_values);
    k->kept.borders = rows_of(v, l->f.rows_max / IV_GPU_DELTA_BLOCK, l->delta_values * d->key_dim, l->width);
    k->gates = rows_of(v, l->f.rows_max, 2 * d->value_heads, sizeof(float));
    k->kept.logits = rows_of(v, l->f.rows_max, d->value_heads, sizeof(float));
}

static void carve_attention(const gpu_learner *l, iv_carving *v, gpu_values *t) {
    t->q = typed(l, v, l->q);
    if (l->gate) t->raw = typed(l, v, l->gate), t->raw_gate = typed(l, v, l->gate);
    t->lse2 = rows_of(v, l->f.rows_max, l->heads, sizeof(float));
    if (!l->m->config.qk_norm) return;
    t->q_raw = rows_of(v, l->f.rows_max, l->q, l->width), t->k_raw = rows_of(v, l->f.rows_max, l->kv, l->width);
}

static void carve_mlp(const gpu_learner *l, iv_carving *v, gpu_values *t, bool dense, bool experts) {
    size_t entries = l->f.rows_max * l->k, n = 0, act = 0;
    if (dense) n = l->f.rows_max * l->up, act = l->f.rows_max * l->act_stride;
    if (experts) n = iv_size_max(n, entries * l->expert_n), act = iv_size_max(act, entries * l->expert_stride);
    t->x_mlp = rows_of(v, l->f.rows_max, l->h, sizeof(float));
    for (size_t i = 0; i < 2 && iv_config_has_post_norms(&l->m->config); i++)
        t->block_y[i] = rows_of(v, l->f.rows_max, l->h, sizeof(float));
    t->gate = iv_carve(v, n, l->width), t->up = iv_carve(v, n, l->width), t->act = iv_carve(v, act, l->width);
    if (!experts) return;
    t->router_logits = rows_of(v, l->f.rows_max, l->router_outputs, sizeof(float));
    t->shared_gate = rows_of(v, l->f.rows_max, l->shared, l->width);
    t->shared_up = rows_of(v, l->f.rows_max, l->shared, l->width);
    t->shared_act = rows_of(v, l->f.rows_max, l->shared_stride, l->width);
    t->expert_ids = iv_carve(v, entries, sizeof *t->expert_ids);
    t->expert_weights = iv_carve(v, entries, sizeof *t->expert_weights);
}

static void kinds_of(const gpu_learner *l, bool *dense, bool *experts) {
    for (size_t i = 0; i < (size_t)l->m->config.layers; i++) {
        bool e = l->m->layers[i].config->mlp == IV_MLP_EXPERTS;
        *dense |= !e, *experts |= e;
    }
}

/* The values of a mixer: `attends`, `recurs`: of layers of these kinds. */
static void carve_mixer(const gpu_learner *l, iv_carving *v, gpu_values *t, bool attends, bool recurs) {
    t->attended = typed(l, v, l->outs);
    if (attends) carve_attention(l, v, t);
    if (recurs) carve_delta(l, v, t);
}

static void carve_tape(gpu_learner *l, iv_carving *v, bool dense, bool experts) {
    bool attention = l->tape.recompute == IV_RECOMPUTE_NONE, mlp = l->tape.recompute != IV_RECOMPUTE_LAYER;
    gpu_values shared = {0};
    if (!attention) carve_mixer(l, v, &shared, true, true);
    if (!mlp) carve_mlp(l, v, &shared, dense, experts);
    for (size_t i = 0; i < (size_t)l->m->config.layers; i++) {
        gpu_values t = shared;
        bool e = l->m->layers[i].config->mlp == IV_MLP_EXPERTS;
        t.x = rows_of(v, l->f.rows_max, l->h, sizeof(float));
        bool any = i == 0; /* all layers of a pass without a tape use the first one's */
        bool attends = l->m->layers[i].config->mixer == IV_MIXER_ATTENTION;
        if (attention) carve_mixer(l, v, &t, any || attends, any || !attends);
        if (mlp) carve_mlp(l, v, &t, !e || (any && dense), e || (any && experts));
        for (size_t k = 0; attention && k < 2; k++) t.normed[k] = rows_of(v, l->f.rows_max, l->h_stride, l->width);
        if (v->base) l->tape.layers[i] = t;
    }
    l->tape.x_end = rows_of(v, l->f.rows_max, l->h, sizeof(float));
}

/* ---- phases ------------------------------------------------------------------------------------------------------ */

static void carve_forward(gpu_learner *l, iv_carving *v, bool dense, bool experts) {
    size_t widest = l->qkv_row;
    if (dense) widest = iv_size_max(widest, 2 * l->up);
    if (experts) widest = iv_size_max(widest, iv_size_max(2 * l->shared, 2 * l->k * l->expert_n));
    if (l->learned) widest = iv_size_max(widest, l->h); /* y of row-parallel layers */
    l->f.wide = rows_of(v, l->f.rows_max, widest, sizeof *l->f.wide);
    if (l->delta_values) l->f.delta_values = rows_of(v, l->f.rows_max, l->delta_values, sizeof *l->f.delta_values);
    if (!experts) return;
    l->f.expert_offsets = iv_carve(v, l->experts + 1, sizeof *l->f.expert_offsets);
    l->f.expert_slots = rows_of(v, l->f.rows_max, l->k, sizeof *l->f.expert_slots);
    if (l->expert_up_apart || l->learned) l->f.ones = rows_of(v, l->f.rows_max, l->k, sizeof *l->f.ones);
}

/* dkeys and dout live as dqkv does. */
static void carve_delta_backward(gpu_learner *l, iv_carving *v) {
    const iv_delta_layout *d = &l->m->delta_layout;
    iv_gpu_delta_shape shape = iv_gpu_delta_shape_of(d, l->f.arithmetic);
    if (!d->value_heads) return;
    l->delta.dkeys = rows_of(v, l->f.rows_max, 2 * d->value_heads * d->key_dim, sizeof(float));
    l->delta.d_log = rows_of(v, l->f.rows_max, d->value_heads, sizeof(float));
    l->delta.dout = rows_of(v, l->f.rows_max, l->delta_values, l->width);
    l->delta.scratch_bytes = iv_gpu_delta_backward_scratch(&shape, l->f.rows_max, l->sequences_max, l->f.sms);
    l->delta.scratch = iv_carve(v, l->delta.scratch_bytes, 1);
}

static void carve_backward(gpu_learner *l, iv_carving *v, bool dense, bool experts) {
    size_t dim = (size_t)l->m->config.head_dim, rows = experts ? l->expert_rows_max : 0,
           n = iv_size_max(dense ? l->up : 0, experts ? l->shared : 0);
    size_t dy = l->f.rows_max * iv_size_max(l->concat_max, iv_padded_k(l->outs)), dact = l->f.rows_max * n;
    if (experts) dy = iv_size_max(dy, rows * l->expert_concat_max), dact = iv_size_max(dact, rows * l->expert_n);
    l->dy = iv_carve(v, dy, l->width);
    if (l->learned) l->learned->dz = rows_of(v, adapted_rows(l, experts), l->learned->outputs_max, l->width);
    l->dnormed = rows_of(v, l->f.rows_max, l->h, sizeof *l->dnormed);
    if (iv_config_buffers_blocks(&l->m->config)) l->post_dx = rows_of(v, l->f.rows_max, l->h, sizeof *l->post_dx);
    l->dact = iv_carve(v, dact, sizeof *l->dact);
    l->dattended = rows_of(v, l->f.rows_max, l->outs, sizeof *l->dattended);
    l->dqkv = rows_of(v, l->f.rows_max, l->qkv_row, sizeof *l->dqkv);
    carve_delta_backward(l, v);
    if (l->m->config.attention_sinks) l->sink_terms = rows_of(v, l->f.rows_max, l->heads, sizeof *l->sink_terms);
    size_t terms = iv_size_max(l->m->config.qk_norm ? 2 * dim : 0, l->delta_values ? l->m->delta_layout.value_dim : 0);
    if (terms) l->head_terms = rows_of(v, l->f.rows_max, terms, sizeof *l->head_terms);
    size_t wide = l->f.rows_max * 2 * n;
    if (experts) wide = iv_size_max(wide, rows * 2 * l->expert_n);
    if (l->m->config.mlp_bias) l->dwide = iv_carve(v, wide, sizeof *l->dwide);
    if (!experts) return;
    if (l->m->config.router_bias) l->router_dl = rows_of(v, l->f.rows_max, l->experts, sizeof *l->router_dl);
    if (l->shared) {
        l->dz = iv_carve(v, l->f.rows_max, sizeof *l->dz);
        if (l->f.ranks > 1) l->dz_part = iv_carve(v, l->f.rows_max, sizeof *l->dz_part);
        l->shared_dx = rows_of(v, l->f.rows_max, l->h, sizeof *l->shared_dx);
    }
    l->dw = rows_of(v, l->f.rows_max, l->k, sizeof *l->dw);
    if (l->f.ranks > 1) /* of all experts' lists, whose padding is less than a step each and sequence */
        l->shared_dw =
            rows_of(v, l->f.rows_max * l->k + IV_CHAIN_STEP * l->experts * l->sequences_max, 1, sizeof *l->dw);
    l->expert_x = rows_of(v, rows, l->h_stride, l->width);
    l->expert_act = rows_of(v, rows, l->expert_stride, l->width);
    l->expert_gate = rows_of(v, rows, l->expert_n, l->width);
    l->expert_up = rows_of(v, rows, l->expert_n, l->width);
    l->expert_dx = rows_of(v, rows, l->h, sizeof *l->expert_dx);
}

/* What the forward and the backward pass of an adapter have. */
static void carve_adapter(gpu_learner *l, iv_carving *v, bool experts) {
    gpu_learned *a = l->learned;
    size_t rows = adapted_rows(l, experts), width;
    if (!a) return;
    width = a->t_width_max;
    a->forward.t = rows_of(v, rows, width, l->width), a->dt = rows_of(v, rows, width, l->width);
    a->forward.sums = rows_of(v, rows, width, sizeof(float));
    a->bounds = iv_carve(v, 1, sizeof a->host_bounds);
    if (l->f.ranks == 1) a->partial = rows_of(v, LEARNED_CHAINS_MAX, a->extent_max, sizeof(float));
    if (l->f.ranks > 1) a->forward.nodes = rows_of(v, 2 * l->f.rows_max * l->f.nodes_max, width, sizeof(float));
}

static void carve_adapted_head(gpu_learner *l, iv_carving *v) {
    gpu_learned *a = l->learned;
    if (!a || !a->head.pieces) return;
    a->head_dz = rows_of(v, l->f.rows_max, a->head_width, l->width);
    for (size_t i = 0; i < 4; i++) a->head_nodes[i] = rows_of(v, l->f.rows_max, a->t_width_max, sizeof(float));
}

static void carve_head(gpu_learner *l, iv_carving *v) {
    carve_adapted_head(l, v);
    l->logits = iv_carve(v, l->logits_floats, sizeof *l->logits);
    l->picked = rows_of(v, l->f.rows_max, l->h_stride, l->width);
    bool all = l->tape.recompute == IV_RECOMPUTE_NONE && l->f.ranks == 1 && !l->deferred_loss;
    l->dl_leaves = all ? l->head.leaves : 1;
    l->dl = rows_of(v, l->f.rows_max * l->dl_leaves, iv_gpu_learner_head_leaf(l).stride, l->width);
    l->logit_rows = iv_carve(v, l->f.rows_max, sizeof *l->logit_rows);
    for (size_t i = 0; i < 4 && ((size_t)1 << i < 2 * l->head.leaves || l->f.ranks > 1); i++)
        l->nodes[i] = rows_of(v, l->f.rows_max, l->h, sizeof *l->nodes[i]);
}

static void carve_scratch(gpu_learner *l, iv_carving *v) {
    iv_gpu_attention_shape shape = iv_gpu_shape_of(l->m, l->f.arithmetic, 0);
    size_t rows = l->base.rows_max, columns = iv_size_max(l->h, l->qkv_row * iv_size_max(1, l->m->delta_layout.taps));
    columns = iv_size_max(columns, iv_size_max(l->up, (size_t)l->m->config.head_dim));
    columns = iv_size_max(columns, iv_size_max(l->experts, l->expert_n));
    l->transposed = iv_carve(v, l->transposed_max, l->width);
    l->f.attention_scratch = iv_carve(v, iv_gpu_attention_scratch(&shape), 1);
    l->backward_scratch = iv_carve(v, iv_gpu_attention_backward_scratch(&shape, rows, l->sequences_max), 1);
    l->tiles_bytes = iv_gpu_attention_backward_tiles(&shape, rows);
    l->tiles = iv_carve(v, l->tiles_bytes, 1);
    l->gradient_scratch = iv_carve(v, iv_gpu_weight_gradient_scratch(l->f.sms), 1);
    l->column_scratch = iv_carve(v, iv_gpu_column_sums_scratch(columns), 1);
}

/* What tensor-parallel ranks exchange. No other phase shares it: other ranks may read it. */
static void carve_ranks(gpu_learner *l, iv_carving *v) {
    const iv_model *m = l->m;
    if (l->f.ranks == 1) return;
    l->f.nodes_max = iv_size_max(m->tp.out.of[l->f.rank].nodes, m->tp.down.of[l->f.rank].nodes);
    l->f.nodes_max = iv_size_max(l->f.nodes_max, m->tp.shared.of[l->f.rank].nodes);
    l->f.nodes_max = iv_size_max(l->f.nodes_max, m->tp.mixer_out.of[l->f.rank].nodes);
    l->f.nodes_max = iv_size_max(1, l->f.nodes_max);
    l->f.nodes = rows_of(v, 2 * l->f.rows_max * l->f.nodes_max, l->h, sizeof(float));
    l->whole_head = rows_of(v, (size_t)m->config.vocab_size, l->h_stride, l->width);
    if (l->experts && l->f.rank > 0)
        l->router_data = rows_of(v, iv_padded_k(l->router_outputs) * (size_t)m->config.layers, l->h_stride, l->width);
}

size_t iv_gpu_learner_carve(gpu_learner *l, unsigned char *base) {
    iv_carving v = {.base = base, .align = 1024};
    bool dense = false, experts = false;
    size_t floats = l->f.rows_max;
    kinds_of(l, &dense, &experts);
    if (experts) l->expert_rows_max = chunk_rows(l);
    carve_tape(l, &v, dense, experts);
    l->dx = rows_of(&v, l->f.rows_max, l->h, sizeof *l->dx);
    if (iv_config_buffers_blocks(&l->m->config) && !iv_config_has_post_norms(&l->m->config))
        l->f.block = rows_of(&v, l->f.rows_max, l->h, sizeof *l->f.block);
    l->dx_rounded = rows_of(&v, l->f.rows_max, l->h_stride, l->width);
    l->factors = iv_carve(&v, floats, sizeof(float)), l->max = iv_carve(&v, floats, sizeof(float));
    l->sum = iv_carve(&v, floats, sizeof(float)), l->logprobs = iv_carve(&v, floats, sizeof(float));
    l->coefficients = iv_carve(&v, floats, sizeof(float));
    if (l->m->config.unit_offset_norms)
        l->norms = iv_carve(&v, iv_parameters_vectors(l->tensor_owner, NULL), sizeof *l->norms);
    l->biases = iv_carve(&v, (size_t)l->m->config.layers * (l->qkv_biases + l->gate_up_biases), sizeof *l->biases);
    if (l->taps_apart) l->taps = rows_of(&v, (size_t)l->m->config.layers, l->taps_apart, sizeof *l->taps);
    l->f.bad = iv_carve(&v, 1, sizeof *l->f.bad);
    l->zeros = iv_carve(&v, l->k_max, sizeof *l->zeros);
    l->inputs = iv_carve(&v, l->inputs_max, 1);
    if (experts) l->f.terms = rows_of(&v, l->f.rows_max * l->k, l->h, sizeof *l->f.terms);
    carve_scratch(l, &v);
    carve_ranks(l, &v);
    carve_adapter(l, &v, experts);
    iv_carving phase = v;
    carve_head(l, &phase);
    size_t end = phase.at;
    l->f.own_normed = rows_of(&v, l->f.rows_max, l->h_stride, l->width);
    size_t outs = iv_padded_k(l->outs);
    bool whole = l->q == l->q_stride && l->up == l->act_stride && l->shared == l->shared_stride && l->outs == outs;
    if (l->f.ranks > 1 || !whole)
        l->f.packed =
            rows_of(&v, l->f.rows_max, iv_size_max(outs, iv_size_max(l->act_stride, l->shared_stride)), l->width);
    bool overflow = v.overflow || phase.overflow;
    phase = v;
    carve_forward(l, &phase, dense, experts);
    end = iv_size_max(end, phase.at), overflow |= phase.overflow;
    phase = v;
    carve_backward(l, &phase, dense, experts);
    end = iv_size_max(end, phase.at), overflow |= phase.overflow;
    return overflow ? SIZE_MAX : end;
}

/* ---- allocation -------------------------------------------------------------------------------------------------- */

/* Short sequences take more pages than long ones: the memory grows when a pass first needs it. */
iv_status iv_gpu_learner_reserve_pages(gpu_learner *l, size_t pages, iv_error *err) {
    iv_memspace *memspace = iv_gpu_memspace(l->f.gpu);
    size_t layers = l->tape.recompute == IV_RECOMPUTE_NONE ? (size_t)l->m->config.layers : 1, layer, bytes;
    if (pages <= l->f.pages) return IV_OK;
    IV_TRY(iv_gpu_launched(&l->f, cudaStreamSynchronize(l->f.stream), "keys and values of a pass", err));
    memspace->free(memspace, l->f.kv);
    l->f.kv = NULL, l->f.pages = l->kv_bytes = 0;
    if (!iv_size_mul(l->m->kv_layout[0].page_bytes, pages, &layer) || !iv_size_mul(layer, layers, &bytes))
        return iv_fail(err, IV_LIMIT, "learner: %zu pages of keys and values are more than can be addressed", pages);
    l->f.kv = memspace->alloc(memspace, bytes);
    if (!l->f.kv) return iv_gpu_no_memory(&l->f, "keys and values of a pass", bytes, err);
    l->f.kv_layer_bytes = layers > 1 ? layer : 0, l->f.pages = pages, l->kv_bytes = bytes;
    return IV_OK;
}
