/* Rotary tables against tests/data/rope.json (python/rope_data.py): frequencies and entries in 60-digit
 * arithmetic, and the law's own bits from a second implementation. */
#include "random.h"
#include "format/json.h"
#include "numerics/rope.h"

enum { PAIRS_MAX = 64 };

static double hex(const json_t *array, size_t i) {
    const char *text = json_string_value(json_array_get(array, i));
    assert_non_null(text);
    return strtod(text, NULL); /* hexadecimal: exact */
}

static double number(const json_t *rule, const char *key) { return json_number_value(json_object_get(rule, key)); }

static json_t *open_data(void) {
    json_t *root;
    iv_error err;
    ASSERT_OK(iv_json_read(source_path("tests/data/rope.json"), 1 << 20, &root, &err), &err);
    return root;
}

static size_t open_rule(const json_t *rule, double *frequencies) {
    size_t head_dim = (size_t)number(rule, "head_dim");
    assert_true(head_dim / 2 <= PAIRS_MAX);
    iv_rope_rule r = {.theta = number(rule, "theta"),
                      .factor = number(rule, "factor"),
                      .low_freq = number(rule, "low"),
                      .high_freq = number(rule, "high"),
                      .original_positions = number(rule, "original"),
                      .beta_fast = number(rule, "beta_fast"),
                      .beta_slow = number(rule, "beta_slow"),
                      .truncate = json_is_true(json_object_get(rule, "truncate"))};
    iv_rope_frequencies(&r, head_dim, frequencies);
    return head_dim / 2;
}

/* 1 except for yarn. */
static double attention_of(const json_t *rule) {
    if (number(rule, "beta_fast") == 0) return 1.0;
    double ours = iv_rope_yarn_attention(number(rule, "factor"), number(rule, "mscale"), number(rule, "mscale_all"));
    const json_t *exact = json_object_get(rule, "attention"), *law = json_object_get(rule, "law_attention");
    if (ours != strtod(json_string_value(law), NULL)) fail_msg("attention: wanted %s", json_string_value(law));
    assert_true(fabs(ours - hex(exact, 0) - hex(exact, 1)) < 0x1p-50);
    return ours;
}

static void check_frequencies(const json_t *rule, const char *name) {
    double f[PAIRS_MAX], worst = 0.0;
    size_t pairs = open_rule(rule, f), at = 0;
    const json_t *exact = json_object_get(rule, "frequencies"), *law = json_object_get(rule, "law_frequencies");
    assert_int_equal(json_array_size(exact), pairs);
    for (size_t i = 0; i < pairs; i++) {
        if (f[i] != hex(law, i)) fail_msg("%s: frequency %zu: wanted %a, got %a", name, i, hex(law, i), f[i]);
        const json_t *e = json_array_get(exact, i); /* a double and the remainder */
        double error = fabs((f[i] - hex(e, 0)) - hex(e, 1)) / hex(e, 0);
        if (error > worst) worst = error, at = i;
    }
    printf("%s: %zu frequencies, worst relative error %.2f * 2^-53 at pair %zu\n", name, pairs, worst * 0x1p53, at);
    /* If yarn's limits are fractional pairs, their error is multiplied by `factor` near the upper one. */
    bool ends = number(rule, "beta_fast") > 0 && !json_is_true(json_object_get(rule, "truncate"));
    assert_true(worst < (ends ? 0x1p-53 * 4 * number(rule, "factor") : 0x1p-48));
}

/* Error of a float beyond half the spacing of floats at its value. */
static double beyond_rounding(float y, double exact) {
    int exponent;
    frexp(exact, &exponent);
    double half = exact == 0.0 ? 0.0 : ldexp(1.0, exponent - 25);
    return fmax(0.0, fabs((double)y - exact) - half);
}

static void check_rows(const json_t *rule, const char *name) {
    double f[PAIRS_MAX], worst = 0.0;
    float cosine[PAIRS_MAX], sine[PAIRS_MAX];
    size_t pairs = open_rule(rule, f), i, misrounded = 0;
    double attention = attention_of(rule);
    int64_t last = -1;
    const json_t *rows = json_object_get(rule, "rows"), *row;
    assert_true(json_array_size(rows) > 0);
    json_array_foreach(rows, i, row) {
        int64_t position = json_integer_value(json_array_get(row, 0));
        size_t pair = (size_t)json_integer_value(json_array_get(row, 1));
        assert_true(pair < pairs);
        if (position != last) iv_rope_row(f, pairs, position, attention, cosine, sine);
        last = position;
        double c = hex(row, 2), s = hex(row, 3);
        uint32_t bits[2] = {(uint32_t)strtoul(json_string_value(json_array_get(row, 4)), NULL, 16),
                            (uint32_t)strtoul(json_string_value(json_array_get(row, 5)), NULL, 16)};
        if (iv_bits(cosine[pair]) != bits[0] || iv_bits(sine[pair]) != bits[1])
            fail_msg("%s: position %lld pair %zu: wanted %08x %08x, got %08x %08x", name, (long long)position, pair,
                     bits[0], bits[1], iv_bits(cosine[pair]), iv_bits(sine[pair]));
        misrounded += (cosine[pair] != (float)c) + (sine[pair] != (float)s);
        worst = fmax(worst, fmax(beyond_rounding(cosine[pair], c), beyond_rounding(sine[pair], s)));
    }
    printf("%s: %zu entries have the law's bits; %zu of %zu floats are not the nearest, the worst %.3g "
           "beyond rounding\n",
           name, json_array_size(rows), misrounded, 2 * json_array_size(rows), worst);
    assert_true(worst < 0x1p-30);
}

static void each_rule(void (*check)(const json_t *, const char *)) {
    json_t *root = open_data(), *rules = json_object_get(root, "rules"), *rule;
    size_t i;
    assert_true(json_array_size(rules) >= 10);
    json_array_foreach(rules, i, rule) check(rule, json_string_value(json_object_get(rule, "name")));
    json_decref(root);
}

static void frequencies_are_exact_to_2_48(void **state) {
    (void)state;
    each_rule(check_frequencies);
}

static void rows_have_the_law_s_bits(void **state) {
    (void)state;
    each_rule(check_rows);
}

/* cos^2 + sin^2 = 1 to a few float roundings, for positions that the data does not list. */
static void rows_are_rotations(void **state) {
    (void)state;
    double f[PAIRS_MAX], worst = 0.0;
    float c[PAIRS_MAX], s[PAIRS_MAX];
    rng r = rng_start("rope");
    iv_rope_frequencies(&(iv_rope_rule){.theta = 1e6, .factor = 1.0}, 128, f);
    for (size_t n = 0; n < trials(2000, 200000); n++) {
        iv_rope_row(f, 64, (int64_t)rng_below(&r, (1 << 20) + 1), 1, c, s);
        for (size_t i = 0; i < 64; i++) worst = fmax(worst, fabs((double)c[i] * c[i] + (double)s[i] * s[i] - 1.0));
    }
    printf("rope: cos^2 + sin^2 is within %.2f * 2^-24 of 1\n", worst * 0x1p24);
    assert_true(worst < 0x1.8p-24);
}

/* Negative control: frequencies rounded to float, as in other engines, give different tables. */
static void control_float_frequencies_differ(void **state) {
    (void)state;
    double f[PAIRS_MAX], g[PAIRS_MAX];
    float c[2][PAIRS_MAX], s[2][PAIRS_MAX];
    iv_rope_frequencies(&(iv_rope_rule){.theta = 1e6, .factor = 1.0}, 128, f);
    for (size_t i = 0; i < 64; i++) g[i] = (float)f[i];
    iv_rope_row(f, 64, 100000, 1, c[0], s[0]), iv_rope_row(g, 64, 100000, 1, c[1], s[1]);
    assert_int_not_equal(memcmp(c[0], c[1], sizeof c[0]), 0);
    assert_int_not_equal(memcmp(s[0], s[1], sizeof s[0]), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frequencies_are_exact_to_2_48),
        cmocka_unit_test(rows_have_the_law_s_bits),
        cmocka_unit_test(rows_are_rotations),
        cmocka_unit_test(control_float_frequencies_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
