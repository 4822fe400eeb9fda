/* int8.c: see int8.h. Codes of a layer are read by its products alone, which come next in the stream, so one buffer
 * serves all layers. */
#include "model/cuda/int8.h"
#include "base/size.h"
#include "kernels/cuda/int8.h"

gpu_int8_sizes iv_gpu_int8_sizes(const iv_model *m, size_t rows) {
    const iv_model_config *c = &m->config;
    const iv_tp_shard *shard = &m->tp.shard[m->rank];
    size_t wide = iv_gpu_hidden_stride(m), entries = rows * (size_t)c->experts_per_token, codes;
    wide = iv_size_max(wide, iv_size_max(iv_gpu_act_stride(m), iv_gpu_shared_act_stride(m)));
    wide = iv_size_max(wide, iv_padded_k(shard->heads * (size_t)(c->value_dim ? c->value_dim : c->head_dim)));
    wide = iv_size_max(wide, iv_padded_k((size_t)c->q_rank));
    wide = iv_size_max(wide, iv_padded_k(m->delta_layout.value_heads * m->delta_layout.value_dim));
    wide = iv_size_max(wide, iv_padded_k(m->delta_layout.channels));
    codes = rows * wide;
    size_t of_experts = c->router_scales_inputs ? iv_gpu_hidden_stride(m) : 0;
    codes = iv_size_max(codes, entries * iv_size_max(of_experts, iv_gpu_expert_act_stride(m)));
    return (gpu_int8_sizes){codes * (size_t)m->terms, iv_size_max(rows, entries)};
}

/* Of all rows that a layer reads. */
static iv_gpu_int8_rows rows_of(const gpu_forward *f, const iv_gpu_linear_args *a, size_t rows) {
    return (iv_gpu_int8_rows){.type = a->type,
                              .x = a->x,
                              .x_stride = a->x_stride,
                              .k = a->w.k_padded,
                              .rows = rows,
                              .terms = a->w.terms,
                              .codes = f->int8->codes,
                              .code_stride = a->w.k_padded,
                              .scales = f->int8->scales};
}

static int magnitudes(const gpu_forward *f, const iv_gpu_int8_rows *q) {
    int code = iv_gpu_int8_magnitudes(q->type, q->x, q->x_stride, q->k, q->rows, f->int8->largest, f->stream);
    return !code && f->int8->one_scale ? iv_gpu_int8_batch_magnitude(f->int8->largest, q->rows, f->stream) : code;
}

static int quantize(const gpu_forward *f, iv_gpu_int8_rows *q) {
    if (f->int8->held && f->int8->held == q->x) return 0;
    f->int8->held = NULL;
    if (f->int8->one_scale) {
        int code = magnitudes(f, q);
        if (code) return code;
        q->part[0] = f->int8->largest, q->parts = 1;
    }
    return iv_gpu_int8_quantize(q, f->stream);
}

int iv_gpu_int8_layer(const gpu_forward *f, const iv_gpu_linear_args *a) {
    if (!a->w.terms) return f->linear_of_floats(f, a);
    bool entries = a->groups && (a->weighted || a->groups->packed);
    iv_gpu_int8_rows q = rows_of(f, a, entries ? a->rows * a->groups->experts_per_token : a->rows);
    iv_gpu_int8_args args = {.l = *a, .codes = q.codes, .code_stride = q.code_stride, .scales = q.scales};
    int code = quantize(f, &q);
    return code ? code : iv_gpu_int8_linear(&args, f->stream);
}

/* ---- ranks --------------------------------------------------------------------------------------------------- */

static void *largest_at(const gpu_forward *f) { return f->int8->largest; }
static void *sums_at(const gpu_forward *f) { return f->int8->sums; }

/* Rows at a time that ranks exchange. */
static size_t most_rows(const gpu_pass *p, size_t row_bytes) {
    const gpu_transport *t = &p->f->transport;
    return t->shared_rows ? t->shared_rows(row_bytes * p->m->tp.ranks) : p->rows;
}

/* Codes of this rank's inputs, of scales of whole rows; f->int8->scales on every rank. */
static iv_status quantize_parts(const gpu_pass *p, const iv_gpu_int8_rows *q, const bool *has, iv_error *err) {
    gpu_forward *f = p->f;
    size_t width = iv_dtype_bytes(q->type), most = most_rows(p, sizeof(uint32_t));
    if (q->k) IV_TRY(iv_gpu_launched(f, magnitudes(f, q), "magnitudes of rows", err));
    for (size_t at = 0; at < p->rows; at += most) {
        const void *part[IV_RANKS_MAX];
        iv_gpu_int8_rows here = *q;
        here.rows = iv_size_min(most, p->rows - at);
        size_t bytes = here.rows * sizeof(uint32_t);
        IV_TRY(f->transport.share(p, largest_at, at * sizeof(uint32_t), bytes, has, part, err));
        for (size_t r = 0; r < p->m->tp.ranks; r++)
            if (part[r]) here.part[here.parts++] = part[r];
        here.x = q->k ? (const char *)q->x + at * q->x_stride * width : NULL;
        here.codes += at * (size_t)q->terms * q->code_stride, here.scales += at;
        IV_TRY(iv_gpu_launched(f, iv_gpu_int8_quantize(&here, f->stream), "codes of rows", err));
    }
    return IV_OK;
}

/* x += the layer, of the sums of all ranks. */
static iv_status add_sums(const gpu_pass *p, const gpu_row_parallel *l, const bool *has, iv_error *err) {
    gpu_forward *f = p->f;
    iv_gpu_matrix w = iv_gpu_matrix_of(&l->nodes[0]);
    size_t row = (size_t)p->m->terms * p->hidden * sizeof(int32_t), most = most_rows(p, row);
    for (size_t at = 0; at < p->rows; at += most) {
        const void *part[IV_RANKS_MAX];
        size_t rows = iv_size_min(most, p->rows - at);
        iv_gpu_int8_reduction a = {.terms = p->m->terms,
                                   .rows = rows,
                                   .n = p->hidden,
                                   .row_scales = f->int8->scales + at,
                                   .scales = iv_gpu_int8_scales(&w),
                                   .bias = l->bias,
                                   .x = f->x + at * p->hidden};
        IV_TRY(f->transport.share(p, sums_at, at * row, rows * row, has, part, err));
        for (size_t r = 0; r < p->m->tp.ranks; r++)
            if (part[r]) a.part[a.parts++] = part[r];
        IV_TRY(iv_gpu_launched(f, iv_gpu_int8_reduce(&a, f->stream), "int8 sums of the ranks", err));
    }
    return IV_OK;
}

iv_status iv_gpu_int8_row_parallel(const gpu_pass *p, const gpu_row_parallel *l, iv_error *err) {
    gpu_forward *f = p->f;
    bool has[IV_RANKS_MAX];
    iv_gpu_linear_args a = {.type = p->m->gemm_type};
    iv_gpu_int8_rows q = {.type = a.type, .rows = p->rows, .terms = p->m->terms};
    IV_ASSERT(p->microsteps == 1 && l->to == f->x);
    for (size_t r = 0; r < p->m->tp.ranks; r++) has[r] = l->cuts->of[r].k > 0;
    if (has[p->m->rank]) {
        IV_TRY(iv_gpu_node_args(p, l, 0, &a, err));
        q = rows_of(f, &a, p->rows);
    }
    q.codes = f->int8->codes, q.scales = f->int8->scales, f->int8->held = NULL;
    IV_TRY(quantize_parts(p, &q, has, err));
    if (has[p->m->rank]) {
        iv_gpu_int8_args args = {
            .l = a, .codes = q.codes, .code_stride = q.code_stride, .scales = q.scales, .sums = f->int8->sums};
        IV_TRY(iv_gpu_launched(f, iv_gpu_int8_linear(&args, f->stream), "row-parallel layer", err));
    }
    IV_TRY(add_sums(p, l, has, err));
    return iv_gpu_norm_rows(p, l->norm, err);
}
