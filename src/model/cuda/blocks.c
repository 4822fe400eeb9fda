/* blocks.c: the blocks of a layer as launches on one GPU, for engines and learners. Several ops of the law share a
 * launch where that saves a pass over memory: bias, residual and SwiGLU are epilogues, the all-reduce of an engine's
 * ranks norms its result. With a tape, values that the backward pass needs stay in the layer's slot. */
#include "base/size.h"
#include "kernels/cuda/delta_backward.h"
#include "model/cuda/adapters.h"

static gpu_pass *self(iv_backend *b) { return (gpu_pass *)(void *)b; }

static iv_status embed(iv_backend *b, iv_error *err) {
    const gpu_pass *p = self(b);
    gpu_forward *f = p->f;
    iv_gpu_matrix w = iv_gpu_matrix_of(&f->embedding);
    const gpu_site *adapted = iv_gpu_site(p, iv_site_embedding(p->m));
    IV_TRY(iv_gpu_launched(f, cudaMemsetAsync(f->bad, 0xff, sizeof *f->bad, f->stream), "clearing", err));
    int code = adapted ? 0 : iv_gpu_embed(&w, p->in.ids, p->rows, p->hidden, p->m->scales.embedding, f->x, f->stream);
    if (adapted) IV_TRY(iv_gpu_adapted_embed(p, adapted, err));
    if (!code && f->embedding_norm)
        code = iv_gpu_rmsnorm(f->x, p->hidden, NULL, f->embedding_norm, (float)p->m->config.rms_norm_eps, p->rows,
                              IV_F32, f->x, p->hidden, f->stream);
    return iv_gpu_launched(f, code, "embedding", err);
}

/* ---- norms and the residual stream ------------------------------------------------------------------------------- */

/* The weights of the norm that follows, whose result goes to the tape if that keeps it. NULL: it is left to the head.
 */
static const float *next_norm(const gpu_pass *p, iv_norm n) {
    gpu_forward *f = p->f;
    if (n.kind == IV_NORM_FINAL) return f->last_norm;
    if (n.kind == IV_NORM_KEPT) return NULL;
    unsigned char *kept = f->tape ? f->tape->layers[n.layer].normed[n.kind] : NULL;
    f->normed = kept ? kept : f->own_normed;
    return n.kind == IV_NORM_ATTENTION ? f->layers[n.layer].attention_norm : f->layers[n.layer].mlp_norm;
}

static iv_status norm(iv_backend *b, iv_norm n, iv_error *err) {
    return iv_gpu_norm_rows(self(b), next_norm(self(b), n), err);
}

/* Where the residual stream goes on after a layer, and after its attention. */
static float *slot_after(const gpu_pass *p, size_t layer) {
    const gpu_tape *t = p->f->tape;
    if (!t) return p->f->x;
    return layer + 1 < (size_t)p->m->config.layers ? t->layers[layer + 1].x : t->x_end;
}

/* Where the output of a block is kept that is normed or scaled before it is added. */
static float *block_y(const gpu_pass *p, iv_norm_kind block) {
    float *kept = p->f->now->block_y[block];
    return kept ? kept : p->f->block;
}

static float *slot_after_attention(const gpu_pass *p, size_t layer) {
    return iv_gpu_keeps_mlp(p->f) ? p->f->now->x_mlp : slot_after(p, layer);
}

/* Of the residual stream at the layer's end; families that have one have a norm behind the MLP. */
static float scalar_of(const gpu_pass *p, size_t layer) {
    const float *scalar = p->m->layers[layer].scalar;
    return scalar ? *scalar : 1.0f;
}

static size_t site_of(const gpu_pass *p, size_t layer, iv_site_kind kind) {
    return iv_site(p->m, &p->m->layers[layer], kind, 0);
}

/* ---- attention --------------------------------------------------------------------------------------------- */

static const iv_tp_shard *shard_of(const gpu_pass *p, size_t layer) {
    return iv_tp_shard_of(&p->m->tp, p->m->rank, p->m->layers[layer].config->wide);
}

static iv_status qkv(iv_backend *b, size_t layer, iv_error *err) {
    const gpu_pass *all = self(b);
    gpu_forward *f = all->f;
    const iv_matrix *w = &all->m->layers[layer].qkv;
    if (f->tape) f->now = &f->tape->layers[layer];
    for (size_t i = 0; w->n && i < all->microsteps; i++) {
        gpu_pass p = iv_gpu_microstep(all, i);
        iv_gpu_linear_args a = iv_gpu_layer_args(&p, w, iv_gpu_rows_at(&p, f->normed, p.stride), p.stride);
        a.bias = f->layers[layer].qkv_bias, a.out = f->wide + p.first * w->n, a.out_stride = w->n;
        IV_TRY(iv_gpu_after_allreduce(&p, err));
        IV_TRY(iv_gpu_product(&p, site_of(&p, layer, IV_SITE_QKV), false, &a, "qkv", err));
    }
    return IV_OK;
}

static iv_status rope_kv(iv_backend *b, size_t layer, iv_error *err) {
    const gpu_pass *p = self(b);
    gpu_forward *f = p->f;
    const layer_vectors *v = &f->layers[layer];
    bool keeps = iv_gpu_keeps_attention(f);
    if (!shard_of(p, layer)->heads) return IV_OK;
    if (p->m->config.kv_rank) return iv_gpu_latent_inputs(p, layer, err);
    if (p->m->config.qk_norm_whole) {
        int code =
            iv_gpu_head_factors(f->wide, p->rows, shard_of(p, layer)->heads, shard_of(p, layer)->kv_heads,
                                (size_t)p->m->config.head_dim, (float)p->m->config.rms_norm_eps, f->factors, f->stream);
        IV_TRY(iv_gpu_launched(f, code, "norm over all heads", err));
    }
    iv_gpu_rotate_args rotate = {.qkv = f->wide,
                                 .qkv_stride = p->m->layers[layer].qkv.n,
                                 .rows = p->rows,
                                 .heads = shard_of(p, layer)->heads,
                                 .q_norm = v->q_norm,
                                 .k_norm = v->k_norm,
                                 .factors = p->m->config.qk_norm_whole ? f->factors : NULL,
                                 .norms_behind = p->m->config.qk_norm_behind,
                                 .values_are_keys = p->m->layers[layer].config->values_are_keys,
                                 .value_norm = p->m->config.value_norm,
                                 .eps = (float)p->m->config.rms_norm_eps,
                                 .cosine = v->cosine,
                                 .sine = v->sine,
                                 .query = v->query,
                                 .positions = p->in.positions,
                                 .slots = p->in.slots + p->m->kv_place[layer].group * p->in.slots_apart,
                                 .kv = iv_gpu_kv_of(p, layer),
                                 .q = f->now->q,
                                 .q_raw = keeps ? f->now->q_raw : NULL,
                                 .k_raw = keeps ? f->now->k_raw : NULL,
                                 .bad = f->bad,
                                 .layer = (uint32_t)layer};
    return iv_gpu_launched(f, iv_gpu_rotate(&rotate, f->stream), "rotation", err);
}

static iv_status attention(iv_backend *b, size_t layer, iv_error *err) {
    const gpu_pass *p = self(b);
    gpu_forward *f = p->f;
    int64_t window = p->m->layers[layer].config->window;
    if (!shard_of(p, layer)->heads) return IV_OK;
    iv_gpu_attention_args a = {
        .shape = iv_gpu_shape_of(p->m, f->arithmetic, window),
        .kv = iv_gpu_kv_of(p, layer),
        .scale_log2e = p->m->scales.score_log2e,
        .score_inner = p->m->scales.score_inner,
        .sinks = f->layers[layer].sinks,
        .q = f->now->q,
        .out = f->now->attended,
        .lse2 = iv_gpu_keeps_attention(f) ? f->now->lse2 : NULL,
        .plan = window ? p->in.window_plan : p->in.plan,
        .spans = p->in.spans,
        .tables = p->in.tables + p->m->kv_place[layer].group * p->in.tables_apart,
        .scratch = f->attention_scratch,
        .decode = p->in.decode,
        .sms = f->sms,
        .rows = p->rows,
    };
    if (p->m->config.kv_rank) return iv_gpu_latent_attend(p, layer, &a, err);
    IV_TRY(iv_gpu_launched(f, iv_gpu_attention(&a, f->stream), "attention", err));
    size_t q = a.shape.heads * a.shape.head_dim, row = p->m->layers[layer].qkv.n;
    if (p->m->layers[layer].config->attention_gate) {
        const float *gate = f->wide + row - q;
        int code = f->now->raw ? iv_gpu_attention_gate_tape(gate, row, p->rows, q, p->m->gemm_type, a.out, f->now->raw,
                                                            f->now->raw_gate, f->stream)
                               : iv_gpu_attention_gate(gate, row, p->rows, q, p->m->gemm_type, a.out, f->stream);
        IV_TRY(iv_gpu_launched(f, code, "gate of attention", err));
    }
    /* no sequence writes padding */
    return iv_gpu_clear_padding(p, f->now->attended, q, iv_dtype_bytes(p->m->gemm_type), err);
}

static iv_status attention_out(iv_backend *b, size_t layer, iv_norm next, iv_error *err) {
    const gpu_pass *all = self(b);
    gpu_forward *f = all->f;
    size_t first, n;
    bool attends = all->m->layers[layer].config->mixer == IV_MIXER_ATTENTION;
    iv_tp_mixer_columns(&all->m->tp, &all->m->config, all->m->rank, layer, &first, &n);
    gpu_row_parallel out = {.cuts = attends ? iv_tp_out(&all->m->tp, all->m->layers[layer].config->wide)
                                            : &all->m->tp.mixer_out,
                            .nodes = all->m->layers[layer].out,
                            .bias = f->layers[layer].out_bias,
                            .x = f->now->attended,
                            .x_stride = n,
                            .x_first = first,
                            .site = site_of(all, layer, IV_SITE_OUT),
                            .to = slot_after_attention(all, layer),
                            .post_norm = f->layers[layer].attention_post_norm,
                            .y = block_y(all, IV_NORM_ATTENTION),
                            .norm = next_norm(all, next)};
    for (size_t i = 0; i < all->microsteps; i++) {
        gpu_pass p = iv_gpu_microstep(all, i);
        IV_TRY(iv_gpu_row_parallel(&p, &out, err));
    }
    return IV_OK;
}

/* ---- MLP --------------------------------------------------------------------------------------------------- */

static iv_status pace(const gpu_pass *p, size_t layer, iv_error *err) {
    return p->f->transport.pace ? p->f->transport.pace(p, layer, err) : IV_OK;
}

/* gate and up of a microstep's rows. */
static iv_status activate(const gpu_pass *p, size_t layer, size_t stride, iv_error *err) {
    gpu_forward *f = p->f;
    const iv_matrix *w = &p->m->layers[layer].experts->gate_up;
    iv_gpu_linear_args a = iv_gpu_layer_args(p, w, iv_gpu_rows_at(p, f->normed, p->stride), p->stride);
    a.bias = f->layers[layer].gate_up_bias;
    IV_TRY(iv_gpu_after_allreduce(p, err));
    const iv_activation activation = iv_layer_activation(&p->m->layers[layer], p->m->layers[layer].experts);
    IV_TRY(iv_gpu_gate_up(p, site_of(p, layer, IV_SITE_UP), &activation, &a, w, p->rows,
                          iv_gpu_rows_at(p, f->now->act, stride), stride, (iv_gpu_row_scales){0}, NULL, err));
    if (!iv_gpu_keeps_mlp(f)) return IV_OK;
    return iv_gpu_clear_padding(p, f->now->act, stride, iv_dtype_bytes(p->m->gemm_type), err);
}

static iv_status mlp(iv_backend *b, size_t layer, iv_norm next, iv_error *err) {
    const gpu_pass *all = self(b);
    gpu_forward *f = all->f;
    size_t stride = iv_gpu_act_stride(all->m);
    gpu_row_parallel down = {.cuts = &all->m->tp.down,
                             .nodes = all->m->layers[layer].experts->down,
                             .bias = f->layers[layer].down_bias,
                             .x = f->now->act,
                             .x_stride = stride,
                             .x_first = all->m->tp.down.of[all->m->rank].first,
                             .site = site_of(all, layer, IV_SITE_DOWN),
                             .to = slot_after(all, layer),
                             .post_norm = f->layers[layer].mlp_post_norm,
                             .y = block_y(all, IV_NORM_MLP),
                             .after = scalar_of(all, layer),
                             .second = true};
    for (size_t i = 0; i < all->microsteps; i++) {
        gpu_pass p = iv_gpu_microstep(all, i);
        IV_TRY(activate(&p, layer, stride, err));
        if (iv_gpu_ends_at_act(f, layer)) return IV_OK;
        down.norm = next_norm(all, next); /* after gate and up have read the norm before */
        IV_TRY(iv_gpu_row_parallel(&p, &down, err));
    }
    return pace(all, layer, err);
}

static iv_status experts(iv_backend *b, size_t layer, iv_norm next, iv_error *err) {
    const gpu_pass *p = self(b);
    gpu_forward *f = p->f;
    const float *post_norm = f->layers[layer].mlp_post_norm;
    float *x = f->x, *y = block_y(p, IV_NORM_MLP), *to = slot_after(p, layer);
    bool ends = iv_gpu_ends_at_act(f, layer), buffered = !ends && !iv_gpu_adds_plainly(p, post_norm);
    if (buffered) {
        int code = cudaMemsetAsync(y, 0, p->rows * p->hidden * sizeof *y, f->stream);
        IV_TRY(iv_gpu_launched(f, code, "clearing", err));
        f->x = y;
    } else if (f->tape && !ends) {
        IV_TRY(iv_gpu_move_stream(p, to, err));
    }
    IV_TRY(iv_gpu_expert_block(p, layer, err));
    if (p->m->config.shared_intermediate_size) IV_TRY(iv_gpu_shared_expert(p, layer, err));
    if (ends) return IV_OK;
    f->x = buffered ? x : f->x;
    if (buffered) IV_TRY(iv_gpu_add_block(p, y, post_norm, scalar_of(p, layer), to, err));
    IV_TRY(norm(b, next, err));
    return pace(p, layer, err);
}

const iv_backend_ops iv_gpu_forward_ops = {.embed = embed,
                                           .norm = norm,
                                           .qkv = qkv,
                                           .rope_kv = rope_kv,
                                           .recurrent = iv_gpu_recurrent,
                                           .attention = attention,
                                           .attention_out = attention_out,
                                           .mlp = mlp,
                                           .experts = experts};
