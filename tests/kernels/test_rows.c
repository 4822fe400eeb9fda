/* The row ops of every instruction set against the scalar reference, bit for bit. */
#include "random.h"
#include "kernels/kernels.h"
#include "numerics/ex2.h"

enum { N_MAX = 3000 };

static void one_row(rng *r, const iv_kernels *ref, const iv_kernels *k) {
    family f = (family)rng_below(r, FAMILIES);
    size_t n = 1 + rng_below(r, rng_below(r, 2) ? 80 : N_MAX - 1);
    iv_dtype type = (iv_dtype)rng_below(r, 3);
    size_t e = iv_dtype_bytes(type);
    float *x = random_values(r, f, IV_F32, n), *y = random_values(r, f, IV_F32, n),
          *z = random_values(r, NORMAL, IV_F32, n);
    char *want = calloc(n, 4), *got = calloc(n, 4), what[120];
    snprintf(what, sizeof what, "%s n %zu family %d %s", iv_isa_name(k->isa), n, (int)f, iv_dtype_name(type));
#define SAME(op) assert_same_bits(what, want, got, n, e, false), memset(want, 0, n * 4), memset(got, 0, n * 4)
    ref->rmsnorm(x, y, 1e-5f, n, type, want), k->rmsnorm(x, y, 1e-5f, n, type, got), SAME(rmsnorm);
    ref->norm_by(x, y, z[0], n, type, want), k->norm_by(x, y, z[0], n, type, got), SAME(norm_by);
    float sum[2] = {ref->squares(x, n), k->squares(x, n)};
    assert_same_bits(what, &sum[0], &sum[1], 1, 4, true);
    for (int kind = 0; kind < IV_ACTIVATION_KINDS; kind++) {
        iv_activation a = {.kind = (iv_activation_kind)kind,
                           .limit = 7,
                           .alpha = 1.702,
                           .positive = 0.8,
                           .negative = 0.7,
                           .beta = 0.5,
                           .eps = -1e-2};
        const float *gate = iv_activation_is_gated(&a) ? x : NULL;
        ref->activate(&a, gate, y, n, type, want), k->activate(&a, gate, y, n, type, got), SAME(activate);
    }
    ref->round(x, n, type, want), k->round(x, n, type, got), SAME(round);
    ref->divide(x, y[0], n, type, want), k->divide(x, y[0], n, type, got), SAME(divide);
    e = 4;
    ref->center(x, n, (float *)(void *)want), k->center(x, n, (float *)(void *)got), SAME(center);
    memcpy(want, x, n * 4), memcpy(got, x, n * 4);
    ref->add((float *)(void *)want, y, n), k->add((float *)(void *)got, y, n), SAME(add);
    memcpy(want, x, n * 4), memcpy(got, x, n * 4);
    ref->merge((float *)(void *)want, y, z[0], 0.5f, n), k->merge((float *)(void *)got, y, z[0], 0.5f, n), SAME(merge);
    memcpy(want, x, n * 4), memcpy(got, x, n * 4);
    ref->add_scaled((float *)(void *)want, y, z[0], n), k->add_scaled((float *)(void *)got, y, z[0], n),
        SAME(add_scaled);
    memcpy(want, x, n * 4), memcpy(got, x, n * 4);
    ref->add_product((float *)(void *)want, y, z, n), k->add_product((float *)(void *)got, y, z, n), SAME(add_product);
    ref->decays(z[0], y, n, (float *)(void *)want), k->decays(z[0], y, n, (float *)(void *)got), SAME(decays);
    memcpy(want, x, n * 4), memcpy(got, x, n * 4);
    ref->cap((float *)(void *)want, z[0], y[0], n), k->cap((float *)(void *)got, z[0], y[0], n), SAME(cap);
    memcpy(want, x, n * 4), memcpy(got, x, n * 4);
    ref->scale((float *)(void *)want, n, z[0]), k->scale((float *)(void *)got, n, z[0]);
    assert_same_bits(what, want, got, n, 4, true);
    memcpy(want, x, n * 4), memcpy(got, x, n * 4);
    ref->rope((float *)(void *)want, y, z, n / 2), k->rope((float *)(void *)got, y, z, n / 2), SAME(rope);
    float m[2], s[2];
    ref->sum_exp(x, n, &m[0], &s[0]), k->sum_exp(x, n, &m[1], &s[1]);
    assert_same_bits(what, &m[0], &m[1], 1, 4, false);
    assert_same_bits(what, &s[0], &s[1], 1, 4, true);
    free(x), free(y), free(z), free(want), free(got);
}

/* Weights from both ends of a type's range, some zero or NaN, and a sum to which they are added. */
static void random_weights(rng *r, iv_dtype type, void *weights, float lanes[2][8]) {
    float high = ldexpf(1.0f, (int)rng_below(r, 260) - 126), low = rng_below(r, 2) ? 1.0f : 0x1p-20f;
    for (size_t i = 0; i < 64; i++) {
        float x = fabsf(random_float(r, NORMAL)) * (rng_below(r, 2) ? high : high * low);
        put_type(type, weights, i, rng_below(r, 4) == 0 ? 0.0f : x);
    }
    if (rng_below(r, 8) == 0) put_type(type, weights, rng_below(r, 64), NAN);
    float sum = rng_below(r, 4) ? fabsf(random_float(r, NORMAL)) * high * 0x1p3f : 0.0f;
    for (size_t c = 0; c < 8; c++) lanes[0][c] = lanes[1][c] = sum;
}

static void one_softmax(rng *r, const iv_kernels *ref, const iv_kernels *k) {
    family f = (family)rng_below(r, FAMILIES);
    float *score = random_values(r, f, IV_F32, 64), *l = random_values(r, NORMAL, IV_F32, 8),
          scale = fabsf(random_float(r, NORMAL)) + 0x1p-20f;
    int first = (int)rng_below(r, 64), last = first + (int)rng_below(r, (size_t)(64 - first));
    iv_dtype type = (iv_dtype)rng_below(r, 3);
    iv_arithmetic arithmetic = type != IV_F32 && rng_below(r, 2) ? IV_TC16 : IV_FMA32;
    float max[2], alpha[2], lanes[2][8], weights[2][64] = {{0}};
    max[0] = max[1] = rng_below(r, 3) ? random_float(r, NORMAL) : -INFINITY;
    memcpy(lanes[0], l, sizeof lanes[0]), memcpy(lanes[1], l, sizeof lanes[1]);
    ref->softmax_block(arithmetic, score, first, last, scale, &max[0], &alpha[0], type, weights[0]);
    k->softmax_block(arithmetic, score, first, last, scale, &max[1], &alpha[1], type, weights[1]);
    max[0] += 0.0f, max[1] += 0.0f; /* the law does not define the sign of a zero maximum */
    assert_same_bits("softmax max", &max[0], &max[1], 1, 4, false);
    assert_same_bits("softmax alpha", &alpha[0], &alpha[1], 1, 4, true);
    assert_same_bits("softmax weights", weights[0], weights[1], 64, iv_dtype_bytes(type), false);
    for (int again = 0; again < 2; again++) { /* a block of softmax, then weights of every magnitude */
        ref->sum_weights(arithmetic, type, weights[0], alpha[0], lanes[0]);
        k->sum_weights(arithmetic, type, weights[0], alpha[0], lanes[1]);
        assert_same_bits("softmax lanes", lanes[0], lanes[1], 8, 4, true);
        random_weights(r, type, weights[0], lanes);
        alpha[0] = 1.0f;
    }
    free(score), free(l);
}

/* A block of negative scores with maximum 0 and scale 1: the weights in float32 are ex2 of the scores. */
static void weights_are_ex2(const iv_kernels *k, float score[64]) {
    float max = -INFINITY, alpha, weights[64];
    score[0] = 0.0f;
    k->softmax_block(IV_TC16, score, 0, 63, 1.0f, &max, &alpha, IV_F32, weights);
    for (size_t i = 0; i < 64; i++)
        if (iv_bits(weights[i]) != iv_bits(iv_ex2(score[i])))
            fail_msg("%s ex2(%a): wanted %a, got %a", iv_isa_name(k->isa), score[i], iv_ex2(score[i]), weights[i]);
}

/* Every float of (-2, -1], which has every fraction once, and random floats of every magnitude. */
static void every_fraction_of_ex2(void **state) {
    (void)state;
    rng r = rng_start("ex2");
    for (int isa = 0; isa <= (int)iv_isa_detect(); isa++) {
        const iv_kernels *k = iv_kernels_select((iv_isa)isa);
        float score[64];
        for (uint32_t u = 0; u < 1 << 23; u += 63) {
            for (uint32_t i = 0; i < 63; i++) score[i + 1] = iv_float(0xbf800000u + ((u + i) & 0x7fffffu));
            weights_are_ex2(k, score);
        }
        for (size_t t = 0; t < trials(10000, 1000000); t++) {
            for (size_t i = 1; i < 64; i++) score[i] = iv_float(0x80000000u | (uint32_t)(rng_next(&r) % 0x43800000u));
            weights_are_ex2(k, score);
        }
        printf("ex2 %s: 2^23 fractions and %zu blocks, 0 differ\n", iv_isa_name((iv_isa)isa), trials(10000, 1000000));
    }
}

/* The sampler's ops: Philox at any counter, the maximum, the next value above a bound. */
static void one_vocabulary(rng *r, const iv_kernels *ref, const iv_kernels *k) {
    size_t n = 1 + rng_below(r, rng_below(r, 2) ? 80 : N_MAX - 1), blocks = rng_below(r, 200);
    uint32_t want[800], got[800], first = (uint32_t)rng_next(r);
    uint64_t seed = rng_next(r), position = rng_below(r, 2) ? rng_below(r, 1000) : rng_next(r);
    ref->random(seed, position, first, blocks, want), k->random(seed, position, first, blocks, got);
    assert_same_bits("random", want, got, 4 * blocks, 4, false);
    float *x = malloc(n * sizeof *x);
    size_t values = 1 + rng_below(r, 1000); /* few values: many are equal */
    for (size_t i = 0; i < n; i++) x[i] = (float)rng_below(r, values) - 300.0f;
    if (rng_below(r, 4) == 0) x[rng_below(r, n)] = -0.0f, x[rng_below(r, n)] = 0.0f;
    if (rng_below(r, 4) == 0) x[rng_below(r, n)] = -INFINITY, x[rng_below(r, n)] = INFINITY;
    assert_int_equal(ref->largest(x, n), k->largest(x, n));
    size_t from = rng_below(r, n + 1);
    float than = x[rng_below(r, n)];
    assert_int_equal(ref->find_above(x, from, n, than), k->find_above(x, from, n, than));
    free(x);
}

static void rows_have_the_reference_bits(void **state) {
    (void)state;
    rng r = rng_start("rows");
    size_t n = trials(1000, 10000);
    for (int isa = 1; isa <= (int)iv_isa_detect(); isa++) {
        for (size_t i = 0; i < n; i++) {
            one_row(&r, iv_kernels_select(IV_ISA_SCALAR), iv_kernels_select((iv_isa)isa));
            one_vocabulary(&r, iv_kernels_select(IV_ISA_SCALAR), iv_kernels_select((iv_isa)isa));
            one_softmax(&r, iv_kernels_select(IV_ISA_SCALAR), iv_kernels_select((iv_isa)isa));
        }
        printf("rows %s: %zu shapes, 0 differ\n", iv_isa_name((iv_isa)isa), n);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_have_the_reference_bits),
                                       cmocka_unit_test(every_fraction_of_ex2)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
