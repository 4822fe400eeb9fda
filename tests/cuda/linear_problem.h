/* linear_problem.h: a linear layer on host and device: groups, guarded outputs, sampled comparison; shared by the cases
 * of float layers and of int8 ones. */
#ifndef IV_TESTS_CUDA_LINEAR_PROBLEM_H
#define IV_TESTS_CUDA_LINEAR_PROBLEM_H

#include "random.h"
#include "base/threads.h"
#include "kernels/cuda/ops.h"
#include "numerics/rows.h"

#include <cuda_runtime_api.h>

enum { CONFIGS_MAX = 512, GUARD = 64 /* elements before and after the output */ };

#define CUDA(call)                                                                              \
    do {                                                                                        \
        int cuda_code_ = (int)(call);                                                           \
        if (cuda_code_) fail_msg("%s: %s", #call, cudaGetErrorString((cudaError_t)cuda_code_)); \
    } while (0)

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

#endif
