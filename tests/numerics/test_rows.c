/* The row references: accuracy against double, the order of every sum by hand-made cases, routing and
 * combining. */
#include "random.h"
#include "numerics/fma32.h"
#include "numerics/router.h"
#include "numerics/rows.h"

enum { N_MAX = 5000 };

/* |y - exact| in units of the last place of a float of exact's size. */
static double ulps(float y, double exact) {
    int exponent;
    frexp(exact, &exponent);
    return fabs((double)y - exact) / ldexp(1.0, (exponent < -125 ? -125 : exponent) - 24);
}

/* ---- sums ---------------------------------------------------------------------------------------------- */

/* 2^24 + 1 + 1 is 2^24 if the ones are added one by one and 2^24 + 2 if they are added to each other first, so the
 * result shows the order. */
static float fold_of(const size_t *lanes, const float *values, size_t n) {
    float l[IV_ROW_LANES] = {0};
    for (size_t i = 0; i < n; i++) l[lanes[i]] = values[i];
    return iv_ref_fold_lanes(l);
}

static void lanes_fold_by_halves(void **state) {
    (void)state;
    const float v[] = {0x1p24f, 1.0f, 1.0f};
    assert_true(fold_of((size_t[]){0, 1, 129}, v, 3) == 0x1p24f + 2.0f); /* 1 + 129 at stride 128 */
    assert_true(fold_of((size_t[]){0, 128, 1}, v, 3) == 0x1p24f);        /* 0 + 128 first, 1 last */
    assert_true(fold_of((size_t[]){0, 2, 3}, v, 3) == 0x1p24f);          /* never 2 + 3: strides 2, then 1 */
    assert_true(fold_of((size_t[]){0, 1, 3}, v, 3) == 0x1p24f + 2.0f);   /* 1 + 3 at stride 2 */
    assert_true(fold_of((size_t[]){0, 64, 192}, v, 3) == 0x1p24f + 2.0f);
    assert_int_equal(iv_bits(fold_of((size_t[]){5}, (const float[]){-0.0f}, 1)), 0);
}

/* The mean of squares of 4096, 1, 1 at chosen indices, read back through the norm of an extra element of 1. */
static float norm_of(const size_t *at, size_t n) {
    float x[520] = {0}, w[520], out[520];
    for (size_t i = 0; i < 520; i++) w[i] = 1.0f;
    for (size_t i = 0; i < n; i++) x[at[i]] = i ? 1.0f : 4096.0f;
    iv_ref_rmsnorm(x, w, 0.0f, 520, out);
    return out[at[0]];
}

static float norm_expected(float sum) { return 4096.0f * (1.0f / sqrtf(sum / 520.0f)); }

/* Of one head it is the row's; heads are added in order: 1 is lost behind 2^24, and two before it are not. */
static void heads_share_a_factor(void **state) {
    (void)state;
    float x[70], sums[3] = {1.0f, 1.0f, 0x1p24f}, behind[3] = {0x1p24f, 1.0f, 1.0f};
    for (size_t i = 0; i < 70; i++) x[i] = (float)i * 0.37f - 11.0f;
    float squares = iv_ref_squares(x, 70);
    assert_true(iv_ref_heads_factor(&squares, 1, 70, 1e-5f) == iv_ref_rms_factor(x, 1e-5f, 70));
    assert_true(iv_ref_heads_factor(sums, 3, 2, 0.0f) == 1.0f / sqrtf((0x1p24f + 2.0f) / 6.0f));
    assert_true(iv_ref_heads_factor(behind, 3, 2, 0.0f) == 1.0f / sqrtf(0x1p24f / 6.0f));
}

static void norm_sums_squares_in_lanes(void **state) {
    (void)state;
    float near = norm_expected(0x1p24f), far = norm_expected(0x1p24f + 6.0f);
    assert_true(near != far); /* six ones added together, or one by one */
    assert_true(norm_of((size_t[]){0, 256, 512, 128, 64, 32, 16}, 7) == near); /* all added to lane 0 one at a time */
    assert_true(norm_of((size_t[]){0, 1, 257, 513, 129, 385, 3}, 7) == far); /* six ones of odd lanes are added first */
}

static void log_sum_exp_sums_in_lanes(void **state) {
    (void)state;
    /* exp(x - max): 1 at the largest, 2^-24 (below half an ulp of 1) at 24 ln 2 less. */
    float x[600], m, s[2];
    const float small = -24.0f * 0.69314718f;
    for (int c = 0; c < 2; c++) {
        for (size_t i = 0; i < 600; i++) x[i] = -INFINITY;
        x[0] = 0.0f;
        for (size_t i = 0; i < 2; i++) x[c ? 1 + 256 * i : 256 + 256 * i] = small; /* lane 1 together, or lane 0 */
        iv_ref_sum_exp(x, 600, &m, &s[c]);
        assert_true(m == 0.0f);
    }
    assert_true(s[0] == 1.0f && s[1] == 1.0f + 0x1p-23f);
}

/* ---- accuracy ------------------------------------------------------------------------------------------ */

static void norm_is_accurate(void **state) {
    (void)state;
    rng r = rng_start("rmsnorm");
    double worst = 0.0;
    size_t worst_n = 0;
    for (size_t t = 0; t < trials(300, 20000); t++) {
        size_t n = 1 + rng_below(&r, N_MAX);
        float *x = random_values(&r, NORMAL, IV_F32, n), *w = random_values(&r, NORMAL, IV_F32, n),
              *y = calloc(n, sizeof *y);
        double sum = 0.0;
        for (size_t i = 0; i < n; i++) sum += (double)x[i] * x[i];
        double scale = 1.0 / sqrt(sum / (double)n + (double)1e-6f);
        iv_ref_rmsnorm(x, w, 1e-6f, n, y);
        for (size_t i = 0; i < n; i++) {
            double error = ulps(y[i], x[i] * scale * w[i]);
            if (error > worst) worst = error, worst_n = n;
        }
        free(x), free(w), free(y);
    }
    printf("rmsnorm: rows of up to %d, worst %.2f ulp (n = %zu)\n", (int)N_MAX, worst, worst_n);
    assert_true(worst < 8.0);
}

static void log_softmax_is_accurate(void **state) {
    (void)state;
    rng r = rng_start("log_softmax");
    double worst = 0.0, worst_sum = 0.0;
    for (size_t t = 0; t < trials(200, 10000); t++) {
        size_t n = 1 + rng_below(&r, 4 * N_MAX);
        float *x = random_values(&r, NORMAL, IV_F32, n), m, log_sum, sum;
        for (size_t i = 0; i < n; i++) x[i] *= 8.0f;
        double largest = -INFINITY, exact = 0.0;
        for (size_t i = 0; i < n; i++) largest = fmax(largest, x[i]);
        for (size_t i = 0; i < n; i++) exact += exp(x[i] - largest);
        iv_ref_log_sum_exp(x, n, &m, &log_sum), iv_ref_sum_exp(x, n, &m, &sum);
        assert_true((double)m == largest && log_sum == iv_ref_log(sum));
        worst_sum = fmax(worst_sum, ulps(sum, exact));
        for (size_t i = 0; i < n; i++) {
            float y = (x[i] - m) - log_sum;
            worst = fmax(worst, fabs((double)y - ((double)x[i] - largest - log(exact))));
        }
        free(x);
    }
    printf("log-softmax: rows of up to %d, worst error %.3g; the sum's worst %.2f ulp\n", 4 * (int)N_MAX, worst,
           worst_sum);
    assert_true(worst < 1e-5 && worst_sum < 8.0);
}

/* The activation in double, and the size of what it multiplies. */
static double activation_of(const iv_activation *a, double g, double u, double *size) {
    double of = g, by = u, s = g;
    switch (a->kind) {
    case IV_ACTIVATION_SILU: break;
    case IV_ACTIVATION_GELU_TANH: /* as it is usually written */
        *size = fabs(g * u);
        return 0.5 * g * (1 + tanh(sqrt(2 / M_PI) * (g + 0.044715 * g * g * g))) * u;
    case IV_ACTIVATION_SILU_CLAMPED:
        of = fmin(g, a->limit), by = fmax(fmin(u, a->limit), -a->limit) + 1, s = (double)(float)a->alpha * of;
        break;
    case IV_ACTIVATION_RELU2: *size = u * u; return u > 0 ? u * u : 0;
    case IV_ACTIVATION_XIELU:
        *size = fabs(u) * (1 + fabs(u));
        if (u > 0) return a->positive * u * u + a->beta * u;
        return (expm1(fmin(u, a->eps)) - u) * a->negative + a->beta * u;
    }
    *size = fabs(of * by);
    return of / (1 + exp(-s)) * by;
}

static void activations_are_accurate(void **state) {
    (void)state;
    rng r = rng_start("activations");
    for (int kind = 0; kind < IV_ACTIVATION_KINDS; kind++) {
        const iv_activation a = {.kind = (iv_activation_kind)kind,
                                 .limit = 3,
                                 .alpha = 1.702,
                                 .positive = 0.75,
                                 .negative = 0.625,
                                 .beta = 0.5,
                                 .eps = -0x1p-20};
        double worst = 0;
        for (size_t t = 0; t < trials(200, 10000); t++) {
            enum { N = 256 };
            float *g = random_values(&r, NORMAL, IV_F32, N), *u = random_values(&r, NORMAL, IV_F32, N), y[N];
            for (size_t i = 0; i < N; i++) g[i] *= 4.0f, u[i] *= 2.0f;
            iv_ref_activate(&a, iv_activation_is_gated(&a) ? g : NULL, u, N, y);
            for (size_t i = 0; i < N; i++) {
                double size, exact = activation_of(&a, g[i], u[i], &size);
                if (size > 0) worst = fmax(worst, fabs(y[i] - exact) / size);
            }
            free(g), free(u);
        }
        printf("activation %d: worst %.2f * 2^-24 of gate times up\n", kind, worst * 0x1p24);
        assert_true(worst > 0 && worst < 0x1p-21);
    }
}

/* Clamping keeps a NaN, and infinities become limits. */
static void activations_at_the_ends(void **state) {
    (void)state;
    const iv_activation clamped = {.kind = IV_ACTIVATION_SILU_CLAMPED, .limit = 2, .alpha = 1.702},
                        relu = {.kind = IV_ACTIVATION_RELU2}, gelu = {.kind = IV_ACTIVATION_GELU_TANH};
    const float inf = INFINITY, gate[] = {inf, 5, 1, NAN, 1, -1e30f}, up[] = {-inf, 9, NAN, 1, -1, 2};
    float y[6], at_limit;
    iv_ref_activate(&clamped, (const float[]){2}, (const float[]){2}, 1, &at_limit);
    iv_ref_activate(&clamped, gate, up, 6, y);
    assert_true(y[1] == at_limit && y[2] != y[2] && y[3] != y[3]);
    assert_true(y[0] < 0 && y[0] == -at_limit / 3 && y[4] == 0 && y[5] == 0);
    iv_ref_activate(&relu, NULL, up, 6, y);
    assert_true(y[0] == 0 && y[1] == 81 && y[2] != y[2] && y[3] == 1 && y[4] == 0 && !signbit(y[4]));
    iv_ref_activate(&gelu, (const float[]){1e30f, -1e30f, 0, NAN}, (const float[]){1, 1, 1, 1}, 4, y);
    assert_true(y[0] == 1e30f && y[1] == 0 && y[2] == 0 && y[3] != y[3]);
}

/* What the negative side multiplies is accurate in itself where e^x - 1 nearly cancels x. */
static void xielu_keeps_small_values(void **state) {
    (void)state;
    const iv_activation a = {.kind = IV_ACTIVATION_XIELU, .negative = 1, .eps = -0x1p-20};
    for (float x = -6.0f; x < -1e-5f; x *= 0.98f) {
        float y;
        iv_ref_activate(&a, NULL, &x, 1, &y);
        double exact = expm1((double)x) - (double)x;
        assert_true(fabs((double)y - exact) < 2e-7 * exact);
    }
    iv_activation b = iv_ref_xielu(0.203125f, -1.046875f, 0.5f, -1e-6f);
    assert_true(fabs(b.positive - log1p(exp(0.203125))) < 1e-12);
    assert_true(fabs(b.negative - 0.5 - log1p(exp(-1.046875))) < 1e-12);
}

static void swiglu_and_rope_are_accurate(void **state) {
    (void)state;
    rng r = rng_start("swiglu");
    double worst = 0.0, worst_rope = 0.0;
    for (size_t t = 0; t < trials(200, 10000); t++) {
        enum { N = 256 };
        float *g = random_values(&r, NORMAL, IV_F32, N), *u = random_values(&r, NORMAL, IV_F32, N), y[N], z[N];
        for (size_t i = 0; i < N; i++) g[i] *= 4.0f;
        iv_ref_activate(&iv_silu, g, u, N, y);
        for (size_t i = 0; i < N; i++) worst = fmax(worst, ulps(y[i], g[i] / (1.0 + exp(-(double)g[i])) * u[i]));
        float c[N / 2], s[N / 2];
        for (size_t i = 0; i < N / 2; i++) c[i] = cosf(u[i]), s[i] = sinf(u[i]);
        memcpy(z, g, sizeof z);
        iv_ref_rope(z, c, s, N / 2);
        for (size_t i = 0; i < N / 2; i++) {
            double a = g[i], b = g[i + N / 2], size = fabs(a) + fabs(b);
            worst_rope = fmax(worst_rope, fabs(z[i] - (a * c[i] - b * s[i])) / size);
            worst_rope = fmax(worst_rope, fabs(z[i + N / 2] - (b * c[i] + a * s[i])) / size);
        }
        free(g), free(u);
    }
    printf("swiglu: worst %.2f ulp; rope: worst %.2f * 2^-24 of |a| + |b|\n", worst, worst_rope * 0x1p24);
    assert_true(worst < 4.0 && worst_rope < 0x1p-23);
}

/* ---- mixture of experts -------------------------------------------------------------------------------- */

static void equal_logits_go_by_id(void **state) {
    (void)state;
    float logits[8] = {1.0f, 3.0f, 0.0f, 3.0f, -0.0f, 3.0f, 1.0f, 2.0f}, w[6];
    int32_t ids[6];
    iv_ref_route(logits, 8, 6, 0, ids, w);
    const int32_t want[6] = {1, 3, 5, 7, 0, 6};
    assert_memory_equal(ids, want, sizeof want);
    assert_true(w[0] == w[1] && w[1] == w[2] && w[4] == w[5] && w[2] > w[3] && w[3] > w[4]);
    float zeros[4] = {-0.0f, 0.0f, 0.0f, -0.0f};
    iv_ref_route(zeros, 4, 4, 1, ids, w);
    for (int i = 0; i < 4; i++) assert_true(ids[i] == i && w[i] == 0.25f);
}

static void route_weighs_as_softmax(void **state) {
    (void)state;
    rng r = rng_start("route");
    double worst = 0.0;
    for (size_t t = 0; t < trials(2000, 100000); t++) {
        size_t experts = 2 + rng_below(&r, 200), k = 1 + rng_below(&r, experts < 16 ? experts : 16);
        int normalise = (int)rng_below(&r, 2);
        float *x = random_values(&r, NORMAL, IV_F32, experts), w[16];
        int32_t ids[16];
        iv_ref_route(x, experts, k, normalise, ids, w);
        double all = 0.0, selected = 0.0;
        for (size_t e = 0; e < experts; e++) all += exp((double)x[e]);
        for (size_t i = 0; i < k; i++) selected += exp((double)x[ids[i]]);
        for (size_t i = 0; i < k; i++) {
            size_t larger = 0;
            for (size_t e = 0; e < experts; e++)
                larger += x[e] > x[ids[i]] || (x[e] == x[ids[i]] && (int32_t)e < ids[i]);
            assert_int_equal(larger, i); /* rank i of all */
            worst = fmax(worst, ulps(w[i], exp((double)x[ids[i]]) / (normalise ? selected : all)));
        }
        free(x);
    }
    printf("route: weights within %.2f ulp of softmax\n", worst);
    assert_true(worst < 12.0);
}

static float combine(const int32_t *ids, const float *terms, size_t k) { return iv_ref_combine(ids, terms, k); }

/* Sigmoid routers against the definition in double; ties by id; groups; the gradient by differences. */
static double weight_of(const iv_router *r, const double *logits, const int32_t *ids, const float *dw) {
    double sum = 0, out = 0, scale = r->scale;
    for (size_t j = 0; j < r->k; j++) sum += 1 / (1 + exp(-logits[ids[j]]));
    for (size_t j = 0; j < r->k; j++)
        out += (double)dw[j] * scale / (1 + exp(-logits[ids[j]])) / (r->normalise ? sum : 1);
    return out;
}

static void sigmoid_routers(void **state) {
    (void)state;
    rng r = rng_start("sigmoid routers");
    size_t outside = 0;
    for (size_t t = 0; t < trials(200, 5000); t++) {
        enum { N = 24, K = 4 };
        iv_router route = {.experts = N, .k = K, .score = IV_SCORE_SIGMOID, .normalise = rng_below(&r, 2), .scale = 1};
        if (rng_below(&r, 2)) route.scale = 2.5f;
        if (rng_below(&r, 2)) route.groups = 6, route.chosen_groups = 2;
        float *x = random_values(&r, NORMAL, IV_F32, N), *bias = random_values(&r, NORMAL, IV_F32, N), w[K], dw[K],
              d[N];
        int32_t ids[K];
        double score[N], group[6];
        bool open[6] = {false};
        if (rng_below(&r, 4) == 0) x[5] = x[6] = x[9] = 3, bias[5] = bias[6] = bias[9] = 0; /* ties */
        iv_ref_route_by(&route, x, bias, ids, w);
        for (size_t e = 0; e < N; e++) score[e] = (double)(iv_ref_sigmoid(x[e]) + bias[e]);
        for (size_t g = 0; g < 6; g++) {
            double first = -1e9, second = -1e9;
            for (size_t e = 4 * g; e < 4 * g + 4; e++)
                if (score[e] > first)
                    second = first, first = score[e];
                else if (score[e] > second)
                    second = score[e];
            group[g] = (double)((float)first + (float)second);
        }
        for (int i = 0; i < 2; i++) {
            int best = -1;
            for (int g = 0; g < 6; g++)
                if (!open[g] && (best < 0 || group[g] > group[best])) best = g;
            open[best] = true;
        }
        bool taken[N] = {false};
        double sum = 0;
        for (size_t j = 0; j < K; j++) {
            int best = -1;
            for (int e = 0; e < N; e++)
                if (!taken[e] && (!route.groups || open[e / 4]) && (best < 0 || score[e] > score[best])) best = e;
            assert_int_equal(ids[j], best);
            taken[best] = true, sum += 1 / (1 + exp(-(double)x[best]));
        }
        for (int e = 0; e < N; e++)
            outside += route.groups && !open[e / 4] && !taken[e] && score[e] > score[ids[K - 1]];
        for (size_t j = 0; j < K; j++) {
            double want = 1 / (1 + exp(-(double)x[ids[j]])) * (double)route.scale / (route.normalise ? sum : 1);
            assert_true(fabs(w[j] - want) < 1e-6 * fabs(want));
            dw[j] = (float)rng_below(&r, 9) - 4;
        }
        iv_ref_route_by_backward(&route, x, ids, w, dw, d);
        for (size_t e = 0; e < N; e++) {
            double at[N], h = 1e-5, ends[2];
            for (int side = 0; side < 2; side++) {
                for (size_t i = 0; i < N; i++) at[i] = (double)x[i] + (i == e ? (side ? h : -h) : 0);
                ends[side] = weight_of(&route, at, ids, dw);
            }
            assert_true(fabs(d[e] - (ends[1] - ends[0]) / (2 * h)) < 1e-5);
        }
        free(x), free(bias);
    }
    assert_true(outside > 0); /* groups excluded better experts */
}

static void experts_combine_by_the_tree_of_ids(void **state) {
    (void)state;
    const float big_first[] = {0x1p24f, 1.0f, 1.0f}, big_last[] = {1.0f, 1.0f, 0x1p24f};
    assert_true(combine((const int32_t[]){0, 1, 2}, big_first, 3) == 0x1p24f);        /* (0 1) 2 */
    assert_true(combine((const int32_t[]){1, 2, 3}, big_first, 3) == 0x1p24f + 2.0f); /* 1 (2 3) */
    assert_true(combine((const int32_t[]){0, 4, 6}, big_first, 3) == 0x1p24f + 2.0f); /* 0 (4 6) */
    assert_true(combine((const int32_t[]){0, 2, 4}, big_first, 3) == 0x1p24f);        /* (0 2) 4 */
    assert_true(combine((const int32_t[]){3, 4, 5}, big_last, 3) == 0x1p24f);        /* 3 (4 5): each 1 is lost alone */
    assert_true(combine((const int32_t[]){2, 3, 4}, big_last, 3) == 0x1p24f + 2.0f); /* (2 3) 4 */
    assert_true(combine((const int32_t[]){127, 128, 255}, big_first, 3) == 0x1p24f + 2.0f);
    /* An absent side is passed through, not added as +0: a lone -0 stays. */
    assert_int_equal(iv_bits(combine((const int32_t[]){77}, (const float[]){-0.0f}, 1)), 0x80000000u);
    assert_int_equal(iv_bits(combine((const int32_t[]){1, 6}, (const float[]){-0.0f, -0.0f}, 2)), 0x80000000u);
}

/* Experts owned by ranks in aligned blocks, each adding its own subtree, then the ranks in theirs: the same
 * bits. */
static void ranks_combine_the_same(void **state) {
    (void)state;
    rng r = rng_start("combine");
    size_t line_differs = 0, n = trials(2000, 100000);
    for (size_t t = 0; t < n; t++) {
        enum { EXPERTS = 64, K = 8 };
        int32_t ids[K];
        float terms[K], line = 0.0f;
        size_t k = 0;
        for (int32_t e = 0; e < EXPERTS && k < K; e++)
            if (rng_below(&r, (size_t)(EXPERTS - e)) < K - k) terms[k] = random_float(&r, NORMAL), ids[k++] = e;
        assert_int_equal(k, K);
        float whole = iv_ref_combine(ids, terms, K);
        for (size_t i = 0; i < K; i++) line += terms[i];
        line_differs += line != whole;
        for (int32_t ranks = 2; ranks <= 8; ranks *= 2) {
            int32_t owner[8];
            float part[8];
            size_t parts = 0;
            for (size_t i = 0, j; i < K; i = j) {
                int32_t rank = ids[i] / (EXPERTS / ranks);
                for (j = i; j < K && ids[j] / (EXPERTS / ranks) == rank;) j++;
                owner[parts] = rank, part[parts++] = iv_ref_combine(ids + i, terms + i, j - i);
            }
            assert_int_equal(iv_bits(iv_ref_combine(owner, part, parts)), iv_bits(whole));
        }
    }
    printf("combine: %zu sums have the same bits on 1, 2, 4 and 8 ranks; in a line %zu would differ\n", n,
           line_differs);
    assert_true(line_differs > n / 10); /* negative control */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lanes_fold_by_halves),     cmocka_unit_test(norm_sums_squares_in_lanes),
        cmocka_unit_test(heads_share_a_factor),     cmocka_unit_test(log_sum_exp_sums_in_lanes),
        cmocka_unit_test(norm_is_accurate),         cmocka_unit_test(log_softmax_is_accurate),
        cmocka_unit_test(activations_are_accurate), cmocka_unit_test(activations_at_the_ends),
        cmocka_unit_test(xielu_keeps_small_values), cmocka_unit_test(swiglu_and_rope_are_accurate),
        cmocka_unit_test(equal_logits_go_by_id),    cmocka_unit_test(route_weighs_as_softmax),
        cmocka_unit_test(sigmoid_routers),          cmocka_unit_test(experts_combine_by_the_tree_of_ids),
        cmocka_unit_test(ranks_combine_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
