/* linear_cases.h: random linear layers, their reference and the comparison, shared by test_linear.c and
 * test_emulated_linear.c. */
#ifndef IV_TESTS_CUDA_LINEAR_CASES_H
#define IV_TESTS_CUDA_LINEAR_CASES_H

#include "cuda/linear_problem.h"
#include "numerics/fma32.h"
#include "numerics/tc16.h"

static bool is_hopper;

/* Rows of k elements, zero from k to k_padded, random beyond. */
static void *padded_values(rng *r, family f, iv_dtype type, size_t rows, size_t k, size_t k_padded, size_t stride) {
    unsigned char *p = random_values(r, f, type, rows * stride);
    size_t e = iv_dtype_bytes(type);
    for (size_t i = 0; i < rows; i++) memset(p + (i * stride + k) * e, 0, (k_padded - k) * e);
    return p;
}

static float widened(iv_dtype type, const void *p, size_t i) {
    if (type == IV_F32) return ((const float *)p)[i];
    uint16_t h = ((const uint16_t *)p)[i];
    return type == IV_BF16 ? iv_bf16_to_f32(h) : iv_f16_to_f32(h);
}

static float tree(iv_arithmetic arithmetic, const float *leaf, int leaves) {
    if (leaves == 1) return leaf[0];
    float a = tree(arithmetic, leaf, leaves / 2), b = tree(arithmetic, leaf + leaves / 2, leaves / 2);
    return arithmetic == IV_FMA32 ? iv_add_ftz(a, b) : a + b;
}

/* One output by the law, bias included. */
static float reference(const problem *p, size_t expert, size_t x_row, size_t n) {
    const iv_gpu_linear_args *a = &p->a;
    size_t kp = a->w.k_padded, leaf_k = kp / (size_t)a->w.leaves;
    const char *w = (const char *)p->w + expert * a->w.expert_bytes + n * kp * iv_dtype_bytes(a->w.type);
    const char *x = (const char *)p->x + x_row * a->x_stride * iv_dtype_bytes(a->type);
    float leaf[IV_LEAVES_MAX];
    for (int l = 0; l < a->w.leaves; l++) {
        size_t k = (size_t)l * leaf_k;
        if (a->arithmetic == IV_TC16) {
            leaf[l] = iv_tc16_chain(a->type, 0.0f, (const uint16_t *)w + k, (const uint16_t *)x + k, leaf_k);
            continue;
        }
        float acc = 0.0f, wf[16], xf[16];
        for (size_t i = 0; i < leaf_k; i += 16) {
            for (size_t j = 0; j < 16; j++)
                wf[j] = widened(a->w.type, w, k + i + j), xf[j] = widened(a->type, x, k + i + j);
            acc = iv_fma32_chain(acc, wf, xf, 16);
        }
        leaf[l] = acc;
    }
    float y = iv_canonical(tree(a->arithmetic, leaf, a->w.leaves));
    return p->bias ? iv_canonical(y + p->bias[n]) : y;
}

/* Output `column` of output row `out_row`, which reads x_row by an expert. */
static void refer(const problem *p, size_t expert, size_t x_row, size_t out_row, size_t column, float weight) {
    size_t at = GUARD + out_row * p->a.out_stride + column;
    if (p->a.epilogue == IV_GPU_SWIGLU) {
        size_t gate = column / 8 * 16 + column % 8;
        float g = reference(p, expert, x_row, gate), u = reference(p, expert, x_row, gate + 8), y;
        iv_ref_activate(&iv_silu, &g, &u, 1, &y);
        put_type(p->a.type, p->want, at, iv_canonical(y));
        return;
    }
    float *out = (float *)p->want + at, y = reference(p, expert, x_row, column);
    if (p->a.weighted) y = iv_canonical(weight * y);
    *out = p->a.epilogue == IV_GPU_RESIDUAL ? iv_canonical(*out + y) : y;
}

static void reference_sample(void *context, size_t index, size_t worker) {
    (void)worker;
    const problem *p = context;
    size_t column = p->sample[index];
    if (!p->a.groups) {
        for (size_t row = 0; row < p->a.rows; row++) refer(p, 0, row, row, column, 1.0f);
        return;
    }
    for (size_t e = 0; e < p->g.count; e++)
        for (int32_t i = p->offsets[p->g.first + e]; i < p->offsets[p->g.first + e + 1]; i++) {
            size_t slot = (size_t)p->slots[i];
            if (p->a.weighted)
                refer(p, e, (size_t)i, slot, column, p->weights[slot]);
            else
                refer(p, e, p->g.packed ? (size_t)i : slot / p->g.experts_per_token, (size_t)i, column, 1.0f);
        }
}

/* `behind` rows of random bits after those of x. */
static void spoil_rows(rng *r, const problem *p, size_t behind) {
    size_t row = p->a.x_stride * iv_dtype_bytes(p->a.type);
    unsigned char *at = (unsigned char *)p->x + p->x_rows * row;
    for (size_t i = 0; i < behind * row; i++) at[i] = rng_below(r, 4) ? (unsigned char)rng_next(r) : 0xff;
}

static void make_problem(rng *r, const shape *s, problem *p) {
    *p = (problem){.k = s->k};
    iv_gpu_linear_args *a = &p->a;
    a->arithmetic = s->arithmetic, a->type = s->type, a->rows = s->rows, a->epilogue = s->epilogue;
    a->w = (iv_gpu_matrix){
        .format = iv_weight_plain(s->weight), .type = s->weight, .n = s->n, .k_padded = iv_padded_k(s->k)};
    a->w.leaves = s->leaves ? s->leaves : iv_leaf_count(a->w.k_padded, IV_SUM_OF_RANKS);
    size_t matrices = s->experts ? s->count : 1, kp = a->w.k_padded, matrix = s->n * kp * iv_dtype_bytes(s->weight);
    a->w.expert_bytes = s->experts ? matrix + 16 * rng_below(r, 3) : 0;
    unsigned char *w = malloc(matrices * (matrix + 64));
    for (size_t e = 0; e < matrices; e++) {
        void *one = padded_values(r, s->fw, s->weight, s->n, s->k, kp, kp);
        memcpy(w + e * a->w.expert_bytes, one, matrix);
        free(one);
    }
    p->w = w, a->w.data = device(w, matrices * (matrix + 64) - 64);
    p->x_rows = s->weighted || s->packed ? s->rows * s->experts_per_token : s->rows;
    a->x_stride = kp + 8 * rng_below(r, 3);
    size_t behind = s->experts ? 0 : rng_below(r, 2) * rng_below(r, 140); /* rows that are read without effect */
    p->x = padded_values(r, s->fx, s->type, p->x_rows + behind, s->k, kp, a->x_stride);
    spoil_rows(r, p, behind);
    a->x = device(p->x, (p->x_rows + behind) * a->x_stride * iv_dtype_bytes(s->type));
    a->x_rows = behind ? s->rows + behind : 0;
    if (s->bias) p->bias = random_values(r, s->fx, IV_F32, s->n), a->bias = device(p->bias, s->n * sizeof(float));
    p->out_rows = s->experts ? s->rows * s->experts_per_token : s->rows;
    p->out_columns = s->epilogue == IV_GPU_SWIGLU ? s->n / 2 : s->n;
    if (s->experts) {
        p->g = (iv_gpu_groups){.experts = s->experts,
                               .first = s->first,
                               .count = s->count,
                               .experts_per_token = s->experts_per_token,
                               .packed = s->packed};
        route(r, p, s->rows, s->rows - rng_below(r, 2));
        a->groups = &p->g, a->weighted = s->weighted;
    }
    a->spare = (int)rng_below(r, 3) * 50;
    make_output(r, s, p);
    p->samples = s->samples && s->samples < p->out_columns ? s->samples : p->out_columns;
    p->sample = malloc(p->samples * sizeof *p->sample);
    for (size_t i = 0; i < p->samples; i++) /* each once */
        p->sample[i] = i * p->out_columns / p->samples + rng_below(r, p->out_columns / p->samples);
    iv_pool_run(pool, p->samples, reference_sample, p);
}

/* ---- comparing ------------------------------------------------------------------------------------------------- */

static void describe(const problem *p, const iv_gpu_linear_config *c, char *text, size_t bytes) {
    char config[160];
    iv_gpu_linear_describe(c, config, sizeof config);
    const iv_gpu_linear_args *a = &p->a;
    snprintf(
        text, bytes,
        "%s: %s rows %zu n %zu k %zu leaves %d %s x %s epilogue %d bias %d experts %zu of %zu weighted %d packed %d",
        config, a->arithmetic == IV_TC16 ? "tc16" : "fma32", a->rows, a->w.n, p->k, a->w.leaves,
        iv_dtype_name(a->w.type), iv_dtype_name(a->type), (int)a->epilogue, p->bias != NULL, p->g.count, p->g.experts,
        (int)a->weighted, (int)p->g.packed);
}

/* ---- tests ------------------------------------------------------------------------------------------------------ */

static shape random_shape(rng *r, bool tc16) {
    static const iv_dtype pairs[][2] = {
        {IV_BF16, IV_BF16}, {IV_F16, IV_F16}, {IV_F32, IV_F32}, {IV_BF16, IV_F32}, {IV_F16, IV_F32}};
    const iv_dtype *pair = pairs[rng_below(r, tc16 ? 2 : 5)];
    shape s = {.arithmetic = tc16 ? IV_TC16 : IV_FMA32, .weight = pair[0], .type = pair[1]};
    s.rows = rng_below(r, 4) ? 1 + rng_below(r, 20) : 1 + rng_below(r, 150);
    s.epilogue = (iv_gpu_epilogue)rng_below(r, 3);
    s.n = s.epilogue == IV_GPU_SWIGLU ? 16 * (1 + rng_below(r, 12)) : 1 + rng_below(r, 200);
    s.k = rng_below(r, 2) ? 128 * (1 + rng_below(r, 6)) : 1 + rng_below(r, 700);
    if (rng_below(r, 3) == 0) { /* as on a rank: fewer leaves than the law's for its k */
        s.leaves = iv_leaf_count(iv_padded_k(s.k), IV_SUM_OF_RANKS);
        while (s.leaves > 1 && rng_below(r, 2)) s.leaves /= 2;
    }
    s.bias = rng_below(r, 3) == 0;
    s.fw = (family)rng_below(r, FAMILIES), s.fx = rng_below(r, 2) ? s.fw : (family)rng_below(r, FAMILIES);
    return s;
}

#endif
