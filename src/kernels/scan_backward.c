/* scan_backward.c: what the rows of a scan do by themselves, backward. */
#include "kernels/scan_backward.h"
#include "base/size.h"
#include "numerics/delta.h"
#include "numerics/delta_backward.h"
#include "numerics/floats.h"
#include "numerics/fma32.h"

#include <string.h>

enum { DIM_MAX = 512 };

static const iv_activation silu = {.kind = IV_ACTIVATION_SILU};

/* ---- the norm and the gate -------------------------------------------------------------------------------- */

/* Of one head of a row. */
typedef struct head {
    size_t at;                     /* of the row's values */
    float z[DIM_MAX];              /* the gate */
    float x[DIM_MAX], dy[DIM_MAX]; /* what the norm takes, and the gradient of its result */
    float of_gate[DIM_MAX];        /* the gradient of a gate behind the norm */
    float r;
} head;

/* Values [first, first + n) of head h, n at most DIM_MAX. */
static void read_head(const iv_compute *c, const iv_delta_backward_args *a, size_t row, size_t h, size_t first,
                      size_t n, head *out) {
    const iv_delta_layout *l = a->layout;
    const iv_delta_args *f = a->forward;
    size_t at = row * l->value_heads * l->value_dim + h * l->value_dim + first;
    float o[DIM_MAX];
    out->at = h * l->value_dim + first, out->r = f->kept->factors[row * l->value_heads + h];
    iv_delta_widen(l->type, f->kept->o, at, n, o), iv_delta_widen(l->type, f->kept->z, at, n, out->z);
    const float *d = a->dattended + at;
    if (f->scan->gate_behind) {
        float normed[DIM_MAX];
        memcpy(out->x, o, n * sizeof *o);
        c->kernels->norm_by(o, f->norm + out->at, out->r, n, IV_F32, normed);
        c->kernels->activate_backward(&silu, IV_F32, out->z, normed, d, n, IV_F32, out->of_gate, out->dy);
    } else {
        c->kernels->activate(&silu, out->z, o, n, IV_F32, out->x);
        memcpy(out->dy, d, n * sizeof *d);
    }
}

/* From the gradient d of the gated output of a head to those of z and of y. */
static void gate_backward(const iv_compute *c, const iv_delta_backward_args *a, size_t row, size_t h, const float *d) {
    const iv_delta_layout *l = a->layout;
    size_t n = l->value_dim, at = (row * l->value_heads + h) * n;
    float o[DIM_MAX], z[DIM_MAX], dy[DIM_MAX];
    iv_delta_widen(l->type, a->forward->kept->o, at, n, o), iv_delta_widen(l->type, a->forward->kept->z, at, n, z);
    c->kernels->activate_backward(&silu, IV_F32, z, o, d, n, IV_F32, a->dx + row * l->width + l->channels + h * n, dy);
    c->kernels->round(dy, n, l->type, (char *)a->dout + at * iv_dtype_bytes(l->type));
}

/* The heads of one group. */
static void group_backward(const iv_compute *c, const iv_delta_backward_args *a, size_t row, size_t first) {
    const iv_delta_layout *l = a->layout;
    const iv_kernels *k = c->kernels;
    size_t n = l->value_dim;
    const float *w = a->forward->norm;
    float sum = 0.0f, d[DIM_MAX];
    head x;
    for (size_t h = first; h < first + l->group; h++) {
        read_head(c, a, row, h, 0, n, &x);
        sum = sum + k->norm_dot(x.x, w + x.at, x.r, n, x.dy);
    }
    float mean = sum / (float)(l->group * n);
    for (size_t h = first; h < first + l->group; h++) {
        read_head(c, a, row, h, 0, n, &x);
        k->norm_by_backward(x.x, w + x.at, x.r, mean, n, x.dy, d);
        if (a->forward->scan->gate_behind) {
            memcpy(a->dx + row * l->width + l->channels + x.at, x.of_gate, n * sizeof *d);
            k->round(d, n, l->type, (char *)a->dout + (row * l->value_heads * n + x.at) * iv_dtype_bytes(l->type));
        } else
            gate_backward(c, a, row, h, d);
    }
}

void iv_scan_norm_backward(const iv_compute *c, const iv_delta_backward_args *a, size_t row) {
    const iv_delta_layout *l = a->layout;
    for (size_t h = 0; a->forward->norm && h < l->value_heads; h += l->group) group_backward(c, a, row, h);
    for (size_t h = 0; !a->forward->norm && h < l->value_heads; h++)
        gate_backward(c, a, row, h, a->dattended + (row * l->value_heads + h) * l->value_dim);
}

void iv_scan_norm_terms(const iv_compute *c, const iv_delta_backward_args *a, size_t row, size_t first, size_t count,
                        float *sum) {
    size_t dim = a->layout->value_dim;
    head x;
    for (size_t i = 0, n; i < count; i += n) {
        size_t h = (first + i) / dim, from = (first + i) % dim;
        n = iv_size_min(count - i, dim - from);
        read_head(c, a, row, h, from, n, &x);
        c->kernels->norm_weight_backward(x.dy, x.x, x.r, n, sum + i);
    }
}

/* ---- up to the sums of the convolution -------------------------------------------------------------------- */

void iv_scan_mix_backward(const iv_compute *c, const iv_delta_backward_args *a, const iv_delta_span *s, size_t i,
                          float *skip) {
    const iv_delta_layout *l = a->layout;
    const iv_delta_args *f = a->forward;
    size_t row = s->first_row + i, n = l->value_dim, heads = l->value_heads;
    const float *step = f->kept->gates + row * 3 * heads, *decay = step + heads, *dt = decay + heads;
    float *d = a->dx + row * l->width, *ddt = d + l->width - heads, y[DIM_MAX], x[DIM_MAX], dy[DIM_MAX];
    for (size_t g = 0; g < 2 * l->key_heads; g++) {
        iv_delta_convolve_sums(c, f, s, i, g * l->key_dim, l->key_dim, y, x);
        iv_delta_sums_backward(c, y, l->key_dim, d + g * l->key_dim);
    }
    for (size_t h = 0; h < heads; h++) {
        size_t channel = 2 * l->keys + h * n;
        float *du = d + channel, of_decay = ddt[h];
        iv_delta_convolve_sums(c, f, s, i, channel, n, y, x);
        iv_delta_widen(l->type, a->dout, (row * heads + h) * n, n, dy);
        skip[row * heads + h] = c->kernels->row_dot(IV_F32, dy, x, n);
        float of_step = c->kernels->row_dot(IV_F32, du, x, n);
        for (size_t e = 0; e < n; e++) du[e] = iv_canonical(iv_fma(f->scan->skip[h], dy[e], step[h] * du[e]));
        iv_delta_sums_backward(c, y, n, du);
        a->d_log[row * heads + h] = iv_canonical(of_decay * decay[h]);
        ddt[h] = iv_ref_scan_step_backward(of_step, of_decay, dt[h], f->dt_bias[h], f->a_log[h], f->scan->step_low,
                                           f->scan->step_high);
    }
}

/* ---- through the convolution ------------------------------------------------------------------------------ */

void iv_scan_inputs_backward(const iv_compute *c, const iv_delta_backward_args *a, const iv_delta_span *s, size_t i,
                             const float scale[IV_SCAN_ROWS]) {
    const iv_delta_layout *l = a->layout;
    size_t row = s->first_row + i, width = iv_dtype_bytes(l->type), values = l->value_heads * l->value_dim, at = 0;
    const size_t rows[IV_SCAN_ROWS] = {l->keys, l->keys, values, values, l->value_heads};
    char *dy = (char *)a->dy + row * l->width * width;
    for (size_t part = 0; part < IV_SCAN_ROWS; at += rows[part++])
        for (size_t from = 0, n; from < rows[part]; from += n) {
            float d[IV_DELTA_CHUNK];
            n = iv_size_min(IV_DELTA_CHUNK, rows[part] - from);
            if (at < l->channels)
                iv_delta_input_gradients(c, a, s, i, at + from, n, d);
            else
                memcpy(d, a->dx + row * l->width + at + from, n * sizeof *d);
            if (scale[part] != 1.0f) c->kernels->scale(d, n, scale[part]);
            c->kernels->round(d, n, l->type, dy + (at + from) * width);
        }
}
