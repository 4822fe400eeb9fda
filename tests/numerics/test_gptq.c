/* GPTQ against its textbook: the inverse of the inputs' matrix, that one's Cholesky factor, and a sweep that changes
 * all later columns of a copy of the weights. And: texts in any division, unseen inputs, the error that it is for. */
#include "random.h"
#include "numerics/dequantize.h"
#include "numerics/floats.h"
#include "numerics/gptq.h"
#include "numerics/quantize.h"

#include <math.h>
#include <stdlib.h>

enum { K = 48, ROWS = 11, INPUTS = 150, GROUP = 16 };

typedef struct problem {
    double x[INPUTS][K];
    float w[ROWS * K];
    double h[K * K], damped[K * K]; /* whole, not only the lower triangle */
} problem;

static void make_problem(rng *r, problem *p) {
    for (size_t t = 0; t < INPUTS; t++)
        for (size_t i = 0; i < K; i++) { /* neighbours resemble each other */
            float own = (float)rng_below(r, 2001) / 1000 - 1;
            float size = (float)(i % 7 + 1);
            p->x[t][i] = (double)(float)(size * own + (i ? 0.5f * (float)p->x[t][i - 1] : 0));
        }
    for (size_t i = 0; i < ROWS * K; i++) p->w[i] = (float)rng_below(r, 2001) / 1000 - 1;
    memset(p->h, 0, sizeof p->h);
    for (size_t at = 0, n; at < INPUTS; at += n) {
        n = 1 + rng_below(r, 40);
        if (n > INPUTS - at) n = INPUTS - at;
        iv_gptq_add(p->h, K, 0, 32, p->x[at], n), iv_gptq_add(p->h, K, 32, K, p->x[at], n);
    }
    for (size_t i = 0; i < K; i++)
        for (size_t j = 0; j <= i; j++) {
            double sum = 0;
            for (size_t t = 0; t < INPUTS; t++) sum += p->x[t][i] * p->x[t][j];
            if (sum != p->h[i * K + j]) fail_msg("H[%zu][%zu]: wanted %a, found %a", i, j, sum, p->h[i * K + j]);
        }
    iv_gptq_damp(p->h, K, 0.01);
    for (size_t i = 0; i < K; i++)
        for (size_t j = 0; j < K; j++) p->damped[i * K + j] = p->h[j <= i ? i * K + j : j * K + i];
}

static void factor(double *h) {
    for (size_t end = K, begin; end > 0; end = begin) {
        begin = end > 20 ? end - 20 : 0;
        assert_true(iv_gptq_factor(h, K, begin, end));
        for (size_t row = begin; row-- > 0;) iv_gptq_take(h, K, begin, end, row);
    }
}

/* ---- the textbook ------------------------------------------------------------------------------------------ */

static void invert(const double *h, double *out) {
    static double a[K][2 * K];
    for (size_t i = 0; i < K; i++)
        for (size_t j = 0; j < K; j++) a[i][j] = h[i * K + j], a[i][K + j] = i == j;
    for (size_t c = 0; c < K; c++) {
        double d = a[c][c];
        for (size_t j = 0; j < 2 * K; j++) a[c][j] /= d;
        for (size_t i = 0; i < K; i++) {
            double f = a[i][c];
            for (size_t j = 0; i != c && j < 2 * K; j++) a[i][j] -= f * a[c][j];
        }
    }
    for (size_t i = 0; i < K; i++)
        for (size_t j = 0; j < K; j++) out[i * K + j] = a[i][K + j];
}

/* u[i][j], j >= i: the inverse is the transpose of u times u. */
static void cholesky(const double *m, double *u) {
    for (size_t i = 0; i < K; i++)
        for (size_t j = i; j < K; j++) {
            double sum = m[i * K + j];
            for (size_t t = 0; t < i; t++) sum -= u[t * K + i] * u[t * K + j];
            u[i * K + j] = i == j ? sqrt(sum) : sum / u[i * K + i];
        }
}

static void textbook(const problem *p, iv_weight_format format, size_t group, size_t row, uint8_t *codes,
                     float *scales) {
    static double inverse[K * K], u[K * K];
    double w[K];
    float scale = 0, stored;
    invert(p->damped, inverse), cholesky(inverse, u);
    for (size_t k = 0; k < K; k++) w[k] = (double)p->w[row * K + k];
    for (size_t k = 0; k < K; k++) {
        if (k % group == 0) {
            float now[K];
            for (size_t i = 0; i < group; i++) now[i] = (float)w[k + i];
            scale = iv_quantize_scale(format, now, group, 300, IV_BF16, &stored);
            scales[k / group] = stored;
        }
        float x = (float)w[k];
        iv_quantize_codes(format, &x, 1, scale, &codes[k]);
        float value = iv_bf16_to_f32(iv_bf16_from_f32(iv_weight_code(format, &codes[k], 0) * scale));
        double error = (w[k] - (double)value) / u[k * K + k];
        for (size_t j = k; j < K; j++) w[j] -= error * u[k * K + j];
    }
}

static double output_error(const problem *p, size_t row, const float *values) {
    double sum = 0;
    for (size_t t = 0; t < INPUTS; t++) {
        double y = 0;
        for (size_t i = 0; i < K; i++) y += ((double)p->w[row * K + i] - (double)values[i]) * p->x[t][i];
        sum += y * y;
    }
    return sum;
}

static double nearest_error(const problem *p, iv_weight_format format, size_t group, size_t row) {
    float values[K], stored;
    uint8_t codes[K];
    for (size_t at = 0; at < K; at += group) {
        const float *w = p->w + row * K + at;
        float scale = iv_quantize_scale(format, w, group, 300, IV_BF16, &stored);
        iv_quantize_codes(format, w, group, scale, codes + at);
        for (size_t i = 0; i < group; i++)
            values[at + i] = iv_bf16_to_f32(iv_bf16_from_f32(iv_weight_code(format, codes + at + i, 0) * scale));
    }
    return output_error(p, row, values);
}

static const iv_weight_format formats[] = {IV_WEIGHT_FP8, IV_WEIGHT_INT8, IV_WEIGHT_PACK4, IV_WEIGHT_MXFP4,
                                           IV_WEIGHT_NVFP4};

typedef struct answer {
    uint8_t codes[ROWS * K];
    float scales[ROWS * K], values[ROWS * K];
} answer;

static void round_all(const problem *p, iv_gptq_layer l, answer *a) {
    double *scratch = calloc(iv_gptq_scratch(K), sizeof *scratch);
    assert_non_null(scratch);
    l.columns = K, l.type = IV_BF16, l.global = 300;
    for (size_t row = 0; row < ROWS; row += IV_GPTQ_ROWS)
        iv_gptq_rows(&l, ROWS - row < IV_GPTQ_ROWS ? ROWS - row : IV_GPTQ_ROWS, p->w + row * K, a->codes + row * K,
                     a->scales + row * (K / l.group), a->values + row * K, scratch);
    free(scratch);
}

static void codes_are_the_textbooks(void **state) {
    (void)state;
    static problem p;
    static answer a;
    rng r = rng_start("gptq");
    double given = 0, nearest = 0;
    for (size_t i = 0; i < trials(20, 400); i++) {
        iv_weight_format format = formats[rng_below(&r, 5)];
        size_t group = rng_below(&r, 2) ? GROUP : K;
        make_problem(&r, &p), factor(p.h);
        round_all(&p, (iv_gptq_layer){.factor = p.h, .group = group, .format = format}, &a);
        for (size_t row = 0; row < ROWS; row++) {
            uint8_t codes[K];
            float scales[K];
            textbook(&p, format, group, row, codes, scales);
            assert_memory_equal(scales, a.scales + row * (K / group), K / group * sizeof *scales);
            assert_memory_equal(codes, a.codes + row * K, K);
            given += output_error(&p, row, a.values + row * K), nearest += nearest_error(&p, format, group, row);
        }
    }
    assert_true(given < 0.6 * nearest);
}

static void unseen_inputs_round_to_nearest(void **state) {
    (void)state;
    static problem p;
    static answer a;
    static double h[K * K];
    rng r = rng_start("gptq unseen");
    make_problem(&r, &p);
    memset(h, 0, sizeof h);
    iv_gptq_damp(h, K, 0.01), factor(h);
    for (size_t f = 0; f < 5; f++) {
        round_all(&p, (iv_gptq_layer){.factor = h, .group = GROUP, .format = formats[f]}, &a);
        for (size_t row = 0; row < ROWS; row++)
            assert_true(output_error(&p, row, a.values + row * K) == nearest_error(&p, formats[f], GROUP, row));
    }
}

/* With columns in another order the codes are those of a layer whose columns stand so, and scales those of nearest. */
static void columns_in_another_order(void **state) {
    (void)state;
    static problem p, q;
    static answer a, b;
    static double h[K * K];
    uint32_t order[K], as_they_are[K];
    rng r = rng_start("gptq order");
    double given = 0, nearest = 0;
    for (size_t i = 0; i < trials(20, 200); i++) {
        make_problem(&r, &p);
        assert_true(iv_gptq_order(p.h, K, order));
        for (size_t k = 1; k < K; k++) assert_true(p.h[order[k - 1] * (K + 1)] >= p.h[order[k] * (K + 1)]);
        iv_gptq_reorder(p.h, K, order, h), factor(h);
        round_all(&p, (iv_gptq_layer){.factor = h, .order = order, .group = K, .format = IV_WEIGHT_PACK4}, &a);
        for (size_t row = 0; row < ROWS; row++)
            for (size_t k = 0; k < K; k++) q.w[row * K + k] = p.w[row * K + order[k]], as_they_are[k] = (uint32_t)k;
        round_all(&q, (iv_gptq_layer){.factor = h, .order = as_they_are, .group = K, .format = IV_WEIGHT_PACK4}, &b);
        for (size_t row = 0; row < ROWS; row++) {
            for (size_t k = 0; k < K; k++) assert_int_equal(a.codes[row * K + order[k]], b.codes[row * K + k]);
            assert_true(a.scales[row] == b.scales[row]);
            given += output_error(&p, row, a.values + row * K);
            nearest += nearest_error(&p, IV_WEIGHT_PACK4, K, row);
        }
    }
    assert_true(given < 0.6 * nearest);
}

static void a_matrix_that_is_not_positive(void **state) {
    (void)state;
    double h[4] = {1, 0, 2, 1};
    assert_false(iv_gptq_factor(h, 2, 0, 2));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_are_the_textbooks), cmocka_unit_test(unseen_inputs_round_to_nearest),
        cmocka_unit_test(columns_in_another_order), cmocka_unit_test(a_matrix_that_is_not_positive)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
