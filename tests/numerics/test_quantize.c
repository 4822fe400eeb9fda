/* The nearest codes, against a search among all of them; a group's values are at most half a step, or the clipped
 * range, away from what the codes stand for. */
#include "random.h"
#include "numerics/dequantize.h"
#include "numerics/quantize.h"

#include <math.h>

/* The nearest of `count` codes, of two the even one. */
static uint8_t nearest(float x, float (*value)(uint8_t), unsigned count, unsigned nan) {
    unsigned best = 0;
    for (unsigned c = 0; c < count; c++) {
        if ((c & (count / 2 - 1)) == nan) continue;
        double d = fabs((double)value((uint8_t)c) - (double)x), b = fabs((double)value((uint8_t)best) - (double)x);
        if (signbit(value((uint8_t)c)) != signbit(x)) continue;
        if (d < b || signbit(value((uint8_t)best)) != signbit(x) || (d == b && c % 2 == 0)) best = c;
    }
    return (uint8_t)best;
}

static void check(float x) {
    uint8_t e4m3 = nearest(x, iv_e4m3_to_f32, 256, 127), e2m1 = nearest(x, iv_e2m1_to_f32, 16, 99);
    if (iv_e4m3_from_f32(x) != e4m3)
        fail_msg("e4m3 of %a: wanted %02x, found %02x", (double)x, e4m3, iv_e4m3_from_f32(x));
    if (iv_e2m1_from_f32(x) != e2m1) fail_msg("e2m1 of %a: wanted %x, found %x", (double)x, e2m1, iv_e2m1_from_f32(x));
}

static void codes_are_the_nearest(void **state) {
    (void)state;
    rng r = rng_start("quantize");
    for (size_t i = 0; i < trials(20000, 400000); i++)
        check(ldexpf((float)rng_below(&r, 1 << 24) - 0x1p23f, (int)rng_below(&r, 24) - 36));
    for (unsigned c = 0; c + 1 < 128; c++) { /* each number, the middle of it and the next, and their neighbours */
        float a = iv_e4m3_to_f32((uint8_t)c), b = c < 126 ? iv_e4m3_to_f32((uint8_t)(c + 1)) : 1000;
        const float at[] = {a, (a + b) / 2, nextafterf((a + b) / 2, 0), nextafterf((a + b) / 2, 1000)};
        for (size_t i = 0; i < 4; i++) check(at[i]), check(-at[i]);
    }
}

static void values_are_near(void **state) {
    (void)state;
    static const iv_weight_format formats[] = {IV_WEIGHT_FP8, IV_WEIGHT_INT8, IV_WEIGHT_PACK4, IV_WEIGHT_MXFP4,
                                               IV_WEIGHT_NVFP4};
    static const float step[] = {1.0f / 26, 1.0f / 120, 1.0f / 12, 0.26f, 0.26f}; /* of the largest size */
    rng r = rng_start("quantize values");
    for (size_t i = 0; i < trials(2000, 40000); i++) {
        size_t f = rng_below(&r, 5);
        float x[32], stored, size = ldexpf(1, (int)rng_below(&r, 30) - 15), m = 0;
        uint8_t codes[32];
        for (size_t k = 0; k < 32; k++)
            x[k] = size * ((float)rng_below(&r, 2001) / 1000 - 1), m = fmaxf(m, fabsf(x[k]));
        float scale = iv_quantize_scale(formats[f], x, 32, 100 / size, IV_BF16, &stored);
        iv_quantize_codes(formats[f], x, 32, scale, codes);
        for (size_t k = 0; k < 32; k++) {
            bool nibble = f > 2 || formats[f] == IV_WEIGHT_PACK4;
            float got = iv_weight_code(formats[f], codes + k, 0) * scale;
            if (nibble) assert_true(codes[k] < 16);
            if (!(fabsf(got - x[k]) <= m * step[f]))
                fail_msg("format %d: %a of %a: found %a", formats[f], (double)x[k], (double)m, (double)got);
        }
    }
    float zero[16] = {0}, stored;
    uint8_t codes[16];
    for (size_t f = 0; f < 5; f++) { /* zeros stay */
        float scale = iv_quantize_scale(formats[f], zero, 16, 1, IV_F16, &stored);
        iv_quantize_codes(formats[f], zero, 16, scale, codes);
        assert_true(isfinite(scale) && scale > 0 && iv_weight_code(formats[f], codes, 0) == 0);
    }
}

/* GGUF's blocks: no number is further away than half a step, and what float16 makes of the scale; the extreme one of
 * Q4_0 and Q5_0, whose other end is clipped, than one. */
static void blocks_are_near(void **state) {
    (void)state;
    static const iv_weight_format blocks[] = {IV_WEIGHT_Q8_0, IV_WEIGHT_Q4_0, IV_WEIGHT_Q4_1, IV_WEIGHT_Q5_0,
                                              IV_WEIGHT_Q5_1};
    static const float steps[] = {1.0f / 127, 1.0f / 8, 2.0f / 15, 1.0f / 16, 2.0f / 31},
                       share[] = {0.5f, 1, 0.5f, 1, 0.5f};
    rng r = rng_start("quantize gguf");
    for (size_t i = 0; i < trials(2000, 40000); i++) {
        size_t f = rng_below(&r, 5);
        float x[64], got[64], size = ldexpf(1, (int)rng_below(&r, 16) - 4);
        uint8_t bytes[64 * 2];
        for (size_t k = 0; k < 64; k++) x[k] = size * ((float)rng_below(&r, 2001) / 1000 - 1);
        iv_quantize_gguf(blocks[f], x, 64, bytes);
        iv_dequantize_gguf(blocks[f], bytes, 64, got);
        for (size_t k = 0; k < 64; k++)
            if (!(fabsf(got[k] - x[k]) <= size * (steps[f] * share[f] + 0.002f)))
                fail_msg("format %d: %a of %a: found %a", blocks[f], (double)x[k], (double)size, (double)got[k]);
    }
    float zero[32] = {0}, got[32];
    uint8_t bytes[40];
    for (size_t f = 0; f < 5; f++) {
        iv_quantize_gguf(blocks[f], zero, 32, bytes);
        iv_dequantize_gguf(blocks[f], bytes, 32, got);
        for (size_t k = 0; k < 32; k++) assert_true(got[k] == 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(codes_are_the_nearest), cmocka_unit_test(values_are_near),
                                       cmocka_unit_test(blocks_are_near)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
