/* attention_backward.cuh: common parts of the kernels of attention's backward pass: parameters, the scratch,
 * visibility. attention_backward.cu prepares and chooses; attention_backward_generic.cu and *_sm90a.cu compute. */
#ifndef IV_KERNELS_CUDA_ATTENTION_BACKWARD_CUH
#define IV_KERNELS_CUDA_ATTENTION_BACKWARD_CUH

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/learn.h"

/* Work of a Hopper kernel: `unit` of a sequence, for every KV head. */
typedef struct iv_backward_work {
    int32_t first_row, rows, table;
    int32_t unit; /* keys: blocks 2 unit and 2 unit + 1; queries: see attention_backward_queries_sm90a.cu */
} iv_backward_work;

/* Filled by iv_attention_backward_prepare. */
typedef struct iv_backward_queue {
    int32_t next;  /* item: work entry * kv_heads + KV head, in descending cost */
    int32_t count; /* of entries */
    int32_t reserved[2];
} iv_backward_queue;

typedef struct iv_backward_params {
    const iv_gpu_span *spans;
    const uint32_t *tables;
    const char *q, *out, *dout, *pages;
    const float *lse2;
    float *dqkv;
    float *row_lse2, *row_delta; /* [heads][row_stride]: the scratch. row_lse2 is written for the Hopper kernels only */
    iv_backward_queue *queue;    /* of keys, of queries */
    iv_backward_work *work[2];
    int32_t span_count, rows, row_stride, heads, kv_heads, head_dim, group;
    int64_t window;
    float scale_log2e, scale;
} iv_backward_params;

/* Rows of the statistics: the 64 rows from any row of a sequence are readable. */
static inline size_t iv_backward_row_stride(size_t rows) { return (rows + 15) / 16 * 16 + IV_ATTENTION_BLOCK; }

IV_DEVICE size_t iv_backward_width(const iv_backward_params &p) {
    return (size_t)(p.heads + 2 * p.kv_heads) * p.head_dim;
}

/* The first block of keys of a block of queries (15.8). */
IV_DEVICE int iv_backward_first_block(int query_block, int64_t window) {
    return iv_attention_low(query_block * IV_ATTENTION_BLOCK, window) / IV_ATTENTION_BLOCK;
}

/* The last block of queries, of `blocks`, that meets a block of keys. */
IV_DEVICE int iv_backward_last_block(int key_block, int blocks, int64_t window) {
    if (window <= 0) return blocks - 1;
    int64_t last = ((int64_t)key_block * IV_ATTENTION_BLOCK + IV_ATTENTION_BLOCK + window - 2) / IV_ATTENTION_BLOCK;
    return last < blocks - 1 ? (int)last : blocks - 1;
}

/* The kernels; delta, and for Hopper's everything in the scratch, is prepared. */
int iv_attention_backward_generic(const iv_gpu_attention_backward_args *a, const iv_backward_params &p,
                                  cudaStream_t stream);
int iv_attention_backward_keys(const iv_gpu_attention_backward_args *a, const iv_backward_params &p,
                               cudaStream_t stream);
int iv_attention_backward_queries(const iv_gpu_attention_backward_args *a, const iv_backward_params &p,
                                  cudaStream_t stream);

#endif
