/* adapter.c: chains and a tree, as for the layer itself. */
#include "numerics/adapter.h"
#include "numerics/attention.h"
#include "numerics/floats.h"
#include "numerics/fma32.h"
#include "numerics/tree.h"

#include <math.h>
#include <string.h>

static float add(iv_arithmetic arithmetic, float a, float b) {
    return arithmetic == IV_FMA32 ? iv_add_ftz(a, b) : a + b;
}

static void put(iv_dtype type, void *out, size_t i, float x) {
    if (type == IV_F32)
        ((float *)out)[i] = x;
    else
        ((uint16_t *)out)[i] = type == IV_BF16 ? iv_bf16_from_f32(x) : iv_f16_from_f32(x);
}

void iv_ref_adapter_inner(const iv_ref_adapter *a, const void *x, void *t) {
    size_t width = iv_dtype_bytes(a->type), k = iv_padded_k(a->inputs), leaf = k / (size_t)a->leaves;
    memset(t, 0, iv_padded_k(a->rank) * width);
    for (size_t j = 0; j < a->rank; j++) {
        float sum[IV_LEAVES_MAX];
        for (int i = 0; i < a->leaves; i++)
            sum[i] = iv_ref_chain(a->arithmetic, a->type, 0.0f, (const char *)x + (size_t)i * leaf * width,
                                  (const char *)a->a + (j * k + (size_t)i * leaf) * width, leaf);
        for (int n = a->leaves; n > 1; n /= 2)
            for (int i = 0; i < n / 2; i++) sum[i] = add(a->arithmetic, sum[2 * i], sum[2 * i + 1]);
        put(a->type, t, j, iv_canonical(sum[0]));
    }
}

float iv_ref_adapt(const iv_ref_adapter *a, const void *t, size_t i, float y) {
    size_t r = iv_padded_k(a->rank);
    float z = iv_ref_chain(a->arithmetic, a->type, 0.0f, t, (const char *)a->b + i * r * iv_dtype_bytes(a->type), r);
    return iv_canonical(fmaf(a->scale, iv_canonical(z), y));
}
