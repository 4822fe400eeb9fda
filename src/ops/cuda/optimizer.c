/* optimizer.c: AdamW on tensors of any length, and sums of equal arrays, on a GPU. The kernels take whole blocks of
 * 4096 elements, or fours: what is left goes through scratch, padded with zeros. */
#include "base/size.h"
#include "ops/cuda/state.h"

enum { BLOCK = IV_OPTIMIZER_BLOCK };

/* `to` is a block whose first n elements are from's. */
static int pad_block(const gpu_ops *g, const float *from, size_t n, float *to) {
    int code = (int)cudaMemsetAsync(to, 0, BLOCK * sizeof *to, g->stream);
    if (!code) code = (int)cudaMemcpyAsync(to, from, n * sizeof *to, cudaMemcpyDeviceToDevice, g->stream);
    return code;
}

static iv_status block_sums(iv_ops *ops, const float *gradient, size_t n, double *sums, iv_error *err) {
    gpu_ops *g = iv_gpu_ops_of(ops);
    size_t left = n % BLOCK, whole = n - left;
    float *last;
    IV_TRY(GPU_OPS_ADDRESSES(g, err, gradient, sums));
    int code = iv_gpu_block_sums(gradient, whole, sums, g->stream);
    if (!code && left) {
        IV_TRY(iv_gpu_ops_scratch(g, BLOCK, sizeof *last, &last, err));
        code = pad_block(g, gradient + whole, left, last);
        if (!code) code = iv_gpu_block_sums(last, BLOCK, sums + whole / BLOCK, g->stream);
    }
    return iv_gpu_ops_launched(g, code, err);
}

/* The elements from `whole` on. */
static iv_status step_rest(gpu_ops *g, const iv_adamw_step *step, const bool *decays, const float *gradient, size_t n,
                           float *const state[3], iv_error *err) {
    float *copy[4];
    int code = 0;
    for (int i = 0; i < 4 && !code; i++) {
        IV_TRY(iv_gpu_ops_scratch(g, BLOCK, sizeof *copy[i], &copy[i], err));
        code = pad_block(g, i < 3 ? state[i] : gradient, n, copy[i]);
    }
    if (!code) code = iv_gpu_adamw(step, decays, copy[3], copy[0], copy[1], copy[2], BLOCK, g->stream);
    for (int i = 0; i < 3 && !code; i++)
        code = (int)cudaMemcpyAsync(state[i], copy[i], n * sizeof *copy[i], cudaMemcpyDeviceToDevice, g->stream);
    return iv_gpu_ops_launched(g, code, err);
}

static iv_status adamw(iv_ops *ops, const iv_adamw_step *step, bool decay, const float *gradient, size_t n, float *w,
                       float *m, float *v, iv_error *err) {
    gpu_ops *g = iv_gpu_ops_of(ops);
    size_t left = n % BLOCK, whole = n - left, blocks = whole / BLOCK + 1;
    bool *decays;
    IV_TRY(GPU_OPS_ADDRESSES(g, err, gradient, w, m, v));
    IV_TRY(iv_gpu_ops_scratch(g, blocks, sizeof *decays, &decays, err));
    int code = (int)cudaMemsetAsync(decays, decay, blocks * sizeof *decays, g->stream);
    if (!code) code = iv_gpu_adamw(step, decays, gradient, w, m, v, whole, g->stream);
    IV_TRY(iv_gpu_ops_launched(g, code, err));
    if (!left) return IV_OK;
    return step_rest(g, step, decays, gradient + whole, left, (float *[]){w + whole, m + whole, v + whole}, err);
}

/* ---- sums of arrays ------------------------------------------------------------------------------------------------
 */

enum { ROWS = 8, GROUPS = IV_VIRTUAL_RANKS_MAX / ROWS }; /* of the kernel; of the tree's upper levels */

/* n a multiple of 4. Groups of 8, then their sums. */
static iv_status sum_fours(gpu_ops *g, const float *const *from, size_t count, size_t n, float *out, iv_error *err) {
    const float *node[GROUPS];
    float *sums;
    size_t groups = count / ROWS;
    int code = 0;
    if (count <= ROWS) return iv_gpu_ops_launched(g, iv_gpu_sum_rows(from, count, n, out, g->stream), err);
    IV_TRY(iv_gpu_ops_scratch(g, groups * n, sizeof *sums, &sums, err));
    for (size_t i = 0; i < groups && !code; i++) {
        node[i] = sums + i * n;
        code = iv_gpu_sum_rows(from + i * ROWS, ROWS, n, sums + i * n, g->stream);
    }
    if (!code) code = iv_gpu_sum_rows(node, groups, n, out, g->stream);
    return iv_gpu_ops_launched(g, code, err);
}

/* The last one to three elements. */
static iv_status sum_rest(gpu_ops *g, const float *const *from, size_t count, size_t at, size_t n, float *out,
                          iv_error *err) {
    enum { FOUR = 4 };
    const float *padded[IV_VIRTUAL_RANKS_MAX];
    float *copy;
    IV_TRY(iv_gpu_ops_scratch(g, count * FOUR, sizeof *copy, &copy, err));
    int code = (int)cudaMemsetAsync(copy, 0, count * FOUR * sizeof *copy, g->stream);
    for (size_t i = 0; i < count && !code; i++) {
        padded[i] = copy + i * FOUR;
        code =
            (int)cudaMemcpyAsync(copy + i * FOUR, from[i] + at, n * sizeof *copy, cudaMemcpyDeviceToDevice, g->stream);
    }
    IV_TRY(iv_gpu_ops_launched(g, code, err));
    IV_TRY(sum_fours(g, padded, count, FOUR, copy, err));
    code = (int)cudaMemcpyAsync(out + at, copy, n * sizeof *copy, cudaMemcpyDeviceToDevice, g->stream);
    return iv_gpu_ops_launched(g, code, err);
}

static iv_status tree_sum(iv_ops *ops, const float *const *from, size_t count, size_t n, float *out, iv_error *err) {
    gpu_ops *g = iv_gpu_ops_of(ops);
    size_t left = n % 4;
    IV_TRY(GPU_OPS_ADDRESSES(g, err, out));
    for (size_t i = 0; i < count; i++) IV_TRY(GPU_OPS_ADDRESSES(g, err, from[i]));
    if (n > left) IV_TRY(sum_fours(g, from, count, n - left, out, err));
    return left ? sum_rest(g, from, count, n - left, left, out, err) : IV_OK;
}

void iv_gpu_ops_optimizer_table(iv_ops_gpu *table) {
    table->block_sums = block_sums, table->adamw = adamw, table->tree_sum = tree_sum;
}
