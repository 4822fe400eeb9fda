/* activate.h: activations and their gradients, element by element, in the vector vocabulary: include a vec_*.h and
 * elementary.h first. `kind` is a constant wherever these are called, so that no branch is left. */
#ifndef IV_NUMERICS_ACTIVATE_H
#define IV_NUMERICS_ACTIVATE_H

#include "numerics/activation.h"
#include "numerics/elementary.h"

/* The numbers of an activation, as they are used. */
typedef struct iv_activation_floats {
    float limit, alpha, positive, negative, beta, eps;
} iv_activation_floats;

#define IV_ACTIVATION_FLOATS(a)                                                                               \
    ((iv_activation_floats){(float)(a)->limit, (float)(a)->alpha, (float)(a)->positive, (float)(a)->negative, \
                            (float)(a)->beta, (float)(a)->eps})

/* 2 sqrt(2 / pi), and that times 0.044715: gelu by tanh is x / (1 + e^-(x (C0 + C1 x^2))). */
#define IV_GELU_C0 0x1.988454p+0f
#define IV_GELU_C1 0x1.2444f2p-4f

IV_ELEMENTARY vf v_gelu_exponent(vf x) { return v_mul(x, v_fma(v_set(IV_GELU_C1), v_mul(x, x), v_set(IV_GELU_C0))); }

IV_ELEMENTARY vf v_at_most(vf x, vf limit) { return v_select(v_less(limit, x), limit, x); } /* NaN stays */
IV_ELEMENTARY vf v_at_least(vf x, vf limit) { return v_select(v_less(x, limit), limit, x); }

/* x / (1 + e^-s). */
IV_ELEMENTARY vf v_gated_by(vf x, vf s) { return v_div(x, v_add(v_set(1.0f), v_exp(v_sub(v_set(0.0f), s)))); }

/* e^x - 1 - x of x <= 0, by its series from -1 on. */
IV_ELEMENTARY vf v_exp_rest(vf x) {
    vf p = v_set(0x1.ae6456p-26f), far = v_sub(v_sub(v_exp(x), v_set(1.0f)), x);
    p = v_fma(p, x, v_set(0x1.27e4fcp-22f));
    p = v_fma(p, x, v_set(0x1.71de3ap-19f));
    p = v_fma(p, x, v_set(0x1.a01a02p-16f));
    p = v_fma(p, x, v_set(0x1.a01a02p-13f));
    p = v_fma(p, x, v_set(0x1.6c16c2p-10f));
    p = v_fma(p, x, v_set(0x1.111112p-7f));
    p = v_fma(p, x, v_set(0x1.555556p-5f));
    p = v_fma(p, x, v_set(0x1.555556p-3f));
    p = v_fma(p, x, v_set(0.5f));
    return v_select(v_less(x, v_set(-1.0f)), far, v_mul(v_mul(x, x), p));
}

/* What the negative side multiplies by `negative`; `u` is at most eps. */
IV_ELEMENTARY vf v_xielu_rest(vf x, vf u) { return v_add(v_exp_rest(u), v_sub(u, x)); }

IV_ELEMENTARY vf v_xielu(iv_activation_floats a, vf x) {
    vf rest = v_xielu_rest(x, v_at_most(x, v_set(a.eps))), beta = v_set(a.beta);
    vf above = v_mul(x, v_fma(v_set(a.positive), x, beta)), below = v_fma(rest, v_set(a.negative), v_mul(beta, x));
    return v_select(v_less(v_set(0.0f), x), above, below);
}

IV_ELEMENTARY vf v_xielu_slope(iv_activation_floats a, vf x) {
    vf one = v_set(1.0f), eps = v_set(a.eps), px = v_mul(v_set(a.positive), x), u = v_at_most(x, eps);
    vf grows = v_select(v_less(eps, x), v_sub(v_set(0.0f), one), v_add(v_exp_rest(u), u));
    vf below = v_fma(grows, v_set(a.negative), v_set(a.beta));
    return v_select(v_less(v_set(0.0f), x), v_add(v_add(px, px), v_set(a.beta)), below);
}

/* The activation before its rounding; a NaN is not canonical. */
IV_ELEMENTARY vf v_activate(iv_activation_kind kind, iv_activation_floats a, vf gate, vf up) {
    switch (kind) {
    case IV_ACTIVATION_SILU: break;
    case IV_ACTIVATION_GELU_TANH: return v_mul(v_gated_by(gate, v_gelu_exponent(gate)), up);
    case IV_ACTIVATION_SILU_CLAMPED:
        gate = v_at_most(gate, v_set(a.limit));
        up = v_at_least(v_at_most(up, v_set(a.limit)), v_set(-a.limit));
        return v_mul(v_add(up, v_set(1.0f)), v_gated_by(gate, v_mul(v_set(a.alpha), gate)));
    case IV_ACTIVATION_RELU2: up = v_at_least(up, v_set(0.0f)); return v_mul(up, up);
    case IV_ACTIVATION_XIELU: return v_xielu(a, up);
    }
    return v_mul(v_silu(gate), up);
}

/* Gradients of gate and up from that of the result, `da`; without a gate only *dup is set. */
IV_ELEMENTARY void v_activate_backward(iv_activation_kind kind, iv_activation_floats a, vf gate, vf up, vf da,
                                       vf *dgate, vf *dup) {
    vf one = v_set(1.0f), zero = v_set(0.0f), g = gate, s = gate, slope = one, factor = up;
    if (kind == IV_ACTIVATION_RELU2) {
        vf r = v_at_least(up, zero);
        *dup = v_mul(da, v_add(r, r));
        return;
    }
    if (kind == IV_ACTIVATION_XIELU) {
        *dup = v_mul(da, v_xielu_slope(a, up));
        return;
    }
    if (kind == IV_ACTIVATION_GELU_TANH) {
        s = v_gelu_exponent(g);
        slope = v_fma(v_set(3.0f * IV_GELU_C1), v_mul(g, g), v_set(IV_GELU_C0));
    }
    if (kind == IV_ACTIVATION_SILU_CLAMPED) {
        g = v_at_most(gate, v_set(a.limit)), slope = v_set(a.alpha), s = v_mul(slope, g);
        factor = v_add(v_at_least(v_at_most(up, v_set(a.limit)), v_set(-a.limit)), one);
    }
    vf d = v_add(one, v_exp(v_sub(zero, s))), q = v_div(one, d), z = v_div(g, d), rest = v_sub(one, q);
    vf turn = kind == IV_ACTIVATION_SILU ? v_fma(z, rest, q) : v_fma(v_mul(z, rest), slope, q);
    *dup = v_mul(da, z), *dgate = v_mul(v_mul(da, factor), turn);
    if (kind != IV_ACTIVATION_SILU_CLAMPED) return;
    *dgate = v_select(v_less(v_set(a.limit), gate), zero, *dgate);
    *dup = v_select(v_less(v_set(a.limit), up), zero, *dup);
    *dup = v_select(v_less(up, v_set(-a.limit)), zero, *dup);
}

#endif
