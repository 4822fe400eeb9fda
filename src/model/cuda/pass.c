/* pass.c: arguments of the launches of a pass, and its row ops. */
#include "model/cuda/pass.h"
#include "base/size.h"
#include "kernels/cuda/int8.h"
#include "kernels/cuda/latent.h"
#include "kernels/cuda/learn.h"

enum { BESIDE_SMS = 16 }; /* multiprocessors that layers leave to all-reduces of other microsteps */

iv_status iv_gpu_launched(gpu_forward *f, int code, const char *what, iv_error *err) {
    if (code == 0) return IV_OK;
    f->code = code;
    return iv_gpu_check(f->gpu, code, what, err);
}

iv_status iv_gpu_no_memory(const gpu_forward *f, const char *what, size_t bytes, iv_error *err) {
    const iv_gpu_info *i = iv_gpu_get_info(f->gpu);
    return iv_fail(err, IV_NO_MEMORY, "GPU %d (%s): no memory for %s: wanted %zu bytes, free %zu", i->ordinal, i->name,
                   what, bytes, iv_gpu_memory_available(f->gpu));
}

const float iv_gpu_rounding[1] = {0};

int iv_gpu_law_linear(const gpu_forward *f, const iv_gpu_linear_args *a) { return iv_gpu_linear(a, f->stream); }

size_t iv_gpu_hidden_stride(const iv_model *m) { return iv_padded_k((size_t)m->config.hidden_size); }
size_t iv_gpu_act_stride(const iv_model *m) { return iv_padded_k(m->tp.down.of[m->rank].k); }
size_t iv_gpu_expert_act_stride(const iv_model *m) { return iv_padded_k((size_t)m->config.moe_intermediate_size); }

/* A pass has one windowed plan: all families have at most one window. */
iv_status iv_gpu_find_window(const iv_model *m, int64_t *window, iv_error *err) {
    *window = 0;
    for (size_t i = 0; i < (size_t)m->config.layers; i++) {
        int64_t w = m->layers[i].config->window;
        if (w && *window && w != *window)
            return iv_fail(err, IV_UNSUPPORTED, "device cuda: layers have windows of %lld and %lld: one is supported",
                           (long long)*window, (long long)w);
        if (w) *window = w;
    }
    return IV_OK;
}

/* The attention of a rank's heads over the latent. One plan serves all ranks, so its group is that of the rank with the
 * most heads. */
static iv_gpu_attention_shape latent_shape_of(const iv_model *m, iv_arithmetic arithmetic, int64_t window) {
    size_t group = 0;
    for (size_t r = 0; r < m->tp.ranks; r++)
        if (m->tp.shard[r].heads > group) group = m->tp.shard[r].heads;
    return (iv_gpu_attention_shape){.arithmetic = arithmetic,
                                    .type = m->gemm_type,
                                    .heads = m->tp.shard[m->rank].heads,
                                    .kv_heads = m->tp.shard[m->rank].kv_heads,
                                    .head_dim = (size_t)m->config.kv_rank,
                                    .group = group,
                                    .window = window,
                                    .capped = m->scales.score_inner != 0.0f};
}

iv_gpu_attention_shape iv_gpu_shape_of(const iv_model *m, iv_arithmetic arithmetic, int64_t window) {
    const iv_model_config *c = &m->config;
    bool wide = c->wide_head_dim && window == 0; /* layers that see all positions, where there are two sizes */
    const iv_tp_shard *s = iv_tp_shard_of(&m->tp, m->rank, wide);
    size_t group = (size_t)(c->heads / (wide ? c->wide_kv_heads : c->kv_heads));
    if (c->kv_rank) return latent_shape_of(m, arithmetic, window);
    return (iv_gpu_attention_shape){.arithmetic = arithmetic,
                                    .type = m->gemm_type,
                                    .heads = s->heads,
                                    .kv_heads = s->kv_heads,
                                    .head_dim = (size_t)(wide ? c->wide_head_dim : c->head_dim),
                                    .group = group,
                                    .group_first = s->head_first - s->kv_head_first * group,
                                    .window = window,
                                    .capped = m->scales.score_inner != 0.0f};
}

size_t iv_gpu_plan_bytes_of(const iv_model *m, const iv_gpu_attention_shape *s, size_t rows, size_t spans) {
    if (m->config.kv_rank) return iv_gpu_latent_plan_bytes(s, (size_t)m->config.rope_dim, rows, spans);
    return iv_gpu_attention_plan_bytes(s, rows, spans);
}

size_t iv_gpu_plan_of(const iv_model *m, const iv_gpu_attention_shape *s, const iv_gpu_span *spans, size_t count,
                      int sms, void *plan, size_t bytes) {
    if (m->config.kv_rank) return iv_gpu_latent_plan(s, (size_t)m->config.rope_dim, spans, count, sms, plan, bytes);
    return iv_gpu_attention_plan(s, spans, count, sms, plan, bytes);
}

iv_gpu_kv iv_gpu_kv_of(const gpu_pass *p, size_t layer) {
    const gpu_forward *f = p->f;
    size_t plane = f->kv_planes ? p->m->kv_place[layer].plane : layer;
    bool wide = p->m->layers[layer].config->wide;
    iv_gpu_kv kv = {.type = p->m->kv_layout[0].type,
                    .heads = iv_tp_shard_of(&p->m->tp, p->m->rank, wide)->kv_heads,
                    .head_dim = (size_t)(wide ? p->m->config.wide_head_dim : p->m->config.head_dim),
                    .pages = f->kv + plane * f->kv_layer_bytes,
                    .page_count = f->pages};
    if (p->m->config.wide_head_dim) kv.page_heads = p->m->kv_layout[0].page_bytes / iv_gpu_kv_head_bytes(&kv);
    return kv;
}

iv_gpu_linear_args iv_gpu_layer_args(const gpu_pass *p, const iv_matrix *w, const void *x, size_t x_stride) {
    return (iv_gpu_linear_args){.arithmetic = p->f->arithmetic,
                                .w = iv_gpu_matrix_of(w),
                                .type = p->m->gemm_type,
                                .x = x,
                                .x_stride = x_stride,
                                .rows = p->rows,
                                .x_rows = p->f->rows_max - p->first,
                                .widened = p->f->widened,
                                .widened_bytes = p->f->widened_bytes,
                                .spare = p->microsteps > 1 ? BESIDE_SMS : 0};
}

unsigned char *iv_gpu_rows_at(const gpu_pass *p, unsigned char *rows, size_t stride) {
    return rows + p->first * stride * iv_dtype_bytes(p->m->gemm_type);
}

iv_status iv_gpu_inputs_at(const gpu_pass *p, size_t column, size_t k, const void **x, size_t *stride, iv_error *err) {
    size_t width = iv_dtype_bytes(p->m->gemm_type), from = *stride;
    if (column * width % 16 == 0 && from * width % 16 == 0 && k % IV_CHAIN_STEP == 0) {
        *x = (const unsigned char *)*x + column * width;
        return IV_OK;
    }
    *stride = iv_padded_k(k);
    int code = iv_gpu_copy_columns(p->m->gemm_type, *x, from, column, k, p->rows, p->f->packed, *stride, p->f->stream);
    *x = p->f->packed;
    return iv_gpu_launched(p->f, code, "inputs of a row-parallel layer", err);
}

iv_status iv_gpu_node_args(const gpu_pass *p, const gpu_row_parallel *l, size_t i, iv_gpu_linear_args *a,
                           iv_error *err) {
    const iv_row_cut *cut = &l->cuts->of[p->m->rank];
    const void *x = iv_gpu_rows_at(p, l->x, l->x_stride);
    size_t stride = l->x_stride, column = cut->first - l->x_first + cut->node[i].column;
    IV_TRY(iv_gpu_inputs_at(p, column, cut->node[i].k, &x, &stride, err));
    *a = iv_gpu_layer_args(p, &l->nodes[i], x, stride);
    return IV_OK;
}

iv_status iv_gpu_compute_nodes(const gpu_pass *p, const gpu_row_parallel *l, iv_error *err) {
    for (size_t i = 0; i < l->cuts->of[p->m->rank].nodes; i++) {
        iv_gpu_linear_args a;
        IV_TRY(iv_gpu_node_args(p, l, i, &a, err));
        a.epilogue = IV_GPU_STORE, a.out_stride = p->hidden;
        a.out = iv_gpu_node_at(p->f, l->second, i, p->hidden) + p->first * p->hidden;
        IV_TRY(iv_gpu_launched(p->f, p->f->linear(p->f, &a), "row-parallel layer", err));
    }
    return IV_OK;
}

float *iv_gpu_node_at(const gpu_forward *f, bool second, size_t node, size_t hidden) {
    return f->nodes + ((second ? f->nodes_max : 0) + node) * f->rows_max * hidden;
}

/* ---- row ops ------------------------------------------------------------------------------------------------- */

/* Does a layer in int8 read this norm's rows? The final norm's are the head's. */
static bool norms_to_codes(const gpu_pass *p, const float *weight) {
    enum { HIDDEN_MAX = 25600 };
    const gpu_forward *f = p->f;
    return f->int8 && !f->int8->one_scale && weight != f->last_norm && !f->centered && p->microsteps == 1 &&
           p->hidden <= HIDDEN_MAX;
}

/* The norm and its codes; the rows themselves where more than int8 layers read them. */
static iv_status norm_to_codes(const gpu_pass *p, const float *weight, iv_error *err) {
    gpu_forward *f = p->f;
    const iv_model_config *c = &p->m->config;
    void *rows = iv_gpu_rows_at(p, f->normed, p->stride);
    bool alone = c->experts == 0 && !c->kv_rank && !p->m->delta_layout.channels;
    const iv_gpu_int8_rows a = {.type = p->m->gemm_type,
                                .k = p->hidden,
                                .rows = p->rows,
                                .terms = f->int8->terms,
                                .codes = f->int8->codes,
                                .code_stride = iv_padded_k(p->hidden),
                                .scales = f->int8->scales};
    f->int8->held = rows;
    int code = iv_gpu_int8_rmsnorm(f->x + p->first * p->hidden, weight, (float)c->rms_norm_eps, alone ? NULL : rows,
                                   p->stride, &a, f->stream);
    return iv_gpu_launched(f, code, "norm", err);
}

iv_status iv_gpu_norm_rows(const gpu_pass *p, const float *weight, iv_error *err) {
    gpu_forward *f = p->f;
    if (!weight) return IV_OK;
    if (f->int8) f->int8->held = NULL;
    if (weight != iv_gpu_rounding && norms_to_codes(p, weight)) return norm_to_codes(p, weight, err);
    if (weight == iv_gpu_rounding)
        return iv_gpu_launched(f,
                               iv_gpu_round_rows(f->x + p->first * p->hidden, p->hidden, 0, p->hidden, p->rows,
                                                 p->m->gemm_type, iv_gpu_rows_at(p, f->normed, p->stride), p->stride,
                                                 f->stream),
                               "rounding", err);
    const float *x = f->x + p->first * p->hidden;
    if (f->centered) {
        float *to = f->centered + p->first * p->hidden;
        IV_TRY(iv_gpu_launched(f, iv_gpu_center(x, p->hidden, p->rows, to, f->stream), "norm", err));
        x = to;
    }
    int code = iv_gpu_rmsnorm(x, p->hidden, NULL, weight, (float)p->m->config.rms_norm_eps, p->rows, p->m->gemm_type,
                              iv_gpu_rows_at(p, f->normed, p->stride), p->stride, f->stream);
    return iv_gpu_launched(f, code, "norm", err);
}

iv_status iv_gpu_add_block(const gpu_pass *p, const float *y, const float *weight, float after, float *to,
                           iv_error *err) {
    size_t at = p->first * p->hidden;
    iv_gpu_add_args a = {.x = p->f->x + at,
                         .y = y + at,
                         .weight = weight,
                         .eps = (float)iv_config_post_eps(&p->m->config),
                         .scale = p->m->scales.residual,
                         .after = after != 0 ? after : 1,
                         .n = p->hidden,
                         .rows = p->rows,
                         .to = to + at};
    p->f->x = to;
    return iv_gpu_launched(p->f, iv_gpu_add_rows(&a, p->f->stream), "residual addition", err);
}

bool iv_gpu_fuses(const gpu_forward *f, const iv_gpu_linear_args *a) {
    return f->tape && f->tape->fuse && iv_gpu_linear_fuses(a);
}

iv_status iv_gpu_move_stream(const gpu_pass *p, float *to, iv_error *err) {
    gpu_forward *f = p->f;
    if (f->x == to) return IV_OK;
    int code = cudaMemcpyAsync(to, f->x, p->rows * p->hidden * sizeof *to, cudaMemcpyDeviceToDevice, f->stream);
    f->x = to;
    return iv_gpu_launched(f, code, "copy of the residual stream", err);
}

iv_status iv_gpu_clear_padding(const gpu_pass *p, void *rows, size_t stride, size_t width, iv_error *err) {
    if (p->in.padding_count == 0) return IV_OK;
    int code =
        iv_gpu_clear_rows(p->in.padding, p->in.padding_count, rows, stride * width, stride * width, p->f->stream);
    return iv_gpu_launched(p->f, code, "clearing of padding", err);
}
