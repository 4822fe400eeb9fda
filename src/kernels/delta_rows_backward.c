/* delta_rows_backward.c: what the rows of a layer with a state do by themselves, backward: the gated norm, the gates,
 * the norms of queries and keys, the convolution. */
#include "base/size.h"
#include "kernels/delta_backward.h"
#include "kernels/heads_backward.h"
#include "numerics/attention.h"
#include "numerics/delta.h"
#include "numerics/delta_backward.h"
#include "numerics/floats.h"
#include "numerics/fma32.h"
#include "numerics/tree.h"

#include <string.h>

enum { CHUNK = IV_DELTA_CHUNK, DIM_MAX = 512 };

static const iv_activation silu = {.kind = IV_ACTIVATION_SILU};

static void fill(float *x, size_t n, float value) {
    for (size_t i = 0; i < n; i++) x[i] = value;
}

/* ---- the gated norm -------------------------------------------------------------------------------------- */

void iv_delta_norm_backward(const iv_compute *c, const iv_delta_backward_args *a, size_t row) {
    const iv_delta_layout *l = a->layout;
    const iv_kernels *k = c->kernels;
    const iv_delta_kept *kept = a->forward->kept;
    size_t n = l->value_dim, values = l->value_heads * n, leaf_heads = l->value_heads / a->leaves;
    float leaves[IV_LEAVES_MAX * DIM_MAX], o[DIM_MAX], z[DIM_MAX], normed[DIM_MAX], dnormed[DIM_MAX];
    memset(leaves, 0, a->leaves * n * sizeof *leaves);
    for (size_t h = 0; h < l->value_heads; h++) {
        size_t at = row * values + h * n;
        const float *d = a->dattended + at, *w = a->forward->norm;
        iv_delta_widen(l->type, kept->o, at, n, o), iv_delta_widen(l->type, kept->z, at, n, z);
        k->rmsnorm(o, w, a->forward->eps, n, IV_F32, normed);
        k->activate_backward(&silu, IV_F32, z, normed, d, n, IV_F32, a->dx + row * l->width + l->channels + h * n,
                             dnormed);
        float r = k->rmsnorm_backward(o, w, a->forward->eps, n, dnormed, NULL, normed);
        k->norm_weight_backward(dnormed, o, r, n, leaves + h / leaf_heads * n);
        k->round(normed, n, l->type, (char *)a->dout + at * iv_dtype_bytes(l->type));
    }
    iv_add_leaves(leaves, a->leaves, n);
    memcpy(a->terms + row * n, leaves, n * sizeof *leaves);
}

/* ---- up to the sums of the convolution ------------------------------------------------------------------- */

/* The sums y of n channels, and their silu. */
void iv_delta_convolve_sums(const iv_compute *c, const iv_delta_args *a, const iv_delta_span *s, size_t i,
                            size_t channel, size_t n, float *y, float *x) {
    float ones[CHUNK];
    fill(ones, CHUNK, 1.0f);
    for (size_t from = 0, m; from < n; from += m) {
        m = iv_size_min(CHUNK, n - from);
        iv_delta_convolve(c, a, s, s->position + i, channel + from, m, y + from);
        c->kernels->activate(&silu, y + from, ones, m, IV_F32, x + from);
    }
}

/* d, the gradient of n channels behind their silu, becomes that of the sums y. */
void iv_delta_sums_backward(const iv_compute *c, const float *y, size_t n, float *d) {
    float ones[CHUNK], unused[CHUNK], out[CHUNK];
    fill(ones, CHUNK, 1.0f);
    for (size_t from = 0, m; from < n; from += m) {
        m = iv_size_min(CHUNK, n - from);
        c->kernels->activate_backward(&silu, IV_F32, y + from, ones, d + from, m, IV_F32, out, unused);
        memcpy(d + from, out, m * sizeof *d);
    }
}

/* A head of queries or keys. */
static void head_backward(const iv_compute *c, const iv_delta_backward_args *a, const iv_delta_span *s, size_t i,
                          size_t head, float *d) {
    const iv_delta_layout *l = a->layout;
    const iv_kernels *k = c->kernels;
    size_t n = l->key_dim;
    float y[DIM_MAX], x[DIM_MAX], ones[DIM_MAX], out[DIM_MAX];
    fill(ones, n, 1.0f);
    iv_delta_convolve_sums(c, a->forward, s, i, head * n, n, y, x);
    if (head < l->key_heads) k->scale(d, n, iv_delta_query_scale(n));
    float r = iv_l2_factor_of(k->row_dot(IV_F32, x, x, n));
    k->norm_by_backward(x, ones, r, k->norm_dot(x, ones, r, n, d), n, d, out);
    memcpy(d, out, n * sizeof *d);
    iv_delta_sums_backward(c, y, n, d);
}

void iv_delta_mix_backward(const iv_compute *c, const iv_delta_backward_args *a, const iv_delta_span *s, size_t i) {
    const iv_delta_layout *l = a->layout;
    size_t row = s->first_row + i;
    const float *gates = a->forward->kept->gates + row * 3 * l->value_heads;
    float *d = a->dx + row * l->width, *da = d + l->width - l->value_heads, y[DIM_MAX], x[DIM_MAX];
    for (size_t h = 0; h < 2 * l->key_heads; h++) head_backward(c, a, s, i, h, d + h * l->key_dim);
    for (size_t h = 0; h < l->value_heads; h++) {
        size_t channel = 2 * l->keys + h * l->value_dim;
        const float *decay = gates + l->value_heads, *of_a = decay + l->value_heads;
        iv_delta_convolve_sums(c, a->forward, s, i, channel, l->value_dim, y, x);
        iv_delta_sums_backward(c, y, l->value_dim, d + channel);
        a->d_log[row * l->value_heads + h] = iv_canonical(da[h] * decay[h]);
        da[h] = iv_ref_delta_decay_backward(da[h], of_a[h], a->forward->dt_bias[h], a->forward->a_log[h]);
    }
}

/* ---- through the convolution ----------------------------------------------------------------------------- */

/* The gradients of the inputs of channels [from, from + n) at row i, n at most CHUNK. */
void iv_delta_input_gradients(const iv_compute *c, const iv_delta_backward_args *a, const iv_delta_span *s, size_t i,
                              size_t from, size_t n, float *out) {
    const iv_delta_layout *l = a->layout;
    float weight[CHUNK];
    memset(out, 0, n * sizeof *out);
    for (size_t j = 0; j < l->taps; j++) {
        size_t at = i + l->taps - 1 - j;
        if (at >= s->rows) continue;
        for (size_t e = 0; e < n; e++) weight[e] = a->forward->conv[(from + e) * l->taps + j];
        c->kernels->add_product(out, weight, a->dx + (s->first_row + at) * l->width + from, n);
    }
}

void iv_delta_inputs_backward(const iv_compute *c, const iv_delta_backward_args *a, const iv_delta_span *s, size_t i) {
    const iv_delta_layout *l = a->layout;
    size_t row = s->first_row + i, width = iv_dtype_bytes(l->type);
    char *dy = (char *)a->dy + row * l->width * width;
    float d[CHUNK];
    for (size_t from = 0, n; from < l->channels; from += n) {
        n = iv_size_min(CHUNK, l->channels - from);
        iv_delta_input_gradients(c, a, s, i, from, n, d);
        c->kernels->round(d, n, l->type, dy + from * width);
    }
    c->kernels->round(a->dx + row * l->width + l->channels, l->width - l->channels, l->type, dy + l->channels * width);
}

void iv_delta_taps_backward(const iv_delta_backward_args *a, const iv_delta_span *s, size_t i, size_t first,
                            size_t count, float *sum) {
    const iv_delta_layout *l = a->layout;
    const float *d = a->dx + (s->first_row + i) * l->width;
    for (size_t e = 0; e < count; e++) {
        size_t channel = (first + e) / l->taps, at = i + (first + e) % l->taps;
        if (at + 1 < l->taps) continue; /* before position 0 */
        size_t input = (s->first_row + at + 1 - l->taps) * l->channels + channel;
        sum[e] = iv_canonical(iv_fma(d[channel], iv_element(l->type, a->forward->inputs, input), sum[e]));
    }
}

/* ---- short convolutions ---------------------------------------------------------------------------------- */

void iv_conv_mix_backward(const iv_compute *c, const iv_delta_backward_args *a, const iv_delta_span *s, size_t i) {
    const iv_delta_layout *l = a->layout;
    size_t row = s->first_row + i;
    const float *d = a->dattended + row * l->channels;
    float *dx = a->dx + row * l->width, y[CHUNK], gate[CHUNK];
    for (size_t from = 0, n; from < l->channels; from += n) {
        n = iv_size_min(CHUNK, l->channels - from);
        iv_delta_convolve(c, a->forward, s, s->position + i, from, n, y);
        iv_delta_widen(l->type, a->forward->kept->z, row * l->width + l->channels + from, n, gate);
        for (size_t e = 0; e < n; e++) {
            dx[from + e] = iv_canonical(d[from + e] * gate[e]);
            dx[l->channels + from + e] = iv_canonical(d[from + e] * y[e]);
        }
    }
}

void iv_conv_inputs_backward(const iv_compute *c, const iv_delta_backward_args *a, const iv_delta_span *s, size_t i) {
    const iv_delta_layout *l = a->layout;
    size_t row = s->first_row + i, width = iv_dtype_bytes(l->type);
    char *dy = (char *)a->dy + row * l->width * width;
    float d[CHUNK], b[CHUNK], x[CHUNK];
    for (size_t from = 0, n; from < l->channels; from += n) {
        n = iv_size_min(CHUNK, l->channels - from);
        iv_delta_input_gradients(c, a, s, i, from, n, d);
        iv_delta_widen(l->type, a->forward->kept->z, row * l->width + from, n, b);
        iv_delta_widen(l->type, a->forward->kept->z, row * l->width + 2 * l->channels + from, n, x);
        for (size_t e = 0; e < n; e++) b[e] = iv_canonical(d[e] * b[e]), x[e] = iv_canonical(d[e] * x[e]);
        c->kernels->round(x, n, l->type, dy + from * width);
        c->kernels->round(b, n, l->type, dy + (2 * l->channels + from) * width);
    }
    c->kernels->round(a->dx + row * l->width + l->channels, l->channels, l->type, dy + l->channels * width);
}
