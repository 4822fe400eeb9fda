/* The references of the backward ops against finite differences of their forward in float64. */
#include "random.h"
#include "numerics/backward.h"
#include "numerics/rows.h"
#include "numerics/tree.h"

enum { EVERY = 400 }; /* most inputs of which all are tried */

/* A forward pass in float64, reduced to one number by fixed weights of its outputs. */
typedef double forward_of(const void *context, const double *x);

/* Its derivative by one input: central differences of fourth order. */
static double derivative(forward_of *f, const void *context, double *x, size_t i) {
    const double kept = x[i], h = 1e-3;
    double at[4];
    for (int k = 0; k < 4; k++) {
        x[i] = kept + (double)(k < 2 ? k - 2 : k - 1) * h;
        at[k] = f(context, x);
    }
    x[i] = kept;
    return (8 * (at[2] - at[1]) - (at[3] - at[0])) / (12 * h);
}

/* The largest error of got[n], the gradient by inputs [first, first + n) of x, over the largest derivative or, where
 * terms of that size cancel, over `terms`. All inputs are tried, or random ones if there are more than EVERY. */
static double gradient_error(rng *r, forward_of *f, const void *context, double *x, size_t first, size_t n,
                             const float *got, double terms) {
    double worst = 0, largest = terms;
    for (size_t i = 0; i < n && i < EVERY; i++) {
        size_t at = n <= EVERY ? i : rng_below(r, n);
        double want = derivative(f, context, x, first + at), e = fabs((double)got[at] - want);
        worst = e > worst ? e : worst;
        largest = fabs(want) > largest ? fabs(want) : largest;
    }
    assert_true(largest > 0);
    return worst / largest;
}

/* The gradient is right, and a wrong sign of one element in the same place would be noticed. */
static double check_gradient(rng *r, const char *what, forward_of *f, const void *context, double *x, size_t first,
                             size_t n, float *got, double terms, double most) {
    double e = gradient_error(r, f, context, x, first, n, got, terms);
    if (!(e <= most)) fail_msg("%s: error %.3g of the largest derivative, wanted at most %.3g", what, e, most);
    size_t largest = 0;
    for (size_t i = 1; i < n; i++) largest = fabsf(got[i]) > fabsf(got[largest]) ? i : largest;
    if (n > EVERY || fabs((double)got[largest]) < terms / 10) return e;
    got[largest] = -got[largest];
    assert_true(gradient_error(r, f, context, x, first, n, got, terms) > 0.1);
    got[largest] = -got[largest];
    return e;
}

static float uniform(rng *r) { return (float)((double)(rng_next(r) >> 40) * 0x1p-23 - 1.0); }

static void fill(rng *r, float *x, size_t n, float scale) {
    for (size_t i = 0; i < n; i++) x[i] = scale * uniform(r);
}

static void widen(const float *x, size_t n, double *out) {
    for (size_t i = 0; i < n; i++) out[i] = (double)x[i];
}

static void keep_worst(double *worst, double e) { *worst = e > *worst ? e : *worst; }

/* ---- rows ------------------------------------------------------------------------------------------------ */

typedef struct norm_case {
    size_t n;
    double eps;
    const float *dy, *add;
} norm_case;

/* x, then w; `add` is the gradient by another use of x. */
static double norm_forward(const void *context, const double *x) {
    const norm_case *c = context;
    double squares = 0, out = 0;
    for (size_t i = 0; i < c->n; i++) squares += x[i] * x[i];
    double r = 1 / sqrt(squares / (double)c->n + c->eps);
    for (size_t i = 0; i < c->n; i++)
        out += (double)c->dy[i] * (x[i] * r * x[c->n + i]) + (c->add ? (double)c->add[i] * x[i] : 0);
    return out;
}

static void rmsnorm(void **state) {
    (void)state;
    rng r = rng_start("backward rmsnorm");
    double worst = 0;
    for (size_t trial = 0; trial < trials(60, 1000); trial++) {
        float x[1200], dy[600], add[600], out[600], dw[600] = {0}, before[600]; /* x, w */
        double inputs[1200];
        size_t n = 1 + rng_below(&r, trial % 4 ? 80 : 600);
        norm_case c = {n, (double)1e-3f, dy, trial % 2 ? add : NULL};
        double terms = 0;
        fill(&r, x, 2 * n, 2.0f), fill(&r, dy, n, 1.0f), fill(&r, add, n, 1.0f), widen(x, 2 * n, inputs);
        float factor = iv_ref_rmsnorm_backward(x, x + n, 1e-3f, n, dy, c.add, out);
        assert_true(factor == iv_ref_rms_factor(x, 1e-3f, n));
        for (size_t i = 0; i < n; i++) keep_worst(&terms, fabs((double)(dy[i] * x[n + i] * factor)));
        keep_worst(&worst, check_gradient(&r, "rmsnorm, x", norm_forward, &c, inputs, 0, n, out, terms, 1e-6));
        fill(&r, before, n, 1.0f), memcpy(dw, before, n * sizeof *dw);
        iv_ref_norm_weight_backward(dy, x, factor, n, dw);
        for (size_t i = 0; i < n; i++) dw[i] -= before[i];
        keep_worst(&worst, check_gradient(&r, "rmsnorm, w", norm_forward, &c, inputs, n, n, dw, 1, 1e-6));
    }
    printf("rmsnorm: largest error %.3g\n", worst);
}

typedef struct swiglu_case {
    size_t n;
    const float *da;
} swiglu_case;

static double swiglu_forward(const void *context, const double *x) {
    const swiglu_case *c = context;
    double out = 0;
    for (size_t i = 0; i < c->n; i++) out += (double)c->da[i] * (x[i] / (1 + exp(-x[i])) * x[c->n + i]);
    return out;
}

static void swiglu(void **state) {
    (void)state;
    rng r = rng_start("backward swiglu");
    double worst = 0;
    for (size_t trial = 0; trial < trials(60, 1000); trial++) {
        float x[400], da[200], d[400];
        uint16_t typed[400];
        double inputs[400];
        size_t n = 1 + rng_below(&r, 200);
        swiglu_case c = {n, da};
        double terms = 0;
        fill(&r, x, 2 * n, trial % 2 ? 4.0f : 30.0f), fill(&r, da, n, 1.0f), widen(x, 2 * n, inputs);
        iv_ref_activate_backward(&iv_silu, IV_F32, x, x + n, da, n, IV_F32, d, d + n);
        for (size_t i = 0; i < n; i++) keep_worst(&terms, fabs((double)(da[i] * x[n + i])));
        keep_worst(&worst, check_gradient(&r, "swiglu, gate", swiglu_forward, &c, inputs, 0, n, d, terms, 2e-6));
        keep_worst(&worst, check_gradient(&r, "swiglu, up", swiglu_forward, &c, inputs, n, n, d + n, 0, 2e-6));
        iv_ref_activate_backward(&iv_silu, IV_F32, x, x + n, da, n, IV_BF16, typed, typed + n);
        for (size_t i = 0; i < 2 * n; i++) assert_int_equal(typed[i], iv_bf16_from_f32(d[i]));
    }
    printf("swiglu: largest error %.3g\n", worst);
}

typedef struct activation_case {
    size_t n;
    const float *da;
    iv_activation a;
} activation_case;

static double activation_forward(const void *context, const double *x) {
    const activation_case *c = context;
    double out = 0, limit = c->a.limit;
    for (size_t i = 0; i < c->n; i++) {
        double g = x[i], u = x[c->n + i], y = 0;
        if (c->a.kind == IV_ACTIVATION_GELU_TANH)
            y = 0.5 * g * (1 + tanh(sqrt(2 / M_PI) * (g + 0.044715 * g * g * g))) * u;
        if (c->a.kind == IV_ACTIVATION_SILU_CLAMPED)
            g = fmin(g, limit), y = (fmax(fmin(u, limit), -limit) + 1) * g / (1 + exp(-1.702 * g));
        if (c->a.kind == IV_ACTIVATION_RELU2) y = u > 0 ? u * u : 0;
        if (c->a.kind == IV_ACTIVATION_XIELU)
            y = u > 0 ? c->a.positive * u * u + c->a.beta * u : (expm1(u) - u) * c->a.negative + c->a.beta * u;
        out += (double)c->da[i] * y;
    }
    return out;
}

static void activations(void **state) {
    (void)state;
    rng r = rng_start("backward activations");
    for (int kind = IV_ACTIVATION_GELU_TANH; kind < IV_ACTIVATION_KINDS; kind++) {
        double worst = 0;
        for (size_t trial = 0; trial < trials(60, 1000); trial++) {
            float x[400], da[200], d[400] = {0};
            double inputs[400], terms = 0;
            activation_case c = {
                1 + rng_below(&r, 200), da, {(iv_activation_kind)kind, 7, 1.702, 0.75, 0.625, 0.5, -0x1p-20}};
            bool gated = iv_activation_is_gated(&c.a);
            size_t n = c.n;
            fill(&r, x, 2 * n, trial % 2 ? 2.0f : 6.0f), fill(&r, da, n, 1.0f), widen(x, 2 * n, inputs);
            for (size_t i = 0; i < 2 * n; i++) /* not near a kink, where two gradients meet */
                if (fabs(fabs(inputs[i]) - c.a.limit) < 0.01 || fabs(inputs[i]) < 0.01) inputs[i] = x[i] = 1;
            iv_ref_activate_backward(&c.a, IV_F32, gated ? x : NULL, x + n, da, n, IV_F32, gated ? d : NULL, d + n);
            for (size_t i = 0; i < n; i++) keep_worst(&terms, fabs((double)da[i] * (fabs(inputs[n + i]) + 1)));
            if (gated)
                keep_worst(&worst, check_gradient(&r, "gate", activation_forward, &c, inputs, 0, n, d, terms, 2e-6));
            keep_worst(&worst, check_gradient(&r, "up", activation_forward, &c, inputs, n, n, d + n, terms, 2e-6));
        }
        printf("activation %d: largest error %.3g\n", kind, worst);
    }
}

/* The gradients of xIELU's numbers, against sums in double. */
static void numbers_of_xielu(void **state) {
    (void)state;
    rng r = rng_start("backward numbers of xielu");
    for (size_t trial = 0; trial < trials(60, 1000); trial++) {
        float x[300], da[300], sums[2];
        double want[2] = {0}, size[2] = {0};
        size_t n = 1 + rng_below(&r, 300);
        const iv_activation a = {.kind = IV_ACTIVATION_XIELU, .positive = 0.75, .negative = 0.5, .eps = -0x1p-20};
        fill(&r, x, n, 4.0f), fill(&r, da, n, 1.0f);
        iv_ref_xielu_sums(&a, IV_F32, x, da, n, sums);
        for (size_t i = 0; i < n; i++) {
            double v = (double)x[i], part = v > 0 ? v * v : expm1(fmin(v, a.eps)) - v;
            want[v <= 0] += (double)da[i] * part, size[v <= 0] += fabs((double)da[i] * part);
        }
        for (size_t k = 0; k < 2; k++) assert_true(fabs((double)sums[k] - want[k]) <= 1e-6 * size[k]);
    }
}

typedef struct logits_case {
    size_t n, target;
    double c;
} logits_case;

/* -c times the log-probability of the target. */
static double logits_forward(const void *context, const double *x) {
    const logits_case *l = context;
    double sum = 0;
    for (size_t i = 0; i < l->n; i++) sum += exp(x[i] - x[l->target]);
    return l->c * log(sum);
}

static void logits(void **state) {
    (void)state;
    rng r = rng_start("backward logits");
    double worst = 0;
    for (size_t trial = 0; trial < trials(60, 1000); trial++) {
        float x[350], d[350], max, sum, c = uniform(&r);
        double inputs[350];
        size_t n = 2 + rng_below(&r, 349), cut = rng_below(&r, n);
        if (fabsf(c) < 0.01f) c = 0.5f;
        logits_case l = {n, rng_below(&r, n), (double)c};
        fill(&r, x, n, 5.0f), widen(x, n, inputs);
        iv_ref_sum_exp(x, n, &max, &sum);
        iv_ref_logits_backward(x, 0, cut, max, sum, c, l.target, IV_F32, d);
        iv_ref_logits_backward(x + cut, cut, n - cut, max, sum, c, l.target, IV_F32, d + cut);
        keep_worst(&worst, check_gradient(&r, "logits", logits_forward, &l, inputs, 0, n, d, fabs((double)c), 1e-6));
    }
    printf("logits: largest error %.3g\n", worst);
}

typedef struct rope_case {
    size_t pairs;
    const float *cosine, *sine, *dy;
} rope_case;

static double rope_forward(const void *context, const double *x) {
    const rope_case *c = context;
    double out = 0;
    for (size_t i = 0; i < c->pairs; i++) {
        double a = x[i], b = x[i + c->pairs], cosine = (double)c->cosine[i], sine = (double)c->sine[i];
        out += (double)c->dy[i] * (a * cosine - b * sine) + (double)c->dy[i + c->pairs] * (b * cosine + a * sine);
    }
    return out;
}

/* The backward of a rotation is the rotation by the negative angle. */
static void rope(void **state) {
    (void)state;
    rng r = rng_start("backward rope");
    double worst = 0;
    for (size_t trial = 0; trial < trials(60, 1000); trial++) {
        float cosine[64], sine[64], negative[64], dy[128], d[128];
        double inputs[128];
        size_t pairs = 1 + rng_below(&r, 64);
        rope_case c = {pairs, cosine, sine, dy};
        for (size_t i = 0; i < pairs; i++) {
            double angle = 10 * (double)uniform(&r);
            cosine[i] = (float)cos(angle), sine[i] = (float)sin(angle), negative[i] = -sine[i];
        }
        fill(&r, dy, 2 * pairs, 1.0f);
        for (size_t i = 0; i < 2 * pairs; i++) inputs[i] = (double)uniform(&r);
        memcpy(d, dy, sizeof d);
        iv_ref_rope(d, cosine, negative, pairs);
        keep_worst(&worst, check_gradient(&r, "rope", rope_forward, &c, inputs, 0, 2 * pairs, d, 0, 3e-7));
    }
    printf("rope: largest error %.3g\n", worst);
}

/* ---- attention ------------------------------------------------------------------------------------------- */

typedef struct attention_case {
    size_t n, dim, group;
    int64_t window;
    const float *dout;
    double *out, *lse2; /* NULL, or where the results go */
} attention_case;

static double dot(const double *a, const double *b, size_t n) {
    double s = 0;
    for (size_t i = 0; i < n; i++) s += a[i] * b[i];
    return s;
}

/* One query of one head. */
static double attend(const attention_case *c, const double *q, const double *k, const double *v, size_t t, size_t row) {
    double w[256], o[32] = {0}, max = -INFINITY, sum = 0, loss = 0;
    size_t first = (size_t)iv_first_visible((int64_t)t, c->window);
    for (size_t j = first; j <= t; j++) {
        w[j] = dot(q, k + j * c->dim, c->dim) / sqrt((double)c->dim);
        max = w[j] > max ? w[j] : max;
    }
    for (size_t j = first; j <= t; j++) sum += w[j] = exp(w[j] - max);
    for (size_t j = first; j <= t; j++)
        for (size_t d = 0; d < c->dim; d++) o[d] += w[j] / sum * v[j * c->dim + d];
    for (size_t d = 0; d < c->dim; d++) loss += (double)c->dout[row * c->dim + d] * o[d];
    if (c->out) memcpy(c->out + row * c->dim, o, c->dim * sizeof *o);
    if (c->lse2) c->lse2[row] = (max + log(sum)) / log(2.0);
    return loss;
}

/* q of all heads, then k, then v. */
static double attention_forward(const void *context, const double *x) {
    const attention_case *c = context;
    const double *k = x + c->group * c->n * c->dim, *v = k + c->n * c->dim;
    double loss = 0;
    for (size_t h = 0; h < c->group; h++)
        for (size_t t = 0; t < c->n; t++) loss += attend(c, x + (h * c->n + t) * c->dim, k, v, t, h * c->n + t);
    return loss;
}

/* The gradient along a random direction: all elements at once. */
static double direction_error(rng *r, const attention_case *c, double *x, size_t n, const float *gradient) {
    const double h = 1e-3;
    double *direction = malloc(n * sizeof *direction), at[4], got = 0, size = 0;
    assert_non_null(direction);
    for (size_t i = 0; i < n; i++) {
        direction[i] = (double)uniform(r);
        got += direction[i] * (double)gradient[i], size += fabs(direction[i] * (double)gradient[i]);
    }
    for (int k = 0; k < 4; k++) {
        double by = (double)(k < 2 ? k - 2 : k - 1) * h;
        for (size_t i = 0; i < n; i++) x[i] += by * direction[i];
        at[k] = attention_forward(c, x);
        for (size_t i = 0; i < n; i++) x[i] -= by * direction[i];
    }
    free(direction);
    return fabs(got - (8 * (at[2] - at[1]) - (at[3] - at[0])) / (12 * h)) / size;
}

/* A case in `type`, whose inputs are exact in it; returns the error over the sum of all terms of the direction.
 * `wrong`, the control: dk has the wrong sign. There every query sees every key before it, so dk is not zero. */
static double attention_error(rng *r, iv_arithmetic arithmetic, iv_dtype type, size_t n, bool wrong, double *single) {
    size_t dim = 1 + rng_below(r, 20), group = 1 + rng_below(r, 3), rows = group * n, q = rows * dim, k = n * dim,
           all = q + 2 * k, width = iv_dtype_bytes(type);
    char *typed = malloc(all * width), *dout = malloc(q * width), *out = malloc(q * width);
    float *d = malloc(q * sizeof *d), *lse2 = malloc(rows * sizeof *lse2), *gradient = malloc(all * sizeof *gradient);
    double *x = malloc(all * sizeof *x), *exact = malloc(q * sizeof *exact), *exact2 = malloc(rows * sizeof *exact2);
    assert_true(typed && dout && out && d && lse2 && gradient && x && exact && exact2);
    for (size_t i = 0; i < all; i++)
        put_type(type, typed, i, 2 * uniform(r)), x[i] = (double)iv_element(type, typed, i);
    for (size_t i = 0; i < q; i++) put_type(type, dout, i, uniform(r)), d[i] = iv_element(type, dout, i);
    attention_case c = {n, dim,   group, !wrong && rng_below(r, 2) ? (int64_t)(1 + rng_below(r, n)) : 0,
                        d, exact, exact2};
    attention_forward(&c, x);
    for (size_t i = 0; i < q; i++) put_type(type, out, i, (float)exact[i]);
    for (size_t i = 0; i < rows; i++) lse2[i] = (float)exact2[i];
    c.out = c.lse2 = NULL;
    double scale = 1 / sqrt((double)dim);
    iv_ref_attention_backward_args a = {.arithmetic = arithmetic,
                                        .type = type,
                                        .n = n,
                                        .head_dim = dim,
                                        .group = group,
                                        .window = c.window,
                                        .scale_log2e = (float)(scale / log(2.0)),
                                        .scale = (float)scale,
                                        .q = typed,
                                        .k = typed + q * width,
                                        .v = typed + (q + k) * width,
                                        .out = out,
                                        .dout = dout,
                                        .lse2 = lse2};
    assert_true(iv_ref_attention_backward(&a, gradient, gradient + q, gradient + q + k));
    for (size_t i = q; wrong && i < q + k; i++) gradient[i] = -gradient[i];
    if (single) *single = gradient_error(r, attention_forward, &c, x, 0, all, gradient, 0.1);
    double e = direction_error(r, &c, x, all, gradient);
    free(typed), free(dout), free(out), free(d), free(lse2), free(gradient), free(x), free(exact), free(exact2);
    return e;
}

static void attention(void **state) {
    (void)state;
    rng r = rng_start("backward attention");
    double worst = 0, single, worst_single = 0, rounded = 0;
    for (size_t trial = 0; trial < trials(30, 300); trial++) {
        bool small = trial % 3 > 0;
        keep_worst(&worst,
                   attention_error(&r, IV_FMA32, IV_F32, small ? 2 + rng_below(&r, 12) : 60 + rng_below(&r, 140), false,
                                   small ? &single : NULL));
        if (small) keep_worst(&worst_single, single);
        keep_worst(&rounded, attention_error(&r, IV_TC16, IV_BF16, 2 + rng_below(&r, 140), false, NULL));
        keep_worst(&rounded, attention_error(&r, IV_TC16, IV_F16, 2 + rng_below(&r, 140), false, NULL));
    }
    printf("attention: error along a direction %.3g, of one element %.3g; 16-bit types %.3g\n", worst, worst_single,
           rounded);
    assert_true(worst < 1e-6);
    assert_true(worst_single < 2e-6);
    assert_true(rounded < 1e-2);
    attention_error(&r, IV_FMA32, IV_F32, 10, true, &single); /* control */
    assert_true(single > 0.1);
}

static void statistics(void **state) {
    (void)state;
    rng r = rng_start("backward statistics");
    for (size_t trial = 0; trial < trials(200, 5000); trial++) {
        float a[300], b[300], max = 20 * uniform(&r), sum = 1 + 200 * fabsf(uniform(&r));
        size_t n = 1 + rng_below(&r, 300);
        double want = 0, size = 0;
        fill(&r, a, n, 1.0f), fill(&r, b, n, 1.0f);
        for (size_t i = 0; i < n; i++) want += (double)a[i] * (double)b[i], size += fabs((double)a[i] * (double)b[i]);
        assert_true(fabs((double)iv_ref_row_dot(IV_F32, a, b, n) - want) <= 1e-6 * size);
        double lse2 = (double)max + log((double)sum) / log(2.0);
        assert_true(fabs((double)iv_ref_attention_lse2(max, sum) - lse2) <=
                    0x1p-22 * (1 + fabs((double)max) + fabs(lse2)));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rmsnorm),     cmocka_unit_test(swiglu),
                                       cmocka_unit_test(activations), cmocka_unit_test(numbers_of_xielu),
                                       cmocka_unit_test(logits),      cmocka_unit_test(rope),
                                       cmocka_unit_test(attention),   cmocka_unit_test(statistics)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
