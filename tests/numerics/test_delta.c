/* The chunked delta rule against the exact recurrence in double, over long sequences: its error is that of one rounding
 * of its operands, does not grow, and is about that of a recurrence which keeps its state in the type. */
#include "random.h"
#include "numerics/delta.h"
#include "numerics/attention.h"
#include "numerics/floats.h"
#include "numerics/tree.h"

#include <math.h>
#include <stdlib.h>

enum { TOKENS = 1500, KEY = 24, VALUE = 20, PADDED = 32 };

typedef struct row {
    float q[KEY], k[KEY], v[VALUE], decay, beta; /* q and k normalised, the query scaled */
} row;

static float uniform(rng *r) { return (float)(rng_next(r) >> 40) * 0x1p-23f - 1.0f; }

/* Keys have a common part, decays are slow. */
static row *make_rows(rng *r) {
    row *rows = calloc(TOKENS, sizeof *rows);
    float common[KEY];
    assert_non_null(rows);
    for (size_t i = 0; i < KEY; i++) common[i] = uniform(r);
    for (size_t t = 0; t < TOKENS; t++) {
        row *x = &rows[t];
        for (size_t i = 0; i < KEY; i++) x->k[i] = common[i] + uniform(r), x->q[i] = common[i] + uniform(r);
        float of_q = iv_ref_l2_factor(x->q, KEY), of_k = iv_ref_l2_factor(x->k, KEY);
        for (size_t i = 0; i < KEY; i++) x->q[i] = x->q[i] * of_q * iv_delta_query_scale(KEY), x->k[i] = x->k[i] * of_k;
        for (size_t j = 0; j < VALUE; j++) x->v[j] = 2.0f * uniform(r);
        x->decay = iv_ref_delta_decay(uniform(r), -6.0f, 0.0f);
        x->beta = 0.5f + 0.5f * uniform(r);
    }
    return rows;
}

static float rounded(iv_dtype type, float x) {
    if (type == IV_F32) return x;
    return type == IV_BF16 ? iv_bf16_to_f32(iv_bf16_from_f32(x)) : iv_f16_to_f32(iv_f16_from_f32(x));
}

static void store(iv_dtype type, void *p, size_t i, float x) {
    if (type == IV_F32)
        ((float *)p)[i] = x;
    else
        ((uint16_t *)p)[i] = type == IV_BF16 ? iv_bf16_from_f32(x) : iv_f16_from_f32(x);
}

typedef enum how {
    EXACT,    /* in double */
    ROUNDED,  /* q, k, v of the type, as transformers computes it */
    STATE_TOO /* and the state, after each token */
} how;

/* The recurrence, all sums in double. */
static void recur(const row *rows, how rounds, iv_dtype type, double *out) {
    bool exact = rounds == EXACT;
    static double s[KEY][VALUE];
    for (size_t c = 0; c < KEY; c++)
        for (size_t j = 0; j < VALUE; j++) s[c][j] = 0;
    for (size_t t = 0; t < TOKENS; t++) {
        const row *x = &rows[t];
        double decay = exp((double)x->decay);
        for (size_t j = 0; j < VALUE; j++) {
            double kept = 0, o = 0;
            for (size_t c = 0; c < KEY; c++) s[c][j] *= decay;
            for (size_t c = 0; c < KEY; c++) kept += s[c][j] * (double)(exact ? x->k[c] : rounded(type, x->k[c]));
            double u = (double)x->beta * ((double)(exact ? x->v[j] : rounded(type, x->v[j])) - kept);
            for (size_t c = 0; c < KEY; c++) {
                s[c][j] += (double)(exact ? x->k[c] : rounded(type, x->k[c])) * u;
                if (rounds == STATE_TOO) s[c][j] = (double)rounded(type, (float)s[c][j]);
                o += s[c][j] * (double)(exact ? x->q[c] : rounded(type, x->q[c]));
            }
            out[t * VALUE + j] = o;
        }
    }
}

static void chunked(const row *rows, iv_arithmetic arithmetic, iv_dtype type, double *out) {
    iv_ref_delta d;
    assert_true(iv_ref_delta_open(&d, arithmetic, type, KEY, VALUE));
    for (size_t t = 0; t < TOKENS; t++) {
        float q[PADDED] = {0}, k[PADDED] = {0}, o[VALUE]; /* storage for any type */
        for (size_t c = 0; c < KEY; c++) store(type, q, c, rows[t].q[c]), store(type, k, c, rows[t].k[c]);
        iv_ref_delta_row(&d, q, k, rows[t].v, rows[t].decay, rows[t].beta, o);
        for (size_t j = 0; j < VALUE; j++) out[t * VALUE + j] = (double)o[j];
    }
    iv_ref_delta_close(&d);
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median over rows [from, TOKENS) of |got - want| / |want|. */
static double median_error(const double *got, const double *want, size_t from) {
    static double errors[TOKENS];
    for (size_t t = from; t < TOKENS; t++) {
        double d = 0, w = 0;
        for (size_t j = 0; j < VALUE; j++)
            d += pow(got[t * VALUE + j] - want[t * VALUE + j], 2), w += pow(want[t * VALUE + j], 2);
        errors[t - from] = sqrt(d / w);
    }
    qsort(errors, TOKENS - from, sizeof *errors, by_size);
    return errors[(TOKENS - from) / 2];
}

static void follows_the_recurrence(void **state) {
    (void)state;
    static const struct {
        const char *name;
        iv_arithmetic arithmetic;
        iv_dtype type;
        double limit;
    } kinds[] = {{"fma32 float32", IV_FMA32, IV_F32, 1e-6},
                 {"fma32 bfloat16", IV_FMA32, IV_BF16, 1e-2},
                 {"tc16 bfloat16", IV_TC16, IV_BF16, 1e-2},
                 {"tc16 float16", IV_TC16, IV_F16, 1.5e-3}};
    rng r = rng_start("delta");
    row *rows = make_rows(&r);
    double *want = malloc(TOKENS * VALUE * sizeof *want), *got = malloc(TOKENS * VALUE * sizeof *got),
           *plain = malloc(TOKENS * VALUE * sizeof *plain);
    recur(rows, EXACT, IV_F32, want);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        chunked(rows, kinds[i].arithmetic, kinds[i].type, got);
        double all = median_error(got, want, 0), late = median_error(got, want, TOKENS - 200);
        recur(rows, ROUNDED, kinds[i].type, plain);
        double inputs = median_error(plain, want, 0);
        recur(rows, STATE_TOO, kinds[i].type, plain);
        double state_too = median_error(plain, want, 0);
        printf("%s: median error of a row %.2e, of the last 200 %.2e; the recurrence from rounded q, k, v %.2e, with "
               "its state rounded too %.2e\n",
               kinds[i].name, all, late, inputs, state_too);
        assert_true(all < kinds[i].limit && late < 1.5 * kinds[i].limit);
        assert_true(kinds[i].type == IV_F32 || (all < 3.5 * inputs && all < 1.25 * state_too));
    }
    free(rows), free(want), free(got), free(plain);
}

static void functions_of_gates(void **state) {
    (void)state;
    double worst = 0;
    for (float x = -80.0f; x < 80.0f; x += 0.0371f) {
        double want = x > 0 ? (double)x + log1p(exp(-(double)x)) : log1p(exp((double)x));
        worst = fmax(worst, fabs((double)iv_ref_softplus(x) - want) / want);
    }
    printf("softplus: worst relative error %.2f * 2^-24\n", worst * 0x1p24);
    assert_true(worst < 4 * 0x1p-24);
    assert_true(iv_ref_softplus(0.0f) > 0.693147f && iv_ref_softplus(0.0f) < 0.693148f);
    assert_true(isnan(iv_ref_softplus(NAN)) && iv_ref_softplus(INFINITY) == INFINITY &&
                iv_ref_softplus(-INFINITY) == 0.0f);
    assert_true(fabs((double)iv_ref_delta_decay(0.5f, -0.25f, 0.75f) + exp(0.75) * log1p(exp(0.25))) < 1e-6);
    static const float w[] = {0.5f, -1.0f, 2.0f, 0.25f}, x[] = {1.0f, 2.0f, 3.0f, 4.0f};
    double y = 0.5 - 2 + 6 + 1;
    assert_true(fabs((double)iv_ref_delta_conv(w, x, 4) - y / (1 + exp(-y))) < 1e-6);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(follows_the_recurrence), cmocka_unit_test(functions_of_gates)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
