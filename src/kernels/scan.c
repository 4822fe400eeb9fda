/* scan.c: what the rows of a scan do by themselves. */
#include "kernels/scan.h"
#include "numerics/delta.h"

#include <string.h>

bool iv_scan_mix(const iv_compute *c, const iv_delta_args *a, const iv_delta_span *s, size_t i) {
    const iv_delta_layout *l = a->layout;
    size_t row = s->first_row + i, heads = l->value_heads;
    float *x = a->x + row * l->width, *dt = x + l->width - heads;
    char *qk = (char *)a->qk + row * 2 * l->keys * iv_dtype_bytes(l->type);
    float *gates = a->kept ? a->kept->gates + row * 3 * heads : NULL;
    iv_delta_convolve_row(c, a, s, s->position + i, x);
    c->kernels->round(x, 2 * l->keys, l->type, qk);
    if (gates) memcpy(gates + 2 * heads, dt, heads * sizeof *gates);
    for (size_t h = 0; h < heads; h++) {
        dt[h] = iv_ref_scan_step(dt[h], a->dt_bias[h], a->scan->step_low, a->scan->step_high);
        if (gates) gates[h] = dt[h], gates[heads + h] = dt[h] * iv_ref_scan_rate(a->a_log[h]);
    }
    return iv_delta_finite(l->type, qk + l->keys * iv_dtype_bytes(l->type), l->keys);
}

static const iv_activation silu = {.kind = IV_ACTIVATION_SILU};

void iv_scan_gate(const iv_compute *c, const iv_delta_args *a, size_t row, float *sums) {
    const iv_delta_layout *l = a->layout;
    const iv_kernels *k = c->kernels;
    size_t values = l->value_heads * l->value_dim, at = row * values * iv_dtype_bytes(l->type);
    float *o = a->x + row * l->width + 2 * l->keys;
    if (a->kept) {
        k->round(o, values, l->type, (char *)a->kept->o + at);
        k->round(o + values, values, l->type, (char *)a->kept->z + at);
    }
    if (!a->norm)
        k->activate(&silu, o + values, o, values, l->type, (char *)a->out + at);
    else if (!a->scan->gate_behind)
        k->activate(&silu, o + values, o, values, IV_F32, o);
    for (size_t h = 0; sums && h < l->value_heads; h++) sums[h] = k->squares(o + h * l->value_dim, l->value_dim);
}

void iv_scan_norm(const iv_compute *c, const iv_delta_args *a, size_t row, const float *factors) {
    const iv_delta_layout *l = a->layout;
    size_t values = l->value_heads * l->value_dim, width = iv_dtype_bytes(l->type);
    float *o = a->x + row * l->width + 2 * l->keys;
    char *out = (char *)a->out + row * values * width;
    bool behind = a->scan->gate_behind;
    for (size_t h = 0; h < l->value_heads; h++) {
        size_t at = h * l->value_dim;
        c->kernels->norm_by(o + at, a->norm + at, factors[h], l->value_dim, behind ? IV_F32 : l->type,
                            behind ? (void *)(o + at) : out + at * width);
    }
    if (behind) c->kernels->activate(&silu, o + values, o, values, l->type, out);
}
