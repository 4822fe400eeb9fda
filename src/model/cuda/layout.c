/* layout.c: the buffers of a step in a GPU's memory. */
#include "base/carve.h"
#include "model/cuda/int8.h"
#include "model/cuda/state.h"

enum { GATHERED_BYTES = 64 << 20 };

size_t iv_gpu_slice(const iv_gpu_model *g) { return (g->o.logits_max + 7) / 8 * 8; }

size_t iv_gpu_picks_max(const iv_gpu_model *g) { return iv_size_max((g->o.tokens_max + 7) / 8 * 8, iv_gpu_slice(g)); }

size_t iv_gpu_rows_max(const iv_gpu_model *g) { return iv_gpu_whole_tiles(g->o.tokens_max); }

size_t iv_gpu_pick_rows_max(const iv_gpu_model *g) { return iv_gpu_whole_tiles(iv_gpu_slice(g)); }

/* Apart from its callers: the tests on emulated GPUs replace it at link time. */
size_t iv_gpu_gathered_rows(size_t row_bytes) { return iv_size_max(1, GATHERED_BYTES / row_bytes); }

size_t iv_gpu_gathered_bytes(const iv_model *m) {
    const iv_model_config *c = &m->config;
    size_t floats = IV_LEAVES_MAX, hidden = (size_t)c->hidden_size;
    floats = iv_size_max(floats, m->tp.ranks * (size_t)c->experts_per_token) * hidden;
    floats = iv_size_max(floats, (size_t)c->vocab_size);
    return iv_size_max(GATHERED_BYTES, floats * sizeof(float)) + (size_t)IV_RANKS_MAX * GATHERED_PIECE_BYTES;
}

/* Rank 0 keeps the ids of every layer until the next step. */
static void carve_experts(gpu_rank *r, iv_carving *v, size_t t) {
    const iv_model_config *c = &r->m->config;
    size_t k = (size_t)c->experts_per_token, layers = r->m->rank == 0 ? (size_t)c->layers : 1;
    r->f.ids_apart = layers > 1 ? t * k : 0;
    r->values.router_logits =
        iv_carve(v, t * ((size_t)c->experts + 1), sizeof(float)); /* and the shared expert's gate */
    r->values.expert_ids = iv_carve(v, layers * t * k, sizeof(int32_t));
    r->values.expert_weights = iv_carve(v, t * k, sizeof(float));
    if (c->router_scales_inputs)
        r->f.scaled =
            iv_carve(v, iv_gpu_whole_tiles(t * k) * iv_gpu_hidden_stride(r->m), iv_dtype_bytes(r->m->gemm_type));
    if (c->mlp_bias || c->router_scales_inputs || r->g->o.adapters) r->f.ones = iv_carve(v, t * k, sizeof(float));
    r->f.expert_offsets = iv_carve(v, (size_t)c->experts + 1, sizeof(int32_t));
    r->f.expert_slots = iv_carve(v, t * k, sizeof(int32_t));
    r->f.terms = iv_carve(v, t * k * (size_t)c->hidden_size, sizeof(float));
}

/* t of rows and of experts' entries; where rows go through several ranks, their nodes. */
static void carve_adapters(gpu_rank *r, iv_carving *v, size_t t) {
    const iv_model *m = r->m;
    size_t rank = iv_padded_k(r->g->o.adapter_rank), rows = iv_size_max(t, iv_gpu_pick_rows_max(r->g));
    if (!r->g->o.adapters) return;
    r->adapters.rank_max = rank;
    rows = iv_size_max(rows * IV_GPU_PIECES_MAX, 2 * t * (size_t)m->config.experts_per_token);
    r->adapters.t = iv_carve(v, rows * rank, iv_dtype_bytes(m->gemm_type));
    if (m->tp.ranks == 1) return;
    r->adapters.sums = iv_carve(v, t * rank, sizeof(float));
    r->adapters.nodes = iv_carve(v, 2 * r->f.nodes_max * t * rank, sizeof(float));
}

static bool gates_attention(const iv_model_config *c) {
    bool any = false;
    for (int64_t i = 0; i < c->layers; i++) any = any || c->layer[i].attention_gate;
    return any;
}

/* Elements of a row: of queries, of the first product or queries in float32, and of what attention gives. */
static void row_widths(const iv_model *m, size_t *q, size_t *wide, size_t *attended) {
    const iv_model_config *c = &m->config;
    const iv_tp_shard *shard = &m->tp.shard[m->rank];
    size_t dim = (size_t)c->head_dim, heads = shard->heads, latent = (size_t)(c->kv_rank + c->rope_dim);
    *q = heads * dim, *wide = (gates_attention(c) ? 2 : 1) * heads * dim + 2 * shard->kv_heads * dim;
    if (c->wide_head_dim) {
        const iv_tp_shard *other = iv_tp_shard_of(&m->tp, m->rank, true);
        size_t of_wide = other->heads * (size_t)c->wide_head_dim;
        *q = iv_size_max(*q, of_wide);
        *wide = iv_size_max(*wide, of_wide + 2 * other->kv_heads * (size_t)c->wide_head_dim);
    }
    *attended = *q;
    if (!c->kv_rank) return;
    *q = heads * latent, *attended = heads * (size_t)c->value_dim;
    *wide = iv_size_max(heads * dim, (size_t)c->q_rank) + latent;
}

static void carve_latent(gpu_rank *r, iv_carving *v, size_t t) {
    const iv_model_config *c = &r->m->config;
    size_t heads = r->m->tp.shard[r->m->rank].heads, width = iv_dtype_bytes(r->m->gemm_type);
    r->f.latent.low = iv_carve(v, t * iv_padded_k((size_t)c->q_rank), width);
    r->f.latent.still = iv_carve(v, t * heads * iv_padded_k((size_t)(c->head_dim - c->rope_dim)), width);
    r->f.latent.rows = iv_carve(v, t * heads * (size_t)c->kv_rank, width);
}

static void carve_int8(gpu_rank *r, iv_carving *v, size_t t) {
    const iv_model *m = r->m;
    gpu_int8_sizes sizes = iv_gpu_int8_sizes(m, t);
    r->int8.codes = iv_carve(v, sizes.codes, 1);
    r->int8.scales = iv_carve(v, sizes.rows, sizeof(float));
    r->int8.largest = iv_carve(v, sizes.rows, sizeof(uint32_t));
    if (m->tp.ranks > 1) r->int8.sums = iv_carve(v, t * (size_t)m->terms * (size_t)m->config.hidden_size, 4);
}

size_t iv_gpu_carve(gpu_rank *r, unsigned char *base) {
    const iv_gpu_model *g = r->g;
    const iv_model *m = r->m;
    const iv_model_config *c = &m->config;
    const iv_tp_shard *shard = &m->tp.shard[m->rank];
    iv_carving v = {.base = base, .align = 1024};
    size_t t = iv_gpu_rows_max(g), hidden = (size_t)c->hidden_size, width = iv_dtype_bytes(m->gemm_type), q, widest,
           of_heads;
    row_widths(m, &q, &widest, &of_heads);
    size_t act = iv_size_max(iv_gpu_act_stride(m), iv_gpu_shared_act_stride(m)), moe = (size_t)c->moe_intermediate_size,
           k = (size_t)c->experts_per_token;
    widest = iv_size_max(widest, 2 * act);
    size_t nodes = iv_size_max(m->tp.out.of[m->rank].nodes, m->tp.down.of[m->rank].nodes);
    nodes = iv_size_max(nodes, m->tp.shared.of[m->rank].nodes);
    nodes = iv_size_max(nodes, m->tp.mixer_out.of[m->rank].nodes);
    nodes = iv_size_max(nodes, m->tp.wide_out.of[m->rank].nodes);
    r->f.nodes_max = iv_size_max(nodes, 1); /* NCCL's sum needs one on a rank without nodes, too */
    iv_gpu_attention_shape shape = iv_gpu_shape_of(m, g->o.arithmetic, 0),
                           window = iv_gpu_shape_of(m, g->o.arithmetic, g->window);
    size_t slice = iv_gpu_slice(g), vocab = (size_t)c->vocab_size;
    if (c->experts) widest = iv_size_max(widest, 2 * moe * k);
    if (g->o.adapters) widest = iv_size_max(widest, hidden); /* y of row-parallel layers */
    r->f.rows_max = t;
    r->f.x = iv_carve(&v, t * hidden, sizeof(float));
    r->f.normed = r->f.own_normed = iv_carve(&v, t * iv_gpu_hidden_stride(m), width);
    if (iv_config_buffers_blocks(c)) r->f.block = iv_carve(&v, t * hidden, sizeof(float));
    if (c->layer_norm) r->f.centered = iv_carve(&v, t * hidden, sizeof(float));
    if (c->qk_norm_whole) r->f.factors = iv_carve(&v, t * 2, sizeof(float));
    const iv_delta_layout *delta = &m->delta_layout;
    size_t values = delta->value_heads * delta->value_dim,
           attended = iv_size_max(of_heads, delta->value_heads ? values : delta->channels);
    widest = iv_size_max(widest, delta->width);
    r->f.wide = iv_carve(&v, t * widest, sizeof(float));
    r->values.q = iv_carve(&v, t * q + 64, width);
    r->values.attended = iv_carve(&v, t * attended + 64, width);
    r->f.packed = iv_carve(&v, t * iv_padded_k(iv_size_max(attended, act)), width);
    if (c->kv_rank) carve_latent(r, &v, t);
    if (values) {
        r->f.delta_qk = iv_carve(&v, t * 2 * delta->keys, width);
        r->f.delta_values = iv_carve(&v, t * values, sizeof(float));
        r->f.delta_gates = iv_carve(&v, t * 2 * delta->value_heads, sizeof(float));
    }
    r->values.act = iv_carve(&v, t * iv_size_max(act, c->experts ? k * iv_gpu_expert_act_stride(m) : 0), width);
    r->values.shared_act = r->values.act;
    r->normed_picks = iv_carve(&v, iv_gpu_pick_rows_max(g) * iv_gpu_hidden_stride(m), width);
    r->f.widened_bytes = iv_model_widest_codes(m);
    if (r->f.widened_bytes) r->f.widened = iv_carve(&v, r->f.widened_bytes, 1);
    if (m->tp.ranks > 1)
        r->f.nodes = iv_carve(&v, 2 * r->f.nodes_max * t * hidden, sizeof(float)); /* attention's, down's */
    if (c->experts) carve_experts(r, &v, t);
    if (m->terms) carve_int8(r, &v, t);
    carve_adapters(r, &v, t);
    bool first = m->rank == 0; /* another process keeps its columns of the logits until rank 0 has gathered them */
    if (first || g->o.processes > 1) r->logits = iv_carve(&v, slice * (first ? vocab : shard->vocab), sizeof(float));
    r->f.attention_scratch = iv_carve(
        &v, iv_size_max(iv_gpu_attention_scratch(&shape), iv_gpu_attention_scratch(&window)), shard->heads ? 1 : 0);
    r->sample_scratch = iv_carve(&v, first ? iv_gpu_sample_scratch(slice, vocab) : 0, 1);
    r->sampled = iv_carve(&v, first ? iv_gpu_picks_max(g) : 0, sizeof *r->sampled);
    r->top_logprobs = iv_carve(&v, first ? iv_gpu_picks_max(g) * IV_TOP_LOGPROBS_MAX : 0, sizeof *r->top_logprobs);
    r->ids = iv_carve(&v, first ? (vocab + 63) / 64 : 0, sizeof *r->ids);
    r->f.bad = iv_carve(&v, 1, sizeof *r->f.bad);
    r->f.flags = iv_carve(&v, IV_GPU_FLAG_WORDS, sizeof *r->f.flags);
    r->inputs = iv_carve(&v, g->inputs_capacity, 1);
    r->tables = iv_carve(&v, g->groups * g->table_capacity, sizeof *r->tables);
    r->gathered = iv_carve(&v, g->o.processes > 1 ? iv_gpu_gathered_bytes(m) : 0, 1);
    return v.overflow ? SIZE_MAX : v.at;
}

/* Measured on H200s (bench/gpu/LOG.md): with two ranks, or fewer rows, all-reduces are too short to gain from it. */
size_t iv_gpu_microstep_rows(size_t ranks) { return ranks < 4 ? SIZE_MAX : 2048; }
