/* delta_rows.c: what the rows of a delta layer do by themselves: the convolution and its inputs, gates, norms. */
#include "base/size.h"
#include "kernels/scan.h"
#include "numerics/delta.h"
#include "numerics/fma32.h"
#include "numerics/router.h"

#include <string.h>

enum { B = IV_DELTA_BLOCK, CHUNK = IV_DELTA_CHUNK };

static bool add(size_t *at, size_t n, size_t bytes) {
    return iv_size_mul(n, bytes, &bytes) && iv_size_round_up(bytes, 64, &bytes) && iv_size_add(*at, bytes, at);
}

bool iv_delta_layout_make(iv_delta_layout *l, iv_dtype type, const iv_delta_sizes *z) {
    size_t width = iv_dtype_bytes(type), values = z->value_heads * z->value_dim;
    *l = (iv_delta_layout){.type = type,
                           .key_heads = z->key_heads,
                           .value_heads = z->value_heads,
                           .group = z->group,
                           .group_first = z->group_first,
                           .key_dim = z->key_dim,
                           .value_dim = z->value_dim,
                           .taps = z->taps,
                           .keys = z->key_heads * z->key_dim};
    l->channels = 2 * l->keys + values, l->width = l->channels + values + 2 * z->value_heads;
    if (z->scan) l->scan = true, l->width -= z->value_heads;
    if (!iv_matrix_shape(&l->key, type, B, z->key_dim) || !iv_matrix_shape(&l->update, type, z->value_dim, B) ||
        !iv_matrix_shape(&l->rounded, type, z->value_dim, z->key_dim))
        return false;
    l->state_bytes = l->rounded.panels * l->rounded.k_padded * IV_PANEL_COLUMNS * sizeof(float);
    bool fits = add(&l->slot_inputs, z->value_heads, l->state_bytes);
    l->slot_bytes = l->slot_inputs;
    fits = fits && add(&l->slot_bytes, (z->taps - 1) * l->channels, width);
    fits = fits && add(&l->tail_updates, z->key_heads, iv_matrix_bytes(&l->key));
    l->tail_rounded = l->tail_updates;
    fits = fits && add(&l->tail_rounded, z->value_heads, iv_matrix_bytes(&l->update));
    l->tail_totals = l->tail_rounded;
    fits = fits && add(&l->tail_totals, z->value_heads, iv_matrix_bytes(&l->rounded));
    l->tail_inputs = l->tail_totals;
    fits = fits && add(&l->tail_inputs, z->value_heads * B, sizeof(float));
    l->tail_bytes = l->tail_inputs;
    return fits && add(&l->tail_bytes, (z->taps - 1 + B) * l->channels, width);
}

bool iv_conv_layout_make(iv_delta_layout *l, iv_dtype type, size_t channels, size_t taps) {
    size_t width = iv_dtype_bytes(type);
    *l = (iv_delta_layout){.type = type, .taps = taps, .channels = channels, .width = 3 * channels};
    return add(&l->slot_bytes, (taps - 1) * channels, width) && add(&l->tail_bytes, (taps - 1 + B) * channels, width);
}

bool iv_delta_finite(iv_dtype type, const void *p, size_t n) {
    static const uint32_t exponent[3] = {0x7f80u, 0x7c00u, 0x7f800000u};
    uint32_t mask = exponent[type];
    bool bad = false;
    for (size_t i = 0; i < n; i++) {
        uint32_t u = type == IV_F32 ? ((const uint32_t *)p)[i] : ((const uint16_t *)p)[i];
        bad |= (u & mask) == mask;
    }
    return !bad;
}

/* ---- inputs of the convolution --------------------------------------------------------------------------- */

void iv_delta_inputs(const iv_compute *c, const iv_delta_args *a, size_t row) {
    const iv_delta_layout *l = a->layout;
    c->kernels->round(a->x + row * l->width, l->channels, l->type,
                      (char *)a->inputs + row * l->channels * iv_dtype_bytes(l->type));
}

static size_t input_bytes(const iv_delta_layout *l) { return l->channels * iv_dtype_bytes(l->type); }

/* Those of `position + offset - (taps - 1)`: of the span itself, or as its first block's buffer has them; NULL: they
 * are before position 0 of a whole sequence, and +0. */
static const char *input_at(const iv_delta_args *a, const iv_delta_span *s, size_t position, size_t offset) {
    const iv_delta_layout *l = a->layout;
    size_t at = position + offset, behind = s->position + l->taps - 1, bytes = input_bytes(l);
    if (at >= behind) return (const char *)a->inputs + (s->first_row + at - behind) * bytes;
    if (!s->now) return NULL;
    return (const char *)s->now + l->tail_inputs + (at - s->position / B * B) * bytes;
}

void iv_delta_open(const iv_delta_args *a, const iv_delta_span *s) {
    const iv_delta_layout *l = a->layout;
    size_t bytes = input_bytes(l), before = l->taps - 1, end = s->position + s->rows;
    size_t first = s->position / B, last = (end - 1) / B;
    char *now = (char *)s->now + l->tail_inputs, *next = (char *)s->next + l->tail_inputs;
    if (s->position % B == 0) {
        if (s->from)
            memcpy(now, s->from + l->slot_inputs, before * bytes);
        else
            memset(now, 0, before * bytes);
    }
    for (size_t p = s->position; p < iv_size_min(end, (first + 1) * B); p++)
        memcpy(now + (before + p % B) * bytes, input_at(a, s, p, before), bytes);
    for (size_t i = 0; last > first && i < before + (end - last * B); i++)
        memcpy(next + i * bytes, input_at(a, s, last * B, i), bytes);
    for (size_t w = 0; w < s->write_count; w++)
        for (size_t i = 0; i < before; i++)
            memcpy(s->writes[w].slot + l->slot_inputs + i * bytes, input_at(a, s, s->writes[w].block * B, i), bytes);
}

/* ---- a row ----------------------------------------------------------------------------------------------- */

void iv_delta_widen(iv_dtype type, const void *x, size_t from, size_t n, float *out) {
    switch (type) {
    case IV_BF16:
        for (size_t i = 0; i < n; i++) out[i] = iv_bf16_to_f32(((const iv_bf16 *)x)[from + i]);
        return;
    case IV_F16:
        for (size_t i = 0; i < n; i++) out[i] = iv_f16_to_f32(((const iv_f16 *)x)[from + i]);
        return;
    default: memcpy(out, (const float *)x + from, n * sizeof *out);
    }
}

void iv_delta_convolve(const iv_compute *c, const iv_delta_args *a, const iv_delta_span *s, size_t position,
                       size_t from, size_t n, float *y) {
    const iv_delta_layout *l = a->layout;
    float input[CHUNK], weight[CHUNK];
    if (a->scan && a->scan->conv_bias)
        memcpy(y, a->scan->conv_bias + from, n * sizeof *y);
    else
        memset(y, 0, n * sizeof *y);
    for (size_t j = 0; j < l->taps; j++) {
        const char *inputs = input_at(a, s, position, j);
        if (inputs)
            iv_delta_widen(l->type, inputs, from, n, input);
        else
            memset(input, 0, sizeof input);
        for (size_t i = 0; i < n; i++) weight[i] = a->conv[(from + i) * l->taps + j];
        c->kernels->add_product(y, weight, input, n);
    }
}

/* silu(y) * 1 */
void iv_delta_convolve_row(const iv_compute *c, const iv_delta_args *a, const iv_delta_span *s, size_t position,
                           float *x) {
    static const iv_activation silu = {.kind = IV_ACTIVATION_SILU};
    float y[CHUNK], ones[CHUNK];
    for (size_t i = 0; i < CHUNK; i++) ones[i] = 1.0f;
    for (size_t from = 0, n; from < a->layout->channels; from += n) {
        n = iv_size_min(CHUNK, a->layout->channels - from);
        iv_delta_convolve(c, a, s, position, from, n, y);
        c->kernels->activate(&silu, y, ones, n, IV_F32, x + from);
    }
}

bool iv_delta_mix(const iv_compute *c, const iv_delta_args *a, const iv_delta_span *s, size_t i) {
    const iv_delta_layout *l = a->layout;
    const iv_kernels *k = c->kernels;
    size_t row = s->first_row + i, width = iv_dtype_bytes(l->type);
    float *x = a->x + row * l->width, *b = x + l->width - 2 * l->value_heads, *decay = b + l->value_heads;
    char *qk = (char *)a->qk + row * 2 * l->keys * width;
    iv_delta_convolve_row(c, a, s, s->position + i, x);
    for (size_t h = 0; h < 2 * l->key_heads; h++) {
        float *head = x + h * l->key_dim;
        k->scale(head, l->key_dim, iv_l2_factor_of(k->row_dot(IV_F32, head, head, l->key_dim)));
        if (h < l->key_heads) k->scale(head, l->key_dim, iv_delta_query_scale(l->key_dim));
    }
    k->round(x, 2 * l->keys, l->type, qk);
    float *gates = a->kept ? a->kept->gates + row * 3 * l->value_heads : NULL;
    if (gates) memcpy(gates + 2 * l->value_heads, decay, l->value_heads * sizeof *gates);
    for (size_t h = 0; h < l->value_heads; h++) {
        b[h] = iv_ref_sigmoid(b[h]);
        decay[h] = iv_ref_delta_decay(decay[h], a->dt_bias[h], a->a_log[h]);
    }
    if (gates) memcpy(gates, b, 2 * l->value_heads * sizeof *gates);
    return iv_delta_finite(l->type, qk + l->keys * width, l->keys);
}

void iv_delta_norm(const iv_compute *c, const iv_delta_args *a, size_t row) {
    static const iv_activation silu = {.kind = IV_ACTIVATION_SILU};
    const iv_delta_layout *l = a->layout;
    size_t values = l->value_heads * l->value_dim, width = iv_dtype_bytes(l->type);
    float *o = a->x + row * l->width + 2 * l->keys;
    if (a->kept) {
        c->kernels->round(o, values, l->type, (char *)a->kept->o + row * values * width);
        c->kernels->round(o + values, values, l->type, (char *)a->kept->z + row * values * width);
    }
    for (size_t h = 0; h < l->value_heads; h++)
        c->kernels->rmsnorm(o + h * l->value_dim, a->norm, a->eps, l->value_dim, IV_F32, o + h * l->value_dim);
    c->kernels->activate(&silu, o + values, o, values, l->type, (char *)a->out + row * values * width);
}

/* ---- short convolutions ----------------------------------------------------------------------------------- */

bool iv_conv_inputs(const iv_compute *c, const iv_delta_args *a, size_t row) {
    const iv_delta_layout *l = a->layout;
    const float *b = a->x + row * l->width, *x = b + 2 * l->channels;
    char *inputs = (char *)a->inputs + row * input_bytes(l);
    float product[CHUNK];
    if (a->kept) c->kernels->round(b, l->width, l->type, (char *)a->kept->z + row * l->width * iv_dtype_bytes(l->type));
    for (size_t from = 0, n; from < l->channels; from += n) {
        n = iv_size_min(CHUNK, l->channels - from);
        for (size_t i = 0; i < n; i++) product[i] = b[from + i] * x[from + i];
        c->kernels->round(product, n, l->type, inputs + from * iv_dtype_bytes(l->type));
    }
    return iv_delta_finite(l->type, inputs, l->channels);
}

void iv_conv_mix(const iv_compute *c, const iv_delta_args *a, const iv_delta_span *s, size_t i) {
    const iv_delta_layout *l = a->layout;
    const float *gate = a->x + (s->first_row + i) * l->width + l->channels;
    char *out = (char *)a->out + (s->first_row + i) * input_bytes(l);
    float y[CHUNK];
    for (size_t from = 0, n; from < l->channels; from += n) {
        n = iv_size_min(CHUNK, l->channels - from);
        iv_delta_convolve(c, a, s, s->position + i, from, n, y);
        for (size_t k = 0; k < n; k++) y[k] = gate[from + k] * y[k];
        c->kernels->round(y, n, l->type, out + from * iv_dtype_bytes(l->type));
    }
}
