/* layout.c: the buffers of a step in a GPU's memory. */
#include "base/carve.h"
#include "model/cuda/state.h"

enum { GATHERED_BYTES = 64 << 20 };

static size_t padded_stride(size_t n) { return iv_padded_k(n); }

size_t iv_gpu_hidden_stride(const iv_model *m) { return padded_stride((size_t)m->config.hidden_size); }
size_t iv_gpu_act_stride(const iv_model *m) { return padded_stride(m->tp.down.of[m->rank].k); }
size_t iv_gpu_expert_act_stride(const iv_model *m) { return padded_stride((size_t)m->config.moe_intermediate_size); }

iv_gpu_attention_shape iv_gpu_shape_of(const iv_gpu_model *g, const iv_model *m, int64_t window) {
    const iv_tp_shard *s = &m->tp.shard[m->rank];
    size_t group = (size_t)(m->config.heads / m->config.kv_heads);
    return (iv_gpu_attention_shape){.arithmetic = g->o.arithmetic,
                                    .type = m->dtype,
                                    .heads = s->heads,
                                    .kv_heads = s->kv_heads,
                                    .head_dim = (size_t)m->config.head_dim,
                                    .group = group,
                                    .group_first = s->head_first - s->kv_head_first * group,
                                    .window = window};
}

size_t iv_gpu_slice(const iv_gpu_model *g) { return (g->o.logits_max + 7) / 8 * 8; }

size_t iv_gpu_picks_max(const iv_gpu_model *g) { return iv_size_max((g->o.tokens_max + 7) / 8 * 8, iv_gpu_slice(g)); }

/* Whole tiles, so that a kernel may read past the last row. */
static size_t whole_tiles(size_t rows) { return (rows + 255) / 256 * 256; }

size_t iv_gpu_rows_max(const iv_gpu_model *g) { return whole_tiles(g->o.tokens_max); }

size_t iv_gpu_pick_rows_max(const iv_gpu_model *g) { return whole_tiles(iv_gpu_slice(g)); }

/* Apart from its callers: the tests on emulated GPUs replace it at link time. */
size_t iv_gpu_gathered_rows(size_t row_bytes) { return iv_size_max(1, GATHERED_BYTES / row_bytes); }

size_t iv_gpu_gathered_bytes(const iv_model *m) {
    const iv_model_config *c = &m->config;
    size_t floats = IV_LEAVES_MAX, hidden = (size_t)c->hidden_size;
    floats = iv_size_max(floats, m->tp.ranks * (size_t)c->experts_per_token) * hidden;
    floats = iv_size_max(floats, (size_t)c->vocab_size);
    return iv_size_max(GATHERED_BYTES, floats * sizeof(float)) + (size_t)IV_RANKS_MAX * GATHERED_PIECE_BYTES;
}

/* Elements from one layer's ids to the next. */
static size_t ids_apart(const gpu_rank *r) {
    return r->m->rank == 0 ? iv_gpu_rows_max(r->g) * (size_t)r->m->config.experts_per_token : 0;
}

int32_t *iv_gpu_expert_ids(const gpu_rank *r, size_t layer) { return r->expert_ids + layer * ids_apart(r); }

static void carve_experts(gpu_rank *r, iv_carving *v, size_t t) {
    const iv_model_config *c = &r->m->config;
    size_t k = (size_t)c->experts_per_token, width = iv_dtype_bytes(r->m->dtype);
    size_t layers = r->m->rank == 0 ? (size_t)c->layers : 1;
    r->router_logits = iv_carve(v, t * (size_t)c->experts, sizeof(float));
    r->expert_ids = iv_carve(v, layers * t * k, sizeof(int32_t));
    r->expert_weights = iv_carve(v, t * k, sizeof(float));
    r->offsets = iv_carve(v, (size_t)c->experts + 1, sizeof(int32_t));
    r->expert_slots = iv_carve(v, t * k, sizeof(int32_t));
    r->expert_act = iv_carve(v, t * k * iv_gpu_expert_act_stride(r->m), width);
    r->terms = iv_carve(v, t * k * (size_t)c->hidden_size, sizeof(float));
}

size_t iv_gpu_carve(gpu_rank *r, unsigned char *base) {
    const iv_gpu_model *g = r->g;
    const iv_model *m = r->m;
    const iv_model_config *c = &m->config;
    const iv_tp_shard *shard = &m->tp.shard[m->rank];
    iv_carving v = {.base = base, .align = 1024};
    size_t t = iv_gpu_rows_max(g), hidden = (size_t)c->hidden_size, width = iv_dtype_bytes(m->dtype),
           dim = (size_t)c->head_dim;
    size_t q = shard->heads * dim, kv = shard->kv_heads * dim, act = iv_gpu_act_stride(m),
           moe = (size_t)c->moe_intermediate_size, widest = iv_size_max(q + 2 * kv, 2 * act);
    size_t nodes = iv_size_max(m->tp.out.of[m->rank].nodes, m->tp.down.of[m->rank].nodes);
    nodes = iv_size_max(nodes, 1); /* NCCL's sum needs one on a rank without nodes, too */
    iv_gpu_attention_shape shape = iv_gpu_shape_of(g, m, 0);
    size_t slice = iv_gpu_slice(g), vocab = (size_t)c->vocab_size;
    if (c->experts) widest = iv_size_max(widest, 2 * moe * (size_t)c->experts_per_token);
    r->x = iv_carve(&v, t * hidden, sizeof(float));
    r->normed = iv_carve(&v, t * iv_gpu_hidden_stride(m), width);
    r->wide = iv_carve(&v, t * widest, sizeof(float));
    r->q = iv_carve(&v, t * q + 64, width);
    r->attended = iv_carve(&v, t * q + 64, width);
    r->packed = iv_carve(&v, t * padded_stride(iv_size_max(q, act)), width);
    r->act = iv_carve(&v, t * act, width);
    r->normed_picks = iv_carve(&v, iv_gpu_pick_rows_max(g) * iv_gpu_hidden_stride(m), width);
    if (m->tp.ranks > 1) r->nodes = iv_carve(&v, 2 * nodes * t * hidden, sizeof(float)); /* attention's, down's */
    if (c->experts) carve_experts(r, &v, t);
    bool first = m->rank == 0; /* another process keeps its columns of the logits until rank 0 has gathered them */
    if (first || g->o.processes > 1) r->logits = iv_carve(&v, slice * (first ? vocab : shard->vocab), sizeof(float));
    r->attention_scratch =
        iv_carve(&v, iv_gpu_attention_scratch(&shape, t, g->o.spans_max, g->o.positions_max), shard->heads ? 1 : 0);
    r->sample_scratch = iv_carve(&v, first ? iv_gpu_sample_scratch(slice, vocab) : 0, 1);
    r->sampled = iv_carve(&v, first ? iv_gpu_picks_max(g) : 0, sizeof *r->sampled);
    r->top_logprobs = iv_carve(&v, first ? iv_gpu_picks_max(g) * IV_TOP_LOGPROBS_MAX : 0, sizeof *r->top_logprobs);
    r->ids = iv_carve(&v, first ? (vocab + 63) / 64 : 0, sizeof *r->ids);
    r->bad = iv_carve(&v, 1, sizeof *r->bad);
    r->flags = iv_carve(&v, IV_GPU_FLAG_WORDS, sizeof *r->flags);
    r->inputs = iv_carve(&v, g->inputs_capacity, 1);
    r->tables = iv_carve(&v, g->table_capacity, sizeof *r->tables);
    r->gathered = iv_carve(&v, g->o.processes > 1 ? iv_gpu_gathered_bytes(m) : 0, 1);
    return v.overflow ? SIZE_MAX : v.at;
}

/* Measured on H200s (bench/gpu/LOG.md): with two ranks, or fewer rows, all-reduces are too short to gain from it. */
size_t iv_gpu_part_rows(size_t ranks) { return ranks < 4 ? SIZE_MAX : 2048; }
