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

/* GCC unrolls loops of 16 turns before it looks for vector instructions. */
#if defined(__clang__)
#define AS_A_LOOP
#else
#define AS_A_LOOP _Pragma("GCC unroll 1")
#endif

/* At the scale 2^(e_max - 25) each product has less than 27 bits, and the sum of 16 less than 31. Fields of 16 bits,
 * and a conversion that truncates instead of a shift, become vector instructions. The float of a product, of at most 22
 * bits, and its multiple by a power of two are exact. */
static inline float step(const uint16_t *a, const uint16_t *b, float c, const int fraction_bits) {
    const int16_t max_field = (int16_t)((1 << (15 - fraction_bits)) - 1), two_biases = max_field >> 1 << 1;
    const int16_t fraction = (int16_t)((1 << fraction_bits) - 1), hidden = (int16_t)(1 << fraction_bits);
    int16_t x[16], y[16], exponent[16], e_max = EXPONENT_FLOOR, specials = 0;
    uint32_t powers[16];
    float power[16];
    int32_t sum = 0;
    int c_field = (int)(iv_bits(c) >> 23 & 255);
    if (c != c) return iv_float(IV_NAN_F32_BITS);
    AS_A_LOOP
    for (int i = 0; i < 16; i++) {
        int16_t p = (int16_t)(a[i] >> fraction_bits & max_field), q = (int16_t)(b[i] >> fraction_bits & max_field);
        int16_t m = (int16_t)((a[i] & fraction) | (p ? hidden : 0)),
                n = (int16_t)((b[i] & fraction) | (q ? hidden : 0));
        int16_t sign = (int16_t)((int16_t)(a[i] ^ b[i]) >> 15);
        int16_t e = (int16_t)(p + q - two_biases), no_p = p == 0, no_q = q == 0;
        specials |= (int16_t)((p == max_field) | (q == max_field));
        x[i] = (int16_t)((m ^ sign) - sign), y[i] = n;
        e = (int16_t)(e + no_p + no_q);
        exponent[i] = m && n ? e : NO_EXPONENT;
        e_max = exponent[i] > e_max ? exponent[i] : e_max;
    }
    if (specials || c_field == 255) return special_step(a, b, c, fraction_bits);
    int32_t z = (int32_t)(iv_bits(c) & 0x7fffffu) | (c_field != 0) << 23;
    int z_exponent = z ? c_field + !c_field - 127 : NO_EXPONENT;
    e_max = (int16_t)(z_exponent > e_max ? z_exponent : e_max);
    AS_A_LOOP
    for (int i = 0; i < 16; i++) {
        int16_t drop = (int16_t)(e_max - exponent[i]);
        powers[i] = (uint32_t)(127 + KEPT_BITS - 2 * fraction_bits - (drop > 31 ? 31 : drop)) << 23;
    }
    memcpy(power, powers, sizeof power);
    AS_A_LOOP
    for (int i = 0; i < 16; i++) sum += (int32_t)((float)((int32_t)x[i] * y[i]) * power[i]);
    int drop = e_max - z_exponent;
    int64_t m = (int64_t)z << (KEPT_BITS - 23) >> (drop > 63 ? 63 : drop);
    return truncate_to_f32(sum + (iv_bits(c) >> 31 ? -m : m), e_max - KEPT_BITS);
}

float iv_tc16_step_bf16(const iv_bf16 a[16], const iv_bf16 b[16], float c) { return step(a, b, c, 7); }
float iv_tc16_step_f16(const iv_f16 a[16], const iv_f16 b[16], float c) { return step(a, b, c, 10); }

float iv_tc16_chain(iv_dtype type, float acc, const uint16_t *a, const uint16_t *b, size_t k) {
    for (size_t i = 0; i < k; i += 16) acc = type == IV_BF16 ? step(a + i, b + i, acc, 7) : step(a + i, b + i, acc, 10);
    return acc;
}
