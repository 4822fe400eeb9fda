/* blas.c: the few entries of OpenBLAS that a linear layer needs, found by name. Everything is float32: 16-bit weights
 * were widened once (widened.h), activations are widened at each call, both exactly. */
#include "baseline/blas.h"
#include "numerics/floats.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

static const char library[] = "libopenblas.so.0";

/* CBLAS's constants, and the indices of OpenBLAS's ordinary build. */
enum { ROW_MAJOR = 101, NO_TRANSPOSE = 111, TRANSPOSE = 112 };

struct iv_blas {
    void *handle;
    void (*set_threads)(int threads);
    void (*sgemv)(int order, int transpose, int m, int n, float alpha, const float *a, int lda, const float *x,
                  int x_step, float beta, float *y, int y_step);
    void (*sgemm)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float *a,
                  int lda, const float *b, int ldb, float beta, float *c, int ldc);
};

/* Pointers to functions come out of dlsym as pointers to void; POSIX says that they may be copied over. */
static bool find(void *handle, const char *name, void *function) {
    void *p = dlsym(handle, name);
    memcpy(function, &p, sizeof p);
    return p != NULL;
}

iv_status iv_blas_open(size_t threads, iv_blas **out, iv_error *err) {
    iv_blas *b = calloc(1, sizeof *b);
    if (!b) return iv_fail(err, IV_NO_MEMORY, "vanilla-blas: no memory");
    b->handle = dlopen(library, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE); /* its threads may outlive a dlclose */
    if (!b->handle) {
        const char *why = dlerror();
        free(b);
        return iv_fail(err, IV_NOT_FOUND,
                       "numerics vanilla-blas: %s is not installed (Debian: apt install libopenblas0-pthread): %s",
                       library, why ? why : "no reason given");
    }
    if (!find(b->handle, "openblas_set_num_threads", &b->set_threads) || !find(b->handle, "cblas_sgemv", &b->sgemv) ||
        !find(b->handle, "cblas_sgemm", &b->sgemm)) {
        iv_blas_close(b);
        return iv_fail(err, IV_UNSUPPORTED,
                       "numerics vanilla-blas: %s has no cblas_sgemv, cblas_sgemm or "
                       "openblas_set_num_threads",
                       library);
    }
    b->set_threads((int)threads);
    *out = b;
    return IV_OK;
}

void iv_blas_close(iv_blas *b) {
    if (!b) return;
    dlclose(b->handle);
    free(b);
}

static const float *widen_rows(const iv_compute *c, const iv_linear_args *a) {
    size_t k = a->weight->k;
    float *out = c->scratch;
    IV_ASSERT(a->rows * k * sizeof *out <= c->scratch_bytes);
    for (size_t r = 0; r < a->rows; r++)
        for (size_t i = 0; i < k; i++) out[r * k + i] = iv_element(a->type, a->x, r * a->x_stride + i);
    return out;
}

void iv_blas_linear(const iv_blas *b, const iv_compute *c, const iv_linear_args *a, const float *weight) {
    const iv_matrix *w = a->weight;
    bool wide = a->type == IV_F32;
    const float *x = wide ? a->x : widen_rows(c, a);
    size_t x_stride = wide ? a->x_stride : w->k;
    IV_ASSERT(a->rows <= INT_MAX && x_stride <= INT_MAX && a->out_stride <= INT_MAX);
    int rows = (int)a->rows, n = (int)w->n, k = (int)w->k;
    for (size_t r = 0; a->bias && r < a->rows; r++) /* gemm adds W x to y */
        for (size_t i = 0; i < w->n; i++) {
            float *y = &a->out[r * a->out_stride + i];
            *y = a->accumulate ? *y + a->bias[i] : a->bias[i];
        }
    float keep = a->bias || a->accumulate ? 1.0f : 0.0f;
    if (rows == 1)
        b->sgemv(ROW_MAJOR, NO_TRANSPOSE, n, k, 1.0f, weight, k, x, 1, keep, a->out, 1);
    else
        b->sgemm(ROW_MAJOR, NO_TRANSPOSE, TRANSPOSE, rows, n, k, 1.0f, x, (int)x_stride, weight, k, keep, a->out,
                 (int)a->out_stride);
}
