/* products.c: products of a pass with the terms of adapters (NUMERICS.md 19). A x is launched before the base's layer,
 * which reads its weights meanwhile; the terms are added behind it. What an epilogue would do after the sum follows
 * the terms, for all rows. */
#include "base/size.h"
#include "kernels/cuda/adapters.h"
#include "kernels/cuda/learn.h"
#include "model/cuda/adapters.h"

const gpu_site *iv_gpu_site(const gpu_pass *p, size_t site) {
    const gpu_adapters *a = p->f->adapters;
    if (!a || !(p->in.adapters.tiles || p->in.adapters.plain)) return NULL;
    IV_ASSERT(site < a->site_count);
    return a->site[site].pieces ? &a->site[site] : NULL;
}

static iv_gpu_adapter_args args_of(const gpu_pass *p, const gpu_site *s) {
    const gpu_adapters *all = p->f->adapters;
    iv_gpu_adapter_args a = {.arithmetic = p->f->arithmetic,
                             .type = p->m->gemm_type,
                             .parts = all->parts + s->at,
                             .slots = all->slots,
                             .pieces = s->pieces,
                             .rank_max = s->rank_max,
                             .rows = p->in.adapters,
                             .sms = p->f->sms,
                             .t = all->t,
                             .t_stride = s->t_width};
    for (size_t i = 0; i < s->pieces; i++) a.piece[i] = s->piece[i];
    return a;
}

/* What a linear layer and its terms share. */
static iv_gpu_adapter_args args_for(const gpu_pass *p, const gpu_site *s, const iv_gpu_linear_args *l, bool paired) {
    iv_gpu_adapter_args a = args_of(p, s);
    a.x = l->x, a.x_stride = l->x_stride, a.k = l->w.k_padded, a.leaves = l->w.leaves;
    a.n = l->w.n, a.paired = paired, a.y = l->out, a.y_stride = l->out_stride;
    if (!l->groups) return a;
    a.rows.grouped = true, a.rows.groups = *l->groups, a.rows.entries = p->rows * l->groups->experts_per_token;
    a.by_entry = l->weighted || l->groups->packed, a.by_slot = l->weighted;
    return a;
}

static iv_status inner(const gpu_pass *p, const iv_gpu_adapter_args *a, iv_error *err) {
    return iv_gpu_launched(p->f, iv_gpu_adapter_inner(a, p->f->stream), "A of adapters", err);
}

static iv_status outer(const gpu_pass *p, const iv_gpu_adapter_args *a, iv_error *err) {
    return iv_gpu_launched(p->f, iv_gpu_adapter_outer(a, p->f->stream), "B of adapters", err);
}

static iv_status add_bias(const gpu_pass *p, float *y, size_t stride, const float *bias, size_t n, iv_error *err) {
    if (!bias) return IV_OK;
    return iv_gpu_launched(p->f, iv_gpu_add_bias(y, stride, p->rows, bias, n, p->f->stream), "bias", err);
}

iv_status iv_gpu_product(const gpu_pass *p, size_t site, bool paired, const iv_gpu_linear_args *l, const char *what,
                         iv_error *err) {
    gpu_forward *f = p->f;
    const gpu_site *s = iv_gpu_site(p, site);
    if (!s) return iv_gpu_launched(f, f->linear(f, l), what, err);
    iv_gpu_adapter_args a = args_for(p, s, l, paired);
    iv_gpu_linear_args plain = *l;
    plain.bias = NULL;
    IV_TRY(inner(p, &a, err));
    IV_TRY(iv_gpu_launched(f, f->linear(f, &plain), what, err));
    IV_TRY(outer(p, &a, err));
    return add_bias(p, l->out, l->out_stride, l->bias, l->w.n, err);
}

/* Are the pieces all gates and all ups? */
static bool has_halves(const gpu_site *s, size_t n) {
    return s->pieces == 2 && s->piece[0].first == 0 && s->piece[0].n == n / 2 && s->piece[1].first == n / 2 &&
           s->piece[1].n == n / 2;
}

iv_status iv_gpu_adapted_gate_up(const gpu_pass *p, const gpu_site *s, const iv_activation *activation,
                                 iv_gpu_linear_args *l, const iv_matrix *w, size_t rows_out, void *act, size_t stride,
                                 iv_gpu_row_scales scales, const iv_gpu_expert_bias_args *bias, iv_error *err) {
    gpu_forward *f = p->f;
    size_t n = w->n / iv_activation_inputs(activation);
    const gpu_values *kept = iv_gpu_keeps_mlp(f) ? f->now : NULL;
    const float *own_bias = l->bias;
    l->out = f->wide, l->out_stride = w->n, l->bias = NULL;
    iv_gpu_adapter_args a = args_for(p, s, l, w->paired);
    IV_TRY(inner(p, &a, err));
    IV_TRY(iv_gpu_launched(f, f->linear(f, l), "gate and up", err));
    /* A tape's act has zeros as padding, which this launch does not write. */
    if (w->paired && !bias && !scales.logits && has_halves(s, w->n) && (!kept || stride == n)) {
        a.act = act, a.act_stride = stride, a.bias = own_bias;
        if (kept) a.gate = kept->gate, a.up = kept->up;
        return outer(p, &a, err);
    }
    IV_TRY(outer(p, &a, err));
    IV_TRY(add_bias(p, f->wide, w->n, own_bias, w->n, err));
    if (bias) IV_TRY(iv_gpu_launched(f, iv_gpu_expert_bias(bias, f->stream), "biases of experts", err));
    int code = kept ? iv_gpu_activate_tape(activation, f->wide, w->paired, rows_out, n, p->m->gemm_type, kept->gate,
                                           kept->up, act, stride, scales, f->stream)
               : w->paired
                   ? iv_gpu_swiglu_grouped(f->wide, rows_out, n, p->m->gemm_type, act, stride, f->stream)
                   : iv_gpu_activate(activation, f->wide, rows_out, n, p->m->gemm_type, act, stride, scales, f->stream);
    return iv_gpu_launched(f, code, "activation", err);
}

/* ---- row-parallel layers ----------------------------------------------------------------------------------------- */

/* A of node i of the rank's inputs; sums NULL: t. */
static iv_status inner_node(const gpu_pass *p, const gpu_site *s, const gpu_row_parallel *l, size_t i, float *sums,
                            iv_error *err) {
    const iv_row_cut *cut = &l->cuts->of[p->m->rank];
    iv_gpu_adapter_args a = args_of(p, s);
    const void *x = l->x;
    a.x_stride = l->x_stride, a.k = cut->node[i].k, a.leaves = cut->node[i].leaves, a.sums = sums;
    a.parts += i * a.slots * a.pieces;
    IV_TRY(iv_gpu_inputs_at(p, cut->first - l->x_first + cut->node[i].column, a.k, &x, &a.x_stride, err));
    a.x = x;
    return inner(p, &a, err);
}

float *iv_gpu_adapter_node_at(const gpu_forward *f, bool second, size_t node, size_t n) {
    const gpu_adapters *a = f->adapters;
    IV_ASSERT(n <= a->rank_max);
    return a->nodes + ((second ? f->nodes_max : 0) + node) * f->rows_max * a->rank_max;
}

/* t of all rows: the ranks' nodes of A x, added in the order of the tree. */
static iv_status reduce_inner(const gpu_pass *p, const gpu_site *s, const gpu_row_parallel *l, iv_error *err) {
    gpu_forward *f = p->f;
    const gpu_adapters *own = f->adapters;
    size_t count = p->rows * s->t_width;
    iv_gpu_allreduce_args a = {.arithmetic = f->arithmetic,
                               .rows = p->rows,
                               .hidden = s->t_width,
                               .order = l->cuts->order,
                               .x = own->sums,
                               .type = p->m->gemm_type,
                               .normed_stride = s->t_width,
                               .whole = true};
    for (size_t i = 0; i < l->cuts->of[p->m->rank].nodes; i++)
        IV_TRY(inner_node(p, s, l, i, iv_gpu_adapter_node_at(f, l->second, i, s->t_width), err));
    IV_TRY(iv_gpu_launched(f, iv_gpu_fill(own->sums, count, -0.0f, f->stream), "clearing", err));
    IV_TRY(f->transport.reduce(p, l, iv_gpu_adapter_node_at, &a, f->stream, err));
    int code = iv_gpu_round_rows(own->sums, s->t_width, 0, s->t_width, p->rows, p->m->gemm_type, own->t, s->t_width,
                                 f->stream);
    return iv_gpu_launched(f, code, "rounding", err);
}

iv_status iv_gpu_adapted_t(const gpu_pass *p, const gpu_site *s, const gpu_row_parallel *l, iv_error *err) {
    return p->m->tp.ranks == 1 ? inner_node(p, s, l, 0, NULL, err) : reduce_inner(p, s, l, err);
}

/* y = the layer of all ranks, and t. */
static iv_status sums_of(const gpu_pass *p, const gpu_site *s, const gpu_row_parallel *l, float *y, iv_error *err) {
    gpu_forward *f = p->f;
    float *x = f->x;
    if (p->m->tp.ranks == 1) {
        iv_gpu_linear_args a;
        IV_TRY(inner_node(p, s, l, 0, NULL, err));
        IV_TRY(iv_gpu_node_args(p, l, 0, &a, err));
        a.out = y, a.out_stride = p->hidden;
        return iv_gpu_launched(f, f->linear(f, &a), "row-parallel layer", err);
    }
    gpu_row_parallel plain = *l;
    plain.norm = NULL, plain.bias = NULL, plain.whole = true, plain.to = f->x = y;
    IV_TRY(iv_gpu_launched(f, iv_gpu_fill(y, p->rows * p->hidden, -0.0f, f->stream), "clearing", err));
    iv_status status = f->transport.row_parallel(p, &plain, err);
    f->x = x;
    return status == IV_OK ? reduce_inner(p, s, l, err) : status;
}

iv_status iv_gpu_adapted_row_parallel(const gpu_pass *p, const gpu_site *s, const gpu_row_parallel *l, iv_error *err) {
    gpu_forward *f = p->f;
    bool plain = !l->y || iv_gpu_adds_plainly(p, l->post_norm);
    float *y = plain ? f->wide : l->y;
    iv_gpu_adapter_args a = args_of(p, s);
    IV_ASSERT(p->microsteps == 1);
    IV_TRY(sums_of(p, s, l, y, err));
    a.n = p->hidden, a.y = y, a.y_stride = p->hidden;
    if (plain) a.residual = f->x, a.to = l->to, a.bias = l->bias;
    IV_TRY(outer(p, &a, err));
    if (plain) {
        f->x = l->to;
    } else {
        IV_TRY(add_bias(p, y, p->hidden, l->bias, p->hidden, err));
        IV_TRY(iv_gpu_add_block(p, y, l->post_norm, l->after, l->to, err));
    }
    return iv_gpu_norm_rows(p, l->norm, err);
}

iv_status iv_gpu_row_parallel(const gpu_pass *p, const gpu_row_parallel *l, iv_error *err) {
    gpu_forward *f = p->f;
    bool buffered = !iv_gpu_adds_plainly(p, l->post_norm);
    const gpu_site *adapted = iv_gpu_site(p, l->site);
    if (adapted) return iv_gpu_adapted_row_parallel(p, adapted, l, err);
    if (!buffered && l->norm != iv_gpu_rounding && !f->centered) return f->transport.row_parallel(p, l, err);
    gpu_row_parallel inner = *l;
    float *x = f->x;
    inner.norm = NULL, inner.whole = true;
    if (buffered) {
        int code = cudaMemsetAsync(l->y + p->first * p->hidden, 0, p->rows * p->hidden * sizeof *l->y, f->stream);
        IV_TRY(iv_gpu_launched(f, code, "clearing", err));
        inner.to = f->x = l->y;
    }
    IV_TRY(f->transport.row_parallel(p, &inner, err));
    f->x = buffered ? x : f->x;
    if (buffered) IV_TRY(iv_gpu_add_block(p, l->y, l->post_norm, l->after, l->to, err));
    return iv_gpu_norm_rows(p, l->norm, err);
}

/* ---- the embedding -------------------------------------------------------------------------------------------------
 */

iv_status iv_gpu_adapted_embed(const gpu_pass *p, const gpu_site *s, iv_error *err) {
    gpu_forward *f = p->f;
    iv_gpu_matrix w = iv_gpu_matrix_of(&f->embedding);
    iv_gpu_adapter_args a = args_of(p, s);
    a.ids = p->in.ids, a.n = a.y_stride = p->hidden, a.y = f->x;
    IV_TRY(
        iv_gpu_launched(f, iv_gpu_embed(&w, p->in.ids, p->rows, p->hidden, 1.0f, f->x, f->stream), "embedding", err));
    IV_TRY(iv_gpu_launched(f, iv_gpu_adapter_look_up(&a, f->stream), "A of adapters", err));
    IV_TRY(outer(p, &a, err));
    if (p->m->scales.embedding == 1.0f) return IV_OK;
    iv_gpu_add_args scaled = {.y = f->x, .scale = p->m->scales.embedding, .n = p->hidden, .rows = p->rows, .to = f->x};
    return iv_gpu_launched(f, iv_gpu_add_rows(&scaled, f->stream), "scale of the embedding", err);
}
