/* The optimizer's reference against its definition written again in double, and against tests/data/train/adamw.json
 * (torch.optim.AdamW in f32, tests/scripts/record_optimizer.py). */
#include "random.h"
#include "base/digest.h"
#include "format/json.h"
#include "numerics/elementary64.h"
#include "numerics/optimizer.h"

enum { ELEMENTS_MAX = 64 };

static double member(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    if (!json_is_number(v)) fail_msg("adamw.json: no number %s", key);
    return json_number_value(v);
}

static double at(const json_t *array, size_t i) {
    const json_t *v = json_array_get(array, i);
    assert_true(json_is_number(v));
    return json_number_value(v);
}

static json_t *open_data(void) {
    json_t *root;
    iv_error err;
    ASSERT_OK(iv_json_read(source_path("tests/data/train/adamw.json"), 1 << 20, &root, &err), &err);
    return root;
}

static double unit(rng *r) { return (double)(rng_next(r) >> 40) * 0x1p-24; }

/* The distance in units in the last place of `want`. */
static double ulps(double want, float got) { return fabs((double)got - want) / ldexp(1.0, ilogb(want) - 23); }

static double compare(const json_t *want, const float *got, size_t n) {
    double worst = 0.0;
    for (size_t i = 0; i < n; i++) worst = fmax(worst, ulps(at(want, i), got[i]));
    return worst;
}

/* PyTorch multiplies by 1 - lr * weight_decay in f32, whose rounding error adds up over the steps. So each weight must
 * be near the f64 run, and as near to PyTorch's f32 as that is to the f64 run. */
static double one_record(const json_t *run, size_t record, const float *w, size_t n) {
    const json_t *torch = json_array_get(json_object_get(run, "weights"), record);
    const json_t *exact = json_array_get(json_object_get(run, "exact"), record);
    for (size_t i = 0; i < n; i++) {
        double apart = ulps(at(exact, i), (float)at(torch, i)), ours = ulps(at(torch, i), w[i]);
        if (!(ours <= apart + 16.0))
            fail_msg("weight %zu: wanted PyTorch's %.9g (%.1f ulp from f64), got %.9g (%.1f ulp)", i, at(torch, i),
                     apart, (double)w[i], ours);
    }
    return compare(exact, w, n);
}

static void one_run(const json_t *root, const json_t *run, iv_digest *digest) {
    size_t n = (size_t)member(root, "elements"), steps = (size_t)member(root, "steps"), record = 0;
    assert_true(n <= ELEMENTS_MAX);
    rng r = {(uint64_t)member(run, "seed")};
    iv_adamw_options o = {member(run, "beta1"), member(run, "beta2"), member(run, "eps"), member(run, "weight_decay")};
    float w[ELEMENTS_MAX], g[ELEMENTS_MAX], m[ELEMENTS_MAX] = {0}, v[ELEMENTS_MAX] = {0};
    for (size_t i = 0; i < n; i++) w[i] = (float)(0.5 + unit(&r));
    double exact = 0.0;
    for (size_t t = 1; t <= steps; t++) {
        for (size_t i = 0; i < n; i++) g[i] = (float)ldexp(unit(&r) - 0.25, (int)(i % 12) - 9);
        iv_adamw_step s = iv_adamw_constants(&o, member(run, "lr"), t, 1.0f);
        iv_ref_adamw(&s, true, g, w, m, v, n);
        if (at(json_object_get(root, "recorded"), record) == (double)t)
            exact = fmax(exact, one_record(run, record++, w, n));
    }
    assert_int_equal(record, 3);
    iv_digest_add(digest, w, n * sizeof *w);
    double first = compare(json_object_get(run, "first"), m, n), second = compare(json_object_get(run, "second"), v, n);
    printf("adamw: %zu steps, weights within %.1f ulp of the f64 run, moments %.1f and %.1f of PyTorch's f32\n", steps,
           exact, first, second);
    assert_true(exact <= 16.0 && first <= 16.0 && second <= 16.0);
}

/* The bits are part of the law of training: another hash is another version of it. */
static void expect_hash(iv_digest *digest, const char *want) {
    uint8_t hash[32];
    char hex[65];
    iv_digest_finish(digest, hash);
    iv_digest_hex(hash, hex);
    assert_string_equal(hex, want);
}

static void a_run_stays_within_ulps_of_pytorch_s(void **state) {
    (void)state;
    iv_digest *digest = iv_digest_new();
    json_t *root = open_data(), *runs = json_object_get(root, "runs");
    assert_true(json_array_size(runs) >= 3);
    for (size_t i = 0; i < json_array_size(runs); i++) one_run(root, json_array_get(runs, i), digest);
    expect_hash(digest, "a7fef823df1a777deb924989cfaf5484d68707b29dc1f301b60617fa6199dad5");
    json_decref(root);
}

static void clipping_is_pytorch_s(void **state) {
    (void)state;
    json_t *root = open_data(), *clip = json_object_get(root, "clip");
    rng r = {(uint64_t)member(clip, "seed")};
    float g[1000];
    for (size_t i = 0; i < 1000; i++) g[i] = (float)(8 * unit(&r) - 4);
    double norm, total = iv_ref_sum_squares(g, 1000);
    float scale;
    assert_true(iv_gradient_scale(total, 1.0, member(clip, "max_norm"), &norm, &scale));
    assert_true(fabs(norm / member(clip, "norm") - 1.0) < 1e-14);
    for (size_t i = 0; i < 8; i++) {
        double want = at(json_object_get(clip, "first"), i);
        assert_true(fabs((double)g[i] * (double)scale - want) <= fabs(want) * 0x1p-23);
    }
    json_decref(root);
}

/* Written again: eight sums of their own, and one step in double. */
static void sums_and_steps_follow_the_definition(void **state) {
    (void)state;
    rng r = rng_start("optimizer");
    for (size_t t = 0; t < trials(500, 20000); t++) {
        size_t n = rng_below(&r, IV_OPTIMIZER_BLOCK + 1);
        float *g = random_values(&r, (family)rng_below(&r, SPECIAL), IV_F32, n);
        double l[8];
        for (size_t k = 0; k < 8; k++) {
            l[k] = 0.0;
            for (size_t i = k; i < n; i += 8) l[k] = fma((double)g[i], (double)g[i], l[k]);
        }
        double even = (l[0] + l[4]) + (l[2] + l[6]), odd = (l[1] + l[5]) + (l[3] + l[7]);
        assert_true(iv_ref_sum_squares(g, n) == even + odd);
        free(g);
        float G = random_float(&r, NORMAL), w = random_float(&r, NORMAL), m = random_float(&r, NORMAL),
              v = fabsf(random_float(&r, NORMAL)), w1 = w, m1 = m, v1 = v;
        iv_adamw_options o = {0.9, 0.95, 1e-8, 0.1};
        iv_adamw_step s = iv_adamw_constants(&o, 1e-3, 1 + rng_below(&r, 50), 0.5f);
        iv_ref_adamw(&s, t % 2, &G, &w1, &m1, &v1, 1);
        float gs = G * s.scale;
        m = fmaf(s.b1, m, s.a1 * gs), v = fmaf(s.b2, v, (s.a2 * gs) * gs);
        if (t % 2) w = fmaf(s.k, w, w);
        w = w - s.c1 * (m / (sqrtf(v) * s.c2 + s.eps));
        assert_true(iv_bits(w) == iv_bits(w1) && iv_bits(m) == iv_bits(m1) && iv_bits(v) == iv_bits(v1));
    }
}

static void constants_are_rounded_once(void **state) {
    (void)state;
    iv_adamw_options o = {0.9, 0.999, 1e-8, 0.01};
    for (uint64_t t = 1; t < 3000; t = t * 3 / 2 + 1) {
        iv_adamw_step s = iv_adamw_constants(&o, 1e-4, t, 1.0f);
        double c1 = 1e-4 / (1.0 - pow(0.9, (double)t)), c2 = 1.0 / sqrt(1.0 - pow(0.999, (double)t));
        assert_true(ulps(c1, s.c1) <= 0.5001 && ulps(c2, s.c2) <= 0.5001);
    }
    assert_true(iv_power64(0.5, 10) == 0x1p-10 && iv_power64(3.0, 5) == 243.0 && iv_power64(0.0, 0) == 1.0);
    assert_true(iv_adamw_constants(&o, 1e-3, UINT64_MAX, 1.0f).c2 == 1.0f);
}

/* Not finite: refused. Zero weights with infinities: no NaN where nothing decays. */
static void edges(void **state) {
    (void)state;
    double norm;
    float scale;
    assert_false(iv_gradient_scale((double)NAN, 1.0, 1.0, &norm, &scale));
    assert_false(iv_gradient_scale((double)INFINITY, 1.0, 0.0, &norm, &scale));
    assert_true(iv_gradient_scale(0.0, 3.0, 1.0, &norm, &scale) && norm == 0.0 && scale == (float)(1.0 / 3.0));
    assert_true(iv_gradient_scale(16.0, 2.0, 0.0, &norm, &scale) && norm == 2.0 && scale == 0.5f);
    assert_true(iv_gradient_scale(16.0, 2.0, 1.0, &norm, &scale) && scale == (float)(1.0 / (2.0 + 1e-6) / 2.0));
    iv_adamw_options o = {0.9, 0.999, 0.0, 0.0};
    iv_adamw_step s = iv_adamw_constants(&o, 1e-3, 1, 1.0f);
    float g = 0.0f, w = 1.0f, m = 0.0f, v = 0.0f;
    iv_ref_adamw(&s, true, &g, &w, &m, &v, 1); /* 0 / 0 */
    assert_int_equal(iv_bits(w), IV_NAN_F32_BITS);
    o.eps = 1e-8, s = iv_adamw_constants(&o, 1e-3, 1, 1.0f), w = INFINITY;
    iv_ref_adamw(&s, true, &g, &w, &m, &v, 1);
    assert_true(w == INFINITY);
}

/* The project's double functions next to the C library's. */
static void double_functions_are_accurate(void **state) {
    (void)state;
    rng r = rng_start("elementary64");
    double worst = 0.0;
    for (size_t t = 0; t < trials(20000, 1000000); t++) {
        double x = (unit(&r) - 0.5) * ldexp(1.0, (int)rng_below(&r, 11)), e = iv_exp64(x), s, c;
        worst = fmax(worst, fabs(e / exp(x) - 1.0));
        assert_true(fabs(iv_log64(e) - x) < 1e-13 * (1.0 + fabs(x)));
        iv_sincos64(fabs(x), &s, &c);
        assert_true(fabs(s - sin(fabs(x))) < 1e-12 && fabs(c - cos(fabs(x))) < 1e-12);
    }
    printf("exp64: worst relative error %.2f * 2^-53\n", worst * 0x1p53);
    assert_true(worst < 0x1p-48);
    assert_true(iv_exp64(0.0) == 1.0 && iv_exp64(-0.0) == 1.0 && iv_exp64(-1e9) == 0.0 && isinf(iv_exp64(1e9)));
    assert_true(isnan(iv_exp64((double)NAN)) && iv_exp64((double)-INFINITY) == 0.0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_stays_within_ulps_of_pytorch_s),
        cmocka_unit_test(clipping_is_pytorch_s),
        cmocka_unit_test(sums_and_steps_follow_the_definition),
        cmocka_unit_test(constants_are_rounded_once),
        cmocka_unit_test(edges),
        cmocka_unit_test(double_functions_are_accurate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
