/* tc16.c: products as integers at a common scale, truncated, added exactly, truncated once more. */
#include "numerics/tc16.h"

enum { EXPONENT_FLOOR = -133, KEPT_BITS = 25 };

/* A finite term: value = mantissa * 2^(exponent - fraction_bits), sign apart. */
typedef struct term {
    uint64_t mantissa;
    int exponent, fraction_bits;
    int negative;
} term;

typedef struct operand {
    uint32_t mantissa; /* with the hidden bit */
    int exponent, negative, is_inf, is_nan;
} operand;

static operand unpack(uint32_t bits, int total_bits, int fraction_bits) {
    int exponent_bits = total_bits - 1 - fraction_bits, max_field = (1 << exponent_bits) - 1;
    int bias = max_field >> 1;
    uint32_t fraction = bits & ((1u << fraction_bits) - 1);
    int field = (int)(bits >> fraction_bits) & max_field;
    operand o = {.negative = (int)(bits >> (total_bits - 1)) & 1};
    o.is_inf = field == max_field && fraction == 0;
    o.is_nan = field == max_field && fraction != 0;
    o.mantissa = field ? fraction | 1u << fraction_bits : fraction;
    o.exponent = (field ? field : 1) - bias;
    return o;
}

/* The term at the scale 2^(e_max - 25), truncated toward zero. */
static int64_t scaled(const term *t, int e_max) {
    if (t->mantissa == 0) return 0;
    int shift = t->exponent - t->fraction_bits - (e_max - KEPT_BITS);
    uint64_t m = shift >= 0 ? t->mantissa << shift : shift > -64 ? t->mantissa >> -shift : 0;
    return t->negative ? -(int64_t)m : (int64_t)m;
}

/* sum * 2^scale truncated toward zero to fp32, subnormals kept, overflow to infinity. */
static float truncate_to_f32(int64_t sum, int scale) {
    if (sum == 0) return 0.0f;
    uint32_t sign = sum < 0 ? 0x80000000u : 0;
    uint64_t m = sum < 0 ? (uint64_t)-sum : (uint64_t)sum;
    int top = 63 - __builtin_clzll(m), exponent = top + scale; /* m in [2^top, 2^(top+1)) */
    if (exponent > 127) return iv_float(sign | 0x7f800000u);
    int lsb = exponent - 23 < -149 ? -149 : exponent - 23; /* weight of the last kept bit */
    int drop = lsb - scale;
    m = drop >= 64 ? 0 : drop >= 0 ? m >> drop : m << -drop;
    if (m == 0) return 0.0f;
    if (exponent < -126) return iv_float(sign | (uint32_t)m);
    return iv_float(sign | (uint32_t)(exponent + 127) << 23 | ((uint32_t)m & 0x7fffffu));
}

static float step(const uint16_t *a, const uint16_t *b, float c, int fraction_bits) {
    term terms[17];
    int e_max = EXPONENT_FLOOR, nan = 0, inf[2] = {0, 0};
    for (int i = 0; i < 17; i++) {
        term *t = &terms[i];
        if (i < 16) {
            operand x = unpack(a[i], 16, fraction_bits), y = unpack(b[i], 16, fraction_bits);
            *t = (term){.mantissa = (uint64_t)x.mantissa * y.mantissa,
                        .exponent = x.exponent + y.exponent,
                        .fraction_bits = 2 * fraction_bits,
                        .negative = x.negative ^ y.negative};
            if (x.is_nan || y.is_nan)
                nan = 1;
            else if (x.is_inf || y.is_inf) {
                int other_is_zero = x.is_inf ? (!y.is_inf && y.mantissa == 0) : x.mantissa == 0;
                if (other_is_zero)
                    nan = 1;
                else
                    inf[t->negative] = 1;
            }
        } else {
            operand z = unpack(iv_bits(c), 32, 23);
            *t = (term){.mantissa = z.mantissa, .exponent = z.exponent, .fraction_bits = 23, .negative = z.negative};
            if (z.is_nan) nan = 1;
            if (z.is_inf) inf[z.negative] = 1;
        }
        if (t->mantissa && t->exponent > e_max) e_max = t->exponent;
    }
    if (nan || (inf[0] && inf[1])) return iv_float(IV_NAN_F32_BITS);
    if (inf[0] || inf[1]) return iv_float(inf[1] ? 0xff800000u : 0x7f800000u);
    int64_t sum = 0;
    for (int i = 0; i < 17; i++) sum += scaled(&terms[i], e_max);
    return truncate_to_f32(sum, e_max - KEPT_BITS);
}

float iv_tc16_step_bf16(const iv_bf16 a[16], const iv_bf16 b[16], float c) { return step(a, b, c, 7); }
float iv_tc16_step_f16(const iv_f16 a[16], const iv_f16 b[16], float c) { return step(a, b, c, 10); }

float iv_tc16_chain(iv_dtype type, float acc, const uint16_t *a, const uint16_t *b, size_t k) {
    for (size_t i = 0; i < k; i += 16) acc = step(a + i, b + i, acc, type == IV_BF16 ? 7 : 10);
    return acc;
}
