/* tc16.c: products as integers at a common scale, truncated, added exactly, truncated once more. */
#include "numerics/tc16.h"

enum { EXPONENT_FLOOR = -133, KEPT_BITS = 25, NO_EXPONENT = -1000 /* of zero */ };

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

/* The step with infinities or NaN among its terms. */
static float special_step(const uint16_t *a, const uint16_t *b, float c, int fraction_bits) {
    const uint32_t infinity = 0x7fffu >> fraction_bits << fraction_bits, z = iv_bits(c) & 0x7fffffffu;
    int nan = z > 0x7f800000u, inf[2] = {0, 0};
    if (z == 0x7f800000u) inf[iv_bits(c) >> 31] = 1;
    for (int i = 0; i < 16; i++) {
        uint32_t x = a[i] & 0x7fff, y = b[i] & 0x7fff;
        if (x < infinity && y < infinity) continue;
        if (x > infinity || y > infinity || x == 0 || y == 0)
            nan = 1;
        else
            inf[(a[i] ^ b[i]) >> 15] = 1;
    }
    return iv_float(nan || (inf[0] && inf[1]) ? IV_NAN_F32_BITS : inf[1] ? 0xff800000u : 0x7f800000u);
}

/* The mantissa with the hidden bit. */
static inline int32_t mantissa_of(int bits, int field, int fraction_bits) {
    return (bits & ((1 << fraction_bits) - 1)) | (field != 0) << fraction_bits;
}

/* At the scale 2^(e_max - 25) each product has less than 27 bits, and the sum of 16 less than 31. */
static inline float step(const uint16_t *a, const uint16_t *b, float c, const int fraction_bits) {
    const int max_field = (1 << (15 - fraction_bits)) - 1, two_biases = max_field >> 1 << 1;
    int32_t product[16], exponent[16], sum = 0;
    int c_field = (int)(iv_bits(c) >> 23 & 255), e_max = EXPONENT_FLOOR, specials = c_field == 255;
    if (c != c) return iv_float(IV_NAN_F32_BITS);
    for (int i = 0; i < 16; i++) {
        int x = a[i] >> fraction_bits & max_field, y = b[i] >> fraction_bits & max_field; /* fields of exponents */
        int32_t m = mantissa_of(a[i], x, fraction_bits) * mantissa_of(b[i], y, fraction_bits);
        specials |= x == max_field || y == max_field;
        int32_t sign = -((a[i] ^ b[i]) >> 15);
        product[i] = (m ^ sign) - sign;
        exponent[i] = m ? x + !x + y + !y - two_biases : NO_EXPONENT;
        e_max = exponent[i] > e_max ? exponent[i] : e_max;
    }
    if (specials) return special_step(a, b, c, fraction_bits);
    int32_t z = mantissa_of((int)(iv_bits(c) & 0x7fffff), c_field, 23);
    int z_exponent = z ? c_field + !c_field - 127 : NO_EXPONENT;
    e_max = z_exponent > e_max ? z_exponent : e_max;
    for (int i = 0; i < 16; i++) {
        int32_t drop = e_max - exponent[i], sign = product[i] >> 31;
        int32_t m = ((product[i] ^ sign) - sign) << (KEPT_BITS - 2 * fraction_bits) >> (drop > 31 ? 31 : drop);
        sum += (m ^ sign) - sign;
    }
    int drop = e_max - z_exponent;
    int64_t m = (int64_t)z << (KEPT_BITS - 23) >> (drop > 63 ? 63 : drop);
    return truncate_to_f32(sum + (iv_bits(c) >> 31 ? -m : m), e_max - KEPT_BITS);
}

float iv_tc16_step_bf16(const iv_bf16 a[16], const iv_bf16 b[16], float c) { return step(a, b, c, 7); }
float iv_tc16_step_f16(const iv_f16 a[16], const iv_f16 b[16], float c) { return step(a, b, c, 10); }

float iv_tc16_chain(iv_dtype type, float acc, const uint16_t *a, const uint16_t *b, size_t k) {
    for (size_t i = 0; i < k; i += 16) acc = step(a + i, b + i, acc, type == IV_BF16 ? 7 : 10);
    return acc;
}
