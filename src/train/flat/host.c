/* host.c: flat buffers in this process's memory. */
#include "train/flat/flat_ops.h"
#include "base/size.h"
#include "kernels/token_axis.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TASK = 16 * IV_PARAMETER_BLOCK, CHUNK = 1024 };

typedef struct host {
    iv_flat base;
    const iv_kernels *k;
    iv_pool *pool;
} host;

static float *flat_alloc(iv_flat *r, size_t n) {
    size_t bytes;
    (void)r;
    return iv_size_mul(n ? n : 1, sizeof(float), &bytes) ? calloc(1, bytes) : NULL;
}

static void flat_free(iv_flat *r, float *flat) {
    (void)r;
    free(flat);
}

static iv_status flat_clear(iv_flat *r, float *flat, size_t n, iv_error *err) {
    (void)r, (void)err;
    memset(flat, 0, n * sizeof *flat);
    return IV_OK;
}

static iv_status flat_read(iv_flat *r, const float *from, size_t n, float *to, iv_error *err) {
    (void)r, (void)err;
    memcpy(to, from, n * sizeof *to);
    return IV_OK;
}

static iv_status flat_write(iv_flat *r, float *to, size_t n, const float *from, iv_error *err) {
    (void)r, (void)err;
    memcpy(to, from, n * sizeof *to);
    return IV_OK;
}

static iv_status flat_copy(iv_flat *r, float *to, const float *from, size_t n, iv_error *err) {
    (void)r, (void)err;
    memcpy(to, from, n * sizeof *to);
    return IV_OK;
}

typedef struct summing {
    float *to;
    const float *const *from;
    size_t count, n;
} summing;

/* A chunk of all inputs, while it is in the cache: sums wait, one for each level, for their neighbours. */
static void sum_chunk(const summing *x, size_t at, size_t n) {
    float waiting[IV_VIRTUAL_LEVELS_MAX + 1][CHUNK];
    for (size_t k = 0; k < x->count; k++) {
        const float *acc = x->from[k] + at;
        size_t level = 0;
        for (; k >> level & 1; level++) {
            bool root = (size_t)2 << level == x->count && k + 1 == x->count;
            float *to = root ? x->to + at : waiting[level];
            for (size_t i = 0; i < n; i++) to[i] = waiting[level][i] + acc[i];
            acc = to;
        }
        if (k + 1 < x->count) memcpy(waiting[level], acc, n * sizeof *acc);
    }
}

static void sum_task(void *context, size_t index, size_t worker) {
    (void)worker;
    const summing *x = context;
    size_t begin = index * TASK, end = iv_size_min(begin + TASK, x->n);
    for (size_t at = begin; at < end; at += CHUNK) sum_chunk(x, at, iv_size_min(CHUNK, end - at));
}

static iv_status flat_sum(iv_flat *r, float *to, const float *const *from, size_t count, size_t n, iv_error *err) {
    summing x = {to, from, count, n};
    if (count == 1) return to == from[0] ? IV_OK : flat_copy(r, to, from[0], n, err);
    iv_pool_run(((host *)r)->pool, (n + TASK - 1) / TASK, sum_task, &x);
    return IV_OK;
}

static iv_status flat_block_sums(iv_flat *r, const float *gradient, size_t n, double *sums, iv_error *err) {
    const host *h = (const host *)r;
    (void)err;
    iv_block_sums(h->k, h->pool, gradient, n, sums);
    return IV_OK;
}

static iv_status flat_adamw(iv_flat *r, const iv_adamw_step *step, const bool *decays, const float *gradient, float *w,
                            float *m, float *v, size_t n, bool hashes, iv_error *err) {
    const host *h = (const host *)r;
    (void)err, (void)hashes;
    iv_adamw_slice(h->k, h->pool, step, decays, gradient, w, m, v, n);
    return IV_OK;
}

static iv_status flat_digests(iv_flat *r, const float *w, size_t n, uint8_t (*digests)[32], iv_error *err) {
    (void)err;
    iv_weight_digests(((const host *)r)->pool, w, n, digests);
    return IV_OK;
}

static iv_status flat_find_not_finite(iv_flat *r, const float *x, size_t n, size_t *at, iv_error *err) {
    (void)r, (void)err;
    *at = SIZE_MAX;
    for (size_t i = 0; i < n && *at == SIZE_MAX; i++)
        if (!(fabsf(x[i]) <= FLT_MAX)) *at = i;
    return IV_OK;
}

static iv_status flat_read_model(iv_flat *r, const iv_model *first, float *flat, iv_error *err) {
    return iv_parameters_read(first, ((const host *)r)->pool, flat, 0, SIZE_MAX, err);
}

static iv_status flat_write_model(iv_flat *r, iv_model *first, const float *flat, size_t begin, size_t end, int parts,
                                  iv_error *err) {
    (void)parts; /* the only table */
    return iv_parameters_write(first, ((const host *)r)->pool, flat, begin, end, err);
}

static void host_close(iv_flat *r) { free(r); }

static const iv_flat_ops host_ops = {.alloc = flat_alloc,
                                     .free = flat_free,
                                     .alloc_host = flat_alloc,
                                     .free_host = flat_free,
                                     .clear = flat_clear,
                                     .read = flat_read,
                                     .write = flat_write,
                                     .sum = flat_sum,
                                     .copy = flat_copy,
                                     .block_sums = flat_block_sums,
                                     .adamw = flat_adamw,
                                     .digests = flat_digests,
                                     .find_not_finite = flat_find_not_finite,
                                     .read_model = flat_read_model,
                                     .write_model = flat_write_model,
                                     .close = host_close};

iv_status iv_flat_open_host(const iv_kernels *k, iv_pool *pool, iv_flat **out, iv_error *err) {
    host *h = calloc(1, sizeof *h);
    if (!h) return iv_fail(err, IV_NO_MEMORY, "trainer: no memory");
    *h = (host){.base = {.ops = &host_ops, .here = true}, .k = k, .pool = pool};
    *out = &h->base;
    return IV_OK;
}
