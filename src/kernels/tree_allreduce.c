/* join.c: plain loops; how many columns are added at once is free. */
#include "kernels/tree_allreduce.h"
#include "base/cpu.h"
#include "base/status.h"
#include "numerics/floats.h"

#include <string.h>

typedef struct values {
    _Alignas(64) float node[IV_LEAVES_MAX][IV_ALLREDUCE_COLUMNS];
} values;

/* Not inlined: no addition may move across the change of the flushing mode. */
static __attribute__((noinline)) void add_up(values *v, const iv_tree_join *join, size_t n) {
    for (size_t j = 0; j < join->count; j++) {
        float *to = v->node[join->to[j]];
        const float *from = v->node[join->from[j]];
        for (size_t i = 0; i < n; i++) to[i] = to[i] + from[i];
    }
}

static void add_to_residual(const float *y, const float *bias, size_t n, float *x) {
    for (size_t i = 0; i < n; i++) {
        float sum = iv_canonical(y[i]);
        if (bias) sum = iv_canonical(sum + bias[i]);
        x[i] = iv_canonical(x[i] + sum);
    }
}

void iv_tree_allreduce(iv_arithmetic arithmetic, const iv_tree_join *join, const float *const *node, const float *bias,
                       size_t n, float *x) {
    values v;
    IV_ASSERT(n <= IV_ALLREDUCE_COLUMNS);
    for (size_t i = 0; i <= join->count; i++) memcpy(v.node[i], node[i], n * sizeof(float));
    if (arithmetic == IV_FMA32)
        IV_WITH_FP(IV_FP_FLUSH, add_up(&v, join, n));
    else
        add_up(&v, join, n);
    add_to_residual(v.node[0], bias, n, x);
}

static float rounded(iv_dtype dtype, float x) {
    switch (dtype) {
    case IV_BF16: return iv_bf16_to_f32(iv_bf16_from_f32(x));
    case IV_F16: return iv_f16_to_f32(iv_f16_from_f32(x));
    default: return x;
    }
}

void iv_ring_allreduce(iv_dtype dtype, size_t nodes, const float *const *node, const float *bias, size_t hidden,
                       size_t column, size_t n, float *x) {
    float sum[IV_ALLREDUCE_COLUMNS];
    IV_ASSERT(n <= IV_ALLREDUCE_COLUMNS && nodes >= 1 && column + n <= hidden);
    for (size_t i = 0; i < n; i++) {
        size_t first = (column + i) * nodes / hidden;
        sum[i] = rounded(dtype, node[first][i]);
        for (size_t hop = 1; hop < nodes; hop++)
            sum[i] = rounded(dtype, sum[i] + rounded(dtype, node[(first + hop) % nodes][i]));
    }
    add_to_residual(sum, bias, n, x);
}
