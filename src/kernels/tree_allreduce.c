/* tree_allreduce.c: plain loops; the number of columns added at once is free. */
#include "kernels/tree_allreduce.h"
#include "base/cpu.h"
#include "base/status.h"
#include "numerics/floats.h"

#include <string.h>

typedef struct values {
    _Alignas(64) float node[IV_LEAVES_MAX][IV_ALLREDUCE_COLUMNS];
} values;

/* Not inlined: no addition may move across the change of the flushing mode. */
static __attribute__((noinline)) void add_up(values *v, const iv_tree_order *order, size_t n) {
    for (size_t j = 0; j < order->count; j++) {
        float *to = v->node[order->to[j]];
        const float *from = v->node[order->from[j]];
        for (size_t i = 0; i < n; i++) to[i] = to[i] + from[i];
    }
}

void iv_residual_add(const float *y, const float *bias, size_t n, float *x) {
    for (size_t i = 0; i < n; i++) {
        float sum = iv_canonical(y[i]);
        if (bias) sum = iv_canonical(sum + bias[i]);
        x[i] = iv_canonical(x[i] + sum);
    }
}

void iv_tree_allreduce(iv_arithmetic arithmetic, const iv_tree_order *order, const float *const *node,
                       const float *bias, size_t n, float *x) {
    values v;
    IV_ASSERT(n <= IV_ALLREDUCE_COLUMNS);
    for (size_t i = 0; i <= order->count; i++) memcpy(v.node[i], node[i], n * sizeof(float));
    if (arithmetic == IV_FMA32)
        IV_WITH_FP(IV_FP_FLUSH, add_up(&v, order, n));
    else
        add_up(&v, order, n);
    iv_residual_add(v.node[0], bias, n, x);
}
