/* learner_inputs.c: the sequences of a pass as the arrays that kernels read, in pinned memory that is copied to the GPU
 * in one piece; and the axes of its sums. */
#include "base/carve.h"
#include "model/cuda/learner_state.h"

#include <stdlib.h>
#include <string.h>

static size_t carve_inputs(const gpu_input_sizes *n, unsigned char *base, gpu_learner_inputs *at) {
    iv_carving v = {.base = base, .align = 64};
    at->ids = iv_carve(&v, n->rows, sizeof *at->ids);
    at->positions = iv_carve(&v, n->rows, sizeof *at->positions);
    at->axis_positions = iv_carve(&v, n->rows, sizeof *at->axis_positions);
    at->axis_rows = iv_carve(&v, n->rows, sizeof *at->axis_rows);
    at->slots = iv_carve(&v, n->rows, sizeof *at->slots);
    at->spans = iv_carve(&v, n->sequences, sizeof *at->spans);
    at->tables = iv_carve(&v, n->pages, sizeof *at->tables);
    at->padding = iv_carve(&v, n->padding, sizeof *at->padding);
    at->pick = iv_carve(&v, n->picks, sizeof *at->pick);
    at->targets = iv_carve(&v, n->picks, sizeof *at->targets);
    at->pick_rows = iv_carve(&v, n->picks, sizeof *at->pick_rows);
    at->forward_pick = iv_carve(&v, n->picks, sizeof *at->forward_pick);
    at->pick_padding = iv_carve(&v, n->pick_padding, sizeof *at->pick_padding);
    at->states = iv_carve(&v, n->sequences, sizeof *at->states);
    at->row_spans = iv_carve(&v, n->rows, sizeof *at->row_spans);
    return v.overflow ? SIZE_MAX : v.at;
}

size_t iv_gpu_learner_input_bytes(const gpu_learner *l) {
    size_t rows = l->base.rows_max;
    gpu_input_sizes most = {.rows = rows,
                            .sequences = l->sequences_max,
                            .pages = rows / IV_ATTENTION_BLOCK + l->sequences_max,
                            .padding = rows,
                            .picks = rows,
                            .pick_padding = rows};
    gpu_learner_inputs unused;
    return carve_inputs(&most, NULL, &unused) + 2 * ((l->plan_max + 63) / 64 * 64);
}

/* ---- arrays ------------------------------------------------------------------------------------------------------ */

static size_t predictions_of(const iv_learner_sequence *s) {
    size_t n = 0;
    for (size_t t = 1; t < s->count; t++) n += s->mask[t] != 0.0f;
    return n;
}

static iv_status measure(gpu_learner *l, iv_error *err) {
    gpu_input_sizes *n = &l->n;
    *n = (gpu_input_sizes){.sequences = l->to - l->from};
    for (size_t q = l->from; q < l->to; q++) {
        const iv_learner_sequence *s = &l->step->sequences[q];
        size_t picks = predictions_of(s);
        if (s->count > l->m->rope_positions)
            return iv_fail(err, IV_LIMIT, "sequence %zu: wanted at most %zu tokens, found %zu", q, l->m->rope_positions,
                           s->count);
        n->rows += iv_padded_k(s->count), n->padding += iv_padded_k(s->count) - s->count;
        n->picks += iv_padded_k(picks), n->pick_padding += iv_padded_k(picks) - picks;
        n->pages += (s->count + IV_ATTENTION_BLOCK - 1) / IV_ATTENTION_BLOCK;
    }
    return IV_OK;
}

typedef struct writing {
    gpu_learner *l;
    size_t row, page, padding, pick, pick_padding, sequence, border;
} writing;

static void write_rows(writing *w, const iv_learner_sequence *s) {
    const gpu_learner_inputs *at = &w->l->at;
    for (size_t t = 0; t < s->count; t++, w->row++) {
        size_t page = w->page + t / IV_ATTENTION_BLOCK;
        at->ids[w->row] = s->ids[t];
        at->positions[w->row] = at->axis_positions[w->row] = (int32_t)t;
        at->axis_rows[w->row] = (int32_t)w->row;
        at->slots[w->row] = (int64_t)(page * IV_ATTENTION_BLOCK + t % IV_ATTENTION_BLOCK);
        at->row_spans[w->row] = (int32_t)w->sequence;
    }
    for (; w->row % IV_CHAIN_STEP; w->row++) {
        at->ids[w->row] = at->positions[w->row] = 0;
        at->axis_positions[w->row] = at->axis_rows[w->row] = at->row_spans[w->row] = -1, at->slots[w->row] = -1;
        at->padding[w->padding++] = (int32_t)w->row;
    }
}

static void write_picks(writing *w, const iv_learner_sequence *s, size_t first_row) {
    const gpu_learner_inputs *at = &w->l->at;
    for (size_t t = 1; t < s->count; t++) {
        if (s->mask[t] == 0.0f) continue;
        at->pick[w->pick] = at->forward_pick[w->pick] = (int32_t)(first_row + t - 1);
        at->targets[w->pick] = iv_learner_target(s, t);
        at->pick_rows[w->pick] = (int32_t)w->pick;
        w->pick++;
    }
    for (; w->pick % IV_CHAIN_STEP; w->pick++) {
        at->pick[w->pick] = at->targets[w->pick] = at->pick_rows[w->pick] = -1;
        at->forward_pick[w->pick] = 0;
        at->pick_padding[w->pick_padding++] = (int32_t)w->pick;
    }
}

static void write_sequences(gpu_learner *l) {
    writing w = {.l = l};
    for (size_t q = l->from; q < l->to; q++) {
        const iv_learner_sequence *s = &l->step->sequences[q];
        size_t first = w.row, pages = (s->count + IV_ATTENTION_BLOCK - 1) / IV_ATTENTION_BLOCK;
        l->at.spans[q - l->from] =
            (iv_gpu_span){.first_row = (int32_t)first, .rows = (int32_t)s->count, .table = (int32_t)w.page};
        for (size_t i = 0; i < pages; i++) l->at.tables[w.page + i] = (uint32_t)(w.page + i);
        l->at.states[q - l->from] = (iv_gpu_state_span){
            .first_row = (int32_t)first, .rows = (int32_t)s->count, .from = IV_GPU_NO_SLOT, .now = (uint32_t)w.border};
        write_rows(&w, s);
        write_picks(&w, s, first);
        w.page += pages, w.border += (s->count - 1) / IV_GPU_DELTA_BLOCK, w.sequence++;
    }
}

/* The plan of layers without a window, then that of layers with one. Returns the end of the inputs; 0: over capacity.
 */
static size_t write_plans(gpu_learner *l, size_t at) {
    iv_gpu_attention_shape shape = iv_gpu_shape_of(l->m, l->f.arithmetic, 0);
    size_t used = iv_gpu_attention_plan(&shape, l->at.spans, l->n.sequences, l->f.sms, l->host + at, l->plan_max);
    l->at.plan = l->host + at, l->on.plan = l->inputs + at;
    if (!used || !l->window) return used ? at + used : 0;
    at += (used + 63) / 64 * 64;
    shape = iv_gpu_shape_of(l->m, l->f.arithmetic, l->window);
    used = iv_gpu_attention_plan(&shape, l->at.spans, l->n.sequences, l->f.sms, l->host + at, l->plan_max);
    l->at.window_plan = l->host + at, l->on.window_plan = l->inputs + at;
    return used ? at + used : 0;
}

iv_status iv_gpu_learner_write_inputs(gpu_learner *l, iv_error *err) {
    if (iv_learner_fit(&l->base, l->step, l->from, l->to - l->from) < l->to - l->from)
        return iv_fail(err, IV_LIMIT, "a pass of %zu sequences from %zu on: wanted at most %zu tokens", l->to - l->from,
                       l->from, l->base.rows_max);
    IV_TRY(measure(l, err));
    IV_TRY(iv_gpu_learner_reserve_pages(l, l->n.pages, err));
    size_t end = carve_inputs(&l->n, l->host, &l->at);
    carve_inputs(&l->n, l->inputs, &l->on);
    write_sequences(l);
    end = write_plans(l, end);
    if (!end)
        return iv_fail(err, IV_LIMIT, "attention: a pass of %zu sequences and %zu tokens exceeds the plan's size",
                       l->n.sequences, l->n.rows);
    return iv_gpu_launched(&l->f, cudaMemcpyAsync(l->inputs, l->host, end, cudaMemcpyHostToDevice, l->f.stream),
                           "inputs", err);
}

/* ---- axes -------------------------------------------------------------------------------------------------------- */

iv_status iv_gpu_learner_axes(gpu_learner *l, iv_error *err) {
    const iv_learner_step *step = l->step;
    if (step->count > l->axis_sequences_max) {
        iv_axis_sequence *more = realloc(l->axis_sequences, 2 * step->count * sizeof *more);
        if (!more) return iv_fail(err, IV_NO_MEMORY, "learner: no memory for %zu sequences", step->count);
        l->axis_sequences = more, l->axis_sequences_max = 2 * step->count;
    }
    for (size_t q = 0; q < step->count; q++)
        l->axis_sequences[q] = (iv_axis_sequence){step->sequences[q].count, step->sequences[q].rank};
    iv_token_axis_make(l->axis_sequences, step->count, step->ranks, l->from, l->to, l->axis_scratch, l->rank_ranges,
                       &l->axis);
    for (size_t q = l->from; q < l->to; q++) l->axis_sequences[q].tokens = predictions_of(&step->sequences[q]);
    iv_token_axis_make(l->axis_sequences, step->count, step->ranks, l->from, l->to, l->axis_scratch, l->head_ranges,
                       &l->head_axis);
    IV_ASSERT(l->axis.padded == l->n.rows && l->head_axis.padded == l->n.picks);
    return IV_OK;
}

/* ---- vectors ----------------------------------------------------------------------------------------------------- */

/* A layer's biases of qkv, then those of gate and up. */
static float *biases_of(const gpu_learner *l, size_t layer) {
    return l->biases + layer * (l->qkv_biases + l->gate_up_biases);
}

static const float *input_norm(const gpu_learner *l, const iv_tensor *t) {
    return t ? iv_gpu_learner_norm(l, t) : iv_gpu_rounding;
}

static void place_mlp_vectors(const gpu_learner *l, size_t layer, const float *biases, layer_vectors *v) {
    const iv_layer_tensors *t = iv_gpu_learner_tensors(l, layer);
    bool biased = t->experts->up_bias != NULL;
    if (l->m->layers[layer].config->mlp != IV_MLP_EXPERTS) {
        v->gate_up_bias = biased ? biases : NULL, v->down_bias = iv_gpu_learner_vector(l, t->experts->down_bias);
        return;
    }
    v->router_bias = iv_gpu_learner_vector(l, t->router_bias);
    v->router_correction = t->router_correction ? l->corrections + layer * l->experts : NULL;
    if (!biased) return;
    v->expert_up_bias = biases, v->expert_up_apart = l->expert_up_apart;
    v->expert_down_bias = biases + l->shard->experts * l->expert_up_apart, v->expert_down_apart = l->expert_down_apart;
}

void iv_gpu_learner_place_vectors(gpu_learner *l) {
    for (size_t i = 0; i < (size_t)l->m->config.layers; i++) {
        const iv_layer_tensors *t = iv_gpu_learner_tensors(l, i);
        const float *biases = biases_of(l, i);
        const float *sinks = iv_gpu_learner_vector(l, t->sinks);
        int rope = l->m->config.layer[i].rope;
        l->f.layers[i] = (layer_vectors){.cosine = l->cosine[rope],
                                         .sine = l->sine[rope],
                                         .query = l->query[rope],
                                         .attention_norm = input_norm(l, t->attention_norm),
                                         .mlp_norm = input_norm(l, t->mlp_norm),
                                         .attention_post_norm = iv_gpu_learner_norm(l, t->attention_post_norm),
                                         .mlp_post_norm = iv_gpu_learner_norm(l, t->mlp_post_norm),
                                         .q_norm = iv_gpu_learner_norm(l, t->q_norm),
                                         .k_norm = iv_gpu_learner_norm(l, t->k_norm),
                                         .sinks = sinks ? sinks + l->shard->head_first : NULL,
                                         .qkv_bias = t->q_bias ? biases : NULL,
                                         .out_bias = iv_gpu_learner_vector(l, t->out_bias)};
        iv_gpu_learner_place_delta(l, i, &l->f.layers[i]);
        place_mlp_vectors(l, i, biases + l->qkv_biases, &l->f.layers[i]);
    }
}

static int copy_bias(const gpu_learner *l, const iv_tensor *t, size_t first, size_t n, float **to) {
    int code = cudaMemcpyAsync(*to, iv_gpu_learner_vector(l, t) + first, n * sizeof **to, cudaMemcpyDeviceToDevice,
                               l->f.stream);
    *to += n;
    return code;
}

static int copy_qkv_biases(const gpu_learner *l, const iv_layer_tensors *t, float *to) {
    size_t dim = (size_t)l->m->config.head_dim, kv = l->shard->kv_head_first * dim;
    int code = copy_bias(l, t->q_bias, l->shard->head_first * dim, l->q, &to);
    if (!code) code = copy_bias(l, t->k_bias, kv, l->kv, &to);
    if (!code) code = copy_bias(l, t->v_bias, kv, l->kv, &to);
    return code || !t->gate_bias ? code : copy_bias(l, t->gate_bias, l->shard->head_first * dim, l->q, &to);
}

/* n of them, in the order of the matrix's rows. */
static int copy_gate_up_biases(const gpu_learner *l, const iv_matrix *w, const iv_mlp_tensors *t, size_t skipped,
                               size_t n, float *to) {
    const iv_tensor *of[] = {t->gate_bias, t->up_bias};
    size_t first = t->gate_bias ? 0 : 1, group = w->paired ? 8 : n, bytes = group * sizeof *to;
    int code = 0;
    for (size_t i = first; i < 2 && !code; i++)
        code =
            cudaMemcpy2DAsync(to + (i - first) * group, (2 - first) * bytes, iv_gpu_learner_vector(l, of[i]) + skipped,
                              bytes, bytes, n / group, cudaMemcpyDeviceToDevice, l->f.stream);
    return code;
}

/* Of this rank's experts: gate and up of each, then down of each. */
static int copy_expert_biases(const gpu_learner *l, size_t layer, float *to) {
    const iv_mlp_tensors *t = iv_gpu_learner_tensors(l, layer)->experts;
    size_t first = l->shard->expert_first, count = l->shard->experts;
    float *down = to + count * l->expert_up_apart;
    int code = 0;
    for (size_t e = first; e < first + count && !code; e++, to += l->expert_up_apart) {
        float *there = down + (e - first) * l->expert_down_apart;
        code = copy_gate_up_biases(l, &l->m->layers[layer].experts[e].gate_up, &t[e], 0, l->expert_n, to);
        if (!code) code = copy_bias(l, t[e].down_bias, 0, l->h, &there);
    }
    return code;
}

static iv_status write_norms(gpu_learner *l, iv_error *err) {
    const iv_model *m = l->tensor_owner;
    for (size_t i = 0; l->norms && i < m->tensor_count; i++) {
        const iv_tensor *t = &m->tensors[i];
        if (!iv_parameter_is_vector(t)) continue;
        int code = iv_gpu_plus_one(iv_gpu_learner_vector(l, t), t->rows, l->norms + l->norm_at[i], l->f.stream);
        IV_TRY(iv_gpu_launched(&l->f, code, "norms", err));
    }
    return IV_OK;
}

iv_status iv_gpu_learner_write_vectors(gpu_learner *l, iv_error *err) {
    IV_TRY(write_norms(l, err));
    for (size_t i = 0; i < (size_t)l->m->config.layers; i++) {
        const iv_layer_tensors *t = iv_gpu_learner_tensors(l, i);
        float *to = biases_of(l, i);
        int code = t->q_bias ? copy_qkv_biases(l, t, to) : iv_gpu_learner_copy_taps(l, i);
        bool experts = l->m->layers[i].config->mlp == IV_MLP_EXPERTS;
        to = biases_of(l, i) + l->qkv_biases;
        if (!code && t->experts->up_bias && experts) code = copy_expert_biases(l, i, to);
        if (!code && t->experts->up_bias && !experts)
            code = copy_gate_up_biases(l, &l->m->layers[i].experts->gate_up, t->experts, l->up_first, l->up, to);
        IV_TRY(iv_gpu_launched(&l->f, code, "biases", err));
    }
    return IV_OK;
}
