/* GGUF's blocks bit for bit against values that `gguf` from PyPI computed (tests/scripts/record_gguf_blocks.py), and
 * the code tables against their definitions. */
#include "support.h"
#include "numerics/dequantize.h"
#include "numerics/floats.h"

#include <jansson.h>
#include <math.h>

static uint8_t digit(char c) { return (uint8_t)(c <= '9' ? c - '0' : c - 'a' + 10); }

static uint8_t *bytes_of(const json_t *hex, size_t *n) {
    const char *s = json_string_value(hex);
    assert_non_null(s);
    *n = json_string_length(hex) / 2;
    uint8_t *out = malloc(*n + 1);
    for (size_t i = 0; i < *n; i++) out[i] = (uint8_t)(digit(s[2 * i]) << 4 | digit(s[2 * i + 1]));
    return out;
}

static void blocks_are_as_recorded(void **state) {
    (void)state;
    json_t *cases = json_load_file(source_path("tests/data/gguf_blocks.json"), 0, NULL);
    assert_non_null(cases);
    for (int f = IV_WEIGHT_Q8_0; f < IV_WEIGHT_FORMAT_COUNT; f++) {
        const iv_weight_facts *facts = iv_weight_facts_of((iv_weight_format)f);
        const json_t *c = json_object_get(cases, facts->name);
        size_t n, m;
        uint8_t *blocks = bytes_of(json_object_get(c, "blocks"), &n),
                *want = bytes_of(json_object_get(c, "values"), &m);
        assert_true(n % facts->block_bytes == 0 && n >= 9 * facts->block_bytes);
        size_t elements = n / facts->block_bytes * facts->block;
        assert_int_equal(m, elements * 4);
        float *got = malloc(elements * sizeof *got);
        iv_dequantize_gguf((iv_weight_format)f, blocks, elements, got);
        for (size_t i = 0; i < elements; i++) {
            const uint8_t *w = want + 4 * i;
            uint32_t bits = (uint32_t)w[0] << 24 | (uint32_t)w[1] << 16 | (uint32_t)w[2] << 8 | w[3];
            if (isnan(iv_float(bits)) ? !isnan(got[i]) : iv_bits(got[i]) != bits)
                fail_msg("%s: element %zu: wanted %a, found %a", facts->name, i, (double)iv_float(bits),
                         (double)got[i]);
        }
        free(blocks), free(want), free(got);
    }
    json_decref(cases);
}

static void codes_have_their_values(void **state) {
    (void)state;
    for (int c = 0; c < 256; c++) {
        int e = c >> 3 & 15, m = c & 7;
        float want = e ? ldexpf(1.0f + (float)m / 8.0f, e - 7) : ldexpf((float)m / 8.0f, -6);
        if (e == 15 && m == 7)
            assert_true(isnan(iv_e4m3_to_f32((uint8_t)c)));
        else
            assert_int_equal(iv_bits(iv_e4m3_to_f32((uint8_t)c)), iv_bits(c & 128 ? -want : want));
        if (c == 255)
            assert_true(isnan(iv_e8m0_to_f32(255)));
        else
            assert_int_equal(iv_bits(iv_e8m0_to_f32((uint8_t)c)), iv_bits(ldexpf(1.0f, c - 127)));
    }
    for (int c = 0; c < 16; c++) {
        int e = c >> 1 & 3, m = c & 1;
        float want = e ? ldexpf(1.0f + (float)m / 2.0f, e - 1) : (float)m / 2.0f;
        assert_int_equal(iv_bits(iv_e2m1_to_f32((uint8_t)c)), iv_bits(c & 8 ? -want : want));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(blocks_are_as_recorded),
                                       cmocka_unit_test(codes_have_their_values)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
