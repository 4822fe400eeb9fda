/* adapter.c: chains and a tree, as for the layer itself. */
#include "numerics/adapter.h"
#include "numerics/attention.h"
#include "numerics/floats.h"
#include "numerics/fma32.h"
#include "numerics/philox.h"
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

/* The tree over leaves, canonical. */
static float root(const iv_ref_adapter *a, float *sum, size_t leaves) {
    for (size_t n = leaves; n > 1; n /= 2)
        for (size_t i = 0; i < n / 2; i++) sum[i] = add(a->arithmetic, sum[2 * i], sum[2 * i + 1]);
    return iv_canonical(sum[0]);
}

void iv_ref_adapter_inner(const iv_ref_adapter *a, const void *x, void *t) {
    size_t width = iv_dtype_bytes(a->type), k = iv_padded_k(a->inputs), leaf = k / (size_t)a->leaves;
    memset(t, 0, iv_padded_k(a->rank) * width);
    for (size_t j = 0; j < a->rank; j++) {
        float sum[IV_LEAVES_MAX];
        for (int i = 0; i < a->leaves; i++)
            sum[i] = iv_ref_chain(a->arithmetic, a->type, 0.0f, (const char *)x + (size_t)i * leaf * width,
                                  (const char *)a->a + (j * k + (size_t)i * leaf) * width, leaf);
        put(a->type, t, j, root(a, sum, (size_t)a->leaves));
    }
}

float iv_ref_adapt(const iv_ref_adapter *a, const void *t, size_t i, float y) {
    size_t r = iv_padded_k(a->rank);
    float z = iv_ref_chain(a->arithmetic, a->type, 0.0f, t, (const char *)a->b + i * r * iv_dtype_bytes(a->type), r);
    return iv_canonical(fmaf(a->scale, iv_canonical(z), y));
}

/* ---- training ---------------------------------------------------------------------------------------------- */

void iv_ref_adapter_scaled(const iv_ref_adapter *a, const void *dy, size_t outputs, void *dz) {
    memset(dz, 0, iv_padded_k(outputs) * iv_dtype_bytes(a->type));
    for (size_t i = 0; i < outputs; i++) put(a->type, dz, i, iv_canonical(a->scale * iv_element(a->type, dy, i)));
}

/* One chain of n elements of `x` and, `stride` elements apart, of `y`, both padded with zeros to a multiple of 16. */
static float strided_chain(const iv_ref_adapter *a, const void *x, const void *y, size_t stride, size_t n) {
    size_t width = iv_dtype_bytes(a->type);
    float acc = 0.0f;
    for (size_t at = 0; at < n; at += IV_CHAIN_STEP) {
        unsigned char left[IV_CHAIN_STEP * sizeof(float)] = {0}, right[IV_CHAIN_STEP * sizeof(float)] = {0};
        for (size_t i = 0; i < IV_CHAIN_STEP && at + i < n; i++) {
            memcpy(left + i * width, (const char *)x + (at + i) * width, width);
            memcpy(right + i * width, (const char *)y + (at + i) * stride * width, width);
        }
        acc = iv_ref_chain(a->arithmetic, a->type, acc, left, right, IV_CHAIN_STEP);
    }
    return acc;
}

void iv_ref_adapter_inner_gradient(const iv_ref_adapter *a, const void *dz, size_t outputs, size_t leaves, size_t leaf,
                                   void *dt) {
    size_t width = iv_dtype_bytes(a->type), r = iv_padded_k(a->rank);
    memset(dt, 0, r * width);
    for (size_t j = 0; j < a->rank; j++) {
        float sum[IV_LEAVES_MAX];
        for (size_t i = 0; i < leaves; i++) {
            size_t first = i * leaf < outputs ? i * leaf : outputs, n = outputs - first < leaf ? outputs - first : leaf;
            sum[i] =
                strided_chain(a, (const char *)dz + first * width, (const char *)a->b + (first * r + j) * width, r, n);
        }
        put(a->type, dt, j, root(a, sum, leaves));
    }
}

float iv_ref_adapter_input_gradient(const iv_ref_adapter *a, const void *dt, size_t k, float dx) {
    size_t width = iv_dtype_bytes(a->type);
    float sum = strided_chain(a, dt, (const char *)a->a + k * width, iv_padded_k(a->inputs), a->rank);
    return iv_canonical(dx + iv_canonical(sum));
}

void iv_ref_adapter_begin(uint64_t seed, const uint8_t name[32], size_t inputs, size_t count, float *out) {
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t of_name[3], word[4];
    memcpy(of_name, name, sizeof of_name); /* little-endian */
    for (size_t i = 0; i < count; i++) {
        const uint32_t counter[4] = {(uint32_t)(i / 4), of_name[0], of_name[1], of_name[2]};
        if (i % 4 == 0) iv_philox4x32(counter, key, word);
        double u = ((double)word[i % 4] + 0.5) * 0x1p-32;
        out[i] = (float)((2 * u - 1) / sqrt((double)inputs));
    }
}
