/* The selective scan of Mamba-2 by blocks against the exact recurrence in double, over long sequences: its error does
 * not grow, and is less than that of the form of transformers in the same type, which rounds B, C, x and the step. */
#include "random.h"
#include "numerics/attention.h"
#include "numerics/delta.h"
#include "numerics/floats.h"
#include "numerics/fma32.h"
#include "numerics/tree.h"

#include <math.h>
#include <stdlib.h>

enum { TOKENS = 4000, STATE = 24, HEAD = 20, PADDED = 32 };

typedef struct row {
    float c[STATE], b[STATE], x[HEAD], step, decay;
} row;

static const float skip = 0.75f, a_log = 0.5f;

static float uniform(rng *r) { return (float)(rng_next(r) >> 40) * 0x1p-23f - 1.0f; }

/* B and C have a common part; decays are slow for some rows, and fast for others. */
static row *make_rows(rng *r) {
    row *rows = calloc(TOKENS, sizeof *rows);
    float common[STATE];
    assert_non_null(rows);
    for (size_t i = 0; i < STATE; i++) common[i] = uniform(r);
    for (size_t t = 0; t < TOKENS; t++) {
        row *x = &rows[t];
        for (size_t i = 0; i < STATE; i++) x->b[i] = common[i] + uniform(r), x->c[i] = common[i] + uniform(r);
        for (size_t j = 0; j < HEAD; j++) x->x[j] = 2.0f * uniform(r);
        x->step = iv_ref_scan_step(2.0f * uniform(r), t % 500 < 20 ? 1.0f : -5.0f, 1e-3f, INFINITY);
        x->decay = x->step * iv_ref_scan_rate(a_log);
    }
    return rows;
}

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

typedef enum how {
    EXACT,    /* all in double */
    ROUNDED,  /* B, C, x, the step and the output of the type, as transformers has them */
    STATE_TOO /* and the state, after each token */
} how;

static void recur(const row *rows, how rounds, iv_dtype type, double *out) {
    static double s[STATE][HEAD];
    bool exact = rounds == EXACT;
    double rate = -exp((double)a_log);
    for (size_t c = 0; c < STATE; c++)
        for (size_t j = 0; j < HEAD; j++) s[c][j] = 0;
    for (size_t t = 0; t < TOKENS; t++) {
        const row *r = &rows[t];
        double step = (double)(exact ? r->step : rounded(type, r->step)), decay = exp(step * rate);
        for (size_t j = 0; j < HEAD; j++) {
            double x = (double)(exact ? r->x[j] : rounded(type, r->x[j])), o = (double)skip * x;
            for (size_t c = 0; c < STATE; c++) {
                s[c][j] = decay * s[c][j] + step * x * (double)(exact ? r->b[c] : rounded(type, r->b[c]));
                if (rounds == STATE_TOO) s[c][j] = (double)rounded(type, (float)s[c][j]);
                o += s[c][j] * (double)(exact ? r->c[c] : rounded(type, r->c[c]));
            }
            out[t * HEAD + j] = exact ? o : (double)rounded(type, (float)o);
        }
    }
}

static void chunked(const row *rows, iv_arithmetic arithmetic, iv_dtype type, double *out) {
    iv_ref_delta d;
    assert_true(iv_ref_delta_open(&d, arithmetic, type, STATE, HEAD));
    for (size_t t = 0; t < TOKENS; t++) {
        float c[PADDED] = {0}, b[PADDED] = {0}, o[HEAD]; /* storage for any type */
        for (size_t i = 0; i < STATE; i++) store(type, c, i, rows[t].c[i]), store(type, b, i, rows[t].b[i]);
        iv_ref_scan_row(&d, c, b, rows[t].x, rows[t].decay, rows[t].step, skip, o);
        for (size_t j = 0; j < HEAD; j++) out[t * HEAD + j] = (double)o[j];
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
        for (size_t j = 0; j < HEAD; j++)
            d += pow(got[t * HEAD + j] - want[t * HEAD + j], 2), w += pow(want[t * HEAD + j], 2);
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
                 {"fma32 bfloat16", IV_FMA32, IV_BF16, 5e-3},
                 {"tc16 bfloat16", IV_TC16, IV_BF16, 5e-3},
                 {"tc16 float16", IV_TC16, IV_F16, 7e-4}};
    rng r = rng_start("scan");
    row *rows = make_rows(&r);
    size_t bytes = TOKENS * HEAD * sizeof(double);
    double *want = malloc(bytes), *got = malloc(bytes), *plain = malloc(bytes);
    assert_true(want && got && plain);
    recur(rows, EXACT, IV_F32, want);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        chunked(rows, kinds[i].arithmetic, kinds[i].type, got);
        double all = median_error(got, want, 0), late = median_error(got, want, TOKENS - 200);
        recur(rows, ROUNDED, kinds[i].type, plain);
        double inputs = median_error(plain, want, 0);
        recur(rows, STATE_TOO, kinds[i].type, plain);
        double state_too = median_error(plain, want, 0);
        printf("%s: median error of a row %.2e, of the last 200 %.2e; the recurrence from rounded B, C, x and steps "
               "%.2e, with its state rounded too %.2e\n",
               kinds[i].name, all, late, inputs, state_too);
        assert_true(all < kinds[i].limit && late < 1.5 * kinds[i].limit);
        assert_true(kinds[i].type == IV_F32 || (all < 1.5 * inputs && all < state_too));
    }
    free(rows), free(want), free(got), free(plain);
}

static void steps(void **state) {
    (void)state;
    assert_true(iv_ref_scan_step(-30.0f, 0.0f, 1e-3f, INFINITY) == 1e-3f);
    assert_true(iv_ref_scan_step(3.0f, 4.0f, 0.0f, 0.1f) == 0.1f);
    assert_true(iv_ref_scan_step(0.5f, 0.25f, 0.0f, INFINITY) == iv_ref_softplus(0.75f));
    assert_true(isnan(iv_ref_scan_step(NAN, 0.0f, 1e-3f, 0.1f))); /* no limit hides a NaN */
    assert_true(fabs((double)iv_ref_scan_rate(0.5f) + exp(0.5)) < 1e-6);
    static const float w[] = {0.5f, -1.0f}, x[] = {1.0f, 2.0f};
    double y = 0.25 + 0.5 - 2;
    assert_true(fabs((double)iv_ref_scan_conv(0.25f, w, x, 2) - y / (1 + exp(-y))) < 1e-6);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(follows_the_recurrence), cmocka_unit_test(steps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
