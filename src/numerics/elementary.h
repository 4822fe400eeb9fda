/* elementary.h: exp2, exp, log, from fma, +, -, *, / and integer operations on exponents only.
 *
 * One source for every instruction set: include a vec_*.h first. Law: NUMERICS.md section 5. The
 * polynomials interpolate at Chebyshev nodes in 200-bit arithmetic, coefficients rounded to float;
 * tests/numerics/test_elementary.c bounds the error over every float. */
#ifndef IV_NUMERICS_ELEMENTARY_H
#define IV_NUMERICS_ELEMENTARY_H

#ifndef IV_ELEMENTARY
#define IV_ELEMENTARY static inline /* CUDA declares device functions */
#endif

#define IV_ROUND_MAGIC 0x1.8p23f /* x + magic - magic rounds |x| < 2^22 to the nearest integer */

/* p * 2^n for p in [0.5, 2) and n as an IV_ROUND_MAGIC sum: adds n to p's exponent field. */
IV_ELEMENTARY vf v_scale_by(vf p, vf n_plus_magic) {
    vi n = vi_sub(v_bits(n_plus_magic), vi_set(0x4b400000u));
    return v_float(vi_add(v_bits(p), vi_shl23(n)));
}

/* 2^x. Below -126: +0 (results are never subnormal). 128 and above: infinity. NaN: canonical. */
IV_ELEMENTARY vf v_exp2(vf x) {
    vf t = v_add(x, v_set(IV_ROUND_MAGIC));
    vf f = v_sub(x, v_sub(t, v_set(IV_ROUND_MAGIC)));
    vf p = v_set(0x1.5ec86ap-10f);
    p = v_fma(p, f, v_set(0x1.3cbf6p-7f));
    p = v_fma(p, f, v_set(0x1.c6afeep-5f));
    p = v_fma(p, f, v_set(0x1.ebfa4cp-3f));
    p = v_fma(p, f, v_set(0x1.62e43p-1f));
    p = v_fma(p, f, v_set(1.0f));
    vf y = v_scale_by(p, t);
    y = v_select(v_less(x, v_set(-126.0f)), v_set(0.0f), y);
    y = v_select(v_less(x, v_set(128.0f)), y, v_float(vi_set(0x7f800000u)));
    return v_select(v_is_nan(x), v_float(vi_set(IV_NAN_F32_BITS)), y);
}

/* e^x for x in [-87.33654, 88.72284]. */
IV_ELEMENTARY vf v_exp_inside(vf x) {
    vf t = v_fma(x, v_set(0x1.715476p+0f), v_set(IV_ROUND_MAGIC));
    vf n = v_sub(t, v_set(IV_ROUND_MAGIC));
    vf r = v_fma(n, v_set(-0x1.62e4p-1f), x);
    r = v_fma(n, v_set(-0x1.7f7d1cp-20f), r);
    vf p = v_set(0x1.6d110p-10f);
    p = v_fma(p, r, v_set(0x1.120b62p-7f));
    p = v_fma(p, r, v_set(0x1.55551ap-5f));
    p = v_fma(p, r, v_set(0x1.5554dep-3f));
    p = v_fma(p, r, v_set(0.5f));
    p = v_fma(p, r, v_set(1.0f));
    p = v_fma(p, r, v_set(1.0f));
    return v_scale_by(p, t);
}

/* e^x. Below -87.33654 (the logarithm of 2^-126): +0. Above 88.72284: infinity. NaN: canonical. */
IV_ELEMENTARY vf v_exp(vf x) {
    vf y = v_exp_inside(x);
    y = v_select(v_less(x, v_set(-0x1.5d589ep+6f)), v_set(0.0f), y);
    y = v_select(v_less(v_set(0x1.62e42ep+6f), x), v_float(vi_set(0x7f800000u)), y);
    return v_select(v_is_nan(x), v_float(vi_set(IV_NAN_F32_BITS)), y);
}

/* Natural logarithm. Zero: -infinity. Negative or NaN: canonical NaN. Infinity: infinity. */
IV_ELEMENTARY vf v_log(vf x) {
    vm small = v_less(x, v_set(0x1p-126f));
    vf scaled = v_select(small, v_mul(x, v_set(0x1p23f)), x);
    vi shifted = vi_sub(v_bits(scaled), vi_set(0x3f3504f3u)); /* the bits of sqrt(1/2) */
    vf e = vi_to_float(vi_sar23(shifted));
    vf m = v_float(vi_add(vi_and(shifted, vi_set(0x007fffffu)), vi_set(0x3f3504f3u)));
    e = v_select(small, v_sub(e, v_set(23.0f)), e);
    vf f = v_sub(m, v_set(1.0f)), z = v_mul(f, f);
    vf p = v_set(0x1.1d8ea6p-4f);
    p = v_fma(p, f, v_set(-0x1.d635bcp-4f));
    p = v_fma(p, f, v_set(0x1.dea282p-4f));
    p = v_fma(p, f, v_set(-0x1.fcf4c6p-4f));
    p = v_fma(p, f, v_set(0x1.23d21ap-3f));
    p = v_fma(p, f, v_set(-0x1.555b4ap-3f));
    p = v_fma(p, f, v_set(0x1.999d5ap-3f));
    p = v_fma(p, f, v_set(-0x1.fffffcp-3f));
    p = v_fma(p, f, v_set(0x1.555554p-2f));
    p = v_mul(v_mul(p, f), z);
    p = v_fma(e, v_set(0x1.7f7d1cp-20f), p);
    p = v_fma(v_set(-0.5f), z, p);
    vf y = v_fma(e, v_set(0x1.62e4p-1f), v_add(f, p));
    vf infinity = v_float(vi_set(0x7f800000u));
    y = v_select(v_less(x, infinity), y, infinity);
    y = v_select(v_less(v_set(0.0f), x), y, v_float(vi_set(0xff800000u)));
    y = v_select(v_less(x, v_set(0.0f)), v_float(vi_set(IV_NAN_F32_BITS)), y);
    return v_select(v_is_nan(x), v_float(vi_set(IV_NAN_F32_BITS)), y);
}

/* The hyperbolic tangent: a polynomial below 0.6875, else 1 - 2 / (e^2|x| + 1). NaN: a NaN. */
IV_ELEMENTARY vf v_tanh(vf x) {
    vf zero = v_set(0.0f), one = v_set(1.0f);
    vm negative = v_less(x, zero);
    vf a = v_select(negative, v_sub(zero, x), x), z = v_mul(a, a);
    vf p = v_set(0x1.131d2cp-9f);
    p = v_fma(p, z, v_set(-0x1.0b3af6p-7f));
    p = v_fma(p, z, v_set(0x1.639de0p-6f));
    p = v_fma(p, z, v_set(-0x1.b9f682p-5f));
    p = v_fma(p, z, v_set(0x1.1110b2p-3f));
    p = v_fma(p, z, v_set(-0x1.555556p-2f));
    vf small = v_fma(v_mul(p, z), a, a);
    vf large = v_sub(one, v_div(v_set(2.0f), v_add(v_exp(v_add(a, a)), one)));
    vf y = v_select(v_less(a, v_set(0.6875f)), small, large);
    return v_select(negative, v_sub(zero, y), y);
}

/* The sigmoid-weighted unit x / (1 + e^-x). */
IV_ELEMENTARY vf v_silu(vf x) { return v_div(x, v_add(v_set(1.0f), v_exp(v_sub(v_set(0.0f), x)))); }

#endif
