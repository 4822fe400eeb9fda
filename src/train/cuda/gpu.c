/* gpu.c: flat buffers in a GPU's memory. Kernels run on a stream of their own; every call waits for it, or, for copies,
 * for the memory space. */
#include "base/size.h"
#include "kernels/cuda/learn.h"
#include "train/cuda/gpu.h"

#include <stdlib.h>
#include <string.h>

static float *flat_alloc(iv_flat *r, size_t n) {
    size_t bytes;
    iv_memspace *memspace = ((iv_flat_gpu *)r)->memspace;
    return iv_size_mul(n ? n : 1, sizeof(float), &bytes) ? memspace->alloc(memspace, bytes) : NULL;
}

static void flat_free(iv_flat *r, float *flat) {
    iv_memspace *memspace = ((iv_flat_gpu *)r)->memspace;
    memspace->free(memspace, flat);
}

enum { CLEARED = 1 << 22 }; /* elements that a thread clears at a time */

typedef struct clearing {
    float *flat;
    size_t n;
} clearing;

static void clear_range(void *context, size_t index, size_t worker) {
    const clearing *c = context;
    size_t at = index * CLEARED;
    (void)worker;
    memset(c->flat + at, 0, iv_size_min(CLEARED, c->n - at) * sizeof *c->flat);
}

static float *flat_alloc_host(iv_flat *r, size_t n) {
    iv_flat_gpu *g = (iv_flat_gpu *)r;
    size_t bytes;
    clearing c = {iv_size_mul(n ? n : 1, sizeof(float), &bytes) ? g->memspace->stage(g->memspace, bytes) : NULL, n};
    if (c.flat) iv_pool_run(g->pool, (n + CLEARED - 1) / CLEARED, clear_range, &c);
    return c.flat;
}

static void flat_free_host(iv_flat *r, float *flat) {
    iv_memspace *memspace = ((iv_flat_gpu *)r)->memspace;
    memspace->unstage(memspace, flat);
}

/* n elements from `to` on will be written: a hash of any of them that was begun is void. */
static iv_status forget_hash(iv_flat_gpu *g, const float *to, size_t n, iv_error *err) {
    if (!g->hashed || to >= g->hashed + g->hashed_count || to + n <= g->hashed) return IV_OK;
    g->hashed = NULL;
    return iv_flat_gpu_hashed(g, err);
}

static iv_status flat_clear(iv_flat *r, float *flat, size_t n, iv_error *err) {
    iv_flat_gpu *g = (iv_flat_gpu *)r;
    IV_TRY(iv_gpu_use(g->gpu, err));
    IV_TRY(forget_hash(g, flat, n, err));
    return iv_flat_gpu_finish(g, (int)cudaMemsetAsync(flat, 0, n * sizeof *flat, g->stream), "zeros", err);
}

static iv_status flat_read(iv_flat *r, const float *from, size_t n, float *to, iv_error *err) {
    iv_memspace *memspace = ((iv_flat_gpu *)r)->memspace;
    size_t bytes = n * sizeof *to;
    return n ? memspace->read(memspace, to, bytes, from, bytes, bytes, 1, err) : IV_OK;
}

static iv_status flat_write(iv_flat *r, float *to, size_t n, const float *from, iv_error *err) {
    iv_flat_gpu *g = (iv_flat_gpu *)r;
    size_t bytes = n * sizeof *to;
    IV_TRY(forget_hash(g, to, n, err));
    return n ? g->memspace->write(g->memspace, to, bytes, from, bytes, bytes, 1, err) : IV_OK;
}

/* ---- what a step computes ---------------------------------------------------------------------------------------- */

static iv_status flat_copy(iv_flat *r, float *to, const float *from, size_t n, iv_error *err) {
    iv_flat_gpu *g = (iv_flat_gpu *)r;
    IV_TRY(iv_gpu_use(g->gpu, err));
    IV_TRY(forget_hash(g, to, n, err));
    int code = (int)cudaMemcpyAsync(to, from, n * sizeof *to, cudaMemcpyDeviceToDevice, g->stream);
    return iv_flat_gpu_finish(g, code, "copy of a flat buffer", err);
}

static iv_status flat_sum(iv_flat *r, float *to, const float *const *from, size_t count, size_t n, iv_error *err) {
    iv_flat_gpu *g = (iv_flat_gpu *)r;
    if (count == 1 && to == from[0]) return IV_OK;
    IV_TRY(iv_gpu_use(g->gpu, err));
    IV_TRY(forget_hash(g, to, n, err));
    return iv_flat_gpu_finish(g, iv_gpu_sum_rows(from, count, n, to, g->stream), "sums of gradients", err);
}

/* Copies a result from scratch once the stream has written it. */
static iv_status take(iv_flat_gpu *g, int code, const void *from, size_t bytes, const char *what, void *to,
                      iv_error *err) {
    IV_TRY(iv_flat_gpu_finish(g, code, what, err));
    return g->memspace->read(g->memspace, to, bytes, from, bytes, bytes, 1, err);
}

static iv_status flat_block_sums(iv_flat *r, const float *gradient, size_t n, double *sums, iv_error *err) {
    iv_flat_gpu *g = (iv_flat_gpu *)r;
    size_t bytes = n / IV_OPTIMIZER_BLOCK * sizeof *sums;
    void *scratch;
    if (n == 0) return IV_OK;
    IV_TRY(iv_gpu_use(g->gpu, err));
    IV_TRY(iv_flat_gpu_scratch(g, bytes, &scratch, err));
    return take(g, iv_gpu_block_sums(gradient, n, scratch, g->stream), scratch, bytes, "gradient norm", sums, err);
}

static size_t blocks_of(size_t elements) { return (elements + IV_OPTIMIZER_BLOCK - 1) / IV_OPTIMIZER_BLOCK; }

/* Room for the digests of a flat buffer's groups, and after them of its blocks. None is on its way. */
static iv_status reserve_digests(iv_flat_gpu *g, size_t elements, iv_error *err) {
    void *digests;
    size_t n = iv_weight_groups(elements) + blocks_of(elements);
    g->hashed = NULL;
    IV_TRY(iv_flat_gpu_hashed(g, err));
    if (n <= g->digests_max) return IV_OK;
    g->memspace->free(g->memspace, g->digests);
    g->digests = NULL, g->digests_max = 0;
    IV_TRY(iv_flat_gpu_alloc(g, n * sizeof *g->digests, "digests of weights", &digests, err));
    g->digests = digests, g->digests_max = n;
    return IV_OK;
}

static int hash_row(iv_flat_gpu *g, const float *w, size_t n, iv_gpu_stream s) {
    enum { WORDS = sizeof *g->digests / 4 };
    uint8_t(*blocks)[32] = g->digests + iv_weight_groups(n);
    int code = iv_gpu_digests(w, n, IV_OPTIMIZER_BLOCK, (uint8_t *)blocks, s);
    return code ? code
                : iv_gpu_digests(blocks, blocks_of(n) * WORDS, (size_t)IV_GROUP_BLOCKS * WORDS, (uint8_t *)g->digests,
                                 s);
}

/* All of the flat buffer is hashed as soon as the kernels before are done. */
static int begin_hash(iv_flat_gpu *g, const float *w, size_t n) {
    int code = (int)cudaEventRecord(g->updated, g->stream);
    if (!code) code = (int)cudaStreamWaitEvent(g->hashing, g->updated, 0);
    return code ? code : hash_row(g, w, n, g->hashing);
}

/* A hash is bound by instructions and hardly needs memory: it runs next to the kernels that round the weights. */
static iv_status flat_adamw(iv_flat *r, const iv_adamw_step *step, const bool *decays, const float *gradient, float *w,
                            float *m, float *v, size_t n, bool hashes, iv_error *err) {
    iv_flat_gpu *g = (iv_flat_gpu *)r;
    size_t bytes = n / IV_OPTIMIZER_BLOCK * sizeof *decays;
    void *scratch;
    if (n == 0) return IV_OK;
    IV_TRY(iv_gpu_use(g->gpu, err));
    if (hashes) IV_TRY(reserve_digests(g, n, err));
    IV_TRY(iv_flat_gpu_scratch(g, bytes, &scratch, err));
    IV_TRY(g->memspace->write(g->memspace, scratch, bytes, decays, bytes, bytes, 1, err));
    int code = iv_gpu_adamw(step, scratch, gradient, w, m, v, n, g->stream);
    if (hashes && !code) code = begin_hash(g, w, n);
    IV_TRY(iv_flat_gpu_finish(g, code, "AdamW", err));
    g->hashed = hashes ? w : NULL, g->hashed_count = n;
    return IV_OK;
}

static iv_status flat_digests(iv_flat *r, const float *w, size_t n, uint8_t (*digests)[32], iv_error *err) {
    iv_flat_gpu *g = (iv_flat_gpu *)r;
    size_t bytes = iv_weight_groups(n) * sizeof *digests;
    int code = 0;
    if (n == 0) return IV_OK;
    IV_TRY(iv_gpu_use(g->gpu, err));
    bool begun = g->hashed == w && g->hashed_count == n;
    if (!begun) IV_TRY(reserve_digests(g, n, err));
    g->hashed = NULL;
    if (begun)
        IV_TRY(iv_flat_gpu_hashed(g, err));
    else
        code = hash_row(g, w, n, g->stream);
    return take(g, code, g->digests, bytes, "weight digests", digests, err);
}

static iv_status flat_find_not_finite(iv_flat *r, const float *x, size_t n, size_t *at, iv_error *err) {
    iv_flat_gpu *g = (iv_flat_gpu *)r;
    uint64_t found;
    void *scratch;
    IV_TRY(iv_gpu_use(g->gpu, err));
    IV_TRY(iv_flat_gpu_scratch(g, sizeof found, &scratch, err));
    int code = iv_gpu_find_not_finite(x, n, scratch, g->stream);
    IV_TRY(take(g, code, scratch, sizeof found, "search for a value that is not finite", &found, err));
    *at = found == UINT64_MAX ? SIZE_MAX : (size_t)found;
    return IV_OK;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static void gpu_close(iv_flat *r) {
    iv_flat_gpu *g = (iv_flat_gpu *)r;
    iv_error ignored;
    if (iv_gpu_use(g->gpu, &ignored) == IV_OK) {
        iv_flat_gpu_hashed(g, &ignored);
        if (g->hashing) cudaStreamDestroy(g->hashing);
        if (g->updated) cudaEventDestroy(g->updated);
        if (g->stream) cudaStreamDestroy(g->stream);
    }
    for (size_t i = 0; i < IV_FLAT_PACKINGS; i++) iv_flat_packing_free(g, g->packing[i]);
    g->memspace->free(g->memspace, g->scratch), g->memspace->free(g->memspace, g->digests);
    g->memspace->unstage(g->memspace, g->staged);
    iv_nccl_abort(g->nccl); /* nothing is in flight; other processes may have ended */
    cudaGetLastError();
    free(g);
}

static const iv_flat_ops gpu_ops = {.alloc = flat_alloc,
                                    .free = flat_free,
                                    .alloc_host = flat_alloc_host,
                                    .free_host = flat_free_host,
                                    .clear = flat_clear,
                                    .read = flat_read,
                                    .write = flat_write,
                                    .sum = flat_sum,
                                    .copy = flat_copy,
                                    .block_sums = flat_block_sums,
                                    .adamw = flat_adamw,
                                    .digests = flat_digests,
                                    .find_not_finite = flat_find_not_finite,
                                    .read_model = iv_flat_gpu_read_model,
                                    .write_model = iv_flat_gpu_write_model,
                                    .exchange = iv_flat_gpu_exchange,
                                    .close = gpu_close};

/* Blocks of other kernels come before those of a hash, which would keep them from the memory's bandwidth. */
static iv_status open_streams(iv_flat_gpu *g, iv_error *err) {
    IV_TRY(iv_gpu_use(g->gpu, err));
    int code = (int)cudaStreamCreateWithPriority(&g->stream, cudaStreamNonBlocking, -1);
    if (!code) code = (int)cudaStreamCreateWithPriority(&g->hashing, cudaStreamNonBlocking, 0);
    if (!code) code = (int)cudaEventCreateWithFlags(&g->updated, cudaEventDisableTiming);
    return iv_gpu_check(g->gpu, code, "stream", err);
}

iv_status iv_flat_open_gpu(iv_gpu *gpu, iv_pool *pool, iv_flat **out, iv_error *err) {
    iv_flat_gpu *g = calloc(1, sizeof *g);
    if (!g) return iv_fail(err, IV_NO_MEMORY, "trainer: no memory");
    *g = (iv_flat_gpu){.base = {.ops = &gpu_ops}, .gpu = gpu, .memspace = iv_gpu_memspace(gpu), .pool = pool};
    g->group[0] = iv_gpu_get_info(gpu)->ordinal, g->group_count = 1;
    iv_status status = open_streams(g, err);
    if (status != IV_OK) {
        gpu_close(&g->base);
        return status;
    }
    *out = &g->base;
    return IV_OK;
}

void iv_flat_join_gpus(iv_flat *const *flats, size_t count) {
    IV_ASSERT(count <= IV_FLAT_GPUS_MAX);
    for (size_t i = 0; i < count; i++) {
        iv_flat_gpu *g = (iv_flat_gpu *)flats[i];
        g->group_count = count;
        for (size_t k = 0; k < count; k++) g->group[k] = iv_gpu_get_info(((iv_flat_gpu *)flats[k])->gpu)->ordinal;
    }
}
