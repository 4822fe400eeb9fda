/* ops.c: the product's kernels with other cuts, a ring in place of the tree, and OpenBLAS in place of tiles. */
#include "baseline/ops.h"
#include "base/size.h"
#include "baseline/blas.h"
#include "baseline/widened.h"
#include "kernels/attention.h"
#include "kernels/int8.h"
#include "kernels/scan.h"
#include "kernels/linear.h"
#include "kernels/tree_allreduce.h"
#include "numerics/delta.h"
#include "numerics/floats.h"

#include <stdlib.h>

struct iv_baseline {
    iv_kernels kernels; /* first: an op finds its baseline by its table */
    iv_numerics numerics;
    iv_blas *blas; /* IV_VANILLA_BLAS only */
    iv_widened *widened;
};

static const iv_baseline *baseline_of(const iv_compute *c) { return (const iv_baseline *)(const void *)c->kernels; }

static void cut_linear(const iv_compute *c, const iv_linear_args *a) {
    const iv_matrix *w = a->weight;
    iv_linear_split_k(c, a, iv_baseline_split_k(baseline_of(c)->numerics, a->rows, w->n, w->leaves));
}

static void blas_linear(const iv_compute *c, const iv_linear_args *a) {
    const iv_baseline *b = baseline_of(c);
    if (a->rows == 0 || a->weight->n == 0) return;
    iv_blas_linear(b->blas, c, a, iv_widened_rows(b->widened, a->weight));
}

static void cut_attention(const iv_compute *c, const iv_attention_args *a) {
    size_t blocks = 0;
    for (size_t i = 0; i < a->span_count; i++) {
        size_t end = (size_t)a->spans[i].position + a->spans[i].rows;
        blocks = iv_size_max(blocks, (end + IV_ATTENTION_BLOCK - 1) / IV_ATTENTION_BLOCK);
    }
    iv_attention_kv_split(c, a,
                          iv_baseline_kv_split_blocks(baseline_of(c)->numerics, iv_attention_tasks(c, a), blocks));
}

static float rounded(iv_dtype dtype, float x) {
    switch (dtype) {
    case IV_BF16: return iv_bf16_to_f32(iv_bf16_from_f32(x));
    case IV_F16: return iv_f16_to_f32(iv_f16_from_f32(x));
    default: return x;
    }
}

/* One scale for all rows of a call, as an engine has it that quantizes a batch at once. */
static void batch_magnitudes(const iv_compute *c, const iv_linear_args *a, uint32_t *out) {
    uint32_t most = 0;
    iv_int8_magnitudes(c, a, out);
    for (size_t row = 0; row < a->rows; row++) most = out[row] > most ? out[row] : most;
    for (size_t row = 0; row < a->rows; row++) out[row] = most;
}

/* An all-reduce in a ring, in the run's dtype. The columns of a row are cut into as many chunks as there are nodes; the
 * sum of chunk c starts at node c and is rounded to the dtype at every hop. */
static void ring_allreduce(const iv_compute *c, const iv_allreduce_args *a) {
    (void)c;
    float sum[IV_ALLREDUCE_COLUMNS];
    size_t nodes = a->order->count + 1;
    IV_ASSERT(a->n <= IV_ALLREDUCE_COLUMNS && a->column + a->n <= a->hidden);
    for (size_t i = 0; i < a->n; i++) {
        size_t first = (a->column + i) * nodes / a->hidden;
        sum[i] = rounded(a->dtype, a->node[first][i]);
        for (size_t hop = 1; hop < nodes; hop++)
            sum[i] = rounded(a->dtype, sum[i] + rounded(a->dtype, a->node[(first + hop) % nodes][i]));
    }
    iv_residual_add(sum, a->bias, a->n, a->x);
}

/* Element n of a packed matrix's input k. */
static float packed(const iv_matrix *m, const unsigned char *data, size_t n, size_t k) {
    size_t panel = n / IV_PANEL_COLUMNS * (m->k_padded * IV_PANEL_COLUMNS);
    return iv_element(m->type, data, panel + iv_panel_index(m->type, k, n % IV_PANEL_COLUMNS));
}

/* A scan's x, which its y has replaced: a channel of the convolution. */
static float scan_input(const iv_compute *c, const iv_delta_args *a, const iv_delta_span *s, size_t channel) {
    static const iv_activation silu = {.kind = IV_ACTIVATION_SILU};
    float y, x, one = 1.0f;
    iv_delta_convolve(c, a, s, s->position, channel, 1, &y);
    c->kernels->activate(&silu, &y, &one, 1, IV_F32, &x);
    return x;
}

/* o of one row as the recurrence has it: the state at the border, decayed and updated row by row. */
static void recur(const iv_compute *c, const iv_delta_args *a, const iv_delta_span *s, size_t key_head,
                  size_t value_head) {
    const iv_delta_layout *l = a->layout;
    size_t at = s->position % IV_DELTA_BLOCK, width = iv_dtype_bytes(l->type);
    const float *totals = (const float *)(const void *)(s->now + l->tail_totals) + value_head * IV_DELTA_BLOCK;
    const unsigned char *keys = s->now + key_head * iv_matrix_bytes(&l->key);
    const unsigned char *updates = s->now + l->tail_updates + value_head * iv_matrix_bytes(&l->update);
    const float *border = s->from ? (const float *)(const void *)(s->from + value_head * l->state_bytes) : NULL;
    const char *q = (const char *)a->qk + (s->first_row * 2 * l->keys + key_head * l->key_dim) * width;
    float *o = a->x + s->first_row * l->width + 2 * l->keys + value_head * l->value_dim;
    for (size_t j = 0; j < l->value_dim; j++) {
        float sum = 0.0f;
        for (size_t k = 0; k < l->key_dim; k++) {
            size_t panel = j / IV_PANEL_COLUMNS * l->rounded.k_padded + k;
            float state = border ? border[panel * IV_PANEL_COLUMNS + j % IV_PANEL_COLUMNS] : 0.0f;
            for (size_t i = 0; i <= at; i++)
                state = state * iv_ref_delta_factor(totals[i], i ? totals[i - 1] : 0.0f) +
                        packed(&l->key, keys, i, k) * packed(&l->update, updates, j, i);
            sum += state * iv_element(l->type, q, k);
        }
        o[j] = l->scan
                   ? sum + a->scan->skip[value_head] * scan_input(c, a, s, 2 * l->keys + value_head * l->value_dim + j)
                   : sum;
    }
}

/* A step of one row by the recurrence, of more by blocks. */
static bool recurrent_delta(const iv_compute *c, const iv_delta_args *a, const iv_delta_span *s, size_t key_head,
                            void *scratch) {
    const iv_delta_layout *l = a->layout;
    bool finite = iv_delta_heads(c, a, s, key_head, scratch);
    for (size_t h = 0; s->rows == 1 && s->now && finite && h < l->value_heads; h++)
        if ((h + l->group_first) / l->group == key_head) recur(c, a, s, key_head, h);
    return finite;
}

iv_status iv_baseline_open(iv_numerics numerics, const iv_kernels *kernels, size_t threads, iv_baseline **out,
                           iv_error *err) {
    IV_ASSERT(numerics != IV_INVAR);
    iv_baseline *b = calloc(1, sizeof *b);
    if (!b) return iv_fail(err, IV_NO_MEMORY, "numerics %s: no memory", iv_numerics_name(numerics));
    b->kernels = *kernels, b->numerics = numerics;
    b->kernels.linear = cut_linear;
    if (numerics != IV_BIO)
        b->kernels.attention = cut_attention, b->kernels.allreduce = ring_allreduce, b->kernels.delta = recurrent_delta,
        b->kernels.magnitudes = batch_magnitudes;
    if (numerics == IV_VANILLA_BLAS) {
        b->kernels.linear = blas_linear;
        iv_status status = iv_blas_open(threads, &b->blas, err);
        if (status != IV_OK) {
            free(b);
            return status;
        }
    }
    *out = b;
    return IV_OK;
}

void iv_baseline_close(iv_baseline *b) {
    if (!b) return;
    iv_widened_close(b->widened);
    iv_blas_close(b->blas);
    free(b);
}

const iv_kernels *iv_baseline_kernels(const iv_baseline *b) { return &b->kernels; }

bool iv_baseline_widens(const iv_baseline *b) { return b && b->blas; }

iv_status iv_baseline_widen(iv_baseline *b, const void *owner, iv_matrix *const *matrices, size_t count, iv_pool *pool,
                            iv_error *err) {
    return iv_widened_add(&b->widened, owner, matrices, count, pool, err);
}

void iv_baseline_forget(iv_baseline *b, const void *owner) {
    if (b) iv_widened_forget(&b->widened, owner);
}
