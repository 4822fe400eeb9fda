/* Linear layers on a GPU against the scalar law, bit for bit: random shapes, types, epilogues, biases, experts, edge
 * values; every configuration that is legal for a problem on the same inputs. Large problems are compared at sampled
 * outputs. Also: what is beyond the rows and outputs of a problem is left alone, and the check can fail. */
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

/* ---- a problem, on both sides ---------------------------------------------------------------------------------- */

typedef struct problem {
    iv_gpu_linear_args a; /* pointers of the device */
    iv_gpu_groups g;
    size_t k, x_rows, out_rows, out_columns; /* as there are */
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

/* Rows of k elements, zero from k to k_padded, rubbish beyond. */
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
        iv_ref_swiglu(&g, &u, 1, &y);
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

/* Every row goes to k distinct experts, but rows at or beyond true_rows to none. */
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
            size_t place = 0;
            for (size_t before = 0; before < e; before++) place += chosen[t * experts + before];
            slots[entries++] = (int32_t)(t * k + place);
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
    bool adjacent;  /* nothing lies between the outputs' rows */
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

/* `behind` rows of any bits after those of x. */
static void spoil_rows(rng *r, const problem *p, size_t behind) {
    size_t row = p->a.x_stride * iv_dtype_bytes(p->a.type);
    unsigned char *at = (unsigned char *)p->x + p->x_rows * row;
    for (size_t i = 0; i < behind * row; i++) at[i] = rng_below(r, 4) ? (unsigned char)rng_next(r) : 0xff;
}

static void make_problem(rng *r, const shape *s, problem *p) {
    *p = (problem){.k = s->k};
    iv_gpu_linear_args *a = &p->a;
    a->arithmetic = s->arithmetic, a->type = s->type, a->rows = s->rows, a->epilogue = s->epilogue;
    a->w = (iv_gpu_matrix){.type = s->weight, .n = s->n, .k_padded = iv_padded_k(s->k)};
    a->w.leaves = s->leaves ? s->leaves : iv_leaf_count(a->w.k_padded);
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
    size_t behind = s->experts ? 0 : rng_below(r, 2) * rng_below(r, 140); /* rows that are read, and change nothing */
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

/* Between rows, before the first and after the last nothing was written. */
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

static void run(problem *p, const iv_gpu_linear_config *c) {
    char *out = (char *)p->a.out - GUARD * p->out_element;
    CUDA(cudaMemcpy(out, p->before, p->out_bytes, cudaMemcpyHostToDevice));
    if (c)
        CUDA(iv_gpu_linear_with(&p->a, c, NULL));
    else
        CUDA(iv_gpu_linear(&p->a, NULL));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(p->got, out, p->out_bytes, cudaMemcpyDeviceToHost));
}

static size_t configurations_run, family_runs[IV_GPU_FAMILIES];

static void check_all(problem *p) {
    static iv_gpu_linear_config c[CONFIGS_MAX];
    size_t n = iv_gpu_linear_configs(&p->a, c, CONFIGS_MAX);
    assert_in_range(n, 1, CONFIGS_MAX);
    iv_gpu_linear_config chosen = iv_gpu_linear_choose(&p->a);
    for (size_t i = 0; i <= n; i++) { /* the last: whatever is chosen */
        char what[512];
        describe(p, i < n ? &c[i] : &chosen, what, sizeof what);
        run(p, i < n ? &c[i] : NULL);
        size_t bad = differences(p, what);
        if (bad) fail_msg("%s: %zu of %zu differ", what, bad, p->samples * p->out_rows);
        if (!guards_stand(p)) fail_msg("%s: wrote outside", what);
        configurations_run++, family_runs[i < n ? c[i].family : chosen.family]++;
    }
}

static void try_shape(rng *r, const shape *s) {
    problem p;
    make_problem(r, s, &p);
    check_all(&p);
    free_problem(&p);
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
    if (rng_below(r, 3) == 0) { /* what a rank has: fewer leaves than the law's for its k */
        s.leaves = iv_leaf_count(iv_padded_k(s.k));
        while (s.leaves > 1 && rng_below(r, 2)) s.leaves /= 2;
    }
    s.bias = rng_below(r, 3) == 0;
    s.fw = (family)rng_below(r, FAMILIES), s.fx = rng_below(r, 2) ? s.fw : (family)rng_below(r, FAMILIES);
    return s;
}

static void random_problems(bool tc16, bool experts, const char *name) {
    rng r = rng_start(name);
    for (size_t i = 0; i < trials(experts ? 40 : 60, 2000); i++) {
        shape s = random_shape(&r, tc16);
        if (experts) {
            s.experts = 1 + rng_below(&r, 40), s.experts_per_token = 1 + rng_below(&r, s.experts < 8 ? s.experts : 8);
            s.first = rng_below(&r, s.experts), s.count = 1 + rng_below(&r, s.experts - s.first);
            s.weighted = rng_below(&r, 2), s.epilogue = s.weighted         ? IV_GPU_STORE
                                                        : rng_below(&r, 4) ? IV_GPU_SWIGLU
                                                                           : IV_GPU_STORE;
            s.n = 16 * (1 + rng_below(&r, 6)), s.rows = 1 + rng_below(&r, 40);
            s.k = s.k > 300 ? 300 : s.k, s.leaves = rng_below(&r, 2) ? 1 : 0, s.packed = rng_below(&r, 2);
        }
        try_shape(&r, &s);
    }
}

static void tc16_has_the_laws_bits(void **state) {
    (void)state;
    if (!is_hopper) {
        printf("SKIPPED: tc16 needs compute capability 9.0\n");
        skip();
    }
    random_problems(true, false, "tc16");
}
static void tc16_experts_have_the_laws_bits(void **state) {
    (void)state;
    if (!is_hopper) skip();
    random_problems(true, true, "tc16 experts");
}
static void fma32_has_the_laws_bits(void **state) {
    (void)state;
    random_problems(false, false, "fma32");
}
static void fma32_experts_have_the_laws_bits(void **state) {
    (void)state;
    random_problems(false, true, "fma32 experts");
}

/* Sizes of models, at sampled outputs. */
static void large_problems(void **state) {
    (void)state;
    if (!is_hopper) skip();
    rng r = rng_start("large");
    static const size_t rows[] = {1, 2, 8, 9, 16, 24, 33, 64};
    static const struct {
        size_t n, k;
        int leaves;
        iv_gpu_epilogue epilogue;
    } size[] = {{6144, 4096, 8, IV_GPU_STORE},   {4096, 4096, 8, IV_GPU_RESIDUAL}, {4096, 12288, 8, IV_GPU_RESIDUAL},
                {24576, 4096, 8, IV_GPU_SWIGLU}, {4096, 1536, 1, IV_GPU_STORE},    {4096, 6144, 4, IV_GPU_STORE},
                {2570, 5120, 8, IV_GPU_STORE},   {1024, 9728, 8, IV_GPU_RESIDUAL}, {5120, 3200, 1, IV_GPU_STORE}};
    for (size_t i = 0; i < (short_run() ? 1 : sizeof size / sizeof *size); i++)
        for (size_t m = 0; m < 2; m++) {
            shape s = {.arithmetic = IV_TC16,
                       .type = m ? IV_F16 : IV_BF16,
                       .weight = m ? IV_F16 : IV_BF16,
                       .n = size[i].n,
                       .k = size[i].k,
                       .leaves = size[i].leaves,
                       .epilogue = size[i].epilogue,
                       .rows = rows[rng_below(&r, sizeof rows / sizeof *rows)],
                       .fw = NORMAL,
                       .fx = rng_below(&r, 2) ? NORMAL : WIDE,
                       .samples = 48};
            try_shape(&r, &s);
        }
    static const struct {
        size_t n, k;
        bool weighted;
    } expert_size[] = {{1536, 2048, false}, {2048, 768, true}};
    for (size_t i = 0; i < (short_run() ? 1 : 4); i++) { /* 128 experts, 8 for a token */
        shape s = {.arithmetic = IV_TC16,
                   .type = IV_BF16,
                   .weight = IV_BF16,
                   .n = expert_size[i % 2].n,
                   .k = expert_size[i % 2].k,
                   .epilogue = expert_size[i % 2].weighted ? IV_GPU_STORE : IV_GPU_SWIGLU,
                   .rows = i < 2 ? 1 + rng_below(&r, 4) : 17 + rng_below(&r, 30),
                   .experts = 128,
                   .count = 24,
                   .first = 24 * rng_below(&r, 5),
                   .experts_per_token = 8,
                   .weighted = expert_size[i % 2].weighted,
                   .samples = 32};
        try_shape(&r, &s);
    }
}

/* Where fma32 flushes: results about 2^-126, by products that lie just below it. Law, 3.1. */
static void flushing_is_after_rounding(void **state) {
    (void)state;
    rng r = rng_start("flushing");
    shape s = {.arithmetic = IV_FMA32, .type = IV_F32, .weight = IV_F32, .rows = 24, .n = 64, .k = 16};
    problem p;
    make_problem(&r, &s, &p);
    float *w = (float *)p.w, *x = (float *)p.x, near[8]; /* (1 + a)(1 - a') is 1 less a^2, about 2^-25, or nearly so */
    for (size_t i = 0; i < 8; i++) near[i] = ldexpf((float)(724 + rng_below(&r, 2172)), -23);
    memset(w, 0, s.n * p.a.w.k_padded * 4);
    for (size_t n = 0; n < s.n; n++)
        w[n * p.a.w.k_padded] = ldexpf(1.0f + near[n % 8] + ldexpf((float)(n / 8), -23), -63);
    for (size_t m = 0; m < s.rows; m++)
        x[m * p.a.x_stride] = ldexpf(1.0f - (near[m % 8] + ldexpf((float)(m / 8) - 1.0f, -24)), -63);
    CUDA(cudaMemcpy((void *)p.a.w.data, w, s.n * p.a.w.k_padded * 4, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy((void *)p.a.x, x, s.rows * p.a.x_stride * 4, cudaMemcpyHostToDevice));
    memcpy(p.want, p.before, p.out_bytes);
    iv_pool_run(pool, p.samples, reference_sample, &p);
    check_all(&p);
    free_problem(&p);
}

/* A bit of x changed behind the reference's back is seen; so is another order of the leaves. */
static void the_check_can_fail(void **state) {
    (void)state;
    rng r = rng_start("control");
    shape s = {.arithmetic = is_hopper ? IV_TC16 : IV_FMA32,
               .type = IV_BF16,
               .weight = IV_BF16,
               .rows = 3,
               .n = 128,
               .k = 512};
    problem p;
    make_problem(&r, &s, &p);
    run(&p, NULL);
    assert_int_equal(differences(&p, "as it is"), 0);
    p.a.w.leaves = 4; /* the device adds another tree */
    run(&p, NULL);
    assert_int_not_equal(differences(&p, NULL), 0);
    p.a.w.leaves = 8;
    uint16_t bit = (uint16_t)(((const uint16_t *)p.x)[7] ^ 1);
    CUDA(cudaMemcpy((uint16_t *)p.a.x + 7, &bit, 2, cudaMemcpyHostToDevice));
    run(&p, NULL);
    assert_int_not_equal(differences(&p, NULL), 0);
    free_problem(&p);
}

/* What cannot be computed is refused, not computed wrongly. */
static void bad_problems_are_refused(void **state) {
    (void)state;
    rng r = rng_start("refused");
    shape s = {.arithmetic = IV_FMA32, .type = IV_BF16, .weight = IV_BF16, .rows = 3, .n = 32, .k = 128};
    problem p;
    make_problem(&r, &s, &p);
    iv_gpu_linear_config c = iv_gpu_linear_choose(&p.a);
    iv_gpu_linear_args bad[6];
    for (size_t i = 0; i < 6; i++) bad[i] = p.a;
    bad[0].w.leaves = 3, bad[1].w.k_padded = 120, bad[2].type = IV_F16, bad[3].w.data = (const char *)p.a.w.data + 2;
    bad[4].epilogue = IV_GPU_SWIGLU, bad[4].w.n = 24, bad[5].rows = SIZE_MAX / 2;
    for (size_t i = 0; i < 6; i++) assert_int_not_equal(iv_gpu_linear_with(&bad[i], &c, NULL), 0);
    bad[0] = p.a, bad[0].rows = 0; /* nothing to do is done */
    assert_int_equal(iv_gpu_linear_with(&bad[0], &c, NULL), 0);
    free_problem(&p);
}

int main(void) {
    int count = 0, major = 0, minor = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
        printf("SKIPPED: there is no GPU\n");
        return 77;
    }
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
    is_hopper = major == 9 && minor == 0;
    iv_error err;
    if (iv_pool_open(0, &pool, &err) != IV_OK) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_check_can_fail),         cmocka_unit_test(bad_problems_are_refused),
        cmocka_unit_test(tc16_has_the_laws_bits),     cmocka_unit_test(tc16_experts_have_the_laws_bits),
        cmocka_unit_test(fma32_has_the_laws_bits),    cmocka_unit_test(fma32_experts_have_the_laws_bits),
        cmocka_unit_test(flushing_is_after_rounding), cmocka_unit_test(large_problems),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    printf("configurations compared: %zu (generic %zu, wgmma %zu)\n", configurations_run, family_runs[IV_GPU_GENERIC],
           family_runs[IV_GPU_WGMMA]);
    iv_pool_close(pool);
    return failed;
}
