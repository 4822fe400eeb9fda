/* Codes, scales and seconds of GGUF's blocks give the values of dequantize.h, bit for bit, for random blocks; scales
 * are exact in the type that the form names. */
#include "random.h"
#include "numerics/dequantize.h"
#include "numerics/weight_codes.h"

static void check_form(rng *r, iv_weight_format format) {
    enum { BLOCKS = 4, MOST = 256 * BLOCKS };
    const iv_weight_facts *facts = iv_weight_facts_of(format);
    iv_code_form form = iv_gguf_form(format);
    uint8_t blocks[BLOCKS * 256], codes[MOST];
    float want[MOST], scales[MOST / 16], seconds[MOST / 16];
    size_t n = BLOCKS * facts->block;
    assert_true(form.format == format && form.group % 16 == 0 && facts->block % form.group == 0);
    for (size_t i = 0; i < BLOCKS * facts->block_bytes; i++) blocks[i] = (uint8_t)rng_next(r);
    iv_dequantize_gguf(format, blocks, n, want);
    iv_gguf_codes(format, blocks, n, codes, scales, seconds);
    for (size_t i = 0; i < n; i++) {
        float scale = scales[i / form.group], second = form.second ? seconds[i / form.group] : 0;
        float got = iv_code_value(&form, codes[i], scale, second);
        if (iv_code_bits(form.kind) == 4) assert_true(codes[i] < 16);
        if (want[i] == want[i] ? iv_bits(got) != iv_bits(want[i]) : got == got)
            fail_msg("%s: element %zu: wanted %a, found %a", facts->name, i, (double)want[i], (double)got);
        if (scale == scale && form.scale_type == IV_F16) assert_true(iv_f16_to_f32(iv_f16_from_f32(scale)) == scale);
        if (scale == scale && form.scale_type == IV_BF16) assert_true(iv_bf16_to_f32(iv_bf16_from_f32(scale)) == scale);
    }
}

static void gguf_codes_have_the_values(void **state) {
    (void)state;
    rng r = rng_start("weight_codes");
    for (size_t i = 0; i < trials(200, 20000); i++)
        for (int f = IV_WEIGHT_Q8_0; f < IV_WEIGHT_FORMAT_COUNT; f++) check_form(&r, (iv_weight_format)f);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(gguf_codes_have_the_values)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
