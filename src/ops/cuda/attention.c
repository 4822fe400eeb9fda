/* attention.c: attention over whole sequences on a GPU. Keys and values are written into pages for the call. The
 * backward kernels want sequences at multiples of 16 rows: others are moved there, and their gradients back. */
#include "base/carve.h"
#include "ops/cuda/state.h"

/* What the CPU writes. */
typedef struct arrays {
    int64_t *slots;     /* [rows] */
    iv_gpu_span *spans; /* of sequences with tokens */
    uint32_t *tables;   /* [pages] */
    int32_t *row_of;    /* [padded]: rows at their padded places; -1 */
    unsigned char *plan;
} arrays;

typedef struct layout {
    const iv_ops_attention *a;
    iv_gpu_attention_shape shape;
    size_t rows, padded, spans, pages, plan_bytes;
    bool pads; /* spans begin at multiples of 16 */
    gpu_inputs in;
    arrays host, on;
    iv_gpu_kv kv;
} layout;

static arrays arrays_in(const layout *l, unsigned char *base, size_t *bytes, bool *overflow) {
    iv_carving v = {.base = base, .align = 256};
    arrays a = {.slots = iv_carve(&v, l->rows, sizeof *a.slots),
                .spans = iv_carve(&v, l->spans, sizeof *a.spans),
                .tables = iv_carve(&v, l->pages, sizeof *a.tables),
                .row_of = iv_carve(&v, l->pads ? l->padded : 0, sizeof *a.row_of),
                .plan = iv_carve(&v, l->plan_bytes, 1)};
    *bytes = v.at, *overflow = v.overflow;
    return a;
}

static void write_sequences(layout *l) {
    size_t row = 0, at = 0, page = 0, span = 0;
    for (size_t i = 0; i < l->a->sequences; i++) {
        size_t n = l->a->lengths[i], end = at + iv_padded_k(n);
        if (n == 0) continue;
        l->host.spans[span++] =
            (iv_gpu_span){.first_row = (int32_t)(l->pads ? at : row), .rows = (int32_t)n, .table = (int32_t)page};
        for (size_t t = 0; t < n; t++, row++) {
            l->host.slots[row] = (int64_t)(page * IV_ATTENTION_BLOCK + t);
            if (l->pads) l->host.row_of[at + t] = (int32_t)row;
        }
        for (size_t t = at + n; t < end && l->pads; t++) l->host.row_of[t] = -1;
        at = end, page += (n + IV_ATTENTION_BLOCK - 1) / IV_ATTENTION_BLOCK;
    }
    for (size_t i = 0; i < l->pages; i++) l->host.tables[i] = (uint32_t)i;
}

static iv_status check_limits(const gpu_ops *g, const layout *l, iv_error *err) {
    if (l->padded < INT32_MAX / 2 && l->a->head_dim <= 512) return IV_OK;
    return iv_fail(err, IV_UNSUPPORTED, "%s: a GPU takes up to 2^30 rows and a head_dim up to 512, found %zu and %zu",
                   g->base.what, l->padded, l->a->head_dim);
}

/* Pages of the keys and values. Unwritten slots are finite. */
static iv_status write_pages(gpu_ops *g, layout *l, const void *k, const void *v, iv_error *err) {
    void *pages;
    l->kv = (iv_gpu_kv){g->base.type, l->a->kv_heads, l->a->head_dim, NULL, l->pages, 0};
    IV_TRY(iv_gpu_ops_scratch(g, l->pages, iv_gpu_kv_page_bytes(&l->kv), &pages, err));
    l->kv.pages = pages;
    int code = (int)cudaMemsetAsync(pages, 0, l->pages * iv_gpu_kv_page_bytes(&l->kv), g->stream);
    iv_gpu_write_kv_args w = {.k = k, .v = v, .rows = l->rows, .slots = l->on.slots, .kv = l->kv, .bad = g->bad};
    if (!code) code = iv_gpu_write_kv(&w, g->stream);
    return iv_gpu_ops_launched(g, code, err);
}

/* pads: for the backward pass. */
static iv_status lay_out(gpu_ops *g, const iv_ops_attention *a, size_t rows, bool backward, const void *k,
                         const void *v, layout *l, iv_error *err) {
    size_t bytes;
    bool overflow;
    *l = (layout){.a = a,
                  .rows = rows,
                  .shape = {.arithmetic = g->base.compute.arithmetic,
                            .type = g->base.type,
                            .heads = a->heads,
                            .kv_heads = a->kv_heads,
                            .head_dim = a->head_dim,
                            .group = a->heads / a->kv_heads,
                            .window = a->window}};
    for (size_t i = 0; i < a->sequences; i++) {
        l->padded += iv_padded_k(a->lengths[i]), l->spans += a->lengths[i] > 0;
        l->pages += (a->lengths[i] + IV_ATTENTION_BLOCK - 1) / IV_ATTENTION_BLOCK;
    }
    IV_TRY(check_limits(g, l, err));
    l->pads = backward && l->padded > rows;
    if (!backward) l->plan_bytes = iv_gpu_attention_plan_bytes(&l->shape, rows, l->spans);
    arrays_in(l, NULL, &bytes, &overflow);
    if (overflow) return iv_fail(err, IV_LIMIT, "%s: %zu rows are too many", g->base.what, rows);
    IV_TRY(iv_gpu_ops_inputs(g, bytes, &l->in, err));
    l->host = arrays_in(l, l->in.host, &bytes, &overflow), l->on = arrays_in(l, l->in.device, &bytes, &overflow);
    write_sequences(l);
    if (!backward && !iv_gpu_attention_plan(&l->shape, l->host.spans, l->spans, g->sms, l->host.plan, l->plan_bytes))
        return iv_fail(err, IV_LIMIT, "%s: %zu sequences of %zu rows exceed the plan's size", g->base.what, l->spans,
                       rows);
    IV_TRY(iv_gpu_ops_send(g, &l->in, err));
    return write_pages(g, l, k, v, err);
}

/* ---- forward -------------------------------------------------------------------------------------------------------
 */

static bool is_same(const iv_gpu_attention_shape *a, const iv_gpu_attention_shape *b) {
    return a->arithmetic == b->arithmetic && a->type == b->type && a->heads == b->heads && a->kv_heads == b->kv_heads &&
           a->head_dim == b->head_dim && a->window == b->window;
}

/* Zeros, or what a launch of this shape left there. */
static iv_status ready_partials(gpu_ops *g, const iv_gpu_attention_shape *s, iv_error *err) {
    size_t bytes = iv_gpu_attention_scratch(s);
    if (bytes > g->partials_bytes) {
        IV_TRY(iv_gpu_ops_launched(g, (int)cudaStreamSynchronize(g->stream), err));
        g->memspace->free(g->memspace, g->partials);
        g->partials_bytes = 0, g->partials = g->memspace->alloc(g->memspace, bytes);
        if (!g->partials) return iv_fail(err, IV_NO_MEMORY, "%s: no memory for %zu bytes", g->base.what, bytes);
        g->partials_bytes = bytes, g->partials_of = *s;
    }
    if (is_same(&g->partials_of, s)) return IV_OK;
    g->partials_of = *s;
    return iv_gpu_ops_launched(g, (int)cudaMemsetAsync(g->partials, 0, g->partials_bytes, g->stream), err);
}

/* A failed launch may have left anything. */
static iv_status attend(gpu_ops *g, const iv_gpu_attention_args *a, iv_error *err) {
    int code = iv_gpu_attention(a, g->stream);
    if (code) g->partials_of.head_dim = 0;
    return iv_gpu_ops_launched(g, code, err);
}

static iv_status forward(iv_ops *ops, const iv_ops_attention *a, size_t rows, const void *q, const void *k,
                         const void *v, void *out, float *lse2, iv_error *err) {
    gpu_ops *g = iv_gpu_ops_of(ops);
    layout l;
    IV_TRY(GPU_OPS_ADDRESSES(g, err, q, k, v, out, lse2));
    IV_TRY(lay_out(g, a, rows, false, k, v, &l, err));
    int code = (int)cudaMemcpyAsync(g->host_bad, g->bad, sizeof *g->bad, cudaMemcpyDeviceToHost, g->stream);
    IV_TRY(iv_gpu_ops_launched(g, code, err));
    IV_TRY(ready_partials(g, &l.shape, err));
    return attend(g,
                  &(iv_gpu_attention_args){.shape = l.shape,
                                           .kv = l.kv,
                                           .scale_log2e = iv_attention_scale_log2e(a->head_dim),
                                           .q = q,
                                           .out = out,
                                           .lse2 = lse2,
                                           .plan = l.on.plan,
                                           .spans = l.on.spans,
                                           .tables = l.on.tables,
                                           .scratch = g->partials,
                                           .sms = g->sms,
                                           .rows = rows},
                  err);
}

/* ---- backward ------------------------------------------------------------------------------------------------------
 */

/* x's rows at their padded places. */
static iv_status pad(gpu_ops *g, const layout *l, const void **x, size_t row_bytes, iv_error *err) {
    void *to;
    if (!l->pads) return IV_OK;
    IV_TRY(iv_gpu_ops_scratch(g, l->padded, row_bytes, &to, err));
    int code = iv_gpu_gather_rows(*x, l->on.row_of, l->padded, row_bytes, to, g->stream);
    *x = to;
    return iv_gpu_ops_launched(g, code, err);
}

static iv_status pad_all(gpu_ops *g, const layout *l, iv_gpu_attention_backward_args *b, iv_error *err) {
    const iv_ops_attention *a = l->a;
    size_t bytes = a->heads * a->head_dim * iv_ops_width(&g->base);
    const void *lse2 = b->lse2;
    IV_TRY(pad(g, l, &b->q, bytes, err));
    IV_TRY(pad(g, l, &b->out, bytes, err));
    IV_TRY(pad(g, l, &b->dout, bytes, err));
    IV_TRY(pad(g, l, &lse2, a->heads * sizeof(float), err));
    b->lse2 = lse2;
    if (!l->pads) return IV_OK;
    return iv_gpu_ops_scratch(g, l->padded * (a->heads + 2 * a->kv_heads) * a->head_dim, sizeof(float), &b->dqkv, err);
}

static iv_status backward(iv_ops *ops, const iv_ops_attention *a, size_t rows, const void *q, const void *k,
                          const void *v, const void *out, const void *dout, const float *lse2, float *dqkv,
                          iv_error *err) {
    gpu_ops *g = iv_gpu_ops_of(ops);
    size_t row_bytes = (a->heads + 2 * a->kv_heads) * a->head_dim * sizeof *dqkv;
    layout l;
    IV_TRY(GPU_OPS_ADDRESSES(g, err, q, k, v, out, dout, lse2, dqkv));
    IV_TRY(lay_out(g, a, rows, true, k, v, &l, err));
    iv_gpu_attention_backward_args b = {.shape = l.shape,
                                        .kv = l.kv,
                                        .spans = l.on.spans,
                                        .host_spans = l.host.spans,
                                        .span_count = l.spans,
                                        .tables = l.on.tables,
                                        .scale_log2e = iv_attention_scale_log2e(a->head_dim),
                                        .scale = iv_attention_scale(a->head_dim),
                                        .q = q,
                                        .out = out,
                                        .dout = dout,
                                        .lse2 = lse2,
                                        .dqkv = dqkv,
                                        .rows = l.padded,
                                        .sms = g->sms};
    IV_TRY(pad_all(g, &l, &b, err));
    IV_TRY(iv_gpu_ops_scratch(g, iv_gpu_attention_backward_scratch(&l.shape, l.padded, l.spans), 1, &b.scratch, err));
    b.tiles_bytes = iv_gpu_attention_backward_tiles(&l.shape, l.padded);
    b.tiles = b.tiles_bytes ? iv_gpu_ops_try_scratch(g, b.tiles_bytes) : NULL;
    if (!b.tiles) b.tiles_bytes = 0;
    int code = iv_gpu_attention_backward(&b, g->stream);
    if (!code && l.pads) code = iv_gpu_scatter_rows(b.dqkv, l.on.row_of, l.padded, row_bytes, dqkv, g->stream);
    return iv_gpu_ops_launched(g, code, err);
}

void iv_gpu_ops_attention_table(iv_ops_gpu *table) { table->attention = forward, table->attention_backward = backward; }
