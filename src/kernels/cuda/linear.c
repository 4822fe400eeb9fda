/* linear.c: chooses the kernel of a linear layer on a GPU. All kernels produce the same bits, so only speed depends
 * on the choice. It is a function of sizes alone, so a captured graph and a later step choose alike. */
#include "base/size.h"
#include "base/status.h"
#include "kernels/cuda/ops.h"

#include <stdio.h>

enum { CUDA_INVALID_VALUE = 1 };

typedef struct family {
    const char *name;
    size_t (*configs)(const iv_gpu_linear_args *a, iv_gpu_linear_config *out, size_t count);
    int (*launch)(const iv_gpu_linear_args *a, const iv_gpu_linear_config *c, iv_gpu_stream s);
} family;

static const family families[IV_GPU_FAMILIES] = {
    [IV_GPU_GENERIC] = {"generic", iv_gpu_generic_configs, iv_gpu_generic_launch},
    [IV_GPU_WGMMA] = {"wgmma", iv_gpu_wgmma_configs, iv_gpu_wgmma_launch},
    [IV_GPU_MMA] = {"mma", iv_gpu_mma_configs, iv_gpu_mma_launch},
};

size_t iv_gpu_linear_configs(const iv_gpu_linear_args *a, iv_gpu_linear_config *out, size_t count) {
    size_t n = 0;
    for (int f = 0; f < IV_GPU_FAMILIES; f++) {
        if (f == IV_GPU_GENERIC && !iv_weight_is_plain(a->w.format)) continue;
        size_t left = n < count ? count - n : 0;
        n += families[f].configs(a, left ? out + n : NULL, left);
    }
    return n;
}

/* Tensor cores if they can; the generic kernels take everything. */
iv_gpu_linear_config iv_gpu_linear_choose(const iv_gpu_linear_args *a) {
    iv_gpu_linear_config c = {.family = IV_GPU_WGMMA}, generic[2];
    if (iv_gpu_linear_wants_fusion(a)) {
        iv_gpu_wgmma_prefer(a, &c);
        return c;
    }
    if (iv_gpu_mma_prefer(a, &c) || iv_gpu_wgmma_prefer(a, &c)) return c;
    size_t n = iv_gpu_generic_configs(a, generic, 2);
    size_t rows = a->groups ? a->rows * a->groups->experts_per_token / iv_size_max(1, a->groups->count) : a->rows;
    return generic[n > 1 && rows <= (size_t)generic[1].tile_m ? 1 : 0];
}

bool iv_gpu_linear_fuses(const iv_gpu_linear_args *a) { return iv_gpu_wgmma_fuses(a); }

void iv_gpu_linear_describe(const iv_gpu_linear_config *c, char *text, size_t bytes) {
    IV_ASSERT(c->family >= 0 && c->family < IV_GPU_FAMILIES);
    snprintf(text, bytes, "%s n%d m%d split %d stages %d variant %d%s", families[c->family].name, c->tile_n, c->tile_m,
             c->split_k, c->stages, c->variant, c->halves ? " halves" : "");
}

/* A matrix of codes, widened first: all of it, or as many experts at a time as there is memory for. */
static int linear_of_plain(const iv_gpu_linear_args *a, iv_gpu_stream stream) {
    size_t one = iv_gpu_plain_bytes(&a->w), count = a->groups ? a->groups->count : 1;
    size_t most = one ? a->widened_bytes / one : count;
    int code = 0;
    if (most == 0 || (uintptr_t)a->widened % 16 != 0) return CUDA_INVALID_VALUE;
    for (size_t first = 0; first < count && !code; first += most) {
        size_t here = iv_size_min(most, count - first);
        iv_gpu_linear_args b = *a;
        iv_gpu_matrix from = a->w;
        iv_gpu_groups groups;
        for (size_t i = 0; i < here && !code; i++) {
            from.data = (const char *)a->w.data + (first + i) * a->w.expert_bytes;
            code = iv_gpu_widen_units(&from, (char *)a->widened + i * one, stream);
        }
        if (a->groups) groups = *a->groups, groups.first += first, groups.count = here, b.groups = &groups;
        b.w.format = iv_weight_plain(a->w.type), b.w.data = a->widened, b.w.expert_bytes = one, b.fresh = true;
        if (!code) code = iv_gpu_linear(&b, stream);
    }
    return code;
}

int iv_gpu_linear(const iv_gpu_linear_args *a, iv_gpu_stream stream) {
    iv_gpu_linear_config c;
    if (iv_weight_is_plain(a->w.format))
        c = iv_gpu_linear_choose(a);
    else if (!iv_gpu_mma_prefer(a, &c) && !iv_gpu_wgmma_prefer(a, &c))
        return linear_of_plain(a, stream);
    return iv_gpu_linear_with(a, &c, stream);
}

int iv_gpu_linear_with(const iv_gpu_linear_args *a, const iv_gpu_linear_config *c, iv_gpu_stream stream) {
    const iv_gpu_matrix *w = &a->w;
    IV_ASSERT(c->family >= 0 && c->family < IV_GPU_FAMILIES);
    bool same = a->type == w->type && (a->arithmetic == IV_FMA32 || a->type != IV_F32);
    bool widened = a->arithmetic == IV_FMA32 && a->type == IV_F32; /* 16-bit weights, float32 rows */
    size_t most = (size_t)INT32_MAX / 16;
    if (!(same || widened) || w->type > IV_F32 ||
        (c->family == IV_GPU_GENERIC && w->format != iv_weight_plain(w->type)) || w->leaves < 1 ||
        w->leaves > IV_LEAVES_MAX || (w->leaves & (w->leaves - 1)) != 0 || w->k_padded == 0 ||
        w->k_padded % (IV_CHAIN_STEP * (size_t)w->leaves) != 0 || (a->epilogue == IV_GPU_SWIGLU && w->n % 16 != 0) ||
        a->rows > most || a->x_rows > most || w->n > most || w->k_padded > most || (uintptr_t)w->data % 16 != 0)
        return CUDA_INVALID_VALUE;
    if (iv_gpu_linear_wants_fusion(a) && (c->family != IV_GPU_WGMMA || !iv_gpu_wgmma_fuses(a)))
        return CUDA_INVALID_VALUE;
    if (a->arithmetic == IV_TC16 && ((uintptr_t)a->x % 16 != 0 || a->x_stride % 8 != 0)) return CUDA_INVALID_VALUE;
    if (a->groups && a->rows * a->groups->experts_per_token > most) return CUDA_INVALID_VALUE;
    if (a->rows == 0 || w->n == 0 || (a->groups && a->groups->count == 0)) return 0;
    return families[c->family].launch(a, c, stream);
}
