/* exp2, exp, log, silu, ex2 and tanh of the law against libm in double: the largest error in ulps and its argument. All
 * 2^32 floats with INVAR_TEST_LONG (some minutes), otherwise a stride; edges and limits always. */
#include "random.h"
#include "base/threads.h"
#include "numerics/ex2.h"
#include "numerics/vec_scalar.h"
#include "numerics/elementary.h"

enum { STRIDE = 1009, TASKS = 512 };
#define TASK_FLOATS (UINT64_C(1) << 23)

/* Limits of the law, section 5. */
#define EXP_LOW (-0x1.5d589ep+6f)
#define EXP_HIGH 0x1.62e42ep+6f

typedef struct function {
    const char *name;
    float (*f)(float);
    double (*exact)(double);
    /* True if the law defines the exact result, which is then *y (any NaN means NaN). */
    bool (*given)(float x, float *y);
    double bound;       /* in ulp, as RATIONALE.md states it */
    uint32_t fall_most; /* by how many floats a result may lie below that of a smaller argument;
                         * UINT32_MAX: the function falls by nature */
} function;

static bool given_exp2(float x, float *y) {
    *y = isnan(x) ? NAN : x < -126.0f ? 0.0f : x >= 128.0f ? INFINITY : 1.0f;
    return isnan(x) || x < -126.0f || x >= 128.0f || fabsf(x) < 0x1p-26f;
}

static bool given_exp(float x, float *y) {
    *y = isnan(x) ? NAN : x < EXP_LOW ? 0.0f : x > EXP_HIGH ? INFINITY : 1.0f;
    return isnan(x) || x < EXP_LOW || x > EXP_HIGH || fabsf(x) < 0x1p-26f;
}

static bool given_log(float x, float *y) {
    *y = x == 0.0f ? -INFINITY : x == INFINITY ? INFINITY : NAN;
    return !(x > 0.0f) || x == INFINITY;
}

static bool given_silu(float x, float *y) {
    *y = isnan(x) || x == -INFINITY ? NAN : x < -EXP_HIGH ? -0.0f : fabsf(x) < 0x1p-26f ? x * 0.5f : x;
    return isnan(x) || x < -EXP_HIGH || fabsf(x) < 0x1p-26f || x > 32.0f;
}

static bool given_tanh(float x, float *y) {
    *y = isnan(x) ? NAN : fabsf(x) < 0x1p-14f ? x : copysignf(1.0f, x);
    return isnan(x) || fabsf(x) < 0x1p-14f || fabsf(x) > 10.0f;
}

static double exact_silu(double x) { return x / (1.0 + exp(-x)); }

static float call_exp2(float x) { return v_exp2(x); }
static float call_exp(float x) { return v_exp(x); }
static float call_log(float x) { return v_log(x); }
static float call_silu(float x) { return v_silu(x); }
static float call_tanh(float x) { return v_tanh(x); }

static const function functions[] = {
    {"exp2", call_exp2, exp2, given_exp2, 3.2, 1}, {"exp", call_exp, exp, given_exp, 1.0, 1},
    {"log", call_log, log, given_log, 1.0, 0},     {"silu", call_silu, exact_silu, given_silu, 3.0, UINT32_MAX},
    {"ex2", iv_ex2, exp2, given_exp2, 2.1, 0},     {"tanh", call_tanh, tanh, given_tanh, 1.5, 1},
};

/* |y - exact| in units of the last place of a float of exact's size. */
static double ulps(float y, double exact) {
    int exponent;
    frexp(exact, &exponent);
    return fabs((double)y - exact) / ldexp(1.0, (exponent < -125 ? -125 : exponent) - 24);
}

typedef struct worst {
    double error;
    uint32_t at;
    uint64_t floats, falls; /* falls: a larger x with a smaller result */
    uint32_t fall_most;
    uint32_t wrong; /* argument whose defined result was wrong; 0: none (0 itself is in edges) */
} worst;

typedef struct sweep {
    const function *f;
    uint64_t step;
    worst w[TASKS];
} sweep;

/* Number of floats from y up to x; 0 if y >= x or either is NaN. */
static uint32_t below(float y, float x) {
    if (!(y < x)) return 0;
    uint32_t a = iv_bits(y), b = iv_bits(x);
    return a >> 31 != b >> 31 ? (a & 0x7fffffffu) + (b & 0x7fffffffu) : a > b ? a - b : b - a;
}

static void sweep_task(void *context, size_t index, size_t worker) {
    (void)worker;
    sweep *s = context;
    worst w = {.error = -1.0};
    float before = NAN;
    uint64_t begin = index * TASK_FLOATS, first = (begin + s->step - 1) / s->step * s->step;
    for (uint64_t u = first; u < begin + TASK_FLOATS; u += s->step, w.floats++) {
        float x = iv_float((uint32_t)u), y = s->f->f(x), want;
        uint32_t fall =
            u >> 31 ? below(before, y) : below(y, before); /* negative floats are visited in descending order */
        w.falls += fall > 0, w.fall_most = fall > w.fall_most ? fall : w.fall_most;
        before = y;
        if (s->f->given(x, &want)) {
            if (iv_bits(y) != iv_bits(want) && !(isnan(y) && isnan(want))) w.wrong = (uint32_t)u;
            continue;
        }
        double error = ulps(y, s->f->exact(x));
        if (error > w.error) w.error = error, w.at = (uint32_t)u;
    }
    s->w[index] = w;
}

static void sweep_function(const function *f) {
    static sweep s;
    iv_pool *pool;
    iv_error err;
    s = (sweep){.f = f, .step = getenv("INVAR_TEST_LONG") ? 1 : STRIDE};
    ASSERT_OK(iv_pool_open(0, &pool, &err), &err);
    iv_pool_run(pool, TASKS, sweep_task, &s);
    iv_pool_close(pool);
    worst all = s.w[0];
    for (size_t i = 0; i < TASKS; i++) {
        if (s.w[i].error > all.error) all.error = s.w[i].error, all.at = s.w[i].at;
        if (s.w[i].wrong) fail_msg("%s(%a) is %a", f->name, iv_float(s.w[i].wrong), f->f(iv_float(s.w[i].wrong)));
        if (i == 0) continue;
        all.floats += s.w[i].floats, all.falls += s.w[i].falls;
        if (s.w[i].fall_most > all.fall_most) all.fall_most = s.w[i].fall_most;
    }
    printf("%s: %llu floats (every %llu), worst %.4f ulp at %a (%08x)", f->name, (unsigned long long)all.floats,
           (unsigned long long)s.step, all.error, iv_float(all.at), all.at);
    if (f->fall_most < UINT32_MAX)
        printf(", falls %llu times by up to %u", (unsigned long long)all.falls, all.fall_most);
    printf("\n");
    assert_true(all.error <= f->bound);
    assert_true(all.fall_most <= f->fall_most);
}

static void every_float_of_exp2(void **state) {
    (void)state;
    sweep_function(&functions[0]);
}

static void every_float_of_exp(void **state) {
    (void)state;
    sweep_function(&functions[1]);
}

static void every_float_of_log(void **state) {
    (void)state;
    sweep_function(&functions[2]);
}

static void every_float_of_silu(void **state) {
    (void)state;
    sweep_function(&functions[3]);
}

static void every_float_of_ex2(void **state) {
    (void)state;
    sweep_function(&functions[4]);
}

static void every_float_of_tanh(void **state) {
    (void)state;
    sweep_function(&functions[5]);
}

/* 2^20 consecutive floats around x. */
static void turn(const function *f, float middle) {
    float before = NAN;
    int64_t m = iv_bits(fabsf(middle)), first = m - (1 << 19), last = m + (1 << 19);
    for (int64_t u = first < 0 ? 0 : first; u <= last && u < 0x7f800000; u++) {
        float x = copysignf(iv_float((uint32_t)u), middle), y = f->f(x), want;
        bool given = f->given(x, &want);
        if (given ? iv_bits(y) != iv_bits(want) : ulps(y, f->exact(x)) > f->bound)
            fail_msg("%s(%a) is %a", f->name, x, y);
        if ((middle < 0.0f ? below(before, y) : below(y, before)) > f->fall_most)
            fail_msg("%s falls at %a", f->name, x);
        before = y;
    }
}

/* Critical arguments: the halves and limits of exp2 and exp, the mantissa's edge of log, the minimum of silu,
 * table boundaries of ex2, the end of tanh's polynomial. */
static void places_where_the_formula_turns(void **state) {
    (void)state;
    static const float at[6][6] = {
        {0.5f, -0.5f, 127.5f, -125.5f, 0x1.fffffep6f, -126.0f},
        {0x1.62e43p-2f, -0x1.62e43p-2f, EXP_LOW, EXP_HIGH, 0x1.0a2b24p+0f, 64.0f},
        {1.0f, 0x1.6a09e6p-1f, 0x1.6a09e6p+0f, 0x1p-126f, 0x1p-140f, 0x1.fffffep127f},
        {-1.2784645f, 1.0f, -EXP_HIGH, -17.0f, 17.0f, -80.0f},
        {0x1.02p+0f, -0x1.02p+0f, 0x1.fffffep6f, -126.0f, -0x1p-6f, 0x1p-23f},
        {0.6875f, -0.6875f, 9.0f, -45.0f, 0x1p-13f, 0x1p-126f},
    };
    for (size_t i = 0; i < 6; i++)
        for (size_t j = 0; j < 6; j++) turn(&functions[i], at[i][j]);
}

typedef struct edge {
    size_t function;
    uint32_t x, y;
} edge;

static void edges(void **state) {
    (void)state;
    enum { EXP2, EXP, LOG, SILU, EX2, TANH };
    static const edge e[] = {
        {EXP2, 0x00000000, 0x3f800000}, {EXP2, 0x80000000, 0x3f800000}, {EXP2, 0x00000001, 0x3f800000},
        {EXP2, 0xc2fc0000, 0x00800000}, {EXP2, 0xc2fc0001, 0x00000000}, {EXP2, 0x43000000, 0x7f800000},
        {EXP2, 0x7f800000, 0x7f800000}, {EXP2, 0xff800000, 0x00000000}, {EXP2, 0xffc00001, 0x7fffffff},
        {EXP, 0x80000000, 0x3f800000},  {EXP, 0x807fffff, 0x3f800000},  {EXP, 0x7f800000, 0x7f800000},
        {EXP, 0xff800000, 0x00000000},  {EXP, 0x7f800001, 0x7fffffff},  {EXP, 0x42b17218, 0x7f800000},
        {LOG, 0x3f800000, 0x00000000},  {LOG, 0x00000000, 0xff800000},  {LOG, 0x80000000, 0xff800000},
        {LOG, 0x7f800000, 0x7f800000},  {LOG, 0x80000001, 0x7fffffff},  {LOG, 0xff800000, 0x7fffffff},
        {LOG, 0xffc12345, 0x7fffffff},  {SILU, 0x00000000, 0x00000000}, {SILU, 0x80000000, 0x80000000},
        {SILU, 0x7f800000, 0x7f800000}, {SILU, 0xc2b20000, 0x80000000}, {EX2, 0x00000000, 0x3f800000},
        {EX2, 0x80000000, 0x3f800000},  {EX2, 0x807fffff, 0x3f800000},  {EX2, 0x00000001, 0x3f800000},
        {EX2, 0xc2fc0000, 0x00800000},  {EX2, 0xc2fc0001, 0x00000000},  {EX2, 0x43000000, 0x7f800000},
        {EX2, 0x42ffffff, 0x7f7fffa8},  {EX2, 0x7f800000, 0x7f800000},  {EX2, 0xff800000, 0x00000000},
        {EX2, 0xffc00001, 0x7fffffff},  {EX2, 0x7f800001, 0x7fffffff},  {EX2, 0x33ffffff, 0x3f800000},
        {EX2, 0xb3ffffff, 0x3f800000},  {EX2, 0xb4000000, 0x3f7ffffe},  {TANH, 0x00000000, 0x00000000},
        {TANH, 0x80000000, 0x00000000}, {TANH, 0x7f800000, 0x3f800000}, {TANH, 0xff800000, 0xbf800000},
        {TANH, 0x00000001, 0x00000001}, {TANH, 0x807fffff, 0x807fffff},
    };
    for (size_t i = 0; i < sizeof e / sizeof *e; i++) {
        uint32_t y = iv_bits(functions[e[i].function].f(iv_float(e[i].x)));
        if (y != e[i].y) fail_msg("%s(%08x): wanted %08x, got %08x", functions[e[i].function].name, e[i].x, e[i].y, y);
    }
    assert_true(isnan(v_silu(-INFINITY)) && isnan(v_silu(NAN)));
    for (int n = -126; n < 128; n++) /* exact at integers */
        assert_true(v_exp2((float)n) == ldexpf(1.0f, n) && iv_ex2((float)n) == ldexpf(1.0f, n));
}

/* Negative control: a coefficient changed by one unit in 2^16 exceeds the bound. */
static void control_a_wrong_coefficient_is_seen(void **state) {
    (void)state;
    double most = 0.0;
    for (float x = -0.5f; x <= 0.5f; x += 0x1p-12f) {
        double error = ulps(iv_fma(v_exp2(x), 0x1p-16f, v_exp2(x)), exp2((double)x));
        most = error > most ? error : most;
    }
    assert_true(most > functions[0].bound);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_float_of_exp2),
        cmocka_unit_test(every_float_of_exp),
        cmocka_unit_test(every_float_of_log),
        cmocka_unit_test(every_float_of_silu),
        cmocka_unit_test(every_float_of_ex2),
        cmocka_unit_test(every_float_of_tanh),
        cmocka_unit_test(places_where_the_formula_turns),
        cmocka_unit_test(edges),
        cmocka_unit_test(control_a_wrong_coefficient_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
