/* The attention reference against softmax in double, and masking: keys after the row's position and before its window
 * must not matter. Hand-made cases check the order of the sums. */
#include "random.h"
#include "numerics/attention.h"
#include "numerics/ex2.h"
#include "numerics/fma32.h"
#include "numerics/tree.h"
#include "numerics/vec_scalar.h"
#include "numerics/elementary.h"

enum { KEYS_MAX = 720, DIM_MAX = 64 };

typedef struct row {
    iv_ref_attention_args a;
    void *q, *keys, *values; /* KEYS_MAX keys, including keys after the position */
} row;

static double at(iv_dtype type, const void *p, size_t i) {
    if (type == IV_F32) return ((const float *)p)[i];
    return type == IV_BF16 ? iv_bf16_to_f32(((const uint16_t *)p)[i]) : iv_f16_to_f32(((const uint16_t *)p)[i]);
}

static float scale_of(size_t head_dim) { return (float)(1.4426950408889634 / sqrt((double)head_dim)); }

/* Zeroes the padding of `rows` vectors of the head's size. */
static void zero_padding(iv_dtype type, void *p, size_t rows, size_t dim) {
    size_t padded = iv_padded_k(dim), e = iv_dtype_bytes(type);
    for (size_t i = 0; i < rows; i++) memset((char *)p + (i * padded + dim) * e, 0, (padded - dim) * e);
}

static row random_row(rng *r, iv_dtype type, iv_arithmetic arithmetic, int64_t position, int64_t window) {
    static const size_t dims[] = {64, 16, 40, 20};
    size_t dim = dims[rng_below(r, 4)], padded = iv_padded_k(dim);
    row x = {.q = random_values(r, NORMAL, type, padded),
             .keys = random_values(r, NORMAL, type, KEYS_MAX * padded),
             .values = random_values(r, NORMAL, type, KEYS_MAX * dim)};
    zero_padding(type, x.q, 1, dim), zero_padding(type, x.keys, KEYS_MAX, dim);
    x.a = (iv_ref_attention_args){.arithmetic = arithmetic,
                                  .type = type,
                                  .head_dim = dim,
                                  .position = position,
                                  .window = window,
                                  .scale_log2e = scale_of(dim),
                                  .q = x.q,
                                  .keys = x.keys,
                                  .values = x.values};
    return x;
}

static void free_row(row *x) { free(x->q), free(x->keys), free(x->values); }

/* Plain softmax in double over the visible keys, and the quantities that bound rounding errors. */
typedef struct exact_row {
    double out[DIM_MAX], spread[DIM_MAX]; /* per element: result, weighted mean distance of the values from it */
    double size;                          /* the largest |value| */
    double mass;                          /* the largest sum of |q k| of a key, in base-2 scores */
} exact_row;

static void exact(const iv_ref_attention_args *a, exact_row *x) {
    size_t padded = iv_padded_k(a->head_dim);
    int64_t low = iv_first_visible(a->position, a->window);
    double weight[KEYS_MAX], max = -INFINITY, sum = 0.0;
    *x = (exact_row){.size = 0.0};
    for (int64_t t = low; t <= a->position; t++) {
        double dot = 0.0, mass = 0.0;
        for (size_t d = 0; d < a->head_dim; d++) {
            double product = at(a->type, a->q, d) * at(a->type, a->keys, (size_t)t * padded + d);
            dot += product, mass += fabs(product);
        }
        weight[t] = a->score_inner != 0.0f ? a->scale_log2e / M_LOG2E * tanh(dot * a->score_inner)
                                           : dot / sqrt((double)a->head_dim);
        max = fmax(max, weight[t]), x->mass = fmax(x->mass, mass * a->scale_log2e);
    }
    if (a->sink) max = fmax(max, *a->sink), sum = exp(*a->sink - max);
    for (int64_t t = low; t <= a->position; t++) sum += weight[t] = exp(weight[t] - max);
    for (size_t d = 0; d < a->head_dim; d++) {
        for (int64_t t = low; t <= a->position; t++) {
            double v = at(a->type, a->values, (size_t)t * a->head_dim + d);
            x->out[d] += weight[t] / sum * v, x->size = fmax(x->size, fabs(v));
        }
        for (int64_t t = low; t <= a->position; t++)
            x->spread[d] += weight[t] / sum * fabs(at(a->type, a->values, (size_t)t * a->head_dim + d) - x->out[d]);
        if (a->sink) x->spread[d] += exp(*a->sink - max) / sum * fabs(x->out[d]);
    }
}

typedef struct precision {
    const char *name;
    iv_dtype type;
    iv_arithmetic arithmetic;
    double unit; /* half an ulp of 1 in the weights' type; for float32 the error of its sums */
} precision;

static const precision precisions[] = {
    {"float32 fma32", IV_F32, IV_FMA32, 0x1p-24}, {"bfloat16 fma32", IV_BF16, IV_FMA32, 0x1p-9},
    {"float16 fma32", IV_F16, IV_FMA32, 0x1p-12}, {"bfloat16 tc16", IV_BF16, IV_TC16, 0x1p-9},
    {"float16 tc16", IV_F16, IV_TC16, 0x1p-12},
};
enum { PRECISIONS = sizeof precisions / sizeof *precisions };

/* Error bound of an element. A relative error of the weights moves it by that error times the spread, because the same
 * weights form the denominator. Weights have half an ulp of rounding error (none in float32) and the errors of scores
 * and exponentials. Chains and merging affect all values. */
static double limit_of(const precision *p, const exact_row *x, size_t d) {
    double half_ulp = p->type == IV_F32 ? 0.0 : 2.0 * p->unit, score = 0x1p-24 * (8.0 + x->mass);
    return (half_ulp + score) * x->spread[d] + 0x1p-24 * 16.0 * x->size;
}

/* The root mean square over many rows of the worst element is more sensitive: 3.0 units in float32, 0.16 in 16-bit
 * types, and 0.21 if the denominator sums weights before rounding. */
static void rows_are_accurate(void **state) {
    (void)state;
    rng r = rng_start("attention");
    for (size_t i = 0; i < PRECISIONS; i++) {
        const precision *p = &precisions[i];
        double worst = 0.0, nearest = 0.0, squares = 0.0;
        size_t rows = trials(40, 2000);
        for (size_t t = 0; t < rows; t++) {
            int64_t position = (int64_t)rng_below(&r, 700),
                    window = rng_below(&r, 2) ? 0 : (int64_t)(1 + rng_below(&r, 500));
            row x = random_row(&r, p->type, p->arithmetic, position, window);
            float sink = random_float(&r, NORMAL);
            if (rng_below(&r, 3) == 0) x.a.sink = &sink;
            if (rng_below(&r, 3) == 0) /* capped at 4 */
                x.a.score_inner = x.a.scale_log2e / (4 * (float)M_LOG2E), x.a.scale_log2e = 4 * (float)M_LOG2E;
            exact_row want;
            double of_row = 0.0;
            float got[DIM_MAX];
            exact(&x.a, &want);
            assert_true(iv_ref_attention(&x.a, got));
            for (size_t d = 0; d < x.a.head_dim; d++) {
                double error = fabs(got[d] - want.out[d]), limit = limit_of(p, &want, d);
                if (error > limit)
                    fail_msg("%s, position %lld, window %lld: element %zu has error %g, limit %g", p->name,
                             (long long)position, (long long)window, d, error, limit);
                nearest = fmax(nearest, error / limit);
                of_row = fmax(of_row, error / want.size / p->unit);
            }
            worst = fmax(worst, of_row), squares += of_row * of_row;
            free_row(&x);
        }
        double rms = sqrt(squares / (double)rows);
        printf("%s: worst error %.2f * 2^%.0f of the largest value, of a row %.3f; %.2f of its limit at most\n",
               p->name, worst, log2(p->unit), rms, nearest);
        if (rows >= 2000) assert_true(rms < (p->type == IV_F32 ? 3.5 : 0.18));
    }
}

/* NaN, infinities and large numbers outside [first visible, position] leave every bit as it was. */
static void hidden_keys_do_not_matter(void **state) {
    (void)state;
    rng r = rng_start("hidden");
    for (size_t t = 0; t < trials(60, 2000); t++) {
        const precision *p = &precisions[rng_below(&r, PRECISIONS)];
        int64_t position = (int64_t)rng_below(&r, 700),
                window = rng_below(&r, 2) ? 0 : (int64_t)(1 + rng_below(&r, 300));
        row x = random_row(&r, p->type, p->arithmetic, position, window);
        size_t padded = iv_padded_k(x.a.head_dim), dim = x.a.head_dim, changed = 0;
        float before[DIM_MAX], after[DIM_MAX];
        assert_true(iv_ref_attention(&x.a, before));
        for (int64_t key = 0; key < KEYS_MAX; key++) {
            if (key >= iv_first_visible(position, window) && key <= position) continue;
            static const float bad[] = {NAN, INFINITY, -INFINITY, 6e4f, -6e4f, -0.0f};
            for (size_t d = 0; d < padded; d++)
                put_type(p->type, x.keys, (size_t)key * padded + d, bad[rng_below(&r, 6)]);
            for (size_t d = 0; d < dim; d++) put_type(p->type, x.values, (size_t)key * dim + d, bad[rng_below(&r, 6)]);
            changed++;
        }
        assert_true(changed > 0 && iv_ref_attention(&x.a, after));
        assert_same_bits("a row with other hidden keys", before, after, dim, 4, false);
        put_type(p->type, x.values, (size_t)position * dim, 100.0f); /* the row's own key must matter */
        assert_true(iv_ref_attention(&x.a, after));
        assert_int_not_equal(memcmp(before, after, sizeof *before), 0);
        free_row(&x);
    }
}

/* ---- by hand ------------------------------------------------------------------------------------------- */

/* One head dimension of float32, keys of score 0 (weight 1), values as given: out = chain / sum. */
static float of_values(const float *values, int64_t position, int64_t window) {
    static float q[16], keys[KEYS_MAX * 16];
    float out;
    iv_ref_attention_args a = {IV_FMA32, IV_F32, 1, position, window, 1.0f, 0, NULL, q, keys, values};
    assert_true(iv_ref_attention(&a, &out));
    return out;
}

static void sums_meet_where_the_law_says(void **state) {
    (void)state;
    float v[KEYS_MAX] = {0};
    v[0] = 0x1p24f, v[2] = v[3] = 1.0f; /* a chain: each 1 is added to 2^24 alone and lost */
    assert_true(of_values(v, 511, 0) == 0x1p24f / 512.0f);
    v[2] = v[3] = 0.0f, v[256] = v[257] = 1.0f; /* the ones are added first, in their own split */
    assert_true(of_values(v, 511, 0) == (0x1p24f + 2.0f) / 512.0f);
    v[256] = v[257] = 0.0f, v[64] = v[65] = 1.0f; /* another block of the same split: still one chain */
    assert_true(of_values(v, 511, 0) == 0x1p24f / 512.0f);
    /* Splits begin at absolute positions: with a window from 250 on, the next begins at 256, not at 250 + 256. */
    memset(v, 0, sizeof v);
    v[250] = 0x1p24f, v[260] = v[261] = 1.0f;
    assert_true(of_values(v, 505, 256) == (0x1p24f + 2.0f) / 256.0f);
    /* Odd before even: with k = 1 first, 2^24 is added after the ones. */
    memset(v, 0, sizeof v);
    v[1] = 1.0f, v[3] = 0x1p24f, v[0] = 1.0f;
    assert_true(of_values(v, 63, 0) == (0x1p24f + 2.0f) / 64.0f);
}

/* Three keys, computed by the formulas: scores 0, 1 and -2 (base 2), one block. */
static void three_keys_by_the_formulas(void **state) {
    (void)state;
    float q[16] = {1.0f}, keys[3 * 16] = {0}, v[3] = {0.3f, -0.7f, 1.1f}, out;
    keys[16] = 1.0f, keys[32] = -2.0f;
    iv_ref_attention_args a = {IV_FMA32, IV_F32, 1, 2, 0, 1.0f, 0, NULL, q, keys, v};
    assert_true(iv_ref_attention(&a, &out));
    float w[3] = {v_exp2(-1.0f), v_exp2(0.0f), v_exp2(-3.0f)};
    float o = iv_fma(w[1], v[1], 0.0f); /* the odd k of the first pair, then the even one, then key 2 */
    o = iv_fma(w[0], v[0], o), o = iv_fma(w[2], v[2], o);
    float sum = ((w[0] + 0.0f) + (w[2] + 0.0f)) + ((w[1] + 0.0f) + 0.0f);
    assert_int_equal(iv_bits(out), iv_bits(o / sum));
}

/* Three keys of bfloat16 with a scale that is not a power of two: each arithmetic uses its own exponential (one of
 * these weights rounds differently), and the exponents are rounded once. */
static void each_arithmetic_has_its_exponential(void **state) {
    (void)state;
    uint16_t q[16] = {0x3f80}, keys[3 * 16] = {0}, v[64] = {0}, w[64] = {0};
    const float s[3] = {0x1p-7f, 0x1.02p+0f, -0x1.24p+2f}, scale = 0x1.76d148p-3f;
    for (int j = 0; j < 3; j++) keys[16 * j] = iv_bf16_from_f32(s[j]), v[j] = iv_bf16_from_f32(1.0f - 0.3f * (float)j);
    float out[2];
    for (int i = 0; i < 2; i++) {
        iv_arithmetic arithmetic = i ? IV_TC16 : IV_FMA32;
        iv_ref_attention_args a = {arithmetic, IV_BF16, 1, 2, 0, scale, 0, NULL, q, keys, v};
        assert_true(iv_ref_attention(&a, &out[i]));
        float m = s[1] * scale;
        for (int j = 0; j < 3; j++) {
            float x = iv_fma(s[j], scale, -m);
            w[j] = iv_bf16_from_f32(i ? iv_ex2(x) : v_exp2(x));
        }
        float sum = (iv_bf16_to_f32(w[0]) + iv_bf16_to_f32(w[2])) + iv_bf16_to_f32(w[1]); /* exact in tc16, too */
        assert_int_equal(iv_bits(out[i]), iv_bits(iv_ref_chain(arithmetic, IV_BF16, 0.0f, w, v, 64) / sum));
    }
    assert_int_not_equal(iv_bits(out[0]), iv_bits(out[1]));
}

/* If every value is one, numerator and denominator are sums of the same rounded weights. In tc16 they are the same
 * chains, so the result is one; in fma32 the order differs. A denominator of unrounded weights would be wrong by the
 * rounding error if one key dominates; here the last one exceeds its split's maximum by up to 2^7. */
static void the_sum_is_of_the_rounded_weights(void **state) {
    (void)state;
    rng r = rng_start("rounded");
    for (size_t t = 0; t < trials(100, 3000); t++) {
        const precision *p = &precisions[1 + rng_below(&r, PRECISIONS - 1)];
        int64_t position = (int64_t)(64 + rng_below(&r, 600)), window = rng_below(&r, 2) ? 0 : 200;
        row x = random_row(&r, p->type, p->arithmetic, position, window);
        size_t dim = x.a.head_dim, padded = iv_padded_k(dim);
        for (size_t i = 0; i < KEYS_MAX * dim; i++) put_type(p->type, x.values, i, 1.0f);
        float high = (float)(rng_below(&r, 7000) + 1) * 0x1p-10f / x.a.scale_log2e, out[DIM_MAX];
        for (size_t d = 0; d < padded; d++) put_type(p->type, x.q, d, d == 0 ? 1.0f : 0.0f);
        for (size_t i = 0; i < KEYS_MAX; i++)
            put_type(p->type, x.keys, i * padded, i == (size_t)position ? high : 0.0f);
        assert_true(iv_ref_attention(&x.a, out));
        for (size_t d = 0; d < dim; d++)
            if (p->arithmetic == IV_TC16 ? out[d] != 1.0f : fabsf(out[d] - 1.0f) > 0x1p-21f)
                fail_msg("%s, position %lld: an output of %a", p->name, (long long)position, out[d]);
        free_row(&x);
    }
}

/* Keys 0, 64 and 65 of float32 with these scores and all others with weight 0. The row's maximum is the first score or,
 * if `moved`, the second, which is the larger of the other two. */
static float of_two_blocks(const float score[3], const float v[3], bool moved) {
    float m = score[moved], alpha = v_exp2(score[0] - m);
    float w[3] = {v_exp2(0.0f) * alpha, v_exp2(score[1] - m), v_exp2(score[2] - m)};
    float o = iv_fma(w[1], v[1], iv_fma(w[2], v[2], v[0] * alpha));
    return o / ((w[0] + w[1]) + w[2]);
}

/* The maximum changes only if a block's exceeds it by more than 8; the bits show which one was used. */
static void a_maximum_is_kept_while_it_suffices(void **state) {
    (void)state;
    static float keys[66 * 16], values[66];
    static const struct {
        float first, second, third;
        bool moves;
    } cases[] = {{0.5f, 6.2f, 5.9f, false},  {-4.0f, 4.0f, 1.3f, false},  {-4.0f, 0x1.000002p+2f, 1.3f, true},
                 {-3.3f, 4.6f, 1.7f, false}, {-3.3f, 17.6f, 16.1f, true}, {7.7f, 8.1f, -2.0f, false}};
    float q[16] = {1.0f}, out;
    const float v[3] = {0.3f, -0.7f, 1.1f};
    values[0] = v[0], values[64] = v[1], values[65] = v[2];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const float score[3] = {cases[i].first, cases[i].second, cases[i].third};
        for (size_t j = 0; j < 66; j++) keys[16 * j] = j == 0 ? score[0] : j < 64 ? -1000.0f : score[j - 63];
        iv_ref_attention_args a = {IV_FMA32, IV_F32, 1, 65, 0, 1.0f, 0, NULL, q, keys, values};
        assert_true(iv_ref_attention(&a, &out));
        assert_int_equal(iv_bits(out), iv_bits(of_two_blocks(score, v, cases[i].moves)));
        assert_int_not_equal(iv_bits(out), iv_bits(of_two_blocks(score, v, !cases[i].moves)));
    }
}

static void a_sum_of_minus_zero_becomes_positive(void **state) {
    (void)state;
    float v[64];
    for (int i = 0; i < 64; i++) v[i] = -0.0f;
    assert_int_equal(iv_bits(of_values(v, 63, 0)), 0); /* the chain starts from +0 */
    v[62] = -0x1p-126f, v[61] = -0.0f;
    static float q[16], keys[64 * 16]; /* key 62 has weight 1/2: its product is flushed to -0, the last of its chain */
    q[0] = 1.0f, keys[0] = 1.0f;
    float out;
    iv_ref_attention_args a = {IV_FMA32, IV_F32, 1, 62, 0, 1.0f, 0, NULL, q, keys, v};
    assert_true(iv_ref_attention(&a, &out));
    assert_int_equal(iv_bits(out), 0); /* + 0 after the block */
}

/* A row is the canonical NaN if all its scores are NaN or -infinity, or if any is NaN or infinity. */
static void what_is_not_finite_is_a_canonical_nan(void **state) {
    (void)state;
    float q[16] = {0x1p100f}, keys[2 * 16] = {0}, v[2] = {1.0f, 2.0f}, out;
    keys[0] = keys[16] = -0x1p100f;
    iv_ref_attention_args a = {IV_FMA32, IV_F32, 1, 1, 0, 1.0f, 0, NULL, q, keys, v};
    assert_true(iv_ref_attention(&a, &out));
    assert_int_equal(iv_bits(out), IV_NAN_F32_BITS);
    keys[0] = 0.0f; /* one finite score: the other key has weight 0 */
    assert_true(iv_ref_attention(&a, &out));
    assert_true(out == 1.0f);
    keys[0] = NAN;
    assert_true(iv_ref_attention(&a, &out));
    assert_int_equal(iv_bits(out), IV_NAN_F32_BITS);
}

/* The same in each arithmetic and for each location of the key: last block, full block, another split. */
static void one_key_that_is_not_finite(void **state) {
    (void)state;
    enum { KEYS = 300 };
    static uint16_t keys[KEYS * 16], values[KEYS];
    const uint16_t one = iv_bf16_from_f32(1.0f);
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    static const size_t places[] = {0, 63, 64, 255, 256, KEYS - 1};
    uint16_t q[16] = {one};
    for (size_t i = 0; i < KEYS; i++) keys[16 * i] = iv_bf16_from_f32((float)(i % 7) - 3.0f), values[i] = one;
    for (size_t t = 0; t < 2 * 6 * 3; t++) {
        size_t place = places[t / 2 % 6];
        float x = bad[t / 12], out;
        uint16_t kept = keys[16 * place];
        keys[16 * place] = iv_bf16_from_f32(x);
        iv_ref_attention_args a = {t % 2 ? IV_TC16 : IV_FMA32, IV_BF16, 1, KEYS - 1, 0, 0.3f, 0, NULL, q, keys, values};
        assert_true(iv_ref_attention(&a, &out));
        if (x == -INFINITY)
            assert_true(fabsf(out - 1.0f) < 0.01f); /* such a key has weight 0 */
        else
            assert_int_equal(iv_bits(out), IV_NAN_F32_BITS);
        keys[16 * place] = kept;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_accurate),
        cmocka_unit_test(hidden_keys_do_not_matter),
        cmocka_unit_test(sums_meet_where_the_law_says),
        cmocka_unit_test(three_keys_by_the_formulas),
        cmocka_unit_test(each_arithmetic_has_its_exponential),
        cmocka_unit_test(the_sum_is_of_the_rounded_weights),
        cmocka_unit_test(a_maximum_is_kept_while_it_suffices),
        cmocka_unit_test(a_sum_of_minus_zero_becomes_positive),
        cmocka_unit_test(what_is_not_finite_is_a_canonical_nan),
        cmocka_unit_test(one_key_that_is_not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
