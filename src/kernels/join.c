/* join.c: plain loops; how many columns are added at once is free. */
#include "kernels/join.h"
#include "kernels/cpu/tile_common.h"

#include <string.h>

typedef struct values {
    _Alignas(64) float node[IV_LEAVES_MAX][IV_JOIN_COLUMNS];
} values;

/* Not inlined: no addition may move across the change of the flushing mode. */
static __attribute__((noinline)) void add_up(values *v, const iv_tree_join *join, size_t n) {
    for (size_t j = 0; j < join->count; j++) {
        float *to = v->node[join->to[j]];
        const float *from = v->node[join->from[j]];
        for (size_t i = 0; i < n; i++) to[i] = to[i] + from[i];
    }
}

void iv_join(iv_arithmetic arithmetic, const iv_tree_join *join, const float *const *node, const float *bias, size_t n,
             float *x) {
    values v;
    IV_ASSERT(n <= IV_JOIN_COLUMNS);
    for (size_t i = 0; i <= join->count; i++) memcpy(v.node[i], node[i], n * sizeof(float));
    if (arithmetic == IV_FMA32)
        IV_WITH_FLUSH(add_up(&v, join, n));
    else
        add_up(&v, join, n);
    const float *y = v.node[0];
    for (size_t i = 0; i < n; i++) {
        float sum = iv_canonical(y[i]);
        if (bias) sum = iv_canonical(sum + bias[i]);
        x[i] = iv_canonical(x[i] + sum);
    }
}
