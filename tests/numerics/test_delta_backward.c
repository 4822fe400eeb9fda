/* The gradients of the delta rule, and of a selective scan, by blocks against those of the exact recurrence in double,
 * over long sequences whose last block is not whole: their error is that of one rounding of the operands, and is no
 * greater in the first rows, which most blocks lie behind. */
#include "random.h"
#include "numerics/attention.h"
#include "numerics/delta.h"
#include "numerics/delta_backward.h"
#include "numerics/floats.h"
#include "numerics/tree.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 1003, KEY = 24, VALUE = 20, B = IV_DELTA_BLOCK, BLOCKS = (TOKENS + B - 1) / B, PADDED = 32 };
enum { DQ, DK, DV, DBETA, DDECAY, GRADIENTS };

static const struct {
    const char *name;
    size_t columns;
} gradients[GRADIENTS] = {{"q", KEY}, {"k", KEY}, {"v", VALUE}, {"beta", 1}, {"decay", 1}};

typedef struct problem {
    iv_dtype type;
    bool scan; /* u = beta v; the gradient of v is that of u, and beta has none */
    float q[TOKENS * KEY], k[TOKENS * KEY], v[TOKENS * VALUE], dout[TOKENS * VALUE]; /* values of the type but v */
    float beta[TOKENS], decay[TOKENS];
    double want[GRADIENTS][TOKENS * KEY];
    float got[GRADIENTS][TOKENS * KEY];
} problem;

static float uniform(rng *r) { return (float)(rng_next(r) >> 40) * 0x1p-23f - 1.0f; }

static void store(iv_dtype type, void *p, size_t i, float x) {
    if (type == IV_F32)
        ((float *)p)[i] = x;
    else
        ((uint16_t *)p)[i] = type == IV_BF16 ? iv_bf16_from_f32(x) : iv_f16_from_f32(x);
}

static float rounded(iv_dtype type, float x) {
    float p;
    store(type, &p, 0, x);
    return iv_element(type, &p, 0);
}

/* Keys have a common part, decays are slow. */
static void make(rng *r, iv_dtype type, problem *x) {
    float common[KEY];
    x->type = type;
    for (size_t i = 0; i < KEY; i++) common[i] = uniform(r);
    for (size_t t = 0; t < TOKENS; t++) {
        float *q = x->q + t * KEY, *k = x->k + t * KEY;
        for (size_t i = 0; i < KEY; i++) k[i] = common[i] + uniform(r), q[i] = common[i] + uniform(r);
        float of_q = iv_ref_l2_factor(q, KEY) * iv_delta_query_scale(KEY), of_k = iv_ref_l2_factor(k, KEY);
        for (size_t i = 0; i < KEY; i++) q[i] = rounded(type, q[i] * of_q), k[i] = rounded(type, k[i] * of_k);
        for (size_t j = 0; j < VALUE; j++)
            x->v[t * VALUE + j] = 2.0f * uniform(r), x->dout[t * VALUE + j] = rounded(type, uniform(r));
        x->decay[t] = iv_ref_delta_decay(uniform(r), -6.0f, 0.0f);
        x->beta[t] = 0.5f + 0.5f * uniform(r);
    }
}

typedef double matrix[KEY][VALUE];

/* One token of the recurrence; before: the decayed state. */
static void forward(const problem *x, size_t t, matrix before, matrix state, double *u) {
    const float *k = x->k + t * KEY;
    for (size_t j = 0; j < VALUE; j++) {
        double kept = 0;
        for (size_t c = 0; c < KEY; c++) before[c][j] = state[c][j] * exp((double)x->decay[t]);
        for (size_t c = 0; c < KEY && !x->scan; c++) kept += before[c][j] * (double)k[c];
        u[j] = (double)x->beta[t] * ((double)x->v[t * VALUE + j] - kept);
    }
    for (size_t c = 0; c < KEY; c++)
        for (size_t j = 0; j < VALUE; j++) state[c][j] = before[c][j] + (double)k[c] * u[j];
}

static void backward(problem *x, size_t t, matrix before, matrix state, const double *u, matrix d) {
    const float *q = x->q + t * KEY, *k = x->k + t * KEY, *dout = x->dout + t * VALUE;
    double beta = (double)x->beta[t], decay = exp((double)x->decay[t]), of_beta = 0, of_decay = 0, du[VALUE];
    double *dq = x->want[DQ] + t * KEY, *dk = x->want[DK] + t * KEY, *dv = x->want[DV] + t * VALUE;
    for (size_t j = 0; j < VALUE; j++) {
        du[j] = 0;
        for (size_t c = 0; c < KEY; c++) d[c][j] += (double)q[c] * (double)dout[j], du[j] += d[c][j] * (double)k[c];
        dv[j] = x->scan ? du[j] : beta * du[j], of_beta += du[j] * u[j] / beta;
    }
    for (size_t c = 0; c < KEY; c++) {
        dq[c] = dk[c] = 0;
        for (size_t j = 0; j < VALUE; j++) {
            dq[c] += state[c][j] * (double)dout[j], dk[c] += d[c][j] * u[j];
            if (!x->scan) dk[c] -= before[c][j] * dv[j], d[c][j] -= (double)k[c] * dv[j];
            of_decay += d[c][j] * before[c][j];
            d[c][j] *= decay;
        }
    }
    x->want[DBETA][t] = of_beta * beta * (1 - beta), x->want[DDECAY][t] = of_decay;
}

static void exact(problem *x) {
    matrix *states = calloc(TOKENS, sizeof *states), *before = calloc(TOKENS, sizeof *before), d = {{0}};
    double *u = malloc(TOKENS * VALUE * sizeof *u);
    for (size_t t = 0; t < TOKENS; t++) {
        if (t) memcpy(states[t], states[t - 1], sizeof *states);
        forward(x, t, before[t], states[t], u + t * VALUE);
    }
    for (size_t t = TOKENS; t-- > 0;) backward(x, t, before[t], states[t], u + t * VALUE, d);
    free(states), free(before), free(u);
}

static void by_blocks(problem *x, iv_arithmetic arithmetic) {
    iv_ref_delta d;
    size_t width = iv_dtype_bytes(x->type);
    char *updates = malloc(TOKENS * VALUE * width), *borders = calloc(BLOCKS, KEY * VALUE * width);
    char *q = malloc(TOKENS * KEY * width), *k = malloc(TOKENS * KEY * width), *dout = malloc(TOKENS * VALUE * width);
    assert_true(iv_ref_delta_open(&d, arithmetic, x->type, KEY, VALUE));
    for (size_t t = 0; t < TOKENS; t++) {
        float qt[PADDED] = {0}, kt[PADDED] = {0}, o[VALUE]; /* storage for any type */
        for (size_t i = 0; t % B == 0 && i < KEY * VALUE; i++)
            store(x->type, borders + t / B * KEY * VALUE * width, i, d.state[i]);
        for (size_t c = 0; c < KEY; c++)
            store(x->type, qt, c, x->q[t * KEY + c]), store(x->type, kt, c, x->k[t * KEY + c]);
        memcpy(q + t * KEY * width, qt, KEY * width), memcpy(k + t * KEY * width, kt, KEY * width);
        for (size_t j = 0; j < VALUE; j++) store(x->type, dout, t * VALUE + j, x->dout[t * VALUE + j]);
        if (x->scan)
            iv_ref_scan_row(&d, qt, kt, x->v + t * VALUE, x->decay[t], x->beta[t], 0.0f, o);
        else
            iv_ref_delta_row(&d, qt, kt, x->v + t * VALUE, x->decay[t], x->beta[t], o);
        iv_ref_delta_last_update(&d, updates + t * VALUE * width);
    }
    iv_ref_delta_close(&d);
    assert_true(iv_ref_delta_backward(&(iv_ref_delta_backward_args){.arithmetic = arithmetic,
                                                                    .type = x->type,
                                                                    .n = TOKENS,
                                                                    .key_dim = KEY,
                                                                    .value_dim = VALUE,
                                                                    .q = q,
                                                                    .k = k,
                                                                    .updates = updates,
                                                                    .borders = borders,
                                                                    .beta = x->beta,
                                                                    .decay = x->decay,
                                                                    .dout = dout,
                                                                    .dq = x->got[DQ],
                                                                    .dk = x->got[DK],
                                                                    .dv = x->got[DV],
                                                                    .dbeta = x->got[DBETA],
                                                                    .ddecay = x->got[DDECAY],
                                                                    .scan = x->scan}));
    free(updates), free(borders), free(q), free(k), free(dout);
}

/* |got - want| / |want| over rows [from, to). */
static double error_of(const problem *x, size_t gradient, size_t from, size_t to) {
    double d = 0, w = 0;
    size_t n = gradients[gradient].columns;
    for (size_t i = from * n; i < to * n; i++)
        d += pow((double)x->got[gradient][i] - x->want[gradient][i], 2), w += pow(x->want[gradient][i], 2);
    return sqrt(d / w);
}

static void gradients_of_the_recurrence(void **state) {
    (void)state;
    static const struct {
        const char *name;
        iv_arithmetic arithmetic;
        iv_dtype type;
        double limit;
    } kinds[] = {{"fma32 float32", IV_FMA32, IV_F32, 3e-6},
                 {"fma32 bfloat16", IV_FMA32, IV_BF16, 2e-2},
                 {"tc16 bfloat16", IV_TC16, IV_BF16, 2e-2},
                 {"tc16 float16", IV_TC16, IV_F16, 3e-3}};
    rng r = rng_start("delta backward");
    problem *x = calloc(1, sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < 2 * sizeof kinds / sizeof *kinds; i++) {
        size_t kind = i / 2;
        x->scan = i % 2;
        make(&r, kinds[kind].type, x);
        exact(x), by_blocks(x, kinds[kind].arithmetic);
        for (size_t g = 0; g < GRADIENTS; g++) {
            if (x->scan && g == DBETA) continue;
            double all = error_of(x, g, 0, TOKENS), early = error_of(x, g, 0, 200);
            printf("%s%s: relative error of the gradient of %s %.2e, in the first 200 rows %.2e\n",
                   x->scan ? "scan, " : "", kinds[kind].name, gradients[g].name, all, early);
            assert_true(all < kinds[kind].limit && early < 1.5 * kinds[kind].limit);
        }
    }
    free(x);
}

static void gradients_of_gates(void **state) {
    (void)state;
    static const float a[] = {-30.0f, -2.0f, 0.0f, 0.75f, 9.0f};
    for (size_t i = 0; i < sizeof a / sizeof *a; i++) {
        double x = (double)a[i] + 0.25, want = -2.0 * exp(-0.5) / (1 + exp(-x));
        assert_true(fabs((double)iv_ref_delta_decay_backward(2.0f, a[i], 0.25f, -0.5f) - want) <= 1e-6 * fabs(want));
    }
    assert_true(iv_bits(iv_ref_delta_decay_backward(NAN, 0, 0, 0)) == IV_NAN_F32_BITS);
    for (size_t i = 0; i < sizeof a / sizeof *a; i++) { /* of a step between 0.01 and 2 */
        double x = (double)a[i] + 0.25, step = log1p(exp(x)), slope = step < 0.01 || step > 2 ? 0 : 1 / (1 + exp(-x));
        double want = (3.0 - 2.0 * exp(-0.5)) * slope;
        double got = (double)iv_ref_scan_step_backward(3.0f, 2.0f, a[i], 0.25f, -0.5f, 0.01f, 2.0f);
        assert_true(fabs(got - want) <= 1e-6 * fabs(want));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(gradients_of_the_recurrence),
                                       cmocka_unit_test(gradients_of_gates)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
