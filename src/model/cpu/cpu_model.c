/* cpu_model.c: the memory of a CPU's rank, and its step. */
#include "model/cpu/cpu_model.h"
#include "base/carve.h"
#include "device/memory.h"
#include "kernels/head_products.h"
#include "kernels/linear.h"
#include "model/cpu/product.h"
#include "model/decoder.h"

#include <stdlib.h>

/* The widths of this rank's activations. */
typedef struct widths {
    size_t q, kv, intermediate, mixed, attended; /* mixed: of the projection before a mixer */
    size_t still, rows;                          /* of latent attention; else 0 */
} widths;

static size_t widest_mlp(const iv_model *m) {
    return iv_size_max(iv_size_max(m->tp.down.of[m->rank].k, m->tp.shared.of[m->rank].k),
                       (size_t)m->config.moe_intermediate_size);
}

static widths latent_widths(const iv_model *m, size_t mixed) {
    const iv_model_config *c = &m->config;
    size_t heads = m->tp.shard[m->rank].heads, rank = (size_t)c->kv_rank, turns = (size_t)c->rope_dim;
    return (widths){.q = heads * (rank + turns),
                    .mixed = iv_size_max(mixed, heads * (size_t)c->head_dim),
                    .attended = heads * (size_t)c->value_dim,
                    .intermediate = widest_mlp(m),
                    .still = heads * ((size_t)c->head_dim - turns),
                    .rows = heads * rank};
}

static widths widths_of(const iv_model *m) {
    const iv_tp_shard *s = &m->tp.shard[m->rank], *w = &m->tp.wide[m->rank];
    size_t dim = (size_t)m->config.head_dim, wide = (size_t)m->config.wide_head_dim;
    const iv_delta_layout *d = &m->delta_layout;
    size_t q = iv_size_max(s->heads * dim, w->heads * wide), mixed = d->width;
    size_t attended = d->value_heads ? d->value_heads * d->value_dim : d->channels;
    for (int64_t l = 0; l < m->config.layers; l++) mixed = iv_size_max(mixed, iv_cpu_mixer_row(m, &m->layers[l]));
    if (m->config.kv_rank) return latent_widths(m, mixed);
    return (widths){.q = q, .mixed = mixed, .attended = iv_size_max(q, attended), .intermediate = widest_mlp(m)};
}

static void carve_all(iv_cpu_model *s, iv_carving *v) {
    const iv_model_config *c = &s->model->config;
    widths w = widths_of(s->model);
    size_t t = s->tokens_max, hidden = (size_t)c->hidden_size, width = iv_dtype_bytes(s->model->gemm_type);
    size_t k = (size_t)c->experts_per_token, ranks = s->model->tp.ranks;
    const iv_delta_layout *d = &s->model->delta_layout;
    size_t linear = 0, attention = 0, total = 0, one = 0;
    size_t inputs = iv_size_max(iv_size_max(hidden, (size_t)c->q_rank), iv_size_max(w.attended, w.intermediate));
    if (d->value_heads && !iv_delta_scratch(d, &attention)) v->overflow = true;
    for (size_t g = 0; g < s->model->kv_groups.count; g++, attention = iv_size_max(attention, one))
        if (!iv_attention_scratch(&s->model->kv_layout[g], &one)) v->overflow = true, one = 0;
    if (c->kv_rank) attention = iv_size_max(attention, iv_head_products_scratch((size_t)(c->kv_rank + c->head_dim)));
    if (!iv_linear_scratch(t, inputs, &linear) || !iv_size_mul(attention, iv_pool_threads(s->compute.pool), &total))
        v->overflow = true;
    s->compute.scratch_bytes = iv_size_max(linear, total);
    s->compute.scratch = iv_carve(v, s->compute.scratch_bytes, 1);
    if (s->model->packed) {
        s->compute.widened_bytes = iv_padded_k(inputs) * IV_PANEL_COLUMNS * width;
        s->compute.widened = iv_carve(v, s->compute.widened_bytes * (iv_pool_threads(s->compute.pool)), 1);
    }
    s->x = iv_carve(v, t * hidden, sizeof(float));
    s->normed = iv_carve(v, t * hidden, width);
    if (iv_config_buffers_blocks(c)) s->block = iv_carve(v, t * hidden, sizeof(float));
    if (c->layer_norm) s->centered = iv_carve(v, t * hidden, sizeof(float));
    for (int i = 0; i < 2 && c->expert_norms; i++) s->sums[i] = iv_carve(v, t * hidden, sizeof(float));
    s->wide = iv_carve(v, t * iv_size_max(w.mixed, iv_size_max(2 * w.intermediate, hidden)), sizeof(float));
    s->q = iv_carve(v, t * w.q, width);
    s->attended = iv_carve(v, t * w.attended, width);
    if (c->kv_rank) {
        s->latent.low = iv_carve(v, t * (size_t)c->q_rank, width);
        s->latent.still = iv_carve(v, t * w.still, width);
        s->latent.rows = iv_carve(v, t * w.rows, width);
    }
    if (c->scan_norm != IV_SCAN_NORM_NONE) s->scan_sums = iv_carve(v, t * d->value_heads, sizeof(float));
    if (d->channels) {
        s->delta_inputs = iv_carve(v, t * d->channels, width);
        s->delta_qk = iv_carve(v, t * 2 * d->keys, width);
    }
    s->act = s->act_memory = iv_carve(v, t * w.intermediate, width);
    if (c->qk_norm_whole) {
        const iv_tp_shard *shard = &s->model->tp.shard[s->model->rank];
        s->head_sums = iv_carve(v, t * (shard->heads + shard->kv_heads), sizeof(float));
        s->head_means = iv_carve(v, t * 2, sizeof(float));
    }
    if (ranks > 1) {
        if (!iv_tp_gather_bytes(s, &s->part_bytes)) v->overflow = true;
        for (int i = 0; i < 2; i++) s->parts[i] = iv_carve(v, s->part_bytes, 1);
        if (s->model->terms) s->magnitudes = iv_carve(v, t, sizeof *s->magnitudes);
    }
    if (k == 0) return;
    s->router_logits = iv_carve(v, t * ((size_t)c->experts + 1), sizeof(float));
    s->expert_ids = iv_carve(v, t * k, sizeof(int32_t));
    s->expert_weights = iv_carve(v, t * k, sizeof(float));
    s->terms = iv_carve(v, t * k * hidden, sizeof(float));
    s->gathered = iv_carve(v, t * hidden, width);
    s->expert_rows = iv_carve(v, t * 2, sizeof(uint32_t));
    s->node_counts = iv_carve(v, ranks * (t + 1), sizeof(uint32_t));
}

iv_status iv_cpu_model_open(const iv_model *m, const iv_kernels *kernels, iv_arithmetic arithmetic, iv_pool *pool,
                            size_t tokens_max, iv_cpu_model **out, iv_error *err) {
    if (arithmetic == IV_TC16 && m->gemm_type == IV_F32)
        return iv_fail(err, IV_UNSUPPORTED, "arithmetic tc16: wanted dtype bfloat16 or float16, found float32");
    if (tokens_max == 0 || tokens_max > SIZE_MAX >> 32)
        return iv_fail(err, IV_INVALID, "tokens in a step: wanted 1 to 2^32, found %zu", tokens_max);
    iv_cpu_model *s = calloc(1, sizeof *s);
    if (!s) return iv_fail(err, IV_NO_MEMORY, "forward: no memory");
    s->backend.ops = &iv_cpu_ops, s->model = m, s->tokens_max = tokens_max;
    s->compute = (iv_compute){.kernels = kernels, .arithmetic = arithmetic, .pool = pool};
    iv_carving v = {.align = 64};
    carve_all(s, &v);
    s->data_bytes = v.at;
    if (!v.overflow) s->data = iv_memory_alloc(s->data_bytes);
    if (!s->data) {
        free(s);
        return iv_fail(err, IV_NO_MEMORY, "forward: no memory for steps of %zu tokens", tokens_max);
    }
    v = (iv_carving){.base = s->data, .align = 64};
    carve_all(s, &v);
    *out = s;
    return IV_OK;
}

void iv_cpu_model_close(iv_cpu_model *s) {
    if (!s) return;
    iv_cpu_adapted_free(s->adapted);
    iv_memory_free(s->data, s->data_bytes);
    free(s);
}

iv_status iv_cpu_model_forward(iv_cpu_model *s, const iv_batch *b, iv_error *err) {
    const iv_model *m = s->model;
    IV_ASSERT(b->tokens > 0 && b->tokens <= s->tokens_max && b->logit_count <= b->tokens);
    IV_ASSERT((s->comm ? s->comm->size : 1) == m->tp.ranks);
    for (size_t i = 0; i < b->tokens; i++) IV_ASSERT(b->ids[i] >= 0 && b->ids[i] < m->config.vocab_size);
    for (size_t i = 0; i < b->span_count; i++)
        IV_ASSERT((size_t)b->spans[i].position + b->spans[i].rows <= m->rope_positions);
    s->batch = b;
    iv_cpu_note_adapters(s);
    atomic_store(&s->bad_span, SIZE_MAX);
    return iv_decoder_forward(m, &s->backend, err);
}
