/* linear_cases.h: random linear layers, their reference and the comparison, shared by test_linear.c and
 * test_emulated_linear.c. */
#ifndef IV_TESTS_CUDA_LINEAR_CASES_H
#define IV_TESTS_CUDA_LINEAR_CASES_H

#include "random.h"
#include "base/threads.h"
#include "kernels/cuda/ops.h"
#include "numerics/fma32.h"
#include "numerics/rows.h"
#include "numerics/tc16.h"

#include <cuda_runtime_api.h>

enum { CONFIGS_MAX = 512, GUARD = 64 /* elements before and after the output */ };

#define CUDA(call)                                                                              \
    do {                                                                                        \
        int cuda_code_ = (int)(call);                                                           \
        if (cuda_code_) fail_msg("%s: %s", #call, cudaGetErrorString((cudaError_t)cuda_code_)); \
    } while (0)

static bool is_hopper;
static iv_pool *pool;

/* ---- a problem, on host and device ------------------------------------------------------------------------------- */

typedef struct problem {
    iv_gpu_linear_args a; /* pointers of the device */
    iv_gpu_groups g;
    size_t k, x_rows, out_rows, out_columns; /* actual sizes */
    const void *w, *x;                       /* host */
    const float *bias, *weights;
    const int32_t *offsets, *slots;
    unsigned char *before, *want, *got; /* the output: GUARD elements, rows, GUARD */
    size_t out_element, out_bytes;
    size_t *sample; /* outputs compared: pairs of columns for SWIGLU */
    size_t samples;
} problem;

static void *device(const void *from, size_t bytes) {
    void *p = NULL;
    CUDA(cudaMalloc(&p, bytes + 16));
    CUDA(cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice));
    return p;
}

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

/* Every row goes to k distinct experts, rows at or beyond true_rows to none. */
static void route(rng *r, problem *p, size_t rows, size_t true_rows) {
    size_t k = p->g.experts_per_token, experts = p->g.experts, entries = 0;
    int32_t *offsets = calloc(experts + 1, sizeof *offsets), *slots = calloc(rows * k + 1, sizeof *slots);
    bool *chosen = calloc(rows * experts, 1);
    size_t popular = 1 + rng_below(r, experts); /* some experts may have many rows, some none */
    for (size_t t = 0; t < true_rows; t++)
        for (size_t i = 0; i < k;) {
            size_t e = rng_below(r, i + 1 < k && popular > k ? popular : experts);
            if (chosen[t * experts + e]) continue;
            chosen[t * experts + e] = true, i++;
        }
    for (size_t e = 0; e < experts; e++) {
        for (size_t t = 0; t < true_rows; t++) {
            if (!chosen[t * experts + e]) continue;
            size_t index = 0;
            for (size_t before = 0; before < e; before++) index += chosen[t * experts + before];
            slots[entries++] = (int32_t)(t * k + index);
        }
        offsets[e + 1] = (int32_t)entries;
    }
    free(chosen);
    p->offsets = offsets, p->slots = slots;
    p->g.offsets = device(offsets, (experts + 1) * sizeof *offsets);
    p->g.slots = device(slots, rows * k * sizeof *slots);
    p->weights = random_values(r, NORMAL, IV_F32, rows * k);
    p->g.weights = device(p->weights, rows * k * sizeof(float));
}

typedef struct shape {
    iv_arithmetic arithmetic;
    iv_dtype type, weight;
    size_t rows, n, k;
    int leaves; /* 0: the law's */
    iv_gpu_epilogue epilogue;
    bool bias;
    size_t experts, first, count, experts_per_token; /* experts 0: no groups */
    bool weighted, packed;
    family fw, fx;
    size_t samples; /* 0: all */
    bool adjacent;  /* no gap between the output rows */
} shape;

static void make_output(rng *r, const shape *s, problem *p) {
    iv_gpu_linear_args *a = &p->a;
    a->out_stride = p->out_columns + (s->adjacent ? 0 : rng_below(r, 3));
    p->out_element = a->epilogue == IV_GPU_SWIGLU ? iv_dtype_bytes(a->type) : 4;
    size_t elements = 2 * GUARD + p->out_rows * a->out_stride;
    p->out_bytes = elements * p->out_element;
    p->before = random_values(r, NORMAL, p->out_element == 4 ? IV_F32 : IV_BF16, elements);
    p->want = malloc(p->out_bytes), p->got = malloc(p->out_bytes);
    memcpy(p->want, p->before, p->out_bytes);
    a->out = (char *)device(p->before, p->out_bytes) + GUARD * p->out_element;
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

static void free_problem(problem *p) {
    void *host[] = {
        (void *)p->w, (void *)p->x, (void *)p->bias, (void *)p->weights, (void *)p->offsets, (void *)p->slots,
        p->before,    p->want,      p->got,          p->sample};
    void *dev[] = {(void *)p->a.w.data,
                   (void *)p->a.x,
                   (void *)p->a.bias,
                   (void *)p->g.offsets,
                   (void *)p->g.slots,
                   (void *)p->g.weights,
                   (char *)p->a.out - GUARD * p->out_element};
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) free(host[i]);
    for (size_t i = 0; i < sizeof dev / sizeof *dev; i++) CUDA(cudaFree(dev[i]));
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

static size_t differences(const problem *p, const char *what) {
    size_t bad = 0;
    for (size_t row = 0; row < p->out_rows; row++)
        for (size_t i = 0; i < p->samples; i++) {
            size_t at = (GUARD + row * p->a.out_stride + p->sample[i]) * p->out_element;
            uint32_t want = 0, got = 0;
            memcpy(&want, p->want + at, p->out_element), memcpy(&got, p->got + at, p->out_element);
            if (want == got) continue;
            if (what && bad == 0)
                print_error("%s: row %zu output %zu: wanted %0*x, got %0*x\n", what, row, p->sample[i],
                            (int)p->out_element * 2, want, (int)p->out_element * 2, got);
            bad++;
        }
    return bad;
}

/* Nothing was written between rows, before the first or after the last. */
static bool guards_stand(const problem *p) {
    size_t e = p->out_element, stride = p->a.out_stride, row = p->out_columns;
    if (memcmp(p->got, p->before, GUARD * e) != 0) return false;
    for (size_t r = 0; r < p->out_rows; r++) {
        size_t at = (GUARD + r * stride + row) * e;
        if (memcmp(p->got + at, p->before + at, (stride - row) * e) != 0) return false;
    }
    size_t end = (GUARD + p->out_rows * stride) * e;
    return memcmp(p->got + end, p->before + end, GUARD * e) == 0;
}

static size_t configurations_run;

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
