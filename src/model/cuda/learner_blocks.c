/* learner_blocks.c: the forward ops of a learner on a GPU: the launches of blocks.c, and what the backward pass needs.
 * With a tape, the residual stream moves from slot to slot, so that each keeps the layer's input. */
#include "base/size.h"
#include "model/cuda/learner_state.h"

iv_gpu_kv iv_gpu_learner_kv(const gpu_learner *l) {
    size_t layer = l->recompute == IV_RECOMPUTE_NONE ? (size_t)(l->now - l->tape) : 0;
    return (iv_gpu_kv){l->m->dtype, l->kv_heads, (size_t)l->m->config.head_dim, l->kv_pages + layer * l->kv_layer_bytes,
                       l->pages_max};
}

static iv_status embed(iv_backend *b, iv_error *err) {
    gpu_learner *l = iv_gpu_learner_of(b);
    const iv_matrix *e = &l->names->embedding; /* rank 0's, which the others reach */
    iv_gpu_matrix w = {.type = e->type, .n = e->n, .k_padded = e->k_padded, .leaves = e->leaves, .data = e->data};
    l->now = l->tape, l->x = l->now->x;
    IV_TRY(iv_gpu_learner_launched(l, cudaMemsetAsync(l->bad, 0xff, sizeof *l->bad, l->stream), "clearing", err));
    return iv_gpu_learner_launched(l, iv_gpu_embed(&w, l->on.ids, l->n.rows, l->h, l->x, l->stream), "embedding", err);
}

static iv_status norm(iv_backend *b, iv_norm n, iv_error *err) {
    gpu_learner *l = iv_gpu_learner_of(b);
    if (n.kind == IV_NORM_FINAL) return IV_OK; /* the head norms the rows that it needs */
    const iv_layer_tensors *t = iv_gpu_learner_names(l, n.layer);
    const float *weight = iv_gpu_learner_vector(l, n.kind == IV_NORM_ATTENTION ? t->attention_norm : t->mlp_norm);
    unsigned char *kept = l->taped ? l->tape[n.layer].normed[n.kind] : NULL;
    l->normed = kept ? kept : l->normed_again;
    int code = iv_gpu_rmsnorm(l->x, l->h, NULL, weight, (float)l->m->config.rms_norm_eps, l->n.rows, l->m->dtype,
                              l->normed, l->h_stride, l->stream);
    return iv_gpu_learner_launched(l, code, "norm", err);
}

/* The slot after a layer's: the next layer's input, or the end. */
static float *slot_after(const gpu_learner *l, size_t layer) {
    return layer + 1 < (size_t)l->m->config.layers ? l->tape[layer + 1].x : l->x_end;
}

/* The stream goes on in another slot. */
static iv_status move_to(gpu_learner *l, float *slot, iv_error *err) {
    if (l->x == slot) return IV_OK;
    int code = cudaMemcpyAsync(slot, l->x, l->n.rows * l->h * sizeof *slot, cudaMemcpyDeviceToDevice, l->stream);
    l->x = slot;
    return iv_gpu_learner_launched(l, code, "copy of the residual stream", err);
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

static int copy_bias(const gpu_learner *l, const iv_tensor *t, size_t first, size_t n, size_t *at) {
    int code = cudaMemcpyAsync(l->bias + *at, iv_gpu_learner_vector(l, t) + first, n * sizeof *l->bias,
                               cudaMemcpyDeviceToDevice, l->stream);
    *at += n;
    return code;
}

static iv_status qkv(iv_backend *b, size_t layer, iv_error *err) {
    gpu_learner *l = iv_gpu_learner_of(b);
    const iv_matrix *w = &l->m->layers[layer].qkv;
    const iv_layer_tensors *t = iv_gpu_learner_names(l, layer);
    l->now = &l->tape[l->taped ? layer : 0];
    iv_gpu_linear_args a = iv_gpu_learner_linear(l, w, l->normed, l->h_stride, l->n.rows);
    a.out = l->wide, a.out_stride = w->n;
    if (t->q_bias) {
        size_t at = 0, dim = (size_t)l->m->config.head_dim, kv = l->shard->kv_head_first * dim;
        int code = copy_bias(l, t->q_bias, l->shard->head_first * dim, l->q, &at);
        if (!code) code = copy_bias(l, t->k_bias, kv, l->kv, &at);
        if (!code) code = copy_bias(l, t->v_bias, kv, l->kv, &at);
        IV_TRY(iv_gpu_learner_launched(l, code, "biases", err));
        a.bias = l->bias;
    }
    return iv_gpu_learner_launched(l, iv_gpu_linear(&a, l->stream), "qkv", err);
}

static iv_status rope_kv(iv_backend *b, size_t layer, iv_error *err) {
    gpu_learner *l = iv_gpu_learner_of(b);
    const iv_layer_tensors *t = iv_gpu_learner_names(l, layer);
    bool keeps = iv_gpu_learner_keeps_attention(l);
    iv_gpu_rotate_args rotate = {.qkv = l->wide,
                                 .rows = l->n.rows,
                                 .heads = l->heads,
                                 .q_norm = iv_gpu_learner_vector(l, t->q_norm),
                                 .k_norm = iv_gpu_learner_vector(l, t->k_norm),
                                 .eps = (float)l->m->config.rms_norm_eps,
                                 .cosine = l->cosine,
                                 .sine = l->sine,
                                 .positions = l->on.positions,
                                 .slots = l->on.slots,
                                 .kv = iv_gpu_learner_kv(l),
                                 .q = l->now->q,
                                 .q_raw = keeps ? l->now->q_raw : NULL,
                                 .k_raw = keeps ? l->now->k_raw : NULL,
                                 .bad = l->bad,
                                 .layer = (uint32_t)layer};
    return iv_gpu_learner_launched(l, iv_gpu_rotate(&rotate, l->stream), "rotation", err);
}

static iv_status attention(iv_backend *b, size_t layer, iv_error *err) {
    gpu_learner *l = iv_gpu_learner_of(b);
    int64_t window = l->m->layers[layer].window;
    iv_gpu_attention_args a = {.shape = iv_gpu_learner_shape(l, window),
                               .kv = iv_gpu_learner_kv(l),
                               .scale_log2e = l->m->scale_log2e,
                               .q = l->now->q,
                               .out = l->now->attended,
                               .lse2 = iv_gpu_learner_keeps_attention(l) ? l->now->lse2 : NULL,
                               .plan = window ? l->on.window_plan : l->on.plan,
                               .spans = l->on.spans,
                               .tables = l->on.tables,
                               .scratch = l->attention_scratch,
                               .sms = l->sms,
                               .rows = l->n.rows};
    IV_TRY(iv_gpu_learner_launched(l, iv_gpu_attention(&a, l->stream), "attention", err));
    return iv_gpu_learner_clear(l, l->now->attended, l->q, l->width, err); /* no sequence writes them */
}

/* Columns [column, column + k) of x as a node takes them: in place if they are aligned, else copied. */
static iv_status node_inputs(gpu_learner *l, const void **x, size_t *stride, size_t column, size_t k, iv_error *err) {
    const void *from = (const unsigned char *)*x + column * l->width;
    if (column * l->width % 16 == 0 && *stride * l->width % 16 == 0 && k % IV_CHAIN_STEP == 0) {
        *x = from;
        return IV_OK;
    }
    int code =
        iv_gpu_copy_columns(l->m->dtype, *x, *stride, column, k, l->n.rows, l->node_inputs, iv_padded_k(k), l->stream);
    *x = l->node_inputs, *stride = iv_padded_k(k);
    return iv_gpu_learner_launched(l, code, "inputs of a row-parallel layer", err);
}

/* A row-parallel layer: this rank's nodes, then the all-reduce. */
static iv_status add_nodes(gpu_learner *l, const iv_row_cuts *cuts, const iv_matrix *w, const iv_tensor *bias,
                           const void *x, size_t x_stride, iv_error *err) {
    const iv_row_cut *cut = &cuts->of[l->rank];
    size_t nodes[IV_RANKS_MAX];
    for (size_t i = 0; i < cut->nodes; i++) {
        const void *from = x;
        size_t stride = x_stride;
        IV_TRY(node_inputs(l, &from, &stride, cut->node[i].column, cut->node[i].k, err));
        iv_gpu_linear_args a = iv_gpu_learner_linear(l, &w[i], from, stride, l->n.rows);
        a.out = iv_gpu_learner_node(l, l->turn, i), a.out_stride = l->h;
        IV_TRY(iv_gpu_learner_launched(l, iv_gpu_linear(&a, l->stream), "row-parallel layer", err));
    }
    for (size_t r = 0; r < l->ranks; r++) nodes[r] = cuts->of[r].nodes;
    return iv_gpu_learner_all_reduce(l, &cuts->order, nodes, iv_gpu_learner_vector(l, bias), l->x, err);
}

/* The stream goes on in `slot`, with a row-parallel layer added. */
static iv_status add_layer(gpu_learner *l, const iv_row_cuts *cuts, const iv_matrix *w, const iv_tensor *bias,
                           const void *x, size_t stride, float *slot, iv_error *err) {
    if (!l->taped) slot = l->x;
    if (l->ranks > 1) {
        IV_TRY(move_to(l, slot, err));
        return add_nodes(l, cuts, w, bias, x, stride, err);
    }
    iv_gpu_linear_args a = iv_gpu_learner_linear(l, w, x, stride, l->n.rows);
    a.epilogue = IV_GPU_RESIDUAL, a.bias = iv_gpu_learner_vector(l, bias);
    a.out = slot, a.out_stride = l->h;
    if (a.out != l->x) a.fused.addend = l->x;
    if (a.fused.addend && !iv_gpu_learner_fuses(l, &a)) {
        a.fused.addend = NULL;
        IV_TRY(move_to(l, slot, err));
    }
    l->x = a.out;
    return iv_gpu_learner_launched(l, iv_gpu_linear(&a, l->stream), "row-parallel layer", err);
}

static iv_status attention_out(iv_backend *b, size_t layer, iv_norm next, iv_error *err) {
    gpu_learner *l = iv_gpu_learner_of(b);
    const void *x;
    size_t stride;
    IV_TRY(iv_gpu_learner_attended(l, &x, &stride, err));
    float *slot = iv_gpu_learner_keeps_mlp(l) ? l->now->x_mlp : slot_after(l, layer);
    const iv_tensor *bias = iv_gpu_learner_names(l, layer)->out_bias;
    IV_TRY(add_layer(l, &l->m->tp.out, l->m->layers[layer].out, bias, x, stride, slot, err));
    return norm(b, next, err);
}

/* ---- MLP ------------------------------------------------------------------------------------------------------------
 */

/* gate's and up's biases, in the order of the matrix's rows. */
static iv_status gate_up_bias(gpu_learner *l, const iv_matrix *w, const iv_mlp_tensors *t, iv_error *err) {
    const iv_tensor *of[] = {t->gate_bias, t->up_bias};
    size_t group = w->paired ? 8 : l->up, bytes = group * sizeof *l->bias;
    for (size_t i = 0; i < 2; i++) {
        int code = cudaMemcpy2DAsync(l->bias + i * group, 2 * bytes, iv_gpu_learner_vector(l, of[i]) + l->up_first,
                                     bytes, bytes, l->up / group, cudaMemcpyDeviceToDevice, l->stream);
        IV_TRY(iv_gpu_learner_launched(l, code, "biases", err));
    }
    return IV_OK;
}

static iv_status gate_up(gpu_learner *l, const iv_matrix *w, const iv_mlp_tensors *t, iv_error *err) {
    iv_gpu_linear_args a = iv_gpu_learner_linear(l, w, l->normed, l->h_stride, l->n.rows);
    if (t->gate_bias) {
        IV_TRY(gate_up_bias(l, w, t, err));
        a.bias = l->bias;
    }
    if (!iv_gpu_learner_keeps_mlp(l) && w->paired) {
        a.epilogue = IV_GPU_SWIGLU, a.out = l->now->act, a.out_stride = l->act_stride;
        return iv_gpu_learner_launched(l, iv_gpu_linear(&a, l->stream), "gate and up", err);
    }
    if (w->paired && l->act_stride == l->up) { /* else act's padding would stay unwritten */
        iv_gpu_linear_args fused = a;
        fused.epilogue = IV_GPU_SWIGLU, fused.out = l->now->act, fused.out_stride = l->act_stride;
        fused.fused = (iv_gpu_fused){.gate = l->now->gate, .up = l->now->up};
        if (iv_gpu_learner_fuses(l, &fused))
            return iv_gpu_learner_launched(l, iv_gpu_linear(&fused, l->stream), "gate and up", err);
    }
    a.out = l->wide, a.out_stride = w->n;
    IV_TRY(iv_gpu_learner_launched(l, iv_gpu_linear(&a, l->stream), "gate and up", err));
    int code = iv_gpu_swiglu_tape(l->wide, w->paired, l->n.rows, l->up, l->m->dtype, l->now->gate, l->now->up,
                                  l->now->act, l->act_stride, l->stream);
    return iv_gpu_learner_launched(l, code, "swiglu", err);
}

static iv_status mlp(iv_backend *b, size_t layer, iv_norm next, iv_error *err) {
    gpu_learner *l = iv_gpu_learner_of(b);
    const iv_mlp *w = l->m->layers[layer].experts;
    const iv_mlp_tensors *t = iv_gpu_learner_names(l, layer)->experts;
    IV_TRY(gate_up(l, &w->gate_up, t, err));
    if (iv_gpu_learner_keeps_mlp(l)) IV_TRY(iv_gpu_learner_clear(l, l->now->act, l->act_stride, l->width, err));
    if (l->again) return IV_OK;
    float *slot = slot_after(l, layer);
    IV_TRY(add_layer(l, &l->m->tp.down, w->down, t->down_bias, l->now->act, l->act_stride, slot, err));
    return norm(b, next, err);
}

static iv_status experts(iv_backend *b, size_t layer, iv_norm next, iv_error *err) {
    gpu_learner *l = iv_gpu_learner_of(b);
    if (!l->again && l->taped) IV_TRY(move_to(l, slot_after(l, layer), err));
    IV_TRY(iv_gpu_learner_experts(l, layer, err));
    return l->again ? IV_OK : norm(b, next, err);
}

static iv_status head(iv_backend *b, iv_error *err) { return iv_gpu_learner_head(iv_gpu_learner_of(b), err); }

void iv_gpu_learner_forward_ops(iv_backend_ops *ops) {
    ops->embed = embed, ops->norm = norm, ops->qkv = qkv, ops->rope_kv = rope_kv, ops->attention = attention;
    ops->attention_out = attention_out, ops->mlp = mlp, ops->experts = experts, ops->head = head;
}
