/* Distances between floats and between rows, compared with hand-computed values and plain definitions. */
#include "random.h"

#include "divergence.h"

#include <math.h>

static void ulps_count_steps(void **state) {
    (void)state;
    assert_int_equal(cli_ulp_distance(1.0f, 1.0f), 0);
    assert_int_equal(cli_ulp_distance(1.0f, nextafterf(1.0f, 2.0f)), 1);
    assert_int_equal(cli_ulp_distance(nextafterf(1.0f, 2.0f), 1.0f), 1);
    assert_int_equal(cli_ulp_distance(1.0f, 2.0f), 1 << 23);
    assert_int_equal(cli_ulp_distance(-1.0f, -2.0f), 1 << 23);
    assert_int_equal(cli_ulp_distance(-0.0f, 0.0f), 1);
    assert_int_equal(cli_ulp_distance(-0x1p-149f, 0x1p-149f), 3);
    assert_int_equal(cli_ulp_distance(0x1.fffffep127f, INFINITY), 1);
    assert_int_equal(cli_ulp_distance(-INFINITY, INFINITY), 0xff000001u);
    assert_int_equal(cli_ulp_distance(iv_float(0x7fc00000), iv_float(0x7fc00000)), 0);
    assert_int_equal(cli_ulp_distance(iv_float(0x7fc00000), iv_float(0x7fc00001)), 1);
    rng r = rng_start("ulps_count_steps");
    for (size_t i = 0; i < 100000; i++) {
        float a = iv_float((uint32_t)rng_next(&r)), b = iv_float((uint32_t)rng_next(&r));
        assert_int_equal(cli_ulp_distance(a, b), cli_ulp_distance(b, a));
        assert_int_equal(cli_ulp_distance(a, b) == 0, iv_bits(a) == iv_bits(b));
        if (!isfinite(a) || a == 0.0f) continue;
        assert_int_equal(cli_ulp_distance(a, nextafterf(a, INFINITY)), 1);
    }
}

static void first_difference_is_of_bits(void **state) {
    (void)state;
    float a[4] = {1.0f, 0.0f, iv_float(0x7fc00000), 4.0f}, b[4];
    memcpy(b, a, sizeof a);
    assert_int_equal(cli_first_difference(a, b, 4), 4);
    b[3] = nextafterf(4.0f, 5.0f);
    assert_int_equal(cli_first_difference(a, b, 4), 3);
    b[1] = -0.0f;
    assert_int_equal(cli_first_difference(a, b, 4), 1);
    assert_int_equal(cli_first_difference(a, b, 0), 0);
}

static void probabilities_by_hand(void **state) {
    (void)state;
    /* Odds 1:1 and 3:1: probabilities 1/2, 1/2 and 3/4, 1/4. */
    float a[2] = {0.0f, 0.0f}, b[2] = {logf(3.0f), 0.0f};
    assert_true(fabs(cli_probability_divergence(a, b, 2) - 0.25) < 1e-7);
    assert_true(cli_probability_divergence(a, a, 2) == 0.0);
    /* Different bits but equal probabilities. */
    float c[2] = {100.0f, 100.0f};
    assert_true(cli_probability_divergence(a, c, 2) == 0.0);
    float low[2] = {-INFINITY, 5.0f}, none[2] = {-INFINITY, -INFINITY}, bad[2] = {NAN, 5.0f},
          high[2] = {INFINITY, 1.0f};
    assert_true(fabs(cli_probability_divergence(a, low, 2) - 0.5) < 1e-15);
    assert_true(cli_probability_divergence(a, none, 2) == 1.0);
    assert_true(cli_probability_divergence(a, bad, 2) == 1.0);
    assert_true(cli_probability_divergence(high, a, 2) == 1.0);
    assert_true(cli_probability_divergence(bad, bad, 2) == 0.0);
}

/* The top tokens by sorting the whole row. */
static double plain_top(const float *a, const float *b, size_t n, size_t most) {
    double sums[2] = {0, 0}, worst = 0;
    for (size_t i = 0; i < n; i++) sums[0] += exp((double)a[i]), sums[1] += exp((double)b[i]);
    for (size_t i = 0; i < n; i++) {
        size_t above[2] = {0, 0};
        for (size_t j = 0; j < n; j++) {
            above[0] += a[j] > a[i] || (a[j] == a[i] && j < i);
            above[1] += b[j] > b[i] || (b[j] == b[i] && j < i);
        }
        double d = fabs(exp((double)a[i]) / sums[0] - exp((double)b[i]) / sums[1]);
        if ((above[0] < most || above[1] < most) && d > worst) worst = d;
    }
    return worst;
}

static void top_divergence_of_sorted_rows(void **state) {
    (void)state;
    rng r = rng_start("top_divergence_of_sorted_rows");
    bool smaller = false;
    for (size_t trial = 0; trial < 2000; trial++) {
        float a[40], b[40];
        size_t n = 1 + rng_below(&r, 40), most = 1 + rng_below(&r, 8);
        for (size_t i = 0; i < n; i++) {
            a[i] = (float)rng_below(&r, 12) / 2;
            b[i] = rng_below(&r, 4) ? a[i] : (float)rng_below(&r, 12) / 2;
        }
        double all = cli_probability_divergence(a, b, n), top = cli_top_divergence(a, b, n, most);
        assert_true(fabs(all - plain_top(a, b, n, n)) < 1e-12);
        assert_true(fabs(top - plain_top(a, b, n, most)) < 1e-12);
        smaller |= top < all;
    }
    assert_true(smaller);
}

static void unique_texts(void **state) {
    (void)state;
    const char *texts[] = {"b", "a", "b", "c", "a", "b"};
    assert_int_equal(cli_count_unique(texts, 6), 3);
    assert_int_equal(cli_count_unique(texts, 0), 0);
    assert_int_equal(cli_count_unique(texts, 1), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ulps_count_steps),      cmocka_unit_test(first_difference_is_of_bits),
        cmocka_unit_test(probabilities_by_hand), cmocka_unit_test(top_divergence_of_sorted_rows),
        cmocka_unit_test(unique_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
