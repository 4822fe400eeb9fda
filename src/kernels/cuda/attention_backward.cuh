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
    int32_t unit; /* keys: blocks 2 unit and 2 unit + 1; queries: numbers, see attention_backward_queries_sm90a.cu */
    int32_t tile; /* the sequence's first tile of a head */
    int32_t unused[3];
} iv_backward_work;

/* A tile: rounded score gradients of 64 keys and 64 queries, as the keys' kernel holds them: [warp: 16 keys][16
 * queries][register of the operand][lane] pairs of queries, the second one in the low half. A head's tiles of a
 * sequence: those of query block i from i (i + 1) / 2 on, one for each block of keys. */
enum { IV_TILE_BYTES = IV_ATTENTION_BLOCK * IV_ATTENTION_BLOCK * 2 };

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
    iv_backward_queue *queue;    /* of keys, of queries; with tiles of each part of the KV heads */
    iv_backward_work *work[2];
    char *tiles;                       /* NULL: none. [head of the part][tile] */
    int32_t *first_tile;               /* of each span */
    int32_t tile_count;                /* of a head */
    int32_t parts, kv_first, kv_count; /* parts of the KV heads; the one of a launch */
    int32_t numbers;                   /* of a unit of queries */
    int32_t span_count, rows, row_stride, heads, kv_heads, head_dim, group;
    int64_t window;
    float scale_log2e, scale, score_inner;
    const float *sinks;
    float *sink_terms;
    bool tc16;
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

/* Number n of a sequence's queries: a head of the group and a block; its first block of keys; whether there is one. */
typedef struct iv_backward_number {
    int head, block, first;
    bool here;
} iv_backward_number;

IV_DEVICE iv_backward_number iv_backward_number_of(const iv_backward_params &p, int rows, int kv_head, int n) {
    iv_backward_number a;
    a.block = n / p.group, a.head = kv_head * p.group + n - a.block * p.group;
    a.here = a.block * IV_ATTENTION_BLOCK < rows;
    a.first = iv_backward_first_block(a.block, p.window);
    return a;
}

/* The tile of a head, a block of queries and a block of keys. The next block of queries has it query_block + 1 later.
 */
IV_DEVICE uint32_t iv_backward_tile(const iv_backward_params &p, int first_tile, int head, int query_block,
                                    int key_block) {
    uint32_t at = (uint32_t)(head - p.kv_first * p.group) * (uint32_t)p.tile_count + (uint32_t)first_tile;
    return at + (uint32_t)(query_block * (query_block + 1) / 2 + key_block);
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
/* dq from tiles. */
int iv_attention_backward_tiles(const iv_gpu_attention_backward_args *a, const iv_backward_params &p,
                                cudaStream_t stream);

#endif
