/* int8.c: chooses the kernel of an int8 layer on a GPU. All have the same bits. A function of sizes and the device
 * alone. */
#include "kernels/cuda/int8.h"
#include "base/size.h"
#include "base/status.h"

#include <stdio.h>

enum { CUDA_INVALID = 1, DOT_ROWS = 4 };

size_t iv_gpu_int8_configs(const iv_gpu_int8_args *a, iv_gpu_int8_config *out, size_t count) {
    size_t n = iv_gpu_int8_generic_configs(a, out, count), at = iv_size_min(n, count);
    if (!iv_gpu_int8_on_hopper()) return n;
    size_t stream = iv_gpu_int8_stream_configs(a, out + at, count - at);
    n += stream, at = iv_size_min(n, count);
    return n + iv_gpu_int8_wgmma_configs(a, out + at, count - at);
}

/* Rows of an expert on average, with groups. */
static size_t rows_of_matrix(const iv_gpu_linear_args *l) {
    return l->groups ? l->rows * l->groups->experts_per_token / iv_size_max(1, l->groups->experts) : l->rows;
}

iv_gpu_int8_config iv_gpu_int8_choose(const iv_gpu_int8_args *a) {
    iv_gpu_int8_config c, generic[3];
    bool hopper = iv_gpu_int8_on_hopper();
    if (hopper && (iv_gpu_int8_stream_prefer(a, &c) || iv_gpu_int8_wgmma_prefer(a, &c))) return c;
    size_t n = iv_gpu_int8_generic_configs(a, generic, 3);
    return generic[rows_of_matrix(&a->l) <= DOT_ROWS / (size_t)a->l.w.terms ? 0 : n - 1];
}

void iv_gpu_int8_describe(const iv_gpu_int8_config *c, char *text, size_t bytes) {
    static const char *const names[IV_GPU_INT8_FAMILIES] = {"dp4a", "mma.m8n8k16", "mma.m16n8k32", "streaming mma",
                                                            "wgmma"};
    IV_ASSERT(c->family >= 0 && c->family < IV_GPU_INT8_FAMILIES);
    snprintf(text, bytes, "int8 %s n%d m%d split %d stages %d ctas %d", names[c->family], c->tile_n, c->tile_m,
             c->split_k, c->stages, c->ctas);
}

int iv_gpu_int8_linear(const iv_gpu_int8_args *a, iv_gpu_stream stream) {
    iv_gpu_int8_config c = iv_gpu_int8_choose(a);
    return iv_gpu_int8_linear_with(a, &c, stream);
}

int iv_gpu_int8_linear_with(const iv_gpu_int8_args *a, const iv_gpu_int8_config *c, iv_gpu_stream stream) {
    const iv_gpu_linear_args *l = &a->l;
    const iv_gpu_matrix *w = &l->w;
    size_t most = (size_t)INT32_MAX / 16;
    if (w->terms < 1 || w->terms > IV_INT8_TERMS_MAX || w->k_padded == 0 || w->k_padded > IV_INT8_K_MAX ||
        w->k_padded % 16 != 0 || a->code_stride < w->k_padded || a->code_stride % 16 != 0 || l->rows > most ||
        w->n > most || ((uintptr_t)w->data | (uintptr_t)a->codes) % 16 != 0 || w->expert_bytes % 16 != 0 ||
        l->type > IV_F32 || l->epilogue > IV_GPU_SWIGLU || (l->epilogue == IV_GPU_SWIGLU && w->n % 16 != 0) ||
        (a->sums && l->groups) || (l->groups && l->rows * l->groups->experts_per_token > most))
        return CUDA_INVALID;
    if (l->rows == 0 || w->n == 0 || (l->groups && l->groups->count == 0)) return 0;
    switch (c->family) {
    case IV_GPU_INT8_STREAM: return iv_gpu_int8_stream_launch(a, c, stream);
    case IV_GPU_INT8_WGMMA: return iv_gpu_int8_wgmma_launch(a, c, stream);
    default: return iv_gpu_int8_generic_launch(a, c, stream);
    }
}
