/* attention.c: rotation and attention over whole sequences. Keys and values are written into pages for the call. */
#include "kernels/attention.h"
#include "format/model_config.h"
#include "kernels/heads_backward.h"
#include "model/learner_ranks.h"
#include "ops/gpu.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static iv_status check_attention(const char *what, const iv_ops_attention *a, size_t *rows, iv_error *err) {
    *rows = 0;
    if (a->kv_heads == 0 || a->heads == 0 || a->heads % a->kv_heads || a->heads > IV_HEADS_MAX)
        return iv_fail(err, IV_INVALID, "%s: heads: wanted a multiple of %zu KV heads up to %d, found %zu", what,
                       a->kv_heads, IV_HEADS_MAX, a->heads);
    if (a->head_dim == 0 || a->head_dim % 2 || a->head_dim > IV_HEAD_DIM_MAX)
        return iv_fail(err, IV_INVALID, "%s: head_dim: wanted an even number up to %d, found %zu", what,
                       IV_HEAD_DIM_MAX, a->head_dim);
    if (a->window < 0) return iv_fail(err, IV_INVALID, "%s: window: wanted 0 or more", what);
    if (!a->q_norm != !a->k_norm) return iv_fail(err, IV_INVALID, "%s: wanted both head norms or neither", what);
    for (size_t i = 0; i < a->sequences; i++)
        if (!iv_size_add(*rows, a->lengths[i], rows) || *rows > INT32_MAX / 2)
            return iv_fail(err, IV_LIMIT, "%s: too many tokens", what);
    return iv_ops_check_size(what, *rows, (a->heads + 2 * a->kv_heads) * a->head_dim, err);
}

static iv_status check_positions(const char *what, const iv_ops_attention *a, iv_error *err) {
    for (size_t i = 0; i < a->sequences; i++)
        if (a->lengths[i] > a->positions)
            return iv_fail(err, IV_LIMIT, "%s: sequence %zu: wanted at most %zu positions, found %zu", what, i,
                           a->positions, a->lengths[i]);
    return IV_OK;
}

/* ranges[sequences] of rows; of a sequence without tokens too. */
static void list_ranges(const iv_ops_attention *a, iv_row_range *ranges) {
    for (size_t i = 0, row = 0; i < a->sequences; row += a->lengths[i++])
        ranges[i] = (iv_row_range){row, a->lengths[i]};
}

static iv_row_range *new_ranges(const char *what, const iv_ops_attention *a, iv_error *err) {
    iv_row_range *ranges = malloc((a->sequences + 1) * sizeof *ranges);
    if (ranges)
        list_ranges(a, ranges);
    else
        iv_fail(err, IV_NO_MEMORY, "%s: no memory for %zu sequences", what, a->sequences);
    return ranges;
}

/* ---- rotation ---------------------------------------------------------------------------------------------------- */

typedef struct rope_job {
    const iv_ops *ops;
    const iv_ops_attention *a;
    const iv_row_range *range;
    float *qkv;
    char *q, *k, *v, *q_raw, *k_raw;
} rope_job;

static void rope_row(const rope_job *j, size_t row, size_t position) {
    const iv_ops_attention *a = j->a;
    const iv_kernels *kernels = j->ops->compute.kernels;
    iv_dtype type = j->ops->type;
    size_t dim = a->head_dim, q = a->heads * dim, kv = a->kv_heads * dim, width = iv_dtype_bytes(type);
    float *x = j->qkv + row * (q + 2 * kv);
    if (j->q_raw) {
        kernels->round(x, q, type, j->q_raw + row * q * width);
        kernels->round(x + q, kv, type, j->k_raw + row * kv * width);
    }
    for (size_t h = 0; h < a->heads + a->kv_heads; h++) {
        const float *norm = h < a->heads ? a->q_norm : a->k_norm;
        if (norm) kernels->rmsnorm(x + h * dim, norm, a->eps, dim, IV_F32, x + h * dim);
        kernels->rope(x + h * dim, a->cosine + position * dim / 2, a->sine + position * dim / 2, dim / 2);
    }
    kernels->round(x, q, type, j->q + row * q * width);
    kernels->round(x + q, kv, type, j->k + row * kv * width);
    kernels->round(x + q + kv, kv, type, j->v + row * kv * width);
}

enum { ROPE_ROWS = 64 };

static void rope_task(void *context, size_t index, size_t worker) {
    (void)worker;
    const rope_job *j = context;
    size_t first = index * ROPE_ROWS, last = iv_size_min(first + ROPE_ROWS, j->range->rows);
    for (size_t p = first; p < last; p++) rope_row(j, j->range->first + p, p);
}

iv_status iv_ops_rope(iv_ops *ops, const iv_ops_attention *a, float *qkv, void *q, void *k, void *v, void *q_raw,
                      void *k_raw, iv_error *err) {
    static const char what[] = "rope";
    size_t rows;
    IV_TRY(check_attention(what, a, &rows, err));
    IV_TRY(check_positions(what, a, err));
    if (!q_raw != !k_raw) return iv_fail(err, IV_INVALID, "%s: wanted arrays for q_raw and k_raw, or neither", what);
    IV_TRY(iv_ops_enter(ops, what, err));
    if (ops->gpu) return iv_ops_leave(ops, ops->gpu->rope(ops, a, rows, qkv, q, k, v, q_raw, k_raw, err));
    for (size_t i = 0, row = 0; i < a->sequences; row += a->lengths[i++]) {
        iv_row_range range = {row, a->lengths[i]};
        rope_job j = {ops, a, &range, qkv, q, k, v, q_raw, k_raw};
        iv_pool_run(ops->pool, (range.rows + ROPE_ROWS - 1) / ROPE_ROWS, rope_task, &j);
    }
    return iv_ops_leave(ops, IV_OK);
}

typedef struct terms_job {
    const iv_kernels *kernels;
    const float *terms;
    size_t dim, offset; /* offset: 0 of q_norm's terms, dim of k_norm's */
} terms_job;

static void add_terms(void *context, size_t row, size_t first, size_t count, float *acc) {
    const terms_job *j = context;
    j->kernels->add(acc, j->terms + row * 2 * j->dim + j->offset + first, count);
}

static iv_status rope_backward(iv_ops *ops, const iv_ops_attention *a, size_t rows, const void *q_raw,
                               const void *k_raw, float *dqkv, const iv_ops_pass *pass, const iv_axis_sums *sums,
                               iv_error *err) {
    size_t bytes = a->q_norm ? (rows + 1) * 2 * a->head_dim * sizeof(float) : 0;
    iv_row_range *ranges = new_ranges(ops->what, a, err);
    if (!ranges) return err->status;
    iv_status status = iv_ops_reserve(ops, ops->what, 0, bytes, err);
    if (status == IV_OK)
        iv_heads_backward(&ops->compute,
                          &(iv_heads_backward_args){.type = ops->type,
                                                    .heads = a->heads,
                                                    .kv_heads = a->kv_heads,
                                                    .dim = a->head_dim,
                                                    .leaves = iv_qkv_leaves(a->kv_heads),
                                                    .q_norm = a->q_norm,
                                                    .k_norm = a->k_norm,
                                                    .eps = a->eps,
                                                    .cosine = a->cosine,
                                                    .sine = a->sine,
                                                    .sequences = ranges,
                                                    .sequence_count = a->sequences,
                                                    .q_raw = q_raw,
                                                    .k_raw = k_raw,
                                                    .dqkv = dqkv,
                                                    .stride = (a->heads + 2 * a->kv_heads) * a->head_dim,
                                                    .terms = (float *)(void *)ops->work},
                          rows);
    free(ranges);
    for (size_t i = 0; i < 2 && status == IV_OK && pass && !pass->idle; i++) {
        terms_job j = {ops->compute.kernels, (float *)(void *)ops->work, a->head_dim, i * a->head_dim};
        iv_axis_sum_columns(&ops->compute, &(iv_axis_columns){&pass->axis, &sums[i], 0, j.dim, add_terms, &j});
    }
    return status;
}

static iv_status run_rope_backward(iv_ops *ops, const iv_ops_attention *a, size_t rows, const void *q_raw,
                                   const void *k_raw, float *dqkv, const iv_ops_pass *pass, const iv_axis_sums *sums,
                                   iv_error *err) {
    IV_TRY(iv_ops_enter(ops, "rope, backward", err));
    return iv_ops_leave(ops, ops->gpu ? ops->gpu->rope_backward(ops, a, rows, q_raw, k_raw, dqkv, pass, sums, err)
                                      : rope_backward(ops, a, rows, q_raw, k_raw, dqkv, pass, sums, err));
}

iv_status iv_ops_rope_backward(iv_ops *ops, const iv_ops_attention *a, const void *q_raw, const void *k_raw,
                               const iv_ops_axis *axis, float *dqkv, const iv_ops_sums *q_sums,
                               const iv_ops_sums *k_sums, iv_error *err) {
    static const char what[] = "rope, backward";
    size_t rows;
    iv_axis_sums sums[2];
    iv_ops_pass pass;
    IV_TRY(check_attention(what, a, &rows, err));
    IV_TRY(check_positions(what, a, err));
    if (!a->q_norm) return run_rope_backward(ops, a, rows, NULL, NULL, dqkv, NULL, NULL, err);
    if (!q_sums || !k_sums || (rows && (!q_raw || !k_raw)))
        return iv_fail(err, IV_INVALID, "%s: head norms: wanted q_raw, k_raw and sums, found NULL", what);
    IV_TRY(iv_ops_sums_of(what, axis, q_sums, &sums[0], err));
    IV_TRY(iv_ops_sums_of(what, axis, k_sums, &sums[1], err));
    IV_TRY(iv_ops_pass_open_of(what, axis, rows, &pass, err));
    iv_status status = run_rope_backward(ops, a, rows, q_raw, k_raw, dqkv, &pass, sums, err);
    iv_ops_pass_close(&pass);
    return status;
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

typedef struct page_job {
    const iv_kv_layout *layout;
    const char *k, *v;
    unsigned char *kv;
    const iv_attention_span *span;
    size_t row_bytes;  /* of all KV heads */
    atomic_size_t bad; /* the first row that is not finite; SIZE_MAX: none */
} page_job;

static void write_page(void *context, size_t block, size_t worker) {
    (void)worker;
    page_job *j = context;
    size_t first = block * IV_ATTENTION_BLOCK, last = iv_size_min(first + IV_ATTENTION_BLOCK, j->span->rows),
           head = j->row_bytes / j->layout->heads;
    for (size_t p = first; p < last; p++)
        for (size_t h = 0; h < j->layout->heads; h++) {
            size_t row = j->span->first_row + p, at = row * j->row_bytes + h * head, seen = atomic_load(&j->bad);
            if (iv_kv_write(j->layout, j->kv + j->span->pages[block] * j->layout->page_bytes, h, p - first, j->k + at,
                            j->v + at))
                continue;
            while (row < seen && !atomic_compare_exchange_weak(&j->bad, &seen, row)) continue;
        }
}

typedef struct pages {
    iv_kv_layout layout;
    unsigned char *kv;
    iv_attention_span *spans;
    size_t span_count;
} pages;

static iv_status lay_out(iv_ops *ops, const char *what, const iv_ops_attention *a, pages *out, iv_error *err) {
    size_t scratch, count = 0, threads = iv_pool_threads(ops->pool);
    uint32_t *numbers = NULL;
    if (!iv_kv_layout_make(&out->layout, ops->type, a->kv_heads, a->head_dim, a->head_dim) ||
        !iv_attention_scratch(&out->layout, &scratch) || !iv_size_mul(scratch, threads, &scratch))
        return iv_fail(err, IV_LIMIT, "%s: %zu KV heads of %zu are too large", what, a->kv_heads, a->head_dim);
    for (size_t i = 0; i < a->sequences; i++) count += (a->lengths[i] + IV_ATTENTION_BLOCK - 1) / IV_ATTENTION_BLOCK;
    iv_carving v = {.align = 64};
    for (int pass = 0; pass < 2; pass++) {
        out->kv = iv_carve(&v, count, out->layout.page_bytes);
        out->spans = iv_carve(&v, a->sequences, sizeof *out->spans);
        numbers = iv_carve(&v, count, sizeof *numbers);
        if (v.overflow) return iv_fail(err, IV_LIMIT, "%s: %zu pages are too large", what, count);
        if (pass == 0) IV_TRY(iv_ops_reserve(ops, what, scratch, v.at, err));
        v = (iv_carving){.base = ops->work, .align = 64};
    }
    memset(out->kv, 0, count * out->layout.page_bytes); /* unwritten slots are finite */
    for (size_t i = 0; i < count; i++) numbers[i] = (uint32_t)i;
    for (size_t i = 0, row = 0; i < a->sequences; row += a->lengths[i++]) {
        if (a->lengths[i] == 0) continue;
        out->spans[out->span_count++] = (iv_attention_span){row, a->lengths[i], 0, numbers};
        numbers += (a->lengths[i] + IV_ATTENTION_BLOCK - 1) / IV_ATTENTION_BLOCK;
    }
    return IV_OK;
}

static iv_status forward(iv_ops *ops, const iv_ops_attention *a, const void *q, const void *k, const void *v, void *out,
                         float *lse2, iv_error *err) {
    const char *what = ops->what;
    pages p = {0};
    IV_TRY(lay_out(ops, what, a, &p, err));
    page_job j = {&p.layout, k, v, p.kv, NULL, a->kv_heads * a->head_dim * iv_ops_width(ops), SIZE_MAX};
    for (size_t i = 0; i < p.span_count; i++) {
        j.span = &p.spans[i];
        iv_pool_run(ops->pool, (j.span->rows + IV_ATTENTION_BLOCK - 1) / IV_ATTENTION_BLOCK, write_page, &j);
    }
    if (j.bad != SIZE_MAX)
        return iv_fail(err, IV_NOT_FINITE, "%s: a key or value of row %zu is not finite", what, (size_t)j.bad);
    iv_attention(&ops->compute, &(iv_attention_args){.layout = &p.layout,
                                                     .kv = p.kv,
                                                     .heads = a->heads,
                                                     .group = a->heads / a->kv_heads,
                                                     .window = a->window,
                                                     .scale_log2e = iv_attention_scale_log2e(a->head_dim),
                                                     .q = q,
                                                     .out = out,
                                                     .spans = p.spans,
                                                     .span_count = p.span_count,
                                                     .lse2 = lse2});
    return IV_OK;
}

iv_status iv_ops_attention_forward(iv_ops *ops, const iv_ops_attention *a, const void *q, const void *k, const void *v,
                                   void *out, float *lse2, iv_error *err) {
    size_t rows;
    IV_TRY(check_attention("attention", a, &rows, err));
    if (rows == 0) return IV_OK;
    IV_TRY(iv_ops_enter(ops, "attention", err));
    return iv_ops_leave(ops, ops->gpu ? ops->gpu->attention(ops, a, rows, q, k, v, out, lse2, err)
                                      : forward(ops, a, q, k, v, out, lse2, err));
}

static iv_status backward(iv_ops *ops, iv_attention_backward_args *args, const iv_ops_attention *a, iv_error *err) {
    const char *what = ops->what;
    size_t longest = 0, scratch;
    for (size_t i = 0; i < a->sequences; i++) longest = iv_size_max(longest, a->lengths[i]);
    if (!iv_attention_backward_scratch(ops->type, a->head_dim, longest, &scratch) ||
        !iv_size_mul(scratch, iv_pool_threads(ops->pool), &scratch))
        return iv_fail(err, IV_LIMIT, "%s: a sequence of %zu tokens is too large", what, longest);
    IV_TRY(iv_ops_reserve(ops, what, scratch, 0, err));
    iv_row_range *ranges = new_ranges(what, a, err);
    if (!ranges) return err->status;
    size_t count = 0;
    for (size_t i = 0; i < a->sequences; i++)
        if (ranges[i].rows) ranges[count++] = ranges[i];
    args->sequences = ranges, args->sequence_count = count;
    iv_attention_backward(&ops->compute, args);
    free(ranges);
    return IV_OK;
}

iv_status iv_ops_attention_backward(iv_ops *ops, const iv_ops_attention *a, const void *q, const void *k, const void *v,
                                    const void *out, const void *dout, const float *lse2, float *dqkv, iv_error *err) {
    size_t rows;
    IV_TRY(check_attention("attention, backward", a, &rows, err));
    if (rows == 0) return IV_OK;
    iv_attention_backward_args args = {.type = ops->type,
                                       .kv_heads = a->kv_heads,
                                       .group = a->heads / a->kv_heads,
                                       .head_dim = a->head_dim,
                                       .window = a->window,
                                       .scale_log2e = iv_attention_scale_log2e(a->head_dim),
                                       .scale = iv_attention_scale(a->head_dim),
                                       .q = q,
                                       .out = out,
                                       .dout = dout,
                                       .k = k,
                                       .v = v,
                                       .lse2 = lse2,
                                       .dqkv = dqkv,
                                       .dqkv_stride = (a->heads + 2 * a->kv_heads) * a->head_dim};
    IV_TRY(iv_ops_enter(ops, "attention, backward", err));
    return iv_ops_leave(ops, ops->gpu ? ops->gpu->attention_backward(ops, a, rows, q, k, v, out, dout, lse2, dqkv, err)
                                      : backward(ops, &args, a, err));
}
