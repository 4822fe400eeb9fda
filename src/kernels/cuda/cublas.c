/* cublas.c: cublasGemmEx through dlopen. Nothing of cuBLAS is linked or included; its enumerators are written out. */
#include "kernels/cuda/cublas.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdlib.h>

enum { /* cublas_api.h and library_types.h */
       OP_N = 0,
       OP_T = 1,
       R_32F = 0,
       R_16F = 2,
       R_16BF = 14,
       COMPUTE_32F = 68,
       GEMM_DEFAULT = -1,
       WORKSPACE_BYTES = 64 << 20
};

struct iv_cublas {
    void *library, *handle, *workspace;
    int (*destroy)(void *handle);
    int (*set_stream)(void *handle, iv_gpu_stream stream);
    int (*set_workspace)(void *handle, void *workspace, size_t bytes);
    int (*gemm)(void *handle, int op_a, int op_b, int m, int n, int k, const void *alpha, const void *a, int type_a,
                int lda, const void *b, int type_b, int ldb, const void *beta, void *c, int type_c, int ldc,
                int compute, int algo);
};

static void *find(iv_cublas *b, const char *name) { return b->library ? dlsym(b->library, name) : NULL; }

static iv_status open_all(iv_cublas *b, iv_error *err) {
    static const char *const names[] = {"libcublas.so.13", "libcublas.so", "/usr/local/cuda/lib64/libcublas.so"};
    for (size_t i = 0; i < sizeof names / sizeof *names && !b->library; i++)
        b->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    int (*create)(void **) = (int (*)(void **))(uintptr_t)find(b, "cublasCreate_v2");
    b->destroy = (int (*)(void *))(uintptr_t)find(b, "cublasDestroy_v2");
    b->set_stream = (int (*)(void *, iv_gpu_stream))(uintptr_t)find(b, "cublasSetStream_v2");
    b->set_workspace = (int (*)(void *, void *, size_t))(uintptr_t)find(b, "cublasSetWorkspace_v2");
    *(void **)&b->gemm = find(b, "cublasGemmEx");
    if (!create || !b->destroy || !b->set_stream || !b->set_workspace || !b->gemm)
        return iv_fail(err, IV_NOT_FOUND,
                       "numerics vanilla-blas: wanted cuBLAS (libcublas.so.13) among the libraries, found none: set "
                       "LD_LIBRARY_PATH to where it is");
    if (create(&b->handle) != 0 || cudaMalloc(&b->workspace, WORKSPACE_BYTES) != cudaSuccess)
        return iv_fail(err, IV_NO_MEMORY, "cuBLAS: no memory for its workspace");
    return IV_OK;
}

iv_status iv_cublas_open(iv_cublas **out, iv_error *err) {
    iv_cublas *b = calloc(1, sizeof *b);
    if (!b) return iv_fail(err, IV_NO_MEMORY, "cuBLAS: no memory");
    iv_status status = open_all(b, err);
    if (status != IV_OK) {
        iv_cublas_close(b);
        return status;
    }
    *out = b;
    return IV_OK;
}

void iv_cublas_close(iv_cublas *b) {
    if (!b) return;
    if (b->handle) b->destroy(b->handle);
    cudaFree(b->workspace);
    if (b->library) dlclose(b->library);
    free(b);
}

bool iv_cublas_takes(const iv_gpu_linear_args *a) {
    return !a->groups && !a->bias && a->epilogue != IV_GPU_SWIGLU && a->type == a->w.type && a->type != IV_F32;
}

static int begin(const iv_cublas *b, iv_gpu_stream stream) {
    int code = b->set_stream(b->handle, stream);
    return code ? code : b->set_workspace(b->handle, b->workspace, WORKSPACE_BYTES);
}

/* Row-major y = x W^T is column-major y = W' x; both operands are K-major in memory. */
int iv_cublas_linear(iv_cublas *b, const iv_gpu_linear_args *a, iv_dtype out_type, iv_gpu_stream stream) {
    static const float one = 1.0f, zero = 0.0f;
    int type = a->type == IV_BF16 ? R_16BF : R_16F;
    int code = begin(b, stream);
    if (!code)
        code = b->gemm(b->handle, OP_T, OP_N, (int)a->w.n, (int)a->rows, (int)a->w.k_padded, &one, a->w.data, type,
                       (int)a->w.k_padded, a->x, type, (int)a->x_stride, a->epilogue == IV_GPU_RESIDUAL ? &one : &zero,
                       a->out, out_type == IV_F32 ? R_32F : type, (int)a->out_stride, COMPUTE_32F, GEMM_DEFAULT);
    return code ? cudaErrorUnknown : 0;
}

/* Row-major dW = dY^T x is column-major dW = x' dY'^T; both operands are MN-major in memory. */
int iv_cublas_weight_gradient(iv_cublas *b, const iv_gpu_weight_gradient_args *a, float *out, bool add,
                              iv_gpu_stream stream) {
    static const float one = 1.0f, zero = 0.0f;
    int type = a->type == IV_BF16 ? R_16BF : R_16F;
    int code = begin(b, stream);
    if (!code)
        code = b->gemm(b->handle, OP_N, OP_T, (int)a->k, (int)a->n, (int)a->axis->padded, &one, a->x, type,
                       (int)a->x_stride, a->dy, type, (int)a->dy_stride, add ? &one : &zero, out, R_32F, (int)a->k,
                       COMPUTE_32F, GEMM_DEFAULT);
    return code ? cudaErrorUnknown : 0;
}
