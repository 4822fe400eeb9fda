/* blocks.c: the blocks of a layer as launches on one GPU. Several ops of the law share a launch where that saves a pass
 * over memory: bias, residual and SwiGLU are epilogues, the all-reduce of the ranks norms its result. */
#include "base/size.h"
#include "model/cuda/pass.h"
#include "model/decoder.h"

static gpu_pass *self(iv_backend *b) { return (gpu_pass *)(void *)b; }

static iv_status embed(iv_backend *b, iv_error *err) {
    const gpu_pass *p = self(b);
    gpu_rank *r = p->r;
    const iv_matrix *e = &r->embedding;
    iv_gpu_matrix w = {.type = e->type, .n = e->n, .k_padded = e->k_padded, .leaves = e->leaves, .data = e->data};
    IV_TRY(iv_gpu_launched(r, cudaMemsetAsync(r->bad, 0xff, sizeof *r->bad, r->stream), "clearing", err));
    int code =
        iv_gpu_embed(&w, (const int32_t *)(void *)(r->inputs + p->s->at.ids), p->rows, p->hidden, r->x, r->stream);
    return iv_gpu_launched(r, code, "embedding", err);
}

/* NULL: the norm is left to `head`. With several ranks, x may be complete for the rank's own rows alone, and the last
 * all-reduce brings the final norm of all rows. */
static const float *norm_weight(const gpu_pass *p, iv_norm n) {
    if (n.kind == IV_NORM_FINAL) return p->m->tp.ranks > 1 ? p->r->final_norm : NULL;
    const layer_vectors *v = &p->r->layers[n.layer];
    return n.kind == IV_NORM_ATTENTION ? v->attention_norm : v->mlp_norm;
}

static iv_status norm(iv_backend *b, iv_norm n, iv_error *err) {
    return iv_gpu_norm_rows(self(b), norm_weight(self(b), n), err);
}

/* ---- attention --------------------------------------------------------------------------------------------- */

static const iv_tp_shard *shard_of(const gpu_pass *p) { return &p->m->tp.shard[p->m->rank]; }

static iv_gpu_kv kv_of(const gpu_pass *p, size_t layer) {
    const gpu_rank *r = p->r;
    return (iv_gpu_kv){p->m->dtype, shard_of(p)->kv_heads, (size_t)p->m->config.head_dim,
                       r->kv + layer * r->kv_layer_bytes, r->g->o.pages};
}

static iv_status qkv(iv_backend *b, size_t layer, iv_error *err) {
    const gpu_pass *all = self(b);
    const iv_matrix *w = &all->m->layers[layer].qkv;
    for (size_t i = 0; shard_of(all)->heads && i < all->parts; i++) {
        gpu_pass p = iv_gpu_part_of(all, i);
        iv_gpu_linear_args a = iv_gpu_layer_args(&p, w, iv_gpu_rows_at(&p, p.r->normed, p.stride), p.stride);
        a.bias = p.r->layers[layer].qkv_bias, a.out = p.r->wide + p.first * w->n, a.out_stride = w->n;
        IV_TRY(iv_gpu_after_allreduce(&p, err));
        IV_TRY(iv_gpu_launched(p.r, p.r->linear(p.r, &a), "qkv", err));
    }
    return IV_OK;
}

static iv_status rope_kv(iv_backend *b, size_t layer, iv_error *err) {
    const gpu_pass *p = self(b);
    gpu_rank *r = p->r;
    const layer_vectors *v = &r->layers[layer];
    if (!shard_of(p)->heads) return IV_OK;
    iv_gpu_rotate_args rotate = {.qkv = r->wide,
                                 .rows = p->rows,
                                 .heads = shard_of(p)->heads,
                                 .q_norm = v->q_norm,
                                 .k_norm = v->k_norm,
                                 .eps = (float)p->m->config.rms_norm_eps,
                                 .cosine = r->cosine,
                                 .sine = r->sine,
                                 .positions = (const int32_t *)(void *)(r->inputs + p->s->at.positions),
                                 .slots = (const int64_t *)(void *)(r->inputs + p->s->at.slots),
                                 .kv = kv_of(p, layer),
                                 .q = r->q,
                                 .bad = r->bad,
                                 .layer = (uint32_t)layer};
    return iv_gpu_launched(r, iv_gpu_rotate(&rotate, r->stream), "rotation", err);
}

static iv_status attention(iv_backend *b, size_t layer, iv_error *err) {
    const gpu_pass *p = self(b);
    gpu_rank *r = p->r;
    int64_t window = p->m->layers[layer].window;
    if (!shard_of(p)->heads) return IV_OK;
    iv_gpu_attention_args a = {
        .shape = iv_gpu_shape_of(r->g, p->m, window),
        .kv = kv_of(p, layer),
        .scale_log2e = p->m->scale_log2e,
        .q = r->q,
        .out = r->attended,
        .plan = r->inputs + (window ? p->s->at.window_plan : p->s->at.plan),
        .spans = (const iv_gpu_span *)(void *)(r->inputs + p->s->at.spans),
        .tables = r->tables,
        .scratch = r->attention_scratch,
        .decode = p->s->decode,
        .sms = r->g->sms,
        .rows = p->rows,
    };
    return iv_gpu_launched(r, iv_gpu_attention(&a, r->stream), "attention", err);
}

static iv_status attention_out(iv_backend *b, size_t layer, iv_norm next, iv_error *err) {
    const gpu_pass *all = self(b);
    gpu_rank *r = all->r;
    size_t dim = (size_t)all->m->config.head_dim;
    gpu_row_parallel out = {.cuts = &all->m->tp.out,
                            .nodes = all->m->layers[layer].out,
                            .bias = r->layers[layer].out_bias,
                            .x = r->attended,
                            .x_stride = shard_of(all)->heads * dim,
                            .x_first = shard_of(all)->head_first * dim,
                            .norm = norm_weight(all, next)};
    for (size_t i = 0; i < all->parts; i++) {
        gpu_pass p = iv_gpu_part_of(all, i);
        IV_TRY(r->transport.row_parallel(&p, &out, err));
    }
    return IV_OK;
}

/* ---- MLP --------------------------------------------------------------------------------------------------- */

static iv_status mlp_part(const gpu_pass *p, size_t layer, const float *next, iv_error *err) {
    const iv_mlp *w = p->m->layers[layer].experts;
    const layer_vectors *v = &p->r->layers[layer];
    size_t stride = iv_gpu_act_stride(p->m);
    iv_gpu_linear_args a = iv_gpu_layer_args(p, &w->gate_up, iv_gpu_rows_at(p, p->r->normed, p->stride), p->stride);
    a.bias = v->gate_up_bias;
    IV_TRY(iv_gpu_after_allreduce(p, err));
    IV_TRY(iv_gpu_gate_up(p, &a, &w->gate_up, p->rows, iv_gpu_rows_at(p, p->r->act, stride), stride, err));
    return p->r->transport.row_parallel(p,
                                        &(gpu_row_parallel){.cuts = &p->m->tp.down,
                                                            .nodes = w->down,
                                                            .bias = v->down_bias,
                                                            .x = p->r->act,
                                                            .x_stride = stride,
                                                            .x_first = p->m->tp.down.of[p->m->rank].first,
                                                            .norm = next,
                                                            .second = true},
                                        err);
}

static iv_status mlp(iv_backend *b, size_t layer, iv_norm next, iv_error *err) {
    const gpu_pass *all = self(b);
    for (size_t i = 0; i < all->parts; i++) {
        gpu_pass p = iv_gpu_part_of(all, i);
        IV_TRY(mlp_part(&p, layer, norm_weight(all, next), err));
    }
    return iv_gpu_pace(all->r, layer, err);
}

static iv_status experts(iv_backend *b, size_t layer, iv_norm next, iv_error *err) {
    const gpu_pass *p = self(b);
    IV_TRY(iv_gpu_expert_block(p, layer, norm_weight(p, next), err));
    return iv_gpu_pace(p->r, layer, err);
}

/* ---- head -------------------------------------------------------------------------------------------------- */

/* The head over n picked rows. Every rank writes its columns into rank 0's logits if it reaches them. */
static iv_status head_rows(const gpu_pass *p, size_t first, size_t n, iv_error *err) {
    gpu_rank *r = p->r;
    const int32_t *pick = (const int32_t *)(void *)(r->inputs + p->s->at.pick) + first;
    size_t vocab = (size_t)p->m->config.vocab_size;
    int code = p->m->tp.ranks > 1 /* the last all-reduce has normed all rows */
                   ? iv_gpu_pick_rows(p->m->dtype, r->normed, p->stride, pick, n, r->normed_picks, r->stream)
                   : iv_gpu_rmsnorm(r->x, p->hidden, pick, r->final_norm, (float)p->m->config.rms_norm_eps, n,
                                    p->m->dtype, r->normed_picks, p->stride, r->stream);
    IV_TRY(iv_gpu_launched(r, code, "final norm", err));
    if (p->m->head.n) {
        gpu_pass picks = *p;
        picks.rows = n;
        iv_gpu_linear_args a = iv_gpu_layer_args(&picks, &p->m->head, r->normed_picks, p->stride);
        a.x_rows = iv_gpu_pick_rows_max(r->g);
        a.out = r->g->rank[0].logits + shard_of(p)->vocab_first, a.out_stride = vocab;
        if (r->g->o.processes > 1 && p->m->rank > 0) a.out = r->logits, a.out_stride = p->m->head.n;
        IV_TRY(iv_gpu_launched(r, r->linear(r, &a), "head", err));
    }
    return r->transport.logits(p, n, err);
}

/* Samples and scores the picked rows, a slice of the logits at a time, the first slice last: the host may want its
 * logits. No rank overwrites a slice before rank 0 has finished with it. */
static iv_status sample_slices(const gpu_pass *p, iv_error *err) {
    gpu_rank *r = p->r;
    const iv_row_sampling *sampling = (const iv_row_sampling *)(void *)(r->inputs + p->s->at.sampling);
    size_t vocab = (size_t)p->m->config.vocab_size, slice = iv_gpu_slice(r->g), pieces = (size_t)p->m->config.layers;
    for (size_t first = (p->s->picks - 1) / slice * slice;; first -= slice) {
        size_t n = iv_size_min(slice, p->s->picks - first);
        IV_TRY(head_rows(p, first, n, err));
        IV_TRY(r->transport.barrier(p, err));
        if (p->m->rank == 0) {
            int code = iv_gpu_sample(r->logits, n, vocab, r->ids, sampling + first, r->sample_scratch, r->sampled + first,
                                     r->top_logprobs + first * IV_TOP_LOGPROBS_MAX, r->stream);
            IV_TRY(iv_gpu_launched(r, code, "sampling", err));
        }
        if (first == 0) return IV_OK;
        IV_TRY(r->transport.barrier(p, err));
        IV_TRY(iv_gpu_pace(r, pieces++, err));
    }
}

static iv_status head(iv_backend *b, iv_error *err) {
    gpu_pass *p = self(b);
    for (size_t i = 0; i < p->parts; i++) {
        gpu_pass part = iv_gpu_part_of(p, i);
        IV_TRY(iv_gpu_after_allreduce(&part, err));
    }
    p->parts = 1;
    return p->s->picks ? sample_slices(p, err) : IV_OK;
}

static const iv_backend_ops ops = {.embed = embed,
                                   .norm = norm,
                                   .qkv = qkv,
                                   .rope_kv = rope_kv,
                                   .attention = attention,
                                   .attention_out = attention_out,
                                   .mlp = mlp,
                                   .experts = experts,
                                   .head = head};

iv_status iv_gpu_launch_step(gpu_rank *r, const gpu_step *s, iv_error *err) {
    gpu_pass p = {.backend = {&ops},
                  .r = r,
                  .m = r->m,
                  .s = s,
                  .rows = s->rows,
                  .hidden = (size_t)r->m->config.hidden_size,
                  .stride = iv_gpu_hidden_stride(r->m),
                  .parts = 1};
    p.parts = iv_gpu_part_count(&p);
    return iv_decoder_forward(r->m, &p.backend, err);
}
